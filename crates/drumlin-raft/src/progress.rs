//! The progress of a state machine: the last entry that is applied, and the last that is durably applied.

use std::collections::VecDeque;

use drumlin::{Database, Timestamp};
use drumlin_io::sync::Mutex;

use crate::error::Result;

/// The last entry of a group that is applied, and the last that is durably applied.
///
/// # Invariants
/// 1. `durable` is at most `applied`.
/// 2. An index is durable if the commit that applied it is, and that follows from the horizon of the database alone.
pub(crate) struct Progress {
    inner: Mutex<Inner>,
}

struct Inner {
    /// The database of the current generation.
    database: Database,
    generation: u64,
    applied: Option<u64>,
    durable: Option<u64>,
    /// The commits after `durable`, each with the last index that it applied.
    pending: VecDeque<(Timestamp, u64)>,
}

impl Inner {
    fn refresh(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let horizon = self.database.durable()?;
        while let Some((timestamp, index)) = self.pending.front()
            && *timestamp <= horizon
        {
            self.durable = Some(*index);
            self.pending.pop_front();
        }
        assert!(self.durable <= self.applied, "more is durable than applied");
        Ok(())
    }
}

impl Progress {
    /// Begins with a database that was just opened, all of which is durable.
    pub(crate) fn new(database: Database, generation: u64, applied: Option<u64>) -> Progress {
        let pending = VecDeque::new();
        Progress { inner: Mutex::new(Inner { database, generation, applied, durable: applied, pending }) }
    }

    /// Notes that a commit applied the entries up to an index.
    pub(crate) fn commit(&self, timestamp: Timestamp, index: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        assert!(inner.applied < Some(index), "entry {index} is applied again");
        inner.applied = Some(index);
        inner.pending.push_back((timestamp, index));
        inner.refresh()
    }

    /// Notes that a snapshot took the place of the state, all of which is durable.
    pub(crate) fn install(&self, database: Database, generation: u64, applied: Option<u64>) {
        let pending = VecDeque::new();
        *self.inner.lock() = Inner { database, generation, applied, durable: applied, pending };
    }

    pub(crate) fn applied(&self) -> Option<u64> {
        self.inner.lock().applied
    }

    /// Returns the index up to which the entries are durably applied.
    pub(crate) fn durable(&self) -> Result<Option<u64>> {
        let mut inner = self.inner.lock();
        inner.refresh()?;
        Ok(inner.durable)
    }

    /// Makes durable what is applied up to an index, if it is not. Returns how far the entries are durably applied.
    pub(crate) async fn secure(&self, index: u64) -> Result<Option<u64>> {
        loop {
            let (database, generation) = {
                let mut inner = self.inner.lock();
                inner.refresh()?;
                if inner.durable >= inner.applied.min(Some(index)) {
                    return Ok(inner.durable);
                }
                (inner.database.clone(), inner.generation)
            };
            if let Err(error) = database.sync_async().await {
                // A snapshot may have taken the place of the database while it was synced.
                if self.inner.lock().generation == generation {
                    return Err(error.into());
                }
            }
        }
    }
}
