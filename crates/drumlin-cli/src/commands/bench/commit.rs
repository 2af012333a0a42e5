//! `drumlin bench commit`: transactions of `--batch` rows. Each thread commits its transactions in sequence. With
//! `--async`, `--threads` tasks on a single thread do so instead. An operation is a transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use drumlin::{Database, Keyspace, TxOptions};

use super::data::{KEY_BYTES, Random, WriteOrder, key};
use super::measure::{Measured, Spread, TURNS, Task, Turns, Worker, measure, measure_tasks};
use super::options::Distribution;
use super::raw::Writes;
use super::report::{Facts, Limit, NOISE, Report};
use super::target::Target;
use crate::commands::load::Durability;
use crate::failure::Result;
use crate::process;

struct Committer {
    database: Database,
    keyspace: Keyspace,
    options: TxOptions,
    order: WriteOrder,
    keys: u64,
    /// The next position in the write order. All threads share it, so two threads never write the same row
    /// concurrently.
    next: Arc<AtomicU64>,
    random: Random,
    value: Vec<u8>,
    batch: u64,
}

impl Worker for Committer {
    fn call(&mut self) -> drumlin::Result<u64> {
        let first = self.next.fetch_add(self.batch, Ordering::Relaxed);
        if self.batch == 1 {
            self.random.fill(&mut self.value);
            let row = self.order.row(first % self.keys);
            self.keyspace.insert_with(key(row), &self.value, self.options.durability)?;
            return Ok(1);
        }
        let mut transaction = self.database.begin_with(self.options)?;
        for position in first..first + self.batch {
            self.random.fill(&mut self.value);
            transaction.insert(&self.keyspace, key(self.order.row(position % self.keys)), &self.value)?;
        }
        transaction.commit()?;
        Ok(1)
    }
}

impl Task for Committer {
    async fn call(&mut self) -> drumlin::Result<u64> {
        let first = self.next.fetch_add(self.batch, Ordering::Relaxed);
        let mut transaction = self.database.begin_with(self.options)?;
        for position in first..first + self.batch {
            self.random.fill(&mut self.value);
            let row = key(self.order.row(position % self.keys));
            transaction.insert_async(&self.keyspace, row, &self.value).await?;
        }
        transaction.commit_async().await?;
        Ok(1)
    }
}

pub(super) fn run(target: &mut Target<'_>) -> Result<Report> {
    let batch = u64::from(target.options.batch.unwrap_or(1));
    let is_full = target.options.durability == Durability::Full;
    let keyspace = target.rows()?;
    let next = Arc::new(AtomicU64::new(0));
    let committers = |turn: u64| {
        (0..target.threads())
            .map(|thread| Committer {
                database: target.database().clone(),
                keyspace: keyspace.clone(),
                options: TxOptions { durability: target.options.durability.into(), ..TxOptions::default() },
                order: target.order(),
                keys: target.about.keys,
                next: Arc::clone(&next),
                random: Random::new(turn * 4096 + thread, target.about.keys, Distribution::Uniform),
                value: vec![0; target.about.value_size as usize],
                batch,
            })
            .collect::<Vec<_>>()
    };
    let is_async = target.options.is_async;
    let measure = |turn: u64, limit: Duration| {
        if is_async {
            measure_tasks(vec![committers(turn)], Some(limit), || target.stats())
        } else {
            measure(committers(turn), Some(limit), || target.stats())
        }
    };
    let slice = target.options.seconds / TURNS;
    let mut writes = if is_full { Some(Writes::create(&target.path, target.stats().sync_method)?) } else { None };
    measure(0, slice / 4)?;

    process::reset_resident_bytes_max();
    let mut turns = Turns::new();
    for turn in 1..=u64::from(TURNS) {
        let measured = measure(turn, slice)?;
        let raw = writes.as_mut().map(|writes| writes.run(slice)).transpose()?;
        turns.add(measured, raw);
    }
    let reached_per_second = turns.median_of(Measured::ops_per_second);
    let rows_written = next.load(Ordering::Relaxed).min(target.about.keys);
    let facts = Facts {
        name: "commit",
        unit: "commits",
        call: if batch == 1 { "a commit".to_owned() } else { format!("a commit of {batch}") },
        batch,
        data_bytes: rows_written * (KEY_BYTES as u64 + target.about.value_size),
        limit: turns.limit().map(|per_second| Limit {
            per_second,
            spread: Spread::of(turns.raw_per_second.iter().copied()).unwrap_or_default(),
            reached_per_second,
            unit: "durable 4 KiB writes/s by one thread",
            above_one: match is_async || target.threads() > 1 {
                true => "commits share the device's writes",
                false => NOISE,
            },
        }),
    };
    Ok(Report::new(target, &turns, facts))
}
