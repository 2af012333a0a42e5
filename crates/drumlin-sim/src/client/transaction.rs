//! Transactions of several statements. Each statement is checked immediately, and all of them are checked together at
//! the commit.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use drumlin::{Durability, Error, Isolation, Keyspace, Savepoint, Transaction, TxOptions};
use drumlin_io::testing::sim;

use super::aggregates::Fingerprint;
use super::answers::Call;
use super::commits::{range_from, removes_range};
use super::scans::{Bounds, Own, VisibleStates};
use super::streams::{Reader, Slow};
use super::{Api, Client, Count, Stop, by_api};
use crate::model::{Content, Model, Operation, SpaceNumber, Window};

/// The row that a statement reads or changes.
pub(super) struct RowTarget {
    pub(super) keyspace: Keyspace,
    pub(super) space: SpaceNumber,
    pub(super) key: Vec<u8>,
}

impl RowTarget {
    /// Returns the range of keys that a read of this row covers.
    fn bounds(&self) -> Bounds {
        (Bound::Included(self.key.clone()), Bound::Included(self.key.clone()))
    }
}

/// A running transaction, and the results that the model expects from it.
pub(super) struct Running {
    pub(super) tx: Transaction,
    isolation: Isolation,
    durability: Durability,
    snapshot: u64,
    own: Own,
    /// The savepoints, each with the transaction's own rows, and the number of ranges that it had removed.
    savepoints: Vec<(Savepoint, Own, usize)>,
    removed: Vec<(SpaceNumber, Bounds)>,
    /// The rows that it has locked, each with the newest commit that had changed the row by then.
    locked: BTreeMap<(SpaceNumber, Vec<u8>), u64>,
    reads: Vec<(SpaceNumber, Bounds)>,
    pub(super) used: BTreeSet<SpaceNumber>,
}

impl Running {
    /// Returns `true` if the transaction reads from its snapshot. At read committed, each statement reads the newest
    /// row versions instead.
    fn is_exact(&self) -> bool {
        self.isolation != Isolation::ReadCommitted
    }

    /// Returns the transaction's own version of a row, if it has one.
    fn own(&self, target: &RowTarget) -> Option<Option<Content>> {
        self.own.get(&(target.space, target.key.clone())).copied()
    }

    pub(super) fn set_savepoint(&mut self) {
        self.savepoints.push((self.tx.savepoint(), self.own.clone(), self.removed.len()));
    }

    /// Records that the transaction has locked a row. It keeps the lock until it ends, also if it is rolled back to a
    /// savepoint.
    fn has_locked(&mut self, model: &Model, target: &RowTarget) {
        let newest = model.newest_change(target.space, &target.key);
        self.locked.entry((target.space, target.key.clone())).or_insert(newest);
    }
}

impl Client {
    pub(super) async fn transaction(&mut self) -> Result<(), Stop> {
        if self.session.plan.reads_all && self.random.chance(15) {
            return self.closure().await;
        }
        let count = 1 + self.random.below(10);
        self.transact(count).await
    }

    pub(super) async fn large_transaction(&mut self) -> Result<(), Stop> {
        let count = 30 + self.random.below(300);
        self.transact(count).await
    }

    async fn transact(&mut self, count: u64) -> Result<(), Stop> {
        self.session.counts.add(Count::Transactions);
        let mut running = match self.begin() {
            Ok(running) => running,
            Err(error) => return self.accept(&error, Call::Plain, None),
        };
        for _ in 0..count {
            let Some((keyspace, space)) = self.any_keyspace() else { continue };
            running.used.insert(space);
            let target = RowTarget { key: self.key(space), keyspace, space };
            if let Err(error) = self.statement(&mut running, &target).await {
                self.accept(&error, Call::Transaction, Some(space))?;
                if error.is_conflict() || matches!(error, Error::SnapshotTooOld { .. }) || self.random.chance(50) {
                    return Ok(());
                }
            }
            if self.random.chance(3) {
                let micros = self.random.below(2000);
                self.sleep(Duration::from_micros(micros)).await;
            }
        }
        if self.random.chance(12) {
            running.tx.abort();
            return Ok(());
        }
        self.end(running).await
    }

