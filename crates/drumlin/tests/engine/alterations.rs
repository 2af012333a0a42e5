//! Keyspaces that are created, renamed, swapped and dropped in one step: all or nothing, and what becomes of handles,
//! ranges, snapshots, transactions and bulk loads.

use drumlin::{Config, Database, Durability, Error, Isolation, KeyspaceOptions, TxOptions};
use smol::block_on;

use crate::support::{Folder, copy_folder, faulty, number, small};

fn opened() -> Database {
    Config::in_memory().memory(32 << 20).open("").unwrap()
}

/// Creates keyspaces that each have a row with their name.
fn with_keyspaces(db: &Database, names: &[&str]) {
    for name in names {
        db.keyspace(name).unwrap().insert("was", name).unwrap();
    }
}

/// Returns the name of each keyspace with the name that it had at first, if it has any row.
fn names(db: &Database) -> Vec<(String, Option<String>)> {
    let was = |name: &str| {
        let value = db.existing_keyspace(name).unwrap().get("was").unwrap();
        value.map(|value| String::from_utf8(value.to_vec()).unwrap())
    };
    db.keyspaces().into_iter().map(|info| (info.name.clone(), was(&info.name))).collect()
}

fn expect(db: &Database, expected: &[(&str, &str)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, was)| (name.to_string(), Some(was.to_string()).filter(|was| !was.is_empty())))
        .collect();
    assert_eq!(names(db), expected);
}

fn options() -> KeyspaceOptions {
    KeyspaceOptions::new().page_bytes(8 << 10)
}

/// Each kind of change does what its name says, alone and together with others. Names that a step has given up can be
/// taken in the same step, in any order.
#[test]
fn each_change_does_what_it_says() {
    let db = opened();
    with_keyspaces(&db, &["a", "b", "c"]);
    db.alter().commit().unwrap();
    db.alter().rename("a", "d").commit().unwrap();
    expect(&db, &[("b", "b"), ("c", "c"), ("d", "a")]);
    db.alter().swap("b", "c").commit().unwrap();
    expect(&db, &[("b", "c"), ("c", "b"), ("d", "a")]);
    db.alter().create("e", options()).commit().unwrap();
    expect(&db, &[("b", "c"), ("c", "b"), ("d", "a"), ("e", "")]);
    assert_eq!(db.keyspaces()[3].page_bytes, 8 << 10);
    db.alter().drop("e").commit().unwrap();
    // Three names go round, one of them by way of a name that no keyspace keeps.
    db.alter().rename("b", "x").rename("c", "b").rename("d", "c").rename("x", "d").commit().unwrap();
    expect(&db, &[("b", "b"), ("c", "a"), ("d", "c")]);
    db.alter().drop("b").create("b", options()).swap("b", "c").rename("d", "e").commit().unwrap();
    expect(&db, &[("b", "a"), ("c", ""), ("e", "c")]);
    // Changes that undo each other.
    db.alter().rename("b", "b").swap("c", "c").rename("e", "f").rename("f", "e").commit().unwrap();
    db.alter().create("g", options()).drop("g").commit().unwrap();
    expect(&db, &[("b", "a"), ("c", ""), ("e", "c")]);
    block_on(db.alter().drop("c").rename("b", "c").commit_async()).unwrap();
    expect(&db, &[("c", "a"), ("e", "c")]);
    assert!(db.check().unwrap().corruption.is_empty());
}

