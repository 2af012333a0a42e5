//! `drumlin dump`: rows for other programs, and for `drumlin load`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::load::parse_delimiter;
use super::selection::Selection;
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt;
use crate::own_files::OwnFiles;
use crate::rows::{self, Format, Layout};
use crate::terminal::{Output, Progress, figures};
use crate::text::{Escaped, Hex};

/// Write rows as CSV, TSV, JSON Lines or binary
///
/// `drumlin load` reads the binary form back as it was; the text forms with `--key key --value value`. In JSON Lines,
/// bytes that are not UTF-8 are written {"base64": "…"}. With --values or --columns, rows that were loaded from CSV
/// become CSV again. A file that is there is kept, unless --force is given.
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
    /// The character between fields [default: a comma; a tab for TSV]
    #[arg(long, value_name = "CHAR", value_parser = parse_delimiter)]
    delimiter: Option<u8>,
    /// Values alone, as they were loaded: in CSV and TSV their fields, which those of the first row name
    #[arg(long)]
    values: bool,
    /// These fields of the values, which must be JSON objects
    #[arg(long, value_name = "FIELD", value_delimiter = ',', conflicts_with = "values")]
    columns: Vec<String>,
    /// Replace the file if it is there
    #[arg(long, requires = "file")]
    force: bool,
    #[command(flatten)]
    selection: Selection,
    /// At most this many rows
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
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
        let by_delimiter = self.delimiter.map(|_| Format::Csv);
        let format = self.format.or(by_name).or(by_delimiter).unwrap_or(Format::Jsonl);
        self.check_format(format)?;
        let range = self.selection.range(self.hex)?;
        let database = self.database.open()?;
        let keyspace = self.keyspace.existing(&database)?;
        let rows = keyspace.range(range).take(self.limit.unwrap_or(usize::MAX));
        let Some(path) = &self.file else {
            let stdout = BufWriter::with_capacity(256 << 10, io::stdout().lock());
            return self
                .write_rows(format, stdout, rows, |_| ())
                .map(|_| ())
                .map_err(|stopped| stopped.or_else(|error| Failure::stdout(&error)));
        };
        interrupt::watch();
        let start = Instant::now();
        let failed = |error: io::Error| Failure::file("writing", path, &error);
        OwnFiles::of([&self.database.path]).check_output(path)?;
        let file = self.create(path)?;
        let progress = Progress::counter(output, "rows written:");
        let buffered = BufWriter::with_capacity(256 << 10, &file);
        let written = self.write_rows(format, buffered, rows, |rows| progress.add(rows));
        progress.finish();
        let (rows, bytes) = written.map_err(|stopped| stopped.or_else(failed))?;
        // Pipes and devices have nothing to sync.
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            file.sync_all().map_err(failed)?;
        }
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

    fn check_format(&self, format: Format) -> Result<()> {
        if format == Format::Binary && self.file.is_none() && Output::is_terminal() {
            return Err(Failure::usage("the binary form is not for terminals").hint("give a file, or a pipe"));
        }
        if format == Format::Binary && self.layout() != Layout::Rows {
            return Err(Failure::usage("the binary form has keys and whole values")
                .hint("--values and --columns are for csv, tsv and jsonl"));
        }
        if self.delimiter.is_some() && !matches!(format, Format::Csv | Format::Tsv) {
            return Err(Failure::usage("--delimiter is for CSV and TSV").hint("add --format csv"));
        }
        Ok(())
    }

    fn layout(&self) -> Layout {
        match (self.values, &self.columns[..]) {
            (true, _) => Layout::Values,
            (false, []) => Layout::Rows,
            (false, names) => Layout::Fields(names.to_vec()),
        }
    }

    /// The file, new unless it may be replaced; a pipe or a device is written to as it is.
    fn create(&self, path: &Path) -> Result<File> {
        let is_special = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        let may_exist = self.force || is_special;
        let file = OpenOptions::new().write(true).create(true).truncate(true).create_new(!may_exist).open(path);
        file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Failure::other(format!("{} is there already", path.display())).hint("--force replaces it")
            }
            _ => Failure::file("creating", path, &error),
        })
    }

    fn write_rows<V: AsRef<[u8]>>(
        &self,
        format: Format,
        output: impl Write,
        found: impl Iterator<Item = drumlin::Result<(V, V)>>,
        progress: impl Fn(u64),
    ) -> Result<(u64, u64), Stopped> {
        const ROWS_BETWEEN_REPORTS: u64 = 1024;
        let mut sink = rows::sink(format, self.delimiter, self.layout(), output)?;
        let (mut rows, mut bytes) = (0, 0);
        for row in found {
            let (key, value) = row.map_err(|error| Stopped::Database(error.into()))?;
            sink.write(key.as_ref(), value.as_ref()).map_err(|error| self.not_written(key.as_ref(), error))?;
            rows += 1;
            bytes += (key.as_ref().len() + value.as_ref().len()) as u64;
            if rows % ROWS_BETWEEN_REPORTS == 0 {
                progress(ROWS_BETWEEN_REPORTS);
                if interrupt::requested() {
                    let message =
                        format!("interrupted after {}: the file is not complete", figures::plural(rows, "row"));
                    return Err(Stopped::Database(Failure::new(Exit::Interrupted, message)));
                }
            }
        }
        sink.finish()?;
        Ok((rows, bytes))
    }

    /// A value that has not the fields of a line, or a file that can't be written.
    fn not_written(&self, key: &[u8], error: io::Error) -> Stopped {
        if error.kind() != io::ErrorKind::InvalidData {
            return Stopped::File(error);
        }
        let key: &dyn std::fmt::Display = if self.hex { &Hex(key) } else { &Escaped::new(key) };
        Stopped::Database(
            Failure::bad_input(format!("the row of key '{key}' can't be written: {error}"))
                .hint("--columns names the fields to write; without --values and --columns, any value can be written"),
        )
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
