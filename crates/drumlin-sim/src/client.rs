//! A client: what it asks of the database, drawn from its seed, and what it makes of the answers.
//!
//! A wrong answer is a panic, which ends the simulation and is its report.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use drumlin::io::sim::{self, Disk, Random};
use drumlin::{
    Database, Durability, Error, Isolation, Keyspace, KeyspaceOptions, Snapshot, Transaction, TxOptions, Value,
};

use crate::model::{Content, Deed, Model, SpaceNumber, tell};
use crate::world::{Plan, Trouble};

/// Keyspaces that are always there, and those that come and go.
pub const LASTING: [(&str, usize); 3] = [("rows", 512), ("more", 2048), ("hot", 1024)];
pub const PASSING: [&str; 3] = ["passing a", "passing b", "passing c"];

/// What all clients of a life share.
#[derive(Debug)]
pub struct Life {
    pub db: Database,
    pub disk: Disk,
    pub model: Model,
    pub plan: Plan,
    pub counts: Counts,
}

/// What was done, over all lives.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<[AtomicU64; 8]>);

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    Reads,
    Scans,
    Transactions,
    Conflicts,
    Refused,
    Snapshots,
    SnapshotsTooOld,
    Checkpoints,
}

impl Counts {
    pub fn add(&self, what: Count) {
        self.0[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    #[must_use]
    pub fn get(&self, what: Count) -> u64 {
        self.0[what as usize].load(Ordering::Relaxed)
    }
}

/// The client goes no further in this life.
#[derive(Clone, Copy, Debug)]
pub struct Stop;

struct Client {
    life: Arc<Life>,
    random: Random,
    /// Taken a while ago.
    snapshot: Option<Snapshot>,
}

/// A client's life: so many steps, or until the database accepts no more.
pub fn run(life: Arc<Life>, seed: u64, steps: u64) {
    let mut client = Client { life, random: Random(seed), snapshot: None };
    for _ in 0..steps {
        if client.step().is_err() || client.life.disk.is_off() {
            break;
        }
        let think_nanos = client.life.plan.think_nanos;
        if think_nanos > 0 {
            sim::sleep(Duration::from_nanos(client.random.below(2 * think_nanos)));
        }
    }
    sim::on_timestamp(None);
}

impl Client {
    fn step(&mut self) -> Result<(), Stop> {
        match self.random.below(1000) {
            0..350 => self.autocommit(),
            350..600 => self.transaction(),
            600..680 => self.plain_reads(),
            680..760 => self.plain_scan(),
            760..860 => self.snapshot_reads(),
            860..880 => self.stream(),
            880..900 => self.create(),
            900..912 => self.drop_keyspace(),
            912..940 => self.large_transaction(),
            940..1000 if self.random.below(60) < self.life.plan.upkeep_weight => self.upkeep(),
            _ => {
                sim::sleep(Duration::from_micros(self.random.below(3000)));
                Ok(())
            }
        }
    }

    // ── what there is ──────────────────────────────────────────────────────────────────────────────────────────────

    /// A keyspace, and what the model knows it by; `None` if it was not there.
    fn open(&self, name: &str) -> Option<(Keyspace, SpaceNumber)> {
        let before = self.life.model.space(name)?;
        let keyspace = self.life.db.existing_keyspace(name).ok()?;
        (self.life.model.space(name) == Some(before)).then_some((keyspace, before))
    }

    fn any_keyspace(&mut self) -> Option<(Keyspace, SpaceNumber)> {
        let name = match self.random.below(100) {
            0..40 => LASTING[0].0,
            40..65 => LASTING[1].0,
            65..88 => LASTING[2].0,
            _ => PASSING[self.random.below(3) as usize],
        };
        self.open(name)
    }

    fn key(&mut self, space: SpaceNumber) -> Vec<u8> {
        let name = self.life.model.name(space);
        let count = if name == "hot" { 12 } else { self.life.plan.key_count };
        let mut key = format!("{:05}", self.random.below(count)).into_bytes();
        if key[4] % 10 == 3 && name != "hot" {
            key.extend([b'k'; 100]);
        }
        key
    }

    fn content(&mut self) -> Content {
        let length = match self.random.below(1000) {
            0..60 => 0,
            60..900 => self.random.below(self.life.plan.value_bytes),
            900..970 => 200 + self.random.below(3000),
            970..992 => 3000 + self.random.below(30_000),
            _ if self.life.plan.large_values => 65_000 + self.random.below(150_000),
            _ => self.random.below(5000),
        };
        Content { length: length as usize, seed: self.random.next() }
    }

    fn some_content(&mut self) -> Option<Content> {
        self.random.chance(75).then(|| self.content())
    }

    fn durability(&mut self) -> Durability {
        if self.random.chance(self.life.plan.relaxed_percent) { Durability::Relaxed } else { Durability::Full }
    }

    fn saw(&self, timestamp: u64) {
        if self.life.plan.relaxed_percent == 0 {
            self.life.model.seen(timestamp);
        }
    }

    // ── answers ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// What an error means for this client, where it is one that may be.
    fn accept(&self, error: &Error, space: Option<SpaceNumber>) -> Result<(), Stop> {
        let plan = &self.life.plan;
        let is_off = self.life.disk.is_off();
        let broken = is_off || plan.trouble.breaks();
        match error {
            Error::Conflict { .. } => self.life.counts.add(Count::Conflicts),
            Error::SnapshotTooOld { .. } => self.life.counts.add(Count::SnapshotsTooOld),
            Error::TransactionTooLarge { .. } | Error::Source { .. } => {}
            Error::DiskFull { .. } if is_off || plan.trouble == Trouble::FullDisk => {
                self.life.counts.add(Count::Refused);
            }
            Error::Io { .. } if broken || plan.trouble == Trouble::FailingReads => {}
            Error::Damaged { .. } if plan.trouble.damages() => {}
            Error::KeyspaceDropped { .. } | Error::NoSuchKeyspace { .. }
                if space.is_some_and(|space| self.life.model.is_dropped(space)) => {}
            // A transaction that meets a failing read during its checkpoint ends the database for now.
            Error::Failed { .. } | Error::OutcomeUnknown { .. }
                if broken || plan.trouble == Trouble::FailingReads || plan.trouble.damages() =>
            {
                return Err(Stop);
            }
            // Full for long enough that a checkpoint did not fit.
            Error::Failed { .. } if plan.trouble == Trouble::FullDisk => return Err(Stop),
            other => panic!("an error that can't be: {other} ({other:?})"),
        }
        if is_off { Err(Stop) } else { Ok(()) }
    }

    /// Runs a commit that does `deed`, and enters it where it gets its timestamp. `None` where it failed and may have.
    fn commit<T>(
        &mut self,
        deed: Deed,
        is_full: bool,
        space: Option<SpaceNumber>,
        commit: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Option<(u64, T)>, Stop> {
        let taken = Arc::new(AtomicU64::new(0));
        let (told, model) = (Arc::clone(&taken), self.life.model.clone());
        sim::on_timestamp(Some(Box::new(move |timestamp| {
            told.store(timestamp.0, Ordering::Relaxed);
            model.enter(timestamp.0, deed);
        })));
        let result = commit();
        sim::on_timestamp(None);
        let taken = taken.load(Ordering::Relaxed);
        match result {
            Ok(value) => {
                if taken > 0 {
                    self.life.model.answer(taken, is_full);
                }
                Ok(Some((taken, value)))
            }
            Err(error) => {
                assert!(
                    taken == 0 || matches!(error, Error::OutcomeUnknown { .. }),
                    "commit {taken} was taken and failed: {error}"
                );
                self.accept(&error, space)?;
                Ok(None)
            }
        }
    }

    fn check_value(
        &self,
        space: SpaceNumber,
        key: &[u8],
        at: u64,
        wanted: Option<Content>,
        found: Option<&[u8]>,
        how: &str,
    ) {
        let is_right = match (wanted, found) {
            (None, None) => true,
            (Some(wanted), Some(found)) => wanted.is(found),
            _ => false,
        };
        assert!(
            is_right,
            "{how}: row {} of {:?} at commit {at} is {}, should be {wanted:?}",
            key.escape_ascii(),
            self.life.model.name(space),
            found.map_or("absent".to_owned(), tell)
        );
    }

    // ── commits ────────────────────────────────────────────────────────────────────────────────────────────────────

    fn autocommit(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let key = self.key(space);
        let content = self.some_content();
        let deed = Deed::Rows(vec![(space, key.clone(), content)]);
        match content {
            None => self.commit(deed, true, Some(space), || keyspace.remove(&key))?,
            Some(content) if content.length > 2000 && self.random.chance(40) => {
                let mut reader = Slow { bytes: content.bytes(), position: 0, fails_at: None };
                if self.random.chance(20) {
                    reader.fails_at = Some(self.random.below(content.length as u64) as usize);
                }
                let fails = reader.fails_at.is_some();
                let done = self.commit(deed, true, Some(space), || keyspace.insert_from(&key, reader).map(drop))?;
                assert!(done.is_none() || !fails, "a value was stored whose reader failed");
                done
            }
            Some(content) => {
                let durability = self.durability();
                let value = content.bytes();
                self.commit(deed, durability == Durability::Full, Some(space), || {
                    keyspace.insert_with(&key, &value, durability)
                })?
            }
        };
        Ok(())
    }

    fn transaction(&mut self) -> Result<(), Stop> {
        let count = 1 + self.random.below(10);
        self.transact(count)
    }

    fn large_transaction(&mut self) -> Result<(), Stop> {
        let count = 30 + self.random.below(300);
        self.transact(count)
    }

    fn transact(&mut self, count: u64) -> Result<(), Stop> {
        self.life.counts.add(Count::Transactions);
        let isolation = match self.random.below(100) {
            0..50 => Isolation::Snapshot,
            50..75 if self.life.plan.serializable => Isolation::Serializable,
            50..75 => Isolation::Snapshot,
            _ => Isolation::ReadCommitted,
        };
        let durability = self.durability();
        let lock_timeout = Duration::from_micros(100 << self.random.below(14));
        let answered = self.life.model.answered();
        let options = TxOptions { isolation, durability, lock_timeout };
        let mut tx = match self.life.db.begin_with(options) {
            Ok(tx) => tx,
            Err(error) => return self.accept(&error, None),
        };
        let snapshot = tx.snapshot_timestamp().0;
        assert!(
            answered <= snapshot && snapshot <= self.life.model.last(),
            "a transaction began at {snapshot}; {answered} was answered, {} the last",
            self.life.model.last()
        );
        let mut own: BTreeMap<(SpaceNumber, Vec<u8>), Option<Content>> = BTreeMap::new();
        let mut marks = Vec::new();
        let mut reads: Vec<(SpaceNumber, Vec<u8>)> = Vec::new();
        let mut spaces: BTreeMap<SpaceNumber, Keyspace> = BTreeMap::new();
        for _ in 0..count {
            let Some((keyspace, space)) = self.any_keyspace() else { continue };
            spaces.insert(space, keyspace.clone());
            let key = self.key(space);
            let done = match self.random.below(100) {
                0..55 => {
                    let content = self.some_content();
                    let done = match content {
                        None => tx.remove(&keyspace, &key),
                        Some(content) if content.length > 2000 && self.random.chance(40) => {
                            let reader = Slow { bytes: content.bytes(), position: 0, fails_at: None };
                            tx.insert_from(&keyspace, &key, reader).map(drop)
                        }
                        Some(content) => tx.insert(&keyspace, &key, content.bytes()),
                    };
                    if done.is_ok() {
                        own.insert((space, key), content);
                    }
                    done
                }
                55..70 => {
                    reads.push((space, key.clone()));
                    self.tx_get(&tx, &keyspace, space, &key, &own, isolation, snapshot)
                }
                70..80 => self.tx_lock(&mut tx, &keyspace, space, &key, &own, isolation, snapshot),
                80..88 => {
                    self.tx_scan(&tx, &keyspace, space, &own, isolation, snapshot);
                    Ok(())
                }
                88..94 => {
                    marks.push((tx.savepoint(), own.clone()));
                    Ok(())
                }
                _ => match marks.len() {
                    0 => Ok(()),
                    length => {
                        let index = self.random.below(length as u64) as usize;
                        let (mark, then) = marks[index].clone();
                        marks.truncate(index + 1);
                        tx.rollback_to(mark).map(|()| own = then)
                    }
                },
            };
            if let Err(error) = done {
                self.accept(&error, Some(space))?;
                if error.is_conflict() || matches!(error, Error::SnapshotTooOld { .. }) || self.random.chance(50) {
                    return Ok(());
                }
            }
            if self.random.chance(3) {
                sim::sleep(Duration::from_micros(self.random.below(2000)));
            }
        }
        if self.random.chance(12) {
            tx.abort();
            return Ok(());
        }
        let rows: Vec<_> = own.into_iter().map(|((space, key), content)| (space, key, content)).collect();
        let dropped = rows.iter().map(|row| row.0).find(|space| self.life.model.is_dropped(*space));
        let any = dropped.or(rows.first().map(|row| row.0));
        let is_empty = rows.is_empty();
        let deed = Deed::Rows(rows.clone());
        let model = self.life.model.clone();
        let is_full = durability == Durability::Full;
        let done = self.commit(deed, is_full, any, || {
            let result = tx.commit();
            // Which of them was dropped, if one was, is known by now.
            match result {
                Err(Error::KeyspaceDropped { name }) => {
                    assert!(rows.iter().any(|row| model.is_dropped(row.0)), "keyspace {name:?} was not dropped");
                    Err(Error::Conflict { reason: "a keyspace was dropped" })
                }
                other => other,
            }
        })?;
        let Some((taken, answered)) = done else { return Ok(()) };
        if is_empty {
            assert_eq!(taken, 0, "a transaction without changes was given a timestamp");
            return Ok(());
        }
        if taken == 0 {
            // Its changes were rolled back to none.
            return Ok(());
        }
        assert_eq!(taken, answered.0, "a commit returned another timestamp than it was given");
        if isolation == Isolation::Serializable {
            for (space, key) in &reads {
                let between = self.life.model.change_between(*space, key, snapshot, taken);
                assert!(
                    between.is_none(),
                    "serializable commit {taken} with the snapshot {snapshot} read row {} of {:?}, which {between:?} changed",
                    key.escape_ascii(),
                    self.life.model.name(*space)
                );
            }
        }
        if isolation != Isolation::ReadCommitted {
            for (space, key, _) in &rows {
                let between = self.life.model.change_between(*space, key, snapshot, taken);
                assert!(
                    between.is_none(),
                    "commit {taken} with the snapshot {snapshot} changed row {} of {:?}, and so did {between:?}",
                    key.escape_ascii(),
                    self.life.model.name(*space)
                );
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "what a transaction is made of")]
    fn tx_get(
        &self,
        tx: &Transaction,
        keyspace: &Keyspace,
        space: SpaceNumber,
        key: &[u8],
        own: &BTreeMap<(SpaceNumber, Vec<u8>), Option<Content>>,
        isolation: Isolation,
        snapshot: u64,
    ) -> Result<(), Error> {
        let window = self.life.model.window();
        let found = tx.get(keyspace, key)?;
        self.life.counts.add(Count::Reads);
        match own.get(&(space, key.to_vec())) {
            Some(content) => self.check_value(space, key, snapshot, *content, found.as_deref(), "own write"),
            None if isolation != Isolation::ReadCommitted => {
                let wanted = self.life.model.at(space, key, snapshot);
                self.check_value(space, key, snapshot, wanted, found.as_deref(), "transaction");
            }
            None => {
                if let Err(flaw) = self.life.model.check_plain(window, space, key, found.as_deref()) {
                    panic!("read committed: {flaw}");
                }
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "what a transaction is made of")]
    fn tx_lock(
        &self,
        tx: &mut Transaction,
        keyspace: &Keyspace,
        space: SpaceNumber,
        key: &[u8],
        own: &BTreeMap<(SpaceNumber, Vec<u8>), Option<Content>>,
        isolation: Isolation,
        snapshot: u64,
    ) -> Result<(), Error> {
        let found = tx.get_for_update(keyspace, key)?;
        self.life.counts.add(Count::Reads);
        let wanted = match own.get(&(space, key.to_vec())) {
            Some(content) => *content,
            // With the row locked nobody changes it.
            None => self.life.model.newest(space, key),
        };
        let newest = self.life.model.newest_change(space, key);
        assert!(
            isolation == Isolation::ReadCommitted || newest <= snapshot || self.life.model.is_dropped(space),
            "get_for_update at snapshot {snapshot} of a row that {newest} changed"
        );
        self.check_value(space, key, snapshot, wanted, found.as_deref(), "get_for_update");
        Ok(())
    }

    fn tx_scan(
        &mut self,
        tx: &Transaction,
        keyspace: &Keyspace,
        space: SpaceNumber,
        own: &BTreeMap<(SpaceNumber, Vec<u8>), Option<Content>>,
        isolation: Isolation,
        snapshot: u64,
    ) {
        let bounds = self.bounds(space);
        let from = if isolation != Isolation::ReadCommitted { snapshot } else { self.life.model.answered() };
        let range = tx.range(keyspace, bounds.clone());
        let to = if isolation != Isolation::ReadCommitted { snapshot } else { self.life.model.last() };
        let own: BTreeMap<Vec<u8>, Option<Content>> = (own.iter())
            .filter(|((of, _), _)| *of == space)
            .map(|((_, key), content)| (key.clone(), *content))
            .collect();
        self.scan(range, space, &bounds, from, to, &own, "transaction");
    }

    fn create(&mut self) -> Result<(), Stop> {
        let name = PASSING[self.random.below(3) as usize];
        let page_bytes = 512 << self.random.below(4);
        let db = self.life.db.clone();
        let options = KeyspaceOptions::new().page_bytes(page_bytes);
        // It may be there already: then no timestamp is taken.
        self.commit(Deed::Create(name.to_owned()), true, None, || db.keyspace_with(name, options))?;
        Ok(())
    }

    fn drop_keyspace(&mut self) -> Result<(), Stop> {
        let name = PASSING[self.random.below(3) as usize];
        let Some(space) = self.life.model.space(name) else { return Ok(()) };
        let db = self.life.db.clone();
        let model = self.life.model.clone();
        // Between the look and the drop another may have dropped it, and one more created it anew: which one is dropped is
        // known when the timestamp is taken.
        let taken = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&taken);
        sim::on_timestamp(Some(Box::new(move |timestamp| {
            told.store(timestamp.0, Ordering::Relaxed);
            let space = model.space(name).expect("what is dropped is there");
            model.enter(timestamp.0, Deed::Drop(space));
        })));
        let result = db.drop_keyspace(name);
        sim::on_timestamp(None);
        let taken = taken.load(Ordering::Relaxed);
        match result {
            Ok(()) => {
                assert!(taken > 0, "a keyspace was dropped without a commit");
                self.life.model.answer(taken, true);
                Ok(())
            }
            Err(Error::NoSuchKeyspace { .. }) => Ok(()),
            Err(error) => {
                assert!(taken == 0 || matches!(error, Error::OutcomeUnknown { .. }), "drop {taken} failed: {error}");
                self.accept(&error, Some(space))
            }
        }
    }

    // ── reads ──────────────────────────────────────────────────────────────────────────────────────────────────────

    fn plain_reads(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let window = self.life.model.window();
        let count = if self.random.chance(40) { 2 + self.random.below(30) } else { 1 };
        let keys: Vec<Vec<u8>> = (0..count).map(|_| self.key(space)).collect();
        let found = if count == 1 { keyspace.get(&keys[0]).map(|found| vec![found]) } else { keyspace.get_many(&keys) };
        match found {
            Ok(found) => {
                assert_eq!(found.len(), keys.len());
                for (key, value) in keys.iter().zip(found) {
                    self.life.counts.add(Count::Reads);
                    self.check_plain(window, space, key, value.as_ref());
                }
                Ok(())
            }
            Err(error) => self.accept(&error, Some(space)),
        }
    }

    fn check_plain(&self, window: crate::model::Window, space: SpaceNumber, key: &[u8], found: Option<&Value>) {
        match self.life.model.check_plain(window, space, key, found.map(|value| &value[..])) {
            Ok(timestamp) => self.saw(timestamp),
            // What is read of a keyspace as it is being dropped is its last state, or nothing.
            Err(_) if self.life.model.is_dropped(space) => {}
            Err(flaw) => panic!("plain read: {flaw}"),
        }
    }

    fn bounds(&mut self, space: SpaceNumber) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let bound = |random: &mut Random, key: Vec<u8>| match random.below(5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(key),
            _ => Bound::Excluded(key),
        };
        let (one, other) = (self.key(space), self.key(space));
        let (low, high) = if one <= other { (one, other) } else { (other, one) };
        let lower = bound(&mut self.random, low);
        let upper = bound(&mut self.random, high);
        match (&lower, &upper) {
            (Bound::Excluded(one), Bound::Excluded(other)) if one == other => (lower, Bound::Unbounded),
            _ => (lower, upper),
        }
    }

    fn plain_scan(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let bounds = self.bounds(space);
        let from = self.life.model.answered();
        let range = keyspace.range(bounds.clone());
        let to = self.life.model.last();
        self.scan(range, space, &bounds, from, to, &BTreeMap::new(), "plain");
        Ok(())
    }

    /// Reads a range from both ends and compares it with the model at the moments from `from` to `to`.
    #[allow(clippy::too_many_arguments, reason = "what a scan is made of")]
    fn scan(
        &mut self,
        mut range: drumlin::Range,
        space: SpaceNumber,
        bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>),
        from: u64,
        to: u64,
        own: &BTreeMap<Vec<u8>, Option<Content>>,
        how: &str,
    ) {
        self.life.counts.add(Count::Scans);
        let mut front: Vec<(Value, Value)> = Vec::new();
        let mut back: Vec<(Value, Value)> = Vec::new();
        let style = self.random.below(3);
        let limit = if self.random.chance(50) { usize::MAX } else { self.random.below(40) as usize };
        let mut is_whole = true;
        loop {
            if front.len() + back.len() >= limit {
                is_whole = false;
                break;
            }
            let forward = match style {
                0 => true,
                1 => false,
                _ => self.random.chance(50),
            };
            let row = if forward { range.next() } else { range.next_back() };
            match row {
                None => break,
                Some(Ok(row)) if forward => front.push(row),
                Some(Ok(row)) => back.push(row),
                Some(Err(error)) => {
                    // What came before it must be right all the same.
                    if self.accept(&error, Some(space)).is_err() {
                        return;
                    }
                    is_whole = false;
                    break;
                }
            }
        }
        drop(range);
        let mut moments = vec![from];
        if to > from {
            moments.extend(self.life.model.changes_above(space, from).into_iter().filter(|moment| *moment <= to));
        }
        let mut flaw = String::new();
        for &moment in &moments {
            match self.compare(space, bounds, moment, own, &front, &back, is_whole) {
                Ok(()) => {
                    if how == "plain" && moments.len() == 1 {
                        self.saw(moment);
                    }
                    return;
                }
                Err(other) => flaw = other,
            }
        }
        if self.life.model.is_dropped(space) {
            return;
        }
        panic!("{how} scan of {bounds:?} between commits {from} and {to}: {flaw}");
    }

    #[allow(clippy::too_many_arguments, reason = "what a scan is made of")]
    fn compare(
        &self,
        space: SpaceNumber,
        bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>),
        moment: u64,
        own: &BTreeMap<Vec<u8>, Option<Content>>,
        front: &[(Value, Value)],
        back: &[(Value, Value)],
        is_whole: bool,
    ) -> Result<(), String> {
        let mut rows = self.life.model.rows_at(space, moment);
        for (key, content) in own {
            match content {
                Some(content) => drop(rows.insert(key.clone(), *content)),
                None => drop(rows.remove(key)),
            }
        }
        let mut wanted = rows.range(bounds.clone());
        for (key, value) in front {
            compare_row(wanted.next(), key, value)?;
        }
        for (key, value) in back {
            compare_row(wanted.next_back(), key, value)?;
        }
        match wanted.next() {
            Some((key, _)) if is_whole => Err(format!("row {} is missing", key.escape_ascii())),
            _ => Ok(()),
        }
    }

    fn snapshot_reads(&mut self) -> Result<(), Stop> {
        let snapshot = match self.snapshot.take() {
            Some(snapshot) if self.random.chance(80) => snapshot,
            _ => {
                self.life.counts.add(Count::Snapshots);
                let answered = self.life.model.answered();
                let snapshot = self.life.db.snapshot();
                let at = snapshot.timestamp().0;
                assert!(
                    answered <= at && at <= self.life.model.last(),
                    "a snapshot was taken at {at}; {answered} was answered, {} the last",
                    self.life.model.last()
                );
                self.saw(at);
                snapshot
            }
        };
        let at = snapshot.timestamp().0;
        for _ in 0..1 + self.random.below(6) {
            let Some((keyspace, space)) = self.any_keyspace() else { continue };
            if self.random.chance(50) {
                let key = self.key(space);
                match snapshot.get(&keyspace, &key) {
                    Ok(found) => {
                        self.life.counts.add(Count::Reads);
                        if !self.life.model.is_dropped(space) {
                            let wanted = self.life.model.at(space, &key, at);
                            self.check_value(space, &key, at, wanted, found.as_deref(), "snapshot");
                        }
                    }
                    Err(error @ Error::SnapshotTooOld { .. }) => return self.accept(&error, None),
                    Err(error) => self.accept(&error, Some(space))?,
                }
            } else if self.random.chance(25) {
                let bounds = self.bounds(space);
                match snapshot.count(&keyspace, bounds.clone()) {
                    Ok(count) => {
                        let wanted = self.life.model.rows_at(space, at).range(bounds).count() as u64;
                        let is_right = count == wanted || self.life.model.is_dropped(space);
                        assert!(is_right, "{count} rows counted at {at}, {wanted} are there");
                    }
                    Err(error) => self.accept(&error, Some(space))?,
                }
            } else {
                let bounds = self.bounds(space);
                let range = snapshot.range(&keyspace, bounds.clone());
                self.scan(range, space, &bounds, at, at, &BTreeMap::new(), "snapshot");
            }
        }
        if self.random.chance(70) {
            self.snapshot = Some(snapshot);
        }
        Ok(())
    }

    /// A value as a stream, here and there.
    fn stream(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let snapshot = self.life.db.snapshot();
        let at = snapshot.timestamp().0;
        let key = self.key(space);
        let reader = match snapshot.read(&keyspace, &key) {
            Ok(reader) => reader,
            Err(error) => return self.accept(&error, Some(space)),
        };
        let wanted = self.life.model.at(space, &key, at);
        if self.life.model.is_dropped(space) {
            return Ok(());
        }
        let Some(mut reader) = reader else {
            assert!(wanted.is_none(), "stream: row {} at {at} is absent", key.escape_ascii());
            return Ok(());
        };
        let wanted = wanted.unwrap_or_else(|| panic!("stream: row {} at {at} is there", key.escape_ascii())).bytes();
        assert_eq!(reader.len(), wanted.len() as u64, "stream: a value's length");
        for _ in 0..4 {
            let from = self.random.below(wanted.len() as u64 + 1) as usize;
            let mut part = vec![0; self.random.below(10_000).min((wanted.len() - from) as u64) as usize];
            let read = reader.seek(SeekFrom::Start(from as u64)).and_then(|_| reader.read_exact(&mut part));
            match read {
                Ok(()) => assert!(part == wanted[from..from + part.len()], "stream: bytes from {from}"),
                Err(error) => {
                    let dropped = self.life.model.is_dropped(space);
                    let plan = &self.life.plan;
                    let may = self.life.disk.is_off()
                        || dropped
                        || plan.trouble.damages()
                        || plan.trouble.breaks()
                        || plan.trouble == Trouble::FailingReads
                        || error.to_string().contains("too old");
                    assert!(may, "stream: {error}");
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    // ── upkeep ─────────────────────────────────────────────────────────────────────────────────────────────────────

    fn upkeep(&mut self) -> Result<(), Stop> {
        let done = match self.random.below(10) {
            0..6 => {
                self.life.counts.add(Count::Checkpoints);
                self.life.db.checkpoint().map(drop)
            }
            6..8 => self.life.db.compact().map(drop),
            8 => {
                drop(self.life.db.stats());
                Ok(())
            }
            _ => match self.life.db.check() {
                Ok(report) => {
                    let plan = &self.life.plan;
                    let is_clean = report.damage.is_empty()
                        || self.life.disk.is_off()
                        || plan.trouble.damages()
                        || plan.trouble.breaks()
                        || plan.trouble == Trouble::FailingReads;
                    assert!(is_clean, "check found damage: {:?}", report.damage);
                    Ok(())
                }
                Err(error) => Err(error),
            },
        };
        match done {
            Ok(()) => Ok(()),
            Err(error) => self.accept(&error, None),
        }
    }
}

fn compare_row(wanted: Option<(&Vec<u8>, &Content)>, key: &Value, value: &Value) -> Result<(), String> {
    match wanted {
        None => Err(format!("row {} is too much", key.escape_ascii())),
        Some((wanted, _)) if wanted[..] != key[..] => {
            Err(format!("row {} comes where {} should", key.escape_ascii(), wanted.escape_ascii()))
        }
        Some((_, content)) if !content.is(value) => {
            Err(format!("row {} is {}, should be {content:?}", key.escape_ascii(), tell(value)))
        }
        Some(_) => Ok(()),
    }
}

/// A reader that gives a little at a time, and may fail.
struct Slow {
    bytes: Vec<u8>,
    position: usize,
    fails_at: Option<usize>,
}

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.fails_at.is_some_and(|at| self.position >= at) {
            return Err(std::io::Error::other("the source ran dry"));
        }
        let count = buffer.len().min(self.bytes.len() - self.position).min(7000);
        buffer[..count].copy_from_slice(&self.bytes[self.position..self.position + count]);
        self.position += count;
        Ok(count)
    }
}
