//! A short round of crash points; `drumlin-sim crash-points` tries them all.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drumlin_sim::crash_points::{Bounds, Round, ScriptKind, run};

use ScriptKind::{Changes, Features};

/// Coverage marks are process-wide, so a test that reads them must run alone.
static MARKS: RwLock<()> = RwLock::new(());

/// The script takes rare paths at which no other test cuts the power: a warm start, the shortening of an idle
/// database's file, and the sorting of a bulk load's rows.
#[test]
fn the_script_passes_rare_ways() {
    let _alone = MARKS.write().unwrap();
    let bounds = Bounds { subsets_of: 0, alone_max: 0, random: 0, of_recovery: 0, stride: usize::MAX };
    for seed in 0..2 {
        let round =
            Round { script: Features, bounds, seed, from: 0, duration_max: Duration::from_secs(10), finds_max: 20 };
        let passed = run(round, &AtomicBool::new(false), |_| ()).script_marks;
        for mark in [
            "a list of resident pages was written",
            "a page was read that was resident when the database was closed",
            "the file of an idle database was shortened",
            "the end of the data file was given back",
            "rows of a bulk load were sorted",
        ] {
            assert!(passed.contains(mark), "with seed {seed} the script never passes: {mark}");
        }
    }
}

/// A power cut after any write or sync of the script, or of a recovery, loses no acknowledged commit and leaves no
/// partial one.
#[test]
fn a_cut_anywhere_in_the_script_takes_nothing() {
    let _with_others = MARKS.read().unwrap();
    let bounds = Bounds { subsets_of: 3, alone_max: 1, random: 1, of_recovery: 1, stride: 47 };
    // Seed 0 has one log stream, and seed 1 has two.
    for seed in 0..2 {
        let round =
            Round { script: Features, bounds, seed, from: 0, duration_max: Duration::from_secs(10), finds_max: 20 };
        let report = run(round, &AtomicBool::new(false), |_| ());
        println!("{} states of {} points verified", report.states, report.points);
        assert!(report.finds.is_empty(), "{:#?}", report.finds);
        assert!(report.states > 20);
    }
}

/// A power cut after any write, sync or rename leaves a database that is complete or can be recreated. The cuts hit the
/// creation of a database, and an opening that continues the creation after a kill.
#[test]
fn a_creation_cut_anywhere_can_be_gone_on_with() {
    let _with_others = MARKS.read().unwrap();
    let bounds = Bounds { subsets_of: 6, alone_max: 1, random: 8, of_recovery: 16, stride: 1 };
    let stop = AtomicBool::new(false);
    let round =
        Round { script: Features, bounds, seed: 1, from: 0, duration_max: Duration::from_secs(60), finds_max: 20 };
    let report = run(round, &stop, |report| stop.store(report.next > 24, Ordering::Relaxed));
    println!("{} states of the first {} points verified", report.states, report.next);
    assert!(report.finds.is_empty(), "{:#?}", report.finds);
    assert!(report.next > 24);
}

/// The database survives cuts while the superblock lists as many openings as it can. Recovery then erases the records
/// that those openings made void, and may itself be cut.
#[test]
fn records_that_openings_voided_are_erased_whatever_is_cut() {
    let _alone = MARKS.write().unwrap();
    let bounds = Bounds { subsets_of: 3, alone_max: 1, random: 2, of_recovery: 4, stride: 5 };
    let round = |bounds, seed| Round {
        script: Features,
        bounds,
        seed,
        from: 0,
        duration_max: Duration::from_secs(60),
        finds_max: 20,
    };
    // These seeds begin with openings that are cut off. It depends on the schedule whether those openings leave void
    // records. If they do, the script's first opening erases the records.
    let script_alone = Bounds { subsets_of: 0, alone_max: 0, random: 0, of_recovery: 0, stride: usize::MAX };
    let erases = |seed: &u64| {
        let passed = run(round(script_alone, *seed), &AtomicBool::new(false), |_| ()).script_marks;
        passed.contains("a void record was erased")
    };
    let seed = (551..1500).step_by(4).find(erases).expect("no script erases a void record");
    let stop = AtomicBool::new(false);
    let report = run(round(bounds, seed), &stop, |report| stop.store(report.next > 40, Ordering::Relaxed));
    println!("seed {seed}: {} states of the first {} points verified", report.states, report.next);
    assert!(report.finds.is_empty(), "{:#?}", report.finds);
    assert!(report.next > 40);
}

/// A power cut after any write, sync or removal of a change file, or of an opening that continues the feed, leaves a
/// feed that has each commit once. The script removes files that the retention does not promise, and a later opening
/// continues its files.
#[test]
fn a_cut_anywhere_leaves_each_commit_once_in_the_feed() {
    let _alone = MARKS.write().unwrap();
    let bounds = Bounds { subsets_of: 3, alone_max: 1, random: 1, of_recovery: 1, stride: 19 };
    for seed in 0..2 {
        let round =
            Round { script: Changes, bounds, seed, from: 0, duration_max: Duration::from_secs(10), finds_max: 20 };
        let report = run(round, &AtomicBool::new(false), |_| ());
        println!("{} states of {} points verified", report.states, report.points);
        assert!(report.finds.is_empty(), "{:#?}", report.finds);
        assert!(report.states > 20);
        for mark in ["the retention removed changes", "an opening continued the changes of an earlier one"] {
            assert!(report.script_marks.contains(mark), "with seed {seed} the script never passes: {mark}");
        }
    }
}
