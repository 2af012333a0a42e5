//! Commits of one row, of many rows, and of keyspaces.

use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drumlin::{Alteration, Database, Durability, Error, KeyspaceOptions, TxOptions, Value};

use super::answers::Call;
use super::scans::Bounds;
use super::streams::Slow;
use super::{Api, Client, Count, DURABLE, PASSING, Stop, by_api, numbered};
use crate::model::{Alter, Content, Model, Operation, SpaceNumber};

/// Makes a blocking commit, and records its operation in the model when the commit gets its timestamp. Returns the
/// timestamp, or 0 if the commit got no timestamp.
pub fn recorded<T>(
    model: &Model,
    operation: impl FnOnce(&Model) -> Operation + Send + 'static,
    commit: impl FnOnce() -> Result<T, Error>,
) -> (u64, Result<T, Error>) {
    let taken = Arc::new(AtomicU64::new(0));
    let (reported, model) = (Arc::clone(&taken), model.clone());
    drumlin::simulation::on_timestamp(Some(Box::new(move |timestamp| {
        reported.store(timestamp.0, Ordering::Relaxed);
        model.enter(timestamp.0, operation(&model));
    })));
    let result = commit();
    drumlin::simulation::on_timestamp(None);
    (taken.load(Ordering::Relaxed), result)
}

/// Returns `true` if a removal of this key removes a range that begins with it. Derived from the key instead of drawn,
/// so that the worlds of older seeds make the same calls.
pub(super) fn removes_range(key: &[u8]) -> bool {
    key.last() == Some(&b'1')
}

/// Returns a range that begins with this key and has a part of the keys with a common prefix.
pub(super) fn range_from(key: &[u8]) -> Bounds {
    let is_wide = key.iter().rev().nth(1).is_some_and(|digit| digit % 4 == 0);
    let common_bytes = key.len().saturating_sub(if is_wide { 2 } else { 1 });
    let end = [&key[..common_bytes], &[0xFF]].concat();
    (Bound::Included(key.to_vec()), Bound::Excluded(end))
}

/// Returns these changes as an alteration of the database.
pub fn altering(db: &Database, changes: &[Alter], options: KeyspaceOptions) -> Alteration {
    changes.iter().fold(db.alter(), |alteration, change| match change {
        Alter::Create(name) => alteration.create(name, options),
        Alter::Rename(from, to) => alteration.rename(from, to),
        Alter::Swap(one, other) => alteration.swap(one, other),
        Alter::Drop(name) => alteration.drop(name),
    })
}

impl Client {
    /// Makes a commit, and records its operation in the model when the commit gets its timestamp. Returns `None` if the
    /// commit failed with an expected error or its future was dropped.
    pub(super) async fn commit<T>(
        &mut self,
        operation: Operation,
        is_full: bool,
        call: Call,
        space: Option<SpaceNumber>,
        commit: impl Future<Output = Result<T, Error>>,
    ) -> Result<Option<(u64, T)>, Stop> {
        let puts = operation.puts();
        let done = self.commit_if(operation, is_full, call, space, commit).await?;
        // Removing a row that does not exist may need no commit.
        let is_made = done.as_ref().is_none_or(|(taken, _)| *taken > 0);
        assert!(is_made || !puts, "a commit that puts rows was acknowledged and never made");
        Ok(done)
    }

