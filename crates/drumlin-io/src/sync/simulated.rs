//! The primitives of [`sync`](super) for builds with simulations. Each wraps the system's primitive. If the calling
//! thread belongs to a simulation, the primitive first asks the scheduler.
//!
//! They are at least as strict as the primitives that they replace. A reader waits if a writer is already waiting, so
//! taking a shared lock twice may deadlock, as it may outside of a simulation. `notify_one` wakes a random waiter.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use super::scheduler::{self, Task, Wait};

/// Returns the address of an object, which identifies the object for tasks that wait for it.
fn address<T: ?Sized>(what: &T) -> usize {
    std::ptr::from_ref(what).cast::<()>() as usize
}

/// Decodes the holder of a lock, which is stored as the number of its task plus one. 0 means that no task holds the
/// lock.
fn holder(stored: &AtomicUsize) -> Option<usize> {
    stored.load(Ordering::Relaxed).checked_sub(1)
}

// ── mutex ───────────────────────────────────────────────────────────────────────────────────────────────────────────

#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    holder: AtomicUsize,
    inner: parking_lot::Mutex<T>,
}

pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// `None` only while the task waits for a condition variable.
    inner: Option<parking_lot::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { holder: AtomicUsize::new(0), inner: parking_lot::Mutex::new(value) }
    }
}

impl<T: ?Sized> Mutex<T> {
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let inner = match scheduler::current() {
            None => self.inner.lock(),
            Some(task) => {
                task.point();
                self.take(&task, Location::caller())
            }
        };
        MutexGuard { mutex: self, inner: Some(inner) }
    }

    fn take(&self, task: &Task, place: &'static Location<'static>) -> parking_lot::MutexGuard<'_, T> {
        loop {
            if let Some(inner) = self.inner.try_lock() {
                self.holder.store(task.number + 1, Ordering::Relaxed);
                return inner;
            }
            let wait = Wait { what: address(self), kind: "a mutex", place, holder: holder(&self.holder) };
            task.wait(wait, None);
        }
    }

    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let task = scheduler::current();
        if let Some(task) = &task {
            task.point();
        }
        let inner = self.inner.try_lock()?;
        if let Some(task) = &task {
            self.holder.store(task.number + 1, Ordering::Relaxed);
        }
        Some(MutexGuard { mutex: self, inner: Some(inner) })
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.inner = None;
        released(address(self.mutex));
    }
}

/// Wakes the tasks that wait for a released object. They may retry before the caller continues.
#[inline]
fn released(what: usize) {
    if let Some(task) = scheduler::current() {
        task.wake(what);
        if !std::thread::panicking() {
            task.point();
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("held")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("held")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MutexGuard")
    }
}

// ── condition variable ──────────────────────────────────────────────────────────────────────────────────────────────

#[derive(Debug, Default)]
pub struct Condvar {
    inner: parking_lot::Condvar,
    /// The variable is identified by the address of this field. The field is not zero-sized, so no other object has the
    /// same address.
    place: u64,
}

/// The outcome of a timed wait: `true` if the wait ended at its deadline.
#[derive(Debug)]
pub struct TimedOut(bool);

impl TimedOut {
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar { inner: parking_lot::Condvar::new(), place: 0 }
    }

    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        let Some(task) = scheduler::current() else {
            return self.inner.wait(guard.inner.as_mut().expect("held"));
        };
        let place = Location::caller();
        guard.inner = None;
        // No point lies between these calls, so releasing the mutex and beginning to wait is one step.
        task.wake(address(guard.mutex));
        task.wait(Wait { what: address(&self.place), kind: "a condition", place, holder: None }, None);
        guard.inner = Some(guard.mutex.take(&task, place));
    }

    #[track_caller]
    pub fn wait_while<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, mut condition: impl FnMut(&mut T) -> bool) {
        while condition(&mut *guard) {
            self.wait(guard);
        }
    }

    /// Like [`wait`](Self::wait), but waits at most `timeout`.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> TimedOut {
        let Some(task) = scheduler::current() else {
            return TimedOut(self.inner.wait_for(guard.inner.as_mut().expect("held"), timeout).timed_out());
        };
        let place = Location::caller();
        guard.inner = None;
        task.wake(address(guard.mutex));
        let deadline = task.now().saturating_add(timeout);
        let wait = Wait { what: address(&self.place), kind: "a condition", place, holder: None };
        let timed_out = task.wait(wait, Some(deadline));
        guard.inner = Some(guard.mutex.take(&task, place));
        TimedOut(timed_out)
    }

    pub fn notify_one(&self) {
        match scheduler::current() {
            None => drop(self.inner.notify_one()),
            Some(task) => {
                task.wake_one(address(&self.place));
                task.point();
            }
        }
    }

    pub fn notify_all(&self) {
        match scheduler::current() {
            None => drop(self.inner.notify_all()),
            Some(task) => {
                task.wake(address(&self.place));
                task.point();
            }
        }
    }
}

