//! Keyspaces: named, ordered maps, each with its own tree.

use std::future::Future;
use std::io::Read;
use std::sync::Arc;

use super::Value;
use super::bounds::{self, KeyRange};
use super::handle::Handle;
use super::range::{Keys, Range, Values};
use super::reducer::Reducer;
use super::rows::Rows;
use super::value::ShownValue;
use super::value_reader::ValueReader;
use crate::error::{Error, Result};
use crate::format::KeyspaceId;
use crate::memory::Grant;
use crate::store::{OpenKeyspace, Store};
use crate::task::{Rooted, WaitMode, ready};
use crate::tree::Direction;
use crate::txn::commit::{Durability, Row};
use crate::txn::engine::ReadAt;
use crate::txn::values::{self, Blocking, LargeValue, MEDIUM_BYTES_MAX, Source};
use crate::txn::write_set::Change;

/// A keyspace: rows ordered by the bytes of their keys. Cheap to clone.
///
/// Each call outside of a transaction is a transaction of its own. It commits with the durability of the handle: the
/// one set by [`with_durability`](Keyspace::with_durability), or otherwise by
/// [`Config::durability`](crate::Config::durability) (`Full` by default). The words *durable when it returns* in a
/// call's documentation apply to handles with `Full` durability.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let orders = db.keyspace("orders")?;
/// orders.insert("2026-11-21/0001", "three apples")?;
/// orders.insert("2026-11-21/0002", "a pear")?;
/// assert_eq!(orders.get("2026-11-21/0002")?.unwrap(), "a pear");
/// assert_eq!(orders.count("2026-11-21".."2026-11-22")?, 2);
/// assert_eq!(orders.take("2026-11-21/0001")?.unwrap(), "three apples");
/// for row in &orders {
///     let (key, value) = row?;
///     println!("{key:?}: {value:?}");
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone)]
pub struct Keyspace {
    pub(super) handle: Arc<Handle>,
    /// Modules that receive a keyspace from a caller must read this field through [`named_in`](Keyspace::named_in),
    /// which checks that the keyspace belongs to their database.
    pub(super) open: Arc<OpenKeyspace>,
    /// The durability of this handle's own commits.
    pub(super) durability: Durability,
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyspace({} of {:?})", self.open.tree.pages.quoted_name(), self.handle.store_here().path)
    }
}

/// Options for creating a keyspace.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// use drumlin::KeyspaceOptions;
///
/// let films = db.keyspace_with("films", KeyspaceOptions::new().page_bytes(16 << 10))?;
/// assert_eq!(films.key_bytes_max(), 4 << 10);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyspaceOptions {
    pub(crate) page_bytes: Option<usize>,
}

impl KeyspaceOptions {
    /// Creates the default options.
    #[must_use]
    pub fn new() -> KeyspaceOptions {
        KeyspaceOptions::default()
    }

    /// Sets the page size, a power of two from 4 to 64 KiB. Default: [`Config::page_bytes`](crate::Config::page_bytes).
    /// With small pages, reading a single row transfers less; large pages compress better and scan faster.
    #[must_use]
    pub fn page_bytes(mut self, bytes: usize) -> KeyspaceOptions {
        self.page_bytes = Some(bytes);
        self
    }
}

/// A description of a keyspace. Obtaining it reads nothing from disk.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// db.keyspace("orders")?;
/// for info in db.keyspaces() {
///     println!("{}: {} pages of {} bytes", info.name, info.page_count, info.page_bytes);
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KeyspaceInfo {
    /// The name of the keyspace.
    pub name: String,
    /// The id of the keyspace.
    pub id: KeyspaceId,
    /// The page size in bytes.
    pub page_bytes: usize,
    /// The number of pages in use, including those of large values.
    pub page_count: u64,
}

impl Keyspace {
    pub(crate) fn new(handle: &Arc<Handle>, open: Arc<OpenKeyspace>) -> Keyspace {
        Keyspace { handle: Arc::clone(handle), open, durability: handle.store_here().durability }
    }

    /// Returns the open keyspace, for callers that work on the database of `handle`. Fails with `Invalid` if the
    /// keyspace belongs to a different database. The error calls the caller `user`.
    pub(crate) fn named_in(&self, handle: &Arc<Handle>, user: &str) -> Result<&OpenKeyspace> {
        let open = self.opened_by(handle, user)?;
        if open.tree.pages.id.is_of_kept() {
            let name = open.tree.pages.quoted_name();
            return Err(Error::Invalid(format!("keyspace {name} belongs to a kept snapshot, and not to the {user}")));
        }
        Ok(open)
    }

