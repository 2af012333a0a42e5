//! File systems that the lab creates, each on a loop device over a file. So the lab can measure ext4 with a journal,
//! xfs and btrfs, whatever the file system of the folder is. Needs root.
//!
//! # Invariants
//! 1. Only the lab and its workers see the mounts, because they are in a mount namespace of the lab's thread. When the
//!    namespace's last process exits or is killed, the kernel unmounts them.
//! 2. A loop device detaches itself once it has no users, and its file is unlinked, so nothing is left behind.
//! 3. Only devices and mounts created here are changed. Each loop device accesses its file by direct I/O. Otherwise,
//!    bytes that a file system considers to be on the device might be only in the page cache.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{IFlags, SeekFrom};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::loop_device::LoopDevice;
use crate::temp_folder::TempFolder;

/// A kind of file system that the lab can create.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileSystem {
    /// ext4 with a metadata journal, which is the default of `mkfs.ext4`.
    Ext4,
    /// XFS, which has a metadata log.
    Xfs,
    /// btrfs, which writes each change to a new place (copy-on-write).
    Btrfs,
}

impl FileSystem {
    /// All kinds of file systems.
    pub const ALL: [FileSystem; 3] = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs];

    /// Returns the name, as users type it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    /// Returns the package that contains the `mkfs` program. It has the same name on most systems.
    pub(crate) fn package(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "e2fsprogs",
            FileSystem::Xfs => "xfsprogs",
            FileSystem::Btrfs => "btrfs-progs",
        }
    }

    /// Formats a device that the lab created, overwriting its content.
    fn format(self, device: &Path) -> io::Result<()> {
        let program = format!("mkfs.{}", self.name());
        let force = if self == FileSystem::Ext4 { "-F" } else { "-f" };
        let output = Command::new(&program).args(["-q", force]).arg(device).stdin(Stdio::null()).output();
        let output = output.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::new(error.kind(), format!("{program} is not installed (package {})", self.package()))
            }
            kind => io::Error::new(kind, format!("{program}: {error}")),
        })?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{program}: {}", text.lines().last().unwrap_or("failed"))))
    }

    /// Returns mount options that delay the write-back of metadata until a sync. By default, metadata is written back
    /// every few seconds, and the result of a power-off would not be reproducible.
    fn options(self, cache: DeviceCache) -> Option<&'static std::ffi::CStr> {
        match (self, cache) {
            (FileSystem::Ext4, DeviceCache::None) => Some(c"commit=300,nobarrier"),
            (FileSystem::Ext4 | FileSystem::Btrfs, _) => Some(c"commit=300"),
            (FileSystem::Xfs, _) => None,
        }
    }
}

/// The cache of a loop device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceCache {
    /// A write may stay in the cache of the underlying drive until the file system flushes that cache.
    Volatile,
    /// Each write is durable on the underlying drive before it completes. The file system does not flush, as on a drive
    /// whose cache is switched off.
    None,
}

/// A mounted file system. Dropping it unmounts it and detaches its device.
#[derive(Debug)]
pub(crate) struct Mounted {
    file_system: FileSystem,
    folder: PathBuf,
    /// The loop device's file, which is unlinked.
    image: File,
    disk: String,
    is_mounted: bool,
}

impl Mounted {
    /// Creates a file system of `bytes` and mounts it in `temp_folder`. Its file is sparse and unlinked, so it occupies
    /// only the blocks written. Only ext4 has a mount option for a device without a volatile cache.
    pub(crate) fn create(
        temp_folder: &TempFolder,
        file_system: FileSystem,
        bytes: u64,
        cache: DeviceCache,
    ) -> io::Result<Mounted> {
        let (image, device) = attach(temp_folder, bytes, |image| match cache {
            DeviceCache::Volatile => Ok(()),
            // With this flag, every process writes to the file synchronously.
            DeviceCache::None => {
                Ok(rustix::fs::ioctl_setflags(image, rustix::fs::ioctl_getflags(image)? | IFlags::SYNC)?)
            }
        })?;
        believe_volatile(&disk_of(&device))?;
        file_system.format(device.path())?;
        Mounted::mount(temp_folder, file_system, image, &device, cache)
    }

    /// Mounts the device. The mount keeps the device attached after `device` is dropped.
    fn mount(
        temp_folder: &TempFolder,
        file_system: FileSystem,
        image: File,
        device: &LoopDevice,
        cache: DeviceCache,
    ) -> io::Result<Mounted> {
        own_namespace()?;
        let disk = disk_of(device);
        let folder = temp_folder.path().join(format!("on-{disk}"));
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        rustix::mount::mount(
            device.path(),
            &folder,
            file_system.name(),
            MountFlags::empty(),
            file_system.options(cache),
        )?;
        Ok(Mounted { file_system, folder, image, disk, is_mounted: true })
    }

    /// Returns the folder of the mount, which only the lab and its workers can see.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the kernel's name for the loop device.
    pub(crate) fn disk(&self) -> &str {
        &self.disk
    }

