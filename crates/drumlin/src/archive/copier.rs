//! The copier: reads durable records from the log, and writes them to archive files with all that they refer to.

use std::sync::Arc;
use std::time::Duration;

use super::expansion::Expansion;
use super::shared::{Shared, WaitingFile};
use super::spool::{self, ArchiveFile, FOLDER_NAME, ScannedFile};
use crate::error::{Error, Result};
use crate::feed::records::RecordWriter;
use crate::format::archive::{ArchiveHeader, ChainId};
use crate::format::changes::{RECORD_HEADER_BYTES, RecordKind};
use crate::format::{DatabaseId, Timestamp};
use crate::io::{Backend, FolderRef};
use crate::memory::{Account, Budget, Grant};
use crate::pool::Pool;
use crate::seglog::{Log, Record};

/// The size at which a file is ended. A commit is in one file, so a file may be longer.
const FILE_BYTES: u64 = if cfg!(feature = "sim") { 64 << 10 } else { 16 << 20 };

/// The settings and surroundings of a copier.
#[derive(Debug)]
pub(super) struct CopierSettings {
    pub(super) backend: Arc<dyn Backend>,
    /// The folder of the database.
    pub(super) parent: FolderRef,
    pub(super) database: DatabaseId,
    pub(super) pool: Arc<Pool>,
    pub(super) limit_bytes: u64,
    pub(super) interval: Duration,
    pub(super) buffer_bytes: usize,
    /// The timestamp of the checkpoint from which this opening has recovered.
    pub(super) covered: Timestamp,
    /// The newest commit in the log at the opening.
    pub(super) recovered: Timestamp,
}

/// The file that is being written.
#[derive(Debug)]
struct NewestFile {
    header: ArchiveHeader,
    writer: RecordWriter,
    commit_count: u64,
    /// The time when the first commit was copied into the file. An opening that continues the file knows only the time
    /// of the commit.
    first_copied_ms: Option<u64>,
}

/// The place where an opening continues, which it does at its first commit.
#[derive(Clone, Debug)]
enum Beginning {
    /// With the first file of a new chain. If there is a file without an end, it gets one.
    NewChain(Option<(ArchiveHeader, ScannedFile)>),
    /// In a file that has no end yet.
    InFile(ArchiveHeader, ScannedFile),
    /// After a file with an end.
    AfterFile(ArchiveHeader),
}

/// Copies commits from the log to archive files. See the module documentation of the archive.
#[derive(Debug)]
pub(super) struct Copier {
    settings: CopierSettings,
    folder: Option<FolderRef>,
    /// `None` until the files of earlier openings have been found.
    beginning: Option<Beginning>,
    newest: Option<NewestFile>,
    /// All commits up to this one are in a file, or in the buffer of its writer.
    copied: Timestamp,
    /// The time of the newest commit, or 0 before the first one. The times in a chain ascend.
    time_ms: u64,
    record: Vec<u8>,
    _memory: Grant,
}

impl Copier {
    pub(super) fn new(settings: CopierSettings, budget: &Arc<Budget>) -> Copier {
        let mut memory = budget.grant(Account::Copies);
        // The buffer of the writer, the record, and leaves of loads. A longer record is rare, and is let go at once.
        memory.take(3 * settings.buffer_bytes as u64);
        Copier {
            copied: settings.covered,
            settings,
            folder: None,
            beginning: None,
            newest: None,
            time_ms: 0,
            record: Vec::new(),
            _memory: memory,
        }
    }

    fn io(&self, action: &'static str) -> impl Fn(std::io::Error) -> Error + use<> {
        let path = self.settings.parent.path().join(FOLDER_NAME);
        move |error| Error::io(action, &path, error)
    }

    /// Finds the files of earlier openings, if that has not been done. Ends the archive if they can't be read.
    pub(super) fn ensure_started(&mut self, shared: &Shared) {
        if self.beginning.is_none()
            && !shared.has_ended()
            && let Err(error) = self.start(shared)
        {
            self.end(shared, &error.to_string());
        }
    }

