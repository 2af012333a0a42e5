//! Attaches a bulk load: its pages become the pages of a keyspace that has no rows, or a run above the keyspace's tree.
//!
//! `space/runs.rs` has the rules for runs. The rest of this text is about loads that replace the root.
//!
//! # Why this is correct
//! - *All or nothing.* One log record attaches the load. It is written once the load's extents are on the device, and
//!   replaying it repeats the steps below. Without the record, nothing refers to the extents.
//! - *No row is hidden.* The keyspace must be empty for all readers: its root is a leaf without rows, and no snapshot
//!   needs a version of a removed row. Both conditions are checked while the epoch latch is held exclusively, so no
//!   commit can change either of them. Empty leaves that removals left behind are merged beforehand.
//! - *Older snapshots see none of its rows.* The load's pages don't record when they were attached; the keyspace does
//!   (`LoadGate::is_loaded_since`). A reader at an earlier timestamp treats the keyspace as empty. If a transaction
//!   that began earlier writes a row of the keyspace, or has read one, it ends in a conflict.
//! - *No writer is overtaken.* A writer locks its row before reading it, and reads it through the root. The load
//!   latches the root's frame before it checks whether a row of the keyspace is locked. So if a writer reads before the
//!   load latches the root, the load sees the writer's lock and becomes a run. If the writer reads later, it sees the
//!   load, which has been published by then.
//! - *No writer skips a check that it needs.* The load announces itself before it checks for locks.
//!   `space/load_gate.rs` describes the whole protocol and why it is safe.

use super::pages::{LoadRoot, LoadTables};
use crate::counts::CountedTree;
use crate::counts::loaded::LoadedCounts;
use crate::error::Result;
use crate::format::{ExtentAddress, KeyspaceId, PageId, Timestamp};
use crate::pool::FrameWrite;
use crate::space::runs::{RUNS_MAX, Run};
use crate::space::table::CHUNK_PAGES;
use crate::space::{ChunkImage, EpochGuard, PageEntry, PageSpace, Purpose};
use crate::task::{WaitMode, ready};
use crate::tree::node::Leaf;
use crate::tree::{Emptied, Target};
use crate::txn::engine::{Engine, Replaying};
use crate::txn::fold::Folding;

/// The outcome of an attempt to attach a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attached {
    /// The load is attached.
    Whole,
    /// The load can't replace the root of its keyspace, because the keyspace is not empty for every reader and writer.
    NotEmpty,
    /// A keyspace has the maximum number of runs.
    ManyRuns,
    /// A run was attached since the rows were last compared with runs.
    Overtaken,
}

impl Engine {
    /// Attaches a load that is complete and on the medium, or changes nothing. Commits wait while this runs: O(pages of
    /// the load). If the load comes with counts and replaces the root, the keyspace keeps counts from then on.
    pub(super) fn attach(
        &self,
        tree: &CountedTree,
        tables: &LoadTables,
        counts: Option<LoadedCounts>,
        take_timestamp: impl FnMut() -> Result<Timestamp>,
    ) -> Result<Attached> {
        match tables.root {
            LoadRoot::Tree(root) => self.attach_as_tree(tree, tables, root, counts, take_timestamp),
            LoadRoot::Run(_) => self.attach_as_runs(&[(tree, tables)], None, take_timestamp, |_| ()),
        }
    }

