//! Lists of places in the stream: making them when the index needs much memory, reading entries by them, and moving
//! the entries that they name.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::listed::ListedRange;
use super::place::EntryPlace;
use super::shared::{LogCell, Pin, Shared};
use super::state::{FoundEntry, LogState};
use crate::error::Result;
use crate::format::logs::{
    ENTRY_HEADER_BYTES, EntryPart, LIST_HEADER_BYTES, LIST_OFFSET, LogChange, PART_CONTENT_OFFSET, PLACE_BYTES,
    PLACE_COUNT_MAX, encode_copied_entry, encode_part, encode_places, entry_seed, places_of_list,
};
use crate::format::{StreamPosition, checksum, get_u64};
use crate::seglog::{Body, Claim, Reservation};

/// The places in a list. A list is read at once, and 40 bytes of memory stand for it.
const LISTED_COUNT: usize = if cfg!(any(test, feature = "sim")) { 4 } else { PLACE_COUNT_MAX };

/// The smallest number of places for which a list is made when memory is nearly full. Fewer would hardly make room.
const LISTED_COUNT_MIN: usize = if cfg!(any(test, feature = "sim")) { 2 } else { 16 };

/// The longest body of a record with a list.
const LIST_BODY_BYTES_MAX: usize = LIST_OFFSET + LIST_HEADER_BYTES + PLACE_COUNT_MAX * PLACE_BYTES;

/// Entries that were found by a list.
pub(super) struct Listed {
    pub(super) entries: Vec<FoundEntry>,
    /// The position of the list if it does not verify. Each entry still verifies, or does not.
    pub(super) damaged_list: Option<StreamPosition>,
}

impl Shared {
    fn index_memory_bytes(&self) -> u64 {
        self.index_memory_bytes.load(Ordering::Relaxed)
    }

    /// Lists places in the stream until the index needs less memory, if it needs much. The caller holds the lock of the
    /// maintenance, so no other thread makes or replaces lists.
    pub(super) fn list_places(&self) -> Result<()> {
        let mut count_min = LISTED_COUNT;
        let mut limit_bytes = self.sizes.index_listed_bytes;
        while count_min >= LISTED_COUNT_MIN {
            for (log, cell) in self.cells() {
                loop {
                    if self.index_memory_bytes() <= limit_bytes {
                        return Ok(());
                    }
                    if !self.list_oldest(log, &cell, count_min)? {
                        break;
                    }
                }
            }
            // Short lists are worth less, so they are made only if there is no other way.
            limit_bytes = limit_bytes.max(self.sizes.index_limit_bytes / 4 * 3);
            count_min /= 2;
        }
        Ok(())
    }

    /// Lists the oldest places of a log that are in memory. Returns `false` if there are fewer than `count_min`.
    fn list_oldest(&self, log: u64, cell: &LogCell, count_min: usize) -> Result<bool> {
        if cell.state.lock().places.len() < count_min {
            return Ok(false);
        }
        let reservation = self.stream.reserve_with(LIST_BODY_BYTES_MAX, Claim::Ordinary)?;
        let oldest = |state: &LogState| (state.places.len() >= count_min).then(|| state.oldest_places(LISTED_COUNT));
        self.commit_list(reservation, log, cell, oldest)
    }

    /// Appends a list of places, which is made under the log's lock, and has the log forget them. Returns `false` if
    /// there is no list.
    fn commit_list(
        &self,
        reservation: Reservation<'_>,
        log: u64,
        cell: &LogCell,
        make: impl FnOnce(&LogState) -> Option<(u64, Vec<u8>)>,
    ) -> Result<bool> {
        let mut state = cell.state.lock();
        let Some((first, places)) = make(&state) else { return Ok(false) };
        let body = Body::new(encode_places(self.identity, log, first, &places));
        let appended = reservation.append(&body)?;
        let position = appended.body_position(body.bytes().len());
        let memory_before = state.memory_bytes();
        let change = LogChange::Places { log, first, offset: LIST_OFFSET, places: &places };
        state.apply(&change, appended.timestamp, position, self.stream.durable(), &mut self.live.lock());
        self.note_memory(memory_before, state.memory_bytes());
        drop(state);
        self.maintenance.note(body.bytes().len() as u64);
        Ok(true)
    }

    /// Reads the places of a listed range. Returns `None` if the list is gone, and else whether it verifies.
    fn read_list(&self, log: u64, listed_range: &ListedRange) -> Result<Option<(Vec<EntryPlace>, bool)>> {
        let mut bytes = vec![0; listed_range.list_bytes()];
        self.wait_written(listed_range.list + bytes.len() as u64)?;
        if !self.stream.read_at(listed_range.list, &mut bytes)? {
            return Ok(None);
        }
        let (places, is_sound) = places_of_list(&bytes, self.identity, log, listed_range.first);
        Ok(Some((places.chunks_exact(PLACE_BYTES).map(EntryPlace::decode).collect(), is_sound)))
    }

