//! `drumlin bench load`: every key once, in transactions of `--batch` rows. An operation is a row; what is timed is a
//! whole transaction, since that is what a caller waits for.

use drumlin::{Database, Durability, Error, Keyspace, TxOptions};

use super::data::{Random, WriteOrder, key};
use super::measure::{Turns, Worker, measure};
use super::options::Distribution;
use super::report::{Report, Told};
use super::subject::Subject;
use crate::failure::Result;
use crate::process;

/// Rows a transaction.
pub(super) const BATCH_DEFAULT: u32 = 1000;

pub(super) struct Loader {
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
        loop {
            let rows = self.batch.min(self.end - self.position);
            match self.commit(rows) {
                Ok(()) => {
                    self.position += rows;
                    return Ok(rows);
                }
                // A small budget takes small transactions.
                Err(Error::TransactionTooLarge { .. } | Error::MemoryInUse { .. }) if rows > 1 => self.batch = rows / 2,
                Err(error) => return Err(error),
            }
        }
    }
}

impl Loader {
    /// The loader of one thread's share of the rows.
    pub(super) fn new(
        subject: &Subject<'_>,
        thread: u64,
        threads: u64,
        batch: u64,
        durability: Durability,
    ) -> Result<Loader> {
        let keys = subject.about.keys;
        Ok(Loader {
            database: subject.database().clone(),
            keyspace: subject.rows()?,
            options: TxOptions { durability, ..TxOptions::default() },
            order: subject.order(),
            random: Random::new(thread, keys, Distribution::Uniform),
            value: vec![0; subject.about.value_size as usize],
            batch,
            position: share(keys, thread, threads),
            end: share(keys, thread + 1, threads),
        })
    }

    fn commit(&mut self, rows: u64) -> drumlin::Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let mut transaction = self.database.begin_with(self.options)?;
        for position in self.position..self.position + rows {
            self.random.fill(&mut self.value);
            transaction.insert(&self.keyspace, key(self.order.row(position)), &self.value)?;
        }
        transaction.commit()?;
        Ok(())
    }
}

pub(super) fn run(subject: &mut Subject<'_>) -> Result<Report> {
    let batch = u64::from(subject.options.batch.unwrap_or(BATCH_DEFAULT));
    let threads = subject.threads();
    let durability = subject.options.durability.into();
    let loaders = (0..threads).map(|thread| Loader::new(subject, thread, threads, batch, durability));
    let loaders = loaders.collect::<Result<Vec<_>>>()?;
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
