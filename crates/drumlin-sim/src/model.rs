//! The oracle: the expected content of the database, version by version, in the order of the timestamps that the engine
//! assigned.
//!
//! A commit is recorded at the moment when it gets its timestamp. So the model knows every commit that a read can see,
//! even before the client receives the result of the commit, and a read at a timestamp has exactly one right result.
//!
//! # What is checked
//! - *Durability.* After a cut, the last commit of the database is some commit L. L is no earlier than any acknowledged
//!   full commit, no earlier than any commit that a reader saw (if all commits are full), and no later than the last
//!   timestamp assigned. The database has exactly the rows that the commits up to L left.
//! - *Snapshots and scans* return exactly the rows at their timestamp. A plain read returns the row as it was at some
//!   time during the call.
//! - *Isolation.* Between the snapshot of a transaction and its commit, no other commit changed a row that the
//!   transaction wrote. If the transaction is serializable, no other commit changed a row that it read, or any row in a
//!   range that it scanned. No commit that takes row locks changed a row that the transaction had locked, at any level.
//! - *Conditional changes* return the row as the preceding commit left it. A compare-and-swap succeeds only if the row
//!   has the expected value. A pop removes the row at the end, and a bulk removal removes all existing rows.
//! - *Dropped futures.* A commit that got a timestamp is valid; a commit that got no timestamp has no effect.
//! - *Kept snapshots* have exactly the keyspaces and rows at their timestamp, in every session until they are dropped.
//!   A call that did not return before a power cut may have kept or dropped one. A restored backup has exactly the
//!   keyspaces, rows and prepared transactions at its timestamp.
//! - *Atomicity.* A commit that failed has no timestamp, or its outcome is unknown. A commit that put rows and was
//!   acknowledged has a timestamp.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use drumlin_io::testing::sim::Random;

/// A value, represented by its length and the seed that generates its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content {
    pub length: usize,
    pub seed: u64,
}

impl Content {
    /// Returns the bytes of the value. Two thirds of them are compressible.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        self.head(self.length)
    }

    /// Returns the first bytes, at most `length_max`.
    #[must_use]
    pub fn head(self, length_max: usize) -> Vec<u8> {
        let length = self.length.min(length_max);
        let mut random = Random(self.seed);
        let mut bytes = Vec::with_capacity(length + 24);
        while bytes.len() < length {
            bytes.extend_from_slice(&random.next().to_le_bytes());
            bytes.extend_from_slice(&self.seed.to_le_bytes());
            bytes.extend_from_slice(b"aaaaaaaa");
        }
        bytes.truncate(length);
        bytes
    }

    /// Returns `true` if two values have the same bytes, or both are absent.
    #[must_use]
    pub fn are_same(left: Option<Content>, right: Option<Content>) -> bool {
        left == right || left.zip(right).is_some_and(|(left, right)| left.is(&right.bytes()))
    }

    #[must_use]
    pub fn is(self, bytes: &[u8]) -> bool {
        self.length == bytes.len() && self.bytes() == bytes
    }
}

/// The number of a keyspace in the model, from its creation to its drop. If a keyspace of the same name is created
/// later, it gets a different number.
pub type SpaceNumber = usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Version {
    timestamp: u64,
    content: Option<Content>,
    /// `true` if a bulk load has put this version, or a range delete has removed the row. Neither locks rows.
    is_loaded: bool,
}

#[derive(Clone, Debug)]
struct Space {
    /// The names that it was given, each with the commit that gave it. It is never empty.
    names: Vec<(u64, String)>,
    created: u64,
    dropped: Option<u64>,
    rows: BTreeMap<Vec<u8>, Vec<Version>>,
}

/// A transaction that was prepared.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub id: Vec<u8>,
    pub rows: Vec<(SpaceNumber, Vec<u8>, Option<Content>)>,
    /// The timestamp of the prepare.
    at: u64,
    /// The timestamp of the commit or abort.
    ended: Option<u64>,
}

impl Space {
    fn new(name: String, created: u64) -> Space {
        Space { names: vec![(created, name)], created, dropped: None, rows: BTreeMap::new() }
    }

