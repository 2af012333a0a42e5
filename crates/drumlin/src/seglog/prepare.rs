//! Preparing segments ahead of need, and removing those that nobody needs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

use super::Shared;
use super::segment::{self, BLOCK, FIRST_FILL_BYTES, Segment, Spare};
use super::stream::{Preparation, Window};
use crate::format::log::SegmentHeader;

/// Zeros written between two syncs while a segment in use is filled further.
const FILL_BYTES: u64 = 8 << 20;

/// Wakes the background threads.
#[derive(Debug, Default)]
pub(super) struct Signal {
    state: Mutex<Wanted>,
    prepare: Condvar,
    flush: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    prepare: bool,
    flush: Option<Urgency>,
    stop: bool,
}

/// How soon records are written that no thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum Urgency {
    /// Within [`GATHERING`]: nobody waits at all.
    Soon = 1,
    /// A task waits, or the buffer fills.
    Now = 2,
}

/// How long records that nobody waits for are gathered before they are written together. At 300,000 of them a second a
/// write for each moment at which none was in flight took a quarter of a processor.
const GATHERING: Duration = Duration::from_millis(1);

impl Signal {
    pub(super) fn prepare(&self) {
        self.state.lock().prepare = true;
        self.prepare.notify_one();
    }

    pub(super) fn flush(&self, urgency: Urgency) {
        let mut state = self.state.lock();
        state.flush = state.flush.max(Some(urgency));
        drop(state);
        self.flush.notify_one();
    }

    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.prepare.notify_one();
        self.flush.notify_one();
    }

    /// Sleeps until there is something to prepare; `false` when it is time to stop.
    pub(super) fn wait_prepare(&self) -> bool {
        let mut state = self.state.lock();
        self.prepare.wait_while(&mut state, |wanted| !wanted.prepare && !wanted.stop);
        state.prepare = false;
        !state.stop
    }

    /// Sleeps until something is to be flushed; `false` when it is time to stop.
    pub(super) fn wait_flush(&self) -> bool {
        let mut state = self.state.lock();
        self.flush.wait_while(&mut state, |wanted| wanted.flush.is_none() && !wanted.stop);
        while state.flush == Some(Urgency::Soon) && !state.stop {
            if self.flush.wait_for(&mut state, GATHERING).timed_out() {
                break;
            }
        }
        state.flush = None;
        !state.stop
    }
}

