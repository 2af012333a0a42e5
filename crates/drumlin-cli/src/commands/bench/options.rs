//! The options of every benchmark.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::commands::load::Durability;
use crate::terminal::figures::parse_size;

/// The number of keys if neither `--keys` nor an existing database gives one.
pub(super) const KEYS_DEFAULT: u64 = 1_000_000;

#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// The database [default: a temporary one, removed afterwards]
    #[arg(long, value_name = "DIR")]
    pub(super) path: Option<PathBuf>,
    /// Number of rows [default: that of an existing database, else 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000_000_000_000))]
    pub(super) keys: Option<u64>,
    /// Size of a value in bytes, half of them compressible
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = parse_size)]
    pub(super) value_size: u64,
    /// Number of threads
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) threads: u32,
    /// Rows in a transaction (load: 1000, commit: 1), or keys in a call (get: 1)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) batch: Option<u32>,
    /// Use the async calls: get with --batch tasks on each thread, commit and mixed with --threads tasks on one thread
    #[arg(long = "async")]
    pub(super) is_async: bool,
    /// Memory that the engine may use
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub(super) memory: u64,
    /// Parallel streams of the log
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) log_streams: u16,
    /// Which keys are read
    #[arg(long, value_enum, default_value_t = Distribution::Uniform)]
    pub(super) distribution: Distribution,
    /// In which order keys are written
    #[arg(long, value_enum, default_value_t = Order::Random)]
    pub(super) order: Order,
    /// mixed: percentage of operations that read
    #[arg(long, value_name = "P", default_value_t = 95, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(super) read_percent: u32,
    /// mixed: hold a snapshot open during the measurement
    #[arg(long)]
    pub(super) hold_snapshot: bool,
    /// mixed: back up the database to this new folder during the measurement
    #[arg(long, value_name = "BACKUP")]
    pub(super) backup: Option<PathBuf>,
    /// The durability that a commit waits for
    #[arg(long, value_enum, default_value_t = Durability::Full)]
    pub(super) durability: Durability,
    /// Seconds to measure the store for (load: until all rows are written)
    #[arg(long, value_name = "S", default_value = "5", value_parser = parse_seconds)]
    pub(super) seconds: Duration,
}

/// The distribution of the keys that are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Distribution {
    /// Each equally often
    Uniform,
    /// A few very often: Zipf's law with exponent 0.99
    Zipf,
}

/// The order in which keys are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Order {
    /// Ascending
    Sorted,
    /// In scrambled order, each once
    Random,
}

pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err("between 0.01 and 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}
