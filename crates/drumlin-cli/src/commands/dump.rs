//! `drumlin dump`: writes rows for other programs and for `drumlin load`.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::{Bound, RangeBounds};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use drumlin::{Database, Gap, KeptSnapshot, Salvaged, Value, ValueReader};
use rustix::fs::{CWD, Mode, OFlags, fsync, openat};
use serde::Serialize;

use super::load::parse_delimiter;
use super::selection::{KeyRange, Selection};
use crate::database::{DatabaseArgs, ReadArgs};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt;
use crate::own_files::OwnFiles;
use crate::rescued::{Rescued, ScratchFolder};
use crate::rows::{self, Format, Layout, RowTooLong, Sink};
use crate::streamed::{self, ValueText};
use crate::terminal::{Output, Progress, figures, style};
use crate::text::{Escaped, Hex, harmless};
use crate::unfinished::Unfinished;

/// Write rows as CSV, TSV, JSON Lines or binary
///
/// `drumlin load` restores rows from the binary form without options, and from the text forms with `--key key --value
/// value`. JSON Lines represents bytes that are not UTF-8 as {"base64": "…"}. With --values or --columns, rows that
/// were loaded from CSV become CSV again. An existing file is kept, unless --force is given. With --all, one file in
/// the binary form gets all keyspaces with their settings; `drumlin load --all` restores them.
#[derive(Debug, Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The file to write; without it, or with -, stdout
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The form [default: from the file's name, else jsonl]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The character between fields [default: a comma; a tab for TSV]
    #[arg(long, value_name = "CHAR", value_parser = parse_delimiter)]
    delimiter: Option<u8>,
    /// Write only the values, as they were loaded; CSV and TSV have a column per field, named after the first row's
    /// fields
    #[arg(long)]
    values: bool,
    /// Write these fields of the values, which must be JSON objects
    #[arg(long, value_name = "FIELD", value_delimiter = ',', conflicts_with = "values")]
    columns: Vec<String>,
    /// Write all rows that `drumlin repair` would save, even if the database does not open; each gap is reported with
    /// its neighbouring keys, and the exit code is then 4
    #[arg(long, conflicts_with = "snapshot")]
    skip_damage: bool,
    /// Write all keyspaces with their settings, in the binary form
    #[arg(long, conflicts_with_all = ["keyspace", "prefix", "from", "to", "limit", "values", "columns"])]
    all: bool,
    /// Replace an existing file
    #[arg(long, requires = "file")]
    force: bool,
    #[command(flatten)]
    selection: Selection,
    /// Write at most this many rows
    #[arg(long, value_name = "ROWS")]
    limit: Option<u64>,
    #[command(flatten)]
    read: ReadArgs,
    /// Keys in the options are in hexadecimal
    #[arg(long)]
    hex: bool,
}

#[derive(Serialize)]
struct Summary {
    rows: u64,
    /// Number of bytes in the keys and values.
    bytes: u64,
    /// Length of the file in bytes, or `None` for a pipe or a device.
    file_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gaps: Option<u64>,
    seconds: f64,
}

