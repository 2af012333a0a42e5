//! Changes of transactions that do not fit in memory. They are stored as sorted runs in the file `writes`.
//!
//! When the changes of a transaction outgrow its share of memory, they are *spilled*: sorted by keyspace and key, and
//! written as a *part*, a run with its first and last key. The transaction's row locks are released, because the part
//! says which rows are locked (`txn/spilled_locks.rs`). When the transaction commits, its parts are merged into one run
//! above each keyspace (`load/writes.rs`).
//!
//! # Tiers
//! The parts of a transaction form *tiers*, from the oldest to the newest. The parts of a tier ascend and do not
//! overlap. Rows that a transaction writes in key order fill a single tier, and are written once. Other parts begin a
//! new tier, and tiers of similar size are merged, as in an LSM tree (O'Neil, Cheng, Gawlick and O'Neil, "The
//! Log-Structured Merge-Tree", 1996). So a look-up reads one block of each of a few tiers.
//!
//! # Savepoints
//! The number of a row is the position of its change in the transaction, which a savepoint names. Rolling back to a
//! savepoint undoes the rows of later positions. They stay in their parts, because their rows stay locked; a merge
//! replaces them by rows without a change, whose number is [`LOCK`].
//!
//! # Invariants
//! 1. Among the changes of a row that are not undone, those in a newer tier have higher positions.
//! 2. Nothing durable refers to the file. No transaction outlives the process, so if the file exists when the database
//!    is opened, it is removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Cursor;
use super::block::{self, SpilledRow, WRITE_BLOCK_BYTES};
use super::cache::Cache;
use super::file::{SpillFile, WRITES_NAME};
use super::run::{Run, RunWriter};
use crate::error::Result;
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, PageId, Timestamp, ValueId};
use crate::io::FolderRef;
use crate::memory::{Account, Budget};
use crate::pool::Pool;
use crate::space::runs::RemovedKeys;
use crate::tree::Direction;
use crate::tree::node::RowValue;

/// The number of a row that only says that its key is locked.
const LOCK: Timestamp = Timestamp(1);
/// The number of the change at position 0. Higher than that of a lock.
const NUMBER_OFFSET: u64 = 2;

/// The maximum number of tiers of similar size. If there is one more, they are merged.
const TIERS_MERGED_MAX: u64 = if cfg!(feature = "sim") { 3 } else { 6 };

/// The memory of a row of a window, without its key and value.
const ROW_BYTES: usize = 128;

/// The file of spilled changes.
#[derive(Debug)]
pub(crate) struct WriteSpill {
    file: Arc<SpillFile>,
    cache: Arc<Cache>,
    budget: Arc<Budget>,
    /// Its threads write and read blocks while the transaction continues.
    pool: Arc<Pool>,
    number_next: AtomicU64,
}

impl WriteSpill {
    pub(crate) fn new(folder: FolderRef, budget: &Arc<Budget>, pool: &Arc<Pool>) -> WriteSpill {
        WriteSpill {
            file: SpillFile::new(folder, WRITES_NAME, WRITE_BLOCK_BYTES),
            cache: Arc::new(Cache::new(budget, WRITE_BLOCK_BYTES)),
            budget: Arc::clone(budget),
            pool: Arc::clone(pool),
            number_next: AtomicU64::new(1),
        }
    }

    /// Removes the file that a killed process may have left behind.
    pub(crate) fn remove_left(&self) -> std::io::Result<()> {
        self.file.remove_left()
    }

    /// Removes the file. Called when the database closes. Transactions that are still open can't be continued.
    pub(crate) fn close(&self) {
        self.file.close();
    }

    /// Returns the length of the file in bytes.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// Returns the number of tiers that may be merged in the memory for spilled rows.
    fn tiers_merged(&self) -> usize {
        let blocks = self.budget.limit_bytes(Account::Spilled) / 2 / WRITE_BLOCK_BYTES as u64;
        let count = blocks.clamp(2, TIERS_MERGED_MAX) as usize;
        assert!(count >= 2, "{count} tiers are merged at a time");
        count
    }

    /// Begins writing a part.
    pub(crate) fn begin(&self) -> PartWriter {
        let number = self.number_next.fetch_add(1, Ordering::Relaxed);
        let writer = RunWriter::new(number, &self.file, &self.cache, &self.budget, Some(&self.pool));
        PartWriter { writer, first: None, last: (KeyspaceId(0), Vec::new()) }
    }
}

