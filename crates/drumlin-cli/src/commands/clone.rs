//! `drumlin clone`: clones a keyspace.

use clap::Args;
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::failure::Result;
use crate::terminal::Output;

/// Clone a keyspace
///
/// The clone has the rows that the keyspace has now, and each of the two is written independently of the other. No row
/// is copied, however many there are: a page takes space twice once one of them changes it.
#[derive(Debug, Args)]
pub(crate) struct Clone {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The keyspace
    from: String,
    /// The name of its clone
    to: String,
}

#[derive(Serialize)]
struct Cloned<'c> {
    from: &'c str,
    to: &'c str,
    timestamp: u64,
}

impl Clone {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let Clone { from, to, .. } = self;
        let database = self.database.open()?;
        let timestamp = database.clone_keyspace(from, to)?.0;
        database.close()?;
        output.print(&Cloned { from, to, timestamp }, || format!("cloned keyspace {from:?} as {to:?}"))
    }
}
