//! The loader takes the rows of one bulk load, builds a tree from them, and attaches the tree to the keyspace.
//!
//! While keys arrive in ascending order, rows are packed into leaves immediately ([`PackedTree`]), and full leaves are
//! written immediately ([`LoadPages`]). When a key arrives out of order, the loader switches to an external merge sort
//! ([`Sorting`]): rows are sorted in memory, spilled as runs (each of them a packed tree), and merged at the end. After
//! the last row, the load is made durable and attached ([`Engine::attach`]): in place of the keyspace's root if
//! the keyspace is empty for all readers and writers, and otherwise as a run above its tree.
//!
//! [`Engine::attach`]: crate::txn::engine::Engine::attach

use std::cell::Cell;
use std::io::Read;
use std::sync::Arc;

use super::attach::Attached;
use super::merging;
use super::packed_tree::{KeyBounds, PackedTree};
use super::packing::TakenRow;
use super::pages::{LoadPages, LoadRoot, Placement};
use super::rows::LoadedRows;
use super::sorting::{SortBuffer, Waiting};
use crate::counts::loaded::LoadedCounts;
use crate::error::{Error, Result};
use crate::format::node::{LARGE_REF_BYTES, LargeRef, VALUE_LENGTH_BYTES};
use crate::format::record::{self, AttachedRoot, Attachment, Operation};
use crate::memory::{Account, Budget, Grant};
use crate::seglog::Body;
use crate::space::Purpose;
use crate::task::{WaitMode, ready};
use crate::txn::commit::ready::ReadyCommits;
use crate::txn::engine::Engine;
use crate::txn::keyspace::OpenKeyspace;
use crate::txn::values::{self, Blocking, LargeValue, MEDIUM_BYTES_MAX, Source};

/// The number of write buffers of a load: one is filled while the other is being written.
const WRITE_BUFFERS: u64 = 2;

/// The smallest write buffer. A buffer also holds at least two pages.
const BUFFER_BYTES_MIN: usize = 64 << 10;

/// Memory that a load needs in addition to its write buffers, in pages: the pending rows of each level, the page that
/// is being packed, and its encoded extent. The root takes the place of the pending rows.
const LOAD_PAGES: u64 = 6;

/// Memory for each run of a merge, in pages. If there is not enough memory for all runs, they are first merged in
/// groups of at least two.
const RUN_PAGES: usize = 12;

/// The memory of a load. It is reserved before the load begins; no more is needed to finish the load.
pub(crate) struct LoadMemory {
    /// The memory of the write buffers and pages.
    packing: Grant,
    sorting: Grant,
    /// The size of one write buffer, in bytes.
    buffer_bytes: usize,
}

/// Builds the tree of one bulk load.
#[derive(Debug)]
pub(crate) struct Loader {
    open: Arc<OpenKeyspace>,
    /// The tree that is being packed: the result or, while rows are being sorted, the next run.
    tree: PackedTree,
    /// `Some` once a key that is lower than its predecessor has arrived.
    sorting: Option<Sorting>,
    /// The size of one write buffer, in bytes.
    buffer_bytes: usize,
    /// The memory of the write buffers and pages.
    _memory: Grant,
    /// The memory for sorting. It moves to `sorting` when sorting begins.
    sorting_memory: Option<Grant>,
    /// The number of free segments in the data file when the load began.
    free_segments_before: u64,
}

/// The state of a load whose keys arrive in any order.
#[derive(Debug)]
struct Sorting {
    buffer: SortBuffer,
    /// The runs, in the order in which their rows arrived.
    runs: Vec<LoadedRows>,
    /// The number of rows that have arrived.
    rows: u64,
}

impl Loader {
    pub(crate) fn new(engine: &Engine, open: Arc<OpenKeyspace>, memory: LoadMemory) -> Loader {
        let LoadMemory { packing, sorting, buffer_bytes } = memory;
        let mut tree = PackedTree::new(engine, &open, buffer_bytes);
        tree.keep_counts(engine);
        let free_segments_before = engine.space.segments.free_count();
        let sorting_memory = Some(sorting);
        Loader { open, tree, sorting: None, buffer_bytes, _memory: packing, sorting_memory, free_segments_before }
    }

    /// Returns the number of rows that have arrived. While keys ascend, rows with equal keys count once.
    pub(crate) fn rows(&self) -> u64 {
        self.sorting.as_ref().map_or(self.tree.rows(), |sorting| sorting.rows)
    }

