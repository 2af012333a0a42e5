//! Moving live entries to the tail, so that the oldest windows of the stream can be given up.
//!
//! On a full disk, there is no more space for this than the margin that other records leave. So a window's entries must
//! not take more space than the window: entries of many logs share a record, those that abutted need no position of
//! their own, and only those parts of a large entry are copied that are in the way.

use std::sync::Arc;

use super::shared::{LogCell, Pin, Shared};
use super::state::FoundEntry;
use crate::error::Result;
use crate::format::logs::{
    CHANGE_BYTES_MAX, ENTRY_HEADER_BYTES, EntryPart, MovedPiece, encode_copied_entry, encode_entry, encode_move,
    encode_part, entry_seed,
};
use crate::format::{StreamPosition, get_u64};
use crate::seglog::{Body, Claim};

/// The entries that one record moves, in bytes.
const MOVE_BYTES_MAX: usize = 256 << 10;

/// Moves of entries that are not appended yet.
struct Moves<'s> {
    shared: &'s Shared,
    body: Vec<u8>,
    /// Protects the copies of parts until the record refers to them.
    _pin: Pin<'s>,
}

/// Moves of entries of one log with adjacent indexes.
struct Run {
    first: u64,
    next: u64,
    pieces: Vec<MovedPiece>,
    /// The position after the last entry at its old place.
    old_end: StreamPosition,
    entries: Vec<u8>,
}

impl Run {
    fn new(first: u64) -> Run {
        Run { first, next: first, pieces: Vec::new(), old_end: StreamPosition::START, entries: Vec::new() }
    }

    /// Adds the next entry, which the caller encodes. Its bytes at the old place, if they are there, are `old_bytes`.
    fn add(&mut self, old: StreamPosition, old_bytes: Option<u64>) {
        match self.pieces.last_mut().filter(|_| old == self.old_end) {
            Some(piece) => piece.count += 1,
            None => self.pieces.push(MovedPiece { old, count: 1 }),
        }
        // The position after an entry in parts is not where the next one is looked for.
        self.old_end = old_bytes.map_or(StreamPosition::START, |bytes| old + bytes);
        self.next += 1;
    }

    fn encode(&self, log: u64, body: &mut Vec<u8>) {
        if !self.pieces.is_empty() {
            encode_move(body, log, self.first, &self.pieces);
            body.extend(&self.entries);
        }
    }
}

impl Moves<'_> {
    /// Appends the moves that were added, in one record.
    fn append(&mut self) -> Result<()> {
        let body = std::mem::take(&mut self.body);
        if body.is_empty() {
            return Ok(());
        }
        let reservation = self.shared.stream.reserve_with(body.len(), Claim::Last)?;
        self.shared.commit_in(reservation, &Body::new(body)).map(|_| ())
    }
}

impl Shared {
    /// Returns the longest body of a record that moves entries.
    pub(super) fn move_bytes_max(&self) -> usize {
        MOVE_BYTES_MAX.min(self.body_bytes_max())
    }

    /// Moves the live entries that begin below `end` to the tail. The windows below `end` must be full.
    pub(super) fn move_below(&self, end: StreamPosition) -> Result<()> {
        // The entries are read from the segment files, so all records below `end` must have been written there.
        self.wait_written(end)?;
        let mut moves = Moves { shared: self, body: Vec::new(), _pin: Pin::new(self) };
        let mut emptied: Vec<Arc<LogCell>> = Vec::new();
        for (log, cell) in self.cells() {
            if cell.state.lock().floor >= end {
                continue;
            }
            let mut from = 0;
            loop {
                let found = cell.state.lock().listed_range_below(end, from);
                let Some(listed_range) = found else { break };
                from = listed_range.end();
                self.move_listed_range(log, &cell, &listed_range, end)?;
            }
            from = 0;
            loop {
                // The last entry may go beyond the limit, so this leaves room for it.
                let bytes_max = (self.move_bytes_max() - CHANGE_BYTES_MAX) / 4;
                if moves.body.len() > 2 * bytes_max {
                    moves.append()?;
                }
                let found = cell.state.lock().entries_below(end, from, bytes_max as u64);
                let Some((last, _)) = found.last() else { break };
                from = last + 1;
                self.add_moves(log, &found, end, &mut moves)?;
            }
            emptied.push(cell);
        }
        moves.append()?;
        for cell in emptied {
            // The next windows have nothing of this log below this position. What is appended lies above the tail.
            let mut state = cell.state.lock();
            state.floor = state.lowest().unwrap_or(self.stream.tail().1);
        }
        Ok(())
    }

    /// Adds copies of entries. They are not verified, so that one that is damaged moves with the others, and its
    /// checksum with it.
    fn add_moves(
        &self,
        log: u64,
        found: &[(u64, FoundEntry)],
        end: StreamPosition,
        moves: &mut Moves<'_>,
    ) -> Result<()> {
        let mut run = Run::new(0);
        for (index, entry) in found {
            if *index != run.next {
                run.encode(log, &mut moves.body);
                run = Run::new(*index);
            }
            // An entry that is gone was purged.
            if let Some(payload_bytes) = entry.place.payload_bytes() {
                let mut bytes = vec![0; ENTRY_HEADER_BYTES + payload_bytes as usize];
                if self.stream.read_at(entry.place.position(), &mut bytes)? {
                    run.add(entry.position(), Some(bytes.len() as u64));
                    encode_copied_entry(&mut run.entries, &bytes[ENTRY_HEADER_BYTES..], get_u64(&bytes, 0));
                }
            } else if let Some(parts) = self.move_parts(&entry.parts, end)? {
                let mut payload = Vec::new();
                parts.iter().for_each(|part| part.encode(&mut payload));
                run.add(entry.position(), None);
                encode_entry(&mut run.entries, &payload, true, entry_seed(self.identity, log, *index));
            }
        }
        run.encode(log, &mut moves.body);
        Ok(())
    }

    /// Appends copies of those parts of an entry that are below `end`. Returns `None` if they are gone.
    fn move_parts(&self, parts: &[EntryPart], end: StreamPosition) -> Result<Option<Vec<EntryPart>>> {
        let mut moved = parts.to_vec();
        for part in moved.iter_mut().filter(|part| part.position < end) {
            let mut content = vec![0; part.bytes as usize];
            if !self.stream.read_at(part.position, &mut content)? {
                return Ok(None);
            }
            let body = encode_part(&content);
            let reservation = self.stream.reserve_with(body.len(), Claim::Last)?;
            *part = self.append_part(reservation, body, part.checksum)?;
        }
        Ok(Some(moved))
    }
}
