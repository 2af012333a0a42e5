//! The limits of a database, in bytes.

use crate::format::node::key_bytes_max;
use crate::memory::{Account, Budget, SOURCE_BYTES_MAX};
use crate::txn::values::MEDIUM_BYTES_MAX;

/// The limits of a database that follow from its memory budget and page size. Sizes are in bytes.
/// [`Stats::memory`](crate::Stats::memory) shows the parts of the budget behind these limits, and the current use of
/// each part.
///
/// ```
/// # let db = drumlin::Config::in_memory().memory(64 << 20).open("")?;
/// let limits = db.limits();
/// assert_eq!(limits.transaction_log_bytes, 2 << 20);
/// // The number of rows of 100 bytes that certainly fit into a transaction, with 256 bytes of overhead for each.
/// let rows = (limits.transaction_log_bytes / 128).min(limits.transaction_memory_bytes / 384);
/// assert!(rows > 10_000);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Limits {
    /// The memory budget ([`Config::memory`](crate::Config::memory)).
    pub memory_bytes: u64,
    /// The maximum key length in a keyspace with the database's page size
    /// ([`Config::page_bytes`](crate::Config::page_bytes)). [`Keyspace::key_bytes_max`](crate::Keyspace::key_bytes_max)
    /// returns the maximum of a particular keyspace.
    pub key_bytes: u64,
    /// The maximum length of a value that is not large. Longer values are written and read in chunks, and only their
    /// keys count towards a transaction's limits.
    pub inline_value_bytes: u64,
    /// The maximum size of the log record of a transaction or batch: the keys and values that it writes, plus about 10
    /// bytes for each row. A larger record fails with [`TransactionTooLarge`](crate::Error::TransactionTooLarge).
    pub transaction_log_bytes: u64,
    /// The maximum memory for the writes of one transaction or batch until it commits: keys and values, plus about 256
    /// bytes for each row. A write beyond the limit fails with
    /// [`TransactionTooLarge`](crate::Error::TransactionTooLarge).
    pub transaction_memory_bytes: u64,
    /// The memory that all open transactions share. It includes their locks and the recorded reads of serializable
    /// transactions, as well as writes outside of transactions that wait for rows. Calls that need more fail with
    /// [`MemoryInUse`](crate::Error::MemoryInUse).
    pub open_transaction_bytes: u64,
    /// The maximum size of the old rows that one commit replaces or removes. Their versions stay in memory: key, value,
    /// and about 64 bytes for each. A larger commit fails with
    /// [`TransactionTooLarge`](crate::Error::TransactionTooLarge).
    pub replaced_bytes: u64,
    /// The maximum size of the pages that a serializable transaction with changes has read when it commits. A quarter
    /// of the memory that page tables, counts and loads are now using has already been subtracted. A larger commit
    /// fails with [`TransactionTooLarge`](crate::Error::TransactionTooLarge).
    pub validated_read_bytes: u64,
    /// The memory for old versions. Versions that do not fit are spilled to disk.
    pub version_bytes: u64,
    /// The disk space that old versions may now use: [`Config::version_disk_bytes`](crate::Config::version_disk_bytes),
    /// or the default, which depends on the live bytes. If versions need more, the oldest snapshot ends
    /// ([`SnapshotTooOld`](crate::Error::SnapshotTooOld)) or commits wait, depending on
    /// [`VersionOverflow`](crate::VersionOverflow).
    pub version_disk_bytes: u64,
    /// The number of large values that can be written at the same time. Additional writers wait.
    pub large_value_writers: u64,
    /// The memory for rows that open scans and value readers have copied but not returned yet. They share this memory,
    /// and if there are many of them, each copies less at a time. If no memory is left, a read fails with
    /// [`MemoryInUse`](crate::Error::MemoryInUse).
    pub copied_bytes: u64,
    /// The memory into which page tables can grow: 8 bytes for each page of data. Memory in use by counts and loads is
    /// not included. Further growth fails with [`BudgetTooSmall`](crate::Error::BudgetTooSmall).
    pub page_table_bytes: u64,
    /// The memory in which bulk loads sort and pack rows. A load whose rows do not fit sorts them in runs on disk.
    pub load_bytes: u64,
    /// The memory for row counts, which speed up [`count`](crate::Keyspace::count): 8 to 16 bytes for each page, or
    /// twice as much if the keyspace is aggregated, plus the list of changes. Without counts, rows are read.
    pub count_bytes: u64,
    /// The memory for reducers' states, which speed up [`aggregate`](crate::Keyspace::aggregate): 14 bytes plus the
    /// state for each reducer and leaf. It shrinks while loads or page tables use much memory. Without states, rows are
    /// read.
    pub state_bytes: u64,
}

impl Limits {
    pub(super) fn new(budget: &Budget, page_bytes: usize, version_disk_bytes: u64) -> Limits {
        Limits {
            memory_bytes: budget.total_bytes(),
            key_bytes: key_bytes_max(page_bytes) as u64,
            inline_value_bytes: MEDIUM_BYTES_MAX as u64,
            transaction_log_bytes: budget.transaction_bytes_max(),
            transaction_memory_bytes: budget.transaction_memory_max(),
            open_transaction_bytes: budget.limit_bytes(Account::Transactions),
            replaced_bytes: budget.limit_bytes(Account::Versions),
            validated_read_bytes: budget.validated_bytes_max(),
            version_bytes: budget.version_bytes_max(),
            version_disk_bytes,
            large_value_writers: budget.limit_bytes(Account::Sources) / SOURCE_BYTES_MAX,
            copied_bytes: budget.limit_bytes(Account::Copies),
            page_table_bytes: budget.limit_bytes(Account::Tables),
            load_bytes: budget.limit_bytes(Account::Loads),
            count_bytes: budget.limit_bytes(Account::Counts),
            state_bytes: budget.limit_bytes(Account::States),
        }
    }
}