impl Dump {
    /// Returns the file to write, or `None` for stdout.
    fn target(&self) -> Option<&Path> {
        self.file.as_deref().filter(|path| *path != Path::new("-"))
    }

    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let by_name = self.target().and_then(Format::of_path);
        let by_delimiter = self.delimiter.map(|_| Format::Csv);
        let format = self.format.or(by_name).or(by_delimiter).unwrap_or(Format::Jsonl);
        self.check_format(format)?;
        let range = self.selection.range(self.hex)?;
        let rows = match self.skip_damage {
            true => {
                let opened = Rescued::open(&self.database, ScratchFolder::temporary())?;
                opened.remark(&self.database, output);
                Contents::Rescued(Box::new(opened))
            }
            false => {
                let database = self.database.open_to_read().map_err(skip_damage_helps)?;
                match self.read.snapshot() {
                    Some(name) => Contents::Kept(database.open_snapshot(name)?),
                    None => Contents::Opened(database),
                }
            }
        };
        let skipped = rows.damage_count();
        let sections = self.sections(&rows)?;
        let Some(path) = self.target() else {
            let stdout = BufWriter::with_capacity(256 << 10, io::stdout().lock());
            let written = self.write_sections(format, stdout, (&rows, &sections, &range), &Progress::none());
            let written = written.map_err(|stopped| stopped.or_else(|error| Failure::stdout(&error)))?;
            return written.outcome(skipped);
        };
        interrupt::watch();
        let start = Instant::now();
        let failed = |error: io::Error| Failure::file("writing", path, &error);
        OwnFiles::of([&self.database.path]).check_output(path)?;
        let target = Target::create(path, self.force)?;
        let progress = Progress::counter(output, "rows written:");
        let buffered = BufWriter::with_capacity(256 << 10, &target.file);
        let written = self.write_sections(format, buffered, (&rows, &sections, &range), &progress);
        progress.finish();
        let written = written.map_err(|stopped| match stopped {
            Stopped::Database(failure) if target.entry.is_some() => failure.hint("no file was made"),
            stopped => stopped.or_else(failed),
        })?;
        let file_bytes = target.finish(self.force).map_err(failed)?;
        let elapsed = start.elapsed();
        let Written { rows, bytes, gaps } = written;
        let gaps = self.skip_damage.then_some(gaps);
        output.print(&Summary { rows, bytes, file_bytes, gaps, seconds: elapsed.as_secs_f64() }, || {
            let size = match file_bytes {
                Some(file_bytes) => format!("a file of {}", figures::bytes(file_bytes)),
                None => format!("{} of keys and values", figures::bytes(bytes)),
            };
            format!("wrote {}, {size}, in {}", figures::plural(rows, "row"), figures::duration(elapsed))
        })?;
        written.outcome(skipped)
    }

    fn check_format(&self, format: Format) -> Result<()> {
        if format == Format::Binary && self.target().is_none() && Output::is_terminal() {
            return Err(Failure::usage("the binary form is not for terminals").hint("give a file, or a pipe"));
        }
        if format == Format::Binary && self.layout() != Layout::Rows {
            return Err(Failure::usage("the binary form has keys and whole values")
                .hint("--values and --columns are for csv, tsv and jsonl"));
        }
        if self.all && format != Format::Binary {
            return Err(Failure::usage("only the binary form has several keyspaces")
                .hint("give a FILE.rows, or --format binary"));
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

    /// Returns the keyspaces to write.
    fn sections(&self, contents: &Contents) -> Result<Vec<Section>> {
        let all = contents.sections();
        if self.all {
            return Ok(all);
        }
        let names = || all.iter().map(|section| section.name.clone()).collect();
        let keyspace = &self.read.keyspace;
        match all.iter().find(|section| section.name == keyspace.name) {
            Some(section) => Ok(vec![section.clone()]),
            None => Err(keyspace.not_found(names())),
        }
    }

    fn write_sections(
        &self,
        format: Format,
        output: impl Write,
        (contents, sections, range): (&Contents, &[Section], &KeyRange),
        progress: &Progress,
    ) -> Result<Written, Stopped> {
        let mut sink = match self.all {
            true => rows::sink_of_keyspaces(output)?,
            false => rows::sink(format, self.delimiter, self.layout(), output)?,
        };
        let mut written = Written { rows: 0, bytes: 0, gaps: 0 };
        for section in sections {
            if self.all {
                sink.begin_keyspace(&section.name, section.page_bytes)?;
            }
            let found = contents.rows(section, range).map_err(|error| Stopped::Database(error.into()))?;
            self.write_rows(sink.as_mut(), found, &mut written, progress)?;
        }
        sink.finish()?;
        if written.rows > 0 {
            for field in sink.missing_fields() {
                progress.remark(&format!("no row that was written has a field {field:?}"));
            }
        }
        Ok(written)
    }

    fn write_rows<'f>(
        &self,
        sink: &mut (dyn Sink + '_),
        found: Box<dyn Iterator<Item = drumlin::Result<Found>> + 'f>,
        written: &mut Written,
        progress: &Progress,
    ) -> Result<(), Stopped> {
        const ROWS_BETWEEN_REPORTS: u64 = 1024;
        let mut text = ValueText::default();
        let mut gaps = Gaps { hex: self.hex, last: None, open: None };
        let limit = self.limit.unwrap_or(u64::MAX);
        for step in found {
            if written.rows >= limit {
                break;
            }
            let (key, row, value_bytes) = match step.map_err(|error| self.not_read(error))? {
                Found::Row(key, mut value) => {
                    let row = match text.whole(&mut value) {
                        Ok(Some(whole)) => sink.write(&key, whole),
                        Ok(None) => sink.write_streamed(&key, value.len(), &mut value),
                        Err(error) => Err(error),
                    };
                    (key, row, value.len())
                }
                Found::Salvaged(key, value) => {
                    let row = sink.write(&key, &value);
                    (key, row, value.len() as u64)
                }
                Found::Gap(gap) => {
                    written.gaps += u64::from(gaps.open(gap));
                    continue;
                }
            };
            gaps.row(&key, progress);
            row.map_err(|error| self.not_written(&key, error))?;
            written.rows += 1;
            written.bytes += key.len() as u64 + value_bytes;
            if written.rows.is_multiple_of(ROWS_BETWEEN_REPORTS) {
                progress.add(ROWS_BETWEEN_REPORTS);
                if interrupt::requested() {
                    let rows = figures::plural(written.rows, "row");
                    let message = format!("interrupted after {rows}: the dump is not complete");
                    return Err(Stopped::Database(Failure::new(Exit::Interrupted, message)));
                }
            }
        }
        gaps.end(progress);
        Ok(())
    }

    fn not_read(&self, error: drumlin::Error) -> Stopped {
        let is_damage = matches!(error, drumlin::Error::Corrupted { .. });
        let failure = Failure::from(error);
        Stopped::Database(match is_damage {
            true => {
                failure.hint("--skip-damage continues after the damage and writes every row that can still be read")
            }
            false => failure,
        })
    }

    /// Classifies an error in writing a row: the value can't be read, the format can't represent the row, or the file
    /// can't be written.
    fn not_written(&self, key: &[u8], error: io::Error) -> Stopped {
        if let Some(error) = streamed::reading(&error) {
            return self.not_read(error);
        }
        if error.kind() != io::ErrorKind::InvalidData {
            return Stopped::File(error);
        }
        let key: &dyn std::fmt::Display = if self.hex { &Hex(key) } else { &Escaped::new(key) };
        let is_too_long = RowTooLong::is_reason(&error);
        Stopped::Database(Failure::bad_input(format!("the row of key '{key}' can't be written: {error}")).hint(
            match is_too_long {
                true => "the binary form takes rows of any length: give a FILE.rows, or --format binary",
                false => {
                    "--columns names the fields to write; without --values and --columns, any value can be written"
                }
            },
        ))
    }
}

/// The file to which rows are written.
struct Target {
    file: File,
    /// The directory entry of a new file; `None` for a pipe or a device, which is written directly.
    entry: Option<Unfinished<OwnedFd>>,
}

impl Target {
    /// Creates a new file, or one that can replace an existing file of that name.
    fn create(path: &Path, replace: bool) -> Result<Target> {
        let failed = |error: io::Error| Failure::file("creating", path, &error);
        let old = fs::metadata(path).ok();
        if old.as_ref().is_some_and(|old| !old.is_file()) {
            return Ok(Target { file: File::options().write(true).open(path).map_err(failed)?, entry: None });
        }
        if !replace && fs::symlink_metadata(path).is_ok() {
            return Err(Failure::other(format!("{} exists already", path.display())).hint("--force replaces it"));
        }
        // Replace the file that a symbolic link points to, not the link.
        let path = if old.is_some() { fs::canonicalize(path).map_err(failed)? } else { path.to_path_buf() };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let directory = openat(CWD, parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let entry = Unfinished::new(directory.map_err(|error| failed(error.into()))?, name.as_bytes());
        let file = entry.create(Mode::from_raw_mode(0o666)).map_err(failed)?;
        if let Some(old) = old {
            // Only root may change the owner of a file.
            let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
            file.set_permissions(old.permissions()).map_err(failed)?;
        }
        Ok(Target { file, entry: Some(entry) })
    }

    /// Syncs the file, then gives it its final name, and returns its length. Pipes and devices have neither a name nor
    /// a length.
    fn finish(self, replace: bool) -> io::Result<Option<u64>> {
        let Some(entry) = self.entry else { return Ok(None) };
        self.file.sync_all()?;
        let directory = entry.directory().try_clone()?;
        entry.finish(replace)?;
        fsync(directory)?;
        Ok(Some(self.file.metadata()?.len()))
    }
}

/// The database to be dumped: opened, as it was in a kept snapshot, or read as far as it is not damaged.
enum Contents {
    Opened(Database),
    Kept(KeptSnapshot),
    Rescued(Box<Rescued>),
}

/// A keyspace to be dumped.
#[derive(Clone)]
struct Section {
    name: String,
    page_bytes: usize,
}

impl Contents {
    fn sections(&self) -> Vec<Section> {
        match self {
            Contents::Opened(database) => {
                let section = |info: drumlin::KeyspaceInfo| Section { name: info.name, page_bytes: info.page_bytes };
                database.keyspaces().into_iter().map(section).collect()
            }
            Contents::Kept(snapshot) => {
                let section = |info: drumlin::KeyspaceInfo| Section { name: info.name, page_bytes: info.page_bytes };
                snapshot.keyspaces().into_iter().map(section).collect()
            }
            Contents::Rescued(opened) => {
                let section =
                    |found: drumlin::RescuedKeyspace| Section { name: found.name, page_bytes: found.page_bytes };
                opened.rescue.keyspaces().into_iter().map(section).collect()
            }
        }
    }

    fn damage_count(&self) -> usize {
        match self {
            Contents::Opened(_) | Contents::Kept(_) => 0,
            Contents::Rescued(opened) => opened.rescue.damage().len(),
        }
    }

    /// Returns the rows of a keyspace in a range, and the gaps that reach into it.
    fn rows<'c>(
        &'c self,
        section: &Section,
        range: &KeyRange,
    ) -> drumlin::Result<Box<dyn Iterator<Item = drumlin::Result<Found>> + 'c>> {
        match self {
            Contents::Opened(database) => {
                let rows = database.existing_keyspace(&section.name)?.range(range.clone());
                Ok(Box::new(rows.readers().map(|row| row.map(|(key, value)| Found::Row(key, value)))))
            }
            Contents::Kept(snapshot) => {
                let rows = snapshot.keyspace(&section.name)?.range(range.clone());
                Ok(Box::new(rows.readers().map(|row| row.map(|(key, value)| Found::Row(key, value)))))
            }
            Contents::Rescued(opened) => {
                let rows = opened.rescue.rows(&section.name)?;
                let range = range.clone();
                let reaches = move |found: &drumlin::Result<Salvaged>| match found {
                    Ok(Salvaged::Row(key, _)) => range.contains(&key[..].to_vec()),
                    Ok(Salvaged::Gap(gap)) => overlap(&range, gap),
                    _ => true,
                };
                Ok(Box::new(rows.filter(reaches).map(|found| found.map(Found::from))))
            }
        }
    }
}

