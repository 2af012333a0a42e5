//! Crowded disks: a database with very many pages and keyspaces must still accept removals when its disk is full.
//!
//! The engine estimates in advance how much space the next checkpoint needs, from the number of dirty pages, changed
//! tables and keyspaces. A small database rarely reaches sizes at which the estimate could be wrong.

use drumlin::{Database, Durability, Error, Keyspace, KeyspaceOptions, TxOptions};
use drumlin_io::testing::sim::Random;

use crate::client::{DURABLE, numbered, recorded};
use crate::model::{Content, Model, Operation, SpaceNumber};
use crate::plan::Plan;

/// Creates many keyspaces. Puts rows into one of them and into the first two of the usual keyspaces.
///
/// # Errors
/// Disk errors.
pub fn fill(db: &Database, model: &Model, plan: &Plan, random: &mut Random) -> Result<(), Error> {
    let relaxed = TxOptions { durability: Durability::Relaxed, ..TxOptions::default() };
    let (beside, row_count, value_bytes) = (plan.keyspaces_beside, plan.key_count, plan.value_bytes);
    for number in 0..beside {
        let name = beside_name(number);
        let options = KeyspaceOptions::new().page_bytes(512 << random.below(4));
        make(model, Operation::Create(name.clone()), true, || db.keyspace_with(&name, options)).map(drop)?;
    }
    // One of the additional keyspaces gets up to as many rows as a usual one.
    let large = beside_name(random.below(beside));
    for (name, share) in [(DURABLE[0].0, 100), (DURABLE[1].0, 50), (&large, random.below(100))] {
        let (keyspace, space) = open(db, model, name)?;
        let mut number = 0;
        while number < row_count * share / 100 {
            let end = number + 100;
            let mut tx = db.begin_with(relaxed)?;
            let mut rows = Vec::new();
            for number in number..end {
                let content = Content { length: random.below(value_bytes) as usize, seed: random.next() };
                tx.insert(&keyspace, numbered(number), content.bytes())?;
                rows.push((space, numbered(number), Some(content)));
            }
            make(model, Operation::Rows(rows), false, || tx.commit())?;
            number = end;
        }
    }
    if random.chance(70) {
        db.compact()?;
    }
    Ok(())
}

/// Puts rows until the next row does not fit. Returns `true` if it put any rows.
///
/// # Errors
/// Disk errors other than a full disk.
pub fn fill_up(db: &Database, model: &Model, random: &mut Random) -> Result<bool, Error> {
    let name = DURABLE[random.below(2) as usize].0;
    let (keyspace, space) = open(db, model, name)?;
    let mut has_put = false;
    loop {
        let content = Content { length: random.below(3000) as usize, seed: random.next() };
        // Most keys are new; otherwise, the disk would never fill up.
        let key = numbered(random.below(90_000));
        let operation = Operation::Rows(vec![(space, key.clone(), Some(content))]);
        match make(model, operation, true, || keyspace.insert(&key, content.bytes())) {
            Ok(_) => has_put = true,
            Err(Error::DiskFull { .. }) => return Ok(has_put),
            Err(error) => return Err(error),
        }
    }
}

/// Removes many of the rows, with every call that can, while no client is running. No removal may be refused, and once
/// half of the rows are gone, a new row must fit.
///
/// # Errors
/// Disk errors. Panics if a removal is refused because the disk is full.
pub fn thin_out(db: &Database, model: &Model, random: &mut Random) -> Result<(), Error> {
    if random.chance(40) {
        let beside: Vec<_> = model.spaces().into_iter().filter(|(name, _)| name.starts_with(BESIDE)).collect();
        let count = random.below(beside.len() as u64 + 1).min(10);
        for (name, space) in beside.into_iter().take(count as usize) {
            let dropped = make(model, Operation::Drop(space), true, || db.drop_keyspace(&name));
            not_refused(dropped, "dropping a keyspace")?;
        }
    }
    let mut removed = 0;
    let mut left = 0;
    let share = 20 + random.below(81);
    for (name, space) in model.spaces() {
        let (keyspace, _) = open(db, model, &name)?;
        let mut keys: Vec<Vec<u8>> = model.rows_at(space, model.last()).into_keys().collect();
        left += keys.len();
        if random.chance(50) {
            // Remove the rows in random order, so that many pages become dirty before the first one is empty.
            for index in (1..keys.len()).rev() {
                keys.swap(index, random.below(index as u64 + 1) as usize);
            }
        }
        keys.truncate(keys.len() * share as usize / 100);
        removed += keys.len();
        let together = [1, 1, 20, 100][random.below(4) as usize];
        for keys in keys.chunks(together) {
            let operation = Operation::Rows(keys.iter().map(|key| (space, key.clone(), None)).collect());
            let done = if let [key] = keys {
                make(model, operation, true, || keyspace.remove(key))
            } else {
                let mut tx = db.begin()?;
                keys.iter().try_for_each(|key| tx.remove(&keyspace, key))?;
                make(model, operation, true, || tx.commit().map(drop))
            };
            not_refused(done, "removing")?;
        }
    }
    if random.chance(50) {
        not_refused(db.checkpoint().map(drop), "a checkpoint")?;
    }
    not_refused(db.compact().map(drop), "compacting")?;
    if removed * 2 >= left && removed > 200 {
        let (keyspace, space) = open(db, model, DURABLE[0].0)?;
        let content = Content { length: 20, seed: 1 };
        let operation = Operation::Rows(vec![(space, numbered(0), Some(content))]);
        let put = make(model, operation, true, || keyspace.insert(numbered(0), content.bytes()));
        not_refused(put.map(drop), "putting a row where half was removed,")?;
    }
    Ok(())
}

const BESIDE: &str = "beside ";

fn beside_name(number: u64) -> String {
    format!("{BESIDE}{number}")
}

fn open(db: &Database, model: &Model, name: &str) -> Result<(Keyspace, SpaceNumber), Error> {
    Ok((db.existing_keyspace(name)?, model.space(name).expect("a keyspace of the model")))
}

/// Makes a commit and records it in the model.
fn make<T>(
    model: &Model,
    operation: Operation,
    is_full: bool,
    commit: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let (taken, result) = recorded(model, |_| operation, commit);
    if result.is_ok() && taken > 0 {
        model.answer(taken, is_full);
    }
    result
}

fn not_refused(result: Result<(), Error>, what: &str) -> Result<(), Error> {
    if let Err(error @ Error::DiskFull { .. }) = &result {
        panic!("{what} was refused on a full disk: {error}");
    }
    result
}