    /// Like [`named_in`](Self::named_in), but also returns a keyspace of a kept snapshot.
    pub(super) fn opened_by(&self, handle: &Arc<Handle>, user: &str) -> Result<&OpenKeyspace> {
        handle.store()?;
        if Arc::ptr_eq(&self.handle, handle) {
            return Ok(&self.open);
        }
        let name = self.open.tree.pages.quoted_name();
        Err(Error::Invalid(format!(
            "keyspace {name} belongs to another database than the {user}, or to another opening of it"
        )))
    }

    /// Returns the tree, for white-box tests.
    #[cfg(test)]
    pub(crate) fn tree(&self) -> &crate::counts::CountedTree {
        &self.open.tree
    }

    pub(crate) fn store(&self) -> Result<&Arc<Store>> {
        self.handle.store()
    }

    /// Returns the keyspace's rows as seen by calls outside of transactions.
    pub(super) fn rows(&self) -> Rows<'_> {
        Rows { handle: &self.handle, tree: &self.open.tree, view: None }
    }

    /// Returns the name that the keyspace has now. A handle stays with its keyspace if this is renamed.
    #[must_use]
    pub fn name(&self) -> String {
        self.open.name().to_string()
    }

    /// Returns another handle to the keyspace, whose calls commit with the given durability.
    ///
    /// ```
    /// use drumlin::Durability;
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let log = db.keyspace("log")?.with_durability(Durability::Relaxed);
    /// log.insert("1", "returns before it is durable")?;
    /// log.remove("1")?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn with_durability(&self, durability: Durability) -> Keyspace {
        Keyspace { durability, ..self.clone() }
    }

    /// Returns the length of the longest possible key, in bytes: a quarter of a page.
    #[must_use]
    pub fn key_bytes_max(&self) -> usize {
        self.open.tree.key_bytes_max()
    }

    /// Returns the number of bytes that the keyspace's pages occupy in the data file, including those of large values.
    /// A page counts with the compressed size that it had when it was last written. Changes that are still only in
    /// memory and in the log do not count. O(pages).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let texts = db.keyspace("texts")?;
    /// (0..1000u32).try_for_each(|n| texts.insert(n.to_be_bytes(), "all the same"))?;
    /// db.checkpoint()?;
    /// assert!((1..12_000).contains(&texts.disk_bytes()?));
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Closed`](crate::Error) if the database was closed.
    pub fn disk_bytes(&self) -> Result<u64> {
        Ok(self.store()?.disk_bytes(&self.open))
    }
}

/// The reading methods. Each call sees the newest commit that a power cut can no longer undo. A call that reads several
/// rows sees all of them as of one commit, except for [`get_many`](Keyspace::get_many).
impl Keyspace {
    /// Returns the row's value. O(log n); reads the device at most once if the inner nodes are in memory.
    ///
    /// # Errors
    /// [`Corrupted`](crate::Error::Corrupted), [`Io`](crate::Error::Io).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_owned(key.as_ref())
    }

    // This part is not generic, so it is compiled only once for all key types.
    #[inline(never)]
    fn get_owned(&self, key: &[u8]) -> Result<Option<Value>> {
        self.store()?.engine.get(&self.open.tree, key, ReadAt::Visible)
    }

    /// Replaces the content of `value` with the row's value and returns `true`. If there is no row, empties `value` and
    /// returns `false`. After an error, `value` is also empty. O(log n).
    ///
    /// Allocates only if the vector's capacity is too small, so a loop that reuses one vector does not allocate. Values
    /// over 64 KiB are read into it chunk by chunk.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// k.insert("a", "one")?;
    /// let mut value = Vec::new();
    /// assert!(k.get_into("a", &mut value)? && value == b"one");
    /// assert!(!k.get_into("b", &mut value)? && value.is_empty());
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`get`](Keyspace::get).
    pub fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        self.copy_into(key.as_ref(), value)
    }

    #[inline(never)]
    fn copy_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.store()?.engine.get_into(&self.open.tree, key, ReadAt::Visible, value)
    }

    /// Calls `look` with the row's value and returns its result, or `None` if there is no row. O(log n).
    ///
    /// `look` receives a copy, and no lock or latch is held while it runs. So it may be slow, panic, or call the
    /// database. The thread reuses the copy's vector for its next call unless the vector is longer than 64 KiB.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let ages = db.keyspace("ages")?;
    /// ages.insert("ann", 47u32.to_be_bytes())?;
    /// let age = ages.get_with("ann", |value| u32::from_be_bytes(value.try_into().expect("four bytes")))?;
    /// assert_eq!(age, Some(47));
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`get`](Keyspace::get).
    pub fn get_with<R>(&self, key: impl AsRef<[u8]>, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let mut shown = ShownValue::new();
        Ok(self.get_into(key, &mut shown.0)?.then(|| look(&shown.0)))
    }

    /// Returns `true` if the row exists. O(log n). Does not read a large value.
    ///
    /// # Errors
    /// Same as [`get`](Keyspace::get).
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.contains(key.as_ref())
    }

    #[inline(never)]
    fn contains(&self, key: &[u8]) -> Result<bool> {
        Ok(self.store()?.engine.find(&self.open.tree, key, ReadAt::Visible, |_| ())?.is_some())
    }

    /// Checks for each key whether its row exists, with many device reads in flight, like
    /// [`get_many`](Keyspace::get_many). Does not read large values.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// assert_eq!(k.contains_many(&["a", "b"])?, [true, false]);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`get`](Keyspace::get).
    pub fn contains_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>> {
        ready(self.rows().contains_many(WaitMode::Blocking, &bounds::slices(keys)))
    }

    /// Returns the values of many rows, with many device reads in flight. The rows may be read as of different commits.
    /// To read all of them as of one commit, use [`Reader::get_many`](crate::Reader::get_many) of a snapshot.
    ///
    /// # Errors
    /// Same as [`get`](Keyspace::get).
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        ready(self.rows().get_many(WaitMode::Blocking, &bounds::slices(keys)))
    }

    /// Returns the first row in key order. O(log n).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// assert!(k.first()?.is_none());
    /// k.insert("b", "2")?;
    /// k.insert("a", "1")?;
    /// let (key, value) = k.first()?.expect("there are two");
    /// assert!(key == "a" && value == "1");
    /// assert_eq!(k.last()?.expect("there are two").0, "b");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`get`](Keyspace::get); [`MemoryInUse`](crate::Error::MemoryInUse) if open scans use up the memory
    /// for scans; [`SnapshotTooOld`](crate::Error::SnapshotTooOld).
    pub fn first(&self) -> Result<Option<(Value, Value)>> {
        ready(self.rows().end(WaitMode::Blocking, bounds::ALL, Direction::Forward))
    }

    /// Returns the last row in key order. O(log n).
    ///
    /// # Errors
    /// Same as [`first`](Keyspace::first).
    pub fn last(&self) -> Result<Option<(Value, Value)>> {
        ready(self.rows().end(WaitMode::Blocking, bounds::ALL, Direction::Backward))
    }

    /// Returns `true` if there are no rows. O(log n).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// assert!(db.keyspace("k")?.is_empty()?);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Keyspace::first).
    pub fn is_empty(&self) -> Result<bool> {
        ready(self.rows().is_empty(WaitMode::Blocking))
    }

    /// Counts the rows of a range. O(log n), plus O(rows inserted and removed since the last count).
    ///
    /// The first count of a large range visits its leaves. From then on, the keyspace maintains their counts, eight
    /// bytes per page, and commits record the keys of the rows that they insert and remove. Counts and recorded keys
    /// together use at most an eighth of the memory for pages. A [bulk load](crate::BulkLoad) and a
    /// [check](crate::Database::check) also produce counts. Checkpoints and closing write the counts to a file, so even
    /// the first count after reopening does not have to visit the leaves. If their memory fills up before the next
    /// count, the counts are dropped. A count has to visit the leaves of its range if there is no memory for counts, or
    /// if its snapshot is older than them. The answer is always exact.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("2026-11-21/0001", "three apples")?;
    /// orders.insert("2026-11-22/0001", "a pear")?;
    /// assert_eq!(orders.count("2026-11-22"..)?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Keyspace::first).
    pub fn count(&self, range: impl KeyRange) -> Result<u64> {
        ready(self.rows().count(WaitMode::Blocking, bounds::owned(&range)))
    }

    /// Returns the estimated number of rows in a range. O(log n). Reads no leaves.
    ///
    /// The number of leaves in the range is estimated from the inner nodes above them, of which at most ten on each
    /// level are looked at, and read from the device if they are not in memory. The number of rows in a leaf is
    /// estimated from the leaves of the range that are in memory and, for want of those, from the leaves of the
    /// keyspace that were written last. The call waits for no leaf: neither for the device nor for a commit that is
    /// changing the leaf. A keyspace that consists of a single page is the exception: its rows are counted.
    ///
    /// The estimate is usually within a factor of two if the range has more than a few leaves. It is exact, apart from
    /// concurrent changes, if the range has a few leaves that are all in memory. If none of the leaves is in memory,
    /// and the rows of the range have very different sizes from the keyspace's other rows, the estimate is off by the
    /// ratio of these sizes. Rows that a running transaction has inserted or removed do not count. A row that was there
    /// before a bulk load which also has it counts twice until the load is folded into the keyspace's tree.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let orders = db.keyspace("orders")?;
    /// for order in 0..10_000u32 {
    ///     orders.insert(order.to_be_bytes(), "three apples")?;
    /// }
    /// let estimate = orders.estimate(2_000u32.to_be_bytes()..4_000u32.to_be_bytes())?;
    /// assert!((1_000..4_000).contains(&estimate));
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`get`](Keyspace::get).
    pub fn estimate(&self, range: impl KeyRange) -> Result<u64> {
        ready(self.rows().estimate(WaitMode::Blocking, bounds::owned(&range)))
    }

    /// Counts all rows. See [`count`](Keyspace::count).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// assert_eq!(k.len()?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Keyspace::first).
    pub fn len(&self) -> Result<u64> {
        self.count(..)
    }

    /// Counts the rows whose keys are below this key. This is the key's position in key order, whether its row exists
    /// or not. See [`count`](Keyspace::count).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let scores = db.keyspace("scores")?;
    /// for score in [310u32, 120, 480] {
    ///     scores.insert(score.to_be_bytes(), "a player")?;
    /// }
    /// assert_eq!(scores.rank(310u32.to_be_bytes())?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Keyspace::first).
    pub fn rank(&self, key: impl AsRef<[u8]>) -> Result<u64> {
        self.count(..key)
    }

    /// Reduces the rows of a range to their sum, their least or greatest number, or whatever else a [`Reducer`]
    /// computes. O(log n), plus O(leaves changed since the last aggregate).
    ///
    /// A reducer's first aggregate of a large range reads the rows. The keyspace then caches a state for each page, in
    /// addition to the [counts](Keyspace::count), and commits begin to record the keys of the rows that they change. It
    /// caches states for the 32 most recently used reducers, identified by type and name. If a snapshot is older than
    /// the states, the rows are read. The answer is always exact. The states are lost when the database is closed.
    ///
    /// For each leaf (a page of rows), a reducer needs 14 bytes and its encoded state. This memory is limited to
    /// [`state_bytes`](crate::Limits::state_bytes), up to a quarter of the memory for pages;
    /// [`Stats::memory`](crate::Stats::memory) shows how much of it is in use. For example, 5 million rows of 48 bytes
    /// fill 64,000 leaves of 4 KiB, whose states of 32 bytes occupy 2.8 MiB. If there is not enough memory, reducers
    /// share it: the states of all inner pages are cached, but some leaves have no cached state. An aggregate then
    /// reads the rows of such leaves at the two ends of its range, up to a few hundred leaves at each end.
    ///
    /// An aggregate that has to read many rows takes a long time. If its snapshot is ended before it has finished, it
    /// starts over at a newer snapshot and reuses the states that it has already computed.
    ///
    /// ```
    /// use drumlin::{Field, Sum};
    ///
    /// /// Values begin with a number of cents.
    /// const CENTS: Sum<u64> = Sum::of(Field::big_endian(0));
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("2026-11-21/0001", 450u64.to_be_bytes())?;
    /// orders.insert("2026-11-22/0001", 1250u64.to_be_bytes())?;
    /// orders.insert("2026-11-22/0002", 80u64.to_be_bytes())?;
    /// assert_eq!(orders.aggregate(&CENTS, "2026-11-22"..)?, 1330);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Reducer`](crate::Error::Reducer) if the reducer fails; [`Invalid`](crate::Error::Invalid) if its name is
    /// longer than 1,024 bytes; the errors of [`first`](Keyspace::first).
    pub fn aggregate<R: Reducer>(&self, reducer: &R, range: impl KeyRange) -> Result<R::Output> {
        ready(self.rows().aggregate(WaitMode::Blocking, reducer, bounds::owned(&range)))
    }

    /// Returns the row at position `index` of a range, counted from 0. O(log n), like [`count`](Keyspace::count);
    /// O(`index`) if the keyspace has no counts.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// for key in ["a", "b", "c"] {
    ///     k.insert(key, "")?;
    /// }
    /// let (median, _) = k.nth(.., k.len()? / 2)?.expect("there are three");
    /// assert_eq!(median, "b");
    /// assert!(k.nth("b".., 2)?.is_none());
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Keyspace::first).
    pub fn nth(&self, range: impl KeyRange, index: u64) -> Result<Option<(Value, Value)>> {
        ready(self.rows().nth(WaitMode::Blocking, bounds::owned(&range), index))
    }

    /// Returns `row_count` rows of a range, chosen uniformly at random without replacement, or all rows if the range
    /// has fewer. The rows are from one snapshot, and in key order. O(`row_count` · log n), like
    /// [`nth`](Keyspace::nth).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// for key in 0..100u8 {
    ///     k.insert([key], "")?;
    /// }
    /// let rows = k.sample(.., 10)?;
    /// assert!(rows.len() == 10 && rows.is_sorted());
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`first`](Keyspace::first).
    pub fn sample(&self, range: impl KeyRange, row_count: usize) -> Result<Vec<(Value, Value)>> {
        ready(self.rows().sample(WaitMode::Blocking, bounds::owned(&range), row_count))
    }

    /// Returns the rows of a range of keys as of this call. Later changes are not visible. See [`Range`] and
    /// [`KeyRange`].
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("2026-11-21/0001", "three apples")?;
    /// orders.insert("2026-11-22/0001", "a pear")?;
    /// for row in orders.range("2026-11-21".."2026-11-22").rev() {
    ///     let (key, value) = row?;
    ///     println!("{key:?}: {value:?}");
    /// }
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    pub fn range(&self, range: impl KeyRange) -> Range {
        self.rows().scan(bounds::owned(&range))
    }

    /// Returns all rows whose key begins with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.rows().scan(bounds::of_prefix(prefix.as_ref()))
    }

    /// Returns all rows. A `for` loop over `&keyspace` does the same.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// for row in &k {
    ///     let (key, value) = row?;
    /// }
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn iter(&self) -> Range {
        self.rows().scan(bounds::ALL)
    }

    /// Returns all keys, without reading values. For the keys of a range, see [`Range::keys`].
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// let keys: Vec<drumlin::Value> = k.keys().collect::<Result<_, _>>()?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn keys(&self) -> Keys {
        self.iter().keys()
    }

    /// Returns all values in key order. For the values of a range, see [`Range::values`].
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// let values: Vec<drumlin::Value> = k.values().collect::<Result<_, _>>()?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn values(&self) -> Values {
        self.iter().values()
    }

    /// Opens a value, as of this call, as a stream with `Read` and `Seek`. Intended for values that do not fit into
    /// memory.
    ///
    /// # Errors
    /// Same as [`get`](Keyspace::get).
    pub fn read(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        ready(self.rows().read(WaitMode::Blocking, key.as_ref()))
    }
}

