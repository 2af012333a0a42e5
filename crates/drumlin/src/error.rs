//! Errors, by what the caller can do about them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::format::Timestamp;

/// The result of most calls.
///
/// ```
/// fn visits(db: &drumlin::Database) -> drumlin::Result<u64> {
///     db.keyspace("visits")?.count(..)
/// }
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: what failed, where, and whether the database is still usable ([`Error::recourse`] says it in one word).
///
/// ```
/// use drumlin::{Config, Database, Error, Recourse};
///
/// # let path = std::env::temp_dir().join(format!("drumlin-doc-missing-{}", std::process::id()));
/// match Config::new().create(false).open(&path) {
///     Err(Error::NotFound { path }) => println!("nothing at {}", path.display()),
///     Err(error) if error.recourse() == Recourse::Restore => println!("a backup is needed: {error}"),
///     other => drop(other?),
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
///
/// Errors have no `==`: the operating system's ([`std::io::Error`]) have none, and texts are no promise. Tests ask for
/// the variant, and for the fields that matter:
///
/// ```
/// use drumlin::Error;
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// let missing = db.existing_keyspace("orders");
/// assert!(matches!(&missing, Err(Error::NoSuchKeyspace { name }) if name == "orders"), "{missing:?}");
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation outside of commits.
    #[error("{action} {}: {source}", .path.display())]
    Io {
        /// The operation, as a verb phrase: "opening", "reading".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        source: Arc<std::io::Error>,
    },
    /// There is nothing at the path, and [`Config::create`](crate::Config::create) is off.
    #[error("there is no database at {}: nothing is at this path", .path.display())]
    NotFound {
        /// The path given.
        path: PathBuf,
    },
    /// The path holds something else than a Drumlin database.
    #[error("{} is not a Drumlin database: {why}", .path.display())]
    NotADatabase {
        /// The path given.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The database was written by a newer Drumlin.
    #[error("{} has format {found}; this version reads formats up to {supported}. Open it with a newer Drumlin", .path.display())]
    NewerFormat {
        /// The database.
        path: PathBuf,
        /// The format found.
        found: u32,
        /// The newest format that this version reads.
        supported: u32,
    },
    /// The database was written by an older Drumlin, in a format that this version does not read. Nothing of it was
    /// changed: the version that wrote it still opens it, and its rows come over as a dump.
    #[error("{} has format {found}; this version reads format {supported}. Dump it with the Drumlin that wrote it (drumlin dump), and load the dump with this one (drumlin load)", .path.display())]
    OlderFormat {
        /// The database.
        path: PathBuf,
        /// The format found.
        found: u32,
        /// The oldest format that this version reads.
        supported: u32,
    },
    /// Another process has the database open, or this one has: it is closed by [`close`](crate::Database::close), or
    /// once the last of its handles is dropped.
    #[error("{} is in use by {}", .path.display(), owner(*.pid, *.by_this_process))]
    Locked {
        /// The database.
        path: PathBuf,
        /// The process that has it open; 0 if unknown.
        pid: u32,
        /// It is this very process: a handle of an earlier opening is still alive.
        by_this_process: bool,
    },
    /// This process was forked from the one that opened the database, and only that one may use it. To open databases
    /// of its own, a process has to be forked before the first database is opened, or execute a program: threads that
    /// a fork does not have may hold locks that it needs.
    #[error("{} was opened before this process was forked, and can't be used in it. Fork before opening a database, or execute a new program", .path.display())]
    Forked {
        /// The database.
        path: PathBuf,
    },
    /// Bytes on the medium are not those that were written. Data that does not depend on them stays readable.
    #[error("corrupted: {what} in {}: {reason}. Everything else stays readable; Database::check lists what is lost", .path.display())]
    Corrupted {
        /// The file.
        path: PathBuf,
        /// The page, record or structure, with its position.
        what: String,
        /// The check that failed.
        reason: String,
    },
    /// The disk has no more space for commits. Nothing of the failed commit remains; removing rows, compacting and
    /// checkpoints still work.
    #[error("the disk is full: {needed_bytes} more bytes are needed in {}. Free space there, or remove rows and call compact", .path.display())]
    DiskFull {
        /// The database.
        path: PathBuf,
        /// The bytes requested from the file system.
        needed_bytes: u64,
    },
    /// Another transaction changed the same row first, or each of two waited for a row of the other. Run the
    /// transaction again ([`Database::transact`](crate::Database::transact) does).
    #[error("conflict: {reason}. Run the transaction again")]
    Conflict {
        /// The kind of conflict.
        reason: &'static str,
    },
    /// A row was locked by another transaction for longer than the call waits: [`TxOptions::lock_timeout`], or 10
    /// seconds outside of transactions. Nothing of the call remains, and the transaction that made it can go on.
    ///
    /// Its [`recourse`](Error::recourse) is [`Retry`](Recourse::Retry) if another's transaction has the row, and
    /// [`Change`](Recourse::Change) if the caller's own has: `holder` tells which. The usual slip is `keyspace.insert`
    /// instead of `tx.insert` in the body of [`Database::transact`](crate::Database::transact), and there it fails at
    /// once. [`Database::transact`](crate::Database::transact) leaves another run to its caller: the call has waited
    /// for the row as long as the options allow, and a hundred runs of 10 seconds each would take a quarter of an hour.
    ///
    /// [`TxOptions::lock_timeout`]: crate::TxOptions::lock_timeout
    #[error("{}", lock_timeout(keyspace, key, *waited, *holder))]
    LockTimeout {
        /// The name of the row's keyspace.
        keyspace: String,
        /// The row's key.
        key: Vec<u8>,
        /// The time that the call waited; zero if its timeout is, or the row is that of its [own
        /// body](LockHolder::OwnBody).
        waited: Duration,
        /// The transaction that has the row.
        holder: LockHolder,
    },
    /// A transaction's writes or reads are more than one transaction may have. What there is of it can still be
    /// committed, unless it is the commit that fails. The limits are:
    ///
    /// - a thirty-second of the memory budget, and at most 8 MiB, for its record in the log: the keys and values of the
    ///   rows that it changes, and 11 bytes more for each. The write that exceeds it fails;
    /// - a sixteenth of the budget for its writes in memory: keys and values of all its writes, and about 256 bytes or
    ///   more for each, in buffers that double as they grow. The write that exceeds it fails. The reads of a
    ///   serializable transaction count with them;
    /// - nearly half of the pages that fit into the budget for the leaves that hold its rows, and of them half for the
    ///   leaves that a serializable transaction with changes has read, those between the bounds of its scans and counts
    ///   too: 500 KiB of a budget of 8 MiB. The commit fails;
    /// - three thirty-seconds of the budget for the rows that it replaces or removes, as they were. The commit fails.
    ///
    /// Of a value over 64 KiB, only its key counts.
    #[error("transaction too large: {what} take {bytes} bytes{}, and may take {limit_bytes}. {remedy}", rows(*.row_count))]
    TransactionTooLarge {
        /// The part of it that is too large, and what of it is counted.
        what: &'static str,
        /// The rows in this part, with the one that was refused; 0 if it was not counted in rows.
        row_count: u64,
        /// The bytes that this part takes, as they are counted.
        bytes: u64,
        /// The bytes that it may take.
        limit_bytes: u64,
        /// The remedy.
        remedy: &'static str,
    },
    /// Other calls use all of a part of the memory budget. Nothing of this call remains; the transaction can go on, or
    /// be run again once others have ended ([`Database::transact`](crate::Database::transact) does). The parts are:
    ///
    /// - an eighth of the budget, for the writes, locks and reads of open transactions. A transaction's call fails at
    ///   once; a plain write only if it had to wait for its row or for memory, and after 10 more seconds;
    /// - a sixteenth, for rows and values copied by scans and readers: a step of a scan, a count, a read of a value as
    ///   a stream;
    /// - a thirty-second, for values over 64 KiB that are being written, after 10 seconds;
    /// - pages, in any call that needs one in memory: only after running operations have held every evictable page for
    ///   10 seconds, like futures that are neither polled nor dropped.
    #[error(
        "memory in use: {what} take all {limit_bytes} bytes of their part of the memory budget. Run the transaction again once others have ended, or raise Config::memory"
    )]
    MemoryInUse {
        /// The part of the budget that is in use.
        what: &'static str,
        /// The size of that part in bytes.
        limit_bytes: u64,
    },
    /// The versions that the snapshot needs exceeded their share of memory. Take a new snapshot.
    #[error(
        "snapshot of timestamp {timestamp} is too old: the versions it needs exceeded their share of memory. Take a new snapshot"
    )]
    SnapshotTooOld {
        /// The timestamp that the snapshot reads at.
        timestamp: Timestamp,
    },
    /// The log failed while this commit was being written: only reopening shows whether it is durable.
    #[error(
        "outcome unknown: the log failed while this commit was being written ({reason}). Reopen the database to see whether it was committed"
    )]
    OutcomeUnknown {
        /// The failure of the log.
        reason: Arc<str>,
    },
    /// The database was closed, by [`Database::close`](crate::Database::close). Handles that are left may read what is
    /// in memory.
    #[error("the database was closed. Open it again to use it")]
    Closed,
    /// An earlier write or sync failed. Reads still work; commits are refused until the database is reopened.
    #[error("the database accepts no commits since {reason}. Reads still work. Fix the cause and reopen it")]
    Failed {
        /// The first failure.
        reason: Arc<str>,
    },
    /// The key is too long for its keyspace.
    #[error(
        "a key of {key_bytes} bytes is too long: keyspace {} allows up to {limit_bytes} bytes (a quarter of its page). Use a shorter key, or a keyspace of larger pages", quoted(.keyspace)
    )]
    KeyTooLong {
        /// The key's length.
        key_bytes: usize,
        /// The limit.
        limit_bytes: usize,
        /// The keyspace.
        keyspace: String,
    },
    /// The memory budget is too small for the database.
    #[error(
        "a memory budget of {given_bytes} bytes is too small: this database needs at least {minimum_bytes}. Raise Config::memory"
    )]
    BudgetTooSmall {
        /// The budget given.
        given_bytes: u64,
        /// The smallest budget that works.
        minimum_bytes: u64,
    },
    /// There is no keyspace with this name.
    #[error("there is no keyspace {}. Database::keyspaces lists them", quoted(.name))]
    NoSuchKeyspace {
        /// The name asked for.
        name: String,
    },
    /// The keyspace of this handle was dropped.
    #[error("keyspace {} was dropped. Get a new handle from the database", quoted(.name))]
    KeyspaceDropped {
        /// Its name.
        name: String,
    },
    /// An argument that is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// The database is open for [reading only](crate::Config::read_only).
    #[error("{} is open for reading only. Open it without Config::read_only to write", .path.display())]
    ReadOnly {
        /// The database.
        path: PathBuf,
    },
    /// The database was to be opened for reading only, and was not closed: the newest commits are in its log, and only
    /// an opening that may write recovers them.
    #[error("{} was not closed: {commits} commits in its log have to be recovered. Open it for writing once, and close it", .path.display())]
    NotClosed {
        /// The database.
        path: PathBuf,
        /// The commits that are in the log only.
        commits: u64,
    },
    /// A [`Reducer`](crate::Reducer) returned an error or panicked. The database is as it was.
    #[error("the reducer {name:?} failed: {reason}")]
    Reducer {
        /// The reducer's name.
        name: String,
        /// Its error, or the text of its panic.
        reason: String,
    },
    /// A value's reader failed while it was being stored. Nothing of the value remains.
    #[error("reading the value to store: {source}. Nothing of it was stored")]
    Source {
        /// The reader's error.
        source: Arc<std::io::Error>,
    },
}

