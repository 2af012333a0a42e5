//! Tests the logs on a simulated disk, against a model made of maps.

mod crash;
mod faults;
mod rules;
mod space;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use drumlin_testing::Random;

use super::*;
use crate::error::{Error, Result};
use crate::io::Backend;
use crate::io::fault::FaultyBackend;
use crate::io::sim::{self, Faults, Loss, Medium};

const DIR: &str = "/node/logs";

/// A simulated disk. Without threads, every run is the same.
struct Disk {
    disk: sim::Disk,
    faulty: FaultyBackend,
    has_threads: bool,
}

impl Disk {
    fn new(has_threads: bool) -> Disk {
        Disk::with(Medium::default(), has_threads)
    }

    fn with(medium: Medium, has_threads: bool) -> Disk {
        let disk = sim::Disk::new(medium, 7);
        let faulty = FaultyBackend::new(disk.backend());
        if !has_threads {
            faulty.refuse_threads("");
        }
        Disk { disk, faulty, has_threads }
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.faulty.clone())
    }

    fn options(&self) -> LogsOptions {
        let options = LogsOptions::new().memory(2 << 20).segment_bytes(64 << 10);
        options.recovery_target(std::time::Duration::ZERO).backend(self.backend())
    }

    fn open(&self) -> Result<Logs> {
        Logs::open(DIR, &self.options())
    }

    /// Turns the disk off, and returns it as a power cut at this moment may leave it.
    fn cut(&self, random: &mut Random) -> Disk {
        self.disk.turn_off();
        Disk::with(self.disk.medium().cut(Loss::Sectors, &mut sim::Random(random.next())), self.has_threads)
    }

    /// Turns the disk off, and returns it as the end of the process leaves it: nothing is lost.
    fn kill(&self) -> Disk {
        self.disk.turn_off();
        Disk::with(self.disk.medium(), self.has_threads)
    }

    fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.disk.set_faults(Faults { capacity_bytes, ..Faults::default() });
    }

    fn used_bytes(&self) -> u64 {
        self.disk.with_medium(|medium| medium.bytes())
    }

    fn segment_files(&self) -> Vec<std::path::PathBuf> {
        let files = self.disk.with_medium(|medium| medium.files());
        files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "seg")).collect()
    }
}

/// A log as it should be.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct ModelLog {
    purged: Option<u64>,
    entries: BTreeMap<u64, Vec<u8>>,
    values: BTreeMap<String, Vec<u8>>,
}

impl ModelLog {
    fn next(&self) -> u64 {
        let after_purged = self.purged.map_or(0, |purged| purged + 1);
        self.entries.last_key_value().map_or(after_purged, |(last, _)| last + 1)
    }
}

/// All logs as they should be.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Model {
    logs: BTreeMap<u64, ModelLog>,
}

/// A change that a test makes.
#[derive(Clone, Debug)]
enum Step {
    Append(u64, u64, Vec<Vec<u8>>),
    Truncate(u64, Option<u64>),
    Purge(u64, u64),
    Set(u64, String, Vec<u8>),
    Unset(u64, String),
    Remove(u64),
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Append(log, first, entries) => {
                let entries = (*first..).zip(entries.iter().cloned());
                self.logs.entry(*log).or_default().entries.extend(entries);
            }
            Step::Truncate(log, last) => {
                let entries = &mut self.logs.get_mut(log).unwrap().entries;
                entries.retain(|index, _| last.is_some_and(|last| *index <= last));
            }
            Step::Purge(log, last) => {
                let log = self.logs.get_mut(log).unwrap();
                log.purged = log.purged.max(Some(*last));
                log.entries.retain(|index, _| index > last);
            }
            Step::Set(log, name, value) => {
                self.logs.entry(*log).or_default().values.insert(name.clone(), value.clone());
            }
            Step::Unset(log, name) => {
                self.logs.get_mut(log).unwrap().values.remove(name);
            }
            Step::Remove(log) => {
                self.logs.remove(log);
            }
        }
    }

    /// Returns a change that is allowed.
    fn step(&self, random: &mut Random) -> Step {
        let number = random.below(6);
        let Some(log) = self.logs.get(&number) else {
            let first = [0, 1, 1000, u64::MAX - 5000][random.below(4) as usize];
            return Step::Append(number, first, entries(random));
        };
        let any = |random: &mut Random| {
            let from = log.purged.map_or(0, |purged| purged + 1);
            let first = log.entries.first_key_value().map_or(from, |(first, _)| *first);
            first + random.below(log.entries.len() as u64 + 1)
        };
        match random.below(20) {
            0 | 1 => {
                let last = any(random);
                // Not into the purged ones, and to nothing at all only if nothing was purged.
                let is_all = log.purged.is_none() && random.below(4) == 0;
                Step::Truncate(number, if is_all { None } else { Some(last) })
            }
            2..=5 => Step::Purge(number, any(random).saturating_add(random.below(3))),
            6 | 7 => {
                let (name, bytes) = (format!("v{}", random.below(3)), 1 + random.below(300));
                Step::Set(number, name, random.bytes(bytes as usize))
            }
            8 if !log.values.is_empty() => Step::Unset(number, log.values.keys().next().unwrap().clone()),
            9 if random.below(4) == 0 => Step::Remove(number),
            _ => Step::Append(number, log.next(), entries(random)),
        }
    }

    /// Returns what the logs are.
    fn read(logs: &Logs) -> Result<Model> {
        let mut model = Model::default();
        for number in logs.numbers() {
            let log = logs.log(number);
            let mut read = ModelLog { purged: log.purged(), ..ModelLog::default() };
            for entry in log.range(..)? {
                let entry = entry?;
                read.entries.insert(entry.index(), entry.to_vec());
            }
            assert_eq!(log.first(), read.entries.first_key_value().map(|(index, _)| *index));
            assert_eq!(log.last(), read.entries.last_key_value().map(|(index, _)| *index));
            for name in log.names() {
                read.values.insert(name.clone(), log.value(&name).unwrap());
            }
            model.logs.insert(number, read);
        }
        Ok(model)
    }
}

