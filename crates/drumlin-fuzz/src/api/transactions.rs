//! Transactions: their statements and how they end, conflicts, and closures that are retried.

use std::ops::Bound;
use std::time::Duration;

use drumlin::{Error, Isolation, Keyspace, LockMode, Result, Savepoint, Transaction, TxOptions};

use super::answers::{ON_PURPOSE, checked, is_short_of_memory, must, panics, refused};
use super::calls::call;
use super::futures::{Fate, block_on, poll_some};
use super::generator::{bounds, fate, key, options, value};
use super::model::{Models, read_by, remove_within};
use super::peer::Peer;
use super::row_changes::change_row;
use super::sources::{End, Source};
use crate::Script;

#[allow(clippy::too_many_lines, reason = "one arm a call")]
fn statement(
    tx: &mut Transaction,
    keyspaces: &[Keyspace],
    models: &mut Models,
    savepoints: &mut Vec<(Savepoint, Models)>,
    script: &mut Script<'_>,
) -> bool {
    let which = usize::from(script.byte() % 2);
    let (k, key) = (&keyspaces[which], key(script));
    let may = is_short_of_memory;
    let is_it = |models: &Models, found: Option<drumlin::Value>| {
        assert_eq!(found.as_deref(), models[which].get(&key).map(Vec::as_slice));
    };
    let put = |models: &mut Models, done: Option<()>, value: Vec<u8>| {
        if done.is_some() {
            models[which].insert(key.clone(), value);
        }
        done.is_some()
    };
    match script.byte() % 24 {
        0 | 1 | 13 | 14 => read_by(tx, k, &models[which], &key, may, script),
        15 | 16 => change_row(tx, k, &mut models[which], &key, script),
        2 => drop(poll_some(tx.get_async(k, &key), fate(script))),
        3 => {
            let found = checked(call!("Transaction::get_for_update", tx.get_for_update(k, &key)), may);
            found.into_iter().for_each(|found| is_it(models, found));
        }
        20 => {
            let found = checked(call!("Transaction::get_for_share", tx.get_for_share(k, &key)), may);
            found.into_iter().for_each(|found| is_it(models, found));
        }
        21 => {
            let found = call!("Transaction::get_for_share_async", tx.get_for_share_async(k, &key));
            drop(poll_some(found, fate(script)));
            call!("Transaction::set_lock_timeout", tx.set_lock_timeout(Duration::from_millis(1)));
            assert!(call!("Transaction::number", tx.number()) > 0);
        }
        22 => {
            let mode = lock_mode(script);
            let _ = checked(call!("Transaction::lock_row", tx.lock_row(k, &key, mode)), may);
            let locked = call!("Transaction::lock_row_async", tx.lock_row_async(k, &key, mode));
            drop(poll_some(locked, fate(script)));
        }
        23 => {
            let mode = lock_mode(script);
            let _ = checked(call!("Transaction::try_lock_row", tx.try_lock_row(k, &key, mode)), may);
            let locked = call!("Transaction::try_lock_row_async", tx.try_lock_row_async(k, &key, mode));
            drop(poll_some(locked, fate(script)));
            // There are no other writers, so a new snapshot sees the same rows.
            let renewed = call!("Transaction::renew_snapshot", tx.renew_snapshot());
            let _ = checked(renewed, |error| matches!(error, Error::Invalid(_)));
        }
        4 => {
            let found = call!("Transaction::get_for_update_async", tx.get_for_update_async(k, &key));
            drop(poll_some(found, fate(script)));
        }
        5 | 6 => {
            let value = value(script);
            let done = checked(call!("Transaction::insert", tx.insert(k, &key, &value)), may);
            return put(models, done, value);
        }
        7 => {
            let value = value(script);
            let done = checked(block_on(call!("Transaction::insert_async", tx.insert_async(k, &key, &value))), may);
            return put(models, done, value);
        }
        8 => {
            // A dropped insert must have no effect. A completed insert is read back.
            let (value, fate) = (value(script), fate(script));
            // A leaked insert of a large value never releases its stream's memory, and a small budget has memory for
            // only one stream.
            let fate = Fate { leaks: fate.leaks && value.len() < 4096, ..fate };
            if poll_some(tx.insert_async(k, &key, &value), fate).is_none() {
                let Some(found) = checked(tx.get(k, &key), may) else { return false };
                assert!(found.as_deref() == models[which].get(&key).map(Vec::as_slice), "a dropped insert is there");
                return true;
            }
            let Some(found) = checked(tx.get(k, &key), may) else { return false };
            match found {
                Some(found) => drop(models[which].insert(key.clone(), found.to_vec())),
                None => drop(models[which].remove(&key)),
            }
        }
        9 => {
            let value = value(script);
            let end = if script.byte().is_multiple_of(4) { End::Fails } else { End::Whole };
            let may =
                |error: &Error| is_short_of_memory(error) || end == End::Fails && matches!(error, Error::Source { .. });
            let stored = match script.byte() % 2 {
                0 => call!("Transaction::insert_from", tx.insert_from(k, &key, Source::new(&value, end))),
                _ => {
                    let source = Source::new(&value, end);
                    block_on(call!("Transaction::insert_from_async", tx.insert_from_async(k, &key, source)))
                }
            };
            let done = checked(stored, may).map(drop);
            put(models, done, value);
        }
        10 => panics(|| drop(tx.insert_from(k, &key, Source::new(&[1; 100_000], End::Panics)))),
        11 if script.byte().is_multiple_of(3) => {
            let may = |error: &Error| may(error) || matches!(error, Error::Invalid(_));
            let (removed, bounds) = match script.byte() % 2 {
                0 => {
                    let bounds = bounds(script);
                    (call!("Transaction::remove_range", tx.remove_range(k, bounds.clone())), bounds)
                }
                _ => {
                    let bounds = (Bound::Included(b"k".to_vec()), Bound::Excluded(b"l".to_vec()));
                    (call!("Transaction::remove_prefix", tx.remove_prefix(k, "k")), bounds)
                }
            };
            if checked(removed, may).is_some() {
                remove_within(&mut models[which], &bounds);
            }
        }
        11 => {
            if checked(call!("Transaction::remove", tx.remove(k, &key)), may).is_some() {
                models[which].remove(&key);
            }
        }
        12 => {
            if checked(block_on(call!("Transaction::remove_async", tx.remove_async(k, &key))), may).is_some() {
                models[which].remove(&key);
            }
        }
        17 | 18 => savepoints.push((call!("Transaction::savepoint", tx.savepoint()), models.clone())),
        _ => {
            if let Some((savepoint, kept)) = savepoints.pop() {
                must(call!("Transaction::rollback_to", tx.rollback_to(savepoint)));
                *models = kept;
            }
        }
    }
    true
}

