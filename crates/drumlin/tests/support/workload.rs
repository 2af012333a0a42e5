//! A scripted workload whose rows are known after every step, and its verifier.
//!
//! Each thread performs numbered steps. A step depends only on the seed, the thread and the number, so a verifier, even
//! in a different process, knows the rows after any number of steps. Every commit also stores its number in the
//! thread's *counter* row, which therefore shows the number of the thread's last commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use drumlin::{Database, Durability, KeyspaceOptions, TxOptions};

use super::Random;

/// The keyspaces shared by all threads: one with the database's page size, and one with a different page size.
const SHARED: [(&str, usize); 2] = [("rows", 1024), ("more", 2048)];
const COUNTERS: &str = "counters";
/// In every 50 steps, a thread creates its own keyspace at the first of these numbers and drops it at the second.
const OWN_STEPS: u64 = 50;
const OWN_MADE: u64 = 12;
const OWN_DROPPED: u64 = 38;

/// A value, represented by its length and the seed that generates its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content(usize, u64);

impl Content {
    fn bytes(self) -> Vec<u8> {
        // Half of the bytes are compressible.
        let mut random = Random(self.1);
        let mut bytes = vec![self.1 as u8; self.0];
        for byte in bytes.iter_mut().step_by(2) {
            *byte = random.next() as u8;
        }
        bytes
    }
}

#[derive(Debug)]
enum Step {
    /// Creates the thread's own keyspace.
    Create,
    Drop,
    /// Changes rows. Each row is given with its keyspace: 0 and 1 are shared, and 2 is the thread's own. Without any
    /// rows, writes the counter outside of a transaction.
    Commit {
        rows: Vec<(usize, Vec<u8>, Option<Content>)>,
        durability: Durability,
    },
}

/// The parameters of the workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub seed: u64,
    pub threads: u64,
    /// The percentage of commits with large values.
    pub large_percent: u64,
    /// The percentage of relaxed commits.
    pub relaxed_percent: u64,
}

/// The rows of one thread, by keyspace and key.
type Rows = BTreeMap<(usize, Vec<u8>), Content>;

/// An acknowledgement: a thread, the number of its step, and whether the step was acknowledged as durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    pub thread: u64,
    pub step: u64,
    pub full: bool,
}

impl Ack {
    pub fn to_bits(self) -> u64 {
        self.thread << 56 | u64::from(self.full) << 55 | self.step
    }

    pub fn from_bits(bits: u64) -> Ack {
        Ack { thread: bits >> 56, full: bits >> 55 & 1 == 1, step: bits & ((1 << 55) - 1) }
    }
}

impl Workload {
    fn step(&self, thread: u64, number: u64) -> Step {
        let mut random = Random(self.seed ^ thread << 48 ^ number.wrapping_mul(0x9E37_79B9));
        match number % OWN_STEPS {
            OWN_MADE => return Step::Create,
            OWN_DROPPED => return Step::Drop,
            _ => {}
        }
        let durability = if random.chance(self.relaxed_percent) { Durability::Relaxed } else { Durability::Full };
        let has_own = (OWN_MADE..OWN_DROPPED).contains(&(number % OWN_STEPS));
        let mut rows = Vec::new();
        for _ in 0..random.below(8) {
            let keyspace = random.below(if has_own { 3 } else { 2 }) as usize;
            let mut key = vec![thread as u8];
            key.extend(format!("{:04}", random.below(300)).bytes());
            if random.chance(10) {
                key.extend([b'k'; 200]);
            }
            let length = match random.below(100) {
                0..6 => 300 + random.below(5000),
                6..14 => 0,
                _ => random.below(180),
            };
            let content = random.chance(75).then(|| Content(length as usize, random.next()));
            rows.push((keyspace, key, content));
        }
        if random.chance(self.large_percent) {
            let key = [thread as u8, b'L', random.below(4) as u8].to_vec();
            let content = random.chance(80).then(|| Content(66_000 + random.below(120_000) as usize, random.next()));
            rows.push((random.below(2) as usize, key, content));
        }
        Step::Commit { rows, durability }
    }

