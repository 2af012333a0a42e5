//! `drumlin load`: stores rows from several files concurrently.
//!
//! One thread reads a file and also stores its rows, so the rows of a file are stored in order, and the last of several
//! rows with the same key wins. If the keyspace is empty, one bulk load stores the rows of all files. If the keyspace
//! has rows, new rows are committed in batches, and commits of different files share their syncs.

mod all;
mod batch;
mod compressed;
mod input;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use drumlin::{BulkLoad, Database, Keyspace};
use serde::Serialize;

use self::batch::{Batch, Committed};
use super::compact;
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::failure::{Failure, Result};
use crate::own_files::OwnFiles;
use crate::rows::{Choice, Format, Next, Place, Row, SourceError};
use crate::terminal::{Output, Progress, figures, style};
use crate::{interrupt, process, text};

/// Store rows from CSV, TSV, JSON Lines or binary files
///
/// Several files are read concurrently; they may be compressed (gzip, zstd). The key is what --key names, or else the
/// file's name and the line's number. The value is what --value names, or else the whole row (as a JSON object, if CSV
/// or TSV has a header). The rows of a file are stored in order. A row that is malformed or can't be stored ends the
/// load; the error states its file, line and column, and earlier rows stay.
///
/// An empty keyspace receives all rows in one step at the end: they are sorted, and no row is visible before that. If
/// the keyspace has rows, or with --batch, rows are committed as they are read.
#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The files to load; - for stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The file has all keyspaces of a database, written by `drumlin dump --all`: restore them with their settings
    #[arg(long, conflicts_with_all = ["keyspace", "key", "value", "no_header", "delimiter", "skip_bad", "on_duplicate", "batch"])]
    all: bool,
    /// The form of the rows [default: from each file's name]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The columns or fields that form the key, joined by a zero byte
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    key: Vec<String>,
    /// The column or field that becomes the value
    #[arg(long, value_name = "COLUMN")]
    value: Option<String>,
    /// CSV and TSV have no header line; columns are called 1, 2, 3, …
    #[arg(long)]
    no_header: bool,
    /// The character between fields [default: a comma; a tab for TSV]
    #[arg(long, value_name = "CHAR", value_parser = parse_delimiter)]
    delimiter: Option<u8>,
    /// Report and count rows that are malformed or can't be stored, instead of ending the load
    #[arg(long)]
    skip_bad: bool,
    /// Handling of a row whose key exists already
    #[arg(long, value_name = "HOW", value_enum, default_value_t = OnDuplicate::Replace)]
    on_duplicate: OnDuplicate,
    /// Rows in one transaction [default: 1000; all rows together into an empty keyspace]
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Number of files to read concurrently [default: one per processor]
    #[arg(long, value_name = "THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// The durability that a commit waits for
    #[arg(long, value_enum, default_value_t = Durability::Full)]
    durability: Durability,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
}

/// The treatment of a row whose key already exists, whether from before the load or from an earlier row of the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum OnDuplicate {
    /// Replace the existing row
    Replace,
    /// Keep the existing row
    Keep,
    /// Treat the new row as bad
    Fail,
}

/// The durability that a commit waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Durability {
    /// Wait until the commit is durable
    Full,
    /// Do not wait for the device; a power cut may lose the last commits
    Relaxed,
}

impl From<Durability> for drumlin::Durability {
    fn from(durability: Durability) -> drumlin::Durability {
        match durability {
            Durability::Full => drumlin::Durability::Full,
            Durability::Relaxed => drumlin::Durability::Relaxed,
        }
    }
}

#[derive(Serialize)]
struct Summary {
    files: usize,
    rows: u64,
    /// Rows that replaced a row with the same key.
    replaced_rows: u64,
    /// Rows not stored because their keys existed.
    kept_rows: u64,
    bad_rows: u64,
    /// Bytes of the stored keys and values.
    data_bytes: u64,
    /// Bytes read from the files, before decompression.
    input_bytes: u64,
    compressed_files: u64,
    /// Unused bytes of the data file, which `drumlin compact` returns.
    unused_bytes: u64,
    seconds: f64,
    rows_per_second: f64,
    input_bytes_per_second: f64,
    #[serde(skip)]
    advice: Option<String>,
}

/// The state shared by the threads.
struct Job<'a> {
    load: &'a Load,
    database: &'a Database,
    keyspace: &'a Keyspace,
    /// The bulk load that stores all rows, or `None` if rows are committed in batches.
    bulk: Option<Mutex<BulkLoad>>,
    own: OwnFiles,
    progress: &'a Progress,
    files: Mutex<std::slice::Iter<'a, PathBuf>>,
    rows: AtomicU64,
    replaced_rows: AtomicU64,
    kept_rows: AtomicU64,
    bad_rows: AtomicU64,
    data_bytes: AtomicU64,
    input_bytes: AtomicU64,
    compressed_files: AtomicU64,
    failed: AtomicBool,
}

