//! Bulk loads: trees that are built beside their keyspace and attached to it by one commit.
//!
//! Rows are packed into leaves as they come ([`Packer`]), which are written at once ([`LoadPages`]). When the last has
//! come, the load is made durable and attached ([`Engine::try_attach`]). Where the keyspace has rows by then, or a
//! reader or writer that is in the way, the load is handed back to the caller as rows in the order of their keys.
//!
//! [`Engine::try_attach`]: crate::txn::engine::Engine::try_attach

mod rows;

use std::cell::Cell;
use std::sync::Arc;

pub(crate) use rows::{LoadedRow, LoadedRows};

use super::{OpenKeyspace, Store};
use crate::error::{Error, Result};
use crate::format::ChunkNumber;
use crate::format::extent::{Kind, PageKey};
use crate::format::node::{LargeRef, PAGE_BYTES_MAX};
use crate::format::record::{self, Attachment, Operation};
use crate::memory::{Account, Grant};
use crate::pool::load::LoadPages;
use crate::seglog::Body;
use crate::space::Purpose;
use crate::task::{WaitMode, ready};
use crate::tree::node::{PackedRow, large_rest, push_value};
use crate::tree::packing::Packer;
use crate::txn::values::{self, Blocking, MEDIUM_BYTES_MAX};

/// Buffers that a load writes from: the one that is filled, and the one that is written.
const WRITE_BUFFERS: u64 = 2;

/// Pages beside them: the rows that wait at each level, the page that is packed, the extent that is made of it.
const PAGES: u64 = 6;

/// The smallest of them: the largest page fits.
const BUFFER_BYTES_MIN: usize = PAGE_BYTES_MAX;

/// See the module.
#[derive(Debug)]
pub(crate) struct Loader {
    open: Arc<OpenKeyspace>,
    packer: Packer,
    pages: LoadPages,
    /// The bytes behind the key of the row that is being added.
    rest: Vec<u8>,
    rows: u64,
    _memory: Grant,
}

/// The end of a load.
#[derive(Debug)]
pub(crate) enum Finished {
    /// Its rows are the keyspace's.
    Attached,
    /// The keyspace is not empty, or a reader or writer is in the way: nothing has changed.
    InTheWay(Box<LoadedRows>),
}

impl Loader {
    pub(crate) fn new(store: &Store, open: Arc<OpenKeyspace>) -> Result<Loader> {
        store.check_writable()?;
        store.engine.check_failure()?;
        let (memory, buffer_bytes) = store.load_memory(open.tree.pages.page_bytes)?;
        let make_room = Arc::clone(&store.engine.make_room);
        let tree = &open.tree;
        let pages = LoadPages::new(&tree.pool, &tree.pages, buffer_bytes, Box::new(move || make_room.make_space()));
        let packer = Packer::new(tree.pages.page_bytes);
        Ok(Loader { packer, pages, open, rest: Vec::new(), rows: 0, _memory: memory })
    }

    /// Rows with different keys so far.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds a row, whose key is not below the newest. Of two with the same key the later counts.
    pub(crate) fn insert(&mut self, store: &Store, key: &[u8], value: &[u8]) -> Result<()> {
        store.check_write(&self.open, key)?;
        self.open.tree.check_dropped()?;
        match self.packer.last_key().map(|last| last.cmp(key)) {
            Some(std::cmp::Ordering::Greater) => {
                return Err(Error::Invalid("the keys of a bulk load must ascend".into()));
            }
            Some(std::cmp::Ordering::Equal) => self.take_back(),
            Some(std::cmp::Ordering::Less) | None => {}
        }
        let is_large = self.write_value(store, key, value)?;
        self.packer.push(PackedRow { key, rest: &self.rest, is_large }, &mut self.pages)?;
        self.rows += 1;
        Ok(())
    }

    /// Takes back the newest row.
    fn take_back(&mut self) {
        let (rest, is_large) = self.packer.pop().expect("its key was compared");
        self.rows -= 1;
        if is_large {
            let reference = LargeRef::from_bytes(rest.last_chunk().expect("the rest ends with a reference"));
            self.pages.discard(reference.first_page, reference.chunk_count);
        }
    }

