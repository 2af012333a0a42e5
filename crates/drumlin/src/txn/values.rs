//! Values that are too large for their leaf. They are stored in their own extents, and the extents have page numbers in
//! the keyspace's page table.
//!
//! - A *medium* value fits in one extent of at most one 64 KiB page. The log record contains its bytes. Its extent is
//!   packed with pages and read through the pool.
//! - A *large* value is split into chunks. They are written and synced before the record that refers to them. Reads of
//!   chunks bypass the pool, so reading one film does not evict everything else.
//!
//! The payload of an extent is the value's id (8 bytes), followed by its bytes.
//!
//! # Invariant
//!
//! Until a commit refers to a large value, its [`LargeValue`] owns its extents. The transaction that put the value
//! shares the `LargeValue` with readers of its own writes. Once a commit refers to the value, a page table owns the
//! extents. A reader then reads the value like that of any other row, and the reader's snapshot, which is older than
//! the commit, protects the extents from being freed.
//!
//! A prepared transaction stores its large values as rows of the hidden keyspace ([`KeyspaceId::PREPARED`]), whose page
//! table owns the extents until the transaction ends. The commit moves the entries from that page table to the one of
//! the value's own keyspace. The extents stay where they are, and name the value's own keyspace from the beginning.

use std::borrow::Cow;
use std::future::poll_fn;
use std::io::Read;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use futures_io::AsyncRead;

use crate::error::{Error, Result};
use crate::format::extent::{self, HEADER_BYTES, Header, Kind, PageKey};
use crate::format::node::LargeRef;
use crate::format::{BLOCK_BYTES, ChunkNumber, ExtentAddress, KeyspaceId, PageId, ValueId, get_u64, put_u64};
use crate::memory::Grant;
use crate::pool::{PAGE_BYTES_MAX, PAGE_BYTES_MIN, Pool, Wanted};
use crate::space::extents::open_extent_into;
use crate::space::{EpochGuard, PageEntry, PageSpace};
use crate::task::{Boxed, WaitMode, turn};
use crate::tree::Tree;

use super::Reclaim;

/// The header and the value id, which precede the bytes of a chunk.
const CHUNK_OVERHEAD_BYTES: usize = extent::VALUE_BYTES_OFFSET;

/// The maximum size of a value that is stored in one extent and whose bytes are also in the log record.
pub(crate) const MEDIUM_BYTES_MAX: usize = PAGE_BYTES_MAX - CHUNK_OVERHEAD_BYTES;

/// The maximum number of values that are prefetched together.
const UPCOMING_VALUES_MAX: usize = 256;
/// Values that are prefetched together may occupy one in this many frames. They are few enough that the first value is
/// still in memory when the last one arrives.
const UPCOMING_SHARE: usize = 8;

/// Returns the page of a medium value, with its header left blank.
pub(crate) fn medium_page(value_id: ValueId, value: &[u8]) -> Vec<u8> {
    assert!(value.len() <= MEDIUM_BYTES_MAX, "a value of {} bytes is no medium one", value.len());
    let mut page = Vec::with_capacity(CHUNK_OVERHEAD_BYTES + value.len());
    page.resize(CHUNK_OVERHEAD_BYTES, 0);
    put_u64(&mut page, HEADER_BYTES, value_id.0);
    page.extend_from_slice(value);
    page
}

/// Appends a medium value to the current epoch's segment. No page table refers to the value yet.
pub(crate) fn append_medium(tree: &Tree, key: &[u8], value_id: ValueId, value: &[u8]) -> Result<ExtentAddress> {
    let (pool, pages) = (&tree.pool, &tree.pages);
    assert!(value.len() > tree.inline_bytes_max(key), "a value of {} bytes belongs into its leaf", value.len());
    let page = medium_page(value_id, value);
    let epoch_guard = pool.space.epoch_latch.shared();
    let name = PageKey { keyspace: pages.id, page: PageId(0) };
    pool.space.append(epoch_guard.epoch(), name, Kind::Value, &page, None)
}

