//! The memory that a sequence takes, against the budgets of its databases.
//!
//! A thread looks each millisecond, so that what a single call takes shows too. Only the program's worker asks for it:
//! under libFuzzer and in tests the process has memory of others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Anonymous memory beside budgets and models: stacks, values on their way through a call, what the allocator
/// keeps, and what a database has beside its budget (threads, and tables of a few pages).
pub const ALLOWANCE_BYTES: u64 = 8 << 20;

/// The most that was seen since it was asked the last time; 0: it is not measured.
static PEAK: AtomicU64 = AtomicU64::new(0);

/// Anonymous memory of this process; `None` where the system does not tell.
fn anonymous_bytes() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = pages.split(' ').skip(1).map(str::parse::<u64>);
    let (resident, of_files) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(of_files) * 4096)
}

/// Looks from now on, for as long as the process lives.
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

/// The memory of one sequence.
pub(super) struct Watch {
    before: u64,
    /// The most that was above what the sequence may have, without the allowance.
    pub(super) excess: u64,
}

impl Watch {
    pub(super) fn begin() -> Watch {
        PEAK.fetch_min(anonymous_bytes().unwrap_or(0), Ordering::Relaxed);
        Watch { before: PEAK.load(Ordering::Relaxed), excess: 0 }
    }

    /// Checks that the memory taken since the last look is within the budgets, the bytes that callers hold, and the
    /// allowance.
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
