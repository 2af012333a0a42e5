//! The `uring` backend: one Linux io_uring per queue. A single system call submits and reaps many requests.
//!
//! Single blocking reads and writes are plain positional calls, which cost less than a round trip through a ring.
//!
//! # Invariants
//! 1. A buffer and its file belong to their slot from the push until the completion has been reaped. The kernel writes
//!    to the buffer only in between.
//! 2. A queue frees its slots only after all its submitted requests have been reaped. If even the wait for them fails,
//!    the slots are leaked. The leak wastes memory, but the kernel never writes to memory that has a new owner.
//! 3. A slot has at most one entry in the submission ring, which has room for an entry of each slot and one interrupt.
//!    So a push never finds the ring full, and the completion ring, which is twice as large, never overflows.
//! 4. Both rings are changed only under the lock of `state`. The kernel is entered without the lock, so one thread can
//!    push while a second one waits.
//! 5. A fork of the process has a copy of the queue, but shares the rings with its parent. The fork never touches the
//!    rings: its requests fail, and it leaks its copy of the queue.
//!
//! # Rings shared by threads
//! The kernel posts the completion of a request in the thread that submitted it. If only one thread uses the queue, the
//! completion can wait until that thread enters the kernel (`COOP_TASKRUN`), which saves an interrupt. In a shared
//! queue, a different thread may be waiting for the completion, so the kernel interrupts the submitting thread.
//!
//! # Unused features, and the time that they would save
//! Measured on 4 KiB direct reads with 64 in flight, reaped 32 at a time, at 3.2 µs of processor time each:
//! - Rings bound to one thread (`SINGLE_ISSUER` with `DEFER_TASKRUN`) save 12 %. But a queue may move to a different
//!   thread while requests are in flight, and such a ring would reject that thread's calls.
//! - Registered files save 5 %. But the ring would keep them open, and thus locked, after their last handle was
//!   dropped.
//!
//! Registered buffers save 12 %. They pin memory, so callers have to ask for them ([`Queue::register`]).
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use super::disk::{DiskBackend, DiskFile, end_of_file, space_error};
use super::{AlignedBuffer, BackendFile, Completion, FileRef, Process, Queue, QueueOptions};
use crate::sync::Mutex;

/// The kernel's limit of 32,768 submissions in a ring, minus one for an interrupt.
const DEPTH_MAX: usize = 32_767;

/// The maximum size of a single transfer. The kernel transfers less than 2 GiB per request, so a longer request needs
/// several transfers.
const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// The maximum number of retries, 1 ms apart, of a submission that the kernel rejects for lack of memory.
const BUSY_TRIES_MAX: u32 = 1000;

/// Creates the backend if this process may use io_uring. To find out, sets up a ring and sends a real read through it.
pub(crate) fn backend() -> Result<DiskBackend, Refusal> {
    trial()?;
    let queue = |options| Ok(Box::new(UringQueue::new(options)?) as Box<dyn Queue>);
    Ok(DiskBackend::new("uring", Box::new(queue)))
}

/// The system call that failed, and its error.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) call: &'static str,
    pub(crate) error: io::Error,
}

fn trial() -> Result<(), Refusal> {
    let mut ring = IoUring::new(2).map_err(|error| Refusal { call: "io_uring_setup", error })?;
    let refused = |error| Refusal { call: "io_uring_enter", error };
    // `/dev/zero` always exists, and reading it never waits for a device.
    let zero = std::fs::File::open("/dev/zero").map_err(|error| Refusal { call: "open of /dev/zero", error })?;
    let mut buffer = AlignedBuffer::zeroed(AlignedBuffer::ALIGNMENT);
    buffer.fill(1);
    let read = opcode::Read::new(types::Fd(zero.as_raw_fd()), buffer.as_mut_ptr(), buffer.len() as u32).build();
    // SAFETY: buffer and file outlive the request. If waiting for its completion fails, they are leaked, unless the
    // kernel never accepted the entry. Test: `a_refused_ring_is_told_and_replaced`.
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
    // Linux before 5.6 has rings, but no plain read requests.
    if completion.result() < 0 {
        return Err(refused(io::Error::from_raw_os_error(-completion.result())));
    }
    if completion.result() as usize == buffer.len() && buffer.iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err(refused(io::Error::other("a read through it returned wrong bytes")))
    }
}

