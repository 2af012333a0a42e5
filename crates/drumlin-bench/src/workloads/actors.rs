//! The operations that a thread performs for each job.

use std::sync::atomic::{AtomicU64, Ordering};

use drumlin_testing::Random;

use crate::driver::Actor;
use crate::engine::{Engine, Key, Result, Row, Session};
use crate::plan::{Job, Mix, Workload};
use crate::rows::{Choice, Chooser, SEED, Zipf, fill, key, version};

/// The maximum number of rows that a scan of YCSB E reads.
const YCSB_SCAN_ROWS: u64 = 100;

/// The data that the actors of all threads share.
#[derive(Debug)]
pub(crate) struct Shared<'w> {
    workload: &'w Workload,
    turn: u64,
    zipf: Option<Zipf>,
    /// The number of bytes of keys and values written so far.
    written: AtomicU64,
    /// The number of actors created so far. It determines the current phase of a turn, so that each phase makes
    /// different random choices.
    actors: AtomicU64,
}

impl<'w> Shared<'w> {
    pub(crate) fn new(workload: &'w Workload, turn: u64) -> Shared<'w> {
        let is_zipf = matches!(workload.job, Job::Get(Choice::Zipf) | Job::Ycsb(_));
        let zipf = is_zipf.then(|| Zipf::new(workload.data.rows));
        Shared { workload, turn, zipf, written: AtomicU64::new(0), actors: AtomicU64::new(0) }
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Creates the actor of a thread.
    pub(crate) fn actor<'a>(&'a self, engine: &'a dyn Engine, thread: usize) -> Result<Box<dyn Actor + 'a>> {
        // The threads of a phase get these numbers in an arbitrary order, so derive only the phase from them.
        let threads = self.workload.threads as u64;
        let phase = self.actors.fetch_add(1, Ordering::Relaxed) / threads;
        let seed = Random(SEED ^ (self.turn << 32) ^ (phase << 16) ^ thread as u64).next();
        let work = Work {
            shared: self,
            chooser: Chooser::new(seed, self.workload.data.rows, self.zipf),
            value: Vec::new(),
            keys: Vec::new(),
            numbers: Vec::new(),
            rows: Vec::new(),
            // Give each turn, phase and thread a key range of its own, so that no two insert the same key.
            insert_next: self.workload.data.rows + (((self.turn << 8) + phase + 1) << 32) + ((thread as u64) << 24),
            inserted: 0,
            version: seed,
            thread: thread as u64,
        };
        Ok(Box::new(Agent { session: engine.session()?, work }))
    }
}

/// A thread's session and its operations.
struct Agent<'s> {
    session: Box<dyn Session + 's>,
    work: Work<'s>,
}

impl Actor for Agent<'_> {
    fn step(&mut self) -> Result<u64> {
        self.work.step(&mut *self.session)
    }
}

struct Work<'s> {
    shared: &'s Shared<'s>,
    chooser: Chooser,
    value: Vec<u8>,
    keys: Vec<Key>,
    numbers: Vec<u64>,
    rows: Vec<Row>,
    insert_next: u64,
    inserted: u64,
    version: u64,
    thread: u64,
}

fn wrong(number: u64) -> crate::engine::Failure {
    format!("the value of row {number} is not what was written").into()
}

