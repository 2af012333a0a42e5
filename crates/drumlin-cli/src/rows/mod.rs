//! Reads and writes rows outside of a database: CSV, TSV, JSON Lines and the binary form.
//!
//! A [`Source`] yields rows in sequence and reports the exact place of an error. After a malformed text line, it
//! continues with the next line. A [`Sink`] writes rows that the source of the same format can read.

mod binary;
mod delimited;
mod fields;
mod json_lines;
mod lines;

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, BufRead, Read, Write};
use std::path::Path;

use clap::ValueEnum;

pub(crate) use binary::VALUE_BYTES_STREAMED;

use self::lines::{LINE_BYTES_LIMIT, Lines};
use crate::streamed::Stream;
use crate::terminal::figures;

/// A format of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Comma-separated values (.csv)
    Csv,
    /// Tab-separated values (.tsv, .tab)
    Tsv,
    /// One JSON value per line (.jsonl, .ndjson)
    Jsonl,
    /// Drumlin's binary form: any bytes, checksummed (.rows)
    Binary,
}

impl Format {
    /// Returns the format implied by a file's name.
    pub(crate) fn of_path(path: &Path) -> Option<Format> {
        match path.extension().and_then(OsStr::to_str)?.to_ascii_lowercase().as_str() {
            "csv" => Some(Format::Csv),
            "tsv" | "tab" => Some(Format::Tsv),
            "jsonl" | "ndjson" => Some(Format::Jsonl),
            "rows" => Some(Format::Binary),
            _ => None,
        }
    }

    /// Returns the format implied by the name of a possibly compressed file, such as `rows.csv.gz`.
    pub(crate) fn of_input(path: &Path) -> Option<Format> {
        match path.extension().and_then(OsStr::to_str)?.to_ascii_lowercase().as_str() {
            "gz" | "gzip" | "zst" | "zstd" => Format::of_path(Path::new(path.file_stem()?)),
            _ => Format::of_path(path),
        }
    }

    /// Returns the default byte between fields.
    fn delimiter(self) -> u8 {
        if self == Format::Tsv { b'\t' } else { b',' }
    }
}

/// The fields of a text row that become the key and the value.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// The columns or fields that form the key, joined by a zero byte. If empty, the key is a [`line_key`].
    pub(crate) key: Vec<String>,
    /// The column or field that becomes the value, or `None` for the whole row.
    pub(crate) value: Option<String>,
    /// `true` if the first line of CSV and TSV names the columns.
    pub(crate) header: bool,
    /// The byte between the fields of CSV and TSV, if it is not the default.
    pub(crate) delimiter: Option<u8>,
    /// The name of the source, for keys made of line numbers.
    pub(crate) name: Vec<u8>,
}

/// Returns the key of a row without a key column: its file and line. Such keys sort in line order, and keys from
/// different files differ.
fn line_key(name: &[u8], line: u64) -> Vec<u8> {
    [name, format!(":{line:012}").as_bytes()].concat()
}

#[derive(Default, Debug)]
pub(crate) struct Row {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// The position in the file of the row's key, or of the row itself if its key is made of the line number.
    pub(crate) place: Place,
}

/// The result of reading the next row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The row is complete.
    Row,
    /// The key is complete. The value is too large for memory and is read from [`Source::value`].
    Streamed,
    /// The rows that follow belong to another keyspace, which [`Source::keyspace`] describes.
    Keyspace,
    /// There are no more rows.
    End,
}

/// A position in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A line and a column, both starting at 1. Columns count bytes.
    Line { line: u64, column: u64 },
    /// An offset in a binary file.
    Byte(u64),
}

impl Default for Place {
    fn default() -> Place {
        Place::Byte(0)
    }
}

impl fmt::Display for Place {
    /// Formats the position with the colon that separates it from the file's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line { line, column } => write!(f, ":{line}:{column}"),
            Place::Byte(offset) => write!(f, ": byte {offset}"),
        }
    }
}

/// An error in a source.
#[derive(Debug)]
pub(crate) enum SourceError {
    /// One row is malformed. The next call continues with the row after it.
    Row { place: Place, what: String },
    /// The rest of the file, starting at this place, can't be trusted.
    Rest { place: Place, what: String },
    /// The first line does not define the columns.
    Header { place: Place, what: String, hint: Option<String> },
    /// The operating system returned an error.
    Io(io::Error),
}

