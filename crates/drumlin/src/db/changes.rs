//! The change feed: durable commits in the order of their timestamps.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use super::config::Config;
use super::database::Database;
use super::handle::Handle;
use super::keyspace::Keyspace;
use super::value_reader::{Content, ValueReader};
use crate::error::{Error, Result};
use crate::feed::{self, FeedReader, FoundCommit, Names};
use crate::format::record::{self, OldValue, Operation};
use crate::format::{KeyspaceId, Timestamp, ValueId};
use crate::sync::{Exclusive, Mutex};
use crate::task::{WaitMode, ready};
use crate::txn::engine::{Found, ReadAt};

/// The pause of a reader of a folder that waits for another process to write.
const FOLDER_PAUSE: Duration = Duration::from_millis(5);

/// One commit, as the change feed tells it.
///
/// ```
/// use drumlin::{Change, Config, Retention};
///
/// let db = Config::in_memory().keep_changes(Retention::bytes(1 << 20)).open("")?;
/// let stock = db.keyspace("stock")?;
/// let since = db.snapshot().timestamp();
/// stock.insert("apples", "7")?;
/// let commit = db.changes(since)?.next().expect("it waits")?;
/// let Some(Change::Put { keyspace, key, value }) = commit.changes().next() else { panic!("it put a row") };
/// assert_eq!((keyspace, key, value), ("stock", &b"apples"[..], &b"7"[..]));
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Commit {
    found: FoundCommit,
    filter: Option<Arc<[String]>>,
}

impl Commit {
    fn new(found: FoundCommit, filter: Option<Arc<[String]>>) -> Commit {
        Commit { found, filter }
    }

    /// Returns the commit's timestamp. A feed that begins after it continues with the next commit.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.found.timestamp
    }

    /// Returns the time of the commit since 1970, by the system's clock. The log reads the clock when it begins a batch
    /// of records, so the commit may have been made later by the time that one write of the log takes.
    #[must_use]
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.found.time_ms)
    }

    /// Returns the changes that the commit made: in each keyspace first the removed ranges and then the rows, in the
    /// order of their keys. O(1) for each.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        self.changes_with_old_values().map(|(change, _)| change)
    }

    /// Returns the changes, each with the value that its row had before the commit. The value is `None` if it was not
    /// kept:
    ///
    /// - for all changes, if the commit was made while the database did not keep
    ///   [old values](crate::Retention::with_old_values)
    /// - for changes other than [`Put`](Change::Put), [`PutLarge`](Change::PutLarge) and [`Remove`](Change::Remove):
    ///   the rows of removed ranges, of bulk loads and of transactions that outgrew memory are not told one by one
    /// - for rows of a prepared transaction that several databases commit in one step
    /// - for the last rows of a commit whose record would exceed the limit of a record or of the memory for versions,
    ///   or that a bulk load has changed at the same moment
    pub fn changes_with_old_values(&self) -> impl Iterator<Item = (Change<'_>, Option<OldValue<'_>>)> {
        let names = &*self.found.names;
        let operations = record::decode(&self.found.body).map(|operation| operation.expect("the reader checked it"));
        let mut operations = operations.peekable();
        let changes = std::iter::from_fn(move || {
            loop {
                let (keyspace, operation) = operations.next()?;
                let old = operations.next_if(|(_, next)| matches!(next, Operation::OldValue(_)));
                let old = old.and_then(|(_, old)| if let Operation::OldValue(old) = old { Some(old) } else { None });
                if let Some(change) = Change::of(names, keyspace, &operation) {
                    return Some((change, old));
                }
            }
        });
        changes.filter(|(change, _)| change.is_of(self.filter.as_deref()))
    }
}

