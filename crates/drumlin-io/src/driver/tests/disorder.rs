//! Tests of drivers, files and streams whose completions arrive late, out of order, or only as timeouts.
//!
//! Each seed determines a *world*: a backend, a depth, and threads that wait in different ways, make all kinds of
//! requests that go through a queue, and drop some of them. Each result is either correct or the error of a lost
//! request.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use futures_util::AsyncWriteExt;

use super::eventually;
use crate::backend::select::select;
use crate::sync::Random;
use crate::testing::fault::{Disorder, EIO, FaultyBackend};
use crate::tests::{TestFolder, block_on, byte_at};
use crate::{
    AlignedBuffer, Backend, Driver, DriverOptions, File, ImmutableFile, IoBackend, Operation, ReadBuffer,
    ReadManyOptions, ReadStream, StreamOptions, in_memory,
};

const BLOCK: u64 = AlignedBuffer::ALIGNMENT as u64;
const FILE_BYTES: u64 = 60 * BLOCK + 77;

/// The way in which a thread waits.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    InBlockOn,
    InAnotherExecutor,
    Blocking,
}

impl Waiting {
    fn of<T>(self, driver: &Driver, future: impl Future<Output = T>) -> T {
        match self {
            Waiting::InBlockOn => driver.block_on(future),
            Waiting::InAnotherExecutor | Waiting::Blocking => block_on(future),
        }
    }

    fn operation<T: Send + 'static>(self, driver: &Driver, operation: Operation<T>) -> io::Result<T> {
        match self {
            Waiting::Blocking => operation.begin().wait(),
            _ => self.of(driver, operation),
        }
    }
}

/// Returns the result's value, or `None` if the request was lost.
fn unless_lost<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.raw_os_error() == Some(EIO) => None,
        Err(error) => panic!("{error}"),
    }
}

fn assert_pattern(bytes: &[u8], offset: u64) {
    assert!(bytes.iter().zip(offset..).all(|(byte, position)| *byte == byte_at(position)), "wrong bytes from {offset}");
}

/// One thread of a world, with its files.
struct Lane<'w> {
    place: &'w TestFolder,
    file: File,
    /// A file that only this thread uses, and its expected contents by block. `None` means that a write to the block
    /// was lost or dropped, so the block may have either contents.
    own: File,
    content: Vec<Option<u8>>,
    random: Random,
    waiting: Waiting,
    number: u64,
    answered: u64,
}

