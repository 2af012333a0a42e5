//! Background maintenance: builds indexes and views from existing documents, and removes expired documents.
//!
//! While a part is being built, writers update its rows for every document that they write. The builder visits the
//! documents in key order, at most 128 per transaction. It locks each document, so the rows that it derives match the
//! stored document. The transaction also saves the key of its last document in the part's record, from which an
//! interrupted build resumes. If a writer has already inserted a row, the builder overwrites it with identical bytes.

use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use drumlin::{Error as StoreError, Recourse};

use crate::collection::Collection;
use crate::core::Stop;
use crate::encoding::{Key, bounds};
use crate::error::{Error, PartKind, Result};
use crate::mode::{Mode, ready};
use crate::open::{OpenCollection, OpenPart, PartState, part_record, run_guarded};
use crate::transaction::Transaction;

/// The maximum number of documents in one transaction of a build. A writer of one of these documents waits for about a
/// millisecond plus a sync.
const BUILD_DOCUMENTS_MAX: usize = 128;
/// The maximum number of expired documents that one transaction removes.
const EXPIRE_DOCUMENTS_MAX: usize = 64;
/// The pause between searches for expired documents. Reads skip them anyway; removing them only frees their space.
const EXPIRE_PAUSE: Duration = Duration::from_secs(60);

/// Builds the unfinished parts of a collection and removes its expired documents, until `stop` is set.
pub(crate) fn run<C: Collection>(open: &Arc<OpenCollection<C>>, stop: &Stop) {
    for part in &open.parts {
        if matches!(part.state(), PartState::Building)
            && let Some(state) = build(open, part, stop)
        {
            open.set_state(part, state);
        }
    }
    while open.expires.is_some() && !stop.is_set() {
        // Ignore errors: the next search may succeed, and a read of the damaged document reports what is wrong with it.
        let _ = run_guarded(|| remove_expired(open, stop));
        if stop.wait(EXPIRE_PAUSE) {
            return;
        }
    }
}

/// Builds a part. Returns `None` if `stop` was set before the build was finished.
fn build<C: Collection>(open: &OpenCollection<C>, part: &OpenPart<C>, stop: &Stop) -> Option<PartState> {
    let mut documents_max = BUILD_DOCUMENTS_MAX;
    while !stop.is_set() {
        let built = run_guarded(|| build_some(open, part, documents_max));
        let built = match built {
            Ok(built) => built,
            Err(message) => {
                return Some(PartState::NotBuilt(format!("a function of the collection panicked: {message}")));
            }
        };
        match built {
            Ok(true) => return Some(PartState::Built),
            Ok(false) => {}
            Err(Error::Store(StoreError::TransactionTooLarge { .. })) if documents_max > 1 => documents_max /= 2,
            Err(Error::Store(error)) if is_passing(&error) => {}
            Err(error) => return Some(PartState::NotBuilt(error.to_string())),
        }
    }
    None
}

/// Returns `true` if the error goes away once other transactions have ended.
fn is_passing(error: &StoreError) -> bool {
    matches!(error, StoreError::LockTimeout { .. }) || error.recourse() == Recourse::Retry
}

/// Builds the rows of the next documents in one transaction. Returns `true` if no documents are left.
fn build_some<C: Collection>(open: &OpenCollection<C>, part: &OpenPart<C>, documents_max: usize) -> Result<bool> {
    let record_key = part.keyspace.name().into_bytes();
    let mut options = open.shared.db.tx_options();
    options.durability = drumlin::Durability::Relaxed;
    open.shared.transact(options, |tx: &mut Transaction<'_>| {
        let record = tx.raw.get_for_update(&open.meta, &record_key)?;
        let start = match record.as_deref() {
            Some([0, up_to @ ..]) if !up_to.is_empty() => Bound::Excluded(up_to.to_vec()),
            _ => Bound::Unbounded,
        };
        let rows = tx.range(&open.documents, (start, Bound::Unbounded)).keys();
        let keys = rows.take(documents_max).collect::<Result<Vec<_>, _>>()?;
        for key in &keys {
            let Some(stored) = ready(open.lock_stored(Mode::Blocking, tx, key))? else { continue };
            for row in open.rows_of(&part.part, &stored.document, key)? {
                ready(open.insert_part_row(Mode::Blocking, tx, part, &row, key))?;
            }
        }
        let is_end = keys.len() < documents_max;
        let record = match keys.last() {
            Some(last) if !is_end => part_record::building(last),
            _ => part_record::READY.to_vec(),
        };
        tx.raw.insert(&open.meta, &record_key, record)?;
        Ok(is_end)
    })
}

/// Removes all expired documents and returns their number.
pub(crate) fn remove_expired<C: Collection>(open: &OpenCollection<C>, stop: &Stop) -> Result<u64> {
    let Some(part) = open.parts.iter().find(|open| open.part.name.kind == PartKind::Expiry) else { return Ok(0) };
    let mut removed = 0;
    let mut from = Bound::Unbounded;
    // Skip a document if its expiry time has been extended since it was found.
    while !stop.is_set() {
        let end = Bound::Included(open.shared.now());
        let (_, end) = bounds::<SystemTime>((Bound::Unbounded, end));
        let rows = part.keyspace.range((from.clone(), end)).keys();
        let rows = rows.take(EXPIRE_DOCUMENTS_MAX).collect::<Result<Vec<_>, _>>()?;
        let Some(last) = rows.last() else { break };
        let options = open.shared.db.tx_options();
        removed += open.shared.transact(options, |tx: &mut Transaction<'_>| remove_of(open, tx, &rows))?;
        from = Bound::Excluded(last.to_vec());
    }
    Ok(removed)
}

/// Removes the documents that own these expiry rows, unless they no longer count as expired. Returns the number of
/// documents removed.
fn remove_of<C: Collection>(
    open: &OpenCollection<C>,
    tx: &mut Transaction<'_>,
    rows: &[drumlin::Value],
) -> Result<u64> {
    let mut removed = 0;
    for row in rows {
        let mut key = &row[..];
        SystemTime::decode_from(&mut key).map_err(|error| Error::Decode {
            collection: C::NAME,
            of: None,
            row: row.escape_ascii().to_string(),
            reason: format!("invalid expiry row: {error}"),
        })?;
        let is_there = ready(open.lock_stored(Mode::Blocking, tx, key))?.is_some();
        if is_there && ready(open.remove_if_expired(Mode::Blocking, tx, key))? {
            removed += 1;
        }
    }
    Ok(removed)
}
