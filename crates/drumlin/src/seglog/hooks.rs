//! The functions of higher layers that the log calls.

use std::io;
use std::sync::Arc;

use crate::format::Timestamp;
use crate::format::superblock::LogRange;
use crate::io::Share;

/// Called before a step of writing; see [`Hooks`].
pub(crate) type BeforeWrite = Box<dyn Fn() -> io::Result<()> + Send + Sync>;
/// Called when the durable horizon has advanced; see [`Hooks`].
pub(crate) type OnDurable = Box<dyn Fn(Timestamp) + Send + Sync>;

/// Called when the log has failed; see [`Hooks`].
pub(crate) type OnFailed = Box<dyn Fn(&Arc<str>) + Send + Sync>;
/// Called when the list of ranges that must exist changes; see [`Hooks`].
pub(crate) type List = Box<dyn Fn(&[LogRange]) -> io::Result<()> + Send + Sync>;

/// Callbacks of the log. None of the log's locks is held during a call, except the locks of its background work.
pub(crate) struct Hooks {
    /// Called before the log prepares a window. Durably records in the superblock that the database was opened, if that
    /// was deferred. If the hook fails, the log fails.
    pub(crate) before_window: BeforeWrite,
    /// Called before the log writes a record that names extents. Makes the extents of large values durable. If the hook
    /// fails, the log fails.
    pub(crate) before_write: BeforeWrite,
    /// Called when the durable horizon has advanced to this timestamp. Several threads may call it concurrently and out
    /// of order, so the receiver must keep the maximum.
    pub(crate) on_durable: OnDurable,
    /// Called once, when the log fails, with the reason. No record that is not durable yet will become durable.
    pub(crate) on_failed: OnFailed,
    /// Durably records which ranges must exist when the log is reopened. Called before records are put into a new
    /// window, and before the file of a window that is no longer needed is reused. If the hook fails, the log fails.
    pub(crate) list: List,
    /// Durably records that the log is closed: none of its records is needed, and nothing more will be written to it.
    pub(crate) on_closed: BeforeWrite,
    /// Counts the log's writes, so that background work yields to them.
    pub(crate) share: Arc<Share>,
}

impl Hooks {
    /// Creates hooks that do nothing.
    pub(crate) fn none() -> Hooks {
        Hooks {
            before_window: Box::new(|| Ok(())),
            before_write: Box::new(|| Ok(())),
            on_durable: Box::new(|_| {}),
            on_failed: Box::new(|_| {}),
            list: Box::new(|_| Ok(())),
            on_closed: Box::new(|| Ok(())),
            share: Arc::default(),
        }
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooks")
    }
}