impl From<io::Error> for SourceError {
    fn from(error: io::Error) -> SourceError {
        SourceError::Io(error)
    }
}

/// A reader of rows.
pub(crate) trait Source {
    /// Reads the next row into `row`.
    fn next(&mut self, row: &mut Row) -> Result<Next, SourceError>;

    /// Returns the value of the row that was just returned as [`Next::Streamed`]. The caller must read it to its end.
    fn value(&mut self) -> &mut dyn Read {
        unreachable!("only a source that answers `Streamed` has a value to stream")
    }

    /// Returns the name and the page size of the keyspace that was just returned as [`Next::Keyspace`].
    fn keyspace(&self) -> (&str, usize) {
        unreachable!("only a source that answers `Keyspace` has one")
    }

    /// Returns a remark to print about the rows read so far. Each remark is returned once.
    fn remark(&mut self) -> Option<String> {
        None
    }
}

/// Creates a reader of rows in a format.
pub(crate) fn source<'a>(format: Format, input: impl BufRead + 'a, choice: Choice) -> Box<dyn Source + 'a> {
    source_within(LINE_BYTES_LIMIT, format, input, choice)
}

fn source_within<'a>(
    bytes_limit: u64,
    format: Format,
    input: impl BufRead + 'a,
    choice: Choice,
) -> Box<dyn Source + 'a> {
    let delimiter = choice.delimiter.unwrap_or(format.delimiter());
    match format {
        Format::Csv | Format::Tsv => {
            Box::new(delimited::Delimited::new(delimiter, Lines::new(input, bytes_limit), choice))
        }
        Format::Jsonl => Box::new(json_lines::JsonLines::new(Lines::new(input, bytes_limit), choice)),
        Format::Binary => Box::new(binary::BinarySource::new(input)),
    }
}

/// A writer of rows.
pub(crate) trait Sink {
    /// Writes one row. Fails with `InvalidData` if the layout can't represent the value, or with [`RowTooLong`]; no
    /// part of the row is written in that case.
    fn write(&mut self, key: &[u8], value: &[u8]) -> io::Result<()>;
    /// Like [`write`](Self::write), but reads the value in pieces, unless the layout requires the whole value.
    fn write_streamed(&mut self, key: &[u8], length: u64, value: &mut dyn Stream) -> io::Result<()> {
        let mut whole = Vec::new();
        value.take(length).read_to_end(&mut whole)?;
        self.write(key, &whole)
    }
    /// Begins the rows of a keyspace. Only a [sink of keyspaces](sink_of_keyspaces) can.
    fn begin_keyspace(&mut self, name: &str, page_bytes: usize) -> io::Result<()> {
        unreachable!("rows of keyspace {name} ({page_bytes}) in a form without keyspaces")
    }
    /// Completes the output after the last row.
    fn finish(&mut self) -> io::Result<()>;
    /// Returns the requested fields that have not occurred in any row.
    fn missing_fields(&self) -> &[String] {
        &[]
    }
}

/// The error for a row whose text form exceeds the maximum length of a line.
#[derive(Debug)]
pub(crate) struct RowTooLong {
    bytes_limit: u64,
}

impl RowTooLong {
    /// Returns `true` if a sink returned `error` because a row was too long.
    pub(crate) fn is_reason(error: &io::Error) -> bool {
        error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<RowTooLong>)
    }
}

impl fmt::Display for RowTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "it takes more than {} bytes as text, the longest row that load reads",
            figures::count(self.bytes_limit)
        )
    }
}

impl std::error::Error for RowTooLong {}

/// The parts of rows to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// The key and the value.
    Rows,
    /// The values alone, as they were loaded. CSV and TSV have a column per field, named after the first value's
    /// fields.
    Values,
    /// These fields of the values.
    Fields(Vec<String>),
}

/// Creates a writer of rows in a format. `delimiter` replaces the default byte between fields of CSV and TSV. The
/// binary form always has keys and values.
pub(crate) fn sink<'a>(
    format: Format,
    delimiter: Option<u8>,
    layout: Layout,
    output: impl Write + 'a,
) -> io::Result<Box<dyn Sink + 'a>> {
    sink_within(LINE_BYTES_LIMIT, format, delimiter, layout, output)
}

