//! Several threads move money between accounts. A transfer that conflicts with a concurrent one is retried.
//!
//! `cargo run --example transfer`

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use drumlin::{Config, Error, Keyspace, Result, Transaction};

const ACCOUNTS: [&str; 3] = ["ada", "barbara", "grace"];
const TRANSFERS: usize = 200;
const THREADS: usize = 4;

fn balance(tx: &Transaction, accounts: &Keyspace, name: &str) -> Result<u64> {
    let bytes = tx.get(accounts, name)?.ok_or_else(|| Error::Invalid(format!("{name} has no account")))?;
    Ok(u64::from_be_bytes(bytes[..].try_into().expect("eight bytes")))
}

/// Changes both accounts or neither. If a concurrent transaction changes one of them first, `transact` gets a conflict
/// and retries this closure with the new balances.
fn transfer(tx: &mut Transaction, accounts: &Keyspace, from: &str, to: &str, amount: u64) -> Result<bool> {
    let (has, gets) = (balance(tx, accounts, from)?, balance(tx, accounts, to)?);
    if has < amount {
        return Ok(false);
    }
    tx.insert(accounts, from, (has - amount).to_be_bytes())?;
    tx.insert(accounts, to, (gets + amount).to_be_bytes())?;
    Ok(true)
}

fn main() -> Result<()> {
    let db = Config::in_memory().open("")?;
    let accounts = db.keyspace("accounts")?;
    for name in ACCOUNTS {
        accounts.insert(name, 1000u64.to_be_bytes())?;
    }

    let (attempts, moved) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (db, accounts, attempts, moved) = (&db, &accounts, &attempts, &moved);
                scope.spawn(move || -> Result<()> {
                    for number in 0..TRANSFERS {
                        let from = ACCOUNTS[(thread + number) % ACCOUNTS.len()];
                        let to = ACCOUNTS[(thread + number + 1 + number % 2) % ACCOUNTS.len()];
                        let amount = 1 + (thread * 5 + number * 3) as u64 % 40;
                        let is_moved = db.transact(|tx| {
                            attempts.fetch_add(1, Ordering::Relaxed);
                            transfer(tx, accounts, from, to, amount)
                        })?;
                        moved.fetch_add(u64::from(is_moved), Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;

    let (attempts, moved) = (attempts.into_inner(), moved.into_inner());
    let asked = (THREADS * TRANSFERS) as u64;
    println!("{THREADS} threads asked for {asked} transfers between {} accounts.", ACCOUNTS.len());
    println!(
        "{moved} were made, {} had nothing to move, {} attempts were overtaken and ran again.",
        asked - moved,
        attempts - asked
    );
    let now = db.begin()?;
    let mut total = 0;
    for name in ACCOUNTS {
        let has = balance(&now, &accounts, name)?;
        println!("{name:>8} has {has}");
        total += has;
    }
    println!("Together {total}: nothing was lost, nothing was made.");
    assert_eq!(total, 1000 * ACCOUNTS.len() as u64);
    Ok(())
}
