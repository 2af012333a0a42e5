//! Reading backups: verifying them, and restoring a database from a full backup and the incremental ones after it.
//!
//! A restored database is built under a temporary name and gets its own name once it is complete, so an interrupted
//! restore leaves nothing that looks like a database. Its identity is new: the extents are copied with new addresses.

use std::path::Path;
use std::sync::Arc;

use super::backup_parts::{BODY_BYTES_MAX, PartSource};
use super::files::Opener;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::format::backup::{
    BackupId, BackupRecord, End, Head, PART_HEADER_BYTES, PartError, PartHeader, SnapshotRef, records,
};
use crate::format::catalogue::{Catalogue, KeptCatalogue, KeyspaceEntry};
use crate::format::extent::{self, Kind, TABLE_PAGES};
use crate::format::superblock::Superblock;
use crate::format::{CheckpointId, Checksum, Epoch, ExtentAddress, Incarnation, KeyspaceId, PageId, Timestamp};
use crate::hash::HashMap;
use crate::io::{Lock, Process, SyncMethod};
use crate::memory::Budget;
use crate::space::checkpoint::PageTableStore;
use crate::space::superblocks::Superblocks;
use crate::space::{PageTable, Space};
use crate::task::Helpers;

/// The contents of a backup that has been read to its end.
#[derive(Clone, Debug)]
pub(crate) struct BackupRead {
    pub(crate) head: Head,
    pub(crate) catalogue: KeptCatalogue,
    pub(crate) part_count: u32,
    pub(crate) page_count: u64,
    pub(crate) bytes: u64,
}

/// The reason why a record is not applied.
pub(crate) enum RecordError {
    /// The backup is not what it should be.
    Unusable(String),
    /// The database could not be written.
    Failed(Error),
}

impl From<String> for RecordError {
    fn from(reason: String) -> RecordError {
        RecordError::Unusable(reason)
    }
}

impl From<&str> for RecordError {
    fn from(reason: &str) -> RecordError {
        RecordError::Unusable(reason.to_owned())
    }
}

fn unusable(source: &dyn PartSource, reason: impl std::fmt::Display) -> Error {
    Error::UnusableBackup { backup: source.name(), reason: reason.to_string() }
}

