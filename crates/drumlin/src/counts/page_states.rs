//! Reductions of the rows beneath each page: the states of a keyspace's pages, for each reducer that was used on it.
//!
//! They are cached along with the counts and follow the same rules (`counts/mod.rs`), with one difference: a change
//! can't correct a state. The old and new values of a row would be enough to correct a sum, but not a minimum. So a
//! state describes the rows at the base, and is used only if no row beneath the page has changed since. Folding a
//! change voids the states of the pages above it.
//!
//! # Invariants
//! 1. Each page has a stamp, which is replaced whenever the page's fences change or a change beneath the page is
//!    folded. A state is valid while the page's stamp is still the one that was read before the rows.
//! 2. A state is stored only if the list has no change in its page up to the snapshot that it was made from. So it also
//!    describes the rows at the base, and those at every other snapshot up to which the list has no change in the page.
//! 3. From commit [`Reductions::since`] onwards, the list has every change of a row, including replaced values. No
//!    state is used for an older snapshot, or made from an older snapshot.
//!
//! States are opaque bytes in this module; `db/reducer.rs` interprets them. No user function runs under a lock or a
//! latch.
//!
//! The states of the few dozen most recently used reducers are cached. They have an account of their own, and their
//! memory is given back when the last user drops their table. Nearly all states belong to leaves; each needs 12 bytes
//! plus its content. If the account is full, the reducer whose states use the most memory has to drop states of leaves,
//! one part at a time, in favour of other reducers. States of inner nodes are retained, and leaves without a state are
//! reduced from their rows. States never deprive page tables or loads of memory: if these leave too little for the
//! states, the excess is dropped ([`Reductions::shed`]).

use std::any::TypeId;
use std::sync::Arc;

use super::page_entries::{CountEntries, CountEntry};
use crate::format::{PageId, Timestamp, get_u32, get_u64, put_u32, put_u64};
use crate::hash::HashMap;
use crate::memory::{Account, Budget, heap_bytes};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The maximum length of a reducer's name, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 1 << 10;

/// The maximum number of reducers whose states are cached. With a small budget there are fewer, because their tables,
/// with names of the maximum length, use at most an eighth of the counts' account.
const KEPT_REDUCERS_MAX: u64 = 32;

/// Identifies a reducer. Reducers with the same identity must return the same results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReducerId {
    pub(crate) kind: TypeId,
    pub(crate) name: String,
}

/// The reductions of a keyspace.
pub(crate) struct Reductions {
    /// A stamp for each page.
    pub(super) stamps: CountEntries,
    /// The newest commit when reductions began.
    pub(super) since: Timestamp,
    /// The reducers' tables, the least recently used first.
    kept: Mutex<Vec<Arc<KeptReduction>>>,
    kept_max: usize,
    budget: Arc<Budget>,
}

/// The number of parts that a reducer's states are divided into. Each part has its own lock.
const PART_COUNT: usize = 64;
/// The number of pages in a block. Fixed by the size of the word that has one bit per page.
const BLOCK_PAGES: usize = 64;

/// The two kinds of pages that can have states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StateLevel {
    /// Leaves, which are nearly all pages, so their states are dropped first.
    Leaf,
    Inner,
}

/// The states of pages with adjacent ids, stored in consecutive slots of equal length. This suits most reducers, whose
/// states have the same or nearly the same length.
#[derive(Default)]
struct Block {
    /// A bitmap of the pages that have a state.
    present: u64,
    /// The bits of `present` that belong to leaves.
    leaves: u64,
    /// The size of a slot in bytes: stamp, length, and room for the longest state.
    slot_bytes: usize,
    slots: Vec<u8>,
}

/// The size of the stamp and the length before a state. Fixed by the layout of a slot.
const SLOT_HEAD_BYTES: usize = 12;
/// When a block grows, it gets room for this number of states.
const BLOCK_GROWTH_STATES: usize = 8;
/// The memory of a block without its slots, assuming a hash table that is three quarters full.
const BLOCK_BYTES: usize = (size_of::<(u32, Block)>() + 1) * 4 / 3;