/// Creates a writer of the binary form with all keyspaces of a database.
pub(crate) fn sink_of_keyspaces<'a>(output: impl Write + 'a) -> io::Result<Box<dyn Sink + 'a>> {
    Ok(Box::new(binary::BinarySink::of_keyspaces(output)?))
}

fn sink_within<'a>(
    bytes_limit: u64,
    format: Format,
    delimiter: Option<u8>,
    layout: Layout,
    mut output: impl Write + 'a,
) -> io::Result<Box<dyn Sink + 'a>> {
    let delimiter = delimiter.unwrap_or(format.delimiter());
    Ok(match (format, layout) {
        (Format::Csv | Format::Tsv, Layout::Rows) => {
            delimited::write_record(&mut output, delimiter, bytes_limit, &["key", "value"])?;
            Box::new(delimited::DelimitedSink::new(delimiter, bytes_limit, output))
        }
        (Format::Csv | Format::Tsv, Layout::Values) => {
            Box::new(fields::FieldsSink::new(delimiter, bytes_limit, None, output)?)
        }
        (Format::Csv | Format::Tsv, Layout::Fields(names)) => {
            Box::new(fields::FieldsSink::new(delimiter, bytes_limit, Some(names), output)?)
        }
        (Format::Jsonl, layout) => Box::new(json_lines::JsonLinesSink::new(layout, bytes_limit, output)),
        (Format::Binary, _) => Box::new(binary::BinarySink::new(output)?),
    })
}

#[cfg(test)]
mod tests {
    use rand::{Rng, RngExt, SeedableRng, rngs::SmallRng};

    use super::*;

    fn choice(key: &str, value: &str) -> Choice {
        Choice {
            key: vec![key.to_owned()],
            value: Some(value.to_owned()),
            header: true,
            delimiter: None,
            name: b"test".to_vec(),
        }
    }

