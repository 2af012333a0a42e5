//! CSV and TSV (RFC 4180): quoted fields, doubled quotes, newlines within quotes.
//!
//! The reader is stricter than most, so that malformed input is reported at its source: an unclosed quote, text after a
//! closing quote, and a row with too few or too many fields are errors with line and column. Bytes that are not UTF-8
//! are allowed if single columns are stored; a whole row becomes a JSON object and must be UTF-8.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, BufRead, Write};

use memchr::{memchr, memchr3};

use super::lines::{Lines, Measure, content, may_exceed};
use super::{Choice, Next, Place, Row, Sink, Source, SourceError, line_key};
use crate::streamed::{self, Stream};
use crate::terminal::figures;
use crate::text::Escaped;

/// The fields of one record, and the position at which each begins.
#[derive(Default, Debug)]
struct Record {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    places: Vec<Place>,
}

impl Record {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.places.clear();
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn field(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    fn fields(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.field(index))
    }
}

/// Reads rows of CSV or TSV.
#[derive(Debug)]
pub(super) struct Delimited<R> {
    delimiter: u8,
    lines: Lines<R>,
    choice: Choice,
    columns: Option<Columns>,
    record: Record,
    remark: Option<String>,
}

/// The maximum length of a list of column names in a message.
const HEADER_CHARS_SHOWN: usize = 200;

/// The roles of the columns, as determined by the first line.
#[derive(Debug)]
struct Columns {
    count: usize,
    key: Vec<usize>,
    value: Option<usize>,
    /// `"name":` in JSON for each column. Empty without a header.
    labels: Vec<String>,
}

impl<R: BufRead> Delimited<R> {
    pub(super) fn new(delimiter: u8, lines: Lines<R>, choice: Choice) -> Delimited<R> {
        Delimited { delimiter, lines, choice, columns: None, record: Record::default(), remark: None }
    }

    /// Reads the next record. Returns `false` at the end. Skips blank lines. If a quote is never closed, or if text
    /// follows its closing quote on a later line, only the line with the opening quote is malformed, and reading
    /// continues with the line after it.
    fn read_record(&mut self) -> Result<bool, SourceError> {
        let record = &mut self.record;
        record.clear();
        let mut open_quote = None;
        // The offset in the record at which the line with the opening quote ends.
        let mut quote_line_end = 0;
        loop {
            let (number, line) = match (self.lines.next(), open_quote) {
                (Ok(Some(line)), _) => line,
                (Ok(None), None) => return Ok(false),
                (Err(error), None) => return Err(error),
                (Ok(None), Some(quote)) => {
                    let what = "the quote that opens here is never closed".to_owned();
                    return Err(self.go_back(quote, what, quote_line_end, false));
                }
                (Err(SourceError::Row { place: long, what }), Some(quote)) => {
                    let what = format!("the quote that opens here is not closed before {what} ({long})");
                    return Err(self.go_back(quote, what, quote_line_end, true));
                }
                (Err(error), Some(_)) => return Err(error),
            };
            if open_quote.is_none() && content(line).is_empty() {
                continue;
            }
            let line_start = record.bytes.len();
            match split(line, self.delimiter, number, record, &mut open_quote) {
                Ok(true) => return Ok(true),
                Ok(false) => {
                    let quote = open_quote.expect("the record goes on within a quote");
                    if quote.line == number {
                        quote_line_end = record.bytes.len();
                    }
                    if record.bytes.len() as u64 > self.lines.bytes_limit() {
                        let bytes_limit = self.lines.bytes_limit();
                        let what = format!("the quote that opens here is not closed within {bytes_limit} bytes");
                        return Err(self.go_back(quote, what, quote_line_end, false));
                    }
                }
                Err(TextAfter { quote, column }) if quote.line == number => {
                    let place = Place::Line { line: number, column };
                    return Err(SourceError::Row { place, what: format!("text after a closing quote ({DOUBLED})") });
                }
                Err(TextAfter { quote, column }) => {
                    record.bytes.truncate(line_start);
                    let what = format!(
                        "the quote that opens here closes in line {number}, column {column}, before more text ({DOUBLED})"
                    );
                    return Err(self.go_back(quote, what, quote_line_end, true));
                }
            }
        }
    }

