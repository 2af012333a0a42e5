//! Entry points for fuzzing the decoders, which must not panic on any input.
//!
//! Most structures have a checksum, which random bytes never pass. So each input is decoded twice, once unchanged and
//! once with a corrected checksum: a decoder must also withstand corruption that the checksum does not reveal. If a
//! structure is decoded, encoding it must return the same bytes.
//!
//! This file is not a module of this crate. The engine's decoders are private, so the engine compiles it as its own
//! module `fuzzing` if its feature `fuzzing` is on.

use crate::format::changes::{ChangeRecord, FileHeader, RECORD_HEADER_BYTES, RecordKind};
use crate::format::extent::{self, Header, Origin};
use crate::format::log::{self, RecordHeader, SegmentHeader};
use crate::format::record::{Attachment, OldValue, Operation, SegmentRun};
use crate::format::superblock::{self, SLOT_OFFSETS, Superblock};
use crate::format::{
    BLOCK_BYTES, DatabaseId, ExtentAddress, ExtentRef, KeyspaceId, PageId, SegmentId, SegmentUse, checksum, put_u32,
    put_u64,
};
use crate::format::{catalogue::Catalogue, node, record, summary};
use crate::tree::node::{Inner, InnerMut, Leaf, LeafChange, LeafMut, Node, RowValue, check};

/// Returns a block of `length` bytes: the input, truncated or padded with zeros.
fn padded(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut block = bytes[..bytes.len().min(length)].to_vec();
    block.resize(length, 0);
    block
}

/// Decodes a superblock.
pub fn superblock(bytes: &[u8]) {
    let _ = Superblock::decode(bytes);
    let mut block = padded(bytes, BLOCK_BYTES);
    seal_superblock(&mut block);
    if let Ok(decoded) = Superblock::decode(&block) {
        let encoded = decoded.encode();
        assert_eq!(Superblock::decode(&encoded), Ok(decoded));
    }
}

fn seal_superblock(block: &mut [u8]) {
    block[superblock::MAGIC_OFFSET..superblock::MAGIC_OFFSET + 8].copy_from_slice(&superblock::MAGIC);
    put_u32(block, superblock::VERSION_OFFSET, crate::format::FORMAT_VERSION);
    let sum = checksum(&block[superblock::SEQUENCE_OFFSET..], 0);
    put_u64(block, superblock::CHECKSUM_OFFSET, sum);
}

/// Decodes an extent: its header, its compressed content, and the node in it if there is one.
pub fn extent(bytes: &[u8]) {
    let decode = |bytes: &[u8], header: &Header| {
        let mut page = vec![0; header.raw_bytes.min(ExtentAddress::EXTENT_BYTES_MAX as usize)];
        if extent::decode(bytes, header, &mut page).is_ok() {
            page[..extent::HEADER_BYTES].fill(0);
            exercise(&page, bytes);
        }
    };
    if let Ok(header) = extent::verify(bytes) {
        decode(bytes, &header);
    }
    if bytes.len() < extent::HEADER_BYTES {
        return;
    }
    let mut sealed = bytes.to_vec();
    let length = sealed.len() as u32;
    put_u32(&mut sealed, extent::STORED_BYTES_OFFSET, length);
    seal_extent(&mut sealed);
    if let Ok(header) = extent::verify(&sealed) {
        decode(&sealed, &header);
        let origin = Origin { database: DatabaseId(9), segment_use: SegmentUse(7) };
        extent::seal(&mut sealed, origin);
        assert_eq!(extent::verify(&sealed).and_then(|header| header.check(origin)), Ok(()));
    }
}

fn seal_extent(extent: &mut [u8]) {
    let sum = checksum(&extent[extent::USE_OFFSET..], 0);
    put_u64(extent, extent::CHECKSUM_OFFSET, sum);
}

/// Decodes a catalogue.
pub fn catalogue(bytes: &[u8]) {
    if let Some(decoded) = Catalogue::decode(bytes) {
        assert_eq!(Catalogue::decode(&decoded.encode()), Some(decoded));
    }
}

/// Decodes a summary.
pub fn summary(bytes: &[u8]) {
    if let Some(entries) = summary::decode(bytes) {
        let mut encoded = Vec::new();
        entries.iter().for_each(|entry| summary::encode(entry, &mut encoded));
        assert_eq!(summary::decode(&encoded), Some(entries));
    }
}

/// Decodes the body of a log record.
pub fn record(bytes: &[u8]) {
    let mut encoded = Vec::new();
    for operation in record::decode(bytes) {
        let Some((keyspace, operation)) = operation else { break };
        record::encode(keyspace, &operation, &mut encoded);
    }
    assert!(bytes.starts_with(&encoded), "a record's body has one form");
}

