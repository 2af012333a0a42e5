//! Reserves everything that a commit needs before it begins: memory, disk space for the pages that it makes dirty, and
//! log space. `space/policy.rs` decides whether disk space is granted; this file waits for the decision.
//!
//! # The order in which a commit reserves
//!
//! Row locks, memory for its rows ([`Engine::admit`]), disk space for pages, log space, memory for versions. While a
//! commit holds one of these, it waits only for later ones in this list. So a commit that holds all of them waits only
//! for the disk, and other commits may safely wait for it.

use std::sync::Arc;
use std::time::Duration;

use super::Admitted;
use super::prepare::Row;
use crate::error::{Error, Result};
use crate::format::ExtentRef;
use crate::memory::{Account, Grant, SOURCE_BYTES_MAX};
use crate::seglog::Reservation;
use crate::space::table::{CHUNK_BYTES, CHUNK_PAGES};
use crate::space::{Margin, PageSpace, Purpose, SpaceReservation};
use crate::task::{Boxed, WaitMode};
use crate::tree::{FRAMES_NEEDED, Incoming};
use crate::txn::LOCK_TIMEOUT;
use crate::txn::engine::{Engine, Replaying};
use crate::txn::read_set::Reads;
use crate::txn::write_set::Change;

/// The maximum number of times that a commit requests space to be reclaimed if other commits use it up each time.
const RECLAIMS_MAX: u32 = 4;

/// The time that a delayed commit waits for a snapshot to end before the commit fails.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// The memory that a commit needs to be [`Admitted`].
struct Needed {
    work_bytes: u64,
    pinned_bytes: u64,
    body_bytes_max: usize,
}

/// The number of frames that a commit may need for a split, in addition to its pinned leaves.
const SPLIT_FRAMES: u64 = 3;

const _: () = assert!(SPLIT_FRAMES >= FRAMES_NEEDED as u64, "a split needs more frames than a commit has room for");

/// The memory that a commit needs per row, not counting the record.
pub(super) const ROW_WORK_BYTES: usize = 2 * size_of::<Row<'_>>() + size_of::<Incoming<'_>>() + 16;

/// Returns the keyspaces of the rows, each with the maximum number of pages that its rows may add: a leaf for each row
/// that is put, the inner nodes from splits, and the extents of values.
fn pages_per_keyspace<'r>(rows: &'r [Row<'r>]) -> impl Iterator<Item = (&'r PageSpace, u64)> {
    debug_assert!(rows.is_sorted_by_key(|row| row.tree.pages.id), "keyspaces of a commit are out of order");
    let row_pages = |row: &Row<'_>| match row.change {
        Change::Remove => 0,
        Change::Put(_) => 4,
        Change::PutLarge(value) => 4 + value.addresses.len() as u64,
    };
    rows.chunk_by(|left, right| left.tree.pages.id == right.tree.pages.id)
        .map(move |own| (&*own[0].tree.pages, own.iter().map(row_pages).sum()))
}

/// Returns the number of bytes by which a page table is certain to grow if `page_count` pages are added, however full
/// its last chunk is. For a few pages, this is 0. If it were rounded up, each commit would evict frames that the next
/// read would reclaim.
fn certain_growth_bytes(page_count: u64) -> u64 {
    page_count / CHUNK_PAGES as u64 * CHUNK_BYTES
}