impl Lane<'_> {
    fn range(&mut self) -> (u64, usize) {
        let offset = self.random.below(FILE_BYTES);
        let bytes_max = if self.random.chance(20) { 20 * BLOCK } else { 2 * BLOCK };
        (offset, (self.random.below(bytes_max) as usize).min((FILE_BYTES - offset) as usize))
    }

    fn wait<T: Send + 'static>(&mut self, operation: Operation<T>) -> Option<T> {
        let answer = unless_lost(self.waiting.operation(self.file.driver(), operation));
        self.answered += u64::from(answer.is_some());
        answer
    }

    fn step(&mut self) {
        match self.random.below(9) {
            0 | 1 => {
                let (offset, bytes) = self.range();
                if let Some(found) = self.wait(self.file.read_at(offset, bytes)) {
                    assert_eq!(found.len(), bytes);
                    assert_pattern(&found, offset);
                }
            }
            2 => {
                let offset = FILE_BYTES - 500 + self.random.below(1000);
                if let Some(found) = self.wait(self.file.read_up_to(offset, 3000)) {
                    assert_eq!(found.len() as u64, FILE_BYTES.saturating_sub(offset));
                    assert_pattern(&found, offset);
                }
            }
            3 => self.drop_some(),
            4 => self.write(),
            5 => self.read_many(),
            6 => self.read_stream(),
            7 => self.write_stream(),
            _ => {
                let ranges: Vec<(u64, usize)> = (0..10).map(|_| self.range()).collect();
                let begin = |(offset, bytes)| (offset, self.file.read_at(offset, bytes).begin());
                let reads: Vec<(u64, Operation<ReadBuffer>)> = ranges.into_iter().map(begin).collect();
                for (offset, read) in reads.into_iter().rev() {
                    if let Some(found) = self.wait(read) {
                        assert_pattern(&found, offset);
                    }
                }
            }
        }
    }

    /// Begins reads and writes, polls some of them, and drops them all.
    fn drop_some(&mut self) {
        for _ in 0..self.random.below(12) {
            let (offset, bytes) = self.range();
            let read = self.file.read_at(offset, bytes);
            if self.random.chance(50) {
                drop(read.begin());
                continue;
            }
            let mut read = pin!(read);
            for _ in 0..=self.random.below(2) {
                if read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                    break;
                }
            }
        }
        let block = self.random.below(self.content.len() as u64);
        self.content[block as usize] = None;
        drop(self.own.write_at(block * BLOCK, AlignedBuffer::from(&[9; BLOCK as usize])).begin());
    }

    fn write(&mut self) {
        let first = self.random.below(self.content.len() as u64) as usize;
        let count = (1 + self.random.below(4) as usize).min(self.content.len() - first);
        let byte = self.random.below(256) as u8;
        let bytes = AlignedBuffer::from(&vec![byte; count * BLOCK as usize][..]);
        // A lost or dropped write of one of these blocks may still be in flight.
        if self.content[first..first + count].contains(&None) {
            return;
        }
        let written = self.wait(self.own.write_at(first as u64 * BLOCK, bytes));
        self.content[first..first + count].fill(written.map(|_| byte));
        for block in 0..self.content.len() {
            let Some(byte) = self.content[block] else { continue };
            if let Some(found) = self.wait(self.own.read_at(block as u64 * BLOCK, BLOCK as usize)) {
                assert!(found.iter().all(|found| *found == byte), "block {block} of lane {}", self.number);
            }
        }
    }

    fn read_many(&mut self) {
        let ranges: Vec<_> = (0..20).map(|_| self.range()).collect();
        let options = ReadManyOptions { requests: 1 + self.random.below(8) as usize, ..ReadManyOptions::default() };
        let spans = ranges.iter().map(|(offset, bytes)| *offset..*offset + *bytes as u64);
        let mut reads = self.file.read_many(spans, options);
        let take = self.random.below(30);
        for _ in 0..take {
            match unless_lost(self.waiting.of(self.file.driver(), reads.next_range())) {
                Some(Some((index, found))) => {
                    assert_eq!(found.len(), ranges[index].1);
                    assert_pattern(&found, ranges[index].0);
                    self.answered += 1;
                }
                Some(None) => return,
                None => {}
            }
        }
    }

    fn stream_options(&mut self) -> StreamOptions {
        let requests = 1 + self.random.below(5) as usize;
        StreamOptions { request_bytes: BLOCK as usize * (1 + self.random.below(4) as usize), requests }
    }

    fn read_stream(&mut self) {
        let (offset, bytes) = self.range();
        let options = self.stream_options();
        let mut stream = ReadStream::open(&self.file, offset..offset + bytes as u64, options).unwrap();
        let (mut position, take) = (offset, self.random.below(20));
        for _ in 0..take {
            match unless_lost(self.waiting.of(self.file.driver(), stream.next_buffer())) {
                Some(Some(buffer)) => {
                    assert_pattern(&buffer, position);
                    position += buffer.len() as u64;
                    self.answered += 1;
                }
                Some(None) => return assert_eq!(position, offset + bytes as u64),
                None => return,
            }
        }
    }

    fn write_stream(&mut self) {
        let path = self.place.path(&format!("written-{}-{}", self.number, self.random.next()));
        let (driver, options) = (self.file.driver().clone(), self.stream_options());
        let bytes: Vec<u8> = (0..self.random.below(30 * BLOCK)).map(byte_at).collect();
        let is_finished = self.random.chance(70);
        let written = self.waiting.of(&driver, async {
            let mut writer = ImmutableFile::create(&driver, &path, options).await?;
            writer.write_all(&bytes).await?;
            if is_finished { writer.finish().await.map(Some) } else { Ok(None) }
        });
        match unless_lost(written) {
            Some(Some(file)) => {
                assert_eq!(file.len(), bytes.len() as u64);
                // Read the file without the queue: it must be complete.
                let found = self.place.backend.open(&path, crate::OpenOptions::default()).unwrap();
                assert_pattern(&found.read_buffer(0, bytes.len()).unwrap(), 0);
                self.answered += 1;
            }
            _ => assert!(!self.place.backend.exists(&path).unwrap(), "a file has its name and is not complete"),
        }
    }
}