/// A step that can't be made as a whole changes nothing.
#[test]
fn a_refused_step_changes_nothing() {
    let db = opened();
    with_keyspaces(&db, &["a", "b"]);
    let long = "n".repeat(256);
    let refused = |result: Result<(), Error>, matches: fn(&Error) -> bool| {
        let error = result.unwrap_err();
        assert!(matches(&error), "{error:?}");
        expect(&db, &[("a", "a"), ("b", "b")]);
    };
    let is_missing = |error: &Error| matches!(error, Error::NoSuchKeyspace { .. });
    let exists = |error: &Error| matches!(error, Error::KeyspaceExists { .. });
    let is_invalid = |error: &Error| matches!(error, Error::Invalid(_));
    let is_large = |error: &Error| matches!(error, Error::TransactionTooLarge { .. });
    refused(db.alter().rename("a", "c").rename("a", "d").commit(), is_missing);
    refused(db.alter().rename("c", "a").commit(), is_missing);
    refused(db.alter().drop("a").drop("a").commit(), is_missing);
    refused(db.alter().swap("a", "c").commit(), is_missing);
    refused(db.alter().drop("b").swap("a", "b").commit(), is_missing);
    refused(db.alter().drop("b").rename("a", "c").create("c", options()).commit(), exists);
    refused(db.alter().rename("a", "b").commit(), exists);
    refused(db.alter().create("a", options()).commit(), exists);
    refused(db.alter().drop("b").rename("a", "").commit(), is_invalid);
    refused(db.alter().drop("b").create(&long, options()).commit(), is_invalid);
    refused(db.alter().drop("b").create("c", KeyspaceOptions::new().page_bytes(100)).commit(), is_invalid);
    let many = (0..20_000).fold(db.alter().drop("b"), |step, number| step.create(&number.to_string(), options()));
    refused(block_on(many.commit_async()), is_large);
    let other = db.clone();
    db.close().unwrap();
    assert!(matches!(other.alter().drop("a").commit(), Err(Error::Closed)));
}

/// Handles, open ranges, snapshots, transactions and bulk loads follow their keyspace, not its name.
#[test]
fn whatever_is_open_follows_its_keyspace() {
    let db = opened();
    with_keyspaces(&db, &["a", "b"]);
    let (a, b) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
    (0..5000u32).for_each(|row| a.insert_with(row.to_be_bytes(), [7; 20], Durability::Relaxed).unwrap());
    let snapshot = db.snapshot();
    let mut range = a.iter();
    range.by_ref().take(10).for_each(|row| drop(row.unwrap()));
    let mut of_snapshot = snapshot.iter(&a);
    of_snapshot.by_ref().take(10).for_each(|row| drop(row.unwrap()));
    let mut tx = db.begin_with(TxOptions { isolation: Isolation::Serializable, ..db.tx_options() }).unwrap();
    tx.insert(&a, "of the transaction", "1").unwrap();
    assert_eq!(tx.get(&b, "was").unwrap().unwrap(), "b");
    let mut load = db.bulk_load("empty").unwrap();
    load.insert("of the load", "1").unwrap();
    let mut batch = db.batch().unwrap();
    batch.insert(&b, "of the batch", "1").unwrap();

    db.alter().swap("a", "b").rename("empty", "full").commit().unwrap();
    assert_eq!((a.name(), b.name()), ("b".to_owned(), "a".to_owned()));
    assert_eq!(range.count() + 10, 5001);
    assert_eq!(of_snapshot.count() + 10, 5001);
    assert_eq!(snapshot.get(&a, "was").unwrap().unwrap(), "a");
    // Names have no versions.
    let now = db.keyspace("a").unwrap();
    assert_eq!(snapshot.get(&now, "was").unwrap().unwrap(), "b");
    tx.insert(&now, "also", "2").unwrap();
    tx.commit().unwrap();
    batch.commit().unwrap();
    load.finish().unwrap();
    a.insert("through the old handle", "1").unwrap();
    let other = db.keyspace("b").unwrap();
    assert!(other.contains_key("through the old handle").unwrap() && other.contains_key("of the transaction").unwrap());
    assert!(now.contains_key("also").unwrap() && now.contains_key("of the batch").unwrap());
    assert_eq!(db.keyspace("full").unwrap().get("of the load").unwrap().unwrap(), "1");
    assert!(matches!(db.existing_keyspace("empty"), Err(Error::NoSuchKeyspace { .. })));
    let error = a.insert([0; 5000], "").unwrap_err();
    assert!(error.to_string().contains("\"b\""), "{error}");
    assert!(db.check().unwrap().corruption.is_empty());
}