/// A reader that supplies the bytes of a large value.
pub(crate) trait Source {
    /// Fills `buffer`, or only the beginning of it if the source ends. Returns the number of bytes that were read.
    async fn fill(&mut self, buffer: &mut [u8]) -> Result<usize>;
}

/// A blocking reader.
pub(crate) struct Blocking<R>(pub(crate) R);

impl<R: Read> Source for Blocking<R> {
    async fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        read_up_to(&mut self.0, buffer)
    }
}

/// An asynchronous reader.
pub(crate) struct ForTasks<R>(pub(crate) R);

impl<R: AsyncRead + Unpin> Source for ForTasks<R> {
    async fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let read = poll_fn(|context| Pin::new(&mut self.0).poll_read(context, &mut buffer[filled..]));
            match read.await {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Source { source: error.into() }),
            }
        }
        Ok(filled)
    }
}

/// A value that has been written to extents. If it is dropped before a commit refers to the extents, the extents are
/// freed.
#[derive(Debug)]
pub(crate) struct LargeValue {
    pub(crate) length: u64,
    pub(crate) value_id: ValueId,
    pub(crate) addresses: Vec<ExtentAddress>,
    /// The reference. It is set once a page table refers to the extents.
    reference: OnceLock<LargeRef>,
    /// Set if that page table belongs to the keyspace of prepared transactions.
    is_prepared: AtomicBool,
    /// `true` once a load owns the extents.
    is_left: AtomicBool,
    /// `None` for a value in a log record, and for one that a prepared transaction has stored.
    pool: Option<Arc<Pool>>,
    stored: Option<StoredValue>,
}

/// The pages of a large value that a prepared transaction has stored.
#[derive(Debug)]
pub(crate) struct StoredValue {
    pages: Arc<PageSpace>,
    reference: LargeRef,
}

impl LargeValue {
    fn new(pool: &Arc<Pool>, value_id: ValueId, addresses: Vec<ExtentAddress>) -> LargeValue {
        LargeValue::with(0, value_id, addresses, Some(Arc::clone(pool)), None)
    }

    /// Creates a value that a log record refers to.
    pub(crate) fn of_record(length: u64, value_id: ValueId, addresses: Vec<ExtentAddress>) -> LargeValue {
        LargeValue::with(length, value_id, addresses, None, None)
    }

    /// Creates a value that a prepared transaction has stored in the hidden keyspace with these pages. Fails if they
    /// are not pages of a large value.
    pub(crate) fn of_prepared(pool: &Pool, pages: &Arc<PageSpace>, reference: &LargeRef) -> Result<LargeValue> {
        assert!(pages.id == KeyspaceId::PREPARED, "a value is stored in keyspace {}", pages.id);
        let numbers = (0..reference.chunk_count).map(|index| PageId(reference.first_page.0.saturating_add(index)));
        let address = |page| match pages.table.load(page) {
            PageEntry::OnDisk(address) | PageEntry::Reading(address) => Ok(address),
            _ => Err(misnamed(pool, pages, "it names pages that are no value's")),
        };
        let addresses = numbers.map(address).collect::<Result<_>>()?;
        let stored = Some(StoredValue { pages: Arc::clone(pages), reference: *reference });
        Ok(LargeValue::with(reference.length, reference.id, addresses, None, stored))
    }

    fn with(
        length: u64,
        value_id: ValueId,
        addresses: Vec<ExtentAddress>,
        pool: Option<Arc<Pool>>,
        stored: Option<StoredValue>,
    ) -> LargeValue {
        assert!(pool.is_none() || stored.is_none(), "a value is written and stored");
        let (reference, is_prepared, is_left) = (OnceLock::new(), AtomicBool::new(false), AtomicBool::new(false));
        LargeValue { length, value_id, addresses, reference, is_prepared, is_left, pool, stored }
    }

