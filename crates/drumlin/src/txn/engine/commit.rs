//! Commits.
//!
//! # The life of a commit
//! 1. *Admit*: memory for the record and for the pages that will be held is reserved together, in the order of asking, before
//!    anything is held but row locks (`room.rs`).
//! 2. *Prepare*, as often as needed, waiting for what is lacking: the record is encoded, log space reserved, segments for the
//!    pages that will become dirty secured, leaves brought in and held, room made in them and for their versions.
//! 3. *Apply*, inside the guard, in one go: the leaves are latched in the order of their keys, those that a serializable
//!    transaction has read being validated on the way; if one is not as prepared, everything is let go and prepared again.
//!    Then the timestamp is taken with the record's place in the log, and from here on nothing waits, fails or can be
//!    cancelled: rows are changed, what they were goes to the versions, the commit is marked applied.
//! 4. *Settle*: wait until the record is durable (not if Relaxed), and until readers see the commit.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Durability, Engine};
use crate::error::{Error, Result};
use crate::format::node::{LARGE_REF_BYTES, LargeRef};
use crate::format::record::{self, Operation};
use crate::format::{PageId, Place, Timestamp};
use crate::pool::{FrameHeader, FrameRead, FrameWrite, Needs, Pool, Stop};
use crate::seglog::{Body, Reservation};
use crate::space::{FrameIndex, Guard, PageSpace, Word};
use crate::task::{Face, ready};
use crate::tree::node::{Leaf, LeafMut, RowValue};
use crate::tree::{Incoming, Provider, Target, Tree};
use crate::txn::read_set::{Reads, Walk};
use crate::txn::values;
use crate::txn::versions::{Delta, delta_bytes_max, version_bytes_max};
use crate::txn::write_set::Change;

/// A row that a commit changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) key: &'a [u8],
    pub(crate) change: Change<'a>,
}

/// Why an attempt to apply ended.
enum Unready {
    Needs(Needs),
    /// These rows do not fit into their leaves.
    Room(Range<usize>),
    Error(Error),
}

impl From<Stop> for Unready {
    fn from(stop: Stop) -> Unready {
        match stop {
            Stop::Needs(needs) => Unready::Needs(needs),
            Stop::Error(error) => Unready::Error(error),
        }
    }
}

/// Leaves held against eviction while a commit is being prepared, and which row comes first in each.
struct Held<'p> {
    pool: &'p Pool,
    /// Row, page, frame, in the order of rows.
    leaves: Vec<(usize, PageId, FrameIndex)>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for &(_, _, frame) in &self.leaves {
            self.pool.frames.let_go(frame);
        }
    }
}

/// Medium values appended before their commit; given back if it fails.
struct Appended<'e> {
    engine: &'e Engine,
    places: Vec<Option<(u64, Place)>>,
    committed: bool,
}

impl Drop for Appended<'_> {
    fn drop(&mut self) {
        if !self.committed {
            // Not free at once: their images may still be on the way to the disk, and must not arrive over what is put there
            // next. The checkpoint that ends the epoch has waited for them.
            let guard = self.engine.space.enter();
            for (_, place) in self.places.iter().flatten() {
                self.engine.space.segments.release(*place, guard.epoch());
            }
        }
    }
}

/// Versions that a row leaves, at the most.
fn row_version_bytes_max(row: &Row<'_>) -> usize {
    delta_bytes_max(version_bytes_max(row.key, row.tree.inline_bytes_max().max(LARGE_REF_BYTES)))
}

/// Leaves that a commit brings in at once.
const AHEAD_PAGES: usize = 64;

