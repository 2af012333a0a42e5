//! A shop: orders by customer, and revenue by month and by category.
//!
//! `cargo run -p drumlin-collections --example shop`

use std::io::Write;

use drumlin::{Config, Database};
use drumlin_collections::encoding::prefix;
use drumlin_collections::{Collection, Collections, Index, Parts, Postcard, View};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    id: u64,
    customer: String,
    /// Year and month, for example 202611.
    month: u32,
    lines: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    category: String,
    cents: u64,
}

impl Order {
    const BY_CUSTOMER: Index<Order, String> = Index::new("by customer", |order| order.customer.clone());

    /// The revenue in cents by month and category, with one row for each line of an order.
    const REVENUE: View<Order, (u32, String), u64> = View::new("revenue", |order: &Order, emit| {
        for line in &order.lines {
            emit((order.month, line.category.clone()), line.cents);
        }
    })
    .reducing(|a, b| a + b);
}

impl Collection for Order {
    type Key = u64;
    type Codec = Postcard;
    const NAME: &'static str = "orders";

    fn key(&self) -> u64 {
        self.id
    }

    fn parts() -> Parts<Order> {
        Parts::new().index(Order::BY_CUSTOMER).view(Order::REVENUE)
    }
}

fn order(id: u64, customer: &str, month: u32, lines: &[(&str, u64)]) -> Order {
    let line = |(category, cents): &(&str, u64)| Line { category: (*category).to_owned(), cents: *cents };
    Order { id, customer: customer.to_owned(), month, lines: lines.iter().map(line).collect() }
}

fn euros(cents: u64) -> String {
    format!("{:>7}.{:02}", cents / 100, cents % 100)
}

pub(crate) fn run(db: &Database, out: &mut impl Write) -> Result<(), Box<dyn std::error::Error>> {
    let collections = Collections::new(db);
    let orders = collections.open::<Order>()?;
    // Insert several documents in one transaction, along with their rows in the index and the view.
    collections.transact(|tx| {
        tx.insert(&orders, &order(1, "ada", 202610, &[("books", 2490), ("tea", 900)]))?;
        tx.insert(&orders, &order(2, "grace", 202610, &[("tea", 1250)]))?;
        tx.insert(&orders, &order(3, "ada", 202611, &[("books", 1990)]))?;
        tx.insert(&orders, &order(4, "barbara", 202611, &[("books", 3500), ("tea", 450), ("tea", 600)]))
    })?;

    writeln!(out, "orders of ada:")?;
    for order in orders.index(&Order::BY_CUSTOMER).get("ada") {
        let order = order?;
        writeln!(out, "  number {} of {}: {} lines", order.id, order.month, order.lines.len())?;
    }

    let revenue = orders.view(&Order::REVENUE);
    writeln!(out, "revenue by month:")?;
    for group in revenue.groups_by(.., |(month, _)| *month) {
        let (month, cents) = group?;
        writeln!(out, "  {month}   {}", euros(cents))?;
    }
    writeln!(out, "in 202611 by category:")?;
    for group in revenue.groups(prefix((202611,))) {
        let ((_, category), cents) = group?;
        writeln!(out, "  {category:<8} {}", euros(cents))?;
    }

    // Ada returns her October books: the index and the view follow the document.
    orders.update(1, |order| order.lines.retain(|line| line.category != "books"))?;
    let total = orders.view(&Order::REVENUE).reduce(..)?.unwrap_or(0);
    writeln!(out, "after a return, in all:\n           {}", euros(total))?;
    Ok(())
}

#[allow(dead_code, reason = "a test runs the program without it")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    run(&Config::in_memory().open("")?, &mut std::io::stdout())
}
