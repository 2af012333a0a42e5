//! The rows of an index or view, as of one view of the database.

use std::ops::Bound;
use std::sync::Arc;

use drumlin::{Reader, Snapshot, Value};

use crate::collection::Collection;
use crate::error::{Error, PartName, Result};
use crate::mode::Mode;
use crate::open::OpenCollection;

/// The view that is read.
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

pub(crate) type RowBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The rows of a part within bounds. The part is asked for with the first step, since that may wait.
pub(crate) struct PartRows<'r, C: Collection> {
    pub(crate) open: &'r Arc<OpenCollection<C>>,
    pub(crate) at: At<'r>,
    pub(crate) name: PartName,
    bounds: RowBounds,
    rows: Option<drumlin::Range>,
    has_failed: bool,
}

impl<C: Collection> Clone for PartRows<'_, C> {
    /// The same rows from their beginning.
    fn clone(&self) -> Self {
        self.within(self.bounds.clone())
    }
}

impl<'r, C: Collection> PartRows<'r, C> {
    pub(crate) fn new(open: &'r Arc<OpenCollection<C>>, at: At<'r>, name: PartName) -> PartRows<'r, C> {
        PartRows { open, at, name, bounds: (Bound::Unbounded, Bound::Unbounded), rows: None, has_failed: false }
    }

    pub(crate) fn within(&self, bounds: RowBounds) -> PartRows<'r, C> {
        PartRows { open: self.open, at: self.at.clone(), name: self.name, bounds, rows: None, has_failed: false }
    }

    pub(crate) async fn count(&self, mode: Mode) -> Result<u64> {
        let part = self.open.ready_part(mode, self.at.reader(), self.name).await?;
        Ok(match mode {
            Mode::Blocking => self.at.reader().count(&part.keyspace, &self.bounds)?,
            Mode::Async => self.at.reader().count_async(&part.keyspace, &self.bounds).await?,
        })
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

    /// The error of a row that is none of this part.
    pub(crate) fn row_error(&self, row: &[u8], reason: impl std::fmt::Display) -> Error {
        let (row, reason) = (row.escape_ascii().to_string(), reason.to_string());
        Error::Decode { collection: C::NAME, of: Some(self.name), row, reason }
    }
}
