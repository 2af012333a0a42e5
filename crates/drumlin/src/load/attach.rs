//! Attaches a bulk load: its pages become the pages of a keyspace that has no rows.
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
//!   load latches the root, the load sees the writer's lock and is refused. If the writer reads later, it sees the
//!   load, which has been published by then.
//! - *No writer skips a check that it needs.* The load announces itself before it checks for locks.
//!   `space/load_gate.rs` describes the whole protocol and why it is safe.

use super::pages::LoadTables;
use crate::counts::CountedTree;
use crate::counts::loaded::LoadedCounts;
use crate::error::{Error, Result};
use crate::format::{ExtentAddress, PageId, Timestamp};
use crate::pool::FrameWrite;
use crate::space::table::CHUNK_PAGES;
use crate::space::{ChunkImage, EpochGuard, PageEntry, PageSpace, Purpose};
use crate::task::{WaitMode, ready};
use crate::tree::node::Leaf;
use crate::tree::{Emptied, Target};
use crate::txn::engine::{Engine, Replaying};

/// Reasons for refusing a load after it has begun. They are reported in [`Error::KeyspaceNotEmpty`].
const HAS_GOT_ROWS: &str = "it received rows during the load";
const IS_BUSY: &str = "other calls were changing it while its empty pages were merged";
const IS_SEEN: &str = "a snapshot still sees rows that were removed from it";
const IS_LOCKED: &str = "a transaction has locked a row of it";

impl Engine {
    /// Attaches a complete load whose pages are on the device. Fails without changing anything if a reader can still
    /// see a row of the keyspace, or if a row of the keyspace is locked. The keyspace's root must be a leaf. Commits
    /// wait while this runs: O(pages of the load). If the load has counts, the keyspace maintains counts from then on.
    pub(crate) fn attach(
        &self,
        tree: &CountedTree,
        tables: &LoadTables,
        counts: Option<LoadedCounts>,
        mut take_timestamp: impl FnMut() -> Result<Timestamp>,
    ) -> Result<()> {
        let (pages, id) = (&tree.pages, tree.pages.id);
        assert!(!tables.root.is_none(), "a load without a root is attached");
        // Loop, because the root may be evicted after it is read and before it is latched.
        loop {
            let is_empty_root = tree.pool.waiting(|_| {
                let leaf = tree.read_leaf(Target::At(&[]))?;
                Ok::<_, crate::pool::Stop>(leaf.page() == PageId::ROOT && Leaf::new(&leaf).is_empty())
            })?;
            if !is_empty_root {
                return Err(refused(tree, HAS_GOT_ROWS));
            }
            let epoch_guard = self.space.epoch_latch.exclusive();
            tree.check_dropped()?;
            // Do this before latching the root: threads that count rows hold the counts while they wait for that latch.
            tree.counts.discard();
            let PageEntry::Leaf(frame) = pages.table.load(PageId::ROOT) else { continue };
            let Some(root) = self.pool.frames.write(frame, tree.page_key(PageId::ROOT)) else { continue };
            if pages.table.load(PageId::ROOT) != PageEntry::Leaf(frame) {
                continue;
            }
            let announcement = pages.load_gate.announce();
            if !Leaf::new(&root).is_empty() {
                return Err(refused(tree, HAS_GOT_ROWS));
            }
            if self.versions.has_any(id) || self.spilled.has_any(id) {
                return Err(refused(tree, IS_SEEN));
            }
            if self.locks.has_any(id) {
                return Err(refused(tree, IS_LOCKED));
            }
            self.pool.append_due_image(&epoch_guard, &root)?;
            let timestamp = take_timestamp()?;
            assert!(self.clock.published() < timestamp, "a load is attached by a timestamp that is given out");
            // Nothing below this point can fail.
            announcement.set_loaded_at(timestamp);
            self.show_pages(&epoch_guard, pages, tables);
            // Do this before replacing the root: a thread that reads the new root, and then the published timestamp,
            // must see that the load is published.
            self.clock.mark_applied(timestamp);
            assert!(self.clock.published() >= timestamp, "the load at {timestamp} can be read before it is published");
            self.replace_root(&epoch_guard, pages, Some(root), tables);
            // No commit can have changed a row of the load yet, because commits need the epoch latch.
            if let Some(counts) = counts {
                tree.counts.begin_loaded(&epoch_guard, counts, timestamp);
            }
            return Ok(());
        }
    }

