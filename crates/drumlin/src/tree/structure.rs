//! Splits and merges. Each of these structure changes leaves the tree in a valid state.

use super::node::{Inner, InnerMut, Leaf, LeafChange, LeafMut, Node, separator_between};
use super::{RowObserver, Target, Tree, check_node};
use crate::error::Result;
use crate::format::PageId;
use crate::format::extent::{KIND_OFFSET, Kind};
use crate::pool::{FrameWrite, Needs, NewFrame, Provider, Residency, Stop};
use crate::space::{EpochGuard, PageEntry};
use crate::task::{Boxed, WaitMode};

/// A row to be put into a leaf or removed from it: its key, and the length of its value, or `None` for a removal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming<'k> {
    pub(crate) key: &'k [u8],
    pub(crate) value_bytes: Option<usize>,
}

impl Incoming<'_> {
    /// Returns the maximum number of bytes that the row can occupy in its leaf, not counting its slot.
    pub(crate) fn row_bytes(&self) -> usize {
        let value_bytes = |value_bytes| crate::format::node::VALUE_LENGTH_BYTES + value_bytes;
        self.value_bytes.map_or(0, |bytes| self.key.len() + value_bytes(bytes))
    }
}

/// The maximum number of frames that a structure change needs.
pub(crate) const FRAMES_NEEDED: usize = 3;

/// The overhead of a row, in addition to its key and value: its slot, and the length of its value.
const ROW_OVERHEAD_BYTES: usize = crate::format::node::SLOT_BYTES + crate::format::node::VALUE_LENGTH_BYTES;

/// Nodes are merged only if one of them is less than a quarter full and the merged node has at least a quarter free.
/// This keeps splits and merges from undoing each other.
const UNDERFULL_SHARE: usize = 4;

/// The maximum number of consecutive passes over empty leaves in which nothing could be merged, because other threads
/// kept changing the tree.
const IDLE_PASSES_MAX: u32 = 100;

/// The outcome of merging the leaves of a tree without rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Emptied {
    /// The root is an empty leaf.
    Whole,
    /// The tree has a row.
    HasRows,
    /// In [`IDLE_PASSES_MAX`] passes, nothing could be merged because other threads were changing the tree.
    Busy,
}

/// A change of the fences of latched pages. Dropping it tells the observer that all new nodes have been published.
pub(super) struct FenceChange<'t, const N: usize> {
    observer: &'t dyn RowObserver,
    pages: [PageId; N],
}

impl<const N: usize> Drop for FenceChange<'_, N> {
    fn drop(&mut self) {
        self.observer.end_change(&self.pages);
    }
}

/// The condition under which two neighbours are merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Merging {
    /// At least one is underfull, and the merged node leaves a quarter of the page free.
    Underfull,
    /// Both fit into one page.
    AllThatFit,
}

/// The outcome of one attempt to make room.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Progress {
    /// There is room for all rows below this key, or for all rows if it is `None`.
    Done(Option<Vec<u8>>),
    /// Try again: a node above the leaf was split, the leaf needs more splits, or another thread changed the tree.
    Again,
}

/// The reason for splitting a leaf.
#[derive(Clone, Copy)]
enum SplitFor<'r> {
    /// The leaf has no room for rows that it covers. The rows ascend.
    Rows(&'r [Incoming<'r>]),
    /// A leaf has to begin at this key.
    Boundary(&'r [u8]),
}

impl SplitFor<'_> {
    /// Returns a key that the leaf covers.
    fn key(&self) -> &[u8] {
        match self {
            SplitFor::Rows(rows) => rows[0].key,
            SplitFor::Boundary(key) => key,
        }
    }

    /// Returns the separator of the next split, or `None` if none is needed.
    fn plan(&self, leaf: &Leaf<'_>) -> Option<Vec<u8>> {
        match *self {
            SplitFor::Rows(rows) => plan_split(leaf, rows),
            SplitFor::Boundary(key) if leaf.lower_fence().unwrap_or_default() == key => None,
            SplitFor::Boundary(key) if sides_fit(leaf, key) => Some(key.to_vec()),
            // One half has no room for such a long fence in addition to its rows. Divide the rows first.
            SplitFor::Boundary(key) => {
                let value_bytes = crate::format::node::inline_bytes_max(leaf.page_bytes(), key.len());
                Some(split_around(leaf, key, value_bytes))
            }
        }
    }

    /// Returns the progress that a split into these two leaves made.
    fn progress(&self, left: &Leaf<'_>, right: &Leaf<'_>) -> Progress {
        match *self {
            SplitFor::Rows(rows) => progress_after_split(left, right, rows),
            SplitFor::Boundary(key) if right.lower_fence() == Some(key) => Progress::Done(None),
            SplitFor::Boundary(_) => Progress::Again,
        }
    }
}

