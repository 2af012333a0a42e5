//! The sources of a damaged database's rows: the leaves, the runs and the log's changes of each keyspace.

use std::collections::BTreeMap;

use super::extents::ExtentReader;
use super::images::{Images, Layer};
use super::values::{ChunkedValue, FoundValue};
use crate::db::{BulkLoad, Database, Keyspace};
use crate::error::{Error, Result};
use crate::format::catalogue::CloneOrigin;
use crate::format::extent::TABLE_PAGES;
use crate::format::node::LargeRef;
use crate::format::{ExtentAddress, ExtentRef, KeyspaceId, PageId, SegmentUse, Timestamp, ValueId, get_u64};
use crate::space::PageEntry;
use crate::space::runs::RemovedRange;
use crate::store::damaged::{DamagedStore, Pages};

/// The layer of the scratch database's images that has the chunks of values.
const VALUES: Layer = Layer(u32::MAX - 1);

/// Everything from which rows are read.
pub(super) struct Sources {
    pub(super) store: DamagedStore,
    pub(super) extents: ExtentReader,
    /// A database that is needed only while rows are read.
    pub(super) scratch: Database,
    pub(super) images: Keyspace,
    pub(super) keyspaces: BTreeMap<KeyspaceId, Source>,
    /// The rows of the keyspace of prepared transactions.
    pub(super) prepared: BTreeMap<Vec<u8>, FoundValue>,
}

/// A keyspace.
pub(super) struct Source {
    pub(super) name: String,
    pub(super) page_bytes: usize,
    /// The keyspace under which the images of its leaves are in the scratch database: itself, or the one of which the
    /// log makes it a clone.
    pub(super) images_of: KeyspaceId,
    /// The newest commit that its leaves may have, if the log makes it a clone.
    pub(super) as_of: Option<Timestamp>,
    /// The keyspaces whose extents it shares, if the newest checkpoint has it as a clone.
    pub(super) origins: Vec<CloneOrigin>,
    /// The way in which its pages were found. `None` for a keyspace that only the log has.
    pub(super) pages: Option<Pages>,
    /// `true` if the keyspace has leaves of which it is not known whether they belong to a run.
    pub(super) has_loaded: bool,
    /// The runs above the tree in the order of their commits, and bulk loads that the log attaches.
    pub(super) runs: Vec<SourceRun>,
    /// Ranges of keys, each with the commit that removed the rows from before.
    pub(super) removed: Vec<(Timestamp, RemovedRange)>,
    /// Rows that the log's commits changed, in the scratch database.
    pub(super) changes: Option<Keyspace>,
}

/// A run above a tree.
#[derive(Clone)]
pub(super) struct SourceRun {
    pub(super) layer: Layer,
    pub(super) timestamp: Timestamp,
    /// All rows below this key are in the tree.
    pub(super) freed_to: Vec<u8>,
    /// `true` if the log attaches it. Then the page table has none of its pages.
    pub(super) is_of_log: bool,
}

impl Source {
    pub(super) fn new(id: KeyspaceId, name: String, page_bytes: usize, pages: Option<Pages>) -> Source {
        let (runs, removed) = (Vec::new(), Vec::new());
        let (images_of, as_of, origins) = (id, None, Vec::new());
        Source { name, page_bytes, images_of, as_of, origins, pages, has_loaded: false, runs, removed, changes: None }
    }

    /// Returns the source of a clone that the log makes of this keyspace, as of the checkpoint at `as_of`.
    pub(super) fn clone_as(&self, id: KeyspaceId, name: &str, as_of: Timestamp) -> Source {
        let runs = self.runs.iter().filter(|run| !run.is_of_log && run.timestamp <= as_of);
        let removed = self.removed.iter().filter(|(timestamp, _)| *timestamp <= as_of);
        Source {
            images_of: self.images_of,
            as_of: Some(self.as_of.unwrap_or(as_of).min(as_of)),
            origins: self.origins.clone(),
            has_loaded: self.has_loaded,
            runs: runs.cloned().collect(),
            removed: removed.cloned().collect(),
            ..Source::new(id, name.to_owned(), self.page_bytes, self.pages.clone())
        }
    }
}

impl Source {
    /// Returns `true` if a page has to be searched.
    pub(super) fn is_searched(&self, page: PageId) -> bool {
        match &self.pages {
            Some(Pages::Listed(_)) => false,
            Some(Pages::ListedExcept(pages, chunks)) => {
                chunks.contains(&(page.0 as usize / TABLE_PAGES)) && pages.table.load(page) == PageEntry::Free
            }
            Some(Pages::Searched) | None => true,
        }
    }

    /// Returns `true` if its extents may have this id.
    pub(super) fn is_stored_as(&self, id: KeyspaceId) -> bool {
        id == self.images_of || self.origins.iter().any(|origin| origin.keyspace == id)
    }
}

impl Sources {
    /// Returns the images of a layer of a keyspace in the order of their lower fences.
    pub(super) fn images(&self, source: &Source, layer: Layer) -> Images {
        Images::new(&self.images, source.images_of, layer, source.as_of)
    }

    /// Returns the value that a row of a leaf refers to, not verified.
    pub(super) fn large_value(&self, source: &Source, is_of_log: bool, reference: LargeRef) -> Result<ChunkedValue> {
        if !reference.is_plausible() {
            return Err(self.lost_value());
        }
        let table = source.pages.as_ref().filter(|_| !is_of_log).and_then(Pages::table);
        let chunk = |index: u32| {
            let page = PageId(reference.first_page.0 + index);
            let listed = table.and_then(|pages| self.store.extent_of(pages.table.load(page)));
            match listed {
                Some(extent) => Ok(extent),
                None => self.stored_chunk(reference.id, index)?.ok_or_else(|| self.lost_value()),
            }
        };
        let chunks = (0..reference.chunk_count).map(chunk).collect::<Result<_>>()?;
        Ok(ChunkedValue { length: reference.length, id: reference.id, chunks })
    }

    fn lost_value(&self) -> Error {
        Error::corrupted(self.extents.file.path(), "a value", "its chunks are lost")
    }

    fn stored_chunk(&self, id: ValueId, index: u32) -> Result<Option<ExtentRef>> {
        let Some(stored) = self.images.get(chunk_key(id, index))? else { return Ok(None) };
        let address = ExtentAddress::from_bits(get_u64(&stored, 0)).expect("stored by this process");
        Ok(Some(ExtentRef { address, segment_use: SegmentUse(get_u64(&stored, 8)) }))
    }
}

fn chunk_key(id: ValueId, index: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(24);
    key.extend(0u32.to_be_bytes());
    key.extend(VALUES.0.to_be_bytes());
    key.extend(id.0.to_be_bytes());
    key.extend(index.to_be_bytes());
    key
}

/// Adds a chunk of a value to the load that sorts the images.
pub(super) fn store_chunk(load: &mut BulkLoad, id: ValueId, index: u32, extent: ExtentRef) -> Result<()> {
    load.insert(chunk_key(id, index), extent.to_bytes())
}
