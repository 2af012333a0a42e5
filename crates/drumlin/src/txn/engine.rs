//! Commits and reads: where write set, tree, versions and log meet.
//!
//! # The life of a commit
//! 1. *Prepare*, as often as needed, waiting for what is lacking: the record is encoded, log space reserved, segments for the
//!    pages that will become dirty secured, leaves brought in and held, room made in them.
//! 2. *Apply*, inside the guard, in one go: the leaves are latched in the order of their keys, those that a serializable
//!    transaction has read being validated on the way; if one is not as prepared, everything is let go and prepared again.
//!    Then the timestamp is taken with the record's place in the log, and from here
//!    on nothing waits, fails or can be cancelled: rows are changed, what they were goes to the versions, the commit is
//!    marked applied.
//! 3. *Settle*: wait until the record is durable (not if Relaxed), and until readers see the commit.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::sync::Mutex;

use super::clock::Clock;
use super::locks::LockTable;
use super::read_set::{Reads, Walk};
use super::snapshots::Snapshots;
use super::values;
use super::versions::{Delta, Versions, Was};
use super::write_set::Change;
use crate::error::{Error, Result};
use crate::format::node::LargeRef;
use crate::format::record::{self, Operation};
use crate::format::{KeyspaceId, PageId, Place, Timestamp};
use crate::io::Backend;
use crate::pool::{FrameHeader, FrameRead, FrameWrite, Needs, Pool, Stop};
use crate::seglog::{Body, Log, Reservation};
use crate::space::{FrameIndex, Guard, PageSpace, RESERVE_SEGMENTS, Space, Word};
use crate::task::{Face, Tasks, ready};
use crate::tree::node::{Leaf, LeafMut, RowValue};
use crate::tree::{Incoming, Provider, Target, Tree};

/// When a commit returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// When it is on the medium.
    #[default]
    Full,
    /// When it is applied. A power cut may take the newest commits; those that remain are whole and without gaps. The
    /// record is written soon afterwards.
    Relaxed,
}

/// At which moment a read looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum View {
    /// What is visible when the leaf is read.
    Visible,
    /// The state after this commit.
    At(Timestamp),
}

/// What a read found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    Inline(Arc<[u8]>),
    Large(LargeRef),
}

/// A row that a commit changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) key: &'a [u8],
    pub(crate) change: Change<'a>,
}

/// See the module.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) space: Arc<Space>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) versions: Arc<Versions>,
    pub(crate) locks: LockTable,
    /// There once recovery has ended.
    pub(crate) log: OnceLock<Arc<Log>>,
    pub(crate) next_value: AtomicU64,
    /// Bytes of pages that commits under way may make dirty.
    promised_bytes: AtomicU64,
    pub(crate) next_transaction: AtomicU64,
    pub(crate) commits: AtomicU64,
    /// Bytes of record bodies appended, and how many of them when the newest checkpoint began.
    pub(crate) log_bytes_written: AtomicU64,
    pub(crate) log_bytes_checkpointed: AtomicU64,
    sweeping: Mutex<()>,
    /// The most bytes of versions before the oldest snapshot is ended.
    pub(crate) version_bytes_max: u64,
    /// The most bytes that one transaction may write.
    pub(crate) write_set_bytes_max: u64,
    pub(crate) make_space: MakeSpace,
    /// What serves operations that wait as tasks.
    pub(crate) tasks: Tasks,
}

/// Has what can be freed freed, by a checkpoint and the cleaner, and waits for it.
pub(crate) type MakeSpace = Arc<dyn Fn() -> Result<()> + Send + Sync>;

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({:?})", self.clock)
    }
}

/// Why an attempt to apply ended.
enum Unready {
    Needs(Needs),
    /// These rows do not fit into their leaves.
    Room(Range<usize>),
    Error(Error),
}

impl From<Stop> for Unready {
    fn from(stop: Stop) -> Unready {
        match stop {
            Stop::Needs(needs) => Unready::Needs(needs),
            Stop::Error(error) => Unready::Error(error),
        }
    }
}

/// Leaves held against eviction while a commit is being prepared, and which row comes first in each.
struct Held<'p> {
    pool: &'p Pool,
    /// Row, page, frame, in the order of rows.
    leaves: Vec<(usize, PageId, FrameIndex)>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for &(_, _, frame) in &self.leaves {
            self.pool.frames.let_go(frame);
        }
    }
}

/// Medium values appended before their commit; given back if it fails.
struct Appended<'e> {
    engine: &'e Engine,
    places: Vec<Option<(u64, Place)>>,
    committed: bool,
}

impl Drop for Appended<'_> {
    fn drop(&mut self) {
        if !self.committed {
            // Not free at once: their images may still be on the way to the disk, and must not arrive over what is put there
            // next. The checkpoint that ends the epoch has waited for them.
            let guard = self.engine.space.enter();
            for (_, place) in self.places.iter().flatten() {
                self.engine.space.segments.release(*place, guard.epoch());
            }
        }
    }
}

/// Bytes of pages that a commit under way may make dirty.
struct Promised<'e> {
    sum: &'e AtomicU64,
    bytes: u64,
}

