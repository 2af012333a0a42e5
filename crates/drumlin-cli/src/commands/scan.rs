//! `drumlin scan`: rows in key order, one a line.

use std::io::{self, BufWriter, Write};

use clap::Args;

use super::count::Counted;
use super::selection::Selection;
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::failure::{Failure, Result};
use crate::terminal::{Output, figures, style};
use crate::text::{Escaped, Hex, JsonBytes, JsonRow};

/// List or count rows in key order
///
/// One row a line: key, tab, value, both escaped so that a line is always a row. On a terminal, values are cut to its
/// width. `drumlin dump` writes rows for other programs.
#[derive(Debug, Args)]
pub(crate) struct Scan {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    selection: Selection,
    /// Last key first
    #[arg(long)]
    reverse: bool,
    /// At most this many rows
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
    /// Keys without values
    #[arg(long)]
    keys_only: bool,
    /// Only how many rows there are, at most --limit
    #[arg(long)]
    count: bool,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys are hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Scan {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let range = self.selection.range(self.hex)?;
        let database = self.database.open_to_read()?;
        let keyspace = self.keyspace.existing(&database)?;
        if self.count {
            let rows = keyspace.count(range)?.min(self.limit.map_or(u64::MAX, |limit| limit as u64));
            return output.print(&Counted { rows }, || rows.to_string());
        }
        let rows = keyspace.range(range);
        let limit = self.limit.unwrap_or(usize::MAX);
        if self.reverse { self.list(output, rows.rev().take(limit)) } else { self.list(output, rows.take(limit)) }
    }

    fn list<V: AsRef<[u8]>>(&self, output: Output, rows: impl Iterator<Item = drumlin::Result<(V, V)>>) -> Result<()> {
        let columns = Output::columns();
        // A person sees each row as it comes; a pipe gets large writes.
        let capacity = if columns.is_some() { 0 } else { 256 << 10 };
        let mut stdout = BufWriter::with_capacity(capacity, anstream::AutoStream::auto(io::stdout()).lock());
        for row in rows {
            let (key, value) = row?;
            self.write_row(output, columns, &mut stdout, key.as_ref(), value.as_ref())
                .map_err(|error| Failure::stdout(&error))?;
        }
        stdout.flush().map_err(|error| Failure::stdout(&error))
    }

    fn write_row(
        &self,
        output: Output,
        columns: Option<usize>,
        stdout: &mut impl Write,
        key: &[u8],
        value: &[u8],
    ) -> io::Result<()> {
        if output.json() {
            let value = (!self.keys_only).then_some(JsonBytes(value));
            serde_json::to_writer(&mut *stdout, &JsonRow { key: JsonBytes(key), value })?;
            return stdout.write_all(b"\n");
        }
        let key = if self.hex { Hex(key).to_string() } else { Escaped::new(key).to_string() };
        if self.keys_only {
            return writeln!(stdout, "{key}");
        }
        let Some(columns) = columns else {
            return writeln!(stdout, "{key}\t{}", Escaped::new(value));
        };
        let room = columns.saturating_sub(key.chars().count() + 2).max(20);
        // Four bytes at most make a character: the rest can't be seen.
        let shown = Escaped::new(&value[..value.len().min(room * 4)]).to_string();
        let (bold, dim) = (style::BOLD, style::DIM);
        writeln!(stdout, "{bold}{key}{bold:#}  {dim}{}{dim:#}", figures::clip(&shown, room))
    }
}
