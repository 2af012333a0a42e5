//! Statistics of an open database.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::state::Store;
use crate::format::{ExtentAddress, Timestamp};
use crate::memory::Account;
use crate::space::{PageEntry, PageSpace};
use crate::txn::keyspace::OpenKeyspace;

/// Statistics of an open database. Sizes are in bytes; counters start when the database is opened.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let stats = db.stats();
/// assert!(stats.memory_used_bytes <= stats.memory_budget_bytes);
/// println!("{} commits, {} pages read from the disk", stats.commits, stats.page_misses);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it, with their units")]
pub struct Stats {
    pub path: PathBuf,
    pub io_backend: &'static str,
    /// The method that makes commits durable. In a read-only database, the method that the last writing opening used.
    pub sync_method: &'static str,
    /// `true` if the data file bypasses the page cache.
    pub direct_io: bool,

    pub memory_budget_bytes: u64,
    /// Bytes of the budget in use: the sum of `memory`.
    pub memory_used_bytes: u64,
    /// The accounts of the budget. Their limits add up to the budget. Counts and reducer states have no fixed limit, so
    /// the limit shown for them is the memory that they use. The rest counts towards the limit of the pages account.
    pub memory: Vec<MemoryPart>,
    pub frame_bytes: u64,
    pub dirty_bytes: u64,
    pub table_bytes: u64,
    /// Bytes of old row versions in memory.
    pub version_bytes: u64,
    /// Bytes of old row versions on disk, in the file `versions`.
    pub version_disk_bytes: u64,
    /// Bytes on disk of changes that transactions have not committed yet and that do not fit in memory.
    pub transaction_disk_bytes: u64,
    pub log_buffer_bytes: u64,

    /// Leaves found in memory, by lookups, scans and commits.
    pub page_hits: u64,
    /// Pages read from the disk when they were needed, or prefetched shortly before.
    pub page_misses: u64,
    /// Pages that a warm start read because they were in memory when the database was last closed. They do not count as
    /// misses.
    pub pages_warmed: u64,
    /// `true` while the pages of a warm start are being read.
    pub is_warming: bool,
    pub device_reads: u64,
    pub device_read_bytes: u64,
    /// Writes to the data file. Writes to the log are counted by `log_syncs` and `log_write_bytes`.
    pub device_writes: u64,
    pub device_write_bytes: u64,

    pub commits: u64,
    /// Transactions that ended with [`Conflict`](crate::Error::Conflict) because of another transaction.
    pub conflicts: u64,
    /// Retries of the bodies of [`transact`](crate::Database::transact) and its variants.
    pub transact_retries: u64,
    /// Calls that found a row locked by another transaction.
    pub lock_waits: u64,
    /// The total time of the lock waits that have ended, over all threads and tasks.
    pub lock_wait_time: Duration,
    /// Calls that failed with [`LockTimeout`](crate::Error::LockTimeout).
    pub lock_timeouts: u64,
    /// Bytes of the log that recovery would have to read if the process were killed now.
    pub log_bytes: u64,
    /// Bytes of records appended to the log.
    pub log_bytes_written: u64,
    /// Bytes written to the log's files in whole blocks. This includes records with their padding, headers, and the
    /// zeros that preallocate a file.
    pub log_write_bytes: u64,
    pub log_syncs: u64,

    pub data_file_bytes: u64,
    /// Bytes of extents in use in the data file.
    pub live_bytes: u64,
    pub segment_bytes: u64,
    pub segments: u64,
    pub free_segments: u64,

    /// Bytes on disk of the [changes that are kept](crate::Config::keep_changes).
    pub changes_bytes: u64,
    /// The timestamp after which all changes are kept; `None` if none are.
    pub changes_from: Option<Timestamp>,
    /// The newest commit that readers of changes can see.
    pub changes_last: Option<Timestamp>,
    pub changes_readers: u64,
    /// The number of durable commits that the slowest reader of changes has not read yet.
    pub changes_lag: u64,
    /// The reason why no more changes are kept, if that has failed.
    pub changes_failure: Option<String>,

    /// The timestamp after which the [archive](crate::Config::archive) has all commits; `None` without an archive.
    pub archive_from: Option<Timestamp>,
    /// The newest commit that was delivered to the archive.
    pub archive_delivered: Option<Timestamp>,
    /// Bytes of the files that wait for their delivery to the archive.
    pub archive_waiting_bytes: u64,
    /// The reason for which the last delivery to the archive failed or, once the archive has ended, for which it ended.
    pub archive_failure: Option<String>,
    /// `true` if commits are no longer archived: the archive will have a gap.
    pub archive_has_ended: bool,