/// Returns `true` if a gap may have keys of the range.
fn overlap(range: &KeyRange, gap: &Gap) -> bool {
    let ends_before = |end: &Bound<Vec<u8>>, start: &Bound<Vec<u8>>| match (end, start) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(end), Bound::Included(start)) => end < start,
        (Bound::Included(end) | Bound::Excluded(end), Bound::Included(start) | Bound::Excluded(start)) => end <= start,
    };
    !ends_before(&gap.end, &range.0) && !ends_before(&range.1, &gap.start)
}

/// A step of a dump: a row, or a gap between rows.
enum Found {
    Row(Value, ValueReader),
    /// A row that was read completely before any part is written, because its value may be damaged near the end.
    Salvaged(Value, Value),
    Gap(Gap),
}

impl From<Salvaged> for Found {
    fn from(salvaged: Salvaged) -> Found {
        match salvaged {
            Salvaged::Row(key, value) => Found::Salvaged(key, value),
            Salvaged::Gap(gap) => Found::Gap(gap),
            _ => unreachable!("there are rows and gaps"),
        }
    }
}

/// The number of rows written, their size in bytes, and the number of gaps between them.
struct Written {
    rows: u64,
    bytes: u64,
    gaps: u64,
}

impl Written {
    /// Returns an error if the dump is incomplete. `skipped` is the number of damaged places that were skipped when the
    /// database was opened.
    fn outcome(&self, skipped: usize) -> Result<()> {
        let message = match (self.gaps, skipped) {
            (0, 0) => return Ok(()),
            (0, _) => "the database is damaged, but no gap was found in these rows".to_owned(),
            (gaps, _) => format!("{} in the rows, because some can't be read", figures::plural(gaps, "gap")),
        };
        Err(Failure::new(Exit::Corrupted, message)
            .hint("every row that can still be read was written; `drumlin check DATABASE` lists the damage"))
    }
}