/// A change that a [`Commit`] made. Keyspaces have the names that they had before the commit.
///
/// ```
/// use std::collections::BTreeMap;
/// use drumlin::Change;
///
/// /// Applies the changes of a commit to a copy of a keyspace.
/// fn follow(copy: &mut BTreeMap<Vec<u8>, Vec<u8>>, commit: &drumlin::Commit) {
///     for change in commit.changes() {
///         match change {
///             Change::Put { key, value, .. } => drop(copy.insert(key.to_vec(), value.to_vec())),
///             Change::Remove { key, .. } => drop(copy.remove(key)),
///             other => panic!("this copy does not follow {other:?}"),
///         }
///     }
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Change<'c> {
    /// A row was inserted or replaced.
    Put {
        /// The name of its keyspace.
        keyspace: &'c str,
        /// Its key.
        key: &'c [u8],
        /// Its new value.
        value: &'c [u8],
    },
    /// A row with a value over 64 KiB was inserted or replaced. [`Changes::read_large`] reads the value, as long as it
    /// is that of the row.
    PutLarge {
        /// The name of its keyspace.
        keyspace: &'c str,
        /// Its key.
        key: &'c [u8],
        /// The length of its new value.
        length: u64,
        /// The identity of its new value.
        value: LargeChange,
    },
    /// A row was removed, or a row that did not exist. An insertion that a later call of the same transaction has
    /// undone may appear as a removal.
    Remove {
        /// The name of its keyspace.
        keyspace: &'c str,
        /// Its key.
        key: &'c [u8],
    },
    /// The rows from `lower`, inclusive, to `upper`, exclusive, were removed. Rows that the same commit put follow.
    RemoveRange {
        /// The name of the keyspace.
        keyspace: &'c str,
        /// The lowest key that was removed.
        lower: &'c [u8],
        /// The key before which the range ends; `None` if it has all keys from `lower` on.
        upper: Option<&'c [u8]>,
    },
    /// Rows that are in no log record were put into the keyspace or removed from it: those of a bulk load, or the
    /// changes of a transaction that outgrew memory. [`Changes::keyspace_of`] opens the keyspace, so that the rows from
    /// the first to the last key can be read again. They are as of a later commit, and the changes up to it follow in
    /// the feed.
    Loaded {
        /// The name of the keyspace.
        keyspace: &'c str,
        /// Its id.
        id: KeyspaceId,
        /// The number of rows.
        rows: u64,
        /// The least of their keys.
        first_key: &'c [u8],
        /// The greatest of their keys. All rows are in the range from the first to the last key, inclusive; it may
        /// contain other rows.
        last_key: &'c [u8],
    },
    /// A keyspace was created.
    Create {
        /// Its name.
        keyspace: &'c str,
    },
    /// A keyspace was dropped, with all its rows.
    Drop {
        /// The name that it had.
        keyspace: &'c str,
    },
    /// A keyspace was renamed. Several of these in one commit may exchange names.
    Rename {
        /// The name that it had.
        from: &'c str,
        /// The name that it has now.
        to: &'c str,
    },
    /// A keyspace was [cloned](Database::clone_keyspace). The clone has the rows that `from` had as of the commit
    /// `as_of`, which is an earlier one.
    Clone {
        /// The keyspace that was cloned.
        from: &'c str,
        /// The clone.
        to: &'c str,
        /// The newest commit of which the clone has rows.
        as_of: Timestamp,
    },
}

/// The identity of a large value that a [`Change`] has put.
///
/// ```
/// use drumlin::{Change, Config, Retention};
///
/// let db = Config::in_memory().keep_changes(Retention::bytes(1 << 20)).open("")?;
/// let films = db.keyspace("films")?;
/// let mut changes = db.changes(db.snapshot().timestamp())?;
/// films.insert("film", vec![7; 100_000])?;
/// let commit = changes.next().expect("it waits")?;
/// let Some(Change::PutLarge { key, value, .. }) = commit.changes().next() else { panic!("it was a large value") };
/// let reader = changes.read_large(key, value)?.expect("it was not replaced");
/// assert_eq!(reader.len(), 100_000);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LargeChange {
    keyspace: KeyspaceId,
    value: ValueId,
}

impl<'c> Change<'c> {
    fn of(names: &'c Names, id: KeyspaceId, operation: &Operation<'c>) -> Option<Change<'c>> {
        if let Operation::Create { name, .. } = operation {
            return Some(Change::Create { keyspace: name });
        }
        if let Operation::Clone { from, as_of, name } = *operation {
            return Some(Change::Clone { from: names.get(from).expect("the reader checked it"), to: name, as_of });
        }
        let keyspace = names.get(id).expect("the reader checked it");
        Some(match *operation {
            Operation::Put { key, value } => Change::Put { keyspace, key, value },
            Operation::PutReference { key, length, value_id } => {
                Change::PutLarge { keyspace, key, length, value: LargeChange { keyspace: id, value: value_id } }
            }
            Operation::Remove { key } => Change::Remove { keyspace, key },
            Operation::RemoveRange { lower, upper } => Change::RemoveRange { keyspace, lower, upper },
            Operation::Loaded { rows, first_key, last_key } => {
                Change::Loaded { keyspace, id, rows, first_key, last_key }
            }
            Operation::Drop => Change::Drop { keyspace },
            Operation::Rename { name } => Change::Rename { from: keyspace, to: name },
            _ => return None,
        })
    }

    /// Returns `true` if the change concerns one of these keyspaces, by any of its names.
    fn is_of(&self, filter: Option<&[String]>) -> bool {
        let Some(filter) = filter else { return true };
        let has = |name: &str| filter.iter().any(|wanted| wanted == name);
        match self {
            Change::Rename { from, to } | Change::Clone { from, to, .. } => has(from) || has(to),
            Change::Put { keyspace, .. }
            | Change::PutLarge { keyspace, .. }
            | Change::Remove { keyspace, .. }
            | Change::RemoveRange { keyspace, .. }
            | Change::Loaded { keyspace, .. }
            | Change::Create { keyspace }
            | Change::Drop { keyspace } => has(keyspace),
        }
    }
}

