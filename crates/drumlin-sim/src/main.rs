//! `drumlin-sim`: explores, replays, and goes through crash points.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use clap::{Parser, Subcommand};
use drumlin_sim::crash_points::{self, Bounds, Round};
use drumlin_sim::explore::{self, Limits};
use drumlin_sim::planted;
use drumlin_sim::world::{self, Plan, Trouble};

/// Drumlin in a simulated world. Without a command it explores seeds, or replays one.
#[derive(Debug, Parser)]
#[command(name = "drumlin-sim", version)]
struct Arguments {
    /// Replays this seed; with DRUMLIN_SIM_TRACE=1 tells everything done to the disk, with DRUMLIN_SIM_BACKTRACE=1 where a
    /// panic came from.
    #[arg(long)]
    seed: Option<u64>,
    /// Explores for so long.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The first seed to explore; by default one that follows from the time.
    #[arg(long)]
    from: Option<u64>,
    /// Explores so many seeds at the most.
    #[arg(long, default_value_t = u64::MAX)]
    seeds: u64,
    /// Seeds at a time, each on one processor.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Goes on until so many finds.
    #[arg(long, default_value_t = 20)]
    finds: usize,
    /// Has this trouble in every world, whatever its seed says.
    #[arg(long, value_enum)]
    trouble: Option<Trouble>,
    /// Has serializable transactions too; a replay needs it as well.
    #[arg(long)]
    serializable: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the marks.
    Marks,
    /// Builds bugs into the library and shows that each is found.
    Planted {
        /// Only those whose feature contains this.
        #[arg(default_value = "")]
        only: String,
    },
    /// Cuts the power after every write and sync of a script, and of each recovery.
    CrashPoints {
        /// Writes that are lost alone, and kept alone, at each point.
        #[arg(long, default_value_t = 4)]
        alone: usize,
        /// States drawn at random at each point.
        #[arg(long, default_value_t = 6)]
        random: usize,
        /// States at each point of each recovery.
        #[arg(long, default_value_t = 2)]
        recovery: usize,
        /// Only each so many-th point.
        #[arg(long, default_value_t = 1)]
        stride: usize,
        /// Goes on from this point, as an earlier run said.
        #[arg(long, default_value_t = 0)]
        point: usize,
        /// What is drawn follows from it.
        #[arg(long, default_value_t = 1)]
        draw: u64,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (trouble, serializable) = (arguments.trouble, arguments.serializable);
    match (arguments.command, arguments.seed) {
        (Some(Command::Marks), _) => {
            for (mark, _) in drumlin::io::sim::marks() {
                println!("{mark}");
            }
            ExitCode::SUCCESS
        }
        (Some(Command::CrashPoints { alone, random, recovery, stride, point, draw }), _) => crash_points(Round {
            bounds: Bounds { alone_max: alone, random, of_recovery: recovery, stride: stride.max(1) },
            seed: draw,
            from: point,
            duration_max: Duration::from_secs_f64(arguments.minutes * 60.0),
        }),
        (Some(Command::Planted { only }), _) => match planted::run(&only) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        (None, Some(seed)) => replay(seed, trouble, serializable),
        (None, None) => {
            let from = arguments.from.unwrap_or_else(|| {
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                since.as_secs() << 20
            });
            explore(Limits {
                from,
                seeds_max: arguments.seeds,
                duration_max: Duration::from_secs_f64(arguments.minutes * 60.0),
                jobs: arguments.jobs.max(1),
                finds_max: arguments.finds.max(1),
                trouble,
                serializable,
            })
        }
    }
}

fn crash_points(round: Round) -> ExitCode {
    explore::stay_on_one_processor(0);
    let began = Instant::now();
    let told = Mutex::new(Instant::now());
    let report = crash_points::run(round, &AtomicBool::new(false), |report| {
        let mut told = told.lock().expect("nobody panics with it");
        if told.elapsed() > Duration::from_secs(20) {
            println!("point {} of {}, {} states", report.next, report.points, report.states);
            *told = Instant::now();
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
    if report.next < report.points && report.finds.is_empty() {
        println!("go on with: cargo run --release -p drumlin-sim -- --minutes 60 crash-points --point {}", report.next);
    }
    for find in &report.finds {
        println!("FOUND: {find}");
    }
    if report.finds.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(seed: u64, trouble: Option<Trouble>, serializable: bool) -> ExitCode {
    explore::stay_on_one_processor(0);
    let run = world::run(Plan { serializable, ..Plan::of(seed).with(trouble) });
    println!("{:?}", run.plan);
    println!("trace {:016x}, {} points, {:?} simulated", run.trace, run.points, run.duration);
    match run.result {
        Ok(story) => {
            println!("{story:#?}");
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
    let told = Mutex::new((Instant::now(), 0));
    println!("from seed {} on", limits.from);
    let summary = explore::explore(limits, |summary| {
        let mut told = told.lock().expect("nobody panics with it");
        for (seed, find) in &summary.finds[told.1..] {
            println!("FOUND by seed {seed}: {}", find.lines().take(3).collect::<Vec<_>>().join("\n  "));
        }
        told.1 = summary.finds.len();
        if told.0.elapsed() > Duration::from_secs(20) {
            println!(
                "{:.0} s: {} seeds, {} commits, {} openings, {} finds",
                began.elapsed().as_secs_f64(),
                summary.seeds,
                summary.story.commits,
                summary.story.openings,
                summary.finds.len()
            );
            told.0 = Instant::now();
        }
    });
    print!("{}", explore::report(&summary, began.elapsed()));
    if summary.finds.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