/// Runs the world of this seed. Returns the number of requests that were answered without an error.
fn world(inner: &Arc<dyn Backend>, seed: u64) -> u64 {
    let mut random = Random(seed);
    let place = TestFolder::new(Arc::clone(inner));
    place.patterned("data", FILE_BYTES as usize, true);
    let disk = FaultyBackend::new(Arc::clone(inner));
    let lost_one_in = [0, 60, 12][random.below(3) as usize];
    disk.disorder(Disorder { seed, rounds_late_max: random.below(6), lost_one_in });
    let depth = [1, 2, 7, 64][random.below(4) as usize];
    let one_thread = random.one_in(4);
    let driver = Driver::on(Arc::new(disk.clone()), DriverOptions { depth, one_thread, ..Default::default() }).unwrap();
    let direct = crate::OpenOptions { write: true, direct: true, ..Default::default() };
    let file = File::open(&driver, place.path("data"), direct).wait().unwrap();
    let (end, is_over) = channel::<()>();
    let ways = [Waiting::InBlockOn, Waiting::InAnotherExecutor, Waiting::Blocking];
    let answered = thread::scope(|scope| {
        let timing_out = disk.clone();
        let timer = scope.spawn(move || {
            while is_over.recv_timeout(Duration::from_micros(200)) == Err(RecvTimeoutError::Timeout) {
                timing_out.time_out();
            }
        });
        let lanes: Vec<_> = (0..if one_thread { 1 } else { 3 })
            .map(|number| {
                let (place, file, driver, seed) = (&place, file.clone(), driver.clone(), random.next());
                scope.spawn(move || {
                    let own = File::create(&driver, place.path(&format!("own-{number}"))).wait().unwrap();
                    own.truncate(8 * BLOCK).wait().unwrap();
                    let (content, waiting) = (vec![Some(0); 8], ways[number as usize]);
                    let file = if number == 2 { file.with_driver(&driver.background(0.3)) } else { file };
                    let mut lane =
                        Lane { place, file, own, content, random: Random(seed), waiting, number, answered: 0 };
                    (0..25).for_each(|_| lane.step());
                    lane.answered
                })
            })
            .collect();
        let answered = lanes.into_iter().map(|lane| lane.join().unwrap()).sum();
        eventually("nothing is in flight", || driver.turn().is_ok() && driver.in_flight() == 0);
        drop(end);
        timer.join().unwrap();
        answered
    });
    eventually("the file is closed", || Arc::strong_count(file.backend_file()) == 1);
    answered
}

fn worlds(inner: &Arc<dyn Backend>) {
    let first = std::env::var("DRUMLIN_TEST_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let count = std::env::var("DRUMLIN_TEST_SEEDS").map_or(40, |count| count.parse().expect("a number"));
    let answered: u64 = (first..first + count)
        .map(|seed| {
            let answered = thread::scope(|scope| scope.spawn(|| world(inner, seed)).join());
            answered.unwrap_or_else(|_| panic!("DRUMLIN_TEST_SEED={seed} failed"))
        })
        .sum();
    assert!(answered > count * 50, "only {answered} requests were answered");
}

#[test]
fn disorder_in_memory() {
    worlds(&in_memory());
}

#[test]
fn disorder_in_a_pool_of_threads() {
    worlds(&select(IoBackend::Portable).unwrap());
}

#[test]
fn disorder_in_the_systems_queue() {
    worlds(&select(IoBackend::Auto).unwrap());
}

/// A lost request keeps its buffer and its file until it times out or the queue is dropped, even if its future or the
/// driver is dropped earlier.
#[test]
fn a_lost_request_keeps_its_memory() {
    for (is_future_kept, is_timed_out) in [(true, true), (false, true), (false, false)] {
        let place = TestFolder::new(in_memory());
        let disk = FaultyBackend::new(Arc::clone(&place.backend));
        disk.disorder(Disorder { lost_one_in: 1, ..Disorder::default() });
        let options = DriverOptions { thread: is_timed_out, ..DriverOptions::default() };
        let driver = Driver::on(Arc::new(disk.clone()), options).unwrap();
        place.patterned("data", 5000, true);
        let file = File::open(&driver, place.path("data"), crate::OpenOptions::default()).wait().unwrap();
        let backend_file = Arc::downgrade(file.backend_file());
        let mut read = file.read_at(100, 50).begin();
        let context = &mut Context::from_waker(Waker::noop());
        assert!(std::pin::Pin::new(&mut read).poll(context).is_pending());
        assert_eq!(driver.in_flight(), 1);
        drop((file, driver));
        if is_future_kept {
            disk.time_out();
            let mut read = Some(read);
            let lost = block_on(std::future::poll_fn(|context| {
                disk.time_out();
                let polled = std::pin::Pin::new(read.as_mut().unwrap()).poll(context);
                if polled.is_pending() {
                    context.waker().wake_by_ref();
                }
                polled
            }));
            assert_eq!(lost.unwrap_err().raw_os_error(), Some(EIO));
        } else {
            drop(read);
        }
        eventually("the request is over", || {
            if is_timed_out {
                disk.time_out();
            }
            backend_file.upgrade().is_none()
        });
    }
}
