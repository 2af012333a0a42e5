//! Runs the suite of openraft 0.10 on each kind of disk, then again with the node closed and opened before each call.

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;

use drumlin::IoBackend;
use drumlin_raft::openraft_0_10::{LogStore, StateStore, stores};
use drumlin_raft::{KeyValue, KeyValueRequest, KeyValueResponse, Snapshot};
use futures_util::Stream;
use openraft::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf};
use openraft::storage::{
    EntryResponder, IOFlushed, LogState, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine,
};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{OptionalSend, StorageError};
use openraft_0_10 as openraft;

use crate::support::{Kind, Opened, Place, Reopening};

openraft::declare_raft_types!(
    pub(crate) TypeConfig: D = KeyValueRequest, R = Option<KeyValueResponse>
);

type Log = LogStore<TypeConfig, KeyValue>;
type State = StateStore<TypeConfig, KeyValue>;
type Entry = openraft::alias::EntryOf<TypeConfig>;

fn run(suite: impl Future<Output = Result<(), StorageError<TypeConfig>>>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(suite).unwrap();
}

/// Builds stores that stay open.
struct Builder(Kind);

impl StoreBuilder<TypeConfig, Log, State, Opened<KeyValue>> for Builder {
    async fn build(&self) -> Result<(Opened<KeyValue>, Log, State), StorageError<TypeConfig>> {
        let opened = Opened::create(Place::new(self.0), KeyValue);
        let (log, state) = stores(opened.group());
        Ok((opened, log, state))
    }
}

#[test]
fn suite_on_the_best_backend() {
    run(Suite::test_all(Builder(Kind::Files(IoBackend::Auto))));
}

#[test]
fn suite_on_the_portable_backend() {
    run(Suite::test_all(Builder(Kind::Files(IoBackend::Portable))));
}

#[test]
fn suite_on_a_simulated_disk() {
    run(Suite::test_all(Builder(Kind::Simulated)));
}

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
    ) -> io::Result<Vec<Entry>> {
        reopened_log(self).await.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        reopened_log(self).await.limited_get_log_entries(start, end).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<TypeConfig>>> {
        // The store would say that no node is elected. See `a_leader_does_not_lead_after_it_was_opened_again`.
        Ok(self.group().await.log().vote().map(|vote| postcard::from_bytes(&vote).unwrap()))
    }
}

