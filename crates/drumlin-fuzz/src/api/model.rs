//! The rows that a keyspace must contain, and checks of every call that reads them.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::{Read, Seek, SeekFrom};
use std::ops::{Bound, ControlFlow};
use std::pin::Pin;

use drumlin::{
    AsyncValueReader, Error, Field, Keys, Keyspace, Max, Range, Reader, Readers, ReduceError, Reducer, Result,
    RowStream, Sum, Value, ValueReader, Values,
};
use futures_core::Stream;
use futures_io::{AsyncRead, AsyncSeek};

use super::answers::{checked, is_gone, must};
use super::calls::call;
use super::futures::{Fate, block_on, poll_some};
use super::generator::{bounds, fate};
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

/// Removes the rows within these bounds.
pub(super) fn remove_within(model: &mut Model, bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) {
    model.retain(|key, _| !std::ops::RangeBounds::contains(bounds, key));
}

/// Counts all rows, and the rows below a key.
fn count_all(reader: &Reader, k: &Keyspace, model: &Model, key: &[u8], may: &impl Fn(&Error) -> bool) {
    let below = model.keys().take_while(|of| of[..] < *key).count();
    let counts = [
        (call!("Reader::len", reader.len(k)), model.len()),
        (block_on(call!("Reader::len_async", reader.len_async(k))), model.len()),
        (call!("Reader::rank", reader.rank(k, key)), below),
        (block_on(call!("Reader::rank_async", reader.rank_async(k, key))), below),
    ];
    for (count, expected) in counts {
        checked(count, may).into_iter().for_each(|count| assert_eq!(count, expected as u64));
    }
}

/// Sums the lengths of all values.
pub(super) const LENGTHS: Sum<u64> = Sum::of(Field::of("length", |_, value| Some(value.len() as u64)));

/// Finds the greatest first byte of all non-empty values.
pub(super) const FIRST_BYTES: Max<u8> = Max::of(Field::big_endian(0));

pub(super) fn lengths(rows: &[(&Vec<u8>, &Vec<u8>)]) -> i128 {
    rows.iter().map(|(_, value)| value.len() as i128).sum()
}

/// A reducer that fails for keys that begin with `p` and panics for the empty key.
pub(super) struct FaultyReducer;

impl Reducer for FaultyReducer {
    type State = ();
    type Output = ();

    fn name(&self) -> std::borrow::Cow<'_, str> {
        "careless".into()
    }
    fn identity(&self) {}
    fn row(&self, key: &[u8], _: &[u8]) -> Result<(), ReduceError> {
        match key {
            [] => panic!("{}", super::answers::ON_PURPOSE),
            [b'p', ..] => Err("this row has no state".into()),
            _ => Ok(()),
        }
    }
    fn combine(&self, (): (), (): ()) -> Result<(), ReduceError> {
        Ok(())
    }
    fn encode(&self, (): &(), _: &mut Vec<u8>) {}
    fn decode(&self, _: &[u8]) -> Result<(), ReduceError> {
        Ok(())
    }
    fn output(&self, (): ()) {}
}

/// Reduces a range with two reducers that succeed and one that may fail.
fn reduce(
    reader: &Reader,
    k: &Keyspace,
    bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>),
    expected: &[(&Vec<u8>, &Vec<u8>)],
    may: &impl Fn(&Error) -> bool,
) {
    let sums = [
        call!("Reader::aggregate", reader.aggregate(k, &LENGTHS, bounds.clone())),
        block_on(call!("Reader::aggregate_async", reader.aggregate_async(k, &LENGTHS, bounds.clone()))),
    ];
    sums.into_iter().filter_map(|sum| checked(sum, may)).for_each(|sum| assert_eq!(sum, lengths(expected)));
    if let Some(greatest) = checked(reader.aggregate(k, &FIRST_BYTES, bounds.clone()), may) {
        assert_eq!(greatest, expected.iter().filter_map(|(_, value)| value.first().copied()).max());
    }
    let fails = expected.iter().any(|(key, _)| key.is_empty() || key[0] == b'p');
    let may_fail = |error: &Error| may(error) || fails && matches!(error, Error::Reducer { .. });
    let is_done = checked(reader.aggregate(k, &FaultyReducer, bounds.clone()), may_fail).is_some();
    assert!(!is_done || !fails, "a reducer that failed has an answer");
}

