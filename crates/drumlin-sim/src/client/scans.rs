//! Scans of ranges from both ends, and counts.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, RangeBounds as _};

use drumlin::{Error, Range, Value};
use drumlin_io::testing::sim::Random;

use super::answers::Call;
use super::{Client, Count, Stop, by_api};
use crate::model::{Content, Model, SpaceNumber, describe};

/// The bounds of a scan, or of the part of it that was read.
pub(super) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The rows that a transaction has put (`Some`) or removed (`None`).
pub(super) type Own = BTreeMap<(SpaceNumber, Vec<u8>), Option<Content>>;

/// The database states that a call may see: the state after any commit in `from..=to`, with the transaction's own
/// changes applied.
pub(super) struct VisibleStates<'a> {
    pub from: u64,
    pub to: u64,
    pub own: Option<&'a Own>,
    pub how: &'static str,
    /// `true` if a scan whose snapshot is ended continues at a newer timestamp.
    pub renews: bool,
}

impl VisibleStates<'_> {
    pub(super) fn moments(&self, model: &Model, space: SpaceNumber) -> Vec<u64> {
        let mut moments = vec![self.from];
        if self.to > self.from {
            moments.extend(model.changes_above(space, self.from).into_iter().filter(|moment| *moment <= self.to));
        }
        moments
    }

    pub(super) fn rows(&self, model: &Model, space: SpaceNumber, moment: u64) -> BTreeMap<Vec<u8>, Content> {
        let mut rows = model.rows_at(space, moment);
        for ((_, key), content) in self.own.into_iter().flatten().filter(|((of, _), _)| *of == space) {
            match content {
                Some(content) => drop(rows.insert(key.clone(), *content)),
                None => drop(rows.remove(key)),
            }
        }
        rows
    }
}

/// The rows that a scan has read from each end.
#[derive(Default)]
struct Seen {
    front: Vec<(Value, Value)>,
    back: Vec<(Value, Value)>,
    /// `true` if the two ends have met.
    is_whole: bool,
}

impl Seen {
    /// Compares the rows with those of one database state.
    ///
    /// # Errors
    /// The first difference from `rows`.
    fn compare(&self, rows: &BTreeMap<Vec<u8>, Content>, bounds: &Bounds) -> Result<(), String> {
        let mut wanted = rows.range(bounds.clone());
        for (key, value) in &self.front {
            compare_row(wanted.next(), key, value)?;
        }
        for (key, value) in &self.back {
            compare_row(wanted.next_back(), key, value)?;
        }
        match wanted.next() {
            Some((key, _)) if self.is_whole => Err(format!("row {} is missing", key.escape_ascii())),
            _ => Ok(()),
        }
    }

    /// Compares the rows with those of several database states: each row must occur in one of the states, and every row
    /// that occurs in all states must have been read.
    ///
    /// # Errors
    /// The first row that violates this.
    fn compare_with_any(&self, states: &[BTreeMap<Vec<u8>, Content>], bounds: &Bounds) -> Result<(), String> {
        let text = |key: &[u8]| key.escape_ascii().to_string();
        let mut shown = BTreeMap::new();
        for (key, value) in self.front.iter().chain(self.back.iter().rev()) {
            if shown.last_key_value().is_some_and(|(last, _)| *last >= &key[..]) || !bounds.contains(&key.to_vec()) {
                return Err(format!("row {} is out of order or out of bounds", text(key)));
            }
            if !states.iter().any(|state| state.get(&key[..]).is_some_and(|content| content.is(value))) {
                return Err(format!("row {} is {}, as it never was", text(key), describe(value)));
            }
            shown.insert(&key[..], ());
        }
        let (first, others) = states.split_first().expect("one state at least");
        for part in self.covered(bounds) {
            let stays = |key: &Vec<u8>| others.iter().all(|state| state.contains_key(key));
            let missing = |key: &&Vec<u8>| !shown.contains_key(&key[..]) && stays(key);
            if let Some(key) = first.range(part).map(|(key, _)| key).find(missing) {
                return Err(format!("row {} is missing", text(key)));
            }
        }
        Ok(())
    }

