//! `drumlin keyspaces`: lists the keyspaces.

use clap::Args;
use drumlin::{Database, KeyspaceInfo};
use serde::Serialize;

use super::count::counting;
use crate::database::DatabaseArgs;
use crate::failure::Result;
use crate::terminal::{Output, figures, style};
use crate::text::harmless;

/// List the keyspaces
///
/// Shows the number of pages, including those of large values, and the compressed bytes that they occupy in the data
/// file.
#[derive(Debug, Args)]
pub(crate) struct Keyspaces {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Count the rows of each keyspace
    #[arg(long)]
    count: bool,
    /// Show how much space dropping each keyspace would free: its pages, except for those that clones share
    #[arg(long)]
    exclusive: bool,
}

#[derive(Serialize)]
struct Line {
    name: String,
    id: u32,
    page_bytes: usize,
    pages: u64,
    disk_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exclusive_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
}

impl Keyspaces {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let lines = match self.count {
            true => counting(&self.database, output, |database| self.lines(database))?,
            false => self.lines(&self.database.open_to_read()?)?,
        };
        if output.json() {
            return lines.iter().try_for_each(|line| output.print_json(line));
        }
        let width = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).max("keyspace".len());
        let dim = style::DIM;
        let rows = if self.count { "        rows" } else { "" };
        let exclusive = if self.exclusive { "    exclusive" } else { "" };
        output.print_text(&format!(
            "{dim}{:width$}  page bytes       pages      on disk{exclusive}{rows}{dim:#}",
            "keyspace"
        ))?;
        for line in &lines {
            let exclusive = line.exclusive_bytes.map(|bytes| format!("{:>13}", figures::bytes(bytes)));
            let exclusive = exclusive.unwrap_or_default();
            let rows = line.rows.map(|rows| format!("{:>12}", figures::count(rows))).unwrap_or_default();
            output.print_text(&format!(
                "{:width$}  {:>10}  {:>10}  {:>11}{exclusive}{rows}",
                harmless(&line.name),
                figures::count(line.page_bytes as u64),
                figures::count(line.pages),
                figures::bytes(line.disk_bytes)
            ))?;
        }
        Ok(())
    }

    fn lines(&self, database: &Database) -> Result<Vec<Line>> {
        let line = |info: KeyspaceInfo| {
            let keyspace = database.existing_keyspace(&info.name)?;
            Ok(Line {
                disk_bytes: keyspace.disk_bytes()?,
                exclusive_bytes: self.exclusive.then(|| keyspace.exclusive_bytes()).transpose()?,
                rows: self.count.then(|| keyspace.count(..)).transpose()?,
                name: info.name,
                id: info.id.0,
                page_bytes: info.page_bytes,
                pages: info.page_count,
            })
        };
        database.keyspaces().into_iter().map(line).collect()
    }
}
