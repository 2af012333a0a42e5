//! Compares `docs/format.md` with the code: every row of its tables, and every field of the code.

use std::path::Path;

use super::backup::SnapshotId;
use super::catalogue::{Catalogue, CloneOrigin, KeptEntry, KeyspaceEntry, Orphan, RunEntry};
use super::extent::Kind;
use super::record::{AttachedRoot, Attachment, OldValue, Operation, SegmentRun};
use super::{
    BLOCK_BYTES, ExtentAddress, ExtentRef, FORMAT_VERSION, KeyspaceId, PageId, SegmentId, SegmentUse, Timestamp,
    ValueId, advice, changes, extent, log, node, record, summary,
};
use super::{LOG_STREAM_COUNT_MAX, superblock, superblock::INCARNATION_COUNT_MAX};

/// Returns the rows of the tables under a heading. Each row is a list of cells without surrounding blanks.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut sections = text.split("\n#").map(|section| section.trim_start_matches('#').trim_start());
    let section = sections.find(|section| section.lines().next() == Some(heading));
    let section = section.unwrap_or_else(|| panic!("docs/format.md has no section {heading:?}"));
    section
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect())
        .filter(|row: &Vec<String>| row[0].starts_with(|c: char| c.is_ascii_digit()))
        .collect()
}

/// Compares offsets and sizes with constants. A field's size is the distance to the next field. Each description must
/// contain the given word, so the comparison detects swapped rows.
fn compare(heading: &str, fields: &[(usize, &str)], end: usize) {
    let rows = rows(heading);
    assert_eq!(rows.len(), fields.len(), "{heading}: the document has {} rows", rows.len());
    for (index, (row, &(offset, word))) in rows.iter().zip(fields).enumerate() {
        let next = fields.get(index + 1).map_or(end, |&(next, _)| next);
        assert_eq!(row[0], offset.to_string(), "{heading}: offset of {word:?}");
        assert_eq!(row[1], (next - offset).to_string(), "{heading}: size of {word:?}");
        assert!(row[2].contains(word), "{heading}: {:?} does not speak of {word:?}", row[2]);
    }
}

/// Compares the fixed fields of an encoded sample with the encoded numbers. In the document, fields of variable length
/// come after the fixed fields, and their size is given as a letter.
fn compare_sample(heading: &str, sample: &[u8], values: &[u64]) {
    let rows = rows(heading);
    let fixed: Vec<_> = rows.iter().filter(|row| row[1].parse::<usize>().is_ok()).collect();
    assert_eq!(fixed.len(), values.len(), "{heading}: the document has {} fixed fields", fixed.len());
    let mut end = 0;
    for (row, &value) in fixed.iter().zip(values) {
        let (offset, size): (usize, usize) = (row[0].parse().unwrap(), row[1].parse().unwrap());
        assert_eq!(offset, end, "{heading}: a gap before {row:?}");
        end = offset + size;
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&sample[offset..end]);
        assert_eq!(u64::from_le_bytes(bytes), value, "{heading}: {row:?}");
    }
}

