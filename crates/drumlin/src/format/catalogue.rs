//! The catalogue of a checkpoint: its keyspaces, and the addresses of their page tables.
//!
//! The catalogue is a byte string that is divided into parts. Each part is an extent of kind `Catalogue` and begins
//! with a reference to the previous part, or with zeros in the first part. The superblock refers to the last part. So
//! the number of parts is limited only by the free space on the disk. Integers are little-endian. A list consists of
//! its length (4 bytes) and its items.
//!
//! ```text
//! next keyspace (4)   next value identity (8)
//! list of keyspaces:  id (4)   page size (4)   end of the page numbers (8)   leaves on disk (8)   rows in them (8)   1 if a row may have had a value on pages of its own (1)   length of the name (2)   name   list of chunks of the table's base image: address (8), 0 if all its pages are free   list of runs   list of origins, in a clone
//! origin:             id (4)   timestamp of the checkpoint that was cloned (8)   newest use of a segment in it (8)   newest use of a segment before it (8)
//! run:                root (4), 0 without rows   timestamp (8)   length of the key (2)   key below which its rows are folded and its pages free   list of removed ranges
//! removed range:      length of the lower key (2)   length of the upper key (2), 65535 without one   lower key   upper key
//! list of summaries:  address (8)
//! list of chunks of the table of segments:  address (8)   use (8)
//! list of orphans:    keyspace (4)   first page (4)   number of pages (4): values that only snapshots could still see; freed at the next opening
//! list of kept snapshots:  identity (8)   timestamp (8)   time of the call in milliseconds since 1970 (8)   length of its catalogue (8)   length of the name (2)   name   last part of its catalogue (16)
//! ```
//!
//! A kept snapshot has a catalogue of its own, divided into parts of kind `Kept` in the same way:
//!
//! ```text
//! next keyspace (4)   next value identity (8)
//! list of keyspaces:  as above
//! list of segments:   number (4): the segments that contain its page tables and pages
//! ```

use super::backup::SnapshotId;
use super::{ExtentAddress, ExtentRef, KeyspaceId, PageId, SegmentId, SegmentUse, Timestamp, ValueId};

/// The number of catalogue bytes in each part except the last.
pub(crate) const PART_BYTES: usize = 48 << 10;

/// The size of an empty catalogue, and of an orphan, in bytes.
pub(crate) const HEAD_BYTES: u64 = 32;
pub(crate) const ORPHAN_BYTES: u64 = 12;

/// The size of a run's entry without its key, in bytes.
pub(crate) const RUN_BYTES: u64 = 18;
/// The size of a removed range without its keys, in bytes.
pub(crate) const REMOVED_RANGE_BYTES: u64 = 4;
/// The value in place of the upper key's length if a removed range has no upper key.
pub(super) const NO_UPPER: u16 = u16::MAX;

/// Returns the size of a keyspace's entry without its list of chunks, in bytes.
fn entry_bytes(name_bytes: usize, origin_count: usize) -> u64 {
    (47 + name_bytes + origin_count * CloneOrigin::BYTES) as u64
}

/// Returns the bytes that a checkpoint needs for a keyspace besides its page table and the list of its chunks: its
/// entry in the catalogue, and the origins of a clone once more, in its page table.
pub(crate) fn keyspace_bytes(name_bytes: usize, origin_count: usize) -> u64 {
    entry_bytes(name_bytes, origin_count) + (origin_count * CloneOrigin::BYTES) as u64
}

/// Returns the size of a kept snapshot's entry, in bytes.
pub(crate) fn kept_bytes(name_bytes: usize) -> u64 {
    (8 + 8 + 8 + 8 + 2 + ExtentRef::BYTES) as u64 + name_bytes as u64
}

/// A checkpoint's catalogue. See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Catalogue {
    pub(crate) next_keyspace: u32,
    pub(crate) next_value: ValueId,
    pub(crate) keyspaces: Vec<KeyspaceEntry>,
    pub(crate) summaries: Vec<ExtentAddress>,
    /// The chunks of the table of segments.
    pub(crate) segments: Vec<ExtentRef>,
    pub(crate) orphans: Vec<Orphan>,
    pub(crate) kept: Vec<KeptEntry>,
}

/// A kept snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeptEntry {
    pub(crate) name: String,
    pub(crate) id: SnapshotId,
    pub(crate) timestamp: Timestamp,
    /// The time at which it was taken, in milliseconds since 1970.
    pub(crate) taken_at_ms: u64,
    /// The last part of its catalogue.
    pub(crate) catalogue: ExtentRef,
    pub(crate) catalogue_bytes: u64,
}

