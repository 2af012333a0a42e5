//! The arguments of the command line.

use std::borrow::Cow;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};

use crate::call::Call;
use crate::commands::{
    archive, backup, bench, changes, check, checkpoint, clone, compact, completions, count, doctor, du, dump, extract,
    get, index, keyspaces, lab, load, log, man, prepared, put, rename, repair, restore, rm, scan, snapshots, stats,
    tour, verify,
};
use crate::failure::{Exit, Failure};
use crate::terminal::Common;
use crate::text::harmless;

/// An embedded, transactional storage engine for data larger than memory.
///
/// Without a command, `drumlin` gives a tour: it stores a real directory tree, kills itself midway, recovers, and
/// proves that nothing was lost.
#[derive(Debug, Parser)]
#[command(name = "drumlin", version, max_term_width = 100, after_long_help = crate::failure::EXIT_CODES)]
#[command(subcommand_value_name = "COMMAND")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The commands. Each command's module has its options and its description.
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
    Count(count::Count),
    Du(du::Du),
    Keyspaces(keyspaces::Keyspaces),
    Prepared(prepared::Prepared),
    Changes(changes::Changes),
    Rename(rename::Rename),
    Clone(clone::Clone),
    Snapshots(snapshots::Snapshots),
    Backup(backup::Backup),
    Verify(verify::Verify),
    Restore(restore::Restore),
    Archive(archive::Archive),
    Stats(stats::Stats),
    Check(check::Check),
    Repair(repair::Repair),
    Checkpoint(checkpoint::Checkpoint),
    Compact(compact::Compact),
    Log(log::Log),
    Bench(bench::Bench),
    Lab(lab::Lab),
    Doctor(doctor::Doctor),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Command {
    /// Returns `true` if the command prints its answer, or a part of it, to stdout.
    pub(crate) fn prints(&self, common: &Common) -> bool {
        common.json() || !matches!(self, Command::Put(_))
    }
}

/// Names of commands in other programs, and the equivalent commands here.
const OTHER_NAMES: [(&[&str], &[&str]); 15] = [
    (&["ls", "list"], &["`drumlin scan DATABASE` lists rows", "`drumlin keyspaces DATABASE` lists keyspaces"]),
    (&["delete", "del", "remove", "erase", "drop", "unset"], &["`drumlin rm` removes rows, and with --all a keyspace"]),
    (&["len", "size", "df"], &["`drumlin count` counts rows", "`drumlin du` sums files", "`drumlin stats` has sizes"]),
    (&["import", "ingest"], &["`drumlin load` stores rows from files"]),
    (&["insert", "set", "add", "write", "store"], &["`drumlin put` stores one value, `load` many, `index` a folder"]),
    (&["export", "save"], &["`drumlin dump` writes rows to a file", "`drumlin backup` writes a backup"]),
    (&["unpack"], &["`drumlin extract` restores what `index` stored, `load` what `dump` wrote"]),
    (&["cat", "read", "fetch", "show"], &["`drumlin get` prints values by their keys"]),
    (&["find", "search", "grep", "query", "select", "range"], &["`drumlin scan` lists rows: --prefix, --from, --to"]),
    (
        &["fsck", "recover", "salvage", "validate"],
        &["`drumlin check` verifies everything", "`drumlin repair` saves what is left of a damaged database"],
    ),
    (&["vacuum", "gc", "shrink"], &["`drumlin compact` returns unused space"]),
    (&["info", "status", "tables"], &["`drumlin stats` has figures", "`drumlin keyspaces` lists keyspaces"]),
    (&["mv", "move"], &["`drumlin rename` gives a keyspace another name"]),
    (&["cp", "copy", "branch", "fork"], &["`drumlin clone` clones a keyspace", "`drumlin backup` copies a database"]),
    (&["create", "init", "new", "open"], &["`drumlin put`, `load` and `index` create a database that is not there"]),
];

/// Prints the help that the command line requests, or the reason why it is invalid. Returns the exit code.
pub(crate) fn end(error: &clap::Error, stdout_is_open: bool) -> ExitCode {
    let call = Call::unknown();
    if !error.use_stderr() {
        let printed =
            if stdout_is_open { error.print().map_err(|error| Failure::stdout(&error)) } else { Err(closed()) };
        return printed.map_or_else(|failure| failure.report(&call), |()| ExitCode::SUCCESS);
    }
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && let Some((_, hints)) = OTHER_NAMES.iter().find(|(names, _)| names.contains(&word.as_str()))
    {
        let failure = Failure::usage(format!("there is no command '{word}'"));
        return hints.iter().fold(failure, |failure, hint| failure.hint(*hint)).report(&call);
    }
    let text = error.render().to_string();
    if call.json() {
        // clap's text has a paragraph for the error, one for each tip, and one for the usage.
        let mut paragraphs = text.split("\n\n").map(|lines| lines.split_whitespace().collect::<Vec<_>>().join(" "));
        let message = paragraphs.next().unwrap_or_default();
        let failure = Failure::usage(message.trim_start_matches("error: "));
        return paragraphs.fold(failure, Failure::hint).report(&call);
    }
    let is_harmless = |arg: OsString| matches!(harmless(&arg.to_string_lossy()), Cow::Borrowed(_));
    if std::env::args_os().all(is_harmless) {
        // If stderr can't be written either, there is nothing left to do.
        let _ = error.print();
    } else {
        text.lines().for_each(|line| anstream::eprintln!("{}", harmless(line)));
    }
    ExitCode::from(Exit::Usage as u8)
}

/// Returns the error for a command that has to print but whose stdout is closed.
pub(crate) fn closed() -> Failure {
    Failure::other("stdout is closed: there is nowhere to print to").hint("redirect it to a file, or to /dev/null")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// The options of every command are consistent with one another.
    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    /// None of the foreign names is a command of `drumlin`, and each hint names existing commands.
    #[test]
    fn other_names_lead_to_commands() {
        let command = super::Cli::command();
        for (names, hints) in super::OTHER_NAMES {
            assert!(names.iter().all(|name| command.find_subcommand(name).is_none()), "{names:?}");
            for hint in hints {
                let named = hint.split('`').skip(1).step_by(2).map(|code| code.trim_start_matches("drumlin "));
                let is_there = |code: &str| command.find_subcommand(code.split(' ').next().unwrap()).is_some();
                assert!(named.clone().count() > 0 && named.clone().all(is_there), "{hint}");
            }
        }
    }
}
