//! Counts the system calls that ask for durability, whichever library makes them.
//!
//! The counted code runs in a thread with a seccomp filter, which its child threads inherit. The kernel stops each call
//! that the filter selects and notifies a listener thread, which counts the call and lets it continue. No call is
//! changed or missed, except requests submitted through io_uring: [`SyncCounts::rings`] shows if any rings were
//! created.
//!
//! Stopping a call costs about 10 us, so the lab times nothing under the filter.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};

use serde::{Deserialize, Serialize};

/// The number of calls of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SyncCounts {
    /// `fsync`, `fdatasync`, `msync` with `MS_SYNC`, `sync` and `syncfs`: the file system makes data durable and
    /// flushes the drive's cache.
    pub(crate) syncs: u64,
    /// Writes that are durable when they return, as `O_DSYNC`, `O_SYNC` or `RWF_DSYNC` demands.
    pub(crate) durable_writes: u64,
    /// `sync_file_range`, which writes pages back without a flush.
    pub(crate) ranges: u64,
    /// io_uring instances created. Their requests can't be counted.
    pub(crate) rings: u64,
}

impl SyncCounts {
    /// Returns the calls made since an earlier count.
    pub(crate) fn since(self, earlier: SyncCounts) -> SyncCounts {
        SyncCounts {
            syncs: self.syncs - earlier.syncs,
            durable_writes: self.durable_writes - earlier.durable_writes,
            ranges: self.ranges - earlier.ranges,
            rings: self.rings - earlier.rings,
        }
    }
}

/// The counters that are updated while the counted code runs.
#[derive(Debug, Default)]
pub(crate) struct SyncCalls {
    syncs: AtomicU64,
    durable_writes: AtomicU64,
    ranges: AtomicU64,
    rings: AtomicU64,
}

impl SyncCalls {
    /// Returns the calls made so far. Every call that has returned is included.
    pub(crate) fn now(&self) -> SyncCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        SyncCounts {
            syncs: load(&self.syncs),
            durable_writes: load(&self.durable_writes),
            ranges: load(&self.ranges),
            rings: load(&self.rings),
        }
    }

    fn count(&self, call: &libc::seccomp_data) {
        let counter = match i64::from(call.nr) {
            libc::SYS_sync_file_range => &self.ranges,
            libc::SYS_io_uring_setup => &self.rings,
            libc::SYS_msync if call.args[2] & libc::MS_SYNC as u64 == 0 => return,
            libc::SYS_pwritev2 if call.args[5] & (libc::RWF_DSYNC | libc::RWF_SYNC) as u64 != 0 => &self.durable_writes,
            number if WRITES.contains(&number) => {
                if !writes_durably(call.args[0]) {
                    return;
                }
                &self.durable_writes
            }
            _ => &self.syncs,
        };
        counter.fetch_add(1, Ordering::Release);
    }
}

const WRITES: [i64; 5] = [libc::SYS_write, libc::SYS_pwrite64, libc::SYS_writev, libc::SYS_pwritev, libc::SYS_pwritev2];

const SYNCS: [i64; 7] = [
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_msync,
    libc::SYS_sync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    libc::SYS_io_uring_setup,
];

/// Returns `true` if this descriptor was opened for durable writes. The kernel has stopped the writing thread, so the
/// descriptor still refers to the same file.
fn writes_durably(descriptor: u64) -> bool {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|text| i32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0);
    flags & libc::O_DSYNC != 0
}