/// The catalogue of a kept snapshot. See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct KeptCatalogue {
    pub(crate) next_keyspace: u32,
    pub(crate) next_value: ValueId,
    pub(crate) keyspaces: Vec<KeyspaceEntry>,
    /// The segments that contain the snapshot's page tables and pages, in ascending order.
    pub(crate) segments: Vec<SegmentId>,
}

/// A keyspace and the base image of its table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyspaceEntry {
    pub(crate) id: KeyspaceId,
    pub(crate) page_bytes: u32,
    /// No page in use has this number or a higher one. An opening checks the memory of the table before reading it.
    pub(crate) page_end: u64,
    /// The number of leaves on disk, and of the rows in them. Only estimates depend on these numbers.
    pub(crate) leaf_count: u64,
    pub(crate) leaf_rows: u64,
    /// `false` if no row has ever had a value on pages of its own.
    pub(crate) has_values: bool,
    pub(crate) name: String,
    /// One address for each chunk.
    pub(crate) chunks: Vec<ExtentAddress>,
    /// The runs above the keyspace's tree, in ascending order of timestamps.
    pub(crate) runs: Vec<RunEntry>,
    /// The keyspaces whose extents a clone shares, newest first: that from which it was cloned, and those origins of
    /// that one whose extents it had.
    pub(crate) origins: Vec<CloneOrigin>,
}

/// A keyspace whose extents a clone shares. `space/clones.rs` explains the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CloneOrigin {
    pub(crate) keyspace: KeyspaceId,
    /// The checkpoint of this keyspace that was cloned.
    pub(crate) as_of: Timestamp,
    /// The newest use of a segment among those of the extents that are shared.
    pub(crate) last_use: SegmentUse,
    /// A use of a segment that is older than all extents that were written for the clone.
    pub(crate) own_after: SegmentUse,
}

impl CloneOrigin {
    /// The size in bytes.
    pub(crate) const BYTES: usize = 28;

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.keyspace.0.to_le_bytes());
        out.extend(self.as_of.0.to_le_bytes());
        out.extend(self.last_use.0.to_le_bytes());
        out.extend(self.own_after.0.to_le_bytes());
    }

    fn decode(reader: &mut Reader<'_>) -> Option<CloneOrigin> {
        let (keyspace, as_of) = (KeyspaceId(reader.u32()?), Timestamp(reader.u64()?));
        Some(CloneOrigin { keyspace, as_of, last_use: SegmentUse(reader.u64()?), own_after: SegmentUse(reader.u64()?) })
    }

    /// Appends the origins of a clone to the entries of its page table's first chunk.
    pub(crate) fn encode_all(origins: &[CloneOrigin], out: &mut Vec<u8>) {
        origins.iter().for_each(|origin| origin.encode(out));
    }

    /// Decodes the bytes after the entries of a page table's chunk. Returns `None` if they are malformed.
    pub(crate) fn decode_all(bytes: &[u8]) -> Option<Vec<CloneOrigin>> {
        let mut reader = Reader { bytes };
        let mut origins = Vec::with_capacity(bytes.len() / CloneOrigin::BYTES);
        while !reader.bytes.is_empty() {
            origins.push(CloneOrigin::decode(&mut reader)?);
        }
        Some(origins)
    }
}

impl KeyspaceEntry {
    /// Returns `true` if extents of the keyspace may have this id.
    pub(crate) fn is_stored_as(&self, id: KeyspaceId) -> bool {
        id == self.id || self.origins.iter().any(|origin| origin.keyspace == id)
    }
}

/// A run above a tree. `space/runs.rs` explains the fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RunEntry {
    pub(crate) root: PageId,
    pub(crate) timestamp: Timestamp,
    pub(crate) freed_to: Vec<u8>,
    /// The lower and upper key of each range.
    pub(crate) removed: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// A large value to which no row refers, described by its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Orphan {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) first_page: PageId,
    pub(crate) page_count: u32,
}

