//! Drumlin.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drumlin::{BackupOptions, Config, Database, Keyspace, KeyspaceOptions, Snapshot};

use crate::engine::{
    Backups, Capabilities, Changes, Durability, Engine, HeldSnapshot, Key, Order, Peer, Result, Row, Session, Settings,
    Source, Tables, missing_row,
};
use crate::measure::processor_time;

pub(super) const PEER: Peer = Peer {
    name: "drumlin",
    version: env!("CARGO_PKG_VERSION"),
    settings: "the defaults; memory: the budget; bulk loads are its own, sorted or not",
    capabilities: Capabilities {
        one_writer: false,
        multi_get: true,
        transactions: true,
        atomic_batches: true,
        recovers: true,
        inserts_only: false,
        two_phases: true,
        tables: true,
        range_deletes: true,
        large_transactions: true,
    },
    open,
    restore: Some(restore),
};

/// Drumlin with larger pages, for finding the best page size.
pub(super) const PEER_OF_8_KIB: Peer = Peer {
    name: "drumlin-8k",
    settings: "like drumlin, with pages of 8 KiB in place of 4",
    open: |folder, settings| open_with(folder, settings, 8 << 10),
    ..PEER
};
pub(super) const PEER_OF_16_KIB: Peer = Peer {
    name: "drumlin-16k",
    settings: "like drumlin, with pages of 16 KiB in place of 4",
    open: |folder, settings| open_with(folder, settings, 16 << 10),
    ..PEER
};

struct Drumlin {
    db: Database,
    rows: Keyspace,
}

fn open(folder: &Path, settings: &Settings) -> Result<Box<dyn Engine>> {
    open_with(folder, settings, 4 << 10)
}

fn open_with(folder: &Path, settings: &Settings, page_bytes: usize) -> Result<Box<dyn Engine>> {
    let db = config(settings).page_bytes(page_bytes).open(folder.join("drumlin"))?;
    let rows = db.keyspace("rows")?;
    Ok(Box::new(Drumlin { db, rows }))
}

pub(crate) fn config(settings: &Settings) -> Config {
    let durability = match settings.durability {
        Durability::Full => drumlin::Durability::Full,
        Durability::Relaxed => drumlin::Durability::Relaxed,
    };
    Config::new().memory(settings.memory_bytes).durability(durability)
}

/// Returns the folders of the backups in a folder, oldest first.
fn backups_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    found.sort_unstable();
    Ok(found)
}

fn restore(backups: &Path, target: &Path) -> Result<()> {
    Config::new().restore(backups_in(backups)?, target.join("drumlin"))?;
    Ok(())
}

impl Backups for Drumlin {
    fn back_up(&self, folder: &Path) -> Result<()> {
        let earlier = backups_in(folder)?.len();
        let name = |number: usize| format!("backup-{number:06}");
        if earlier == 0 {
            // It may be left of a backup in another folder.
            for kept in self.db.kept_snapshots() {
                self.db.drop_snapshot(&kept.name)?;
            }
        }
        let mut options = BackupOptions::new().keep(&name(earlier));
        if let Some(base) = earlier.checked_sub(1) {
            options = options.since(&name(base));
        }
        self.db.backup_to(folder.join(name(earlier)), &options)?;
        Ok(())
    }
}

impl Engine for Drumlin {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Access { db: &self.db, rows: self.rows.clone(), value: Vec::new() }))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.sync()?)
    }

    fn bulk_load(&self, rows: &mut dyn Source, _order: Order) -> Result<()> {
        let mut load = self.db.bulk_load(&self.rows.name())?;
        while let Some((key, value)) = rows.next() {
            load.insert(key, value)?;
        }
        load.finish()?;
        Ok(())
    }

    fn hold(&self) -> Result<Option<Box<dyn HeldSnapshot + '_>>> {
        Ok(Some(Box::new(Held { snapshot: self.db.snapshot(), rows: &self.rows })))
    }

    fn tables(&self) -> Option<&dyn Tables> {
        Some(self)
    }

    fn backups(&self) -> Option<&dyn Backups> {
        Some(self)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.close()?)
    }
}

