//! One buffer of a bulk load on its way to the disk, while the load fills the next.
//!
//! A thread that reads ahead makes the write. If all of them are busy until the load needs it, the load makes it
//! itself, and is never slower than one that waits for each write.

use std::sync::Arc;

use super::{Ahead, Pool};
use crate::error::Result;
use crate::space::Space;
use crate::space::appender::WriteJob;
use crate::sync::{Condvar, Mutex};

/// See the module.
#[derive(Debug)]
pub(crate) struct WriteBehind {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug)]
enum State {
    Waiting(WriteJob),
    Running,
    Ended(Result<()>),
}

impl WriteBehind {
    /// Hands a buffer over to be written.
    pub(super) fn begin(pool: &Arc<Pool>, job: WriteJob) -> Arc<WriteBehind> {
        assert!(!job.bytes().is_empty(), "a write of nothing is handed over");
        assert!(job.frames.is_empty(), "frames of a pool wait for a write that is not the pool's");
        let write = Arc::new(WriteBehind { state: Mutex::new(State::Waiting(job)), ended: Condvar::default() });
        pool.enqueue_ahead(Ahead::Write(Arc::clone(&write)));
        write
    }

    /// Makes the write, unless another thread has begun it, or it was given up. Returns `true` if it was made here.
    pub(super) fn run(&self, space: &Space) -> bool {
        let job = {
            let mut state = self.state.lock();
            let State::Waiting(_) = *state else { return false };
            let State::Waiting(job) = std::mem::replace(&mut *state, State::Running) else { unreachable!("looked at") };
            job
        };
        let result = space.write(job.bytes(), job.offset);
        // Its memory first: who waits for the end fills another.
        drop(job);
        self.end(result);
        true
    }

    /// Waits until the buffer is written.
    pub(super) fn wait(&self, space: &Space) -> Result<()> {
        self.run(space);
        self.wait_for_end()
    }

    /// Gives up what was not begun, and waits for the end of what was.
    pub(super) fn cancel(&self) {
        let mut state = self.state.lock();
        if matches!(*state, State::Waiting(_)) {
            *state = State::Ended(Ok(()));
        }
        drop(state);
        let _ = self.wait_for_end();
    }

    fn end(&self, result: Result<()>) {
        let mut state = self.state.lock();
        assert!(matches!(*state, State::Running), "a write ends that was not begun");
        *state = State::Ended(result);
        self.ended.notify_all();
    }

    fn wait_for_end(&self) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Ended(result) => return result.clone(),
                State::Running => self.ended.wait(&mut state),
                State::Waiting(_) => unreachable!("a write is waited for that nobody makes"),
            }
        }
    }
}
