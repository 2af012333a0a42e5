//! Values that are read or written as streams, with blocking and asynchronous readers.

use std::future::poll_fn;
use std::io::{Read, Seek, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll};

use drumlin::{AsyncValueReader, Error, ValueReader};
use futures_io::{AsyncRead, AsyncSeek};

use super::answers::Call;
use super::{Api, Client, Count, Stop};
use crate::model::{Content, SpaceNumber};

/// A value reader of one of the two APIs.
pub(super) enum Reader {
    Blocking(ValueReader),
    Task(AsyncValueReader),
}

impl Reader {
    fn len(&self) -> u64 {
        match self {
            Reader::Blocking(reader) => reader.len(),
            Reader::Task(reader) => reader.len(),
        }
    }

    /// Fills the buffer with the bytes that start at offset `from`.
    async fn read_part(&mut self, from: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        match self {
            Reader::Blocking(reader) => reader.seek(SeekFrom::Start(from)).and_then(|_| reader.read_exact(buffer)),
            Reader::Task(reader) => {
                poll_fn(|context| Pin::new(&mut *reader).poll_seek(context, SeekFrom::Start(from))).await?;
                let mut rest = buffer;
                while !rest.is_empty() {
                    let count = poll_fn(|context| Pin::new(&mut *reader).poll_read(context, rest)).await?;
                    if count == 0 {
                        return Err(std::io::ErrorKind::UnexpectedEof.into());
                    }
                    rest = &mut rest[count..];
                }
                Ok(())
            }
        }
    }
}

/// A source that returns a few bytes at a time, and may fail.
pub(super) struct Slow {
    bytes: Vec<u8>,
    position: usize,
    pub fails_at: Option<usize>,
    /// `true` if the last poll returned `Pending`. The next poll then returns bytes.
    has_waited: bool,
}

impl Slow {
    pub(super) fn new(content: Content) -> Slow {
        Slow { bytes: content.bytes(), position: 0, fails_at: None, has_waited: false }
    }
}

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.fails_at.is_some_and(|at| self.position >= at) {
            return Err(std::io::Error::other("the source ran dry"));
        }
        let count = buffer.len().min(self.bytes.len() - self.position).min(7000);
        buffer[..count].copy_from_slice(&self.bytes[self.position..self.position + count]);
        self.position += count;
        Ok(count)
    }
}

impl AsyncRead for Slow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        self.has_waited = !self.has_waited;
        if self.has_waited {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.read(buffer))
    }
}

impl Client {
    /// Opens a value in a snapshot as a stream, and reads parts of it.
    pub(super) async fn stream(&mut self) -> Result<(), Stop> {
        if self.session.plan.reads_all && self.random.chance(50) {
            return self.plain_stream().await;
        }
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let snapshot = self.session.db.snapshot();
        let at = snapshot.timestamp().0;
        self.saw(at);
        let key = self.key(space);
        let api = self.api;
        let open = async {
            match api {
                Api::Blocking => snapshot.read(&keyspace, &key).map(|reader| reader.map(Reader::Blocking)),
                Api::Tasks => snapshot.read_async(&keyspace, &key).await.map(|reader| reader.map(Reader::Task)),
            }
        };
        let Some(reader) = self.or_drop(open).await else { return Ok(()) };
        let reader = match reader {
            Ok(reader) => reader,
            Err(error) => return self.accept(&error, Call::Copy, Some(space)),
        };
        let wanted = self.session.model.at(space, &key, at);
        if self.session.model.is_dropped(space) {
            return Ok(());
        }
        let Some(mut reader) = reader else {
            assert!(wanted.is_none(), "stream: row {} at {at} is absent", key.escape_ascii());
            return Ok(());
        };
        let wanted = wanted.unwrap_or_else(|| panic!("stream: row {} at {at} is there", key.escape_ascii())).bytes();
        self.read_parts(&mut reader, space, &wanted).await;
        Ok(())
    }

    /// Reads a few random parts of a value and compares them.
    pub(super) async fn read_parts(&mut self, reader: &mut Reader, space: SpaceNumber, wanted: &[u8]) {
        assert_eq!(reader.len(), wanted.len() as u64, "stream: a value's length");
        for _ in 0..4 {
            let from = self.random.below(wanted.len() as u64 + 1) as usize;
            let mut part = vec![0; self.random.below(10_000).min((wanted.len() - from) as u64) as usize];
            let Some(read) = self.or_drop(reader.read_part(from as u64, &mut part)).await else { continue };
            match read {
                Ok(()) => assert!(part == wanted[from..from + part.len()], "stream: bytes from {from}"),
                Err(error) => return self.accept_of_stream(&error, space),
            }
        }
    }

    /// Reads the whole value. Returns `None` if the read failed with an expected error or its future was dropped.
    pub(super) async fn read_whole(&mut self, reader: &mut Reader, space: SpaceNumber) -> Option<Vec<u8>> {
        let mut bytes = vec![0; reader.len() as usize];
        match self.or_drop(reader.read_part(0, &mut bytes)).await? {
            Ok(()) => Some(bytes),
            Err(error) => {
                self.accept_of_stream(&error, space);
                None
            }
        }
    }

    /// Accepts an error that can end the reading of a value midway.
    fn accept_of_stream(&self, error: &std::io::Error, space: SpaceNumber) {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
        if let Some(cause @ (Error::MemoryInUse { .. } | Error::SnapshotTooOld { .. })) = cause {
            let _ = self.accept(cause, Call::Copy, Some(space));
            return;
        }
        assert!(self.session.model.is_dropped(space) || self.may_fail(), "stream: {error}");
    }

    /// Reads a row's newest value as a stream, from beginning to end.
    async fn plain_stream(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let window = self.session.model.window();
        let key = self.key(space);
        let api = self.api;
        let read = async {
            let reader = match api {
                Api::Blocking => keyspace.read(&key).map(|reader| reader.map(Reader::Blocking)),
                Api::Tasks => keyspace.read_async(&key).await.map(|reader| reader.map(Reader::Task)),
            };
            match reader {
                Ok(Some(mut reader)) => {
                    let mut bytes = vec![0; reader.len() as usize];
                    Ok(reader.read_part(0, &mut bytes).await.map(|()| Some(bytes)))
                }
                Ok(None) => Ok(Ok(None)),
                Err(error) => Err(error),
            }
        };
        match self.or_drop(read).await {
            None => Ok(()),
            Some(Ok(Ok(found))) => {
                self.session.counts.add(Count::Reads);
                self.check_plain(window, space, &key, found.as_deref());
                Ok(())
            }
            Some(Ok(Err(error))) => {
                self.accept_of_stream(&error, space);
                Ok(())
            }
            Some(Err(error)) => self.accept(&error, Call::Copy, Some(space)),
        }
    }
}
