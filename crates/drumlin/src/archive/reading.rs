//! Reading an archive: its chains, its commits, and the one that a restore ends with.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::point::{RestorePoint, Utc};
use super::spool::{self, ArchiveFile, ScannedFile};
use crate::error::{Error, Result};
use crate::feed::records::RecordScan;
use crate::format::archive::ArchiveHeader;
use crate::format::changes::RecordKind;
use crate::format::record::{self, Operation};
use crate::format::{DatabaseId, KeyspaceId, Timestamp};
use crate::io::{Backend, FolderRef, open_folder};

/// A chain of an archive's files: all durable commits from one to another.
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-chains-{}", std::process::id()));
/// use drumlin::{Archive, Config};
///
/// let config = Config::new().archive(Archive::to_folder(folder.join("archive")));
/// let db = config.open(folder.join("shop.drumlin"))?;
/// db.keyspace("orders")?.insert("1", "three apples")?;
/// db.close()?;
/// for chain in Config::new().verify_archive(folder.join("archive"))? {
///     println!("{} commits after {} up to {}", chain.commits, chain.from, chain.to);
/// }
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ArchivedChain {
    /// The timestamp after which the commits begin. A backup of this state, or of a later one, can be continued.
    pub from: Timestamp,
    /// The newest commit.
    pub to: Timestamp,
    /// The time of the first commit, since 1970.
    pub from_time: Duration,
    /// The time of the newest commit, since 1970.
    pub to_time: Duration,
    /// The number of commits.
    pub commits: u64,
    /// The number of files.
    pub files: u64,
    /// The bytes of the files.
    pub bytes: u64,
}

/// The archive of a database in a folder.
#[derive(Debug)]
pub(crate) struct ArchiveFolder {
    folder: FolderRef,
    files: Vec<ArchiveFile>,
}

/// The commits that a restore applies to a backup.
#[derive(Debug)]
pub(crate) struct ArchivedCommits {
    archive: ArchiveFolder,
    /// The files that are still to be read, with the next one last.
    left: Vec<ArchiveFile>,
    scan: Option<(RecordScan, u64)>,
    /// The timestamp of the commit that is being read, or of the last one that was.
    pub(crate) position: Timestamp,
    pub(crate) last: Timestamp,
    /// The commits of which later commits clone a keyspace.
    cloned: Vec<Timestamp>,
    /// The time of the commit that was read last, in milliseconds since 1970.
    pub(crate) time_ms: Option<u64>,
    /// The operations of the commit that are in memory.
    body: Vec<u8>,
    at: usize,
    /// Set if the operations in memory are the last ones of the commit.
    is_last_part: bool,
    /// The bytes in memory of the value that is being read.
    value_part: Range<usize>,
}

impl ArchiveFolder {
    /// Opens the archive in a folder. Reads the headers of its files.
    pub(crate) fn open(backend: &Arc<dyn Backend>, path: &Path) -> Result<ArchiveFolder> {
        let unusable = |reason: String| Error::UnusableArchive { archive: path.display().to_string(), reason };
        if !backend.exists(path).map_err(|error| Error::io("looking for", path, error))? {
            return Err(unusable("nothing is at this path".into()));
        }
        let folder = open_folder(backend, path).map_err(|error| Error::io("opening", path, error))?;
        let (files, unfinished) = spool::list(&folder).map_err(|error| match error {
            Error::Corrupted { .. } => unusable(error.to_string()),
            other => other,
        })?;
        if let Some(name) = unfinished {
            return Err(unusable(format!("{name} is damaged: its header does not verify")));
        }
        Ok(ArchiveFolder { folder, files })
    }

    fn unusable(&self, reason: impl Into<String>) -> Error {
        Error::UnusableArchive { archive: self.folder.path().display().to_string(), reason: reason.into() }
    }

    /// Reads a file to its end.
    fn read(&self, file: &ArchiveFile) -> Result<ScannedFile> {
        let name = file.header.name();
        let found = spool::read(&self.folder, file).map_err(|error| match error {
            Error::Corrupted { .. } => self.unusable(format!("{name} is damaged: {error}")),
            other => other,
        })?;
        match found.is_finished {
            true => Ok(found),
            false => Err(self.unusable(format!("{name} is damaged or cut short after timestamp {}", found.last))),
        }
    }

