//! Makes checkpoints and defines the order of their steps. ARCHITECTURE.md ("The life of a checkpoint") lists the
//! steps, and a test compares that list with the calls here. No step reclaims space: `reclaim` combines reclaiming with
//! checkpoints.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::kept_counts::CountedCheckpoint;
use super::state::Store;
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::space::checkpoint::PageTableStore;
use crate::space::{Purpose, Reclaims};
use crate::sync::MutexGuard;

/// The result of a checkpoint.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let report = db.checkpoint()?;
/// println!("{} pages written in {:?}", report.pages_written, report.duration);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// The newest commit that the checkpoint includes.
    pub timestamp: Timestamp,
    /// The number of pages written for the checkpoint.
    pub pages_written: u64,
    /// The number of bytes written for the checkpoint, including its tables.
    pub bytes_written: u64,
    /// The time that the checkpoint took. Commits continued during it.
    pub duration: Duration,
}

/// The time that a checkpoint rests after writing a few pages.
const REST: Duration = Duration::from_millis(1);

impl Store {
    /// Makes a checkpoint if there is space for it, or else returns `DiskFull`. A checkpoint that frees no segment must
    /// leave one free, because otherwise no later checkpoint could be made. `frees` says whether segments were emptied,
    /// so that this checkpoint will free them.
    pub(crate) fn checkpoint_after(&self, frees: Reclaims) -> Result<CheckpointReport> {
        let _urgent = self.engine.space.share.urgent();
        self.checkpoint_of(&mut self.lock_page_tables(), frees)
    }

    /// Like [`checkpoint_after`](Self::checkpoint_after), for a caller that has locked `page_tables`. While no thread
    /// waits for background work, the checkpoint rests between pages.
    pub(crate) fn checkpoint_of(&self, page_tables: &mut PageTableStore, frees: Reclaims) -> Result<CheckpointReport> {
        self.prepare_checkpoint(page_tables, frees)?;
        let began = self.now();
        let result = self.make_checkpoint(page_tables, began);
        if let Err(error) = &result {
            // Once a checkpoint has begun, a failure is final: some pages are already marked clean, but no table refers
            // to their images.
            self.engine.space.fail_quietly(&format!("a checkpoint failed: {error}"));
            self.maintenance.state.lock().failed = true;
            self.maintenance.changed.notify_all();
        } else if self.engine.space.unfreed_pages() > 0 {
            self.maintenance.ask();
        }
        result
    }

    /// Performs the steps that can fail without harm, because the checkpoint has not begun.
    fn prepare_checkpoint(&self, page_tables: &PageTableStore, frees: Reclaims) -> Result<()> {
        let engine = &self.engine;
        engine.check_failure()?;
        // The pages of dropped keyspaces need not be written.
        self.free_dropped()?;
        // This checkpoint frees removed large values that no reader needs, as many as the memory for page-table changes
        // allows.
        engine.collect_all_garbage();
        let frees = if engine.space.segments.has_released() { Reclaims::Segments } else { frees };
        let kept_bytes = page_tables.kept_bytes_max(&engine.space);
        let reserve = || engine.space.reserve(Purpose::Checkpoint(frees), kept_bytes).map(drop);
        match reserve() {
            Err(Error::DiskFull { .. }) => {
                // The reservation assumes that dirty pages have their full size. Once compressed and written, they may
                // be much smaller.
                crate::coverage::mark!("dirty pages were written to find space for a checkpoint");
                engine.pool.write_back_all(frees)?;
                reserve()?;
            }
            reserved => reserved?,
        }
        engine.space.begin_segment()
    }

    fn make_checkpoint(&self, page_tables: &mut PageTableStore, began: Duration) -> Result<CheckpointReport> {
        let engine = &self.engine;
        let space = &engine.space;
        let written_before = space.traffic.write_bytes.load(Ordering::Relaxed);
        // Count log bytes from here on, so that commits made during this checkpoint do not immediately request another.
        engine.log_bytes_checkpointed.store(engine.log_bytes_written(), Ordering::Relaxed);
        // At the end of the epoch, close the segment that large values are appended to. An open segment could never be
        // emptied.
        space.seal_values();
        let corrupted_chunks = page_tables.corrupted_chunks();
        let id = self.draw_checkpoint_id();
        let (epoch, (timestamp, mut catalogue, corrupted_chunks, counts)) = space.begin_checkpoint(|_| {
            let corrupted_chunks = engine.pool.addresses_in(&corrupted_chunks);
            (engine.log().last(), self.catalogue(), corrupted_chunks, self.capture_counts())
        });
        engine.free_waiting_values();
        self.maintenance.announce_checkpoint();
        let number = page_tables.superblock.checkpoint.next();
        self.write_counts(counts, CountedCheckpoint { number, id, timestamp });
        let pages_written = engine.pool.write_epoch(epoch, |done| self.rest_ahead_of_log(done))?;
        page_tables.append_summaries(space, epoch, corrupted_chunks)?;
        page_tables.keep_snapshots(space, epoch, timestamp, &mut catalogue)?;
        page_tables.write_segment_table(space, epoch)?;
        let catalogue_bytes = page_tables.write_catalogue(space, epoch, catalogue)?;
        space.seal(epoch);
        space.wait_for_jobs(engine.pool.on_written())?;
        space.sync()?;
        engine.wait_durable(timestamp)?;
        self.keep_changes(timestamp);
        page_tables.cover(epoch, timestamp, catalogue_bytes, id);
        page_tables.write_superblock(space)?;
        page_tables.settle(space, epoch);
        engine.log().truncate(timestamp, page_tables.superblock.checkpoint);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        // Page tables may have grown, and may need memory that reducer states occupy.
        self.shed_states();
        self.warm_start.count_written(pages_written);
        let duration = self.now() - began;
        let bytes_written = space.traffic.write_bytes.load(Ordering::Relaxed) - written_before;
        log::debug!("checkpoint at {timestamp}: {pages_written} pages, {bytes_written} bytes, {duration:?}");
        Ok(CheckpointReport { timestamp, pages_written, bytes_written, duration })
    }

