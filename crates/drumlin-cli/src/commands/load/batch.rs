//! The rows of one transaction.

use std::io::Read;

use drumlin::{Database, Durability, Keyspace, TxOptions};

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
    /// Where each key and each value ends.
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

    fn rows(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |&(key_end, end)| {
            let row = (&self.bytes[start..key_end], &self.bytes[key_end..end]);
            start = end;
            row
        })
    }

    /// Commits the rows in one transaction; another file's rows with the same keys only make it run again.
    pub(super) fn commit(&self, database: &Database, keyspace: &Keyspace) -> drumlin::Result<()> {
        if self.ends.is_empty() {
            return Ok(());
        }
        loop {
            let mut transaction = database.begin_with(options(self.durability))?;
            let inserted = self.rows().try_for_each(|(key, value)| transaction.insert(keyspace, key, value));
            match inserted.and_then(|()| transaction.commit()) {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
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