/// Decodes the headers of a log segment and of a record.
pub fn log_headers(bytes: &[u8]) {
    let mut block = padded(bytes, BLOCK_BYTES);
    let _ = SegmentHeader::decode(&block);
    seal_segment(&mut block);
    if let Ok(Some(decoded)) = SegmentHeader::decode(&block) {
        let mut encoded = vec![0; BLOCK_BYTES];
        decoded.encode(&mut encoded);
        assert_eq!(SegmentHeader::decode(&encoded).ok().flatten(), Some(decoded));
    }
    let _ = RecordHeader::decode(&block, 5);
    seal_record_header(&mut block, 5);
    let decoded = RecordHeader::decode(&block, 5).expect("it was sealed");
    let mut encoded = [0; log::RECORD_HEADER_BYTES];
    decoded.encode(5, &mut encoded);
    assert_eq!(encoded, block[..log::RECORD_HEADER_BYTES]);
}

fn seal_segment(block: &mut [u8]) {
    block[..8].copy_from_slice(b"DRUMLOG\0");
    put_u32(block, 8, crate::format::FORMAT_VERSION);
    let sum = checksum(&block[..log::SEGMENT_HEADER_BYTES - 8], 0);
    put_u64(block, log::SEGMENT_HEADER_BYTES - 8, sum);
}

fn seal_record_header(bytes: &mut [u8], seed: u64) {
    put_u32(bytes, 0, log::RECORD_MAGIC);
    let sum = checksum(&bytes[..log::RECORD_HEADER_BYTES - 8], seed);
    put_u64(bytes, log::RECORD_HEADER_BYTES - 8, sum);
}

/// Decodes what a folder of logs has: a head, the changes in a record, or an index.
pub fn logs(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 3 {
        0 => logs_head(bytes),
        1 => log_changes(bytes),
        _ => crate::logs::fuzz_index(bytes),
    }
}

fn logs_head(bytes: &[u8]) {
    use crate::format::logs::LogsHead;
    let mut block = padded(bytes, BLOCK_BYTES);
    let _ = LogsHead::decode(&block);
    block[..8].copy_from_slice(b"DRUMLOGS");
    put_u32(&mut block, 8, crate::format::FORMAT_VERSION);
    let sum = checksum(&block[24..], 0);
    put_u64(&mut block, 16, sum);
    if let Ok(decoded) = LogsHead::decode(&block) {
        let mut encoded = vec![0; BLOCK_BYTES];
        decoded.encode(&mut encoded);
        assert_eq!(LogsHead::decode(&encoded), Ok(decoded));
    }
}

fn log_changes(bytes: &[u8]) {
    use crate::format::logs::{
        ENTRY_HEADER_BYTES, EntryFrame, LIST_HEADER_BYTES, LogChange, LogChanges, MovedPiece, PLACE_BYTES,
        encode_append, encode_move, encode_part, encode_places, encode_purge, encode_remove, encode_set,
        encode_truncate,
    };
    let (mut encoded, mut decoded) = (Vec::new(), Vec::new());
    let entry_bytes = |entry: &EntryFrame<'_>| entry.offset..entry.offset + ENTRY_HEADER_BYTES + entry.payload.len();
    for change in LogChanges::new(bytes) {
        let Ok(change) = change else { break };
        match &change {
            LogChange::Append { log, first, entries } => {
                encode_append(&mut encoded, *log, *first, entries.len() as u32);
                entries.iter().for_each(|entry| encoded.extend(&bytes[entry_bytes(entry)]));
                entries.iter().filter(|entry| entry.is_in_parts).for_each(|entry| drop(entry.parts()));
            }
            LogChange::Move { log, first, entries } => {
                let pieces: Vec<MovedPiece> = entries.iter().map(|&(old, _)| MovedPiece { old, count: 1 }).collect();
                encode_move(&mut encoded, *log, *first, &pieces);
                entries.iter().for_each(|(_, entry)| encoded.extend(&bytes[entry_bytes(entry)]));
            }
            LogChange::Truncate { log, from } => encode_truncate(&mut encoded, *log, *from),
            LogChange::Purge { log, to } => encode_purge(&mut encoded, *log, *to),
            LogChange::Set { log, name, value } => encode_set(&mut encoded, *log, name, Some(value)),
            LogChange::Unset { log, name } => encode_set(&mut encoded, *log, name, None),
            LogChange::Remove { log } => encode_remove(&mut encoded, *log),
            LogChange::Places { log, first, offset, places } => {
                assert_eq!(bytes[offset + LIST_HEADER_BYTES..][..places.len()], **places);
                assert!(places.len().is_multiple_of(PLACE_BYTES));
                encoded.extend(encode_places(DatabaseId(1), *log, *first, places));
            }
            LogChange::Part(content) => encoded.extend(encode_part(content)),
        }
        decoded.push(change);
    }
    let again: Vec<_> = LogChanges::new(&encoded).map(|change| change.expect("it was encoded")).collect();
    assert_eq!(again.len(), decoded.len());
    // The pieces of a move may be cut in another way, which makes its offsets differ.
    let offset_free = |change: &LogChange<'_>| {
        let entry = |entry: &EntryFrame<'_>| (entry.payload.to_vec(), entry.is_in_parts);
        match change {
            LogChange::Append { log, first, entries } => {
                (*log, *first, entries.iter().map(|found| (0, entry(found))).collect::<Vec<_>>())
            }
            LogChange::Move { log, first, entries } => {
                (*log, *first, entries.iter().map(|(old, found)| (old.0, entry(found))).collect())
            }
            LogChange::Places { log, first, places, .. } => (*log, *first, vec![(0, (places.to_vec(), false))]),
            other => (0, 0, vec![(0, (format!("{other:?}").into_bytes(), false))]),
        }
    };
    for (change, again) in decoded.iter().zip(&again) {
        assert_eq!(offset_free(change), offset_free(again));
    }
}