/// A change in a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SpilledChange<'a> {
    Put(&'a [u8]),
    /// Puts a large value: its number among those of the transaction.
    PutLarge(u32),
    Remove,
}

impl<'a> SpilledChange<'a> {
    fn of(row: &SpilledRow<'a>) -> SpilledChange<'a> {
        match row.was {
            None => SpilledChange::Remove,
            Some(RowValue::Inline(value)) => SpilledChange::Put(value),
            Some(RowValue::Large(reference)) => {
                debug_assert!(reference.chunk_count == 0, "a change refers to pages of a value");
                SpilledChange::PutLarge(reference.first_page.0)
            }
        }
    }

    fn encoded(self) -> Option<RowValue<'a>> {
        match self {
            SpilledChange::Remove => None,
            SpilledChange::Put(value) => Some(RowValue::Inline(value)),
            SpilledChange::PutLarge(number) => {
                let (id, first_page) = (ValueId(0), PageId(number));
                Some(RowValue::Large(LargeRef { length: 0, id, first_page, chunk_count: 0 }))
            }
        }
    }

    pub(crate) fn to_owned(self) -> OwnedChange {
        match self {
            SpilledChange::Put(value) => OwnedChange::Put(value.to_vec()),
            SpilledChange::PutLarge(number) => OwnedChange::PutLarge(number),
            SpilledChange::Remove => OwnedChange::Remove,
        }
    }
}

/// A copy of a [`SpilledChange`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OwnedChange {
    Put(Vec<u8>),
    PutLarge(u32),
    Remove,
}

type RowKey = (KeyspaceId, Box<[u8]>);

fn as_slice((keyspace, key): &RowKey) -> (KeyspaceId, &[u8]) {
    (*keyspace, key)
}

/// A run of changes, and its first and last key.
#[derive(Debug)]
struct Part {
    run: Run,
    first: RowKey,
    last: RowKey,
}

/// Writes a part.
pub(crate) struct PartWriter {
    writer: RunWriter,
    first: Option<RowKey>,
    last: (KeyspaceId, Vec<u8>),
}

impl PartWriter {
    /// Appends a change of a row. Changes must be added in the order of keyspace, key and position.
    pub(crate) fn push(
        &mut self,
        keyspace: KeyspaceId,
        key: &[u8],
        position: u64,
        change: SpilledChange<'_>,
    ) -> Result<()> {
        self.push_numbered(keyspace, key, position + NUMBER_OFFSET, change.encoded())
    }

    fn push_numbered(
        &mut self,
        keyspace: KeyspaceId,
        key: &[u8],
        number: u64,
        was: Option<RowValue<'_>>,
    ) -> Result<()> {
        assert!(number >= LOCK.0, "a change has no number");
        debug_assert!((self.last.0, &self.last.1[..]) <= (keyspace, key), "changes are spilled out of order");
        self.writer.push(SpilledRow { keyspace, key, timestamp: Timestamp(number), was })?;
        self.first.get_or_insert_with(|| (keyspace, key.into()));
        self.last.0 = keyspace;
        self.last.1.clear();
        self.last.1.extend_from_slice(key);
        Ok(())
    }

    /// Writes the last block. Returns the part, or `None` if it has no rows.
    fn finish(self) -> Result<Option<Part>> {
        let run = self.writer.finish()?;
        assert!(run.is_some() == self.first.is_some(), "a part has rows and no keys");
        Ok(run.zip(self.first).map(|(run, first)| Part { run, first, last: (self.last.0, self.last.1.into()) }))
    }
}

impl Part {
    fn last_position(&self) -> u64 {
        assert!(self.run.last.0 >= LOCK.0, "a part has no rows");
        self.run.last.0.saturating_sub(NUMBER_OFFSET)
    }