impl Tree {
    /// Splits a leaf so that one begins at this key, unless one does already. Waits for pages and frames.
    pub(crate) fn split_at<'a>(&'a self, mode: WaitMode<'a>, key: &'a [u8]) -> Boxed<'a, Result<()>> {
        Box::pin(async move {
            let mut frames = Vec::with_capacity(FRAMES_NEEDED);
            let mut provider = Provider::new(mode, &self.pool);
            loop {
                match self.try_split(SplitFor::Boundary(key), &mut frames) {
                    Ok(Progress::Done(_)) => return Ok(()),
                    Ok(Progress::Again) => self.check_dropped()?,
                    Err(stop) => self.provide_split(&mut provider, stop, &mut frames).await?,
                }
            }
        })
    }

    /// Provides the page or frame that a split lacked.
    async fn provide_split<'p>(
        &'p self,
        provider: &mut Provider<'p>,
        stop: Stop,
        frames: &mut Vec<NewFrame<'p>>,
    ) -> Result<()> {
        match stop {
            Stop::Error(error) => return Err(error),
            Stop::Needs(Needs::Frame(page_bytes)) => {
                while frames.len() < FRAMES_NEEDED {
                    frames.push(provider.frame(page_bytes).await?);
                }
            }
            Stop::Needs(needs) => drop(provider.provide(&needs).await?),
        }
        Ok(())
    }

    /// Splits leaves until each has room for all of the rows that it covers. The rows must ascend. Waits for pages and
    /// frames.
    pub(crate) fn split_for<'a>(&'a self, mode: WaitMode<'a>, mut rows: &'a [Incoming<'a>]) -> Boxed<'a, Result<()>> {
        Box::pin(async move {
            debug_assert!(rows.is_sorted_by(|left, right| left.key < right.key), "rows out of order");
            let mut frames = Vec::with_capacity(FRAMES_NEEDED);
            let mut provider = Provider::new(mode, &self.pool);
            loop {
                match self.try_split(SplitFor::Rows(rows), &mut frames) {
                    Ok(Progress::Done(None)) => return Ok(()),
                    Ok(Progress::Done(Some(upper))) => {
                        assert!(rows[0].key < &upper[..], "a leaf has room that does not cover the row");
                        rows = &rows[rows.partition_point(|row| row.key < &upper[..])..];
                        if rows.is_empty() {
                            return Ok(());
                        }
                    }
                    // If the keyspace has been dropped, its nodes are gone, and retrying would never end.
                    Ok(Progress::Again) => self.check_dropped()?,
                    Err(stop) => self.provide_split(&mut provider, stop, &mut frames).await?,
                }
            }
        })
    }

    fn try_split<'p>(&'p self, cause: SplitFor<'_>, frames: &mut Vec<NewFrame<'p>>) -> Result<Progress, Stop> {
        if frames.len() < FRAMES_NEEDED {
            return Err(Needs::Frame(self.pages.page_bytes()).into());
        }
        let key = cause.key();
        let epoch_guard = self.pool.space.epoch_latch.shared();
        let mut path: Vec<(PageId, bool)> = Vec::new();
        let found = self.descend(Target::At(key), |page, _, inner, _| {
            path.push((page, inner.fits_separator(self.key_bytes_max())));
        })?;
        let Some((leaf_page, _)) = found else { return Ok(Progress::Again) };
        // Make room from the top down: split the highest full node, since its parent still has room.
        if let Some(full) = path.iter().position(|&(_, fits)| !fits) {
            return if full == 0 {
                self.grow_root(&epoch_guard, frames)
            } else {
                self.split_inner(&epoch_guard, path[full - 1].0, path[full].0, key, frames)
            };
        }
        match path.last() {
            None => self.split_root_leaf(&epoch_guard, cause, frames),
            Some(&(parent, _)) => self.split_leaf(&epoch_guard, parent, leaf_page, cause, frames),
        }
    }

    /// Tells the observer that the fences of these pages are about to change. The caller has latched the pages.
    pub(super) fn begin_change<const N: usize>(&self, pages: [PageId; N]) -> FenceChange<'_, N> {
        debug_assert!(pages.iter().all(|page| *page != PageId::ROOT), "the root has other fences");
        self.observer.begin_change(&pages);
        FenceChange { observer: &*self.observer, pages }
    }

    /// Returns the inner node in `page`, latched exclusively, which keeps other threads from replacing it.
    pub(super) fn latch_inner(&self, page: PageId) -> Option<FrameWrite<'_>> {
        let PageEntry::Immutable(frame) = self.pages.table.load(page) else { return None };
        let write = self.pool.frames.write(frame, self.page_key(page))?;
        let is_there = self.pages.table.load(page) == PageEntry::Immutable(frame);
        // The page number may have been reused for a large value.
        let is_inner = is_there && write[KIND_OFFSET] == Kind::Inner as u8;
        debug_assert!(
            !is_inner || Node::new(&write).level() > 0,
            "page {page} is a leaf, and its entry says otherwise"
        );
        is_inner.then_some(write)
    }

    pub(super) fn latch_leaf(&self, page: PageId) -> Option<FrameWrite<'_>> {
        let PageEntry::Leaf(frame) = self.pages.table.load(page) else { return None };
        let write = self.pool.frames.write(frame, self.page_key(page))?;
        let is_there = self.pages.table.load(page) == PageEntry::Leaf(frame);
        debug_assert!(!is_there || Node::new(&write).level() == 0, "page {page} is no leaf, as its entry says");
        is_there.then_some(write)
    }

    /// Replaces an inner node by publishing a changed copy.
    pub(super) fn replace(&self, epoch_guard: &EpochGuard<'_>, page: PageId, old: FrameWrite<'_>, new: NewFrame<'_>) {
        assert!(old.page() == page, "a node is replaced at another's number");
        debug_assert_eq!(check_node(&new, Kind::Inner), Ok(()), "the copy of a node is not sound");
        let lower_fences = (Node::new(&old).lower_fence(), Node::new(&new).lower_fence());
        assert!(lower_fences.0 == lower_fences.1, "a node is replaced by one that begins elsewhere");
        let is_level_kept = Node::new(&new).level() == Node::new(&old).level();
        assert!(is_level_kept || page == PageId::ROOT, "page {page} is replaced by a node of another level");
        new.header().set_address(old.header().address());
        new.set_dirty(epoch_guard.epoch());
        let frame = new.into_published(self.page_key(page));
        self.pages.table.store(page, PageEntry::Immutable(frame));
        old.unlink(Residency::Immutable);
    }

    /// Publishes a new page. No node refers to it yet.
    fn publish(&self, epoch_guard: &EpochGuard<'_>, mut new: NewFrame<'_>, kind: Kind) -> PageId {
        new[KIND_OFFSET] = kind as u8;
        debug_assert_eq!(check_node(&new, kind), Ok(()), "a new node is not sound");
        let page = self.pages.table.allocate(1);
        assert!(page != PageId::ROOT, "the root's number is given out again");
        self.observer.page_created(page);
        new.set_dirty(epoch_guard.epoch());
        let frame = new.into_published(self.page_key(page));
        self.pages
            .table
            .store(page, if kind == Kind::Leaf { PageEntry::Leaf(frame) } else { PageEntry::Immutable(frame) });
        page
    }

    fn split_leaf<'p>(
        &'p self,
        epoch_guard: &EpochGuard<'_>,
        parent_page: PageId,
        leaf_page: PageId,
        cause: SplitFor<'_>,
        frames: &mut Vec<NewFrame<'p>>,
    ) -> Result<Progress, Stop> {
        let key = cause.key();
        let Some(parent) = self.latch_inner(parent_page) else { return Ok(Progress::Again) };
        let inner = Inner::new(&parent);
        if !inner.covers(key) || inner.child(inner.child_for(key)) != leaf_page {
            return Ok(Progress::Again);
        }
        let Some(mut leaf) = self.latch_leaf(leaf_page) else { return Ok(Progress::Again) };
        debug_assert_eq!(inner.level(), 1, "a leaf is a child of a node above the lowest");
        if !Node::new(&leaf).covers(key) {
            return Ok(Progress::Again);
        }
        let Some(separator) = cause.plan(&Leaf::new(&leaf)) else {
            return Ok(Progress::Done(Leaf::new(&leaf).upper_fence().map(<[u8]>::to_vec)));
        };
        if !inner.fits_separator(separator.len()) {
            return Ok(Progress::Again);
        }
        if leaf.header().dirty().is_some_and(|epoch| epoch != epoch_guard.epoch()) {
            crate::coverage::mark!("a page split that a checkpoint had not copied yet");
        }
        self.pool.prepare_change(epoch_guard, &parent)?;
        self.pool.prepare_change(epoch_guard, &leaf)?;

        let _change = self.begin_change([leaf_page]);
        let mut right = frames.pop().expect("counted");
        let at = Leaf::new(&leaf).lower_bound(&separator);
        self.pool.mark_dirty(epoch_guard, &leaf);
        LeafMut::new(leaf.leaf_mut(&self.pages.table)).split_to(at, &separator, &mut right);
        debug_assert_eq!(check_node(&leaf, Kind::Leaf), Ok(()), "the left half of a leaf is not sound");
        let progress = cause.progress(&Leaf::new(&leaf), &Leaf::new(&right));
        let right_page = self.publish(epoch_guard, right, Kind::Leaf);
        self.observer.rows_moved(&self.pages, leaf_page, right_page, Some(&separator));

        let mut copy = frames.pop().expect("counted");
        copy.copy_from_slice(&parent);
        let index = Inner::new(&parent).child_for(&separator) + 1;
        InnerMut::new(&mut copy).insert_child(index, &separator, right_page).expect("room was checked");
        self.replace(epoch_guard, parent_page, parent, copy);
        Ok(progress)
    }

    fn split_root_leaf<'p>(
        &'p self,
        epoch_guard: &EpochGuard<'_>,
        cause: SplitFor<'_>,
        frames: &mut Vec<NewFrame<'p>>,
    ) -> Result<Progress, Stop> {
        let Some(root) = self.latch_leaf(PageId::ROOT) else { return Ok(Progress::Again) };
        let Some(separator) = cause.plan(&Leaf::new(&root)) else { return Ok(Progress::Done(None)) };
        let fences = (Node::new(&root).lower_fence(), Node::new(&root).upper_fence());
        assert!(fences == (None, None), "a root bounds the keys: {fences:?}");
        self.pool.prepare_removal(epoch_guard, &root)?;

        let [mut left, mut right, mut top] = std::array::from_fn(|_| frames.pop().expect("counted"));
        left.copy_from_slice(&root);
        let at = Leaf::new(&left).lower_bound(&separator);
        LeafMut::new(&mut left).split_to(at, &separator, &mut right);
        let left = self.publish(epoch_guard, left, Kind::Leaf);
        let right = self.publish(epoch_guard, right, Kind::Leaf);
        self.observer.rows_moved(&self.pages, PageId::ROOT, right, Some(&separator));
        self.observer.rows_moved(&self.pages, PageId::ROOT, left, None);
        top[KIND_OFFSET] = Kind::Inner as u8;
        let mut inner = InnerMut::init(&mut top, 1, None, None, left);
        inner.insert_child(1, &separator, right).expect("a new root has room");
        debug_assert_eq!(check_node(&top, Kind::Inner), Ok(()), "a new root is not sound");
        top.header().set_address(root.header().address());
        top.set_dirty(epoch_guard.epoch());
        let frame = top.into_published(self.page_key(PageId::ROOT));
        self.pages.table.store(PageId::ROOT, PageEntry::Immutable(frame));
        root.unlink(Residency::Leaf);
        Ok(Progress::Again)
    }

    fn grow_root<'p>(&'p self, epoch_guard: &EpochGuard<'_>, frames: &mut Vec<NewFrame<'p>>) -> Result<Progress, Stop> {
        let Some(root) = self.latch_inner(PageId::ROOT) else { return Ok(Progress::Again) };
        let inner = Inner::new(&root);
        if inner.fits_separator(self.key_bytes_max()) {
            return Ok(Progress::Again);
        }
        self.pool.prepare_change(epoch_guard, &root)?;

        crate::coverage::mark!("an inner root split");
        let level = inner.level();
        assert!(inner.lower_fence().is_none() && inner.upper_fence().is_none(), "a root bounds the keys");
        let at = inner.split_index();
        let [mut left, mut right, mut top] = std::array::from_fn(|_| frames.pop().expect("counted"));
        left.copy_from_slice(&root);
        let mut separator = Vec::new();
        InnerMut::new(&mut left).split_to(at, &mut right, &mut separator);
        let left = self.publish(epoch_guard, left, Kind::Inner);
        let right = self.publish(epoch_guard, right, Kind::Inner);
        top[KIND_OFFSET] = Kind::Inner as u8;
        let mut inner = InnerMut::init(&mut top, level + 1, None, None, left);
        inner.insert_child(1, &separator, right).expect("a new root has room");
        self.replace(epoch_guard, PageId::ROOT, root, top);
        Ok(Progress::Again)
    }

    fn split_inner<'p>(
        &'p self,
        epoch_guard: &EpochGuard<'_>,
        parent_page: PageId,
        page: PageId,
        key: &[u8],
        frames: &mut Vec<NewFrame<'p>>,
    ) -> Result<Progress, Stop> {
        let Some(parent) = self.latch_inner(parent_page) else { return Ok(Progress::Again) };
        let inner = Inner::new(&parent);
        if !inner.covers(key) || inner.child(inner.child_for(key)) != page {
            return Ok(Progress::Again);
        }
        let Some(full) = self.latch_inner(page) else { return Ok(Progress::Again) };
        let node = Inner::new(&full);
        if !node.covers(key) || node.fits_separator(self.key_bytes_max()) {
            return Ok(Progress::Again);
        }
        assert!(node.level() + 1 == inner.level(), "a child is not of the level below");
        let at = node.split_index();
        let [mut left, mut right, mut copy] = std::array::from_fn(|_| frames.pop().expect("counted"));
        left.copy_from_slice(&full);
        let mut separator = Vec::new();
        InnerMut::new(&mut left).split_to(at, &mut right, &mut separator);
        if !inner.fits_separator(separator.len()) {
            return Ok(Progress::Again);
        }
        self.pool.prepare_change(epoch_guard, &parent)?;
        self.pool.prepare_change(epoch_guard, &full)?;

        crate::coverage::mark!("an inner node split");
        let _change = self.begin_change([page]);
        let right = self.publish(epoch_guard, right, Kind::Inner);
        copy.copy_from_slice(&parent);
        let index = Inner::new(&parent).child_for(&separator) + 1;
        InnerMut::new(&mut copy).insert_child(index, &separator, right).expect("room was checked");
        // Replace the parent first. If the child became the left half first, the current parent would still send all
        // keys to it, and a descent for a key in the right half would end in the wrong leaf without detecting it.
        self.replace(epoch_guard, parent_page, parent, copy);
        self.replace(epoch_guard, page, full, left);
        Ok(Progress::Again)
    }

    // ── merging ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Merges the leaf that covers the key with a neighbour, if both are in memory and fit together, and then does the
    /// same for the nodes above. Gives up if it would have to wait: a merge saves space, but correctness does not
    /// depend on it.
    pub(crate) fn try_merge(&self, key: &[u8]) {
        let mut level = 0;
        while let Ok(true) = self.try_merge_level(key, level, Merging::Underfull) {
            level += 1;
        }
        if level > 0 {
            while let Ok(true) = self.try_collapse_root() {}
        }
    }

    /// Merges the leaves of a tree without rows until its root is an empty leaf. Stops if it finds a row. Waits for
    /// pages and frames. O(leaves).
    ///
    /// When all rows of a tree larger than memory are removed, empty leaves remain, because
    /// [`try_merge`](Self::try_merge) merges only leaves in memory. `prepare` is called before each change, while no
    /// latch is held. Its result is dropped after the change has been made.
    pub(crate) fn merge_empty_leaves<R>(&self, mut prepare: impl FnMut() -> Result<R>) -> Result<Emptied> {
        let read_empty_leaf = |key: &[u8]| {
            self.pool.waiting(|_| {
                let leaf = self.read_leaf(Target::At(key))?;
                let upper = || Node::new(&leaf).upper_fence().map(<[u8]>::to_vec);
                Ok(Leaf::new(&leaf).is_empty().then(|| (leaf.page(), upper())))
            })
        };
        let mut idle_passes = 0;
        while idle_passes < IDLE_PASSES_MAX {
            idle_passes += 1;
            // Each pass leaves at most one leaf per parent, so the next pass can merge the parents.
            let mut next = Some(Vec::new());
            while let Some(key) = next {
                let Some((page, upper)) = read_empty_leaf(&key)? else { return Ok(Emptied::HasRows) };
                if page == PageId::ROOT {
                    return Ok(Emptied::Whole);
                }
                // Reading the right neighbour also brings it and the nodes above it into memory.
                if let Some(upper) = &upper
                    && read_empty_leaf(upper)?.is_none()
                {
                    return Ok(Emptied::HasRows);
                }
                let mut level = 0;
                loop {
                    let _prepared = prepare()?;
                    if !self.pool.waiting(|_| self.try_merge_level(&key, level, Merging::AllThatFit))? {
                        break;
                    }
                    idle_passes = 0;
                    level += 1;
                }
                next = upper;
            }
            loop {
                let _prepared = prepare()?;
                if !self.pool.waiting(|_| self.try_collapse_root())? {
                    break;
                }
                idle_passes = 0;
            }
            self.check_dropped()?;
        }
        Ok(Emptied::Busy)
    }

    /// Returns `true` if a page is empty enough to be merged.
    pub(crate) fn is_underfull(page: &[u8]) -> bool {
        Node::new(page).live_bytes() * UNDERFULL_SHARE < page.len()
    }

    /// Merges the node of this level that covers the key with a neighbour. Returns `true` if the level above may need a
    /// merge now.
    fn try_merge_level(&self, key: &[u8], level: u8, merging: Merging) -> Result<bool, Stop> {
        let mut copy = self.free_frame()?;
        let epoch_guard = self.pool.space.epoch_latch.shared();
        let mut parent_page = None;
        self.descend(Target::At(key), |page, _, inner, _| {
            if inner.level() == level + 1 {
                parent_page = Some(page);
            }
        })?;
        let Some(parent_page) = parent_page else { return Ok(false) };
        let Some(parent) = self.latch_inner(parent_page) else { return Ok(false) };
        let inner = Inner::new(&parent);
        if !inner.covers(key) || inner.level() != level + 1 {
            return Ok(false);
        }
        if inner.len() == 1 {
            return Ok(parent_page != PageId::ROOT);
        }
        let position = inner.child_for(key);
        let left_index = if position + 1 < inner.len() { position } else { position - 1 };
        let (left_page, right_page) = (inner.child(left_index), inner.child(left_index + 1));
        copy.copy_from_slice(&parent);
        InnerMut::new(&mut copy).remove_child(left_index + 1);
        let is_wanted = |left: &[u8], right: &[u8], merged_bytes: usize| match merging {
            Merging::Underfull => {
                (Tree::is_underfull(left) || Tree::is_underfull(right))
                    && merged_bytes * UNDERFULL_SHARE <= self.pages.page_bytes() * (UNDERFULL_SHARE - 1)
            }
            Merging::AllThatFit => merged_bytes <= self.pages.page_bytes(),
        };
        if level == 0 {
            let Some(mut left) = self.latch_leaf(left_page) else { return Ok(false) };
            let Some(right) = self.latch_leaf(right_page) else { return Ok(false) };
            if !is_wanted(&left, &right, Leaf::new(&left).merged_bytes(&Leaf::new(&right))) {
                return Ok(false);
            }
            // A leaf has one timestamp, so a merged leaf could not record that a run is folded into only one half of
            // it.
            if [&left, &right].into_iter().any(|leaf| self.has_runs_above(&Leaf::new(leaf))) {
                return Ok(false);
            }
            self.pool.prepare_change(&epoch_guard, &parent)?;
            self.pool.prepare_change(&epoch_guard, &left)?;
            self.pool.prepare_removal(&epoch_guard, &right)?;
            let change = self.begin_change([left_page, right_page]);
            self.pool.mark_dirty(&epoch_guard, &left);
            let merged = LeafMut::new(left.leaf_mut(&self.pages.table)).merge_from(&Leaf::new(&right));
            merged.expect("the sum was checked");
            debug_assert_eq!(check_node(&left, Kind::Leaf), Ok(()), "a merged leaf is not sound");
            crate::coverage::mark!("two leaves merged");
            self.observer.rows_moved(&self.pages, right_page, left_page, None);
            self.replace(&epoch_guard, parent_page, parent, copy);
            // End the change before freeing the page, because its id may then be reused.
            drop(change);
            self.pool.free_page(&epoch_guard, &self.pages, right);
        } else {
            let Some(left) = self.latch_inner(left_page) else { return Ok(false) };
            let Some(right) = self.latch_inner(right_page) else { return Ok(false) };
            if !is_wanted(&left, &right, Inner::new(&left).merged_bytes(&Inner::new(&right))) {
                return Ok(false);
            }
            let mut merged = self.free_frame()?;
            self.pool.prepare_change(&epoch_guard, &parent)?;
            self.pool.prepare_change(&epoch_guard, &left)?;
            self.pool.prepare_removal(&epoch_guard, &right)?;
            let change = self.begin_change([left_page, right_page]);
            merged.copy_from_slice(&left);
            InnerMut::new(&mut merged).merge_from(&Inner::new(&right)).expect("the sum was checked");
            crate::coverage::mark!("two inner nodes merged");
            self.replace(&epoch_guard, left_page, left, merged);
            self.replace(&epoch_guard, parent_page, parent, copy);
            // End the change before freeing the page, because its id may then be reused.
            drop(change);
            self.pool.free_page(&epoch_guard, &self.pages, right);
        }
        Ok(true)
    }

    /// Takes a free frame for a node.
    pub(super) fn free_frame(&self) -> Result<NewFrame<'_>, Stop> {
        let page_bytes = self.pages.page_bytes();
        self.pool.frames.try_take(page_bytes).ok_or_else(|| Needs::Frame(page_bytes).into())
    }

    /// Replaces the root with its only child. Returns `true` if the new root might also have only one child.
    fn try_collapse_root(&self) -> Result<bool, Stop> {
        let epoch_guard = &self.pool.space.epoch_latch.shared();
        let Some(root) = self.latch_inner(PageId::ROOT) else { return Ok(false) };
        if Inner::new(&root).len() > 1 {
            return Ok(false);
        }
        let child_page = Inner::new(&root).child(0);
        let mut copy = self.free_frame()?;
        let (child, is_leaf) = match (self.latch_leaf(child_page), self.latch_inner(child_page)) {
            (Some(leaf), _) => (leaf, true),
            (None, Some(inner)) => (inner, false),
            (None, None) => return Ok(false),
        };
        self.pool.prepare_change(epoch_guard, &root)?;
        self.pool.prepare_removal(epoch_guard, &child)?;
        assert!(Node::new(&child).level() + 1 == Node::new(&root).level(), "a child is not of the level below");
        let fences = (Node::new(&child).lower_fence(), Node::new(&child).upper_fence());
        assert!(fences == (None, None), "the only child of the root bounds the keys: {fences:?}");
        let change = self.begin_change([child_page]);
        copy.copy_from_slice(&child);
        copy.header().set_address(root.header().address());
        copy.set_dirty(epoch_guard.epoch());
        let frame = copy.into_published(self.page_key(PageId::ROOT));
        if is_leaf {
            self.observer.rows_moved(&self.pages, child_page, PageId::ROOT, None);
            self.pages.table.store(PageId::ROOT, PageEntry::Leaf(frame));
        } else {
            self.pages.table.store(PageId::ROOT, PageEntry::Immutable(frame));
        }
        crate::coverage::mark!("the root was replaced by its only child");
        root.unlink(Residency::Immutable);
        drop(change);
        self.pool.free_page(epoch_guard, &self.pages, child);
        Ok(!is_leaf)
    }
}

