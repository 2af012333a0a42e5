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

/// A handle to the collections of a database. Opens collections, and runs transactions across several of them.
///
/// The handle is cheap to clone: create one per database and clone it. Two handles that were created separately share
/// nothing but the database. Changes made through one of them are not delivered to subscribers of the other. If the two
/// define the same collection differently, each drops the other's indexes and views when it opens the collection.
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
    /// Creates a handle to the collections of this database.
    #[must_use]
    pub fn new(db: &Database) -> Collections {
        Collections::with_clock(db, SystemTime::now)
    }

    /// Like [`new`](Collections::new), but expiry and history use the given clock instead of the system's, for example
    /// in tests.
    #[must_use]
    pub fn with_clock(db: &Database, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Collections {
        let clock: Clock = Arc::new(clock);
        let core = Core::new(Shared { db: db.clone(), hub: Arc::default(), clock });
        Collections { core: Arc::new(core) }
    }

    /// Returns the database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.core.shared.db
    }

    /// Opens a collection, creating it if it does not exist.
    ///
    /// The collection gets exactly the indexes and views that [`Collection::parts`] lists. An index or view that is no
    /// longer listed, or whose version has changed, is dropped. If the collection has documents, a background thread
    /// builds the new indexes and views, and reading them fails until they are [built](Documents::wait_built). The
    /// first call for a type opens the collection; later calls return a handle to the same collection.
    ///
    /// # Errors
    /// [`Error::OtherTypes`] if the key, codec or value types differ from those with which the rows were written;
    /// [`Error::Definition`] if a name is invalid or already in use, or if a [bulk load](Collections::bulk_load) of the
    /// collection is in progress; [`Error::Store`].
    pub fn open<C: Collection>(&self) -> Result<Documents<C>> {
        // Hold the lock throughout, so that two threads never open the same collection concurrently. No future is
        // awaited under the lock.
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

    /// Fails if the collection's name is taken by an open collection of a different type, or if the collection is being
    /// bulk loaded.
    pub(crate) fn check_free<C: Collection>(&self, opened: &HashMap<TypeId, Opened>) -> Result<()> {
        if opened.values().any(|other| other.name == C::NAME) {
            return Err(Error::definition(C::NAME, "another type is open under this name"));
        }
        if lock(&self.core.loading).contains(C::NAME) {
            return Err(Error::definition(C::NAME, "a bulk load of it is in progress"));
        }
        Ok(())
    }

    /// Asynchronous [`open`](Collections::open). Uses a separate thread for the duration of the call.
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
    /// See [`open`](Collections::open).
    pub async fn open_async<C: Collection>(&self) -> Result<Documents<C>> {
        let collections = self.clone();
        off_thread(C::NAME, move || collections.open::<C>()).await
    }

    fn work_for<C: Collection>(&self, open: &Arc<OpenCollection<C>>) -> Result<()> {
        let (open, stop) = (Arc::clone(open), Arc::clone(&self.core.stop));
        let thread = std::thread::Builder::new().name("drumlin-collection".to_owned());
        let spawned = thread.spawn(move || building::run(&open, &stop));
        let spawned =
            spawned.map_err(|error| Error::definition(C::NAME, format!("can't start a background thread: {error}")))?;
        self.core.keep(spawned);
        Ok(())
    }

    /// Runs `body` in a transaction and commits it. If the transaction conflicts with another one, runs `body` again.
    /// This is the counterpart of [`drumlin::Database::transact`] for collections.
    ///
    /// # Errors
    /// The error of `body` or of the commit.
    pub fn transact<T>(&self, body: impl FnMut(&mut Transaction<'_>) -> Result<T>) -> Result<T> {
        self.transact_with(self.core.shared.db.tx_options(), body)
    }

    /// Like [`transact`](Collections::transact), for a body with its own error type: any type that implements
    /// `From<Error>`, such as `anyhow::Error`. If the compiler can't infer the error type, name it in the body.
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
    /// The error of `body`, or the error of the commit converted to `E`.
    pub fn try_transact<T, E: From<Error> + 'static>(
        &self,
        body: impl FnMut(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transact_with(self.core.shared.db.tx_options(), body)
    }

    /// Like [`try_transact`](Collections::try_transact), with the given options.
    ///
    /// # Errors
    /// See [`try_transact`](Collections::try_transact).
    pub fn transact_with<T, E: From<Error> + 'static>(
        &self,
        options: TxOptions,
        body: impl FnMut(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.core.shared.transact(options, body)
    }

    /// Asynchronous [`transact`](Collections::transact). `body` receives the transaction and returns a boxed future
    /// that owns everything it uses. Dropping the `Transaction` inside the future does not end the transaction.
    ///
    /// The future can't borrow from `body`, so each run of `body` clones what the future needs, as in this example.
    /// Handles are cheap to clone; share large arguments through an [`Arc`](std::sync::Arc).
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
    /// See [`transact`](Collections::transact).
    pub async fn transact_async<T: Send + 'static>(
        &self,
        body: impl for<'t> FnMut(Transaction<'t>) -> Attempt<'t, T, Error>,
    ) -> Result<T> {
        self.try_transact_async(body).await
    }

    /// Like [`transact_async`](Collections::transact_async), for a body with its own error type: see
    /// [`try_transact`](Collections::try_transact). If the compiler can't infer the error type, name it in the body:
    /// `Ok::<_, anyhow::Error>(visits)`.
    ///
    /// # Errors
    /// See [`try_transact`](Collections::try_transact).
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
    /// See [`transact`](Collections::transact).
    pub async fn transact_with_async<T: Send + 'static, E: From<Error> + Send + 'static>(
        &self,
        options: TxOptions,
        body: impl for<'t> FnMut(Transaction<'t>) -> Attempt<'t, T, E>,
    ) -> Result<T, E> {
        self.core.shared.transact_async(options, body).await
    }
}

