//! The `uring` backend: one Linux io_uring per queue. A single system call submits and reaps many requests.
//!
//! Single blocking reads and writes are plain positional calls, which cost less than handing a request to a ring and
//! back.
//!
//! # Invariants
//! 1. A buffer and its file belong to their slot from push until their completion has been reaped. Only in between does
//!    the kernel write to the buffer.
//! 2. A queue is dropped only after every request it submitted has been reaped. If the kernel refuses even to wait, the
//!    slots are leaked. That loses memory, but the kernel never writes to memory that already belongs to another owner.
//! 3. A slot has at most one entry in the submission ring, which has an entry for each slot. So a push never finds it
//!    full, and the completion ring, which is twice as large, never overflows.
//!
//! # Features not used, and what they would save
//! Measured on 4 KiB direct reads, 64 in flight, reaped by halves, at 3.2 µs of processor time each:
//! - Rings bound to one thread (`SINGLE_ISSUER` with `DEFER_TASKRUN`) save 12 %. But a queue may move to another thread
//!   with requests in flight, which such a ring refuses.
//! - Registered buffers save 12 %. But they pin memory outside of the budget, and readers would have to take their
//!   buffers from the queue.
//! - Registered files save 5 %. But a ring keeps its files open, and so locked, after their last handle was dropped.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use super::disk::{DiskBackend, DiskFile, end_of_file, space_error};
use super::{AlignedBuffer, BackendFile, Completion, FileRef, Queue};

/// The kernel's limit for the submissions of a ring.
const DEPTH_MAX: usize = 32_768;

/// The kernel transfers less than 2 GiB at once. Longer requests are continued.
const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// The maximum number of tries, 1 ms apart, of a submission that the kernel refuses for lack of memory.
const BUSY_TRIES_MAX: u32 = 1000;

/// Creates the backend if this process may use io_uring: sets up a ring and sends a real read through it.
pub(crate) fn backend() -> Result<DiskBackend, Refusal> {
    trial()?;
    let queue = |depth| Ok(Box::new(UringQueue::new(depth)?) as Box<dyn Queue>);
    Ok(DiskBackend::new("uring", Box::new(queue)))
}

/// The system call that failed, and its error.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) call: &'static str,
    pub(crate) error: io::Error,
}

fn trial() -> Result<(), Refusal> {
    let mut ring = ring(2).map_err(|error| Refusal { call: "io_uring_setup", error })?;
    let refused = |error| Refusal { call: "io_uring_enter", error };
    // This file always exists, and reading it never waits for a device.
    let zero = std::fs::File::open("/dev/zero").map_err(|error| Refusal { call: "open of /dev/zero", error })?;
    let mut buffer = AlignedBuffer::zeroed(AlignedBuffer::ALIGNMENT);
    buffer.fill(1);
    let read = opcode::Read::new(types::Fd(zero.as_raw_fd()), buffer.as_mut_ptr(), buffer.len() as u32).build();
    // SAFETY: buffer and file outlive the request: if its completion cannot be awaited, they are leaked, unless the
    // kernel has not taken the entry at all. Test: `a_refused_ring_is_told_and_replaced`.
    unsafe { ring.submission().push(&read) }.expect("an empty ring has room");
    let entered = loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result,
        }
    };
    let Some(completion) = ring.completion().next() else {
        if ring.submission().is_empty() {
            std::mem::forget((buffer, zero));
        }
        let nothing = || io::Error::other("it returned without the completion it was asked to wait for");
        return Err(refused(entered.err().unwrap_or_else(nothing)));
    };
    // Linux before 5.6 has rings, but not this request.
    if completion.result() < 0 {
        return Err(refused(io::Error::from_raw_os_error(-completion.result())));
    }
    if completion.result() as usize == buffer.len() && buffer.iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err(refused(io::Error::other("a read through it returned wrong bytes")))
    }
}

