//! The `drumlin` command. It uses only the public interface of the `drumlin` crate.
//!
//! - `args` defines the command line, and `commands` has a module for each command;
//! - `rows` reads and writes CSV, TSV, JSON Lines and the binary form;
//! - `terminal` formats the output for people: figures, tables, colours, progress;
//! - `failure` maps every error to one line, a hint and a stable exit code.
// The statistics are one JSON object of more than 64 fields.
#![recursion_limit = "256"]

mod args;
mod call;
mod commands;
mod database;
mod escape;
mod failure;
mod filesystem;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod interrupt;
mod own_files;
mod process;
mod rescued;
mod rows;
mod streamed;
mod terminal;
mod text;
mod unfinished;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::args::Cli;
use crate::call::Call;

/// Runs the program. `stdout_is_open` is `true` if stdout was open when the process started.
pub fn main(stdout_is_open: bool) -> ExitCode {
    failure::end_on_panic();
    let mut program = Cli::command();
    let matches = program.try_get_matches_from_mut(std::env::args_os());
    let parsed = matches.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, Call::of(&program, &matches))));
    let (cli, call) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return args::end(&error, stdout_is_open),
    };
    match commands::run(cli, stdout_is_open) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&call),
    }
}
