//! Tests of drivers and files, run on each of the backends.

mod disorder;

use std::collections::HashSet;
use std::future::Future;
use std::io::{ErrorKind, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::backend::select::select;
use crate::testing::fault::{EIO, ENOSPC, FaultyBackend, Operation as Op};
use crate::tests::{TestFolder, block_on, byte_at};
use crate::{
    AlignedBuffer, Driver, DriverOptions, File, ImmutableFile, IoBackend, OpenOptions, ReadBuffer, ReadManyOptions,
    ReadStream, StreamOptions, SyncMethod, WriteStream, in_memory,
};

const BLOCK: usize = AlignedBuffer::ALIGNMENT;

fn is_pattern(bytes: &[u8], offset: u64) -> bool {
    bytes.iter().zip(offset..).all(|(byte, position)| *byte == byte_at(position))
}

fn pattern(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(byte_at).collect()
}

fn patterned(place: &TestFolder, driver: &Driver, name: &str, bytes: usize) -> File {
    File::new(place.patterned(name, bytes, true), driver.clone())
}

/// A waker that counts its calls.
#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::yield_now();
    }
}

/// All three ways of waiting return the same bytes, for ranges of any alignment.
fn every_way_of_waiting(place: &TestFolder) {
    let driver = place.driver();
    let bytes = 3 * BLOCK + 77;
    let file = patterned(place, &driver, "ways", bytes);
    for (offset, count) in [(0, 1), (1, BLOCK), (4095, 2), (BLOCK, BLOCK), (3 * BLOCK + 76, 1), (0, bytes), (5, 0)] {
        let read = || file.read_at(offset as u64, count);
        for found in [read().wait(), driver.block_on(read()), block_on(read()), read().begin().wait()] {
            let found = found.unwrap();
            assert!(found.len() == count && is_pattern(&found, offset as u64), "{count} bytes at {offset}");
        }
        let mut target = vec![0; count];
        file.read_exact_at(&mut target, offset as u64).unwrap();
        assert!(is_pattern(&target, offset as u64));
    }
}

