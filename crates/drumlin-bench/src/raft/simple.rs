//! A store of entries and rows as bytes, for stores that have no more than maps of bytes: the log and the state machine
//! of openraft on a [`Backend`]. It has no snapshots.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::alias::{EntryOf, LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf};
use openraft::storage::{
    EntryResponder, IOFlushed, LogState, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine,
};
use openraft::{EntryPayload, entry::RaftEntry};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::types::{Store, TypeConfig};
use crate::engine::Result;

/// The most entries that are applied at once.
const BATCH_ENTRIES_MAX: usize = 256;
const VOTE: &str = "vote";
const PURGED: &str = "purged";
const APPLIED: &str = "applied";

/// A row to write.
pub(crate) type Row = (u64, Vec<u8>);

/// Maps of bytes: entries by index, rows by number, and named values.
pub(crate) trait Backend: Send + Sync + Sized + 'static {
    /// Opens the maps in a folder that does not exist.
    fn create(folder: &Path, memory_bytes: u64) -> Result<Self>;

    /// Writes entries, which need not be durable before [`flush`](Backend::flush).
    fn append(&self, entries: Vec<Row>) -> io::Result<()>;

    /// Makes durable what was written before. `None` if nothing is ever durable.
    fn flush(&self) -> Option<io::Result<()>>;

    /// Returns the entries from one index to another.
    fn read(&self, indexes: std::ops::Range<u64>) -> io::Result<Vec<Vec<u8>>>;

    /// Returns the last entry.
    fn last(&self) -> io::Result<Option<Vec<u8>>>;

    /// Removes entries.
    fn remove(&self, indexes: std::ops::Range<u64>) -> io::Result<()>;

    /// Writes rows and a named value at once.
    fn write(&self, rows: Vec<Row>, name: &str, value: Vec<u8>) -> io::Result<()>;

    /// Returns a named value.
    fn value(&self, name: &str) -> io::Result<Option<Vec<u8>>>;
}

fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(io::Error::other)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(io::Error::other)
}

/// The store of a node on a backend.
pub(crate) struct SimpleStore<B> {
    shared: Arc<Shared<B>>,
}

pub(crate) struct Shared<B> {
    backend: B,
    syncs: AtomicU64,
}

impl<B: Backend> Shared<B> {
    fn get<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        self.backend.value(name)?.map(|bytes| decode(&bytes)).transpose()
    }

    fn flush(&self) -> io::Result<()> {
        let Some(flushed) = self.backend.flush() else { return Ok(()) };
        self.syncs.fetch_add(1, Ordering::Relaxed);
        flushed
    }
}

/// A handle of a store, as its log or its state machine.
pub(crate) struct Handle<B>(Arc<Shared<B>>);

impl<B> Clone for Handle<B> {
    fn clone(&self) -> Handle<B> {
        Handle(Arc::clone(&self.0))
    }
}

impl<B: Backend> Store for SimpleStore<B> {
    type Log = Handle<B>;
    type State = Handle<B>;
    type Snapshot = ();

    fn create(folder: &Path, _node: u64, memory_bytes: u64) -> Result<SimpleStore<B>> {
        let shared = Shared { backend: B::create(folder, memory_bytes)?, syncs: AtomicU64::new(0) };
        Ok(SimpleStore { shared: Arc::new(shared) })
    }

    fn handles(&self) -> (Handle<B>, Handle<B>) {
        (Handle(Arc::clone(&self.shared)), Handle(Arc::clone(&self.shared)))
    }

    fn syncs(&self) -> u64 {
        self.shared.syncs.load(Ordering::Relaxed)
    }

    async fn send(&self, _snapshot: &(), _target: &Self) -> Result<((), u64)> {
        Err("it has no snapshots".into())
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl<B: Backend> RaftLogReader<TypeConfig> for Handle<B> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<EntryOf<TypeConfig>>> {
        let first = match range.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.0.backend.read(first..end)?.iter().map(|entry| decode(entry)).collect()
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<TypeConfig>>> {
        self.0.get(VOTE)
    }
}

impl<B: Backend> RaftLogStorage<TypeConfig> for Handle<B> {
    type LogReader = Handle<B>;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let last_purged_log_id: Option<LogIdOf<TypeConfig>> = self.0.get(PURGED)?;
        let last = self.0.backend.last()?.map(|entry| decode::<EntryOf<TypeConfig>>(&entry)).transpose()?;
        let last_log_id = last.map(|entry| entry.log_id()).or(last_purged_log_id);
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Handle<B> {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<TypeConfig>) -> io::Result<()> {
        self.0.backend.write(Vec::new(), VOTE, encode(vote)?)?;
        self.0.flush()
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let encoded: io::Result<Vec<Row>> =
            entries.into_iter().map(|entry| Ok((entry.log_id().index, encode(&entry)?))).collect();
        self.0.backend.append(encoded?)?;
        let shared = Arc::clone(&self.0);
        // A sync must not hold up the task. Syncs of several appends overlap, and the backend may join them.
        tokio::task::spawn_blocking(move || callback.io_completed(shared.flush()));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        self.0.backend.remove(last.map_or(0, |id| id.index + 1)..u64::MAX)
    }

    async fn purge(&mut self, last: LogIdOf<TypeConfig>) -> io::Result<()> {
        self.0.backend.write(Vec::new(), PURGED, encode(&last)?)?;
        self.0.backend.remove(0..last.index + 1)
    }
}

type Applied = (Option<LogIdOf<TypeConfig>>, StoredMembershipOf<TypeConfig>);

impl<B: Backend> RaftStateMachine<TypeConfig> for Handle<B> {
    type SnapshotData = ();
    type SnapshotBuilder = Handle<B>;

    async fn applied_state(&mut self) -> io::Result<Applied> {
        Ok(self.0.get(APPLIED)?.unwrap_or_default())
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        let (_, mut membership) = self.applied_state().await?;
        let mut batches = entries.ready_chunks(BATCH_ENTRIES_MAX);
        while let Some(batch) = batches.next().await {
            let (mut rows, mut answers, mut last) = (Vec::new(), Vec::new(), None);
            for item in batch {
                let (entry, responder) = item?;
                last = Some(entry.log_id());
                let answer = match entry.payload {
                    EntryPayload::Blank => None,
                    EntryPayload::Normal(request) => {
                        let write = |key, value: &[u8]| {
                            rows.push((key, value.to_vec()));
                            Ok::<(), io::Error>(())
                        };
                        Some(request.rows(write)?)
                    }
                    EntryPayload::Membership(members) => {
                        membership = StoredMembershipOf::<TypeConfig>::new(last, members);
                        None
                    }
                };
                answers.push((responder, answer));
            }
            self.0.backend.write(rows, APPLIED, encode(&(&last, &membership))?)?;
            for (responder, answer) in answers {
                if let Some(responder) = responder {
                    responder.send(answer);
                }
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Handle<B> {
        self.clone()
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMetaOf<TypeConfig>, _snapshot: ()) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, ()>>> {
        Ok(None)
    }
}

impl<B: Backend> RaftSnapshotBuilder<TypeConfig> for Handle<B> {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, ()>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
