//! Tests of the contract that all backends share. They are run on each backend.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use super::*;
use crate::backend::select::select;

const BLOCK: usize = AlignedBuffer::ALIGNMENT;
const CREATE: OpenOptions = OpenOptions { write: true, create: true, create_new: false, direct: true };

/// A backend, and a temporary folder, which is removed on drop.
pub(super) struct TestFolder {
    pub(super) backend: Arc<dyn Backend>,
    folder: tempfile::TempDir,
}

impl TestFolder {
    pub(super) fn new(backend: Arc<dyn Backend>) -> TestFolder {
        let folder = tempfile::tempdir().expect("a folder for the test");
        backend.create_dir_all(folder.path()).expect("the folder");
        TestFolder { backend, folder }
    }

    pub(super) fn driver(&self) -> Driver {
        Driver::on(Arc::clone(&self.backend), DriverOptions::default()).expect("a driver on the test's backend")
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn open(&self, name: &str, options: OpenOptions) -> FileRef {
        self.backend.open(&self.path(name), options).expect("opening a file of the test")
    }

    /// Creates a file of `bytes` bytes with the contents that [`byte_at`] defines.
    pub(super) fn patterned(&self, name: &str, bytes: usize, direct: bool) -> FileRef {
        let content: Vec<u8> = (0..bytes as u64).map(byte_at).collect();
        self.open(name, OpenOptions { direct: false, ..CREATE }).write_at(&content, 0, Persist::Later).unwrap();
        self.open(name, OpenOptions { direct, ..Default::default() })
    }
}

/// Returns the byte at a position of a patterned file, in which no two blocks are alike.
pub(super) fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// Returns a buffer with the contents of one block.
fn block_of(number: u64) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(BLOCK);
    for (position, byte) in buffer.iter_mut().enumerate() {
        *byte = byte_at(number * BLOCK as u64 + position as u64);
    }
    buffer
}

/// Returns the numbers below `count` in a fixed, shuffled order.
fn shuffled(count: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    numbers.sort_by_key(|number| number.wrapping_mul(0xD134_2543_DE82_EF95).rotate_left(17));
    numbers
}