fn lock_mode(script: &mut Script<'_>) -> LockMode {
    if script.byte().is_multiple_of(2) { LockMode::Shared } else { LockMode::Exclusive }
}

impl Peer {
    pub(super) fn transaction(&mut self, other: &Peer, script: &mut Script<'_>) {
        self.settle();
        let options = options(script);
        let mut tx = must(call!("Database::begin_with", self.db().begin_with(options)));
        let mut models = self.models.clone();
        let mut savepoints = Vec::new();
        let mut foreign = must(call!("Database::begin", other.db().begin()));
        let foreign_savepoint = foreign.savepoint();
        for _ in 0..script.byte() % 24 {
            if !statement(&mut tx, &self.keyspaces, &mut models, &mut savepoints, script) {
                break;
            }
            match script.byte() % 16 {
                0 => refused(tx.rollback_to(foreign_savepoint)),
                1 => refused(tx.insert(&other.keyspaces[0], "k", "v")),
                2 => refused(block_on(tx.count_async(&other.keyspaces[0], ..))),
                3 => refused(tx.iter(&other.keyspaces[0]).next_back().expect("an error comes first").map(drop)),
                4 => refused(block_on(tx.get_for_update_async(&other.keyspaces[1], "k")).map(drop)),
                _ => {}
            }
        }
        drop(foreign);
        let may = is_short_of_memory;
        match script.byte() % 10 {
            8 | 9 => self.prepared(tx, models, script),
            0 => call!("Transaction::abort", tx.abort()),
            1 => drop(tx),
            2 => {
                let commit = call!("Transaction::commit_async", tx.commit_async());
                let done = poll_some(commit, Fate { leaks: false, ..fate(script) });
                match done.map(|done| checked(done, may)) {
                    Some(Some(_)) => self.models = models,
                    Some(None) => {}
                    None => {
                        self.settle();
                        let is_there = self.is_as(&models);
                        assert!(is_there || self.is_as(&self.models), "half of a commit");
                        if is_there {
                            self.models = models;
                        }
                    }
                }
            }
            3 => {
                if checked(block_on(tx.commit_async()), may).is_some() {
                    self.models = models;
                }
            }
            _ => {
                if checked(call!("Transaction::commit", tx.commit()), may).is_some() {
                    self.models = models;
                }
            }
        }
        self.check();
    }

