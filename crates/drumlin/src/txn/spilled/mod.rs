//! Old versions that do not fit in memory. They are stored as sorted runs in the file `versions`.
//!
//! When the versions that snapshots need outgrow their share of memory, they are *spilled*. A spill takes the versions
//! of all leaves, up to a commit that all new snapshots will see, sorts them by keyspace, key and commit, and writes
//! them to blocks of a file (`file`, `block`). These blocks form a *run*, which is immutable. Once there are several
//! runs of similar size, they are merged, as in an LSM tree (O'Neil, Cheng, Gawlick and O'Neil, "The Log-Structured
//! Merge-Tree", 1996). Spilling and merging drop the versions that no snapshot needs: between two adjacent snapshots,
//! one version of a row is enough (Böttcher, Leis, Neumann and Kemper, "Scalable Garbage Collection for In-Memory MVCC
//! Systems", VLDB 2019).
//!
//! Runs are searched by key, not by leaf, so splits and merges of leaves do not affect them.
//!
//! # Invariants
//! 1. If a row has changed since a snapshot, the snapshot sees the version that the first of these commits replaced.
//!    This version may be in memory, in a run, or in both.
//! 2. A run is published before its versions are removed from memory. So a reader searches memory first and then the
//!    runs. Alternatively, it searches the runs and then memory, and finally checks that no run has been published in
//!    the meantime.
//! 3. Nothing durable refers to the file. No snapshot outlives the process, so if the file exists when the database is
//!    opened, it is removed.

mod block;
mod cache;
pub(crate) mod file;
mod run;
pub(crate) mod writes;

use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use block::SpilledRow;
use block::VERSION_BLOCK_BYTES;
use cache::Cache;
use file::SpillFile;
use run::Run;
pub(crate) use run::RunWriter;

use super::old_rows::{OldRows, OldVersion};
use crate::error::Result;
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, Timestamp, ValueId};
use crate::io::{AlignedBuffer, FolderRef};
use crate::memory::{Account, Budget, Grant};
use crate::pool::{Deferred, Pool};
use crate::sync::Mutex;
use crate::task::{Boxed, WaitMode};
use crate::tree::Direction;

/// The number of runs of similar size that triggers a merge.
const RUNS_MERGED: usize = 4;

/// The lower bound of the default limit on the disk space for versions.
const DEFAULT_BYTES_MIN: u64 = 256 << 20;

/// Decides who loses out when the old versions that open snapshots need reach
/// [`Config::version_disk_bytes`](crate::Config::version_disk_bytes): readers or writers.
///
/// ```
/// use drumlin::{Config, VersionOverflow};
///
/// // A report that runs for an hour must not fail. Writers may have to wait for it.
/// let db = Config::in_memory().version_overflow(VersionOverflow::DelayCommits).open("")?;
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum VersionOverflow {
    /// Ends the oldest snapshot, which then fails with [`SnapshotTooOld`](crate::Error::SnapshotTooOld). Commits do not
    /// wait.
    #[default]
    EndSnapshots,
    /// Makes commits wait until a snapshot is dropped. A commit that has waited for 10 seconds fails with
    /// [`MemoryInUse`](crate::Error::MemoryInUse), because its own thread may hold the snapshot. If the disk is full,
    /// snapshots are ended even with this setting.
    DelayCommits,
}

/// The limit on the disk space for versions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpillLimit {
    /// `None` means a quarter of the live bytes, but at least 256 MiB; 0 turns spilling off.
    pub(crate) bytes: Option<u64>,
    pub(crate) overflow: VersionOverflow,
}

/// The snapshots that need versions: the listed snapshots, in ascending order, and all snapshots at `visible` or later.
#[derive(Clone, Debug)]
pub(crate) struct Needed {
    pub(crate) snapshots: Vec<Timestamp>,
    pub(crate) visible: Timestamp,
}

impl Needed {
    /// Returns `true` if a snapshot sees the version that commit `since` wrote and commit `until` replaced.
    fn between(&self, since: Timestamp, until: Timestamp) -> bool {
        debug_assert!(self.snapshots.is_sorted(), "snapshots are out of order");
        debug_assert!(since <= until, "a version ends before it begins");
        let first = self.snapshots.partition_point(|snapshot| *snapshot < since);
        self.snapshots.get(first).is_some_and(|snapshot| *snapshot < until) || self.visible < until
    }
}

