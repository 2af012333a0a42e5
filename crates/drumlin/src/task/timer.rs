//! Wakes tasks at a given time, for lock timeouts and for pauses before retries.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::io::Backend;
use crate::sync::{Condvar, Mutex};

/// Wakes tasks at their deadlines. The timer's thread is started by the first deadline.
#[derive(Debug)]
pub(crate) struct Timer {
    backend: Arc<dyn Backend>,
    shared: Arc<TimerState>,
}

#[derive(Debug, Default)]
struct TimerState {
    state: Mutex<Alarms>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Alarms {
    /// The wakers, by deadline. A serial number distinguishes equal deadlines.
    waiting: BTreeMap<(Duration, u64), Waker>,
    next_number: u64,
    thread: Option<JoinHandle<()>>,
    stop: bool,
}

/// A task's entry in the timer. Dropping it cancels the wake-up.
#[derive(Debug)]
pub(crate) struct Alarm {
    shared: Arc<TimerState>,
    key: (Duration, u64),
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let waker = self.shared.state.lock().waiting.remove(&self.key);
        drop(waker);
    }
}

impl Timer {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Timer {
        Timer { backend, shared: Arc::default() }
    }

    /// Calls the waker at `deadline`, measured by the backend's clock.
    pub(crate) fn wake_at(&self, deadline: Duration, waker: Waker) -> Alarm {
        let mut state = self.shared.state.lock();
        let key = (deadline, state.next_number);
        state.next_number += 1;
        state.waiting.insert(key, waker);
        if state.thread.is_none() && !state.stop {
            let (shared, backend) = (Arc::clone(&self.shared), Arc::clone(&self.backend));
            match self.backend.spawn("drumlin-timer", Box::new(move || shared.serve(backend.as_ref()))) {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => log::warn!("starting the timer thread: {error}; timeouts do not expire"),
            }
        }
        drop(state);
        self.shared.changed.notify_one();
        Alarm { shared: Arc::clone(&self.shared), key }
    }

    /// Waits for `duration`. Returns early if the timer is stopped.
    pub(crate) async fn sleep(&self, duration: Duration) {
        let deadline = self.backend.now().saturating_add(duration);
        let mut alarm = None;
        poll_fn(|context| {
            if self.backend.now() >= deadline || self.shared.state.lock().stop {
                return Poll::Ready(());
            }
            alarm = Some(self.wake_at(deadline, context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    pub(crate) fn stop(&self) {
        let (thread, woken) = {
            let mut state = self.shared.state.lock();
            state.stop = true;
            (state.thread.take(), std::mem::take(&mut state.waiting))
        };
        woken.into_values().for_each(Waker::wake);
        self.shared.changed.notify_all();
        if let Some(thread) = thread
            && thread.thread().id() != crate::sync::current().id()
        {
            let _ = crate::sync::join(thread);
        }
    }
}

impl TimerState {
    fn serve(&self, backend: &dyn Backend) {
        let mut state = self.state.lock();
        while !state.stop {
            let now = backend.now();
            let later = state.waiting.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut state.waiting, later);
            if !due.is_empty() {
                drop(state);
                due.into_values().for_each(Waker::wake);
                state = self.state.lock();
                continue;
            }
            match state.waiting.first_key_value() {
                None => self.changed.wait(&mut state),
                Some((&(deadline, _), _)) => {
                    self.changed.wait_for(&mut state, deadline - now);
                }
            }
        }
    }
}
