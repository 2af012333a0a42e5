//! `drumlin count`: how many rows there are.

use clap::Args;
use serde::Serialize;

use super::selection::Selection;
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::failure::Result;
use crate::terminal::Output;

/// Count rows
///
/// All rows of a keyspace, or those of a prefix or a range. The files of a directory that `index` stored are counted
/// by -k files --prefix DIRECTORY/; `drumlin du` tells their sizes too.
#[derive(Debug, Args)]
pub(crate) struct Count {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys are hexadecimal digits
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
        let database = self.database.open_to_read()?;
        let rows = self.keyspace.existing(&database)?.count(range)?;
        output.print(&Counted { rows }, || rows.to_string())
    }
}
