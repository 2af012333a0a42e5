//! Prints the engine's warnings to stderr.

use anstyle::{AnsiColor, Style};
use log::{Level, LevelFilter, Log, Metadata, Record};

use super::Output;
use crate::escape::harmless;

struct Stderr;

/// Starts printing warnings and errors, or with `--quiet` only errors.
pub(crate) fn show(output: Output) {
    let filter = if output.quiet() { LevelFilter::Error } else { LevelFilter::Warn };
    // This fails only if a logger is already set, and this function is the only one that sets it.
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(filter);
    }
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let style = Style::new().bold().fg_color(Some(AnsiColor::Yellow.into()));
            anstream::eprintln!("{style}warning:{style:#} {}", harmless(&record.args().to_string()));
        }
    }

    fn flush(&self) {}
}