fn positional_reads_and_writes(place: &TestFolder) {
    for direct in [true, false] {
        let file = place.open(if direct { "direct" } else { "buffered" }, OpenOptions { direct, ..CREATE });
        let methods = [SyncMethod::DurableWrite, SyncMethod::DataSync, SyncMethod::FullSync];
        let persists = [Persist::Later].into_iter().chain(methods.map(Persist::Now));
        for (number, persist) in (0u64..).zip(persists) {
            file.write_at(&block_of(number), number * BLOCK as u64, persist).unwrap();
        }
        assert_eq!(file.len().unwrap(), 4 * BLOCK as u64);
        let mut buffer = AlignedBuffer::zeroed(2 * BLOCK);
        file.read_at(&mut buffer, 2 * BLOCK as u64).unwrap();
        assert_eq!(buffer[..BLOCK], block_of(2)[..]);
        assert_eq!(buffer[BLOCK..], block_of(3)[..]);
        assert_eq!(file.read_up_to(&mut buffer, 3 * BLOCK as u64).unwrap(), BLOCK);
        assert_eq!(buffer[..BLOCK], block_of(3)[..]);
        file.sync_data().unwrap();
        file.sync_all().unwrap();
        assert!(file.supports(SyncMethod::DataSync) && file.supports(SyncMethod::FullSync));
        assert_eq!(file.read_at(&mut buffer, u64::MAX - 4095).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

fn reading_past_the_end(place: &TestFolder) {
    for direct in [true, false] {
        let file = place.patterned(if direct { "direct" } else { "buffered" }, BLOCK + 100, direct);
        let mut buffer = AlignedBuffer::zeroed(2 * BLOCK);
        assert_eq!(file.read_at(&mut buffer, 0).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(file.read_at(&mut buffer, 8 * BLOCK as u64).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(file.read_up_to(&mut buffer, BLOCK as u64).unwrap(), 100);
        assert_eq!(file.read_up_to(&mut buffer, 8 * BLOCK as u64).unwrap(), 0);

        let queue = place.backend.queue(4).unwrap();
        queue.push_read(&file, 0, AlignedBuffer::zeroed(2 * BLOCK), 1);
        queue.push_read(&file, 8 * BLOCK as u64, AlignedBuffer::zeroed(BLOCK), 2);
        queue.push_read(&file, 0, AlignedBuffer::zeroed(BLOCK), 3);
        let mut finished = Vec::new();
        queue.wait(3, &mut finished).unwrap();
        finished.sort_by_key(|completion| completion.token);
        for completion in &finished[..2] {
            assert_eq!(completion.result.as_ref().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
        assert_eq!((finished[0].transferred, finished[1].transferred), (BLOCK + 100, 0));
        assert!(finished[0].buffer[..BLOCK] == block_of(0)[..]);
        assert!(finished[2].result.is_ok());
        assert_eq!(finished[2].buffer[..], block_of(0)[..]);
    }
}

fn a_full_queue_of_random_requests(place: &TestFolder) {
    const DEPTH: usize = 64;
    const BLOCKS: u64 = 500;
    let file = place.open("queue", CREATE);
    let queue = place.backend.queue(DEPTH).unwrap();
    assert_eq!(queue.depth(), DEPTH);
    let mut finished = Vec::new();
    for (reading, order) in [(false, shuffled(BLOCKS)), (true, shuffled(BLOCKS).into_iter().rev().collect())] {
        let mut numbers = order.into_iter();
        let mut seen = vec![false; BLOCKS as usize];
        loop {
            while queue.in_flight() < DEPTH {
                let Some(number) = numbers.next() else { break };
                let offset = number * BLOCK as u64;
                if reading {
                    queue.push_read(&file, offset, AlignedBuffer::zeroed(BLOCK), number);
                } else {
                    queue.push_write(&file, offset, block_of(number), number);
                }
            }
            if queue.in_flight() == 0 {
                break;
            }
            let in_flight = queue.in_flight();
            queue.wait(1 + in_flight / 3, &mut finished).unwrap();
            assert!(finished.len() > in_flight / 3);
            assert_eq!(queue.in_flight(), in_flight - finished.len());
            for completion in finished.drain(..) {
                completion.result.unwrap();
                assert!(!std::mem::replace(&mut seen[completion.token as usize], true), "completed twice");
                assert!(completion.buffer[..] == block_of(completion.token)[..], "block {}", completion.token);
            }
        }
        assert!(seen.iter().all(|seen| *seen));
    }
}

fn waiting_for_nothing(place: &TestFolder) {
    let file = place.patterned("file", BLOCK, true);
    let queue = place.backend.queue(2).unwrap();
    let mut finished = Vec::new();
    queue.wait(0, &mut finished).unwrap();
    queue.wait(5, &mut finished).unwrap();
    assert!(finished.is_empty(), "nothing is in flight, so there is nothing to wait for");
    queue.push_read(&file, 0, AlignedBuffer::zeroed(BLOCK), 7);
    queue.submit().unwrap();
    while finished.is_empty() {
        queue.wait(0, &mut finished).unwrap();
        thread::yield_now();
    }
    assert_eq!((finished[0].token, queue.in_flight()), (7, 0));
    finished.clear();
    queue.push_read(&file, 0, AlignedBuffer::zeroed(0), 8);
    queue.wait(1, &mut finished).unwrap();
    assert!(finished[0].result.is_ok(), "an empty request has all it asked for");
}

fn dropping_a_queue_in_flight(place: &TestFolder) {
    for round in 0..20 {
        let file = place.open("dropped", CREATE);
        let queue = place.backend.queue(32).unwrap();
        for number in 0..32 {
            if round == 0 || number % 2 == 0 {
                queue.push_write(&file, number * BLOCK as u64, block_of(number + round), number);
            } else {
                queue.push_read(&file, (number - 1) * BLOCK as u64, AlignedBuffer::zeroed(BLOCK), number);
            }
            if number == 20 {
                queue.submit().unwrap();
            }
        }
        drop(queue);
        assert_eq!(Arc::strong_count(&file), 1, "the queue let go of the file");
        let mut buffer = AlignedBuffer::zeroed(BLOCK);
        for number in (0..32).step_by(2) {
            file.read_at(&mut buffer, number * BLOCK as u64).unwrap();
            assert!(buffer[..] == block_of(number + round)[..], "a write that was in flight has happened");
        }
    }
}

fn a_queue_that_moves(place: &TestFolder) {
    let file = place.patterned("moved", 64 * BLOCK, true);
    let mut queue = place.backend.queue(64).unwrap();
    let mut finished = Vec::new();
    for round in 0..10 {
        let file = FileRef::clone(&file);
        (queue, finished) = thread::spawn(move || {
            finished.clear();
            queue.wait(queue.in_flight(), &mut finished).unwrap();
            assert_eq!(finished.len(), if round == 0 { 0 } else { 64 });
            for completion in &finished {
                completion.result.as_ref().unwrap();
                assert!(completion.buffer[..] == block_of(completion.token)[..]);
            }
            for number in 0..64 {
                queue.push_read(&file, number * BLOCK as u64, AlignedBuffer::zeroed(BLOCK), number);
            }
            queue.submit().unwrap();
            (queue, finished)
        })
        .join()
        .unwrap();
    }
}

/// While one thread waits for requests, a second thread pushes more.
fn one_thread_pushes_while_another_waits(place: &TestFolder) {
    const COUNT: u64 = 2000;
    let file = place.patterned("pushed", 64 * BLOCK, true);
    let queue = place.backend.queue_with(QueueOptions { depth: 8, shared: true, polled: false }).unwrap();
    let queue = queue.as_ref();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COUNT {
                while queue.in_flight() == 8 {
                    thread::yield_now();
                }
                queue.push_read(&file, number % 64 * BLOCK as u64, AlignedBuffer::zeroed(BLOCK), number);
                queue.submit().unwrap();
            }
        });
        let mut seen = vec![false; COUNT as usize];
        let mut finished = Vec::new();
        while seen.iter().any(|seen| !seen) {
            queue.wait(1, &mut finished).unwrap();
            for completion in finished.drain(..) {
                completion.result.unwrap();
                assert!(completion.buffer[..] == block_of(completion.token % 64)[..]);
                assert!(!std::mem::replace(&mut seen[completion.token as usize], true), "completed twice");
            }
        }
    });
    assert_eq!(queue.in_flight(), 0);
}

/// An interrupt loses no request, during a wait or before it.
fn an_interrupt_ends_a_wait(place: &TestFolder) {
    let file = place.patterned("interrupted", 8 * BLOCK, true);
    let queue = place.backend.queue_with(QueueOptions { depth: 8, shared: true, polled: false }).unwrap();
    let queue = queue.as_ref();
    let mut finished = Vec::new();
    thread::scope(|scope| {
        let interrupter = scope.spawn(|| (0..1000).for_each(|_| queue.interrupt()));
        while !interrupter.is_finished() {
            for number in 0..8 {
                queue.push_read(&file, number * BLOCK as u64, AlignedBuffer::zeroed(BLOCK), number);
            }
            while queue.in_flight() > 0 {
                queue.wait(8, &mut finished).unwrap();
            }
            finished.sort_by_key(|completion| completion.token);
            assert!(finished.drain(..).map(|completion| completion.token).eq(0..8));
        }
    });
}

/// A queue registers a single group. Reads into the group's buffers return the right bytes, through this queue or any
/// other.
fn registered_buffers(place: &TestFolder) {
    let file = place.patterned("registered", 300 * BLOCK, true);
    let queue = place.backend.queue(64).unwrap();
    let single = [AlignedBuffer::zeroed(BLOCK)];
    assert!(!queue.register(&single), "this is no group");
    let mut buffers = AlignedBuffer::group(300, BLOCK);
    let registered = queue.register(&buffers);
    assert!(!registered || place.backend.name() == "uring" || place.backend.name() == "faulty");
    assert!(!queue.register(&AlignedBuffer::group(300, BLOCK)), "there is room for one group");
    let other = place.backend.queue(64).unwrap();
    let mut finished = Vec::new();
    for round in 0..3 {
        for (number, mut buffer) in std::mem::take(&mut buffers).into_iter().enumerate() {
            buffer.fill(0);
            let queue = if number % 3 == round { &other } else { &queue };
            if queue.in_flight() == queue.depth() {
                queue.wait(1, &mut finished).unwrap();
            }
            queue.push_read(&file, (number * BLOCK) as u64, buffer, number as u64);
        }
        queue.wait(64, &mut finished).unwrap();
        other.wait(64, &mut finished).unwrap();
        for completion in finished.drain(..) {
            completion.result.unwrap();
            assert!(completion.buffer[..] == block_of(completion.token)[..]);
            buffers.push(completion.buffer);
        }
        assert_eq!(buffers.len(), 300);
    }
    drop(queue);
    assert!(buffers.iter_mut().all(|buffer| buffer.len() == BLOCK), "the buffers outlive the queue");
}

fn unaligned_writes(place: &TestFolder) {
    for direct in [true, false] {
        let file = place.open("unaligned", OpenOptions { direct, ..CREATE });
        let mut expected = vec![0; 5 * BLOCK];
        file.write_at(&AlignedBuffer::zeroed(5 * BLOCK), 0, Persist::Later).unwrap();
        for (seed, (offset, bytes)) in
            (1u8..).zip([(0, 1), (1, 4094), (4000, 300), (8191, 2), (0, 3 * BLOCK + 5), (BLOCK, BLOCK), (19_999, 481)])
        {
            file.write_unaligned(&vec![seed; bytes], offset as u64).unwrap();
            expected[offset..offset + bytes].fill(seed);
            let mut block = block_of(3);
            block.fill(seed + 100);
            file.write_at(&block, 3 * BLOCK as u64, Persist::Later).unwrap();
            expected[3 * BLOCK..4 * BLOCK].fill(seed + 100);
            assert!(file.read_buffer(0, 5 * BLOCK).unwrap()[..] == expected[..]);
        }
        file.write_unaligned(b"end", 5 * BLOCK as u64 + 7).unwrap();
        assert_eq!(file.len().unwrap(), 5 * BLOCK as u64 + 10, "the length is that of the bytes, not of blocks");
        file.sync_data().unwrap();
        place.backend.remove(&place.path("unaligned")).unwrap();
        file.write_unaligned(b"x", 0).unwrap();
        assert_eq!(file.read_buffer(0, 1).unwrap()[..], *b"x", "the file need not have a name");
    }
}

fn punched_ranges(place: &TestFolder) {
    let file = place.open("punched", CREATE);
    for number in 0..8 {
        file.write_at(&block_of(number), number * BLOCK as u64, Persist::Later).unwrap();
    }
    match file.punch(2 * BLOCK as u64, 3 * BLOCK as u64) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        Ok(()) => {
            assert_eq!(file.len().unwrap(), 8 * BLOCK as u64);
            let bytes = file.read_buffer(0, 8 * BLOCK).unwrap();
            assert!(bytes[2 * BLOCK..5 * BLOCK].iter().all(|byte| *byte == 0));
            assert!(bytes[BLOCK..2 * BLOCK] == block_of(1)[..] && bytes[5 * BLOCK..6 * BLOCK] == block_of(5)[..]);
            file.punch(7 * BLOCK as u64, 100 * BLOCK as u64).unwrap();
            assert_eq!(file.len().unwrap(), 8 * BLOCK as u64);
        }
    }
}

fn lengths(place: &TestFolder) {
    let file = place.open("length", CREATE);
    assert_eq!(file.len().unwrap(), 0);
    file.allocate(0, 10 * BLOCK as u64).unwrap();
    assert_eq!(file.len().unwrap(), 10 * BLOCK as u64);
    file.allocate(BLOCK as u64, BLOCK as u64).unwrap();
    assert_eq!(file.len().unwrap(), 10 * BLOCK as u64, "allocating inside does not cut");
    file.write_at(&block_of(1), BLOCK as u64, Persist::Later).unwrap();
    file.set_len(BLOCK as u64 + 10).unwrap();
    file.set_len(3 * BLOCK as u64).unwrap();
    let bytes = file.read_buffer(0, 3 * BLOCK).unwrap();
    assert_eq!(bytes[BLOCK..BLOCK + 10], block_of(1)[..10]);
    assert!(bytes[BLOCK + 10..].iter().all(|byte| *byte == 0), "what was cut off does not come back");
    file.allocate(3 * BLOCK as u64 - 1, 2).unwrap();
    assert_eq!(file.len().unwrap(), 3 * BLOCK as u64 + 1);
}

fn locks(place: &TestFolder) {
    let first = place.open("lock", CREATE);
    let second = place.open("lock", CREATE);
    assert!(first.try_lock(Lock::Exclusive).unwrap());
    assert!(first.try_lock(Lock::Exclusive).unwrap(), "whoever has it, has it");
    assert!(!second.try_lock(Lock::Exclusive).unwrap(), "handles of one process conflict too");
    drop(second);
    let third = place.open("lock", CREATE);
    assert!(!third.try_lock(Lock::Exclusive).unwrap(), "dropping a handle without the lock frees nothing");
    drop(first);
    assert!(third.try_lock(Lock::Exclusive).unwrap());
    assert!(third.try_lock(Lock::Shared).unwrap(), "the one that has it may share it");
    let reader = place.open("lock", OpenOptions::default());
    assert!(reader.try_lock(Lock::Shared).unwrap());
    assert!(!third.try_lock(Lock::Exclusive).unwrap(), "a reader is in the way");
    assert!(!place.open("lock", CREATE).try_lock(Lock::Exclusive).unwrap());
    drop(third);
    assert!(!place.open("lock", CREATE).try_lock(Lock::Exclusive).unwrap(), "the other reader still has it");
    drop(reader);
    assert!(place.open("lock", CREATE).try_lock(Lock::Exclusive).unwrap());
}

fn misaligned_requests(place: &TestFolder) {
    let file = place.patterned("aligned", 4 * BLOCK, true);
    let unit = file.alignment();
    assert!(unit <= BLOCK && unit.is_power_of_two());
    assert_eq!(file.is_direct(), unit > 1);
    if unit == 1 {
        return;
    }
    let writable = place.open("aligned", CREATE);
    let mut buffer = AlignedBuffer::zeroed(2 * BLOCK);
    assert_eq!(file.read_at(&mut buffer[..BLOCK], 1).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(file.read_at(&mut buffer[..100], 0).unwrap_err().kind(), ErrorKind::InvalidInput);
    let error = file.read_at(&mut buffer[8..8 + BLOCK], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("multiples of"), "{error}");
    let write = |bytes: &[u8], offset| writable.write_at(bytes, offset, Persist::Later).unwrap_err().kind();
    assert_eq!(write(&buffer[..BLOCK], 7), ErrorKind::InvalidInput);
    assert_eq!(write(&buffer[..7], 0), ErrorKind::InvalidInput);
    let queue = place.backend.queue(2).unwrap();
    queue.push_read(&file, 3, AlignedBuffer::zeroed(BLOCK), 1);
    queue.push_write(&writable, 0, AlignedBuffer::zeroed(9), 2);
    let mut finished = Vec::new();
    queue.wait(2, &mut finished).unwrap();
    for completion in finished {
        assert_eq!(completion.result.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

fn names_and_folders(place: &TestFolder) {
    let folder = place.path("a/b");
    place.backend.create_dir_all(&folder).unwrap();
    place.backend.create_dir_all(&folder).unwrap();
    let missing = place.backend.open(&folder.join("x"), OpenOptions::default());
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let nowhere = place.backend.open(&place.path("none/x"), CREATE);
    assert_eq!(nowhere.unwrap_err().kind(), ErrorKind::NotFound);
    let new = OpenOptions { create_new: true, ..CREATE };
    let file = place.backend.open(&folder.join("x"), new).unwrap();
    assert_eq!(file.path(), folder.join("x"));
    assert_eq!(place.backend.open(&folder.join("x"), new).unwrap_err().kind(), ErrorKind::AlreadyExists);
    file.write_at(&block_of(1), 0, Persist::Later).unwrap();
    place.backend.open(&folder.join("y"), CREATE).unwrap();
    place.backend.rename(&folder.join("x"), &folder.join("y")).unwrap();
    place.backend.sync_dir(&folder).unwrap();
    assert!(!place.backend.exists(&folder.join("x")).unwrap());
    assert!(place.backend.exists(&folder.join("y")).unwrap() && place.backend.exists(&folder).unwrap());
    assert_eq!(place.backend.list(&folder).unwrap(), [folder.join("y")]);
    assert_eq!(place.backend.list(place.folder()).unwrap(), [place.path("a")]);
    let renamed = place.backend.open(&folder.join("y"), OpenOptions::default()).unwrap();
    assert_eq!(renamed.len().unwrap(), BLOCK as u64, "it is the file that was renamed");
    let denied = renamed.write_at(&block_of(1), 0, Persist::Later);
    assert!(denied.is_err(), "the file was opened for reading");
    place.backend.remove(&folder.join("y")).unwrap();
    assert_eq!(renamed.read_buffer(0, BLOCK).unwrap()[..], block_of(1)[..], "an open file outlives its name");
    assert_eq!(place.backend.remove(&folder.join("y")).unwrap_err().kind(), ErrorKind::NotFound);
}

fn reads_of_any_range(place: &TestFolder) {
    let bytes = 3 * BLOCK + 77;
    for direct in [true, false] {
        let file = place.patterned("ranges", bytes, direct);
        for (offset, count) in [(0, 1), (1, BLOCK), (4095, 2), (BLOCK, BLOCK), (3 * BLOCK + 76, 1), (0, bytes), (5, 0)]
        {
            let found = file.read_buffer(offset as u64, count).unwrap();
            assert!(found.iter().copied().eq((offset..offset + count).map(|position| byte_at(position as u64))));
        }
        assert_eq!(file.read_buffer(0, bytes + 1).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}

fn many_threads(place: &TestFolder) {
    let file = place.open("shared", CREATE);
    file.allocate(0, 8 * 32 * BLOCK as u64).unwrap();
    thread::scope(|scope| {
        for lane in 0..8 {
            let file = &file;
            scope.spawn(move || {
                let queue = place.backend.queue(8).unwrap();
                let mut finished = Vec::new();
                for number in lane * 32..lane * 32 + 32 {
                    if number % 3 == 0 {
                        file.write_at(&block_of(number), number * BLOCK as u64, Persist::Later).unwrap();
                        continue;
                    }
                    if queue.in_flight() == 8 {
                        queue.wait(1, &mut finished).unwrap();
                    }
                    queue.push_write(file, number * BLOCK as u64, block_of(number), number);
                }
                queue.wait(queue.in_flight(), &mut finished).unwrap();
                assert!(finished.iter().all(|completion| completion.result.is_ok()));
                for number in lane * 32..lane * 32 + 32 {
                    let found = file.read_buffer(number * BLOCK as u64, BLOCK).unwrap();
                    assert!(found[..] == block_of(number)[..]);
                }
            });
        }
    });
}

/// Ranges that begin or end just before, at or after block boundaries and the ends of the file.
const RANGES: [(u64, u64); 9] = [
    (0, 100_001),
    (1, 100_000),
    (4095, 4097),
    (4096, 98_304),
    (98_303, 100_001),
    (98_305, 98_306),
    (100_000, 100_001),
    (7, 7),
    (8192, 70_000),
];

fn is_pattern(bytes: &[u8], offset: u64) -> bool {
    bytes.iter().zip(offset..).all(|(byte, position)| *byte == byte_at(position))
}

fn streams(place: &TestFolder) {
    let driver = place.driver();
    for direct in [true, false] {
        let file = place.patterned("stream", 100_001, direct);
        let file = File::new(file, driver.clone());
        for options in [(1, 1), (8192, 5), (512 << 10, 5)] {
            let options = StreamOptions { request_bytes: options.0, requests: options.1 };
            for (start, end) in RANGES {
                let mut stream = ReadStream::open(&file, start..end, options).unwrap();
                let mut position = start;
                let mut kept = Vec::new();
                while let Some(buffer) = driver.block_on(stream.next_buffer()).unwrap() {
                    assert!(!buffer.is_empty() && is_pattern(&buffer, position));
                    position += buffer.len() as u64;
                    kept.push(buffer.slice(1..));
                }
                assert_eq!(position, end);
                assert!(driver.block_on(stream.next_buffer()).unwrap().is_none());
                let kept_bytes: usize = kept.iter().map(|buffer| buffer.len() + 1).sum();
                assert_eq!(kept_bytes as u64, end - start);

                let mut copied = Vec::new();
                let mut stream = ReadStream::open(&file, start..end, options).unwrap();
                std::io::Read::read_to_end(&mut stream, &mut copied).unwrap();
                assert_eq!(copied.len() as u64, end - start);
                assert!(is_pattern(&copied, start));
            }
        }
        let open = |range| ReadStream::open(&file, range, StreamOptions::default());
        assert_eq!(open(0..100_002).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        #[allow(clippy::reversed_empty_ranges, reason = "the test checks that it is refused")]
        let reversed = open(2..1);
        assert_eq!(reversed.unwrap_err().kind(), ErrorKind::InvalidInput);
        drop(open(0..100_001).unwrap());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while Arc::strong_count(file.backend_file()) > 1 {
            assert!(std::time::Instant::now() < deadline, "a stream that was dropped midway let go of the file");
            thread::yield_now();
        }
    }
}

/// Returned buffers retain their contents while the stream reads into other buffers.
fn streamed_buffers_are_stable(place: &TestFolder) {
    let driver = place.driver();
    let file = File::new(place.patterned("stable", 40 * BLOCK, true), driver.clone());
    let options = StreamOptions { request_bytes: BLOCK, requests: 3 };
    let mut stream = ReadStream::open(&file, 0..40 * BLOCK as u64, options).unwrap();
    let mut held = std::collections::VecDeque::new();
    for number in 0..40 {
        held.push_back((number * BLOCK as u64, driver.block_on(stream.next_buffer()).unwrap().unwrap()));
        if held.len() > 7 {
            held.pop_front();
        }
        assert!(held.iter().all(|(offset, buffer)| is_pattern(buffer, *offset)));
    }
}

struct Unpark(thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = Arc::new(Unpark(thread::current())).into();
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => thread::park(),
        }
    }
}

/// Tasks of a foreign executor read streams, both by taking buffers and by copying.
fn asynchronous_streams(place: &TestFolder) {
    use futures_io::AsyncRead;
    use std::pin::Pin;

    let file = File::new(place.patterned("asynchronous", 100_001, true), place.driver());
    for options in [(4096, 1), (8192, 5), (512 << 10, 5)] {
        let options = StreamOptions { request_bytes: options.0, requests: options.1 };
        for (start, end) in RANGES {
            let open = || ReadStream::open(&file, start..end, options).unwrap();
            let mut stream = open();
            let mut position = start;
            while let Some(buffer) = block_on(stream.next_buffer()).unwrap() {
                assert!(!buffer.is_empty() && is_pattern(&buffer, position));
                position += buffer.len() as u64;
            }
            assert_eq!(position, end);
            assert!(block_on(stream.next_buffer()).unwrap().is_none());

            let mut stream = open();
            let mut copied = Vec::new();
            let mut piece = [0; 1000];
            loop {
                let count =
                    block_on(std::future::poll_fn(|context| Pin::new(&mut stream).poll_read(context, &mut piece)));
                match count.unwrap() {
                    0 => break,
                    count => copied.extend_from_slice(&piece[..count]),
                }
            }
            assert_eq!(copied.len() as u64, end - start);
            assert!(is_pattern(&copied, start));
        }
    }
}

/// The streams of many threads share a driver. Some threads collect their own requests, and some streams are dropped
/// halfway.
fn many_asynchronous_streams(place: &TestFolder) {
    let driver = place.driver();
    let file = File::new(place.patterned("many", 300_001, true), driver.clone());
    let options = StreamOptions { request_bytes: BLOCK, requests: 20 };
    thread::scope(|scope| {
        for lane in 0..12u64 {
            let (file, driver) = (&file, &driver);
            scope.spawn(move || {
                let range = lane * 777..300_001 - lane * 3;
                let mut stream = ReadStream::open(file, range.clone(), options).unwrap();
                let mut position = range.start;
                loop {
                    let next = stream.next_buffer();
                    let next = if lane % 3 == 0 { driver.block_on(next) } else { block_on(next) };
                    let Some(buffer) = next.unwrap() else { break };
                    assert!(is_pattern(&buffer, position));
                    position += buffer.len() as u64;
                    if lane % 4 == 3 && position > 50_000 {
                        return;
                    }
                }
                assert_eq!(position, range.end);
            });
        }
    });
}

fn a_file_cut_under_a_stream(place: &TestFolder) {
    let driver = place.driver();
    let file = File::new(place.patterned("cut", 64 * BLOCK + 5, true), driver.clone());
    let options = StreamOptions { request_bytes: BLOCK, requests: 2 };
    let mut stream = ReadStream::open(&file, 0..64 * BLOCK as u64 + 5, options).unwrap();
    driver.block_on(stream.next_buffer()).unwrap();
    place.open("cut", CREATE).set_len(40 * BLOCK as u64).unwrap();
    loop {
        match driver.block_on(stream.next_buffer()) {
            Ok(buffer) => assert!(buffer.is_some(), "it must not end as if all were well"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                assert!(driver.block_on(stream.next_buffer()).unwrap().is_none());
                return;
            }
        }
    }
}

fn clock_chance_and_threads(place: &TestFolder) {
    let (first, second) = (place.backend.random(), place.backend.random());
    assert_ne!(first, second);
    let before = place.backend.now();
    let body = Box::new(|| assert_eq!(thread::current().name(), Some("drumlin-test")));
    place.backend.spawn("drumlin-test", body).unwrap().join().unwrap();
    assert!(place.backend.now() >= before);
    assert!(place.backend.queue(0).is_err());
}

macro_rules! on_each_backend {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[test] fn $test() { super::$test(&super::TestFolder::new(super::in_memory())); })*
        }
        /// The fault-injecting wrapper passes all calls on if no fault is set.
        mod faulty {
            $(#[test] fn $test() {
                let inner = super::select(super::IoBackend::Portable).unwrap();
                super::$test(&super::TestFolder::new(std::sync::Arc::new(crate::testing::fault::FaultyBackend::new(inner))));
            })*
        }
        mod portable {
            $(#[test] fn $test() {
                super::$test(&super::TestFolder::new(super::select(super::IoBackend::Portable).unwrap()));
            })*
        }
        /// The same tests on io_uring, or on the portable backend if io_uring is forbidden.
        #[cfg(all(target_os = "linux", not(drumlin_portable)))]
        mod uring {
            $(#[test] fn $test() {
                super::$test(&super::TestFolder::new(super::select(super::IoBackend::Auto).unwrap()));
            })*
        }
    };
}

on_each_backend!(
    positional_reads_and_writes,
    reading_past_the_end,
    a_full_queue_of_random_requests,
    waiting_for_nothing,
    dropping_a_queue_in_flight,
    a_queue_that_moves,
    one_thread_pushes_while_another_waits,
    an_interrupt_ends_a_wait,
    registered_buffers,
    unaligned_writes,
    punched_ranges,
    lengths,
    locks,
    misaligned_requests,
    names_and_folders,
    reads_of_any_range,
    many_threads,
    streams,
    streamed_buffers_are_stable,
    asynchronous_streams,
    many_asynchronous_streams,
    a_file_cut_under_a_stream,
    clock_chance_and_threads,
);
