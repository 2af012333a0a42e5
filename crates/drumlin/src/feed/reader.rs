//! Readers of a feed: each reads the change files itself, at its own pace.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use super::file;
use super::folder::FileList;
use super::names::Names;
use super::scan::FileScan;
use super::shared::{Shared, Target};
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::format::changes::RecordKind;
use crate::io::FolderRef;
use crate::memory::{Account, Budget};

/// A commit that a reader has found.
#[derive(Clone, Debug)]
pub(crate) struct FoundCommit {
    pub(crate) timestamp: Timestamp,
    pub(crate) time_ms: u64,
    pub(crate) body: Vec<u8>,
    /// The names before the commit.
    pub(crate) names: Arc<Names>,
}

/// The origin of a reader's list of files.
#[derive(Debug)]
enum Source {
    /// The open database that writes the files.
    Live { shared: Arc<Shared>, budget: Arc<Budget> },
    /// The folder alone, to which another process may be writing.
    Folder(FileList),
}

/// Reads commits in the order of their timestamps.
#[derive(Debug)]
pub(crate) struct FeedReader {
    source: Source,
    /// The folder of change files, once it is needed.
    folder: Option<FolderRef>,
    parent: FolderRef,
    chunk_bytes: usize,
    scan: Option<FileScan>,
    target: Option<Target>,
    /// The timestamp of the last commit that was read.
    position: Arc<AtomicU64>,
    names: Arc<Names>,
}

impl Drop for FeedReader {
    fn drop(&mut self) {
        if let Source::Live { shared, .. } = &self.source {
            shared.remove_reader(&self.position);
        }
    }
}

impl FeedReader {
    /// Creates a reader of the commits after `since` of an open database.
    pub(super) fn live(
        shared: &Arc<Shared>,
        parent: &FolderRef,
        budget: &Arc<Budget>,
        chunk_bytes: usize,
        since: Timestamp,
    ) -> Result<FeedReader> {
        let source = Source::Live { shared: Arc::clone(shared), budget: Arc::clone(budget) };
        let mut found = FeedReader::new(source, parent, chunk_bytes, since);
        shared.add_reader(&found.position);
        found.aim()?;
        Ok(found)
    }

    /// Creates a reader of the commits after `since` of a database that need not be open, in the folder `parent`.
    pub(crate) fn of_folder(parent: &FolderRef, chunk_bytes: usize, since: Timestamp) -> Result<FeedReader> {
        let mut found = FeedReader::new(Source::Folder(FileList::default()), parent, chunk_bytes, since);
        found.aim()?;
        Ok(found)
    }

    fn new(source: Source, parent: &FolderRef, chunk_bytes: usize, since: Timestamp) -> FeedReader {
        FeedReader {
            source,
            folder: None,
            parent: Arc::clone(parent),
            chunk_bytes,
            scan: None,
            target: None,
            position: Arc::new(AtomicU64::new(since.0)),
            names: Arc::default(),
        }
    }

    /// Returns the timestamp of the last commit that was read.
    pub(crate) fn position(&self) -> Timestamp {
        Timestamp(self.position.load(Ordering::Relaxed))
    }

    fn folder(&mut self) -> Result<&FolderRef> {
        if self.folder.is_none() {
            let folder = self.parent.folder(file::FOLDER_NAME);
            let path = || self.parent.path().join(file::FOLDER_NAME);
            self.folder = Some(folder.map_err(|error| Error::io("opening", &path(), error))?);
        }
        Ok(self.folder.as_ref().expect("it was just opened"))
    }

