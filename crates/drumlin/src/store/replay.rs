//! Replay: applying the log's records above the checkpoint.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::OpenKeyspace;
use super::keyspaces::Keyspaces;
use crate::error::{Error, Result};
use crate::format::node::is_page_bytes;
use crate::format::record::{self, Attachment, Operation};
use crate::format::{ExtentAddress, ExtentRef, KeyspaceId, Timestamp};
use crate::pool::load::LoadTables;
use crate::seglog::Scan;
use crate::space::checkpoint::read_image;
use crate::space::table::CHUNK_BYTES;
use crate::space::{ChunkImage, PageSpace, Purpose};
use crate::txn::engine::{Engine, Replaying, Row};
use crate::txn::values::LargeValue;
use crate::txn::write_set::Change;

/// Applies the log above the checkpoint.
pub(super) struct Replay<'r> {
    pub(super) engine: &'r Engine<Replaying>,
    pub(super) keyspaces: &'r Keyspaces,
    pub(super) log_path: PathBuf,
    pub(super) scan: &'r Scan,
}

/// Operations on rows, as they come from the log, until there are enough to sort.
#[derive(Default)]
struct Batch {
    /// Bodies of records, one after the other.
    bytes: Vec<u8>,
    operations: Vec<ReplayedOperation>,
    large: Vec<Arc<LargeValue>>,
}

/// One operation on a row; keys and values lie in the batch.
struct ReplayedOperation {
    keyspace: KeyspaceId,
    key: Range<usize>,
    change: ReplayedChange,
}

enum ReplayedChange {
    Put(Range<usize>),
    /// An index of the batch's large values.
    PutLarge(usize),
    Remove,
}

/// Bytes of operations that are sorted together: enough that neighbours meet in their leaf.
fn batch_bytes(engine: &Engine<Replaying>) -> usize {
    (engine.budget.transaction_bytes_max() as usize).max(64 << 10)
}

