//! Commits the spilled changes of a transaction.
//!
//! The changes are merged and packed into one tree for each keyspace. All trees are attached as runs by one record,
//! with one timestamp. As with a bulk load, nothing durable refers to them before that.
//!
//! The transaction holds the locks of its rows, but runs take no row locks. So the rows are compared with the runs that
//! were attached since the transaction read them (`Engine::check_runs`), and under the latch once more by timestamp.

use std::cell::Cell;
use std::sync::Arc;

use super::attach::Attached;
use super::loader::{LoadMemory, attachment};
use super::packed_tree::{KeyBounds, PackedTree};
use super::pages::{LoadPages, LoadTables, Placement};
use crate::counts::CountedTree;
use crate::error::{Error, Result};
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, Timestamp};
use crate::seglog::Body;
use crate::space::{EpochGuard, Purpose};
use crate::task::{WaitMode, ready};
use crate::txn::commit::ready::ReadyCommits;
use crate::txn::commit::{Row, RowsSeen};
use crate::txn::engine::Engine;
use crate::txn::keyspace::OpenKeyspace;
use crate::txn::spilled::writes::{SpilledChange, SpilledWrites};
use crate::txn::write_set::{Change, WriteSet};

/// The number of rows of a commit that are compared in one call with the runs that were attached since the transaction
/// read them.
const ROWS_COMPARED: usize = 256;

/// The packed changes of one keyspace.
struct PackedChanges {
    open: Arc<OpenKeyspace>,
    pages: LoadPages,
    keys: KeyBounds,
    rows: u64,
    /// The large values that the changes put: the number of each in the transaction, and its reference.
    large: Vec<(u32, LargeRef)>,
}

/// Commits the spilled changes of a transaction, durably. There must be no others. `open` returns a keyspace, unless it
/// has been dropped. Returns `None` if all changes are undone. On failure, no trace of the commit remains.
pub(crate) fn commit_spilled(
    engine: &Engine,
    ready_commits: &ReadyCommits,
    writes: &WriteSet,
    seen: RowsSeen<'_>,
    open: &dyn Fn(KeyspaceId) -> Result<Arc<OpenKeyspace>>,
) -> Result<Option<Timestamp>> {
    let spilled = writes.spilled().merged(&engine.write_spill)?;
    let mut packed = pack(engine, writes, &spilled, open)?;
    if packed.is_empty() {
        return Ok(None);
    }
    let id = |changes: &PackedChanges| changes.open.tree.pages.id;
    assert!(packed.is_sorted_by(|left, right| id(left) < id(right)), "the changes of a keyspace are packed twice");
    let mut bodies = Vec::new();
    for PackedChanges { open, pages, keys, rows, .. } in &packed {
        bodies.extend(attachment(engine, open, pages, *rows, keys));
    }
    let body = Body::naming_extents(bodies);
    let body_bytes_max = engine.log().body_bytes_max();
    if body.bytes().len() > body_bytes_max {
        let (rows, bytes) = (packed.iter().map(|changes| changes.rows).sum::<u64>(), body.bytes().len() as u64);
        return Err(Error::record_too_large(rows as usize, bytes, body_bytes_max as u64));
    }
    engine.space.sync()?;
    loop {
        let checked = check_rows(engine, &spilled, &packed, seen)?;
        for PackedChanges { open, .. } in &packed {
            engine.make_room_for_run(&open.tree)?;
        }
        ready(engine.secure_changes(WaitMode::Blocking, 2 * packed.len() as u64));
        let list_bytes = |changes: &PackedChanges| (changes.pages.tables().images.len() * size_of::<u64>()) as u64;
        let page_bytes: u64 = packed.iter().map(|changes| 2 * changes.open.tree.pages.page_bytes() as u64).sum();
        let bytes = page_bytes + packed.iter().map(list_bytes).sum::<u64>();
        let _reserved = ready(engine.reserve_space(WaitMode::Blocking, Purpose::Put, bytes))?;
        let _none_ready = ready(ready_commits.none(WaitMode::Blocking, engine.backend.as_ref()))?;
        let timestamp = Cell::new(None);
        let attached = {
            let mut list: Vec<(&CountedTree, &LoadTables)> = Vec::with_capacity(packed.len());
            for PackedChanges { open, pages, .. } in &packed {
                list.push((&open.tree, pages.tables()));
            }
            engine.log_ddl(&body, |take_timestamp| {
                let take = || take_timestamp().inspect(|taken| timestamp.set(Some(*taken)));
                engine.attach_as_runs(&list, checked, take, |epoch_guard| set_references(epoch_guard, writes, &packed))
            })
        };
        if timestamp.get().is_some() {
            // Release the pages even if the log failed after this timestamp was taken: they now belong to the
            // keyspaces.
            packed.iter_mut().for_each(|changes| changes.pages.release());
        }
        match attached? {
            (Attached::Whole, timestamp) => {
                assert!(timestamp.is_some(), "changes are attached without a timestamp");
                crate::coverage::mark!("a spilled transaction was committed");
                return Ok(timestamp);
            }
            (Attached::NotEmpty, _) => unreachable!("changes are attached as a run"),
            (Attached::ManyRuns | Attached::Overtaken, _) => {}
        }
    }
}