/// The transaction that has a row locked, as the call sees it that fails with [`Error::LockTimeout`].
///
/// ```
/// use drumlin::{Error, LockHolder, TxOptions};
/// use std::time::Duration;
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let jobs = db.keyspace("jobs")?;
/// # ["a", "b"].into_iter().try_for_each(|job| jobs.insert(job, "open"))?;
/// // Takes the first job that no other transaction has: rows that are locked are skipped. To pop one,
/// // `Transaction::pop_first_in` does so by itself.
/// let options = TxOptions { lock_timeout: Duration::ZERO, ..db.tx_options() };
/// let (mut first, mut second) = (db.begin_with(options)?, db.begin_with(options)?);
/// first.get_for_update(&jobs, "a")?;
/// let mut taken = None;
/// for job in ["a", "b"] {
///     match second.get_for_update(&jobs, job) {
///         Ok(_) => taken = Some(job),
///         Err(Error::LockTimeout { holder, .. }) => assert_eq!(holder, LockHolder::SameThread),
///         Err(error) => return Err(error),
///     }
/// }
/// assert_eq!(taken, Some("b"));
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockHolder {
    /// The one from whose body the call comes. It keeps the row until the body returns: the call does not wait.
    OwnBody,
    /// One that has not ended and in which this very thread locked the row. The call waits, for another thread may end
    /// it; if none does, the wait is in vain. Asynchronous calls report [`Other`](LockHolder::Other) instead: tasks
    /// take turns on a thread.
    SameThread,
    /// Any other: another run of the transaction may succeed.
    Other,
}

