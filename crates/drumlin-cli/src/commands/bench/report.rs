//! The report of a bench. The names of the first fields are a promise to scripts.

use std::time::Duration;

use serde::Serialize;

use super::measure::Turns;
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
    keys: u64,
    value_size: u64,
    threads: u64,
    batch: u64,
    /// The operation that is counted.
    #[serde(skip)]
    unit: &'static str,
    /// The stretch that was timed, where it was more than one operation.
    #[serde(skip)]
    call: String,
    #[serde(skip)]
    limit_text: String,
}

/// Facts that only the bench itself knows.
pub(super) struct Told {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) call: String,
    pub(super) batch: u64,
    pub(super) data_bytes: u64,
    /// The raw device's rate in the unit of [`Limit`], and what of it the store reached.
    pub(super) limit: Option<Limit>,
}

/// The device that the store is compared with.
pub(super) struct Limit {
    pub(super) per_second: f64,
    pub(super) reached_per_second: f64,
    pub(super) unit: &'static str,
}

impl Report {
    pub(super) fn new(target: &Target<'_>, turns: &Turns, told: Told) -> Report {
        let stats = target.stats();
        let all = &turns.all;
        let latency = &all.latency_ns;
        let us = |ns: u64| ns as f64 / 1000.0;
        let per_op = |amount: f64| amount / all.ops.max(1) as f64;
        let limit_text = told.limit.as_ref().map_or_else(
            || "none applies".to_owned(),
            |limit| {
                format!(
                    "{} raw {}, the store did {}",
                    figures::rate(limit.per_second),
                    limit.unit,
                    figures::rate(limit.reached_per_second)
                )
            },
        );
        Report {
            name: told.name,
            ops_per_second: turns.median_of(super::measure::Measured::ops_per_second),
            limit_per_second: told.limit.as_ref().map(|limit| limit.per_second),
            limit_unit: told.limit.as_ref().map(|limit| limit.unit),
            ratio_to_limit: told.limit.as_ref().map(|limit| limit.reached_per_second / limit.per_second.max(1e-9)),
            p50_us: us(latency.value_at_quantile(0.5)),
            p99_us: us(latency.value_at_quantile(0.99)),
            p999_us: us(latency.value_at_quantile(0.999)),
            cpu_us_per_op: per_op(all.cpu.as_secs_f64() * 1e6),
            device_reads_per_op: per_op(all.device_reads as f64),
            device_read_bytes: all.device_read_bytes,
            device_write_bytes: all.device_write_bytes,
            budget_bytes: stats.memory_budget_bytes,
            resident_bytes_max: process::resident_bytes_max(),
            data_bytes: told.data_bytes,
            io_backend: stats.io_backend,
            sync_method: stats.sync_method,
            ops: all.ops,
            seconds: all.elapsed.as_secs_f64(),
            min_us: us(latency.min()),
            mean_us: latency.mean() / 1000.0,
            max_us: us(latency.max()),
            stddev_us: latency.stdev() / 1000.0,
            device_reads_per_second: turns.median_of(super::measure::Measured::device_reads_per_second),
            keys: target.about.keys,
            value_size: target.about.value_size,
            threads: target.threads(),
            batch: told.batch,
            unit: told.unit,
            call: told.call,
            limit_text,
        }
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
        line("rate", format!("{good}{}{good:#} {}/s", figures::rate(self.ops_per_second), self.unit));
        let ratio = self.ratio_to_limit.map(|ratio| format!(": {bold}{ratio:.2}{bold:#}")).unwrap_or_default();
        line("limit", format!("{}{ratio}", self.limit_text));
        line(
            "latency",
            format!(
                "{}: p50 {}  p99 {}  p99.9 {}  max {}",
                self.call,
                microseconds(self.p50_us),
                microseconds(self.p99_us),
                microseconds(self.p999_us),
                microseconds(self.max_us)
            ),
        );
        line("processor", format!("{} us an operation", figures::rate(self.cpu_us_per_op)));
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
        lines.join("\n")
    }
}

fn microseconds(us: f64) -> String {
    if us < 10.0 { format!("{us:.2} us") } else { figures::duration(Duration::from_secs_f64(us / 1e6)) }
}
