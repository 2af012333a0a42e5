//! `drumlin log read`: prints the entries of a log.

use std::io::{self, BufWriter, Write};

use clap::Args;
use drumlin::logs::Entry;
use serde::Serialize;

use super::FolderArgs;
use crate::failure::{Failure, Result};
use crate::terminal::{Output, figures, style};
use crate::text::{Escaped, JsonBytes};

/// Print entries of a log
///
/// Prints one entry per line: index, tab, bytes, escaped so that an entry never spans several lines. On a terminal,
/// entries are truncated to its width.
#[derive(Debug, Args)]
pub(super) struct Read {
    #[command(flatten)]
    folder: FolderArgs,
    /// The number of the log
    #[arg(value_name = "LOG")]
    log: u64,
    /// Only this index and those above it
    #[arg(long, value_name = "INDEX")]
    from: Option<u64>,
    /// Only indexes below this one
    #[arg(long, value_name = "INDEX")]
    to: Option<u64>,
}

#[derive(Serialize)]
struct Line<'l> {
    index: u64,
    value: JsonBytes<'l>,
}

impl Read {
    pub(super) fn run(&self, output: Output) -> Result<()> {
        self.folder.check_there()?;
        let failed = |error| self.folder.failed(error);
        let logs = self.folder.open().map_err(failed)?;
        let log = logs.log(self.log);
        let from = self.from.or(log.first()).unwrap_or(0);
        let entries = log.range(from..self.to.unwrap_or(u64::MAX)).map_err(failed)?;
        let columns = Output::columns();
        let mut stdout = BufWriter::with_capacity(256 << 10, anstream::AutoStream::auto(io::stdout()).lock());
        for entry in entries {
            let written = match entry {
                Ok(entry) => write_entry(output, columns, &mut stdout, &entry),
                Err(error) => {
                    stdout.flush().map_err(|error| Failure::stdout(&error))?;
                    return Err(failed(error));
                }
            };
            written.map_err(|error| Failure::stdout(&error))?;
        }
        stdout.flush().map_err(|error| Failure::stdout(&error))
    }
}

fn write_entry(output: Output, columns: Option<usize>, stdout: &mut impl Write, entry: &Entry) -> io::Result<()> {
    if output.json() {
        serde_json::to_writer(&mut *stdout, &Line { index: entry.index(), value: JsonBytes(entry) })?;
        return stdout.write_all(b"\n");
    }
    let Some(columns) = columns else {
        return writeln!(stdout, "{}\t{}", entry.index(), Escaped::new(entry));
    };
    let index = entry.index().to_string();
    let room = columns.saturating_sub(index.len() + 2).max(20);
    // A character has at most four bytes, so no further bytes can be visible.
    let shown = Escaped::new(&entry[..entry.len().min(room * 4)]).to_string();
    let (bold, dim) = (style::BOLD, style::DIM);
    writeln!(stdout, "{bold}{index}{bold:#}  {dim}{}{dim:#}", figures::clip(&shown, room))
}