impl Catalogue {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.next_keyspace.to_le_bytes());
        out.extend(self.next_value.0.to_le_bytes());
        encode_keyspaces(&self.keyspaces, &mut out);
        out.extend((self.summaries.len() as u32).to_le_bytes());
        for address in &self.summaries {
            out.extend(address.to_bits().to_le_bytes());
        }
        out.extend((self.segments.len() as u32).to_le_bytes());
        for chunk in &self.segments {
            out.extend(chunk.to_bytes());
        }
        out.extend((self.orphans.len() as u32).to_le_bytes());
        for orphan in &self.orphans {
            out.extend(orphan.keyspace.0.to_le_bytes());
            out.extend(orphan.first_page.0.to_le_bytes());
            out.extend(orphan.page_count.to_le_bytes());
        }
        out.extend((self.kept.len() as u32).to_le_bytes());
        for kept in &self.kept {
            out.extend(kept.id.0.to_le_bytes());
            out.extend(kept.timestamp.0.to_le_bytes());
            out.extend(kept.taken_at_ms.to_le_bytes());
            out.extend(kept.catalogue_bytes.to_le_bytes());
            let name_bytes = u16::try_from(kept.name.len()).expect("names are limited");
            out.extend(name_bytes.to_le_bytes());
            out.extend(kept.name.as_bytes());
            out.extend(kept.catalogue.to_bytes());
        }
        out
    }

    /// Decodes a catalogue. Returns `None` if the bytes are malformed.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Catalogue> {
        let mut reader = Reader { bytes };
        let next_keyspace = reader.u32()?;
        let next_value = ValueId(reader.u64()?);
        let keyspaces = reader.list(Reader::keyspace)?;
        let summaries = reader.list(|reader| ExtentAddress::from_bits(reader.u64()?))?;
        let segments = reader.list(|reader| ExtentRef::from_bytes(reader.take(ExtentRef::BYTES)?))?;
        let orphans = reader.list(|reader| {
            Some(Orphan {
                keyspace: KeyspaceId(reader.u32()?),
                first_page: PageId(reader.u32()?),
                page_count: reader.u32()?,
            })
        })?;
        let kept = reader.list(|reader| {
            Some(KeptEntry {
                id: SnapshotId(reader.u64()?),
                timestamp: Timestamp(reader.u64()?),
                taken_at_ms: reader.u64()?,
                catalogue_bytes: reader.u64()?,
                name: reader.name()?,
                catalogue: ExtentRef::from_bytes(reader.take(ExtentRef::BYTES)?)?,
            })
        })?;
        let catalogue = Catalogue { next_keyspace, next_value, keyspaces, summaries, segments, orphans, kept };
        reader.bytes.is_empty().then_some(catalogue)
    }
}

impl KeptCatalogue {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.next_keyspace.to_le_bytes());
        out.extend(self.next_value.0.to_le_bytes());
        encode_keyspaces(&self.keyspaces, &mut out);
        out.extend((self.segments.len() as u32).to_le_bytes());
        for segment in &self.segments {
            out.extend(segment.0.to_le_bytes());
        }
        out
    }

    /// Decodes a catalogue. Returns `None` if the bytes are malformed.
    pub(crate) fn decode(bytes: &[u8]) -> Option<KeptCatalogue> {
        let mut reader = Reader { bytes };
        let (next_keyspace, next_value) = (reader.u32()?, ValueId(reader.u64()?));
        let keyspaces = reader.list(Reader::keyspace)?;
        let segments = reader.list(|reader| Some(SegmentId(reader.u32()?)))?;
        let is_sorted = segments.is_sorted_by(|one, next| one < next);
        (reader.bytes.is_empty() && is_sorted).then_some(KeptCatalogue {
            next_keyspace,
            next_value,
            keyspaces,
            segments,
        })
    }
}

