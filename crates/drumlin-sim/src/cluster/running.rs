//! A node that runs, as the network and the clients reach it.

use drumlin_raft::Group;
use drumlin_raft::openraft_0_10::StateStore;

use super::TypeConfig;
use super::oracle::Watched;

pub(crate) type Raft = openraft::Raft<TypeConfig, StateStore<TypeConfig, Watched>>;

/// A node that runs, as others reach it.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) raft: Raft,
    pub(crate) group: Group<Watched>,
    /// The number of the opening, which no other opening of a cluster has.
    pub(crate) opening: u64,
}
