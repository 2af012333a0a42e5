//! Runs the reads and writes as tasks of a runtime, with one request in flight per task. Used for interfaces that take
//! a buffer and return it.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::buffer::Buffer;
use crate::work::{self, BLOCK_BYTES, RANGE_BYTES, REQUEST_BYTES, Row, Work};

/// A file that is opened by a runtime.
pub(crate) trait Disk: 'static {
    async fn read(&self, offset: u64, buffer: Buffer) -> io::Result<Buffer>;
    async fn write(&self, offset: u64, buffer: Buffer) -> io::Result<Buffer>;
    async fn sync(&self) -> io::Result<()>;
}

/// Starts the tasks of the row with `spawn`, then awaits the futures that `spawn` returned until all tasks have ended.
pub(crate) async fn run<D: Disk, S: Future>(
    work: &Arc<Work>,
    disk: D,
    spawn: impl Fn(std::pin::Pin<Box<dyn Future<Output = ()>>>) -> S,
) -> io::Result<crate::work::Measured> {
    let disk = Rc::new(disk);
    let (count, bytes) = match work.row {
        Row::Random(depth) => (depth, BLOCK_BYTES),
        Row::Many(_) => (1, BLOCK_BYTES),
        Row::Read | Row::Write => (work.row.depth(), REQUEST_BYTES),
    };
    let mut buffers = Buffer::group(if matches!(work.row, Row::Many(_)) { work.row.depth() } else { count }, bytes);
    work.start();
    let tasks: Vec<S> = (0..count)
        .map(|_| {
            let (disk, work) = (Rc::clone(&disk), Arc::clone(work));
            let own = match work.row {
                Row::Many(_) => std::mem::take(&mut buffers),
                _ => vec![buffers.pop().expect("there is a buffer for each task")],
            };
            spawn(Box::pin(async move { task(&work, &*disk, own).await.expect("the file can be read and written") }))
        })
        .collect();
    join_all(tasks).await;
    if work.row == Row::Write {
        disk.sync().await?;
    }
    Ok(work.finish())
}

async fn task(work: &Work, disk: &impl Disk, mut buffers: Vec<Buffer>) -> io::Result<()> {
    if matches!(work.row, Row::Many(_)) {
        while let Some(ranges) = work.next_ranges() {
            let reads = ranges.iter().zip(buffers).map(|(range, buffer)| disk.read(range.start, buffer));
            buffers = join_all(reads).await.into_iter().collect::<io::Result<_>>()?;
            for (range, buffer) in ranges.iter().zip(&buffers) {
                work::check_range(&buffer[..RANGE_BYTES], range.start);
            }
            work.done(ranges.len());
        }
        return Ok(());
    }
    let mut buffer = buffers.pop().expect("the task has a buffer");
    match work.row {
        Row::Random(_) => {
            while let Some(block) = work.next_block() {
                let offset = block * BLOCK_BYTES as u64;
                buffer = disk.read(offset, buffer).await?;
                work::check_blocks(&buffer, offset);
                work.done(1);
            }
        }
        Row::Read => {
            while let Some(offset) = work.next_request() {
                buffer = disk.read(offset, buffer).await?;
                work::check_blocks(&buffer, offset);
                work.done(REQUEST_BYTES);
            }
        }
        Row::Write => {
            while let Some(offset) = work.next_request() {
                work::stamp_blocks(&mut buffer, offset);
                buffer = disk.write(offset, buffer).await?;
                work.done(REQUEST_BYTES);
            }
        }
        Row::Many(_) => unreachable!("it was done above"),
    }
    Ok(())
}

/// Checks that all bytes were transferred.
#[cfg(feature = "peers")]
pub(crate) fn whole(result: io::Result<usize>, buffer: Buffer) -> io::Result<Buffer> {
    if result? == buffer.len() { Ok(buffer) } else { Err(io::Error::other("fewer bytes were transferred")) }
}
