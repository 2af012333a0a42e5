//! The keyspaces of a database, by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::counts::{CountedTree, Counts};
use crate::error::Result;
use crate::format::catalogue::{KeyspaceEntry, RunEntry};
use crate::format::record::{self, Operation};
use crate::format::{KeyspaceId, PageId, Timestamp};
use crate::hash::HashSet;
use crate::pool::NewFrame;
use crate::space::clones::ClonedPages;
use crate::space::kept::KeptSnapshot;
use crate::space::runs::{RemovedRange, Run};
use crate::space::{EpochGuard, PageSpace};
#[cfg(test)]
use crate::sync::MutexGuard;
use crate::sync::{Mutex, RwLock};
use crate::tree::{RowObserver, Tree};
use crate::txn::engine::Engine;
use crate::txn::keyspace::OpenKeyspace;
use crate::txn::versions::Versions;

/// The keyspaces of one open database, and the id of the next one.
#[derive(Debug)]
pub(crate) struct Keyspaces {
    by_name: RwLock<ByName>,
    /// The id of the next new keyspace.
    next: AtomicU32,
    /// Dropped keyspaces whose pages are not freed yet.
    unfreed: Mutex<Vec<Arc<OpenKeyspace>>>,
    /// Held by the thread that frees the pages of dropped keyspaces. Others wait until it has finished.
    freeing: Mutex<()>,
}

#[derive(Debug, Default)]
struct ByName {
    keyspaces: BTreeMap<Arc<str>, Arc<OpenKeyspace>>,
    /// The timestamp of the newest commit that took a name away from a keyspace: by dropping or renaming it.
    last_change: Timestamp,
}

/// Changes of keyspaces that take effect together. The names that keyspaces give up by them are free for others.
#[derive(Debug, Default)]
pub(super) struct Alteration {
    pub(super) dropped: Vec<Arc<OpenKeyspace>>,
    /// Keyspaces with their new names.
    pub(super) renamed: Vec<(Arc<OpenKeyspace>, Arc<str>)>,
    pub(super) created: Vec<NewKeyspace>,
}

/// A keyspace to be created.
#[derive(Clone, Debug)]
pub(super) struct NewKeyspace {
    pub(super) id: KeyspaceId,
    pub(super) page_bytes: usize,
    pub(super) name: Arc<str>,
}

impl Alteration {
    pub(super) fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.renamed.is_empty() && self.created.is_empty()
    }

    /// Returns the body of the log record.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for open in &self.dropped {
            record::encode(open.tree.pages.id, &Operation::Drop, &mut body);
        }
        for (open, name) in &self.renamed {
            record::encode(open.tree.pages.id, &Operation::Rename { name }, &mut body);
        }
        for NewKeyspace { id, page_bytes, name } in &self.created {
            record::encode(*id, &Operation::Create { page_bytes: *page_bytes as u32, name }, &mut body);
        }
        body
    }
}

impl ByName {
    /// Returns the keyspace that a program calls by this name.
    fn find(&self, name: &str) -> Option<Arc<OpenKeyspace>> {
        self.keyspaces.get(name).filter(|_| !name.is_empty()).cloned()
    }
}

impl Keyspaces {
    /// Creates an empty list of keyspaces. The first keyspace to be created gets the id `next`.
    pub(super) fn new(next: u32) -> Keyspaces {
        Keyspaces {
            by_name: RwLock::default(),
            next: AtomicU32::new(next),
            unfreed: Mutex::default(),
            freeing: Mutex::default(),
        }
    }

    /// Returns the ids of the next `count` new keyspaces, or `None` if fewer are left.
    pub(super) fn next(&self, count: u32) -> Option<impl Iterator<Item = KeyspaceId>> {
        let next = self.next.load(Ordering::Relaxed);
        let end = next.checked_add(count).filter(|end| *end <= KeyspaceId::KEPT_FIRST.0);
        end.map(|end| (next..end).map(KeyspaceId))
    }

    /// Pretends that all ids are used up.
    #[cfg(test)]
    pub(crate) fn exhaust(&self) {
        self.next.store(u32::MAX, Ordering::Relaxed);
    }

