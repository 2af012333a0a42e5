//! A cluster of three nodes that is a database, and what happens to it: the leader is killed five times, a node is
//! frozen, one is cut off, members come and go, and a node loses its folder. Clients work all the time, and each of
//! their answers is checked.
//!
//! `cargo run --release -p drumlin-raft --example cluster` takes about a minute. This program is the supervisor, and
//! starts itself again as each of the nodes. docs/raft.md explains what it prints.

mod client;
mod history;
mod network;
mod node;
mod processes;
mod report;
mod service;
mod supervisor;
mod timeline;
mod types;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::supervisor::{FAULTS, FAULTS_SHORT, Plan, Supervisor};
use crate::types::{Failure, NODE};

/// Runs a cluster of three nodes on this machine, makes it fail, and checks every answer that its clients get.
#[derive(Parser, Debug)]
struct Arguments {
    /// The number that decides on the order of faults, the victims, and the operations of the clients.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Let faults happen for at least this many minutes.
    #[arg(long, default_value_t = 0.0)]
    minutes: f64,
    /// Leave the cluster running at the end, until this program is interrupted.
    #[arg(long)]
    keep: bool,
    /// A few faults with few keys, in some seconds.
    #[arg(long)]
    short: bool,
    /// The folder for the nodes' folders; one that is removed after a run without errors, unless it is given.
    #[arg(long)]
    folder: Option<PathBuf>,
}

impl Arguments {
    fn plan(&self) -> Plan {
        let millis = Duration::from_millis;
        let at_least = Duration::from_secs_f64(self.minutes * 60.0);
        let seed = self.seed;
        if self.short {
            let (calm, hold) = (millis(300), millis(300));
            Plan { seed, clients: 8, keys: 1_000, calm, hold, at_least, faults: FAULTS_SHORT }
        } else {
            Plan { seed, clients: 8, keys: 10_000, calm: millis(1500), hold: millis(2000), at_least, faults: FAULTS }
        }
    }
}

async fn interrupted() -> Result<(), Failure> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

async fn supervise(arguments: &Arguments) -> Result<bool, Failure> {
    let temporary = tempfile::Builder::new().prefix("drumlin-cluster-").tempdir()?;
    let folder = arguments.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&folder)?;
    let finished = supervise_in(&folder, arguments).await;
    if !matches!(finished, Ok(true)) && temporary.path() == folder {
        println!("The folders of the nodes are still in {}", temporary.keep().display());
    }
    finished
}

async fn supervise_in(folder: &Path, arguments: &Arguments) -> Result<bool, Failure> {
    let plan = arguments.plan();
    println!("Three nodes in {}, {} faults, seed {}\n", folder.display(), plan.faults.len(), plan.seed);
    // However this function returns, the nodes are killed.
    let running = async {
        let mut supervisor = Supervisor::start(plan, folder).await?;
        let report = supervisor.run().await?;
        Ok::<_, Failure>((supervisor, report))
    };
    let (supervisor, report) = tokio::select! {
        finished = running => finished?,
        interrupted = interrupted() => {
            interrupted?;
            println!("interrupted");
            return Ok(true);
        }
    };
    let is_right = report.print();
    if arguments.keep {
        println!("\nThe nodes run until this program is interrupted (Ctrl-C):");
        supervisor.urls().iter().for_each(|url| println!("  {url}"));
        println!("Try, for example, on any of them, or on the leader, whose address the others tell:");
        println!("  curl URL/metrics; curl 'URL/rows/key-000001?stale=true'");
        println!("  curl URL/rows/key-000001; curl -X PUT -d 'a value' URL/rows/my-key");
        interrupted().await?;
    }
    Ok(is_right)
}

/// Runs this process as a node if the environment says so.
fn run_node() -> Option<Result<(), Failure>> {
    let settings = std::env::var(NODE).ok()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    Some(runtime.map_err(Failure::from).and_then(|runtime| {
        let settings = serde_json::from_str(&settings)?;
        runtime.block_on(node::run(settings))
    }))
}

/// Runs the supervisor. Returns `true` if everything was right.
fn run(arguments: &Arguments) -> Result<bool, Failure> {
    // One thread: it starts all children, which end when the thread does.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(supervise(arguments))
}

fn main() -> ExitCode {
    let finished = run_node().map(|ended| ended.map(|()| true)).unwrap_or_else(|| run(&Arguments::parse()));
    match finished {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cluster: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process of a node in [`a_short_run_is_right`]. Otherwise it does nothing.
    #[test]
    fn node_process() {
        if let Some(ended) = run_node() {
            ended.unwrap();
        }
    }

    /// In a short run, a leader is killed, a node joins from a snapshot, a leader is cut off, and leadership is handed
    /// over. Every answer to the clients is right.
    #[test]
    fn a_short_run_is_right() {
        assert!(run(&Arguments::parse_from(["cluster", "--short"])).unwrap());
    }
}
