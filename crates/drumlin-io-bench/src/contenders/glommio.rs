//! glommio. Its files allocate their own buffers, which it registers with its ring.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use glommio::io::{DmaFile, DmaStreamReaderBuilder, MergedBufferLimit, OpenOptions, ReadAmplificationLimit};
use glommio::{LocalExecutorBuilder, Placement};

use crate::work::{self, BLOCK_BYTES, Measured, REQUEST_BYTES, REQUESTS, Row, Work};

pub(crate) fn run(work: &Arc<Work>) -> io::Result<Measured> {
    let builder = LocalExecutorBuilder::new(Placement::Unbound).ring_depth(256);
    let executor = builder.make().map_err(io::Error::from)?;
    executor.run(async {
        let mut options = OpenOptions::new();
        options.read(true).write(work.row == Row::Write);
        let file = Rc::new(options.dma_open(&work.path).await?);
        work.start();
        match work.row {
            Row::Random(_) | Row::Write => {
                let tasks = (0..work.row.depth()).map(|_| {
                    let (file, work) = (Rc::clone(&file), Arc::clone(work));
                    glommio::spawn_local(async move {
                        let done =
                            if work.row == Row::Write { write(&work, &file).await } else { read(&work, &file).await };
                        done.expect("the file can be read and written");
                    })
                });
                join_all(tasks.collect::<Vec<_>>()).await;
                if work.row == Row::Write {
                    file.fdatasync().await?;
                }
            }
            Row::Many(_) => read_many(work, &file).await?,
            Row::Read => read_stream(work, &file).await?,
        }
        let measured = work.finish();
        file.close_rc().await?;
        Ok(measured)
    })
}

async fn read(work: &Work, file: &DmaFile) -> io::Result<()> {
    while let Some(block) = work.next_block() {
        let offset = block * BLOCK_BYTES as u64;
        work::check_blocks(&file.read_at_aligned(offset, BLOCK_BYTES).await?, offset);
        work.done(1);
    }
    Ok(())
}

async fn read_many(work: &Work, file: &Rc<DmaFile>) -> io::Result<()> {
    while let Some(ranges) = work.next_ranges() {
        // glommio merges adjacent ranges only if they are neighbours in the list, so sort the ranges.
        let mut ranges: Vec<_> =
            ranges.into_iter().map(|range| (range.start, (range.end - range.start) as usize)).collect();
        ranges.sort_unstable();
        let count = ranges.len();
        let (limit, amplification) = (MergedBufferLimit::Custom(128 << 10), ReadAmplificationLimit::Custom(4096));
        let mut reads = file.read_many(stream::iter(ranges), limit, amplification).with_concurrency(256);
        while let Some(item) = reads.next().await {
            let ((offset, _), bytes) = item?;
            work::check_range(&bytes, offset);
        }
        work.done(count);
    }
    Ok(())
}

async fn read_stream(work: &Work, file: &Rc<DmaFile>) -> io::Result<()> {
    loop {
        let builder = DmaStreamReaderBuilder::from_rc(Rc::clone(file));
        let mut stream = builder.with_buffer_size(REQUEST_BYTES).with_read_ahead(REQUESTS).build();
        let mut offset = 0;
        while offset < work.file_bytes {
            if work.next_request().is_none() {
                return Ok(());
            }
            let bytes = stream.get_buffer_aligned(REQUEST_BYTES as u64).await?;
            work::check_blocks(&bytes, offset);
            offset += bytes.len() as u64;
            work.done(bytes.len());
        }
    }
}

async fn write(work: &Work, file: &DmaFile) -> io::Result<()> {
    let mut buffer = Rc::new(file.alloc_dma_buffer(REQUEST_BYTES));
    while let Some(offset) = work.next_request() {
        let bytes = Rc::get_mut(&mut buffer).expect("it is not in flight").as_bytes_mut();
        work::stamp_blocks(bytes, offset);
        if file.write_rc_at(Rc::clone(&buffer), offset).await? != REQUEST_BYTES {
            return Err(io::Error::other("fewer bytes were written"));
        }
        work.done(REQUEST_BYTES);
    }
    Ok(())
}
