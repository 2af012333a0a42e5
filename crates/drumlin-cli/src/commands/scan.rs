//! `drumlin scan`: prints rows in key order, one per line.

use std::io::{self, BufWriter, Write};

use clap::Args;
use drumlin::{Value, ValueReader};

use super::count::{Counted, counting};
use super::selection::Selection;
use crate::database::{DatabaseArgs, ReadArgs};
use crate::failure::{Failure, Result};
use crate::streamed::{self, ValueText};
use crate::terminal::{Output, figures, style};
use crate::text::{Escaped, Hex, JsonBytes, JsonRow};

/// List or count rows in key order
///
/// Prints one row per line: key, tab, value, both escaped so that a row never spans several lines. On a terminal,
/// values are truncated to its width. `drumlin dump` writes rows for other programs.
#[derive(Debug, Args)]
pub(crate) struct Scan {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    selection: Selection,
    /// Start with the last key
    #[arg(long)]
    reverse: bool,
    /// List at most this many rows
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
    /// List keys without values
    #[arg(long)]
    keys_only: bool,
    /// Print only the number of rows, at most --limit
    #[arg(long)]
    count: bool,
    #[command(flatten)]
    read: ReadArgs,
    /// Keys are in hexadecimal
    #[arg(long)]
    hex: bool,
}

impl Scan {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let range = self.selection.range(self.hex)?;
        if self.count {
            let count = |database: &_| Ok(self.read.existing(database)?.count(range)?);
            let rows = counting(&self.database, output, count)?.min(self.limit.map_or(u64::MAX, |limit| limit as u64));
            return output.print(&Counted { rows }, || rows.to_string());
        }
        let database = self.database.open_to_read()?;
        let keyspace = self.read.existing(&database)?;
        let range = keyspace.range(range);
        let limit = self.limit.unwrap_or(usize::MAX);
        match (self.keys_only, self.reverse) {
            (true, false) => self.list_keys(output, range.keys().take(limit)),
            (true, true) => self.list_keys(output, range.keys().rev().take(limit)),
            (false, false) => self.list(output, range.readers().take(limit)),
            (false, true) => self.list(output, range.readers().rev().take(limit)),
        }
    }

    fn list_keys(&self, output: Output, keys: impl Iterator<Item = drumlin::Result<Value>>) -> Result<()> {
        let mut stdout = stdout(Output::columns());
        for key in keys {
            let key = key?;
            let written = match output.json() {
                true => serde_json::to_writer(&mut stdout, &JsonRow { key: JsonBytes(&key), value: None })
                    .map_err(io::Error::from)
                    .and_then(|()| stdout.write_all(b"\n")),
                false => writeln!(stdout, "{}", self.shown(&key)),
            };
            written.map_err(|error| Failure::stdout(&error))?;
        }
        stdout.flush().map_err(|error| Failure::stdout(&error))
    }

    fn list(&self, output: Output, rows: impl Iterator<Item = drumlin::Result<(Value, ValueReader)>>) -> Result<()> {
        let columns = Output::columns();
        let mut stdout = stdout(columns);
        let mut text = ValueText::default();
        for row in rows {
            let (key, mut value) = row?;
            self.write_row(output, columns, &mut stdout, &key, &mut value, &mut text)
                .map_err(|error| streamed::failed(&error))?;
        }
        stdout.flush().map_err(|error| Failure::stdout(&error))
    }

    fn shown(&self, key: &[u8]) -> String {
        if self.hex { Hex(key).to_string() } else { Escaped::new(key).to_string() }
    }

    fn write_row(
        &self,
        output: Output,
        columns: Option<usize>,
        stdout: &mut impl Write,
        key: &[u8],
        value: &mut ValueReader,
        text: &mut ValueText,
    ) -> io::Result<()> {
        if output.json() {
            stdout.write_all(b"{\"key\":")?;
            serde_json::to_writer(&mut *stdout, &JsonBytes(key))?;
            stdout.write_all(b",\"value\":")?;
            text.write_json(value, stdout)?;
            return stdout.write_all(b"}\n");
        }
        let key = self.shown(key);
        let Some(columns) = columns else {
            write!(stdout, "{key}\t")?;
            text.write_escaped(value, stdout)?;
            return stdout.write_all(b"\n");
        };
        let room = columns.saturating_sub(key.chars().count() + 2).max(20);
        // A character has at most four bytes, so no further bytes can be visible.
        let shown = Escaped::new(text.beginning(value, room * 4)?).to_string();
        let (bold, dim) = (style::BOLD, style::DIM);
        writeln!(stdout, "{bold}{key}{bold:#}  {dim}{}{dim:#}", figures::clip(&shown, room))
    }
}

/// Returns a writer that shows each row immediately on a terminal, and makes large writes to a pipe.
fn stdout(columns: Option<usize>) -> impl Write {
    let capacity = if columns.is_some() { 0 } else { 256 << 10 };
    BufWriter::with_capacity(capacity, anstream::AutoStream::auto(io::stdout()).lock())
}