/// Returns `true` if all rows that the leaf covers fit into it when they are put in this order. Ignores the space that
/// removals free, so a leaf may be split earlier than necessary.
pub(crate) fn fits(leaf: &Leaf<'_>, rows: &[Incoming<'_>]) -> bool {
    let upper = leaf.upper_fence();
    let covered = || rows.iter().take_while(|row| upper.is_none_or(|upper| row.key < upper));
    let puts = || covered().filter_map(|row| Some((row.key, row.value_bytes?)));
    // Usually, the rows would fit even if all of them were new. In that case, don't search for existing rows.
    let mut free_bytes = leaf.free_bytes();
    let new_rows_fit = puts().all(|(key, value_bytes)| {
        let left_bytes = free_bytes.checked_sub(leaf.row_cost(key.len(), value_bytes));
        free_bytes = left_bytes.unwrap_or(0);
        left_bytes.is_some()
    });
    if new_rows_fit {
        return true;
    }
    let mut free_bytes = leaf.free_bytes();
    let mut are_after = false;
    puts().all(|(key, value_bytes)| {
        let position = if are_after { Err(leaf.len()) } else { leaf.search(key) };
        are_after = position == Err(leaf.len());
        let replaced_bytes = position.map_or(0, |index| leaf.row_cost(key.len(), leaf.value(index).stored_bytes()));
        let left_bytes = (free_bytes + replaced_bytes).checked_sub(leaf.row_cost(key.len(), value_bytes));
        free_bytes = left_bytes.unwrap_or(0);
        left_bytes.is_some()
    })
}

