//! Reads many ranges of a file, merging ranges that are close to each other.
//!
//! The ranges are sorted by offset, and neighbours with few bytes between them become one request. The number of
//! requests in flight is constant, and results are returned in the order in which the requests finish.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_core::Stream;

use super::File;
use crate::BLOCK_BYTES;
use crate::driver::Operation;
use crate::read::{ReadBuffer, read_unit_bytes};
use crate::sync::Mutex;

/// The settings of [`File::read_many`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadManyOptions {
    /// The maximum number of unneeded bytes between two ranges that are merged into one request. Default 4,096: a drive
    /// needs less time for one request of twice the size than for two requests. With 0, only ranges whose blocks touch
    /// are merged.
    pub gap_bytes_max: usize,
    /// The maximum size of a merged request, in bytes; default 128 KiB. A single range may be larger.
    pub request_bytes_max: usize,
    /// The number of requests in flight; default 32.
    pub requests: usize,
}

impl Default for ReadManyOptions {
    fn default() -> ReadManyOptions {
        ReadManyOptions { gap_bytes_max: 4096, request_bytes_max: 128 << 10, requests: 32 }
    }
}

impl File {
    /// Reads many ranges concurrently. The ranges may be in any order. Those that are close to each other are read by
    /// one request. See [`ReadMany`].
    pub fn read_many(&self, ranges: impl IntoIterator<Item = Range<u64>>, options: ReadManyOptions) -> ReadMany {
        ReadMany::new(self.clone(), ranges.into_iter().collect(), options)
    }
}

/// A [`Stream`] that reads many ranges of a file. Its items are the index of a range and its bytes, in the order in
/// which the requests finish. Ranges that were read by the same request share its buffer.
///
/// The first poll begins the requests. An error ends the stream.
///
/// # Examples
/// ```
/// use drumlin_io::{Driver, File, ReadManyOptions};
///
/// let driver = Driver::new()?;
/// let path = std::env::temp_dir().join(format!("drumlin-{:016x}", driver.backend().random()));
/// let file = File::create(&driver, &path).wait()?;
/// file.write_at(0, b"till, gravel, sand and clay").wait()?;
/// driver.block_on(async {
///     let ranges = [14..18, 0..4, 23..27];
///     let mut reads = file.read_many(ranges, ReadManyOptions::default());
///     let mut words = vec![String::new(); 3];
///     while let Some((index, bytes)) = reads.next_range().await? {
///         words[index] = String::from_utf8_lossy(&bytes).into_owned();
///     }
///     assert_eq!(words, ["sand", "till", "clay"]);
///     assert_eq!(reads.requests(), 1, "the ranges are close to each other");
///     driver.remove(&path).await
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ReadMany {
    file: File,
    options: ReadManyOptions,
    unit: u64,
    /// The ranges, sorted by offset, and each range's index in the caller's list.
    ranges: Vec<(usize, Range<u64>)>,
    /// The index of the first range that has no request yet.
    next: usize,
    slots: Vec<Slot>,
    slots_free: Vec<usize>,
    woken: Arc<Woken>,
    /// Ranges that were read but not returned yet.
    items: VecDeque<(usize, ReadBuffer)>,
    requests: u64,
    bytes: u64,
}

struct Slot {
    request: Option<(Operation<ReadBuffer>, Range<usize>)>,
    waker: Waker,
}

/// The slots whose requests may have finished, and the task that waits for them.
#[derive(Default)]
struct Woken {
    state: Mutex<WokenState>,
}

#[derive(Default)]
struct WokenState {
    slots: Vec<usize>,
    task: Option<Waker>,
}

