//! A small executor on the simulation's scheduler: several asynchronous clients on one thread.
//!
//! The executor draws the next future to poll from those that were woken. If there are none, it parks its thread, until
//! the next alarm at the latest. It never polls a future that was not woken, so a lost wake-up becomes a deadlock,
//! which the scheduler reports.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use drumlin_io::testing::sim::{self, Random, Sleeper};

/// A task of the executor.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Marks a future to be polled, and unparks its thread.
struct Woken {
    is_woken: AtomicBool,
    thread: Sleeper,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.thread.wake();
    }
}

/// The alarms of the tasks of one executor. Clones share the alarms.
#[derive(Clone, Debug, Default)]
pub struct Timer(Rc<RefCell<Alarms>>);

#[derive(Debug, Default)]
struct Alarms {
    /// The wakers by deadline. A number makes the keys unique.
    waiting: BTreeMap<(Duration, u64), Waker>,
    next_number: u64,
}

impl Timer {
    /// Waits for this duration.
    pub async fn sleep(&self, duration: Duration) {
        let deadline = sim::now() + duration;
        poll_fn(|context| {
            if sim::now() >= deadline {
                return Poll::Ready(());
            }
            let alarms = &mut *self.0.borrow_mut();
            alarms.waiting.insert((deadline, alarms.next_number), context.waker().clone());
            alarms.next_number += 1;
            Poll::Pending
        })
        .await;
    }

    /// Wakes the tasks whose deadline has passed. Returns the next deadline.
    fn ring(&self) -> Option<Duration> {
        loop {
            let place = self.0.borrow().waiting.first_key_value().map(|(place, _)| *place)?;
            if place.0 > sim::now() {
                return Some(place.0);
            }
            let waker = self.0.borrow_mut().waiting.remove(&place);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

/// Runs all tasks until they have ended.
pub fn run(tasks: Vec<Task>, timer: &Timer, mut random: Random) {
    let thread = Sleeper::current();
    let woken = || Arc::new(Woken { is_woken: AtomicBool::new(true), thread: thread.clone() });
    let mut running: Vec<(Arc<Woken>, Task)> = tasks.into_iter().map(|task| (woken(), task)).collect();
    while !running.is_empty() {
        let next_alarm = timer.ring();
        let ready: Vec<usize> =
            (0..running.len()).filter(|index| running[*index].0.is_woken.load(Ordering::SeqCst)).collect();
        if ready.is_empty() {
            // The next round finds the tasks that have been woken or whose alarms are due. If no task is ever woken,
            // the scheduler reports a deadlock.
            sim::park(next_alarm.map(|deadline| deadline.saturating_sub(sim::now())));
            continue;
        }
        let index = ready[random.below(ready.len() as u64) as usize];
        let (woken, task) = &mut running[index];
        woken.is_woken.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(woken));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(running.swap_remove(index));
        }
    }
}

/// Awaits a future for at most `waits_max` waits. Returns `None` if that was not enough and the future was dropped.
pub async fn or_drop<T>(waits_max: Option<u64>, future: impl Future<Output = T>) -> Option<T> {
    let mut left = waits_max;
    let mut future = pin!(future);
    poll_fn(|context| match (future.as_mut().poll(context), &mut left) {
        (Poll::Ready(value), _) => Poll::Ready(Some(value)),
        (Poll::Pending, Some(0)) => Poll::Ready(None),
        (Poll::Pending, Some(left)) => {
            *left -= 1;
            Poll::Pending
        }
        (Poll::Pending, None) => Poll::Pending,
    })
    .await
}