impl RaftLogStorage<TypeConfig> for Reopening {
    type LogReader = Reopening;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        reopened_log(self).await.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> Reopening {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<TypeConfig>) -> io::Result<()> {
        reopened_log(self).await.save_vote(vote).await
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        reopened_log(self).await.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<TypeConfig>>> {
        reopened_log(self).await.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        reopened_log(self).await.append(entries, callback).await
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        reopened_log(self).await.truncate_after(last_log_id).await
    }

    async fn purge(&mut self, log_id: LogIdOf<TypeConfig>) -> io::Result<()> {
        reopened_log(self).await.purge(log_id).await
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Reopening {
    type SnapshotData = Snapshot;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, Snapshot>> {
        reopened_state(self).await.build_snapshot().await
    }
}

impl RaftStateMachine<TypeConfig> for Reopening {
    type SnapshotData = Snapshot;
    type SnapshotBuilder = Reopening;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<TypeConfig>>, StoredMembershipOf<TypeConfig>)> {
        reopened_state(self).await.applied_state().await
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        reopened_state(self).await.apply(entries).await
    }

    async fn get_snapshot_builder(&mut self) -> Reopening {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<TypeConfig>, snapshot: Snapshot) -> io::Result<()> {
        reopened_state(self).await.install_snapshot(meta, snapshot).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, Snapshot>>> {
        reopened_state(self).await.get_current_snapshot().await
    }
}

struct ReopeningBuilder(Kind);

impl StoreBuilder<TypeConfig, Reopening, Reopening> for ReopeningBuilder {
    async fn build(&self) -> Result<((), Reopening, Reopening), StorageError<TypeConfig>> {
        let reopening = Reopening::new(self.0);
        Ok(((), reopening.clone(), reopening))
    }
}

#[test]
fn suite_reopening_with_the_best_backend() {
    run(Suite::test_all(ReopeningBuilder(Kind::FilesInMemory(IoBackend::Auto))));
}

#[test]
fn suite_reopening_with_the_portable_backend() {
    run(Suite::test_all(ReopeningBuilder(Kind::FilesInMemory(IoBackend::Portable))));
}

#[test]
fn suite_reopening_a_simulated_disk() {
    run(Suite::test_all(ReopeningBuilder(Kind::Simulated)));
}

/// A request that can't be decoded is an error with the index of its entry, for whatever reads it. The entries before
/// it can be read.
#[test]
fn a_request_that_cannot_be_decoded_is_named() {
    let opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    let (mut log, mut state) = stores::<TypeConfig, _>(opened.group());
    smol::block_on(async {
        let leader = openraft::impls::leader_id_adv::LeaderId { term: 1, node_id: 3 };
        let blank = |index| Entry {
            log_id: LogIdOf::<TypeConfig> { leader_id: leader, index },
            payload: openraft::EntryPayload::Blank,
        };
        log.append([blank(0), blank(1)], IOFlushed::noop()).await.unwrap();
        // A request, with an id of nothing but its index, and a variant that is not known.
        let unknown = [&[1, 8, 0][..], &2u64.to_le_bytes(), &[77]].concat();
        opened.group().log().append(2, &[unknown], drop).await.unwrap();
        assert_eq!(log.try_get_log_entries(0..2).await.unwrap().len(), 2);
        let error = log.try_get_log_entries(0..3).await.unwrap_err();
        assert!(error.to_string().contains("the request of entry 2 can't be decoded"), "{error}");
        // The state machine applies what comes before, and stops.
        let entries = std::pin::pin!(log.entries_stream(0..3).await);
        let entries = futures_util::StreamExt::map(entries, |entry| entry.map(|entry| (entry, None)));
        let error = state.apply(entries).await.unwrap_err();
        assert!(error.to_string().contains("entry 2"), "{error}");
        assert_eq!(opened.group().state().applied_index(), Some(1));
    });
}

/// A vote that says that this node was elected says so no longer once the group is opened again: the node's committed
/// id may be old, so it must not lead on. A vote that is saved later is read as it is.
#[test]
fn a_leader_does_not_lead_after_it_was_opened_again() {
    let mut opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    let elected = VoteOf::<TypeConfig>::new_committed(3, 7);
    smol::block_on(async {
        let (mut log, _) = stores::<TypeConfig, KeyValue>(opened.group());
        log.save_vote(&elected).await.unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(elected));
    });
    opened.reopen(KeyValue);
    smol::block_on(async {
        let (mut log, _) = stores::<TypeConfig, KeyValue>(opened.group());
        assert_eq!(log.read_vote().await.unwrap(), Some(VoteOf::<TypeConfig>::new(3, 7)));
        let next = VoteOf::<TypeConfig>::new_committed(4, 7);
        log.save_vote(&next).await.unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(next));
    });
}

/// A state that is ahead of its own log, as after a power cut, makes openraft forget the log up to it. The snapshot
/// that is handed out then covers the forgotten entries.
#[test]
fn a_snapshot_covers_what_the_log_has_forgotten() {
    let opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    let (mut log, mut state) = stores::<TypeConfig, _>(opened.group());
    smol::block_on(async {
        let leader = openraft::impls::leader_id_adv::LeaderId { term: 1, node_id: 3 };
        let id = |index| LogIdOf::<TypeConfig> { leader_id: leader, index };
        let blank = |index| Entry { log_id: id(index), payload: openraft::EntryPayload::Blank };
        let apply = |first, last| futures_util::stream::iter((first..=last).map(blank).map(|entry| Ok((entry, None))));
        state.apply(apply(0, 4)).await.unwrap();
        state.build_snapshot().await.unwrap();
        state.apply(apply(5, 9)).await.unwrap();
        log.append((0..7).map(blank), IOFlushed::noop()).await.unwrap();
        log.purge(id(9)).await.unwrap();
        let snapshot = state.get_current_snapshot().await.unwrap().unwrap();
        assert_eq!(snapshot.meta.last_log_id, Some(id(9)));
    });
}
