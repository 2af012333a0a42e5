//! `drumlin bench log`: appends to the logs of a folder of logs (`drumlin::logs`). Each thread appends `--batch`
//! entries at a time and waits until they are durable; its appends go to the logs in turns. An operation is an append.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use drumlin::logs::{Log, Logs, LogsOptions};
use serde::Serialize;

use super::data::Random;
use super::measure::{Measured, Spread, TURNS, Turns, Worker, time};
use super::options::{Distribution, parse_seconds};
use super::raw::Writes;
use super::target::Temporary;
use crate::failure::Result;
use crate::filesystem::FileSystem;
use crate::process;
use crate::terminal::figures::parse_size;
use crate::terminal::{Output, figures, style};

/// A log is purged when it has this many appends, so that the folder stays small.
const APPENDS_KEPT: u64 = 1000;

#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// The folder of logs [default: a temporary one, removed afterwards]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// Number of logs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    logs: u64,
    /// Number of threads
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: u32,
    /// Size of an entry in bytes
    #[arg(long, value_name = "BYTES", default_value = "256", value_parser = parse_size)]
    entry_size: u64,
    /// Entries in an append
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    /// Memory that the logs may use
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    memory: u64,
    /// Seconds to measure for
    #[arg(long, value_name = "S", default_value = "5", value_parser = parse_seconds)]
    seconds: Duration,
}

/// A log, and the index of its next entry. An append to a log must know the index, so threads that share a log take
/// turns.
struct Shared {
    log: Log,
    next: u64,
}

struct Appender {
    logs: Arc<[Mutex<Shared>]>,
    /// The log of the next append.
    at: usize,
    entries: Vec<Vec<u8>>,
}

