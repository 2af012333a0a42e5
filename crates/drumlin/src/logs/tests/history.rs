//! Random histories of logs on a simulated disk, beside a model made of maps.
//!
//! The library's tests and the simulator compile this file, each with the names that its parent module has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

pub(super) const DIR: &str = "/node/logs";

/// A simulated disk. Without threads, every run is the same.
pub(super) struct Disk {
    pub(super) disk: sim::Disk,
    pub(super) faulty: FaultyBackend,
    has_threads: bool,
}

impl Disk {
    pub(super) fn new(has_threads: bool) -> Disk {
        Disk::with(Medium::default(), has_threads)
    }

    pub(super) fn with(medium: Medium, has_threads: bool) -> Disk {
        let disk = sim::Disk::new(medium, 7);
        let faulty = FaultyBackend::new(disk.backend());
        if !has_threads {
            faulty.refuse_threads("");
        }
        Disk { disk, faulty, has_threads }
    }

    pub(super) fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.faulty.clone())
    }

    pub(super) fn options(&self) -> LogsOptions {
        let options = LogsOptions::new().memory(2 << 20).segment_bytes(64 << 10);
        options.recovery_target(std::time::Duration::ZERO).backend(self.backend())
    }

    pub(super) fn open(&self) -> Result<Logs> {
        Logs::open(DIR, &self.options())
    }

    /// Turns the disk off, and returns it as a power cut at this moment may leave it.
    pub(super) fn cut(&self, random: &mut Random) -> Disk {
        self.disk.turn_off();
        Disk::with(self.disk.medium().cut(Loss::Sectors, &mut sim::Random(random.next())), self.has_threads)
    }

    /// Turns the disk off, and returns it as the end of the process leaves it: nothing is lost.
    pub(super) fn kill(&self) -> Disk {
        self.disk.turn_off();
        Disk::with(self.disk.medium(), self.has_threads)
    }
}

/// A log as it should be.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct ModelLog {
    purged: Option<u64>,
    pub(super) entries: BTreeMap<u64, Vec<u8>>,
    values: BTreeMap<String, Vec<u8>>,
}

impl ModelLog {
    pub(super) fn next(&self) -> u64 {
        let after_purged = self.purged.map_or(0, |purged| purged + 1);
        self.entries.last_key_value().map_or(after_purged, |(last, _)| last + 1)
    }
}

/// All logs as they should be.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Model {
    pub(super) logs: BTreeMap<u64, ModelLog>,
}

/// A change that a test makes.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Append(u64, u64, Vec<Vec<u8>>),
    Truncate(u64, Option<u64>),
    Purge(u64, u64),
    Set(u64, String, Vec<u8>),
    Unset(u64, String),
    Remove(u64),
}

