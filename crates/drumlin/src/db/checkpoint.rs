//! Checkpoints, and the thread that makes them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::core::{Core, Upkeep};
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::space::checkpoint::{Base, Cut};

/// What a checkpoint did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// The state that it holds is that after this commit.
    pub timestamp: Timestamp,
    /// Pages written for it.
    pub pages_written: u64,
    /// Bytes written for it, tables included.
    pub bytes_written: u64,
    /// How long it took. Commits went on meanwhile.
    pub duration: Duration,
}

impl Core {
    /// Makes the state of this moment durable in its place; on a full disk it empties sparse segments too.
    pub(crate) fn checkpoint(&self) -> Result<CheckpointReport> {
        match self.checkpoint_after(false) {
            Err(Error::DiskFull { .. }) => self.make_space(),
            other => other,
        }
    }

    /// Makes a checkpoint if there is space for it; else `DiskFull`. One that frees no segment must not take the last that
    /// are free, or there would be none for any other: `has_emptied` says that segments were emptied for it.
    pub(crate) fn checkpoint_after(&self, has_emptied: bool) -> Result<CheckpointReport> {
        self.checkpoint_of(&mut self.base.lock(), has_emptied)
    }

    /// The same, by whoever has the base.
    pub(crate) fn checkpoint_of(&self, base: &mut Base, has_emptied: bool) -> Result<CheckpointReport> {
        self.prepare_checkpoint(has_emptied)?;
        let began = self.now();
        let result = self.make_checkpoint(base, began);
        if let Err(error) = &result {
            // What the cut began can't be taken up again: pages are clean whose images no table names.
            self.engine.space.fail_quietly(&format!("a checkpoint failed: {error}"));
        }
        if result.is_err() {
            self.upkeep.state.lock().failed = true;
            self.upkeep.changed.notify_all();
        }
        result
    }

    /// All of a checkpoint that may be refused: nothing is changed by it.
    fn prepare_checkpoint(&self, has_emptied: bool) -> Result<()> {
        self.engine.check_failure()?;
        let frees = has_emptied || self.engine.space.segments.has_released();
        self.engine.secure_checkpoint(frees)?;
        self.engine.space.begin_segment()
    }

    fn make_checkpoint(&self, base: &mut Base, began: Duration) -> Result<CheckpointReport> {
        let engine = &self.engine;
        let space = &engine.space;
        let written_before = space.traffic.write_bytes.load(Ordering::Relaxed);
        // From here on: commits beside this checkpoint do not ask for another at once.
        engine.log_bytes_checkpointed.store(engine.log_bytes_written.load(Ordering::Relaxed), Ordering::Relaxed);
        // The segment that large values are put into ends with the epoch, so that it can be emptied one day.
        space.seal_values();
        let damaged_chunks = base.damaged_chunks();
        let (epoch, (timestamp, catalogue, damaged_chunks)) =
            space.cut(|_| (engine.log().last(), self.catalogue(), engine.pool.places_in(&damaged_chunks)));
        let pages_written = engine.pool.write_epoch(epoch)?;
        let cut = Cut { epoch, timestamp, catalogue, damaged_chunks };
        base.complete(space, cut, engine.pool.on_written(), || engine.wait_durable(timestamp))?;
        engine.log().truncate(timestamp, base.superblock.checkpoint);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.fit_frames();
        let duration = self.now() - began;
        let bytes_written = space.traffic.write_bytes.load(Ordering::Relaxed) - written_before;
        log::debug!("checkpoint at {timestamp}: {pages_written} pages, {bytes_written} bytes, {duration:?}");
        Ok(CheckpointReport { timestamp, pages_written, bytes_written, duration })
    }
}

/// Makes checkpoints, and space, when asked, and empties sparse segments behind them; the body of a thread.
pub(crate) fn run_upkeep(core: &Weak<Core>, upkeep: &Arc<Upkeep>) {
    loop {
        let space_wanted = {
            let mut state = upkeep.state.lock();
            while !state.wanted && !state.space_wanted && !state.stop {
                upkeep.changed.wait(&mut state);
            }
            if state.stop {
                return;
            }
            state.wanted = false;
            state.space_begun += u64::from(state.space_wanted);
            std::mem::take(&mut state.space_wanted)
        };
        let Some(core) = core.upgrade() else { return };
        let done =
            if space_wanted { core.make_space().map(drop) } else { core.checkpoint().and_then(|_| core.clean_up()) };
        match &done {
            // Whoever needs the space is told.
            Err(error @ Error::DiskFull { .. }) => log::debug!("upkeep of {}: {error}", core.path.display()),
            Err(error) => log::error!("upkeep of {}: {error}", core.path.display()),
            Ok(()) => {}
        }
        // A disk that is full for the cleaner may not be full for ever; a failed database makes no checkpoint any more.
        let failed = done.is_err() && core.engine.check_failure().is_err();
        let mut state = upkeep.state.lock();
        state.space_ended += u64::from(space_wanted);
        state.failed |= failed;
        drop(state);
        upkeep.changed.notify_all();
        if failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    /// A checkpoint has the segment that it writes to before its cut, after which others may take what is free.
    #[test]
    fn a_checkpoint_begins_with_a_segment() {
        let db = Config::new().backend(crate::io::in_memory()).memory(16 << 20).open("/db").unwrap();
        db.keyspace("k").unwrap();
        db.checkpoint().unwrap();
        let core = db.core().unwrap();
        assert_eq!(core.engine.space.room_bytes(), 0, "the one before left its segment open");
        core.prepare_checkpoint(false).unwrap();
        assert!(core.engine.space.room_bytes() > 0);
    }
}
