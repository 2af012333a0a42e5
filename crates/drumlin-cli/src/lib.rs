//! The `drumlin` command: everything here uses the public face of the `drumlin` crate and nothing else of it.
//!
//! - `args` says what can be typed, `commands` what is done, one file or folder a command;
//! - `rows` reads and writes CSV, TSV, JSON Lines and the binary form;
//! - `terminal` holds everything a person sees: figures, tables, colours, progress;
//! - `failure` maps every error to one line, a hint and a stable exit code.

mod args;
mod commands;
mod database;
mod failure;
mod filesystem;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod interrupt;
mod own_files;
mod process;
mod rows;
mod terminal;
mod text;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;

/// The program.
pub fn main() -> ExitCode {
    failure::end_on_panic();
    let cli = Cli::parse();
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