/// Reads a range's rows by their position in it, and a random sample.
fn find_by_place(
    reader: &Reader,
    k: &Keyspace,
    bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>),
    expected: &[(&Vec<u8>, &Vec<u8>)],
    may: &impl Fn(&Error) -> bool,
    script: &mut Script<'_>,
) {
    let index = usize::from(script.byte());
    let found = [
        call!("Reader::nth", reader.nth(k, bounds.clone(), index as u64)),
        block_on(call!("Reader::nth_async", reader.nth_async(k, bounds.clone(), index as u64))),
    ];
    for found in found.into_iter().filter_map(|found| checked(found, may)) {
        let found = found.map(|(key, value)| (key.into_vec(), value.into_vec()));
        assert_eq!(found.as_ref().map(|(key, value)| (key, value)), expected.get(index).copied());
    }
    let count = usize::from(script.byte()) % 5;
    let samples = [
        call!("Reader::sample", reader.sample(k, bounds.clone(), count)),
        block_on(call!("Reader::sample_async", reader.sample_async(k, bounds.clone(), count))),
    ];
    for sample in samples.into_iter().filter_map(|sample| checked(sample, may)) {
        assert!(sample.len() == count.min(expected.len()) && sample.is_sorted_by(|one, next| one.0 < next.0));
        let is_row = |(key, value): &(Value, Value)| expected.iter().any(|row| **row.0 == **key && **row.1 == **value);
        assert!(sample.iter().all(is_row), "a sample has a row that is not there");
    }
}

