//! Values that consist of fields. `load` stores a whole row as a JSON object, or as an array if the input has no
//! header.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, ErrorKind, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::Sink;
use super::delimited::write_record;

/// The fields of a JSON object, in order, or the elements of an array, which have no names.
#[derive(Debug, Default)]
pub(super) struct Fields<'v> {
    names: Vec<Cow<'v, str>>,
    values: Vec<&'v RawValue>,
}

/// The name of a field, borrowed from the JSON if it has no escapes.
#[derive(Deserialize)]
struct Name<'v>(#[serde(borrow)] Cow<'v, str>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'de>, D::Error> {
        struct AnyFields;
        impl<'de> Visitor<'de> for AnyFields {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object or array")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Fields::default();
                while let Some((Name(name), value)) = map.next_entry()? {
                    fields.names.push(name);
                    fields.values.push(value);
                }
                Ok(fields)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Fields::default();
                while let Some(value) = elements.next_element()? {
                    fields.values.push(value);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_any(AnyFields)
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

impl<'v> Fields<'v> {
    fn of(value: &'v [u8]) -> io::Result<Fields<'v>> {
        serde_json::from_slice(value).map_err(|_| invalid("its value is not a JSON object".to_owned()))
    }

    /// Returns the fields of a value that must be an object.
    pub(super) fn of_object(value: &'v [u8]) -> io::Result<Fields<'v>> {
        let fields = Fields::of(value)?;
        match fields.is_array() && !fields.values.is_empty() {
            true => Err(invalid("its value is a JSON array, whose fields have no names".to_owned())),
            false => Ok(fields),
        }
    }

    /// Removes the names of these fields from `missing`.
    pub(super) fn strike_from(&self, missing: &mut Vec<String>) {
        if !missing.is_empty() {
            missing.retain(|name| !self.names.iter().any(|known| known == name));
        }
    }

    fn is_array(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the field with this name. Fails if two fields have it.
    pub(super) fn get(&self, name: &str) -> io::Result<Option<&'v RawValue>> {
        let mut found = self.names.iter().zip(&self.values).filter(|(known, _)| *known == name);
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(invalid(format!("its value has two fields {name:?}"))),
            (found, _) => Ok(found.map(|(_, value)| *value)),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Base64 {
    base64: String,
}

/// Converts a JSON field to the bytes that it represents.
pub(super) fn field_bytes(field: &RawValue) -> Vec<u8> {
    let text = field.get();
    match text.as_bytes()[0] {
        b'"' => serde_json::from_str::<String>(text).map(String::into_bytes),
        b'{' => serde_json::from_str::<Base64>(text)
            .and_then(|base64| STANDARD.decode(base64.base64).map_err(serde::de::Error::custom)),
        _ => Ok(text.as_bytes().to_vec()),
    }
    // An object that is not base64 represents its own JSON text. A string always parses, unless it contains half of a
    // surrogate pair.
    .unwrap_or_else(|_| text.as_bytes().to_vec())
}

/// Returns a field as a CSV cell. `null` becomes an empty cell.
fn cell(field: &RawValue) -> Vec<u8> {
    if field.get() == "null" { Vec::new() } else { field_bytes(field) }
}

/// Writes the fields of values as CSV or TSV.
#[derive(Debug)]
pub(super) struct FieldsSink<W> {
    delimiter: u8,
    bytes_limit: u64,
    output: W,
    columns: Option<Columns>,
    missing: Vec<String>,
}

#[derive(Debug)]
enum Columns {
    /// The requested fields; any others are omitted.
    Chosen(Vec<String>),
    /// The fields of the first value. Later values must not have additional fields.
    OfFirst(Vec<String>),
    /// The elements of arrays, with this number of elements in each row.
    Unnamed(usize),
}

impl<W: Write> FieldsSink<W> {
    pub(super) fn new(
        delimiter: u8,
        bytes_limit: u64,
        chosen: Option<Vec<String>>,
        mut output: W,
    ) -> io::Result<FieldsSink<W>> {
        if let Some(names) = &chosen {
            write_record(&mut output, delimiter, bytes_limit, names)?;
        }
        Ok(FieldsSink {
            delimiter,
            bytes_limit,
            output,
            missing: chosen.clone().unwrap_or_default(),
            columns: chosen.map(Columns::Chosen),
        })
    }

    /// Determines the columns from the first value, and writes their names as the first line.
    fn settle(&mut self, first: &Fields<'_>) -> io::Result<Columns> {
        if first.values.is_empty() {
            return Err(invalid("its value has no fields, but a line needs at least one".to_owned()));
        }
        if first.is_array() {
            return Ok(Columns::Unnamed(first.values.len()));
        }
        let names: Vec<String> = first.names.iter().map(|name| name.clone().into_owned()).collect();
        names.iter().try_for_each(|name| first.get(name).map(drop))?;
        write_record(&mut self.output, self.delimiter, self.bytes_limit, &names)?;
        Ok(Columns::OfFirst(names))
    }
}

impl<W: Write> Sink for FieldsSink<W> {
    fn write(&mut self, _: &[u8], value: &[u8]) -> io::Result<()> {
        let fields = Fields::of(value)?;
        fields.strike_from(&mut self.missing);
        let columns = match self.columns.take() {
            Some(columns) => columns,
            None => self.settle(&fields)?,
        };
        let cells: Vec<Vec<u8>> = match &columns {
            Columns::Unnamed(count) if fields.is_array() && fields.values.len() == *count => {
                fields.values.iter().map(|field| cell(field)).collect()
            }
            Columns::Unnamed(count) => {
                return Err(invalid(format!("its value is not an array of {count} elements, as the first one is")));
            }
            // The most common case: the same fields in the same order.
            Columns::OfFirst(names) if *names == fields.names => {
                fields.values.iter().map(|field| cell(field)).collect()
            }
            Columns::OfFirst(names) | Columns::Chosen(names) => {
                if let Columns::OfFirst(_) = columns
                    && let Some(other) = fields.names.iter().find(|name| !names.iter().any(|known| known == *name))
                {
                    let what = format!("its value has a field {other:?}, which the first one lacks");
                    return Err(invalid(what));
                }
                if fields.is_array() && !fields.values.is_empty() {
                    return Err(invalid("its value is a JSON array, whose fields have no names".to_owned()));
                }
                let cell_of = |name: &String| Ok(fields.get(name)?.map(cell).unwrap_or_default());
                names.iter().map(cell_of).collect::<io::Result<_>>()?
            }
        };
        self.columns = Some(columns);
        write_record(&mut self.output, self.delimiter, self.bytes_limit, &cells)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn missing_fields(&self) -> &[String] {
        &self.missing
    }
}
