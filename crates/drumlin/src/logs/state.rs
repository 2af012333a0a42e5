//! The state of one log: its bounds, the places of its entries, and its values.
//!
//! A record changes a state by one function, [`LogState::apply`], when it is appended and when it is replayed. Whether
//! a change is allowed is decided before, on a copy of the bounds ([`Bounds::check`]): replay trusts what was appended.

use std::collections::{BTreeMap, VecDeque};

use super::listed::ListedRange;
use super::live::LiveBytes;
use super::place::{EntryPlace, live_bytes_of};
use crate::error::{Error, Result};
use crate::format::log::record_bytes;
use crate::format::logs::{
    CHANGE_BYTES_MAX, ENTRY_HEADER_BYTES, EntryFrame, EntryPart, LIST_OFFSET, LogChange, PART_BYTES,
    PART_CONTENT_OFFSET, PIECE_BYTES,
};
use crate::format::{StreamPosition, Timestamp};

/// The place of an entry, with its parts if it has any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FoundEntry {
    pub(super) place: EntryPlace,
    pub(super) parts: Box<[EntryPart]>,
}

impl FoundEntry {
    pub(super) fn inline(place: EntryPlace) -> FoundEntry {
        FoundEntry { place, parts: Box::default() }
    }

    /// Makes an entry of its parts. Its place says nothing else.
    pub(super) fn in_parts(parts: Box<[EntryPart]>) -> FoundEntry {
        FoundEntry { place: EntryPlace::new(parts[0].position, None), parts }
    }

    /// Returns the position that identifies this copy of the entry.
    pub(super) fn position(&self) -> StreamPosition {
        self.parts.first().map_or(self.place.position(), |part| part.position)
    }

    /// Returns the bytes of the entry.
    pub(super) fn bytes(&self) -> u64 {
        match self.place.payload_bytes() {
            Some(bytes) => u64::from(bytes),
            None => self.parts.iter().map(|part| u64::from(part.bytes)).sum(),
        }
    }

    /// Returns the position after the last byte that has to be read.
    pub(super) fn end(&self) -> StreamPosition {
        let inline = |bytes: u32| self.place.position() + ENTRY_HEADER_BYTES as u64 + u64::from(bytes);
        let parts = self.parts.iter().map(|part| part.position + u64::from(part.bytes)).max();
        self.place.payload_bytes().map(inline).or(parts).expect("an entry is inline or in parts")
    }
}

/// The indexes that a log has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Bounds {
    /// Set from the first record of the log until it is removed.
    pub(super) exists: bool,
    /// The index of the first entry, if there are entries.
    pub(super) first: u64,
    /// The index after the last entry, or `first` if there are none.
    pub(super) next: u64,
    /// The index after the purged ones: no entry below it will come back.
    pub(super) purged: u64,
}

impl Bounds {
    pub(super) fn is_empty(&self) -> bool {
        debug_assert!(self.first <= self.next, "a log ends before it begins: {self:?}");
        self.first == self.next
    }