// ── shared lock ─────────────────────────────────────────────────────────────────────────────────────────────────────

#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    writers_waiting: AtomicUsize,
    /// The task that took the lock last.
    holder: AtomicUsize,
    inner: parking_lot::RwLock<T>,
}

pub struct RwLockReadGuard<'a, T: ?Sized> {
    what: usize,
    inner: Option<parking_lot::RwLockReadGuard<'a, T>>,
}

pub struct RwLockWriteGuard<'a, T: ?Sized> {
    what: usize,
    inner: Option<parking_lot::RwLockWriteGuard<'a, T>>,
}

/// Not sharded, because only one task of a simulation runs at a time, so tasks do not contend for a cache line.
pub type ShardedLock = RwLock<()>;
pub type ShardedReadGuard<'a> = RwLockReadGuard<'a, ()>;
pub type ShardedWriteGuard<'a> = RwLockWriteGuard<'a, ()>;

impl<T> RwLock<T> {
    pub const fn new(value: T) -> RwLock<T> {
        RwLock {
            writers_waiting: AtomicUsize::new(0),
            holder: AtomicUsize::new(0),
            inner: parking_lot::RwLock::new(value),
        }
    }
}

impl<T: ?Sized> RwLock<T> {
    fn wait(&self, task: &Task, kind: &'static str, place: &'static Location<'static>) {
        task.wait(Wait { what: address(self), kind, place, holder: holder(&self.holder) }, None);
    }

    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let inner = match scheduler::current() {
            None => self.inner.read(),
            Some(task) => {
                task.point();
                let place = Location::caller();
                loop {
                    if self.writers_waiting.load(Ordering::Relaxed) == 0
                        && let Some(inner) = self.inner.try_read()
                    {
                        self.holder.store(task.number + 1, Ordering::Relaxed);
                        break inner;
                    }
                    self.wait(&task, "a shared lock, to share it,", place);
                }
            }
        };
        RwLockReadGuard { what: address(self), inner: Some(inner) }
    }

    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let inner = match scheduler::current() {
            None => self.inner.write(),
            Some(task) => {
                task.point();
                let place = Location::caller();
                loop {
                    if let Some(inner) = self.inner.try_write() {
                        self.holder.store(task.number + 1, Ordering::Relaxed);
                        break inner;
                    }
                    self.writers_waiting.fetch_add(1, Ordering::Relaxed);
                    self.wait(&task, "a shared lock, alone,", place);
                    self.writers_waiting.fetch_sub(1, Ordering::Relaxed);
                }
            }
        };
        RwLockWriteGuard { what: address(self), inner: Some(inner) }
    }

    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let task = scheduler::current();
        if let Some(task) = &task {
            task.point();
            if self.writers_waiting.load(Ordering::Relaxed) > 0 {
                return None;
            }
        }
        let inner = self.inner.try_read()?;
        if let Some(task) = &task {
            self.holder.store(task.number + 1, Ordering::Relaxed);
        }
        Some(RwLockReadGuard { what: address(self), inner: Some(inner) })
    }

    /// Tries to take the lock shared until `duration` has passed.
    #[track_caller]
    pub fn try_read_for(&self, duration: Duration) -> Option<RwLockReadGuard<'_, T>> {
        self.try_for(duration, || self.try_read())
    }

    /// Tries to take the lock exclusively until `duration` has passed.
    #[track_caller]
    pub fn try_write_for(&self, duration: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        self.try_for(duration, || self.try_write())
    }

    #[track_caller]
    fn try_for<G>(&self, duration: Duration, attempt: impl Fn() -> Option<G>) -> Option<G> {
        let place = Location::caller();
        let task = scheduler::current();
        let deadline = task.as_ref().map(|task| task.now().saturating_add(duration));
        let began = std::time::Instant::now();
        loop {
            if let Some(guard) = attempt() {
                return Some(guard);
            }
            match (&task, deadline) {
                (Some(task), Some(deadline)) if task.now() < deadline => {
                    let wait = Wait {
                        what: address(self),
                        kind: "a shared lock, for a while,",
                        place,
                        holder: holder(&self.holder),
                    };
                    task.wait(wait, Some(deadline));
                }
                (None, _) if began.elapsed() < duration => std::thread::yield_now(),
                _ => return None,
            }
        }
    }

    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let task = scheduler::current();
        if let Some(task) = &task {
            task.point();
        }
        let inner = self.inner.try_write()?;
        if let Some(task) = &task {
            self.holder.store(task.number + 1, Ordering::Relaxed);
        }
        Some(RwLockWriteGuard { what: address(self), inner: Some(inner) })
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.inner = None;
        released(self.what);
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.inner = None;
        released(self.what);
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("held")
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("held")
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("held")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLockReadGuard")
    }
}

