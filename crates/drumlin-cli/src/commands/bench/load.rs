//! `drumlin bench load`: writes every key once, in transactions of `--batch` rows. An operation is a row, but the timed
//! unit is a whole transaction, because that is how long a caller waits.

use drumlin::{Database, Durability, Error, Keyspace, TxOptions};

use super::data::{Random, WriteOrder, key};
use super::measure::{Turns, Worker, measure};
use super::options::Distribution;
use super::report::{Facts, Report};
use super::target::Target;
use crate::failure::Result;
use crate::terminal::Progress;
use crate::{interrupt, process};

/// The default number of rows in a transaction.
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
        loop {
            let rows = self.batch.min(self.end - self.position);
            match self.commit(rows) {
                Ok(()) => {
                    self.position += rows;
                    return Ok(rows);
                }
                // A small memory budget needs smaller transactions.
                Err(Error::TransactionTooLarge { .. } | Error::MemoryInUse { .. }) if rows > 1 => self.batch = rows / 2,
                Err(error) => return Err(error),
            }
        }
    }
}

impl Loader {
    /// Creates the loader for one thread's share of the rows.
    fn new(target: &Target<'_>, thread: u64, threads: u64, batch: u64, durability: Durability) -> Result<Loader> {
        let keys = target.about.keys;
        Ok(Loader {
            database: target.database().clone(),
            keyspace: target.rows()?,
            options: TxOptions { durability, ..TxOptions::default() },
            order: target.order(),
            random: Random::new(thread, keys, Distribution::Uniform),
            value: vec![0; target.about.value_size as usize],
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

pub(super) fn run(target: &mut Target<'_>) -> Result<Report> {
    let batch = u64::from(target.options.batch.unwrap_or(BATCH_DEFAULT));
    let threads = target.threads();
    let durability = target.options.durability.into();
    let loaders = (0..threads).map(|thread| Loader::new(target, thread, threads, batch, durability));
    let loaders = loaders.collect::<Result<Vec<_>>>()?;
    process::reset_resident_bytes_max();
    let mut turns = Turns::new();
    turns.add(measure(loaders, None, || target.stats())?, None);
    let facts = Facts {
        name: "load",
        unit: "rows",
        call: format!("a commit of {batch}"),
        batch,
        data_bytes: target.about.data_bytes(),
        limit: None,
    };
    let report = Report::new(target, &turns, facts);
    target.set_loaded()?;
    Ok(report)
}

/// If the rows are missing, loads them without measuring. A checkpoint then writes them from the log to the data file.
pub(super) fn ensure_rows(target: &mut Target<'_>) -> Result<()> {
    if target.is_loaded() {
        return Ok(());
    }
    let progress = Progress::items(target.output, "loading", target.about.keys);
    let mut loader = Loader::new(target, 0, 1, u64::from(BATCH_DEFAULT), Durability::Relaxed)?;
    loop {
        let rows = loader.call()?;
        if rows == 0 {
            break;
        }
        progress.add(rows);
        interrupt::check()?;
    }
    progress.finish();
    target.set_loaded()
}

/// Returns the first row of a thread's share.
pub(super) fn share(keys: u64, thread: u64, threads: u64) -> u64 {
    (u128::from(keys) * u128::from(thread) / u128::from(threads)) as u64
}