impl Engine {
    /// Commits rows in ascending order of (keyspace, key), each key once, if what was read has not changed since. The rows'
    /// locks are held; `applied` is called when they need not be any more. A future that is dropped before that leaves
    /// nothing of the commit, one that is dropped afterwards all of it: from there on only the caller's wait is left, so
    /// that nothing which has to be done after a commit depends on its being polled.
    pub(crate) async fn commit(
        &self,
        face: Face<'_>,
        rows: &[Row<'_>],
        reads: Option<Reads<'_>>,
        durability: Durability,
        applied: impl FnOnce(),
    ) -> Result<Timestamp> {
        assert!(!rows.is_empty());
        self.check_failure()?;
        let (admitted, body_capacity) = self.admit(face, rows, reads).await;
        let mut body = Vec::with_capacity(body_capacity);
        let mut after_data = false;
        for row in rows {
            let operation = match row.change {
                Change::Put(value) => Operation::Put { key: row.key, value },
                Change::PutLarge(value) => {
                    after_data = true;
                    let extents = value.places.iter().map(|place| self.space.segments.name(*place)).collect();
                    let (length, identity) = (value.length, value.identity);
                    Operation::PutLarge { key: row.key, length, identity, extents }
                }
                Change::Remove => Operation::Remove { key: row.key },
            };
            record::encode(row.tree.pages.id, &operation, &mut body);
        }
        let body = Body::new(body);
        let log = self.log();
        if body.bytes().len() > log.body_bytes_max() {
            return Err(Error::writes_too_large(log.body_bytes_max() as u64));
        }
        let _promised = self.secure_space(face, rows).await?;
        let appended = self.append_medium_values(face, rows).await?;
        let stream = crate::pool::reclaim::thread_index() % log.stream_count();
        let mut reservation = Some(self.reserve_log(face, stream, body.bytes().len()).await?);
        let take_timestamp = |guard: &Guard<'_>| {
            let _inside: &Guard<'_> = guard;
            let reservation: Reservation<'_> = reservation.take().expect("a commit takes its timestamp once");
            let appended = reservation.append(&body, after_data);
            (appended.timestamp, appended)
        };
        let place = self.prepare_and_apply(face, rows, reads, appended, take_timestamp).await?;
        let timestamp = place.timestamp;
        let body_bytes = body.bytes().len() as u64;
        drop((body, admitted));
        // Whoever gets a row's lock next, and finds nothing published since its snapshot, relies on the row being as it was.
        self.clock.wait_published(timestamp);
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.log_bytes_written.fetch_add(body_bytes, Ordering::Relaxed);
        applied();
        match durability {
            // Written also if nobody waits for it any more. A thread writes it itself.
            Durability::Full if matches!(face, Face::Tasks(_)) => log.nudge(&place),
            Durability::Full => {}
            Durability::Relaxed => {
                log.nudge_relaxed(&place);
                self.clock.show_relaxed(timestamp);
            }
        }
        self.tidy(rows);
        if durability == Durability::Full {
            match face {
                Face::Blocking => log.wait_durable(&place)?,
                Face::Tasks(_) => poll_fn(|context| log.poll_durable(&place, context.waker())).await?,
            }
        }
        self.clock.show_durable(log.durable());
        Ok(timestamp)
    }

