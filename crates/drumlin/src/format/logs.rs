//! The head of a folder of logs, the chunks of its index, and the changes in a record of its stream.
//!
//! The head is in two slots, which are written in turns, like the superblock: if both are valid, the one with the
//! higher sequence number counts.
//!
//! ```text
//! HEAD
//! OFFSET  SIZE  DESCRIPTION
//!      0     8  "DRUMLOGS"
//!      8     4  format version
//!     12     4  zero
//!     16     8  XXH3-64 of the bytes from 24 to the end of the block
//!     24     8  sequence number of this head
//!     32     8  identity of the folder, random
//!     40     8  number of the index; 0: there is none yet
//!     48     8  bytes of the index
//!     56     8  timestamp that the index covers
//!     64     8  position in the stream at or after which the records above this timestamp begin
//!     72     4  number of incarnations listed (up to 64)
//!     76     4  1: the folder was closed, and no record is above the index; 0: it may be
//!     80     8  position from which the stream's segments must exist
//!     88     8  position up to which they must exist
//!     96   768  incarnations, 12 bytes each: number (4), the first timestamp of its records (8)
//!    864  3232  zero
//! ```
//!
//! ```text
//! CHUNK OF AN INDEX
//! OFFSET  SIZE  DESCRIPTION
//!      0     8  XXH3-64 of the bytes from 8 to the end of the chunk; its seed depends on folder, index and chunk
//!      8     4  bytes of the index in this chunk
//!     12     4  zero
//!     16 32752  bytes of the index, then zero
//! ```

use super::{
    BLOCK_BYTES, DatabaseId, FORMAT_VERSION, Incarnation, StreamPosition, SuperblockNumber, Timestamp, checksum,
    get_u32, get_u64, put_u32, put_u64, superblock::INCARNATION_COUNT_MAX,
};

const MAGIC: [u8; 8] = *b"DRUMLOGS";

pub(super) const MAGIC_OFFSET: usize = 0;
pub(super) const VERSION_OFFSET: usize = 8;
pub(super) const ZERO_1_OFFSET: usize = 12;
pub(super) const CHECKSUM_OFFSET: usize = 16;
pub(super) const SEQUENCE_OFFSET: usize = 24;
pub(super) const FOLDER_OFFSET: usize = 32;
pub(super) const INDEX_OFFSET: usize = 40;
pub(super) const INDEX_BYTES_OFFSET: usize = 48;
pub(super) const COVERED_OFFSET: usize = 56;
pub(super) const POSITION_OFFSET: usize = 64;
pub(super) const INCARNATION_COUNT_OFFSET: usize = 72;
pub(super) const CLOSED_OFFSET: usize = 76;
pub(super) const FROM_OFFSET: usize = 80;
pub(super) const TO_OFFSET: usize = 88;
pub(super) const INCARNATIONS_OFFSET: usize = 96;
pub(super) const ZERO_2_OFFSET: usize = 864;
const INCARNATION_BYTES: usize = 12;

const _: () = {
    assert!(VERSION_OFFSET == MAGIC_OFFSET + 8);
    assert!(ZERO_1_OFFSET == VERSION_OFFSET + 4);
    assert!(CHECKSUM_OFFSET == ZERO_1_OFFSET + 4);
    assert!(SEQUENCE_OFFSET == CHECKSUM_OFFSET + 8);
    assert!(FOLDER_OFFSET == SEQUENCE_OFFSET + 8);
    assert!(INDEX_OFFSET == FOLDER_OFFSET + 8);
    assert!(INDEX_BYTES_OFFSET == INDEX_OFFSET + 8);
    assert!(COVERED_OFFSET == INDEX_BYTES_OFFSET + 8);
    assert!(POSITION_OFFSET == COVERED_OFFSET + 8);
    assert!(INCARNATION_COUNT_OFFSET == POSITION_OFFSET + 8);
    assert!(CLOSED_OFFSET == INCARNATION_COUNT_OFFSET + 4);
    assert!(FROM_OFFSET == CLOSED_OFFSET + 4);
    assert!(TO_OFFSET == FROM_OFFSET + 8);
    assert!(INCARNATIONS_OFFSET == TO_OFFSET + 8);
    assert!(ZERO_2_OFFSET == INCARNATIONS_OFFSET + INCARNATION_COUNT_MAX * INCARNATION_BYTES);
    assert!(ZERO_2_OFFSET < BLOCK_BYTES);
};

