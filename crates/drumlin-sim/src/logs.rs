//! Random histories of logs by index (`drumlin::logs`), one for each seed, on simulated disks beside a model.
//!
//! A history appends, cuts, purges, sets values, moves and removes logs in a folder that is opened several times. Each
//! opening ends by a close, a kill or a power cut. Each receipt is answered once. What was acknowledged is there
//! afterwards, what was cut off is not, and a batch is whole or absent.

#[path = "../../drumlin/src/logs/tests/history.rs"]
mod history;

use std::panic::{catch_unwind, set_hook, take_hook};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drumlin::Result;
use drumlin::logs::{Batch, Logs, LogsOptions, Receipt};
use drumlin_io::Backend;
use drumlin_io::testing::fault::FaultyBackend;
use drumlin_io::testing::sim::{self, Loss, Medium};
use drumlin_testing::Random;

/// The sums over all histories.
#[derive(Clone, Debug, Default)]
pub struct LogsReport {
    pub seeds: u64,
    pub changes: usize,
    pub crashes: usize,
    /// The seeds that failed, with what they found.
    pub finds: Vec<(u64, String)>,
}

/// Runs histories from the seed `from` on, up to `seeds_max` of them, for `duration_max` and until `finds_max` have
/// failed.
#[must_use]
pub fn run(from: u64, seeds_max: u64, duration_max: Duration, finds_max: usize) -> LogsReport {
    let began = Instant::now();
    let mut report = LogsReport::default();
    let hook = take_hook();
    if std::env::var_os("DRUMLIN_SIM_BACKTRACE").is_none() {
        set_hook(Box::new(|_| {}));
    }
    for seed in from..from.saturating_add(seeds_max) {
        if began.elapsed() > duration_max || report.finds.len() >= finds_max {
            break;
        }
        report.seeds += 1;
        match catch_unwind(|| history::survive(seed)) {
            Ok(survived) => {
                report.changes += survived.changes;
                report.crashes += survived.crashes;
            }
            Err(panic) => report.finds.push((seed, message_of(panic.as_ref()))),
        }
    }
    set_hook(hook);
    report
}

/// Returns the message of a panic.
fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Histories find nothing in the library, and crash often.
    #[test]
    fn histories_find_nothing() {
        let report = run(1000, 5, Duration::from_secs(300), 1);
        assert_eq!((report.seeds, &report.finds[..]), (5, &[][..]));
        assert!(report.crashes > 10 && report.changes > 1000, "{report:?}");
    }
}
