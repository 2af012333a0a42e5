//! Seeds that once found a bug, and a check for determinism.

use drumlin_sim::cluster;
use drumlin_sim::plan::{Fault, Plan};
use drumlin_sim::world;

/// Seeds that once found a bug no longer find any.
#[test]
fn seeds_that_found_something_find_nothing() {
    let text = include_str!("../seeds.txt");
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let (seed, what) = line.split_once(' ').expect("a seed and what it was");
        let number = seed.parse().expect("a number");
        let kind = what.split_once(':').map_or("", |(kind, _)| kind);
        if kind == "cluster" {
            if let Err(report) = cluster::run(number).result {
                panic!("seed {seed} ({what}) found: {report}");
            }
            continue;
        }
        let plan = Plan::of(number);
        let run = world::run(if kind == "plain" { plan.plain() } else { plan.with(Fault::named(kind)) });
        if let Err(report) = run.result {
            panic!("seed {seed} ({what}) found: {report}");
        }
    }
}

/// A seed determines the whole run, down to the last decision of the scheduler and the last byte on disk.
#[test]
fn a_seed_goes_one_way() {
    for seed in 1000..1012 {
        let (one, other) = (world::run(Plan::of(seed)), world::run(Plan::of(seed)));
        assert_eq!(one.trace, other.trace, "seed {seed}");
        assert_eq!((one.points, one.duration), (other.points, other.duration), "seed {seed}");
    }
}