/// Runs `work` in a thread, and counts the calls of that thread and of its child threads.
///
/// # Errors
/// If the kernel does not permit a filter, or a different filter already has a listener.
pub(crate) fn count<T: Send>(work: impl FnOnce(&SyncCalls) -> T + Send) -> io::Result<T> {
    let calls = SyncCalls::default();
    let is_done = AtomicBool::new(false);
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        // Start the listener before installing the filter; otherwise the listener's own calls would be stopped.
        let (known_calls, known_end) = (&calls, &is_done);
        scope.spawn(move || listen(&receiver, known_calls, known_end));
        let worker = scope.spawn(|| {
            let listener = install()?;
            sender.send(listener).expect("the listening thread waits for it");
            Ok(work(&calls))
        });
        let result = worker.join();
        is_done.store(true, Ordering::Release);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Counts calls and lets them continue, until the work is done and no call is waiting.
fn listen(listener: &Receiver<OwnedFd>, calls: &SyncCalls, is_done: &AtomicBool) {
    let listener = loop {
        match listener.recv_timeout(std::time::Duration::from_millis(20)) {
            Ok(listener) => break listener,
            Err(_) if is_done.load(Ordering::Acquire) => return,
            Err(_) => {}
        }
    };
    loop {
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the call gets one entry, which stays valid during the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 20) };
        if ready <= 0 || poll.revents & libc::POLLIN == 0 {
            if is_done.load(Ordering::Acquire) {
                return;
            }
            continue;
        }
        // SAFETY: all-zero bytes are valid for this plain structure, and the kernel requires zeros.
        let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one such structure, which stays valid during the call.
        if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice) } != 0 {
            // The stopped thread was killed, or a signal interrupted this call.
            continue;
        }
        calls.count(&notice.data);
        let answer = libc::seccomp_notif_resp {
            id: notice.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        // This fails if the stopped thread has ended.
        // SAFETY: the kernel reads one such structure, which stays valid during the call.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    }
}

/// Installs the filter for this thread and its future threads. Returns the descriptor that reports the stopped calls.
fn install() -> io::Result<OwnedFd> {
    let mut program = filter();
    let header = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the flag concerns only this thread and its children; the call uses no memory.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel copies the program, which outlives the call and has the stated length.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const header,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the result is a descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// Returns a filter that stops the counted calls and lets all others pass.
fn filter() -> Vec<libc::sock_filter> {
    let numbers: Vec<i64> = SYNCS.into_iter().chain(WRITES).collect();
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // Load the number of the system call, the first field of the data that a filter receives.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for (index, number) in numbers.iter().enumerate() {
        // Jump over the remaining comparisons and the instruction that lets calls pass.
        let to_stop = (numbers.len() - index) as u8;
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        program.push(libc::sock_filter { code, jt: to_stop, jf: 0, k: *number as u32 });
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF));
    program
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    /// Each call is counted under its own kind, even in threads that the work starts. Plain writes are not counted.
    #[test]
    fn calls_are_counted_by_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let counted = count(|calls| {
            let mut file = File::create(&path).unwrap();
            file.write_all(b"plain").unwrap();
            file.sync_data().unwrap();
            let before = calls.now();
            assert_eq!(before, SyncCounts { syncs: 1, ..SyncCounts::default() });
            crate::sys::sync_file_range(&file, 0, 5).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| file.sync_all().unwrap());
            });
            let slices = [io::IoSlice::new(b"more")];
            rustix::io::pwritev2(&file, &slices, 0, rustix::io::ReadWriteFlags::DSYNC).unwrap();
            rustix::io::pwritev2(&file, &slices, 0, rustix::io::ReadWriteFlags::empty()).unwrap();
            let mut durable = File::options().write(true).custom_flags(libc::O_DSYNC).open(&path).unwrap();
            durable.write_all(b"durable").unwrap();
            calls.now().since(before)
        });
        match counted {
            Ok(counts) => assert_eq!(counts, SyncCounts { syncs: 1, durable_writes: 2, ranges: 1, rings: 0 }),
            Err(error) => assert!(
                matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ResourceBusy)
                    || error.raw_os_error() == Some(libc::EINVAL),
                "{error}"
            ),
        }
    }

    /// A panic of the counted code propagates, and the listening thread ends.
    #[test]
    fn a_panic_is_passed_on() {
        let panicked = std::panic::catch_unwind(|| count(|_| panic!("as planned")));
        assert!(panicked.is_err() || panicked.unwrap().is_err());
    }
}