    /// Applies the rows of a commit that is in the log already: recovery. Nobody else is there yet.
    pub(crate) fn replay(&self, rows: &[Row<'_>], timestamp: Timestamp) -> Result<()> {
        ready(async {
            let _promised = self.secure_space(Face::Blocking, rows).await?;
            let appended = self.append_medium_values(Face::Blocking, rows).await?;
            self.prepare_and_apply(Face::Blocking, rows, None, appended, |_| (timestamp, ())).await
        })?;
        for row in rows.iter().filter(|row| matches!(row.change, Change::Remove)) {
            row.tree.try_merge(row.key);
        }
        Ok(())
    }

    async fn append_medium_values(&self, face: Face<'_>, rows: &[Row<'_>]) -> Result<Appended<'_>> {
        let mut appended = Appended { engine: self, places: Vec::new(), committed: false };
        for (index, row) in rows.iter().enumerate() {
            if let Change::Put(value) = row.change
                && value.len() > row.tree.inline_bytes_max()
            {
                appended.places.resize(index, None);
                let identity = self.next_value.fetch_add(1, Ordering::Relaxed);
                let place = values::append_medium(row.tree, identity, value)?;
                appended.places.push(Some((identity, place)));
                if self.space.is_crowded() {
                    let pool = Arc::clone(&self.pool);
                    face.run(move || pool.relieve()).await?;
                }
            }
        }
        Ok(appended)
    }

    async fn prepare_and_apply<T>(
        &self,
        face: Face<'_>,
        rows: &[Row<'_>],
        reads: Option<Reads<'_>>,
        mut appended: Appended<'_>,
        mut take_timestamp: impl FnMut(&Guard<'_>) -> (Timestamp, T),
    ) -> Result<T> {
        let incoming: Vec<Incoming<'_>> = rows
            .iter()
            .map(|row| Incoming {
                key: row.key,
                value_bytes: match row.change {
                    Change::Put(value) if value.len() <= row.tree.inline_bytes_max() => Some(value.len()),
                    Change::Put(_) | Change::PutLarge(_) => Some(LARGE_REF_BYTES),
                    Change::Remove => None,
                },
            })
            .collect();
        let mut held = Held { pool: &self.pool, leaves: Vec::new() };
        let mut version_bytes = None;
        if rows.len() > 1 {
            version_bytes = Some(self.hold_leaves(face, rows, &incoming, &mut held, reads.is_some()).await?);
        }
        let _versions =
            self.secure_versions(face, version_bytes.unwrap_or_else(|| row_version_bytes_max(&rows[0]))).await?;
        let mut held_reads = self.hold_reads(face, reads, &held).await?;
        let mut provider = Provider::new(face, &self.pool);
        loop {
            match self.try_apply(rows, reads, &incoming, &held.leaves, &appended.places, &mut take_timestamp) {
                Ok(value) => {
                    appended.committed = true;
                    return Ok(value);
                }
                Err(Unready::Error(error)) => return Err(error),
                Err(Unready::Needs(needs)) => {
                    crate::witness::mark!("a commit lacked a page when it was to be applied");
                    provider.provide(&needs).await?;
                    // A leaf that was read has been split, perhaps: all of them have to be there at once.
                    drop(held_reads);
                    held_reads = self.hold_reads(face, reads, &held).await?;
                }
                Err(Unready::Room(range)) => rows[range.start].tree.make_room(face, &incoming[range]).await?,
            }
        }
    }

    /// Brings the leaves of all rows in, many at a time, keeps them there, and makes room in them. Returns the bytes of
    /// versions that the rows will leave, at the most: nobody else changes them, since they are locked.
    async fn hold_leaves(
        &self,
        face: Face<'_>,
        rows: &[Row<'_>],
        incoming: &[Incoming<'_>],
        held: &mut Held<'_>,
        has_reads: bool,
    ) -> Result<usize> {
        let page_bytes = rows.iter().map(|row| row.tree.pages.page_bytes).max().expect("rows");
        let limit = self.held_leaves_max(page_bytes as u64, has_reads) as usize;
        let mut version_bytes = 0;
        let mut full: Vec<Range<usize>> = Vec::new();
        let mut provider = Provider::new(face, &self.pool);
        let mut start = 0;
        while start < rows.len() {
            let tree = rows[start].tree;
            let end = start + rows[start..].iter().take_while(|row| row.tree.pages.id == tree.pages.id).count();
            let mut waiting: Vec<usize> = (start..end).collect();
            while !waiting.is_empty() {
                let mut missing: Vec<PageId> = Vec::new();
                let mut later = Vec::new();
                {
                    // One pin for all descents: those within cost nothing.
                    let _pin = self.pool.pin();
                    let mut covered = 0;
                    for row in waiting {
                        if row < covered {
                            continue;
                        }
                        if missing.len() >= AHEAD_PAGES {
                            later.push(row);
                            continue;
                        }
                        match tree.read_leaf(Target::At(rows[row].key)) {
                            Ok(page) => {
                                page.header().hold();
                                let number = page.header().identity().expect("a latched leaf has an identity").page;
                                held.leaves.push((row, number, page.frame()));
                                let leaf = Leaf::new(&page);
                                let upper = leaf.upper_fence();
                                let mine =
                                    rows[row..end].iter().take_while(|row| upper.is_none_or(|upper| row.key < upper));
                                covered = row + mine.count();
                                let version_bytes_of = |row: &Row<'_>| {
                                    let was = leaf.search(row.key).ok().map(|index| leaf.value(index).stored_bytes());
                                    version_bytes_max(row.key, was.unwrap_or(0))
                                };
                                let rows_bytes = rows[row..covered].iter().map(version_bytes_of).sum();
                                // Twice, for leaves that are split.
                                version_bytes += delta_bytes_max(rows_bytes) + delta_bytes_max(0);
                                if !crate::tree::has_room(&leaf, &incoming[row..covered]) {
                                    full.push(row..covered);
                                }
                            }
                            Err(Stop::Needs(Needs::Page(_, page))) => {
                                missing.push(page);
                                later.push(row);
                            }
                            Err(Stop::Needs(_)) => later.push(row),
                            Err(Stop::Error(error)) => return Err(error),
                        }
                    }
                }
                if held.leaves.len() > limit {
                    let per_leaf = rows.len() as u64 * 128 / held.leaves.len() as u64;
                    return Err(Error::writes_too_large(limit as u64 * per_leaf.max(128)));
                }
                missing.sort_unstable();
                missing.dedup();
                // Alone, a page is provided so that its error, if it has one and is needed still, is met.
                let alone = match missing[..] {
                    [] => None,
                    [page] => Some(page),
                    _ if self.fault_many(face, &tree.pages, &missing).await? == 0 => Some(missing[0]),
                    _ => None,
                };
                if let Some(page) = alone {
                    provider.provide(&Needs::Page(Arc::clone(&tree.pages), page)).await?;
                }
                waiting = later;
            }
            start = end;
        }
        held.leaves.sort_unstable_by_key(|&(row, _, _)| row);
        for range in full {
            rows[range.start].tree.make_room(face, &incoming[range]).await?;
        }
        Ok(version_bytes)
    }

    /// Brings the leaves of all that was read in and keeps them there. A conflict that shows already ends the commit.
    async fn hold_reads<'p>(&'p self, face: Face<'_>, reads: Option<Reads<'_>>, beside: &Held<'_>) -> Result<Held<'p>> {
        let mut held = Held { pool: &self.pool, leaves: Vec::new() };
        let Some(reads) = reads else { return Ok(held) };
        let mut there: Vec<FrameIndex> = beside.leaves.iter().map(|&(_, _, frame)| frame).collect();
        there.sort_unstable();
        let frame_bytes = |frame: &FrameIndex| self.pool.frames.page_bytes(*frame);
        let mut bytes: usize = there.iter().map(frame_bytes).sum();
        let limit_bytes = self.held_reads_bytes_max() as usize;
        let mut walk = Walk::new(Some(reads));
        while let Some((tree, key)) = walk.next() {
            let keyspace = tree.pages.id;
            let upper_fence = tree.awaiting(face, || {
                let page = tree.read_leaf(Target::At(key))?;
                let leaf = Leaf::new(&page);
                let number = page.header().identity().expect("a latched leaf has an identity").page;
                reads.validate(&self.versions, keyspace, number, &leaf)?;
                if there.binary_search(&page.frame()).is_err() {
                    page.header().hold();
                    held.leaves.push((0, number, page.frame()));
                    bytes += page.len();
                }
                Ok(leaf.upper_fence().map(<[u8]>::to_vec))
            });
            let upper_fence = upper_fence.await?;
            if bytes > limit_bytes {
                return Err(Error::reads_too_large(limit_bytes as u64));
            }
            walk.pass(keyspace, upper_fence.as_deref());
        }
        Ok(held)
    }

    fn try_apply<T>(
        &self,
        rows: &[Row<'_>],
        reads: Option<Reads<'_>>,
        incoming: &[Incoming<'_>],
        held: &[(usize, PageId, FrameIndex)],
        medium: &[Option<(u64, Place)>],
        take_timestamp: &mut impl FnMut(&Guard<'_>) -> (Timestamp, T),
    ) -> Result<T, Unready> {
        let guard = self.space.enter();
        let _pin = self.pool.pin();
        let mut leaves: Vec<(FrameWrite<'_>, Range<usize>)> = Vec::with_capacity(rows.len().min(AHEAD_PAGES));
        // Leaves that were read and will not change: nobody changes them before this commit has its timestamp.
        let mut only_read: Vec<FrameRead<'_>> = Vec::new();
        let mut walk = Walk::new(reads);
        let mut start = 0;
        let mut held = held.iter();
        loop {
            let is_mine = |frame| {
                only_read.iter().any(|read| read.frame() == frame)
                    || leaves.iter().any(|(write, _)| write.frame() == frame)
            };
            let row = rows.get(start).map(|row| (row.tree, row.key));
            let (tree, key) = match (walk.next(), row) {
                (None, None) => break,
                (None, Some(row)) => row,
                (Some(read), Some(row)) if (row.0.pages.id, row.1) <= (read.0.pages.id, read.1) => row,
                (Some((tree, key)), _) => {
                    let read = tree.read_leaf_beside(key, &is_mine)?;
                    let leaf = Leaf::new(&read);
                    if !row.is_some_and(|(other, key)| other.pages.id == tree.pages.id && leaf.covers(key)) {
                        self.validate(reads, &mut walk, tree, read.header(), &leaf)?;
                        only_read.push(read);
                        continue;
                    }
                    (tree, key)
                }
            };
            // The leaf is mostly where it was when it was held.
            let hint = held.as_slice().iter().position(|&(row, _, _)| row >= start).unwrap_or(held.len());
            held = held.as_slice()[hint..].iter();
            let write = match held.as_slice().first() {
                Some(&(row, page, frame)) if row == start => tree.write_leaf_at(page, frame, key, &is_mine),
                _ => None,
            };
            let write = match write {
                Some(write) => write,
                None => tree.write_leaf(key, &is_mine)?,
            };
            let leaf = Leaf::new(&write);
            self.validate(reads, &mut walk, tree, write.header(), &leaf)?;
            let mine = rows[start..].iter().take_while(|row| {
                row.tree.pages.id == tree.pages.id && leaf.upper_fence().is_none_or(|upper| row.key < upper)
            });
            let end = start + mine.count();
            if start < end {
                if !crate::tree::has_room(&leaf, &incoming[start..end]) {
                    return Err(Unready::Room(start..end));
                }
                self.pool.prepare_change(&guard, &write)?;
            }
            leaves.push((write, start..end));
            start = end;
        }
        // From the timestamp on nothing waits, fails or can be cancelled.
        let (timestamp, value) = take_timestamp(&guard);
        if self.log.get().is_some() {
            crate::witness::timestamp_taken(timestamp);
        }
        #[cfg(feature = "plant-publish-before-apply")]
        if self.log.get().is_some() {
            let ranges: Vec<Range<usize>> = leaves.drain(..).map(|(_, range)| range).collect();
            self.clock.mark_applied(timestamp);
            for range in ranges.into_iter().filter(|range| !range.is_empty()) {
                let row = &rows[range.start];
                let write = loop {
                    if let Ok(write) = row.tree.write_leaf(row.key, &|_| false) {
                        break write;
                    }
                    crate::sync::yield_now();
                };
                leaves.push((write, range));
            }
        }
        drop(only_read);
        // Without a row is a leaf that was split just before it was latched.
        for (write, range) in leaves.iter_mut().filter(|(_, range)| !range.is_empty()) {
            self.change_leaf(&guard, write, &rows[range.clone()], medium, range.start, timestamp);
        }
        if self.log.get().is_some() && !cfg!(feature = "plant-publish-before-apply") {
            self.clock.mark_applied(timestamp);
        }
        if cfg!(feature = "plant-show-before-durable") {
            self.clock.show_durable(timestamp);
        }
        Ok(value)
    }

    /// Validates what was read in a leaf that has just been latched, and passes it.
    fn validate(
        &self,
        reads: Option<Reads<'_>>,
        walk: &mut Walk<'_>,
        tree: &Tree,
        header: &FrameHeader,
        leaf: &Leaf<'_>,
    ) -> Result<(), Unready> {
        let keyspace = tree.pages.id;
        if let Some(reads) = reads
            && walk.pass(keyspace, leaf.upper_fence())
        {
            let page = header.identity().expect("a latched leaf has an identity").page;
            reads.validate(&self.versions, keyspace, page, leaf).map_err(Unready::Error)?;
        }
        Ok(())
    }

    fn change_leaf(
        &self,
        guard: &Guard<'_>,
        write: &mut FrameWrite<'_>,
        rows: &[Row<'_>],
        medium: &[Option<(u64, Place)>],
        first: usize,
        timestamp: Timestamp,
    ) {
        let pages = &rows[0].tree.pages;
        let page = write.header().identity().expect("a latched leaf has an identity").page;
        self.pool.mark_dirty(guard, write);
        let mut leaf = LeafMut::new(write.leaf_mut(&pages.table));
        let mut delta = Delta::new();
        // While the database recovers, nobody can ask what a row was; but values that were replaced are to be freed.
        let recovering = self.log.get().is_none();
        let mut note = |key: &[u8], was: Option<RowValue<'_>>| {
            if !recovering || matches!(was, Some(RowValue::Large(_))) {
                delta.push(key, was);
            }
        };
        for (index, row) in rows.iter().enumerate() {
            let found = leaf.as_leaf().search(row.key);
            let large;
            let value = match row.change {
                Change::Remove => {
                    if let Ok(at) = found {
                        note(row.key, Some(leaf.as_leaf().value(at)));
                        leaf.remove(at);
                    }
                    continue;
                }
                Change::Put(value) => match medium.get(first + index).copied().flatten() {
                    None => RowValue::Inline(value),
                    Some((identity, place)) => {
                        large = self.place_value(guard, pages, value.len() as u64, identity, &[place]);
                        RowValue::Large(large)
                    }
                },
                Change::PutLarge(value) => {
                    large = self.place_value(guard, pages, value.length, value.identity, &value.places);
                    value.set_reference(guard, large);
                    RowValue::Large(large)
                }
            };
            match found {
                Ok(at) => {
                    note(row.key, Some(leaf.as_leaf().value(at)));
                    leaf.replace(at, value).expect("room was checked");
                }
                Err(at) => {
                    if !cfg!(feature = "plant-miss-version") {
                        note(row.key, None);
                    }
                    leaf.insert(at, row.key, value).expect("room was checked");
                }
            }
        }
        let newest = leaf.as_leaf().newest().max(timestamp);
        leaf.set_newest(newest);
        if !delta.is_empty() {
            self.versions.add(pages.id, page, timestamp, delta);
        }
    }

    /// Gives a value's extents page numbers.
    fn place_value(
        &self,
        guard: &Guard<'_>,
        pages: &PageSpace,
        length: u64,
        identity: u64,
        places: &[Place],
    ) -> LargeRef {
        let chunk_count = u32::try_from(places.len()).expect("fewer than 2^32 chunks");
        let first_page = if places.is_empty() { PageId::NONE } else { pages.table.allocate(chunk_count) };
        for (page, &place) in (first_page.0..).zip(places) {
            pages.table.store(PageId(page), Word::Disk(place));
            self.space.record(guard.epoch(), pages.id, PageId(page), place);
        }
        LargeRef { length, id: identity, first_page, chunk_count }
    }

    /// After a commit was applied: merges leaves that it emptied and drops versions that nobody needs. Its own are needed
    /// until it is durable, and left to those that follow.
    fn tidy(&self, rows: &[Row<'_>]) {
        if rows.iter().any(|row| matches!(row.change, Change::Remove)) {
            let pin = self.pool.pin();
            let mut sparse = Vec::new();
            for row in rows.iter().filter(|row| matches!(row.change, Change::Remove)) {
                if let Ok(page) = row.tree.read_leaf(Target::At(row.key))
                    && Tree::is_underfull(&page)
                {
                    sparse.push(row);
                }
            }
            drop(pin);
            for row in sparse {
                row.tree.try_merge(row.key);
            }
        }
        if self.versions.wants_sweep() {
            self.sweep();
        }
    }
}