    /// Fails if a file is missing between these two, which follow each other in a chain.
    fn check_next(&self, file: &ArchiveFile, last: Timestamp, next: &ArchiveFile) -> Result<()> {
        if next.header.number != file.header.number + 1 {
            let missing = ArchiveHeader { number: file.header.number + 1, ..file.header };
            return Err(self.unusable(format!("{} is missing", missing.name())));
        }
        if next.header.after != last {
            let reason = format!("{} does not continue {}", next.header.name(), file.header.name());
            return Err(self.unusable(reason));
        }
        Ok(())
    }

    /// Returns the files of each chain.
    fn chains(&self) -> impl Iterator<Item = &[ArchiveFile]> {
        self.files.chunk_by(|one, next| one.header.chain == next.header.chain)
    }

    /// Reads every byte, and returns what there is.
    pub(crate) fn verify(&self) -> Result<Vec<ArchivedChain>> {
        if self.files.is_empty() {
            return Err(self.unusable("it has no files"));
        }
        let database = self.files[0].header.database;
        if let Some(other) = self.files.iter().find(|file| file.header.database != database) {
            return Err(self.unusable(format!("{} is of another database", other.header.name())));
        }
        let chain_of = |files: &[ArchiveFile]| {
            let mut chain: Option<ArchivedChain> = None;
            for (index, file) in files.iter().enumerate() {
                let found = self.read(file)?;
                if let Some(next) = files.get(index + 1) {
                    self.check_next(file, found.last, next)?;
                }
                let chain = chain.get_or_insert_with(|| ArchivedChain {
                    from: file.header.after,
                    to: found.last,
                    from_time: Duration::from_millis(found.first_time_ms.unwrap_or(found.time_ms)),
                    to_time: Duration::ZERO,
                    commits: 0,
                    files: 0,
                    bytes: 0,
                });
                (chain.to, chain.to_time) = (found.last, Duration::from_millis(found.time_ms));
                chain.commits += found.commit_count;
                chain.files += 1;
                chain.bytes += file.bytes;
            }
            Ok(chain.expect("a chain has files"))
        };
        self.chains().map(chain_of).collect()
    }

    /// Returns the commits that lead from a backup of the state at `backup`, taken at `taken_at_ms`, to a point. Reads
    /// and verifies all files with these commits. Fails with what there is if the point is not in the archive.
    pub(crate) fn commits(
        self,
        database: DatabaseId,
        (backup, taken_at_ms): (Timestamp, u64),
        point: RestorePoint,
    ) -> Result<ArchivedCommits> {
        if let Some(other) = self.files.iter().find(|file| file.header.database != database) {
            let reason = format!("{} is of another database than the backup", other.header.name());
            return Err(self.unusable(reason));
        }
        let Some(first) = self.files.first() else { return Err(self.unusable("it has no files")) };
        let first_from = first.header.after;
        // The newest chain that may have the commits after the backup.
        let chains: Vec<&[ArchiveFile]> = self.chains().collect();
        let Some(at) = chains.iter().rposition(|chain| chain[0].header.after <= backup) else {
            return Err(self.unusable(format!(
                "it begins after timestamp {first_from}, and the backup has the state of timestamp {backup}. Use a newer \
                 backup"
            )));
        };
        let next_chain_from = chains.get(at + 1).map(|next| next[0].header.after);
        let begin = chains[at].partition_point(|file| file.header.after <= backup) - 1;
        let files = chains[at][begin..].to_vec();
        let mut search = Search::new(backup, taken_at_ms, point);
        let (mut used, mut cloned) = (Vec::new(), Vec::new());
        for (index, file) in files.iter().enumerate() {
            let found = self.read(file)?;
            used.push(file.clone());
            cloned.extend(&found.cloned);
            if let Some(reason) = search.add(&self.folder, file, &found)? {
                return Err(self.unusable(reason));
            }
            if search.found.is_some() {
                break;
            }
            if let Some(next) = files.get(index + 1) {
                self.check_next(file, found.last, next)?;
            }
        }
        let last = search.end().map_err(|reason| {
            let gap = next_chain_from.map_or(String::new(), |from| {
                format!(
                    ". It continues after a gap, from timestamp {from} on, with a backup of this state or a later one"
                )
            });
            self.unusable(reason + &gap)
        })?;
        used.reverse();
        Ok(ArchivedCommits {
            archive: self,
            left: used,
            scan: None,
            position: backup,
            last,
            cloned,
            time_ms: None,
            body: Vec::new(),
            at: 0,
            is_last_part: true,
            value_part: 0..0,
        })
    }
}

