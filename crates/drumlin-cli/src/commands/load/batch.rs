//! The rows of one transaction.

use std::collections::HashSet;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use drumlin::{BulkLoad, Database, Durability, Error, Keyspace, TxOptions};

use super::{Load, OnDuplicate};
use crate::rows::{Place, Row, VALUE_BYTES_STREAMED};

/// The number of bytes at which a transaction is committed, even if it has fewer rows than planned. It fits in the
/// smallest budget, and is far more than an efficient log write needs.
const DATA_BYTES_LIMIT: usize = 2 * VALUE_BYTES_STREAMED as usize;

/// The default number of rows in a transaction or in one addition to a bulk load; `--batch` overrides it.
const BATCH_ROWS: u32 = 1000;

/// Consecutive rows in one buffer. They are kept until they are committed, so that a conflict requires only a retry of
/// the transaction, not another read of the file.
#[derive(Debug)]
pub(super) struct Batch {
    rows_limit: usize,
    durability: Durability,
    on_duplicate: OnDuplicate,
    /// `true` if rows after a bad row must be dropped.
    ends_at_bad: bool,
    bytes: Vec<u8>,
    rows: Vec<Span>,
}

/// The ends of a row's key and value in the buffer, and the row's position in the file.
#[derive(Clone, Copy, Debug)]
struct Span {
    key_end: usize,
    end: usize,
    place: Place,
}

/// The rows of a batch, counted by outcome.
#[derive(Default, Debug)]
pub(super) struct Committed {
    pub(super) stored: u64,
    /// Stored rows that replaced a row with the same key.
    pub(super) replaced: u64,
    /// Rows that were not stored because their key existed.
    pub(super) kept: u64,
    pub(super) data_bytes: u64,
    /// Rows that were not stored, with the reason.
    pub(super) bad: Vec<(Place, String)>,
}

impl Committed {
    fn add(&mut self, other: Committed) {
        self.stored += other.stored;
        self.replaced += other.replaced;
        self.kept += other.kept;
        self.data_bytes += other.data_bytes;
        self.bad.extend(other.bad);
    }

    /// Decides whether to store a row, depending on whether its key exists, and counts the row accordingly. Returns
    /// `true` if the row should be stored.
    fn admit(&mut self, exists: bool, on_duplicate: OnDuplicate, place: Place) -> bool {
        match on_duplicate {
            OnDuplicate::Replace => self.replaced += u64::from(exists),
            OnDuplicate::Keep if exists => self.kept += 1,
            OnDuplicate::Fail if exists => self.bad.push((place, "a row with its key exists already".to_owned())),
            OnDuplicate::Keep | OnDuplicate::Fail => {}
        }
        let is_stored = !exists || on_duplicate == OnDuplicate::Replace;
        self.stored += u64::from(is_stored);
        is_stored
    }
}

