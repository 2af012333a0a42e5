//! What keeps a database open, and how it ends.

mod support;

use std::io::Read;

use drumlin::{Config, Database, Durability, Error, Keyspace};
use smol::block_on;

/// Rows and a large value on a disk of its own, of which nothing is in memory.
fn opened() -> (Config, Database, Keyspace) {
    let config = support::small().backend(drumlin::io::in_memory());
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    for row in 0..4000u32 {
        k.insert_with(row.to_be_bytes(), [7; 60], Durability::Relaxed).unwrap();
    }
    k.insert("large", vec![7; 300_000]).unwrap();
    drop((db, k));
    let db = config.open("/db").unwrap();
    let k = db.existing_keyspace("k").unwrap();
    (config, db, k)
}

/// A range and a reader of a value are handles like others: they go on when all others have gone, also as tasks, and when
/// they have gone too, the folder is free.
#[test]
fn readers_keep_the_database_open() {
    let (config, db, k) = opened();
    let (mut range, mut task_range) = (k.iter(), k.iter());
    let mut reader = k.read("large").unwrap().unwrap();
    let mut task_reader = block_on(k.read_async("large")).unwrap().unwrap();
    drop((db, k));
    let mut count = 0;
    while let Some(row) = block_on(task_range.next_async()) {
        row.unwrap();
        count += 1;
    }
    assert_eq!(count, 4001);
    drop(task_range);
    assert_eq!(range.by_ref().map(Result::unwrap).collect::<Vec<_>>().len(), 4001);
    assert!(matches!(config.open("/db"), Err(Error::Locked { .. })), "it is open");
    drop(range);
    let mut value = Vec::new();
    reader.read_to_end(&mut value).unwrap();
    assert!(value == [7; 300_000]);
    drop(reader);
    let mut value = Vec::new();
    block_on(smol::io::AsyncReadExt::read_to_end(&mut task_reader, &mut value)).unwrap();
    assert!(value == [7; 300_000]);
    drop(task_reader);
    config.open("/db").unwrap();
}

/// A range ends with its first error, from either end: rows that it has fetched from the other do not follow.
#[test]
fn a_range_ends_with_its_first_error() {
    for forward in [true, false] {
        let (_, db, k) = opened();
        let mut range = k.iter();
        // Of both ends' leaves rows are left when the keyspace goes.
        range.next().unwrap().unwrap();
        range.next_back().unwrap().unwrap();
        db.drop_keyspace("k").unwrap();
        let error = std::iter::from_fn(|| if forward { range.next() } else { range.next_back() }).find_map(Result::err);
        assert!(matches!(error, Some(Error::KeyspaceDropped { .. })), "{error:?}");
        assert!(range.next().is_none() && range.next_back().is_none());
        assert!(block_on(range.next_async()).is_none() && block_on(range.next_back_async()).is_none());
    }
}
