//! The settings of a folder of logs, and the sizes that follow from them.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::format::BLOCK_BYTES;
use crate::format::logs::CHUNK_BYTES;
use crate::io::{Backend, IoBackend};

/// The least memory of a folder of logs.
const MEMORY_BYTES_MIN: u64 = 2 << 20;
/// The memory of a folder of logs, unless the user sets it.
const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// The size of a segment, unless the user sets it: that of the engine's log.
const SEGMENT_BYTES_DEFAULT: u64 = 16 << 20;
/// The smallest segment.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// The number of bytes of a log that an opening is taken to read and verify in a second. An estimate.
const SECOND_REPLAY_BYTES: u64 = 400 << 20;
/// The sixteenths of the memory that the index may take before places are listed in the stream.
const UNLISTED_SIXTEENTH_COUNT: u64 = if cfg!(any(test, feature = "sim")) { 0 } else { 3 };
/// The longest entry that is kept in one record with others.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// The longest part of a larger entry.
const PART_BYTES_MAX: usize = 256 << 10;

/// The longest read of several entries. A drive does not transfer longer ones faster.
const READ_BYTES_MAX: u64 = 1 << 20;
/// The number of reads that all iterators of a folder together make ahead. A few reads in flight saturate a drive.
pub(super) const AHEAD_COUNT_MAX: usize = 4;

/// The largest entry.
pub(super) const ENTRY_BYTES_MAX: usize = 64 << 20;
/// The largest value.
pub(super) const VALUE_BYTES_MAX: usize = 64 << 10;

/// Settings for opening a folder of logs.
///
/// ```
/// use drumlin::logs::{Logs, LogsOptions};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-logs-options-{}", std::process::id()));
/// let options = LogsOptions::new().memory(16 << 20).segment_bytes(4 << 20);
/// let logs = Logs::open(&folder, &options)?;
/// # logs.close()?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LogsOptions {
    memory_bytes: u64,
    segment_bytes: u64,
    recovery_target: Duration,
    pub(super) create: bool,
    pub(super) read_only: bool,
    pub(super) io_backend: IoBackend,
    pub(super) backend: Option<Arc<dyn Backend>>,
}

impl Default for LogsOptions {
    fn default() -> LogsOptions {
        LogsOptions {
            memory_bytes: MEMORY_BYTES_DEFAULT,
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            recovery_target: Duration::from_secs(1),
            create: true,
            read_only: false,
            io_backend: IoBackend::default(),
            backend: None,
        }
    }
}

impl LogsOptions {
    /// Returns the defaults: 64 MiB of memory, segments of 16 MiB, and openings within a second after a kill.
    #[must_use]
    pub fn new() -> LogsOptions {
        LogsOptions::default()
    }

    /// Sets the memory budget in bytes: 64 MiB by default, at least 2 MiB. A quarter holds the newest
    /// entries. Three eighths hold the index, which takes about 400 bytes for each log, and 12 to 15 bytes for each
    /// entry. When half of that is in use, the places of the older entries are written to the segment files, and an
    /// entry takes less than one byte: 40 bytes for 128 entries of a log. Reading an older entry then takes two reads.
    /// An append that would still exceed the index's part fails with [`Error::MemoryInUse`].
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> LogsOptions {
        self.memory_bytes = bytes;
        self
    }

