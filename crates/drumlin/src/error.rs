//! Errors, and what the caller can do about each of them.

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

/// An error: what failed, where, and whether the database is still usable. [`Error::recourse`] sums up what the caller
/// can do.
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
/// Errors do not implement `==`, because [`std::io::Error`], which some of them contain, does not, and because their
/// messages may change. In tests, match on the variant and check the fields that matter:
///
/// ```
/// use drumlin::Error;
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// let missing = db.existing_keyspace("orders");
/// assert!(matches!(&missing, Err(Error::NoSuchKeyspace { name }) if name == "orders"), "{missing:?}");
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file operation that is not part of a commit failed in the operating system.
    Io {
        /// The operation, as a verb phrase: "opening", "reading".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: Arc<std::io::Error>,
    },
    /// Nothing exists at the path, and [`Config::create`](crate::Config::create) is off.
    NotFound {
        /// The given path.
        path: PathBuf,
    },
    /// The path contains something other than a Drumlin database.
    NotADatabase {
        /// The given path.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The database was written by a newer Drumlin.
    NewerFormat {
        /// The path of the database.
        path: PathBuf,
        /// The format of the database.
        found: u32,
        /// The newest format that this version reads.
        supported: u32,
    },
    /// The database was written by an older Drumlin, in a format that this version does not read. The database is
    /// unchanged: the version that wrote it can still open it and dump its rows.
    OlderFormat {
        /// The path of the database.
        path: PathBuf,
        /// The format of the database.
        found: u32,
        /// The oldest format that this version reads.
        supported: u32,
    },
    /// A newer Drumlin has written to the database and used an extension of the format that this version must know. The
    /// database is unchanged.
    UnknownFeatures {
        /// The path of the database.
        path: PathBuf,
        /// The unknown feature bits (docs/format.md).
        bits: u64,
        /// `true` if this version can open the database for [reading only](crate::Config::read_only).
        is_readable: bool,
    },
    /// Another process, or this one, already has the database open. The database is closed by
    /// [`close`](crate::Database::close), or when the last of its handles is dropped.
    Locked {
        /// The path of the database.
        path: PathBuf,
        /// The id of the process that has the database open; 0 if unknown.
        pid: u32,
        /// `true` if this process has the database open, because a handle of an earlier opening still exists.
        by_this_process: bool,
    },
    /// This process was forked from the one that opened the database or the folder of logs, and only the parent can use
    /// it. A forked process can open databases of its own only if it was forked before the parent opened its first
    /// database, or after executing a new program. Otherwise, threads that exist only in the parent may have held locks
    /// that the fork needs.
    Forked {
        /// The path of the database.
        path: PathBuf,
    },
    /// The device did not return the bytes that were written. Data that does not depend on these bytes stays readable:
    /// `get` reads single rows, and [`Range::salvage`](crate::Range::salvage) the rows on both sides of a corrupted
    /// page.
    Corrupted {
        /// The file.
        path: PathBuf,
        /// The corrupted page, record or structure, with its position.
        what: String,
        /// The check that failed.
        reason: String,
    },
    /// The disk has no more space for commits. The failed commit has changed nothing. Removing rows, compaction and
    /// checkpoints still work.
    DiskFull {
        /// The path of the database.
        path: PathBuf,
        /// The bytes requested from the file system.
        needed_bytes: u64,
        /// The names of the [kept snapshots](crate::Database::keep_snapshot) that hold space in the file that could not
        /// grow.
        kept_snapshots: Vec<String>,
        /// The names of the [clones](crate::Database::clone_keyspace) in that file. They may hold pages that the
        /// keyspaces from which they were cloned have replaced.
        clones: Vec<String>,
        /// The bytes in the database's folder that wait for their delivery to the [archive](crate::Config::archive),
        /// which has failed. [`Stats::archive_failure`](crate::Stats::archive_failure) says why.
        archive_bytes: u64,
    },
    /// Another transaction changed the same row first, or two transactions waited for each other's rows (a deadlock).
    /// Retry the transaction, as [`Database::transact`](crate::Database::transact) does.
    Conflict {
        /// The kind of conflict.
        reason: &'static str,
    },
    /// Another transaction kept a row locked for longer than the call waits: [`TxOptions::lock_timeout`], or 10 seconds
    /// outside of transactions. The call has changed nothing, and the transaction that made it stays usable.
    ///
    /// Its [`recourse`](Error::recourse) is [`Retry`](Recourse::Retry) if another caller's transaction has locked the
    /// row, and [`Change`](Recourse::Change) if the caller's own has; `holder` says which. The usual mistake is
    /// `keyspace.insert` instead of `tx.insert` in the body of [`Database::transact`](crate::Database::transact), where
    /// the call fails immediately. [`Database::transact`](crate::Database::transact) does not retry after this error:
    /// the call has already waited for the row as long as the options allow, and a hundred attempts of 10 seconds each
    /// would take a quarter of an hour.
    ///
    /// [`TxOptions::lock_timeout`]: crate::TxOptions::lock_timeout
    LockTimeout {
        /// The name of the row's keyspace.
        keyspace: String,
        /// The row's key.
        key: Vec<u8>,
        /// The time that the call waited. Zero if its timeout is zero, or if [the body that made the
        /// call](LockHolder::OwnBody) has locked the row.
        waited: Duration,
        /// The transaction that has locked the row.
        holder: LockHolder,
    },
    /// Another thread ended the wait for a row lock with [`Interrupter::interrupt`](crate::Interrupter::interrupt). The
    /// transaction is as it was before the call.
    Interrupted {
        /// The name of the row's keyspace.
        keyspace: String,
        /// The row's key.
        key: Vec<u8>,
    },
    /// A transaction's writes or reads exceed a limit. Everything before the refused call can still be committed,
    /// unless it was the commit that failed. The limits are:
    ///
    /// - a sixteenth of the memory budget for its changes in memory: keys and values of all its writes, plus about 256
    ///   bytes or more for each, in buffers that double as they grow. Beyond it, changes are written to disk, and the
    ///   transaction has no limit. But a [serializable](crate::Isolation::Serializable) transaction and one that
    ///   [removes ranges](crate::Transaction::remove_range) keep their changes in memory: the write that exceeds the
    ///   limit fails. The records of a serializable transaction's reads count, too. A transaction whose changes are on
    ///   disk can't remove ranges and can't be prepared;
    /// - for these transactions, a thirty-second of the budget, and at most 8 MiB, for the record in the log: the keys
    ///   and values of the rows that it changes, plus 11 bytes for each row. The write that exceeds the limit fails;
    /// - for these transactions, nearly half of the pages that fit into the budget, for the leaves that contain its
    ///   rows. Half of these pages may be leaves that a serializable transaction with changes has read, including those
    ///   between the bounds of its scans and counts: 500 KiB with a budget of 8 MiB. If there are more, the commit
    ///   fails;
    /// - for these transactions, three thirty-seconds of the budget for the old versions of the rows that it replaces
    ///   or removes. If they take more, the commit fails;
    /// - a sixteenth of the budget for the locks of rows that it has locked and not changed, and for values over 64
    ///   KiB, of which each takes about 100 bytes. The call that exceeds the limit fails.
    ///
    /// If a row's value is over 64 KiB, only its key counts.
    TransactionTooLarge {
        /// The part of the transaction that is too large, and what is counted.
        what: &'static str,
        /// The number of rows in this part, including the refused one; 0 if rows were not counted.
        row_count: u64,
        /// The size of this part in bytes, as described by `what`.
        bytes: u64,
        /// The maximum size of this part in bytes.
        limit_bytes: u64,
        /// The remedy.
        remedy: &'static str,
    },
    /// Other calls have used up one part of the memory budget. This call has changed nothing. The transaction stays
    /// usable, or can be retried once other calls have ended, as [`Database::transact`](crate::Database::transact)
    /// does. The parts are:
    ///
    /// - an eighth of the budget, for the writes, locks and reads of open transactions. A call in a transaction fails
    ///   immediately. A write outside of transactions needs this memory only if it has to wait for its row or for other
    ///   memory, and then fails after 10 seconds;
    /// - a sixteenth, for the locks of prepared transactions, as a part of that eighth. A prepare fails;
    /// - a sixteenth, for rows and values that scans and readers have copied. When this part is used up, a step of a
    ///   scan, a count, or the read of a value as a stream fails;
    /// - a thirty-second, for values over 64 KiB that are being written. A call fails after waiting for 10 seconds;
    /// - pages in memory. A call that needs one fails only after running operations, for example futures that are
    ///   neither polled nor dropped, have held every evictable page for 10 seconds.
    MemoryInUse {
        /// The part of the budget that is in use.
        what: &'static str,
        /// The size of that part in bytes.
        limit_bytes: u64,
    },
    /// The snapshot was ended because the old versions of rows that it needs took too much space, by default a quarter
    /// of the live bytes and at least 256 MiB on disk. Take a new snapshot.
    SnapshotTooOld {
        /// The timestamp at which the snapshot reads.
        timestamp: Timestamp,
        /// The limit that was reached, and the size of the old versions.
        reason: Arc<str>,
    },
    /// The log failed while this commit was being written. Only reopening the database shows whether the commit is
    /// durable.
    OutcomeUnknown {
        /// The failure of the log.
        reason: Arc<str>,
    },
    /// The database was closed by [`Database::close`](crate::Database::close). Iterators and value readers that are
    /// still open first return what they have already copied.
    Closed,
    /// An earlier write or sync failed. Reads still work; commits are refused until the database is reopened.
    Failed {
        /// The first failure.
        reason: Arc<str>,
    },
    /// The key is too long for its keyspace.
    KeyTooLong {
        /// The key's length.
        key_bytes: usize,
        /// The limit.
        limit_bytes: usize,
        /// The keyspace.
        keyspace: String,
    },
    /// The memory budget is too small for the database.
    BudgetTooSmall {
        /// The given budget.
        given_bytes: u64,
        /// The smallest budget that works.
        minimum_bytes: u64,
    },
    /// There is no keyspace with this name.
    NoSuchKeyspace {
        /// The requested name.
        name: String,
    },
    /// There is a keyspace with this name already. Returned by [`Database::alter`](crate::Database::alter), which has
    /// changed nothing.
    KeyspaceExists {
        /// The name.
        name: String,
    },
    /// The keyspace of this handle was dropped.
    KeyspaceDropped {
        /// The name of the keyspace.
        name: String,
    },
    /// There is no kept snapshot with this name.
    NoSuchSnapshot {
        /// The requested name.
        name: String,
    },
    /// There is a kept snapshot with this name already, or another call is taking one.
    SnapshotExists {
        /// The name.
        name: String,
    },
    /// A backup is cut short or damaged, or does not fit the backups before it. Nothing has been restored.
    UnusableBackup {
        /// The backup.
        backup: String,
        /// The reason.
        reason: String,
    },
    /// An [archive](crate::Archive) does not have what is wanted: a file of it is missing, cut short or damaged, it is
    /// of another database, or the point to restore is not in it. Nothing has been restored.
    UnusableArchive {
        /// The archive.
        archive: String,
        /// The reason, with what there is instead.
        reason: String,
    },
    /// A transaction is prepared under this id already, or is being prepared.
    AlreadyPrepared {
        /// The id.
        id: Vec<u8>,
    },
    /// No transaction is prepared under this id: it was never prepared, or it was committed or aborted.
    NotPrepared {
        /// The id.
        id: Vec<u8>,
    },
    /// Another call is committing or aborting the prepared transaction with this id.
    PreparedInUse {
        /// The id.
        id: Vec<u8>,
    },
    /// A keyspace can't be dropped, because [prepared transactions](crate::Transaction::prepare) have changed or locked
    /// its rows.
    PreparedRows {
        /// The name of the keyspace.
        keyspace: String,
        /// The ids of these transactions.
        ids: Vec<Vec<u8>>,
    },
    /// The [change feed](crate::Database::changes) no longer has all commits after the given timestamp. Read
    /// the rows of a [snapshot](crate::Database::snapshot) instead, and continue with the changes since its timestamp.
    ChangesGone {
        /// The timestamp after which changes were wanted.
        since: Timestamp,
        /// The timestamp after which there are changes, or up to which there are some if no more are kept.
        from: Timestamp,
        /// The reason why they are gone.
        reason: Arc<str>,
    },
    /// An argument is not allowed.
    Invalid(String),
    /// The database is open for [reading only](crate::Config::read_only), or the folder of logs
    /// ([`LogsOptions::read_only`](crate::logs::LogsOptions::read_only)).
    ReadOnly {
        /// The path of the database.
        path: PathBuf,
    },
    /// The database was opened for reading only, but had not been closed properly. Its newest commits are still in the
    /// log, and only an opening with write access can recover them.
    NotClosed {
        /// The path of the database.
        path: PathBuf,
        /// The number of commits that are only in the log.
        commits: u64,
    },
    /// Entries don't follow on from a log's last one, or overlap with it. Nothing was appended. See
    /// [`Log::append`](crate::logs::Log::append).
    LogIndex {
        /// The log.
        log: u64,
        /// The index of the first entry that was to be appended.
        given: u64,
        /// The index at which the log continues.
        expected: u64,
    },
    /// The entries of a log at this index were purged.
    LogPurged {
        /// The log.
        log: u64,
        /// The given index.
        index: u64,
        /// The index from which on there are entries, or will be.
        first: u64,
    },
    /// A log has no entry at this index yet.
    LogEntryMissing {
        /// The log.
        log: u64,
        /// The given index.
        index: u64,
        /// The index of the last entry, or `None` if the log has no entries.
        last: Option<u64>,
    },
    /// There is no log with this number: nothing was appended to it, or it was removed.
    NoSuchLog {
        /// The log.
        log: u64,
    },
    /// An entry, a value or a batch for a log is too large. Nothing was written.
    LogEntryTooLarge {
        /// The log.
        log: u64,
        /// Which of them.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// A [`Reducer`](crate::Reducer) returned an error or panicked. The database is unchanged.
    Reducer {
        /// The reducer's name.
        name: String,
        /// The reducer's error, or the text of its panic.
        reason: String,
    },
    /// A reader failed while its bytes were being stored as a value. No part of the value was kept.
    Source {
        /// The reader's error.
        source: Arc<std::io::Error>,
    },
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Io { action, path, source } => write!(f, "{action} {}: {source}", path.display()),
            Error::NotFound { path } => {
                write!(f, "there is no database at {}: nothing is at this path", path.display())
            }
            Error::NotADatabase { path, why } => write!(f, "{} is not a Drumlin database: {why}", path.display()),
            Error::NewerFormat { path, found, supported } => write!(
                f,
                "{} has format {found}; this version reads formats up to {supported}. Open it with a newer Drumlin",
                path.display()
            ),
            Error::OlderFormat { path, found, supported } => write!(
                f,
                "{} has format {found}; this version reads format {supported}. Dump it with the Drumlin that wrote it (drumlin dump), and load the dump with this one (drumlin load)",
                path.display()
            ),
            Error::UnknownFeatures { path, bits, is_readable } => write!(
                f,
                "{} uses features of a newer Drumlin (bits {bits:#x}). Open it with that version{}",
                path.display(),
                if *is_readable { ", or with Config::read_only" } else { "" }
            ),
            Error::Locked { path, pid, by_this_process } => {
                write!(f, "{} is in use by {}", path.display(), owner(*pid, *by_this_process))
            }
            Error::Forked { path } => write!(
                f,
                "{} was opened before this process was forked, and can't be used in it. Fork before opening a database, or execute a new program",
                path.display()
            ),
            Error::Corrupted { path, what, reason } => write!(
                f,
                "corrupted: {what} in {}: {reason}. Everything else stays readable; Database::check lists what is lost",
                path.display()
            ),
            Error::DiskFull { path, needed_bytes, kept_snapshots, clones, archive_bytes } => write!(
                f,
                "the disk is full: {needed_bytes} more bytes are needed in {}. Free space there, or {}",
                path.display(),
                room(kept_snapshots, clones, *archive_bytes)
            ),
            Error::Conflict { reason } => write!(f, "conflict: {reason}. Run the transaction again"),
            Error::LockTimeout { keyspace, key, waited, holder } => {
                write!(f, "{}", lock_timeout(keyspace, key, *waited, *holder))
            }
            Error::Interrupted { keyspace, key } => write!(
                f,
                "interrupted: another thread ended the wait for the row {:?} of keyspace {}. Go on with the \
                 transaction or drop it",
                QuotedKey(key),
                quoted(keyspace)
            ),
            Error::TransactionTooLarge { what, row_count, bytes, limit_bytes, remedy } => write!(
                f,
                "transaction too large: {what} take {bytes} bytes{}, and may take {limit_bytes}. {remedy}",
                rows(*row_count)
            ),
            Error::MemoryInUse { what, limit_bytes } => write!(
                f,
                "memory in use: {what} take all {limit_bytes} bytes of their part of the memory budget. Run the transaction again once others have ended, or raise Config::memory"
            ),
            Error::SnapshotTooOld { timestamp, reason } => {
                write!(f, "snapshot of timestamp {timestamp} is too old: {reason}. Take a new snapshot")
            }
            Error::OutcomeUnknown { reason } => write!(
                f,
                "outcome unknown: the log failed while this commit was being written ({reason}). Reopen the database to see whether it was committed"
            ),
            Error::Closed => f.write_str("the database was closed. Open it again to use it"),
            Error::Failed { reason } => write!(
                f,
                "the database accepts no commits since {reason}. Reads still work. Fix the cause and reopen it"
            ),
            Error::KeyTooLong { key_bytes, limit_bytes, keyspace } => write!(
                f,
                "a key of {key_bytes} bytes is too long: keyspace {} allows up to {limit_bytes} bytes (a quarter of its page). Use a shorter key, or a keyspace of larger pages",
                quoted(keyspace)
            ),
            Error::BudgetTooSmall { given_bytes, minimum_bytes } => write!(
                f,
                "a memory budget of {given_bytes} bytes is too small: this database needs at least {minimum_bytes}. Raise Config::memory"
            ),
            Error::NoSuchKeyspace { name } => {
                write!(f, "there is no keyspace {}. Database::keyspaces lists them", quoted(name))
            }
            Error::KeyspaceExists { name } => write!(
                f,
                "there is a keyspace {} already, and nothing was changed. Choose another name, or drop or rename that keyspace in the same step",
                quoted(name)
            ),
            Error::NoSuchSnapshot { name } => {
                write!(f, "there is no kept snapshot {}. Database::kept_snapshots lists them", quoted(name))
            }
            Error::SnapshotExists { name } => write!(
                f,
                "there is a kept snapshot {} already. Choose another name, or drop that snapshot first",
                quoted(name)
            ),
            Error::UnusableBackup { backup, reason } => write!(f, "the backup {backup} can't be used: {reason}"),
            Error::UnusableArchive { archive, reason } => write!(f, "the archive {archive} can't be used: {reason}"),
            Error::KeyspaceDropped { name } => {
                write!(f, "keyspace {} was dropped. Get a new handle from the database", quoted(name))
            }
            Error::AlreadyPrepared { id } => write!(
                f,
                "a transaction is prepared under the id {:?} already. Use another id, or commit or abort that one first",
                QuotedKey(id)
            ),
            Error::NotPrepared { id } => write!(
                f,
                "no transaction is prepared under the id {:?}. Database::prepared lists those that are",
                QuotedKey(id)
            ),
            Error::PreparedInUse { id } => write!(
                f,
                "another call is committing or aborting the prepared transaction {:?}. Let it end",
                QuotedKey(id)
            ),
            Error::PreparedRows { keyspace, ids } => {
                let ids: Vec<String> = ids.iter().map(|id| format!("{:?}", QuotedKey(id))).collect();
                write!(
                    f,
                    "keyspace {} has rows of prepared transactions: {}. Commit or abort them first",
                    quoted(keyspace),
                    ids.join(", ")
                )
            }
            Error::ChangesGone { since, from, reason } => write!(
                f,
                "the changes after timestamp {since} are not all there: {reason}. The feed has changes from timestamp {from} \
                 on, or up to it; read a snapshot, and continue with the changes since its timestamp"
            ),
            Error::Invalid(value) => write!(f, "{value}"),
            Error::ReadOnly { path } => {
                write!(f, "{} is open for reading only. Open it without read_only to write", path.display())
            }
            Error::NotClosed { path, commits } => write!(
                f,
                "{} was not closed: {commits} commits in its log have to be recovered. Open it for writing once, and close it",
                path.display()
            ),
            Error::LogIndex { log, given, expected } => write!(
                f,
                "log {log} continues at index {expected}, and entries from {given} on don't follow on from there. Nothing was appended"
            ),
            Error::LogPurged { log, index, first } => {
                write!(f, "index {index} of log {log} was purged: its entries begin at {first}")
            }
            Error::LogEntryMissing { log, index, last: Some(last) } => {
                write!(f, "log {log} has no entry {index} yet: its last one is {last}")
            }
            Error::LogEntryMissing { log, index, last: None } => {
                write!(f, "log {log} has no entry {index}: it is empty")
            }
            Error::NoSuchLog { log } => write!(f, "there is no log {log}. Logs::numbers lists them"),
            Error::LogEntryTooLarge { log, what, bytes, limit_bytes } => {
                write!(f, "{what} for log {log} has {bytes} bytes, and may have {limit_bytes}. Nothing was written")
            }
            Error::Reducer { name, reason } => write!(f, "the reducer {name:?} failed: {reason}"),
            Error::Source { source } => write!(f, "reading the value to store: {source}. Nothing of it was stored"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } | Error::Source { source } => Some(source),
            _ => None,
        }
    }
}