    pub(super) fn begin(&mut self) -> Result<Running, Error> {
        let isolation = match self.random.below(100) {
            0..50 => Isolation::Snapshot,
            50..75 if self.session.plan.serializable => Isolation::Serializable,
            50..75 => Isolation::Snapshot,
            _ => Isolation::ReadCommitted,
        };
        let durability = self.durability();
        let lock_timeout = Duration::from_micros(100 << self.random.below(14));
        let answered = self.session.model.answered();
        let tx =
            self.session.db.begin_with(TxOptions { isolation, durability, lock_timeout, ..TxOptions::default() })?;
        let snapshot = tx.snapshot_timestamp().0;
        assert!(
            answered <= snapshot && snapshot <= self.session.model.last(),
            "a transaction began at {snapshot}; {answered} was answered, {} the last",
            self.session.model.last()
        );
        let (own, savepoints, removed, locked, reads, used) = Default::default();
        Ok(Running { tx, isolation, durability, snapshot, own, savepoints, removed, locked, reads, used })
    }

    // ── statements ─────────────────────────────────────────────────────────────────────────────────────────────────

    pub(super) async fn statement(&mut self, running: &mut Running, target: &RowTarget) -> Result<(), Error> {
        match self.random.below(100) {
            0..40 => self.tx_change(running, target).await,
            40..55 => self.tx_conditional(running, target).await,
            55..70 if self.session.plan.reads_all && self.random.chance(40) => {
                if self.random.chance(50) {
                    self.tx_count(running, target).await
                } else {
                    self.tx_read(running, target).await
                }
            }
            55..70 => self.tx_get(running, target).await,
            70..80 => self.tx_lock(running, target).await,
            80..88 => {
                self.tx_scan(running, target).await;
                Ok(())
            }
            88..94 => {
                running.set_savepoint();
                Ok(())
            }
            _ => self.tx_roll_back(running),
        }
    }

    /// Rolls back to any of the savepoints.
    pub(super) fn tx_roll_back(&mut self, running: &mut Running) -> Result<(), Error> {
        if running.savepoints.is_empty() {
            return Ok(());
        }
        let index = self.random.below(running.savepoints.len() as u64) as usize;
        let (savepoint, then, removed_count) = running.savepoints[index].clone();
        running.savepoints.truncate(index + 1);
        running.tx.rollback_to(savepoint)?;
        running.own = then;
        running.removed.truncate(removed_count);
        Ok(())
    }

    async fn tx_change(&mut self, running: &mut Running, target: &RowTarget) -> Result<(), Error> {
        let &RowTarget { ref keyspace, space, ref key } = target;
        let content = self.some_content();
        // The rows of a range at the newest commits are not known here.
        if content.is_none() && running.is_exact() && removes_range(key) {
            return self.tx_remove_range(running, target);
        }
        let streamed = content.is_some_and(|content| content.length > 2000) && self.random.chance(40);
        let (api, tx) = (self.api, &mut running.tx);
        let change = async {
            match content {
                None => by_api!(api, tx.remove(keyspace, key), tx.remove_async(keyspace, key)),
                Some(content) if streamed => {
                    let reader = Slow::new(content);
                    by_api!(api, tx.insert_from(keyspace, key, reader), tx.insert_from_async(keyspace, key, reader))
                        .map(drop)
                }
                Some(content) => by_api!(
                    api,
                    tx.insert(keyspace, key, content.bytes()),
                    tx.insert_async(keyspace, key, content.bytes())
                ),
            }
        };
        // A dropped statement has no effect, and the transaction continues.
        let Some(done) = self.or_drop(change).await else { return Ok(()) };
        done?;
        running.has_locked(&self.session.model, target);
        running.own.insert((space, key.clone()), content);
        Ok(())
    }

