//! Values too large for their leaf: in extents of their own, numbered by pages of the keyspace's table.
//!
//! - A *medium* value fits one extent of at most a page of 64 KiB. Its bytes are in the log record; its extent is packed with
//!   pages, and read through the pool.
//! - A *large* value is cut into chunks that are written, and synced, before the record that names them. They are read
//!   past the pool, so that one film does not push out everything else.
//!
//! An extent's payload is the value's identity (8 bytes) and its bytes.
//!
//! # Invariant
//! The extents of a large value that no commit has named are in use as long as somebody has its [`LargeValue`]: the
//! transaction that put it, and whoever reads what the transaction put. From the commit on they are a table's: whoever still
//! reads the value reads it as any other row's, and his snapshot, which is older, keeps it there.

use std::future::poll_fn;
use std::io::Read;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use futures_io::AsyncRead;

use crate::error::{Error, Result};
use crate::format::extent::{self, HEADER_BYTES, Identity, Kind};
use crate::format::node::LargeRef;
use crate::format::{PageId, Place, get_u64, put_u64};
use crate::io::AlignedBuffer;
use crate::pool::{PAGE_BYTES_MAX, PAGE_BYTES_MIN, Pool};
use crate::space::{Guard, PageSpace, Word};
use crate::task::Face;
use crate::tree::Tree;

use super::engine::MakeSpace;

/// Header and identity, in front of a chunk's bytes.
const CHUNK_OVERHEAD_BYTES: usize = extent::VALUE_BYTES_OFFSET;

/// The longest value that goes into one extent, and with its bytes into the log.
pub(crate) const MEDIUM_BYTES_MAX: usize = PAGE_BYTES_MAX - CHUNK_OVERHEAD_BYTES;

/// Appends a medium value to the current epoch's segment. It is in no table yet.
pub(crate) fn append_medium(tree: &Tree, identity: u64, value: &[u8]) -> Result<Place> {
    let (pool, pages) = (&tree.pool, &tree.pages);
    assert!(value.len() <= MEDIUM_BYTES_MAX);
    let mut page = vec![0; CHUNK_OVERHEAD_BYTES];
    put_u64(&mut page, HEADER_BYTES, identity);
    page.extend_from_slice(value);
    let guard = pool.space.enter();
    let name = Identity { keyspace: pages.id, page: PageId(0) };
    pool.space.append(guard.epoch(), name, Kind::Value, &page, None)
}

/// Where a large value comes from.
pub(crate) trait Source {
    /// Fills as much of `buffer` as there is.
    async fn fill(&mut self, buffer: &mut [u8]) -> Result<usize>;
}

/// A reader that blocks.
pub(crate) struct Blocking<R>(pub(crate) R);

impl<R: Read> Source for Blocking<R> {
    async fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        read_up_to(&mut self.0, buffer)
    }
}

/// A reader for tasks.
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

/// A value whose bytes are in extents already. Dropped before a commit has named them, they are given back.
#[derive(Debug)]
pub(crate) struct LargeValue {
    pub(crate) length: u64,
    pub(crate) identity: u64,
    pub(crate) places: Vec<Place>,
    /// Set once the page table has them.
    reference: OnceLock<LargeRef>,
    /// `None`: they are in the log already.
    pool: Option<Arc<Pool>>,
}

impl LargeValue {
    fn new(pool: &Arc<Pool>, identity: u64, places: Vec<Place>) -> LargeValue {
        LargeValue { length: 0, identity, places, reference: OnceLock::new(), pool: Some(Arc::clone(pool)) }
    }

    /// A value that a record of the log names.
    pub(crate) fn of_record(length: u64, identity: u64, places: Vec<Place>) -> LargeValue {
        LargeValue { length, identity, places, reference: OnceLock::new(), pool: None }
    }

    /// A commit gave its extents these pages, in the guard that is still held: no checkpoint has let them be moved yet.
    pub(crate) fn set_reference(&self, _guard: &Guard<'_>, reference: LargeRef) {
        self.reference.set(reference).expect("a value is put by one commit");
    }

    /// How a row names it, if one does.
    pub(crate) fn reference(&self) -> Option<&LargeRef> {
        self.reference.get()
    }
}

impl Drop for LargeValue {
    fn drop(&mut self) {
        if let (None, Some(pool)) = (self.reference.get(), &self.pool)
            && pool.process.is_here()
        {
            self.places.iter().for_each(|place| pool.space.segments.discard(*place));
        }
    }
}

