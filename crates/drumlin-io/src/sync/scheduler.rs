//! A scheduler that makes all its decisions based on a seed.
//!
//! The *tasks* of a simulation are operating-system threads, but only one of them runs at a time. The running task
//! holds the baton. It passes the baton on when it waits, and at random at each *point*: when it takes or releases a
//! lock, wakes a task, requests I/O, or passes a coverage mark. The next task is drawn at random. Time is virtual: it
//! advances a little at each point, and jumps to the next deadline when all tasks wait.
//!
//! # Invariants
//! 1. One task runs; all others wait for the baton. So actions between two points need no further synchronisation.
//! 2. Every random draw comes from the simulation's one generator, in the order of the points. So two runs with the
//!    same seed take the same course, provided that their other inputs don't differ: see `docs/testing.md`.
//! 3. If no task is runnable and no waiting task has a deadline, the simulation is deadlocked. It ends with a report
//!    that shows, for each task, the object that it waits for, and where in the code it waits.
//!
//! A simulation fails if a task panics, if it deadlocks, or if it makes no progress for too long. Its other threads are
//! then left waiting forever, because they hold locks on inconsistent data.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use super::Random;
use super::random::mix;

/// The interval between checks for progress. After `LOOKS_MAX` checks without progress, the simulation is considered
/// hung.
const LOOK: Duration = Duration::from_secs(5);
const LOOKS_MAX: u32 = 12;

/// The rules by which tasks take turns.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// The seed of the random generator that makes all decisions.
    pub seed: u64,
    /// A running task yields at one in this many points on average.
    pub switch_one_in: u64,
    /// The maximum virtual time that passes per point, in nanoseconds.
    pub step_nanos_max: u64,
    /// The number of points after which the simulation counts as livelocked.
    pub points_max: u64,
}

/// The outcome of a simulation.
#[derive(Clone, Debug)]
pub struct Outcome<T> {
    /// The first task's result, or the reason why the simulation failed.
    pub result: Result<T, String>,
    /// A checksum of the course: two runs with the same trace took the same course.
    pub trace: u64,
    /// The duration in virtual time.
    pub duration: Duration,
    /// The number of points passed.
    pub points: u64,
}

/// The state of a waiting task, for deadlock reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The object that the task waits for: its address, or a number that can't be an address.
    pub(crate) what: usize,
    pub(crate) kind: &'static str,
    pub(crate) place: &'static Location<'static>,
    /// The task that holds the object.
    pub(crate) holder: Option<usize>,
}

#[derive(Debug)]
enum Mode {
    /// The slot is not in use.
    Free,
    Runnable,
    Running,
    Waiting(Wait, Option<(u64, u64)>),
}

#[derive(Debug)]
struct Slot {
    name: String,
    mode: Mode,
    baton: Arc<Baton>,
    thread: Option<ThreadId>,
    /// Set if the task was unparked and has not parked since then.
    token: bool,
    /// Set if the task's last wait ended at its deadline.
    late: bool,
}

#[derive(Debug, Default)]
struct Baton {
    go: AtomicBool,
    thread: OnceLock<thread::Thread>,
}

impl Baton {
    fn give(&self) {
        self.go.store(true, Ordering::Release);
        self.thread.get().expect("set before the task can run").unpark();
    }

    fn take(&self) {
        while !self.go.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

#[derive(Debug)]
struct State {
    schedule: Schedule,
    random: Random,
    now_nanos: u64,
    slots: Vec<Slot>,
    runnable: Vec<usize>,
    /// Pairs of an object and a task that waits for it, in the order in which the waits began.
    waiting: Vec<(usize, usize)>,
    deadlines: BTreeSet<(u64, u64, usize)>,
    deadline_count: u64,
    trace: u64,
    points: u64,
    failure: Option<String>,
    ended: bool,
}

/// The scheduler of a simulation; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Scheduler {
    state: Mutex<State>,
    over: Condvar,
    steps: AtomicU64,
}

/// Identifies the calling thread in its simulation.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) number: usize,
    baton: Arc<Baton>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Task>>> = const { RefCell::new(None) };
}

