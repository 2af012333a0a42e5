//! The state of one log: its bounds, the places of its entries, and its values.
//!
//! A record changes a state by one function, [`LogState::apply`], when it is appended and when it is replayed. Whether
//! a change is allowed is decided before, on a copy of the bounds ([`Bounds::check`]): replay trusts what was appended.

use std::collections::{BTreeMap, VecDeque};

use super::live::LiveBytes;
use crate::error::{Error, Result};
use crate::format::logs::{ENTRY_HEADER_BYTES, EntryFrame, EntryPart, LogChange, MOVED_BYTES};
use crate::format::{StreamPosition, Timestamp};

/// The place of an entry in the stream. Twelve bytes, because a log has one for each entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EntryPlace {
    position: [u32; 2],
    /// The bytes of the entry, or [`IN_PARTS_BYTES`].
    payload_bytes: u32,
}

/// Stands for the length of an entry whose parts are listed in [`LogState::large`].
const IN_PARTS_BYTES: u32 = u32::MAX;

impl EntryPlace {
    /// The length of an encoded place. Fixed by the format.
    pub(super) const BYTES: usize = 12;

    pub(super) fn new(position: StreamPosition, payload_bytes: Option<u32>) -> EntryPlace {
        assert!(payload_bytes != Some(IN_PARTS_BYTES), "an entry of 4 GiB is in one record");
        let position = [position.0 as u32, (position.0 >> 32) as u32];
        EntryPlace { position, payload_bytes: payload_bytes.unwrap_or(IN_PARTS_BYTES) }
    }

    /// Returns the position of the entry's header.
    pub(super) fn position(self) -> StreamPosition {
        StreamPosition(u64::from(self.position[0]) | u64::from(self.position[1]) << 32)
    }

    /// Returns the bytes of the entry, or `None` if it is in parts.
    pub(super) fn payload_bytes(self) -> Option<u32> {
        (self.payload_bytes != IN_PARTS_BYTES).then_some(self.payload_bytes)
    }

    pub(super) fn encode(self) -> [u8; EntryPlace::BYTES] {
        let mut bytes = [0; EntryPlace::BYTES];
        bytes[..4].copy_from_slice(&self.position[0].to_le_bytes());
        bytes[4..8].copy_from_slice(&self.position[1].to_le_bytes());
        bytes[8..].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> EntryPlace {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        EntryPlace { position: [number(0), number(4)], payload_bytes: number(8) }
    }
}

/// The place of an entry, with its parts if it has any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FoundEntry {
    pub(super) place: EntryPlace,
    pub(super) parts: Box<[EntryPart]>,
}

impl FoundEntry {
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
            LogChange::Move { .. } | LogChange::Unset { .. } | LogChange::Part(_) => {}
        }
    }
}

/// The state of a log.
#[derive(Debug, Default)]
pub(super) struct LogState {
    pub(super) bounds: Bounds,
    /// The places of the entries from `bounds.first` on.
    pub(super) places: VecDeque<EntryPlace>,
    /// The parts of large entries, by index.
    pub(super) large: BTreeMap<u64, Box<[EntryPart]>>,
    pub(super) values: BTreeMap<Box<str>, Box<[u8]>>,
    /// Bytes of the entries, with what they take in a record.
    pub(super) live_bytes: u64,
    /// The index after the entries that are known to be durable.
    durable_next: u64,
    /// Appends that may not be durable yet: the timestamp of each and the index after its entries.
    pending: VecDeque<(Timestamp, u64)>,
}

/// The bytes that an entry counts in the sum of live bytes: as many as a record of moved entries takes for it.
fn live_bytes_of(payload_bytes: u32) -> u64 {
    u64::from(payload_bytes) + (ENTRY_HEADER_BYTES + MOVED_BYTES) as u64
}

/// The smallest capacity of a list of places that is given back when the list gets shorter.
const SHRUNK_COUNT_MIN: usize = 64;

impl LogState {
    /// Returns the entry at an index that the log has.
    pub(super) fn entry(&self, index: u64) -> FoundEntry {
        let place = self.places[(index - self.bounds.first) as usize];
        let parts = if place.payload_bytes().is_some() { Box::default() } else { self.large[&index].clone() };
        FoundEntry { place, parts }
    }

