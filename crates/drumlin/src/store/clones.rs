//! Cloning keyspaces. `space/clones.rs` explains what a clone is on disk.

use std::sync::Arc;

use super::alterations::check_name;
use super::requests::PausedMaintenance;
use super::state::Store;
use crate::error::{Error, Result};
use crate::format::record::{self, Operation};
use crate::format::{ExtentAddress, KeyspaceId, SegmentUse, Timestamp, catalogue};
use crate::seglog::Body;
use crate::space::Purpose;
use crate::space::checkpoint::PageTableStore;
use crate::space::clones::ClonedPages;
use crate::space::table::CHUNK_BYTES;
use crate::sync::MutexGuard;
use crate::task::{WaitMode, ready};
use crate::txn::keyspace::OpenKeyspace;

/// Makes each checkpoint write a base image for as long as it exists.
struct HeldBaseImages<'s> {
    store: &'s Store,
    /// The newest use of a segment at the beginning.
    began_at: SegmentUse,
}

impl<'s> HeldBaseImages<'s> {
    fn new(store: &'s Store) -> HeldBaseImages<'s> {
        let began_at = store.engine.space.segments.newest_use();
        store.lock_page_tables().hold_base_images(true);
        HeldBaseImages { store, began_at }
    }

    /// Locks the page tables as of the newest checkpoint, which was made since this exists.
    fn lock(&self) -> MutexGuard<'s, PageTableStore> {
        self.store.lock_page_tables()
    }

    /// Like [`lock`](Self::lock), but returns `None` while a checkpoint is being made.
    fn try_lock(&self) -> Option<MutexGuard<'s, PageTableStore>> {
        self.store.page_tables.try_lock()
    }
}

impl Drop for HeldBaseImages<'_> {
    fn drop(&mut self) {
        self.store.lock_page_tables().hold_base_images(false);
    }
}

/// The newest checkpoint, while no other one is made.
pub(crate) struct HeldCheckpoint<'s> {
    base_images: HeldBaseImages<'s>,
    _paused: PausedMaintenance<'s>,
}

impl Store {
    /// Creates the keyspace `to` as a clone of `from`: makes a checkpoint, and shares what it has of `from`. Returns
    /// the checkpoint's timestamp. Durable when it returns.
    pub(crate) fn clone_keyspace(self: &Arc<Self>, from: &str, to: &str) -> Result<Timestamp> {
        self.check_writable()?;
        let _defining = self.defining.lock();
        let (source, id) = self.plan_clone(from, to)?;
        let held = HeldBaseImages::new(self);
        self.checkpoint()?;
        // Page tables are read under the lock that a checkpoint needs. So this is repeated only if a checkpoint became
        // due while they were read, which takes far less time than writing a checkpoint's share of the log.
        loop {
            if let Some(as_of) = self.clone_checkpoint(&held, &source, id, to)? {
                self.fold_runs();
                return Ok(as_of);
            }
        }
    }