/// Returns the calling thread's task, if it belongs to a simulation.
#[inline]
pub(crate) fn current() -> Option<Rc<Task>> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Runs `body` as the first task of a simulation, until all tasks of the simulation have ended.
pub fn run<T: Send + 'static>(schedule: Schedule, body: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    tell_panics();
    let scheduler = Arc::new(Scheduler {
        state: Mutex::new(State {
            schedule,
            random: Random(schedule.seed),
            now_nanos: 0,
            slots: Vec::new(),
            runnable: Vec::new(),
            waiting: Vec::new(),
            deadlines: BTreeSet::new(),
            deadline_count: 0,
            trace: 0,
            points: 0,
            failure: None,
            ended: false,
        }),
        over: Condvar::new(),
        steps: AtomicU64::new(0),
    });
    let value = Arc::new(Mutex::new(None));
    let returned = Arc::clone(&value);
    let first = scheduler.start(
        "first",
        Box::new(move || {
            let value = body();
            *returned.lock().expect("nobody else looks at it yet") = Some(value);
        }),
    );
    let first = match first {
        Ok(first) => first,
        Err(error) => panic!("no thread for a simulation: {error}"),
    };
    scheduler.begin();
    let state = scheduler.wait_until_over();
    let outcome = |result| Outcome {
        result,
        trace: state.trace,
        duration: Duration::from_nanos(state.now_nanos),
        points: state.points,
    };
    if let Some(failure) = &state.failure {
        return outcome(Err(failure.clone()));
    }
    let outcome = outcome(Err("the first task did not return".to_owned()));
    drop(state);
    let _ = first.join();
    let value = value.lock().expect("the task has ended").take();
    Outcome { result: value.ok_or(outcome.result.err().unwrap_or_default()), ..outcome }
}