    /// Sets the size of a segment file: 16 MiB by default, at least 64 KiB, a multiple of 4 KiB. The folder has up to
    /// four more segments than its live entries need.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u64) -> LogsOptions {
        self.segment_bytes = bytes;
        self
    }

    /// Sets how long opening may take after a kill or a power cut: 1 second by default. The index is written down
    /// whenever reading the log above it would take longer, at 400 MiB a second.
    #[must_use]
    pub fn recovery_target(mut self, duration: Duration) -> LogsOptions {
        self.recovery_target = duration;
        self
    }

    /// Says whether a missing folder is created: it is by default. Otherwise, opening it fails with
    /// [`Error::NotFound`].
    #[must_use]
    pub fn create(mut self, create: bool) -> LogsOptions {
        self.create = create;
        self
    }

    /// Opens the folder for reading only: nothing in it is written, and changes fail with [`Error::ReadOnly`]. Several
    /// processes can read a folder at the same time, but not while one has it open for writing. A folder that was not
    /// closed is read as its next opening would find it. Default no.
    ///
    /// ```
    /// use drumlin::Error;
    /// use drumlin::logs::{Logs, LogsOptions};
    ///
    /// # let folder = std::env::temp_dir().join(format!("drumlin-doc-logs-read-only-{}", std::process::id()));
    /// let logs = Logs::open(&folder, &LogsOptions::new())?;
    /// logs.log(7).append(1, &["one"])?.wait()?;
    /// logs.close()?;
    ///
    /// let options = LogsOptions::new().read_only(true);
    /// let (logs, others) = (Logs::open(&folder, &options)?, Logs::open(&folder, &options)?);
    /// assert_eq!(logs.log(7).get(1)?, "one");
    /// assert!(matches!(logs.log(7).append(2, &["two"]), Err(Error::ReadOnly { .. })));
    /// # drop((logs, others));
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> LogsOptions {
        self.read_only = read_only;
        self
    }

    /// Chooses the backend for I/O, instead of the best one that works here.
    #[must_use]
    pub fn io_backend(mut self, kind: IoBackend) -> LogsOptions {
        self.io_backend = kind;
        self
    }

    /// Uses this backend, for tests on a simulated disk.
    #[doc(hidden)]
    #[must_use]
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> LogsOptions {
        self.backend = Some(backend);
        self
    }

    /// Returns the sizes that follow from the settings.
    pub(super) fn sizes(&self) -> Result<Sizes> {
        let (memory_bytes, segment_bytes) = (self.memory_bytes, self.segment_bytes);
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(Error::BudgetTooSmall { given_bytes: memory_bytes, minimum_bytes: MEMORY_BYTES_MIN });
        }
        if segment_bytes < SEGMENT_BYTES_MIN || !segment_bytes.is_multiple_of(4096) {
            return Err(Error::Invalid(format!(
                "segments of {segment_bytes} bytes are not allowed: use a multiple of 4096, at least {SEGMENT_BYTES_MIN}"
            )));
        }
        // Two buffers. A larger batch would not be written faster.
        let buffer_bytes = (memory_bytes / 8).min(8 << 20);
        let target_bytes = self.recovery_target.as_secs_f64() * SECOND_REPLAY_BYTES as f64;
        Ok(Sizes {
            segment_bytes,
            buffer_bytes: buffer_bytes as usize,
            reader_bytes: (memory_bytes / 32) as usize,
            cache_bytes: memory_bytes / 4,
            index_limit_bytes: memory_bytes / 8 * 3,
            index_listed_bytes: memory_bytes / 16 * UNLISTED_SIXTEENTH_COUNT,
            index_buffer_bytes: (memory_bytes / 32) as usize / CHUNK_BYTES * CHUNK_BYTES,
            inline_bytes_max: INLINE_BYTES_MAX.min(buffer_bytes as usize / 16),
            part_bytes_max: PART_BYTES_MAX.min(buffer_bytes as usize / 8),
            read_bytes_max: READ_BYTES_MAX.min(memory_bytes / 16 / AHEAD_COUNT_MAX as u64),
            replay_bytes_max: (target_bytes as u64).max(4 * segment_bytes),
        })
    }
}

/// The sizes of the parts of a folder of logs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) segment_bytes: u64,
    pub(super) buffer_bytes: usize,
    pub(super) reader_bytes: usize,
    pub(super) cache_bytes: u64,
    pub(super) index_limit_bytes: u64,
    /// Places of entries are listed in the stream when the index takes more memory.
    pub(super) index_listed_bytes: u64,
    pub(super) index_buffer_bytes: usize,
    /// Longer entries are stored in parts.
    pub(super) inline_bytes_max: usize,
    pub(super) part_bytes_max: usize,
    /// The bytes that one read of several entries fetches at most, unless its first entry is longer.
    pub(super) read_bytes_max: u64,
    /// The index is written down when this much was appended after it.
    pub(super) replay_bytes_max: u64,
}

impl Sizes {
    /// Returns the prepared space that is kept for moving entries: those of a window, and the headers of their records.
    pub(super) fn last_bytes(&self) -> u64 {
        (self.segment_bytes / 4 * 5).next_multiple_of(BLOCK_BYTES as u64)
    }

    /// Returns the prepared space that appends leave, to changes that free space or set values. If it is used up, the
    /// index takes these changes.
    pub(super) fn margin_bytes(&self) -> u64 {
        self.last_bytes() + (self.segment_bytes / 4).next_multiple_of(BLOCK_BYTES as u64)
    }

    /// Returns the bytes of the stream that emptying a window may lose: blocks that are written before they are full,
    /// at its end and when a buffer is written.
    pub(super) fn emptied_loss_bytes(&self) -> u64 {
        (2 + 2 * self.segment_bytes / self.buffer_bytes as u64) * BLOCK_BYTES as u64
    }
}
