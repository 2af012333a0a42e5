//! Recovery: turns the locked files of a database into an open store.
//!
//! # The steps
//! 1. `read_checkpoint` reads the newer valid superblock, and the catalogue and page tables that it refers to.
//! 2. `scan_log` reads and verifies the log. Each segment that the superblock lists must exist. Records that no durable
//!    horizon covers may exist in caches only, so they are rewritten with the same bytes.
//! 3. `build_engine` creates the pool, the versions, the engine and the keyspaces, as of the checkpoint. The first
//!    timestamp that the engine will assign is the one after the last in the log.
//! 4. `mark_log_extents` marks the extents that records refer to (large values, bulk loads) as used, if there are any.
//!    If one of the steps up to here finds corruption, every byte is left unchanged.
//! 5. `harden_superblock` syncs the folder and the data file, sets the file's length to its current value, and rewrites
//!    the superblock with the same bytes. Until then, all of these may exist in caches only.
//! 6. `raise_incarnation` durably writes the superblock with the next incarnation and the timestamp at which it begins.
//!    If the superblock has no room for another incarnation, this step first erases the void records of the log.
//! 7. `replay` frees the values that only snapshots were still reading, and applies the records after the checkpoint.
//!    Between barriers (create, drop, attach), it sorts operations by key and applies the newest operation on each key.
//!    If a large part of the log has to be replayed, several threads share it.
//! 8. `start_log` makes the log ready for new records, and takes the row locks of prepared transactions again. The
//!    background threads start after this step.
//!
//! # A closed database
//!
//! If the superblock says that the database was closed, step 2 reads only the headers of the log's segments, and steps
//! 5 and 6 wait for the first write ([`Superblocks::begin_writing`]). So opening, reading and closing write nothing. If
//! a segment of the log belongs to an opening that the superblock does not know, or if the other superblock is
//! corrupted, a newer superblock may have been lost, and all steps run as they do for any other database.
//!
//! # Salvage
//!
//! An opening that salvages the intact parts of a corrupted database ([`Config::salvage`](crate::Config::salvage)) is
//! read-only. Steps 1 and 2 record each corruption and continue without the corrupted part. The rows are those of the
//! checkpoint.
//!
//! A read-only opening fails if the database has anything to recover. Its log accepts no records.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::advice::AdviceFiles;
use super::files::{DataFile, LOG_NAME, Opener};
use super::kept_counts::restore_counts;
use super::keyspaces::Keyspaces;
use super::replay::Replay;
use super::requests::Maintenance;
use super::state::{Contention, Opening, Store};
use super::warm_state::WarmStart;
use crate::archive::{ArchiveSource, Archiver};
use crate::error::{Error, Result};
use crate::feed::{self, Feed, Names};
use crate::format::catalogue::{Catalogue, Orphan};
use crate::format::superblock::Superblock;
use crate::format::{Epoch, Incarnation, KeyspaceId, PageId, Timestamp, ValueId};
use crate::io::{FileRef, FolderRef, OpenOptions, Share, SyncMethod};
use crate::memory::{Account, Budget};
use crate::pool::{Nodes, Pool};
use crate::seglog::{Hooks, Log, LogOptions, Scan, SuperblockLogState};
use crate::space::checkpoint::PageTableStore;
use crate::space::loading::LoadedTables;
use crate::space::segments::Segments;
use crate::space::superblocks::{self, Superblocks};
use crate::space::{BACKGROUND_SHARE, ChunkImage, PageEntry, Space};
use crate::sync::Mutex;
use crate::txn::Reclaim;
use crate::txn::commit::ready::ReadyCommits;
use crate::txn::engine::{Engine, Replaying};
use crate::txn::prepared::PreparedTransactions;
use crate::txn::spilled::Spilled;
use crate::txn::spilled::writes::WriteSpill;
use crate::txn::values;
use crate::txn::versions::Versions;

