//! Reads outside of transactions, of the newest row versions and of snapshots.

use std::ops::ControlFlow;

use drumlin::{Error, Keyspace, Snapshot};

use super::answers::Call;
use super::scans::VisibleStates;
use super::{Client, Count, Stop, by_api};
use crate::model::SpaceNumber;

impl Client {
    pub(super) async fn plain_reads(&mut self) -> Result<(), Stop> {
        if self.random.chance(15) {
            return self.plain_look().await;
        }
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let window = self.session.model.window();
        let count = if self.random.chance(40) { 2 + self.random.below(30) } else { 1 };
        let keys: Vec<Vec<u8>> = (0..count).map(|_| self.key(space)).collect();
        let api = self.api;
        let get = async {
            if count == 1 {
                let found = by_api!(api, keyspace.get(&keys[0]), keyspace.get_async(&keys[0]));
                found.map(|found| vec![found])
            } else {
                by_api!(api, keyspace.get_many(&keys), keyspace.get_many_async(&keys))
            }
        };
        let Some(found) = self.or_drop(get).await else { return Ok(()) };
        match found {
            Ok(found) => {
                assert_eq!(found.len(), keys.len());
                for (key, value) in keys.iter().zip(found) {
                    self.session.counts.add(Count::Reads);
                    self.check_plain(window, space, key, value.as_deref());
                }
                Ok(())
            }
            Err(error) => self.accept(&error, Call::Plain, Some(space)),
        }
    }

    /// Checks the result of `contains_key`.
    async fn plain_look(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let window = self.session.model.window();
        let key = self.key(space);
        let api = self.api;
        let look = async { by_api!(api, keyspace.contains_key(&key), keyspace.contains_key_async(&key)) };
        match self.or_drop(look).await {
            None => {}
            Some(Ok(is_there)) => {
                self.session.counts.add(Count::Reads);
                let may = self.session.model.was(window, space, &key, is_there) || self.session.model.is_dropped(space);
                assert!(may, "contains_key says {is_there} of row {}, which it was not", key.escape_ascii());
            }
            Some(Err(error)) => self.accept(&error, Call::Plain, Some(space))?,
        }
        Ok(())
    }

    pub(super) async fn snapshot_reads(&mut self) -> Result<(), Stop> {
        let keeps = self.session.plan.keeps_snapshots;
        let snapshot = match self.snapshot.take() {
            Some(snapshot) if self.random.chance(if keeps { 100 } else { 80 }) => snapshot,
            _ => {
                self.session.counts.add(Count::Snapshots);
                let answered = self.session.model.answered();
                let snapshot = self.session.db.snapshot();
                let at = snapshot.timestamp().0;
                assert!(
                    answered <= at && at <= self.session.model.last(),
                    "a snapshot was taken at {at}; {answered} was answered, {} the last",
                    self.session.model.last()
                );
                self.saw(at);
                snapshot
            }
        };
        for _ in 0..1 + self.random.below(6) {
            let Some((keyspace, space)) = self.any_keyspace() else { continue };
            if self.snapshot_read(&snapshot, &keyspace, space).await?.is_break() {
                return Ok(());
            }
        }
        if self.random.chance(if keeps { 100 } else { 70 }) {
            self.snapshot = Some(snapshot);
        }
        Ok(())
    }

    /// Makes one read of a random kind from a snapshot. Returns `Break` if the database has ended the snapshot.
    async fn snapshot_read(
        &mut self,
        snapshot: &Snapshot,
        keyspace: &Keyspace,
        space: SpaceNumber,
    ) -> Result<ControlFlow<()>, Stop> {
        if self.session.plan.reads_all && self.random.chance(15) {
            self.snapshot_look(snapshot, keyspace, space).await?;
        } else if self.random.chance(50) {
            return self.snapshot_get(snapshot, keyspace, space).await;
        } else if self.random.chance(15) {
            self.snapshot_nth(snapshot, keyspace, space).await?;
        } else if self.random.chance(15) {
            self.snapshot_aggregate(snapshot, keyspace, space).await?;
        } else if self.random.chance(25) {
            self.snapshot_count(snapshot, keyspace, space).await?;
        } else {
            let bounds = self.bounds(space);
            let range = snapshot.range(keyspace, bounds.clone());
            self.scan(range, space, &bounds, &seen_by(snapshot)).await;
        }
        Ok(ControlFlow::Continue(()))
    }

