//! A store on RocksDB: entries, rows and values are rows of one database, whose keys begin with a letter.

use std::io;
use std::path::Path;

use rocksdb::{DB, Direction, IteratorMode, Options, WriteBatch};

use super::simple::{Backend, Row, SimpleStore};
use crate::engine::Result;

pub(crate) type RocksStore = SimpleStore<Rocks>;

pub(crate) struct Rocks {
    db: DB,
}

const ENTRY: u8 = b'e';
const ROW: u8 = b'r';
const VALUE: u8 = b'v';

fn key(kind: u8, number: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

fn name_key(name: &str) -> Vec<u8> {
    [&[VALUE], name.as_bytes()].concat()
}

impl Backend for Rocks {
    fn create(folder: &Path, memory_bytes: u64) -> Result<Rocks> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_db_write_buffer_size((memory_bytes / 2) as usize);
        Ok(Rocks { db: DB::open(&options, folder)? })
    }

    fn append(&self, entries: Vec<Row>) -> io::Result<()> {
        let mut batch = WriteBatch::default();
        entries.iter().for_each(|(index, entry)| batch.put(key(ENTRY, *index), entry));
        self.db.write(batch).map_err(io::Error::other)
    }

    fn flush(&self) -> Option<io::Result<()>> {
        Some(self.db.flush_wal(true).map_err(io::Error::other))
    }

    fn read(&self, indexes: std::ops::Range<u64>) -> io::Result<Vec<Vec<u8>>> {
        let (first, end) = (key(ENTRY, indexes.start), key(ENTRY, indexes.end));
        let rows = self.db.iterator(IteratorMode::From(&first, Direction::Forward));
        let mut entries = Vec::new();
        for row in rows {
            let (found, entry) = row.map_err(io::Error::other)?;
            if *found >= end[..] {
                break;
            }
            entries.push(entry.into_vec());
        }
        Ok(entries)
    }

    fn last(&self) -> io::Result<Option<Vec<u8>>> {
        let last = key(ENTRY, u64::MAX);
        let row = self.db.iterator(IteratorMode::From(&last, Direction::Reverse)).next().transpose();
        let row = row.map_err(io::Error::other)?;
        Ok(row.filter(|(found, _)| found.first() == Some(&ENTRY)).map(|(_, entry)| entry.into_vec()))
    }

    fn remove(&self, indexes: std::ops::Range<u64>) -> io::Result<()> {
        let mut batch = WriteBatch::default();
        batch.delete_range(key(ENTRY, indexes.start), key(ENTRY, indexes.end));
        self.db.write(batch).map_err(io::Error::other)
    }

    fn write(&self, rows: Vec<Row>, name: &str, value: Vec<u8>) -> io::Result<()> {
        let mut batch = WriteBatch::default();
        rows.iter().for_each(|(number, value)| batch.put(key(ROW, *number), value));
        batch.put(name_key(name), value);
        self.db.write(batch).map_err(io::Error::other)
    }

    fn value(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.db.get(name_key(name)).map_err(io::Error::other)
    }
}
