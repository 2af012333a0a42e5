//! Completions in disorder: late, out of order, and lost for a time.

use std::io;

use crate::sync::{Condvar, Mutex, MutexGuard, Random};
use crate::{Completion, Queue};

/// The delays, order and losses of the completions of queues; see `FaultyBackend::disorder`. The default changes
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Disorder {
    /// Determines which completions are late and by how much, in which order they arrive, and which are lost.
    pub seed: u64,
    /// A completion is late by up to this many rounds of [`Queue::wait`]. Those of a round are in random order.
    pub rounds_late_max: u64,
    /// One completion in this many is lost; 0 for none.
    pub lost_one_in: u64,
}

/// The completions that a queue keeps back. The queue owns their buffers.
pub(super) struct DisorderlyCompletions {
    disorder: Disorder,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    random: Random,
    /// Completions, each with the number of rounds that pass it over.
    late: Vec<(u64, Completion)>,
    lost: Vec<Completion>,
    is_interrupted: bool,
}

impl State {
    /// Takes all completions out of `finished`. At random, loses some and delays the others by up to `rounds_late_max`
    /// rounds.
    fn take(&mut self, disorder: Disorder, finished: &mut Vec<Completion>) {
        for completion in finished.drain(..) {
            if self.random.one_in(disorder.lost_one_in) {
                self.lost.push(completion);
            } else {
                self.late.push((self.random.below(disorder.rounds_late_max + 1), completion));
            }
        }
    }

    /// Appends the completions of this round in random order, and ends the round.
    fn release(&mut self, finished: &mut Vec<Completion>) {
        let first = finished.len();
        finished.extend(self.late.extract_if(.., |(rounds, _)| *rounds == 0).map(|(_, completion)| completion));
        self.late.iter_mut().for_each(|(rounds, _)| *rounds -= 1);
        for index in first..finished.len() {
            let other = index + self.random.below((finished.len() - index) as u64) as usize;
            finished.swap(index, other);
        }
    }
}

impl DisorderlyCompletions {
    pub(super) fn new(disorder: Disorder) -> DisorderlyCompletions {
        let state = State { random: Random(disorder.seed), late: Vec::new(), lost: Vec::new(), is_interrupted: false };
        DisorderlyCompletions { disorder, state: Mutex::new(state), changed: Condvar::default() }
    }

    /// The number of completions kept back.
    pub(super) fn count(&self) -> usize {
        let state = self.state.lock();
        state.late.len() + state.lost.len()
    }

    /// Answers the lost requests with the system's error `code`, in one of the next rounds.
    pub(super) fn time_out(&self, code: i32) {
        let mut state = self.state.lock();
        let State { late, lost, .. } = &mut *state;
        late.extend(lost.drain(..).map(|lost| {
            let result = Err(io::Error::from_raw_os_error(code));
            (0, Completion { result, transferred: 0, ..lost })
        }));
        self.changed.notify_all();
    }

    /// Called after a request was pushed: a thread may wait for it.
    pub(super) fn pushed(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Called before `inner` is interrupted.
    pub(super) fn interrupt(&self) {
        self.state.lock().is_interrupted = true;
        self.changed.notify_all();
    }

    /// Waits in the queue `inner`, as [`Queue::wait`] does.
    pub(super) fn wait(&self, inner: &dyn Queue, minimum: usize, finished: &mut Vec<Completion>) -> io::Result<()> {
        let enough = finished.len() + minimum.min(inner.in_flight() + self.count());
        let mut state = self.round(inner, 0, finished)?;
        while finished.len() < enough && !state.is_interrupted {
            if !state.late.is_empty() {
                state.release(finished);
            } else if inner.in_flight() > 0 {
                drop(state);
                state = self.round(inner, 1, finished)?;
            } else if !state.lost.is_empty() {
                self.changed.wait(&mut state);
            } else {
                // Another thread took what this one waits for.
                break;
            }
        }
        state.is_interrupted = false;
        Ok(())
    }

    fn round(
        &self,
        inner: &dyn Queue,
        minimum: usize,
        finished: &mut Vec<Completion>,
    ) -> io::Result<MutexGuard<'_, State>> {
        let mut taken = Vec::new();
        let waited = inner.wait(minimum, &mut taken);
        let mut state = self.state.lock();
        state.take(self.disorder, &mut taken);
        state.release(finished);
        waited.map(|()| state)
    }
}