    /// Makes a checkpoint of which a keyspace can be cloned. No other one is made until the result is dropped.
    pub(crate) fn hold_checkpoint(&self) -> Result<HeldCheckpoint<'_>> {
        let paused = self.maintenance.pause();
        let base_images = HeldBaseImages::new(self);
        self.checkpoint()?;
        Ok(HeldCheckpoint { base_images, _paused: paused })
    }

    /// Clones a keyspace like [`clone_keyspace`](Self::clone_keyspace), as of a checkpoint that was made before, and
    /// with this id. Fails if the keyspaces do not allow it.
    pub(crate) fn repeat_clone(
        self: &Arc<Self>,
        held: &HeldCheckpoint<'_>,
        from: KeyspaceId,
        as_of: Timestamp,
        (id, to): (KeyspaceId, &str),
    ) -> Result<()> {
        let _defining = self.defining.lock();
        let source = self.keyspace_with_id(from).filter(|_| self.engine.space.page_space(id).is_none());
        let cloned = match source {
            Some(source) if self.keyspaces.get(to).is_none() => {
                self.clone_checkpoint(&held.base_images, &source, id, to)?
            }
            _ => None,
        };
        match cloned {
            Some(found) if found == as_of => Ok(()),
            _ => Err(Error::Invalid("an archived clone does not fit the restored keyspaces".into())),
        }
    }

    /// Clones `source` as of the newest checkpoint. Returns the checkpoint's timestamp, or `None` if another one began.
    fn clone_checkpoint(
        self: &Arc<Self>,
        held: &HeldBaseImages<'_>,
        source: &OpenKeyspace,
        id: KeyspaceId,
        to: &str,
    ) -> Result<Option<Timestamp>> {
        let engine = &self.engine;
        let space = &engine.space;
        let origin = source.tree.pages.id;
        // For the catalogue's entry.
        let table_bytes = source.tree.pages.table.memory_bytes();
        let chunk_list_bytes = (table_bytes / CHUNK_BYTES + 1) * size_of::<ExtentAddress>() as u64;
        let entry_bytes = catalogue::keyspace_bytes(to.len(), source.tree.pages.origins().len() + 1);
        let reserved_bytes = entry_bytes + chunk_list_bytes;
        let _reserved = ready(engine.reserve_space(WaitMode::Blocking, Purpose::Put, reserved_bytes))?;
        // While the page tables are locked, no checkpoint frees the extents.
        let page_tables = held.lock();
        let as_of = page_tables.superblock.timestamp;
        let Some(base) = page_tables.clone_base(space, origin)? else { return Ok(None) };
        space.check_table_growth(base.table_bytes())?;
        engine.pool.fit_frames(base.table_bytes())?;
        let cloned = base.read(space, (id, to), held.began_at)?;
        drop(page_tables);
        let is_published = self.publish_clone(held, origin, as_of, cloned, to)?;
        Ok(is_published.then_some(as_of))
    }

    /// Publishes a clone of `origin` as of the checkpoint at `as_of`. Returns `false` if another checkpoint has begun.
    fn publish_clone(
        &self,
        held: &HeldBaseImages<'_>,
        origin: KeyspaceId,
        as_of: Timestamp,
        mut cloned: ClonedPages<'_>,
        name: &str,
    ) -> Result<bool> {
        let engine = &self.engine;
        let id = cloned.pages.id;
        let mut body = Vec::new();
        record::encode(id, &Operation::Clone { from: origin, as_of, name }, &mut body);
        let (is_published, _) = engine.log_ddl(&Body::new(body), |take_timestamp| {
            // Don't wait for a checkpoint while space in the log is reserved.
            let Some(mut page_tables) = held.try_lock() else { return Ok(false) };
            if page_tables.superblock.timestamp != as_of {
                return Ok(false);
            }
            let epoch_guard = engine.space.epoch_latch.exclusive();
            crate::coverage::cloning(as_of);
            let timestamp = take_timestamp()?;
            // Nothing below this point can fail.
            crate::coverage::mark!("a keyspace was cloned");
            page_tables.add_clone(id, std::mem::take(&mut cloned.chunks));
            self.keyspaces.add_clone(engine, &epoch_guard, &mut cloned, timestamp);
            engine.clock.mark_applied(timestamp);
            Ok(true)
        })?;
        Ok(is_published)
    }

    /// Checks the names. Returns the keyspace `from`, and the id for its clone. The caller has locked `defining`.
    fn plan_clone(&self, from: &str, to: &str) -> Result<(Arc<OpenKeyspace>, KeyspaceId)> {
        let source = self.keyspaces.get(from).ok_or_else(|| Error::NoSuchKeyspace { name: from.to_owned() })?;
        check_name(to)?;
        if self.keyspaces.get(to).is_some() {
            return Err(Error::KeyspaceExists { name: to.to_owned() });
        }
        if !source.tree.pages.origins().is_empty() {
            crate::coverage::mark!("a keyspace that was itself a clone was cloned");
        }
        match self.keyspaces.next(1).and_then(|mut ids| ids.next()) {
            Some(id) => Ok((source, id)),
            None => Err(Error::Invalid("no more keyspaces can be created: their numbers are used up".into())),
        }
    }
}
