//! What a keyspace should hold, and what readers of it must see.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Bound;
use std::pin::Pin;

use drumlin::{AsyncValueReader, Error, Keyspace, Range, ValueReader};
use futures_io::{AsyncRead, AsyncSeek};

use super::answers::{checked, is_gone, must};
use super::calls::call;
use super::futures::{Fate, block_on, poll_some};
use super::generator::fate;
use crate::Script;

pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;
pub(super) type Models = [Model; 2];

pub(super) fn within<'m>(
    model: &'m Model,
    bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>),
) -> Vec<(&'m Vec<u8>, &'m Vec<u8>)> {
    let contains = |key: &Vec<u8>| std::ops::RangeBounds::contains(bounds, key);
    model.iter().filter(|(key, _)| contains(key)).collect()
}

/// Goes through a range from both ends, by both faces, dropping futures on the way.
pub(super) fn walk(
    mut range: Range,
    expected: &[(&Vec<u8>, &Vec<u8>)],
    may: impl Fn(&Error) -> bool,
    script: &mut Script<'_>,
) {
    let _ = format!("{range:?}");
    let (mut front, mut back) = (0, expected.len());
    loop {
        let choice = script.byte();
        let row = match choice % 6 {
            0 => range.next_back(),
            1 => block_on(call!("Range::next_async", range.next_async())),
            2 => block_on(call!("Range::next_back_async", range.next_back_async())),
            // Leaked, it would keep the database open as the range does.
            3 => match poll_some(range.next_async(), Fate { leaks: false, ..fate(script) }) {
                Some(row) => row,
                None => continue,
            },
            _ => range.next(),
        };
        let backward = matches!(choice % 6, 0 | 2);
        let Some(row) = row else { break };
        let Some((key, value)) = checked(row, &may) else {
            assert!(range.next().is_none() && range.next_back().is_none(), "a range goes on after its error");
            return;
        };
        assert!(front < back, "a row too many");
        let at = if backward { back - 1 } else { front };
        assert!(key == *expected[at].0 && value.clone() == *expected[at].1, "a wrong row");
        assert_eq!(call!("Value::into_vec", value.into_vec()), *expected[at].1);
        if backward { back -= 1 } else { front += 1 }
    }
    assert_eq!(front, back, "a row too few");
}

/// Returns `true` if the value from a place on was read to its end as it is; one whose moment is gone may break off.
fn is_rest(bytes: &[u8], rest: &[u8], end: std::io::Result<()>) -> bool {
    match end {
        Ok(()) => bytes == rest,
        Err(error) => is_gone(&error) && rest.starts_with(bytes),
    }
}

/// A reader and the value that it should read, or neither.
fn both<R>(reader: Option<R>, expected: Option<&Vec<u8>>) -> Option<(R, &Vec<u8>)> {
    assert_eq!(reader.is_some(), expected.is_some(), "a row too many or too few");
    reader.zip(expected)
}

pub(super) fn read_value(reader: Option<ValueReader>, expected: Option<&Vec<u8>>, script: &mut Script<'_>) {
    let Some((mut reader, expected)) = both(reader, expected) else { return };
    let _ = format!("{reader:?}");
    assert_eq!(call!("ValueReader::len", reader.len()), expected.len() as u64);
    assert_eq!(call!("ValueReader::is_empty", reader.is_empty()), expected.is_empty());
    for to in [SeekFrom::End(i64::MAX), SeekFrom::Current(i64::MIN), SeekFrom::Start(u64::MAX)] {
        let _ = reader.seek(to);
        let mut byte = [0];
        assert!(reader.read(&mut byte).map_or_else(|error| is_gone(&error), |count| count <= 1));
    }
    let from = script.number() % (expected.len() + 1);
    reader.seek(SeekFrom::Start(from as u64)).expect("it is within the value");
    let mut bytes = Vec::new();
    let end = reader.read_to_end(&mut bytes).map(drop);
    assert!(is_rest(&bytes, &expected[from..], end), "a wrong value");
}

pub(super) fn read_value_async(reader: Option<AsyncValueReader>, expected: Option<&Vec<u8>>, script: &mut Script<'_>) {
    let Some((mut reader, expected)) = both(reader, expected) else { return };
    let _ = format!("{reader:?}");
    assert_eq!(call!("AsyncValueReader::len", reader.len()), expected.len() as u64);
    assert_eq!(call!("AsyncValueReader::is_empty", reader.is_empty()), expected.is_empty());
    let from = script.number() % (expected.len() + 1);
    let seek = poll_fn(|context| Pin::new(&mut reader).poll_seek(context, SeekFrom::Start(from as u64)));
    block_on(seek).expect("it is within the value");
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 50_000]);
    let end = loop {
        let part = poll_fn(|context| Pin::new(&mut reader).poll_read(context, &mut buffer));
        let count = poll_some(part, fate(script));
        let again = || block_on(poll_fn(|context| Pin::new(&mut reader).poll_read(context, &mut buffer)));
        match count.unwrap_or_else(again) {
            Ok(0) => break Ok(()),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) => break Err(error),
        }
    };
    assert!(is_rest(&bytes, &expected[from..], end), "a wrong value");
}

/// The rows are those of the model, in the same order.
pub(super) fn holds(keyspace: &Keyspace, model: &Model) -> bool {
    let rows = keyspace.iter().map(must).map(|(key, value)| (key.to_vec(), value.to_vec()));
    rows.eq(model.iter().map(|(key, value)| (key.clone(), value.clone())))
}

/// Memory that a model takes.
pub(super) fn model_bytes(models: &Models) -> u64 {
    let rows = models.iter().flatten();
    rows.map(|(key, value)| (key.len() + value.len() + 128) as u64).sum()
}
