//! The pages of a bulk load. They are written directly, bypassing the pool. Readers can't reach them until the load is
//! attached.
//!
//! A load has page numbers of its own: whole chunks of its keyspace's page table, in which no page was in use when the
//! load took them. Its pages are packed into segments of its own and written in whole buffers. Their entries are
//! `Unattached`. Once all pages have been written, each of the table's chunks is written too, as the base image to
//! which the next checkpoint will refer.
//!
//! # Invariants
//! 1. Before a load is attached, nothing durable refers to any part of it. So a power cut leaves no trace of the load,
//!    and its segments are free at the next opening.
//! 2. A load that is dropped before it is attached returns everything: page numbers, extents, the open segment.
//! 3. All appended pages have been written, though not synced, when [`finish`](LoadPages::finish) or
//!    [`finish_run`](LoadPages::finish_run) returns.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::extent::{Encoder, HEADER_BYTES, Kind, PageKey, TABLE_PAGES};
use crate::format::{Epoch, ExtentAddress, KeyspaceId, PageId, SegmentId, SegmentUse};
use crate::pool::{Deferred, Pool};
use crate::space::appender::{Appender, WriteBuffers, WriteJob};
use crate::space::runs::RunRows;
use crate::space::table::CHUNK_BYTES;
use crate::space::{PageEntry, PageSpace, Purpose};
use crate::txn::Reclaim;

/// Limit on the number of page table chunks that a load reserves in advance: enough for 128 MiB of 4 KiB pages.
const CHUNKS_AT_ONCE_MAX: usize = 32;

/// The result of a complete load that has not been attached yet: its page tables and its root.
#[derive(Debug)]
pub(crate) struct LoadTables {
    /// The load's chunks of the keyspace's page table, ascending, with the addresses of their images. A chunk without
    /// pages has no image.
    pub(crate) images: Vec<(usize, ExtentAddress)>,
    pub(crate) root: LoadRoot,
    /// The leaves and rows, unless they are replayed from the log.
    pub(crate) written: Option<RunRows>,
}

/// The root of a complete load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LoadRoot {
    /// The load replaces the root of its keyspace.
    Tree(ExtentAddress),
    /// The load is a run above its keyspace's tree.
    Run(PageId),
}

/// The two uses of a complete load: as the tree of its keyspace, or as a run above that tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placement {
    Tree,
    Run,
}

/// The pages that a bulk load writes. See the module.
pub(crate) struct LoadPages {
    pool: Arc<Pool>,
    pages: Arc<PageSpace>,
    appender: Appender,
    epoch: Epoch,
    /// The load's chunks of the page table, in the order in which they were taken.
    chunks: Vec<usize>,
    /// The unused page numbers in the chunks that were taken last.
    numbers: Range<usize>,
    /// `Some` once the tables have been written.
    tables: Option<LoadTables>,
    /// The root node, until it is written.
    root_node: Option<(Kind, Vec<u8>)>,
    /// The address of the root, if it was written as page 1.
    root: ExtentAddress,
    encoder: Encoder,
    /// The write of the last buffer that was handed over.
    write: Option<Deferred<()>>,
    reclaim: Arc<dyn Reclaim>,
    /// The number of leaves, and of the rows in them.
    leaf_count: u64,
    leaf_rows: u64,
    /// The number of rows that only remove the older row with their key.
    removal_count: u64,
    /// `true` once the pages belong to the keyspace.
    is_attached: bool,
}

/// The way to treat the extents that are still in the buffer.
#[derive(Clone, Copy)]
enum Buffered {
    Write,
    Drop,
}

impl std::fmt::Debug for LoadPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadPages({} chunks of keyspace {})", self.chunks.len(), self.pages.id)
    }
}

impl LoadPages {
    /// Begins a load that writes `buffer_bytes` at a time.
    pub(crate) fn new(
        pool: &Arc<Pool>,
        pages: &Arc<PageSpace>,
        buffer_bytes: usize,
        reclaim: &Arc<dyn Reclaim>,
    ) -> LoadPages {
        assert!(buffer_bytes > pages.page_bytes(), "a page does not fit into a buffer of {buffer_bytes} bytes");
        let buffers = WriteBuffers::new(buffer_bytes.min(pool.space.segments.segment_bytes() as usize));
        LoadPages {
            pool: Arc::clone(pool),
            pages: Arc::clone(pages),
            appender: Appender::new(Arc::new(buffers)),
            epoch: pool.space.epoch_latch.shared().epoch(),
            chunks: Vec::new(),
            numbers: 0..0,
            tables: None,
            root_node: None,
            root: ExtentAddress::NONE,
            encoder: Encoder::default(),
            write: None,
            reclaim: Arc::clone(reclaim),
            leaf_count: 0,
            leaf_rows: 0,
            removal_count: 0,
            is_attached: false,
        }
    }

