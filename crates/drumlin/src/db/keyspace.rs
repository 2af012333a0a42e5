//! A named tree of rows.

use std::io::Read;
use std::sync::Arc;

use super::bounds::{self, KeyRange};
use super::range::{Keys, Range, Values};
use super::reducer::Reducer;
use super::rows::Rows;
use super::value::ShownValue;
use super::value_reader::ValueReader;
use super::{Handle, Value};
use crate::error::{Error, Result};
use crate::format::KeyspaceId;
use crate::memory::Grant;
use crate::store::{OpenKeyspace, Store};
use crate::task::{WaitMode, ready};
use crate::tree::Direction;
use crate::txn::engine::{Durability, Row};
use crate::txn::values::{self, Blocking, MEDIUM_BYTES_MAX, Source};
use crate::txn::write_set::Change;

/// A keyspace: rows ordered by the bytes of their keys. A cheap handle.
///
/// Each call outside of a transaction is a transaction of its own. Its durability is the handle's: that of
/// [`Config::durability`](crate::Config::durability), `Full` by default, or of
/// [`with_durability`](Keyspace::with_durability). Where the documentation of a call says *durable when it returns*, it
/// is so for a handle of durability `Full`.
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
    /// Modules that get handles from outside get it from [`named_in`](Keyspace::named_in).
    pub(super) open: Arc<OpenKeyspace>,
    /// Of its own commits.
    pub(super) durability: Durability,
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyspace({} of {:?})", self.open.tree.pages.quoted_name(), self.handle.store_here().path)
    }
}

/// Settings of a new keyspace.
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
    /// The defaults.
    #[must_use]
    pub fn new() -> KeyspaceOptions {
        KeyspaceOptions::default()
    }

    /// The size of its pages, a power of two from 4 to 64 KiB. Default:
    /// [`Config::page_bytes`](crate::Config::page_bytes). Small pages read less for one row; large ones compress better
    /// and scan faster.
    #[must_use]
    pub fn page_bytes(mut self, bytes: usize) -> KeyspaceOptions {
        self.page_bytes = Some(bytes);
        self
    }
}

/// Facts about a keyspace that are known without reading it.
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
    pub(crate) fn new(handle: &Arc<Handle>, open: Arc<OpenKeyspace>) -> Keyspace {
        Keyspace { handle: Arc::clone(handle), open, durability: handle.store_here().durability }
    }

    /// The open keyspace, for callers that work on the database of `handle`; `Invalid` if it belongs to another. `user`
    /// names the caller in the error.
    pub(crate) fn named_in(&self, handle: &Arc<Handle>, user: &str) -> Result<&OpenKeyspace> {
        handle.store()?;
        if Arc::ptr_eq(&self.handle, handle) {
            return Ok(&self.open);
        }
        let name = self.open.tree.pages.quoted_name();
        Err(Error::Invalid(format!(
            "keyspace {name} belongs to another database than the {user}, or to another opening of it"
        )))
    }

    /// The tree, for tests that look inside.
    #[cfg(test)]
    pub(crate) fn tree(&self) -> &crate::tree::Tree {
        &self.open.tree
    }

    pub(crate) fn store(&self) -> Result<&Arc<Store>> {
        self.handle.store()
    }

    /// Its rows as plain calls see them.
    pub(super) fn rows(&self) -> Rows<'_> {
        Rows { handle: &self.handle, tree: &self.open.tree, view: None }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.open.name()
    }

    /// Another handle of the keyspace, whose calls commit with this durability.
    ///
    /// ```
    /// use drumlin::Durability;
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let log = db.keyspace("log")?.with_durability(Durability::Relaxed);
    /// log.insert("1", "returns before it is on the medium")?;
    /// log.remove("1")?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn with_durability(&self, durability: Durability) -> Keyspace {
        Keyspace { durability, ..self.clone() }
    }

    /// The length of the longest key: a quarter of the page.
    #[must_use]
    pub fn key_bytes_max(&self) -> usize {
        self.open.tree.key_bytes_max()
    }

    /// The bytes that the keyspace's pages take in the data file, those of large values included: compressed, and as
    /// they were last written; changes that are only in memory and in the log yet are not counted. O(pages).
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
    /// [`Closed`](crate::Error), if the database is.
    pub fn disk_bytes(&self) -> Result<u64> {
        Ok(self.store()?.disk_bytes(&self.open))
    }
}

