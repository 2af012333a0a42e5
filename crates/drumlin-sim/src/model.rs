//! The oracle: what the database must hold, version by version, in the order of the timestamps that the engine gave
//! out.
//!
//! A commit is entered at the moment at which it gets its timestamp. So at any time the model knows every commit that
//! may ever be read, whether its client was answered or not, and a read at a timestamp has one right answer.
//!
//! # What is checked
//! - *Durability.* After a cut the database stands at some commit L: not below any acknowledged full commit, not below
//!   anything that a reader saw while all commits are full, not above the last timestamp given out. It holds exactly
//!   what the commits up to L left.
//! - *Snapshots and scans* show exactly the state at their timestamp, plain reads that at some moment of the call.
//! - *Isolation.* Of a transaction under snapshot isolation no row that it wrote was changed between its snapshot and
//!   it; of a serializable one also no row that it read, and none in the ranges that it scanned.
//! - *Conditional changes* tell the row as the commit before theirs left it; one that compares passes for that value
//!   alone. A pop takes the row at the end, and removing many rows all that there are.
//! - *Dropped futures.* A commit that had its timestamp stands, and of one that had none there is nothing.
//! - *Wholeness.* A commit that failed has no timestamp, or its outcome is unknown. One that put rows and was
//!   acknowledged has one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use drumlin::internals::io::sim::Random;

/// A value by what it is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content {
    pub length: usize,
    pub seed: u64,
}

impl Content {
    /// Two thirds of it compress.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        self.head(self.length)
    }

    /// The first bytes, this many at most.
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

    /// Returns `true` if two values have the same bytes, or there is neither.
    #[must_use]
    pub fn are_same(left: Option<Content>, right: Option<Content>) -> bool {
        left == right || left.zip(right).is_some_and(|(left, right)| left.is(&right.bytes()))
    }

    #[must_use]
    pub fn is(self, bytes: &[u8]) -> bool {
        self.length == bytes.len() && self.bytes() == bytes
    }
}

/// A keyspace from its creation to its end: its name and its number in the model.
pub type SpaceNumber = usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Version {
    timestamp: u64,
    content: Option<Content>,
}

#[derive(Clone, Debug)]
struct Space {
    name: String,
    created: u64,
    dropped: Option<u64>,
    rows: BTreeMap<Vec<u8>, Vec<Version>>,
}

/// The changes of a commit.
#[derive(Clone, Debug)]
pub enum Operation {
    Rows(Vec<(SpaceNumber, Vec<u8>, Option<Content>)>),
    Create(String),
    Drop(SpaceNumber),
}

impl Operation {
    /// Returns `true` if any row is put: that can't be done without a timestamp.
    #[must_use]
    pub fn puts(&self) -> bool {
        matches!(self, Operation::Rows(rows) if rows.iter().any(|(_, _, content)| content.is_some()))
    }
}

#[derive(Clone, Debug, Default)]
struct State {
    spaces: Vec<Space>,
    /// The newest timestamp given out.
    last: u64,
    /// No cut may take the database behind this.
    acknowledged: u64,
    /// The newest commit that was answered in this life.
    answered: u64,
    /// The durable horizon that each commit of this life knew when it got its timestamp: its record says so.
    known: BTreeMap<u64, u64>,
    commits: u64,
    checked: u64,
}

/// The damage done to the disk behind the database's back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tampering {
    None,
    /// One bit was flipped, or one write was lost or landed elsewhere.
    Once,
    /// Anything may be other than it was written.
    Much,
}

/// See the module. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Model {
    state: Arc<Mutex<State>>,
}

/// The moments that a plain read may have looked at.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from: u64,
}

impl Model {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A copy that does not share changes.
    #[must_use]
    pub fn fork(&self) -> Model {
        Model { state: Arc::new(Mutex::new(self.lock().clone())) }
    }

    /// The commits that this model knows to last, and those that `later` knows.
    #[must_use]
    pub fn with_recorded(&self, later: &Model) -> Model {
        let mut state = later.lock().clone();
        let own = self.lock();
        state.acknowledged = own.acknowledged;
        state.answered = own.answered;
        Model { state: Arc::new(Mutex::new(state)) }
    }