/// The structures with fixed fields are laid out as documented.
#[test]
fn fixed_structures_are_as_documented() {
    use superblock as s;
    let fields = [
        (s::MAGIC_OFFSET, "DRUMLIN"),
        (s::VERSION_OFFSET, "version"),
        (s::ZERO_1_OFFSET, "zero"),
        (s::CHECKSUM_OFFSET, "XXH3"),
        (s::SEQUENCE_OFFSET, "sequence number of this superblock"),
        (s::DATABASE_OFFSET, "identity"),
        (s::SEGMENT_BYTES_OFFSET, "segment size"),
        (s::CHECKPOINT_OFFSET, "sequence number of the checkpoint"),
        (s::TIMESTAMP_OFFSET, "timestamp"),
        (s::EPOCH_OFFSET, "epoch"),
        (s::CATALOGUE_BYTES_OFFSET, "length of the catalogue"),
        (s::INCARNATION_COUNT_OFFSET, "number of incarnations"),
        (s::LOG_RANGE_COUNT_OFFSET, "number of the log's ranges"),
        (s::INCARNATIONS_OFFSET, "incarnations"),
        (s::CATALOGUE_OFFSET, "last part"),
        (s::LOG_RANGES_OFFSET, "ranges"),
        (s::CLOSED_OFFSET, "1"),
        (s::CHECKPOINT_ID_OFFSET, "identity"),
        (s::FEATURES_TO_READ_OFFSET, "to read"),
        (s::FEATURES_TO_WRITE_OFFSET, "to write"),
        (s::FEATURES_IGNORABLE_OFFSET, "may ignore"),
        (s::ZERO_2_OFFSET, "zero"),
    ];
    compare("Superblock", &fields, BLOCK_BYTES);
    compare("An incarnation", &[(0, "number"), (4, "first timestamp")], s::INCARNATION_BYTES);
    compare("A range of the log", &[(0, "stream"), (8, "from"), (16, "to")], s::LOG_RANGE_BYTES);

    use super::logs as l;
    let fields = [
        (l::MAGIC_OFFSET, "DRUMLOGS"),
        (l::VERSION_OFFSET, "version"),
        (l::ZERO_1_OFFSET, "zero"),
        (l::CHECKSUM_OFFSET, "XXH3"),
        (l::SEQUENCE_OFFSET, "sequence number"),
        (l::FOLDER_OFFSET, "identity"),
        (l::INDEX_OFFSET, "number of the index"),
        (l::INDEX_BYTES_OFFSET, "bytes of the file"),
        (l::COVERED_OFFSET, "covers"),
        (l::POSITION_OFFSET, "position in the stream"),
        (l::INCARNATION_COUNT_OFFSET, "number of incarnations"),
        (l::CLOSED_OFFSET, "closed"),
        (l::FROM_OFFSET, "from which"),
        (l::TO_OFFSET, "up to which"),
        (l::INCARNATIONS_OFFSET, "incarnations"),
        (l::ZERO_2_OFFSET, "zero"),
    ];
    compare("Head of a folder of logs", &fields, BLOCK_BYTES);
    let fields = [
        (l::CHUNK_CHECKSUM_OFFSET, "XXH3"),
        (l::CHUNK_USED_OFFSET, "bytes of the index in this chunk"),
        (l::CHUNK_ZERO_OFFSET, "zero"),
        (l::CHUNK_CONTENT_OFFSET, "bytes of the index"),
    ];
    compare("Chunk of an index", &fields, l::CHUNK_BYTES);
    compare("Part of an entry", &[(0, "position"), (8, "bytes"), (12, "XXH3")], l::PART_BYTES);
    let mut sample = Vec::new();
    l::encode_entry(&mut sample, b"payload", false, 5);
    compare_sample("Entry of a record", &sample, &[super::checksum(b"payload", 5), 7, 0]);

    use extent as e;
    let fields = [
        (e::CHECKSUM_OFFSET, "XXH3"),
        (e::USE_OFFSET, "use"),
        (e::KEYSPACE_OFFSET, "keyspace"),
        (e::PAGE_OFFSET, "page"),
        (e::STORED_BYTES_OFFSET, "stored"),
        (e::RAW_BYTES_OFFSET, "decompressed"),
        (e::KIND_OFFSET, "kind"),
        (e::CODEC_OFFSET, "codec"),
        (e::DATABASE_OFFSET, "database"),
    ];
    compare("Extent header", &fields, e::HEADER_BYTES);
    compare("Chunk of a value", &[(0, "extent header"), (e::HEADER_BYTES, "identity")], e::VALUE_BYTES_OFFSET);
    let fields = [(0, "extent header"), (e::HEADER_BYTES, "addresses")];
    compare("Chunk of a page table", &fields, e::HEADER_BYTES + e::TABLE_PAGES * 8);
    let fields = [(0, "extent header"), (e::HEADER_BYTES, "uses")];
    compare("Chunk of the table of segments", &fields, e::HEADER_BYTES + e::SEGMENT_TABLE_ENTRIES * 8);
    compare("Reference to an extent", &[(0, "address"), (8, "use")], ExtentRef::BYTES);
    let fields =
        [(0, "extent header"), (e::HEADER_BYTES, "part before it"), (e::HEADER_BYTES + ExtentRef::BYTES, "catalogue")];
    compare("Part of the catalogue", &fields, e::HEADER_BYTES + ExtentRef::BYTES + super::catalogue::PART_BYTES);

    use advice as a;
    let fields = [
        (a::CHECKSUM_OFFSET, "XXH3"),
        (a::MAGIC_OFFSET, "DRUMADV"),
        (a::VERSION_OFFSET, "version"),
        (a::BYTES_OFFSET, "bytes of the part"),
        (a::DATABASE_OFFSET, "identity of the database"),
        (a::CHECKPOINT_ID_OFFSET, "identity of the checkpoint"),
        (a::WRITING_OFFSET, "this writing"),
        (a::NUMBER_OFFSET, "number of the part"),
        (a::IS_LAST_OFFSET, "last part"),
        (a::KIND_OFFSET, "kind"),
        (a::ITEM_COUNT_OFFSET, "number of items"),
        (a::BASE_OFFSET, "base"),
        (a::KEYSPACE_OFFSET, "keyspace"),
        (a::ITEMS_OFFSET, "items"),
    ];
    compare("Part of an advice file", &fields, a::PART_BYTES_MAX);
    let fields = [
        (a::CHANGE_TIMESTAMP_OFFSET, "timestamp"),
        (a::CHANGE_KEY_BYTES_OFFSET, "length"),
        (a::CHANGE_IS_INSERT_OFFSET, "1"),
        (a::CHANGE_ZERO_OFFSET, "zero"),
    ];
    compare("A change", &fields, a::CHANGE_HEAD_BYTES);
    let fields = [(a::ENTRY_PAGE_OFFSET, "page"), (a::ENTRY_ROWS_OFFSET, "rows")];
    compare("An entry", &fields, a::ENTRY_BYTES);
    let fields = [
        (a::RESIDENT_KEYSPACE_OFFSET, "keyspace"),
        (a::RESIDENT_PAGE_OFFSET, "page"),
        (a::RESIDENT_FRAME_BYTES_OFFSET, "frame"),
        (a::RESIDENT_VALUE_OFFSET, "value"),
    ];
    compare("A resident page", &fields, a::RESIDENT_BYTES);

    use summary as y;
    let fields = [
        (y::KEYSPACE_OFFSET, "keyspace"),
        (y::PAGE_OFFSET, "page"),
        (y::ADDRESS_OFFSET, "address"),
        (y::SEQUENCE_OFFSET, "sequence"),
        (y::ZERO_OFFSET, "zero"),
    ];
    compare("Entry of a summary", &fields, y::TABLE_CHANGE_BYTES);
}