/// The kind of transaction that has locked a row, as seen from the call that fails with [`Error::LockTimeout`].
///
/// ```
/// use drumlin::{Error, LockHolder, TxOptions};
/// use std::time::Duration;
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let jobs = db.keyspace("jobs")?;
/// # ["a", "b"].into_iter().try_for_each(|job| jobs.insert(job, "open"))?;
/// // Takes the first job that no other transaction has locked, and skips the others. To pop a job,
/// // `Transaction::pop_first_in` does the same.
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
    /// The transaction whose body made the call. It keeps the row locked until the body returns, so the call does not
    /// wait.
    OwnBody,
    /// An open transaction in which the calling thread locked the row. The call waits, because another thread may end
    /// that transaction; otherwise the wait can only time out. Asynchronous calls report [`Other`](LockHolder::Other)
    /// instead, because tasks share threads.
    SameThread,
    /// A [prepared](crate::Transaction::prepare) transaction. The row is free once it has been committed or aborted.
    Prepared,
    /// Any other transaction. A retry may succeed.
    Other,
}

/// The kind of remedy for an [`Error`].
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
    /// Retry the transaction. An immediate retry may succeed.
    Retry,
    /// Change the call: as it is, it would fail again. The error did not affect the database.
    Change,
    /// Reopen the database, after fixing the cause if there was a failure. Until then, commits fail; after a failure,
    /// reads still work.
    Reopen,
    /// Restore the data that the error names from a backup: it is lost. The rest is readable.
    Restore,
}

