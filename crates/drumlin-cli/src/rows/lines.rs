//! Physical lines of a text file, with their numbers, and the limit to their length.

use std::io::{self, BufRead, ErrorKind, Read, Write};

use memchr::memchr;

use super::{Flaw, Place, RowTooLong};

/// A line longer than this, or a row of several, is no text: without a limit, a binary file given by mistake would fill
/// the memory. No longer row is written either.
pub(super) const LINE_BYTES_LIMIT: u64 = 256 << 20;

/// Reads line by line.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: R,
    /// The number of the line last read, from 1.
    number: u64,
    line: Vec<u8>,
    bytes_limit: u64,
    /// The line last read goes on: it was too long.
    is_cut: bool,
    /// From the offset on, lines to be read again: the content of a quote, in which a quote stands for two.
    again: (Vec<u8>, usize),
    /// The line to be read after these.
    held: Option<Vec<u8>>,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R, bytes_limit: u64) -> Lines<R> {
        Lines { input, number: 0, line: Vec::new(), bytes_limit, is_cut: false, again: (Vec::new(), 0), held: None }
    }

    /// The number of the line last read.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn bytes_limit(&self) -> u64 {
        self.bytes_limit
    }

    /// The next line with its number, from 1, and its end; `None` behind the last.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &[u8])>, Flaw> {
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
            return Err(Flaw::Row { place, what: format!("a line of more than {} bytes", self.bytes_limit) });
        }
        let start = if self.number == 1 && self.line.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        Ok(Some((self.number, &self.line[start..])))
    }

    fn read_line(&mut self) -> Result<usize, Flaw> {
        self.line.clear();
        Ok(self.input.by_ref().take(self.bytes_limit).read_until(b'\n', &mut self.line)?)
    }

    /// Goes back to the line after `number`. The lines from there on are the content of one quote: `record` from an
    /// offset on, and then, if `hold_last`, the line last read.
    pub(super) fn go_back(&mut self, number: u64, record: Vec<u8>, from: usize, hold_last: bool) {
        assert!(self.again.0.is_empty() && self.held.is_none(), "no quote opens in lines that are read again");
        self.number = number;
        self.again = (record, from);
        self.held = hold_last.then(|| std::mem::take(&mut self.line));
    }

    /// Takes the next of the lines that are to be read again; `false` if there are none.
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

/// Returns `true` if data may take more than the limit as text; a sink then measures the row before it writes it. The
/// longest escape of a byte has six (`\u0000`), and a row adds some bytes of its own.
pub(super) fn may_exceed(bytes_limit: u64, data_bytes: u64) -> bool {
    data_bytes > bytes_limit / 8
}

/// Takes the bytes of one row, up to a limit.
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

/// The line without its end.
pub(super) fn content(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}
