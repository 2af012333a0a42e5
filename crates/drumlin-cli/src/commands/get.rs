//! `drumlin get`: prints the value of a key, unchanged if the output is a pipe and escaped if it is a terminal.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use drumlin::{Keyspace, ValueReader};

use crate::database::{DatabaseArgs, ReadArgs};
use crate::failure::{Failure, Result};
use crate::streamed::{self, ValueText};
use crate::terminal::{Output, figures};
use crate::text::{Escaped, Hex, JsonBytes, parse_key};

/// Print the values of keys
///
/// The value of one key is written to a file or pipe as it is, byte for byte. On a terminal, control characters are
/// escaped and a newline ends the output. For several keys, each row is a line as `drumlin scan` prints it: key, tab,
/// value, both escaped. Missing keys are named, and the exit code is then 3.
#[derive(Debug, Args)]
#[command(override_usage = "drumlin get [OPTIONS] <DATABASE> [KEY]...")]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["wanted", "keys"]))]
pub(crate) struct Get {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The keys, as text with \xNN for non-text bytes
    #[arg(id = "wanted", value_name = "KEY")]
    wanted: Vec<OsString>,
    /// Also read keys from a file, one per line, escaped as `drumlin scan --keys-only` prints them; - for stdin
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
    /// Keys are in hexadecimal
    #[arg(long)]
    hex: bool,
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
        let keyspace = self.read.existing(&database)?;
        match (&wanted[..], file) {
            ([key], None) => self.print_value(output, &keyspace, key),
            (_, file) => self.print_rows(output, &keyspace, &wanted, file),
        }
    }

    /// Prints a line for each key that has a row.
    fn print_rows(
        &self,
        output: Output,
        keyspace: &Keyspace,
        wanted: &[Vec<u8>],
        file: Option<Box<dyn BufRead>>,
    ) -> Result<()> {
        let mut stdout = BufWriter::with_capacity(256 << 10, io::stdout().lock());
        let mut text = ValueText::default();
        let mut missing = 0u64;
        let mut print = |key: &[u8], is_last: bool| -> Result<()> {
            match keyspace.read(key)? {
                Some(mut value) => {
                    let printed = self.print_row(output, &mut stdout, key, &mut value, &mut text);
                    printed.map_err(|error| streamed::failed(&error))?;
                }
                None => {
                    missing += 1;
                    output.remark(&self.missing(key));
                }
            }
            // Flush now, so that a program that writes keys into a pipe one by one receives each row immediately.
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

    fn print_row(
        &self,
        output: Output,
        stdout: &mut impl Write,
        key: &[u8],
        value: &mut ValueReader,
        text: &mut ValueText,
    ) -> io::Result<()> {
        if output.json() {
            stdout.write_all(b"{\"key\":")?;
            serde_json::to_writer(&mut *stdout, &JsonBytes(key))?;
            stdout.write_all(b",\"value\":")?;
            text.write_json(value, stdout)?;
            return writeln!(stdout, ",\"value_bytes\":{}}}", value.len());
        }
        let key: &dyn std::fmt::Display = if self.hex { &Hex(key) } else { &Escaped::new(key) };
        write!(stdout, "{key}\t")?;
        text.write_escaped(value, stdout)?;
        stdout.write_all(b"\n")
    }

    fn missing(&self, key: &[u8]) -> String {
        let key: &dyn std::fmt::Display = if self.hex { &Hex(key) } else { &Escaped::new(key) };
        format!("there is no key '{key}' in keyspace {:?}", self.read.keyspace.name)
    }

    fn print_value(&self, output: Output, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        let Some(mut value) = keyspace.read(key)? else { return Err(Failure::not_found(self.missing(key))) };
        if output.json() {
            let mut stdout = BufWriter::new(io::stdout().lock());
            let written = self.print_row(output, &mut stdout, key, &mut value, &mut ValueText::default());
            return written.and_then(|()| stdout.flush()).map_err(|error| streamed::failed(&error));
        }
        let mut stdout = io::stdout().lock();
        let written = match Output::is_terminal() {
            true => {
                let show = |part: &[u8]| write!(stdout, "{}", Escaped::readable(part));
                streamed::for_each_piece(&mut value, show).and_then(|()| writeln!(stdout))
            }
            false => streamed::copy(&mut value, |part| stdout.write_all(part)),
        };
        written.and_then(|()| stdout.flush()).map_err(|error| streamed::failed(&error))
    }
}
