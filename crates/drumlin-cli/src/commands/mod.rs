//! The commands, one per module.

pub(crate) mod archive;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod changes;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod clone;
pub(crate) mod compact;
pub(crate) mod completions;
pub(crate) mod count;
pub(crate) mod doctor;
pub(crate) mod du;
pub(crate) mod dump;
pub(crate) mod extract;
pub(crate) mod get;
pub(crate) mod index;
pub(crate) mod keyspaces;
pub(crate) mod lab;
pub(crate) mod load;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod prepared;
pub(crate) mod put;
pub(crate) mod rename;
pub(crate) mod repair;
pub(crate) mod restore;
pub(crate) mod rm;
pub(crate) mod scan;
pub(crate) mod selection;
pub(crate) mod snapshots;
pub(crate) mod stats;
pub(crate) mod tour;
pub(crate) mod verify;

use clap::CommandFactory;

use crate::args::{self, Cli, Command};
use crate::failure::Result;
use crate::terminal::{self, Output};

/// Runs the given command, or the tour if there is none.
pub(crate) fn run(cli: Cli, stdout_is_open: bool) -> Result<()> {
    let output = Output::new(cli.common);
    terminal::log::show(output);
    let command = cli.command.unwrap_or_else(|| Command::Tour(tour::Tour::default()));
    if command.prints(&cli.common) && !stdout_is_open {
        return Err(args::closed());
    }
    match command {
        Command::Tour(command) => command.run(output),
        Command::Index(command) => command.run(output),
        Command::Extract(command) => command.run(output),
        Command::Load(command) => command.run(output),
        Command::Dump(command) => command.run(output),
        Command::Get(command) => command.run(output),
        Command::Put(command) => command.run(output),
        Command::Rm(command) => command.run(output),
        Command::Scan(command) => command.run(output),
        Command::Count(command) => command.run(output),
        Command::Du(command) => command.run(output),
        Command::Keyspaces(command) => command.run(output),
        Command::Prepared(command) => command.run(output),
        Command::Changes(command) => command.run(),
        Command::Rename(command) => command.run(output),
        Command::Clone(command) => command.run(output),
        Command::Snapshots(command) => command.run(output),
        Command::Backup(command) => command.run(output),
        Command::Verify(command) => command.run(output),
        Command::Restore(command) => command.run(output),
        Command::Archive(command) => command.run(output),
        Command::Repair(command) => command.run(output),
        Command::Stats(command) => command.run(output),
        Command::Check(command) => command.run(output),
        Command::Checkpoint(command) => command.run(output),
        Command::Compact(command) => command.run(output),
        Command::Log(command) => command.run(output),
        Command::Bench(command) => command.run(output),
        Command::Lab(command) => command.run(output),
        Command::Doctor(command) => command.run(output),
        Command::Completions(command) => command.run(Cli::command()),
        Command::Man(command) => command.run(Cli::command()),
    }
}