impl Opener<'_> {
    /// Returns the data file as the superblock describes it, with all extents still free. If the file ends within a
    /// segment, `has_partial` says whether this segment belongs to it. If it does, nothing can be written.
    pub(super) fn space(
        &self,
        file: &FileRef,
        superblock: &Superblock,
        budget: &Arc<Budget>,
        has_partial: bool,
    ) -> Result<Space> {
        let data_path = &self.path().join(self.data_name());
        let length = file.len().map_err(|error| Error::io("measuring", data_path, error))?;
        let whole_count = length / superblock.segment_bytes;
        let is_partial = has_partial && !length.is_multiple_of(superblock.segment_bytes);
        let segment_count = u32::try_from(whole_count + u64::from(is_partial))
            .unwrap_or(u32::MAX)
            .min(Segments::count_max(superblock.segment_bytes));
        let share = Share::new(Arc::clone(&self.backend), BACKGROUND_SHARE);
        let space = Space::new(
            data_path,
            Arc::clone(file),
            superblock.database,
            superblock.segment_bytes,
            segment_count,
            Epoch::first_of(next_incarnation(superblock)),
            Arc::clone(budget),
        );
        Ok(space.with_share(Arc::new(share)))
    }

    pub(super) fn pool(&self, space: &Arc<Space>, budget: &Arc<Budget>) -> Arc<Pool> {
        let nodes = Nodes {
            verify: |page, kind| crate::tree::check_node(page, kind).map_err(|reason| reason.to_string()),
            key_order: crate::tree::key_order,
            row_count: crate::tree::row_count,
        };
        Arc::new(Pool::new(Arc::clone(space), Arc::clone(&self.backend), budget, nodes))
    }

    pub(super) fn log_options(&self, superblock: &Superblock, budget: &Budget, sync: SyncMethod) -> LogOptions {
        let streams = self.settings.log_stream_count;
        let reader_bytes = budget.log_reader_bytes(streams);
        LogOptions {
            streams,
            segment_bytes: self.log_segment_bytes(),
            buffer_bytes: (budget.limit_bytes(Account::Log) - reader_bytes) as usize,
            reader_bytes: reader_bytes as usize,
            margin_bytes: 0,
            last_bytes: 0,
            window_margin_bytes: 0,
            body_bytes: budget.transaction_bytes_max() as usize,
            sync,
            relaxed_delay: self.settings.relaxed_delay,
            database: superblock.database,
        }
    }

    /// Runs the recovery steps listed at the top of this file. Each step consumes the state that the previous one
    /// returned.
    pub(super) fn recover(&self, data: DataFile, began: Duration) -> Result<Store> {
        let checkpoint = self.read_checkpoint(data)?;
        let recovering = checkpoint.scan_log()?.build_engine()?;
        recovering.mark_log_extents()?.harden_superblock()?.raise_incarnation()?.replay()?.start_log(began)
    }

    /// Scans the log and makes it durable. In read-only mode, fails with `NotClosed` if there is anything to recover.
    fn scan(&self, folder: &FolderRef, options: &LogOptions, log_state: &SuperblockLogState<'_>) -> Result<Scan> {
        if !self.settings.read_only {
            return Scan::open(&self.backend, folder, options, log_state);
        }
        let access = OpenOptions { direct: true, ..OpenOptions::default() };
        let scan = Scan::read(&self.backend, folder, options, access, log_state, &mut Err)?;
        match scan.record_count() {
            0 => Ok(scan),
            commits => Err(Error::NotClosed { path: self.path().to_path_buf(), commits }),
        }
    }

    /// In salvage mode, records the corruption in `skipped`. Otherwise returns the error.
    fn skip(&self, error: Error, skipped: &mut Vec<Error>) -> Result<()> {
        match error {
            Error::Corrupted { .. } | Error::Io { .. } if self.settings.salvage => {
                skipped.push(error);
                Ok(())
            }
            other => Err(other),
        }
    }

    /// Scans the log only to report the commits in it. They are not applied, because that may need corrupted parts.
    fn skip_log(&self, options: &LogOptions, superblock: &Superblock, skipped: &mut Vec<Error>) -> Result<Scan> {
        let access = OpenOptions { direct: true, ..OpenOptions::default() };
        let folder = self.log_folder(superblock);
        let scan = folder.and_then(|folder| {
            let mut on_corruption = |error| self.skip(error, skipped);
            Scan::read(&self.backend, &folder, options, access, &log_state(superblock), &mut on_corruption)
        });
        match scan.map(|scan| scan.record_count()) {
            Ok(0) => {}
            Ok(commits) => skipped.push(Error::NotClosed { path: self.path().to_path_buf(), commits }),
            Err(error) => self.skip(error, skipped)?,
        }
        Ok(Scan::nothing(&self.backend, &self.folder, options, &log_state(superblock)))
    }

    fn read_checkpoint(&self, data: DataFile) -> Result<CheckpointRead<'_>> {
        let options = OpenOptions { write: !self.settings.read_only, direct: true, ..OpenOptions::default() };
        let name = self.data_name();
        let file = self.folder.open(name, options).map_err(|error| self.io("opening", name, error))?;
        let to_write = !self.settings.read_only;
        let superblocks::FoundSuperblock { newest: mut superblock, reason } = self.read_superblocks(&file, to_write)?;
        if to_write {
            superblock.features = superblock.features.when_written();
        }
        if let Some(reason) = &reason {
            log::warn!("{reason}. Continuing with the other superblock, which is valid");
        }
        let incarnation = next_incarnation(&superblock);
        let budget = Arc::new(Budget::new(self.settings.memory_bytes, self.settings.log_stream_count));
        let space = self.space(&file, &superblock, &budget, false)?;
        let superblocks = Arc::new(Superblocks::new(Arc::clone(&file), data.sync, superblock.clone()));
        let space = Arc::new(space.with_superblocks(Arc::clone(&superblocks)));
        let page_tables =
            PageTableStore::new(superblock, Arc::clone(&superblocks), budget.epoch_changes_max() as usize);
        let mut skipped = Vec::from_iter(reason);
        let loaded =
            page_tables.load(&space, self.settings.memory_bytes, &mut |error| self.skip(error, &mut skipped))?;
        if self.settings.salvage {
            match skipped.first() {
                // Without the catalogue, no keyspace has a name.
                Some(error) if loaded.catalogue.keyspaces.is_empty() => return Err(error.clone()),
                Some(_) => space.page_spaces().iter().for_each(|pages| pages.expect_lost_pages()),
                None => {}
            }
        }
        Ok(CheckpointRead { opener: self, data, file, skipped, incarnation, budget, space, superblocks, loaded })
    }
}