/// The parts of a node are laid out as documented.
#[test]
fn nodes_are_as_documented() {
    use node as n;
    let fields = [
        (0, "extent header"),
        (n::NEWEST_OFFSET, "newest commit"),
        (n::SLOT_COUNT_OFFSET, "slots"),
        (n::HEAP_BYTES_OFFSET, "heap"),
        (n::GARBAGE_BYTES_OFFSET, "garbage"),
        (n::PREFIX_BYTES_OFFSET, "prefix"),
        (n::SHARED_BYTES_OFFSET, "shared"),
        (n::LOWER_BYTES_OFFSET, "lower fence"),
        (n::UPPER_BYTES_OFFSET, "upper fence"),
        (n::LEVEL_OFFSET, "level"),
        (n::RUN_OFFSET, "run"),
    ];
    compare("Node header", &fields, n::SLOTS_OFFSET);
    let fields =
        [(n::SLOT_HEAD_OFFSET, "head"), (n::SLOT_ROW_OFFSET, "offset"), (n::SLOT_SUFFIX_BYTES_OFFSET, "suffix")];
    compare("Slot", &fields, n::SLOT_BYTES);
    compare("Row of an inner node, after the suffix", &[(n::CHILD_PAGE_OFFSET, "page")], n::CHILD_BYTES);
    compare("Row of a leaf, after the suffix", &[(0, "length of the value")], n::VALUE_LENGTH_BYTES);
    let fields = [
        (n::LARGE_LENGTH_OFFSET, "length"),
        (n::LARGE_ID_OFFSET, "identity"),
        (n::LARGE_PAGE_OFFSET, "first chunk"),
        (n::LARGE_CHUNKS_OFFSET, "number of chunks"),
    ];
    compare("Reference of a large value", &fields, n::LARGE_REF_BYTES);
}

