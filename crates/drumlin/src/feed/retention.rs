//! The time or the bytes for which changes are kept.

use std::time::Duration;

/// The part of its changes that a database keeps for readers of the feed, in bytes or time. See
/// [`Config::keep_changes`].
///
/// ```
/// use std::time::Duration;
/// use drumlin::Retention;
///
/// let newest = Retention::bytes(1 << 30); // at least the newest GiB of changes
/// let day = Retention::time(Duration::from_secs(24 * 3600)); // at least the changes of the last 24 hours
/// let both = Retention::bytes(1 << 30).and_time(Duration::from_secs(24 * 3600)); // whatever is more
/// ```
///
/// [`Config::keep_changes`]: crate::Config::keep_changes
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
    pub(crate) old_values: bool,
}

impl Retention {
    /// Keeps at least the newest `bytes` bytes of changes: their keys and values, about 11 bytes for each row, and 40
    /// for each commit.
    #[must_use]
    pub fn bytes(bytes: u64) -> Retention {
        Retention { bytes, time: Duration::ZERO, old_values: false }
    }

    /// Keeps at least the changes of the last `time`, however many bytes they take.
    #[must_use]
    pub fn time(time: Duration) -> Retention {
        Retention { bytes: 0, time, old_values: false }
    }

    /// Keeps no changes. A database that has kept some removes them when it is opened.
    #[must_use]
    pub fn none() -> Retention {
        Retention { bytes: 0, time: Duration::ZERO, old_values: false }
    }

    /// Keeps changes for both reasons: those that either would keep.
    #[must_use]
    pub fn and_time(self, time: Duration) -> Retention {
        Retention { time, ..self }
    }

    /// Also keeps the value that each changed row had before: see [`Commit::changes_with_old_values`]. Each commit then
    /// reads its rows before it changes them, and writes their old values to the log and to the kept changes.
    ///
    /// [`Commit::changes_with_old_values`]: crate::Commit::changes_with_old_values
    #[must_use]
    pub fn with_old_values(self) -> Retention {
        Retention { old_values: true, ..self }
    }

    /// Returns `true` if the retention keeps anything.
    pub(crate) fn is_some(self) -> bool {
        self.bytes > 0 || self.time > Duration::ZERO
    }
}