/// Decodes a part of an advice file.
pub fn advice(bytes: &[u8]) {
    use crate::format::advice::{ITEM_COUNT_OFFSET, KIND_OFFSET, PART_BYTES_MAX, Part, seal_part};
    let _ = Part::decode(bytes);
    let mut part = padded(bytes, bytes.len().clamp(1, PART_BYTES_MAX).next_multiple_of(BLOCK_BYTES));
    // Take the kind, the number of items and the items from the input.
    let kind = part[KIND_OFFSET];
    seal_part(&sample_part_head(kind), &mut part);
    let count = crate::format::get_u32(&part, ITEM_COUNT_OFFSET) as usize;
    let part = Part::decode(&part).expect("it was sealed");
    assert_eq!((part.head, part.count), (sample_part_head(kind), count));
    let counts = [part.changes().count(), part.entries().count(), part.residents().count()];
    assert!(counts.iter().all(|found| *found <= count), "a part has more items than it says");
}

fn sample_part_head(kind: u8) -> crate::format::advice::PartHead {
    use crate::format::advice::{PartHead, PartKind};
    use crate::format::{CheckpointId, Timestamp, WritingId};
    PartHead {
        database: DatabaseId(7),
        checkpoint: CheckpointId(3),
        writing: WritingId(9),
        number: 0,
        is_last: false,
        kind: [PartKind::Changes, PartKind::Entries, PartKind::Residents][usize::from(kind) % 3],
        base: Timestamp(1000),
        keyspace: KeyspaceId(2),
    }
}

/// Decodes the text of a probe of sync methods.
pub fn probe(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(decoded) = crate::io::Probe::decode(text) {
        let encoded = decoded.encode();
        let again = crate::io::Probe::decode(&encoded).expect("it was just encoded");
        assert_eq!(again.encode(), encoded);
    }
}

/// Takes numbers and short strings from the bytes, then zeros once the bytes are used up.
struct Script<'b>(&'b [u8]);

impl<'b> Script<'b> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    fn string(&mut self, limit: usize) -> &'b [u8] {
        let length = usize::from(self.byte()).min(limit).min(self.0.len());
        let (string, rest) = self.0.split_at(length);
        self.0 = rest;
        string
    }
}

/// Checks a node that consists of arbitrary bytes, or that was built by a script and then corrupted. If the node passes
/// the check, every operation must work on it.
pub fn node(bytes: &[u8]) {
    let mut script = Script(bytes);
    let page_bytes = 512 << (script.byte() % 4);
    let mut page = vec![0; page_bytes];
    match script.byte() % 3 {
        0 => {
            let length = script.0.len().min(page_bytes - extent::HEADER_BYTES);
            page[extent::HEADER_BYTES..][..length].copy_from_slice(&script.0[..length]);
        }
        kind => {
            match kind {
                1 => build_leaf(&mut page, &mut script),
                _ => build_inner(&mut page, &mut script),
            }
            check(&page).expect("a node that was built passes");
            for _ in 0..script.byte() % 8 {
                let at = extent::HEADER_BYTES + script.number() % (page_bytes - extent::HEADER_BYTES);
                page[at] ^= script.byte();
            }
        }
    }
    exercise(&page, script.0);
}

/// Returns the lower and the upper fence of a node, or no fences if the next two strings of the script are out of
/// order.
fn fences<'s>(page_bytes: usize, script: &mut Script<'s>) -> (Option<&'s [u8]>, Option<&'s [u8]>) {
    let limit = node::key_bytes_max(page_bytes);
    let (a, b) = (script.string(limit), script.string(limit));
    if a < b { (Some(a), Some(b)) } else { (None, None) }
}

fn build_leaf(page: &mut [u8], script: &mut Script<'_>) {
    let (lower, upper) = fences(page.len(), script);
    let mut leaf = LeafMut::init(page, lower, upper);
    for _ in 0..script.byte() % 64 {
        change_leaf(&mut leaf, script);
    }
}

fn build_inner(page: &mut [u8], script: &mut Script<'_>) {
    let (lower, upper) = fences(page.len(), script);
    let mut inner = InnerMut::init(page, 1 + script.byte() % 3, lower, upper, PageId(2));
    for _ in 0..script.byte() % 64 {
        change_inner(&mut inner, script);
    }
}