/// Returns the purpose of a commit's reservation. A commit that only removes rows may use space that other commits must
/// leave free.
fn purpose_of(rows: &[Row<'_>]) -> Purpose {
    let only_removes = rows.iter().all(|row| matches!(row.change, Change::Remove));
    if only_removes { Purpose::Remove } else { Purpose::Put }
}

impl Engine {
    /// Reserves all the memory that a commit needs until it is applied, in one step. Commits are served in the order of
    /// their requests, and must hold nothing but row locks while they wait. `extra_bytes` is memory that the caller
    /// holds until the commit is applied.
    pub(crate) async fn admit(
        &self,
        mode: WaitMode<'_>,
        rows: &[Row<'_>],
        reads: Option<Reads<'_>>,
        extra_bytes: usize,
    ) -> Admitted {
        let needed = self.needed(rows, reads, extra_bytes);
        if let Some(admitted) = self.try_reserve_unqueued(&needed) {
            return admitted;
        }
        self.admit_in_turn(mode, needed).await
    }

    fn admit_in_turn<'a>(&'a self, mode: WaitMode<'a>, needed: Needed) -> Boxed<'a, Admitted> {
        crate::coverage::mark!("a commit waited for memory");
        Box::pin(async move {
            let turn = self.budget.commits.join();
            mode.until(|waker| turn.poll(waker, || self.try_reserve(&needed))).await
        })
    }

    /// Like [`admit`](Self::admit), but returns `None` instead of waiting.
    pub(crate) fn try_admit(&self, rows: &[Row<'_>], extra_bytes: usize) -> Option<Admitted> {
        self.try_reserve_unqueued(&self.needed(rows, None, extra_bytes))
    }

    fn needed(&self, rows: &[Row<'_>], reads: Option<Reads<'_>>, extra_bytes: usize) -> Needed {
        let mut body_bytes = 0;
        let mut image_bytes = 0;
        let mut page_bytes = 0;
        for row in rows {
            page_bytes = page_bytes.max(row.tree.pages.page_bytes() as u64);
            body_bytes += row.key.len() + 24;
            match row.change {
                Change::Put(value) => {
                    body_bytes += value.len();
                    if value.len() > row.tree.inline_bytes_max(row.key) {
                        image_bytes = image_bytes.max(2 * value.len() + (4 << 10));
                    }
                }
                Change::PutLarge(value) => body_bytes += 32 + ExtentRef::BYTES * value.addresses.len(),
                Change::Remove => {}
            }
        }
        let work_bytes = body_bytes + image_bytes + rows.len() * ROW_WORK_BYTES + extra_bytes;
        let read_bytes = reads.map_or(0, |reads| {
            reads
                .set
                .leaf_bytes_max()
                .map_or(self.budget.validated_bytes_max(), |bytes| bytes.min(self.budget.validated_bytes_max()))
        });
        let leaf_count = match rows.len() as u64 {
            // A single leaf is latched but not pinned.
            0 | 1 => 0,
            count => count.min(self.pinned_leaves_max(page_bytes, reads)),
        };
        let pinned_bytes = (leaf_count + SPLIT_FRAMES) * page_bytes + read_bytes;
        Needed { work_bytes: work_bytes as u64, pinned_bytes, body_bytes_max: body_bytes }
    }

    fn try_reserve_unqueued(&self, needed: &Needed) -> Option<Admitted> {
        let waiting = &self.budget.commits;
        if waiting.are_awaited() {
            return None;
        }
        let admitted = self.try_reserve(needed);
        if admitted.is_none() {
            // This attempt held part of the memory, and the head of the queue may have failed because of that. Wake it
            // for a retry.
            waiting.announce();
        }
        admitted
    }

    fn try_reserve(&self, needed: &Needed) -> Option<Admitted> {
        let parts = [(Account::Commits, needed.work_bytes), (Account::Pinned, needed.pinned_bytes)];
        let [work, pinned] = self.budget.try_grant_both(parts)?;
        Some(Admitted { work, pinned, body_bytes_max: needed.body_bytes_max })
    }

    /// Reserves memory from an account if the memory is free and no other caller is waiting for it.
    pub(crate) fn reserve_at_once(&self, of: Account, bytes: u64) -> Option<Grant> {
        let queue = self.budget.queue(of).expect("a part that is waited for");
        let mut grant = self.budget.grant(of);
        (!queue.are_awaited() && grant.resize(bytes)).then_some(grant)
    }

    /// Reserves memory from an account that serves its callers in the order of their requests. Returns `None` after
    /// `timeout`.
    pub(crate) async fn reserve_in_turn(
        &self,
        mode: WaitMode<'_>,
        of: Account,
        bytes: u64,
        timeout: Duration,
    ) -> Option<Grant> {
        if let Some(grant) = self.reserve_at_once(of, bytes) {
            return Some(grant);
        }
        self.wait_in_turn(mode, of, bytes, timeout).await
    }

    /// Reserves memory for a chunk that a source fills. Waits if no memory is free, because other calls with slow
    /// sources may hold theirs for a long time.
    pub(crate) async fn source_memory(&self, mode: WaitMode<'_>) -> Result<Grant> {
        let memory = self.reserve_in_turn(mode, Account::Sources, SOURCE_BYTES_MAX, LOCK_TIMEOUT).await;
        memory.ok_or_else(|| Error::sources_in_memory(self.budget.limit_bytes(Account::Sources)))
    }

    fn wait_in_turn<'a>(
        &'a self,
        mode: WaitMode<'a>,
        of: Account,
        bytes: u64,
        timeout: Duration,
    ) -> Boxed<'a, Option<Grant>> {
        crate::coverage::mark!("a writer waited for memory");
        Box::pin(async move {
            let mut grant = self.budget.grant(of);
            let turn = self.budget.queue(of).expect("a part that is waited for").join();
            let backend = self.backend.as_ref();
            let deadline = backend.now().saturating_add(timeout);
            let mut attempt = || grant.resize(bytes).then_some(());
            mode.until_deadline(backend, deadline, |waker| turn.poll(waker, &mut attempt)).await?;
            Some(grant)
        })
    }
}

impl<L> Engine<L> {
    /// Returns the maximum number of leaves that a commit may pin in order to change them. Leaves that it only
    /// validates do not count.
    pub(super) fn pinned_leaves_max(&self, page_bytes: u64, reads: Option<Reads<'_>>) -> u64 {
        let read_bytes = reads.map_or(0, |_| self.budget.validated_bytes_max());
        (self.budget.limit_bytes(Account::Pinned).saturating_sub(read_bytes) / page_bytes)
            .saturating_sub(SPLIT_FRAMES)
            .max(1)
    }
}

impl Engine {
    /// Reserves memory for the versions that a commit of `row_count` rows will leave. If there is too little memory,
    /// drops versions that no snapshot needs, requests a spill of the remaining ones, and waits for commits that are
    /// not durable yet.
    pub(in crate::txn) async fn secure_versions(
        &self,
        mode: WaitMode<'_>,
        row_count: usize,
        bytes: usize,
    ) -> Result<Grant> {
        let budget = &self.budget;
        let (bytes, limit_bytes) = (bytes as u64, budget.limit_bytes(Account::Versions));
        if bytes > limit_bytes {
            return Err(Error::versions_too_large(row_count, bytes, limit_bytes));
        }
        let mut grant = budget.grant(Account::Versions);
        if !budget.versions.are_awaited() && grant.resize(bytes) {
            return Ok(grant);
        }
        crate::coverage::mark!("a commit waited for memory for versions");
        let deadline = self.backend.now().saturating_add(DELAY_MAX);
        let turn = budget.versions.join();
        mode.until(|waker| turn.poll(waker, || Some(()))).await;
        loop {
            self.try_collect_all_garbage();
            if grant.resize(bytes) {
                return Ok(grant);
            }
            if self.clock.visible() < self.clock.published() {
                self.await_durable(mode, self.clock.published()).await?;
                self.clock.show_durable(self.log().durable());
                continue;
            }
            self.reclaim.request_spill(budget.version_bytes_max().min(limit_bytes - bytes));
            // The remaining memory belongs to running commits, which will release the part that they do not use.
            let mut is_fit = || grant.resize(bytes) || self.clock.visible() < self.clock.published();
            let wait = |waker: &_| turn.poll(waker, || is_fit().then_some(()));
            if !self.spilled.delays_commits() {
                mode.until(wait).await;
                continue;
            }
            crate::coverage::mark!("a commit was delayed for a snapshot");
            if mode.until_deadline(self.backend.as_ref(), deadline, wait).await.is_none() {
                return Err(Error::versions_in_memory(limit_bytes));
            }
        }
    }
}

impl<L> Engine<L> {
    /// Returns an upper bound for the bytes of pages that a commit of these rows will make dirty.
    fn dirtied_bytes_max(&self, rows: &[Row<'_>]) -> u64 {
        let page_bytes = rows.iter().map(|row| row.tree.pages.page_bytes() as u64).max().unwrap_or(0);
        let row_bytes = |row: &Row<'_>| match row.change {
            Change::Put(value) => (row.key.len() + value.len()) as u64 + 128,
            // Each extent of a large value needs a page number and an entry in the page table.
            Change::PutLarge(value) => row.key.len() as u64 + 128 + 32 * value.addresses.len() as u64,
            Change::Remove => row.key.len() as u64 + 128,
        };
        // A leaf for each row (or as many leaves as a commit can pin), and the pages that splits and merges add.
        let leaves = (rows.len() as u64 * page_bytes).min(self.pool.frames.limit_bytes() as u64 / 4);
        leaves + 2 * rows.iter().map(row_bytes).sum::<u64>() + 6 * page_bytes
    }
}

impl Engine<Replaying> {
    /// Like [`reserve_pages`](Engine::reserve_pages), for the rows of a commit that is already in the log. The commit
    /// had its space, page numbers and tables when it was made, so a full disk is no reason to refuse it.
    pub(super) fn reserve_replayed_pages(&self, rows: &[Row<'_>]) -> Result<SpaceReservation<'_>> {
        self.space.check_failure()?;
        let growth = pages_per_keyspace(rows).map(|(_, page_count)| certain_growth_bytes(page_count)).sum();
        self.pool.fit_frames(growth)?;
        self.space.reserve(Purpose::Replay, self.dirtied_bytes_max(rows))
    }
}

impl Engine {
    /// Reserves space for all pages that the commit may change, or fails with `DiskFull`. Commits that only remove rows
    /// may use space that other commits must leave free. The caller holds the reservation until it can no longer make
    /// these pages dirty.
    pub(super) async fn reserve_pages(&self, mode: WaitMode<'_>, rows: &[Row<'_>]) -> Result<SpaceReservation<'_>> {
        self.secure_tables(mode, rows).await?;
        let chunk_count = rows.iter().map(|row| match row.change {
            Change::PutLarge(value) => value.changes_max(),
            Change::Put(_) | Change::Remove => 0,
        });
        self.secure_changes(mode, chunk_count.sum()).await;
        self.reserve_space(mode, purpose_of(rows), self.dirtied_bytes_max(rows)).await
    }

    /// Like [`reserve_pages`](Self::reserve_pages) for rows without large values, but returns `None` instead of
    /// waiting.
    pub(super) fn try_reserve_pages(&self, rows: &[Row<'_>]) -> Result<Option<SpaceReservation<'_>>> {
        let growth = self.check_tables(rows)?;
        if self.pool.frames.is_over_limit(growth)
            || !self.space.admits_changes(self.changes_max(0), self.budget.epoch_changes_max())
        {
            return Ok(None);
        }
        let (purpose, bytes) = (purpose_of(rows), self.dirtied_bytes_max(rows));
        Ok(self.space.try_reserve(purpose, bytes, Margin::Full).ok())
    }

    /// Returns an error if the commit might run out of page numbers or of memory for page table entries. Otherwise,
    /// returns the number of bytes by which its rows are certain to make page tables grow.
    fn check_tables(&self, rows: &[Row<'_>]) -> Result<u64> {
        let (mut growth_max, mut growth) = (0, 0);
        for (pages, page_count) in pages_per_keyspace(rows).filter(|(_, page_count)| *page_count > 0) {
            if !pages.table.has_numbers(page_count) {
                return Err(Error::Invalid(format!(
                    "keyspace {} has used up its page numbers: put new rows into another keyspace",
                    pages.quoted_name()
                )));
            }
            growth_max += pages.table.growth_bytes_max(page_count);
            growth += certain_growth_bytes(page_count);
        }
        assert!(growth <= growth_max, "tables grow by {growth} bytes for certain, by {growth_max} at the most");
        if growth_max > 0 {
            self.space.check_table_growth(growth_max)?;
        }
        Ok(growth)
    }

    /// Reserves memory for the page table entries of the pages that a commit adds. Shrinks the pool by the growth of
    /// page tables since the last commit, and by the growth that this commit is certain to cause. The commit may
    /// occasionally add one more chunk of 8 KiB; the next commit shrinks the pool by that chunk.
    async fn secure_tables(&self, mode: WaitMode<'_>, rows: &[Row<'_>]) -> Result<()> {
        let growth = self.check_tables(rows)?;
        if !self.pool.frames.is_over_limit(growth) {
            return Ok(());
        }
        let pool = Arc::clone(&self.pool);
        match mode {
            WaitMode::Blocking => pool.fit_frames(growth),
            // Run this on the eviction threads, because workers may be waiting for commits.
            WaitMode::Tasks(tasks) => tasks.evictors.run(move || pool.fit_frames(growth)).await,
        }
    }

    /// Returns a limit on the page table changes of the newest epoch. A commit that adds `more` changes may proceed
    /// while the epoch is below this limit.
    fn changes_max(&self, more: u64) -> u64 {
        let count_max = self.budget.epoch_changes_max() / 8 * 7;
        // A commit with more changes than fit in an epoch must not wait forever.
        let limit = count_max - more.min(count_max / 2);
        assert!(0 < limit && limit < self.budget.epoch_changes_max(), "commits would wait at {limit} changes");
        limit
    }

    /// Waits for a checkpoint to begin if the page table changes of the newest epoch have filled seven eighths of their
    /// memory. The last eighth is for the reclaimer and for running commits that have passed this point. Also waits if
    /// the values that are waiting to be freed would fill an epoch, because commits add more of them. `more` is the
    /// number of changes that this commit is certain to add: the chunks of its large values.
    pub(crate) async fn secure_changes(&self, mode: WaitMode<'_>, more: u64) {
        let (limit, unfreed_max) = (self.changes_max(more), self.budget.epoch_changes_max());
        if self.space.admits_changes(limit, unfreed_max) {
            return;
        }
        crate::coverage::mark!("a commit waited for a checkpoint to write earlier changes");
        let (reclaim, space) = (Arc::clone(&self.reclaim), Arc::clone(&self.space));
        mode.run(move || reclaim.wait_for_checkpoint(&|| space.admits_changes(limit, unfreed_max))).await;
    }

    /// Frees all large values that no reader needs, and waits for the checkpoints that this requires.
    pub(crate) fn free_unneeded_values(&self) {
        self.collect_all_garbage();
        if self.space.unfreed_pages() > 0 {
            self.reclaim.wait_for_checkpoint(&|| self.space.unfreed_pages() == 0);
        }
    }

    /// Reserves free space, or grows the file. If the disk is full, requests that space be reclaimed.
    pub(crate) async fn reserve_space(
        &self,
        mode: WaitMode<'_>,
        purpose: Purpose,
        bytes: u64,
    ) -> Result<SpaceReservation<'_>> {
        let mut margin = Margin::Full;
        let mut reclaims = 0;
        loop {
            self.check_failure()?;
            let shortage = match self.space.try_reserve(purpose, bytes, margin) {
                Ok(reservation) => return Ok(reservation),
                Err(shortage) => shortage,
            };
            let space = Arc::clone(&self.space);
            match mode.run(move || space.grow(shortage)).await {
                Ok(()) => {}
                // Another commit's reservation was released or granted in the meantime.
                Err(Error::DiskFull { .. }) if self.space.reserved_bytes() != shortage.reserved_bytes => {}
                // Reclaiming may make space available: that of segments freed since the last checkpoint, and of sparse
                // segments. While an extent is being moved, it occupies space twice. Other commits release their
                // reservations when they end, so retry a removal as long as there are such reservations.
                Err(Error::DiskFull { .. })
                    if reclaims == 0
                        || reclaims < RECLAIMS_MAX && self.space.is_packing()
                        || purpose == Purpose::Remove && shortage.reserved_bytes > 0 =>
                {
                    reclaims += 1;
                    if purpose == Purpose::Remove {
                        margin = Margin::Least;
                    }
                    crate::coverage::mark!("a commit on a full disk had space reclaimed");
                    self.reclaim_space(mode).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Requests that space be reclaimed, and waits until this is done; see [`Reclaim`](crate::txn::Reclaim).
    pub(crate) async fn reclaim_space(&self, mode: WaitMode<'_>) -> Result<()> {
        let reclaim = Arc::clone(&self.reclaim);
        mode.run(move || reclaim.reclaim_space()).await
    }

    /// Reserves space in the log. Tries the stream `home` first. If that stream is too small for the record, or the
    /// disk has no space for it, tries the other streams; the first stream accepts records of any size. If no stream
    /// has space, makes a checkpoint, once, to free space.
    pub(crate) async fn reserve_log(
        &self,
        mode: WaitMode<'_>,
        home: usize,
        body_bytes: usize,
    ) -> Result<Reservation<'_>> {
        let count = self.log().stream_count();
        assert!(home < count, "the log has no stream {home}");
        let mut has_reclaimed = false;
        loop {
            let mut refusal = None;
            for stream in (home..count).chain(0..home).filter(|stream| self.log().takes(*stream, body_bytes)) {
                let reserved = match mode {
                    WaitMode::Blocking => self.log().reserve(stream, body_bytes),
                    WaitMode::Tasks(_) => self.log().reserve_as_task(stream, body_bytes).await,
                };
                match reserved {
                    Err(error @ Error::DiskFull { .. }) => refusal = Some(error),
                    reserved => {
                        if refusal.is_some() && reserved.is_ok() {
                            crate::coverage::mark!("a commit on a full disk used another log stream");
                        }
                        return reserved;
                    }
                }
            }
            crate::coverage::mark!("a full disk had no space for the log");
            if std::mem::replace(&mut has_reclaimed, true) {
                return Err(refusal.expect("the first stream takes every record"));
            }
            self.reclaim_space(mode).await?;
        }
    }
}