    // ── commits ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// A commit got its timestamp.
    pub fn enter(&self, timestamp: u64, operation: Operation) {
        let mut state = self.lock();
        assert!(timestamp > 0, "timestamp 0 was given out");
        state.last = state.last.max(timestamp);
        state.commits += 1;
        let acknowledged = state.acknowledged;
        state.known.insert(timestamp, acknowledged);
        match operation {
            Operation::Create(name) => {
                state.spaces.push(Space { name, created: timestamp, dropped: None, rows: BTreeMap::new() });
            }
            Operation::Drop(space) => state.spaces[space].dropped = Some(timestamp),
            Operation::Rows(rows) => {
                for (space, key, content) in rows {
                    let space = &mut state.spaces[space];
                    assert!(
                        space.dropped.is_none_or(|dropped| timestamp < dropped),
                        "commit {timestamp} wrote to keyspace {:?}, which was dropped by {:?}",
                        space.name,
                        space.dropped
                    );
                    let versions = space.rows.entry(key).or_default();
                    // Commits on different rows may be told out of order; on one row they have its lock.
                    if let Some(newest) = versions.last() {
                        let newest = newest.timestamp;
                        assert!(newest < timestamp, "commit {timestamp} came to a row after commit {newest}");
                    }
                    let was_there = versions.last().is_some_and(|newest| newest.content.is_some());
                    // Removing what is not there changes nothing.
                    if was_there || content.is_some() {
                        versions.push(Version { timestamp, content });
                    }
                }
            }
        }
    }

    /// A commit was answered.
    pub fn answer(&self, timestamp: u64, is_full: bool) {
        let mut state = self.lock();
        state.answered = state.answered.max(timestamp);
        if is_full {
            state.acknowledged = state.acknowledged.max(timestamp);
        }
    }

    /// A reader saw the state at this timestamp and may have told others: no cut takes it.
    pub fn seen(&self, timestamp: u64) {
        let mut state = self.lock();
        state.acknowledged = state.acknowledged.max(timestamp);
    }

    #[must_use]
    pub fn last(&self) -> u64 {
        self.lock().last
    }