/// Reads and verifies a backup. Calls `begin` with its head, and `each` with the records between the head and the end.
pub(crate) fn read_backup<S>(
    source: &mut dyn PartSource,
    state: &mut S,
    begin: impl FnOnce(&mut S, &Head, &KeptCatalogue) -> Result<()>,
    mut each: impl FnMut(&mut S, &BackupRecord<'_>) -> Result<(), RecordError>,
) -> Result<BackupRead> {
    let (header, body) = read_part(source, 0, None)?;
    let mut digest = Checksum::new();
    digest.update(&header.1.to_le_bytes());
    let malformed = |source: &dyn PartSource| unusable(source, PartError::Malformed);
    let head = head_of(source, &header.0, &body)?;
    let catalogue = KeptCatalogue::decode(&head.catalogue).ok_or_else(|| malformed(source))?;
    begin(state, &head, &catalogue)?;
    let bytes = (PART_HEADER_BYTES + body.len()) as u64;
    let mut read = BackupRead { head, catalogue, part_count: 1, page_count: 0, bytes };
    let backup = header.0.backup;
    loop {
        let number = read.part_count;
        let ((_, sum), body) = read_part(source, number, Some(backup))?;
        read.part_count += 1;
        read.bytes += (PART_HEADER_BYTES + body.len()) as u64;
        for record in records(&body) {
            match record.map_err(|error| unusable(source, format!("part {number}: {error}")))? {
                BackupRecord::Head(_) => return Err(malformed(source)),
                BackupRecord::End(End { part_count, extent_count, digest: expected }) => {
                    let is_whole = (part_count, extent_count, expected) == (number, read.page_count, digest.digest());
                    return if is_whole { Ok(read) } else { Err(malformed(source)) };
                }
                record => {
                    read.page_count += u64::from(matches!(record, BackupRecord::Extent { .. }));
                    each(state, &record).map_err(|error| match error {
                        RecordError::Unusable(reason) => unusable(source, format!("part {number}: {reason}")),
                        RecordError::Failed(error) => error,
                    })?;
                }
            }
        }
        digest.update(&sum.to_le_bytes());
    }
}

/// Reads the part with this number. Returns its header, its checksum and its body.
fn read_part(
    source: &mut dyn PartSource,
    number: u32,
    backup: Option<BackupId>,
) -> Result<((PartHeader, u64), Vec<u8>)> {
    let Some(bytes) = source.next_header(number)? else {
        let reason = if number == 0 { "it has no parts".to_owned() } else { format!("it ends before part {number}") };
        return Err(unusable(source, reason));
    };
    let of_part = |error: PartError| format!("part {number}: {error}");
    let header = PartHeader::decode(&bytes).map_err(|error| unusable(source, of_part(error)))?;
    if header.body_bytes > BODY_BYTES_MAX {
        return Err(unusable(source, of_part(PartError::Malformed)));
    }
    let body = source.body(header.body_bytes)?;
    if (body.len() as u64) < header.body_bytes {
        let (found, bytes) = (body.len(), header.body_bytes);
        let reason = format!("part {number} is cut short or damaged: {found} of {bytes} bytes follow its header");
        return Err(unusable(source, reason));
    }
    let sum = header.verify(&bytes, &body).map_err(|error| unusable(source, of_part(error)))?;
    if backup.is_some_and(|backup| header.backup != backup) {
        return Err(unusable(source, format!("part {number} belongs to another backup")));
    }
    if header.number != number {
        return Err(unusable(source, format!("part {number} is missing: part {} is in its place", header.number)));
    }
    Ok(((header, sum), body))
}

/// Verifies the extent of a record.
fn check_extent(keyspace: KeyspaceId, page: PageId, bytes: &[u8]) -> Result<extent::Header, String> {
    let header = extent::verify(bytes).map_err(|error| format!("page {page} of keyspace {keyspace}: {error}"))?;
    let is_value = header.kind == Kind::Value;
    // A large value of a prepared transaction names the keyspace that it will be put into.
    let is_of_keyspace = header.page_key.keyspace == keyspace || is_value && keyspace == KeyspaceId::PREPARED;
    let is_it = is_of_keyspace && (is_value || header.page_key.page == page);
    if !is_it || !matches!(header.kind, Kind::Leaf | Kind::Inner | Kind::Value) {
        return Err(format!("page {page} of keyspace {keyspace} has the extent of another page"));
    }
    Ok(header)
}

/// Reads every byte of a backup, and verifies it.
pub(crate) fn verify_backup(source: &mut dyn PartSource) -> Result<BackupRead> {
    read_backup(
        source,
        &mut (),
        |(), _, _| Ok(()),
        |(), record| match *record {
            BackupRecord::Extent { keyspace, page, extent } => Ok(check_extent(keyspace, page, extent).map(drop)?),
            _ => Ok(()),
        },
    )
}

/// Returns the head of a backup.
pub(crate) fn read_head(source: &mut dyn PartSource) -> Result<Head> {
    let (header, body) = read_part(source, 0, None)?;
    head_of(source, &header.0, &body)
}

/// Returns the head in the body of a backup's first part.
fn head_of(source: &dyn PartSource, header: &PartHeader, body: &[u8]) -> Result<Head> {
    let head = Head::decode(body).filter(|head| head.backup() == header.backup);
    head.ok_or_else(|| unusable(source, PartError::Malformed))
}

/// Restores a database at `path`, which must not exist or be an empty folder, from a full backup and the incremental
/// backups that follow it, in order. Returns what the last of them contains.
pub(crate) fn restore(settings: &Settings, path: &Path, sources: &mut [&mut dyn PartSource]) -> Result<BackupRead> {
    let read = begin(settings, path, sources)?;
    finish(settings, path)?;
    Ok(read)
}

/// Gives a restored database, which is complete, its name.
pub(crate) fn finish(settings: &Settings, path: &Path) -> Result<()> {
    let backend = settings.choose_backend(path)?;
    let path = backend.absolute(path).map_err(|error| Error::io("finding", path, error))?;
    Opener::enter(settings, backend, &path, Lock::Exclusive)?.finish_restoring()
}

/// Like [`restore`]. The data file keeps a temporary name, under which the database can be opened to apply commits,
/// until the caller [finishes](finish).
pub(crate) fn begin(settings: &Settings, path: &Path, sources: &mut [&mut dyn PartSource]) -> Result<BackupRead> {
    let backend = settings.choose_backend(path)?;
    let path = backend.absolute(path).map_err(|error| Error::io("finding", path, error))?;
    Process::watch().map_err(|error| Error::io("watching for forks of", &path, error))?;
    let opener = Opener::open_to_restore(settings, &backend, &path)?;
    let mut restored: Option<(Restoring, BackupRead)> = None;
    for source in sources {
        let applied = restored.as_ref().map(|(_, read)| (read.head.database, read.head.snapshot));
        let name = source.name();
        let mut state = restored.take().map(|(restoring, _)| restoring);
        let begin = |state: &mut Option<Restoring>, head: &Head, catalogue: &KeptCatalogue| {
            check_chain(&name, head, applied)?;
            if state.is_none() {
                *state = Some(Restoring::new(&opener, head.segment_bytes)?);
            }
            state.as_mut().expect("just made").begin(catalogue)
        };
        let read = read_backup(*source, &mut state, begin, |state, record| {
            state.as_mut().expect("begun with the head").apply(record)
        })?;
        let restoring = state.expect("begun with the head");
        if restoring.missing_count > 0 {
            let reason = format!("{} pages are neither in it nor in the backups before it", restoring.missing_count);
            return Err(Error::UnusableBackup { backup: name, reason });
        }
        restored = Some((restoring, read));
    }
    let (restoring, read) = restored.ok_or_else(|| Error::Invalid("no backup was given to restore".into()))?;
    restoring.finish(&read)?;
    Ok(read)
}

/// Fails if a backup does not follow the ones that have been applied.
fn check_chain(name: &str, head: &Head, applied: Option<(crate::format::DatabaseId, SnapshotRef)>) -> Result<()> {
    let reason = match (applied, head.base) {
        (None, None) => return Ok(()),
        (None, Some(base)) => format!(
            "it has only the changes since timestamp {}. Give the backups before it first, beginning with a full one",
            base.timestamp
        ),
        (Some(_), None) => "it is a full backup. Give only incremental ones after the first".to_owned(),
        (Some((database, _)), Some(_)) if database != head.database => {
            "it is of another database than the backup before it".to_owned()
        }
        (Some((_, last)), Some(base)) if last == base => return Ok(()),
        (Some((_, last)), Some(base)) => format!(
            "it has the changes since timestamp {}, and the backup before it ends at timestamp {}",
            base.timestamp, last.timestamp
        ),
    };
    Err(Error::UnusableBackup { backup: name.to_owned(), reason })
}

/// A database that is being restored.
struct Restoring {
    space: Arc<Space>,
    writers: Helpers,
    page_tables: PageTableStore,
    superblocks: Arc<Superblocks>,
    budget: Arc<Budget>,
    epoch: Epoch,
    /// The addresses of each keyspace's pages: 0 if the page is free, and [`MISSING`] until its extent has been read.
    tables: HashMap<KeyspaceId, Vec<u64>>,
    missing_count: u64,
}

/// The number of threads that write full buffers while the caller reads the next parts.
const WRITER_THREADS_MAX: usize = 2;

/// The entry of a page whose extent has not been read yet.
const MISSING: u64 = u64::MAX;

impl Restoring {
    fn new(opener: &Opener<'_>, segment_bytes: u64) -> Result<Restoring> {
        let (file, sync, superblock): (_, SyncMethod, Superblock) = opener.begin_restoring(segment_bytes)?;
        let budget = Arc::new(Budget::new(opener.settings.memory_bytes, opener.settings.log_stream_count));
        let space = Arc::new(opener.space(&file, &superblock, &budget, false)?);
        let superblocks = Arc::new(Superblocks::new(file, sync, superblock.clone()));
        let page_tables = PageTableStore::new(superblock, Arc::clone(&superblocks), usize::MAX);
        let epoch = space.epoch_latch.shared().epoch();
        Ok(Restoring {
            space,
            writers: Helpers::new(&opener.backend, WRITER_THREADS_MAX),
            page_tables,
            superblocks,
            budget,
            epoch,
            tables: HashMap::default(),
            missing_count: 0,
        })
    }

    /// Begins to apply a backup: forgets the keyspaces that it does not have.
    fn begin(&mut self, catalogue: &KeptCatalogue) -> Result<()> {
        let table_bytes: u64 =
            catalogue.keyspaces.iter().map(|keyspace| PageTable::memory_bytes_of(keyspace.page_end)).sum();
        if let Some(minimum_bytes) = self.budget.needed_for_opening(table_bytes) {
            return Err(Error::BudgetTooSmall { given_bytes: self.budget.total_bytes(), minimum_bytes });
        }
        let mut before = std::mem::take(&mut self.tables);
        for KeyspaceEntry { id, .. } in &catalogue.keyspaces {
            self.tables.insert(*id, before.remove(id).unwrap_or_default());
        }
        for entry in before.into_values().flatten() {
            self.release(entry);
        }
        Ok(())
    }

    fn release(&self, entry: u64) {
        assert!(entry != MISSING, "a page without an extent is replaced");
        if let Some(address) = ExtentAddress::from_bits(entry) {
            self.space.segments.release(address, self.epoch);
        }
    }

    /// Applies a record of a chunk or an extent.
    fn apply(&mut self, record: &BackupRecord<'_>) -> Result<(), RecordError> {
        match *record {
            BackupRecord::Chunk { keyspace, chunk, in_use } => {
                let first = chunk as usize * TABLE_PAGES;
                let table = self.tables.get_mut(&keyspace).ok_or("a chunk of a keyspace that it does not have")?;
                if table.len() < first + TABLE_PAGES {
                    table.resize(first + TABLE_PAGES, 0);
                }
                let mut freed = Vec::new();
                for (offset, entry) in table[first..first + TABLE_PAGES].iter_mut().enumerate() {
                    let is_in_use = in_use[offset / 8] & 1 << (offset % 8) != 0;
                    if is_in_use && *entry == 0 {
                        *entry = MISSING;
                        self.missing_count += 1;
                    } else if !is_in_use && *entry != 0 {
                        freed.push(std::mem::take(entry));
                    }
                }
                freed.into_iter().for_each(|entry| self.release(entry));
                Ok(())
            }
            BackupRecord::Extent { keyspace, page, extent } => {
                let header = check_extent(keyspace, page, extent)?;
                let table = self.tables.get_mut(&keyspace).ok_or("an extent of a keyspace that it does not have")?;
                let entry = table.get_mut(page.0 as usize).filter(|entry| **entry != 0 && page != PageId::NONE);
                let entry = entry.ok_or_else(|| format!("page {page} of keyspace {keyspace} is not in use"))?;
                let appended = self.space.append_encoded(self.epoch, &extent[..header.stored_bytes], None);
                let address = appended.map_err(RecordError::Failed)?;
                let before = std::mem::replace(entry, address.to_bits());
                if before == MISSING {
                    self.missing_count -= 1;
                } else {
                    self.release(before);
                }
                if self.space.has_waiting_writes() {
                    let space = Arc::clone(&self.space);
                    // If it fails, so does every later call of the space.
                    drop(self.writers.start(move || drop(space.run_jobs(|_| ()))));
                }
                // If most buffers are full, this thread writes too.
                self.space.wait_for_writes(|_| ()).map_err(RecordError::Failed)
            }
            BackupRecord::Head(_) | BackupRecord::End(_) => unreachable!("handled by the reader"),
        }
    }

    /// Writes the page tables, the catalogue and the superblock.
    fn finish(mut self, read: &BackupRead) -> Result<()> {
        let Restoring { space, page_tables, superblocks, tables, epoch, .. } = &mut self;
        let (space, epoch): (&Space, Epoch) = (space, *epoch);
        let BackupRead { head, catalogue, .. } = read;
        for keyspace in &catalogue.keyspaces {
            page_tables.write_restored(space, epoch, keyspace.id, &tables[&keyspace.id])?;
        }
        let restored = Catalogue {
            next_keyspace: catalogue.next_keyspace,
            next_value: catalogue.next_value,
            keyspaces: catalogue.keyspaces.clone(),
            ..Catalogue::default()
        };
        page_tables.write_segment_table(space, epoch)?;
        let catalogue_bytes = page_tables.write_catalogue(space, epoch, restored)?;
        space.seal(epoch);
        space.wait_for_jobs(|_| ())?;
        space.sync()?;
        let timestamp: Timestamp = head.snapshot.timestamp;
        page_tables.cover(epoch, timestamp, catalogue_bytes, CheckpointId::default());
        page_tables.raise_incarnation(space, Incarnation(1), timestamp.next())?;
        page_tables.settle(space, epoch);
        space.shrink(0)?;
        superblocks.close().map_err(|error| Error::io("writing", space.path(), error))
    }
}
