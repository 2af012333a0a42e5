//! Making records: a batch of changes, and the entries of an append.

use std::sync::Arc;

use super::opening::Opening;
use super::receipt::Receipt;
use super::shared::{Pin, Shared, Wait};
use crate::error::{Error, Result};
use crate::format::logs::{
    CHANGE_BYTES_MAX, ENTRY_HEADER_BYTES, EntryPart, PART_BYTES, encode_append, encode_entry, encode_purge,
    encode_remove, encode_set, encode_truncate, entry_seed,
};
use crate::seglog::{Body, Claim};
use crate::task::{ready, turn};

/// The content of an entry in a record.
enum Content<'e> {
    Inline(&'e [u8]),
    InParts(Vec<EntryPart>),
}

impl Content<'_> {
    fn encode(&self, body: &mut Vec<u8>, seed: u64) {
        match self {
            Content::Inline(entry) => encode_entry(body, entry, false, seed),
            Content::InParts(parts) => {
                let mut payload = Vec::with_capacity(parts.len() * PART_BYTES);
                parts.iter().for_each(|part| part.encode(&mut payload));
                encode_entry(body, &payload, true, seed);
            }
        }
    }
}

impl Shared {
    fn is_inline(&self, entry: &[u8]) -> bool {
        entry.len() <= self.sizes.inline_bytes_max
    }

    /// Returns the bytes that an entry takes in a record.
    fn encoded_bytes(&self, entry: &[u8]) -> usize {
        let payload_bytes = match self.is_inline(entry) {
            true => entry.len(),
            false => entry.len().div_ceil(self.sizes.part_bytes_max) * PART_BYTES,
        };
        ENTRY_HEADER_BYTES + payload_bytes
    }

    /// Appends the parts of an entry, if it is too large for a record.
    async fn prepare<'e>(self: &Arc<Self>, log: u64, index: u64, entry: &'e [u8], wait: Wait) -> Result<Content<'e>> {
        if self.is_inline(entry) {
            return Ok(Content::Inline(entry));
        }
        let mut parts = Vec::new();
        for (number, content) in entry.chunks(self.sizes.part_bytes_max).enumerate() {
            let (body, checksum) = self.encode_part(log, index, number, content);
            let reservation = self.reserve(body.len(), Claim::Ordinary, wait).await?;
            parts.push(self.append_part(reservation, body, checksum)?);
        }
        Ok(Content::InParts(parts))
    }

    /// Appends entries, in as many records as they need.
    pub(super) async fn append<E: AsRef<[u8]>>(
        self: &Arc<Self>,
        log: u64,
        first: u64,
        entries: &[E],
        wait: Wait,
    ) -> Result<crate::format::Timestamp> {
        self.check_open()?;
        entries.iter().try_for_each(|entry| self.check_entry(log, entry.as_ref()))?;
        if first.checked_add(entries.len() as u64).is_none() {
            return Err(Error::Invalid("the indexes of a log end before the largest number".into()));
        }
        self.check_append(log, first, entries.len())?;
        let mut timestamp = self.stream.last();
        let mut done = 0;
        while done < entries.len() {
            // As many entries as a record takes.
            let mut bytes = CHANGE_BYTES_MAX;
            let fits = |entry: &&E| {
                bytes += self.encoded_bytes(entry.as_ref());
                bytes <= self.body_bytes_max()
            };
            let count = entries[done..].iter().take_while(fits).count();
            assert!(count > 0, "an entry fits in no record");
            let batch = &entries[done..done + count];
            // Only parts need a pin.
            let pin = batch.iter().any(|entry| !self.is_inline(entry.as_ref())).then(|| Pin::new(self));
            let first = first + done as u64;
            let mut body = Vec::with_capacity(bytes.min(self.body_bytes_max()));
            encode_append(&mut body, log, first, count as u32);
            for (index, entry) in (first..).zip(batch) {
                let content = self.prepare(log, index, entry.as_ref(), wait).await?;
                content.encode(&mut body, entry_seed(self.identity, log, index));
            }
            timestamp = self.commit(Body::new(body), Claim::Ordinary, wait).await?;
            drop(pin);
            done += count;
            self.maintain_if_due(wait).await;
        }
        Ok(timestamp)
    }
}

/// A change in a batch.
#[derive(Debug)]
enum Change {
    Append { log: u64, first: u64, entries: Vec<Box<[u8]>> },
    Truncate { log: u64, from: u64 },
    Purge { log: u64, to: u64 },
    Set { log: u64, name: String, value: Option<Vec<u8>> },
    Remove { log: u64 },
}

/// Changes of several logs in one record: all of them are made, or none. Made by [`Logs::batch`](super::Logs::batch).
///
/// Each call adds a change to the batch. [`commit`](Batch::commit) checks all of them and makes them in this order. A
/// batch may have as many bytes as fit in a record: about a sixteenth of the memory, and 4 MiB at most. Of an entry
/// over 64 KiB, only a reference counts.
///
/// ```
/// use drumlin::logs::{Logs, LogsOptions};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-logs-batch-{}", std::process::id()));
/// # let logs = Logs::open(&folder, &LogsOptions::new())?;
/// let mut batch = logs.batch();
/// batch.append(7, 1, &["one", "two"]);
/// batch.set(8, "vote", "node 3");
/// batch.commit()?.wait()?;
/// assert_eq!(logs.numbers(), [7, 8]);
/// # logs.close()?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Debug)]
pub struct Batch {
    opening: Arc<Opening>,
    changes: Vec<Change>,
}

