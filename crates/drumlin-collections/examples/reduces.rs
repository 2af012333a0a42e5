//! Measures reductions over random key ranges, repeated without writes in between: the reduce of a view of a million
//! documents, and the sum, maximum and count of a million rows of 108 bytes. All data is in memory.
//!
//! `cargo run --release -p drumlin-collections --example reduces [DOCUMENTS]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use drumlin::{Config, Field, Keyspace, Max, Sum};
use drumlin_collections::{Collection, Collections, Documents, Parts, Postcard, View};
use serde::{Deserialize, Serialize};

const ROUNDS: usize = 9;
const RANGES: u64 = 2000;
const DAYS: u32 = 3_650;

#[derive(Serialize, Deserialize)]
struct Sale {
    id: u64,
    day: u32,
    cents: u64,
}

impl Sale {
    const REVENUE: View<Sale, u32, u64> =
        View::new("revenue", |sale: &Sale, emit| emit(sale.day, sale.cents)).reducing(|a, b| a + b);

    fn numbered(id: u64) -> Sale {
        let drawn = drawn(id);
        Sale { id, day: (drawn >> 32) as u32 % DAYS, cents: drawn >> 44 }
    }
}

fn drawn(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Collection for Sale {
    type Key = u64;
    type Codec = Postcard;
    const NAME: &'static str = "sales";

    fn key(&self) -> u64 {
        self.id
    }

    fn parts() -> Parts<Sale> {
        Parts::new().view(Sale::REVENUE)
    }
}

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Loads documents and rows. Each row's value has 92 bytes and starts with an eight-byte number.
fn load(rows: &Keyspace, documents: &Documents<Sale>, collections: &Collections, count: u64) -> Outcome {
    for first in (0..count).step_by(1000) {
        let numbers = first..(first + 1000).min(count);
        collections.transact(|tx| numbers.clone().try_for_each(|id| tx.insert(documents, &Sale::numbered(id))))?;
        collections.database().transact(|tx| {
            numbers.clone().try_for_each(|id| {
                let mut value = [0; 92];
                value[..8].copy_from_slice(&drawn(id).to_be_bytes());
                tx.insert(rows, id.to_be_bytes(), value)
            })
        })?;
    }
    Ok(())
}

/// Returns two random numbers below `end`, the smaller first.
fn range(number: u64, end: u64) -> (u64, u64) {
    let (one, other) = (drawn(2 * number) >> 20, drawn(2 * number + 1) >> 20);
    let (one, other) = (one % end, other % end);
    (one.min(other), one.max(other))
}

/// Prints how long a reduction of all rows takes, which also stores the reduced states. Then prints, for random ranges,
/// the median and the 99th percentile, and the lowest median of any round.
fn measure(name: &str, end: u64, mut ask: impl FnMut(u64, u64) -> Outcome) -> Outcome {
    let start = Instant::now();
    ask(0, end)?;
    let first = start.elapsed();
    let mut medians = Vec::new();
    let mut all: Vec<Duration> = Vec::new();
    for _ in 0..ROUNDS {
        let mut times = Vec::new();
        for number in 0..RANGES {
            let (lower, upper) = range(number, end);
            let start = Instant::now();
            ask(lower, upper)?;
            times.push(start.elapsed());
        }
        all.extend(&times);
        times.sort_unstable();
        medians.push(times[times.len() / 2]);
    }
    all.sort_unstable();
    let least = medians.iter().min().expect("there are rounds");
    let (median, percentile) = (all[all.len() / 2], all[all.len() * 99 / 100]);
    println!("{name}: {median:?}, 99th percentile {percentile:?}, least median {least:?}; first of all rows {first:?}");
    Ok(())
}

fn main() -> Outcome {
    let count: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let db = Config::in_memory().memory(2 << 30).open("")?;
    let collections = Collections::new(&db);
    let (rows, documents) = (db.keyspace("rows")?, collections.open::<Sale>()?);
    load(&rows, &documents, &collections, count)?;
    let field = Field::<u64>::big_endian(0);
    let keys = |lower: u64, upper: u64| lower.to_be_bytes()..upper.to_be_bytes();
    measure("reduce of a view", u64::from(DAYS), |lower, upper| {
        black_box(documents.view(&Sale::REVENUE).reduce(lower as u32..upper as u32)?);
        Ok(())
    })?;
    measure("sum", count, |lower, upper| {
        black_box(rows.aggregate(&Sum::of(field), keys(lower, upper))?);
        Ok(())
    })?;
    measure("greatest number", count, |lower, upper| {
        black_box(rows.aggregate(&Max::of(field), keys(lower, upper))?);
        Ok(())
    })?;
    measure("count", count, |lower, upper| {
        black_box(rows.count(keys(lower, upper))?);
        Ok(())
    })
}