    /// Returns the load's keyspace.
    pub(crate) fn keyspace(&self) -> KeyspaceId {
        self.pages.id
    }

    /// Counts a leaf with this many rows.
    pub(super) fn count_leaf(&mut self, rows: u64) {
        self.leaf_count += 1;
        self.leaf_rows += rows;
    }

    /// Counts a row that only removes the older row with its key.
    pub(super) fn count_removal(&mut self) {
        self.removal_count += 1;
    }

    /// Takes `count` consecutive page numbers. Amortised O(count).
    pub(crate) fn take_numbers(&mut self, count: usize) -> Result<PageId> {
        assert!(count > 0 && self.tables.is_none(), "{count} pages are added to a load that is complete");
        if self.numbers.len() < count {
            // Double the number of chunks, so that small loads take few of them and large loads rarely have to take
            // more.
            let more = (count - self.numbers.len()).div_ceil(TABLE_PAGES);
            let chunk_count = more.max(self.chunks.len().min(CHUNKS_AT_ONCE_MAX));
            self.grow(count.div_ceil(TABLE_PAGES).max(chunk_count))?;
        }
        assert!(self.numbers.len() >= count, "{count} numbers are taken of {:?}", self.numbers);
        let first = self.numbers.start;
        self.numbers.start += count;
        Ok(PageId(u32::try_from(first).expect("page numbers are checked when chunks are taken")))
    }

    fn grow(&mut self, chunk_count: usize) -> Result<()> {
        let (space, table) = (&self.pool.space, &self.pages.table);
        let page_count = (chunk_count * TABLE_PAGES) as u64;
        if !table.has_numbers(page_count) {
            let name = self.pages.quoted_name();
            return Err(Error::Invalid(format!("keyspace {name} has used up its page numbers: load into another")));
        }
        space.check_table_growth(table.growth_bytes_max(page_count))?;
        self.pool.fit_frames(chunk_count as u64 * CHUNK_BYTES)?;
        // A chunk that had pages at the checkpoint from which recovery would begin may hold them during the replay.
        let first = table.allocate_chunks(chunk_count, space.segments.settled());
        assert!(!self.chunks.contains(&first), "chunk {first} is given out twice");
        let start = first * TABLE_PAGES;
        // If no other load has taken chunks since, the remaining numbers and the new ones form one range.
        self.numbers =
            if self.numbers.end == start { self.numbers.start } else { start }..start + chunk_count * TABLE_PAGES;
        self.chunks.extend(first..first + chunk_count);
        Ok(())
    }

    /// Appends a page under a number that the load has taken.
    pub(crate) fn append(&mut self, number: PageId, name: PageKey, kind: Kind, page: &[u8]) -> Result<()> {
        let address = self.append_extent(name, kind, page)?;
        self.pages.table.store(number, PageEntry::Unattached(address));
        Ok(())
    }

    /// Stores the root node until the caller decides whether the load becomes the tree or a run.
    pub(crate) fn set_root(&mut self, kind: Kind, page: &[u8]) {
        let before = self.root_node.replace((kind, page.to_vec()));
        assert!(before.is_none(), "a load has two roots");
    }

    /// Appends the root as page 1.
    fn append_root(&mut self) -> Result<()> {
        assert!(self.root.is_none(), "a load has two roots");
        let name = PageKey { keyspace: self.pages.id, page: PageId::ROOT };
        let (kind, page) = self.root_node.take().expect("the load is complete");
        let appended = self.append_extent(name, kind, &page);
        self.root_node = Some((kind, page));
        self.root = appended?;
        Ok(())
    }

    /// Appends the root under a number of its own.
    fn append_run_root(&mut self) -> Result<PageId> {
        let page = self.take_numbers(1)?;
        assert!(page != PageId::ROOT, "a run has the root's number");
        let (kind, node) = self.root_node.take().expect("the load is complete");
        let appended = self.append(page, PageKey { keyspace: self.pages.id, page }, kind, &node);
        self.root_node = Some((kind, node));
        appended.map(|()| page)
    }

    /// Takes over extents that were written elsewhere, as pages with consecutive numbers from `first`. The load must
    /// own these page numbers.
    pub(crate) fn adopt(&mut self, first: PageId, addresses: &[ExtentAddress]) {
        assert!(first != PageId::ROOT && !addresses.is_empty(), "a value of no extents is taken over");
        for (number, &address) in (first.0..).zip(addresses) {
            self.pages.table.store(PageId(number), PageEntry::Unattached(address));
        }
    }