impl Block {
    /// Returns the index of a page's slot, or the index at which its slot would be inserted.
    fn rank(&self, index: usize) -> usize {
        debug_assert!(index < BLOCK_PAGES, "page {index} of a block");
        (self.present & ((1 << index) - 1)).count_ones() as usize
    }

    fn slot(&self, rank: usize) -> &[u8] {
        debug_assert!(rank < self.present.count_ones() as usize, "slot {rank} has no state");
        &self.slots[rank * self.slot_bytes..][..self.slot_bytes]
    }

    /// Returns the page's stamp and state.
    #[inline]
    fn get(&self, index: usize) -> Option<(u64, &[u8])> {
        if self.present & 1 << index == 0 {
            return None;
        }
        let slot = self.slot(self.rank(index));
        let length = get_u32(slot, 8) as usize;
        Some((get_u64(slot, 0), &slot[SLOT_HEAD_BYTES..][..length]))
    }

    fn put(&mut self, index: usize, level: StateLevel, stamp: u64, state: &[u8]) {
        let needed_bytes = SLOT_HEAD_BYTES + state.len();
        if needed_bytes > self.slot_bytes {
            let count = self.present.count_ones() as usize;
            let mut wider = Vec::with_capacity((count + BLOCK_GROWTH_STATES) * needed_bytes);
            for rank in 0..count {
                wider.extend_from_slice(self.slot(rank));
                wider.resize((rank + 1) * needed_bytes, 0);
            }
            (self.slots, self.slot_bytes) = (wider, needed_bytes);
        }
        let start = self.rank(index) * self.slot_bytes;
        let bit = 1 << index;
        if self.present & bit == 0 {
            if self.slots.capacity() < self.slots.len() + self.slot_bytes {
                self.slots.reserve_exact(BLOCK_GROWTH_STATES * self.slot_bytes);
            }
            self.slots.splice(start..start, std::iter::repeat_n(0, self.slot_bytes));
        }
        self.present |= bit;
        self.leaves = if level == StateLevel::Leaf { self.leaves | bit } else { self.leaves & !bit };
        let slot = &mut self.slots[start..][..self.slot_bytes];
        put_u64(slot, 0, stamp);
        put_u32(slot, 8, state.len() as u32);
        slot[SLOT_HEAD_BYTES..][..state.len()].copy_from_slice(state);
        debug_assert_eq!(self.get(index), Some((stamp, state)), "a state is kept as another");
    }

    /// Drops all states, or only those of leaves.
    fn drop_states(&mut self, leaves_only: bool) {
        let mut rest = Block::default();
        for index in (0..BLOCK_PAGES).filter(|index| leaves_only && self.leaves & 1 << index == 0) {
            if let Some((stamp, state)) = self.get(index) {
                rest.put(index, StateLevel::Inner, stamp, state);
            }
        }
        debug_assert!(rest.leaves == 0 && rest.present & !self.present == 0, "states appear while others are dropped");
        *self = rest;
    }

    fn memory_bytes(&self) -> u64 {
        if self.present == 0 { 0 } else { (heap_bytes(self.slots.capacity()) + BLOCK_BYTES) as u64 }
    }
}

/// Blocks by number.
type Blocks = HashMap<u32, Block>;

/// The states of a reducer.
pub(crate) struct KeptReduction {
    id: ReducerId,
    parts: [Mutex<Blocks>; PART_COUNT],
    budget: Arc<Budget>,
    /// The number of bytes taken from the counts' account for the table.
    table_bytes: u64,
    /// The number of bytes taken from the states' account.
    state_bytes: AtomicU64,
    leaf_count: AtomicU64,
    /// The next part whose states of leaves are to be dropped.
    next_dropped: AtomicU64,
}

/// The size of a table without its states and the reducer's name, in bytes.
const TABLE_BYTES: u64 = size_of::<KeptReduction>() as u64 + 16;

impl Drop for KeptReduction {
    fn drop(&mut self) {
        self.budget.give(Account::Counts, self.table_bytes);
        self.budget.give(Account::States, self.state_bytes.load(Ordering::Relaxed));
    }
}

