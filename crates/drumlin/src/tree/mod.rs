//! The B+tree of a keyspace.
//!
//! # Invariants
//! 1. Page 1 is always the root, regardless of its level. A node covers the keys from its lower fence (inclusive) to
//!    its upper fence (exclusive). At each level, the ranges of the nodes abut and cover all keys.
//! 2. Inner nodes are replaced, never changed. A descent from any version of an inner node, however old, reaches a node
//!    that once covered the key. The leaf at its end is latched and checked. If it does not cover the key now, the
//!    descent restarts. So an outdated view costs a restart, but never a wrong answer.
//! 3. A structure change holds the epoch latch shared, and the parent and the affected nodes exclusively. Latch order
//!    is parents before children, left before right. A structure change moves rows without changing them, and is not
//!    logged.
//! 4. A core operation never waits. If it lacks a page or a frame, it changes nothing and returns what it needs
//!    ([`Needs`]).

mod estimate;
pub(crate) mod node;
mod runs;
mod structure;
mod unlink;

pub(crate) use runs::{Above, FoldPlan, FoldStep, RunEnd, RunLeaf};
pub(crate) use structure::{Emptied, FRAMES_NEEDED, Incoming, fits};
pub(crate) use unlink::UNLINKED_LEAVES_MAX;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::PageId;
use crate::format::extent::{KIND_OFFSET, Kind, PageKey};
use crate::pool::{FrameRead, FrameWrite, ImmutablePages, Needs, NewFrame, Pool, Provider, ReclaimGuard, Stop, Wanted};
use crate::space::runs::Run;
use crate::space::{EpochGuard, FrameIndex, PageEntry, PageSpace};
use crate::task::{Boxed, WaitMode};
use node::{Inner, LeafMut, Node};

/// Observes structure changes for data that describes pages but is stored outside of them: row counts and old versions.
/// Each keyspace's tree is created with its observer. All calls are made under the shared epoch latch.
pub(crate) trait RowObserver: Send + Sync {
    /// A new page is about to be published under this id, which may have belonged to an earlier page.
    fn page_created(&self, page: PageId);

    /// The fences of these pages are about to change. The caller has latched the pages exclusively, and has not
    /// published any node with the new fences.
    fn begin_change(&self, pages: &[PageId]);

    /// All nodes with the new fences of these pages have been published. If the change removes a page, its id has not
    /// been freed yet.
    fn end_change(&self, pages: &[PageId]);

    /// The rows starting at `separator`, or all rows if it is `None`, have moved from leaf `from` to leaf `to`. Both
    /// leaves are latched, and they are different leaves.
    fn rows_moved(&self, pages: &PageSpace, from: PageId, to: PageId, separator: Option<&[u8]>);
}

/// The B+tree of a keyspace. Cheap to clone. See the module.
#[derive(Clone)]
pub(crate) struct Tree {
    pub(crate) pages: Arc<PageSpace>,
    pub(crate) pool: Arc<Pool>,
    observer: Arc<dyn RowObserver>,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tree(keyspace {})", self.pages.id)
    }
}

/// The number of restarts after which the tree is considered corrupted, since views are outdated only for microseconds.
pub(crate) const RESTARTS_MAX: usize = 1_000_000;

/// The limit on restarts once page-table entries are known to be lost. From then on, only evictions cause outdated
/// views.
const LOST_RESTARTS_MAX: usize = 100;

/// The limit on restarts if each of them may read from the device.
const UNREADABLE_RESTARTS_MAX: usize = 1000;

/// Verifies a page that was read from an extent of this kind, before anything relies on its content.
pub(crate) fn check_node(page: &[u8], kind: Kind) -> Result<(), node::NodeError> {
    node::check(page)?;
    match (Node::new(page).level(), kind) {
        (0, Kind::Leaf) | (1.., Kind::Inner) => Ok(()),
        (level, _) => Err(node::NodeError::Level(level)),
    }
}

