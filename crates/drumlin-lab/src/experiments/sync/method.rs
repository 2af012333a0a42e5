//! The methods of making a write durable, and what happens to such a write in a power cut.

use serde::{Deserialize, Serialize};

use crate::experiments::places::Cache;

/// A method that makes a write durable, or is believed to do so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Method {
    Append,
    Truncated,
    TruncatedRange,
    Allocated,
    Filled,
    FilledRange,
    FilledDurable,
    DirectDurable,
    DirectDurableOpen,
    Linked,
    NoSync,
    /// A write to the page cache only. It is the control of the power-off experiment, which must lose it.
    Buffered,
}

/// The outcome of a power cut for a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Durable {
    Yes,
    No,
    /// The write survives only under conditions that the lab can't check.
    Perhaps,
}

impl Durable {
    pub(super) fn word(self) -> &'static str {
        match self {
            Durable::Yes => "yes",
            Durable::No => "no",
            Durable::Perhaps => "perhaps",
        }
    }
}

impl Method {
    /// The methods that are measured by default.
    pub(super) const ALL: [Method; 11] = [
        Method::Append,
        Method::Truncated,
        Method::TruncatedRange,
        Method::Allocated,
        Method::Filled,
        Method::FilledRange,
        Method::FilledDurable,
        Method::DirectDurable,
        Method::DirectDurableOpen,
        Method::Linked,
        Method::NoSync,
    ];

    /// The methods that are also measured on file systems created by the lab.
    pub(super) const COMPARED: [Method; 8] = [
        Method::Append,
        Method::Truncated,
        Method::TruncatedRange,
        Method::Allocated,
        Method::Filled,
        Method::FilledRange,
        Method::DirectDurable,
        Method::NoSync,
    ];

    /// The methods that are compared between file systems with `--quick`.
    pub(super) const COMPARED_QUICK: [Method; 6] = [
        Method::Append,
        Method::Truncated,
        Method::TruncatedRange,
        Method::Filled,
        Method::FilledRange,
        Method::NoSync,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Append => "append + fdatasync",
            Method::Truncated => "ftruncate ahead + fdatasync",
            Method::TruncatedRange => "ftruncate + sync_file_range",
            Method::Allocated => "fallocate ahead + fdatasync",
            Method::Filled => "zero-filled + fdatasync",
            Method::FilledRange => "zero-filled + sync_file_range",
            Method::FilledDurable => "zero-filled + RWF_DSYNC",
            Method::DirectDurable => "same, O_DIRECT + RWF_DSYNC",
            Method::DirectDurableOpen => "same, O_DIRECT | O_DSYNC",
            Method::Linked => "same, io_uring write + fsync",
            Method::NoSync => "same, O_DIRECT, no sync",
            Method::Buffered => "append, no sync",
        }
    }

    pub(super) fn is_direct(self) -> bool {
        matches!(self, Method::DirectDurable | Method::DirectDurableOpen | Method::Linked | Method::NoSync)
    }

    /// Returns `true` if the method's file is filled with zeros before it is measured.
    pub(super) fn is_filled(self) -> bool {
        self.is_direct() || matches!(self, Method::Filled | Method::FilledRange | Method::FilledDurable)
    }

    /// Returns S2's figures on its first machine with the write cache on and off, if S2 measured the method.
    pub(super) fn source(self) -> Option<&'static str> {
        match self {
            Method::Append => Some("S2: 2.63 ms ± 0.15, cache off 5.49 ms"),
            Method::Truncated => Some("S2: 1.24 ms ± 0.86, cache off 2.76 ms"),
            Method::TruncatedRange => Some("S2: 0.19 ms ± 0.65, cache off 2.03 ms"),
            _ => None,
        }
    }

    /// Returns what happens in a power cut to a write by this method, on this file system and cache, and the reason.
    pub(crate) fn durable(self, file_system: &str, cache: Cache) -> (Durable, &'static str) {
        let writes_elsewhere = matches!(file_system, "btrfs" | "zfs" | "bcachefs" | "f2fs" | "overlay");
        if matches!(file_system, "tmpfs" | "ramfs") {
            return (Durable::No, "the file system is in memory");
        }
        match self {
            Method::Buffered => (Durable::No, "it is in the page cache only"),
            Method::TruncatedRange => (Durable::No, "new blocks: their mapping to the file is not written"),
            Method::FilledRange | Method::NoSync if writes_elsewhere => {
                (Durable::No, "the file system writes to a new place, and does not record it")
            }
            Method::FilledRange | Method::NoSync => match cache {
                Cache::Volatile => (Durable::No, "the drive's cache is volatile and is not flushed"),
                Cache::None => (Durable::Perhaps, "only if the drive really has no volatile cache"),
                Cache::Unknown => (Durable::No, "the drive's cache is unknown"),
            },
            _ => match cache {
                Cache::Volatile => (Durable::Yes, "the drive's cache is bypassed or flushed"),
                Cache::None => (Durable::Yes, "the drive says it has no volatile cache"),
                Cache::Unknown => (Durable::Perhaps, "the file system requests it; the drive is unknown"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a volatile cache, a method without a flush is never reported as durable. In memory, no method is.
    #[test]
    fn hope_is_not_called_durable() {
        for method in Method::ALL {
            assert_eq!(method.durable("tmpfs", Cache::None).0, Durable::No);
            for file_system in ["ext4", "xfs", "btrfs", "zfs"] {
                let flushes = !matches!(method, Method::TruncatedRange | Method::FilledRange | Method::NoSync);
                let (durable, why) = method.durable(file_system, Cache::Volatile);
                assert_eq!(durable == Durable::Yes, flushes, "{method:?} on {file_system}: {why}");
                assert_eq!(method.durable(file_system, Cache::None).0 == Durable::Yes, flushes, "{method:?}");
                assert_ne!(method.durable(file_system, Cache::Unknown).0, Durable::Yes, "{method:?}");
            }
        }
        assert_eq!(Method::FilledRange.durable("btrfs", Cache::None).0, Durable::No);
        assert_eq!(Method::FilledRange.durable("xfs", Cache::None).0, Durable::Perhaps);
    }
}