/// A callback for each corruption that a read finds. While a database is being opened, it returns `Err`, which stops
/// the opening at the first corruption. During an examination, it records the corruption and returns `Ok` to continue.
pub(crate) type OnCorruption<'d> = &'d mut dyn FnMut(Error) -> Result<()>;

/// Returns the result of a read. If the data is corrupted and `on_corruption` returns `Ok`, returns `None`.
pub(crate) fn sound<T>(read: Result<T>, on_corruption: OnCorruption<'_>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) => on_corruption(error).map(|()| None),
    }
}

/// Describes the process that has a database open, and how to close the database there.
fn owner(pid: u32, by_this_process: bool) -> String {
    if by_this_process {
        return "this very process: a Database, Keyspace, Snapshot, Transaction or another handle of it is still alive. \
                Close the database or drop them all before opening it again, or use a clone of one"
            .to_owned();
    }
    let process = if pid == 0 { "another process".to_owned() } else { format!("process {pid}") };
    format!("{process}. Close it there, or end that process")
}

/// The remedy for a transaction that writes too many rows or bytes.
const WRITE_LESS: &str = "Commit in smaller parts, or raise Config::memory";

/// The maximum number of characters of a name, or bytes of a key, that an error quotes.
const QUOTED_CHARACTERS_MAX: usize = 60;

