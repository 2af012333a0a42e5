//! Threads that contend for a few rows: locks, deadlocks, timeouts, conflicts, and a database that is closed while they
//! run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use drumlin::{Database, Durability, Error, Isolation, Keyspace, Result, Transaction, TxOptions};

use super::answers::{checked, is_short_of_memory, is_too_old, must};
use super::futures::{Fate, block_on, poll_some};
use super::generator::options;
use super::peer::Peer;
use crate::Script;

/// The maximum number of counters that threads increment. The next row stores the sum of all counters.
const COUNTER_COUNT_MAX: usize = 5;
const SUM: usize = COUNTER_COUNT_MAX;
const ROUNDS: usize = 6;

/// The fate of the database while threads use it.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    Stays,
    /// The database is closed.
    Closes,
    /// All handles except those of the threads are dropped.
    Drops,
}

/// Counts the increments of a row by acknowledged commits, and those by commits with an unknown outcome.
#[derive(Default)]
struct Added {
    surely: AtomicU64,
    maybe: AtomicU64,
}

/// The state that the threads share.
struct Shared {
    counter_count: usize,
    ending: Ending,
    /// `true` once closing has begun.
    ends: AtomicBool,
    added: [Added; COUNTER_COUNT_MAX + 1],
}

impl Shared {
    /// Returns `true` for errors that contention or closing can cause.
    fn may(&self, error: &Error) -> bool {
        let is_closed = matches!(error, Error::Closed | Error::Failed { .. } | Error::OutcomeUnknown { .. });
        matches!(error, Error::Conflict { .. } | Error::LockTimeout { .. })
            || is_short_of_memory(error)
            || is_too_old(error)
            || self.ending == Ending::Closes && self.ends.load(Ordering::SeqCst) && is_closed
    }

    /// Adds 1 to each of the given counters, in the given order, and then the number of those counters to the sum.
    fn add(&self, tx: &mut Transaction, keyspaces: &[Keyspace], counters: &[usize], options: TxOptions) -> Result<()> {
        for &counter in counters.iter().chain(&[SUM]) {
            let (k, key) = place(keyspaces, counter);
            // At read committed, locking the row prevents a lost update.
            let before = match options.isolation {
                Isolation::ReadCommitted => tx.get_for_update(k, key)?,
                _ if counter.is_multiple_of(2) => block_on(tx.get_for_update_async(k, key))?,
                _ => tx.get(k, key)?,
            };
            let more = if counter == SUM { counters.len() as u64 } else { 1 };
            tx.insert(k, key, (number(before.as_deref()) + more).to_le_bytes())?;
        }
        Ok(())
    }

    fn note(&self, counters: &[usize], is_sure: bool) {
        let add = |counter: usize, more: usize| {
            let added = &self.added[counter];
            let of = if is_sure { &added.surely } else { &added.maybe };
            of.fetch_add(more as u64, Ordering::SeqCst);
        };
        counters.iter().for_each(|&counter| add(counter, 1));
        add(SUM, counters.len());
    }

    /// Runs one transaction. If it fails, it has no effect.
    fn round(&self, db: &Database, keyspaces: &[Keyspace], script: &mut Script<'_>) -> Result<()> {
        let options = options(script);
        let count = 1 + usize::from(script.byte()) % 3;
        let counters: Vec<usize> = (0..count).map(|_| usize::from(script.byte()) % self.counter_count).collect();
        let how = script.byte() % 8;
        if how == 0 {
            db.transact_with(options, |tx| self.add(tx, keyspaces, &counters, options))?;
            self.note(&counters, true);
            return Ok(());
        }
        let mut tx = db.begin_with(options)?;
        let savepoint = tx.savepoint();
        if how == 1 {
            self.add(&mut tx, keyspaces, &counters, options)?;
            tx.rollback_to(savepoint)?;
        }
        self.add(&mut tx, keyspaces, &counters, options)?;
        let done = match how {
            2 => {
                tx.abort();
                return Ok(());
            }
            3 => Some(block_on(tx.commit_async())),
            4 => poll_some(tx.commit_async(), Fate { polls: usize::from(script.byte() % 4), leaks: false }),
            _ => Some(tx.commit()),
        };
        match done {
            Some(Ok(_)) => self.note(&counters, true),
            None | Some(Err(Error::OutcomeUnknown { .. })) => self.note(&counters, false),
            Some(Err(error)) => return Err(error),
        }
        Ok(())
    }

    /// Checks that the stored sum equals the sum of the counters, all read in one snapshot.
    fn audit(&self, db: &Database, keyspaces: &[Keyspace], by_snapshot: bool) -> Result<()> {
        let row = |found: Option<drumlin::Value>| number(found.as_deref());
        let numbers: Vec<u64> = if by_snapshot {
            let snapshot = db.snapshot();
            let get = |counter| place(keyspaces, counter);
            (0..=SUM).map(|counter| snapshot.get(get(counter).0, get(counter).1).map(row)).collect::<Result<_>>()?
        } else {
            let tx = db.begin_with(TxOptions { isolation: Isolation::Serializable, ..TxOptions::default() })?;
            let get = |counter| place(keyspaces, counter);
            let numbers = (0..=SUM).map(|counter| tx.get(get(counter).0, get(counter).1).map(row));
            let numbers = numbers.collect::<Result<_>>()?;
            tx.commit()?;
            numbers
        };
        assert_eq!(numbers[..SUM].iter().sum::<u64>(), numbers[SUM], "half of a commit");
        Ok(())
    }

