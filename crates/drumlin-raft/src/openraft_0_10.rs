//! The storage traits of openraft 0.10.
//!
//! ```
//! use std::sync::Arc;
//!
//! use drumlin_raft::{Identity, KeyValue, KeyValueRequest, KeyValueResponse, Node, NodeOptions, openraft_0_10};
//!
//! openraft::declare_raft_types!(
//!     pub TypeConfig: D = KeyValueRequest, R = Option<KeyValueResponse>
//! );
//! # use ::openraft_0_10 as openraft;
//!
//! # let folder = std::env::temp_dir().join(format!("drumlin-doc-raft-openraft-{}", std::process::id()));
//! let node = Node::create(&folder, &Identity::new("shop", 3), &NodeOptions::new())?;
//! let (log_store, state_machine) = openraft_0_10::stores::<TypeConfig, _>(&node.group(1, KeyValue)?);
//! // let raft = openraft::Raft::new(3, config, network, log_store, state_machine).await?;
//! # drop((log_store, state_machine, node));
//! # std::fs::remove_dir_all(folder).unwrap();
//! # Ok::<(), drumlin_raft::Error>(())
//! ```

use std::fmt::{self, Debug};
use std::io;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use futures_util::{Stream, StreamExt, stream};
use openraft::alias::{
    CommittedLeaderIdOf, LogIdOf, NodeIdOf, NodeOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf,
};
use openraft::storage::{
    EntryResponder, IOFlushed, LogState, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine,
};
use openraft::vote::RaftVote;
use openraft::{AppData, Entry, EntryPayload, OptionalSend, RaftTypeConfig};
use openraft_0_10 as openraft;

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
/// The most entries that are decoded and given to a thread at once. Their requests are in memory until then. They are
/// fewer if they are large, because the log yields after each mebibyte.
const BATCH_ENTRIES_MAX: usize = 256;

/// The type configurations that the stores work with: those that `declare_raft_types!` makes, with the request of the
/// state machine as `D`, and an option of its response as `R`. A blank entry and a change of members have no response.
pub trait Types<M: StateMachine>: RaftTypeConfig<D = M::Request, R = Option<M::Response>> {
    /// Returns an entry as the core knows it.
    ///
    /// # Errors
    /// [`Error::Undecodable`] if its id or its members can't be encoded.
    fn into_step(entry: Self::Entry) -> Result<Step<M::Request>>;

    /// Returns an entry as openraft knows it.
    ///
    /// # Errors
    /// [`Error::Undecodable`].
    fn from_step(step: Step<M::Request>) -> Result<Self::Entry>;
}

impl<C, M> Types<M> for C
where
    M: StateMachine<Request: AppData>,
    C: RaftTypeConfig<
            D = M::Request,
            R = Option<M::Response>,
            Payload = EntryPayload<M::Request, NodeIdOf<C>, NodeOf<C>>,
            Entry = Entry<CommittedLeaderIdOf<C>, EntryPayload<M::Request, NodeIdOf<C>, NodeOf<C>>>,
        >,
{
    fn into_step(entry: Self::Entry) -> Result<Step<M::Request>> {
        let Entry { log_id, payload } = entry;
        let id = encode_id::<C>(&log_id)?;
        let content = match payload {
            EntryPayload::Blank => Content::Blank,
            EntryPayload::Normal(request) => Content::Request(request),
            EntryPayload::Membership(membership) => {
                Content::Membership(codec::encode(&StoredMembershipOf::<C>::new(Some(log_id), membership))?)
            }
        };
        Ok(Step { id, content })
    }

    fn from_step(step: Step<M::Request>) -> Result<Self::Entry> {
        let payload = match step.content {
            Content::Blank => EntryPayload::Blank,
            Content::Request(request) => EntryPayload::Normal(request),
            Content::Membership(bytes) => {
                EntryPayload::Membership(decode_membership::<C>(&bytes)?.membership().clone())
            }
        };
        Ok(Entry { log_id: decode_id::<C>(&step.id)?, payload })
    }
}

/// Returns the two stores of a group, for `Raft::new`.
#[must_use]
pub fn stores<C: Types<M>, M: StateMachine>(group: &Group<M>) -> (LogStore<C, M>, StateStore<C, M>) {
    (LogStore::new(group.log().clone()), StateStore { state: group.state().clone(), types: PhantomData })
}

fn encode_id<C: RaftTypeConfig>(id: &LogIdOf<C>) -> Result<EntryId> {
    Ok(EntryId { index: id.index, bytes: codec::encode(id)? })
}

fn decode_id<C: RaftTypeConfig>(id: &EntryId) -> Result<LogIdOf<C>> {
    codec::decode("the id of an entry", &id.bytes)
}

fn decode_membership<C: RaftTypeConfig>(bytes: &[u8]) -> Result<StoredMembershipOf<C>> {
    codec::decode("the members of the cluster", bytes)
}

