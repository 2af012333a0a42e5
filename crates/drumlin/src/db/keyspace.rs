//! A named tree of rows.

use std::io::Read;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use super::core::{Core, Named};
use super::range::{self, Content, Range, ValueReader};
use super::{Handle, Value};
use crate::error::{Error, Result};
use crate::format::KeyspaceId;
use crate::task::{Face, ready};
use crate::tree::Tree;
use crate::txn::engine::{Durability, Found, Row, View};
use crate::txn::snapshots::Registration;
use crate::txn::values::{self, Blocking, MEDIUM_BYTES_MAX, Source};
use crate::txn::write_set::Change;

/// A keyspace: rows in the order of their keys (by bytes). A cheap handle.
///
/// Calls outside of a transaction are each a transaction of their own.
#[derive(Clone, Debug)]
pub struct Keyspace {
    handle: Arc<Handle>,
    /// Others get it from [`named_in`](Keyspace::named_in).
    named: Arc<Named>,
}

/// What a new keyspace is like.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyspaceOptions {
    pub(crate) page_bytes: Option<usize>,
}

impl KeyspaceOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> KeyspaceOptions {
        KeyspaceOptions::default()
    }

    /// The size of its pages, a power of two from 4 to 64 KiB. Default: [`Config::page_bytes`](crate::Config::page_bytes). Small pages read less for one row;
    /// large ones compress better and scan faster.
    #[must_use]
    pub fn page_bytes(mut self, bytes: usize) -> KeyspaceOptions {
        self.page_bytes = Some(bytes);
        self
    }
}

/// What is known of a keyspace without reading it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyspaceInfo {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: KeyspaceId,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Pages in use, those of large values included.
    pub page_count: u64,
}

impl Keyspace {
    pub(crate) fn new(handle: &Arc<Handle>, named: Arc<Named>) -> Keyspace {
        Keyspace { handle: Arc::clone(handle), named }
    }

    /// The keyspace itself, for whoever works on the database of `handle`; `Invalid` if it is one of another. `user` says
    /// who.
    pub(crate) fn named_in(&self, handle: &Arc<Handle>, user: &str) -> Result<&Named> {
        handle.core()?;
        if Arc::ptr_eq(&self.handle, handle) {
            return Ok(&self.named);
        }
        let name = &self.named.name;
        Err(Error::Invalid(format!("keyspace {name:?} belongs to another database, or opening of it, than the {user}")))
    }

    /// The tree, for tests that look inside.
    #[cfg(test)]
    pub(crate) fn tree(&self) -> &crate::tree::Tree {
        &self.named.tree
    }

    pub(crate) fn core(&self) -> Result<&Arc<Core>> {
        self.handle.core()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.named.name
    }

    /// The longest key: a quarter of the page.
    #[must_use]
    pub fn key_bytes_max(&self) -> usize {
        self.named.tree.key_bytes_max()
    }