/// The runs of a database, and the file that contains them.
#[derive(Debug)]
pub(crate) struct Spilled {
    file: Arc<SpillFile>,
    cache: Arc<Cache>,
    budget: Arc<Budget>,
    limit: SpillLimit,
    /// The runs in ascending order of their newest commit.
    runs: Mutex<Arc<Vec<Arc<Run>>>>,
    /// The newest commit with a version in a run, or 0 if there are no runs.
    newest: AtomicU64,
    /// The number of runs published so far.
    published: AtomicU64,
    number_next: AtomicU64,
}

impl Spilled {
    pub(crate) fn new(folder: FolderRef, budget: &Arc<Budget>, limit: SpillLimit) -> Spilled {
        Spilled {
            limit,
            file: SpillFile::new(folder, file::VERSIONS_NAME, VERSION_BLOCK_BYTES),
            cache: Arc::new(Cache::new(budget, VERSION_BLOCK_BYTES)),
            budget: Arc::clone(budget),
            runs: Mutex::default(),
            newest: AtomicU64::new(0),
            published: AtomicU64::new(0),
            number_next: AtomicU64::new(1),
        }
    }

    /// Removes the file that a killed process may have left behind.
    pub(crate) fn remove_left(&self) -> std::io::Result<()> {
        self.file.remove_left()
    }

    /// Returns `true` if a run may contain a version that the snapshot sees. Call this after searching memory
    /// (invariant 2).
    #[inline]
    pub(crate) fn may_have(&self, snapshot: Timestamp) -> bool {
        self.newest.load(Ordering::SeqCst) > snapshot.0
    }

    /// Returns a counter that increases whenever versions are about to be removed from memory.
    #[inline]
    pub(crate) fn published(&self) -> u64 {
        self.published.load(Ordering::SeqCst)
    }

    /// Returns the length of the file in bytes.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn runs(&self) -> Arc<Vec<Arc<Run>>> {
        Arc::clone(&self.runs.lock())
    }

    /// Searches the runs for the row's version at the snapshot. Returns the version and the commit that replaced it.
    /// This usually reads one block of each run.
    pub(crate) fn find<'a>(
        &'a self,
        mode: WaitMode<'a>,
        keyspace: KeyspaceId,
        key: &'a [u8],
        snapshot: Timestamp,
    ) -> Boxed<'a, Result<Option<(Timestamp, OldVersion)>>> {
        Box::pin(async move {
            let mut found: Option<(Timestamp, OldVersion)> = None;
            for run in self.runs().iter().filter(|run| run.last > snapshot) {
                let bounds = (Bound::Included(key), Bound::Included(key));
                each_row(mode, run, keyspace, bounds, snapshot, |row| {
                    if found.as_ref().is_none_or(|(timestamp, _)| row.timestamp < *timestamp) {
                        found = Some((row.timestamp, OldVersion::of(row.was)));
                    }
                    true
                })
                .await?;
            }
            debug_assert!(
                found.as_ref().is_none_or(|(until, _)| *until > snapshot),
                "a version of before the snapshot"
            );
            Ok(found)
        })
    }
}

