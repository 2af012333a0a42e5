//! Changes that depend on the newest value of a row, batches, and a queue from which rows are popped.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use drumlin::{Durability, Error, Keyspace, Value};

use super::answers::Call;
use super::{Api, Client, QUEUE, Stop, by_api, numbered};
use crate::model::{Content, Operation, SpaceNumber};

/// The maximum number of rows in the queue: so few that a bulk removal removes all of them in a single part.
const QUEUE_ROWS_MAX: usize = 60;

/// The kinds of conditional changes.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Take,
    Replace,
    InsertIfAbsent,
    Update,
    CompareAndSwap,
}

/// The old row, in the form in which the call returned it.
enum ReturnedRow {
    Value(Option<Value>),
    IsThere(bool),
    /// The content that a successful comparison found.
    Is(Option<Content>),
}

impl Client {
    fn kind(&mut self) -> (Kind, Option<Content>) {
        let content = self.content();
        match self.random.below(5) {
            0 => (Kind::Take, None),
            1 => (Kind::Replace, Some(content)),
            2 => (Kind::InsertIfAbsent, Some(content)),
            3 => (Kind::Update, self.random.chance(60).then_some(content)),
            _ => (Kind::CompareAndSwap, self.random.chance(60).then_some(content)),
        }
    }

    /// Changes one row, depending on its newest value, and commits the change as its own transaction.
    pub(super) async fn conditional(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let key = self.key(space);
        let (kind, after) = self.kind();
        // Half of the comparisons use the newest value, so they succeed unless another client changes the row in
        // between.
        let guess = if self.random.chance(50) { self.session.model.newest(space, &key) } else { self.some_content() };
        let durability = self.durability();
        let window = self.session.model.window();
        let operation = Operation::Rows(vec![(space, key.clone(), after)]);
        let call = if after.is_none() { Call::Removal } else { Call::Change };
        let change = change(self.api, keyspace.with_durability(durability), key.clone(), kind, after, guess);
        let done = self.commit_if(operation, durability == Durability::Full, call, Some(space), change).await?;
        let Some((taken, returned)) = done else { return Ok(()) };
        if taken == 0 {
            match returned {
                ReturnedRow::Value(found) if durability == Durability::Full => {
                    self.check_plain(window, space, &key, found.as_deref());
                }
                _ => {}
            }
            assert!(!matches!(kind, Kind::Replace), "a value was replaced without a commit");
            return Ok(());
        }
        let wanted = self.session.model.at(space, &key, taken - 1);
        match returned {
            ReturnedRow::Value(found) => {
                self.check_value(space, &key, taken, wanted, found.as_deref(), "before a change");
            }
            ReturnedRow::IsThere(is_there) => {
                assert!(!is_there && wanted.is_none(), "commit {taken} put a row that was there: {wanted:?}");
            }
            ReturnedRow::Is(guess) => {
                assert!(Content::are_same(guess, wanted), "commit {taken} replaced {wanted:?}, not {guess:?}");
            }
        }
        Ok(())
    }

    /// Commits rows of several keyspaces as one batch, without any reads.
    pub(super) async fn batch(&mut self) -> Result<(), Stop> {
        let mut batch = match self.session.db.batch() {
            Ok(batch) => batch,
            Err(error) => return self.accept(&error, Call::Plain, None),
        };
        let mut rows: Vec<(SpaceNumber, Vec<u8>, Option<Content>)> = Vec::new();
        for _ in 0..1 + self.random.below(20) {
            let Some((keyspace, space)) = self.any_keyspace() else { continue };
            let (key, content) = (self.key(space), self.some_content());
            let api = self.api;
            let written = match content {
                None => batch.remove(&keyspace, &key),
                Some(content) => {
                    let value = content.bytes();
                    by_api!(api, batch.insert(&keyspace, &key, &value), batch.insert_async(&keyspace, &key, &value))
                }
            };
            if let Err(error) = written {
                self.accept(&error, Call::Transaction, Some(space))?;
                continue;
            }
            // The last write to a row wins.
            rows.retain(|row| (row.0, &row.1) != (space, &key));
            rows.push((space, key, content));
        }
        if rows.is_empty() {
            return Ok(());
        }
        let durability = self.durability();
        let api = self.api;
        let dropped = rows.iter().map(|row| row.0).find(|space| self.session.model.is_dropped(*space));
        let any = dropped.or(rows.first().map(|row| row.0));
        let (spaces, model) = (rows.iter().map(|row| row.0).collect::<Vec<_>>(), self.session.model.clone());
        let commit = async move {
            match by_api!(api, batch.commit_with(durability), batch.commit_with_async(durability)) {
                // By now, the model has recorded the drop, so it knows which keyspace was dropped.
                Err(Error::KeyspaceDropped { name }) => {
                    assert!(spaces.iter().any(|space| model.is_dropped(*space)), "keyspace {name:?} was not dropped");
                    Err(Error::Conflict { reason: "a keyspace was dropped" })
                }
                other => other,
            }
        };
        let is_full = durability == Durability::Full;
        let done = self.commit(Operation::Rows(rows), is_full, Call::Transaction, any, commit).await?;
        if let Some((taken, answered)) = done {
            assert!(taken == 0 || taken == answered.0, "a batch returned another timestamp than it was given");
        }
        Ok(())
    }

