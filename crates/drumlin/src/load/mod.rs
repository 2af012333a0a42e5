//! Bulk loads: a tree is built separately from its keyspace and attached to it by one commit. `README.md` describes the
//! life of a load and what keeps it correct.

mod attach;
mod deferred;
mod loader;
mod merging;
mod packed_tree;
mod packing;
mod pages;
mod rows;
mod sorting;

pub(crate) use loader::{LoadMemory, Loader, write_large};
pub(crate) use pages::{LoadRoot, LoadTables};
