//! The storage traits of openraft 0.9, as of 0.9.25 with its features `serde`, `storage-v2` and
//! `generic-snapshot-data`.
//!
//! openraft 0.9 waits until an append is durable before it makes the next one, so the entries of one group are not
//! gathered while a write is in flight. Groups of one node still share writes and syncs. What is stored is the same as
//! with 0.10, so a node can be stopped, and started with 0.10.
//!
//! ```
//! use drumlin_raft::{Identity, KeyValue, KeyValueRequest, KeyValueResponse, Node, NodeOptions};
//! use drumlin_raft::{Snapshot, openraft_0_9};
//! # use ::openraft_0_9 as openraft;
//!
//! openraft::declare_raft_types!(
//!     pub TypeConfig: D = KeyValueRequest, R = Option<KeyValueResponse>, SnapshotData = Snapshot
//! );
//!
//! # let folder = std::env::temp_dir().join(format!("drumlin-doc-raft-openraft-9-{}", std::process::id()));
//! let node = Node::create(&folder, &Identity::new("shop", 3), &NodeOptions::new())?;
//! let (log_store, state_machine) = openraft_0_9::stores::<TypeConfig, _>(&node.group(1, KeyValue)?);
//! // let raft = openraft::Raft::new(3, config, network, log_store, state_machine).await?;
//! # drop((log_store, state_machine, node));
//! # std::fs::remove_dir_all(folder).unwrap();
//! # Ok::<(), drumlin_raft::Error>(())
//! ```

#![allow(clippy::result_large_err, reason = "the errors are openraft's")]

use std::fmt::{self, Debug};
use std::io;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use openraft::storage::{LogFlushed, LogState, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{
    AnyError, Entry, EntryPayload, LogId, OptionalSend, RaftTypeConfig, SnapshotMeta, StorageError, StorageIOError,
    StoredMembership, Vote,
};
use openraft_0_9 as openraft;

use crate::codec::{self, Content, EntryId};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::log::RaftLog;
use crate::machine::StateMachine;
use crate::site::AppliedState;
use crate::snapshot::Snapshot;
use crate::state::{State, Step};
use crate::threads;

/// The most bytes that [`RaftLogReader::limited_get_log_entries`] returns, unless one entry has more.
const LIMITED_BYTES_MAX: usize = 1 << 20;

/// The type configurations that the stores work with: those that `declare_raft_types!` makes, with the request of the
/// state machine as `D`, an option of its response as `R`, and [`Snapshot`] as `SnapshotData`. A blank entry and a
/// change of members have no response.
pub trait Types<M: StateMachine>:
    RaftTypeConfig<D = M::Request, R = Option<M::Response>, SnapshotData = Snapshot, Entry = Entry<Self>>
{
}

impl<C, M> Types<M> for C
where
    M: StateMachine,
    C: RaftTypeConfig<D = M::Request, R = Option<M::Response>, SnapshotData = Snapshot, Entry = Entry<C>>,
{
}

type Fallible<C, T> = std::result::Result<T, StorageError<<C as RaftTypeConfig>::NodeId>>;
type Id<C> = LogId<<C as RaftTypeConfig>::NodeId>;
type Members<C> = StoredMembership<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>;
type Meta<C> = SnapshotMeta<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>;

/// Says what failed, for openraft.
trait During<T> {
    fn during<C: RaftTypeConfig>(self, what: fn(AnyError) -> StorageIOError<C::NodeId>) -> Fallible<C, T>;
}

impl<T> During<T> for Result<T> {
    fn during<C: RaftTypeConfig>(self, what: fn(AnyError) -> StorageIOError<C::NodeId>) -> Fallible<C, T> {
        self.map_err(|error| StorageError::from(what(AnyError::new(&error))))
    }
}

/// Returns the two stores of a group, for `Raft::new`.
#[must_use]
pub fn stores<C: Types<M>, M: StateMachine>(group: &Group<M>) -> (LogStore<C, M>, StateStore<C, M>) {
    (LogStore::new(group.log().clone()), StateStore { state: group.state().clone(), types: PhantomData })
}

fn encode_id<C: RaftTypeConfig>(id: &Id<C>) -> Result<EntryId> {
    Ok(EntryId { index: id.index, bytes: codec::encode(id)? })
}

fn decode_id<C: RaftTypeConfig>(id: &EntryId) -> Result<Id<C>> {
    codec::decode("the id of an entry", &id.bytes)
}

/// Returns an entry as the core knows it.
fn into_step<C: Types<M>, M: StateMachine>(entry: Entry<C>) -> Result<Step<M::Request>> {
    let Entry { log_id, payload } = entry;
    let id = encode_id::<C>(&log_id)?;
    let content = match payload {
        EntryPayload::Blank => Content::Blank,
        EntryPayload::Normal(request) => Content::Request(request),
        EntryPayload::Membership(membership) => {
            Content::Membership(codec::encode(&Members::<C>::new(Some(log_id), membership))?)
        }
    };
    Ok(Step { id, content })
}

fn decode_membership<C: RaftTypeConfig>(bytes: &[u8]) -> Result<Members<C>> {
    codec::decode("the members of the cluster", bytes)
}

fn decode_entry<C: Types<M>, M: StateMachine>(index: u64, bytes: &[u8]) -> Result<Entry<C>> {
    let (id, content) = codec::decode_entry(index, bytes)?;
    let payload = match content {
        Content::Blank => EntryPayload::Blank,
        Content::Request(request) => EntryPayload::Normal(request),
        Content::Membership(bytes) => EntryPayload::Membership(decode_membership::<C>(&bytes)?.membership().clone()),
    };
    Ok(Entry { log_id: decode_id::<C>(&id)?, payload })
}

/// The log of a group, as openraft writes it. Also what reads it.
pub struct LogStore<C, M> {
    log: RaftLog,
    types: PhantomData<fn() -> (C, M)>,
}

impl<C, M> LogStore<C, M> {
    fn new(log: RaftLog) -> LogStore<C, M> {
        LogStore { log, types: PhantomData }
    }
}

impl<C, M> Debug for LogStore<C, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogStore({:?})", self.log)
    }
}

