//! Finding the leaves of a damaged database: those that page tables list, those that a search of the data file finds,
//! and those of bulk loads that the log attaches.

use std::collections::BTreeMap;
use std::path::Path;

use super::changes::{AttachedLoad, made_up_name};
use super::extents::{Extent, ExtentReader, decode};
use super::images::{Image, Layer};
use super::sources::{Source, SourceRun, store_chunk};
use crate::db::BulkLoad;
use crate::error::{Error, Result};
use crate::format::catalogue::{CloneOrigin, RunEntry};
use crate::format::extent::{HEADER_BYTES, Kind, PageKey, TABLE_PAGES, VALUE_BYTES_OFFSET};
use crate::format::node::is_page_bytes;
use crate::format::record::{self, AttachedRoot, Attachment, Operation};
use crate::format::{ExtentAddress, ExtentRef, KeyspaceId, PageId, SegmentId, SegmentUse, Timestamp, ValueId, get_u64};
use crate::seglog::Scan;
use crate::space::PageSpace;
use crate::space::runs::RemovedRange;
use crate::store::damaged::{Clones, DamagedStore, Pages};
use crate::tree::node::{Inner, Leaf};

/// The number of extents that are read together.
const EXTENT_COUNT: usize = 1024;

/// The number of extents that are sorted together by their addresses. The list takes 1.5 MiB.
const SORTED_COUNT: usize = 64 << 10;

/// Reads extents in the order of their addresses. Passes each with the use of its segment, which may have been unknown.
fn read_sorted(
    reader: &ExtentReader,
    extents: &mut [(ExtentRef, PageId)],
    mut each: impl FnMut(ExtentRef, PageId, Result<Extent>) -> Result<()>,
) -> Result<()> {
    extents.sort_unstable_by_key(|(extent, _)| extent.address);
    for part in extents.chunks(EXTENT_COUNT) {
        let addresses: Vec<ExtentRef> = part.iter().map(|(extent, _)| *extent).collect();
        reader.read(&addresses, |index, read| {
            let (extent, page) = part[index];
            let segment_use = read.as_ref().map_or(extent.segment_use, |(header, _)| header.origin.segment_use);
            each(ExtentRef { segment_use, ..extent }, page, read)
        })?;
    }
    Ok(())
}

/// The leaves that were found, except for their images, which are in the scratch database.
#[derive(Default)]
pub(super) struct FoundLeaves {
    pub(super) keyspaces: BTreeMap<KeyspaceId, Source>,
    /// The newest commit in any leaf.
    pub(super) newest: Timestamp,
    /// The number of listed pages that could not be read.
    pub(super) lost_pages: u64,
}

/// A set of page numbers.
#[derive(Default)]
struct PageSet(Vec<u64>);

impl PageSet {
    fn add(&mut self, page: PageId) {
        let word = page.0 as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (page.0 % 64);
    }

    fn has(&self, page: PageId) -> bool {
        self.0.get(page.0 as usize / 64).is_some_and(|word| word & 1 << (page.0 % 64) != 0)
    }
}

/// Says to which layer each leaf of a keyspace belongs.
struct Layers {
    runs: Vec<(Layer, PageSet)>,
    /// The leaves that the tree reaches. `None` if those that no run reaches belong to it.
    tree: Option<PageSet>,
}

impl Layers {
    fn layer_of(&self, page: PageId, leaf: &Leaf<'_>) -> Layer {
        let run = self.runs.iter().find(|(_, pages)| pages.has(page)).map(|(layer, _)| *layer);
        let is_trees = self.tree.as_ref().is_none_or(|pages| pages.has(page));
        match run {
            Some(layer) => layer,
            None if is_trees || leaf.newest() > Timestamp(0) => Layer::TREE,
            None => Layer::LOADED,
        }
    }
}

/// Finds leaves, and adds their images to a load that sorts them.
pub(super) struct Finder<'f> {
    pub(super) store: &'f mut DamagedStore,
    pub(super) extents: &'f ExtentReader,
    pub(super) load: BulkLoad,
    pub(super) found: FoundLeaves,
}