/// Calls `look` with each old version in a run whose row is within the bounds and has changed since the snapshot. Stops
/// if `look` returns `false`.
async fn each_row(
    mode: WaitMode<'_>,
    run: &Arc<Run>,
    keyspace: KeyspaceId,
    bounds: (Bound<&[u8]>, Bound<&[u8]>),
    snapshot: Timestamp,
    mut look: impl FnMut(SpilledRow<'_>) -> bool,
) -> Result<()> {
    let first = match bounds.0 {
        Bound::Unbounded => &[][..],
        Bound::Included(key) | Bound::Excluded(key) => key,
    };
    let is_reached = |block| match bounds.1 {
        Bound::Unbounded => run.reaches(block, KeyspaceId(keyspace.0 + 1), &[]),
        Bound::Included(key) | Bound::Excluded(key) => run.reaches(block, keyspace, key),
    };
    let mut block = run.first_block(keyspace, first);
    while is_reached(block) {
        let reading = Arc::clone(run);
        let bytes = mode.run(move || reading.read(block)).await?;
        for row in block::rows(&bytes) {
            let is_within =
                row.keyspace == keyspace && row.timestamp > snapshot && RangeBounds::<[u8]>::contains(&bounds, row.key);
            if is_within && !look(row) {
                return Ok(());
            }
        }
        block += 1;
    }
    Ok(())
}

/// The old versions of one leaf's rows that the runs contain and a snapshot needs. A scan combines them with the
/// versions in memory.
#[derive(Debug)]
pub(crate) struct FetchedRows {
    pub(crate) old: OldRows,
    /// The fences of the leaf, and the value of [`Spilled::published`] before the runs were searched.
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    published: u64,
}

impl FetchedRows {
    /// Returns `true` if the rows belong to a leaf with these fences, and no run has been published since they were
    /// fetched.
    pub(crate) fn are_of(&self, lower: Option<&[u8]>, upper: Option<&[u8]>, published: u64) -> bool {
        self.published == published && self.lower.as_deref() == lower && self.upper.as_deref() == upper
    }
}

impl Spilled {
    /// Fetches the old versions of rows between two fences and within the bounds of a scan. Fetches as many as fit in
    /// `bytes_max`, starting where the scan starts. The remaining rows lie beyond `last`.
    #[expect(clippy::too_many_arguments, reason = "a leaf, and a scan")]
    pub(crate) fn fetch<'a>(
        &'a self,
        mode: WaitMode<'a>,
        keyspace: KeyspaceId,
        (lower, upper): (Option<Vec<u8>>, Option<Vec<u8>>),
        bounds: (Bound<&'a [u8]>, Bound<&'a [u8]>),
        snapshot: Timestamp,
        direction: Direction,
        bytes_max: usize,
    ) -> Boxed<'a, Result<FetchedRows>> {
        Box::pin(async move {
            let published = self.published();
            let within = {
                let is_above = |fence: &[u8]| match bounds.0 {
                    Bound::Unbounded => true,
                    Bound::Included(key) | Bound::Excluded(key) => key < fence,
                };
                let is_below = |fence: &[u8]| match bounds.1 {
                    Bound::Unbounded => true,
                    Bound::Included(key) | Bound::Excluded(key) => fence <= key,
                };
                let from = lower.as_deref().filter(|fence| is_above(fence)).map_or(bounds.0, Bound::Included);
                (from, upper.as_deref().filter(|fence| is_below(fence)).map_or(bounds.1, Bound::Excluded))
            };
            let mut old = OldRows::default();
            for run in self.runs().iter().filter(|run| run.last > snapshot) {
                each_row(mode, run, keyspace, within, snapshot, |row| {
                    old.add(row.key, row.timestamp, row.was, direction, bytes_max);
                    true
                })
                .await?;
            }
            debug_assert!(
                old.rows.keys().all(|key| RangeBounds::<[u8]>::contains(&bounds, &key[..])),
                "a row beyond the bounds of its scan"
            );
            Ok(FetchedRows { old, lower, upper, published })
        })
    }

    /// Returns `true` if the runs show that a row between two fences has changed since the snapshot, and `matters`
    /// returns `true` for that row.
    pub(crate) async fn any_changed(
        &self,
        mode: WaitMode<'_>,
        keyspace: KeyspaceId,
        (lower, upper): (Option<&[u8]>, Option<&[u8]>),
        snapshot: Timestamp,
        matters: impl Fn(&[u8]) -> bool,
    ) -> Result<bool> {
        let bounds = (lower.map_or(Bound::Unbounded, Bound::Included), upper.map_or(Bound::Unbounded, Bound::Excluded));
        let mut has_changed = false;
        for run in self.runs().iter().filter(|run| run.last > snapshot) {
            each_row(mode, run, keyspace, bounds, snapshot, |row| {
                has_changed |= matters(row.key);
                !has_changed
            })
            .await?;
        }
        Ok(has_changed)
    }

    /// Returns `true` if a run may contain versions of rows of the keyspace.
    pub(crate) fn has_any(&self, keyspace: KeyspaceId) -> bool {
        self.runs().iter().any(|run| run.keyspaces.contains(&keyspace))
    }

    /// Returns `true` if there are any runs.
    pub(crate) fn has_any_run(&self) -> bool {
        self.newest.load(Ordering::SeqCst) > 0
    }

    /// Returns `true` unless the configuration turns spilling off.
    pub(crate) fn is_on(&self) -> bool {
        self.limit.bytes != Some(0)
    }

    /// Returns `true` if commits wait when the limit is reached. Otherwise, snapshots are ended.
    pub(crate) fn delays_commits(&self) -> bool {
        self.limit.overflow == VersionOverflow::DelayCommits
    }

    /// If no more versions may be spilled, given that versions may use `limit_bytes` on disk, returns the reason.
    /// Otherwise returns `None`.
    pub(crate) fn refusal(&self, limit_bytes: u64) -> Option<String> {
        if !self.is_on() {
            let limit_bytes = self.budget.version_bytes_max();
            return Some(format!(
                "the old versions that it needs outgrew the {limit_bytes} bytes of memory for versions, and \
                 Config::version_disk_bytes keeps them off the disk"
            ));
        }
        let disk_bytes = self.disk_bytes();
        if disk_bytes >= limit_bytes {
            return Some(format!(
                "the old versions that it needs take {disk_bytes} bytes on disk, and Config::version_disk_bytes allows \
                 {limit_bytes}"
            ));
        }
        // Count only the indexes of these runs. The account also has the block cache, which has its own limit, and the
        // spilled changes of transactions, for which no snapshot may be ended.
        let taken: u64 = self.runs().iter().map(|run| run.memory_bytes()).sum();
        let limit = self.budget.limit_bytes(Account::Spilled) / 3 * 2;
        (taken > limit).then(|| {
            format!(
                "the index of the {disk_bytes} bytes of old versions on disk takes {taken} bytes of memory, of \
                 {limit}; raise Config::memory"
            )
        })
    }

    /// Returns the number of bytes that versions may use on disk in a database of `live_bytes`.
    pub(crate) fn limit_bytes(&self, live_bytes: u64) -> u64 {
        self.limit.bytes.unwrap_or_else(|| (live_bytes / 4).max(DEFAULT_BYTES_MIN))
    }

    /// Drops all runs. Called when the database closes.
    pub(crate) fn clear(&self) {
        self.replace(|_| true, None);
        assert!(!self.has_any_run(), "a run is left");
    }

    /// Begins writing a run.
    pub(crate) fn begin(&self) -> RunWriter {
        let number = self.number_next.fetch_add(1, Ordering::Relaxed);
        RunWriter::new(number, &self.file, &self.cache, &self.budget, None)
    }

    /// Publishes a run. After this call, its versions may be removed from memory.
    pub(crate) fn publish(&self, writer: RunWriter) -> Result<()> {
        if let Some(run) = writer.finish()? {
            let last = run.last;
            {
                let mut runs = self.runs.lock();
                assert!(runs.iter().all(|before| before.number < run.number), "a run is published twice");
                let with_it = runs.iter().cloned().chain([Arc::new(run)]).collect();
                *runs = Arc::new(with_it);
            }
            self.newest.fetch_max(last.0, Ordering::SeqCst);
        }
        self.published.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Drops the runs that contain only commits up to `horizon`. Returns the large values to which they referred.
    pub(crate) fn drop_up_to(&self, horizon: Timestamp) -> Vec<(KeyspaceId, LargeRef)> {
        if !self.has_any_run() {
            return Vec::new();
        }
        self.replace(|run| run.last <= horizon, None)
    }

    /// Replaces the runs for which `is_ended` returns `true` with `by`, the run that was merged from them, if any.
    /// Returns the large values to which the replaced runs referred.
    fn replace(&self, is_ended: impl Fn(&Run) -> bool, by: Option<Run>) -> Vec<(KeyspaceId, LargeRef)> {
        let mut runs = self.runs.lock();
        let (ended, mut left): (Vec<_>, Vec<_>) = runs.iter().cloned().partition(|run| is_ended(run));
        left.extend(by.map(Arc::new));
        left.sort_by_key(|run| run.last);
        assert!(ended.len() + left.len() >= runs.len(), "a run is lost");
        self.newest.store(left.iter().map(|run| run.last.0).max().unwrap_or(0), Ordering::SeqCst);
        *runs = Arc::new(left);
        drop(runs);
        ended.iter().flat_map(|run| run.large.iter().copied()).collect()
    }

    /// Merges the newest runs if at least [`RUNS_MERGED`] of them have similar sizes. Drops the versions that no
    /// snapshot needs, and returns the large values to which only these versions referred. Only one thread at a time
    /// may merge.
    pub(crate) fn merge(&self, needed: &Needed) -> Result<Vec<(KeyspaceId, LargeRef)>> {
        let runs = self.runs();
        let mut first = runs.len().saturating_sub(1);
        let mut bytes = runs.last().map_or(0, |run| run.len());
        while first > 0 && runs[first - 1].len() <= 2 * bytes {
            first -= 1;
            bytes += runs[first].len();
        }
        let merged = &runs[first..];
        if merged.len() < RUNS_MERGED {
            return Ok(Vec::new());
        }
        crate::coverage::mark!("runs of spilled versions were merged");
        assert!(merged.iter().all(|run| run.last <= needed.visible), "a run has what is not visible");
        let mut writer = self.begin();
        let mut sifter = Sifter::new(needed);
        let cursors = merged.iter().map(|run| Cursor::new(run, &self.budget, None)).collect::<Result<Vec<_>>>();
        let mut cursors = cursors?;
        loop {
            let at = |index: &usize| cursors[*index].row().map(|row| row.sort_key());
            let Some(least) = (0..cursors.len()).filter(|index| at(index).is_some()).min_by_key(at) else { break };
            let row = cursors[least].row().expect("looked at");
            if sifter.keeps(row.keyspace, row.key, row.timestamp) {
                writer.push(row)?;
            }
            cursors[least].advance()?;
        }
        drop(cursors);
        let numbers: Vec<u64> = merged.iter().map(|run| run.number).collect();
        let run = writer.finish()?;
        assert!(run.as_ref().is_none_or(|run| !numbers.contains(&run.number)), "a run is merged into itself");
        let kept: BTreeSet<ValueId> = run.iter().flat_map(|run| &run.large).map(|(_, large)| large.id).collect();
        let mut named = self.replace(|run| numbers.contains(&run.number), run);
        named.retain(|(_, large)| !kept.contains(&large.id));
        Ok(named)
    }
}

