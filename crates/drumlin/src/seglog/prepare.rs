//! Prepares segments before they are needed, and removes surplus ones.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::segment::{self, BLOCK, FIRST_FILL_BYTES, Segment, Spare};
use super::shared::SharedLog;
use super::stream::Stream;
use super::windows::{Preparation, Window};
use crate::format::log::SegmentHeader;
use crate::format::{CheckpointNumber, StreamId, StreamPosition};
use crate::io::FileRef;

/// The bytes of zeros written between two syncs when the rest of a segment already in use is filled.
const FILL_BYTES: u64 = 8 << 20;

const _: () = assert!(FILL_BYTES.is_multiple_of(BLOCK) && FILL_BYTES > 0, "a segment is filled to within a block");

/// Returns `true` if the error is a lack of disk space, which may be temporary.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The reason for which a preparation failed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The disk has no space for another segment.
    Full(io::Error),
    /// A file could not be opened or created. Nothing was written, and the next attempt may succeed.
    Passing(io::Error),
    /// The log has failed, so nothing may be written.
    Final(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        if is_full(&error) { Refusal::Full(error) } else { Refusal::Final(error) }
    }
}

impl Refusal {
    /// Classifies an error from opening or creating a file.
    fn of_opening(error: io::Error) -> Refusal {
        if is_full(&error) { Refusal::Full(error) } else { Refusal::Passing(error) }
    }
}

impl SharedLog {
    /// Prepares the windows that streams need, and removes surplus segments.
    pub(super) fn prepare_all(&self) {
        let _guard = self.preparing.lock();
        for index in 0..self.streams.len() {
            while self.failure().is_none() {
                let Some(preparation) = self.streams[index].tail.lock().preparation() else { break };
                match self.prepare(index, preparation) {
                    Ok(()) => self.streams[index].announce_space(),
                    Err(Refusal::Full(error)) => {
                        // Warn only once. Each checkpoint frees segments for reuse, but the shortage will return after
                        // it while the disk stays full.
                        let was_logged = self.is_shortage_logged.swap(true, Ordering::Relaxed);
                        let level = if was_logged { log::Level::Debug } else { log::Level::Warn };
                        log::log!(
                            level,
                            "no space for another log segment in {}: {error}",
                            self.folder.path().display()
                        );
                        let mut tail = self.streams[index].tail.lock();
                        let was_full = tail.set_disk_full(true);
                        if !was_full && tail.has_free_spare(self.options.window_bytes()) {
                            continue;
                        }
                        drop(tail);
                        // Removing surplus segments may free enough space.
                        if self.remove_surplus() {
                            continue;
                        }
                        self.streams[index].tail.lock().refuse(None);
                        self.streams[index].announce_space();
                        break;
                    }
                    Err(Refusal::Passing(error)) => {
                        log::warn!("making a log segment in {}: {error}", self.folder.path().display());
                        self.streams[index].tail.lock().refuse(Some(Arc::new(error)));
                        self.streams[index].announce_space();
                        break;
                    }
                    Err(Refusal::Final(error)) => {
                        self.fail(&format!(
                            "preparing a log segment in {} failed: {error}",
                            self.folder.path().display()
                        ));
                    }
                }
            }
        }
        self.remove_surplus();
    }

    /// Performs one step of preparation. Only one thread may call this at a time.
    pub(super) fn prepare(&self, index: usize, preparation: Preparation) -> Result<(), Refusal> {
        match preparation {
            Preparation::Fill => Ok(self.fill(index)?),
            Preparation::Window => self.prepare_window(index),
        }
    }

    /// Fills the next part of the newest window with zeros.
    fn fill(&self, index: usize) -> io::Result<()> {
        let stream = &self.streams[index];
        let (segment, start) = stream.tail.lock().windows.to_fill();
        assert!(start < segment.end(), "{segment:?} is filled, and filled again");
        let end = segment.end().min(start + FILL_BYTES);
        segment::write_zeros(&segment.file, segment.offset(start), segment.offset(end))?;
        self.write_bytes.fetch_add(end - start, Ordering::Relaxed);
        segment.file.sync_data()?;
        if end == segment.end() {
            segment.set_filled(self.persist())?;
            self.write_bytes.fetch_add(BLOCK, Ordering::Relaxed);
        }
        stream.tail.lock().windows.set_ready(start, end);
        Ok(())
    }

