//! The rows of one transaction.

use std::io::Read;
use std::ops::Range;

use drumlin::{Database, Durability, Error, Keyspace, TxOptions};

use crate::rows::{Row, VALUE_BYTES_STREAMED};

/// A transaction is committed before it grows beyond this, however many rows it was to have: a share of the smallest
/// budgets, and far more than one write to the log needs to be efficient.
const DATA_BYTES_LIMIT: usize = 2 * VALUE_BYTES_STREAMED as usize;

/// Rows one behind another in one buffer, kept until they are committed, so that a conflict only runs the transaction
/// again.
#[derive(Debug)]
pub(super) struct Batch {
    rows_limit: usize,
    durability: Durability,
    bytes: Vec<u8>,
    /// The end of each key and of each value.
    ends: Vec<(usize, usize)>,
}

impl Batch {
    pub(super) fn new(rows_limit: usize, durability: Durability) -> Batch {
        Batch { rows_limit, durability, bytes: Vec::new(), ends: Vec::new() }
    }

    pub(super) fn push(&mut self, row: &Row) {
        self.bytes.extend_from_slice(&row.key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(&row.value);
        self.ends.push((key_end, self.bytes.len()));
    }

    pub(super) fn is_full(&self) -> bool {
        self.ends.len() >= self.rows_limit || self.bytes.len() >= DATA_BYTES_LIMIT
    }

    pub(super) fn rows_count(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn data_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Commits the rows in one transaction, or in several where one may not be so large.
    pub(super) fn commit(&self, database: &Database, keyspace: &Keyspace) -> drumlin::Result<()> {
        self.commit_rows(database, keyspace, 0..self.ends.len())
    }

    fn commit_rows(&self, database: &Database, keyspace: &Keyspace, rows: Range<usize>) -> drumlin::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        loop {
            match self.try_commit(database, keyspace, rows.clone()) {
                Ok(()) => return Ok(()),
                // Another file's rows with the same keys.
                Err(error) if error.is_conflict() => {}
                Err(Error::TransactionTooLarge { .. } | Error::MemoryInUse { .. }) if rows.len() > 1 => {
                    let middle = rows.start + rows.len() / 2;
                    self.commit_rows(database, keyspace, rows.start..middle)?;
                    return self.commit_rows(database, keyspace, middle..rows.end);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn try_commit(&self, database: &Database, keyspace: &Keyspace, rows: Range<usize>) -> drumlin::Result<()> {
        let mut transaction = database.begin_with(options(self.durability))?;
        for row in rows {
            let start = if row == 0 { 0 } else { self.ends[row - 1].1 };
            let (key_end, end) = self.ends[row];
            transaction.insert(keyspace, &self.bytes[start..key_end], &self.bytes[key_end..end])?;
        }
        transaction.commit()?;
        Ok(())
    }
}

/// Stores one row whose value is too large to hold; the bytes of the value.
pub(super) fn insert_streamed(
    database: &Database,
    keyspace: &Keyspace,
    durability: Durability,
    key: &[u8],
    value: &mut dyn Read,
) -> drumlin::Result<u64> {
    let mut transaction = database.begin_with(options(durability))?;
    let value_bytes = transaction.insert_from(keyspace, key, value)?;
    transaction.commit()?;
    Ok(value_bytes)
}

fn options(durability: Durability) -> TxOptions {
    TxOptions { durability, ..TxOptions::default() }
}
