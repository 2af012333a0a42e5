//! Row counts beside checkpoints. Each checkpoint writes the counts that keyspaces keep to a file, and an opening that
//! begins with that checkpoint continues with them.
//!
//! There are two such files. A checkpoint writes to the file that the checkpoint before it did not use, so that the
//! counts of the newest durable checkpoint are complete whenever the process is killed. The counts are written as soon
//! as the checkpoint has begun, because no changes can be folded until then (`counts/capture.rs`), and before its
//! superblock: only the superblock makes them valid. If more pages were counted later, closing the database writes the
//! same file again.
//!
//! # Invariants
//! 1. A file of counts is advice: it is never synced. A file that is missing, torn, foreign or from another checkpoint
//!    is no error. A file is used completely or not at all.
//! 2. An opening uses counts only if it begins with exactly their checkpoint, and reads them before it replays any
//!    record of the log. Replay inserts, removes, splits and merges as commits do, so it adds its changes to the list
//!    and invalidates the entries that it must.
//!
//! # Why a file is never taken for another checkpoint's
//! Each checkpoint draws a random [`CheckpointId`], which is stored in its superblock and in its file of counts. If the
//! two match, all pages, page tables and keyspaces are as of that checkpoint. So none of the following matters: which
//! of the two superblocks is valid; whether an earlier opening began a checkpoint with the same number that never
//! became durable; whether the database is one of two copies that diverged, or was restored from a backup beside a
//! newer file. Pages keep their numbers, even if the reclaimer has moved their extents. All parts of a file carry a
//! random number drawn when it was written. The head states how many parts there are, and is written last. So parts of
//! two writings are never mixed, not even for the same checkpoint.
//!
//! - *A database that opens without writing* begins with the same superblock, and so with the same file. Closing it may
//!   write the file again if no commit has followed the checkpoint: then no page has changed its fences.
//! - *An opening by a program that does not know these files* makes checkpoints with another identity, or with none.
//! - *Bulk loads and drops above the checkpoint* are replayed: attaching and dropping end the counts of the keyspace.
//! - *Numbers of keyspaces* are those of the checkpoint's catalogue, and are never reused.
//! - *Page numbers* may be reused during replay: a newly created page begins with an entry of its own.
//! - *Timestamps in replay* are those of the last commit of a batch, and may be later than those of the changes. No
//!   snapshot is older than the last recovered commit, and the counts begin with that commit as their horizon.
//! - *A salvage opening* skips unreadable pages, so it uses no counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Store;
use super::advice;
use super::keyspaces::Keyspaces;
use crate::counts::capture::{CountCapture, RestoredCounts};
use crate::error::{Error, Result};
use crate::format::counts::{
    self, CountedKeyspace, CountsHead, CountsPart, ENTRY_BYTES, HEAD_BYTES, ITEMS_OFFSET, KEYSPACE_COUNT_MAX,
    ListedChange, PART_BYTES_MAX, PartBuffer, PartKind,
};
use crate::format::superblock::Superblock;
use crate::format::{CheckpointId, CheckpointNumber, CountsFileId, DatabaseId, KeyspaceId, PageId, Timestamp};
use crate::io::{FileRef, FolderRef, OpenOptions, Persist};
use crate::memory::{Account, Budget};

/// The two files. Checkpoints with even numbers use the first.
pub(super) const COUNTS_NAMES: [&str; 2] = ["counts-0", "counts-1"];

/// The maximum number of entries that fit in a part.
const PART_ENTRIES_MAX: usize = (PART_BYTES_MAX - ITEMS_OFFSET) / ENTRY_BYTES;

/// Memory for writing a file: one part, and the entries of one part.
const WRITING_BYTES: u64 = (PART_BYTES_MAX + PART_ENTRIES_MAX * size_of::<(PageId, u32)>()) as u64;

fn name_of(checkpoint: CheckpointNumber) -> &'static str {
    COUNTS_NAMES[(checkpoint.0 % 2) as usize]
}

/// The files of counts of an open database.
#[derive(Debug)]
pub(super) struct CountsFiles {
    is_on: AtomicBool,
    folder: FolderRef,
    database: DatabaseId,
}