/// Returns a key that the node covers, if the script has one.
fn key_within<'s>(node: &Node<'_>, script: &mut Script<'s>) -> Option<std::borrow::Cow<'s, [u8]>> {
    let own = script.string(node::key_bytes_max(node.page_bytes()));
    let key: std::borrow::Cow<'s, [u8]> =
        if node.covers(own) { own.into() } else { [node.prefix(), own].concat().into() };
    (key.len() <= node::key_bytes_max(node.page_bytes()) && node.covers(&key)).then_some(key)
}

fn change_leaf(leaf: &mut LeafMut<'_>, script: &mut Script<'_>) {
    let page_bytes = leaf.as_leaf().page_bytes();
    let choice = script.byte();
    let Some(key) = key_within(&leaf.as_leaf(), script) else { return };
    let value =
        padded(script.string(64), usize::from(choice) * 4 % (node::inline_bytes_max(page_bytes, key.len()) + 1));
    let value = RowValue::Inline(&value);
    match leaf.as_leaf().search(&key) {
        Ok(index) if choice.is_multiple_of(3) => leaf.remove(index),
        Ok(index) => {
            let free_bytes = leaf.as_leaf().free_bytes() + leaf.as_leaf().value(index).stored_bytes();
            let fits = value.stored_bytes() <= free_bytes;
            assert_eq!(leaf.replace(index, value).is_ok(), fits);
        }
        Err(index) => {
            if leaf.insert(index, &key, value).is_ok() {
                assert_eq!(leaf.as_leaf().search(&key), Ok(index));
                assert_eq!(leaf.as_leaf().value(index), value);
            }
        }
    }
}

fn change_inner(inner: &mut InnerMut<'_>, script: &mut Script<'_>) {
    let choice = script.byte();
    let view = inner.as_inner();
    let Some(key) = key_within(&view, script) else { return };
    let index = view.child_for(&key);
    let mut separator = Vec::new();
    if index > 0 {
        view.separator_into(index, &mut separator);
    }
    let is_taken = index > 0 && separator == *key || view.lower_fence().unwrap_or(b"") == &*key;
    if choice.is_multiple_of(4) && index > 0 {
        inner.remove_child(index);
    } else if !is_taken {
        let fits = view.fits_separator(key.len());
        let inserted = inner.insert_child(index + 1, &key, PageId(u32::from(choice) + 2));
        assert!(inserted.is_ok() || !fits);
    }
}

/// Performs every operation on a page that passes the check.
fn exercise(page: &[u8], script: &[u8]) {
    if check(page).is_err() {
        return;
    }
    let mut script = Script(script);
    let mut copy = page.to_vec();
    let view = Node::new(page);
    let mut key = Vec::new();
    if view.level() == 0 {
        let leaf = Leaf::new(page);
        for index in 0..leaf.len() {
            leaf.key_into(index, &mut key);
            assert!(leaf.covers(&key));
            assert_eq!(leaf.search(&key), Ok(index));
            assert_eq!(leaf.row(index).2, leaf.value(index));
        }
        let mut changed = LeafMut::new(&mut copy);
        for _ in 0..script.byte() % 16 {
            change_leaf(&mut changed, &mut script);
        }
        check(&copy).expect("a changed leaf passes");
        split_leaf(copy, &mut script);
    } else {
        let inner = Inner::new(page);
        for index in 1..inner.len() {
            inner.separator_into(index, &mut key);
            assert!(inner.covers(&key));
            assert_eq!((inner.child_for(&key), inner.child_below(&key)), (index, index - 1));
            let _ = inner.child(index);
        }
        let mut changed = InnerMut::new(&mut copy);
        for _ in 0..script.byte() % 16 {
            change_inner(&mut changed, &mut script);
        }
        check(&copy).expect("a changed inner node passes");
        split_inner(copy);
    }
}

fn split_leaf(mut page: Vec<u8>, script: &mut Script<'_>) {
    let leaf = Leaf::new(&page);
    let rows = leaf.len();
    let Some(key) = key_within(&leaf, script) else { return };
    let Err(index) = leaf.search(&key) else { return };
    if rows == 0 {
        return;
    }
    let value_bytes = script.number() % (node::inline_bytes_max(page.len(), key.len()) + 1);
    let split = leaf.split_for(&LeafChange::Insert { index, key: &key, value_bytes });
    let mut right = vec![0; page.len()];
    let mut left = LeafMut::new(&mut page);
    left.split_to(split.at, &split.separator, &mut right);
    check(&page).and(check(&right)).expect("both halves pass");
    assert_eq!(Leaf::new(&page).len() + Leaf::new(&right).len(), rows);
    let mut left = LeafMut::new(&mut page);
    if left.merge_from(&Leaf::new(&right)).is_ok() {
        assert_eq!(left.as_leaf().len(), rows);
        check(&page).expect("merged halves pass");
    }
}

fn split_inner(mut page: Vec<u8>) {
    let children = Inner::new(&page).len();
    if children < 2 {
        return;
    }
    let at = Inner::new(&page).split_index();
    let mut right = vec![0; page.len()];
    let mut separator = Vec::new();
    InnerMut::new(&mut page).split_to(at, &mut right, &mut separator);
    check(&page).and(check(&right)).expect("both halves pass");
    let mut left = InnerMut::new(&mut page);
    if left.merge_from(&Inner::new(&right)).is_ok() {
        assert_eq!(left.as_inner().len(), children);
        check(&page).expect("merged halves pass");
    }
}

