//! Making backups of kept snapshots.
//!
//! A backup has the extents of a snapshot's pages as they are on disk, in parts of about half a megabyte. Which extents
//! are in which part follows from the snapshot's page tables and the size of the window alone, so a backup that was
//! interrupted can be continued: parts that are there already are neither read nor written again.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Waker};

use super::backup_parts::PartSink;
use super::state::Store;
use crate::error::{Error, Result};
use crate::format::backup::{
    self, BackupId, CHUNK_BITS_BYTES, CHUNK_RECORD_BYTES, EXTENT_RECORD_BYTES, End, Head, PART_HEADER_BYTES,
};
use crate::format::catalogue::{KeptCatalogue, KeyspaceEntry};
use crate::format::extent::{self, Kind, TABLE_PAGES};
use crate::format::{Checksum, ExtentAddress, KeyspaceId, PageId};
use crate::hash::HashMap;
use crate::memory::Account;
use crate::space::kept::KeptSnapshot;
use crate::space::kept_tables::ChunkReader;
use crate::sync::sleep;
use crate::task::{Boxed, Helpers, WaitMode, ready};
use crate::txn::engine::Engine;

/// The length at which a part ends. Larger parts would take more memory, smaller ones more files.
const PART_BYTES: usize = 512 << 10;

/// The minimum number of pages whose extents are sorted together, so that they are read in the order of the disk.
const WINDOW_PAGES_MIN: u64 = 4 << 10;

/// The share of the memory for loads (one in this many) that the list of these pages may take. With a larger list, less
/// is read for nothing between the extents of rows that were written in no order.
const WINDOW_MEMORY_SHARE: u64 = 4;

/// While other threads use the drive, a backup rests for this many times as long as it works, because large requests
/// delay small ones.
const REST_FACTOR: u32 = 3;

/// The number of parts that an urgent backup reads at the same time.
const READ_AHEAD_PART_COUNT: usize = 2;

/// The result of making a backup.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BackupCounts {
    pub(crate) part_count: u32,
    /// The parts that an earlier attempt had written.
    pub(crate) found_count: u32,
    pub(crate) page_count: u64,
    pub(crate) bytes: u64,
}

/// A page whose extent goes into the backup.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    address: ExtentAddress,
    keyspace: KeyspaceId,
    page: PageId,
}

impl Store {
    /// Writes a backup of a kept snapshot: a full one, or the changes since another kept snapshot. If it is urgent, it
    /// does not rest.
    pub(crate) fn back_up(
        &self,
        kept: &Arc<KeptSnapshot>,
        base: Option<&Arc<KeptSnapshot>>,
        is_urgent: bool,
        sink: &mut dyn PartSink,
    ) -> Result<BackupCounts> {
        let space = &self.engine.space;
        let catalogue = kept.read_catalogue(space)?;
        let base_catalogue = base.map(|base| base.read_catalogue(space)).transpose()?;
        let mut described = catalogue.clone();
        described.segments.clear();
        for keyspace in &mut described.keyspaces {
            keyspace.chunks.clear();
            // In a backup, the extents of a clone are its own.
            keyspace.origins.clear();
        }
        let mut memory = self.engine.budget.grant(Account::Loads);
        let mut head = Head {
            database: self.lock_page_tables().superblock.database,
            snapshot: kept.reference(),
            taken_at_ms: kept.taken_at_ms,
            base: base.map(|base| base.reference()),
            segment_bytes: space.segments.segment_bytes(),
            window_pages: WINDOW_PAGES_MIN,
            catalogue: described.encode(),
        };
        // A backup that is continued has the window of its first attempt, so that its parts are the same.
        let earlier = sink.first_part(head.backup())?.and_then(|body| Head::decode(&body));
        let (pages_min, pages_max) = match earlier {
            Some(earlier) => (earlier.window_pages, earlier.window_pages),
            None => {
                let pages = memory.limit_bytes() / WINDOW_MEMORY_SHARE / size_of::<Item>() as u64;
                (WINDOW_PAGES_MIN, 1 << pages.max(WINDOW_PAGES_MIN).ilog2())
            }
        };
        // If memory is short, the window is smaller, and no part is read while another one is written.
        head.window_pages = pages_max;
        let needed_bytes = |pages: u64, parts: usize| (parts * PART_BYTES) as u64 + pages * size_of::<Item>() as u64;
        let reads_ahead = is_urgent && memory.resize(needed_bytes(pages_max, 2 + READ_AHEAD_PART_COUNT));
        while !reads_ahead && !memory.resize(needed_bytes(head.window_pages, 2)) {
            if head.window_pages > pages_min {
                head.window_pages /= 2;
            } else if memory.resize(needed_bytes(pages_min, 1)) {
                break;
            } else {
                space.check_loads(needed_bytes(pages_min, 1))?;
                return Err(Error::loads_in_memory(memory.limit_bytes()));
            }
        }
        if memory.bytes() >= needed_bytes(head.window_pages, 2) {
            sink.write_ahead()?;
        }
        self.engine.pool.fit_frames(0)?;
        let mut writer = BackupWriter {
            store: self,
            backup: head.backup(),
            window_pages: head.window_pages as usize,
            catalogue: Arc::new(catalogue),
            is_urgent,
            helpers: reads_ahead.then(|| Helpers::new(&self.engine.backend, READ_AHEAD_PART_COUNT)),
            reads: VecDeque::new(),
            sink,
            part: backup::new_part(),
            spares: Vec::new(),
            items: Vec::new(),
            next_number: 0,
            digest: Checksum::new(),
            counts: BackupCounts::default(),
        };
        writer.begin(&head)?;
        writer.copy_keyspaces(base_catalogue.as_ref())?;
        writer.finish()
    }
}