/// Returns a name in quotes, escaped. Shortens it if it is very long.
pub(crate) fn quoted(name: &str) -> String {
    let end = name.char_indices().nth(QUOTED_CHARACTERS_MAX).map_or(name.len(), |(end, _)| end);
    if end == name.len() { format!("{name:?}") } else { format!("{:?}… ({} bytes)", &name[..end], name.len()) }
}

/// Prints a key as a Rust byte string, shortened if it is very long.
pub(crate) struct QuotedKey<'k>(pub(crate) &'k [u8]);

impl std::fmt::Debug for QuotedKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let QuotedKey(key) = self;
        write!(f, "b\"{}\"", key[..key.len().min(QUOTED_CHARACTERS_MAX)].escape_ascii())?;
        if key.len() > QUOTED_CHARACTERS_MAX { write!(f, "… ({} bytes)", key.len()) } else { Ok(()) }
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
        LockHolder::Prepared => {
            "a prepared transaction has it locked. Commit or abort that one (Database::prepared lists them)"
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

/// Describes how to make room in a database.
fn room(kept_snapshots: &[String], clones: &[String], archive_bytes: u64) -> String {
    let mut ways = Vec::new();
    if archive_bytes > 0 {
        ways.push(format!("repair the archive's destination, for which {archive_bytes} bytes wait, or "));
    }
    for (what, names) in [("kept snapshot", kept_snapshots), ("clone", clones)] {
        let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
        match &names[..] {
            [] => {}
            [name] => ways.push(format!("drop the {what} {name}, or ")),
            names => ways.push(format!("drop some of the {what}s {}, or ", names.join(", "))),
        }
    }
    format!("{}remove rows and call compact", ways.concat())
}

/// Describes the number of rows that exceeded a limit, if they were counted.
fn rows(row_count: u64) -> String {
    if row_count == 0 { String::new() } else { format!(" for {row_count} rows") }
}

/// The reason why a database has stopped accepting commits.
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

    /// Returns the error for calls after the stop. This is not a `From` implementation, because the compiler can infer
    /// the error type of a closure that uses `?` only if nothing else converts into [`Error`].
    pub(crate) fn into_error(self) -> Error {
        match self {
            Stopped::Closed => Error::Closed,
            Stopped::Failed(reason) => Error::Failed { reason },
        }
    }
}