impl Batch {
    pub(super) fn new(opening: &Arc<Opening>) -> Batch {
        Batch { opening: Arc::clone(opening), changes: Vec::new() }
    }

    /// Adds entries, with the indexes from `first` on. See [`Log::append`](super::Log::append).
    pub fn append<E: AsRef<[u8]>>(&mut self, log: u64, first: u64, entries: &[E]) {
        let entries = entries.iter().map(|entry| entry.as_ref().into()).collect();
        self.changes.push(Change::Append { log, first, entries });
    }

    /// Cuts off the entries after `last`. See [`Log::truncate_after`](super::Log::truncate_after).
    pub fn truncate_after(&mut self, log: u64, last: impl Into<Option<u64>>) {
        let from = last.into().map_or(0, |last: u64| last.saturating_add(1));
        self.changes.push(Change::Truncate { log, from });
    }

    /// Forgets the entries up to `last`. See [`Log::purge_to`](super::Log::purge_to).
    pub fn purge_to(&mut self, log: u64, last: u64) {
        self.changes.push(Change::Purge { log, to: last });
    }

    /// Sets a named value. See [`Log::set`](super::Log::set).
    pub fn set(&mut self, log: u64, name: &str, value: impl AsRef<[u8]>) {
        self.changes.push(Change::Set { log, name: name.to_owned(), value: Some(value.as_ref().to_vec()) });
    }

    /// Removes a named value.
    pub fn unset(&mut self, log: u64, name: &str) {
        self.changes.push(Change::Set { log, name: name.to_owned(), value: None });
    }

    /// Ends a log. See [`Logs::remove`](super::Logs::remove).
    pub fn remove(&mut self, log: u64) {
        self.changes.push(Change::Remove { log });
    }

    /// Makes the changes. They can be read when this returns, and are durable when the receipt is answered.
    ///
    /// # Errors
    /// Those of the changes, as of calls of their own, and [`Error::LogEntryTooLarge`] for a batch that is too large.
    /// If there is an error, nothing is changed.
    pub fn commit(self) -> Result<Receipt> {
        ready(self.commit_in(Wait::Thread))
    }

    /// Like [`commit`](Batch::commit), for a task. If the future is dropped, the batch is committed as a whole or not
    /// at all.
    ///
    /// # Errors
    /// Those of [`commit`](Batch::commit).
    pub async fn commit_async(self) -> Result<Receipt> {
        turn::Work::call().await;
        self.commit_in(Wait::Task).await
    }

    async fn commit_in(self, wait: Wait) -> Result<Receipt> {
        let shared = &self.opening.shared;
        shared.check_open()?;
        let mut body = Vec::new();
        let mut claim = Claim::Urgent;
        // Only parts need a pin.
        let has_parts = |change: &Change| matches!(change, Change::Append { entries, .. } if entries.iter().any(|entry| !shared.is_inline(entry)));
        let pin = self.changes.iter().any(has_parts).then(|| Pin::new(shared));
        for change in &self.changes {
            match change {
                Change::Append { log, first, entries } => {
                    claim = Claim::Ordinary;
                    entries.iter().try_for_each(|entry| shared.check_entry(*log, entry))?;
                    if first.checked_add(entries.len() as u64).is_none() {
                        return Err(Error::Invalid("the indexes of a log end before the largest number".into()));
                    }
                    if entries.is_empty() {
                        continue;
                    }
                    encode_append(&mut body, *log, *first, entries.len() as u32);
                    for (index, entry) in (*first..).zip(entries) {
                        let content = shared.prepare(*log, index, entry, wait).await?;
                        content.encode(&mut body, entry_seed(shared.identity, *log, index));
                        shared.check_size(*log, "a batch", body.len(), shared.stream.body_bytes_max())?;
                    }
                }
                Change::Truncate { log, from } => encode_truncate(&mut body, *log, *from),
                Change::Purge { log, to } => encode_purge(&mut body, *log, *to),
                Change::Set { log, name, value } => {
                    shared.check_value(*log, name, value.as_deref().unwrap_or_default())?;
                    encode_set(&mut body, *log, name, value.as_deref());
                    shared.check_size(*log, "a batch", body.len(), shared.stream.body_bytes_max())?;
                }
                Change::Remove { log } => encode_remove(&mut body, *log),
            }
        }
        let timestamp = match body.is_empty() {
            true => shared.stream.last(),
            false => shared.commit(Body::new(body), claim, wait).await?,
        };
        drop(pin);
        shared.check_open()?;
        shared.maintain_if_due(wait).await;
        Ok(Receipt::new(&self.opening, timestamp))
    }
}
