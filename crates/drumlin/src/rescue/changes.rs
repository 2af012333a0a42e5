//! The changes of the log's sound records, sorted by key in the scratch database.

use std::path::Path;

use super::images::Layer;
use super::sources::{Source, SourceRun, Sources};
use super::values::{ChunkedValue, FoundValue};
use crate::db::{Batch, Keyspace, KeyspaceOptions};
use crate::error::{Error, Result};
use crate::format::node::PAGE_BYTES_MAX;
use crate::format::prepared::{self, Head};
use crate::format::record::{self, Operation};
use crate::format::{ExtentAddress, ExtentRef, KeyspaceId, SegmentUse, Timestamp, ValueId, get_u64};
use crate::seglog::Scan;
use crate::space::runs::RemovedRange;
use crate::txn::commit::Durability;

/// The bytes of changes that are committed together in the scratch database.
const BATCH_BYTES: usize = 256 << 10;

/// The bytes of a change before its value: the timestamp, and the kind (`+` put, `*` put in extents, `-` removed).
const HEAD_BYTES: usize = 9;

/// A change of a row.
pub(super) enum RowChange {
    Put(Vec<u8>),
    PutLarge(ChunkedValue),
    Remove,
}

impl RowChange {
    fn encode(&self, timestamp: Timestamp) -> Vec<u8> {
        let mut bytes = timestamp.0.to_le_bytes().to_vec();
        match self {
            RowChange::Put(value) => {
                bytes.push(b'+');
                bytes.extend_from_slice(value);
            }
            RowChange::PutLarge(ChunkedValue { length, id, chunks }) => {
                bytes.push(b'*');
                bytes.extend(length.to_le_bytes());
                bytes.extend(id.0.to_le_bytes());
                chunks.iter().for_each(|chunk| bytes.extend(chunk.to_bytes()));
            }
            RowChange::Remove => bytes.push(b'-'),
        }
        bytes
    }

    /// Decodes a change that this process has encoded.
    pub(super) fn decode(bytes: &[u8]) -> (Timestamp, RowChange) {
        let (head, value) = bytes.split_at(HEAD_BYTES);
        let change = match head[8] {
            b'+' => RowChange::Put(value.to_vec()),
            b'*' => {
                let chunk = |bytes: &[u8]| ExtentRef {
                    address: ExtentAddress::from_bits(get_u64(bytes, 0)).expect("stored by this process"),
                    segment_use: SegmentUse(get_u64(bytes, 8)),
                };
                RowChange::PutLarge(ChunkedValue {
                    length: get_u64(value, 0),
                    id: ValueId(get_u64(value, 8)),
                    chunks: value[16..].chunks_exact(ExtentRef::BYTES).map(chunk).collect(),
                })
            }
            _ => RowChange::Remove,
        };
        (Timestamp(get_u64(head, 0)), change)
    }
}

impl From<FoundValue> for RowChange {
    fn from(value: FoundValue) -> RowChange {
        match value {
            FoundValue::Whole(value) => RowChange::Put(value),
            FoundValue::Chunked(value) => RowChange::PutLarge(value),
        }
    }
}

/// A bulk load that a log record attaches.
pub(super) struct AttachedLoad {
    pub(super) keyspace: KeyspaceId,
    pub(super) timestamp: Timestamp,
    pub(super) layer: Layer,
}

/// Applies the log's records to the sources.
pub(super) struct LogChanges<'s> {
    sources: &'s mut Sources,
    log_path: &'s Path,
    loads: std::vec::IntoIter<AttachedLoad>,
    batch: Option<Batch>,
    batch_bytes: usize,
    lost: Vec<Error>,
}

