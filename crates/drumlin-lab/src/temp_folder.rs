//! The lab's temporary folder, and the limit on the disk space that it may use.
//!
//! # Invariants
//! 1. The lab creates the folder under a name that did not exist, and removes only folders that were registered here.
//! 2. A registered folder is removed when its owner is dropped, or by [`remove_everything`] just before the process
//!    exits. If a process is killed, the next lab process in the same place removes its folder: the lock on the
//!    folder's owner file shows that the process is gone.
//! 3. No file is created that would leave less than a tenth of the file system, or less than 1 GiB, free.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use drumlin_io::AlignedBuffer;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

use crate::figures;

/// Disk space that is always left free.
pub(crate) const RESERVE_BYTES: u64 = 1 << 30;

/// The folders that have yet to be removed: temporary folders and control groups.
static REMOVALS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Registers a folder for removal.
pub(crate) fn register(path: &Path) {
    REMOVALS.lock().expect("nothing panics here").push(path.to_owned());
}

/// Removes a registered folder with its files. A control group has no files of its own, so only the folder is removed.
pub(crate) fn remove(path: &Path) {
    let mut removals = REMOVALS.lock().expect("nothing panics here");
    let Some(at) = removals.iter().position(|known| known == path) else { return };
    removals.swap_remove(at);
    remove_now(path);
}

fn remove_now(path: &Path) {
    unmount_below(path);
    let result = if path.starts_with("/sys/fs/cgroup") { fs::remove_dir(path) } else { fs::remove_dir_all(path) };
    if let Err(error) = result
        && error.kind() != io::ErrorKind::NotFound
    {
        eprintln!("removing {} failed: {error}", path.display());
    }
}

/// Removes all files and control groups that the lab created. Called just before a process exits that was interrupted
/// twice; otherwise their owners remove them.
pub fn remove_everything() {
    // If another thread holds the lock, it is removing a folder, so wait for it.
    let removals = std::mem::take(&mut *REMOVALS.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    for path in removals.iter().rev() {
        remove_now(path);
    }
}

/// Unmounts everything that is mounted below the lab's folder, so that removing the folder does not delete files of
/// another file system.
fn unmount_below(path: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(|point| point.replace("\\040", " "));
    let mut below: Vec<String> = points.filter(|point| Path::new(point).starts_with(path)).collect();
    // Unmount an inner mount before the mount that contains it.
    below.sort();
    for point in below.iter().rev() {
        if let Err(error) = rustix::mount::unmount(point.as_str(), rustix::mount::UnmountFlags::DETACH) {
            eprintln!("unmounting {point} failed: {error}");
        }
    }
}

/// The file in a temporary folder that the lab process keeps locked.
const OWNER: &str = "owner";

/// Removes the folders in `parent` that killed lab processes left behind.
fn remove_left(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        let is_ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FOLDER_PREFIX));
        if !is_ours {
            continue;
        }
        if let Ok(owner) = File::open(path.join(OWNER))
            && rustix::fs::flock(&owner, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            remove_now(&path);
        }
    }
    Ok(())
}

/// The prefix of the names of temporary folders.
const FOLDER_PREFIX: &str = "drumlin-lab-";

/// A temporary folder that the lab created.
#[derive(Debug)]
pub(crate) struct TempFolder {
    path: PathBuf,
    /// The owner file, locked until the process exits.
    _owner: File,
}

