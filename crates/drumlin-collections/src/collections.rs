//! The collections of a database.

use std::any::TypeId;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use drumlin::{Attempt, Database, Keyspace, TxOptions};

use crate::building;
use crate::codec::Codec;
use crate::collection::Collection;
use crate::core::{Core, Opened};
use crate::documents::Documents;
use crate::encoding::Key;
use crate::error::{Error, PartKind, PartName, Result};
use crate::hub::lock;
use crate::off_thread::off_thread;
use crate::open::{OpenCollection, OpenPart, PartState, part_record};
use crate::parts::{Part, Parts};
use crate::shared::{Clock, Shared};
use crate::transaction::Transaction;

/// The collections of a database: opens them, and runs transactions over several. A cheap handle: make one for a
/// database, and clone it. Two of them do not know of each other: changes made through one are not told to subscribers
/// of the other, and where their types define one collection differently, each drops the indexes and views of the other
/// when it opens the collection.
///
/// ```
/// use drumlin_collections::{Collection, Collections, Postcard};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct User {
///     name: String,
/// }
///
/// impl Collection for User {
///     type Key = String;
///     type Codec = Postcard;
///     const NAME: &'static str = "users";
///
///     fn key(&self) -> String {
///         self.name.clone()
///     }
/// }
///
/// let db = drumlin::Config::in_memory().open("")?;
/// let collections = Collections::new(&db);
/// let users = collections.open::<User>()?;
/// users.put(&User { name: "ann".into() })?;
/// assert!(users.get("ann")?.is_some());
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
#[derive(Clone)]
pub struct Collections {
    pub(crate) core: Arc<Core>,
}

impl std::fmt::Debug for Collections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Collections of {:?}", self.core.shared.db)
    }
}

impl Collections {
    /// The collections of this database.
    #[must_use]
    pub fn new(db: &Database) -> Collections {
        Collections::with_clock(db, SystemTime::now)
    }