    /// Returns the keyspace with this name.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<OpenKeyspace>> {
        self.by_name.read().find(name)
    }

    /// Returns the keyspace of prepared transactions, if it exists. It has an empty name, by which no program can open
    /// or drop it.
    pub(super) fn prepared(&self) -> Option<Arc<OpenKeyspace>> {
        self.by_name.read().keyspaces.get("").cloned()
    }

    /// Returns the keyspace with this name, and the timestamp of the commit that the answer depends on: the one that
    /// gave the keyspace its name, or the newest that took a name away if there is no such keyspace.
    pub(super) fn get_since(&self, name: &str) -> (Option<Arc<OpenKeyspace>>, Timestamp) {
        let by_name = self.by_name.read();
        let open = by_name.find(name);
        let named = open.as_ref().map(|open| Timestamp(open.named.load(Ordering::Relaxed)));
        (open, named.unwrap_or(by_name.last_change))
    }

    /// Returns the keyspace with this id. O(log n).
    pub(super) fn get_by_id<L>(&self, engine: &Engine<L>, id: KeyspaceId) -> Option<Arc<OpenKeyspace>> {
        let name = engine.space.page_space(id)?.name();
        self.by_name.read().keyspaces.get(&*name).filter(|open| open.tree.pages.id == id).cloned()
    }

    /// Returns all keyspaces, sorted by name: that of prepared transactions, whose name is empty, comes first.
    pub(crate) fn all(&self) -> Vec<Arc<OpenKeyspace>> {
        self.by_name.read().keyspaces.values().cloned().collect()
    }

    /// Returns all keyspaces and the next id, in the form in which a catalogue records them. It lacks what is known
    /// only once their pages are written.
    pub(super) fn entries(&self) -> (Vec<KeyspaceEntry>, u32) {
        let entry = |open: &Arc<OpenKeyspace>| KeyspaceEntry {
            id: open.tree.pages.id,
            page_bytes: open.tree.pages.page_bytes() as u32,
            page_end: open.tree.pages.table.number_end(),
            leaf_count: 0,
            leaf_rows: 0,
            has_values: false,
            name: open.name().to_string(),
            chunks: Vec::new(),
            runs: open.tree.pages.runs.all().iter().map(run_entry).collect(),
            origins: open.tree.pages.origins().to_vec(),
        };
        let entries = self.by_name.read().keyspaces.values().map(entry).collect();
        (entries, self.next.load(Ordering::Relaxed))
    }

    /// Adds a keyspace whose pages already exist. See [`OpenKeyspace::created`] for `created`.
    pub(super) fn add<L>(&self, engine: &Engine<L>, pages: Arc<PageSpace>, created: Timestamp) -> Arc<OpenKeyspace> {
        let open = Arc::new(open_keyspace(engine, pages, created));
        let replaced = self.by_name.write().keyspaces.insert(open.name(), Arc::clone(&open));
        debug_assert!(replaced.is_none(), "two keyspaces have the name {:?}", open.name());
        open
    }

    /// Adds a clone, whose pages are published under the exclusive epoch latch.
    pub(super) fn add_clone<L>(
        &self,
        engine: &Engine<L>,
        epoch_guard: &EpochGuard<'_>,
        cloned: &mut ClonedPages<'_>,
        timestamp: Timestamp,
    ) {
        cloned.publish(epoch_guard, timestamp);
        self.next.fetch_max(cloned.pages.id.0 + 1, Ordering::Relaxed);
        self.add(engine, Arc::clone(&cloned.pages), timestamp);
    }

    /// Makes changes of keyspaces under the exclusive epoch latch. `frames` are for the root pages of those that are
    /// created, in the same order. The roots of those that are dropped are
    /// [prepared](crate::pool::Pool::prepare_root). O(keyspaces): [`free_dropped`](Self::free_dropped) frees the pages
    /// of dropped keyspaces.
    pub(super) fn alter<L>(
        &self,
        engine: &Engine<L>,
        alteration: &Alteration,
        frames: Vec<NewFrame<'_>>,
        epoch_guard: &EpochGuard<'_>,
        timestamp: Timestamp,
    ) {
        let Alteration { dropped, renamed, created } = alteration;
        assert_eq!(frames.len(), created.len(), "keyspaces are created without root pages");
        let create = |(new, frame): (&NewKeyspace, _)| self.create_root(engine, new, frame, epoch_guard, timestamp);
        let created: Vec<Arc<OpenKeyspace>> = created.iter().zip(frames).map(create).collect();
        for open in dropped {
            engine.space.drop_page_space(epoch_guard, &open.tree.pages);
            engine.pool.free_root(epoch_guard, &open.tree.pages);
        }
        let mut by_name = self.by_name.write();
        for open in dropped.iter().chain(renamed.iter().map(|(open, _)| open)) {
            let removed = by_name.keyspaces.remove(&open.name());
            debug_assert!(removed.is_some_and(|removed| Arc::ptr_eq(&removed, open)), "{open:?} has another name");
            by_name.last_change = timestamp;
        }
        for (open, name) in renamed {
            engine.space.rename_page_space(epoch_guard, &open.tree.pages, Arc::clone(name));
            open.named.store(timestamp.0, Ordering::Relaxed);
        }
        for open in created.iter().chain(renamed.iter().map(|(open, _)| open)) {
            let replaced = by_name.keyspaces.insert(open.name(), Arc::clone(open));
            assert!(replaced.is_none(), "two keyspaces have the name {:?}", open.name());
        }
        drop(by_name);
        self.unfreed.lock().extend(dropped.iter().cloned());
    }

    /// Frees the memory and the disk space of dropped keyspaces. If another thread is doing so, waits for it. The disk
    /// space can be reused after the next checkpoint. O(pages), in small steps, so that commits and checkpoints can
    /// continue.
    ///
    /// If the process is killed before that, nothing is lost: recovery repeats the drop, unless a checkpoint covers it,
    /// in which case nothing on disk refers to the pages.
    pub(super) fn free_dropped<L>(&self, engine: &Engine<L>) -> Result<()> {
        let _guard = self.freeing.lock();
        loop {
            let Some(open) = self.unfreed.lock().last().cloned() else { return Ok(()) };
            let pages = &open.tree.pages;
            open.tree.counts.discard();
            engine.pool.free_dropped(pages)?;
            engine.space.remove_page_space(pages);
            // Only now, because a reader that had passed the root before the drop may have latched a leaf, whose old
            // versions it needs.
            engine.versions.drop_keyspace(pages.id);
            self.unfreed.lock().retain(|other| !Arc::ptr_eq(other, &open));
        }
    }

    /// Returns `true` while a thread frees the pages of dropped keyspaces.
    #[cfg(test)]
    pub(crate) fn is_freeing(&self) -> bool {
        self.freeing.try_lock().is_none()
    }

    /// Keeps dropped keyspaces from being freed, as if the thread that frees them were slow.
    #[cfg(test)]
    pub(crate) fn hold_freeing(&self) -> MutexGuard<'_, ()> {
        self.freeing.lock()
    }

    /// Creates an empty keyspace with `frame` as its root page.
    fn create_root<L>(
        &self,
        engine: &Engine<L>,
        new: &NewKeyspace,
        frame: NewFrame<'_>,
        epoch_guard: &EpochGuard<'_>,
        created: Timestamp,
    ) -> Arc<OpenKeyspace> {
        let pages = Arc::new(PageSpace::new(new.id, new.page_bytes, &new.name, &engine.budget));
        let open = Arc::new(open_keyspace(engine, Arc::clone(&pages), created));
        open.tree.create_root(epoch_guard, frame);
        engine.space.add_page_space(pages);
        if new.id != KeyspaceId::PREPARED {
            self.next.fetch_max(new.id.0 + 1, Ordering::Relaxed);
        }
        open
    }

    /// Returns `true` if no two keyspaces would have the same name after these changes.
    pub(super) fn allows(&self, alteration: &Alteration) -> bool {
        let Alteration { dropped, renamed, created } = alteration;
        let left: HashSet<KeyspaceId> =
            dropped.iter().chain(renamed.iter().map(|(open, _)| open)).map(|open| open.tree.pages.id).collect();
        let mut names = HashSet::default();
        let by_name = self.by_name.read();
        left.len() == dropped.len() + renamed.len()
            && renamed.iter().map(|(_, name)| name).chain(created.iter().map(|new| &new.name)).all(|name| {
                let owner = by_name.keyspaces.get(name);
                names.insert(name) && owner.is_none_or(|owner| left.contains(&owner.tree.pages.id))
            })
    }
}