/// Adds a hint to use `--skip-damage` if the database could not be opened because of damage.
fn skip_damage_helps(failure: Failure) -> Failure {
    match failure.exit() {
        Exit::Corrupted => failure.hint("--skip-damage writes what is left of a keyspace"),
        _ => failure,
    }
}

/// Holds each gap back until the row after it is known, and then reports the gap.
struct Gaps {
    hex: bool,
    last: Option<Value>,
    open: Option<Gap>,
}

impl Gaps {
    /// Begins a gap. Returns `false` if it continues the previous one.
    fn open(&mut self, gap: Gap) -> bool {
        let is_first = self.open.is_none();
        self.open.get_or_insert(gap);
        is_first
    }

    /// Reports the gap before a row, if there is one.
    fn row(&mut self, key: &Value, progress: &Progress) {
        if let Some(gap) = self.open.take() {
            self.name(&gap, Some(key), progress);
        }
        self.last = Some(key.clone());
    }

    /// Reports the gap after the last row, if there is one.
    fn end(&mut self, progress: &Progress) {
        if let Some(gap) = self.open.take() {
            self.name(&gap, None, progress);
        }
    }

    fn name(&self, gap: &Gap, next: Option<&Value>, progress: &Progress) {
        let shown = |key: &Value| if self.hex { Hex(key).to_string() } else { Escaped::new(key).to_string() };
        let between = match (self.last.as_ref().map(shown), next.map(shown)) {
            (Some(last), Some(next)) => format!("between '{last}' and '{next}'"),
            (Some(last), None) => format!("after '{last}'"),
            (None, Some(next)) => format!("before '{next}'"),
            (None, None) => "of all keys".to_owned(),
        };
        let reason = match &gap.error {
            drumlin::Error::Corrupted { what, reason, .. } => format!("{what}: {reason}"),
            error => error.to_string(),
        };
        let bad = style::BAD;
        progress.remark(&format!("{bad}gap{bad:#} {between}: {}", harmless(&reason)));
    }
}

/// The side that failed: the database or the output file.
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
