//! `drumlin put`: stores a value of any size under a key.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::failure::{Failure, Result};
use crate::own_files::OwnFiles;
use crate::terminal::Output;
use crate::text::{JsonBytes, parse_key};

/// Store a value under a key
///
/// The value is VALUE as typed, or the content of --file, or else stdin. It is durable when the command returns.
#[derive(Debug, Args)]
pub(crate) struct Put {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The key, as text with \xNN for non-text bytes
    #[arg(value_name = "KEY")]
    key: OsString,
    /// The value as typed; without it, stdin is read
    #[arg(value_name = "VALUE", conflicts_with = "file")]
    value: Option<OsString>,
    /// Store the content of a file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys are in hexadecimal
    #[arg(long)]
    hex: bool,
}

#[derive(Serialize)]
struct Stored<'a> {
    key: JsonBytes<'a>,
    value_bytes: u64,
}

impl Put {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let key = parse_key(&self.key, self.hex)?;
        let file = match &self.file {
            Some(path) => Some(File::open(path).map_err(|error| Failure::input(path, &error))?),
            None => None,
        };
        let database = self.database.open_or_create()?;
        let own = OwnFiles::of([&self.database.path]);
        match &file {
            Some(file) => own.check_input(file)?,
            None if self.value.is_none() => own.check_input(io::stdin())?,
            None => {}
        }
        let keyspace = self.keyspace.open_or_create(&database)?;
        let value_bytes = match (&self.value, file) {
            (Some(value), _) => {
                keyspace.insert(&key, value.as_bytes())?;
                value.len() as u64
            }
            (None, Some(file)) => keyspace.insert_from(&key, file)?,
            (None, None) => {
                if io::stdin().is_terminal() {
                    output.remark("reading the value from the terminal; Ctrl-D at the beginning of a line ends it");
                }
                keyspace.insert_from(&key, io::stdin().lock())?
            }
        };
        database.close()?;
        if output.json() { output.print_json(&Stored { key: JsonBytes(&key), value_bytes }) } else { Ok(()) }
    }
}