impl CountsFiles {
    pub(super) fn new(is_on: bool, folder: FolderRef, database: DatabaseId) -> CountsFiles {
        CountsFiles { is_on: AtomicBool::new(is_on), folder, database }
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }
}

/// The checkpoint that counts belong to.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedCheckpoint {
    pub(super) number: CheckpointNumber,
    pub(super) id: CheckpointId,
    pub(super) timestamp: Timestamp,
}

/// The counts of keyspaces as of a checkpoint.
pub(super) type CapturedCounts = Vec<(KeyspaceId, CountCapture)>;

impl Store {
    /// Draws the identity of a checkpoint; none if no counts are written.
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

    /// Writes the captured counts, if there are any. Then ends their capture, so that changes are folded again.
    pub(super) fn write_counts(&self, captured: CapturedCounts, checkpoint: CountedCheckpoint) {
        if captured.is_empty() {
            return;
        }
        let CountsFiles { is_on, folder, .. } = &self.counts_files;
        let Some(file) = advice::open_or_turn_off(is_on, folder, name_of(checkpoint.number), counts::is_counts) else {
            return;
        };
        let written = self.try_write_counts(&file, &captured, checkpoint);
        drop(captured);
        match written {
            Ok(()) => crate::coverage::mark!("counts were written during a checkpoint"),
            Err(error) => log::debug!("writing counts of {}: {error}", self.path.display()),
        }
    }

    /// Writes the counts of the newest checkpoint again if it includes all commits and pages were counted after it was
    /// made. Closing calls this, when no more commits can happen.
    pub(super) fn write_counts_again(&self) {
        let page_tables = self.page_tables.lock();
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

    fn try_write_counts(&self, file: &FileRef, captured: &CapturedCounts, checkpoint: CountedCheckpoint) -> Result<()> {
        let io = |action, error| Error::io(action, file.path(), error);
        let mut memory = self.engine.budget.grant(Account::Copies);
        if !memory.resize(WRITING_BYTES) {
            return Err(Error::Invalid("readers use the memory that writing counts needs".into()));
        }
        let id = CountsFileId(self.engine.backend.random());
        let mut writing = Writing { file, id, buffer: PartBuffer::new(), offset: HEAD_BYTES as u64, index: 0 };
        let mut keyspaces = Vec::new();
        for (keyspace, capture) in captured.iter().take(KEYSPACE_COUNT_MAX) {
            let (offset, index) = (writing.offset, writing.index);
            let counted = writing.write(*keyspace, capture, checkpoint.timestamp);
            let counted = counted.map_err(|error| io("writing", error))?;
            if capture.is_whole() {
                keyspaces.push(counted);
            } else {
                crate::coverage::mark!("counts could not be captured during commits");
                (writing.offset, writing.index) = (offset, index);
            }
        }
        let head = CountsHead {
            database: self.counts_files.database,
            checkpoint: checkpoint.id,
            timestamp: checkpoint.timestamp,
            file: id,
            keyspaces,
        };
        writing.file.write_at(&head.encode(), 0, Persist::Later).map_err(|error| io("writing", error))?;
        writing.file.set_len(writing.offset).map_err(|error| io("cutting", error))
    }
}

/// The state of writing a file.
struct Writing<'f> {
    file: &'f FileRef,
    id: CountsFileId,
    buffer: PartBuffer,
    offset: u64,
    index: u32,
}