fn run_entry(run: &Run) -> RunEntry {
    let Run { root, timestamp, freed_to, removed, written: _ } = run.clone();
    let removed = removed.ranges().iter().cloned().map(|RemovedRange { lower, upper }| (lower, upper)).collect();
    RunEntry { root, timestamp, freed_to, removed }
}

/// Reacts to structure changes of a keyspace's tree: moves old versions along with their rows, and voids the counts of
/// the changed pages.
struct KeyspaceObserver {
    versions: Arc<Versions>,
    counts: Arc<Counts>,
}

impl RowObserver for KeyspaceObserver {
    fn page_created(&self, page: PageId) {
        self.counts.page_created(page);
    }

    fn begin_change(&self, pages: &[PageId]) {
        self.counts.begin_change(pages);
    }

    fn end_change(&self, pages: &[PageId]) {
        self.counts.end_change(pages);
    }

    fn rows_moved(&self, pages: &PageSpace, from: PageId, to: PageId, separator: Option<&[u8]>) {
        self.versions.rows_moved(pages, from, to, separator);
    }
}

fn open_keyspace<L>(engine: &Engine<L>, pages: Arc<PageSpace>, created: Timestamp) -> OpenKeyspace {
    let counts: Arc<Counts> = Arc::default();
    let observer = KeyspaceObserver { versions: Arc::clone(&engine.versions), counts: Arc::clone(&counts) };
    let tree = Tree::new(pages, Arc::clone(&engine.pool), Arc::new(observer));
    OpenKeyspace { tree: CountedTree::new(tree, counts), created, named: AtomicU64::new(created.0) }
}