impl Tables for Drumlin {
    fn create(&self, names: &[String], rows: &[Row]) -> Result<()> {
        let create = |step: drumlin::Alteration, name: &String| step.create(name, KeyspaceOptions::new());
        names.iter().fold(self.db.alter(), create).commit()?;
        for name in names {
            self.write(name, rows)?;
        }
        Ok(())
    }

    fn get(&self, name: &str, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.db.existing_keyspace(name)?.get(key)?;
        Ok(value.map(|value| see(&value)).is_some())
    }

    fn write(&self, name: &str, rows: &[Row]) -> Result<()> {
        let table = self.db.existing_keyspace(name)?;
        Access { db: &self.db, rows: table, value: Vec::new() }.write(rows)
    }

    fn drop_rows(&self) -> Result<()> {
        Ok(self.db.drop_keyspace(&self.rows.name())?)
    }
}

struct Held<'e> {
    snapshot: Snapshot,
    rows: &'e Keyspace,
}

impl HeldSnapshot for Held<'_> {
    fn scan(&mut self, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut count = 0;
        let _: ControlFlow<()> = self.snapshot.iter(self.rows).for_each_row(|key, value| {
            see(key, value);
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }
}

struct Access<'e> {
    db: &'e Database,
    rows: Keyspace,
    /// The value that the last get returned.
    value: Vec<u8>,
}

impl Session for Access<'_> {
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.rows.get_into(key, &mut self.value)?;
        if found {
            see(&self.value);
        }
        Ok(found)
    }

    fn get_many(&mut self, keys: &[Key], see: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let mut count = 0;
        for (index, value) in self.rows.get_many(keys)?.into_iter().enumerate() {
            if let Some(value) = value {
                see(index, &value);
                count += 1;
            }
        }
        Ok(count)
    }

    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut count = 0;
        if limit > 0 {
            let _ = self.rows.range(&first[..]..).for_each_row(|key, value| {
                see(key, value);
                count += 1;
                if count < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
        }
        Ok(count)
    }

    fn count(&mut self, first: Key, end: Key) -> Result<u64> {
        Ok(self.rows.count(&first[..]..&end[..])?)
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        if let [(key, value)] = rows {
            return Ok(self.rows.insert(key, value)?);
        }
        let mut batch = self.db.batch()?;
        for (key, value) in rows {
            batch.insert(&self.rows, key, value)?;
        }
        batch.commit()?;
        Ok(())
    }

    fn write_in_two_phases(&mut self, id: &[u8], rows: &[Row]) -> Result<()> {
        let mut transaction = self.db.begin()?;
        for (key, value) in rows {
            transaction.insert(&self.rows, key, value)?;
        }
        transaction.prepare(id)?;
        self.db.commit_prepared_with(id, drumlin::Durability::Relaxed)?;
        Ok(())
    }

    fn time_commit_step(&mut self, id: &[u8], rows: &[Row]) -> Result<Duration> {
        let mut transaction = self.db.begin()?;
        for (key, value) in rows {
            transaction.insert(&self.rows, key, value)?;
        }
        transaction.prepare(id)?;
        let ready = self.db.ready_prepared(id)?;
        let begun = processor_time();
        ready.commit()?;
        Ok(processor_time().saturating_sub(begun))
    }

    fn remove_range(&mut self, first: Key, end: Key) -> Result<()> {
        Ok(self.rows.remove_range(&first[..]..&end[..])?)
    }

    fn change_at_once(&mut self, changes: &mut dyn Changes) -> Result<()> {
        let mut transaction = self.db.begin()?;
        while let Some((key, value)) = changes.next() {
            match value {
                Some(value) => transaction.insert(&self.rows, key, value)?,
                None => transaction.remove(&self.rows, key)?,
            }
        }
        transaction.commit()?;
        Ok(())
    }

    fn update(&mut self, key: Key, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()> {
        let after = self.rows.update(key, |before| before.map(change))?;
        after.map(drop).ok_or_else(|| missing_row(key))
    }
}
