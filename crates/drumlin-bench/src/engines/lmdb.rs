//! LMDB, through heed.
#![allow(unsafe_code)]

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{CommitOrAbort, CompactionOption, Env, EnvFlags, EnvOpenOptions, PutFlags, RoTxn, WithTls};

use crate::engine::{
    Backups, Capabilities, Durability, Engine, HeldSnapshot, Key, Order, Peer, Result, Row, Session, Settings, Source,
};
use crate::engine::{load_in_batches, missing_row};

pub(super) const PEER: Peer = Peer {
    name: "lmdb",
    version: "0.23.1",
    settings: "by heed; no read-ahead; no cache of its own: the page cache is its cache, within the group; relaxed is \
               MDB_NOSYNC; sorted bulk loads append, 100,000 rows a transaction",
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
    restore: Some(restore),
};

/// The size of the memory map, larger than any workload needs.
const MAP_BYTES: usize = 64 << 30;
/// The number of rows per transaction of a bulk load.
const BULK_ROWS: usize = 100_000;

type Rows<'e> = heed::Database<'e, Bytes, Bytes>;

struct Lmdb {
    env: Env,
}

fn open(folder: &Path, settings: &Settings) -> Result<Box<dyn Engine>> {
    let mut options = EnvOpenOptions::new();
    options.map_size(MAP_BYTES).max_readers(256);
    let mut flags = EnvFlags::NO_READ_AHEAD;
    if settings.durability == Durability::Relaxed {
        flags |= EnvFlags::NO_SYNC;
    }
    // SAFETY: the folder belongs to this benchmark. No other program opens or changes its files, and files that a power
    // cut left behind under NO_SYNC are never reopened.
    let env = unsafe { options.flags(flags).open(folder)? };
    let engine = Lmdb { env };
    engine.rows()?;
    Ok(Box::new(engine))
}

impl Lmdb {
    /// Opens the unnamed table. The first call creates it.
    fn rows(&self) -> Result<Rows<'_>> {
        let tx = self.env.write_txn()?;
        let opened = self.env.create_databases_and_commit(tx, |opener, tx| {
            opener.create_database(tx, None).map(CommitOrAbort::<_, ()>::Commit)
        })?;
        Ok(opened.unwrap_commit())
    }
}

fn restore(backups: &Path, target: &Path) -> Result<()> {
    std::fs::copy(backups.join("backup.mdb"), target.join("data.mdb"))?;
    Ok(())
}

impl Backups for Lmdb {
    fn back_up(&self, folder: &Path) -> Result<()> {
        let path = folder.join("backup.mdb");
        if path.exists() {
            std::fs::remove_file(&path)?;
        }
        self.env.copy_to_path(path, CompactionOption::Disabled)?;
        Ok(())
    }
}

impl Engine for Lmdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Access { env: &self.env, rows: self.rows()? }))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn bulk_load(&self, source: &mut dyn Source, order: Order) -> Result<()> {
        if order == Order::Random {
            return load_in_batches(&mut *self.session()?, source, BULK_ROWS);
        }
        let rows = self.rows()?;
        loop {
            let mut tx = self.env.write_txn()?;
            let mut count = 0;
            while count < BULK_ROWS
                && let Some((key, value)) = source.next()
            {
                rows.put_with_flags(&mut tx, PutFlags::APPEND, &key, value)?;
                count += 1;
            }
            tx.commit()?;
            if count < BULK_ROWS {
                return Ok(());
            }
        }
    }

    fn backups(&self) -> Option<&dyn Backups> {
        Some(self)
    }

    fn hold(&self) -> Result<Option<Box<dyn HeldSnapshot + '_>>> {
        let rows = self.rows()?;
        Ok(Some(Box::new(Held { tx: self.env.read_txn()?, rows })))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.env.force_sync()?;
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

struct Held<'e> {
    tx: RoTxn<'e, WithTls>,
    rows: Rows<'e>,
}

impl HeldSnapshot for Held<'_> {
    fn scan(&mut self, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut count = 0;
        for row in self.rows.iter(&self.tx)? {
            let (key, value) = row?;
            see(key, value);
            count += 1;
        }
        Ok(count)
    }
}

struct Access<'e> {
    env: &'e Env,
    rows: Rows<'e>,
}

impl Session for Access<'_> {
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let tx = self.env.read_txn()?;
        let found = self.rows.get(&tx, &key)?;
        if let Some(value) = found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn get_many(&mut self, keys: &[Key], see: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        // LMDB has no multi-get. The best that it offers is a single transaction for all reads.
        let tx = self.env.read_txn()?;
        let mut count = 0;
        for (index, key) in keys.iter().enumerate() {
            if let Some(value) = self.rows.get(&tx, key)? {
                see(index, value);
                count += 1;
            }
        }
        Ok(count)
    }

    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let tx = self.env.read_txn()?;
        let bounds = (Bound::Included(&first[..]), Bound::Unbounded);
        let mut count = 0;
        for row in self.rows.range(&tx, &bounds)? {
            if count == limit {
                break;
            }
            let (key, value) = row?;
            see(key, value);
            count += 1;
        }
        Ok(count)
    }

    fn count(&mut self, first: Key, end: Key) -> Result<u64> {
        let tx = self.env.read_txn()?;
        let bounds = (Bound::Included(&first[..]), Bound::Excluded(&end[..]));
        let mut count = 0;
        for row in self.rows.range(&tx, &bounds)? {
            row?;
            count += 1;
        }
        Ok(count)
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        let mut tx = self.env.write_txn()?;
        for (key, value) in rows {
            self.rows.put(&mut tx, key, value)?;
        }
        Ok(tx.commit()?)
    }

    fn update(&mut self, key: Key, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()> {
        let mut tx = self.env.write_txn()?;
        let value = change(self.rows.get(&tx, &key)?.ok_or_else(|| missing_row(key))?);
        self.rows.put(&mut tx, &key, &value)?;
        Ok(tx.commit()?)
    }
}
