//! Reads and writes outside of transactions, and reads through snapshots.

use std::collections::BTreeMap;
use std::ops::Bound;

use drumlin::{Durability, Error, Keyspace, Salvaged};

use super::answers::{ON_PURPOSE, checked, is_short_of_memory, is_too_old, must, panics, refused};
use super::calls::call;
use super::futures::{Fate, block_on, poll_some};
use super::generator::{bounds, fate, key, value};
use super::model::{
    LENGTHS, is_end, is_in, lengths, read_by, read_value, read_value_async, remove_within, walk, walk_keys,
    walk_values, within,
};
use super::peer::Peer;
use super::sources::{End, Source};
use super::writes::Write;
use crate::Script;

impl Peer {
    /// Makes a write outside of transactions with any of the calls. If its future was dropped, the write may or may not
    /// have happened.
    pub(super) fn write(&mut self, which: usize, script: &mut Script<'_>) {
        let (key, value) = (key(script), value(script));
        let durability = if script.byte().is_multiple_of(3) { Durability::Full } else { Durability::Relaxed };
        let fate = Fate { leaks: false, ..fate(script) };
        let end = match script.byte() % 8 {
            0 => End::Fails,
            1 => End::Panics,
            _ => End::Whole,
        };
        let (keyspace, before) = (self.keyspaces[which].clone(), self.models[which].get(&key).cloned());
        let mut write = Write { keyspace, after: Some(value.clone()), key, value, durability, fate, end, before };
        let done = match script.byte() % 22 {
            number @ 0..=6 => write.insert(number),
            number @ (7 | 8 | 10 | 11) => write.remove(number),
            number @ (12 | 13) => write.replace(number),
            14 => write.insert_if_absent(script),
            15 => write.update(script),
            16 => write.compare_and_swap(script),
            17 => return self.pop(which, script),
            18 => return self.remove_many(which, script),
            19 => return self.load(which, script),
            20 | 21 => return self.batch(which, script),
            _ => return write.refuse_long_key(),
        };
        let Write { key, mut after, .. } = write;
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

    /// Pops a row from either end of the keyspace or of a range.
    fn pop(&mut self, which: usize, script: &mut Script<'_>) {
        let k = &self.keyspaces[which];
        let model = &mut self.models[which];
        let (is_first, fate) = (script.byte().is_multiple_of(2), Fate { leaks: false, ..fate(script) });
        let number = script.byte() % 4;
        let range = if number < 2 { (Bound::Unbounded, Bound::Unbounded) } else { bounds(script) };
        // Look at the model instead of scanning: a scan sees only durable rows, but a pop also sees newer rows.
        let popped = match (is_first, number) {
            (true, 0) => Some(call!("Keyspace::pop_first", k.pop_first())),
            (false, 0) => Some(call!("Keyspace::pop_last", k.pop_last())),
            (true, 1) => poll_some(call!("Keyspace::pop_first_async", k.pop_first_async()), fate),
            (false, 1) => poll_some(call!("Keyspace::pop_last_async", k.pop_last_async()), fate),
            (true, 2) => Some(call!("Keyspace::pop_first_in", k.pop_first_in(&range))),
            (false, 2) => Some(call!("Keyspace::pop_last_in", k.pop_last_in(&range))),
            (true, _) => poll_some(call!("Keyspace::pop_first_in_async", k.pop_first_in_async(&range)), fate),
            (false, _) => poll_some(call!("Keyspace::pop_last_in_async", k.pop_last_in_async(&range)), fate),
        };
        let rows = within(model, &range);
        let end = if is_first { rows.first() } else { rows.last() };
        let end = end.map(|(key, value)| ((*key).clone(), (*value).clone()));
        match popped {
            Some(popped) => {
                let Some(popped) = checked(popped, is_too_old) else { return };
                let popped = popped.map(|(key, value)| (key.to_vec(), value.to_vec()));
                assert_eq!(popped, end, "another row than the one at the end");
                end.map(|(key, _)| model.remove(&key));
            }
            None => {
                self.settle();
                if let Some((key, _)) = end
                    && !must(self.keyspaces[which].contains_key(&key))
                {
                    self.models[which].remove(&key);
                }
            }
        }
    }

    /// Removes the rows of a range with any of the calls.
    fn remove_many(&mut self, which: usize, script: &mut Script<'_>) {
        self.settle();
        let k = &self.keyspaces[which];
        let model = &mut self.models[which];
        let fate = Fate { leaks: false, ..fate(script) };
        let bounds = match script.byte() % 8 {
            0 => (Bound::Unbounded, Bound::Unbounded),
            1 | 2 => (Bound::Included(b"k".to_vec()), Bound::Excluded(b"l".to_vec())),
            _ => bounds(script),
        };
        let (is_all, is_prefix) =
            (bounds.0 == Bound::Unbounded && bounds.1 == Bound::Unbounded, bounds.0 == Bound::Included(b"k".to_vec()));
        let removed = match (script.byte() % 2, is_all, is_prefix && bounds.1 == Bound::Excluded(b"l".to_vec())) {
            (0, true, _) => Some(call!("Keyspace::clear", k.clear())),
            (0, _, true) => Some(call!("Keyspace::remove_prefix", k.remove_prefix("k"))),
            (0, ..) => Some(call!("Keyspace::remove_range", k.remove_range(bounds.clone()))),
            (_, true, _) => poll_some(call!("Keyspace::clear_async", k.clear_async()), fate),
            (_, _, true) => poll_some(call!("Keyspace::remove_prefix_async", k.remove_prefix_async("k")), fate),
            _ => poll_some(call!("Keyspace::remove_range_async", k.remove_range_async(bounds.clone())), fate),
        };
        let rows: Vec<Vec<u8>> = within(model, &bounds).into_iter().map(|(key, _)| key.clone()).collect();
        match removed {
            Some(removed) => {
                let Some(()) = checked(removed, is_too_old) else { return };
                rows.iter().for_each(|key| drop(model.remove(key)));
            }
            None => {
                self.settle();
                // Update the model: remove the rows that are gone from the keyspace.
                for key in rows {
                    if !must(self.keyspaces[which].contains_key(&key)) {
                        self.models[which].remove(&key);
                    }
                }
            }
        }
    }

    /// Commits or drops a batch that writes to both keyspaces.
    fn batch(&mut self, which: usize, script: &mut Script<'_>) {
        self.settle();
        let mut models = self.models.clone();
        let mut batch = must(call!("Database::batch", self.db().batch()));
        let _ = format!("{batch:?}");
        let mut count = 0;
        for _ in 0..script.byte() % 12 {
            let (key, value, of) = (key(script), value(script), usize::from(script.byte() % 2) ^ which);
            let k = &self.keyspaces[of];
            if script.byte().is_multiple_of(8) {
                let (removed, bounds) = match script.byte() % 2 {
                    0 => {
                        let bounds = bounds(script);
                        (call!("Batch::remove_range", batch.remove_range(k, bounds.clone())), bounds)
                    }
                    _ => {
                        let bounds = (Bound::Included(b"k".to_vec()), Bound::Excluded(b"l".to_vec()));
                        (call!("Batch::remove_prefix", batch.remove_prefix(k, "k")), bounds)
                    }
                };
                if checked(removed, is_short_of_memory).is_some() {
                    remove_within(&mut models[of], &bounds);
                    count += 1;
                }
                continue;
            }
            let (mut after, source) = (Some(value.clone()), Source::new(&value, End::Whole));
            let done = match script.byte() % 8 {
                0 => block_on(call!("Batch::insert_async", batch.insert_async(k, &key, &value))),
                1 => call!("Batch::insert_from", batch.insert_from(k, &key, source)).map(drop),
                2 => block_on(call!("Batch::insert_from_async", batch.insert_from_async(k, &key, source))).map(drop),
                3 | 4 => {
                    after = None;
                    call!("Batch::remove", batch.remove(k, &key))
                }
                _ => call!("Batch::insert", batch.insert(k, &key, &value)),
            };
            if checked(done, is_short_of_memory).is_none() {
                continue;
            }
            count += 1;
            match after {
                Some(value) => drop(models[of].insert(key, value)),
                None => drop(models[of].remove(&key)),
            }
        }
        assert_eq!(call!("Batch::len", batch.len()), count);
        assert_eq!(call!("Batch::is_empty", batch.is_empty()), count == 0);
        let durability = if script.byte().is_multiple_of(3) { Durability::Full } else { Durability::Relaxed };
        let fate = Fate { leaks: false, ..fate(script) };
        let done = match script.byte() % 5 {
            0 => Some(call!("Batch::commit", batch.commit())),
            1 => Some(call!("Batch::commit_with", batch.commit_with(durability))),
            2 => poll_some(call!("Batch::commit_async", batch.commit_async()), fate),
            3 => poll_some(call!("Batch::commit_with_async", batch.commit_with_async(durability)), fate),
            _ => {
                drop(batch);
                return;
            }
        };
        match done.map(|done| checked(done, is_short_of_memory)) {
            Some(Some(_)) => self.models = models,
            Some(None) => {}
            None => {
                self.settle();
                let is_there = self.is_as(&models);
                assert!(is_there || self.is_as(&self.models), "half of a batch");
                if is_there {
                    self.models = models;
                }
            }
        }
    }

    /// Loads rows in bulk, in ascending or descending order, into a keyspace that may have rows. Drops some of
    /// the loads.
    fn load(&mut self, which: usize, script: &mut Script<'_>) {
        self.settle();
        let name = self.keyspaces[which].name();
        let begun = match script.byte() % 2 {
            0 => call!("Database::bulk_load", self.db().bulk_load(&name)),
            _ => block_on(call!("Database::bulk_load_async", self.db().bulk_load_async(&name))),
        };
        let Some(mut load) = checked(begun, is_short_of_memory) else { return };
        let _ = format!("{load:?}");
        let rows: BTreeMap<Vec<u8>, Vec<u8>> = (0..script.byte() % 16).map(|_| (key(script), value(script))).collect();
        let mut order: Vec<_> = rows.iter().collect();
        if script.byte().is_multiple_of(2) {
            order.reverse();
        }
        for (key, value) in order {
            let done = match script.byte() % 3 {
                0 => call!("BulkLoad::insert", load.insert(key, value)),
                1 => call!("BulkLoad::insert_from", load.insert_from(key, &value[..])).map(|length| {
                    assert_eq!(length, value.len() as u64);
                }),
                _ => block_on(call!("BulkLoad::insert_async", load.insert_async(key, value))),
            };
            if checked(done, is_short_of_memory).is_none() {
                return;
            }
        }
        let done = match script.byte() % 5 {
            0 | 1 => call!("BulkLoad::finish", load.finish()),
            2 | 3 => block_on(call!("BulkLoad::finish_async", load.finish_async())),
            _ => return,
        };
        if let Some(report) = checked(done, is_short_of_memory) {
            assert_eq!(report.rows, rows.len() as u64);
            self.models[which].extend(rows);
        }
    }

    /// Makes a read outside of transactions with any of the calls.
    pub(super) fn read(&self, which: usize, script: &mut Script<'_>) {
        let key = key(script);
        match script.byte() % 16 {
            number @ (0..=6 | 10 | 15) => self.read_row(which, &key, number, script),
            7 => self.count(which, &key, script),
            number @ (8 | 9 | 14) => self.scan(which, number, script),
            number => self.read_ends(which, number),
        }
    }

    /// Reads a row with the call that `number` selects.
    fn read_row(&self, which: usize, key: &Vec<u8>, number: u8, script: &mut Script<'_>) {
        let (k, expected) = (&self.keyspaces[which], self.models[which].get(key));
        let is_it = |found: Option<drumlin::Value>| assert_eq!(found.as_deref(), expected.map(Vec::as_slice));
        match number {
            0 => {
                is_it(must(call!("Keyspace::get", k.get(key))));
                let mut value = b"of another row".to_vec();
                let found = must(call!("Keyspace::get_into", k.get_into(key, &mut value)));
                is_in(&value, found, expected);
                // The nested call must not reuse the vector that the outer call is showing.
                let look = |shown: &[u8]| {
                    is_it(must(k.get_with(key, |again| again.into())));
                    shown.to_vec()
                };
                assert_eq!(must(call!("Keyspace::get_with", k.get_with(key, look))).as_ref(), expected);
                if expected.is_some() {
                    panics(|| drop(k.get_with(key, |_| panic!("{ON_PURPOSE}"))));
                }
            }
            1 => {
                is_it(must(block_on(call!("Keyspace::get_async", k.get_async(key)))));
                let mut value = b"of another row".to_vec();
                let found = must(block_on(call!("Keyspace::get_into_async", k.get_into_async(key, &mut value))));
                is_in(&value, found, expected);
                let found = block_on(call!("Keyspace::get_with_async", k.get_with_async(key, <[u8]>::to_vec)));
                assert_eq!(must(found).as_ref(), expected);
            }
            2 => {
                poll_some(k.get_async(key), fate(script)).into_iter().map(must).for_each(is_it);
                let mut value = b"of another row".to_vec();
                if let Some(found) = poll_some(k.get_into_async(key, &mut value), fate(script)) {
                    is_in(&value, must(found), expected);
                }
                if let Some(found) = poll_some(k.get_with_async(key, <[u8]>::len), fate(script)) {
                    assert_eq!(must(found), expected.map(Vec::len));
                }
            }
            3 => assert_eq!(must(call!("Keyspace::contains_key", k.contains_key(key))), expected.is_some()),
            4 => {
                let found = call!("Keyspace::contains_key_async", k.contains_key_async(key));
                assert_eq!(must(block_on(found)), expected.is_some());
            }
            5 => {
                let keys = [key.clone(), vec![b'k', 3], vec![9; 4000]];
                let found = must(call!("Keyspace::get_many", k.get_many(&keys)));
                is_it(found[0].clone());
                assert!(found.len() == 3 && found[2].is_none());
                let are_there = found.iter().map(Option::is_some).collect::<Vec<_>>();
                assert_eq!(must(call!("Keyspace::contains_many", k.contains_many(&keys))), are_there);
                let found = call!("Keyspace::contains_many_async", k.contains_many_async(&keys));
                assert_eq!(must(block_on(found)), are_there);
            }
            6 => {
                let keys = [key];
                let found = call!("Keyspace::get_many_async", k.get_many_async(&keys));
                must(block_on(found)).into_iter().for_each(is_it);
            }
            10 => read_value(must(call!("Keyspace::read", k.read(key))), expected, script),
            _ => {
                let reader = must(block_on(call!("Keyspace::read_async", k.read_async(key))));
                read_value_async(reader, expected, script);
            }
        }
    }

    /// Counts rows, aggregates a range, and finds rows by their position.
    fn count(&self, which: usize, key: &Vec<u8>, script: &mut Script<'_>) {
        let (k, model) = (&self.keyspaces[which], &self.models[which]);
        let bounds = bounds(script);
        let rows = within(model, &bounds);
        let expected = rows.len() as u64;
        assert_eq!(must(call!("Keyspace::count", k.count(bounds.clone()))), expected);
        assert_eq!(must(block_on(call!("Keyspace::count_async", k.count_async(bounds.clone())))), expected);
        // Any leaf may have rows of any size, so only the order of magnitude of the whole keyspace is known.
        let estimate = must(call!("Keyspace::estimate", k.estimate(bounds.clone())));
        let again = must(block_on(call!("Keyspace::estimate_async", k.estimate_async(bounds.clone()))));
        assert!(estimate.max(again) <= 100 * (model.len() as u64 + 100), "{estimate} and {again} of {}", model.len());
        assert_eq!(must(call!("Keyspace::len", k.len())), model.len() as u64);
        assert_eq!(must(block_on(call!("Keyspace::len_async", k.len_async()))), model.len() as u64);
        let below = model.range::<Vec<u8>, _>(..key).count() as u64;
        assert_eq!(must(call!("Keyspace::rank", k.rank(key))), below);
        assert_eq!(must(block_on(call!("Keyspace::rank_async", k.rank_async(key)))), below);
        let sum = lengths(&rows);
        assert_eq!(must(call!("Keyspace::aggregate", k.aggregate(&LENGTHS, bounds.clone()))), sum);
        let reduced = call!("Keyspace::aggregate_async", k.aggregate_async(&LENGTHS, bounds.clone()));
        assert_eq!(must(block_on(reduced)), sum);
        let index = usize::from(script.byte());
        let found = [
            must(call!("Keyspace::nth", k.nth(bounds.clone(), index as u64))),
            must(block_on(call!("Keyspace::nth_async", k.nth_async(bounds.clone(), index as u64)))),
        ];
        for found in found {
            assert_eq!(found.map(|(key, _)| key.into_vec()), rows.get(index).map(|(key, _)| (*key).clone()));
        }
        let sample = must(call!("Keyspace::sample", k.sample(bounds.clone(), 3)));
        assert!(sample.len() == rows.len().min(3) && sample.iter().all(|(key, _)| model.contains_key(&key[..])));
        let sample = must(block_on(call!("Keyspace::sample_async", k.sample_async(bounds, 3))));
        assert_eq!(sample.len(), rows.len().min(3));
    }

    /// Iterates over rows with the call that `number` selects.
    fn scan(&self, which: usize, number: u8, script: &mut Script<'_>) {
        let (k, model) = (&self.keyspaces[which], &self.models[which]);
        match number {
            8 => {
                let bounds = bounds(script);
                walk(call!("Keyspace::range", k.range(bounds.clone())), &within(model, &bounds), is_too_old, script);
            }
            9 => {
                let rows: Vec<_> = model.iter().filter(|(key, _)| key.starts_with(b"k")).collect();
                walk(call!("Keyspace::prefix", k.prefix("k")), &rows, is_too_old, script);
                walk(call!("Keyspace::iter", k.iter()), &model.iter().collect::<Vec<_>>(), is_too_old, script);
                salvage_all(k, model);
            }
            _ => {
                let rows: Vec<_> = model.iter().collect();
                walk_keys(call!("Keyspace::keys", k.keys()), &rows, is_too_old, script);
                walk_values(call!("Keyspace::values", k.values()), &rows, is_too_old, script);
            }
        }
    }

    /// Reads the first or last row, or checks whether there are rows, with the call that `number` selects.
    fn read_ends(&self, which: usize, number: u8) {
        let (k, model) = (&self.keyspaces[which], &self.models[which]);
        match number {
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
            _ => {
                assert_eq!(must(call!("Keyspace::is_empty", k.is_empty())), model.is_empty());
                let _ = must(call!("Keyspace::disk_bytes", k.disk_bytes()));
                assert_eq!(must(block_on(call!("Keyspace::is_empty_async", k.is_empty_async()))), model.is_empty());
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

/// Salvages all rows of a sound keyspace, with blocking and asynchronous steps.
fn salvage_all(k: &Keyspace, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut salvage = call!("Range::salvage", k.iter().salvage());
    for (number, (key, value)) in model.iter().enumerate() {
        let step = match number % 2 {
            0 => salvage.next(),
            _ => block_on(call!("Salvage::next_async", salvage.next_async())),
        };
        let Some(step) = checked(step.expect("a row is left"), is_too_old) else { return };
        assert!(matches!(&step, Salvaged::Row(found, of) if **found == **key && **of == **value), "{step:?}");
    }
    assert!(salvage.next().is_none(), "more rows than there are");
}
