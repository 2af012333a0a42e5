//! tokio, which does file I/O on a pool of threads.

use std::fs::File;
use std::io::{self, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{LocalSet, spawn_blocking, spawn_local};

use super::tasks::{self, Disk};
use crate::buffer::Buffer;
use crate::work::{self, BLOCK_BYTES, Measured, RANGE_BYTES, REQUEST_BYTES, Row, Work};

/// The maximum number of threads for blocking calls. With more threads, throughput fell in these measurements.
const THREADS_MAX: usize = 256;

pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().max_blocking_threads(THREADS_MAX).build()
}

/// A file for direct reads and writes on tokio's threads.
struct BlockingFile(Arc<File>);

impl Disk for BlockingFile {
    async fn read(&self, offset: u64, mut buffer: Buffer) -> io::Result<Buffer> {
        let file = Arc::clone(&self.0);
        let read = move || file.read_exact_at(&mut buffer, offset).map(|()| buffer);
        spawn_blocking(read).await.map_err(io::Error::other)?
    }

    async fn write(&self, offset: u64, buffer: Buffer) -> io::Result<Buffer> {
        let file = Arc::clone(&self.0);
        let write = move || file.write_all_at(&buffer, offset).map(|()| buffer);
        spawn_blocking(write).await.map_err(io::Error::other)?
    }

    async fn sync(&self) -> io::Result<()> {
        let file = Arc::clone(&self.0);
        spawn_blocking(move || file.sync_data()).await.map_err(io::Error::other)?
    }
}

pub(crate) fn direct(work: &Arc<Work>) -> io::Result<Measured> {
    let file = BlockingFile(Arc::new(work::open(work, true)?));
    LocalSet::new().block_on(&runtime()?, tasks::run(work, file, spawn_local))
}

/// `tokio::fs::File`. Its buffers are not aligned, so it reads and writes through the page cache, which initially holds
/// none of the file's pages. A file has a cursor, so each task opens its own.
pub(crate) fn buffered(work: &Arc<Work>) -> io::Result<Measured> {
    let count = if work.row.is_sequential() { 1 } else { work.row.depth() };
    let files = (0..count).map(|_| Ok(tokio::fs::File::from_std(work::open(work, false)?)));
    let files: Vec<_> = files.collect::<io::Result<_>>()?;
    LocalSet::new().block_on(&runtime()?, async {
        work.start();
        if matches!(work.row, Row::Many(_)) {
            read_ranges(work, files).await?;
        } else {
            let tasks: Vec<_> =
                files.into_iter().map(|file| spawn_local(buffered_task(Arc::clone(work), file))).collect();
            for task in tasks {
                task.await.map_err(io::Error::other)??;
            }
        }
        Ok(work.finish())
    })
}

async fn buffered_task(work: Arc<Work>, mut file: tokio::fs::File) -> io::Result<()> {
    let bytes = if work.row.is_sequential() { REQUEST_BYTES } else { BLOCK_BYTES };
    let mut buffer = vec![0; bytes];
    loop {
        let next = if work.row.is_sequential() {
            work.next_request()
        } else {
            work.next_block().map(|block| block * BLOCK_BYTES as u64)
        };
        let Some(offset) = next else { break };
        if !work.row.is_sequential() || offset == 0 {
            file.seek(SeekFrom::Start(offset)).await?;
        }
        if work.row == Row::Write {
            work::stamp_blocks(&mut buffer, offset);
            file.write_all(&buffer).await?;
        } else {
            file.read_exact(&mut buffer).await?;
            work::check_blocks(&buffer, offset);
        }
        work.done(if work.row.is_sequential() { bytes } else { 1 });
    }
    if work.row == Row::Write {
        file.flush().await?;
        file.sync_data().await?;
    }
    Ok(())
}

async fn read_ranges(work: &Arc<Work>, mut files: Vec<tokio::fs::File>) -> io::Result<()> {
    while let Some(ranges) = work.next_ranges() {
        let reads = ranges.iter().zip(&mut files).map(async |(range, file)| {
            let mut buffer = [0; RANGE_BYTES];
            file.seek(SeekFrom::Start(range.start)).await?;
            file.read_exact(&mut buffer).await?;
            work::check_range(&buffer, range.start);
            Ok::<(), io::Error>(())
        });
        for result in futures_util::future::join_all(reads).await {
            result?;
        }
        work.done(ranges.len());
    }
    Ok(())
}