    fn prepare_window(&self, index: usize) -> Result<(), Refusal> {
        (self.hooks.before_window)().map_err(Refusal::Final)?;
        let stream = &self.streams[index];
        let (start, use_number, spare) = {
            let mut tail = stream.tail.lock();
            let (spare, use_number) = tail.take_spare(StreamId::of_index(index), self.options.window_bytes());
            (tail.windows.end(), use_number, spare)
        };
        assert!(start.is_block_start(), "a window begins within a block: {start}");
        let header = SegmentHeader {
            stream: StreamId::of_index(index),
            slot: spare.slot,
            database: self.options.database,
            incarnation: self.incarnation,
            use_number,
            start,
            window_bytes: spare.window_bytes,
            first: self.horizon.last().next(),
            horizon: self.horizon.durable(),
            checkpoint: CheckpointNumber(self.checkpoint.load(Ordering::SeqCst)),
            filled: spare.filled,
        };
        let made = match &spare.last_use {
            Some(last_use) => self.recycle(&spare, last_use, header),
            None => self.make(&spare, header).inspect(|_| self.is_shortage_logged.store(false, Ordering::Relaxed)),
        };
        let (segment, ready) = match made {
            Ok(made) => made,
            Err(refusal) => {
                let is_gone = matches!(&refusal, Refusal::Passing(error) if error.kind() == io::ErrorKind::NotFound);
                if spare.last_use.is_some() && !is_gone {
                    stream.tail.lock().spares.extend([spare]);
                }
                return Err(refusal);
            }
        };
        assert!(segment.start() < ready && ready <= segment.end(), "{segment:?} is made ready up to {ready}");
        // List the window before any record is put into it.
        let window = Window::new(segment, header.start, header.window_bytes);
        stream.tail.lock().windows.push(window);
        self.list().map_err(Refusal::Final)?;
        let mut tail = stream.tail.lock();
        tail.windows.set_ready(header.start, ready);
        tail.set_disk_full(false);
        Ok(())
    }

    /// Begins a new use of an existing file, with one durable write.
    fn recycle(
        &self,
        spare: &Spare,
        last_use: &Segment,
        header: SegmentHeader,
    ) -> Result<(Arc<Segment>, StreamPosition), Refusal> {
        crate::coverage::mark!("a log segment was reused");
        assert!(last_use.header.use_number < header.use_number, "a use number is given twice");
        assert!(spare.is_free(), "{last_use:?} is used again while somebody reads it");
        assert!(last_use.header.stream == header.stream, "{last_use:?} is used again by stream {}", header.stream);
        let file = Arc::clone(&last_use.file);
        if !self.folder.exists(&spare.name).map_err(Refusal::Passing)? {
            let gone = format!("{} was removed", file.path().display());
            return Err(Refusal::Passing(io::Error::new(io::ErrorKind::NotFound, gone)));
        }
        if !self.folder.is_same(&spare.name, &file).map_err(Refusal::Passing)? {
            return Err(Refusal::Final(not_ours(file.path())));
        }
        if last_use.header.incarnation != self.incarnation {
            // A previous process may have changed the file's length without syncing it.
            file.sync_data()?;
        }
        segment::write_header(&file, &header, self.persist())?;
        self.write_bytes.fetch_add(BLOCK, Ordering::Relaxed);
        let segment = Segment::new(file, header);
        let ready = segment.start() + segment::written_bytes_min(&header);
        assert!(ready == segment.end() || !header.filled, "{segment:?} is filled, and ready up to {ready}");
        Ok((segment, ready))
    }