/// A file that is being loaded.
struct Loading<'j, 'a> {
    job: &'j Job<'a>,
    path: &'j Path,
    name: String,
    batch: Batch,
}

/// Parses a field separator: one ASCII character, or the word `tab`.
pub(crate) fn parse_delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        &[byte] if byte.is_ascii() && !b"\"\n\r".contains(&byte) => Ok(byte),
        _ => Err("a delimiter is one ASCII character other than a quote, or tab".to_owned()),
    }
}

impl Load {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        if self.all {
            return self.run_all(output);
        }
        let bytes_total = input::bytes_total(&self.files)?;
        self.check_forms_and_names()?;
        interrupt::watch();
        let database = self.database.open_or_create()?;
        let keyspace = self.keyspace.open_or_create(&database)?;
        let progress = match bytes_total {
            Some(total) => Progress::bytes(output, "loading", total),
            None => Progress::counter(output, "bytes read:"),
        };
        let mut job = Job::new(self, &database, &keyspace, &progress);
        if self.batch.is_none() && self.on_duplicate == OnDuplicate::Replace && keyspace.is_empty()? {
            job.bulk = Some(Mutex::new(database.bulk_load(&keyspace.name())?));
        }
        let threads = self.threads.map_or_else(process::processors, |threads| threads as usize).min(self.files.len());
        let start = Instant::now();
        let loaded = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| job.run())).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a loading thread panicked"))
                .fold(Ok(()), Result::and)
        });
        let loaded = job.finish_bulk(loaded);
        let elapsed = start.elapsed();
        progress.finish();
        let mut summary = job.summary(elapsed);
        let loaded = loaded.and_then(|()| interrupt::check()).map_err(|failure| match summary.rows {
            0 => failure,
            rows => failure.hint(format!(
                "{} committed before it stay; loading again {}",
                figures::plural(rows, "row"),
                if self.on_duplicate == OnDuplicate::Replace { "replaces them" } else { "finds them there" }
            )),
        });
        if loaded.is_ok() {
            // Closing the database would make a checkpoint anyway.
            database.checkpoint()?;
            let stats = database.stats();
            summary.unused_bytes = stats.data_file_bytes.saturating_sub(stats.live_bytes);
            summary.advice = compact::advice(stats.data_file_bytes, summary.unused_bytes, &self.database.path);
        }
        let closed = database.close();
        loaded?;
        closed?;
        output.print(&summary, || summary.text())
    }

    /// Rejects a file whose format is unknown, and inputs that would produce the same keys.
    fn check_forms_and_names(&self) -> Result<()> {
        let mut names = HashSet::new();
        for path in &self.files {
            let has_line_keys = self.format_of(path)? != Format::Binary && self.key.is_empty();
            if has_line_keys && !names.insert(input::key_name(path)) {
                let name = input::name(path);
                let failure = Failure::usage(format!("{name} is given twice: its rows would take each other's place"));
                return Err(failure.hint("without --key, a row's key is the file's name and the number of its line"));
            }
        }
        Ok(())
    }

    fn format_of(&self, path: &Path) -> Result<Format> {
        let by_delimiter = self.delimiter.map(|_| Format::Csv);
        let format = self.format.or_else(|| Format::of_input(path)).or(by_delimiter).ok_or_else(|| {
            let name = input::name(path);
            Failure::usage(format!("{name}: its name doesn't tell its form"))
                .hint("give --format csv, tsv, jsonl or binary")
        })?;
        match (self.delimiter, format) {
            (Some(_), Format::Jsonl | Format::Binary) => {
                Err(Failure::usage(format!("--delimiter is for CSV and TSV; {} is neither", input::name(path))))
            }
            _ => Ok(format),
        }
    }
}

