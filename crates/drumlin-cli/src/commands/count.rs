//! `drumlin count`: counts rows.

use clap::Args;
use drumlin::Database;
use serde::Serialize;

use super::selection::Selection;
use crate::database::{DatabaseArgs, ReadArgs};
use crate::failure::Result;
use crate::terminal::{Output, figures};

/// Count rows
///
/// Counts all rows of a keyspace, or those with a prefix or in a range. The first count reads the rows. If the database
/// can be written to, the counts are kept, and later counts read next to nothing. To count the files below a directory
/// that `index` stored, use -k files --prefix DIRECTORY/; `drumlin du` also sums their sizes.
#[derive(Debug, Args)]
pub(crate) struct Count {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    read: ReadArgs,
    /// Keys are in hexadecimal
    #[arg(long)]
    hex: bool,
}

/// The output of `count`, and of `scan --count`.
#[derive(Serialize)]
pub(super) struct Counted {
    pub(super) rows: u64,
}

impl Count {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let range = self.selection.range(self.hex)?;
        let rows = counting(&self.database, output, |database| Ok(self.read.existing(database)?.count(range)?))?;
        output.print(&Counted { rows }, || rows.to_string())
    }
}

/// If the counts can't be stored, the command reports that only if the count read more bytes than this.
const READ_BYTES_UNREPORTED_MAX: u64 = 1_000_000;

/// Opens a database and counts in it. Stores the counts for later commands. If that is impossible, reports the reason
/// and how much was read.
pub(super) fn counting<T>(
    database: &DatabaseArgs,
    output: Output,
    count: impl FnOnce(&Database) -> Result<T>,
) -> Result<T> {
    let (database, not_kept) = database.open_to_count()?;
    let before = database.stats().device_read_bytes;
    let counted = count(&database)?;
    let read_bytes = database.stats().device_read_bytes - before;
    match not_kept {
        None => database.close()?,
        Some(reason) if read_bytes > READ_BYTES_UNREPORTED_MAX => {
            let read = figures::bytes(read_bytes);
            output.remark(&format!(
                "counting read {read}, and the next count will too, because counts can't be kept: {reason}"
            ));
        }
        Some(_) => {}
    }
    Ok(counted)
}
