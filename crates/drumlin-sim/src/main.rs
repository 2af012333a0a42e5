//! `drumlin-sim`: explores seeds, replays them, and tries crash points.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::{Parser, Subcommand};
use drumlin_sim::cluster;
use drumlin_sim::crash_points::{self, Bounds, Round, ScriptKind};
use drumlin_sim::explore::{self, Limits};
use drumlin_sim::logs;
use drumlin_sim::plan::{Fault, Plan};
use drumlin_sim::planted;
use drumlin_sim::progress::{self, CrashPoints, STORE_EVERY, Worlds};
use drumlin_sim::report;
use drumlin_sim::world;

/// Runs Drumlin in a simulated world. Without a command it explores seeds, or replays one.
#[derive(Debug, Parser)]
#[command(name = "drumlin-sim", version)]
struct Arguments {
    /// Replay this seed; DRUMLIN_SIM_TRACE=1 prints every operation on the disk, DRUMLIN_SIM_BACKTRACE=1 the backtrace
    /// of a panic
    #[arg(long)]
    seed: Option<u64>,
    /// Stop after this many minutes; by default one, or as long as --hours-simulated or --states take
    #[arg(long)]
    minutes: Option<f64>,
    /// Explore seeds from 0 upwards until all runs together have simulated this many hours; progress is kept in
    /// target/sim
    #[arg(long, conflicts_with_all = ["from", "seeds", "seed", "jobs", "fault"])]
    hours_simulated: Option<f64>,
    /// The first seed to explore; by default derived from the time
    #[arg(long)]
    from: Option<u64>,
    /// Explore at most this many seeds
    #[arg(long, default_value_t = u64::MAX)]
    seeds: u64,
    /// Run this many seeds at a time, each on one processor
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Stop after this many failed seeds
    #[arg(long, default_value_t = 20)]
    finds: usize,
    /// Use this fault in every world instead of the one that its seed draws
    #[arg(long, value_enum)]
    fault: Option<Fault>,
    /// With --seed: blocking clients only, no serializable transactions
    #[arg(long)]
    plain: bool,
    /// With --hours-simulated, --states or `planted`: write the figures into docs/testing.md
    #[arg(long, global = true)]
    update_docs: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the coverage marks
    Marks,
    /// Plant bugs in copies of the library and show that each is found
    Planted {
        /// Only bugs whose name contains this
        #[arg(default_value = "")]
        only: String,
    },
    /// Run histories of logs by index, one for each seed, with kills and power cuts; --from, --seeds and --finds apply
    Logs,
    /// Run worlds of a whole Raft cluster, one for each seed; --from, --seeds and --finds apply
    Cluster,
    /// Cut the power after every write and sync of a script, and of each recovery
    CrashPoints {
        /// Run the script that keeps its changes, and check the feed
        #[arg(long, conflicts_with = "states")]
        changes: bool,
        /// At points with at most this many uncertain changes, keep each subset of them in turn
        #[arg(long, default_value_t = 6)]
        subsets: usize,
        /// At other points, the number of writes that are lost alone and kept alone
        #[arg(long, default_value_t = 4)]
        alone: usize,
        /// States drawn at random at each point
        #[arg(long, default_value_t = 6)]
        random: usize,
        /// States at each point of each recovery
        #[arg(long, default_value_t = 2)]
        recovery: usize,
        /// Try only every n-th point
        #[arg(long, default_value_t = 1)]
        stride: usize,
        /// Continue from this point, as an earlier run printed
        #[arg(long, default_value_t = 0)]
        point: usize,
        /// The seed for all random choices
        #[arg(long, default_value_t = 1)]
        draw: u64,
        /// Continue until all runs together have tried this many states; progress is kept in target/sim. Each pass
        /// through the points uses a different seed
        #[arg(long, conflicts_with_all = ["stride", "point", "draw"])]
        states: Option<u64>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let fault = arguments.fault;
    let duration_max = |default: f64| Duration::from_secs_f64(arguments.minutes.unwrap_or(default) * 60.0);
    let finds_max = arguments.finds.max(1);
    match (arguments.command, arguments.seed) {
        (Some(Command::Marks), _) => {
            for (mark, _) in drumlin::simulation::marks() {
                println!("{mark}");
            }
            ExitCode::SUCCESS
        }
        (Some(Command::CrashPoints { changes, subsets, alone, random, recovery, stride, point, draw, states }), _) => {
            let subsets_of = subsets.min(16);
            let bounds = Bounds { subsets_of, alone_max: alone, random, of_recovery: recovery, stride: stride.max(1) };
            let duration_max = duration_max(if states.is_some() { FOR_EVER } else { 1.0 });
            let script = if changes { ScriptKind::Changes } else { ScriptKind::Features };
            let round = Round { script, bounds, seed: draw, from: point, duration_max, finds_max };
            match states {
                None => crash_points(round),
                Some(states) => exit_code(crash_points_until(states, round, arguments.update_docs)),
            }
        }
        (Some(Command::Logs), seed) => {
            let (from, seeds) = seed.map_or((arguments.from.unwrap_or(0), arguments.seeds), |seed| (seed, 1));
            histories_of_logs(from, seeds, duration_max(1.0), finds_max)
        }
        (Some(Command::Cluster), Some(seed)) => replay_cluster(seed),
        (Some(Command::Cluster), None) => {
            let from = arguments.from.unwrap_or_else(seed_of_now);
            explore_clusters(from, arguments.seeds, duration_max(1.0), finds_max)
        }
        (Some(Command::Planted { only }), _) => exit_code(planted::run(&only, arguments.update_docs)),
        (None, Some(seed)) => replay(seed, fault, arguments.plain),
        (None, None) => {
            let from = arguments.from.unwrap_or_else(seed_of_now);
            let limits = Limits {
                from,
                seeds_max: arguments.seeds,
                duration_max: duration_max(if arguments.hours_simulated.is_some() { FOR_EVER } else { 1.0 }),
                jobs: arguments.jobs.max(1),
                finds_max,
                fault,
                simulated_max: Duration::MAX,
            };
            match arguments.hours_simulated {
                None => explore(limits),
                Some(hours) => exit_code(explore_until(hours, limits, arguments.update_docs)),
            }
        }
    }
}

/// Returns a seed that follows from the time.
fn seed_of_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() << 20
}

