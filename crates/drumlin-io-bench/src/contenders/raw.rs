//! The lower bounds for the cost of these reads and writes: blocking calls, and a queue that is used without tasks.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use drumlin_io::{IoBackend, OpenOptions, Queue};

use crate::buffer::Buffer;
use crate::work::{self, BLOCK_BYTES, Measured, RANGE_BYTES, REQUEST_BYTES, Row, Work};

/// Runs one thread per request in flight, with `pread` and `pwrite`.
pub(crate) fn threads(work: &Arc<Work>) -> io::Result<Measured> {
    let file = &work::open(work, true)?;
    let bytes = if work.row.is_sequential() { REQUEST_BYTES } else { BLOCK_BYTES };
    let buffers = Buffer::group(work.row.depth(), bytes);
    work.start();
    std::thread::scope(|scope| {
        let spawn = |mut buffer: Buffer| {
            scope.spawn(move || {
                while let Some(offsets) = next_offsets(work) {
                    for offset in &offsets {
                        if work.row == Row::Write {
                            work::stamp_blocks(&mut buffer, *offset);
                            file.write_all_at(&buffer, *offset)?;
                        } else {
                            file.read_exact_at(&mut buffer, *offset)?;
                            check(work, &buffer, *offset);
                        }
                    }
                    work.done(if work.row.is_sequential() { bytes } else { offsets.len() });
                }
                Ok::<(), io::Error>(())
            })
        };
        let threads: Vec<_> = buffers.into_iter().map(spawn).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread of the measurement"))
    })?;
    if work.row == Row::Write {
        file.sync_data()?;
    }
    Ok(work.finish())
}

/// Fills and empties drumlin-io's own queue on this thread.
pub(crate) fn queue(work: &Arc<Work>) -> io::Result<Measured> {
    let backend = drumlin_io::backend(IoBackend::Uring)?;
    let options = OpenOptions { write: work.row == Row::Write, direct: true, ..OpenOptions::default() };
    let file = backend.open(&work.path, options)?;
    let queue: Box<dyn Queue> = backend.queue(work.row.depth())?;
    let bytes = if work.row.is_sequential() { REQUEST_BYTES } else { BLOCK_BYTES };
    let mut free = Buffer::group(work.row.depth(), bytes);
    let mut finished = Vec::new();
    let mut offsets: Vec<u64> = Vec::new();
    let mut is_over = false;
    work.start();
    loop {
        // The next call starts only after all ranges of the previous call have been read.
        while !free.is_empty() && !is_over {
            if offsets.is_empty() {
                if matches!(work.row, Row::Many(_)) && queue.in_flight() > 0 {
                    break;
                }
                match next_offsets(work) {
                    Some(next) => offsets = next,
                    None => is_over = true,
                }
            }
            let Some(offset) = offsets.pop() else { break };
            let mut buffer = free.pop().expect("there is one");
            if work.row == Row::Write {
                work::stamp_blocks(&mut buffer, offset);
                queue.push_write(&file, offset, buffer.0, offset);
            } else {
                queue.push_read(&file, offset, buffer.0, offset);
            }
        }
        if queue.in_flight() == 0 {
            break;
        }
        queue.wait(1, &mut finished)?;
        for completion in finished.drain(..) {
            completion.result?;
            if work.row != Row::Write {
                check(work, &completion.buffer, completion.token);
            }
            work.done(if work.row.is_sequential() { bytes } else { 1 });
            free.push(Buffer(completion.buffer));
        }
    }
    if work.row == Row::Write {
        file.sync_data()?;
    }
    Ok(work.finish())
}

/// Returns the offset of the next request, or the offsets of the next call of `read_many`.
fn next_offsets(work: &Work) -> Option<Vec<u64>> {
    match work.row {
        Row::Random(_) => work.next_block().map(|block| vec![block * BLOCK_BYTES as u64]),
        Row::Many(_) => work.next_ranges().map(|ranges| ranges.into_iter().map(|range| range.start).collect()),
        Row::Read | Row::Write => work.next_request().map(|offset| vec![offset]),
    }
}

fn check(work: &Work, bytes: &[u8], offset: u64) {
    match work.row {
        Row::Many(_) => work::check_range(&bytes[..RANGE_BYTES], offset),
        _ => work::check_blocks(bytes, offset),
    }
}