impl Job<'_> {
    fn new<'a>(load: &'a Load, database: &'a Database, keyspace: &'a Keyspace, progress: &'a Progress) -> Job<'a> {
        Job {
            load,
            database,
            keyspace,
            bulk: None,
            own: OwnFiles::of([&load.database.path]),
            progress,
            files: Mutex::new(load.files.iter()),
            rows: AtomicU64::new(0),
            replaced_rows: AtomicU64::new(0),
            kept_rows: AtomicU64::new(0),
            bad_rows: AtomicU64::new(0),
            data_bytes: AtomicU64::new(0),
            input_bytes: AtomicU64::new(0),
            compressed_files: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }

    fn run(&self) -> Result<()> {
        loop {
            let Some(path) = self.files.lock().expect("no thread panics while it holds this").next() else {
                return Ok(());
            };
            let loading = Loading { job: self, path, name: input::name(path), batch: Batch::new(self.load) };
            if let Err(failure) = loading.run() {
                self.failed.store(true, Ordering::Relaxed);
                return Err(failure);
            }
            if self.is_over() {
                return Ok(());
            }
        }
    }

    /// Ends a bulk load. Stores all rows that were read, even if a bad row ended the reading. After an interrupt, or if
    /// the bulk load itself failed, stores no rows.
    fn finish_bulk(&mut self, loaded: Result<()>) -> Result<()> {
        let Some(bulk) = self.bulk.take() else { return loaded };
        let finished = match interrupt::requested() {
            true => Ok(0),
            false => {
                bulk.into_inner().expect("no thread panics while it holds this").finish().map(|report| report.rows)
            }
        };
        match finished {
            Ok(rows) if !interrupt::requested() => {
                self.replaced_rows.store(*self.rows.get_mut() - rows, Ordering::Relaxed);
                loaded
            }
            nothing => {
                *self.rows.get_mut() = 0;
                *self.data_bytes.get_mut() = 0;
                loaded.and(nothing.map(drop).map_err(Failure::from))
            }
        }
    }

    fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || interrupt::requested()
    }

    fn summary(&self, elapsed: Duration) -> Summary {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (rows, input_bytes) = (load(&self.rows), load(&self.input_bytes));
        Summary {
            files: self.load.files.len(),
            rows,
            replaced_rows: load(&self.replaced_rows),
            kept_rows: load(&self.kept_rows),
            bad_rows: load(&self.bad_rows),
            data_bytes: load(&self.data_bytes),
            input_bytes,
            compressed_files: load(&self.compressed_files),
            unused_bytes: 0,
            seconds,
            rows_per_second: rows as f64 / seconds,
            input_bytes_per_second: input_bytes as f64 / seconds,
            advice: None,
        }
    }
}

impl Loading<'_, '_> {
    fn run(mut self) -> Result<()> {
        let job = self.job;
        let choice = Choice {
            key: job.load.key.clone(),
            value: job.load.value.clone(),
            header: !job.load.no_header,
            delimiter: job.load.delimiter,
            name: input::key_name(self.path).to_vec(),
        };
        let input = input::open(self.path, &job.own, job.progress, &job.input_bytes, &job.compressed_files)?;
        let mut source = crate::rows::source(job.load.format_of(self.path)?, input, choice);
        let mut row = Row::default();
        while !job.is_over() {
            let next = source.next(&mut row);
            if let Some(remark) = source.remark() {
                job.progress.remark(&format!("{}: {remark}", text::harmless(&self.name)));
            }
            match next {
                Ok(next @ (Next::Row | Next::Streamed)) if row.key.len() > job.keyspace.key_bytes_max() => {
                    self.bad_row(row.place, &long_key(&row.key, job.keyspace))?;
                    if next == Next::Streamed {
                        batch::pass_over(source.value()).map_err(|error| self.streaming_failure(error))?;
                    }
                }
                Ok(Next::Row) => {
                    self.batch.push(&row);
                    if self.batch.is_full() {
                        self.commit()?;
                    }
                }
                Ok(Next::Streamed) => {
                    // Commit the earlier rows first, so that they can't replace this row later.
                    self.commit()?;
                    let stored = match &job.bulk {
                        None => self.batch.insert_streamed(job.database, job.keyspace, &row, source.value()),
                        Some(bulk) => batch::load_streamed(bulk, &row, source.value()),
                    };
                    let committed = stored.map_err(|error| self.streaming_failure(error))?;
                    self.count(committed)?;
                }
                Ok(Next::Keyspace) => {
                    let failure = Failure::bad_input(format!("{} has all keyspaces of a database", self.name));
                    return Err(failure.hint("--all restores them with their settings"));
                }
                Ok(Next::End) => break,
                Err(SourceError::Row { place, what }) => self.bad_row(place, &what)?,
                Err(error) => {
                    self.commit()?;
                    return Err(self.failure(error));
                }
            }
        }
        // After an interrupt, only whole batches are stored.
        if interrupt::requested() { Ok(()) } else { self.commit() }
    }

    /// Counts and reports a row that is not stored, or fails the load because of it.
    fn bad_row(&mut self, place: Place, what: &str) -> Result<()> {
        let name = &self.name;
        if !self.job.load.skip_bad {
            let failure = Failure::bad_input(format!("{name}{place}: {what}"))
                .hint("--skip-bad passes over rows that are malformed or can't be stored, and names them");
            self.commit()?;
            return Err(failure);
        }
        self.job.bad_rows.fetch_add(1, Ordering::Relaxed);
        self.job.progress.remark(&format!("skipped: {}{place}: {what}", text::harmless(name)));
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        let mut committed = Committed::default();
        let result = match &self.job.bulk {
            None => self.batch.commit(self.job.database, self.job.keyspace, &mut committed),
            Some(bulk) => self.batch.load(bulk, &mut committed),
        };
        self.batch.clear();
        self.count(committed)?;
        Ok(result?)
    }