    /// Merges the empty leaves that removals have left in the keyspace, so that a load can be attached. Fails if the
    /// keyspace has a row. O(leaves).
    pub(super) fn merge_before_load(&self, tree: &CountedTree) -> Result<()> {
        // A merge changes two nodes, replaces a third, and frees a page.
        let (changes, bytes) = (4, 4 * tree.pages.page_bytes as u64);
        let emptied = tree.merge_empty_leaves(|| {
            ready(self.secure_changes(WaitMode::Blocking, changes));
            ready(self.reserve_space(WaitMode::Blocking, Purpose::Remove, bytes))
        })?;
        match emptied {
            Emptied::Whole => Ok(()),
            Emptied::HasRows => Err(refused(tree, HAS_GOT_ROWS)),
            Emptied::Busy => Err(refused(tree, IS_BUSY)),
        }
    }
}

fn refused(tree: &CountedTree, reason: &'static str) -> Error {
    Error::KeyspaceNotEmpty { keyspace: tree.pages.name().to_string(), reason }
}

impl Engine<Replaying> {
    /// Attaches a load by replaying its log record. Calls `read` to read the chunks of its page table. Drops the
    /// keyspace's previous pages, which contained no rows. Returns `false` if the tables can't belong to a load.
    pub(crate) fn replay_attach(
        &self,
        pages: &PageSpace,
        tables: &LoadTables,
        read: impl Fn(usize, ExtentAddress) -> Result<Vec<ExtentAddress>>,
    ) -> Result<bool> {
        let epoch_guard = self.space.epoch_latch.exclusive();
        self.pool.clear(&epoch_guard, pages)?;
        for &(chunk, address) in &tables.images {
            if !pages.table.restore_unattached(chunk, &read(chunk, address)?) {
                return Ok(false);
            }
        }
        self.show_pages(&epoch_guard, pages, tables);
        self.replace_root(&epoch_guard, pages, None, tables);
        Ok(true)
    }
}

impl<L> Engine<L> {
    /// Turns the load's pages into pages of the keyspace. The keyspace's root does not lead to them yet. Frees the page
    /// numbers that the load reserved but did not use.
    fn show_pages(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace, tables: &LoadTables) {
        let is_ascending = |left: &(usize, ExtentAddress), right: &(usize, ExtentAddress)| left.0 < right.0;
        debug_assert!(tables.images.is_sorted_by(is_ascending), "a chunk of a load is attached twice");
        for &(chunk, address) in &tables.images {
            for page in (chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES).map(|number| PageId(number as u32)) {
                match pages.table.load(page) {
                    PageEntry::Unattached(address) => pages.table.store(page, PageEntry::OnDisk(address)),
                    PageEntry::Reserved => drop(pages.table.free(page)),
                    // During replay, the unused entries are already free.
                    entry => assert!(entry == PageEntry::Free, "page {page} of a load became {entry:?}"),
                }
            }
            if !address.is_none() {
                self.space.record_image(epoch_guard, ChunkImage { keyspace: pages.id, chunk, address });
            }
        }
    }

    /// Replaces the keyspace's root, which is empty or already freed, with the load's root.
    fn replace_root(
        &self,
        epoch_guard: &EpochGuard<'_>,
        pages: &PageSpace,
        root: Option<FrameWrite<'_>>,
        tables: &LoadTables,
    ) {
        if let Some(root) = root {
            self.pool.free_page(epoch_guard, pages, root);
        }
        pages.table.allocate_root();
        self.space.record(epoch_guard.epoch(), pages.id, PageId::ROOT, tables.root);
        pages.table.store(PageId::ROOT, PageEntry::OnDisk(tables.root));
        crate::coverage::mark!("a bulk load was attached");
    }
}

#[cfg(all(test, drumlin_loom))]
mod models {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;
    use crate::format::KeyspaceId;
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
            let _attaching = is_announced.then(|| self.pages.load_gate.announce());
            if *self.is_locked.lock().unwrap() {
                return false;
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
        pages.load_gate.may_have_changed(Timestamp(0), || clock.published())
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
            clock.published() > Timestamp(0) || pages.load_gate.may_have_changed(Timestamp(0), || Timestamp(0))
        });
    }
}
