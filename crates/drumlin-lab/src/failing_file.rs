//! A file on a simulated drive with bad blocks, served to the kernel by FUSE. Some of its blocks can't be read; others
//! can't be written.
//!
//! The lab's own process serves the file to its workers, so the file survives an error that kills a worker.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request, WriteFlags,
};

/// The size of the file.
pub(crate) const BYTES: usize = 128 << 10;
/// The initial value of each byte.
pub(crate) const FILL: u8 = 0x11;
/// The range that can't be read.
pub(crate) const UNREADABLE: Range<usize> = (64 << 10)..(68 << 10);
/// The range that can't be written.
pub(crate) const UNWRITABLE: Range<usize> = (96 << 10)..(100 << 10);

const FILE: INodeNo = INodeNo(2);
const NAME: &str = "file";

/// The mounted file system with the file. Dropping it unmounts it and removes its folder.
#[derive(Debug)]
pub(crate) struct FailingFile {
    session: Option<fuser::BackgroundSession>,
    folder: PathBuf,
    path: PathBuf,
}

impl FailingFile {
    /// Mounts the file system on a new folder. Fails if FUSE is not available: without /dev/fuse, or without root and
    /// `fusermount3`.
    pub(crate) fn mount(folder: &Path) -> io::Result<FailingFile> {
        std::fs::create_dir(folder)?;
        let mut config = fuser::Config::default();
        config.mount_options = vec![fuser::MountOption::FSName("drumlin-lab".into())];
        let session = fuser::spawn_mount(BadBlocks { bytes: Mutex::new(vec![FILL; BYTES]) }, folder, &config)?;
        Ok(FailingFile { session: Some(session), folder: folder.to_owned(), path: folder.join(NAME) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FailingFile {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.session.take().map(fuser::BackgroundSession::umount_and_join) {
            eprintln!("unmounting {}: {error}", self.folder.display());
        }
        // If this fails, the folder is removed together with the temporary folder that contains it.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// The FUSE file system: a folder with a single file.
struct BadBlocks {
    bytes: Mutex<Vec<u8>>,
}

fn attributes(inode: INodeNo) -> FileAttr {
    let (kind, size, perm) = match inode {
        FILE => (FileType::RegularFile, BYTES as u64, 0o600),
        _ => (FileType::Directory, 0, 0o700),
    };
    let time = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: inode,
        size,
        blocks: size / 512,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm,
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn meet(bad: &Range<usize>, offset: usize, bytes: usize) -> bool {
    offset < bad.end && offset + bytes > bad.start
}

const TTL: Duration = Duration::from_secs(3600);

impl Filesystem for BadBlocks {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&TTL, &attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let start = (offset as usize).min(BYTES);
        let end = (start + size as usize).min(BYTES);
        if meet(&UNREADABLE, start, end - start) {
            reply.error(Errno::EIO);
        } else {
            reply.data(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)[start..end]);
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let start = offset as usize;
        if start + data.len() > BYTES || meet(&UNWRITABLE, start, data.len()) {
            reply.error(Errno::EIO);
        } else {
            self.bytes.lock().unwrap_or_else(PoisonError::into_inner)[start..start + data.len()].copy_from_slice(data);
            reply.written(data.len() as u32);
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        // Otherwise the kernel would send a request before each write.
        reply.error(Errno::ENOSYS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// Accesses to the bad blocks fail. The other blocks can be read, and retain the bytes written to them.
    #[test]
    fn bad_blocks_fail_and_others_do_not() {
        let folder = tempfile::tempdir().unwrap();
        // Without FUSE there is nothing to test.
        let Ok(failing) = FailingFile::mount(&folder.path().join("fuse")) else { return };
        let file = std::fs::File::options().read(true).write(true).open(failing.path()).unwrap();
        let mut page = [0; 4096];
        file.read_exact_at(&mut page, 0).unwrap();
        assert_eq!(page, [FILL; 4096]);
        let error = file.read_exact_at(&mut page, UNREADABLE.start as u64).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        file.write_all_at(&[7; 4096], 0).unwrap();
        file.sync_all().unwrap();
        assert!(file.write_all_at(&[7; 4096], UNWRITABLE.start as u64).and_then(|()| file.sync_all()).is_err());
        drop(file);
        drop(failing);
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "the mount point is removed");
    }
}