/// Calls on a keyspace that a step drops fail, even if another keyspace has its name by then.
#[test]
fn whatever_is_open_in_a_dropped_keyspace_fails() {
    let db = opened();
    with_keyspaces(&db, &["a", "b"]);
    let (a, b) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
    (0..5000u32).for_each(|row| a.insert_with(row.to_be_bytes(), [7; 20], Durability::Relaxed).unwrap());
    let snapshot = db.snapshot();
    let mut range = a.iter();
    range.next().unwrap().unwrap();
    let mut tx = db.begin().unwrap();
    tx.insert(&a, "k", "1").unwrap();
    let mut load = db.bulk_load("empty").unwrap();
    load.insert("k", "1").unwrap();
    db.alter().drop("a").drop("empty").rename("b", "a").create("b", options()).commit().unwrap();
    let dropped =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::KeyspaceDropped { .. })), "{result:?}");
    dropped(a.get("was").map(drop));
    dropped(a.insert("l", "v"));
    dropped(a.estimate(..).map(drop));
    dropped(range.find_map(Result::err).map_or(Ok(()), Err));
    dropped(snapshot.get(&a, "was").map(drop));
    dropped(tx.commit().map(drop));
    dropped(load.finish().map(drop));
    assert_eq!(a.name(), "a");
    assert_eq!(b.get("was").unwrap().unwrap(), "b");
    expect(&db, &[("a", "b"), ("b", "")]);
}

/// Names survive closing, a checkpoint and a kill. The log is replayed over each of the changes.
#[test]
fn names_survive_closing_and_kills() {
    let folder = Folder::new();
    let db = small().open(folder.path()).unwrap();
    with_keyspaces(&db, &["a", "b", "c"]);
    db.checkpoint().unwrap();
    let mut expected = vec![("a", "a"), ("b", "b"), ("c", "c")];
    for round in 0..6 {
        match round {
            0 => db.alter().rename("a", "d").commit().unwrap(),
            1 => db.alter().swap("b", "c").create("a", options()).commit().unwrap(),
            2 => db.checkpoint().map(drop).unwrap(),
            3 => db.alter().drop("a").rename("d", "a").commit().unwrap(),
            4 => db.alter().rename("a", &"n".repeat(255)).commit().unwrap(),
            _ => db.alter().drop("c").rename("b", "c").create("b", options()).commit().unwrap(),
        }
        let long = "n".repeat(255);
        let long: &str = Box::leak(long.into_boxed_str());
        expected = match round {
            0 => vec![("b", "b"), ("c", "c"), ("d", "a")],
            1 | 2 => vec![("a", ""), ("b", "c"), ("c", "b"), ("d", "a")],
            3 => vec![("a", "a"), ("b", "c"), ("c", "b")],
            4 => vec![("b", "c"), ("c", "b"), (long, "a")],
            _ => vec![("b", ""), ("c", "c"), (long, "a")],
        };
        expect(&db, &expected);
        // A commit after the step, which is replayed into a keyspace with another name.
        db.keyspace("c").unwrap().insert("round", [round]).unwrap();
        let killed = Folder::new();
        copy_folder(&folder.path(), &killed.path());
        for _ in 0..2 {
            let again = small().open(killed.path()).unwrap();
            expect(&again, &expected);
            assert_eq!(again.keyspace("c").unwrap().get("round").unwrap().unwrap(), [round][..]);
            assert!(again.check().unwrap().corruption.is_empty());
            again.close().unwrap();
        }
    }
    db.close().unwrap();
    let db = small().open(folder.path()).unwrap();
    expect(&db, &expected);
}

/// Other threads see all changes of a step or none of them, and never wait for names that were swapped.
#[test]
fn others_see_a_step_as_one() {
    let db = opened();
    with_keyspaces(&db, &["a", "b"]);
    std::thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            for _ in 0..300 {
                db.alter().swap("a", "b").commit().unwrap();
            }
        });
        let creating = scope.spawn(|| {
            for round in 0..100 {
                let name = format!("made {round}");
                db.alter().create(&name, options()).commit().unwrap();
                db.keyspace(&name).unwrap().insert("k", "v").unwrap();
                db.alter().drop(&name).commit().unwrap();
            }
        });
        while !swapping.is_finished() {
            let (a, b) = (db.keyspace("a").unwrap(), db.keyspace("b").unwrap());
            let was = [&a, &b].map(|keyspace| keyspace.get("was").unwrap().unwrap());
            a.insert("written", &was[0]).unwrap();
            assert_eq!(a.get("written").unwrap().unwrap(), was[0]);
            assert!(db.keyspaces().len() >= 2);
        }
        swapping.join().unwrap();
        creating.join().unwrap();
    });
    expect(&db, &[("a", "a"), ("b", "b")]);
    assert!(db.check().unwrap().corruption.is_empty());
}

