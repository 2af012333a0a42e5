//! Mapped files, the subject of the sources' claims. No other module of this crate maps.
//!
//! Every mapped file was created by the lab in a folder of its own (see `temp_folder`). Within a process it is either
//! mapped for reading, or by one owner for writing: this makes slices of it sound. One danger that types cannot rule
//! out is what the lab shows: a file cut short under a mapping ends the process with SIGBUS.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use serde::{Deserialize, Serialize};

/// The advice to the kernel about the accesses to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Advice {
    Normal,
    Random,
    Sequential,
}

impl Advice {
    pub(crate) const ALL: [Advice; 3] = [Advice::Normal, Advice::Random, Advice::Sequential];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Advice::Normal => "NORMAL",
            Advice::Random => "RANDOM",
            Advice::Sequential => "SEQUENTIAL",
        }
    }
}

/// A way of mapping a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// Shared; changes reach the file at any time that the kernel chooses.
    Shared,
    /// Shared, all pages brought in by the call.
    SharedPopulated,
    /// Changes stay in anonymous memory of this process.
    Private,
    /// Shared, on persistent memory only: a store that left the processor's cache is durable (`MAP_SYNC`).
    Persistent,
}

/// A mapping of a file's first bytes, readable and writable.
#[derive(Debug)]
pub(crate) struct Map {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, as memory belongs to a `Box<[u8]>`.
unsafe impl Send for Map {}
// SAFETY: shared access only reads.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `bytes` of `file`, which must be at least that long and opened for writing.
    pub(crate) fn new(file: &File, bytes: usize, mode: Mode) -> io::Result<Map> {
        if bytes == 0 || file.metadata()?.len() < bytes as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is shorter than the requested mapping"));
        }
        let flags = match mode {
            Mode::Shared => MapFlags::SHARED,
            Mode::SharedPopulated => MapFlags::SHARED | MapFlags::POPULATE,
            Mode::Private => MapFlags::PRIVATE,
            Mode::Persistent => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        };
        // SAFETY: the kernel chooses the address, so nothing that exists is replaced.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0)?
        };
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
        // SAFETY: the range is this mapping; the advices given here change no content.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice)? };
        Ok(())
    }

    /// Keeps all pages in memory.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping.
        unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.bytes)? };
        Ok(())
    }

    /// The mapping's address, to find it among those of the process.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }
}

impl Deref for Map {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped until `drop`. The file is the lab's own, and no thread writes to it while this
        // reference lives; if it is cut short, the access ends the process instead of returning.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Map {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; `&mut self` makes it the only access in this process.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no borrow of it is left.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "{result:?}");
    }
}

/// Brings the pages of `bytes` in, writable, without changing them (`MADV_POPULATE_WRITE`, Linux 5.14).
pub(crate) fn populate(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: the range is borrowed exclusively; the advice changes no content.
    unsafe { rustix::mm::madvise(bytes.as_mut_ptr().cast(), bytes.len(), rustix::mm::Advice::LinuxPopulateWrite)? };
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

    /// What is written through a shared mapping is in the file; through a private one it is not.
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

    /// A mapping beyond the end of the file, which would end the process, is refused.
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