    /// Returns `false` if no entry of the listed range can be at this place, because the list is damaged.
    fn is_possible(&self, listed_range: &ListedRange, place: EntryPlace) -> bool {
        let Some(payload_bytes) = place.payload_bytes() else { return false };
        let entry_bytes = ENTRY_HEADER_BYTES as u64 + u64::from(payload_bytes);
        let is_below = place.position() < listed_range.list && listed_range.list - place.position() >= entry_bytes;
        is_below && place.position() >= listed_range.lowest && payload_bytes as usize <= self.body_bytes_max()
    }

    /// Returns where entries of a listed range are. Those in parts are in `large`. Returns `None` if the list is gone.
    pub(super) fn read_listed(
        &self,
        log: u64,
        listed_range: &ListedRange,
        large: &BTreeMap<u64, Box<[EntryPart]>>,
        indexes: Range<u64>,
    ) -> Result<Option<Listed>> {
        let Some((places, is_sound)) = self.read_list(log, listed_range)? else { return Ok(None) };
        let mut entries = Vec::new();
        for index in indexes.start..indexes.end.min(listed_range.end()) {
            let place = places[listed_range.number_of(index)];
            match large.get(&index) {
                Some(parts) => entries.push(FoundEntry::in_parts(parts.clone())),
                None if self.is_possible(listed_range, place) => entries.push(FoundEntry::inline(place)),
                None if entries.is_empty() => return Err(self.damaged(log, index, listed_range.list)),
                // The caller gets the ones before, and the error when it asks for this one.
                None => break,
            }
        }
        Ok(Some(Listed { entries, damaged_list: (!is_sound).then_some(listed_range.list) }))
    }

    /// Moves the entries of a listed range that begin below `end` to the tail, and lists the places of all its entries
    /// again. Like [`move_parts`](Self::move_parts), it does not verify them.
    pub(super) fn move_listed_range(
        &self,
        log: u64,
        cell: &LogCell,
        listed_range: &ListedRange,
        end: StreamPosition,
    ) -> Result<()> {
        let Some((mut places, _)) = self.read_list(log, listed_range)? else {
            // All entries were cut off or purged.
            return Ok(());
        };
        // No state refers to the copies before the list does.
        let pin = Pin::new(self);
        let mut copies = encode_part(&[]);
        let mut copied: Vec<(usize, usize, u32)> = Vec::new();
        for index in listed_range.begin()..listed_range.end() {
            let number = listed_range.number_of(index);
            let place = places[number];
            if place.payload_bytes().is_none() || place.position() >= end && self.is_possible(listed_range, place) {
                continue;
            }
            let payload_bytes = place.payload_bytes().filter(|_| self.is_possible(listed_range, place)).unwrap_or(0);
            if copies.len() > PART_CONTENT_OFFSET
                && copies.len() + ENTRY_HEADER_BYTES + payload_bytes as usize > self.move_bytes_max()
            {
                self.append_copies(std::mem::replace(&mut copies, encode_part(&[])), &mut copied, &mut places)?;
            }
            let offset = copies.len();
            if self.is_possible(listed_range, place) {
                let mut bytes = vec![0; ENTRY_HEADER_BYTES + payload_bytes as usize];
                if !self.stream.read_at(place.position(), &mut bytes)? {
                    // It was cut off or purged.
                    continue;
                }
                encode_copied_entry(&mut copies, &bytes[ENTRY_HEADER_BYTES..], get_u64(&bytes, 0));
            } else {
                // Nobody knows where it is. Its copy must not verify either.
                encode_copied_entry(&mut copies, &[], !checksum(&[], entry_seed(self.identity, log, index)));
            }
            copied.push((number, offset, payload_bytes));
        }
        if !copied.is_empty() {
            self.append_copies(copies, &mut copied, &mut places)?;
        }
        let reservation = self.stream.reserve_with(LIST_BODY_BYTES_MAX, Claim::Last)?;
        self.commit_list(reservation, log, cell, |state| {
            let rest = state.listed_range_of(listed_range)?;
            let numbers = listed_range.number_of(rest.begin())..=listed_range.number_of(rest.end() - 1);
            Some((rest.begin(), places[numbers].iter().flat_map(|place| place.encode()).collect()))
        })?;
        drop(pin);
        Ok(())
    }

    /// Appends copies of entries: the number of each in its list, its offset in the record, and its length. Notes
    /// where they are.
    fn append_copies(
        &self,
        body: Vec<u8>,
        copied: &mut Vec<(usize, usize, u32)>,
        places: &mut [EntryPlace],
    ) -> Result<()> {
        let body = Body::new(body);
        let reservation = self.stream.reserve_with(body.bytes().len(), Claim::Last)?;
        let position = reservation.append(&body)?.body_position(body.bytes().len());
        for (number, offset, payload_bytes) in copied.drain(..) {
            places[number] = EntryPlace::new(position + offset as u64, Some(payload_bytes));
        }
        self.maintenance.note(body.bytes().len() as u64);
        Ok(())
    }
}
