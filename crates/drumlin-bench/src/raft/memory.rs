//! A store in the memory of the process.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Mutex;

use super::simple::{Backend, Row, SimpleStore};
use crate::engine::Result;

pub(crate) type MemoryStore = SimpleStore<Memory>;

#[derive(Default)]
pub(crate) struct Memory {
    entries: Mutex<BTreeMap<u64, Vec<u8>>>,
    rows: Mutex<HashMap<u64, Vec<u8>>>,
    values: Mutex<HashMap<String, Vec<u8>>>,
}

impl Backend for Memory {
    fn create(_folder: &Path, _memory_bytes: u64) -> Result<Memory> {
        Ok(Memory::default())
    }

    fn append(&self, entries: Vec<Row>) -> io::Result<()> {
        self.entries.lock().expect("no user panics").extend(entries);
        Ok(())
    }

    fn flush(&self) -> Option<io::Result<()>> {
        None
    }

    fn read(&self, indexes: std::ops::Range<u64>) -> io::Result<Vec<Vec<u8>>> {
        let entries = self.entries.lock().expect("no user panics");
        Ok(entries.range(indexes).map(|(_, entry)| entry.clone()).collect())
    }

    fn last(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.entries.lock().expect("no user panics").last_key_value().map(|(_, entry)| entry.clone()))
    }

    fn remove(&self, indexes: std::ops::Range<u64>) -> io::Result<()> {
        self.entries.lock().expect("no user panics").retain(|index, _| !indexes.contains(index));
        Ok(())
    }

    fn write(&self, rows: Vec<Row>, name: &str, value: Vec<u8>) -> io::Result<()> {
        self.rows.lock().expect("no user panics").extend(rows);
        self.values.lock().expect("no user panics").insert(name.to_owned(), value);
        Ok(())
    }

    fn value(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.values.lock().expect("no user panics").get(name).cloned())
    }
}
