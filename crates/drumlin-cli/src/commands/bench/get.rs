//! `drumlin bench get`: reads of single keys, or of `--batch` keys per call. With `--async`, `--batch` tasks on each
//! thread read single keys.
//!
//! The limit is compared with the rate of the store's device reads; reads that it serves from memory do not count. If
//! no operation reads from the device, there is no limit.

use std::time::Duration;

use drumlin::{Error, Keyspace};

use super::data::{KEY_BYTES, Random, key};
use super::load;
use super::measure::{Measured, Spread, TURNS, Task, Turns, Worker, measure, measure_tasks};
use super::raw::Reads;
use super::report::{Facts, Limit, NOISE, Report};
use super::target::Target;
use crate::failure::Result;
use crate::process;

/// Below this number of device reads per operation, the rows count as cached: the few remaining reads are the first
/// touches of pages.
const DEVICE_READS_PER_OP_MIN: f64 = 0.01;

/// The length of the unmeasured warm-up before the first turn.
const WARM_UP: Duration = Duration::from_secs(1);

pub(super) struct Getter {
    keyspace: Keyspace,
    random: Random,
    value_size: usize,
    keys: Vec<[u8; KEY_BYTES]>,
}

impl Getter {
    pub(super) fn new(target: &Target<'_>, keyspace: &Keyspace, seed: u64, batch: usize) -> Getter {
        Getter {
            keyspace: keyspace.clone(),
            random: Random::new(seed, target.about.keys, target.options.distribution),
            value_size: target.about.value_size as usize,
            keys: vec![[0; KEY_BYTES]; batch],
        }
    }

    fn check(&self, found: Option<&[u8]>) -> drumlin::Result<()> {
        match found {
            Some(value) if value.len() == self.value_size => Ok(()),
            Some(value) => Err(Error::Invalid(format!("a value has {} bytes, not {}", value.len(), self.value_size))),
            None => Err(Error::Invalid("a row that was loaded is not there".to_owned())),
        }
    }
}

impl Worker for Getter {
    fn call(&mut self) -> drumlin::Result<u64> {
        if self.keys.len() == 1 {
            let found = self.keyspace.get(key(self.random.row()))?;
            self.check(found.as_deref())?;
            return Ok(1);
        }
        for slot in &mut self.keys {
            *slot = key(self.random.row());
        }
        let found = self.keyspace.get_many(&self.keys)?;
        found.iter().try_for_each(|value| self.check(value.as_deref()))?;
        Ok(self.keys.len() as u64)
    }
}

impl Task for Getter {
    async fn call(&mut self) -> drumlin::Result<u64> {
        let found = self.keyspace.get_async(key(self.random.row())).await?;
        self.check(found.as_deref())?;
        Ok(1)
    }
}

pub(super) fn run(target: &mut Target<'_>) -> Result<Report> {
    load::ensure_rows(target)?;
    let batch = target.options.batch.unwrap_or(1) as usize;
    let keyspace = target.rows()?;
    let page_bytes = target.page_bytes();
    let threads = target.threads();
    let reads = Reads::open(&target.data_file())?;
    let is_async = target.options.is_async;
    let measure = |turn: u64, limit: Duration| {
        let seed = |thread: u64, task: u64| (turn * 4096 + thread) * 4096 + task;
        if is_async {
            let tasks = |thread: u64| -> Vec<Getter> {
                (0..batch as u64).map(|task| Getter::new(target, &keyspace, seed(thread, task), 1)).collect()
            };
            let getters = (0..threads).map(tasks).collect();
            measure_tasks(getters, Some(limit), || target.stats())
        } else {
            let getters = (0..threads).map(|thread| Getter::new(target, &keyspace, seed(thread, 0), batch));
            measure(getters.collect(), Some(limit), || target.stats())
        }
    };
    if target.fits_in_memory() {
        keyspace.iter().try_for_each(|row| row.map(|_| ()))?;
    }
    reads.warm()?;
    measure(0, WARM_UP)?;

    process::reset_resident_bytes_max();
    let slice = target.options.seconds / TURNS;
    let mut turns = Turns::new();
    for turn in 1..=u64::from(TURNS) {
        let measured = measure(turn, slice)?;
        let raw = if reads_per_op(&measured) >= DEVICE_READS_PER_OP_MIN {
            Some(reads.random(page_bytes, threads, batch, turn, slice)?)
        } else {
            None
        };
        turns.add(measured, raw);
    }
    let reached_per_second = turns.median_of(Measured::device_reads_per_second);
    let limit = turns.limit().filter(|_| reads_per_op(&turns.all) >= DEVICE_READS_PER_OP_MIN);
    let facts = Facts {
        name: "get",
        unit: "keys",
        call: match batch {
            1 => "a get".to_owned(),
            _ if is_async => format!("a get, {batch} tasks a thread"),
            _ => format!("a get of {batch}"),
        },
        batch: batch as u64,
        data_bytes: target.about.data_bytes(),
        limit: limit.map(|per_second| Limit {
            per_second,
            spread: Spread::of(turns.raw_per_second.iter().copied()).unwrap_or_default(),
            reached_per_second,
            unit: "reads/s",
            above_one: NOISE,
        }),
    };
    Ok(Report::new(target, &turns, facts))
}

fn reads_per_op(measured: &Measured) -> f64 {
    measured.device_reads as f64 / measured.ops.max(1) as f64
}
