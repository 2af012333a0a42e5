//! Mapped files, the subject of the sources' claims. No other module of this crate maps memory.
//!
//! The lab created every mapped file in its own folder (see `temp_folder`). Within a process, a file is either mapped
//! for reading, or mapped for writing by a single owner, so slices of a mapping are sound. Types can't rule out one
//! danger, which the lab demonstrates: if a file is truncated while mapped, an access beyond its end kills the process
//! with SIGBUS.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags};
use serde::{Deserialize, Serialize};

/// Advice to the kernel about future accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Advice {
    Normal,
    Random,
    Sequential,
}

impl Advice {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Advice::Normal => "NORMAL",
            Advice::Random => "RANDOM",
            Advice::Sequential => "SEQUENTIAL",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// Shared. Changes reach the file whenever the kernel chooses.
    Shared,
    /// Shared. The mapping call itself brings in all pages.
    SharedPopulated,
    /// Private. Changes remain in anonymous memory of this process.
    Private,
    /// Shared and read-only. A store kills the process with SIGSEGV.
    ReadOnly,
    /// Shared, on persistent memory only. A store that has left the processor's cache is durable (`MAP_SYNC`).
    Persistent,
}

/// Returns the length of a file or block device. The metadata of a block device does not contain its length.
pub(crate) fn length(mut file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(metadata.len()) } else { file.seek(SeekFrom::End(0)) }
}

/// A mapping of a file's first bytes, readable and writable.
#[derive(Debug)]
pub(crate) struct Map {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: only this value owns the mapping, as a `Box<[u8]>` owns its memory.
unsafe impl Send for Map {}
// SAFETY: shared access only reads.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `bytes` of `file`, which must be at least that long and opened for writing.
    pub(crate) fn new(file: &File, bytes: usize, mode: Mode) -> io::Result<Map> {
        if bytes == 0 || length(file)? < bytes as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is shorter than the requested mapping"));
        }
        let flags = match mode {
            Mode::Shared | Mode::ReadOnly => MapFlags::SHARED,
            Mode::SharedPopulated => MapFlags::SHARED | MapFlags::POPULATE,
            Mode::Private => MapFlags::PRIVATE,
            Mode::Persistent => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        };
        let access = if mode == Mode::ReadOnly { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, flags, file, 0)? };
        Ok(Map { start: NonNull::new(start.cast()).expect("no mapping begins at address zero"), bytes })
    }

    /// Tells the kernel how the mapping will be used.
    pub(crate) fn advise(&self, advice: Advice) -> io::Result<()> {
        self.madvise(match advice {
            Advice::Normal => rustix::mm::Advice::Normal,
            Advice::Random => rustix::mm::Advice::Random,
            Advice::Sequential => rustix::mm::Advice::Sequential,
        })
    }

    fn madvise(&self, advice: rustix::mm::Advice) -> io::Result<()> {
        // SAFETY: the range is this mapping, and the advice given here changes no content.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice)? };
        Ok(())
    }

    /// Locks all pages in memory.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping.
        unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.bytes)? };
        Ok(())
    }

    /// Returns a word of a shared mapping, which threads and processes may change concurrently. While they do, do not
    /// use slices that contain the word.
    pub(crate) fn word(&self, place: usize) -> &AtomicU64 {
        assert!(place.is_multiple_of(8) && place + 8 <= self.bytes, "no word at {place}");
        // SAFETY: the word is aligned and within the mapping, which lives as long as the reference.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(place).cast()) }
    }

    /// Returns the mapping's address, for finding it in the process's list of mappings.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }
}

impl Deref for Map {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped until `drop`. The file is the lab's own, and no thread writes to it while this
        // reference lives. If the file is truncated, the access kills the process instead of returning.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Map {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; `&mut self` makes this the only access in the process.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range, and no borrow of it is left.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "{result:?}");
    }
}

/// Locked anonymous memory. It reduces the memory that the rest of the machine can use.
#[derive(Debug)]
pub(crate) struct Ballast {
    start: NonNull<u8>,
    bytes: usize,
}

impl Ballast {
    /// Allocates, touches and locks this many bytes.
    pub(crate) fn new(bytes: usize) -> io::Result<Ballast> {
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let ballast = Ballast { start: NonNull::new(start.cast()).expect("no mapping begins at address zero"), bytes };
        // SAFETY: the range is the new mapping. Huge pages are faster to allocate; nothing depends on them.
        let _ = unsafe { rustix::mm::madvise(start, bytes, rustix::mm::Advice::LinuxHugepage) };
        // SAFETY: the range is the new mapping.
        unsafe { rustix::mm::mlock(start, bytes)? };
        Ok(ballast)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range, and nothing refers to it.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "{result:?}");
    }
}

