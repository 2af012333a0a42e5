//! A runtime for openraft on the simulation's scheduler and clock: all tasks of all nodes on one thread.
//!
//! The executor draws the next task to poll from those that were woken, and parks its thread if there is none. So the
//! tasks of the simulation that a database starts run in between, at every point of the scheduler. Each task belongs to
//! a node, or to the world (0). Killing a node drops its tasks, wherever they wait.
//!
//! Timers and spawned tasks find the executor by the thread. Other threads may wake a task, and do nothing else.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use drumlin_io::testing::sim::{self, Random, Sleeper};
use futures_channel::oneshot;
use openraft::{AsyncRuntime, OptionalSend};
use openraft_rt_sim::SimWatch;
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot};
use rand::SeedableRng;
use rand::rngs::SmallRng;

type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The number of the executor's first future, which [`AsyncRuntime::block_on`] was given.
const MAIN: u64 = 0;
/// The owner of the tasks that no node owns.
pub(super) const WORLD: u64 = 0;

/// Marks a task to be polled.
struct Woken {
    number: u64,
    is_woken: AtomicBool,
    ready: Arc<Mutex<Vec<u64>>>,
    thread: Sleeper,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::SeqCst) {
            self.ready.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
            // Channels wake tasks while they hold locks that the scheduler does not know.
            self.thread.rouse();
        }
    }
}

struct Task {
    owner: u64,
    woken: Arc<Woken>,
    /// `None` while it is polled.
    future: Option<TaskFuture>,
}

struct Executor {
    thread: Sleeper,
    ready: Arc<Mutex<Vec<u64>>>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    /// The wakers by deadline. A number makes the keys unique.
    timers: RefCell<BTreeMap<(Duration, u64), Waker>>,
    next_number: Cell<u64>,
    /// The owner of the task that is being polled.
    owner: Cell<u64>,
    random: RefCell<Random>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
}

fn current() -> Rc<Executor> {
    CURRENT.with(|current| current.borrow().clone()).expect("on the thread of the executor")
}

impl Executor {
    fn new(seed: u64) -> Executor {
        Executor {
            thread: Sleeper::current(),
            ready: Arc::default(),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            next_number: Cell::new(MAIN + 1),
            owner: Cell::new(WORLD),
            random: RefCell::new(Random(seed)),
        }
    }

    fn number(&self) -> u64 {
        self.next_number.replace(self.next_number.get() + 1)
    }

    fn woken(&self, number: u64) -> Arc<Woken> {
        let (is_woken, ready) = (AtomicBool::new(false), Arc::clone(&self.ready));
        let woken = Arc::new(Woken { number, is_woken, ready, thread: self.thread.clone() });
        Arc::clone(&woken).wake();
        woken
    }

    fn spawn(&self, owner: u64, future: TaskFuture) {
        let number = self.number();
        let task = Task { owner, woken: self.woken(number), future: Some(future) };
        self.tasks.borrow_mut().insert(number, task);
    }

    /// Wakes the tasks whose timers are due. Returns the next deadline.
    fn ring(&self) -> Option<Duration> {
        loop {
            let place = self.timers.borrow().first_key_value().map(|(place, _)| *place)?;
            if place.0 > sim::now() {
                return Some(place.0);
            }
            let waker = self.timers.borrow_mut().remove(&place);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Returns the number of a task that was woken, or waits until there is one.
    fn next_ready(&self) -> u64 {
        loop {
            let next_deadline = self.ring();
            {
                let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
                if !ready.is_empty() {
                    let index = self.random.borrow_mut().below(ready.len() as u64);
                    return ready.swap_remove(index as usize);
                }
            }
            // If no task is ever woken, the scheduler reports a deadlock.
            sim::park(next_deadline.map(|deadline| deadline.saturating_sub(sim::now())));
        }
    }

    fn poll(&self, number: u64) {
        let taken = self.tasks.borrow_mut().get_mut(&number).and_then(|task| {
            task.woken.is_woken.store(false, Ordering::SeqCst);
            Some((task.owner, Waker::from(Arc::clone(&task.woken)), task.future.take()?))
        });
        // It may have been dropped since it was woken.
        let Some((owner, waker, mut future)) = taken else { return };
        self.owner.set(owner);
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        self.owner.set(WORLD);
        match polled {
            Poll::Ready(()) => drop(self.tasks.borrow_mut().remove(&number)),
            Poll::Pending => {
                if let Some(task) = self.tasks.borrow_mut().get_mut(&number) {
                    task.future = Some(future);
                }
            }
        }
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let woken = self.woken(MAIN);
        let waker = Waker::from(Arc::clone(&woken));
        loop {
            match self.next_ready() {
                MAIN => {
                    woken.is_woken.store(false, Ordering::SeqCst);
                    if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        return value;
                    }
                }
                number => self.poll(number),
            }
        }
    }

    /// Drops the tasks that `is_meant` selects by their owner.
    fn drop_tasks(&self, is_meant: impl Fn(u64) -> bool) {
        let mut dropped = Vec::new();
        self.tasks.borrow_mut().retain(|_, task| {
            let stays = !is_meant(task.owner);
            if !stays {
                dropped.extend(task.future.take());
            }
            stays
        });
        // After the borrow: dropping a task may wake others.
        drop(dropped);
    }
}

/// The runtime of a simulated cluster. Created in a task of a simulation, and used on its thread only.
pub struct Runtime {
    executor: Rc<Executor>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runtime")
    }
}

