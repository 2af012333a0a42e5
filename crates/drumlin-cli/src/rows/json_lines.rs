//! JSON Lines: one JSON value per line.
//!
//! A field that becomes a key or a value is stored as its text if it is a string, as the decoded bytes if it is
//! `{"base64": "…"}`, and otherwise as the field's JSON text. So `load --key key --value value` restores any bytes that
//! `dump` writes.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};

use serde_json::value::RawValue;

use super::fields::{Fields, field_bytes};
use super::lines::{Lines, Measure, content, may_exceed};
use super::{Choice, Layout, Next, Place, Row, Sink, Source, SourceError, line_key};
use crate::streamed::{self, Stream};
use crate::text::{JsonBytes, JsonRow};

/// Reads rows from JSON Lines.
#[derive(Debug)]
pub(super) struct JsonLines<R> {
    lines: Lines<R>,
    choice: Choice,
}

impl<R: BufRead> JsonLines<R> {
    pub(super) fn new(lines: Lines<R>, choice: Choice) -> JsonLines<R> {
        JsonLines { lines, choice }
    }
}

impl<R: BufRead> Source for JsonLines<R> {
    fn next(&mut self, row: &mut Row) -> Result<Next, SourceError> {
        loop {
            let Some((number, line)) = self.lines.next()? else { return Ok(Next::End) };
            let text = content(line);
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let parsed = parse(text, &self.choice, row);
            parsed.map_err(|(column, what)| SourceError::Row { place: Place::Line { line: number, column }, what })?;
            row.place = Place::Line { line: number, column: 1 };
            if self.choice.key.is_empty() {
                row.key = line_key(&self.choice.name, number);
            }
            return Ok(Next::Row);
        }
    }
}

fn parse(text: &[u8], choice: &Choice, row: &mut Row) -> Result<(), (u64, String)> {
    row.key.clear();
    row.value.clear();
    if choice.key.is_empty() && choice.value.is_none() {
        let value: &RawValue = serde_json::from_slice(text).map_err(|error| reason(&error))?;
        row.value.extend_from_slice(value.get().as_bytes());
        return Ok(());
    }
    let fields: HashMap<String, &RawValue> = serde_json::from_slice(text).map_err(|error| reason(&error))?;
    let find = |name: &String| fields.get(name).copied().ok_or_else(|| (1, format!("there is no field {name:?}")));
    for (index, name) in choice.key.iter().enumerate() {
        if index > 0 {
            row.key.push(0);
        }
        row.key.extend_from_slice(&field_bytes(find(name)?));
    }
    match &choice.value {
        Some(name) => row.value = field_bytes(find(name)?),
        None => row.value.extend_from_slice(text.trim_ascii()),
    }
    Ok(())
}

/// Returns the column and the text of serde_json's error. Removes the position from the text, because our message
/// states the line in the file.
fn reason(error: &serde_json::Error) -> (u64, String) {
    let text = error.to_string();
    let what = text.rfind(" at line ").map_or(text.as_str(), |at| &text[..at]);
    ((error.column() as u64).max(1), what.to_owned())
}

/// Writes `{"key": …, "value": …}` lines, or the values alone, or some of their fields.
#[derive(Debug)]
pub(super) struct JsonLinesSink<W> {
    layout: Layout,
    bytes_limit: u64,
    output: W,
    missing: Vec<String>,
}

impl<W: Write> JsonLinesSink<W> {
    pub(super) fn new(layout: Layout, bytes_limit: u64, output: W) -> JsonLinesSink<W> {
        let missing = if let Layout::Fields(names) = &layout { names.clone() } else { Vec::new() };
        JsonLinesSink { layout, bytes_limit, output, missing }
    }
}

fn write_line(output: &mut impl Write, layout: &Layout, key: &[u8], value: &[u8]) -> io::Result<()> {
    match layout {
        Layout::Rows => {
            let row = JsonRow { key: JsonBytes(key), value: Some(JsonBytes(value)) };
            serde_json::to_writer(&mut *output, &row)?;
        }
        Layout::Values => write_value(output, value)?,
        Layout::Fields(names) => write_fields(output, value, names)?,
    }
    output.write_all(b"\n")
}

fn write_value(output: &mut impl Write, value: &[u8]) -> io::Result<()> {
    match serde_json::from_slice(value) {
        Ok(json) => write_json(output, json),
        Err(_) => Ok(serde_json::to_writer(output, &JsonBytes(value))?),
    }
}