/// On a full disk keyspaces can be dropped, several in one step, and then others can be created.
#[test]
fn keyspaces_are_dropped_on_a_full_disk() {
    let (disk, config) = faulty();
    let db = config.open("/db").unwrap();
    with_keyspaces(&db, &["a", "b", "c"]);
    let a = db.keyspace("a").unwrap();
    db.checkpoint().unwrap();
    disk.set_space_limit(Some(disk.space_used() + (2 << 20)));
    let fill = (0..100_000u32).find_map(|row| a.insert(row.to_be_bytes(), [7; 500]).err());
    assert!(matches!(fill, Some(Error::DiskFull { .. })), "{fill:?}");
    db.alter().drop("a").drop("b").commit().unwrap();
    db.compact().unwrap();
    db.alter().rename("c", &"n".repeat(200)).create("a", KeyspaceOptions::new().page_bytes(4096)).commit().unwrap();
    db.keyspace("a").unwrap().insert("k", [7; 500]).unwrap();
    assert!(db.check().unwrap().corruption.is_empty());
}

/// Thousands of small keyspaces take little memory. After closing, and after a kill, all of them are there, and an
/// opening reads their page tables with few requests. `DRUMLIN_TEST_KEYSPACES` is their number.
#[test]
fn thousands_of_keyspaces_fit() {
    const AT_ONCE: u64 = 100;
    let count = number("DRUMLIN_TEST_KEYSPACES", 4_000);
    let memory_bytes = if count > 10_000 { 64 << 20 } else { 8 << 20 };
    let config = || Config::new().memory(memory_bytes).warm_start(false).durability(Durability::Relaxed);
    let folder = Folder::new();
    let name = |number: u64| format!("keyspace {:03}", number.wrapping_mul(0x9E37_79B9) % 1_000_000_007);
    let page = KeyspaceOptions::new().page_bytes(1024);
    let db = config().open(folder.path()).unwrap();
    for first in (0..count).step_by(AT_ONCE as usize) {
        let numbers = first..(first + AT_ONCE).min(count);
        numbers.clone().fold(db.alter(), |step, number| step.create(&name(number), page)).commit().unwrap();
        for number in numbers {
            let k = db.existing_keyspace(&name(number)).unwrap();
            let mut tx = db.begin().unwrap();
            (0..10u8).for_each(|row| tx.insert(&k, [row], number.to_be_bytes()).unwrap());
            tx.commit().unwrap();
        }
    }
    let memory = db.stats().memory;
    assert!(memory.iter().all(|part| part.used_bytes <= part.limit_bytes), "{memory:?}");
    assert!(db.stats().table_bytes < 600 * count, "{} bytes for {count} keyspaces", db.stats().table_bytes);
    let check = |db: &Database| {
        assert_eq!(db.keyspaces().len() as u64, count);
        for number in 0..count {
            let k = db.existing_keyspace(&name(number)).unwrap();
            assert_eq!(k.get([9]).unwrap().unwrap(), number.to_be_bytes());
            assert_eq!(k.estimate(..).unwrap(), 10);
        }
    };
    let killed = Folder::new();
    db.sync().unwrap();
    copy_folder(&folder.path(), &killed.path());
    check(&config().open(killed.path()).unwrap());
    db.close().unwrap();
    let db = config().open(folder.path()).unwrap();
    let (reads, duration) = (db.stats().device_reads, db.opening().duration);
    println!("{count} keyspaces opened in {duration:?} with {reads} reads, in {} bytes", db.stats().table_bytes);
    assert!(reads < 100 + count / 20, "{reads} reads");
    check(&db);
}