/// Reads change files. The script damages samples: flips bits, cuts files, and lengthens them. Or it is the body of a
/// record that verifies.
///
/// The reader must return the commits before the damage. It must not return a commit that the samples don't have, and
/// an error must name the file and the offset.
pub fn changes(bytes: &[u8]) {
    let mut script = Script(bytes);
    let kind = script.byte() % 3;
    if kind > 0 {
        let (kind, body) = [(RecordKind::Commit, script.0), (RecordKind::Names, script.0)][usize::from(kind) - 1];
        let mut file = ChangeFile::new(1, 0, 0);
        file.push(kind, 1, body);
        file.push(RecordKind::Commit, 2, &sample_record());
        read_changes(&[Some(file.bytes)]);
        return;
    }
    let samples = sample_change_files();
    let told = read_changes(&samples.iter().map(|file| Some(file.bytes.clone())).collect::<Vec<_>>());
    assert_eq!(told.len(), samples.iter().map(|file| file.ends.len()).sum::<usize>(), "sound files are read");
    let mut files: Vec<Option<Vec<u8>>> = samples.iter().map(|file| Some(file.bytes.clone())).collect();
    // The offset up to which each file is sound.
    let mut sound: Vec<usize> = vec![usize::MAX; files.len()];
    while !script.0.is_empty() {
        let (number, step) = (usize::from(script.byte()) % files.len(), script.byte() % 6);
        let Some(file) = &mut files[number] else { continue };
        let at = script.number() % (file.len() + 1);
        match step {
            0 | 1 => {
                let Some(byte) = file.get_mut(at) else { continue };
                *byte ^= 1 << (script.byte() % 8);
                sound[number] = sound[number].min(at);
            }
            2 => {
                file.truncate(at);
                sound[number] = sound[number].min(at);
            }
            3 => file.extend_from_slice(script.string(255)),
            // Records of the same file, in another place.
            4 => file.extend_from_within(at..),
            _ => {
                files[number] = None;
                sound[number] = 0;
            }
        }
    }
    let found = read_changes(&files);
    assert!(told.starts_with(&found), "the reader tells commits that were not written: {found:?}");
    // Without a file or its header, the files before it can't be reached.
    if sound.iter().all(|end| *end >= BLOCK_BYTES) {
        let is_sound = |file: &ChangeFile, end: usize| file.names_end <= end && file.ends.last() <= Some(&end);
        let whole = samples.iter().zip(&sound).take_while(|(file, end)| is_sound(file, **end)).count();
        let damaged = samples.get(whole).filter(|file| file.names_end <= sound[whole]);
        let before_damage = damaged.map_or(0, |file| file.ends.iter().filter(|end| **end <= sound[whole]).count());
        let expected = samples[..whole].iter().map(|file| file.ends.len()).sum::<usize>() + before_damage;
        assert!(found.len() >= expected, "{} of {expected} sound commits are told", found.len());
    }
}

/// A change file under construction.
struct ChangeFile {
    header: FileHeader,
    bytes: Vec<u8>,
    names_end: usize,
    /// The end of each commit.
    ends: Vec<usize>,
}

impl ChangeFile {
    fn new(number: u64, after: u64, previous_end: u64) -> ChangeFile {
        let (database, after, time_ms) = (DatabaseId(77), crate::format::Timestamp(after), 1_700_000_000_000);
        let header = FileHeader {
            database,
            number,
            after,
            time_ms,
            kept_bytes: 1 << 20,
            kept_ms: 1000,
            old_values: true,
            previous_end,
        };
        let mut file = ChangeFile { header, bytes: vec![0; BLOCK_BYTES], names_end: 0, ends: Vec::new() };
        header.encode(&mut file.bytes);
        let mut names = Vec::new();
        for (id, name) in [(3, "rows"), (4, "lines")] {
            record::encode(KeyspaceId(id), &Operation::Create { page_bytes: 4096, name }, &mut names);
        }
        file.push(RecordKind::Names, after.0, &names);
        file
    }

    fn push(&mut self, kind: RecordKind, timestamp: u64, body: &[u8]) {
        let (timestamp, time_ms) = (crate::format::Timestamp(timestamp), self.header.time_ms);
        let mut record = vec![0; RECORD_HEADER_BYTES];
        record.extend_from_slice(body);
        let body_bytes = body.len() as u32;
        ChangeRecord { kind, timestamp, time_ms, body_bytes }.seal(
            self.header.seed(),
            self.bytes.len() as u64,
            &mut record,
        );
        self.bytes.extend_from_slice(&record);
        match kind {
            RecordKind::Names => self.names_end = self.bytes.len(),
            RecordKind::Commit => self.ends.push(self.bytes.len()),
            RecordKind::Part | RecordKind::End => unreachable!("change files have none"),
        }
    }
}

