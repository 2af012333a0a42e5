//! `drumlin get`: the value of a key, raw to a pipe, harmless to a terminal.

use std::ffi::OsString;
use std::io::{self, Read, Write};

use clap::Args;
use serde::Serialize;

use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::failure::{Failure, Result};
use crate::terminal::Output;
use crate::text::{Escaped, JsonBytes, parse_key};

/// Print the value of a key
///
/// To a file or a pipe the value goes as it is, byte for byte; on a terminal, control characters are escaped and a
/// newline ends the output. A missing key is exit code 3.
#[derive(Debug, Args)]
pub(crate) struct Get {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The key: text, with \xNN for other bytes
    #[arg(value_name = "KEY")]
    key: OsString,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys are hexadecimal digits
    #[arg(long)]
    hex: bool,
}

#[derive(Serialize)]
struct Found<'a> {
    key: JsonBytes<'a>,
    value: JsonBytes<'a>,
    value_bytes: u64,
}

impl Get {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let key = parse_key(&self.key, self.hex)?;
        let database = self.database.open()?;
        let keyspace = self.keyspace.existing(&database)?;
        let Some(mut value) = keyspace.read(&key)? else {
            let shown = Escaped::new(&key);
            return Err(Failure::not_found(format!("there is no key '{shown}' in keyspace {:?}", self.keyspace.name)));
        };
        if output.json() {
            let mut bytes = Vec::new();
            value.read_to_end(&mut bytes).map_err(|error| reading(&error))?;
            let value_bytes = bytes.len() as u64;
            return output.print_json(&Found { key: JsonBytes(&key), value: JsonBytes(&bytes), value_bytes });
        }
        let terminal = Output::is_terminal();
        let mut stdout = io::stdout().lock();
        let mut buffer = vec![0; 256 << 10];
        loop {
            let bytes = value.read(&mut buffer).map_err(|error| reading(&error))?;
            if bytes == 0 {
                break;
            }
            let part = &buffer[..bytes];
            let written = if terminal { write!(stdout, "{}", Escaped::readable(part)) } else { stdout.write_all(part) };
            written.map_err(|error| Failure::stdout(&error))?;
        }
        let end = if terminal { writeln!(stdout) } else { Ok(()) };
        end.and_then(|()| stdout.flush()).map_err(|error| Failure::stdout(&error))
    }
}

/// A value's reader speaks `io::Error`; the engine's own error is inside.
fn reading(error: &io::Error) -> Failure {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<drumlin::Error>()) {
        Some(error) => error.clone().into(),
        None => Failure::other(format!("reading the value: {error}")),
    }
}