/// Returns the progress made by splitting the first row's leaf into these two.
fn progress_after_split(left: &Leaf<'_>, right: &Leaf<'_>, rows: &[Incoming<'_>]) -> Progress {
    let separator = left.upper_fence().expect("a leaf was split here");
    debug_assert!(right.lower_fence() == Some(separator), "a split leaves a gap");
    let is_left_done = fits(left, rows);
    let right_rows = &rows[rows.partition_point(|row| row.key < separator)..];
    match fits(right, right_rows) {
        true if is_left_done => Progress::Done(right.upper_fence().map(<[u8]>::to_vec)),
        false if is_left_done && rows[0].key < separator => Progress::Done(Some(separator.to_vec())),
        _ => Progress::Again,
    }
}

/// Returns the separator of a split that brings the rows closer to fitting, or `None` if they fit already.
fn plan_split(leaf: &Leaf<'_>, rows: &[Incoming<'_>]) -> Option<Vec<u8>> {
    if fits(leaf, rows) {
        return None;
    }
    let puts = puts_ahead(leaf, rows);
    if let [(key, value_bytes)] = puts[..] {
        return Some(split_around(leaf, key, value_bytes));
    }
    let merged = merge_rows(leaf, &puts);
    assert!(merged.len() > 1, "a row does not fit into a leaf of its own");
    let only_appends = merged.get(leaf.len()).is_some_and(|row| row.put == Some(0));
    let total: usize = merged.iter().map(|row| row.bytes).sum();
    let capacity = leaf.free_bytes() + leaf.live_bytes() - leaf_overhead_bytes(leaf);
    // If all new rows follow the leaf's last row, this is a sorted load: fill the left leaf. Otherwise split in the
    // middle.
    let goal = if only_appends { capacity.saturating_sub(leaf_reserve_bytes(leaf)) } else { total / 2 };
    let mut left_bytes = 0;
    let mut at = 0;
    while at + 1 < merged.len() && (at == 0 || left_bytes + merged[at].bytes <= goal) {
        left_bytes += merged[at].bytes;
        at += 1;
    }
    let separator = {
        let [mut left, mut right] = [Vec::new(), Vec::new()];
        separator_between(merged[at - 1].key(leaf, &puts, &mut left), merged[at].key(leaf, &puts, &mut right)).to_vec()
    };
    debug_assert!(leaf.covers(&separator), "a leaf is split outside of its fences");
    if sides_fit(leaf, &separator) {
        return Some(separator);
    }
    // One half has no room for its existing rows and the long new fence. A split planned for a single row always fits.
    let &(key, value_bytes) = puts.first()?;
    Some(split_around(leaf, key, value_bytes))
}