/// The head of a folder of logs. See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LogsHead {
    pub(crate) sequence: SuperblockNumber,
    pub(crate) folder: DatabaseId,
    /// The number of the index; 0 if there is none yet. It is in the file whose number is this one's lowest bit.
    pub(crate) index: u64,
    pub(crate) index_bytes: u64,
    /// The index covers all records up to this timestamp.
    pub(crate) covered: Timestamp,
    /// The records above `covered` begin at or after this position.
    pub(crate) position: StreamPosition,
    pub(crate) is_closed: bool,
    /// The segments that must exist cover the stream from the first of these positions to the second.
    pub(crate) range: (StreamPosition, StreamPosition),
    pub(crate) incarnations: Vec<(Incarnation, Timestamp)>,
}

/// The reason why a block is not a valid head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogsHeadError {
    Magic,
    Format(u32),
    Checksum,
    Fields,
}

impl std::fmt::Display for LogsHeadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LogsHeadError::Magic => "it is not the head of a folder of logs",
            LogsHeadError::Format(_) => "it has another format",
            LogsHeadError::Checksum => "its checksum does not match",
            LogsHeadError::Fields => "its fields contradict each other",
        })
    }
}

impl LogsHead {
    pub(crate) fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        block[MAGIC_OFFSET..MAGIC_OFFSET + 8].copy_from_slice(&MAGIC);
        put_u32(block, VERSION_OFFSET, FORMAT_VERSION);
        put_u64(block, SEQUENCE_OFFSET, self.sequence.0);
        put_u64(block, FOLDER_OFFSET, self.folder.0);
        put_u64(block, INDEX_OFFSET, self.index);
        put_u64(block, INDEX_BYTES_OFFSET, self.index_bytes);
        put_u64(block, COVERED_OFFSET, self.covered.0);
        put_u64(block, POSITION_OFFSET, self.position.0);
        put_u32(block, INCARNATION_COUNT_OFFSET, self.incarnations.len() as u32);
        put_u32(block, CLOSED_OFFSET, u32::from(self.is_closed));
        put_u64(block, FROM_OFFSET, self.range.0.0);
        put_u64(block, TO_OFFSET, self.range.1.0);
        for (index, (incarnation, first)) in self.incarnations.iter().enumerate() {
            let offset = INCARNATIONS_OFFSET + index * INCARNATION_BYTES;
            put_u32(block, offset, incarnation.0);
            put_u64(block, offset + 4, first.0);
        }
        let sum = checksum(&block[SEQUENCE_OFFSET..BLOCK_BYTES], 0);
        put_u64(block, CHECKSUM_OFFSET, sum);
    }

    pub(crate) fn decode(block: &[u8]) -> Result<LogsHead, LogsHeadError> {
        if block[MAGIC_OFFSET..MAGIC_OFFSET + 8] != MAGIC {
            return Err(LogsHeadError::Magic);
        }
        // A newer format may have its checksum elsewhere.
        let version = get_u32(block, VERSION_OFFSET);
        if version != FORMAT_VERSION {
            return Err(LogsHeadError::Format(version));
        }
        if checksum(&block[SEQUENCE_OFFSET..BLOCK_BYTES], 0) != get_u64(block, CHECKSUM_OFFSET) {
            return Err(LogsHeadError::Checksum);
        }
        let count = get_u32(block, INCARNATION_COUNT_OFFSET) as usize;
        let (from, to) = (get_u64(block, FROM_OFFSET), get_u64(block, TO_OFFSET));
        if count > INCARNATION_COUNT_MAX || from > to || get_u32(block, CLOSED_OFFSET) > 1 {
            return Err(LogsHeadError::Fields);
        }
        let incarnation = |index: usize| {
            let offset = INCARNATIONS_OFFSET + index * INCARNATION_BYTES;
            (Incarnation(get_u32(block, offset)), Timestamp(get_u64(block, offset + 4)))
        };
        Ok(LogsHead {
            sequence: SuperblockNumber(get_u64(block, SEQUENCE_OFFSET)),
            folder: DatabaseId(get_u64(block, FOLDER_OFFSET)),
            index: get_u64(block, INDEX_OFFSET),
            index_bytes: get_u64(block, INDEX_BYTES_OFFSET),
            covered: Timestamp(get_u64(block, COVERED_OFFSET)),
            position: StreamPosition(get_u64(block, POSITION_OFFSET)),
            is_closed: get_u32(block, CLOSED_OFFSET) == 1,
            range: (StreamPosition(from), StreamPosition(to)),
            incarnations: (0..count).map(incarnation).collect(),
        })
    }
}