impl<'e> Promised<'e> {
    /// `None` if the sum is no longer `before`: then there may be less space than was looked for.
    fn new(sum: &'e AtomicU64, before: u64, bytes: u64) -> Option<Promised<'e>> {
        let exchanged = sum.compare_exchange(before, before + bytes, Ordering::Relaxed, Ordering::Relaxed);
        exchanged.ok().map(|_| Promised { sum, bytes })
    }
}

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Leaves that a commit holds at once.
const AHEAD_PAGES: usize = 64;

/// Keys whose leaves are brought in together: few enough that the first is still there when the last arrives.
const GET_MANY_PART: usize = 256;
impl Engine {
    pub(crate) fn log(&self) -> &Log {
        self.log.get().expect("the log is there once the database is open")
    }

    // ── reading ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// The row as the view sees it. O(log n).
    pub(crate) fn find(&self, tree: &Tree, key: &[u8], view: View) -> Result<Option<Found>> {
        Tree::waiting(&self.pool, || self.try_find(tree, key, view))
    }

    /// The core of [`find`](Self::find).
    pub(crate) fn try_find(&self, tree: &Tree, key: &[u8], view: View) -> Result<Option<Found>, Stop> {
        let pin = self.pool.pin();
        let page = tree.read_leaf(&pin, Target::At(key))?;
        let leaf = Leaf::new(&page);
        let at = match view {
            View::Visible => self.clock.visible(),
            View::At(at) => at,
        };
        if leaf.newest() > at {
            let number = page.header().identity().expect("a latched leaf has an identity").page;
            if let Some(was) = self.versions.find(tree.pages.id, number, key, at) {
                return Ok(match was {
                    Was::Absent => None,
                    Was::Inline(value) => Some(Found::Inline(value.into())),
                    Was::Large(reference) => Some(Found::Large(reference)),
                });
            }
        }
        Ok(leaf.search(key).ok().map(|index| match leaf.value(index) {
            RowValue::Inline(value) => Found::Inline(value.into()),
            RowValue::Large(reference) => Found::Large(reference),
        }))
    }

    /// The value of the row. A value that is replaced while it is read is looked up again.
    #[inline]
    pub(crate) fn get(&self, tree: &Tree, key: &[u8], view: View) -> Result<Option<Arc<[u8]>>> {
        match self.find(tree, key, view)? {
            None => Ok(None),
            Some(Found::Inline(value)) => Ok(Some(value)),
            Some(Found::Large(_)) => ready(self.get_as(Face::Blocking, tree, key, view)),
        }
    }

    /// As [`find`](Self::find), by the ways of a face.
    pub(crate) async fn find_as(&self, face: Face<'_>, tree: &Tree, key: &[u8], view: View) -> Result<Option<Found>> {
        Tree::awaiting(face, &self.pool, || self.try_find(tree, key, view)).await
    }

