//! `drumlin-sim`: explores, replays, and goes through crash points.

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use clap::{Parser, Subcommand};
use drumlin_sim::explore::{self, Limits};
use drumlin_sim::world;

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
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the marks.
    Marks,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match (arguments.command, arguments.seed) {
        (Some(Command::Marks), _) => {
            for (mark, _) in drumlin::io::sim::marks() {
                println!("{mark}");
            }
            ExitCode::SUCCESS
        }
        (None, Some(seed)) => replay(seed),
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
            })
        }
    }
}

fn replay(seed: u64) -> ExitCode {
    explore::stay_on_one_processor(0);
    let run = world::run(seed);
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
