//! Direct, asynchronous file I/O that its caller drives.
//!
//! A [`Driver`] does the I/O of [`File`]s. Every call that takes time is an [`Operation`]: a future for tasks of any
//! executor, and a blocking call for threads. A program can read [many ranges](File::read_many) at once, read and write
//! [streams](ReadStream) in both [directions](WriteStream), and create files that are [written once](ImmutableFile).
//!
//! The layer below consists of [`Backend`]s. A program reaches files, threads, time and randomness only through its
//! backend, so a simulated backend can replace all of them. The backends are peers: they have the same abilities, and
//! pass the same tests. [`backend()`] returns the backend for the operating system's files, which uses io_uring if the
//! system allows it; [`in_memory`] returns one that uses no files of the system. A backend's [`Queue`] keeps many
//! requests in flight.
//!
//! [`Capabilities`] lists the abilities of the file system and the device under a folder, and [`Probe`] finds the sync
//! method that suits them best.
//!
//! # Invariants
//! 1. In every transfer on a direct file, the offset, the length and the buffer's address are multiples of
//!    [`BackendFile::alignment`].
//! 2. A buffer belongs to its request while the request is in flight: it is moved into the [`Queue`], and moved out
//!    with its [`Completion`]. So a buffer in flight is never changed or freed.
//! 3. A failed write or sync is reported once and never retried here. The caller decides what it means.
//!
//! # Features
//!
//! | feature | effect |
//! | --- | --- |
//! | `testing` | the module `testing`: a backend that injects faults, and a disk that loses unsynced changes |
//! | `sim` | a scheduler driven by a seed replaces the locks in [`sync`]; for simulations, never in a program |
#![deny(missing_docs)]

#[cfg(not(unix))]
compile_error!(
    "drumlin-io runs on Linux, and on other Unix systems by its portable backend. What it lacks elsewhere, Windows \
     included: positional reads and writes (pread, pwrite), syncs of folders, locks of files that end with their \
     process, anonymous memory mappings. See src/backend/disk.rs"
);

mod backend;
mod capabilities;
mod driver;
mod file;
mod immutable;
mod medium;
mod probe;
mod read;
mod share;
mod stream;
pub mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod workers;

#[cfg(test)]
mod tests;

pub use backend::{
    AlignedBuffer, BACKEND_VARIABLE, BLOCK_BYTES, Backend, BackendFile, Completion, FileRef, Folder, FolderRef,
    IoBackend, Lock, OpenIn, OpenOptions, Persist, Process, Queue, QueueOptions, RunningCommand, SyncMethod, backend,
    in_memory, open_folder,
};
pub use capabilities::Capabilities;
pub use driver::{Driver, DriverOptions, Operation};
pub use file::{File, ReadMany, ReadManyOptions};
pub use immutable::{ImmutableFile, ImmutableFileWriter};
pub use medium::BlockDevice;
pub use probe::{MethodFigures, Probe};
pub use read::ReadBuffer;
pub use share::{InFlight, Share, Urgent};
pub use stream::{ReadStream, StreamOptions, WriteStream};
pub use workers::Workers;

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
