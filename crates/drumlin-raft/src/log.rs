//! The Raft log of a group: entries, vote, and how far it is committed and purged.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use drumlin::logs::{Log, Logs, Receipt};
use drumlin_io::sync::Mutex;

use crate::codec::{self, EntryId};
use crate::error::Result;
use crate::progress::Progress;

const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";

/// The Raft log of a group. Entries and values are bytes; the adapters encode them. Cloning the handle is cheap.
///
/// All groups of a node share one stream of writes and syncs. Changes become durable in the order in which they are
/// made: a truncation before what is appended after it, and a vote after the entries before it.
///
/// # Invariants
/// 1. Nothing is removed above what the state machine has durably applied.
/// 2. A vote is durable when [`save_vote`](RaftLog::save_vote) returns.
/// 3. An entry can be read as soon as it is appended, and is durable when its receipt is answered.
#[derive(Clone)]
pub struct RaftLog {
    shared: Arc<Shared>,
}

struct Shared {
    logs: Logs,
    log: Log,
    progress: Arc<Progress>,
    /// The committed id that is not in the log: it goes with the next append, and takes no sync of its own.
    committed: Mutex<Option<Vec<u8>>>,
    /// Set once a vote was saved since the group was opened.
    has_saved_vote: AtomicBool,
}

impl fmt::Debug for RaftLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RaftLog({:?})", self.shared.log)
    }
}

impl Shared {
    fn save_last_committed(&self) -> Result<()> {
        if let Some(committed) = self.committed.lock().take() {
            drop(self.log.set(COMMITTED, committed)?);
        }
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // If the log has failed, the value in it stays an old one.
        if let Err(error) = self.save_last_committed() {
            log::debug!("the committed id of {:?} is not saved: {error}", self.log);
        }
    }
}

impl RaftLog {
    pub(crate) fn new(logs: &Logs, group: u64, progress: Arc<Progress>) -> RaftLog {
        let (logs, log) = (logs.clone(), logs.log(group));
        let (committed, has_saved_vote) = (Mutex::new(None), AtomicBool::new(false));
        RaftLog { shared: Arc::new(Shared { logs, log, progress, committed, has_saved_vote }) }
    }

    /// Appends entries from an index on, which must follow on from the last one, and calls `answer` once they are
    /// durable, or can't be. They can be read when this returns. The thread that writes the log calls `answer`, so it
    /// must not wait. Entries that were purged are left out: the state machine has durably applied them.
    ///
    /// # Errors
    /// Those of [`Log::append`]; `answer` is then not called.
    pub async fn append<E: AsRef<[u8]>>(
        &self,
        first: u64,
        entries: &[E],
        answer: impl FnOnce(drumlin::Result<()>) + Send + 'static,
    ) -> Result<()> {
        let purged = self.shared.log.purged().map_or(0, |purged| purged + 1).saturating_sub(first);
        let purged = usize::try_from(purged).unwrap_or(usize::MAX).min(entries.len());
        let (first, entries) = (first + purged as u64, &entries[purged..]);
        if entries.is_empty() {
            answer(Ok(()));
            return Ok(());
        }
        let saved = self.save_pending().await?;
        let appended = self.shared.log.append_async(first, entries).await?;
        appended.then(move |durable| {
            // Dropping a receipt that is not answered would ask for a sync.
            drop(saved);
            answer(durable);
        });
        Ok(())
    }

    /// Appends the committed id to the log, if it has changed.
    async fn save_pending(&self) -> Result<Option<Receipt>> {
        let committed = self.shared.committed.lock().take();
        Ok(match committed {
            Some(committed) => Some(self.shared.log.set_async(COMMITTED, committed).await?),
            None => None,
        })
    }