/// A kind of writable memory that a program may request from the kernel without touching it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reserve {
    SharedFile,
    PrivateFile,
    PrivateFileUnreserved,
    Anonymous,
    AnonymousUnreserved,
}

impl Reserve {
    pub(crate) const ALL: [Reserve; 5] = [
        Reserve::SharedFile,
        Reserve::PrivateFile,
        Reserve::PrivateFileUnreserved,
        Reserve::Anonymous,
        Reserve::AnonymousUnreserved,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Reserve::SharedFile => "a file, MAP_SHARED",
            Reserve::PrivateFile => "a file, MAP_PRIVATE",
            Reserve::PrivateFileUnreserved => "a file, MAP_PRIVATE and MAP_NORESERVE",
            Reserve::Anonymous => "anonymous memory",
            Reserve::AnonymousUnreserved => "anonymous memory, MAP_NORESERVE",
        }
    }

    pub(crate) fn is_of_file(self) -> bool {
        !matches!(self, Reserve::Anonymous | Reserve::AnonymousUnreserved)
    }
}

/// Maps `bytes` and unmaps them immediately. Returns an error if the kernel refuses.
pub(crate) fn attempt(file: &File, bytes: usize, kind: Reserve) -> io::Result<()> {
    let flags = match kind {
        Reserve::SharedFile => MapFlags::SHARED,
        Reserve::PrivateFile | Reserve::Anonymous => MapFlags::PRIVATE,
        Reserve::PrivateFileUnreserved | Reserve::AnonymousUnreserved => MapFlags::PRIVATE | MapFlags::NORESERVE,
    };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address, nothing touches the range, and it is unmapped right away.
    unsafe {
        let start = if kind.is_of_file() {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, access, flags, file, 0)?
        } else {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, flags)?
        };
        rustix::mm::munmap(start, bytes)?;
    }
    Ok(())
}

/// Stores a byte at a stray address, as a buggy program in an unsafe language would. The address must be within
/// `memory`.
pub(crate) fn stray_store(memory: &mut [u8], address: usize, byte: u8) {
    let start = memory.as_mut_ptr();
    let offset = address.wrapping_sub(start.addr());
    assert!(offset < memory.len(), "a store that meets nothing");
    // SAFETY: the address is within the exclusive borrow. If the memory is mapped read-only, the store ends the
    // process.
    unsafe { start.add(offset).write_volatile(byte) };
}

/// Faults in the pages of `bytes` as writable, without changing them (`MADV_POPULATE_WRITE`, Linux 5.14).
pub(crate) fn populate(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: the range is borrowed exclusively; the advice changes no content.
    unsafe { rustix::mm::madvise(bytes.as_mut_ptr().cast(), bytes.len(), rustix::mm::Advice::LinuxPopulateWrite)? };
    Ok(())
}

/// Faults in pages by address, for a thread that runs ahead of the threads holding slices of the mapping.
pub(crate) fn populate_at(address: usize, bytes: usize) -> io::Result<()> {
    let start = std::ptr::without_provenance_mut(address);
    // SAFETY: the advice changes no content, whatever the range; the kernel refuses a range that is not mapped.
    unsafe { rustix::mm::madvise(start, bytes, rustix::mm::Advice::LinuxPopulateWrite)? };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        file
    }

    /// Bytes written through a shared mapping reach the file; bytes written through a private mapping do not.
    #[test]
    fn shared_writes_reach_the_file_and_private_ones_do_not() {
        use std::os::unix::fs::FileExt;
        let file = file(8192);
        let mut byte = [0];
        for (mode, expected) in [(Mode::Private, 0), (Mode::Shared, 7)] {
            let mut map = Map::new(&file, 8192, mode).unwrap();
            map.advise(Advice::Random).unwrap();
            map[5000] = 7;
            file.read_exact_at(&mut byte, 5000).unwrap();
            assert_eq!(byte[0], expected, "{mode:?}");
        }
    }

    /// A mapping beyond the end of the file is refused, because an access to it would kill the process.
    #[test]
    fn a_mapping_beyond_the_file_is_refused() {
        assert!(Map::new(&file(4096), 4097, Mode::Shared).is_err());
        assert!(Map::new(&file(0), 0, Mode::Shared).is_err());
    }

    /// Populating does not change the content.
    #[test]
    fn populating_keeps_the_content() {
        let file = file(16_384);
        let mut map = Map::new(&file, 16_384, Mode::Shared).unwrap();
        map[9000] = 3;
        if let Err(error) = populate(&mut map) {
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "only kernels before 5.14 refuse: {error}");
        }
        assert_eq!((map[9000], map[0]), (3, 0));
    }
}