    /// Attaches trees as runs above the trees of their keyspaces, all by one timestamp, or changes nothing. If
    /// `checked` is set, no run may have been attached since. Calls `on_shown` once the pages belong to the keyspaces.
    pub(super) fn attach_as_runs(
        &self,
        runs: &[(&CountedTree, &LoadTables)],
        checked: Option<Timestamp>,
        mut take_timestamp: impl FnMut() -> Result<Timestamp>,
        on_shown: impl FnOnce(&EpochGuard<'_>),
    ) -> Result<Attached> {
        let epoch_guard = self.space.epoch_latch.exclusive();
        for (tree, _) in runs {
            tree.check_dropped()?;
            if tree.pages.runs.are_many(Run::has_rows, RUNS_MAX) {
                return Ok(Attached::ManyRuns);
            }
        }
        if self.is_overtaken(checked) {
            return Ok(Attached::Overtaken);
        }
        for (tree, _) in runs {
            // The rows of a run are not beneath the pages that the counts describe.
            tree.counts.discard();
        }
        let timestamp = take_timestamp()?;
        assert!(self.clock.published() < timestamp, "a load is attached by a timestamp that is given out");
        // Nothing below this point can fail.
        for (tree, tables) in runs {
            let LoadRoot::Run(root) = tables.root else { unreachable!("a tree is attached as a run") };
            assert!(root != PageId::ROOT, "a run has the root of the tree");
            let _ = self.show_pages(&epoch_guard, &tree.pages, tables);
            self.space.attach_run(&tree.pages, Run::of_rows(timestamp, root, tables.written));
        }
        on_shown(&epoch_guard);
        self.set_newest_run(timestamp);
        // Must follow all of the above: a reader that sees this timestamp looks for the runs.
        self.clock.mark_applied(timestamp);
        assert!(
            runs.iter().all(|(tree, _)| tree.pages.runs.newest() == timestamp),
            "a run was published that no reader finds"
        );
        crate::coverage::mark!("a bulk load was attached as a run");
        Ok(Attached::Whole)
    }

    /// Replaces the root of a keyspace without rows by that of a load.
    fn attach_as_tree(
        &self,
        tree: &CountedTree,
        tables: &LoadTables,
        load_root: ExtentAddress,
        counts: Option<LoadedCounts>,
        mut take_timestamp: impl FnMut() -> Result<Timestamp>,
    ) -> Result<Attached> {
        let (pages, id) = (&tree.pages, tree.pages.id);
        assert!(!load_root.is_none(), "a load without a root is attached");
        // Loop, because the root may be evicted after it is read and before it is latched.
        loop {
            let is_empty_root = tree.pool.waiting(|_| {
                let leaf = tree.read_leaf(Target::At(&[]))?;
                Ok::<_, crate::pool::Stop>(leaf.page() == PageId::ROOT && Leaf::new(&leaf).is_empty())
            })?;
            if !is_empty_root {
                return Ok(Attached::NotEmpty);
            }
            let epoch_guard = self.space.epoch_latch.exclusive();
            tree.check_dropped()?;
            if !pages.runs.is_empty() {
                return Ok(Attached::NotEmpty);
            }
            // Do this before latching the root: threads that count rows hold the counts while they wait for that latch.
            tree.counts.discard();
            let PageEntry::Leaf(frame) = pages.table.load(PageId::ROOT) else { continue };
            let Some(root) = self.pool.frames.write(frame, tree.page_key(PageId::ROOT)) else { continue };
            if pages.table.load(PageId::ROOT) != PageEntry::Leaf(frame) {
                continue;
            }
            let announcement = pages.load_gate.announce();
            if !Leaf::new(&root).is_empty() || !self.is_unseen_and_unlocked(id) {
                return Ok(Attached::NotEmpty);
            }
            self.pool.append_due_image(&epoch_guard, &root)?;
            let timestamp = take_timestamp()?;
            assert!(self.clock.published() < timestamp, "a load is attached by a timestamp that is given out");
            // Nothing below this point can fail.
            announcement.set_loaded_at(timestamp);
            let _ = self.show_pages(&epoch_guard, pages, tables);
            // Do this before replacing the root: a thread that reads the new root, and then the published timestamp,
            // must see that the load is published.
            self.clock.mark_applied(timestamp);
            assert!(self.clock.published() >= timestamp, "the load at {timestamp} can be read before it is published");
            self.replace_root(&epoch_guard, pages, Some(root), load_root);
            // No commit can have changed a row of the load yet, because commits need the epoch latch.
            if let Some(counts) = counts {
                tree.counts.begin_loaded(&epoch_guard, counts, timestamp);
            }
            return Ok(Attached::Whole);
        }
    }

    /// Returns `true` if no reader sees a row that the keyspace once had, and no row of it is locked.
    fn is_unseen_and_unlocked(&self, id: KeyspaceId) -> bool {
        !self.versions.has_any(id)
            && !self.spilled.has_any(id)
            && !self.locks.has_any(id)
            && !self.spilled_locks.has_any_in(id)
    }

    /// Returns `true` if a load can probably replace the keyspace's root. First merges the empty leaves left in the
    /// keyspace by removals. O(leaves), if all of them are empty.
    pub(super) fn may_replace_root(&self, tree: &CountedTree) -> Result<bool> {
        if !tree.pages.runs.is_empty() {
            return Ok(false);
        }
        // A merge changes two nodes, replaces a third, and frees a page.
        let (changes, bytes) = (4, 4 * tree.pages.page_bytes() as u64);
        let emptied = tree.merge_empty_leaves(|| {
            ready(self.secure_changes(WaitMode::Blocking, changes));
            ready(self.reserve_space(WaitMode::Blocking, Purpose::Remove, bytes))
        })?;
        if emptied != Emptied::Whole {
            return Ok(false);
        }
        // Removed rows are kept as versions while a reader may need them. Drop the versions that no reader needs.
        ready(self.show_durable(WaitMode::Blocking, self.clock.published()))?;
        self.free_unneeded_values();
        Ok(self.is_unseen_and_unlocked(tree.pages.id))
    }

    /// Folds the oldest runs of the keyspace until another one can be attached.
    pub(super) fn make_room_for_run(&self, tree: &CountedTree) -> Result<()> {
        while tree.pages.runs.are_many(Run::has_rows, RUNS_MAX) {
            self.fold_next(tree, Folding::Now)?;
        }
        Ok(())
    }
}

impl Engine<Replaying> {
    /// Attaches a load by replaying its log record. The pages have been entered into the page table. A load that
    /// replaces the root drops the keyspace's previous pages, which contained no rows. Estimates take all of its pages
    /// for leaves, because few of them are inner nodes.
    pub(crate) fn replay_attach(
        &self,
        pages: &PageSpace,
        tables: &LoadTables,
        rows: u64,
        timestamp: Timestamp,
    ) -> Result<()> {
        let epoch_guard = self.space.epoch_latch.exclusive();
        // The record does not tell.
        pages.expect_values();
        match tables.root {
            LoadRoot::Tree(root) => {
                self.space.clear_runs(pages);
                self.pool.clear(&epoch_guard, pages)?;
                let page_count = self.show_pages(&epoch_guard, pages, tables);
                pages.leaves_on_disk.set(1 + page_count, rows);
                self.replace_root(&epoch_guard, pages, None, root);
            }
            LoadRoot::Run(root) => {
                let page_count = self.show_pages(&epoch_guard, pages, tables);
                pages.leaves_on_disk.add(page_count as i64, rows as i64);
                self.space.attach_run(pages, Run::of_rows(timestamp, root, tables.written));
            }
        }
        Ok(())
    }
}

impl<L> Engine<L> {
    /// Turns the load's pages into pages of the keyspace. The keyspace's root does not lead to them yet. Frees the page
    /// numbers that the load reserved but did not use. Returns the number of pages.
    fn show_pages(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace, tables: &LoadTables) -> u64 {
        let is_ascending = |left: &(usize, ExtentAddress), right: &(usize, ExtentAddress)| left.0 < right.0;
        debug_assert!(tables.images.is_sorted_by(is_ascending), "a chunk of a load is attached twice");
        let mut page_count = 0;
        for &(chunk, address) in &tables.images {
            for page in (chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES).map(|number| PageId(number as u32)) {
                match pages.table.load(page) {
                    PageEntry::Unattached(address) => {
                        pages.table.store(page, PageEntry::OnDisk(address));
                        page_count += 1;
                    }
                    PageEntry::Reserved => drop(pages.table.free(page)),
                    entry => unreachable!("page {page} of a load became {entry:?}"),
                }
            }
            if !address.is_none() {
                self.space.record_image(epoch_guard, ChunkImage { keyspace: pages.id, chunk, address });
            }
        }
        page_count
    }

