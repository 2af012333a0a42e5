//! Restoring a database to a point in time: a backup, and the archived commits after it.

use std::io::Read;
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

use super::backup::BackupInfo;
use super::config::Config;
use super::database::Database;
use super::keyspace::Keyspace;
use super::transaction::Transaction;
use crate::archive::point::RestorePoint;
use crate::archive::reading::{ArchiveFolder, ArchivedChain, ArchivedCommits};
use crate::error::{Error, Result};
use crate::format::prepared::{self, Head};
use crate::format::record::Operation;
use crate::format::{KeyspaceId, Timestamp};
use crate::store::backup_parts::{PartSource, ReadAhead, ReadParts};
use crate::store::clones::HeldCheckpoint;
use crate::store::{OwnedChange, Settings, restore};
use crate::txn::commit::Durability;
use crate::txn::locks::LockMode;

/// The result of [`Config::restore_to`].
///
/// ```no_run
/// use drumlin::{Config, RestorePoint};
///
/// let report = Config::new().restore_to(["sunday"], "archive", RestorePoint::Newest, "restored")?;
/// println!("the state of commit {}: {} after the backup's", report.timestamp, report.commits);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RestoreReport {
    /// The last backup.
    pub backup: BackupInfo,
    /// The newest commit in the restored database.
    pub timestamp: Timestamp,
    /// The time of this commit, since 1970; `None` if no commit came from the archive.
    pub time: Option<Duration>,
    /// The number of commits that came from the archive.
    pub commits: u64,
}

impl Config {
    /// Restores a database to a point in time: from a full backup and the incremental backups that follow it, like
    /// [`restore`](Config::restore), and the commits after them in the folder of an [archive](crate::Archive).
    /// O(data + commits), with the memory budget of an open database, which must be at least that of the archived one.
    ///
    /// The restored database has exactly the state after the last commit up to `point`, prepared transactions included.
    /// It has an identity of its own, so it needs an archive folder of its own.
    ///
    /// # Errors
    /// [`Error::UnusableArchive`] if the archive does not have all commits from the backup to `point`: it names what it
    /// has, or the file that is missing or damaged; the errors of [`restore`](Config::restore) and of commits. After an
    /// error, `target` does not contain a database.
    pub fn restore_to<P: AsRef<Path>>(
        &self,
        backups: impl IntoIterator<Item = P>,
        archive: impl AsRef<Path>,
        point: RestorePoint,
        target: impl AsRef<Path>,
    ) -> Result<RestoreReport> {
        let mut folders = Vec::new();
        for path in backups {
            folders.push(self.backup_folder(path.as_ref())?);
        }
        let sources = folders.iter_mut().map(|folder| folder as &mut dyn PartSource);
        self.restore_to_point(sources, archive.as_ref(), point, target.as_ref())
    }

    /// Restores a database to a point in time from backups that were written as streams. Otherwise like
    /// [`restore_to`](Config::restore_to). The beginning of the last stream is read first.
    ///
    /// ```no_run
    /// use drumlin::{Config, RestorePoint};
    ///
    /// Config::new().restore_from_to([std::io::stdin()], "archive", RestorePoint::Newest, "restored")?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`restore_to`](Config::restore_to).
    pub fn restore_from_to<R: Read>(
        &self,
        backups: impl IntoIterator<Item = R>,
        archive: impl AsRef<Path>,
        point: RestorePoint,
        target: impl AsRef<Path>,
    ) -> Result<RestoreReport> {
        let mut streams = ReadParts::numbered(backups);
        let sources = streams.iter_mut().map(|stream| stream as &mut dyn PartSource);
        self.restore_to_point(sources, archive.as_ref(), point, target.as_ref())
    }

