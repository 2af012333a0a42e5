//! `drumlin doctor`: examines a drive and the system, and recommends settings.

use std::path::PathBuf;

use clap::Args;
use drumlin_lab::doctor::Length;

use super::lab::{Watcher, columns, default_folder};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt;
use crate::terminal::Output;

/// Examine a folder's drive and the system, or a database and its drive
///
/// Takes half a minute. Compares the drive's claims with its behaviour, reports a database's health and its use of
/// space, and recommends settings. The exit code is 1 if something is wrong.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// A folder or a database [default: the system's temporary folder, or the current one if that is in memory]
    path: Option<PathBuf>,
    /// Measure for only a few seconds, with less certain figures
    #[arg(long)]
    quick: bool,
}

impl Doctor {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        interrupt::watch_with(drumlin_lab::remove_everything);
        let path = self.path.clone().unwrap_or_else(default_folder);
        // Use the same exit codes as the commands that open a database.
        if !path.exists() {
            return Err(Failure::not_found(format!("there is no folder {}", path.display())));
        }
        if !path.is_dir() {
            let message = format!("{} is a file; the doctor examines a folder or a database", path.display());
            return Err(Failure::new(Exit::NotOpened, message));
        }
        let watcher = Watcher::new(output);
        let length = if self.quick { Length::Quick } else { Length::Full };
        let diagnosis = drumlin_lab::doctor::examine(&path, length, &watcher);
        watcher.finish();
        let diagnosis = diagnosis.map_err(|error| Failure::file("examining", &path, &error))?;
        output.print(&diagnosis, || diagnosis.text(columns()))?;
        if diagnosis.interrupted {
            return Err(Failure::new(Exit::Interrupted, "interrupted; the findings so far are above"));
        }
        if diagnosis.is_wrong() { Err(Failure::silent(Exit::Other)) } else { Ok(()) }
    }
}
