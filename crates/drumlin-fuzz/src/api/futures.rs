//! Polls futures to completion, or drops or leaks them before that.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

pub(super) struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

/// The number of times to poll a future, and whether it is then leaked or dropped.
#[derive(Clone, Copy)]
pub(super) struct Fate {
    pub(super) polls: usize,
    pub(super) leaks: bool,
}

/// Polls a future up to the given number of times, then drops or leaks it. Returns its result if it completed.
pub(super) fn poll_some<T>(future: impl Future<Output = T>, fate: Fate) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = Box::pin(future);
    for _ in 0..fate.polls {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        std::thread::park_timeout(Duration::from_micros(200));
    }
    if fate.leaks {
        std::mem::forget(future);
    }
    None
}
