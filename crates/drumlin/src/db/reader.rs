//! The reading methods that snapshots and transactions share.

use std::sync::Arc;

use super::bounds::{self, KeyRange};
use super::handle::Handle;
use super::range::{Keys, Range, Values};
use super::reducer::Reducer;
use super::rows::{ReadView, Rows};
use super::value_reader::ValueReader;
use super::{Keyspace, Value};
use crate::error::{Error, Result};
use crate::store::{OpenedSnapshot, Store};
use crate::task::{WaitMode, ready};
use crate::tree::Direction;

/// A view of all keyspaces: the reading methods that [`Snapshot`](crate::Snapshot) and
/// [`Transaction`](crate::Transaction) share by dereferencing to it. The methods correspond to those of [`Keyspace`],
/// and take the keyspace as their first argument. A [`KeptSnapshot`](crate::KeptSnapshot) has them too.
///
/// A snapshot shows the database as of one commit. A transaction shows the commits that its
/// [`Isolation`](crate::Isolation) lets it see, plus its own changes.
///
/// All methods fail with [`Invalid`](crate::Error::Invalid) for a keyspace of a different database; a range then yields
/// only this error. In a serializable transaction, they record their reads. They fail with
/// [`TransactionTooLarge`](crate::Error::TransactionTooLarge) if the transaction's records need too much memory, or
/// with [`MemoryInUse`](crate::Error::MemoryInUse) if the records of all transactions together do.
///
/// ```
/// use drumlin::{Keyspace, Reader, Result};
///
/// /// Works for transactions and snapshots.
/// fn total(reader: &Reader, accounts: &Keyspace) -> Result<u64> {
///     let number = |value: drumlin::Value| u64::from_be_bytes(value[..].try_into().expect("eight bytes"));
///     reader.values(accounts).map(|value| value.map(number)).sum()
/// }
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// let accounts = db.keyspace("accounts")?;
/// accounts.insert("ann", 5u64.to_be_bytes())?;
/// db.transact(|tx| {
///     tx.insert(&accounts, "bob", 7u64.to_be_bytes())?;
///     assert_eq!(total(tx, &accounts)?, 12);
///     Ok(())
/// })?;
/// assert_eq!(total(&db.snapshot(), &accounts)?, 12);
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct Reader {
    pub(super) handle: Arc<Handle>,
    pub(super) view: ReadView,
    /// The kept snapshot from which the reader reads; `None` for other readers.
    pub(super) kept: Option<Arc<OpenedSnapshot>>,
    /// The kind of reader, for error messages.
    pub(super) kind: &'static str,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({} at {})", self.kind, self.view.horizon.seen())
    }
}

impl Reader {
    pub(super) fn store(&self) -> Result<&Arc<Store>> {
        self.handle.store()
    }

    /// Returns the rows of a keyspace as this reader sees them. Fails if the keyspace belongs to a different database.
    pub(super) fn rows<'r>(&'r self, keyspace: &'r Keyspace) -> Result<Rows<'r>> {
        let open = match &self.kept {
            None => keyspace.named_in(&self.handle, self.kind)?,
            Some(kept) => {
                let open = keyspace.opened_by(&self.handle, self.kind)?;
                kept.form_of(open).ok_or_else(|| Error::NoSuchKeyspace { name: open.name().to_string() })?
            }
        };
        Ok(Rows { handle: &self.handle, tree: &open.tree, view: Some(&self.view) })
    }

