//! The rows of prepared transactions, in the keyspace [`KeyspaceId::PREPARED`](super::KeyspaceId::PREPARED).
//!
//! A prepared transaction has one row with its changes, and one row for each of its large values. Both are put and
//! removed by ordinary commits, so they are in checkpoints like any other row. Numbers in keys are big-endian.
//!
//! ```text
//! key of the changes         length of the id (1)  id
//! key of a large value       length of the id (1)  id  number of the value (4)
//!
//! changes    time of the prepare, in milliseconds since 1970 (8)  rows that it changes (4)  large values (4)
//!            operations of these rows and of its locks, in the form of a log record
//! ```

use super::record::{self, Operation};
use super::{KeyspaceId, get_u32, get_u64};

/// The maximum length of an id: that of the XID structure of X/Open.
pub(crate) const ID_BYTES_MAX: usize = 140;

/// The page size of the keyspace. A quarter of it holds the longest key.
pub(crate) const PAGE_BYTES: usize = 4096;

const _: () = assert!(1 + ID_BYTES_MAX + 4 <= PAGE_BYTES / 4, "an id does not fit into a key");

const TIME_OFFSET: usize = 0;
const ROW_COUNT_OFFSET: usize = 8;
const VALUE_COUNT_OFFSET: usize = 12;
/// The offset of the operations.
pub(crate) const OPERATIONS_OFFSET: usize = 16;

const _: () = assert!(ROW_COUNT_OFFSET == TIME_OFFSET + 8);
const _: () = assert!(VALUE_COUNT_OFFSET == ROW_COUNT_OFFSET + 4);
const _: () = assert!(OPERATIONS_OFFSET == VALUE_COUNT_OFFSET + 4);

/// Returns the key of the row that holds a transaction's changes.
pub(crate) fn changes_key(id: &[u8]) -> Vec<u8> {
    assert!(!id.is_empty() && id.len() <= ID_BYTES_MAX, "an id of {} bytes", id.len());
    let mut key = Vec::with_capacity(1 + id.len() + 4);
    key.push(id.len() as u8);
    key.extend_from_slice(id);
    key
}

/// Returns the key of the row that holds a large value of a transaction.
pub(crate) fn value_key(id: &[u8], number: u32) -> Vec<u8> {
    let mut key = changes_key(id);
    key.extend(number.to_be_bytes());
    key
}

/// Returns `true` for the key of a large value.
pub(crate) fn is_value_key(key: &[u8]) -> bool {
    key.first().is_some_and(|id_bytes| key.len() > 1 + usize::from(*id_bytes))
}

/// Returns the id in the key of a transaction's changes, or `None` for the key of a large value.
pub(crate) fn id_of(key: &[u8]) -> Option<&[u8]> {
    let (id_bytes, id) = key.split_first()?;
    (id.len() == usize::from(*id_bytes)).then_some(id)
}

/// The fixed part of a transaction's changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) time_ms: u64,
    pub(crate) row_count: u32,
    pub(crate) value_count: u32,
}

impl Head {
    /// Appends the head, which the operations follow.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend(self.time_ms.to_le_bytes());
        out.extend(self.row_count.to_le_bytes());
        out.extend(self.value_count.to_le_bytes());
        assert!(out.len() - start == OPERATIONS_OFFSET, "a head of {} bytes", out.len() - start);
    }

    /// Decodes the head of a transaction's changes. Returns `None` if they are too short, or if an operation is
    /// malformed or has no place among them.
    pub(crate) fn decode(changes: &[u8]) -> Option<Head> {
        let operations = changes.get(OPERATIONS_OFFSET..)?;
        let head = Head {
            time_ms: get_u64(changes, TIME_OFFSET),
            row_count: get_u32(changes, ROW_COUNT_OFFSET),
            value_count: get_u32(changes, VALUE_COUNT_OFFSET),
        };
        let (mut row_count, mut value_count) = (0u32, 0u32);
        for operation in record::decode(operations) {
            match operation? {
                (KeyspaceId::PREPARED, _) => return None,
                (_, Operation::Put { .. } | Operation::Remove { .. }) => row_count += 1,
                (_, Operation::PutStored { number, .. }) => {
                    if number != value_count {
                        return None;
                    }
                    row_count += 1;
                    value_count += 1;
                }
                (_, Operation::Lock { .. }) => {}
                _ => return None,
            }
        }
        ((row_count, value_count) == (head.row_count, head.value_count)).then_some(head)
    }
}

/// Returns the operations of a transaction's changes, which [`Head::decode`] has accepted.
pub(crate) fn operations(changes: &[u8]) -> impl Iterator<Item = (KeyspaceId, Operation<'_>)> {
    record::decode(&changes[OPERATIONS_OFFSET..]).map(|operation| operation.expect("checked with the head"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes survive encoding. Truncated changes, wrong counts and operations that do not belong there are refused.
    #[test]
    fn changes_survive_their_bytes() {
        let head = Head { time_ms: 1 << 40, row_count: 3, value_count: 1 };
        let all = [
            Operation::Put { key: b"a", value: b"1" },
            Operation::PutStored { key: b"b", number: 0 },
            Operation::Remove { key: b"c" },
            Operation::Lock { key: b"d", is_shared: true },
        ];
        let encoded = |head: Head, all: &[Operation<'_>], keyspace| {
            let mut changes = Vec::new();
            head.encode(&mut changes);
            all.iter().for_each(|operation| record::encode(keyspace, operation, &mut changes));
            changes
        };
        let changes = encoded(head, &all, KeyspaceId(3));
        assert_eq!(Head::decode(&changes), Some(head));
        assert!(operations(&changes).map(|(_, operation)| operation).eq(all.iter().cloned()));
        for end in 0..changes.len() {
            assert_eq!(Head::decode(&changes[..end]).filter(|_| end < changes.len() - 9), None);
        }
        assert_eq!(Head::decode(&encoded(Head { row_count: 2, ..head }, &all, KeyspaceId(3))), None);
        assert_eq!(Head::decode(&encoded(Head { value_count: 0, ..head }, &all, KeyspaceId(3))), None);
        assert_eq!(Head::decode(&encoded(head, &all, KeyspaceId::PREPARED)), None);
        let alien = [Operation::Drop];
        assert_eq!(Head::decode(&encoded(Head { row_count: 0, value_count: 0, ..head }, &alien, KeyspaceId(3))), None);
    }

    /// The rows of a transaction are together in key order, its changes first, and no key belongs to two transactions.
    #[test]
    fn keys_keep_transactions_apart() {
        let ids: [&[u8]; 4] = [b"a", b"ab", b"a\0\0\0\0", &[0xff; ID_BYTES_MAX]];
        for id in ids {
            let (changes, value) = (changes_key(id), value_key(id, 7));
            assert!(changes < value && value < value_key(id, 8));
            assert_eq!((id_of(&changes), id_of(&value)), (Some(id), None));
            assert!(!is_value_key(&changes) && is_value_key(&value));
            let others = ids.iter().filter(|other| **other != id);
            for other in others {
                assert!(changes_key(other) != value && changes_key(other) != changes);
                assert!((changes_key(other) < changes) == (value_key(other, 9) < changes), "rows are mixed");
            }
        }
    }
}