/// Returns three change files. Each has commits of all kinds, which don't change names.
fn sample_change_files() -> Vec<ChangeFile> {
    use crate::format::ValueId;
    let mut files: Vec<ChangeFile> = Vec::new();
    for number in 1..=3 {
        let previous_end = files.last().map_or(0, |file| file.bytes.len() as u64);
        let mut file = ChangeFile::new(number, (number - 1) * 4, previous_end);
        let key = [b'a', number as u8];
        let commits = [
            vec![Operation::Put { key: &key, value: b"value" }],
            vec![Operation::Put { key: b"", value: b"" }, Operation::Remove { key: &key }],
            vec![
                Operation::RemoveRange { lower: b"a", upper: Some(b"b") },
                Operation::PutReference { key: b"film", length: 5000, value_id: ValueId(number) },
            ],
            vec![Operation::Loaded { rows: number, first_key: b"a", last_key: b"b" }],
        ];
        for (index, operations) in commits.iter().enumerate() {
            let mut body = Vec::new();
            operations.iter().for_each(|operation| record::encode(KeyspaceId(3), operation, &mut body));
            file.push(RecordKind::Commit, (number - 1) * 4 + index as u64 + 1, &body);
        }
        files.push(file);
    }
    files
}

/// Reads change files with these contents, numbered from 1. Returns the commits that the reader tells as text.
fn read_changes(files: &[Option<Vec<u8>>]) -> Vec<String> {
    let backend = crate::io::in_memory();
    let folder = crate::io::open_folder(&backend, std::path::Path::new("/db")).expect("a folder");
    backend.create_dir_all(std::path::Path::new("/db")).expect("a folder");
    folder.create_folder("changes").expect("a folder");
    let folder = folder.folder("changes").expect("it was created");
    let options = crate::io::OpenOptions { write: true, create: true, ..crate::io::OpenOptions::default() };
    for (number, bytes) in (1..).zip(files) {
        if let Some(bytes) = bytes {
            let file = folder.open(&format!("{number}.changes"), options).expect("a file");
            file.write_at(bytes, 0, crate::io::Persist::Later).expect("memory");
        }
    }
    let config = crate::Config::new().backend(backend);
    let mut told = Vec::new();
    let check = |error: crate::Error| match error {
        crate::Error::ChangesGone { .. } => {}
        crate::Error::Corrupted { path, what, .. } => {
            assert!(path.extension().is_some_and(|extension| extension == "changes"), "{}", path.display());
            assert!(what.contains("offset"), "an error does not say where: {what}");
        }
        other => panic!("{other}"),
    };
    match config.changes("/db", crate::format::Timestamp(0)) {
        Err(error) => check(error),
        Ok(mut changes) => {
            while let Some(commit) = changes.ready() {
                match commit {
                    Ok(commit) => {
                        let changes: Vec<_> = commit.changes().collect();
                        told.push(format!("{}: {changes:?}", commit.timestamp()));
                    }
                    Err(error) => check(error),
                }
            }
        }
    }
    told
}

/// A part of a file that has its own checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sealed {
    /// The offset in the file.
    pub start: usize,
    /// The length in bytes.
    pub length: usize,
    kind: SealedKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SealedKind {
    Superblock,
    Extent,
    Segment,
    Record { seed: u64 },
}

impl Sealed {
    /// Returns the parts of a data file or of a log segment, in order.
    pub fn find(file: &[u8]) -> Vec<Sealed> {
        let mut found = Vec::new();
        if let Ok(Some(header)) = file.get(..BLOCK_BYTES).map_or(Ok(None), SegmentHeader::decode) {
            found.push(Sealed { start: 0, length: log::SEGMENT_HEADER_BYTES, kind: SealedKind::Segment });
            for start in (BLOCK_BYTES..file.len().saturating_sub(log::RECORD_HEADER_BYTES)).step_by(8) {
                let position = header.start + (start - BLOCK_BYTES) as u64;
                let seed = log::record_seed(header.seed(), position);
                let record = RecordHeader::decode(&file[start..], seed);
                let length = record.map(|record| log::RECORD_HEADER_BYTES + record.body_bytes as usize);
                if let Some(length) = length.filter(|length| start + length <= file.len()) {
                    found.push(Sealed { start, length, kind: SealedKind::Record { seed } });
                }
            }
            return found;
        }
        for slot in SLOT_OFFSETS {
            let start = slot as usize;
            if file.get(start..start + BLOCK_BYTES).is_some_and(|block| Superblock::decode(block).is_ok()) {
                found.push(Sealed { start, length: BLOCK_BYTES, kind: SealedKind::Superblock });
            }
        }
        for start in (16 * BLOCK_BYTES..file.len()).step_by(ExtentAddress::UNIT_BYTES as usize) {
            if let Ok(header) = extent::verify(&file[start..]) {
                found.push(Sealed { start, length: header.stored_bytes, kind: SealedKind::Extent });
            }
        }
        found
    }

