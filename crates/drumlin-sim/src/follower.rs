//! A follower of the change feed: it applies the commits that the feed tells to rows of its own, which must be those of
//! the model. It keeps its place over cuts, kills and reopenings.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use drumlin::{Change, Changes, Commit, Database, Error, OldValue, Timestamp};
use drumlin_io::testing::sim;

use crate::model::Model;

/// The shortest and the longest pause of a follower that has read everything.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_secs(1));

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The rows of all keyspaces, as the commits up to `position` have left them.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    keyspaces: BTreeMap<String, Rows>,
    position: u64,
    commits: u64,
    old_values: u64,
    unknown_old_values: u64,
}

impl Follower {
    /// Returns the number of commits that the follower has applied.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// Returns the number of old values that were compared with the model, and the number of rows without one.
    #[must_use]
    pub fn old_values(&self) -> (u64, u64) {
        (self.old_values, self.unknown_old_values)
    }

    /// Compares the old value of a row with the value that the model has before the commit `at`.
    fn compare_old(&mut self, old: Option<OldValue<'_>>, model: &Model, space: usize, key: &[u8], at: u64) {
        let Some(old) = old else {
            self.unknown_old_values += 1;
            return;
        };
        let content = model.at(space, key, at - 1);
        let is_it = match (old, &content) {
            (OldValue::Absent, None) => true,
            (OldValue::Value(value), Some(content)) => content.is(value),
            (OldValue::Large { length }, Some(content)) => content.length as u64 == length,
            _ => false,
        };
        let key = key.escape_ascii();
        assert!(is_it, "commit {at} tells another old value of row {key}: {old:?}, should be {content:?}");
        self.old_values += 1;
    }

    /// Applies all commits up to `last`, and compares the rows with those of the model at this commit.
    pub fn catch_up(&mut self, db: &Database, model: &Model, last: u64) -> Result<(), Error> {
        assert!(self.position <= last, "the feed told commit {}, and the database ends at {last}", self.position);
        let mut changes = db.changes(Timestamp(self.position))?.until(Timestamp(last));
        while let Some(commit) = changes.next() {
            self.apply(&commit?, &changes, model);
        }
        self.position = last;
        self.compare(model);
        Ok(())
    }

    /// Applies the commits that are there, and waits for more, until `is_over`.
    pub fn follow(&mut self, db: &Database, model: &Model, is_over: &dyn Fn() -> bool) -> Result<(), Error> {
        let mut changes = db.changes(Timestamp(self.position))?;
        let mut pause = PAUSES.0;
        while !is_over() {
            match changes.ready() {
                Some(commit) => {
                    self.apply(&commit?, &changes, model);
                    pause = PAUSES.0;
                }
                None => {
                    sim::sleep(pause);
                    pause = (2 * pause).min(PAUSES.1);
                }
            }
        }
        Ok(())
    }

    /// Forgets everything if the database has lost commits that the follower has read, and takes the rows of the model.
    pub fn lose_after(&mut self, model: &Model, last: u64) {
        if self.position > last {
            self.position = 0;
            self.skip_to(model, last);
        }
    }

    /// Takes the rows of the model as of a commit, because the feed no longer has the commits before it.
    pub fn skip_to(&mut self, model: &Model, timestamp: u64) {
        assert!(self.position <= timestamp, "commits that were read are gone, and later ones are not");
        self.position = timestamp;
        self.keyspaces = model
            .names_at(timestamp)
            .into_iter()
            .map(|(name, space)| {
                let rows = model.rows_at(space, timestamp);
                (name, rows.into_iter().map(|(key, content)| (key, content.bytes())).collect())
            })
            .collect();
    }

    fn rows(&mut self, keyspace: &str) -> &mut Rows {
        let rows = self.keyspaces.get_mut(keyspace);
        rows.unwrap_or_else(|| panic!("the feed names keyspace {keyspace:?}, which was not created"))
    }