    pub(super) fn last(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.next - 1)
    }

    fn purged_error(&self, log: u64, index: u64) -> Error {
        let first = if self.is_empty() { self.purged } else { self.first };
        Error::LogPurged { log, index, first }
    }

    /// Returns an error unless the log has this entry.
    pub(super) fn check_index(&self, log: u64, index: u64) -> Result<()> {
        if !self.exists {
            return Err(Error::NoSuchLog { log });
        }
        if (self.first..self.next).contains(&index) {
            return Ok(());
        }
        if index < self.purged || !self.is_empty() && index < self.first {
            return Err(self.purged_error(log, index));
        }
        Err(Error::LogEntryMissing { log, index, last: self.last() })
    }

    /// Applies a change, if it is allowed.
    pub(super) fn check(&mut self, change: &LogChange<'_>) -> Result<()> {
        match change {
            LogChange::Append { log, first, entries } => {
                if entries.is_empty() {
                    return Ok(());
                }
                let is_next = if self.is_empty() { *first >= self.purged } else { *first == self.next };
                if !is_next {
                    let expected = if self.is_empty() { self.purged } else { self.next };
                    return Err(Error::LogIndex { log: *log, given: *first, expected });
                }
            }
            LogChange::Truncate { log, from } if *from < self.purged => {
                return Err(self.purged_error(*log, from.saturating_sub(1)));
            }
            LogChange::Truncate { log, .. }
            | LogChange::Purge { log, .. }
            | LogChange::Unset { log, .. }
            | LogChange::Remove { log }
                if !self.exists =>
            {
                return Err(Error::NoSuchLog { log: *log });
            }
            _ => {}
        }
        self.apply(change);
        Ok(())
    }

    fn apply(&mut self, change: &LogChange<'_>) {
        match change {
            LogChange::Append { first, entries, .. } => {
                if self.is_empty() || *first > self.next || *first < self.first {
                    (self.first, self.next) = (*first, *first);
                }
                self.next = first + entries.len() as u64;
                self.exists = true;
            }
            LogChange::Truncate { from, .. } => {
                self.next = self.next.min(*from);
                self.first = self.first.min(self.next);
            }
            LogChange::Purge { to, .. } => {
                self.purged = self.purged.max(to.saturating_add(1));
                self.first = self.first.max(self.purged);
                self.next = self.next.max(self.first);
            }
            LogChange::Set { .. } => self.exists = true,
            LogChange::Remove { .. } => *self = Bounds::default(),
            LogChange::Move { .. } | LogChange::Places { .. } | LogChange::Unset { .. } | LogChange::Part(_) => {}
        }
    }
}

/// The knowledge of memory about an entry: its place, or the listed range that has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    Entry(FoundEntry),
    /// The place of the entry is in a list.
    Listed(ListedRange),
}

/// The state of a log.
#[derive(Clone, Debug, Default)]
pub(super) struct LogState {
    pub(super) bounds: Bounds,
    /// The older entries, in ascending order. Together with the newer ones, they are all.
    pub(super) listed_ranges: VecDeque<ListedRange>,
    /// The places of the newer entries.
    pub(super) places: VecDeque<EntryPlace>,
    /// The parts of large entries, by index.
    pub(super) large: BTreeMap<u64, Box<[EntryPart]>>,
    pub(super) values: BTreeMap<Box<str>, Box<[u8]>>,
    /// The memory of the parts and of the values, in bytes.
    map_bytes: u64,
    /// Bytes of the entries, with what they take in a record.
    pub(super) live_bytes: u64,
    /// No entry begins below this position.
    pub(super) floor: StreamPosition,
    /// The index after the entries that are known to be durable.
    durable_next: u64,
    /// Appends that may not be durable yet: the timestamp of each and the index after its entries.
    pending: VecDeque<(Timestamp, u64)>,
}

/// Returns the memory of the parts of an entry, in bytes.
fn parts_memory(parts: &[EntryPart]) -> u64 {
    64 + size_of_val(parts) as u64
}

/// Returns the memory of a named value, in bytes.
fn value_memory(name: &str, value: &[u8]) -> u64 {
    (96 + name.len() + value.len()) as u64
}

/// The steps in which a list of places gets longer.
const GROWN_COUNT: usize = 8;

/// The smallest capacity of a list of places that is given back when the list gets shorter.
const SHRUNK_COUNT_MIN: usize = 64;

impl LogState {
    /// Returns the index of the first entry whose place is in memory, or that of the next entry.
    pub(super) fn first_placed(&self) -> u64 {
        self.bounds.next - self.places.len() as u64
    }

    /// Returns the place of an entry, if it is in memory.
    fn place_mut(&mut self, index: u64) -> Option<&mut EntryPlace> {
        let at = index.checked_sub(self.first_placed())?;
        self.places.get_mut(at as usize)
    }

    /// Returns the entry at an index that the log has.
    pub(super) fn entry(&self, index: u64) -> Found {
        if let Some(parts) = self.large.get(&index) {
            return Found::Entry(FoundEntry::in_parts(parts.clone()));
        }
        match index.checked_sub(self.first_placed()) {
            Some(at) => Found::Entry(FoundEntry::inline(self.places[at as usize])),
            None => Found::Listed(
                self.listed_ranges[self.listed_ranges.partition_point(|listed_range| listed_range.end() <= index)],
            ),
        }
    }

