//! Tasks' requests for pages, and the answers that the tasks poll for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use super::needs::Wanted;
use crate::error::Result;
use crate::space::PageSpace;
use crate::sync::{Condvar, Mutex};

/// The queue of requests to the reading thread.
#[derive(Debug, Default)]
pub(super) struct ReadService {
    pub(super) inbox: Mutex<Inbox>,
    pub(super) arrived: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) requests: VecDeque<FetchRequest>,
    pub(super) thread: Option<JoinHandle<()>>,
    pub(super) stop: bool,
}

#[derive(Debug)]
pub(super) struct FetchRequest {
    pub(super) pages: Arc<PageSpace>,
    pub(super) wanted: Wanted,
    pub(super) ticket: Arc<ReadTicket>,
}

/// The answer to a request, which its task polls for.
#[derive(Debug, Default)]
pub(super) struct ReadTicket(Mutex<(Option<Result<()>>, Option<Waker>)>);

impl ReadTicket {
    /// Stores the answer. Returns the task's waker, if the task has polled.
    pub(super) fn answer(&self, result: Result<()>) -> Option<Waker> {
        let mut state = self.0.lock();
        assert!(state.0.is_none(), "a request is answered twice");
        state.0 = Some(result);
        state.1.take()
    }

    pub(super) fn poll(&self, waker: &Waker) -> Poll<Result<()>> {
        let mut state = self.0.lock();
        match state.0.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.1 = Some(waker.clone());
                Poll::Pending
            }
        }
    }
}
