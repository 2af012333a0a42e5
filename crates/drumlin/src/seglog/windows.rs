//! The windows of a stream: the ranges of the stream that have a file. Windows are prepared ahead of the records.

use std::collections::VecDeque;
use std::sync::Arc;

use super::segment::Segment;
use crate::format::log::RECORD_ALIGNMENT_BYTES;
use crate::format::{BLOCK_BYTES, StreamPosition, Timestamp};

/// The distance between two entries of a window's index. A reader reads at most this much before it reaches its
/// starting point.
const INDEX_STRIDE_BYTES: u64 = 64 << 10;

const _: () = assert!(BLOCK_BYTES.is_multiple_of(RECORD_ALIGNMENT_BYTES), "a record can't begin with a block");

/// The records that are no longer needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Limit {
    /// All records up to this timestamp.
    Covered(Timestamp),
    /// All records that begin before this position of the stream.
    Below(StreamPosition),
}

impl Limit {
    /// Returns `true` if no record of a window is needed. The records of the window end at or before `end`.
    pub(super) fn passes(self, window: &Window, end: StreamPosition) -> bool {
        debug_assert!(window.start() <= end && end <= window.end(), "{:?} has records up to {end}", window.segment);
        match self {
            Limit::Covered(covered) => window.last <= Some(covered),
            Limit::Below(position) => end <= position,
        }
    }
}

/// A window of the stream and the index of its records.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) segment: Arc<Segment>,
    /// The file is filled up to this position. Records may lie only below it.
    pub(super) ready: StreamPosition,
    /// The newest record that has any bytes in the window.
    pub(super) last: Option<Timestamp>,
    /// The timestamp and position of one record per stride, in ascending order.
    pub(super) index: Vec<(Timestamp, StreamPosition)>,
}

impl Window {
    /// Creates a window. `held_bytes` is the part of the window that its file holds. If the file holds only a header,
    /// an index of full size would waste memory.
    pub(super) fn new(segment: Arc<Segment>, ready: StreamPosition, held_bytes: u64) -> Window {
        assert!((segment.start()..=segment.end()).contains(&ready), "{segment:?} is ready up to {ready}");
        let entries = segment.header.window_bytes.min(held_bytes) / INDEX_STRIDE_BYTES + 1;
        // Allocate now, because appending must not allocate.
        Window { segment, ready, last: None, index: Vec::with_capacity(entries as usize) }
    }

    /// Adds a record that starts at `position` to the index.
    pub(super) fn index_record(&mut self, timestamp: Timestamp, position: StreamPosition) {
        assert!(self.last < Some(timestamp), "records of a window ascend");
        assert!((self.start()..self.end()).contains(&position), "a record begins in another window");
        let is_after = |&(_, indexed): &(Timestamp, StreamPosition)| indexed < position;
        debug_assert!(self.index.last().is_none_or(is_after), "records of a window ascend in position");
        self.last = Some(timestamp);
        let due = self.index.last().is_none_or(|&(_, indexed)| position - indexed >= INDEX_STRIDE_BYTES);
        if due && self.index.len() < self.index.capacity() {
            self.index.push((timestamp, position));
        }
    }

    pub(super) fn start(&self) -> StreamPosition {
        self.segment.start()
    }

    pub(super) fn end(&self) -> StreamPosition {
        self.segment.end()
    }

    fn is_filled(&self) -> bool {
        debug_assert!(self.ready <= self.end(), "{:?} is filled beyond its end", self.segment);
        self.ready == self.end()
    }
}

/// The next step of preparing a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Preparation {
    Fill,
    Window,
}

/// The windows of a stream, from the oldest kept to the newest prepared. They abut, and all except the newest are
/// filled.
#[derive(Debug)]
pub(super) struct Windows {
    list: VecDeque<Window>,
    /// The index of the window in which the last record started.
    current: usize,
    /// The start of the next window if the list is empty.
    origin: StreamPosition,
    /// The position of this opening's first record.
    began: StreamPosition,
    /// The position that the windows must reach for the waiting reservations.
    wanted: StreamPosition,
}

impl Windows {
    /// Creates the windows of a stream. The next record starts at `position`, which lies in the first window if there
    /// is one.
    pub(super) fn new(list: Vec<Window>, position: StreamPosition) -> Windows {
        assert!(list.is_sorted_by(|left, right| left.end() == right.start()), "windows of a stream abut");
        let is_within = |first: &Window| (first.start()..first.end()).contains(&position);
        assert!(list.first().is_none_or(is_within), "a stream goes on at {position}, outside of its window");
        Windows { list: list.into(), current: 0, origin: position, began: position, wanted: StreamPosition::START }
    }

    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Window> {
        self.list.iter()
    }

    /// Returns the start of the oldest window.
    pub(super) fn start(&self) -> StreamPosition {
        self.list.front().map_or(self.origin, Window::start)
    }

    /// Returns the position after the newest window.
    pub(super) fn end(&self) -> StreamPosition {
        debug_assert!(self.list.is_empty() || self.current < self.list.len(), "the window in use is not listed");
        self.list.back().map_or(self.origin, Window::end)
    }

    /// Returns the position up to which records may be written.
    pub(super) fn ready(&self) -> StreamPosition {
        let mut ready = self.origin;
        for window in self.list.iter().skip(self.current) {
            ready = window.ready;
            if !window.is_filled() {
                break;
            }
        }
        ready
    }

    /// Returns the window in which the last record starts.
    pub(super) fn current(&self) -> &Window {
        &self.list[self.current]
    }

    /// Makes the window that holds `position` the current one. Returns the number of windows by which the stream has
    /// advanced.
    pub(super) fn advance(&mut self, position: StreamPosition) -> usize {
        assert!(position < self.end(), "a stream reached {position}, past its last window");
        let before = self.current;
        while position >= self.list[self.current].end() {
            self.current += 1;
        }
        debug_assert!(self.list[self.current].start() <= position, "a stream went past {position}");
        self.current - before
    }