    /// Like [`new`](Collections::new), with another clock for the expiry and the history of documents, such as one of a
    /// test.
    #[must_use]
    pub fn with_clock(db: &Database, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Collections {
        let clock: Clock = Arc::new(clock);
        let core = Core::new(Shared { db: db.clone(), hub: Arc::default(), clock });
        Collections { core: Arc::new(core) }
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.core.shared.db
    }

    /// Opens a collection, and creates it if it is not there. Its indexes and views are made to be those of
    /// [`Collection::parts`]: those that are no longer listed, or have another version, are dropped; new ones are built
    /// by a background thread if there are documents, and refuse to be read meanwhile
    /// ([`wait_built`](Documents::wait_built)). A type is opened once; further calls return the same collection.
    ///
    /// # Errors
    /// [`Error::OtherTypes`] if keys, codec or values are of other types than the rows were written with;
    /// [`Error::Definition`] for names that are not allowed, or taken, and while a [bulk load](Collections::bulk_load)
    /// of the collection is under way; [`Error::Store`].
    pub fn open<C: Collection>(&self) -> Result<Documents<C>> {
        // The lock is held, so that two threads do not open one collection at once. Nothing waits as a future.
        let mut opened = lock(&self.core.opened);
        if let Some(found) = opened.get(&TypeId::of::<C>()) {
            let open = Arc::clone(&found.open).downcast::<OpenCollection<C>>();
            return Ok(Documents::new(&open.unwrap_or_else(|_| unreachable!("it is found by its type")), &self.core));
        }
        self.check_free::<C>(&opened)?;
        let parts = C::parts();
        check_names(&parts)?;
        let open = Arc::new(open_parts(&self.core.shared, parts)?);
        let has_work = open.parts.iter().any(|part| matches!(part.state(), PartState::Building));
        if has_work || open.expires.is_some() {
            self.work_for(&open)?;
        }
        opened.insert(TypeId::of::<C>(), Opened { name: C::NAME, open: Arc::clone(&open) as _ });
        Ok(Documents::new(&open, &self.core))
    }

    /// Refuses a collection whose name is in use.
    pub(crate) fn check_free<C: Collection>(&self, opened: &HashMap<TypeId, Opened>) -> Result<()> {
        if opened.values().any(|other| other.name == C::NAME) {
            return Err(Error::definition(C::NAME, "another type is open under this name"));
        }
        if lock(&self.core.loading).contains(C::NAME) {
            return Err(Error::definition(C::NAME, "a bulk load of it is under way"));
        }
        Ok(())
    }

    /// Asynchronous [`open`](Collections::open). Occupies a thread of its own meanwhile.
    ///
    /// ```
    /// # use drumlin_collections::{Collection, Collections, Postcard};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct User { name: String }
    /// # impl Collection for User {
    /// #     type Key = String;
    /// #     type Codec = Postcard;
    /// #     const NAME: &'static str = "users";
    /// #     fn key(&self) -> String { self.name.clone() }
    /// # }
    /// # let collections = Collections::new(&drumlin::Config::in_memory().open("")?);
    /// # smol::block_on(async {
    /// let users = collections.open_async::<User>().await?;
    /// users.put_async(&User { name: "ann".into() }).await?;
    /// # Ok::<(), drumlin_collections::Error>(())
    /// # })?;
    /// # Ok::<(), drumlin_collections::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`open`](Collections::open).
    pub async fn open_async<C: Collection>(&self) -> Result<Documents<C>> {
        let collections = self.clone();
        off_thread(C::NAME, move || collections.open::<C>()).await
    }

    fn work_for<C: Collection>(&self, open: &Arc<OpenCollection<C>>) -> Result<()> {
        let (open, stop) = (Arc::clone(open), Arc::clone(&self.core.stop));
        let thread = std::thread::Builder::new().name("drumlin-collection".to_owned());
        let spawned = thread.spawn(move || building::run(&open, &stop));
        let spawned = spawned
            .map_err(|error| Error::definition(C::NAME, format!("no thread for its background work: {error}")))?;
        self.core.keep(spawned);
        Ok(())
    }

    /// Runs `body` in a transaction and commits it; again while others are in its way. Like
    /// [`drumlin::Database::transact`], over collections.
    ///
    /// # Errors
    /// The error of `body`, or that of the commit.
    pub fn transact<T>(&self, body: impl FnMut(&mut Transaction<'_>) -> Result<T>) -> Result<T> {
        self.transact_with(self.core.shared.db.tx_options(), body)
    }

    /// Like [`transact`](Collections::transact), for a body with errors of its own: of any type that an [`Error`]
    /// converts into, such as `anyhow::Error`. A body that does not construct its error names it.
    ///
    /// ```
    /// # use drumlin_collections::{Collection, Collections, Postcard};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct User { name: String, age: u8 }
    /// # impl Collection for User {
    /// #     type Key = String;
    /// #     type Codec = Postcard;
    /// #     const NAME: &'static str = "users";
    /// #     fn key(&self) -> String { self.name.clone() }
    /// # }
    /// type AnyError = Box<dyn std::error::Error>; // or anyhow::Error
    ///
    /// # let collections = Collections::new(&drumlin::Config::in_memory().open("")?);
    /// # let users = collections.open::<User>()?;
    /// let age = collections.try_transact(|tx| -> Result<u8, AnyError> {
    ///     let age = "42".parse()?;
    ///     tx.put(&users, &User { name: "ann".into(), age })?;
    ///     Ok(age)
    /// })?;
    /// assert_eq!(age, 42);
    /// # Ok::<(), AnyError>(())
    /// ```
    ///
    /// # Errors
    /// The error of `body`, or that of the commit, converted.
    pub fn try_transact<T, E: From<Error> + 'static>(
        &self,
        body: impl FnMut(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transact_with(self.core.shared.db.tx_options(), body)
    }

    /// Like [`try_transact`](Collections::try_transact), with the given options.
    ///
    /// # Errors
    /// Those of [`try_transact`](Collections::try_transact).
    pub fn transact_with<T, E: From<Error> + 'static>(
        &self,
        options: TxOptions,
        body: impl FnMut(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.core.shared.transact(options, body)
    }

    /// Like [`transact`](Collections::transact), as a future. `body` is given the transaction, and returns a boxed
    /// future that owns what it uses; dropping the transaction within it does not end it.
    ///
    /// Each run clones borrowed arguments before its future begins. Clones of handles are cheap; share large arguments
    /// by an [`Arc`](std::sync::Arc).
    ///
    /// ```
    /// # use drumlin_collections::{Collection, Collections, Documents, Error, Postcard};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct User { name: String, visits: u64 }
    /// # impl Collection for User {
    /// #     type Key = String;
    /// #     type Codec = Postcard;
    /// #     const NAME: &'static str = "users";
    /// #     fn key(&self) -> String { self.name.clone() }
    /// # }
    /// async fn count_visit(
    ///     collections: &Collections,
    ///     users: &Documents<User>,
    ///     name: &str,
    /// ) -> Result<Option<u64>, Error> {
    ///     collections
    ///         .transact_async(|mut tx| {
    ///             let (users, name) = (users.clone(), name.to_owned());
    ///             Box::pin(async move {
    ///                 tx.update_async(&users, &name[..], |user| {
    ///                     user.visits += 1;
    ///                     user.visits
    ///                 })
    ///                 .await
    ///             })
    ///         })
    ///         .await
    /// }
    ///
    /// # let collections = Collections::new(&drumlin::Config::in_memory().open("")?);
    /// # let users = collections.open::<User>()?;
    /// # smol::block_on(async {
    /// users.put_async(&User { name: "ann".into(), visits: 0 }).await?;
    /// assert_eq!(count_visit(&collections, &users, "ann").await?, Some(1));
    /// # Ok::<(), Error>(())
    /// # })?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`transact`](Collections::transact).
    pub async fn transact_async<T: Send + 'static>(
        &self,
        body: impl for<'t> FnMut(Transaction<'t>) -> Attempt<'t, T, Error>,
    ) -> Result<T> {
        self.try_transact_async(body).await
    }