/// Creates a ring, with the flags that avoid interrupts if the kernel has them (5.19 and later).
fn ring(entries: u32) -> io::Result<IoUring> {
    let cooperative = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries);
    match cooperative {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => IoUring::new(entries),
        result => result,
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

/// A request that is in flight, in its slot.
struct Request {
    direction: Direction,
    file: FileRef,
    descriptor: types::Fd,
    alignment: usize,
    offset: u64,
    buffer: AlignedBuffer,
    transferred: usize,
    token: u64,
}

/// The consequence of a completion for its request.
enum Outcome {
    Finished(io::Result<()>),
    Continue,
}

impl Request {
    /// Returns the ring entry for the bytes that are still to be transferred.
    fn entry(&mut self, slot: usize) -> squeue::Entry {
        let rest = &mut self.buffer[self.transferred..];
        let length = rest.len().min(TRANSFER_BYTES_MAX) as u32;
        let offset = self.offset + self.transferred as u64;
        let entry = match self.direction {
            Direction::Read => opcode::Read::new(self.descriptor, rest.as_mut_ptr(), length).offset(offset).build(),
            Direction::Write => opcode::Write::new(self.descriptor, rest.as_ptr(), length).offset(offset).build(),
        };
        entry.user_data(slot as u64)
    }

    fn advance(&mut self, result: i32) -> Outcome {
        if result < 0 {
            return match -result {
                // Interrupted, or cancelled because the thread that submitted it has ended. Nothing has failed.
                libc::EINTR | libc::EAGAIN | libc::ECANCELED => Outcome::Continue,
                code => Outcome::Finished(Err(space_error(io::Error::from_raw_os_error(code)))),
            };
        }
        let count = result as usize;
        self.transferred += count;
        if self.transferred == self.buffer.len() {
            return Outcome::Finished(Ok(()));
        }
        let inside_block = self.transferred % self.alignment;
        match self.direction {
            // A direct read stops inside a block only at the end of the file.
            Direction::Read if count == 0 || inside_block != 0 => Outcome::Finished(Err(end_of_file())),
            Direction::Write if count <= inside_block => Outcome::Finished(Err(io::ErrorKind::WriteZero.into())),
            _ => {
                self.transferred -= inside_block;
                Outcome::Continue
            }
        }
    }
}

/// A ring and its requests.
struct UringQueue {
    ring: IoUring,
    slots: Vec<Option<Request>>,
    slots_free: Vec<usize>,
    /// Requests handed to the ring and not reaped yet.
    ring_in_flight: usize,
    /// Requests that were refused at push, or are empty: there is nothing to wait for.
    settled: Vec<Completion>,
    /// Slots whose request must be continued; kept for its capacity.
    continued: Vec<usize>,
}

impl UringQueue {
    fn new(depth: usize) -> io::Result<UringQueue> {
        if depth > DEPTH_MAX {
            let text = format!("a queue of depth {depth}: io_uring takes up to {DEPTH_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(UringQueue {
            ring: ring(depth as u32)?,
            slots: (0..depth).map(|_| None).collect(),
            slots_free: (0..depth).rev().collect(),
            ring_in_flight: 0,
            settled: Vec::new(),
            continued: Vec::new(),
        })
    }

    fn push(&mut self, direction: Direction, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        assert!(self.in_flight() < self.slots.len(), "more requests than the queue's depth of {}", self.slots.len());
        let accepted = match file.as_any().downcast_ref::<DiskFile>() {
            Some(disk_file) => disk_file.check_request(&buffer, offset).map(|()| disk_file),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the file belongs to another backend")),
        };
        match accepted {
            Ok(disk_file) if !buffer.is_empty() => {
                let slot = self.slots_free.pop().expect("fewer in flight than there are slots");
                self.slots[slot] = Some(Request {
                    direction,
                    file: FileRef::clone(file),
                    descriptor: types::Fd(disk_file.handle().as_raw_fd()),
                    alignment: disk_file.alignment(),
                    offset,
                    buffer,
                    transferred: 0,
                    token,
                });
                self.ring_in_flight += 1;
                self.enqueue(slot);
            }
            settled => {
                let result = settled.map(|_| ());
                self.settled.push(Completion { token, buffer, result });
            }
        }
    }

    fn enqueue(&mut self, slot: usize) {
        let request = self.slots[slot].as_mut().expect("the slot is in use");
        let entry = request.entry(slot);
        // SAFETY: the slot keeps buffer and file until the entry's completion has been reaped, and `drop` waits for
        // that or leaks them (invariants 1 and 2). The buffer's bytes do not move when the slot does. Tests:
        // `dropping_a_queue_in_flight`, `a_queue_that_moves` of `crate::tests`.
        unsafe { self.ring.submission().push(&entry) }.expect("the ring has an entry for each slot");
    }

    /// Submits the pushed requests and waits until `count` completions can be reaped.
    fn enter(&mut self, count: usize) -> io::Result<()> {
        let mut tries = 0;
        loop {
            match self.ring.submit_and_wait(count) {
                Ok(_) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => return Ok(()),
                    // The kernel lacks memory for requests, or completions are waiting to be reaped.
                    Some(libc::EAGAIN | libc::EBUSY) if !self.ring.completion().is_empty() => return Ok(()),
                    Some(libc::EAGAIN | libc::EBUSY) if tries < BUSY_TRIES_MAX => {
                        tries += 1;
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    _ => return Err(error),
                },
            }
        }
    }

    /// Appends the finished requests and returns their number.
    fn reap(&mut self, finished: &mut Vec<Completion>) -> usize {
        let before = finished.len();
        finished.append(&mut self.settled);
        for completion in self.ring.completion() {
            let slot = completion.user_data() as usize;
            let request = self.slots[slot].as_mut().expect("completions belong to slots in use");
            match request.advance(completion.result()) {
                Outcome::Continue => self.continued.push(slot),
                Outcome::Finished(result) => {
                    let request = self.slots[slot].take().expect("it was there above");
                    self.slots_free.push(slot);
                    self.ring_in_flight -= 1;
                    drop(request.file);
                    finished.push(Completion { token: request.token, buffer: request.buffer, result });
                }
            }
        }
        while let Some(slot) = self.continued.pop() {
            self.enqueue(slot);
        }
        finished.len() - before
    }
}

impl fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UringQueue({} of {} in flight)", self.in_flight(), self.depth())
    }
}

