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
            value.read_to_end(&mut bytes).map_err(|error| failed(&error))?;
            let value_bytes = bytes.len() as u64;
            return output.print_json(&Found { key: JsonBytes(&key), value: JsonBytes(&bytes), value_bytes });
        }
        let terminal = Output::is_terminal();
        let mut stdout = io::stdout().lock();
        let mut buffer = vec![0; 256 << 10];
        let mut kept = 0;
        loop {
            let bytes = value.read(&mut buffer[kept..]).map_err(|error| failed(&error))?;
            let filled = kept + bytes;
            // A character that is cut by the end of the buffer waits for its rest.
            let whole = if terminal && bytes > 0 { whole_characters(&buffer[..filled]) } else { filled };
            let part = &buffer[..whole];
            let written = if terminal { write!(stdout, "{}", Escaped::readable(part)) } else { stdout.write_all(part) };
            written.map_err(|error| Failure::stdout(&error))?;
            if bytes == 0 {
                break;
            }
            buffer.copy_within(whole..filled, 0);
            kept = filled - whole;
        }
        let end = if terminal { writeln!(stdout) } else { Ok(()) };
        end.and_then(|()| stdout.flush()).map_err(|error| Failure::stdout(&error))
    }
}

/// The length of the text before a character that its end cuts.
fn whole_characters(text: &[u8]) -> usize {
    let cut = text.utf8_chunks().last().map_or(0, |chunk| chunk.invalid().len());
    let tail = &text[text.len() - cut..];
    let is_cut = std::str::from_utf8(tail).is_err_and(|error| error.error_len().is_none());
    if is_cut { text.len() - cut } else { text.len() }
}

/// The engine's own error inside of a value reader's, which speaks `io::Error`.
pub(super) fn reading(error: &io::Error) -> Option<Failure> {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<drumlin::Error>());
    inner.map(|error| error.clone().into())
}

fn failed(error: &io::Error) -> Failure {
    reading(error).unwrap_or_else(|| Failure::other(format!("reading the value: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a character that may yet be completed is held back.
    #[test]
    fn cut_characters_wait() {
        assert_eq!(whole_characters(b"caf\xc3"), 3);
        assert_eq!(whole_characters("caf\u{e9}".as_bytes()), 5);
        assert_eq!(whole_characters(b"\xf0\x9f\x98"), 0);
        assert_eq!(whole_characters(b"a\xff"), 2);
        assert_eq!(whole_characters(b""), 0);
    }
}