impl Batch {
    pub(super) fn new(load: &Load) -> Batch {
        Batch {
            rows_limit: load.batch.unwrap_or(BATCH_ROWS) as usize,
            durability: load.durability.into(),
            on_duplicate: load.on_duplicate,
            ends_at_bad: !load.skip_bad,
            bytes: Vec::new(),
            rows: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, row: &Row) {
        self.bytes.extend_from_slice(&row.key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(&row.value);
        self.rows.push(Span { key_end, end: self.bytes.len(), place: row.place });
    }

    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= self.rows_limit || self.bytes.len() >= DATA_BYTES_LIMIT
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
    }

    /// Commits the rows in one transaction, or in several if one would be too large. After an error, `committed` still
    /// counts the rows of the transactions that succeeded.
    pub(super) fn commit(
        &self,
        database: &Database,
        keyspace: &Keyspace,
        committed: &mut Committed,
    ) -> drumlin::Result<()> {
        self.commit_rows(database, keyspace, 0..self.rows.len(), committed)
    }

    fn commit_rows(
        &self,
        database: &Database,
        keyspace: &Keyspace,
        rows: Range<usize>,
        committed: &mut Committed,
    ) -> drumlin::Result<()> {
        if rows.is_empty() || self.ends_at_bad && !committed.bad.is_empty() {
            return Ok(());
        }
        loop {
            match self.try_commit(database, keyspace, rows.clone()) {
                Ok(more) => {
                    committed.add(more);
                    return Ok(());
                }
                // A thread that loads a different file is writing a row with one of these keys, so retry.
                Err(Error::Conflict { .. } | Error::LockTimeout { .. }) => {}
                Err(Error::TransactionTooLarge { .. } | Error::MemoryInUse { .. } | Error::KeyTooLong { .. })
                    if rows.len() > 1 =>
                {
                    let middle = rows.start + rows.len() / 2;
                    self.commit_rows(database, keyspace, rows.start..middle, committed)?;
                    return self.commit_rows(database, keyspace, middle..rows.end, committed);
                }
                // This is a single row, so splitting cannot make it fit.
                Err(error @ (Error::TransactionTooLarge { .. } | Error::KeyTooLong { .. })) => {
                    committed.bad.push((self.rows[rows.start].place, error.to_string()));
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Adds the rows to a bulk load.
    pub(super) fn load(&self, bulk: &Mutex<BulkLoad>, committed: &mut Committed) -> drumlin::Result<()> {
        let mut bulk = bulk.lock().expect("no thread panics while it holds this");
        for row in 0..self.rows.len() {
            let (key, value) = self.row(row);
            bulk.insert(key, value)?;
            committed.stored += 1;
            committed.data_bytes += (key.len() + value.len()) as u64;
        }
        Ok(())
    }

    /// Returns the key and the value of a row.
    fn row(&self, row: usize) -> (&[u8], &[u8]) {
        let start = if row == 0 { 0 } else { self.rows[row - 1].end };
        let Span { key_end, end, .. } = self.rows[row];
        (&self.bytes[start..key_end], &self.bytes[key_end..end])
    }

    fn try_commit(&self, database: &Database, keyspace: &Keyspace, rows: Range<usize>) -> drumlin::Result<Committed> {
        let mut transaction = database.begin_with(options(self.durability))?;
        let mut committed = Committed::default();
        let keys: Vec<&[u8]> = rows.clone().map(|row| self.row(row).0).collect();
        // Look up all keys together: if the data is larger than memory, each lookup is a device read.
        let exist = transaction.contains_many(keyspace, &keys)?;
        let mut earlier = HashSet::with_capacity(keys.len());
        for (row, exists) in rows.zip(exist) {
            let (key, value) = self.row(row);
            if committed.admit(exists || earlier.contains(key), self.on_duplicate, self.rows[row].place) {
                transaction.insert(keyspace, key, value)?;
                earlier.insert(key);
                committed.data_bytes += (key.len() + value.len()) as u64;
            }
            if self.ends_at_bad && !committed.bad.is_empty() {
                break;
            }
        }
        transaction.commit()?;
        Ok(committed)
    }

    /// Stores one row whose value is too large for memory.
    pub(super) fn insert_streamed(
        &self,
        database: &Database,
        keyspace: &Keyspace,
        row: &Row,
        value: &mut dyn Read,
    ) -> drumlin::Result<Committed> {
        let mut transaction = database.begin_with(options(self.durability))?;
        let mut committed = Committed::default();
        if committed.admit(transaction.contains_key(keyspace, &row.key)?, self.on_duplicate, row.place) {
            let value_bytes = transaction.insert_from(keyspace, &row.key, value)?;
            committed.data_bytes = row.key.len() as u64 + value_bytes;
            transaction.commit()?;
        } else {
            pass_over(value)?;
        }
        Ok(committed)
    }
}

/// Adds one row whose value is too large for memory to a bulk load.
pub(super) fn load_streamed(bulk: &Mutex<BulkLoad>, row: &Row, value: &mut dyn Read) -> drumlin::Result<Committed> {
    let mut bulk = bulk.lock().expect("no thread panics while it holds this");
    let value_bytes = bulk.insert_from(&row.key, value)?;
    Ok(Committed { stored: 1, data_bytes: row.key.len() as u64 + value_bytes, ..Committed::default() })
}

/// Reads and discards a streamed value that will not be stored.
pub(super) fn pass_over(value: &mut dyn Read) -> drumlin::Result<()> {
    match io::copy(value, &mut io::sink()) {
        Ok(_) => Ok(()),
        Err(source) => Err(Error::Source { source: Arc::new(source) }),
    }
}

fn options(durability: Durability) -> TxOptions {
    TxOptions { durability, ..TxOptions::default() }
}
