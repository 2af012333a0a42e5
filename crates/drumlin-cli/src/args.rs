//! What can be typed.

use clap::{Args, Parser, Subcommand};

use crate::commands::{
    bench, check, checkpoint, compact, completions, dump, get, index, keyspaces, load, put, rm, scan, stats, tour,
};

/// An embedded, transactional storage engine for data larger than memory.
///
/// Without a command, `drumlin` gives the tour: it stores a real directory tree, kills itself in the middle, recovers
/// and proves that nothing was lost.
#[derive(Debug, Parser)]
#[command(name = "drumlin", version, max_term_width = 100, after_long_help = crate::failure::EXIT_CODES)]
#[command(disable_help_subcommand = true, subcommand_value_name = "COMMAND")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// What every command understands.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Common {
    /// Print figures and rows as JSON, one object a line
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    /// No progress on stderr
    #[arg(long, short, global = true, help_heading = "Everywhere")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// See it work: load a directory tree, kill it, recover, compare, ask
    Tour(tour::Tour),
    /// Store a directory tree: metadata, contents and sizes, one transaction a file
    Index(index::Index),
    /// Store rows from CSV, TSV, JSON Lines or binary files, many at once
    Load(load::Load),
    /// Write the rows of a keyspace as CSV, TSV, JSON Lines or binary
    Dump(dump::Dump),
    /// Print the value of a key
    Get(get::Get),
    /// Store a value under a key
    Put(put::Put),
    /// Remove keys, a prefix, a range or a whole keyspace
    Rm(rm::Rm),
    /// List or count rows in key order
    Scan(scan::Scan),
    /// List the keyspaces
    Keyspaces(keyspaces::Keyspaces),
    /// Show what the engine counts: memory, device, log, space
    Stats(stats::Stats),
    /// Read and verify every page, table and log record
    Check(check::Check),
    /// Write all changed pages, so that the next opening has no log to replay
    Checkpoint(checkpoint::Checkpoint),
    /// Give unused space back to the file system
    Compact(compact::Compact),
    /// Measure this machine's Drumlin beside its raw device
    Bench(bench::Bench),
    /// Print a completion script for a shell
    Completions(completions::Completions),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// Every command's options are consistent with one another.
    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
