//! Drumlin's logs.

use std::path::Path;

use drumlin::logs::{Logs, LogsOptions};

use super::{LogPeer, LogStore, Pending};
use crate::engine::Result;

pub(super) const LOGS: LogPeer = LogPeer { name: "drumlin", reads: true, folder_each: false, open };

struct Store {
    logs: Logs,
}

fn open(folder: &Path, _: u64, memory_bytes: u64) -> Result<Box<dyn LogStore>> {
    Ok(Box::new(Store { logs: Logs::open(folder.join("logs"), &LogsOptions::new().memory(memory_bytes))? }))
}

impl LogStore for Store {
    fn append<'s>(&'s self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<Pending<'s>> {
        let receipt = self.logs.log(log).append(first, entries)?;
        Ok(Box::new(move || Ok(receipt.wait()?)))
    }

    fn append_relaxed(&self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<()> {
        drop(self.logs.log(log).append(first, entries)?);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        // An empty batch becomes durable with all changes before it.
        Ok(self.logs.batch().commit()?.wait()?)
    }

    fn read(&self, log: u64, first: u64, end: u64, see: &mut dyn FnMut(u64, &[u8])) -> Result<u64> {
        let mut count = 0;
        for entry in self.logs.log(log).range(first..end)? {
            let entry = entry?;
            see(entry.index(), &entry);
            count += 1;
        }
        Ok(count)
    }

    fn purge(&self, log: u64, last: u64) -> Result<()> {
        drop(self.logs.log(log).purge_to(last)?);
        Ok(())
    }

    fn syncs(&self) -> Option<u64> {
        Some(self.logs.stats().sync_count)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.logs.close()?)
    }
}