impl Worker for Appender {
    fn call(&mut self) -> drumlin::Result<u64> {
        let shared = &self.logs[self.at % self.logs.len()];
        self.at += 1;
        let receipt = {
            let mut shared = shared.lock().expect("no appender panics");
            let (first, count) = (shared.next, self.entries.len() as u64);
            let receipt = shared.log.append(first, &self.entries)?;
            shared.next += count;
            if (first / count).is_multiple_of(APPENDS_KEPT) && first > 0 {
                // It becomes durable with what follows.
                drop(shared.log.purge_to(first - 1)?);
            }
            receipt
        };
        receipt.wait()?;
        Ok(1)
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    name: &'static str,
    ops_per_second: f64,
    limit_per_second: f64,
    limit_unit: &'static str,
    ratio_to_limit: f64,
    entries_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    cpu_us_per_op: f64,
    cpu_us_per_entry: f64,
    syncs_per_op: f64,
    device_write_bytes: u64,
    budget_bytes: u64,
    index_memory_bytes: u64,
    cache_bytes: u64,
    file_bytes: u64,
    resident_bytes_max: Option<u64>,
    io_backend: &'static str,
    sync_method: &'static str,
    ops: u64,
    seconds: f64,
    ops_per_second_spread: Spread,
    limit_per_second_spread: Spread,
    logs: u64,
    threads: u64,
    entry_size: u64,
    batch: u64,
}

pub(super) fn run(options: &Options, output: Output) -> Result<Report> {
    let temporary = if options.path.is_none() { Some(Temporary::create()?) } else { None };
    let path = options.path.clone().or(temporary.as_ref().map(|temporary| temporary.path().join("logs")));
    let path = path.expect("either given or temporary");
    if FileSystem::of(&path).is_ok_and(|file_system| file_system.is_memory) {
        output.remark("warning: this file system is in memory, so no device is measured");
    }
    let logs = Logs::open(&path, &LogsOptions::new().memory(options.memory))?;
    let shared: Arc<[Mutex<Shared>]> = (0..options.logs)
        .map(|number| {
            let log = logs.log(number);
            let next = log.last().map_or(0, |last| last + 1).max(log.purged().map_or(0, |purged| purged + 1));
            Mutex::new(Shared { log, next })
        })
        .collect();
    let batch = u64::from(options.batch);
    let appenders = |turn: u64| {
        (0..u64::from(options.threads))
            .map(|thread| {
                let mut random = Random::new(turn * 4096 + thread, 1, Distribution::Uniform);
                let mut entries = vec![vec![0; options.entry_size as usize]; batch as usize];
                entries.iter_mut().for_each(|entry| random.fill(entry));
                // The threads begin at logs that are far apart.
                let at = (thread * options.logs / u64::from(options.threads)) as usize;
                Appender { logs: Arc::clone(&shared), at, entries }
            })
            .collect::<Vec<_>>()
    };
    let slice = options.seconds / TURNS;
    let mut writes = Writes::create(&path, logs.stats().sync_method)?;
    time(appenders(0), slice / 4)?;

    process::reset_resident_bytes_max();
    let before = logs.stats();
    let mut turns = Turns::new();
    for turn in 1..=u64::from(TURNS) {
        let measured = time(appenders(turn), slice)?;
        turns.add(measured, Some(writes.run(slice)?));
    }
    let stats = logs.stats();
    drop(shared);
    logs.close()?;

    let all = &turns.all;
    let us = |ns: u64| ns as f64 / 1000.0;
    let quantile = |quantile: f64| us(all.latency_ns.value_at_quantile(quantile));
    let per_op = |amount: f64| amount / all.ops.max(1) as f64;
    let ops_per_second = turns.median_of(Measured::ops_per_second);
    let limit_per_second = turns.limit().unwrap_or_default();
    let cpu_us_per_op = per_op(all.cpu.as_secs_f64() * 1e6);
    Ok(Report {
        name: "log",
        ops_per_second,
        limit_per_second,
        limit_unit: "durable 4 KiB writes/s by one thread",
        ratio_to_limit: ops_per_second / limit_per_second.max(1e-9),
        entries_per_second: ops_per_second * batch as f64,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
        max_us: us(all.latency_ns.max()),
        cpu_us_per_op,
        cpu_us_per_entry: cpu_us_per_op / batch as f64,
        syncs_per_op: per_op((stats.sync_count - before.sync_count) as f64),
        device_write_bytes: stats.written_bytes - before.written_bytes,
        budget_bytes: options.memory,
        index_memory_bytes: stats.index_memory_bytes,
        cache_bytes: stats.cache_bytes,
        file_bytes: stats.file_bytes,
        resident_bytes_max: process::resident_bytes_max(),
        io_backend: stats.io_backend,
        sync_method: stats.sync_method,
        ops: all.ops,
        seconds: all.elapsed.as_secs_f64(),
        ops_per_second_spread: turns.spread_of(Measured::ops_per_second),
        limit_per_second_spread: Spread::of(turns.raw_per_second.iter().copied()).unwrap_or_default(),
        logs: options.logs,
        threads: u64::from(options.threads),
        entry_size: options.entry_size,
        batch,
    })
}

impl Report {
    pub(super) fn text(&self) -> String {
        let (bold, dim, good) = (style::BOLD, style::DIM, style::GOOD);
        let mut lines = vec![format!(
            "{bold}{}{bold:#}  {}, entries of {} bytes, {} in an append, {}, {} measured",
            self.name,
            figures::plural(self.logs, "log"),
            figures::count(self.entry_size),
            figures::count(self.batch),
            figures::plural(self.threads, "thread"),
            figures::duration(Duration::from_secs_f64(self.seconds))
        )];
        let mut line = |label: &str, text: String| lines.push(format!("  {dim}{label:<9}{dim:#} {text}"));
        let between = |spread: Spread| format!("({} to {})", figures::rate(spread.min), figures::rate(spread.max));
        let us = |us: f64| figures::duration(Duration::from_secs_f64(us / 1e6));
        line(
            "rate",
            format!(
                "{good}{}{good:#} durable appends/s {}, {} entries/s",
                figures::rate(self.ops_per_second),
                between(self.ops_per_second_spread),
                figures::rate(self.entries_per_second)
            ),
        );
        let limit = figures::rate(self.limit_per_second);
        line("limit", format!("{limit} {} {}", self.limit_unit, between(self.limit_per_second_spread)));
        let why = if self.threads > 1 { ", appends share the device's writes" } else { "" };
        line("ratio", format!("{bold}{:.2}{bold:#}{why}", self.ratio_to_limit));
        line(
            "latency",
            format!(
                "an append: p50 {}  p99 {}  p99.9 {}  max {}",
                us(self.p50_us),
                us(self.p99_us),
                us(self.p999_us),
                us(self.max_us)
            ),
        );
        line("processor", format!("{} an append, {} an entry", us(self.cpu_us_per_op), us(self.cpu_us_per_entry)));
        line(
            "device",
            format!(
                "{} syncs an append, {} written",
                figures::rate(self.syncs_per_op),
                figures::bytes(self.device_write_bytes)
            ),
        );
        line("", format!("{} backend, durable by {}", self.io_backend, self.sync_method));
        let resident = self.resident_bytes_max.map(|bytes| format!(", {} resident at most", figures::bytes(bytes)));
        line(
            "memory",
            format!(
                "{} of indexes, {} of entries, a budget of {}{}",
                figures::bytes(self.index_memory_bytes),
                figures::bytes(self.cache_bytes),
                figures::budget(self.budget_bytes),
                resident.unwrap_or_default()
            ),
        );
        line("files", figures::bytes(self.file_bytes));
        lines.join("\n")
    }
}