    fn apply(&mut self, commit: &Commit, changes: &Changes, model: &Model) {
        let at = commit.timestamp().0;
        assert!(self.position < at, "the feed tells commit {at} after {}", self.position);
        let before: BTreeMap<String, usize> = model.names_at(at - 1).into_iter().collect();
        let mut named = Vec::new();
        for (change, old) in commit.changes_with_old_values() {
            if let Change::Put { keyspace, key, .. }
            | Change::PutLarge { keyspace, key, .. }
            | Change::Remove { keyspace, key } = change
            {
                self.compare_old(old, model, before[keyspace], key, at);
            }
            match change {
                Change::Put { keyspace, key, value } => {
                    self.rows(keyspace).insert(key.to_vec(), value.to_vec());
                }
                Change::PutLarge { keyspace, key, length, value } => {
                    let content = model.at(before[keyspace], key, at);
                    let content = content.unwrap_or_else(|| panic!("commit {at} put no row {}", key.escape_ascii()));
                    assert_eq!(content.length as u64, length, "the length of a value in commit {at}");
                    let mut bytes = Vec::new();
                    if let Ok(Some(mut reader)) = changes.read_large(key, value)
                        && reader.read_to_end(&mut bytes).is_ok()
                    {
                        assert!(content.is(&bytes), "commit {at} has another value");
                    }
                    self.rows(keyspace).insert(key.to_vec(), content.bytes());
                }
                Change::Remove { keyspace, key } => drop(self.rows(keyspace).remove(key)),
                Change::RemoveRange { keyspace, lower, upper } => self
                    .rows(keyspace)
                    .retain(|key, _| &key[..] < lower || upper.is_some_and(|upper| upper <= &key[..])),
                Change::Loaded { keyspace, first_key, last_key, .. } => {
                    let is_inside = |key: &[u8]| first_key <= key && key <= last_key;
                    let rows = model.rows_at(before[keyspace], at).into_iter().filter(|(key, _)| is_inside(key));
                    let own = self.rows(keyspace);
                    own.retain(|key, _| !is_inside(key));
                    own.extend(rows.map(|(key, content)| (key, content.bytes())));
                }
                Change::Create { keyspace } => named.push((keyspace.to_owned(), Rows::new())),
                Change::Drop { keyspace } => {
                    let dropped = self.keyspaces.remove(keyspace);
                    assert!(dropped.is_some(), "commit {at} drops keyspace {keyspace:?}, which was not created");
                }
                Change::Rename { from, to } => {
                    let rows = self.keyspaces.remove(from);
                    named.push((
                        to.to_owned(),
                        rows.unwrap_or_else(|| panic!("commit {at} renames a keyspace that was not created")),
                    ));
                }
                Change::Clone { from, to, as_of } => {
                    let rows = model.rows_at(before[from], as_of.0);
                    let rows = rows.into_iter().map(|(key, content)| (key, content.bytes()));
                    named.push((to.to_owned(), rows.collect()));
                }
                other => panic!("{other:?}"),
            }
        }
        self.keyspaces.extend(named);
        self.position = at;
        self.commits += 1;
    }

    fn compare(&self, model: &Model) {
        let at = self.position;
        let wanted: BTreeMap<String, usize> = model.names_at(at).into_iter().collect();
        assert!(self.keyspaces.keys().eq(wanted.keys()), "the feed tells other keyspaces up to commit {at}");
        for (name, space) in wanted {
            let (rows, expected) = (&self.keyspaces[&name], model.rows_at(space, at));
            for (key, content) in &expected {
                let is_it = rows.get(key).is_some_and(|value| content.is(value));
                assert!(is_it, "up to commit {at}, the feed tells another row {} of {name:?}", key.escape_ascii());
            }
            assert_eq!(rows.len(), expected.len(), "up to commit {at}, the feed tells more rows of {name:?}");
        }
    }
}