    fn name(&self) -> &str {
        &self.names.last().expect("a keyspace has a name").1
    }

    fn has_name(&self, name: &str) -> bool {
        self.dropped.is_none() && self.name() == name
    }
}

/// A change of keyspaces by their names. It refers to the names that the changes before it have left.
#[derive(Clone, Debug)]
pub enum Alter {
    Create(String),
    Rename(String, String),
    Swap(String, String),
    Drop(String),
}

/// The changes that a commit makes.
#[derive(Clone, Debug)]
pub enum Operation {
    Rows(Vec<(SpaceNumber, Vec<u8>, Option<Content>)>),
    /// The rows of a bulk load, or of a transaction that also removes ranges. Neither locks all of these rows.
    Load(Vec<(SpaceNumber, Vec<u8>, Option<Content>)>),
    /// Removes the rows that a range has when the commit gets its timestamp.
    RemoveRange(SpaceNumber, (Bound<Vec<u8>>, Bound<Vec<u8>>)),
    Create(String),
    Drop(SpaceNumber),
    /// Prepares a transaction under an id with these rows.
    Prepare(Vec<u8>, Vec<(SpaceNumber, Vec<u8>, Option<Content>)>),
    /// Commits the transaction that is prepared under the id.
    CommitPrepared(Vec<u8>),
    AbortPrepared(Vec<u8>),
    /// Several changes of keyspaces in one step.
    Alter(Vec<Alter>),
    /// Creates a keyspace with the rows that another one had as of an earlier commit.
    Clone {
        from: SpaceNumber,
        to: String,
        as_of: u64,
    },
}

impl Operation {
    /// Returns `true` if the operation always takes a timestamp. A removal of a row that does not exist takes none.
    #[must_use]
    pub fn puts(&self) -> bool {
        match self {
            Operation::Rows(rows) | Operation::Load(rows) => rows.iter().any(|(_, _, content)| content.is_some()),
            Operation::RemoveRange(..)
            | Operation::Prepare(..)
            | Operation::CommitPrepared(_)
            | Operation::AbortPrepared(_) => true,
            Operation::Create(_) | Operation::Drop(_) | Operation::Alter(_) | Operation::Clone { .. } => false,
        }
    }
}

/// The state of the snapshot that is kept on disk under a name, as far as the model knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kept {
    #[default]
    No,
    /// It is kept as of this commit.
    At(u64),
    /// A call that keeps or drops it has not returned, or has failed.
    Perhaps,
}

/// The name of a kept snapshot.
#[derive(Clone, Copy, Debug, Default)]
struct KeptName {
    kept: Kept,
    /// The state before the last call that keeps or drops it.
    claim: KeptClaim,
    /// The number of calls that may have kept or dropped it.
    changes: u64,
}

/// The state before a call that keeps or drops a snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptClaim {
    pub before: Kept,
    /// The newest commit that was answered. It must be in a snapshot that is kept.
    pub from: u64,
}

#[derive(Clone, Debug, Default)]
struct State {
    kept: BTreeMap<String, KeptName>,
    spaces: Vec<Space>,
    prepared: Vec<Prepared>,
    /// The number of commits that changed the names of keyspaces, and how many of them have not returned. The names in
    /// the database change between a commit's timestamp and its return.
    alterations: u64,
    alterations_in_flight: u64,
    /// The newest timestamp assigned.
    last: u64,
    /// The newest commit that every later opening must recover.
    acknowledged: u64,
    /// The newest commit acknowledged in this session.
    answered: u64,
    /// For each commit of this session, the durable horizon at the time when the commit got its timestamp. The commit's
    /// log record contains this horizon.
    known: BTreeMap<u64, u64>,
    commits: u64,
    checked: u64,
}

impl State {
    fn space(&self, name: &str) -> Option<SpaceNumber> {
        self.spaces.iter().rposition(|space| space.has_name(name))
    }

