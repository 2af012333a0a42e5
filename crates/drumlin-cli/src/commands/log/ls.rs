//! `drumlin log ls`: lists the logs.

use std::io::{self, BufWriter, Write};

use clap::Args;
use serde::Serialize;

use super::FolderArgs;
use crate::failure::{Failure, Result};
use crate::terminal::{Output, figures, style};
use crate::text::harmless;

/// List the logs
///
/// For each: the indexes of its first and last entry, the number and the bytes of its entries, with what the log needs
/// besides (32 bytes an entry), and the names of its values.
#[derive(Debug, Args)]
pub(super) struct Ls {
    #[command(flatten)]
    folder: FolderArgs,
}

#[derive(Serialize)]
struct Line {
    log: u64,
    first: Option<u64>,
    last: Option<u64>,
    purged: Option<u64>,
    entries: u64,
    bytes: u64,
    /// The names of the values, each with its length in bytes.
    values: Vec<NamedValue>,
}

#[derive(Serialize)]
struct NamedValue {
    name: String,
    bytes: u64,
}

impl Ls {
    pub(super) fn run(&self, output: Output) -> Result<()> {
        self.folder.check_there()?;
        let logs = self.folder.open().map_err(|error| self.folder.failed(error))?;
        let mut stdout = BufWriter::new(anstream::AutoStream::auto(io::stdout()).lock());
        let written = (|| {
            if !output.json() {
                let dim = style::DIM;
                let [log, first, last, entries, bytes] = ["log", "first", "last", "entries", "bytes"];
                writeln!(stdout, "{dim}{log:>20} {first:>20} {last:>20} {entries:>13} {bytes:>11}  values{dim:#}")?;
            }
            for number in logs.numbers() {
                let log = logs.log(number);
                let Some(size) = log.size() else { continue };
                let value =
                    |name: String| NamedValue { bytes: log.value(&name).map_or(0, |value| value.len() as u64), name };
                let line = Line {
                    log: number,
                    first: log.first(),
                    last: log.last(),
                    purged: log.purged(),
                    entries: size.entry_count,
                    bytes: size.live_bytes,
                    values: log.names().into_iter().map(value).collect(),
                };
                match output.json() {
                    true => {
                        serde_json::to_writer(&mut stdout, &line)?;
                        stdout.write_all(b"\n")?;
                    }
                    false => writeln!(stdout, "{}", line.text())?,
                }
            }
            stdout.flush()
        })();
        written.map_err(|error: io::Error| Failure::stdout(&error))
    }
}

impl Line {
    fn text(&self) -> String {
        let index = |index: Option<u64>| index.map_or_else(|| "-".to_owned(), |index| index.to_string());
        let values: Vec<String> = self.values.iter().map(|value| harmless(&value.name).into_owned()).collect();
        format!(
            "{:>20} {:>20} {:>20} {:>13} {:>11}  {}",
            self.log,
            index(self.first),
            index(self.last),
            figures::count(self.entries),
            figures::bytes(self.bytes),
            values.join(", ")
        )
    }
}