/// The headers of the log are laid out as documented.
#[test]
fn the_log_is_as_documented() {
    use log as l;
    let fields = [
        (l::MAGIC_OFFSET, "DRUMLOG"),
        (l::VERSION_OFFSET, "version"),
        (l::STREAM_OFFSET, "stream"),
        (l::FILLED_OFFSET, "written"),
        (l::ZERO_OFFSET, "zero"),
        (l::SLOT_OFFSET, "slot"),
        (l::INCARNATION_OFFSET, "incarnation"),
        (l::DATABASE_OFFSET, "identity"),
        (l::USE_OFFSET, "use number"),
        (l::START_OFFSET, "position"),
        (l::WINDOW_BYTES_OFFSET, "bytes of the window"),
        (l::FIRST_OFFSET, "lowest timestamp"),
        (l::HORIZON_OFFSET, "durable horizon"),
        (l::CHECKPOINT_OFFSET, "checkpoint"),
        (l::CHECKSUM_OFFSET, "XXH3"),
    ];
    compare("Log segment header", &fields, l::SEGMENT_HEADER_BYTES);
    let fields = [
        (l::RECORD_MAGIC_OFFSET, "dRec"),
        (l::HORIZON_DISTANCE_OFFSET, "durable horizon"),
        (l::TIMESTAMP_OFFSET, "timestamp"),
        (l::RECORD_TIME_OFFSET, "time"),
        (l::FLAGS_OFFSET, "flags"),
        (l::RECORD_INCARNATION_OFFSET, "incarnation"),
        (l::BODY_BYTES_OFFSET, "bytes of the body"),
        (l::BODY_CHECKSUM_OFFSET, "XXH3-64 of the body"),
        (l::RECORD_CHECKSUM_OFFSET, "seed"),
    ];
    compare("Record header", &fields, l::RECORD_HEADER_BYTES);

    use changes as c;
    let fields = [
        (c::MAGIC_OFFSET, "DRUMCHG"),
        (c::VERSION_OFFSET, "version"),
        (c::OLD_VALUES_OFFSET, "old values"),
        (c::DATABASE_OFFSET, "identity of the database"),
        (c::NUMBER_OFFSET, "number"),
        (c::AFTER_OFFSET, "timestamp"),
        (c::TIME_OFFSET, "time"),
        (c::KEPT_BYTES_OFFSET, "bytes"),
        (c::KEPT_TIME_OFFSET, "time"),
        (c::PREVIOUS_END_OFFSET, "offset in the file before"),
        (c::HEADER_CHECKSUM_OFFSET, "XXH3"),
    ];
    compare("Header of a change file", &fields, c::FILE_HEADER_BYTES);
    let fields = [
        (c::CHECKSUM_OFFSET, "XXH3"),
        (c::RECORD_MAGIC_OFFSET, "dChg"),
        (c::KIND_OFFSET, "kind"),
        (c::TIMESTAMP_OFFSET, "timestamp"),
        (c::RECORD_TIME_OFFSET, "time"),
        (c::BODY_BYTES_OFFSET, "bytes of the body"),
        (c::RECORD_ZERO_OFFSET, "zero"),
    ];
    compare("Record of a change file", &fields, c::RECORD_HEADER_BYTES);
}

/// The header of an archive file is laid out as documented.
#[test]
fn archive_files_are_as_documented() {
    use super::archive as a;
    let fields = [
        (a::MAGIC_OFFSET, "DRUMARC"),
        (a::VERSION_OFFSET, "version"),
        (a::ZERO_OFFSET, "zero"),
        (a::DATABASE_OFFSET, "identity"),
        (a::CHAIN_OFFSET, "chain"),
        (a::NUMBER_OFFSET, "number"),
        (a::AFTER_OFFSET, "timestamp"),
        (a::TIME_OFFSET, "time"),
        (a::LIMIT_OFFSET, "bytes"),
        (a::FROM_OFFSET, "timestamp"),
        (a::HEADER_CHECKSUM_OFFSET, "XXH3"),
    ];
    compare("Header of an archive file", &fields, a::FILE_HEADER_BYTES);
}