/// A time limit, in minutes, that no run reaches: for runs that end after a number of simulated hours or states.
const FOR_EVER: f64 = 1e7;

fn exit_code(is_well: std::io::Result<bool>) -> ExitCode {
    match is_well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

const WORLDS: &str = "worlds.json";
const CRASH_POINTS: &str = "crash-points.json";

/// Continues where the last run stopped. Returns `true` if no run has failed so far.
fn explore_until(hours: f64, limits: Limits, updates_docs: bool) -> std::io::Result<bool> {
    let before: Worlds = progress::load(WORLDS)?;
    if before.seeds > 0 {
        print!("{}", report::of_all_worlds(&before));
    }
    let wanted = Duration::from_secs_f64(hours * 3600.0);
    let simulated_max = wanted.saturating_sub(Duration::from_millis(before.simulated_millis));
    let stored = Mutex::new(Instant::now());
    let summary = explore::explore(Limits { from: before.next_seed, simulated_max, ..limits }, |summary| {
        let mut stored = stored.lock().expect("nobody panics with it");
        if stored.elapsed() > STORE_EVERY {
            let progress = before.with(summary);
            println!("{:.1} simulated hours, seed {}", progress.hours(), progress.next_seed);
            // Ignore a failure, because a later attempt may succeed. Only the last attempt reports its failure.
            let _ = progress::store(WORLDS, &progress);
            *stored = Instant::now();
        }
    });
    let after = before.with(&summary);
    progress::store(WORLDS, &after)?;
    print!("{}", report::of_all_worlds(&after));
    if updates_docs {
        report::write_worlds(&after)?;
    }
    Ok(after.finds.is_empty())
}

/// Continues where the last run stopped. Returns `true` if no run has failed so far.
fn crash_points_until(states: u64, round: Round, updates_docs: bool) -> std::io::Result<bool> {
    explore::stay_on_one_processor(0);
    let mut progress: CrashPoints = progress::load(CRASH_POINTS)?;
    print!("{}", report::of_all_crash_points(&progress));
    let began = Instant::now();
    while progress.states < states && began.elapsed() < round.duration_max {
        let before = progress.clone();
        let (stored, is_enough) = (Mutex::new(Instant::now()), AtomicBool::new(false));
        let duration_max = round.duration_max.saturating_sub(began.elapsed());
        let round = Round { seed: before.draw, from: before.point, duration_max, ..round };
        let report = crash_points::run(round, &is_enough, |report| {
            is_enough.store(before.states + report.states >= states, Ordering::Relaxed);
            let mut stored = stored.lock().expect("nobody panics with it");
            if stored.elapsed() > STORE_EVERY {
                let progress = before.with(report);
                println!("{} states, draw {}, point {}", progress.states, progress.draw, progress.point);
                let _ = progress::store(CRASH_POINTS, &progress);
                *stored = Instant::now();
            }
        });
        progress = before.with(&report);
        progress::store(CRASH_POINTS, &progress)?;
        if report.finds.len() >= round.finds_max {
            break;
        }
    }
    print!("{}", report::of_all_crash_points(&progress));
    if updates_docs {
        report::write_crash_points(&progress)?;
    }
    Ok(progress.finds.is_empty())
}

fn crash_points(round: Round) -> ExitCode {
    explore::stay_on_one_processor(0);
    let began = Instant::now();
    let last_shown = Mutex::new(Instant::now());
    let report = crash_points::run(round, &AtomicBool::new(false), |report| {
        let mut last_shown = last_shown.lock().expect("nobody panics with it");
        if last_shown.elapsed() > Duration::from_secs(20) {
            println!("point {} of {}, {} states", report.next, report.points, report.states);
            *last_shown = Instant::now();
        }
    });
    println!(
        "{} states, {} of them of cut recoveries, in {:.0} s; points {} to {} of {}",
        report.states,
        report.recovery_states,
        began.elapsed().as_secs_f64(),
        round.from,
        report.next,
        report.points
    );
    println!("{}", planted::processor_time());
    print!("{}", report::own_marks());
    if report.next < report.points && report.finds.is_empty() {
        println!(
            "continue with: cargo run --release -p drumlin-sim -- --minutes 60 crash-points {}--point {}",
            if round.script == ScriptKind::Changes { "--changes " } else { "" },
            report.next
        );
    }
    for find in &report.finds {
        println!("FOUND: {find}");
    }
    if report.finds.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn histories_of_logs(from: u64, seeds_max: u64, duration_max: Duration, finds_max: usize) -> ExitCode {
    explore::stay_on_one_processor(0);
    let began = Instant::now();
    let report = logs::run(from, seeds_max, duration_max, finds_max);
    println!(
        "{} histories of logs in {:.0} s: {} changes, {} crashes",
        report.seeds,
        began.elapsed().as_secs_f64(),
        report.changes,
        report.crashes
    );
    println!("{}", planted::processor_time());
    for (seed, find) in &report.finds {
        println!("FOUND by seed {seed}: {find}");
        println!("  again: cargo run --release -p drumlin-sim -- --seed {seed} logs");
    }
    if report.finds.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay_cluster(seed: u64) -> ExitCode {
    explore::stay_on_one_processor(0);
    let run = cluster::run(seed);
    println!("{:?}", run.plan);
    println!("trace {:016x}, {} points, {:?} simulated", run.trace, run.points, run.duration);
    match run.result {
        Ok(counts) => {
            print!("{}", report::of_clusters(&counts));
            println!("nothing found");
            ExitCode::SUCCESS
        }
        Err(find) => {
            println!("FOUND by seed {seed}: {find}");
            ExitCode::FAILURE
        }
    }
}

fn explore_clusters(from: u64, seeds_max: u64, duration_max: Duration, finds_max: usize) -> ExitCode {
    explore::stay_on_one_processor(0);
    let began = Instant::now();
    let mut shown = (Instant::now(), 0);
    println!("from seed {from} on");
    let report = cluster::explore(from, seeds_max, duration_max, finds_max, |report| {
        for (seed, find) in &report.finds[shown.1..] {
            println!("FOUND by seed {seed}: {}", find.lines().take(3).collect::<Vec<_>>().join("\n  "));
            println!("  again: cargo run --release -p drumlin-sim -- --seed {seed} cluster");
        }
        shown.1 = report.finds.len();
        if shown.0.elapsed() > Duration::from_secs(20) {
            println!(
                "{:.0} s: {} seeds, {} writes, {} openings, {} finds",
                began.elapsed().as_secs_f64(),
                report.seeds,
                report.counts.writes,
                report.counts.openings,
                report.finds.len()
            );
            shown.0 = Instant::now();
        }
    });
    println!(
        "{} clusters in {:.0} s, {:.0} s simulated, {} points",
        report.seeds,
        began.elapsed().as_secs_f64(),
        report.simulated.as_secs_f64(),
        report.points
    );
    print!("{}", report::of_clusters(&report.counts));
    println!("{}", planted::processor_time());
    if report.finds.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(seed: u64, fault: Option<Fault>, is_plain: bool) -> ExitCode {
    explore::stay_on_one_processor(0);
    let plan = Plan::of(seed).with(fault);
    let run = world::run(if is_plain { plan.plain() } else { plan });
    println!("{:?}", run.plan);
    println!("trace {:016x}, {} points, {:?} simulated", run.trace, run.points, run.duration);
    match run.result {
        Ok(report) => {
            print!("{}", report::of_story(&report));
            println!("nothing found");
            ExitCode::SUCCESS
        }
        Err(report) => {
            println!("FOUND by seed {seed}: {report}");
            ExitCode::FAILURE
        }
    }
}

fn explore(limits: Limits) -> ExitCode {
    let began = Instant::now();
    let shown = Mutex::new((Instant::now(), 0));
    println!("from seed {} on", limits.from);
    let summary = explore::explore(limits, |summary| {
        let mut shown = shown.lock().expect("nobody panics with it");
        for (seed, find) in &summary.finds[shown.1..] {
            println!("FOUND by seed {seed}: {}", find.lines().take(3).collect::<Vec<_>>().join("\n  "));
        }
        shown.1 = summary.finds.len();
        if shown.0.elapsed() > Duration::from_secs(20) {
            println!(
                "{:.0} s: {} seeds, {} commits, {} openings, {} finds",
                began.elapsed().as_secs_f64(),
                summary.seeds,
                summary.report.commits,
                summary.report.openings,
                summary.finds.len()
            );
            shown.0 = Instant::now();
        }
    });
    print!("{}", report::of_worlds(&summary, began.elapsed()));
    println!("{}", planted::processor_time());
    if summary.finds.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
