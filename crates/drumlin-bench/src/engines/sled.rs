//! sled.

use std::path::Path;

use sled::{Batch, Db, Mode};

use crate::engine::{Capabilities, Durability, Engine, Key, Peer, Result, Row, Session, Settings, missing_row};

pub(super) const PEER: Peer = Peer {
    name: "sled",
    version: "0.34.7",
    settings: "its last release; cache: the budget; durable is flush() after each commit; relaxed flushes every 500 ms; \
               compression is off, its default; an update is update_and_fetch",
    capabilities: Capabilities {
        one_writer: false,
        multi_get: false,
        transactions: true,
        atomic_batches: true,
        recovers: true,
        inserts_only: false,
        two_phases: false,
        tables: false,
        range_deletes: false,
        large_transactions: false,
    },
    open,
    restore: None,
};

struct Sled {
    db: Db,
    durability: Durability,
}

fn open(folder: &Path, settings: &Settings) -> Result<Box<dyn Engine>> {
    let config =
        sled::Config::new().path(folder.join("sled")).cache_capacity(settings.memory_bytes).mode(Mode::HighThroughput);
    Ok(Box::new(Sled { db: config.open()?, durability: settings.durability }))
}

impl Engine for Sled {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Access(self)))
    }

    fn sync(&self) -> Result<()> {
        self.db.flush()?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

struct Access<'e>(&'e Sled);

impl Access<'_> {
    fn settle_commit(&self) -> Result<()> {
        if self.0.durability == Durability::Full { self.0.sync() } else { Ok(()) }
    }
}

impl Session for Access<'_> {
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.0.db.get(key)?;
        if let Some(value) = &found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut count = 0;
        for row in self.0.db.range(&first[..]..).take(usize::try_from(limit).unwrap_or(usize::MAX)) {
            let (key, value) = row?;
            see(&key, &value);
            count += 1;
        }
        Ok(count)
    }

    fn count(&mut self, first: Key, end: Key) -> Result<u64> {
        let mut count = 0;
        for row in self.0.db.range(&first[..]..&end[..]) {
            row?;
            count += 1;
        }
        Ok(count)
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        if let [(key, value)] = rows {
            self.0.db.insert(key, &value[..])?;
        } else {
            let mut batch = Batch::default();
            for (key, value) in rows {
                batch.insert(key, &value[..]);
            }
            self.0.db.apply_batch(batch)?;
        }
        self.settle_commit()
    }

    fn update(&mut self, key: Key, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()> {
        let found = self.0.db.update_and_fetch(key, |value| value.map(&mut *change))?;
        if found.is_none() {
            return Err(missing_row(key));
        }
        self.settle_commit()
    }
}
