//! A database that is read without being opened, however damaged it is: its checkpoint as far as it is known, and the
//! sound prefix of its log. Nothing is written.
//!
//! # What is trusted
//! 1. The superblocks, the catalogue, the page tables: if they can be read, they say which extents count.
//! 2. If a superblock or the catalogue can't be read, a [search](search_extents) of the data file finds the catalogues
//!    that are left. The newest one takes the place of the lost one, unless extents that only a later checkpoint can
//!    have written show that it is outdated.
//! 3. If the catalogue is lost, the first chunks of the page tables of clones say which pages they share.
//! 4. Where tables are missing or outdated, the pages have to be searched ([`Pages::Searched`],
//!    [`Pages::ListedExcept`]). Of several images of a page the caller takes the newest.
//!
//! # The log
//! With a sound superblock, the log is scanned like that of any database, up to the first record that is missing.
//! Without one, the records themselves show which openings there were
//! ([`ObservedLog`](crate::seglog::observe::ObservedLog)).

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::Settings;
use super::files::{DATA_NAME, Locks, Opener};
use super::recovery::log_state;
use crate::error::{Error, Result};
use crate::format::catalogue::{self, Catalogue, CloneOrigin, KeyspaceEntry};
use crate::format::extent::{self, HEADER_BYTES, Header, Kind, SEGMENT_TABLE_ENTRIES, TABLE_PAGES};
use crate::format::features::Features;
use crate::format::node::PAGE_BYTES_MAX;
use crate::format::superblock::Superblock;
use crate::format::{
    CheckpointId, CheckpointNumber, DatabaseId, Epoch, ExtentAddress, ExtentRef, KeyspaceId, PageId, SegmentUse,
    SuperblockNumber, Timestamp,
};
use crate::hash::HashMap;
use crate::io::{FileRef, FolderRef, Lock, OpenOptions, Process, SyncMethod};
use crate::memory::Budget;
use crate::seglog::{Scan, SuperblockLogState, database_of_log, observe};
use crate::space::checkpoint::PageTableStore;
use crate::space::extents::numbers;
use crate::space::loading::LoadedTables;
use crate::space::search::search_extents;
use crate::space::superblocks::{FoundSuperblock, Superblocks};
use crate::space::{PageEntry, PageSpace, Space};
use crate::tree::node::Leaf;

/// The options for opening every file.
const READ_ONLY: OpenOptions = OpenOptions { write: false, create: false, create_new: false, direct: true };

/// The smallest size of a segment that a database may be created with, in bytes.
const SEGMENT_BYTES_MIN: u64 = 256 << 10;
/// The largest size of a segment that a database may be created with, in bytes.
const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// The maximum number of catalogue parts that a search remembers: the newest ones.
const CATALOGUE_PART_COUNT_MAX: usize = 64 << 10;

/// The end of the entries in a chunk of a page table. A clone's origins may follow.
const CHUNK_END: usize = HEADER_BYTES + TABLE_PAGES * 8;

/// A database that is read without being opened.
pub(crate) struct DamagedStore {
    pub(crate) file: FileRef,
    pub(crate) database: DatabaseId,
    /// The keyspaces that a catalogue lists.
    pub(crate) keyspaces: Vec<DamagedKeyspace>,
    /// `true` if the catalogue is that of the newest checkpoint: there are no other keyspaces.
    pub(crate) is_catalogue_known: bool,
    /// The corruption found so far.
    pub(crate) damage: Vec<Error>,
    /// The segment size of the data file.
    pub(crate) segment_bytes: u64,
    space: Space,
    survey: Option<Survey>,
    superblock: Superblock,
    /// `false` if the superblock was made up.
    is_superblock_known: bool,
    log_options: crate::seglog::LogOptions,
    log_folder: Option<FolderRef>,
    /// `true` if the log lacks commits between those of the pages and its first.
    has_log_gap: bool,
    _locks: Locks,
}

/// A keyspace that a catalogue lists.
pub(crate) struct DamagedKeyspace {
    pub(crate) entry: KeyspaceEntry,
    pub(crate) pages: Pages,
}