    fn start(&mut self, shared: &Shared) -> Result<()> {
        let Some((folder, files)) = spool::find(&self.settings.parent, self.settings.database)? else {
            self.beginning = Some(Beginning::NewChain(None));
            return Ok(());
        };
        let Some(last) = files.last().cloned() else {
            (self.folder, self.beginning) = (Some(folder), Some(Beginning::NewChain(None)));
            return Ok(());
        };
        let found = spool::read(&folder, &last)?;
        // All files but the last have their ends. The commits of each end where those of the next begin, unless that
        // one begins a chain.
        let mut waiting = Vec::new();
        for pair in files.windows(2) {
            let is_continued = pair[0].header.chain == pair[1].header.chain;
            let last = if is_continued { pair[1].header.after } else { spool::read(&folder, &pair[0])?.last };
            waiting.push(WaitingFile { file: pair[0].clone(), last });
        }
        if found.is_finished {
            waiting.push(WaitingFile { file: last.clone(), last: found.last });
        }
        self.folder = Some(folder);
        self.time_ms = found.time_ms.max(last.header.time_ms);
        let CopierSettings { covered, recovered, .. } = self.settings;
        let is_unbroken = (covered..=recovered).contains(&found.last);
        if is_unbroken {
            shared.enter(waiting, last.header.from, found.last);
            self.copied = found.last;
            self.beginning = Some(match found.is_finished {
                true => Beginning::AfterFile(last.header),
                false => Beginning::InFile(last.header, found),
            });
        } else {
            let reason = match found.last < covered {
                true => "the database was open without it, or it had ended",
                false => "the log has lost commits that it has",
            };
            log::error!(
                "{}: the archive has a gap from timestamp {} to {covered}: {reason}. A restore to a later time needs a \
                 new backup",
                self.settings.parent.path().display(),
                found.last.min(recovered),
            );
            shared.enter(waiting, covered, covered);
            let unfinished = (!found.is_finished).then_some((last.header, found));
            self.beginning = Some(Beginning::NewChain(unfinished));
        }
        Ok(())
    }

    /// Copies all durable commits, and ends the newest file if it is due. Fails at most once: the archive has then
    /// ended.
    pub(super) fn copy(&mut self, shared: &Shared, log: &Log) {
        self.ensure_started(shared);
        if shared.has_ended() {
            return;
        }
        if let Err(error) = self.copy_durable(shared, log) {
            self.end(shared, &error.to_string());
        }
    }

    /// Makes all copied commits durable.
    pub(super) fn sync(&mut self, shared: &Shared) {
        let Some(newest) = self.newest.as_mut().filter(|_| !shared.has_ended()) else { return };
        if let Err(error) = newest.writer.sync() {
            let error = self.io("syncing a file of")(error);
            self.end(shared, &error.to_string());
        }
    }

    /// Ends the newest file if it has commits, so that it is delivered.
    pub(super) fn end_file(&mut self, shared: &Shared) {
        if !shared.has_ended()
            && self.first_copied_ms().is_some()
            && let Err(error) = self.finish_newest(shared)
        {
            self.end(shared, &error.to_string());
        }
    }

    fn end(&mut self, shared: &Shared, reason: &str) {
        let reason = format!("the archive has ended after timestamp {}: {reason}", self.copied);
        log::error!(
            "{}: {reason}. The commits from here to the next opening will not be in it",
            self.settings.parent.path().display()
        );
        self.newest = None;
        shared.end(&reason);
    }

