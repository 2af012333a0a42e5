//! Reading many extents past the pool, for callers that need each only once: checks and moves.

use std::io;

use super::{Pool, Span};
use crate::error::{Error, Result};
use crate::format::ExtentAddress;

/// Requests in flight: enough to read at a device's bandwidth, with a megabyte of memory.
const REQUESTS_MAX: usize = 4;

/// One read, and the range of the caller's addresses that it covers.
struct Request {
    span: Span,
    buffer_bytes: usize,
    addresses: std::ops::Range<usize>,
}

impl Pool {
    /// Reads the extents at `addresses`, neighbours together; O(bytes) if they are in the order of the disk. Calls
    /// `each`, in no particular order, with the index of each address and its bytes or the error.
    ///
    /// Extents of a failed request are read again one by one, so that a bad block costs no neighbours.
    pub(crate) fn read_past(
        &self,
        addresses: &[ExtentAddress],
        mut each: impl FnMut(usize, Result<&mut [u8]>),
    ) -> Result<()> {
        let space = &self.space;
        let mut queue = self.take_queue()?;
        let mut slots: [Option<Request>; REQUESTS_MAX] = [const { None }; REQUESTS_MAX];
        let mut finished = Vec::new();
        let mut next = 0;
        loop {
            while next < addresses.len()
                && let Some(slot) = slots.iter().position(Option::is_none)
            {
                let mut request = self.gather(addresses, next)?;
                let length = request.span.length();
                let is_first = queue.in_flight() == 0;
                let buffer = if is_first { Some(self.buffers.take(length)) } else { self.buffers.try_take(length) };
                let Some(buffer) = buffer else { break };
                next = request.addresses.end;
                request.buffer_bytes = buffer.capacity();
                space.count_read(buffer.len());
                queue.push_read(space.file(), request.span.start, buffer, slot as u64);
                slots[slot] = Some(request);
            }
            if queue.in_flight() == 0 {
                break;
            }
            // A queue that fails is dropped, which waits for its reads in flight.
            if let Err(error) = queue.wait(1, &mut finished) {
                let lost = slots.iter().flatten().map(|request| request.buffer_bytes).sum();
                self.buffers.lose(lost);
                return Err(Error::io("reading", space.path(), error));
            }
            for mut completion in finished.drain(..) {
                let Request { span, buffer_bytes, addresses: indexes } =
                    slots[completion.token as usize].take().expect("the slot was in flight");
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
        assert_eq!(next, addresses.len(), "extents are left unread");
        assert!(slots.iter().all(Option::is_none), "a read that has ended was not handed on");
        self.give_queue(queue);
        Ok(())
    }

    /// The addresses from `first` on that one request reads.
    fn gather(&self, addresses: &[ExtentAddress], first: usize) -> Result<Request> {
        let mut end = first;
        let mut span = None;
        while let Some(&address) = addresses.get(end) {
            if !Span::join(&mut span, self.space.cover(address), self.buffers.group_bytes_max()) {
                break;
            }
            self.space.ensure_written(address, self.on_written())?;
            end += 1;
        }
        Ok(Request { span: span.expect("a place at least"), buffer_bytes: 0, addresses: first..end })
    }
}