/// Iterates over the rows of a run.
struct Cursor<'r> {
    /// A read of the next block that a thread of the pool makes.
    reading: Option<Deferred<AlignedBuffer>>,
    pool: Option<&'r Arc<Pool>>,
    run: &'r Run,
    /// The next block to read.
    block: usize,
    bytes: AlignedBuffer,
    /// The offset of the current row in `bytes`, which contains the last block that was read; `None` at the end.
    offset: Option<usize>,
    _memory: Grant,
}

impl<'r> Cursor<'r> {
    /// Creates a cursor at the first row. With a pool, and memory for two blocks, the cursor reads ahead.
    fn new(run: &'r Run, budget: &Arc<Budget>, pool: Option<&'r Arc<Pool>>) -> Result<Cursor<'r>> {
        assert!(run.len() > 0, "a run has no blocks");
        let mut memory = budget.grant(Account::Spilled);
        memory.take(run.block_bytes() as u64);
        let pool = pool.filter(|_| memory.cover(2 * run.block_bytes() as u64));
        let bytes = AlignedBuffer::zeroed(run.block_bytes());
        let mut cursor = Cursor { reading: None, pool, run, block: 0, bytes, offset: None, _memory: memory };
        cursor.read_next()?;
        Ok(cursor)
    }

    fn row(&self) -> Option<SpilledRow<'_>> {
        block::rows_from(&self.bytes, self.offset?).next()
    }

    /// Moves to the next row.
    fn advance(&mut self) -> Result<()> {
        let Some(offset) = self.offset else { return Ok(()) };
        let mut rows = block::rows_from(&self.bytes, offset);
        rows.next();
        match rows.offset(&self.bytes) {
            Some(offset) => self.offset = Some(offset),
            None => self.read_next()?,
        }
        Ok(())
    }

    fn read_next(&mut self) -> Result<()> {
        self.offset = None;
        if self.block < self.run.len() {
            let mut free = None;
            match self.reading.take() {
                Some(reading) => free = Some(std::mem::replace(&mut self.bytes, reading.wait()?)),
                None => self.run.read_into(self.block, &mut self.bytes)?,
            }
            self.block += 1;
            if let Some(pool) = self.pool
                && self.block < self.run.len()
            {
                let place = self.run.place(self.block);
                let mut bytes = free.unwrap_or_else(|| AlignedBuffer::zeroed(self.run.block_bytes()));
                self.reading = Some(Deferred::begin(pool, move |_| place.read(&mut bytes).map(|()| bytes)));
            }
            self.offset = block::rows_from(&self.bytes, 0).offset(&self.bytes);
            assert!(self.offset.is_some(), "a block has no rows");
        }
        Ok(())
    }
}

