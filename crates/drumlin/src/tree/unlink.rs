//! Unlinking the leaves of a removed range without reading them.
//!
//! Folding a removal into a leaf takes the removed rows out of it. If a leaf lies entirely within a removed range and
//! was not changed since, nothing is left of it. Such a leaf need not be read: the leaf before it, into which the
//! removal is folded, takes over its range, and the leaf is freed. The parent has its page number and its fences, and
//! the page table has its extent.
//!
//! # Why no row is lost
//! - *A leaf that was changed since the removal stays.* A leaf in memory shows its newest commit. For a leaf on disk,
//!   the keyspace remembers the leaves into which the removal was folded, which a change must do first. The page's
//!   entry is loaded before these are looked at, and is then exchanged for a claim. A thread that has changed the leaf
//!   in between has also changed the entry, so the claim fails.
//! - *No other run is above the tree.* The leaf that takes over the range may have any newer timestamp, which says that
//!   all runs up to then are folded into its range.
//! - *No reader is older than the removal*, so no read returns these rows. A reader that comes by an outdated parent
//!   finds a page that is claimed or free, and descends again.
//! - *No row refers to a value on pages of its own*, which would have to be freed. A leaf in memory shows its rows. For
//!   leaves on disk, the keyspace knows if there ever was such a row.

use super::node::{Inner, InnerMut, Leaf, LeafMut, RowValue};
use super::{Target, Tree, child_fences};
use crate::format::{ExtentAddress, Timestamp};
use crate::pool::{FrameWrite, Stop};
use crate::space::PageEntry;
use crate::space::runs::RemovedKeys;

/// The maximum number of leaves that one step unlinks, so that a checkpoint waits only briefly to begin.
pub(crate) const UNLINKED_LEAVES_MAX: usize = if cfg!(feature = "sim") { 4 } else { 128 };

/// A leaf that is to be unlinked.
enum Unlinked<'t> {
    InMemory(FrameWrite<'t>),
    OnDisk(PageEntry),
    Claimed(ExtentAddress),
}

