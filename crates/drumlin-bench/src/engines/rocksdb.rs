//! RocksDB.

use std::path::Path;
use std::time::Duration;

use rocksdb::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType,
    DEFAULT_COLUMN_FAMILY_NAME, Env, IteratorMode, OptimisticTransactionDB, OptimisticTransactionOptions, Options,
    ReadOptions, SingleThreaded, SnapshotWithThreadMode, Transaction, TransactionDB, TransactionDBOptions,
    TransactionOptions, WaitForCompactOptions, WriteBatchWithTransaction, WriteOptions,
};

use crate::engine::{
    Backups, Capabilities, Durability, Engine, HeldSnapshot, Key, Order, Peer, Result, Row, Session, Settings, Source,
};
use crate::engine::{LOAD_BATCH_ROWS, missing_row};
use crate::measure::processor_time;

pub(super) const PEER: Peer = Peer {
    name: "rocksdb",
    version: "0.25.0",
    settings: "optimistic transactions; LZ4; bloom filters of 10 bits; 3/4 of the budget are block cache, with index and \
               filter blocks in it, by partitions, 1/4 memtables; multi-get by io_uring; bulk loads bypass the log; \
               two phases by pessimistic transactions, each phase with the durability that was chosen",
    capabilities: Capabilities {
        one_writer: false,
        multi_get: true,
        transactions: true,
        atomic_batches: true,
        recovers: true,
        inserts_only: false,
        two_phases: true,
        tables: false,
        range_deletes: true,
        large_transactions: false,
    },
    open,
    restore: Some(restore),
};

type Db = OptimisticTransactionDB<SingleThreaded>;

struct Rocks {
    db: Db,
    durability: Durability,
}

fn open(folder: &Path, settings: &Settings) -> Result<Box<dyn Engine>> {
    let budget = usize::try_from(settings.memory_bytes)?;
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(budget / 4 * 3));
    // Partition indexes and filters into blocks, as RocksDB's manual advises for caches that can't hold all of them. A
    // whole index occupies half a megabyte, as much as a shard of a small cache.
    table.set_cache_index_and_filter_blocks(true);
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_metadata_block_size(4096);
    table.set_pin_top_level_index_and_filter(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_bloom_filter(10.0, false);
    table.set_format_version(5);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::Lz4);
    // Two memtables may coexist: one is filled while the other is flushed.
    options.set_db_write_buffer_size(budget / 4);
    options.set_write_buffer_size(budget / 8);
    options.set_max_background_jobs(2);
    // Open the column family by name, because multi-get needs its handle.
    let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
    if settings.two_phases {
        let db = TransactionDB::open_cf_descriptors(&options, &TransactionDBOptions::default(), folder, [family])?;
        return Ok(Box::new(TwoPhases { db, durability: settings.durability }));
    }
    let db = Db::open_cf_descriptors(&options, folder, [family])?;
    Ok(Box::new(Rocks { db, durability: settings.durability }))
}

fn write_options(durability: Durability) -> WriteOptions {
    let mut options = WriteOptions::new();
    options.set_sync(durability == Durability::Full);
    options
}

fn batch_of(rows: &[Row]) -> WriteBatchWithTransaction<true> {
    let mut batch = WriteBatchWithTransaction::default();
    for (key, value) in rows {
        batch.put(key, value);
    }
    batch
}

fn backup_engine(folder: &Path) -> Result<BackupEngine> {
    Ok(BackupEngine::open(&BackupEngineOptions::new(folder)?, &Env::new()?)?)
}

fn restore(backups: &Path, target: &Path) -> Result<()> {
    Ok(backup_engine(backups)?.restore_from_latest_backup(target, target, &RestoreOptions::default())?)
}

impl Backups for Rocks {
    fn back_up(&self, folder: &Path) -> Result<()> {
        // Memtables are flushed first, so that the log need not be copied.
        Ok(backup_engine(folder)?.create_new_backup_flush(&self.db, true)?)
    }
}

impl Engine for Rocks {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let mut many = ReadOptions::default();
        many.set_async_io(true);
        Ok(Box::new(Access { rocks: self, write: write_options(self.durability), many }))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.flush_wal(true)?)
    }

    fn bulk_load(&self, rows: &mut dyn Source, _: Order) -> Result<()> {
        loop {
            let mut batch = WriteBatchWithTransaction::default();
            while batch.len() < LOAD_BATCH_ROWS
                && let Some((key, value)) = rows.next()
            {
                batch.put(key, value);
            }
            let count = batch.len();
            self.db.write_without_wal(batch)?;
            if count < LOAD_BATCH_ROWS {
                break;
            }
        }
        // Rows that bypass the log become durable only when they are flushed to table files.
        Ok(self.db.flush()?)
    }

    fn settle(&self) -> Result<()> {
        Ok(self.db.wait_for_compact(&WaitForCompactOptions::default())?)
    }

    fn backups(&self) -> Option<&dyn Backups> {
        Some(self)
    }

    fn hold(&self) -> Result<Option<Box<dyn HeldSnapshot + '_>>> {
        Ok(Some(Box::new(Held(self.db.snapshot()))))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.flush_wal(true)?;
        Ok(())
    }
}