/// Returns the separator of a split that makes room for a single row.
fn split_around(leaf: &Leaf<'_>, key: &[u8], value_bytes: usize) -> Vec<u8> {
    let change = match leaf.search(key) {
        Ok(index) => LeafChange::Replace { index, value_bytes },
        Err(index) => LeafChange::Insert { index, key, value_bytes },
    };
    leaf.split_for(&change).separator
}

/// Returns the rows to be put into the leaf, each with the length of its value. Stops after two pages full of rows,
/// which are enough to determine the first split. Omits removals, because they need no room.
fn puts_ahead<'k>(leaf: &Leaf<'_>, rows: &[Incoming<'k>]) -> Vec<(&'k [u8], usize)> {
    let mut ahead_bytes = 2 * leaf.page_bytes();
    let covered = rows.iter().take_while(|row| leaf.upper_fence().is_none_or(|upper| row.key < upper));
    covered
        .filter_map(|row| Some((row.key, row.value_bytes?)))
        .take_while(|(key, value_bytes)| {
            let is_seen = ahead_bytes > 0;
            ahead_bytes = ahead_bytes.saturating_sub(ROW_OVERHEAD_BYTES + key.len() + value_bytes);
            is_seen
        })
        .collect()
}

/// A row that is in the leaf, is to be put, or both.
struct MergedRow {
    /// The row's index in the leaf, or the leaf's length if the leaf does not contain it.
    index: usize,
    /// The row's index among the rows to be put.
    put: Option<usize>,
    /// The space that the row needs, in bytes.
    bytes: usize,
}