    /// Replaces the keyspace's root, which is empty or already freed, with the load's root.
    fn replace_root(
        &self,
        epoch_guard: &EpochGuard<'_>,
        pages: &PageSpace,
        root: Option<FrameWrite<'_>>,
        load_root: ExtentAddress,
    ) {
        if let Some(root) = root {
            self.pool.free_page(epoch_guard, pages, root);
        }
        pages.table.allocate_root();
        self.space.record(epoch_guard.epoch(), pages.id, PageId::ROOT, load_root);
        pages.table.store(PageId::ROOT, PageEntry::OnDisk(load_root));
        crate::coverage::mark!("a bulk load was attached");
    }
}

#[cfg(all(test, drumlin_loom))]
mod models {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;
    use crate::memory::Budget;
    use crate::txn::clock::Clock;

    /// A keyspace to which a load is attached, and the lock of one of its rows.
    struct Rig {
        pages: PageSpace,
        clock: Clock,
        is_locked: Mutex<bool>,
    }

    impl Rig {
        /// Attaches the load unless the row is locked, like [`Engine::attach`].
        fn attach(&self, is_announced: bool) -> bool {
            let announcement = is_announced.then(|| self.pages.load_gate.announce());
            if *self.is_locked.lock().unwrap() {
                return false;
            }
            if let Some(announcement) = &announcement {
                announcement.set_loaded_at(Timestamp(1));
            }
            self.clock.mark_applied(Timestamp(1));
            true
        }

