//! Pins: they keep a frame from being evicted, and decide which thread frees it once its page is gone.
//!
//! A frame may be unlinked while it is pinned. In that case its last unpin frees it.

use crate::sync::atomic::{AtomicU32, Ordering};

/// The number of pins, and a bit that marks the frame as abandoned. See the module documentation.
#[derive(Debug)]
pub(super) struct PinCount(AtomicU32);

const ABANDONED_BIT: u32 = 1 << 31;

impl PinCount {
    pub(super) fn new() -> PinCount {
        PinCount(AtomicU32::new(0))
    }

    /// Adds a pin. The caller holds the frame's latch, and the frame is not abandoned.
    pub(super) fn pin(&self) {
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        assert!(before < ABANDONED_BIT - 1, "a frame is pinned that is abandoned");
    }

    /// Returns `true` if the frame is not pinned.
    pub(super) fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) & !ABANDONED_BIT == 0
    }

    /// Removes a pin. Returns `true` if the caller has to free the frame.
    #[must_use]
    pub(super) fn unpin(&self) -> bool {
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        assert!(before & !ABANDONED_BIT > 0, "a frame let go twice");
        before == ABANDONED_BIT | 1 && self.end()
    }

    /// Marks the frame as abandoned, because its page is gone. Returns `true` if the frame is not pinned, in which case
    /// the caller has to free it. Otherwise the last unpin will.
    #[must_use]
    pub(super) fn abandon(&self) -> bool {
        let before = self.0.fetch_or(ABANDONED_BIT, Ordering::AcqRel);
        assert!(before & ABANDONED_BIT == 0, "a frame is abandoned twice");
        before & !ABANDONED_BIT == 0 && self.end()
    }

    fn end(&self) -> bool {
        debug_assert_eq!(self.0.load(Ordering::Relaxed), ABANDONED_BIT, "a frame is pinned while it is freed");
        self.0.store(0, Ordering::Release);
        true
    }
}

#[cfg(all(test, drumlin_loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// In every interleaving of two unpins and one abandon, the frame is freed exactly once, after the last unpin.
    #[test]
    fn loom_an_abandoned_frame_is_freed_once() {
        loom::model(|| {
            let pins = Arc::new(PinCount::new());
            let freed = Arc::new(AtomicU32::new(0));
            pins.pin();
            pins.pin();
            let holders: Vec<_> = (0..2)
                .map(|_| {
                    let (pins, freed) = (Arc::clone(&pins), Arc::clone(&freed));
                    thread::spawn(move || {
                        if pins.unpin() {
                            assert!(pins.is_idle(), "freed while somebody holds it");
                            freed.fetch_add(1, Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            if pins.abandon() {
                assert!(pins.is_idle(), "freed while somebody holds it");
                freed.fetch_add(1, Ordering::SeqCst);
            }
            for holder in holders {
                holder.join().unwrap();
            }
            assert_eq!(freed.load(Ordering::SeqCst), 1);
        });
    }
}
