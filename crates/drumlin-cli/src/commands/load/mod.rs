//! `drumlin load`: rows from files, several at once.
//!
//! Each file is read by one thread, which also commits what it reads: so the rows of a file arrive in their order (the
//! last of several with one key stays), and commits of different files share their syncs.

mod batch;
mod input;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use drumlin::{Database, Keyspace};
use serde::Serialize;

use self::batch::Batch;
use self::input::Counted;
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::failure::{Exit, Failure, Result};
use crate::rows::{Choice, Flaw, Format, Next, Place, Row};
use crate::terminal::{Output, Progress, figures, style};
use crate::{interrupt, process};

/// Malformed rows that `--skip-bad` names one by one; the rest it only counts.
const BAD_ROWS_NAMED: u64 = 5;

/// Store rows from CSV, TSV, JSON Lines or binary files
///
/// Several files are read at once. The key is what --key names, else the file's name and the line's number; the value
/// is what --value names, else the whole row (as a JSON object, where CSV or TSV has a header). The rows of a file are
/// stored in its order. A malformed row ends the load with its file, line and column; what was committed before it
/// stays.
#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The files; - for stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The form of the rows [default: by each file's name]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Columns or fields that make the key, joined by a zero byte
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    key: Vec<String>,
    /// The column or field that makes the value
    #[arg(long, value_name = "COLUMN")]
    value: Option<String>,
    /// CSV and TSV begin with data; columns are called 1, 2, 3, …
    #[arg(long)]
    no_header: bool,
    /// Count malformed rows instead of ending
    #[arg(long)]
    skip_bad: bool,
    /// Rows in one transaction
    #[arg(long, value_name = "ROWS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Files read at once [default: one a processor]
    #[arg(long, value_name = "THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// What a commit waits for
    #[arg(long, value_enum, default_value_t = Durability::Full)]
    durability: Durability,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
}

/// What a commit waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Durability {
    /// Until it is on the medium
    Full,
    /// Not for the medium: a power cut may take the last commits
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
    bad_rows: u64,
    /// Keys and values stored.
    data_bytes: u64,
    /// Read from the files.
    input_bytes: u64,
    seconds: f64,
    rows_per_second: f64,
    input_bytes_per_second: f64,
}

/// The state that the threads share.
struct Job<'a> {
    load: &'a Load,
    database: &'a Database,
    keyspace: &'a Keyspace,
    progress: &'a Progress,
    files: Mutex<std::slice::Iter<'a, PathBuf>>,
    rows: AtomicU64,
    bad_rows: AtomicU64,
    data_bytes: AtomicU64,
    input_bytes: AtomicU64,
    failed: AtomicBool,
}

impl Load {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let bytes_total = input::bytes_total(&self.files)?;
        for path in &self.files {
            self.format_of(path)?;
        }
        interrupt::watch();
        let database = self.database.open_or_create()?;
        let keyspace = self.keyspace.open_or_create(&database)?;
        let progress = match bytes_total {
            Some(total) => Progress::bytes(output, "loading", total),
            None => Progress::counter(output, "bytes read:"),
        };
        let job = Job {
            load: self,
            database: &database,
            keyspace: &keyspace,
            progress: &progress,
            files: Mutex::new(self.files.iter()),
            rows: AtomicU64::new(0),
            bad_rows: AtomicU64::new(0),
            data_bytes: AtomicU64::new(0),
            input_bytes: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        };
        let threads = self.threads.map_or_else(process::processors, |threads| threads as usize).min(self.files.len());
        let start = Instant::now();
        let loaded = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| job.run())).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a loading thread panicked"))
                .fold(Ok(()), Result::and)
        });
        let elapsed = start.elapsed();
        progress.finish();
        let rows = job.rows.load(Ordering::Relaxed);
        let summary = job.summary(elapsed);
        let loaded = loaded.and_then(|()| interrupt::check()).map_err(|failure| {
            if rows == 0 {
                return failure;
            }
            let stay =
                format!("{} committed before it stay; loading again replaces them", figures::plural(rows, "row"));
            failure.hint(stay)
        });
        let closed = database.close();
        loaded?;
        closed?;
        output.print(&summary, || summary.text())
    }

    fn format_of(&self, path: &std::path::Path) -> Result<Format> {
        self.format.or_else(|| Format::of_path(path)).ok_or_else(|| {
            let name = input::name(path);
            Failure::usage(format!("{name}: its name doesn't tell its form"))
                .hint("give --format csv, tsv, jsonl or binary")
        })
    }
}