    fn copy_durable(&mut self, shared: &Shared, log: &Log) -> Result<()> {
        let is_due = |copier: &Copier| copier.due_in().is_some_and(|left| left.is_zero());
        if log.durable() <= self.copied {
            return if is_due(self) { self.finish_newest(shared) } else { Ok(()) };
        }
        self.begin(shared)?;
        for record in log.read_from(self.copied)? {
            let record = record?;
            assert!(record.timestamp == self.copied.next(), "a log record does not follow {}", self.copied);
            let is_long = |newest: &NewestFile| newest.commit_count > 0 && newest.writer.end() >= FILE_BYTES;
            if self.newest.as_ref().is_some_and(is_long) || is_due(self) {
                self.finish_newest(shared)?;
            }
            self.check_limit(shared)?;
            self.copy_commit(&record)?;
        }
        self.flush(shared)?;
        // A long record is rare, so don't keep its memory.
        if self.record.capacity() > self.settings.buffer_bytes {
            self.record = Vec::new();
        }
        Ok(())
    }

    fn check_limit(&self, shared: &Shared) -> Result<()> {
        let (bytes, reason) = shared.held_back();
        if bytes <= self.settings.limit_bytes {
            return Ok(());
        }
        let reason = reason.map_or("delivering takes too long".to_owned(), |reason| reason.to_string());
        Err(Error::Invalid(format!("{bytes} bytes of files wait, which is more than the limit: {reason}")))
    }

    fn copy_commit(&mut self, record: &Record) -> Result<()> {
        let timestamp = record.timestamp;
        // The clock may have been put back, and the streams of the log begin their batches at different times.
        self.time_ms = self.time_ms.max(record.time_ms);
        let time_ms = self.time_ms;
        let newest = self.newest.as_mut().expect("a file has been begun");
        let (path, writer) = (self.settings.parent.path().join(FOLDER_NAME), &mut newest.writer);
        let mut append = |kind, record: &mut Vec<u8>| {
            let written = writer.append(kind, timestamp, time_ms, record, &mut || false);
            record.clear();
            record.resize(RECORD_HEADER_BYTES, 0);
            written.map_err(|error| Error::io("writing a file of", &path, error))
        };
        self.record.clear();
        self.record.resize(RECORD_HEADER_BYTES, 0);
        let write = &mut |record: &mut Vec<u8>| append(RecordKind::Part, record);
        let (pool, part_bytes) = (&self.settings.pool, self.settings.buffer_bytes);
        Expansion { pool, timestamp, part_bytes, out: &mut self.record, write }.expand(&record.body)?;
        append(RecordKind::Commit, &mut self.record)?;
        newest.commit_count += 1;
        newest.first_copied_ms.get_or_insert_with(|| self.settings.backend.wall_clock().as_millis() as u64);
        self.copied = timestamp;
        Ok(())
    }

    /// Writes what is in the buffer.
    fn flush(&mut self, shared: &Shared) -> Result<()> {
        let io = self.io("writing a file of");
        let newest = self.newest.as_mut().expect("a file has been begun");
        newest.writer.flush(&mut || false).map_err(io)?;
        shared.show(self.copied, newest.writer.end());
        Ok(())
    }

