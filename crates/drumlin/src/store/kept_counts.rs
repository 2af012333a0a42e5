//! Row counts that are stored with checkpoints. Each checkpoint writes the counts that keyspaces cache to a file, and
//! an opening that begins with that checkpoint continues with these counts.
//!
//! There are two such files. A checkpoint writes to the file that the previous checkpoint did not use, so that the
//! counts of the newest durable checkpoint are complete whenever the process is killed. The counts are written as soon
//! as the checkpoint has begun, because no changes can be folded until then (`counts/capture.rs`), and before its
//! superblock, because only the superblock makes them valid. If more pages are counted later, closing the database
//! rewrites the same file.
//!
//! # Invariants
//! 1. A file of counts is advice (`advice.rs`), valid for one checkpoint. The counts of a keyspace are a series of
//!    parts, and an opening uses all of them or none.
//! 2. An opening uses counts only if it begins with exactly their checkpoint, and reads them before it replays any
//!    record of the log. Replay inserts, removes, splits and merges in the same way as commits. So it adds its changes
//!    to the list, and invalidates the entries of pages whose fences it changes.
//!
//! # Why a file is never mistaken for that of a different checkpoint
//!
//! Each checkpoint draws a random [`CheckpointId`], which is stored in its superblock and in its file of counts. If the
//! two match, all pages, page tables and keyspaces are as of that checkpoint. So none of the following matters: which
//! of the two superblocks is valid; whether an earlier opening began a checkpoint with the same number that never
//! became durable; whether the database is one of two copies that diverged, or was restored from a backup next to a
//! newer file. Pages keep their ids, even if the reclaimer has moved their extents. All parts of a file carry a random
//! number drawn when the file was written. So parts from two writes are never mixed, not even for the same checkpoint.
//! The last part of a series is written only if the whole series is valid, so the remains of a forfeited series are
//! never used.
//!
//! - *A database that opens without writing* begins with the same superblock, and so with the same file. Closing it may
//!   rewrite the file if no commit has followed the checkpoint, because then no page has changed its fences.
//! - *A program that does not know these files* makes checkpoints with a different id, or with none.
//! - *Bulk loads and drops after the checkpoint* are replayed, and both end the counts of their keyspace.
//! - *Keyspace ids* come from the checkpoint's catalogue, and are never reused.
//! - *Page ids* may be reused during replay: a newly created page begins with a new entry.
//! - *Timestamps in replay*: each change gets the timestamp of the last commit in its batch, which may be later than
//!   its own. No snapshot is older than the last recovered commit, and the counts begin with that commit as their
//!   horizon.
//! - *A salvage opening* skips unreadable pages, so it uses no counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::advice::{AdviceFiles, COUNTS_NAMES, PartWriter};
use super::keyspaces::Keyspaces;
use super::state::Store;
use crate::counts::capture::{CountCapture, RestoredCounts};
use crate::format::advice::{
    ENTRY_BYTES, ITEMS_OFFSET, ListedChange, PART_BYTES_MAX, Part, PartBuffer, PartHead, PartKind,
};
use crate::format::superblock::Superblock;
use crate::format::{CheckpointId, CheckpointNumber, KeyspaceId, PageId, Timestamp};
use crate::memory::Budget;
use crate::txn::keyspace::OpenKeyspace;

/// The maximum number of entries that fit in a part.
const PART_ENTRIES_MAX: usize = (PART_BYTES_MAX - ITEMS_OFFSET) / ENTRY_BYTES;

/// The memory that writing a file needs: one part, and that part's entries.
const WRITING_BYTES: u64 = (PART_BYTES_MAX + PART_ENTRIES_MAX * size_of::<(PageId, u32)>()) as u64;

fn name_of(checkpoint: CheckpointNumber) -> &'static str {
    COUNTS_NAMES[(checkpoint.0 % 2) as usize]
}

/// The checkpoint whose counts are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedCheckpoint {
    pub(super) number: CheckpointNumber,
    pub(super) id: CheckpointId,
    pub(super) timestamp: Timestamp,
}

/// The counts of keyspaces as of a checkpoint.
pub(super) type CapturedCounts = Vec<(KeyspaceId, CountCapture)>;

impl Store {
    /// Draws the id of a checkpoint. Returns 0 if no counts will be written.
    pub(super) fn draw_checkpoint_id(&self) -> CheckpointId {
        CheckpointId(if self.counts_files.is_on() { self.engine.backend.random().max(1) } else { 0 })
    }

