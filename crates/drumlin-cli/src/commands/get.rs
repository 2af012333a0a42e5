//! `drumlin get`: the value of a key, raw to a pipe, harmless to a terminal.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use drumlin::Keyspace;
use serde::Serialize;

use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::failure::{Failure, Result};
use crate::terminal::{Output, figures};
use crate::text::{Escaped, Hex, JsonBytes, parse_key};

/// Print the values of keys
///
/// To a file or a pipe the value of one key goes as it is, byte for byte; on a terminal, control characters are
/// escaped and a newline ends the output. Of several keys, each row is a line as `drumlin scan` prints it: key, tab,
/// value, both escaped. Missing keys are named, and make the exit code 3.
#[derive(Debug, Args)]
#[command(override_usage = "drumlin get [OPTIONS] <DATABASE> [KEY]...")]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["wanted", "keys"]))]
pub(crate) struct Get {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The keys: text, with \xNN for other bytes
    #[arg(id = "wanted", value_name = "KEY")]
    wanted: Vec<OsString>,
    /// Also the keys in a file, one a line, escaped as `drumlin scan --keys-only` prints them; - for stdin
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
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
        let wanted: Vec<Vec<u8>> = self.wanted.iter().map(|key| parse_key(key, self.hex)).collect::<Result<_>>()?;
        let file: Option<Box<dyn BufRead>> = match &self.keys {
            None => None,
            Some(path) if path.as_os_str() == "-" => Some(Box::new(io::stdin().lock())),
            Some(path) => {
                Some(Box::new(BufReader::new(File::open(path).map_err(|error| Failure::input(path, &error))?)))
            }
        };
        let database = self.database.open_to_read()?;
        let keyspace = self.keyspace.existing(&database)?;
        match (&wanted[..], file) {
            ([key], None) => self.print_value(output, &keyspace, key),
            (_, file) => self.print_rows(output, &keyspace, &wanted, file),
        }
    }

    /// Prints a line for each key that is there.
    fn print_rows(
        &self,
        output: Output,
        keyspace: &Keyspace,
        wanted: &[Vec<u8>],
        file: Option<Box<dyn BufRead>>,
    ) -> Result<()> {
        let mut stdout = BufWriter::with_capacity(256 << 10, io::stdout().lock());
        let mut missing = 0u64;
        let mut print = |key: &[u8], is_last: bool| -> Result<()> {
            match keyspace.get(key)? {
                Some(value) => {
                    self.print_row(output, &mut stdout, key, &value).map_err(|error| Failure::stdout(&error))?;
                }
                None => {
                    missing += 1;
                    output.remark(&self.missing(key));
                }
            }
            // A program that writes keys into a pipe one by one reads the rows one by one.
            if is_last { stdout.flush().map_err(|error| Failure::stdout(&error)) } else { Ok(()) }
        };
        wanted.iter().try_for_each(|key| print(key, false))?;
        let path = self.keys.as_deref().unwrap_or(Path::new("-"));
        let failed = |error: io::Error| Failure::input(path, &error);
        if let Some(mut file) = file {
            let mut line = Vec::new();
            loop {
                line.clear();
                if file.read_until(b'\n', &mut line).map_err(failed)? == 0 {
                    break;
                }
                let text = line.strip_suffix(b"\n").unwrap_or(&line);
                let key = parse_key(OsStr::from_bytes(text), self.hex)?;
                let is_last = !line.ends_with(b"\n") || path.as_os_str() == "-";
                print(&key, is_last)?;
            }
        }
        stdout.flush().map_err(|error| Failure::stdout(&error))?;
        match missing {
            0 => Ok(()),
            count => Err(Failure::not_found(format!("{} missing", figures::plural(count, "key")))),
        }
    }

    fn print_row(&self, output: Output, stdout: &mut impl Write, key: &[u8], value: &[u8]) -> io::Result<()> {
        if output.json() {
            let value_bytes = value.len() as u64;
            serde_json::to_writer(&mut *stdout, &Found { key: JsonBytes(key), value: JsonBytes(value), value_bytes })?;
            return stdout.write_all(b"\n");
        }
        let value = Escaped::new(value);
        if self.hex {
            writeln!(stdout, "{}\t{value}", Hex(key))
        } else {
            writeln!(stdout, "{}\t{value}", Escaped::new(key))
        }
    }

    fn missing(&self, key: &[u8]) -> String {
        let key: &dyn std::fmt::Display = if self.hex { &Hex(key) } else { &Escaped::new(key) };
        format!("there is no key '{key}' in keyspace {:?}", self.keyspace.name)
    }

    fn print_value(&self, output: Output, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        let Some(mut value) = keyspace.read(key)? else { return Err(Failure::not_found(self.missing(key))) };
        if output.json() {
            let mut bytes = Vec::new();
            value.read_to_end(&mut bytes).map_err(|error| failed(&error))?;
            let value_bytes = bytes.len() as u64;
            return output.print_json(&Found { key: JsonBytes(key), value: JsonBytes(&bytes), value_bytes });
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
pub(super) fn reading(error: &io::Error) -> Option<drumlin::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<drumlin::Error>()).cloned()
}

fn failed(error: &io::Error) -> Failure {
    reading(error).map_or_else(|| Failure::other(format!("reading the value: {error}")), Failure::from)
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