/// Bytes of a chunk of an index.
pub(crate) const CHUNK_BYTES: usize = 32 << 10;
pub(super) const CHUNK_CHECKSUM_OFFSET: usize = 0;
pub(super) const CHUNK_USED_OFFSET: usize = 8;
pub(super) const CHUNK_ZERO_OFFSET: usize = 12;
/// The offset of a chunk's content.
pub(crate) const CHUNK_CONTENT_OFFSET: usize = 16;

/// Completes the header of a chunk whose content is `used` bytes. The rest of it must be zero.
pub(crate) fn seal_chunk(chunk: &mut [u8], used: usize, folder: DatabaseId, index: u64, number: u64) {
    put_u32(chunk, CHUNK_USED_OFFSET, used as u32);
    put_u32(chunk, CHUNK_ZERO_OFFSET, 0);
    let sum = checksum(&chunk[CHUNK_USED_OFFSET..CHUNK_BYTES], chunk_seed(folder, index, number));
    put_u64(chunk, CHUNK_CHECKSUM_OFFSET, sum);
}

/// Returns the content of a chunk, or `None` unless it verifies.
pub(crate) fn chunk_content(chunk: &[u8], folder: DatabaseId, index: u64, number: u64) -> Option<&[u8]> {
    let sum = checksum(&chunk[CHUNK_USED_OFFSET..CHUNK_BYTES], chunk_seed(folder, index, number));
    let used = get_u32(chunk, CHUNK_USED_OFFSET) as usize;
    let verifies = sum == get_u64(chunk, CHUNK_CHECKSUM_OFFSET) && used <= CHUNK_BYTES - CHUNK_CONTENT_OFFSET;
    verifies.then(|| &chunk[CHUNK_CONTENT_OFFSET..CHUNK_CONTENT_OFFSET + used])
}

fn chunk_seed(folder: DatabaseId, index: u64, number: u64) -> u64 {
    three_numbers(folder.0, index, number)
}

fn three_numbers(first: u64, second: u64, third: u64) -> u64 {
    let mut bytes = [0; 24];
    put_u64(&mut bytes, 0, first);
    put_u64(&mut bytes, 8, second);
    put_u64(&mut bytes, 16, third);
    checksum(&bytes, 0)
}

/// Returns the seed for the checksum of an entry, so that an entry is never taken for another one.
pub(crate) fn entry_seed(folder: DatabaseId, log: u64, index: u64) -> u64 {
    three_numbers(folder.0, log, index)
}

/// The longest name of a value.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// Bytes of the header of an entry in a record: checksum (8), bytes of the payload (4), kind (4).
pub(crate) const ENTRY_HEADER_BYTES: usize = 16;
/// Bytes of a reference to a part of an entry: position (8), bytes (4), checksum (8).
pub(crate) const PART_BYTES: usize = 20;
/// The maximum length of a change without its entries and pieces: its kind, log, first index and a number.
pub(crate) const CHANGE_BYTES_MAX: usize = 24;
/// Bytes of a piece of a move: old position (8), number of entries (4).
pub(crate) const PIECE_BYTES: usize = 12;
/// Bytes of the place of an entry: position of its header (8), bytes (4).
pub(crate) const PLACE_BYTES: usize = 12;
/// The places in one record at most.
pub(crate) const PLACE_COUNT_MAX: usize = 128;
/// The bytes of a list of places before its checksum: kind (1), log (8), first index (8), number of places (4).
pub(crate) const LIST_OFFSET: usize = 21;
/// Bytes of the checksum of a list of places.
pub(crate) const LIST_HEADER_BYTES: usize = 8;

const APPEND: u8 = 1;
const MOVE: u8 = 2;
const TRUNCATE: u8 = 3;
const PURGE: u8 = 4;
const SET: u8 = 5;
const REMOVE: u8 = 6;
const PART: u8 = 7;
const UNSET: u8 = 8;
const PLACES: u8 = 9;

/// The content of an entry in a record.
const INLINE: u32 = 0;
const IN_PARTS: u32 = 1;

/// A reference to a part of a large entry. The part is a record of its own, before the one that refers to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryPart {
    pub(crate) position: StreamPosition,
    pub(crate) bytes: u32,
    pub(crate) checksum: u64,
}