impl Queue for UringQueue {
    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn in_flight(&self) -> usize {
        self.ring_in_flight + self.settled.len()
    }

    fn push_read(&mut self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.push(Direction::Read, file, offset, buffer, token);
    }

    fn push_write(&mut self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.push(Direction::Write, file, offset, buffer, token);
    }

    fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() { Ok(()) } else { self.enter(0) }
    }

    fn wait(&mut self, minimum: usize, finished: &mut Vec<Completion>) -> io::Result<()> {
        let target = minimum.min(self.in_flight());
        let mut found = self.reap(finished);
        // The kernel sets a flag for completions that it posts only when it is entered. Entering once is enough: the
        // flag may stay set if a thread ended before requests that it had submitted.
        let submission = self.ring.submission();
        let mut flagged = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        loop {
            let missing = target.saturating_sub(found);
            if missing == 0 && !flagged && self.ring.submission().is_empty() {
                return Ok(());
            }
            self.enter(missing)?;
            flagged = false;
            found += self.reap(finished);
        }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        let mut finished = Vec::new();
        while self.ring_in_flight > 0 {
            finished.clear();
            if let Err(error) = self.wait(1, &mut finished) {
                log::error!("{} requests of a dropped queue cannot be awaited: {error}", self.ring_in_flight);
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::select::select;
    use super::super::{Backend, IoBackend, OpenOptions};
    use super::*;

    /// Completions are interpreted correctly, including short and interrupted ones that a healthy drive never produces.
    #[test]
    fn short_and_interrupted_transfers_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = crate::backend::portable::backend().open(&folder.path().join("file"), options).unwrap();
        let begin = |direction, alignment| Request {
            direction,
            file: FileRef::clone(&file),
            descriptor: types::Fd(0),
            alignment,
            offset: 0,
            buffer: AlignedBuffer::zeroed(16_384),
            transferred: 0,
            token: 0,
        };
        let kind = |outcome| match outcome {
            Outcome::Continue => None,
            Outcome::Finished(result) => Some(result.map_err(|error| error.kind())),
        };
        for direction in [Direction::Read, Direction::Write] {
            let mut request = begin(direction, 4096);
            for code in [libc::EINTR, libc::EAGAIN, libc::ECANCELED] {
                assert_eq!(kind(request.advance(-code)), None);
            }
            assert_eq!(kind(request.advance(8192)), None);
            assert_eq!(request.transferred, 8192);
            assert_eq!(kind(request.advance(8192)), Some(Ok(())));
            let error = request.advance(-libc::EIO);
            assert!(matches!(error, Outcome::Finished(Err(error)) if error.raw_os_error() == Some(libc::EIO)));
            assert_eq!(kind(request.advance(-libc::EDQUOT)), Some(Err(io::ErrorKind::StorageFull)));
        }
        let end = Some(Err(io::ErrorKind::UnexpectedEof));
        assert_eq!(kind(begin(Direction::Read, 4096).advance(0)), end);
        assert_eq!(kind(begin(Direction::Read, 4096).advance(5000)), end, "only the end stops inside a block");
        assert_eq!(kind(begin(Direction::Read, 1).advance(5000)), None);
        let mut write = begin(Direction::Write, 4096);
        assert_eq!(kind(write.advance(5000)), None);
        assert_eq!(write.transferred, 4096, "a direct write goes on at a block's start");
        assert_eq!(kind(write.advance(100)), Some(Err(io::ErrorKind::WriteZero)));
    }

    /// Forbids the system call `number` to the calling thread, as a container's seccomp profile does to a process.
    fn forbid(number: libc::c_long) {
        let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut program = [
            // The number of the system call is at offset 0.
            statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
            statement((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, number as u32),
            statement((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            statement((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: both calls change only this thread, and the filter is copied before the second one returns.
        let results = unsafe {
            let promised = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            (promised, libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter))
        };
        assert_eq!(results, (0, 0), "{}", std::io::Error::last_os_error());
    }

    /// If a system call is forbidden, `Auto` falls back, and the error of `Uring` names the call and the remedy.
    #[test]
    fn a_refused_ring_is_told_and_replaced() {
        for (number, call) in
            [(libc::SYS_io_uring_setup, "io_uring_setup"), (libc::SYS_io_uring_enter, "io_uring_enter")]
        {
            let thread = std::thread::spawn(move || {
                if select(IoBackend::Uring).is_err() {
                    return; // This machine forbids io_uring anyway.
                }
                forbid(number);
                assert_eq!(select(IoBackend::Auto).unwrap().name(), "portable");
                let error = select(IoBackend::Uring).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
                let text = error.to_string();
                assert!(text.contains(call) && text.contains("os error 1"), "{text}");
                assert!(text.contains("seccomp"), "{text}");
            });
            thread.join().unwrap();
        }
    }
}