impl Finder<'_> {
    /// Finds the leaves of the newest checkpoint.
    pub(super) fn find_pages(mut self) -> Result<FoundLeaves> {
        let has_searched_pages = self.store.has_searched_pages();
        for damaged in std::mem::take(&mut self.store.keyspaces) {
            let (entry, pages) = (damaged.entry, damaged.pages);
            let mut source = Source::new(entry.id, entry.name.clone(), entry.page_bytes as usize, None);
            source.origins.clone_from(&entry.origins);
            for RunEntry { timestamp, removed, .. } in &entry.runs {
                let range = |(lower, upper): &(Vec<u8>, Option<Vec<u8>>)| {
                    (*timestamp, RemovedRange { lower: lower.clone(), upper: upper.clone() })
                };
                source.removed.extend(removed.iter().map(range));
            }
            if let Some(table) = pages.table() {
                self.find_listed(entry.id, &mut source, table, &entry.runs)?;
            }
            source.pages = Some(pages);
            self.found.keyspaces.insert(entry.id, source);
        }
        if has_searched_pages {
            self.search()?;
        }
        self.load.finish()?;
        Ok(self.found)
    }

    /// Finds the leaves that a page table lists.
    fn find_listed(&mut self, id: KeyspaceId, source: &mut Source, table: &PageSpace, runs: &[RunEntry]) -> Result<()> {
        let mut layers = Layers { runs: Vec::new(), tree: None };
        let mut are_whole = true;
        for (number, run) in (0..).zip(runs).filter(|(_, run)| run.root != PageId::NONE) {
            let layer = Layer(Layer::FIRST_RUN.0 + number);
            let (pages, is_whole) = self.leaves_below(table, run.root)?;
            are_whole &= is_whole;
            layers.runs.push((layer, pages));
            let (timestamp, freed_to) = (run.timestamp, run.freed_to.clone());
            source.runs.push(SourceRun { layer, timestamp, freed_to, is_of_log: false });
        }
        if !are_whole {
            layers.tree = Some(self.leaves_below(table, PageId::ROOT)?.0);
        }
        let Finder { store, extents: reader, load, found } = self;
        let listed = |(page, entry)| Some((store.extent_of(entry)?, page));
        let mut all = table.table.iter().filter_map(listed);
        loop {
            let mut part: Vec<(ExtentRef, PageId)> = all.by_ref().take(SORTED_COUNT).collect();
            if part.is_empty() {
                return Ok(());
            }
            read_sorted(reader, &mut part, |extent, page, read| {
                let Ok((header, bytes)) = read else {
                    found.lost_pages += 1;
                    return Ok(());
                };
                let is_its = table.is_stored_as(header.page_key.keyspace) && header.page_key.page == page;
                let is_it = is_its && bytes.len() == source.page_bytes;
                match header.kind {
                    // The numbers in a value's extents are not those of pages.
                    Kind::Value => return Ok(()),
                    Kind::Leaf | Kind::Inner if is_it && crate::tree::check_node(&bytes, header.kind).is_ok() => {}
                    _ => {
                        found.lost_pages += 1;
                        return Ok(());
                    }
                }
                if header.kind == Kind::Inner {
                    return Ok(());
                }
                let leaf = Leaf::new(&bytes);
                let layer = layers.layer_of(page, &leaf);
                source.has_loaded |= layer == Layer::LOADED;
                found.newest = found.newest.max(leaf.newest());
                Image::of(&leaf, extent, page).store(load, id, layer)
            })?;
        }
    }

    /// Returns the leaves below a node. Also returns `false` if an inner node can't be read, so that the leaves below
    /// it are not among them.
    fn leaves_below(&self, table: &PageSpace, root: PageId) -> Result<(PageSet, bool)> {
        let (mut leaves, mut is_whole) = (PageSet::default(), true);
        let mut level = vec![root];
        // A damaged node with a valid checksum may refer to a node above it.
        let mut height = u8::MAX;
        while !level.is_empty() {
            let (mut below, mut height_below) = (Vec::new(), 0);
            for pages in level.chunks(EXTENT_COUNT) {
                let listed = |page: &PageId| Some((self.store.extent_of(table.table.load(*page))?, *page));
                let listed: Vec<(ExtentRef, PageId)> = pages.iter().filter_map(listed).collect();
                is_whole &= listed.len() == pages.len();
                let extents: Vec<ExtentRef> = listed.iter().map(|(extent, _)| *extent).collect();
                self.extents.read(&extents, |index, read| {
                    let page = listed[index].1;
                    match read {
                        Ok((header, bytes))
                            if header.page_key.page == page
                                && table.is_stored_as(header.page_key.keyspace)
                                && matches!(header.kind, Kind::Leaf | Kind::Inner)
                                && crate::tree::check_node(&bytes, header.kind).is_ok() =>
                        {
                            if header.kind == Kind::Leaf {
                                leaves.add(page);
                                return Ok(());
                            }
                            let inner = Inner::new(&bytes);
                            if inner.level() >= height {
                                is_whole = false;
                                return Ok(());
                            }
                            height_below = inner.level().max(height_below);
                            let children = (0..inner.len()).map(|index| inner.child(index));
                            match inner.level() {
                                1 => children.for_each(|child| leaves.add(child)),
                                _ => below.extend(children),
                            }
                        }
                        _ => is_whole = false,
                    }
                    Ok(())
                })?;
            }
            below.sort_unstable();
            below.dedup();
            (level, height) = (below, height_below);
        }
        Ok((leaves, is_whole))
    }

    /// Searches the data file for the leaves that no table lists, and for the chunks of values. A leaf of a keyspace
    /// that was cloned is one of its clone too, if it is old enough.
    fn search(&mut self) -> Result<()> {
        let Finder { store, load, found, .. } = self;
        let is_catalogue_known = store.is_catalogue_known;
        let mut clones = if is_catalogue_known { Clones::default() } else { store.found_clones()? };
        for (&id, source) in found.keyspaces.iter().filter(|(_, source)| !source.origins.is_empty()) {
            clones.entry(id).or_insert_with(|| source.origins.clone());
        }
        let mut clones_of: BTreeMap<KeyspaceId, Vec<(KeyspaceId, CloneOrigin)>> = BTreeMap::new();
        for (&clone, origins) in &clones {
            origins.iter().for_each(|origin| clones_of.entry(origin.keyspace).or_default().push((clone, *origin)));
        }
        store.search(|extent, header, bytes| {
            let PageKey { keyspace, page } = header.page_key;
            if header.kind == Kind::Value {
                let Ok(chunk) = decode(&header, bytes) else { return Ok(()) };
                if chunk.len() < VALUE_BYTES_OFFSET {
                    return Ok(());
                }
                return store_chunk(load, ValueId(get_u64(&chunk, HEADER_BYTES)), page.0, extent);
            }
            let page_bytes = header.raw_bytes;
            if header.kind != Kind::Leaf || !is_page_bytes(page_bytes) {
                return Ok(());
            }
            let is_searched = |keyspace: &KeyspaceId| match found.keyspaces.get(keyspace) {
                None => !is_catalogue_known,
                Some(source) => source.page_bytes == page_bytes && source.is_searched(page),
            };
            let clones = clones_of.get(&keyspace).map_or(&[][..], |clones| &clones[..]);
            if !is_searched(&keyspace) && !clones.iter().any(|(clone, _)| is_searched(clone)) {
                return Ok(());
            }
            let node = match decode(&header, bytes) {
                Ok(node) if crate::tree::check_node(&node, Kind::Leaf).is_ok() => node,
                _ => return Ok(()),
            };
            let leaf = Leaf::new(&node);
            let is_loaded = leaf.newest() == Timestamp(0);
            // A new keyspace begins with an empty leaf.
            if is_loaded && leaf.is_empty() {
                return Ok(());
            }
            // A leaf's newest commit tells whether it is older than the clone. The use of its segment is less exact,
            // because a checkpoint takes segments while commits continue. But the leaves of a bulk load have no commit.
            let is_shared = |origin: &CloneOrigin| match is_loaded {
                true => extent.segment_use <= origin.last_use,
                false => leaf.newest() <= origin.as_of,
            };
            let shared_with = clones.iter().filter(|(_, origin)| is_shared(origin)).map(|(clone, _)| *clone);
            let owners: Vec<KeyspaceId> = shared_with.chain([keyspace]).filter(is_searched).collect();
            for owner in owners {
                let new = || Source::new(owner, made_up_name(owner), page_bytes, Some(Pages::Searched));
                let source = found.keyspaces.entry(owner).or_insert_with(new);
                source.has_loaded |= is_loaded;
                found.newest = found.newest.max(leaf.newest());
                let layer = if is_loaded { Layer::LOADED } else { Layer::TREE };
                Image::of(&leaf, extent, page).store(load, owner, layer)?;
            }
            Ok(())
        })?;
        for (clone, origins) in clones {
            if let Some(source) = found.keyspaces.get_mut(&clone) {
                source.origins = origins;
            }
        }
        Ok(())
    }

    /// Finds the leaves of the bulk loads that the log's records attach. Returns the loads, and the number of their
    /// pages that could not be read.
    pub(super) fn find_attached(
        mut self,
        scan: &Scan,
        log_path: &Path,
        damage: &mut Vec<Error>,
    ) -> Result<(Vec<AttachedLoad>, u64)> {
        let mut loads = Vec::new();
        for record in scan.records()? {
            // The records are read again when they are applied, which reports the error.
            let Ok(record) = record else { break };
            for (keyspace, operation) in record::decode(&record.body).flatten() {
                if let Operation::Attach(attachment) = operation {
                    let layer = Layer(Layer::FIRST_RUN.0 + (1 << 16) + loads.len() as u32);
                    let load = AttachedLoad { keyspace, timestamp: record.timestamp, layer };
                    self.find_load(&load, &attachment, log_path, damage)?;
                    loads.push(load);
                }
            }
        }
        self.load.finish()?;
        Ok((loads, self.found.lost_pages))
    }

    fn find_load(
        &mut self,
        load: &AttachedLoad,
        attachment: &Attachment,
        log_path: &Path,
        damage: &mut Vec<Error>,
    ) -> Result<()> {
        let (mut extents, mut lost_chunks) = (Vec::new(), Vec::new());
        if let AttachedRoot::Tree(root) = attachment.root {
            extents.push((root, PageId::ROOT));
        }
        for &(chunk, extent) in &attachment.images {
            let key = PageKey { keyspace: load.keyspace, page: PageId(chunk) };
            let table = match self.extents.read_one(extent) {
                Ok((header, table)) if header.kind == Kind::Table && header.page_key == key => table,
                read => {
                    let reason =
                        read.map_or_else(|error| error.to_string(), |_| "it belongs to another page".to_owned());
                    let what = format!("a page table that timestamp {} names", load.timestamp);
                    damage.push(Error::corrupted(log_path, what, reason));
                    lost_chunks.push(chunk as usize);
                    continue;
                }
            };
            let first_page = chunk.saturating_mul(TABLE_PAGES as u32);
            for (page, bits) in (first_page..).zip(table[HEADER_BYTES..].chunks_exact(8)) {
                let Some(address) = ExtentAddress::from_bits(get_u64(bits, 0)) else { continue };
                let segment_use = attachment.use_of(self.store.segment_of(address)).unwrap_or(SegmentUse::UNKNOWN);
                extents.push((ExtentRef { address, segment_use }, PageId(page)));
            }
            if extents.len() >= SORTED_COUNT {
                self.read_load(load, &mut extents)?;
            }
        }
        if !lost_chunks.is_empty() {
            self.search_load(load.keyspace, attachment, &lost_chunks, &mut extents)?;
        }
        self.read_load(load, &mut extents)
    }

    /// Reads pages of a bulk load, and removes them from the list.
    fn read_load(&mut self, load: &AttachedLoad, extents: &mut Vec<(ExtentRef, PageId)>) -> Result<()> {
        let Finder { extents: reader, load: images, found, .. } = self;
        read_sorted(reader, extents, |extent, page, read| {
            let Ok((header, bytes)) = read else {
                found.lost_pages += 1;
                return Ok(());
            };
            match header.kind {
                Kind::Value if bytes.len() >= VALUE_BYTES_OFFSET => {
                    store_chunk(images, ValueId(get_u64(&bytes, HEADER_BYTES)), header.page_key.page.0, extent)
                }
                Kind::Leaf
                    if header.page_key == PageKey { keyspace: load.keyspace, page }
                        && crate::tree::check_node(&bytes, Kind::Leaf).is_ok() =>
                {
                    Image::of(&Leaf::new(&bytes), extent, page).store(images, load.keyspace, load.layer)
                }
                _ => Ok(()),
            }
        })?;
        extents.clear();
        Ok(())
    }

    /// Finds the pages of a bulk load whose page table is lost in some chunks: they are in the load's segments.
    fn search_load(
        &mut self,
        keyspace: KeyspaceId,
        attachment: &Attachment,
        lost_chunks: &[usize],
        extents: &mut Vec<(ExtentRef, PageId)>,
    ) -> Result<()> {
        let segment_bytes = self.store.segment_bytes;
        self.store.search(|extent, header, _| {
            let segment = SegmentId((extent.address.start() / segment_bytes) as u32);
            let is_of_load =
                header.page_key.keyspace == keyspace && attachment.use_of(segment) == Some(extent.segment_use);
            let page = header.page_key.page;
            let is_lost = match header.kind {
                Kind::Leaf => lost_chunks.contains(&(page.0 as usize / TABLE_PAGES)),
                // The numbers in a value's extents are not those of pages.
                Kind::Value => true,
                _ => false,
            };
            if is_of_load && is_lost {
                extents.push((extent, page));
            }
            Ok(())
        })
    }
}
