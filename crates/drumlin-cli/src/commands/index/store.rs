//! The keyspaces of an index: the transaction that stores a file in three of them, and queries over many files.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Bound;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use drumlin::{Database, Error, Keyspace, ReduceError, Reducer, Transaction};
use xxhash_rust::xxh3::Xxh3Default;

use super::entry::size_in;
use super::{Entry, Found, Kind, size_key};
use crate::commands::selection::{KeyRange, prefix_range};
use crate::failure::{Failure, Result};

/// The maximum size of files that are read into memory. Larger files are streamed through the engine.
const CONTENT_BYTES_READ_AT_ONCE: u64 = 256 << 10;

/// The number of rows that one scan examines.
const ROWS_LOOKED_AT_ONCE: usize = 1000;

/// A marker: an empty keyspace that exists while the loads of a whole tree are being attached, one keyspace at a time.
/// While it exists, all rows of the index come from those loads.
const UNFINISHED: &str = "index_unfinished";

/// The number of files and their total size in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) database: Database,
    /// Maps a path to its [`Entry`].
    pub(crate) files: Keyspace,
    /// Maps a path to its content.
    pub(crate) contents: Keyspace,
    /// Keys consist of size and path. Values are empty.
    pub(crate) by_size: Keyspace,
    /// Maps the path of a directory to its [`Entry`].
    pub(crate) directories: Keyspace,
}

/// The outcome of storing a file.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The transaction that stored the file is durable.
    Stored { bytes: u64 },
    /// The file was already stored and has not changed.
    Unchanged,
    /// The file could not be read. No part of it is in the database.
    Unreadable(io::Error),
}

impl Outcome {
    pub(super) fn unreadable(source: &io::Error) -> Outcome {
        Outcome::Unreadable(io::Error::new(source.kind(), source.to_string()))
    }
}

impl Store {
    /// Opens the keyspaces of an existing index, for a command that reads.
    pub(crate) fn existing(database: &Database) -> Result<Store> {
        let has = |name: &str| database.keyspaces().iter().any(|keyspace| keyspace.name == name);
        if !has("files") || has(UNFINISHED) {
            return Err(Failure::not_found("there is no tree in the database").hint("`drumlin index` stores one"));
        }
        Ok(Store::keyspaces(database)?)
    }