/// Installs a hook that records a task's panic as the failure of its simulation.
fn tell_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match current() {
            Some(task) => {
                let mut text = format!("panic in {}: {info}", task.name());
                if std::env::var_os("DRUMLIN_SIM_BACKTRACE").is_some() {
                    let _ = write!(text, "\n{}", std::backtrace::Backtrace::force_capture());
                }
                task.scheduler.fail(text);
            }
            None => before(info),
        }));
    });
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Records a failure, unless one has already been recorded.
    fn fail(&self, text: String) {
        let mut state = self.lock();
        if state.failure.is_none() {
            state.failure = Some(text);
        }
    }

    fn begin(&self) {
        let mut state = self.lock();
        let first = state.runnable.pop().expect("the first task");
        state.slots[first].mode = Mode::Running;
        state.slots[first].baton.give();
    }

    fn wait_until_over(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let mut looks = 0;
        let mut steps = 0;
        while !state.ended {
            let (next, waited) = self.over.wait_timeout(state, LOOK).unwrap_or_else(std::sync::PoisonError::into_inner);
            state = next;
            if waited.timed_out() {
                let now = self.steps.load(Ordering::Relaxed);
                looks = if now == steps { looks + 1 } else { 0 };
                steps = now;
                if looks >= LOOKS_MAX && !state.ended {
                    let text = format!("a task runs and passes no point for {:?}:\n{}", LOOK * LOOKS_MAX, state.tell());
                    state.failure.get_or_insert(text);
                    state.ended = true;
                }
            }
        }
        state
    }

    /// Starts a task. The task does not run until it is first given the baton.
    pub(crate) fn start(
        self: &Arc<Self>,
        name: &str,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<JoinHandle<()>> {
        let baton = Arc::new(Baton::default());
        let number = {
            let mut state = self.lock();
            let slot = Slot {
                name: name.to_owned(),
                mode: Mode::Runnable,
                baton: Arc::clone(&baton),
                thread: None,
                token: false,
                late: false,
            };
            match state.slots.iter().position(|slot| matches!(slot.mode, Mode::Free)) {
                Some(free) => {
                    state.slots[free] = slot;
                    free
                }
                None => {
                    state.slots.push(slot);
                    state.slots.len() - 1
                }
            }
        };
        let scheduler = Arc::clone(self);
        let own = Arc::clone(&baton);
        let started = thread::Builder::new().name(name.to_owned()).spawn(move || {
            own.take();
            let task = Rc::new(Task { scheduler: Arc::clone(&scheduler), number, baton: own });
            CURRENT.with(|current| *current.borrow_mut() = Some(task));
            let ended = catch_unwind(AssertUnwindSafe(body));
            CURRENT.with(|current| current.borrow_mut().take());
            scheduler.end(number, &ended);
        });
        let mut state = self.lock();
        match &started {
            Ok(handle) => {
                let _ = baton.thread.set(handle.thread().clone());
                state.slots[number].thread = Some(handle.thread().id());
                state.runnable.push(number);
            }
            Err(_) => state.slots[number].mode = Mode::Free,
        }
        started
    }

    /// Ends a task and passes the baton on.
    fn end(&self, number: usize, ended: &thread::Result<()>) {
        let mut state = self.lock();
        if ended.is_err() || state.failure.is_some() {
            let name = state.slots[number].name.clone();
            state.failure.get_or_insert_with(|| format!("{name} panicked"));
            state.ended = true;
            self.over.notify_all();
            return;
        }
        state.slots[number].mode = Mode::Free;
        state.wake(JOIN | number);
        if state.slots.iter().all(|slot| matches!(slot.mode, Mode::Free)) {
            state.ended = true;
            self.over.notify_all();
        } else {
            self.pass_on(state);
        }
    }

    /// Gives the baton to the next task. Returns its number, or `None` if the simulation is deadlocked.
    fn pass_on(&self, mut state: MutexGuard<'_, State>) -> Option<usize> {
        let Some(next) = state.choose() else {
            let text = format!("deadlock: no task can run, and none has a deadline\n{}", state.tell());
            state.failure.get_or_insert(text);
            state.ended = true;
            self.over.notify_all();
            return None;
        };
        let baton = Arc::clone(&state.slots[next].baton);
        drop(state);
        baton.give();
        Some(next)
    }
}

/// Marks a [`Wait::what`] that stands for the end of a task. The bit makes the number larger than any address.
const JOIN: usize = 1 << 63;
/// Marks a [`Wait::what`] that stands for being parked or asleep.
const PARKED: usize = 1 << 62;

impl State {
    fn draw(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn note(&mut self, what: u64) {
        self.trace = mix(self.trace ^ what).wrapping_add(0x9E37_79B9_7F4A_7C15);
    }

    /// Wakes all tasks whose deadlines have passed.
    fn pass_deadlines(&mut self) {
        while let Some(&(at, count, number)) = self.deadlines.first()
            && at <= self.now_nanos
        {
            self.deadlines.remove(&(at, count, number));
            self.waiting.retain(|(_, task)| *task != number);
            self.slots[number].late = true;
            self.slots[number].mode = Mode::Runnable;
            self.runnable.push(number);
        }
    }

    /// Chooses the next task and marks it as running.
    fn choose(&mut self) -> Option<usize> {
        if self.runnable.is_empty() {
            let &(at, ..) = self.deadlines.first()?;
            self.now_nanos = self.now_nanos.max(at);
            self.pass_deadlines();
        }
        let count = self.runnable.len() as u64;
        let index = self.draw(count) as usize;
        let next = self.runnable.swap_remove(index);
        self.slots[next].mode = Mode::Running;
        self.note(next as u64);
        Some(next)
    }

    /// Wakes all tasks that wait for `what`.
    fn wake(&mut self, what: usize) {
        let mut index = 0;
        while index < self.waiting.len() {
            if self.waiting[index].0 == what {
                let (_, number) = self.waiting.remove(index);
                self.run_again(number);
            } else {
                index += 1;
            }
        }
    }

    /// Makes a task runnable after it was removed from the list of waiting tasks.
    fn run_again(&mut self, number: usize) {
        if let Mode::Waiting(_, Some((at, count))) = self.slots[number].mode {
            self.deadlines.remove(&(at, count, number));
        }
        self.slots[number].mode = Mode::Runnable;
        self.runnable.push(number);
    }

    /// Describes each task's wait: the object that the task waits for, and where in the code it waits.
    fn tell(&self) -> String {
        let mut text = String::new();
        for (number, slot) in self.slots.iter().enumerate() {
            let _ = match &slot.mode {
                Mode::Free => continue,
                Mode::Runnable => writeln!(text, "  {number} {}: could run", slot.name),
                Mode::Running => writeln!(text, "  {number} {}: runs", slot.name),
                Mode::Waiting(wait, _) => {
                    let holder = wait.holder.and_then(|holder| Some((holder, self.slots.get(holder)?)));
                    let holder =
                        holder.map_or(String::new(), |(number, slot)| format!(", which {number} {} has", slot.name));
                    writeln!(text, "  {number} {}: waits for {} at {}{holder}", slot.name, wait.kind, wait.place)
                }
            };
        }
        text
    }
}

impl Task {
    pub(crate) fn name(&self) -> String {
        self.scheduler.lock().slots[self.number].name.clone()
    }