    /// Returns the number of free segments in the data file when the load began.
    pub(crate) fn free_segments_before(&self) -> u64 {
        self.free_segments_before
    }

    /// Adds a row. If several rows have the same key, the last one wins.
    pub(crate) fn insert(&mut self, engine: &Engine, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() > MEDIUM_BYTES_MAX {
            return self.insert_large(engine, key, &mut &value[..]);
        }
        self.begin_row(engine, key)?;
        if self.sorting.is_some() {
            return self.put_off(engine, key, Waiting::Whole(value));
        }
        self.take_back_equal(key);
        self.tree.push(engine, key, value)
    }

    /// Adds a row with a large value.
    pub(crate) fn insert_large(&mut self, engine: &Engine, key: &[u8], value: &mut dyn Read) -> Result<()> {
        self.begin_row(engine, key)?;
        let value = ready(write_large(engine, &self.open, WaitMode::Blocking, Blocking(value)))?;
        self.insert_written(engine, key, &value)
    }

    /// Adds a row whose large value has already been [written](write_large).
    pub(crate) fn insert_written(&mut self, engine: &Engine, key: &[u8], value: &LargeValue) -> Result<()> {
        self.begin_row(engine, key)?;
        if self.sorting.is_none() {
            let reference = self.tree.adopt(value)?;
            self.take_back_equal(key);
            return self.tree.push_reference(key, reference);
        }
        // Make room before adopting the value. Making room may end a run, and the value must belong to the same run as
        // its row.
        self.reserve_row(engine, key, Waiting::Written(&[0; LARGE_REF_BYTES]))?;
        let reference = self.tree.adopt(value)?;
        self.put_off(engine, key, Waiting::Written(&reference.to_bytes()))
    }

    /// Prepares for a row with this key. If this is the first key out of order, switches to sorting.
    fn begin_row(&mut self, engine: &Engine, key: &[u8]) -> Result<()> {
        self.open.check_key(key)?;
        self.open.tree.check_dropped()?;
        if self.sorting.is_none() && self.tree.last_key().is_some_and(|last| last > key) {
            self.begin_sorting(engine)?;
        }
        Ok(())
    }

    /// Removes the newest row if it has this key.
    fn take_back_equal(&mut self, key: &[u8]) {
        if self.tree.last_key() == Some(key) {
            self.tree.pop();
        }
    }

    /// Switches to sorting. The rows packed so far become the first run. If none of their nodes has been written yet,
    /// they are moved to the sort buffer instead.
    fn begin_sorting(&mut self, engine: &Engine) -> Result<()> {
        crate::coverage::mark!("rows of a bulk load were sorted");
        let memory = self.sorting_memory.take().expect("sorting begins once");
        let (buffer, before) = (SortBuffer::new(memory), self.tree.rows());
        let taken = self.tree.take_rows();
        self.sorting = Some(Sorting { buffer, runs: Vec::new(), rows: 0 });
        let Some(taken) = taken else {
            self.sorting().rows = before;
            return self.end_run(engine);
        };
        for TakenRow { key, rest, is_large } in taken {
            let bytes = &rest[VALUE_LENGTH_BYTES..];
            self.put_off(engine, &key, if is_large { Waiting::Written(bytes) } else { Waiting::Whole(bytes) })?;
        }
        Ok(())
    }

    fn sorting(&mut self) -> &mut Sorting {
        self.sorting.as_mut().expect("rows are sorted")
    }

    /// Adds a row to the sort buffer.
    fn put_off(&mut self, engine: &Engine, key: &[u8], value: Waiting<'_>) -> Result<()> {
        self.reserve_row(engine, key, value)?;
        let Sorting { buffer, rows, .. } = self.sorting();
        buffer.push(key, value);
        *rows += 1;
        Ok(())
    }

    /// Makes room for a row in the sort buffer. If the buffer is full, its rows are spilled as a run.
    fn reserve_row(&mut self, engine: &Engine, key: &[u8], value: Waiting<'_>) -> Result<()> {
        let buffer = &mut self.sorting().buffer;
        let before = buffer.memory_bytes();
        if !buffer.try_reserve(key, value) {
            if !buffer.is_empty() {
                self.drain(engine)?;
                self.end_run(engine)?;
            }
            let is_reserved = self.sorting().buffer.try_reserve(key, value);
            assert!(is_reserved, "an empty buffer refuses a row");
        }
        if self.sorting().buffer.memory_bytes() > before {
            engine.pool.fit_frames(0)?;
        }
        Ok(())
    }

