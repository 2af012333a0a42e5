//! The body of a log record: the changes of one commit. It contains the complete new values, not differences from the
//! old values.
//!
//! The body is a list of operations. Each begins with a kind (1 byte) and a keyspace (4), followed by:
//!
//! ```text
//! 1 put          key length (2)  value length (4)  key  value
//! 2 put large    key length (2)  length (8)  identity (8)  chunks (4)  key  address (8) and use of the segment (8) of each chunk
//! 3 remove       key length (2)  key
//! 4 create       page size (4)  name length (2)  name
//! 5 drop
//! 6 attach       rows (8)  root (16)  chunks (4)  runs (4)
//!                of each chunk: number (4), address and use of its segment (16)
//!                of each run of segments: first (4), how many (4), use of the first (8)
//! 7 commit prepared   id length (2)  id
//! 8 put stored   key length (2)  number (4)  key
//! 9 lock         key length (2)  mode (1): 1 shared, 2 exclusive  key
//! 10 rename      name length (2)  name
//! 11 attach run  rows (8)  page of the root (4)  and the rest as in 6: the pages become a run above the keyspace's tree
//! 12 remove range  length of the lower key (2)  length of the upper key (2), 65535 without one  lower key  upper key
//! 20 commit prepared with changes  id length (2)  length of the changes (4)  id  changes: operations 1, 3 and 21
//! 21 put reference  key length (2)  length (8)  identity (8)  key
//! 22 loaded      rows (8)  length of the first key (2) and of the last key (2)  first key  last key
//! 23 clone       keyspace of which it is a clone (4)  timestamp of the newest checkpoint (8)  name length (2)  name
//! 24 old value   kind (1): 0 absent, 1 inline, 2 large  length (8)  value, if it is inline
//! 25 put in parts  key length (2)  length (8)  key
//! 26 value part  length (4)  bytes
//! ```
//!
//! Within a keyspace, the keys of a record ascend, without duplicates. Operations 8 and 9 occur only in the rows of
//! prepared transactions ([`prepared`](super::prepared)), and 21 only in change files ([`changes`](super::changes)) and
//! within operation 20. Operation 22 follows each 6 and 11, and stands for it in change files. Operation 24 may follow
//! each 1, 2, 3 and 21. Operations 25 and 26 occur only in archive files ([`archive`](super::archive)). A record that
//! creates, renames or drops keyspaces does nothing else. Its operations take effect together: two keyspaces may take
//! each other's names. A clone is the only operation of its record. Removed ranges come before all rows of a record,
//! because the rows that it puts into such a range stay.

use super::node::is_value_length;
use super::{ExtentRef, KeyspaceId, PageId, SegmentId, SegmentUse, Timestamp, ValueId};

const PUT: u8 = 1;
const PUT_LARGE: u8 = 2;
const REMOVE: u8 = 3;
const CREATE: u8 = 4;
const DROP: u8 = 5;
const ATTACH: u8 = 6;
const COMMIT_PREPARED: u8 = 7;
const PUT_STORED: u8 = 8;
const LOCK: u8 = 9;
const RENAME: u8 = 10;
const ATTACH_RUN: u8 = 11;
const REMOVE_RANGE: u8 = 12;
const COMMIT_PREPARED_WITH_CHANGES: u8 = 20;
const PUT_REFERENCE: u8 = 21;
const LOADED: u8 = 22;
const CLONE: u8 = 23;
const OLD_VALUE: u8 = 24;
const PUT_IN_PARTS: u8 = 25;
const VALUE_PART: u8 = 26;
/// The value in place of the upper key's length if a removed range has no upper key.
const NO_UPPER: u16 = u16::MAX;

/// The kinds of an old value.
const OLD_ABSENT: u8 = 0;
const OLD_INLINE: u8 = 1;
const OLD_LARGE: u8 = 2;

