//! Nebari, only for S2's insert workload.

use std::path::Path;

use nebari::io::fs::StdFile;
use nebari::tree::{Root, Unversioned};
use nebari::{Config, Tree};

use crate::engine::{Capabilities, Durability, Engine, Failure, Key, Peer, Result, Row, Session, Settings};

pub(super) const PEER: Peer = Peer {
    name: "nebari",
    version: "0.5.5",
    settings: "an unversioned tree; its defaults",
    capabilities: Capabilities {
        one_writer: true,
        multi_get: false,
        transactions: true,
        atomic_batches: true,
        recovers: true,
        inserts_only: true,
        two_phases: false,
        tables: false,
        range_deletes: false,
        large_transactions: false,
    },
    open,
    restore: None,
};

struct Nebari {
    tree: Tree<Unversioned, StdFile>,
}

fn open(folder: &Path, settings: &Settings) -> Result<Box<dyn Engine>> {
    if settings.durability != Durability::Full {
        return Err("it has durable commits only".into());
    }
    let roots = Config::default_for(folder.join("nebari")).open()?;
    Ok(Box::new(Nebari { tree: roots.tree(Unversioned::tree("rows"))? }))
}

impl Engine for Nebari {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Access(self)))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Access<'e>(&'e Nebari);

fn unsupported() -> Failure {
    "it takes part in the durable insert only".into()
}

impl Session for Access<'_> {
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.0.tree.get(&key)?;
        if let Some(value) = &found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, _: Key, _: u64, _: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        Err(unsupported())
    }

    fn count(&mut self, _: Key, _: Key) -> Result<u64> {
        Err(unsupported())
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        let [(key, value)] = rows else { return Err(unsupported()) };
        Ok(self.0.tree.set(key.to_vec(), value.clone())?)
    }

    fn update(&mut self, _: Key, _: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()> {
        Err(unsupported())
    }
}