impl Model {
    pub(super) fn apply(&mut self, step: &Step) {
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
    pub(super) fn step(&self, random: &mut Random) -> Step {
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
    pub(super) fn read(logs: &Logs) -> Result<Model> {
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

pub(super) fn make(logs: &Logs, step: &Step) -> Result<Receipt> {
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
pub(super) struct History {
    pub(super) models: Vec<Model>,
    pub(super) acknowledged: usize,
    /// The number of calls of each callback.
    answers: Vec<Arc<AtomicUsize>>,
}

impl History {
    pub(super) fn new() -> History {
        History { models: vec![Model::default()], acknowledged: 0, answers: Vec::new() }
    }

    pub(super) fn newest(&self) -> &Model {
        self.models.last().unwrap()
    }

    /// Makes a change, or several in one batch. If it fails, nothing is changed.
    pub(super) fn make(&mut self, logs: &Logs, random: &mut Random) -> Result<Receipt> {
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

    /// Makes changes until one fails or there were enough. Then asks the receipts that are left.
    pub(super) fn run(&mut self, logs: &Logs, random: &mut Random, count: usize) -> Result<()> {
        let mut receipts = Vec::new();
        let ran = self.make_some(logs, random, count, &mut receipts);
        // A receipt that has answered "durable" once must give the same answer again, even if a later change has
        // failed in the meantime.
        for (change, receipt) in receipts.into_iter().filter(|(_, receipt)| receipt.is_durable()) {
            let is_confirmed = Arc::new(AtomicUsize::new(0));
            let answer = Arc::clone(&is_confirmed);
            receipt.then(move |result| answer.store(usize::from(result.is_ok()), Ordering::SeqCst));
            assert_eq!(is_confirmed.load(Ordering::SeqCst), 1, "change {change} is durable, and then is not");
            self.acknowledged = self.acknowledged.max(change);
        }
        ran
    }

    /// Makes changes until one fails or there were enough. Between two changes, it may wait for the first or read.
    /// Leaves the receipts that were not asked.
    fn make_some(
        &mut self,
        logs: &Logs,
        random: &mut Random,
        count: usize,
        receipts: &mut Vec<(usize, Receipt)>,
    ) -> Result<()> {
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
                    let (durable, called) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
                    self.answers.push(Arc::clone(&called));
                    let answer = Arc::clone(&durable);
                    let (_, receipt) = receipts.pop().unwrap();
                    receipt.then(move |result| {
                        called.fetch_add(1, Ordering::SeqCst);
                        answer.store(usize::from(result.is_ok()), Ordering::SeqCst);
                    });
                    // Without threads, the caller writes.
                    if durable.load(Ordering::SeqCst) == 1 {
                        self.acknowledged = self.acknowledged.max(change);
                    }
                }
                4 if random.below(6) == 0 => assert_eq!(&Model::read(logs)?, self.newest(), "while it is open"),
                _ => {}
            }
            let too_often = self.answers.iter().position(|called| called.load(Ordering::SeqCst) > 1);
            assert_eq!(too_often, None, "a callback was called twice");
        }
        if random.below(2) == 0 {
            let receipt = self.make(logs, random)?;
            receipt.wait()?;
            self.acknowledged = self.models.len() - 1;
            let unanswered = self.answers.iter().filter(|called| called.load(Ordering::SeqCst) != 1).count();
            assert_eq!(unanswered, 0, "callbacks were not called, and a later change is durable");
        }
        Ok(())
    }

    /// Opens the logs after a crash, and verifies that they are as after some change that was not acknowledged too
    /// late.
    pub(super) fn reopen(&mut self, disk: &Disk, context: &str) -> Logs {
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
        // Receipts of changes that the crash took were not answered, or with an error.
        self.answers.clear();
        logs
    }
}

/// The result of a random history.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Survived {
    pub(super) changes: usize,
    pub(super) crashes: usize,
}

/// Runs a history of several openings. Each ends by a close, a kill or a power cut at a random write, also while the
/// logs are being opened. Panics if it finds something.
pub(super) fn survive(seed: u64) -> Survived {
    let mut random = Random(seed);
    let mut disk = Disk::new(false);
    let mut history = History::new();
    let mut survived = Survived::default();
    for generation in 0..6 {
        let context = format!("seed {seed}, generation {generation}");
        let logs = history.reopen(&disk, &context);
        let end = random.below(4);
        if end > 1 {
            disk.disk.turn_off_in_write(1 + random.below(150));
        }
        let before = history.models.len();
        let count = 60 + random.below(120) as usize;
        let ran = history.run(&logs, &mut random, count);
        survived.changes += history.models.len() - before;
        assert!(end > 1 || ran.is_ok(), "{context}: {ran:?}");
        if end == 0 {
            logs.close().unwrap();
            history.acknowledged = history.models.len() - 1;
            disk = disk.kill();
            continue;
        }
        disk.disk.turn_off();
        drop(logs);
        disk = if end == 1 { disk.kill() } else { disk.cut(&mut random) };
        survived.crashes += 1;
        // Sometimes the power is cut while the logs are opened.
        while random.below(3) == 0 {
            disk.disk.turn_off_in_write(1 + random.below(6));
            drop(disk.open());
            disk = disk.cut(&mut random);
            survived.crashes += 1;
        }
    }
    survived
}