    fn read_all(source: &mut dyn Source) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut rows = Vec::new();
        loop {
            let mut row = Row::default();
            match source.next(&mut row).expect("a well-formed file") {
                Next::End => return rows,
                Next::Keyspace => unreachable!("only the binary form has keyspaces"),
                Next::Row => {}
                Next::Streamed => {
                    source.value().read_to_end(&mut row.value).expect("a whole value");
                }
            }
            rows.push((row.key, row.value));
        }
    }

    /// Returns a line of cells, many of which are empty or contain characters that are special in some format.
    fn cells(random: &mut impl Rng, count: usize) -> Vec<String> {
        const PARTS: [&str; 12] = ["a", ",", "\t", "\"", "\n", "\r", "\\", "\u{feff}", "\u{e9}", "{", "\0", "null"];
        let mut cell = || {
            let length = random.random_range(0..5u32).saturating_sub(2);
            (0..length).map(|_| PARTS[random.random_range(0..PARTS.len())]).collect()
        };
        (0..count).map(|_| cell()).collect()
    }

    /// A table that was loaded and then dumped as values can be reloaded unchanged, whatever its cells and column
    /// names.
    #[test]
    fn tables_round_trip_as_values() {
        let mut random = SmallRng::seed_from_u64(3);
        for _ in 0..3000 {
            let columns = random.random_range(1..4);
            let has_header = random.random();
            let mut table = csv::WriterBuilder::new().quote_style(csv::QuoteStyle::Always).from_writer(Vec::new());
            let mut names = cells(&mut random, columns);
            while (1..columns).any(|column| names[..column].contains(&names[column])) {
                names = cells(&mut random, columns);
            }
            table.write_record(names).unwrap();
            for _ in 0..random.random_range(0..4) {
                table.write_record(cells(&mut random, columns)).unwrap();
            }
            let table = table.into_inner().unwrap();
            let choice = |header| Choice { key: vec![], value: None, header, delimiter: None, name: vec![] };
            let loaded = read_all(source(Format::Csv, &table[..], choice(has_header)).as_mut());
            for format in [Format::Csv, Format::Tsv, Format::Jsonl, Format::Binary] {
                let mut dumped = Vec::new();
                let mut sink = sink(format, None, Layout::Values, &mut dumped).unwrap();
                loaded.iter().for_each(|(key, value)| sink.write(key, value).unwrap());
                sink.finish().unwrap();
                drop(sink);
                let again = read_all(source(format, &dumped[..], choice(has_header)).as_mut());
                let values = |rows: &[(Vec<u8>, Vec<u8>)]| rows.iter().map(|row| row.1.clone()).collect::<Vec<_>>();
                assert_eq!(values(&again), values(&loaded), "{format:?}: {:?}", String::from_utf8_lossy(&dumped));
            }
        }
    }

    /// Each row that a text form writes can be read back. If a row is too long for a line, it is rejected before any
    /// byte of it is written, in one piece or several, with and without escapes.
    #[test]
    fn rows_that_are_too_long_are_not_written() {
        const BYTES_LIMIT: u64 = 300;
        let mut random = SmallRng::seed_from_u64(1);
        let (mut written, mut refused) = (0, 0);
        for round in 0..3000 {
            let format = [Format::Csv, Format::Tsv, Format::Jsonl][round % 3];
            let alphabet: &[u8] = [&b"a"[..], b"a\n", b"\"", b"\0", b"\xff", b"a\"\n,"][random.random_range(0..6)];
            let length = random.random_range(0..320);
            let text: Vec<u8> = (0..length).map(|_| alphabet[random.random_range(0..alphabet.len())]).collect();
            let values = random.random();
            let value = if values { serde_json::to_vec(&[String::from_utf8_lossy(&text)]).unwrap() } else { text };
            let layout = if values { Layout::Values } else { Layout::Rows };
            let write = |bytes_limit| {
                let mut file = Vec::new();
                let mut sink = sink_within(bytes_limit, format, None, layout.clone(), &mut file).unwrap();
                let outcome = sink.write(b"key", &value);
                drop(sink);
                (file, outcome)
            };
            let header = if values || format == Format::Jsonl { "" } else { "key,value\n" };
            let (file, outcome) = write(BYTES_LIMIT);
            let Err(error) = outcome else {
                let keys = choice("key", "value");
                let whole = Choice { key: vec![], value: None, header: false, ..keys.clone() };
                let choice = if values { whole } else { keys };
                let rows = read_all(source_within(BYTES_LIMIT, format, &file[..], choice).as_mut());
                assert_eq!((rows.len(), &rows[0].1), (1, &value), "{format:?}");
                written += 1;
                continue;
            };
            assert!(RowTooLong::is_reason(&error), "{error}");
            assert_eq!(file.len(), header.len());
            assert!(write(u64::MAX).0.len() - header.len() > BYTES_LIMIT as usize);
            refused += 1;
        }
        assert!(written > 500 && refused > 500, "{written} written, {refused} refused");
    }

    /// In every format, rows of arbitrary bytes are read back unchanged.
    #[test]
    fn every_format_round_trips_any_bytes() {
        let mut random = SmallRng::seed_from_u64(7);
        let alphabet = b"ab,\t\"\r\n\\{}\x00\xff\xc3\xa9";
        for format in [Format::Csv, Format::Tsv, Format::Jsonl, Format::Binary] {
            for round in 0..200 {
                let mut bytes = || -> Vec<u8> {
                    let length = random.random_range(0..12);
                    (0..length).map(|_| alphabet[random.random_range(0..alphabet.len())]).collect()
                };
                let rows: Vec<(Vec<u8>, Vec<u8>)> = (0..round % 9).map(|_| (bytes(), bytes())).collect();
                let mut file = Vec::new();
                let mut sink = sink(format, None, Layout::Rows, &mut file).unwrap();
                rows.iter().for_each(|(key, value)| sink.write(key, value).unwrap());
                sink.finish().unwrap();
                drop(sink);
                // Writing in pieces produces the same bytes.
                let mut again = Vec::new();
                let mut sink = super::sink(format, None, Layout::Rows, &mut again).unwrap();
                for (key, value) in &rows {
                    sink.write_streamed(key, value.len() as u64, &mut io::Cursor::new(value)).unwrap();
                }
                sink.finish().unwrap();
                drop(sink);
                assert_eq!(again, file, "{format:?}");
                let mut source = source(format, &file[..], choice("key", "value"));
                assert_eq!(read_all(source.as_mut()), rows, "{format:?}: {:?}", String::from_utf8_lossy(&file));
            }
        }
    }
}