fn entries(random: &mut Random) -> Vec<Vec<u8>> {
    let count = 1 + random.below(4);
    let bytes = |random: &mut Random| match random.below(60) {
        // Larger than a record may be, and larger than a segment.
        0 => 20_000 + random.below(100_000),
        1..=5 => random.below(16_000),
        _ => random.below(1500),
    };
    (0..count)
        .map(|_| bytes(random))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|bytes| random.bytes(bytes as usize))
        .collect()
}

fn make(logs: &Logs, step: &Step) -> Result<Receipt> {
    match step {
        Step::Append(log, first, entries) => logs.log(*log).append(*first, entries),
        Step::Truncate(log, last) => logs.log(*log).truncate_after(*last),
        Step::Purge(log, last) => logs.log(*log).purge_to(*last),
        Step::Set(log, name, value) => logs.log(*log).set(name, value),
        Step::Unset(log, name) => logs.log(*log).unset(name),
        Step::Remove(log) => logs.remove(*log),
    }
}

fn add(batch: &mut Batch, step: &Step) {
    match step {
        Step::Append(log, first, entries) => batch.append(*log, *first, entries),
        Step::Truncate(log, last) => batch.truncate_after(*log, *last),
        Step::Purge(log, last) => batch.purge_to(*log, *last),
        Step::Set(log, name, value) => batch.set(*log, name, value),
        Step::Unset(log, name) => batch.unset(*log, name),
        Step::Remove(log) => batch.remove(*log),
    }
}

/// The models after each record, and the number of those that must be there after a crash.
#[derive(Default)]
struct History {
    models: Vec<Model>,
    acknowledged: usize,
}

impl History {
    fn new() -> History {
        History { models: vec![Model::default()], acknowledged: 0 }
    }

    fn newest(&self) -> &Model {
        self.models.last().unwrap()
    }

    /// Makes a change, or several in one batch. If it fails, nothing is changed.
    fn make(&mut self, logs: &Logs, random: &mut Random) -> Result<Receipt> {
        let mut model = self.newest().clone();
        let receipt = if random.below(5) == 0 {
            let mut batch = logs.batch();
            for _ in 0..1 + random.below(4) {
                let step = model.step(random);
                add(&mut batch, &step);
                model.apply(&step);
            }
            batch.commit()?
        } else {
            let step = model.step(random);
            model.apply(&step);
            make(logs, &step)?
        };
        self.models.push(model);
        Ok(receipt)
    }

    /// Makes changes until one fails or there were enough. Between two changes, it may wait for the first or read.
    fn run(&mut self, logs: &Logs, random: &mut Random, count: usize) -> Result<()> {
        let mut receipts = Vec::new();
        for _ in 0..count {
            let receipt = self.make(logs, random)?;
            receipts.push((self.models.len() - 1, receipt));
            match random.below(8) {
                0..=2 => {
                    let (change, receipt) = receipts.swap_remove(random.below(receipts.len() as u64) as usize);
                    receipt.wait()?;
                    self.acknowledged = self.acknowledged.max(change);
                }
                3 => {
                    let change = self.models.len() - 1;
                    let durable = Arc::new(std::sync::atomic::AtomicBool::new(false));
                    let answer = Arc::clone(&durable);
                    let (_, receipt) = receipts.pop().unwrap();
                    receipt.then(move |result| answer.store(result.is_ok(), std::sync::atomic::Ordering::SeqCst));
                    // Without threads, the caller writes.
                    if durable.load(std::sync::atomic::Ordering::SeqCst) {
                        self.acknowledged = self.acknowledged.max(change);
                    }
                }
                4 if random.below(6) == 0 => assert_eq!(&Model::read(logs)?, self.newest(), "while it is open"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Opens the logs after a crash, and verifies that they are as after some change that was not acknowledged too
    /// late.
    fn reopen(&mut self, disk: &Disk, context: &str) -> Logs {
        let logs = disk.open().unwrap_or_else(|error| panic!("{context}: {error}"));
        let found = Model::read(&logs).unwrap_or_else(|error| panic!("{context}: {error}"));
        let is_found = self.models[self.acknowledged..].iter().position(|model| *model == found);
        let Some(at) = is_found else {
            let earlier = self.models.iter().position(|model| *model == found);
            panic!("{context}: acknowledged {} of {}, found {earlier:?}", self.acknowledged, self.models.len() - 1);
        };
        self.models.truncate(self.acknowledged + at + 1);
        // A change that was read must not vanish.
        self.acknowledged = self.models.len() - 1;
        logs
    }
}
