//! Runs the suite of openraft 0.9 on each kind of disk, then again with the node closed and opened before each call.

#![allow(clippy::result_large_err, reason = "the errors are openraft's")]

use std::fmt::Debug;
use std::ops::RangeBounds;

use drumlin::IoBackend;
use drumlin_raft::openraft_0_9::{LogStore, StateStore, stores};
use drumlin_raft::{KeyValue, KeyValueRequest, KeyValueResponse, Snapshot};
use openraft::storage::{LogFlushed, LogState, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{Entry, LogId, OptionalSend, SnapshotMeta, StorageError, StoredMembership, Vote};
use openraft_0_9 as openraft;

use crate::support::{Kind, Opened, Place, Reopening};

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

type Fallible<T> = Result<T, StorageError<u64>>;
type Members = StoredMembership<u64, openraft::BasicNode>;
type Answer = Option<KeyValueResponse>;

async fn reopened_log(reopening: &Reopening) -> Log {
    stores(&reopening.group().await).0
}

async fn reopened_state(reopening: &Reopening) -> State {
    stores(&reopening.group().await).1
}

impl RaftLogReader<TypeConfig> for Reopening {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Fallible<Vec<Entry<TypeConfig>>> {
        reopened_log(self).await.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Fallible<Vec<Entry<TypeConfig>>> {
        reopened_log(self).await.limited_get_log_entries(start, end).await
    }
}

impl RaftLogStorage<TypeConfig> for Reopening {
    type LogReader = Reopening;

    async fn get_log_state(&mut self) -> Fallible<LogState<TypeConfig>> {
        reopened_log(self).await.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> Reopening {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Fallible<()> {
        reopened_log(self).await.save_vote(vote).await
    }

    async fn read_vote(&mut self) -> Fallible<Option<Vote<u64>>> {
        // The store would say that no node is elected. See `a_leader_does_not_lead_after_it_was_opened_again`.
        Ok(self.group().await.log().vote().map(|vote| postcard::from_bytes(&vote).unwrap()))
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Fallible<()> {
        reopened_log(self).await.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> Fallible<Option<LogId<u64>>> {
        reopened_log(self).await.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<TypeConfig>) -> Fallible<()>
    where
        I: IntoIterator<Item = Entry<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        reopened_log(self).await.append(entries, callback).await
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Fallible<()> {
        reopened_log(self).await.truncate(log_id).await
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Fallible<()> {
        reopened_log(self).await.purge(log_id).await
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Reopening {
    async fn build_snapshot(&mut self) -> Fallible<openraft::Snapshot<TypeConfig>> {
        reopened_state(self).await.build_snapshot().await
    }
}

impl RaftStateMachine<TypeConfig> for Reopening {
    type SnapshotBuilder = Reopening;

    async fn applied_state(&mut self) -> Fallible<(Option<LogId<u64>>, Members)> {
        reopened_state(self).await.applied_state().await
    }

    async fn apply<I>(&mut self, entries: I) -> Fallible<Vec<Answer>>
    where
        I: IntoIterator<Item = Entry<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        reopened_state(self).await.apply(entries).await
    }

    async fn get_snapshot_builder(&mut self) -> Reopening {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Fallible<Box<Snapshot>> {
        reopened_state(self).await.begin_receiving_snapshot().await
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, openraft::BasicNode>,
        snapshot: Box<Snapshot>,
    ) -> Fallible<()> {
        reopened_state(self).await.install_snapshot(meta, snapshot).await
    }

    async fn get_current_snapshot(&mut self) -> Fallible<Option<openraft::Snapshot<TypeConfig>>> {
        reopened_state(self).await.get_current_snapshot().await
    }
}

struct ReopeningBuilder(Kind);

impl StoreBuilder<TypeConfig, Reopening, Reopening> for ReopeningBuilder {
    async fn build(&self) -> Fallible<((), Reopening, Reopening)> {
        let reopening = Reopening::new(self.0);
        Ok(((), reopening.clone(), reopening))
    }
}

#[test]
fn suite_reopening_with_the_best_backend() {
    Suite::test_all(ReopeningBuilder(Kind::FilesInMemory(IoBackend::Auto))).unwrap();
}

#[test]
fn suite_reopening_with_the_portable_backend() {
    Suite::test_all(ReopeningBuilder(Kind::FilesInMemory(IoBackend::Portable))).unwrap();
}

#[test]
fn suite_reopening_a_simulated_disk() {
    Suite::test_all(ReopeningBuilder(Kind::Simulated)).unwrap();
}

/// A vote that says that this node was elected says so no longer once the group is opened again.
#[test]
fn a_leader_does_not_lead_after_it_was_opened_again() {
    let mut opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    smol::block_on(async {
        let (mut log, _) = stores::<TypeConfig, KeyValue>(opened.group());
        log.save_vote(&Vote::new_committed(3, 7)).await.unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new_committed(3, 7)));
    });
    opened.reopen(KeyValue);
    smol::block_on(async {
        let (mut log, _) = stores::<TypeConfig, KeyValue>(opened.group());
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(3, 7)));
        log.save_vote(&Vote::new_committed(4, 7)).await.unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new_committed(4, 7)));
    });
}
