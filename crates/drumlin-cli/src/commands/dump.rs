//! `drumlin dump`: rows for other programs, and for `drumlin load`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::selection::Selection;
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt;
use crate::own_files::OwnFiles;
use crate::rows::{self, Format, Sink};
use crate::terminal::{Output, Progress, figures};

/// Write rows as CSV, TSV, JSON Lines or binary
///
/// `drumlin load` reads the binary form back as it was; the text forms with `--key key --value value`. In JSON Lines,
/// bytes that are not UTF-8 are written {"base64": "…"}.
#[derive(Debug, Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The file to write; stdout without it
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The form [default: by the file's name, else jsonl]
    #[arg(long, value_enum)]
    format: Option<Format>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys given here are hexadecimal digits
    #[arg(long)]
    hex: bool,
}

#[derive(Serialize)]
struct Summary {
    rows: u64,
    bytes: u64,
    seconds: f64,
}

impl Dump {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let by_name = self.file.as_deref().and_then(Format::of_path);
        let format = self.format.or(by_name).unwrap_or(Format::Jsonl);
        if format == Format::Binary && self.file.is_none() && Output::is_terminal() {
            return Err(Failure::usage("the binary form is not for terminals").hint("give a file, or a pipe"));
        }
        let range = self.selection.range(self.hex)?;
        let database = self.database.open()?;
        let keyspace = self.keyspace.existing(&database)?;
        let Some(path) = &self.file else {
            let stdout = BufWriter::with_capacity(256 << 10, io::stdout().lock());
            return write_rows(format, stdout, keyspace.range(range), |_| ())
                .map(|_| ())
                .map_err(|failure| failure.or_else(|error| Failure::stdout(&error)));
        };
        interrupt::watch();
        let start = Instant::now();
        let progress = Progress::counter(output, "rows written:");
        let failed = |error: io::Error| Failure::file("writing", path, &error);
        OwnFiles::of([&self.database.path]).check_output(path)?;
        let file = File::create(path).map_err(failed)?;
        let written = write_rows(format, BufWriter::with_capacity(256 << 10, &file), keyspace.range(range), |rows| {
            progress.add(rows);
        });
        progress.finish();
        let (rows, bytes) = written.map_err(|failure| failure.or_else(failed))?;
        file.sync_all().map_err(failed)?;
        let elapsed = start.elapsed();
        output.print(&Summary { rows, bytes, seconds: elapsed.as_secs_f64() }, || {
            format!(
                "wrote {}, {}, in {}",
                figures::plural(rows, "row"),
                figures::bytes(bytes),
                figures::duration(elapsed)
            )
        })
    }
}

/// Either the database failed, or the file.
enum Stopped {
    Database(Failure),
    File(io::Error),
}

impl Stopped {
    fn or_else(self, file: impl FnOnce(io::Error) -> Failure) -> Failure {
        match self {
            Stopped::Database(failure) => failure,
            Stopped::File(error) => file(error),
        }
    }
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Stopped {
        Stopped::File(error)
    }
}

fn write_rows<V: AsRef<[u8]>>(
    format: Format,
    output: impl Write,
    found: impl Iterator<Item = drumlin::Result<(V, V)>>,
    progress: impl Fn(u64),
) -> Result<(u64, u64), Stopped> {
    const ROWS_BETWEEN_REPORTS: u64 = 1024;
    let mut sink: Box<dyn Sink> = rows::sink(format, output)?;
    let (mut rows, mut bytes) = (0, 0);
    for row in found {
        let (key, value) = row.map_err(|error| Stopped::Database(error.into()))?;
        sink.write(key.as_ref(), value.as_ref())?;
        rows += 1;
        bytes += (key.as_ref().len() + value.as_ref().len()) as u64;
        if rows % ROWS_BETWEEN_REPORTS == 0 {
            progress(ROWS_BETWEEN_REPORTS);
            if interrupt::requested() {
                let message = format!("interrupted after {}: the file is not complete", figures::plural(rows, "row"));
                return Err(Stopped::Database(Failure::new(Exit::Interrupted, message)));
            }
        }
    }
    sink.finish()?;
    Ok((rows, bytes))
}
