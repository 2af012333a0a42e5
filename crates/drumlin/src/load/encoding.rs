//! Nodes that a thread of the pool encodes while the load packs the next ones.
//!
//! A node refers to its children by page number, so it needs no address before it is encoded, and neither do the nodes
//! above it. Encoding takes most of the time of a load; packing and writing take the rest.

use crate::format::PageId;
use crate::format::extent::{Encoder, Kind, PageKey};

/// Nodes that are encoded together.
#[derive(Debug, Default)]
pub(super) struct NodeBatch {
    nodes: Vec<BatchedNode>,
    /// The pages of the nodes, concatenated.
    pages: Vec<u8>,
    /// The encoded extents, concatenated.
    extents: Vec<u8>,
    encoder: Encoder,
}

#[derive(Debug)]
struct BatchedNode {
    number: PageId,
    page_key: PageKey,
    kind: Kind,
    page_end: usize,
    /// The end of the node's extent, once it is encoded.
    extent_end: usize,
}

/// The minimum size of a batch. Handing over less takes longer than encoding it. The simulation uses batches in its
/// small budgets too.
const BATCH_BYTES_MIN: usize = if cfg!(feature = "sim") { 4 << 10 } else { 32 << 10 };

/// Returns the size of the pages of a batch, in bytes, for a load with write buffers of `buffer_bytes`. Returns 0 if
/// the load has too little memory for batches, or too large pages. It then encodes each node itself.
pub(super) fn batch_bytes(buffer_bytes: usize, page_bytes: usize) -> usize {
    let bytes = buffer_bytes / 4;
    if bytes >= BATCH_BYTES_MIN.max(2 * page_bytes) { bytes } else { 0 }
}

/// Returns the memory of the two batches of a load: one is filled while the other is being encoded.
pub(super) fn memory_bytes(buffer_bytes: usize, page_bytes: usize) -> usize {
    match batch_bytes(buffer_bytes, page_bytes) {
        0 => 0,
        bytes => 2 * (2 * bytes + page_bytes),
    }
}

impl NodeBatch {
    /// Adds a node. The first one allocates the memory.
    pub(super) fn push(&mut self, number: PageId, page_key: PageKey, kind: Kind, page: &[u8], bytes_max: usize) {
        assert!(self.has_room(page.len(), bytes_max), "a node is added to a full batch");
        if self.pages.capacity() == 0 {
            self.pages.reserve_exact(bytes_max);
            self.extents.reserve_exact(bytes_max);
        }
        self.pages.extend_from_slice(page);
        self.nodes.push(BatchedNode { number, page_key, kind, page_end: self.pages.len(), extent_end: 0 });
    }

    /// Returns `true` if the batch has room for another page.
    pub(super) fn has_room(&self, page_bytes: usize, bytes_max: usize) -> bool {
        self.pages.len() + page_bytes <= bytes_max
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Encodes the nodes.
    pub(super) fn encode(&mut self) {
        assert!(self.extents.is_empty() && !self.nodes.is_empty(), "a batch of nodes is encoded twice, or empty");
        let mut start = 0;
        for node in &mut self.nodes {
            let page = &self.pages[std::mem::replace(&mut start, node.page_end)..node.page_end];
            self.extents.extend_from_slice(self.encoder.encode(page, node.page_key, node.kind));
            node.extent_end = self.extents.len();
        }
        debug_assert!(self.extents.len() <= self.pages.len(), "extents are longer than their pages");
    }

    /// Returns the page numbers and extents of the encoded nodes.
    pub(super) fn extents(&self) -> impl Iterator<Item = (PageId, &[u8])> {
        let mut start = 0;
        self.nodes.iter().map(move |node| {
            (node.number, &self.extents[std::mem::replace(&mut start, node.extent_end)..node.extent_end])
        })
    }

    /// Removes all nodes. Keeps the memory.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.pages.clear();
        self.extents.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::KeyspaceId;

    /// A batch encodes each node as an encoder alone does, also when it is used again.
    #[test]
    fn nodes_are_encoded_one_by_one() {
        const PAGE_BYTES: usize = 1024;
        let mut batch = NodeBatch::default();
        for round in 0..3u8 {
            let mut expected = Vec::new();
            for number in 0..4u8 {
                let page: Vec<u8> = (0..PAGE_BYTES).map(|at| (at / 16) as u8 ^ number ^ round).collect();
                let page_key = PageKey { keyspace: KeyspaceId(7), page: PageId(u32::from(number) + 2) };
                assert!(batch.has_room(PAGE_BYTES, 4 * PAGE_BYTES));
                batch.push(page_key.page, page_key, Kind::Leaf, &page, 4 * PAGE_BYTES);
                expected.push((page_key.page, Encoder::default().encode(&page, page_key, Kind::Leaf).to_vec()));
            }
            assert!(!batch.has_room(PAGE_BYTES, 4 * PAGE_BYTES) && !batch.is_empty());
            batch.encode();
            let found: Vec<_> = batch.extents().map(|(number, extent)| (number, extent.to_vec())).collect();
            assert_eq!(found, expected);
            batch.clear();
            assert!(batch.is_empty() && batch.extents().next().is_none());
        }
    }
}