impl std::fmt::Debug for KeptReduction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeptReduction({})", self.id.name)
    }
}

impl KeptReduction {
    /// Returns the part that a page belongs to. Pages with adjacent ids share a part, because after a bulk load they
    /// are also neighbours in the tree.
    fn part_of(page: PageId) -> usize {
        const { assert!(PART_COUNT.is_power_of_two() && BLOCK_PAGES == u64::BITS as usize) };
        page.0 as usize / BLOCK_PAGES % PART_COUNT
    }

    /// Returns the number of a page's block, and the page's index in it.
    fn block_of(page: PageId) -> (u32, usize) {
        (page.0 / BLOCK_PAGES as u32, page.0 as usize % BLOCK_PAGES)
    }
}

/// The typical size of a state, used to reserve memory in advance.
const STATE_BYTES: usize = 24;

/// A list of states, in the key order of their pages.
#[derive(Debug, Default)]
pub(crate) struct States {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl States {
    pub(super) fn with_capacity(count: usize) -> States {
        States { bytes: Vec::with_capacity(count * STATE_BYTES), ends: Vec::with_capacity(count) }
    }

    fn push(&mut self, state: &[u8]) {
        self.bytes.extend_from_slice(state);
        self.ends.push(self.bytes.len());
        debug_assert!(self.ends.is_sorted(), "a state ends before the one in front of it");
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        debug_assert!(self.ends.last().is_none_or(|end| *end == self.bytes.len()), "bytes after the last state");
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}

impl Reductions {
    pub(super) fn new(now: Timestamp, budget: &Arc<Budget>) -> Reductions {
        let tables_bytes = budget.limit_bytes(Account::Counts) / 8;
        let kept_max = (tables_bytes / (TABLE_BYTES + NAME_BYTES_MAX as u64)).clamp(1, KEPT_REDUCERS_MAX) as usize;
        Reductions {
            stamps: CountEntries::new(),
            since: now,
            kept: Mutex::default(),
            kept_max,
            budget: Arc::clone(budget),
        }
    }

    /// Returns the table of a reducer's states, creating it if necessary. Returns `None` if reductions began after the
    /// snapshot, or if there is too little memory for a table. If there are too many tables, a new one replaces the
    /// least recently used one.
    pub(crate) fn of(&self, id: &ReducerId, snapshot: Timestamp) -> Option<Arc<KeptReduction>> {
        assert!(id.name.len() <= NAME_BYTES_MAX, "a name of {} bytes is kept", id.name.len());
        if snapshot < self.since {
            return None;
        }
        let mut kept = self.kept.lock();
        if let Some(at) = kept.iter().position(|kept| kept.id == *id) {
            kept[at..].rotate_left(1);
            return kept.last().map(Arc::clone);
        }
        let made = Arc::new(KeptReduction::new(id.clone(), &self.budget)?);
        let evicted = (kept.len() == self.kept_max).then(|| kept.remove(0));
        kept.push(Arc::clone(&made));
        // The evicted table may have many states, so unlock before freeing them.
        drop(kept);
        drop(evicted);
        Some(made)
    }