impl Runtime {
    /// Returns a runtime whose draws follow from a seed.
    #[must_use]
    pub fn with_seed(seed: u64) -> Runtime {
        Runtime { executor: Rc::new(Executor::new(seed)) }
    }

    /// Starts a task of a node.
    pub fn spawn_as<T: Send + 'static>(owner: u64, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        let (answer, answered) = oneshot::channel();
        let task = async move {
            // The waiting task may have been dropped.
            let _ = answer.send(future.await);
        };
        current().spawn(owner, Box::pin(task));
        JoinHandle(answered)
    }

    /// Drops all tasks of a node, as the end of its process would.
    pub fn kill(owner: u64) {
        current().drop_tasks(|other| other == owner);
    }
}

/// A task that was spawned.
pub struct JoinHandle<T>(oneshot::Receiver<T>);

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinHandle")
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Killed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|_| Killed)
    }
}

/// The task's node was killed.
#[derive(Clone, Copy, Debug)]
pub struct Killed;

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the node was killed")
    }
}

impl std::error::Error for Killed {}

/// A moment of the simulation's clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

/// The reading of the clock when a simulation begins. Openraft computes moments before that.
const BEGIN: Duration = Duration::from_secs(1 << 20);

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.saturating_sub(BEGIN).fmt(f)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(duration))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(duration))
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl openraft::Instant for Instant {
    fn now() -> Instant {
        Instant(BEGIN + sim::now())
    }
}

/// A wait for a moment.
#[derive(Debug)]
pub struct Sleep {
    deadline: Duration,
    /// Its timer, once it was polled.
    number: Option<u64>,
}

impl Sleep {
    fn until(deadline: Instant) -> Sleep {
        Sleep { deadline: deadline.0.saturating_sub(BEGIN), number: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if sim::now() >= self.deadline {
            return Poll::Ready(());
        }
        let executor = current();
        let number = *self.number.get_or_insert_with(|| executor.number());
        executor.timers.borrow_mut().insert((self.deadline, number), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let executor = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten();
        if let (Some(number), Some(executor)) = (self.number, executor) {
            drop(executor.timers.borrow_mut().remove(&(self.deadline, number)));
        }
    }
}

/// A future that is awaited until a moment.
pub struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sleep.fmt(f)
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimedOut>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(value) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(&mut self.sleep).poll(context).map(|()| Err(TimedOut))
    }
}

/// The moment came first.
#[derive(Clone, Copy, Debug)]
pub struct TimedOut;

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it took too long")
    }
}

impl std::error::Error for TimedOut {}

impl AsyncRuntime for Runtime {
    type JoinError = Killed;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = TimedOut;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = SmallRng;
    // These need no runtime, and their order is that of their calls.
    type Mpsc = TokioMpsc;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;
    // Tokio's wakes in an order that it draws.
    type Watch = SimWatch;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        Runtime::spawn_as(current().owner.get(), future)
    }

    fn sleep(duration: Duration) -> Sleep {
        Self::sleep_until(<Instant as openraft::Instant>::now() + duration)
    }

    fn sleep_until(deadline: Instant) -> Sleep {
        Sleep::until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Instant, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Self::sleep_until(deadline) }
    }

    fn is_panic(_join_error: &Killed) -> bool {
        // A panic ends the simulation.
        false
    }

    fn thread_rng() -> SmallRng {
        SmallRng::seed_from_u64(current().random.borrow_mut().next())
    }

    fn new(_threads: usize) -> Runtime {
        Runtime::with_seed(0)
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        CURRENT.set(Some(Rc::clone(&self.executor)));
        let value = self.executor.run(future);
        self.executor.drop_tasks(|_| true);
        CURRENT.set(None);
        value
    }

    fn spawn_blocking<F, T>(call: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let started = sim::spawn("a call", Box::new(move || drop(answer.send(call()))));
        async move {
            started?;
            answered.await.map_err(io::Error::other)
        }
    }
}
