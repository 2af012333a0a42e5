//! `drumlin bench scan`: reads all rows in key order from a database that was just opened.
//!
//! The limit is the raw sequential rate over the same file, using direct or buffered reads, whichever is faster. It is
//! expressed in rows: raw bytes per second divided by the bytes of a row's key and value. Pages are compressed, so the
//! ratio can exceed 1.

use std::time::Duration;

use drumlin::Range;

use super::data::key;
use super::load::{self, share};
use super::measure::{Measured, Spread, Turns, Worker, measure, median};
use super::raw::Reads;
use super::report::{Facts, Limit, Report};
use super::target::Target;
use crate::failure::Result;
use crate::process;

/// The number of rows in a timed step. Reading the clock for each row would cost as much as the row.
const ROWS_PER_STEP: u64 = 1000;

/// The minimum number of turns. A turn reads all rows or stops when its share of the time is up; if the data is small,
/// turns repeat until the total time is up.
const TURNS_MIN: usize = 3;
const TURNS_MAX: usize = 100;

struct Scanner {
    rows: Range,
    bytes: u64,
}

impl Worker for Scanner {
    fn call(&mut self) -> drumlin::Result<u64> {
        let mut rows = 0;
        for row in self.rows.by_ref().take(ROWS_PER_STEP as usize) {
            let (key, value) = row?;
            // Touch the first byte of the key and of the value, because a caller would use the bytes it reads.
            self.bytes += u64::from(key[0]) + value.first().copied().map_or(0, u64::from);
            rows += 1;
        }
        std::hint::black_box(self.bytes);
        Ok(rows)
    }
}

pub(super) fn run(target: &mut Target<'_>) -> Result<Report> {
    load::ensure_rows(target)?;
    let keys = target.about.keys;
    let row_bytes = target.about.data_bytes() as f64 / keys as f64;
    let threads = target.threads();
    let seconds = target.options.seconds;
    let slice = seconds / TURNS_MIN as u32;
    target.reopen()?;
    let reads = Reads::open(&target.data_file())?;
    reads.warm()?;
    process::reset_resident_bytes_max();
    let mut turns = Turns::new();
    let (mut direct, mut buffered) = (Vec::new(), Vec::new());
    while turns.each.len() < TURNS_MIN || (turns.all.elapsed < seconds && turns.each.len() < TURNS_MAX) {
        target.reopen()?;
        let keyspace = target.rows()?;
        let scanners = (0..threads)
            .map(|thread| {
                let (start, end) = (share(keys, thread, threads), share(keys, thread + 1, threads));
                Scanner { rows: keyspace.range(key(start).to_vec()..key(end).to_vec()), bytes: 0 }
            })
            .collect();
        let measured = measure(scanners, Some(slice), || target.stats())?;
        turns.add(measured, None);
        let slice = slice.max(Duration::from_millis(200));
        direct.push(reads.sequential_direct(slice)? / row_bytes);
        buffered.push(reads.sequential_buffered(slice)? / row_bytes);
    }
    let ways = [(direct, "rows/s by direct reads"), (buffered, "rows/s by buffered reads")];
    let ways = ways.map(|(rates, unit)| (median(rates.clone()), Spread::of(rates).unwrap_or_default(), unit));
    let faster = ways.into_iter().max_by(|one, other| one.0.partial_cmp(&other.0).expect("rates are numbers"));
    let reached_per_second = turns.median_of(Measured::ops_per_second);
    let facts = Facts {
        name: "scan",
        unit: "rows",
        call: format!("{ROWS_PER_STEP} rows"),
        batch: ROWS_PER_STEP,
        data_bytes: target.about.data_bytes(),
        limit: faster.and_then(|(rate, spread, unit)| {
            let above_one = "pages are compressed; or noise";
            rate.map(|per_second| Limit { per_second, spread, reached_per_second, unit, above_one })
        }),
    };
    Ok(Report::new(target, &turns, facts))
}
