//! Attaching a bulk load: its pages become those of a keyspace that has no rows.
//!
//! # Why that is right
//! - *All or nothing.* One record of the log attaches the load. It is written when the load's extents are on the
//!   medium, and replaying it does what is done here. Without it nothing names the extents.
//! - *No row is hidden.* The keyspace must be empty for all readers: its root is a leaf without rows, and no snapshot
//!   needs a version of a row that it had. Both are looked at with the epoch latch held exclusively, so that no commit
//!   changes it.
//! - *Older snapshots see none of its rows.* Its pages say nothing of when they came. The keyspace does
//!   ([`PageSpace::is_loaded_since`]): a reader at an earlier timestamp takes it for what it was, empty; a transaction
//!   that began earlier and writes a row of it, or has read any, ends in a conflict.
//! - *No writer is overtaken.* A writer locks its row before it looks at it. It looks by way of the root, whose frame
//!   is latched here before it is asked whether a row of the keyspace is locked. So one that looked before holds its
//!   lock, and the load is not attached; one that looks later sees the load, which is published by then.
//! - *No writer is spared the look.* Where nothing was published since its snapshot, a writer takes its row for
//!   unchanged without a look: who changes a row has it locked until the change is published. A load locks no rows, so
//!   it says [before it asks for locks](PageSpace::begin_attaching) that it is being attached, and a writer that finds
//!   it so looks.

use super::Engine;
use super::replay::Replaying;
use crate::error::Result;
use crate::format::{ExtentAddress, PageId, Timestamp};
use crate::pool::FrameWrite;
use crate::pool::load::LoadTables;
use crate::space::table::CHUNK_PAGES;
use crate::space::{ChunkImage, EpochGuard, PageEntry, PageSpace};
use crate::tree::counts::LoadedCounts;
use crate::tree::node::Leaf;
use crate::tree::{Target, Tree};
use crate::txn::clock::Clock;

/// Attempts to find the root in memory, which may be evicted again before it is latched.
const ATTEMPTS_MAX: u32 = 100;

/// Returns `false` if nothing of the keyspace that a caller has locked was published since the snapshot, and no bulk
/// load that did not see its lock is going to be.
#[inline]
pub(super) fn may_have_changed(pages: &PageSpace, clock: &Clock, snapshot: Timestamp) -> bool {
    // In this order: an attachment ends after it is published.
    pages.is_attaching() || clock.published() > snapshot
}

impl Engine {
    /// Attaches a load that is complete and on the medium to a keyspace that has no row for any reader, and of which no
    /// transaction has a row locked. Returns `false` if that is not so; nothing has changed then. Commits wait
    /// meanwhile: O(pages of the load). The keyspace goes on with the load's counts, if it has any.
    pub(crate) fn try_attach(
        &self,
        tree: &Tree,
        tables: &LoadTables,
        counts: Option<LoadedCounts>,
        mut take_timestamp: impl FnMut() -> Result<Timestamp>,
    ) -> Result<bool> {
        let (pages, id) = (&tree.pages, tree.pages.id);
        assert!(!tables.root.is_none(), "a load without a root is attached");
        for _ in 0..ATTEMPTS_MAX {
            let is_empty_root = tree.waiting(|_| {
                let leaf = tree.read_leaf(Target::At(&[]))?;
                Ok::<_, crate::pool::Stop>(leaf.page() == PageId::ROOT && Leaf::new(&leaf).is_empty())
            })?;
            if !is_empty_root {
                return Ok(false);
            }
            let epoch_guard = self.space.epoch_latch.exclusive();
            tree.check_dropped()?;
            // Before the root is latched, whose latch those wait for who count.
            tree.counts.forget();
            let PageEntry::Leaf(frame) = pages.table.load(PageId::ROOT) else { continue };
            let Some(root) = self.pool.frames.write(frame, tree.page_key(PageId::ROOT)) else { continue };
            if pages.table.load(PageId::ROOT) != PageEntry::Leaf(frame) {
                continue;
            }
            let _attaching = pages.begin_attaching();
            if !Leaf::new(&root).is_empty()
                || self.versions.has_any(id)
                || self.spilled.has_any(id)
                || self.locks.has_any(id)
            {
                return Ok(false);
            }
            self.pool.append_owed(&epoch_guard, &root)?;
            let timestamp = take_timestamp()?;
            assert!(self.clock.published() < timestamp, "a load is attached by a timestamp that is given out");
            // From here on nothing fails.
            pages.note_load(timestamp);
            self.show_pages(&epoch_guard, pages, tables);
            // Before the root can be read: a thread that reads it and what is published sees the load.
            self.clock.mark_applied(timestamp);
            assert!(self.clock.published() >= timestamp, "the load at {timestamp} can be read before it is published");
            self.replace_root(&epoch_guard, pages, Some(root), tables);
            // No commit has changed a row of the load yet: that takes the epoch latch.
            if let Some(counts) = counts {
                tree.counts.begin_loaded(&epoch_guard, counts, timestamp);
            }
            return Ok(true);
        }
        Ok(false)
    }
}

