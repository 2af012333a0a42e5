//! The settings for opening a database.

use std::path::Path;
use std::time::Duration;

use crate::archive::Archive;
use crate::error::{Error, Result};
use crate::feed::Retention;
use crate::format::LOG_STREAM_COUNT_MAX;
use crate::format::node::is_page_bytes;
use crate::io::IoBackend;
use crate::memory::Budget;
use crate::seglog::RELAXED_DELAY;
use crate::store::{CheckProgress, CheckReport, LockWait, LockWaitHook, Settings, check};
use crate::txn::commit::Durability;
use crate::txn::spilled::{SpillLimit, VersionOverflow};

/// The minimum size of a log segment: 1 MiB, or less in simulations.
const LOG_SEGMENT_BYTES_MIN: u64 = if cfg!(feature = "sim") { 256 << 10 } else { 1 << 20 };
/// The maximum size of a log segment. The segment's index, a 4096th of its size, is allocated before the first append.
const LOG_SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// The maximum delay of relaxed commits. Beyond it, a longer delay saves hardly any writes.
const RELAXED_DELAY_MAX: Duration = Duration::from_secs(1);
/// The maximum memory budget. Frames have 29-bit numbers, and each page size reserves address space for the whole
/// budget.
const MEMORY_BYTES_MAX: u64 = 1 << 40;

/// The settings for opening a database. There are few options. Each has a default, which either was chosen by
/// measurement or hardly matters.
///
/// ```
/// use drumlin::Config;
///
/// let db = Config::in_memory().memory(16 << 20).open("")?;
/// db.keyspace("orders")?.insert(b"k", b"v")?;
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) settings: Settings,
}

impl Default for Config {
    fn default() -> Config {
        let settings = Settings {
            memory_bytes: 256 << 20,
            log_stream_count: 1,
            page_bytes: 4096,
            segment_bytes: 1 << 20,
            log_segment_bytes: None,
            checkpoint_log_bytes: 256 << 20,
            retention: None,
            archive: None,
            is_restoring: false,
            durability: Durability::Full,
            relaxed_delay: RELAXED_DELAY,
            io_backend: IoBackend::Auto,
            in_memory: false,
            create: true,
            read_only: false,
            warm_start: true,
            spill_limit: SpillLimit::default(),
            salvage: false,
            on_lock_wait: None,
            backend: None,
        };
        Config { settings }
    }
}

impl Config {
    /// Creates the default settings.
    #[must_use]
    pub fn new() -> Config {
        Config::default()
    }

    /// Creates the settings for a database that exists only in memory and is discarded with its last handle.
    /// [`open`](Config::open) ignores the path.
    #[must_use]
    pub fn in_memory() -> Config {
        let Config { settings } = Config::default();
        Config { settings: Settings { in_memory: true, ..settings } }
    }

