//! The type configuration of the clusters, and what a store has to offer.

use std::fmt;
use std::path::Path;

use openraft::storage::{RaftLogStorage, RaftStateMachine};
use serde::{Deserialize, Serialize};

use crate::engine::Result;

openraft::declare_raft_types!(
    /// The types of all clusters.
    pub(crate) TypeConfig: D = Request, R = Option<u64>
);

/// The length in bytes of the values that [`Request::Load`] writes.
pub(crate) const LOAD_VALUE_BYTES: usize = 1024;

/// A change of the state: rows with numbers as keys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Sets the value of a row.
    Put {
        /// The row.
        key: u64,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Writes many rows whose values follow from their numbers, so that the entry is small.
    Load {
        /// The first row.
        first: u64,
        /// The number of rows.
        count: u64,
    },
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Put { key, .. } => write!(f, "put {key}"),
            Request::Load { first, count } => write!(f, "load {count} rows from {first} on"),
        }
    }
}

impl Request {
    /// Passes each row that the request writes to `write`. Returns their number.
    pub(crate) fn rows<E>(&self, mut write: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<u64, E> {
        match self {
            Request::Put { key, value } => write(*key, value).map(|()| 1),
            Request::Load { first, count } => {
                let mut value = Vec::new();
                for number in *first..first + count {
                    crate::rows::fill(&mut value, number, 0, LOAD_VALUE_BYTES);
                    write(number, &value)?;
                }
                Ok(*count)
            }
        }
    }
}

/// The store of one node. It stays open when its node is stopped, and is dropped at the end.
pub(crate) trait Store: Send + Sync + Sized + 'static {
    /// The log of a node.
    type Log: RaftLogStorage<TypeConfig>;
    /// Its state machine.
    type State: RaftStateMachine<TypeConfig, SnapshotData = Self::Snapshot>;
    /// Its snapshots.
    type Snapshot: Send + Sync + 'static;

    /// Creates the store of a node in a folder that does not exist, with this many bytes of memory.
    fn create(folder: &Path, node: u64, memory_bytes: u64) -> Result<Self>;

    /// Returns handles for openraft.
    fn handles(&self) -> (Self::Log, Self::State);

    /// Returns the syncs of the log so far.
    fn syncs(&self) -> u64;

    /// Sends a snapshot to another node's store, and returns it there, with its length.
    fn send(
        &self,
        snapshot: &Self::Snapshot,
        target: &Self,
    ) -> impl Future<Output = Result<(Self::Snapshot, u64)>> + Send;

    /// Closes the store.
    fn close(self) -> Result<()>;
}
