//! A short round of clusters; `drumlin-sim cluster` runs as many as you like.

use std::time::Duration;

use drumlin_sim::cluster;

/// A few worlds find no bug, and together they contain every kind of event.
#[test]
fn clusters_find_nothing() {
    let report = cluster::explore(1000, 14, Duration::from_secs(300), 1, |_| ());
    assert_eq!((report.seeds, &report.finds[..]), (14, &[][..]));
    let counts = report.counts;
    assert!(counts.writes > 300 && counts.reads > 100, "{counts:?}");
    let events = [
        counts.cuts,
        counts.kills,
        counts.closes,
        counts.partitions,
        counts.changes_of_members,
        counts.snapshots_sent,
        counts.messages_lost,
    ];
    assert!(events.iter().all(|count| *count > 0), "{counts:?}");
    assert!(counts.leaders > report.seeds, "no leader was followed by another: {counts:?}");
}

/// Two runs of the same seed are identical: they have the same trace, the same number of scheduling decisions, the same
/// duration and the same result.
#[test]
fn a_seed_goes_one_way() {
    for seed in 1000..1003 {
        let (one, other) = (cluster::run(seed), cluster::run(seed));
        assert_eq!(one.trace, other.trace, "seed {seed}");
        assert_eq!((one.points, one.duration, one.result), (other.points, other.duration, other.result), "seed {seed}");
    }
}