    /// Puts or removes a row.
    pub(super) async fn tx_set(
        &mut self,
        running: &mut Running,
        target: &RowTarget,
        content: Option<Content>,
    ) -> Result<(), Error> {
        let &RowTarget { ref keyspace, space, ref key } = target;
        let (api, tx) = (self.api, &mut running.tx);
        let value = content.map(Content::bytes);
        let change = async {
            match &value {
                None => by_api!(api, tx.remove(keyspace, key), tx.remove_async(keyspace, key)),
                Some(value) => by_api!(api, tx.insert(keyspace, key, value), tx.insert_async(keyspace, key, value)),
            }
        };
        let Some(done) = self.or_drop(change).await else { return Ok(()) };
        done?;
        running.has_locked(&self.session.model, target);
        running.own.insert((space, key.clone()), content);
        Ok(())
    }

    /// Removes a range that begins with the target.
    fn tx_remove_range(&mut self, running: &mut Running, target: &RowTarget) -> Result<(), Error> {
        let bounds = range_from(&target.key);
        running.tx.remove_range(&target.keyspace, bounds.clone())?;
        let is_inside = |key: &Vec<u8>| std::ops::RangeBounds::<Vec<u8>>::contains(&bounds, key);
        let seen = self.session.model.keys_at(target.space, &bounds, running.snapshot);
        let own = running.own.keys().filter(|(space, key)| *space == target.space && is_inside(key));
        let keys: Vec<Vec<u8>> = own.map(|(_, key)| key.clone()).chain(seen).collect();
        running.own.extend(keys.into_iter().map(|key| ((target.space, key), None)));
        running.removed.push((target.space, bounds));
        Ok(())
    }

    /// Makes a change that depends on the row's value.
    async fn tx_conditional(&mut self, running: &mut Running, target: &RowTarget) -> Result<(), Error> {
        let &RowTarget { ref keyspace, space, ref key } = target;
        let (content, is_swap) = (self.some_content(), self.random.chance(50));
        let guess = if self.random.chance(50) { self.newest(running, target) } else { self.some_content() };
        let (expected, new) = (guess.map(Content::bytes), content.map(Content::bytes));
        let (expected, value) = (expected.as_deref(), new.as_deref());
        let (api, tx) = (self.api, &mut running.tx);
        // The call returns either the value that it found, or whether that value was the expected one.
        let change = async {
            match value {
                _ if is_swap => by_api!(
                    api,
                    tx.compare_and_swap(keyspace, key, expected, value),
                    tx.compare_and_swap_async(keyspace, key, expected, value)
                ),
                Some(value) => {
                    by_api!(api, tx.replace(keyspace, key, value), tx.replace_async(keyspace, key, value)).map(Err)
                }
                None => by_api!(api, tx.take(keyspace, key), tx.take_async(keyspace, key)).map(Err),
            }
        };
        let Some(done) = self.or_drop(change).await else { return Ok(()) };
        let returned = done?;
        running.has_locked(&self.session.model, target);
        let wanted = self.locked(running, target);
        let (is_changed, was_there) = match returned {
            Ok(()) => {
                let is_right = wanted.is_none_or(|wanted| Content::are_same(guess, wanted));
                assert!(is_right, "a transaction swapped {wanted:?}, not {guess:?}");
                (true, guess.is_some())
            }
            Err(found) => {
                if let Some(wanted) = wanted {
                    self.check_value(space, key, running.snapshot, wanted, found.as_deref(), "before a change");
                }
                (!is_swap, found.is_some())
            }
        };
        if is_changed && (content.is_some() || was_there) {
            running.own.insert((space, key.clone()), content);
        }
        Ok(())
    }