    /// Finds the part of the files with the next commits. Leaves `target` empty if there is none.
    fn aim(&mut self) -> Result<()> {
        self.target = None;
        let position = self.position();
        let target = match &mut self.source {
            Source::Live { shared, .. } => shared.target(position)?,
            Source::Folder(list) => list.target(&self.parent, position)?,
        };
        self.target = target;
        let Some(target) = target else { return Ok(()) };
        if self.scan.as_ref().is_none_or(|scan| scan.header().number != target.number) {
            let memory = match (&mut self.scan, &self.source) {
                (Some(scan), _) => scan.take_memory(),
                (None, Source::Live { budget, .. }) => Some(budget.grant(Account::Copies)),
                (None, Source::Folder(_)) => None,
            };
            self.scan = None;
            let chunk_bytes = self.chunk_bytes;
            match FileScan::open_in(self.folder()?, target.number, chunk_bytes, memory) {
                Ok(scan) => self.scan = Some(scan),
                // The retention may have removed the file since.
                Err(error) => {
                    if let Source::Live { shared, .. } = &self.source {
                        shared.target(position)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Returns `true` if [`next`](Self::next) finds a commit without reading from a file.
    pub(crate) fn is_loaded(&self) -> bool {
        let (Some(target), Some(scan)) = (&self.target, &self.scan) else { return false };
        self.position() < target.upto && scan.is_loaded()
    }

    /// Returns the next commit, or `None` if none has been copied yet. May read from a file.
    pub(crate) fn next(&mut self) -> Result<Option<FoundCommit>> {
        loop {
            if self.target.is_none_or(|target| self.position() >= target.upto) {
                self.aim()?;
            }
            let Some(target) = self.target else { return Ok(None) };
            let position = self.position();
            let scan = self.scan.as_mut().expect("a target's file is open");
            let Some(record) = scan.next(target.end)? else {
                // Another process may be writing the last records of the newest file.
                if matches!(self.source, Source::Live { .. }) || target.is_complete {
                    return Err(self.missing());
                }
                self.target = None;
                return Ok(None);
            };
            if record.kind == RecordKind::Names {
                let mut names = Names::default();
                names.apply(scan.body()).ok_or_else(|| malformed(scan, record.timestamp))?;
                self.names = Arc::new(names);
                continue;
            }
            if record.kind != RecordKind::Commit {
                return Err(malformed(scan, record.timestamp));
            }
            let names = Arc::clone(&self.names);
            // Even bytes that verify are not trusted.
            if !names.admit(scan.body()) {
                return Err(malformed(scan, record.timestamp));
            }
            if Names::are_changed_by(scan.body()) {
                Arc::make_mut(&mut self.names).apply(scan.body()).ok_or_else(|| malformed(scan, record.timestamp))?;
            }
            if record.timestamp <= position {
                continue;
            }
            if record.timestamp != position.next() {
                return Err(self.missing());
            }
            self.position.store(record.timestamp.0, Ordering::Relaxed);
            let (timestamp, time_ms, body) = (record.timestamp, record.time_ms, scan.body().to_vec());
            return Ok(Some(FoundCommit { timestamp, time_ms, body, names }));
        }
    }

    /// Returns the error for a commit that is not where it was promised.
    fn missing(&self) -> Error {
        let scan = self.scan.as_ref().expect("a file was read");
        let path = self.parent.path().join(file::FOLDER_NAME).join(file::name(scan.header().number));
        let what = format!("the commit of timestamp {}, at offset {}", self.position().next(), scan.offset());
        Error::corrupted(&path, what, "it is missing or does not verify")
    }

    /// Waits for a commit, a failure, or the end of the database. Only for a reader of an open database.
    pub(crate) fn poll_news(&self, waker: &Waker) -> Poll<Result<()>> {
        match &self.source {
            Source::Live { shared, .. } => shared.poll_news(self.position(), waker),
            Source::Folder(_) => unreachable!("another process wakes no one"),
        }
    }
}

fn malformed(scan: &FileScan, timestamp: Timestamp) -> Error {
    let what = format!("the record of timestamp {timestamp}, before offset {}", scan.offset());
    Error::corrupted(scan.path(), what, "it verifies but makes no sense")
}