/// Creates a ring, with flags that avoid interrupts if the kernel supports them (5.19 and later).
fn ring(options: QueueOptions) -> io::Result<IoUring> {
    let entries = options.depth as u32 + 1;
    let builder = || {
        let mut builder = IoUring::builder();
        if options.polled {
            builder.setup_iopoll();
        }
        builder
    };
    if options.shared {
        return builder().build(entries);
    }
    match builder().setup_coop_taskrun().setup_taskrun_flag().build(entries) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => builder().build(entries),
        result => result,
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

/// A request in flight. It occupies a slot.
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

/// The effect of a completion on its request.
enum Outcome {
    Finished(io::Result<()>),
    Continue,
}

impl Request {
    /// Returns the ring entry for the bytes that remain to be transferred.
    fn entry(&mut self, slot: usize, queue_id: u64) -> squeue::Entry {
        let registration = self.buffer.registration(queue_id);
        let rest = &mut self.buffer[self.transferred..];
        let length = rest.len().min(TRANSFER_BYTES_MAX) as u32;
        let offset = self.offset + self.transferred as u64;
        let (file, start) = (self.descriptor, rest.as_mut_ptr());
        let entry = match (self.direction, registration) {
            (Direction::Read, None) => opcode::Read::new(file, start, length).offset(offset).build(),
            (Direction::Write, None) => opcode::Write::new(file, start, length).offset(offset).build(),
            (Direction::Read, Some(index)) => opcode::ReadFixed::new(file, start, length, index).offset(offset).build(),
            (Direction::Write, Some(index)) => {
                opcode::WriteFixed::new(file, start, length, index).offset(offset).build()
            }
        };
        entry.user_data(slot as u64)
    }

    fn advance(&mut self, result: i32) -> Outcome {
        if result < 0 {
            return match -result {
                // The transfer was interrupted, or cancelled because the submitting thread has ended. This is not a
                // failure.
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

/// A ring and the requests in it.
struct UringQueue {
    ring: IoUring,
    state: Mutex<State>,
    depth: usize,
    /// The number of requests in `state`. It is read without the lock of `state`, but changed only under that lock.
    in_flight: AtomicUsize,
    polled: bool,
    /// Distinguishes buffers registered with this queue from those of other queues.
    id: u64,
    process: Process,
}

#[derive(Default)]
struct State {
    slots: Vec<Option<Request>>,
    slots_free: Vec<usize>,
    ring_in_flight: usize,
    /// Completions of requests that never enter the ring, because they are empty or the push rejected them.
    settled: Vec<Completion>,
    /// The slots of the requests that must be continued. The list is reused, to retain its capacity.
    continued: Vec<usize>,
    /// Set while the ring contains an entry that interrupts a wait.
    interrupting: bool,
    has_registered: bool,
}

/// Marks the completion of an entry that belongs to no slot.
const INTERRUPT: u64 = u64::MAX;

/// The id of the next queue.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl UringQueue {
    fn new(options: QueueOptions) -> io::Result<UringQueue> {
        let depth = options.depth;
        if depth > DEPTH_MAX {
            let text = format!("a queue of depth {depth}: io_uring takes up to {DEPTH_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Process::watch()?;
        let state = State {
            slots: (0..depth).map(|_| None).collect(),
            slots_free: (0..depth).rev().collect(),
            ..State::default()
        };
        Ok(UringQueue {
            ring: ring(options)?,
            state: Mutex::new(state),
            depth,
            in_flight: AtomicUsize::new(0),
            polled: options.polled,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            process: Process::here(),
        })
    }

    fn push(&self, direction: Direction, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        let mut state = self.state.lock();
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        assert!(in_flight < self.depth, "more requests than the queue's depth of {}", self.depth);
        self.in_flight.store(in_flight + 1, Ordering::Relaxed);
        let accepted = self.check_process().and_then(|()| match file.as_any().downcast_ref::<DiskFile>() {
            Some(disk_file) => disk_file.check_request(&buffer, offset).map(|()| disk_file),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the file belongs to another backend")),
        });
        match accepted {
            Ok(disk_file) if !buffer.is_empty() => {
                let slot = state.slots_free.pop().expect("fewer in flight than there are slots");
                state.slots[slot] = Some(Request {
                    direction,
                    file: FileRef::clone(file),
                    descriptor: types::Fd(disk_file.handle().as_raw_fd()),
                    alignment: disk_file.alignment(),
                    offset,
                    buffer,
                    transferred: 0,
                    token,
                });
                state.ring_in_flight += 1;
                self.enqueue(&mut state, slot);
            }
            settled => {
                let result = settled.map(|_| ());
                state.settled.push(Completion { token, buffer, result, transferred: 0 });
            }
        }
    }

    /// Fails in a fork, so that the caller does not touch the ring there (invariant 5).
    fn check_process(&self) -> io::Result<()> {
        if self.process.is_here() { Ok(()) } else { Err(other_process()) }
    }

    fn enqueue(&self, state: &mut State, slot: usize) {
        let request = state.slots[slot].as_mut().expect("the slot is in use");
        let entry = request.entry(slot, self.id);
        // SAFETY: the lock of `state` is held (invariant 4). The slot keeps buffer and file until the entry's
        // completion has been reaped; `drop` waits for the completion or leaks both (invariants 1 and 2). The buffer's
        // bytes don't move when the slot does. Tests: `dropping_a_queue_in_flight`, `a_queue_that_moves` of
        // `crate::tests`.
        unsafe { self.ring.submission_shared().push(&entry) }.expect("the ring has an entry for each slot");
    }

    /// Returns two flags: whether requests are waiting to be submitted, and whether the kernel must be entered so that
    /// it posts completions.
    fn pending(&self, _: &State) -> (bool, bool) {
        // SAFETY: the caller has the lock of `state` (invariant 4). Test: `one_thread_pushes_while_another_waits` of
        // `crate::tests`.
        let submission = unsafe { self.ring.submission_shared() };
        (!submission.is_empty(), submission.taskrun() || submission.cq_overflow())
    }

    /// Returns `true` if no completion is ready to be reaped.
    fn has_nothing_to_reap(&self) -> bool {
        let _state = self.state.lock();
        // SAFETY: the lock of `state` is held (invariant 4). Test: `one_thread_pushes_while_another_waits`.
        unsafe { self.ring.completion_shared() }.is_empty()
    }

    /// Submits the pushed requests, and waits until at least `count` completions are ready to be reaped.
    fn enter(&self, count: usize) -> io::Result<()> {
        self.check_process()?;
        let mut tries = 0;
        loop {
            match self.ring.submit_and_wait(count) {
                Ok(_) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => return Ok(()),
                    // The kernel lacks memory for requests, or requires that completions be reaped first.
                    Some(libc::EAGAIN | libc::EBUSY) if !self.has_nothing_to_reap() => return Ok(()),
                    Some(libc::EAGAIN | libc::EBUSY) if tries < BUSY_TRIES_MAX => {
                        tries += 1;
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    _ => return Err(error),
                },
            }
        }
    }

    /// Appends the finished requests. Returns their number, and `true` if the wait was interrupted.
    fn reap(&self, state: &mut State, finished: &mut Vec<Completion>) -> (usize, bool) {
        let before = finished.len();
        let mut interrupted = false;
        finished.append(&mut state.settled);
        // SAFETY: the lock of `state` is held (invariant 4). Test: `one_thread_pushes_while_another_waits` of
        // `crate::tests`.
        for completion in unsafe { self.ring.completion_shared() } {
            if completion.user_data() == INTERRUPT {
                state.interrupting = false;
                interrupted = true;
                continue;
            }
            let slot = completion.user_data() as usize;
            let request = state.slots[slot].as_mut().expect("completions belong to slots in use");
            match request.advance(completion.result()) {
                Outcome::Continue => state.continued.push(slot),
                Outcome::Finished(result) => {
                    let request = state.slots[slot].take().expect("it was there above");
                    state.slots_free.push(slot);
                    state.ring_in_flight -= 1;
                    drop(request.file);
                    let Request { token, buffer, transferred, .. } = request;
                    let result = if self.polled { result.map_err(polling_error) } else { result };
                    finished.push(Completion { token, buffer, result, transferred });
                }
            }
        }
        while let Some(slot) = state.continued.pop() {
            self.enqueue(state, slot);
        }
        let count = finished.len() - before;
        self.in_flight.store(self.in_flight.load(Ordering::Relaxed) - count, Ordering::Relaxed);
        (count, interrupted)
    }
}

/// Returns the error for a queue that is used in a fork of its process.
#[cold]
fn other_process() -> io::Error {
    io::Error::other("the queue belongs to the process that this one was forked from; make another one here")
}

/// Adds an explanation to the error of a device that cannot be polled.
fn polling_error(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            let text = "the device cannot be polled: its driver needs queues for polling (NVMe: module parameter \
                        poll_queues), and the file must be direct";
            io::Error::new(io::ErrorKind::Unsupported, text)
        }
        _ => error,
    }
}

impl fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UringQueue({} of {} in flight)", self.in_flight(), self.depth())
    }
}

impl Queue for UringQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn push_read(&self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.push(Direction::Read, file, offset, buffer, token);
    }

    fn push_write(&self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.push(Direction::Write, file, offset, buffer, token);
    }

    fn submit(&self) -> io::Result<()> {
        let (has_pushed, _) = self.pending(&self.state.lock());
        if has_pushed { self.enter(0) } else { Ok(()) }
    }

    fn wait(&self, minimum: usize, finished: &mut Vec<Completion>) -> io::Result<()> {
        let mut state = self.state.lock();
        let target = minimum.min(self.in_flight());
        let (mut found, mut interrupted) = self.reap(&mut state, finished);
        // The kernel sets a flag if it must be entered to post completions. Enter it only once: the flag may stay set
        // if a thread has ended before the requests that it submitted.
        let (mut has_pushed, mut flagged) = self.pending(&state);
        loop {
            let missing = if interrupted { 0 } else { target.saturating_sub(found) };
            if missing == 0 && !flagged && !has_pushed {
                return Ok(());
            }
            drop(state);
            self.enter(missing)?;
            state = self.state.lock();
            let (more, interrupted_now) = self.reap(&mut state, finished);
            found += more;
            interrupted |= interrupted_now;
            (has_pushed, _) = self.pending(&state);
            flagged = false;
        }
    }

    fn interrupt(&self) {
        // A polled ring accepts only reads and writes, and its waits are short anyway.
        if self.polled || !self.process.is_here() {
            return;
        }
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.interrupting, true) {
            return;
        }
        let entry = opcode::Nop::new().build().user_data(INTERRUPT);
        // SAFETY: the lock of `state` is held (invariant 4), and the entry refers to no memory. Test:
        // `an_interrupt_ends_a_wait` of `crate::tests`.
        unsafe { self.ring.submission_shared().push(&entry) }.expect("the ring has an entry for an interrupt");
        drop(state);
        if let Err(error) = self.enter(0) {
            log::error!("a wait for I/O cannot be interrupted: {error}");
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring closes its descriptor when it is dropped, and the result borrows it. Test:
        // `a_loop_of_its_own_drives` of `crate::driver::tests`.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) })
    }

    fn register(&self, buffers: &[AlignedBuffer]) -> bool {
        let mut state = self.state.lock();
        if state.has_registered || self.check_process().is_err() {
            return false;
        }
        let Some(memory) = AlignedBuffer::group_memory(buffers) else { return false };
        let vector = libc::iovec { iov_base: memory.start.as_ptr().cast(), iov_len: memory.bytes };
        // SAFETY: the memory is mapped, since `buffers` are borrowed. The kernel keeps its pages until the ring is
        // closed, even if the process unmaps them earlier. Test: `registered_buffers` of `crate::tests`.
        if unsafe { self.ring.submitter().register_buffers(&[vector]) }.is_err() {
            return false;
        }
        state.has_registered = true;
        AlignedBuffer::set_registration(buffers, self.id);
        true
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        let mut finished = Vec::new();
        while self.state.lock().ring_in_flight > 0 {
            finished.clear();
            if let Err(error) = self.wait(1, &mut finished) {
                if self.process.is_here() {
                    log::error!("{} requests of a dropped queue cannot be awaited: {error}", self.in_flight());
                }
                std::mem::forget(std::mem::take(&mut self.state.lock().slots));
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

    /// Completions are interpreted correctly, including short and interrupted transfers, which a healthy drive never
    /// produces.
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

    /// Forbids the system call `number` to the calling thread, as a container's seccomp profile does for a process.
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

    /// If a system call is forbidden, `Auto` falls back to the portable backend, and the error of `Uring` names the
    /// call and the remedy.
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
