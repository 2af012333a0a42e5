//! `drumlin check`: reads and verifies everything.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use drumlin::{CheckProgress, CheckReport, Error};
use serde::{Serialize, Serializer};

use crate::database::DatabaseArgs;
use crate::failure::{Exit, Failure, Result};
use crate::rescued::{Rescued, ScratchFolder};
use crate::terminal::{Output, Progress, figures, style};
use crate::text::{JsonBytes, harmless, shell_word};

/// Read and verify every page, table and log record
///
/// Lists each damaged place and the data lost there, and exits with code 4. Then also counts the rows that `drumlin
/// repair` would save. Also lists the repairs that opening the database made. If the database is too damaged to be
/// opened, it is examined as it is and nothing is written to it.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    database: DatabaseArgs,
}

#[derive(Serialize)]
struct Report {
    sound: bool,
    opens: bool,
    keyspaces: u64,
    pages: u64,
    rows: u64,
    /// The rows that `repair` saves, if the database is damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    saved_rows: Option<u64>,
    extent_bytes: u64,
    log_records: u64,
    checkpoint: u64,
    last: u64,
    seconds: f64,
    corruption: Vec<Corruption>,
    unlisted: u64,
    repaired: Vec<Corruption>,
    #[serde(skip)]
    path: PathBuf,
}

/// The maximum number of damaged places listed in the text output. A person needs only the kinds and the total; the
/// JSON lists them all.
const DAMAGE_SHOWN_MAX: usize = 20;

#[derive(Serialize)]
struct Corruption {
    file: String,
    what: String,
    reason: String,
    cost: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<LostKeys>,
}

/// The keys of lost rows: at or above `from`, and below `below`.
#[derive(Serialize)]
struct LostKeys {
    keyspace: String,
    from: Option<Bytes>,
    below: Option<Bytes>,
}

/// A key that owns its bytes.
struct Bytes(Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        JsonBytes(&self.0).serialize(serializer)
    }
}

impl From<drumlin::LostKeys> for LostKeys {
    fn from(keys: drumlin::LostKeys) -> LostKeys {
        LostKeys { keyspace: keys.keyspace, from: keys.lower.map(Bytes), below: keys.upper.map(Bytes) }
    }
}

impl From<drumlin::Corruption> for Corruption {
    fn from(corruption: drumlin::Corruption) -> Corruption {
        let drumlin::Corruption { file, what, reason, cost, keys, .. } = corruption;
        Corruption { file: file.display().to_string(), what, reason, cost, keys: keys.map(LostKeys::from) }
    }
}