/// Says how the pages of a keyspace are found.
#[derive(Clone)]
pub(crate) enum Pages {
    /// The page table lists them.
    Listed(Arc<PageSpace>),
    /// The page table lists them, except for those in these chunks that it does not list.
    ListedExcept(Arc<PageSpace>, BTreeSet<usize>),
    /// The page table is unknown.
    Searched,
}

impl Pages {
    /// Returns the page table, if it is known.
    pub(crate) fn table(&self) -> Option<&PageSpace> {
        match self {
            Pages::Listed(pages) | Pages::ListedExcept(pages, _) => Some(pages),
            Pages::Searched => None,
        }
    }

    /// Returns `true` if some pages are listed nowhere, so that a search has to find them.
    pub(crate) fn are_searched(&self) -> bool {
        !matches!(self, Pages::Listed(_))
    }
}

/// The extents that a search of the whole data file has found, except for pages and values.
#[derive(Default)]
struct Survey {
    database: DatabaseId,
    segment_bytes: u64,
    /// The uses of segments, each with the offset of its first extent.
    starts: Vec<(SegmentUse, u64)>,
    /// The newest use of each segment that has a sound extent.
    uses: HashMap<u64, SegmentUse>,
    /// The parts of catalogues, from the newest to the oldest.
    catalogue_parts: Vec<ExtentRef>,
    /// The newest extent that only a checkpoint writes.
    newest_of_checkpoint: Option<(SegmentUse, u64)>,
    /// The newest commit in any leaf, if the superblock is lost.
    newest_commit: Timestamp,
    /// The origins that the page tables of clones list.
    clones: Clones,
}

/// The origins of each clone, by the clone's id.
pub(crate) type Clones = HashMap<KeyspaceId, Vec<CloneOrigin>>;

/// The first and the last byte of the extents of one use of a segment.
#[derive(Clone, Copy)]
struct UseSpan {
    first: u64,
    last: u64,
}

