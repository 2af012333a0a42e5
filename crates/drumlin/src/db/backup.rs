//! Backups: making, verifying and restoring them.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use super::{Config, Database};
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::format::backup::SnapshotRef;
use crate::store::Store;
use crate::store::backup::BackupCounts;
use crate::store::backup_parts::{PartFolder, PartSink, PartSource, ReadParts, WrittenParts};
use crate::store::restore::{self, BackupRead};

/// Options of a backup.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// use drumlin::BackupOptions;
///
/// let (mut full, mut changes) = (Vec::new(), Vec::new());
/// db.backup_into(&mut full, &BackupOptions::new().keep("sunday"))?;
/// db.keyspace("k")?.insert("a", "1")?;
/// db.backup_into(&mut changes, &BackupOptions::new().keep("monday").since("sunday"))?;
/// db.drop_snapshot("sunday")?;
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct BackupOptions {
    keep: Option<String>,
    since: Option<String>,
    urgent: bool,
}

impl BackupOptions {
    /// Returns the options of a full backup whose snapshot is dropped at the end.
    #[must_use]
    pub fn new() -> BackupOptions {
        BackupOptions::default()
    }

    /// Keeps the [snapshot](Database::keep_snapshot) that is backed up under this name, as the base of later
    /// incremental backups. If a snapshot with this name exists already, it is backed up as it is. So a backup that was
    /// interrupted can be continued: of a folder, the parts that are there are not written again.
    /// [`BackupReport::snapshot_age`] says so. Give the snapshots of scheduled backups different names, such as the
    /// date.
    #[must_use]
    pub fn keep(mut self, name: &str) -> BackupOptions {
        self.keep = Some(name.to_owned());
        self
    }

    /// Makes an incremental backup: of the pages that have changed since the kept snapshot with this name.
    #[must_use]
    pub fn since(mut self, name: &str) -> BackupOptions {
        self.since = Some(name.to_owned());
        self
    }

    /// Makes the backup as fast as possible. By default it rests while other threads use the drive, and takes about
    /// four times as long.
    #[must_use]
    pub fn urgent(mut self) -> BackupOptions {
        self.urgent = true;
        self
    }
}

/// The result of making a backup.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let report = db.backup_into(std::io::sink(), &drumlin::BackupOptions::new())?;
/// println!("{} bytes in {:?}, as of commit {}", report.bytes, report.duration, report.timestamp);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BackupReport {
    /// The newest commit in the backup.
    pub timestamp: Timestamp,
    /// The commit since which the backup has the changes, or `None` for a full backup.
    pub since: Option<Timestamp>,
    /// If the snapshot was kept before the call, the time since it was taken. The backup has the state of that time.
    pub snapshot_age: Option<Duration>,
    /// The number of pages in the backup, including those of large values.
    pub pages: u64,
    /// The length of the backup in bytes.
    pub bytes: u64,
    /// The number of parts.
    pub parts: u32,
    /// The number of parts that an earlier attempt had written.
    pub parts_found: u32,
    /// The time that the call took.
    pub duration: Duration,
}

/// A description of a backup that has been read and verified.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// # db.keyspace("orders")?;
/// let mut backup = Vec::new();
/// db.backup_into(&mut backup, &drumlin::BackupOptions::new())?;
/// let info = drumlin::Config::new().verify_backup_from(&backup[..])?;
/// assert_eq!(info.keyspaces, ["orders"]);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BackupInfo {
    /// The newest commit in the backup.
    pub timestamp: Timestamp,
    /// The commit since which the backup has the changes, or `None` for a full backup.
    pub since: Option<Timestamp>,
    /// The names of the keyspaces, sorted.
    pub keyspaces: Vec<String>,
    /// The number of pages in the backup, including those of large values.
    pub pages: u64,
    /// The length of the backup in bytes.
    pub bytes: u64,
    /// The number of parts.
    pub parts: u32,
    /// The time since the snapshot in the backup was taken, by the system's clock.
    pub age: Duration,
}

impl BackupInfo {
    pub(super) fn of(read: BackupRead, now: Duration) -> BackupInfo {
        let BackupRead { head, catalogue, part_count, page_count, bytes } = read;
        let names = catalogue.keyspaces.into_iter().map(|keyspace| keyspace.name);
        BackupInfo {
            timestamp: head.snapshot.timestamp,
            since: head.base.map(|SnapshotRef { timestamp, .. }| timestamp),
            keyspaces: names.filter(|name| !name.is_empty()).collect(),
            pages: page_count,
            bytes,
            parts: part_count,
            age: now.saturating_sub(Duration::from_millis(head.taken_at_ms)),
        }
    }
}