impl EntryPart {
    pub(crate) fn encode(&self, target: &mut Vec<u8>) {
        target.extend(self.position.0.to_le_bytes());
        target.extend(self.bytes.to_le_bytes());
        target.extend(self.checksum.to_le_bytes());
    }

    pub(crate) fn decode(bytes: &[u8]) -> EntryPart {
        EntryPart {
            position: StreamPosition(get_u64(bytes, 0)),
            bytes: get_u32(bytes, 8),
            checksum: get_u64(bytes, 12),
        }
    }
}

/// An entry in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryFrame<'b> {
    /// The offset of the entry's header in the body of the record.
    pub(crate) offset: usize,
    /// The entry, or the references to its parts.
    pub(crate) payload: &'b [u8],
    pub(crate) is_in_parts: bool,
}

impl EntryFrame<'_> {
    /// Returns the references to the entry's parts.
    pub(crate) fn parts(&self) -> Box<[EntryPart]> {
        debug_assert!(self.is_in_parts, "an entry is not in parts");
        self.payload.chunks_exact(PART_BYTES).map(EntryPart::decode).collect()
    }
}

/// Appends an entry to the body of a record.
pub(crate) fn encode_entry(body: &mut Vec<u8>, payload: &[u8], is_in_parts: bool, seed: u64) {
    body.extend(checksum(payload, seed).to_le_bytes());
    body.extend((payload.len() as u32).to_le_bytes());
    body.extend((if is_in_parts { IN_PARTS } else { INLINE }).to_le_bytes());
    body.extend(payload);
}

/// Appends a copy of an inline entry, with the checksum that was read with it.
pub(crate) fn encode_copied_entry(body: &mut Vec<u8>, payload: &[u8], checksum: u64) {
    body.extend(checksum.to_le_bytes());
    body.extend((payload.len() as u32).to_le_bytes());
    body.extend(INLINE.to_le_bytes());
    body.extend(payload);
}

/// Returns the payload of an entry that was read at its position, or `None` unless it verifies.
pub(crate) fn verified_entry(bytes: &[u8], seed: u64) -> Option<&[u8]> {
    let payload = &bytes[ENTRY_HEADER_BYTES..];
    let is_whole = get_u32(bytes, 8) as usize == payload.len() && get_u32(bytes, 12) == INLINE;
    (is_whole && checksum(payload, seed) == get_u64(bytes, 0)).then_some(payload)
}

/// A change of a log, as part of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LogChange<'b> {
    /// Entries whose indexes follow on from `first`.
    Append {
        log: u64,
        first: u64,
        entries: Vec<EntryFrame<'b>>,
    },
    /// Entries of the same content as before, whose indexes follow on from `first`, each with its old position.
    Move {
        log: u64,
        first: u64,
        entries: Vec<(StreamPosition, EntryFrame<'b>)>,
    },
    /// Cuts off the entries from this index on.
    Truncate {
        log: u64,
        from: u64,
    },
    /// Forgets the entries up to this index.
    Purge {
        log: u64,
        to: u64,
    },
    Set {
        log: u64,
        name: &'b str,
        value: &'b [u8],
    },
    Unset {
        log: u64,
        name: &'b str,
    },
    /// Ends the log.
    Remove {
        log: u64,
    },
    /// The places of entries whose indexes follow on from `first`. The entries stay there, but memory need not hold
    /// their places.
    Places {
        log: u64,
        first: u64,
        /// The offset of the list's checksum in the body of the record.
        offset: usize,
        /// The places, [`PLACE_BYTES`] each.
        places: &'b [u8],
    },
    /// A part of an entry, or entries that were moved before the list of their places. It changes no log.
    Part(&'b [u8]),
}

impl LogChange<'_> {
    /// Returns the log that is changed.
    pub(crate) fn log(&self) -> Option<u64> {
        match self {
            LogChange::Append { log, .. }
            | LogChange::Move { log, .. }
            | LogChange::Truncate { log, .. }
            | LogChange::Purge { log, .. }
            | LogChange::Set { log, .. }
            | LogChange::Unset { log, .. }
            | LogChange::Places { log, .. }
            | LogChange::Remove { log } => Some(*log),
            LogChange::Part(_) => None,
        }
    }
}

