//! Transactions whose changes outgrow memory, with savepoints and roll-backs, while other clients want the same rows.

use std::time::Duration;

use drumlin::Error;

use super::answers::Call;
use super::transaction::{RowTarget, Running};
use super::{Client, Count, DURABLE, Stop, numbered};
use crate::model::Content;

impl Client {
    pub(super) async fn spilling_transaction(&mut self) -> Result<(), Stop> {
        self.session.counts.add(Count::Transactions);
        let mut running = match self.begin() {
            Ok(running) => running,
            Err(error) => return self.accept(&error, Call::Plain, None),
        };
        for _ in 0..3 + self.random.below(8) {
            if let Err(error) = self.spilling_part(&mut running).await {
                let space = running.used.iter().copied().find(|space| self.session.model.is_dropped(*space));
                self.accept(&error, Call::Transaction, space)?;
                if error.is_conflict() || matches!(error, Error::SnapshotTooOld { .. }) || self.random.chance(50) {
                    return Ok(());
                }
            }
        }
        if self.random.chance(10) {
            running.tx.abort();
            return Ok(());
        }
        self.end(running).await
    }

    /// Changes a run of rows, and maybe undoes that.
    async fn spilling_part(&mut self, running: &mut Running) -> Result<(), Error> {
        let name = DURABLE[self.random.below(2) as usize].0;
        let Some((keyspace, space)) = self.open(name) else { return Ok(()) };
        running.used.insert(space);
        let mut target = RowTarget { key: Vec::new(), keyspace, space };
        if self.random.chance(50) {
            running.set_savepoint();
        }
        let (first, count) = (self.random.below(self.session.plan.key_count), 20 + self.random.below(120));
        let length_max = if self.random.chance(50) { self.session.plan.value_bytes } else { 1000 };
        let is_backward = self.random.chance(20);
        for index in 0..count.min(self.session.plan.key_count) {
            let index = if is_backward { count - index } else { index };
            target.key = numbered((first + index) % self.session.plan.key_count);
            let content = Content { length: self.random.below(length_max) as usize, seed: self.random.next() };
            let content = self.random.chance(85).then_some(content);
            self.tx_set(running, &target, content).await?;
        }
        match self.random.below(10) {
            0..3 => self.tx_roll_back(running)?,
            3..5 => self.tx_scan(running, &target).await,
            5..8 => {
                for _ in 0..5 {
                    target.key = self.key(space);
                    self.statement(running, &target).await?;
                }
            }
            _ => {
                let micros = self.random.below(2000);
                self.sleep(Duration::from_micros(micros)).await;
            }
        }
        Ok(())
    }
}