impl Writing<'_> {
    /// Appends the counts of a keyspace: its changes up to a commit, and its entries.
    fn write(&mut self, id: KeyspaceId, capture: &CountCapture, up_to: Timestamp) -> std::io::Result<CountedKeyspace> {
        let first_index = self.index;
        let mut counted =
            CountedKeyspace { id, part_count: 0, floor: capture.floor(), change_count: 0, entry_count: 0 };
        assert!(counted.floor <= up_to, "changes are folded that a checkpoint does not have");
        let mut next = Some(0);
        while let Some(first) = next {
            self.buffer.begin(PartKind::Changes);
            next = capture.changes(first, up_to, |key, timestamp, is_insert| {
                self.buffer.push_change(ListedChange { key, timestamp, is_insert })
            });
            counted.change_count += u64::from(self.buffer.count());
            self.write_part()?;
        }
        let mut entries = Vec::with_capacity(PART_ENTRIES_MAX);
        let mut next = Some(PageId::ROOT);
        while let Some(first) = next {
            entries.clear();
            next = capture.entries(first, PART_ENTRIES_MAX, &mut entries);
            self.buffer.begin(PartKind::Entries);
            let fits = entries.iter().all(|&(page, rows)| self.buffer.push_entry(page, rows));
            assert!(fits, "a part has no room for {} entries", entries.len());
            counted.entry_count += entries.len() as u64;
            self.write_part()?;
        }
        counted.part_count = self.index - first_index;
        Ok(counted)
    }

    fn write_part(&mut self) -> std::io::Result<()> {
        if self.buffer.count() > 0 {
            let part = self.buffer.seal(self.id, self.index);
            self.file.write_at(part, self.offset, Persist::Later)?;
            self.offset += part.len() as u64;
            self.index += 1;
        }
        Ok(())
    }
}

/// Restores the counts of the checkpoint that an opening begins with; `last` is the newest recovered commit. Nothing
/// has been replayed yet, and no other thread knows the keyspaces.
pub(super) fn restore_counts(
    folder: &FolderRef,
    superblock: &Superblock,
    keyspaces: &Keyspaces,
    last: Timestamp,
    budget: &Arc<Budget>,
) {
    if superblock.checkpoint_id == CheckpointId::default() {
        return;
    }
    let name = name_of(superblock.checkpoint);
    let Ok(file) = folder.open(name, OpenOptions::default()) else { return };
    let mut reading = Reading { file, buffer: Vec::new(), offset: 0 };
    let Some(restored) = reading.read(superblock, keyspaces, last, budget) else {
        crate::coverage::mark!("a file of counts was skipped");
        log::debug!("{name} is incomplete or belongs to another checkpoint: rows are counted again");
        return;
    };
    for (keyspace, counts) in restored {
        let open = keyspaces.get_by_id(keyspace).expect("looked up before");
        if open.tree.counts.restore(counts) {
            crate::coverage::mark!("an opening restored counts");
        }
    }
}

/// The state of reading a file.
struct Reading {
    file: FileRef,
    buffer: Vec<u8>,
    offset: u64,
}

impl Reading {
    /// Returns the counts in the file, or `None` if the file belongs to another checkpoint or is corrupted.
    fn read(
        &mut self,
        superblock: &Superblock,
        keyspaces: &Keyspaces,
        last: Timestamp,
        budget: &Arc<Budget>,
    ) -> Option<Vec<(KeyspaceId, RestoredCounts)>> {
        self.fill(HEAD_BYTES)?;
        let head = CountsHead::decode(&self.buffer)?;
        let is_of_checkpoint = head.database == superblock.database
            && head.checkpoint == superblock.checkpoint_id
            && head.timestamp == superblock.timestamp;
        if !is_of_checkpoint {
            return None;
        }
        self.offset = HEAD_BYTES as u64;
        let horizon = last.max(head.timestamp);
        let mut index = 0;
        let mut restored = Vec::with_capacity(head.keyspaces.len());
        for counted in &head.keyspaces {
            let number_end = keyspaces.get_by_id(counted.id)?.tree.pages.table.number_end();
            if counted.floor > head.timestamp {
                return None;
            }
            let counts = RestoredCounts::new(counted.floor, horizon, budget, number_end)?;
            let (mut change_count, mut entry_count) = (0, 0);
            for _ in 0..counted.part_count {
                let (changes, entries) = self.read_part(&head, index, &counts, number_end)?;
                change_count += changes;
                entry_count += entries;
                index = index.checked_add(1)?;
            }
            if (change_count, entry_count) != (counted.change_count, counted.entry_count) {
                return None;
            }
            restored.push((counted.id, counts));
        }
        Some(restored)
    }