/// Returns the first sixteen bytes of a node's lower fence as a number. These numbers sort like the fences.
pub(crate) fn key_order(page: &[u8]) -> u128 {
    let mut first = [0; 16];
    if let Some(lower) = Node::new(page).lower_fence() {
        let count = lower.len().min(first.len());
        first[..count].copy_from_slice(&lower[..count]);
    }
    u128::from_be_bytes(first)
}

/// Returns the number of rows in a leaf.
pub(crate) fn row_count(page: &[u8]) -> usize {
    debug_assert_eq!(Node::new(page).level(), 0, "the rows of an inner node are counted");
    Node::new(page).len()
}

/// The order in which a scan visits rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

/// The node that a descent looks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'k> {
    /// The node that covers the key.
    At(&'k [u8]),
    /// The node that contains the keys directly below this one.
    Below(&'k [u8]),
    /// The last node of its level.
    Last,
}

impl Target<'_> {
    #[inline]
    fn is_in(&self, node: &Node<'_>) -> bool {
        match self {
            Target::At(key) => node.covers(key),
            Target::Below(key) => {
                node.lower_fence().is_none_or(|lower| lower < *key)
                    && node.upper_fence().is_none_or(|upper| *key <= upper)
            }
            Target::Last => node.upper_fence().is_none(),
        }
    }

    #[inline]
    fn child(&self, inner: &Inner<'_>) -> usize {
        match self {
            Target::At(key) => inner.child_for(key),
            Target::Below(key) => inner.child_below(key),
            Target::Last => inner.len() - 1,
        }
    }
}

/// A node that can't be read. See [`Tree::unreadable`].
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) page: PageId,
    /// The node's fences, according to its parent. The keys between them can't be reached without the node.
    pub(crate) lower: Option<Vec<u8>>,
    pub(crate) upper: Option<Vec<u8>>,
    pub(crate) error: Error,
}

/// The leaves that a scan will visit next, and their parents. See [`Tree::upcoming`].
#[derive(Debug, Default)]
pub(crate) struct Upcoming {
    /// Inner nodes on disk: parents of leaves that the scan will reach soon, or if these parents are not known yet, a
    /// node above them.
    pub(crate) inner: Vec<PageId>,
    /// Upcoming leaves that are on disk.
    pub(crate) pages: Vec<PageId>,
    /// The number of upcoming leaves, including those in memory.
    pub(crate) leaf_count: usize,
    /// The key at which the leaves after the upcoming ones begin (forward) or end (backward), or `None` if no leaves
    /// follow.
    pub(crate) next: Option<Vec<u8>>,
}

impl Tree {
    pub(crate) fn new(pages: Arc<PageSpace>, pool: Arc<Pool>, observer: Arc<dyn RowObserver>) -> Tree {
        Tree { pages, pool, observer }
    }

    /// Creates the empty root of a new keyspace.
    pub(crate) fn create_root(&self, epoch_guard: &EpochGuard<'_>, mut frame: NewFrame<'_>) {
        let root = self.pages.table.allocate(1);
        assert!(root == PageId::ROOT, "a tree is planted in an empty keyspace");
        LeafMut::init(&mut frame, None, None);
        frame[KIND_OFFSET] = Kind::Leaf as u8;
        debug_assert_eq!(check_node(&frame, Kind::Leaf), Ok(()), "an empty root is not sound");
        frame.set_dirty(epoch_guard.epoch());
        let frame = frame.into_published(self.page_key(root));
        self.pages.table.store(root, PageEntry::Leaf(frame));
    }

    #[inline]
    pub(crate) fn page_key(&self, page: PageId) -> PageKey {
        PageKey { keyspace: self.pages.id, page }
    }

    /// Returns the maximum length of a key.
    pub(crate) fn key_bytes_max(&self) -> usize {
        crate::format::node::key_bytes_max(self.pages.page_bytes())
    }

