//! The command `drumlin-bench`.

use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use drumlin_bench::engine::{Peer, Result};
use drumlin_bench::results::{EngineFacts, Results};
use drumlin_bench::run::{Plan, run};
use drumlin_bench::{engines, logs, machine, plan, raft, report, worker};

/// Compares Drumlin with other stores. Every engine runs the same workloads, and the engines take turns.
#[derive(Parser)]
#[command(version, disable_help_subcommand = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the workloads, and the engines of this build with their settings.
    List,
    /// Run workloads; running all takes hours.
    Run(RunArgs),
    /// Show the results of earlier runs; if several files contain the same workload, the last file wins.
    Show(ShowArgs),
    #[command(name = worker::COMMAND, hide = true)]
    Worker,
}

#[derive(Args)]
struct RunArgs {
    /// Workloads, by name, by a prefix of the name, or by row of the table; all by default.
    workloads: Vec<String>,
    /// Engines, separated by commas; all engines of this build by default.
    #[arg(long, value_delimiter = ',')]
    engines: Vec<String>,
    /// The folder for the engines' files, which must not be on a file system in memory.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// The number of turns per engine.
    #[arg(long, default_value_t = 3)]
    turns: u64,
    /// The duration of each measurement in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// The factor by which the number of rows and the memory are scaled.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Run one turn of a tenth of a second on small data, to check that everything works. Its figures are not
    /// comparable with others.
    #[arg(long)]
    quick: bool,
    /// First count the flushes of durable commits, on a loop device (requires root).
    #[arg(long)]
    audit: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct ShowArgs {
    /// JSON files of earlier runs.
    #[arg(required = true)]
    results: Vec<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct Output {
    /// Write the results as JSON; workloads already in the file are kept unless they ran again.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the tables as Markdown.
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Write the tables and plots as one HTML page.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Write the tables into docs/benchmarks.md of the repository from which this program was built.
    #[arg(long)]
    update_docs: bool,
}

fn main() -> ExitCode {
    let program = Program::parse();
    let result = match program.command {
        Command::List => print(&list()),
        Command::Run(args) => run_plan(&args),
        Command::Show(args) => show(&args),
        Command::Worker => worker::serve(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drumlin-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes to stdout. Ignores the error if the reader, such as `head`, has closed the pipe.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn list() -> String {
    let mut lines = vec!["Workloads, with their rows in docs/benchmarks.md:".to_owned()];
    for workload in plan::WORKLOADS {
        lines.push(format!("  {:>2}  {:<16}  {}", workload.row, workload.name, workload.title));
    }
    lines.push(format!("\nEngines of this build ({}):", machine::allocator()));
    for peer in engines::all().into_iter().chain(logs::peers()).chain(raft::peers()) {
        let facts = EngineFacts::of(&peer);
        lines.push(format!("  {} {}: {}", facts.name, facts.version, facts.settings));
        if !facts.lacks.is_empty() {
            lines.push(format!("      {}", facts.lacks.join("; ")));
        }
    }
    lines.push("\nOnly if they are named:".to_owned());
    for peer in engines::variants() {
        lines.push(format!("  {}: {}", peer.name, peer.settings));
    }
    lines.join("\n") + "\n"
}

fn chosen_peers(names: &[String]) -> Result<Vec<Peer>> {
    if names.is_empty() {
        return Ok(engines::all().into_iter().chain(logs::peers()).chain(raft::peers()).collect());
    }
    let named = |name: &String| {
        engines::named(name)
            .ok_or_else(|| format!("engine {name:?} is not in this build; it has features for each").into())
    };
    names.iter().map(named).collect()
}

fn run_plan(args: &RunArgs) -> Result<()> {
    let plan = Plan {
        workloads: plan::select(&args.workloads)?,
        peers: chosen_peers(&args.engines)?,
        folder: args.folder.canonicalize()?,
        turns: if args.quick { 1 } else { args.turns },
        seconds: if args.quick { 0.1 } else { args.seconds },
        scale: if args.quick { 0.004 } else { args.scale },
        quick: args.quick,
        audit: args.audit,
    };
    let json = args.output.json.clone();
    // Called after each workload, so that an interrupted run does not lose its results.
    let keep = |results: &Results| match &json {
        Some(path) => merged(path, results.clone())?.write(path),
        None => Ok(()),
    };
    let results = run(&plan, keep, |line| eprintln!("{line}"))?;
    let results = match &args.output.json {
        Some(path) => Results::read(path)?,
        None => results,
    };
    write(&results, &args.output)
}

/// Returns these results, merged into those that the file already contains.
fn merged(path: &std::path::Path, newer: Results) -> std::io::Result<Results> {
    if !path.exists() {
        return Ok(newer);
    }
    let mut results = Results::read(path)?;
    results.merge(newer);
    Ok(results)
}

fn show(args: &ShowArgs) -> Result<()> {
    let mut results: Option<Results> = None;
    for path in &args.results {
        let newer = Results::read(path)?;
        match &mut results {
            Some(results) => results.merge(newer),
            None => results = Some(newer),
        }
    }
    let results = results.expect("at least one file is required");
    if let Some(path) = &args.output.json {
        results.write(path)?;
    }
    write(&results, &args.output)
}

/// Writes the results in the requested formats. If no format was requested, prints the tables.
fn write(results: &Results, output: &Output) -> Result<()> {
    let markdown = report::markdown(results);
    if let Some(path) = &output.markdown {
        std::fs::write(path, &markdown)?;
    }
    if let Some(path) = &output.html {
        std::fs::write(path, report::html(results))?;
    }
    if output.update_docs {
        report::update_docs(results)?;
    }
    if output.markdown.is_none() && output.html.is_none() && !output.update_docs {
        print(&markdown)?;
    }
    Ok(())
}