    fn own_name(thread: u64) -> String {
        format!("own {thread}")
    }

    /// Creates the shared keyspaces. Must return before any thread starts.
    pub fn prepare(&self, db: &Database) -> drumlin::Result<()> {
        for (name, page_bytes) in SHARED {
            db.keyspace_with(name, KeyspaceOptions::new().page_bytes(page_bytes))?;
        }
        db.keyspace(COUNTERS).map(drop)
    }

    /// Performs steps `from..to` of one thread, and calls `ack` after each acknowledged step. Stops at the first error.
    pub fn run(&self, db: &Database, thread: u64, from: u64, to: u64, ack: &dyn Fn(Ack)) -> drumlin::Result<()> {
        let shared = SHARED.map(|(name, _)| db.existing_keyspace(name));
        let [first, second] = shared;
        let (first, second, counters) = (first?, second?, db.existing_keyspace(COUNTERS)?);
        for number in from..to {
            let mut full = true;
            match self.step(thread, number) {
                Step::Create => drop(db.keyspace(&Self::own_name(thread))?),
                Step::Drop => match db.drop_keyspace(&Self::own_name(thread)) {
                    // The step already dropped the keyspace, but a cut prevented its acknowledgement.
                    Err(drumlin::Error::NoSuchKeyspace { .. }) => {}
                    other => other?,
                },
                Step::Commit { rows, durability } => {
                    full = durability == Durability::Full;
                    let counter = number.to_be_bytes();
                    if rows.is_empty() {
                        counters.insert_with(thread.to_be_bytes(), counter, durability)?;
                    } else {
                        let mut tx = db.begin_with(TxOptions { durability, ..TxOptions::default() })?;
                        for (keyspace, key, content) in &rows {
                            let own;
                            let keyspace = match keyspace {
                                0 => &first,
                                1 => &second,
                                _ => {
                                    own = db.existing_keyspace(&Self::own_name(thread))?;
                                    &own
                                }
                            };
                            match content {
                                Some(content) => tx.insert(keyspace, key, content.bytes())?,
                                None => tx.remove(keyspace, key)?,
                            }
                        }
                        tx.insert(&counters, thread.to_be_bytes(), counter)?;
                        tx.commit()?;
                    }
                }
            }
            ack(Ack { thread, step: number, full });
        }
        Ok(())
    }

    /// Performs `count` steps of each thread, running all threads concurrently. Each thread starts at its number in
    /// `from`. Returns their errors.
    pub fn run_all(
        &self,
        db: &Database,
        from: &[u64],
        count: u64,
        ack: &(dyn Fn(Ack) + Sync),
    ) -> Vec<drumlin::Result<()>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let from = from[thread as usize];
                    scope.spawn(move || self.run(db, thread, from, from + count, &ack))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Returns the rows of a thread after its steps below `end`, and whether its own keyspace exists at that point.
    fn model(&self, thread: u64, end: u64) -> (Rows, bool) {
        let mut rows = Rows::new();
        let mut own = false;
        for number in 0..end {
            match self.step(thread, number) {
                Step::Create => own = true,
                Step::Drop => {
                    own = false;
                    rows.retain(|(keyspace, _), _| *keyspace != 2);
                }
                Step::Commit { rows: changes, .. } => {
                    for (keyspace, key, content) in changes {
                        match content {
                            Some(content) => drop(rows.insert((keyspace, key), content)),
                            None => drop(rows.remove(&(keyspace, key))),
                        }
                    }
                }
            }
        }
        (rows, own)
    }