/// Writes a large value, in bounded memory. Where it fails, or its future is dropped, nothing of it remains.
///
/// Where the disk is full, `make_space` is called once.
pub(crate) async fn write_large(
    face: Face<'_>,
    tree: &Tree,
    identity: u64,
    mut source: impl Source,
    make_space: &MakeSpace,
) -> Result<Arc<LargeValue>> {
    let (pool, pages) = (&tree.pool, &tree.pages);
    let mut written = LargeValue::new(pool, identity, Vec::new());
    let chunk_bytes = pool.space.value_chunk_bytes();
    let mut page = vec![0; chunk_bytes];
    let mut encoded = Vec::new();
    let mut buffer = AlignedBuffer::zeroed(chunk_bytes + 4096);
    let mut made_space = false;
    loop {
        let filled = source.fill(&mut page[CHUNK_OVERHEAD_BYTES..]).await?;
        if filled == 0 {
            return Ok(Arc::new(written));
        }
        put_u64(&mut page, HEADER_BYTES, identity);
        let name = Identity { keyspace: pages.id, page: PageId(written.places.len() as u32) };
        let mut chunk = loop {
            encoded.clear();
            let stored = extent::encode(&page[..CHUNK_OVERHEAD_BYTES + filled], name, Kind::Value, &mut encoded);
            buffer.set_len(stored);
            buffer.copy_from_slice(&encoded);
            let chunk_pool = Arc::clone(pool);
            let result;
            (buffer, result) = (face.run(move || {
                let place = chunk_pool.space.write_value_chunk(&mut buffer, stored);
                (buffer, place.map(|place| LargeValue::new(&chunk_pool, identity, vec![place])))
            }))
            .await;
            match result {
                Ok(chunk) => break chunk,
                Err(Error::DiskFull { .. }) if !std::mem::replace(&mut made_space, true) => {
                    let make_space = Arc::clone(make_space);
                    face.run(move || make_space()).await?;
                }
                Err(error) => return Err(error),
            }
        };
        written.places.append(&mut chunk.places);
        written.length += filled as u64;
    }
}

/// Fills as much of `buffer` as the reader has.
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

/// A chunk of a value, or that the value was freed while it was being read.
pub(crate) enum Chunk {
    Bytes(Vec<u8>),
    Gone,
}

/// Bytes of a value in each chunk but the last.
pub(crate) fn chunk_payload_bytes(pool: &Pool) -> u64 {
    (pool.space.value_chunk_bytes() - CHUNK_OVERHEAD_BYTES) as u64
}

/// A value that is not what its row says.
fn misnamed(pool: &Pool, pages: &PageSpace, flaw: &str) -> Error {
    Error::damaged(pool.space.path(), format!("a value of keyspace {}", pages.id), flaw)
}

/// Reads one chunk of a value and checks that it is this value's.
pub(crate) async fn read_chunk(face: Face<'_>, tree: &Tree, reference: &LargeRef, index: u32) -> Result<Chunk> {
    let (pool, pages) = (&tree.pool, &tree.pages);
    if index >= reference.chunk_count {
        return Err(misnamed(pool, pages, "its chunks do not add up to its length"));
    }
    let page = PageId(reference.first_page.0 + index);
    if reference.length <= MEDIUM_BYTES_MAX as u64 && reference.chunk_count == 1 {
        return read_medium(face, tree, reference, page).await;
    }
    loop {
        let place = match pages.table.load(page) {
            Word::Disk(place) => place,
            Word::Reading(_) => {
                face.pause().await;
                continue;
            }
            _ => return Ok(Chunk::Gone),
        };
        let space = Arc::clone(&pool.space);
        let result = face.run(move || crate::space::checkpoint::read_extent(&space, place)).await;
        // What was read counts only if the page was there all the while.
        if pages.table.load(page) != Word::Disk(place) {
            continue;
        }
        let (header, mut bytes) = result?;
        let name = Identity { keyspace: pages.id, page: PageId(index) };
        if header.kind != Kind::Value || header.identity != name {
            return Err(pool.space.damaged("a value", place, extent::Flaw::Identity(header.identity)));
        }
        if bytes.len() < CHUNK_OVERHEAD_BYTES || get_u64(&bytes, HEADER_BYTES) != reference.id {
            return Ok(Chunk::Gone);
        }
        bytes.drain(..CHUNK_OVERHEAD_BYTES);
        return Ok(Chunk::Bytes(bytes));
    }
}

