//! The copier: reads durable records from the log, and writes them to change files.

use std::sync::Arc;
use std::time::Duration;

use super::file::{self, FileWriter, FoundHeader};
use super::names::Names;
use super::records::MakeSpace;
use super::retention::Retention;
use super::scan::FileScan;
use super::shared::{ListedFile, Shared};
use super::translation::translate;
use crate::error::{Error, Result};
use crate::format::changes::{FileHeader, RECORD_HEADER_BYTES, RecordKind};
use crate::format::{BLOCK_BYTES, DatabaseId, Timestamp};
use crate::io::{Backend, FolderRef};
use crate::memory::{Account, Budget, Grant};
use crate::seglog::Log;

/// The minimum size of a change file. Usually, a file is an eighth of the bytes that are kept. Files are removed as a
/// whole, so the disk space is at most a quarter above the retention.
const FILE_BYTES_MIN: u64 = if cfg!(feature = "sim") { 32 << 10 } else { 1 << 20 };
/// The maximum size of a change file. A reader that begins within a file reads it from its start, which takes a tenth
/// of a second.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The size of a change file if only a time is kept.
const TIMED_FILE_BYTES: u64 = if cfg!(feature = "sim") { 32 << 10 } else { 16 << 20 };
/// A retention has this many files or more.
const FILE_COUNT_MIN: u32 = 8;

/// The settings and surroundings of a copier.
#[derive(Debug)]
pub(super) struct CopierSettings {
    pub(super) backend: Arc<dyn Backend>,
    /// The folder of the database.
    pub(super) parent: FolderRef,
    pub(super) database: DatabaseId,
    pub(super) retention: Retention,
    pub(super) buffer_bytes: usize,
}

impl CopierSettings {
    fn time_ms(&self) -> u64 {
        self.backend.wall_clock().as_millis() as u64
    }

    /// Returns the size at which a file is ended.
    fn file_bytes(&self) -> u64 {
        match self.retention.bytes {
            0 => TIMED_FILE_BYTES,
            bytes => (bytes / u64::from(FILE_COUNT_MIN)).clamp(FILE_BYTES_MIN, FILE_BYTES_MAX),
        }
    }

    /// Returns the age at which a file is ended, so that it can be removed soon after its commits are old enough.
    fn file_time_ms(&self) -> u64 {
        match self.retention.time {
            Duration::ZERO => u64::MAX,
            time => (time / FILE_COUNT_MIN).as_millis() as u64,
        }
    }
}

/// Copies commits from the log to change files. See the module documentation of the feed.
#[derive(Debug)]
pub(super) struct Copier {
    settings: CopierSettings,
    /// `None` before the first commit is copied.
    folder: Option<FolderRef>,
    writer: Option<FileWriter>,
    next_number: u64,
    /// The last file of earlier openings, until this one begins a file.
    found: Option<u64>,
    /// All commits up to this one are in a file, or in the buffer of its writer.
    copied: Timestamp,
    /// The newest commit that the opening has found in the log.
    recovered: Timestamp,
    /// The names as of `copied`.
    names: Names,
    record: Vec<u8>,
    _memory: Grant,
    is_started: bool,
}

impl Copier {
    /// Creates a copier that continues after `covered`, the timestamp of the newest checkpoint, with the names as of
    /// this timestamp. `recovered` is the newest commit in the log.
    pub(super) fn new(
        settings: CopierSettings,
        (covered, names): (Timestamp, Names),
        recovered: Timestamp,
        budget: &Arc<Budget>,
    ) -> Copier {
        assert!(covered <= recovered, "the log ends at {recovered}, before the checkpoint at {covered}");
        let mut memory = budget.grant(Account::Copies);
        // The buffer of the writer, and the record. A longer record is rare, and is let go at once.
        memory.take(2 * settings.buffer_bytes as u64);
        Copier {
            settings,
            folder: None,
            writer: None,
            next_number: 1,
            found: None,
            copied: covered,
            recovered,
            names,
            record: Vec::new(),
            _memory: memory,
            is_started: false,
        }
    }