    /// Goes back to the line after the opening quote's line, which ends at the offset `quote_line_end` of the record.
    /// If `hold_last` is set, the record does not contain the most recently read line; that line is reread after the
    /// record.
    fn go_back(&mut self, quote: Quote, mut what: String, quote_line_end: usize, hold_last: bool) -> SourceError {
        let record = std::mem::take(&mut self.record);
        if let Some(Place::Line { line, .. }) = record.places.first()
            && *line < quote.line
        {
            what += &format!("; the row begins in line {line}");
        }
        self.lines.go_back(quote.line, record.bytes, quote_line_end, hold_last);
        SourceError::Row { place: quote.place(), what }
    }

    /// Determines the roles of the columns, from the header or from the number of fields in the first record.
    fn settle_columns(&mut self) -> Result<Option<Columns>, SourceError> {
        if !self.read_record()? {
            return Ok(None);
        }
        let record = &self.record;
        let header: Vec<Cow<'_, [u8]>> = if self.choice.header {
            record.fields().map(Cow::from).collect()
        } else {
            (1..=record.len()).map(|number| number.to_string().into_bytes().into()).collect()
        };
        let find = |name: &String| {
            let is_named = |column: &usize| *header[*column] == *name.as_bytes();
            let mut found = (0..header.len()).filter(is_named);
            match (found.next(), found.next()) {
                (Some(column), None) => Ok(column),
                (Some(first), Some(second)) => Err(same_name(record, first, second)),
                (None, _) => Err(self.no_column(name, &header)),
            }
        };
        let columns = Columns {
            count: header.len(),
            key: self.choice.key.iter().map(find).collect::<Result<_, _>>()?,
            value: self.choice.value.as_ref().map(find).transpose()?,
            labels: if self.choice.header && self.choice.value.is_none() { labels(record)? } else { Vec::new() },
        };
        self.remark = self.other_delimiter().map(|other| {
            let only = Escaped::new(self.record.field(0)).to_string();
            let only = figures::clip(&only, HEADER_CHARS_SHOWN);
            format!("the first line is one field, {only}; {other} divides it into more")
        });
        Ok(Some(columns))
    }

    fn no_column(&self, name: &str, header: &[Cow<'_, [u8]>]) -> SourceError {
        let header = Escaped::new(&header.join(&b", "[..])).to_string();
        let shown = figures::clip(&header, HEADER_CHARS_SHOWN);
        let hint = self.other_delimiter().map(|other| format!("{other} divides it into more fields"));
        let what = format!("there is no column {name:?}; there are: {shown}");
        SourceError::Header { place: self.record.places[0], what, hint }
    }

    /// If the first line has a single field that looks like several, returns the option for the separator that would
    /// split it.
    fn other_delimiter(&self) -> Option<&'static str> {
        let others =
            [(b';', "--delimiter ';'"), (b'\t', "--delimiter tab"), (b'|', "--delimiter '|'"), (b',', "--delimiter ,")];
        let is_within =
            |delimiter: u8| delimiter != self.delimiter && memchr(delimiter, self.record.field(0)).is_some();
        let found = others.iter().find(|other| self.record.len() == 1 && is_within(other.0));
        found.map(|other| other.1)
    }
}