    /// Like [`commit`](Self::commit), for operations that may not need a commit.
    pub(super) async fn commit_if<T>(
        &mut self,
        operation: Operation,
        is_full: bool,
        call: Call,
        space: Option<SpaceNumber>,
        commit: impl Future<Output = Result<T, Error>>,
    ) -> Result<Option<(u64, T)>, Stop> {
        let taken = Arc::new(Mutex::new((0, Some(operation))));
        let model = self.session.model.clone();
        let reported = Arc::clone(&taken);
        let result = self
            .or_drop(async move {
                let mut commit = pin!(commit);
                poll_fn(|context| {
                    // Other tasks of this thread run between two polls, so set the callback before each poll.
                    let (reported, model) = (Arc::clone(&reported), model.clone());
                    drumlin::simulation::on_timestamp(Some(Box::new(move |timestamp| {
                        let mut reported = reported.lock().expect("nobody panics with it");
                        let operation = reported.1.take().expect("a commit gets one timestamp");
                        reported.0 = timestamp.0;
                        drop(reported);
                        model.enter(timestamp.0, operation);
                    })));
                    let polled = commit.as_mut().poll(context);
                    drumlin::simulation::on_timestamp(None);
                    polled
                })
                .await
            })
            .await;
        let taken = taken.lock().expect("nobody panics with it").0;
        match result {
            Some(result) => self.settle(taken, result, is_full, call, space),
            None => {
                // A commit that got its timestamp is valid even if its future was dropped, and the model has recorded
                // it. If another thread makes the commit for this task, the commit may still get a timestamp.
                if taken > 0 {
                    self.session.counts.add(Count::DroppedLate);
                }
                Ok(None)
            }
        }
    }

    pub(super) async fn autocommit(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let key = self.key(space);
        let content = self.some_content();
        let operation = Operation::Rows(vec![(space, key.clone(), content)]);
        let api = self.api;
        match content {
            None if removes_range(&key) => {
                let bounds = range_from(&key);
                let operation = Operation::RemoveRange(space, bounds.clone());
                let remove =
                    async { by_api!(api, keyspace.remove_range(bounds.clone()), keyspace.remove_range_async(bounds)) };
                self.commit(operation, true, Call::Transaction, Some(space), remove).await?
            }
            None => {
                let remove = async { by_api!(api, keyspace.remove(&key), keyspace.remove_async(&key)) };
                self.commit(operation, true, Call::Removal, Some(space), remove).await?
            }
            Some(content) if content.length > 2000 && self.random.chance(40) => {
                let mut reader = Slow::new(content);
                if self.random.chance(20) {
                    reader.fails_at = Some(self.random.below(content.length as u64) as usize);
                }
                let fails = reader.fails_at.is_some();
                let insert = async {
                    by_api!(api, keyspace.insert_from(&key, reader), keyspace.insert_from_async(&key, reader)).map(drop)
                };
                let call = if fails { Call::FailingSource } else { Call::Change };
                let done = self.commit(operation, true, call, Some(space), insert).await?;
                assert!(done.is_none() || !fails, "a value was stored whose reader failed");
                done
            }
            Some(content) => {
                let durability = self.durability();
                let value = content.bytes();
                let insert = async {
                    by_api!(
                        api,
                        keyspace.insert_with(&key, &value, durability),
                        keyspace.insert_with_async(&key, &value, durability)
                    )
                };
                self.commit(operation, durability == Durability::Full, Call::Change, Some(space), insert).await?
            }
        };
        Ok(())
    }

    /// Runs a transaction that copies one row to another and is retried after conflicts.
    pub(super) async fn closure(&mut self) -> Result<(), Stop> {
        self.session.counts.add(Count::Transactions);
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let (from, to, content) = (self.key(space), self.key(space), self.content());
        let mut rows = vec![(space, from.clone(), Some(content)), (space, to.clone(), Some(content))];
        rows.dedup();
        let (db, model, value) = (self.session.db.clone(), self.session.model.clone(), content.bytes());
        let check = move |snapshot: u64, key: &[u8], found: Option<Value>| {
            let wanted = model.at(space, key, snapshot);
            let is_right = match (&wanted, &found) {
                (Some(wanted), Some(found)) => wanted.is(found),
                (wanted, found) => wanted.is_none() && found.is_none(),
            };
            let may = is_right || model.is_dropped(space);
            assert!(may, "closure: row {} at {snapshot} is not {wanted:?}", key.escape_ascii());
        };
        let parts = Arc::new((keyspace, from, to, value, check));
        let options = TxOptions { lock_timeout: Duration::from_millis(20), ..TxOptions::default() };
        let api = self.api;
        let commit = async move {
            if api == Api::Blocking {
                let (keyspace, from, to, value, check) = &*parts;
                return db.transact_with(options, |tx| {
                    check(tx.snapshot_timestamp().0, from, tx.get(keyspace, from)?);
                    tx.insert(keyspace, from, value)?;
                    tx.insert(keyspace, to, value)
                });
            }
            db.transact_async(|tx| {
                let parts = Arc::clone(&parts);
                Box::pin(async move {
                    let (keyspace, from, to, value, check) = &*parts;
                    check(tx.snapshot_timestamp().0, from, tx.get_async(keyspace, from).await?);
                    tx.insert_async(keyspace, from, value).await?;
                    tx.insert_async(keyspace, to, value).await
                })
            })
            .await
        };
        let done = self.commit(Operation::Rows(rows), true, Call::Transaction, Some(space), commit).await?;
        assert!(done.is_none_or(|(taken, ())| taken > 0), "a closure's transaction was answered and never made");
        Ok(())
    }