/// Begins an append of `count` entries, which the caller encodes afterwards.
pub(crate) fn encode_append(body: &mut Vec<u8>, log: u64, first: u64, count: u32) {
    encode_change(body, APPEND, log);
    body.extend(first.to_le_bytes());
    body.extend(count.to_le_bytes());
}

/// Some of the entries that a move copies, which abutted at their old places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MovedPiece {
    /// The old position of the first one.
    pub(crate) old: StreamPosition,
    pub(crate) count: u32,
}

/// Begins a move of these pieces. The caller encodes their entries afterwards.
pub(crate) fn encode_move(body: &mut Vec<u8>, log: u64, first: u64, pieces: &[MovedPiece]) {
    encode_change(body, MOVE, log);
    body.extend(first.to_le_bytes());
    body.extend((pieces.len() as u32).to_le_bytes());
    for MovedPiece { old, count } in pieces {
        body.extend(old.0.to_le_bytes());
        body.extend(count.to_le_bytes());
    }
}

pub(crate) fn encode_truncate(body: &mut Vec<u8>, log: u64, from: u64) {
    encode_change(body, TRUNCATE, log);
    body.extend(from.to_le_bytes());
}

pub(crate) fn encode_purge(body: &mut Vec<u8>, log: u64, to: u64) {
    encode_change(body, PURGE, log);
    body.extend(to.to_le_bytes());
}

pub(crate) fn encode_set(body: &mut Vec<u8>, log: u64, name: &str, value: Option<&[u8]>) {
    assert!(name.len() <= NAME_BYTES_MAX, "a name of {} bytes", name.len());
    encode_change(body, if value.is_some() { SET } else { UNSET }, log);
    body.push(name.len() as u8);
    body.extend(name.as_bytes());
    if let Some(value) = value {
        body.extend((value.len() as u32).to_le_bytes());
        body.extend(value);
    }
}

/// Makes the body of a record that lists places.
pub(crate) fn encode_places(folder: DatabaseId, log: u64, first: u64, places: &[u8]) -> Vec<u8> {
    let count = places.len() / PLACE_BYTES;
    assert!((1..=PLACE_COUNT_MAX).contains(&count), "a list of {count} places");
    let mut body = Vec::with_capacity(LIST_OFFSET + LIST_HEADER_BYTES + places.len());
    encode_change(&mut body, PLACES, log);
    body.extend(first.to_le_bytes());
    body.extend((count as u32).to_le_bytes());
    body.extend(checksum(places, list_seed(folder, log, first)).to_le_bytes());
    body.extend(places);
    body
}

/// Returns the places of a list that was read at its position, and whether they verify.
pub(crate) fn places_of_list(bytes: &[u8], folder: DatabaseId, log: u64, first: u64) -> (&[u8], bool) {
    let places = &bytes[LIST_HEADER_BYTES..];
    (places, checksum(places, list_seed(folder, log, first)) == get_u64(bytes, 0))
}

/// Differs from the seeds of the entry with this index, and of its parts.
fn list_seed(folder: DatabaseId, log: u64, first: u64) -> u64 {
    !entry_seed(folder, log, first)
}

pub(crate) fn encode_remove(body: &mut Vec<u8>, log: u64) {
    encode_change(body, REMOVE, log);
}

/// Makes the body of a record that is a part of an entry. Its content begins at [`PART_CONTENT_OFFSET`].
pub(crate) fn encode_part(content: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(PART_CONTENT_OFFSET + content.len());
    body.push(PART);
    body.extend(content);
    body
}

/// The offset of a part's content in the body of its record.
pub(crate) const PART_CONTENT_OFFSET: usize = 1;

fn encode_change(body: &mut Vec<u8>, kind: u8, log: u64) {
    body.push(kind);
    body.extend(log.to_le_bytes());
}

/// Decodes the changes in the body of a record, one after the other.
#[derive(Debug)]
pub(crate) struct LogChanges<'b> {
    body: &'b [u8],
    offset: usize,
}

/// The body of a record is none of a folder of logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoLogChange;

impl<'b> LogChanges<'b> {
    pub(crate) fn new(body: &'b [u8]) -> LogChanges<'b> {
        LogChanges { body, offset: 0 }
    }

    fn take(&mut self, bytes: usize) -> Result<&'b [u8], NoLogChange> {
        let end = self.offset.checked_add(bytes).filter(|&end| end <= self.body.len()).ok_or(NoLogChange)?;
        let taken = &self.body[self.offset..end];
        self.offset = end;
        Ok(taken)
    }

