//! Verifies a database without opening it, even one that is too corrupted to open.
//!
//! An examination reads everything with the code that opens databases. That code reports each corruption, and the
//! examination skips the corrupted part and continues. Throughout, the examination holds the locks of the database,
//! through handles that cannot write.

use std::path::Path;
use std::sync::Arc;

use super::kept::verify_kept_snapshots;
use super::pages::Verifier;
use super::report::{CheckProgress, CheckReport};
use crate::error::{Error, Result};
use crate::format::extent::{Header, Kind, PageKey, TABLE_PAGES};
use crate::format::record::{self, AttachedRoot, Attachment, Operation};
use crate::format::superblock::Superblock;
use crate::format::{ExtentAddress, ExtentRef, KeyspaceId, PageId, SegmentUse, Timestamp};
use crate::io::{FolderRef, Lock, OpenOptions, Process, SyncMethod};
use crate::memory::Budget;
use crate::pool::Pool;
use crate::seglog::Scan;
use crate::space::checkpoint::PageTableStore;
use crate::space::extents::open_extent;
use crate::space::loading::{LoadedTables, read_image};
use crate::space::superblocks::{FoundSuperblock, Superblocks};
use crate::space::{ChunkImage, PageSpace};
use crate::store::Settings;
use crate::store::files::{DATA_NAME, Opener};
use crate::store::recovery::log_state;

/// The options for opening every file. An examination writes nothing.
const READ_ONLY: OpenOptions = OpenOptions { write: false, create: false, create_new: false, direct: true };

/// Verifies the database at `path` without opening it.
pub(crate) fn examine(
    settings: &Settings,
    path: &Path,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport> {
    let backend = settings.choose_backend(path)?;
    let path = backend.absolute(path).map_err(|error| Error::io("finding", path, error))?;
    Process::watch().map_err(|error| Error::io("watching for forks of", &path, error))?;
    Opener::enter(settings, backend, &path, Lock::Shared)?.examine(progress)
}

/// The purpose of an extent that the log refers to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExtentRole {
    /// A chunk of a large value.
    Value,
    /// A page of a bulk load: a node or a value.
    Page,
    /// A chunk of the page table of a bulk load.
    Table,
}

impl ExtentRole {
    fn what(self, timestamp: Timestamp) -> String {
        let what = match self {
            ExtentRole::Value => "a value",
            ExtentRole::Page => "a loaded page",
            ExtentRole::Table => "a page table",
        };
        format!("{what} that the log names in timestamp {timestamp}")
    }

    fn cost(self) -> &'static str {
        match self {
            ExtentRole::Value => "this value",
            ExtentRole::Page => "its rows",
            ExtentRole::Table => "the rows of its pages, and the database does not open",
        }
    }

    fn is_it(self, header: &Header, page_key: PageKey) -> bool {
        match self {
            ExtentRole::Value => {
                // The values of prepared transactions name the keyspaces that they will be put into.
                let names_other = page_key.keyspace == KeyspaceId::PREPARED && header.page_key.page == page_key.page;
                header.kind == Kind::Value && (header.page_key == page_key || names_other)
            }
            ExtentRole::Table => header.kind == Kind::Table && header.page_key == page_key,
            ExtentRole::Page => {
                let is_node = matches!(header.kind, Kind::Leaf | Kind::Inner) && header.page_key == page_key;
                // An extent of a value stores a chunk number in place of the page number.
                is_node || header.kind == Kind::Value && header.page_key.keyspace == page_key.keyspace
            }
        }
    }
}

/// An extent that the log refers to.
#[derive(Clone, Copy)]
struct NamedExtent {
    address: ExtentAddress,
    page_key: PageKey,
    role: ExtentRole,
    timestamp: Timestamp,
}

