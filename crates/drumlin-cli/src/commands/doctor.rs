//! `drumlin doctor`: what the drive and the system can do, and what follows.

use std::path::PathBuf;

use clap::Args;

use super::lab::{Watcher, columns, default_folder};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt;
use crate::terminal::Output;

/// Examine a folder's drive and the system, or a database and what it lies on
///
/// Takes half a minute. What a drive claims is compared with what it does; a database's health, fill and what holds its
/// space are told, and which settings follow. The exit code is 1 if something is wrong.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// A folder or a database [default: the system's temporary folder, or this one where that is in memory]
    path: Option<PathBuf>,
}

impl Doctor {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        interrupt::watch_with(drumlin_lab::remove_everything);
        let path = self.path.clone().unwrap_or_else(default_folder);
        let watcher = Watcher::new(output);
        let diagnosis = drumlin_lab::doctor::examine(&path, &watcher);
        watcher.finish();
        let diagnosis = diagnosis.map_err(|error| Failure::file("examining", &path, &error))?;
        output.print(&diagnosis, || diagnosis.text(columns()))?;
        if diagnosis.interrupted {
            return Err(Failure::new(Exit::Interrupted, "interrupted; what had been found is above"));
        }
        if diagnosis.is_wrong() { Err(Failure::silent(Exit::Other)) } else { Ok(()) }
    }
}