    /// Prepares a transaction, and commits or aborts it.
    fn prepared(&mut self, tx: Transaction, models: Models, script: &mut Script<'_>) {
        // An id may be too short or too long.
        let id = vec![script.byte(); [1, 140, 20, 0, 141][usize::from(script.byte() % 5)]];
        let may = |error: &Error| is_short_of_memory(error) || matches!(error, Error::Invalid(_));
        let done = match script.byte() % 4 {
            0 | 1 => Some(call!("Transaction::prepare", tx.prepare(&id))),
            2 => Some(block_on(tx.prepare_async(&id))),
            _ => {
                let prepare = call!("Transaction::prepare_async", tx.prepare_async(&id));
                poll_some(prepare, Fate { leaks: false, ..fate(script) })
            }
        };
        let is_done = done.map(|done| checked(done, may).is_some());
        self.settle();
        self.check();
        // The list leaves out a transaction whose future was dropped before its prepare was durable.
        must(self.db().sync());
        let found = must(call!("Database::prepared", self.db().prepared()));
        assert!(is_done.is_none_or(|is_done| is_done != found.is_empty()), "{found:?}");
        let unknown = |error: &Error| matches!(error, Error::NotPrepared { .. });
        if found.is_empty() {
            assert!(checked(self.db().commit_prepared(&id), unknown).is_none());
            return;
        }
        assert!(found.len() == 1 && found[0].id == id, "{found:?}");
        let again = must(self.db().begin()).prepare(&id);
        assert!(checked(again, |error| matches!(error, Error::AlreadyPrepared { .. })).is_none());
        let (db, durability) = (self.db(), options(script).durability);
        let fate = Fate { leaks: false, ..fate(script) };
        let may = is_short_of_memory;
        let is_committed = match script.byte() % 11 {
            0 => checked(call!("Database::commit_prepared", db.commit_prepared(&id)), may).map(|_| true),
            1 => {
                let done = call!("Database::commit_prepared_with", db.commit_prepared_with(&id, durability));
                checked(done, may).map(|_| true)
            }
            2 => checked(block_on(db.commit_prepared_with_async(&id, durability)), may).map(|_| true),
            3 => {
                let commit = call!("Database::commit_prepared_async", db.commit_prepared_async(&id));
                poll_some(commit, fate).and_then(|done| checked(done, may)).map(|_| true)
            }
            4 => {
                let commit = db.commit_prepared_with_async(&id, durability);
                poll_some(call!("Database::commit_prepared_with_async", commit), fate)
                    .and_then(|done| checked(done, may))
                    .map(|_| true)
            }
            5 => {
                let abort = call!("Database::abort_prepared_async", db.abort_prepared_async(&id));
                poll_some(abort, fate).and_then(|done| checked(done, may)).map(|()| false)
            }
            6 | 7 => {
                let ready = call!("Database::ready_prepared", db.ready_prepared(&id));
                let done = checked(ready, may).map(|ready| call!("ReadyTransaction::commit", ready.commit()));
                done.map(|done| checked(done, |_| false).is_some())
            }
            8 => {
                let ready = call!("Database::ready_prepared_async", db.ready_prepared_async(&id));
                let ready = poll_some(ready, fate).and_then(|ready| checked(ready, may));
                ready.map(|ready| checked(ready.commit(), |_| false).is_some())
            }
            _ => checked(call!("Database::abort_prepared", db.abort_prepared(&id)), may).map(|()| false),
        };
        self.settle();
        let is_committed = is_committed.unwrap_or_else(|| {
            // The future was dropped, or memory was short: the transaction is as it was, or its end was reached.
            let ends = |ended: Result<()>| checked(ended, unknown).is_some();
            let is_there = !ends(self.db().abort_prepared(&id)) && self.is_as(&models);
            assert!(is_there || self.is_as(&self.models), "half of a prepared transaction");
            is_there
        });
        if is_committed {
            self.models = models;
        }
        assert!(must(self.db().prepared()).is_empty());
    }

