//! redb.

use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use crate::engine::{
    Capabilities, Durability, Engine, HeldSnapshot, Key, Order, Peer, Result, Row, Session, Settings, Source, Tables,
};
use crate::engine::{load_in_batches, missing_row};

pub(super) const PEER: Peer = Peer {
    name: "redb",
    version: "4.6.0",
    settings: "cache: the budget; relaxed is Durability::None; bulk loads take 100,000 rows a transaction",
    capabilities: Capabilities {
        one_writer: true,
        multi_get: false,
        transactions: true,
        atomic_batches: true,
        recovers: true,
        inserts_only: false,
        two_phases: false,
        tables: true,
        range_deletes: false,
        large_transactions: false,
    },
    open,
    restore: None,
};

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
/// The number of rows per transaction of a bulk load.
const BULK_ROWS: usize = 100_000;

struct Redb {
    db: Database,
    durability: redb::Durability,
}

fn open(folder: &Path, settings: &Settings) -> Result<Box<dyn Engine>> {
    let cache_bytes = usize::try_from(settings.memory_bytes)?;
    let db = Database::builder().set_cache_size(cache_bytes).create(folder.join("rows.redb"))?;
    let durability = match settings.durability {
        Durability::Full => redb::Durability::Immediate,
        Durability::Relaxed => redb::Durability::None,
    };
    let engine = Redb { db, durability };
    engine.write(redb::Durability::Immediate, |_| Ok(()))?;
    Ok(Box::new(engine))
}

type Table<'t> = redb::Table<'t, &'static [u8], &'static [u8]>;

impl Redb {
    fn write<T>(&self, durability: redb::Durability, body: impl FnOnce(&mut Table<'_>) -> Result<T>) -> Result<T> {
        let mut tx = self.db.begin_write()?;
        tx.set_durability(durability)?;
        let result = body(&mut tx.open_table(ROWS)?)?;
        tx.commit()?;
        Ok(result)
    }
}

impl Engine for Redb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Access(self)))
    }

    fn sync(&self) -> Result<()> {
        self.write(redb::Durability::Immediate, |_| Ok(()))
    }

    fn bulk_load(&self, rows: &mut dyn Source, _: Order) -> Result<()> {
        load_in_batches(&mut *self.session()?, rows, BULK_ROWS)
    }

    fn hold(&self) -> Result<Option<Box<dyn HeldSnapshot + '_>>> {
        Ok(Some(Box::new(Held(self.db.begin_read()?.open_table(ROWS)?))))
    }

    fn tables(&self) -> Option<&dyn Tables> {
        Some(self)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

/// Returns the definition of the table with this name.
fn named(name: &str) -> TableDefinition<'_, &'static [u8], &'static [u8]> {
    TableDefinition::new(name)
}

impl Tables for Redb {
    fn create(&self, names: &[String], rows: &[Row]) -> Result<()> {
        let mut tx = self.db.begin_write()?;
        tx.set_durability(self.durability)?;
        for name in names {
            let mut table = tx.open_table(named(name))?;
            for (key, value) in rows {
                table.insert(&key[..], &value[..])?;
            }
        }
        Ok(tx.commit()?)
    }

    fn get(&self, name: &str, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.db.begin_read()?.open_table(named(name))?.get(&key[..])?;
        Ok(value.map(|value| see(value.value())).is_some())
    }

    fn write(&self, name: &str, rows: &[Row]) -> Result<()> {
        self.create(&[name.to_owned()], rows)
    }

    fn drop_rows(&self) -> Result<()> {
        let mut tx = self.db.begin_write()?;
        tx.set_durability(redb::Durability::Immediate)?;
        tx.delete_table(ROWS)?;
        Ok(tx.commit()?)
    }
}

struct Held(redb::ReadOnlyTable<&'static [u8], &'static [u8]>);

impl HeldSnapshot for Held {
    fn scan(&mut self, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut count = 0;
        for row in self.0.iter()? {
            let (key, value) = row?;
            see(key.value(), value.value());
            count += 1;
        }
        Ok(count)
    }
}

struct Access<'e>(&'e Redb);

impl Session for Access<'_> {
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let table = self.0.db.begin_read()?.open_table(ROWS)?;
        let found = table.get(&key[..])?;
        if let Some(value) = &found {
            see(value.value());
        }
        Ok(found.is_some())
    }

    fn get_many(&mut self, keys: &[Key], see: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        // redb has no multi-get. The best that it offers is a single transaction for all reads.
        let table = self.0.db.begin_read()?.open_table(ROWS)?;
        let mut count = 0;
        for (index, key) in keys.iter().enumerate() {
            if let Some(value) = table.get(&key[..])? {
                see(index, value.value());
                count += 1;
            }
        }
        Ok(count)
    }

    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let table = self.0.db.begin_read()?.open_table(ROWS)?;
        let mut count = 0;
        for row in table.range(&first[..]..)? {
            if count == limit {
                break;
            }
            let (key, value) = row?;
            see(key.value(), value.value());
            count += 1;
        }
        Ok(count)
    }

    fn count(&mut self, first: Key, end: Key) -> Result<u64> {
        let table = self.0.db.begin_read()?.open_table(ROWS)?;
        let mut count = 0;
        for row in table.range(&first[..]..&end[..])? {
            row?;
            count += 1;
        }
        Ok(count)
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        self.0.write(self.0.durability, |table| {
            for (key, value) in rows {
                table.insert(&key[..], &value[..])?;
            }
            Ok(())
        })
    }

    fn update(&mut self, key: Key, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()> {
        self.0.write(self.0.durability, |table| {
            let value = match table.get(&key[..])? {
                Some(value) => change(value.value()),
                None => return Err(missing_row(key)),
            };
            table.insert(&key[..], &value[..])?;
            Ok(())
        })
    }
}
