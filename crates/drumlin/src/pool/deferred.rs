//! Work that a thread of the pool does while its owner goes on: a buffer of a bulk load is written, the next leaves of
//! a sorted run are read.
//!
//! A thread that reads ahead does it. If all of them are busy until the owner needs it, the owner does it itself, and
//! is never slower than one that waits for each.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

use super::{Ahead, Pool};
use crate::error::Result;
use crate::sync::{Condvar, Mutex};

type Work<T> = Box<dyn FnOnce(&Pool) -> Result<T> + Send>;

/// See the module. Dropped, it is given up.
#[derive(Debug)]
pub(crate) struct Deferred<T> {
    pool: Arc<Pool>,
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

enum State<T> {
    Waiting(Work<T>),
    Running,
    /// With a result, or by a panic, which is its owner's.
    Ended(thread::Result<Result<T>>),
    /// Its owner has the result, or gave it up.
    Over,
}

/// The side of it that threads see that read ahead.
pub(super) trait Errand: Send + Sync + Debug {
    /// Does the work, unless another thread has begun it, or it was given up. Returns `true` if it was done here.
    fn run(&self, pool: &Pool) -> bool;
}

impl<T> Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("work")
    }
}

impl<T: Send> Errand for Shared<T> {
    fn run(&self, pool: &Pool) -> bool {
        let work = {
            let mut state = self.state.lock();
            let State::Waiting(_) = *state else { return false };
            let State::Waiting(work) = std::mem::replace(&mut *state, State::Running) else {
                unreachable!("looked at")
            };
            work
        };
        let result = catch_unwind(AssertUnwindSafe(|| work(pool)));
        let mut state = self.state.lock();
        assert!(matches!(*state, State::Running), "work ends that was not begun");
        *state = State::Ended(result);
        self.ended.notify_all();
        true
    }
}

impl<T: Send + 'static> Deferred<T> {
    /// Hands over work. All that the work owns is dropped before its end is seen.
    pub(crate) fn begin(pool: &Arc<Pool>, work: impl FnOnce(&Pool) -> Result<T> + Send + 'static) -> Deferred<T> {
        let state = Mutex::new(State::Waiting(Box::new(work)));
        let shared = Arc::new(Shared { state, ended: Condvar::default() });
        pool.enqueue_ahead(Ahead::Deferred(Arc::clone(&shared) as Arc<dyn Errand>));
        Deferred { pool: Arc::clone(pool), shared }
    }

    /// Waits for the end of the work, or does it. Returns its result.
    pub(crate) fn wait(self) -> Result<T> {
        self.shared.run(&self.pool);
        let result = self.shared.take_result();
        result.expect("its owner takes the result once").unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<T> Shared<T> {
    /// Waits for the end of work that was begun; `None` where it is over.
    fn take_result(&self) -> Option<thread::Result<Result<T>>> {
        let mut state = self.state.lock();
        loop {
            match *state {
                State::Running => self.ended.wait(&mut state),
                State::Ended(_) | State::Over => break,
                State::Waiting(_) => unreachable!("work is waited for that nobody does"),
            }
        }
        match std::mem::replace(&mut *state, State::Over) {
            State::Ended(result) => Some(result),
            _ => None,
        }
    }
}

impl<T> Drop for Deferred<T> {
    /// Gives up what was not begun, and waits for the end of what was.
    fn drop(&mut self) {
        // In a fork the thread that does it is the parent's.
        if !self.pool.process.is_here() {
            return;
        }
        {
            let mut state = self.shared.state.lock();
            if matches!(*state, State::Waiting(_)) {
                *state = State::Over;
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

    /// Work is done by its owner where no thread does it, and is not done if it was given up before.
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

    /// A panic of the work is its owner's, whichever thread does it. That of work that was given up ends there.
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

    /// Work is done by another thread while its owner goes on; the owner waits for its end, also where it gives it up.
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
                // Its owner is long past a wait that is none.
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
