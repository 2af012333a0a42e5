//! Past versions of documents.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use drumlin::Database;
use drumlin_collections::{Collection, Collections, Documents, Parts, Postcard, Retention};
use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

use crate::documents::database;

/// A page. `K` selects the retention of its versions.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
struct Page<const K: u8> {
    name: String,
    text: u64,
}

const NONE: u8 = 0;
const ALL: u8 = 1;
const THREE: u8 = 2;
const MINUTE: u8 = 3;

impl<const K: u8> Collection for Page<K> {
    type Key = String;
    type Codec = Postcard;
    const NAME: &'static str = "pages";

    fn key(&self) -> String {
        self.name.clone()
    }

    fn parts() -> Parts<Page<K>> {
        match K {
            NONE => Parts::new(),
            ALL => Parts::new().history(Retention::FOREVER),
            THREE => Parts::new().history(Retention::versions(3)),
            _ => Parts::new().history(Retention::age(Duration::from_secs(60))),
        }
    }
}

fn second(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(second)
}

fn open<const K: u8>(db: &Database, now: &Arc<AtomicU64>) -> Documents<Page<K>> {
    let now = Arc::clone(now);
    Collections::with_clock(db, move || second(now.load(Ordering::Relaxed))).open().unwrap()
}

fn put<const K: u8>(pages: &Documents<Page<K>>, name: &str, text: u64) {
    pages.put(&Page { name: name.into(), text }).unwrap();
}

/// Returns the number and text of each kept version.
fn versions<const K: u8>(pages: &Documents<Page<K>>, name: &str) -> Vec<(u64, Option<u64>)> {
    let versions = pages.now().versions(name).unwrap().map(Result::unwrap);
    versions.map(|version| (version.number, version.document.map(|page| page.text))).collect()
}

/// Each document, and the whole collection, can be read as of any time. The test compares them with a list of all past
/// states of the collection.
#[test]
fn documents_are_seen_as_they_were() {
    let now = Arc::new(AtomicU64::new(0));
    let db = database();
    let pages = open::<ALL>(&db, &now);
    let names = ["", "a", "a\0", "b"];
    let mut random = Random(9);
    let mut states: Vec<Vec<Page<ALL>>> = Vec::new();
    for time in 0..100 {
        now.store(time, Ordering::Relaxed);
        for _ in 0..random.below(3) {
            let name = names[random.index(4)];
            if random.chance(30) {
                pages.remove(name).unwrap();
            } else {
                put(&pages, name, random.below(100));
            }
        }
        states.push(pages.iter().map(Result::unwrap).collect());
    }
    for (time, state) in states.iter().enumerate() {
        let (now, time) = (pages.now(), second(time as u64));
        let found: Vec<_> = now.range_as_of(time, ..).unwrap().map(Result::unwrap).collect();
        assert_eq!(&found, state);
        for name in names {
            let page = state.iter().find(|page| page.name == name);
            assert_eq!(now.as_of(time, name).unwrap().as_ref(), page);
        }
    }
    assert_eq!(pages.now().range_as_of(second(99), "a"..="a").unwrap().count(), pages.range("a"..="a").count());
    let first = pages.now().version("a", 1).unwrap().unwrap();
    assert_eq!(first.number, 1);
    assert_eq!(pages.now().version("a", 10_000).unwrap(), None);
}

/// Versions are kept by number or by age. The newest version is always kept.
#[test]
fn versions_are_given_up() {
    let (now, db) = (Arc::new(AtomicU64::new(0)), database());
    let pages = open::<THREE>(&db, &now);
    (1..=5).for_each(|text| put(&pages, "a", text));
    pages.remove("a").unwrap();
    put(&pages, "a", 7);
    assert_eq!(versions(&pages, "a"), [(5, Some(5)), (6, None), (7, Some(7))]);
    drop(pages);

    let (now, db) = (Arc::new(AtomicU64::new(0)), database());
    let pages = open::<MINUTE>(&db, &now);
    for time in [0, 30, 60, 90, 120] {
        now.store(time, Ordering::Relaxed);
        put(&pages, "a", time);
    }
    // The version written at second 30 was the newest until second 60, which is exactly 60 seconds ago.
    assert_eq!(versions(&pages, "a"), [(2, Some(30)), (3, Some(60)), (4, Some(90)), (5, Some(120))]);
    now.store(1000, Ordering::Relaxed);
    put(&pages, "a", 1000);
    assert_eq!(versions(&pages, "a"), [(5, Some(120)), (6, Some(1000))]);
    // If the clock is set back, the times of new versions still do not decrease.
    now.store(500, Ordering::Relaxed);
    put(&pages, "a", 500);
    let newest = pages.now().versions("a").unwrap().next_back().unwrap().unwrap();
    assert_eq!(newest.time, second(1000));
    drop(pages);
}

/// If a document was written while no history was kept, its next write first records its old contents as a version.
/// Asking for versions of a collection without a history is an error.
#[test]
fn a_history_begins_with_what_is_there() {
    let (now, db) = (Arc::new(AtomicU64::new(0)), database());
    let plain = open::<NONE>(&db, &now);
    put(&plain, "a", 1);
    let error = plain.now().versions("a").unwrap_err();
    assert!(error.to_string().contains("it keeps no history"), "{error}");
    let pages = open::<ALL>(&db, &now);
    assert_eq!(versions(&pages, "a"), []);
    put(&pages, "a", 2);
    assert_eq!(versions(&pages, "a"), [(1, Some(1)), (2, Some(2))]);
    put(&plain, "a", 3);
    pages.remove("a").unwrap();
    assert_eq!(versions(&pages, "a"), [(1, Some(1)), (2, Some(2)), (3, Some(3)), (4, None)]);
}