    /// Opens the keyspaces of an index. If an earlier run was interrupted while attaching loads, drops their rows.
    pub(crate) fn open_or_create(database: &Database) -> drumlin::Result<Store> {
        if database.keyspaces().iter().any(|keyspace| keyspace.name == UNFINISHED) {
            for name in ["files", "contents", "by_size", "directories"] {
                match database.drop_keyspace(name) {
                    Ok(()) | Err(Error::NoSuchKeyspace { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            database.drop_keyspace(UNFINISHED)?;
        }
        Store::keyspaces(database)
    }

    /// Calls `attach`, which attaches loads to the empty keyspaces of the index. If it does not complete, the next
    /// command that opens the index drops their rows.
    pub(super) fn fill(&self, attach: impl FnOnce() -> drumlin::Result<()>) -> drumlin::Result<()> {
        self.database.keyspace(UNFINISHED)?;
        attach()?;
        self.database.drop_keyspace(UNFINISHED)
    }

    /// Returns `true` if the index has no files and no directories.
    pub(super) fn is_empty(&self) -> drumlin::Result<bool> {
        Ok(self.files.is_empty()?
            && self.contents.is_empty()?
            && self.by_size.is_empty()?
            && self.directories.is_empty()?)
    }

    /// Returns the length of the longest path that can be stored. Paths are part of several keys, each with its own
    /// limit.
    pub(super) fn path_bytes_max(&self, kind: Kind) -> usize {
        match kind {
            Kind::Directory => self.directories.key_bytes_max(),
            Kind::File | Kind::Symlink => {
                let by_size = self.by_size.key_bytes_max() - size_key(0, b"").len();
                by_size.min(self.files.key_bytes_max()).min(self.contents.key_bytes_max())
            }
        }
    }

    fn keyspaces(database: &Database) -> drumlin::Result<Store> {
        Ok(Store {
            database: database.clone(),
            files: database.keyspace("files")?,
            contents: database.keyspace("contents")?,
            by_size: database.keyspace("by_size")?,
            directories: database.keyspace("directories")?,
        })
    }

    /// Returns the number of files whose paths are in a range. O(log files) if the files were counted before, otherwise
    /// O(files).
    pub(crate) fn file_count(&self, range: &KeyRange) -> Result<u64> {
        Ok(self.files.count(range.clone())?)
    }

    /// Returns the bytes of the files whose paths are in a range. O(log files) if they were summed before, otherwise
    /// O(files). It reads the rows of `files`, not the contents.
    pub(crate) fn file_bytes(&self, range: &KeyRange) -> Result<u64> {
        match self.files.aggregate(&FileSizes, range.clone()) {
            Err(Error::Reducer { reason, .. }) => Err(Failure::other(format!("a row of files: {reason}"))),
            bytes => Ok(bytes?),
        }
    }

    /// Returns both the number and the bytes of files in a range.
    pub(crate) fn held(&self, range: &KeyRange) -> Result<Held> {
        Ok(Held { files: self.file_count(range)?, bytes: self.file_bytes(range)? })
    }

    /// Returns, in name order, the directories whose paths begin with `prefix` and have no `/` after it. O(directories
    /// found · log directories), regardless of the number of files below them.
    pub(crate) fn directories_at(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        let (mut from, end) = prefix_range(prefix.to_vec());
        loop {
            let Some(row) = self.directories.range((from, end.clone())).next() else { return Ok(found) };
            let key = row?.0.into_vec();
            match memchr::memchr(b'/', &key[prefix.len()..]) {
                Some(at) => {
                    // Skip everything below this directory.
                    let next = [&key[..prefix.len() + at], &[b'/' + 1]].concat();
                    from = Bound::Included(next);
                }
                None => {
                    from = Bound::Excluded(key.clone());
                    found.push(key);
                }
            }
        }
    }

    /// Stores a file or directory, unless it is already stored and unchanged.
    pub(crate) fn put(&self, found: &Found) -> drumlin::Result<Outcome> {
        let keyspace = if found.kind == Kind::Directory { &self.directories } else { &self.files };
        let before = keyspace.get(&found.key)?.and_then(|bytes| Entry::decode(&bytes));
        if before.as_ref().is_some_and(|entry| entry.is_unchanged(found.kind, &found.metadata)) {
            return Ok(Outcome::Unchanged);
        }
        loop {
            let outcome = match found.kind {
                Kind::Directory => self.try_put_directory(found),
                Kind::File | Kind::Symlink => self.try_put(found, before.as_ref()),
            };
            match outcome {
                Err(Error::Conflict { .. } | Error::LockTimeout { .. }) => {}
                // The error is from reading the file, not from the database.
                Err(Error::Source { source }) => return Ok(Outcome::unreadable(&source)),
                outcome => return outcome,
            }
        }
    }

    fn try_put(&self, found: &Found, before: Option<&Entry>) -> drumlin::Result<Outcome> {
        let mut content = match Content::open(found) {
            Ok(content) => content,
            Err(error) => return Ok(Outcome::Unreadable(error)),
        };
        let mut transaction = self.database.begin()?;
        let bytes = match content.read_small() {
            Ok(Some(content)) => {
                transaction.insert(&self.contents, &found.key, &content)?;
                content.len() as u64
            }
            Ok(None) => transaction.insert_from(&self.contents, &found.key, &mut content)?,
            Err(error) => return Ok(Outcome::Unreadable(error)),
        };
        let entry = Entry::new(found.kind, &found.metadata, bytes, content.hash());
        transaction.insert(&self.files, &found.key, entry.encode())?;
        if let Some(before) = before.filter(|before| before.size != bytes) {
            transaction.remove(&self.by_size, size_key(before.size, &found.key))?;
        }
        transaction.insert(&self.by_size, size_key(bytes, &found.key), b"")?;
        // The path may have been a directory before.
        if transaction.contains_key(&self.directories, &found.key)? {
            transaction.remove(&self.directories, &found.key)?;
        }
        transaction.commit()?;
        Ok(Outcome::Stored { bytes })
    }

    fn try_put_directory(&self, found: &Found) -> drumlin::Result<Outcome> {
        let mut transaction = self.database.begin()?;
        transaction.insert(&self.directories, &found.key, Entry::of_directory(&found.metadata).encode())?;
        if let Some(file) = transaction.get(&self.files, &found.key)? {
            self.remove_file(&mut transaction, &found.key, &file)?;
        }
        transaction.commit()?;
        Ok(Outcome::Stored { bytes: 0 })
    }

    /// Removes the files and directories that no longer exist below the root, or that are at or below a left-out path,
    /// each in its own transaction. Returns the number of files.
    pub(super) fn remove_missing(&self, root: &Path, left_out: &[Vec<u8>]) -> Result<u64> {
        let files = self.each_missing(&self.files, root, left_out, |key, entry| {
            self.database.transact(|transaction| self.remove_file(transaction, key, entry))
        })?;
        self.each_missing(&self.directories, root, left_out, |key, _| self.directories.remove(key))?;
        Ok(files)
    }

    /// Removes the rows of a keyspace if their paths no longer exist below the root. Returns the number of removed
    /// rows.
    fn each_missing(
        &self,
        keyspace: &Keyspace,
        root: &Path,
        left_out: &[Vec<u8>],
        remove: impl Fn(&[u8], &[u8]) -> drumlin::Result<()>,
    ) -> Result<u64> {
        let of_directories = keyspace.name() == self.directories.name();
        let mut removed = 0;
        let mut from = Bound::Unbounded;
        loop {
            // Scan in parts, each with its own snapshot, because the snapshot of a single scan would retain every
            // removed row.
            let part = keyspace.range((from, Bound::Unbounded)).take(ROWS_LOOKED_AT_ONCE);
            let part = part.collect::<Result<Vec<_>, _>>()?;
            let Some((last, _)) = part.last() else { return Ok(removed) };
            from = Bound::Excluded(last.to_vec());
            for (key, entry) in &part {
                let below = Path::new(OsStr::from_bytes(key));
                let is_left_out = left_out.iter().any(|path| below.starts_with(OsStr::from_bytes(path)));
                let is_missing = match fs::symlink_metadata(root.join(below)) {
                    Ok(metadata) => metadata.is_dir() != of_directories,
                    Err(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
                };
                if is_missing || is_left_out {
                    remove(key, entry)?;
                    removed += 1;
                }
            }
        }
    }

    fn remove_file(&self, transaction: &mut Transaction, key: &[u8], entry: &[u8]) -> drumlin::Result<()> {
        transaction.remove(&self.files, key)?;
        transaction.remove(&self.contents, key)?;
        match Entry::decode(entry) {
            Some(entry) => transaction.remove(&self.by_size, size_key(entry.size, key)),
            None => Ok(()),
        }
    }
}

/// The content of a file, hashed as it is read.
pub(super) struct Content {
    source: Source,
    hash: Xxh3Default,
}

enum Source {
    File { file: File, expected_bytes: u64 },
    Target(io::Cursor<Vec<u8>>),
}

impl Content {
    pub(super) fn open(found: &Found) -> io::Result<Content> {
        let source = match found.kind {
            Kind::File => Source::File { file: File::open(&found.path)?, expected_bytes: found.metadata.len() },
            Kind::Directory => unreachable!("a directory has no content"),
            Kind::Symlink => Source::Target(io::Cursor::new(fs::read_link(&found.path)?.into_os_string().into_vec())),
        };
        Ok(Content { source, hash: Xxh3Default::new() })
    }

    /// Returns the whole content if it is small, or `None` if it has to be streamed.
    pub(super) fn read_small(&mut self) -> io::Result<Option<Vec<u8>>> {
        let expected_bytes = match &self.source {
            Source::File { expected_bytes, .. } => *expected_bytes,
            Source::Target(target) => target.get_ref().len() as u64,
        };
        if expected_bytes > CONTENT_BYTES_READ_AT_ONCE {
            return Ok(None);
        }
        let mut content = Vec::with_capacity(expected_bytes as usize + 1);
        self.read_to_end(&mut content)?;
        Ok(Some(content))
    }

    /// Returns the XXH3-128 hash of the bytes read so far.
    pub(super) fn hash(&self) -> u128 {
        self.hash.digest128()
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = match &mut self.source {
            Source::File { file, .. } => file.read(buffer)?,
            Source::Target(target) => target.read(buffer)?,
        };
        self.hash.update(&buffer[..bytes]);
        Ok(bytes)
    }
}

/// Sums the sizes in rows of `files`. Unlike [`drumlin::Sum`], it fails if a row has no size.
struct FileSizes;

impl Reducer for FileSizes {
    type State = u64;
    type Output = u64;

    fn name(&self) -> Cow<'_, str> {
        "sizes of files".into()
    }
    fn identity(&self) -> u64 {
        0
    }
    fn row(&self, _key: &[u8], entry: &[u8]) -> Result<u64, ReduceError> {
        size_in(entry).ok_or_else(|| "not written by index".into())
    }
    fn combine(&self, left: u64, right: u64) -> Result<u64, ReduceError> {
        left.checked_add(right).ok_or_else(|| "the sizes of all files do not fit in 64 bits".into())
    }
    fn encode(&self, state: &u64, bytes: &mut Vec<u8>) {
        bytes.extend(state.to_be_bytes());
    }
    fn decode(&self, bytes: &[u8]) -> Result<u64, ReduceError> {
        Ok(u64::from_be_bytes(bytes.try_into()?))
    }
    fn output(&self, state: u64) -> u64 {
        state
    }
}