    /// Rests for a moment, so that commits have the processor and the drive. Doesn't if the checkpoint, of which the
    /// share `done` is written, would not be finished by the time that half of the log until the next one is, if a
    /// thread waits for it, or if it should free memory.
    fn rest_ahead_of_log(&self, done: f64) {
        let begun = self.engine.log_bytes_checkpointed.load(Ordering::Relaxed);
        let since_bytes = self.engine.log_bytes_written().saturating_sub(begun);
        let is_ahead = done >= 2.0 * since_bytes as f64 / self.checkpoint_log_bytes as f64;
        if is_ahead && !self.is_checkpoint_awaited() && !self.engine.pool.has_many_copies() {
            crate::coverage::mark!("a checkpoint rested");
            crate::sync::park_timeout(REST);
        }
    }

    /// Locks the page tables. Waits for a running checkpoint, which does not rest as long as a thread waits for it.
    pub(super) fn lock_page_tables(&self) -> MutexGuard<'_, PageTableStore> {
        let _urgent = self.engine.space.share.urgent();
        self.page_tables.lock()
    }

    /// Returns `true` if a thread waits for a checkpoint to end, or if the next one is already due.
    fn is_checkpoint_awaited(&self) -> bool {
        let state = self.maintenance.state.lock();
        self.engine.space.share.is_urgent() || state.is_wanted() || state.is_paused
    }
}

