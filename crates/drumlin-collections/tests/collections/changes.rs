//! Subscriptions to changes.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use drumlin_collections::{
    Change, Changes, Collection, Collections, Documents, DurableChanges, Error, Event, Postcard, Transaction,
};
use serde::{Deserialize, Serialize};

use crate::documents::database;

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Counter {
    name: String,
    value: u64,
}

impl Collection for Counter {
    type Key = String;
    type Codec = Postcard;
    const NAME: &'static str = "counters";

    fn key(&self) -> String {
        self.name.clone()
    }
}

fn next(changes: &Changes<Counter>) -> Option<(String, Option<u64>)> {
    match changes.try_next().unwrap()? {
        Event::Change(Change { key, document, .. }) => Some((key, document.map(|counter| counter.value))),
        Event::Lost(count) => panic!("{count} lost"),
    }
}

/// Committed changes arrive in order. Changes that failed or were rolled back never arrive. Changes that are dropped
/// because the queue is full are counted.
#[test]
fn observers_see_committed_changes() {
    let collections = Collections::new(&database());
    let counters = collections.open::<Counter>().unwrap();
    let put = |name: &str, value| counters.put(&Counter { name: name.into(), value }).unwrap();
    put("a", 0);
    let (changes, small) = (counters.subscribe(100), counters.subscribe(2));
    put("a", 1);
    counters.remove("a").unwrap();
    let failed: Result<(), Error> = collections.transact(|tx| {
        tx.put(&counters, &Counter { name: "never".into(), value: 1 })?;
        Err(Error::from(drumlin::Error::Closed))
    });
    assert!(failed.is_err());
    collections
        .transact(|tx| {
            tx.put(&counters, &Counter { name: "b".into(), value: 2 })?;
            let savepoint = tx.savepoint();
            tx.put(&counters, &Counter { name: "never".into(), value: 1 })?;
            tx.rollback_to(savepoint)?;
            assert!(changes.try_next()?.is_some(), "only the first");
            tx.put(&counters, &Counter { name: "c".into(), value: 3 })
        })
        .unwrap();
    assert_eq!(next(&changes), Some(("a".into(), None)));
    assert_eq!(next(&changes), Some(("b".into(), Some(2))));
    assert_eq!(next(&changes), Some(("c".into(), Some(3))));
    assert_eq!(next(&changes), None);
    assert!(changes.next_within(Duration::from_millis(1)).unwrap().is_none());
    assert!(matches!(small.try_next().unwrap(), Some(Event::Lost(2))));
    assert_eq!(next(&small), Some(("b".into(), Some(2))));
    drop(changes);
    put("d", 4);
    assert_eq!(next(&small), Some(("c".into(), Some(3))));
}

/// While several threads increment counters, the changes of each counter arrive in the order of its values, without
/// gaps.
#[test]
fn changes_come_in_the_order_of_commits() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 200;
    let collections = Collections::new(&database());
    let counters = collections.open::<Counter>().unwrap();
    for name in ["a", "b"] {
        counters.put(&Counter { name: name.into(), value: 0 }).unwrap();
    }
    let changes = counters.subscribe(1 << 20);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (collections, counters) = (&collections, &counters);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let name = ["a", "b"][((number + round) % 2) as usize];
                    collections.transact(|tx| tx.update(counters, name, |counter| counter.value += 1)).unwrap();
                }
            });
        }
        let mut values: BTreeMap<String, u64> = BTreeMap::new();
        for _ in 0..THREADS * ROUNDS {
            let event = smol::block_on(changes.next_async()).unwrap();
            let Event::Change(change) = event else { panic!("{event:?}") };
            let value = values.entry(change.key).or_default();
            *value += 1;
            assert_eq!(change.document.unwrap().value, *value);
        }
    });
    assert!(changes.try_next().unwrap().is_none());
}

/// Changes made by futures are delivered too, and a thread can wait for them.
#[test]
fn changes_of_futures_are_observed() {
    let collections = Collections::new(&database());
    let counters = collections.open::<Counter>().unwrap();
    let changes = counters.subscribe(10);
    thread::scope(|scope| {
        scope.spawn(|| {
            smol::block_on(counters.put_async(&Counter { name: "a".into(), value: 7 })).unwrap();
        });
        let Event::Change(change) = changes.wait_next().unwrap() else { panic!("nothing is lost") };
        assert_eq!(change.document.unwrap().value, 7);
    });
}

/// The feed tells the commits of this and of earlier openings, each once, and continues after a timestamp.
#[test]
fn the_feed_outlives_an_opening() {
    let folder = tempfile::tempdir().unwrap();
    let config = drumlin::Config::new().memory(32 << 20).keep_changes(drumlin::Retention::bytes(1 << 20));
    let told = |feed: &mut DurableChanges<Counter>| {
        let committed = feed.next().unwrap().unwrap();
        assert!(!committed.reread);
        let changes = committed.changes.into_iter();
        (
            committed.timestamp,
            changes.map(|change| (change.key, change.document.map(|counter| counter.value))).collect(),
        )
    };
    let put = |tx: &mut Transaction<'_>, counters: &Documents<Counter>, name: &str, value| {
        tx.put(counters, &Counter { name: name.into(), value })
    };
    let db = config.open(folder.path()).unwrap();
    let since = {
        let collections = Collections::new(&db);
        let counters = collections.open::<Counter>().unwrap();
        let mut feed = counters.changes_since(db.snapshot().timestamp()).unwrap();
        collections
            .transact(|tx| {
                put(tx, &counters, "a", 1)?;
                put(tx, &counters, "b", 2)
            })
            .unwrap();
        let (timestamp, changes): (_, Vec<(String, Option<u64>)>) = told(&mut feed);
        assert_eq!(changes, [("a".to_owned(), Some(1)), ("b".to_owned(), Some(2))]);
        counters.remove("a").unwrap();
        timestamp
    };
    db.close().unwrap();
    let db = config.open(folder.path()).unwrap();
    let counters = Collections::new(&db).open::<Counter>().unwrap();
    counters.put(&Counter { name: "c".into(), value: 3 }).unwrap();
    let mut feed = counters.changes_since(since).unwrap();
    assert_eq!(told(&mut feed).1, [("a".to_owned(), None)]);
    let (timestamp, changes) = told(&mut feed);
    assert_eq!(changes, [("c".to_owned(), Some(3))]);
    assert_eq!(feed.position(), timestamp);
    assert!(feed.ready().is_none());
}