impl Check {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        self.database.check_there()?;
        let start = Instant::now();
        let bar = OnceCell::new();
        let progress = |progress: CheckProgress| {
            let bar = bar.get_or_init(|| Progress::items(output, "pages checked", progress.pages_total));
            bar.set_total(progress.pages_total);
            bar.set(progress.pages_done);
        };
        let (found, refused) = match self.database.open_to_examine(output) {
            Ok(database) => (database.check_with(progress), None),
            Err(refused @ Error::Corrupted { .. }) => {
                (self.database.config().examine_with(&self.database.path, progress), Some(refused))
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(bar) = bar.get() {
            bar.finish();
        }
        let opens = refused.is_none();
        let (found, refused) = match found {
            // List the damage here instead of failing with the hint to run `drumlin check`.
            Err(error @ Error::Corrupted { .. }) => (CheckReport::default(), Some(error)),
            found => (found?, refused),
        };
        let mut corruption: Vec<Corruption> = found.corruption.into_iter().map(Corruption::from).collect();
        if let Some(Error::Corrupted { path, what, reason }) = refused
            && corruption.is_empty()
        {
            let cost = "the database can't be opened".to_owned();
            corruption.push(Corruption { file: path.display().to_string(), what, reason, cost, keys: None });
        }
        let saved_rows = match corruption.is_empty() {
            true => None,
            false => self.count_saved(output),
        };
        let elapsed = start.elapsed();
        let report = Report {
            sound: corruption.is_empty(),
            opens,
            keyspaces: found.keyspaces,
            pages: found.pages,
            rows: found.rows,
            saved_rows,
            extent_bytes: found.extent_bytes,
            log_records: found.log_records,
            checkpoint: found.checkpoint.0,
            last: found.last.0,
            seconds: elapsed.as_secs_f64(),
            corruption,
            unlisted: found.unlisted,
            repaired: found.repaired.into_iter().map(Corruption::from).collect(),
            path: self.database.path.clone(),
        };
        output.print(&report, || report.text(elapsed))?;
        if report.sound { Ok(()) } else { Err(Failure::silent(Exit::Corrupted)) }
    }
}

impl Check {
    /// Counts the rows that `repair` would save. Returns `None` if they can't be read either.
    fn count_saved(&self, output: Output) -> Option<u64> {
        let spinner = Progress::spinner(output, "counting the rows that can be saved");
        let counted = Rescued::open(&self.database, ScratchFolder::temporary()).and_then(|opened| {
            let counted = opened.rescue.count()?;
            Ok(counted.rows)
        });
        spinner.finish();
        let not_counted =
            |failure: Failure| output.remark(&format!("counting the rows that can be saved: {}", failure.message()));
        counted.map_err(not_counted).ok()
    }
}

impl Report {
    fn text(&self, elapsed: Duration) -> String {
        let read = format!(
            "{}, {}, {} and {} in {}",
            figures::plural(self.rows, "row"),
            figures::plural(self.pages, "page"),
            figures::bytes(self.extent_bytes),
            figures::plural(self.log_records, "log record"),
            figures::duration(elapsed)
        );
        let (good, bad) = (style::GOOD, style::BAD);
        let mut text = match (self.sound, self.opens) {
            (true, _) => format!("{good}sound{good:#}: {read}"),
            (false, true) => format!("{bad}damaged{bad:#}: {read}"),
            (false, false) => format!("{bad}damaged, and can't be opened{bad:#}: {read}"),
        };
        for corruption in self.corruption.iter().take(DAMAGE_SHOWN_MAX) {
            text += &format!(
                "\n  {} in {}: {}\n    lost: {}",
                corruption.what, corruption.file, corruption.reason, corruption.cost
            );
        }
        let hidden_count = self.corruption.len().saturating_sub(DAMAGE_SHOWN_MAX) as u64 + self.unlisted;
        if hidden_count > 0 {
            text += &format!("\n  and {hidden_count} more; --json lists {}", self.corruption.len());
        }
        for repaired in &self.repaired {
            text += &format!("\n  repaired by opening it: {} in {}: {}", repaired.what, repaired.file, repaired.reason);
        }
        if !self.opens {
            text += &self.remains();
        }
        if let Some(rows) = self.saved_rows {
            let path = shell_word(&self.path);
            text += &format!("\n{} can be saved, those included that only the log has:", figures::plural(rows, "row"));
            text += &format!("\n  drumlin repair {} SAVED", harmless(&path));
        }
        text
    }

    /// Describes what is left of a database that can't be opened, and what the user can do about it.
    fn remains(&self) -> String {
        let mut text = format!(
            "\nsound: {} in leaves of {}",
            figures::plural(self.rows, "row"),
            figures::plural(self.keyspaces, "keyspace")
        );
        if self.last > 0 {
            text += &format!(
                "; the checkpoint ends with commit {}, and the log has\n  {} after it, up to commit {}",
                figures::count(self.checkpoint),
                figures::plural(self.log_records, "sound record"),
                figures::count(self.last)
            );
        }
        text += "\nNothing was written. Restore missing or truncated files, if there are copies of them from";
        text += "\nexactly this state; otherwise restore the database from a backup. Keep this folder";
        text += "\nuntil that is done.";
        text
    }
}
