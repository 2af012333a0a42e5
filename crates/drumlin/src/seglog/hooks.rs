//! The functions of higher parts that the log calls.

use std::io;
use std::sync::Arc;

use crate::format::Timestamp;
use crate::format::superblock::LogRange;
use crate::io::Share;

/// Called at a step of writing; see [`Hooks`].
pub(crate) type BeforeWrite = Box<dyn Fn() -> io::Result<()> + Send + Sync>;
/// Called when the horizon has moved; see [`Hooks`].
pub(crate) type OnDurable = Box<dyn Fn(Timestamp) + Send + Sync>;

/// Called when the ranges that must exist change; see [`Hooks`].
pub(crate) type List = Box<dyn Fn(&[LogRange]) -> io::Result<()> + Send + Sync>;

/// Callbacks of the log. Called with none of its locks held, except those that its background work takes.
pub(crate) struct Hooks {
    /// Called before the log prepares a window. If the database has put off recording in the superblock that it was
    /// opened, does that now, durably. If it fails, the log fails.
    pub(crate) before_window: BeforeWrite,
    /// Called before the log writes a record that names extents. Makes the extents of large values durable. If it
    /// fails, the log fails.
    pub(crate) before_write: BeforeWrite,
    /// Called when the durable horizon has moved to this timestamp. Several threads may call it at once, and so out of
    /// order: the receiver keeps the maximum.
    pub(crate) on_durable: OnDurable,
    /// Records durably which ranges must exist when the log is opened again. Called before records are put into a new
    /// window, and before the file of an unneeded window is reused. If it fails, the log fails.
    pub(crate) list: List,
    /// Records durably that the log is closed: nothing in it is needed, and nothing more is written to it.
    pub(crate) on_closed: BeforeWrite,
    /// Counts the log's writes, so that background work yields to them.
    pub(crate) share: Arc<Share>,
}

impl Hooks {
    /// Hooks that do nothing.
    pub(crate) fn none() -> Hooks {
        Hooks {
            before_window: Box::new(|| Ok(())),
            before_write: Box::new(|| Ok(())),
            on_durable: Box::new(|_| {}),
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
