//! Deferred work. A thread of the pool does it while its owner continues: it writes a buffer of a bulk load or a block
//! of spilled changes, or reads the next leaves of a sorted run or the next block.
//!
//! The read-ahead threads do this work. If they have not begun by the time the owner needs the result, the owner does
//! the work itself. So the owner is never slower than without these threads.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

use super::{DeferredTask, Pool};
use crate::error::Result;
use crate::sync::{Condvar, Mutex};

type TaskBody<T> = Box<dyn FnOnce(&Pool) -> Result<T> + Send>;

/// A piece of deferred work. Dropping it abandons the work. See the module.
#[derive(Debug)]
pub(crate) struct Deferred<T> {
    pool: Arc<Pool>,
    shared: Arc<SharedTask<T>>,
}

struct SharedTask<T> {
    state: Mutex<TaskState<T>>,
    ended: Condvar,
}

enum TaskState<T> {
    Waiting(TaskBody<T>),
    Running,
    /// The work has returned a result, or has panicked. A panic is passed on to the owner.
    Ended(thread::Result<Result<T>>),
    /// The owner has taken the result, or has abandoned the work.
    Taken,
}

impl<T> Debug for SharedTask<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("work")
    }
}

impl<T: Send> DeferredTask for SharedTask<T> {
    fn run(&self, pool: &Pool) {
        if self.try_run(pool) {
            crate::coverage::mark!("a thread went on while another one wrote or read for it");
        }
    }
}

impl<T> SharedTask<T> {
    /// Does the work, unless another thread has begun it or the owner has abandoned it. Returns `true` if this call did
    /// the work.
    fn try_run(&self, pool: &Pool) -> bool {
        let work = {
            let mut state = self.state.lock();
            let TaskState::Waiting(_) = *state else { return false };
            let TaskState::Waiting(work) = std::mem::replace(&mut *state, TaskState::Running) else {
                unreachable!("looked at")
            };
            work
        };
        let result = catch_unwind(AssertUnwindSafe(|| work(pool)));
        let mut state = self.state.lock();
        assert!(matches!(*state, TaskState::Running), "work ends that was not begun");
        *state = TaskState::Ended(result);
        self.ended.notify_all();
        true
    }
}

impl<T: Send + 'static> Deferred<T> {
    /// Hands `work` over to the pool. Everything that it owns is dropped before [`wait`](Self::wait) returns.
    pub(crate) fn begin(pool: &Arc<Pool>, work: impl FnOnce(&Pool) -> Result<T> + Send + 'static) -> Deferred<T> {
        let state = Mutex::new(TaskState::Waiting(Box::new(work)));
        let shared = Arc::new(SharedTask { state, ended: Condvar::default() });
        pool.send_deferred_task(Arc::clone(&shared) as Arc<dyn DeferredTask>);
        Deferred { pool: Arc::clone(pool), shared }
    }

    /// Waits for the work to end. If no thread has begun the work, does it on this thread. Returns the result of the
    /// work.
    pub(crate) fn wait(self) -> Result<T> {
        self.shared.try_run(&self.pool);
        let result = self.shared.take_result();
        result.expect("its owner takes the result once").unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<T> SharedTask<T> {
    /// Waits until a thread finishes work that it has started, and takes the result. Returns `None` if the result was
    /// already taken or the work was abandoned.
    fn take_result(&self) -> Option<thread::Result<Result<T>>> {
        let mut state = self.state.lock();
        loop {
            match *state {
                TaskState::Running => self.ended.wait(&mut state),
                TaskState::Ended(_) | TaskState::Taken => break,
                TaskState::Waiting(_) => unreachable!("work is waited for that nobody does"),
            }
        }
        match std::mem::replace(&mut *state, TaskState::Taken) {
            TaskState::Ended(result) => Some(result),
            _ => None,
        }
    }
}

impl<T> Drop for Deferred<T> {
    /// Abandons the work if no thread has begun it. Otherwise, waits for the work to end.
    fn drop(&mut self) {
        // In a forked child, don't wait: the thread that does the work exists only in the parent.
        if !self.pool.process.is_here() {
            return;
        }
        {
            let mut state = self.shared.state.lock();
            if matches!(*state, TaskState::Waiting(_)) {
                *state = TaskState::Taken;
            }
        }
        drop(self.shared.take_result());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{Config, Error};

    /// The owner does the work if no thread begins it. Abandoned work is never done.
    #[test]
    fn work_that_nobody_begins_is_its_owners() {
        let db = Config::in_memory().open("").unwrap();
        let pool = &db.store().unwrap().engine.pool;
        pool.stop_background();
        pool.take_threads().into_iter().for_each(|thread| thread.join().unwrap());
        let done = Deferred::begin(pool, |_| Ok(thread::current().id())).wait();
        assert_eq!(done.unwrap(), thread::current().id());
        let failed: Result<()> = Deferred::begin(pool, |_| Err(Error::Invalid("no".into()))).wait();
        assert!(matches!(failed, Err(Error::Invalid(_))));
        let owned = Arc::new(());
        let held = Arc::clone(&owned);
        drop(Deferred::begin(pool, move |_| -> Result<()> { panic!("{held:?} was given up") }));
        assert_eq!(Arc::strong_count(&owned), 1, "what the work owns is kept");
    }

    /// A panic in the work is passed on to its owner, whichever thread was running it. If the work has been abandoned,
    /// the panic is discarded.
    #[test]
    fn work_that_panics_ends() {
        let db = Config::in_memory().open("").unwrap();
        let pool = &db.store().unwrap().engine.pool;
        for gives_up in [false, true] {
            let (begun, has_begun) = mpsc::channel();
            let deferred = Deferred::begin(pool, move |_| -> Result<()> {
                begun.send(()).unwrap();
                panic!("work that panics")
            });
            has_begun.recv().unwrap();
            if gives_up {
                drop(deferred);
            } else {
                let panic = catch_unwind(AssertUnwindSafe(|| deferred.wait())).unwrap_err();
                assert_eq!(panic.downcast_ref(), Some(&"work that panics"));
            }
        }
        let done = Deferred::begin(pool, |_| Ok(1)).wait();
        assert_eq!(done.unwrap(), 1, "the threads go on");
    }

    /// Another thread does the work while its owner continues. Once a thread has begun the work, the owner waits for
    /// its end, even if it abandons the work.
    #[test]
    fn work_that_was_begun_is_waited_for() {
        let db = Config::in_memory().open("").unwrap();
        let pool = &db.store().unwrap().engine.pool;
        for gives_up in [false, true] {
            let (begun, has_begun) = mpsc::channel();
            let (go_on, may_go_on) = mpsc::channel();
            let owned = Arc::new(());
            let held = Arc::clone(&owned);
            let deferred = Deferred::begin(pool, move |_| {
                begun.send(thread::current().id()).unwrap();
                may_go_on.recv().unwrap();
                // This is long enough for the owner to get past a broken wait.
                (0..1000).for_each(|_| thread::yield_now());
                drop(held);
                Ok(thread::current().id())
            });
            let other = has_begun.recv().unwrap();
            assert_ne!(other, thread::current().id());
            go_on.send(()).unwrap();
            if gives_up {
                drop(deferred);
            } else {
                assert_eq!(deferred.wait().unwrap(), other);
            }
            assert_eq!(Arc::strong_count(&owned), 1, "work has not ended");
        }
    }
}
