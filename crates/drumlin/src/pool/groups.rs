//! Faults of many pages together. One request reads extents that lie close together, and many requests are in flight.
//!
//! Spare faults ([`Pool::fault_spare`]) are for pages that no request needs yet. They use only frames in excess of
//! those that the pool keeps free, so no page is evicted for them. They have few reads in flight and never wait for a
//! buffer.

use std::io;
use std::sync::atomic::Ordering;

use super::Pool;
use super::frames::NewFrame;
use super::needs::Wanted;
use super::queues::OnShortage;
use super::span::Span;
use crate::error::{Error, Result};
use crate::format::ExtentAddress;
use crate::io::{AlignedBuffer, Completion, InFlight, Queue};
use crate::space::{PageEntry, PageSpace};

/// Number of requests handed to the kernel in one call. Each request takes the kernel some 5 µs. With small batches the
/// device starts early, and pages are decoded while it is busy.
/// Measured: decision 010.
const SUBMITTED_REQUESTS: usize = 8;

/// The number of requests in flight for pages that no caller needs yet: the device reads one while the pages of the
/// other are decoded.
const SPARE_REQUESTS: usize = 2;

/// The reason for faulting many pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// A caller waits for the pages.
    Wanted,
    /// A scan will need them. Such reads are background work: they yield to foreground reads.
    Ahead,
    /// No request needs the pages yet. These reads are background work too.
    Spare,
}

/// Extents that one request reads, and their pages.
struct Group<'p> {
    span: Span,
    buffer_bytes: usize,
    pages: Vec<(Wanted, ExtentAddress, NewFrame<'p>)>,
    in_flight: Option<InFlight<'p>>,
}

/// The reads of a single call of [`Pool::fault_many`].
struct GroupReads<'p, 'e> {
    pool: &'p Pool,
    pages: &'e PageSpace,
    of: Use,
    /// The extents that have not been requested yet, in the order of their addresses.
    rest: &'e [(ExtentAddress, Wanted)],
    queue: Box<dyn Queue>,
    in_flight: Vec<Option<Group<'p>>>,
    /// The free slots of `in_flight`.
    idle: Vec<usize>,
    /// The number of pages brought into memory.
    count: usize,
}