impl MergedRow {
    /// Returns the row's key. If only the leaf has it, assembles it in `copy`.
    fn key<'k>(&self, leaf: &Leaf<'_>, puts: &[(&'k [u8], usize)], copy: &'k mut Vec<u8>) -> &'k [u8] {
        match self.put {
            Some(put) => puts[put].0,
            None => {
                assert!(self.index < leaf.len(), "a row is neither in the leaf nor to be put");
                leaf.key_into(self.index, copy);
                copy
            }
        }
    }
}

/// Merges the leaf's rows with the rows to be put, in key order.
fn merge_rows(leaf: &Leaf<'_>, puts: &[(&[u8], usize)]) -> Vec<MergedRow> {
    debug_assert!(puts.is_sorted_by(|left, right| left.0 < right.0), "rows to be put are out of order");
    let mut merged = Vec::with_capacity(leaf.len() + puts.len());
    let (mut next, mut key) = (0, Vec::new());
    let put_row = |put: usize| {
        let (key, value_bytes) = puts[put];
        MergedRow { index: leaf.len(), put: Some(put), bytes: leaf.row_cost(key.len(), value_bytes) }
    };
    for index in 0..leaf.len() {
        let key_bytes = leaf.prefix().len() + leaf.key_suffix(index).len();
        let bytes = leaf.row_cost(key_bytes, leaf.value(index).stored_bytes());
        let mut row = MergedRow { index, put: None, bytes };
        if next < puts.len() {
            leaf.key_into(index, &mut key);
            while puts.get(next).is_some_and(|(put, _)| *put < &key[..]) {
                merged.push(put_row(next));
                next += 1;
            }
            if puts.get(next).is_some_and(|(put, _)| *put == &key[..]) {
                // The old value occupies space until the new one is put, so count the larger of the two.
                row = MergedRow { bytes: row.bytes.max(put_row(next).bytes), put: Some(next), ..row };
                next += 1;
            }
        }
        merged.push(row);
    }
    merged.extend((next..puts.len()).map(put_row));
    assert!(merged.len() >= leaf.len().max(puts.len()), "rows are missing where a leaf is to be split");
    merged
}

