//! `drumlin snapshots`: lists kept snapshots, takes one or drops one.

use clap::{ArgGroup, Args};
use drumlin::Database;
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::failure::Result;
use crate::terminal::{Output, figures, style};
use crate::text::harmless;

/// List kept snapshots, take one or drop one
///
/// A kept snapshot is the state of all keyspaces at one moment. It lasts until it is dropped, and takes the space of
/// the pages that have changed since. The list says how much dropping each snapshot would free.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("change").args(["keep", "drop"]))]
pub(crate) struct Snapshots {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Keep a snapshot under this name
    #[arg(long, value_name = "NAME")]
    keep: Option<String>,
    /// Drop the snapshot with this name
    #[arg(long, value_name = "NAME")]
    drop: Option<String>,
}

#[derive(Serialize)]
struct Line<'l> {
    name: &'l str,
    timestamp: u64,
    age_seconds: f64,
    exclusive_bytes: u64,
}

#[derive(Serialize)]
struct Changed<'c> {
    name: &'c str,
    kept: bool,
}

impl Snapshots {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let (name, kept) = match (&self.keep, &self.drop) {
            (Some(name), _) => (name, true),
            (_, Some(name)) => (name, false),
            (None, None) => return list(output, &self.database.open_to_read()?),
        };
        let database = self.database.open()?;
        match kept {
            true => drop(database.keep_snapshot(name)?),
            false => database.drop_snapshot(name)?,
        }
        database.close()?;
        output.print(&Changed { name, kept }, || format!("{} {name:?}", if kept { "kept" } else { "dropped" }))
    }
}

fn list(output: Output, database: &Database) -> Result<()> {
    let found = database.kept_snapshots();
    if output.json() {
        return found.iter().try_for_each(|found| {
            output.print_json(&Line {
                name: &found.name,
                timestamp: found.timestamp.0,
                age_seconds: found.age.as_secs_f64(),
                exclusive_bytes: found.exclusive_bytes,
            })
        });
    }
    if found.is_empty() {
        output.remark("no snapshots are kept");
        return Ok(());
    }
    let dim = style::DIM;
    output.print_text(&format!("{dim}   timestamp           age  space freed by dropping it  name{dim:#}"))?;
    for found in &found {
        let (age, bytes) = (figures::duration(found.age), figures::bytes(found.exclusive_bytes));
        let timestamp = figures::count(found.timestamp.0);
        output.print_text(&format!("{timestamp:>12}  {age:>12}  {bytes:>26}  {}", harmless(&found.name)))?;
    }
    Ok(())
}
