//! Reports waits for row locks to the user.

use std::fmt;
use std::sync::Arc;

use crate::txn::locks::LockMode;

/// A wait for a row lock that is about to begin, for [`Config::on_lock_wait`](crate::Config::on_lock_wait).
///
/// ```
/// let config = drumlin::Config::in_memory().on_lock_wait(|wait| {
///     println!("{} waits for {:?}, which hold row {:?} of {}", wait.waiter, wait.holders, wait.key, wait.keyspace);
/// });
/// let db = config.open("")?;
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LockWait<'w> {
    /// The [number](crate::Transaction::number) of the transaction that will wait.
    pub waiter: u64,
    /// The transactions that hold the lock.
    pub holders: &'w [u64],
    /// The name of the row's keyspace.
    pub keyspace: &'w str,
    /// The row's key.
    pub key: &'w [u8],
    /// The kind of lock that is requested.
    pub mode: LockMode,
}

/// The function to call before each wait for a row lock.
#[derive(Clone)]
pub(crate) struct LockWaitHook(pub(crate) Arc<dyn Fn(&LockWait<'_>) + Send + Sync>);

impl fmt::Debug for LockWaitHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockWaitHook")
    }
}