    /// Puts a row in place of one with the same key, if there is one. Durable when it returns. O(log n).
    ///
    /// # Errors
    /// [`KeyTooLong`](crate::Error::KeyTooLong), [`DiskFull`](crate::Error::DiskFull), [`Conflict`](crate::Error::Conflict) if a transaction holds the row for 10 seconds,
    /// [`Failed`](crate::Error::Failed), [`OutcomeUnknown`](crate::Error::OutcomeUnknown).
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.insert_with(key, value, Durability::Full)
    }

    /// As [`insert`](Keyspace::insert), with a durability of one's own choice.
    ///
    /// # Errors
    /// As [`insert`](Keyspace::insert).
    pub fn insert_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        ready(self.insert_as(Face::Blocking, key.as_ref(), value.as_ref(), durability))
    }

    pub(crate) async fn insert_as(
        &self,
        face: Face<'_>,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        if value.len() > MEDIUM_BYTES_MAX {
            return self.insert_large(face, key, Blocking(value), durability).await.map(drop);
        }
        self.core()?.check_key(&self.named, key)?;
        let row = Row { tree: &self.named.tree, key, change: Change::Put(value) };
        self.core()?.autocommit(face, row, durability).await
    }

    async fn insert_large(
        &self,
        face: Face<'_>,
        key: &[u8],
        source: impl Source,
        durability: Durability,
    ) -> Result<u64> {
        let core = self.core()?;
        core.check_key(&self.named, key)?;
        core.engine.check_failure()?;
        let value =
            values::write_large(face, &self.named.tree, core.new_value(), source, &core.engine.make_space).await?;
        let row = Row { tree: &self.named.tree, key, change: Change::PutLarge(&value) };
        // Until it is applied, it is given back however this ends.
        core.autocommit(face, row, durability).await?;
        Ok(value.length)
    }

    /// Stores what `reader` yields as the row's value, of any length, in memory of under a megabyte. The row changes when
    /// the reader has ended. Returns the number of bytes.
    ///
    /// # Errors
    /// [`Source`](crate::Error::Source) if the reader fails; nothing of the value remains then. Otherwise as [`insert`](Keyspace::insert).
    pub fn insert_from(&self, key: impl AsRef<[u8]>, reader: impl Read) -> Result<u64> {
        ready(self.insert_from_as(Face::Blocking, key.as_ref(), Blocking(reader)))
    }

    pub(crate) async fn insert_from_as(&self, face: Face<'_>, key: &[u8], mut source: impl Source) -> Result<u64> {
        let head = read_head(&mut source).await?;
        if head.len() <= MEDIUM_BYTES_MAX {
            self.insert_as(face, key, &head, Durability::Full).await?;
            return Ok(head.len() as u64);
        }
        self.insert_large(face, key, WithHead { head: &head, source }, Durability::Full).await
    }

    /// The row's value. O(log n); one read of the device at the most where inner nodes are in memory.
    ///
    /// # Errors
    /// [`Damaged`](crate::Error::Damaged), [`Io`](crate::Error::Io).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let value = self.core()?.engine.get(&self.named.tree, key.as_ref(), Core::PLAIN)?;
        Ok(value.map(Value::from))
    }

    pub(crate) async fn get_as(&self, face: Face<'_>, key: &[u8]) -> Result<Option<Value>> {
        let value = self.core()?.engine.get_as(face, &self.named.tree, key, Core::PLAIN).await?;
        Ok(value.map(Value::from))
    }

    /// Whether there is such a row. O(log n).
    ///
    /// # Errors
    /// As [`get`](Keyspace::get).
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.core()?.engine.find(&self.named.tree, key.as_ref(), Core::PLAIN)?.is_some())
    }

    pub(crate) async fn contains_key_as(&self, face: Face<'_>, key: &[u8]) -> Result<bool> {
        Ok(self.core()?.engine.find_as(face, &self.named.tree, key, Core::PLAIN).await?.is_some())
    }

    /// The values of many rows, with many reads of the device in flight at once.
    ///
    /// # Errors
    /// As [`get`](Keyspace::get).
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        ready(self.get_many_as(Face::Blocking, keys))
    }

    pub(crate) async fn get_many_as<K: AsRef<[u8]>>(&self, face: Face<'_>, keys: &[K]) -> Result<Vec<Option<Value>>> {
        let values = self.core()?.engine.get_many(face, &self.named.tree, keys, Core::PLAIN).await?;
        Ok(values.into_iter().map(|value| value.map(Value::from)).collect())
    }

    /// Removes the row, if there is one. Durable when it returns. O(log n).
    ///
    /// # Errors
    /// As [`insert`](Keyspace::insert); works on a full disk too.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        ready(self.remove_as(Face::Blocking, key.as_ref()))
    }

    pub(crate) async fn remove_as(&self, face: Face<'_>, key: &[u8]) -> Result<()> {
        self.core()?.check_key(&self.named, key)?;
        let row = Row { tree: &self.named.tree, key, change: Change::Remove };
        self.core()?.autocommit(face, row, Durability::Full).await
    }

    /// The rows of a range as they are now; what is changed later does not show. See [`Range`].
    pub fn range<R: RangeBounds<Vec<u8>>>(&self, range: R) -> Range {
        self.scan((range.start_bound().cloned(), range.end_bound().cloned()))
    }

    fn scan(&self, bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Range {
        let moment = self.now();
        Range::new(Arc::clone(&self.handle), self.named.tree.clone(), moment, bounds, Default::default(), None)
    }

    /// All rows.
    #[must_use]
    pub fn iter(&self) -> Range {
        self.range(..)
    }

    /// All rows whose key begins with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.scan(range::prefix_bounds(prefix.as_ref()))
    }

    /// The number of rows in a range. O(rows) as yet: it visits their leaves.
    ///
    /// # Errors
    /// As [`get`](Keyspace::get).
    pub fn count<R: RangeBounds<Vec<u8>>>(&self, range: R) -> Result<u64> {
        ready(self.range(range).count_rows(Face::Blocking))
    }

    /// A value as a stream, for values larger than one wants in memory: `Read` and `Seek`, as it is now.
    ///
    /// # Errors
    /// As [`get`](Keyspace::get).
    pub fn read(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        ready(self.read_as(Face::Blocking, key.as_ref()))
    }

    pub(crate) async fn read_as(&self, face: Face<'_>, key: &[u8]) -> Result<Option<ValueReader>> {
        self.handle.value_reader(face, &self.named.tree, key, self.now()).await
    }

    /// The moment that plain reads see.
    fn now(&self) -> Arc<Registration> {
        self.handle.register_visible()
    }
}

/// As many bytes as tell whether the value is a large one.
pub(crate) async fn read_head(source: &mut impl Source) -> Result<Vec<u8>> {
    let mut head = vec![0; MEDIUM_BYTES_MAX + 1];
    let filled = source.fill(&mut head).await?;
    head.truncate(filled);
    Ok(head)
}

/// A source of which the first bytes were read already.
pub(crate) struct WithHead<'h, S> {
    pub(crate) head: &'h [u8],
    pub(crate) source: S,
}

impl<S: Source> Source for WithHead<'_, S> {
    async fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = self.head.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.head[..count]);
        self.head = &self.head[count..];
        Ok(count + self.source.fill(&mut buffer[count..]).await?)
    }
}

impl Handle {
    pub(crate) async fn value_reader(
        self: &Arc<Self>,
        face: Face<'_>,
        tree: &Tree,
        key: &[u8],
        moment: Arc<Registration>,
    ) -> Result<Option<ValueReader>> {
        moment.check()?;
        let content = match self.core()?.engine.find_as(face, tree, key, View::At(moment.timestamp)).await? {
            None => return Ok(None),
            Some(Found::Inline(value)) => Content::Bytes(value.to_vec()),
            Some(Found::Large(reference)) => Content::Placed(reference),
        };
        moment.check()?;
        Ok(Some(ValueReader::new(self, tree, moment, content)))
    }
}
