//! `drumlin bench`: measures Drumlin on this machine and compares it with the raw device.
//!
//! Every operation is timed. The raw device is measured in the same run, on the same blocks, alternating with the store
//! (A B A B …), because a drive with a cache may perform differently a minute later. Rates and limits are medians over
//! the turns.

mod commit;
mod data;
mod get;
mod load;
mod log;
mod measure;
mod mixed;
mod options;
mod raw;
mod report;
mod scan;
mod target;

use clap::{Args, Subcommand};

use self::options::Options;
use self::report::Report;
use self::target::Target;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::terminal::Output;

/// Measure Drumlin on this machine, and compare it with the raw device
///
/// Prints ops_per_second, limit_per_second (the raw device's rate in the same run), latencies, processor time, device
/// reads and memory. docs/cli.md explains each figure.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Write every key once
    Load(Options),
    /// Read keys at random
    Get(Options),
    /// Read all rows in key order, with nothing in memory at the start
    Scan(Options),
    /// Commit transactions of --batch rows
    Commit(Options),
    /// Read and write keys at random
    Mixed(Options),
    /// Append to the logs of a folder of logs, and wait until each append is durable
    Log(log::Options),
}

impl Bench {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        interrupt::watch();
        let report = match &self.what {
            What::Load(options) | What::Scan(options) if options.is_async => {
                return Err(Failure::usage("--async is for get, commit and mixed")
                    .hint("a load or a scan is one caller's work: run it without"));
            }
            What::Load(options) => run(options, output, load::run),
            What::Get(options) => run(options, output, get::run),
            What::Scan(options) => run(options, output, scan::run),
            What::Commit(options) => run(options, output, commit::run),
            What::Mixed(options) => run(options, output, mixed::run),
            What::Log(options) => {
                let report = log::run(options, output)?;
                return output.print(&report, || report.text());
            }
        }?;
        output.print(&report, || report.text())
    }
}

fn run(options: &Options, output: Output, bench: fn(&mut Target<'_>) -> Result<Report>) -> Result<Report> {
    let mut target = Target::open(options, output)?;
    let report = bench(&mut target)?;
    target.close()?;
    Ok(report)
}