    /// Returns the addresses of the extents, for a commit that assigns page numbers to them under the epoch latch. If a
    /// prepared transaction has stored the value, takes the extents from the pages that have them: the reclaimer may
    /// have moved them since the commit began.
    pub(crate) fn take_addresses(&self, pool: &Pool, epoch_guard: &EpochGuard<'_>) -> Cow<'_, [ExtentAddress]> {
        match &self.stored {
            None => Cow::Borrowed(&self.addresses),
            Some(StoredValue { pages, reference }) => {
                crate::coverage::mark!("the large values of a prepared transaction were put");
                let taken = pool.take_pages(epoch_guard, pages, reference.first_page, reference.chunk_count);
                assert!(taken.len() == self.addresses.len(), "a stored value has other chunks");
                Cow::Owned(taken)
            }
        }
    }

    /// Returns the maximum number of page-table changes of a commit that puts the value.
    pub(crate) fn changes_max(&self) -> u64 {
        self.addresses.len() as u64 * if self.stored.is_some() { 2 } else { 1 }
    }

    /// Sets the page numbers that a commit has assigned to the extents. The commit still holds the epoch latch under
    /// which it assigned them, so no checkpoint can have moved the extents since.
    pub(crate) fn set_reference(&self, _guard: &EpochGuard<'_>, keyspace: KeyspaceId, reference: LargeRef) {
        assert!((reference.length, reference.id) == (self.length, self.value_id), "{reference:?} is another value's");
        assert!(reference.chunk_count as usize == self.addresses.len(), "{reference:?} has other chunks");
        self.is_prepared.store(keyspace == KeyspaceId::PREPARED, Ordering::Release);
        self.reference.set(reference).expect("a value is put by one commit");
    }

    /// Hands the extents over to a load, which frees them unless it is attached.
    pub(crate) fn leave_to_load(&self) {
        let was_left = self.is_left.swap(true, Ordering::AcqRel);
        assert!(!was_left && self.reference.get().is_none(), "a value is put once");
    }

    /// Returns `true` if a load owns the extents. Unless it has been attached, they may be free.
    pub(crate) fn is_left_to_load(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// Returns the reference that rows store, or `None` until a commit has put the value.
    pub(crate) fn reference(&self) -> Option<&LargeRef> {
        self.reference.get()
    }

    /// Returns `true` if the value's [reference](Self::reference) leads to the keyspace of prepared transactions.
    pub(crate) fn is_prepared(&self) -> bool {
        self.is_prepared.load(Ordering::Acquire)
    }
}

impl Drop for LargeValue {
    fn drop(&mut self) {
        if let (None, Some(pool)) = (self.reference.get(), &self.pool)
            && !self.is_left_to_load()
            && pool.process.is_here()
        {
            self.addresses.iter().for_each(|address| pool.space.segments.discard(*address));
        }
    }
}

/// Writes a large value, using memory for one chunk. If writing fails or the future is dropped, frees the extents.
///
/// If the disk is full, reclaims space once and retries.
pub(crate) async fn write_large(
    mode: WaitMode<'_>,
    tree: &Tree,
    value_id: ValueId,
    mut source: impl Source,
    _memory: Grant,
    reclaim: &Arc<dyn Reclaim>,
) -> Result<Arc<LargeValue>> {
    let (pool, pages) = (&tree.pool, &tree.pages);
    let mut written = LargeValue::new(pool, value_id, Vec::new());
    let mut page = vec![0; pool.space.value_chunk_bytes()];
    let mut made_space = false;
    loop {
        let whole_bytes = written.addresses.len() as u64 * chunk_payload_bytes(pool);
        assert!(written.length == whole_bytes, "a chunk before the last is short: {} bytes so far", written.length);
        let filled = source.fill(&mut page[CHUNK_OVERHEAD_BYTES..]).await?;
        if filled == 0 {
            return Ok(Arc::new(written));
        }
        put_u64(&mut page, HEADER_BYTES, value_id.0);
        let name = PageKey { keyspace: pages.id, page: ChunkNumber(written.addresses.len() as u32).as_page() };
        let mut chunk = loop {
            let chunk_pool = Arc::clone(pool);
            let result;
            (page, result) = (mode.run(move || {
                let address = write_chunk(&chunk_pool, name, &page[..CHUNK_OVERHEAD_BYTES + filled]);
                (page, address.map(|address| LargeValue::new(&chunk_pool, value_id, vec![address])))
            }))
            .await;
            match result {
                Ok(chunk) => break chunk,
                Err(Error::DiskFull { .. }) if !std::mem::replace(&mut made_space, true) => {
                    let reclaim = Arc::clone(reclaim);
                    mode.run(move || reclaim.reclaim_space()).await?;
                }
                Err(error) => return Err(error),
            }
        };
        written.addresses.append(&mut chunk.addresses);
        written.length += filled as u64;
        // Stop at a short chunk: only the last chunk may be short, and a source that has ended might return more bytes
        // on another read.
        if filled < page.len() - CHUNK_OVERHEAD_BYTES {
            return Ok(Arc::new(written));
        }
    }
}

fn write_chunk(pool: &Pool, name: PageKey, page: &[u8]) -> Result<ExtentAddress> {
    assert!(page.len() > CHUNK_OVERHEAD_BYTES, "a chunk of nothing");
    let bytes_max = extent::encoded_bytes_max(page.len()).next_multiple_of(BLOCK_BYTES);
    pool.with_buffer(bytes_max, |buffer| {
        let stored = extent::encode_into(page, name, Kind::Value, buffer);
        assert!(stored <= bytes_max, "a chunk takes {stored} bytes, {bytes_max} at the most");
        pool.space.write_value_chunk(buffer, stored)
    })
}

/// Fills `buffer`, or only the beginning of it if the reader ends. Returns the number of bytes that were read.
pub(crate) fn read_up_to(reader: &mut impl Read, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Source { source: error.into() }),
        }
    }
    Ok(filled)
}