impl<'p> GroupReads<'p, '_> {
    /// Reads all groups. Returns the number of pages brought into memory.
    fn run(mut self) -> Result<usize> {
        let mut finished = Vec::new();
        loop {
            let pushed = self.submit()?;
            if self.queue.in_flight() == 0 {
                break;
            }
            let busy_count = self.in_flight.len() - self.idle.len();
            assert_eq!(self.queue.in_flight(), busy_count, "the queue has other reads in flight than the slots");
            // While more extents can be requested, collect only the reads that have completed. Otherwise wait for
            // several at a time, because a wake-up costs more than decoding a page.
            let go_on = pushed == SUBMITTED_REQUESTS && !self.rest.is_empty() && !self.idle.is_empty();
            let enough = if go_on { 0 } else { self.queue.in_flight().div_ceil(8) };
            if let Err(error) = self.queue.wait(enough, &mut finished) {
                return Err(self.abandon(error));
            }
            finished.drain(..).for_each(|completion| self.complete(completion));
        }
        assert_eq!(self.idle.len(), self.in_flight.len(), "a slot is neither idle nor in flight");
        self.pool.queues.give(self.queue);
        Ok(self.count)
    }

    /// Requests more groups as long as there are buffers and frames for them. Returns the number of requests made.
    fn submit(&mut self) -> Result<usize> {
        let mut pushed = 0;
        while pushed < SUBMITTED_REQUESTS
            && !self.rest.is_empty()
            && let Some(&slot) = self.idle.last()
        {
            let on_shortage = match self.of {
                Use::Wanted | Use::Ahead => OnShortage::of(self.queue.as_ref()),
                Use::Spare => OnShortage::ReadLater,
            };
            let Some(in_flight) = self.admit() else { break };
            let (near, length_max) = self.pool.near(self.rest);
            let buffers = &self.pool.buffers;
            let buffer = match on_shortage {
                OnShortage::Wait => Some(buffers.take(length_max)),
                OnShortage::ReadLater => buffers.try_take(length_max),
            };
            let Some(buffer) = buffer else { break };
            let mut unclaimed = near;
            let claimed = self.pool.claim_group(self.pages, &mut unclaimed, self.of, on_shortage);
            self.rest = &self.rest[near.len() - unclaimed.len()..];
            let Ok(Some(group)) = claimed else {
                buffers.give(buffer);
                claimed?;
                // Either other threads have claimed all these pages, or no frame is free.
                if unclaimed.is_empty() {
                    continue;
                }
                break;
            };
            self.idle.pop();
            self.push(slot, Group { in_flight: Some(in_flight), ..group }, buffer);
            pushed += 1;
        }
        Ok(pushed)
    }

    /// Counts a request as in flight. Returns `None` if background work already has its share of the requests.
    fn admit(&self) -> Option<InFlight<'p>> {
        let share = &self.pool.space.share;
        match self.of {
            Use::Wanted => Some(share.foreground()),
            Use::Ahead | Use::Spare if self.queue.in_flight() == 0 => Some(share.background()),
            Use::Ahead | Use::Spare => share.try_background(),
        }
    }

    fn push(&mut self, slot: usize, mut group: Group<'p>, mut buffer: AlignedBuffer) {
        let length = group.span.length();
        buffer.set_len(length);
        group.buffer_bytes = buffer.capacity();
        self.pool.space.count_read(length);
        self.queue.push_read(self.pool.space.file(), group.span.start, buffer, slot as u64);
        let replaced = self.in_flight[slot].replace(group);
        assert!(replaced.is_none(), "an idle slot has a read in flight");
    }

    /// Publishes the pages of a group that has been read.
    fn complete(&mut self, completion: Completion) {
        let slot = completion.token as usize;
        let group = self.in_flight[slot].take().expect("the slot was in flight");
        assert_eq!(completion.buffer.capacity(), group.buffer_bytes, "a read ends with another's buffer");
        drop(group.in_flight);
        for (wanted, address, frame) in group.pages {
            assert!(group.span.start <= address.start() && address.start() + address.length() <= group.span.end);
            let offset = (address.start() - group.span.start) as usize;
            let result = match &completion.result {
                Ok(()) => Ok(()),
                Err(error) => Err(error.kind().into()),
            };
            // If the page is invalid, its next reader will get the error.
            let bytes = &completion.buffer[offset..];
            let arrived = self.pool.arrive(self.pages, wanted, address, frame, result, bytes);
            self.count += usize::from(arrived.is_ok());
        }
        self.pool.buffers.give(completion.buffer);
        self.idle.push(slot);
    }

    /// Abandons all reads in flight after the queue has failed.
    fn abandon(self, error: io::Error) -> Error {
        let GroupReads { pool, pages, queue, in_flight, .. } = self;
        // Dropping the queue waits for the reads in flight.
        drop(queue);
        let kind = error.kind();
        in_flight.iter().flatten().for_each(|group| pool.buffers.forfeit(group.buffer_bytes));
        for (wanted, address, frame) in in_flight.into_iter().flatten().flat_map(|group| group.pages) {
            let _ = pool.arrive(pages, wanted, address, frame, Err(kind.into()), &[]);
        }
        Error::io("reading", pool.space.path(), error)
    }
}