    pub checkpoints: u64,
    pub last_checkpoint: Timestamp,
    pub durable: Timestamp,
    pub visible: Timestamp,
    /// Open snapshots, transactions and scans, which prevent old versions from being freed.
    pub snapshots: u64,
    pub oldest_snapshot: Option<Timestamp>,
    pub oldest_snapshot_age: Option<Duration>,
    /// Snapshots, transactions and scans that were ended because their old versions outgrew their limits.
    pub snapshots_ended: u64,
    /// Snapshots that are kept on disk.
    pub kept_snapshots: u64,
    /// The bytes of the data file that no live page needs, and that can't be reused because of kept snapshots.
    pub kept_snapshot_bytes: u64,
    /// Keyspaces that were cloned from others. [`Database::clones`](crate::Database::clones) says what dropping each
    /// would free.
    pub clones: u64,
    /// The reason why the database accepts no more commits, if it has failed.
    pub failed: Option<String>,
}

/// One account of the memory budget.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// for part in db.stats().memory {
///     println!("{}: {} of {} bytes", part.name, part.used_bytes, part.limit_bytes);
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryPart {
    /// The purpose of this account.
    pub name: &'static str,
    /// Bytes in use.
    pub used_bytes: u64,
    /// The limit in bytes.
    pub limit_bytes: u64,
}

impl Store {
    /// Returns the bytes of the extents that a keyspace's page table refers to.
    pub(crate) fn disk_bytes(&self, open: &OpenKeyspace) -> u64 {
        let entries = open.tree.pages.table.iter();
        entries.filter_map(|(_, entry)| self.written_at(entry)).map(ExtentAddress::length).sum()
    }

    /// Returns the bytes of the extents that only this keyspace's page table refers to. A page that keyspaces share has
    /// the same number in each of them.
    pub(crate) fn exclusive_bytes(&self, open: &OpenKeyspace) -> u64 {
        let pages = &open.tree.pages;
        let mut relatives = self.engine.space.page_spaces();
        relatives.retain(|other| other.id != pages.id && !other.is_dropped() && pages.is_related(other));
        let is_shared = |page, address| {
            let is_there = |other: &Arc<PageSpace>| self.written_at(other.table.load(page)) == Some(address);
            relatives.iter().any(is_there)
        };
        let written = pages.table.iter().filter_map(|(page, entry)| Some((page, self.written_at(entry)?)));
        written.filter(|(page, address)| !is_shared(*page, *address)).map(|(_, address)| address.length()).sum()
    }

    /// Returns the address at which a page was last written, or `None` if it was never written.
    fn written_at(&self, entry: PageEntry) -> Option<ExtentAddress> {
        let address = match entry {
            PageEntry::OnDisk(address) | PageEntry::Reading(address) => address,
            PageEntry::Leaf(frame) | PageEntry::Immutable(frame) => self.engine.pool.frames.header(frame).address(),
            PageEntry::Free | PageEntry::Reserved | PageEntry::Unattached(_) => return None,
        };
        (!address.is_none()).then_some(address)
    }

    /// Returns the use of each account of the memory budget. `base_bytes` is the memory of the page tables' base
    /// images.
    fn memory_parts(&self, base_bytes: u64) -> Vec<MemoryPart> {
        let engine = &self.engine;
        let budget = &engine.budget;
        let part_of = |of: Account| {
            let used_bytes = match of {
                Account::Pages => {
                    let other_accounts = [Account::Tables, Account::Loads, Account::Spilled];
                    let bytes: u64 = other_accounts.into_iter().map(|account| budget.taken_bytes(account)).sum();
                    engine.pool.frames.used_bytes() as u64 + bytes
                }
                Account::Versions => engine.versions.memory_bytes(),
                Account::Transactions
                | Account::Commits
                | Account::Copies
                | Account::Sources
                | Account::Counts
                | Account::States => budget.taken_bytes(of),
                Account::TableChanges => engine.space.change_bytes() + base_bytes,
                Account::Reads => engine.pool.read_buffer_bytes(),
                // The memory of these accounts is allocated when the database is opened.
                Account::Log | Account::Writes | Account::Fixed => budget.limit_bytes(of),
                Account::Pinned | Account::Tables | Account::Loads | Account::Spilled => 0,
            };
            MemoryPart { name: of.name(), used_bytes, limit_bytes: budget.limit_bytes(of) }
        };
        // Counts and reducer states use memory of the pages account, so subtract their use from its limit.
        let within_pages = [Account::Counts, Account::States].map(part_of);
        let mut parts: Vec<MemoryPart> = Account::ALL.into_iter().map(part_of).collect();
        let others: u64 = within_pages.iter().map(|part| part.used_bytes).sum();
        parts[Account::Pages as usize].limit_bytes -= others;
        parts.extend(within_pages);
        parts
    }

