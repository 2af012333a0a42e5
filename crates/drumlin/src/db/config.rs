//! How a database is opened.

use std::path::Path;

use super::Database;
use crate::error::{Error, Result};
use crate::format::LOG_STREAM_COUNT_MAX;
use crate::format::node::is_page_bytes;
use crate::io::IoBackend;

/// The least memory that a database can work in: 8 MiB. Simulations make do with less, to see it run short.
pub(crate) const MEMORY_BYTES_MIN: u64 = if cfg!(feature = "sim") { 4 << 20 } else { 8 << 20 };
/// Likewise of a log segment.
const LOG_SEGMENT_BYTES_MIN: u64 = if cfg!(feature = "sim") { 256 << 10 } else { 1 << 20 };
/// The most memory: each page size reserves address space for the whole budget, and numbers its frames with 29 bits.
const MEMORY_BYTES_MAX: u64 = 1 << 40;

/// How a database is opened. Few options; each has a default that was measured or that hardly matters.
///
/// ```
/// use drumlin::Config;
///
/// let db = Config::in_memory().memory(16 << 20).open("")?;
/// db.keyspace("orders")?.insert(b"k", b"v")?;
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) memory_bytes: u64,
    pub(crate) log_stream_count: u16,
    pub(crate) page_bytes: usize,
    pub(crate) segment_bytes: u64,
    pub(crate) log_segment_bytes: u64,
    pub(crate) checkpoint_log_bytes: u64,
    pub(crate) io_backend: IoBackend,
    pub(crate) in_memory: bool,
    pub(crate) create: bool,
    pub(crate) backend: Option<std::sync::Arc<dyn crate::io::Backend>>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            memory_bytes: 256 << 20,
            log_stream_count: 1,
            page_bytes: 4096,
            segment_bytes: 1 << 20,
            log_segment_bytes: 16 << 20,
            checkpoint_log_bytes: 256 << 20,
            io_backend: IoBackend::Auto,
            in_memory: false,
            create: true,
            backend: None,
        }
    }
}

impl Config {
    /// The defaults.
    #[must_use]
    pub fn new() -> Config {
        Config::default()
    }

    /// A database that is kept in memory alone and ends with its last handle; the path given to
    /// [`open`](Config::open) does not matter.
    #[must_use]
    pub fn in_memory() -> Config {
        Config { in_memory: true, ..Config::default() }
    }

    /// The memory budget in bytes, for everything that the database keeps: pages and their headers, page tables, log and
    /// I/O buffers, versions, locks, read and write sets. Default 256 MiB, at least 8 MiB, at most 1 TiB.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Config {
        self.memory_bytes = bytes;
        self
    }

    /// How many parallel logs there are; may differ from one opening to the next. Default 1, at most 64: more help only where one device queue
    /// can't take the write rate. Those beyond the first share a sixteenth of the memory, at least 32 KiB each; records too
    /// long for them go to the first.
    #[must_use]
    pub fn log_streams(mut self, count: u16) -> Config {
        self.log_stream_count = count;
        self
    }

    /// The page size of keyspaces that are created without one of their own: a power of two from 4 to 64 KiB (down to 512
    /// bytes in tests). Default 4 KiB: a random read brings in the least.
    #[must_use]
    pub fn page_bytes(mut self, bytes: usize) -> Config {
        self.page_bytes = bytes;
        self
    }

    /// The unit in which a new database takes space from its file: a power of two from 256 KiB to 64 MiB. Default 1 MiB.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u64) -> Config {
        self.segment_bytes = bytes;
        self
    }

    /// The size of a log segment file: a multiple of 4 KiB, at least 1 MiB. Default 16 MiB.
    #[must_use]
    pub fn log_segment_bytes(mut self, bytes: u64) -> Config {
        self.log_segment_bytes = bytes;
        self
    }

    /// How many bytes of log may come together before a checkpoint is made: what recovery has to read at the most.
    /// Default 256 MiB, a second or two of recovery.
    #[must_use]
    pub fn checkpoint_log_bytes(mut self, bytes: u64) -> Config {
        self.checkpoint_log_bytes = bytes;
        self
    }

    /// How files are read and written. Default: io_uring where the system allows it. The environment variable
    /// `DRUMLIN_IO_BACKEND` (`uring` or `portable`) wins over this.
    #[must_use]
    pub fn io_backend(mut self, kind: IoBackend) -> Config {
        self.io_backend = kind;
        self
    }

    /// Whether a database that is not there is created. Default yes.
    #[must_use]
    pub fn create(mut self, create: bool) -> Config {
        self.create = create;
        self
    }

    /// Files by a backend of one's own: how tests inject faults and count writes.
    #[must_use]
    #[doc(hidden)]
    pub fn backend(mut self, backend: std::sync::Arc<dyn crate::io::Backend>) -> Config {
        self.backend = Some(backend);
        self
    }

    /// Opens the database at `path`, a folder (`.` is the current one); creates it if it is missing, and recovers it if it was not closed.
    ///
    /// Takes as long as reading and applying the log does: about a second for each 100 MB.
    ///
    /// # Errors
    /// [`Error::NotADatabase`], [`Error::NewerFormat`], [`Error::Locked`], [`Error::Damaged`], [`Error::BudgetTooSmall`], [`Error::Io`];
    /// [`Error::Invalid`] for a setting or path that can't be.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Database> {
        self.check()?;
        if !self.in_memory && path.as_ref().as_os_str().is_empty() {
            let hint = "an empty path names no folder: give that of the database, `.` for the current one";
            return Err(Error::Invalid(hint.into()));
        }
        Database::open_with(self, path.as_ref())
    }

    fn check(&self) -> Result<()> {
        if self.memory_bytes > MEMORY_BYTES_MAX {
            let given = self.memory_bytes;
            return Err(Error::Invalid(format!(
                "a memory budget of {given} bytes: up to {MEMORY_BYTES_MAX} (1 TiB) works"
            )));
        }
        if self.memory_bytes < MEMORY_BYTES_MIN {
            return Err(Error::BudgetTooSmall { given_bytes: self.memory_bytes, minimum_bytes: MEMORY_BYTES_MIN });
        }
        check_page_bytes(self.page_bytes)?;
        if !self.segment_bytes.is_power_of_two() || !((256 << 10)..=(64 << 20)).contains(&self.segment_bytes) {
            return Err(Error::Invalid(format!(
                "segments of {} bytes: a power of two from 256 KiB to 64 MiB works",
                self.segment_bytes
            )));
        }
        if !self.log_segment_bytes.is_multiple_of(4096) || self.log_segment_bytes < LOG_SEGMENT_BYTES_MIN {
            return Err(Error::Invalid(format!(
                "log segments of {} bytes: a multiple of 4096, at least 1 MiB, works",
                self.log_segment_bytes
            )));
        }
        if !(1..=LOG_STREAM_COUNT_MAX).contains(&self.log_stream_count) {
            return Err(Error::Invalid(format!(
                "{} log streams: 1 to {LOG_STREAM_COUNT_MAX} work",
                self.log_stream_count
            )));
        }
        Ok(())
    }
}

pub(crate) fn check_page_bytes(page_bytes: usize) -> Result<()> {
    if !is_page_bytes(page_bytes) {
        return Err(Error::Invalid(format!("pages of {page_bytes} bytes: a power of two from 4 KiB to 64 KiB works")));
    }
    Ok(())
}
