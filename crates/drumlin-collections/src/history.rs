//! The rows of past versions of documents.
//!
//! Each version is a row of the keyspace `NAME/history`. The row's key is the encoded key of the document, followed by
//! the version number as a big-endian `u64`. The row's value is the encoded time of the write, followed by a byte 1 and
//! the document's row as written, or by a byte 0 if the document was removed. Numbers start at 1. Only the oldest
//! versions are ever removed, so there are no gaps between the remaining numbers. Times never decrease from one version
//! to the next.

use std::time::{Duration, SystemTime};

use drumlin::{Keyspace, Value};

use crate::encoding::Key;
use crate::error::Result;
use crate::mode::Mode;
use crate::parts::Retention;

/// A stored version of a document.
pub(crate) struct StoredVersion {
    pub(crate) number: u64,
    pub(crate) time: SystemTime,
    /// The document's row; `None` if the document was removed.
    pub(crate) document: Option<Vec<u8>>,
}

/// Decodes a row into the encoded key of the document and the version.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<(Vec<u8>, StoredVersion), String> {
    let (document_key, number) = key.split_last_chunk::<8>().ok_or("the key is too short")?;
    let mut rest = value;
    let time = SystemTime::decode_from(&mut rest).map_err(|error| error.to_string())?;
    let document = match rest.split_first() {
        Some((0, [])) => None,
        Some((1, row)) => Some(row.to_vec()),
        _ => return Err("the row holds neither a document nor a removal".to_owned()),
    };
    Ok((document_key.to_vec(), StoredVersion { number: u64::from_be_bytes(*number), time, document }))
}

fn encode(key: &[u8], version: &StoredVersion) -> (Vec<u8>, Vec<u8>) {
    let mut row_key = key.to_vec();
    row_key.extend_from_slice(&version.number.to_be_bytes());
    let mut value = version.time.encode();
    match &version.document {
        None => value.push(0),
        Some(row) => {
            value.push(1);
            value.extend_from_slice(row);
        }
    }
    (row_key, value)
}

/// A change to a document, before it is recorded in the history.
pub(crate) struct Change<'c> {
    pub(crate) key: &'c [u8],
    /// The document's row before the change; `None` if the document did not exist.
    pub(crate) before: Option<&'c [u8]>,
    pub(crate) after: Option<&'c [u8]>,
    pub(crate) now: SystemTime,
}

/// Records a change, and removes the versions that are past their retention. The document may have been written while
/// the collection kept no history. In that case, first records the document's old row as a separate version, with the
/// time of this change.
pub(crate) async fn record(
    mode: Mode,
    tx: &mut drumlin::Transaction,
    history: &Keyspace,
    retention: Retention,
    change: &Change<'_>,
) -> Result<(), RecordError> {
    let newest = mode.next_back(&mut tx.prefix(history, change.key)).await.transpose()?;
    let newest = newest.map(|(key, value)| decoded(&key, &value)).transpose()?;
    let mut number = newest.as_ref().map_or(0, |version| version.number);
    let now = newest.as_ref().map_or(change.now, |version| version.time.max(change.now));
    let is_known = newest.and_then(|version| version.document).as_deref() == change.before;
    let unrecorded = (!is_known).then_some(change.before);
    for document in unrecorded.into_iter().chain([change.after]) {
        number += 1;
        let version = StoredVersion { number, time: now, document: document.map(<[u8]>::to_vec) };
        let (key, value) = encode(change.key, &version);
        mode.insert(tx, history, &key, &value).await?;
    }
    give_up(mode, tx, history, retention, change.key, (number, now)).await
}

/// An error of the database, or an invalid version row.
pub(crate) enum RecordError {
    Store(drumlin::Error),
    Row(Vec<u8>, String),
}

impl From<drumlin::Error> for RecordError {
    fn from(error: drumlin::Error) -> RecordError {
        RecordError::Store(error)
    }
}

fn decoded(key: &Value, value: &Value) -> Result<StoredVersion, RecordError> {
    decode(key, value).map(|(_, version)| version).map_err(|reason| RecordError::Row(key.to_vec(), reason))
}

/// Removes the oldest versions that are past their retention. The age of a version counts from the time of its
/// successor, because it was the newest version until then.
async fn give_up(
    mode: Mode,
    tx: &mut drumlin::Transaction,
    history: &Keyspace,
    retention: Retention,
    key: &[u8],
    (newest, now): (u64, SystemTime),
) -> Result<(), RecordError> {
    if retention == Retention::FOREVER {
        return Ok(());
    }
    let oldest_kept = newest.saturating_sub(retention.versions);
    let is_old = |time: SystemTime| now.duration_since(time).unwrap_or(Duration::ZERO) > retention.age;
    let mut rows = tx.prefix(history, key);
    let mut given_up = Vec::new();
    let mut previous: Option<(Vec<u8>, u64)> = None;
    while let Some(row) = mode.next(&mut rows).await {
        let (row_key, value) = row?;
        let version = decoded(&row_key, &value)?;
        if let Some((previous_key, number)) = previous.replace((row_key.to_vec(), version.number)) {
            if number > oldest_kept && !is_old(version.time) {
                break;
            }
            given_up.push(previous_key);
        }
    }
    drop(rows);
    for row_key in given_up {
        mode.remove(tx, history, &row_key).await?;
    }
    Ok(())
}