/// Reading. Each call sees the newest commit that no power cut can take back; calls that read several rows see all of
/// them as of one commit, but for [`get_many`](Keyspace::get_many).
impl Keyspace {
    /// Returns the row's value. O(log n); at most one read of the device while inner nodes are in memory.
    ///
    /// # Errors
    /// [`Corrupted`](crate::Error::Corrupted), [`Io`](crate::Error::Io).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_owned(key.as_ref())
    }

    // Compiled once, here, whatever kinds of keys are used.
    fn get_owned(&self, key: &[u8]) -> Result<Option<Value>> {
        self.store()?.engine.get(&self.open.tree, key, Store::PLAIN)
    }

    /// Puts the row's value in `value`, in place of what that held, and returns `true`. Returns `false` if there is no
    /// row: then `value` is empty, as it is after an error. O(log n).
    ///
    /// It allocates only where the vector's capacity does not do, so a loop that uses one vector allocates nothing.
    /// Values over 64 KiB are read into it chunk by chunk.
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
    /// Those of [`get`](Keyspace::get).
    pub fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        self.copy_into(key.as_ref(), value)
    }

    fn copy_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.store()?.engine.get_into(&self.open.tree, key, Store::PLAIN, value)
    }

    /// Calls `look` with the row's value and returns its result; `None` if there is no row. O(log n).
    ///
    /// `look` sees a copy in a vector that the thread keeps for the next call, of up to 64 KiB, and runs under no lock
    /// or latch: it may take its time, panic, and call the database.
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
    /// Those of [`get`](Keyspace::get).
    pub fn get_with<R>(&self, key: impl AsRef<[u8]>, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let mut shown = ShownValue::new();
        Ok(self.get_into(key, &mut shown.0)?.then(|| look(&shown.0)))
    }

    /// Returns `true` if the row exists. O(log n). Reads no large value.
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get).
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.store()?.engine.find(&self.open.tree, key.as_ref(), Store::PLAIN, |_| ())?.is_some())
    }

    /// Tells which of many rows exist, with many reads of the device in flight at once, as
    /// [`get_many`](Keyspace::get_many) does. Reads no large value.
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
    /// Those of [`get`](Keyspace::get).
    pub fn contains_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>> {
        ready(self.rows().contains_many(WaitMode::Blocking, keys))
    }

    /// Returns the values of many rows, with many reads of the device in flight at once. Each value is as of its own
    /// moment during the call; [`Reader::get_many`](crate::Reader::get_many) of a snapshot reads all as of one.
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get).
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        ready(self.rows().get_many(WaitMode::Blocking, keys))
    }

    /// Returns the first row in the order of keys. O(log n).
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
    /// Those of [`get`](Keyspace::get); [`MemoryInUse`](crate::Error::MemoryInUse) if open scans take all the memory
    /// that is for them, [`SnapshotTooOld`](crate::Error::SnapshotTooOld).
    pub fn first(&self) -> Result<Option<(Value, Value)>> {
        ready(self.rows().end(WaitMode::Blocking, bounds::ALL, Direction::Forward))
    }

    /// Returns the last row in the order of keys. O(log n).
    ///
    /// # Errors
    /// Those of [`first`](Keyspace::first).
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
    /// Those of [`first`](Keyspace::first).
    pub fn is_empty(&self) -> Result<bool> {
        ready(self.rows().is_empty(WaitMode::Blocking))
    }

    /// Counts the rows of a range. O(log n), and O(rows inserted and removed since counts were last asked for).
    ///
    /// The first count of a large range visits its leaves, and the keyspace keeps what it finds: eight bytes a page,
    /// and the keys of rows inserted and removed since, at most an eighth of the memory for pages. From then on commits
    /// note such rows. A [bulk load](crate::BulkLoad) and a [check](crate::Database::check) leave counts too.
    /// Checkpoints and closing write the counts to a file, so that the first count after an opening
    /// need not visit the leaves either. They are forgotten where no count comes before that memory is full. Where
    /// there is no memory for them, and for a snapshot that is older than they are, a count visits the leaves of its
    /// range. The answer is exact in any case.
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
    /// Those of [`first`](Keyspace::first).
    pub fn count(&self, range: impl KeyRange) -> Result<u64> {
        ready(self.rows().count(WaitMode::Blocking, bounds::owned(&range)))
    }

    /// Counts all rows. Like [`count`](Keyspace::count).
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
    /// Those of [`first`](Keyspace::first).
    pub fn len(&self) -> Result<u64> {
        self.count(..)
    }

    /// Counts the rows whose keys are below this one: the place that the key has, or would have, in the order of keys.
    /// Like [`count`](Keyspace::count).
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
    /// Those of [`first`](Keyspace::first).
    pub fn rank(&self, key: impl AsRef<[u8]>) -> Result<u64> {
        self.count(..key)
    }

    /// Reduces the rows of a range: their sum, their least or greatest number, or whatever a [`Reducer`] computes.
    /// O(log n), and O(leaves changed since aggregates were last asked for).
    ///
    /// The first aggregate of a large range by a reducer reads its rows, and the keyspace keeps what it finds: a state
    /// for each page, beside the [counts](Keyspace::count). From then on commits note the keys of the rows that they
    /// change. States are kept for the 32 reducers that were used last, by type and name. For a snapshot that is older
    /// than what is kept, the rows are read. The answer is exact in any case. What is kept is forgotten when the
    /// database is closed.
    ///
    /// A reducer takes 14 bytes and its encoded state for each leaf, a page of rows, of
    /// [`state_bytes`](crate::Limits::state_bytes), which is up to a quarter of the memory for pages;
    /// [`Stats::memory`](crate::Stats::memory) has the use of this part. 5 million rows of 48 bytes have 64,000 leaves
    /// of 4 KiB, for which states of 32 bytes take 2.8 MiB. If it does not suffice, reducers share it: the states
    /// of inner pages are kept, and of some leaves none. A range reads the rows of those at its two ends, up to some
    /// hundred leaves each.
    ///
    /// An aggregate that has to read many rows is a long read: beside many writers it may end with
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld), and finds more states when it is asked again.
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
    /// longer than 1,024 bytes; those of [`first`](Keyspace::first).
    pub fn aggregate<R: Reducer>(&self, reducer: &R, range: impl KeyRange) -> Result<R::Output> {
        ready(self.rows().aggregate(WaitMode::Blocking, reducer, bounds::owned(&range)))
    }

    /// Returns the row of a range that has `index` rows of the range before it. O(log n), like
    /// [`count`](Keyspace::count); where the keyspace keeps no counts, O(`index`).
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
    /// Those of [`first`](Keyspace::first).
    pub fn nth(&self, range: impl KeyRange, index: u64) -> Result<Option<(Value, Value)>> {
        ready(self.rows().nth(WaitMode::Blocking, bounds::owned(&range), index))
    }

    /// Returns `row_count` different rows of a range, chosen at random, or all, if it has no more: every set of so many
    /// rows is as likely as any other. They are of one snapshot, and in the order of keys. O(`row_count` · log n), like
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
    /// Those of [`first`](Keyspace::first).
    pub fn sample(&self, range: impl KeyRange, row_count: usize) -> Result<Vec<(Value, Value)>> {
        ready(self.rows().sample(WaitMode::Blocking, bounds::owned(&range), row_count))
    }

    /// The rows of a range of keys as of this call; later changes are not seen. See [`Range`] and [`KeyRange`].
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

    /// All rows whose key begins with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.rows().scan(bounds::of_prefix(prefix.as_ref()))
    }

    /// All rows. A `for` loop over `&keyspace` does the same.
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

    /// All keys, without reading values. Of a range: [`Range::keys`].
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

    /// All values, in the order of their keys. Of a range: [`Range::values`].
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

    /// Opens a value as a stream, as of this call: `Read` and `Seek`, for values too large to keep in memory.
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get).
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

