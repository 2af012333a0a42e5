//! Writes of single rows outside of transactions, with every call that performs one.

use drumlin::{Durability, Error, Keyspace, Result, Value};

use super::answers::{ON_PURPOSE, checked, panics};
use super::calls::call;
use super::futures::{Fate, block_on, poll_some};
use super::sources::{End, Source};
use crate::Script;

/// The result of a write, or `None` if its future was dropped or its source panicked.
type Done = Option<Result<()>>;

/// A write of one row.
pub(super) struct Write {
    pub(super) keyspace: Keyspace,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) durability: Durability,
    pub(super) fate: Fate,
    /// The way in which the source of the value ends.
    pub(super) end: End,
    /// The row before the write.
    pub(super) before: Option<Vec<u8>>,
    /// The row after the write, if it succeeds.
    pub(super) after: Option<Vec<u8>>,
}

impl Write {
    /// Checks the previous row that the call returned.
    fn check_before(&self, found: Option<&Value>) {
        assert_eq!(found.map(|value| &value[..]), self.before.as_deref(), "the row before");
    }

    /// Stores the value with the call that `number` selects.
    pub(super) fn insert(&self, number: u8) -> Done {
        let Write { keyspace: k, key, value, durability, fate, end, .. } = self;
        let source = || Source::new(value, *end);
        match number {
            0 => Some(call!("Keyspace::insert", k.insert(key, value))),
            1 | 2 => Some(call!("Keyspace::insert_with", k.insert_with(key, value, *durability))),
            3 => Some(block_on(call!("Keyspace::insert_async", k.insert_async(key, value)))),
            4 => poll_some(call!("Keyspace::insert_with_async", k.insert_with_async(key, value, *durability)), *fate),
            5 if *end == End::Panics => {
                panics(|| drop(call!("Keyspace::insert_from", k.insert_from(key, source()))));
                None
            }
            _ if *end == End::Panics => {
                panics(|| drop(block_on(call!("Keyspace::insert_from_async", k.insert_from_async(key, source())))));
                None
            }
            5 => Some(k.insert_from(key, source()).map(|count| assert_eq!(count, value.len() as u64))),
            _ => poll_some(k.insert_from_async(key, source()), *fate).map(|result| result.map(drop)),
        }
    }

    /// Writes a row whose key is too long, which must be refused.
    pub(super) fn refuse_long_key(&self) {
        let k = &self.keyspace;
        let long = vec![7; k.key_bytes_max() + 1];
        let is_long = |error: &Error| matches!(error, Error::KeyTooLong { .. });
        assert!(checked(k.insert(&long, &self.value), is_long).is_none());
        assert!(checked(block_on(k.remove_async(&long)), is_long).is_none());
    }

    /// Removes the row with the call that `number` selects.
    pub(super) fn remove(&mut self, number: u8) -> Done {
        self.after = None;
        let Write { keyspace: k, key, fate, .. } = &*self;
        let was = |found: Option<Value>| self.check_before(found.as_ref());
        match number {
            7 => Some(call!("Keyspace::remove", k.remove(key))),
            8 => poll_some(call!("Keyspace::remove_async", k.remove_async(key)), *fate),
            10 => Some(call!("Keyspace::take", k.take(key)).map(was)),
            _ => poll_some(call!("Keyspace::take_async", k.take_async(key)), *fate).map(|taken| taken.map(was)),
        }
    }

    /// Replaces the value with the call that `number` selects.
    pub(super) fn replace(&self, number: u8) -> Done {
        let Write { keyspace: k, key, value, fate, .. } = self;
        let was = |found: Option<Value>| self.check_before(found.as_ref());
        match number {
            12 => Some(call!("Keyspace::replace", k.replace(key, value)).map(was)),
            _ => {
                let replaced = poll_some(call!("Keyspace::replace_async", k.replace_async(key, value)), *fate);
                replaced.map(|replaced| replaced.map(was))
            }
        }
    }

    /// Stores the value if there is no row.
    pub(super) fn insert_if_absent(&mut self, script: &mut Script<'_>) -> Done {
        self.after = Some(self.before.clone().unwrap_or(self.value.clone()));
        let Write { keyspace: k, key, value, fate, .. } = &*self;
        let is_new = |inserted| assert_eq!(inserted, self.before.is_none());
        match script.byte() % 2 {
            0 => {
                let inserted = call!("Keyspace::insert_if_absent", k.insert_if_absent(key, value));
                Some(inserted.map(is_new))
            }
            _ => {
                let inserted = call!("Keyspace::insert_if_absent_async", k.insert_if_absent_async(key, value));
                poll_some(inserted, *fate).map(|inserted| inserted.map(is_new))
            }
        }
    }

    /// Changes the row with a closure, which may remove the row or panic.
    pub(super) fn update(&mut self, script: &mut Script<'_>) -> Done {
        let Write { keyspace: k, key, value, fate, before, after, .. } = self;
        let changed = (!fate.polls.is_multiple_of(3)).then(|| value.clone());
        let change = |old: Option<&[u8]>| {
            assert_eq!(old, before.as_deref(), "the row before");
            changed.clone()
        };
        after.clone_from(&changed);
        match script.byte() % 3 {
            0 => Some(call!("Keyspace::update", k.update(&*key, change)).map(drop)),
            1 => {
                let updated = call!("Keyspace::update_async", k.update_async(&*key, change));
                poll_some(updated, *fate).map(|updated| updated.map(drop))
            }
            _ => {
                panics(|| drop(k.update(&*key, |_| -> Option<&[u8]> { panic!("{ON_PURPOSE}") })));
                after.clone_from(before);
                Some(Ok(()))
            }
        }
    }

    /// Stores the value, or removes the row, if the current row equals the expected one. The expectation may be right
    /// or wrong.
    pub(super) fn compare_and_swap(&mut self, script: &mut Script<'_>) -> Done {
        let expected = [None, Some(&b"another"[..]), self.before.as_deref()][usize::from(script.byte() % 3)];
        let new = script.byte().is_multiple_of(2).then_some(&self.value[..]);
        let is_same = expected == self.before.as_deref();
        let after = if is_same { new.map(<[u8]>::to_vec) } else { self.before.clone() };
        let is_right = |swapped: std::result::Result<(), Option<Value>>| match swapped {
            Ok(()) => assert!(is_same),
            Err(found) => self.check_before(found.as_ref()),
        };
        let (k, key) = (&self.keyspace, &self.key);
        let done = match script.byte() % 2 {
            0 => {
                let swapped = call!("Keyspace::compare_and_swap", k.compare_and_swap(key, expected, new));
                Some(swapped.map(is_right))
            }
            _ => {
                let swapped = k.compare_and_swap_async(key, expected, new);
                let swapped = poll_some(call!("Keyspace::compare_and_swap_async", swapped), self.fate);
                swapped.map(|swapped| swapped.map(is_right))
            }
        };
        self.after = after;
        done
    }
}