impl Database {
    /// Writes a backup into a folder, which must not exist, be empty, or have parts of the same backup. Each part is a
    /// file of about half a megabyte. Reads and commits continue. O(data), or O(changes) for an incremental backup.
    ///
    /// The backup has the state of all keyspaces as of one commit, prepared transactions included. It copies pages as
    /// they are on disk, in the order of the disk, with a checksum over each part and over the whole.
    /// [`Config::restore`] makes a database of it.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`] for an unknown base; [`Error::Invalid`] for a folder that holds something else or that
    /// another backup is being written into, and for a base that is not older than the backup; [`Error::Corrupted`] for
    /// a damaged page; [`Error::DiskFull`]; [`Error::MemoryInUse`] while others use the memory,
    /// [`Error::BudgetTooSmall`] if page tables leave too little; [`Error::Io`]; the errors of
    /// [`keep_snapshot`](Database::keep_snapshot). After an error, the folder has the parts that were written, and is
    /// not a valid backup.
    pub fn backup_to(&self, folder: impl AsRef<Path>, options: &BackupOptions) -> Result<BackupReport> {
        let backend = &self.store()?.engine.backend;
        let path = folder.as_ref();
        let path = backend.absolute(path).map_err(|error| Error::io("finding", path, error))?;
        self.back_up(|| PartFolder::create(backend, &path), options)
    }

    /// Writes a backup as a stream of bytes, for example into a pipe. Otherwise like
    /// [`backup_to`](Database::backup_to).
    ///
    /// # Errors
    /// Those of [`backup_to`](Database::backup_to). If the writer fails, its error is the source of [`Error::Io`].
    pub fn backup_into(&self, writer: impl Write, options: &BackupOptions) -> Result<BackupReport> {
        self.back_up(|| Ok(WrittenParts(writer)), options)
    }

    /// Writes a backup into what `open` returns. Nothing is opened for options that are refused.
    fn back_up<S: PartSink>(&self, open: impl FnOnce() -> Result<S>, options: &BackupOptions) -> Result<BackupReport> {
        let store = self.store()?;
        let began = store.now();
        let kept = &store.engine.space.kept;
        let base = options.since.as_ref().map(|name| kept.get(name)).transpose()?;
        let found = options.keep.as_ref().and_then(|name| kept.get(name).ok());
        if let (Some(base), Some(found)) = (&base, &found)
            && (base.timestamp > found.timestamp || base.id == found.id)
        {
            return Err(Error::Invalid(format!(
                "the snapshot {:?} is not older than the backup, which has the state of commit {}, because the snapshot \
                 {:?} was kept before",
                base.name, found.timestamp, found.name
            )));
        }
        let mut sink = open()?;
        let taken_at = found.as_ref().map(|found| Duration::from_millis(found.taken_at_ms));
        let snapshot_age = taken_at.map(|taken_at| store.engine.backend.wall_clock().saturating_sub(taken_at));
        let temporary = match &options.keep {
            Some(_) if found.is_some() => None,
            Some(name) => {
                store.keep_snapshot(name, false)?;
                None
            }
            None => Some(TemporarySnapshot::take(store)?),
        };
        let name = temporary.as_ref().map(|temporary| &temporary.name).or(options.keep.as_ref());
        let snapshot = kept.get(name.expect("one or the other"))?;
        let counts = store.back_up(&snapshot, base.as_ref(), options.urgent, &mut sink)?;
        let BackupCounts { part_count, found_count, page_count, bytes } = counts;
        Ok(BackupReport {
            timestamp: snapshot.timestamp,
            since: base.map(|base| base.timestamp),
            snapshot_age,
            pages: page_count,
            bytes,
            parts: part_count,
            parts_found: found_count,
            duration: store.now() - began,
        })
    }
}

/// A snapshot that is dropped when the backup of it ends, or with the database.
struct TemporarySnapshot<'s> {
    store: &'s Store,
    name: String,
}

impl TemporarySnapshot<'_> {
    fn take(store: &Store) -> Result<TemporarySnapshot<'_>> {
        let name = format!("backup {:016x}", store.engine.backend.random());
        store.keep_snapshot(&name, true)?;
        Ok(TemporarySnapshot { store, name })
    }
}

