//! `drumlin log`: inspects a folder of logs (`drumlin::logs`). It is opened for reading only, so nothing in it changes,
//! whatever is damaged.

mod check;
mod ls;
mod read;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use drumlin::Error;
use drumlin::logs::{Logs, LogsOptions};

use crate::failure::{Exit, Failure, Result};
use crate::terminal::Output;
use crate::terminal::figures::parse_size;

/// List, read or check the logs of a folder of logs
///
/// Programs keep such folders with `drumlin::logs`: many logs by index, apart from databases. These commands write
/// nothing. They can't run while a program has the folder open.
#[derive(Debug, Args)]
pub(crate) struct Log {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Ls(ls::Ls),
    Read(read::Read),
    Check(check::Check),
}

impl Log {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        match &self.what {
            What::Ls(command) => command.run(output),
            What::Read(command) => command.run(output),
            What::Check(command) => command.run(output),
        }
    }
}

/// The arguments that name and open a folder of logs.
#[derive(Clone, Debug, Args)]
struct FolderArgs {
    /// The folder of logs
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Memory that the command may use, most of it for the index
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    memory: u64,
}

impl FolderArgs {
    /// Opens the folder.
    fn open(&self) -> drumlin::Result<Logs> {
        Logs::open(&self.path, &LogsOptions::new().memory(self.memory).read_only(true))
    }

    /// Returns an error unless the path is a folder of logs, as far as its names tell.
    fn check_there(&self) -> Result<()> {
        if !self.path.exists() {
            return Err(Failure::not_found(format!("there is no folder of logs at {}", self.path.display()))
                .hint("a program creates one with drumlin::logs::Logs::open"));
        }
        if self.path.is_file() {
            let message = format!("{} is a file; logs are in a folder", self.path.display());
            return Err(Failure::new(Exit::NotOpened, message));
        }
        if self.path.join("data").is_file() && !self.path.join("head").exists() {
            let message = format!("{} is a database, not a folder of logs", self.path.display());
            return Err(Failure::new(Exit::NotOpened, message)
                .hint("`drumlin keyspaces DATABASE` lists its keyspaces, `drumlin check DATABASE` verifies it"));
        }
        Ok(())
    }

    /// Converts the error of a call to the logs.
    fn failed(&self, error: Error) -> Failure {
        match error {
            Error::NotADatabase { path, why } => {
                Failure::new(Exit::NotOpened, format!("{} is not a folder of logs: {why}", path.display()))
                    .hint("a program creates one with drumlin::logs::Logs::open")
            }
            Error::Corrupted { path, what, reason } => {
                Failure::new(Exit::Corrupted, format!("damaged: {what} in {}: {reason}", path.display()))
                    .hint("`drumlin log check DATABASE` lists all damage")
            }
            Error::OlderFormat { .. } => Failure::new(Exit::NotOpened, error.to_string()),
            Error::NoSuchLog { log } => {
                Failure::not_found(format!("there is no log {log}")).hint("`drumlin log ls DATABASE` lists them")
            }
            Error::LogPurged { log, index, first } => Failure::not_found(format!(
                "entry {index} of log {log} was purged: its entries begin at {first}, or will"
            )),
            other => other.into(),
        }
    }
}