impl Tree {
    /// Unlinks leaves that lie entirely within a range of a removal, beginning with the one after the leaf that covers
    /// the key. Returns the upper fence of the last one, or `None` if no leaf was unlinked. The removal must be folded
    /// into the key's leaf. The caller makes sure that every reader sees the removal.
    pub(crate) fn unlink_after(&self, key: &[u8], removal: Timestamp) -> Result<Option<Option<Vec<u8>>>, Stop> {
        let mut copy = self.free_frame()?;
        let epoch_guard = self.pool.space.epoch_latch.shared();
        self.check_dropped().map_err(Stop::Error)?;
        let mut parent_page = None;
        self.descend(Target::At(key), |page, _, inner, _| {
            if inner.level() == 1 {
                parent_page = Some(page);
            }
        })?;
        let Some(parent_page) = parent_page else { return Ok(None) };
        let Some(parent) = self.latch_inner(parent_page) else { return Ok(None) };
        let inner = Inner::new(&parent);
        if !inner.covers(key) || inner.level() != 1 {
            return Ok(None);
        }
        let position = inner.child_for(key);
        let first_page = inner.child(position);
        let Some(mut first) = self.latch_leaf(first_page) else { return Ok(None) };
        let leaf = Leaf::new(&first);
        let Some(removed) = self.only_removal(removal) else { return Ok(None) };
        if !leaf.covers(key) || leaf.newest() < removal {
            return Ok(None);
        }
        let mut empty = vec![0; self.pages.page_bytes()];
        let mut unlinked = Vec::new();
        let end = inner.len().min(position + 1 + UNLINKED_LEAVES_MAX);
        for child in position + 1..end {
            let (lower, upper) = child_fences(&inner, child);
            let lower = lower.expect("a child after another has a lower fence");
            LeafMut::init(&mut empty, leaf.upper_fence(), upper.as_deref());
            let has_room = leaf.merged_bytes(&Leaf::new(&empty)) <= self.pages.page_bytes();
            if !has_room || !removed.covers_range(&lower, upper.as_deref()) {
                break;
            }
            let page = inner.child(child);
            let entry = self.pages.table.load(page);
            let is_folded = |folded: &RemovedKeys| folded.meets(&lower, upper.as_deref());
            let is_unchanged = || self.pages.runs.with_folded_ranges(removal, is_folded) == Some(false);
            match entry {
                PageEntry::OnDisk(_) if is_unchanged() && !self.pages.has_values() => {
                    unlinked.push((page, upper, Unlinked::OnDisk(entry)));
                }
                PageEntry::Leaf(_) => match self.latch_leaf(page) {
                    Some(write) if Leaf::new(&write).newest() < removal && !has_large_rows(&Leaf::new(&write)) => {
                        self.pool.prepare_removal(&epoch_guard, &write)?;
                        unlinked.push((page, upper, Unlinked::InMemory(write)));
                    }
                    _ => break,
                },
                _ => break,
            }
        }
        if unlinked.is_empty() {
            return Ok(None);
        }
        self.pool.prepare_change(&epoch_guard, &parent)?;
        self.pool.prepare_change(&epoch_guard, &first)?;
        // Claim pages only now: nothing below can fail.
        let mut count = 0;
        for (page, _, state) in &mut unlinked {
            if let Unlinked::OnDisk(entry) = *state {
                let PageEntry::OnDisk(address) = entry else { unreachable!("just matched") };
                if !self.pool.claim_on_disk(&self.pages, *page, entry) {
                    break;
                }
                *state = Unlinked::Claimed(address);
            }
            count += 1;
        }
        unlinked.truncate(count);
        let Some((_, upper, _)) = unlinked.last() else { return Ok(None) };
        let upper = upper.clone();

        // The fences of all these pages change, or end.
        let pages = std::iter::once(first_page).chain(unlinked.iter().map(|(page, ..)| *page));
        let changes: Vec<_> = pages.map(|page| self.begin_change([page])).collect();
        LeafMut::init(&mut empty, leaf.upper_fence(), upper.as_deref());
        self.pool.mark_dirty(&epoch_guard, &first);
        let taken_over = LeafMut::new(first.leaf_mut(&self.pages.table)).merge_from(&Leaf::new(&empty));
        taken_over.expect("the sum was checked");
        let leaf = Leaf::new(&first);
        assert!(leaf.newest() >= removal && leaf.upper_fence() == upper.as_deref(), "a leaf takes over another range");
        // Scans skip leaves into which the removal is not folded, and this one may get new rows.
        let before = Timestamp(removal.0 - 1);
        self.pages.runs.note_folded_into(before, removal, leaf.lower_fence(), leaf.upper_fence());
        for (page, ..) in &unlinked {
            self.observer.rows_moved(&self.pages, *page, first_page, None);
        }
        copy.copy_from_slice(&parent);
        for child in (position + 1..=position + count).rev() {
            InnerMut::new(&mut copy).remove_child(child);
        }
        self.replace(&epoch_guard, parent_page, parent, copy);
        // End the changes before freeing the pages, because their ids may then be reused.
        drop(changes);
        for (page, _, state) in unlinked {
            match state {
                Unlinked::InMemory(write) => self.pool.free_page(&epoch_guard, &self.pages, write),
                Unlinked::Claimed(address) => {
                    self.pool.free_claimed(&epoch_guard, &self.pages, page, address);
                    let rows = self.pages.leaves_on_disk.average_rows().map(|rows| rows as u32);
                    self.pages.leaves_on_disk.replace(rows, None);
                }
                Unlinked::OnDisk(_) => unreachable!("it was claimed"),
            }
        }
        crate::coverage::mark!("leaves of a removed range were unlinked");
        Ok(Some(upper))
    }

    /// Returns the keys of a removal if it is the only run of the keyspace. The caller holds the epoch latch, so no
    /// other run is attached.
    fn only_removal(&self, removal: Timestamp) -> Option<RemovedKeys> {
        let list = self.pages.runs.list();
        match &list[..] {
            [run] if run.timestamp == removal && !run.has_rows() => Some(run.removed.clone()),
            _ => None,
        }
    }
}

fn has_large_rows(leaf: &Leaf<'_>) -> bool {
    (0..leaf.len()).any(|index| matches!(leaf.value(index), RowValue::Large(_)))
}
