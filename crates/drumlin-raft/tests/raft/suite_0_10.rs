//! Runs the suite of openraft 0.10 on each kind of disk, then again with the node closed and opened before each call.

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;

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
use tokio::sync::Mutex;

use crate::support::{Kind, Opened, Place};

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

/// Stores of a node that is closed and opened before each call.
#[derive(Clone)]
struct Reopening(Arc<Mutex<Opened<KeyValue>>>);

impl Reopening {
    async fn stores(&self) -> (Log, State) {
        let opened = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || {
            let mut opened = opened.blocking_lock();
            opened.reopen(KeyValue);
            stores(opened.group())
        })
        .await
        .unwrap()
    }

    async fn log(&self) -> Log {
        self.stores().await.0
    }

    async fn state(&self) -> State {
        self.stores().await.1
    }
}

impl RaftLogReader<TypeConfig> for Reopening {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        self.log().await.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.log().await.limited_get_log_entries(start, end).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<TypeConfig>>> {
        self.log().await.read_vote().await
    }
}

impl RaftLogStorage<TypeConfig> for Reopening {
    type LogReader = Reopening;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        self.log().await.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> Reopening {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<TypeConfig>) -> io::Result<()> {
        self.log().await.save_vote(vote).await
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        self.log().await.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<TypeConfig>>> {
        self.log().await.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.log().await.append(entries, callback).await
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        self.log().await.truncate_after(last_log_id).await
    }

    async fn purge(&mut self, log_id: LogIdOf<TypeConfig>) -> io::Result<()> {
        self.log().await.purge(log_id).await
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Reopening {
    type SnapshotData = Snapshot;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, Snapshot>> {
        self.state().await.build_snapshot().await
    }
}

impl RaftStateMachine<TypeConfig> for Reopening {
    type SnapshotData = Snapshot;
    type SnapshotBuilder = Reopening;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<TypeConfig>>, StoredMembershipOf<TypeConfig>)> {
        self.state().await.applied_state().await
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        self.state().await.apply(entries).await
    }

    async fn get_snapshot_builder(&mut self) -> Reopening {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<TypeConfig>, snapshot: Snapshot) -> io::Result<()> {
        self.state().await.install_snapshot(meta, snapshot).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, Snapshot>>> {
        self.state().await.get_current_snapshot().await
    }
}

struct ReopeningBuilder(Kind);

impl StoreBuilder<TypeConfig, Reopening, Reopening> for ReopeningBuilder {
    async fn build(&self) -> Result<((), Reopening, Reopening), StorageError<TypeConfig>> {
        let reopening = Reopening(Arc::new(Mutex::new(Opened::create(Place::new(self.0), KeyValue))));
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
