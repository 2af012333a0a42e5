//! Iterators that own everything they read from, their streams, and pagination.

use std::collections::BTreeSet;
use std::thread;

use drumlin_collections::encoding::prefix;
use drumlin_collections::{Collection, Collections, Documents, Index, ItemStream, Parts, Postcard, Result, View};
use drumlin_testing::Random;
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};
use smol::block_on;

use crate::documents::database;
use crate::notes::{self, Note};

type Notes = Documents<Note<1>>;

fn notes_in(db: &drumlin::Database) -> Notes {
    let notes = Collections::new(db).open::<Note<1>>().unwrap();
    let mut random = Random(5);
    (0..600).for_each(|_| notes::change(&notes, &mut random, 300));
    notes
}

/// Collects the items of a stream on a thread that owns nothing but the stream.
fn taken<T: Send + 'static>(stream: ItemStream<T>) -> Vec<T> {
    thread::spawn(move || block_on(stream.try_collect())).join().unwrap().unwrap()
}

fn all<T>(iterator: impl Iterator<Item = Result<T>>) -> Vec<T> {
    iterator.collect::<Result<_>>().unwrap()
}

/// A stream yields the items of its iterator even after every handle is dropped. Once it has ended, it stays exhausted.
#[test]
fn streams_own_what_they_read() {
    let notes = notes_in(&database());
    let (documents, found, keys) =
        (all(notes.iter()), all(notes.index(&Note::BY_WORD).range(..)), all(notes.index(&Note::BY_TITLE).keys(..)));
    let (rows, groups) = (all(notes.view(&Note::LENGTHS).range(..)), all(notes.view(&Note::LENGTHS).groups(..)));
    let versions = all(notes.now().versions(documents[7].id).unwrap());
    assert!(documents.len() > 100 && found.len() > 100 && keys.len() > 100 && rows.len() > 100 && groups.len() > 10);
    let (documents_stream, found_stream) =
        (notes.iter().into_stream(), notes.index(&Note::BY_WORD).range(..).into_stream());
    let keys_stream = notes.index(&Note::BY_TITLE).keys(..).into_stream();
    let (rows_stream, groups_stream) =
        (notes.view(&Note::LENGTHS).range(..).into_stream(), notes.view(&Note::LENGTHS).groups(..).into_stream());
    let versions_stream = notes.now().versions(documents[7].id).unwrap().into_stream();
    let now = std::time::SystemTime::now();
    let as_of_stream = notes.now().range_as_of(now, ..).unwrap().into_stream();
    drop(notes);
    assert_eq!(taken(documents_stream), documents);
    assert_eq!(taken(found_stream), found);
    assert_eq!(taken(keys_stream), keys);
    assert_eq!(taken(rows_stream), rows);
    assert_eq!(taken(groups_stream), groups);
    assert_eq!(taken(versions_stream), versions);
    assert_eq!(taken(as_of_stream), documents);

    let db = database();
    let notes = notes_in(&db);
    let mut stream = notes.range(..0).into_stream();
    assert!(format!("{stream:?}").contains("open"));
    for _ in 0..2 {
        assert!(block_on(stream.try_next()).unwrap().is_none());
    }
    assert!(format!("{stream:?}").contains("ended"));
    // A reading at a given snapshot also outlives the handle, and still returns that snapshot's rows.
    let reading = notes.at_snapshot(db.snapshot());
    let ids: Vec<u32> = notes.iter().map(|note| note.unwrap().id).collect();
    ids.iter().for_each(|id| drop(notes.remove(id).unwrap()));
    drop(notes);
    assert!(reading.iter().map(|note| note.unwrap().id).eq(ids.iter().copied()));
    assert_eq!(reading.index(&Note::BY_AUTHOR).keys(..).count(), ids.len());
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Order {
    id: (u32, String),
    customer: String,
}

impl Order {
    const BY_CUSTOMER: Index<Order, String> = Index::new("by customer", |order: &Order| order.customer.clone());
    const BY_ALL: Index<Order, (String, u32, String)> =
        Index::new("by all", |order: &Order| (order.customer.clone(), order.id.0, order.id.1.clone())).unique();
    /// Emits the same key several times for a document.
    const LINES: View<Order, String, u32> = View::new("lines", |order: &Order, emit| {
        (0..order.id.0 % 3).for_each(|line| emit(order.customer.clone(), line));
    });
}

impl Collection for Order {
    type Key = (u32, String);
    type Codec = Postcard;
    const NAME: &'static str = "orders";

    fn key(&self) -> (u32, String) {
        self.id.clone()
    }

    fn parts() -> Parts<Order> {
        Parts::new().index(Order::BY_CUSTOMER).index(Order::BY_ALL).view(Order::LINES)
    }
}

/// Pages of documents with equal keys, read from the front or from the back, contain each document exactly once, even
/// if documents are removed and inserted between two pages, including the last document of a page.
#[test]
fn pages_within_equal_keys_have_every_row_once() {
    let orders = Collections::new(&database()).open::<Order>().unwrap();
    let order =
        |id: u32, name: &str| Order { id: (id, name.into()), customer: ["", "a", "a\0"][id as usize / 40].into() };
    for id in 0..120 {
        orders.put(&order(id, ["", "x", "\u{ff}"][id as usize % 3])).unwrap();
    }
    let by_customer = |customer: &str| orders.index(&Order::BY_CUSTOMER).get(customer).map(Result::unwrap);
    for customer in ["", "a", "a\0"] {
        for is_back in [false, true] {
            let mut expected: Vec<_> = by_customer(customer).map(|order| order.id).collect();
            if is_back {
                expected.reverse();
            }
            let mut seen: Vec<(u32, String)> = Vec::new();
            loop {
                let index = orders.index(&Order::BY_CUSTOMER);
                let index = match (seen.last(), is_back) {
                    (None, _) => index,
                    (Some(last), false) => index.after(customer, last),
                    (Some(last), true) => index.before(customer, last),
                };
                let page: Vec<_> = match is_back {
                    false => index.get(customer).take(7).map(|order| order.unwrap().id).collect(),
                    true => index.get(customer).rev().take(7).map(|order| order.unwrap().id).collect(),
                };
                let left = (expected.len() - seen.len()) as u64;
                assert_eq!(index.count(customer..=customer).unwrap(), left);
                let Some(last) = page.last() else { break };
                // Remove the last document of the page. It is reinserted after the last page.
                orders.remove(last).unwrap();
                seen.extend(page);
            }
            for id in expected.iter().filter(|id| orders.get(*id).unwrap().is_none()) {
                orders.put(&order(id.0, &id.1)).unwrap();
            }
            assert_eq!(seen, expected);
        }
    }
    // The same holds for rows of a unique index, and within a range.
    let keys = all(orders.index(&Order::BY_ALL).keys(..));
    for (number, (key, document)) in keys.iter().enumerate() {
        let index = orders.index(&Order::BY_ALL);
        assert_eq!(all(index.after(key, document).keys(..)), keys[number + 1..]);
        assert_eq!(all(index.before(key, document).keys(..)), keys[..number]);
        let of_a = keys[number + 1..].iter().filter(|(key, _)| key.0 == "a").count() as u64;
        assert_eq!(index.after(key, document).count(prefix(("a",))).unwrap(), of_a);
    }
    // `after` and `before` exclude all rows of the view that the document emitted with the key.
    let rows = all(orders.view(&Order::LINES).range(..));
    let documents: BTreeSet<_> = rows.iter().map(|row| (row.key.clone(), row.document.clone())).collect();
    assert!(rows.len() > documents.len());
    for (key, document) in &documents {
        let place =
            |row: &drumlin_collections::ViewRow<String, (u32, String), u32>| (row.key.clone(), row.document.clone());
        let here = (key.clone(), document.clone());
        let after: Vec<_> = rows.iter().filter(|row| place(row) > here).cloned().collect();
        let before: Vec<_> = rows.iter().filter(|row| place(row) < here).cloned().collect();
        assert_eq!(all(orders.view(&Order::LINES).after(key, document).range(..)), after);
        assert_eq!(all(orders.view(&Order::LINES).before(key, document).range(..)), before);
    }
}
