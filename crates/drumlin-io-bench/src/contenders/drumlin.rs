//! drumlin-io: its driver in `block_on`, and in the runtime of a different library.

use std::io;
use std::sync::Arc;

use drumlin_io::{
    AlignedBuffer, Driver, DriverOptions, File, IoBackend, OpenOptions, ReadManyOptions, ReadStream, StreamOptions,
    WriteStream,
};
use futures_util::stream::FuturesUnordered;
use futures_util::{AsyncWriteExt, StreamExt};

use super::tokio::runtime;
use crate::buffer::Buffer;
use crate::work::{self, BLOCK_BYTES, Measured, RANGES, REQUEST_BYTES, REQUESTS, Row, Work};

fn open(work: &Work, options: DriverOptions) -> io::Result<File> {
    let options = DriverOptions { backend: IoBackend::Uring, ..options };
    let driver = Driver::with_options(options)?;
    let options = OpenOptions { write: work.row == Row::Write, direct: true, ..OpenOptions::default() };
    File::open(&driver, &work.path, options).wait()
}

/// Runs all tasks on one thread, which also collects the completions of their requests.
pub(crate) fn block_on(work: &Arc<Work>) -> io::Result<Measured> {
    on_one_thread(work, &open(work, DriverOptions::default())?)
}

/// Like [`block_on`], with a driver that only this thread uses.
pub(crate) fn one_thread(work: &Arc<Work>) -> io::Result<Measured> {
    on_one_thread(work, &open(work, DriverOptions { one_thread: true, ..DriverOptions::default() })?)
}

/// Like [`one_thread`], with registered buffers.
pub(crate) fn registered(work: &Arc<Work>) -> io::Result<Measured> {
    let options = DriverOptions { one_thread: true, registered: true, ..DriverOptions::default() };
    on_one_thread(work, &open(work, options)?)
}

/// Writes through a stream, which copies the bytes into its own buffers.
pub(crate) fn write_stream(work: &Arc<Work>) -> io::Result<Measured> {
    let file = open(work, DriverOptions::default())?;
    file.driver().block_on(async {
        let mut bytes = AlignedBuffer::zeroed(REQUEST_BYTES);
        let begin = || WriteStream::new(&file, 0, StreamOptions::default());
        work.start();
        let mut stream = begin();
        while let Some(offset) = work.next_request() {
            if offset != stream.position() {
                stream.flush().await?;
                stream = begin();
            }
            work::stamp_blocks(&mut bytes, offset);
            stream.write_all(&bytes).await?;
            work.done(REQUEST_BYTES);
        }
        stream.finish().await?;
        Ok(work.finish())
    })
}

fn on_one_thread(work: &Arc<Work>, file: &File) -> io::Result<Measured> {
    file.driver().block_on(async {
        let mut tasks: FuturesUnordered<_> = buffers(work).into_iter().map(|own| task(work, file, own)).collect();
        work.start();
        while let Some(result) = tasks.next().await {
            result?;
        }
        finish(work, file).await
    })
}

/// Runs the tasks in tokio, while the driver's own thread collects the completions of their requests.
pub(crate) fn in_tokio(work: &Arc<Work>) -> io::Result<Measured> {
    let file = open(work, DriverOptions::default())?;
    runtime()?.block_on(async {
        work.start();
        let spawn = |own| {
            let (work, file) = (Arc::clone(work), file.clone());
            tokio::spawn(async move { task(&work, &file, own).await })
        };
        let tasks: Vec<_> = buffers(work).into_iter().map(spawn).collect();
        for task in tasks {
            task.await.map_err(io::Error::other)??;
        }
        finish(work, &file).await
    })
}

async fn finish(work: &Work, file: &File) -> io::Result<Measured> {
    if work.row == Row::Write {
        file.sync_data().await?;
    }
    Ok(work.finish())
}

/// Returns one item per task: a buffer if the tasks write, otherwise `None`.
fn buffers(work: &Work) -> Vec<Option<Buffer>> {
    match work.row {
        Row::Random(depth) => (0..depth).map(|_| None).collect(),
        Row::Many(_) | Row::Read => vec![None],
        Row::Write => Buffer::group(REQUESTS, REQUEST_BYTES).into_iter().map(Some).collect(),
    }
}

async fn task(work: &Work, file: &File, own: Option<Buffer>) -> io::Result<()> {
    match (work.row, own) {
        (Row::Write, Some(mut buffer)) => {
            while let Some(offset) = work.next_request() {
                work::stamp_blocks(&mut buffer, offset);
                buffer = Buffer(file.write_at(offset, buffer.0).await?);
                work.done(REQUEST_BYTES);
            }
        }
        (Row::Many(_), _) => {
            while let Some(ranges) = work.next_ranges() {
                let options = ReadManyOptions { requests: RANGES, ..ReadManyOptions::default() };
                let mut reads = file.read_many(ranges.iter().cloned(), options);
                while let Some((index, bytes)) = reads.next_range().await? {
                    work::check_range(&bytes, ranges[index].start);
                }
                work.done(ranges.len());
            }
        }
        (Row::Read, _) => loop {
            let mut stream = ReadStream::open(file, 0..work.file_bytes, StreamOptions::default())?;
            let mut offset = 0;
            while offset < work.file_bytes {
                if work.next_request().is_none() {
                    return Ok(());
                }
                let bytes = stream.next_buffer().await?.expect("the range has not ended");
                work::check_blocks(&bytes, offset);
                offset += bytes.len() as u64;
                work.done(bytes.len());
            }
        },
        _ => {
            while let Some(block) = work.next_block() {
                let offset = block * BLOCK_BYTES as u64;
                let bytes = file.read_at(offset, BLOCK_BYTES).await?;
                work::check_blocks(&bytes, offset);
                work.done(1);
            }
        }
    }
    Ok(())
}