    /// Appends the states of pages at the base, up to the first page without a state. Returns the number of states
    /// appended.
    pub(super) fn states(
        &self,
        reduction: &KeptReduction,
        pages: impl Iterator<Item = PageId>,
        states: &mut States,
    ) -> usize {
        let mut locked: Option<(usize, MutexGuard<'_, Blocks>)> = None;
        let before = states.len();
        for page in pages {
            let CountEntry::Unknown(stamp) = self.stamps.load(page) else { break };
            let part = KeptReduction::part_of(page);
            if locked.as_ref().is_none_or(|(of, _)| *of != part) {
                // Unlock the previous part first: a thread never holds two of these locks.
                drop(locked.take());
                locked = Some((part, reduction.parts[part].lock()));
            }
            let (block, index) = KeptReduction::block_of(page);
            let kept = locked.as_ref().and_then(|(_, blocks)| blocks.get(&block)?.get(index));
            let Some((_, state)) = kept.filter(|(of, _)| *of == stamp) else { break };
            states.push(state);
        }
        assert!(states.len() >= before, "states are lost");
        states.len() - before
    }

    /// Returns `true` if the page has a valid state.
    pub(super) fn has_state(&self, reduction: &KeptReduction, page: PageId) -> bool {
        self.states(reduction, std::iter::once(page), &mut States::default()) > 0
    }

    /// Returns the limit on all states, for adding a state of this level. An eighth of the account is reserved for the
    /// few inner nodes. If all of these have states, leaves without states cost extra reads only at the two ends of a
    /// range.
    fn limit_bytes(&self, level: StateLevel) -> u64 {
        let bytes = self.budget.limit_bytes(Account::States);
        if level == StateLevel::Leaf { bytes / 8 * 7 } else { bytes }
    }

    /// Returns the reducer that has to drop states in favour of `to`: among those with states of leaves, the one whose
    /// states use the most memory. To make room for a leaf's state, that memory must exceed the memory of `to` by a
    /// margin ([`SHARE_BYTES_MIN`]).
    fn yielding(&self, to: &KeptReduction, level: StateLevel) -> Option<Arc<KeptReduction>> {
        let kept = self.kept.lock();
        let bytes_of = |kept: &Arc<KeptReduction>| kept.state_bytes.load(Ordering::Relaxed);
        let has_leaves = |kept: &&Arc<KeptReduction>| kept.leaf_count.load(Ordering::Relaxed) > 0;
        let richest = kept.iter().filter(has_leaves).max_by_key(|kept| bytes_of(kept))?;
        let own_bytes = to.state_bytes.load(Ordering::Relaxed);
        let is_richer = bytes_of(richest) > own_bytes + own_bytes / 8 + SHARE_BYTES_MIN;
        (level == StateLevel::Inner || is_richer).then(|| Arc::clone(richest))
    }

    /// Returns `true` if there is memory for states of more leaves, or a reducer can be made to drop some.
    pub(super) fn has_leaf_memory(&self, reduction: &KeptReduction) -> bool {
        let needed_bytes = KeptReduction::bytes_for(STATE_BYTES);
        self.budget.taken_bytes(Account::States) + needed_bytes <= self.limit_bytes(StateLevel::Leaf)
            || self.yielding(reduction, StateLevel::Leaf).is_some()
    }

    /// Makes room for a state, if necessary by dropping states of leaves. Returns `false` if that frees too little
    /// memory.
    pub(super) fn reserve_state(&self, reduction: &KeptReduction, level: StateLevel, state_bytes: usize) -> bool {
        let needed_bytes = KeptReduction::bytes_for(state_bytes);
        while self.budget.taken_bytes(Account::States) + needed_bytes > self.limit_bytes(level) {
            let Some(yielding) = self.yielding(reduction, level) else { return false };
            yielding.drop_part();
        }
        true
    }

    /// Drops states until the remaining ones fit into the memory that is left for states. States of leaves are dropped
    /// first.
    pub(crate) fn shed(&self) {
        let is_beyond = || self.budget.taken_bytes(Account::States) > self.budget.limit_bytes(Account::States);
        if !is_beyond() {
            return;
        }
        let kept: Vec<Arc<KeptReduction>> = self.kept.lock().clone();
        assert!(kept.len() <= self.kept_max, "{} reducers are kept", kept.len());
        for leaves_only in [true, false] {
            for part in (0..PART_COUNT).filter(|_| is_beyond()) {
                kept.iter().for_each(|kept| kept.drop_states(part, leaves_only));
            }
        }
    }
}

/// To make room for states of its leaves, a reducer takes memory from another only if the other's states exceed its own
/// by an eighth and this many bytes. Otherwise the two would keep taking memory from each other.
const SHARE_BYTES_MIN: u64 = 4 << 10;

impl KeptReduction {
    /// Creates a table without states. Returns `None` if counts already use five eighths of their account, because the
    /// rest is reserved for the list of changes.
    fn new(id: ReducerId, budget: &Arc<Budget>) -> Option<KeptReduction> {
        let bytes = TABLE_BYTES + heap_bytes(id.name.capacity()) as u64;
        if budget.taken_bytes(Account::Counts) + bytes > budget.limit_bytes(Account::Counts) / 8 * 5 {
            return None;
        }
        budget.take(Account::Counts, bytes);
        let parts = std::array::from_fn(|_| Mutex::default());
        let [state_bytes, leaf_count, next_dropped] = [0; 3].map(AtomicU64::new);
        Some(KeptReduction {
            id,
            parts,
            budget: Arc::clone(budget),
            table_bytes: bytes,
            state_bytes,
            leaf_count,
            next_dropped,
        })
    }