    fn restore_to_point<'p>(
        &self,
        sources: impl Iterator<Item = &'p mut (dyn PartSource + 'p)>,
        archive: &Path,
        point: RestorePoint,
        target: &Path,
    ) -> Result<RestoreReport> {
        self.check()?;
        // The first part of the last backup is read twice: now for its head, and when its turn has come.
        let mut sources: Vec<ReadAhead<'_>> = sources.map(ReadAhead::new).collect();
        let Some(last) = sources.last_mut() else {
            return Err(Error::Invalid("no backup was given to restore".into()));
        };
        let head = restore::read_head(last)?;
        let backup = head.snapshot.timestamp;
        // First of all, read everything that will be needed of the archive.
        let folder = self.archive_folder(archive)?;
        let mut commits = folder.commits(head.database, (backup, head.taken_at_ms), point)?;
        let mut sources: Vec<&mut dyn PartSource> =
            sources.iter_mut().map(|source| source as &mut dyn PartSource).collect();
        let backend = self.settings.choose_backend(target)?;
        let now = backend.wall_clock();
        // One folder in all steps, even if the working directory changes between them.
        let target = &backend.absolute(target).map_err(|error| Error::io("finding", target, error))?;
        let settings = Settings {
            create: false,
            read_only: false,
            salvage: false,
            warm_start: false,
            retention: None,
            archive: None,
            durability: Durability::Relaxed,
            is_restoring: true,
            ..self.settings.clone()
        };
        let read = restore::begin(&settings, target, &mut sources)?;
        let timestamp = commits.last;
        if timestamp > backup {
            let db = Database::open_with(&settings, target)?;
            let applied = Repeating { db: &db, keyspace: None }.apply(&mut commits);
            // An error of a commit says more than that of closing.
            applied.and(db.close())?;
        }
        restore::finish(&settings, target)?;
        let time = commits.time_ms.map(Duration::from_millis);
        Ok(RestoreReport { backup: BackupInfo::of(read, now), timestamp, time, commits: timestamp.0 - backup.0 })
    }

    /// Reads every byte of an archive in a folder, and returns its chains in their order. Between two chains commits
    /// are missing, because the archive was off or had ended: a backup can be restored to the commits of one chain, if
    /// it has the state at the beginning of the chain or a later one. Writes nothing. O(archive).
    ///
    /// # Errors
    /// [`Error::UnusableArchive`] if a file is missing within a chain, damaged, or of another database; [`Error::Io`].
    pub fn verify_archive(&self, folder: impl AsRef<Path>) -> Result<Vec<ArchivedChain>> {
        self.archive_folder(folder.as_ref())?.verify()
    }

    fn archive_folder(&self, path: &Path) -> Result<ArchiveFolder> {
        let backend = self.settings.choose_backend(path)?;
        let path = backend.absolute(path).map_err(|error| Error::io("finding", path, error))?;
        ArchiveFolder::open(&backend, &path)
    }
}

/// Makes archived commits again, through the ordinary calls. Each gets the timestamp that it had.
struct Repeating<'d> {
    db: &'d Database,
    /// The keyspace of the last operation.
    keyspace: Option<(KeyspaceId, Keyspace)>,
}

