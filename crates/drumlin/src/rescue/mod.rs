//! Reading what is left of a database that is damaged, and saving it in a new one.
//!
//! # The steps
//! 1. [`DamagedStore`](crate::store::damaged::DamagedStore) reads superblocks, catalogue and page tables. It searches
//!    the data file for what is lost of them.
//! 2. `finding.rs` reads every leaf, and describes it in a scratch database: its fences, its newest commit, its place.
//! 3. `changes.rs` adds the changes of the log's sound records.
//! 4. `rows.rs` walks through the keys of a keyspace. For each it takes the row of the newest commit from leaves, runs
//!    and changes. Keys that no sound leaf covers are gaps.
//! 5. `repair.rs` puts the rows into a new database.
//!
//! # Invariants
//! 1. Nothing is written to the damaged database.
//! 2. Every row was verified on its way: the checksum and the origin of its extent, the node, and the chunks of its
//!    value.
//! 3. Counting rows, returning them and saving them use the same iterator, so their numbers agree.
//! 4. Memory does not grow with the number of leaves or rows, except for the page tables, which an opening needs too.

mod changes;
mod extents;
mod finding;
mod images;
mod open;
mod repair;
mod report;
mod rows;
mod sources;
#[cfg(test)]
mod tests;
mod values;

pub use open::{Rescue, RescuedKeyspace, RescuedRows};
pub use report::{RepairReport, RepairedKeyspace};
