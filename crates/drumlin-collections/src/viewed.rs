//! Reads the rows of a view, and reduces them.

use std::fmt::Debug;
use std::time::SystemTime;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::collection::Collection;
use crate::encoding::{EncodeAs, Key, KeyBounds, encoded};
use crate::error::{Error, Result};
use crate::mode::{Mode, ready};
use crate::open::run_guarded;
use crate::part_rows::PartRows;
use crate::parts::{View, view_value};
use crate::view_reducer::{Reduced, ViewReducer};

/// A view of a collection, as of one snapshot or transaction.
///
/// ```
/// # use drumlin_collections::{Collection, Collections, Parts, Postcard, View};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Order { id: u64, month: u32, category: String, cents: u64 }
/// # impl Order {
/// #     const REVENUE: View<Order, (u32, String), u64> =
/// #         View::new("revenue", |order: &Order, emit| emit((order.month, order.category.clone()), order.cents))
/// #             .reducing(|a, b| a + b);
/// # }
/// # impl Collection for Order {
/// #     type Key = u64;
/// #     type Codec = Postcard;
/// #     const NAME: &'static str = "orders";
/// #     fn key(&self) -> u64 { self.id }
/// #     fn parts() -> Parts<Order> { Parts::new().view(Order::REVENUE) }
/// # }
/// # let orders = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Order>()?;
/// use drumlin_collections::encoding::prefix;
///
/// let sold = [(1, 1, "fruit", 300), (2, 1, "tea", 500), (3, 1, "tea", 200), (4, 2, "tea", 400)];
/// for (id, month, category, cents) in sold {
///     orders.put(&Order { id, month, category: category.into(), cents })?;
/// }
/// let revenue = orders.view(&Order::REVENUE);
/// assert_eq!(revenue.reduce(..)?, Some(1400));
/// assert_eq!(revenue.reduce(prefix((1,)))?, Some(1000));
/// let tea = revenue.groups(prefix((1,))).last().unwrap()?;
/// assert_eq!(tea, ((1, "tea".to_owned()), 700));
/// let months: Vec<(u32, u64)> = revenue.groups_by(.., |(month, _)| *month).collect::<Result<_, _>>()?;
/// assert_eq!(months, [(1, 1000), (2, 400)]);
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
///
/// Reducing a range takes O(log n) once the view has been reduced for the first time. Groups are reduced row by row.
///
/// All methods fail with [`Error::NotReady`] while the view is being built, with [`Error::NotBuilt`] if the build
/// failed, and with the errors of [`Reading`](crate::Reading).
pub struct Viewed<'r, C: Collection, K, V> {
    rows: PartRows<'r, C>,
    view: View<C, K, V>,
}

impl<C: Collection, K, V> Debug for Viewed<'_, C, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Viewed({:?}, {})", C::NAME, self.rows.name)
    }
}

/// The reduce function of a view, together with the view itself for error messages.
struct Reducing<C, K, V> {
    view: View<C, K, V>,
    reduce: fn(V, V) -> V,
}

impl<C: Collection, K: Key + Debug, V> Reducing<C, K, V> {
    fn of(view: View<C, K, V>) -> Result<Reducing<C, K, V>> {
        let missing = || Error::definition(C::NAME, format!("{} has no reduce", view.part_name()));
        Ok(Reducing { view, reduce: view.reduce.ok_or_else(missing)? })
    }

    fn reduce(&self, key: &K, a: V, b: V) -> Result<V> {
        let of = self.view.part_name();
        run_guarded(|| (self.reduce)(a, b)).map_err(|message| Error::Panicked {
            collection: C::NAME,
            of,
            key: format!("unknown, while reducing rows at key {key:?}"),
            message,
        })
    }
}