    /// Returns the memory that the state takes, in bytes. O(1).
    pub(super) fn memory_bytes(&self) -> u64 {
        if cfg!(test) {
            let parts = self.large.values().map(|parts| parts_memory(parts));
            let values = self.values.iter().map(|(name, value)| value_memory(name, value));
            assert_eq!(self.map_bytes, parts.chain(values).sum::<u64>(), "the memory of maps is counted wrong");
        }
        let pending = self.pending.capacity() * size_of::<(Timestamp, u64)>();
        let listed_ranges = self.listed_ranges.capacity() * size_of::<ListedRange>();
        (self.places.capacity() * size_of::<EntryPlace>() + listed_ranges + pending) as u64 + self.map_bytes
    }

    pub(super) fn put_value(&mut self, name: &str, value: &[u8]) {
        self.remove_value(name);
        self.map_bytes += value_memory(name, value);
        self.values.insert(name.into(), value.into());
    }

    fn remove_value(&mut self, name: &str) {
        if let Some(value) = self.values.remove(name) {
            self.map_bytes -= value_memory(name, &value);
        }
    }

    /// Adds the parts of an entry that has none.
    pub(super) fn put_parts(&mut self, index: u64, parts: Box<[EntryPart]>) {
        self.map_bytes += parts_memory(&parts);
        let before = self.large.insert(index, parts);
        debug_assert!(before.is_none(), "entry {index} has parts already");
    }

    /// Returns the capacity that the list of places has after it got longer by `count`.
    fn grown_capacity(&self, count: usize) -> usize {
        let (needed, capacity) = (self.places.len() + count, self.places.capacity());
        // By a quarter each time, because the lists of thousands of logs are most of the memory.
        if needed <= capacity { capacity } else { needed.max(capacity + capacity / 4).next_multiple_of(GROWN_COUNT) }
    }

    /// Returns the memory that the list of places needs in addition, to get longer by `count`.
    pub(super) fn growth_bytes(&self, count: usize) -> u64 {
        ((self.grown_capacity(count) - self.places.capacity()) * size_of::<EntryPlace>()) as u64
    }

    /// Returns the index after the durable entries. All records up to `horizon` are durable.
    pub(super) fn durable_next(&mut self, horizon: Timestamp) -> u64 {
        while let Some(&(_, next)) = self.pending.front().filter(|(timestamp, _)| *timestamp <= horizon) {
            self.durable_next = next;
            self.pending.pop_front();
        }
        self.durable_next
    }

    /// Adds all entries to the live bytes, after the state was read.
    pub(super) fn count_live(&mut self, live: &mut LiveBytes) {
        for place in &self.places {
            if let Some(bytes) = place.payload_bytes() {
                live.add(place.position(), live_bytes_of(bytes));
                self.live_bytes += live_bytes_of(bytes);
            }
        }
        for part in self.large.values().flatten() {
            live.add(part.position, live_bytes_of(part.bytes));
            self.live_bytes += live_bytes_of(part.bytes);
        }
        for listed_range in &self.listed_ranges {
            listed_range.shares().for_each(|(position, bytes)| live.add(position, bytes));
            self.live_bytes += listed_range.live_bytes();
        }
    }

    /// Returns the lowest position of an entry.
    pub(super) fn lowest(&self) -> Option<StreamPosition> {
        let inline = self.places.iter().filter(|place| place.payload_bytes().is_some()).map(|place| place.position());
        let parts = self.large.values().flatten().map(|part| part.position);
        inline.chain(parts).chain(self.listed_ranges.iter().map(|listed_range| listed_range.lowest)).min()
    }

    /// Returns entries from `from` on that begin below `end`, up to about `bytes_max` bytes.
    pub(super) fn entries_below(&self, end: StreamPosition, from: u64, bytes_max: u64) -> Vec<(u64, FoundEntry)> {
        let mut found = Vec::new();
        let mut bytes = 0;
        let first = self.first_placed();
        let inline = (from.max(first)..self.bounds.next).filter(|index| {
            let place = self.places[(index - first) as usize];
            place.payload_bytes().is_some() && place.position() < end
        });
        let is_below = |parts: &[EntryPart]| parts.iter().any(|part| part.position < end);
        let large = self.large.range(from..).filter(|(_, parts)| is_below(parts)).map(|(&index, _)| index);
        let (mut inline, mut large) = (inline.peekable(), large.peekable());
        // Both in ascending order, so that the caller can continue after the last one.
        while let Some(index) = match (inline.peek(), large.peek()) {
            (Some(first), Some(second)) if first < second => inline.next(),
            (_, Some(_)) => large.next(),
            (_, None) => inline.next(),
        } {
            let Found::Entry(entry) = self.entry(index) else {
                unreachable!("the place of entry {index} is in memory")
            };
            bytes += entry.bytes() + (ENTRY_HEADER_BYTES + PIECE_BYTES) as u64;
            found.push((index, entry));
            if bytes > bytes_max {
                break;
            }
        }
        found
    }