    /// Captures the counts of all keyspaces at the beginning of a checkpoint, under the exclusive epoch latch.
    pub(super) fn capture_counts(&self) -> CapturedCounts {
        if !self.counts_files.is_on() {
            return Vec::new();
        }
        let open = self.keyspaces.all();
        let captured = open.iter().filter_map(|open| {
            let tree = &open.tree;
            Some((tree.pages.id, tree.counts.capture_at_checkpoint(tree.pages.table.number_end())?))
        });
        captured.collect()
    }

    /// Writes the captured counts, if there are any. As soon as a keyspace's counts are written, ends their capture, so
    /// that the keyspace's changes can be folded.
    pub(super) fn write_counts(&self, captured: CapturedCounts, checkpoint: CountedCheckpoint) {
        if captured.is_empty() {
            return;
        }
        let CountedCheckpoint { number, id, timestamp } = checkpoint;
        let written = self.counts_files.write(name_of(number), id, &self.engine, WRITING_BYTES, |writer| {
            let mut buffer = PartBuffer::new(PART_BYTES_MAX);
            for (keyspace, capture) in captured {
                write_keyspace(writer, &mut buffer, keyspace, &capture, timestamp)?;
            }
            Ok(())
        });
        if written.is_some() {
            crate::coverage::mark!("counts were written during a checkpoint");
        }
    }

    /// Rewrites the counts of the newest checkpoint if no commit has followed it and pages were counted after it was
    /// made. Called when the database is closed and accepts no more commits.
    pub(super) fn write_counts_again(&self) {
        let page_tables = self.lock_page_tables();
        let Superblock { checkpoint: number, checkpoint_id: id, timestamp, .. } = page_tables.superblock;
        let open = self.keyspaces.all();
        let has_news = self.counts_files.is_on() && open.iter().any(|open| open.tree.counts.has_new_entries());
        if !has_news || id == CheckpointId::default() || self.engine.log().last() != timestamp {
            return;
        }
        let captured: CapturedCounts = {
            let _epoch_guard = self.engine.space.epoch_latch.exclusive();
            let captured = open.iter().filter_map(|open| {
                let tree = &open.tree;
                Some((tree.pages.id, tree.counts.capture_again(tree.pages.table.number_end())?))
            });
            captured.collect()
        };
        self.write_counts(captured, CountedCheckpoint { number, id, timestamp });
    }
}

/// Writes the counts of a keyspace: the row changes up to the checkpoint's commit, and the entries of its pages.
fn write_keyspace(
    writer: &mut PartWriter,
    buffer: &mut PartBuffer,
    keyspace: KeyspaceId,
    capture: &CountCapture,
    up_to: Timestamp,
) -> std::io::Result<()> {
    let floor = capture.floor();
    assert!(floor <= up_to, "changes are folded that a checkpoint does not have");
    writer.begin_series(keyspace, floor);
    let mut next = Some(0);
    while let Some(first) = next {
        next = capture.changes(first, up_to, |key, timestamp, is_insert| {
            buffer.push_change(ListedChange { key, timestamp, is_insert })
        });
        if buffer.count() > 0 {
            writer.write(PartKind::Changes, false, buffer)?;
        }
    }
    let mut entries = Vec::with_capacity(PART_ENTRIES_MAX);
    let mut next = Some(PageId::ROOT);
    while let Some(first) = next {
        entries.clear();
        next = capture.entries(first, PART_ENTRIES_MAX, &mut entries);
        let fits = entries.iter().all(|&(page, rows)| buffer.push_entry(page, rows));
        assert!(fits, "a part has no room for {} entries", entries.len());
        // The last part makes the counts valid.
        if next.is_none() && !capture.is_whole() {
            crate::coverage::mark!("counts could not be captured during commits");
            buffer.clear();
            writer.forfeit_series();
            return Ok(());
        }
        if next.is_none() || !entries.is_empty() {
            writer.write(PartKind::Entries, next.is_none(), buffer)?;
        }
    }
    Ok(())
}

/// Restores the counts of the checkpoint that an opening begins with. `last` is the newest recovered commit. Called
/// before any record is replayed, and before another thread can access the keyspaces.
pub(super) fn restore_counts(
    files: &AdviceFiles,
    superblock: &Superblock,
    keyspaces: &Keyspaces,
    last: Timestamp,
    budget: &Arc<Budget>,
) {
    if superblock.checkpoint_id == CheckpointId::default() {
        return;
    }
    let name = name_of(superblock.checkpoint);
    let up_to = superblock.timestamp;
    let unread = keyspaces.all().into_iter().map(|open| (open.tree.pages.id, open)).collect();
    let mut reading = Reading { unread, budget, up_to, horizon: last.max(up_to), series: None, restored_count: 0 };
    let read = files.read(name, superblock.checkpoint_id, |part| Ok(reading.add(&part).is_some()));
    if reading.restored_count == 0 {
        crate::coverage::mark!("a file of counts was skipped");
        log::debug!("{name} is incomplete or belongs to another checkpoint: rows are counted again, {read:?}");
    }
}

