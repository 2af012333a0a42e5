//! A short round of the crash points; `drumlin-sim crash-points` goes through all.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use drumlin_sim::crash_points::{Bounds, Round, run};

/// A cut after any write or sync of the script, and of a recovery, takes nothing acknowledged and leaves nothing half done.
#[test]
fn a_cut_anywhere_in_the_script_takes_nothing() {
    let bounds = Bounds { subsets_of: 3, alone_max: 1, random: 1, of_recovery: 1, stride: 47 };
    // With one stream of the log, and with two.
    for seed in 0..2 {
        let round = Round { bounds, seed, from: 0, duration_max: Duration::from_secs(10), finds_max: 20 };
        let report = run(round, &AtomicBool::new(false), |_| ());
        println!("{} states of {} points verified", report.states, report.points);
        assert!(report.finds.is_empty(), "{:#?}", report.finds);
        assert!(report.states > 20);
    }
}
