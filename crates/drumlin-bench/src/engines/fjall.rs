//! fjall.

use std::path::Path;

use fjall::{KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, PersistMode, Readable};

use crate::engine::{Capabilities, Durability, Engine, Key, Order, Peer, Result, Row, Session, Settings, Source};
use crate::engine::{load_in_batches, missing_row};

pub(super) const PEER: Peer = Peer {
    name: "fjall",
    version: "3.1.13",
    settings: "optimistic transactions; 3/4 of the budget are cache, 1/8 the memtable, of which two may exist; durable \
               is PersistMode::SyncData, relaxed the operating system's cache; sorted bulk loads use its ingestion",
    capabilities: Capabilities {
        one_writer: true,
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

/// The number of rows per batch of an unsorted bulk load.
const BULK_ROWS: usize = 1000;

struct Fjall {
    db: OptimisticTxDatabase,
    rows: OptimisticTxKeyspace,
    mode: PersistMode,
}

fn open(folder: &Path, settings: &Settings) -> Result<Box<dyn Engine>> {
    let db = OptimisticTxDatabase::builder(folder).cache_size(settings.memory_bytes / 4 * 3).open()?;
    let memtable_bytes = settings.memory_bytes / 8;
    let rows = db.keyspace("rows", || KeyspaceCreateOptions::default().max_memtable_size(memtable_bytes))?;
    let mode = match settings.durability {
        Durability::Full => PersistMode::SyncData,
        Durability::Relaxed => PersistMode::Buffer,
    };
    Ok(Box::new(Fjall { db, rows, mode }))
}

impl Engine for Fjall {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Access(self)))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }

    fn bulk_load(&self, rows: &mut dyn Source, order: Order) -> Result<()> {
        if order == Order::Random {
            return load_in_batches(&mut *self.session()?, rows, BULK_ROWS);
        }
        let mut ingestion = self.rows.inner().start_ingestion()?;
        while let Some((key, value)) = rows.next() {
            ingestion.write(key, value)?;
        }
        Ok(ingestion.finish()?)
    }

    fn settle(&self) -> Result<()> {
        let db = self.db.inner();
        while db.outstanding_flushes() > 0 || db.active_compactions() > 0 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

struct Access<'e>(&'e Fjall);

impl Session for Access<'_> {
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.0.rows.get(key)?;
        if let Some(value) = &found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut count = 0;
        for row in self.0.rows.inner().range(&first[..]..).take(usize::try_from(limit).unwrap_or(usize::MAX)) {
            let (key, value) = row.into_inner()?;
            see(&key, &value);
            count += 1;
        }
        Ok(count)
    }

    fn count(&mut self, first: Key, end: Key) -> Result<u64> {
        let mut count = 0;
        for row in self.0.rows.inner().range(&first[..]..&end[..]) {
            row.key()?;
            count += 1;
        }
        Ok(count)
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        let mut batch = self.0.db.inner().batch().durability(Some(self.0.mode));
        for (key, value) in rows {
            batch.insert(self.0.rows.inner(), *key, &value[..]);
        }
        Ok(batch.commit()?)
    }

    fn update(&mut self, key: Key, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()> {
        loop {
            let mut tx = self.0.db.write_tx()?.durability(Some(self.0.mode));
            let value = tx.get(&self.0.rows, key)?.ok_or_else(|| missing_row(key))?;
            tx.insert(&self.0.rows, key, change(&value));
            if tx.commit()?.is_ok() {
                return Ok(());
            }
        }
    }
}