/// The bytes of a chunk, or `Gone` if the value was freed while it was being read.
pub(crate) enum Chunk {
    Bytes(Vec<u8>),
    Gone,
}

/// A part of a chunk: `length` bytes starting at `start`, or fewer if the chunk ends earlier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValuePart {
    pub(crate) start: usize,
    pub(crate) length: usize,
}

impl ValuePart {
    pub(crate) const ALL: ValuePart = ValuePart { start: 0, length: usize::MAX };

    fn of(self, bytes: &[u8]) -> &[u8] {
        let bytes = bytes.get(self.start..).unwrap_or_default();
        &bytes[..self.length.min(bytes.len())]
    }
}

/// Reads a chunk, bypassing the pool's frames, and appends `part` of it to `into`. Returns `into` (even on error), and
/// the chunk's header and value id. Uses one of the pool's read buffers.
async fn read_chunk_at(
    mode: WaitMode<'_>,
    pool: &Arc<Pool>,
    address: ExtentAddress,
    part: ValuePart,
    mut into: Vec<u8>,
) -> (Vec<u8>, Result<(Header, ValueId)>) {
    let pool = Arc::clone(pool);
    mode.run(move || {
        let result = pool.space.check_open().and_then(|()| append_part(&pool, address, part, &mut into));
        let result = result.map_err(|error| pool.space.read_error(error));
        (into, result)
    })
    .await
}

fn append_part(pool: &Pool, address: ExtentAddress, part: ValuePart, into: &mut Vec<u8>) -> Result<(Header, ValueId)> {
    let space = &pool.space;
    let (start, length, offset) = space.cover(address);
    pool.with_buffer(length + space.value_chunk_bytes(), |buffer| {
        let (packed, page) = buffer.split_at_mut(length);
        let in_flight = space.share.foreground();
        space.read(packed, start).map_err(|error| Error::io("reading", space.path(), error))?;
        drop(in_flight);
        let header = open_extent_into(space, address, &packed[offset..][..address.length() as usize], page)?;
        let page = &page[..header.raw_bytes];
        let Some(bytes) = page.get(CHUNK_OVERHEAD_BYTES..) else {
            return Err(space.corrupted("a value", address, extent::ExtentError::Length));
        };
        let bytes = part.of(bytes);
        into.reserve_exact(bytes.len());
        into.extend_from_slice(bytes);
        Ok((header, ValueId(get_u64(page, HEADER_BYTES))))
    })
}

