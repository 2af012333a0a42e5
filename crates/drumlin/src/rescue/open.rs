//! `Rescue`: reading what is left of a damaged database.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::changes::LogChanges;
use super::extents::ExtentReader;
use super::finding::{Finder, FoundLeaves};
use super::rows::{FoundRow, Rows};
use super::sources::Sources;
use crate::db::{Config, Gap, KeyspaceOptions, Salvaged, Value};
use crate::error::{Error, Result};
use crate::format::KeyspaceId;
use crate::format::catalogue::KeyspaceEntry;
use crate::format::node::PAGE_BYTES_MAX;
use crate::memory::Budget;
use crate::store::Settings;
use crate::store::damaged::DamagedStore;
use crate::txn::commit::Durability;
use std::ops::Bound;

/// The budget of one opening is divided into this many parts: two for the damaged database, one for the scratch
/// database and one for the saved one.
const MEMORY_PART_COUNT: u64 = 4;

/// The name of the scratch database's keyspace of images.
const IMAGES: &str = "images";

/// Reads what is left of a damaged database, in key order and whatever is damaged: rows below damaged inner nodes,
/// pages whose tables, catalogue or superblocks are lost, and the commits of the log up to the first one that is lost.
///
/// The database is neither opened nor changed. It must not be open for writing. A scratch database takes descriptions
/// of the leaves (about 2 % of the data) and the log's changes; it is of no use afterwards.
///
/// # Which rows there are
/// If the superblocks, the catalogue and the page tables can be read, the rows are exactly those of the newest commit
/// that the checkpoint and the log have, except for those in damaged pages. All keys of damaged pages are reported as
/// [gaps](crate::Gap).
///
/// Pages whose tables are lost are searched in the whole data file. Then each key has the newest row that was found in
/// a sound page. If the page with its newest row is damaged, that may be an older row, or one that was removed since.
/// Rows of bulk loads that never ended may also be among them. Keyspaces whose names are lost are called `keyspace N`.
///
/// ```
/// use drumlin::{Config, Rescue, Salvaged};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-rescue-{}", std::process::id()));
/// # let (path, scratch) = (folder.join("shop.drumlin"), folder.join("scratch"));
/// # let db = drumlin::Database::open(&path)?;
/// # db.keyspace("orders")?.insert("k", "v")?;
/// # db.close()?;
/// let rescue = Rescue::open(&Config::new(), &path, &scratch)?;
/// for keyspace in rescue.keyspaces() {
///     for found in rescue.rows(&keyspace.name)? {
///         match found? {
///             Salvaged::Row(key, value) => println!("{}: {key:?}: {value:?}", keyspace.name),
///             gap => eprintln!("{}: {gap:?}", keyspace.name),
///         }
///     }
/// }
/// # drop(rescue);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct Rescue {
    pub(super) sources: Sources,
    pub(super) config: Config,
    pub(super) log_records: u64,
    path: PathBuf,
    damage: Vec<Error>,
    lost_pages: u64,
}

/// A keyspace that a [`Rescue`] has found.
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-rescued-keyspace-{}", std::process::id()));
/// # let (path, scratch) = (folder.join("shop.drumlin"), folder.join("scratch"));
/// # let db = drumlin::Database::open(&path)?;
/// # db.keyspace("orders")?.insert("k", "v")?;
/// # db.close()?;
/// let rescue = drumlin::Rescue::open(&drumlin::Config::new(), &path, &scratch)?;
/// assert_eq!((&*rescue.keyspaces()[0].name, rescue.keyspaces()[0].page_bytes), ("orders", 4096));
/// # drop(rescue);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RescuedKeyspace {
    /// The name of the keyspace, or a made-up one if the name is lost.
    pub name: String,
    /// The page size in bytes.
    pub page_bytes: usize,
}

impl std::fmt::Debug for Rescue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rescue").field("path", &self.path).field("keyspaces", &self.keyspaces()).finish_non_exhaustive()
    }
}

/// Returns an error if clones may lack pages that they share: then the catalogue is lost, and perhaps the first chunk
/// of their page tables.
fn hidden_pages(store: &DamagedStore) -> Option<Error> {
    let reason = "without it, a clone has the pages that it shares only if the first part of its page table is sound";
    (!store.is_catalogue_known).then(|| Error::corrupted(store.file.path(), "the catalogue", reason))
}

