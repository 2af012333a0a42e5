//! Two transactions change different rows of one keyspace without waiting for each other. A third transaction has to
//! wait.
//!
//! `cargo run --example parallel_writers`

use std::sync::mpsc::channel;
use std::thread;

use drumlin::{Config, Isolation, Result, TxOptions};

fn main() -> Result<()> {
    let db = Config::in_memory().open("")?;
    let seats = db.keyspace("seats")?;
    for seat in ["12a", "12b"] {
        seats.insert(seat, "free")?;
    }

    let mut one = db.begin()?;
    one.insert(&seats, "12a", "ada")?;
    println!("The first transaction takes seat 12a and leaves its change open.");

    let mut other = db.begin()?;
    other.insert(&seats, "12b", "grace")?;
    other.commit()?;
    println!("The second takes 12b, in the same page, and has committed: it did not wait.");

    // With read committed isolation, the transaction waits for the row and then sees its newest version. With snapshot
    // isolation, the default, it would fail with a conflict.
    let options = TxOptions { isolation: Isolation::ReadCommitted, ..TxOptions::default() };
    let (asks, asked) = channel();
    thread::scope(|scope| {
        let third = scope.spawn(|| -> Result<()> {
            let mut third = db.begin_with(options)?;
            asks.send(()).expect("somebody listens");
            let holder = third.get_for_update(&seats, "12a")?.expect("the row is there");
            println!("The third gets the row and reads who has it: {}.", String::from_utf8_lossy(&holder));
            third.commit().map(drop)
        });
        asked.recv().expect("the third asks");
        println!("A third wants 12a and waits, for this row alone, until the first has ended.");
        println!("The first commits.");
        one.commit()?;
        third.join().expect("it does not panic")
    })
}