/// Returns `true` if both halves of a split have room for their existing rows and the new fence. Conservatively assumes
/// that prefixes do not become longer, which would save space.
fn sides_fit(leaf: &Leaf<'_>, separator: &[u8]) -> bool {
    let at = leaf.lower_bound(separator);
    let rows_bytes = |indexes: std::ops::Range<usize>| -> usize {
        indexes.map(|index| ROW_OVERHEAD_BYTES + leaf.key_suffix(index).len() + leaf.value(index).stored_bytes()).sum()
    };
    let fence_bytes = |fence: Option<&[u8]>| fence.map_or(0, <[u8]>::len);
    let base_bytes = crate::format::node::SLOTS_OFFSET + separator.len();
    base_bytes + fence_bytes(leaf.lower_fence()) + rows_bytes(0..at) <= leaf.page_bytes()
        && base_bytes + fence_bytes(leaf.upper_fence()) + rows_bytes(at..leaf.len()) <= leaf.page_bytes()
}

/// Returns the size of the header and the fences, in bytes.
fn leaf_overhead_bytes(leaf: &Leaf<'_>) -> usize {
    crate::format::node::SLOTS_OFFSET
        + leaf.lower_fence().map_or(0, <[u8]>::len)
        + leaf.upper_fence().map_or(0, <[u8]>::len)
}

