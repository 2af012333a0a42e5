//! The log store of a node. It records everything that the log reports as durable, and checks it at the next opening.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drumlin_raft::openraft_0_10::LogStore;
use openraft::alias::{EntryOf, LogIdOf, VoteOf};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::async_runtime::Oneshot;
use openraft::{AsyncRuntime, EntryPayload, OptionalSend, RaftTypeConfig};

use super::TypeConfig;
use super::oracle::{Oracle, Watched};

type Log = LogStore<TypeConfig, Watched>;
type Entry = EntryOf<TypeConfig>;
type EntryIdentity = LogIdOf<TypeConfig>;
type Vote = VoteOf<TypeConfig>;

/// The votes and entries that a node's log has reported as durable in all its openings. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    vote: Option<Vote>,
    /// The entries that are in the log, durable or not.
    written: BTreeMap<u64, EntryIdentity>,
    /// The entries reported as durable. A truncation or purge removes entries here before it removes them from the log.
    durable: BTreeMap<u64, EntryIdentity>,
}

impl Told {
    /// No task yields to the scheduler while it holds this lock.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wrote(&self, ids: &[EntryIdentity]) {
        self.lock().written.extend(ids.iter().map(|id| (id.index, *id)));
    }

    fn is_durable(&self, ids: &[EntryIdentity]) {
        let inner = &mut *self.lock();
        // Unless they have been truncated in the meantime.
        let still = ids.iter().filter(|id| inner.written.get(&id.index) == Some(id));
        inner.durable.extend(still.map(|id| (id.index, *id)));
    }

    fn keeps(&self, is_kept: impl Fn(u64) -> bool) {
        let inner = &mut *self.lock();
        inner.written.retain(|index, _| is_kept(*index));
        inner.durable.retain(|index, _| is_kept(*index));
    }

    /// Compares a log that was just opened with this record, and with what the cluster has committed. `applied` is
    /// the index up to which the node has applied its entries. Returns what is lost.
    pub(crate) async fn find_lost(
        &self,
        log: &mut Log,
        (node, applied): (u64, u64),
        oracle: &Oracle,
    ) -> Result<Option<String>, io::Error> {
        let vote = log.read_vote().await?;
        let state = log.get_log_state().await?;
        let entries = log.try_get_log_entries(..).await?;
        let found: BTreeMap<u64, EntryIdentity> = entries.iter().map(|entry| (entry.index(), entry.log_id())).collect();
        for entry in &entries {
            // Later entries may still be truncated.
            if entry.index() <= applied
                && let EntryPayload::Normal(request) = &entry.payload
            {
                oracle.compare_entry(node, entry.index(), request);
            }
        }
        let inner = &mut *self.lock();
        let purged = state.last_purged_log_id.map(|id| id.index);
        inner.written.clone_from(&found);
        // It need not say that the node was elected.
        if vote.map(|vote| vote.leader_id) < inner.vote.map(|vote| vote.leader_id) {
            return Ok(Some(format!("the vote {:?}; found was {vote:?}", inner.vote)));
        }
        let lost = inner.durable.iter().find(|(index, id)| Some(**index) > purged && found.get(index) != Some(id));
        Ok(lost.map(|(index, id)| format!("entry {id}; found was {:?}", found.get(index).map(ToString::to_string))))
    }
}

/// A log store that records what it reports as durable.
#[derive(Clone)]
pub(crate) struct ToldLog {
    pub(crate) log: Log,
    pub(crate) told: Told,
}

impl RaftLogReader<TypeConfig> for ToldLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        self.log.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.log.limited_get_log_entries(start, end).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.log.read_vote().await
    }
}

type Runtime = <TypeConfig as RaftTypeConfig>::AsyncRuntime;

impl RaftLogStorage<TypeConfig> for ToldLog {
    type LogReader = ToldLog;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        self.log.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> ToldLog {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        {
            let told = self.told.lock();
            assert!(told.vote.as_ref().is_none_or(|told| vote >= told), "a vote goes back to {vote}");
        }
        self.log.save_vote(vote).await?;
        self.told.lock().vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<EntryIdentity>) -> io::Result<()> {
        self.log.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<EntryIdentity>> {
        self.log.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let ids: Vec<EntryIdentity> = entries.iter().map(RaftEntry::log_id).collect();
        self.told.wrote(&ids);
        let (answer, answered) = <Runtime as AsyncRuntime>::Oneshot::channel();
        self.log.append(entries, IOFlushed::signal(answer)).await?;
        let told = self.told.clone();
        drop(Runtime::spawn(async move {
            let durable = answered.await.expect("each append is answered");
            if durable.is_ok() {
                told.is_durable(&ids);
            }
            callback.io_completed(durable);
        }));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<EntryIdentity>) -> io::Result<()> {
        self.told.keeps(|index| last.is_some_and(|last| index <= last.index));
        self.log.truncate_after(last).await
    }

    async fn purge(&mut self, last: EntryIdentity) -> io::Result<()> {
        self.told.keeps(|index| index > last.index);
        self.log.purge(last).await
    }
}
