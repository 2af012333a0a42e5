//! An open collection: its keyspaces, and the writes that keep a document consistent with everything derived from it.
//!
//! 1. A document and its rows in every index, view and history change in one transaction.
//! 2. A change calls the user's functions before it writes the first row, and is rolled back if it fails halfway. So
//!    after any error except a conflict, the transaction can continue.
//! 3. A document's row is locked before the rows derived from it are read or written.
//!
//! A document's row is its schema version as LEB128, followed by the codec's bytes.

use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;
use std::time::SystemTime;

use drumlin::{Keyspace, Reader, Value};

use crate::codec::Codec;
use crate::collection::Collection;
use crate::encoding::Key;
use crate::error::{BoxError, DocumentKey, Error, PartName, Result, panic_message, shown};
use crate::history::{self, RecordError};
use crate::hub::{Channel, PendingChange, RawChange, lock};
use crate::mode::Mode;
use crate::parts::{Part, PartRow, Refusal, Retention, Source};
use crate::shared::Shared;
use crate::transaction::{Savepoint, Transaction};

/// An index, a view or the expiry, with the keyspace of its rows.
pub(crate) struct OpenPart<C> {
    pub(crate) part: Part<C>,
    pub(crate) keyspace: Keyspace,
    state: Mutex<PartState>,
}

/// The build state of a part.
#[derive(Clone)]
pub(crate) enum PartState {
    Building,
    /// The part was complete when the collection was opened.
    Ready,
    /// The part was completed after the collection was opened. Snapshots taken before its completion see only some of
    /// its rows.
    Built,
    NotBuilt(String),
}

/// The record of a part's state in the keyspace `NAME/meta`. Its key is the name of the part's keyspace.
pub(crate) mod part_record {
    pub(crate) const READY: &[u8] = &[1];

    /// Returns the record of an unfinished part that contains the rows of every document up to and including the key
    /// `up_to`. An empty key means that the part has no rows yet.
    pub(crate) fn building(up_to: &[u8]) -> Vec<u8> {
        [&[0], up_to].concat()
    }
}

/// Wakes the threads and tasks that wait for parts to be built.
#[derive(Default)]
struct Waiting {
    wakers: Mutex<Vec<Waker>>,
    changed: Condvar,
}

pub(crate) struct OpenCollection<C> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) documents: Keyspace,
    /// Holds the record of each part's state, and the names of its key and value types.
    pub(crate) meta: Keyspace,
    pub(crate) parts: Vec<OpenPart<C>>,
    pub(crate) expires: Option<fn(&C) -> Option<SystemTime>>,
    pub(crate) history: Option<(Keyspace, Retention)>,
    pub(crate) channel: Arc<Channel>,
    waiting: Waiting,
}

/// A stored document, and the row from which it was decoded.
pub(crate) struct Stored<C> {
    pub(crate) row: Value,
    pub(crate) document: C,
}

/// An encoded document that is ready to be written, and its rows in each part.
pub(crate) struct Prepared {
    pub(crate) key: Vec<u8>,
    pub(crate) row: Vec<u8>,
    pub(crate) part_rows: Vec<Vec<PartRow>>,
}

fn push_version(mut version: u32, row: &mut Vec<u8>) {
    while version >= 0x80 {
        row.push(version as u8 | 0x80);
        version >>= 7;
    }
    row.push(version as u8);
}

/// Splits a row into the schema version and the codec's bytes.
fn split_version(row: &[u8]) -> Option<(u32, &[u8])> {
    let mut version = 0u32;
    for (at, byte) in row.iter().enumerate().take(5) {
        version |= u32::from(byte & 0x7F).checked_shl(7 * at as u32)?;
        if byte & 0x80 == 0 {
            return Some((version, &row[at + 1..]));
        }
    }
    None
}

