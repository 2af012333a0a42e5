//! Loop devices: block devices over a file or over memory. Like the sources' drives, they can be read without a file
//! system, and their read-ahead can be set without affecting the machine's other devices.
//!
//! A device is attached with the kernel's "autoclear" flag: the kernel detaches it once its last user is gone, so no
//! device remains if this process is killed. Only root may attach a device.
#![allow(unsafe_code)]

use std::cell::OnceCell;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use drumlin_io::AlignedBuffer;

use crate::temp_folder;

/// The read-ahead of the sources' machines, which is the kernel's default.
pub(crate) const READ_AHEAD_BYTES: u64 = 128 << 10;

/// `LOOP_CTL_GET_FREE` of linux/loop.h.
const GET_FREE: libc::Ioctl = 0x4C82;
/// `LOOP_CONFIGURE`, Linux 5.8.
const CONFIGURE: libc::Ioctl = 0x4C0A;
/// `LOOP_CLR_FD`.
const CLEAR: libc::Ioctl = 0x4C01;

/// `LO_FLAGS_AUTOCLEAR`.
const AUTOCLEAR: u32 = 4;
/// `LO_FLAGS_DIRECT_IO`.
const DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_bytes: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

/// The number of attempts to attach a free device. Another process may attach it first.
const ATTEMPTS: usize = 20;

/// An attached loop device. Dropping it detaches it.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    path: PathBuf,
    /// The device file. While it is open, the device remains attached.
    file: File,
    /// The read-ahead to restore on drop, because some kernels leave the setting to the device's next user.
    read_ahead_before: Option<u64>,
}

impl LoopDevice {
    /// Attaches a device over a file. The device accesses the file by direct I/O, bypassing the page cache.
    ///
    /// # Errors
    /// If loop devices are missing or not permitted, or the file system does not support direct I/O.
    pub(crate) fn over(path: &Path) -> io::Result<LoopDevice> {
        let backing = temp_folder::open_direct(path, true)?;
        LoopDevice::attach(backing.as_fd(), DIRECT_IO)
    }

    /// Attaches a device over memory filled with bytes that do not compress. The memory is charged to this process's
    /// own control group, not to those of the workers. Calls `go_on` after each MiB, and stops if it returns `false`.
    pub(crate) fn over_memory(bytes: u64, mut go_on: impl FnMut(u64) -> bool) -> io::Result<LoopDevice> {
        let memory = File::from(rustix::fs::memfd_create("drumlin-lab", rustix::fs::MemfdFlags::CLOEXEC)?);
        let mut noise = temp_folder::Noise::new();
        let mut block = AlignedBuffer::zeroed(1 << 20);
        for offset in (0..bytes).step_by(block.len()) {
            noise.fill(&mut block);
            std::os::unix::fs::FileExt::write_all_at(&memory, &block, offset)?;
            if !go_on(offset + block.len() as u64) {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        LoopDevice::attach(memory.as_fd(), 0)
    }

    fn attach(backing: BorrowedFd<'_>, flags: u32) -> io::Result<LoopDevice> {
        let control = File::options().read(true).write(true).open("/dev/loop-control")?;
        let mut refusal = io::Error::from(io::ErrorKind::ResourceBusy);
        for _ in 0..ATTEMPTS {
            // SAFETY: the call takes no argument, and the descriptor is open.
            let number = check(unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) })?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let file = File::options().read(true).write(true).open(&path)?;
            let info = Info {
                device: 0,
                inode: 0,
                rdevice: 0,
                offset: 0,
                size_limit: 0,
                number: 0,
                encrypt_type: 0,
                encrypt_key_size: 0,
                flags: AUTOCLEAR | flags,
                file_name: [0; 64],
                crypt_name: [0; 64],
                encrypt_key: [0; 32],
                init: [0; 2],
            };
            let config = Config { fd: backing.as_raw_fd() as u32, block_bytes: 0, info, reserved: [0; 8] };
            // SAFETY: `config` has the layout of `struct loop_config` and outlives the call; both descriptors are open.
            match check(unsafe { libc::ioctl(file.as_raw_fd(), CONFIGURE, &raw const config) }) {
                Ok(_) => return Ok(LoopDevice { path, file, read_ahead_before: None }),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => refusal = error,
                Err(error) => return Err(error),
            }
        }
        Err(refusal)
    }

    /// Returns the path of the block device.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of bytes that the kernel reads ahead on this device.
    pub(crate) fn read_ahead_bytes(&self) -> io::Result<u64> {
        let text = fs::read_to_string(self.queue("read_ahead_kb"))?;
        text.trim().parse::<u64>().map(|kib| kib << 10).map_err(io::Error::other)
    }

