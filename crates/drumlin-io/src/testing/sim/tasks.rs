//! Functions that run a simulation, and functions for its tasks. They need the feature `sim`.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sync::scheduler::current;
pub use crate::sync::scheduler::{Outcome, Schedule, run};

/// Starts a task of the calling thread's simulation. Outside of a simulation, starts a thread.
///
/// # Errors
/// Any error that the operating system reports.
pub fn spawn(name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
    match current() {
        Some(task) => task.scheduler.start(name, body),
        None => std::thread::Builder::new().name(name.to_owned()).spawn(body),
    }
}

/// Waits for a task that [`spawn`] started.
///
/// # Errors
/// If the task panicked, the value of the panic.
pub fn join(task: JoinHandle<()>) -> std::thread::Result<()> {
    crate::sync::join(task)
}

/// Sleeps. In a simulation, only simulated time passes.
pub fn sleep(duration: Duration) {
    crate::sync::sleep(duration);
}

/// Returns the simulation's time, or zero outside of a simulation.
#[must_use]
pub fn now() -> Duration {
    current().map_or(Duration::ZERO, |task| task.now())
}

/// A handle for waking a parked task of a simulation.
#[derive(Clone, Debug)]
pub struct Sleeper(crate::sync::Thread);

impl Sleeper {
    /// Returns the calling task.
    #[must_use]
    pub fn current() -> Sleeper {
        Sleeper(crate::sync::current())
    }

    /// Lets the task continue from [`park`]. If it is not parked, its next call of [`park`] returns immediately.
    pub fn wake(&self) {
        self.0.unpark();
    }

    /// Like [`wake`](Sleeper::wake), but does not let another task run first. For wakers that are called under locks
    /// that the scheduler does not know.
    pub fn rouse(&self) {
        match current() {
            Some(task) => drop(task.rouse(self.0.id())),
            None => self.0.unpark(),
        }
    }
}

/// Waits until the calling task is woken, or until `timeout` has passed. May return early.
pub fn park(timeout: Option<Duration>) {
    match (current(), timeout) {
        (Some(task), timeout) => task.park(timeout),
        (None, Some(timeout)) => std::thread::park_timeout(timeout),
        (None, None) => std::thread::park(),
    }
}

/// Adds a number to the simulation's trace, and may let another task run. Does nothing outside of a simulation or while
/// the thread panics.
pub fn note(number: u64) {
    if let Some(task) = current()
        && !std::thread::panicking()
    {
        task.note(number);
        task.point();
    }
}