impl<'r, C: Collection, K: Key + Debug, V: DeserializeOwned> Viewed<'r, C, K, V> {
    pub(crate) fn new(rows: PartRows<'r, C>, view: View<C, K, V>) -> Viewed<'r, C, K, V>
    where
        C: Collection,
    {
        Viewed { rows, view }
    }

    /// Restricts the view to the rows that come after all rows with key `key` from the document with key `document`,
    /// whether or not such rows exist.
    ///
    /// Use it for pagination: the next page starts where the previous one ended, even if documents were added or
    /// removed in the meantime. All methods see only the remaining rows.
    ///
    /// ```
    /// # use drumlin_collections::{Collection, Collections, Parts, Postcard, View};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Order { id: u64, month: u32, cents: u64 }
    /// # impl Order {
    /// #     const REVENUE: View<Order, u32, u64> =
    /// #         View::new("revenue", |order: &Order, emit| emit(order.month, order.cents)).reducing(|a, b| a + b);
    /// # }
    /// # impl Collection for Order {
    /// #     type Key = u64;
    /// #     type Codec = Postcard;
    /// #     const NAME: &'static str = "orders";
    /// #     fn key(&self) -> u64 { self.id }
    /// #     fn parts() -> Parts<Order> { Parts::new().view(Order::REVENUE) }
    /// # }
    /// # let orders = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Order>()?;
    /// for id in 1..=4 {
    ///     orders.put(&Order { id, month: 11, cents: 100 })?;
    /// }
    /// let revenue = orders.view(&Order::REVENUE);
    /// let last = revenue.range(11..=11).nth(1).unwrap()?;
    /// let next = revenue.after(last.key, last.document).range(11..=11).next().unwrap()?;
    /// assert_eq!(next.document, 3);
    /// assert_eq!(revenue.before(11, 4).reduce(..)?, Some(300));
    /// # Ok::<(), drumlin_collections::Error>(())
    /// ```
    #[must_use]
    pub fn after(&self, key: impl EncodeAs<K>, document: impl EncodeAs<C::Key>) -> Viewed<'r, C, K, V> {
        Viewed { rows: self.rows.after(Self::row_of(&key, &document)), view: self.view }
    }

    /// Restricts the view to the rows that come before all rows with key `key` from the document with key `document`:
    /// see [`after`](Viewed::after).
    #[must_use]
    pub fn before(&self, key: impl EncodeAs<K>, document: impl EncodeAs<C::Key>) -> Viewed<'r, C, K, V> {
        Viewed { rows: self.rows.before(Self::row_of(&key, &document)), view: self.view }
    }

    /// Returns the prefix shared by all rows that this document emitted with this key. A row's key may have a number
    /// after the prefix.
    fn row_of(key: &impl EncodeAs<K>, document: &impl EncodeAs<C::Key>) -> Vec<u8> {
        let mut row = encoded(key);
        document.encode_into(&mut row);
        row
    }

    /// Returns the rows with keys in a range, in key order. Skips rows of documents that have expired.
    pub fn range(&self, bounds: impl KeyBounds<K>) -> ViewRows<'r, C, K, V> {
        ViewRows { rows: self.rows.within(bounds.row_bounds()), now: None, values: std::marker::PhantomData }
    }

    /// Reduces the values in a range of keys to one value. Returns `None` if the range has no rows. O(log n), like
    /// [`Keyspace::aggregate`](drumlin::Keyspace::aggregate); O(rows in the range) if any of their documents has an
    /// expiry time.
    ///
    /// # Errors
    /// [`Error::Panicked`] if the reduce function panics; [`Error::Definition`] if the view has no reduce function; and
    /// the errors listed at [`Viewed`].
    pub fn reduce(&self, bounds: impl KeyBounds<K>) -> Result<Option<V>>
    where
        K: 'static,
        V: Serialize + Send + 'static,
    {
        ready(self.reduce_in(Mode::Blocking, self.range(bounds)))
    }

    /// Asynchronous [`reduce`](Viewed::reduce).
    ///
    /// # Errors
    /// See [`reduce`](Viewed::reduce).
    pub async fn reduce_async(&self, bounds: impl KeyBounds<K>) -> Result<Option<V>>
    where
        K: 'static,
        V: Serialize + Send + 'static,
    {
        let rows = self.range(bounds);
        self.reduce_in(Mode::Async, rows).await
    }

    async fn reduce_in(&self, mode: Mode, rows: ViewRows<'r, C, K, V>) -> Result<Option<V>>
    where
        K: 'static,
        V: Serialize + Send + 'static,
    {
        let reducing = Reducing::of(self.view)?;
        let reducer = ViewReducer { view: self.view, reduce: reducing.reduce };
        match rows.rows.aggregate(mode, &reducer).await {
            Ok(Reduced::Nothing) => Ok(None),
            Ok(Reduced::Value(value)) => Ok(Some(value)),
            // Reduce row by row, to skip expired documents or to find the row at which the reduce function fails.
            Ok(Reduced::Expires) | Err(Error::Store(drumlin::Error::Reducer { .. })) => {
                Self::fold(&reducing, mode, rows).await
            }
            Err(error) => Err(error),
        }
    }

    /// Reduces the rows one by one.
    async fn fold(reducing: &Reducing<C, K, V>, mode: Mode, mut rows: ViewRows<'r, C, K, V>) -> Result<Option<V>> {
        let mut reduced: Option<V> = None;
        while let Some(row) = rows.step(mode).await {
            let ViewRow { key, value, .. } = row?;
            reduced = Some(match reduced {
                None => value,
                Some(before) => reducing.reduce(&key, before, value)?,
            });
        }
        Ok(reduced)
    }

    /// Reduces the values of each distinct key in a range. O(rows in the range).
    #[allow(clippy::type_complexity, reason = "a name for it would hide that it is a `Groups`")]
    pub fn groups(&self, bounds: impl KeyBounds<K>) -> Groups<'r, C, K, V, K, fn(&K) -> K>
    where
        K: Clone + PartialEq,
    {
        self.groups_by(bounds, K::clone)
    }

    /// Divides a range into groups of adjacent keys for which `group` returns the same result, for example the first
    /// part of a tuple, and reduces the values of each group. O(rows in the range).
    pub fn groups_by<G: PartialEq, F: FnMut(&K) -> G>(
        &self,
        bounds: impl KeyBounds<K>,
        group: F,
    ) -> Groups<'r, C, K, V, G, F> {
        Groups { rows: self.range(bounds), reducing: Reducing::of(self.view).map_err(Some), group, reduced: None }
    }
}

