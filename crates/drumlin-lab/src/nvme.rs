//! Asks an NVMe drive whether it has a volatile write cache, by admin commands through an ioctl. Needs root.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use drumlin_io::AlignedBuffer;

/// The volatile write cache of an NVMe drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteCache {
    /// The drive has no cache, or its cache survives a power cut, so it needs no flushes.
    Absent,
    /// The cache is switched off.
    Off,
    /// The cache is on, so a power cut loses writes that were not flushed.
    On,
}

impl WriteCache {
    /// Describes the cache with the kernel's words for the caches of other drives.
    pub(crate) fn words(self) -> &'static str {
        match self {
            WriteCache::Absent => "write through (no volatile cache)",
            WriteCache::Off => "write through (the cache is off)",
            WriteCache::On => "write back",
        }
    }
}

/// `struct nvme_passthru_cmd` of linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_and_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    words_10_to_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// `NVME_IOCTL_ADMIN_CMD`: `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const ADMIN_COMMAND: libc::Ioctl = 0xC048_4E41_u32 as libc::Ioctl;

const IDENTIFY: u8 = 0x06;
const GET_FEATURES: u8 = 0x0A;
/// The value of Identify's parameter that selects the controller's data structure.
const CONTROLLER: u32 = 1;
/// The id of the feature "volatile write cache".
const VOLATILE_WRITE_CACHE: u32 = 6;

const IDENTITY_BYTES: usize = 4096;
/// The byte of the controller's data whose lowest bit is set if the drive has a volatile cache.
const CACHE_BYTE: usize = 525;
const TIMEOUT_MS: u32 = 1000;

/// Asks the drive of a block device (`/dev/nvme0n1`) about its cache. Neither of the two commands changes the drive.
///
/// # Errors
/// If the device is not an NVMe drive, or the commands are not permitted.
pub(crate) fn write_cache(device: &Path) -> io::Result<WriteCache> {
    let file = File::open(device)?;
    let mut identity = AlignedBuffer::zeroed(IDENTITY_BYTES);
    let mut identify = AdminCommand {
        opcode: IDENTIFY,
        address: identity.as_mut_ptr().expose_provenance() as u64,
        data_bytes: IDENTITY_BYTES as u32,
        words_10_to_15: [CONTROLLER, 0, 0, 0, 0, 0],
        timeout_ms: TIMEOUT_MS,
        ..AdminCommand::default()
    };
    // SAFETY: the command refers to `identity`, which has that length and outlives the call.
    unsafe { submit(&file, &mut identify) }?;
    let mut get = AdminCommand {
        opcode: GET_FEATURES,
        words_10_to_15: [VOLATILE_WRITE_CACHE, 0, 0, 0, 0, 0],
        timeout_ms: TIMEOUT_MS,
        ..AdminCommand::default()
    };
    if !has_cache(&identity) {
        return Ok(WriteCache::Absent);
    }
    // SAFETY: the command returns this feature in its result and uses no memory.
    unsafe { submit(&file, &mut get) }?;
    Ok(state(get.result))
}

fn has_cache(identity: &[u8]) -> bool {
    identity[CACHE_BYTE] & 1 == 1
}

fn state(feature: u32) -> WriteCache {
    if feature & 1 == 1 { WriteCache::On } else { WriteCache::Off }
}

/// Sends a command to the drive.
///
/// # Safety
/// The command's address must be 0, or point to memory of the command's length that outlives the call.
unsafe fn submit(file: &File, command: &mut AdminCommand) -> io::Result<()> {
    // SAFETY: the kernel reads and writes one such structure; the caller vouches for the address in it.
    match unsafe { libc::ioctl(file.as_raw_fd(), ADMIN_COMMAND, std::ptr::from_mut(command)) } {
        0 => Ok(()),
        status if status > 0 => Err(io::Error::other(format!("the drive answered with status {status:#x}"))),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each possible answer of a drive is recognised.
    #[test]
    fn answers_are_read() {
        let mut identity = [0u8; IDENTITY_BYTES];
        assert!(!has_cache(&identity));
        identity[CACHE_BYTE] = 0b111;
        assert!(has_cache(&identity));
        assert_eq!((state(0), state(1)), (WriteCache::Off, WriteCache::On));
        assert_eq!(WriteCache::On.words(), "write back");
        assert!(!WriteCache::Off.words().contains("back") && !WriteCache::Absent.words().contains("back"));
    }

    /// The kernel refuses the command for other files.
    #[test]
    fn other_files_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(write_cache(file.path()).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        assert!(write_cache(Path::new("/dev/no-such-drive")).is_err());
    }

    /// The command has the layout of the kernel's structure.
    #[test]
    fn the_layout_is_the_kernels() {
        use std::mem::offset_of;
        let [address, data_bytes] = [offset_of!(AdminCommand, address), offset_of!(AdminCommand, data_bytes)];
        let [words, result] = [offset_of!(AdminCommand, words_10_to_15), offset_of!(AdminCommand, result)];
        assert_eq!((address, data_bytes, words, result), (24, 36, 40, 68));
    }
}