/// The durable commits of a database after a timestamp, in order, each whole and once: see [`Database::changes`].
///
/// As an iterator, it waits for the next commit. [`ready`](Changes::ready) does not wait, and
/// [`until`](Changes::until) ends it. It ends after its first error. Keeps the database open, like any handle.
///
/// ```
/// use drumlin::{Config, Retention};
///
/// let db = Config::in_memory().keep_changes(Retention::bytes(1 << 20)).open("")?;
/// let since = db.snapshot().timestamp();
/// db.keyspace("k")?.insert("a", "1")?;
/// for commit in db.changes(since)?.keyspaces(["k"]).take(2) {
///     println!("{}", commit?.timestamp());
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct Changes {
    handle: Arc<Handle>,
    /// `None` after the end.
    reading: Option<Arc<Mutex<Reading>>>,
    filter: Option<Arc<[String]>>,
    until: Option<Timestamp>,
    position: Timestamp,
}

/// The reader of a feed, which a step of the asynchronous form lends to another thread. If the step is dropped, the
/// commit that it finds is there for the next step.
struct Reading {
    reader: FeedReader,
    found: Option<Result<Option<FoundCommit>>>,
}

impl Reading {
    /// Reads the next commit, unless one has been found and not been taken.
    fn find(&mut self) {
        if self.found.is_none() {
            self.found = Some(self.reader.next());
        }
    }

    /// Returns `true` if [`find`](Self::find) reads from no file.
    fn is_ready(&self) -> bool {
        self.found.is_some() || self.reader.is_loaded()
    }
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Changes(after {})", self.position)
    }
}

/// The result of one attempt to read a commit.
enum NextCommit {
    Commit(Commit),
    /// There is none yet.
    None,
    End,
}

impl Changes {
    /// Leaves out the changes of all other keyspaces, and the commits that consist of them. A keyspace counts by the
    /// name that it had before each commit, or has after it.
    #[must_use]
    pub fn keyspaces<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Changes {
        self.filter = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Ends the feed after the commit with this timestamp.
    ///
    /// ```
    /// use drumlin::{Config, Retention};
    ///
    /// let db = Config::in_memory().keep_changes(Retention::bytes(1 << 20)).open("")?;
    /// let since = db.snapshot().timestamp();
    /// let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// let now = db.snapshot().timestamp();
    /// let commits = db.changes(since)?.until(now).collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(commits.len(), 2);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn until(mut self, timestamp: Timestamp) -> Changes {
        self.until = Some(timestamp);
        self
    }

    /// Returns the timestamp up to which all commits have been returned, or left out because they concern other
    /// keyspaces. A later feed can continue after it.
    #[must_use]
    pub fn position(&self) -> Timestamp {
        self.position
    }

    /// Returns the next commit, or `None` if there is none yet. A commit can be read some milliseconds after it is
    /// durable.
    ///
    /// # Errors
    /// [`Error::ChangesGone`] if the retention has removed the next commit or the feed has ended; [`Error::Closed`];
    /// [`Error::MemoryInUse`]; [`Error::Corrupted`] and [`Error::Io`] from reading the files.
    pub fn ready(&mut self) -> Option<Result<Commit>> {
        if let Err(error) = self.handle.store() {
            return self.reading.take().map(|_| Err(error));
        }
        match self.try_next() {
            Ok(NextCommit::Commit(commit)) => Some(Ok(commit)),
            Ok(NextCommit::None | NextCommit::End) => None,
            Err(error) => {
                self.reading = None;
                Some(Err(error))
            }
        }
    }