impl Opener<'_> {
    fn examine(&self, progress: &mut dyn FnMut(CheckProgress)) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        if !self.exists(DATA_NAME)? {
            return match self.check_creatable() {
                Err(error) => {
                    report_corruption(&mut report, error, "everything that a checkpoint holds").map(|()| report)
                }
                Ok(()) => {
                    let why = "it holds no data file".into();
                    Err(Error::NotADatabase { path: self.path().to_path_buf(), why })
                }
            };
        }
        let file = self.lock_data(DATA_NAME, READ_ONLY, Lock::Shared)?;
        let _locks = self.locks(Arc::clone(&file));
        let superblock = match self.read_superblocks(&file, false) {
            Ok(FoundSuperblock { newest, reason }) => {
                if let Some(reason) = reason {
                    report.report_corruption(
                        reason,
                        "nothing, as long as the other superblock is valid and the log that it needs exists",
                    );
                }
                newest
            }
            Err(error @ (Error::NewerFormat { .. } | Error::OlderFormat { .. } | Error::UnknownFeatures { .. })) => {
                return Err(error);
            }
            Err(error) => {
                report_corruption(
                    &mut report,
                    error,
                    "everything: without a superblock, no checkpoint and no log record can be found",
                )?;
                return Ok(report);
            }
        };
        (report.checkpoint, report.last) = (superblock.timestamp, superblock.timestamp);
        let memory_bytes = self.settings.memory_bytes;
        let budget = Arc::new(Budget::new(memory_bytes, self.settings.log_stream_count));
        let space = Arc::new(self.space(&file, &superblock, &budget, true)?);
        // An examination never writes a superblock, so any sync method will do.
        let superblocks = Superblocks::new(Arc::clone(&file), SyncMethod::DataSync, superblock.clone());
        let page_tables = PageTableStore::new(superblock, Arc::new(superblocks), budget.epoch_changes_max() as usize);
        let cost = "access to the pages that it refers to; the database does not open";
        let LoadedTables { page_tables, catalogue } =
            page_tables.load(&space, memory_bytes, &mut |error| report_corruption(&mut report, error, cost))?;

        let pool = self.pool(&space, &budget);
        let pages_total = space.page_spaces().iter().map(|pages| pages.table.page_count()).sum();
        let mut verifier = Verifier { pool: &pool, pages_total, is_closed: true, report, progress };
        for entry in &catalogue.keyspaces {
            if let Some(pages) = space.page_space(entry.id) {
                verify_keyspace(&mut verifier, &pages, &entry.name, page_tables.is_table_known())?;
            }
        }
        verify_kept_snapshots(&mut verifier)?;
        let mut report = verifier.report;
        let log = LogCheck { opener: self, pool: &pool, report: &mut report };
        log.verify(&page_tables.superblock, &budget)?;
        Ok(report)
    }
}

/// Reports corruption together with the data that it costs. Returns any other error, which ends the examination.
fn report_corruption(report: &mut CheckReport, error: Error, cost: &str) -> Result<()> {
    match error {
        Error::Corrupted { .. } | Error::Io { .. } | Error::NewerFormat { .. } | Error::OlderFormat { .. } => {
            report.report_corruption(error, cost);
            Ok(())
        }
        other => Err(other),
    }
}

/// Verifies the pages of a keyspace, and finds the keys of the corrupted pages.
fn verify_keyspace(verifier: &mut Verifier<'_>, pages: &PageSpace, name: &str, is_table_known: bool) -> Result<()> {
    let cost = format!("the rest of the pages of keyspace {name:?} were not checked");
    let verified = match verifier.verify_pages(pages, name, is_table_known) {
        Ok(verified) => verified,
        Err(error) => return report_corruption(&mut verifier.report, error, &cost),
    };
    if pages.id != KeyspaceId::PREPARED {
        verifier.report.rows += verified.leaf_rows;
    }
    if verified.unreported > 0 {
        let reason = format!(
            "{} of its pages are not where it says; they may be intact elsewhere, because a summary of page-table \
             changes is damaged",
            verified.unreported
        );
        let path = verifier.pool.space.path();
        let error = Error::corrupted(path, format!("the page table of keyspace {name:?}"), reason);
        verifier.report.report_corruption(error, "access to these pages");
    }
    verifier.find_lost_keys(pages, name).or_else(|error| report_corruption(&mut verifier.report, error, &cost))
}

/// Verifies a log that is not open.
struct LogCheck<'c> {
    opener: &'c Opener<'c>,
    pool: &'c Pool,
    report: &'c mut CheckReport,
}