impl Rescue {
    /// Reads the structures of the database at `path`, and describes its leaves in a new database at `scratch`, a
    /// folder that is empty or does not exist. The memory budget of `config` must be at least 32 MiB: half of it serves
    /// this database, and a quarter the scratch database. O(data).
    ///
    /// # Errors
    /// Only errors that prevent the reading: [`NotADatabase`](Error::NotADatabase) if nothing of a database is found,
    /// [`NewerFormat`](Error::NewerFormat), [`OlderFormat`](Error::OlderFormat), [`Locked`](Error::Locked),
    /// [`BudgetTooSmall`](Error::BudgetTooSmall), [`Io`](Error::Io); [`Invalid`](Error::Invalid) if `scratch` holds a
    /// database already; errors of the scratch database.
    pub fn open(config: &Config, path: impl AsRef<Path>, scratch: impl AsRef<Path>) -> Result<Rescue> {
        let path = path.as_ref();
        let given_bytes = config.settings.memory_bytes;
        let minimum_bytes = MEMORY_PART_COUNT * Budget::bytes_min(config.settings.log_stream_count);
        if given_bytes < minimum_bytes {
            return Err(Error::BudgetTooSmall { given_bytes, minimum_bytes });
        }
        if config.settings.in_memory {
            return Err(Error::Invalid("a database in memory can't be damaged: it begins empty".into()));
        }
        let settings = Settings { memory_bytes: given_bytes / 2, ..config.settings.clone() };
        let mut store = DamagedStore::open(&settings, path)?;
        let config = Config { settings: Settings { segment_bytes: store.segment_bytes, ..config.settings.clone() } };
        let scratch = config.of_new(PAGE_BYTES_MAX, Durability::Relaxed).open(scratch)?;
        if !scratch.opening().created {
            let shown = scratch.path().display();
            return Err(Error::Invalid(format!("{shown} holds a database: a rescue needs an empty folder")));
        }
        let extents = ExtentReader { file: store.file.clone(), database: store.database };
        let entries: Vec<KeyspaceEntry> = store.keyspaces.iter().map(|keyspace| keyspace.entry.clone()).collect();
        let find = |store: &mut DamagedStore| {
            let load = scratch.bulk_load(IMAGES)?;
            Finder { store, extents: &extents, load, found: FoundLeaves::default() }.find_pages()
        };
        let options = KeyspaceOptions::new().page_bytes(PAGE_BYTES_MAX);
        let mut images = scratch.keyspace_with(IMAGES, options)?;
        let mut hidden = hidden_pages(&store);
        let mut found = find(&mut store)?;
        let mut scan = store.scan_log(found.newest, &settings)?;
        if store.is_outdated(found.newest, scan.as_ref()) {
            store.distrust_tables(entries);
            scratch.drop_keyspace(IMAGES)?;
            images = scratch.keyspace_with(IMAGES, options)?;
            hidden = hidden_pages(&store);
            found = find(&mut store)?;
            scan = store.scan_log(found.newest, &settings)?;
        }
        let mut damage = Vec::new();
        let log_path = path.join("log");
        let (mut loads, mut lost_pages) = (Vec::new(), found.lost_pages);
        if let Some(scan) = scan.as_ref().filter(|scan| scan.names_extents()) {
            let load = scratch.bulk_load(IMAGES)?;
            let finder = Finder { store: &mut store, extents: &extents, load, found: FoundLeaves::default() };
            let (attached, lost) = finder.find_attached(scan, &log_path, &mut damage)?;
            (loads, lost_pages) = (attached, lost_pages + lost);
        }
        damage.splice(0..0, std::mem::take(&mut store.damage).into_iter().chain(hidden));
        let keyspaces = found.keyspaces;
        let mut sources = Sources { store, extents, scratch, images, keyspaces, prepared: BTreeMap::new() };
        read_prepared(&mut sources)?;
        let log_records = match &scan {
            Some(scan) => LogChanges::new(&mut sources, &log_path, loads).apply(scan, &mut damage)?,
            None => 0,
        };
        Ok(Rescue { sources, config, log_records, path: path.to_path_buf(), damage, lost_pages })
    }