    fn try_next(&mut self) -> Result<NextCommit> {
        let Some(reading) = &self.reading else { return Ok(NextCommit::End) };
        let mut reading = reading.lock();
        loop {
            if self.until.is_some_and(|until| self.position >= until) {
                drop(reading);
                self.reading = None;
                return Ok(NextCommit::End);
            }
            reading.find();
            let found = reading.found.take().expect("it was just found");
            let Some(found) = found? else { return Ok(NextCommit::None) };
            self.position = found.timestamp;
            let commit = Commit::new(found, self.filter.clone());
            // Commits that change nothing a reader can see, such as a prepare, are skipped.
            if commit.changes().next().is_some() {
                return Ok(NextCommit::Commit(commit));
            }
        }
    }

    async fn next_in(&mut self, mode: WaitMode<'_>) -> Option<Result<Commit>> {
        match self.wait_for_next(mode).await {
            Ok(commit) => commit.map(Ok),
            Err(error) => {
                self.reading = None;
                Some(Err(error))
            }
        }
    }

    async fn wait_for_next(&mut self, mode: WaitMode<'_>) -> Result<Option<Commit>> {
        loop {
            let Some(reading) = &self.reading else { return Ok(None) };
            self.handle.store()?;
            if mode.is_task() && !reading.lock().is_ready() {
                // Reading a file blocks.
                let reading = Arc::clone(reading);
                mode.run(move || reading.lock().find()).await;
            }
            match self.try_next()? {
                NextCommit::Commit(commit) => return Ok(Some(commit)),
                NextCommit::End => return Ok(None),
                NextCommit::None => {
                    let reading = self.reading.as_ref().expect("it has not ended");
                    mode.until(|waker| reading.lock().reader.poll_news(waker)).await?;
                }
            }
        }
    }

    /// Like the iterator's `next`, for a task. A future that is dropped before it is ready loses no commit.
    pub async fn next_async(&mut self) -> Option<Result<Commit>> {
        let handle = Arc::clone(&self.handle);
        match handle.store() {
            Ok(store) => {
                let mode = store.as_task().await;
                self.next_in(mode).await
            }
            Err(error) => self.reading.take().map(|_| Err(error)),
        }
    }

    /// Returns the commits as a [`Stream`].
    ///
    /// ```
    /// use drumlin::{Config, Retention};
    /// use futures_util::TryStreamExt;
    ///
    /// # smol::block_on(async {
    /// let db = Config::in_memory().keep_changes(Retention::bytes(1 << 20)).open_async("").await?;
    /// let since = db.snapshot().timestamp();
    /// db.keyspace_async("k").await?;
    /// let mut commits = db.changes(since)?.into_stream();
    /// let commit = commits.try_next().await?.expect("it waits for one");
    /// assert_eq!(commit.changes().count(), 1);
    /// # Ok::<(), drumlin::Error>(())
    /// # })?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    pub fn into_stream(self) -> ChangeStream {
        ChangeStream { state: StreamState::Idle(Box::new(self)) }
    }

    /// Returns the keyspace with this id, whatever its name is now, or `None` if it was dropped: then the feed tells
    /// that, too.
    ///
    /// ```
    /// use drumlin::{Change, Config, Retention};
    ///
    /// let db = Config::in_memory().keep_changes(Retention::bytes(1 << 20)).open("")?;
    /// let orders = db.keyspace("orders")?;
    /// let mut changes = db.changes(db.snapshot().timestamp())?;
    /// let mut load = db.bulk_load("orders")?;
    /// load.insert("1", "three apples")?;
    /// load.finish()?;
    /// let commit = changes.next().expect("it waits")?;
    /// let change = commit.changes().next();
    /// let Some(Change::Loaded { id, first_key, last_key, .. }) = change else { panic!("it was a load") };
    /// let loaded = changes.keyspace_of(id)?.expect("it was not dropped");
    /// assert_eq!(loaded.count(first_key..=last_key)?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn keyspace_of(&self, id: KeyspaceId) -> Result<Option<Keyspace>> {
        let open = self.handle.store()?.keyspace_with_id(id);
        Ok(open.map(|open| Keyspace::new(&self.handle, open)))
    }

    /// Opens the value that a [`Change::PutLarge`] has put into the row with this key. Returns `None` if it is no
    /// longer the row's value: then a later commit of the feed changes the row again, or removes it.
    ///
    /// # Errors
    /// The errors of [`Keyspace::read`](crate::Keyspace::read).
    pub fn read_large(&self, key: impl AsRef<[u8]>, value: LargeChange) -> Result<Option<ValueReader>> {
        let store = self.handle.store()?;
        let Some(open) = store.keyspace_with_id(value.keyspace) else { return Ok(None) };
        let snapshot = self.handle.open_visible_snapshot();
        let read_at = ReadAt::Timestamp(snapshot.timestamp);
        let found = ready(store.engine.find_in(WaitMode::Blocking, &open.tree, key.as_ref(), read_at, |_| ()));
        let found = match found {
            Err(Error::KeyspaceDropped { .. }) => None,
            found => found?,
        };
        snapshot.check()?;
        Ok(match found {
            Some(Found::Large(reference)) if reference.id == value.value => {
                Some(ValueReader::new(&self.handle, &open.tree, snapshot, Content::Stored(reference)))
            }
            _ => None,
        })
    }
}

