//! Converts values of any size to text in pieces, so that a whole value is never in memory.

use std::io::{self, BufReader, Read, Seek, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use drumlin::ValueReader;
use serde::de::IgnoredAny;

use crate::escape::Escaped;
use crate::failure::Failure;
use crate::text::JsonBytes;

/// The size above which values are read and written in pieces.
pub(crate) const VALUE_BYTES_WHOLE_MAX: u64 = 1 << 20;

/// The number of bytes of a value to read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// The bytes of a value, which can be reread.
pub(crate) trait Stream: Read + Seek {}

impl<T: Read + Seek> Stream for T {}

/// Passes a value to `show` in pieces that never end within a character.
pub(crate) fn for_each_piece(
    value: &mut (impl Read + ?Sized),
    mut show: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut kept = 0;
    loop {
        let bytes = value.read(&mut buffer[kept..])?;
        let filled = kept + bytes;
        // If the end of the buffer cuts a character, keep its first bytes until the rest is read.
        let whole = if bytes > 0 { whole_characters(&buffer[..filled]) } else { filled };
        show(&buffer[..whole])?;
        if bytes == 0 {
            return Ok(());
        }
        buffer.copy_within(whole..filled, 0);
        kept = filled - whole;
    }
}

/// Returns the length of the text without a truncated character at its end.
fn whole_characters(text: &[u8]) -> usize {
    // A character has at most four bytes.
    let tail = &text[text.len().saturating_sub(3)..];
    let cuts = (0..tail.len()).map(|at| &tail[at..]);
    let is_cut = |end: &&[u8]| {
        std::str::from_utf8(end).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    text.len() - cuts.into_iter().find(is_cut).map_or(0, <[u8]>::len)
}

/// Passes a value to `show` in pieces as they are read.
pub(crate) fn copy(value: &mut (impl Read + ?Sized), mut show: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        match value.read(&mut buffer)? {
            0 => return Ok(()),
            bytes => show(&buffer[..bytes])?,
        }
    }
}

/// Returns `true` if a value is exactly one JSON value, which must be UTF-8.
pub(crate) fn is_json(value: &mut (impl Stream + ?Sized)) -> io::Result<bool> {
    if !is_text(value)? {
        return Ok(false);
    }
    value.rewind()?;
    let parsed: Result<IgnoredAny, _> = serde_json::from_reader(BufReader::with_capacity(PIECE_BYTES, value));
    match parsed {
        Err(error) if error.is_io() => Err(error.into()),
        parsed => Ok(parsed.is_ok()),
    }
}

fn is_text(value: &mut (impl Stream + ?Sized)) -> io::Result<bool> {
    value.rewind()?;
    let mut is_text = true;
    for_each_piece(value, |piece| {
        is_text = is_text && std::str::from_utf8(piece).is_ok();
        Ok(())
    })?;
    Ok(is_text)
}

/// Writes a value as [`JsonBytes`] does: as a string if it is UTF-8, otherwise as `{"base64": "…"}`.
pub(crate) fn write_json(value: &mut (impl Stream + ?Sized), output: &mut impl Write) -> io::Result<()> {
    let is_text = is_text(value)?;
    value.rewind()?;
    if !is_text {
        output.write_all(b"{\"base64\":\"")?;
        let mut encoder = EncoderWriter::new(&mut *output, &STANDARD);
        copy(value, |piece| encoder.write_all(piece))?;
        encoder.finish()?;
        drop(encoder);
        return output.write_all(b"\"}");
    }
    output.write_all(b"\"")?;
    for_each_piece(value, |piece| {
        let text = std::str::from_utf8(piece).map_err(|_| io::Error::other("the value has changed"))?;
        let quoted = serde_json::to_string(text)?;
        output.write_all(&quoted.as_bytes()[1..quoted.len() - 1])
    })?;
    output.write_all(b"\"")
}

/// Writes the values of rows as text. Reads a short value in one piece, into memory that the next value reuses.
#[derive(Default)]
pub(crate) struct ValueText(Vec<u8>);

impl ValueText {
    /// Writes a value on one line, escaped.
    pub(crate) fn write_escaped(&mut self, value: &mut ValueReader, output: &mut impl Write) -> io::Result<()> {
        match self.whole(value)? {
            Some(whole) => write!(output, "{}", Escaped::new(whole)),
            None => for_each_piece(value, |piece| write!(output, "{}", Escaped::new(piece))),
        }
    }

    /// Writes a value as JSON.
    pub(crate) fn write_json(&mut self, value: &mut ValueReader, output: &mut impl Write) -> io::Result<()> {
        match self.whole(value)? {
            Some(whole) => Ok(serde_json::to_writer(output, &JsonBytes(whole))?),
            None => write_json(value, output),
        }
    }

    /// Returns the beginning of a value.
    pub(crate) fn beginning(&mut self, value: &mut ValueReader, bytes: usize) -> io::Result<&[u8]> {
        self.0.clear();
        value.take(bytes as u64).read_to_end(&mut self.0)?;
        Ok(&self.0)
    }

    /// Returns the whole value, or `None` if it has to be read in pieces.
    pub(crate) fn whole(&mut self, value: &mut ValueReader) -> io::Result<Option<&[u8]>> {
        if value.len() > VALUE_BYTES_WHOLE_MAX {
            return Ok(None);
        }
        self.beginning(value, VALUE_BYTES_WHOLE_MAX as usize).map(Some)
    }
}

/// Returns the engine's error inside a value reader's `io::Error`.
pub(crate) fn reading(error: &io::Error) -> Option<drumlin::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<drumlin::Error>()).cloned()
}