/// Checks that the names of the collection and its parts are unique and unambiguous as keyspace names.
pub(crate) fn check_names<C: Collection>(parts: &Parts<C>) -> Result<()> {
    let refuse = |reason: String| Err(Error::definition(C::NAME, reason));
    if C::NAME.is_empty() || C::NAME.contains('/') {
        return refuse("the name of a collection must not be empty or contain a slash".to_owned());
    }
    let mut names = HashSet::new();
    for part in &parts.list {
        if part.name.name.is_empty() || part.name.name.contains('/') {
            return refuse(format!("{}: the name must not be empty or contain a slash", part.name));
        }
        if !names.insert(part.name) {
            return refuse(format!("{} is defined twice", part.name));
        }
    }
    Ok(())
}

/// Returns the name of a part's keyspace. It includes the part's version and the schema version, so a keyspace never
/// holds rows of two versions.
fn keyspace_name<C: Collection>(part: &Part<C>) -> String {
    format!("{}/{} {} {}.{}", C::NAME, part.name.kind.word(), part.name.name, part.version, C::VERSION)
}

/// Returns the key in `NAME/meta` under which the types of a part are recorded.
pub(crate) fn types_key(keyspace: &str) -> String {
    format!("types {keyspace}")
}

/// The names of the types with which the documents, or the rows of one part, are written.
struct Types<'p> {
    /// The key in `NAME/meta` under which the names are recorded.
    key: String,
    names: String,
    /// The part to which the rows belong, and the name of its keyspace; `None` for the documents.
    part: Option<(PartName, &'p str)>,
}

/// Returns the types of the documents and of each part.
fn types_of<C: Collection>(parts: &[(String, Part<C>)], expires: bool) -> Vec<Types<'_>> {
    let key = Types { key: "key".to_owned(), names: format!("key {}", C::Key::fingerprint()), part: None };
    let names = format!("codec {}", C::Codec::fingerprint());
    let codec = Types { key: format!("codec {}", C::VERSION), names, part: None };
    let parts = parts.iter().map(|(keyspace, part)| {
        // If documents expire, each view row also stores the expiry time of its document.
        let expiring = if expires && part.name.kind == PartKind::View { ", expiring" } else { "" };
        let names = format!("{}{expiring}", part.types);
        Types { key: types_key(keyspace), names, part: Some((part.name, keyspace)) }
    });
    [key, codec].into_iter().chain(parts).collect()
}

/// Fails if existing rows were written with different types.
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

/// Opens the keyspaces of a collection. A part's keyspace is valid only if `NAME/meta` has a record for the part. A
/// keyspace without a record is left over from an interrupted opening or removal, and is dropped.
pub(crate) fn open_parts<C: Collection>(shared: &Arc<Shared>, parts: Parts<C>) -> Result<OpenCollection<C>> {
    let db = &shared.db;
    let documents = db.keyspace(C::NAME)?;
    let meta = db.keyspace(&format!("{}/meta", C::NAME))?;
    let named: Vec<(String, Part<C>)> = parts.list.into_iter().map(|part| (keyspace_name(&part), part)).collect();
    let is_empty = documents.is_empty()?;
    let types = types_of(&named, parts.expires.is_some());
    if !is_empty {
        // Check the types before changing anything.
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
