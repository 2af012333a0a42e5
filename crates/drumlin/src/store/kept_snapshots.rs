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
    /// Takes a kept snapshot: makes a checkpoint and keeps it. Returns the timestamp of the newest commit in it. A
    /// temporary snapshot does not survive the opening.
    pub(crate) fn keep_snapshot(&self, name: &str, is_temporary: bool) -> Result<Timestamp> {
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
        self.lock_page_tables().kept.want(space, name, id, taken_at_ms, is_temporary)?;
        let made = self.checkpoint();
        // Another thread's checkpoint may have kept the snapshot, even if this one failed. A checkpoint that failed
        // after it had begun has neither left the snapshot wanted nor published it.
        let is_withdrawn = self.lock_page_tables().kept.withdraw(space, name);
        let kept = space.kept.get(name);
        if is_withdrawn || kept.is_err() {
            made?;
            self.engine.check_failure()?;
        }
        assert!(!is_withdrawn, "a checkpoint keeps every snapshot that was wanted before it");
        kept.map(|kept| kept.timestamp)
    }

    /// Drops a kept snapshot. Its space is free when this returns, unless the snapshot is open.
    pub(crate) fn drop_snapshot(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        let space = &self.engine.space;
        let mut page_tables = self.lock_page_tables();
        // A checkpoint that failed may list snapshots that are not kept.
        self.engine.check_failure()?;
        page_tables.kept.begin_drop(space, name)?;
        drop(page_tables);
        // Unpinning frees segments, so this checkpoint needs to leave none for the next one.
        let made = match self.checkpoint_after(Reclaims::Segments) {
            Err(Error::DiskFull { .. }) => self.checkpoint(),
            made => made,
        };
        if self.lock_page_tables().kept.undo_drop(space, name) {
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
            engine.pool.reserve_frames(pages.page_bytes())?;
            let open = Arc::new(open_kept_keyspace(engine, pages, Arc::clone(&kept)));
            by_name.insert(open.name(), Arc::clone(&open));
            by_id.insert(id, open);
        }
        Ok(OpenedSnapshot { kept, by_name, by_id })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::io::fault::{FaultyBackend, Operation};
    use crate::{Config, Error};

    /// The name of a snapshot is taken until its drop can't be taken back.
    #[test]
    fn a_name_is_free_once_its_drop_is_durable() {
        let db = Config::new().backend(crate::io::in_memory()).memory(16 << 20).open("/db").unwrap();
        let timestamp = db.keep_snapshot("a").unwrap();
        let store = db.store().unwrap();
        let space = &store.engine.space;
        store.page_tables.lock().kept.begin_drop(space, "a").unwrap();
        assert!(matches!(db.keep_snapshot("a"), Err(Error::SnapshotExists { .. })));
        assert!(store.page_tables.lock().kept.undo_drop(space, "a"), "a checkpoint dropped it");
        db.checkpoint().unwrap();
        assert_eq!(db.open_snapshot("a").unwrap().timestamp(), timestamp);
        store.page_tables.lock().kept.begin_drop(space, "a").unwrap();
        db.checkpoint().unwrap();
        db.keep_snapshot("a").unwrap();
    }

    /// If a checkpoint fails, keeping and dropping report its error, and the snapshot is as before.
    #[test]
    fn failed_checkpoints_keep_and_drop_nothing() {
        for (operation, nth) in
            [Operation::Write, Operation::Sync].into_iter().flat_map(|of| (1..6).map(move |n| (of, n)))
        {
            for is_kept in [false, true] {
                let backend = Arc::new(FaultyBackend::new(crate::io::in_memory()));
                let config = Config::new().backend(backend.clone()).memory(16 << 20);
                let db = config.open("/db").unwrap();
                db.keyspace("k").unwrap().insert("a", "1").unwrap();
                if is_kept {
                    db.keep_snapshot("a").unwrap();
                }
                backend.fail_nth(operation, nth, 5);
                let change = || if is_kept { db.drop_snapshot("a") } else { db.keep_snapshot("a").map(drop) };
                let changed = change();
                backend.heal();
                let Err(error) = changed else { continue };
                let place = format!("{operation:?} {nth}, kept before: {is_kept}");
                let is_reported =
                    matches!(error, Error::Io { .. } | Error::Failed { .. } | Error::OutcomeUnknown { .. });
                assert!(is_reported, "{place}: {error:?}");
                assert_eq!(db.kept_snapshots().len(), usize::from(is_kept), "{place}");
                let dropped = db.drop_snapshot("a");
                let is_refused =
                    matches!(dropped, Err(Error::Io { .. } | Error::Failed { .. } | Error::OutcomeUnknown { .. }));
                assert!(is_refused, "{place}: {dropped:?}");
            }
        }
    }
}