/// Converts an error from printing a value: either reading the value failed, or writing to stdout did.
pub(crate) fn failed(error: &io::Error) -> Failure {
    reading(error).map_or_else(|| Failure::stdout(error), Failure::from)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::text::JsonBytes;

    /// Only a character that later bytes may complete is held back for the next piece.
    #[test]
    fn cut_characters_wait() {
        assert_eq!(whole_characters(b"caf\xc3"), 3);
        assert_eq!(whole_characters("caf\u{e9}".as_bytes()), 5);
        assert_eq!(whole_characters(b"\xf0\x9f\x98"), 0);
        assert_eq!(whole_characters(b"a\xff"), 2);
        assert_eq!(whole_characters(b"\xe2\x82"), 0);
        assert_eq!(whole_characters(b"\x82\x82\x82"), 3);
        assert_eq!(whole_characters(b""), 0);
    }

    /// Returns only a few bytes per read.
    struct Slow<'a>(Cursor<&'a [u8]>);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let limit = buffer.len().min(1 + self.0.position() as usize % 5);
            self.0.read(&mut buffer[..limit])
        }
    }

    impl Seek for Slow<'_> {
        fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    /// Writing a value in pieces yields the same text as writing the whole value, wherever the pieces end.
    #[test]
    fn pieces_read_as_the_whole() {
        let values: [&[u8]; 5] = [
            b"",
            "caf\u{e9} \u{1f600}\n\"quoted\" \u{1}".as_bytes(),
            b"\xf0\x9f\x98 \xff\xfe \\ \xe2\x82",
            &[0xc3],
            "\u{e9}\u{e9}\u{e9}\u{1f600}\u{20ac}".as_bytes(),
        ];
        for value in values {
            let mut json = Vec::new();
            write_json(&mut Slow(Cursor::new(value)), &mut json).unwrap();
            assert_eq!(json, serde_json::to_vec(&JsonBytes(value)).unwrap());
            let mut escaped = Vec::new();
            let mut slow = Slow(Cursor::new(value));
            for_each_piece(&mut slow, |piece| write!(escaped, "{}", Escaped::new(piece))).unwrap();
            assert_eq!(String::from_utf8(escaped).unwrap(), Escaped::new(value).to_string());
        }
    }
}