    fn u64(&mut self) -> Result<u64, NoLogChange> {
        self.take(8).map(|bytes| get_u64(bytes, 0))
    }

    fn u32(&mut self) -> Result<u32, NoLogChange> {
        self.take(4).map(|bytes| get_u32(bytes, 0))
    }

    fn name(&mut self) -> Result<&'b str, NoLogChange> {
        let bytes = self.take(1)?[0];
        std::str::from_utf8(self.take(bytes.into())?).map_err(|_| NoLogChange)
    }

    fn entry(&mut self) -> Result<EntryFrame<'b>, NoLogChange> {
        let offset = self.offset;
        let header = self.take(ENTRY_HEADER_BYTES)?;
        let payload = self.take(get_u32(header, 8) as usize)?;
        let is_in_parts = match get_u32(header, 12) {
            INLINE => false,
            IN_PARTS if payload.len().is_multiple_of(PART_BYTES) && !payload.is_empty() => true,
            _ => return Err(NoLogChange),
        };
        Ok(EntryFrame { offset, payload, is_in_parts })
    }

    fn change(&mut self) -> Result<LogChange<'b>, NoLogChange> {
        let kind = self.take(1)?[0];
        if kind == PART {
            return Ok(LogChange::Part(self.take(self.body.len() - self.offset)?));
        }
        let log = self.u64()?;
        Ok(match kind {
            APPEND => {
                let (first, count) = (self.u64()?, self.u32()?);
                first.checked_add(count.into()).ok_or(NoLogChange)?;
                let entries = (0..count).map(|_| self.entry()).collect::<Result<_, _>>()?;
                LogChange::Append { log, first, entries }
            }
            MOVE => {
                let (first, count) = (self.u64()?, self.u32()? as usize);
                let pieces = self.take(count.checked_mul(PIECE_BYTES).ok_or(NoLogChange)?)?;
                let mut entries = Vec::new();
                for piece in pieces.chunks_exact(PIECE_BYTES) {
                    let mut old = StreamPosition(get_u64(piece, 0));
                    for _ in 0..get_u32(piece, 8) {
                        let entry = self.entry()?;
                        entries.push((old, entry));
                        let end = old.0.checked_add((ENTRY_HEADER_BYTES + entry.payload.len()) as u64);
                        old = StreamPosition(end.ok_or(NoLogChange)?);
                    }
                }
                first.checked_add(entries.len() as u64).ok_or(NoLogChange)?;
                LogChange::Move { log, first, entries }
            }
            TRUNCATE => LogChange::Truncate { log, from: self.u64()? },
            PURGE => LogChange::Purge { log, to: self.u64()? },
            SET => {
                let (name, bytes) = (self.name()?, self.u32()?);
                LogChange::Set { log, name, value: self.take(bytes as usize)? }
            }
            UNSET => LogChange::Unset { log, name: self.name()? },
            REMOVE => LogChange::Remove { log },
            PLACES => {
                let (first, count) = (self.u64()?, self.u32()? as usize);
                first.checked_add(count as u64).ok_or(NoLogChange)?;
                if !(1..=PLACE_COUNT_MAX).contains(&count) {
                    return Err(NoLogChange);
                }
                let offset = self.offset;
                self.take(LIST_HEADER_BYTES)?;
                LogChange::Places { log, first, offset, places: self.take(count * PLACE_BYTES)? }
            }
            _ => return Err(NoLogChange),
        })
    }
}

impl<'b> Iterator for LogChanges<'b> {
    type Item = Result<LogChange<'b>, NoLogChange>;

    fn next(&mut self) -> Option<Result<LogChange<'b>, NoLogChange>> {
        if self.offset == self.body.len() {
            return None;
        }
        let change = self.change();
        if change.is_err() {
            self.offset = self.body.len();
        }
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> LogsHead {
        LogsHead {
            sequence: SuperblockNumber(9),
            folder: DatabaseId(77),
            index: 4,
            index_bytes: 1000,
            covered: Timestamp(30),
            position: StreamPosition(9000),
            is_closed: true,
            range: (StreamPosition(4096), StreamPosition(40960)),
            incarnations: vec![(Incarnation(2), Timestamp(11)), (Incarnation(3), Timestamp(31))],
        }
    }

