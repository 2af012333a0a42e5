//! `drumlin prepared`: lists prepared transactions, and commits or aborts one.

use std::ffi::OsString;

use clap::{ArgGroup, Args};
use drumlin::Database;
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::failure::Result;
use crate::terminal::{Output, figures, style};
use crate::text::{Escaped, parse_key};

/// List prepared transactions, or commit or abort one
///
/// A coordinator that commits transactions of several databases prepares each of them first. If it is lost before it
/// has ended them all, their rows stay locked. End a transaction by hand only if you know what the coordinator decided:
/// otherwise the databases may disagree.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("end").args(["commit", "abort"]))]
pub(crate) struct Prepared {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Commit the transaction with this id: text, with \xNN for other bytes
    #[arg(long, value_name = "ID")]
    commit: Option<OsString>,
    /// Abort the transaction with this id
    #[arg(long, value_name = "ID")]
    abort: Option<OsString>,
    /// Ids are hexadecimal digits
    #[arg(long)]
    hex: bool,
}

#[derive(Serialize)]
struct Line {
    id: String,
    age_seconds: f64,
    rows: u64,
}

#[derive(Serialize)]
struct Ended {
    id: String,
    committed: bool,
}

impl Prepared {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        match (&self.commit, &self.abort) {
            (Some(id), _) => self.end(output, id, true),
            (_, Some(id)) => self.end(output, id, false),
            (None, None) => self.list(output, &self.database.open_to_read()?),
        }
    }

    fn list(&self, output: Output, database: &Database) -> Result<()> {
        let found = database.prepared()?;
        let shown = |id: &[u8]| match self.hex {
            true => id.iter().map(|byte| format!("{byte:02x}")).collect(),
            false => Escaped::new(id).to_string(),
        };
        if output.json() {
            return found.iter().try_for_each(|found| {
                let (age_seconds, rows) = (found.age.as_secs_f64(), found.row_count);
                output.print_json(&Line { id: shown(&found.id), age_seconds, rows })
            });
        }
        let dim = style::DIM;
        output.print_text(&format!("{dim}        rows           age  id{dim:#}"))?;
        for found in &found {
            let (rows, age) = (figures::count(found.row_count), figures::duration(found.age));
            output.print_text(&format!("{rows:>12}  {age:>12}  {}", shown(&found.id)))?;
        }
        Ok(())
    }

    fn end(&self, output: Output, id: &OsString, commits: bool) -> Result<()> {
        let id = parse_key(id, self.hex)?;
        let database = self.database.open()?;
        match commits {
            true => drop(database.commit_prepared(&id)?),
            false => database.abort_prepared(&id)?,
        }
        database.close()?;
        let id = Escaped::new(&id).to_string();
        let text = format!("{} {id}", if commits { "committed" } else { "aborted" });
        output.print(&Ended { id, committed: commits }, || text)
    }
}