    /// Sets the memory budget in bytes, for everything that the database holds in memory: pages and their headers, page
    /// tables, log and I/O buffers, versions, locks, read and write sets. Default 256 MiB, at least 8 MiB, at most 1
    /// TiB.
    ///
    /// The budget does not include free memory that the allocator retains, which grows with the number of threads. With
    /// glibc's allocator, two processors and a budget of 64 MiB, resident memory reached 38 MiB with rows of 100 bytes,
    /// 44 MiB with rows of 1 KiB, 47 MiB with values of 300 KiB from 4 threads, and 111 MiB with a mixed load from 64
    /// threads, including their stacks and values. With `MALLOC_ARENA_MAX=2` it reached 38, 44, 58 and 88 MiB.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Config {
        self.settings.memory_bytes = bytes;
        self
    }

    /// Sets the number of parallel log streams, which can be changed at each opening. Default 1, at most 64. Multiple
    /// streams help only if a single device queue cannot sustain the write rate. The streams other than the first share
    /// a sixteenth of the memory, but have at least 32 KiB each. Records that are too long for them are written to the
    /// first stream.
    ///
    /// A stream may have its own device: while the database is closed, create a folder `log/N` in its folder, or a link
    /// `log/N` to a folder elsewhere, and move the segments `log/N-*.seg` there. From then on, stream N, counted from
    /// 0, creates its segments there, and the database does not open without the folder.
    #[must_use]
    pub fn log_streams(mut self, count: u16) -> Config {
        self.settings.log_stream_count = count;
        self
    }

    /// Limits the disk space for old versions of rows, in bytes. Open snapshots, transactions and scans need the
    /// versions that were current when they began and have been replaced since. When old versions outgrow a sixteenth
    /// of the memory, they are spilled to the file `versions` in the database's folder. The file disappears with the
    /// last snapshot that needs it. At the limit, [the oldest snapshot ends](VersionOverflow). While versions are being
    /// merged, the file may take twice the limit. Default: a quarter of the live bytes, but at least 256 MiB. With 0,
    /// all versions stay in memory, and the oldest snapshot ends when they outgrow a sixteenth of the memory.
    #[must_use]
    pub fn version_disk_bytes(mut self, bytes: u64) -> Config {
        self.settings.spill_limit.bytes = Some(bytes);
        self
    }

    /// Sets a function that is called before each wait for a row lock, on the thread that will wait, or that polls the
    /// waiting task. Its argument says which transaction waits, and which transactions hold the lock. The function must
    /// be quick, and must not call the database. Default: no function.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::time::Duration;
    ///
    /// let waits = Arc::new(AtomicU64::new(0));
    /// let counted = Arc::clone(&waits);
    /// let config = drumlin::Config::in_memory();
    /// let db = config.on_lock_wait(move |_| drop(counted.fetch_add(1, Ordering::Relaxed))).open("")?;
    /// let k = db.keyspace("k")?;
    /// let (mut first, mut second) = (db.begin()?, db.begin()?);
    /// first.insert(&k, "a", "1")?;
    /// second.set_lock_timeout(Duration::from_millis(1));
    /// assert!(second.insert(&k, "a", "2").is_err());
    /// assert_eq!(waits.load(Ordering::Relaxed), 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn on_lock_wait(mut self, hook: impl Fn(&LockWait<'_>) + Send + Sync + 'static) -> Config {
        self.settings.on_lock_wait = Some(LockWaitHook(std::sync::Arc::new(hook)));
        self
    }

    /// Chooses who loses out when old versions reach [`version_disk_bytes`](Self::version_disk_bytes): readers or
    /// writers. Default: [`VersionOverflow::EndSnapshots`].
    #[must_use]
    pub fn version_overflow(mut self, choice: VersionOverflow) -> Config {
        self.settings.spill_limit.overflow = choice;
        self
    }

    /// Sets the page size of keyspaces that are created without specifying one: a power of two from 4 to 64 KiB (down
    /// to 512 bytes in tests). Default 4 KiB, which transfers the fewest bytes for a random read of a row.
    #[must_use]
    pub fn page_bytes(mut self, bytes: usize) -> Config {
        self.settings.page_bytes = bytes;
        self
    }

    /// Sets the segment size of a new database's data file, a power of two from 256 KiB to 64 MiB. Default 1 MiB.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u64) -> Config {
        self.settings.segment_bytes = bytes;
        self
    }

    /// Sets the size of a log segment file: a multiple of 4 KiB from 1 MiB to 1 GiB. Default 16 MiB; on a file system
    /// of less than 1 GiB, a sixty-fourth of its size. This is rounded down to a power of two, but is at least 1 MiB.
    #[must_use]
    pub fn log_segment_bytes(mut self, bytes: u64) -> Config {
        self.settings.log_segment_bytes = Some(bytes);
        self
    }

    /// Sets the number of bytes of log after which a checkpoint is made. Recovery never reads more log than this.
    /// Default 256 MiB, which takes a second or two to recover.
    #[must_use]
    pub fn checkpoint_log_bytes(mut self, bytes: u64) -> Config {
        self.settings.checkpoint_log_bytes = bytes;
        self
    }

    /// Keeps the changes of commits readable for [`Database::changes`](crate::Database::changes), as far back as
    /// `retention` says, also after checkpoints, and when the database is closed and reopened. Default: that of the
    /// last opening; none for a database that has never kept changes.
    ///
    /// A background thread copies each durable commit from the log to files in the folder `changes`, so commits are
    /// written twice. The files take up to a quarter more than the bytes that are kept, plus what was changed since the
    /// oldest file was begun. They are removed early only if the disk is full, oldest first. If they can't be written
    /// for another reason, no more changes are kept until the database is reopened, and
    /// [`Stats::changes_failure`](crate::Stats::changes_failure) says why. That opening removes the files, which would
    /// have a gap, and begins again.
    ///
    /// Later openings continue with the same retention, so a tool that opens the database leaves no gap. An opening
    /// with another retention changes it, and one with [`Retention::none`] ends it and removes the files.
    ///
    /// ```
    /// use drumlin::{Config, Retention};
    ///
    /// let db = Config::in_memory().keep_changes(Retention::bytes(64 << 20)).open("")?;
    /// let mut changes = db.changes(db.snapshot().timestamp())?;
    /// db.keyspace("orders")?;
    /// let commit = changes.next().expect("it waits for one")?;
    /// println!("{}: {:?}", commit.timestamp(), commit.changes().collect::<Vec<_>>());
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn keep_changes(mut self, retention: Retention) -> Config {
        self.settings.retention = Some(retention);
        self
    }

    /// Copies all durable commits to an archive, so that a backup can be [restored](Config::restore_to) to any moment
    /// after it. Default: none for a database that has never had an archive.
    ///
    /// A background thread copies each durable commit, with the rows of bulk loads and the bytes of large values, to a
    /// file in the folder `archive` of the database. Once a file is old or long enough, another thread delivers it and
    /// removes it there. If it can't be delivered, it waits, and is tried again each second.
    /// [`Stats::archive_failure`](crate::Stats::archive_failure) and the program's log say why. If more files would
    /// have to wait than [`Archive::limit_bytes`] allows, or the disk of the database is full, the archive ends, and
    /// the database continues without it. The next opening begins it again: after a gap, for which a new backup is
    /// needed, as the log says, and each restore that would have to pass it.
    ///
    /// An opening without this setting, for example by a tool, copies commits too, and leaves the files for the next
    /// opening that has it. An opening with [`Archive::off`] ends the archive.
    ///
    /// ```
    /// # let folder = std::env::temp_dir().join(format!("drumlin-doc-archive-{}", std::process::id()));
    /// use drumlin::{Archive, BackupOptions, Config, RestorePoint};
    ///
    /// let archive = Archive::to_folder(folder.join("archive"));
    /// let db = Config::new().archive(archive).open(folder.join("shop.drumlin"))?;
    /// db.backup_to(folder.join("sunday"), &BackupOptions::new())?;
    /// db.keyspace("orders")?.insert("1", "three apples")?;
    /// let then = db.snapshot().timestamp();
    /// db.drop_keyspace("orders")?;
    /// db.close()?;
    /// let (sunday, archive) = (folder.join("sunday"), folder.join("archive"));
    /// Config::new().restore_to([sunday], archive, RestorePoint::Commit(then), folder.join("restored"))?;
    /// let restored = Config::new().open(folder.join("restored"))?;
    /// assert_eq!(restored.keyspace("orders")?.get("1")?.unwrap(), "three apples");
    /// # restored.close()?;
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn archive(mut self, archive: Archive) -> Config {
        self.settings.archive = Some(archive);
        self
    }

    /// Sets the durability of commits that do not specify one: commits through a keyspace's handle (unless it comes
    /// from [`Keyspace::with_durability`](crate::Keyspace::with_durability)) and commits of transactions and batches
    /// created by [`Database::begin`](crate::Database::begin), `transact` and `batch`. Default [`Durability::Full`].
    /// With [`Durability::Relaxed`], [`Database::sync`](crate::Database::sync) makes earlier commits durable.
    ///
    /// ```
    /// use drumlin::{Config, Durability};
    ///
    /// let db = Config::in_memory().durability(Durability::Relaxed).open("")?;
    /// let k = db.keyspace("k")?;
    /// for row in 0..1000u32 {
    ///     k.insert(row.to_be_bytes(), "returns before it is durable")?;
    /// }
    /// db.sync()?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Config {
        self.settings.durability = durability;
        self
    }

    /// Sets the time after which a [`Durability::Relaxed`] commit is written, together with those that came in the
    /// meantime: 1 ms by default, at most 1 s. It is written earlier if a caller waits for it or many bytes wait. If
    /// something else can repeat the commits after a power cut, as the log of a replicated database can, a longer time
    /// saves writes. Readers of changes and archives also get these commits later.
    #[must_use]
    pub fn relaxed_delay(mut self, delay: Duration) -> Config {
        self.settings.relaxed_delay = delay.min(RELAXED_DELAY_MAX);
        self
    }

    /// Sets the backend that reads and writes files. Default: io_uring if the system allows it. The environment
    /// variable `DRUMLIN_IO_BACKEND` (`uring` or `portable`) takes precedence.
    #[must_use]
    pub fn io_backend(mut self, kind: IoBackend) -> Config {
        self.settings.io_backend = kind;
        self
    }

    /// Sets whether the database is created if it does not exist. Default yes.
    #[must_use]
    pub fn create(mut self, create: bool) -> Config {
        self.settings.create = create;
        self
    }

    /// Opens the database for reading only: no thread writes to any file, so this works on read-only media, and for
    /// users without write permission. Any number of processes can have a database open for reading only, but not while
    /// a process has it open for writing. Calls that write return [`Error::ReadOnly`]. A database that does not exist
    /// is not created. Default no.
    ///
    /// The database must have been closed properly, because a read-only opening cannot recover it and fails with
    /// [`Error::NotClosed`].
    ///
    /// ```
    /// use drumlin::{Config, Database, Error};
    ///
    /// # let folder = std::env::temp_dir().join(format!("drumlin-doc-read-only-{}", std::process::id()));
    /// # let path = folder.join("shop.drumlin");
    /// let db = Database::open(&path)?;
    /// db.keyspace("orders")?.insert("k", "v")?;
    /// db.close()?;
    ///
    /// let config = Config::new().read_only(true);
    /// let (db, other) = (config.open(&path)?, config.open(&path)?);
    /// let orders = db.existing_keyspace("orders")?;
    /// assert_eq!(orders.get("k")?.unwrap(), b"v");
    /// assert!(matches!(orders.remove("k"), Err(Error::ReadOnly { .. })));
    /// # drop((db, orders, other));
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Config {
        self.settings.read_only = read_only;
        self
    }

    /// Opens the readable part of a corrupted database that cannot be opened otherwise, for [reading
    /// only](Self::read_only). Corrupted parts are left out. The log is ignored, so the rows are those of the newest
    /// checkpoint. [`Opening::skipped`](crate::Opening::skipped) lists the missing parts. Default no.
    ///
    /// Read the rows with [`Range::salvage`](crate::Range::salvage). A keyspace whose page table is corrupted has gaps,
    /// or no rows; other keyspaces are complete. If a summary of page-table changes is corrupted, some rows may also be
    /// missing or older than the checkpoint. If both superblocks or the catalogue are corrupted, nothing can be read,
    /// and the call fails with [`Error::Corrupted`].
    ///
    /// ```
    /// use drumlin::{Config, Database, Salvaged};
    ///
    /// # let folder = std::env::temp_dir().join(format!("drumlin-doc-salvage-{}", std::process::id()));
    /// # let path = folder.join("shop.drumlin");
    /// # let db = Database::open(&path)?;
    /// # db.keyspace("orders")?.insert("k", "v")?;
    /// # db.close()?;
    /// let db = Config::new().salvage(true).open(&path)?;
    /// for damage in &db.opening().skipped {
    ///     eprintln!("{damage}");
    /// }
    /// for info in db.keyspaces() {
    ///     for step in db.existing_keyspace(&info.name)?.iter().salvage() {
    ///         match step? {
    ///             Salvaged::Row(key, value) => println!("{}: {key:?}: {value:?}", info.name),
    ///             gap => eprintln!("{}: {gap:?}", info.name),
    ///         }
    ///     }
    /// }
    /// # drop(db);
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn salvage(mut self, salvage: bool) -> Config {
        self.settings.salvage = salvage;
        self.settings.read_only |= salvage;
        self
    }

    /// Sets whether opening the database starts to reread, in the background, the pages that were in memory when it was
    /// last closed. Default `true`.
    ///
    /// The file `resident` lists these pages, with 20 bytes for each. Closing writes it, and so do occasional
    /// checkpoints, in case the process is killed. The file is not synced; if it is corrupted or missing, only the warm
    /// start is lost. A thread reads the pages in disk order while there is free memory, and slows down while other
    /// reads wait for the device. There is no warm start if the database is opened for [reading
    /// only](Config::read_only). [`Stats::pages_warmed`](crate::Stats::pages_warmed) counts the pages.
    ///
    /// With `false`, the file is neither read nor written. The row counts of
    /// [`Keyspace::count`](crate::Keyspace::count) are still restored.
    ///
    /// ```
    /// use drumlin::Config;
    ///
    /// let config = Config::new().warm_start(false); // for a short task that needs few pages
    /// ```
    #[must_use]
    pub fn warm_start(mut self, warm_start: bool) -> Config {
        self.settings.warm_start = warm_start;
        self
    }

    /// Replaces the files, clock and threads of the operating system. Tests use it to inject faults and count writes.
    #[must_use]
    #[doc(hidden)]
    pub fn backend(mut self, backend: std::sync::Arc<dyn crate::io::Backend>) -> Config {
        self.settings.backend = Some(backend);
        self
    }

    /// Verifies the database at `path` without opening it: reads superblocks, catalogue, page tables, every page, every
    /// value and the log, and lists all corruption. It recovers nothing and writes nothing, so it works on read-only
    /// media. The database must not be open elsewhere. O(data).
    ///
    /// Intended for a database that is too corrupted to open. If the database opens,
    /// [`Database::check`](crate::Database::check) verifies more, because it also descends every tree.
    ///
    /// # Errors
    /// Only errors that prevent the check itself: [`Error::NotADatabase`], [`Error::NewerFormat`],
    /// [`Error::OlderFormat`], [`Error::Locked`], [`Error::BudgetTooSmall`], [`Error::Io`]; [`Error::Invalid`] for a
    /// setting that is not allowed.
    pub fn examine(&self, path: impl AsRef<Path>) -> Result<CheckReport> {
        self.examine_with(path, |_| ())
    }

    /// Like [`examine`](Config::examine), and calls `progress` from time to time.
    ///
    /// # Errors
    /// Same as [`examine`](Config::examine).
    pub fn examine_with(&self, path: impl AsRef<Path>, mut progress: impl FnMut(CheckProgress)) -> Result<CheckReport> {
        self.check()?;
        check::examine(&self.settings, path.as_ref(), &mut progress)
    }

    pub(super) fn check(&self) -> Result<()> {
        let settings = &self.settings;
        if settings.memory_bytes > MEMORY_BYTES_MAX {
            let given = settings.memory_bytes;
            return Err(Error::Invalid(format!(
                "a memory budget of {given} bytes is too large: use up to {MEMORY_BYTES_MAX} (1 TiB)"
            )));
        }
        let minimum_bytes = Budget::bytes_min(settings.log_stream_count);
        if settings.memory_bytes < minimum_bytes {
            return Err(Error::BudgetTooSmall { given_bytes: settings.memory_bytes, minimum_bytes });
        }
        if settings.read_only && settings.in_memory {
            return Err(Error::Invalid(
                "a database in memory begins empty: it can't be opened for reading only".into(),
            ));
        }
        if settings.salvage && !settings.read_only {
            return Err(Error::Invalid("what is left of a corrupted database can't be opened for writing".into()));
        }
        check_page_bytes(settings.page_bytes)?;
        if !settings.segment_bytes.is_power_of_two() || !((256 << 10)..=(64 << 20)).contains(&settings.segment_bytes) {
            return Err(Error::Invalid(format!(
                "segments of {} bytes are not allowed: use a power of two from 256 KiB to 64 MiB",
                settings.segment_bytes
            )));
        }
        let log_segment_bytes = LOG_SEGMENT_BYTES_MIN..=LOG_SEGMENT_BYTES_MAX;
        if let Some(given) = settings.log_segment_bytes
            && (!given.is_multiple_of(4096) || !log_segment_bytes.contains(&given))
        {
            return Err(Error::Invalid(format!(
                "log segments of {given} bytes are not allowed: use a multiple of 4096 from 1 MiB to 1 GiB"
            )));
        }
        if !(1..=LOG_STREAM_COUNT_MAX).contains(&settings.log_stream_count) {
            return Err(Error::Invalid(format!(
                "{} log streams are not allowed: use 1 to {LOG_STREAM_COUNT_MAX}",
                settings.log_stream_count
            )));
        }
        Ok(())
    }
}

pub(crate) fn check_page_bytes(page_bytes: usize) -> Result<()> {
    if !is_page_bytes(page_bytes) {
        return Err(Error::Invalid(format!(
            "pages of {page_bytes} bytes are not allowed: use a power of two from 4 KiB to 64 KiB"
        )));
    }
    Ok(())
}