impl Engine<Replaying> {
    /// Attaches a load as the log says, reading its tables' chunks by `read`. What the keyspace had is gone: it had no
    /// rows. Returns `false` if these are not the tables of a load.
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
    /// Makes the load's pages those of the keyspace; its root does not lead to them yet. Page numbers that it took and
    /// did not use are free.
    fn show_pages(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace, tables: &LoadTables) {
        let is_ascending = |left: &(usize, ExtentAddress), right: &(usize, ExtentAddress)| left.0 < right.0;
        debug_assert!(tables.images.is_sorted_by(is_ascending), "a chunk of a load is attached twice");
        for &(chunk, address) in &tables.images {
            for page in (chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES).map(|number| PageId(number as u32)) {
                match pages.table.load(page) {
                    PageEntry::Unattached(address) => pages.table.store(page, PageEntry::OnDisk(address)),
                    PageEntry::Reserved => drop(pages.table.free(page)),
                    // Of a load that is replayed.
                    entry => assert!(entry == PageEntry::Free, "page {page} of a load became {entry:?}"),
                }
            }
            if !address.is_none() {
                self.space.record_image(epoch_guard, ChunkImage { keyspace: pages.id, chunk, address });
            }
        }
    }

    /// Puts the load's root in place of the keyspace's, which is empty, or gone already.
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

    /// A keyspace that a load is attached to, and the lock of one of its rows.
    struct Rig {
        pages: PageSpace,
        clock: Clock,
        is_locked: Mutex<bool>,
    }

    impl Rig {
        /// Attaches the load unless the row is locked, like [`Engine::try_attach`].
        fn attach(&self, is_announced: bool) -> bool {
            let _attaching = is_announced.then(|| self.pages.begin_attaching());
            if *self.is_locked.lock().unwrap() {
                return false;
            }
            self.clock.mark_applied(Timestamp(1));
            true
        }

        /// Locks the row; returns `true` if it is taken for unchanged since the snapshot.
        fn lock(&self, may_have_changed: fn(&PageSpace, &Clock, Timestamp) -> bool) -> bool {
            *self.is_locked.lock().unwrap() = true;
            !may_have_changed(&self.pages, &self.clock, Timestamp(0))
        }
    }

    /// A load and a transaction from before it: no row is taken for unchanged that the load has put.
    fn explore(is_announced: bool, may_have_changed: fn(&PageSpace, &Clock, Timestamp) -> bool) {
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

    /// A transaction that has locked a row sees that a load is being attached, or the load sees the lock.
    #[test]
    fn loom_a_load_is_seen_by_those_who_lock_its_rows() {
        explore(true, may_have_changed);
    }

    /// Without the announcement the model fails, so it can find the bug.
    #[test]
    #[should_panic(expected = "taken for unchanged")]
    fn loom_a_load_that_is_not_announced_is_found() {
        explore(false, may_have_changed);
    }

    /// So it does where the announcement is looked for too late.
    #[test]
    #[should_panic(expected = "taken for unchanged")]
    fn loom_an_announcement_that_is_looked_for_late_is_found() {
        explore(true, |pages, clock, snapshot| clock.published() > snapshot || pages.is_attaching());
    }
}
