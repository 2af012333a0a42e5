//! Runs many seeds and sums up the results.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::plan::{Fault, Plan};
use crate::world::{self, Run, RunReport};

/// The limits of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub from: u64,
    pub seeds_max: u64,
    pub duration_max: Duration,
    pub jobs: usize,
    /// The exploration ends after this many failed seeds.
    pub finds_max: usize,
    /// A fault to use in every world, instead of the one that its seed draws.
    pub fault: Option<Fault>,
    /// The exploration ends after this much simulated time.
    pub simulated_max: Duration,
}

/// The totals over all runs.
#[derive(Debug, Default)]
pub struct Summary {
    pub seeds: u64,
    pub simulated: Duration,
    pub points: u64,
    pub report: RunReport,
    pub faults: BTreeMap<String, u64>,
    /// The seeds that failed, with their reports.
    pub finds: Vec<(u64, String)>,
    /// The name of the fault, if all worlds had the same one.
    pub fault: Option<Fault>,
}

impl Summary {
    fn add(&mut self, run: Run) {
        self.seeds += 1;
        self.fault = run.plan.imposed;
        self.simulated += run.duration;
        self.points += run.points;
        *self.faults.entry(run.plan.fault.name()).or_default() += 1;
        match run.result {
            Ok(report) => {
                let own = &mut self.report;
                own.openings += report.openings;
                own.openings_refused += report.openings_refused;
                own.cuts += report.cuts;
                own.cuts_while_opening += report.cuts_while_opening;
                own.kills += report.kills;
                own.closes += report.closes;
                own.commits += report.commits;
                own.rows_checked += report.rows_checked;
                own.damage_reported += report.damage_reported;
                own.openings_behind += report.openings_behind;
                for (name, count) in report.counts {
                    *own.counts.entry(name).or_default() += count;
                }
                own.harm.add(&report.harm);
            }
            Err(report) => self.finds.push((run.plan.seed, report)),
        }
    }
}

/// Pins the calling thread, and every thread that it starts, to one processor, because switching between threads of the
/// same processor is several times faster.
pub fn stay_on_one_processor(job: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let processors: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).collect();
    // Start with the processor that the process started on. Other pinned processes probably run on different ones.
    static FIRST: OnceLock<usize> = OnceLock::new();
    let first = *FIRST.get_or_init(rustix::thread::sched_getcpu);
    let Some(place) = processors.iter().position(|processor| *processor == first) else { return };
    let mut one = rustix::thread::CpuSet::new();
    one.set(processors[(place + job) % processors.len()]);
    // Ignore a failure: pinning only saves time.
    let _ = rustix::thread::sched_setaffinity(None, &one);
}

/// Runs seeds in order until a limit is reached, and calls `on_progress` now and then.
pub fn explore(limits: Limits, on_progress: impl Fn(&Summary) + Sync) -> Summary {
    let began = Instant::now();
    let next = AtomicU64::new(limits.from);
    let is_enough = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for job in 0..limits.jobs {
            let (next, is_enough, summary, on_progress) = (&next, &is_enough, &summary, &on_progress);
            scope.spawn(move || {
                stay_on_one_processor(job);
                while !is_enough.load(Ordering::Relaxed) && began.elapsed() < limits.duration_max {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - limits.from >= limits.seeds_max {
                        return;
                    }
                    let run = world::run(Plan::of(seed).with(limits.fault));
                    let mut summary = summary.lock().expect("nobody panics with it");
                    summary.add(run);
                    if summary.finds.len() >= limits.finds_max || summary.simulated >= limits.simulated_max {
                        is_enough.store(true, Ordering::Relaxed);
                    }
                    on_progress(&summary);
                }
            });
        }
    });
    summary.into_inner().expect("nobody panics with it")
}