impl Work<'_> {
    fn step(&mut self, session: &mut dyn Session) -> Result<u64> {
        match self.shared.workload.job {
            Job::Get(_) => self.get(session),
            Job::GetMany(count) => self.get_many(session, count),
            Job::Commit(count) => self.commit(session, count),
            Job::Prepare => self.prepare(session),
            Job::Insert => self.insert(session),
            Job::Ycsb(mix) => self.ycsb(session, mix),
            Job::Half if self.chooser.random().chance(50) => self.get(session),
            Job::Half => self.commit(session, 1),
            Job::Scan(rows) => self.scan(session, rows),
            Job::Count(rows) => self.count(session, rows),
            Job::CommitStep
            | Job::Load
            | Job::BulkLoad
            | Job::FullScan
            | Job::RemoveRange
            | Job::Large(_)
            | Job::Drop
            | Job::Tables
            | Job::Backup
            | Job::CommitBesideBackups
            | Job::KeptSnapshots
            | Job::Feed
            | Job::Logs(_)
            | Job::Raft(_)
            | Job::Open { .. }
            | Job::Shop { .. } => {
                unreachable!("these jobs have other actors, or none")
            }
        }
    }

    fn value_bytes(&self) -> usize {
        self.shared.workload.data.value_bytes
    }

    fn note_written(&self, rows: u64) {
        self.shared.written.fetch_add(rows * (8 + self.value_bytes() as u64), Ordering::Relaxed);
    }

    fn get_row(&mut self, session: &mut dyn Session, number: u64) -> Result<u64> {
        let bytes = self.value_bytes();
        let mut is_right = false;
        session.get(key(number), &mut |value| is_right = version(value, number, bytes).is_some())?;
        if is_right { Ok(1) } else { Err(wrong(number)) }
    }

    fn get(&mut self, session: &mut dyn Session) -> Result<u64> {
        let number = self.chooser.draw();
        self.get_row(session, number)
    }

    fn get_many(&mut self, session: &mut dyn Session, count: usize) -> Result<u64> {
        let bytes = self.value_bytes();
        self.numbers.clear();
        self.keys.clear();
        for _ in 0..count {
            let number = self.chooser.draw();
            self.numbers.push(number);
            self.keys.push(key(number));
        }
        let mut right = 0;
        let numbers = &self.numbers;
        session.get_many(&self.keys, &mut |index, value| {
            right += usize::from(version(value, numbers[index], bytes).is_some());
        })?;
        if right == count { Ok(count as u64) } else { Err(wrong(numbers[0])) }
    }

    /// Writes new versions of existing rows.
    fn commit(&mut self, session: &mut dyn Session, count: usize) -> Result<u64> {
        let bytes = self.value_bytes();
        self.rows.resize_with(count, Default::default);
        for row in &mut self.rows {
            let number = self.chooser.draw();
            self.version += 1;
            row.0 = key(number);
            fill(&mut row.1, number, self.version, bytes);
        }
        session.write(&self.rows)?;
        self.note_written(count as u64);
        Ok(count as u64)
    }

    /// Writes a row in two phases. Each thread has rows of its own, because a prepared row is locked.
    fn prepare(&mut self, session: &mut dyn Session) -> Result<u64> {
        let (bytes, threads) = (self.value_bytes(), self.shared.workload.threads as u64);
        let number = self.chooser.draw() / threads * threads + self.thread;
        let number = if number < self.shared.workload.data.rows { number } else { number - threads };
        self.version += 1;
        self.rows.resize_with(1, Default::default);
        self.rows[0].0 = key(number);
        fill(&mut self.rows[0].1, number, self.version, bytes);
        session.write_in_two_phases(&self.thread.to_be_bytes(), &self.rows)?;
        self.note_written(1);
        Ok(1)
    }

    fn insert(&mut self, session: &mut dyn Session) -> Result<u64> {
        let bytes = self.value_bytes();
        let number = self.insert_next + self.inserted;
        self.rows.resize_with(1, Default::default);
        self.rows[0].0 = key(number);
        fill(&mut self.rows[0].1, number, 0, bytes);
        session.write(&self.rows)?;
        self.inserted += 1;
        self.note_written(1);
        Ok(1)
    }

    fn scan(&mut self, session: &mut dyn Session, rows: u64) -> Result<u64> {
        let (bytes, count) = (self.value_bytes(), self.shared.workload.data.rows);
        let mut next = self.chooser.draw().min(count.saturating_sub(rows));
        let first = next;
        let mut is_right = true;
        session.scan(key(first), rows, &mut |key, value| {
            // In key order, the rows inserted by threads follow the loaded rows.
            is_right &= next >= count || (*key == next.to_be_bytes() && version(value, next, bytes).is_some());
            next += 1;
        })?;
        if is_right && next - first == rows.min(count) { Ok(1) } else { Err(wrong(first)) }
    }

    fn count(&mut self, session: &mut dyn Session, rows: u64) -> Result<u64> {
        let first = self.chooser.random().below(self.shared.workload.data.rows - rows + 1);
        let counted = session.count(key(first), key(first + rows))?;
        if counted == rows { Ok(1) } else { Err(format!("{counted} rows were counted, not {rows}").into()) }
    }

    fn ycsb(&mut self, session: &mut dyn Session, mix: Mix) -> Result<u64> {
        let reads = match mix {
            Mix::A | Mix::F => 50,
            Mix::B | Mix::D | Mix::E => 95,
            Mix::C => 100,
        };
        let is_read = self.chooser.random().chance(reads);
        match (mix, is_read) {
            (Mix::A | Mix::B | Mix::C | Mix::F, true) => self.get(session),
            (Mix::D, true) => {
                let number = self.latest();
                self.get_row(session, number)
            }
            (Mix::E, true) => {
                let rows = 1 + self.chooser.random().below(YCSB_SCAN_ROWS);
                self.scan(session, rows)
            }
            (Mix::D | Mix::E, false) => self.insert(session),
            (Mix::F, false) => self.change(session),
            (Mix::A | Mix::B | Mix::C, false) => self.commit(session, 1),
        }
    }

    /// Draws a row, favouring the newest: first the rows that this thread inserted, then the newest loaded rows.
    fn latest(&mut self) -> u64 {
        let zipf = self.shared.zipf.expect("YCSB has one");
        let rank = zipf.draw(self.chooser.random());
        match self.inserted.checked_sub(rank + 1) {
            Some(index) => self.insert_next + index,
            None => self.shared.workload.data.rows - 1 - (rank - self.inserted),
        }
    }

    /// Reads a row and writes its next version in one transaction.
    fn change(&mut self, session: &mut dyn Session) -> Result<u64> {
        let (bytes, number) = (self.value_bytes(), self.chooser.draw());
        let mut is_right = true;
        let scratch = &mut self.value;
        session.update(key(number), &mut |value| {
            let found = version(value, number, bytes);
            is_right = found.is_some();
            fill(scratch, number, found.unwrap_or(0).wrapping_add(1), bytes);
            scratch.clone()
        })?;
        self.note_written(1);
        if is_right { Ok(1) } else { Err(wrong(number)) }
    }
}
