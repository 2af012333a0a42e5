//! Futures whose code stays in this crate.
//!
//! The compiler treats an `async` block like a generic function: it recompiles the block in every crate that polls or
//! drops the future. If a public call awaited the engine directly, each program that makes the call would recompile the
//! engine. A [`Rooted`] future carries the addresses of the two functions that poll and drop it. A program compiles
//! only two calls through these addresses.
//!
//! The addresses are taken in the function that makes the future, so that function must be compiled in this crate, too.
//! It must have no type parameters, and be `#[inline(never)]`, because otherwise the compiler may inline a short
//! function into its callers' crates. A project test checks both.

// `Rooted` pins its future in place and drops it through its address.
#![allow(unsafe_code)]

use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future that is polled and dropped by code compiled in the crate that made it. Needs no allocation.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Rooted<F: Future> {
    future: ManuallyDrop<F>,
    poll: fn(Pin<&mut F>, &mut Context<'_>) -> Poll<F::Output>,
    /// `ManuallyDrop::drop`.
    ///
    /// # Safety
    /// Must be called only once, for `future`, which must not be used afterwards.
    drop: unsafe fn(&mut ManuallyDrop<F>),
}

impl<F: Future> Rooted<F> {
    /// Makes a future that this crate's code polls and drops. Call this only from functions that are compiled in this
    /// crate: see the module.
    #[inline]
    pub(crate) fn new(future: F) -> Rooted<F> {
        Rooted { future: ManuallyDrop::new(future), poll: F::poll, drop: ManuallyDrop::drop }
    }
}

impl<F: Future> Future for Rooted<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: nothing moves out of `self`. Nor does `future` move: it is pinned whenever `self` is, since no method
        // returns it unpinned and `Drop` drops it in place.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: `future` is pinned (see above), and `ManuallyDrop` holds its value in place.
        let future = unsafe { Pin::new_unchecked(&mut *this.future) };
        (this.poll)(future, context)
    }
}

impl<F: Future> Drop for Rooted<F> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is the only call, and nothing uses the future afterwards. It is dropped in place, while still
        // pinned.
        unsafe { (self.drop)(&mut self.future) }
    }
}

#[cfg(test)]
mod tests {
    use super::Rooted;
    use crate::task::ready;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    /// Holds a reference to one of its own variables across an `await`.
    async fn borrows_itself(alive: Arc<()>, is_pending: bool) -> usize {
        let bytes = [1u8, 2, 3];
        let slice = &bytes[1..];
        let mut is_pending = is_pending;
        std::future::poll_fn(|_| if std::mem::take(&mut is_pending) { Poll::Pending } else { Poll::Ready(()) }).await;
        slice.len() + Arc::strong_count(&alive)
    }

    fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    // A polled future resumes at the point where it stopped. It is dropped exactly once, whether it was never polled,
    // is pending, or has completed.
    #[test]
    fn polled_and_dropped_like_the_future_itself() {
        let alive = Arc::new(());
        drop(Rooted::new(borrows_itself(Arc::clone(&alive), true)));
        assert_eq!(Arc::strong_count(&alive), 1);
        {
            let mut half = pin!(Rooted::new(borrows_itself(Arc::clone(&alive), true)));
            assert!(poll_once(half.as_mut()).is_pending());
            assert_eq!(Arc::strong_count(&alive), 2);
        }
        assert_eq!(Arc::strong_count(&alive), 1);
        {
            let mut whole = pin!(Rooted::new(borrows_itself(Arc::clone(&alive), true)));
            assert!(poll_once(whole.as_mut()).is_pending());
            assert_eq!(poll_once(whole.as_mut()), Poll::Ready(4));
        }
        assert_eq!(ready(Rooted::new(borrows_itself(Arc::clone(&alive), false))), 4);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    // A `Rooted` future is `Send` if the future inside it is.
    #[test]
    fn is_send_if_the_future_is() {
        fn is_send(_: &impl Send) {}
        is_send(&Rooted::new(borrows_itself(Arc::new(()), false)));
    }
}