impl IntoIterator for &Keyspace {
    type Item = Result<(Value, Value)>;
    type IntoIter = Range;

    fn into_iter(self) -> Range {
        self.iter()
    }
}

/// The writing methods. Each call is a transaction of its own.
impl Keyspace {
    /// Puts a row, replacing any row with the same key. Durable when it returns. O(log n). Does not read the old value;
    /// use [`replace`](Keyspace::replace) to get it.
    ///
    /// # Errors
    /// [`KeyTooLong`](crate::Error::KeyTooLong), [`DiskFull`](crate::Error::DiskFull),
    /// [`LockTimeout`](crate::Error::LockTimeout) if a transaction holds the row's lock for 10 seconds,
    /// [`Closed`](crate::Error::Closed), [`Failed`](crate::Error::Failed),
    /// [`OutcomeUnknown`](crate::Error::OutcomeUnknown). [`MemoryInUse`](crate::Error::MemoryInUse) if the write has to
    /// wait for its row or for memory, and for 10 seconds open transactions and other waiting writes leave no memory
    /// for its lock. A value over 64 KiB can also fail with [`MemoryInUse`](crate::Error::MemoryInUse) like
    /// [`insert_from`](Keyspace::insert_from).
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.insert_with(key, value, self.durability)
    }

    /// Like [`insert`](Keyspace::insert), with the given durability instead of the handle's. For other calls, or
    /// several calls, use [`with_durability`](Keyspace::with_durability).
    ///
    /// # Errors
    /// Same as [`insert`](Keyspace::insert).
    pub fn insert_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        ready(self.insert_in(WaitMode::Blocking, key.as_ref(), value.as_ref(), durability))
    }

    #[inline(never)]
    pub(crate) fn insert_in(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Rooted<impl Future<Output = Result<()>>> {
        Rooted::new(async move {
            if value.len() > MEDIUM_BYTES_MAX {
                let memory = self.store()?.source_memory(mode).await?;
                return self.insert_large(mode, key, Blocking(value), memory, durability).await.map(drop);
            }
            self.store()?.check_write(&self.open, key)?;
            let row = Row { tree: &self.open.tree, key, change: Change::Put(value) };
            self.store()?.autocommit(mode, row, durability).await
        })
    }

    async fn insert_large(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        source: impl Source,
        memory: Grant,
        durability: Durability,
    ) -> Result<u64> {
        let store = self.store()?;
        store.check_write(&self.open, key)?;
        store.engine.check_failure()?;
        let tree = &self.open.tree;
        let value = values::write_large(mode, tree, store.new_value(), source, memory, &store.engine.reclaim).await?;
        // Until the commit is applied, `value` owns its space: if this call fails or is dropped, the space is released.
        self.insert_written(mode, key, &value, durability).await?;
        Ok(value.length)
    }

    #[inline(never)]
    fn insert_written(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        value: &Arc<LargeValue>,
        durability: Durability,
    ) -> Rooted<impl Future<Output = Result<()>>> {
        Rooted::new(async move {
            let row = Row { tree: &self.open.tree, key, change: Change::PutLarge(value) };
            self.store()?.autocommit(mode, row, durability).await
        })
    }

    /// Stores everything that `reader` yields, of any length, as the row's value, using 320 KiB of memory. The row
    /// changes only after the reader has reached its end. Returns the value's length. Writers of large values share a
    /// thirty-second of the memory budget. If it is used up, the call waits for other writers before it reads anything.
    ///
    /// # Errors
    /// [`Source`](crate::Error::Source) if the reader fails, in which case the row is unchanged.
    /// [`MemoryInUse`](crate::Error::MemoryInUse) if no memory became free within 10 seconds, in which case nothing was
    /// read. Otherwise the errors of [`insert`](Keyspace::insert).
    pub fn insert_from(&self, key: impl AsRef<[u8]>, mut reader: impl Read) -> Result<u64> {
        self.insert_read(key.as_ref(), &mut reader)
    }

    #[inline(never)]
    fn insert_read(&self, key: &[u8], reader: &mut dyn Read) -> Result<u64> {
        ready(self.insert_from_in(WaitMode::Blocking, key, Blocking(reader)))
    }

    pub(crate) async fn insert_from_in(&self, mode: WaitMode<'_>, key: &[u8], mut source: impl Source) -> Result<u64> {
        let memory = self.store()?.source_memory(mode).await?;
        let head = read_head(&mut source).await?;
        if head.len() <= MEDIUM_BYTES_MAX {
            // Release the memory now: the next call may wait for a long time for another transaction's row lock.
            drop(memory);
            self.insert_in(mode, key, &head, self.durability).await?;
            return Ok(head.len() as u64);
        }
        self.insert_large(mode, key, WithHead { head: &head, source }, memory, self.durability).await
    }

    /// Removes the row, if there is one. Durable when it returns. O(log n). Does not read the value; use
    /// [`take`](Keyspace::take) to get it.
    ///
    /// # Errors
    /// The errors of [`insert`](Keyspace::insert). Also works on a full disk.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        ready(self.remove_in(WaitMode::Blocking, key.as_ref()))
    }

    #[inline(never)]
    pub(crate) fn remove_in(&self, mode: WaitMode<'_>, key: &[u8]) -> Rooted<impl Future<Output = Result<()>>> {
        Rooted::new(async move {
            self.store()?.check_write(&self.open, key)?;
            let row = Row { tree: &self.open.tree, key, change: Change::Remove };
            self.store()?.autocommit(mode, row, self.durability).await
        })
    }
}

/// Reads the first bytes of a value, enough to find out whether it is large.
pub(crate) async fn read_head(source: &mut impl Source) -> Result<Vec<u8>> {
    let mut head = vec![0; MEDIUM_BYTES_MAX + 1];
    let filled = source.fill(&mut head).await?;
    head.truncate(filled);
    head.shrink_to_fit();
    Ok(head)
}

/// A source whose first bytes (the head) have already been read.
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
