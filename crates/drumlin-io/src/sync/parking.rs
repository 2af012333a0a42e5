//! Spinning and parking, built on the operating system's threads. Simulated threads use them outside a simulation.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Waits for another thread to make progress: spins for longer and longer, then yields.
#[derive(Debug, Default)]
pub struct Backoff(Cell<u32>);

impl Backoff {
    /// Binary logarithm of the longest spin: 64 pauses of the processor. A wait that outlasts 127 pauses yields
    /// instead.
    /// Measured: not measured; crossbeam-utils has the same value.
    const SPINS_LOG2_MAX: u32 = 6;

    /// Waits a little, and longer with each call.
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

/// A parker of one owner. Unparks for other uses of the thread do not wake it.
#[derive(Debug, Default)]
pub struct Parker {
    unparker: Unparker,
}

/// Wakes the thread that is parked, or makes its next park return at once.
#[derive(Clone, Debug, Default)]
pub struct Unparker(Arc<Parking>);

#[derive(Debug, Default)]
struct Parking {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Parker {
    /// Blocks until the thread is unparked. Returns at once if that happened since the last park.
    pub fn park(&self) {
        let Parking { is_woken, woken } = &*self.unparker.0;
        let mut is_woken = is_woken.lock();
        while !std::mem::take(&mut *is_woken) {
            woken.wait(&mut is_woken);
        }
    }

    /// Returns what wakes the owner.
    #[inline]
    pub fn unparker(&self) -> &Unparker {
        &self.unparker
    }
}

impl Unparker {
    /// Wakes the owner of the parker.
    pub fn unpark(&self) {
        *self.0.is_woken.lock() = true;
        self.0.woken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::{Parker, Unparker};
    use std::thread;

    /// A wake-up before the thread parks is not lost, and two of them wake it once.
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
