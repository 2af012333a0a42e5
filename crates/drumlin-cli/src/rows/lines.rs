//! Physical lines of a text file with their line numbers, and the limit on their length.

use std::io::{self, BufRead, ErrorKind, Read, Write};

use memchr::memchr;

use super::{Place, RowTooLong, SourceError};

/// The maximum length of a line, or of a row that spans several lines. Without a limit, a binary file given by mistake
/// could fill the memory. The limit also applies to rows that are written.
pub(super) const LINE_BYTES_LIMIT: u64 = 256 << 20;

/// Reads a file line by line.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: R,
    /// The number of the most recently read line, starting at 1.
    number: u64,
    line: Vec<u8>,
    bytes_limit: u64,
    /// `true` if the most recently read line was too long and its remainder has not been read.
    is_cut: bool,
    /// The lines to reread, and the offset of the next one: the content of a quote with each doubled quote unescaped.
    /// Each quote is doubled again when it is reread.
    again: (Vec<u8>, usize),
    /// The line to read after the lines in `again`.
    held: Option<Vec<u8>>,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R, bytes_limit: u64) -> Lines<R> {
        Lines { input, number: 0, line: Vec::new(), bytes_limit, is_cut: false, again: (Vec::new(), 0), held: None }
    }

    /// Returns the number of the most recently read line.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn bytes_limit(&self) -> u64 {
        self.bytes_limit
    }

    /// Returns the next line including its line ending, with its number, or `None` after the last line.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &[u8])>, SourceError> {
        if !self.take_again() {
            while std::mem::take(&mut self.is_cut) {
                let bytes = self.read_line()?;
                self.is_cut = bytes > 0 && self.line.last() != Some(&b'\n');
            }
            if self.read_line()? == 0 {
                return Ok(None);
            }
        }
        self.number += 1;
        if self.line.len() as u64 == self.bytes_limit && self.line.last() != Some(&b'\n') {
            let place = Place::Line { line: self.number, column: 1 };
            self.is_cut = true;
            return Err(SourceError::Row { place, what: format!("a line of more than {} bytes", self.bytes_limit) });
        }
        let start = if self.number == 1 && self.line.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        Ok(Some((self.number, &self.line[start..])))
    }

    fn read_line(&mut self) -> Result<usize, SourceError> {
        self.line.clear();
        Ok(self.input.by_ref().take(self.bytes_limit).read_until(b'\n', &mut self.line)?)
    }

    /// Goes back to the line after `number`. The lines after it are the content of one quote: `record` starting at
    /// offset `from`, followed by the most recently read line if `hold_last` is set.
    pub(super) fn go_back(&mut self, number: u64, record: Vec<u8>, from: usize, hold_last: bool) {
        assert!(self.again.0.is_empty() && self.held.is_none(), "no quote opens in lines that are read again");
        self.number = number;
        self.again = (record, from);
        self.held = hold_last.then(|| std::mem::take(&mut self.line));
    }

    /// Takes the next line to reread. Returns `false` if there is no such line.
    fn take_again(&mut self) -> bool {
        let (again, from) = &mut self.again;
        let rest = &again[*from..];
        if rest.is_empty() {
            self.again = (Vec::new(), 0);
            let held = self.held.take();
            return held.map(|line| self.line = line).is_some();
        }
        let end = memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
        self.line.clear();
        for part in rest[..end].split_inclusive(|&byte| byte == b'"') {
            self.line.extend_from_slice(part);
            self.line.extend(part.last().filter(|&&byte| byte == b'"'));
        }
        *from += end;
        true
    }
}

/// Returns `true` if the row might exceed the limit when it is written as text. In that case, a sink measures the row
/// before writing it. The longest escape turns a byte into six (`\u0000`), and a row adds a few bytes.
pub(super) fn may_exceed(bytes_limit: u64, data_bytes: u64) -> bool {
    data_bytes > bytes_limit / 8
}

/// Counts the bytes of one row, and fails if they exceed a limit.
#[derive(Debug)]
pub(super) struct Measure {
    bytes_limit: u64,
    bytes: u64,
}

impl Measure {
    pub(super) fn new(bytes_limit: u64) -> Measure {
        Measure { bytes_limit, bytes: 0 }
    }
}

impl Write for Measure {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len() as u64;
        match self.bytes <= self.bytes_limit {
            true => Ok(bytes.len()),
            false => Err(io::Error::new(ErrorKind::InvalidData, RowTooLong { bytes_limit: self.bytes_limit })),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the line without its line ending.
pub(super) fn content(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}