/// Finds the commit that a restore ends with.
struct Search {
    backup: Timestamp,
    taken_at_ms: u64,
    point: RestorePoint,
    /// The newest commit that was read, and its time.
    newest: Option<(Timestamp, u64)>,
    found: Option<Timestamp>,
}

impl Search {
    fn new(backup: Timestamp, taken_at_ms: u64, point: RestorePoint) -> Search {
        let found = (point == RestorePoint::Commit(backup)).then_some(backup);
        Search { backup, taken_at_ms, point, newest: None, found }
    }

    /// Looks for the point in the next file. Returns the reason if the backup is too new for it.
    fn add(&mut self, folder: &FolderRef, file: &ArchiveFile, found: &ScannedFile) -> Result<Option<String>> {
        let Search { backup, taken_at_ms, .. } = *self;
        match self.point {
            RestorePoint::Commit(wanted) if wanted < backup => {
                return Ok(Some(format!(
                    "timestamp {wanted} is before the backup, which has the state of timestamp {backup}. Use an older \
                     backup"
                )));
            }
            RestorePoint::Commit(wanted) if wanted <= found.last => {
                self.found = Some(wanted);
            }
            RestorePoint::Time(wanted) => {
                let wanted_ms = wanted.as_millis() as u64;
                let too_new = |time_ms: u64| {
                    Some(format!(
                        "{} is before the backup, which has the state of {}. Use an older backup",
                        Utc(wanted_ms),
                        Utc(time_ms)
                    ))
                };
                let mut scan = spool::scan(folder, &file.header)?;
                while let Some(record) = scan.next(file.bytes)? {
                    if record.kind != RecordKind::Commit {
                        continue;
                    }
                    if record.time_ms > wanted_ms {
                        // The commit before this one is the last one up to the time that is wanted.
                        let before = self.newest.filter(|(timestamp, _)| *timestamp >= backup);
                        return Ok(match before {
                            Some((timestamp, _)) => {
                                self.found = Some(timestamp);
                                None
                            }
                            None if record.timestamp <= backup => too_new(record.time_ms),
                            None if wanted_ms < taken_at_ms => too_new(taken_at_ms),
                            None => {
                                self.found = Some(backup);
                                None
                            }
                        });
                    }
                    self.newest = Some((record.timestamp, record.time_ms));
                }
            }
            _ => {}
        }
        self.newest = Some((found.last, found.time_ms));
        Ok(None)
    }

    /// Returns the commit, or the reason why there is none.
    fn end(&self) -> Result<Timestamp, String> {
        if let Some(found) = self.found {
            return Ok(found);
        }
        let (last, time_ms) = self.newest.expect("a file was read");
        let is_last = match self.point {
            RestorePoint::Newest => true,
            RestorePoint::Time(wanted) => wanted.as_millis() as u64 == time_ms,
            RestorePoint::Commit(_) => false,
        };
        match self.point {
            _ if last < self.backup && self.point == RestorePoint::Newest => Ok(self.backup),
            _ if last < self.backup => Err(format!(
                "it ends with timestamp {last} of {}, before the backup, which has the state of timestamp {}",
                Utc(time_ms),
                self.backup
            )),
            _ if is_last => Ok(last),
            RestorePoint::Commit(wanted) => Err(format!(
                "timestamp {wanted} is not in it: its last commit has timestamp {last} and is of {}",
                Utc(time_ms)
            )),
            _ => Err(format!(
                "it ends before this time: its last commit has timestamp {last} and is of {}",
                Utc(time_ms)
            )),
        }
    }
}