    /// Starts a task of the same simulation.
    pub(crate) fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>> {
        self.scheduler.start(name, body)
    }

    /// Passes a point, at which another task may take over.
    #[inline]
    pub(crate) fn point(&self) {
        self.scheduler.steps.fetch_add(1, Ordering::Relaxed);
        let mut state = self.scheduler.lock();
        state.points += 1;
        if state.points >= state.schedule.points_max {
            self.give_up(state);
        }
        let limit = state.schedule.step_nanos_max + 1;
        state.now_nanos += state.draw(limit);
        state.pass_deadlines();
        let one_in = state.schedule.switch_one_in;
        if state.runnable.is_empty() || !state.random.one_in(one_in) {
            return;
        }
        state.slots[self.number].mode = Mode::Runnable;
        state.runnable.push(self.number);
        self.switch(state);
    }

    /// Fails the simulation because it has reached the maximum number of points.
    fn give_up(&self, mut state: MutexGuard<'_, State>) -> ! {
        let trace = std::backtrace::Backtrace::force_capture();
        let text = format!("no end after {} points; {} runs:\n{}\n{trace}", state.points, self.number, state.tell());
        state.failure.get_or_insert(text);
        state.ended = true;
        self.scheduler.over.notify_all();
        drop(state);
        loop {
            thread::park();
        }
    }

    fn switch(&self, state: MutexGuard<'_, State>) {
        match self.scheduler.pass_on(state) {
            Some(next) if next == self.number => self.baton.take(),
            Some(_) => self.baton.take(),
            // The simulation has ended.
            None => loop {
                thread::park();
            },
        }
    }

    /// Waits until another task wakes the waiters of `wait.what`, or until the deadline. Returns `true` if the deadline
    /// passed.
    pub(crate) fn wait(&self, wait: Wait, deadline: Option<Duration>) -> bool {
        let mut state = self.scheduler.lock();
        self.wait_in(&mut state, wait, deadline);
        self.switch(state);
        let mut state = self.scheduler.lock();
        std::mem::take(&mut state.slots[self.number].late)
    }

    fn wait_in(&self, state: &mut State, wait: Wait, deadline: Option<Duration>) {
        self.scheduler.steps.fetch_add(1, Ordering::Relaxed);
        state.slots[self.number].late = false;
        state.points += 1;
        let deadline = deadline.map(|deadline| {
            state.deadline_count += 1;
            let at = (u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX), state.deadline_count);
            state.deadlines.insert((at.0, at.1, self.number));
            at
        });
        state.slots[self.number].mode = Mode::Waiting(wait, deadline);
        state.waiting.push((wait.what, self.number));
    }