impl Survey {
    /// Searches the file. `database` is `None` if the database's id is unknown; then the one with most extents counts.
    fn make(file: &FileRef, database: Option<DatabaseId>, segment_bytes: Option<u64>) -> Result<Survey> {
        let mut uses: HashMap<(u64, SegmentUse), UseSpan> = HashMap::default();
        let mut counts: HashMap<u64, u64> = HashMap::default();
        let mut parts: Vec<(DatabaseId, SegmentUse, u64, ExtentRef)> = Vec::new();
        let mut of_checkpoints: HashMap<u64, (SegmentUse, u64)> = HashMap::default();
        let mut commits: HashMap<u64, Timestamp> = HashMap::default();
        let mut clones: HashMap<(u64, KeyspaceId), (SegmentUse, u64, Vec<CloneOrigin>)> = HashMap::default();
        search_extents(file, database, |offset, header, bytes| {
            let Header { origin, kind, stored_bytes, .. } = header;
            *counts.entry(origin.database.0).or_default() += 1;
            let last = offset + stored_bytes as u64 - 1;
            let span = uses.entry((origin.database.0, origin.segment_use)).or_insert(UseSpan { first: offset, last });
            *span = UseSpan { first: span.first.min(offset), last: span.last.max(last) };
            if matches!(kind, Kind::Catalogue | Kind::Summary | Kind::Segments) {
                let newest = of_checkpoints.entry(origin.database.0).or_insert((origin.segment_use, offset));
                *newest = (*newest).max((origin.segment_use, offset));
            }
            match kind {
                Kind::Catalogue => {
                    let address = ExtentAddress::new(offset, stored_bytes as u64, origin.segment_use);
                    let extent = ExtentRef { address, segment_use: origin.segment_use };
                    parts.push((origin.database, origin.segment_use, offset, extent));
                    if parts.len() == 2 * CATALOGUE_PART_COUNT_MAX {
                        parts.sort_unstable_by_key(|&(_, segment_use, offset, _)| Reverse((segment_use.0, offset)));
                        parts.truncate(CATALOGUE_PART_COUNT_MAX);
                    }
                }
                Kind::Table if header.raw_bytes > CHUNK_END && header.page_key.page == PageId(0) => {
                    let mut chunk = vec![0; header.raw_bytes.min(ExtentAddress::EXTENT_BYTES_MAX as usize)];
                    if extent::decode(bytes, &header, &mut chunk).is_ok()
                        && let Some(origins) = CloneOrigin::decode_all(&chunk[CHUNK_END..])
                    {
                        let found = (origin.segment_use, offset, origins);
                        let newest = clones.entry((origin.database.0, header.page_key.keyspace));
                        let newest = newest.or_insert((SegmentUse(0), 0, Vec::new()));
                        if (newest.0, newest.1) < (found.0, found.1) {
                            *newest = found;
                        }
                    }
                }
                Kind::Leaf if segment_bytes.is_none() => {
                    let mut page = vec![0; header.raw_bytes.min(PAGE_BYTES_MAX)];
                    if extent::decode(bytes, &header, &mut page).is_ok() && crate::tree::check_node(&page, kind).is_ok()
                    {
                        let newest = commits.entry(origin.database.0).or_default();
                        *newest = Leaf::new(&page).newest().max(*newest);
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        let most = counts.iter().max_by_key(|&(database, count)| (*count, *database)).map(|(database, _)| *database);
        let Some(most) = most else {
            return Ok(Survey { segment_bytes: segment_bytes.unwrap_or(SEGMENT_BYTES_MIN), ..Survey::default() });
        };
        uses.retain(|(database, _), _| *database == most);
        let is_known = segment_bytes.is_some();
        let segment_bytes = segment_bytes.unwrap_or_else(|| smallest_segment_bytes(&uses.values()));
        let starts = uses.into_iter().map(|((_, segment_use), span)| (segment_use, span.first)).collect();
        parts.retain(|(database, ..)| database.0 == most);
        parts.sort_unstable_by_key(|&(_, segment_use, offset, _)| Reverse((segment_use.0, offset)));
        let mut survey = Survey {
            database: DatabaseId(most),
            segment_bytes: 0,
            starts,
            uses: HashMap::default(),
            catalogue_parts: parts.into_iter().map(|(.., extent)| extent).collect(),
            newest_of_checkpoint: of_checkpoints.get(&most).copied(),
            newest_commit: commits.get(&most).copied().unwrap_or_default(),
            clones: Clones::default(),
        };
        let chosen = if is_known { segment_bytes } else { survey.likely_segment_bytes(file, segment_bytes) };
        survey.set_segment_bytes(chosen);
        let of_database = clones.into_iter().filter(|((database, _), _)| *database == most);
        let current = of_database.filter(|(_, (segment_use, offset, _))| survey.is_current(*offset, *segment_use));
        survey.clones = current.map(|((_, keyspace), (.., origins))| (keyspace, origins)).collect();
        Ok(survey)
    }

    fn set_segment_bytes(&mut self, segment_bytes: u64) {
        self.segment_bytes = segment_bytes;
        self.uses.clear();
        for &(segment_use, start) in &self.starts {
            let known = self.uses.entry(start / segment_bytes).or_insert(segment_use);
            *known = (*known).max(segment_use);
        }
    }

    /// Returns the size of segments with which most of the newest table of segments agrees with the uses that were
    /// found. Without a table, returns the smallest size. Too small a size does no harm to a search, whereas too large
    /// a size would take extents for left over that are not.
    fn likely_segment_bytes(&self, file: &FileRef, smallest: u64) -> u64 {
        let mut table = Vec::new();
        for chunk in newest_catalogue(file, self).map(|found| found.catalogue.segments).unwrap_or_default() {
            let read = Some(chunk).filter(|chunk| *chunk != ExtentRef::NONE);
            let read = read.and_then(|chunk| read_structure(file, self.database, chunk, Kind::Segments));
            let read = read.filter(|(_, payload)| payload.len() == SEGMENT_TABLE_ENTRIES * 8);
            let mut uses = read.map(|(_, payload)| numbers(&payload)).unwrap_or_default();
            uses.resize(SEGMENT_TABLE_ENTRIES, 0);
            table.append(&mut uses);
        }
        let agreeing = |bytes: u64| {
            let agrees = |&&(segment_use, start): &&(SegmentUse, u64)| {
                table.get((start / bytes) as usize) == Some(&segment_use.0)
            };
            self.starts.iter().filter(agrees).count()
        };
        let sizes = std::iter::successors(Some(smallest), |bytes| Some(2 * bytes));
        let sizes = sizes.take_while(|bytes| *bytes <= SEGMENT_BYTES_MAX);
        sizes.max_by_key(|&bytes| (agreeing(bytes), Reverse(bytes))).unwrap_or(smallest)
    }

    /// Returns `true` if an extent is in the newest use of its segment. Those of older uses are left over.
    fn is_current(&self, offset: u64, segment_use: SegmentUse) -> bool {
        self.uses.get(&(offset / self.segment_bytes)) == Some(&segment_use)
    }

    /// Returns `true` if a checkpoint that is newer than the one of this catalogue has written something.
    fn is_followed(&self, catalogue: ExtentRef) -> bool {
        self.newest_of_checkpoint.is_some_and(|newest| newest > (catalogue.segment_use, catalogue.address.start()))
    }
}

/// Returns the smallest size of segments with which no use of a segment reaches into another segment.
fn smallest_segment_bytes<'s>(spans: &(impl Iterator<Item = &'s UseSpan> + Clone)) -> u64 {
    let mut bytes = SEGMENT_BYTES_MIN;
    while bytes < SEGMENT_BYTES_MAX && spans.clone().any(|span| span.first / bytes != span.last / bytes) {
        bytes *= 2;
    }
    bytes
}

/// A catalogue that a search has found.
struct FoundCatalogue {
    last_part: ExtentRef,
    bytes: u64,
    catalogue: Catalogue,
}

/// Returns the newest catalogue of which all parts are sound.
fn newest_catalogue(file: &FileRef, survey: &Survey) -> Option<FoundCatalogue> {
    survey.catalogue_parts.iter().find_map(|&last_part| {
        let mut parts = Vec::new();
        let mut next = last_part;
        while next != ExtentRef::NONE {
            let (header, payload) = read_structure(file, survey.database, next, Kind::Catalogue)?;
            let is_first = header.page_key.page.0 == 0;
            let previous = ExtentRef::from_bytes(payload.get(..ExtentRef::BYTES)?)?;
            let is_last = parts.is_empty();
            let bytes = payload.len() - ExtentRef::BYTES;
            if is_first != (previous == ExtentRef::NONE) || !is_last && bytes != catalogue::PART_BYTES {
                return None;
            }
            parts.push(payload);
            next = previous;
            if parts.len() > survey.catalogue_parts.len() {
                return None;
            }
        }
        let bytes: Vec<u8> = parts.iter().rev().flat_map(|part| &part[ExtentRef::BYTES..]).copied().collect();
        let catalogue = Catalogue::decode(&bytes)?;
        Some(FoundCatalogue { last_part, bytes: bytes.len() as u64, catalogue })
    })
}

/// Reads an extent of this kind. Returns `None` if it is not sound.
fn read_structure(file: &FileRef, database: DatabaseId, extent: ExtentRef, kind: Kind) -> Option<(Header, Vec<u8>)> {
    let alignment = file.alignment() as u64;
    let start = extent.address.start() / alignment * alignment;
    let end = (extent.address.start() + extent.address.length()).next_multiple_of(alignment);
    let mut buffer = crate::io::AlignedBuffer::zeroed((end - start) as usize);
    file.read_up_to(&mut buffer, start).ok()?;
    let bytes = &buffer[(extent.address.start() - start) as usize..];
    let header = extent::verify(bytes).ok()?;
    header.check(extent::Origin { database, segment_use: extent.segment_use }).ok()?;
    let mut page = vec![0; header.raw_bytes.min(ExtentAddress::EXTENT_BYTES_MAX as usize)];
    extent::decode(bytes, &header, &mut page).ok()?;
    page.drain(..extent::HEADER_BYTES);
    (header.kind == kind).then_some((header, page))
}

impl DamagedStore {
    /// Reads all that is left of the structures of the database at `path`, which must not be open for writing.
    pub(crate) fn open(settings: &Settings, path: &Path) -> Result<DamagedStore> {
        let backend = settings.choose_backend(path)?;
        let path = backend.absolute(path).map_err(|error| Error::io("finding", path, error))?;
        Process::watch().map_err(|error| Error::io("watching for forks of", &path, error))?;
        let opener = Opener::enter(settings, backend, &path, Lock::Shared)?;
        if !opener.exists(DATA_NAME)? {
            opener.check_creatable()?;
            return Err(opener.empty());
        }
        let file = opener.lock_data(DATA_NAME, READ_ONLY, Lock::Shared)?;
        let locks = opener.locks(Arc::clone(&file));
        let mut damage = Vec::new();
        let log_folder = match opener.exists(super::files::LOG_NAME)? {
            true => opener.open_log_folder().map_err(|error| damage.push(error)).ok(),
            false => None,
        };
        let (newest, not_found) = match opener.read_superblocks(&file, false) {
            Ok(FoundSuperblock { newest, reason }) => {
                damage.extend(reason);
                (Some(newest), None)
            }
            Err(error @ (Error::NewerFormat { .. } | Error::OlderFormat { .. } | Error::UnknownFeatures { .. })) => {
                return Err(error);
            }
            Err(error) => (None, Some(error)),
        };
        let is_superblock_known = newest.is_some();
        let mut survey = None;
        let mut superblock = match newest {
            // The superblock that was lost may have been the newest.
            Some(superblock) if !damage.is_empty() => {
                let found = Survey::make(&file, Some(superblock.database), Some(superblock.segment_bytes))?;
                let superblock = with_newer_catalogue(&file, superblock, &found);
                survey = Some(found);
                superblock
            }
            Some(superblock) => superblock,
            None => {
                let of_log = log_folder.as_ref().and_then(|folder| database_of_log(folder, READ_ONLY).ok().flatten());
                let found = Survey::make(&file, of_log, None)?;
                if found.uses.is_empty() && of_log.is_none() {
                    return Err(not_found.expect("no superblock was found"));
                }
                damage.extend(not_found);
                let superblock = made_up_superblock(&file, of_log.unwrap_or(found.database), &found);
                survey = Some(found);
                superblock
            }
        };
        let memory_bytes = settings.memory_bytes;
        let budget = Arc::new(Budget::new(memory_bytes, settings.log_stream_count));
        let log_options = opener.log_options(&superblock, &budget, SyncMethod::DataSync);
        let load = |superblock: &Superblock, damage: &mut Vec<Error>| -> Result<(Space, LoadedTables)> {
            let space = opener.space(&file, superblock, &budget, true)?;
            let superblocks = Superblocks::new(Arc::clone(&file), SyncMethod::DataSync, superblock.clone());
            let page_tables =
                PageTableStore::new(superblock.clone(), Arc::new(superblocks), budget.epoch_changes_max() as usize);
            let loaded = page_tables.load(&space, memory_bytes, &mut |error| note(error, damage))?;
            Ok((space, loaded))
        };
        let (mut space, LoadedTables { page_tables, catalogue }) = load(&superblock, &mut damage)?;
        let mut entries = catalogue.keyspaces;
        // Before the first checkpoint there is none.
        let mut is_catalogue_known = match superblock.epoch {
            Epoch(0) => is_superblock_known,
            _ => page_tables.is_catalogue_known(),
        };
        let mut are_tables_known = is_catalogue_known && page_tables.is_table_known();
        if survey.is_none() && !is_catalogue_known {
            survey = Some(Survey::make(&file, Some(superblock.database), Some(superblock.segment_bytes))?);
        }
        if let Some(survey) = &survey {
            if !is_catalogue_known && let Some(found) = newest_catalogue(&file, survey) {
                // Its tables are older than the checkpoint, but keyspaces keep their numbers and page sizes.
                entries = found.catalogue.keyspaces;
            }
            if !is_superblock_known && is_catalogue_known && superblock.epoch != Epoch(0) {
                let is_newest = !survey.is_followed(superblock.catalogue) && is_current(&space, &entries, survey);
                (is_catalogue_known, are_tables_known) = (is_newest, is_newest && are_tables_known);
            }
        }
        if !are_tables_known {
            // Free the memory of the tables, which say nothing.
            superblock.epoch = Epoch(0);
            space = opener.space(&file, &superblock, &budget, true)?;
        }
        let corrupted = page_tables.corrupted_chunks();
        let keyspaces = entries.into_iter().map(|entry| {
            let of_keyspace = corrupted.iter().filter(|(keyspace, _)| *keyspace == entry.id);
            let chunks: BTreeSet<usize> = of_keyspace.map(|&(_, chunk)| chunk).collect();
            let pages = match space.page_space(entry.id) {
                Some(pages) if chunks.is_empty() => Pages::Listed(pages),
                Some(pages) => Pages::ListedExcept(pages, chunks),
                None => Pages::Searched,
            };
            DamagedKeyspace { entry, pages }
        });
        Ok(DamagedStore {
            keyspaces: keyspaces.collect(),
            is_catalogue_known,
            damage,
            database: superblock.database,
            segment_bytes: superblock.segment_bytes,
            space,
            survey,
            superblock,
            is_superblock_known,
            log_options,
            log_folder,
            has_log_gap: false,
            _locks: locks,
            file,
        })
    }

    /// Returns `true` if leaves were found with commits that neither the catalogue's pages have, of which the newest is
    /// `newest`, nor the log. Then a newer catalogue is lost.
    pub(crate) fn is_outdated(&self, newest: Timestamp, log: Option<&Scan>) -> bool {
        let last = log.filter(|_| !self.has_log_gap).map_or(newest, Scan::last).max(newest);
        !self.is_superblock_known && self.survey.as_ref().is_some_and(|survey| survey.newest_commit > last)
    }

    /// Gives up the page tables, so that all pages are searched.
    pub(crate) fn distrust_tables(&mut self, entries: Vec<KeyspaceEntry>) {
        let reason = "pages of a later checkpoint were found, so it is outdated";
        self.damage.push(Error::corrupted(self.file.path(), "the newest catalogue that is left", reason));
        self.is_catalogue_known = false;
        let searched = |entry| DamagedKeyspace { entry, pages: Pages::Searched };
        self.keyspaces = entries.into_iter().map(searched).collect();
    }

    /// Returns `true` if pages have to be searched.
    pub(crate) fn has_searched_pages(&self) -> bool {
        !self.is_catalogue_known || self.keyspaces.iter().any(|keyspace| keyspace.pages.are_searched())
    }

    /// Searches the file, unless that has been done.
    fn survey(&mut self) -> Result<&Survey> {
        if self.survey.is_none() {
            self.survey = Some(Survey::make(&self.file, Some(self.database), Some(self.segment_bytes))?);
        }
        Ok(self.survey.as_ref().expect("made above"))
    }

    /// Returns the origins of clones as their page tables have them. O(data).
    pub(crate) fn found_clones(&mut self) -> Result<Clones> {
        Ok(self.survey()?.clones.clone())
    }

    /// Calls `each` for every sound extent in the newest use of its segment. O(data).
    pub(crate) fn search(&mut self, mut each: impl FnMut(ExtentRef, Header, &[u8]) -> Result<()>) -> Result<()> {
        self.survey()?;
        let survey = self.survey.as_ref().expect("made above");
        search_extents(&self.file, Some(self.database), |offset, header, bytes| {
            let segment_use = header.origin.segment_use;
            if !survey.is_current(offset, segment_use) {
                return Ok(());
            }
            let address = ExtentAddress::new(offset, header.stored_bytes as u64, segment_use);
            each(ExtentRef { address, segment_use }, header, bytes)
        })
    }

    /// Returns a reference to a page's extent, with the use of its segment if that is known. Returns `None` if the page
    /// is not on disk.
    pub(crate) fn extent_of(&self, entry: PageEntry) -> Option<ExtentRef> {
        match entry {
            PageEntry::OnDisk(address) => Some(self.space.segments.name(address)),
            _ => None,
        }
    }

    /// Returns the use of the segment of an extent that a bulk load in the log has written.
    pub(crate) fn segment_of(&self, address: ExtentAddress) -> crate::format::SegmentId {
        self.space.segments.segment_of(address)
    }

    /// Reads and verifies the log, up to the first missing record. `newest` is the newest commit in pages, in case that
    /// no superblock says which commits the checkpoint has. Returns `None` if there is no log.
    pub(crate) fn scan_log(&mut self, newest: Timestamp, settings: &Settings) -> Result<Option<Scan>> {
        let Some(folder) = self.log_folder.clone() else {
            if !self.superblock.log.is_empty() {
                let reason = "it is missing, though the database was not closed";
                self.damage.push(Error::corrupted(self.file.path(), "the log", reason));
            }
            return Ok(None);
        };
        let backend = settings.choose_backend(self.file.path())?;
        let known = match self.is_superblock_known {
            true => None,
            false => {
                let observed = observe(&folder, &self.log_options, READ_ONLY)?;
                let Some(covered) = observed.start(newest) else { return Ok(None) };
                self.has_log_gap = covered > newest;
                Some((observed, covered))
            }
        };
        let state = match &known {
            // A segment that names a newer checkpoint shows that a superblock was lost. Its records count all the same.
            None => SuperblockLogState { checkpoint: CheckpointNumber(u64::MAX), ..log_state(&self.superblock) },
            Some((observed, covered)) => SuperblockLogState {
                incarnations: &observed.incarnations,
                checkpoint: CheckpointNumber(u64::MAX),
                covered: *covered,
                ranges: &[],
                is_closed: false,
                covered_position: None,
            },
        };
        let damage = &mut self.damage;
        let scan =
            Scan::read(&backend, &folder, &self.log_options, READ_ONLY, &state, &mut |error| note(error, damage))?;
        Ok(Some(scan))
    }
}

/// Adds corruption to a list. Returns any other error, which ends the reading.
fn note(error: Error, damage: &mut Vec<Error>) -> Result<()> {
    match error {
        Error::Corrupted { .. } | Error::Io { .. } | Error::NewerFormat { .. } | Error::OlderFormat { .. } => {
            damage.push(error);
            Ok(())
        }
        other => Err(other),
    }
}

/// Replaces the catalogue of a superblock by a newer one, if a search has found one of which all parts are sound.
fn with_newer_catalogue(file: &FileRef, superblock: Superblock, survey: &Survey) -> Superblock {
    let place = |extent: ExtentRef| (extent.segment_use, extent.address.start());
    match newest_catalogue(file, survey) {
        Some(found) if place(found.last_part) > place(superblock.catalogue) && !survey.is_followed(found.last_part) => {
            Superblock {
                catalogue: found.last_part,
                catalogue_bytes: found.bytes,
                epoch: superblock.epoch.max(Epoch(1)),
                ..superblock
            }
        }
        _ => superblock,
    }
}

/// Returns a superblock in place of those that are lost. Its catalogue is the newest one that a search has found.
fn made_up_superblock(file: &FileRef, database: DatabaseId, survey: &Survey) -> Superblock {
    let found = newest_catalogue(file, survey);
    Superblock {
        sequence: SuperblockNumber::FIRST,
        database,
        segment_bytes: survey.segment_bytes,
        checkpoint: CheckpointNumber::NONE,
        timestamp: Timestamp(0),
        epoch: Epoch(u64::from(found.is_some())),
        catalogue_bytes: found.as_ref().map_or(0, |found| found.bytes),
        catalogue: found.map_or(ExtentRef::NONE, |found| found.last_part),
        incarnations: Vec::new(),
        log: Vec::new(),
        is_closed: false,
        checkpoint_id: CheckpointId::default(),
        features: Features::default(),
    }
}

/// Returns `true` if no segment in which the page tables have pages has been taken for something else since.
fn is_current(space: &Space, entries: &[KeyspaceEntry], survey: &Survey) -> bool {
    let is_current_page = |entry: PageEntry| match entry {
        PageEntry::OnDisk(address) => {
            let segment = space.segments.segment_of(address);
            let known = space.segments.segment_use(segment);
            let found = survey.uses.get(&u64::from(segment.0));
            known == SegmentUse::UNKNOWN || found.is_none_or(|found| *found <= known)
        }
        _ => true,
    };
    let ids: Vec<KeyspaceId> = entries.iter().map(|entry| entry.id).collect();
    let mut tables = ids.into_iter().filter_map(|id| space.page_space(id));
    tables.all(|pages| pages.table.iter().all(|(_, entry)| is_current_page(entry)))
}