/// The modes of a lock.
const LOCK_SHARED: u8 = 1;
const LOCK_EXCLUSIVE: u8 = 2;

/// One operation of a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Operation<'a> {
    Put {
        key: &'a [u8],
        value: &'a [u8],
    },
    PutLarge {
        key: &'a [u8],
        length: u64,
        value_id: ValueId,
        extents: Vec<ExtentRef>,
    },
    Remove {
        key: &'a [u8],
    },
    /// Removes the rows from `lower`, inclusive, to `upper`, exclusive.
    RemoveRange {
        lower: &'a [u8],
        upper: Option<&'a [u8]>,
    },
    Create {
        page_bytes: u32,
        name: &'a str,
    },
    Drop,
    Attach(Attachment),
    /// Makes the changes of a prepared transaction, and removes its rows from the keyspace of prepared transactions.
    ///
    /// If the database keeps its changes for readers, `changes` has them as operations: put, remove, put reference.
    CommitPrepared {
        id: &'a [u8],
        changes: &'a [u8],
    },
    /// Puts a large value that a prepared transaction has stored under this number.
    PutStored {
        key: &'a [u8],
        number: u32,
    },
    /// A row that a prepared transaction has locked and not changed.
    Lock {
        key: &'a [u8],
        is_shared: bool,
    },
    Rename {
        name: &'a str,
    },
    /// Puts a large value, whose bytes are elsewhere.
    PutReference {
        key: &'a [u8],
        length: u64,
        value_id: ValueId,
    },
    /// Rows whose bytes are in no record: those of a bulk load, or the changes of a large transaction.
    Loaded {
        rows: u64,
        first_key: &'a [u8],
        last_key: &'a [u8],
    },
    /// Creates a keyspace with the rows that `from` had as of a timestamp, which is that of the newest checkpoint.
    Clone {
        from: KeyspaceId,
        as_of: Timestamp,
        name: &'a str,
    },
    /// The value that the row of the operation before had before the commit.
    OldValue(OldValue<'a>),
    /// Puts a large value. Its bytes are in the operations that follow, which are [parts](Operation::ValuePart).
    PutInParts {
        key: &'a [u8],
        length: u64,
    },
    /// The next bytes of a value that is put in parts.
    ValuePart {
        bytes: &'a [u8],
    },
}

/// The value of a row before a commit that changes the row, for the readers of changes.
///
/// ```
/// use drumlin::{Config, OldValue, Retention};
///
/// let config = Config::in_memory().keep_changes(Retention::bytes(1 << 20).with_old_values());
/// let db = config.open("")?;
/// let stock = db.keyspace("stock")?;
/// stock.insert("apples", "7")?;
/// let mut changes = db.changes(db.snapshot().timestamp())?;
/// stock.insert("apples", "8")?;
/// let commit = changes.next().expect("it waits")?;
/// let (_, old) = commit.changes_with_old_values().next().expect("a change");
/// assert_eq!(old, Some(OldValue::Value(b"7")));
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OldValue<'a> {
    /// There was no row.
    Absent,
    /// The value.
    Value(&'a [u8]),
    /// The length of a value that had pages of its own: usually one of more than a quarter of a page. The value itself
    /// is not kept.
    Large {
        /// Its length in bytes.
        length: u64,
    },
}

/// The pages of a bulk load, which become the pages of a keyspace without rows, or a run above its tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Attachment {
    pub(crate) rows: u64,
    pub(crate) root: AttachedRoot,
    /// The chunks of the keyspace's page table that contain the addresses of all pages except a root that is page 1, in
    /// ascending order: the number and the image of each chunk.
    pub(crate) images: Vec<(u32, ExtentRef)>,
    /// The segments that contain all of these extents, in ascending order.
    pub(crate) segments: Vec<SegmentRun>,
}

/// The root of an attached tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AttachedRoot {
    /// The root of the keyspace, which has no rows.
    Tree(ExtentRef),
    /// The root of a run.
    Run(PageId),
}