/// A row that the view's map function emitted for a document.
///
/// ```
/// # use drumlin_collections::{Collection, Collections, Parts, Postcard, View};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Note { id: u64, words: Vec<String> }
/// # impl Note {
/// #     const WORDS: View<Note, String, u32> =
/// #         View::new("words", |note: &Note, emit| note.words.iter().for_each(|word| emit(word.clone(), 1)));
/// # }
/// # impl Collection for Note {
/// #     type Key = u64;
/// #     type Codec = Postcard;
/// #     const NAME: &'static str = "notes";
/// #     fn key(&self) -> u64 { self.id }
/// #     fn parts() -> Parts<Note> { Parts::new().view(Note::WORDS) }
/// # }
/// # let notes = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Note>()?;
/// notes.put(&Note { id: 5, words: vec!["tea".into()] })?;
/// let row = notes.view(&Note::WORDS).range(..).next().unwrap()?;
/// assert_eq!((row.key.as_str(), row.document, row.value), ("tea", 5, 1));
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewRow<K, D, V> {
    /// The emitted key.
    pub key: K,
    /// The key of the document.
    pub document: D,
    /// The emitted value.
    pub value: V,
}

/// An iterator over the rows of a view in key order. See [`Viewed::range`] and [`ViewRow`].
///
/// ```
/// # use drumlin_collections::{Collection, ViewRows};
/// fn first_document<C: Collection>(rows: &mut ViewRows<'_, C, u32, u64>) -> Option<C::Key> {
///     rows.next()?.ok().map(|row| row.document)
/// }
/// ```
pub struct ViewRows<'r, C: Collection, K, V> {
    rows: PartRows<'r, C>,
    /// The current time, for expiry checks. Read at the first row with an expiry time, and used for all later rows.
    now: Option<SystemTime>,
    values: std::marker::PhantomData<fn() -> (K, V)>,
}

impl<C: Collection, K, V> Debug for ViewRows<'_, C, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ViewRows({:?}, {})", C::NAME, self.rows.name)
    }
}