    /// Makes two transactions contend for the same rows. Drops or leaks the futures that wait for locks.
    pub(super) fn contention(&mut self, script: &mut Script<'_>) {
        self.settle();
        let k = &self.keyspaces[0];
        let mut holder = must(self.db().begin());
        must(holder.get_for_update(k, "a"));
        must(holder.get_for_update(k, "b"));
        let options = TxOptions { isolation: Isolation::ReadCommitted, ..TxOptions::default() };
        let mut tx = must(self.db().begin_with(options));
        for key in ["a", "b", "a"] {
            assert!(poll_some(tx.get_for_update_async(k, key), fate(script)).is_none(), "a row that is held was got");
        }
        let rows = must(call!("Database::locks", self.db().locks()));
        assert!(rows.len() == 2 && rows.iter().all(|row| row.holders == [holder.number()]), "{rows:?}");
        let interrupter = call!("Transaction::interrupter", tx.interrupter());
        call!("Interrupter::interrupt", interrupter.interrupt());
        let interrupted = tx.insert(k, "b", "interrupted");
        assert!(matches!(interrupted, Err(Error::Interrupted { .. })), "{interrupted:?}");
        if script.byte().is_multiple_of(2) {
            drop(holder);
            must(tx.insert(k, "a", "contended"));
            must(tx.commit());
            self.models[0].insert(b"a".to_vec(), b"contended".to_vec());
        } else {
            drop(tx);
            drop(holder);
        }
        for key in ["a", "b"] {
            let mut next = must(self.db().begin_with(TxOptions { lock_timeout: Duration::ZERO, ..options }));
            must(next.get_for_update(&self.keyspaces[0], key));
        }
    }

    /// Runs closures that are retried, and closures that panic.
    pub(super) fn closures(&mut self, script: &mut Script<'_>) {
        let mut runs = Runs { count: 0, conflicts: usize::from(script.byte() % 4) };
        let value = value(script);
        let done = match script.byte() % 5 {
            0 => self.run(&mut runs, &value),
            1 => self.run_with(options(script), &mut runs, &value),
            2 => match script.byte() % 6 {
                0 => self.run_local(&mut runs, &value),
                1 => self.run_with_local(options(script), &mut runs, &value),
                2 => self.run_with_async(options(script), &mut runs, &value),
                3 => self.try_run(&mut runs, &value),
                4 => self.try_run_local(&mut runs, &value),
                _ => self.try_run_async(&mut runs, &value),
            },
            3 => self.run_async(&mut runs, &value),
            _ => return self.panic_in_closures(),
        };
        if checked(done, is_short_of_memory).is_some() {
            assert_eq!(runs.count, runs.conflicts + 1);
            self.models[1].insert(b"run".to_vec(), value);
        }
    }

    fn run(&self, runs: &mut Runs, value: &[u8]) -> Result<()> {
        call!(
            "Database::transact",
            self.db().transact(|tx| {
                let end = runs.next();
                tx.insert(&self.keyspaces[1], "run", value)?;
                end.map_err(|_| call!("Transaction::conflict", tx.conflict("made up")))
            })
        )
    }

    fn run_with(&self, options: TxOptions, runs: &mut Runs, value: &[u8]) -> Result<()> {
        call!(
            "Database::transact_with",
            self.db().transact_with(options, |tx| {
                let end = runs.next();
                tx.insert(&self.keyspaces[1], "run", value)?;
                end
            })
        )
    }

