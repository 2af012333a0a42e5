//! The driver: submits and collects requests on behalf of tasks and threads.
//!
//! All requests of a [`Driver`] go through one [`Queue`](crate::Queue). One waiting thread collects the finished
//! requests of all threads and tasks. It is either a thread in [`Driver::block_on`], or the driver's own thread, which
//! starts when a task of a different executor waits, and sleeps while no task or parked thread depends on it. See
//! [`reactor`] for how the threads take turns.

mod calls;
mod operation;
mod reactor;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use crate::backend::{self, Backend, IoBackend, QueueOptions};
use crate::read::BufferHome;
use crate::sync::{Parker, Unparker};
use crate::workers::Workers;
pub use operation::Operation;
pub(crate) use operation::{Outcome, Transfer, into_buffer, into_read};
use reactor::Class;
pub(crate) use reactor::Direction;
use reactor::{DrivingThread, Reactor, WaitFlags};

/// The maximum number of threads for calls that can only block: opening, syncing, allocating.
const WORKER_THREADS_MAX: usize = 4;

/// The settings of a [`Driver`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DriverOptions {
    /// The kind of backend.
    pub backend: IoBackend,
    /// The maximum number of requests in flight; default 256. Requests above it wait in order of arrival.
    pub depth: usize,
    /// The size of the driver's buffers for reads, in bytes; default 4,096. A larger read allocates its own buffer.
    pub buffer_bytes: usize,
    /// The maximum number of these buffers that the driver keeps for reuse; default 256.
    pub buffers: usize,
    /// Registers these buffers with the kernel if the backend can. Reads into them need 12 % less processor time (4
    /// KiB, direct, io_uring). The kernel pins them in memory, and counts them against the `RLIMIT_MEMLOCK` of an
    /// unprivileged process. Default `false`.
    pub registered: bool,
    /// Polls the device instead of waiting for interrupts. See [`QueueOptions::polled`]. Default `false`.
    pub polled: bool,
    /// Promises that only one thread uses the driver, and waits in [`Driver::block_on`]. Then finished requests don't
    /// interrupt that thread: it collects them when it next waits. A task of a different executor may wait longer than
    /// necessary. Default `false`.
    pub one_thread: bool,
    /// Lets the driver start a thread when a task of a different executor waits. If `false`, the program must call
    /// [`Driver::turn`] itself, for instance whenever [`Driver::as_fd`] is readable. Default `true`.
    pub thread: bool,
}

impl Default for DriverOptions {
    fn default() -> DriverOptions {
        DriverOptions {
            backend: IoBackend::Auto,
            depth: 256,
            buffer_bytes: 4096,
            buffers: 256,
            registered: false,
            polled: false,
            one_thread: false,
            thread: true,
        }
    }
}

/// Does the I/O of [`File`](crate::File)s, for blocking threads and for tasks of any executor.
///
/// Clones share one queue. A program usually has one driver. A thread-per-core program has one driver on each thread,
/// and calls [`block_on`](Self::block_on) there, so no thread handles the I/O of a different one.
///
/// # Examples
/// ```
/// use drumlin_io::{Driver, File, OpenOptions};
///
/// let driver = Driver::new()?;
/// let path = std::env::temp_dir().join(format!("drumlin-{:016x}", driver.backend().random()));
/// driver.block_on(async {
///     let file = File::create(&driver, &path).await?;
///     file.write_at(0, b"hills in a row").await?;
///     file.sync_data().await?;
///     let (first, second) = (file.read_at(0, 5), file.read_at(11, 3));
///     assert_eq!(&first.await?[..], b"hills");
///     assert_eq!(&second.await?[..], b"row");
///     driver.remove(&path).await
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Driver {
    shared: Arc<Shared>,
    class: Class,
}

struct Shared {
    reactor: Arc<Reactor>,
    home: Arc<BufferHome>,
    buffer_bytes: usize,
    workers: Workers,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.reactor.close();
        if self.reactor.is_here() {
            self.workers.stop();
        } else {
            // This is a fork. The threads that the queue may need exist only in the parent process, so dropping the
            // queue here could hang.
            std::mem::forget(Arc::clone(&self.reactor));
        }
    }
}

impl Driver {
    /// Creates a driver with the default settings: io_uring if the system allows it, otherwise a pool of threads.
    ///
    /// # Errors
    /// The errors of [`with_options`](Self::with_options).
    pub fn new() -> io::Result<Driver> {
        Driver::with_options(DriverOptions::default())
    }

    /// Creates a driver for the operating system's files.
    ///
    /// # Errors
    /// The errors of [`backend`](crate::backend()); `Unsupported` if polling is requested and the backend cannot poll;
    /// `InvalidInput` if the depth is 0 or more than 32,767.
    pub fn with_options(options: DriverOptions) -> io::Result<Driver> {
        Driver::on(backend::backend(options.backend)?, options)
    }

