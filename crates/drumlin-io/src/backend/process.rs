//! Identifies the process. A fork has copies of its parent's database handles, and shares the parent's files, rings and
//! locks. If the fork used these handles, it would change the database without its parent's knowledge.

#![expect(unsafe_code, reason = "only a C function reports forks")]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of forks between the process that first opened a database and this process. Reading it costs almost
/// nothing, whereas asking for the process id takes a system call.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Identifies the process in which this value was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(u64);

impl Process {
    /// Starts counting forks. Forks before the first call are not detected.
    ///
    /// # Errors
    /// `OutOfMemory` if the system has no memory for registering the handler of forks.
    pub fn watch() -> io::Result<()> {
        static WATCHED: OnceLock<i32> = OnceLock::new();
        match WATCHED.get_or_init(watch_forks) {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(*code)),
        }
    }

    /// Returns the calling process.
    #[inline]
    pub fn here() -> Process {
        Process(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns `true` if the caller runs in this process, not in a fork of it.
    #[inline]
    pub fn is_here(self) -> bool {
        self == Process::here()
    }
}

/// The process in which a database is open, until it is closed there. A single comparison checks both the process and
/// whether the database is still open.
#[derive(Debug)]
pub struct OpenIn(AtomicU64);

impl OpenIn {
    /// A fork count that no process reaches.
    const CLOSED: u64 = u64::MAX;

    /// Returns the mark of a database that is open in the calling process.
    pub fn here() -> OpenIn {
        OpenIn(AtomicU64::new(GENERATION.load(Ordering::Relaxed)))
    }

    /// Returns `true` if the database is still open and the caller runs in the process that opened it.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.0.load(Ordering::Relaxed) == GENERATION.load(Ordering::Relaxed)
    }

    /// Marks the database as closed: afterwards [`is_here`](Self::is_here) returns `false` in every process.
    #[inline]
    pub fn close(&self) {
        self.0.store(OpenIn::CLOSED, Ordering::Relaxed);
    }
}

impl Default for Process {
    fn default() -> Process {
        Process::here()
    }
}

/// Registers [`note_fork`] to be called in every fork. Returns the system's error code, or 0.
fn watch_forks() -> i32 {
    // SAFETY: the function lives as long as the process. It only increments an atomic number, which is allowed in a
    // handler that runs inside `fork`. The test `a_fork_touches_nothing` fails without this call.
    unsafe { libc::pthread_atfork(None, None, Some(note_fork)) }
}

extern "C" fn note_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
