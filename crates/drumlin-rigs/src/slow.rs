//! A slow drive: a FUSE file that serves one request at a time. Each request takes as long as it would on the drive.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use crate::drive::Image;
use crate::fuse::{DISK, Mounted, TTL, attributes};

/// The speed of a drive.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The duration of a flush.
    pub flush: Duration,
    /// The rate of writes.
    pub bytes_per_second: f64,
}

/// A slow drive, served as the file `disk` of a folder.
pub struct SlowDrive {
    is_slow: Arc<AtomicBool>,
    _mounted: Mounted,
}

impl SlowDrive {
    /// Serves a drive that adds no delay until [`SlowDrive::set_slow`] is called.
    pub fn serve(pace: Pace, disk_bytes: u64, folder: &Path) -> Result<SlowDrive> {
        let is_slow = Arc::new(AtomicBool::new(false));
        let (queue, requests) = channel();
        let slow = Arc::clone(&is_slow);
        std::thread::spawn(move || answer(&requests, &slow));
        let mut config = fuser::Config::default();
        config.mount_options = vec![fuser::MountOption::FSName("drumlin-rigs".into())];
        let file = SlowFile { image: Mutex::default(), disk_bytes, pace, queue };
        let session = fuser::spawn_mount(file, folder, &config)
            .with_context(|| format!("mounting a FUSE file system on {}", folder.display()))?;
        Ok(SlowDrive { is_slow, _mounted: Mounted::new(session) })
    }

    pub fn set_slow(&self, slow: bool) {
        self.is_slow.store(slow, Ordering::Relaxed);
    }
}

/// The duration of a request, and a closure that answers it.
type Work = (Duration, Box<dyn FnOnce() + Send>);

/// Answers the requests in sequence: each starts when the previous one has ended.
fn answer(requests: &Receiver<Work>, is_slow: &AtomicBool) {
    let mut free = Instant::now();
    for (time, reply) in requests {
        if is_slow.load(Ordering::Relaxed) {
            free = free.max(Instant::now()) + time;
            std::thread::sleep(free.saturating_duration_since(Instant::now()));
        }
        reply();
    }
}

struct SlowFile {
    image: Mutex<Image>,
    disk_bytes: u64,
    pace: Pace,
    queue: Sender<Work>,
}

impl SlowFile {
    fn enqueue(&self, time: Duration, reply: impl FnOnce() + Send + 'static) {
        // The receiving thread outlives this sender.
        let _ = self.queue.send((time, Box::new(reply)));
    }
}

impl Filesystem for SlowFile {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match attributes(DISK, self.disk_bytes).filter(|_| name == "disk") {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match attributes(inode.0, self.disk_bytes) {
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
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; u64::from(size).min(self.disk_bytes.saturating_sub(offset)) as usize];
        self.image.lock().unwrap_or_else(PoisonError::into_inner).read(offset, &mut bytes);
        reply.data(&bytes);
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
        self.image.lock().unwrap_or_else(PoisonError::into_inner).write(offset, data);
        let length = data.len() as u32;
        let time = Duration::from_secs_f64(f64::from(length) / self.pace.bytes_per_second);
        self.enqueue(time, move || reply.written(length));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.enqueue(self.pace.flush, move || reply.ok());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        // Report this as unsupported. The block layer then writes zeros instead, or skips a discard.
        reply.error(Errno::EOPNOTSUPP);
    }
}
