//! Measures the cost of indexes and views: the rate of durable inserts of documents with two indexes and a view,
//! compared with the rate for plain rows with the same bytes, with one and with a hundred inserts per commit. The
//! measurements alternate.
//!
//! `cargo run --release -p drumlin-collections --example rates [FOLDER] [SECONDS]`
//!
//! The files are created in a new folder within FOLDER (by default the system's temporary directory), and are removed
//! at the end.

use std::time::{Duration, Instant};

use drumlin::{Config, Keyspace};
use drumlin_collections::{Codec, Collection, Collections, Documents, Index, Parts, Postcard, View};
use serde::{Deserialize, Serialize};

const ROUNDS: usize = 5;
const DOCUMENTS: [u64; 2] = [1, 100];

#[derive(Serialize, Deserialize)]
struct Order {
    id: u64,
    customer: u64,
    month: u32,
    category: u8,
    cents: u64,
    note: String,
}

impl Order {
    const BY_CUSTOMER: Index<Order, u64> = Index::new("by customer", |order| order.customer);
    const BY_CENTS: Index<Order, u64> = Index::new("by cents", |order| order.cents);
    const REVENUE: View<Order, (u32, u8), u64> =
        View::new("revenue", |order: &Order, emit| emit((order.month, order.category), order.cents))
            .reducing(|a, b| a + b);

    /// Creates an order with a pseudorandom customer, month and sum, which scatters its index and view rows.
    fn numbered(id: u64) -> Order {
        let drawn = (id + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Order {
            id,
            customer: drawn >> 50,
            month: 202_601 + (drawn >> 20) as u32 % 12,
            category: drawn as u8 % 20,
            cents: drawn >> 44,
            note: "x".repeat(100),
        }
    }
}

impl Collection for Order {
    type Key = u64;
    type Codec = Postcard;
    const NAME: &'static str = "orders";

    fn key(&self) -> u64 {
        self.id
    }

    fn parts() -> Parts<Order> {
        Parts::new().index(Order::BY_CUSTOMER).index(Order::BY_CENTS).view(Order::REVENUE)
    }
}

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Inserts `step` documents per call until `time` has passed. Returns the number of documents inserted per second.
fn rate(
    time: Duration,
    next: &mut u64,
    step: u64,
    mut insert: impl FnMut(std::ops::Range<u64>) -> Outcome,
) -> Outcome<f64> {
    let (start, first) = (Instant::now(), *next);
    while start.elapsed() < time {
        insert(*next..*next + step)?;
        *next += step;
    }
    Ok((*next - first) as f64 / start.elapsed().as_secs_f64())
}

fn insert_rows(plain: &Keyspace, collections: &Collections, ids: std::ops::Range<u64>) -> Outcome {
    let row = |id: u64| Postcard::encode(&Order::numbered(id));
    if ids.end - ids.start == 1 {
        return Ok(plain.insert(ids.start.to_be_bytes(), row(ids.start)?)?);
    }
    Ok(collections.database().transact(|tx| {
        ids.clone().try_for_each(|id| tx.insert(plain, id.to_be_bytes(), row(id).expect("an order has bytes")))
    })?)
}

fn insert_documents(orders: &Documents<Order>, collections: &Collections, ids: std::ops::Range<u64>) -> Outcome {
    if ids.end - ids.start == 1 {
        return Ok(orders.insert(&Order::numbered(ids.start))?);
    }
    Ok(collections.transact(|tx| ids.clone().try_for_each(|id| tx.insert(orders, &Order::numbered(id))))?)
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let seconds: f64 = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    let folder = tempfile::tempdir_in(folder)?;
    let db = Config::new().memory(256 << 20).open(folder.path().join("rates.drumlin"))?;
    let collections = Collections::new(&db);
    let (plain, orders) = (db.keyspace("plain")?, collections.open::<Order>()?);
    let time = Duration::from_secs_f64(seconds);
    let (mut next_row, mut next_document) = (0, 0);
    for step in DOCUMENTS {
        let (mut rows, mut documents) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            rows.push(rate(time, &mut next_row, step, |ids| insert_rows(&plain, &collections, ids))?);
            documents.push(rate(time, &mut next_document, step, |ids| insert_documents(&orders, &collections, ids))?);
        }
        let (rows, documents) = (median(rows), median(documents));
        println!("{step:>3} a commit: {rows:>9.0} rows/s, {documents:>9.0} documents/s, {:.2} of it", documents / rows);
    }
    let view = orders.view(&Order::REVENUE);
    let start = Instant::now();
    let total = view.reduce(..)?;
    println!("reduce of {} documents: {:?} in {:?}", orders.now().iter().count(), total, start.elapsed());
    Ok(())
}
