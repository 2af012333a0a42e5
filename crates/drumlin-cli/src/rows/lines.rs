//! Physical lines of a text file, with their numbers.

use std::io::{BufRead, Read};

use super::{Flaw, Place};

/// A line longer than this is no line of text: without a limit, a binary file given by mistake would fill the memory.
pub(super) const LINE_BYTES_LIMIT: u64 = 256 << 20;

/// Reads line by line.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: R,
    /// The number of the line last read, from 1.
    number: u64,
    line: Vec<u8>,
    /// The line last read goes on: it was too long.
    is_cut: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Lines<R> {
        Lines { input, number: 0, line: Vec::new(), is_cut: false }
    }

    /// The number of the line last read.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line with its number, from 1, and its end; `None` behind the last.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &[u8])>, Flaw> {
        while std::mem::take(&mut self.is_cut) {
            self.line.clear();
            let bytes = self.input.by_ref().take(LINE_BYTES_LIMIT).read_until(b'\n', &mut self.line)?;
            self.is_cut = bytes > 0 && self.line.last() != Some(&b'\n');
        }
        self.line.clear();
        let bytes = self.input.by_ref().take(LINE_BYTES_LIMIT).read_until(b'\n', &mut self.line)?;
        if bytes == 0 {
            return Ok(None);
        }
        self.number += 1;
        if bytes as u64 == LINE_BYTES_LIMIT && self.line.last() != Some(&b'\n') {
            let place = Place::Line { line: self.number, column: 1 };
            self.is_cut = true;
            return Err(Flaw::Row { place, what: format!("a line of more than {LINE_BYTES_LIMIT} bytes") });
        }
        let start = if self.number == 1 && self.line.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        Ok(Some((self.number, &self.line[start..])))
    }
}

/// The line without its end.
pub(super) fn content(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}
