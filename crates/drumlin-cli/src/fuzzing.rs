//! Gives the fuzzer access to the row readers: it can pass any bytes as a file of any format.

use crate::rows::{self, Choice, Format, Layout, Next, Row, SourceError};

const FORMATS: [Format; 4] = [Format::Csv, Format::Tsv, Format::Jsonl, Format::Binary];

fn choice(key: &[&str], value: Option<&str>, header: bool) -> Choice {
    let key = key.iter().map(|&name| name.to_owned()).collect();
    Choice { key, value: value.map(str::to_owned), header, delimiter: None, name: b"fuzz".to_vec() }
}

/// Pairs of key and value.
type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads the rows of a file up to its end, or up to an error that makes the rest of the file untrustworthy.
fn read(format: Format, file: &[u8], choice: Choice) -> (Rows, bool) {
    let mut source = rows::source(format, file, choice);
    let mut found = Rows::new();
    let mut is_clean = true;
    // Each call returns a row or an error and consumes at least one byte, except at the end.
    for _ in 0..file.len() + 3 {
        let mut row = Row::default();
        match source.next(&mut row) {
            Ok(Next::End) => return (found, is_clean),
            Ok(Next::Row) => {}
            Ok(Next::Keyspace) => continue,
            Ok(Next::Streamed) => {
                if source.value().read_to_end(&mut row.value).is_err() {
                    return (found, false);
                }
            }
            Err(SourceError::Row { .. }) => {
                is_clean = false;
                continue;
            }
            Err(SourceError::Rest { .. } | SourceError::Header { .. } | SourceError::Io(_)) => return (found, false),
        }
        found.push((row.key, row.value));
    }
    panic!("{format:?}: the reader does not come to an end");
}

/// Reads the bytes as rows, writes the rows in every format, and checks that reading them back returns the same rows.
pub fn rows(bytes: &[u8]) {
    let Some((&how, file)) = bytes.split_first() else { return };
    let format = FORMATS[usize::from(how % 4)];
    let choice_of = match how / 4 % 4 {
        0 => choice(&["key"], Some("value"), true),
        1 => choice(&["1"], None, false),
        2 => choice(&[], None, true),
        _ => choice(&["key", "value"], None, how & 16 != 0),
    };
    let (found, _) = read(format, file, choice_of);
    for format in FORMATS {
        let mut written = Vec::new();
        let mut sink = rows::sink(format, None, Layout::Rows, &mut written).expect("memory takes everything");
        found.iter().for_each(|(key, value)| sink.write(key, value).expect("memory takes everything"));
        sink.finish().expect("memory takes everything");
        drop(sink);
        let (again, is_clean) = read(format, &written, choice(&["key"], Some("value"), true));
        assert!(is_clean && again == found, "{format:?} does not give back what was written");
    }
}
