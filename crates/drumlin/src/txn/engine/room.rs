//! Whether a commit has room before it begins: in memory, for the pages that it makes dirty, until a checkpoint has written
//! them, and in the log.
//!
//! # The order in which a commit waits for room
//! Row locks, memory for what it holds ([`Engine::admit`]), space for pages, space in the log, memory for versions. Who has one
//! waits for those that follow, never for one before. So whoever has them all is waited for by others and waits for the disk
//! alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Engine;
use super::commit::Row;
use crate::error::{Error, Result};
use crate::memory::{Grant, Use};
use crate::seglog::Reservation;
use crate::task::Face;
use crate::tree::Incoming;
use crate::txn::read_set::Reads;
use crate::txn::write_set::Change;

/// Bytes of pages that a commit under way may make dirty, or that the cleaner is about to move.
pub(crate) struct Promised<'e> {
    sum: &'e AtomicU64,
    bytes: u64,
}

impl<'e> Promised<'e> {
    /// `None` if the sum is no longer `before`: then there may be less space than was looked for.
    fn new(sum: &'e AtomicU64, before: u64, bytes: u64) -> Option<Promised<'e>> {
        let exchanged = sum.compare_exchange(before, before + bytes, Ordering::Relaxed, Ordering::Relaxed);
        exchanged.ok().map(|_| Promised { sum, bytes })
    }
}

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// How often a commit has space made while others do.
const MAKE_SPACE_MAX: u32 = 4;

/// Memory that a commit has reserved until it is applied: for its record, and of the pages.
pub(super) struct Admitted {
    _work: Grant,
    _held: Grant,
}

/// Frames that a commit may need for a split, beside the leaves that it holds.
const SPLIT_FRAMES: u64 = 3;

/// What a commit has in memory for a row, beside the record.
const ROW_WORK_BYTES: usize = 2 * size_of::<Row<'_>>() + size_of::<Incoming<'_>>() + 16;

impl Engine {
    /// Reserves the memory that a commit will need until it is applied, all of it before it holds anything but its row locks, in
    /// the order of asking. Also returns the most bytes that its record has.
    pub(super) async fn admit(&self, face: Face<'_>, rows: &[Row<'_>], reads: Option<Reads<'_>>) -> (Admitted, usize) {
        let mut body_bytes = 0;
        let mut image_bytes = 0;
        let mut page_bytes = 0;
        for row in rows {
            page_bytes = page_bytes.max(row.tree.pages.page_bytes as u64);
            body_bytes += row.key.len() + 24;
            match row.change {
                Change::Put(value) => {
                    body_bytes += value.len();
                    if value.len() > row.tree.inline_bytes_max() {
                        image_bytes = image_bytes.max(2 * value.len() + (4 << 10));
                    }
                }
                Change::PutLarge(value) => body_bytes += 32 + 8 * value.places.len(),
                Change::Remove => {}
            }
        }
        let budget = &self.budget;
        let work_bytes = (body_bytes + image_bytes + rows.len() * ROW_WORK_BYTES) as u64;
        let read_bytes = reads.map_or(0, |reads| {
            reads
                .set
                .leaf_bytes_max()
                .map_or(self.held_reads_bytes_max(), |bytes| bytes.min(self.held_reads_bytes_max()))
        });
        let leaf_count = match rows.len() as u64 {
            // Its leaf is not held, but latched.
            1 => 0,
            count => count.min(self.held_leaves_max(page_bytes, reads.is_some())),
        };
        let held_bytes = (leaf_count + SPLIT_FRAMES) * page_bytes + read_bytes;
        let (mut work, mut held) = (budget.grant(Use::Commits), budget.grant(Use::Held));
        let mut attempt = || {
            // Who needs more than there is has all of it.
            if !work.resize(work_bytes.min(budget.limit_bytes(Use::Commits))) {
                return None;
            }
            if !held.resize(held_bytes.min(budget.limit_bytes(Use::Held))) {
                work.resize(0);
                return None;
            }
            Some(())
        };
        if budget.commits.are_awaited() || attempt().is_none() {
            crate::witness::mark!("a commit waited for memory");
            let turn = budget.commits.join();
            face.until(|waker| turn.poll(waker, &mut attempt)).await;
        }
        (Admitted { _work: work, _held: held }, body_bytes)
    }