    /// Puts or removes many neighbouring rows in one transaction, so that leaves and inner nodes split and merge.
    pub(super) async fn run_of_rows(&mut self) -> Result<(), Stop> {
        self.session.counts.add(Count::Transactions);
        let name = DURABLE[self.random.below(2) as usize].0;
        let Some((keyspace, space)) = self.open(name) else { return Ok(()) };
        let is_put = self.random.chance(50);
        let first = self.random.below(self.session.plan.key_count);
        let count = if is_put { 30 + self.random.below(200) } else { 100 + self.random.below(900) };
        let mut tx = match self.session.db.begin() {
            Ok(tx) => tx,
            Err(error) => return self.accept(&error, Call::Plain, None),
        };
        let mut rows = Vec::new();
        for number in first..(first + count).min(self.session.plan.key_count) {
            let key = numbered(number);
            let length = self.random.below(self.session.plan.value_bytes) as usize;
            let content = is_put.then(|| Content { length, seed: self.random.next() });
            let api = self.api;
            let done = match content {
                Some(content) => {
                    let value = content.bytes();
                    by_api!(api, tx.insert(&keyspace, &key, &value), tx.insert_async(&keyspace, &key, &value))
                }
                None => by_api!(api, tx.remove(&keyspace, &key), tx.remove_async(&keyspace, &key)),
            };
            match done {
                Ok(()) => rows.push((space, key, content)),
                Err(error @ (Error::TransactionTooLarge { .. } | Error::MemoryInUse { .. })) => {
                    self.accept(&error, Call::Transaction, Some(space))?;
                    break;
                }
                Err(error) => return self.accept(&error, Call::Transaction, Some(space)),
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let api = self.api;
        let commit = async move { by_api!(api, tx.commit(), tx.commit_async()) };
        self.commit(Operation::Rows(rows), true, Call::Transaction, Some(space), commit).await?;
        Ok(())
    }

    pub(super) async fn create(&mut self) -> Result<(), Stop> {
        let name = PASSING[self.random.below(3) as usize];
        self.create_named(name).await
    }

    pub(super) async fn create_named(&mut self, name: &'static str) -> Result<(), Stop> {
        let page_bytes = 512 << self.random.below(4);
        let db = self.session.db.clone();
        let options = KeyspaceOptions::new().page_bytes(page_bytes);
        // If the keyspace already exists, creating it takes no timestamp.
        let model = self.session.model.clone();
        let create =
            move || recorded(&model, |_| Operation::Create(name.to_owned()), || db.keyspace_with(name, options));
        let (taken, result) = self.elsewhere(create).await;
        self.settle(taken, result, true, Call::Plain, None)?;
        Ok(())
    }

    /// Loads rows in bulk, in one commit, into a keyspace that is created and dropped at random or into one that other
    /// clients write.
    pub(super) async fn bulk_load(&mut self) -> Result<(), Stop> {
        // Loads into a keyspace with rows become runs above its tree.
        let name = match self.random.below(10) {
            0..3 => DURABLE[0].0,
            3..5 => DURABLE[1].0,
            _ => PASSING[self.random.below(3) as usize],
        };
        let (db, model) = (self.session.db.clone(), self.session.model.clone());
        let (_, alterations) = model.space_now(name);
        // The keyspace may already exist, and may be dropped before the load begins; the load then creates it.
        let operation = move |_: &Model| Operation::Create(name.to_owned());
        let begin = move || {
            let (taken, created) = recorded(&model, operation, || db.keyspace(name));
            let (taken_again, load) = recorded(&model, operation, || db.bulk_load(name));
            (taken, created, taken_again, load)
        };
        let (taken, created, taken_again, load) = self.elsewhere(begin).await;
        self.settle(taken, created, true, Call::Plain, None)?;
        // The load may fail after it has created its keyspace, or because another client has dropped the keyspace.
        if let Err(Error::MemoryInUse { .. } | Error::KeyspaceDropped { .. }) = &load {
            if taken_again > 0 {
                self.session.model.answer(taken_again, true);
                return Ok(());
            }
            if !matches!(load, Err(Error::MemoryInUse { .. })) {
                return Ok(());
            }
        }
        let Some((_, mut load)) = self.settle(taken_again, load, true, Call::Transaction, None)? else {
            return Ok(());
        };
        // If the keyspace has been dropped since then, the load fails, so it does not matter if this number belongs to
        // a newer keyspace of the same name.
        let (Some(space), now) = self.session.model.space_now(name) else { return Ok(()) };
        if now != alterations {
            // The load may belong to a keyspace that has got another name.
            return Ok(());
        }
        let first = self.random.below(self.session.plan.key_count);
        let count = 1 + self.random.below(120);
        let numbers = first..(first + count).min(self.session.plan.key_count);
        let is_dropped = numbers.is_empty() || self.random.chance(20);
        // A load that will be dropped may fill its buffers.
        let length_max = if is_dropped { 12_000 } else { self.session.plan.value_bytes.min(100) };
        let mut rows: Vec<(Vec<u8>, Content)> = numbers
            .map(|number| {
                let length = self.random.below(length_max) as usize;
                (numbered(number), Content { length, seed: self.random.next() })
            })
            .collect();
        // Half of the loads add their rows out of order.
        if self.random.chance(50) {
            for place in (1..rows.len()).rev() {
                rows.swap(place, self.random.below(place as u64 + 1) as usize);
            }
        }
        let operation =
            Operation::Load(rows.iter().map(|(key, content)| (space, key.clone(), Some(*content))).collect());
        let model = self.session.model.clone();
        let finish = move || {
            let inserted = rows.iter().try_for_each(|(key, content)| load.insert(key, content.bytes()));
            if is_dropped {
                return (0, inserted);
            }
            recorded(&model, move |_| operation, || inserted.and_then(|()| load.finish().map(drop)))
        };
        let (taken, result) = self.elsewhere(finish).await;
        if taken == 0 && matches!(result, Err(Error::KeyspaceDropped { .. })) {
            return Ok(());
        }
        self.settle(taken, result, true, Call::Transaction, Some(space))?;
        Ok(())
    }

    /// Creates, renames, swaps and drops keyspaces in one step.
    pub(super) async fn alter(&mut self) -> Result<(), Stop> {
        let mut changes = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let [one, other] = std::array::from_fn(|_| PASSING[self.random.below(3) as usize].to_owned());
            changes.push(match self.random.below(5) {
                0 => Alter::Create(one),
                1 | 2 => Alter::Rename(one, other),
                3 => Alter::Swap(one, other),
                _ => Alter::Drop(one),
            });
        }
        let options = KeyspaceOptions::new().page_bytes(512 << self.random.below(4));
        let (db, model) = (self.session.db.clone(), self.session.model.clone());
        let alter = move || {
            let alteration = altering(&db, &changes, options);
            let (taken, result) = recorded(&model, |_| Operation::Alter(changes), || alteration.commit());
            if taken > 0 {
                model.end_alteration();
            }
            (taken, result)
        };
        let (taken, result) = self.elsewhere(alter).await;
        match result {
            Ok(()) => {
                // Changes that undo each other take no timestamp.
                self.session.model.answer(taken, true);
                Ok(())
            }
            Err(Error::NoSuchKeyspace { .. } | Error::KeyspaceExists { .. }) => {
                assert!(taken == 0, "alteration {taken} was refused");
                Ok(())
            }
            Err(error) => {
                assert!(taken == 0 || matches!(error, Error::OutcomeUnknown { .. }), "alteration {taken}: {error}");
                self.accept(&error, Call::Plain, None)
            }
        }
    }

    /// Clones a keyspace. Others write to it during the call, and drop or rename the clone later.
    pub(super) async fn clone_keyspace(&mut self) -> Result<(), Stop> {
        let from = match self.random.below(4) {
            0 => PASSING[self.random.below(3) as usize],
            _ => DURABLE[self.random.below(2) as usize].0,
        };
        let to = PASSING[self.random.below(3) as usize];
        let (db, model) = (self.session.db.clone(), self.session.model.clone());
        let answered = model.answered();
        let clone = move || {
            // No name changes between the check of the names and the clone's timestamp.
            let operation = move |model: &Model| {
                let as_of = drumlin::simulation::cloned_as_of().0;
                let from = model.space(from).expect("the keyspace that was cloned");
                Operation::Clone { from, to: to.to_owned(), as_of }
            };
            let (taken, result) = recorded(&model, operation, || db.clone_keyspace(from, to));
            if taken > 0 {
                model.end_alteration();
            }
            (taken, result)
        };
        let (taken, result) = self.elsewhere(clone).await;
        match result {
            Ok(as_of) => {
                assert!(
                    answered <= as_of.0 && as_of.0 < taken,
                    "clone {taken} is of {as_of}; {answered} was answered before the call"
                );
                self.session.counts.add(Count::Clones);
                self.session.model.answer(taken, true);
                Ok(())
            }
            // Its page table has no room in memory of its own.
            Err(Error::NoSuchKeyspace { .. } | Error::KeyspaceExists { .. } | Error::BudgetTooSmall { .. }) => {
                assert!(taken == 0, "clone {taken} was refused");
                Ok(())
            }
            Err(error) => {
                assert!(taken == 0 || matches!(error, Error::OutcomeUnknown { .. }), "clone {taken}: {error}");
                self.accept(&error, Call::Plain, None)
            }
        }
    }

    pub(super) async fn drop_keyspace(&mut self) -> Result<(), Stop> {
        let name = PASSING[self.random.below(3) as usize];
        self.drop_named(name).await
    }

    pub(super) async fn drop_named(&mut self, name: &'static str) -> Result<(), Stop> {
        let Some(space) = self.session.model.space(name) else { return Ok(()) };
        let db = self.session.db.clone();
        let model = self.session.model.clone();
        // Another client may drop and recreate the keyspace before this drop. So the operation looks up the name only
        // when the drop gets its timestamp.
        let drop = move || {
            let operation = |model: &Model| Operation::Drop(model.space(name).expect("what is dropped is there"));
            recorded(&model, operation, || db.drop_keyspace(name))
        };
        let (taken, result) = self.elsewhere(drop).await;
        match result {
            Ok(()) => {
                assert!(taken > 0, "a keyspace was dropped without a commit");
                self.session.model.answer(taken, true);
                Ok(())
            }
            Err(Error::NoSuchKeyspace { .. }) => Ok(()),
            Err(error) => {
                assert!(taken == 0 || matches!(error, Error::OutcomeUnknown { .. }), "drop {taken} failed: {error}");
                self.accept(&error, Call::Plain, Some(space))
            }
        }
    }
}