/// The first recovery state: the checkpoint has been read from the data file.
struct CheckpointRead<'o> {
    opener: &'o Opener<'o>,
    data: DataFile,
    file: FileRef,
    skipped: Vec<Error>,
    incarnation: Incarnation,
    budget: Arc<Budget>,
    space: Arc<Space>,
    superblocks: Arc<Superblocks>,
    loaded: LoadedTables,
}

impl<'o> CheckpointRead<'o> {
    fn scan_log(mut self) -> Result<LogScanned<'o>> {
        let opener = self.opener;
        let superblock = &self.loaded.page_tables.superblock;
        let options = opener.log_options(superblock, &self.budget, self.data.sync);
        if opener.settings.salvage {
            let scan = opener.skip_log(&options, superblock, &mut self.skipped)?;
            return Ok(LogScanned { folder: Arc::clone(&opener.folder), checkpoint: self, options, scan: Some(scan) });
        }
        let folder = opener.log_folder(superblock)?;
        let scan = match self.data.created {
            true => None,
            false => {
                let is_full = self.loaded.page_tables.is_incarnation_list_full();
                let is_closed = superblock.is_closed && self.skipped.is_empty() && !is_full;
                Some(opener.scan(&folder, &options, &SuperblockLogState { is_closed, ..log_state(superblock) })?)
            }
        };
        Ok(LogScanned { checkpoint: self, folder, options, scan })
    }
}

