//! `drumlin rm`: removes keys, a prefix, a range or a whole keyspace.

use std::ffi::OsString;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use clap::{ArgGroup, Args};
use drumlin::{Database, Keyspace};
use serde::Serialize;

use super::compact;
use super::selection::{KeyRange, Selection};
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt;
use crate::terminal::{Output, figures};
use crate::text::{Escaped, parse_key};

/// Remove keys, a prefix, a range or a whole keyspace
///
/// Named keys are removed in one transaction, all or none: if any key is missing, nothing is removed and the exit code
/// is 3. A prefix or a range is removed in one transaction too. `drumlin compact` returns the space.
#[derive(Debug, Args)]
#[command(override_usage = "drumlin rm [OPTIONS] <DATABASE> [KEY]...")]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["keys", "prefix", "from", "to", "all"]))]
pub(crate) struct Rm {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The keys, as text with \xNN for non-text bytes
    #[arg(value_name = "KEY", conflicts_with_all = ["prefix", "from", "to", "all"])]
    keys: Vec<OsString>,
    #[command(flatten)]
    selection: Selection,
    /// Drop the keyspace with all its rows
    #[arg(long, conflicts_with_all = ["prefix", "from", "to"])]
    all: bool,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys are in hexadecimal
    #[arg(long)]
    hex: bool,
}

#[derive(Serialize)]
struct Removed {
    rows: u64,
    /// Unused bytes of the data file, which `drumlin compact` returns.
    unused_bytes: u64,
}

impl Rm {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        interrupt::watch();
        let keys: Vec<Vec<u8>> = self.keys.iter().map(|key| parse_key(key, self.hex)).collect::<Result<_>>()?;
        let range = self.selection.range_to_remove(self.hex)?;
        let database = self.database.open()?;
        let keyspace = self.keyspace.existing(&database)?;
        let rows = if self.all {
            let rows = keyspace.count(..)?;
            database.drop_keyspace(&self.keyspace.name)?;
            rows
        } else if self.selection.is_given() {
            remove_range(&database, &keyspace, range)?
        } else {
            remove_keys(&database, &keyspace, &keys)?
        };
        // Closing the database would make a checkpoint anyway.
        database.checkpoint()?;
        let stats = database.stats();
        database.close()?;
        let unused_bytes = stats.data_file_bytes.saturating_sub(stats.live_bytes);
        output.print(&Removed { rows, unused_bytes }, || {
            let advice = compact::advice(stats.data_file_bytes, unused_bytes, &self.database.path);
            let removed = format!("removed {}", figures::plural(rows, "row"));
            [Some(removed), advice].into_iter().flatten().collect::<Vec<_>>().join("\n")
        })
    }
}

fn remove_keys(database: &Database, keyspace: &Keyspace, keys: &[Vec<u8>]) -> Result<u64> {
    for key in keys {
        if !keyspace.contains_key(key)? {
            let shown = Escaped::new(key);
            return Err(Failure::not_found(format!(
                "there is no key '{shown}' in keyspace {:?}; nothing was removed",
                keyspace.name()
            )));
        }
    }
    database.transact(|transaction| keys.iter().try_for_each(|key| transaction.remove(keyspace, key)))?;
    Ok(keys.len() as u64)
}

/// Removes the rows of a range in one transaction, and returns their number. An interrupt stops the count.
fn remove_range(database: &Database, keyspace: &Keyspace, range: KeyRange) -> Result<u64> {
    let mut transaction = database.begin()?;
    let rows = {
        let mut count = pin!(transaction.count_async(keyspace, range.clone()));
        pollster::block_on(poll_fn(|context| match interrupt::requested() {
            true => Poll::Ready(Err(Failure::new(Exit::Interrupted, "interrupted: nothing was removed"))),
            false => count.as_mut().poll(context).map_err(Failure::from),
        }))?
    };
    transaction.remove_range(keyspace, range)?;
    transaction.commit()?;
    Ok(rows)
}