/// Divides a backup into parts, and writes those that are not there yet.
struct BackupWriter<'b> {
    store: &'b Store,
    backup: BackupId,
    window_pages: usize,
    catalogue: Arc<KeptCatalogue>,
    is_urgent: bool,
    /// Threads that read parts, or `None` if this thread reads one part after the other.
    helpers: Option<Helpers>,
    /// The parts that are being read, in order.
    reads: VecDeque<PartRead>,
    sink: &'b mut dyn PartSink,
    part: Vec<u8>,
    /// Buffers of parts that were written.
    spares: Vec<Vec<u8>>,
    /// The pages of the part, and the places of their extents in it.
    items: Vec<(Item, Range<usize>)>,
    /// The number of the next part.
    next_number: u32,
    digest: Checksum,
    counts: BackupCounts,
}

/// A part whose extents a helper thread is reading. Everything else of the part has been encoded.
struct PartRead {
    number: u32,
    page_count: u64,
    /// The checksum, if an earlier attempt has written the part.
    found: Option<u64>,
    reading: Boxed<'static, Result<Vec<u8>>>,
}

impl BackupWriter<'_> {
    fn begin(&mut self, head: &Head) -> Result<()> {
        head.encode(&mut self.part);
        self.end_part()
    }

    /// Copies the pages of all keyspaces: those that are in use, or only those that differ from the base.
    fn copy_keyspaces(&mut self, base: Option<&KeptCatalogue>) -> Result<()> {
        let (space, catalogue) = (&self.store.engine.space, Arc::clone(&self.catalogue));
        let of_base: HashMap<KeyspaceId, &KeyspaceEntry> =
            base.iter().flat_map(|base| &base.keyspaces).map(|keyspace| (keyspace.id, keyspace)).collect();
        let (mut reader, mut base_reader) = (ChunkReader::new(space), ChunkReader::new(space));
        let mut window: Vec<Item> = Vec::with_capacity(self.window_pages);
        for keyspace in &catalogue.keyspaces {
            let before = of_base.get(&keyspace.id).map_or(&[][..], |before| &before.chunks);
            for chunk in 0..keyspace.chunks.len().max(before.len()) {
                let address = |chunks: &[ExtentAddress]| chunks.get(chunk).copied().unwrap_or(ExtentAddress::NONE);
                let (new, old) = (address(&keyspace.chunks), address(before));
                if new == old {
                    continue;
                }
                let entries = reader.read(keyspace, chunk)?;
                let old_entries = match of_base.get(&keyspace.id) {
                    Some(before) => base_reader.read(before, chunk)?,
                    None => vec![0; TABLE_PAGES],
                };
                if window.len() + TABLE_PAGES > self.window_pages {
                    self.copy_window(&mut window)?;
                }
                let mut in_use = [0; CHUNK_BITS_BYTES];
                for (offset, (&entry, &old_entry)) in entries.iter().zip(&old_entries).enumerate() {
                    let Some(address) = ExtentAddress::from_bits(entry) else { continue };
                    in_use[offset / 8] |= 1 << (offset % 8);
                    if entry != old_entry {
                        let page = PageId((chunk * TABLE_PAGES + offset) as u32);
                        window.push(Item { address, keyspace: keyspace.id, page });
                    }
                }
                self.make_room(CHUNK_RECORD_BYTES)?;
                backup::encode_chunk(keyspace.id, chunk as u32, &in_use, &mut self.part);
            }
        }
        self.copy_window(&mut window)
    }

    /// Copies the extents of these pages, in the order of the disk.
    fn copy_window(&mut self, window: &mut Vec<Item>) -> Result<()> {
        window.sort_unstable();
        for item in window.drain(..) {
            let bytes = item.address.length() as usize;
            self.make_room(EXTENT_RECORD_BYTES + bytes)?;
            let place = backup::encode_extent(item.keyspace, item.page, bytes, &mut self.part);
            self.items.push((item, place));
        }
        Ok(())
    }

    /// Ends the part if a record of this length does not fit into it.
    fn make_room(&mut self, bytes: usize) -> Result<()> {
        if self.part.len() > PART_HEADER_BYTES && self.part.len() + bytes > PART_BYTES {
            self.end_part()
        } else {
            Ok(())
        }
    }

    /// Reads the extents of the part and writes it, unless an earlier attempt has written it. If other threads read,
    /// writes an earlier part.
    fn end_part(&mut self) -> Result<()> {
        let began = self.store.now();
        let number = self.next_number;
        self.next_number += 1;
        let spare = self.spares.pop().unwrap_or_else(backup::new_part);
        let (part, items) = (std::mem::replace(&mut self.part, spare), std::mem::take(&mut self.items));
        let page_count = items.len() as u64;
        let found = self.sink.find(number, self.backup)?;
        let reading: Boxed<'static, Result<Vec<u8>>> = if found.is_some() {
            Box::pin(std::future::ready(Ok(part)))
        } else {
            let (engine, catalogue) = (Arc::clone(&self.store.engine), Arc::clone(&self.catalogue));
            let read = move || read_extents(&engine, &catalogue, part, &items);
            match &self.helpers {
                Some(helpers) => helpers.start(read),
                None => Box::pin(std::future::ready(read())),
            }
        };
        self.reads.push_back(PartRead { number, page_count, found, reading });
        self.put_all_but(if self.helpers.is_some() { READ_AHEAD_PART_COUNT } else { 0 })?;
        if found.is_none() && !self.is_urgent && self.store.engine.space.share.is_foreground_active() {
            sleep((self.store.now() - began) * REST_FACTOR);
        }
        Ok(())
    }

    /// Writes the oldest of the parts that are being read, until only `part_count` of them are left.
    fn put_all_but(&mut self, part_count: usize) -> Result<()> {
        while self.reads.len() > part_count
            && let Some(PartRead { number, page_count, found, mut reading }) = self.reads.pop_front()
        {
            assert_eq!(number, self.counts.part_count, "a part is written out of order");
            let poll = |waker: &Waker| reading.as_mut().poll(&mut Context::from_waker(waker));
            let mut part = ready(WaitMode::Blocking.until(poll))?;
            let sum = match found {
                Some(sum) => {
                    self.counts.found_count += 1;
                    sum
                }
                None => {
                    let sum = backup::seal_part(&mut part, number, self.backup);
                    self.sink.put(number, &part)?;
                    sum
                }
            };
            self.digest.update(&sum.to_le_bytes());
            self.counts.part_count += 1;
            self.counts.page_count += page_count;
            self.counts.bytes += part.len() as u64;
            part.truncate(PART_HEADER_BYTES);
            self.spares.push(part);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<BackupCounts> {
        if self.part.len() > PART_HEADER_BYTES {
            self.end_part()?;
        }
        self.put_all_but(0)?;
        let part_count = self.counts.part_count;
        let end = End { part_count, extent_count: self.counts.page_count, digest: self.digest.digest() };
        end.encode(&mut self.part);
        self.end_part()?;
        self.put_all_but(0)?;
        self.sink.finish()?;
        Ok(self.counts)
    }
}

/// Reads the extents of a part into their places.
fn read_extents(
    engine: &Engine,
    catalogue: &KeptCatalogue,
    mut part: Vec<u8>,
    items: &[(Item, Range<usize>)],
) -> Result<Vec<u8>> {
    let (pool, space) = (&engine.pool, &engine.space);
    let addresses: Vec<ExtentAddress> = items.iter().map(|(item, _)| item.address).collect();
    let mut failed = None;
    pool.read_past(&addresses, |index, bytes| {
        let (Item { address, keyspace, page }, place) = &items[index];
        let what = || format!("page {page} of keyspace {keyspace}");
        let copied = bytes.and_then(|bytes| {
            let corrupted = |reason: &dyn std::fmt::Display| space.corrupted(&what(), *address, reason);
            let header = space.verify(*address, bytes).map_err(|reason| corrupted(&reason))?;
            // The extents of a value are numbered within the value. Those of a prepared transaction name the
            // keyspace that the value will be put into.
            let is_page = header.kind == Kind::Value || header.page_key.page == *page;
            let is_prepared = header.kind == Kind::Value && *keyspace == KeyspaceId::PREPARED;
            let entry = catalogue.keyspaces.iter().find(|entry| entry.id == *keyspace);
            let is_stored = entry.is_some_and(|entry| entry.is_stored_as(header.page_key.keyspace));
            if !is_page || !(is_stored || is_prepared) {
                return Err(corrupted(&extent::ExtentError::PageKey(header.page_key)));
            }
            let copy = &mut part[place.clone()];
            copy.copy_from_slice(bytes);
            if header.page_key.keyspace != *keyspace && !is_prepared {
                extent::set_keyspace(copy, *keyspace);
                extent::seal(&mut copy[..header.stored_bytes], header.origin);
            }
            Ok(())
        });
        if let Err(error) = copied {
            failed.get_or_insert(error);
        }
    })?;
    failed.map_or(Ok(part), Err)
}