impl ArchivedCommits {
    fn damaged(&self, name: &str) -> Error {
        self.archive.unusable(format!("{name} is damaged after timestamp {}", self.position))
    }

    /// Returns the error for a commit that can't be made.
    pub(crate) fn malformed(&self) -> Error {
        self.archive.unusable(format!("the commit of timestamp {} makes no sense", self.position))
    }

    /// Returns `true` if a later commit clones a keyspace as of this one.
    pub(crate) fn is_cloned(&self) -> bool {
        self.cloned.contains(&self.position)
    }

    /// Reads the next record. Returns its timestamp.
    fn next_record(&mut self) -> Result<Timestamp> {
        loop {
            if self.scan.is_none() {
                let Some(file) = self.left.pop() else { return Err(self.damaged("its last file")) };
                self.scan = Some((spool::scan(&self.archive.folder, &file.header)?, file.bytes));
            }
            let (scan, end) = self.scan.as_mut().expect("it was just opened");
            let Some(record) = scan.next(*end)? else {
                let name = scan.path().display().to_string();
                return Err(self.damaged(&name));
            };
            if record.kind == RecordKind::End {
                self.scan = None;
                continue;
            }
            self.body.clear();
            self.body.extend_from_slice(scan.body());
            self.at = 0;
            self.is_last_part = record.kind == RecordKind::Commit;
            self.time_ms = Some(record.time_ms);
            return Ok(record.timestamp);
        }
    }

    /// Moves to the next commit. Returns its timestamp, or `None` after the last one.
    pub(crate) fn next_commit(&mut self) -> Result<Option<Timestamp>> {
        assert!(self.at == self.body.len() && self.is_last_part, "a commit was not read to its end");
        if self.position == self.last {
            self.body = Vec::new();
            self.at = 0;
            return Ok(None);
        }
        loop {
            let timestamp = self.next_record()?;
            if timestamp > self.position {
                if timestamp != self.position.next() {
                    return Err(self.malformed());
                }
                self.position = timestamp;
                return Ok(Some(timestamp));
            }
        }
    }

    /// Returns the next operation of the commit.
    pub(crate) fn next_operation(&mut self) -> Result<Option<(KeyspaceId, Operation<'_>)>> {
        while self.at == self.body.len() {
            if self.is_last_part {
                return Ok(None);
            }
            let timestamp = self.next_record()?;
            if timestamp != self.position {
                return Err(self.malformed());
            }
        }
        let malformed = self.malformed();
        let mut rest = &self.body[self.at..];
        let operation = record::take_operation(&mut rest).ok_or(malformed)?;
        self.at = self.body.len() - rest.len();
        if let (_, Operation::ValuePart { bytes }) = &operation {
            let start = bytes.as_ptr() as usize - self.body.as_ptr() as usize;
            self.value_part = start..start + bytes.len();
        }
        Ok(Some(operation))
    }

    /// Returns a reader of the value that the last operation has put in parts.
    pub(crate) fn value(&mut self, length: u64) -> ArchivedValue<'_> {
        self.value_part = 0..0;
        ArchivedValue { commits: self, left_bytes: length }
    }
}

/// Reads a large value of an archived commit.
pub(crate) struct ArchivedValue<'c> {
    commits: &'c mut ArchivedCommits,
    left_bytes: u64,
}

impl io::Read for ArchivedValue<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left_bytes == 0 || buffer.is_empty() {
            return Ok(0);
        }
        if self.commits.value_part.is_empty() {
            let is_part = match self.commits.next_operation().map_err(io::Error::other)? {
                Some((_, Operation::ValuePart { bytes })) => (1..=self.left_bytes).contains(&(bytes.len() as u64)),
                _ => false,
            };
            if !is_part {
                return Err(io::Error::other(self.commits.malformed()));
            }
        }
        let part = &mut self.commits.value_part;
        let bytes = part.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&self.commits.body[part.start..part.start + bytes]);
        part.start += bytes;
        self.left_bytes -= bytes as u64;
        Ok(bytes)
    }
}
