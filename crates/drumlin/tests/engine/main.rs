//! Tests of the library through its public API. The comment at the top of each file describes its tests.
//!
//! They are a single program, so they are linked only once. Tests that change or measure their process (forks, limits,
//! the working directory) run in a separate process: [`support::alone`].

mod aggregates;
mod alterations;
mod archive;
mod asynchronous;
mod atomic;
mod backups;
mod bulk_load;
mod changes;
mod clones;
mod closing;
mod concurrency;
mod corruption;
mod counts;
mod dropped;
mod errors;
mod estimates;
mod figures;
mod files;
mod foreign_handles;
mod fork;
mod formats;
mod full_disk;
mod golden;
mod handles;
mod history;
mod in_flight;
mod isolation;
mod kept_counts;
mod kept_snapshots;
mod kill;
mod large_transactions;
mod lifetime;
mod locks;
mod many_reads;
mod memory;
mod model;
mod old_versions;
mod power;
mod prepared;
mod range_removal;
mod read_only;
mod rescue;
mod runs;
mod space;
#[path = "../support/mod.rs"]
mod support;
mod transact;
mod turns;
mod warm_start;
