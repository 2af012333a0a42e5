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
    /// The path holds something else.
    #[error("{} is not a Drumlin database: {why}", .path.display())]
    NotADatabase {
        /// The path given.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Written by a newer Drumlin.
    #[error("{} has format {found}; this version reads formats up to {supported}. Open it with a newer Drumlin", .path.display())]
    NewerFormat {
        /// The database.
        path: PathBuf,
        /// The format found.
        found: u32,
        /// The newest format that this version reads.
        supported: u32,
    },
    /// Another process, or another handle in this one, has it open.
    #[error("{} is in use by process {pid}. Close it there, or end that process", .path.display())]
    Locked {
        /// The database.
        path: PathBuf,
        /// The process that holds it, 0 where it is not known.
        pid: u32,
    },
    /// This process is a fork of the one that opened the database, which alone may use it. A fork that is to open
    /// databases of its own has to be made before the first was opened, or to execute a program: threads that a fork
    /// does not have may hold locks that it needs.
    #[error("{} was opened by the process that this one is a fork of. Open it in the process that uses it", .path.display())]
    Forked {
        /// The database.
        path: PathBuf,
    },
    /// Bytes on the medium are not what was written. What does not need them stays readable.
    #[error("damaged: {what} in {}: {reason}. `drumlin check` lists all damage and what it costs", .path.display())]
    Corrupted {
        /// The file.
        path: PathBuf,
        /// The page, record or structure, with its place.
        what: String,
        /// The check that failed.
        reason: String,
    },
    /// No space is left that a commit may use. Nothing of the failed commit remains; removing, compacting and
    /// checkpoints still work.
    #[error("the disk is full: {needed_bytes} more bytes are needed in {}. Free space there, or remove rows and call compact", .path.display())]
    DiskFull {
        /// The database.
        path: PathBuf,
        /// The request to the file system.
        needed_bytes: u64,
    },
    /// Another transaction changed or holds the same row; run the transaction again
    /// ([`Database::transact`](crate::Database::transact) does).
    #[error("conflict: {reason}. Run the transaction again")]
    Conflict {
        /// Which of the possible conflicts it was.
        reason: &'static str,
    },
    /// The transaction's writes, or what a serializable one read, exceed their share of memory.
    #[error("transaction too large: {what} exceeds {limit_bytes} bytes. {remedy}")]
    TransactionTooLarge {
        /// Its share.
        limit_bytes: u64,
        /// The part that exceeds it.
        what: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// A part of the memory budget is in use by others. Nothing of the call remains; the transaction can go on, or be
    /// run again when others have ended ([`Database::transact`](crate::Database::transact) does). The parts are:
    ///
    /// - an eighth of the budget, for what open transactions write, lock and read. A transaction's call gets this at
    ///   once; a plain write only where it had to wait for its row or for memory, and after 10 seconds more;
    /// - a sixteenth, for what scans and readers of values have copied: a step of a scan, a count, a read of a value as
    ///   a stream;
    /// - a thirty-second, for the sources of values over 64 KiB, after 10 seconds;
    /// - pages, in any call that needs one in memory: only where running operations have held every page that could
    ///   make room for 10 seconds, as futures can that are neither polled nor dropped.
    #[error(
        "memory in use: {what} have come to the {limit_bytes} bytes of the budget that are for them. Run the transaction again when others have ended, or raise Config::memory"
    )]
    MemoryInUse {
        /// The part of the budget that is in use.
        what: &'static str,
        /// The size of that part in bytes.
        limit_bytes: u64,
    },
    /// The versions a snapshot needs exceeded their share of memory. Take a new one.
    #[error("snapshot of timestamp {} is too old: the versions it needs exceeded their share of memory. Take a new snapshot", .timestamp)]
    SnapshotTooOld {
        /// The timestamp that the snapshot reads at.
        timestamp: Timestamp,
    },
    /// The log failed while this commit was in flight: whether it is durable is known after reopening.
    #[error(
        "outcome unknown: the log failed while this commit was being written ({reason}). Reopen the database to learn whether it is there"
    )]
    OutcomeUnknown {
        /// Why the log failed.
        reason: Arc<str>,
    },
    /// An earlier write or sync failed. Reads go on; commits are refused until the database is reopened.
    #[error("the database accepts no commits since {reason}. Reads still work; mend the cause and reopen")]
    Failed {
        /// The first failure.
        reason: Arc<str>,
    },
    /// A key over the limit.
    #[error(
        "key of {key_bytes} bytes: keys in keyspace {keyspace:?} may have up to {limit_bytes} bytes (a quarter of its page)"
    )]
    KeyTooLong {
        /// The key's length.
        key_bytes: usize,
        /// The limit.
        limit_bytes: usize,
        /// The keyspace.
        keyspace: String,
    },
    /// A budget too small to work in.
    #[error("a memory budget of {given_bytes} bytes is too small: this database needs at least {minimum_bytes}")]
    BudgetTooSmall {
        /// The argument, and what is allowed.
        given_bytes: u64,
        /// The least that works.
        minimum_bytes: u64,
    },
    /// No keyspace has that name.
    #[error("there is no keyspace {name:?}. `drumlin keyspaces` lists them")]
    NoSuchKeyspace {
        /// The name asked for.
        name: String,
    },
    /// The keyspace was dropped while a handle of it was in use.
    #[error("keyspace {name:?} was dropped")]
    KeyspaceDropped {
        /// Its name.
        name: String,
    },
    /// An argument that can't work.
    #[error("{0}")]
    Invalid(String),
    /// Opened for reading only.
    #[error("{} is open for reading only", .path.display())]
    ReadOnly {
        /// The database.
        path: PathBuf,
    },
    /// A value's reader failed while it was being stored. Nothing of the value remains.
    #[error("reading the value to store: {source}")]
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
    /// Commits are refused; reads go on. Mend the cause and reopen.
    Reopen,
    /// The data named in the error is lost; the rest is readable.
    Restore,
}

/// Told of each damage that reading comes upon: an opening stops at the first (`Err`), an examination notes it and has
/// the reading go on (`Ok`).
pub(crate) type OnCorruption<'d> = &'d mut dyn FnMut(Error) -> Result<()>;

/// The result of a read; `None` where it is corrupted and reading goes on without it.
pub(crate) fn sound<T>(read: Result<T>, on_corruption: OnCorruption<'_>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) => on_corruption(error).map(|()| None),
    }
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
        Error::MemoryInUse { what: "copies that open scans and readers of values keep", limit_bytes }
    }

    /// The writers of large values together have used up their part of the budget.
    pub(crate) fn sources_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "values that are being written from their sources", limit_bytes }
    }

    pub(crate) fn writes_too_large(limit_bytes: u64) -> Error {
        Error::TransactionTooLarge {
            limit_bytes,
            what: "what it writes",
            remedy: "Commit in smaller parts, or raise Config::memory",
        }
    }

    pub(crate) fn versions_too_large(limit_bytes: u64) -> Error {
        Error::TransactionTooLarge {
            limit_bytes,
            what: "what it replaces and removes",
            remedy: "Commit in smaller parts, or raise Config::memory",
        }
    }

    /// Running operations keep all pages in memory.
    pub(crate) fn pages_in_memory(limit_bytes: u64) -> Error {
        Error::MemoryInUse { what: "pages that running operations hold", limit_bytes }
    }

    pub(crate) fn reads_too_large(limit_bytes: u64) -> Error {
        Error::TransactionTooLarge {
            limit_bytes,
            what: "what it has read and must validate",
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
