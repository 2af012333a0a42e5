//! Checks that the memory used by a sequence stays within the budgets of its databases.
//!
//! A thread samples the process's memory every millisecond, so it also catches a peak within a single call. Only the
//! program's worker processes start the thread, because libFuzzer and tests run other code in the same process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The anonymous memory that is allowed in addition to the budgets and models: stacks, values passed through a call,
/// memory that the allocator retains, and memory that a database uses outside its budget (threads, and tables of a few
/// pages).
pub const ALLOWANCE_BYTES: u64 = 8 << 20;

/// The peak since the last reset, in bytes; 0 if it is not measured.
static PEAK: AtomicU64 = AtomicU64::new(0);

/// Returns the anonymous memory of this process in bytes, or `None` if the system does not report it.
fn anonymous_bytes() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = pages.split(' ').skip(1).map(str::parse::<u64>);
    let (resident, of_files) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(of_files) * 4096)
}

/// Samples the memory from now until the process ends.
pub fn watch() {
    let Some(bytes) = anonymous_bytes() else { return };
    PEAK.store(bytes, Ordering::Relaxed);
    std::thread::spawn(|| {
        loop {
            PEAK.fetch_max(anonymous_bytes().unwrap_or(0), Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Measures the memory of one sequence.
pub(super) struct Watch {
    before: u64,
    /// The largest excess over the budgets and the bytes that the caller holds. The allowance is not subtracted.
    pub(super) excess: u64,
}

impl Watch {
    pub(super) fn begin() -> Watch {
        PEAK.fetch_min(anonymous_bytes().unwrap_or(0), Ordering::Relaxed);
        Watch { before: PEAK.load(Ordering::Relaxed), excess: 0 }
    }

    /// Checks that the peak since the last call stays within the sum of the budgets, the bytes that the caller holds,
    /// and the allowance.
    pub(super) fn look(&mut self, budget_bytes: u64, held_bytes: impl FnOnce() -> u64) {
        let growth = PEAK.load(Ordering::Relaxed).saturating_sub(self.before);
        if growth <= budget_bytes {
            return;
        }
        let excess = (growth - budget_bytes).saturating_sub(held_bytes());
        self.excess = self.excess.max(excess);
        assert!(excess <= ALLOWANCE_BYTES, "{growth} bytes of memory were taken, {excess} more than there should be");
        PEAK.fetch_min(anonymous_bytes().unwrap_or(0), Ordering::Relaxed);
    }
}