impl AttachedRoot {
    fn bytes(&self) -> usize {
        match self {
            AttachedRoot::Tree(_) => ExtentRef::BYTES,
            AttachedRoot::Run(_) => 4,
        }
    }
}

/// Consecutive segments with consecutive uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentRun {
    pub(crate) first: SegmentId,
    pub(crate) count: u32,
    /// The use number of the first segment.
    pub(crate) segment_use: SegmentUse,
}

impl Attachment {
    /// Returns the use of a segment, or `None` if the attachment does not list the segment.
    pub(crate) fn use_of(&self, segment: SegmentId) -> Option<SegmentUse> {
        let after = self.segments.partition_point(|run| run.first <= segment);
        let run = self.segments.get(after.checked_sub(1)?)?;
        let offset = segment.0 - run.first.0;
        (offset < run.count).then(|| SegmentUse(run.segment_use.0 + u64::from(offset)))
    }

    /// Combines segments into runs. The segments must be in ascending order.
    pub(crate) fn runs(segments: impl IntoIterator<Item = (SegmentId, SegmentUse)>) -> Vec<SegmentRun> {
        let mut runs: Vec<SegmentRun> = Vec::new();
        for (segment, segment_use) in segments {
            match runs.last_mut() {
                Some(run)
                    if run.first.0 + run.count == segment.0
                        && run.segment_use.0 + u64::from(run.count) == segment_use.0 =>
                {
                    run.count += 1;
                }
                _ => runs.push(SegmentRun { first: segment, count: 1, segment_use }),
            }
        }
        runs
    }
}

/// The size of each operation in bytes, not counting its key, value and addresses.
pub(crate) const PUT_BYTES: usize = 5 + 2 + 4;
pub(crate) const PUT_LARGE_BYTES: usize = 5 + 2 + 8 + 8 + 4;
pub(crate) const REMOVE_BYTES: usize = 5 + 2;
pub(crate) const REMOVE_RANGE_BYTES: usize = 5 + 2 + 2;
pub(crate) const PUT_STORED_BYTES: usize = 5 + 2 + 4;
pub(crate) const LOCK_BYTES: usize = 5 + 2 + 1;
const COMMIT_PREPARED_BYTES: usize = 5 + 2;
const COMMIT_PREPARED_WITH_CHANGES_BYTES: usize = 5 + 2 + 4;
pub(crate) const PUT_REFERENCE_BYTES: usize = 5 + 2 + 8 + 8;
const LOADED_BYTES: usize = 5 + 8 + 2 + 2;
/// The size of an old value's operation without the value.
pub(crate) const OLD_VALUE_BYTES: usize = 5 + 1 + 8;
const PUT_IN_PARTS_BYTES: usize = 5 + 2 + 8;
const VALUE_PART_BYTES: usize = 5 + 4;
const ATTACH_BYTES: usize = 5 + 8 + 4 + 4;
const IMAGE_BYTES: usize = 4 + ExtentRef::BYTES;
const RUN_BYTES: usize = 4 + 4 + 8;

/// Returns the bytes of the operation that commits the prepared transaction `id`, not counting its changes.
pub(crate) fn commit_prepared_bytes(id: &[u8]) -> usize {
    COMMIT_PREPARED_WITH_CHANGES_BYTES + id.len()
}