/// The operations of a record's body are laid out as documented. The encoded numbers are all different, so swapped
/// fields are detected.
#[test]
fn operations_are_as_documented() {
    let extent = ExtentRef { address: ExtentAddress::new(4096, 64, SegmentUse(1)), segment_use: SegmentUse(1) };
    let samples = [
        ("1 put", Operation::Put { key: b"abc", value: b"value" }, vec![1, 9, 3, 5]),
        (
            "2 put large",
            Operation::PutLarge { key: b"abc", length: 77, value_id: ValueId(88), extents: vec![extent] },
            vec![2, 9, 3, 77, 88, 1],
        ),
        ("3 remove", Operation::Remove { key: b"abc" }, vec![3, 9, 3]),
        ("4 create", Operation::Create { page_bytes: 4096, name: "name" }, vec![4, 9, 4096, 4]),
        ("5 drop", Operation::Drop, vec![5, 9]),
        (
            "6 attach",
            Operation::Attach(Attachment {
                rows: 1000,
                root: AttachedRoot::Tree(extent),
                images: vec![(7, extent)],
                segments: vec![SegmentRun { first: SegmentId(1), count: 2, segment_use: SegmentUse(1) }; 3],
            }),
            vec![6, 9, 1000, extent.address.to_bits(), 1, 1, 3],
        ),
        ("7 commit prepared", Operation::CommitPrepared { id: b"abc", changes: b"" }, vec![7, 9, 3]),
        ("8 put stored", Operation::PutStored { key: b"abc", number: 77 }, vec![8, 9, 3, 77]),
        ("9 lock", Operation::Lock { key: b"abc", is_shared: true }, vec![9, 9, 3, 1]),
        ("10 rename", Operation::Rename { name: "name" }, vec![10, 9, 4]),
        (
            "11 attach run",
            Operation::Attach(Attachment {
                rows: 1000,
                root: AttachedRoot::Run(PageId(77)),
                images: vec![(7, extent)],
                segments: vec![SegmentRun { first: SegmentId(1), count: 2, segment_use: SegmentUse(1) }; 3],
            }),
            vec![11, 9, 1000, 77, 1, 3],
        ),
        ("12 remove range", Operation::RemoveRange { lower: b"abc", upper: Some(b"bcde") }, vec![12, 9, 3, 4]),
        (
            "20 commit prepared with changes",
            Operation::CommitPrepared { id: b"abc", changes: b"abcd" },
            vec![20, 9, 3, 4],
        ),
        (
            "21 put reference",
            Operation::PutReference { key: b"abc", length: 77, value_id: ValueId(88) },
            vec![21, 9, 3, 77, 88],
        ),
        ("22 loaded", Operation::Loaded { rows: 1000, first_key: b"abc", last_key: b"bcde" }, vec![22, 9, 1000, 3, 4]),
        (
            "23 clone",
            Operation::Clone { from: KeyspaceId(8), as_of: Timestamp(77), name: "name" },
            vec![23, 9, 8, 77, 4],
        ),
        ("24 old value", Operation::OldValue(OldValue::Value(b"abc")), vec![24, 9, 1, 3]),
        ("25 put in parts", Operation::PutInParts { key: b"abc", length: 77 }, vec![25, 9, 3, 77]),
        ("26 value part", Operation::ValuePart { bytes: b"abcd" }, vec![26, 9, 4]),
    ];
    for (heading, operation, values) in samples {
        let mut body = Vec::new();
        record::encode(KeyspaceId(9), &operation, &mut body);
        compare_sample(heading, &body, &values);
    }
}

