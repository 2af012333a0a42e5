//! The arguments of the command line.

use clap::{Parser, Subcommand};

use crate::commands::{
    bench, check, checkpoint, compact, completions, doctor, dump, extract, get, index, keyspaces, lab, load, put, rm,
    scan, stats, tour,
};
use crate::terminal::Common;

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

/// Each command's description stands with its options.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Tour(tour::Tour),
    Index(index::Index),
    Extract(extract::Extract),
    Load(load::Load),
    Dump(dump::Dump),
    Get(get::Get),
    Put(put::Put),
    Rm(rm::Rm),
    Scan(scan::Scan),
    Keyspaces(keyspaces::Keyspaces),
    Stats(stats::Stats),
    Check(check::Check),
    Checkpoint(checkpoint::Checkpoint),
    Compact(compact::Compact),
    Bench(bench::Bench),
    Lab(lab::Lab),
    Doctor(doctor::Doctor),
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