    /// Returns the memory to reserve for one more state: enough for a new block and its first slots.
    fn bytes_for(state_bytes: usize) -> u64 {
        (BLOCK_BYTES + heap_bytes(BLOCK_GROWTH_STATES * (SLOT_HEAD_BYTES + state_bytes))) as u64
    }

    /// Stores a page's state, replacing any previous one.
    pub(super) fn store(&self, page: PageId, stamp: u64, level: StateLevel, state: &[u8]) {
        debug_assert!(page != PageId::NONE, "page 0 has no rows");
        let (number, index) = Self::block_of(page);
        self.change(Self::part_of(page), |blocks| {
            let block = blocks.entry(number).or_default();
            let before = (block.memory_bytes(), block.leaves.count_ones());
            block.put(index, level, stamp, state);
            (before, (block.memory_bytes(), block.leaves.count_ones()))
        });
    }

    /// Drops the states of leaves in one part. Successive calls go through the parts in turn.
    fn drop_part(&self) {
        let part = self.next_dropped.fetch_add(1, Ordering::Relaxed) as usize % PART_COUNT;
        self.drop_states(part, true);
    }

    fn drop_states(&self, part: usize, leaves_only: bool) {
        let sum = |blocks: &Blocks| {
            let of = |block: &Block| (block.memory_bytes(), block.leaves.count_ones());
            blocks.values().map(of).fold((0, 0), |sum, block| (sum.0 + block.0, sum.1 + block.1))
        };
        self.change(part, |blocks| {
            let before = sum(blocks);
            blocks.values_mut().for_each(|block| block.drop_states(leaves_only));
            blocks.retain(|_, block| block.present != 0);
            blocks.shrink_to_fit();
            (before, sum(blocks))
        });
    }