    /// Wakes all tasks that wait for `what`.
    #[inline]
    pub(crate) fn wake(&self, what: usize) {
        self.scheduler.lock().wake(what);
    }

    /// Wakes one of the tasks that wait for `what`, chosen at random. Returns `false` if no task waits for it.
    pub(crate) fn wake_one(&self, what: usize) -> bool {
        let mut state = self.scheduler.lock();
        let count = state.waiting.iter().filter(|(other, _)| *other == what).count() as u64;
        if count == 0 {
            return false;
        }
        let chosen = state.draw(count) as usize;
        let index = (state.waiting.iter().enumerate())
            .filter(|(_, (other, _))| *other == what)
            .nth(chosen)
            .map(|(index, _)| index)
            .expect("counted");
        let (_, number) = state.waiting.remove(index);
        state.run_again(number);
        true
    }

    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.scheduler.lock().now_nanos)
    }

    pub(crate) fn random(&self) -> u64 {
        self.scheduler.lock().random.next()
    }

    /// Adds a number to the trace. Two runs with the same seed must add the same numbers.
    pub(crate) fn note(&self, what: u64) {
        self.scheduler.lock().note(what);
    }

    #[track_caller]
    pub(crate) fn sleep(&self, duration: Duration) {
        let wait =
            Wait { what: PARKED | (1 << 61) | self.number, kind: "the time", place: Location::caller(), holder: None };
        let deadline = self.now().saturating_add(duration);
        self.wait(wait, Some(deadline));
    }

    #[track_caller]
    pub(crate) fn park(&self, timeout: Option<Duration>) {
        let place = Location::caller();
        self.point();
        let mut state = self.scheduler.lock();
        if std::mem::take(&mut state.slots[self.number].token) {
            return;
        }
        let deadline = timeout.map(|timeout| Duration::from_nanos(state.now_nanos).saturating_add(timeout));
        let wait = Wait { what: PARKED | self.number, kind: "being unparked", place, holder: None };
        self.wait_in(&mut state, wait, deadline);
        self.switch(state);
        self.scheduler.lock().slots[self.number].token = false;
    }

    /// Wakes a parked task, or makes its next park return immediately. Then another task may take over.
    pub(crate) fn unpark(&self, thread: ThreadId) {
        if self.rouse(thread) {
            self.point();
        }
    }

    /// Wakes a parked task, or makes its next park return immediately. The caller runs on. Returns `false` if the task
    /// has ended.
    pub(crate) fn rouse(&self, thread: ThreadId) -> bool {
        let mut state = self.scheduler.lock();
        let is_it = |slot: &Slot| slot.thread == Some(thread) && !matches!(slot.mode, Mode::Free);
        let Some(number) = state.slots.iter().position(is_it) else { return false };
        state.slots[number].token = true;
        state.wake(PARKED | number);
        true
    }

    /// Waits until the task of `thread` has ended.
    #[track_caller]
    pub(crate) fn join(&self, thread: ThreadId) {
        let place = Location::caller();
        loop {
            let mut state = self.scheduler.lock();
            let is_it = |slot: &Slot| slot.thread == Some(thread) && !matches!(slot.mode, Mode::Free);
            let Some(number) = state.slots.iter().position(is_it) else { return };
            let wait = Wait { what: JOIN | number, kind: "the end of a task", place, holder: Some(number) };
            self.wait_in(&mut state, wait, None);
            self.switch(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync;
    use std::sync::atomic::AtomicUsize;

    fn schedule(seed: u64) -> Schedule {
        Schedule { seed, switch_one_in: 2, step_nanos_max: 1000, points_max: 1_000_000 }
    }

    fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        current().expect("in a simulation").scheduler.start(name, Box::new(body)).unwrap()
    }

    /// Returns the order in which three tasks get a lock, and the trace. The seed determines both.
    fn order(seed: u64) -> (Vec<usize>, u64) {
        let outcome = run(schedule(seed), || {
            let order = Arc::new(sync::Mutex::new(Vec::new()));
            let tasks: Vec<_> = (0..3)
                .map(|number| {
                    let order = Arc::clone(&order);
                    spawn("t", move || {
                        for _ in 0..4 {
                            order.lock().push(number);
                        }
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| sync::join(task).unwrap());
            order.lock().clone()
        });
        (outcome.result.unwrap(), outcome.trace)
    }

    #[test]
    fn the_seed_decides() {
        let all: std::collections::BTreeSet<_> = (0..20).map(order).collect();
        assert!(all.len() > 10, "{} courses of 20 seeds", all.len());
        for seed in 0..20 {
            assert_eq!(order(seed), order(seed));
        }
    }

    /// With some seeds, two tasks that take two locks in opposite orders deadlock. The report then names the places in
    /// the code.
    #[test]
    fn a_deadlock_is_told() {
        let failures = (0..20).filter_map(|seed| {
            let outcome = run(schedule(seed), || {
                let locks = Arc::new([sync::Mutex::new(()), sync::Mutex::new(())]);
                let tasks: Vec<_> = (0..2)
                    .map(|number: usize| {
                        let locks = Arc::clone(&locks);
                        spawn("taker", move || {
                            let _first = locks[number].lock();
                            let _second = locks[1 - number].lock();
                        })
                    })
                    .collect();
                tasks.into_iter().for_each(|task| sync::join(task).unwrap());
            });
            outcome.result.err()
        });
        let failures: Vec<String> = failures.collect();
        assert!(!failures.is_empty());
        for failure in failures {
            assert!(failure.contains("deadlock") && failure.contains("waits for a mutex at"), "{failure}");
            assert!(failure.contains("scheduler.rs") && failure.contains("taker has"), "{failure}");
        }
    }

    /// Simulated hours pass instantly, and sleepers wake in the order of their deadlines.
    #[test]
    fn time_leaps() {
        let outcome = run(schedule(1), || {
            let sleeper = spawn("sleeper", || sync::sleep(Duration::from_secs(3600)));
            sync::sleep(Duration::from_secs(60));
            let early = current().unwrap().now();
            sync::join(sleeper).unwrap();
            (early, current().unwrap().now())
        });
        let (early, late) = outcome.result.unwrap();
        assert!(early >= Duration::from_secs(60) && early < Duration::from_secs(61));
        assert!(late >= Duration::from_secs(3600) && late < Duration::from_secs(3601));
    }

    /// Waiters of a condition variable are woken, writers exclude readers, and a panic fails the simulation.
    #[test]
    fn primitives_work() {
        for seed in 0..30 {
            let outcome = run(schedule(seed), || {
                let shared = Arc::new((sync::Mutex::new(0), sync::Condvar::new(), sync::RwLock::new(0usize)));
                let inside = Arc::new(AtomicUsize::new(0));
                let tasks: Vec<_> = (0..4usize)
                    .map(|number| {
                        let (shared, inside) = (Arc::clone(&shared), Arc::clone(&inside));
                        spawn("t", move || {
                            let mut turn = shared.0.lock();
                            while *turn != number {
                                shared.1.wait(&mut turn);
                            }
                            *turn += 1;
                            shared.1.notify_all();
                            drop(turn);
                            let mut written = shared.2.write();
                            assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                            *written += 1;
                            sync::yield_now();
                            inside.fetch_sub(1, Ordering::Relaxed);
                            drop(written);
                            let _one = shared.2.read();
                        })
                    })
                    .collect();
                tasks.into_iter().for_each(|task| sync::join(task).unwrap());
                *shared.2.read()
            });
            assert_eq!(outcome.result.unwrap(), 4);
        }
        let outcome = run(schedule(1), || {
            let task = spawn("worker", || panic!("of all things"));
            let _ = sync::join(task);
        });
        let failure = outcome.result.unwrap_err();
        assert!(failure.contains("of all things") && failure.contains("worker"), "{failure}");
    }
}