    /// Checks the database against the acknowledgements `acked`, in any order. Each thread must have every step that
    /// was acknowledged as durable, no incomplete step, and at most one step that was not acknowledged. There must be
    /// no corruption. Returns the step at which each thread continues.
    ///
    /// # Errors Describes the first difference.
    pub fn verify(&self, db: &Database, prepared: bool, acked: &[Ack]) -> Result<Vec<u64>, String> {
        let text = |error: drumlin::Error| error.to_string();
        let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
        let missing =
            SHARED.iter().map(|(name, _)| *name).chain([COUNTERS]).find(|name| !names.contains(&(*name).to_owned()));
        if let Some(name) = missing {
            return if prepared { Err(format!("keyspace {name} is gone")) } else { Ok(vec![0; self.threads as usize]) };
        }
        let counters = db.existing_keyspace(COUNTERS).map_err(text)?;
        let mut next = Vec::new();
        for thread in 0..self.threads {
            let mine = || acked.iter().filter(|ack| ack.thread == thread);
            // This is the number after the last step.
            let lasting = mine().filter(|ack| ack.full).map(|ack| ack.step + 1).max().unwrap_or(0);
            let answered = mine().map(|ack| ack.step + 1).max().unwrap_or(0);
            let counter = match counters.get(thread.to_be_bytes()).map_err(text)? {
                Some(value) => u64::from_be_bytes(value[..].try_into().map_err(|_| "a counter of another length")?) + 1,
                None => 0,
            };
            let has_own = names.contains(&Self::own_name(thread));
            // The next steps may not write the counter. The keyspace shows whether the last of them was completed.
            let mut end = counter;
            while matches!(self.step(thread, end), Step::Create | Step::Drop)
                && self.model(thread, end + 1).1 == has_own
            {
                end += 1;
            }
            if end < lasting {
                return Err(format!("thread {thread}: {lasting} steps were acknowledged as lasting, {end} are there"));
            }
            if end > answered + 1 {
                return Err(format!("thread {thread}: {answered} steps were acknowledged, {end} are there"));
            }
            let (rows, own) = self.model(thread, end);
            if own != has_own {
                return Err(format!(
                    "thread {thread}, {end} steps: its keyspace is there: {has_own}, should be: {own}"
                ));
            }
            self.compare(db, thread, &rows, own).map_err(|reason| format!("thread {thread}, {end} steps: {reason}"))?;
            next.push(end);
        }
        let report = db.check().map_err(text)?;
        if !report.corruption.is_empty() {
            return Err(format!("damage: {:?}", report.corruption));
        }
        Ok(next)
    }

    fn compare(&self, db: &Database, thread: u64, model: &Rows, own: bool) -> Result<(), String> {
        let mut found = BTreeMap::new();
        let own_name = Self::own_name(thread);
        let names = [SHARED[0].0, SHARED[1].0, &own_name];
        for (number, name) in names.into_iter().enumerate().take(if own { 3 } else { 2 }) {
            let keyspace = db.existing_keyspace(name).map_err(|error| error.to_string())?;
            for row in keyspace.prefix([thread as u8]) {
                let (key, value) = row.map_err(|error| format!("reading {name:?}: {error}"))?;
                found.insert((number, key.to_vec()), value);
            }
        }
        for (row, content) in model {
            match found.remove(row) {
                None => return Err(format!("row {} of {} is gone", row.1.escape_ascii(), names[row.0])),
                Some(value) if value[..] != content.bytes()[..] => {
                    return Err(format!("row {} of {} has another value", row.1.escape_ascii(), names[row.0]));
                }
                Some(_) => {}
            }
        }
        match found.keys().next() {
            Some((keyspace, key)) => Err(format!("row {} of {} is too much", key.escape_ascii(), names[*keyspace])),
            None => Ok(()),
        }
    }
}

/// Until `stop`, makes checkpoints at random times and sometimes compacts.
pub fn disturb(db: &Database, seed: u64, stop: &Arc<std::sync::atomic::AtomicBool>) {
    let mut random = Random(seed);
    while !stop.load(std::sync::atomic::Ordering::Acquire) {
        std::thread::sleep(std::time::Duration::from_micros(random.below(20_000)));
        let result = if random.chance(20) { db.compact().map(drop) } else { db.checkpoint().map(drop) };
        if result.is_err() {
            return;
        }
    }
}