    /// Returns the row's value. O(log n).
    ///
    /// # Errors
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld), [`Corrupted`](crate::Error::Corrupted),
    /// [`Io`](crate::Error::Io), and the errors of all methods (see [`Reader`]).
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ready(self.rows(keyspace)?.get(WaitMode::Blocking, key.as_ref()))
    }

    /// Replaces the content of `value` with the row's value and returns `true`. If there is no row, empties `value` and
    /// returns `false`. After an error, `value` is also empty. O(log n). Allocates only if the vector's capacity is too
    /// small.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "one")?;
    /// let mut tx = db.begin()?;
    /// tx.insert(&k, "b", "two")?;
    /// let mut value = Vec::new();
    /// assert!(tx.get_into(&k, "a", &mut value)? && value == b"one");
    /// assert!(tx.get_into(&k, "b", &mut value)? && value == b"two");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`get`](Reader::get).
    pub fn get_into(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        ready(self.rows(keyspace)?.get_into(WaitMode::Blocking, key.as_ref(), value))
    }

    /// Calls `look` with the row's value and returns its result, or `None` if there is no row. O(log n). `look`
    /// receives a copy, and may be slow, panic, or call the database; see [`Keyspace::get_with`].
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "one")?;
    /// assert_eq!(db.snapshot().get_with(&k, "a", <[u8]>::len)?, Some(3));
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`get`](Reader::get).
    pub fn get_with<R>(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        ready(self.rows(keyspace)?.get_with(WaitMode::Blocking, key.as_ref(), look))
    }

    /// Returns `true` if the row exists. O(log n). Does not read a large value.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// let mut tx = db.begin()?;
    /// tx.insert(&k, "a", "1")?;
    /// assert!(tx.contains_key(&k, "a")?);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`get`](Reader::get).
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        ready(self.rows(keyspace)?.contains_key(WaitMode::Blocking, key.as_ref()))
    }

    /// Checks for each key whether its row exists, with many device reads in flight. Does not
    /// read large values.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// let mut tx = db.begin()?;
    /// tx.insert(&k, "b", "2")?;
    /// assert_eq!(tx.contains_many(&k, &["a", "b", "c"])?, [true, true, false]);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`get`](Reader::get).
    pub fn contains_many<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, keys: &[K]) -> Result<Vec<bool>> {
        ready(self.rows(keyspace)?.contains_many(WaitMode::Blocking, &bounds::slices(keys)))
    }

    /// Returns the values of many rows, with many device reads in flight.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// let values = db.snapshot().get_many(&k, &["a", "b"])?;
    /// assert!(values[0].as_ref().unwrap() == "1" && values[1].is_none());
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`get`](Reader::get).
    pub fn get_many<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, keys: &[K]) -> Result<Vec<Option<Value>>> {
        ready(self.rows(keyspace)?.get_many(WaitMode::Blocking, &bounds::slices(keys)))
    }

    /// Returns the first row in key order. O(log n), plus O(log n) for each leaf whose rows the transaction has
    /// removed.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let jobs = db.keyspace("jobs")?;
    /// jobs.insert("1", "wash")?;
    /// db.transact(|tx| {
    ///     let Some((key, job)) = tx.first(&jobs)? else { return Ok(()) };
    ///     tx.remove(&jobs, key)
    /// })?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`get`](Reader::get); [`MemoryInUse`](crate::Error::MemoryInUse) if open scans use up the memory
    /// for scans.
    pub fn first(&self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        ready(self.rows(keyspace)?.end(WaitMode::Blocking, bounds::ALL, Direction::Forward))
    }

    /// Returns the last row in key order. Otherwise like [`first`](Reader::first).
    ///
    /// # Errors
    /// Same as [`first`](Reader::first).
    pub fn last(&self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        ready(self.rows(keyspace)?.end(WaitMode::Blocking, bounds::ALL, Direction::Backward))
    }

    /// Returns `true` if the keyspace has no rows. O(log n), like [`first`](Reader::first).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// assert!(db.snapshot().is_empty(&k)?);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Reader::first).
    pub fn is_empty(&self, keyspace: &Keyspace) -> Result<bool> {
        ready(self.rows(keyspace)?.is_empty(WaitMode::Blocking))
    }

    /// Counts the rows of a range. O(log n), plus O(rows inserted and removed since the last count): see
    /// [`Keyspace::count`]. Each of a transaction's own changes costs O(log n).
    ///
    /// # Errors
    /// Same as [`first`](Reader::first).
    pub fn count(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<u64> {
        ready(self.rows(keyspace)?.count(WaitMode::Blocking, bounds::owned(&range)))
    }

    /// Counts all rows. See [`count`](Reader::count).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// assert_eq!(db.snapshot().len(&k)?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Reader::first).
    pub fn len(&self, keyspace: &Keyspace) -> Result<u64> {
        self.count(keyspace, ..)
    }

    /// Counts the rows whose keys are below this key. See [`count`](Reader::count).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// assert_eq!(db.snapshot().rank(&k, "b")?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Reader::first).
    pub fn rank(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<u64> {
        self.count(keyspace, ..key)
    }

    /// Reduces the rows of a range, including a transaction's own changes. See [`Keyspace::aggregate`].
    ///
    /// ```
    /// use drumlin::{Field, Max};
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", [3])?;
    /// let mut tx = db.begin()?;
    /// tx.insert(&k, "b", [5])?;
    /// assert_eq!(tx.aggregate(&k, &Max::of(Field::<u8>::big_endian(0)), ..)?, Some(5));
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Reducer`](crate::Error::Reducer) if the reducer fails; the errors of [`first`](Reader::first).
    pub fn aggregate<R: Reducer>(&self, keyspace: &Keyspace, reducer: &R, range: impl KeyRange) -> Result<R::Output> {
        ready(self.rows(keyspace)?.aggregate(WaitMode::Blocking, reducer, bounds::owned(&range)))
    }

    /// Returns the row at position `index` of a range, counted from 0. O(log n), like [`count`](Reader::count);
    /// O(`index`) if the keyspace has no counts.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// k.insert("b", "2")?;
    /// let (key, _) = db.snapshot().nth(&k, .., 1)?.expect("there are two");
    /// assert_eq!(key, "b");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Reader::first).
    pub fn nth(&self, keyspace: &Keyspace, range: impl KeyRange, index: u64) -> Result<Option<(Value, Value)>> {
        ready(self.rows(keyspace)?.nth(WaitMode::Blocking, bounds::owned(&range), index))
    }

    /// Returns `row_count` rows of a range, chosen uniformly at random without replacement, in key order. See
    /// [`Keyspace::sample`]. O(`row_count` · log n), like [`nth`](Reader::nth).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// assert_eq!(db.snapshot().sample(&k, .., 5)?.len(), 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Reader::first).
    pub fn sample(&self, keyspace: &Keyspace, range: impl KeyRange, row_count: usize) -> Result<Vec<(Value, Value)>> {
        ready(self.rows(keyspace)?.sample(WaitMode::Blocking, bounds::owned(&range), row_count))
    }

    /// Returns the rows of a range as the reader sees them now, including a transaction's own changes. See [`Range`]
    /// and [`KeyRange`].
    ///
    /// The first write that a transaction makes while one of its ranges is open copies the changes that it has made so
    /// far. The copy counts towards the memory of open transactions, an eighth of the budget, which has room for the
    /// largest possible transaction and one copy of it. A write in such a large transaction therefore fails with
    /// [`MemoryInUse`](crate::Error::MemoryInUse) if open ranges already need two copies, or if they need one and other
    /// transactions use the rest of the memory. The ranges themselves continue. A range stays usable after its
    /// transaction has ended. The exception is a serializable transaction: after its commit, its ranges fail with
    /// [`Invalid`](crate::Error::Invalid).
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Range {
        self.scan(keyspace, bounds::owned(&range))
    }

    fn scan(&self, keyspace: &Keyspace, bounds: bounds::OwnedBounds) -> Range {
        match self.rows(keyspace) {
            Ok(rows) => rows.scan(bounds),
            Err(error) => Range::refused(error),
        }
    }

    /// Returns all rows whose key begins with `prefix`.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        self.scan(keyspace, bounds::of_prefix(prefix.as_ref()))
    }

    /// Returns all rows.
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.scan(keyspace, bounds::ALL)
    }

    /// Returns all keys, without reading values. For the keys of a range, see [`Range::keys`].
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// assert_eq!(db.snapshot().keys(&k).next().unwrap()?, "a");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn keys(&self, keyspace: &Keyspace) -> Keys {
        self.iter(keyspace).keys()
    }

    /// Returns all values in key order. For the values of a range, see [`Range::values`].
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// assert_eq!(db.snapshot().values(&k).next().unwrap()?, "1");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn values(&self, keyspace: &Keyspace) -> Values {
        self.iter(keyspace).values()
    }

    /// Opens a value as a stream, as the reader sees it now. The stream stays readable after the transaction has been
    /// committed or rolled back.
    ///
    /// # Errors
    /// Same as [`get`](Reader::get).
    pub fn read(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        ready(self.rows(keyspace)?.read(WaitMode::Blocking, key.as_ref()))
    }
}