    /// Returns the memory that the state takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let parts: usize = self.large.values().map(|parts| 64 + parts.len() * size_of::<EntryPart>()).sum();
        let values: usize = self.values.iter().map(|(name, value)| 96 + name.len() + value.len()).sum();
        let pending = self.pending.capacity() * size_of::<(Timestamp, u64)>();
        (self.places.capacity() * size_of::<EntryPlace>() + parts + values + pending) as u64
    }

    /// Returns the memory that the list of places needs in addition, to get longer by `count`.
    pub(super) fn growth_bytes(&self, count: usize) -> u64 {
        let (needed, capacity) = (self.places.len() + count, self.places.capacity());
        let grown = if needed <= capacity { capacity } else { needed.max(2 * capacity) };
        ((grown - capacity) * size_of::<EntryPlace>()) as u64
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
    }

    /// Returns the lowest position of an entry.
    pub(super) fn lowest(&self) -> Option<StreamPosition> {
        let inline = self.places.iter().filter(|place| place.payload_bytes().is_some()).map(|place| place.position());
        inline.chain(self.large.values().flatten().map(|part| part.position)).min()
    }

    /// Returns entries from `from` on that begin below `end`, up to about `bytes_max` bytes.
    pub(super) fn entries_below(&self, end: StreamPosition, from: u64, bytes_max: u64) -> Vec<(u64, FoundEntry)> {
        let mut found = Vec::new();
        let mut bytes = 0;
        for index in from.max(self.bounds.first)..self.bounds.next {
            let place = self.places[(index - self.bounds.first) as usize];
            let is_below = match place.payload_bytes() {
                Some(_) => place.position() < end,
                None => self.large[&index].iter().any(|part| part.position < end),
            };
            if is_below {
                let entry = self.entry(index);
                bytes += entry.bytes() + (ENTRY_HEADER_BYTES + MOVED_BYTES) as u64;
                found.push((index, entry));
                if bytes > bytes_max {
                    break;
                }
            }
        }
        found
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
                for (index, entry) in (*first..).zip(entries) {
                    self.add(index, entry, body, live);
                }
            }
            LogChange::Move { entries, .. } => {
                for (index, old, entry) in entries {
                    self.relocate(*index, *old, entry, body, live);
                }
            }
            LogChange::Truncate { from, .. } => self.cut(*from, live),
            LogChange::Purge { to, .. } => self.forget_below(to.saturating_add(1), live),
            LogChange::Set { name, value, .. } => {
                self.values.insert((*name).into(), (*value).into());
            }
            LogChange::Unset { name, .. } => {
                self.values.remove(*name);
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
        assert_eq!(
            self.places.len() as u64,
            self.bounds.next - self.bounds.first,
            "a log's places don't fit its bounds: {:?}",
            self.bounds
        );
    }

    fn add(&mut self, index: u64, entry: &EntryFrame<'_>, body: StreamPosition, live: &mut LiveBytes) {
        let position = body + entry.offset as u64;
        if entry.is_in_parts {
            let parts = entry.parts();
            self.live_bytes += parts.iter().map(|part| live_bytes_of(part.bytes)).sum::<u64>();
            parts.iter().for_each(|part| live.add(part.position, live_bytes_of(part.bytes)));
            self.large.insert(index, parts);
            self.places.push_back(EntryPlace::new(position, None));
        } else {
            let bytes = live_bytes_of(entry.payload.len() as u32);
            self.live_bytes += bytes;
            live.add(position, bytes);
            self.places.push_back(EntryPlace::new(position, Some(entry.payload.len() as u32)));
        }
    }

    /// Removes what an entry contributes to the live bytes.
    fn forget(&mut self, index: u64, place: EntryPlace, live: &mut LiveBytes) {
        let mut release = |position, bytes| {
            live.remove(position, bytes);
            self.live_bytes -= bytes;
        };
        match place.payload_bytes() {
            Some(bytes) => release(place.position(), live_bytes_of(bytes)),
            None => {
                let parts = self.large.remove(&index).expect("an entry in parts has them");
                parts.iter().for_each(|part| release(part.position, live_bytes_of(part.bytes)));
            }
        }
    }

    /// Cuts off the entries from `from` on.
    fn cut(&mut self, from: u64, live: &mut LiveBytes) {
        let mut next = self.bounds.next;
        while next > from
            && let Some(place) = self.places.pop_back()
        {
            next -= 1;
            self.forget(next, place, live);
        }
        self.shrink();
    }

    /// Forgets the entries below `first`.
    fn forget_below(&mut self, first: u64, live: &mut LiveBytes) {
        let mut index = self.bounds.first;
        while index < first
            && let Some(place) = self.places.pop_front()
        {
            self.forget(index, place, live);
            index += 1;
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        let count = self.places.len().max(SHRUNK_COUNT_MIN);
        if self.places.capacity() > 4 * count {
            self.places.shrink_to(2 * count);
        }
    }

    /// Takes over the new place of a moved entry, if the log still has the copy from which it was moved.
    fn relocate(
        &mut self,
        index: u64,
        old: StreamPosition,
        entry: &EntryFrame<'_>,
        body: StreamPosition,
        live: &mut LiveBytes,
    ) {
        if !(self.bounds.first..self.bounds.next).contains(&index) || self.entry(index).position() != old {
            return;
        }
        let at = (index - self.bounds.first) as usize;
        self.forget(index, self.places[at], live);
        // The new copy joins the end of the list, and takes the old one's place there.
        self.add(index, entry, body, live);
        self.places[at] = self.places.pop_back().expect("just pushed");
    }
}