impl LogCheck<'_> {
    fn verify(mut self, superblock: &Superblock, budget: &Budget) -> Result<()> {
        const COST: &str = "the commits after it that no checkpoint holds; the database does not open";
        let opener = self.opener;
        let folder = opener.has_log(superblock).and_then(|exists| match exists {
            true => opener.open_log_folder().map(Some),
            false => Ok(None),
        });
        let folder: FolderRef = match folder {
            Ok(Some(folder)) => folder,
            Ok(None) => return Ok(()),
            Err(error) => return report_corruption(self.report, error, COST),
        };
        let options = opener.log_options(superblock, budget, SyncMethod::DataSync);
        let mut on_corruption = |error| report_corruption(self.report, error, COST);
        let scan =
            Scan::read(&opener.backend, &folder, &options, READ_ONLY, &log_state(superblock), &mut on_corruption)?;
        self.report.log_records = scan.record_count();
        self.report.last = scan.last();
        let named = match self.read_records(&scan, &folder) {
            Ok(named) => named,
            Err(error) => return report_corruption(self.report, error, COST),
        };
        self.read_named(named)
    }

    /// Reads the log's records. Returns the extents that they refer to.
    fn read_records(&mut self, scan: &Scan, folder: &FolderRef) -> Result<Vec<NamedExtent>> {
        let mut named = Vec::new();
        for record in scan.records()? {
            let record = record?;
            for operation in record::decode(&record.body) {
                let Some((keyspace, operation)) = operation else {
                    let what = format!("log record of timestamp {}", record.timestamp);
                    let error = Error::corrupted(folder.path(), what, "it verifies but makes no sense");
                    self.report.report_corruption(error, "this commit, and those after it; the database does not open");
                    break;
                };
                match operation {
                    Operation::PutLarge { extents, .. } => {
                        for (index, extent) in (0..).zip(extents) {
                            let page_key = PageKey { keyspace, page: PageId(index) };
                            self.enter(extent, page_key, ExtentRole::Value, record.timestamp, &mut named);
                        }
                    }
                    Operation::Attach(attachment) => {
                        self.read_load(keyspace, &attachment, record.timestamp, &mut named);
                    }
                    _ => {}
                }
            }
        }
        Ok(named)
    }

    /// Marks an extent that the log refers to as used. Returns `false`, and reports corruption, if no extent of the log
    /// can have this address.
    fn enter(
        &mut self,
        extent: ExtentRef,
        page_key: PageKey,
        role: ExtentRole,
        timestamp: Timestamp,
        all: &mut Vec<NamedExtent>,
    ) -> bool {
        let is_restored = self.pool.space.segments.restore_named(extent);
        if is_restored {
            all.push(NamedExtent { address: extent.address, page_key, role, timestamp });
        } else {
            let reason = "its address is outside the file, or in a segment that is used for something else";
            let error = self.pool.space.corrupted(&role.what(timestamp), extent.address, reason);
            self.report.report_corruption(error, format!("{}; the database does not open", role.cost()));
        }
        is_restored
    }

    /// Marks the pages of a bulk load as used.
    fn read_load(
        &mut self,
        keyspace: KeyspaceId,
        attachment: &Attachment,
        timestamp: Timestamp,
        all: &mut Vec<NamedExtent>,
    ) {
        let key = |page: u32| PageKey { keyspace, page: PageId(page) };
        if let AttachedRoot::Tree(root) = attachment.root {
            self.enter(root, key(PageId::ROOT.0), ExtentRole::Page, timestamp, all);
        }
        for &(chunk, extent) in &attachment.images {
            if !self.enter(extent, key(chunk), ExtentRole::Table, timestamp, all) {
                continue;
            }
            let image = ChunkImage { keyspace, chunk: chunk as usize, address: extent.address };
            // If the image is corrupted, this will be reported once all extents are read.
            let addresses = read_image(&self.pool.space, image).unwrap_or_default();
            for (page, address) in (chunk.saturating_mul(TABLE_PAGES as u32)..).zip(addresses) {
                if address.is_none() {
                    continue;
                }
                let segment = self.pool.space.segments.segment_of(address);
                let segment_use = attachment.use_of(segment).unwrap_or(SegmentUse::UNKNOWN);
                self.enter(ExtentRef { address, segment_use }, key(page), ExtentRole::Page, timestamp, all);
            }
        }
    }

    fn read_named(&mut self, mut all: Vec<NamedExtent>) -> Result<()> {
        all.sort_unstable_by_key(|extent| extent.address);
        let addresses: Vec<ExtentAddress> = all.iter().map(|extent| extent.address).collect();
        let (report, space) = (&mut *self.report, &self.pool.space);
        let read = self.pool.read_past(&addresses, |index, bytes| {
            let NamedExtent { address, page_key, role, timestamp } = all[index];
            report.extent_bytes += address.length();
            let reason = match bytes.and_then(|bytes| open_extent(space, address, bytes)) {
                Ok((header, _)) if role.is_it(&header, page_key) => return,
                Ok(_) => "it belongs to another page".to_owned(),
                Err(Error::Corrupted { reason, .. }) => reason,
                Err(error) => error.to_string(),
            };
            report.report_corruption(space.corrupted(&role.what(timestamp), address, reason), role.cost());
        });
        read.or_else(|error| {
            report_corruption(report, error, "the rest of the extents that the log names were not checked")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::*;
    use crate::format::node::LargeRef;
    use crate::format::superblock::SLOT_OFFSETS;
    use crate::io::{Backend, Persist};
    use crate::space::PageEntry;
    use crate::space::extents::read_extent;
    use crate::store::check::pages::ONLY_IN_RUNS;
    use crate::store::files::LOG_NAME;
    use crate::tree::node::{LeafMut, RowValue};
    use crate::{Config, Durability};

    const FOLDER: &str = "/db";

    type Files = BTreeMap<PathBuf, Vec<u8>>;

    /// The memory for page table changes is large, so that checkpoints are made only on request.
    fn config(backend: &Arc<dyn Backend>) -> Config {
        Config::new()
            .memory(256 << 20)
            .page_bytes(512)
            .segment_bytes(256 << 10)
            .log_segment_bytes(1 << 20)
            .checkpoint_log_bytes(64 << 20)
            .backend(Arc::clone(backend))
    }

    fn log(file: &str) -> PathBuf {
        Path::new(FOLDER).join(LOG_NAME).join(file)
    }

    fn data() -> PathBuf {
        Path::new(FOLDER).join(DATA_NAME)
    }

    fn read_files(backend: &dyn Backend) -> Files {
        let mut files = Files::new();
        for folder in [PathBuf::from(FOLDER), log("")] {
            for path in backend.list(&folder).unwrap_or_default() {
                let Ok(file) = backend.open(&path, OpenOptions::default()) else { continue };
                let mut bytes = vec![0; file.len().unwrap() as usize];
                file.read_at(&mut bytes, 0).unwrap();
                files.insert(path, bytes);
            }
        }
        files
    }

    fn disk_of(files: &Files) -> Arc<dyn Backend> {
        let backend = crate::io::in_memory();
        for (path, bytes) in files {
            backend.create_dir_all(path.parent().unwrap()).unwrap();
            let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
            let file = backend.open(path, options).unwrap();
            file.write_at(bytes, 0, Persist::Later).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
        }
        backend
    }

    /// Returns the files of a database, once from before and once from after it was closed. The database has a base
    /// image, a summary, nodes and values of all kinds, and a log of several segments.
    fn sample() -> (Files, Files) {
        let backend = crate::io::in_memory();
        let db = config(&backend).open(FOLDER).unwrap();
        let keyspace = db.keyspace("rows").unwrap();
        let put = |number: u64, length: usize| {
            let value: Vec<u8> = (0..length as u64).map(|at| ((at * at * (number + 7)) >> 9) as u8).collect();
            keyspace.insert_with(number.to_be_bytes(), value, Durability::Relaxed).unwrap();
        };
        (0..20_000).for_each(|number| put(number, 150));
        put(1, 300_000);
        db.checkpoint().unwrap();
        put(2, 10);
        db.checkpoint().unwrap();
        (0..40).for_each(|number| put(number, 60_000));
        put(3, 300_000);
        // The record of the second commit says that everything up to the first commit was durable, so a lost earlier
        // record counts as corruption.
        keyspace.insert(b"end", b"").unwrap();
        keyspace.insert(b"end", b"").unwrap();
        let killed = read_files(&*backend);
        db.close().unwrap();
        (killed, read_files(&*backend))
    }

    /// Returns the addresses of structures in the data file, each with the name that findings use for it.
    fn addresses(files: &Files) -> Vec<(&'static str, ExtentAddress)> {
        let backend = disk_of(files);
        let config = config(&backend);
        let opener = Opener::enter(&config.settings, Arc::clone(&backend), Path::new(FOLDER), Lock::Shared).unwrap();
        let file = opener.lock_data(DATA_NAME, READ_ONLY, Lock::Shared).unwrap();
        let superblock = opener.read_superblocks(&file, false).unwrap().newest;
        let budget = Arc::new(Budget::new(config.settings.memory_bytes, 1));
        let space = opener.space(&file, &superblock, &budget, false).unwrap();
        let superblocks = Superblocks::new(Arc::clone(&file), SyncMethod::DataSync, superblock.clone());
        let page_tables = PageTableStore::new(superblock.clone(), Arc::new(superblocks), 1 << 20);
        let LoadedTables { page_tables, catalogue } =
            page_tables.load(&space, config.settings.memory_bytes, &mut Err).unwrap();
        let entry = &catalogue.keyspaces[0];
        let mut addresses = vec![
            ("an extent", superblock.catalogue.address),
            ("an extent", catalogue.segments[0].address),
            ("a summary of changes of the page tables", *catalogue.summaries.last().unwrap()),
            ("chunk 0 of the page table", *entry.chunks.iter().find(|address| !address.is_none()).unwrap()),
        ];
        let pages = space.page_space(entry.id).unwrap();
        for kind in [Kind::Leaf, Kind::Inner, Kind::Value] {
            let mut on_disk = pages.table.iter().filter_map(|(_, word)| match word {
                PageEntry::OnDisk(address) => Some(address),
                _ => None,
            });
            addresses
                .push(("page", on_disk.find(|address| read_extent(&space, *address).unwrap().0.kind == kind).unwrap()));
        }
        let folder = opener.open_log_folder().unwrap();
        let options = opener.log_options(&superblock, &budget, SyncMethod::DataSync);
        let scan =
            Scan::read(&backend, &folder, &options, READ_ONLY, &log_state(&page_tables.superblock), &mut Err).unwrap();
        for record in scan.records().unwrap() {
            for (_, operation) in record::decode(&record.unwrap().body).flatten() {
                if let Operation::PutLarge { extents, .. } = operation {
                    addresses.push(("a value that the log names", extents[0].address));
                }
            }
        }
        addresses
    }

    /// Examines the files and returns the report. Asserts that the files are unchanged, and that the examination finds
    /// corruption if opening does.
    fn examine(files: &Files) -> CheckReport {
        let backend = disk_of(files);
        let report = config(&backend).examine(FOLDER).unwrap();
        assert!(read_files(&*backend) == *files, "an examination changed a file");
        let opened = config(&backend).open(FOLDER);
        if matches!(opened, Err(Error::Corrupted { .. })) {
            assert!(!report.corruption.is_empty(), "nothing was found, but opening says {opened:?}");
        }
        report
    }

    fn assert_found(report: &CheckReport, file: &Path, what: &str) {
        let is_named =
            |damage: &super::super::report::Corruption| damage.file.starts_with(file) && damage.what.contains(what);
        assert!(report.corruption.iter().any(is_named), "{what} in {}: {report:#?}", file.display());
        assert!(report.corruption.iter().all(|damage| !damage.reason.is_empty() && !damage.cost.is_empty()));
    }

    /// An intact database has no findings, whether it was closed or killed, and the report counts everything in it.
    #[test]
    fn a_sound_database_has_no_findings() {
        let (killed, closed) = sample();
        for (files, is_closed) in [(&killed, false), (&closed, true)] {
            let report = examine(files);
            assert!(report.corruption.is_empty(), "{report:#?}");
            assert_eq!((report.keyspaces, report.unlisted), (1, 0));
            assert_eq!(report.last.0, report.checkpoint.0 + report.log_records);
            assert_eq!(report.log_records, if is_closed { 0 } else { 43 });
            assert_eq!(report.rows, if is_closed { 20_001 } else { 20_000 });
        }
        let without_log: Files = closed.into_iter().filter(|(path, _)| !path.starts_with(log(""))).collect();
        assert!(examine(&without_log).corruption.is_empty());
    }

    /// An examination finds and names corrupted extents of every kind in the data file, one at a time and all together.
    #[test]
    fn every_damaged_extent_is_found() {
        let (killed, _) = sample();
        let addresses = addresses(&killed);
        assert_eq!(addresses.len(), 8, "{addresses:?}");
        let mut all = killed.clone();
        for (what, address) in &addresses {
            let mut files = killed.clone();
            let at = address.start() as usize + 40;
            for files in [&mut files, &mut all] {
                files.get_mut(&data()).unwrap()[at] ^= 4;
            }
            let report = examine(&files);
            assert_found(&report, &data(), what);
            assert_found(&report, &data(), &format!("{address:?}"));
            assert_eq!(report.unlisted, 0);
            assert!(report.corruption.len() <= 2, "one damaged extent is no reason for more: {report:#?}");
        }
        assert_found(&examine(&all), &data(), "an extent");
    }

    /// If one superblock is corrupted, the examination reports it and still reads the pages. If both are corrupted, it
    /// reports them together.
    #[test]
    fn damaged_superblocks_are_found() {
        let (killed, _) = sample();
        let mut files = killed;
        for (slot, offset) in SLOT_OFFSETS.into_iter().enumerate() {
            files.get_mut(&data()).unwrap()[offset as usize + 70] ^= 1;
            let report = examine(&files);
            assert_found(&report, &data(), if slot == 0 { "superblock 0" } else { "both superblocks" });
            assert_eq!(report.rows > 0, slot == 0);
        }
    }

    /// An examination names a log segment that is missing, empty or corrupted, a missing log, and a missing or
    /// truncated data file. It still reads the remaining files.
    #[test]
    fn lost_files_are_found() {
        let (killed, _) = sample();
        let without = |path: &PathBuf| {
            let mut files = killed.clone();
            files.remove(path);
            files
        };
        let segments = killed.keys().filter(|path| path.starts_with(log("")));
        // A segment whose absence causes no finding is a spare.
        let needed: Vec<_> = segments.filter(|path| !examine(&without(path)).corruption.is_empty()).cloned().collect();
        assert!(needed.len() >= 3, "{needed:?}");
        for segment in &needed {
            let report = examine(&without(segment));
            assert_found(&report, &log(""), "the log, stream 0");
            assert_eq!(report.rows, 20_000);
        }
        let first = needed[0].clone();
        let mut files = killed.clone();
        files.insert(first.clone(), Vec::new());
        assert_found(&examine(&files), &log(""), "the log, stream 0");
        // Some segments are empty, ready for future records.
        let is_noticed = |segment: &&PathBuf| {
            let mut files = killed.clone();
            files.get_mut(*segment).unwrap()[500_000] ^= 1;
            let report = examine(&files);
            report.corruption.iter().any(|found| found.file == **segment && found.what.contains("log record"))
        };
        assert!(needed.iter().filter(is_noticed).count() >= 2);
        files.insert(first.clone(), killed[&first].clone());
        files.get_mut(&first).unwrap()[9] ^= 1;
        assert_found(&examine(&files), &first, "log segment header");
        files.retain(|path, _| !path.starts_with(log("")));
        assert_found(&examine(&files), &log(""), "the log");

        let mut files = killed.clone();
        let half = killed[&data()].len() / 2;
        files.get_mut(&data()).unwrap().truncate(half);
        examine(&files).corruption.first().expect("a file that was cut is damaged");
        files.get_mut(&data()).unwrap().clear();
        assert_found(&examine(&files), &data(), "both superblocks");
        files.remove(&data());
        assert_found(&examine(&files), &data(), "the data file");
    }

    /// A leaf of a closed database is damaged if it has a row as only runs have.
    #[test]
    fn removals_in_leaves_of_the_tree_are_found() {
        let backend = crate::io::in_memory();
        let db = config(&backend).open(FOLDER).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        keyspace.insert("a", "1").unwrap();
        {
            let tree = keyspace.tree();
            let Ok(mut write) = tree.write_leaf(b"b", &|_| false) else { panic!("the leaf is in memory") };
            let mut leaf = LeafMut::new(write.leaf_mut(&tree.pages.table));
            leaf.insert(1, b"b", RowValue::Large(LargeRef::REMOVED)).unwrap();
        }
        db.close().unwrap();
        let report = config(&backend).examine(FOLDER).unwrap();
        assert_eq!(report.corruption.len(), 1, "{report:#?}");
        assert!(report.corruption[0].reason.ends_with(ONLY_IN_RUNS), "{report:#?}");
    }

    /// An examination fails if the folder is missing or the database is open elsewhere. An examined database can be
    /// opened.
    #[test]
    fn nobody_else_has_it_open() {
        let backend = crate::io::in_memory();
        assert!(matches!(config(&backend).examine(FOLDER), Err(Error::NotFound { .. })));
        let db = config(&backend).open(FOLDER).unwrap();
        assert!(matches!(config(&backend).examine(FOLDER), Err(Error::Locked { .. })));
        db.close().unwrap();
        assert!(config(&backend).examine(FOLDER).unwrap().corruption.is_empty());
        config(&backend).open(FOLDER).unwrap();
    }
}
