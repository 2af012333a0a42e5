//! raft-engine, the log of TiKV.

use std::path::Path;

use protobuf::well_known_types::BytesValue;
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};

use super::{LogPeer, LogStore, Pending, peer};
use crate::engine::{Peer, Result};

pub(super) const LOGS: LogPeer = LogPeer { name: "raft-engine", reads: true, folder_each: false, open };
pub(super) const PEER: Peer =
    peer("raft-engine", "0.4.2", "write(batch, sync), no compression; one append of a log at a time");

/// Bytes of the index before an entry. The store asks its messages for their indexes.
const INDEX_BYTES: usize = 8;

#[derive(Clone)]
struct Indexed;

impl MessageExt for Indexed {
    type Entry = BytesValue;

    fn index(entry: &BytesValue) -> u64 {
        u64::from_le_bytes(entry.value[..INDEX_BYTES].try_into().expect("eight bytes"))
    }
}

struct Store {
    engine: Engine,
}

fn open(folder: &Path, _: u64, _: u64) -> Result<Box<dyn LogStore>> {
    let config = Config {
        dir: folder.join("raft-engine").display().to_string(),
        // Entries are given as they are to be stored.
        batch_compression_threshold: ReadableSize(0),
        purge_threshold: ReadableSize::mb(256),
        ..Config::default()
    };
    Ok(Box::new(Store { engine: Engine::open(config)? }))
}

impl Store {
    fn write(&self, log: u64, first: u64, entries: &[Vec<u8>], sync: bool) -> Result<()> {
        let message = |(index, entry): (u64, &Vec<u8>)| {
            let mut message = BytesValue::new();
            message.value.reserve_exact(INDEX_BYTES + entry.len());
            message.value.extend(index.to_le_bytes());
            message.value.extend(entry);
            message
        };
        let messages: Vec<BytesValue> = (first..).zip(entries).map(message).collect();
        let mut batch = LogBatch::with_capacity(1);
        batch.add_entries::<Indexed>(log + 1, &messages)?;
        self.engine.write(&mut batch, sync)?;
        Ok(())
    }
}

impl LogStore for Store {
    fn append<'s>(&'s self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<Pending<'s>> {
        self.write(log, first, entries, true)?;
        Ok(Box::new(|| Ok(())))
    }

    fn append_relaxed(&self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<()> {
        self.write(log, first, entries, false)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.engine.sync()?)
    }

    fn read(&self, log: u64, first: u64, end: u64, see: &mut dyn FnMut(u64, &[u8])) -> Result<u64> {
        const READ_COUNT: u64 = 4096;
        let (mut entries, mut count) = (Vec::new(), 0);
        let mut next = first;
        while next < end {
            entries.clear();
            let to = end.min(next + READ_COUNT);
            self.engine.fetch_entries_to::<Indexed>(log + 1, next, to, None, &mut entries)?;
            for (index, entry) in (next..).zip(&entries) {
                see(index, &entry.value[INDEX_BYTES..]);
            }
            count += entries.len() as u64;
            next = to;
        }
        Ok(count)
    }

    fn purge(&self, log: u64, last: u64) -> Result<()> {
        self.engine.compact_to(log + 1, last + 1);
        self.engine.purge_expired_files()?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
