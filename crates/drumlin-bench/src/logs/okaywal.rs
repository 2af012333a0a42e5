//! okaywal, which has one sequence of entries and finds none by an index. It only appends here.

use std::io;
use std::path::Path;

use okaywal::{Entry, EntryId, LogManager, SegmentReader, WriteAheadLog};

use super::{LogPeer, LogStore, Pending, peer};
use crate::engine::{Peer, Result};

pub(super) const LOGS: LogPeer = LogPeer { name: "okaywal", reads: false, folder_each: false, open };
pub(super) const PEER: Peer = peer("okaywal", "0.3.1", "an entry for each append, with log and index; the defaults");

/// Keeps nothing: a checkpoint ends the need for its entries.
#[derive(Debug)]
struct Forget;

impl LogManager for Forget {
    fn recover(&mut self, entry: &mut Entry<'_>) -> io::Result<()> {
        entry.read_all_chunks().map(drop)
    }

    fn checkpoint_to(&mut self, _: EntryId, _: &mut SegmentReader, _: &WriteAheadLog) -> io::Result<()> {
        Ok(())
    }
}

struct Store {
    log: WriteAheadLog,
}

fn open(folder: &Path, _: u64, _: u64) -> Result<Box<dyn LogStore>> {
    Ok(Box::new(Store { log: WriteAheadLog::recover(folder.join("okaywal"), Forget)? }))
}

impl LogStore for Store {
    fn append<'s>(&'s self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<Pending<'s>> {
        let mut writer = self.log.begin_entry()?;
        for (index, entry) in (first..).zip(entries) {
            let mut chunk = Vec::with_capacity(16 + entry.len());
            chunk.extend(log.to_le_bytes());
            chunk.extend(index.to_le_bytes());
            chunk.extend(entry);
            writer.write_chunk(&chunk)?;
        }
        // The writer may not cross threads, but it is used on the one that has begun it.
        Ok(Box::new(move || writer.commit().map(drop).map_err(Into::into)))
    }

    fn append_relaxed(&self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<()> {
        self.append(log, first, entries)?()
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn read(&self, _: u64, _: u64, _: u64, _: &mut dyn FnMut(u64, &[u8])) -> Result<u64> {
        Err("it finds no entry by an index".into())
    }

    fn purge(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.log.shutdown()?)
    }
}