    /// Simulates a power cut: mounts the device's current content, without data that is only in the page cache. Data in
    /// the drive's own cache is retained, as when a virtual machine is powered off.
    ///
    /// The copy is not atomic, so there must be no writes during the call.
    pub(crate) fn power_off(mut self, temp_folder: &TempFolder) -> io::Result<Mounted> {
        let bytes = self.image.metadata()?.len();
        let (copy, device) = attach(temp_folder, bytes, |copy| {
            copy_data(&self.image, copy)?;
            // Unmount the original first, because the kernel refuses two mounted devices with the same identity.
            self.unmount()
        })?;
        Mounted::mount(temp_folder, self.file_system, copy, &device, DeviceCache::Volatile)
    }

    fn unmount(&mut self) -> io::Result<()> {
        if self.is_mounted {
            rustix::mount::unmount(&self.folder, UnmountFlags::empty())?;
            self.is_mounted = false;
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let result = self.unmount().or_else(|_| rustix::mount::unmount(&self.folder, UnmountFlags::DETACH));
        if let Err(error) = result {
            eprintln!("unmounting {} failed: {error}", self.folder.display());
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Attaches a loop device over a new sparse file, which `prepare` may fill. The file is then unlinked; its space is
/// freed when the device's last user closes it.
fn attach(
    temp_folder: &TempFolder,
    bytes: u64,
    prepare: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<(File, LoopDevice)> {
    // Give each image its own name, because mkfs.btrfs mistakes an image for a mounted one of the same name.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let (path, file) = temp_folder.file(&format!("image-{}", NUMBER.fetch_add(1, Ordering::Relaxed)), bytes)?;
    let device = file.set_len(bytes).and_then(|()| prepare(&file)).and_then(|()| LoopDevice::over(&path));
    fs::remove_file(path)?;
    Ok((file, device?))
}

/// Resets a loop device to the kernel's default, a cache that is flushed. Otherwise the setting of an earlier user of
/// this loop device would persist.
fn believe_volatile(disk: &str) -> io::Result<()> {
    let path = format!("/sys/block/{disk}/queue/write_cache");
    if fs::read_to_string(&path)?.trim() == "write back" {
        return Ok(());
    }
    File::options().write(true).open(path)?.write_all(b"write back")
}

/// Returns the kernel's name for a loop device.
fn disk_of(device: &LoopDevice) -> String {
    device.path().file_name().expect("it has a name").to_string_lossy().into_owned()
}

/// Copies all data except holes. The loop device used direct I/O, so the page cache has no newer pages of the file.
fn copy_data(from: &File, to: &File) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?;
        at = start;
        while at < end {
            let length = buffer.len().min((end - at) as usize);
            from.read_exact_at(&mut buffer[..length], at)?;
            to.write_all_at(&buffer[..length], at)?;
            at += length as u64;
        }
    }
}

/// Moves this thread, and the workers that it starts, into a mount namespace of their own.
fn own_namespace() -> io::Result<()> {
    thread_local! {
        static IS_OWN: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_OWN.get() {
        // SAFETY: no code here relies on this thread sharing its working directory or mounts with others.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }?;
        // Otherwise the mounts would propagate to the namespace from which this one was copied.
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        IS_OWN.set(true);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use super::*;

    /// Only the lab's thread sees the file system. A power-off loses the data that was not synced. Dropping the file
    /// system removes it and its device.
    #[test]
    fn a_file_system_is_made_and_switched_off() {
        let folder = tempfile::tempdir().unwrap();
        let temp_folder = TempFolder::create(folder.path()).unwrap();
        for cache in [DeviceCache::Volatile, DeviceCache::None] {
            // Mounting is not permitted here, or mkfs is missing.
            let Ok(mounted) = Mounted::create(&temp_folder, FileSystem::Ext4, 64 << 20, cache) else { return };
            let place = mounted.folder().to_owned();
            let device = fs::metadata(&place).unwrap().dev();
            let seen_elsewhere = std::thread::spawn(|| fs::read_to_string("/proc/1/mounts").unwrap_or_default());
            assert!(!seen_elsewhere.join().unwrap().contains(&*place.to_string_lossy()));
            assert_ne!(device, fs::metadata(temp_folder.path()).unwrap().dev());
            fs::write(place.join("synced"), [7; 8192]).unwrap();
            let flushes = || crate::block_counts::BlockCounts::of(mounted.disk()).map(|counts| counts.flushes);
            let before = flushes();
            File::open(place.join("synced")).unwrap().sync_all().unwrap();
            assert_eq!(flushes() > before, cache == DeviceCache::Volatile && before.is_some());
            rustix::fs::syncfs(File::open(&place).unwrap()).unwrap();
            fs::write(place.join("unsynced"), [7; 8192]).unwrap();
            let left = mounted.power_off(&temp_folder).unwrap();
            assert_eq!(fs::read(left.folder().join("synced")).unwrap(), [7; 8192]);
            assert!(!left.folder().join("unsynced").exists());
            let (place, disk) = (left.folder().to_owned(), left.disk().to_owned());
            drop(left);
            assert!(!place.exists());
            let backing = || fs::read_to_string(format!("/sys/block/{disk}/loop/backing_file")).unwrap_or_default();
            // A program that watches for new devices may hold it open for a moment.
            let is_gone = || !backing().contains(&*temp_folder.path().to_string_lossy());
            assert!(crate::worker::wait_until(Duration::from_secs(20), is_gone), "{disk} stays attached");
        }
    }
}