    /// Reads the next part. Returns the numbers of changes and entries in it.
    fn read_part(
        &mut self,
        head: &CountsHead,
        index: u32,
        counts: &RestoredCounts,
        number_end: u64,
    ) -> Option<(u64, u64)> {
        self.fill(PART_BYTES_MAX)?;
        let part = CountsPart::decode(head.file, index, &self.buffer)?;
        let (mut change_count, mut entry_count) = (0, 0);
        let is_possible =
            |change: &ListedChange<'_>| change.timestamp > Timestamp(0) && change.timestamp <= head.timestamp;
        let fits = counts.add_changes(part.changes().take_while(is_possible).map(|change| {
            change_count += 1;
            (change.key, change.timestamp, change.is_insert)
        }));
        if !fits {
            return None;
        }
        for (page, rows) in part.entries() {
            if u64::from(page.0) >= number_end || !counts.add_entry(page, rows) {
                return None;
            }
            entry_count += 1;
        }
        self.offset += part.bytes as u64;
        (change_count + entry_count == part.count as u64).then_some((change_count, entry_count))
    }

    /// Reads `bytes` bytes, or the rest of the file if it is shorter.
    fn fill(&mut self, bytes: usize) -> Option<()> {
        self.buffer.resize(bytes, 0);
        let length = self.file.read_up_to(&mut self.buffer, self.offset).ok()?;
        self.buffer.truncate(length);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::io::Backend;
    use crate::{Config, Database, Durability};

    fn config(backend: &Arc<dyn Backend>) -> Config {
        let config = Config::new().memory(128 << 20).page_bytes(512).log_segment_bytes(1 << 20);
        config.durability(Durability::Relaxed).backend(Arc::clone(backend))
    }

    fn key(number: u64) -> [u8; 8] {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
    }

    /// Returns a copy of the files as a killed process leaves them.
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

    /// Opens a database whose counts are known, and makes a checkpoint.
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

    /// Compares counts after recovery with a full scan, whether or not the opening restored counts.
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

    /// While counts are written, commits split and merge leaves, and pages are counted again. The file still has the
    /// counts as of the checkpoint, except those of pages noted as changed. The commits undid their changes to rows, so
    /// replay neither splits nor merges any page.
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

    /// While counts are written, nothing is folded, and commits after the checkpoint do not enter the file.
    #[test]
    fn nothing_is_folded_while_counts_are_written() {
        let backend = crate::io::in_memory();
        let db = counted(&backend, 4000);
        let k = db.keyspace("k").unwrap();
        write_during(&db, || {
            for round in 0..4 {
                // Change rows within the same leaves, so that none is split.
                (0..1000).for_each(|number| k.remove(key(number * 4 + round)).unwrap());
                k.len().unwrap();
            }
            (0..4000).filter(|number| number % 5 > 0).for_each(|number| k.insert(key(number), [1; 40]).unwrap());
            k.len().unwrap();
        });
        compare(&backend, true);
    }

    /// A keyspace is left out of the file if more pages change their fences than can be noted, or if its counts end.
    #[test]
    fn counts_that_are_not_whole_are_left_out() {
        let backend = crate::io::in_memory();
        let db = counted(&backend, 4000);
        let k = db.keyspace("k").unwrap();
        write_during(&db, || (4000..40_000).for_each(|number| k.insert(key(number), [2; 40]).unwrap()));
        let store = db.store().unwrap();
        let head = || {
            let name = name_of(store.page_tables.lock().superblock.checkpoint);
            let file = store.counts_files.folder.open(name, OpenOptions::default()).unwrap();
            let mut block = vec![0; HEAD_BYTES];
            file.read_at(&mut block, 0).unwrap();
            CountsHead::decode(&block).unwrap()
        };
        assert_eq!(head().keyspaces, []);
        compare(&backend, false);
        assert_eq!(k.len().unwrap(), 40_000);
        db.checkpoint().unwrap();
        assert_eq!(head().keyspaces.len(), 1);
        let tree = &store.keyspace("k").unwrap().tree;
        write_during(&db, || tree.counts.discard());
        assert_eq!(head().keyspaces, []);
        compare(&backend, false);
    }
}