/// The remedy for an [`Error`], by kind.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// use drumlin::Recourse;
///
/// # let k = db.keyspace("k")?;
/// match k.insert("a", "1") {
///     Ok(()) => {}
///     Err(error) if error.recourse() == Recourse::Reopen => return Err(error),
///     Err(error) => println!("not inserted: {error}"),
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recourse {
    /// Run the transaction again; it may succeed at once.
    Retry,
    /// The call can't succeed as it was made; the database is as usable as before.
    Change,
    /// Commits are refused; reads still work. Open the database again, once the cause of a failure is fixed.
    Reopen,
    /// The data named in the error is lost; the rest is readable.
    Restore,
}

/// Called for each corruption that a read finds: an opening stops at the first (`Err`), an examination records it and
/// continues (`Ok`).
pub(crate) type OnCorruption<'d> = &'d mut dyn FnMut(Error) -> Result<()>;

/// The result of a read; `None` if it is corrupted and reading continues without it.
pub(crate) fn sound<T>(read: Result<T>, on_corruption: OnCorruption<'_>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) => on_corruption(error).map(|()| None),
    }
}

/// The owner of a database, and the remedy.
fn owner(pid: u32, by_this_process: bool) -> String {
    if by_this_process {
        return "this very process: a Database, Keyspace, Snapshot, Transaction or another handle of it is still alive. \
                Close the database or drop them all before opening it again, or use a clone of one"
            .to_owned();
    }
    let process = if pid == 0 { "another process".to_owned() } else { format!("process {pid}") };
    format!("{process}. Close it there, or end that process")
}

