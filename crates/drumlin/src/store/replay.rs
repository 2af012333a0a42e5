//! Replay: applies the log's records after the checkpoint.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::keyspaces::{Alteration, Keyspaces, NewKeyspace};
use crate::error::{Error, Result};
use crate::format::node::is_page_bytes;
use crate::format::prepared::{self, Head};
use crate::format::record::{self, AttachedRoot, Attachment, Operation};
use crate::format::{ExtentAddress, ExtentRef, KeyspaceId, Timestamp};
use crate::hash::HashMap;
use crate::load::{LoadRoot, LoadTables};
use crate::memory::Account;
use crate::pool::Stop;
use crate::seglog::Scan;
use crate::space::checkpoint::PageTableStore;
use crate::space::loading::read_image;
use crate::space::runs::{RemovedKeys, RemovedRange};
use crate::space::table::CHUNK_BYTES;
use crate::space::{ChunkImage, PageSpace, Purpose};
use crate::sync::Mutex;
use crate::task::{WaitMode, ready};
use crate::tree::Target;
use crate::tree::node::{Leaf, RowValue};
use crate::txn::commit::Row;
use crate::txn::engine::{Engine, Replaying};
use crate::txn::keyspace::OpenKeyspace;
use crate::txn::prepared::check_id;
use crate::txn::values::{self, LargeValue};
use crate::txn::write_set::Change;

/// Applies the records after the checkpoint.
pub(super) struct Replay<'r> {
    pub(super) engine: &'r Arc<Engine<Replaying>>,
    pub(super) keyspaces: &'r Keyspaces,
    pub(super) log_path: PathBuf,
    pub(super) scan: &'r Scan,
    pub(super) page_tables: &'r PageTableStore,
    /// The base images of the clones that the log makes.
    pub(super) cloned: Mutex<Vec<(KeyspaceId, Vec<ExtentAddress>)>>,
}

/// Row operations in log order, collected until there are enough of them to sort.
#[derive(Default)]
struct ReplayBatch {
    /// The concatenated bodies of records.
    bytes: Vec<u8>,
    operations: Vec<ReplayedOperation>,
    large: Vec<Arc<LargeValue>>,
    /// The newest changes of prepared transactions among the operations, by key.
    prepared: HashMap<Vec<u8>, PreparedRow>,
}

/// A row of the keyspace of prepared transactions, as the batch leaves it.
enum PreparedRow {
    Put(Span),
    /// The changes are in extents.
    PutLarge,
    Removed,
}

/// One operation on a row. Its key and value are in the batch. The struct is small because a batch has many of them.
struct ReplayedOperation {
    keyspace: KeyspaceId,
    /// The first eight bytes of the key as a big-endian number, which sorts like the bytes.
    head: u64,
    /// The position of the key. The later of two operations on the same row has the greater start.
    key: Span,
    change: ReplayedChange,
}

const _: () = assert!(size_of::<ReplayedOperation>() == 32, "operations of a batch take more memory");

enum ReplayedChange {
    Put(Span),
    /// The index of one of the batch's large values.
    PutLarge(u32),
    Remove,
}

/// A range of a batch's bytes. The offsets fit into a `u32`.
#[derive(Clone, Copy)]
struct Span {
    start: u32,
    bytes: u32,
}

impl Span {
    fn new(start: usize, bytes: usize) -> Span {
        let narrow = |number| u32::try_from(number).expect("a batch has little more than 32 MiB");
        assert!(start + bytes <= u32::MAX as usize, "a batch has too many bytes");
        Span { start: narrow(start), bytes: narrow(bytes) }
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.bytes as usize
    }
}

/// Returns the first eight bytes of a key, padded with zeros, as a number.
fn head_of(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let count = key.len().min(head.len());
    head[..count].copy_from_slice(&key[..count]);
    u64::from_be_bytes(head)
}