/// The log has been verified and is durable.
struct LogScanned<'o> {
    checkpoint: CheckpointRead<'o>,
    folder: FolderRef,
    options: LogOptions,
    /// `None` if the database has just been created.
    scan: Option<Scan>,
}

impl<'o> LogScanned<'o> {
    fn build_engine(self) -> Result<EngineBuilt<'o>> {
        let LogScanned { checkpoint, folder: log_folder, options: log_options, scan } = self;
        let CheckpointRead { opener, data, file, skipped, incarnation, budget, space, superblocks, loaded } =
            checkpoint;
        let LoadedTables { page_tables, catalogue } = loaded;
        let last = scan.as_ref().map_or(Timestamp(0), Scan::last);
        let pool = opener.pool(&space, &budget);
        pool.reserve_frames(opener.settings.page_bytes)?;
        let versions = Arc::new(Versions::new(&budget, space.debt()));
        // Extents of earlier openings may still be in the file. Their value ids are lower than this.
        let next_value = ValueId(u64::from(incarnation.0) << 40).max(catalogue.next_value);
        let maintenance = Arc::new(Maintenance::new(Arc::clone(&space.share)));
        let reclaim = Arc::clone(&maintenance) as Arc<dyn Reclaim>;
        let backend = Arc::clone(&opener.backend);
        let spilled = Spilled::new(Arc::clone(&opener.folder), &budget, opener.settings.spill_limit);
        let write_spill = WriteSpill::new(Arc::clone(&opener.folder), &budget, &pool);
        if !opener.settings.read_only
            && let Err(error) = spilled.remove_left().and_then(|()| write_spill.remove_left())
        {
            log::warn!("{}: could not remove spilled rows of an earlier opening: {error}", opener.path().display());
        }
        let engine =
            Engine::new(backend, space, pool, versions, last, next_value, budget, reclaim, spilled, write_spill);
        let engine = Arc::new(engine);
        let keyspaces = Keyspaces::new(catalogue.next_keyspace);
        for entry in &catalogue.keyspaces {
            let pages = engine.space.page_space(entry.id).expect("made while loading");
            keyspaces.add(&engine, pages, Timestamp(0));
        }
        if !opener.settings.salvage && !opener.settings.in_memory {
            let superblock = &page_tables.superblock;
            let files = AdviceFiles::new(false, Arc::clone(&opener.folder), superblock.database);
            restore_counts(&files, superblock, &keyspaces, last, &engine.budget);
        }
        Ok(EngineBuilt(Recovering {
            opener,
            data,
            file,
            skipped,
            incarnation,
            superblocks,
            page_tables,
            names: names_of(&catalogue),
            orphans: catalogue.orphans,
            loads: Vec::new(),
            engine,
            keyspaces,
            maintenance,
            log_folder,
            log_options,
            scan,
            last,
        }))
    }
}

/// A database at its checkpoint, and the log after it.
struct Recovering<'o> {
    opener: &'o Opener<'o>,
    data: DataFile,
    file: FileRef,
    skipped: Vec<Error>,
    incarnation: Incarnation,
    superblocks: Arc<Superblocks>,
    page_tables: PageTableStore,
    /// The names of keyspaces as of the checkpoint.
    names: Names,
    orphans: Vec<Orphan>,
    /// The chunks of page tables that the log attaches to keyspaces which the checkpoint does not have.
    loads: Vec<ChunkImage>,
    engine: Arc<Engine<Replaying>>,
    keyspaces: Keyspaces,
    maintenance: Arc<Maintenance>,
    log_folder: FolderRef,
    log_options: LogOptions,
    /// `None` if the database has just been created.
    scan: Option<Scan>,
    last: Timestamp,
}

