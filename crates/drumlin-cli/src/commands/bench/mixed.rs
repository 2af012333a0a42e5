//! `drumlin bench mixed`: of every hundred operations, `--read-percent` read a row and the rest overwrite one, each in
//! a transaction of its own. They run on `--threads` threads or, with `--async`, as that many tasks on one thread.
//! Reads and commits share the device, so no single limit applies.

use std::time::Duration;

use drumlin::{BackupOptions, Error, Keyspace};

use super::data::{Random, key};
use super::get::Getter;
use super::load;
use super::measure::{TURNS, Task, Turns, Worker, measure, measure_tasks};
use super::report::{Backup, Facts, Report};
use super::target::Target;
use crate::failure::Result;
use crate::process;

struct Mixer {
    getter: Getter,
    keyspace: Keyspace,
    durability: drumlin::Durability,
    random: Random,
    read_percent: u32,
    value: Vec<u8>,
}

impl Worker for Mixer {
    fn call(&mut self) -> drumlin::Result<u64> {
        if self.random.percent(self.read_percent) {
            return Worker::call(&mut self.getter);
        }
        self.random.fill(&mut self.value);
        let key = key(self.random.row());
        // If two threads try to write the same row, the later one retries, as any caller would.
        loop {
            match self.keyspace.insert_with(key, &self.value, self.durability) {
                Err(Error::Conflict { .. } | Error::LockTimeout { .. }) => {}
                done => return done.map(|()| 1),
            }
        }
    }
}

impl Task for Mixer {
    async fn call(&mut self) -> drumlin::Result<u64> {
        if self.random.percent(self.read_percent) {
            return Task::call(&mut self.getter).await;
        }
        self.random.fill(&mut self.value);
        let key = key(self.random.row());
        loop {
            match self.keyspace.insert_with_async(key, &self.value, self.durability).await {
                Err(Error::Conflict { .. } | Error::LockTimeout { .. }) => {}
                done => return done.map(|()| 1),
            }
        }
    }
}

pub(super) fn run(target: &mut Target<'_>) -> Result<Report> {
    load::ensure_rows(target)?;
    let keyspace = target.rows()?;
    let mixers = |turn: u64| {
        (0..target.threads())
            .map(|thread| {
                let seed = turn * 4096 + thread;
                Mixer {
                    getter: Getter::new(target, &keyspace, seed, 1),
                    keyspace: keyspace.clone(),
                    durability: target.options.durability.into(),
                    random: Random::new(!seed, target.about.keys, target.options.distribution),
                    read_percent: target.options.read_percent,
                    value: vec![0; target.about.value_size as usize],
                }
            })
            .collect::<Vec<_>>()
    };
    let is_async = target.options.is_async;
    let measure = |turn: u64, limit: Duration| {
        if is_async {
            measure_tasks(vec![mixers(turn)], Some(limit), || target.stats())
        } else {
            measure(mixers(turn), Some(limit), || target.stats())
        }
    };
    // The snapshot keeps the versions that it needs until they exceed their share of memory.
    let _held = target.options.hold_snapshot.then(|| target.database().snapshot());
    let slice = target.options.seconds / TURNS;
    measure(0, slice / 2)?;
    process::reset_resident_bytes_max();
    let (turns, backup) = std::thread::scope(|scope| -> Result<_> {
        let (database, folder) = (target.database(), target.options.backup.as_ref());
        let backing_up = folder.map(|folder| scope.spawn(move || database.backup_to(folder, &BackupOptions::new())));
        let mut turns = Turns::new();
        for turn in 1..=u64::from(TURNS) {
            turns.add(measure(turn, slice)?, None);
        }
        let backup = backing_up.map(|thread| thread.join().expect("the thread of the backup panicked"));
        Ok((turns, backup.transpose()?))
    })?;
    let facts = Facts {
        name: "mixed",
        unit: "operations",
        call: "an operation".to_owned(),
        batch: 1,
        data_bytes: target.about.data_bytes(),
        limit: None,
    };
    let mut report = Report::new(target, &turns, facts);
    report.backup = backup.map(Backup::from);
    Ok(report)
}
