//! RocksDB: an entry is a row whose key is log and index.

use std::path::Path;

use rocksdb::{DB, DEFAULT_COLUMN_FAMILY_NAME, IteratorMode, Options, WriteBatch, WriteOptions};

use super::{LogPeer, LogStore, Pending};
use crate::engine::Result;

pub(super) const LOGS: LogPeer = LogPeer { name: "rocksdb", reads: true, folder_each: false, open };

struct Store {
    db: DB,
}

fn open(folder: &Path, _: u64, memory_bytes: u64) -> Result<Box<dyn LogStore>> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_db_write_buffer_size((memory_bytes / 2) as usize);
    Ok(Box::new(Store { db: DB::open(&options, folder.join("rocksdb"))? }))
}

fn key(log: u64, index: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&log.to_be_bytes());
    key[8..].copy_from_slice(&index.to_be_bytes());
    key
}

impl Store {
    fn write(&self, log: u64, first: u64, entries: &[Vec<u8>], sync: bool) -> Result<()> {
        let mut batch = WriteBatch::default();
        (first..).zip(entries).for_each(|(index, entry)| batch.put(key(log, index), entry));
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        Ok(self.db.write_opt(batch, &options)?)
    }
}

impl LogStore for Store {
    fn append<'s>(&'s self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<Pending<'s>> {
        self.write(log, first, entries, false)?;
        Ok(Box::new(|| Ok(self.db.flush_wal(true)?)))
    }

    fn append_relaxed(&self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<()> {
        self.write(log, first, entries, false)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.flush_wal(true)?)
    }

    fn read(&self, log: u64, first: u64, end: u64, see: &mut dyn FnMut(u64, &[u8])) -> Result<u64> {
        let from = key(log, first);
        let mut count = 0;
        for row in self.db.iterator(IteratorMode::From(&from, rocksdb::Direction::Forward)) {
            let (found, value) = row?;
            if *found >= key(log, end)[..] {
                break;
            }
            see(u64::from_be_bytes(found[8..].try_into().expect("eight bytes")), &value);
            count += 1;
        }
        Ok(count)
    }

    fn purge(&self, log: u64, last: u64) -> Result<()> {
        let family = self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).ok_or("no default column family")?;
        Ok(self.db.delete_range_cf(family, key(log, 0), key(log, last + 1))?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
