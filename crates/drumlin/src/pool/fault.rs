//! Page faults of threads: read a page into a frame, verify it, and publish it.

use std::sync::atomic::Ordering;
use std::task::Waker;

use super::frame_header::Residency;
use super::frames::NewFrame;
use super::needs::{Wanted, WantedContent};
use super::{PageLocks, Pool};
use crate::error::{Error, Result};
use crate::format::extent::{ExtentError, HEADER_BYTES, Kind, PageKey, VALUE_BYTES_OFFSET};
use crate::format::{ExtentAddress, KeyspaceId, PageId, ValueId, extent, get_u64};
use crate::io::AlignedBuffer;
use crate::space::{PageEntry, PageSpace};

impl Pool {
    /// Brings a page into memory, unless it is already there or its page number is free.
    pub(crate) fn fault(&self, pages: &PageSpace, wanted: Wanted) -> Result<()> {
        let Wanted { page, frame_bytes, .. } = wanted;
        loop {
            match pages.table.load(page) {
                PageEntry::OnDisk(address) if address.length() > frame_bytes as u64 => {
                    return Err(self.space.corrupted(&pages.quoted_page(page), address, ExtentError::Length));
                }
                PageEntry::OnDisk(address) => {
                    self.space.check_open()?;
                    let frame = self.take_frame(frame_bytes)?;
                    if pages.table.exchange(page, PageEntry::OnDisk(address), PageEntry::Reading(address)) {
                        self.cache.misses.fetch_add(1, Ordering::Relaxed);
                        let mut buffer = self.buffers.take(self.space.cover(address).1);
                        let result = self.read_into(pages, wanted, address, frame, &mut buffer);
                        self.buffers.give(buffer);
                        return result;
                    }
                }
                PageEntry::Reading(_) => {
                    crate::coverage::mark!("a page was wanted while another thread read it");
                    self.wait_for_arrival(pages, page);
                }
                _ => return Ok(()),
            }
        }
    }

    pub(super) fn read_into(
        &self,
        pages: &PageSpace,
        wanted: Wanted,
        address: ExtentAddress,
        frame: NewFrame<'_>,
        buffer: &mut AlignedBuffer,
    ) -> Result<()> {
        let (start, _, offset) = self.space.cover(address);
        let in_flight = (!wanted.is_of_scan).then(|| self.space.share.foreground());
        let result = self.space.read(buffer, start);
        drop(in_flight);
        self.arrive(pages, wanted, address, frame, result, &buffer[offset..])
    }

    /// Completes a read: verifies the extent and publishes the page, or restores the entry and returns the error.
    pub(super) fn arrive(
        &self,
        pages: &PageSpace,
        wanted: Wanted,
        address: ExtentAddress,
        frame: NewFrame<'_>,
        result: std::io::Result<()>,
        bytes: &[u8],
    ) -> Result<()> {
        debug_assert!(address.length() <= frame.len() as u64, "an extent is read that is longer than its frame");
        let page = wanted.page;
        let page_key = PageKey { keyspace: pages.id, page };
        let reading = PageEntry::Reading(address);
        let outcome = match result {
            Ok(()) => self.decode_into_frame(pages, page_key, wanted.content, address, frame, bytes),
            Err(error) => Err(Error::io("reading", self.space.path(), error)),
        };
        let result = match outcome {
            Ok(entry) => {
                if !pages.table.exchange(page, reading, entry) {
                    // The keyspace was dropped during the read.
                    crate::coverage::mark!("a page was read after its keyspace was dropped");
                    self.withdraw(entry, page_key);
                }
                Ok(())
            }
            Err(error) => {
                if pages.table.exchange(page, reading, PageEntry::OnDisk(address)) {
                    Err(self.space.read_error(error))
                } else {
                    Ok(())
                }
            }
        };
        self.announce_arrival(pages, page);
        result
    }

