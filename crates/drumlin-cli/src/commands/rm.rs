//! `drumlin rm`: removes keys, a prefix, a range or a whole keyspace.

use std::ffi::OsString;
use std::ops::Bound;

use clap::{ArgGroup, Args};
use drumlin::{Database, Keyspace};
use serde::Serialize;

use super::selection::{KeyRange, Selection};
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::terminal::{Output, figures};
use crate::text::{Escaped, parse_key};

/// Rows removed in one transaction where many are removed.
const ROWS_PER_TRANSACTION: usize = 1000;

/// Remove keys, a prefix, a range or a whole keyspace
///
/// Named keys go in one transaction: all or none; if one of them is missing, nothing is removed and the exit code is 3.
/// Prefixes and ranges go in transactions of 1,000 rows.
#[derive(Debug, Args)]
#[command(override_usage = "drumlin rm [OPTIONS] <DATABASE> [KEY]...")]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["keys", "prefix", "from", "to", "all"]))]
pub(crate) struct Rm {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The keys: text, with \xNN for other bytes
    #[arg(value_name = "KEY", conflicts_with_all = ["prefix", "from", "to", "all"])]
    keys: Vec<OsString>,
    #[command(flatten)]
    selection: Selection,
    /// Drop the keyspace with all its rows
    #[arg(long, conflicts_with_all = ["prefix", "from", "to"])]
    all: bool,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys are hexadecimal digits
    #[arg(long)]
    hex: bool,
}

#[derive(Serialize)]
struct Removed {
    rows: u64,
}

impl Rm {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        interrupt::watch();
        let keys: Vec<Vec<u8>> = self.keys.iter().map(|key| parse_key(key, self.hex)).collect::<Result<_>>()?;
        let range = self.selection.range(self.hex)?;
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
        database.close()?;
        output.print(&Removed { rows }, || format!("removed {}", figures::plural(rows, "row")))
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

/// Each transaction has a scan of its own: one scan over all would keep every removed row for its snapshot.
fn remove_range(database: &Database, keyspace: &Keyspace, (mut from, to): KeyRange) -> Result<u64> {
    let mut rows = 0;
    loop {
        interrupt::check()?;
        let next = keyspace.range((from, to.clone())).take(ROWS_PER_TRANSACTION);
        let keys = next.map(|row| Ok(row?.0)).collect::<Result<Vec<_>>>()?;
        let Some(last) = keys.last() else { return Ok(rows) };
        from = Bound::Excluded(last.to_vec());
        database.transact(|transaction| keys.iter().try_for_each(|key| transaction.remove(keyspace, key)))?;
        rows += keys.len() as u64;
    }
}