    /// Returns the parts of the range that have been read.
    fn covered(&self, bounds: &Bounds) -> Vec<Bounds> {
        if self.is_whole {
            return vec![bounds.clone()];
        }
        let end = |rows: &[(Value, Value)]| rows.last().map(|(key, _)| Bound::Included(key.to_vec()));
        let from_front = end(&self.front).map(|last| (bounds.0.clone(), last));
        let from_back = end(&self.back).map(|last| (last, bounds.1.clone()));
        from_front.into_iter().chain(from_back).collect()
    }
}

impl Client {
    pub(super) fn bounds(&mut self, space: SpaceNumber) -> Bounds {
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

    pub(super) async fn plain_scan(&mut self) -> Result<(), Stop> {
        if self.random.chance(15) {
            return self.plain_count().await;
        }
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let prefix = self.random.chance(15).then(|| self.key(space)[..3].to_vec());
        let bounds = match &prefix {
            Some(prefix) => (Bound::Included(prefix.clone()), Bound::Excluded(after(prefix))),
            None => self.bounds(space),
        };
        let from = self.session.model.answered();
        let range = prefix.map_or_else(|| keyspace.range(bounds.clone()), |prefix| keyspace.prefix(prefix));
        let visible = VisibleStates { from, to: self.session.model.last(), own: None, how: "plain", renews: false };
        self.scan(range, space, &bounds, &visible).await;
        Ok(())
    }

    /// Counts the rows of a range.
    async fn plain_count(&mut self) -> Result<(), Stop> {
        if self.random.chance(50) {
            return self.plain_aggregate().await;
        }
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let bounds = self.bounds(space);
        let (from, within) = (self.session.model.answered(), bounds.clone());
        let api = self.api;
        let count = async { by_api!(api, keyspace.count(within), keyspace.count_async(within)) };
        match self.or_drop(count).await {
            None => Ok(()),
            Some(Ok(count)) => {
                let visible =
                    VisibleStates { from, to: self.session.model.last(), own: None, how: "plain", renews: false };
                self.check_count(count, space, &bounds, &visible);
                Ok(())
            }
            Some(Err(error)) => self.accept(&error, Call::Copy, Some(space)),
        }
    }

    /// Checks that a count matches one of the database states that the call may have seen.
    pub(super) fn check_count(&self, count: u64, space: SpaceNumber, bounds: &Bounds, visible: &VisibleStates) {
        let model = &self.session.model;
        let counted = |moment| visible.rows(model, space, moment).range(bounds.clone()).count() as u64;
        let is_right = visible.moments(model, space).into_iter().any(|moment| counted(moment) == count);
        assert!(
            is_right || model.is_dropped(space),
            "{}: a count of {bounds:?} is {count}, which matches no state between commits {} and {}",
            visible.how,
            visible.from,
            visible.to
        );
    }

    /// Checks that the row at an index matches one of the database states that the call may have seen.
    pub(super) fn check_nth(
        &self,
        index: u64,
        found: Option<&(Value, Value)>,
        space: SpaceNumber,
        bounds: &Bounds,
        visible: &VisibleStates<'_>,
    ) {
        let model = &self.session.model;
        let is_right = visible.moments(model, space).into_iter().any(|moment| {
            let rows = visible.rows(model, space, moment);
            match (rows.range(bounds.clone()).nth(index as usize), found) {
                (None, None) => true,
                (wanted, Some((key, value))) => compare_row(wanted, key, value).is_ok(),
                (Some(_), None) => false,
            }
        });
        assert!(
            is_right || model.is_dropped(space),
            "{}: row {index} of {bounds:?} is {:?}, as it never was between commits {} and {}",
            visible.how,
            found.map(|(key, _)| key),
            visible.from,
            visible.to
        );
    }

    /// Reads rows from one end, through a closure, until `limit` rows have been read.
    async fn show(&mut self, range: &mut Range, forward: bool, limit: usize, seen: &mut Seen) -> Result<(), Error> {
        let api = self.api;
        loop {
            let rows = if forward { &mut seen.front } else { &mut seen.back };
            let look = |key: &[u8], value: &[u8]| {
                rows.push((Value::from(key), Value::from(value)));
                if rows.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let shown = async {
                if forward {
                    by_api!(api, range.for_each_row(look), range.for_each_row_async(look))
                } else {
                    by_api!(api, range.for_each_row_back(look), range.for_each_row_back_async(look))
                }
            };
            // A dropped future has consumed no rows, and each row is passed to the closure only once.
            if let Some(shown) = self.or_drop(shown).await {
                seen.is_whole = shown?.is_continue();
                return Ok(());
            }
        }
    }

    /// Reads a range from both ends, and compares it with the database states that the scan may see. Returns the parts
    /// of the range that were read.
    pub(super) async fn scan(
        &mut self,
        mut range: Range,
        space: SpaceNumber,
        bounds: &Bounds,
        visible: &VisibleStates<'_>,
    ) -> Vec<Bounds> {
        self.session.counts.add(Count::Scans);
        let ended_count = self.session.db.stats().snapshots_ended;
        let mut seen = Seen::default();
        let style = self.random.below(5);
        let limit = if self.random.chance(50) { usize::MAX } else { self.random.below(40) as usize };
        let api = self.api;
        if style >= 3
            && limit > 0
            && let Err(error) = self.show(&mut range, style == 3, limit, &mut seen).await
        {
            let call = if visible.own.is_some() { Call::Transaction } else { Call::Copy };
            if self.accept(&error, call, Some(space)).is_err() {
                return Vec::new();
            }
        }
        while style < 3 && seen.front.len() + seen.back.len() < limit {
            let forward = match style {
                0 => true,
                1 => false,
                _ => self.random.chance(50),
            };
            let next = async {
                if forward {
                    by_api!(api, range.next(), range.next_async())
                } else {
                    by_api!(api, range.next_back(), range.next_back_async())
                }
            };
            // A dropped future has consumed no row.
            let Some(row) = self.or_drop(next).await else { continue };
            match row {
                None => {
                    seen.is_whole = true;
                    break;
                }
                Some(Ok(row)) if forward => seen.front.push(row),
                Some(Ok(row)) => seen.back.push(row),
                Some(Err(error)) => {
                    // The rows that were read before the error must still be right.
                    let call = if visible.own.is_some() { Call::Transaction } else { Call::Copy };
                    if self.accept(&error, call, Some(space)).is_err() {
                        return Vec::new();
                    }
                    break;
                }
            }
        }
        drop(range);
        let moments = visible.moments(&self.session.model, space);
        let mut reason = String::new();
        for &moment in &moments {
            match seen.compare(&visible.rows(&self.session.model, space, moment), bounds) {
                Ok(()) => {
                    if visible.own.is_none() && moments.len() == 1 {
                        self.saw(moment);
                    }
                    return seen.covered(bounds);
                }
                Err(other) => reason = other,
            }
        }
        if self.session.model.is_dropped(space) {
            return Vec::new();
        }
        if visible.renews && self.session.db.stats().snapshots_ended > ended_count {
            let (model, later) = (&self.session.model, VisibleStates { to: self.session.model.last(), ..*visible });
            let moments = later.moments(model, space);
            let states: Vec<_> = moments.into_iter().map(|moment| later.rows(model, space, moment)).collect();
            match seen.compare_with_any(&states, bounds) {
                Ok(()) => return seen.covered(bounds),
                Err(other) => reason = other,
            }
        }
        panic!("{} scan of {bounds:?} between commits {} and {}: {reason}", visible.how, visible.from, visible.to);
    }
}

fn compare_row(wanted: Option<(&Vec<u8>, &Content)>, key: &Value, value: &Value) -> Result<(), String> {
    match wanted {
        None => Err(format!("row {} is too much", key.escape_ascii())),
        Some((wanted, _)) if wanted[..] != key[..] => {
            Err(format!("row {} comes where {} should", key.escape_ascii(), wanted.escape_ascii()))
        }
        Some((_, content)) if !content.is(value) => {
            Err(format!("row {} is {}, should be {content:?}", key.escape_ascii(), describe(value)))
        }
        Some(_) => Ok(()),
    }
}

/// Returns the first key that does not begin with `prefix`.
fn after(prefix: &[u8]) -> Vec<u8> {
    let mut after = prefix.to_vec();
    *after.last_mut().expect("a key of digits") += 1;
    after
}
