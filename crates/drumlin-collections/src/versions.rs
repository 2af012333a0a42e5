//! Reads past versions of documents.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::SystemTime;

use drumlin::Reader;

use crate::collection::Collection;
use crate::encoding::RowBounds;
use crate::error::{Error, Result};
use crate::history::{self, StoredVersion};
use crate::mode::{Mode, ready};
use crate::open::OpenCollection;

/// A version of a document: see [`Reading::versions`](crate::Reading::versions).
///
/// ```
/// # use drumlin_collections::{Collection, Collections, Parts, Postcard, Retention};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Page { name: String, text: String }
/// # impl Collection for Page {
/// #     type Key = String;
/// #     type Codec = Postcard;
/// #     const NAME: &'static str = "pages";
/// #     fn key(&self) -> String { self.name.clone() }
/// #     fn parts() -> Parts<Page> { Parts::new().history(Retention::FOREVER) }
/// # }
/// # let pages = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Page>()?;
/// for text in ["one", "two"] {
///     pages.put(&Page { name: "home".into(), text: text.into() })?;
/// }
/// let first = pages.now().version("home", 1)?.unwrap();
/// assert_eq!(first.document.unwrap().text, "one");
/// let texts = pages.now().versions("home")?.map(|version| Ok(version?.document.unwrap().text));
/// assert_eq!(texts.collect::<drumlin_collections::Result<Vec<_>>>()?, ["one", "two"]);
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Version<C> {
    /// The version number. The first version of a document has number 1.
    pub number: u64,
    /// The time of the write, by the writer's clock. Never earlier than the time of the previous version.
    pub time: SystemTime,
    /// The document; `None` if this version records a removal.
    pub document: Option<C>,
}

/// A double-ended iterator over the kept versions of a document, from the oldest to the newest. See [`Version`].
///
/// ```
/// # use drumlin_collections::{Collection, Versions};
/// fn newest_number<C: Collection>(mut versions: Versions<C>) -> Option<u64> {
///     versions.next_back()?.ok().map(|version| version.number)
/// }
/// ```
pub struct Versions<C: Collection> {
    rows: drumlin::Range,
    open: Arc<OpenCollection<C>>,
}

impl<C: Collection> Debug for Versions<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Versions({:?}, {:?})", C::NAME, self.rows)
    }
}

fn history_of<C: Collection>(open: &OpenCollection<C>) -> Result<&drumlin::Keyspace> {
    let history = open.history.as_ref().map(|(history, _)| history);
    history.ok_or_else(|| Error::definition(C::NAME, "it keeps no history"))
}

fn stored<C: Collection>(
    open: &OpenCollection<C>,
    row: drumlin::Result<(drumlin::Value, drumlin::Value)>,
) -> Result<(Vec<u8>, StoredVersion)> {
    let (key, value) = row?;
    history::decode(&key, &value).map_err(|reason| open.version_error(&key, &reason))
}

fn version<C: Collection>(open: &OpenCollection<C>, key: &[u8], stored: StoredVersion) -> Result<Version<C>> {
    let StoredVersion { number, time, document } = stored;
    let document = document.map(|row| open.decode(key, &row)).transpose()?;
    Ok(Version { number, time, document })
}

/// Returns the document of a version, or `None` if the version records a removal or had expired at `time`.
fn document_at<C: Collection>(
    open: &OpenCollection<C>,
    key: &[u8],
    stored: StoredVersion,
    time: SystemTime,
) -> Result<Option<C>> {
    let document = version(open, key, stored)?.document;
    Ok(document.filter(|document| open.expires_at(document).is_none_or(|expires| expires > time)))
}

impl<C: Collection> Versions<C> {
    pub(crate) fn of(open: &Arc<OpenCollection<C>>, reader: &Reader, key: &[u8]) -> Result<Versions<C>> {
        Ok(Versions { rows: reader.prefix(history_of(open)?, key), open: Arc::clone(open) })
    }

    pub(crate) async fn one(
        mode: Mode,
        open: &Arc<OpenCollection<C>>,
        reader: &Reader,
        key: &[u8],
        number: u64,
    ) -> Result<Option<Version<C>>> {
        let row_key = [key, &number.to_be_bytes()].concat();
        let Some(value) = mode.get(reader, history_of(open)?, &row_key).await? else { return Ok(None) };
        let decoded = history::decode(&row_key, &value).map_err(|reason| open.version_error(&row_key, &reason))?;
        version(open, key, decoded.1).map(Some)
    }

