//! Reading many extents without the pool, for checks and moves, which need each extent only once. These reads count as
//! background work.

use std::io;

use super::Pool;
use super::span::Span;
use crate::error::{Error, Result};
use crate::format::ExtentAddress;
use crate::io::{InFlight, Queue};

/// Maximum number of requests in flight: enough to use a device's full bandwidth, with a megabyte of memory.
const REQUESTS_MAX: usize = 4;

/// A read, and the range of the caller's addresses that it serves.
struct BulkRead<'p> {
    span: Span,
    buffer_bytes: usize,
    addresses: std::ops::Range<usize>,
    in_flight: Option<InFlight<'p>>,
}

impl Pool {
    /// Reads the extents at `addresses`, merging reads of adjacent extents; O(bytes) if the addresses ascend. Calls
    /// `each`, in no particular order, with the index of each address and either its bytes or the error.
    ///
    /// The extents of a failed request are reread one by one, so that a bad block does not affect its neighbours.
    pub(crate) fn read_past(
        &self,
        addresses: &[ExtentAddress],
        each: impl FnMut(usize, Result<&mut [u8]>),
    ) -> Result<()> {
        let mut queue = self.take_queue()?;
        let mut slots: [Option<BulkRead<'_>>; REQUESTS_MAX] = [const { None }; REQUESTS_MAX];
        let result = self.read_requests(addresses, queue.as_mut(), &mut slots, each);
        let in_flight = slots.iter().flatten();
        match result {
            Ok(()) => {
                assert_eq!(in_flight.count(), 0, "a read that has ended was not handed on");
                self.queues.give(queue);
            }
            Err(_) => {
                // Dropping the queue waits for the reads in flight and drops their buffers.
                drop(queue);
                in_flight.for_each(|request| self.buffers.forfeit(request.buffer_bytes));
            }
        }
        result
    }

    /// Reads all of `addresses`. If it fails, `slots` still holds the requests whose buffers have not been returned.
    fn read_requests<'p>(
        &'p self,
        addresses: &[ExtentAddress],
        queue: &mut dyn Queue,
        slots: &mut [Option<BulkRead<'p>>; REQUESTS_MAX],
        mut each: impl FnMut(usize, Result<&mut [u8]>),
    ) -> Result<()> {
        let space = &self.space;
        let mut finished = Vec::new();
        let mut next = 0;
        loop {
            while next < addresses.len()
                && let Some(slot) = slots.iter().position(Option::is_none)
            {
                let is_first = queue.in_flight() == 0;
                let in_flight = if is_first { Some(space.share.background()) } else { space.share.try_background() };
                if in_flight.is_none() {
                    break;
                }
                let mut request = BulkRead { in_flight, ..self.gather(addresses, next)? };
                let length = request.span.length();
                let buffer = if is_first { Some(self.buffers.take(length)) } else { self.buffers.try_take(length) };
                let Some(buffer) = buffer else { break };
                next = request.addresses.end;
                request.buffer_bytes = buffer.capacity();
                space.count_read(buffer.len());
                queue.push_read(space.file(), request.span.start, buffer, slot as u64);
                slots[slot] = Some(request);
            }
            if queue.in_flight() == 0 {
                assert_eq!(next, addresses.len(), "extents are left unread");
                return Ok(());
            }
            queue.wait(1, &mut finished).map_err(|error| Error::io("reading", space.path(), error))?;
            for mut completion in finished.drain(..) {
                let BulkRead { span, buffer_bytes, addresses: indexes, in_flight } =
                    slots[completion.token as usize].take().expect("the slot was in flight");
                drop(in_flight);
                assert_eq!(completion.buffer.capacity(), buffer_bytes, "a read ends with another's buffer");
                for index in indexes {
                    let address = addresses[index];
                    if completion.result.is_ok() {
                        assert!(span.start <= address.start(), "{address:?} lies before the bytes that were read");
                        let offset = (address.start() - span.start) as usize;
                        each(index, Ok(&mut completion.buffer[offset..][..address.length() as usize]));
                    } else {
                        let (start, length, offset) = space.cover(address);
                        completion.buffer.set_len(length);
                        let read = space.read(&mut completion.buffer, start);
                        let bytes = read.map(|()| &mut completion.buffer[offset..][..address.length() as usize]);
                        each(index, bytes.map_err(|error: io::Error| Error::io("reading", space.path(), error)));
                    }
                }
                self.buffers.give(completion.buffer);
            }
        }
    }

    /// Merges addresses that lie close together into one request, starting at index `first`.
    fn gather(&self, addresses: &[ExtentAddress], first: usize) -> Result<BulkRead<'_>> {
        let mut end = first;
        let mut span = None;
        while let Some(&address) = addresses.get(end) {
            if !Span::join(&mut span, self.space.cover(address), self.buffers.group_bytes_max()) {
                break;
            }
            assert!(!address.is_none(), "an extent at no address is read");
            self.space.ensure_written(address, self.on_written())?;
            end += 1;
        }
        assert!(end > first, "a request reads no extent");
        Ok(BulkRead { span: span.expect("a place at least"), buffer_bytes: 0, addresses: first..end, in_flight: None })
    }
}
