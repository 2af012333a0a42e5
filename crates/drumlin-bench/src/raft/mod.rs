//! Clusters of Raft nodes, on Drumlin and on other stores. All nodes are in this process and call each other without a
//! network, so that the figures show the stores.

mod cluster;
mod drumlin;
mod memory;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod simple;
mod types;

use std::path::Path;

pub(crate) use cluster::{Cluster, ELECTION_TIMEOUT_MAX};
pub(crate) use drumlin::DrumlinStore;
pub(crate) use memory::MemoryStore;
#[cfg(feature = "rocksdb")]
pub(crate) use rocksdb::RocksStore;
pub(crate) use types::{LOAD_VALUE_BYTES, Request, Store};

use crate::engine::{Capabilities, Engine, Peer, Result, Settings};

/// The type of a store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoreKind {
    Drumlin,
    Memory,
    #[cfg(feature = "rocksdb")]
    RocksDb,
}

/// A store of Raft nodes that is included in this build.
#[derive(Clone, Copy, Debug)]
pub struct RaftPeer {
    /// The name of the engine with which it is listed.
    pub name: &'static str,
    /// The store can send and install snapshots.
    pub snapshots: bool,
    pub(crate) kind: StoreKind,
}

/// Returns all stores of this build, Drumlin first.
#[must_use]
pub fn all() -> Vec<RaftPeer> {
    vec![
        RaftPeer { name: "drumlin", snapshots: true, kind: StoreKind::Drumlin },
        RaftPeer { name: MEMORY.name, snapshots: false, kind: StoreKind::Memory },
        #[cfg(feature = "rocksdb")]
        RaftPeer { name: "rocksdb", snapshots: false, kind: StoreKind::RocksDb },
    ]
}

/// Returns the store of the engine with this name.
#[must_use]
pub fn named(name: &str) -> Option<RaftPeer> {
    all().into_iter().find(|peer| peer.name == name)
}

/// Returns the engines that have nothing but stores for Raft.
#[must_use]
pub fn peers() -> Vec<Peer> {
    vec![MEMORY]
}

/// Entries and rows in the memory of the process: the limit of what any store can do here.
const MEMORY: Peer = Peer {
    name: "raft-memory",
    version: "0.10.0-alpha.37",
    settings: "openraft's nodes with entries and rows in maps in memory; nothing is durable",
    capabilities: Capabilities {
        one_writer: false,
        multi_get: true,
        transactions: true,
        atomic_batches: true,
        recovers: false,
        inserts_only: false,
        two_phases: false,
        tables: false,
        range_deletes: false,
        large_transactions: false,
    },
    open: refuse,
    restore: None,
};

fn refuse(_: &Path, _: &Settings) -> Result<Box<dyn Engine>> {
    Err("it has Raft nodes only".into())
}
