//! Durable changes of a collection, from the database's change feed.

use std::io::Read;
use std::sync::Arc;

use drumlin::{Commit, Timestamp};

use crate::changes::Change;
use crate::collection::Collection;
use crate::encoding::Key;
use crate::error::{Error, Result};
use crate::open::OpenCollection;

/// The changes that one commit made to a collection: see
/// [`Documents::changes_since`](crate::Documents::changes_since).
///
/// ```
/// # use drumlin_collections::{Collection, Committed};
/// fn log<C: Collection>(committed: &Committed<C>) {
///     println!("{}: {} documents", committed.timestamp, committed.changes.len());
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Committed<C: Collection> {
    /// The commit's timestamp. Store it with the effects of the commit, and continue after it.
    pub timestamp: Timestamp,
    /// The documents that it wrote and removed, in the order of their keys. A document over 64 KiB that was replaced
    /// since is left out: a later commit of the feed changes it again.
    pub changes: Vec<Change<C>>,
    /// `true` if the commit also changed documents that it does not name: by a bulk load, a removal of a range, or a
    /// drop or change of the name of the collection's keyspace. Read all documents again.
    pub reread: bool,
}

/// The durable changes of a collection: see [`Documents::changes_since`](crate::Documents::changes_since).
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
/// # let config = drumlin::Config::in_memory().keep_changes(drumlin::Retention::bytes(1 << 20));
/// # let db = config.open("")?;
/// # let users = Collections::new(&db).open::<User>()?;
/// let mut feed = users.changes_since(db.snapshot().timestamp())?;
/// users.put(&User { name: "ann".into() })?;
/// let committed = feed.next().expect("it waits")?;
/// assert_eq!(committed.changes[0].key, "ann");
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
pub struct DurableChanges<C: Collection> {
    feed: drumlin::Changes,
    open: Arc<OpenCollection<C>>,
}

impl<C: Collection> std::fmt::Debug for DurableChanges<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DurableChanges({:?}, {:?})", C::NAME, self.feed)
    }
}

impl<C: Collection> DurableChanges<C> {
    pub(crate) fn since(open: &Arc<OpenCollection<C>>, since: Timestamp) -> Result<DurableChanges<C>> {
        let feed = open.shared.db.changes(since)?.keyspaces([C::NAME]);
        Ok(DurableChanges { feed, open: Arc::clone(open) })
    }

    /// Returns the timestamp up to which all commits have been returned or do not concern the collection.
    #[must_use]
    pub fn position(&self) -> Timestamp {
        self.feed.position()
    }

    /// Returns the next commit, or `None` if there is none yet.
    ///
    /// # Errors
    /// [`Error::Decode`] if a document or its key can't be decoded; the errors of [`drumlin::Changes::ready`].
    pub fn ready(&mut self) -> Option<Result<Committed<C>>> {
        let commit = self.feed.ready()?;
        Some(self.committed(commit))
    }

    /// Waits for the next commit asynchronously. A future that is dropped before it is ready loses no commit.
    ///
    /// # Errors
    /// See [`ready`](DurableChanges::ready).
    pub async fn next_async(&mut self) -> Option<Result<Committed<C>>> {
        let commit = self.feed.next_async().await?;
        Some(self.committed(commit))
    }

    fn committed(&self, commit: drumlin::Result<Commit>) -> Result<Committed<C>> {
        let commit = commit?;
        let mut committed = Committed { timestamp: commit.timestamp(), changes: Vec::new(), reread: false };
        for change in commit.changes() {
            match change {
                drumlin::Change::Put { key, value, .. } => committed.changes.push(self.change(key, Some(value))?),
                drumlin::Change::PutLarge { key, value, .. } => {
                    if let Some(mut reader) = self.feed.read_large(key, value)? {
                        let mut row = Vec::new();
                        reader.read_to_end(&mut row).map_err(|error| self.unreadable(key, error.to_string()))?;
                        committed.changes.push(self.change(key, Some(&row))?);
                    }
                }
                drumlin::Change::Remove { key, .. } => committed.changes.push(self.change(key, None)?),
                drumlin::Change::Create { .. } => {}
                _ => committed.reread = true,
            }
        }
        Ok(committed)
    }

    fn change(&self, key: &[u8], row: Option<&[u8]>) -> Result<Change<C>> {
        let document = row.map(|row| self.open.decode(key, row)).transpose()?;
        let key = C::Key::decode(key).map_err(|error| self.unreadable(key, error.to_string()))?;
        Ok(Change { key, document })
    }

    fn unreadable(&self, key: &[u8], reason: String) -> Error {
        Error::Decode { collection: C::NAME, of: None, row: key.escape_ascii().to_string(), reason }
    }
}

impl<C: Collection> Iterator for DurableChanges<C> {
    type Item = Result<Committed<C>>;

    fn next(&mut self) -> Option<Result<Committed<C>>> {
        let commit = self.feed.next()?;
        Some(self.committed(commit))
    }
}
