//! Errors, by what the caller can do about them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::format::Timestamp;

/// The result of most calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: what failed, where, and whether the database is still usable ([`Error::recourse`] says it in one word).
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
    /// The path holds no Drumlin database.
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
    /// Another process, or another handle in this one, has the database open.
    #[error("{} is in use by {}. Close it there, or end that process", .path.display(), owner(*.pid))]
    Locked {
        /// The database.
        path: PathBuf,
        /// The process that has it open; 0 if unknown.
        pid: u32,
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
    #[error("damaged: {what} in {}: {reason}. Run `drumlin check` to list all damage and what is lost", .path.display())]
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
    /// Another transaction changed or holds the same row; run the transaction again
    /// ([`Database::transact`](crate::Database::transact) does).
    #[error("conflict: {reason}. Run the transaction again")]
    Conflict {
        /// The kind of conflict.
        reason: &'static str,
    },
    /// The transaction's writes, or the reads of a serializable one, exceed their share of memory.
    #[error("transaction too large: {what} exceed {limit_bytes} bytes. {remedy}")]
    TransactionTooLarge {
        /// Its share.
        limit_bytes: u64,
        /// The part that exceeds it.
        what: &'static str,
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
    #[error("snapshot of timestamp {} is too old: the versions it needs exceeded their share of memory. Take a new snapshot", .timestamp)]
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
    /// An earlier write or sync failed. Reads still work; commits are refused until the database is reopened.
    #[error("the database accepts no commits since {reason}. Reads still work. Fix the cause and reopen it")]
    Failed {
        /// The first failure.
        reason: Arc<str>,
    },
    /// The key is too long for its keyspace.
    #[error(
        "a key of {key_bytes} bytes is too long: keyspace {keyspace:?} allows up to {limit_bytes} bytes (a quarter of its page). Use a shorter key, or a keyspace of larger pages"
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
    #[error("there is no keyspace {name:?}. `drumlin keyspaces` lists them")]
    NoSuchKeyspace {
        /// The name asked for.
        name: String,
    },
    /// The keyspace of this handle was dropped.
    #[error("keyspace {name:?} was dropped. Get a new handle from the database")]
    KeyspaceDropped {
        /// Its name.
        name: String,
    },
    /// An argument that is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// The database is open for reading only.
    #[error("{} is open for reading only", .path.display())]
    ReadOnly {
        /// The database.
        path: PathBuf,
    },
    /// A value's reader failed while it was being stored. Nothing of the value remains.
    #[error("reading the value to store: {source}. Nothing of it was stored")]
    Source {
        /// The reader's error.
        source: Arc<std::io::Error>,
    },
}

/// The remedy for an [`Error`], by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recourse {
    /// Run the transaction again; it may succeed at once.
    Retry,
    /// The call can't succeed as it was made; the database is as usable as before.
    Change,
    /// Commits are refused; reads still work. Fix the cause and reopen.
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

/// The owner of a lock, by its process id; 0 if unknown.
fn owner(pid: u32) -> String {
    if pid == 0 { "another process".to_owned() } else { format!("process {pid}") }
}

impl Error {
    /// The remedy that the caller has.
    #[must_use]
    pub fn recourse(&self) -> Recourse {
        match self {
            Error::Conflict { .. } | Error::SnapshotTooOld { .. } | Error::MemoryInUse { .. } => Recourse::Retry,
            Error::OutcomeUnknown { .. } | Error::Failed { .. } => Recourse::Reopen,
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

    /// The writers of large values together have used up their part of the budget.
    pub(crate) fn sources_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "values being written from readers", limit_bytes }
    }

    pub(crate) fn writes_too_large(limit_bytes: u64) -> Error {
        Error::TransactionTooLarge {
            limit_bytes,
            what: "its writes",
            remedy: "Commit in smaller parts, or raise Config::memory",
        }
    }

    pub(crate) fn versions_too_large(limit_bytes: u64) -> Error {
        Error::TransactionTooLarge {
            limit_bytes,
            what: "the rows that it replaces and removes",
            remedy: "Commit in smaller parts, or raise Config::memory",
        }
    }

    /// Running operations keep all pages in memory.
    pub(crate) fn pages_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "pages held by running operations", limit_bytes }
    }

    pub(crate) fn reads_too_large(limit_bytes: u64) -> Error {
        Error::TransactionTooLarge {
            limit_bytes,
            what: "its reads, to be validated,",
            remedy: "Read less in a serializable transaction that writes, use Isolation::Snapshot, or raise Config::memory",
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::Io { action, path: path.to_path_buf(), source: Arc::new(source) }
    }

    pub(crate) fn corrupted(path: &Path, what: impl Into<String>, reason: impl std::fmt::Display) -> Error {
        Error::Corrupted { path: path.to_path_buf(), what: what.into(), reason: reason.to_string() }
    }
}