impl From<Error> for std::io::Error {
    /// Converts to the closest `std::io` error kind, with this error as the source.
    fn from(error: Error) -> std::io::Error {
        use std::io::ErrorKind;
        let kind = match &error {
            Error::Io { source, .. } | Error::Source { source } => source.kind(),
            Error::NotFound { .. }
            | Error::NoSuchKeyspace { .. }
            | Error::NoSuchSnapshot { .. }
            | Error::NotPrepared { .. } => ErrorKind::NotFound,
            Error::AlreadyPrepared { .. } | Error::KeyspaceExists { .. } | Error::SnapshotExists { .. } => {
                ErrorKind::AlreadyExists
            }
            Error::DiskFull { .. } => ErrorKind::StorageFull,
            Error::Corrupted { .. } | Error::UnusableBackup { .. } | Error::UnusableArchive { .. } => {
                ErrorKind::InvalidData
            }
            Error::Locked { .. } => ErrorKind::ResourceBusy,
            Error::ReadOnly { .. } => ErrorKind::ReadOnlyFilesystem,
            Error::LockTimeout { .. } => ErrorKind::TimedOut,
            Error::Interrupted { .. } => ErrorKind::Interrupted,
            Error::KeyTooLong { .. } | Error::Invalid(_) => ErrorKind::InvalidInput,
            _ => ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}

impl Error {
    /// Returns what the caller can do about the error.
    #[must_use]
    pub fn recourse(&self) -> Recourse {
        match self {
            Error::Conflict { .. } | Error::SnapshotTooOld { .. } | Error::MemoryInUse { .. } => Recourse::Retry,
            Error::LockTimeout { holder: LockHolder::Other | LockHolder::Prepared, .. } => Recourse::Retry,
            Error::PreparedInUse { .. } => Recourse::Retry,
            Error::OutcomeUnknown { .. } | Error::Failed { .. } | Error::Closed => Recourse::Reopen,
            Error::Corrupted { .. } => Recourse::Restore,
            _ => Recourse::Change,
        }
    }

    /// Returns `true` for [`Error::Conflict`]: another transaction changed a row first, or there was a deadlock.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Conflict { .. })
    }

    /// Returns the error for open transactions that together use up their part of the budget.
    pub(crate) fn transactions_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "writes, locks and reads of open transactions", limit_bytes }
    }

    /// Returns the error for prepared transactions whose locks use up their part of the budget.
    pub(crate) fn prepared_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "the locks of prepared transactions", limit_bytes }
    }

    /// Returns the error for prepared transactions that are ready, if they hold as much as they may.
    pub(crate) fn ready_in_memory(what: &'static str, limit_bytes: u64) -> Error {
        Error::MemoryInUse { what, limit_bytes }
    }

    /// Returns the error for open scans and readers that together use up their part of the budget.
    pub(crate) fn copies_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "rows and values copied by open scans and readers", limit_bytes }
    }

    /// Returns the error for writers and reducers of large values that together use up their part of the budget.
    pub(crate) fn sources_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "values being written from readers or shown to reducers", limit_bytes }
    }

    /// Returns the error for a commit that waited too long for a snapshot to end.
    pub(crate) fn versions_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "old versions of rows that open snapshots need", limit_bytes }
    }

    /// Returns the error for a full disk on which nothing is known that could be dropped.
    pub(crate) fn disk_full(path: PathBuf, needed_bytes: u64) -> Error {
        Error::DiskFull { path, needed_bytes, kept_snapshots: Vec::new(), clones: Vec::new(), archive_bytes: 0 }
    }

    /// Returns the error for bulk loads that together use up their part of the budget.
    pub(crate) fn loads_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "the buffers of bulk loads", limit_bytes }
    }

    /// Returns the error for a write set that is too large, including its locks.
    pub(crate) fn writes_too_large(row_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let what = "its writes (keys, values, and about 256 bytes or more of memory for each row)";
        Error::TransactionTooLarge { what, row_count: row_count as u64, bytes, limit_bytes, remedy: WRITE_LESS }
    }

    /// Returns the error for locking too many rows without changing them.
    pub(crate) fn locks_too_large(row_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let what = "the locks of rows that it has not changed (about 128 bytes and the key for each)";
        let remedy = "Lock fewer rows, or raise Config::memory";
        Error::TransactionTooLarge { what, row_count: row_count as u64, bytes, limit_bytes, remedy }
    }

    /// Returns the error for preparing a transaction whose changes have outgrown memory.
    pub(crate) fn prepared_too_large(row_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let what = "its changes, which a prepared transaction keeps in memory,";
        Error::TransactionTooLarge { what, row_count: row_count as u64, bytes, limit_bytes, remedy: WRITE_LESS }
    }

    /// Returns the error for removing a range in a transaction whose changes have outgrown memory.
    pub(crate) fn ranges_too_large(row_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let what = "its changes, which a transaction that removes ranges keeps in memory,";
        let remedy = "Remove the range in another transaction, or raise Config::memory";
        Error::TransactionTooLarge { what, row_count: row_count as u64, bytes, limit_bytes, remedy }
    }

    /// Returns the error for a commit whose record is too large for the log.
    pub(crate) fn record_too_large(row_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let what = "its keys and values in the log";
        Error::TransactionTooLarge { what, row_count: row_count as u64, bytes, limit_bytes, remedy: WRITE_LESS }
    }

    /// Returns the error for a commit whose rows are in too many leaves.
    pub(crate) fn leaves_too_large(row_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let what = "the pages that hold its rows";
        Error::TransactionTooLarge { what, row_count: row_count as u64, bytes, limit_bytes, remedy: WRITE_LESS }
    }

    /// Returns the error for too many changes of keyspaces in one step.
    pub(crate) fn alteration_too_large(what: &'static str, change_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let remedy = "Create fewer keyspaces in one step, or raise Config::memory";
        Error::TransactionTooLarge { what, row_count: change_count as u64, bytes, limit_bytes, remedy }
    }

    pub(crate) fn versions_too_large(row_count: usize, bytes: u64, limit_bytes: u64) -> Error {
        let what = "the rows that it replaces and removes, as they were,";
        Error::TransactionTooLarge { what, row_count: row_count as u64, bytes, limit_bytes, remedy: WRITE_LESS }
    }

    /// Returns the error for running operations that hold all pages in memory.
    pub(crate) fn pages_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "pages held by running operations", limit_bytes }
    }

    /// Returns the error for a serializable transaction whose reads and writes together are too large.
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

    /// Returns the error for a file in a format that this version does not read.
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