    /// Calls `look` with the rows from this key on, until it returns `false`.
    fn each_row(&self, keyspace: KeyspaceId, key: &[u8], mut look: impl FnMut(&SpilledRow<'_>) -> bool) -> Result<()> {
        assert!(as_slice(&self.first) <= as_slice(&self.last), "a part ends before it begins");
        for index in self.run.first_block(keyspace, key)..self.run.len() {
            let bytes = self.run.read(index)?;
            for row in block::rows(&bytes).filter(|row| (row.keyspace, row.key) >= (keyspace, key)) {
                if !look(&row) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Parts that do not overlap, in ascending order.
#[derive(Clone, Debug)]
struct Tier {
    parts: Vec<Arc<Part>>,
    /// The changes from this position on are undone.
    undone_from: u64,
}

impl Tier {
    fn blocks(&self) -> usize {
        assert!(!self.parts.is_empty(), "a tier has no parts");
        self.parts.iter().map(|part| part.run.len()).sum()
    }

    /// Returns the index of the part that may have the key or, if there is none, of the first part after the key.
    fn part_at(&self, keyspace: KeyspaceId, key: &[u8]) -> usize {
        debug_assert!(self.parts.is_sorted_by(|left, right| left.last < right.first), "parts of a tier overlap");
        self.parts.partition_point(|part| as_slice(&part.last) < (keyspace, key))
    }

    fn is_undone(&self, row: &SpilledRow<'_>) -> bool {
        assert!(row.timestamp.0 >= LOCK.0, "a change has no number");
        row.timestamp.0 < NUMBER_OFFSET || row.timestamp.0 - NUMBER_OFFSET >= self.undone_from
    }

    /// Calls `look` with the rows of a key, in the order of their positions.
    fn each_of(&self, keyspace: KeyspaceId, key: &[u8], mut look: impl FnMut(&SpilledRow<'_>)) -> Result<()> {
        let Some(part) = self.parts.get(self.part_at(keyspace, key)) else { return Ok(()) };
        if as_slice(&part.first) > (keyspace, key) {
            return Ok(());
        }
        let mut last = 0;
        part.each_row(keyspace, key, |row| {
            let is_it = (row.keyspace, row.key) == (keyspace, key);
            if is_it {
                debug_assert!(last < row.timestamp.0, "changes of a row are out of order");
                last = row.timestamp.0;
                look(row);
            }
            is_it
        })
    }

    /// Returns the first key from `key` on.
    fn next_key(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Box<[u8]>>> {
        let mut next = None;
        for part in &self.parts[self.part_at(keyspace, key)..] {
            part.each_row(keyspace, key, |row| {
                next = (row.keyspace == keyspace).then(|| row.key.into());
                false
            })?;
            if next.is_some() {
                break;
            }
        }
        debug_assert!(next.as_deref().is_none_or(|next: &[u8]| key <= next), "the next key comes before");
        Ok(next)
    }

    /// Returns the key at which a window near `key` must end so that it has about one block of this tier.
    fn window_edge(&self, keyspace: KeyspaceId, key: Option<&[u8]>, direction: Direction) -> Option<&[u8]> {
        match direction {
            Direction::Forward => {
                let key = key.unwrap_or_default();
                self.parts[self.part_at(keyspace, key)..].iter().find_map(|part| part.run.block_after(keyspace, key))
            }
            Direction::Backward => {
                let is_before = |part: &Arc<Part>| match key {
                    Some(key) => as_slice(&part.first) < (keyspace, key),
                    None => part.first.0 <= keyspace,
                };
                let parts = &self.parts[..self.parts.partition_point(is_before)];
                parts.iter().rev().find_map(|part| part.run.block_before(keyspace, key))
            }
        }
    }
}

/// The spilled changes of a transaction. A clone is a snapshot of them.
#[derive(Clone, Default, Debug)]
pub(crate) struct SpilledWrites {
    tiers: Arc<Vec<Tier>>,
}

/// The rows of a keyspace that a transaction has changed between two keys, each with the newest change, or `None` if
/// all changes are undone.
pub(crate) struct SpilledWindow {
    pub(crate) rows: BTreeMap<Vec<u8>, Option<OwnedChange>>,
    /// The keys: from the lower one, inclusive, to the upper one, exclusive.
    pub(crate) lower: Option<Vec<u8>>,
    pub(crate) upper: Option<Vec<u8>>,
}

impl SpilledWrites {
    pub(crate) fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    /// Returns the size of the blocks, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let blocks: usize = self.tiers.iter().map(Tier::blocks).sum();
        (blocks * WRITE_BLOCK_BYTES) as u64
    }

    /// Returns `true` if rows of the keyspace may have been changed.
    pub(crate) fn may_have(&self, keyspace: KeyspaceId) -> bool {
        let parts = self.tiers.iter().flat_map(|tier| &tier.parts);
        parts.into_iter().any(|part| part.first.0 <= keyspace && keyspace <= part.last.0)
    }

    /// Adds a part, and merges tiers if there are too many. Changes before the position `savepoint` may become the
    /// newest ones again.
    pub(crate) fn with(&self, spill: &WriteSpill, writer: PartWriter, savepoint: u64) -> Result<SpilledWrites> {
        let Some(part) = writer.finish()? else { return Ok(self.clone()) };
        let mut tiers = self.tiers.to_vec();
        let continues = |tier: &&mut Tier| {
            let last = tier.parts.last().expect("a tier has parts");
            tier.undone_from == u64::MAX && last.last < part.first
        };
        let is_ascending = tiers.last_mut().filter(continues).is_some();
        match tiers.last_mut().filter(|_| is_ascending) {
            Some(tier) => tier.parts.push(Arc::new(part)),
            None => tiers.push(Tier { parts: vec![Arc::new(part)], undone_from: u64::MAX }),
        }
        loop {
            debug_assert!(!tiers.is_empty(), "a part was added to no tier");
            let mut first = tiers.len() - 1;
            let mut blocks = tiers[first].blocks();
            while first > 0 && tiers[first - 1].blocks() <= 2 * blocks {
                first -= 1;
                blocks += tiers[first].blocks();
            }
            if tiers.len() - first <= spill.tiers_merged() {
                return Ok(SpilledWrites { tiers: Arc::new(tiers) });
            }
            merge_from(&mut tiers, first, spill, savepoint)?;
        }
    }

    /// Merges tiers until they can be merged once more in the memory for spilled rows.
    pub(crate) fn merged(&self, spill: &WriteSpill) -> Result<SpilledWrites> {
        let mut tiers = self.tiers.to_vec();
        while tiers.len() > spill.tiers_merged() {
            let first = tiers.len() - spill.tiers_merged();
            merge_from(&mut tiers, first, spill, 0)?;
        }
        assert!(tiers.is_empty() == self.tiers.is_empty(), "tiers are merged into none");
        Ok(SpilledWrites { tiers: Arc::new(tiers) })
    }

    /// Undoes the changes from this position on.
    pub(crate) fn undo_from(&mut self, position: u64) {
        let is_undone = |tier: &Tier| tier.parts.iter().any(|part| part.last_position() >= position);
        if self.tiers.iter().any(is_undone) {
            for tier in Arc::make_mut(&mut self.tiers).iter_mut().filter(|tier| is_undone(tier)) {
                tier.undone_from = tier.undone_from.min(position);
            }
        }
        debug_assert!(
            self.tiers.iter().all(|tier| !is_undone(tier) || tier.undone_from <= position),
            "changes from {position} on are not undone"
        );
    }

    /// Returns the newest change of a row. Reads up to one block of each tier, or two.
    pub(crate) fn find(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<OwnedChange>> {
        for tier in self.tiers.iter().rev() {
            let mut found = None;
            tier.each_of(keyspace, key, |row| {
                if !tier.is_undone(row) {
                    found = Some(SpilledChange::of(row).to_owned());
                }
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Returns `false` if the row was not changed. Reads nothing, so `true` does not mean that it was.
    pub(crate) fn may_have_row(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        self.tiers.iter().any(|tier| {
            let part = tier.parts.get(tier.part_at(keyspace, key));
            part.is_some_and(|part| as_slice(&part.first) <= (keyspace, key))
        })
    }

    /// Returns `true` if the row was changed, even if the change is undone.
    pub(crate) fn has_row(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<bool> {
        let mut is_there = false;
        for tier in self.tiers.iter().rev() {
            tier.each_of(keyspace, key, |_| is_there = true)?;
            if is_there {
                break;
            }
        }
        Ok(is_there)
    }

    /// Returns a key in these ranges whose row was changed, even if the change is undone.
    pub(crate) fn any_key_in(&self, keyspace: KeyspaceId, keys: &RemovedKeys) -> Result<Option<Box<[u8]>>> {
        for range in keys.ranges() {
            for tier in self.tiers.iter() {
                let next = tier.next_key(keyspace, &range.lower)?;
                if let Some(key) = next.filter(|key| range.upper.as_deref().is_none_or(|upper| **key < *upper)) {
                    return Ok(Some(key));
                }
            }
        }
        Ok(None)
    }

    /// Returns the changes of rows near a key: from the key on, or before it. `None` stands for the end of the
    /// keyspace. The window ends with a block of a tier, or where its rows take `bytes_max` bytes of memory.
    pub(crate) fn window(
        &self,
        keyspace: KeyspaceId,
        key: Option<&[u8]>,
        direction: Direction,
        bytes_max: usize,
    ) -> Result<SpilledWindow> {
        let edges = self.tiers.iter().filter_map(|tier| tier.window_edge(keyspace, key, direction));
        let (mut lower, mut upper) = match direction {
            Direction::Forward => (key, edges.min()),
            Direction::Backward => (edges.max(), key),
        };
        let mut rows: BTreeMap<Vec<u8>, Option<OwnedChange>> = BTreeMap::new();
        let from = lower.unwrap_or_default();
        for tier in self.tiers.iter() {
            for part in &tier.parts[tier.part_at(keyspace, from)..] {
                let mut is_past = false;
                part.each_row(keyspace, from, |row| {
                    is_past = row.keyspace != keyspace || upper.is_some_and(|upper| upper <= row.key);
                    if !is_past {
                        let change = rows.entry(row.key.to_vec()).or_insert(None);
                        if !tier.is_undone(row) {
                            *change = Some(SpilledChange::of(row).to_owned());
                        }
                    }
                    !is_past
                })?;
                if is_past {
                    break;
                }
            }
        }
        let mut bytes = 0;
        let mut exceeds = |(key, change): (&Vec<u8>, &Option<OwnedChange>)| {
            let is_first = bytes == 0;
            bytes += ROW_BYTES + key.len() + if let Some(OwnedChange::Put(value)) = change { value.len() } else { 0 };
            (bytes > bytes_max && !is_first).then(|| key.clone())
        };
        let left_out = match direction {
            Direction::Forward => rows.iter().find_map(&mut exceeds),
            Direction::Backward => rows.iter().rev().find_map(&mut exceeds),
        };
        if let Some(left_out) = &left_out {
            match direction {
                Direction::Forward => drop(rows.split_off(left_out)),
                Direction::Backward => {
                    rows = rows.split_off(left_out);
                    rows.remove(left_out);
                }
            }
        }
        let first_left = left_out.as_ref().and(rows.keys().next().cloned());
        match (direction, &left_out, &first_left) {
            (Direction::Forward, Some(left_out), _) => upper = Some(left_out),
            (Direction::Backward, _, Some(first_left)) => lower = Some(first_left),
            _ => {}
        }
        let [lower, upper] = [lower, upper].map(|edge| edge.map(<[u8]>::to_vec));
        assert!(lower.is_none() || upper.is_none() || lower < upper, "a window ends before it begins");
        debug_assert!(
            rows.keys().all(|key| lower.as_ref().is_none_or(|lower| lower <= key)),
            "a window has rows before it"
        );
        debug_assert!(
            rows.keys().all(|key| upper.as_ref().is_none_or(|upper| key < upper)),
            "a window has rows after it"
        );
        Ok(SpilledWindow { rows, lower, upper })
    }

    /// Returns an iterator over the changed rows, in the order of keyspace and key.
    pub(crate) fn rows<'s>(&'s self, spill: &'s WriteSpill) -> Result<ChangedRows<'s>> {
        ChangedRows::new(&self.tiers, spill)
    }
}

/// Merges the tiers from `first` on into one.
fn merge_from(tiers: &mut Vec<Tier>, first: usize, spill: &WriteSpill, savepoint: u64) -> Result<()> {
    crate::coverage::mark!("tiers of spilled changes were merged");
    assert!(first + 1 < tiers.len(), "{} tiers are merged from number {first} on", tiers.len());
    let mut writer = spill.begin();
    {
        let mut rows = ChangedRows::new(&tiers[first..], spill)?;
        while rows.step()? {
            let is_kept = |index: &usize| index + 1 == rows.changes.len() || rows.changes[*index].position < savepoint;
            for index in (0..rows.changes.len()).filter(is_kept) {
                let GroupedChange { position, .. } = rows.changes[index];
                writer.push(rows.keyspace, &rows.key, position, rows.change(index))?;
            }
            if rows.changes.is_empty() {
                writer.push_numbered(rows.keyspace, &rows.key, LOCK.0, None)?;
            }
        }
    }
    let part = writer.finish()?.expect("a tier has rows");
    assert!(
        tiers[first..].iter().all(|tier| tier.parts.iter().all(|merged| part.last >= merged.last)),
        "a merge loses rows"
    );
    tiers.truncate(first);
    tiers.push(Tier { parts: vec![Arc::new(part)], undone_from: u64::MAX });
    Ok(())
}

/// Iterates over the rows of a tier.
struct TierCursor<'t> {
    tier: &'t Tier,
    /// The index of the next part.
    next: usize,
    cursor: Option<Cursor<'t>>,
    spill: &'t WriteSpill,
}

impl<'t> TierCursor<'t> {
    fn new(tier: &'t Tier, spill: &'t WriteSpill) -> Result<TierCursor<'t>> {
        let mut cursor = TierCursor { tier, next: 0, cursor: None, spill };
        cursor.open_next()?;
        Ok(cursor)
    }

    fn row(&self) -> Option<SpilledRow<'_>> {
        self.cursor.as_ref()?.row()
    }

    fn advance(&mut self) -> Result<()> {
        if let Some(cursor) = &mut self.cursor {
            cursor.advance()?;
        }
        if self.row().is_none() { self.open_next() } else { Ok(()) }
    }

    fn open_next(&mut self) -> Result<()> {
        self.cursor = None;
        assert!(self.next <= self.tier.parts.len(), "a cursor is past its tier");
        if let Some(part) = self.tier.parts.get(self.next) {
            self.next += 1;
            self.cursor = Some(Cursor::new(&part.run, &self.spill.budget, Some(&self.spill.pool))?);
        }
        Ok(())
    }
}

/// One of the changes that the transaction has made to the row at which [`ChangedRows`] stands.
#[derive(Clone, Copy)]
struct GroupedChange {
    position: u64,
    kind: GroupedKind,
    /// The span of an inline value.
    start: usize,
    end: usize,
}

#[derive(Clone, Copy)]
enum GroupedKind {
    Put,
    PutLarge(u32),
    Remove,
}

/// Iterates over the rows that a transaction has changed, with the changes of each that are not undone.
pub(crate) struct ChangedRows<'t> {
    cursors: Vec<TierCursor<'t>>,
    keyspace: KeyspaceId,
    key: Vec<u8>,
    changes: Vec<GroupedChange>,
    values: Vec<u8>,
}

impl<'t> ChangedRows<'t> {
    fn new(tiers: &'t [Tier], spill: &'t WriteSpill) -> Result<ChangedRows<'t>> {
        let cursors = tiers.iter().map(|tier| TierCursor::new(tier, spill)).collect::<Result<_>>()?;
        Ok(ChangedRows { cursors, keyspace: KeyspaceId(0), key: Vec::new(), changes: Vec::new(), values: Vec::new() })
    }

    /// Moves to the next row. Returns `false` if there is none.
    pub(crate) fn step(&mut self) -> Result<bool> {
        let rows = self.cursors.iter().filter_map(TierCursor::row);
        let Some(least) = rows.min_by_key(|row| (row.keyspace, row.key)) else { return Ok(false) };
        let is_after = (self.keyspace, &self.key[..]) < (least.keyspace, least.key);
        assert!(is_after || self.key.is_empty(), "changes of a transaction are out of order");
        self.keyspace = least.keyspace;
        self.key.clear();
        self.key.extend_from_slice(least.key);
        self.changes.clear();
        self.values.clear();
        for cursor in &mut self.cursors {
            while let Some(row) = cursor.row() {
                if (row.keyspace, row.key) != (self.keyspace, &self.key[..]) {
                    break;
                }
                if !cursor.tier.is_undone(&row) {
                    let start = self.values.len();
                    let kind = match SpilledChange::of(&row) {
                        SpilledChange::Put(value) => {
                            self.values.extend_from_slice(value);
                            GroupedKind::Put
                        }
                        SpilledChange::PutLarge(number) => GroupedKind::PutLarge(number),
                        SpilledChange::Remove => GroupedKind::Remove,
                    };
                    let (position, end) = (row.timestamp.0 - NUMBER_OFFSET, self.values.len());
                    debug_assert!(
                        self.changes.last().is_none_or(|last| last.position < position),
                        "an older tier has a newer change"
                    );
                    self.changes.push(GroupedChange { position, kind, start, end });
                }
                cursor.advance()?;
            }
        }
        Ok(true)
    }

    /// Returns the keyspace and the key of the row.
    pub(crate) fn key(&self) -> (KeyspaceId, &[u8]) {
        (self.keyspace, &self.key)
    }

    /// Returns the newest change of the row, or `None` if all are undone.
    pub(crate) fn newest(&self) -> Option<SpilledChange<'_>> {
        self.changes.len().checked_sub(1).map(|last| self.change(last))
    }

    fn change(&self, index: usize) -> SpilledChange<'_> {
        let GroupedChange { kind, start, end, .. } = self.changes[index];
        assert!(start <= end && end <= self.values.len(), "a value is where no value is");
        match kind {
            GroupedKind::Put => SpilledChange::Put(&self.values[start..end]),
            GroupedKind::PutLarge(number) => SpilledChange::PutLarge(number),
            GroupedKind::Remove => SpilledChange::Remove,
        }
    }
}
