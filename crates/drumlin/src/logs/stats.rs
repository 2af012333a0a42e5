//! Statistics of a folder of logs.

use std::sync::atomic::Ordering;

use super::shared::{LogCell, Shared};

/// The number of logs that [`LogsStats::largest`] names.
const LARGEST_COUNT: usize = 10;

/// Sizes and counters of a folder of logs. See [`Logs::stats`](super::Logs::stats).
///
/// ```
/// use drumlin::logs::{Logs, LogsOptions};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-logs-stats-{}", std::process::id()));
/// # let logs = Logs::open(&folder, &LogsOptions::new())?;
/// logs.log(7).append(1, &["one"])?.wait()?;
/// let stats = logs.stats();
/// assert_eq!((stats.log_count, stats.entry_count, stats.largest[0].number), (1, 1, 7));
/// # logs.close()?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LogsStats {
    /// The number of logs.
    pub log_count: u64,
    /// The number of entries in all logs.
    pub entry_count: u64,
    /// Bytes of all entries, and 16 more for each. An estimate for entries whose places are not in memory.
    pub live_bytes: u64,
    /// Bytes of all segment files.
    pub file_bytes: u64,
    /// Bytes of memory that the indexes and values of all logs take.
    pub index_memory_bytes: u64,
    /// Bytes of memory that the newest entries take.
    pub cache_bytes: u64,
    /// Durable writes of records since the folder was opened. Each is one sync.
    pub sync_count: u64,
    /// Bytes written to the segment files since the folder was opened.
    pub written_bytes: u64,
    /// The I/O backend in use.
    pub io_backend: &'static str,
    /// The method that makes records durable.
    pub sync_method: &'static str,
    /// The logs that hold most bytes, largest first, ten at most.
    pub largest: Vec<LogSize>,
}

/// The size of a log, in [`LogsStats`].
///
/// ```
/// use drumlin::logs::{LogSize, Logs, LogsOptions};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-log-size-{}", std::process::id()));
/// # let logs = Logs::open(&folder, &LogsOptions::new())?;
/// logs.log(7).append(1, &["one"])?.wait()?;
/// let largest: LogSize = logs.stats().largest[0];
/// assert_eq!((largest.number, largest.entry_count, largest.live_bytes), (7, 1, 3 + 16));
/// # logs.close()?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LogSize {
    /// The number of the log.
    pub number: u64,
    /// The number of its entries.
    pub entry_count: u64,
    /// Bytes of its entries, and 16 more for each.
    pub live_bytes: u64,
}

impl LogSize {
    /// Returns the size of a log, or `None` if it does not exist.
    pub(super) fn of(number: u64, cell: &LogCell) -> Option<LogSize> {
        let state = cell.state.lock();
        let entry_count = state.bounds.next - state.bounds.first;
        state.bounds.exists.then_some(LogSize { number, entry_count, live_bytes: state.live_bytes })
    }
}

impl LogsStats {
    pub(super) fn of(shared: &Shared) -> LogsStats {
        let cells = shared.cells();
        let mut sizes: Vec<LogSize> = cells.iter().filter_map(|(number, cell)| LogSize::of(*number, cell)).collect();
        let (log_count, entry_count) = (sizes.len() as u64, sizes.iter().map(|size| size.entry_count).sum());
        sizes.sort_by_key(|size| std::cmp::Reverse(size.live_bytes));
        sizes.truncate(LARGEST_COUNT);
        LogsStats {
            log_count,
            entry_count,
            live_bytes: shared.live.lock().total(),
            file_bytes: shared.stream.file_bytes(),
            index_memory_bytes: shared.index_memory_bytes.load(Ordering::Relaxed),
            cache_bytes: shared.cache.lock().bytes(),
            sync_count: shared.stream.sync_count(),
            written_bytes: shared.stream.write_bytes(),
            io_backend: shared.backend.name(),
            sync_method: shared.sync.name(),
            largest: sizes,
        }
    }
}
