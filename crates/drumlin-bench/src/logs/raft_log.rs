//! raft-log, with one folder for each log.

use std::io;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use raft_log::api::raft_log_writer::RaftLogWriter;
use raft_log::{Config, RaftLog, Types};

use super::{LogPeer, LogStore, Pending, peer};
use crate::engine::{Peer, Result};

pub(super) const LOGS: LogPeer = LogPeer { name: "raft-log", reads: true, folder_each: true, open };
pub(super) const PEER: Peer =
    peer("raft-log", "0.4.6", "flush(true); a folder for each log; the budget is its cache, divided among the logs");

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Named;

impl Types for Named {
    type LogId = (u64, u64);
    // It has no bytes as they are: a payload is a string.
    type LogPayload = String;
    type Vote = (u64, u64);
    type UserData = String;
    type Callback = SyncSender<io::Result<()>>;

    fn log_index(log_id: &(u64, u64)) -> u64 {
        log_id.1
    }

    fn payload_size(payload: &String) -> u64 {
        payload.len() as u64
    }
}

struct Store {
    logs: Vec<Mutex<RaftLog<Named>>>,
}

fn open(folder: &Path, logs: u64, memory_bytes: u64) -> Result<Box<dyn LogStore>> {
    let log = |number: u64| -> Result<Mutex<RaftLog<Named>>> {
        let path = folder.join(format!("log-{number}"));
        std::fs::create_dir_all(&path)?;
        let mut config = Config::new(path.display());
        config.log_cache_capacity = Some((memory_bytes / logs) as usize);
        Ok(Mutex::new(RaftLog::open(Arc::new(config))?))
    };
    Ok(Box::new(Store { logs: (0..logs).map(log).collect::<Result<_>>()? }))
}

impl Store {
    fn add(&self, log: u64, first: u64, entries: &[Vec<u8>], done: Option<SyncSender<io::Result<()>>>) -> Result<()> {
        let mut log = self.logs[log as usize].lock().expect("no appender panics");
        let text = |entry: &Vec<u8>| entry.iter().map(|byte| char::from(byte & 0x7F)).collect::<String>();
        log.append((first..).zip(entries).map(|(index, entry)| ((1, index), text(entry))))?;
        if done.is_some() {
            log.flush(true, done)?;
        }
        Ok(())
    }
}

impl LogStore for Store {
    fn append<'s>(&'s self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<Pending<'s>> {
        let (done, answer) = sync_channel(1);
        self.add(log, first, entries, Some(done))?;
        Ok(Box::new(move || Ok(answer.recv()??)))
    }

    fn append_relaxed(&self, log: u64, first: u64, entries: &[Vec<u8>]) -> Result<()> {
        self.add(log, first, entries, None)
    }

    fn sync(&self) -> Result<()> {
        for log in &self.logs {
            let (done, answer) = sync_channel(1);
            log.lock().expect("no appender panics").flush(true, Some(done))?;
            answer.recv()??;
        }
        Ok(())
    }

    fn read(&self, log: u64, first: u64, end: u64, see: &mut dyn FnMut(u64, &[u8])) -> Result<u64> {
        let log = self.logs[log as usize].lock().expect("no appender panics");
        let mut count = 0;
        for entry in log.read(first, end) {
            let ((_, index), payload) = entry?;
            see(index, payload.as_bytes());
            count += 1;
        }
        Ok(count)
    }

    fn purge(&self, log: u64, last: u64) -> Result<()> {
        self.logs[log as usize].lock().expect("no appender panics").purge((1, last))?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}