    /// Recomputes the checksum after a change to the part's bytes.
    pub fn renew(&self, file: &mut [u8]) {
        let Some(bytes) = file.get_mut(self.start..self.start + self.length) else { return };
        match self.kind {
            SealedKind::Superblock => seal_superblock(bytes),
            SealedKind::Extent => seal_extent(bytes),
            SealedKind::Segment => seal_segment(bytes),
            SealedKind::Record { seed } => {
                let sum = checksum(&bytes[log::RECORD_HEADER_BYTES..], 0);
                put_u64(bytes, 32, sum);
                seal_record_header(bytes, seed);
            }
        }
    }
}

/// Returns three parts of an advice file: one with changes, one with entries, and one with resident pages.
fn advice_samples() -> [Vec<u8>; 3] {
    use crate::format::advice::{ListedChange, PartBuffer, ResidentPage};
    use crate::format::{Timestamp, ValueId};
    let mut buffer = PartBuffer::new(BLOCK_BYTES);
    std::array::from_fn(|kind| {
        buffer.clear();
        for number in 0..3 {
            let (page, value) = (PageId(number), (number == 2).then_some(ValueId(5)));
            let change = ListedChange { key: b"key 2", timestamp: Timestamp(1234), is_insert: number == 1 };
            match kind {
                0 => buffer.push_change(change),
                1 => buffer.push_entry(page, 70),
                _ => buffer.push_resident(ResidentPage { keyspace: KeyspaceId(1), page, frame_bytes: 4096, value }),
            };
        }
        buffer.seal(&sample_part_head(kind as u8)).to_vec()
    })
}

/// Returns an extent that samples refer to.
fn sample_ref() -> ExtentRef {
    ExtentRef { address: ExtentAddress::new(1 << 20, 640, SegmentUse(5)), segment_use: SegmentUse(5) }
}

fn sample_superblock() -> Superblock {
    use crate::format::{
        CheckpointId, CheckpointNumber, Epoch, Incarnation, StreamId, StreamPosition, SuperblockNumber, Timestamp,
    };
    Superblock {
        sequence: SuperblockNumber(9),
        database: DatabaseId(77),
        segment_bytes: 1 << 20,
        checkpoint: CheckpointNumber(4),
        timestamp: Timestamp(1234),
        epoch: Epoch(5),
        catalogue_bytes: 100,
        catalogue: sample_ref(),
        incarnations: vec![(Incarnation(1), Timestamp(1)), (Incarnation(2), Timestamp(1235))],
        log: vec![superblock::LogRange {
            stream: StreamId(0),
            from: StreamPosition::START,
            to: StreamPosition(1 << 20),
        }],
        is_closed: false,
        checkpoint_id: CheckpointId(3),
        features: crate::format::features::Features::default(),
    }
}

fn sample_catalogue() -> Catalogue {
    use crate::format::{Timestamp, ValueId, catalogue};
    let extent = sample_ref();
    let address = extent.address;
    Catalogue {
        next_keyspace: 3,
        next_value: ValueId(99),
        keyspaces: vec![catalogue::KeyspaceEntry {
            id: KeyspaceId(2),
            page_bytes: 4096,
            page_end: 2000,
            leaf_count: 3,
            leaf_rows: 60,
            has_values: true,
            name: "rows".into(),
            chunks: vec![address, ExtentAddress::NONE],
            origins: vec![catalogue::CloneOrigin {
                keyspace: KeyspaceId(1),
                as_of: Timestamp(40),
                last_use: SegmentUse(30),
                own_after: SegmentUse(20),
            }],
            runs: vec![
                catalogue::RunEntry {
                    root: PageId(9),
                    timestamp: Timestamp(55),
                    freed_to: b"k".to_vec(),
                    removed: Vec::new(),
                },
                catalogue::RunEntry {
                    root: PageId::NONE,
                    timestamp: Timestamp(7),
                    freed_to: b"b".to_vec(),
                    removed: vec![(b"a".to_vec(), Some(b"c".to_vec())), (b"d".to_vec(), None)],
                },
            ],
        }],
        summaries: vec![address],
        segments: vec![extent, ExtentRef::NONE],
        orphans: vec![catalogue::Orphan { keyspace: KeyspaceId(2), first_page: PageId(5), page_count: 6 }],
        kept: vec![catalogue::KeptEntry {
            name: "kept".into(),
            id: crate::format::backup::SnapshotId(8),
            timestamp: Timestamp(54),
            taken_at_ms: 1_700_000_000_000,
            catalogue: extent,
            catalogue_bytes: 300,
        }],
    }
}

fn sample_summary() -> Vec<u8> {
    let mut summary = Vec::new();
    for address in [sample_ref().address, ExtentAddress::NONE] {
        summary::encode(
            &summary::TableChange { keyspace: KeyspaceId(2), page: PageId(5), address, sequence: 1 },
            &mut summary,
        );
    }
    summary
}