    pub(crate) async fn as_of(
        mode: Mode,
        open: &Arc<OpenCollection<C>>,
        reader: &Reader,
        key: &[u8],
        time: SystemTime,
    ) -> Result<Option<C>> {
        let mut rows = reader.prefix(history_of(open)?, key);
        while let Some(row) = mode.next_back(&mut rows).await {
            let (_, stored) = stored(open, row)?;
            if stored.time <= time {
                return document_at(open, key, stored, time);
            }
        }
        Ok(None)
    }

    /// Returns the next version.
    pub async fn next_async(&mut self) -> Option<Result<Version<C>>> {
        let row = self.rows.next_async().await?;
        Some(self.decode(row))
    }

    /// Returns the next version from the end.
    pub async fn next_back_async(&mut self) -> Option<Result<Version<C>>> {
        let row = self.rows.next_back_async().await?;
        Some(self.decode(row))
    }

    fn decode(&self, row: drumlin::Result<(drumlin::Value, drumlin::Value)>) -> Result<Version<C>> {
        let (key, stored) = stored(&self.open, row)?;
        version(&self.open, &key, stored)
    }
}

impl<C: Collection> Iterator for Versions<C> {
    type Item = Result<Version<C>>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.rows.next()?;
        Some(self.decode(row))
    }
}

impl<C: Collection> DoubleEndedIterator for Versions<C> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let row = self.rows.next_back()?;
        Some(self.decode(row))
    }
}

/// An iterator over documents as they were at a given time. See [`Reading::range_as_of`](crate::Reading::range_as_of).
///
/// ```
/// # use drumlin_collections::{Collection, Documents, Result};
/// use std::time::SystemTime;
///
/// fn count_then<C: Collection>(documents: &Documents<C>, time: SystemTime) -> Result<usize> {
///     Ok(documents.now().range_as_of(time, ..)?.count())
/// }
/// ```
pub struct AsOf<C: Collection> {
    /// `None` after an error: without the version that could not be read, the document would be wrong.
    rows: Option<drumlin::Range>,
    open: Arc<OpenCollection<C>>,
    time: SystemTime,
    /// The key of the document whose versions are being read, and the newest version found so far that is not later
    /// than `time`. It is kept between steps, so dropping a step's future loses nothing.
    current: Option<(Vec<u8>, Option<StoredVersion>)>,
}

impl<C: Collection> Debug for AsOf<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AsOf({:?}, {:?})", C::NAME, self.time)
    }
}

impl<C: Collection> AsOf<C> {
    pub(crate) fn of(
        open: &Arc<OpenCollection<C>>,
        reader: &Reader,
        bounds: RowBounds,
        time: SystemTime,
    ) -> Result<AsOf<C>> {
        let rows = reader.range(history_of(open)?, bounds);
        Ok(AsOf { rows: Some(rows), open: Arc::clone(open), time, current: None })
    }

    /// Returns the next document.
    pub async fn next_async(&mut self) -> Option<Result<C>> {
        self.step(Mode::Async).await.transpose()
    }

    async fn step(&mut self, mode: Mode) -> Result<Option<C>> {
        while let Some(rows) = &mut self.rows {
            let row = mode.next(rows).await;
            let version = row.map(|row| stored(&self.open, row)).transpose().inspect_err(|_| self.rows = None)?;
            let is_end = version.is_none();
            if let Some((key, newest)) = self.complete(version)
                && let Some(newest) = newest
                && let Some(document) = document_at(&self.open, &key, newest, self.time)?
            {
                return Ok(Some(document));
            }
            if is_end {
                break;
            }
        }
        Ok(None)
    }

    /// Adds the next version to its document. If `next` belongs to a different document or is `None`, the previous
    /// document is complete, and is returned.
    fn complete(&mut self, next: Option<(Vec<u8>, StoredVersion)>) -> Option<(Vec<u8>, Option<StoredVersion>)> {
        let Some((key, version)) = next else { return self.current.take() };
        let version = (version.time <= self.time).then_some(version);
        match &mut self.current {
            Some((same, newest)) if *same == key => {
                *newest = version.or_else(|| newest.take());
                None
            }
            current => current.replace((key, version)),
        }
    }
}

impl<C: Collection> Iterator for AsOf<C> {
    type Item = Result<C>;

    fn next(&mut self) -> Option<Result<C>> {
        ready(self.step(Mode::Blocking)).transpose()
    }
}
