//! The rows of an index or view, as of one snapshot or transaction.

use std::ops::Bound;
use std::sync::Arc;

use drumlin::{Reader, Snapshot, Value};

use crate::collection::Collection;
use crate::encoding::{RowBounds, successor};
use crate::error::{Error, PartName, Result};
use crate::mode::Mode;
use crate::open::OpenCollection;

/// The snapshot or transaction to read from.
#[derive(Clone)]
pub(crate) enum At<'r> {
    Reader(&'r Reader),
    Snapshot(Snapshot),
}

impl At<'_> {
    pub(crate) fn reader(&self) -> &Reader {
        match self {
            At::Reader(reader) => reader,
            At::Snapshot(snapshot) => snapshot,
        }
    }
}

/// An iterator over the rows of a part within bounds. The part is looked up at the first step, because the lookup may
/// wait. The iterator owns everything it reads from, except for a borrowed reader.
pub(crate) struct PartRows<'r, C: Collection> {
    pub(crate) open: Arc<OpenCollection<C>>,
    pub(crate) at: At<'r>,
    pub(crate) name: PartName,
    bounds: RowBounds,
    rows: Option<drumlin::Range>,
    has_failed: bool,
}

/// Returns the bounds of the intersection of two ranges.
fn intersection(a: &RowBounds, b: RowBounds) -> RowBounds {
    // If two bounds have the same key, the exclusive one is narrower.
    let narrower = |a: &Bound<Vec<u8>>, b: Bound<Vec<u8>>, is_lower: bool| match (a, &b) {
        (Bound::Unbounded, _) => b,
        (_, Bound::Unbounded) => a.clone(),
        (Bound::Included(at) | Bound::Excluded(at), Bound::Included(other) | Bound::Excluded(other)) => {
            let is_a = if at == other { matches!(a, Bound::Excluded(_)) } else { (at > other) == is_lower };
            if is_a { a.clone() } else { b }
        }
    };
    (narrower(&a.0, b.0, true), narrower(&a.1, b.1, false))
}

impl<'r, C: Collection> PartRows<'r, C> {
    pub(crate) fn new(open: &Arc<OpenCollection<C>>, at: At<'r>, name: PartName) -> PartRows<'r, C> {
        let (open, bounds) = (Arc::clone(open), (Bound::Unbounded, Bound::Unbounded));
        PartRows { open, at, name, bounds, rows: None, has_failed: false }
    }

    /// Returns an iterator over the rows of `self` that are also within `bounds`.
    pub(crate) fn within(&self, bounds: RowBounds) -> PartRows<'r, C> {
        let bounds = intersection(&self.bounds, bounds);
        PartRows { bounds, ..PartRows::new(&self.open, self.at.clone(), self.name) }
    }

    /// Returns an iterator over the rows that sort after every key with this prefix.
    pub(crate) fn after(&self, prefix: Vec<u8>) -> PartRows<'r, C> {
        let nothing = (Bound::Included(vec![0]), Bound::Excluded(vec![0]));
        self.within(successor(prefix).map_or(nothing, |next| (Bound::Included(next), Bound::Unbounded)))
    }

    /// Returns an iterator over the rows that sort before every key with this prefix.
    pub(crate) fn before(&self, prefix: Vec<u8>) -> PartRows<'r, C> {
        self.within((Bound::Unbounded, Bound::Excluded(prefix)))
    }

    pub(crate) async fn count(&self, mode: Mode) -> Result<u64> {
        let part = self.open.ready_part(mode, self.at.reader(), self.name).await?;
        Ok(mode.count(self.at.reader(), &part.keyspace, &self.bounds).await?)
    }

    pub(crate) async fn aggregate<R: drumlin::Reducer>(&self, mode: Mode, reducer: &R) -> Result<R::Output> {
        let part = self.open.ready_part(mode, self.at.reader(), self.name).await?;
        Ok(match mode {
            Mode::Blocking => self.at.reader().aggregate(&part.keyspace, reducer, &self.bounds)?,
            Mode::Async => self.at.reader().aggregate_async(&part.keyspace, reducer, &self.bounds).await?,
        })
    }

    pub(crate) async fn step(&mut self, mode: Mode, backwards: bool) -> Option<Result<(Value, Value)>> {
        if self.has_failed {
            return None;
        }
        let row = self.try_step(mode, backwards).await.transpose();
        self.has_failed = matches!(row, Some(Err(_)));
        row
    }

    async fn try_step(&mut self, mode: Mode, backwards: bool) -> Result<Option<(Value, Value)>> {
        if self.rows.is_none() {
            let part = self.open.ready_part(mode, self.at.reader(), self.name).await?;
            self.rows = Some(self.at.reader().range(&part.keyspace, &self.bounds));
        }
        let rows = self.rows.as_mut().expect("they were just set");
        let row = if backwards { mode.next_back(rows).await } else { mode.next(rows).await };
        Ok(row.transpose()?)
    }

    /// Returns the error for a row that can't be decoded.
    pub(crate) fn row_error(&self, row: &[u8], reason: impl std::fmt::Display) -> Error {
        let (row, reason) = (row.escape_ascii().to_string(), reason.to_string());
        Error::Decode { collection: C::NAME, of: Some(self.name), row, reason }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::{Bound, RangeBounds};

    use super::intersection;

    /// For every combination of bounds, a key is in the intersection if and only if it is in both ranges.
    #[test]
    fn an_intersection_has_the_keys_of_both() {
        let bounds = |key: u8| [Bound::Included(vec![key]), Bound::Excluded(vec![key]), Bound::Unbounded];
        let all: Vec<_> = (0..3).flat_map(bounds).collect();
        let ranges: Vec<_> =
            all.iter().flat_map(|lower| all.iter().map(|upper| (lower.clone(), upper.clone()))).collect();
        for a in &ranges {
            for b in &ranges {
                let both = intersection(a, b.clone());
                for key in (0..3).flat_map(|key| [vec![key], vec![key, 0]]) {
                    assert_eq!(both.contains(&key), a.contains(&key) && b.contains(&key), "{key:?} of {a:?} and {b:?}");
                }
            }
        }
    }
}
