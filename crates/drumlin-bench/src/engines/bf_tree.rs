//! Bf-Tree.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bf_tree::{BfTree, Config, LeafInsertResult, LeafReadResult, ScanReturnField, StorageBackend, WalConfig};

use crate::engine::{Capabilities, Durability, Engine, Key, Peer, Result, Row, Session, Settings, missing_row};

pub(super) const PEER: Peer = Peer {
    name: "bf-tree",
    version: "0.5.7",
    settings: "half of the budget, as a power of two, is its circular buffer; durable is its log, which it writes every \
               millisecond without a sync and cannot replay yet; it opens again from a snapshot made at close; an update \
               is a read and an insert under a lock of this benchmark",
    capabilities: Capabilities {
        one_writer: false,
        multi_get: false,
        transactions: false,
        atomic_batches: false,
        recovers: false,
        inserts_only: false,
        two_phases: false,
        tables: false,
        range_deletes: false,
        large_transactions: false,
    },
    open,
    restore: None,
};

/// The maximum size of a record, larger than any record in this benchmark. Buffers for scans and reads have twice this
/// size.
const RECORD_BYTES_MAX: usize = 1952;
/// The number of locks that make updates atomic. Bf-Tree has no atomic updates of its own.
const LOCK_COUNT: usize = 256;

struct Tree {
    tree: BfTree,
    folder: PathBuf,
    locks: Vec<Mutex<()>>,
}

fn snapshot_path(folder: &Path) -> PathBuf {
    folder.join("snapshot.bftree")
}

fn open(folder: &Path, settings: &Settings) -> Result<Box<dyn Engine>> {
    // Use the largest power of two that is at most half of the budget, because inner nodes and the mapping table need
    // memory too.
    let buffer_bytes = 1usize << (usize::try_from(settings.memory_bytes)? / 2).ilog2();
    let log = (settings.durability == Durability::Full).then(|| {
        let mut log = WalConfig::new(folder.join("log.bftree"));
        log.segment_size(64 << 10);
        Arc::new(log)
    });
    let path = snapshot_path(folder);
    let tree = if path.exists() {
        BfTree::new_from_cpr_snapshot(&path, true, None, Some(buffer_bytes), log)
    } else {
        let mut config = Config::new(folder.join("rows.bftree"), buffer_bytes);
        config.storage_backend(StorageBackend::Std).use_snapshot(true);
        config.cb_min_record_size(16).cb_max_record_size(RECORD_BYTES_MAX);
        if let Some(log) = log {
            config.enable_write_ahead_log(log);
        }
        BfTree::with_config(config, None)
    };
    let tree = tree.map_err(|error| format!("{error:?}"))?;
    let locks = (0..LOCK_COUNT).map(|_| Mutex::new(())).collect();
    Ok(Box::new(Tree { tree, folder: folder.to_owned(), locks }))
}

impl Engine for Tree {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Access { tree: self, buffer: vec![0; RECORD_BYTES_MAX * 2] }))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        // While the tree is open, the new snapshot must not replace the file from which the tree was restored.
        let (next, path) = (self.folder.join("next.bftree"), snapshot_path(&self.folder));
        self.tree.cpr_snapshot(&next);
        drop(self.tree);
        std::fs::rename(next, path)?;
        let _ = std::fs::remove_file(self.folder.join("rows.bftree"));
        Ok(())
    }
}

struct Access<'e> {
    tree: &'e Tree,
    buffer: Vec<u8>,
}

impl Access<'_> {
    fn read(&mut self, key: Key) -> Result<Option<&[u8]>> {
        match self.tree.tree.read(&key, &mut self.buffer) {
            LeafReadResult::Found(bytes) => Ok(Some(&self.buffer[..bytes as usize])),
            LeafReadResult::NotFound | LeafReadResult::Deleted => Ok(None),
            other => Err(format!("a read returned {other:?}").into()),
        }
    }

    fn insert(&self, key: Key, value: &[u8]) -> Result<()> {
        match self.tree.tree.insert(&key, value) {
            LeafInsertResult::Success => Ok(()),
            LeafInsertResult::InvalidKV(why) => Err(why.into()),
        }
    }
}

impl Session for Access<'_> {
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.read(key)?;
        if let Some(value) = found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let rows = self.tree.tree.scan_with_count(&first, limit, ScanReturnField::KeyAndValue);
        let mut rows = rows.map_err(|error| format!("{error:?}"))?;
        let mut count = 0;
        while let Some((key_bytes, value_bytes)) = rows.next(&mut self.buffer) {
            let (key, rest) = self.buffer.split_at(key_bytes);
            see(key, &rest[..value_bytes]);
            count += 1;
        }
        Ok(count)
    }

    fn count(&mut self, first: Key, end: Key) -> Result<u64> {
        let rows = self.tree.tree.scan_with_end_key(&first, &end, ScanReturnField::Key);
        let mut rows = rows.map_err(|error| format!("{error:?}"))?;
        let mut count = 0;
        while let Some((key_bytes, _)) = rows.next(&mut self.buffer) {
            // The scan may also return the row at `end`.
            count += u64::from(self.buffer[..key_bytes] < end[..]);
        }
        Ok(count)
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        rows.iter().try_for_each(|(key, value)| self.insert(*key, value))
    }

    fn update(&mut self, key: Key, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()> {
        let tree = self.tree;
        let _lock = tree.locks[usize::from(key[7])].lock().expect("no call panics");
        let value = change(self.read(key)?.ok_or_else(|| missing_row(key))?);
        self.insert(key, &value)
    }
}