    /// Takes over the pages of a value from another load of the keyspace, and gives them new page numbers. The old page
    /// numbers stay reserved for the other load. Returns the first new page number.
    pub(crate) fn take_over(&mut self, from: &LoadPages, first: PageId, count: u32) -> Result<PageId> {
        assert!(from.keyspace() == self.keyspace() && !from.is_attached, "a value is taken from {from:?}");
        let taken = self.take_numbers(count as usize)?;
        for (old, new) in (first.0..first.0 + count).zip(taken.0..) {
            let address = from.address(PageId(old));
            self.pages.table.store(PageId(old), PageEntry::Reserved);
            self.pages.table.store(PageId(new), PageEntry::Unattached(address));
        }
        Ok(taken)
    }

    /// Returns the address of an appended page other than the root.
    pub(crate) fn address(&self, page: PageId) -> ExtentAddress {
        match self.pages.table.load(page) {
            PageEntry::Unattached(address) => address,
            entry => unreachable!("page {page} of a load that is not attached is {entry:?}"),
        }
    }

    /// Returns the address of the root, which must have been appended.
    pub(crate) fn root(&self) -> ExtentAddress {
        assert!(!self.root.is_none(), "a load without a root is read");
        self.root
    }

    /// Frees the extents of these pages.
    pub(crate) fn discard(&mut self, first: PageId, count: u32) {
        assert!(self.tables.is_none(), "pages of a complete load are given back");
        // Wait, because the segment may be reused immediately. Ignore an error: the database has failed, so it will be
        // reported again.
        let _ = self.wait_for_write();
        for number in (first.0..first.0 + count).map(PageId) {
            let address = self.address(number);
            self.pages.table.store(number, PageEntry::Reserved);
            self.pool.space.segments.discard(address);
        }
    }

    fn append_extent(&mut self, name: PageKey, kind: Kind, page: &[u8]) -> Result<ExtentAddress> {
        self.pool.space.check_failure()?;
        assert!(!self.is_attached, "a load that is attached goes on");
        if self.appender.is_full(self.encoder.encode(page, name, kind).len()) {
            // The load has only two buffers: one is being written while the other is being filled.
            self.wait_for_write()?;
        }
        let space = &self.pool.space;
        let mut jobs = Vec::new();
        let mut has_reclaimed = false;
        let address = loop {
            let take = || space.take_segment(Purpose::Value);
            let extent = self.encoder.encoded();
            let appended = self.appender.append(&space.segments, self.epoch, extent, None, &mut jobs, take);
            match appended {
                Err(Error::DiskFull { .. }) if !std::mem::replace(&mut has_reclaimed, true) => {
                    self.reclaim.reclaim_space()?;
                }
                other => break other,
            }
        };
        for job in jobs {
            self.wait_for_write()?;
            self.write = Some(write_behind(&self.pool, job));
        }
        address
    }

    fn wait_for_write(&mut self) -> Result<()> {
        assert!(!self.is_attached, "a load that is attached has a buffer to be written");
        self.write.take().map_or(Ok(()), Deferred::wait)
    }

    /// Completes a sorted run by writing out the buffer. Its pages can be read afterwards, but will never be attached.
    pub(crate) fn finish_run(&mut self) -> Result<()> {
        assert!(self.root.is_none() && self.tables.is_none(), "a sorted run is completed twice");
        self.append_root()?;
        self.seal(Buffered::Write)
    }

    /// Completes a load by writing the chunks of the page table, and then everything in the buffer; O(pages). Nothing
    /// can be appended afterwards.
    pub(crate) fn finish(&mut self, placement: Placement) -> Result<()> {
        assert!(self.tables.is_none(), "a load is completed twice");
        let root = match placement {
            Placement::Tree => {
                self.append_root()?;
                LoadRoot::Tree(self.root)
            }
            Placement::Run => LoadRoot::Run(self.append_run_root()?),
        };
        let mut images = Vec::with_capacity(self.chunks.len());
        for chunk in self.chunks.clone() {
            let mut page = vec![0; HEADER_BYTES];
            for number in chunk * TABLE_PAGES..(chunk + 1) * TABLE_PAGES {
                let bits = match self.pages.table.load(PageId(number as u32)) {
                    PageEntry::Unattached(address) => address.to_bits(),
                    _ => 0,
                };
                page.extend(bits.to_le_bytes());
            }
            let name = PageKey { keyspace: self.pages.id, page: PageId(chunk as u32) };
            let is_empty = page[HEADER_BYTES..].iter().all(|byte| *byte == 0);
            let image = if is_empty { ExtentAddress::NONE } else { self.append_extent(name, Kind::Table, &page)? };
            images.push((chunk, image));
        }
        self.seal(Buffered::Write)?;
        images.sort_unstable_by_key(|(chunk, _)| *chunk);
        let (leaf_count, row_count, removal_count) = (self.leaf_count, self.leaf_rows, self.removal_count);
        assert!(removal_count <= row_count, "{removal_count} of {row_count} rows remove one");
        self.tables =
            Some(LoadTables { images, root, written: Some(RunRows { leaf_count, row_count, removal_count }) });
        Ok(())
    }

