//! Values as streams, blocking and asynchronous.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Value;
use super::handle::Handle;
use crate::counts::CountedTree;
use crate::error::{Error, Result};
use crate::format::ChunkNumber;
use crate::format::node::LargeRef;
use crate::memory::{Account, Grant, heap_bytes};
use crate::store::Store;
use crate::sync::Exclusive;
use crate::task::{WaitMode, ready};
use crate::txn::engine::Engine;
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::values::{self, LargeValue, ValuePart};

/// The bytes of a value as a stream with `Read` and `Seek`. Keeps the database open, like any handle.
///
/// Holds up to 256 KiB in memory. While many readers and scans share their sixteenth of the budget, a reader holds
/// less, and then has to read a chunk of 256 KiB several times, a smaller piece each time. If no memory is left for a
/// reader, a read fails with [`MemoryInUse`](Error::MemoryInUse) inside the [`std::io::Error`]. The read can be retried
/// once other readers or scans have been dropped.
///
/// ```
/// use std::io::{Read, Seek, SeekFrom};
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let films = db.keyspace("films")?;
/// films.insert_from("film", std::io::repeat(7).take(1_000_000))?;
/// let mut reader = films.read("film")?.expect("it was stored");
/// assert_eq!(reader.len(), 1_000_000);
/// let mut end = Vec::new();
/// reader.seek(SeekFrom::End(-10))?;
/// reader.read_to_end(&mut end)?;
/// assert_eq!(end, [7; 10]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ValueReader {
    handle: Arc<Handle>,
    tree: CountedTree,
    snapshot: Arc<SnapshotHandle>,
    content: Content,
    position: u64,
    piece: Option<Piece>,
}

/// The part of a value that is in memory: a whole chunk, or a part of one while many readers share the budget.
struct Piece {
    start: u64,
    bytes: Vec<u8>,
    _memory: Grant,
}

impl Piece {
    /// Returns the bytes of the piece from `position` to its end, or `None` if `position` is not within the piece.
    fn from(&self, position: u64) -> Option<&[u8]> {
        let offset = usize::try_from(position.checked_sub(self.start)?).ok()?;
        self.bytes.get(offset..).filter(|bytes| !bytes.is_empty())
    }
}

/// The minimum number of bytes of a value that a reader holds in memory.
const PIECE_BYTES_MIN: u64 = 1 << 10;

#[derive(Clone)]
pub(crate) enum Content {
    Bytes(Arc<(Vec<u8>, Grant)>),
    /// A value among the rows that a scan has copied.
    Copied(Value),
    Stored(LargeRef),
    /// A value that the reading transaction itself has put. It stays readable even after the transaction has ended.
    Own(Arc<LargeValue>),
}

impl Content {
    /// Copies a value's bytes.
    pub(crate) fn bytes(bytes: &[u8], engine: &Engine) -> Result<Content> {
        let mut memory = engine.budget.grant(Account::Copies);
        if !memory.resize(heap_bytes(bytes.len()) as u64) {
            return Err(Error::copies_in_memory(memory.limit_bytes()));
        }
        Ok(Content::Bytes(Arc::new((bytes.to_vec(), memory))))
    }
}

impl std::fmt::Debug for ValueReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ValueReader({} of {} bytes)", self.position, self.len())
    }
}

impl ValueReader {
    pub(crate) fn new(
        handle: &Arc<Handle>,
        tree: &CountedTree,
        snapshot: Arc<SnapshotHandle>,
        content: Content,
    ) -> ValueReader {
        ValueReader { handle: Arc::clone(handle), tree: tree.clone(), snapshot, content, position: 0, piece: None }
    }