impl<T: ?Sized> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLockWriteGuard")
    }
}

// ── threads ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/// A thread that can be unparked.
#[derive(Clone, Debug)]
pub struct Thread(std::thread::Thread);

impl Thread {
    pub fn id(&self) -> ThreadId {
        self.0.id()
    }

    pub fn unpark(&self) {
        match scheduler::current() {
            None => self.0.unpark(),
            Some(task) => task.unpark(self.0.id()),
        }
    }
}

pub fn current() -> Thread {
    Thread(std::thread::current())
}

#[track_caller]
pub fn park_timeout(timeout: Duration) {
    match scheduler::current() {
        None => std::thread::park_timeout(timeout),
        Some(task) => task.park(Some(timeout)),
    }
}

#[track_caller]
pub fn sleep(duration: Duration) {
    match scheduler::current() {
        None => std::thread::sleep(duration),
        Some(task) => task.sleep(duration),
    }
}

/// Yields. Virtual time passes, so that other tasks can make the progress that a spinning caller waits for.
#[track_caller]
pub fn yield_now() {
    match scheduler::current() {
        None => std::thread::yield_now(),
        Some(task) => task.sleep(Duration::from_nanos(200 + task.random() % 2000)),
    }
}

/// Waits for a thread to end.
#[track_caller]
pub fn join(thread: JoinHandle<()>) -> std::thread::Result<()> {
    if let Some(task) = scheduler::current() {
        task.join(thread.thread().id());
    }
    thread.join()
}

/// Returns the number of the calling thread in its simulation. The number is small, and the same in every run with the
/// same seed.
#[inline]
pub fn thread_number() -> Option<usize> {
    scheduler::current().map(|task| task.number)
}

/// Waits for a different thread to make progress: spins, or yields in a simulation.
#[derive(Debug, Default)]
pub struct Backoff(super::parking::Backoff);

impl Backoff {
    pub fn snooze(&self) {
        if scheduler::current().is_some() { yield_now() } else { self.0.snooze() }
    }
}

/// Parks one thread, its owner. Only its [`Unparker`] wakes the thread from this parker.
#[derive(Debug, Default)]
pub struct Parker {
    inner: super::parking::Parker,
}

#[derive(Clone, Debug)]
pub struct Unparker {
    inner: super::parking::Unparker,
    /// The owner of the parker, and the only thread that parks with it.
    thread: Thread,
}

impl Parker {
    #[track_caller]
    pub fn park(&self) {
        match scheduler::current() {
            None => self.inner.park(),
            Some(task) => task.park(None),
        }
    }

    pub fn unparker(&self) -> Unparker {
        Unparker { inner: self.inner.unparker().clone(), thread: current() }
    }
}

impl Unparker {
    pub fn unpark(&self) {
        if scheduler::current().is_some() { self.thread.unpark() } else { self.inner.unpark() }
    }
}