/// Returns the number of value bytes in each chunk except the last.
pub(crate) fn chunk_payload_bytes(pool: &Pool) -> u64 {
    (pool.space.value_chunk_bytes() - CHUNK_OVERHEAD_BYTES) as u64
}

/// Returns the error for a value that does not match the row that referred to it.
fn misnamed(pool: &Pool, pages: &PageSpace, reason: &str) -> Error {
    Error::corrupted(pool.space.path(), format!("a value of keyspace {}", pages.quoted_name()), reason)
}

/// Reads one chunk of a value, checks that it belongs to the value, and appends `part` of it to `into`.
pub(crate) fn read_chunk<'a>(
    mode: WaitMode<'a>,
    tree: &'a Tree,
    reference: &'a LargeRef,
    number: ChunkNumber,
    part: ValuePart,
    mut into: Vec<u8>,
) -> Boxed<'a, Result<Chunk>> {
    Box::pin(async move {
        let (pool, pages) = (&tree.pool, &tree.pages);
        if number.0 >= reference.chunk_count {
            return Err(misnamed(pool, pages, "its chunks do not add up to its length"));
        }
        let page = PageId(reference.first_page.0 + number.0);
        if is_medium(reference) {
            return read_medium(mode, tree, reference, page, part, into).await;
        }
        loop {
            let address = match pages.table.load(page) {
                PageEntry::OnDisk(address) => address,
                PageEntry::Reading(_) => {
                    mode.pause().await;
                    continue;
                }
                _ => return Ok(Chunk::Gone),
            };
            let length_before = into.len();
            let result;
            (into, result) = read_chunk_at(mode, pool, address, part, into).await;
            // The bytes are valid only if the chunk was at this address both before and after the read.
            if pages.table.load(page) != PageEntry::OnDisk(address) {
                into.truncate(length_before);
                continue;
            }
            let (header, value_id) = result?;
            let PageKey { keyspace, page } = header.page_key;
            if header.kind != Kind::Value || page != number.as_page() || !pages.is_stored_as(keyspace) {
                return Err(pool.space.corrupted("a value", address, extent::ExtentError::PageKey(header.page_key)));
            }
            return Ok(if value_id == reference.id { Chunk::Bytes(into) } else { Chunk::Gone });
        }
    })
}

fn is_medium(reference: &LargeRef) -> bool {
    reference.length <= MEDIUM_BYTES_MAX as u64 && reference.chunk_count == 1
}

/// Describes the page of a medium value for the page fault that reads it.
fn medium_wanted(reference: &LargeRef) -> Wanted {
    debug_assert!(is_medium(reference), "{reference:?} is not in one page");
    let frame_bytes = (reference.length as usize + CHUNK_OVERHEAD_BYTES).next_power_of_two().max(PAGE_BYTES_MIN);
    Wanted::value(reference.first_page, frame_bytes, reference.id)
}

/// Prefetches medium values for a reader of many values.
#[derive(Debug, Default)]
pub(crate) struct UpcomingValues {
    /// The number of values passed for prefetching that the reader has not reached yet.
    count: usize,
}

impl UpcomingValues {
    /// Called when the reader reaches the first of `values`. The reader will read the remaining values in the same
    /// order.
    pub(crate) async fn step(&mut self, mode: WaitMode<'_>, tree: &Tree, values: impl Iterator<Item = LargeRef>) {
        if self.count == 0 {
            self.count = bring_in(mode, tree, values).await;
        }
        self.count -= 1;
    }
}