/// Returns the number of bytes to leave free for the fence that a split adds to the left leaf.
fn leaf_reserve_bytes(leaf: &Leaf<'_>) -> usize {
    if leaf.upper_fence().is_none() { 64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::format::node::inline_bytes_max;
    use crate::sync::Random;
    use crate::tree::node::RowValue;

    const KEY_BYTES: usize = 3;

    fn key(random: &mut Random, count: u64) -> Vec<u8> {
        format!("k{:02}", random.below(count)).into_bytes()
    }

    /// Puts a row if there is room for it.
    fn put(page: &mut [u8], key: &[u8], value_bytes: usize) -> bool {
        let value = vec![1; value_bytes];
        let mut leaf = LeafMut::new(page);
        match leaf.as_leaf().search(key) {
            Ok(index) => leaf.replace(index, RowValue::Inline(&value)).is_ok(),
            Err(index) => leaf.insert(index, key, RowValue::Inline(&value)).is_ok(),
        }
    }

    /// If `fits` returns `true`, all rows can be put, one after another. Otherwise the leaf can be split.
    #[test]
    fn rows_that_fit_can_be_put() {
        let mut random = Random(3);
        let mut seen = BTreeMap::new();
        for _ in 0..20_000 {
            let page_bytes = [512, 4096][random.below(2) as usize];
            let (upper, keys) = if random.one_in(2) { (Some(&b"k50"[..]), 50) } else { (None, 99) };
            let value_bytes_most =
                inline_bytes_max(page_bytes, KEY_BYTES).min(random.below(page_bytes as u64 / 6) as usize);
            let value_bytes = |random: &mut Random| random.below(value_bytes_most as u64 + 1) as usize;
            let mut page = vec![0; page_bytes];
            LeafMut::init(&mut page, Some(b"k"), upper);
            for _ in 0..40 {
                // Ignore rows that do not fit.
                put(&mut page, &key(&mut random, keys), value_bytes(&mut random));
            }
            let mut keys: Vec<Vec<u8>> = (0..=random.below(12)).map(|_| key(&mut random, keys)).collect();
            // Add a key that the leaf does not cover if it has an upper fence.
            keys.push(b"k99".to_vec());
            keys.sort();
            keys.dedup();
            let row = |key| Incoming { key, value_bytes: (!random.one_in(4)).then(|| value_bytes(&mut random)) };
            let rows: Vec<Incoming<'_>> = keys.iter().map(|key| &key[..]).map(row).collect();

            let leaf = Leaf::new(&page);
            let mut changed = page.clone();
            let mut covered = rows.iter().filter(|row| leaf.covers(row.key));
            let fit = covered.all(|row| row.value_bytes.is_none_or(|bytes| put(&mut changed, row.key, bytes)));
            assert_eq!(fits(&leaf, &rows), fit, "{rows:?}");
            match plan_split(&leaf, &rows) {
                None => assert!(fit, "a leaf without room is not split: {rows:?}"),
                Some(separator) => assert!(!fit && leaf.covers(&separator) && separator != b"k", "{rows:?}"),
            }
            let replace = rows.iter().any(|row| row.value_bytes.is_some() && leaf.search(row.key).is_ok());
            *seen.entry((fit, replace)).or_insert(0) += 1;
        }
        assert!(seen.len() == 4 && seen.values().all(|times| *times > 200), "cases are rare: {seen:?}");
    }
}