    fn alter(&mut self, timestamp: u64, change: Alter) {
        let find = |state: &State, name: &str| {
            state
                .space(name)
                .unwrap_or_else(|| panic!("commit {timestamp} changed keyspace {name:?}, which is not there"))
        };
        let vacant = |state: &State, name: &str| {
            assert!(state.space(name).is_none(), "commit {timestamp} gave the name {name:?} to a second keyspace");
        };
        match change {
            Alter::Create(name) => {
                vacant(self, &name);
                self.spaces.push(Space::new(name, timestamp));
            }
            Alter::Rename(from, to) => {
                let space = find(self, &from);
                if from == to {
                    return;
                }
                vacant(self, &to);
                self.spaces[space].names.push((timestamp, to));
            }
            Alter::Swap(one, other) => {
                let (first, second) = (find(self, &one), find(self, &other));
                self.spaces[first].names.push((timestamp, other));
                self.spaces[second].names.push((timestamp, one));
            }
            Alter::Drop(name) => {
                let space = find(self, &name);
                self.spaces[space].dropped = Some(timestamp);
            }
        }
    }
}

/// Damage to the disk that was not reported to the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tampering {
    None,
    /// One bit was flipped, or one write was lost or misdirected.
    Once,
    /// Any block may differ from the bytes that were written to it.
    Much,
}

/// The oracle. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Model {
    state: Arc<Mutex<State>>,
}

/// The database states that a plain read may have seen: the state after commit `from` or after any later commit.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from: u64,
}

impl Model {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns an independent copy.
    #[must_use]
    pub fn fork(&self) -> Model {
        Model { state: Arc::new(Mutex::new(self.lock().clone())) }
    }

    /// Returns a model with the commits of `later`, in which a commit must be durable only if `self` knows that it was
    /// acknowledged.
    #[must_use]
    pub fn with_recorded(&self, later: &Model) -> Model {
        let mut state = later.lock().clone();
        let own = self.lock();
        state.acknowledged = own.acknowledged;
        state.answered = own.answered;
        state.kept = own.kept.clone();
        Model { state: Arc::new(Mutex::new(state)) }
    }