    /// Sorts the rows of the buffer and packs them into the tree.
    fn drain(&mut self, engine: &Engine) -> Result<()> {
        let Loader { tree, sorting, .. } = self;
        let buffer = &mut sorting.as_mut().expect("rows are sorted").buffer;
        let reference_of = |bytes: &[u8]| LargeRef::from_bytes(bytes.try_into().expect("a reference"));
        buffer.sort();
        for (key, value, counts) in buffer.rows() {
            match value {
                Waiting::Whole(value) if counts => tree.push(engine, key, value)?,
                Waiting::Written(reference) if counts => tree.push_reference(key, reference_of(reference))?,
                Waiting::Whole(_) => {}
                Waiting::Written(reference) => tree.discard(reference_of(reference)),
            }
        }
        buffer.clear();
        Ok(())
    }

    /// Completes the tree as a run, and begins the next tree.
    fn end_run(&mut self, engine: &Engine) -> Result<()> {
        assert!(self.tree.rows() > 0, "a run of no rows ends");
        let next = PackedTree::new(engine, &self.open, self.buffer_bytes);
        let run = std::mem::replace(&mut self.tree, next).into_run()?;
        self.sorting().runs.push(run);
        Ok(())
    }

    /// Sorts the rows that are still in the buffer, and merges the runs.
    fn finish_sorting(&mut self, engine: &Engine) -> Result<()> {
        if self.sorting().runs.is_empty() {
            self.tree.keep_counts(engine);
            return self.drain(engine);
        }
        self.drain(engine)?;
        if self.tree.rows() > 0 {
            self.end_run(engine)?;
        }
        self.tree.keep_counts(engine);
        let Sorting { buffer, runs, .. } = self.sorting.take().expect("rows are sorted");
        let memory = buffer.into_memory();
        let page_bytes = self.open.tree.pages.page_bytes();
        let runs_max = (memory.bytes() as usize / (RUN_PAGES * page_bytes)).max(2);
        let new_tree = || PackedTree::new(engine, &self.open, self.buffer_bytes);
        let runs = merging::merge_to(engine, runs, runs_max, memory.bytes(), new_tree)?;
        merging::merge(engine, runs, memory.bytes(), &mut self.tree)
    }

    /// Completes the tree and attaches it. Returns the number of rows. On failure, no trace of the load remains.
    pub(crate) fn finish(mut self, engine: &Engine, ready_commits: &ReadyCommits) -> Result<u64> {
        self.open.tree.check_dropped()?;
        if self.sorting.is_some() {
            self.finish_sorting(engine)?;
        }
        let Loader { open, tree, .. } = self;
        let rows = tree.rows();
        if rows > 0 {
            let placement = if engine.may_replace_root(&open.tree)? { Placement::Tree } else { Placement::Run };
            let (pages, keys, counts) = tree.into_load(placement)?;
            attach_durably(engine, ready_commits, &open, (pages, counts), (rows, &keys))?;
        }
        Ok(rows)
    }
}

/// Writes a large value for a load of this keyspace. If no row ever refers to it, its space is freed.
pub(crate) async fn write_large(
    engine: &Engine,
    open: &OpenKeyspace,
    mode: WaitMode<'_>,
    source: impl Source,
) -> Result<Arc<LargeValue>> {
    let memory = engine.source_memory(mode).await?;
    values::write_large(mode, &open.tree, engine.new_value(), source, memory, &engine.reclaim).await
}

impl LoadMemory {
    /// Reserves memory for a load's buffers and for sorting: up to a quarter of the memory that other loads have left,
    /// so that more loads can begin, but at least the minimum that a load needs. The caller then has to shrink the
    /// buffer pool to its new limit.
    pub(crate) fn reserve(budget: &Arc<Budget>, page_bytes: usize) -> Result<LoadMemory> {
        // This is enough to merge two runs.
        let sorting_bytes = SortBuffer::BYTES_MIN.max(2 * LoadedRows::bytes_min(page_bytes) as u64);
        LoadMemory::reserve_with(budget, page_bytes, sorting_bytes)
    }

    /// Reserves memory for packing rows in key order.
    pub(super) fn reserve_packing(budget: &Arc<Budget>, page_bytes: usize) -> Result<LoadMemory> {
        LoadMemory::reserve_with(budget, page_bytes, 0)
    }

