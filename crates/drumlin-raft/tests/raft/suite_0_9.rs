//! Runs the suite of openraft 0.9 on each kind of disk.

use drumlin::IoBackend;
use drumlin_raft::openraft_0_9::{LogStore, StateStore, stores};
use drumlin_raft::{KeyValue, KeyValueRequest, KeyValueResponse, Snapshot};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use openraft_0_9 as openraft;

use crate::support::{Kind, Opened, Place};

openraft::declare_raft_types!(
    pub(crate) TypeConfig: D = KeyValueRequest, R = Option<KeyValueResponse>, SnapshotData = Snapshot
);

type Log = LogStore<TypeConfig, KeyValue>;
type State = StateStore<TypeConfig, KeyValue>;

struct Builder(Kind);

impl StoreBuilder<TypeConfig, Log, State, Opened<KeyValue>> for Builder {
    async fn build(&self) -> Result<(Opened<KeyValue>, Log, State), StorageError<u64>> {
        let opened = Opened::create(Place::new(self.0), KeyValue);
        let (log, state) = stores(opened.group());
        Ok((opened, log, state))
    }
}

// It makes a runtime for each test.
#[test]
fn suite_on_the_best_backend() {
    Suite::test_all(Builder(Kind::Files(IoBackend::Auto))).unwrap();
}

#[test]
fn suite_on_the_portable_backend() {
    Suite::test_all(Builder(Kind::Files(IoBackend::Portable))).unwrap();
}

#[test]
fn suite_on_a_simulated_disk() {
    Suite::test_all(Builder(Kind::Simulated)).unwrap();
}
