//! The report of a benchmark. Scripts rely on the names of the first fields.

use std::time::Duration;

use drumlin::BackupReport;
use serde::Serialize;

use super::measure::{Measured, Spread, Turns};
use super::target::Target;
use crate::process;
use crate::terminal::{figures, style};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    name: &'static str,
    ops_per_second: f64,
    limit_per_second: Option<f64>,
    limit_unit: Option<&'static str>,
    ratio_to_limit: Option<f64>,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    cpu_us_per_op: f64,
    device_reads_per_op: f64,
    device_read_bytes: u64,
    device_write_bytes: u64,
    budget_bytes: u64,
    resident_bytes_max: Option<u64>,
    data_bytes: u64,
    io_backend: &'static str,
    sync_method: &'static str,

    ops: u64,
    seconds: f64,
    min_us: f64,
    mean_us: f64,
    max_us: f64,
    stddev_us: f64,
    device_reads_per_second: f64,
    /// The spreads over the turns; `ops_per_second` and `limit_per_second` are the medians.
    ops_per_second_spread: Spread,
    limit_per_second_spread: Option<Spread>,
    keys: u64,
    value_size: u64,
    threads: u64,
    batch: u64,
    /// The backup that was made during the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) backup: Option<Backup>,
    /// The name of the operation that is counted.
    #[serde(skip)]
    unit: &'static str,
    /// The timed unit, if it comprises more than one operation.
    #[serde(skip)]
    call: String,
    #[serde(skip)]
    limit: Option<Limit>,
}

/// A backup that was made during the measurement.
#[derive(Debug, Serialize)]
pub(super) struct Backup {
    bytes: u64,
    seconds: f64,
}

impl From<BackupReport> for Backup {
    fn from(report: BackupReport) -> Backup {
        Backup { bytes: report.bytes, seconds: report.duration.as_secs_f64() }
    }
}

/// The facts specific to one benchmark.
pub(super) struct Facts {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) call: String,
    pub(super) batch: u64,
    pub(super) data_bytes: u64,
    /// The raw device's rate, and the store's rate in the same unit.
    pub(super) limit: Option<Limit>,
}

/// The rate of the raw device that the store is compared with.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) per_second: f64,
    pub(super) spread: Spread,
    pub(super) reached_per_second: f64,
    pub(super) unit: &'static str,
    /// The explanation to print if the ratio is above 1.
    pub(super) above_one: &'static str,
}

/// The explanation for a ratio above 1 if the store cannot outperform the raw device.
pub(super) const NOISE: &str = "noise: the drive's rate changes from turn to turn";

impl Report {
    pub(super) fn new(target: &Target<'_>, turns: &Turns, facts: Facts) -> Report {
        let stats = target.stats();
        let all = &turns.all;
        let latency = &all.latency_ns;
        let us = |ns: u64| ns as f64 / 1000.0;
        let per_op = |amount: f64| amount / all.ops.max(1) as f64;
        Report {
            name: facts.name,
            ops_per_second: turns.median_of(Measured::ops_per_second),
            limit_per_second: facts.limit.as_ref().map(|limit| limit.per_second),
            limit_unit: facts.limit.as_ref().map(|limit| limit.unit),
            ratio_to_limit: facts.limit.as_ref().map(|limit| limit.reached_per_second / limit.per_second.max(1e-9)),
            p50_us: us(latency.value_at_quantile(0.5)),
            p99_us: us(latency.value_at_quantile(0.99)),
            p999_us: us(latency.value_at_quantile(0.999)),
            cpu_us_per_op: per_op(all.cpu.as_secs_f64() * 1e6),
            device_reads_per_op: per_op(all.device_reads as f64),
            device_read_bytes: all.device_read_bytes,
            device_write_bytes: all.device_write_bytes,
            budget_bytes: stats.memory_budget_bytes,
            resident_bytes_max: process::resident_bytes_max(),
            data_bytes: facts.data_bytes,
            io_backend: stats.io_backend,
            sync_method: stats.sync_method,
            ops: all.ops,
            seconds: all.elapsed.as_secs_f64(),
            min_us: us(latency.min()),
            mean_us: latency.mean() / 1000.0,
            max_us: us(latency.max()),
            stddev_us: latency.stdev() / 1000.0,
            device_reads_per_second: turns.median_of(Measured::device_reads_per_second),
            keys: target.about.keys,
            value_size: target.about.value_size,
            threads: target.threads(),
            batch: facts.batch,
            backup: None,
            unit: facts.unit,
            call: facts.call,
            ops_per_second_spread: turns.spread_of(Measured::ops_per_second),
            limit_per_second_spread: facts.limit.as_ref().map(|limit| limit.spread),
            limit: facts.limit,
        }
    }