/// Returns the number of bytes of operations to sort together. The larger it is, the more operations fall into the same
/// leaf. The operations use the memory of transactions and readers, which do not exist yet, but at most half of it,
/// because growing vectors may have twice the capacity that they need.
fn batch_bytes(engine: &Engine<Replaying>) -> usize {
    /// The maximum size of a batch under any budget.
    const BYTES_MAX: u64 = 32 << 20;
    let unused_bytes = engine.budget.limit_bytes(Account::Transactions) + engine.budget.limit_bytes(Account::Copies);
    (unused_bytes / 2).min(BYTES_MAX) as usize
}

impl Replay<'_> {
    /// Marks the extents that log records refer to as used, before anything is written, and takes the page numbers of
    /// bulk loads, so that replaying the commits before a load does not give them to other pages. Returns the loads
    /// into keyspaces that do not exist yet. Reads the log only if a record has extents.
    pub(super) fn mark_extents(&self) -> Result<Vec<ChunkImage>> {
        let mut images = Vec::new();
        if !self.scan.names_extents() {
            return Ok(images);
        }
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
                        self.mark_load(keyspace, &attachment, record.timestamp, &mut images)?;
                    }
                    _ => {}
                }
            }
        }
        Ok(images)
    }

    /// Marks the extents of a bulk load as used, and takes its page numbers. If the keyspace does not exist yet, adds
    /// the chunks of its page table to `later`.
    fn mark_load(
        &self,
        keyspace: KeyspaceId,
        attachment: &Attachment,
        timestamp: Timestamp,
        later: &mut Vec<ChunkImage>,
    ) -> Result<()> {
        let space = &self.engine.space;
        let open = self.open(keyspace);
        if let AttachedRoot::Tree(root) = attachment.root
            && !space.segments.restore_named(root)
        {
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
            if !addresses.iter().copied().filter(|address| !address.is_none()).all(is_marked) {
                return Err(self.malformed(timestamp));
            }
            match &open {
                Some(open) => self.take_numbers(&open.tree.pages, image.chunk, &addresses, timestamp)?,
                None => later.push(image),
            }
        }
        Ok(())
    }

    /// Enters the pages of a bulk load into the page table of its keyspace.
    fn take_numbers(
        &self,
        pages: &PageSpace,
        chunk: usize,
        addresses: &[ExtentAddress],
        timestamp: Timestamp,
    ) -> Result<()> {
        self.engine.pool.fit_frames(CHUNK_BYTES)?;
        let are_taken = pages.table.restore_unattached(chunk, addresses);
        are_taken.then_some(()).ok_or_else(|| self.malformed(timestamp))
    }

    fn malformed(&self, timestamp: Timestamp) -> Error {
        let what = format!("log record of timestamp {timestamp}");
        Error::corrupted(&self.log_path, what, "it verifies but makes no sense")
    }

    /// Applies the records. `loads` are the loads into keyspaces that do not exist yet, as
    /// [`mark_extents`](Self::mark_extents) has returned them.
    pub(super) fn apply_records(&self, loads: &[ChunkImage]) -> Result<()> {
        // Allocate the memory for the whole log at the beginning, up to the limit: a vector that grows is reallocated
        // at each size, which costs more than replaying its contents.
        let bytes_max = self.scan.record_bytes().min(batch_bytes(self.engine) as u64) as usize;
        let mut batch = ReplayBatch { bytes: Vec::with_capacity(bytes_max), ..ReplayBatch::default() };
        let mut newest = Timestamp(0);
        for record in self.scan.records()? {
            let record = record?;
            if let Some(Some((_, Operation::RemoveRange { .. }))) = record::decode(&record.body).next() {
                // The removal also removes the rows of earlier commits, so apply them first.
                self.apply_batch(&mut batch, newest)?;
            }
            let mut removed: Vec<(KeyspaceId, RemovedKeys)> = Vec::new();
            let base = batch.bytes.len();
            batch.bytes.extend_from_slice(&record.body);
            let offsets_of =
                |part: &[u8]| Span::new(base + (part.as_ptr() as usize - record.body.as_ptr() as usize), part.len());
            let (mut is_whole, mut is_attached) = (false, false);
            for operation in record::decode(&record.body) {
                let may_follow = |operation: &Operation<'_>| {
                    let is_of_load = matches!(operation, Operation::Attach(_) | Operation::Loaded { .. });
                    !is_whole && is_attached <= is_of_load
                };
                let operation = operation.filter(|(_, operation)| may_follow(operation));
                let (keyspace, operation) = operation.ok_or_else(|| self.malformed(record.timestamp))?;
                if let Operation::RemoveRange { lower, upper } = operation {
                    if removed.last().is_none_or(|(last, _)| *last != keyspace) {
                        removed.push((keyspace, RemovedKeys::default()));
                    }
                    let (lower, upper) = (lower.to_vec(), upper.map(<[u8]>::to_vec));
                    removed.last_mut().expect("just added").1.add(RemovedRange { lower, upper });
                    continue;
                }
                self.attach_removed(&mut removed, record.timestamp)?;
                let (key, change) = match operation {
                    Operation::Create { .. } | Operation::Drop | Operation::Rename { .. } => {
                        self.apply_batch(&mut batch, newest)?;
                        self.alter(&record.body, loads, record.timestamp)?;
                        // The whole record has been applied.
                        break;
                    }
                    Operation::Clone { from, as_of, name } => {
                        is_whole = true;
                        self.apply_batch(&mut batch, newest)?;
                        self.clone_keyspace((from, as_of), keyspace, name, loads, record.timestamp)?;
                        continue;
                    }
                    // Operations that attach loads, or one that commits a prepared transaction, must be the only ones
                    // in their record.
                    Operation::Attach(attachment) => {
                        is_attached = true;
                        self.apply_batch(&mut batch, newest)?;
                        let open = self.open(keyspace).ok_or_else(|| self.malformed(record.timestamp))?;
                        // The list of changes may contain removals of earlier rows. A count would subtract them from
                        // the rows of the load, because the leaves of a load do not show which commits precede it.
                        open.tree.counts.discard();
                        self.attach(&open.tree.pages, &attachment, record.timestamp)?;
                        continue;
                    }
                    Operation::CommitPrepared { id, .. } => {
                        is_whole = true;
                        self.commit_prepared(&mut batch, id, newest, record.timestamp)?;
                        continue;
                    }
                    // For the readers of changes.
                    Operation::Loaded { .. } if is_attached => continue,
                    Operation::OldValue(_) => continue,
                    Operation::PutStored { .. }
                    | Operation::Lock { .. }
                    | Operation::PutReference { .. }
                    | Operation::Loaded { .. }
                    | Operation::PutInParts { .. }
                    | Operation::ValuePart { .. } => {
                        return Err(self.malformed(record.timestamp));
                    }
                    Operation::Put { key, value } => (key, ReplayedChange::Put(offsets_of(value))),
                    Operation::PutLarge { key, length, value_id, extents } => {
                        let addresses = extents.into_iter().map(|extent| extent.address).collect();
                        self.engine.next_value.fetch_max(value_id.0.saturating_add(1), Ordering::Relaxed);
                        batch.large.push(Arc::new(LargeValue::of_record(length, value_id, addresses)));
                        (key, ReplayedChange::PutLarge(batch.large.len() as u32 - 1))
                    }
                    Operation::Remove { key } => (key, ReplayedChange::Remove),
                    Operation::RemoveRange { .. } => unreachable!("a removed range was taken for a row"),
                };
                if keyspace == KeyspaceId::PREPARED {
                    batch.note_prepared(key, &change);
                }
                batch.push(keyspace, key, offsets_of(key), change);
            }
            self.attach_removed(&mut removed, record.timestamp)?;
            newest = record.timestamp;
            if batch.bytes.len() + batch.operations.len() * size_of::<ReplayedOperation>() >= batch_bytes(self.engine) {
                self.apply_batch(&mut batch, newest)?;
            }
        }
        self.apply_batch(&mut batch, newest)
    }

    /// Attaches the removed ranges of a record. The rows of earlier records have been applied.
    fn attach_removed(&self, removed: &mut Vec<(KeyspaceId, RemovedKeys)>, timestamp: Timestamp) -> Result<()> {
        for (keyspace, removed) in removed.drain(..) {
            let open = self.open(keyspace).ok_or_else(|| self.malformed(timestamp))?;
            self.engine.replay_removal(&open.tree, removed, timestamp)?;
        }
        Ok(())
    }

    /// Adds the changes of a prepared transaction to the batch. The keyspace of prepared transactions has them, or the
    /// batch, which needs not be applied first: a database may commit many prepared transactions.
    fn commit_prepared(
        &self,
        batch: &mut ReplayBatch,
        id: &[u8],
        newest: Timestamp,
        timestamp: Timestamp,
    ) -> Result<()> {
        let malformed = || self.malformed(timestamp);
        check_id(id).map_err(|_| malformed())?;
        let hidden = self.open(KeyspaceId::PREPARED).ok_or_else(malformed)?;
        let key = prepared::changes_key(id);
        let changes = match batch.prepared.get(&key) {
            Some(PreparedRow::Put(value)) => batch.bytes[value.range()].to_vec(),
            Some(PreparedRow::Removed) => return Err(malformed()),
            Some(PreparedRow::PutLarge) | None => {
                if batch.prepared.contains_key(&key) {
                    self.apply_batch(batch, newest)?;
                }
                self.prepared_changes(&hidden, &key)?.ok_or_else(malformed)?
            }
        };
        let head = Head::decode(&changes).ok_or_else(malformed)?;
        let values = match head.value_count {
            0 => Vec::new(),
            count => {
                self.apply_batch(batch, newest)?;
                self.take_values(&hidden, id, count, timestamp)?
            }
        };
        let base = batch.bytes.len();
        batch.bytes.extend_from_slice(&changes);
        let span_of = |part: &[u8]| Span::new(base + (part.as_ptr() as usize - changes.as_ptr() as usize), part.len());
        for (keyspace, operation) in prepared::operations(&changes) {
            let (key, change) = match operation {
                Operation::Put { key, value } => (key, ReplayedChange::Put(span_of(value))),
                Operation::PutStored { key, number } => {
                    batch.large.push(Arc::clone(&values[number as usize]));
                    (key, ReplayedChange::PutLarge(batch.large.len() as u32 - 1))
                }
                Operation::Remove { key } => (key, ReplayedChange::Remove),
                _ => continue,
            };
            if self.open(keyspace).is_none() {
                return Err(malformed());
            }
            batch.push(keyspace, key, span_of(key), change);
        }
        let key_span = Span::new(batch.bytes.len(), key.len());
        batch.bytes.extend_from_slice(&key);
        batch.note_prepared(&key, &ReplayedChange::Remove);
        batch.push(KeyspaceId::PREPARED, &key, key_span, ReplayedChange::Remove);
        crate::coverage::mark!("a recovery committed a prepared transaction");
        Ok(())
    }

    /// Returns the changes of a prepared transaction that earlier batches have put, or that the checkpoint has.
    fn prepared_changes(&self, hidden: &OpenKeyspace, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let tree = &hidden.tree;
        let found = tree.pool.waiting(|_| {
            let page = tree.read_leaf(Target::At(key))?;
            let leaf = Leaf::new(&page);
            Ok::<_, Stop>(leaf.search(key).ok().map(|index| match leaf.value(index) {
                RowValue::Inline(value) => Ok(value.to_vec()),
                RowValue::Large(reference) => Err(reference),
            }))
        })?;
        match found {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(reference)) => ready(values::read_whole(WaitMode::Blocking, tree, &reference, Vec::new())),
        }
    }

    /// Removes the rows of a prepared transaction's large values, and returns the values for the rows that the commit
    /// puts.
    fn take_values(
        &self,
        hidden: &OpenKeyspace,
        id: &[u8],
        count: u32,
        timestamp: Timestamp,
    ) -> Result<Vec<Arc<LargeValue>>> {
        let (engine, tree) = (self.engine, &hidden.tree);
        let keys: Vec<Vec<u8>> = (0..count).map(|number| prepared::value_key(id, number)).collect();
        let mut taken = Vec::new();
        for key in &keys {
            let reference = tree.pool.waiting(|_| {
                let page = tree.read_leaf(Target::At(key))?;
                let leaf = Leaf::new(&page);
                Ok::<_, Stop>(leaf.search(key).ok().and_then(|index| match leaf.value(index) {
                    RowValue::Large(reference) => Some(reference),
                    RowValue::Inline(_) => None,
                }))
            })?;
            let reference = reference.ok_or_else(|| self.malformed(timestamp))?;
            // Fails unless these are pages of a value.
            LargeValue::of_prepared(&engine.pool, &tree.pages, &reference)?;
            let epoch_guard = engine.space.epoch_latch.shared();
            let (first, count) = (reference.first_page, reference.chunk_count);
            let addresses = engine.pool.take_pages(&epoch_guard, &tree.pages, first, count);
            taken.push(Arc::new(LargeValue::of_record(reference.length, reference.id, addresses)));
        }
        let rows: Vec<Row<'_>> = keys.iter().map(|key| Row { tree, key, change: Change::Remove }).collect();
        for rows in rows.chunks(VALUE_ROWS_MAX) {
            engine.replay_removal_of_moved(rows, timestamp)?;
        }
        Ok(taken)
    }

    /// Attaches a bulk load under the page numbers that it was written with.
    fn attach(&self, pages: &PageSpace, attachment: &Attachment, timestamp: Timestamp) -> Result<()> {
        let image = |&(chunk, extent): &(u32, ExtentRef)| (chunk as usize, extent.address);
        let images = attachment.images.iter().map(image).collect();
        let root = match attachment.root {
            AttachedRoot::Tree(root) => LoadRoot::Tree(root.address),
            AttachedRoot::Run(page) => LoadRoot::Run(page),
        };
        self.engine.replay_attach(pages, &LoadTables { images, root, written: None }, attachment.rows, timestamp)
    }

    fn open(&self, keyspace: KeyspaceId) -> Option<Arc<OpenKeyspace>> {
        self.keyspaces.get_by_id(self.engine, keyspace)
    }

    /// Makes a clone again, from the checkpoint from which it was made the first time: there was no later one, or its
    /// catalogue would have the clone.
    fn clone_keyspace(
        &self,
        (from, as_of): (KeyspaceId, Timestamp),
        id: KeyspaceId,
        name: &str,
        loads: &[ChunkImage],
        timestamp: Timestamp,
    ) -> Result<()> {
        let (engine, space) = (self.engine, &self.engine.space);
        let malformed = || self.malformed(timestamp);
        let is_new = space.page_space(id).is_none() && self.keyspaces.get(name).is_none() && !id.is_of_kept();
        if !is_new || self.page_tables.superblock.timestamp != as_of {
            return Err(malformed());
        }
        let base = self.page_tables.clone_base(space, from)?.ok_or_else(malformed)?;
        space.check_table_growth(base.table_bytes())?;
        engine.pool.fit_frames(base.table_bytes())?;
        let mut cloned = base.read(space, (id, name), space.segments.newest_use())?;
        self.cloned.lock().push((id, std::mem::take(&mut cloned.chunks)));
        self.keyspaces.add_clone(engine, &space.epoch_latch.exclusive(), &mut cloned, timestamp);
        for image in loads.iter().filter(|image| image.keyspace == id) {
            let addresses = read_image(space, *image)?;
            self.take_numbers(&cloned.pages, image.chunk, &addresses, timestamp)?;
        }
        crate::coverage::mark!("a recovery cloned a keyspace again");
        Ok(())
    }

    /// Applies a record that creates, renames and drops keyspaces.
    fn alter(&self, body: &[u8], loads: &[ChunkImage], timestamp: Timestamp) -> Result<()> {
        let (engine, malformed) = (self.engine, || self.malformed(timestamp));
        let mut alteration = Alteration::default();
        for operation in record::decode(body) {
            let (id, operation) = operation.ok_or_else(malformed)?;
            match operation {
                Operation::Create { page_bytes, name } => {
                    let page_bytes = page_bytes as usize;
                    if !is_page_bytes(page_bytes) || engine.space.page_space(id).is_some() {
                        return Err(malformed());
                    }
                    alteration.created.push(NewKeyspace { id, page_bytes, name: name.into() });
                }
                Operation::Rename { name } => {
                    alteration.renamed.push((self.open(id).ok_or_else(malformed)?, name.into()));
                }
                Operation::Drop => alteration.dropped.push(self.open(id).ok_or_else(malformed)?),
                _ => return Err(malformed()),
            }
        }
        let created = &alteration.created;
        if !self.keyspaces.allows(&alteration) || !created.is_sorted_by(|one, next| one.id < next.id) {
            return Err(malformed());
        }
        let root_bytes: u64 = created.iter().map(|new| new.page_bytes as u64).sum();
        let _reserved_pages = match root_bytes {
            0 => None,
            _ => Some(engine.space.reserve(Purpose::Replay, 2 * root_bytes)?),
        };
        let frames = created.iter().map(|new| engine.pool.take_frame(new.page_bytes)).collect::<Result<_>>()?;
        {
            let epoch_guard = engine.space.epoch_latch.exclusive();
            let mut dropped = alteration.dropped.iter();
            dropped.try_for_each(|open| engine.pool.prepare_root(&epoch_guard, &open.tree.pages))?;
            self.keyspaces.alter(engine, &alteration, frames, &epoch_guard, timestamp);
        }
        for new in &alteration.created {
            let open = self.open(new.id).expect("it was just created");
            for image in loads.iter().filter(|image| image.keyspace == new.id) {
                let addresses = read_image(&engine.space, *image)?;
                self.take_numbers(&open.tree.pages, image.chunk, &addresses, timestamp)?;
            }
        }
        self.keyspaces.free_dropped(engine)
    }

    /// Applies the newest operation on each row in key order, and empties the batch. Several threads share a large
    /// batch: while some of them wait for the device, others change leaves.
    fn apply_batch(&self, batch: &mut ReplayBatch, newest: Timestamp) -> Result<()> {
        if batch.operations.is_empty() {
            return Ok(());
        }
        batch.sort();
        let mut open = Vec::new();
        for run in batch.operations.chunk_by(|left, right| left.keyspace == right.keyspace) {
            // Creating and dropping are barriers, so each keyspace with rows in the batch still exists.
            open.push(self.open(run[0].keyspace).ok_or_else(|| self.malformed(newest))?);
        }
        let parts = batch.parts(thread_operations_min());
        let engine = Arc::clone(self.engine);
        let sorted = Arc::new(SortedBatch { engine, open, newest, batch: std::mem::take(batch) });
        for (part, ended) in parts.iter().zip(sorted.apply_parts(&parts)) {
            match ended {
                Ok(()) => {}
                Err(Unapplied { first, error: Error::DiskFull { .. } }) => {
                    crate::coverage::mark!("a part of the log was applied again with more space");
                    sorted.apply(first..part.end).map_err(|unapplied| unapplied.error)?;
                }
                Err(unapplied) => return Err(unapplied.error),
            }
        }
        // No snapshot is open yet, so no old version is needed.
        for (keyspace, reference) in self.engine.versions.collect_garbage(Timestamp(u64::MAX)) {
            self.engine.free_value(keyspace, &reference);
        }
        // Reuse the memory for the next batch.
        *batch = Arc::into_inner(sorted).expect("the threads have ended").batch;
        batch.clear();
        Ok(())
    }
}

