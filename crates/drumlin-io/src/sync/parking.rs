//! Spinning and parking with the operating system's threads. In builds with simulations, these serve the threads
//! outside of a simulation.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Waits for a different thread to make progress: spins for increasing times, then yields.
#[derive(Debug, Default)]
pub struct Backoff(Cell<u32>);

impl Backoff {
    /// The binary logarithm of the longest spin, which is 64 pauses of the processor. After 127 pauses in total, a wait
    /// yields instead of spinning.
    /// Measured: not measured; crossbeam-utils has the same value.
    const SPINS_LOG2_MAX: u32 = 6;

    /// Waits briefly, longer at each call.
    #[inline]
    pub fn snooze(&self) {
        let step = self.0.get();
        if step > Backoff::SPINS_LOG2_MAX {
            std::thread::yield_now();
            return;
        }
        (0..1 << step).for_each(|_| std::hint::spin_loop());
        self.0.set(step + 1);
    }
}

/// Parks one thread, its owner. Only its [`Unparker`] wakes the thread from this parker.
#[derive(Debug, Default)]
pub struct Parker {
    unparker: Unparker,
}

/// Wakes the owner of a [`Parker`] if the owner is parked. Otherwise makes its next call of [`Parker::park`] return
/// immediately.
#[derive(Clone, Debug, Default)]
pub struct Unparker(Arc<Parking>);

#[derive(Debug, Default)]
struct Parking {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Parker {
    /// Blocks until the thread is unparked. Returns immediately if the thread was unparked since the last call.
    pub fn park(&self) {
        let Parking { is_woken, woken } = &*self.unparker.0;
        let mut is_woken = is_woken.lock();
        while !std::mem::take(&mut *is_woken) {
            woken.wait(&mut is_woken);
        }
    }

    /// Returns the handle that wakes the owner.
    #[inline]
    pub fn unparker(&self) -> &Unparker {
        &self.unparker
    }
}

impl Unparker {
    /// Wakes the owner of the parker, now or at its next call of [`Parker::park`].
    pub fn unpark(&self) {
        *self.0.is_woken.lock() = true;
        self.0.woken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::{Parker, Unparker};
    use std::thread;

    /// An unpark before the thread parks is not lost. Two unparks wake the thread only once.
    #[test]
    fn an_early_wake_up_is_kept() {
        let parker = Parker::default();
        let unparker: Unparker = parker.unparker().clone();
        unparker.unpark();
        unparker.unpark();
        parker.park();
        thread::scope(|scope| {
            scope.spawn(|| unparker.unpark());
            parker.park();
        });
    }
}
