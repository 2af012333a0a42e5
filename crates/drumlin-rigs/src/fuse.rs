//! A file system with two files: `disk`, the drive below a loop device, and `acked`, to which a writer reports its
//! acknowledgements.
//!
//! Both files belong to the same [`Drive`], which records block writes, flushes and acknowledgements in a single order.
//! The kernel's loop driver turns a flush of the block device into an fsync of the file, and a forced write into a
//! write and an fsync.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use crate::drive::Drive;
use crate::writers;

pub const DISK: u64 = 2;
const ACKS: u64 = 3;
/// The time for which the kernel may cache attributes. It is long because only the rig changes them.
pub const TTL: Duration = Duration::from_secs(3600);

/// A drive that is shared with the server of its file system.
#[derive(Clone, Default, Debug)]
pub struct SharedDrive(Arc<Mutex<Drive>>);

impl SharedDrive {
    pub fn lock(&self) -> MutexGuard<'_, Drive> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Replaces the drive and returns the previous one.
    pub fn replace(&self, drive: Drive) -> Drive {
        std::mem::replace(&mut *self.lock(), drive)
    }
}

/// A mounted file system, unmounted on drop.
#[derive(Debug)]
pub struct Mounted(Option<fuser::BackgroundSession>);

impl Mounted {
    pub fn new(session: fuser::BackgroundSession) -> Mounted {
        Mounted(Some(session))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(fuser::BackgroundSession::umount_and_join) {
            eprintln!("unmounting the drive's file system: {error}");
        }
    }
}

/// Mounts the simulated drive at `folder` as a FUSE file system.
pub fn serve(drive: &SharedDrive, disk_bytes: u64, folder: &Path) -> Result<Mounted> {
    let mut config = fuser::Config::default();
    config.mount_options = vec![fuser::MountOption::FSName("drumlin-rigs".into())];
    let session = fuser::spawn_mount(TwoFiles { drive: drive.clone(), disk_bytes }, folder, &config)
        .with_context(|| format!("mounting a FUSE file system on {}", folder.display()))?;
    Ok(Mounted::new(session))
}

struct TwoFiles {
    drive: SharedDrive,
    disk_bytes: u64,
}

impl TwoFiles {
    fn attributes(&self, inode: u64) -> Option<FileAttr> {
        attributes(inode, self.disk_bytes)
    }
}

/// Returns the attributes of the folder and the files that the rigs serve.
pub fn attributes(inode: u64, disk_bytes: u64) -> Option<FileAttr> {
    let (kind, size) = match inode {
        1 => (FileType::Directory, 0),
        DISK => (FileType::RegularFile, disk_bytes),
        ACKS => (FileType::RegularFile, writers::ACK_FILE_BYTES),
        _ => return None,
    };
    let time = SystemTime::UNIX_EPOCH;
    Some(FileAttr {
        ino: INodeNo(inode),
        size,
        blocks: size / 512,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm: 0o700,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

impl Filesystem for TwoFiles {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let inode = if name == "disk" { DISK } else { ACKS };
        match self.attributes(inode).filter(|_| name == "disk" || name == "acks") {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode.0) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; u64::from(size).min(self.disk_bytes.saturating_sub(offset)) as usize];
        if inode.0 == DISK {
            self.drive.lock().read(offset, &mut bytes);
        }
        reply.data(&bytes);
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut drive = self.drive.lock();
        if inode.0 == DISK {
            drive.write(offset, data, false);
        } else {
            writers::acks_in(data).for_each(|what| drive.report(what));
        }
        drop(drive);
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if inode.0 == DISK {
            self.drive.lock().flush();
        }
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        // Report this as unsupported. The block layer then writes zeros instead, or skips a discard.
        reply.error(Errno::EOPNOTSUPP);
    }
}