/// Writing. Each call is a transaction of its own.
impl Keyspace {
    /// Puts a row and replaces the one with the same key, if there is one. Durable when it returns. O(log n). Does not
    /// read the row: [`replace`](Keyspace::replace) returns the old value.
    ///
    /// # Errors
    /// [`KeyTooLong`](crate::Error::KeyTooLong), [`DiskFull`](crate::Error::DiskFull),
    /// [`LockTimeout`](crate::Error::LockTimeout) if a transaction has the row locked for 10 seconds,
    /// [`Closed`](crate::Error::Closed), [`Failed`](crate::Error::Failed),
    /// [`OutcomeUnknown`](crate::Error::OutcomeUnknown). [`MemoryInUse`](crate::Error::MemoryInUse) if the write must
    /// wait for its row or for memory, and the memory that open transactions and waiting writes share has no room for
    /// its lock for 10 seconds; for a value over 64 KiB also like [`insert_from`](Keyspace::insert_from).
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.insert_with(key, value, self.durability)
    }

    /// Like [`insert`](Keyspace::insert), with the given durability instead of the handle's. For other calls, and for
    /// more than one, see [`with_durability`](Keyspace::with_durability).
    ///
    /// # Errors
    /// Those of [`insert`](Keyspace::insert).
    pub fn insert_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        ready(self.insert_in(WaitMode::Blocking, key.as_ref(), value.as_ref(), durability))
    }

    pub(crate) async fn insert_in(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        if value.len() > MEDIUM_BYTES_MAX {
            let memory = self.store()?.source_memory(mode).await?;
            return self.insert_large(mode, key, Blocking(value), memory, durability).await.map(drop);
        }
        self.store()?.check_write(&self.open, key)?;
        let row = Row { tree: &self.open.tree, key, change: Change::Put(value) };
        self.store()?.autocommit(mode, row, durability).await
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
        let value = values::write_large(mode, tree, store.new_value(), source, memory, &store.engine.make_room).await?;
        let row = Row { tree: &self.open.tree, key, change: Change::PutLarge(&value) };
        // Until the value is applied, its space is released however this ends.
        store.autocommit(mode, row, durability).await?;
        Ok(value.length)
    }

    /// Stores all that `reader` yields as the row's value, of any length, in 320 KiB of memory. The row changes once
    /// the reader has ended. Returns the number of bytes. If other writers use all the memory for this, a thirty-second
    /// of the budget, the call waits for them before it reads anything.
    ///
    /// # Errors
    /// [`Source`](crate::Error::Source) if the reader fails; nothing of the value remains.
    /// [`MemoryInUse`](crate::Error::MemoryInUse) after waiting for memory for 10 seconds; nothing has been read.
    /// Otherwise those of [`insert`](Keyspace::insert).
    pub fn insert_from(&self, key: impl AsRef<[u8]>, reader: impl Read) -> Result<u64> {
        ready(self.insert_from_in(WaitMode::Blocking, key.as_ref(), Blocking(reader)))
    }

    pub(crate) async fn insert_from_in(&self, mode: WaitMode<'_>, key: &[u8], mut source: impl Source) -> Result<u64> {
        let memory = self.store()?.source_memory(mode).await?;
        let head = read_head(&mut source).await?;
        if head.len() <= MEDIUM_BYTES_MAX {
            // Another transaction may hold the row for long.
            drop(memory);
            self.insert_in(mode, key, &head, self.durability).await?;
            return Ok(head.len() as u64);
        }
        self.insert_large(mode, key, WithHead { head: &head, source }, memory, self.durability).await
    }

    /// Removes the row, if there is one. Durable when it returns. O(log n). Does not read the row:
    /// [`take`](Keyspace::take) returns its value.
    ///
    /// # Errors
    /// Those of [`insert`](Keyspace::insert). Works on a full disk too.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        ready(self.remove_in(WaitMode::Blocking, key.as_ref()))
    }

    pub(crate) async fn remove_in(&self, mode: WaitMode<'_>, key: &[u8]) -> Result<()> {
        self.store()?.check_write(&self.open, key)?;
        let row = Row { tree: &self.open.tree, key, change: Change::Remove };
        self.store()?.autocommit(mode, row, self.durability).await
    }
}

/// Reads as many bytes as it takes to tell whether the value is a large one.
pub(crate) async fn read_head(source: &mut impl Source) -> Result<Vec<u8>> {
    let mut head = vec![0; MEDIUM_BYTES_MAX + 1];
    let filled = source.fill(&mut head).await?;
    head.truncate(filled);
    head.shrink_to_fit();
    Ok(head)
}

/// A source whose first bytes were read already.
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