    /// Wakes the threads and tasks that wait for this page's read. The page's entry already shows that the read has
    /// ended.
    pub(super) fn announce_arrival(&self, pages: &PageSpace, page: PageId) {
        let locks = self.page_locks(pages, page);
        let tasks: Vec<Waker> = {
            let mut waiting = locks.waiting.lock();
            let of_page =
                |(keyspace, other, _): &mut (KeyspaceId, PageId, Waker)| *keyspace == pages.id && *other == page;
            waiting.extract_if(.., of_page).map(|(_, _, waker)| waker).collect()
        };
        locks.arrived.notify_all();
        tasks.into_iter().for_each(Waker::wake);
    }

    /// Decodes an extent into the frame if it holds the wanted page. Returns the entry to publish.
    pub(super) fn decode_into_frame(
        &self,
        pages: &PageSpace,
        page_key: PageKey,
        wanted: WantedContent,
        address: ExtentAddress,
        mut frame: NewFrame<'_>,
        bytes: &[u8],
    ) -> Result<PageEntry> {
        let what = || self.space.quoted_page(page_key);
        let corrupted = |reason: ExtentError| self.space.corrupted(&what(), address, reason);
        let bytes = &bytes[..address.length() as usize];
        let header = self.space.verify(address, bytes).map_err(corrupted)?;
        // The extents of a value are numbered within the value, so they are identified by the value id instead.
        let page = match wanted {
            WantedContent::Node => page_key.page,
            WantedContent::Value(_) => header.page_key.page,
        };
        if header.page_key.page != page || !pages.is_stored_as(header.page_key.keyspace) {
            return Err(corrupted(ExtentError::PageKey(header.page_key)));
        }
        if header.raw_bytes > frame.len() {
            return Err(corrupted(ExtentError::Length));
        }
        let raw_bytes = header.raw_bytes;
        extent::decode(bytes, &header, &mut frame[..raw_bytes]).map_err(corrupted)?;
        let leaf = match (wanted, header.kind) {
            (WantedContent::Node, Kind::Leaf | Kind::Inner) => {
                (self.nodes.verify)(&frame, header.kind)
                    .map_err(|reason| self.space.corrupted(&what(), address, reason))?;
                header.kind == Kind::Leaf
            }
            (WantedContent::Value(id), Kind::Value) => {
                if raw_bytes < VALUE_BYTES_OFFSET || ValueId(get_u64(&frame, HEADER_BYTES)) != id {
                    return Err(corrupted(ExtentError::PageKey(header.page_key)));
                }
                false
            }
            _ => return Err(corrupted(ExtentError::Kind)),
        };
        frame.header().set_address(address);
        frame.header().set_rows_on_disk(leaf.then(|| (self.nodes.row_count)(&frame) as u32));
        let frame = frame.into_published(page_key);
        Ok(if leaf { PageEntry::Leaf(frame) } else { PageEntry::Immutable(frame) })
    }

    pub(super) fn withdraw(&self, entry: PageEntry, page_key: PageKey) {
        let (PageEntry::Leaf(frame) | PageEntry::Immutable(frame)) = entry else {
            unreachable!("an extent is decoded into a frame")
        };
        let write = self.frames.write(frame, page_key);
        debug_assert!(write.is_some(), "a page that no entry shows was taken out of its frame");
        if let Some(write) = write {
            write.unlink(Residency::of(entry, frame));
        }
    }

    pub(super) fn page_locks(&self, pages: &PageSpace, page: PageId) -> &PageLocks {
        &self.page_locks[(page.0 ^ pages.id.0.rotate_left(16)) as usize % self.page_locks.len()]
    }

    pub(super) fn wait_for_arrival(&self, pages: &PageSpace, page: PageId) {
        let locks = self.page_locks(pages, page);
        let mut waiting = locks.waiting.lock();
        while matches!(pages.table.load(page), PageEntry::Reading(_)) {
            locks.arrived.wait(&mut waiting);
        }
    }
}