impl Pool {
    /// Brings several pages into memory, with many reads in flight. Skips pages that can't be read. A caller that needs
    /// such a page gets the error when it faults the page itself. Returns the number of pages read.
    pub(crate) fn fault_many(&self, pages: &PageSpace, wanted: &[Wanted]) -> Result<usize> {
        if wanted.len() < 2 {
            return Ok(wanted.iter().filter(|wanted| self.fault(pages, **wanted).is_ok()).count());
        }
        let count = self.fault_groups(pages, wanted, Use::Wanted)?;
        self.cache.misses.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Like [`fault_many`](Self::fault_many), for pages that a scan will need. The reads are background work.
    pub(crate) fn fault_ahead(&self, pages: &PageSpace, wanted: &[Wanted]) -> Result<usize> {
        let count = self.fault_groups(pages, wanted, Use::Ahead)?;
        self.cache.misses.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Like [`fault_many`](Self::fault_many), for pages that no request needs yet. Skips pages that have no [spare
    /// frame](Self::has_spare_frame), and does not count misses.
    pub(crate) fn fault_spare(&self, pages: &PageSpace, wanted: &[Wanted]) -> Result<usize> {
        self.fault_groups(pages, wanted, Use::Spare)
    }

    /// Returns `true` if a page of this size can be brought in without causing an eviction, either now or when the
    /// background writer next looks for free frames.
    pub(crate) fn has_spare_frame(&self, page_bytes: usize) -> bool {
        self.frames.available(page_bytes) > 2 * self.low_water(page_bytes)
    }

    fn fault_groups(&self, pages: &PageSpace, wanted: &[Wanted], of: Use) -> Result<usize> {
        // Sort by address, so that one read brings in adjacent extents.
        let mut extents: Vec<(ExtentAddress, Wanted)> = (wanted.iter())
            .filter_map(|&wanted| match pages.table.load(wanted.page) {
                PageEntry::OnDisk(address) if address.length() <= wanted.frame_bytes as u64 => Some((address, wanted)),
                _ => None,
            })
            .collect();
        extents.sort_unstable_by_key(|(address, wanted)| (*address, wanted.page));
        let queue = self.take_queue()?;
        let depth = match of {
            Use::Wanted | Use::Ahead => queue.depth(),
            Use::Spare => queue.depth().min(SPARE_REQUESTS),
        };
        let reads = GroupReads {
            pool: self,
            pages,
            of,
            rest: &extents,
            queue,
            in_flight: (0..depth).map(|_| None).collect(),
            idle: (0..depth).collect(),
            count: 0,
        };
        let count = reads.run()?;
        assert!(count <= extents.len(), "{count} pages were read, {} were wanted", extents.len());
        Ok(count)
    }

    /// Claims the next extents that lie close together, and takes frames for their pages. Returns `None` if other
    /// threads have claimed all of them or no frame is free. With `OnShortage::Wait`, waits for the first frame.
    fn claim_group<'p>(
        &'p self,
        pages: &PageSpace,
        rest: &mut &[(ExtentAddress, Wanted)],
        of: Use,
        on_shortage: OnShortage,
    ) -> Result<Option<Group<'p>>> {
        let mut span = None;
        let mut claimed = Vec::new();
        while let [(address, wanted), later @ ..] = *rest {
            let mut wider = span;
            if !Span::join(&mut wider, self.space.cover(*address), self.buffers.group_bytes_max()) {
                break;
            }
            if of == Use::Spare && !self.has_spare_frame(wanted.frame_bytes) {
                crate::coverage::mark!("no frame was free for read-ahead");
                break;
            }
            let frame = match self.frames.try_take(wanted.frame_bytes) {
                Some(frame) => frame,
                None if on_shortage == OnShortage::Wait && claimed.is_empty() => self.take_frame(wanted.frame_bytes)?,
                None => break,
            };
            *rest = later;
            if pages.table.exchange(wanted.page, PageEntry::OnDisk(*address), PageEntry::Reading(*address)) {
                span = wider;
                claimed.push((*wanted, *address, frame));
            }
        }
        debug_assert_eq!(span.is_none(), claimed.is_empty(), "pages are claimed that nobody reads");
        if let Some((wanted, ..)) = claimed.first()
            && self.frames.available(wanted.frame_bytes) < self.low_water(wanted.frame_bytes)
        {
            // Wake the background writer to free frames for the next groups, so that this thread does not evict pages
            // itself.
            self.wake_background();
        }
        Ok(span.map(|span| Group { span, buffer_bytes: 0, pages: claimed, in_flight: None }))
    }

    /// Returns the longest prefix of `extents` that one request may read, and the bytes that the request covers.
    fn near<'e>(&self, extents: &'e [(ExtentAddress, Wanted)]) -> (&'e [(ExtentAddress, Wanted)], usize) {
        let mut span = None;
        let bytes_max = self.buffers.group_bytes_max();
        let is_near =
            |(address, _): &&(ExtentAddress, Wanted)| Span::join(&mut span, self.space.cover(*address), bytes_max);
        let count = extents.iter().take_while(is_near).count();
        (&extents[..count], span.map_or(0, Span::length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::queues::QUEUE_DEPTH;
    use crate::{Config, KeyspaceOptions};

    /// Read-ahead and bulk reads yield to foreground reads. They use the whole device while it is idle, but have only a
    /// few requests in flight during a foreground read.
    #[test]
    fn background_reads_yield() {
        let backend = crate::io::in_memory();
        let config = || Config::new().backend(std::sync::Arc::clone(&backend)).memory(64 << 20).warm_start(false);
        let db = config().open("/db").unwrap();
        let keyspace = db.keyspace_with("k", KeyspaceOptions::new().page_bytes(512)).unwrap();
        (0..60_000u64)
            .for_each(|row| keyspace.insert(row.to_be_bytes(), drumlin_testing::Random(row).bytes(100)).unwrap());
        drop(keyspace);
        db.close().unwrap();
        let db = config().open("/db").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let (pool, pages) = (&db.store().unwrap().engine.pool, &keyspace.tree().pages);
        let on_disk = || {
            pages.table.iter().filter_map(|(page, entry)| match entry {
                PageEntry::OnDisk(address) => Some((address, Wanted::node(pages, page))),
                _ => None,
            })
        };
        let mut extents: Vec<(ExtentAddress, Wanted)> = on_disk().collect();
        extents.sort_unstable_by_key(|(address, _)| *address);
        // These extents are far apart, so each needs a read of its own.
        let extents: Vec<_> = extents.into_iter().step_by(997).collect();
        assert!(extents.len() >= SUBMITTED_REQUESTS, "{} extents", extents.len());
        let share = &pool.space.share;
        let submitted = |of: Use| {
            let mut reads = GroupReads {
                pool,
                pages,
                of,
                rest: &extents,
                queue: pool.take_queue().unwrap(),
                in_flight: (0..QUEUE_DEPTH).map(|_| None).collect(),
                idle: (0..QUEUE_DEPTH).collect(),
                count: 0,
            };
            reads.submit().unwrap();
            let in_flight = share.in_flight();
            reads.abandon(io::Error::other("not waited for"));
            in_flight
        };
        while share.try_background().map(drop).is_some() && submitted(Use::Ahead).1 < SUBMITTED_REQUESTS {}
        assert_eq!(submitted(Use::Ahead), (0, SUBMITTED_REQUESTS));
        assert_eq!(submitted(Use::Wanted), (SUBMITTED_REQUESTS, 0));
        let read = share.foreground();
        let (_, limited) = submitted(Use::Ahead);
        assert!((1..=4).contains(&limited), "{limited} reads ahead beside another read");
        let addresses: Vec<ExtentAddress> = extents.iter().map(|(address, _)| *address).collect();
        let (mut count, mut others_max) = (0, 0);
        pool.read_past(&addresses, |_, bytes| {
            bytes.unwrap();
            count += 1;
            others_max = others_max.max(share.in_flight().1);
        })
        .unwrap();
        assert_eq!(count, addresses.len());
        assert!(others_max < limited, "{others_max} more reads at once");
        // Other threads have used up the share. Each thread still gets one request in flight.
        let others = [(); 9].map(|()| share.background());
        assert_eq!(submitted(Use::Spare), (1, 10));
        pool.read_past(&addresses, |_, _| assert_eq!(share.in_flight(), (1, 9))).unwrap();
        drop((read, others));
        assert_eq!(share.in_flight(), (0, 0));
    }
}
