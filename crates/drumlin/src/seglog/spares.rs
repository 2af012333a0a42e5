//! The spare segment files of a stream.

use super::segment::{self, BLOCK, Spare, SpareSize};
use crate::format::{SlotNumber, StreamId, UseNumber};

/// The files of a stream that are available for reuse, the numbers for new files and uses, and the number of spares
/// worth keeping. The numbers for files and uses always increase.
#[derive(Debug)]
pub(super) struct Spares {
    list: Vec<Spare>,
    use_next: UseNumber,
    slot_next: SlotNumber,
    /// The number of windows begun since the last truncation.
    begun_windows: usize,
    /// The number of spares worth keeping: as many as an interval between truncations needs.
    wanted: usize,
}

impl Spares {
    pub(super) fn new(list: Vec<Spare>, use_next: UseNumber, slot_next: SlotNumber) -> Spares {
        assert!(list.iter().all(|spare| spare.slot < slot_next), "{slot_next} is the slot of a spare");
        Spares { list, use_next, slot_next, begun_windows: 0, wanted: 1 }
    }

    /// Returns the total size of the files in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.list.iter().map(|spare| BLOCK + spare.window_bytes).sum()
    }

    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    pub(super) fn extend(&mut self, spares: impl IntoIterator<Item = Spare>) {
        self.list.extend(spares);
        debug_assert!(self.list.iter().all(|spare| spare.slot < self.slot_next), "a spare has an unused slot");
    }

    /// Issues the number for the next use of a file.
    pub(super) fn take_use_number(&mut self) -> UseNumber {
        let number = self.use_next;
        self.use_next = number.next();
        debug_assert!(number < self.use_next, "a use has the number of an earlier one");
        number
    }

    /// Returns `true` if a spare of this size can be used immediately.
    pub(super) fn has_free(&self, size: SpareSize) -> bool {
        self.list.iter().any(|spare| spare.is_free() && spare.serves(size))
    }

    /// Takes a file for a window of `window_bytes`: a spare of this size that can be used immediately, or else a new
    /// name.
    pub(super) fn take(&mut self, stream: StreamId, size: SpareSize, window_bytes: u64) -> Spare {
        let free = self.list.iter().position(|spare| spare.is_free() && spare.serves(size));
        let spare = match free {
            Some(free) => self.list.swap_remove(free),
            None => {
                let slot = self.slot_next;
                self.slot_next = slot.next();
                Spare { window_bytes, ..Spare::unused(segment::name(stream, slot), slot) }
            }
        };
        assert!(spare.slot < self.slot_next, "{} is used, whose number was not given out", spare.name);
        spare
    }

    /// Counts `count` more windows as begun, because records were appended to them.
    pub(super) fn note_begun(&mut self, count: usize) {
        self.begun_windows += count;
    }

    /// Re-estimates the number of spares worth keeping, after a truncation. The next interval between checkpoints will
    /// probably need as many as the last one did. The estimate decays by at most a quarter per interval.
    pub(super) fn begin_interval(&mut self) {
        self.wanted = self.begun_windows.max(self.wanted * 3 / 4).max(1);
        self.begun_windows = 0;
        debug_assert!(self.wanted > 0, "a stream on a full disk may need its only spare");
    }

    /// Reduces the number of spares worth keeping to one.
    pub(super) fn want_one(&mut self) {
        self.wanted = 1;
    }

    /// Takes the spares that are not worth keeping: first the spares of unsuitable sizes, then those beyond the wanted
    /// number. Spares of `window_bytes` are taken last.
    pub(super) fn take_surplus(&mut self, size: SpareSize, window_bytes: u64) -> Vec<Spare> {
        assert!(self.wanted > 0, "a stream on a full disk may need its only spare");
        let (mut kept, mut surplus): (Vec<_>, Vec<_>) = self.list.drain(..).partition(|spare| spare.serves(size));
        kept.sort_by_key(|spare| !spare.serves(SpareSize::Window(window_bytes)));
        surplus.extend(kept.drain(self.wanted.min(kept.len())..));
        self.list = kept;
        debug_assert!(self.list.len() <= self.wanted, "more spares are kept than wanted");
        surplus
    }
}