    /// Formats the spread over the turns, if there were several.
    fn turns(&self) -> String {
        let Spread { min, max } = self.ops_per_second_spread;
        if min < max { between(self.ops_per_second_spread) } else { String::new() }
    }

    pub(super) fn text(&self) -> String {
        let (bold, dim, good) = (style::BOLD, style::DIM, style::GOOD);
        let mut lines = vec![format!(
            "{bold}{}{bold:#}  {} keys of 16 + {} bytes, {}, {} measured",
            self.name,
            figures::count(self.keys),
            figures::count(self.value_size),
            figures::plural(self.threads, "thread"),
            figures::duration(Duration::from_secs_f64(self.seconds))
        )];
        let mut line = |label: &str, text: String| lines.push(format!("  {dim}{label:<9}{dim:#} {text}"));
        let unit = self.unit;
        line("rate", format!("{good}{}{good:#} {unit}/s{}", figures::rate(self.ops_per_second), self.turns()));
        match &self.limit {
            None => line("limit", "none applies".to_owned()),
            Some(limit) => {
                line("limit", format!("{} {}{}", figures::rate(limit.per_second), limit.unit, between(limit.spread)));
                let ratio = limit.reached_per_second / limit.per_second.max(1e-9);
                let why = if ratio > 1.0 { format!(" (above 1: {})", limit.above_one) } else { String::new() };
                let reached = figures::rate(limit.reached_per_second);
                line("ratio", format!("{bold}{ratio:.2}{bold:#}, the store did {reached}{why}"));
            }
        }
        line(
            "latency",
            format!(
                "{}: p50 {}  p99 {}  p99.9 {}  max {}",
                self.call,
                duration(self.p50_us),
                duration(self.p99_us),
                duration(self.p999_us),
                duration(self.max_us)
            ),
        );
        line("processor", format!("{} an operation", duration(self.cpu_us_per_op)));
        line(
            "device",
            format!(
                "{} reads an operation, {} read, {} written",
                figures::rate(self.device_reads_per_op),
                figures::bytes(self.device_read_bytes),
                figures::bytes(self.device_write_bytes)
            ),
        );
        line("", format!("{} backend, durable by {}", self.io_backend, self.sync_method));
        let resident = self.resident_bytes_max.map(|bytes| format!(", {} resident at most", figures::bytes(bytes)));
        line(
            "memory",
            format!(
                "{} of data, a budget of {}{}",
                figures::bytes(self.data_bytes),
                figures::budget(self.budget_bytes),
                resident.unwrap_or_default()
            ),
        );
        if let Some(Backup { bytes, seconds }) = self.backup {
            let in_time = figures::duration(Duration::from_secs_f64(seconds));
            line("backup", format!("{} in {in_time}, during the measurement", figures::bytes(bytes)));
        }
        lines.join("\n")
    }
}

fn duration(us: f64) -> String {
    figures::duration(Duration::from_secs_f64(us / 1e6))
}

/// Formats the minimum and maximum over the turns.
fn between(spread: Spread) -> String {
    format!(" ({} to {})", figures::rate(spread.min), figures::rate(spread.max))
}