impl<C: Collection> OpenPart<C> {
    pub(crate) fn new(part: Part<C>, keyspace: Keyspace, state: PartState) -> OpenPart<C> {
        OpenPart { part, keyspace, state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> PartState {
        lock(&self.state).clone()
    }

    fn not_ready(&self) -> Option<Error> {
        let (collection, part) = (C::NAME, self.part.name);
        match self.state() {
            PartState::Ready | PartState::Built => None,
            PartState::Building => Some(Error::NotReady { collection, part }),
            PartState::NotBuilt(reason) => Some(Error::NotBuilt { collection, part, reason }),
        }
    }
}

impl<C: Collection> OpenCollection<C> {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        (documents, meta): (Keyspace, Keyspace),
        parts: Vec<OpenPart<C>>,
        expires: Option<fn(&C) -> Option<SystemTime>>,
        history: Option<(Keyspace, Retention)>,
    ) -> OpenCollection<C> {
        let (channel, waiting) = (Arc::default(), Waiting::default());
        OpenCollection { shared: Arc::clone(shared), documents, meta, parts, expires, history, channel, waiting }
    }

    /// Returns the part with this name. Fails if the part does not have the rows of all documents that `reader` sees.
    pub(crate) async fn ready_part(&self, mode: Mode, reader: &Reader, name: PartName) -> Result<&OpenPart<C>> {
        let open = self.parts.iter().find(|open| open.part.name == name);
        let open = open.ok_or_else(|| Error::definition(C::NAME, format!("it has no {name} in its parts")))?;
        if let Some(error) = open.not_ready() {
            return Err(error);
        }
        if matches!(open.state(), PartState::Built) {
            let record = mode.get(reader, &self.meta, open.keyspace.name().as_bytes()).await?;
            if record.is_none_or(|record| record != part_record::READY) {
                return Err(Error::NotReady { collection: C::NAME, part: name });
            }
        }
        Ok(open)
    }

    pub(crate) fn set_state(&self, part: &OpenPart<C>, state: PartState) {
        // Waiters check the states of the parts under this lock, so they can't miss the change.
        let mut wakers = lock(&self.waiting.wakers);
        *lock(&part.state) = state;
        let woken = std::mem::take(&mut *wakers);
        self.waiting.changed.notify_all();
        drop(wakers);
        woken.into_iter().for_each(Waker::wake);
    }

    fn built(&self) -> Option<Result<()>> {
        let states = self.parts.iter().filter_map(OpenPart::not_ready);
        let (building, failed): (Vec<_>, Vec<_>) = states.partition(|error| matches!(error, Error::NotReady { .. }));
        match (building.is_empty(), failed.into_iter().next()) {
            (false, _) => None,
            (true, None) => Some(Ok(())),
            (true, Some(error)) => Some(Err(error)),
        }
    }

    /// Waits until every part has been built or has failed to build.
    pub(crate) fn wait_built(&self) -> Result<()> {
        let mut wakers = lock(&self.waiting.wakers);
        loop {
            if let Some(result) = self.built() {
                return result;
            }
            wakers = self.waiting.changed.wait(wakers).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    pub(crate) fn poll_built(&self, waker: &Waker) -> Option<Result<()>> {
        let mut wakers = lock(&self.waiting.wakers);
        let result = self.built();
        if result.is_none() {
            wakers.push(waker.clone());
        }
        result
    }

    pub(crate) fn key_shown(key: &[u8]) -> String {
        shown::<C::Key>(key)
    }

    /// Decodes the row of a document.
    pub(crate) fn decode(&self, key: &[u8], row: &[u8]) -> Result<C> {
        let decode_error =
            |reason: String| Error::Decode { collection: C::NAME, of: None, row: Self::key_shown(key), reason };
        let (version, bytes) =
            split_version(row).ok_or_else(|| decode_error("the row has no schema version".to_owned()))?;
        if version == C::VERSION {
            return C::Codec::decode(bytes).map_err(|error| decode_error(error.to_string()));
        }
        let migrated = if version > C::VERSION {
            Err(BoxError::from("it was written by a newer program"))
        } else {
            C::migrate(version, bytes)
        };
        migrated.map_err(|reason| Error::Migration {
            collection: C::NAME,
            key: Self::key_shown(key),
            version,
            current: C::VERSION,
            reason: reason.to_string(),
        })
    }

    /// Returns the time at which the document expires. If the user's function panics, the document never expires.
    pub(crate) fn expires_at(&self, document: &C) -> Option<SystemTime> {
        let expires = self.expires?;
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| expires(document))).unwrap_or(None)
    }

    pub(crate) fn is_expired(&self, document: &C) -> bool {
        self.expires.is_some() && self.expires_at(document).is_some_and(|time| time <= self.shared.now())
    }

    /// Decodes the row of a document. Returns `None` if the document has expired.
    pub(crate) fn decode_live(&self, key: &[u8], row: &[u8]) -> Result<Option<C>> {
        let document = self.decode(key, row)?;
        Ok((!self.is_expired(&document)).then_some(document))
    }

    /// Returns the rows of a document in one part.
    pub(crate) fn rows_of(&self, part: &Part<C>, document: &C, key: &[u8]) -> Result<Vec<PartRow>> {
        let source = Source { document, key, expires: self.expires_at(document) };
        let (collection, shown) = (C::NAME, || Self::key_shown(key));
        part.rows(&source).map_err(|refusal| match refusal {
            Refusal::Panicked(message) => Error::Panicked { collection, of: part.name, key: shown(), message },
            Refusal::Encode(reason) => Error::Encode { collection, key: shown(), of: Some(part.name), reason },
        })
    }

    fn all_rows_of(&self, document: &C, key: &[u8]) -> Result<Vec<Vec<PartRow>>> {
        self.parts.iter().map(|open| self.rows_of(&open.part, document, key)).collect()
    }

    /// Encodes a document and computes its rows in each part. This is the last step of a write that calls the user's
    /// functions on the new document.
    pub(crate) fn prepare(&self, document: &C) -> Result<Prepared> {
        let key = document.key().encode();
        let mut row = Vec::new();
        push_version(C::VERSION, &mut row);
        let bytes = C::Codec::encode(document).map_err(|error| Error::Encode {
            collection: C::NAME,
            key: Self::key_shown(&key),
            of: None,
            reason: error.to_string(),
        })?;
        row.extend_from_slice(&bytes);
        let part_rows = self.all_rows_of(document, &key)?;
        Ok(Prepared { key, row, part_rows })
    }

    /// Returns `true` if a document can be overwritten without being read first.
    pub(crate) fn is_plain(&self) -> bool {
        self.parts.is_empty() && self.history.is_none()
    }

    /// Locks the row of a document and reads it, even if the document has expired.
    pub(crate) async fn lock_stored(
        &self,
        mode: Mode,
        tx: &mut Transaction<'_>,
        key: &[u8],
    ) -> Result<Option<Stored<C>>> {
        let Some(row) = mode.get_for_update(tx.raw, &self.documents, key).await? else { return Ok(None) };
        let document = self.decode(key, &row)?;
        Ok(Some(Stored { row, document }))
    }

    /// Replaces the stored document `before` with `after`, and updates all derived rows. If the call fails or its
    /// future is dropped, the transaction is left as it was before the call.
    pub(crate) async fn change(
        &self,
        mode: Mode,
        tx: &mut Transaction<'_>,
        key: &[u8],
        before: Option<&Stored<C>>,
        after: Option<&Prepared>,
    ) -> Result<()> {
        debug_assert!(after.is_none_or(|after| after.key == key), "a document keeps its key");
        let rows_before = before.map(|stored| self.all_rows_of(&stored.document, key)).transpose()?;
        let savepoint = tx.savepoint();
        let mut change = Undo { tx, savepoint: Some(savepoint) };
        match self.change_rows(mode, change.tx, key, (before, rows_before), after).await {
            Ok(()) => change.savepoint = None,
            Err(error) => {
                change.undo()?;
                return Err(error);
            }
        }
        Ok(())
    }

    async fn change_rows(
        &self,
        mode: Mode,
        tx: &mut Transaction<'_>,
        key: &[u8],
        (before, rows_before): (Option<&Stored<C>>, Option<Vec<Vec<PartRow>>>),
        after: Option<&Prepared>,
    ) -> Result<()> {
        for (number, open) in self.parts.iter().enumerate() {
            let rows_before = rows_before.as_ref().map_or(&[][..], |rows| &rows[number]);
            let rows_after = after.map_or(&[][..], |after| &after.part_rows[number]);
            for row in rows_before {
                let stays = rows_after.binary_search_by(|other| other.key.cmp(&row.key)).is_ok();
                if !stays && (!open.part.is_unique || self.owns(mode, tx, open, row, key).await?) {
                    mode.remove(tx.raw, &open.keyspace, &row.key).await?;
                }
            }
            for row in rows_after {
                if rows_before.binary_search(row).is_err() {
                    self.insert_part_row(mode, tx, open, row, key).await?;
                }
            }
        }
        match after {
            Some(after) => mode.insert(tx.raw, &self.documents, key, &after.row).await?,
            None => mode.remove(tx.raw, &self.documents, key).await?,
        }
        let before_row = before.map(|stored| &stored.row[..]);
        self.record(mode, tx, key, before_row, after.map(|after| &after.row[..])).await?;
        if self.channel.has_subscribers() {
            let document = after.map(|after| Arc::from(&after.row[..]));
            let change = RawChange { key: key.to_vec(), document };
            lock(&tx.pending).push(PendingChange { channel: Arc::clone(&self.channel), change });
        }
        Ok(())
    }

    /// Returns `true` if this document owns the row of a unique index. While the index is being built from documents
    /// with duplicate keys, a different document may own the row.
    async fn owns(
        &self,
        mode: Mode,
        tx: &mut Transaction<'_>,
        open: &OpenPart<C>,
        row: &PartRow,
        key: &[u8],
    ) -> Result<bool> {
        let owner = mode.get_for_update(tx.raw, &open.keyspace, &row.key).await?;
        Ok(owner.is_some_and(|owner| owner == key))
    }

    /// Writes a row of a part. For a unique index, first locks the row and checks its owner. If the owner has expired,
    /// it is removed.
    pub(crate) async fn insert_part_row(
        &self,
        mode: Mode,
        tx: &mut Transaction<'_>,
        open: &OpenPart<C>,
        row: &PartRow,
        key: &[u8],
    ) -> Result<()> {
        if open.part.is_unique {
            let owner = mode.get_for_update(tx.raw, &open.keyspace, &row.key).await?;
            if let Some(owner) = owner.filter(|owner| owner != key)
                && !self.remove_if_expired(mode, tx, &owner).await?
            {
                return Err(Error::NotUnique {
                    collection: C::NAME,
                    key: Self::key_shown(key),
                    index: open.part.name,
                    index_key: (open.part.shown)(&row.key),
                    other: DocumentKey::new::<C::Key>(owner.into_vec()),
                });
            }
        }
        Ok(mode.insert(tx.raw, &open.keyspace, &row.key, &row.value).await?)
    }

    /// Finds and locks the live document that owns one of the keys of `prepared` in a unique index. Returns its primary
    /// key, or `None` if no live document owns any of these keys.
    pub(crate) async fn owner(
        &self,
        mode: Mode,
        tx: &mut Transaction<'_>,
        index: PartName,
        prepared: &Prepared,
    ) -> Result<Option<Vec<u8>>> {
        for (open, rows) in self.parts.iter().zip(&prepared.part_rows).filter(|(open, _)| open.part.name == index) {
            for row in rows {
                let Some(owner) = mode.get_for_update(tx.raw, &open.keyspace, &row.key).await? else { continue };
                let stored = self.lock_stored(mode, tx, &owner).await?;
                if stored.is_some_and(|stored| !self.is_expired(&stored.document)) {
                    return Ok(Some(owner.into_vec()));
                }
            }
        }
        Ok(None)
    }

    /// Returns the error for an invalid row of a part.
    pub(crate) fn part_error(&self, of: PartName, row: &[u8], reason: &str) -> Error {
        Error::Decode { collection: C::NAME, of: Some(of), row: row.escape_ascii().to_string(), reason: reason.into() }
    }

    /// Removes a document if it has expired. Returns `true` if the document is gone, or `false` if it is live. If the
    /// collection has no expiry, always returns `false`.
    pub(crate) async fn remove_if_expired(&self, mode: Mode, tx: &mut Transaction<'_>, key: &[u8]) -> Result<bool> {
        if self.expires.is_none() {
            return Ok(false);
        }
        let Some(stored) = self.lock_stored(mode, tx, key).await? else { return Ok(true) };
        if !self.is_expired(&stored.document) {
            return Ok(false);
        }
        // The recursion is one level deep: a removal does not remove other documents.
        Box::pin(self.change(mode, tx, key, Some(&stored), None)).await?;
        Ok(true)
    }

    async fn record(
        &self,
        mode: Mode,
        tx: &mut Transaction<'_>,
        key: &[u8],
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Result<()> {
        let Some((history, retention)) = &self.history else { return Ok(()) };
        let change = history::Change { key, before, after, now: self.shared.now() };
        history::record(mode, tx.raw, history, *retention, &change).await.map_err(|error| match error {
            RecordError::Store(error) => Error::Store(error),
            RecordError::Row(row, reason) => self.version_error(&row, &reason),
        })
    }

    /// Returns the error for an invalid row of the history.
    pub(crate) fn version_error(&self, row: &[u8], reason: &str) -> Error {
        let reason = format!("invalid past version: {reason}");
        Error::Decode { collection: C::NAME, of: None, row: row.escape_ascii().to_string(), reason }
    }
}

/// Undoes a change that did not complete because it failed or its future was dropped.
struct Undo<'c, 't> {
    tx: &'c mut Transaction<'t>,
    /// The savepoint before the change; `None` once the change has completed or been undone.
    savepoint: Option<Savepoint>,
}

impl Undo<'_, '_> {
    fn undo(&mut self) -> Result<()> {
        let Some(savepoint) = self.savepoint.take() else { return Ok(()) };
        self.tx.rollback_to(savepoint).inspect_err(|_| {
            // A half-finished change must never be committed, so make the transaction fail with a conflict.
            self.tx.conflict("a change of a document failed and could not be undone");
        })
    }
}

impl Drop for Undo<'_, '_> {
    fn drop(&mut self) {
        // The error can be ignored: if the rollback fails, `undo` ends the transaction.
        let _ = self.undo();
    }
}

/// Runs a user's function. If it panics, returns the message of the panic.
pub(crate) fn run_guarded<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_err(|panic| panic_message(&*panic))
}