    /// Like [`transact_async`](Collections::transact_async), for a body with errors of its own: see
    /// [`try_transact`](Collections::try_transact). A body that does not construct its error names it:
    /// `Ok::<_, anyhow::Error>(visits)`.
    ///
    /// # Errors
    /// Those of [`try_transact`](Collections::try_transact).
    pub async fn try_transact_async<T: Send + 'static, E: From<Error> + Send + 'static>(
        &self,
        body: impl for<'t> FnMut(Transaction<'t>) -> Attempt<'t, T, E>,
    ) -> Result<T, E> {
        self.transact_with_async(self.core.shared.db.tx_options(), body).await
    }

    /// Like [`transact_async`](Collections::transact_async), with the given options.
    ///
    /// ```
    /// # use drumlin_collections::{Collection, Collections, Error, Postcard};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct User { name: String }
    /// # impl Collection for User {
    /// #     type Key = String;
    /// #     type Codec = Postcard;
    /// #     const NAME: &'static str = "users";
    /// #     fn key(&self) -> String { self.name.clone() }
    /// # }
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let collections = Collections::new(&db);
    /// # let users = collections.open::<User>()?;
    /// use drumlin::{Isolation, TxOptions};
    ///
    /// # smol::block_on(async {
    /// let options = TxOptions { isolation: Isolation::Serializable, ..db.tx_options() };
    /// let put_first = collections.transact_with_async(options, |mut tx| {
    ///     let users = users.clone();
    ///     Box::pin(async move {
    ///         let is_first = users.at(&tx).is_empty_async().await?;
    ///         if is_first {
    ///             tx.put_async(&users, &User { name: "ann".into() }).await?;
    ///         }
    ///         Ok(is_first)
    ///     })
    /// });
    /// let is_first: Result<bool, Error> = put_first.await;
    /// assert!(is_first?);
    /// # Ok::<(), Error>(())
    /// # })?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`transact`](Collections::transact).
    pub async fn transact_with_async<T: Send + 'static, E: From<Error> + Send + 'static>(
        &self,
        options: TxOptions,
        body: impl for<'t> FnMut(Transaction<'t>) -> Attempt<'t, T, E>,
    ) -> Result<T, E> {
        self.core.shared.transact_async(options, body).await
    }
}

/// Refuses names that would be ambiguous as those of keyspaces.
pub(crate) fn check_names<C: Collection>(parts: &Parts<C>) -> Result<()> {
    let refuse = |reason: String| Err(Error::definition(C::NAME, reason));
    if C::NAME.is_empty() || C::NAME.contains('/') {
        return refuse("a collection's name is not empty, and has no slash".to_owned());
    }
    let mut names = HashSet::new();
    for part in &parts.list {
        if part.name.name.is_empty() || part.name.name.contains('/') {
            return refuse(format!("{}: the name is empty or has a slash", part.name));
        }
        if !names.insert(part.name) {
            return refuse(format!("there are two of {}", part.name));
        }
    }
    Ok(())
}

/// The name of a part's keyspace, which holds no rows of another version.
fn keyspace_name<C: Collection>(part: &Part<C>) -> String {
    format!("{}/{} {} {}.{}", C::NAME, part.name.kind.word(), part.name.name, part.version, C::VERSION)
}