    /// Adds up the bytes that moving the entries of each window would append, if the windows with these ends are
    /// emptied one after the other. For listed ranges, this is an estimate. O(entries).
    pub(super) fn add_moved_bytes(&self, ends: &[StreamPosition], moved_bytes: &mut [u64]) {
        let window_of = |position| Some(ends.partition_point(|end| *end <= position)).filter(|at| *at < ends.len());
        // The index after the last entry of each window, and the position after it.
        let mut runs = vec![(0, StreamPosition::START); ends.len()];
        let mut add = |window: usize, index: u64, old: StreamPosition, bytes: usize, old_end: StreamPosition| {
            let (next, abutting) = std::mem::replace(&mut runs[window], (index + 1, old_end));
            let is_same_run = next == index && next > 0;
            let run_bytes = if is_same_run { 0 } else { CHANGE_BYTES_MAX };
            let piece_bytes = if is_same_run && abutting == old { 0 } else { PIECE_BYTES };
            moved_bytes[window] += (run_bytes + piece_bytes + ENTRY_HEADER_BYTES + bytes) as u64;
        };
        for (index, place) in (self.first_placed()..).zip(&self.places) {
            let Some(payload_bytes) = place.payload_bytes() else { continue };
            let Some(window) = window_of(place.position()) else { continue };
            let end = FoundEntry::inline(*place).end();
            add(window, index, place.position(), payload_bytes as usize, end);
        }
        for (index, parts) in &self.large {
            let mut windows: Vec<usize> = parts.iter().filter_map(|part| window_of(part.position)).collect();
            windows.dedup();
            for window in windows {
                add(window, *index, parts[0].position, parts.len() * PART_BYTES, StreamPosition::START);
            }
        }
        for part in self.large.values().flatten() {
            let Some(window) = window_of(part.position) else { continue };
            moved_bytes[window] += record_bytes(PART_CONTENT_OFFSET + part.bytes as usize) as u64;
        }
        for listed_range in &self.listed_ranges {
            for (position, bytes) in listed_range.shares() {
                let Some(window) = window_of(position) else { continue };
                moved_bytes[window] += bytes + record_bytes(LIST_OFFSET + listed_range.list_bytes()) as u64;
            }
        }
    }

    /// Returns the first listed range after the index `from` that has entries below `end`, as far as memory knows.
    pub(super) fn listed_range_below(&self, end: StreamPosition, from: u64) -> Option<ListedRange> {
        let at = self.listed_ranges.partition_point(|listed_range| listed_range.end() <= from);
        self.listed_ranges.range(at..).find(|listed_range| listed_range.lowest < end).copied()
    }

    /// Returns the encoded places of up to `count` of the oldest entries whose places are in memory, with the index of
    /// the first.
    pub(super) fn oldest_places(&self, count: usize) -> (u64, Vec<u8>) {
        let places = self.places.iter().take(count).flat_map(|place| place.encode());
        (self.first_placed(), places.collect())
    }

    /// Returns the listed range whose list is at this position, if the log still has it.
    pub(super) fn listed_range_of(&self, listed_range: &ListedRange) -> Option<ListedRange> {
        let at = self.listed_ranges.partition_point(|other| other.end() <= listed_range.first);
        self.listed_ranges.get(at).filter(|found| found.list == listed_range.list).copied()
    }

    /// Takes the whole log as durable, because it was recovered.
    pub(super) fn set_durable(&mut self) {
        self.pending = VecDeque::new();
        self.durable_next = self.bounds.next;
    }