    /// Creates a driver on the given backend, for instance files in memory or a test's simulated disk. Ignores
    /// `options.backend`.
    ///
    /// # Errors
    /// The errors of [`Backend::queue_with`].
    pub fn on(backend: Arc<dyn Backend>, options: DriverOptions) -> io::Result<Driver> {
        let DriverOptions { depth, polled, one_thread, .. } = options;
        let queue = backend.queue_with(QueueOptions { depth, shared: !one_thread, polled })?;
        let buffer_bytes = options.buffer_bytes.max(1).next_multiple_of(crate::BLOCK_BYTES);
        let home = BufferHome::new(buffer_bytes, options.buffers, if options.registered { options.buffers } else { 0 });
        if options.registered {
            home.register(queue.as_ref());
        }
        let workers = Workers::new(Arc::clone(&backend), WORKER_THREADS_MAX);
        let reactor = Reactor::new(backend, queue, options.thread)?;
        Ok(Driver { shared: Arc::new(Shared { reactor, home, buffer_bytes, workers }), class: Class::Foreground })
    }

    /// Returns the backend whose files the driver reads and writes.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        self.shared.reactor.backend()
    }

    /// Returns a handle for background work, which yields to foreground requests. While foreground requests are in
    /// flight, or were within the last millisecond, background requests are at most `share` (between 0 and 1) of all
    /// requests in flight. One background request may always be in flight, so background work progresses however busy
    /// the device is. Without foreground requests, it may use the whole device. All background handles of a driver have
    /// the same share: the one that was set last.
    ///
    /// # Panics
    /// If `share` is not between 0 and 1.
    #[must_use]
    pub fn background(&self, share: f64) -> Driver {
        assert!((0.0..=1.0).contains(&share), "the share {share} is not between 0 and 1");
        self.shared.reactor.set_share(share);
        Driver { shared: Arc::clone(&self.shared), class: Class::Background }
    }

    /// Runs a future on the calling thread. While the future waits, the thread itself collects finished requests,
    /// instead of receiving them from a different thread. So a read costs no more than in a runtime built on io_uring.
    ///
    /// All requests that the future begins before it next waits are submitted together.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let reactor = &self.shared.reactor;
        let mut future = pin!(future);
        let parker = Parker::default();
        let flags = WaitFlags::default();
        flags.is_woken.store(true, Ordering::Relaxed);
        let signal = Arc::new(Signal { reactor: Arc::clone(reactor), flags, unparker: parker.unparker().clone() });
        let waker = Waker::from(Arc::clone(&signal));
        let mut context = Context::from_waker(&waker);
        loop {
            if signal.flags.is_woken.swap(false, Ordering::SeqCst) {
                let _mark = DrivingThread::mark(reactor);
                if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                    reactor.leave();
                    return value;
                }
            } else if !reactor.drive(&signal.flags) {
                let _parked = reactor.parked();
                while !signal.flags.is_woken.load(Ordering::SeqCst) {
                    parker.park();
                }
            }
        }
    }

    /// Collects the finished requests without waiting, wakes the tasks that wait for them, and returns the number of
    /// finished requests. For programs that drive the I/O from their own event loop; see [`DriverOptions::thread`].
    ///
    /// # Errors
    /// The queue has failed. All requests in flight fail, and no later request can begin.
    pub fn turn(&self) -> io::Result<usize> {
        self.shared.reactor.turn()
    }

    /// Returns a descriptor that becomes readable when a request has finished, for `epoll` or a similar call. Returns
    /// `None` if the backend has no such descriptor. Only io_uring has one.
    #[must_use]
    pub fn as_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.shared.reactor.as_fd()
    }

    /// Returns the number of requests that have begun but have not finished yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.reactor.in_flight()
    }

    pub(crate) fn reactor(&self) -> &Arc<Reactor> {
        &self.shared.reactor
    }

    pub(crate) fn class(&self) -> Class {
        self.class
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.shared.workers
    }

    /// Returns the driver's buffers, or `None` if a read of `bytes` is larger than one of them.
    pub(crate) fn home(&self, bytes: usize) -> Option<&Arc<BufferHome>> {
        (bytes <= self.shared.buffer_bytes).then_some(&self.shared.home)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({}, {} in flight)", self.backend().name(), self.in_flight())
    }
}

/// The waker of a thread in [`Driver::block_on`], which may be parked or collecting requests.
struct Signal {
    reactor: Arc<Reactor>,
    flags: WaitFlags,
    unparker: Unparker,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.flags.is_woken.store(true, Ordering::SeqCst);
        if self.flags.is_waiting.load(Ordering::SeqCst) {
            self.reactor.interrupt();
        }
        self.unparker.unpark();
    }
}