    pub(crate) fn stats(&self) -> Stats {
        let engine = &self.engine;
        let space = &engine.space;
        let usage = space.segments.usage();
        let oldest = engine.snapshots.oldest();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // A running checkpoint holds this lock, and the figures are not final until it ends.
        let (last_checkpoint, base_bytes) = match self.page_tables.try_lock() {
            Some(page_tables) => (page_tables.superblock.timestamp, page_tables.memory_bytes()),
            None => (Timestamp(0), 0),
        };
        let budget = &engine.budget;
        let page_misses = load(&engine.pool.cache.misses);
        // Load the bytes of the headers before the total that includes them, because other threads may add frames in
        // between.
        let header_bytes = engine.pool.frames.header_bytes();
        let frame_bytes = engine.pool.frames.used_bytes().saturating_sub(header_bytes) as u64;
        let memory = self.memory_parts(base_bytes);
        let changes = self.feed.as_ref().map(|feed| feed.figures());
        let archive = self.archiver.as_ref().map(|archiver| archiver.figures());
        let slowest = changes.as_ref().and_then(|changes| changes.slowest);
        Stats {
            path: self.path.clone(),
            io_backend: engine.backend.name(),
            sync_method: self.sync.name(),
            direct_io: space.file().is_direct(),
            memory_budget_bytes: budget.total_bytes(),
            memory_used_bytes: memory.iter().map(|part| part.used_bytes).sum(),
            memory,
            frame_bytes,
            dirty_bytes: engine.pool.frames.dirty_bytes(),
            table_bytes: budget.taken_bytes(Account::Tables),
            version_bytes: engine.versions.memory_bytes(),
            version_disk_bytes: engine.spilled.disk_bytes(),
            transaction_disk_bytes: engine.write_spill.disk_bytes(),
            log_buffer_bytes: budget.limit_bytes(Account::Log),
            page_hits: engine.pool.frames.descent_count().saturating_sub(page_misses),
            page_misses,
            pages_warmed: load(&self.warm_start.page_count),
            is_warming: self.warm_start.is_reading(),
            device_reads: load(&space.traffic.reads),
            device_read_bytes: load(&space.traffic.read_bytes),
            device_writes: load(&space.traffic.writes),
            device_write_bytes: load(&space.traffic.write_bytes),
            commits: engine.commit_count(),
            conflicts: load(&self.contention.conflicts),
            transact_retries: load(&self.contention.retries),
            lock_waits: load(&self.contention.lock_waits),
            lock_wait_time: Duration::from_nanos(load(&self.contention.lock_wait_ns)),
            lock_timeouts: load(&self.contention.lock_timeouts),
            log_bytes: engine.log().live_bytes(),
            log_bytes_written: engine.log_bytes_written(),
            log_write_bytes: engine.log().write_bytes(),
            log_syncs: engine.log().sync_count(),
            data_file_bytes: space.file().len().unwrap_or(0),
            live_bytes: usage.live_bytes,
            segment_bytes: space.segments.segment_bytes(),
            segments: usage.segment_count,
            free_segments: usage.free_count,
            changes_bytes: changes.as_ref().map_or(0, |changes| changes.bytes),
            changes_from: changes.as_ref().map(|changes| changes.from),
            changes_last: changes.as_ref().map(|changes| changes.last),
            changes_readers: changes.as_ref().map_or(0, |changes| changes.reader_count),
            changes_lag: slowest.map_or(0, |slowest| engine.log().durable().0.saturating_sub(slowest.0)),
            changes_failure: changes.and_then(|changes| changes.failure).map(|reason| reason.to_string()),
            archive_from: archive.as_ref().map(|archive| archive.from),
            archive_delivered: archive.as_ref().map(|archive| archive.delivered),
            archive_waiting_bytes: archive.as_ref().map_or(0, |archive| archive.waiting_bytes),
            archive_has_ended: archive.as_ref().is_some_and(|archive| archive.has_ended),
            archive_failure: archive.and_then(|archive| archive.failure).map(|reason| reason.to_string()),
            checkpoints: load(&self.checkpoints),
            last_checkpoint,
            durable: engine.log().durable(),
            visible: engine.clock.visible(),
            snapshots: engine.snapshots.count(),
            oldest_snapshot: oldest.map(|(timestamp, _)| timestamp),
            oldest_snapshot_age: oldest.map(|(_, since)| self.now().saturating_sub(since)),
            snapshots_ended: engine.snapshots.ended_count(),
            kept_snapshots: space.kept.all().len() as u64,
            kept_snapshot_bytes: usage.pinned_bytes,
            clones: space.clone_names().len() as u64,
            failed: match space.failure() {
                Some(stopped) => Some(stopped.reason().to_owned()),
                None => engine.log().failure().map(|reason| reason.to_string()),
            },
        }
    }
}