    /// A head survives encoding, and every flipped bit of its block is detected.
    #[test]
    fn a_head_comes_back() {
        let mut block = [0; BLOCK_BYTES];
        head().encode(&mut block);
        assert_eq!(LogsHead::decode(&block), Ok(head()));
        for bit in (0..BLOCK_BYTES * 8).filter(|bit| !(ZERO_1_OFFSET * 8..CHECKSUM_OFFSET * 8).contains(bit)) {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(LogsHead::decode(&block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// All kinds of changes survive encoding, and a body that is cut short anywhere within a change is refused.
    #[test]
    fn changes_come_back() {
        let mut body = Vec::new();
        encode_append(&mut body, 7, 101, 2);
        encode_entry(&mut body, b"one", false, entry_seed(DatabaseId(1), 7, 101));
        let part = EntryPart { position: StreamPosition(4096), bytes: 5, checksum: 6 };
        let mut parts = Vec::new();
        part.encode(&mut parts);
        encode_entry(&mut body, &parts, true, 0);
        let mut ends = vec![body.len()];
        let pieces = [(64, 2), (4096, 1)].map(|(old, count)| MovedPiece { old: StreamPosition(old), count });
        encode_move(&mut body, 8, 5, &pieces);
        ["moved", "with", "another"].iter().for_each(|entry| encode_entry(&mut body, entry.as_bytes(), false, 3));
        ends.push(body.len());
        encode_truncate(&mut body, 7, 102);
        ends.push(body.len());
        encode_purge(&mut body, 7, 100);
        ends.push(body.len());
        encode_set(&mut body, 7, "vote", Some(b"yes"));
        ends.push(body.len());
        encode_set(&mut body, 7, "vote", None);
        ends.push(body.len());
        encode_remove(&mut body, 9);
        let changes: Vec<LogChange> = LogChanges::new(&body).collect::<Result<_, _>>().unwrap();
        let LogChange::Append { log: 7, first: 101, entries } = &changes[0] else { panic!("{changes:?}") };
        assert_eq!((entries[0].payload, entries[0].is_in_parts), (&b"one"[..], false));
        let one = &body[entries[0].offset..entries[0].offset + ENTRY_HEADER_BYTES + 3];
        assert_eq!(verified_entry(one, entry_seed(DatabaseId(1), 7, 101)), Some(&b"one"[..]));
        assert_eq!(verified_entry(one, entry_seed(DatabaseId(1), 7, 102)), None);
        assert_eq!(*entries[1].parts(), [part]);
        let LogChange::Move { log: 8, first: 5, entries } = &changes[1] else { panic!("{changes:?}") };
        let moved: Vec<(u64, &[u8])> = entries.iter().map(|(old, entry)| (old.0, entry.payload)).collect();
        assert_eq!(moved, [(64, &b"moved"[..]), (64 + 16 + 5, b"with"), (4096, b"another")]);
        assert_eq!(changes[2..4], [LogChange::Truncate { log: 7, from: 102 }, LogChange::Purge { log: 7, to: 100 }]);
        assert_eq!(changes[4], LogChange::Set { log: 7, name: "vote", value: b"yes" });
        assert_eq!(changes[5..], [LogChange::Unset { log: 7, name: "vote" }, LogChange::Remove { log: 9 }]);
        for end in 1..body.len() {
            let is_sound = LogChanges::new(&body[..end]).all(|change| change.is_ok());
            assert_eq!(is_sound, ends.contains(&end), "cut at {end}");
        }
        let list = encode_places(DatabaseId(1), 7, 5, &[3; 2 * PLACE_BYTES]);
        let place = LogChange::Places { log: 7, first: 5, offset: LIST_OFFSET, places: &[3; 2 * PLACE_BYTES] };
        assert_eq!(LogChanges::new(&list).collect::<Vec<_>>(), [Ok(place)]);
        for end in 1..list.len() {
            assert_eq!(LogChanges::new(&list[..end]).next(), Some(Err(NoLogChange)), "cut at {end}");
        }
        assert_eq!(places_of_list(&list[LIST_OFFSET..], DatabaseId(1), 7, 5), (&[3; 2 * PLACE_BYTES][..], true));
        assert!(!places_of_list(&list[LIST_OFFSET..], DatabaseId(1), 7, 6).1);
        let part = encode_part(b"abc");
        assert_eq!(LogChanges::new(&part).next(), Some(Ok(LogChange::Part(b"abc"))));
    }
}