/// Appends an operation to the body of a record.
pub(crate) fn encode(keyspace: KeyspaceId, operation: &Operation<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    let mut begin = |kind: u8| {
        out.push(kind);
        out.extend(keyspace.0.to_le_bytes());
    };
    match operation {
        Operation::Put { key, value } => {
            begin(PUT);
            out.extend((key.len() as u16).to_le_bytes());
            out.extend((value.len() as u32).to_le_bytes());
            out.extend_from_slice(key);
            out.extend_from_slice(value);
        }
        Operation::PutLarge { key, length, value_id, extents } => {
            begin(PUT_LARGE);
            out.extend((key.len() as u16).to_le_bytes());
            out.extend(length.to_le_bytes());
            out.extend(value_id.0.to_le_bytes());
            out.extend((extents.len() as u32).to_le_bytes());
            out.extend_from_slice(key);
            for extent in extents {
                out.extend(extent.to_bytes());
            }
        }
        Operation::Remove { key } => {
            begin(REMOVE);
            out.extend((key.len() as u16).to_le_bytes());
            out.extend_from_slice(key);
        }
        Operation::RemoveRange { lower, upper } => {
            begin(REMOVE_RANGE);
            out.extend((lower.len() as u16).to_le_bytes());
            out.extend(upper.map_or(NO_UPPER, |upper| upper.len() as u16).to_le_bytes());
            out.extend_from_slice(lower);
            out.extend_from_slice(upper.unwrap_or_default());
        }
        Operation::Create { page_bytes, name } => {
            begin(CREATE);
            out.extend(page_bytes.to_le_bytes());
            out.extend((name.len() as u16).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
        }
        Operation::Drop => begin(DROP),
        Operation::Clone { from, as_of, name } => {
            begin(CLONE);
            out.extend(from.0.to_le_bytes());
            out.extend(as_of.0.to_le_bytes());
            out.extend((name.len() as u16).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
        }
        Operation::Rename { name } => {
            begin(RENAME);
            out.extend((name.len() as u16).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
        }
        Operation::Attach(Attachment { rows, root, images, segments }) => {
            begin(if matches!(root, AttachedRoot::Tree(_)) { ATTACH } else { ATTACH_RUN });
            out.extend(rows.to_le_bytes());
            match root {
                AttachedRoot::Tree(root) => out.extend(root.to_bytes()),
                AttachedRoot::Run(page) => out.extend(page.0.to_le_bytes()),
            }
            out.extend((images.len() as u32).to_le_bytes());
            out.extend((segments.len() as u32).to_le_bytes());
            for (chunk, image) in images {
                out.extend(chunk.to_le_bytes());
                out.extend(image.to_bytes());
            }
            for SegmentRun { first, count, segment_use } in segments {
                out.extend(first.0.to_le_bytes());
                out.extend(count.to_le_bytes());
                out.extend(segment_use.0.to_le_bytes());
            }
        }
        Operation::CommitPrepared { id, changes: [] } => {
            begin(COMMIT_PREPARED);
            out.extend((id.len() as u16).to_le_bytes());
            out.extend_from_slice(id);
        }
        Operation::CommitPrepared { id, changes } => {
            begin(COMMIT_PREPARED_WITH_CHANGES);
            out.extend((id.len() as u16).to_le_bytes());
            out.extend((changes.len() as u32).to_le_bytes());
            out.extend_from_slice(id);
            out.extend_from_slice(changes);
        }
        Operation::PutReference { key, length, value_id } => {
            begin(PUT_REFERENCE);
            out.extend((key.len() as u16).to_le_bytes());
            out.extend(length.to_le_bytes());
            out.extend(value_id.0.to_le_bytes());
            out.extend_from_slice(key);
        }
        Operation::Loaded { rows, first_key, last_key } => {
            begin(LOADED);
            out.extend(rows.to_le_bytes());
            put_bounds(first_key, last_key, out);
        }
        Operation::OldValue(old) => {
            begin(OLD_VALUE);
            let (kind, length, value) = match *old {
                OldValue::Absent => (OLD_ABSENT, 0, &[][..]),
                OldValue::Value(value) => (OLD_INLINE, value.len() as u64, value),
                OldValue::Large { length } => (OLD_LARGE, length, &[][..]),
            };
            out.push(kind);
            out.extend(length.to_le_bytes());
            out.extend_from_slice(value);
        }
        Operation::PutInParts { key, length } => {
            begin(PUT_IN_PARTS);
            out.extend((key.len() as u16).to_le_bytes());
            out.extend(length.to_le_bytes());
            out.extend_from_slice(key);
        }
        Operation::ValuePart { bytes } => {
            begin(VALUE_PART);
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        Operation::PutStored { key, number } => {
            begin(PUT_STORED);
            out.extend((key.len() as u16).to_le_bytes());
            out.extend(number.to_le_bytes());
            out.extend_from_slice(key);
        }
        Operation::Lock { key, is_shared } => {
            begin(LOCK);
            out.extend((key.len() as u16).to_le_bytes());
            out.push(if *is_shared { LOCK_SHARED } else { LOCK_EXCLUSIVE });
            out.extend_from_slice(key);
        }
    }
    let expected = match operation {
        Operation::Put { key, value } => PUT_BYTES + key.len() + value.len(),
        Operation::PutLarge { key, extents, .. } => PUT_LARGE_BYTES + key.len() + extents.len() * ExtentRef::BYTES,
        Operation::Remove { key } => REMOVE_BYTES + key.len(),
        Operation::RemoveRange { lower, upper } => REMOVE_RANGE_BYTES + lower.len() + upper.unwrap_or_default().len(),
        Operation::Attach(attached) => {
            let lists = attached.images.len() * IMAGE_BYTES + attached.segments.len() * RUN_BYTES;
            ATTACH_BYTES + attached.root.bytes() + lists
        }
        Operation::CommitPrepared { id, changes: [] } => COMMIT_PREPARED_BYTES + id.len(),
        Operation::CommitPrepared { id, changes } => COMMIT_PREPARED_WITH_CHANGES_BYTES + id.len() + changes.len(),
        Operation::PutReference { key, .. } => PUT_REFERENCE_BYTES + key.len(),
        Operation::Loaded { first_key, last_key, .. } => LOADED_BYTES + first_key.len() + last_key.len(),
        Operation::OldValue(OldValue::Value(value)) => OLD_VALUE_BYTES + value.len(),
        Operation::OldValue(_) => OLD_VALUE_BYTES,
        Operation::PutInParts { key, .. } => PUT_IN_PARTS_BYTES + key.len(),
        Operation::ValuePart { bytes } => VALUE_PART_BYTES + bytes.len(),
        Operation::PutStored { key, .. } => PUT_STORED_BYTES + key.len(),
        Operation::Lock { key, .. } => LOCK_BYTES + key.len(),
        Operation::Create { .. } | Operation::Drop | Operation::Rename { .. } | Operation::Clone { .. } => {
            out.len() - start
        }
    };
    debug_assert_eq!(out.len() - start, expected, "{operation:?} has another length than is counted for it");
}

fn put_bounds(first: &[u8], last: &[u8], out: &mut Vec<u8>) {
    debug_assert!(first <= last, "the first key of a load is after the last one");
    out.extend((first.len() as u16).to_le_bytes());
    out.extend((last.len() as u16).to_le_bytes());
    out.extend_from_slice(first);
    out.extend_from_slice(last);
}

/// Appends the operations of `body` with the old value of each row. `old` has one for each operation that puts or
/// removes a row, in the same order. `body` must have none. Leaves out old values beyond `bytes_max` bytes in total.
pub(crate) fn with_old_values<'o>(
    body: &[u8],
    old: &mut impl Iterator<Item = OldValue<'o>>,
    bytes_max: usize,
    out: &mut Vec<u8>,
) {
    let mut left_bytes = bytes_max;
    for operation in decode(body) {
        let (keyspace, operation) = operation.expect("it was just encoded");
        encode(keyspace, &operation, out);
        let changes_row = matches!(
            operation,
            Operation::Put { .. }
                | Operation::PutLarge { .. }
                | Operation::PutReference { .. }
                | Operation::Remove { .. }
        );
        if !changes_row {
            continue;
        }
        let old = old.next().expect("each row has an old value");
        let bytes = OLD_VALUE_BYTES + if let OldValue::Value(value) = old { value.len() } else { 0 };
        if bytes <= left_bytes {
            left_bytes -= bytes;
            encode(keyspace, &Operation::OldValue(old), out);
        }
    }
    assert!(old.next().is_none(), "an old value belongs to no row");
}

/// Decodes the operations of a body. Yields `None` for a malformed operation, then ends.
pub(crate) fn decode(body: &[u8]) -> impl Iterator<Item = Option<(KeyspaceId, Operation<'_>)>> {
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let operation = take_operation(&mut rest);
        if operation.is_none() {
            rest = &[];
        }
        Some(operation)
    })
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

fn take_u16(rest: &mut &[u8]) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(take(rest, 2)?.try_into().ok()?)))
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?))
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?))
}