fn encode_keyspaces(keyspaces: &[KeyspaceEntry], out: &mut Vec<u8>) {
    out.extend((keyspaces.len() as u32).to_le_bytes());
    for keyspace in keyspaces {
        out.extend(keyspace.id.0.to_le_bytes());
        out.extend(keyspace.page_bytes.to_le_bytes());
        out.extend(keyspace.page_end.to_le_bytes());
        out.extend(keyspace.leaf_count.to_le_bytes());
        out.extend(keyspace.leaf_rows.to_le_bytes());
        out.push(u8::from(keyspace.has_values));
        let name_bytes = u16::try_from(keyspace.name.len()).expect("names are limited");
        out.extend(name_bytes.to_le_bytes());
        out.extend(keyspace.name.as_bytes());
        out.extend((keyspace.chunks.len() as u32).to_le_bytes());
        for address in &keyspace.chunks {
            out.extend(address.to_bits().to_le_bytes());
        }
        out.extend((keyspace.runs.len() as u32).to_le_bytes());
        for RunEntry { root, timestamp, freed_to, removed } in &keyspace.runs {
            out.extend(root.0.to_le_bytes());
            out.extend(timestamp.0.to_le_bytes());
            out.extend((freed_to.len() as u16).to_le_bytes());
            out.extend(freed_to);
            out.extend((removed.len() as u32).to_le_bytes());
            for (lower, upper) in removed {
                out.extend((lower.len() as u16).to_le_bytes());
                out.extend(upper.as_ref().map_or(NO_UPPER, |upper| upper.len() as u16).to_le_bytes());
                out.extend(lower);
                out.extend(upper.iter().flatten());
            }
        }
        out.extend((keyspace.origins.len() as u32).to_le_bytes());
        CloneOrigin::encode_all(&keyspace.origins, out);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn name(&mut self) -> Option<String> {
        let name_bytes = usize::from(self.u16()?);
        Some(std::str::from_utf8(self.take(name_bytes)?).ok()?.to_owned())
    }

    fn keyspace(&mut self) -> Option<KeyspaceEntry> {
        let id = KeyspaceId(self.u32()?);
        let page_bytes = self.u32()?;
        let (page_end, leaf_count, leaf_rows) = (self.u64()?, self.u64()?, self.u64()?);
        let has_values = match self.take(1)? {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        let name = self.name()?;
        let chunks = self.list(|reader| {
            let bits = reader.u64()?;
            if bits == 0 { Some(ExtentAddress::NONE) } else { ExtentAddress::from_bits(bits) }
        })?;
        let runs = self.list(|reader| {
            let (root, timestamp) = (PageId(reader.u32()?), Timestamp(reader.u64()?));
            let key_bytes = usize::from(reader.u16()?);
            let freed_to = reader.take(key_bytes)?.to_vec();
            let removed = reader.list(|reader| {
                let (lower_bytes, upper_bytes) = (usize::from(reader.u16()?), reader.u16()?);
                let lower = reader.take(lower_bytes)?.to_vec();
                let upper = match upper_bytes {
                    NO_UPPER => None,
                    bytes => Some(reader.take(usize::from(bytes))?.to_vec()),
                };
                Some((lower, upper))
            })?;
            let is_something = root > PageId::ROOT || root == PageId::NONE && !removed.is_empty();
            is_something.then_some(RunEntry { root, timestamp, freed_to, removed })
        })?;
        let origins = self.list(CloneOrigin::decode)?;
        Some(KeyspaceEntry { id, page_bytes, page_end, leaf_count, leaf_rows, has_values, name, chunks, runs, origins })
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()?;
        // The count may be wrong. Don't allocate memory for it before reading the items.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Some(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A catalogue survives encoding. A truncated catalogue is refused without a panic.
    #[test]
    fn a_catalogue_survives_its_bytes() {
        let address = ExtentAddress::new(4096, 64, SegmentUse(1));
        let removed = vec![(b"a".to_vec(), Some(b"bc".to_vec())), (b"d".to_vec(), None)];
        let run = RunEntry { root: PageId(9), timestamp: Timestamp(77), freed_to: b"key".to_vec(), removed };
        let catalogue = Catalogue {
            next_keyspace: 3,
            next_value: ValueId(99),
            keyspaces: vec![KeyspaceEntry {
                id: KeyspaceId(2),
                page_bytes: 4096,
                page_end: 5,
                leaf_count: 7,
                leaf_rows: 9,
                has_values: true,
                name: "käse".into(),
                chunks: vec![address, ExtentAddress::NONE],
                runs: vec![run],
                origins: vec![CloneOrigin {
                    keyspace: KeyspaceId(1),
                    as_of: Timestamp(5),
                    last_use: SegmentUse(9),
                    own_after: SegmentUse(7),
                }],
            }],
            summaries: vec![ExtentAddress::new(8192, 640, SegmentUse(1))],
            segments: vec![ExtentRef { address, segment_use: SegmentUse(1) }, ExtentRef::NONE],
            orphans: vec![Orphan { keyspace: KeyspaceId(2), first_page: PageId(5), page_count: 6 }],
            kept: vec![KeptEntry {
                name: "märz".into(),
                id: SnapshotId(8),
                timestamp: Timestamp(5),
                taken_at_ms: 1_700_000_000_000,
                catalogue: ExtentRef { address, segment_use: SegmentUse(1) },
                catalogue_bytes: 900,
            }],
        };
        let kept = KeptCatalogue {
            next_keyspace: 3,
            next_value: ValueId(99),
            keyspaces: catalogue.keyspaces.clone(),
            segments: vec![SegmentId(4), SegmentId(9)],
        };
        let kept_bytes_all = kept.encode();
        assert_eq!(KeptCatalogue::decode(&kept_bytes_all), Some(kept));
        for end in 0..kept_bytes_all.len() {
            assert_eq!(KeptCatalogue::decode(&kept_bytes_all[..end]), None);
        }
        let bytes = catalogue.encode();
        let (addresses, extents) = (3 * size_of::<u64>(), 2 * ExtentRef::BYTES);
        let known_bytes = HEAD_BYTES
            + entry_bytes("käse".len(), 1)
            + RUN_BYTES
            + 3
            + 2 * REMOVED_RANGE_BYTES
            + 4
            + ORPHAN_BYTES
            + kept_bytes("märz".len());
        assert_eq!(bytes.len() as u64, known_bytes + (addresses + extents) as u64);
        assert_eq!(Catalogue::decode(&bytes), Some(catalogue));
        for end in 0..bytes.len() {
            assert_eq!(Catalogue::decode(&bytes[..end]), None);
        }
    }
}
