//! Stores of logs by index: Drumlin's own, and others, one per file. RocksDB keeps entries as rows.
//!
//! All stores make the same appends. If a store can't do what a workload needs, it takes no part in it.

mod drumlin;
#[cfg(feature = "okaywal")]
mod okaywal;
#[cfg(feature = "raft-engine")]
mod raft_engine;
#[cfg(feature = "raft-log")]
mod raft_log;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use std::path::Path;

use crate::engine::{Capabilities, Engine, Peer, Result, Settings};

/// Waits until an append is durable.
pub type Pending<'s> = Box<dyn FnOnce() -> Result<()> + 's>;

/// An open store of many logs. Its methods return the errors of the store itself.
pub trait LogStore: Send + Sync {
    /// Appends entries with the indexes from `first` on. The caller makes the appends of one log one after another, and
    /// waits for their durability afterwards, by the function that is returned. A store that waits within the call
    /// returns one that does nothing.
    fn append<'s>(&'s self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<Pending<'s>>;

    /// Appends entries that need not be durable before [`sync`](LogStore::sync).
    fn append_relaxed(&self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<()>;

    /// Makes all appends so far durable.
    fn sync(&self) -> Result<()>;

    /// Passes the entries from `first` to `end` (exclusive) to `see`, in order. Returns their number.
    fn read(&self, log: u64, first: u64, end: u64, see: &mut dyn FnMut(u64, &[u8])) -> Result<u64>;

    /// Forgets the entries up to `last`, and gives their space back as soon as the store does that.
    fn purge(&self, log: u64, last: u64) -> Result<()>;

    /// Returns the number of syncs so far, if the store counts them.
    fn syncs(&self) -> Option<u64> {
        None
    }

    /// Closes the store.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A store of logs that is included in this build.
#[derive(Clone, Copy, Debug)]
pub struct LogPeer {
    /// The name of the engine with which it is listed.
    pub name: &'static str,
    /// The store finds entries by their indexes. If not, it takes part only in workloads that append.
    pub reads: bool,
    /// The store keeps each log in a folder of its own.
    pub folder_each: bool,
    /// Opens the store in an existing folder, for this many logs, with this many bytes of memory.
    pub open: fn(&Path, u64, u64) -> Result<Box<dyn LogStore>>,
}

/// Returns all stores of this build, Drumlin first.
#[must_use]
pub fn all() -> Vec<LogPeer> {
    vec![
        drumlin::LOGS,
        #[cfg(feature = "raft-engine")]
        raft_engine::LOGS,
        #[cfg(feature = "raft-log")]
        raft_log::LOGS,
        #[cfg(feature = "okaywal")]
        okaywal::LOGS,
        #[cfg(feature = "rocksdb")]
        rocksdb::LOGS,
    ]
}

/// Returns the store of the engine with this name.
#[must_use]
pub fn named(name: &str) -> Option<LogPeer> {
    all().into_iter().find(|peer| peer.name == name)
}

/// Returns the engines that have nothing but logs.
#[must_use]
pub fn peers() -> Vec<Peer> {
    vec![
        #[cfg(feature = "raft-engine")]
        raft_engine::PEER,
        #[cfg(feature = "raft-log")]
        raft_log::PEER,
        #[cfg(feature = "okaywal")]
        okaywal::PEER,
    ]
}

/// The capabilities of an engine that has nothing but logs.
#[cfg_attr(not(feature = "raft-engine"), allow(dead_code, reason = "none may be included"))]
const LOGS_ONLY: Capabilities = Capabilities {
    one_writer: false,
    multi_get: true,
    transactions: true,
    atomic_batches: true,
    recovers: true,
    inserts_only: false,
    two_phases: false,
    tables: false,
    range_deletes: false,
    large_transactions: false,
};

/// Returns an engine that has nothing but logs.
#[cfg_attr(not(feature = "raft-engine"), allow(dead_code, reason = "none may be included"))]
const fn peer(name: &'static str, version: &'static str, settings: &'static str) -> Peer {
    Peer { name, version, settings, capabilities: LOGS_ONLY, open: refuse, restore: None }
}

fn refuse(_: &Path, _: &Settings) -> Result<Box<dyn Engine>> {
    Err("it has logs only".into())
}
