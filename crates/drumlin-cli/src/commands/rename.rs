//! `drumlin rename`: gives a keyspace another name.

use clap::Args;
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::failure::Result;
use crate::terminal::Output;

/// Give a keyspace another name
///
/// Its rows stay as they are, however many there are. The new name must not be in use, except with --swap, which
/// exchanges the names of two keyspaces in one step.
#[derive(Debug, Args)]
pub(crate) struct Rename {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The keyspace
    #[arg(value_name = "OLD")]
    from: String,
    /// Its new name
    #[arg(value_name = "NEW")]
    to: String,
    /// Exchange the names of two keyspaces
    #[arg(long)]
    swap: bool,
}

#[derive(Serialize)]
struct Renamed<'r> {
    from: &'r str,
    to: &'r str,
}

impl Rename {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let Rename { from, to, .. } = self;
        let database = self.database.open()?;
        let alteration = match self.swap {
            true => database.alter().swap(from, to),
            false => database.alter().rename(from, to),
        };
        alteration.commit()?;
        database.close()?;
        output.print(&Renamed { from, to }, || match self.swap {
            true => format!("exchanged the names of keyspaces {from:?} and {to:?}"),
            false => format!("renamed keyspace {from:?} to {to:?}"),
        })
    }
}
