//! `drumlin changes`: prints the commits that a database keeps, one per line.

use std::io::{self, BufWriter, Write};

use clap::Args;
use drumlin::{Change, Commit, FolderChanges, OldValue, Timestamp};
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::failure::{Failure, Result};
use crate::text::JsonBytes;

/// Print the changes that commits made, as lines of JSON
///
/// Prints one line for each commit after --since, in order: its timestamp, its time, and its changes. The database must
/// keep its changes: a program turns that on with Config::keep_changes. The command reads files of their own, so it
/// works while a program has the database open. To go on after an interruption, pass the timestamp of the last line to
/// --since. Rows of bulk loads and of transactions that outgrew memory are printed as their number, and values over 64
/// KiB as their length.
#[derive(Debug, Args)]
pub(crate) struct Changes {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Begin after the commit with this timestamp
    #[arg(long, value_name = "TIMESTAMP", default_value_t = 0)]
    since: u64,
    /// Wait for further commits when all have been printed
    #[arg(long)]
    follow: bool,
    /// Print only changes of this keyspace; may be repeated
    #[arg(long = "keyspace", short = 'k', value_name = "NAME")]
    keyspaces: Vec<String>,
    /// Print at most this many commits
    #[arg(long, value_name = "COMMITS")]
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Line<'c> {
    timestamp: u64,
    time_ms: u128,
    changes: Vec<ChangeWithOld<'c>>,
}

/// A change, and the value that its row had before if it was kept.
#[derive(Serialize)]
struct ChangeWithOld<'c> {
    #[serde(flatten)]
    change: ChangeLine<'c>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old: Option<OldLine<'c>>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum OldLine<'c> {
    Absent,
    Value(JsonBytes<'c>),
    Large {
        length: u64,
    },
    /// A kind of old value that this version of the command does not know.
    Unknown,
}

impl<'c> OldLine<'c> {
    fn of(old: OldValue<'c>) -> OldLine<'c> {
        match old {
            OldValue::Absent => OldLine::Absent,
            OldValue::Value(value) => OldLine::Value(JsonBytes(value)),
            OldValue::Large { length } => OldLine::Large { length },
            _ => OldLine::Unknown,
        }
    }
}

/// A change as it is printed.
#[derive(Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
enum ChangeLine<'c> {
    Put {
        keyspace: &'c str,
        key: JsonBytes<'c>,
        value: JsonBytes<'c>,
    },
    PutLarge {
        keyspace: &'c str,
        key: JsonBytes<'c>,
        length: u64,
    },
    Remove {
        keyspace: &'c str,
        key: JsonBytes<'c>,
    },
    RemoveRange {
        keyspace: &'c str,
        from: JsonBytes<'c>,
        to: Option<JsonBytes<'c>>,
    },
    Loaded {
        keyspace: &'c str,
        rows: u64,
        from: JsonBytes<'c>,
        to: JsonBytes<'c>,
    },
    Create {
        keyspace: &'c str,
    },
    Drop {
        keyspace: &'c str,
    },
    Rename {
        keyspace: &'c str,
        to: &'c str,
    },
    Clone {
        keyspace: &'c str,
        to: &'c str,
        as_of: u64,
    },
    /// A kind of change that this version of the command does not know.
    Unknown,
}

impl<'c> ChangeLine<'c> {
    fn of(change: &Change<'c>) -> ChangeLine<'c> {
        match *change {
            Change::Put { keyspace, key, value } => {
                ChangeLine::Put { keyspace, key: JsonBytes(key), value: JsonBytes(value) }
            }
            Change::PutLarge { keyspace, key, length, .. } => {
                ChangeLine::PutLarge { keyspace, key: JsonBytes(key), length }
            }
            Change::Remove { keyspace, key } => ChangeLine::Remove { keyspace, key: JsonBytes(key) },
            Change::RemoveRange { keyspace, lower, upper } => {
                ChangeLine::RemoveRange { keyspace, from: JsonBytes(lower), to: upper.map(JsonBytes) }
            }
            Change::Loaded { keyspace, rows, first_key, last_key, .. } => {
                ChangeLine::Loaded { keyspace, rows, from: JsonBytes(first_key), to: JsonBytes(last_key) }
            }
            Change::Create { keyspace } => ChangeLine::Create { keyspace },
            Change::Drop { keyspace } => ChangeLine::Drop { keyspace },
            Change::Rename { from, to } => ChangeLine::Rename { keyspace: from, to },
            Change::Clone { from, to, as_of } => ChangeLine::Clone { keyspace: from, to, as_of: as_of.0 },
            _ => ChangeLine::Unknown,
        }
    }
}

impl Changes {
    pub(crate) fn run(&self) -> Result<()> {
        self.database.check_there()?;
        let mut changes = self.database.config().changes(&self.database.path, Timestamp(self.since))?;
        if !self.keyspaces.is_empty() {
            changes = changes.keyspaces(self.keyspaces.iter().cloned());
        }
        let mut stdout = BufWriter::with_capacity(256 << 10, io::stdout().lock());
        let mut left = self.limit.unwrap_or(usize::MAX);
        while left > 0
            && let Some(commit) = self.next(&mut changes, &mut stdout)?
        {
            write(&commit, &mut stdout).map_err(|error| Failure::stdout(&error))?;
            left -= 1;
        }
        stdout.flush().map_err(|error| Failure::stdout(&error))
    }

    /// Returns the next commit. Before it waits for one, it prints all that were read.
    fn next(&self, changes: &mut FolderChanges, stdout: &mut impl Write) -> Result<Option<Commit>> {
        if let Some(commit) = changes.ready() {
            return Ok(Some(commit?));
        }
        if !self.follow {
            return Ok(None);
        }
        stdout.flush().map_err(|error| Failure::stdout(&error))?;
        Ok(changes.next().transpose()?)
    }
}

fn write(commit: &Commit, stdout: &mut impl Write) -> io::Result<()> {
    let changes = commit.changes_with_old_values();
    let changes =
        changes.map(|(change, old)| ChangeWithOld { change: ChangeLine::of(&change), old: old.map(OldLine::of) });
    let changes = changes.collect();
    let line = Line { timestamp: commit.timestamp().0, time_ms: commit.time().as_millis(), changes };
    serde_json::to_writer(&mut *stdout, &line)?;
    stdout.write_all(b"\n")
}