struct SlotWaker {
    slot: usize,
    woken: Arc<Woken>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.woken.state.lock();
        state.slots.push(self.slot);
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl ReadMany {
    pub(super) fn new(file: File, ranges: Vec<Range<u64>>, options: ReadManyOptions) -> ReadMany {
        let unit = read_unit_bytes(file.backend_file().as_ref()) as u64;
        let mut ranges: Vec<_> = ranges.into_iter().enumerate().collect();
        ranges.sort_by_key(|(_, range)| range.start);
        let woken = Arc::<Woken>::default();
        let slot = |slot| {
            let waker = Waker::from(Arc::new(SlotWaker { slot, woken: Arc::clone(&woken) }));
            Slot { request: None, waker }
        };
        let count = options.requests.clamp(1, ranges.len().max(1));
        let slots = (0..count).map(slot).collect();
        let slots_free = (0..count).collect();
        let items = VecDeque::new();
        ReadMany { file, options, unit, ranges, next: 0, slots, slots_free, woken, items, requests: 0, bytes: 0 }
    }

    /// Returns the index of a range and its bytes, or `None` if all ranges have been returned. If the future is
    /// dropped, no range is lost.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before a range does, `InvalidInput` if a range ends before it starts, and any
    /// error that the system reports.
    pub async fn next_range(&mut self) -> io::Result<Option<(usize, ReadBuffer)>> {
        std::future::poll_fn(|context| self.poll_next_range(context)).await
    }

    /// Like [`next_range`](Self::next_range), for hand-written futures.
    pub fn poll_next_range(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<(usize, ReadBuffer)>>> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Poll::Ready(Ok(Some(item)));
            }
            self.begin();
            if self.slots_free.len() == self.slots.len() {
                return Poll::Ready(Ok(None));
            }
            let woken = {
                let mut state = self.woken.state.lock();
                if state.slots.is_empty() {
                    state.task = Some(context.waker().clone());
                    return Poll::Pending;
                }
                std::mem::take(&mut state.slots)
            };
            for slot in woken {
                if let Err(error) = self.poll_slot(slot) {
                    self.end();
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    /// Returns the number of requests begun so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the number of bytes that these requests read, including unneeded bytes between ranges.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Begins requests while slots are free.
    fn begin(&mut self) {
        while self.next < self.ranges.len()
            && let Some(slot) = self.slots_free.pop()
        {
            let (ranges, span) = self.next_request();
            self.next = ranges.end;
            let bytes = span.end.saturating_sub(span.start) as usize;
            self.requests += 1;
            self.bytes += bytes as u64;
            self.slots[slot].request = Some((self.file.read_at(span.start, bytes).begin(), ranges));
            // Queue the slot for its first poll, which registers its waker.
            self.woken.state.lock().slots.push(slot);
        }
    }

    /// Returns the ranges of the next request, and the span of bytes that it reads.
    fn next_request(&self) -> (Range<usize>, Range<u64>) {
        let span_of = |range: &Range<u64>| {
            let end = range.end.checked_next_multiple_of(self.unit).unwrap_or(range.end);
            range.start - range.start % self.unit..end
        };
        let first = &self.ranges[self.next].1;
        let (mut span, mut end) = (span_of(first), self.next + 1);
        let mut visible_end = first.end;
        while let Some((_, range)) = self.ranges.get(end) {
            let other = span_of(range);
            let is_near = other.start <= span.end.saturating_add(self.options.gap_bytes_max as u64);
            let merged = span.start..span.end.max(other.end);
            let is_small = merged.end - merged.start <= self.options.request_bytes_max.max(BLOCK_BYTES) as u64;
            if range.end < range.start || span.end <= span.start || !is_near || !is_small {
                break;
            }
            visible_end = visible_end.max(range.end);
            (span, end) = (merged, end + 1);
        }
        // End at the last requested byte, because the end of the file may cut its block short.
        (self.next..end, span.start.min(first.start)..visible_end)
    }

    fn poll_slot(&mut self, slot: usize) -> io::Result<()> {
        let Slot { request, waker } = &mut self.slots[slot];
        let Some((operation, ranges)) = request else { return Ok(()) };
        let Poll::Ready(result) = Pin::new(operation).poll(&mut Context::from_waker(waker)) else { return Ok(()) };
        let ranges = ranges.clone();
        *request = None;
        self.slots_free.push(slot);
        let (bytes, start) = (result?, self.ranges[ranges.start].1.start);
        let start = start - start % self.unit;
        for (index, range) in &self.ranges[ranges] {
            if range.end < range.start {
                let text = format!("the range {}..{} ends before it starts", range.start, range.end);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            let part = (range.start - start) as usize..(range.end - start) as usize;
            self.items.push_back((*index, bytes.slice(part)));
        }
        Ok(())
    }

    /// Drops all requests and results. No later ones will begin or be returned.
    fn end(&mut self) {
        self.next = self.ranges.len();
        self.items.clear();
        self.slots.iter_mut().for_each(|slot| slot.request = None);
        self.slots_free = (0..self.slots.len()).collect();
    }
}

impl Stream for ReadMany {
    type Item = io::Result<(usize, ReadBuffer)>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_next_range(context).map(Result::transpose)
    }
}

impl fmt::Debug for ReadMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadMany({} of {} ranges begun)", self.next, self.ranges.len())
    }
}