/// Sets the references of the large values, so that open scans and readers of the transaction go on to read them.
fn set_references(epoch_guard: &EpochGuard<'_>, writes: &WriteSet, packed: &[PackedChanges]) {
    for changes in packed {
        for &(number, reference) in &changes.large {
            let keyspace = changes.open.tree.pages.id;
            writes.spilled_large(number).set_reference(epoch_guard, keyspace, reference);
        }
    }
}

/// Packs the changes of each keyspace into a tree.
fn pack(
    engine: &Engine,
    writes: &WriteSet,
    spilled: &SpilledWrites,
    open: &dyn Fn(KeyspaceId) -> Result<Arc<OpenKeyspace>>,
) -> Result<Vec<PackedChanges>> {
    let mut packed = Vec::new();
    let mut rows = spilled.rows(&engine.write_spill)?;
    type Tree = Option<(Arc<OpenKeyspace>, PackedTree, LoadMemory)>;
    let mut tree: Tree = None;
    let mut large = Vec::new();
    let finish = |tree: Tree, large: &mut Vec<(u32, LargeRef)>, packed: &mut Vec<PackedChanges>| {
        if let Some((open, tree, _memory)) = tree {
            let rows = tree.rows();
            assert!(rows > 0, "a keyspace is changed without rows");
            let (mut pages, keys, _) = tree.into_load(Placement::Run)?;
            pages.free_buffers();
            packed.push(PackedChanges { open, pages, keys, rows, large: std::mem::take(large) });
        }
        Ok::<_, Error>(())
    };
    while rows.step()? {
        let (keyspace, key) = rows.key();
        let Some(change) = rows.newest() else { continue };
        if tree.as_ref().is_none_or(|(open, ..)| open.tree.pages.id != keyspace) {
            finish(tree.take(), &mut large, &mut packed)?;
            let open = open(keyspace)?;
            let memory = LoadMemory::reserve_packing(&engine.budget, open.tree.pages.page_bytes())?;
            engine.pool.fit_frames(0)?;
            let packed_tree = PackedTree::new(engine, &open, memory.buffer_bytes());
            tree = Some((open, packed_tree, memory));
        }
        let (_, tree, _) = tree.as_mut().expect("just begun");
        match change {
            SpilledChange::Put(value) => tree.push(engine, key, value)?,
            SpilledChange::PutLarge(number) => {
                let reference = tree.adopt(writes.spilled_large(number))?;
                large.push((number, reference));
                tree.push_reference(key, reference)?;
            }
            SpilledChange::Remove => tree.push_removal(key)?,
        }
    }
    finish(tree, &mut large, &mut packed)?;
    Ok(packed)
}

/// Compares the rows with the runs that were attached since the transaction read them. Returns the timestamp up to
/// which runs have been compared, or `None` if the commit depends on no earlier version of its rows.
fn check_rows(
    engine: &Engine,
    spilled: &SpilledWrites,
    packed: &[PackedChanges],
    seen: RowsSeen<'_>,
) -> Result<Option<Timestamp>> {
    let Some(since) = seen.since() else { return Ok(None) };
    // Read first: runs that are attached from here on are looked for again.
    let checked = engine.clock.published();
    if !engine.is_overtaken(Some(since)) {
        return Ok(Some(checked));
    }
    // The rows whose locks are still in the lock table, because the transaction has not changed them.
    ready(engine.check_runs(WaitMode::Blocking, &[], None, seen))?;
    let seen = match seen {
        RowsSeen::Of(_, seen) => *seen,
        seen => seen,
    };
    if !packed.iter().any(|changes| changes.open.tree.pages.runs.are_attached_since(since)) {
        return Ok(Some(checked));
    }
    let mut rows = spilled.rows(&engine.write_spill)?;
    let mut keys: Vec<(KeyspaceId, Vec<u8>)> = Vec::new();
    loop {
        let has_next = rows.step()?;
        if keys.len() == ROWS_COMPARED || !has_next {
            let trees = |id: KeyspaceId| packed.iter().find(|changes| changes.open.tree.pages.id == id);
            let row = |(id, key): &'_ (KeyspaceId, Vec<u8>)| Some((&trees(*id)?.open.tree, key.clone()));
            let found: Vec<(&CountedTree, Vec<u8>)> = keys.iter().filter_map(row).collect();
            let compared = found.iter().map(|(tree, key)| Row { tree, key, change: Change::Remove });
            ready(engine.check_runs(WaitMode::Blocking, &compared.collect::<Vec<_>>(), None, seen))?;
            keys.clear();
        }
        if !has_next {
            return Ok(Some(checked));
        }
        // The commit does not depend on a row whose changes are undone.
        if rows.newest().is_some() {
            let (keyspace, key) = rows.key();
            keys.push((keyspace, key.to_vec()));
        }
    }
}