    /// Finds the files of earlier openings. Files that don't reach the checkpoint from which this opening has recovered
    /// can't be continued, and are removed.
    fn start(&mut self, shared: &Shared) -> Result<()> {
        if std::mem::replace(&mut self.is_started, true) {
            return Ok(());
        }
        let io = |action, error| Error::io(action, &self.settings.parent.path().join(file::FOLDER_NAME), error);
        if !self.settings.parent.exists(file::FOLDER_NAME).map_err(|error| io("looking for", error))? {
            return Ok(());
        }
        let folder = self.settings.parent.folder(file::FOLDER_NAME).map_err(|error| io("opening", error))?;
        let mut files = find_files(&folder, self.settings.database)?;
        self.next_number = files.last().map_or(1, |last| last.number + 1);
        let end = match files.last() {
            // The log has lost commits that the files have, which only damage explains.
            Some(last) if last.after > self.recovered => None,
            Some(last) => {
                let mut scan = FileScan::open(&folder, last.number)?;
                let names = scan.names()?;
                if last.after > self.copied {
                    // The file before it was synced up to there, so these commits need not be copied again.
                    (self.copied, self.names) = (last.after, names);
                }
                scan.end_of(self.copied)?
            }
            None => None,
        };
        match (files.last_mut(), end) {
            (Some(last), Some(end)) => last.end = end,
            (Some(_), None) => {
                log::warn!(
                    "{}: the kept changes don't lead to the checkpoint at timestamp {}: the database was open without \
                     keeping changes, or could not write them. They are removed",
                    folder.path().display(),
                    self.copied
                );
                for file in files.drain(..) {
                    folder.remove(&file::name(file.number)).map_err(|error| io("removing a file of", error))?;
                }
            }
            (None, _) => {}
        }
        self.found = files.last().map(|last| last.number);
        if !files.is_empty() {
            crate::coverage::mark!("an opening continued the changes of an earlier one");
        }
        self.folder = Some(folder);
        shared.enter(files, self.copied);
        // The retention may be shorter than that of the last opening.
        self.remove_old(shared, self.settings.time_ms())
    }

    /// Copies all durable commits, and shows them to readers. Fails at most once: the feed has then ended.
    pub(super) fn copy(&mut self, shared: &Shared, log: &Log) {
        if shared.has_failed() {
            return;
        }
        if let Err(error) = self.start(shared).and_then(|()| self.copy_durable(shared, log)) {
            self.end(shared, &error);
        }
    }

    /// Makes all copied commits durable.
    pub(super) fn sync(&mut self, shared: &Shared) {
        if shared.has_failed() {
            return;
        }
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = writer.sync() {
            let path = self.settings.parent.path().join(file::FOLDER_NAME);
            self.end(shared, &Error::io("syncing a file of", &path, error));
        }
    }

    /// Finds the files of earlier openings, if that has not been done.
    pub(super) fn ensure_started(&mut self, shared: &Shared) {
        if !shared.has_failed()
            && let Err(error) = self.start(shared)
        {
            self.end(shared, &error);
        }
    }

    fn end(&mut self, shared: &Shared, error: &Error) {
        log::error!("{}: no more changes are kept: {error}", self.settings.parent.path().display());
        self.writer = None;
        shared.fail(&format!("no more changes are kept: {error}"));
    }

    fn copy_durable(&mut self, shared: &Shared, log: &Log) -> Result<()> {
        if log.durable() <= self.copied {
            return Ok(());
        }
        for record in log.read_from(self.copied)? {
            let record = record?;
            assert!(record.timestamp == self.copied.next(), "a log record does not follow {}", self.copied);
            self.begin_file_if_due(shared)?;
            self.record.clear();
            self.record.resize(RECORD_HEADER_BYTES, 0);
            let made_sense = translate(&record.body, &mut self.record).and_then(|()| {
                let body = &self.record[RECORD_HEADER_BYTES..];
                if Names::are_changed_by(body) { self.names.apply(body) } else { Some(()) }
            });
            made_sense.ok_or_else(|| {
                let what = format!("log record of timestamp {}", record.timestamp);
                Error::corrupted(self.settings.parent.path(), what, "it verifies but makes no sense")
            })?;
            self.write(shared, |writer, bytes, make_space| {
                writer.append(RecordKind::Commit, record.timestamp, record.time_ms, bytes, make_space)
            })?;
            self.copied = record.timestamp;
            let writer = self.writer.as_ref().expect("it was just used");
            if writer.unwritten_bytes() >= self.settings.buffer_bytes / 2 {
                self.show(shared)?;
            }
        }
        self.show(shared)?;
        // A long record is rare, so don't keep its memory.
        if self.record.capacity() > self.settings.buffer_bytes {
            self.record = Vec::new();
        }
        Ok(())
    }