impl<R: BufRead> Source for Delimited<R> {
    fn next(&mut self, row: &mut Row) -> Result<Next, SourceError> {
        let mut have_record = false;
        if self.columns.is_none() {
            self.columns = self.settle_columns().map_err(|error| match error {
                // A later line must not be used as the header if the header is malformed.
                SourceError::Row { place, what } if self.choice.header => SourceError::Rest { place, what },
                error => error,
            })?;
            have_record = self.columns.is_some() && !self.choice.header;
        }
        if !have_record && !self.read_record()? {
            return Ok(Next::End);
        }
        let columns = self.columns.as_ref().expect("settled with the first record");
        let record = &self.record;
        check_field_count(record, columns.count, self.lines.number())?;
        row.key.clear();
        row.place = record.places[columns.key.first().copied().unwrap_or(0)];
        if columns.key.is_empty() {
            let Place::Line { line, .. } = row.place else { unreachable!("text has lines") };
            row.key = line_key(&self.choice.name, line);
        }
        for (index, &column) in columns.key.iter().enumerate() {
            if index > 0 {
                row.key.push(0);
            }
            row.key.extend_from_slice(record.field(column));
        }
        row.value.clear();
        match columns.value {
            Some(column) => row.value.extend_from_slice(record.field(column)),
            None => write_json(record, &columns.labels, &mut row.value)?,
        }
        Ok(Next::Row)
    }

    fn remark(&mut self) -> Option<String> {
        self.remark.take()
    }
}

/// Returns the names in a header as labels for the fields of a JSON object. Rejects duplicate names, which JSON readers
/// handle differently.
fn labels(header: &Record) -> Result<Vec<String>, SourceError> {
    let mut columns = HashMap::new();
    for (column, name) in header.fields().enumerate() {
        if let Some(first) = columns.insert(name, column) {
            return Err(same_name(header, first, column));
        }
    }
    let names = header.fields().enumerate();
    names.map(|(column, name)| Ok(format!("{}:", serde_json::Value::from(text(header, column, name)?)))).collect()
}

fn same_name(header: &Record, first: usize, second: usize) -> SourceError {
    let name = Escaped::new(header.field(second)).to_string();
    let name = figures::clip(&name, HEADER_CHARS_SHOWN);
    SourceError::Header {
        place: header.places[second],
        what: format!("columns {} and {} have the same name, \"{name}\"", first + 1, second + 1),
        hint: Some(
            "rename one of them; with --value, only columns that are asked for need a name of their own".to_owned(),
        ),
    }
}

fn check_field_count(record: &Record, expected: usize, last_line: u64) -> Result<(), SourceError> {
    let found = record.len();
    if found == expected {
        return Ok(());
    }
    let place = if found > expected {
        record.places[expected]
    } else {
        match record.places[found - 1] {
            Place::Line { line, column } if line == last_line => Place::Line { line, column },
            _ => Place::Line { line: last_line, column: 1 },
        }
    };
    let fields = if found == 1 { "field" } else { "fields" };
    let mut what = format!("{found} {fields} where {expected} are expected");
    if let Place::Line { line, .. } = record.places[0]
        && line < last_line
    {
        what += &format!("; the row has lines {line} to {last_line}, in quotes");
    }
    Err(SourceError::Row { place, what })
}

/// Writes the row as a JSON object, or as an array if there is no header.
fn write_json(record: &Record, labels: &[String], value: &mut Vec<u8>) -> Result<(), SourceError> {
    value.push(if labels.is_empty() { b'[' } else { b'{' });
    for (index, field) in record.fields().enumerate() {
        if index > 0 {
            value.push(b',');
        }
        if let Some(label) = labels.get(index) {
            value.extend_from_slice(label.as_bytes());
        }
        serde_json::to_writer(&mut *value, text(record, index, field)?).expect("a string can be written to memory");
    }
    value.push(if labels.is_empty() { b']' } else { b'}' });
    Ok(())
}

/// Returns the text of a field, in a row or header that is stored as JSON.
fn text<'f>(record: &Record, index: usize, field: &'f [u8]) -> Result<&'f str, SourceError> {
    std::str::from_utf8(field).map_err(|_| SourceError::Row {
        place: record.places[index],
        what: "the field is not UTF-8, which a row stored as JSON has to be (--value stores one column as it is)"
            .to_owned(),
    })
}

/// The position of an opening quote.
#[derive(Clone, Copy, Debug)]
struct Quote {
    line: u64,
    column: u64,
}

impl Quote {
    fn place(self) -> Place {
        Place::Line { line: self.line, column: self.column }
    }
}

/// The position of text that follows a closing quote.
struct TextAfter {
    quote: Quote,
    column: u64,
}