    /// Applies a change of the record of this timestamp, whose body begins at `body`. `horizon` is the durable horizon.
    pub(super) fn apply(
        &mut self,
        change: &LogChange<'_>,
        timestamp: Timestamp,
        body: StreamPosition,
        horizon: Timestamp,
        live: &mut LiveBytes,
    ) {
        self.durable_next(horizon);
        match change {
            LogChange::Append { first, entries, .. } => {
                if *first < self.bounds.next {
                    self.cut(*first, live);
                }
                if *first > self.bounds.next {
                    self.forget_below(u64::MAX, live);
                }
                let capacity = self.grown_capacity(entries.len());
                self.places.reserve_exact(capacity - self.places.len());
                for (index, entry) in (*first..).zip(entries) {
                    let place = self.add(index, entry, body, live);
                    self.places.push_back(place);
                }
            }
            LogChange::Move { first, entries, .. } => {
                for (index, (old, entry)) in (*first..).zip(entries) {
                    self.relocate(index, *old, entry, body, live);
                }
            }
            LogChange::Places { first, offset, places, .. } => {
                self.take_over(ListedRange::new(*first, body + *offset as u64, places), live);
            }
            LogChange::Truncate { from, .. } => self.cut(*from, live),
            LogChange::Purge { to, .. } => self.forget_below(to.saturating_add(1), live),
            LogChange::Set { name, value, .. } => {
                self.put_value(name, value);
            }
            LogChange::Unset { name, .. } => {
                self.remove_value(name);
            }
            LogChange::Remove { .. } => {
                self.forget_below(u64::MAX, live);
                *self = LogState::default();
            }
            LogChange::Part(_) => {}
        }
        self.bounds.apply(change);
        match change {
            LogChange::Append { .. } => self.pending.push_back((timestamp, self.bounds.next)),
            LogChange::Truncate { .. } => {
                let next = self.bounds.next;
                self.durable_next = self.durable_next.min(next);
                self.pending.iter_mut().for_each(|(_, pending)| *pending = next.min(*pending));
            }
            _ => {}
        }
        let oldest = self.listed_ranges.front().map_or(self.first_placed(), ListedRange::begin);
        assert_eq!(oldest, self.bounds.first, "a log's places don't fit its bounds: {:?}", self.bounds);
        let listed = self.listed_ranges.back().map_or(self.bounds.first, ListedRange::end);
        assert_eq!(listed, self.first_placed(), "a log has entries without places: {:?}", self.bounds);
    }

    /// Adds what an entry contributes to the live bytes. Returns its place.
    fn add(&mut self, index: u64, entry: &EntryFrame<'_>, body: StreamPosition, live: &mut LiveBytes) -> EntryPlace {
        let position = body + entry.offset as u64;
        if entry.is_in_parts {
            let parts = entry.parts();
            self.live_bytes += parts.iter().map(|part| live_bytes_of(part.bytes)).sum::<u64>();
            parts.iter().for_each(|part| live.add(part.position, live_bytes_of(part.bytes)));
            self.put_parts(index, parts);
            EntryPlace::new(position, None)
        } else {
            let bytes = live_bytes_of(entry.payload.len() as u32);
            self.live_bytes += bytes;
            live.add(position, bytes);
            EntryPlace::new(position, Some(entry.payload.len() as u32))
        }
    }

    /// Removes what an entry at this place contributes to the live bytes, unless it is in parts.
    fn forget_place(&mut self, place: EntryPlace, live: &mut LiveBytes) {
        if let Some(bytes) = place.payload_bytes() {
            live.remove(place.position(), live_bytes_of(bytes));
            self.live_bytes -= live_bytes_of(bytes);
        }
    }

    /// Forgets parts that were taken out of the map.
    fn forget_parts(&mut self, parts: &[EntryPart], live: &mut LiveBytes) {
        self.map_bytes -= parts_memory(parts);
        for part in parts {
            live.remove(part.position, live_bytes_of(part.bytes));
            self.live_bytes -= live_bytes_of(part.bytes);
        }
    }

    fn forget_listed_range(&mut self, listed_range: &ListedRange, live: &mut LiveBytes) {
        listed_range.shares().for_each(|(position, bytes)| live.remove(position, bytes));
        self.live_bytes -= listed_range.live_bytes();
    }