    /// Puts rows into the queue, pops them from both ends, and removes them. Only one client at a time uses the queue,
    /// so the model knows which row each pop must return at its timestamp.
    pub(super) async fn queue(&mut self) -> Result<(), Stop> {
        let session = std::sync::Arc::clone(&self.session);
        if session.queue_is_busy.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let done = self.queue_alone().await;
        session.queue_is_busy.store(false, Ordering::SeqCst);
        done
    }

    async fn queue_alone(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.open(QUEUE) else { return Ok(()) };
        let rows = self.session.model.newest_rows(space);
        match self.random.below(10) {
            0..5 if rows.len() < QUEUE_ROWS_MAX => {
                let content = Content { length: self.random.below(500) as usize, seed: self.random.next() };
                let key = numbered(self.random.below(self.session.plan.key_count));
                let operation = Operation::Rows(vec![(space, key.clone(), Some(content))]);
                let api = self.api;
                let insert = async move {
                    by_api!(api, keyspace.insert(&key, content.bytes()), keyspace.insert_async(&key, content.bytes()))
                };
                self.commit(operation, true, Call::Change, Some(space), insert).await?;
                Ok(())
            }
            0..9 => self.pop(&keyspace, space, &rows).await,
            _ => self.remove_many(&keyspace, space, &rows).await,
        }
    }

    async fn pop(&mut self, keyspace: &Keyspace, space: SpaceNumber, rows: &[(Vec<u8>, Content)]) -> Result<(), Stop> {
        let is_first = self.random.chance(50);
        let end = if is_first { rows.first() } else { rows.last() };
        let operation = Operation::Rows(end.iter().map(|(key, _)| (space, key.clone(), None)).collect());
        let api = self.api;
        let pop = async {
            match is_first {
                true => by_api!(api, keyspace.pop_first(), keyspace.pop_first_async()),
                false => by_api!(api, keyspace.pop_last(), keyspace.pop_last_async()),
            }
        };
        let Some((taken, popped)) = self.commit(operation, true, Call::Transaction, Some(space), pop).await? else {
            return Ok(());
        };
        assert_eq!(taken > 0, end.is_some(), "a row was popped without a commit, or the other way round");
        match (end, popped) {
            (None, None) => {}
            (Some((key, content)), Some((found, value))) if found == *key && content.is(&value) => {}
            (end, popped) => panic!("popped {popped:?}, should be {end:?}"),
        }
        Ok(())
    }

    /// Removes many rows with a single call, in one part. If the future of a commit was dropped and the commit is still
    /// in flight, it is unknown whether its rows exist. In that case, does nothing.
    async fn remove_many(
        &mut self,
        keyspace: &Keyspace,
        space: SpaceNumber,
        rows: &[(Vec<u8>, Content)],
    ) -> Result<(), Stop> {
        let (model, answered) = (&self.session.model, self.session.model.answered());
        if rows.iter().any(|(key, _)| model.newest_change(space, key) > answered) {
            return Ok(());
        }
        let prefix = if self.random.chance(50) { Vec::new() } else { vec![b'0', b'0' + self.random.below(3) as u8] };
        let removed = rows.iter().filter(|(key, _)| key.starts_with(&prefix));
        let removed: Vec<_> = removed.map(|(key, _)| (space, key.clone(), None)).collect();
        let api = self.api;
        let remove = async {
            match prefix.is_empty() {
                true => by_api!(api, keyspace.clear(), keyspace.clear_async()),
                false => by_api!(api, keyspace.remove_prefix(&prefix), keyspace.remove_prefix_async(&prefix)),
            }
        };
        let done = self.commit(Operation::Rows(removed), true, Call::Transaction, Some(space), remove).await?;
        let Some((taken, ())) = done else { return Ok(()) };
        assert!(taken > 0, "a range was removed without a timestamp");
        Ok(())
    }
}

/// Makes a conditional change and returns the result that the call reported for the row.
async fn change(
    api: Api,
    k: Keyspace,
    key: Vec<u8>,
    kind: Kind,
    after: Option<Content>,
    guess: Option<Content>,
) -> Result<ReturnedRow, Error> {
    let bytes = after.map(Content::bytes);
    let value = bytes.as_deref().unwrap_or_default();
    Ok(match kind {
        Kind::Take => ReturnedRow::Value(by_api!(api, k.take(&key), k.take_async(&key))?),
        Kind::Replace => ReturnedRow::Value(by_api!(api, k.replace(&key, value), k.replace_async(&key, value))?),
        Kind::InsertIfAbsent => {
            ReturnedRow::IsThere(!by_api!(api, k.insert_if_absent(&key, value), k.insert_if_absent_async(&key, value))?)
        }
        Kind::Update => {
            let seen = Rc::new(RefCell::new(None));
            let old_seen = Rc::clone(&seen);
            let change = move |old: Option<&[u8]>| {
                *old_seen.borrow_mut() = old.map(|old| Value::from(old.to_vec()));
                bytes
            };
            by_api!(api, k.update(&key, change), k.update_async(&key, change))?;
            let seen = seen.borrow_mut().take();
            ReturnedRow::Value(seen)
        }
        Kind::CompareAndSwap => {
            let expected = guess.map(Content::bytes);
            let (expected, new) = (expected.as_deref(), bytes.as_deref());
            let swapped =
                by_api!(api, k.compare_and_swap(&key, expected, new), k.compare_and_swap_async(&key, expected, new))?;
            match swapped {
                Ok(()) => ReturnedRow::Is(guess),
                Err(found) => ReturnedRow::Value(found),
            }
        }
    })
}