/// Whether an error means that there is no space, which may pass.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Shared {
    /// Prepares what the streams need, and removes what they don't.
    pub(super) fn prepare_all(&self) {
        let _alone = self.preparing.lock();
        for index in 0..self.streams.len() {
            while self.failure().is_none() && !self.is_closed() {
                let Some(preparation) = self.streams[index].tail.lock().preparation() else { break };
                match self.prepare(index, preparation) {
                    Ok(()) => self.streams[index].announce_space(),
                    Err(error) if is_full(&error) => {
                        log::warn!("no space for another log segment in {}: {error}", self.options.dir.display());
                        let mut tail = self.streams[index].tail.lock();
                        let was_full = std::mem::replace(&mut tail.full, true);
                        if !was_full && tail.free_spare(self.options.window_bytes()).is_some() {
                            continue;
                        }
                        tail.wanted = 0;
                        tail.prepare_failures += 1;
                        drop(tail);
                        self.streams[index].announce_space();
                        break;
                    }
                    Err(error) => {
                        self.fail(&format!(
                            "preparing a log segment in {} failed: {error}",
                            self.options.dir.display()
                        ));
                    }
                }
            }
        }
        self.remove_surplus();
    }

    /// Does one step. Called by one thread at a time.
    pub(super) fn prepare(&self, index: usize, preparation: Preparation) -> io::Result<()> {
        match preparation {
            Preparation::Fill => self.fill(index),
            Preparation::Window => self.prepare_window(index),
        }
    }

    /// Fills the newest window a little further.
    fn fill(&self, index: usize) -> io::Result<()> {
        let stream = &self.streams[index];
        let (segment, start) = {
            let tail = stream.tail.lock();
            let window = tail.windows.back().expect("a window is to be filled");
            (Arc::clone(&window.segment), window.ready)
        };
        let end = segment.end().min(start + FILL_BYTES);
        segment::write_zeros(&segment.file, segment.offset(start), segment.offset(end))?;
        segment.file.sync_data()?;
        if end == segment.end() {
            segment.set_filled(self.persist())?;
        }
        let mut tail = stream.tail.lock();
        let window = tail.windows.back_mut().expect("a window is being filled");
        assert_eq!(window.ready, start);
        window.ready = end;
        Ok(())
    }

    fn prepare_window(&self, index: usize) -> io::Result<()> {
        let stream = &self.streams[index];
        let (start, use_number, spare) = {
            let mut tail = stream.tail.lock();
            let use_number = tail.next_use;
            tail.next_use += 1;
            let window_bytes = self.options.window_bytes();
            let spare = match tail.free_spare(window_bytes) {
                Some(free) => tail.spares.swap_remove(free),
                None => {
                    let slot = tail.next_slot;
                    tail.next_slot += 1;
                    let path = segment::path(&self.options.dir, index as u16, slot);
                    Spare { path, slot, window_bytes, filled: false, held: None }
                }
            };
            (tail.prepared_end(), use_number, spare)
        };
        let header = SegmentHeader {
            stream: index as u16,
            slot: spare.slot,
            database: self.options.database,
            incarnation: self.incarnation,
            use_number,
            start,
            window_bytes: spare.window_bytes,
            first: self.horizon.last().next(),
            horizon: self.horizon.durable(),
            checkpoint: self.checkpoint.load(Ordering::SeqCst),
            filled: spare.filled,
        };
        let made = if spare.filled { self.recycle(&spare, header) } else { self.make(&spare, header) };
        let mut tail = stream.tail.lock();
        match made {
            Ok((segment, ready)) => {
                tail.windows.push_back(Window::new(segment, ready, header.window_bytes));
                tail.full = false;
                Ok(())
            }
            Err(error) => {
                if spare.filled {
                    tail.spares.push(spare);
                } else {
                    drop(tail);
                    // A file left half made would hold space that others need now; scanning would ignore it.
                    let _ = self.backend.remove(&spare.path);
                }
                Err(error)
            }
        }
    }

    /// Begins another use of a file that was filled before: one durable write.
    fn recycle(&self, spare: &Spare, header: SegmentHeader) -> io::Result<(Arc<Segment>, u64)> {
        crate::witness::mark!("a log segment was used again");
        let file = segment::open(self.backend.as_ref(), &spare.path, true, false)?;
        segment::write_header(&file, &header, self.persist())?;
        let segment = Segment::new(file, header);
        let ready = segment.end();
        Ok((segment, ready))
    }

    /// Makes a new file, of which the beginning is filled.
    fn make(&self, spare: &Spare, header: SegmentHeader) -> io::Result<(Arc<Segment>, u64)> {
        let file = segment::open(self.backend.as_ref(), &spare.path, true, true)?;
        match file.allocate(0, BLOCK + header.window_bytes) {
            Ok(()) => {}
            Err(error) if is_full(&error) => return Err(error),
            // Some file systems can't; writing zeros secures the space as well, if more slowly.
            Err(error) => log::debug!("allocating {}: {error}", spare.path.display()),
        }
        let ready = header.start + header.window_bytes.min(FIRST_FILL_BYTES);
        let header = SegmentHeader { filled: ready == header.start + header.window_bytes, ..header };
        segment::write_zeros(&file, BLOCK, BLOCK + (ready - header.start))?;
        // The length first: a header that calls the file whole is believed.
        file.sync_all()?;
        segment::write_header(&file, &header, self.persist())?;
        self.backend.sync_dir(&self.options.dir)?;
        Ok((Segment::new(file, header), ready))
    }

    /// Removes spares beyond what the time between two truncations has needed lately, and files of no use.
    fn remove_surplus(&self) {
        for stream in &self.streams {
            let mut tail = stream.tail.lock();
            let (window_bytes, is_full) = (self.options.window_bytes(), tail.full);
            let (mut spares, mut surplus): (Vec<_>, Vec<_>) =
                tail.spares.drain(..).partition(|spare| spare.serves(window_bytes, is_full));
            surplus.extend(spares.drain(tail.spares_wanted.min(spares.len())..));
            tail.spares = spares;
            drop(tail);
            self.doomed.lock().extend(surplus);
        }
        let doomed: Vec<Spare> = self.doomed.lock().extract_if(.., |spare| spare.is_free()).collect();
        for spare in &doomed {
            if let Err(error) = self.backend.remove(&spare.path) {
                log::warn!("removing {}: {error}", spare.path.display());
            }
        }
        if !doomed.is_empty() {
            // Should the names come back after a power cut, their records are all covered.
            if let Err(error) = self.backend.sync_dir(&self.options.dir) {
                log::warn!("syncing {}: {error}", self.options.dir.display());
            }
        }
    }
}