/// The catalogue is laid out as documented. Each list has one item.
#[test]
fn the_catalogue_is_as_documented() {
    let (address, other) = (ExtentAddress::new(4096, 64, SegmentUse(1)), ExtentAddress::new(8192, 640, SegmentUse(2)));
    let chunk = ExtentRef { address: other, segment_use: SegmentUse(2) };
    let removed = vec![(b"a".to_vec(), Some(b"bc".to_vec()))];
    let (last_use, own_after) = (SegmentUse(80), SegmentUse(70));
    let origin = CloneOrigin { keyspace: KeyspaceId(3), as_of: Timestamp(60), last_use, own_after };
    let entry = KeyspaceEntry {
        id: KeyspaceId(7),
        page_bytes: 4096,
        page_end: 33,
        leaf_count: 640,
        leaf_rows: 99,
        has_values: true,
        name: "name".into(),
        chunks: vec![address],
        runs: vec![RunEntry { root: PageId(6), timestamp: Timestamp(55), freed_to: b"key".to_vec(), removed }],
        origins: vec![origin],
    };
    let orphan = Orphan { keyspace: KeyspaceId(7), first_page: PageId(5), page_count: 6 };
    let catalogue = Catalogue {
        next_keyspace: 8,
        next_value: ValueId(99),
        keyspaces: vec![entry],
        summaries: vec![other],
        segments: vec![chunk],
        orphans: vec![orphan],
        kept: vec![KeptEntry {
            name: "kept".into(),
            id: SnapshotId(8),
            timestamp: Timestamp(54),
            taken_at_ms: 1_700_000_000_000,
            catalogue: chunk,
            catalogue_bytes: 900,
        }],
    };
    let bytes = catalogue.encode();
    compare_sample("Head of the catalogue", &bytes, &[8, 99, 1]);
    // The keyspace is preceded by 16 bytes. Its name occupies 4 bytes and its list of chunks 4 + 8. The remaining lists
    // begin with their lengths.
    compare_sample("A keyspace", &bytes[16..], &[7, 4096, 33, 640, 99, 1, 4]);
    assert_eq!(bytes[51..55], *b"name");
    assert_eq!(bytes[55..67], [&1u32.to_le_bytes()[..], &address.to_bits().to_le_bytes()].concat());
    assert_eq!(bytes[67..71], 1u32.to_le_bytes());
    compare_sample("A run above a tree", &bytes[71..], &[6, 55, 3]);
    assert_eq!(bytes[85..88], *b"key");
    assert_eq!(bytes[88..92], 1u32.to_le_bytes());
    compare_sample("A removed range", &bytes[92..], &[1, 2]);
    assert_eq!(bytes[96..99], *b"abc");
    assert_eq!(bytes[99..103], 1u32.to_le_bytes());
    compare_sample("An origin of a clone", &bytes[103..], &[3, 60, 80, 70]);
    assert_eq!(bytes[135..143], other.to_bits().to_le_bytes());
    compare_sample("Reference to an extent", &bytes[147..], &[other.to_bits(), 2]);
    compare_sample("An orphan", &bytes[167..], &[7, 5, 6]);
    assert_eq!(bytes[179..183], 1u32.to_le_bytes());
    compare_sample("A kept snapshot", &bytes[183..], &[8, 54, 1_700_000_000_000, 900, 4]);
    assert_eq!(bytes[217..], [b"kept", &chunk.to_bytes()[..]].concat());
    assert_eq!(bytes.len(), 237);
}

/// The bits of an address, the kinds of extents and the numbers in the text are as documented.
#[test]
fn numbers_are_as_documented() {
    let (start, length, stamp) = (ExtentAddress::START_BITS, ExtentAddress::LENGTH_BITS, ExtentAddress::STAMP_BITS);
    let bits: Vec<String> = rows("Address").iter().map(|row| row[0].clone()).collect();
    let expected =
        [(0, start), (start, length), (start + length, stamp), (ExtentAddress::BITS, 64 - ExtentAddress::BITS)];
    assert_eq!(bits, expected.map(|(from, count)| format!("{from}..{}", from + count)));

    let kinds = rows("Kinds of extents");
    for byte in 0..=u8::MAX {
        let documented = kinds.iter().find(|row| row[0] == byte.to_string());
        let name = Kind::from_byte(byte).map(|kind| format!("{kind:?}").to_lowercase());
        assert_eq!(documented.map(|row| row[1].clone()), name, "kind {byte}");
    }

    let sizes: Vec<_> = rows("Sizes and limits").into_iter().map(|row| (row[1].clone(), row[0].clone())).collect();
    let expected = [
        ("format version", FORMAT_VERSION as usize),
        ("bytes of a block", BLOCK_BYTES),
        ("offset of the first superblock", superblock::SLOT_OFFSETS[0] as usize),
        ("offset of the second superblock", superblock::SLOT_OFFSETS[1] as usize),
        ("incarnations in a superblock, at most", INCARNATION_COUNT_MAX),
        ("streams of a log, at most", LOG_STREAM_COUNT_MAX as usize),
        ("unit of addresses in bytes", ExtentAddress::UNIT_BYTES as usize),
        ("bytes of an extent, at most", ExtentAddress::EXTENT_BYTES_MAX as usize),
        ("smallest page in bytes", node::PAGE_BYTES_MIN),
        ("largest page in bytes", node::PAGE_BYTES_MAX),
        ("pages in a chunk of a page table", extent::TABLE_PAGES),
        ("segments in a chunk of their table", extent::SEGMENT_TABLE_ENTRIES),
        ("bytes of the catalogue in each part but the last", super::catalogue::PART_BYTES),
        ("alignment of log records in bytes", log::RECORD_ALIGNMENT_BYTES),
    ];
    assert_eq!(sizes, expected.map(|(what, number)| (what.to_owned(), number.to_string())));
}