struct Held<'e>(SnapshotWithThreadMode<'e, Db>);

impl HeldSnapshot for Held<'_> {
    fn scan(&mut self, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut rows = self.0.raw_iterator();
        rows.seek_to_first();
        let mut count = 0;
        while let Some((key, value)) = rows.item() {
            see(key, value);
            count += 1;
            rows.next();
        }
        rows.status()?;
        Ok(count)
    }
}

struct Access<'e> {
    rocks: &'e Rocks,
    write: WriteOptions,
    many: ReadOptions,
}

impl Session for Access<'_> {
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.rocks.db.get_pinned(key)?;
        if let Some(value) = &found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn get_many(&mut self, keys: &[Key], see: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let db = &self.rocks.db;
        let family = db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).ok_or("no default column family")?;
        let mut count = 0;
        for (index, value) in db.batched_multi_get_cf_opt(family, keys, false, &self.many).into_iter().enumerate() {
            if let Some(value) = value? {
                see(index, &value);
                count += 1;
            }
        }
        Ok(count)
    }

    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut rows = self.rocks.db.raw_iterator();
        rows.seek(first);
        let mut count = 0;
        while count < limit
            && let Some((key, value)) = rows.item()
        {
            see(key, value);
            count += 1;
            rows.next();
        }
        rows.status()?;
        Ok(count)
    }

    fn count(&mut self, first: Key, end: Key) -> Result<u64> {
        let mut options = ReadOptions::default();
        options.set_iterate_range(&first[..]..&end[..]);
        let mut count = 0;
        for row in self.rocks.db.iterator_opt(IteratorMode::Start, options) {
            row?;
            count += 1;
        }
        Ok(count)
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        Ok(self.rocks.db.write_opt(batch_of(rows), &self.write)?)
    }

    fn remove_range(&mut self, first: Key, end: Key) -> Result<()> {
        let db = &self.rocks.db;
        let family = db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).ok_or("no default column family")?;
        Ok(db.delete_range_cf_opt(family, first, end, &self.write)?)
    }

    fn update(&mut self, key: Key, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()> {
        loop {
            let tx = self.rocks.db.transaction_opt(&self.write, &OptimisticTransactionOptions::default());
            let value = tx.get_pinned_for_update(key, true)?.ok_or_else(|| missing_row(key))?;
            tx.put(key, change(&value))?;
            drop(value);
            match tx.commit() {
                Ok(()) => return Ok(()),
                Err(error) if matches!(error.kind(), rocksdb::ErrorKind::Busy | rocksdb::ErrorKind::TryAgain) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The same files, opened for transactions that are committed in two phases. Optimistic transactions can't be prepared.
struct TwoPhases {
    db: TransactionDB<SingleThreaded>,
    durability: Durability,
}

impl Engine for TwoPhases {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(PreparedAccess { db: &self.db, write: write_options(self.durability) }))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.flush_wal(true)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.flush_wal(true)?;
        Ok(())
    }
}

struct PreparedAccess<'e> {
    db: &'e TransactionDB<SingleThreaded>,
    write: WriteOptions,
}

impl<'e> PreparedAccess<'e> {
    /// Prepares a transaction that writes these rows. Its write options are those of its commit too: RocksDB has no
    /// call to change them.
    fn prepare(&self, id: &[u8], rows: &[Row]) -> Result<Transaction<'e, TransactionDB<SingleThreaded>>> {
        let transaction = self.db.transaction_opt(&self.write, &TransactionOptions::default());
        transaction.set_name(id)?;
        for (key, value) in rows {
            transaction.put(key, value)?;
        }
        transaction.prepare()?;
        Ok(transaction)
    }
}

impl Session for PreparedAccess<'_> {
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.db.get_pinned(key)?;
        if let Some(value) = &found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut rows = self.db.raw_iterator();
        rows.seek(first);
        let mut count = 0;
        while count < limit
            && let Some((key, value)) = rows.item()
        {
            see(key, value);
            count += 1;
            rows.next();
        }
        rows.status()?;
        Ok(count)
    }

    fn count(&mut self, _: Key, _: Key) -> Result<u64> {
        Err("this database is open for two-phase commits".into())
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        Ok(self.db.write_opt(batch_of(rows), &self.write)?)
    }

    fn write_in_two_phases(&mut self, id: &[u8], rows: &[Row]) -> Result<()> {
        Ok(self.prepare(id, rows)?.commit()?)
    }

    fn time_commit_step(&mut self, id: &[u8], rows: &[Row]) -> Result<Duration> {
        let transaction = self.prepare(id, rows)?;
        let begun = processor_time();
        transaction.commit()?;
        Ok(processor_time().saturating_sub(begun))
    }

    fn update(&mut self, _: Key, _: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()> {
        Err("this database is open for two-phase commits".into())
    }
}
