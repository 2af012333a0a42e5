//! The rows that `scan`, `dump` and `rm` select: all rows, those with a prefix, or a range.

use std::ffi::OsString;
use std::ops::Bound;

use clap::Args;

use crate::failure::{Failure, Result};
use crate::text::parse_key;

/// A selection of rows by their keys.
#[derive(Clone, Debug, Args)]
pub(crate) struct Selection {
    /// Only keys that begin with this
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
    /// Only this key and those above it
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// Only keys below this one
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
}

/// The bounds of a range of keys.
pub(crate) type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

impl Selection {
    /// Returns `true` if any of these options is given.
    pub(crate) fn is_given(&self) -> bool {
        self.prefix.is_some() || self.from.is_some() || self.to.is_some()
    }

    /// Returns the selected range of keys for a command that removes them. Rejects an empty prefix or start, which may
    /// come from an unset shell variable.
    pub(crate) fn range_to_remove(&self, hex: bool) -> Result<KeyRange> {
        let range = self.range(hex)?;
        let begins_with_all = matches!(&range.0, Bound::Included(key) if key.is_empty());
        match (begins_with_all, &range.1) {
            (true, Bound::Unbounded) => {
                let option = if self.prefix.is_some() { "--prefix" } else { "--from" };
                Err(Failure::usage(format!("an empty {option} means every row; nothing was removed"))
                    .hint("--all removes the keyspace with all its rows"))
            }
            _ => Ok(range),
        }
    }

    /// Returns the selected range of keys.
    pub(crate) fn range(&self, hex: bool) -> Result<KeyRange> {
        if let Some(prefix) = &self.prefix {
            return Ok(prefix_range(parse_key(prefix, hex)?));
        }
        let bound = |key: &Option<OsString>| key.as_ref().map(|key| parse_key(key, hex)).transpose();
        let from = bound(&self.from)?.map_or(Bound::Unbounded, Bound::Included);
        let to = bound(&self.to)?.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(match (from, to) {
            // A range whose end is not above its start is empty. Replace it by an empty range that the engine accepts.
            (Bound::Included(from), Bound::Excluded(to)) if from >= to => {
                (Bound::Included(from.clone()), Bound::Excluded(from))
            }
            range => range,
        })
    }
}

/// Returns the range of all keys with this prefix.
pub(crate) fn prefix_range(prefix: Vec<u8>) -> KeyRange {
    let mut end = prefix.clone();
    while end.last() == Some(&u8::MAX) {
        end.pop();
    }
    let end = match end.last_mut() {
        Some(last) => {
            *last += 1;
            Bound::Excluded(end)
        }
        None => Bound::Unbounded,
    };
    (Bound::Included(prefix), end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The range of a prefix ends at the first key without the prefix, even if the prefix ends with 0xFF.
    #[test]
    fn prefixes_end_where_they_should() {
        let end = |prefix: &[u8]| prefix_range(prefix.to_vec()).1;
        assert_eq!(end(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(end(b"a\xff\xff"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(end(b"\xff"), Bound::Unbounded);
        assert_eq!(end(b""), Bound::Unbounded);
    }
}
