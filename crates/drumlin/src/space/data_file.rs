//! The state of the data file, on which all modules of this folder operate.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use super::appender::{Appender, WriteBuffers};
use super::debt::CheckpointDebt;
use super::epoch::EpochLatch;
use super::kept::KeptSnapshots;
use super::page_space::PagesById;
use super::reservation_sums::Reservations;
use super::segments::Segments;
use super::superblocks::Superblocks;
use super::table_log::TableLog;
use super::write_queue::WriteJobs;
use crate::error::Stopped;
use crate::format::extent::Encoder;
use crate::format::{DatabaseId, Epoch, SegmentId, SegmentUse};
use crate::hash::HashSet;
use crate::io::{FileRef, Share};
use crate::memory::Budget;
use crate::sync::{Mutex, RwLock};

/// The maximum share of the requests in flight that background work may have while reads or commits are active: three
/// background requests for each foreground request. Cleaning, read-ahead, warm start, and the writes of checkpoints are
/// background work.
/// Measured: decision 044.
pub(crate) const BACKGROUND_SHARE: f64 = 0.75;

/// Counts the bytes and requests read and written so far.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
}

/// The reason why the database first stopped, if it has.
#[derive(Debug, Default)]
pub(super) struct Failure {
    pub(super) stopped: OnceLock<Stopped>,
    /// Set if the database was closed, possibly after a failure. Nothing will be read after that.
    pub(super) is_closed: AtomicBool,
}

/// The segment to which chunks of large values are written, and the position of the next chunk.
#[derive(Debug, Default)]
pub(super) struct ValueSegment {
    pub(super) open: Mutex<Option<(SegmentId, u64)>>,
}

/// The data file of a database. See the module documentation.
#[derive(Debug)]
pub(crate) struct Space {
    pub(super) path: PathBuf,
    pub(super) file: FileRef,
    pub(crate) segments: Segments,
    pub(crate) epoch_latch: EpochLatch,
    /// The appenders of the two epochs, indexed by the parity of the epoch.
    pub(super) appenders: [Mutex<Appender>; 2],
    pub(super) table_log: TableLog,
    /// Idle encoders.
    pub(super) encoders: Mutex<Vec<Encoder>>,
    pub(super) write_jobs: WriteJobs,
    pub(super) values: ValueSegment,
    /// The appender for extents that the reclaimer moves, and the epoch in which it moves them.
    pub(super) mover: Mutex<(Appender, Epoch)>,
    /// Set if bytes have been written to the file since the last sync began.
    pub(super) unsynced: AtomicBool,
    pub(super) syncing: Mutex<()>,
    pub(super) page_spaces: RwLock<HashSet<PagesById>>,
    pub(crate) kept: KeptSnapshots,
    /// The bytes of files that could not be delivered to the archive, for the errors of a full disk.
    pub(crate) archive_bytes: Arc<AtomicU64>,
    /// The catalogue's size in bytes: its entries for keyspaces, excluding the lists of their tables' chunks, and for
    /// kept snapshots; and its list of summaries.
    pub(super) keyspace_bytes: AtomicU64,
    pub(super) summary_list_bytes: AtomicU64,
    pub(super) failure: Failure,
    pub(crate) traffic: Traffic,
    pub(super) reservations: Reservations,
    /// Counts the whole database's requests in flight, so that background work yields to reads and commits.
    pub(crate) share: Arc<Share>,
    /// The memory that the database may use.
    pub(super) budget: Arc<Budget>,
    /// Records this opening before the first write. `None` if that is not needed.
    pub(super) superblocks: Option<Arc<Superblocks>>,
}

impl Space {
    pub(crate) fn new(
        path: &Path,
        file: FileRef,
        database: DatabaseId,
        segment_bytes: u64,
        segment_count: u32,
        epoch: Epoch,
        budget: Arc<Budget>,
    ) -> Space {
        let buffers = Arc::new(WriteBuffers::new(budget.write_buffer_bytes().min(segment_bytes as usize)));
        let appender = || Appender::new(Arc::clone(&buffers));
        Space {
            path: path.to_path_buf(),
            segments: Segments::new(
                Arc::clone(&file),
                database,
                segment_bytes,
                segment_count,
                SegmentUse::first_of(epoch.incarnation()),
            ),
            file,
            epoch_latch: EpochLatch::new(epoch),
            appenders: [Mutex::new(appender()), Mutex::new(appender())],
            table_log: TableLog::default(),
            encoders: Mutex::default(),
            write_jobs: WriteJobs::default(),
            values: ValueSegment::default(),
            mover: Mutex::new((appender(), Epoch(0))),
            unsynced: AtomicBool::new(false),
            syncing: Mutex::default(),
            page_spaces: RwLock::default(),
            kept: KeptSnapshots::default(),
            archive_bytes: Arc::default(),
            keyspace_bytes: AtomicU64::new(0),
            summary_list_bytes: AtomicU64::new(0),
            failure: Failure::default(),
            traffic: Traffic::default(),
            reservations: Reservations::new(),
            share: Arc::default(),
            budget,
            superblocks: None,
        }
    }

    /// Sets the superblocks of this data file. They record the opening when the first segment is taken.
    pub(crate) fn with_superblocks(self, superblocks: Arc<Superblocks>) -> Space {
        Space { superblocks: Some(superblocks), ..self }
    }

    /// Sets the counter of requests in flight, which limits background work.
    pub(crate) fn with_share(self, share: Arc<Share>) -> Space {
        Space { share, ..self }
    }

    /// Returns the counters of the bytes that the next checkpoint has to write from memory.
    pub(crate) fn debt(&self) -> Arc<CheckpointDebt> {
        Arc::clone(&self.reservations.debt)
    }

    pub(crate) fn file(&self) -> &FileRef {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