fn the_end_of_the_file(place: &TestFolder) {
    let driver = place.driver();
    let bytes = 3 * BLOCK as u64 + 77;
    let file = patterned(place, &driver, "end", bytes as usize);
    for (offset, count, available) in [(bytes - 1, 2, 1), (bytes, 1, 0), (bytes + 100_000, 5, 0), (0, 1 << 20, bytes)] {
        for error in [file.read_at(offset, count).wait(), block_on(file.read_at(offset, count))] {
            assert_eq!(error.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
        for found in [file.read_up_to(offset, count).wait(), driver.block_on(file.read_up_to(offset, count))] {
            let found = found.unwrap();
            assert_eq!(found.len() as u64, available, "{count} bytes at {offset}");
            assert!(is_pattern(&found, offset));
        }
    }
    let options = OpenOptions { write: true, direct: true, ..OpenOptions::default() };
    let file = File::open(&driver, place.path("end"), options).wait().unwrap();
    for offset in [u64::MAX, i64::MAX as u64, u64::MAX - 4095] {
        assert_eq!(file.read_at(offset, 4096).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(file.write_at(offset, b"x").wait().unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(file.write_all_at(b"x", offset).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

fn writes_of_any_range(place: &TestFolder) {
    let driver = place.driver();
    let file = File::create(&driver, place.path("writes")).wait().unwrap();
    let error = File::create(&driver, place.path("writes")).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let mut expected = vec![0u8; 200_000];
    file.truncate(200_000).wait().unwrap();
    let ranges =
        [(0, 1), (1, 4096), (4096, 4096), (8192, 50_000), (100_001, 60_000), (199_999, 1), (4095, 4098), (9, 0)];
    for (seed, (offset, count)) in (1u8..).zip(ranges) {
        let bytes: Vec<u8> = (0..count).map(|index| (index as u8) ^ seed).collect();
        expected[offset..offset + count].copy_from_slice(&bytes);
        match seed % 3 {
            0 => file.write_at(offset as u64, bytes).wait().map(drop),
            1 => block_on(file.write_at(offset as u64, bytes)).map(drop),
            _ => file.write_all_at(&bytes, offset as u64),
        }
        .unwrap();
        assert!(file.read_at(0, 200_000).wait().unwrap()[..] == expected[..], "after {count} bytes at {offset}");
    }
    let buffer = driver.block_on(file.write_at(0, AlignedBuffer::zeroed(2 * BLOCK))).unwrap();
    assert_eq!(buffer.len(), 2 * BLOCK, "the buffer comes back");
    let buffer = file.write_durable(0, AlignedBuffer::from(&[7; BLOCK]), SyncMethod::DurableWrite).wait().unwrap();
    let buffer = driver.block_on(file.read_into(0, buffer)).unwrap();
    assert!(buffer.iter().all(|byte| *byte == 7));
    block_on(file.sync_data()).unwrap();
    block_on(file.sync_all()).unwrap();
    block_on(file.allocate(0, 300_000)).unwrap();
    assert_eq!(file.len().unwrap(), 300_000);
    block_on(file.close()).unwrap();
}

/// Concurrent writes to neighbouring ranges that share blocks lose no bytes.
fn unaligned_neighbours(place: &TestFolder) {
    let driver = place.driver();
    let file = File::create(&driver, place.path("neighbours")).wait().unwrap();
    let piece = 1000;
    thread::scope(|scope| {
        for lane in 0..8 {
            let file = &file;
            scope.spawn(move || {
                for number in (lane..160).step_by(8) {
                    let offset = (number * piece) as u64;
                    let bytes = pattern(offset..offset + piece as u64);
                    if number % 2 == 0 {
                        block_on(file.write_at(offset, bytes))
                    } else {
                        file.write_at(offset, bytes).wait()
                    }
                    .unwrap();
                }
            });
        }
    });
    assert!(is_pattern(&file.read_at(0, 160 * piece).wait().unwrap(), 0));
    assert_eq!(file.len().unwrap(), 160 * piece as u64);
}

/// Many threads and tasks make more requests than the depth allows, and each request gets the right bytes.
fn more_requests_than_the_depth(place: &TestFolder) {
    for depth in [1, 3, 64] {
        let options = DriverOptions { depth, buffers: 8, ..DriverOptions::default() };
        let driver = Driver::on(Arc::clone(&place.backend), options).unwrap();
        let file = patterned(place, &driver, "depth", 64 * BLOCK);
        thread::scope(|scope| {
            for lane in 0..4u64 {
                let (file, driver) = (&file, &driver);
                scope.spawn(move || {
                    let reads = |count: u64| {
                        let offset = move |number: u64| (number * 7 + lane) * 1000 % (60 * BLOCK as u64);
                        (0..count).map(move |number| (offset(number), file.read_at(offset(number), 5000).begin()))
                    };
                    let check =
                        |offset, found: std::io::Result<ReadBuffer>| assert!(is_pattern(&found.unwrap(), offset));
                    for (offset, read) in reads(100).collect::<Vec<_>>().into_iter().rev() {
                        match lane {
                            0 => check(offset, block_on(read)),
                            1 => check(offset, driver.block_on(read)),
                            _ => check(offset, read.wait()),
                        }
                    }
                });
            }
        });
        eventually("all requests have ended", || driver.in_flight() == 0);
    }
}

/// A dropped operation keeps its buffer and its file until it has finished.
fn dropped_operations(place: &TestFolder) {
    let driver = place.driver();
    let file = patterned(place, &driver, "dropped", 64 * BLOCK);
    for round in 0..50 {
        let mut reads: Vec<_> = (0..40).map(|number| file.read_at(number * 4096, BLOCK).begin()).collect();
        let waker = Waker::from(Arc::new(CountingWaker::default()));
        for read in reads.iter_mut().take(round) {
            if let Poll::Ready(bytes) = Pin::new(&mut *read).poll(&mut Context::from_waker(&waker)) {
                bytes.unwrap();
                *read = file.read_at(0, 1);
            }
        }
        reads.retain(|_| round % 3 == 0);
        drop(file.read_at(0, BLOCK));
        driver.block_on(async { drop(file.read_at(5, 10).begin()) });
        assert!(is_pattern(&block_on(file.read_at(0, 20 * BLOCK)).unwrap(), 0));
    }
    eventually("nothing is in flight", || driver.in_flight() == 0);
    eventually("the file is closed", || Arc::strong_count(file.backend_file()) == 1);
}

/// A driver can be dropped while its operations are in flight, because they hold references to it.
fn operations_outlive_the_driver(place: &TestFolder) {
    for is_waited in [true, false] {
        let driver = place.driver();
        let file = patterned(place, &driver, "outlived", 16 * BLOCK);
        let reads: Vec<_> = (0..16u64).map(|number| (number, file.read_at(number * 4096, BLOCK).begin())).collect();
        drop((driver, file));
        if is_waited {
            for (number, read) in reads {
                assert!(is_pattern(&block_on(read).unwrap(), number * 4096));
            }
        }
    }
}

/// A future that waits for an event other than I/O is woken while its thread collects requests.
fn block_on_hears_other_wakers(place: &TestFolder) {
    let driver = place.driver();
    let file = patterned(place, &driver, "other", 16 * BLOCK);
    for round in 0..200u64 {
        let (sender, receiver) = oneshot();
        let read = file.read_at(round % 16 * 4096, BLOCK);
        thread::scope(|scope| {
            scope.spawn(move || sender.send());
            driver.block_on(async {
                let read = read.begin();
                receiver.await;
                assert!(is_pattern(&read.await.unwrap(), round % 16 * 4096));
            });
        });
    }
}

/// A channel for one signal.
fn oneshot() -> (Sender, Receiver) {
    let shared = Arc::new(crate::sync::Mutex::new((false, None)));
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

type Channel = Arc<crate::sync::Mutex<(bool, Option<Waker>)>>;

struct Sender(Channel);

struct Receiver(Channel);

impl Sender {
    fn send(self) {
        let mut state = self.0.lock();
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Receiver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        state.1 = Some(context.waker().clone());
        if state.0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A driver without its own thread works if the program calls `turn`.
fn a_loop_of_its_own_drives(place: &TestFolder) {
    let options = DriverOptions { thread: false, ..DriverOptions::default() };
    let driver = Driver::on(Arc::clone(&place.backend), options).unwrap();
    let file = patterned(place, &driver, "loop", 16 * BLOCK);
    let counter = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&counter));
    let mut reads: Vec<_> = (0..16u64).map(|number| (number, file.read_at(number * 4096, BLOCK))).collect();
    while !reads.is_empty() {
        let before = counter.0.load(Ordering::SeqCst);
        reads.retain_mut(|(number, read)| match Pin::new(read).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => true,
            Poll::Ready(bytes) => {
                assert!(is_pattern(&bytes.unwrap(), *number * 4096));
                false
            }
        });
        let is_woken = counter.0.load(Ordering::SeqCst) != before;
        if !reads.is_empty()
            && !is_woken
            && let Some(descriptor) = driver.as_fd()
        {
            let mut poll = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
            assert_eq!(rustix::event::poll(&mut poll, Some(&TEN_SECONDS)).unwrap(), 1, "a request finishes");
        }
        driver.turn().unwrap();
    }
}

const TEN_SECONDS: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };

fn many_ranges(place: &TestFolder) {
    let driver = place.driver();
    let bytes = 200 * BLOCK as u64 + 77;
    let file = patterned(place, &driver, "many", bytes as usize);
    let mut state = 1u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for (gap, requests, request_bytes) in [(0, 1, 4096), (4096, 32, 128 << 10), (1 << 20, 3, 1 << 20), (100, 64, 1)] {
        let options = ReadManyOptions { gap_bytes_max: gap, request_bytes_max: request_bytes, requests };
        let mut ranges: Vec<_> = (0..300)
            .map(|_| {
                let start = draw(bytes);
                start..(start + draw(20_000)).min(bytes)
            })
            .collect();
        ranges.extend([0..bytes, bytes..bytes, 0..0, 5..9, 5..9]);
        let mut reads = file.read_many(ranges.clone(), options);
        let mut seen = HashSet::new();
        while let Some((index, found)) = block_on(reads.next_range()).unwrap() {
            assert!(seen.insert(index), "range {index} came twice");
            assert_eq!(found.len() as u64, ranges[index].end - ranges[index].start);
            assert!(is_pattern(&found, ranges[index].start));
        }
        assert_eq!(seen.len(), ranges.len());
        assert!(block_on(reads.next_range()).unwrap().is_none());
    }
    // A merged read covers only a bounded number of unneeded bytes.
    let every_second: Vec<_> = (0..50u64).map(|number| number * 8192..number * 8192 + 4096).collect();
    for (gap, requests) in [(0, 50), (4095, 50), (4096, 4)] {
        let options = ReadManyOptions { gap_bytes_max: gap, ..ReadManyOptions::default() };
        let mut reads = file.read_many(every_second.clone(), options);
        while driver.block_on(reads.next_range()).unwrap().is_some() {}
        if file.is_direct() {
            assert_eq!(reads.requests(), requests, "with gaps of up to {gap} bytes");
            assert!(reads.bytes() <= 50 * 4096 + 49 * gap as u64);
        }
    }
    assert!(block_on(file.read_many([], ReadManyOptions::default()).next_range()).unwrap().is_none());
    #[allow(clippy::reversed_empty_ranges, reason = "the test checks that it is refused")]
    for (wrong, kind) in [(9..5, ErrorKind::InvalidInput), (bytes - 1..bytes + 1, ErrorKind::UnexpectedEof)] {
        let mut reads = file.read_many([0..10, wrong, 400..500], ReadManyOptions::default());
        let error = loop {
            match block_on(reads.next_range()) {
                Ok(range) => assert!(range.is_some(), "it must not end as if all were well"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), kind);
        assert!(block_on(reads.next_range()).unwrap().is_none(), "an error ends it");
    }
}

fn written_streams(place: &TestFolder) {
    let driver = place.driver();
    for (number, (request_bytes, requests)) in [(4096, 1), (8192, 3), (512 << 10, 5)].into_iter().enumerate() {
        for (start, total) in [(0, 100_001), (1, 5), (4095, 8194), (10_000, 300_000), (0, 0), (0, 1 << 20)] {
            let options = StreamOptions { request_bytes, requests };
            let path = place.path(&format!("written {number} {start} {total}"));
            let file = File::create(&driver, &path).wait().unwrap();
            let mut stream = WriteStream::new(&file, start, options);
            let bytes = pattern(start..start + total);
            let mut rest = &bytes[..];
            for step in 1usize.. {
                let (piece, more) = rest.split_at((step * 37).min(rest.len()));
                stream.write_all(piece).unwrap();
                rest = more;
                if step % 40 == 0 {
                    driver.block_on(stream.flush()).unwrap();
                    assert_eq!(file.len().unwrap(), stream.position());
                    let written = (stream.position() - start) as usize;
                    assert!(is_pattern(&file.read_at(start, written).wait().unwrap(), start));
                }
                if step % 25 == 0 {
                    block_on(stream.flush_aligned()).unwrap();
                }
                if rest.is_empty() {
                    break;
                }
            }
            assert_eq!(block_on(stream.finish()).unwrap(), start + total);
            assert_eq!(file.len().unwrap(), if total == 0 { 0 } else { start + total });
            assert!(is_pattern(&file.read_at(start, total as usize).wait().unwrap(), start));
        }
    }
    let file = File::create(&driver, place.path("unflushed")).wait().unwrap();
    drop(WriteStream::new(&file, 0, StreamOptions::default()));
    let mut stream = WriteStream::new(&file, 0, StreamOptions::default());
    stream.write_all(b"some").unwrap();
    drop(stream);
    assert_eq!(file.len().unwrap(), 0);
}

fn immutable_files(place: &TestFolder) {
    let driver = place.driver();
    let path = place.path("immutable");
    let create = || ImmutableFile::create(&driver, &path, StreamOptions { request_bytes: 8192, requests: 2 }).wait();
    let mut writer = create().unwrap();
    writer.write_all(&pattern(0..50_000)).unwrap();
    drop(writer);
    assert_eq!(place.backend.list(place.folder()).unwrap(), [] as [std::path::PathBuf; 0], "nothing remains");
    place.open("immutable.partial", OpenOptions { write: true, create: true, ..OpenOptions::default() });
    let mut writer = create().unwrap();
    writer.write_all(&pattern(0..50_000)).unwrap();
    assert!(!place.backend.exists(&path).unwrap());
    let file = block_on(writer.finish()).unwrap();
    assert_eq!(place.backend.list(place.folder()).unwrap(), std::slice::from_ref(&path));
    assert_eq!(create().unwrap_err().kind(), ErrorKind::AlreadyExists);
    for file in [file, ImmutableFile::open(&driver, &path).wait().unwrap()] {
        assert_eq!((file.len(), file.path()), (50_000, path.as_path()));
        thread::scope(|scope| {
            for lane in 0..4u64 {
                let file = file.clone();
                scope.spawn(move || {
                    for number in 0..50 {
                        let offset = number * 900 + lane;
                        assert!(is_pattern(&block_on(file.read_at(offset, 3000)).unwrap(), offset));
                    }
                });
            }
        });
        let mut stream = file.stream(7..49_999, StreamOptions::default()).unwrap();
        assert!(is_pattern(&block_on(stream.next_buffer()).unwrap().unwrap(), 7));
    }
}

fn names(place: &TestFolder) {
    let driver = place.driver();
    place.backend.create_dir_all(&place.path("folder")).unwrap();
    let file = File::create(&driver, place.path("a")).wait().unwrap();
    block_on(file.write_at(0, b"first")).unwrap();
    block_on(driver.sync_folder(place.folder())).unwrap();
    block_on(driver.rename(place.path("a"), place.path("folder/b"))).unwrap();
    let options = OpenOptions::default();
    let error = block_on(File::open(&driver, place.path("a"), options)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let renamed = block_on(File::open(&driver, place.path("folder/b"), options)).unwrap();
    assert_eq!(block_on(renamed.read_at(0, 5)).unwrap()[..], *b"first");
    block_on(driver.remove(place.path("folder/b"))).unwrap();
    assert_eq!(driver.remove(place.path("folder/b")).wait().unwrap_err().kind(), ErrorKind::NotFound);
}

/// Background requests make progress while the foreground is busy, and may fill the queue while it is idle.
fn the_background_yields(place: &TestFolder) {
    for depth in [32, 1] {
        the_background_yields_at(place, depth);
    }
}

fn the_background_yields_at(place: &TestFolder, depth: usize) {
    let options = DriverOptions { depth, ..DriverOptions::default() };
    let driver = Driver::on(Arc::clone(&place.backend), options).unwrap();
    let background = driver.background(0.2);
    let file = patterned(place, &driver, "share", 200 * BLOCK);
    let other = file.with_driver(&background);
    thread::scope(|scope| {
        let scan = scope.spawn(|| {
            let mut stream = ReadStream::open(&other, 0..200 * BLOCK as u64, StreamOptions::default()).unwrap();
            while block_on(stream.next_buffer()).unwrap().is_some() {}
            let ranges = (0..200u64).map(|number| number * 4096..number * 4096 + 1);
            let options = ReadManyOptions { gap_bytes_max: 0, request_bytes_max: 1, requests: 32 };
            let mut reads = other.read_many(ranges, options);
            let mut count = 0;
            while block_on(reads.next_range()).unwrap().is_some() {
                count += 1;
            }
            assert_eq!(count, 200);
        });
        let mut number = 0;
        while !scan.is_finished() {
            number += 1;
            let offset = number * 4096 % (200 * BLOCK as u64);
            assert!(is_pattern(&driver.block_on(file.read_at(offset, 100)).unwrap(), offset));
        }
    });
}

macro_rules! on_each_backend {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[test] fn $test() { super::$test(&super::TestFolder::new(super::in_memory())); })*
        }
        mod portable {
            $(#[test] fn $test() {
                super::$test(&super::TestFolder::new(super::select(super::IoBackend::Portable).unwrap()));
            })*
        }
        /// The same tests on io_uring, or on the portable backend if io_uring is forbidden.
        mod uring {
            $(#[test] fn $test() {
                super::$test(&super::TestFolder::new(super::select(super::IoBackend::Auto).unwrap()));
            })*
        }
    };
}

on_each_backend!(
    every_way_of_waiting,
    the_end_of_the_file,
    writes_of_any_range,
    unaligned_neighbours,
    more_requests_than_the_depth,
    dropped_operations,
    operations_outlive_the_driver,
    block_on_hears_other_wakers,
    a_loop_of_its_own_drives,
    many_ranges,
    written_streams,
    immutable_files,
    names,
    the_background_yields,
);

fn faulty() -> (FaultyBackend, Driver, File) {
    let backend = FaultyBackend::new(in_memory());
    let driver = Driver::on(Arc::new(backend.clone()), DriverOptions::default()).unwrap();
    let file = File::create(&driver, "data").wait().unwrap();
    file.write_at(0, pattern(0..100_000)).wait().unwrap();
    (backend, driver, file)
}

/// An error of the device reaches only the operation that caused it.
#[test]
fn errors_of_the_device() {
    let (backend, driver, file) = faulty();
    let code = |error: std::io::Error| error.raw_os_error();
    for nth in 1..4u64 {
        backend.fail_nth(Op::Read, nth, EIO);
        let results: Vec<_> = (1..4).map(|_| driver.block_on(file.read_at(0, 10))).collect();
        for (number, result) in (1..).zip(results) {
            match result {
                Ok(bytes) => assert!(number != nth && is_pattern(&bytes, 0)),
                Err(error) => assert!(number == nth && code(error) == Some(EIO)),
            }
        }
    }
    backend.fail_nth(Op::Write, 1, ENOSPC);
    assert_eq!(block_on(file.write_at(0, b"x")).unwrap_err().kind(), ErrorKind::StorageFull);
    backend.fail_nth(Op::Sync, 1, EIO);
    assert_eq!(block_on(file.sync_data()).map_err(code), Err(Some(EIO)));
    backend.fail_nth(Op::Punch, 1, EIO);
    assert_eq!(block_on(file.punch(0, 1)).map_err(code), Err(Some(EIO)));
    backend.fail_nth(Op::Rename, 1, EIO);
    assert_eq!(block_on(driver.rename("data", "other")).map_err(code), Err(Some(EIO)));
    backend.fail_nth(Op::Open, 1, EIO);
    assert_eq!(block_on(File::create(&driver, "new")).map(drop).map_err(code), Err(Some(EIO)));
    assert!(is_pattern(&block_on(file.read_at(1, 99_999)).unwrap(), 1), "all is well afterwards");
}

/// After a stream has hit a full disk, all its later calls fail, and it writes no more bytes.
#[test]
fn a_written_stream_meets_a_full_disk() {
    let (backend, driver, file) = faulty();
    backend.set_space_limit(Some(30 * 4096));
    let mut stream = WriteStream::new(&file, 0, StreamOptions { request_bytes: 8192, requests: 3 });
    let error = stream.write_all(&pattern(0..1 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    for error in
        [stream.write(b"more").map(drop), driver.block_on(stream.flush()), driver.block_on(stream.finish()).map(drop)]
    {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.to_string().contains("earlier write"), "{error}");
    }
    let mut reader = ReadStream::open(&file, 0..100_000, StreamOptions { request_bytes: 4096, requests: 4 }).unwrap();
    driver.block_on(reader.next_buffer()).unwrap();
    backend.fail_from(Op::Read, 1, EIO);
    let error = loop {
        match driver.block_on(reader.next_buffer()) {
            Ok(buffer) => assert!(buffer.is_some(), "it must not end as if all were well"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(EIO));
    assert!(driver.block_on(reader.next_buffer()).unwrap().is_none());
}

/// If the queue itself fails, all requests in flight fail, no call hangs, and no later request begins.
#[test]
fn a_queue_that_fails() {
    for way in 0..3 {
        let (backend, driver, file) = faulty();
        let reads: Vec<_> = (0..5).map(|number| file.read_at(number, 10).begin()).collect();
        backend.fail_nth(Op::Wait, 1, EIO);
        let mut failed = 0;
        for read in reads {
            let result = match way {
                0 => block_on(read),
                1 => driver.block_on(read),
                _ => read.wait(),
            };
            failed += usize::from(result.is_err_and(|error| error.to_string().contains("queue has failed")));
        }
        assert!(failed <= 5, "finished requests may still have been returned");
        assert!(block_on(file.read_at(0, 10)).unwrap_err().to_string().contains("queue has failed"));
        assert!(file.read_at(0, 10).wait().is_ok(), "a single read needs no queue");
    }
}

/// After the queue has failed with requests in flight, a thread can still wait for other events, and the failed
/// requests can be dropped.
#[test]
fn a_driver_still_waits_after_its_queue_failed() {
    for kind in [IoBackend::Auto, IoBackend::Portable] {
        let place = TestFolder::new(select(kind).unwrap());
        let backend = FaultyBackend::new(Arc::clone(&place.backend));
        let driver = Driver::on(Arc::new(backend.clone()), DriverOptions::default()).unwrap();
        let file = File::create(&driver, place.path("failing")).wait().unwrap();
        file.write_at(0, pattern(0..64 * BLOCK as u64)).wait().unwrap();
        for number in 0..64u64 {
            let reads: Vec<_> = (0..32).map(|more| file.read_at((number + more) % 64 * 4096, BLOCK).begin()).collect();
            if number == 0 {
                backend.fail_nth(Op::Wait, 1, EIO);
            }
            let mut failed = 0;
            for read in reads {
                failed += usize::from(driver.block_on(read).is_err());
            }
            assert!(failed > 0 || number == 0, "a failed queue takes no request");
            let (sender, receiver) = oneshot();
            thread::scope(|scope| {
                scope.spawn(move || sender.send());
                driver.block_on(receiver);
            });
        }
        assert_eq!(driver.in_flight(), 0);
        assert!(driver.turn().is_err());
    }
}

/// If no thread can be started, a task gets an error instead of waiting forever, and blocking calls still work.
#[test]
fn no_thread_can_be_started() {
    let folder = TestFolder::new(select(IoBackend::Auto).unwrap());
    let inner = Arc::clone(&folder.backend);
    let backend = FaultyBackend::new(inner);
    backend.refuse_threads("drumlin");
    let driver = Driver::on(Arc::new(backend.clone()), DriverOptions::default()).unwrap();
    let file = File::create(&driver, folder.path("file")).wait().unwrap();
    file.write_at(0, pattern(0..40_960)).wait().unwrap();
    for number in 0..10 {
        match block_on(file.read_at(number * 4096, BLOCK)) {
            Ok(bytes) => assert!(is_pattern(&bytes, number * 4096)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        }
        assert!(is_pattern(&driver.block_on(file.read_at(number * 4096, BLOCK)).unwrap(), number * 4096));
    }
    block_on(file.sync_data()).unwrap();
}

/// A fork of the process cannot use its parent's requests, and does not disturb them.
#[test]
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "forks")]
fn a_fork_touches_nothing() {
    for kind in [IoBackend::Auto, IoBackend::Portable] {
        let place = TestFolder::new(select(kind).unwrap());
        let driver = place.driver();
        let file = patterned(&place, &driver, "forked", 16 * BLOCK);
        let reads: Vec<_> = (0..16u64).map(|number| (number, file.read_at(number * 4096, BLOCK).begin())).collect();
        // SAFETY: the child makes only the tested calls and `_exit`. Only a real fork can show the behaviour in a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_refused = block_on(file.read_at(0, 10)).is_err_and(|error| error.to_string().contains("forked"));
            drop(reads);
            drop((driver, file));
            // SAFETY: ends the child immediately.
            unsafe { libc::_exit(if is_refused { 7 } else { 8 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that this test has just forked.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        for (number, read) in reads {
            assert!(is_pattern(&block_on(read).unwrap(), number * 4096));
        }
    }
}

/// Reads into registered buffers work. Polling works too, or fails with `Unsupported`.
#[test]
fn registered_and_polled() {
    let place = TestFolder::new(select(IoBackend::Auto).unwrap());
    let options = DriverOptions { registered: true, buffers: 300, ..DriverOptions::default() };
    let driver = Driver::on(Arc::clone(&place.backend), options).unwrap();
    let file = patterned(&place, &driver, "registered", 64 * BLOCK);
    let reads: Vec<_> = (0..400u64).map(|number| (number, file.read_at(number % 64 * 4096, BLOCK).begin())).collect();
    for (number, read) in reads {
        assert!(is_pattern(&driver.block_on(read).unwrap(), number % 64 * 4096));
    }
    let options = DriverOptions { one_thread: true, ..DriverOptions::default() };
    let driver = Driver::on(Arc::clone(&place.backend), options).unwrap();
    let file = file.with_driver(&driver);
    driver.block_on(async {
        let reads: Vec<_> = (0..64u64).map(|number| (number, file.read_at(number * 4096, BLOCK).begin())).collect();
        for (number, read) in reads {
            assert!(is_pattern(&read.await.unwrap(), number * 4096));
        }
    });
    let options = DriverOptions { polled: true, ..DriverOptions::default() };
    match Driver::on(Arc::clone(&place.backend), options) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        Ok(driver) => {
            let file = patterned(&place, &driver, "polled", BLOCK);
            match driver.block_on(file.read_at(0, BLOCK)) {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
                Ok(bytes) => assert!(is_pattern(&bytes, 0)),
            }
        }
    }
    assert_eq!(
        Driver::on(in_memory(), DriverOptions { depth: 0, ..options }).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

/// A waker that starts a thread in `block_on`, and returns once that thread is parked.
struct WakerThatDrives {
    file: File,
    other: crate::sync::Mutex<Option<thread::JoinHandle<std::io::Result<ReadBuffer>>>>,
}

impl Wake for WakerThatDrives {
    fn wake(self: Arc<Self>) {
        let (file, begun) = (self.file.clone(), Arc::new(AtomicUsize::new(0)));
        let has_begun = Arc::clone(&begun);
        let read = move || {
            let mut read = file.read_at(9, 5000);
            file.driver().block_on(std::future::poll_fn(|context| {
                let polled = Pin::new(&mut read).poll(context);
                has_begun.store(1, Ordering::SeqCst);
                polled
            }))
        };
        *self.other.lock() = Some(thread::spawn(read));
        eventually("the other thread begins", || begun.load(Ordering::SeqCst) == 1);
        eventually("the other thread is parked", || self.file.driver().reactor().parked_count() == 1);
    }
}

/// A task that collects briefly passes the role on to a different collector, even after it has received its own answer.
/// A thread in `block_on` may have parked because the task was collecting.
#[test]
fn a_task_that_collects_hands_over() {
    let (_, driver, file) = faulty();
    let waker = Arc::new(WakerThatDrives { file: file.clone(), other: crate::sync::Mutex::new(None) });
    let mut held = file.read_at(0, 10);
    // The request stays in the queue, because no thread collects it.
    let task_waker = Waker::from(Arc::clone(&waker));
    driver.block_on(async {
        assert!(Pin::new(&mut held).poll(&mut Context::from_waker(&task_waker)).is_pending());
    });
    assert!(is_pattern(&block_on(file.read_at(20, 30)).unwrap(), 20));
    let other = waker.other.lock().take().expect("the waker was called");
    eventually("the other thread gets its answer", || other.is_finished());
    assert!(is_pattern(&other.join().unwrap().unwrap(), 9));
}