fn take_name<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let name_bytes = take_u16(rest)?;
    std::str::from_utf8(take(rest, name_bytes)?).ok()
}

/// Decodes a reference to an extent, and advances past it. Returns `None` if it is empty or malformed.
fn take_extent(rest: &mut &[u8]) -> Option<ExtentRef> {
    ExtentRef::from_bytes(take(rest, ExtentRef::BYTES)?).filter(|extent| *extent != ExtentRef::NONE)
}

fn take_bounds<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (first_bytes, last_bytes) = (take_u16(rest)?, take_u16(rest)?);
    let (first, last) = (take(rest, first_bytes)?, take(rest, last_bytes)?);
    (first <= last).then_some((first, last))
}

fn take_attachment(rest: &mut &[u8], kind: u8) -> Option<Attachment> {
    let rows = take_u64(rest)?;
    let root = match kind {
        ATTACH => AttachedRoot::Tree(take_extent(rest)?),
        _ => AttachedRoot::Run(PageId(take_u32(rest)?)),
    };
    let (image_count, run_count) = (take_u32(rest)? as usize, take_u32(rest)? as usize);
    let mut images = take(rest, image_count.checked_mul(IMAGE_BYTES)?)?;
    let mut runs = take(rest, run_count.checked_mul(RUN_BYTES)?)?;
    let image = |_| Some((take_u32(&mut images)?, take_extent(&mut images)?));
    let images = (0..image_count).map(image).collect::<Option<Vec<_>>>()?;
    let run = |_| {
        let (first, count) = (SegmentId(take_u32(&mut runs)?), take_u32(&mut runs)?);
        let segment_use = SegmentUse(take_u64(&mut runs)?);
        let end = first.0.checked_add(count).and(segment_use.0.checked_add(u64::from(count)));
        end.map(|_| SegmentRun { first, count, segment_use })
    };
    let segments = (0..run_count).map(run).collect::<Option<Vec<_>>>()?;
    Some(Attachment { rows, root, images, segments })
}