impl Replay<'_> {
    /// Takes the extents that records name out of the free ones, before anything is written.
    pub(super) fn mark_extents(&self) -> Result<()> {
        let segments = &self.engine.space.segments;
        for record in self.scan.records()? {
            let record = record?;
            for operation in record::decode(&record.body) {
                match operation {
                    Some((_, Operation::PutLarge { extents, .. })) => {
                        let are_marked = extents.into_iter().all(|extent| segments.restore_named(extent));
                        are_marked.then_some(()).ok_or_else(|| self.malformed(record.timestamp))?;
                    }
                    Some((keyspace, Operation::Attach(attachment))) => {
                        self.mark_load(keyspace, &attachment, record.timestamp)?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The same for the extents of a bulk load.
    fn mark_load(&self, keyspace: KeyspaceId, attachment: &Attachment, timestamp: Timestamp) -> Result<()> {
        let space = &self.engine.space;
        if !space.segments.restore_named(attachment.root) {
            return Err(self.malformed(timestamp));
        }
        for &(chunk, extent) in &attachment.images {
            if !space.segments.restore_named(extent) {
                return Err(self.malformed(timestamp));
            }
            let image = ChunkImage { keyspace, chunk: chunk as usize, address: extent.address };
            let is_marked = |address: ExtentAddress| {
                let segment_use = attachment.use_of(space.segments.segment_of(address));
                segment_use.is_some_and(|segment_use| {
                    address.is_of(segment_use) && space.segments.restore_named(ExtentRef { address, segment_use })
                })
            };
            let addresses = read_image(space, image)?;
            if !addresses.into_iter().filter(|address| !address.is_none()).all(is_marked) {
                return Err(self.malformed(timestamp));
            }
        }
        Ok(())
    }

    fn malformed(&self, timestamp: Timestamp) -> Error {
        let what = format!("log record of timestamp {timestamp}");
        Error::corrupted(&self.log_path, what, "it verifies but makes no sense")
    }

    pub(super) fn apply_records(&self) -> Result<()> {
        let mut batch = Batch::default();
        let mut newest = Timestamp(0);
        for record in self.scan.records()? {
            let record = record?;
            let base = batch.bytes.len();
            batch.bytes.extend_from_slice(&record.body);
            let offsets_of = |part: &[u8]| {
                let start = base + (part.as_ptr() as usize - record.body.as_ptr() as usize);
                start..start + part.len()
            };
            let mut defines = false;
            for operation in record::decode(&record.body) {
                let operation = operation.filter(|_| !defines);
                let (keyspace, operation) = operation.ok_or_else(|| self.malformed(record.timestamp))?;
                // An operation that defines or drops a keyspace, or attaches a load, is alone in its record.
                defines = matches!(operation, Operation::Create { .. } | Operation::Drop | Operation::Attach(_));
                let (key, change) = match operation {
                    Operation::Create { page_bytes, name } => {
                        self.apply_batch(&mut batch, newest)?;
                        self.create(keyspace, page_bytes, name, record.timestamp)?;
                        continue;
                    }
                    Operation::Drop => {
                        self.apply_batch(&mut batch, newest)?;
                        let open = self.open(keyspace).ok_or_else(|| self.malformed(record.timestamp))?;
                        let epoch_guard = self.engine.space.epoch_latch.exclusive();
                        self.keyspaces.drop_tree(self.engine, &open, &epoch_guard, record.timestamp)?;
                        continue;
                    }
                    Operation::Attach(attachment) => {
                        self.apply_batch(&mut batch, newest)?;
                        let open = self.open(keyspace).ok_or_else(|| self.malformed(record.timestamp))?;
                        self.attach(&open.tree.pages, &attachment, record.timestamp)?;
                        continue;
                    }
                    Operation::Put { key, value } => (key, ReplayedChange::Put(offsets_of(value))),
                    Operation::PutLarge { key, length, value_id, extents } => {
                        let addresses = extents.into_iter().map(|extent| extent.address).collect();
                        self.engine.next_value.fetch_max(value_id.0.saturating_add(1), Ordering::Relaxed);
                        batch.large.push(Arc::new(LargeValue::of_record(length, value_id, addresses)));
                        (key, ReplayedChange::PutLarge(batch.large.len() - 1))
                    }
                    Operation::Remove { key } => (key, ReplayedChange::Remove),
                };
                batch.operations.push(ReplayedOperation { keyspace, key: offsets_of(key), change });
            }
            newest = record.timestamp;
            if batch.bytes.len() + batch.operations.len() * size_of::<ReplayedOperation>() >= batch_bytes(self.engine) {
                self.apply_batch(&mut batch, newest)?;
            }
        }
        self.apply_batch(&mut batch, newest)
    }

    /// Attaches a bulk load. Its pages have the numbers that they were written with; whatever replay has given these to
    /// since the checkpoint is of no use, as the keyspace has no rows.
    fn attach(&self, pages: &PageSpace, attachment: &Attachment, timestamp: Timestamp) -> Result<()> {
        let engine = self.engine;
        engine.pool.fit_frames(attachment.images.len() as u64 * CHUNK_BYTES)?;
        let image = |&(chunk, extent): &(u32, ExtentRef)| (chunk as usize, extent.address);
        let images: Vec<_> = attachment.images.iter().map(image).collect();
        let tables = LoadTables { images, root: attachment.root.address };
        let is_attached = engine.replay_attach(pages, &tables, |chunk, address| {
            read_image(&engine.space, ChunkImage { keyspace: pages.id, chunk, address })
        })?;
        if is_attached { Ok(()) } else { Err(self.malformed(timestamp)) }
    }

    fn open(&self, keyspace: KeyspaceId) -> Option<Arc<OpenKeyspace>> {
        self.keyspaces.get_by_id(keyspace)
    }

    fn create(&self, id: KeyspaceId, page_bytes: u32, name: &str, timestamp: Timestamp) -> Result<()> {
        if !is_page_bytes(page_bytes as usize) {
            return Err(self.malformed(timestamp));
        }
        let engine = self.engine;
        let _reserved_pages = engine.space.reserve(Purpose::Replay, 2 * u64::from(page_bytes))?;
        let frame = engine.pool.take_frame(page_bytes as usize)?;
        let epoch_guard = engine.space.epoch_latch.shared();
        self.keyspaces.create_root(engine, id, (name, timestamp), frame, &epoch_guard);
        Ok(())
    }

    /// Applies the newest operation of each row, in the order of keys, some leaves at a time, and empties the batch.
    fn apply_batch(&self, batch: &mut Batch, newest: Timestamp) -> Result<()> {
        /// Few enough that their leaves can be held together.
        const ROWS_MAX: usize = 512;
        let engine = self.engine;
        let Batch { bytes, mut operations, large } = std::mem::take(batch);
        let key = |operation: &ReplayedOperation| (operation.keyspace, &bytes[operation.key.clone()]);
        // Stable: of operations on one row the last stays last.
        operations.sort_by(|a, b| key(a).cmp(&key(b)));
        let mut rest = &operations[..];
        while let Some(first) = rest.first() {
            let keyspace = first.keyspace;
            // Creating and dropping are barriers, so a keyspace whose rows are in the batch is there.
            let open = self.open(keyspace).ok_or_else(|| self.malformed(newest))?;
            let mut rows = Vec::with_capacity(ROWS_MAX);
            while let [operation, later @ ..] = rest
                && operation.keyspace == keyspace
                && rows.len() < ROWS_MAX
            {
                rest = later;
                let is_newest = later.first().is_none_or(|next| key(next) != key(operation));
                if !is_newest {
                    if let ReplayedChange::PutLarge(index) = operation.change {
                        // The log still names its extents, until a checkpoint covers it: another opening must find them
                        // unharmed.
                        let epoch = engine.space.epoch_latch.shared().epoch();
                        for address in &large[index].addresses {
                            engine.space.segments.release(*address, epoch);
                        }
                    }
                    continue;
                }
                let change = match &operation.change {
                    ReplayedChange::Put(value) => Change::Put(&bytes[value.clone()]),
                    ReplayedChange::PutLarge(index) => Change::PutLarge(&large[*index]),
                    ReplayedChange::Remove => Change::Remove,
                };
                let tree = &open.tree;
                rows.push(Row { tree, key: &bytes[operation.key.clone()], change });
            }
            if !rows.is_empty() {
                self.replay_rows(&rows, newest)?;
            }
        }
        // No snapshot is open yet, so no older version is needed.
        for (keyspace, reference) in engine.versions.collect_garbage(Timestamp(u64::MAX)) {
            engine.free_value(keyspace, &reference);
        }
        Ok(())
    }

    /// Applies rows in batches whose leaves fit the pool.
    fn replay_rows(&self, rows: &[Row<'_>], newest: Timestamp) -> Result<()> {
        match self.engine.replay(rows, newest) {
            Err(Error::TransactionTooLarge { .. }) if rows.len() > 1 => {
                let (first, second) = rows.split_at(rows.len() / 2);
                self.replay_rows(first, newest)?;
                self.replay_rows(second, newest)
            }
            other => other,
        }
    }
}
