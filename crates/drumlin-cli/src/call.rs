//! The parts of the command line that an error report needs.

use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command};

/// The parts of the command line that an error report needs, as the user typed them.
#[derive(Debug, Default)]
pub(crate) struct Call {
    json: bool,
    database: Option<PathBuf>,
    /// The long options of the command, or `None` if no command was recognized.
    options: Option<Vec<String>>,
}

impl Call {
    pub(crate) fn of(program: &Command, matches: &ArgMatches) -> Call {
        let (mut command, mut innermost) = (program, matches);
        while let Some((name, below)) = innermost.subcommand() {
            command = command.find_subcommand(name).expect("a command that was recognized is there");
            innermost = below;
        }
        let path = |id| innermost.try_get_one::<PathBuf>(id).ok().flatten().cloned();
        let options = command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned);
        Call {
            json: innermost.get_flag("json"),
            database: path("database").or_else(|| path("path")),
            options: Some(options.collect()),
        }
    }

    /// Returns a call for a command line that could not be parsed.
    pub(crate) fn unknown() -> Call {
        Call { json: std::env::args_os().any(|arg| arg == "--json"), ..Call::default() }
    }

    /// Returns a call for a failure that is reported while its command still runs.
    pub(crate) fn running(json: bool) -> Call {
        Call { json, ..Call::default() }
    }

    /// Returns `true` if the failure should be printed as JSON.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    pub(crate) fn database(&self) -> Option<&Path> {
        self.database.as_deref()
    }

    /// Returns `true` if the command accepts every option that the hint mentions. Options in backquotes do not count,
    /// because the backquotes enclose a whole command line, whose command accepts them.
    pub(crate) fn has_options_of(&self, hint: &str) -> bool {
        let Some(options) = &self.options else { return true };
        let own = hint.split('`').step_by(2).flat_map(str::split_whitespace);
        let mut named = own.filter_map(|word| word.trim_matches(['(', ')', ',', ';', ':']).strip_prefix("--"));
        named.all(|name| options.iter().any(|option| option == name))
    }
}