    /// Returns the maximum length of a value that is stored inline with this key.
    pub(crate) fn inline_bytes_max(&self, key: &[u8]) -> usize {
        crate::format::node::inline_bytes_max(self.pages.page_bytes(), key.len())
    }

    // ── faults ─────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Reads a page of the tree into memory, unless it is already in memory or free.
    pub(crate) fn fault<'a>(&'a self, mode: WaitMode<'a>, wanted: Wanted) -> Boxed<'a, Result<()>> {
        Box::pin(async move {
            match mode {
                WaitMode::Blocking => self.pool.fault(&self.pages, wanted),
                WaitMode::Tasks(_) => self.pool.fault_as_task(&self.pages, wanted).await,
            }
        })
    }

    /// Reads several pages of the tree into memory, with many reads in flight. Skips pages that can't be read. Returns
    /// the number of pages read.
    pub(crate) fn fault_many<'a>(&'a self, mode: WaitMode<'a>, wanted: &'a [Wanted]) -> Boxed<'a, Result<usize>> {
        Box::pin(async move {
            match mode {
                WaitMode::Blocking => self.pool.fault_many(&self.pages, wanted),
                WaitMode::Tasks(_) => self.pool.fault_many_as_task(&self.pages, wanted).await,
            }
        })
    }

    /// Like [`fault_many`](Self::fault_many), for nodes.
    pub(crate) async fn fault_nodes(&self, mode: WaitMode<'_>, pages: &[PageId]) -> Result<usize> {
        debug_assert!(pages.is_sorted(), "pages are brought in out of order, and may be named twice");
        let wanted: Vec<Wanted> = pages.iter().map(|&page| Wanted::node(&self.pages, page)).collect();
        self.fault_many(mode, &wanted).await
    }

    // ── descents ───────────────────────────────────────────────────────────────────────────────────────────────────

    /// Descends from a page above the target's leaf. Returns the leaf's page and the frame that appears to hold it, or
    /// `None` if the view was outdated. Prefetches the frame into the processor's cache.
    pub(crate) fn locate(&self, from: PageId, target: Target<'_>) -> Result<Option<(PageId, FrameIndex)>, Stop> {
        self.descend_from(from, target, |_, _, _, _| ())
    }

    /// Descends from the root to the frame that appears to hold the target's leaf. Calls `visit` with each inner node
    /// on the path and the index of the child with which the descent continues.
    #[inline]
    pub(crate) fn descend(
        &self,
        target: Target<'_>,
        visit: impl FnMut(PageId, FrameIndex, &Inner<'_>, usize),
    ) -> Result<Option<(PageId, FrameIndex)>, Stop> {
        self.descend_from(PageId::ROOT, target, visit)
    }

    #[inline]
    fn descend_from(
        &self,
        from: PageId,
        target: Target<'_>,
        mut visit: impl FnMut(PageId, FrameIndex, &Inner<'_>, usize),
    ) -> Result<Option<(PageId, FrameIndex)>, Stop> {
        let reclaim_guard = self.pool.reclaim_guard();
        let immutable_pages = reclaim_guard.pages(&self.pages.table);
        let mut page = from;
        let mut level = u8::MAX;
        loop {
            match immutable_pages.load(page) {
                Ok((frame, bytes)) => {
                    if bytes[KIND_OFFSET] != Kind::Inner as u8 {
                        return Ok(None);
                    }
                    self.pool.frames.header(frame).touch_inner();
                    let inner = Inner::new(bytes);
                    // Don't check that inner nodes cover the target, because only the leaf matters. An outdated path
                    // ends at a leaf that does not cover the target. It can't loop, because levels must descend.
                    if inner.level() >= level {
                        return Ok(None);
                    }
                    level = inner.level();
                    debug_assert!(level > 0, "an inner node at the level of leaves");
                    let child = target.child(&inner);
                    debug_assert!(child < inner.len(), "a node of {} children is asked for child {child}", inner.len());
                    visit(page, frame, &inner, child);
                    page = inner.child(child);
                }
                Err(PageEntry::Leaf(frame)) => {
                    self.pool.frames.prefetch(frame);
                    return Ok(Some((page, frame)));
                }
                Err(PageEntry::OnDisk(_) | PageEntry::Reading(_)) => {
                    return Err(Needs::Page(Arc::clone(&self.pages), page).into());
                }
                Err(_) => return Ok(None),
            }
        }
    }

    /// Returns the error for a tree in which descents never reach their leaf.
    pub(crate) fn lost(&self) -> Error {
        let what = format!("the tree of keyspace {}", self.pages.quoted_name());
        Error::corrupted(self.pool.space.path(), what, "its nodes do not lead to every key")
    }

    /// Repeats an attempt to latch a leaf until it succeeds. The attempt returns `None` if it used an outdated view.
    #[inline]
    fn restarting<T>(&self, mut attempt: impl FnMut() -> Result<Option<T>, Stop>) -> Result<T, Stop> {
        for restart in 0..RESTARTS_MAX {
            if let Some(latched) = attempt()? {
                return Ok(latched);
            }
            self.pause(restart).map_err(Stop::Error)?;
        }
        Err(Stop::Error(self.lost()))
    }

    /// Returns the target's leaf, latched shared. Expected O(log n).
    #[inline]
    pub(crate) fn read_leaf(&self, target: Target<'_>) -> Result<FrameRead<'_>, Stop> {
        self.restarting(|| {
            let path = self.descend(target, |_, _, _, _| ())?;
            Ok(path.and_then(|located| self.read_leaf_at(located, target)))
        })
    }

    /// Like [`read_leaf_from`](Self::read_leaf_from), for a scan. After a descent from the root, also returns the frame
    /// of the next leaf, if that leaf is in memory and has the same parent.
    pub(crate) fn read_leaf_of_scan(
        &self,
        from: PageId,
        target: Target<'_>,
        direction: Direction,
    ) -> Result<(FrameRead<'_>, Option<FrameIndex>), Stop> {
        if from != PageId::ROOT {
            return Ok((self.read_leaf_from(from, target)?, None));
        }
        self.restarting(|| {
            let mut next = None;
            let path = self.descend(target, |_, _, inner, child| {
                let neighbour = match direction {
                    Direction::Forward => Some(child + 1).filter(|&child| child < inner.len()),
                    Direction::Backward => child.checked_sub(1),
                };
                next = neighbour.map(|child| inner.child(child));
            })?;
            let read = path.and_then(|located| self.read_leaf_at(located, target));
            Ok(read.map(|read| {
                let next = next.map(|page| self.pages.table.load(page));
                (read, if let Some(PageEntry::Leaf(frame)) = next { Some(frame) } else { None })
            }))
        })
    }

    /// Like [`read_leaf`](Self::read_leaf), but resumes at a page that was missing in an earlier descent. If that page
    /// no longer leads to the leaf, starts over at the root.
    #[inline]
    pub(crate) fn read_leaf_from(&self, from: PageId, target: Target<'_>) -> Result<FrameRead<'_>, Stop> {
        if from != PageId::ROOT
            && let Some(located) = self.locate(from, target)?
            && let Some(read) = self.read_leaf_at(located, target)
        {
            return Ok(read);
        }
        self.read_leaf(target)
    }

    /// Like [`read_leaf`](Self::read_leaf), for a caller that has already latched leaves to the left of this one.
    /// `is_held_here` recognises their frames.
    pub(crate) fn read_leaf_while_holding(
        &self,
        key: &[u8],
        is_held_here: &impl Fn(FrameIndex) -> bool,
    ) -> Result<FrameRead<'_>, Stop> {
        let target = Target::At(key);
        self.restarting(|| {
            let path = self.descend(target, |_, _, _, _| ())?;
            let read = path.and_then(|(page, frame)| {
                self.pool.frames.read_while_holding(frame, self.page_key(page), is_held_here)
            });
            Ok(read.filter(|read| self.is_leaf_of(read, target)))
        })
    }

    /// Latches the target's leaf shared in the frame where it was [located](Self::locate), if it is still there. The
    /// descent's reclaim guard has ended by now, so the frame may have been reused. So this function checks under the
    /// latch that the frame still holds the page and that the page covers the target.
    #[inline]
    pub(crate) fn read_leaf_at(
        &self,
        (page, frame): (PageId, FrameIndex),
        target: Target<'_>,
    ) -> Option<FrameRead<'_>> {
        let read = self.pool.frames.read(frame, self.page_key(page))?;
        self.is_leaf_of(&read, target).then_some(read)
    }

    /// Like [`read_leaf_at`](Self::read_leaf_at), for a caller that holds other latches. Returns `None` instead of
    /// waiting for the latch.
    #[inline]
    pub(crate) fn try_read_leaf_at(
        &self,
        (page, frame): (PageId, FrameIndex),
        target: Target<'_>,
    ) -> Option<FrameRead<'_>> {
        let read = self.pool.frames.try_read(frame, self.page_key(page))?;
        self.is_leaf_of(&read, target).then_some(read)
    }

    /// Returns `true` if the latched frame is still the current one of its page, and the leaf covers the target.
    #[inline(always)]
    fn is_leaf_of(&self, read: &FrameRead<'_>, target: Target<'_>) -> bool {
        self.pages.table.shows(read.page(), PageEntry::Leaf(read.frame())) && target.is_in(&Node::new(read))
    }

    /// Latches a leaf exclusively in the frame where it was located, if it is still there and covers the key.
    #[inline]
    pub(crate) fn write_leaf_at(
        &self,
        page: PageId,
        frame: FrameIndex,
        key: &[u8],
        is_held_here: &impl Fn(FrameIndex) -> bool,
    ) -> Option<FrameWrite<'_>> {
        let write = self.pool.frames.write_while_holding(frame, self.page_key(page), is_held_here)?;
        (self.pages.table.shows(page, PageEntry::Leaf(frame)) && Node::new(&write).covers(key)).then_some(write)
    }

    /// Returns the leaf that covers the key, latched exclusively. The caller may have latched leaves to its left;
    /// `is_held_here` recognises their frames. Expected O(log n).
    #[inline]
    pub(crate) fn write_leaf(
        &self,
        key: &[u8],
        is_held_here: &impl Fn(FrameIndex) -> bool,
    ) -> Result<FrameWrite<'_>, Stop> {
        self.restarting(|| {
            let path = self.descend(Target::At(key), |_, _, _, _| ())?;
            Ok(path.and_then(|(page, frame)| self.write_leaf_at(page, frame, key, is_held_here)))
        })
    }

    /// Fails if the keyspace is being dropped, since dropping frees its pages.
    pub(crate) fn check_dropped(&self) -> Result<(), Error> {
        if self.pages.is_dropped() {
            return Err(Error::KeyspaceDropped { name: self.pages.name().to_string() });
        }
        Ok(())
    }

    /// Called before each restart. Fails if the keyspace is being dropped, or if its page tables have lost entries and
    /// [`LOST_RESTARTS_MAX`] is reached.
    #[cold]
    pub(crate) fn pause(&self, restart: usize) -> Result<()> {
        self.check_dropped()?;
        if restart >= LOST_RESTARTS_MAX && self.pages.has_lost_pages() {
            return Err(self.lost());
        }
        if restart > 16 {
            crate::sync::yield_now();
        }
        Ok(())
    }

    /// Returns the pages beneath a root that a scan will need next: at most `count` leaves with the same parent,
    /// starting with the one that covers the target, and the lowest inner nodes above about as many subsequent leaves.
    pub(crate) fn upcoming(&self, root: PageId, target: Target<'_>, direction: Direction, count: usize) -> Upcoming {
        let mut upcoming = Upcoming::default();
        /// An upper estimate of a child's size in an inner node, in bytes. It may be larger if keys are long.
        const CHILD_BYTES: usize = 64;
        let from = |child: usize, len: usize, count: usize| -> Vec<usize> {
            match direction {
                Direction::Forward => (child..len.min(child + count)).collect(),
                Direction::Backward => ((child + 1).saturating_sub(count)..=child).rev().collect(),
            }
        };
        let on_disk = |page: &PageId| matches!(self.pages.table.load(*page), PageEntry::OnDisk(_));
        let path = self.descend_from(root, target, |_, _, inner, child| {
            if inner.level() == 2 {
                let parents = from(child, inner.len(), 1 + count * CHILD_BYTES / self.pages.page_bytes());
                upcoming.inner = parents.into_iter().map(|index| inner.child(index)).filter(on_disk).collect();
            }
            if inner.level() == 1 {
                let wanted = from(child, inner.len(), count);
                let last = wanted.last().copied().unwrap_or(child);
                upcoming.pages = wanted.iter().map(|&index| inner.child(index)).filter(on_disk).collect();
                upcoming.leaf_count = wanted.len();
                upcoming.next = match (direction, last) {
                    (Direction::Forward, last) if last + 1 < inner.len() => Some(separator(inner, last + 1)),
                    (Direction::Forward, _) => inner.upper_fence().map(<[u8]>::to_vec),
                    (Direction::Backward, 0) => inner.lower_fence().map(<[u8]>::to_vec),
                    (Direction::Backward, last) => Some(separator(inner, last)),
                };
            }
        });
        if upcoming.leaf_count == 0
            && let Err(Stop::Needs(Needs::Page(_, inner))) = path
            && upcoming.inner.is_empty()
            && on_disk(&inner)
        {
            upcoming.inner.push(inner);
        }
        debug_assert!(upcoming.leaf_count <= count, "{} leaves of {count} are upcoming", upcoming.leaf_count);
        debug_assert!(upcoming.pages.len() <= upcoming.leaf_count, "more pages than leaves are upcoming");
        upcoming
    }

    /// Finds the first unreadable node on the path to the key's leaf, in the tree or in a run above it. Returns `None`
    /// if all of these paths can be read. Expected O(log n).
    pub(crate) fn unreadable<'a>(&'a self, mode: WaitMode<'a>, key: &'a [u8]) -> Boxed<'a, Result<Option<Unreadable>>> {
        Box::pin(async move {
            let unfreed = |run: &&Run| run.has_rows() && &run.freed_to[..] <= key;
            let runs: Vec<PageId> = self.pages.runs.all().iter().filter(unfreed).map(|run| run.root).collect();
            for root in [PageId::ROOT].into_iter().chain(runs) {
                if let Some(unreadable) = self.unreadable_from(mode, root, key).await? {
                    return Ok(Some(unreadable));
                }
            }
            Ok(None)
        })
    }

    /// Finds the first unreadable node on the path to the key's leaf, in the tree or run with this root.
    fn unreadable_from<'a>(
        &'a self,
        mode: WaitMode<'a>,
        root: PageId,
        key: &'a [u8],
    ) -> Boxed<'a, Result<Option<Unreadable>>> {
        Box::pin(async move {
            let mut provider = Provider::new(mode, &self.pool);
            for restart in 0..UNREADABLE_RESTARTS_MAX {
                let (mut lower, mut upper, mut last) = (None, None, root);
                let path = self.descend_from(root, Target::At(key), |_, _, inner, child| {
                    (lower, upper) = child_fences(inner, child);
                    last = inner.child(child);
                });
                let needs = match path {
                    Ok(Some(_)) => return Ok(None),
                    Ok(None) if restart >= LOST_RESTARTS_MAX && self.pages.has_lost_pages() => {
                        return Ok(Some(Unreadable { page: last, lower, upper, error: self.lost() }));
                    }
                    Ok(None) => {
                        self.pause(restart)?;
                        continue;
                    }
                    Err(Stop::Error(error)) => return Err(error),
                    Err(Stop::Needs(needs)) => needs,
                };
                if let Err(error) = provider.provide(&needs).await {
                    let Needs::Page(_, page) = needs else { return Err(error) };
                    // An outdated view may lead to a node that never covered the key.
                    let covers = lower.as_deref().is_none_or(|lower: &[u8]| lower <= key)
                        && upper.as_deref().is_none_or(|upper: &[u8]| key < upper);
                    if covers {
                        return Ok(Some(Unreadable { page, lower, upper, error }));
                    }
                }
            }
            Err(self.lost())
        })
    }
}