impl Drop for TemporarySnapshot<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.store.drop_snapshot(&self.name) {
            log::warn!("the snapshot {:?} of a backup is still kept: {error}", self.name);
        }
    }
}

impl Config {
    /// Restores a database from a full backup and the incremental backups that follow it, in the order in which they
    /// were made. `target` must not exist or be an empty folder. The restored database has the state of the last
    /// backup, and an identity of its own. O(data).
    ///
    /// The memory budget must have room for the page tables: 8 bytes for each page.
    ///
    /// ```
    /// # let folder = std::env::temp_dir().join(format!("drumlin-doc-restore-{}", std::process::id()));
    /// use drumlin::{BackupOptions, Config};
    ///
    /// let db = Config::new().open(folder.join("shop.drumlin"))?;
    /// db.keyspace("orders")?.insert("1", "three apples")?;
    /// db.backup_to(folder.join("sunday"), &BackupOptions::new())?;
    /// Config::new().restore([folder.join("sunday")], folder.join("restored"))?;
    /// let restored = Config::new().open(folder.join("restored"))?;
    /// assert_eq!(restored.keyspace("orders")?.get("1")?.unwrap(), "three apples");
    /// # restored.close()?;
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnusableBackup`] for a backup that is damaged, cut short, or does not follow the one before it;
    /// [`Error::Invalid`] for a target that is not empty; [`Error::BudgetTooSmall`], [`Error::DiskFull`],
    /// [`Error::Io`]. After an error, `target` does not contain a database.
    pub fn restore<P: AsRef<Path>>(
        &self,
        backups: impl IntoIterator<Item = P>,
        target: impl AsRef<Path>,
    ) -> Result<BackupInfo> {
        let mut folders = Vec::new();
        for path in backups {
            folders.push(self.backup_folder(path.as_ref())?);
        }
        self.restore_parts(folders.iter_mut().map(|folder| folder as &mut dyn PartSource), target.as_ref())
    }

    /// Restores a database from backups that were written as streams. Otherwise like [`restore`](Config::restore).
    ///
    /// # Errors
    /// Those of [`restore`](Config::restore).
    pub fn restore_from<R: Read>(
        &self,
        backups: impl IntoIterator<Item = R>,
        target: impl AsRef<Path>,
    ) -> Result<BackupInfo> {
        let mut streams = ReadParts::numbered(backups);
        self.restore_parts(streams.iter_mut().map(|stream| stream as &mut dyn PartSource), target.as_ref())
    }

    fn restore_parts<'p>(
        &self,
        sources: impl Iterator<Item = &'p mut (dyn PartSource + 'p)>,
        target: &Path,
    ) -> Result<BackupInfo> {
        self.check()?;
        let now = self.settings.choose_backend(target)?.wall_clock();
        let mut sources: Vec<&mut dyn PartSource> = sources.collect();
        restore::restore(&self.settings, target, &mut sources).map(|read| BackupInfo::of(read, now))
    }

    /// Reads every byte of a backup in a folder and verifies it: the checksums of its parts and of each page, and that
    /// nothing is missing. Writes nothing. Does not read the backups before an incremental one. O(backup).
    ///
    /// # Errors
    /// [`Error::UnusableBackup`], [`Error::Io`].
    pub fn verify_backup(&self, folder: impl AsRef<Path>) -> Result<BackupInfo> {
        let mut folder = self.backup_folder(folder.as_ref())?;
        self.verify_parts(&mut folder)
    }

    /// Verifies a backup that was written as a stream. Otherwise like [`verify_backup`](Config::verify_backup).
    ///
    /// # Errors
    /// Those of [`verify_backup`](Config::verify_backup).
    pub fn verify_backup_from(&self, reader: impl Read) -> Result<BackupInfo> {
        self.verify_parts(&mut ReadParts { reader, name: "that was read".to_owned() })
    }

    fn verify_parts(&self, source: &mut dyn PartSource) -> Result<BackupInfo> {
        let now = self.settings.choose_backend(Path::new(""))?.wall_clock();
        restore::verify_backup(source).map(|read| BackupInfo::of(read, now))
    }

    pub(super) fn backup_folder(&self, path: &Path) -> Result<PartFolder> {
        let backend = self.settings.choose_backend(path)?;
        let path = backend.absolute(path).map_err(|error| Error::io("finding", path, error))?;
        PartFolder::open(&backend, &path)
    }
}
