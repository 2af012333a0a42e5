//! `drumlin completions`: scripts that complete the command line.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::{Failure, Result};

/// Print a completion script for a shell
///
/// bash: drumlin completions bash > ~/.local/share/bash-completion/completions/drumlin
#[derive(Debug, Args)]
pub(crate) struct Completions {
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Result<()> {
        // The generator panics where it can't write: it gets memory.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "drumlin", &mut script);
        io::stdout().lock().write_all(&script).map_err(|error| Failure::stdout(&error))
    }
}
