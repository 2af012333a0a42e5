//! Warm start: after a database is opened, a background thread reads the pages that were in memory when it was last
//! closed, in disk order.
//!
//! # Invariants
//! 1. The list of resident pages is advice (`advice.rs`), valid for any checkpoint. Each page in it is looked up in the
//!    page table and verified like any other page that is read.
//! 2. Listed pages are read only into spare frames, so no page is evicted for them. Reading ends when no spare frame is
//!    left.
//! 3. Foreground reads have priority. A warm start has at most two reads in flight. If foreground reads missed pages
//!    while the warm start read a block, it pauses for nine times as long as that block took.
//! 4. The list is not written while it is being read, or after closing has interrupted the reading, because the pages
//!    in memory at that moment are only a part of the list.
//!
//! # States If there is a list, the state is *reading* when the database is opened. It becomes *read* at the end of the
//! list ([`Store::read_residents`]), or *stopped* if the database is closed before that. The list is written only in
//! the state *read*: by the maintenance thread after a checkpoint, and by closing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::advice::RESIDENT_NAME;
use super::state::Store;
use crate::error::Result;
use crate::format::advice::{ITEMS_OFFSET, PartBuffer, PartKind, RESIDENT_BYTES, ResidentPage};
use crate::format::{BLOCK_BYTES, CheckpointId};
use crate::memory::Account;
use crate::pool::{Pool, Resident, Wanted};

/// The pause after a block during which foreground reads missed pages, as a multiple of the time that the block took.
const PAUSE_FACTOR: u32 = 9;
/// The longest pause of a warm start; see invariant 3.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The minimum number of pages that must be read or written before the list is rewritten. See also [`CHANGES_SHARE`].
const CHANGES_MIN: u64 = if cfg!(feature = "sim") { 4 } else { 64 };
/// Before the list is rewritten, at least one page in this many listed ones must have been read or written.
const CHANGES_SHARE: u64 = 16;

/// The maximum number of pages that a part lists. A part is one block, so that a corrupted part costs few pages.
const PART_PAGES_MAX: usize = (BLOCK_BYTES - ITEMS_OFFSET) / RESIDENT_BYTES;

/// The memory for reading the list: one part, and two representations of each page in it.
const READING_BYTES: u64 = (BLOCK_BYTES + PART_PAGES_MAX * (size_of::<ResidentPage>() + size_of::<Wanted>())) as u64;

/// Reads the list of resident pages.
struct Reading<'s> {
    store: &'s Store,
    misses: u64,
    listed_count: u64,
}

impl Store {
    /// Reads the listed pages into memory. This is the body of the warm-start thread.
    pub(super) fn read_residents(&self) {
        // While the list is being read, calls may read pages that are not in it, so all pages read from now on count as
        // changes.
        let begun_at = self.residence_changes();
        let mut reading = Reading { store: self, misses: self.miss_count(), listed_count: 0 };
        let read = reading.run();
        if let Err(error) = &read {
            log::debug!("reading {RESIDENT_NAME} of {}: {error}", self.path.display());
        }
        let mut state = self.warm_start.state.lock();
        if !state.stop {
            state.is_unread = false;
            state.listed_count = reading.listed_count;
            state.listed_at = begun_at;
        }
    }

    fn miss_count(&self) -> u64 {
        self.engine.pool.cache.misses.load(Ordering::Relaxed)
    }

    /// Returns the number of pages read into memory or written by checkpoints since the database was opened.
    fn residence_changes(&self) -> u64 {
        self.miss_count() + self.warm_start.written_count.load(Ordering::Relaxed)
    }

    /// Writes the list of the pages in memory if enough has changed since it was last written. O(n log n).
    pub(super) fn list_residents(&self) {
        let warm_start = &self.warm_start;
        let changes = self.residence_changes();
        {
            let state = warm_start.state.lock();
            let changes_min = CHANGES_MIN.max(state.listed_count / CHANGES_SHARE);
            if !warm_start.files.is_on() || state.is_unread || changes < state.listed_at + changes_min {
                return;
            }
        }
        let pool = &self.engine.pool;
        let count_max = pool.resident_count_max();
        let bytes = (count_max * size_of::<Resident>() + 2 * BLOCK_BYTES) as u64;
        let written = warm_start.files.write(RESIDENT_NAME, CheckpointId::default(), &self.engine, bytes, |writer| {
            let mut buffer = PartBuffer::new(BLOCK_BYTES);
            let mut listed_count = 0;
            for residents in pool.residents(count_max).chunks(PART_PAGES_MAX) {
                let mut pages = residents.iter().filter_map(|resident| pool.resident_page(*resident));
                let has_room = pages.all(|page| buffer.push_resident(page));
                assert!(has_room, "a part has no room for {} pages", residents.len());
                listed_count += u64::from(buffer.count());
                writer.write(PartKind::Residents, true, &mut buffer)?;
            }
            Ok(listed_count)
        });
        if let Some(listed_count) = written {
            crate::coverage::mark!("a list of resident pages was written");
            let mut state = warm_start.state.lock();
            (state.listed_count, state.listed_at) = (listed_count, changes);
        }
    }
}

impl Reading<'_> {
    fn run(&mut self) -> Result<()> {
        let Store { warm_start, engine, .. } = self.store;
        let mut memory = engine.budget.grant(Account::Copies);
        if !memory.resize(READING_BYTES) {
            return Ok(());
        }
        warm_start.files.read(RESIDENT_NAME, CheckpointId::default(), |part| {
            let mut pages: Vec<ResidentPage> = part.residents().take(PART_PAGES_MAX).collect();
            self.listed_count += pages.len() as u64;
            // Pages are read in disk order, but one keyspace at a time.
            pages.sort_unstable_by_key(|page| page.keyspace);
            for pages in pages.chunk_by(|left, right| left.keyspace == right.keyspace) {
                if !self.bring_in(pages)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Reads pages of one keyspace into memory. Returns `false` if reading must stop.
    fn bring_in(&mut self, listed: &[ResidentPage]) -> Result<bool> {
        let Store { warm_start, engine, .. } = self.store;
        let Some(pages) = engine.space.page_space(listed[0].keyspace) else { return Ok(true) };
        let wanted: Vec<Wanted> = listed.iter().filter_map(|page| Wanted::resident(&pages, page)).collect();
        let has_frames = |pool: &Pool| wanted.iter().any(|wanted| pool.has_spare_frame(wanted.frame_bytes()));
        if wanted.is_empty() {
            return Ok(true);
        }
        if !warm_start.pause(Duration::ZERO) || !has_frames(&engine.pool) {
            return Ok(false);
        }
        let began = self.store.now();
        let count = engine.pool.fault_spare(&pages, &wanted)?;
        if count > 0 {
            crate::coverage::mark!("a page was read that was resident when the database was closed");
        }
        warm_start.page_count.fetch_add(count as u64, Ordering::Relaxed);
        let misses = self.store.miss_count();
        if std::mem::replace(&mut self.misses, misses) == misses {
            return Ok(true);
        }
        let pause = PAUSE_FACTOR * self.store.now().saturating_sub(began);
        Ok(warm_start.pause(pause.min(PAUSE_MAX)))
    }
}