/// The key under which the types of a part are recorded in `NAME/meta`.
pub(crate) fn types_key(keyspace: &str) -> String {
    format!("types {keyspace}")
}

/// The names of the types that some rows of a collection are written with.
struct Types<'p> {
    /// The key under which they are recorded in `NAME/meta`.
    key: String,
    names: String,
    /// The part whose rows they are, and its keyspace; the documents' if none.
    part: Option<(PartName, &'p str)>,
}

/// The types of a collection's rows.
fn types_of<C: Collection>(parts: &[(String, Part<C>)], expires: bool) -> Vec<Types<'_>> {
    let key = Types { key: "key".to_owned(), names: format!("key {}", C::Key::fingerprint()), part: None };
    let names = format!("codec {}", C::Codec::fingerprint());
    let codec = Types { key: format!("codec {}", C::VERSION), names, part: None };
    let parts = parts.iter().map(|(keyspace, part)| {
        // A view's rows have the time at which their document expires.
        let expiring = if expires && part.name.kind == PartKind::View { ", expiring" } else { "" };
        let names = format!("{}{expiring}", part.types);
        Types { key: types_key(keyspace), names, part: Some((part.name, keyspace)) }
    });
    [key, codec].into_iter().chain(parts).collect()
}

/// Refuses other types than those of the rows that are there.
fn check_types<C: Collection>(meta: &Keyspace, types: &[Types<'_>]) -> Result<()> {
    for Types { key, names, part } in types {
        let has_rows = part.map_or(Ok(true), |(_, keyspace)| meta.contains_key(keyspace))?;
        let stored = meta.get(key)?.filter(|stored| has_rows && stored != names);
        if let Some(stored) = stored {
            let (of, stored) = (part.map(|(name, _)| name), String::from_utf8_lossy(&stored).into_owned());
            return Err(Error::OtherTypes { collection: C::NAME, of, stored, current: names.clone() });
        }
    }
    Ok(())
}

/// Opens a collection's keyspaces. A part has a record in `NAME/meta` from the moment on at which its keyspace belongs
/// to it: without one, the keyspace is what an opening or a removal left that was interrupted.
pub(crate) fn open_parts<C: Collection>(shared: &Arc<Shared>, parts: Parts<C>) -> Result<OpenCollection<C>> {
    let db = &shared.db;
    let documents = db.keyspace(C::NAME)?;
    let meta = db.keyspace(&format!("{}/meta", C::NAME))?;
    let named: Vec<(String, Part<C>)> = parts.list.into_iter().map(|part| (keyspace_name(&part), part)).collect();
    let is_empty = documents.is_empty()?;
    let types = types_of(&named, parts.expires.is_some());
    if !is_empty {
        // Before anything is changed.
        check_types::<C>(&meta, &types)?;
    }
    let history = match parts.history {
        Some(retention) => Some((db.keyspace(&format!("{}/history", C::NAME))?, retention)),
        None => None,
    };
    let others = [format!("{}/meta", C::NAME), format!("{}/history", C::NAME)];
    let prefix = format!("{}/", C::NAME);
    for name in db.keyspaces().into_iter().map(|info| info.name).filter(|name| name.starts_with(&prefix)) {
        let is_recorded = meta.get(&name)?.is_some();
        let is_wanted = others.contains(&name) || is_recorded && named.iter().any(|(wanted, _)| *wanted == name);
        if !is_wanted {
            meta.remove(&name)?;
            meta.remove(types_key(&name))?;
            db.drop_keyspace(&name)?;
        }
    }
    for Types { key, names, .. } in &types {
        if meta.get(key)?.is_none_or(|stored| stored != names) {
            meta.insert(key, names)?;
        }
    }
    let mut open = Vec::new();
    for (name, part) in named {
        let keyspace = db.keyspace(&name)?;
        let state = match meta.get(&name)?.as_deref() {
            Some(record) if record == part_record::READY => PartState::Ready,
            Some(_) => PartState::Building,
            None if is_empty => {
                meta.insert(&name, part_record::READY)?;
                PartState::Ready
            }
            None => {
                meta.insert(&name, part_record::building(&[]))?;
                PartState::Building
            }
        };
        open.push(OpenPart::new(part, keyspace, state));
    }
    Ok(OpenCollection::new(shared, (documents, meta), open, parts.expires, history))
}