    /// Makes `rest` that of a row with this value, writing the value where it has extents of its own. Returns `true` if
    /// it has.
    fn write_value(&mut self, store: &Store, key: &[u8], value: &[u8]) -> Result<bool> {
        self.rest.clear();
        let tree = &self.open.tree;
        if value.len() <= tree.inline_bytes_max(key) {
            push_value(value, &mut self.rest);
            return Ok(false);
        }
        let value_id = store.new_value();
        let length = value.len() as u64;
        let reference = if value.len() <= MEDIUM_BYTES_MAX {
            let first_page = self.pages.take_numbers(1)?;
            let name = PageKey { keyspace: tree.pages.id, page: ChunkNumber(0).as_page() };
            self.pages.append(first_page, name, Kind::Value, &values::medium_page(value_id, value))?;
            LargeRef { length, id: value_id, first_page, chunk_count: 1 }
        } else {
            let memory = ready(store.source_memory(WaitMode::Blocking))?;
            let make_room = &store.engine.make_room;
            let source = Blocking(value);
            let written = ready(values::write_large(WaitMode::Blocking, tree, value_id, source, memory, make_room))?;
            let chunk_count = u32::try_from(written.addresses.len()).expect("fewer than 2^32 chunks");
            let first_page = self.pages.take_numbers(written.addresses.len())?;
            let reference = LargeRef { length, id: value_id, first_page, chunk_count };
            written.leave_to_load(reference);
            self.pages.adopt(first_page, &written.addresses);
            reference
        };
        assert!(reference.is_plausible(), "{reference:?} could not be read again");
        self.rest.extend_from_slice(&large_rest(reference));
        Ok(true)
    }

    /// Completes the tree and attaches it.
    pub(crate) fn finish(mut self, store: &Store) -> Result<Finished> {
        self.open.tree.check_dropped()?;
        if self.rows == 0 {
            return Ok(Finished::Attached);
        }
        self.packer.finish(&mut self.pages)?;
        self.pages.finish()?;
        let (open, rows) = (Arc::clone(&self.open), self.rows);
        match store.attach(&open, self.pages, rows)? {
            None => Ok(Finished::Attached),
            Some(pages) => Ok(Finished::InTheWay(Box::new(LoadedRows::new(open, pages)))),
        }
    }
}

impl Store {
    /// Memory for a load's buffers, at the cost of frames, and the size of one. Where others have most of it, they are
    /// smaller.
    fn load_memory(&self, page_bytes: usize) -> Result<(Grant, usize)> {
        let budget = &self.engine.budget;
        let mut memory = budget.grant(Account::Loads);
        let largest = budget.write_buffer_bytes();
        let mut sizes =
            std::iter::successors(Some(largest), |bytes| Some(bytes / 2).filter(|half| *half >= BUFFER_BYTES_MIN));
        let granted = sizes.find(|bytes| memory.resize(WRITE_BUFFERS * *bytes as u64 + PAGES * page_bytes as u64));
        let buffer_bytes = granted.ok_or_else(|| Error::loads_in_memory(memory.limit_bytes()))?;
        self.engine.pool.fit_frames(0)?;
        Ok((memory, buffer_bytes))
    }

    /// Attaches a load that is written. Returns it if something is in the way. Durable when it returns.
    fn attach(&self, open: &OpenKeyspace, pages: LoadPages, rows: u64) -> Result<Option<LoadPages>> {
        let (engine, tree) = (&self.engine, &open.tree);
        let body = Body::naming_extents(self.attachment(open, &pages, rows));
        let body_bytes_max = engine.log().body_bytes_max();
        if body.bytes().len() > body_bytes_max {
            let bytes = body.bytes().len() as u64;
            return Err(Error::record_too_large(rows as usize, bytes, body_bytes_max as u64));
        }
        // The record may be written as soon as it is appended, and must not wait for all of the data then.
        engine.space.sync()?;
        // Rows that others have removed are held by versions until no reader needs them.
        ready(engine.show_durable(WaitMode::Blocking, engine.clock.published()))?;
        engine.collect_all_garbage();
        let changes = 2;
        ready(engine.secure_changes(WaitMode::Blocking, changes));
        let chunk_list_bytes = (pages.tables().images.len() * size_of::<u64>()) as u64;
        let bytes = 2 * tree.pages.page_bytes as u64 + chunk_list_bytes;
        let _reserved = ready(engine.reserve_space(WaitMode::Blocking, Purpose::Put, bytes))?;
        let timestamp = Cell::new(None);
        let attached = self.log_ddl(&body, |take_timestamp| {
            engine.try_attach(tree, pages.tables(), || take_timestamp().inspect(|taken| timestamp.set(Some(*taken))))
        });
        assert!(
            attached.is_err() || matches!(attached, Ok((is_attached, _)) if is_attached == timestamp.get().is_some())
        );
        if timestamp.get().is_some() {
            // Also where the log has failed since: its pages are the keyspace's.
            pages.release();
            return attached.map(|_| None);
        }
        attached.map(|_| Some(pages))
    }

    /// The body of the record that attaches a load.
    fn attachment(&self, open: &OpenKeyspace, pages: &LoadPages, rows: u64) -> Vec<u8> {
        let (segments, tables) = (&self.engine.space.segments, pages.tables());
        let images = tables.images.iter().filter(|(_, address)| !address.is_none());
        let attachment = Attachment {
            rows,
            root: segments.name(tables.root),
            images: images.map(|(chunk, address)| (*chunk as u32, segments.name(*address))).collect(),
            segments: Attachment::runs(pages.segments()),
        };
        let mut body = Vec::new();
        record::encode(open.tree.pages.id, &Operation::Attach(attachment), &mut body);
        body
    }
}