/// Decodes the first operation, and advances past it. Returns `None` if it is malformed.
pub(crate) fn take_operation<'a>(rest: &mut &'a [u8]) -> Option<(KeyspaceId, Operation<'a>)> {
    let kind = take(rest, 1)?[0];
    let keyspace = KeyspaceId(take_u32(rest)?);
    let operation = match kind {
        PUT => {
            let key_bytes = take_u16(rest)?;
            let value_bytes = take_u32(rest)? as usize;
            Operation::Put { key: take(rest, key_bytes)?, value: take(rest, value_bytes)? }
        }
        PUT_LARGE => {
            let key_bytes = take_u16(rest)?;
            let length = take_u64(rest)?;
            let value_id = ValueId(take_u64(rest)?);
            let chunk_count = take_u32(rest)? as usize;
            let key = take(rest, key_bytes)?;
            let extents = take(rest, chunk_count.checked_mul(ExtentRef::BYTES)?)?;
            let extents = extents
                .chunks_exact(ExtentRef::BYTES)
                .map(|bytes| ExtentRef::from_bytes(bytes).filter(|extent| *extent != ExtentRef::NONE))
                .collect::<Option<Vec<_>>>()?;
            if !is_value_length(length, chunk_count as u32) {
                return None;
            }
            Operation::PutLarge { key, length, value_id, extents }
        }
        REMOVE => {
            let key_bytes = take_u16(rest)?;
            Operation::Remove { key: take(rest, key_bytes)? }
        }
        REMOVE_RANGE => {
            let (lower_bytes, upper_bytes) = (take_u16(rest)?, take_u16(rest)?);
            let lower = take(rest, lower_bytes)?;
            let has_upper = upper_bytes != usize::from(NO_UPPER);
            let upper = if has_upper { Some(take(rest, upper_bytes)?) } else { None };
            if upper.is_some_and(|upper| upper <= lower) {
                return None;
            }
            Operation::RemoveRange { lower, upper }
        }
        CREATE => {
            let page_bytes = take_u32(rest)?;
            Operation::Create { page_bytes, name: take_name(rest)? }
        }
        DROP => Operation::Drop,
        ATTACH | ATTACH_RUN => Operation::Attach(take_attachment(rest, kind)?),
        COMMIT_PREPARED => {
            let id_bytes = take_u16(rest)?;
            Operation::CommitPrepared { id: take(rest, id_bytes)?, changes: &[] }
        }
        COMMIT_PREPARED_WITH_CHANGES => {
            let id_bytes = take_u16(rest)?;
            let changes_bytes = take_u32(rest)? as usize;
            if changes_bytes == 0 {
                return None;
            }
            Operation::CommitPrepared { id: take(rest, id_bytes)?, changes: take(rest, changes_bytes)? }
        }
        PUT_REFERENCE => {
            let key_bytes = take_u16(rest)?;
            let (length, value_id) = (take_u64(rest)?, ValueId(take_u64(rest)?));
            Operation::PutReference { key: take(rest, key_bytes)?, length, value_id }
        }
        LOADED => {
            let rows = take_u64(rest)?;
            let (first_key, last_key) = take_bounds(rest)?;
            Operation::Loaded { rows, first_key, last_key }
        }
        OLD_VALUE => {
            let (kind, length) = (take(rest, 1)?[0], take_u64(rest)?);
            Operation::OldValue(match kind {
                OLD_ABSENT if length == 0 => OldValue::Absent,
                OLD_INLINE => OldValue::Value(take(rest, usize::try_from(length).ok()?)?),
                OLD_LARGE => OldValue::Large { length },
                _ => return None,
            })
        }
        PUT_IN_PARTS => {
            let key_bytes = take_u16(rest)?;
            let length = take_u64(rest)?;
            Operation::PutInParts { key: take(rest, key_bytes)?, length }
        }
        VALUE_PART => {
            let bytes = take_u32(rest)? as usize;
            Operation::ValuePart { bytes: take(rest, bytes)? }
        }
        PUT_STORED => {
            let key_bytes = take_u16(rest)?;
            let number = take_u32(rest)?;
            Operation::PutStored { key: take(rest, key_bytes)?, number }
        }
        LOCK => {
            let key_bytes = take_u16(rest)?;
            let is_shared = match take(rest, 1)?[0] {
                LOCK_SHARED => true,
                LOCK_EXCLUSIVE => false,
                _ => return None,
            };
            Operation::Lock { key: take(rest, key_bytes)?, is_shared }
        }
        RENAME => Operation::Rename { name: take_name(rest)? },
        CLONE => {
            let from = KeyspaceId(take_u32(rest)?);
            let as_of = Timestamp(take_u64(rest)?);
            Operation::Clone { from, as_of, name: take_name(rest)? }
        }
        _ => return None,
    };
    Some((keyspace, operation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ExtentAddress, SegmentUse};

    fn extents() -> Vec<ExtentRef> {
        let extent = |start, number| {
            let segment_use = SegmentUse(number);
            ExtentRef { address: ExtentAddress::new(start, 4096, segment_use), segment_use }
        };
        vec![extent(4096, 1), extent(1 << 20, 2)]
    }

    fn attachment() -> Attachment {
        let segments = [(3, 7), (4, 8), (5, 9), (6, 11), (9, 12)];
        Attachment {
            rows: 1000,
            root: AttachedRoot::Tree(extents()[0]),
            images: vec![(1, extents()[1]), (7, extents()[0])],
            segments: Attachment::runs(segments.map(|(segment, number)| (SegmentId(segment), SegmentUse(number)))),
        }
    }

    /// Runs return the use of each segment from which they were made, and no use for any other segment.
    #[test]
    fn runs_of_segments_have_their_uses() {
        let attachment = attachment();
        assert_eq!(attachment.segments.len(), 3);
        let uses = (0..12).map(|segment| attachment.use_of(SegmentId(segment)).map_or(0, |number| number.0));
        assert!(uses.eq([0, 0, 0, 7, 8, 9, 11, 0, 0, 12, 0, 0]));
    }

    /// Every operation survives encoding. A truncated body is decoded without a panic. A value is refused if its length
    /// does not match its number of extents.
    #[test]
    fn operations_survive_their_bytes() {
        let operations = [
            Operation::Put { key: b"", value: b"" },
            Operation::Put { key: b"k", value: b"value" },
            Operation::PutLarge { key: b"l", length: 5000, value_id: ValueId(9), extents: extents() },
            Operation::Remove { key: b"gone" },
            Operation::RemoveRange { lower: b"", upper: Some(b"end") },
            Operation::RemoveRange { lower: b"from", upper: None },
            Operation::Create { page_bytes: 4096, name: "käse" },
            Operation::Drop,
            Operation::Attach(attachment()),
            Operation::CommitPrepared { id: b"transfer 7", changes: b"" },
            Operation::CommitPrepared { id: b"transfer 8", changes: b"operations" },
            Operation::PutReference { key: b"film", length: 5000, value_id: ValueId(9) },
            Operation::Loaded { rows: 1000, first_key: b"", last_key: b"zebra" },
            Operation::OldValue(OldValue::Absent),
            Operation::OldValue(OldValue::Value(b"old")),
            Operation::OldValue(OldValue::Large { length: 70_000 }),
            Operation::PutInParts { key: b"film", length: 5000 },
            Operation::ValuePart { bytes: b"its beginning" },
            Operation::PutStored { key: b"film", number: 2 },
            Operation::Lock { key: b"read", is_shared: true },
            Operation::Lock { key: b"", is_shared: false },
            Operation::Rename { name: "kuchen" },
            Operation::Clone { from: KeyspaceId(2), as_of: Timestamp(9), name: "kuchen" },
            Operation::Attach(Attachment { root: AttachedRoot::Run(PageId(77)), ..attachment() }),
        ];
        let mut body = Vec::new();
        for operation in &operations {
            encode(KeyspaceId(3), operation, &mut body);
        }
        let decoded: Vec<_> = decode(&body).map(Option::unwrap).collect();
        assert_eq!(decoded.len(), operations.len());
        assert!(decoded.iter().zip(&operations).all(|((keyspace, a), b)| *keyspace == KeyspaceId(3) && a == b));
        for length in [0, 1, 3 << 20, u64::MAX] {
            let mut body = Vec::new();
            encode(
                KeyspaceId(3),
                &Operation::PutLarge { key: b"l", length, value_id: ValueId(9), extents: extents() },
                &mut body,
            );
            assert!(decode(&body).eq([None]), "{length} bytes in two extents");
        }
        for end in 0..body.len() {
            for operation in decode(&body[..end]) {
                let _ = operation;
            }
        }
    }
}
