//! The types that nodes, their network and the supervisor share.

use drumlin_raft::openraft_0_10::StateStore;
use drumlin_raft::{KeyValue, KeyValueRequest, KeyValueResponse};
use openraft_0_10 as openraft;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

openraft::declare_raft_types!(
    pub(crate) TypeConfig: D = KeyValueRequest, R = Option<KeyValueResponse>, Node = Member
);

pub(crate) type Raft = openraft::Raft<TypeConfig, StateStore<TypeConfig, KeyValue>>;

/// An error of any kind, which is only shown.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The name of the cluster.
pub(crate) const CLUSTER: &str = "example";
/// The environment variable that makes the program a node. It has its [`Settings`].
pub(crate) const NODE: &str = "DRUMLIN_CLUSTER_NODE";

/// A member of the cluster, as all nodes know it.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Member {
    /// The address for other nodes.
    pub(crate) raft: String,
    /// The address for clients.
    pub(crate) http: String,
}

/// The settings of a node, as the supervisor hands them over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) number: u64,
    pub(crate) folder: PathBuf,
    /// `true` the first time. From then on the folder must be there.
    pub(crate) create: bool,
    pub(crate) member: Member,
}

/// A line that a node writes for the timeline.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    /// It serves.
    Ready { millis: u64, applied: u64 },
    /// It has become the leader.
    Leads { term: u64 },
    /// It has built a snapshot.
    Built { index: u64 },
    /// It has sent a snapshot, the last part of it from an offset on.
    Sent { to: u64, from_offset: u64, bytes: u64, millis: u64 },
    /// The connection broke while it sent a snapshot.
    Broken { to: u64, bytes: u64 },
    /// It has installed a snapshot.
    Installed { from: u64, index: u64, bytes: u64, millis: u64 },
    /// It stops, or does not start.
    Failed { reason: String },
}

/// The figures of a node, as it tells its clients.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Metrics {
    pub(crate) node: u64,
    pub(crate) state: String,
    pub(crate) term: u64,
    pub(crate) leader: Option<u64>,
    pub(crate) last_log: u64,
    pub(crate) applied: u64,
    pub(crate) durably_applied: u64,
    pub(crate) snapshot: u64,
    pub(crate) purged: u64,
    /// The syncs of the log since the node was opened.
    pub(crate) log_syncs: u64,
    pub(crate) log_bytes: u64,
    pub(crate) state_bytes: u64,
}

/// The answer to a write.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Written {
    pub(crate) done: bool,
    pub(crate) before: Option<String>,
}

/// A request to replace a value if it is the expected one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct CompareAndSet {
    pub(crate) expected: Option<String>,
    pub(crate) value: Option<String>,
}

/// The answer to a request that was not fulfilled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) error: String,
    /// The leader, if the node is another one and knows it.
    pub(crate) leader: Option<u64>,
    /// The leader's address for clients.
    pub(crate) url: Option<String>,
}
