//! A group: the Raft log and the state machine of one replicated database on this node.

use std::fmt;
use std::sync::Arc;

use crate::codec;
use crate::error::{Error, Result};
use crate::log::RaftLog;
use crate::machine::StateMachine;
use crate::site::NodeShared;
use crate::state::State;

/// A group of a node: its Raft log, and its state. Cloning the handle is cheap.
///
/// The adapters for openraft take one: [`openraft_0_10::stores`](crate::openraft_0_10::stores).
///
/// ```
/// use drumlin_raft::{Identity, KeyValue, KeyValueRequest, Node, NodeOptions};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-raft-group-{}", std::process::id()));
/// # let node = Node::create(&folder, &Identity::new("shop", 3), &NodeOptions::new())?;
/// let group = node.group(1, KeyValue)?;
/// group.check(&KeyValueRequest::put("apples", "3"))?; // before it is proposed
/// assert_eq!(group.state().read(|_, rows| rows.get("apples"))?, None);
/// # drop((group, node));
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin_raft::Error>(())
/// ```
pub struct Group<M: StateMachine> {
    log: RaftLog,
    state: State<M>,
    request_bytes_max: u64,
}

impl<M: StateMachine> Clone for Group<M> {
    fn clone(&self) -> Group<M> {
        let (log, state) = (self.log.clone(), self.state.clone());
        Group { log, state, request_bytes_max: self.request_bytes_max }
    }
}

impl<M: StateMachine> fmt::Debug for Group<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({:?}, {:?})", self.log, self.state)
    }
}

impl<M: StateMachine> Group<M> {
    pub(crate) fn open(node: &Arc<NodeShared>, number: u64, machine: M) -> Result<Group<M>> {
        let state = State::open(node, number, machine)?;
        let log = RaftLog::new(&node.logs, number, Arc::clone(state.progress()));
        Ok(Group { log, state, request_bytes_max: node.options.request_bytes_max })
    }

    /// Returns the Raft log.
    #[must_use]
    pub fn log(&self) -> &RaftLog {
        &self.log
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> &State<M> {
        &self.state
    }

    /// Closes the group: what is applied becomes durable. Handles that are left fail with [`drumlin::Error::Closed`].
    /// Blocks.
    ///
    /// # Errors
    /// Those of [`drumlin::Database::close`].
    pub fn close(self) -> Result<()> {
        self.log.save_last_committed()?;
        self.state.close()
    }

    /// Checks a request before the leader proposes it. An entry that is committed must be applied by every node, so one
    /// that no node could store must not become an entry.
    ///
    /// # Errors
    /// [`Error::RequestTooLarge`], and [`Error::Undecodable`] if it can't be encoded and decoded.
    pub fn check(&self, request: &M::Request) -> Result<()> {
        let encoded = codec::encode(request)?;
        let (bytes, limit_bytes) = (encoded.len() as u64, self.request_bytes_max);
        if bytes > limit_bytes {
            return Err(Error::RequestTooLarge { bytes, limit_bytes });
        }
        codec::decode::<M::Request>("the request", &encoded).map(drop)
    }
}
