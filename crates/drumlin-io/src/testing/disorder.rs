//! Disorderly completions: those that are late, out of order, or lost until a timeout.

use std::io;

use crate::sync::{Condvar, Mutex, MutexGuard, Random};
use crate::{Completion, Queue};

/// The settings for late, reordered and lost completions; see `FaultyBackend::disorder`. By default, completions are
/// unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Disorder {
    /// The seed that determines which completions are late and by how much, in which order they arrive, and which are
    /// lost.
    pub seed: u64,
    /// The maximum number of rounds of [`Queue::wait`] by which a completion is late. Completions of the same round
    /// arrive in random order.
    pub rounds_late_max: u64,
    /// One in this many completions is lost; with 0, none is lost.
    pub lost_one_in: u64,
}

/// The completions that a queue withholds. The queue owns their buffers.
pub(super) struct DisorderlyCompletions {
    disorder: Disorder,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    random: Random,
    /// The late completions, and the number of rounds that each will still skip.
    late: Vec<(u64, Completion)>,
    lost: Vec<Completion>,
    is_interrupted: bool,
}

impl State {
    /// Takes all completions out of `finished`. Loses some of them at random, and delays the rest by up to
    /// `rounds_late_max` rounds.
    fn take(&mut self, disorder: Disorder, finished: &mut Vec<Completion>) {
        for completion in finished.drain(..) {
            if self.random.one_in(disorder.lost_one_in) {
                self.lost.push(completion);
            } else {
                self.late.push((self.random.below(disorder.rounds_late_max + 1), completion));
            }
        }
    }

    /// Appends the completions that are due in this round, in random order, and ends the round.
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

    /// Returns the number of withheld completions.
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

    /// Called after a request was pushed. Wakes the threads that may be waiting for it.
    pub(super) fn pushed(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Ends a wait early. Called before the wrapped queue is interrupted.
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
                // A different thread has taken the completion that this thread was waiting for.
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