impl<C, M> Clone for LogStore<C, M> {
    fn clone(&self) -> LogStore<C, M> {
        LogStore::new(self.log.clone())
    }
}

impl<C: Types<M>, M: StateMachine> LogStore<C, M> {
    /// Reads entries one after the other, up to this many bytes, and one in any case.
    async fn read(&self, indexes: impl RangeBounds<u64>, bytes_max: usize) -> Result<Vec<Entry<C>>> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let Some(mut range) = self.log.range(indexes)? else { return Ok(entries) };
        while bytes < bytes_max
            && let Some(entry) = range.next_async().await
        {
            let entry = entry?;
            bytes += entry.len();
            entries.push(decode_entry::<C, M>(entry.index(), &entry)?);
        }
        Ok(entries)
    }

    async fn log_state(&self) -> Result<LogState<C>> {
        let decode = |id: EntryId| decode_id::<C>(&id);
        let last_purged_log_id = self.log.purged()?.map(decode).transpose()?;
        let last_log_id = self.log.last().await?.map(decode).transpose()?;
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn append_entries(
        &self,
        entries: impl Iterator<Item = Entry<C>>,
        answer: impl FnOnce(drumlin::Result<()>) + Send + 'static,
    ) -> Result<()> {
        let (mut first, mut encoded) = (None, Vec::new());
        for entry in entries {
            let step = into_step::<C, M>(entry)?;
            first.get_or_insert(step.id.index);
            encoded.push(codec::encode_entry(&step.id, &step.content)?);
        }
        self.log.append(first.unwrap_or(0), &encoded, answer).await
    }
}

impl<C: Types<M>, M: StateMachine> RaftLogReader<C> for LogStore<C, M> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Fallible<C, Vec<Entry<C>>> {
        self.read(range, usize::MAX).await.during::<C>(StorageIOError::read_logs)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Fallible<C, Vec<Entry<C>>> {
        self.read(start..end, LIMITED_BYTES_MAX).await.during::<C>(StorageIOError::read_logs)
    }
}

impl<C: Types<M>, M: StateMachine> RaftLogStorage<C> for LogStore<C, M> {
    type LogReader = LogStore<C, M>;

    async fn get_log_state(&mut self) -> Fallible<C, LogState<C>> {
        self.log_state().await.during::<C>(StorageIOError::read_logs)
    }

    async fn get_log_reader(&mut self) -> LogStore<C, M> {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> Fallible<C, ()> {
        let encoded = codec::encode(vote).during::<C>(StorageIOError::write_vote)?;
        self.log.save_vote(&encoded).await.during::<C>(StorageIOError::write_vote)
    }

    async fn read_vote(&mut self) -> Fallible<C, Option<Vote<C::NodeId>>> {
        let stored = self.log.vote().map(|vote| codec::decode::<Vote<C::NodeId>>("the vote", &vote)).transpose();
        // A leader of an earlier opening has to be elected again: see `RaftLog::has_saved_vote`.
        let is_whole = self.log.has_saved_vote();
        let demoted = |vote: Vote<C::NodeId>| Vote { committed: vote.committed && is_whole, ..vote };
        stored.map(|vote| vote.map(demoted)).during::<C>(StorageIOError::read_vote)
    }

    async fn save_committed(&mut self, committed: Option<Id<C>>) -> Fallible<C, ()> {
        let encoded = committed.map(|id| codec::encode(&id)).transpose().during::<C>(StorageIOError::write_logs)?;
        self.log.save_committed(encoded.as_deref());
        Ok(())
    }

    async fn read_committed(&mut self) -> Fallible<C, Option<Id<C>>> {
        let decoded = self.log.committed().map(|id| codec::decode("the committed id", &id)).transpose();
        decoded.during::<C>(StorageIOError::read_logs)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<C>) -> Fallible<C, ()>
    where
        I: IntoIterator<Item = Entry<C>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let answer = |durable: drumlin::Result<()>| callback.log_io_completed(durable.map_err(io::Error::from));
        self.append_entries(entries.into_iter(), answer).await.during::<C>(StorageIOError::write_logs)
    }

