//! Taking, opening and dropping kept snapshots. `space/kept.rs` explains what they are on disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::keyspaces::open_kept_keyspace;
use super::state::Store;
use crate::error::{Error, Result};
use crate::format::backup::SnapshotId;
use crate::format::{KeyspaceId, Timestamp};
use crate::space::Reclaims;
use crate::space::kept::KeptSnapshot;
use crate::txn::keyspace::OpenKeyspace;

/// The length of the longest name of a kept snapshot, in bytes.
const SNAPSHOT_NAME_BYTES_MAX: usize = 255;

/// An open kept snapshot: its keyspaces, in memory.
#[derive(Debug)]
pub(crate) struct OpenedSnapshot {
    pub(crate) kept: Arc<KeptSnapshot>,
    by_name: BTreeMap<Arc<str>, Arc<OpenKeyspace>>,
    /// The keyspaces by the ids that they have in the database.
    by_id: BTreeMap<KeyspaceId, Arc<OpenKeyspace>>,
}

impl OpenedSnapshot {
    /// Returns the keyspace that had this name when the snapshot was taken.
    pub(crate) fn keyspace(&self, name: &str) -> Option<&Arc<OpenKeyspace>> {
        self.by_name.get(name).filter(|_| !name.is_empty())
    }

    /// Returns the keyspaces, sorted by name, with the ids that they have in the database.
    pub(crate) fn keyspaces(&self) -> Vec<(KeyspaceId, &Arc<OpenKeyspace>)> {
        let mut keyspaces: Vec<_> = self.by_id.iter().map(|(id, open)| (*id, open)).collect();
        keyspaces.retain(|(_, open)| !open.name().is_empty());
        keyspaces.sort_by_key(|(_, open)| open.name());
        keyspaces
    }

    /// Returns the snapshot's form of a keyspace, which may be one of the database or of this snapshot.
    pub(crate) fn form_of(&self, open: &OpenKeyspace) -> Option<&Arc<OpenKeyspace>> {
        let id = open.tree.pages.id;
        self.by_id.get(&id).or_else(|| self.by_name.get(&open.name()).filter(|own| own.tree.pages.id == id))
    }
}

impl Store {
    /// Takes a kept snapshot: makes a checkpoint and keeps it. Returns the timestamp of the newest commit in it.
    pub(crate) fn keep_snapshot(&self, name: &str) -> Result<Timestamp> {
        self.check_writable()?;
        if name.is_empty() || name.len() > SNAPSHOT_NAME_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "{} can't name a snapshot: names have 1 to {SNAPSHOT_NAME_BYTES_MAX} bytes",
                crate::error::quoted(name)
            )));
        }
        let space = &self.engine.space;
        let taken_at_ms = self.engine.backend.wall_clock().as_millis() as u64;
        let id = SnapshotId(self.engine.backend.random().max(1));
        self.page_tables.lock().kept.want(space, name, id, taken_at_ms)?;
        let made = self.checkpoint();
        // Another thread's checkpoint may have kept the snapshot, even if this one failed.
        if self.page_tables.lock().kept.withdraw(space, name) {
            made?;
            self.engine.check_failure()?;
            unreachable!("a checkpoint keeps every snapshot that was wanted before it");
        }
        space.kept.get(name).map(|kept| kept.timestamp)
    }

    /// Drops a kept snapshot. Its space is free when this returns, unless the snapshot is open.
    pub(crate) fn drop_snapshot(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        let space = &self.engine.space;
        self.page_tables.lock().kept.begin_drop(space, name)?;
        // Unpinning frees segments, so this checkpoint needs to leave none for the next one.
        let made = match self.checkpoint_after(Reclaims::Segments) {
            Err(Error::DiskFull { .. }) => self.checkpoint(),
            made => made,
        };
        if self.page_tables.lock().kept.undo_drop(space, name) {
            made?;
            self.engine.check_failure()?;
            unreachable!("a checkpoint drops every snapshot that was to be dropped before it");
        }
        Ok(())
    }

    /// Opens a kept snapshot: reads its page tables. O(pages).
    pub(crate) fn open_kept(&self, name: &str) -> Result<OpenedSnapshot> {
        let engine = &self.engine;
        let space = &engine.space;
        space.check_open()?;
        let kept = space.kept.get(name)?;
        let catalogue = kept.read_catalogue(space)?;
        let table_bytes = KeptSnapshot::table_bytes(&catalogue);
        space.check_table_growth(table_bytes)?;
        engine.pool.fit_frames(table_bytes)?;
        let (mut by_name, mut by_id) = (BTreeMap::new(), BTreeMap::new());
        for (id, pages) in kept.open(space, &catalogue)? {
            engine.pool.reserve_frames(pages.page_bytes)?;
            let open = Arc::new(open_kept_keyspace(engine, pages, Arc::clone(&kept)));
            by_name.insert(open.name(), Arc::clone(&open));
            by_id.insert(id, open);
        }
        Ok(OpenedSnapshot { kept, by_name, by_id })
    }
}