    /// Returns the transaction's own version of a row, or else the newest version, which can't change while the
    /// transaction holds the lock on the row.
    fn newest(&self, running: &Running, target: &RowTarget) -> Option<Content> {
        running.own(target).unwrap_or_else(|| self.session.model.newest(target.space, &target.key))
    }

    /// Returns the version of a row that a transaction has locked, which no other client can change. Returns `None` if
    /// it is not known whether the transaction has seen it before or after a bulk load, which takes no row locks. Such
    /// a transaction conflicts with the load when it commits.
    fn locked(&self, running: &Running, target: &RowTarget) -> Option<Option<Content>> {
        let (model, space, key) = (&self.session.model, target.space, &target.key);
        if let Some(own) = running.own(target) {
            return Some(own);
        }
        match model.is_loaded(space, key) {
            true if running.is_exact() => Some(model.at(space, key, running.snapshot)),
            true => None,
            false => Some(model.newest(space, key)),
        }
    }

    async fn tx_get(&mut self, running: &mut Running, target: &RowTarget) -> Result<(), Error> {
        let RowTarget { keyspace, key, .. } = target;
        let window = self.session.model.window();
        let (api, tx) = (self.api, &running.tx);
        let found = async { by_api!(api, tx.get(keyspace, key), tx.get_async(keyspace, key)) };
        let Some(found) = self.or_drop(found).await else { return Ok(()) };
        self.check_own_read(running, window, target, found?.as_deref());
        running.reads.push((target.space, target.bounds()));
        Ok(())
    }

    /// Reads a value as a stream.
    async fn tx_read(&mut self, running: &mut Running, target: &RowTarget) -> Result<(), Error> {
        let &RowTarget { ref keyspace, space, ref key } = target;
        let window = self.session.model.window();
        let (api, tx) = (self.api, &running.tx);
        let read = async {
            match api {
                Api::Blocking => tx.read(keyspace, key).map(|reader| reader.map(Reader::Blocking)),
                Api::Tasks => tx.read_async(keyspace, key).await.map(|reader| reader.map(Reader::Task)),
            }
        };
        let Some(reader) = self.or_drop(read).await else { return Ok(()) };
        match reader? {
            None => self.check_own_read(running, window, target, None),
            Some(mut reader) => {
                let known = running.own(target);
                if running.is_exact() || known.is_some() {
                    let wanted = known.unwrap_or_else(|| self.session.model.at(space, key, running.snapshot));
                    match wanted {
                        Some(wanted) => self.read_parts(&mut reader, space, &wanted.bytes()).await,
                        None => self.check_own_read(running, window, target, Some(b"a row")),
                    }
                } else if let Some(bytes) = self.read_whole(&mut reader, space).await {
                    self.check_own_read(running, window, target, Some(&bytes));
                }
            }
        }
        running.reads.push((target.space, target.bounds()));
        Ok(())
    }

    /// Checks that a statement found the row that the model expects.
    fn check_own_read(&self, running: &Running, window: Window, target: &RowTarget, found: Option<&[u8]>) {
        let &RowTarget { space, ref key, .. } = target;
        self.session.counts.add(Count::Reads);
        match running.own(target) {
            Some(content) => self.check_value(space, key, running.snapshot, content, found, "own write"),
            None if running.is_exact() => {
                let wanted = self.session.model.at(space, key, running.snapshot);
                self.check_value(space, key, running.snapshot, wanted, found, "transaction");
            }
            None => {
                if let Err(reason) = self.session.model.check_plain(window, space, key, found) {
                    panic!("read committed: {reason}");
                }
            }
        }
    }

