//! `drumlin load --all`: restores all keyspaces that `drumlin dump --all` has written, with their settings.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use drumlin::{BulkLoad, Database, KeyspaceOptions};
use serde::Serialize;

use super::{Load, input};
use crate::failure::{Failure, Result};
use crate::own_files::OwnFiles;
use crate::rows::{Choice, Format, Next, Row, SourceError};
use crate::terminal::{Output, Progress, figures, style};
use crate::{interrupt, rows};

#[derive(Default, Serialize)]
struct Summary {
    files: usize,
    keyspaces: u64,
    rows: u64,
    seconds: f64,
}

impl Load {
    /// Loads files with all keyspaces of a database. A keyspace that exists keeps its settings, and its rows unless the
    /// file has rows with the same keys.
    pub(super) fn run_all(&self, output: Output) -> Result<()> {
        let bytes_total = input::bytes_total(&self.files)?;
        for path in &self.files {
            if self.format_of(path)? != Format::Binary {
                let message = format!("{}: only the binary form has several keyspaces", input::name(path));
                return Err(Failure::usage(message).hint("--format binary if its name doesn't end in .rows"));
            }
        }
        interrupt::watch();
        let database = self.database.open_or_create()?;
        let progress = match bytes_total {
            Some(total) => Progress::bytes(output, "loading", total),
            None => Progress::counter(output, "bytes read:"),
        };
        let own = OwnFiles::of([&self.database.path]);
        let start = Instant::now();
        let mut summary = Summary { files: self.files.len(), ..Summary::default() };
        let loaded = self.files.iter().try_for_each(|path| load_file(path, &database, &own, &progress, &mut summary));
        progress.finish();
        let closed = database.close();
        loaded?;
        closed?;
        summary.seconds = start.elapsed().as_secs_f64();
        output.print(&summary, || {
            let good = style::GOOD;
            let (rows, keyspaces) =
                (figures::plural(summary.rows, "row"), figures::plural(summary.keyspaces, "keyspace"));
            let elapsed = figures::duration(Duration::from_secs_f64(summary.seconds));
            format!("{good}loaded{good:#} {rows} of {keyspaces} in {elapsed}")
        })
    }
}

/// Loads a file. The rows of each keyspace are stored in one step, after the last of them.
fn load_file(
    path: &Path,
    database: &Database,
    own: &OwnFiles,
    progress: &Progress,
    summary: &mut Summary,
) -> Result<()> {
    let name = input::name(path);
    let (input_bytes, compressed_files) = (AtomicU64::new(0), AtomicU64::new(0));
    let input = input::open(path, own, progress, &input_bytes, &compressed_files)?;
    let choice = Choice { key: Vec::new(), value: None, header: false, delimiter: None, name: Vec::new() };
    let mut source = rows::source(Format::Binary, input, choice);
    let mut load: Option<BulkLoad> = None;
    let mut row = Row::default();
    loop {
        interrupt::check()?;
        let next = source.next(&mut row).map_err(|error| match error {
            SourceError::Io(error) => Failure::input(path, &error),
            SourceError::Row { place, what }
            | SourceError::Rest { place, what }
            | SourceError::Header { place, what, .. } => Failure::bad_input(format!("{name}{place}: {what}")),
        })?;
        match (next, &mut load) {
            (Next::Keyspace | Next::End, _) => {
                if let Some(load) = load.take() {
                    summary.rows += load.finish()?.rows;
                    summary.keyspaces += 1;
                }
                if next == Next::End {
                    return Ok(());
                }
                let (keyspace, page_bytes) = source.keyspace();
                database.keyspace_with(keyspace, KeyspaceOptions::new().page_bytes(page_bytes))?;
                load = Some(database.bulk_load(keyspace)?);
            }
            (_, None) => {
                let message = format!("{name} has rows of one keyspace");
                return Err(Failure::bad_input(message).hint("load it without --all, and with -k NAME"));
            }
            (Next::Row, Some(load)) => load.insert(&row.key, &row.value)?,
            (Next::Streamed, Some(load)) => match load.insert_from(&row.key, source.value()) {
                Err(drumlin::Error::Source { source }) => {
                    return Err(Failure::bad_input(format!("{name}: {source}")));
                }
                inserted => drop(inserted?),
            },
        }
    }
}
