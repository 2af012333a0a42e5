//! Reads large values, whole or chunk by chunk, as of a snapshot.

use super::state::Store;
use crate::counts::CountedTree;
use crate::error::{Error, Result};
use crate::format::ChunkNumber;
use crate::format::node::LargeRef;
use crate::task::WaitMode;
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::values::{self, Chunk, LargeValue, ValuePart};
impl Store {
    fn gone(&self, tree: &CountedTree, snapshot: &SnapshotHandle) -> Error {
        match snapshot.check().and_then(|()| tree.check_dropped()) {
            Err(error) => error,
            Ok(()) => Error::corrupted(
                self.engine.space.path(),
                format!("a value of keyspace {}", tree.pages.quoted_name()),
                "its extents belong to another value",
            ),
        }
    }

    pub(crate) async fn read_large(
        &self,
        mode: WaitMode<'_>,
        tree: &CountedTree,
        reference: &LargeRef,
        snapshot: &SnapshotHandle,
        into: Vec<u8>,
    ) -> Result<Vec<u8>> {
        match values::read_whole(mode, tree, reference, into).await {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(self.gone(tree, snapshot)),
            // If the snapshot was ended early, the value may be gone and its pages may belong to a different value.
            Err(error) => snapshot.check().and(Err(error)),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they say which part of which chunk to read, and as of when")]
    pub(crate) async fn read_chunk(
        &self,
        mode: WaitMode<'_>,
        tree: &CountedTree,
        reference: &LargeRef,
        number: ChunkNumber,
        snapshot: &SnapshotHandle,
        part: ValuePart,
        into: Vec<u8>,
    ) -> Result<Vec<u8>> {
        match values::read_chunk(mode, tree, reference, number, part, into).await {
            Ok(Chunk::Bytes(bytes)) => Ok(bytes),
            Ok(Chunk::Gone) => Err(self.gone(tree, snapshot)),
            Err(error) => snapshot.check().and(Err(error)),
        }
    }

    /// Appends `part` of a chunk to `into`. The chunk belongs to a value that the reading transaction itself put. Reads
    /// it from the extents that it was written to, or through the page table if the transaction has since been
    /// committed. `snapshot` is older than that commit and so protects the value.
    #[expect(clippy::too_many_arguments, reason = "they say which part of which chunk to read, and as of when")]
    pub(crate) async fn read_own_chunk(
        &self,
        mode: WaitMode<'_>,
        tree: &CountedTree,
        value: &LargeValue,
        number: ChunkNumber,
        snapshot: &SnapshotHandle,
        part: ValuePart,
        mut into: Vec<u8>,
    ) -> Result<Vec<u8>> {
        if value.reference().is_none() {
            let length_before = into.len();
            let result;
            (into, result) = values::read_uncommitted(mode, tree, value, number, part, into).await;
            if value.reference().is_none() {
                if result.is_err() && value.is_left_to_load() {
                    return Err(Error::Invalid(
                        "the value can't be read once the commit of its transaction failed".into(),
                    ));
                }
                return result.map(|()| into);
            }
            into.truncate(length_before);
        }
        let reference = value.reference().expect("looked at");
        if value.is_prepared() {
            return Err(Error::Invalid("the value can't be read once its transaction has been prepared".into()));
        }
        self.read_chunk(mode, tree, reference, number, snapshot, part, into).await
    }

    pub(crate) async fn read_own(
        &self,
        mode: WaitMode<'_>,
        tree: &CountedTree,
        value: &LargeValue,
        snapshot: &SnapshotHandle,
        mut bytes: Vec<u8>,
    ) -> Result<Vec<u8>> {
        bytes.clear();
        for number in (0..value.addresses.len() as u32).map(ChunkNumber) {
            bytes = self.read_own_chunk(mode, tree, value, number, snapshot, ValuePart::ALL, bytes).await?;
        }
        Ok(bytes)
    }
}