    /// Returns the value's length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.content {
            Content::Bytes(bytes) => bytes.0.len() as u64,
            Content::Copied(bytes) => bytes.len() as u64,
            Content::Stored(reference) => reference.length,
            Content::Own(value) => value.length,
        }
    }

    /// Returns `true` if the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the position from which bytes must be read, or `None` if the bytes at the current position are in
    /// memory.
    fn wanted(&self) -> Option<u64> {
        let is_there = matches!(self.content, Content::Bytes(_) | Content::Copied(_))
            || self.piece.as_ref().is_some_and(|piece| piece.from(self.position).is_some());
        (self.position < self.len() && !is_there).then_some(self.position)
    }

    /// Reads a piece: the part of a chunk from `start` to its end, or less if there is not enough memory.
    async fn load(
        store: &Store,
        mode: WaitMode<'_>,
        tree: &CountedTree,
        content: &Content,
        snapshot: &SnapshotHandle,
        start: u64,
    ) -> Result<Piece> {
        let payload = values::chunk_payload_bytes(&store.engine.pool);
        let (chunk_bytes, length) = match content {
            Content::Stored(reference) if reference.chunk_count == 1 => (reference.length, reference.length),
            Content::Stored(reference) => (payload, reference.length),
            Content::Own(value) => (payload, value.length),
            Content::Bytes(_) | Content::Copied(_) => unreachable!("they are there already"),
        };
        let (number, skipped) = (ChunkNumber((start / chunk_bytes) as u32), start % chunk_bytes);
        let rest = (chunk_bytes - skipped).min(length - start);
        let mut memory = store.engine.budget.grant(Account::Copies);
        let most_unshared = memory.limit_bytes() / 8;
        let Some(piece_bytes) = memory.cover_share(PIECE_BYTES_MIN, rest, most_unshared) else {
            return Err(Error::copies_in_memory(memory.limit_bytes()));
        };
        let part = ValuePart { start: skipped as usize, length: piece_bytes as usize };
        let bytes = match content {
            Content::Stored(reference) => {
                store.read_chunk(mode, tree, reference, number, snapshot, part, Vec::new()).await?
            }
            Content::Own(value) => store.read_own_chunk(mode, tree, value, number, snapshot, part, Vec::new()).await?,
            Content::Bytes(_) | Content::Copied(_) => unreachable!("looked at above"),
        };
        Ok(Piece { start, bytes, _memory: memory })
    }

    /// Copies bytes in memory from the current position to `buffer`: at least one, unless the value has ended.
    fn copy(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.position >= self.len() || buffer.is_empty() {
            return Ok(0);
        }
        let available = match &self.content {
            Content::Bytes(bytes) => Some(&bytes.0[self.position as usize..]),
            Content::Copied(bytes) => Some(&bytes[self.position as usize..]),
            _ => self.piece.as_ref().and_then(|piece| piece.from(self.position)),
        };
        let Some(available) = available else {
            let reason = "a chunk of the value is shorter than it should be";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, reason));
        };
        let count = available.len().min(buffer.len());
        buffer[..count].copy_from_slice(&available[..count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl std::io::Read for ValueReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Some(start) = self.wanted() {
            // Drop the old piece first: the next one reuses its memory.
            self.piece = None;
            let (store, mode) = (self.handle.store().map_err(std::io::Error::other)?, WaitMode::Blocking);
            let loading = ValueReader::load(store, mode, &self.tree, &self.content, &self.snapshot, start);
            self.piece = Some(ready(loading).map_err(std::io::Error::other)?);
        }
        self.copy(buffer)
    }
}

impl std::io::Seek for ValueReader {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        let position = match to {
            std::io::SeekFrom::Start(position) => Some(position),
            std::io::SeekFrom::End(offset) => self.len().checked_add_signed(offset),
            std::io::SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or_else(|| {
            std::io::Error::new(std::io::ErrorKind::InvalidInput, "a position before the beginning of the value")
        })?;
        Ok(self.position)
    }
}

/// The bytes of a value as a stream for tasks: [`futures_io::AsyncRead`] and [`futures_io::AsyncSeek`]. Keeps the
/// database open, like any handle.
///
/// ```
/// use smol::io::AsyncReadExt; // or the trait from the crate `futures`
///
/// # smol::block_on(async {
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let films = db.keyspace("films")?;
/// films.insert_async("film", vec![7; 300_000]).await?;
/// let mut reader = films.read_async("film").await?.expect("it was stored");
/// let mut first = [0; 10];
/// reader.read_exact(&mut first).await?;
/// assert_eq!(first, [7; 10]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AsyncValueReader {
    reader: ValueReader,
    /// The piece that is being read, and its starting position.
    loading: Option<(u64, Loading)>,
}

type Loading = Exclusive<Pin<Box<dyn Future<Output = Result<Piece>> + Send>>>;

impl std::fmt::Debug for AsyncValueReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Async{:?}", self.reader)
    }
}

impl AsyncValueReader {
    pub(crate) fn new(reader: ValueReader) -> AsyncValueReader {
        AsyncValueReader { reader, loading: None }
    }

    /// Returns the value's length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.reader.len()
    }

    /// Returns `true` if the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reader.is_empty()
    }
}

impl futures_io::AsyncRead for AsyncValueReader {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        if let Some(start) = this.reader.wanted() {
            this.reader.piece = None;
            let loading = match &mut this.loading {
                Some((of, loading)) if *of == start => loading,
                other => {
                    // First stop loading the piece at the previous position, to release its memory.
                    *other = None;
                    let ValueReader { handle, tree, snapshot, content, .. } = &this.reader;
                    let (handle, tree) = (Arc::clone(handle), tree.clone());
                    let (snapshot, content) = (Arc::clone(snapshot), content.clone());
                    let loading = async move {
                        let store = handle.store()?;
                        ValueReader::load(store, store.as_task().await, &tree, &content, &snapshot, start).await
                    };
                    &mut other.insert((start, Exclusive::new(Box::pin(loading)))).1
                }
            };
            let Poll::Ready(loaded) = loading.get_mut().as_mut().poll(context) else { return Poll::Pending };
            this.loading = None;
            this.reader.piece = Some(loaded.map_err(std::io::Error::other)?);
        }
        Poll::Ready(this.reader.copy(buffer))
    }
}

impl futures_io::AsyncSeek for AsyncValueReader {
    fn poll_seek(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        to: std::io::SeekFrom,
    ) -> Poll<std::io::Result<u64>> {
        Poll::Ready(std::io::Seek::seek(&mut self.get_mut().reader, to))
    }
}