    async fn snapshot_look(
        &mut self,
        snapshot: &Snapshot,
        keyspace: &Keyspace,
        space: SpaceNumber,
    ) -> Result<(), Stop> {
        let (at, key, api) = (snapshot.timestamp().0, self.key(space), self.api);
        let look =
            async { by_api!(api, snapshot.contains_key(keyspace, &key), snapshot.contains_key_async(keyspace, &key)) };
        match self.or_drop(look).await {
            None => {}
            Some(Ok(is_there)) => {
                let wanted = self.session.model.at(space, &key, at).is_some();
                let may = is_there == wanted || self.session.model.is_dropped(space);
                assert!(may, "contains_key says {is_there} of row {} at {at}", key.escape_ascii());
            }
            Some(Err(error)) => self.accept(&error, Call::Snapshot, Some(space))?,
        }
        Ok(())
    }

    async fn snapshot_get(
        &mut self,
        snapshot: &Snapshot,
        keyspace: &Keyspace,
        space: SpaceNumber,
    ) -> Result<ControlFlow<()>, Stop> {
        let (at, key, api) = (snapshot.timestamp().0, self.key(space), self.api);
        let get = async { by_api!(api, snapshot.get(keyspace, &key), snapshot.get_async(keyspace, &key)) };
        match self.or_drop(get).await {
            None => {}
            Some(Ok(found)) => {
                self.session.counts.add(Count::Reads);
                if !self.session.model.is_dropped(space) {
                    let wanted = self.session.model.at(space, &key, at);
                    self.check_value(space, &key, at, wanted, found.as_deref(), "snapshot");
                }
            }
            Some(Err(error @ Error::SnapshotTooOld { .. })) => {
                self.accept(&error, Call::Snapshot, None)?;
                return Ok(ControlFlow::Break(()));
            }
            Some(Err(error)) => self.accept(&error, Call::Snapshot, Some(space))?,
        }
        Ok(ControlFlow::Continue(()))
    }

    async fn snapshot_nth(&mut self, snapshot: &Snapshot, keyspace: &Keyspace, space: SpaceNumber) -> Result<(), Stop> {
        let (bounds, index, api) = (self.bounds(space), self.random.below(200), self.api);
        let within = bounds.clone();
        let nth =
            async { by_api!(api, snapshot.nth(keyspace, within, index), snapshot.nth_async(keyspace, within, index)) };
        match self.or_drop(nth).await {
            None => {}
            Some(Ok(found)) => self.check_nth(index, found.as_ref(), space, &bounds, &seen_by(snapshot)),
            Some(Err(error)) => self.accept(&error, Call::Copy, Some(space))?,
        }
        Ok(())
    }

    async fn snapshot_count(
        &mut self,
        snapshot: &Snapshot,
        keyspace: &Keyspace,
        space: SpaceNumber,
    ) -> Result<(), Stop> {
        let (bounds, api) = (self.bounds(space), self.api);
        let within = bounds.clone();
        let count = async { by_api!(api, snapshot.count(keyspace, within), snapshot.count_async(keyspace, within)) };
        match self.or_drop(count).await {
            None => {}
            Some(Ok(count)) => self.check_count(count, space, &bounds, &seen_by(snapshot)),
            Some(Err(error)) => self.accept(&error, Call::Copy, Some(space))?,
        }
        Ok(())
    }
}

/// Returns the only timestamp at which reads from this snapshot may see the database.
fn seen_by(snapshot: &Snapshot) -> VisibleStates<'static> {
    let at = snapshot.timestamp().0;
    VisibleStates { from: at, to: at, own: None, how: "snapshot", renews: false }
}