    /// No cut may take the database behind this.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.lock().acknowledged
    }

    #[must_use]
    pub fn commits(&self) -> u64 {
        self.lock().commits
    }

    /// Rows compared with what was read.
    #[must_use]
    pub fn checked(&self) -> u64 {
        self.lock().checked
    }

    /// Reads that begin now see at least this.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.lock().answered
    }

    #[must_use]
    pub fn window(&self) -> Window {
        Window { from: self.answered() }
    }

    // ── keyspaces ──────────────────────────────────────────────────────────────────────────────────────────────────

    /// The keyspace that has a name now.
    #[must_use]
    pub fn space(&self, name: &str) -> Option<SpaceNumber> {
        self.lock().spaces.iter().rposition(|space| space.name == name && space.dropped.is_none())
    }

    #[must_use]
    pub fn is_dropped(&self, space: SpaceNumber) -> bool {
        self.lock().spaces[space].dropped.is_some()
    }

    #[must_use]
    pub fn name(&self, space: SpaceNumber) -> String {
        self.lock().spaces[space].name.clone()
    }

    // ── reads ──────────────────────────────────────────────────────────────────────────────────────────────────────

    /// The version of a row at a timestamp.
    #[must_use]
    pub fn at(&self, space: SpaceNumber, key: &[u8], timestamp: u64) -> Option<Content> {
        let mut state = self.lock();
        state.checked += 1;
        state.spaces[space].rows.get(key).and_then(|versions| at(versions, timestamp))
    }

    /// The newest version of a row.
    #[must_use]
    pub fn newest(&self, space: SpaceNumber, key: &[u8]) -> Option<Content> {
        self.at(space, key, u64::MAX)
    }

    /// The newest versions of all rows of a keyspace that are there.
    #[must_use]
    pub fn newest_rows(&self, space: SpaceNumber) -> Vec<(Vec<u8>, Content)> {
        let state = self.lock();
        let rows = state.spaces[space].rows.iter();
        rows.filter_map(|(key, versions)| Some((key.clone(), versions.last()?.content?))).collect()
    }

    /// The newest commit that changed a row.
    #[must_use]
    pub fn newest_change(&self, space: SpaceNumber, key: &[u8]) -> u64 {
        let state = self.lock();
        state.spaces[space].rows.get(key).and_then(|versions| versions.last()).map_or(0, |version| version.timestamp)
    }

    /// Returns `true` if a commit between these, both excluded, changed the row.
    #[must_use]
    pub fn change_between(&self, space: SpaceNumber, key: &[u8], after: u64, before: u64) -> Option<u64> {
        let state = self.lock();
        let versions = state.spaces[space].rows.get(key)?;
        versions.iter().map(|version| version.timestamp).find(|timestamp| after < *timestamp && *timestamp < before)
    }

    /// A commit between these, both excluded, that changed a row within the bounds.
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

    /// Checks what a plain read found, and returns the commit that it saw for certain.
    ///
    /// # Errors
    /// The reason, if the answer is wrong.
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
            state.spaces[space].name,
            found.map_or("absent".to_owned(), tell),
            window.from,
            before.into_iter().chain(versions[first..].iter().copied()).collect::<Vec<_>>()
        ))
    }

    /// Returns `true` if a row was there, or was not, at some moment of the window.
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

    /// The rows of a keyspace at a timestamp, in the order of their keys.
    #[must_use]
    pub fn rows_at(&self, space: SpaceNumber, timestamp: u64) -> BTreeMap<Vec<u8>, Content> {
        let mut state = self.lock();
        let rows: BTreeMap<_, _> = (state.spaces[space].rows.iter())
            .filter_map(|(key, versions)| Some((key.clone(), at(versions, timestamp)?)))
            .collect();
        state.checked += rows.len() as u64;
        rows
    }

    /// Timestamps above `from` at which something was committed to the keyspace.
    #[must_use]
    pub fn changes_above(&self, space: SpaceNumber, from: u64) -> BTreeSet<u64> {
        let state = self.lock();
        let versions = state.spaces[space].rows.values().flatten();
        versions.map(|version| version.timestamp).filter(|timestamp| *timestamp > from).collect()
    }

    // ── cuts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    /// The database was opened and stands at this commit. What came later is as if it had never been.
    ///
    /// # Errors
    /// If that can't be.
    pub fn reopen(&self, at_commit: u64, tampering: Tampering) -> Result<(), String> {
        let mut state = self.lock();
        if at_commit < state.acknowledged && tampering != Tampering::Much {
            let text = format!("it stands at commit {at_commit}, and commit {} was to last", state.acknowledged);
            if tampering == Tampering::None {
                return Err(text);
            }
            // One record may be damaged. Is it the last, nobody can know that it was there.
            let lost = at_commit + 1;
            let mut later = state.known.range(lost + 1..).take_while(|(later, _)| **later <= state.acknowledged);
            if let Some((witness, _)) = later.find(|(_, known)| **known >= lost) {
                return Err(format!("{text}; commit {witness} knows that {lost} was durable"));
            }
        }
        if at_commit > state.last {
            return Err(format!("it stands at commit {at_commit}, and commit {} was the last", state.last));
        }
        state.last = at_commit;
        state.acknowledged = at_commit;
        state.answered = at_commit;
        state.known.retain(|timestamp, _| *timestamp <= at_commit);
        // Those created later are emptied and not taken away: their numbers stay what they are.
        for space in &mut state.spaces {
            if space.created > at_commit {
                *space = Space { name: String::new(), created: 0, dropped: Some(0), rows: BTreeMap::new() };
            }
            // Older versions stay, and the rows of what was dropped: a drive that lied may go back before them yet.
            space.dropped = space.dropped.filter(|dropped| *dropped <= at_commit);
            space.rows.retain(|_, versions| {
                versions.retain(|version| version.timestamp <= at_commit);
                !versions.is_empty()
            });
        }
        Ok(())
    }

    /// The keyspaces that are there: names and numbers.
    #[must_use]
    pub fn spaces(&self) -> Vec<(String, SpaceNumber)> {
        let state = self.lock();
        let there = state.spaces.iter().enumerate().filter(|(_, space)| space.dropped.is_none());
        there.map(|(number, space)| (space.name.clone(), number)).collect()
    }
}

fn at(versions: &[Version], timestamp: u64) -> Option<Content> {
    let count = versions.partition_point(|version| version.timestamp <= timestamp);
    versions[..count].last().and_then(|version| version.content)
}

/// A value in a report.
#[must_use]
pub fn tell(bytes: &[u8]) -> String {
    let seed = bytes.get(8..16).map(|seed| u64::from_le_bytes(seed.try_into().expect("eight bytes")));
    format!("{} bytes of seed {seed:?}", bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commits from the first one on; each knows of the one before it that it lasts.
    fn model(commits: u64) -> Model {
        let model = Model::default();
        for timestamp in 1..=commits {
            model.enter(timestamp, Operation::Rows(Vec::new()));
            model.answer(timestamp, true);
        }
        model
    }

    /// One damaged record may take itself, where it is the last, and nothing else.
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