impl Store {
    /// Makes the commits that a checkpoint covers durable in change files and archive files, if the database has these.
    fn keep_changes(&self, covered: Timestamp) {
        if let Some(feed) = &self.feed {
            feed.keep_up_to(self.engine.log(), covered);
        }
        if let Some(archiver) = &self.archiver {
            archiver.keep_up_to(self.engine.log(), covered);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use crate::io::fault::{FaultyBackend, Operation};
    use crate::space::Reclaims;
    use crate::{Config, Durability};

    /// A checkpoint takes a segment to write to before it begins. Once it has one, commits may use the free segments.
    #[test]
    fn a_checkpoint_begins_with_a_segment() {
        let db = Config::new().backend(crate::io::in_memory()).memory(16 << 20).open("/db").unwrap();
        db.keyspace("k").unwrap();
        db.checkpoint().unwrap();
        let store = db.store().unwrap();
        assert_eq!(store.engine.space.open_segment_bytes(), 0, "the one before left its segment open");
        store.prepare_checkpoint(&store.page_tables.lock(), Reclaims::Nothing).unwrap();
        assert!(store.engine.space.open_segment_bytes() > 0);
    }

    /// A checkpoint captures counts only until they are written. During its syncs, changes are folded as usual.
    #[test]
    fn changes_are_folded_while_a_checkpoint_syncs() {
        const ROWS: u64 = 5_000;
        let backend = Arc::new(FaultyBackend::new(crate::io::in_memory()));
        let config = Config::new().backend(backend.clone()).memory(16 << 20).durability(Durability::Relaxed);
        let db = config.page_bytes(512).open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        (0..ROWS).for_each(|row| k.insert(row.to_be_bytes(), "").unwrap());
        assert_eq!(k.len().unwrap(), ROWS);
        k.insert("a change to fold", "").unwrap();
        let kept = db.store().unwrap().keyspaces.get("k").unwrap().tree.counts.kept().expect("they are kept");
        let is_data = |path: &Path, _| path.file_name().is_some_and(|name| name == "data");
        backend.hold_nth_at(Operation::Sync, 1, is_data);
        std::thread::scope(|scope| {
            let checkpoint = scope.spawn(|| db.checkpoint().unwrap());
            assert!(backend.wait_for_held(Duration::from_secs(60)), "the checkpoint syncs nothing");
            let can_fold = kept.wants_fold(0).is_some();
            backend.release();
            checkpoint.join().unwrap();
            assert!(can_fold, "counts are captured for the whole of a checkpoint");
        });
    }

    /// Commits that change what a checkpoint has still to write copy it, and don't wait for its writes.
    #[test]
    fn commits_do_not_wait_for_the_writes_of_a_checkpoint() {
        const ROWS: u32 = 6_000;
        let backend = Arc::new(FaultyBackend::new(crate::io::in_memory()));
        let config = || Config::new().backend(backend.clone()).memory(64 << 20).durability(Durability::Relaxed);
        let db = config().open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        let mut random = drumlin_testing::Random(1);
        let values: Vec<_> = (0..ROWS).map(|_| random.bytes(1000)).collect();
        (0..ROWS).for_each(|row| k.insert(row.to_be_bytes(), &values[row as usize]).unwrap());
        let timestamp = std::thread::scope(|scope| {
            backend.hold_nth_at(Operation::Write, 1, |path: &Path, _| path.ends_with("data"));
            let checkpoint = scope.spawn(|| db.checkpoint().unwrap());
            assert!(backend.wait_for_held(Duration::from_secs(60)), "the checkpoint writes nothing");
            let (sender, done) = std::sync::mpsc::channel();
            let k = &k;
            scope.spawn(move || {
                (0..ROWS).for_each(|row| k.insert(row.to_be_bytes(), "changed").unwrap());
                sender.send(()).unwrap();
            });
            let are_made = done.recv_timeout(Duration::from_secs(60));
            backend.release();
            assert_eq!(are_made, Ok(()), "commits waited for a checkpoint whose writes were held");
            checkpoint.join().unwrap().timestamp
        });
        assert_eq!(timestamp.0, u64::from(ROWS) + 1, "the checkpoint began at another commit");
        assert!(db.check().unwrap().corruption.is_empty());
        db.close().unwrap();
        let db = config().open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        (0..ROWS).for_each(|row| assert_eq!(k.get(row.to_be_bytes()).unwrap().as_deref(), Some(&b"changed"[..])));
    }

    /// A keyspace is dropped after a commit has copied its leaf for the running checkpoint, which still includes it.
    #[test]
    fn a_dropped_leaf_that_was_copied_is_written() {
        let db = Config::in_memory().memory(16 << 20).durability(Durability::Relaxed).open("").unwrap();
        let k = db.keyspace("k").unwrap();
        (0..500u32).for_each(|row| k.insert(row.to_be_bytes(), [7; 100]).unwrap());
        let store = db.store().unwrap();
        let (epoch, ()) = store.engine.space.begin_checkpoint(|_| ());
        (0..500u32).for_each(|row| k.insert(row.to_be_bytes(), [8; 100]).unwrap());
        db.drop_keyspace("k").unwrap();
        store.free_dropped().unwrap();
        store.engine.pool.write_epoch(epoch, |_| ()).unwrap();
        assert!(db.stats().failed.is_none(), "{:?}", db.stats().failed);
        store.engine.space.fail_quietly("its checkpoint has no end");
    }

    /// A checkpoint that includes a drop, but not the freeing of the keyspace's pages, writes none of these pages, and
    /// the space of all of them is free at the next opening.
    #[test]
    fn pages_that_were_not_freed_are_free_at_the_next_opening() {
        let backend = Arc::new(FaultyBackend::new(crate::io::in_memory()));
        let config = Config::new().backend(backend.clone()).memory(16 << 20).durability(Durability::Relaxed);
        let db = config.page_bytes(512).open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        (0..2000u32).for_each(|row| k.insert(row.to_be_bytes(), [7; 50]).unwrap());
        k.insert("large", drumlin_testing::Random(1).bytes(300_000)).unwrap();
        db.checkpoint().unwrap();
        (0..2000u32).step_by(3).for_each(|row| k.insert(row.to_be_bytes(), [8; 50]).unwrap());
        let store = db.store().unwrap();
        store.prepare_checkpoint(&store.page_tables.lock(), Reclaims::Nothing).unwrap();
        let freeing = store.keyspaces.hold_freeing();
        db.drop_keyspace("k").unwrap();
        let mut page_tables = store.page_tables.lock();
        let report = store.make_checkpoint(&mut page_tables, store.now()).unwrap();
        assert!(report.pages_written < 5, "{} pages were written", report.pages_written);
        let live_bytes = db.stats().live_bytes;
        assert!(live_bytes > 300_000, "pages were freed");
        drop((page_tables, freeing));
        // Closing makes no other checkpoint, so the disk stays as it is.
        db.close().unwrap();
        let db = Config::new().backend(backend).memory(16 << 20).open("/db").unwrap();
        let live_bytes = db.stats().live_bytes;
        assert!(live_bytes < 100_000, "{live_bytes} bytes are live");
        assert!(db.check().unwrap().corruption.is_empty());
    }
}