impl Iterator for Changes {
    type Item = Result<Commit>;

    fn next(&mut self) -> Option<Result<Commit>> {
        ready(self.next_in(WaitMode::Blocking))
    }
}

/// The commits of a [`Changes`] as a [`Stream`]. Created by [`Changes::into_stream`].
///
/// ```
/// use drumlin::{Config, Retention};
/// use futures_util::StreamExt;
///
/// # smol::block_on(async {
/// let db = Config::in_memory().keep_changes(Retention::bytes(1 << 20)).open_async("").await?;
/// let commits = db.changes(db.snapshot().timestamp())?.into_stream();
/// db.keyspace_async("k").await?.insert_async("a", "1").await?;
/// let first: Vec<_> = commits.take(2).collect().await;
/// assert!(first.iter().all(Result::is_ok));
/// # Ok::<(), drumlin::Error>(())
/// # })?;
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct ChangeStream {
    state: StreamState,
}

type Step = Pin<Box<dyn Future<Output = (Box<Changes>, Option<Result<Commit>>)> + Send>>;

enum StreamState {
    Idle(Box<Changes>),
    Waiting(Exclusive<Step>),
    Ended,
}

impl std::fmt::Debug for ChangeStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.state {
            StreamState::Idle(changes) => write!(f, "ChangeStream({changes:?})"),
            StreamState::Waiting(_) => write!(f, "ChangeStream(waiting)"),
            StreamState::Ended => write!(f, "ChangeStream(ended)"),
        }
    }
}

impl Stream for ChangeStream {
    type Item = Result<Commit>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Commit>>> {
        let this = self.get_mut();
        loop {
            match std::mem::replace(&mut this.state, StreamState::Ended) {
                StreamState::Idle(mut changes) => {
                    let step: Step = Box::pin(async move {
                        let commit = changes.next_async().await;
                        (changes, commit)
                    });
                    this.state = StreamState::Waiting(Exclusive::new(step));
                }
                StreamState::Waiting(mut step) => {
                    let Poll::Ready((changes, commit)) = step.get_mut().as_mut().poll(context) else {
                        this.state = StreamState::Waiting(step);
                        return Poll::Pending;
                    };
                    if matches!(commit, Some(Ok(_))) {
                        this.state = StreamState::Idle(changes);
                    }
                    return Poll::Ready(commit);
                }
                StreamState::Ended => return Poll::Ready(None),
            }
        }
    }
}

impl Database {
    /// Like [`changes`](Database::changes). The files of earlier openings are read on a separate thread.
    ///
    /// # Errors
    /// The errors of [`changes`](Database::changes).
    pub async fn changes_async(&self, since: Timestamp) -> Result<Changes> {
        let mode = self.store()?.as_task().await;
        let database = self.clone();
        mode.run(move || database.changes(since)).await
    }