impl Repeating<'_> {
    fn apply(&mut self, commits: &mut ArchivedCommits) -> Result<()> {
        let db = self.db;
        let mut held = None;
        loop {
            if commits.is_cloned() {
                held = Some(db.store()?.hold_checkpoint()?);
            }
            let Some(timestamp) = commits.next_commit()? else { return Ok(()) };
            if self.apply_commit(commits, held.as_ref())? {
                held = None;
            }
            if self.db.store()?.engine.log().last() != timestamp {
                return Err(commits.malformed());
            }
        }
    }

    fn open(&mut self, id: KeyspaceId) -> Option<&Keyspace> {
        if self.keyspace.as_ref().is_none_or(|(last, _)| *last != id) {
            let open = self.db.store().ok()?.keyspace_with_id(id)?;
            self.keyspace = Some((id, Keyspace::new(&self.db.handle, open)));
        }
        self.keyspace.as_ref().map(|(_, keyspace)| keyspace)
    }

    /// Begins a transaction for the rows of a commit. A bulk load may have had rows that a prepared transaction has
    /// locked.
    fn begin(&self) -> Result<Transaction> {
        Transaction::begin_alone(&self.db.handle, self.db.tx_options())
    }

    /// Makes a commit. Returns `true` if it clones a keyspace of the checkpoint that is `held`.
    fn apply_commit(&mut self, commits: &mut ArchivedCommits, held: Option<&HeldCheckpoint<'_>>) -> Result<bool> {
        let mut tx: Option<Transaction> = None;
        let mut alteration: Vec<(KeyspaceId, OwnedChange)> = Vec::new();
        // Large values have their key copied, because reading them advances the commit.
        let mut large: Option<(KeyspaceId, Vec<u8>, u64)> = None;
        loop {
            if let Some((id, key, length)) = large.take() {
                let keyspace = self.open(id).cloned().ok_or_else(|| commits.malformed())?;
                let tx = tx.as_mut().expect("begun for the value");
                if tx.insert_from(&keyspace, key, commits.value(length))? != length {
                    return Err(commits.malformed());
                }
            }
            let Some((id, operation)) = commits.next_operation()? else { break };
            match operation {
                Operation::Create { page_bytes, name } => {
                    let page_bytes = page_bytes as usize;
                    alteration.push((id, OwnedChange::Create { page_bytes, name: name.to_owned() }));
                }
                Operation::Rename { name } => alteration.push((id, OwnedChange::Rename { name: name.to_owned() })),
                Operation::Drop => alteration.push((id, OwnedChange::Drop)),
                Operation::CommitPrepared { id, .. } => {
                    self.db.commit_prepared_with(id, Durability::Relaxed)?;
                }
                Operation::Remove { key } if id == KeyspaceId::PREPARED => {
                    if let Some(id) = prepared::id_of(key) {
                        self.db.abort_prepared(id)?;
                    }
                }
                Operation::Put { key, value } if id == KeyspaceId::PREPARED => {
                    let (key, changes) = (key.to_vec(), value.to_vec());
                    return self.prepare(commits, &key, &changes).map(|()| false);
                }
                Operation::PutInParts { key, length } if id == KeyspaceId::PREPARED => {
                    let key = key.to_vec();
                    let changes = read_whole(commits, length)?;
                    return self.prepare(commits, &key, &changes).map(|()| false);
                }
                Operation::Clone { from, as_of, name } => {
                    let to = (id, name);
                    let Some(held) = held else { return Err(commits.malformed()) };
                    self.db.store()?.repeat_clone(held, from, as_of, to)?;
                    return Ok(true);
                }
                Operation::Loaded { .. } => {
                    if tx.is_none() {
                        tx = Some(self.begin()?);
                    }
                }
                Operation::Put { .. }
                | Operation::Remove { .. }
                | Operation::RemoveRange { .. }
                | Operation::PutInParts { .. } => {
                    if tx.is_none() {
                        tx = Some(self.begin()?);
                    }
                    let tx = tx.as_mut().expect("just begun");
                    match (operation, self.open(id)) {
                        (Operation::Put { key, value }, Some(keyspace)) => tx.insert(keyspace, key, value)?,
                        (Operation::Remove { key }, Some(keyspace)) => tx.remove(keyspace, key)?,
                        (Operation::RemoveRange { lower, upper }, Some(keyspace)) => {
                            let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
                            tx.remove_range(keyspace, (Bound::Included(lower), upper))?;
                        }
                        (Operation::PutInParts { key, length }, Some(_)) => large = Some((id, key.to_vec(), length)),
                        _ => return Err(commits.malformed()),
                    }
                }
                Operation::PutLarge { .. }
                | Operation::Attach(_)
                | Operation::PutStored { .. }
                | Operation::Lock { .. }
                | Operation::PutReference { .. }
                | Operation::OldValue(_)
                | Operation::ValuePart { .. } => return Err(commits.malformed()),
            }
        }
        if !alteration.is_empty() {
            self.keyspace = None;
            self.db.store()?.repeat_alteration(&alteration)?;
        }
        match tx {
            Some(tx) => tx.commit().map(|_| false),
            None => Ok(false),
        }
    }

    /// Prepares a transaction with these changes. The rows of its large values follow in the commit.
    fn prepare(&mut self, commits: &mut ArchivedCommits, key: &[u8], changes: &[u8]) -> Result<()> {
        let id = prepared::id_of(key).ok_or_else(|| commits.malformed())?;
        let head = Head::decode(changes).ok_or_else(|| commits.malformed())?;
        let mut tx = self.db.begin()?;
        let mut stored: Vec<(Keyspace, &[u8])> = Vec::new();
        for (keyspace, operation) in prepared::operations(changes) {
            let keyspace = self.open(keyspace).ok_or_else(|| commits.malformed())?;
            match operation {
                Operation::Put { key, value } => tx.insert(keyspace, key, value)?,
                Operation::Remove { key } => tx.remove(keyspace, key)?,
                Operation::PutStored { key, .. } => stored.push((keyspace.clone(), key)),
                Operation::Lock { key, is_shared } => {
                    let lock_mode = if is_shared { LockMode::Shared } else { LockMode::Exclusive };
                    tx.lock_row(keyspace, key, lock_mode)?;
                }
                _ => return Err(commits.malformed()),
            }
        }
        for (keyspace, key) in stored {
            let length = match commits.next_operation()? {
                Some((KeyspaceId::PREPARED, Operation::PutInParts { length, .. })) => length,
                _ => return Err(commits.malformed()),
            };
            if tx.insert_from(&keyspace, key, commits.value(length))? != length {
                return Err(commits.malformed());
            }
        }
        if commits.next_operation()?.is_some() {
            return Err(commits.malformed());
        }
        tx.prepare_at(id, Duration::from_millis(head.time_ms))
    }
}

/// Reads the changes of a prepared transaction that are a large value.
fn read_whole(commits: &mut ArchivedCommits, length: u64) -> Result<Vec<u8>> {
    let mut changes = Vec::new();
    let read = std::io::Read::read_to_end(&mut commits.value(length), &mut changes);
    read.map_err(|_| commits.malformed())?;
    Ok(changes)
}