    async fn tx_lock(&mut self, running: &mut Running, target: &RowTarget) -> Result<(), Error> {
        let &RowTarget { ref keyspace, space, ref key } = target;
        let (api, tx) = (self.api, &mut running.tx);
        // Derive this from the key instead of drawing it, so that the worlds of older seeds stay the same.
        let is_shared = key.last().is_some_and(|last| last % 5 < 2);
        let found = async {
            match is_shared {
                true => by_api!(api, tx.get_for_share(keyspace, key), tx.get_for_share_async(keyspace, key)),
                false => by_api!(api, tx.get_for_update(keyspace, key), tx.get_for_update_async(keyspace, key)),
            }
        };
        let Some(found) = self.or_drop(found).await else { return Ok(()) };
        let found = found?;
        running.has_locked(&self.session.model, target);
        self.session.counts.add(Count::Reads);
        // No other client can change the row while it is locked.
        let wanted = self.locked(running, target);
        let (snapshot, newest) = (running.snapshot, self.session.model.newest_change(space, key));
        assert!(
            !running.is_exact()
                || newest <= snapshot
                || self.session.model.is_loaded(space, key)
                || self.session.model.is_dropped(space),
            "get_for_update at snapshot {snapshot} of a row that {newest} changed"
        );
        if let Some(wanted) = wanted {
            self.check_value(space, key, snapshot, wanted, found.as_deref(), "get_for_update");
        }
        Ok(())
    }

    pub(super) async fn tx_scan(&mut self, running: &mut Running, target: &RowTarget) {
        let &RowTarget { ref keyspace, space, .. } = target;
        let bounds = self.bounds(space);
        let from = self.session.model.answered();
        let range = running.tx.range(keyspace, bounds.clone());
        let visible = self.visible(running, from);
        let read = self.scan(range, space, &bounds, &visible).await;
        running.reads.extend(read.into_iter().map(|bounds| (space, bounds)));
    }

    async fn tx_nth(&mut self, running: &mut Running, target: &RowTarget) -> Result<(), Error> {
        let &RowTarget { ref keyspace, space, .. } = target;
        let (bounds, index) = (self.bounds(space), self.random.below(100));
        let (from, within) = (self.session.model.answered(), bounds.clone());
        let (api, tx) = (self.api, &running.tx);
        let nth = async { by_api!(api, tx.nth(keyspace, within, index), tx.nth_async(keyspace, within, index)) };
        let Some(found) = self.or_drop(nth).await else { return Ok(()) };
        let found = found?;
        self.check_nth(index, found.as_ref(), space, &bounds, &self.visible(running, from));
        let upper = found.map_or(bounds.1, |(key, _)| Bound::Included(key.to_vec()));
        running.reads.push((space, (bounds.0, upper)));
        Ok(())
    }

    async fn tx_aggregate(&mut self, running: &mut Running, target: &RowTarget) -> Result<(), Error> {
        let &RowTarget { ref keyspace, space, .. } = target;
        let bounds = self.bounds(space);
        let (from, within) = (self.session.model.answered(), bounds.clone());
        let (api, tx) = (self.api, &running.tx);
        let reduce = async {
            by_api!(
                api,
                tx.aggregate(keyspace, &Fingerprint, within),
                tx.aggregate_async(keyspace, &Fingerprint, within)
            )
        };
        let Some(found) = self.or_drop(reduce).await else { return Ok(()) };
        self.check_aggregate(found?, space, &bounds, &self.visible(running, from));
        running.reads.push((space, bounds));
        Ok(())
    }

    async fn tx_count(&mut self, running: &mut Running, target: &RowTarget) -> Result<(), Error> {
        if self.random.chance(40) {
            return self.tx_nth(running, target).await;
        }
        if self.random.chance(50) {
            return self.tx_aggregate(running, target).await;
        }
        let &RowTarget { ref keyspace, space, .. } = target;
        let bounds = self.bounds(space);
        let (from, within) = (self.session.model.answered(), bounds.clone());
        let (api, tx) = (self.api, &running.tx);
        let count = async { by_api!(api, tx.count(keyspace, within), tx.count_async(keyspace, within)) };
        let Some(count) = self.or_drop(count).await else { return Ok(()) };
        self.check_count(count?, space, &bounds, &self.visible(running, from));
        running.reads.push((space, bounds));
        Ok(())
    }

