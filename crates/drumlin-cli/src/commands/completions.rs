//! `drumlin completions`: prints scripts that complete the command line.

use std::io::{self, Write};

use clap::Args;
use clap_complete::Shell;

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
    /// Prints the script for `command`, which describes the whole command line.
    pub(crate) fn run(&self, mut command: clap::Command) -> Result<()> {
        // The generator panics if it can't write, so let it write to memory.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "drumlin", &mut script);
        io::stdout().lock().write_all(&script).map_err(|error| Failure::stdout(&error))
    }
}