/// Prefetches a prefix of these values, as many as fit in a fraction of the frames, with many reads in flight. Skips
/// values that are not medium or can't be read. Returns the length of the prefix, including skipped values; it is at
/// least one.
async fn bring_in(mode: WaitMode<'_>, tree: &Tree, values: impl Iterator<Item = LargeRef>) -> usize {
    let space = &tree.pool.space;
    let bytes_max = tree.pool.frames.limit_bytes() / UPCOMING_SHARE;
    let (mut count, mut bytes) = (0, 0);
    let mut wanted = Vec::new();
    assert!(bytes_max > 0, "a pool without frames");
    for reference in values.take(UPCOMING_VALUES_MAX) {
        // If the value is still in an appender's buffer, the read that needs it will write the buffer first.
        let is_on_disk = || match tree.pages.table.load(reference.first_page) {
            PageEntry::OnDisk(address) => space.is_written(address),
            _ => false,
        };
        if is_medium(&reference) && is_on_disk() {
            let next = medium_wanted(&reference);
            if bytes + next.frame_bytes() > bytes_max && count > 0 {
                break;
            }
            bytes += next.frame_bytes();
            wanted.push(next);
        }
        count += 1;
    }
    // A single value is read just as quickly by the step that needs it.
    if wanted.len() > 1 {
        // Ignore errors: the step that needs the value will see them, too.
        let _ = tree.fault_many(mode, &wanted).await;
    }
    assert!(wanted.len() <= count, "{} values of {count} are brought in", wanted.len());
    count.max(1)
}

async fn read_medium(
    mode: WaitMode<'_>,
    tree: &Tree,
    reference: &LargeRef,
    page: PageId,
    part: ValuePart,
    mut into: Vec<u8>,
) -> Result<Chunk> {
    let (pool, pages) = (&tree.pool, &tree.pages);
    let wanted = medium_wanted(reference);
    mode.work(turn::LEAF_UNITS + turn::units_of_bytes(reference.length as usize)).await;
    loop {
        {
            let reclaim_guard = pool.reclaim_guard();
            if let Some((frame, bytes)) = reclaim_guard.pages(&pages.table).get(page) {
                pool.frames.header(frame).touch();
                let end = CHUNK_OVERHEAD_BYTES + reference.length as usize;
                if bytes.len() < end
                    || bytes[extent::KIND_OFFSET] != Kind::Value as u8
                    || ValueId(get_u64(bytes, HEADER_BYTES)) != reference.id
                {
                    return Ok(Chunk::Gone);
                }
                into.extend_from_slice(part.of(&bytes[CHUNK_OVERHEAD_BYTES..end]));
                return Ok(Chunk::Bytes(into));
            }
        }
        match pages.table.load(page) {
            PageEntry::OnDisk(address) => {
                if !pool.space.is_written(address) {
                    let writing = Arc::clone(pool);
                    mode.run(move || writing.space.ensure_written(address, writing.on_written())).await?;
                }
                match tree.fault(mode, wanted).await {
                    // The page may now belong to a different value of a different size.
                    Err(_) if pages.table.load(page) != PageEntry::OnDisk(address) => {}
                    other => other?,
                }
            }
            // The error may belong to another reader that expected a different page. The next iteration will show.
            PageEntry::Reading(_) => drop(tree.fault(mode, wanted).await),
            PageEntry::Immutable(_) => {}
            PageEntry::Leaf(_) | PageEntry::Free | PageEntry::Reserved | PageEntry::Unattached(_) => {
                return Ok(Chunk::Gone);
            }
        }
    }
}