    fn run_local(&self, runs: &mut Runs, value: &[u8]) -> Result<()> {
        block_on(call!(
            "Database::transact_local",
            self.db().transact_local(async |tx| {
                let end = runs.next();
                tx.insert_async(&self.keyspaces[1], "run", value).await?;
                end
            })
        ))
    }

    fn run_with_local(&self, options: TxOptions, runs: &mut Runs, value: &[u8]) -> Result<()> {
        block_on(call!(
            "Database::transact_with_local",
            self.db().transact_with_local(options, async |tx| {
                let end = runs.next();
                tx.insert_async(&self.keyspaces[1], "run", value).await?;
                end
            })
        ))
    }

    fn run_async(&self, runs: &mut Runs, value: &[u8]) -> Result<()> {
        block_on(call!(
            "Database::transact_async",
            self.db().transact_async(|tx| {
                let (end, k, value) = (runs.next(), self.keyspaces[1].clone(), value.to_vec());
                Box::pin(async move {
                    tx.insert_async(&k, "run", &value).await?;
                    end
                })
            })
        ))
    }

    fn run_with_async(&self, options: TxOptions, runs: &mut Runs, value: &[u8]) -> Result<()> {
        block_on(call!(
            "Database::transact_with_async",
            self.db().transact_with_async(options, |tx| {
                let (end, k, value) = (runs.next(), self.keyspaces[1].clone(), value.to_vec());
                Box::pin(async move {
                    tx.insert_async(&k, "run", &value).await?;
                    end
                })
            })
        ))
    }

    fn try_run(&self, runs: &mut Runs, value: &[u8]) -> Result<()> {
        let run = |tx: &mut Transaction| -> std::result::Result<(), Own> {
            let end = runs.next();
            tx.insert(&self.keyspaces[1], "run", value)?;
            Ok(end.map_err(|_| tx.conflict("made up"))?)
        };
        call!("Database::try_transact", self.db().try_transact(run)).map_err(|Own(error)| error)
    }

    fn try_run_local(&self, runs: &mut Runs, value: &[u8]) -> Result<()> {
        let run = async |tx: &mut Transaction| -> std::result::Result<(), Own> {
            let end = runs.next();
            tx.insert_async(&self.keyspaces[1], "run", value).await?;
            Ok(end.map_err(|_| tx.conflict("made up"))?)
        };
        block_on(call!("Database::try_transact_local", self.db().try_transact_local(run))).map_err(|Own(error)| error)
    }

    fn try_run_async(&self, runs: &mut Runs, value: &[u8]) -> Result<()> {
        let ran = block_on(call!(
            "Database::try_transact_async",
            self.db().try_transact_async(|tx| {
                let (end, k, value) = (runs.next(), self.keyspaces[1].clone(), value.to_vec());
                Box::pin(async move {
                    tx.insert_async(&k, "run", &value).await?;
                    Ok(end.map_err(|_| tx.conflict("made up"))?)
                })
            })
        ));
        ran.map_err(|Own(error)| error)
    }

    fn panic_in_closures(&self) {
        let db = self.db();
        panics(|| {
            let _ = db.transact(|tx| -> Result<()> {
                tx.insert(&self.keyspaces[1], "run", "never")?;
                panic!("{ON_PURPOSE}");
            });
        });
        panics(|| drop(call!("Database::check_with", db.check_with(|_| panic!("{ON_PURPOSE}")))));
    }
}

/// An error type of the caller.
struct Own(Error);

impl From<Error> for Own {
    fn from(error: Error) -> Own {
        Own(error)
    }
}

/// The runs of a closure. The first few end with a conflict.
struct Runs {
    count: usize,
    conflicts: usize,
}

impl Runs {
    /// Counts the next run, and returns the result with which it ends.
    fn next(&mut self) -> Result<()> {
        self.count += 1;
        if self.count <= self.conflicts { Err(Error::Conflict { reason: "made up" }) } else { Ok(()) }
    }
}
