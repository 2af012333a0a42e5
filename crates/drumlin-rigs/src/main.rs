//! Real power cuts for Drumlin: real file systems on drives that lose unflushed writes. Linux only.
//!
//! - `drive` is the simulated drive, with its volatile cache, and the states in which a cut may leave it.
//! - `fuse` serves the drive to this host's kernel; `host` attaches and detaches devices and mounts.
//! - `writers` are the programs that run on it: Drumlin, sound logs and broken ones.
//! - `nbd` serves the drive to a virtual machine, `qemu` runs and kills that machine, and `guest` runs in it.
//! - `bench` traces a writer, creates states and verifies them. `cuts` implements the commands, and `methods` the
//!   command for the table; `counters` stores the counts.
//! - `copies` shows which copies of a folder are complete databases.
//! - `parallel_log` compares numbers of log streams on drives that are `slow`.
#![allow(unreachable_pub, reason = "a program has no public API")]

mod bench;
mod copies;
mod counters;
mod cuts;
mod drive;
mod fuse;
mod guest;
mod host;
mod methods;
mod nbd;
mod parallel_log;
mod qemu;
mod slow;
mod writers;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use bench::Cut;
use drive::Loss;
use host::FileSystem;
use writers::Writer;

/// Real power cuts: real file systems on drives that lose unflushed writes.
#[derive(Parser, Debug)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand, Debug)]
enum Task {
    /// Run the short round that every merge must pass, on the file systems that this machine supports
    Short {
        #[arg(long, default_value_t = 45)]
        seconds: u64,
    },
    /// Trace writers and verify states until each file system has had `--states` of them; continues an earlier run
    Cuts {
        /// File systems
        #[arg(long = "fs", value_delimiter = ',', default_value = "ext4,xfs,btrfs")]
        systems: Vec<FileSystem>,
        #[arg(long, default_value = "drumlin")]
        writer: Writer,
        /// The number of states for each file system, including those of earlier runs
        #[arg(long, default_value_t = 300)]
        states: u64,
        #[arg(long, default_value_t = 25)]
        states_per_trace: usize,
        #[arg(long, default_value_t = 2.0)]
        seconds_per_trace: f64,
        /// Stop after this many minutes, even if states are missing
        #[arg(long, default_value_t = 600.0)]
        minutes: f64,
        /// Write the counts into docs/testing.md
        #[arg(long)]
        update_docs: bool,
    },
    /// Cut the power of a whole machine, a small guest in QEMU; continues an earlier run
    Qemu {
        #[arg(long = "fs", value_delimiter = ',', default_value = "ext4,xfs,btrfs")]
        systems: Vec<FileSystem>,
        /// The number of cuts for each file system, including those of earlier runs
        #[arg(long, default_value_t = 300)]
        cuts: u64,
        /// Stop after this many minutes, even if cuts are missing
        #[arg(long, default_value_t = 600.0)]
        minutes: f64,
        /// Write the counts into docs/testing.md
        #[arg(long)]
        update_docs: bool,
    },
    /// Measure which methods of writing a log survive a power cut, by file system
    Table {
        #[arg(long = "fs", value_delimiter = ',', default_value = "ext4,xfs,btrfs")]
        systems: Vec<FileSystem>,
        /// The number of states of each trace, under each model of the drive
        #[arg(long, default_value_t = 10)]
        states: usize,
        /// The number of traces of each method; each has its own order of writes
        #[arg(long, default_value_t = 2)]
        rounds: u64,
        /// Write the table into docs/durability.md
        #[arg(long)]
        update_docs: bool,
    },
    /// Run a writer on a file system, and record the requests that reach the drive
    Trace {
        #[arg(long = "fs", default_value = "ext4")]
        system: FileSystem,
        #[arg(long, default_value = "drumlin")]
        writer: Writer,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        #[arg(long)]
        out: PathBuf,
    },
    /// Cut the power at moments of a trace, then mount, recover and verify: many states, or the given one
    Replay {
        trace: PathBuf,
        #[arg(long, default_value_t = 100)]
        states: usize,
        /// Cut the power after this many events
        #[arg(long, requires = "loss")]
        moment: Option<usize>,
        #[arg(long, requires = "moment")]
        loss: Option<Loss>,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Compare the commits per second of one and two log streams, on one and two slow drives
    ParallelLog {
        #[arg(long, value_delimiter = ',', default_value = "1,2,8,32")]
        threads: Vec<usize>,
        /// The size of a row's value in bytes
        #[arg(long, value_delimiter = ',', default_value = "100,16384")]
        value_size: Vec<usize>,
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        #[arg(long, default_value_t = 3.0)]
        seconds: f64,
        /// The duration of a flush in milliseconds
        #[arg(long, default_value_t = 10.0)]
        flush_ms: f64,
        /// The megabytes that a drive writes per second
        #[arg(long, default_value_t = 5.0)]
        megabytes_per_second: f64,
    },
    /// Copy and snapshot a database, both during writes and afterwards, and show which copies are complete
    Copies {
        /// The number of databases
        #[arg(long, default_value_t = 10)]
        rounds: u64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Detach the devices and mounts that a killed rig left behind
    CleanUp,
    /// Run as the first process of the virtual machine
    #[command(hide = true)]
    Guest,
    /// Write until killed; the rigs start this
    #[command(hide = true)]
    Write {
        #[arg(long)]
        writer: Writer,
        #[arg(long)]
        folder: PathBuf,
        #[arg(long)]
        acks: PathBuf,
        #[arg(long)]
        seed: u64,
        #[arg(long, value_delimiter = ',')]
        from: Vec<u64>,
    },
}

fn run(task: Task) -> Result<()> {
    if let Task::Write { writer, folder, acks, seed, from } = task {
        return writer.write(&folder, &acks, seed, &from);
    }
    if matches!(task, Task::Guest) {
        return guest::run();
    }
    host::watch_for_interrupts()?;
    if host::has_program("losetup") {
        host::clean_up()?;
    }
    match task {
        Task::Short { seconds } => cuts::short(seconds),
        Task::Cuts {
            systems,
            writer,
            states,
            states_per_trace,
            seconds_per_trace,
            minutes,
            update_docs: updates_docs,
        } => {
            let goal = states;
            cuts::LongRun { systems, writer, goal, states_per_trace, seconds_per_trace, minutes, updates_docs }.run()
        }
        Task::Qemu { systems, cuts, minutes, update_docs } => qemu::cut(&systems, cuts, minutes, update_docs),
        Task::Table { systems, states, rounds, update_docs: updates_docs } => {
            methods::Methods { systems, states, rounds, updates_docs }.run()
        }
        Task::Trace { system, writer, seed, seconds, out } => cuts::trace(system, writer, seed, seconds, &out),
        Task::Replay { trace, states, moment, loss, seed } => {
            let one = moment.zip(loss).map(|(moment, loss)| Cut { moment, loss, seed });
            cuts::replay(&trace, one, states, seed)
        }
        Task::Copies { rounds, seed } => copies::run(rounds, seed),
        Task::ParallelLog { threads, value_size, rounds, seconds, flush_ms, megabytes_per_second } => {
            let flush = std::time::Duration::from_secs_f64(flush_ms / 1e3);
            let pace = slow::Pace { flush, bytes_per_second: megabytes_per_second * 1e6 };
            parallel_log::run(&threads, &value_size, rounds, seconds, pace)
        }
        Task::CleanUp | Task::Guest | Task::Write { .. } => Ok(()),
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drumlin-rigs: {error:#}");
            ExitCode::FAILURE
        }
    }
}