    /// Returns the durable commits after the one with timestamp `since`, in order, each whole and once. The database
    /// must have been opened with [`Config::keep_changes`].
    ///
    /// To follow a database from the beginning, read the rows of a [snapshot](Database::snapshot), and then the changes
    /// since its [`timestamp`](crate::Snapshot::timestamp). Store the [timestamp](Commit::timestamp) of each commit
    /// together with its effects: after a restart of either side, the feed since that timestamp continues with the next
    /// commit. Any number of feeds can be read at once, each at its own pace. They delay no writer. A feed whose next
    /// commit is no longer kept ends with [`Error::ChangesGone`].
    ///
    /// A prepared transaction appears when it is committed. The rows of bulk loads and of transactions that outgrew
    /// memory do not appear one by one, but as [`Change::Loaded`]. Old values are [kept on
    /// request](crate::Retention::with_old_values).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the database keeps no changes, or if no commit has a timestamp as high as `since`;
    /// [`Error::ChangesGone`] if the feed begins after `since`; [`Error::Closed`].
    ///
    /// ```
    /// use drumlin::{Config, Retention};
    ///
    /// let db = Config::in_memory().keep_changes(Retention::bytes(1 << 20)).open("")?;
    /// let orders = db.keyspace("orders")?;
    /// let snapshot = db.snapshot(); // copy its rows, then follow
    /// let mut changes = db.changes(snapshot.timestamp())?.keyspaces(["orders"]);
    /// std::thread::spawn(move || orders.insert("1", "three apples"));
    /// for commit in changes.by_ref().take(1) {
    ///     let commit = commit?;
    ///     println!("{}: {:?}", commit.timestamp(), commit.changes().collect::<Vec<_>>());
    /// }
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    pub fn changes(&self, since: Timestamp) -> Result<Changes> {
        let store = self.store()?;
        let Some(feed) = &store.feed else {
            return Err(Error::Invalid("the database keeps no changes: open it with Config::keep_changes".into()));
        };
        let reader = feed.reader(since, store.engine.log().durable())?;
        Ok(Changes {
            handle: Arc::clone(&self.handle),
            reading: Some(Arc::new(Mutex::new(Reading { reader, found: None }))),
            filter: None,
            until: None,
            position: since,
        })
    }
}

/// The commits in the change files of a folder, without opening the database: see [`Config::changes`].
///
/// As an iterator, it waits for the next commit: it looks for one every few milliseconds.
///
/// ```
/// use drumlin::{Config, Retention, Timestamp};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-changes-{}", std::process::id()));
/// # let path = folder.join("shop.drumlin");
/// let db = Config::new().keep_changes(Retention::bytes(1 << 20)).open(&path)?;
/// db.keyspace("orders")?.insert("1", "three apples")?;
/// db.close()?;
/// let mut changes = Config::new().changes(&path, Timestamp(0))?;
/// while let Some(commit) = changes.ready() {
///     println!("{}", commit?.timestamp());
/// }
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Debug)]
pub struct FolderChanges {
    reader: Option<FeedReader>,
    filter: Option<Arc<[String]>>,
}

impl FolderChanges {
    /// Like [`Changes::keyspaces`].
    #[must_use]
    pub fn keyspaces<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> FolderChanges {
        self.filter = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Returns the next commit, or `None` if there is none yet.
    ///
    /// # Errors
    /// [`Error::ChangesGone`] if the retention has removed the next commit; [`Error::Corrupted`] and [`Error::Io`] from
    /// reading the files. The feed ends after an error.
    pub fn ready(&mut self) -> Option<Result<Commit>> {
        loop {
            let reader = self.reader.as_mut()?;
            let commit = match reader.next() {
                Ok(None) => return None,
                Ok(Some(found)) => Commit::new(found, self.filter.clone()),
                Err(error) => {
                    self.reader = None;
                    return Some(Err(error));
                }
            };
            if commit.changes().next().is_some() {
                return Some(Ok(commit));
            }
        }
    }
}

impl Iterator for FolderChanges {
    type Item = Result<Commit>;

    fn next(&mut self) -> Option<Result<Commit>> {
        loop {
            let found = self.ready();
            if found.is_some() || self.reader.is_none() {
                return found;
            }
            crate::sync::sleep(FOLDER_PAUSE);
        }
    }
}

impl Config {
    /// Returns the commits after `since` that the database in the folder `path` [keeps](Config::keep_changes), without
    /// opening the database. So it works while another process has the database open, and continues with the commits
    /// that this process makes. The files lack what was committed in the last milliseconds, and the last commits before
    /// a kill until the database is opened again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the database keeps no changes, or has had no commit since it began to;
    /// [`Error::ChangesGone`] if the feed begins after `since`; [`Error::Io`].
    pub fn changes(&self, path: impl AsRef<Path>, since: Timestamp) -> Result<FolderChanges> {
        let path = path.as_ref();
        let backend = self.settings.choose_backend(path)?;
        let parent = crate::io::open_folder(&backend, path).map_err(|error| Error::io("opening", path, error))?;
        let chunk_bytes = feed::buffer_bytes(self.settings.memory_bytes);
        let reader = FeedReader::of_folder(&parent, chunk_bytes, since)?;
        Ok(FolderChanges { reader: Some(reader), filter: None })
    }
}