    /// Creates a new file and fills its beginning with zeros.
    fn make(&self, spare: &Spare, header: SegmentHeader) -> Result<(Arc<Segment>, StreamPosition), Refusal> {
        assert!(!header.filled, "{} is called filled before it is made", spare.name);
        let file = match segment::create(self.folder.as_ref(), &spare.name) {
            Ok(file) => file,
            // New slot numbers lie above those of all files that existed when the log was opened, so a file with this
            // name is not ours.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Refusal::Final(not_ours(&self.folder.path().join(&spare.name))));
            }
            Err(error) => return Err(Refusal::of_opening(error)),
        };
        let filled = self.fill_new(&file, spare, header);
        if filled.is_err() {
            // Remove the incomplete file: a scan would ignore it, but it would waste space.
            let _ = self.folder.remove(&spare.name);
        }
        Ok(filled?)
    }

    fn fill_new(
        &self,
        file: &FileRef,
        spare: &Spare,
        header: SegmentHeader,
    ) -> io::Result<(Arc<Segment>, StreamPosition)> {
        match file.allocate(0, BLOCK + header.window_bytes) {
            Ok(()) => {}
            Err(error) if is_full(&error) => return Err(error),
            // Some file systems can't preallocate. Filling the file with zeros allocates its space too, only more
            // slowly.
            Err(error) => log::debug!("allocating {}: {error}", spare.name),
        }
        let ready = header.start + header.window_bytes.min(FIRST_FILL_BYTES);
        let header = SegmentHeader { filled: ready == header.start + header.window_bytes, ..header };
        segment::write_zeros(file, BLOCK, BLOCK + (ready - header.start))?;
        // Sync the length before writing the header, because a scan trusts a header that says the file is filled.
        file.sync_all()?;
        segment::write_header(file, &header, self.persist())?;
        self.write_bytes.fetch_add(BLOCK + (ready - header.start), Ordering::Relaxed);
        self.folder.sync()?;
        Ok((Segment::new(Arc::clone(file), header), ready))
    }

    /// Returns `true` if there are files that an idle log does not need.
    pub(super) fn has_surplus(&self) -> bool {
        let has_spares = |stream: &Stream| stream.tail.lock().spares.count() > 1;
        self.streams.iter().any(has_spares) || !self.doomed.lock().is_empty()
    }

    /// Removes all spares except one per stream, which serves the next opening or the next burst of commits.
    pub(super) fn remove_idle(&self) {
        let _guard = self.preparing.lock();
        for stream in &self.streams {
            stream.tail.lock().spares.want_one();
        }
        self.remove_surplus();
    }

    /// Turns all windows of a closed log into spares, and removes all spares except one per stream.
    pub(super) fn remove_closed(&self) {
        let old = std::mem::take(&mut *self.old.lock());
        self.doomed.lock().extend(old.into_iter().map(|window| Spare::of(window.segment)));
        for stream in &self.streams {
            let mut tail = stream.tail.lock();
            let windows = tail.take_windows();
            tail.spares.extend(windows.into_iter().map(Spare::of));
        }
        self.remove_idle();
    }

    /// Removes doomed files, and the spares beyond those that recent intervals between truncations needed. Returns
    /// `true` if it removed any file.
    fn remove_surplus(&self) -> bool {
        let window_bytes = self.options.window_bytes();
        for stream in &self.streams {
            let surplus = stream.tail.lock().take_surplus(window_bytes);
            self.doomed.lock().extend(surplus);
        }
        let doomed: Vec<Spare> = self.doomed.lock().extract_if(.., |spare| spare.is_free()).collect();
        let mut removed = false;
        for spare in &doomed {
            match self.folder.remove(&spare.name) {
                Ok(()) => removed = true,
                Err(error) => log::warn!("removing {} in {}: {error}", spare.name, self.folder.path().display()),
            }
        }
        if removed {
            // If the files reappear after a power cut, they do no harm: all their records are covered.
            if let Err(error) = self.folder.sync() {
                log::warn!("syncing {}: {error}", self.folder.path().display());
            }
        }
        removed
    }
}

/// Returns the error for a file in the log's folder that this log did not create.
fn not_ours(path: &Path) -> io::Error {
    io::Error::other(format!("{} was made or changed by somebody else", path.display()))
}