    /// Leaves that a commit may hold to change them.
    pub(super) fn held_leaves_max(&self, page_bytes: u64, has_reads: bool) -> u64 {
        let read_bytes = if has_reads { self.held_reads_bytes_max() } else { 0 };
        ((self.budget.limit_bytes(Use::Held) - read_bytes) / page_bytes).saturating_sub(SPLIT_FRAMES).max(1)
    }

    /// Bytes of leaves that a serializable commit may hold to validate them.
    pub(super) fn held_reads_bytes_max(&self) -> u64 {
        self.budget.limit_bytes(Use::Held) / 2
    }

    /// Reserves memory for the versions that a commit will leave. Where there is too little, versions that nobody needs go, then
    /// the oldest snapshots; those of commits that are not durable yet are waited for.
    pub(super) async fn secure_versions(&self, face: Face<'_>, bytes: usize) -> Result<Option<Grant>> {
        // Recovery sweeps as it goes.
        let Some(log) = self.log.get() else { return Ok(None) };
        let budget = &self.budget;
        let (bytes, limit_bytes) = (bytes as u64, budget.limit_bytes(Use::Versions));
        if bytes > limit_bytes {
            return Err(Error::versions_too_large(limit_bytes));
        }
        let mut grant = budget.grant(Use::Versions);
        if !budget.versions.are_awaited() && grant.resize(bytes) {
            return Ok(Some(grant));
        }
        crate::witness::mark!("a commit waited for memory for versions");
        let turn = budget.versions.join();
        face.until(|waker| turn.poll(waker, || Some(()))).await;
        loop {
            {
                let alone = self.sweeping.lock();
                self.sweep_to(&alone, budget.version_bytes_max().min(limit_bytes - bytes));
            }
            if grant.resize(bytes) {
                return Ok(Some(grant));
            }
            if self.clock.visible() < self.clock.published() {
                self.await_durable(face, self.clock.published()).await?;
                self.clock.show_durable(log.durable());
                continue;
            }
            // Commits under way have the rest: what they do not leave they give back.
            let mut is_fit = || grant.resize(bytes) || self.clock.visible() < self.clock.published();
            face.until(|waker| turn.poll(waker, || is_fit().then_some(()))).await;
        }
    }

    /// Bytes that a checkpoint may need now, and `more_bytes` more: all dirty pages, those that commits under way will make
    /// dirty, their entries, what tables change.
    pub(crate) fn checkpoint_bytes(&self, more_bytes: u64) -> u64 {
        self.dirty_bytes(more_bytes) + self.table_bytes()
    }

    /// What of it is for pages, with their entries.
    fn dirty_bytes(&self, more_bytes: u64) -> u64 {
        let dirty = self.pool.frames.dirty_bytes() + self.promised_bytes.load(Ordering::Relaxed) + more_bytes;
        // Entries are 24 bytes, of pages of at least 512.
        dirty + dirty / 20
    }

    /// What of it is not: the base image may be folded and written anew, with the table of segments; the catalogue always is.
    fn table_bytes(&self) -> u64 {
        let catalogue_bytes = self.space.catalogue_bytes() + self.versions.orphan_bytes();
        // Parts of the catalogue have headers, and lie in units of 64 bytes.
        let catalogue_bytes = catalogue_bytes + catalogue_bytes / 256 + 128;
        self.space.summary_bytes() + self.space.table_bytes() + self.space.segments.table_bytes() + catalogue_bytes
    }

    /// The same in segments, as they are set aside.
    fn checkpoint_segments(&self, more_bytes: u64) -> u32 {
        // Segments waste what is left at their ends: up to one page of 64 KiB each, and blocks at flushes.
        let segment_bytes = self.space.segments.segment_bytes();
        let usable = segment_bytes * 3 / 4;
        let (dirty_bytes, table_bytes) = (self.dirty_bytes(more_bytes), self.table_bytes());
        let needed = ((dirty_bytes + table_bytes) / usable) as u32 + 1;
        self.space.reserve.store(needed, Ordering::Relaxed);
        self.space.table_segments.store((table_bytes / segment_bytes) as u32, Ordering::Relaxed);
        needed
    }