    /// Saves the vote. It is durable when this returns.
    ///
    /// # Errors
    /// Those of [`Log::set`], and [`drumlin::Error::OutcomeUnknown`] if the log failed first.
    pub async fn save_vote(&self, vote: &[u8]) -> Result<()> {
        self.shared.log.set_async(VOTE, vote).await?.await?;
        self.shared.has_saved_vote.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Returns `true` if a vote was saved since the group was opened.
    ///
    /// An older vote may say that this node leads. It must not lead because of it: its committed id may be old, so
    /// it would serve old reads as linearizable until it commits another entry.
    #[must_use]
    pub fn has_saved_vote(&self) -> bool {
        self.shared.has_saved_vote.load(Ordering::SeqCst)
    }

    /// Returns the vote.
    #[must_use]
    pub fn vote(&self) -> Option<Vec<u8>> {
        self.shared.log.value(VOTE)
    }

    /// Saves the id up to which the log is committed. It becomes durable with the next append, so it may be old after a
    /// crash. That is allowed: the leader sends it again.
    pub fn save_committed(&self, committed: Option<&[u8]>) {
        *self.shared.committed.lock() = Some(committed.unwrap_or_default().to_vec());
    }

    /// Appends the committed id to the log before the group is closed.
    pub(crate) fn save_last_committed(&self) -> Result<()> {
        self.shared.save_last_committed()
    }

    /// Returns the committed id that was saved last.
    #[must_use]
    pub fn committed(&self) -> Option<Vec<u8>> {
        let pending = self.shared.committed.lock().clone();
        pending.or_else(|| self.shared.log.value(COMMITTED)).filter(|committed| !committed.is_empty())
    }

    /// Cuts off the entries after an index, or all of them. The cut is durable before what is appended after it.
    ///
    /// # Errors
    /// Those of [`Log::truncate_after`].
    pub async fn truncate_after(&self, last: Option<u64>) -> Result<()> {
        if self.shared.log.exists() {
            drop(self.shared.log.truncate_after_async(last).await?);
        }
        Ok(())
    }

    /// Forgets the entries up to `last`. First makes durable what the state machine has applied.
    ///
    /// If the state machine has not applied all of them, they are hidden and still stored, and a later
    /// purge removes them. openraft purges only what is in a snapshot, so this does not happen to it.
    ///
    /// # Errors
    /// Those of [`Log::purge_to`] and [`drumlin::Database::sync`].
    pub async fn purge(&self, last: &EntryId) -> Result<()> {
        let durable = self.shared.progress.secure(last.index).await?;
        let purged = self.purged()?.filter(|purged| purged.index >= last.index);
        let told = purged.as_ref().map_or(last.index, |purged| purged.index);
        let (mut batch, number) = (self.shared.logs.batch(), self.shared.log.number());
        if purged.is_none() {
            batch.set(number, PURGED, last.encode());
        }
        if let Some(removed) = durable.min(Some(told)) {
            batch.purge_to(number, removed);
        }
        drop(batch.commit_async().await?);
        Ok(())
    }

    /// Returns the id up to which entries were purged.
    ///
    /// # Errors
    /// [`Error::Undecodable`](crate::Error::Undecodable).
    pub fn purged(&self) -> Result<Option<EntryId>> {
        read_purged(&self.shared.log)
    }

    /// Returns the id of the last entry, or of the last purged one if there is none.
    ///
    /// # Errors
    /// Those of [`Log::get`], and [`Error::Undecodable`](crate::Error::Undecodable).
    pub async fn last(&self) -> Result<Option<EntryId>> {
        let purged = self.purged()?;
        match self.shared.log.last() {
            Some(last) if purged.as_ref().is_none_or(|purged| purged.index < last) => {
                let entry = self.shared.log.get_async(last).await?;
                codec::decode_entry_id(last, &entry).map(Some)
            }
            _ => Ok(purged),
        }
    }

    /// Returns an iterator over the entries in a range, as far as there are entries. It reads ahead in bounded memory.
    ///
    /// # Errors
    /// Those of [`Log::range`], except that purged entries are left out.
    pub fn range(&self, indexes: impl RangeBounds<u64>) -> Result<Option<drumlin::logs::Range>> {
        let start = match indexes.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        loop {
            let from_purged = self.purged()?.map_or(0, |purged| purged.index + 1);
            let from_first = self.shared.log.first().unwrap_or(0);
            let start = start.max(from_purged).max(from_first);
            match self.shared.log.range((Bound::Included(start), indexes.end_bound().cloned())) {
                Ok(range) => return Ok(Some(range)),
                Err(drumlin::Error::NoSuchLog { .. }) => return Ok(None),
                // The first of these entries have been purged in the meantime. Begin after them.
                Err(drumlin::Error::LogPurged { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns the id up to which the entries of a group were purged.
pub(crate) fn read_purged(log: &Log) -> Result<Option<EntryId>> {
    log.value(PURGED).map(|bytes| EntryId::decode("the id of the last purged entry", &bytes)).transpose()
}