impl<'s> LogChanges<'s> {
    /// `loads` are the bulk loads of the log in the order of its records.
    pub(super) fn new(sources: &'s mut Sources, log_path: &'s Path, loads: Vec<AttachedLoad>) -> LogChanges<'s> {
        LogChanges { sources, log_path, loads: loads.into_iter(), batch: None, batch_bytes: 0, lost: Vec::new() }
    }

    /// Applies all records up to the first that can't be read. Returns the number of records.
    pub(super) fn apply(mut self, scan: &Scan, damage: &mut Vec<Error>) -> Result<u64> {
        let mut count = 0;
        for record in scan.records()? {
            let applied = record.and_then(|record| self.apply_record(&record.body, record.timestamp));
            match applied {
                Ok(()) => count += 1,
                Err(error @ (Error::Corrupted { .. } | Error::Io { .. })) => {
                    damage.push(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        self.flush()?;
        damage.append(&mut self.lost);
        Ok(count)
    }

    fn malformed(&self, timestamp: Timestamp) -> Error {
        let what = format!("log record of timestamp {timestamp}");
        Error::corrupted(self.log_path, what, "it verifies but makes no sense")
    }

    fn apply_record(&mut self, body: &[u8], timestamp: Timestamp) -> Result<()> {
        // A record counts as a whole or not at all.
        if record::decode(body).any(|operation| operation.is_none()) {
            return Err(self.malformed(timestamp));
        }
        for (keyspace, operation) in record::decode(body).flatten() {
            match operation {
                // Its rows are in memory, and it has no name.
                Operation::Create { .. } if keyspace == KeyspaceId::PREPARED => {}
                Operation::Create { page_bytes, name } => {
                    let new = || Source::new(keyspace, name.to_owned(), page_bytes as usize, None);
                    let source = self.sources.keyspaces.entry(keyspace).or_insert_with(new);
                    // Its pages may have been found, but not its name.
                    name.clone_into(&mut source.name);
                }
                Operation::Clone { from, as_of, name } => {
                    let clone = self.source(from).clone_as(keyspace, name, as_of);
                    match self.sources.keyspaces.get_mut(&keyspace) {
                        // A checkpoint after this record is known, or what is left of its page table.
                        Some(source) if !source.origins.is_empty() => {
                            name.clone_into(&mut source.name);
                            source.removed.extend(clone.removed);
                        }
                        _ => drop(self.sources.keyspaces.insert(keyspace, clone)),
                    }
                }
                Operation::Drop => {
                    self.flush()?;
                    self.sources.keyspaces.remove(&keyspace);
                }
                Operation::Rename { name } => name.clone_into(&mut self.source(keyspace).name),
                Operation::RemoveRange { lower, upper } => {
                    let range = RemovedRange { lower: lower.to_vec(), upper: upper.map(<[u8]>::to_vec) };
                    self.source(keyspace).removed.push((timestamp, range));
                }
                Operation::Attach(_) => {
                    let AttachedLoad { layer, .. } = self.loads.next().ok_or_else(|| self.malformed(timestamp))?;
                    let run = SourceRun { layer, timestamp, freed_to: Vec::new(), is_of_log: true };
                    self.source(keyspace).runs.push(run);
                }
                Operation::CommitPrepared { id, .. } => self.commit_prepared(id, timestamp)?,
                Operation::Put { key, value } => {
                    self.change(keyspace, key, RowChange::Put(value.to_vec()), timestamp)?;
                }
                Operation::PutLarge { key, length, value_id, extents } => {
                    let value = ChunkedValue { length, id: value_id, chunks: extents };
                    self.change(keyspace, key, RowChange::PutLarge(value), timestamp)?;
                }
                Operation::Remove { key } => self.change(keyspace, key, RowChange::Remove, timestamp)?,
                // For the readers of changes.
                Operation::Loaded { .. } | Operation::OldValue(_) => {}
                Operation::PutStored { .. }
                | Operation::Lock { .. }
                | Operation::PutReference { .. }
                | Operation::PutInParts { .. }
                | Operation::ValuePart { .. } => return Err(self.malformed(timestamp)),
            }
        }
        Ok(())
    }

    /// Returns a keyspace. If a lost catalogue had it, makes it up.
    fn source(&mut self, keyspace: KeyspaceId) -> &mut Source {
        let new = || Source::new(keyspace, made_up_name(keyspace), PAGE_BYTES_MAX, None);
        self.sources.keyspaces.entry(keyspace).or_insert_with(new)
    }

    fn change(&mut self, keyspace: KeyspaceId, key: &[u8], change: RowChange, timestamp: Timestamp) -> Result<()> {
        if keyspace == KeyspaceId::PREPARED {
            match change {
                RowChange::Put(value) => drop(self.sources.prepared.insert(key.to_vec(), FoundValue::Whole(value))),
                RowChange::PutLarge(value) => {
                    drop(self.sources.prepared.insert(key.to_vec(), FoundValue::Chunked(value)));
                }
                RowChange::Remove => drop(self.sources.prepared.remove(key)),
            }
            return Ok(());
        }
        let changes = self.changes_of(keyspace)?;
        if key.len() > changes.key_bytes_max() {
            return Err(self.malformed(timestamp));
        }
        let value = change.encode(timestamp);
        self.batch_bytes += key.len() + value.len();
        let batch = match &mut self.batch {
            Some(batch) => batch,
            none => none.insert(self.sources.scratch.batch()?),
        };
        batch.insert(&changes, key, value)?;
        if self.batch_bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn changes_of(&mut self, keyspace: KeyspaceId) -> Result<Keyspace> {
        let page_bytes = self.source(keyspace).page_bytes;
        if let Some(changes) = &self.source(keyspace).changes {
            return Ok(changes.clone());
        }
        let options = KeyspaceOptions::new().page_bytes(page_bytes);
        let changes = self.sources.scratch.keyspace_with(&format!("changes {}", keyspace.0), options)?;
        self.source(keyspace).changes = Some(changes.clone());
        Ok(changes)
    }

    fn flush(&mut self) -> Result<()> {
        self.batch_bytes = 0;
        match self.batch.take() {
            Some(batch) => batch.commit_with(Durability::Relaxed).map(drop),
            None => Ok(()),
        }
    }

    /// Makes the changes of a prepared transaction.
    fn commit_prepared(&mut self, id: &[u8], timestamp: Timestamp) -> Result<()> {
        if id.is_empty() || id.len() > prepared::ID_BYTES_MAX {
            return Err(self.malformed(timestamp));
        }
        let Some(FoundValue::Whole(changes)) = self.take_prepared(&prepared::changes_key(id))? else {
            self.note_lost(timestamp);
            return Ok(());
        };
        let head = Head::decode(&changes).ok_or_else(|| self.malformed(timestamp))?;
        let mut values = Vec::new();
        for number in 0..head.value_count {
            values.push(self.sources.prepared.remove(&prepared::value_key(id, number)));
        }
        for (keyspace, operation) in prepared::operations(&changes) {
            match operation {
                Operation::Put { key, value } => {
                    self.change(keyspace, key, RowChange::Put(value.to_vec()), timestamp)?;
                }
                Operation::PutStored { key, number } => match values[number as usize].take() {
                    Some(value) => self.change(keyspace, key, value.into(), timestamp)?,
                    None => self.note_lost(timestamp),
                },
                Operation::Remove { key } => self.change(keyspace, key, RowChange::Remove, timestamp)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Notes that a page is lost which had changes of a prepared transaction. The records that follow count all the
    /// same.
    fn note_lost(&mut self, timestamp: Timestamp) {
        let what = format!("the prepared transaction that timestamp {timestamp} commits");
        self.lost.push(Error::corrupted(self.log_path, what, "some of its changes are lost"));
    }

    /// Takes a row of the keyspace of prepared transactions, with its whole value.
    fn take_prepared(&mut self, key: &[u8]) -> Result<Option<FoundValue>> {
        match self.sources.prepared.remove(key) {
            Some(FoundValue::Chunked(value)) => {
                let mut bytes = Vec::new();
                let mut reader = super::values::ChunkReader::new(&self.sources.extents, &value);
                let read = std::io::Read::read_to_end(&mut reader, &mut bytes);
                read.map_err(|error| Error::corrupted(self.log_path, "a prepared transaction", error))?;
                Ok(Some(FoundValue::Whole(bytes)))
            }
            value => Ok(value),
        }
    }
}

/// Returns a name for a keyspace whose own name is lost.
pub(super) fn made_up_name(keyspace: KeyspaceId) -> String {
    format!("keyspace {}", keyspace.0)
}
