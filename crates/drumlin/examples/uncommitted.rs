//! Two transactions that do not see each other's uncommitted changes.
//!
//! `cargo run --example uncommitted`

use drumlin::{Config, Keyspace, Result, Transaction};

fn names(tx: &Transaction, guests: &Keyspace) -> Result<String> {
    let names = tx.iter(guests).map(|row| Ok(String::from_utf8_lossy(&row?.0).into_owned()));
    Ok(names.collect::<Result<Vec<_>>>()?.join(", "))
}

fn main() -> Result<()> {
    let db = Config::in_memory().open("")?;
    let guests = db.keyspace("guests")?;
    guests.insert("ada", "window")?;
    println!("On the list: ada.\n");

    let mut one = db.begin()?;
    let mut other = db.begin()?;
    one.insert(&guests, "grace", "aisle")?;
    println!("The first transaction adds grace and sees   {}.", names(&one, &guests)?);
    other.insert(&guests, "barbara", "door")?;
    println!("The second adds barbara and sees            {}.", names(&other, &guests)?);

    one.commit()?;
    println!("\nThe first commits.");
    println!("The second still sees                       {}:", names(&other, &guests)?);
    println!("a transaction looks at the moment it began, and at its own changes.");
    println!("One that begins now sees                    {}.", names(&db.begin()?, &guests)?);

    other.abort();
    println!("\nThe second gives up. What is left:          {}.", names(&db.begin()?, &guests)?);
    Ok(())
}