/// Returns a record's body with an operation of each kind.
fn sample_record() -> Vec<u8> {
    use crate::format::ValueId;
    use crate::format::record::AttachedRoot;
    let extent = sample_ref();
    let attachment = |root| Attachment {
        rows: 7,
        root,
        images: vec![(1, extent)],
        segments: vec![SegmentRun { first: SegmentId(1), count: 2, segment_use: extent.segment_use }],
    };
    let mut record = Vec::new();
    for operation in [
        Operation::Put { key: b"key", value: b"value" },
        Operation::PutLarge { key: b"large", length: 5000, value_id: ValueId(9), extents: vec![extent] },
        Operation::Remove { key: b"gone" },
        Operation::RemoveRange { lower: b"from", upper: Some(b"to") },
        Operation::RemoveRange { lower: b"from", upper: None },
        Operation::Create { page_bytes: 4096, name: "rows" },
        Operation::Drop,
        Operation::Attach(attachment(AttachedRoot::Tree(extent))),
        Operation::CommitPrepared { id: b"transfer 7", changes: b"" },
        Operation::CommitPrepared { id: b"transfer 8", changes: b"operations" },
        Operation::PutReference { key: b"film", length: 5000, value_id: ValueId(9) },
        Operation::OldValue(OldValue::Absent),
        Operation::OldValue(OldValue::Value(b"old")),
        Operation::OldValue(OldValue::Large { length: 70_000 }),
        Operation::Loaded { rows: 1000, first_key: b"", last_key: b"zebra" },
        Operation::PutInParts { key: b"film", length: 5000 },
        Operation::ValuePart { bytes: b"its beginning" },
        Operation::PutStored { key: b"stored", number: 2 },
        Operation::Lock { key: b"locked", is_shared: true },
        Operation::Rename { name: "lines" },
        Operation::Attach(attachment(AttachedRoot::Run(PageId(9)))),
    ] {
        record::encode(KeyspaceId(3), &operation, &mut record);
    }
    record
}

fn sample_log_changes() -> Vec<u8> {
    use crate::format::StreamPosition;
    use crate::format::logs::{
        EntryPart, MovedPiece, encode_append, encode_entry, encode_move, encode_purge, encode_remove, encode_set,
        encode_truncate,
    };
    let mut body = Vec::new();
    encode_append(&mut body, 7, 101, 2);
    encode_entry(&mut body, b"one", false, 3);
    let mut parts = Vec::new();
    EntryPart { position: StreamPosition(4096), bytes: 5, checksum: 6 }.encode(&mut parts);
    encode_entry(&mut body, &parts, true, 3);
    let pieces = [(64, 2), (4096, 1)].map(|(old, count)| MovedPiece { old: StreamPosition(old), count });
    encode_move(&mut body, 7, 50, &pieces);
    ["moved", "with", "another"].iter().for_each(|entry| encode_entry(&mut body, entry.as_bytes(), false, 3));
    encode_truncate(&mut body, 7, 102);
    encode_purge(&mut body, 7, 40);
    encode_set(&mut body, 7, "vote", Some(b"yes"));
    encode_set(&mut body, 8, "vote", None);
    encode_remove(&mut body, 8);
    body
}

/// Returns well-formed input for each decoder, as seeds for fuzzing.
pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let mut page = vec![0; 512];
    let mut leaf = LeafMut::init(&mut page, Some(b"key 1"), Some(b"key 9"));
    leaf.insert(0, b"key 2", RowValue::Inline(b"two")).expect("an empty leaf has room");
    leaf.insert(1, b"key 3", RowValue::Inline(b"three")).expect("an empty leaf has room");
    let page_key = extent::PageKey { keyspace: KeyspaceId(2), page: PageId(5) };
    let mut extent = extent::Encoder::default().encode(&page, page_key, extent::Kind::Leaf).to_vec();
    extent::seal(&mut extent, Origin { database: DatabaseId(77), segment_use: SegmentUse(5) });
    let raw_node = [&[0, 0], &page[extent::HEADER_BYTES..]].concat();
    let [changes, entries, residents] = advice_samples();
    let built = b"\x00\x01\x01a\x01c\x08\x05\x02ab\x03xyz\x06\x02ac\x02uv\x07\x02ab\x01z\x09\x03abc\x00".to_vec();
    vec![
        ("superblock", sample_superblock().encode().to_vec()),
        ("catalogue", sample_catalogue().encode()),
        ("summary", sample_summary()),
        ("record", sample_record()),
        ("extent", extent),
        ("node", raw_node),
        ("node", built),
        ("advice", changes),
        ("advice", entries),
        ("advice", residents),
        ("changes", vec![0]),
        // Flips a bit in the last file, cuts the second, and lengthens the third.
        ("changes", vec![0, 2, 0, 16, 90, 3, 1, 2, 17, 40, 2, 3, 0, 0, 4, 1, 2, 3, 4]),
        ("changes", vec![0, 2, 3, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4, 16, 64, 1, 5, 0, 0]),
        ("changes", [&[1], &sample_record()[..]].concat()),
        ("changes", [&[2], &sample_record()[..]].concat()),
        ("logs", [&[1], &sample_log_changes()[..]].concat()),
        ("logs", [&[2], &crate::logs::fuzz_index_sample()[..]].concat()),
    ]
}