impl Job<'_> {
    fn run(&self) -> Result<()> {
        loop {
            let Some(path) = self.files.lock().expect("no thread panics while it holds this").next() else {
                return Ok(());
            };
            if let Err(failure) = self.load_file(path) {
                self.failed.store(true, Ordering::Relaxed);
                return Err(failure);
            }
            if self.is_over() {
                return Ok(());
            }
        }
    }

    fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || interrupt::requested()
    }

    fn load_file(&self, path: &std::path::Path) -> Result<()> {
        let name = input::name(path);
        let format = self.load.format_of(path)?;
        let choice = Choice {
            key: self.load.key.clone(),
            value: self.load.value.clone(),
            header: !self.load.no_header,
            name: name.clone(),
        };
        let input = Counted::open(path, self.progress, &self.input_bytes)?;
        let mut source = crate::rows::source(format, input, choice);
        let mut batch = Batch::new(self.load.batch as usize, self.load.durability.into());
        let mut row = Row::default();
        let mut bad_rows_named = 0;
        while !self.is_over() {
            match source.next(&mut row) {
                Ok(Next::Row) => {
                    batch.push(&row);
                    if batch.is_full() {
                        self.commit(&mut batch)?;
                    }
                }
                Ok(Next::Streamed) => {
                    // Order matters: what came before this row must not end up on top of it.
                    self.commit(&mut batch)?;
                    let value_bytes = batch::insert_streamed(
                        self.database,
                        self.keyspace,
                        self.load.durability.into(),
                        &row.key,
                        source.value(),
                    )
                    .map_err(|error| streaming_failure(&name, error))?;
                    self.count(1, row.key.len() as u64 + value_bytes);
                }
                Ok(Next::End) => break,
                Err(Flaw::Row { place, what }) if self.load.skip_bad => {
                    self.bad_rows.fetch_add(1, Ordering::Relaxed);
                    bad_rows_named += 1;
                    if bad_rows_named <= BAD_ROWS_NAMED {
                        self.progress.remark(&format!("skipped: {name}{place}: {what}"));
                    }
                }
                Err(reason) => {
                    self.commit(&mut batch)?;
                    return Err(failure(&name, path, reason));
                }
            }
        }
        self.commit(&mut batch)
    }

    fn commit(&self, batch: &mut Batch) -> Result<()> {
        batch.commit(self.database, self.keyspace)?;
        self.count(batch.rows_count() as u64, batch.data_bytes() as u64);
        batch.clear();
        Ok(())
    }

    fn count(&self, rows: u64, data_bytes: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.data_bytes.fetch_add(data_bytes, Ordering::Relaxed);
    }

    fn summary(&self, elapsed: Duration) -> Summary {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let rows = self.rows.load(Ordering::Relaxed);
        let input_bytes = self.input_bytes.load(Ordering::Relaxed);
        Summary {
            files: self.load.files.len(),
            rows,
            bad_rows: self.bad_rows.load(Ordering::Relaxed),
            data_bytes: self.data_bytes.load(Ordering::Relaxed),
            input_bytes,
            seconds,
            rows_per_second: rows as f64 / seconds,
            input_bytes_per_second: input_bytes as f64 / seconds,
        }
    }
}

impl Summary {
    fn text(&self) -> String {
        let good = style::GOOD;
        let mut text = format!(
            "{good}loaded{good:#} {} from {} in {}: {} rows/s, {}/s",
            figures::plural(self.rows, "row"),
            figures::plural(self.files as u64, "file"),
            figures::duration(Duration::from_secs_f64(self.seconds)),
            figures::rate(self.rows_per_second),
            figures::bytes(self.input_bytes_per_second as u64)
        );
        if self.bad_rows > 0 {
            let bad = style::BAD;
            text += &format!("\n{bad}skipped{bad:#} {}", figures::plural(self.bad_rows, "malformed row"));
        }
        text
    }
}

fn failure(name: &str, path: &std::path::Path, reason: Flaw) -> Failure {
    match reason {
        Flaw::Row { place: place @ Place::Line { .. }, what } => {
            Failure::bad_input(format!("{name}{place}: {what}")).hint("--skip-bad passes over malformed rows")
        }
        Flaw::Row { place, what } | Flaw::Rest { place, what } => Failure::bad_input(format!("{name}{place}: {what}")),
        Flaw::Io(error) => Failure::file("reading", path, &error),
    }
}

/// A streamed value fails either at its source, which is bad input, or in the database.
fn streaming_failure(name: &str, error: drumlin::Error) -> Failure {
    match error {
        drumlin::Error::Source { source } => Failure::new(Exit::BadInput, format!("{name}: {source}")),
        error => error.into(),
    }
}