/// Locates leaves for ascending keys. Each descent starts at the lowest inner node of the previous one, if that node
/// covers the key. The node may have become outdated, like any node during a descent.
pub(crate) struct Finger<'g> {
    tree: &'g Tree,
    immutable_pages: ImmutablePages<'g>,
    lowest: Option<Inner<'g>>,
    /// The child of `lowest` that covers the previous key.
    child: usize,
}

impl<'g> Finger<'g> {
    pub(crate) fn new(tree: &'g Tree, reclaim_guard: &'g ReclaimGuard<'g>) -> Finger<'g> {
        Finger { tree, immutable_pages: reclaim_guard.pages(&tree.pages.table), lowest: None, child: 0 }
    }

    /// Returns `true` if, according to its parent, the most recently located leaf covers the key. The key must not be
    /// lower than the previous one.
    #[inline]
    pub(crate) fn is_at(&self, key: &[u8]) -> bool {
        debug_assert!(self.lowest.is_none_or(|node| self.child < node.len()), "the finger points beyond its node");
        self.lowest.is_some_and(|node| match self.child + 1 {
            next if next < node.len() => node.compare_key(next, key).is_gt(),
            _ => node.upper_fence().is_none_or(|upper| key < upper),
        })
    }

    /// Returns the frame that appears to hold the key's leaf, like [`Tree::locate`] from the root.
    #[inline]
    pub(crate) fn locate(&mut self, key: &[u8]) -> Result<Option<(PageId, FrameIndex)>, Stop> {
        if let Some(node) = self.lowest.filter(|node| node.covers(key)) {
            assert!(node.level() == 1, "the finger points to a node of level {}", node.level());
            self.child = node.child_for(key);
            let page = node.child(self.child);
            if let PageEntry::Leaf(frame) = self.tree.pages.table.load(page) {
                self.tree.pool.frames.prefetch(frame);
                return Ok(Some((page, frame)));
            }
        }
        self.locate_from_root(key)
    }

    fn locate_from_root(&mut self, key: &[u8]) -> Result<Option<(PageId, FrameIndex)>, Stop> {
        self.lowest = None;
        let mut lowest_page = None;
        let located = self.tree.descend(Target::At(key), |page, _, inner, _| {
            if inner.level() == 1 {
                lowest_page = Some(page);
            }
        })?;
        let node = lowest_page.and_then(|page| self.immutable_pages.get(page));
        let inner =
            node.filter(|(_, bytes)| bytes[KIND_OFFSET] == Kind::Inner as u8).map(|(_, bytes)| Inner::new(bytes));
        // The node may have been replaced since the descent.
        if let Some(node) = inner.filter(|node| node.level() == 1 && node.covers(key)) {
            self.child = node.child_for(key);
            self.lowest = Some(node);
        }
        Ok(located)
    }
}

/// Returns the lower and upper fences of a child.
pub(crate) fn child_fences(inner: &Inner<'_>, child: usize) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    debug_assert!(child < inner.len(), "a node of {} children is asked for child {child}", inner.len());
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    let has_lower = inner.child_lower_into(child, &mut lower);
    let has_upper = inner.child_upper_into(child, &mut upper);
    (has_lower.then_some(lower), has_upper.then_some(upper))
}

fn separator(inner: &Inner<'_>, index: usize) -> Vec<u8> {
    let mut separator = Vec::new();
    inner.separator_into(index, &mut separator);
    separator
}