    /// Writes what is in the buffer, and shows it to readers.
    fn show(&mut self, shared: &Shared) -> Result<()> {
        if self.writer.is_none() {
            return Ok(());
        }
        self.write(shared, |writer, _, make_space| writer.flush(make_space))?;
        let writer = self.writer.as_ref().expect("it was just used");
        shared.show(self.copied, writer.end());
        Ok(())
    }

    /// Calls the writer. On a full disk, removes the oldest files.
    fn write(
        &mut self,
        shared: &Shared,
        write: impl FnOnce(&mut FileWriter, &mut Vec<u8>, MakeSpace<'_>) -> std::io::Result<()>,
    ) -> Result<()> {
        let writer = self.writer.as_mut().expect("a file has been begun");
        let folder = self.folder.as_ref().expect("a file has been begun");
        let written = write(writer, &mut self.record, &mut || give_up_oldest(folder, shared));
        written.map_err(|error| Error::io("writing a file of", folder.path(), error))
    }

    /// Begins a file if there is none or the newest is large or old enough, and removes files that need not be kept.
    fn begin_file_if_due(&mut self, shared: &Shared) -> Result<()> {
        let now_ms = self.settings.time_ms();
        if let Some(writer) = &self.writer {
            let age_ms = now_ms.saturating_sub(writer.header().time_ms);
            let has_commits = writer.header().after < self.copied;
            let is_due = writer.end() >= self.settings.file_bytes() || age_ms >= self.settings.file_time_ms();
            if !has_commits || !is_due {
                return Ok(());
            }
        }
        let folder_path = self.settings.parent.path().join(file::FOLDER_NAME);
        let io = |action, error| Error::io(action, &folder_path, error);
        if self.writer.is_some() {
            self.show(shared)?;
            // The next file begins where this one ends, so an opening relies on it without reading it.
            let writer = self.writer.as_mut().expect("it was just used");
            writer.sync().map_err(|error| io("syncing a file of", error))?;
        }
        if self.folder.is_none() {
            let parent = &self.settings.parent;
            let folder = parent.create_folder(file::FOLDER_NAME).and_then(|()| parent.folder(file::FOLDER_NAME));
            self.folder = Some(folder.map_err(|error| io("creating", error))?);
            parent.sync().map_err(|error| io("syncing the folder of", error))?;
        }
        let folder = self.folder.as_ref().expect("it was just opened");
        if let Some(number) = self.found.take() {
            // A killed process may have left the file only in a cache. If a power cut took it, it would take all files
            // before it out of the row.
            let found = file::open(folder.as_ref(), number).and_then(|found| found.sync_data());
            found.map_err(|error| io("syncing a file of", error))?;
        }
        let header = FileHeader {
            database: self.settings.database,
            number: self.next_number,
            after: self.copied,
            time_ms: now_ms,
            kept_bytes: self.settings.retention.bytes,
            kept_ms: self.settings.retention.time.as_millis() as u64,
            old_values: self.settings.retention.old_values,
            previous_end: shared.newest_end(),
        };
        let make_space = &mut || give_up_oldest(folder, shared);
        let writer = FileWriter::create(folder.as_ref(), header, &self.names, self.settings.buffer_bytes, make_space);
        let writer = writer.map_err(|error| io("creating a file of", error))?;
        self.next_number += 1;
        shared.begin_file(ListedFile {
            number: header.number,
            after: header.after,
            time_ms: now_ms,
            start: writer.end(),
            end: writer.end(),
        });
        self.writer = Some(writer);
        self.remove_old(shared, now_ms)
    }

    /// Removes the oldest files that the retention does not promise.
    fn remove_old(&self, shared: &Shared, now_ms: u64) -> Result<()> {
        let Retention { bytes, time, .. } = self.settings.retention;
        let oldest_ms = now_ms.saturating_sub(time.as_millis() as u64);
        let folder = self.folder.as_ref().expect("a file has been begun");
        // All commits of a file are older than the file that follows it.
        while let Some(number) =
            shared.take_oldest(|_, next, left_bytes| left_bytes >= bytes && next.time_ms <= oldest_ms)
        {
            crate::coverage::mark!("the retention removed changes");
            folder
                .remove(&file::name(number))
                .map_err(|error| Error::io("removing a file of", folder.path(), error))?;
        }
        Ok(())
    }
}

/// Removes the oldest file because the disk is full. Returns `false` if only the newest is left.
fn give_up_oldest(folder: &FolderRef, shared: &Shared) -> bool {
    let Some(number) = shared.take_oldest(|_, _, _| true) else { return false };
    log::warn!("{}: the disk is full: the oldest kept changes are removed", folder.path().display());
    match folder.remove(&file::name(number)) {
        Ok(()) => true,
        Err(error) => {
            log::warn!("{}: removing a change file: {error}", folder.path().display());
            false
        }
    }
}

/// Returns the retention of the newest change file in the folder of a database, or `None` if there is no file.
pub(super) fn kept_retention(parent: &FolderRef, database: DatabaseId) -> Result<Option<Retention>> {
    let io = |action, error| Error::io(action, &parent.path().join(file::FOLDER_NAME), error);
    if !parent.exists(file::FOLDER_NAME).map_err(|error| io("looking for", error))? {
        return Ok(None);
    }
    let folder = parent.folder(file::FOLDER_NAME).map_err(|error| io("opening", error))?;
    let names = folder.list().map_err(|error| io("listing", error))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| file::parse_name(name)).collect();
    numbers.sort_unstable();
    for number in numbers.into_iter().rev() {
        let opened = file::open(folder.as_ref(), number).map_err(|error| io("opening a file of", error))?;
        if let FoundHeader::Header(header) =
            file::read_header(&opened).map_err(|error| io("reading a file of", error))?
            && header.database == database
        {
            return Ok(Some(Retention {
                bytes: header.kept_bytes,
                time: Duration::from_millis(header.kept_ms),
                old_values: header.old_values,
            }));
        }
    }
    Ok(None)
}