/// Keeps a kept snapshot's segments pinned for as long as one of its trees exists. No structure of these trees changes.
struct KeptObserver {
    _kept: Arc<KeptSnapshot>,
}

impl RowObserver for KeptObserver {
    fn page_created(&self, page: PageId) {
        unreachable!("page {page} is created in a kept snapshot");
    }

    fn begin_change(&self, pages: &[PageId]) {
        unreachable!("pages {pages:?} of a kept snapshot change");
    }

    fn end_change(&self, _pages: &[PageId]) {}

    fn rows_moved(&self, _pages: &PageSpace, from: PageId, _to: PageId, _separator: Option<&[u8]>) {
        unreachable!("rows of page {from} of a kept snapshot move");
    }
}

/// Returns a keyspace of a kept snapshot, whose pages are in `pages`.
pub(super) fn open_kept_keyspace(engine: &Engine, pages: Arc<PageSpace>, kept: Arc<KeptSnapshot>) -> OpenKeyspace {
    let tree = Tree::new(pages, Arc::clone(&engine.pool), Arc::new(KeptObserver { _kept: kept }));
    let tree = CountedTree::new(tree, Arc::default());
    OpenKeyspace { tree, created: Timestamp(0), named: AtomicU64::new(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::checkpoint::ChunkAddresses;
    use crate::space::table::KEYSPACE_BYTES;

    /// An empty keyspace takes no more memory than its table takes from the budget: its structures, each with the
    /// counters of its references, and its places in maps that are two thirds full.
    #[test]
    fn an_empty_keyspace_takes_the_memory_that_it_is_charged() {
        const COUNTERS: usize = 2 * size_of::<usize>();
        /// A short name.
        const NAME_BYTES: usize = 12;
        let shared = [size_of::<PageSpace>(), size_of::<OpenKeyspace>(), size_of::<KeyspaceObserver>()];
        let shared = [&shared[..], &[size_of::<Counts>(), NAME_BYTES]].concat();
        let maps = [
            size_of::<(Arc<str>, Arc<OpenKeyspace>)>(),
            size_of::<Arc<PageSpace>>(),
            size_of::<(KeyspaceId, ChunkAddresses)>(),
        ];
        let bytes = shared.iter().map(|bytes| bytes + COUNTERS).sum::<usize>()
            + maps.iter().sum::<usize>() * 3 / 2
            + size_of::<u16>()
            // Tests have a limit of page numbers in the table.
            - size_of::<u64>();
        assert!(
            (KEYSPACE_BYTES - 32..=KEYSPACE_BYTES).contains(&(bytes as u64)),
            "{bytes} bytes: {shared:?}, {maps:?}"
        );
    }
}
