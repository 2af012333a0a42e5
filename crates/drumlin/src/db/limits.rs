//! The limits of a database, in bytes.

use crate::format::node::key_bytes_max;
use crate::memory::{Account, Budget, SOURCE_BYTES_MAX};
use crate::txn::values::MEDIUM_BYTES_MAX;

/// The limits of a database that follow from its memory budget and page size. Sizes are in bytes.
/// [`Stats::memory`](crate::Stats::memory) shows the parts of the budget that they come from, and how much of each is
/// used.
///
/// ```
/// # let db = drumlin::Config::in_memory().memory(64 << 20).open("")?;
/// let limits = db.limits();
/// assert_eq!(limits.transaction_log_bytes, 2 << 20);
/// // The number of rows of 100 bytes that surely fit into a transaction, with 256 bytes of overhead for each.
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
    /// The longest key in a keyspace of the database's page size ([`Config::page_bytes`](crate::Config::page_bytes)).
    /// [`Keyspace::key_bytes_max`](crate::Keyspace::key_bytes_max) returns it for a particular keyspace.
    pub key_bytes: u64,
    /// Longer values are large: they are written and read in chunks, and only their keys count in a transaction.
    pub inline_value_bytes: u64,
    /// The size in the log of the keys and values that one transaction or batch may write, plus about 10 bytes for each
    /// row. More fails with [`TransactionTooLarge`](crate::Error::TransactionTooLarge).
    pub transaction_log_bytes: u64,
    /// The memory that the rows of one transaction or batch may take until it commits: keys and values, plus about 256
    /// bytes for each row. More fails with [`TransactionTooLarge`](crate::Error::TransactionTooLarge).
    pub transaction_memory_bytes: u64,
    /// The memory of all open transactions together, including their locks and the reads that serializable ones record,
    /// and of plain writes that wait for rows. More fails with
    /// [`MemoryInUse`](crate::Error::MemoryInUse).
    pub open_transaction_bytes: u64,
    /// The old rows that one commit may replace or remove, because versions of them take memory: key, value, and about
    /// 64 bytes for each. More fails with [`TransactionTooLarge`](crate::Error::TransactionTooLarge).
    pub replaced_bytes: u64,
    /// The pages that a serializable transaction with changes may have read when it commits. A quarter of what page
    /// tables, counts and loads use now is subtracted. More fails with
    /// [`TransactionTooLarge`](crate::Error::TransactionTooLarge).
    pub validated_read_bytes: u64,
    /// The memory of old versions. Versions that need more are spilled to disk.
    pub version_bytes: u64,
    /// The disk space that old versions may take now:
    /// [`Config::version_disk_bytes`](crate::Config::version_disk_bytes), or its default for the live bytes. If they
    /// need more, the oldest snapshot ends ([`SnapshotTooOld`](crate::Error::SnapshotTooOld)) or commits wait, as
    /// [`VersionOverflow`](crate::VersionOverflow) says.
    pub version_disk_bytes: u64,
    /// Writers of large values that can work at the same time; others wait for them.
    pub large_value_writers: u64,
    /// The memory of rows that open scans and value readers have copied but not returned yet. They share it, and copy
    /// less at a time if there are many of them. More fails with [`MemoryInUse`](crate::Error::MemoryInUse).
    pub copied_bytes: u64,
    /// The memory of page tables, 8 bytes for each page of data, minus what counts and loads use of it. More
    /// fails with [`BudgetTooSmall`](crate::Error::BudgetTooSmall).
    pub page_table_bytes: u64,
    /// The memory in which bulk loads sort and pack rows. A load with more rows sorts them in runs on disk.
    pub load_bytes: u64,
    /// The memory of row counts, which speed up [`count`](crate::Keyspace::count): 8 to 16 bytes for each page, the
    /// same again in a keyspace that is aggregated, and the list of changes. Without counts, rows are read.
    pub count_bytes: u64,
    /// The memory of reducers' states, which speed up [`aggregate`](crate::Keyspace::aggregate): 14 bytes and the state
    /// for each reducer and leaf. It is less while loads or page tables take much. Without states, rows are read.
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