/// Reads a file of counts.
struct Reading<'r> {
    /// The keyspaces whose counts have not been found yet.
    unread: BTreeMap<KeyspaceId, Arc<OpenKeyspace>>,
    budget: &'r Arc<Budget>,
    /// The newest commit that the checkpoint contains.
    up_to: Timestamp,
    /// The timestamp of the oldest snapshot that can be opened.
    horizon: Timestamp,
    series: Option<Series>,
    restored_count: usize,
}

/// The parts of a series that have been read.
struct Series {
    open: Arc<OpenKeyspace>,
    counts: RestoredCounts,
    newest: PartHead,
}

impl Reading<'_> {
    /// Adds the next part. If it is the last part of its series, restores the counts of the keyspace. Returns `None` if
    /// the part does not continue the series.
    fn add(&mut self, part: &Part<'_>) -> Option<()> {
        let head = part.head;
        let series = if head.number == 0 { self.begin_series(head)? } else { self.series.take()?.continued(head)? };
        series.add_items(part, self.up_to)?;
        if !head.is_last {
            self.series = Some(series);
        } else if series.open.tree.counts.restore(series.counts) {
            crate::coverage::mark!("an opening restored counts");
            self.restored_count += 1;
        }
        Some(())
    }

    fn begin_series(&mut self, head: PartHead) -> Option<Series> {
        let open = self.unread.remove(&head.keyspace)?;
        if head.base > self.up_to || !open.tree.pages.runs.is_empty() {
            return None;
        }
        let counts = RestoredCounts::new(head.base, self.horizon, self.budget, open.tree.pages.table.number_end())?;
        Some(Series { open, counts, newest: head })
    }
}

impl Series {
    /// Returns the series if `head` is the head of its next part.
    fn continued(self, head: PartHead) -> Option<Series> {
        let PartHead { is_last, kind, .. } = head;
        let number = self.newest.number.checked_add(1)?;
        (head == PartHead { number, is_last, kind, ..self.newest }).then_some(Series { newest: head, ..self })
    }