/// The remedy for a transaction that writes too much.
const WRITE_LESS: &str = "Commit in smaller parts, or raise Config::memory";

/// The letters of a name, and bytes of a key, that an error quotes.
const QUOTED_MAX: usize = 60;

/// A name in quotes, escaped; a very long one shortened.
pub(crate) fn quoted(name: &str) -> String {
    let end = name.char_indices().nth(QUOTED_MAX).map_or(name.len(), |(end, _)| end);
    if end == name.len() { format!("{name:?}") } else { format!("{:?}… ({} bytes)", &name[..end], name.len()) }
}

/// A key as Rust writes bytes; a very long one shortened.
pub(crate) struct QuotedKey<'k>(pub(crate) &'k [u8]);

impl std::fmt::Debug for QuotedKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let QuotedKey(key) = self;
        write!(f, "b\"{}\"", key[..key.len().min(QUOTED_MAX)].escape_ascii())?;
        if key.len() > QUOTED_MAX { write!(f, "… ({} bytes)", key.len()) } else { Ok(()) }
    }
}

fn lock_timeout(keyspace: &str, key: &[u8], waited: Duration, holder: LockHolder) -> String {
    let row = format!("row {:?} of keyspace {}", QuotedKey(key), quoted(keyspace));
    let cause = match holder {
        LockHolder::OwnBody => {
            return format!(
                "{row} is locked by the transaction from whose body this call comes, and stays locked until the body \
                 returns. Write it through the transaction (tx.insert), or after it"
            );
        }
        LockHolder::SameThread => {
            "this very thread locked it, in another transaction that has not ended. Write it through that \
             transaction (tx.insert), or end that one first"
        }
        LockHolder::Other => {
            "another transaction has it locked. Run the transaction again, end the other one sooner, or wait longer \
             (TxOptions::lock_timeout)"
        }
    };
    if waited.is_zero() {
        format!("{row} is not free, and the call does not wait for it: {cause}")
    } else {
        format!("{row} was not free within {waited:?}: {cause}")
    }
}

/// The rows that a limit was exceeded by, if they were counted.
fn rows(row_count: u64) -> String {
    if row_count == 0 { String::new() } else { format!(" for {row_count} rows") }
}

/// The reason for which a database takes no more commits.
#[derive(Clone, Debug)]
pub(crate) enum Stopped {
    Closed,
    Failed(Arc<str>),
}

impl Stopped {
    pub(crate) fn reason(&self) -> &str {
        match self {
            Stopped::Closed => "it was closed",
            Stopped::Failed(reason) => reason,
        }
    }

    /// The error of a call that comes too late. No `From`: as long as nothing but itself converts into an [`Error`],
    /// the compiler finds the type of a body that `?` follows.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Stopped::Closed => Error::Closed,
            Stopped::Failed(reason) => Error::Failed { reason },
        }
    }
}