    /// Calls `change` with a part, and updates the accounts. `change` returns two pairs, before and after the change:
    /// the bytes that the part uses, and the number of its leaves.
    fn change(&self, part: usize, change: impl FnOnce(&mut Blocks) -> ((u64, u32), (u64, u32))) {
        let mut blocks = self.parts[part].lock();
        let ((bytes_before, leaves_before), (bytes, leaves)) = change(&mut blocks);
        debug_assert!(blocks.values().all(|block| block.leaves & !block.present == 0), "a leaf without a state");
        self.leaf_count.fetch_add(u64::from(leaves).wrapping_sub(u64::from(leaves_before)), Ordering::Relaxed);
        if bytes > bytes_before {
            self.budget.take(Account::States, bytes - bytes_before);
            self.state_bytes.fetch_add(bytes - bytes_before, Ordering::Relaxed);
        } else {
            let freed_bytes = bytes_before - bytes;
            let had_bytes = self.state_bytes.fetch_sub(freed_bytes, Ordering::Relaxed);
            assert!(freed_bytes <= had_bytes, "states give back {freed_bytes} bytes of {had_bytes}");
            self.budget.give(Account::States, freed_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States are returned in the order in which they were pushed, including empty ones.
    #[test]
    fn states_keep_their_order() {
        let mut states = States::default();
        let pushed: [&[u8]; 4] = [b"one", b"", b"three", b"4"];
        pushed.iter().for_each(|state| states.push(state));
        assert_eq!(states.iter().collect::<Vec<_>>(), pushed);
        assert_eq!(states.len(), 4);
    }

    /// A block maps pages to states of any length. Dropping the states of leaves does not drop those of inner nodes.
    #[test]
    fn a_block_is_a_map() {
        let mut random = crate::sync::Random(7);
        let (mut block, mut model) = (Block::default(), std::collections::BTreeMap::new());
        for turn in 0..2000u64 {
            let index = (random.next() % BLOCK_PAGES as u64) as usize;
            let state = vec![turn as u8; (random.next() % 40) as usize];
            let level = if random.one_in(4) { StateLevel::Inner } else { StateLevel::Leaf };
            block.put(index, level, turn, &state);
            model.insert(index, (level, turn, state));
            if turn % 300 == 299 {
                block.drop_states(true);
                model.retain(|_, (level, ..)| *level == StateLevel::Inner);
            }
            for index in 0..BLOCK_PAGES {
                let expected = model.get(&index).map(|(_, stamp, state)| (*stamp, &state[..]));
                assert_eq!(block.get(index), expected, "page {index} in turn {turn}");
            }
        }
        block.drop_states(false);
        assert_eq!((block.present, block.memory_bytes()), (0, 0));
    }

    fn kept(reductions: &Reductions, name: &str) -> Arc<KeptReduction> {
        let id = ReducerId { kind: TypeId::of::<u8>(), name: name.to_owned() };
        reductions.of(&id, Timestamp(1)).expect("there is memory for a table")
    }

    /// Stores states of leaves until there is no more room. Returns their number.
    fn fill(reductions: &Reductions, reduction: &KeptReduction, leaf_count: u32) -> u32 {
        let keep = |page: &u32| {
            let is_reserved = reductions.reserve_state(reduction, StateLevel::Leaf, 32);
            if is_reserved {
                reduction.store(PageId(*page), 1, StateLevel::Leaf, &[7; 32]);
            }
            is_reserved
        };
        (1..=leaf_count).filter(keep).count() as u32
    }

    /// Two reducers share the memory for states, and states of inner nodes are never dropped in favour of leaves. At
    /// the end, all memory is given back.
    #[test]
    fn reducers_share_the_memory_of_states() {
        let budget = Arc::new(Budget::new(8 << 20, 1));
        let limit = budget.limit_bytes(Account::States);
        let reductions = Reductions::new(Timestamp(1), &budget);
        let (first, second) = (kept(&reductions, "first"), kept(&reductions, "second"));
        assert!(reductions.reserve_state(&first, StateLevel::Inner, 32));
        first.store(PageId(1_000_000), 1, StateLevel::Inner, &[1; 32]);
        let alone = fill(&reductions, &first, 1 << 20);
        let bytes_a_leaf = limit * 7 / 8 / u64::from(alone);
        assert!((44..50).contains(&bytes_a_leaf), "{bytes_a_leaf} bytes a leaf");
        assert!(!reductions.has_leaf_memory(&first) && reductions.has_leaf_memory(&second));
        fill(&reductions, &second, 1 << 20);
        let bytes = [&first, &second].map(|kept| kept.state_bytes.load(Ordering::Relaxed));
        assert!(bytes.iter().all(|bytes| *bytes > limit / 3), "{bytes:?} of {limit}");
        assert!(
            !reductions.has_leaf_memory(&first) && !reductions.has_leaf_memory(&second),
            "they take from each other"
        );
        assert_eq!(bytes.iter().sum::<u64>(), budget.taken_bytes(Account::States));
        assert!(budget.taken_bytes(Account::States) <= limit);
        for page in 0..1000 {
            assert!(reductions.reserve_state(&second, StateLevel::Inner, 32), "there is room for inner nodes");
            second.store(PageId(2_000_000 + page), 1, StateLevel::Inner, &[2; 32]);
        }
        let inner = first.parts[KeptReduction::part_of(PageId(1_000_000))].lock();
        assert!(inner.values().any(|block| block.present & !block.leaves != 0), "an inner node lost its state");
        drop(inner);
        drop((first, second, reductions));
        assert_eq!(budget.taken_bytes(Account::States) + budget.taken_bytes(Account::Counts), 0);
    }

    /// States are dropped when page tables grow or a load takes memory.
    #[test]
    fn states_give_way() {
        let budget = Arc::new(Budget::new(8 << 20, 1));
        let limit = budget.limit_bytes(Account::States);
        // A load alone would leave enough memory for the states, so in its case page tables use some too.
        for (account, tables_bytes) in [(Account::Tables, 0), (Account::Loads, limit * 3 / 4)] {
            budget.take(Account::Tables, tables_bytes);
            let reductions = Reductions::new(Timestamp(1), &budget);
            let first = kept(&reductions, "first");
            fill(&reductions, &first, 1 << 20);
            assert!(budget.taken_bytes(Account::States) > limit / 2);
            let growth = budget.grant(account).limit_bytes();
            budget.take(account, growth);
            reductions.shed();
            let left = budget.limit_bytes(Account::States);
            assert!(left < limit / 2 && budget.taken_bytes(Account::States) <= left, "{left} bytes of states are left");
            budget.give(account, growth);
            budget.give(Account::Tables, tables_bytes);
        }
    }

    /// Only the most recently used reducers are cached and use memory, however many names are used.
    #[test]
    fn the_reducers_used_last_are_kept() {
        let budget = Arc::new(Budget::new(64 << 20, 1));
        let reductions = Reductions::new(Timestamp(1), &budget);
        let of = |name: String| reductions.of(&ReducerId { kind: TypeId::of::<u8>(), name }, Timestamp(1)).unwrap();
        let taken = || budget.taken_bytes(Account::Counts);
        let (used, page, state) = (of("used".into()), PageId(7), [1; 100]);
        used.store(page, 1, StateLevel::Leaf, &state);
        used.store(page, 2, StateLevel::Leaf, b"less");
        assert_eq!(taken(), TABLE_BYTES + heap_bytes(4) as u64);
        assert_eq!(budget.taken_bytes(Account::States), KeptReduction::bytes_for(state.len()));
        for number in 0..1000 {
            of(format!("{number:0NAME_BYTES_MAX$}"));
            assert!(taken() <= budget.limit_bytes(Account::Counts) / 8, "{} bytes of {number} names", taken());
            assert!(Arc::ptr_eq(&of("used".into()), &used), "a reducer is dropped that is used");
        }
        assert_eq!(reductions.kept.lock().len() as u64, KEPT_REDUCERS_MAX);
        (0..KEPT_REDUCERS_MAX).for_each(|number| drop(of(number.to_string())));
        assert!(!Arc::ptr_eq(&of("used".into()), &used), "a reducer is kept that is not used");
        let with_evicted = taken();
        drop(used);
        assert!(taken() < with_evicted, "memory is given back while states are in use");
        drop(reductions);
        assert_eq!((taken(), budget.taken_bytes(Account::States)), (0, 0));
    }

    /// A stamp changes when it is voided and when its page's fences change.
    #[test]
    fn stamps_change() {
        let stamps = CountEntries::new();
        let page = PageId(9);
        let stamp = |stamps: &CountEntries| match stamps.load_made(page, drop) {
            CountEntry::Unknown(stamp) => stamp,
            other => panic!("{other:?}"),
        };
        let first = stamp(&stamps);
        stamps.void(page);
        let second = stamp(&stamps);
        stamps.begin_change(page, drop);
        stamps.void(page);
        assert_eq!(stamps.load(page), CountEntry::Changing);
        stamps.end_change(page);
        let third = stamp(&stamps);
        stamps.renew(page, drop);
        let stamps = [first, second, third, stamp(&stamps)];
        assert!(stamps.is_sorted_by(|one, next| one < next), "{stamps:?}");
    }
}

#[cfg(all(test, drumlin_loom))]
mod models {
    use loom::sync::{Arc, Mutex, RwLock};
    use loom::thread;

    use super::*;
    use crate::sync::atomic::{AtomicU64, Ordering};

    const PAGE: PageId = PageId(2);

    /// The part of the protocol that is omitted in a run of the model.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Without {
        Nothing,
        /// A fold does not change the page's stamp.
        Voiding,
        /// The stamp is read after the rows instead of before.
        StampFirst,
    }

    /// A page with a row that commit 2 changes.
    struct Page {
        stamps: CountEntries,
        published: AtomicU64,
        /// The commits whose changes are in the list.
        list: Mutex<Vec<u64>>,
        /// The commit up to which changes have been folded.
        base: RwLock<u64>,
        state: Mutex<Option<(u64, u64)>>,
        leaf: Mutex<()>,
        without: Without,
    }

    impl Page {
        /// Returns the row as commit `snapshot` left it.
        fn row(snapshot: u64) -> u64 {
            snapshot * 10
        }

        fn stamp(&self) -> u64 {
            match self.stamps.load_made(PAGE, drop) {
                CountEntry::Unknown(stamp) => stamp,
                other => unreachable!("{other:?}"),
            }
        }

        fn commit(&self) {
            let latched = self.leaf.lock().unwrap();
            self.list.lock().unwrap().push(2);
            drop(latched);
            self.published.store(2, Ordering::Release);
        }

        fn fold(&self) {
            let mut base = self.base.write().unwrap();
            self.list.lock().unwrap().clear();
            if self.without != Without::Voiding {
                self.stamps.void(PAGE);
            }
            *base = 2;
        }

        fn make(&self) {
            let snapshot = self.published.load(Ordering::Acquire);
            let stamp = {
                let base = self.base.read().unwrap();
                if snapshot < *base || self.list.lock().unwrap().iter().any(|commit| *commit <= snapshot) {
                    return;
                }
                (self.without != Without::StampFirst).then(|| self.stamp())
            };
            // The rows are read here, under the leaf's latch.
            drop(self.leaf.lock().unwrap());
            let row = Self::row(snapshot);
            let stamp = stamp.unwrap_or_else(|| self.stamp());
            *self.state.lock().unwrap() = Some((stamp, row));
        }

        /// Uses the state, if it is valid for the snapshot.
        fn reduce(&self) {
            let snapshot = self.published.load(Ordering::Acquire);
            let base = self.base.read().unwrap();
            if snapshot < *base || self.list.lock().unwrap().iter().any(|commit| *commit <= snapshot) {
                return;
            }
            let stamp = self.stamp();
            let state = *self.state.lock().unwrap();
            if let Some((of, row)) = state
                && of == stamp
            {
                assert_eq!(row, Self::row(snapshot), "a state of another snapshot");
            }
        }
    }

    /// One thread makes a state while another commits and folds. A third may use the state only for a snapshot at which
    /// it is valid.
    fn reduce_beside_fold(without: Without) {
        loom::model(move || {
            let page = Arc::new(Page {
                stamps: CountEntries::new(),
                published: AtomicU64::new(1),
                list: Mutex::default(),
                base: RwLock::new(0),
                state: Mutex::new(None),
                leaf: Mutex::default(),
                without,
            });
            // Allocate the levels before the threads start; allocation is not part of the protocol.
            page.stamp();
            let making = {
                let page = Arc::clone(&page);
                thread::spawn(move || page.make())
            };
            let writing = {
                let page = Arc::clone(&page);
                thread::spawn(move || {
                    page.commit();
                    page.fold();
                })
            };
            page.reduce();
            making.join().unwrap();
            writing.join().unwrap();
            page.reduce();
        });
    }

    #[test]
    fn loom_states_during_a_fold_are_right() {
        reduce_beside_fold(Without::Nothing);
    }

    /// Shows that the model detects states that a fold does not void.
    #[test]
    #[should_panic(expected = "a state of another snapshot")]
    fn loom_states_that_a_fold_leaves_are_wrong() {
        reduce_beside_fold(Without::Voiding);
    }

    /// Shows that the model detects states whose stamp was read too late.
    #[test]
    #[should_panic(expected = "a state of another snapshot")]
    fn loom_states_with_a_later_stamp_are_wrong() {
        reduce_beside_fold(Without::StampFirst);
    }
}