    fn count(&mut self, committed: Committed) -> Result<()> {
        let job = self.job;
        job.rows.fetch_add(committed.stored, Ordering::Relaxed);
        job.replaced_rows.fetch_add(committed.replaced, Ordering::Relaxed);
        job.kept_rows.fetch_add(committed.kept, Ordering::Relaxed);
        job.data_bytes.fetch_add(committed.data_bytes, Ordering::Relaxed);
        committed.bad.into_iter().try_for_each(|(place, what)| self.bad_row(place, &what))
    }

    fn failure(&self, error: SourceError) -> Failure {
        let name = &self.name;
        match error {
            SourceError::Row { place, what } | SourceError::Rest { place, what } => {
                Failure::bad_input(format!("{name}{place}: {what}"))
            }
            SourceError::Header { place, what, hint } => {
                let failure = Failure::bad_input(format!("{name}{place}: {what}"));
                hint.into_iter().fold(failure, Failure::hint)
            }
            SourceError::Io(error) => Failure::input(self.path, &error),
        }
    }

    /// Converts the error of storing a streamed value. Either its source failed (bad input) or the database did.
    fn streaming_failure(&self, error: drumlin::Error) -> Failure {
        match error {
            drumlin::Error::Source { source } => Failure::bad_input(format!("{}: {source}", self.name)),
            error => error.into(),
        }
    }
}

fn long_key(key: &[u8], keyspace: &Keyspace) -> String {
    format!(
        "a key of {} bytes is too long: keyspace {:?} allows up to {}",
        key.len(),
        keyspace.name(),
        keyspace.key_bytes_max()
    )
}

impl Summary {
    fn text(&self) -> String {
        let good = style::GOOD;
        let files = figures::plural(self.files as u64, "file");
        let mut text = match self.rows {
            0 => format!("{good}loaded{good:#} no rows from {files}"),
            rows => format!("{good}loaded{good:#} {}", figures::plural(rows, "row")),
        };
        if self.replaced_rows > 0 {
            text += &format!(", {} replaced,", figures::count(self.replaced_rows));
        }
        if self.rows > 0 {
            text += &format!(" from {files} in {}", figures::duration(Duration::from_secs_f64(self.seconds)));
        }
        // Print rates on a line of their own, because one line for everything could be wider than a terminal. If the
        // load took less than a second, a rate would be noise.
        if self.rows > 0 && self.seconds >= 1.0 {
            text += &format!(
                "\n{} rows/s, {}/s{}",
                figures::rate(self.rows_per_second),
                figures::bytes(self.input_bytes_per_second as u64),
                match self.compressed_files {
                    0 => "",
                    count if count == self.files as u64 => " compressed",
                    _ => ", compressed in part",
                }
            );
        }
        if self.kept_rows > 0 {
            text += &format!("\nkept {} that had the same key", figures::plural(self.kept_rows, "row"));
        }
        if self.bad_rows > 0 {
            let bad = style::BAD;
            text += &format!("\n{bad}skipped{bad:#} {}", figures::plural(self.bad_rows, "bad row"));
        }
        if let Some(advice) = &self.advice {
            text += &format!("\n{advice}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text says when a rate counts compressed bytes, fits in 80 columns, and has no rate for a short load.
    #[test]
    fn rates_say_what_they_count() {
        let summary = |compressed_files, seconds| Summary {
            files: 12,
            rows: 123_456_789,
            replaced_rows: 12_345_678,
            kept_rows: 0,
            bad_rows: 0,
            data_bytes: 0,
            input_bytes: 0,
            compressed_files,
            unused_bytes: 0,
            seconds,
            rows_per_second: 362_282.0,
            input_bytes_per_second: 18_400_000.0,
            advice: None,
        };
        for (compressed_files, rate) in [(0, "MB/s"), (12, "MB/s compressed"), (3, "MB/s, compressed in part")] {
            let text = anstream::adapter::strip_str(&summary(compressed_files, 125.0).text()).to_string();
            assert!(text.ends_with(&format!("\n362,282 rows/s, 18.4 {rate}")), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
        assert!(!summary(0, 0.99).text().contains("/s"));
    }

    /// A delimiter is a single ASCII character. A tab can be typed as `tab` or `\t`.
    #[test]
    fn delimiters_parse() {
        assert_eq!(parse_delimiter(";"), Ok(b';'));
        assert_eq!(parse_delimiter("tab"), Ok(b'\t'));
        assert_eq!(parse_delimiter("\\t"), Ok(b'\t'));
        for text in ["", "ab", "\"", "\n", "\u{e9}"] {
            assert!(parse_delimiter(text).is_err(), "{text}");
        }
    }
}
