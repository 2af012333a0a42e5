//! Reads and writes outside of transactions, and by snapshots.

use drumlin::{Durability, Error, Keyspace, Result};

use super::answers::{checked, is_too_old, must, panics, refused};
use super::calls::call;
use super::futures::{Fate, block_on, poll_some};
use super::generator::{bounds, fate, key, value};
use super::model::{is_end, read_by, read_value, read_value_async, walk, walk_keys, walk_values, within};
use super::side::Side;
use super::sources::{End, Source};
use crate::Script;

impl Side {
    /// A write outside of a transaction, by any call; `None`: it was dropped on the way.
    pub(super) fn write(&mut self, which: usize, script: &mut Script<'_>) {
        let (key, value) = (key(script), value(script));
        let k = &self.keyspaces[which];
        let durability = if script.byte().is_multiple_of(3) { Durability::Full } else { Durability::Relaxed };
        let fate = Fate { leaks: false, ..fate(script) };
        let end = match script.byte() % 8 {
            0 => End::Fails,
            1 => End::Panics,
            _ => End::Whole,
        };
        let mut after = Some(value.clone());
        let source = || Source::new(&value, end);
        let done: Option<Result<()>> = match script.byte() % 10 {
            0 => Some(call!("Keyspace::insert", k.insert(&key, &value))),
            1 | 2 => Some(call!("Keyspace::insert_with", k.insert_with(&key, &value, durability))),
            3 => Some(block_on(call!("Keyspace::insert_async", k.insert_async(&key, &value)))),
            4 => poll_some(call!("Keyspace::insert_with_async", k.insert_with_async(&key, &value, durability)), fate),
            5 if end == End::Panics => {
                panics(|| drop(call!("Keyspace::insert_from", k.insert_from(&key, source()))));
                None
            }
            6 if end == End::Panics => {
                panics(|| drop(block_on(call!("Keyspace::insert_from_async", k.insert_from_async(&key, source())))));
                None
            }
            5 => Some(k.insert_from(&key, source()).map(|count| assert_eq!(count, value.len() as u64))),
            6 => poll_some(k.insert_from_async(&key, source()), fate).map(|result| result.map(drop)),
            7 => {
                after = None;
                Some(call!("Keyspace::remove", k.remove(&key)))
            }
            8 => {
                after = None;
                poll_some(call!("Keyspace::remove_async", k.remove_async(&key)), fate)
            }
            _ => {
                let long = vec![7; k.key_bytes_max() + 1];
                let is_long = |error: &Error| matches!(error, Error::KeyTooLong { .. });
                assert!(checked(k.insert(&long, &value), is_long).is_none());
                assert!(checked(block_on(k.remove_async(&long)), is_long).is_none());
                return;
            }
        };
        let is_source = |error: &Error| matches!(error, Error::Source { .. }) && end == End::Fails;
        match done.map(|result| checked(result, is_source)) {
            Some(Some(())) => {}
            Some(None) => after = self.models[which].get(&key).cloned(),
            None => {
                self.settle();
                let found = must(self.keyspaces[which].get(&key)).map(|value| value.to_vec());
                let before = self.models[which].get(&key);
                assert!(found.as_ref() == before || found == after, "neither as before nor as written");
                after = found;
            }
        }
        match after {
            Some(value) => drop(self.models[which].insert(key, value)),
            None => drop(self.models[which].remove(&key)),
        }
    }