/// The engine exists, as of the checkpoint.
struct EngineBuilt<'o>(Recovering<'o>);
/// Every extent that the log refers to has been marked as used.
struct ExtentsMarked<'o>(Recovering<'o>);
/// The superblock that was read is durable, or the first write of the opening will make it durable.
struct Hardened<'o>(Recovering<'o>);
/// This opening's incarnation is in the superblock, or will be before the first write.
struct IncarnationRaised<'o>(Recovering<'o>);
/// Every record of the log has been applied.
struct Replayed<'o>(Recovering<'o>);

impl Recovering<'_> {
    fn is_read_only(&self) -> bool {
        self.opener.settings.read_only
    }

    /// Returns `true` if the superblock will not record this opening until its first write.
    fn is_deferred(&self) -> bool {
        self.scan.as_ref().is_some_and(Scan::is_closed)
    }

    fn replay_of<'r>(&'r self, scan: &'r Scan) -> Replay<'r> {
        let log_path = self.opener.path().join(LOG_NAME);
        let (engine, keyspaces, page_tables) = (&self.engine, &self.keyspaces, &self.page_tables);
        Replay { engine, keyspaces, log_path, scan, page_tables, cloned: Mutex::default() }
    }

    /// Frees the values that no row referred to at the checkpoint: the snapshots that could read them ended with the
    /// previous opening.
    fn free_orphans(&self) -> Result<()> {
        for orphan in &self.orphans {
            let Some(pages) = self.engine.space.page_space(orphan.keyspace) else { continue };
            // Don't trust a catalogue, even if its checksum matches.
            let last = u64::from(orphan.first_page.0) + u64::from(orphan.page_count);
            let mut numbers = u64::from(orphan.first_page.0)..last;
            let is_on_disk = |page: u64| {
                u32::try_from(page).is_ok_and(|page| matches!(pages.table.load(PageId(page)), PageEntry::OnDisk(_)))
            };
            if !numbers.all(is_on_disk) {
                let reason = format!(
                    "it lists pages of keyspace {} as a large value, but they are not on disk",
                    orphan.keyspace
                );
                return Err(Error::corrupted(self.opener.path(), "the catalogue", reason));
            }
            let epoch_guard = self.engine.space.epoch_latch.shared();
            values::free(&self.engine.pool, &epoch_guard, &pages, orphan.first_page, orphan.page_count)?;
        }
        Ok(())
    }
}

impl<'o> EngineBuilt<'o> {
    fn mark_log_extents(self) -> Result<ExtentsMarked<'o>> {
        let EngineBuilt(mut recovering) = self;
        if let Some(scan) = &recovering.scan {
            recovering.loads = recovering.replay_of(scan).mark_extents()?;
        }
        Ok(ExtentsMarked(recovering))
    }
}

impl<'o> ExtentsMarked<'o> {
    fn harden_superblock(self) -> Result<Hardened<'o>> {
        let ExtentsMarked(recovering) = self;
        if recovering.is_read_only() || recovering.is_deferred() {
            return Ok(Hardened(recovering));
        }
        let data_path = &recovering.opener.path().join(recovering.opener.data_name());
        // If the folder's name were lost, everything synced in its log folder from now on would be lost with it.
        recovering.opener.sync_folder()?;
        // A killed process may have left writes, even its last superblock, only in the page cache. Sync before the next
        // superblock overwrites the older slot. After a failed sync, the cache may also show a file length that would
        // otherwise never be written to the device, so set the length explicitly.
        let length = recovering.file.len().map_err(|error| Error::io("measuring", data_path, error))?;
        recovering.file.set_len(length).map_err(|error| Error::io("setting the length of", data_path, error))?;
        recovering.file.sync_data().map_err(|error| Error::io("syncing", data_path, error))?;
        if recovering.scan.is_some() {
            recovering.superblocks.write_again().map_err(|error| Error::io("writing", data_path, error))?;
        }
        Ok(Hardened(recovering))
    }
}