/// Iterates over a range from both ends, with blocking and asynchronous calls. Some of the futures are dropped.
pub(super) fn walk(
    mut range: Range,
    expected: &[(&Vec<u8>, &Vec<u8>)],
    may: impl Fn(&Error) -> bool,
    script: &mut Script<'_>,
) {
    let _ = format!("{range:?}");
    if script.byte().is_multiple_of(8) {
        let mut expected = expected.iter();
        for row in follow(&mut call!("Range::into_stream", range.into_stream())) {
            let Some((key, value)) = checked(row, &may) else { return };
            assert!(expected.next().is_some_and(|row| key == *row.0 && value == *row.1), "a wrong row");
        }
        assert!(expected.next().is_none(), "a row too few");
        return;
    }
    if script.byte().is_multiple_of(16) {
        walk_keys(call!("Range::keys", range.keys()), expected, may, script);
        return;
    }
    if script.byte().is_multiple_of(16) {
        walk_values(call!("Range::values", range.values()), expected, may, script);
        return;
    }
    if script.byte().is_multiple_of(16) {
        walk_readers(call!("Range::readers", range.readers()), expected, may, script);
        return;
    }
    if script.byte().is_multiple_of(8) {
        show(range, expected, may, script);
        return;
    }
    let (mut front, mut back) = (0, expected.len());
    loop {
        let choice = script.byte();
        let row = match choice % 6 {
            0 => range.next_back(),
            1 => block_on(call!("Range::next_async", range.next_async())),
            2 => block_on(call!("Range::next_back_async", range.next_back_async())),
            // A leaked future would keep the database open, because it borrows the range.
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

/// Passes the rows of a range to a closure from both ends, a few at a time. Some of the futures are dropped.
fn show(mut range: Range, expected: &[(&Vec<u8>, &Vec<u8>)], may: impl Fn(&Error) -> bool, script: &mut Script<'_>) {
    let (mut front, mut back) = (0, expected.len());
    loop {
        let (choice, most) = (script.byte() % 5, usize::from(script.byte() % 32) + 1);
        let (is_backward, mut count) = (choice >= 3, 0);
        let look = |key: &[u8], value: &[u8]| {
            assert!(front < back, "a row too many");
            let at = if is_backward { back - 1 } else { front };
            assert!(key == expected[at].0 && value == expected[at].1, "a wrong row");
            *(if is_backward { &mut back } else { &mut front }) = if is_backward { at } else { at + 1 };
            count += 1;
            if count == most { ControlFlow::Break(at) } else { ControlFlow::Continue(()) }
        };
        let shown = match choice {
            0 => call!("Range::for_each_row", range.for_each_row(look)),
            1 => block_on(call!("Range::for_each_row_async", range.for_each_row_async(look))),
            2 => match poll_some(range.for_each_row_async(look), Fate { leaks: false, ..fate(script) }) {
                Some(shown) => shown,
                None => continue,
            },
            3 => call!("Range::for_each_row_back", range.for_each_row_back(look)),
            _ => block_on(call!("Range::for_each_row_back_async", range.for_each_row_back_async(look))),
        };
        match checked(shown, &may) {
            Some(ControlFlow::Break(at)) => assert!(at == if is_backward { back } else { front - 1 }),
            Some(ControlFlow::Continue(())) => break,
            None => {
                assert!(range.next().is_none() && range.next_back().is_none(), "a range goes on after its error");
                return;
            }
        }
    }
    assert_eq!(front, back, "a row too few");
}

/// Polls a stream to its end.
fn follow<T>(stream: &mut RowStream<T>) -> Vec<Result<T>> {
    let _ = format!("{stream:?}");
    let mut rows = Vec::new();
    while let Some(row) = block_on(poll_fn(|context| Pin::new(&mut *stream).poll_next(context))) {
        rows.push(row);
    }
    assert!(block_on(poll_fn(|context| Pin::new(&mut *stream).poll_next(context))).is_none());
    rows
}

/// Like [`walk`], but for keys. Also reads them as a stream.
pub(super) fn walk_keys(
    mut keys: Keys,
    expected: &[(&Vec<u8>, &Vec<u8>)],
    may: impl Fn(&Error) -> bool,
    script: &mut Script<'_>,
) {
    let expected: Vec<&Vec<u8>> = expected.iter().map(|(key, _)| *key).collect();
    let _ = format!("{keys:?}");
    match script.byte() % 4 {
        0 => same(keys.collect(), &expected, may),
        1 => same(keys.rev().collect(), &expected.into_iter().rev().collect::<Vec<_>>(), may),
        2 => same(follow(&mut call!("Keys::into_stream", keys.into_stream())), &expected, may),
        _ => {
            let mut found: Vec<_> = block_on(call!("Keys::next_async", keys.next_async())).into_iter().collect();
            let last = block_on(call!("Keys::next_back_async", keys.next_back_async()));
            found.extend(keys);
            found.extend(last);
            same(found, &expected, may);
        }
    }
}

/// Like [`walk`], but for values. Also reads them as a stream.
pub(super) fn walk_values(
    mut values: Values,
    expected: &[(&Vec<u8>, &Vec<u8>)],
    may: impl Fn(&Error) -> bool,
    script: &mut Script<'_>,
) {
    let expected: Vec<&Vec<u8>> = expected.iter().map(|(_, value)| *value).collect();
    let _ = format!("{values:?}");
    match script.byte() % 4 {
        0 => same(values.collect(), &expected, may),
        1 => same(values.rev().collect(), &expected.into_iter().rev().collect::<Vec<_>>(), may),
        2 => same(follow(&mut call!("Values::into_stream", values.into_stream())), &expected, may),
        _ => {
            let mut found: Vec<_> = block_on(call!("Values::next_async", values.next_async())).into_iter().collect();
            let last = block_on(call!("Values::next_back_async", values.next_back_async()));
            found.extend(values);
            found.extend(last);
            same(found, &expected, may);
        }
    }
}

/// Like [`walk`], but for values that are read through readers.
fn walk_readers(
    mut readers: Readers,
    expected: &[(&Vec<u8>, &Vec<u8>)],
    may: impl Fn(&Error) -> bool,
    script: &mut Script<'_>,
) {
    let _ = format!("{readers:?}");
    let (mut front, mut back) = (0, expected.len());
    loop {
        let (is_backward, is_task) = (script.byte().is_multiple_of(2), script.byte().is_multiple_of(2));
        let at = if is_backward { back.wrapping_sub(1) } else { front };
        let row = (front < back).then(|| expected[at]);
        let check_key = |key: &Value| {
            assert!(row.is_some_and(|(wanted, _)| *key == *wanted), "a wrong row");
            row.map(|(_, value)| value)
        };
        let read = if is_task {
            let next = match is_backward {
                true => block_on(call!("Readers::next_back_async", readers.next_back_async())),
                false => block_on(call!("Readers::next_async", readers.next_async())),
            };
            next.map(|row| {
                checked(row, &may).map(|(key, reader)| read_value_async(Some(reader), check_key(&key), script))
            })
        } else {
            let next = if is_backward { readers.next_back() } else { readers.next() };
            next.map(|row| checked(row, &may).map(|(key, reader)| read_value(Some(reader), check_key(&key), script)))
        };
        match read {
            None => break,
            Some(None) => return,
            Some(Some(())) if is_backward => back -= 1,
            Some(Some(())) => front += 1,
        }
    }
    assert_eq!(front, back, "a row too few");
}

/// Checks that the values are as expected, up to an error that `may` allows.
fn same(found: Vec<Result<Value>>, expected: &[&Vec<u8>], may: impl Fn(&Error) -> bool) {
    let mut expected = expected.iter();
    for found in found {
        let Some(found) = checked(found, &may) else { return };
        assert_eq!(&found, *expected.next().expect("a row too many"));
    }
    assert!(expected.next().is_none(), "a row too few");
}

/// Checks that the first or last row is the same as the model's.
pub(super) fn is_end(found: Option<&(Value, Value)>, expected: Option<(&Vec<u8>, &Vec<u8>)>) {
    let found = found.map(|(key, value)| (&key[..], &value[..]));
    assert_eq!(found, expected.map(|(key, value)| (&key[..], &value[..])));
}

/// Checks that the vector contains the row's value, or is empty if there is no row.
pub(super) fn is_in(value: &[u8], found: bool, expected: Option<&Vec<u8>>) {
    assert_eq!(found, expected.is_some(), "a row too many or too few");
    assert_eq!(value, expected.map_or(&[][..], |expected| &expected[..]));
}

/// Reads through a snapshot or a transaction that sees the rows of `model`.
pub(super) fn read_by(
    reader: &Reader,
    k: &Keyspace,
    model: &Model,
    key: &Vec<u8>,
    may: impl Fn(&Error) -> bool,
    script: &mut Script<'_>,
) {
    match script.byte() % 14 {
        number @ (0..=2 | 5 | 6) => read_row_by(reader, k, model, (key, number), &may, script),
        3 => read_range_by(reader, k, model, key, &may, script),
        8 => read_many_by(reader, k, model, key, &may),
        number @ (4 | 7 | 12 | 13) => scan_by(reader, k, model, number, &may, script),
        number => read_ends_by(reader, k, model, number, &may),
    }
}

/// Reads a row with the call that `number` selects.
fn read_row_by(
    reader: &Reader,
    k: &Keyspace,
    model: &Model,
    (key, number): (&Vec<u8>, u8),
    may: &impl Fn(&Error) -> bool,
    script: &mut Script<'_>,
) {
    let expected = model.get(key);
    let is_it = |found: Option<Value>| assert_eq!(found.as_deref(), expected.map(Vec::as_slice));
    match number {
        0 => {
            checked(call!("Reader::get", reader.get(k, key)), may).into_iter().for_each(is_it);
            let mut value = b"of another row".to_vec();
            match checked(call!("Reader::get_into", reader.get_into(k, key, &mut value)), may) {
                Some(found) => is_in(&value, found, expected),
                None => assert!(value.is_empty(), "an error leaves a value"),
            }
            let found = call!("Reader::get_with", reader.get_with(k, key, |value| Value::from(value)));
            checked(found, may).into_iter().for_each(is_it);
        }
        1 => {
            let found = block_on(call!("Reader::get_async", reader.get_async(k, key)));
            checked(found, may).into_iter().for_each(is_it);
            let mut value = b"of another row".to_vec();
            let found = block_on(call!("Reader::get_into_async", reader.get_into_async(k, key, &mut value)));
            match checked(found, may) {
                Some(found) => is_in(&value, found, expected),
                None => assert!(value.is_empty(), "an error leaves a value"),
            }
            let found = call!("Reader::get_with_async", reader.get_with_async(k, key, |value| Value::from(value)));
            checked(block_on(found), may).into_iter().for_each(is_it);
        }
        2 => {
            let found = [
                call!("Reader::contains_key", reader.contains_key(k, key)),
                block_on(call!("Reader::contains_key_async", reader.contains_key_async(k, key))),
            ];
            let found = found.into_iter().filter_map(|found| checked(found, may));
            found.for_each(|found| assert_eq!(found, expected.is_some()));
            let keys = [key];
            let found = [
                call!("Reader::contains_many", reader.contains_many(k, &keys)),
                block_on(call!("Reader::contains_many_async", reader.contains_many_async(k, &keys))),
            ];
            let found = found.into_iter().filter_map(|found| checked(found, may));
            found.for_each(|found| assert_eq!(found, [expected.is_some()]));
        }
        5 => {
            if let Some(reader) = checked(call!("Reader::read", reader.read(k, key)), may) {
                read_value(reader, expected, script);
            }
        }
        _ => {
            let reader = block_on(call!("Reader::read_async", reader.read_async(k, key)));
            if let Some(reader) = checked(reader, may) {
                read_value_async(reader, expected, script);
            }
        }
    }
}

/// Reads several rows with one call. One of the keys occurs twice.
fn read_many_by(reader: &Reader, k: &Keyspace, model: &Model, key: &Vec<u8>, may: &impl Fn(&Error) -> bool) {
    let keys = [key.clone(), vec![b'k', 3], vec![9; 4000], key.clone()];
    let found = [
        call!("Reader::get_many", reader.get_many(k, &keys)),
        block_on(call!("Reader::get_many_async", reader.get_many_async(k, &keys))),
    ];
    for found in found.into_iter().filter_map(|found| checked(found, may)) {
        assert!(found.len() == 4 && found[2].is_none());
        assert_eq!(found[1].as_deref(), model.get(&keys[1]).map(Vec::as_slice));
        assert!([0, 3].iter().all(|at| found[*at].as_deref() == model.get(key).map(Vec::as_slice)));
    }
}

/// Scans and counts a range, and finds rows by their position.
fn read_range_by(
    reader: &Reader,
    k: &Keyspace,
    model: &Model,
    key: &[u8],
    may: &impl Fn(&Error) -> bool,
    script: &mut Script<'_>,
) {
    let bounds = bounds(script);
    let expected = within(model, &bounds);
    walk(call!("Reader::range", reader.range(k, bounds.clone())), &expected, may, script);
    let counts = [
        call!("Reader::count", reader.count(k, bounds.clone())),
        block_on(call!("Reader::count_async", reader.count_async(k, bounds.clone()))),
    ];
    let counts = counts.into_iter().filter_map(|count| checked(count, may));
    counts.for_each(|count| assert_eq!(count, expected.len() as u64));
    count_all(reader, k, model, key, may);
    find_by_place(reader, k, &bounds, &expected, may, script);
    reduce(reader, k, &bounds, &expected, may);
}

/// Iterates over rows with the call that `number` selects.
fn scan_by(
    reader: &Reader,
    k: &Keyspace,
    model: &Model,
    number: u8,
    may: &impl Fn(&Error) -> bool,
    script: &mut Script<'_>,
) {
    let all: Vec<_> = model.iter().collect();
    match number {
        4 => walk(call!("Reader::iter", reader.iter(k)), &all, may, script),
        7 => {
            let rows: Vec<_> = model.iter().filter(|(key, _)| key.starts_with(b"p")).collect();
            walk(call!("Reader::prefix", reader.prefix(k, "p")), &rows, may, script);
        }
        12 => walk_keys(call!("Reader::keys", reader.keys(k)), &all, may, script),
        _ => walk_values(call!("Reader::values", reader.values(k)), &all, may, script),
    }
}

/// Reads the first or last row, or checks whether there are rows, with the call that `number` selects.
fn read_ends_by(reader: &Reader, k: &Keyspace, model: &Model, number: u8, may: &impl Fn(&Error) -> bool) {
    match number {
        9 => {
            let found = [
                call!("Reader::first", reader.first(k)),
                block_on(call!("Reader::first_async", reader.first_async(k))),
            ];
            let found = found.into_iter().filter_map(|found| checked(found, may));
            found.for_each(|found| is_end(found.as_ref(), model.first_key_value()));
        }
        10 => {
            let found =
                [call!("Reader::last", reader.last(k)), block_on(call!("Reader::last_async", reader.last_async(k)))];
            let found = found.into_iter().filter_map(|found| checked(found, may));
            found.for_each(|found| is_end(found.as_ref(), model.last_key_value()));
        }
        _ => {
            let found = [
                call!("Reader::is_empty", reader.is_empty(k)),
                block_on(call!("Reader::is_empty_async", reader.is_empty_async(k))),
            ];
            let found = found.into_iter().filter_map(|found| checked(found, may));
            found.for_each(|found| assert_eq!(found, model.is_empty()));
        }
    }
}

/// Returns `true` if the bytes read are the whole rest of the value, or only its beginning because the snapshot was
/// lost during the read.
fn is_rest(bytes: &[u8], rest: &[u8], end: std::io::Result<()>) -> bool {
    match end {
        Ok(()) => bytes == rest,
        Err(error) => is_gone(&error) && rest.starts_with(bytes),
    }
}

/// Pairs a reader with the value that it must read. Returns `None` if there is neither.
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

/// Returns `true` if the keyspace contains exactly the rows of the model, in the same order.
pub(super) fn holds(keyspace: &Keyspace, model: &Model) -> bool {
    let rows = keyspace.iter().map(must).map(|(key, value)| (key.to_vec(), value.to_vec()));
    rows.eq(model.iter().map(|(key, value)| (key.clone(), value.clone())))
}

/// Estimates the memory of the models, in bytes.
pub(super) fn model_bytes(models: &Models) -> u64 {
    let rows = models.iter().flatten();
    rows.map(|(key, value)| (key.len() + value.len() + 128) as u64).sum()
}
