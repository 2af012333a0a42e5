//! A short round of clusters; `drumlin-sim cluster` runs as many as you like.

use std::time::Duration;

use drumlin_sim::cluster;

/// Clusters find nothing, and meet everything that can happen to them.
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

/// A seed determines the whole run of a cluster, down to the last decision of the scheduler and the last byte on each
/// disk.
#[test]
fn a_seed_goes_one_way() {
    for seed in 1000..1003 {
        let (one, other) = (cluster::run(seed), cluster::run(seed));
        assert_eq!(one.trace, other.trace, "seed {seed}");
        assert_eq!((one.points, one.duration, one.result), (other.points, other.duration, other.result), "seed {seed}");
    }
}
