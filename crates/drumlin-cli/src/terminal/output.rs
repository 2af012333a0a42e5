//! Prints figures to stdout, for people or as JSON.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use serde::Serialize;

use crate::failure::{Failure, Result};

/// The styles in use, written into text as `{bold}…{bold:#}`. They are removed unless the text goes to a terminal.
pub(crate) mod style {
    use anstyle::{AnsiColor, Style};

    pub(crate) const BOLD: Style = Style::new().bold();
    pub(crate) const DIM: Style = Style::new().dimmed();
    pub(crate) const GOOD: Style = Style::new().bold().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
    pub(crate) const BAD: Style = Style::new().bold().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));
    pub(crate) const ACCENT: Style = Style::new().bold().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Cyan)));
}

/// The output options, which every command has.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Common {
    /// Print figures and rows as JSON, one object per line
    #[arg(long, global = true, help_heading = "Everywhere")]
    json: bool,
    /// Show no progress on stderr
    #[arg(long, short, global = true, help_heading = "Everywhere")]
    quiet: bool,
}

impl Common {
    /// Returns `true` if figures should be printed as JSON.
    pub(crate) fn json(&self) -> bool {
        self.json
    }
}

/// The settings for a command's output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
}

impl Output {
    pub(crate) fn new(common: Common) -> Output {
        Output { json: common.json, quiet: common.quiet }
    }

    /// Returns `true` if figures should be printed as JSON.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Returns `true` if no progress should be shown.
    pub(crate) fn quiet(&self) -> bool {
        self.quiet
    }

    /// Returns `true` if stdout is a terminal.
    pub(crate) fn is_terminal() -> bool {
        io::stdout().is_terminal()
    }

    /// Returns the maximum width of a row in columns: the terminal's width, or `None` if there is no limit.
    pub(crate) fn columns() -> Option<usize> {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return None;
        }
        rustix::termios::tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0)
    }

    /// Prints the figures, as one line of JSON or as the given text.
    pub(crate) fn print<T: Serialize>(&self, figures: &T, text: impl FnOnce() -> String) -> Result<()> {
        if self.json { self.print_json(figures) } else { self.print_text(&text()) }
    }

    /// Prints one line of JSON.
    pub(crate) fn print_json<T: Serialize>(&self, figures: &T) -> Result<()> {
        let line = serde_json::to_string(figures).expect("figures have string keys");
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(|error| Failure::stdout(&error))
    }

    /// Prints one or more lines of text with styles.
    pub(crate) fn print_text(&self, text: &str) -> Result<()> {
        let mut stdout = anstream::stdout().lock();
        writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(|error| Failure::stdout(&error))
    }

    /// Prints a remark to stderr, so that a pipe receives only the output proper.
    pub(crate) fn remark(&self, text: &str) {
        if !self.quiet {
            anstream::eprintln!("{text}");
        }
    }
}
