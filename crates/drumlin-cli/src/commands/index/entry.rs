//! The record of a file, and its encoding.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// The kind of thing that a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Its content is the file's.
    File,
    /// Its content is the path it points to.
    Symlink,
    /// It has no content.
    Directory,
}

/// The value in the keyspaces `files` and `directories`, as JSON, so that any tool can read it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// Bytes of content.
    pub(crate) size: u64,
    /// Last modification, nanoseconds since 1970.
    pub(crate) mtime_ns: i128,
    /// Permission bits, as `chmod` takes them.
    pub(crate) mode: String,
    /// XXH3-128 of the content.
    pub(crate) xxh3: String,
}

impl Entry {
    pub(super) fn new(kind: Kind, metadata: &Metadata, size: u64, xxh3: u128) -> Entry {
        Entry { kind, size, mtime_ns: mtime_ns(metadata), mode: mode(metadata), xxh3: format!("{xxh3:032x}") }
    }

    /// Returns `true` if the content had this XXH3-128.
    pub(crate) fn has_hash(&self, xxh3: u128) -> bool {
        self.xxh3 == format!("{xxh3:032x}")
    }

    pub(super) fn of_directory(metadata: &Metadata) -> Entry {
        Entry::new(Kind::Directory, metadata, 0, xxh3_128(&[]))
    }

    /// Returns `true` if the file on disk is, to all appearances, still the one recorded.
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

/// The size of a file in its encoded [`Entry`], without a look at the rest.
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

/// The key in the keyspace `by_size`: sorts by size, then by path.
pub(crate) fn size_key(size: u64, path: &[u8]) -> Vec<u8> {
    [&size.to_be_bytes(), path].concat()
}

/// Size and path of a key in `by_size`.
pub(crate) fn split_size_key(key: &[u8]) -> Option<(u64, &[u8])> {
    let (size, path) = key.split_first_chunk()?;
    Some((u64::from_be_bytes(*size), path))
}