    /// Completes a load again, as a run, because its keyspace received rows before the load could replace the root.
    pub(crate) fn finish_as_run(&mut self) -> Result<()> {
        let tables = self.tables.take().expect("the load is complete");
        assert!(matches!(tables.root, LoadRoot::Tree(_)), "a load is made a run twice");
        self.wait_for_write()?;
        let written = tables.images.into_iter().map(|(_, address)| address);
        let outdated = written.chain([std::mem::replace(&mut self.root, ExtentAddress::NONE)]);
        outdated.filter(|address| !address.is_none()).for_each(|address| self.pool.space.segments.discard(address));
        self.finish(Placement::Run)
    }

    /// Returns the tables of a [complete](Self::finish) load.
    pub(crate) fn tables(&self) -> &LoadTables {
        self.tables.as_ref().expect("the load is complete")
    }

    /// Closes the open segment, and writes its buffered extents or drops them.
    fn seal(&mut self, buffered: Buffered) -> Result<()> {
        let mut jobs = Vec::new();
        self.appender.seal(&self.pool.space.segments, &mut jobs);
        let write = self.write.take();
        match buffered {
            Buffered::Write => {
                write.map_or(Ok(()), Deferred::wait)?;
                jobs.iter().try_for_each(|job| self.pool.space.write(job.bytes(), job.offset))
            }
            Buffered::Drop => {
                drop(write);
                Ok(())
            }
        }
    }

    /// Returns the addresses of all pages of the load except the root.
    fn written(&self) -> impl Iterator<Item = ExtentAddress> + '_ {
        let numbers = self.chunks.iter().flat_map(|chunk| chunk * TABLE_PAGES..(chunk + 1) * TABLE_PAGES);
        numbers.filter_map(|number| match self.pages.table.load(PageId(number as u32)) {
            PageEntry::Unattached(address) => Some(address),
            _ => None,
        })
    }

    /// Returns the segments that contain a complete load, each with its current use.
    pub(crate) fn segments(&self) -> BTreeMap<SegmentId, SegmentUse> {
        let segments = &self.pool.space.segments;
        let tables = self.tables();
        debug_assert!(tables.images.is_sorted_by(|left, right| left.0 < right.0), "two images of one chunk");
        // The root of a run is among the pages.
        let others = tables.images.iter().map(|(_, address)| *address).chain([self.root]);
        let addresses = self.written().chain(others);
        let of = |address| (segments.segment_of(address), segments.name(address).segment_use);
        addresses.filter(|address| !address.is_none()).map(of).collect()
    }

    /// Deallocates the write buffers of a complete load.
    pub(super) fn free_buffers(&mut self) {
        assert!(self.tables.is_some() && self.write.is_none(), "a load that is being written frees its buffers");
        self.appender.free_buffers();
    }

    /// Leaves the pages to the keyspace that they were attached to.
    pub(crate) fn release(&mut self) {
        assert!(self.tables.is_some(), "a load is attached before it is complete");
        self.pages.leaves_on_disk.add(self.leaf_count as i64, self.leaf_rows as i64);
        self.is_attached = true;
    }
}

/// Hands a buffer over for writing, so that the load can fill its other buffer in the meantime.
fn write_behind(pool: &Arc<Pool>, job: WriteJob) -> Deferred<()> {
    assert!(!job.bytes().is_empty(), "a write of nothing is handed over");
    assert!(job.frames.is_empty(), "frames of a pool wait for a write that is not the pool's");
    Deferred::begin(pool, move |pool| pool.space.write(job.bytes(), job.offset))
}

impl Drop for LoadPages {
    fn drop(&mut self) {
        // In a forked child, everything belongs to the parent.
        if self.is_attached || !self.pool.process.is_here() {
            return;
        }
        // Drop the buffer, because nothing needs it. Ignore errors: the database may have failed or been closed.
        let _ = self.seal(Buffered::Drop);
        let segments = &self.pool.space.segments;
        for chunk in &self.chunks {
            for number in chunk * TABLE_PAGES..(chunk + 1) * TABLE_PAGES {
                match self.pages.table.free(PageId(number as u32)) {
                    PageEntry::Unattached(address) => segments.discard(address),
                    entry => assert!(entry == PageEntry::Reserved, "page {number} of a load became {entry:?}"),
                }
            }
        }
        let tables = self.tables.iter().flat_map(|tables| &tables.images).map(|(_, address)| *address);
        tables.chain([self.root]).filter(|address| !address.is_none()).for_each(|address| segments.discard(address));
        crate::coverage::mark!("a bulk load was given up");
    }
}