    pub(super) fn read(&self, which: usize, script: &mut Script<'_>) {
        let (k, model, key) = (&self.keyspaces[which], &self.models[which], key(script));
        let expected = model.get(&key);
        let is_it = |found: Option<drumlin::Value>| assert_eq!(found.as_deref(), expected.map(Vec::as_slice));
        match script.byte() % 16 {
            0 => is_it(must(call!("Keyspace::get", k.get(&key)))),
            1 => is_it(must(block_on(call!("Keyspace::get_async", k.get_async(&key))))),
            2 => poll_some(k.get_async(&key), fate(script)).into_iter().map(must).for_each(is_it),
            3 => assert_eq!(must(call!("Keyspace::contains_key", k.contains_key(&key))), expected.is_some()),
            4 => {
                let found = call!("Keyspace::contains_key_async", k.contains_key_async(&key));
                assert_eq!(must(block_on(found)), expected.is_some());
            }
            5 => {
                let keys = [key.clone(), vec![b'k', 3], vec![9; 4000]];
                let found = must(call!("Keyspace::get_many", k.get_many(&keys)));
                is_it(found[0].clone());
                assert!(found.len() == 3 && found[2].is_none());
            }
            6 => {
                let keys = [&key];
                let found = call!("Keyspace::get_many_async", k.get_many_async(&keys));
                must(block_on(found)).into_iter().for_each(is_it);
            }
            7 => {
                let bounds = bounds(script);
                let expected = within(model, &bounds).len() as u64;
                assert_eq!(must(call!("Keyspace::count", k.count(bounds.clone()))), expected);
                assert_eq!(must(block_on(call!("Keyspace::count_async", k.count_async(bounds)))), expected);
            }
            8 => {
                let bounds = bounds(script);
                walk(call!("Keyspace::range", k.range(bounds.clone())), &within(model, &bounds), is_too_old, script);
            }
            9 => {
                let rows: Vec<_> = model.iter().filter(|(key, _)| key.starts_with(b"k")).collect();
                walk(call!("Keyspace::prefix", k.prefix("k")), &rows, is_too_old, script);
                walk(call!("Keyspace::iter", k.iter()), &model.iter().collect::<Vec<_>>(), is_too_old, script);
            }
            10 => read_value(must(call!("Keyspace::read", k.read(&key))), expected, script),
            11 => {
                is_end(must(call!("Keyspace::first", k.first())).as_ref(), model.first_key_value());
                is_end(
                    must(block_on(call!("Keyspace::first_async", k.first_async()))).as_ref(),
                    model.first_key_value(),
                );
            }
            12 => {
                is_end(must(call!("Keyspace::last", k.last())).as_ref(), model.last_key_value());
                is_end(must(block_on(call!("Keyspace::last_async", k.last_async()))).as_ref(), model.last_key_value());
            }
            13 => {
                assert_eq!(must(call!("Keyspace::is_empty", k.is_empty())), model.is_empty());
                assert_eq!(must(block_on(call!("Keyspace::is_empty_async", k.is_empty_async()))), model.is_empty());
            }
            14 => {
                let rows: Vec<_> = model.iter().collect();
                walk_keys(call!("Keyspace::keys", k.keys()), &rows, is_too_old, script);
                walk_values(call!("Keyspace::values", k.values()), &rows, is_too_old, script);
            }
            _ => {
                let reader = must(block_on(call!("Keyspace::read_async", k.read_async(&key))));
                read_value_async(reader, expected, script);
            }
        }
    }

    pub(super) fn look_back(&mut self, other: &Keyspace, script: &mut Script<'_>) {
        if self.snapshots.len() > 3 {
            self.snapshots.remove(usize::from(script.byte()) % 4);
        }
        self.settle();
        let snapshot = call!("Database::snapshot", self.db().snapshot());
        self.snapshots.push((snapshot, self.models.clone(), self.keyspaces.clone()));
        let at = usize::from(script.byte()) % self.snapshots.len();
        let (snapshot, models, keyspaces) = &self.snapshots[at];
        let which = usize::from(script.byte() % 2);
        let (k, model, key) = (&keyspaces[which], &models[which], key(script));
        let may = |error: &Error| matches!(error, Error::SnapshotTooOld { .. } | Error::KeyspaceDropped { .. });
        let _ = (call!("Snapshot::timestamp", snapshot.timestamp()), format!("{snapshot:?}"));
        match script.byte() % 8 {
            0..7 => read_by(snapshot, k, model, &key, may, script),
            _ => {
                refused(snapshot.get(other, &key));
                refused(block_on(snapshot.read_async(other, &key)).map(drop));
                refused(snapshot.count(other, ..));
                refused(block_on(snapshot.count_async(other, ..)));
                refused(snapshot.get_many(other, &[&key]).map(drop));
                refused(block_on(snapshot.last_async(other)).map(drop));
                let mut range = snapshot.prefix(other, &key);
                refused(range.next().expect("an error comes first").map(drop));
                assert!(range.next().is_none());
            }
        }
    }
}