impl<'o> Hardened<'o> {
    fn raise_incarnation(self) -> Result<IncarnationRaised<'o>> {
        let Hardened(mut recovering) = self;
        let first = recovering.last.next();
        if recovering.is_read_only() {
            return Ok(IncarnationRaised(recovering));
        }
        if recovering.is_deferred() {
            let folders = vec![Arc::clone(&recovering.opener.folder), Arc::clone(&recovering.log_folder)];
            recovering.page_tables.defer_incarnation(recovering.incarnation, first, folders);
            return Ok(IncarnationRaised(recovering));
        }
        let page_tables = &mut recovering.page_tables;
        if let Some(scan) = &recovering.scan
            && page_tables.is_incarnation_list_full()
        {
            scan.erase_void()?;
            page_tables.forget_incarnations();
        }
        page_tables.raise_incarnation(&recovering.engine.space, recovering.incarnation, first)?;
        Ok(IncarnationRaised(recovering))
    }
}

impl<'o> IncarnationRaised<'o> {
    fn replay(self) -> Result<Replayed<'o>> {
        let IncarnationRaised(mut recovering) = self;
        if let Some(scan) = &recovering.scan
            && !recovering.is_read_only()
        {
            recovering.free_orphans()?;
            let replay = recovering.replay_of(scan);
            replay.apply_records(&recovering.loads)?;
            let cloned = std::mem::take(&mut *replay.cloned.lock());
            for (keyspace, chunks) in cloned {
                recovering.page_tables.add_clone(keyspace, chunks);
            }
        }
        Ok(Replayed(recovering))
    }
}

impl Replayed<'_> {
    fn start_log(self, began: Duration) -> Result<Store> {
        let Replayed(recovering) = self;
        let Recovering { opener, data, page_tables, engine, scan, last, .. } = recovering;
        let database = page_tables.superblock.database;
        let retention = match opener.settings.read_only {
            true => None,
            false => feed::retention_of(opener.settings.retention, &opener.folder, database),
        };
        let feed = retention.map(|retention| {
            let since = (page_tables.superblock.timestamp, recovering.names);
            Arc::new(Feed::new(&opener.backend, &opener.folder, database, retention, &engine.budget, since, last))
        });
        let archiver = match opener.settings.read_only {
            true => None,
            false => Archiver::new(
                opener.settings.archive.as_ref(),
                &ArchiveSource {
                    backend: &opener.backend,
                    parent: &opener.folder,
                    database,
                    pool: &engine.pool,
                    budget: &engine.budget,
                    covered: page_tables.superblock.timestamp,
                    recovered: last,
                    held_bytes: &engine.space.archive_bytes,
                },
            ),
        };
        let archiver = archiver.map(Arc::new);
        let hooks = hooks(&engine, recovering.superblocks, feed.clone(), archiver.clone());
        let mut engine = Arc::into_inner(engine).expect("the threads that replayed the log have ended");
        engine.keeps_old_values = retention.is_some_and(|retention| retention.old_values);
        let (recovered_records, recovered_bytes) =
            scan.as_ref().map_or((0, 0), |scan| (scan.record_count(), scan.record_bytes()));
        let log = match scan {
            Some(scan) if opener.settings.read_only => {
                assert!(scan.record_count() == 0, "a log with records to apply is only read");
                scan.start_read_only(recovering.incarnation)
            }
            Some(scan) => scan.start(recovering.incarnation, page_tables.superblock.checkpoint, hooks)?,
            None => {
                let (folder, options) = (&recovering.log_folder, &recovering.log_options);
                Log::create(&opener.backend, folder, options, recovering.incarnation, hooks)?
            }
        };
        let has_files = !opener.settings.read_only && !opener.settings.in_memory;
        let database = page_tables.superblock.database;
        let advice_files = |is_on| AdviceFiles::new(is_on, Arc::clone(&opener.folder), database);
        let warm_start = WarmStart::new(advice_files(has_files && opener.settings.warm_start));
        let counts_files = advice_files(has_files);
        let duration = opener.backend.now() - began;
        if recovered_records > 0 {
            let path = opener.path().display();
            log::info!(
                "{path}: recovered {recovered_records} records, {recovered_bytes} bytes of log, in {duration:?}"
            );
        }
        let mut store = Store {
            path: opener.path().to_path_buf(),
            engine: Arc::new(engine.into_live(log, recovered_bytes)),
            keyspaces: recovering.keyspaces,
            prepared: PreparedTransactions::default(),
            ready: ReadyCommits::default(),
            defining: Mutex::default(),
            unneeded: Mutex::default(),
            page_tables: Mutex::new(page_tables),
            maintenance: recovering.maintenance,
            feed,
            archiver,
            warm_start,
            counts_files,
            threads: Mutex::default(),
            opening: Opening {
                created: data.created,
                recovered_records,
                recovered_bytes,
                duration,
                last,
                skipped: recovering.skipped,
            },
            locks: Mutex::new(Some(opener.locks(data.lock))),
            sync: data.sync,
            page_bytes: opener.settings.page_bytes,
            durability: opener.settings.durability,
            checkpoint_log_bytes: opener.settings.checkpoint_log_bytes,
            is_read_only: opener.settings.read_only,
            is_salvage: opener.settings.salvage,
            checkpoints: AtomicU64::new(0),
            contention: Contention::default(),
            on_lock_wait: opener.settings.on_lock_wait.clone(),
            closed: Mutex::default(),
        };
        let mut skipped = Vec::new();
        store.lock_prepared(&mut |error| opener.skip(error, &mut skipped))?;
        store.opening.skipped.append(&mut skipped);
        Ok(store)
    }
}