/// Removes all change files of a database.
pub(super) fn remove_all(parent: &FolderRef, database: DatabaseId) -> Result<()> {
    let io = |action, error| Error::io(action, &parent.path().join(file::FOLDER_NAME), error);
    if !parent.exists(file::FOLDER_NAME).map_err(|error| io("looking for", error))? {
        return Ok(());
    }
    let folder = parent.folder(file::FOLDER_NAME).map_err(|error| io("opening", error))?;
    for file in find_files(&folder, database)? {
        folder.remove(&file::name(file.number)).map_err(|error| io("removing a file of", error))?;
    }
    Ok(())
}

/// Returns the change files of a database in ascending order: the newest ones, up to the first that is missing or does
/// not verify. A newest file without a sound header and names was being created, has no commits, and is removed.
fn find_files(folder: &FolderRef, database: DatabaseId) -> Result<Vec<ListedFile>> {
    let io = |action, error| Error::io(action, folder.path(), error);
    let names = folder.list().map_err(|error| io("listing", error))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| file::parse_name(name)).collect();
    numbers.sort_unstable();
    let mut files: Vec<ListedFile> = Vec::new();
    // The end of the commits of the file before the last one that was found.
    let mut end = u64::MAX;
    for number in numbers.into_iter().rev() {
        if files.last().is_some_and(|later| later.number != number + 1) {
            break;
        }
        let path = folder.path().join(file::name(number));
        let file = file::open(folder.as_ref(), number).map_err(|error| io("opening a file of", error))?;
        let header = file::read_header(&file).map_err(|error| io("reading a file of", error))?;
        match header {
            FoundHeader::Header(header) if header.database != database => {
                return Err(Error::corrupted(&path, "the header", "it belongs to another database"));
            }
            FoundHeader::Header(header) if header.number == number => {
                let start = match FileScan::open_in(folder, number, BLOCK_BYTES, None)?.after_names() {
                    Ok(start) => start,
                    Err(Error::Corrupted { .. }) if files.is_empty() => {
                        folder.remove(&file::name(number)).map_err(|error| io("removing a file of", error))?;
                        continue;
                    }
                    Err(Error::Corrupted { .. }) => break,
                    Err(error) => return Err(error),
                };
                let file_bytes = file.len().map_err(|error| io("measuring a file of", error))?;
                let end = std::mem::replace(&mut end, header.previous_end).min(file_bytes).max(start);
                files.push(ListedFile { number, after: header.after, time_ms: header.time_ms, start, end });
            }
            FoundHeader::Unfinished if files.is_empty() => {
                drop(file);
                folder.remove(&file::name(number)).map_err(|error| io("removing a file of", error))?;
            }
            FoundHeader::Foreign(reason) if files.is_empty() => {
                return Err(Error::corrupted(&path, "the header", reason));
            }
            _ => break,
        }
    }
    files.reverse();
    Ok(files)
}
