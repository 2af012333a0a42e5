//! The keyspaces of a database, by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::counts::{CountedTree, Counts};
use crate::error::Result;
use crate::format::catalogue::KeyspaceEntry;
use crate::format::{KeyspaceId, PageId, Timestamp};
use crate::pool::NewFrame;
use crate::space::{EpochGuard, PageSpace};
use crate::sync::RwLock;
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
}

#[derive(Debug, Default)]
struct ByName {
    keyspaces: BTreeMap<String, Arc<OpenKeyspace>>,
    /// The timestamp of the newest drop.
    last_drop: Timestamp,
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
        Keyspaces { by_name: RwLock::default(), next: AtomicU32::new(next) }
    }

    /// Returns the id of the next new keyspace, or `None` if the ids are used up.
    pub(super) fn next(&self) -> Option<KeyspaceId> {
        let next = self.next.load(Ordering::Relaxed);
        (next != u32::MAX).then_some(KeyspaceId(next))
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

    /// Returns the keyspace with this name, and the timestamp of the commit on which the answer depends. That is the
    /// keyspace's creation, or the newest drop if there is no such keyspace.
    pub(super) fn get_since(&self, name: &str) -> (Option<Arc<OpenKeyspace>>, Timestamp) {
        let by_name = self.by_name.read();
        let open = by_name.find(name);
        let since = open.as_ref().map_or(by_name.last_drop, |open| open.created);
        (open, since)
    }

    /// Returns the keyspace with this id.
    pub(crate) fn get_by_id(&self, id: KeyspaceId) -> Option<Arc<OpenKeyspace>> {
        self.by_name.read().keyspaces.values().find(|open| open.tree.pages.id == id).cloned()
    }

    /// Returns all keyspaces, sorted by name: that of prepared transactions, whose name is empty, comes first.
    pub(crate) fn all(&self) -> Vec<Arc<OpenKeyspace>> {
        self.by_name.read().keyspaces.values().cloned().collect()
    }

    /// Returns all keyspaces and the next id, in the form in which a catalogue records them.
    pub(super) fn entries(&self) -> (Vec<KeyspaceEntry>, u32) {
        let entry = |open: &Arc<OpenKeyspace>| KeyspaceEntry {
            id: open.tree.pages.id,
            page_bytes: open.tree.pages.page_bytes as u32,
            name: open.name().to_owned(),
            chunks: Vec::new(),
        };
        let entries = self.by_name.read().keyspaces.values().map(entry).collect();
        (entries, self.next.load(Ordering::Relaxed))
    }

    /// Adds a keyspace whose pages already exist. See [`OpenKeyspace::created`] for `created`.
    pub(super) fn add<L>(&self, engine: &Engine<L>, pages: Arc<PageSpace>, created: Timestamp) -> Arc<OpenKeyspace> {
        let open = Arc::new(open_keyspace(engine, pages, created));
        self.by_name.write().keyspaces.insert(open.name().to_owned(), Arc::clone(&open));
        open
    }

    /// Creates an empty keyspace under the epoch latch, with `frame` as its root page.
    pub(super) fn create_root<L>(
        &self,
        engine: &Engine<L>,
        id: KeyspaceId,
        (name, created): (&str, Timestamp),
        frame: NewFrame<'_>,
        epoch_guard: &EpochGuard<'_>,
    ) -> Arc<OpenKeyspace> {
        let pages = Arc::new(PageSpace::new(id, frame.len(), name, &engine.budget));
        let open = Arc::new(open_keyspace(engine, Arc::clone(&pages), created));
        open.tree.create_root(epoch_guard, frame);
        engine.space.add_page_space(pages);
        self.by_name.write().keyspaces.insert(name.to_owned(), Arc::clone(&open));
        if id != KeyspaceId::PREPARED {
            self.next.fetch_max(id.0 + 1, Ordering::Relaxed);
        }
        open
    }

    /// Removes a keyspace and its content, under the exclusive epoch latch.
    pub(super) fn drop_tree<L>(
        &self,
        engine: &Engine<L>,
        open: &OpenKeyspace,
        epoch_guard: &EpochGuard<'_>,
        timestamp: Timestamp,
    ) -> Result<()> {
        let pages = &open.tree.pages;
        pages.dropped.store(true, Ordering::Release);
        let mut by_name = self.by_name.write();
        by_name.keyspaces.remove(open.name());
        by_name.last_drop = timestamp;
        drop(by_name);
        open.tree.counts.discard();
        engine.pool.discard(epoch_guard, pages)?;
        engine.space.drop_page_space(epoch_guard, pages);
        engine.versions.drop_keyspace(pages.id);
        Ok(())
    }
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
    OpenKeyspace { tree: CountedTree::new(tree, counts), created }
}