    /// Runs the transactions of one thread. Returns early if the database is closed.
    fn work(&self, db: &Database, keyspaces: &[Keyspace], bytes: &[u8], thread: u8) {
        let mut script = Script(bytes);
        for round in 0..ROUNDS as u8 {
            let is_closed = |error: &Error| matches!(error, Error::Closed | Error::Failed { .. });
            let done = match thread {
                0 => self.audit(db, keyspaces, round.is_multiple_of(2)),
                _ => self.round(db, keyspaces, &mut script),
            };
            let ends = done.as_ref().is_err_and(is_closed);
            checked(done, |error| self.may(error));
            if ends {
                return;
            }
        }
    }
}

fn place(keyspaces: &[Keyspace], counter: usize) -> (&Keyspace, &'static str) {
    const KEYS: [&str; COUNTER_COUNT_MAX + 1] =
        ["counter 0", "counter 1", "counter 2", "counter 3", "counter 4", "sum"];
    (&keyspaces[counter % 2], KEYS[counter])
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

impl Peer {
    /// Runs threads that increment a few counters, each thread with its own handles.
    pub(super) fn shared(&mut self, script: &mut Script<'_>) {
        self.settle();
        let ending = [Ending::Stays, Ending::Stays, Ending::Closes, Ending::Drops];
        let ending = ending[usize::from(script.byte()) % 4];
        let shared = Shared {
            counter_count: 1 + usize::from(script.byte()) % COUNTER_COUNT_MAX,
            ending,
            ends: AtomicBool::new(false),
            added: Default::default(),
        };
        // If a keyspace was dropped, its counters are gone.
        let counters = (0..SUM).map(|counter| {
            let (_, key) = place(&self.keyspaces, counter);
            number(self.models[counter % 2].get(key.as_bytes()).map(Vec::as_slice))
        });
        let sum = counters.sum::<u64>().to_le_bytes();
        let (k, key) = place(&self.keyspaces, SUM);
        must(k.insert(key, sum));
        self.models[SUM % 2].insert(key.as_bytes().to_vec(), sum.to_vec());
        let pause = Duration::from_micros(u64::from(script.byte()) * 20);
        let thread_count = 3 + script.byte() % 4;
        let seed = script.number() as u64;
        std::thread::scope(|scope| {
            for thread in 0..thread_count {
                let (db, keyspaces, shared) = (self.db().clone(), self.keyspaces.clone(), &shared);
                scope.spawn(move || {
                    let bytes = super::generator::bytes(seed + u64::from(thread), 16 * ROUNDS);
                    shared.work(&db, &keyspaces, &bytes, thread);
                });
            }
            if ending != Ending::Stays {
                std::thread::sleep(pause);
                shared.ends.store(true, Ordering::SeqCst);
                let db = self.db.take().expect("open");
                self.keyspaces.clear();
                self.snapshots.clear();
                if ending == Ending::Closes { must(db.close()) } else { drop(db) }
            }
        });
        if ending != Ending::Stays {
            self.open(script);
        }
        self.settle();
        for (counter, added) in shared.added.iter().enumerate() {
            let (k, key) = place(&self.keyspaces, counter);
            let found = must(k.get(key));
            let model = &mut self.models[counter % 2];
            let before = number(model.get(key.as_bytes()).map(Vec::as_slice));
            let (surely, maybe) = (added.surely.load(Ordering::SeqCst), added.maybe.load(Ordering::SeqCst));
            let now = number(found.as_deref());
            let may = before + surely..=before + surely + maybe;
            assert!(may.contains(&now), "{key} is {now}, not in {may:?}");
            if let Some(found) = found {
                model.insert(key.as_bytes().to_vec(), found.to_vec());
            }
        }
        must(shared.audit(self.db(), &self.keyspaces, true));
        self.check();
    }

    /// Runs threads that each write their own rows and read the rows of all threads.
    pub(super) fn threads(&mut self) {
        const ROW_COUNT: u8 = 6;
        let k = &self.keyspaces[0];
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    for row in 0..ROW_COUNT {
                        must(k.insert_with([b't', thread, row], [row; 30], Durability::Relaxed));
                        let mut rows = k.prefix("t").map(must);
                        assert!(rows.all(|(key, value)| *value == [key[2]; 30]), "a torn row");
                    }
                });
            }
        });
        for (thread, row) in (0..4u8).flat_map(|thread| (0..ROW_COUNT).map(move |row| (thread, row))) {
            self.models[0].insert(vec![b't', thread, row], vec![row; 30]);
        }
    }
}