    fn reserve_with(budget: &Arc<Budget>, page_bytes: usize, sorting_bytes: u64) -> Result<LoadMemory> {
        let [mut packing, mut sorting] = [(); 2].map(|()| budget.grant(Account::Loads));
        let left_bytes = packing.limit_bytes().saturating_sub(budget.taken_bytes(Account::Loads));
        let bytes_with = |buffer_bytes: usize| WRITE_BUFFERS * buffer_bytes as u64 + LOAD_PAGES * page_bytes as u64;
        let least = BUFFER_BYTES_MIN.max(2 * page_bytes);
        let mut buffer_bytes = budget.write_buffer_bytes();
        while buffer_bytes > least && bytes_with(buffer_bytes) + sorting_bytes > left_bytes / 4 {
            buffer_bytes /= 2;
        }
        if !packing.resize(bytes_with(buffer_bytes)) || !sorting.resize(sorting_bytes) {
            return Err(Error::loads_in_memory(packing.limit_bytes()));
        }
        Ok(LoadMemory { packing, sorting, buffer_bytes })
    }

    /// Returns the size of one write buffer.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }
}

/// Durably attaches a load whose pages have been written. On failure, frees its pages, unless the load has been
/// attached and only the log failed afterwards.
fn attach_durably(
    engine: &Engine,
    ready_commits: &ReadyCommits,
    open: &OpenKeyspace,
    (mut pages, mut counts): (LoadPages, Option<LoadedCounts>),
    (rows, keys): (u64, &KeyBounds),
) -> Result<()> {
    let tree = &open.tree;
    loop {
        let body = Body::naming_extents(attachment(engine, open, &pages, rows, keys));
        let body_bytes_max = engine.log().body_bytes_max();
        if body.bytes().len() > body_bytes_max {
            let bytes = body.bytes().len() as u64;
            return Err(Error::record_too_large(rows as usize, bytes, body_bytes_max as u64));
        }
        // Sync before appending the record. The record may be written as soon as it is appended, and its write should
        // not have to wait for all of the data.
        engine.space.sync()?;
        if matches!(pages.tables().root, LoadRoot::Run(_)) {
            engine.make_room_for_run(tree)?;
        }
        let changes = 2;
        ready(engine.secure_changes(WaitMode::Blocking, changes));
        let chunk_list_bytes = (pages.tables().images.len() * size_of::<u64>()) as u64;
        let bytes = 2 * tree.pages.page_bytes() as u64 + chunk_list_bytes;
        let _reserved = ready(engine.reserve_space(WaitMode::Blocking, Purpose::Put, bytes))?;
        let _none_ready = match pages.tables().root {
            LoadRoot::Tree(_) => None,
            LoadRoot::Run(_) => Some(ready(ready_commits.none(WaitMode::Blocking, engine.backend.as_ref()))?),
        };
        let timestamp = Cell::new(None);
        let attached = engine.log_ddl(&body, |take_timestamp| {
            engine.attach(tree, pages.tables(), counts.take(), || {
                take_timestamp().inspect(|taken| timestamp.set(Some(*taken)))
            })
        });
        let is_attached = timestamp.get().is_some();
        if is_attached {
            // Release the pages even if the log failed after this timestamp was taken: they now belong to the
            // keyspace.
            pages.release();
        }
        match attached? {
            (Attached::Whole, _) => {
                assert!(is_attached, "a load is attached without a timestamp");
                return Ok(());
            }
            (Attached::NotEmpty, _) => pages.finish_as_run()?,
            (Attached::ManyRuns, _) => {}
            (Attached::Overtaken, _) => unreachable!("a load depends on no earlier rows"),
        }
    }
}

/// Returns the operation that attaches a load, and the one that tells the readers of changes about it.
pub(super) fn attachment(
    engine: &Engine,
    open: &OpenKeyspace,
    pages: &LoadPages,
    rows: u64,
    keys: &KeyBounds,
) -> Vec<u8> {
    let (segments, tables) = (&engine.space.segments, pages.tables());
    let images = tables.images.iter().filter(|(_, address)| !address.is_none());
    let attachment = Attachment {
        rows,
        root: match tables.root {
            LoadRoot::Tree(address) => AttachedRoot::Tree(segments.name(address)),
            LoadRoot::Run(page) => AttachedRoot::Run(page),
        },
        images: images.map(|(chunk, address)| (*chunk as u32, segments.name(*address))).collect(),
        segments: Attachment::runs(pages.segments()),
    };
    let mut body = Vec::new();
    record::encode(open.tree.pages.id, &Operation::Attach(attachment), &mut body);
    let loaded = Operation::Loaded { rows, first_key: &keys.first, last_key: &keys.last };
    record::encode(open.tree.pages.id, &loaded, &mut body);
    body
}