/// The maximum number of threads that apply a batch. With four, some wait for pages from the device while others change
/// leaves.
const THREAD_COUNT: usize = 4;

/// Returns the minimum number of operations for which an additional thread pays off. It is lower in simulations, so
/// that they run several threads.
fn thread_operations_min() -> usize {
    if crate::sync::thread_number().is_some() { 64 } else { 4096 }
}

/// The maximum number of rows that a thread applies together, after reading their leaves together. It is lower if there
/// is little memory for pinned leaves. Each thread reserves space for this number of leaves.
const ROWS_MAX: usize = 512;

/// The maximum number of rows of large values of a prepared transaction that are removed together.
const VALUE_ROWS_MAX: usize = 16;

impl ReplayBatch {
    fn push(&mut self, keyspace: KeyspaceId, key: &[u8], span: Span, change: ReplayedChange) {
        self.operations.push(ReplayedOperation { keyspace, head: head_of(key), key: span, change });
    }

    /// Notes how an operation leaves a row of the keyspace of prepared transactions.
    fn note_prepared(&mut self, key: &[u8], change: &ReplayedChange) {
        let row = match change {
            ReplayedChange::Put(value) => PreparedRow::Put(*value),
            ReplayedChange::PutLarge(_) => PreparedRow::PutLarge,
            ReplayedChange::Remove => PreparedRow::Removed,
        };
        if !prepared::is_value_key(key) {
            self.prepared.insert(key.to_vec(), row);
        }
    }

