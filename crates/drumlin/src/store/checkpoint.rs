//! Making checkpoints: the order of their steps. ARCHITECTURE.md ("The life of a checkpoint") lists them, and a test
//! compares the list with the calls here.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Store;
use super::kept_counts::CountedCheckpoint;
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::space::checkpoint::PageTableStore;
use crate::space::{Frees, Purpose};

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
    /// The state that it holds is that after this commit.
    pub timestamp: Timestamp,
    /// Pages written for it.
    pub pages_written: u64,
    /// Bytes written for it, tables included.
    pub bytes_written: u64,
    /// The time that it took. Commits went on meanwhile.
    pub duration: Duration,
}

impl Store {
    /// Makes the state of this moment durable in its place; on a full disk it empties sparse segments too.
    pub(crate) fn checkpoint(&self) -> Result<CheckpointReport> {
        let made = match self.checkpoint_after(Frees::Nothing) {
            Err(Error::DiskFull { .. }) => self.make_space(),
            other => other,
        };
        self.maintenance.note_checkpoint();
        made
    }

    /// Makes a checkpoint if there is space for it; else `DiskFull`. One that frees no segment must not take the last
    /// that are free, or there would be none for any other: `frees` tells if segments were emptied for it.
    pub(crate) fn checkpoint_after(&self, frees: Frees) -> Result<CheckpointReport> {
        self.checkpoint_of(&mut self.page_tables.lock(), frees)
    }

    /// Like [`checkpoint_after`](Self::checkpoint_after), for a caller that has locked `page_tables`.
    pub(crate) fn checkpoint_of(&self, page_tables: &mut PageTableStore, frees: Frees) -> Result<CheckpointReport> {
        self.prepare_checkpoint(frees)?;
        let began = self.now();
        let result = self.make_checkpoint(page_tables, began);
        if let Err(error) = &result {
            // A checkpoint that has begun can't be resumed: pages are clean whose images no table names.
            self.engine.space.fail_quietly(&format!("a checkpoint failed: {error}"));
            self.maintenance.state.lock().failed = true;
            self.maintenance.changed.notify_all();
        }
        result
    }

    /// All of a checkpoint that may be refused: nothing is changed by it.
    fn prepare_checkpoint(&self, frees: Frees) -> Result<()> {
        let engine = &self.engine;
        engine.check_failure()?;
        // Large values that were removed, and that no reader needs, are freed with this checkpoint.
        engine.collect_all_garbage();
        let frees = if engine.space.segments.has_released() { Frees::Segments } else { frees };
        let reserve = || engine.space.reserve(Purpose::Checkpoint(frees), 0).map(drop);
        match reserve() {
            Err(Error::DiskFull { .. }) => {
                // Pages count as whole frames until they are written, and may be much smaller then.
                crate::coverage::mark!("dirty pages were written for a checkpoint to find space");
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
        // From here on: commits beside this checkpoint do not ask for another at once.
        engine.log_bytes_checkpointed.store(engine.log_bytes_written(), Ordering::Relaxed);
        // The segment that large values are put into ends with the epoch, so that it can be emptied one day.
        space.seal_values();
        let corrupted_chunks = page_tables.corrupted_chunks();
        let id = self.draw_checkpoint_id();
        let (epoch, (timestamp, catalogue, corrupted_chunks, counts)) = space.begin_checkpoint(|_| {
            let corrupted_chunks = engine.pool.addresses_in(&corrupted_chunks);
            (engine.log().last(), self.catalogue(), corrupted_chunks, self.capture_counts())
        });
        self.maintenance.announce_checkpoint();
        let number = page_tables.superblock.checkpoint.next();
        self.write_counts(counts, CountedCheckpoint { number, id, timestamp });
        let pages_written = engine.pool.write_epoch(epoch)?;
        page_tables.append_summaries(space, epoch, corrupted_chunks)?;
        page_tables.write_segment_table(space, epoch)?;
        let catalogue_bytes = page_tables.write_catalogue(space, epoch, catalogue)?;
        space.seal(epoch);
        space.wait_for_jobs(engine.pool.on_written())?;
        space.sync()?;
        engine.wait_durable(timestamp)?;
        page_tables.cover(epoch, timestamp, catalogue_bytes, id);
        page_tables.write_superblock(space)?;
        page_tables.settle(space, epoch);
        engine.log().truncate(timestamp, page_tables.superblock.checkpoint);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        // Page tables may have grown.
        self.shed_states();
        self.warm_start.note_written(pages_written);
        let duration = self.now() - began;
        let bytes_written = space.traffic.write_bytes.load(Ordering::Relaxed) - written_before;
        log::debug!("checkpoint at {timestamp}: {pages_written} pages, {bytes_written} bytes, {duration:?}");
        Ok(CheckpointReport { timestamp, pages_written, bytes_written, duration })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use crate::io::fault::{FaultyBackend, Operation};
    use crate::space::Frees;
    use crate::{Config, Durability};

    /// A checkpoint has the segment that it writes to before it begins, after which others may take what is free.
    #[test]
    fn a_checkpoint_begins_with_a_segment() {
        let db = Config::new().backend(crate::io::in_memory()).memory(16 << 20).open("/db").unwrap();
        db.keyspace("k").unwrap();
        db.checkpoint().unwrap();
        let store = db.store().unwrap();
        assert_eq!(store.engine.space.room_bytes(), 0, "the one before left its segment open");
        store.prepare_checkpoint(Frees::Nothing).unwrap();
        assert!(store.engine.space.room_bytes() > 0);
    }

    /// A checkpoint captures counts until they are written, and no longer: changes are folded while it syncs.
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
}