/// Returns the functions through which the log calls the components above it.
fn hooks(
    engine: &Engine<Replaying>,
    superblocks: Arc<Superblocks>,
    feed: Option<Arc<Feed>>,
    archiver: Option<Arc<Archiver>>,
) -> Hooks {
    let (space, clock) = (Arc::clone(&engine.space), Arc::clone(&engine.clock));
    let (recorded, closed) = (Arc::clone(&superblocks), Arc::clone(&superblocks));
    Hooks {
        before_window: Box::new(move || recorded.begin_writing()),
        before_write: Box::new(move || space.sync().map_err(|error| std::io::Error::other(error.to_string()))),
        on_durable: Box::new(move |durable| {
            clock.show_durable(durable);
            if let Some(feed) = &feed {
                feed.announce(durable);
            }
            if let Some(archiver) = &archiver {
                archiver.announce(durable);
            }
        }),
        on_failed: Box::new(|_| {}),
        list: Box::new(move |ranges| superblocks.write(|next| next.log = ranges.to_vec())),
        on_closed: Box::new(move || closed.close()),
        share: Arc::clone(&engine.space.share),
    }
}

/// Returns the names of the keyspaces in a catalogue.
fn names_of(catalogue: &Catalogue) -> Names {
    let mut names = Names::default();
    for entry in catalogue.keyspaces.iter().filter(|entry| entry.id != KeyspaceId::PREPARED) {
        names.add(entry.id, entry.page_bytes, &entry.name);
    }
    names
}

/// Returns the incarnation that follows the ones recorded in this superblock.
fn next_incarnation(superblock: &Superblock) -> Incarnation {
    Incarnation(superblock.incarnations.last().map_or(1, |(incarnation, _)| incarnation.0 + 1))
}

/// Returns the part of the superblock that describes the log. `is_closed` is `false`, so that the whole log is read.
pub(super) fn log_state(superblock: &Superblock) -> SuperblockLogState<'_> {
    SuperblockLogState {
        incarnations: &superblock.incarnations,
        checkpoint: superblock.checkpoint,
        covered: superblock.timestamp,
        ranges: &superblock.log,
        is_closed: false,
        covered_position: None,
    }
}