    /// Sets the number of bytes that the kernel reads ahead on this device. The setting lasts until the device is
    /// detached.
    pub(crate) fn set_read_ahead_bytes(&mut self, bytes: u64) -> io::Result<()> {
        if self.read_ahead_before.is_none() {
            self.read_ahead_before = Some(self.read_ahead_bytes()?);
        }
        self.write_read_ahead(bytes)
    }

    fn with_read_ahead(mut self, bytes: u64) -> io::Result<LoopDevice> {
        self.set_read_ahead_bytes(bytes)?;
        Ok(self)
    }

    fn write_read_ahead(&self, bytes: u64) -> io::Result<()> {
        fs::write(self.queue("read_ahead_kb"), (bytes >> 10).to_string())
    }

    /// Returns the path of one of the device's settings in /sys.
    fn queue(&self, name: &str) -> PathBuf {
        let device = self.path.file_name().expect("it has a name");
        Path::new("/sys/block").join(device).join("queue").join(name)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Some(bytes) = self.read_ahead_before {
            // If the device has already been removed with its module, there is nothing to restore.
            let _ = self.write_read_ahead(bytes);
        }
        // This detaches the device now, or once its other users have closed it. If it fails, autoclear detaches the
        // device.
        // SAFETY: the call takes no argument, and the descriptor is open.
        let _ = unsafe { libc::ioctl(self.file.as_raw_fd(), CLEAR) };
    }
}

/// The devices of a run. Each is attached on first use.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    over_file: OnceCell<io::Result<LoopDevice>>,
    over_memory: OnceCell<io::Result<LoopDevice>>,
}

impl Devices {
    /// Returns the device over the run's file. Every call returns the same device.
    pub(crate) fn over_file(&self, file: &Path) -> Result<&Path, &io::Error> {
        let device = self.over_file.get_or_init(|| LoopDevice::over(file)?.with_read_ahead(READ_AHEAD_BYTES));
        device.as_ref().map(LoopDevice::path)
    }

    /// Returns the device over memory, which has this many bytes. Every call returns the same device.
    pub(crate) fn over_memory(&self, bytes: u64, go_on: impl FnMut(u64) -> bool) -> Result<&Path, &io::Error> {
        let device =
            self.over_memory.get_or_init(|| LoopDevice::over_memory(bytes, go_on)?.with_read_ahead(READ_AHEAD_BYTES));
        device.as_ref().map(LoopDevice::path)
    }

    /// Returns `true` if the lab has tried to attach the device over memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.over_memory.get().is_some()
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    use super::*;
    use crate::temp_folder::TempFolder;
    use crate::worker::wait_until;

    /// Returns the name of the file over which the device is attached, if the device is attached.
    fn backing(device: &Path) -> Option<String> {
        let name = device.file_name().unwrap();
        fs::read_to_string(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()
    }

    /// A loop device shows the bytes of its file and has its own read-ahead setting. Dropping its handle detaches it.
    #[test]
    fn a_device_shows_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let temp_folder = TempFolder::create(folder.path()).unwrap();
        let path = temp_folder.filled("data", 1 << 20, |_| true).unwrap();
        let Ok(mut device) = LoopDevice::over(&path) else { return }; // No permission, or no direct I/O.
        let [mut found, mut expected] = [[0; 4096]; 2];
        File::open(device.path()).unwrap().read_exact_at(&mut found, 8192).unwrap();
        File::open(&path).unwrap().read_exact_at(&mut expected, 8192).unwrap();
        assert_eq!(found, expected);
        device.set_read_ahead_bytes(128 << 10).unwrap();
        assert_eq!(device.read_ahead_bytes().unwrap(), 128 << 10);
        let name = device.path().to_owned();
        assert!(backing(&name).unwrap().contains("data"));
        drop(device);
        // A program that watches for new devices may hold the device open for a moment.
        let is_ours = || backing(&name).is_some_and(|backing| backing.contains(&*temp_folder.path().to_string_lossy()));
        assert!(wait_until(Duration::from_secs(20), || !is_ours()), "{} stays attached", name.display());
    }

    /// A device over memory contains the bytes that it was filled with.
    #[test]
    fn a_device_of_memory_is_filled() {
        let Ok(device) = LoopDevice::over_memory(2 << 20, |_| true) else { return };
        let mut found = [0; 4096];
        File::open(device.path()).unwrap().read_exact_at(&mut found, 1 << 20).unwrap();
        assert!(found.iter().filter(|byte| **byte == 0).count() < 100);
    }
}