/// Decides for each version whether a snapshot needs it. The versions must be passed in the order of a run.
pub(crate) struct Sifter<'n> {
    needed: &'n Needed,
    row: Option<(KeyspaceId, Vec<u8>)>,
    /// The commit that wrote the next version of the row. It is the commit that replaced the previous version; 0 if
    /// unknown.
    since: Timestamp,
}

impl<'n> Sifter<'n> {
    pub(crate) fn new(needed: &'n Needed) -> Sifter<'n> {
        Sifter { needed, row: None, since: Timestamp(0) }
    }

    /// Returns `true` if a snapshot sees the version that this commit replaced. Returns `false` for a duplicate.
    pub(crate) fn keeps(&mut self, keyspace: KeyspaceId, key: &[u8], timestamp: Timestamp) -> bool {
        match &mut self.row {
            Some((of, row)) if *of == keyspace && row[..] == *key => {}
            Some((of, row)) => {
                *of = keyspace;
                row.clear();
                row.extend_from_slice(key);
                self.since = Timestamp(0);
            }
            None => self.row = Some((keyspace, key.to_vec())),
        }
        let since = std::mem::replace(&mut self.since, timestamp);
        assert!(since <= timestamp, "versions of a row are out of order");
        since < timestamp && self.needed.between(since, timestamp)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    use super::*;
    use crate::io::{in_memory, open_folder};
    use crate::sync::Random;
    use crate::task::ready;
    use crate::tree::node::RowValue;

    /// The old versions of rows, by keyspace, key and commit.
    type Changes = BTreeMap<(u32, Vec<u8>, u64), Option<Vec<u8>>>;

    fn spilled() -> Spilled {
        let backend = in_memory();
        backend.create_dir_all(Path::new("/db")).unwrap();
        Spilled::new(
            open_folder(&backend, Path::new("/db")).unwrap(),
            &Arc::new(Budget::new(64 << 20, 1)),
            SpillLimit::default(),
        )
    }

    fn needed(snapshots: &BTreeSet<u64>, visible: u64) -> Needed {
        Needed { snapshots: snapshots.iter().map(|at| Timestamp(*at)).collect(), visible: Timestamp(visible) }
    }

    /// Writes a run of the changes, as a spill does.
    fn spill(spilled: &Spilled, changes: &Changes, needed: &Needed) {
        let (mut writer, mut sifter) = (spilled.begin(), Sifter::new(needed));
        for ((keyspace, key, timestamp), was) in changes {
            let (keyspace, timestamp) = (KeyspaceId(*keyspace), Timestamp(*timestamp));
            if sifter.keeps(keyspace, key, timestamp) {
                let was = was.as_deref().map(RowValue::Inline);
                writer.push(SpilledRow { keyspace, key, timestamp, was }).unwrap();
            }
        }
        spilled.publish(writer).unwrap();
    }

    fn inline(was: OldVersion) -> Option<Vec<u8>> {
        match was {
            OldVersion::Absent => None,
            OldVersion::Inline(value) => Some(value.into()),
            OldVersion::Large(reference) => panic!("{reference:?}"),
        }
    }

    /// For each row, each snapshot finds the version that the first commit after the snapshot replaced. It finds the
    /// version in any run, before and after merges. Ranges find these versions too, in both directions and in parts.
    #[test]
    fn snapshots_find_their_versions() {
        let mut random = Random(11);
        for round in 0..6 {
            let spilled = spilled();
            let mut snapshots = BTreeSet::new();
            let (mut all, mut now) = (Changes::new(), 0);
            let key_count = [3, 40, 4_000][round % 3];
            for turn in 0..14 {
                let mut changes = Changes::new();
                for _ in 0..random.below(3_000) {
                    now += 1;
                    let key = format!("row {}", random.below(key_count)).into_bytes();
                    let was = (random.below(5) > 0).then(|| vec![now as u8; random.below(300) as usize]);
                    changes.insert((random.below(3) as u32 + 1, key, now), was);
                    if random.below(2_000) == 0 {
                        snapshots.insert(now);
                    }
                }
                let first = snapshots.first().copied();
                spill(&spilled, &changes, &needed(&snapshots, now));
                all.append(&mut changes);
                if random.below(3) == 0 {
                    let ended: Vec<u64> = snapshots.iter().copied().filter(|_| random.below(4) == 0).collect();
                    snapshots.retain(|at| !ended.contains(at));
                }
                spilled.merge(&needed(&snapshots, now)).unwrap();
                assert!(spilled.runs().len() < 12, "{} runs in turn {turn}", spilled.runs().len());
                spilled.drop_up_to(Timestamp(snapshots.first().copied().unwrap_or(now)));
                assert!(first.is_some() || spilled.disk_bytes() == 0, "versions are kept for nobody");
                for at in snapshots.iter().copied() {
                    check(&spilled, &all, at, &mut random);
                }
            }
            spilled.clear();
            assert_eq!(spilled.disk_bytes(), 0);
            assert!(!spilled.has_any_run());
        }
    }

    fn check(spilled: &Spilled, all: &Changes, at: u64, random: &mut Random) {
        let keyspace = random.below(3) as u32 + 1;
        let mut expected: BTreeMap<&[u8], (u64, &Option<Vec<u8>>)> = BTreeMap::new();
        for ((of, key, timestamp), was) in all {
            if *of == keyspace && *timestamp > at {
                expected.entry(key).or_insert((*timestamp, was));
            }
        }
        let snapshot = Timestamp(at);
        for (key, (timestamp, was)) in expected.iter().step_by(1 + expected.len() / 20) {
            let found = ready(spilled.find(WaitMode::Blocking, KeyspaceId(keyspace), key, snapshot)).unwrap();
            let (until, found) = found.expect("it was spilled");
            assert_eq!((until.0, &inline(found)), (*timestamp, *was), "{} at {at}", key.escape_ascii());
        }
        let absent = spilled.find(WaitMode::Blocking, KeyspaceId(keyspace), b"row", snapshot);
        assert!(ready(absent).unwrap().is_none());
        let direction = if random.below(2) == 0 { Direction::Forward } else { Direction::Backward };
        let [lower, upper] = [0, 0].map(|_| format!("row {}", random.below(4_000)).into_bytes());
        let fences = (Some(lower.clone().min(upper.clone())), Some(lower.max(upper)));
        let bytes_max = [500, usize::MAX][random.below(2) as usize];
        let bounds = (Bound::Unbounded, Bound::Unbounded);
        let fetched = spilled.fetch(
            WaitMode::Blocking,
            KeyspaceId(keyspace),
            fences.clone(),
            bounds,
            snapshot,
            direction,
            bytes_max,
        );
        let old = ready(fetched).unwrap().old;
        let (lower, upper) = (fences.0.unwrap(), fences.1.unwrap());
        let is_within = |key: &[u8]| match (&old.last, direction) {
            (Some(last), Direction::Forward) => key <= &last[..],
            (Some(last), Direction::Backward) => key >= &last[..],
            (None, _) => true,
        };
        let within = expected.iter().filter(|(key, _)| (&lower[..]..&upper[..]).contains(*key) && is_within(key));
        let mut rows = old.rows.into_iter();
        for (key, (timestamp, was)) in within {
            let (found, (until, version)) = rows.next().expect("there are more");
            assert_eq!((&found[..], until.0, &inline(version)), (*key, *timestamp, *was), "at {at}");
        }
        assert_eq!(rows.next(), None);
    }

    /// A block that was corrupted on disk causes an error that names the file, not a wrong result.
    #[test]
    fn a_damaged_block_is_noticed() {
        let backend = in_memory();
        backend.create_dir_all(Path::new("/db")).unwrap();
        let folder = open_folder(&backend, Path::new("/db")).unwrap();
        let spilled = Spilled::new(Arc::clone(&folder), &Arc::new(Budget::new(64 << 20, 1)), SpillLimit::default());
        let changes = Changes::from([((1, b"a".to_vec(), 5), Some(b"old".to_vec()))]);
        spill(&spilled, &changes, &needed(&BTreeSet::from([1]), 5));
        let options = crate::io::OpenOptions { write: true, ..Default::default() };
        let file = folder.open(file::VERSIONS_NAME, options).unwrap();
        file.write_at(&vec![0; 4096], 0, crate::io::Persist::Later).unwrap();
        let found = ready(spilled.find(WaitMode::Blocking, KeyspaceId(1), b"a", Timestamp(1)));
        let error = found.unwrap_err().to_string();
        assert!(error.contains("versions") && error.contains("checksum"), "{error}");
    }
}
