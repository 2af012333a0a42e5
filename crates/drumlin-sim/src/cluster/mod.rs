//! Worlds of a whole cluster: three to five nodes of `drumlin-raft` and openraft under one seed.
//!
//! Each node has its own simulated disk, which can lose power or flip a bit. While clients write and read, nodes are
//! killed, lose power, are closed and reopened, are partitioned from each other, and are added and removed. `oracle.rs`
//! lists the checks. `store.rs` checks that everything that a log reported as durable is still there. `runtime.rs`
//! explains how one thread runs all nodes.

mod client;
mod network;
mod node;
mod oracle;
mod plan;
mod running;
mod runtime;
mod store;
mod world;

use std::time::{Duration, Instant};

use drumlin_io::testing::sim;
use drumlin_raft::{KeyValueRequest, KeyValueResponse};
use openraft::AsyncRuntime;

pub use plan::Plan;

use world::World;

openraft::declare_raft_types!(
    /// The types of the simulated cluster. Terms have one leader.
    pub TypeConfig:
        D = KeyValueRequest,
        R = Option<KeyValueResponse>,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = runtime::Runtime
);

/// The only Raft group of the cluster.
const GROUP: u64 = 1;

/// The number of events of each kind, in one world or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub openings: u64,
    pub cuts: u64,
    pub cuts_while_opening: u64,
    pub kills: u64,
    pub closes: u64,
    pub partitions: u64,
    pub bits_flipped: u64,
    pub damage_reported: u64,
    pub changes_of_members: u64,
    pub leaders: u64,
    pub entries: u64,
    pub writes: u64,
    pub writes_unknown: u64,
    pub reads: u64,
    pub snapshots_sent: u64,
    pub snapshots_resumed: u64,
    pub messages_lost: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.openings += other.openings;
        self.cuts += other.cuts;
        self.cuts_while_opening += other.cuts_while_opening;
        self.kills += other.kills;
        self.closes += other.closes;
        self.partitions += other.partitions;
        self.bits_flipped += other.bits_flipped;
        self.damage_reported += other.damage_reported;
        self.changes_of_members += other.changes_of_members;
        self.leaders += other.leaders;
        self.entries += other.entries;
        self.writes += other.writes;
        self.writes_unknown += other.writes_unknown;
        self.reads += other.reads;
        self.snapshots_sent += other.snapshots_sent;
        self.snapshots_resumed += other.snapshots_resumed;
        self.messages_lost += other.messages_lost;
    }
}

/// The outcome of one world.
#[derive(Clone, Debug)]
pub struct Run {
    pub plan: Plan,
    pub result: Result<Counts, String>,
    pub trace: u64,
    pub duration: Duration,
    pub points: u64,
}

/// Runs the world of a seed.
#[must_use]
pub fn run(seed: u64) -> Run {
    let plan = Plan::of(seed);
    let own = plan.clone();
    let outcome = sim::run(plan.schedule, move || {
        runtime::Runtime::with_seed(own.seed).block_on(async { World::new(own).live().await })
    });
    Run { plan, result: outcome.result, trace: outcome.trace, duration: outcome.duration, points: outcome.points }
}

/// The sums over all worlds.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seeds: u64,
    pub simulated: Duration,
    pub points: u64,
    pub counts: Counts,
    /// The seeds that failed, with what they found.
    pub finds: Vec<(u64, String)>,
}

/// Runs worlds from the seed `from` on, up to `seeds_max` of them, for `duration_max` and until `finds_max` have
/// failed. Calls `on_progress` after each.
#[must_use]
pub fn explore(
    from: u64,
    seeds_max: u64,
    duration_max: Duration,
    finds_max: usize,
    mut on_progress: impl FnMut(&Report),
) -> Report {
    let began = Instant::now();
    let mut report = Report::default();
    for seed in from..from.saturating_add(seeds_max) {
        if began.elapsed() > duration_max || report.finds.len() >= finds_max {
            break;
        }
        let run = run(seed);
        report.seeds += 1;
        report.simulated += run.duration;
        report.points += run.points;
        match run.result {
            Ok(counts) => report.counts.add(&counts),
            Err(find) => report.finds.push((seed, find)),
        }
        on_progress(&report);
    }
    report
}