    /// The same where the disk is full, beside the segment that is being filled. What was set aside is for the worst; what
    /// frees space must not be refused for that.
    fn least_checkpoint_segments(&self, more_bytes: u64) -> u32 {
        let room_bytes = self.space.room_bytes() * 3 / 4;
        match self.checkpoint_bytes(more_bytes).saturating_sub(room_bytes) {
            0 => 0,
            bytes => (bytes / self.space.segments.segment_bytes()) as u32 + 1,
        }
    }

    /// Looks again how much the next checkpoint may need.
    pub(crate) fn update_reserve(&self) {
        self.checkpoint_segments(0);
    }

    /// Makes sure, before anything is begun that can't be taken back, that a checkpoint finds the space it needs, and, if it
    /// frees none, leaves some to another; else `DiskFull`, and the database goes on. No checkpoint is being made meanwhile.
    pub(crate) fn secure_checkpoint(&self, frees: bool) -> Result<()> {
        let is_full = |secured: &Result<()>| matches!(secured, Err(Error::DiskFull { .. }));
        let needed = self.checkpoint_segments(0);
        let table_segments = self.space.table_segments.load(Ordering::Relaxed);
        let kept_segments = if frees { 0 } else { table_segments + 1 };
        let secured = self.space.secure(needed + kept_segments);
        if !is_full(&secured) {
            return secured;
        }
        let secured = self.space.secure(self.least_checkpoint_segments(0) + kept_segments);
        if !is_full(&secured) {
            return secured;
        }
        // Pages count as whole frames until they are written, and may be much smaller then.
        crate::witness::mark!("dirty pages were written for a checkpoint to find space");
        self.pool.write_back_all(table_segments + kept_segments)?;
        self.space.secure(self.least_checkpoint_segments(0) + kept_segments)
    }

