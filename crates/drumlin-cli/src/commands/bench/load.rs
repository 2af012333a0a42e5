//! `drumlin bench load`: every key once, in transactions of `--batch` rows. An operation is a row; what is timed is a
//! whole transaction, since that is what a caller waits for.

use drumlin::{Database, Keyspace, TxOptions};

use super::data::{Random, WriteOrder, key};
use super::measure::{Turns, Worker, measure};
use super::options::Distribution;
use super::report::{Report, Told};
use super::subject::Subject;
use crate::failure::Result;
use crate::process;

const BATCH_DEFAULT: u32 = 1000;

struct Loader {
    database: Database,
    keyspace: Keyspace,
    options: TxOptions,
    order: WriteOrder,
    random: Random,
    value: Vec<u8>,
    batch: u64,
    position: u64,
    end: u64,
}

impl Worker for Loader {
    fn call(&mut self) -> drumlin::Result<u64> {
        let rows = self.batch.min(self.end - self.position);
        if rows == 0 {
            return Ok(0);
        }
        let mut transaction = self.database.begin_with(self.options)?;
        for position in self.position..self.position + rows {
            self.random.fill(&mut self.value);
            transaction.insert(&self.keyspace, key(self.order.row(position)), &self.value)?;
        }
        transaction.commit()?;
        self.position += rows;
        Ok(rows)
    }
}

pub(super) fn run(subject: &mut Subject<'_>) -> Result<Report> {
    let batch = u64::from(subject.options.batch.unwrap_or(BATCH_DEFAULT));
    let threads = subject.threads();
    let keys = subject.about.keys;
    let mut loaders = Vec::new();
    for thread in 0..threads {
        loaders.push(Loader {
            database: subject.database().clone(),
            keyspace: subject.rows()?,
            options: TxOptions { durability: subject.options.durability.into(), ..TxOptions::default() },
            order: subject.order(),
            random: Random::new(thread, keys, Distribution::Uniform),
            value: vec![0; subject.about.value_size as usize],
            batch,
            position: share(keys, thread, threads),
            end: share(keys, thread + 1, threads),
        });
    }
    process::reset_resident_bytes_max();
    let mut turns = Turns::new();
    turns.add(measure(loaders, None, || subject.stats())?, None);
    let told = Told {
        name: "load",
        unit: "rows",
        call: format!("a commit of {batch}"),
        batch,
        data_bytes: subject.about.data_bytes(),
        limit: None,
    };
    let report = Report::new(subject, &turns, told);
    subject.set_loaded()?;
    Ok(report)
}

/// Where the share of a thread begins.
pub(super) fn share(keys: u64, thread: u64, threads: u64) -> u64 {
    (u128::from(keys) * u128::from(thread) / u128::from(threads)) as u64
}
