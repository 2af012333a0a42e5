//! Transactions.

pub(crate) mod locks;

/// The number of a running transaction, an autocommit write being one too. Never used twice while the database is open,
/// and never kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TransactionId(pub(crate) u64);
