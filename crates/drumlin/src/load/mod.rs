//! Bulk loads: a tree is built separately from its keyspace, and one commit attaches it to the keyspace. `README.md`
//! describes the life of a load and the reasons why loads are correct.

mod attach;
mod loader;
mod merging;
mod packed_tree;
mod packing;
mod pages;
mod rows;
mod sorting;
mod writes;

pub(crate) use loader::{LoadMemory, Loader, write_large};
pub(crate) use pages::{LoadRoot, LoadTables};
pub(crate) use writes::commit_spilled;