    // ── commits ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Records a commit that has just received its timestamp.
    pub fn enter(&self, timestamp: u64, operation: Operation) {
        let mut state = self.lock();
        assert!(timestamp > 0, "timestamp 0 was given out");
        state.last = state.last.max(timestamp);
        state.commits += 1;
        let acknowledged = state.acknowledged;
        state.known.insert(timestamp, acknowledged);
        let is_loaded = !matches!(operation, Operation::Rows(_));
        // The range delete held the epoch latch exclusively, so every commit with a lower timestamp has been recorded
        // here, and the rows of the range are known.
        let operation = match operation {
            Operation::RemoveRange(space, bounds) => {
                let rows = state.spaces[space].rows.range::<Vec<u8>, _>(bounds);
                let is_there =
                    |(_, versions): &(_, &Vec<Version>)| versions.last().is_some_and(|newest| newest.content.is_some());
                Operation::Load(rows.filter(is_there).map(|(key, _)| (space, key.clone(), None)).collect())
            }
            operation => operation,
        };
        let rows = match operation {
            Operation::Create(name) => {
                state.spaces.push(Space::new(name, timestamp));
                return;
            }
            Operation::RemoveRange(..) => unreachable!("it was replaced by its rows"),
            Operation::Drop(space) => {
                state.spaces[space].dropped = Some(timestamp);
                return;
            }
            Operation::Alter(changes) => {
                state.alterations += 1;
                state.alterations_in_flight += 1;
                changes.into_iter().for_each(|change| state.alter(timestamp, change));
                return;
            }
            Operation::Clone { from, to, as_of } => {
                assert!(as_of < timestamp, "clone {timestamp} is of a later commit");
                assert!(state.space(&to).is_none(), "commit {timestamp} gave the name {to:?} to a second keyspace");
                state.alterations += 1;
                state.alterations_in_flight += 1;
                let version = |content| Version { timestamp, content: Some(content), is_loaded: true };
                let rows = state.spaces[from].rows.iter();
                let rows = rows.filter_map(|(key, versions)| Some((key.clone(), vec![version(at(versions, as_of)?)])));
                let clone = Space { rows: rows.collect(), ..Space::new(to, timestamp) };
                state.spaces.push(clone);
                return;
            }
            Operation::Prepare(id, rows) => {
                state.prepared.push(Prepared { id, rows, at: timestamp, ended: None });
                return;
            }
            Operation::AbortPrepared(id) => {
                end_prepared(&mut state, &id, timestamp);
                return;
            }
            Operation::CommitPrepared(id) => {
                let Prepared { rows, at, .. } = end_prepared(&mut state, &id, timestamp);
                for (space, key, _) in &rows {
                    let newest = state.spaces[*space].rows.get(key).and_then(|versions| versions.last());
                    assert!(
                        newest.is_none_or(|newest| newest.timestamp < at || newest.is_loaded),
                        "row {} was changed by {newest:?}, after it was prepared at {at}",
                        key.escape_ascii()
                    );
                }
                rows
            }
            Operation::Rows(rows) | Operation::Load(rows) => rows,
        };
        for (space, key, content) in rows {
            let space = &mut state.spaces[space];
            assert!(
                space.dropped.is_none_or(|dropped| timestamp < dropped),
                "commit {timestamp} wrote to keyspace {:?}, which was dropped by {:?}",
                space.name(),
                space.dropped
            );
            let versions = space.rows.entry(key).or_default();
            // Commits of different rows may be recorded out of order. Commits of the same row can't, because they hold
            // its lock, and a bulk load comes alone.
            if let Some(newest) = versions.last() {
                let newest = newest.timestamp;
                assert!(newest < timestamp, "commit {timestamp} came to a row after commit {newest}");
            }
            let was_there = versions.last().is_some_and(|newest| newest.content.is_some());
            // Removing a row that does not exist changes nothing.
            if was_there || content.is_some() {
                versions.push(Version { timestamp, content, is_loaded });
            }
        }
    }

    /// Returns the transactions that are prepared.
    #[must_use]
    pub fn prepared(&self) -> Vec<Prepared> {
        self.lock().prepared.iter().filter(|prepared| prepared.ended.is_none()).cloned().collect()
    }

    /// Records that a commit was acknowledged. A full commit must then survive every cut.
    pub fn answer(&self, timestamp: u64, is_full: bool) {
        let mut state = self.lock();
        state.answered = state.answered.max(timestamp);
        if is_full {
            state.acknowledged = state.acknowledged.max(timestamp);
        }
    }

    /// Records that a reader saw the database at this timestamp. The reader may have passed on the rows, so all commits
    /// up to this timestamp must survive every cut.
    pub fn seen(&self, timestamp: u64) {
        let mut state = self.lock();
        state.acknowledged = state.acknowledged.max(timestamp);
    }

    #[must_use]
    pub fn last(&self) -> u64 {
        self.lock().last
    }