impl<C: Collection, K: Key, V: DeserializeOwned> ViewRows<'_, C, K, V> {
    /// Returns the next row.
    pub async fn next_async(&mut self) -> Option<Result<ViewRow<K, C::Key, V>>> {
        self.step(Mode::Async).await
    }

    async fn step(&mut self, mode: Mode) -> Option<Result<ViewRow<K, C::Key, V>>> {
        loop {
            match self.rows.step(mode, false).await?.and_then(|(row, value)| self.decode(&row, &value)) {
                Ok(Some(row)) => return Some(Ok(row)),
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Decodes a row. Returns `None` if the row's document has expired.
    fn decode(&mut self, row: &[u8], value: &[u8]) -> Result<Option<ViewRow<K, C::Key, V>>> {
        let mut rest = row;
        let key = K::decode_from(&mut rest).map_err(|error| self.rows.row_error(row, error))?;
        // A number may follow: it distinguishes rows that one document emitted with the same key.
        let document = C::Key::decode_from(&mut rest).map_err(|error| self.rows.row_error(row, error))?;
        let (expires, value) = view_value(value).map_err(|reason| self.rows.row_error(row, reason))?;
        if let Some(expires) = expires {
            let now = *self.now.get_or_insert_with(|| self.rows.open.shared.now());
            if expires <= now {
                return Ok(None);
            }
        }
        Ok(Some(ViewRow { key, document, value }))
    }
}

impl<C: Collection, K: Key, V: DeserializeOwned> Iterator for ViewRows<'_, C, K, V> {
    type Item = Result<ViewRow<K, C::Key, V>>;

    fn next(&mut self) -> Option<Self::Item> {
        ready(self.step(Mode::Blocking))
    }
}

/// An iterator over groups of a view's rows, with the reduced value of each group. See [`Viewed::groups_by`].
///
/// ```
/// # use drumlin_collections::{Collection, Result, View, Viewed};
/// /// Prints the sum of each year.
/// fn print_years<C: Collection>(days: &Viewed<'_, C, (u16, u16), u64>) -> Result<()> {
///     for group in days.groups_by(.., |(year, _)| *year) {
///         let (year, sum) = group?;
///         println!("{year}: {sum}");
///     }
///     Ok(())
/// }
/// ```
pub struct Groups<'r, C: Collection, K, V, G, F> {
    rows: ViewRows<'r, C, K, V>,
    /// The view's reduce function, or the error that ended the iteration. Returning the error takes it out, so it is
    /// returned only once.
    reducing: Result<Reducing<C, K, V>, Option<Error>>,
    group: F,
    /// The unfinished group and the reduction of its values so far. It is kept between steps, so dropping a step's
    /// future loses nothing.
    reduced: Option<(G, V)>,
}

impl<C: Collection, K, V, G, F> Debug for Groups<'_, C, K, V, G, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Groups of {:?}", self.rows)
    }
}

impl<C, K, V, G, F> Groups<'_, C, K, V, G, F>
where
    C: Collection,
    K: Key + Debug,
    V: DeserializeOwned,
    G: PartialEq,
    F: FnMut(&K) -> G,
{
    /// Returns the next group.
    pub async fn next_async(&mut self) -> Option<Result<(G, V)>> {
        self.step(Mode::Async).await.transpose()
    }

    async fn step(&mut self, mode: Mode) -> Result<Option<(G, V)>> {
        while self.reducing.is_ok()
            && let Some(row) = self.rows.step(mode).await
        {
            match self.add(row) {
                Ok(None) => {}
                Ok(complete) => return Ok(complete),
                // The group lacks a row, so its value would be wrong: end the iteration.
                Err(error) => {
                    self.reducing = Err(Some(error));
                    self.reduced = None;
                }
            }
        }
        match &mut self.reducing {
            Ok(_) => Ok(self.reduced.take()),
            Err(error) => error.take().map_or(Ok(None), Err),
        }
    }

    /// Adds a row to its group. If the row starts a new group, returns the previous one.
    fn add(&mut self, row: Result<ViewRow<K, C::Key, V>>) -> Result<Option<(G, V)>> {
        let Ok(reducing) = &self.reducing else { return Ok(None) };
        let ViewRow { key, value, .. } = row?;
        let group = (self.group)(&key);
        match self.reduced.take() {
            Some((same, before)) if same == group => {
                self.reduced = Some((same, reducing.reduce(&key, before, value)?));
                Ok(None)
            }
            complete => {
                self.reduced = Some((group, value));
                Ok(complete)
            }
        }
    }
}

impl<C, K, V, G, F> Iterator for Groups<'_, C, K, V, G, F>
where
    C: Collection,
    K: Key + Debug,
    V: DeserializeOwned,
    G: PartialEq,
    F: FnMut(&K) -> G,
{
    type Item = Result<(G, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        ready(self.step(Mode::Blocking)).transpose()
    }
}