impl TempFolder {
    /// Creates a temporary folder in `parent`.
    pub(crate) fn create(parent: &Path) -> io::Result<TempFolder> {
        remove_left(parent)?;
        // Use an absolute path, because the kernel lists the mounts below it by absolute paths.
        let parent = parent.canonicalize()?;
        for attempt in 0..1000 {
            let path = parent.join(format!("{FOLDER_PREFIX}{}-{attempt}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => {
                    register(&path);
                    // Lock the file before renaming it to the name that other processes look for.
                    let unnamed = path.join("owner-to-be");
                    let owner = File::create_new(&unnamed)?;
                    rustix::fs::flock(&owner, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
                    fs::rename(unnamed, path.join(OWNER))?;
                    return Ok(TempFolder { path, _owner: owner });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a new file if the disk has enough space for this many bytes.
    pub(crate) fn file(&self, name: &str, bytes: u64) -> io::Result<(PathBuf, File)> {
        check_space(&self.path, bytes)?;
        let path = self.path.join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        Ok((path, file))
    }

    /// Creates a file of `bytes` (a multiple of 1 MiB) filled with bytes that do not compress, by direct writes if the
    /// file system supports them. Afterwards, the page cache holds none of the file's pages. Calls `go_on` after each
    /// MiB with the number of bytes written.
    pub(crate) fn filled(&self, name: &str, bytes: u64, mut go_on: impl FnMut(u64) -> bool) -> io::Result<PathBuf> {
        let (path, file) = self.file(name, bytes)?;
        let direct = open_direct(&path, true);
        let writer = direct.as_ref().unwrap_or(&file);
        let mut block = AlignedBuffer::zeroed(1 << 20);
        let mut noise = Noise::new();
        for offset in (0..bytes).step_by(block.len()) {
            noise.fill(&mut block);
            writer.write_all_at(&block, offset)?;
            if !go_on(offset + block.len() as u64) {
                break;
            }
        }
        file.sync_all()?;
        forget_cached(&file)?;
        Ok(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// A generator of bytes that no drive or file system can compress.
#[derive(Debug)]
pub(crate) struct Noise(Xoshiro256PlusPlus);

impl Noise {
    pub(crate) fn new() -> Noise {
        Noise(Xoshiro256PlusPlus::seed_from_u64(0))
    }

    /// Fills a block with the next bytes.
    pub(crate) fn fill(&mut self, block: &mut [u8]) {
        self.0.fill_bytes(block);
    }
}

/// Opens a file for direct I/O.
pub(crate) fn open_direct(path: &Path, write: bool) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).write(write).custom_flags(libc::O_DIRECT).open(path)
}

/// Drops a file's clean pages from the page cache.
pub(crate) fn forget_cached(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// Returns the number of bytes that the lab may use in a folder's file system without touching the reserve.
pub(crate) fn space_bytes(folder: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(folder)?;
    let available = space.f_bavail.saturating_mul(space.f_frsize);
    let tenth = space.f_blocks.saturating_mul(space.f_frsize) / 10;
    Ok(available.saturating_sub(RESERVE_BYTES.max(tenth.min(available / 2))))
}

fn check_space(folder: &Path, bytes: u64) -> io::Result<()> {
    let space = space_bytes(folder)?;
    if bytes > space {
        let text = format!(
            "a file of {} would nearly fill the file system of {}: only {} may be used",
            figures::bytes(bytes as f64),
            folder.display(),
            figures::bytes(space as f64)
        );
        return Err(io::Error::new(io::ErrorKind::StorageFull, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary folder removes its own files and no others.
    #[test]
    fn a_folder_leaves_nothing_and_touches_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("mine"), "kept").unwrap();
        let temp_folder = TempFolder::create(folder.path()).unwrap();
        let path = temp_folder.filled("file", 2 << 20, |_| true).unwrap();
        assert_eq!(fs::metadata(path).unwrap().len(), 2 << 20);
        assert!(temp_folder.file("file", 1).is_err(), "a file that is there is not opened");
        drop(temp_folder);
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["mine"]);
    }

    /// A file that would fill the disk is not created.
    #[test]
    fn the_disk_is_not_filled() {
        let folder = tempfile::tempdir().unwrap();
        let temp_folder = TempFolder::create(folder.path()).unwrap();
        let error = temp_folder.file("file", u64::MAX / 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let left: Vec<_> = fs::read_dir(temp_folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [OWNER]);
    }

    /// If a process is killed, the next process that creates a folder removes the killed one's folder. It leaves alone
    /// the folder of a running process, and any folder with a similar name that the lab did not create.
    #[test]
    fn what_was_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("drumlin-lab-1-0");
        fs::create_dir(&left).unwrap();
        fs::write(left.join(OWNER), "").unwrap();
        fs::write(left.join("data"), "large").unwrap();
        let foreign = folder.path().join("drumlin-lab-notes");
        fs::create_dir(&foreign).unwrap();
        let first = TempFolder::create(folder.path()).unwrap();
        assert!(!left.exists() && foreign.exists());
        let second = TempFolder::create(folder.path()).unwrap();
        assert!(first.path().exists() && second.path().exists());
    }
}