/// The usual cause of text after a closing quote.
const DOUBLED: &str = "a quote within quotes is written twice";

/// Adds one physical line to the record. Returns `true` if the record is complete, or `false` if it continues in the
/// next line within the quote at `open_quote`.
fn split(
    line: &[u8],
    delimiter: u8,
    number: u64,
    record: &mut Record,
    open_quote: &mut Option<Quote>,
) -> Result<bool, TextAfter> {
    let end = content(line).len();
    let mut at = 0;
    loop {
        let quote = match *open_quote {
            Some(quote) => quote,
            None => {
                let quote = Quote { line: number, column: at as u64 + 1 };
                record.places.push(quote.place());
                if line.get(at) != Some(&b'"') || at == end {
                    let length = memchr(delimiter, &line[at..end]).unwrap_or(end - at);
                    record.bytes.extend_from_slice(&line[at..at + length]);
                    record.ends.push(record.bytes.len());
                    if at + length == end {
                        return Ok(true);
                    }
                    at += length + 1;
                    continue;
                }
                at += 1;
                *open_quote.insert(quote)
            }
        };
        let Some(length) = memchr(b'"', &line[at..]) else {
            record.bytes.extend_from_slice(&line[at..]);
            return Ok(false);
        };
        record.bytes.extend_from_slice(&line[at..at + length]);
        at += length + 1;
        if line.get(at) == Some(&b'"') {
            record.bytes.push(b'"');
            at += 1;
            continue;
        }
        *open_quote = None;
        record.ends.push(record.bytes.len());
        if at == end {
            return Ok(true);
        }
        if line[at] != delimiter {
            return Err(TextAfter { quote, column: at as u64 + 1 });
        }
        at += 1;
    }
}

/// Writes rows as CSV or TSV, with the columns key and value.
#[derive(Debug)]
pub(super) struct DelimitedSink<W> {
    delimiter: u8,
    bytes_limit: u64,
    output: W,
}

impl<W: Write> DelimitedSink<W> {
    pub(super) fn new(delimiter: u8, bytes_limit: u64, output: W) -> DelimitedSink<W> {
        DelimitedSink { delimiter, bytes_limit, output }
    }
}

/// Writes the column names, or a row of at least one field. Writes nothing if the row exceeds the limit.
pub(super) fn write_record<F: AsRef<[u8]>>(
    output: &mut impl Write,
    delimiter: u8,
    bytes_limit: u64,
    fields: &[F],
) -> io::Result<()> {
    if may_exceed(bytes_limit, fields.iter().map(|field| field.as_ref().len() as u64 + 1).sum()) {
        write_fields(&mut Measure::new(bytes_limit), delimiter, fields)?;
    }
    write_fields(output, delimiter, fields)
}

fn write_fields<F: AsRef<[u8]>>(output: &mut impl Write, delimiter: u8, fields: &[F]) -> io::Result<()> {
    match fields {
        [] => unreachable!("a record has a field"),
        // Quote the empty field, because a blank line is not a record.
        [only] if only.as_ref().is_empty() => output.write_all(b"\"\"")?,
        [first, others @ ..] => {
            write_field(output, delimiter, first.as_ref())?;
            for field in others {
                output.write_all(&[delimiter])?;
                write_field(output, delimiter, field.as_ref())?;
            }
        }
    }
    output.write_all(b"\n")
}

fn write_field(output: &mut impl Write, delimiter: u8, field: &[u8]) -> io::Result<()> {
    if !needs_quotes(delimiter, field) && !begins_as_file(field) {
        return output.write_all(field);
    }
    output.write_all(b"\"")?;
    write_doubling_quotes(output, field)?;
    output.write_all(b"\"")
}

fn needs_quotes(delimiter: u8, text: &[u8]) -> bool {
    memchr3(b'"', b'\n', b'\r', text).is_some() || memchr(delimiter, text).is_some()
}

/// Returns `true` if the text begins with a byte order mark, which is allowed at the beginning of a file.
fn begins_as_file(text: &[u8]) -> bool {
    text.starts_with(b"\xef\xbb\xbf")
}

