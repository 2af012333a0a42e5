//! The name of a node.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of a node: its cluster, and its number in it. It is stored in the node's folder when that is created.
///
/// ```
/// use drumlin_raft::Identity;
///
/// assert_eq!(Identity::new("shop", 3).to_string(), "node 3 of cluster shop");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The name of the cluster.
    pub cluster: String,
    /// The number of the node in the cluster.
    pub node: u64,
}

impl Identity {
    /// Returns the identity of a node.
    #[must_use]
    pub fn new(cluster: &str, node: u64) -> Identity {
        Identity { cluster: cluster.to_owned(), node }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} of cluster {}", self.node, self.cluster)
    }
}