    /// As [`get`](Self::get), by the ways of a face.
    pub(crate) async fn get_as(
        &self,
        face: Face<'_>,
        tree: &Tree,
        key: &[u8],
        view: View,
    ) -> Result<Option<Arc<[u8]>>> {
        let mut failed = None;
        loop {
            let found = self.find_as(face, tree, key, view).await?;
            if failed.is_some() && !matches!(&found, Some(Found::Large(reference)) if failed == Some(*reference)) {
                crate::witness::mark!("a value was replaced while it was read");
            }
            let reference = match found {
                None => return Ok(None),
                Some(Found::Inline(value)) => return Ok(Some(value)),
                Some(Found::Large(reference)) => reference,
            };
            match values::read_whole(face, &self.pool, &tree.pages, &reference).await {
                Ok(Some(value)) => return Ok(Some(value.into())),
                // It was replaced and freed while it was being read, and its pages may be another's: what was found there
                // counts only if the row still names it.
                _ if failed != Some(reference) => failed = Some(reference),
                Ok(None) => {
                    tree.check_dropped()?;
                    let what = format!("a value of keyspace {}", tree.pages.id);
                    return Err(Error::damaged(self.space.path(), what, "its extents are another value's"));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The values of the rows, many reads at a time.
    pub(crate) async fn get_many<K: AsRef<[u8]>>(
        &self,
        face: Face<'_>,
        tree: &Tree,
        keys: &[K],
        view: View,
    ) -> Result<Vec<Option<Arc<[u8]>>>> {
        let mut values = vec![None; keys.len()];
        for (keys, values) in keys.chunks(GET_MANY_PART).zip(values.chunks_mut(GET_MANY_PART)) {
            let mut open: Vec<usize> = (0..keys.len()).collect();
            let mut alone = Vec::new();
            // Each round goes one level deeper for the keys whose page was missing.
            while !open.is_empty() {
                let mut missing = Vec::with_capacity(open.len());
                let mut is_missing = |&index: &usize| {
                    match self.try_find(tree, keys[index].as_ref(), view) {
                        Ok(Some(Found::Inline(value))) => values[index] = Some(value),
                        Ok(None) => {}
                        Err(Stop::Needs(Needs::Page(_, page))) => {
                            missing.push(page);
                            return true;
                        }
                        Ok(Some(Found::Large(_))) | Err(_) => alone.push(index),
                    }
                    false
                };
                {
                    // One pin for all: those within cost nothing.
                    let _pin = self.pool.pin();
                    open.retain(&mut is_missing);
                }
                missing.sort_unstable();
                missing.dedup();
                if !missing.is_empty() && self.fault_many(face, &tree.pages, &missing).await? == 0 {
                    // Others read them, or they can't be read.
                    alone.append(&mut open);
                }
            }
            for index in alone {
                values[index] = self.get_as(face, tree, keys[index].as_ref(), view).await?;
            }
        }
        Ok(values)
    }

    async fn fault_many(&self, face: Face<'_>, pages: &Arc<PageSpace>, missing: &[PageId]) -> Result<usize> {
        match face {
            Face::Blocking => self.pool.fault_many(pages, missing),
            Face::Tasks(_) => self.pool.fault_many_as_task(pages, missing).await,
        }
    }

    /// Whether the row has changed since the snapshot: what the first updater's rule asks.
    pub(crate) async fn changed_since(
        &self,
        face: Face<'_>,
        tree: &Tree,
        key: &[u8],
        snapshot: Timestamp,
    ) -> Result<bool> {
        Tree::awaiting(face, &self.pool, || {
            let pin = self.pool.pin();
            let page = tree.read_leaf(&pin, Target::At(key))?;
            if Leaf::new(&page).newest() <= snapshot {
                return Ok(false);
            }
            let number = page.header().identity().expect("a latched leaf has an identity").page;
            Ok(self.versions.newest_change(tree.pages.id, number, key).is_some_and(|newest| newest > snapshot))
        })
        .await
    }

    // ── committing ─────────────────────────────────────────────────────────────────────────────────────────────────

    /// Commits rows in ascending order of (keyspace, key), each key once, if what was read has not changed since. The rows'
    /// locks are held; `applied` is called when they need not be any more. A future that is dropped before that leaves
    /// nothing of the commit, one that is dropped afterwards all of it.
    pub(crate) async fn commit(
        &self,
        face: Face<'_>,
        rows: &[Row<'_>],
        reads: Option<Reads<'_>>,
        durability: Durability,
        applied: impl FnOnce(),
    ) -> Result<Timestamp> {
        assert!(!rows.is_empty());
        self.check_failure()?;
        let row_bytes = |row: &Row<'_>| match row.change {
            Change::Put(value) => 24 + row.key.len() + value.len(),
            _ => 64 + row.key.len(),
        };
        let mut body = Vec::with_capacity(rows.iter().map(row_bytes).sum());
        let mut after_data = false;
        for row in rows {
            let operation = match row.change {
                Change::Put(value) => Operation::Put { key: row.key, value },
                Change::PutLarge(value) => {
                    after_data = true;
                    let (length, identity, places) = (value.length, value.identity, value.places.clone());
                    Operation::PutLarge { key: row.key, length, identity, places }
                }
                Change::Remove => Operation::Remove { key: row.key },
            };
            record::encode(row.tree.pages.id, &operation, &mut body);
        }
        let body = Body::new(body);
        let log = self.log();
        if body.bytes().len() > log.record_bytes_max() {
            return Err(Error::writes_too_large(log.record_bytes_max() as u64));
        }
        let _promised = self.secure_space(face, rows).await?;
        let appended = self.append_medium_values(face, rows).await?;
        let stream = crate::pool::reclaim::thread_index() % log.stream_count();
        let mut reservation = Some(self.reserve_log(face, stream, body.bytes().len()).await?);
        let take_timestamp = |guard: &Guard<'_>| {
            let _inside: &Guard<'_> = guard;
            let reservation: Reservation<'_> = reservation.take().expect("a commit takes its timestamp once");
            let appended = reservation.append(&body, after_data);
            (appended.timestamp, appended)
        };
        let place = self.prepare_and_apply(face, rows, reads, appended, take_timestamp).await?;
        let timestamp = place.timestamp;
        // Whoever gets a row's lock next, and finds nothing published since its snapshot, relies on the row being as it was.
        self.clock.wait_published(timestamp);
        applied();
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.log_bytes_written.fetch_add(body.bytes().len() as u64, Ordering::Relaxed);
        match durability {
            Durability::Full => {
                match face {
                    Face::Blocking => log.wait_durable(&place)?,
                    Face::Tasks(_) => {
                        // Written also if nobody waits for it any more.
                        log.nudge(&place);
                        poll_fn(|context| log.poll_durable(&place, context.waker())).await?;
                    }
                }
            }
            Durability::Relaxed => {
                log.nudge_relaxed(&place);
                self.clock.show_relaxed(timestamp);
            }
        }
        self.clock.show_durable(log.durable());
        self.tidy(rows);
        Ok(timestamp)
    }

    /// Applies the rows of a commit that is in the log already: recovery. Nobody else is there yet.
    pub(crate) fn replay(&self, rows: &[Row<'_>], timestamp: Timestamp) -> Result<()> {
        ready(async {
            let _promised = self.secure_space(Face::Blocking, rows).await?;
            let appended = self.append_medium_values(Face::Blocking, rows).await?;
            self.prepare_and_apply(Face::Blocking, rows, None, appended, |_| (timestamp, ())).await
        })?;
        for row in rows.iter().filter(|row| matches!(row.change, Change::Remove)) {
            row.tree.try_merge(row.key);
        }
        Ok(())
    }

    pub(crate) fn check_failure(&self) -> Result<()> {
        self.space.check_failure()?;
        match self.log.get().and_then(|log| log.failure()) {
            Some(reason) => Err(Error::Failed { reason }),
            None => Ok(()),
        }
    }

    async fn append_medium_values(&self, face: Face<'_>, rows: &[Row<'_>]) -> Result<Appended<'_>> {
        let mut appended = Appended { engine: self, places: Vec::new(), committed: false };
        for (index, row) in rows.iter().enumerate() {
            if let Change::Put(value) = row.change
                && value.len() > row.tree.inline_bytes_max()
            {
                appended.places.resize(index, None);
                let identity = self.next_value.fetch_add(1, Ordering::Relaxed);
                let place = values::append_medium(&self.pool, &row.tree.pages, identity, value)?;
                appended.places.push(Some((identity, place)));
                if self.space.waiting_jobs() > 4 {
                    let pool = Arc::clone(&self.pool);
                    face.run(move || pool.run_jobs()).await?;
                }
            }
        }
        Ok(appended)
    }

    /// Bytes that a checkpoint may need now, and `more_bytes` more: all dirty pages, those that commits under way will make
    /// dirty, their entries, what tables change.
    pub(crate) fn checkpoint_bytes(&self, more_bytes: u64) -> u64 {
        let dirty = self.pool.frames.dirty_bytes() + self.promised_bytes.load(Ordering::Relaxed) + more_bytes;
        // Entries are 24 bytes, of pages of at least 512; the base image may be folded and written anew.
        let entries = self.space.entry_count() as u64 * 24 + dirty / 20;
        dirty + entries + self.space.table_bytes()
    }

    /// The same in segments, as they are set aside.
    fn checkpoint_segments(&self, more_bytes: u64) -> u32 {
        // Segments waste what is left at their ends: up to one page of 64 KiB each, and blocks at flushes.
        let usable = self.space.segments.segment_bytes() * 3 / 4;
        let needed = (self.checkpoint_bytes(more_bytes) / usable) as u32 + 1;
        self.space.reserve.store(needed, Ordering::Relaxed);
        needed
    }

    /// The same where the disk is full, beside the segment that is being filled. What was set aside is for the worst; what
    /// frees space must not be refused for that.
    fn least_checkpoint_segments(&self, more_bytes: u64) -> u32 {
        let room_bytes = self.space.room_bytes() * 3 / 4;
        match self.checkpoint_bytes(more_bytes).saturating_sub(room_bytes) {
            0 => 0,
            bytes => (bytes / self.space.segments.segment_bytes()) as u32 + 1,
        }
    }

    /// Looks again how much the next checkpoint may need.
    pub(crate) fn update_reserve(&self) {
        self.checkpoint_segments(0);
    }

    /// Makes sure, before anything is begun that can't be taken back, that a checkpoint finds the space it needs, and
    /// `kept_segments` more; else `DiskFull`, and the database goes on.
    pub(crate) fn secure_checkpoint(&self, kept_segments: u32) -> Result<()> {
        match self.space.secure(self.checkpoint_segments(0) + kept_segments) {
            Err(Error::DiskFull { .. }) => self.space.secure(self.least_checkpoint_segments(0) + kept_segments),
            other => other,
        }
    }

    /// Makes sure that a page more can be dirty: what the cleaner moves by writing it anew.
    pub(crate) fn secure_rewrite(&self, page_bytes: usize) -> Result<()> {
        self.space.secure(self.checkpoint_segments(page_bytes as u64) + 1)
    }

    /// Makes sure that the pages which the commit will change can be written, whatever happens; else `DiskFull`. Commits
    /// that only remove may use the reserve. Holds until what is returned is dropped: then the pages are dirty, or never
    /// will be.
    async fn secure_space(&self, face: Face<'_>, rows: &[Row<'_>]) -> Result<Promised<'_>> {
        let page_bytes = rows.iter().map(|row| row.tree.pages.page_bytes as u64).max().expect("rows");
        let row_bytes = |row: &Row<'_>| match row.change {
            Change::Put(value) => (row.key.len() + value.len()) as u64 + 128,
            _ => row.key.len() as u64 + 128,
        };
        // A leaf for each row, as many as a commit can hold, and what splits and merges add.
        let leaves = (rows.len() as u64 * page_bytes).min(self.pool.frames.limit_bytes() as u64 / 4);
        let own = leaves + 2 * rows.iter().map(row_bytes).sum::<u64>() + 6 * page_bytes;
        let only_removes = rows.iter().all(|row| matches!(row.change, Change::Remove));
        // At recovery the tables are what they were when the commit was made.
        if !only_removes && self.log.get().is_some() {
            self.space.check_tables()?;
        }
        let spare = if only_removes { 0 } else { RESERVE_SEGMENTS };
        let mut made_space = false;
        loop {
            let promised_bytes = self.promised_bytes.load(Ordering::Relaxed);
            let count = self.checkpoint_segments(own) + spare;
            let segments = &self.space.segments;
            if segments.has_free(count)
                || made_space && only_removes && segments.has_free(self.least_checkpoint_segments(own))
            {
                match Promised::new(&self.promised_bytes, promised_bytes, own) {
                    Some(promised) => return Ok(promised),
                    None => continue,
                }
            }
            let space = Arc::clone(&self.space);
            match face.run(move || space.secure(count)).await {
                Ok(()) => {}
                // At recovery space is what it was when the commit was made.
                Err(Error::DiskFull { .. }) if self.log.get().is_none() => {
                    return Ok(
                        Promised::new(&self.promised_bytes, promised_bytes, own).expect("nobody else is there yet")
                    );
                }
                // What was replaced since the last checkpoint, and what lies sparse, may suffice.
                // Others' shares come free as their commits end: removing is not refused for them.
                Err(Error::DiskFull { .. }) if !made_space || only_removes && promised_bytes > 0 => {
                    made_space = true;
                    crate::witness::mark!("a commit on a full disk had space made");
                    self.have_space_made(face).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// See [`MakeSpace`].
    pub(crate) async fn have_space_made(&self, face: Face<'_>) -> Result<()> {
        let make_space = Arc::clone(&self.make_space);
        face.run(move || make_space()).await
    }

    /// Space in the log: in the stream `home`, or, where the disk has none left for it, in another, or what a checkpoint
    /// gives back.
    pub(crate) async fn reserve_log(&self, face: Face<'_>, home: usize, body_bytes: usize) -> Result<Reservation<'_>> {
        let count = self.log().stream_count();
        let mut made_space = false;
        loop {
            let mut refusal = None;
            for stream in (home..count).chain(0..home) {
                let reserved = match face {
                    Face::Blocking => self.log().reserve(stream, body_bytes),
                    Face::Tasks(_) => self.log().reserve_as_task(stream, body_bytes).await,
                };
                match reserved {
                    Err(error @ Error::DiskFull { .. }) => refusal = Some(error),
                    reserved => {
                        if refusal.is_some() && reserved.is_ok() {
                            crate::witness::mark!("a commit on a full disk went to another stream of the log");
                        }
                        return reserved;
                    }
                }
            }
            crate::witness::mark!("a full disk had no space for the log");
            if std::mem::replace(&mut made_space, true) {
                return Err(refusal.expect("a log has streams"));
            }
            self.have_space_made(face).await?;
        }
    }

    async fn prepare_and_apply<T>(
        &self,
        face: Face<'_>,
        rows: &[Row<'_>],
        reads: Option<Reads<'_>>,
        mut appended: Appended<'_>,
        mut take_timestamp: impl FnMut(&Guard<'_>) -> (Timestamp, T),
    ) -> Result<T> {
        let incoming: Vec<Incoming<'_>> = rows
            .iter()
            .map(|row| Incoming {
                key: row.key,
                value_bytes: match row.change {
                    Change::Put(value) if value.len() <= row.tree.inline_bytes_max() => Some(value.len()),
                    Change::Put(_) | Change::PutLarge(_) => Some(crate::format::node::LARGE_REF_BYTES),
                    Change::Remove => None,
                },
            })
            .collect();
        let mut held = Held { pool: &self.pool, leaves: Vec::new() };
        if rows.len() > 1 {
            self.hold_leaves(face, rows, &incoming, &mut held).await?;
        }
        let mut held_reads = self.hold_reads(face, reads, &held).await?;
        let mut provider = Provider::new(face, &self.pool);
        loop {
            match self.try_apply(rows, reads, &incoming, &held.leaves, &appended.places, &mut take_timestamp) {
                Ok(value) => {
                    appended.committed = true;
                    return Ok(value);
                }
                Err(Unready::Error(error)) => return Err(error),
                Err(Unready::Needs(needs)) => {
                    crate::witness::mark!("a commit lacked a page when it was to be applied");
                    provider.provide(&needs).await?;
                    // A leaf that was read has been split, perhaps: all of them have to be there at once.
                    drop(held_reads);
                    held_reads = self.hold_reads(face, reads, &held).await?;
                }
                Err(Unready::Room(range)) => rows[range.start].tree.make_room(face, &incoming[range]).await?,
            }
        }
    }

    /// Brings the leaves of all rows in, many at a time, keeps them there, and makes room in them.
    async fn hold_leaves(
        &self,
        face: Face<'_>,
        rows: &[Row<'_>],
        incoming: &[Incoming<'_>],
        held: &mut Held<'_>,
    ) -> Result<()> {
        let page_bytes = rows.iter().map(|row| row.tree.pages.page_bytes).max().expect("rows");
        let limit = (self.pool.frames.limit_bytes() / page_bytes / 4).max(4);
        let mut full: Vec<Range<usize>> = Vec::new();
        let mut provider = Provider::new(face, &self.pool);
        let mut start = 0;
        while start < rows.len() {
            let tree = rows[start].tree;
            let end = start + rows[start..].iter().take_while(|row| row.tree.pages.id == tree.pages.id).count();
            let mut waiting: Vec<usize> = (start..end).collect();
            while !waiting.is_empty() {
                let mut missing: Vec<PageId> = Vec::new();
                let mut later = Vec::new();
                {
                    let pin = self.pool.pin();
                    let mut covered = 0;
                    for row in waiting {
                        if row < covered {
                            continue;
                        }
                        if missing.len() >= AHEAD_PAGES {
                            later.push(row);
                            continue;
                        }
                        match tree.read_leaf(&pin, Target::At(rows[row].key)) {
                            Ok(page) => {
                                page.header().hold();
                                let number = page.header().identity().expect("a latched leaf has an identity").page;
                                held.leaves.push((row, number, page.frame()));
                                let leaf = Leaf::new(&page);
                                let upper = leaf.upper_fence();
                                let mine =
                                    rows[row..end].iter().take_while(|row| upper.is_none_or(|upper| row.key < upper));
                                covered = row + mine.count();
                                if !crate::tree::has_room(&leaf, &incoming[row..covered]) {
                                    full.push(row..covered);
                                }
                            }
                            Err(Stop::Needs(Needs::Page(_, page))) => {
                                missing.push(page);
                                later.push(row);
                            }
                            Err(Stop::Needs(_)) => later.push(row),
                            Err(Stop::Error(error)) => return Err(error),
                        }
                    }
                }
                if held.leaves.len() > limit {
                    let per_leaf = rows.len() as u64 * 128 / held.leaves.len() as u64;
                    return Err(Error::writes_too_large(limit as u64 * per_leaf.max(128)));
                }
                missing.sort_unstable();
                missing.dedup();
                // Alone, a page is provided so that its error, if it has one and is needed still, is met.
                let alone = match missing[..] {
                    [] => None,
                    [page] => Some(page),
                    _ if self.fault_many(face, &tree.pages, &missing).await? == 0 => Some(missing[0]),
                    _ => None,
                };
                if let Some(page) = alone {
                    provider.provide(&Needs::Page(Arc::clone(&tree.pages), page)).await?;
                }
                waiting = later;
            }
            start = end;
        }
        held.leaves.sort_unstable_by_key(|&(row, _, _)| row);
        for range in full {
            rows[range.start].tree.make_room(face, &incoming[range]).await?;
        }
        Ok(())
    }

    /// Brings the leaves of all that was read in and keeps them there. A conflict that shows already ends the commit.
    async fn hold_reads<'p>(&'p self, face: Face<'_>, reads: Option<Reads<'_>>, beside: &Held<'_>) -> Result<Held<'p>> {
        let mut held = Held { pool: &self.pool, leaves: Vec::new() };
        let Some(reads) = reads else { return Ok(held) };
        let mut there: Vec<FrameIndex> = beside.leaves.iter().map(|&(_, _, frame)| frame).collect();
        there.sort_unstable();
        let frame_bytes = |frame: &FrameIndex| self.pool.frames.page_bytes(*frame);
        let mut bytes: usize = there.iter().map(frame_bytes).sum();
        let limit_bytes = self.pool.frames.limit_bytes() / 4;
        let mut walk = Walk::new(Some(reads));
        while let Some((tree, key)) = walk.next() {
            let keyspace = tree.pages.id;
            let upper_fence = Tree::awaiting(face, &self.pool, || {
                let pin = self.pool.pin();
                let page = tree.read_leaf(&pin, Target::At(key))?;
                let leaf = Leaf::new(&page);
                let number = page.header().identity().expect("a latched leaf has an identity").page;
                reads.validate(&self.versions, keyspace, number, &leaf)?;
                if there.binary_search(&page.frame()).is_err() {
                    page.header().hold();
                    held.leaves.push((0, number, page.frame()));
                    bytes += page.len();
                }
                Ok(leaf.upper_fence().map(<[u8]>::to_vec))
            });
            let upper_fence = upper_fence.await?;
            if bytes > limit_bytes {
                return Err(Error::reads_too_large(limit_bytes as u64));
            }
            walk.pass(keyspace, upper_fence.as_deref());
        }
        Ok(held)
    }

    fn try_apply<T>(
        &self,
        rows: &[Row<'_>],
        reads: Option<Reads<'_>>,
        incoming: &[Incoming<'_>],
        held: &[(usize, PageId, FrameIndex)],
        medium: &[Option<(u64, Place)>],
        take_timestamp: &mut impl FnMut(&Guard<'_>) -> (Timestamp, T),
    ) -> Result<T, Unready> {
        let guard = self.space.enter();
        let pin = self.pool.pin();
        let mut leaves: Vec<(FrameWrite<'_>, Range<usize>)> = Vec::with_capacity(rows.len().min(AHEAD_PAGES));
        // Leaves that were read and will not change: nobody changes them before this commit has its timestamp.
        let mut only_read: Vec<FrameRead<'_>> = Vec::new();
        let mut walk = Walk::new(reads);
        let mut start = 0;
        let mut held = held.iter();
        loop {
            let is_mine = |frame| {
                only_read.iter().any(|read| read.frame() == frame)
                    || leaves.iter().any(|(write, _)| write.frame() == frame)
            };
            let row = rows.get(start).map(|row| (row.tree, row.key));
            let (tree, key) = match (walk.next(), row) {
                (None, None) => break,
                (None, Some(row)) => row,
                (Some(read), Some(row)) if (row.0.pages.id, row.1) <= (read.0.pages.id, read.1) => row,
                (Some((tree, key)), _) => {
                    let read = tree.read_leaf_beside(&pin, key, &is_mine)?;
                    let leaf = Leaf::new(&read);
                    if !row.is_some_and(|(other, key)| other.pages.id == tree.pages.id && leaf.covers(key)) {
                        self.validate(reads, &mut walk, tree, read.header(), &leaf)?;
                        only_read.push(read);
                        continue;
                    }
                    (tree, key)
                }
            };
            // The leaf is mostly where it was when it was held.
            let hint = held.as_slice().iter().position(|&(row, _, _)| row >= start).unwrap_or(held.len());
            held = held.as_slice()[hint..].iter();
            let write = match held.as_slice().first() {
                Some(&(row, page, frame)) if row == start => tree.write_leaf_at(page, frame, key, &is_mine),
                _ => None,
            };
            let write = match write {
                Some(write) => write,
                None => tree.write_leaf(&pin, key, &is_mine)?,
            };
            let leaf = Leaf::new(&write);
            self.validate(reads, &mut walk, tree, write.header(), &leaf)?;
            let mine = rows[start..].iter().take_while(|row| {
                row.tree.pages.id == tree.pages.id && leaf.upper_fence().is_none_or(|upper| row.key < upper)
            });
            let end = start + mine.count();
            if start < end {
                if !crate::tree::has_room(&leaf, &incoming[start..end]) {
                    return Err(Unready::Room(start..end));
                }
                self.pool.prepare_change(&guard, &write).map_err(Unready::Error)?;
            }
            leaves.push((write, start..end));
            start = end;
        }
        // From the timestamp on nothing waits, fails or can be cancelled.
        let (timestamp, value) = take_timestamp(&guard);
        if self.log.get().is_some() {
            crate::witness::timestamp_taken(timestamp);
        }
        #[cfg(feature = "plant-publish-before-apply")]
        if self.log.get().is_some() {
            let ranges: Vec<Range<usize>> = leaves.drain(..).map(|(_, range)| range).collect();
            self.clock.mark_applied(timestamp);
            for range in ranges.into_iter().filter(|range| !range.is_empty()) {
                let row = &rows[range.start];
                let write = loop {
                    if let Ok(write) = row.tree.write_leaf(&pin, row.key, &|_| false) {
                        break write;
                    }
                    crate::sync::yield_now();
                };
                leaves.push((write, range));
            }
        }
        drop(only_read);
        // Without a row is a leaf that was split just before it was latched.
        for (write, range) in leaves.iter_mut().filter(|(_, range)| !range.is_empty()) {
            self.change_leaf(&guard, write, &rows[range.clone()], medium, range.start, timestamp);
        }
        if self.log.get().is_some() && !cfg!(feature = "plant-publish-before-apply") {
            self.clock.mark_applied(timestamp);
        }
        if cfg!(feature = "plant-show-before-durable") {
            self.clock.show_durable(timestamp);
        }
        Ok(value)
    }

    /// Validates what was read in a leaf that has just been latched, and passes it.
    fn validate(
        &self,
        reads: Option<Reads<'_>>,
        walk: &mut Walk<'_>,
        tree: &Tree,
        header: &FrameHeader,
        leaf: &Leaf<'_>,
    ) -> Result<(), Unready> {
        let keyspace = tree.pages.id;
        if let Some(reads) = reads
            && walk.pass(keyspace, leaf.upper_fence())
        {
            let page = header.identity().expect("a latched leaf has an identity").page;
            reads.validate(&self.versions, keyspace, page, leaf).map_err(Unready::Error)?;
        }
        Ok(())
    }

    fn change_leaf(
        &self,
        guard: &Guard<'_>,
        write: &mut FrameWrite<'_>,
        rows: &[Row<'_>],
        medium: &[Option<(u64, Place)>],
        first: usize,
        timestamp: Timestamp,
    ) {
        let pages = &rows[0].tree.pages;
        let page = write.header().identity().expect("a latched leaf has an identity").page;
        self.pool.mark_dirty(guard, write);
        let mut leaf = LeafMut::new(write.leaf_mut(&pages.table));
        let mut delta = Delta::new();
        // While the database recovers, nobody can ask what a row was; but values that were replaced are to be freed.
        let recovering = self.log.get().is_none();
        let mut note = |key: &[u8], was: Option<RowValue<'_>>| {
            if !recovering || matches!(was, Some(RowValue::Large(_))) {
                delta.push(key, was);
            }
        };
        for (index, row) in rows.iter().enumerate() {
            let found = leaf.as_leaf().search(row.key);
            let large;
            let value = match row.change {
                Change::Remove => {
                    if let Ok(at) = found {
                        note(row.key, Some(leaf.as_leaf().value(at)));
                        leaf.remove(at);
                    }
                    continue;
                }
                Change::Put(value) => match medium.get(first + index).copied().flatten() {
                    None => RowValue::Inline(value),
                    Some((identity, place)) => {
                        large = self.place_value(guard, pages, value.len() as u64, identity, &[place]);
                        RowValue::Large(large)
                    }
                },
                Change::PutLarge(value) => {
                    large = self.place_value(guard, pages, value.length, value.identity, &value.places);
                    value.set_reference(guard, large);
                    RowValue::Large(large)
                }
            };
            match found {
                Ok(at) => {
                    note(row.key, Some(leaf.as_leaf().value(at)));
                    leaf.replace(at, value).expect("room was checked");
                }
                Err(at) => {
                    if !cfg!(feature = "plant-miss-version") {
                        note(row.key, None);
                    }
                    leaf.insert(at, row.key, value).expect("room was checked");
                }
            }
        }
        let newest = leaf.as_leaf().newest().max(timestamp);
        leaf.set_newest(newest);
        if !delta.is_empty() {
            self.versions.add(pages.id, page, timestamp, delta);
        }
    }

    /// Gives a value's extents page numbers.
    fn place_value(
        &self,
        guard: &Guard<'_>,
        pages: &PageSpace,
        length: u64,
        identity: u64,
        places: &[Place],
    ) -> LargeRef {
        let chunk_count = u32::try_from(places.len()).expect("fewer than 2^32 chunks");
        let first_page = if places.is_empty() { PageId::NONE } else { pages.table.allocate(chunk_count) };
        for (page, &place) in (first_page.0..).zip(places) {
            pages.table.store(PageId(page), Word::Disk(place));
            self.space.record(guard.epoch(), pages.id, PageId(page), place);
        }
        LargeRef { length, id: identity, first_page, chunk_count }
    }

    /// After a commit: merges leaves that it emptied and drops versions that nobody needs.
    fn tidy(&self, rows: &[Row<'_>]) {
        if rows.iter().any(|row| matches!(row.change, Change::Remove)) {
            let pin = self.pool.pin();
            let mut sparse = Vec::new();
            for row in rows.iter().filter(|row| matches!(row.change, Change::Remove)) {
                if let Ok(page) = row.tree.read_leaf(&pin, Target::At(row.key))
                    && Tree::is_underfull(&page)
                {
                    sparse.push(row);
                }
            }
            drop(pin);
            for row in sparse {
                row.tree.try_merge(row.key);
            }
        }
        if self.versions.wants_sweep() {
            self.sweep();
        }
    }

    /// Drops versions that nobody needs, and past their share of memory ends the oldest snapshots.
    pub(crate) fn sweep(&self) {
        let Some(_alone) = self.sweeping.try_lock() else { return };
        loop {
            let freed = self.versions.sweep(self.snapshots.horizon(&self.clock));
            for (keyspace, reference) in freed {
                self.free_value(keyspace, &reference);
            }
            if self.versions.memory_bytes() <= self.version_bytes_max || !self.snapshots.end_oldest(&self.clock) {
                return;
            }
        }
    }

    pub(crate) fn free_value(&self, keyspace: KeyspaceId, reference: &LargeRef) {
        let guard = self.space.enter();
        let Some(pages) = self.space.page_space(keyspace) else { return };
        let freed = values::free(&self.pool, &guard, &pages, reference.first_page, reference.chunk_count);
        if let Err(error) = freed {
            log::warn!("the space of a value that was removed is not used again: {error}");
        }
        self.versions.let_go(keyspace, reference);
    }

    /// Waits until a snapshot that a transaction read at is durable: what it saw can't be taken back then.
    pub(crate) fn wait_durable(&self, timestamp: Timestamp) -> Result<()> {
        ready(self.await_durable(Face::Blocking, timestamp))
    }

    /// As [`wait_durable`](Self::wait_durable), by the ways of a face.
    pub(crate) async fn await_durable(&self, face: Face<'_>, timestamp: Timestamp) -> Result<()> {
        let log = self.log();
        if log.durable() >= timestamp {
            return Ok(());
        }
        // Only the timestamp matters: the log writes whatever stream holds it back.
        let place = crate::seglog::Appended { timestamp, stream: 0, end: 0, is_crowded: false };
        match face {
            Face::Blocking => log.wait_durable(&place),
            Face::Tasks(_) => poll_fn(|context| log.poll_durable(&place, context.waker())).await,
        }
    }
}

impl Engine {
    /// An engine that has recovered up to `last`.
    #[allow(clippy::too_many_arguments, reason = "made in one place, where each part is named")]
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        space: Arc<Space>,
        pool: Arc<Pool>,
        versions: Arc<Versions>,
        last: Timestamp,
        next_value: u64,
        version_bytes_max: u64,
        write_set_bytes_max: u64,
        make_space: MakeSpace,
    ) -> Engine {
        let lock_seed = backend.random();
        let tasks = Tasks::new(&backend);
        Engine {
            backend,
            space,
            pool,
            clock: Arc::new(Clock::new(last)),
            snapshots: Arc::default(),
            versions,
            locks: LockTable::new(64, lock_seed),
            log: OnceLock::new(),
            next_value: AtomicU64::new(next_value),
            promised_bytes: AtomicU64::new(0),
            next_transaction: AtomicU64::new(1),
            commits: AtomicU64::new(0),
            log_bytes_written: AtomicU64::new(0),
            log_bytes_checkpointed: AtomicU64::new(0),
            sweeping: Mutex::default(),
            version_bytes_max,
            write_set_bytes_max,
            make_space,
            tasks,
        }
    }
}