    fn add_listed_range(&mut self, at: usize, listed_range: ListedRange, live: &mut LiveBytes) {
        listed_range.shares().for_each(|(position, bytes)| live.add(position, bytes));
        self.live_bytes += listed_range.live_bytes();
        self.listed_ranges.insert(at, listed_range);
    }

    /// Cuts off the entries from `from` on.
    fn cut(&mut self, from: u64, live: &mut LiveBytes) {
        let mut next = self.bounds.next;
        while next > from
            && let Some(place) = self.places.pop_back()
        {
            next -= 1;
            self.forget_place(place, live);
        }
        while let Some(mut last) = self.listed_ranges.pop_back_if(|last| last.end() > from) {
            self.forget_listed_range(&last, live);
            if last.begin() < from {
                last.shorten(last.begin(), from);
                self.add_listed_range(self.listed_ranges.len(), last, live);
            }
        }
        self.large.split_off(&from).values().for_each(|parts| self.forget_parts(parts, live));
        self.shrink();
    }

    /// Forgets the entries below `first`.
    fn forget_below(&mut self, first: u64, live: &mut LiveBytes) {
        let mut index = self.first_placed();
        while index < first
            && let Some(place) = self.places.pop_front()
        {
            self.forget_place(place, live);
            index += 1;
        }
        while let Some(mut oldest) = self.listed_ranges.pop_front_if(|oldest| oldest.begin() < first) {
            self.forget_listed_range(&oldest, live);
            if first < oldest.end() {
                oldest.shorten(first, oldest.end());
                self.add_listed_range(0, oldest, live);
            }
        }
        let later = self.large.split_off(&first);
        std::mem::replace(&mut self.large, later).values().for_each(|parts| self.forget_parts(parts, live));
        self.shrink();
    }

    fn shrink(&mut self) {
        let count = self.places.len().max(SHRUNK_COUNT_MIN);
        if self.places.capacity() > 4 * count {
            self.places.shrink_to(2 * count);
        }
        if self.listed_ranges.capacity() > 4 * self.listed_ranges.len() {
            self.listed_ranges.shrink_to(2 * self.listed_ranges.len());
        }
    }

    /// Takes over the new place of a moved entry, if the log still has the copy from which it was moved. An entry whose
    /// place is in a list is moved with its listed range.
    fn relocate(
        &mut self,
        index: u64,
        old: StreamPosition,
        entry: &EntryFrame<'_>,
        body: StreamPosition,
        live: &mut LiveBytes,
    ) {
        if entry.is_in_parts {
            if self.large.get(&index).is_none_or(|parts| parts[0].position != old) {
                return;
            }
            let parts = self.large.remove(&index).expect("found above");
            self.forget_parts(&parts, live);
            let place = self.add(index, entry, body, live);
            if let Some(before) = self.place_mut(index) {
                *before = place;
            }
            return;
        }
        let Some(&mut before) = self.place_mut(index) else { return };
        if before.payload_bytes().is_some() && before.position() == old {
            self.forget_place(before, live);
            let place = self.add(index, entry, body, live);
            *self.place_mut(index).expect("it was there") = place;
        }
    }

    /// Replaces what memory knows about the entries of a listed range by the listed range.
    fn take_over(&mut self, listed_range: ListedRange, live: &mut LiveBytes) {
        assert!(
            self.bounds.first <= listed_range.begin() && listed_range.end() <= self.bounds.next,
            "{listed_range:?} is not in a log"
        );
        while self.first_placed() < listed_range.end()
            && let Some(place) = self.places.pop_front()
        {
            self.forget_place(place, live);
        }
        let at = self.listed_ranges.partition_point(|other| other.end() <= listed_range.begin());
        while let Some(other) = self.listed_ranges.get(at).filter(|other| other.begin() < listed_range.end()).copied() {
            self.forget_listed_range(&other, live);
            self.listed_ranges.remove(at);
        }
        if self.listed_ranges.len() == self.listed_ranges.capacity() {
            self.listed_ranges.reserve_exact(1 + self.listed_ranges.len() / 16);
        }
        self.add_listed_range(at, listed_range, live);
        // The list is shorter now, and only a moment ago it was as long as it may get.
        if self.places.capacity() > 2 * self.places.len() {
            self.places.shrink_to(self.places.len());
        }
    }
}