    async fn truncate(&mut self, log_id: Id<C>) -> Fallible<C, ()> {
        self.log.truncate_after(log_id.index.checked_sub(1)).await.during::<C>(StorageIOError::write_logs)
    }

    async fn purge(&mut self, log_id: Id<C>) -> Fallible<C, ()> {
        let id = encode_id::<C>(&log_id).during::<C>(StorageIOError::write_logs)?;
        self.log.purge(&id).await.during::<C>(StorageIOError::write_logs)
    }
}

/// The state of a group, as openraft applies entries to it. Also what builds its snapshots.
pub struct StateStore<C, M: StateMachine> {
    state: State<M>,
    types: PhantomData<fn() -> C>,
}

impl<C, M: StateMachine> Debug for StateStore<C, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateStore({:?})", self.state)
    }
}

impl<C, M: StateMachine> Clone for StateStore<C, M> {
    fn clone(&self) -> StateStore<C, M> {
        StateStore { state: self.state.clone(), types: PhantomData }
    }
}

fn decode_applied<C: RaftTypeConfig>(state: &AppliedState) -> Result<(Option<Id<C>>, Members<C>)> {
    let applied = state.applied.as_ref().map(decode_id::<C>).transpose()?;
    let membership = state.membership.as_deref().map(decode_membership::<C>).transpose()?;
    Ok((applied, membership.unwrap_or_default()))
}

fn describe<C: RaftTypeConfig<SnapshotData = Snapshot>>(snapshot: Snapshot) -> Result<openraft::Snapshot<C>> {
    let state = snapshot.applied().ok_or(Error::NoSuchSnapshot)?;
    let (last_log_id, last_membership) = decode_applied::<C>(state)?;
    let snapshot_id = last_log_id.as_ref().map(ToString::to_string).unwrap_or_default();
    let meta = SnapshotMeta { last_log_id, last_membership, snapshot_id };
    Ok(openraft::Snapshot { meta, snapshot: Box::new(snapshot) })
}

impl<C: Types<M>, M: StateMachine> RaftSnapshotBuilder<C> for StateStore<C, M> {
    /// While a snapshot travels, this waits; see [`State::may_build_snapshot`].
    async fn build_snapshot(&mut self) -> Fallible<C, openraft::Snapshot<C>> {
        let state = self.state.clone();
        let built = threads::unblock(move || {
            state.wait_for_travelling();
            state.build_snapshot()
        });
        built.await.and_then(describe::<C>).during::<C>(|error| StorageIOError::write_snapshot(None, error))
    }
}

impl<C: Types<M>, M: StateMachine> RaftStateMachine<C> for StateStore<C, M> {
    type SnapshotBuilder = StateStore<C, M>;

    async fn applied_state(&mut self) -> Fallible<C, (Option<Id<C>>, Members<C>)> {
        let state = self.state.clone();
        let applied = threads::unblock(move || state.applied()).await;
        applied.and_then(|applied| decode_applied::<C>(&applied)).during::<C>(StorageIOError::read_state_machine)
    }

    async fn apply<I>(&mut self, entries: I) -> Fallible<C, Vec<C::R>>
    where
        I: IntoIterator<Item = Entry<C>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let steps: Result<Vec<_>> = entries.into_iter().map(into_step::<C, M>).collect();
        let steps = steps.during::<C>(StorageIOError::write_state_machine)?;
        let state = self.state.clone();
        threads::unblock(move || state.apply(&steps)).await.during::<C>(StorageIOError::write_state_machine)
    }

    async fn get_snapshot_builder(&mut self) -> StateStore<C, M> {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Fallible<C, Box<Snapshot>> {
        Ok(Box::new(self.state.receive_snapshot()))
    }

    async fn install_snapshot(&mut self, meta: &Meta<C>, snapshot: Box<Snapshot>) -> Fallible<C, ()> {
        let applied = meta.last_log_id.as_ref().map(encode_id::<C>).transpose();
        let applied = applied.during::<C>(|error| StorageIOError::read_snapshot(None, error))?;
        let installed = self.state.install_snapshot(*snapshot, applied.as_ref()).await;
        installed.during::<C>(|error| StorageIOError::read_snapshot(None, error))
    }

    async fn get_current_snapshot(&mut self) -> Fallible<C, Option<openraft::Snapshot<C>>> {
        let state = self.state.clone();
        let covering = threads::unblock(move || state.covering_snapshot()).await;
        let covering = covering.and_then(|snapshot| snapshot.map(describe::<C>).transpose());
        covering.during::<C>(|error| StorageIOError::read_snapshot(None, error))
    }
}
