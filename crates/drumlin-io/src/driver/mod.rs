//! Drives requests on behalf of tasks and threads.
//!
//! All requests of a [`Driver`] go through one [`Queue`](crate::Queue). A thread that waits collects what has finished,
//! for all: a thread in [`Driver::block_on`], or a thread of the driver's own, which starts when a task of another
//! executor waits, and sleeps while nothing is in flight that anybody waits for. See [`reactor`] for how they agree.

mod operation;
mod reactor;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
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

/// The threads for calls that only block: opening, syncing, allocating.
const WORKER_THREADS_MAX: usize = 4;

/// The settings of a [`Driver`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DriverOptions {
    /// The kind of backend.
    pub backend: IoBackend,
    /// The number of requests in flight at once; default 256. Further ones wait in the order in which they came.
    pub depth: usize,
    /// The size of the buffers that reads take from the driver, in bytes; default 4,096. A larger read allocates a
    /// buffer of its own.
    pub buffer_bytes: usize,
    /// The number of these buffers that are kept for further reads; default 256.
    pub buffers: usize,
    /// Registers these buffers with the device, if it can: reads into them take 12 % less processor time (4 KiB,
    /// direct, io_uring). They are pinned in memory, which counts against `RLIMIT_MEMLOCK` for a process without
    /// privileges. Default `false`.
    pub registered: bool,
    /// Polls the device instead of waiting for interrupts. See [`QueueOptions::polled`]. Default `false`.
    pub polled: bool,
    /// Only one thread uses the driver, and waits in [`Driver::block_on`]. Finished requests need not interrupt it
    /// then: it notices them when it waits next. A task of another executor may wait longer than necessary. Default
    /// `false`.
    pub one_thread: bool,
    /// Lets the driver start a thread when a task of another executor waits. Without it, the program must call
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

/// Does the I/O of [`File`](crate::File)s, for threads that block and for tasks of any executor.
///
/// Clones share one queue. A program usually has one driver. A program that pins work to threads has one for each, and
/// calls [`block_on`](Self::block_on) there: then no other thread takes part in its I/O.
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
            // The threads that the queue may need are in the other process, so it cannot be dropped here.
            std::mem::forget(Arc::clone(&self.reactor));
        }
    }
}

impl Driver {
    /// Creates a driver with the default settings: io_uring if the system allows it, otherwise a pool of threads.
    ///
    /// # Errors
    /// Those of [`with_options`](Self::with_options).
    pub fn new() -> io::Result<Driver> {
        Driver::with_options(DriverOptions::default())
    }

    /// Creates a driver for the operating system's files.
    ///
    /// # Errors
    /// Those of [`backend`](crate::backend()); `Unsupported` if the device must be polled and the backend cannot;
    /// `InvalidInput` if the depth is 0 or more than 32,767.
    pub fn with_options(options: DriverOptions) -> io::Result<Driver> {
        Driver::on(backend::backend(options.backend)?, options)
    }

    /// Creates a driver on this backend, whatever kind the options name: files in memory, or a disk that a test has
    /// made.
    ///
    /// # Errors
    /// Those of [`Backend::queue_with`].
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

    /// Returns a handle for work that yields: of the requests in flight, its share is at most `share` (between 0 and 1)
    /// while other requests are in flight or were within the last millisecond. At least one of its requests is always
    /// in flight, so it progresses however busy the device is, and it has the whole device to itself if no other
    /// request uses it. All background handles of a driver have one share, the last one given.
    ///
    /// # Panics
    /// If `share` is not between 0 and 1.
    #[must_use]
    pub fn background(&self, share: f64) -> Driver {
        assert!((0.0..=1.0).contains(&share), "the share {share} is not between 0 and 1");
        self.shared.reactor.set_share(share);
        Driver { shared: Arc::clone(&self.shared), class: Class::Background }
    }

    /// Runs a future on the calling thread. While it waits, the thread collects finished requests itself, so that they
    /// need not pass through another thread: a read then costs what it costs in a runtime built on io_uring.
    ///
    /// Requests that the future begins are submitted together when it waits next.
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

    /// Collects what has finished, wakes the tasks that wait for it, and returns without waiting. Returns the number of
    /// finished requests. For programs that drive the I/O in a loop of their own; see [`DriverOptions::thread`].
    ///
    /// # Errors
    /// The queue has failed. All requests in flight fail then, and no further one can begin.
    pub fn turn(&self) -> io::Result<usize> {
        self.shared.reactor.turn()
    }

    /// Returns the descriptor that is readable when a request has finished, for `epoll` and the like; `None` if the
    /// backend has none (only io_uring has one).
    #[must_use]
    pub fn as_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.shared.reactor.as_fd()
    }

    /// Returns the number of requests that have begun and not finished.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.reactor.in_flight()
    }

    /// Renames a file within its folder or to another one, replacing any file of that name, and makes the names durable
    /// in both.
    ///
    /// # Errors
    /// Any that the system reports. If only a sync of a folder fails, the file has been renamed, but a power cut may
    /// undo that.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<()> {
        let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
        self.on_backend(move |backend| {
            backend.rename(&from, &to)?;
            let (old, new) = (folder_of(&from), folder_of(&to));
            backend.sync_dir(&new)?;
            if old == new { Ok(()) } else { backend.sync_dir(&old) }
        })
    }

    /// Removes a file and makes that durable. Open handles of the file stay valid.
    ///
    /// # Errors
    /// Any that the system reports.
    pub fn remove(&self, path: impl AsRef<Path>) -> Operation<()> {
        let path = path.as_ref().to_owned();
        self.on_backend(move |backend| {
            backend.remove(&path)?;
            backend.sync_dir(&folder_of(&path))
        })
    }

    /// Makes the names of the files in a folder durable: those created, renamed and removed before. A new file survives
    /// a power cut only after its own sync and this one.
    ///
    /// # Errors
    /// Any that the system reports.
    pub fn sync_folder(&self, path: impl AsRef<Path>) -> Operation<()> {
        let path = path.as_ref().to_owned();
        self.on_backend(move |backend| backend.sync_dir(&path))
    }

    fn on_backend<T: Send + 'static>(
        &self,
        body: impl FnOnce(&dyn Backend) -> io::Result<T> + Send + 'static,
    ) -> Operation<T> {
        let backend = Arc::clone(self.backend());
        self.run(move || body(backend.as_ref()))
    }

    /// Returns the operation that calls `body`: on the thread that waits for it, or on a worker for a task.
    pub(crate) fn run<T: Send + 'static>(&self, body: impl FnOnce() -> io::Result<T> + Send + 'static) -> Operation<T> {
        Operation::call(self.clone(), Box::new(body))
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

    /// Returns the home of the buffers for reads of `bytes`, or `None` if they are larger than its buffers.
    pub(crate) fn home(&self, bytes: usize) -> Option<&Arc<BufferHome>> {
        (bytes <= self.shared.buffer_bytes).then_some(&self.shared.home)
    }
}

/// Returns the folder that a path leads to. Empty is the current one.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({}, {} in flight)", self.backend().name(), self.in_flight())
    }
}

/// Wakes a thread in [`Driver::block_on`], whether it is parked or collects requests.
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