    fn key(&self, operation: &ReplayedOperation) -> &[u8] {
        &self.bytes[operation.key.range()]
    }

    /// Sorts by keyspace and key. Operations on the same row stay in log order.
    fn sort(&mut self) {
        let key =
            |operation: &ReplayedOperation| (operation.keyspace, operation.head, &self.bytes[operation.key.range()]);
        self.operations.sort_unstable_by(|a, b| key(a).cmp(&key(b)).then(a.key.start.cmp(&b.key.start)));
    }

    /// Returns `true` if the next operation is on a different row.
    fn is_newest(&self, index: usize) -> bool {
        let operation = &self.operations[index];
        let is_same = |next: &ReplayedOperation| {
            next.keyspace == operation.keyspace && next.head == operation.head && self.key(next) == self.key(operation)
        };
        !self.operations.get(index + 1).is_some_and(is_same)
    }

    /// Divides the sorted operations into ranges for the threads. No row is in more than one range.
    fn parts(&self, operations_min: usize) -> Vec<Range<usize>> {
        let count = self.operations.len();
        let part_count = (count / operations_min).clamp(1, THREAD_COUNT);
        let mut parts = Vec::with_capacity(part_count);
        let mut start = 0;
        for part in 1..=part_count {
            let mut end = (part * count / part_count).max(start);
            while start < end && !self.is_newest(end - 1) {
                end += 1;
            }
            if start < end {
                parts.push(start..end);
            }
            start = end;
        }
        assert!(start == count, "operations from {start} of {count} on are in no part");
        parts
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.operations.clear();
        self.large.clear();
        self.prepared.clear();
    }
}