    fn add_items(&self, part: &Part<'_>, up_to: Timestamp) -> Option<()> {
        let mut count = 0;
        let is_possible = |change: &ListedChange<'_>| change.timestamp > Timestamp(0) && change.timestamp <= up_to;
        let fits = self.counts.add_changes(part.changes().take_while(is_possible).map(|change| {
            count += 1;
            (change.key, change.timestamp, change.is_insert)
        }));
        if !fits {
            return None;
        }
        let number_end = self.open.tree.pages.table.number_end();
        for (page, rows) in part.entries() {
            if u64::from(page.0) >= number_end || !self.counts.add_entry(page, rows) {
                return None;
            }
            count += 1;
        }
        (count == part.count).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::io::{Backend, OpenOptions, Persist};
    use crate::{Config, Database, Durability};

    fn config(backend: &Arc<dyn Backend>) -> Config {
        let config = Config::new().memory(128 << 20).page_bytes(512).log_segment_bytes(1 << 20);
        config.durability(Durability::Relaxed).backend(Arc::clone(backend))
    }

    fn key(number: u64) -> [u8; 8] {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
    }

    /// Returns a copy of the files, as a killed process would leave them.
    fn killed(backend: &Arc<dyn Backend>) -> Arc<dyn Backend> {
        let copy = crate::io::in_memory();
        copy.create_dir_all(Path::new("/db/log")).unwrap();
        for path in ["/db", "/db/log"].iter().flat_map(|folder| backend.list(Path::new(folder)).unwrap()) {
            let Ok(file) = backend.open(&path, OpenOptions::default()) else { continue };
            let mut bytes = vec![0; file.len().unwrap() as usize];
            file.read_at(&mut bytes, 0).unwrap();
            let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
            let file = copy.open(&path, options).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
            file.write_at(&bytes, 0, Persist::Later).unwrap();
        }
        copy
    }

    /// Opens a database, counts its rows, and makes a checkpoint.
    fn counted(backend: &Arc<dyn Backend>, rows: u64) -> Database {
        let db = config(backend).open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        (0..rows).for_each(|number| k.insert(key(number), [1; 40]).unwrap());
        assert_eq!(k.len().unwrap(), rows);
        db.checkpoint().unwrap();
        db
    }

    /// Captures the counts of the newest checkpoint, calls `meanwhile`, and writes the counts.
    fn write_during(db: &Database, meanwhile: impl FnOnce()) {
        let store = db.store().unwrap();
        let captured: CapturedCounts = {
            let _epoch_guard = store.engine.space.epoch_latch.exclusive();
            let tree = &store.keyspace("k").unwrap().tree;
            vec![(tree.pages.id, tree.counts.capture_again(tree.pages.table.number_end()).unwrap())]
        };
        meanwhile();
        let Superblock { checkpoint: number, checkpoint_id: id, timestamp, .. } = store.page_tables.lock().superblock;
        store.write_counts(captured, CountedCheckpoint { number, id, timestamp });
    }

    /// Compares counts after recovery with a full scan. `has_counts` says whether the opening should restore counts.
    fn compare(backend: &Arc<dyn Backend>, has_counts: bool) {
        let killed = killed(backend);
        let db = config(&killed).open("/db").unwrap();
        let k = db.existing_keyspace("k").unwrap();
        let tree = &db.store().unwrap().keyspace("k").unwrap().tree;
        assert_eq!(tree.counts.kept().is_some(), has_counts);
        assert_eq!(k.len().unwrap(), k.iter().keys().count() as u64);
        for number in 0..300 {
            let range = key(number)..;
            assert_eq!(k.count(range.clone()).unwrap(), k.range(range).keys().count() as u64, "from {number}");
        }
    }

    /// While counts are written, commits split and merge leaves, and pages are recounted. The file still has the counts
    /// as of the checkpoint, except for pages marked as changed. The commits undid their own row changes, so replay
    /// neither splits nor merges any page.
    #[test]
    fn counts_are_written_during_splits_and_merges() {
        let backend = crate::io::in_memory();
        let db = counted(&backend, 4000);
        let k = db.keyspace("k").unwrap();
        // A count of all rows would stop at the inner nodes, whose counts are known.
        let count_leaves = || (0..2000).map(|number| k.count(key(number)..).unwrap()).max();
        write_during(&db, || {
            (4000..4400).for_each(|number| k.insert(key(number), [2; 40]).unwrap());
            count_leaves();
            (4000..4400).for_each(|number| k.remove(key(number)).unwrap());
            let neighbours: Vec<_> = k.iter().keys().take(800).map(Result::unwrap).collect();
            neighbours.iter().for_each(|key| k.remove(key).unwrap());
            count_leaves();
            neighbours.iter().for_each(|key| k.insert(key, [1; 40]).unwrap());
            count_leaves();
            assert_eq!(k.len().unwrap(), 4000);
        });
        compare(&backend, true);
    }

    /// While counts are written, no changes are folded, and the file does not include commits after the checkpoint.
    #[test]
    fn nothing_is_folded_while_counts_are_written() {
        let backend = crate::io::in_memory();
        let db = counted(&backend, 4000);
        let k = db.keyspace("k").unwrap();
        write_during(&db, || {
            for round in 0..4 {
                // Change rows within the same leaves, so that no leaf is split.
                (0..1000).for_each(|number| k.remove(key(number * 4 + round)).unwrap());
                k.len().unwrap();
            }
            (0..4000).filter(|number| number % 5 > 0).for_each(|number| k.insert(key(number), [1; 40]).unwrap());
            k.len().unwrap();
        });
        compare(&backend, true);
    }

    /// A keyspace is left out of the file if more pages change their fences than the capture can record, or if its
    /// counts end.
    #[test]
    fn counts_that_are_not_whole_are_left_out() {
        let backend = crate::io::in_memory();
        let db = counted(&backend, 4000);
        let k = db.keyspace("k").unwrap();
        write_during(&db, || (4000..40_000).for_each(|number| k.insert(key(number), [2; 40]).unwrap()));
        let store = db.store().unwrap();
        let has_counts = || {
            let Superblock { checkpoint, checkpoint_id: id, .. } = store.page_tables.lock().superblock;
            let mut has_counts = false;
            let read = store.counts_files.read(name_of(checkpoint), id, |part| {
                has_counts = part.head.is_last;
                Ok(true)
            });
            read.unwrap();
            has_counts
        };
        assert!(!has_counts());
        compare(&backend, false);
        assert_eq!(k.len().unwrap(), 40_000);
        db.checkpoint().unwrap();
        assert!(has_counts());
        let tree = &store.keyspace("k").unwrap().tree;
        write_during(&db, || tree.counts.discard());
        assert!(!has_counts());
        compare(&backend, false);
    }
}
