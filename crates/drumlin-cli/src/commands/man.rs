//! `drumlin man`: prints or writes manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Result};

/// Print the manual page, or write all pages to a folder
///
/// To read the page: drumlin man | man -l -. To install a page for each command: drumlin man ~/.local/share/man/man1;
/// then `man drumlin` and `man drumlin-load` show them.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Write drumlin.1, drumlin-load.1, … to this folder, created if it is missing
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl Man {
    /// If there is a folder, writes the manual pages of `command` and all its subcommands to it. Otherwise, prints the
    /// page of `command`, which describes the whole command line.
    pub(crate) fn run(&self, command: clap::Command) -> Result<()> {
        if let Some(folder) = &self.folder {
            let written = fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
            return written.map_err(|error| Failure::file("writing manual pages to", folder, &error));
        }
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).map_err(|error| Failure::stdout(&error))?;
        io::stdout().lock().write_all(&page).map_err(|error| Failure::stdout(&error))
    }
}