fn decode_entry<C: Types<M>, M: StateMachine>(index: u64, bytes: &[u8]) -> Result<C::Entry> {
    let (id, content) = codec::decode_entry(index, bytes)?;
    C::from_step(Step { id, content })
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
    async fn read(&self, indexes: impl RangeBounds<u64>, bytes_max: usize) -> Result<Vec<C::Entry>> {
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
}

// `leader_bounded_stream` reads the vote, the entries, and the vote again. A vote never goes back, so if both are
// equal, it was this one at the moment of reading the entries.
impl<C: Types<M>, M: StateMachine> RaftLogReader<C> for LogStore<C, M> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<C::Entry>> {
        Ok(self.read(range, usize::MAX).await?)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<C::Entry>> {
        Ok(self.read(start..end, LIMITED_BYTES_MAX).await?)
    }

    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<C::Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (range, error) = match self.log.range(range) {
            Ok(range) => (range, None),
            Err(error) => (None, Some(Err(error.into()))),
        };
        let entries = stream::unfold(range, |range| async {
            let mut range = range?;
            let entry = range.next_async().await?;
            let decoded = entry.map_err(Error::from).and_then(|entry| decode_entry::<C, M>(entry.index(), &entry));
            // The range ends after an error of its own. What can't be decoded ends it too.
            let range = decoded.is_ok().then_some(range);
            Some((decoded.map_err(io::Error::from), range))
        });
        stream::iter(error).chain(entries)
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<C>>> {
        let stored = self.log.vote().map(|vote| codec::decode::<VoteOf<C>>("the vote", &vote)).transpose()?;
        // A leader of an earlier opening has to be elected again: see `RaftLog::has_saved_vote`.
        let is_whole = self.log.has_saved_vote();
        Ok(stored
            .map(|vote| if is_whole { vote } else { VoteOf::<C>::from_leader_id(vote.leader_id().clone(), false) }))
    }
}

impl<C: Types<M>, M: StateMachine> RaftLogStorage<C> for LogStore<C, M> {
    type LogReader = LogStore<C, M>;

    async fn get_log_state(&mut self) -> io::Result<LogState<C>> {
        let decode = |id: EntryId| decode_id::<C>(&id);
        let last_purged_log_id = self.log.purged()?.map(decode).transpose()?;
        let last_log_id = self.log.last().await?.map(decode).transpose()?;
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn get_log_reader(&mut self) -> LogStore<C, M> {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<C>) -> io::Result<()> {
        Ok(self.log.save_vote(&codec::encode(vote)?).await?)
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<C>>) -> io::Result<()> {
        let encoded = committed.map(|id| codec::encode(&id)).transpose()?;
        self.log.save_committed(encoded.as_deref());
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<C>>> {
        Ok(self.log.committed().map(|id| codec::decode("the committed id", &id)).transpose()?)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<C>) -> io::Result<()>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let (mut first, mut encoded) = (None, Vec::new());
        for entry in entries {
            let step = C::into_step(entry)?;
            first.get_or_insert(step.id.index);
            encoded.push(codec::encode_entry(&step.id, &step.content)?);
        }
        let answer = |durable: drumlin::Result<()>| callback.io_completed(durable.map_err(io::Error::from));
        Ok(self.log.append(first.unwrap_or(0), &encoded, answer).await?)
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogIdOf<C>>) -> io::Result<()> {
        Ok(self.log.truncate_after(last_log_id.map(|id| id.index)).await?)
    }

    async fn purge(&mut self, log_id: LogIdOf<C>) -> io::Result<()> {
        Ok(self.log.purge(&encode_id::<C>(&log_id)?).await?)
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

fn decode_applied<C: RaftTypeConfig>(state: &AppliedState) -> Result<(Option<LogIdOf<C>>, StoredMembershipOf<C>)> {
    let applied = state.applied.as_ref().map(decode_id::<C>).transpose()?;
    let membership = state.membership.as_deref().map(decode_membership::<C>).transpose()?;
    Ok((applied, membership.unwrap_or_default()))
}

fn describe<C: RaftTypeConfig>(snapshot: Snapshot) -> Result<SnapshotOf<C, Snapshot>> {
    let state = snapshot.applied().ok_or(Error::NoSuchSnapshot)?;
    let (last_log_id, last_membership) = decode_applied::<C>(state)?;
    Ok(SnapshotOf::<C, Snapshot> { meta: SnapshotMetaOf::<C> { last_log_id, last_membership }, snapshot })
}

impl<C: Types<M>, M: StateMachine> RaftSnapshotBuilder<C> for StateStore<C, M> {
    type SnapshotData = Snapshot;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<C, Snapshot>> {
        let state = self.state.clone();
        Ok(describe::<C>(threads::unblock(move || state.build_snapshot()).await?)?)
    }
}

impl<C: Types<M>, M: StateMachine> RaftStateMachine<C> for StateStore<C, M> {
    type SnapshotData = Snapshot;
    type SnapshotBuilder = StateStore<C, M>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<C>>, StoredMembershipOf<C>)> {
        let state = self.state.clone();
        Ok(decode_applied::<C>(&threads::unblock(move || state.applied()).await?)?)
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<C>>> + Unpin + OptionalSend,
    {
        let mut batches = entries.ready_chunks(BATCH_ENTRIES_MAX);
        while let Some(batch) = batches.next().await {
            let (mut steps, mut responders, mut failure) = (Vec::new(), Vec::new(), None);
            for item in batch {
                match item.and_then(|(entry, responder)| Ok((C::into_step(entry)?, responder))) {
                    Ok((step, responder)) => {
                        steps.push(step);
                        responders.push(responder);
                    }
                    // The entries before it are applied.
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            let state = self.state.clone();
            let answers = threads::unblock(move || state.apply(&steps)).await?;
            for (responder, answer) in responders.into_iter().zip(answers) {
                if let Some(responder) = responder {
                    responder.send(answer);
                }
            }
            if let Some(error) = failure {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<StateStore<C, M>> {
        (force || self.state.may_build_snapshot()).then(|| self.clone())
    }

    async fn get_snapshot_builder(&mut self) -> StateStore<C, M> {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<C>, snapshot: Snapshot) -> io::Result<()> {
        let applied = meta.last_log_id.as_ref().map(encode_id::<C>).transpose()?;
        Ok(self.state.install_snapshot(snapshot, applied.as_ref()).await?)
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<C, Snapshot>>> {
        let state = self.state.clone();
        let covering = threads::unblock(move || state.covering_snapshot()).await?;
        Ok(covering.map(describe::<C>).transpose()?)
    }
}