/// Writes JSON unchanged except for line breaks: outside of strings they are only white space, and inside strings they
/// can't occur.
fn write_json(output: &mut impl Write, json: &RawValue) -> io::Result<()> {
    json.get().split(['\n', '\r']).try_for_each(|part| output.write_all(part.as_bytes()))
}

/// Writes a line whose value is read in pieces. The value has to be read more than once, because its first bytes do not
/// determine its form in the output.
fn write_line_streamed(output: &mut impl Write, layout: &Layout, key: &[u8], value: &mut dyn Stream) -> io::Result<()> {
    match layout {
        Layout::Rows => {
            output.write_all(b"{\"key\":")?;
            serde_json::to_writer(&mut *output, &JsonBytes(key))?;
            output.write_all(b",\"value\":")?;
            streamed::write_json(value, output)?;
            output.write_all(b"}")?;
        }
        Layout::Values if streamed::is_json(value)? => {
            value.rewind()?;
            streamed::copy(value, |piece| {
                piece.split(|byte| matches!(byte, b'\n' | b'\r')).try_for_each(|part| output.write_all(part))
            })?;
        }
        Layout::Values => streamed::write_json(value, output)?,
        Layout::Fields(_) => unreachable!("fields are those of a whole value"),
    }
    output.write_all(b"\n")
}

fn write_fields(output: &mut impl Write, value: &[u8], names: &[String]) -> io::Result<()> {
    let fields = Fields::of_object(value)?;
    output.write_all(b"{")?;
    let mut is_first = true;
    for name in names {
        let Some(field) = fields.get(name)? else { continue };
        if !std::mem::take(&mut is_first) {
            output.write_all(b",")?;
        }
        serde_json::to_writer(&mut *output, name)?;
        output.write_all(b":")?;
        write_json(output, field)?;
    }
    output.write_all(b"}")
}

impl<W: Write> Sink for JsonLinesSink<W> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if !self.missing.is_empty() {
            Fields::of_object(value)?.strike_from(&mut self.missing);
        }
        if may_exceed(self.bytes_limit, (key.len() + value.len()) as u64) {
            write_line(&mut Measure::new(self.bytes_limit), &self.layout, key, value)?;
        }
        write_line(&mut self.output, &self.layout, key, value)
    }

    fn write_streamed(&mut self, key: &[u8], length: u64, value: &mut dyn Stream) -> io::Result<()> {
        if let Layout::Fields(_) = self.layout {
            let mut whole = Vec::new();
            value.read_to_end(&mut whole)?;
            return self.write(key, &whole);
        }
        if may_exceed(self.bytes_limit, key.len() as u64 + length) {
            write_line_streamed(&mut Measure::new(self.bytes_limit), &self.layout, key, value)?;
        }
        write_line_streamed(&mut self.output, &self.layout, key, value)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn missing_fields(&self) -> &[String] {
        &self.missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(key: &[&str], value: Option<&str>) -> Choice {
        let key = key.iter().map(|&name| name.to_owned()).collect();
        Choice { key, value: value.map(str::to_owned), header: true, delimiter: None, name: b"t.jsonl".to_vec() }
    }

    fn row(text: &str, choice: &Choice) -> Result<(Vec<u8>, Vec<u8>), (u64, String)> {
        let mut row = Row::default();
        parse(text.as_bytes(), choice, &mut row).map(|()| (row.key, row.value))
    }

    /// Strings, base64 and other JSON are converted to the bytes that they represent.
    #[test]
    fn fields_become_bytes() {
        let text = r#"{"a":"x\n","b":{"base64":"//4="},"c":12.50,"d":{"e":1}}"#;
        assert_eq!(row(text, &choice(&["a"], Some("b"))), Ok((b"x\n".to_vec(), b"\xff\xfe".to_vec())));
        assert_eq!(row(text, &choice(&["c", "a"], Some("d"))), Ok((b"12.50\0x\n".to_vec(), br#"{"e":1}"#.to_vec())));
        assert_eq!(row(text, &choice(&["c"], None)), Ok((b"12.50".to_vec(), text.as_bytes().to_vec())));
    }

    /// A line that is not JSON, is not an object or lacks the field is rejected, with the column.
    #[test]
    fn malformed_lines_have_a_column() {
        assert_eq!(row("{\"a\":1,}", &choice(&["a"], None)).unwrap_err().0, 8);
        assert_eq!(row("{\"a\":", &choice(&["a"], None)).unwrap_err().0, 5);
        assert!(row("[1]", &choice(&["a"], None)).is_err());
        assert!(row("{}", &choice(&["a"], None)).unwrap_err().1.contains("no field \"a\""));
        assert!(row("{} {}", &choice(&[], None)).is_err());
    }
}