    /// Returns the time after which the newest file is old enough to be ended, or `None` if it has no commits.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let first = Duration::from_millis(self.first_copied_ms()?);
        let age = self.settings.backend.wall_clock().saturating_sub(first);
        Some(self.settings.interval.saturating_sub(age))
    }

    /// Returns the time when the first commit was copied into the newest file, which may be one of an earlier opening.
    fn first_copied_ms(&self) -> Option<u64> {
        match (&self.newest, &self.beginning) {
            (Some(newest), _) => newest.first_copied_ms,
            (None, Some(Beginning::InFile(_, found))) => found.first_time_ms,
            (None, _) => None,
        }
    }

    /// Continues the files of earlier openings, or begins a chain, if that has not been done.
    fn begin(&mut self, shared: &Shared) -> Result<()> {
        if self.newest.is_some() {
            return Ok(());
        }
        match self.beginning.clone().expect("the files were found") {
            Beginning::InFile(header, found) => {
                let writer = self.resume(&header, &found)?;
                let (commit_count, first_copied_ms) = (found.commit_count, found.first_time_ms);
                self.newest = Some(NewestFile { header, writer, commit_count, first_copied_ms });
            }
            Beginning::AfterFile(header) => self.begin_file(header.chain, header.number + 1, header.from)?,
            Beginning::NewChain(unfinished) => {
                if let Some((header, found)) = unfinished {
                    self.finish_earlier(shared, header, &found)?;
                }
                let now_ms = self.settings.backend.wall_clock().as_millis() as u64;
                let last = self.last_chain()?.map_or(0, |last| last.0 + 1);
                self.begin_file(ChainId(now_ms.max(last)), 1, self.copied)?;
            }
        }
        Ok(())
    }

    fn last_chain(&self) -> Result<Option<ChainId>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let (files, _) = spool::list(folder)?;
        Ok(files.last().map(|last| last.header.chain))
    }

    fn resume(&self, header: &ArchiveHeader, found: &ScannedFile) -> Result<RecordWriter> {
        let folder = self.folder.as_ref().expect("it has files");
        let resumed = spool::resume(folder, header, self.settings.buffer_bytes, found.end);
        resumed.map_err(self.io("continuing a file of"))
    }

    /// Creates a file, whose commits follow those that have been copied.
    fn begin_file(&mut self, chain: ChainId, number: u64, from: Timestamp) -> Result<()> {
        if self.folder.is_none() {
            let parent = &self.settings.parent;
            let folder = parent.create_folder(FOLDER_NAME).and_then(|()| parent.folder(FOLDER_NAME));
            self.folder = Some(folder.map_err(self.io("creating"))?);
            self.settings.parent.sync().map_err(self.io("syncing the folder of"))?;
        }
        let CopierSettings { database, limit_bytes, .. } = self.settings;
        let time_ms = self.time_ms;
        let header = ArchiveHeader { database, chain, number, after: self.copied, time_ms, limit_bytes, from };
        let folder = self.folder.as_ref().expect("it was just opened");
        let writer =
            spool::create(folder, &header, self.settings.buffer_bytes).map_err(self.io("creating a file of"))?;
        self.newest = Some(NewestFile { header, writer, commit_count: 0, first_copied_ms: None });
        Ok(())
    }

    /// Ends the newest file and begins the next one. So there always is a file that says how far the chain goes.
    fn finish_newest(&mut self, shared: &Shared) -> Result<()> {
        self.begin(shared)?;
        let newest = self.newest.take().expect("a file with commits is due");
        let NewestFile { header, writer, commit_count, .. } = newest;
        let finished = self.write_end(header, writer, commit_count, (self.copied, self.time_ms))?;
        self.begin_file(header.chain, header.number + 1, header.from)?;
        shared.add(finished);
        self.flush(shared)
    }

    /// Ends the file that an earlier chain has left.
    fn finish_earlier(&mut self, shared: &Shared, header: ArchiveHeader, found: &ScannedFile) -> Result<()> {
        if found.commit_count == 0 {
            let folder = self.folder.as_ref().expect("it has files");
            return folder.remove(&header.name()).map_err(self.io("removing a file of"));
        }
        let writer = self.resume(&header, found)?;
        let finished = self.write_end(header, writer, found.commit_count, (found.last, found.time_ms))?;
        shared.add(finished);
        Ok(())
    }

    fn write_end(
        &mut self,
        header: ArchiveHeader,
        mut writer: RecordWriter,
        commit_count: u64,
        (last, time_ms): (Timestamp, u64),
    ) -> Result<WaitingFile> {
        self.record.clear();
        self.record.resize(RECORD_HEADER_BYTES, 0);
        spool::encode_end(commit_count, &mut self.record);
        let no_space = &mut || false;
        let written = (writer.append(RecordKind::End, last, time_ms, &mut self.record, no_space))
            .and_then(|()| writer.flush(no_space))
            .and_then(|()| writer.sync());
        written.map_err(self.io("writing a file of"))?;
        Ok(WaitingFile { file: ArchiveFile { header, bytes: writer.end() }, last })
    }
}