    /// Counts bytes that are about to be moved as those of a commit under way, until what is returned is dropped. `choose`
    /// says how many; asked again where a commit has been promised space meanwhile.
    pub(crate) fn promise_moves(&self, mut choose: impl FnMut() -> u64) -> Promised<'_> {
        loop {
            let before = self.promised_bytes.load(Ordering::Relaxed);
            if let Some(promised) = Promised::new(&self.promised_bytes, before, choose()) {
                return promised;
            }
        }
    }

    /// Makes sure that a page more can be dirty: what the cleaner moves by writing it anew.
    pub(crate) fn secure_rewrite(&self, page_bytes: usize) -> Result<()> {
        self.space.secure(self.checkpoint_segments(page_bytes as u64) + 1)
    }

    /// Makes sure that the pages which the commit will change can be written, whatever happens; else `DiskFull`. Commits
    /// that only remove may use the reserve. Holds until what is returned is dropped: then the pages are dirty, or never
    /// will be.
    pub(super) async fn secure_space(&self, face: Face<'_>, rows: &[Row<'_>]) -> Result<Promised<'_>> {
        let page_bytes = rows.iter().map(|row| row.tree.pages.page_bytes as u64).max().expect("rows");
        let row_bytes = |row: &Row<'_>| match row.change {
            Change::Put(value) => (row.key.len() + value.len()) as u64 + 128,
            // Each extent of a large value gets an entry, and a word in its table.
            Change::PutLarge(value) => row.key.len() as u64 + 128 + 32 * value.places.len() as u64,
            Change::Remove => row.key.len() as u64 + 128,
        };
        self.check_page_numbers(rows)?;
        // A leaf for each row, as many as a commit can hold, and what splits and merges add.
        let leaves = (rows.len() as u64 * page_bytes).min(self.pool.frames.limit_bytes() as u64 / 4);
        let own = leaves + 2 * rows.iter().map(row_bytes).sum::<u64>() + 6 * page_bytes;
        let only_removes = rows.iter().all(|row| matches!(row.change, Change::Remove));
        self.promise(face, own, only_removes).await
    }

    /// Refuses what might find no number for a page.
    fn check_page_numbers(&self, rows: &[Row<'_>]) -> Result<()> {
        let mut rest = rows;
        while let [first, ..] = rest {
            let pages = &first.tree.pages;
            let own = rest.iter().take_while(|row| row.tree.pages.id == pages.id).count();
            let (own, later) = rest.split_at(own);
            rest = later;
            // A leaf for each row, what splits add above it, and a value's extents.
            let row_pages = |row: &Row<'_>| match row.change {
                Change::Remove => 0,
                Change::Put(_) => 4,
                Change::PutLarge(value) => 4 + value.places.len() as u64,
            };
            let page_count: u64 = own.iter().map(row_pages).sum();
            // At recovery the numbers are those that the commit was given.
            if page_count > 0 && self.log.get().is_some() && !pages.table.has_numbers(page_count) {
                return Err(Error::Invalid(format!(
                    "keyspace {} has as many pages as there are numbers for: put new rows into another",
                    pages.id
                )));
            }
        }
        Ok(())
    }

    /// Makes sure that `own` bytes of pages more can be dirty, as [`secure_space`](Self::secure_space) does.
    pub(crate) async fn promise(&self, face: Face<'_>, own: u64, only_removes: bool) -> Result<Promised<'_>> {
        // At recovery the tables are what they were when the commit was made.
        if !only_removes && self.log.get().is_some() {
            self.space.check_tables()?;
        }
        let mut made_space = 0;
        loop {
            self.check_failure()?;
            let promised_bytes = self.promised_bytes.load(Ordering::Relaxed);
            let mut count = self.checkpoint_segments(own);
            if !only_removes {
                count += self.space.spare_segments();
            }
            let segments = &self.space.segments;
            if segments.has_free(count)
                || made_space > 0 && only_removes && segments.has_free(self.least_checkpoint_segments(own))
            {
                match Promised::new(&self.promised_bytes, promised_bytes, own) {
                    Some(promised) => return Ok(promised),
                    None => continue,
                }
            }
            let space = Arc::clone(&self.space);
            match face.run(move || space.secure(count)).await {
                Ok(()) => {}
                // At recovery space is what it was when the commit was made.
                Err(Error::DiskFull { .. }) if self.log.get().is_none() => {
                    return Ok(
                        Promised::new(&self.promised_bytes, promised_bytes, own).expect("nobody else is there yet")
                    );
                }
                // Another's share has come free, or was given.
                Err(Error::DiskFull { .. }) if self.promised_bytes.load(Ordering::Relaxed) != promised_bytes => {}
                // What was replaced since the last checkpoint, and what lies sparse, may suffice. What is being moved right
                // now counts twice until it has been. Others' shares come free as their commits end: removing is not refused
                // for them.
                Err(Error::DiskFull { .. })
                    if made_space == 0
                        || made_space < MAKE_SPACE_MAX && self.space.tight.load(Ordering::Relaxed)
                        || only_removes && promised_bytes > 0 =>
                {
                    made_space += 1;
                    crate::witness::mark!("a commit on a full disk had space made");
                    self.have_space_made(face).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// See [`MakeSpace`].
    pub(crate) async fn have_space_made(&self, face: Face<'_>) -> Result<()> {
        let make_space = Arc::clone(&self.make_space);
        face.run(move || make_space()).await
    }

    /// Space in the log: in the stream `home`, or in another, the first before all, where that one is too small for the record
    /// or the disk has no space left for it, or what a checkpoint gives back.
    pub(crate) async fn reserve_log(&self, face: Face<'_>, home: usize, body_bytes: usize) -> Result<Reservation<'_>> {
        let count = self.log().stream_count();
        let mut made_space = false;
        loop {
            let mut refusal = None;
            for stream in (home..count).chain(0..home).filter(|stream| self.log().takes(*stream, body_bytes)) {
                let reserved = match face {
                    Face::Blocking => self.log().reserve(stream, body_bytes),
                    Face::Tasks(_) => self.log().reserve_as_task(stream, body_bytes).await,
                };
                match reserved {
                    Err(error @ Error::DiskFull { .. }) => refusal = Some(error),
                    reserved => {
                        if refusal.is_some() && reserved.is_ok() {
                            crate::witness::mark!("a commit on a full disk went to another stream of the log");
                        }
                        return reserved;
                    }
                }
            }
            crate::witness::mark!("a full disk had no space for the log");
            if std::mem::replace(&mut made_space, true) {
                return Err(refusal.expect("the first stream takes every record"));
            }
            self.have_space_made(face).await?;
        }
    }
}