impl From<Error> for std::io::Error {
    /// For callers that speak of `std::io`. The kind is the nearest one; the error is within.
    fn from(error: Error) -> std::io::Error {
        use std::io::ErrorKind;
        let kind = match &error {
            Error::Io { source, .. } | Error::Source { source } => source.kind(),
            Error::NotFound { .. } | Error::NoSuchKeyspace { .. } => ErrorKind::NotFound,
            Error::DiskFull { .. } => ErrorKind::StorageFull,
            Error::Corrupted { .. } => ErrorKind::InvalidData,
            Error::Locked { .. } => ErrorKind::ResourceBusy,
            Error::ReadOnly { .. } => ErrorKind::ReadOnlyFilesystem,
            Error::LockTimeout { .. } => ErrorKind::TimedOut,
            Error::KeyTooLong { .. } | Error::Invalid(_) => ErrorKind::InvalidInput,
            _ => ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}

impl Error {
    /// The remedy that the caller has.
    #[must_use]
    pub fn recourse(&self) -> Recourse {
        match self {
            Error::Conflict { .. } | Error::SnapshotTooOld { .. } | Error::MemoryInUse { .. } => Recourse::Retry,
            Error::LockTimeout { holder: LockHolder::Other, .. } => Recourse::Retry,
            Error::OutcomeUnknown { .. } | Error::Failed { .. } | Error::Closed => Recourse::Reopen,
            Error::Corrupted { .. } => Recourse::Restore,
            _ => Recourse::Change,
        }
    }

    /// Returns `true` if another transaction was first: [`Error::Conflict`].
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Conflict { .. })
    }

    /// The open transactions together have used up their part of the budget.
    pub(crate) fn transactions_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "writes, locks and reads of open transactions", limit_bytes }
    }

    /// The open scans and readers together have used up their part of the budget.
    pub(crate) fn copies_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "rows and values copied by open scans and readers", limit_bytes }
    }

    /// The writers of large values, and reducers that read some, have used up their part of the budget together.
    pub(crate) fn sources_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "values being written from readers or shown to reducers", limit_bytes }
    }

    /// Bulk loads together have used up their part of the budget.
    pub(crate) fn loads_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "the buffers of bulk loads", limit_bytes }
    }

    /// The write set of a transaction, its locks included.
    pub(crate) fn writes_too_large(row_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let what = "its writes (keys, values, and about 256 bytes or more of memory for each row)";
        Error::TransactionTooLarge { what, row_count: row_count as u64, bytes, limit_bytes, remedy: WRITE_LESS }
    }

    /// The record of a commit in the log.
    pub(crate) fn record_too_large(row_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let what = "its keys and values in the log";
        Error::TransactionTooLarge { what, row_count: row_count as u64, bytes, limit_bytes, remedy: WRITE_LESS }
    }

    /// The leaves that hold a commit's rows.
    pub(crate) fn leaves_too_large(row_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let what = "the pages that hold its rows";
        Error::TransactionTooLarge { what, row_count: row_count as u64, bytes, limit_bytes, remedy: WRITE_LESS }
    }

    pub(crate) fn versions_too_large(row_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let what = "the rows that it replaces and removes, as they were,";
        Error::TransactionTooLarge { what, row_count: row_count as u64, bytes, limit_bytes, remedy: WRITE_LESS }
    }

    /// Running operations keep all pages in memory.
    pub(crate) fn pages_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "pages held by running operations", limit_bytes }
    }

    /// The reads of a serializable transaction, with its writes.
    pub(crate) fn reads_too_large(bytes: u64, limit_bytes: u64) -> Error {
        Error::TransactionTooLarge {
            what: "its reads, which its commit validates, and its writes",
            row_count: 0,
            bytes,
            limit_bytes,
            remedy: "Read less in a serializable transaction that writes, use Isolation::Snapshot, or raise Config::memory",
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::Io { action, path: path.to_path_buf(), source: Arc::new(source) }
    }

    /// The error of a file in a format that this version does not read.
    pub(crate) fn other_format(path: &Path, found: u32) -> Error {
        let (path, supported) = (path.to_path_buf(), crate::format::FORMAT_VERSION);
        assert!(found != supported, "format {found} is refused");
        if found > supported {
            Error::NewerFormat { path, found, supported }
        } else {
            Error::OlderFormat { path, found, supported }
        }
    }

    pub(crate) fn corrupted(path: &Path, what: impl Into<String>, reason: impl std::fmt::Display) -> Error {
        Error::Corrupted { path: path.to_path_buf(), what: what.into(), reason: reason.to_string() }
    }
}