    /// Adds a record to the index of the current window, in which it starts, and makes it the last record of every
    /// window up to `end`.
    pub(super) fn index_record(&mut self, timestamp: Timestamp, position: StreamPosition, end: StreamPosition) {
        debug_assert!(position < end, "the record at {position} has no bytes");
        assert!(end <= self.end(), "a record ends at {end}, past the last window");
        self.list[self.current].index_record(timestamp, position);
        let mut reached = self.current;
        while self.list[reached].end() < end {
            reached += 1;
            self.list[reached].last = Some(timestamp);
        }
    }

    /// Requests windows up to `position`.
    pub(super) fn want(&mut self, position: StreamPosition) {
        debug_assert!(self.began <= position, "a window is wanted before the stream's beginning");
        self.wanted = self.wanted.max(position);
    }

    /// Withdraws all requests.
    pub(super) fn want_nothing(&mut self) {
        self.wanted = StreamPosition::START;
    }

    /// Returns `true` if the newest window holds no record yet. The last record ends at `position`.
    pub(super) fn has_window_ahead(&self, position: StreamPosition) -> bool {
        self.list.back().is_some_and(|window| window.start() > position)
    }

    /// Returns the number of bytes to keep ready after the last record. It equals the number appended since the
    /// opening, but is at most one window. So an opening with few commits prepares little space in vain, and a busy log
    /// always has a window ahead, so no append waits for one.
    fn lead_bytes(&self, position: StreamPosition) -> u64 {
        let window_bytes = self.list.back().map_or(0, |window| window.segment.header.window_bytes);
        assert!(self.began <= position, "a stream that began at {} is at {position}", self.began);
        (position - self.began).min(window_bytes)
    }

    /// Returns the next step of preparation, if one is needed. The last record ends at `position`. On a full disk, a
    /// new window is prepared only if a reservation waits for it.
    pub(super) fn preparation(&self, position: StreamPosition, is_disk_full: bool) -> Option<Preparation> {
        debug_assert!(
            self.list.iter().rev().skip(1).all(Window::is_filled),
            "a window was begun before the last was filled"
        );
        let ahead = position + self.lead_bytes(position);
        let last = self.list.back().map_or((self.origin, self.origin), |window| (window.ready, window.end()));
        match last {
            (ready, end) if ready < end => (ready < self.wanted.max(ahead)).then_some(Preparation::Fill),
            (_, end) if end < self.wanted || (end < ahead && !is_disk_full) => Some(Preparation::Window),
            _ => None,
        }
    }

    /// Adds a window after the newest one. No record may be put into it before [`set_ready`](Self::set_ready) has been
    /// called.
    pub(super) fn push(&mut self, window: Window) {
        assert_eq!(window.start(), self.end(), "windows of a stream abut");
        assert_eq!(window.ready, window.start(), "{:?} is used before it is listed", window.segment);
        self.list.push_back(window);
    }

    /// Returns the segment of the newest window, and the position at which to continue filling it.
    pub(super) fn to_fill(&self) -> (Arc<Segment>, StreamPosition) {
        let window = self.list.back().expect("a window is to be filled");
        (Arc::clone(&window.segment), window.ready)
    }

    /// Records that the newest window, which had been filled up to `before`, is now filled up to `ready`.
    pub(super) fn set_ready(&mut self, before: StreamPosition, ready: StreamPosition) {
        let window = self.list.back_mut().expect("a window is being filled");
        assert_eq!(window.ready, before, "a window was filled by two threads at once");
        assert!(before < ready && ready <= window.end(), "{:?} is filled up to {ready}", window.segment);
        window.ready = ready;
    }

    /// Returns the segment that holds `position`.
    pub(super) fn segment_at(&self, position: StreamPosition) -> Arc<Segment> {
        let window = self.list.iter().rev().find(|window| window.start() <= position);
        let window = window.expect("a record lies in no window");
        assert!(position < window.end());
        Arc::clone(&window.segment)
    }

    /// Takes the windows before the current one that are entirely below `limit` and end at or below `durable`. Returns
    /// their segments, and the newest timestamp in them.
    pub(super) fn take_covered(
        &mut self,
        limit: Limit,
        durable: StreamPosition,
    ) -> (Vec<Arc<Segment>>, Option<Timestamp>) {
        let mut taken = Vec::new();
        let mut newest = None;
        while let Some(window) = self.list.front() {
            if self.current == 0 || window.end() > durable || !limit.passes(window, window.end()) {
                break;
            }
            newest = newest.max(window.last);
            let window = self.list.pop_front().expect("there is a front");
            self.current -= 1;
            taken.push(window.segment);
        }
        assert!(self.current == 0 || self.current < self.list.len(), "the window in use is given up");
        (taken, newest)
    }

    /// Takes the only window, if it is filled and all its records, of which the last ends at `position`, are below
    /// `limit`. The caller must then continue the stream after this window.
    pub(super) fn take_only(&mut self, limit: Limit, position: StreamPosition) -> Option<Window> {
        let window = self.list.front()?;
        if self.list.len() > 1 || !window.is_filled() || !limit.passes(window, position) {
            return None;
        }
        debug_assert_eq!(self.current, 0, "the only window is not the one in use");
        self.origin = window.end();
        self.current = 0;
        self.list.pop_front()
    }

    /// Takes all windows of a stream that ends at `position`.
    pub(super) fn take_all(&mut self, position: StreamPosition) -> Vec<Arc<Segment>> {
        self.current = 0;
        self.origin = position;
        self.list.drain(..).map(|window| window.segment).collect()
    }
}
