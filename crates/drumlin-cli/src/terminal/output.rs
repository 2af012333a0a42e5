//! stdout: figures for people or as JSON.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use serde::Serialize;

use crate::failure::{Failure, Result};

/// The few styles in use. Written into text as `{bold}…{bold:#}`; removed on the way to anything but a terminal.
pub(crate) mod style {
    use anstyle::{AnsiColor, Style};

    pub(crate) const BOLD: Style = Style::new().bold();
    pub(crate) const DIM: Style = Style::new().dimmed();
    pub(crate) const GOOD: Style = Style::new().bold().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
    pub(crate) const BAD: Style = Style::new().bold().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));
    pub(crate) const ACCENT: Style = Style::new().bold().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Cyan)));
}

/// The options of every command: how it prints.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Common {
    /// Print figures and rows as JSON, one object a line
    #[arg(long, global = true, help_heading = "Everywhere")]
    json: bool,
    /// No progress on stderr
    #[arg(long, short, global = true, help_heading = "Everywhere")]
    quiet: bool,
}

impl Common {
    /// Returns `true` if figures are wanted as JSON.
    pub(crate) fn json(&self) -> bool {
        self.json
    }
}

/// The stream to which a command prints its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
}

impl Output {
    pub(crate) fn new(common: Common) -> Output {
        Output { json: common.json, quiet: common.quiet }
    }

    /// Returns `true` if figures are wanted as JSON.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Returns `true` if progress is unwanted.
    pub(crate) fn quiet(&self) -> bool {
        self.quiet
    }

    /// Returns `true` if a person sees stdout.
    pub(crate) fn is_terminal() -> bool {
        io::stdout().is_terminal()
    }

    /// Columns a row may take: the terminal's, or no limit.
    pub(crate) fn columns() -> Option<usize> {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return None;
        }
        rustix::termios::tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0)
    }

    /// Prints the figures as one line of JSON, or as the text.
    pub(crate) fn print<T: Serialize>(&self, figures: &T, text: impl FnOnce() -> String) -> Result<()> {
        if self.json { self.print_json(figures) } else { self.print_text(&text()) }
    }

    /// One line of JSON.
    pub(crate) fn print_json<T: Serialize>(&self, figures: &T) -> Result<()> {
        let line = serde_json::to_string(figures).expect("figures have string keys");
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(|error| Failure::stdout(&error))
    }

    /// One or more lines of text, with styles.
    pub(crate) fn print_text(&self, text: &str) -> Result<()> {
        let mut stdout = anstream::stdout().lock();
        writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(|error| Failure::stdout(&error))
    }

    /// A remark that is not the answer: to stderr, so that pipes stay clean.
    pub(crate) fn remark(&self, text: &str) {
        if !self.quiet {
            anstream::eprintln!("{text}");
        }
    }
}