    /// Returns the keyspaces in the order of their names. No two names are equal: one that occurs twice gets a number.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<RescuedKeyspace> {
        let page_bytes = |id| self.sources.keyspaces[&id].page_bytes;
        let keyspace = |(name, id)| RescuedKeyspace { name, page_bytes: page_bytes(id) };
        self.by_name().into_iter().map(keyspace).collect()
    }

    /// Returns the corruption of everything but pages: superblocks, catalogue, tables, log.
    #[must_use]
    pub fn damage(&self) -> &[Error] {
        &self.damage
    }

    /// Returns the number of pages that page tables list and that could not be read.
    #[must_use]
    pub fn lost_pages(&self) -> u64 {
        self.lost_pages
    }

    /// Returns the number of the log's commits that are in the rows besides those of the checkpoint.
    #[must_use]
    pub fn log_records(&self) -> u64 {
        self.log_records
    }

    /// Returns the rows of a keyspace in key order, and the gaps between them. A gap comes before the rows that other
    /// sources have in it, such as the log.
    ///
    /// # Errors
    /// [`NoSuchKeyspace`](Error::NoSuchKeyspace). Steps of the iterator fail only if the scratch database fails, or if
    /// there is no memory for a value.
    pub fn rows(&self, keyspace: &str) -> Result<RescuedRows<'_>> {
        let by_name = self.by_name();
        let id = by_name.get(keyspace).ok_or_else(|| Error::NoSuchKeyspace { name: keyspace.to_owned() })?;
        Ok(RescuedRows { rows: self.rows_of(*id)?, sources: &self.sources })
    }

    pub(super) fn rows_of(&self, id: KeyspaceId) -> Result<Rows<'_>> {
        Rows::new(&self.sources, &self.sources.keyspaces[&id])
    }

    /// Returns the keyspaces by the names that they get.
    pub(super) fn by_name(&self) -> BTreeMap<String, KeyspaceId> {
        let mut by_name = BTreeMap::new();
        for (&id, source) in &self.sources.keyspaces {
            let mut name = source.name.clone();
            while by_name.contains_key(&name) {
                name = format!("{name} ({id})");
            }
            by_name.insert(name, id);
        }
        by_name
    }
}

impl Config {
    /// Returns the settings of a database that a rescue creates.
    pub(super) fn of_new(&self, page_bytes: usize, durability: Durability) -> Config {
        let memory_bytes = self.settings.memory_bytes / MEMORY_PART_COUNT;
        let Config { settings } = Config::new();
        Config {
            settings: Settings {
                memory_bytes,
                page_bytes,
                durability,
                segment_bytes: self.settings.segment_bytes,
                io_backend: self.settings.io_backend,
                backend: self.settings.backend.clone(),
                warm_start: false,
                ..settings
            },
        }
    }
}

/// Takes the rows of the keyspace of prepared transactions into memory. There are few.
fn read_prepared(sources: &mut Sources) -> Result<()> {
    let Some(source) = sources.keyspaces.remove(&KeyspaceId::PREPARED) else { return Ok(()) };
    let mut prepared = BTreeMap::new();
    let mut rows = Rows::new(sources, &source)?;
    while let Some(found) = rows.next_row()? {
        if let FoundRow::Row(key, value) = found {
            prepared.insert(key, value);
        }
    }
    drop(rows);
    sources.prepared = prepared;
    Ok(())
}

/// An iterator over the rows of a keyspace that could be read, and the gaps between them. Created by [`Rescue::rows`].
///
/// ```
/// use drumlin::{Config, Rescue, Salvaged};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-rescued-rows-{}", std::process::id()));
/// # let (path, scratch) = (folder.join("shop.drumlin"), folder.join("scratch"));
/// # let db = drumlin::Database::open(&path)?;
/// # db.keyspace("orders")?.insert("k", "v")?;
/// # db.close()?;
/// let rescue = Rescue::open(&Config::new(), &path, &scratch)?;
/// let is_row = |found: drumlin::Result<Salvaged>| matches!(found, Ok(Salvaged::Row(..)));
/// assert_eq!(rescue.rows("orders")?.filter_map(|found| is_row(found).then_some(())).count(), 1);
/// # drop(rescue);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct RescuedRows<'r> {
    rows: Rows<'r>,
    sources: &'r Sources,
}

impl std::fmt::Debug for RescuedRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RescuedRows").finish_non_exhaustive()
    }
}

impl Iterator for RescuedRows<'_> {
    type Item = Result<Salvaged>;

    fn next(&mut self) -> Option<Result<Salvaged>> {
        let found = self.rows.next_row().transpose()?;
        Some(found.and_then(|found| match found {
            FoundRow::Row(key, value) => {
                Ok(Salvaged::Row(Value::from(key), Value::from(value.into_bytes(self.sources)?)))
            }
            FoundRow::Gap(gap) => Ok(Salvaged::Gap(Gap {
                start: if gap.lower.is_empty() { Bound::Unbounded } else { Bound::Included(gap.lower) },
                end: gap.upper.map_or(Bound::Unbounded, Bound::Excluded),
                error: gap.error,
            })),
        }))
    }
}
