//! The record of a file or directory, and its encoding.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// The kind of file system entry at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// A file; the content is its bytes.
    File,
    /// A symbolic link; the content is its target path.
    Symlink,
    /// A directory; it has no content.
    Directory,
}

/// A value in the keyspaces `files` and `directories`, encoded as JSON so that any tool can read it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// Size of the content in bytes.
    pub(crate) size: u64,
    /// Time of the last modification, in nanoseconds since 1970.
    pub(crate) mtime_ns: i128,
    /// Permission bits in octal, as used by `chmod`.
    pub(crate) mode: String,
    /// XXH3-128 of the content.
    pub(crate) xxh3: String,
}

impl Entry {
    pub(super) fn new(kind: Kind, metadata: &Metadata, size: u64, xxh3: u128) -> Entry {
        Entry { kind, size, mtime_ns: mtime_ns(metadata), mode: mode(metadata), xxh3: format!("{xxh3:032x}") }
    }

    /// Returns `true` if the content has this XXH3-128 hash.
    pub(crate) fn has_hash(&self, xxh3: u128) -> bool {
        self.xxh3 == format!("{xxh3:032x}")
    }

    pub(super) fn of_directory(metadata: &Metadata) -> Entry {
        Entry::new(Kind::Directory, metadata, 0, xxh3_128(&[]))
    }

    /// Returns `true` if the metadata show no change to the file since it was recorded.
    pub(crate) fn is_unchanged(&self, kind: Kind, metadata: &Metadata) -> bool {
        self.kind == kind
            && (kind == Kind::Directory || self.size == metadata.len())
            && self.mtime_ns == mtime_ns(metadata)
            && self.mode == mode(metadata)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an entry has nothing that JSON lacks")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Entry> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Returns the size of a file from its encoded [`Entry`], without decoding the other fields.
pub(super) fn size_in(entry: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Size {
        size: u64,
    }
    serde_json::from_slice::<Size>(entry).ok().map(|entry| entry.size)
}

fn mode(metadata: &Metadata) -> String {
    format!("{:04o}", metadata.mode() & 0o7777)
}

fn mtime_ns(metadata: &Metadata) -> i128 {
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}

/// Returns the key in the keyspace `by_size`, which sorts by size and then by path.
pub(crate) fn size_key(size: u64, path: &[u8]) -> Vec<u8> {
    [&size.to_be_bytes(), path].concat()
}

/// Splits a key of `by_size` into size and path.
pub(crate) fn split_size_key(key: &[u8]) -> Option<(u64, &[u8])> {
    let (size, path) = key.split_first_chunk()?;
    Some((u64::from_be_bytes(*size), path))
}