/// A batch in key order, shared by the threads that apply it.
struct SortedBatch {
    engine: Arc<Engine<Replaying>>,
    /// The keyspaces of the batch's rows.
    open: Vec<Arc<OpenKeyspace>>,
    /// The newest commit in the batch.
    newest: Timestamp,
    batch: ReplayBatch,
}

/// The first operation of a part that was not applied, and the error.
struct Unapplied {
    first: usize,
    error: Error,
}

impl SortedBatch {
    /// Applies the first part on this thread, and each other part on a separate thread.
    fn apply_parts(self: &Arc<Self>, parts: &[Range<usize>]) -> Vec<Result<(), Unapplied>> {
        let start = |part: &Range<usize>| {
            let ended = Arc::new(Mutex::new(None));
            let (sorted, part, slot) = (Arc::clone(self), part.clone(), Arc::clone(&ended));
            let body = move || *slot.lock() = Some(sorted.apply(part));
            (self.engine.backend.spawn("drumlin-replay", Box::new(body)), ended)
        };
        let threads: Vec<_> = parts[1..].iter().map(start).collect();
        let mut outcomes = vec![self.apply(parts[0].clone())];
        for (part, (thread, ended)) in parts[1..].iter().zip(threads) {
            let outcome = match thread {
                Ok(thread) => {
                    crate::sync::join(thread).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    ended.lock().take().expect("the thread has ended")
                }
                // The backend has no threads, or the system refused to start one.
                Err(_) => self.apply(part.clone()),
            };
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Applies a part, a few leaves at a time.
    fn apply(&self, part: Range<usize>) -> Result<(), Unapplied> {
        let mut first = part.start;
        let mut count_max = ROWS_MAX;
        while first < part.end {
            let (rows, next) = self.rows(first..part.end, count_max);
            match self.engine.replay(&rows, self.newest) {
                Ok(()) => {
                    self.release_replaced(first..next);
                    first = next;
                    count_max = (2 * count_max).min(ROWS_MAX);
                }
                Err(Error::TransactionTooLarge { .. } | Error::DiskFull { .. }) if rows.len() > 1 => {
                    count_max = rows.len() / 2;
                }
                Err(error) => return Err(Unapplied { first, error }),
            }
        }
        Ok(())
    }

    /// Returns the newest changes of the next rows of one keyspace, and the index of the first operation after them.
    fn rows(&self, operations: Range<usize>, count_max: usize) -> (Vec<Row<'_>>, usize) {
        let ReplayBatch { bytes, large, .. } = &self.batch;
        let keyspace = self.batch.operations[operations.start].keyspace;
        let open = self.open.iter().find(|open| open.tree.pages.id == keyspace).expect("found before");
        let tree = &open.tree;
        // Each thread may pin a leaf for each row.
        let pinned_max =
            self.engine.budget.limit_bytes(Account::Pinned) as usize / THREAD_COUNT / tree.pages.page_bytes();
        let count_max = count_max.min(pinned_max.max(1));
        let mut rows = Vec::with_capacity(count_max.min(operations.len()));
        let mut next = operations.start;
        while next < operations.end && rows.len() < count_max {
            let operation = &self.batch.operations[next];
            if operation.keyspace != keyspace {
                break;
            }
            if self.batch.is_newest(next) {
                let change = match &operation.change {
                    ReplayedChange::Put(value) => Change::Put(&bytes[value.range()]),
                    ReplayedChange::PutLarge(index) => Change::PutLarge(&large[*index as usize]),
                    ReplayedChange::Remove => Change::Remove,
                };
                rows.push(Row { tree, key: self.batch.key(operation), change });
            }
            next += 1;
        }
        (rows, next)
    }

    /// Releases the large values that a later one of these operations replaces. Until a checkpoint covers them, the log
    /// refers to their extents, so a second recovery must find these intact.
    fn release_replaced(&self, operations: Range<usize>) {
        let space = &self.engine.space;
        for index in operations {
            if let ReplayedChange::PutLarge(large) = self.batch.operations[index].change
                && !self.batch.is_newest(index)
            {
                let epoch = space.epoch_latch.shared().epoch();
                for address in &self.batch.large[large as usize].addresses {
                    space.segments.release(*address, epoch);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Random;

    /// Every operation is in exactly one part. Operations on the same row share a part and stay in log order.
    #[test]
    fn no_row_is_in_two_parts() {
        for seed in 0..200 {
            let mut random = Random(seed);
            let mut batch = ReplayBatch::default();
            let key_count = 1 + random.below(3000);
            for _ in 0..random.below(5000) {
                let start = batch.bytes.len();
                let key = random.below(key_count) % 900;
                batch.bytes.extend_from_slice(key.to_string().as_bytes());
                let key = Span::new(start, batch.bytes.len() - start);
                let head = head_of(&batch.bytes[start..]);
                let keyspace = KeyspaceId(1 + random.below(2) as u32);
                batch.operations.push(ReplayedOperation { keyspace, head, key, change: ReplayedChange::Remove });
            }
            batch.sort();
            let parts = batch.parts(1 + seed as usize * 10);
            let bounds = [0].into_iter().chain(parts.iter().map(|part| part.end));
            assert!(parts.iter().map(|part| part.start).eq(bounds.take(parts.len())));
            assert_eq!(parts.last().map_or(0, |part| part.end), batch.operations.len());
            for (index, pair) in batch.operations.windows(2).enumerate() {
                let row = |operation: &ReplayedOperation| (operation.keyspace, batch.key(operation).to_vec());
                let (left, right) = (row(&pair[0]), row(&pair[1]));
                assert!(left < right || left == right && pair[0].key.start < pair[1].key.start);
                assert!(left < right || parts.iter().all(|part| part.end != index + 1));
                assert_eq!(left < right, batch.is_newest(index));
            }
        }
    }
}