async fn read_medium(face: Face<'_>, tree: &Tree, reference: &LargeRef, page: PageId) -> Result<Chunk> {
    let (pool, pages) = (&tree.pool, &tree.pages);
    let frame_bytes = (reference.length as usize + CHUNK_OVERHEAD_BYTES).next_power_of_two().max(PAGE_BYTES_MIN);
    let fault = async || match face {
        Face::Blocking => pool.fault_value(pages, page, frame_bytes, reference.id),
        Face::Tasks(_) => pool.fault_value_as_task(pages, page, frame_bytes, reference.id).await,
    };
    loop {
        {
            let pin = pool.pin();
            if let Some((frame, bytes)) = pin.fixed(&pages.table, page) {
                pool.frames.header(frame).touch();
                let end = CHUNK_OVERHEAD_BYTES + reference.length as usize;
                if bytes.len() < end
                    || bytes[extent::KIND_OFFSET] != Kind::Value as u8
                    || get_u64(bytes, HEADER_BYTES) != reference.id
                {
                    return Ok(Chunk::Gone);
                }
                return Ok(Chunk::Bytes(bytes[CHUNK_OVERHEAD_BYTES..end].to_vec()));
            }
        }
        match pages.table.load(page) {
            Word::Disk(place) => {
                if !pool.space.is_written(place) {
                    let writing = Arc::clone(pool);
                    face.run(move || writing.space.ensure_written(place, writing.on_written())).await?;
                }
                match fault().await {
                    // The page may have become another's, of another size.
                    Err(_) if pages.table.load(page) != Word::Disk(place) => {}
                    other => other?,
                }
            }
            Word::Reading(_) => fault().await?,
            Word::Fixed(_) => {}
            Word::Leaf(_) | Word::Free | Word::Reserved => return Ok(Chunk::Gone),
        }
    }
}

/// A chunk of a value that was written. What is read counts only if no commit has named the value by then.
pub(crate) async fn read_unplaced(face: Face<'_>, tree: &Tree, value: &LargeValue, index: usize) -> Result<Vec<u8>> {
    let (pool, pages) = (&tree.pool, &tree.pages);
    let place = value.places[index];
    let space = Arc::clone(&pool.space);
    let (header, mut bytes) = face.run(move || crate::space::checkpoint::read_extent(&space, place)).await?;
    let name = Identity { keyspace: pages.id, page: PageId(index as u32) };
    let is_whole = bytes.len() >= CHUNK_OVERHEAD_BYTES && get_u64(&bytes, HEADER_BYTES) == value.identity;
    if header.kind != Kind::Value || header.identity != name || !is_whole {
        return Err(pool.space.damaged("a value", place, extent::Flaw::Identity(header.identity)));
    }
    bytes.drain(..CHUNK_OVERHEAD_BYTES);
    Ok(bytes)
}

/// The whole value; `None` if it was freed meanwhile.
pub(crate) async fn read_whole(face: Face<'_>, tree: &Tree, reference: &LargeRef) -> Result<Option<Vec<u8>>> {
    let mut value = Vec::new();
    for index in 0..reference.chunk_count {
        match read_chunk(face, tree, reference, index).await? {
            Chunk::Gone => return Ok(None),
            Chunk::Bytes(bytes) if value.is_empty() && reference.chunk_count == 1 => value = bytes,
            Chunk::Bytes(bytes) => {
                if value.is_empty() && value.try_reserve_exact(reference.length as usize).is_err() {
                    let hint = "a value does not fit into memory; read it as a stream";
                    return Err(Error::Invalid(format!("{hint}: {} bytes", reference.length)));
                }
                value.extend_from_slice(&bytes);
            }
        }
    }
    if value.len() as u64 != reference.length {
        return Err(misnamed(&tree.pool, &tree.pages, "its chunks do not add up to its length"));
    }
    Ok(Some(value))
}

/// Takes the pages of a value that nothing names any more out of the table, all of them in one guard: a checkpoint lists
/// the whole value as an orphan or none of it. An error, and nothing freed, if they are no value's.
pub(crate) fn free(pool: &Pool, guard: &Guard<'_>, pages: &PageSpace, first: PageId, count: u32) -> Result<()> {
    let numbers = || (0..count).map(|index| PageId(first.0 + index));
    let can_be_freed = |page| matches!(pages.table.load(page), Word::Disk(_) | Word::Reading(_) | Word::Fixed(_));
    if !numbers().all(can_be_freed) {
        return Err(misnamed(pool, pages, "it names pages that are no value's"));
    }
    for page in numbers() {
        loop {
            match pages.table.load(page) {
                Word::Fixed(frame) => {
                    let identity = Identity { keyspace: pages.id, page };
                    if let Some(write) = pool.frames.write(frame, identity)
                        && pages.table.load(page) == Word::Fixed(frame)
                    {
                        if write[extent::KIND_OFFSET] != Kind::Value as u8 {
                            return Err(misnamed(pool, pages, "it names an inner node"));
                        }
                        pool.free_page(guard, pages, write);
                        break;
                    }
                }
                // A read may be in flight: of one who saw the row before it changed, or who was led here by a node or a
                // row that had the number earlier.
                word @ (Word::Disk(_) | Word::Reading(_)) => {
                    if pool.free_on_disk(guard, pages, page, word) {
                        break;
                    }
                }
                Word::Free | Word::Reserved | Word::Leaf(_) => {
                    return Err(misnamed(pool, pages, "it names pages that are no value's"));
                }
            }
        }
    }
    Ok(())
}