        /// Locks the row. Returns `true` if the caller may assume that the row is unchanged since the snapshot.
        fn lock(&self, may_have_changed: fn(&PageSpace, &Clock) -> bool) -> bool {
            *self.is_locked.lock().unwrap() = true;
            !may_have_changed(&self.pages, &self.clock)
        }
    }

    fn checks(pages: &PageSpace, clock: &Clock) -> bool {
        pages.may_have_changed(Timestamp(0), || clock.published())
    }

    /// Runs a load concurrently with a transaction that began before it. If the load is attached, the transaction must
    /// not assume that its row is unchanged.
    fn explore(is_announced: bool, may_have_changed: fn(&PageSpace, &Clock) -> bool) {
        loom::model(move || {
            let rig = Arc::new(Rig {
                pages: PageSpace::new(KeyspaceId(1), 4096, "k", &Budget::of_pages(1 << 20)),
                clock: Clock::new(Timestamp(0)),
                is_locked: Mutex::new(false),
            });
            let shared = Arc::clone(&rig);
            let load = thread::spawn(move || shared.attach(is_announced));
            let is_unchanged = rig.lock(may_have_changed);
            let is_attached = load.join().unwrap();
            assert!(!(is_attached && is_unchanged), "a row of the load is taken for unchanged");
        });
    }

    /// A transaction locks a row while a load is being attached. Either the transaction sees the load, or the load sees
    /// the lock.
    #[test]
    fn loom_a_load_is_seen_by_those_who_lock_its_rows() {
        explore(true, checks);
    }

    /// Without the announcement the model fails, which proves that it can find this bug.
    #[test]
    #[should_panic(expected = "taken for unchanged")]
    fn loom_a_load_that_is_not_announced_is_found() {
        explore(false, checks);
    }

    /// The model also fails if the transaction checks for the announcement too late.
    #[test]
    #[should_panic(expected = "taken for unchanged")]
    fn loom_an_announcement_that_is_looked_for_late_is_found() {
        explore(true, |pages, clock| {
            clock.published() > Timestamp(0) || pages.may_have_changed(Timestamp(0), || Timestamp(0))
        });
    }
}