    /// Returns the newest commit that every later opening must recover.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.lock().acknowledged
    }

    #[must_use]
    pub fn commits(&self) -> u64 {
        self.lock().commits
    }

    /// Returns the number of rows that were compared with the result of a read.
    #[must_use]
    pub fn checked(&self) -> u64 {
        self.lock().checked
    }

    /// Returns the newest commit that a read must see if it begins now.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.lock().answered
    }

    #[must_use]
    pub fn window(&self) -> Window {
        Window { from: self.answered() }
    }

    // ── keyspaces ──────────────────────────────────────────────────────────────────────────────────────────────────

    /// Returns the keyspace that currently has this name.
    #[must_use]
    pub fn space(&self, name: &str) -> Option<SpaceNumber> {
        self.lock().space(name)
    }

    /// Returns the keyspace that currently has this name, and a number that changes when names do. Returns no keyspace
    /// while names are being changed.
    #[must_use]
    pub fn space_now(&self, name: &str) -> (Option<SpaceNumber>, u64) {
        let state = self.lock();
        let is_settled = state.alterations_in_flight == 0;
        (state.space(name).filter(|_| is_settled), state.alterations)
    }

    /// Records that a commit which changed the names of keyspaces has returned.
    pub fn end_alteration(&self) {
        self.lock().alterations_in_flight -= 1;
    }

    #[must_use]
    pub fn is_dropped(&self, space: SpaceNumber) -> bool {
        self.lock().spaces[space].dropped.is_some()
    }

    #[must_use]
    pub fn name(&self, space: SpaceNumber) -> String {
        self.lock().spaces[space].name().to_owned()
    }

    // ── reads ──────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Returns a row as of a timestamp.
    #[must_use]
    pub fn at(&self, space: SpaceNumber, key: &[u8], timestamp: u64) -> Option<Content> {
        let mut state = self.lock();
        state.checked += 1;
        state.spaces[space].rows.get(key).and_then(|versions| at(versions, timestamp))
    }

    /// Returns the keys of the rows that a range has as of a timestamp.
    #[must_use]
    pub fn keys_at(
        &self,
        space: SpaceNumber,
        bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>),
        timestamp: u64,
    ) -> Vec<Vec<u8>> {
        let state = self.lock();
        let rows = state.spaces[space].rows.range::<Vec<u8>, _>(bounds.clone());
        rows.filter(|(_, versions)| at(versions, timestamp).is_some()).map(|(key, _)| key.clone()).collect()
    }

    /// Returns the newest version of a row.
    #[must_use]
    pub fn newest(&self, space: SpaceNumber, key: &[u8]) -> Option<Content> {
        self.at(space, key, u64::MAX)
    }

    /// Returns the newest version of every row that exists in a keyspace.
    #[must_use]
    pub fn newest_rows(&self, space: SpaceNumber) -> Vec<(Vec<u8>, Content)> {
        let state = self.lock();
        let rows = state.spaces[space].rows.iter();
        rows.filter_map(|(key, versions)| Some((key.clone(), versions.last()?.content?))).collect()
    }

    /// Returns the newest commit that changed a row, or 0 if no commit did.
    #[must_use]
    pub fn newest_change(&self, space: SpaceNumber, key: &[u8]) -> u64 {
        let state = self.lock();
        state.spaces[space].rows.get(key).and_then(|versions| versions.last()).map_or(0, |version| version.timestamp)
    }

    /// Returns `true` if a bulk load has put the newest version of a row, or a range delete has removed it. It may have
    /// come although the row was locked.
    #[must_use]
    pub fn is_loaded(&self, space: SpaceNumber, key: &[u8]) -> bool {
        let state = self.lock();
        state.spaces[space].rows.get(key).and_then(|versions| versions.last()).is_some_and(|version| version.is_loaded)
    }

    /// Returns a commit that changed the row after the commit `after` and before the commit `before`.
    #[must_use]
    pub fn change_between(&self, space: SpaceNumber, key: &[u8], after: u64, before: u64) -> Option<u64> {
        let state = self.lock();
        let versions = state.spaces[space].rows.get(key)?;
        versions.iter().map(|version| version.timestamp).find(|timestamp| after < *timestamp && *timestamp < before)
    }

    /// Like [`change_between`](Self::change_between), but leaves out commits that take no row locks.
    #[must_use]
    pub fn locked_change(&self, space: SpaceNumber, key: &[u8], after: u64, before: u64) -> Option<u64> {
        let state = self.lock();
        let versions = state.spaces[space].rows.get(key)?;
        let is_between =
            |version: &&Version| after < version.timestamp && version.timestamp < before && !version.is_loaded;
        versions.iter().find(is_between).map(|version| version.timestamp)
    }

    /// Returns a commit that changed a row within the bounds, after the commit `after` and before the commit `before`.
    #[must_use]
    pub fn change_within(
        &self,
        space: SpaceNumber,
        bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>),
        after: u64,
        before: u64,
    ) -> Option<u64> {
        let state = self.lock();
        let versions = state.spaces[space].rows.range(bounds.clone()).flat_map(|(_, versions)| versions);
        versions.map(|version| version.timestamp).find(|timestamp| after < *timestamp && *timestamp < before)
    }

    /// Checks the result of a read outside of transactions and snapshots. Returns the oldest commit whose state the
    /// read may have seen.
    ///
    /// # Errors
    /// The reason, if the result is wrong.
    pub fn check_plain(
        &self,
        window: Window,
        space: SpaceNumber,
        key: &[u8],
        found: Option<&[u8]>,
    ) -> Result<u64, String> {
        let mut state = self.lock();
        state.checked += 1;
        let none = Vec::new();
        let versions = state.spaces[space].rows.get(key).unwrap_or(&none);
        let first = versions.partition_point(|version| version.timestamp <= window.from);
        let is_it = |content: Option<Content>| match (content, found) {
            (None, None) => true,
            (Some(content), Some(found)) => content.is(found),
            _ => false,
        };
        let before = first.checked_sub(1).map(|index| versions[index]);
        if is_it(before.and_then(|version| version.content)) {
            return Ok(before.map_or(0, |version| version.timestamp));
        }
        if let Some(version) = versions[first..].iter().find(|version| is_it(version.content)) {
            return Ok(version.timestamp);
        }
        Err(format!(
            "row {} of {:?} is {}; since commit {} it was {:?}",
            key.escape_ascii(),
            state.spaces[space].name(),
            found.map_or("absent".to_owned(), describe),
            window.from,
            before.into_iter().chain(versions[first..].iter().copied()).collect::<Vec<_>>()
        ))
    }

    /// Returns `true` if the row existed (or did not, if `is_there` is `false`) at some time within the window.
    #[must_use]
    pub fn was(&self, window: Window, space: SpaceNumber, key: &[u8], is_there: bool) -> bool {
        let mut state = self.lock();
        state.checked += 1;
        let none = Vec::new();
        let versions = state.spaces[space].rows.get(key).unwrap_or(&none);
        let first = versions.partition_point(|version| version.timestamp <= window.from);
        let before = first.checked_sub(1).and_then(|index| versions[index].content);
        before.is_some() == is_there || versions[first..].iter().any(|version| version.content.is_some() == is_there)
    }

    /// Returns the rows of a keyspace as of a timestamp, in key order.
    #[must_use]
    pub fn rows_at(&self, space: SpaceNumber, timestamp: u64) -> BTreeMap<Vec<u8>, Content> {
        let mut state = self.lock();
        let rows: BTreeMap<_, _> = (state.spaces[space].rows.iter())
            .filter_map(|(key, versions)| Some((key.clone(), at(versions, timestamp)?)))
            .collect();
        state.checked += rows.len() as u64;
        rows
    }

    /// Returns the keyspaces as of a timestamp, with the names that they had then.
    #[must_use]
    pub fn names_at(&self, timestamp: u64) -> Vec<(String, SpaceNumber)> {
        let state = self.lock();
        let there =
            state.spaces.iter().enumerate().filter(|(_, space)| {
                space.created <= timestamp && space.dropped.is_none_or(|dropped| dropped > timestamp)
            });
        let named = there.map(|(number, space)| {
            let (_, name) = space.names.iter().rfind(|(since, _)| *since <= timestamp).expect("it was created");
            (name.clone(), number)
        });
        named.collect()
    }

    /// Returns the timestamps above `from` at which a commit changed the keyspace.
    #[must_use]
    pub fn changes_above(&self, space: SpaceNumber, from: u64) -> BTreeSet<u64> {
        let state = self.lock();
        let versions = state.spaces[space].rows.values().flatten();
        versions.map(|version| version.timestamp).filter(|timestamp| *timestamp > from).collect()
    }

    // ── kept snapshots ─────────────────────────────────────────────────────────────────────────────────────────────

    /// Returns what is known of the snapshot that is kept under a name, and the number of its changes.
    #[must_use]
    pub fn kept(&self, name: &str) -> (Kept, u64) {
        self.lock().kept.get(name).map_or((Kept::No, 0), |known| (known.kept, known.changes))
    }

    /// Records that a call begins to keep or drop a snapshot. Returns `None` if another one has begun and not returned.
    #[must_use]
    pub fn claim_kept(&self, name: &str) -> Option<KeptClaim> {
        let mut state = self.lock();
        let from = state.answered;
        let known = state.kept.entry(name.to_owned()).or_default();
        if known.kept == Kept::Perhaps {
            return None;
        }
        known.claim = KeptClaim { before: known.kept, from };
        known.kept = Kept::Perhaps;
        known.changes += 1;
        Some(known.claim)
    }

    /// Records the outcome of that call.
    pub fn settle_kept(&self, name: &str, kept: Kept) {
        let mut state = self.lock();
        let known = state.kept.get_mut(name).expect("a claimed name");
        assert_eq!(known.kept, Kept::Perhaps, "two calls keep or drop {name:?} at once");
        known.kept = kept;
    }

    /// Records the kept snapshots, with their timestamps, that a database has after opening.
    ///
    /// # Errors
    /// The first name whose snapshot is not as it may be.
    pub fn reopen_kept(&self, found: &[(String, u64)]) -> Result<(), String> {
        let mut state = self.lock();
        let mut found: BTreeMap<&String, u64> = found.iter().map(|(name, at)| (name, *at)).collect();
        let mut wrong = None;
        for (name, known) in &mut state.kept {
            let found = found.remove(name);
            let may = match (known.kept, known.claim) {
                (Kept::No, _) => found.is_none(),
                (Kept::At(at), _) => found == Some(at),
                (Kept::Perhaps, KeptClaim { before: Kept::At(at), .. }) => found.is_none_or(|found| found == at),
                (Kept::Perhaps, KeptClaim { from, .. }) => found.is_none_or(|found| from <= found),
            };
            if !may {
                wrong.get_or_insert(format!("snapshot {name:?} is kept at {found:?}, should be {known:?}"));
            }
            let kept = found.map_or(Kept::No, Kept::At);
            known.changes += u64::from(known.kept != kept);
            known.kept = kept;
        }
        wrong = wrong.or(found.first_key_value().map(|(name, _)| format!("a snapshot {name:?} is kept")));
        wrong.map_or(Ok(()), Err)
    }

    /// Returns the keyspaces that existed at a commit, with the names that they had, sorted by name.
    #[must_use]
    pub fn spaces_at(&self, timestamp: u64) -> Vec<(String, SpaceNumber)> {
        let state = self.lock();
        let was_there =
            |space: &Space| space.created <= timestamp && space.dropped.is_none_or(|dropped| dropped > timestamp);
        let name_at = |space: &Space| {
            let names = space.names.iter().rev();
            let mut names = names.filter(|(named, _)| *named <= timestamp);
            names.next().expect("it has a name since its creation").1.clone()
        };
        let spaces = state.spaces.iter().enumerate().filter(|(_, space)| was_there(space));
        let mut spaces: Vec<_> = spaces.map(|(number, space)| (name_at(space), number)).collect();
        spaces.sort();
        spaces
    }

    /// Returns the ids of the transactions that were prepared at a commit, sorted.
    #[must_use]
    pub fn prepared_at(&self, timestamp: u64) -> Vec<Vec<u8>> {
        let state = self.lock();
        let is_prepared =
            |prepared: &&Prepared| prepared.at <= timestamp && prepared.ended.is_none_or(|ended| ended > timestamp);
        let mut ids: Vec<_> = state.prepared.iter().filter(is_prepared).map(|prepared| prepared.id.clone()).collect();
        ids.sort();
        ids
    }

    // ── cuts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Records that the database was opened, and that this is its last commit. Forgets later commits.
    ///
    /// # Errors
    /// If this is not a commit at which the database may end.
    pub fn reopen(&self, at_commit: u64, tampering: Tampering) -> Result<(), String> {
        let mut state = self.lock();
        if at_commit < state.acknowledged && tampering != Tampering::Much {
            let text = format!("it stands at commit {at_commit}, and commit {} was to last", state.acknowledged);
            if tampering == Tampering::None {
                return Err(text);
            }
            // One damaged record is allowed. If it is the last record, no later record shows that it existed.
            let lost = at_commit + 1;
            let mut later = state.known.range(lost + 1..).take_while(|(later, _)| **later <= state.acknowledged);
            if let Some((knowing, _)) = later.find(|(_, known)| **known >= lost) {
                return Err(format!("{text}; commit {knowing} knows that {lost} was durable"));
            }
        }
        if at_commit > state.last {
            return Err(format!("it stands at commit {at_commit}, and commit {} was the last", state.last));
        }
        state.last = at_commit;
        state.acknowledged = at_commit;
        state.answered = at_commit;
        state.alterations_in_flight = 0;
        state.known.retain(|timestamp, _| *timestamp <= at_commit);
        state.prepared.retain(|prepared| prepared.at <= at_commit);
        for prepared in &mut state.prepared {
            prepared.ended = prepared.ended.filter(|ended| *ended <= at_commit);
        }
        // Empty the keyspaces that were created later instead of removing them, so that other keyspaces keep their
        // numbers.
        for space in &mut state.spaces {
            if space.created > at_commit {
                *space = Space { dropped: Some(0), ..Space::new(String::new(), 0) };
            }
            // Keep older versions, even those of dropped keyspaces, because a drive that lied may still revert to a
            // time before the drop.
            space.dropped = space.dropped.filter(|dropped| *dropped <= at_commit);
            space.names.retain(|(named, _)| *named <= at_commit);
            space.rows.retain(|_, versions| {
                versions.retain(|version| version.timestamp <= at_commit);
                !versions.is_empty()
            });
        }
        Ok(())
    }

    /// Returns the names and numbers of the existing keyspaces.
    #[must_use]
    pub fn spaces(&self) -> Vec<(String, SpaceNumber)> {
        let state = self.lock();
        let there = state.spaces.iter().enumerate().filter(|(_, space)| space.dropped.is_none());
        there.map(|(number, space)| (space.name().to_owned(), number)).collect()
    }
}

