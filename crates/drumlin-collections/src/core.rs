//! The open collections of a database, and their background threads.

use std::any::{Any, TypeId};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::hub::lock;
use crate::shared::Shared;

/// Tells background threads to end.
#[derive(Default)]
pub(crate) struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        *lock(&self.is_set)
    }

    /// Waits for `time`, or until the thread is asked to stop. Returns `true` if it was asked to stop.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let is_set = lock(&self.is_set);
        let waited = self.changed.wait_timeout_while(is_set, time, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn set(&self) {
        *lock(&self.is_set) = true;
        self.changed.notify_all();
    }
}

/// An open collection of any type.
pub(crate) struct Opened {
    pub(crate) name: &'static str,
    pub(crate) open: Arc<dyn Any + Send + Sync>,
}

/// The state that all handles share. Dropping the last handle ends the background threads, which hold no handle
/// themselves.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) opened: Mutex<HashMap<TypeId, Opened>>,
    /// The names of the collections that are being bulk loaded.
    pub(crate) loading: Mutex<HashSet<&'static str>>,
    pub(crate) stop: Arc<Stop>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Core {
    pub(crate) fn new(shared: Shared) -> Core {
        let (opened, loading) = (Mutex::default(), Mutex::default());
        Core { shared: Arc::new(shared), opened, loading, stop: Arc::default(), threads: Mutex::default() }
    }

    /// Keeps the join handle of a background thread until the core is dropped.
    pub(crate) fn keep(&self, thread: JoinHandle<()>) {
        lock(&self.threads).push(thread);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.stop.set();
        for thread in lock(&self.threads).drain(..) {
            // Ignore a panic of the thread: its message has already been printed, and the thread has no state to lose.
            drop(thread.join());
        }
    }
}
