//! `drumlin repair`: saves what is left of a damaged database in a new one.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::failure::{Exit, Failure, Result};
use crate::rescued::{Rescued, ScratchFolder};
use crate::terminal::{Output, Progress, figures, style};
use crate::text::{JsonBytes, harmless, shell_word};

/// Save what is left of a damaged database in a new one
///
/// Reads every sound leaf, whatever is damaged around it: inner nodes, page tables, the catalogue, both superblocks.
/// Then applies the log up to the first record that is lost. Names, page sizes and prepared transactions come over. The
/// damaged database is only read. Ranges of keys whose rows are lost are listed, and the exit code is then 4.
#[derive(Debug, Args)]
pub(crate) struct Repair {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The folder of the new database, which must not exist, or be empty
    #[arg(value_name = "SAVED", required_unless_present = "dry_run")]
    saved: Option<PathBuf>,
    /// Only count the rows that would be saved, and list those that are lost
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Report {
    rows: u64,
    keyspaces: Vec<Keyspace>,
    /// Commits of the log that the rows include.
    log_records: u64,
    prepared: u64,
    lost_prepared: u64,
    lost_pages: u64,
    damage: Vec<String>,
    seconds: f64,
    #[serde(skip)]
    saved: Option<PathBuf>,
}

#[derive(Serialize)]
struct Keyspace {
    name: String,
    rows: u64,
    lost: Vec<Lost>,
    unlisted: u64,
}

/// Keys whose rows are lost: at or above `from`, and below `below`.
#[derive(Serialize)]
struct Lost {
    from: Option<Bytes>,
    below: Option<Bytes>,
    #[serde(skip)]
    text: String,
}

/// A key that owns its bytes.
struct Bytes(Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        JsonBytes(&self.0).serialize(serializer)
    }
}

/// The maximum number of lost ranges listed in the text output. The JSON lists them all.
const LOST_SHOWN_MAX: usize = 20;

impl Repair {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let start = Instant::now();
        let saved = self.saved.as_deref().filter(|_| !self.dry_run);
        if let Some(saved) = saved {
            let is_free = match std::fs::read_dir(saved) {
                Ok(mut entries) => entries.next().is_none(),
                Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            };
            if !is_free {
                let message = format!("{} is not an empty folder", saved.display());
                return Err(Failure::other(message).hint("give the name of a new folder"));
            }
        }
        let scratch = saved.map_or_else(ScratchFolder::temporary, ScratchFolder::beside);
        let incomplete = saved.map(|saved| (saved.to_owned(), shell_word(saved)));
        scratch.remove_on_interrupt(output.json(), move || match &incomplete {
            Some((saved, word)) if saved.exists() => format!("{word} is incomplete: remove it before the next attempt"),
            _ => "nothing was saved; give the command again".to_owned(),
        });
        let spinner = Progress::spinner(output, "reading");
        let opened = Rescued::open(&self.database, scratch);
        spinner.finish();
        let ended = |failure: Failure| match saved {
            Some(saved) if saved.exists() => failure
                .hint_if_full(format!("free space there, and remove {} before the next attempt", shell_word(saved))),
            Some(_) => failure.hint_if_full("free space there, and give the command again"),
            None => failure.hint_if_full("free space there, or set TMPDIR to a folder on another disk"),
        };
        let opened = opened.map_err(ended)?;
        let spinner = Progress::spinner(output, if saved.is_some() { "saving" } else { "counting" });
        let repaired = match saved {
            Some(saved) => opened.rescue.repair(saved),
            None => opened.rescue.count(),
        };
        spinner.finish();
        let repaired = repaired.map_err(|error| ended(error.into()))?;
        let lost = |keys: drumlin::LostKeys| Lost {
            text: keys.to_string(),
            from: keys.lower.map(Bytes),
            below: keys.upper.map(Bytes),
        };
        let keyspaces = repaired.keyspaces.into_iter().map(|keyspace| Keyspace {
            name: keyspace.name,
            rows: keyspace.rows,
            lost: keyspace.lost.into_iter().map(lost).collect(),
            unlisted: keyspace.unlisted,
        });
        let report = Report {
            rows: repaired.rows,
            keyspaces: keyspaces.collect(),
            log_records: repaired.log_records,
            prepared: repaired.prepared,
            lost_prepared: repaired.lost_prepared,
            lost_pages: opened.rescue.lost_pages(),
            damage: opened.rescue.damage().iter().map(ToString::to_string).collect(),
            seconds: start.elapsed().as_secs_f64(),
            saved: saved.map(PathBuf::from),
        };
        output.print(&report, || report.text())?;
        if report.is_complete() { Ok(()) } else { Err(Failure::silent(Exit::Corrupted)) }
    }
}

impl Report {
    fn is_complete(&self) -> bool {
        let has_lost = |keyspace: &Keyspace| !keyspace.lost.is_empty();
        self.damage.is_empty() && self.lost_prepared == 0 && !self.keyspaces.iter().any(has_lost)
    }

    fn text(&self) -> String {
        let bad = style::BAD;
        let rows = figures::plural(self.rows, "row");
        let of_keyspaces = figures::plural(self.keyspaces.len() as u64, "keyspace");
        let mut text = match &self.saved {
            Some(saved) => format!("saved {rows} of {of_keyspaces} in {}", harmless(&shell_word(saved))),
            None => format!("{rows} of {of_keyspaces} can be saved"),
        };
        if self.log_records > 0 {
            text += &format!("\n{} of the log are in them", figures::plural(self.log_records, "commit"));
        }
        for keyspace in &self.keyspaces {
            text += &format!("\n{:>14}  {}", figures::count(keyspace.rows), harmless(&keyspace.name));
        }
        for damage in self.damage.iter().take(LOST_SHOWN_MAX) {
            text += &format!("\n{bad}damaged{bad:#}: {}", harmless(damage));
        }
        let lost = || self.keyspaces.iter().flat_map(|keyspace| &keyspace.lost);
        for lost in lost().take(LOST_SHOWN_MAX) {
            text += &format!("\n{bad}lost{bad:#}: {}", harmless(&lost.text));
        }
        let listed_count = lost().count() as u64;
        let unlisted: u64 = self.keyspaces.iter().map(|keyspace| keyspace.unlisted).sum();
        let hidden_count = listed_count.saturating_sub(LOST_SHOWN_MAX as u64) + unlisted;
        if hidden_count > 0 {
            text += &format!("\n  and {hidden_count} more ranges; --json lists {listed_count}");
        }
        if self.prepared + self.lost_prepared > 0 {
            text += &format!("\n{}", figures::plural(self.prepared, "prepared transaction"));
        }
        if self.lost_prepared > 0 {
            text += &format!("\n{bad}lost{bad:#}: {}", figures::plural(self.lost_prepared, "prepared transaction"));
        }
        text
    }
}