/// Ends the transaction that is prepared under the id.
fn end_prepared(state: &mut State, id: &[u8], timestamp: u64) -> Prepared {
    let is_it = |prepared: &&mut Prepared| prepared.id == id && prepared.ended.is_none();
    let prepared = state.prepared.iter_mut().find(is_it).expect("a transaction is ended that is not prepared");
    assert!(prepared.at < timestamp, "a transaction ends at {timestamp}, before it is prepared");
    prepared.ended = Some(timestamp);
    prepared.clone()
}

fn at(versions: &[Version], timestamp: u64) -> Option<Content> {
    let count = versions.partition_point(|version| version.timestamp <= timestamp);
    versions[..count].last().and_then(|version| version.content)
}

/// Describes a value for a report.
#[must_use]
pub fn describe(bytes: &[u8]) -> String {
    let seed = bytes.get(8..16).map(|seed| u64::from_le_bytes(seed.try_into().expect("eight bytes")));
    format!("{} bytes of seed {seed:?}", bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a model with this many full commits. The record of each commit says that the preceding commit is
    /// durable.
    fn model(commits: u64) -> Model {
        let model = Model::default();
        for timestamp in 1..=commits {
            model.enter(timestamp, Operation::Rows(Vec::new()));
            model.answer(timestamp, true);
        }
        model
    }

    /// One damaged record may lose the last commit, but no earlier commit.
    #[test]
    fn one_flipped_bit_may_take_the_last_commit() {
        let after = |commit, tampering| model(5).reopen(commit, tampering);
        assert_eq!(after(5, Tampering::None), Ok(()));
        assert!(after(4, Tampering::None).is_err());
        assert_eq!(after(4, Tampering::Once), Ok(()));
        let found = after(3, Tampering::Once).expect_err("commit 5 knows");
        assert!(found.contains("commit 5 knows that 4 was durable"), "{found}");
        assert_eq!(after(3, Tampering::Much), Ok(()));
    }
}