    /// Returns the database states that a statement may see if it began after commit `from` and has just finished
    /// reading.
    fn visible<'a>(&self, running: &'a Running, from: u64) -> VisibleStates<'a> {
        let (from, to) =
            if running.is_exact() { (running.snapshot, running.snapshot) } else { (from, self.session.model.last()) };
        VisibleStates { from, to, own: Some(&running.own), how: "transaction", renews: !running.is_exact() }
    }

    // ── commit ─────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Prepares the transaction. Its rows stay locked until a client of this session or of a later one ends it.
    async fn prepare(&mut self, running: Running) -> Result<(), Stop> {
        let Running { tx, isolation, snapshot, own, locked, used, .. } = running;
        let rows: Vec<_> = own.into_iter().map(|((space, key), content)| (space, key, content)).collect();
        let any = rows.iter().map(|row| row.0).find(|space| self.session.model.is_dropped(*space));
        // Few ids, so that some are in use.
        let id = vec![self.random.below(8) as u8; 1 + self.random.below(2) as usize];
        let (api, model, by_id) = (self.api, self.session.model.clone(), id.clone());
        let prepare = async move {
            match by_api!(api, tx.prepare(&by_id), tx.prepare_async(&by_id)) {
                Err(Error::KeyspaceDropped { name }) => {
                    assert!(used.iter().any(|space| model.is_dropped(*space)), "keyspace {name:?} was not dropped");
                    Err(Error::Conflict { reason: "a keyspace was dropped" })
                }
                other => other,
            }
        };
        let operation = Operation::Prepare(id, rows.clone());
        let done = self.commit(operation, true, Call::Transaction, any, prepare).await?;
        let Some((taken, ())) = done else { return Ok(()) };
        self.check_locked(&locked, taken);
        if isolation != Isolation::ReadCommitted {
            for (space, key, _) in &rows {
                let between = self.session.model.change_between(*space, key, snapshot, taken);
                assert!(between.is_none(), "a transaction of snapshot {snapshot} is prepared, {between:?} was first");
            }
        }
        Ok(())
    }

    /// Commits or aborts a prepared transaction.
    pub(super) async fn end_prepared(&mut self) -> Result<(), Stop> {
        let mut all = self.session.model.prepared();
        if all.is_empty() {
            return Ok(());
        }
        let chosen = all.swap_remove(self.random.below(all.len() as u64) as usize);
        let (id, any) = (chosen.id, chosen.rows.first().map(|row| row.0));
        let (durability, way) = (self.durability(), self.random.below(100));
        let pause = Duration::from_micros(self.random.below(500));
        let (api, db, timer, by_id) = (self.api, self.session.db.clone(), self.timer.clone(), id.clone());
        // The commit of a ready transaction is relaxed, so readers may see it before it is durable.
        let is_ready = (25..60).contains(&way) && self.session.plan.relaxed_percent > 0;
        let (operation, is_full) = match way {
            0..25 => (Operation::AbortPrepared(id), true),
            _ if is_ready => (Operation::CommitPrepared(id), false),
            _ => (Operation::CommitPrepared(id), durability == Durability::Full),
        };
        let end = async move {
            match way {
                0..25 => by_api!(api, db.abort_prepared(&by_id), db.abort_prepared_async(&by_id)),
                _ if is_ready => {
                    let ready = by_api!(api, db.ready_prepared(&by_id), db.ready_prepared_async(&by_id))?;
                    by_api!(api, sim::sleep(pause), timer.sleep(pause));
                    ready.commit().map(drop)
                }
                _ => by_api!(
                    api,
                    db.commit_prepared_with(&by_id, durability),
                    db.commit_prepared_with_async(&by_id, durability)
                )
                .map(drop),
            }
        };
        self.commit(operation, is_full, Call::Transaction, any, end).await?;
        Ok(())
    }

    pub(super) async fn end(&mut self, running: Running) -> Result<(), Stop> {
        if self.session.plan.prepares
            && running.isolation != Isolation::Serializable
            && running.removed.is_empty()
            && self.random.chance(25)
        {
            return self.prepare(running).await;
        }
        let Running { tx, isolation, durability, snapshot, own, removed, locked, reads, used, .. } = running;
        let rows: Vec<_> = own.into_iter().map(|((space, key), content)| (space, key, content)).collect();
        let dropped = rows.iter().map(|row| row.0).find(|space| self.session.model.is_dropped(*space));
        let any = dropped.or(rows.first().map(|row| row.0));
        let operation = if removed.is_empty() { Operation::Rows(rows.clone()) } else { Operation::Load(rows.clone()) };
        let (api, model) = (self.api, self.session.model.clone());
        let commit = async move {
            let result = by_api!(api, tx.commit(), tx.commit_async());
            // If one of the keyspaces was dropped, the model knows by now which one.
            match result {
                Err(Error::KeyspaceDropped { name }) => {
                    assert!(used.iter().any(|space| model.is_dropped(*space)), "keyspace {name:?} was not dropped");
                    Err(Error::Conflict { reason: "a keyspace was dropped" })
                }
                other => other,
            }
        };
        let done = self.commit(operation, durability == Durability::Full, Call::Transaction, any, commit).await?;
        let Some((taken, answered)) = done else { return Ok(()) };
        if rows.is_empty() && removed.is_empty() {
            assert_eq!(taken, 0, "a transaction without changes was given a timestamp");
            // The caller may pass on the rows that the transaction read, so the commits that wrote them must be
            // durable.
            let (durable, seen) = (self.session.db.stats().durable.0, answered.0);
            assert!(
                snapshot <= seen && seen <= durable,
                "a transaction read commit {seen} and ended well; {durable} is durable"
            );
            self.session.model.seen(seen);
            return Ok(());
        }
        if taken == 0 {
            // The transaction only removed rows that did not exist.
            return Ok(());
        }
        assert_eq!(taken, answered.0, "a commit returned another timestamp than it was given");
        self.check_locked(&locked, taken);
        if isolation == Isolation::Serializable {
            for (space, bounds) in &reads {
                let between = self.session.model.change_within(*space, bounds, snapshot, taken);
                assert!(
                    between.is_none(),
                    "serializable commit {taken} with the snapshot {snapshot} read {bounds:?} of {:?}, where {between:?} changed a row",
                    self.session.model.name(*space)
                );
            }
        }
        for (space, bounds) in &removed {
            let between = self.session.model.change_within(*space, bounds, snapshot, taken);
            assert!(
                between.is_none(),
                "commit {taken} with the snapshot {snapshot} removed {bounds:?} of {:?}, where {between:?} changed a row",
                self.session.model.name(*space)
            );
        }
        if isolation != Isolation::ReadCommitted {
            for (space, key, _) in &rows {
                let between = self.session.model.change_between(*space, key, snapshot, taken);
                assert!(
                    between.is_none(),
                    "commit {taken} with the snapshot {snapshot} changed row {} of {:?}, and so did {between:?}",
                    key.escape_ascii(),
                    self.session.model.name(*space)
                );
            }
        }
        Ok(())
    }

    /// Checks that no other commit has changed a row while the transaction of commit `taken` had locked it.
    fn check_locked(&self, locked: &BTreeMap<(SpaceNumber, Vec<u8>), u64>, taken: u64) {
        for ((space, key), newest) in locked {
            let between = self.session.model.locked_change(*space, key, *newest, taken);
            assert!(
                between.is_none(),
                "commit {taken} had locked row {} of {:?}, last changed by {newest}, and {between:?} changed it",
                key.escape_ascii(),
                self.session.model.name(*space)
            );
        }
    }
}
