//! Changes within a transaction that depend on the row's old value.

use std::collections::BTreeMap;
use std::ops::Bound;

use drumlin::{Keyspace, Transaction, Value};

use super::answers::{checked, is_short_of_memory};
use super::calls::call;
use super::futures::block_on;
use super::generator::{bounds, value};
use super::model::within;
use crate::Script;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Changes a row with any of the calls, blocking or asynchronous. A call that is refused must leave the row unchanged.
pub(super) fn change_row(tx: &mut Transaction, k: &Keyspace, rows: &mut Rows, key: &[u8], script: &mut Script<'_>) {
    let (value, is_task) = (value(script), script.byte().is_multiple_of(2));
    let before = rows.get(key).cloned();
    let was = |found: Option<Value>| assert_eq!(found.as_deref(), before.as_deref(), "the row before");
    let changed = match script.byte() % 6 {
        0 => {
            let taken = match is_task {
                true => block_on(call!("Transaction::take_async", tx.take_async(k, key))),
                false => call!("Transaction::take", tx.take(k, key)),
            };
            checked(taken, is_short_of_memory).map(|found| (was(found), None).1)
        }
        1 => {
            let replaced = match is_task {
                true => block_on(call!("Transaction::replace_async", tx.replace_async(k, key, &value))),
                false => call!("Transaction::replace", tx.replace(k, key, &value)),
            };
            checked(replaced, is_short_of_memory).map(|found| (was(found), Some(value)).1)
        }
        2 => {
            let inserted = match is_task {
                true => {
                    block_on(call!("Transaction::insert_if_absent_async", tx.insert_if_absent_async(k, key, &value)))
                }
                false => call!("Transaction::insert_if_absent", tx.insert_if_absent(k, key, &value)),
            };
            checked(inserted, is_short_of_memory).map(|is_inserted| {
                assert_eq!(is_inserted, before.is_none());
                Some(before.clone().unwrap_or(value))
            })
        }
        3 => {
            let after = (!script.byte().is_multiple_of(3)).then_some(value);
            let change = |old: Option<&[u8]>| {
                assert_eq!(old, before.as_deref(), "the row before");
                after.clone()
            };
            let updated = match is_task {
                true => block_on(call!("Transaction::update_async", tx.update_async(k, key, change))),
                false => call!("Transaction::update", tx.update(k, key, change)),
            };
            checked(updated, is_short_of_memory)
        }
        4 => {
            let expected = [None, Some(&b"another"[..]), before.as_deref()][usize::from(script.byte() % 3)];
            let new = script.byte().is_multiple_of(2).then_some(&value[..]);
            let swapped = match is_task {
                true => {
                    let swapped = tx.compare_and_swap_async(k, key, expected, new);
                    block_on(call!("Transaction::compare_and_swap_async", swapped))
                }
                false => call!("Transaction::compare_and_swap", tx.compare_and_swap(k, key, expected, new)),
            };
            checked(swapped, is_short_of_memory).map(|swapped| {
                assert_eq!(swapped.is_ok(), expected == before.as_deref());
                match swapped {
                    Ok(()) => new.map(<[u8]>::to_vec),
                    Err(found) => (was(found), before.clone()).1,
                }
            })
        }
        _ => return pop(tx, k, rows, is_task, script),
    };
    match changed {
        Some(Some(value)) => drop(rows.insert(key.to_vec(), value)),
        Some(None) => drop(rows.remove(key)),
        None => {}
    }
}

fn pop(tx: &mut Transaction, k: &Keyspace, rows: &mut Rows, is_task: bool, script: &mut Script<'_>) {
    let (is_first, has_range) = (script.byte().is_multiple_of(2), script.byte().is_multiple_of(2));
    let range = if has_range { bounds(script) } else { (Bound::Unbounded, Bound::Unbounded) };
    let popped = match (is_first, is_task, has_range) {
        (true, false, false) => call!("Transaction::pop_first", tx.pop_first(k)),
        (true, true, false) => block_on(call!("Transaction::pop_first_async", tx.pop_first_async(k))),
        (false, false, false) => call!("Transaction::pop_last", tx.pop_last(k)),
        (false, true, false) => block_on(call!("Transaction::pop_last_async", tx.pop_last_async(k))),
        (true, false, true) => call!("Transaction::pop_first_in", tx.pop_first_in(k, &range)),
        (true, true, true) => block_on(call!("Transaction::pop_first_in_async", tx.pop_first_in_async(k, &range))),
        (false, false, true) => call!("Transaction::pop_last_in", tx.pop_last_in(k, &range)),
        (false, true, true) => block_on(call!("Transaction::pop_last_in_async", tx.pop_last_in_async(k, &range))),
    };
    let Some(popped) = checked(popped, is_short_of_memory) else { return };
    let within = within(rows, &range);
    let end = if is_first { within.first() } else { within.last() };
    let end = end.map(|(key, _)| (*key).clone()).map(|key| rows.remove_entry(&key).expect("it is there"));
    let popped = popped.map(|(key, value)| (key.into_vec(), value.into_vec()));
    assert_eq!(popped, end, "another row than the one at the end");
}