/// Like [`read_chunk`], for a value that has been written but not committed. If a commit refers to the value by the
/// time this returns, the caller must discard the bytes.
pub(crate) fn read_uncommitted<'a>(
    mode: WaitMode<'a>,
    tree: &'a Tree,
    value: &'a LargeValue,
    number: ChunkNumber,
    part: ValuePart,
    into: Vec<u8>,
) -> Boxed<'a, (Vec<u8>, Result<()>)> {
    Box::pin(async move {
        let (pool, pages) = (&tree.pool, &tree.pages);
        assert!(value.pool.is_some(), "a value of a record is read like one that is being written");
        let address = value.addresses[number.0 as usize];
        let (into, result) = read_chunk_at(mode, pool, address, part, into).await;
        let name = PageKey { keyspace: pages.id, page: number.as_page() };
        let checked = result.and_then(|(header, value_id)| {
            let is_it = header.kind == Kind::Value && header.page_key == name && value_id == value.value_id;
            let reason = || pool.space.corrupted("a value", address, extent::ExtentError::PageKey(header.page_key));
            is_it.then_some(()).ok_or_else(reason)
        });
        (into, checked)
    })
}

/// Reads the whole value into `value`, replacing its content. Returns `None` if the value has been freed in the
/// meantime.
pub(crate) fn read_whole<'a>(
    mode: WaitMode<'a>,
    tree: &'a Tree,
    reference: &'a LargeRef,
    mut value: Vec<u8>,
) -> Boxed<'a, Result<Option<Vec<u8>>>> {
    Box::pin(async move {
        value.clear();
        for number in (0..reference.chunk_count).map(ChunkNumber) {
            match read_chunk(mode, tree, reference, number, ValuePart::ALL, value).await? {
                Chunk::Gone => return Ok(None),
                Chunk::Bytes(bytes) => value = bytes,
            }
            let left = reference.length.saturating_sub(value.len() as u64);
            if value.try_reserve_exact(left as usize).is_err() {
                let length = reference.length;
                let hint = "does not fit into memory: read it as a stream";
                return Err(Error::Invalid(format!("a value of {length} bytes {hint}")));
            }
        }
        if value.len() as u64 != reference.length {
            return Err(misnamed(&tree.pool, &tree.pages, "its chunks do not add up to its length"));
        }
        Ok(Some(value))
    })
}

/// Frees the pages of a value to which nothing refers. Frees all of them under one guard, so that a checkpoint lists
/// either the whole value as an orphan or no part of it. If the pages do not belong to a value, returns an error and
/// frees nothing.
pub(crate) fn free(
    pool: &Pool,
    epoch_guard: &EpochGuard<'_>,
    pages: &PageSpace,
    first: PageId,
    count: u32,
) -> Result<()> {
    let numbers = || (0..count).map(|index| PageId(first.0 + index));
    let can_be_freed =
        |page| matches!(pages.table.load(page), PageEntry::OnDisk(_) | PageEntry::Reading(_) | PageEntry::Immutable(_));
    if !numbers().all(can_be_freed) {
        return Err(misnamed(pool, pages, "it names pages that are no value's"));
    }
    for page in numbers() {
        loop {
            match pages.table.load(page) {
                PageEntry::Immutable(frame) => {
                    let page_key = PageKey { keyspace: pages.id, page };
                    if let Some(write) = pool.frames.write(frame, page_key)
                        && pages.table.load(page) == PageEntry::Immutable(frame)
                    {
                        if write[extent::KIND_OFFSET] != Kind::Value as u8 {
                            return Err(misnamed(pool, pages, "it names an inner node"));
                        }
                        pool.free_page(epoch_guard, pages, write);
                        break;
                    }
                }
                // A read may be in flight. Its reader either saw the row before it changed, or followed an outdated
                // node or row to a page number that has been reused.
                entry @ (PageEntry::OnDisk(_) | PageEntry::Reading(_)) => {
                    if pool.free_on_disk(epoch_guard, pages, page, entry) {
                        break;
                    }
                }
                PageEntry::Free | PageEntry::Reserved | PageEntry::Unattached(_) | PageEntry::Leaf(_) => {
                    return Err(misnamed(pool, pages, "it names pages that are no value's"));
                }
            }
        }
    }
    Ok(())
}
