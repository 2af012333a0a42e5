//! Turns a log record into operations for the readers of changes.

use crate::format::KeyspaceId;
use crate::format::record::{self, Operation};

/// Translates the log record of a commit into the operations of a change file, and appends them. Leaves out rows of the
/// keyspace of prepared transactions, so a prepared transaction appears in the feed when it is committed. Returns
/// `None` if the record makes no sense.
pub(super) fn translate(body: &[u8], out: &mut Vec<u8>) -> Option<()> {
    for operation in record::decode(body) {
        let (keyspace, operation) = operation?;
        match operation {
            Operation::CommitPrepared { changes, .. } => out.extend_from_slice(changes),
            _ if keyspace == KeyspaceId::PREPARED => {}
            Operation::Put { .. }
            | Operation::Remove { .. }
            | Operation::RemoveRange { .. }
            | Operation::Create { .. }
            | Operation::Drop
            | Operation::Rename { .. }
            | Operation::Loaded { .. }
            | Operation::Clone { .. }
            | Operation::OldValue(_) => record::encode(keyspace, &operation, out),
            Operation::PutLarge { key, length, value_id, .. } => {
                record::encode(keyspace, &Operation::PutReference { key, length, value_id }, out);
            }
            // Operation 22 follows, which tells the same to readers.
            Operation::Attach(_) => {}
            Operation::PutStored { .. }
            | Operation::Lock { .. }
            | Operation::PutReference { .. }
            | Operation::PutInParts { .. }
            | Operation::ValuePart { .. } => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::{AttachedRoot, Attachment};
    use crate::format::{ExtentAddress, ExtentRef, SegmentUse, ValueId};

    fn translated(operations: &[(KeyspaceId, Operation<'_>)]) -> Option<Vec<u8>> {
        let (mut body, mut out) = (Vec::new(), Vec::new());
        operations.iter().for_each(|(keyspace, operation)| record::encode(*keyspace, operation, &mut body));
        translate(&body, &mut out).map(|()| out)
    }

    /// A large value becomes a reference. Rows of prepared transactions have no operations, but their commit has.
    #[test]
    fn records_are_told_as_what_they_are() {
        let extent = ExtentRef { address: ExtentAddress::new(4096, 64, SegmentUse(1)), segment_use: SegmentUse(1) };
        let put = Operation::Put { key: b"a", value: b"1" };
        let (length, value_id) = (70_000, ValueId(9));
        let large = Operation::PutLarge { key: b"b", length, value_id, extents: vec![extent] };
        let reference = Operation::PutReference { key: b"b", length, value_id };
        let one = KeyspaceId(1);
        assert_eq!(
            translated(&[(one, put.clone()), (one, large)]),
            told_as(&[(one, put.clone()), (one, reference.clone())])
        );
        let loaded = Operation::Loaded { rows: 7, first_key: b"a", last_key: b"b" };
        let (root, images, segments) = (AttachedRoot::Tree(extent), Vec::new(), Vec::new());
        let attach = Operation::Attach(Attachment { rows: 7, root, images, segments });
        assert_eq!(translated(&[(one, attach), (one, loaded.clone())]), told_as(&[(one, loaded)]));
        assert_eq!(translated(&[(KeyspaceId::PREPARED, put.clone())]), Some(Vec::new()));
        let changes = told_as(&[(one, put.clone()), (one, reference.clone())]).unwrap();
        let commit = Operation::CommitPrepared { id: b"transfer", changes: &changes };
        assert_eq!(translated(&[(KeyspaceId::PREPARED, commit)]), Some(changes));
        assert_eq!(translated(&[(one, put), (one, reference)]), None);
    }

    fn told_as(operations: &[(KeyspaceId, Operation<'_>)]) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        operations.iter().for_each(|(keyspace, operation)| record::encode(*keyspace, operation, &mut body));
        Some(body)
    }
}