fn write_doubling_quotes(output: &mut impl Write, text: &[u8]) -> io::Result<()> {
    let mut rest = text;
    while let Some(at) = memchr(b'"', rest) {
        output.write_all(&rest[..=at])?;
        output.write_all(b"\"")?;
        rest = &rest[at + 1..];
    }
    output.write_all(rest)
}

/// Writes a row whose value is read in pieces: first to find out whether it needs quotes, and then to write it.
fn write_streamed(output: &mut impl Write, delimiter: u8, key: &[u8], value: &mut dyn Stream) -> io::Result<()> {
    write_field(output, delimiter, key)?;
    output.write_all(&[delimiter])?;
    let (mut needs, mut is_first) = (false, true);
    value.rewind()?;
    streamed::copy(value, |piece| {
        needs = needs || needs_quotes(delimiter, piece) || std::mem::take(&mut is_first) && begins_as_file(piece);
        Ok(())
    })?;
    value.rewind()?;
    if !needs {
        streamed::copy(value, |piece| output.write_all(piece))?;
        return output.write_all(b"\n");
    }
    output.write_all(b"\"")?;
    streamed::copy(value, |piece| write_doubling_quotes(output, piece))?;
    output.write_all(b"\"\n")
}

impl<W: Write> Sink for DelimitedSink<W> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        write_record(&mut self.output, self.delimiter, self.bytes_limit, &[key, value])
    }

    fn write_streamed(&mut self, key: &[u8], length: u64, value: &mut dyn Stream) -> io::Result<()> {
        if may_exceed(self.bytes_limit, key.len() as u64 + length) {
            write_streamed(&mut Measure::new(self.bytes_limit), self.delimiter, key, value)?;
        }
        write_streamed(&mut self.output, self.delimiter, key, value)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    use super::*;

    fn choice() -> Choice {
        Choice { key: vec!["id".to_owned()], value: None, header: true, delimiter: None, name: b"t.csv".to_vec() }
    }

    type Read = Result<(Vec<u8>, Vec<u8>), (Place, String)>;

    fn rows(text: &[u8], choice: Choice) -> Vec<Read> {
        let mut source = Delimited::new(b',', Lines::new(text, 1000), choice);
        let mut rows = Vec::new();
        loop {
            let mut row = Row::default();
            match source.next(&mut row) {
                Ok(Next::End) => return rows,
                Ok(_) => rows.push(Ok((row.key, row.value))),
                Err(SourceError::Row { place, what }) => rows.push(Err((place, what))),
                Err(reason) => panic!("{reason:?}"),
            }
        }
    }

    fn place(line: u64, column: u64) -> Place {
        Place::Line { line, column }
    }

    /// Each kind of malformed row is reported with its place, and the rows around it are still read.
    #[test]
    fn malformed_rows_have_a_place() {
        let text = b"id,name\n1,a\n2\n3,\"b\"c\n4,d,e\n\n5,\"f\ng\"\n6,\"open\n7,x\n";
        let rows = rows(text, choice());
        let places: Vec<Option<Place>> = rows.iter().map(|row| row.as_ref().err().map(|reason| reason.0)).collect();
        let expected = [None, Some(place(3, 1)), Some(place(4, 6)), Some(place(5, 5)), None, Some(place(9, 3)), None];
        assert_eq!(places, expected);
        assert_eq!(rows[4], Ok((b"5".to_vec(), b"{\"id\":\"5\",\"name\":\"f\\ng\"}".to_vec())));
    }

    /// A broken quote makes only its own line malformed, whether it is never closed or a quote in a later row closes
    /// it. No later row is lost or changed.
    #[test]
    fn a_broken_quote_costs_its_line() {
        let good = "1,\"two\nlines, \"\"quoted\"\"\"\r\n2,x\n\n3,\"\"\n4,say \"\"\n5,\u{e9}";
        let expected = rows(format!("id,name\n{good}").as_bytes(), choice());
        for (broken, quote) in
            [("0,\"open\n", place(2, 3)), ("9,\"a\nb\",\"open\n", place(3, 4)), ("0,\"open\n,\"open\n", place(2, 3))]
        {
            let found = rows(format!("id,name\n{broken}{good}").as_bytes(), choice());
            assert_eq!(found[0].as_ref().unwrap_err().0, quote, "{broken}");
            let good_rows: Vec<_> = found.into_iter().filter(Result::is_ok).collect();
            assert_eq!(good_rows, expected, "{broken}");
        }
    }

    fn reader(text: &[u8], bytes_limit: u64) -> Delimited<&[u8]> {
        Delimited::new(b',', Lines::new(text, bytes_limit), choice())
    }

    /// One pass over a text finds the same records and errors as a separate reader for each record, started at the
    /// record's first line. The texts include lines and quotes over the limit.
    #[test]
    fn reading_goes_on_as_if_it_began_there() {
        let mut random = SmallRng::seed_from_u64(5);
        for round in 0..20_000 {
            let length = random.random_range(0..60);
            let text: Vec<u8> = (0..length).map(|_| b"aa,,\"\"\n\n\r"[random.random_range(0..9)]).collect();
            let bytes_limit = if round % 2 == 0 { 1000 } else { 12 };
            let mut whole = reader(&text, bytes_limit);
            loop {
                let start = whole.lines.number();
                let lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').skip(start as usize).collect();
                let rest = lines.concat();
                let mut rest = reader(&rest, bytes_limit);
                let read = |reader: &mut Delimited<&[u8]>, start: u64| match reader.read_record() {
                    Ok(false) => None,
                    Ok(true) => Some((
                        reader.lines.number() - start,
                        Ok(reader.record.fields().map(<[u8]>::to_vec).collect::<Vec<_>>()),
                    )),
                    Err(SourceError::Row { place: Place::Line { line, column }, .. }) => {
                        Some((reader.lines.number() - start, Err((line - start, column))))
                    }
                    Err(error) => panic!("{error:?}"),
                };
                let found = read(&mut whole, start);
                assert_eq!(found, read(&mut rest, 0), "{:?} from line {start}", text.escape_ascii().to_string());
                match found {
                    None => break,
                    Some((lines, _)) => assert!(lines > 0, "no line is read twice as a record"),
                }
            }
        }
    }

    /// Without a key column, the key is made of file and line. Without a header, columns are numbered and the row is an
    /// array.
    #[test]
    fn rows_without_names() {
        let choice = Choice { key: vec![], value: None, header: false, delimiter: None, name: b"t.csv".to_vec() };
        let rows = rows(b"a,b\r\nc,d", choice);
        assert_eq!(rows[0], Ok((b"t.csv:000000000001".to_vec(), b"[\"a\",\"b\"]".to_vec())));
        assert_eq!(rows[1], Ok((b"t.csv:000000000002".to_vec(), b"[\"c\",\"d\"]".to_vec())));
    }

    /// The reader and the `csv` crate find the same fields in every file that the crate considers well-formed.
    #[test]
    fn agrees_with_the_csv_crate() {
        let mut random = SmallRng::seed_from_u64(11);
        for _ in 0..2000 {
            let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
            writer.write_record(["id", "name"]).unwrap();
            let count = random.random_range(0..5);
            for _ in 0..count {
                let mut field = || -> Vec<u8> {
                    let length = random.random_range(0..6);
                    (0..length).map(|_| b"a,\"\n\r "[random.random_range(0..6)]).collect()
                };
                writer.write_record([field(), field()]).unwrap();
            }
            let text = writer.into_inner().unwrap();
            let choice = Choice { value: Some("name".to_owned()), ..choice() };
            let ours: Vec<_> = rows(&text, choice).into_iter().map(Result::unwrap).collect();
            let theirs: Vec<_> = csv::Reader::from_reader(&text[..])
                .byte_records()
                .map(|record| record.map(|record| (record[0].to_vec(), record[1].to_vec())).unwrap())
                .collect();
            assert_eq!(ours, theirs, "{:?}", String::from_utf8_lossy(&text));
        }
    }
}
