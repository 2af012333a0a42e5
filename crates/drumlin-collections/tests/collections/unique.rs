//! Unique indexes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use drumlin_collections::encoding::Key;
use drumlin_collections::{Collection, Collections, Error, Index, Parts, Postcard};
use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

use crate::documents::database;

#[derive(Serialize, Deserialize, Debug)]
struct Customer {
    id: u64,
    email: String,
}

impl Customer {
    const BY_EMAIL: Index<Customer, String> =
        Index::new("by email", |customer: &Customer| customer.email.clone()).unique();
}

impl Collection for Customer {
    type Key = u64;
    type Codec = Postcard;
    const NAME: &'static str = "customers";

    fn key(&self) -> u64 {
        self.id
    }

    fn parts() -> Parts<Customer> {
        Parts::new().index(Customer::BY_EMAIL)
    }
}

/// The error for a duplicate key names both documents, the index and the key.
#[test]
fn a_key_belongs_to_one_document() {
    let customers = Collections::new(&database()).open::<Customer>().unwrap();
    let customer = |id, email: &str| Customer { id, email: email.into() };
    customers.put(&customer(1, "a")).unwrap();
    let error = customers.put(&customer(2, "a")).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"collection "customers", document 2: "a" of unique index "by email" belongs to document 1"#
    );
    customers.put(&customer(1, "b")).unwrap();
    customers.put(&customer(2, "a")).unwrap();
    assert!(matches!(customers.update(2, |two| two.email = "b".into()), Err(Error::NotUnique { .. })));
    customers.remove(1).unwrap();
    customers.update(2, |two| two.email = "b".into()).unwrap();
    assert_eq!(customers.index(&Customer::BY_EMAIL).first("b").unwrap().unwrap().id, 2);
    assert_eq!(customers.index(&Customer::BY_EMAIL).count(..).unwrap(), 1);
}

/// Threads compete for the same few keys. In every snapshot, each key has at most one owner, and the index maps the key
/// to its owner.
#[test]
fn threads_that_want_the_same_key() {
    const THREADS: u64 = 4;
    const KEYS: u64 = 5;
    let db = database();
    let collections = Collections::new(&db);
    let customers = collections.open::<Customer>().unwrap();
    let (taken, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (customers, taken, refused) = (customers.clone(), &taken, &refused);
            scope.spawn(move || {
                let mut random = Random(number);
                for _ in 0..300 {
                    let id = number * 100 + random.below(3);
                    let result = if random.chance(30) {
                        customers.remove(id).map(drop)
                    } else {
                        customers.put(&Customer { id, email: format!("email {}", random.below(KEYS)) })
                    };
                    match result {
                        Ok(()) => taken.fetch_add(1, Ordering::Relaxed),
                        Err(Error::NotUnique { .. }) => refused.fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    };
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..200 {
                let snapshot = db.snapshot();
                let reading = customers.at(&snapshot);
                let mut owners = BTreeMap::new();
                for customer in reading.iter().map(Result::unwrap) {
                    let before = owners.insert(customer.email, customer.id);
                    assert_eq!(before, None, "two have the same");
                }
                let index: BTreeMap<_, _> = reading.index(&Customer::BY_EMAIL).keys(..).map(Result::unwrap).collect();
                assert_eq!(index, owners);
            }
        });
    });
    assert!(taken.into_inner() > 100 && refused.into_inner() > 100);
}

/// The error contains the conflicting document's key, which can be decoded. `insert_or_get` returns the document
/// itself. The refused document is not stored.
#[test]
fn a_document_or_the_one_that_has_its_key() {
    let db = database();
    let collections = Collections::new(&db);
    let customers = collections.open::<Customer>().unwrap();
    let customer = |id, email: &str| Customer { id, email: email.into() };
    customers.insert(&customer(1, "a")).unwrap();
    let Err(Error::NotUnique { other, .. }) = customers.put(&customer(2, "a")) else { panic!("it was stored") };
    assert_eq!((other.decode::<u64>().unwrap(), other.bytes()), (1, &1u64.encode()[..]));
    assert!(other.decode::<String>().is_err());

    let insert = |id, email: &str| {
        let or_get = |result: drumlin_collections::Result<Option<Customer>>| result.map(|other| other.map(|it| it.id));
        let both = [
            or_get(customers.insert_or_get(&Customer::BY_EMAIL, &customer(id, email))),
            or_get(smol::block_on(customers.insert_or_get_async(&Customer::BY_EMAIL, &customer(id, email)))),
        ];
        both.map(Result::unwrap)
    };
    assert_eq!(insert(2, "a"), [Some(1), Some(1)]);
    assert_eq!(insert(1, "a"), [Some(1), Some(1)]);
    assert_eq!(insert(2, "b"), [None, Some(2)]);
    // The document's key is taken, but the index key is free.
    let error = customers.insert_or_get(&Customer::BY_EMAIL, &customer(2, "c")).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    const BY_ID: Index<Customer, u64> = Index::new("by id", |customer| customer.id);
    let error = customers.insert_or_get(&BY_ID, &customer(3, "c")).unwrap_err();
    assert!(matches!(error, Error::Definition { .. }), "{error}");
    assert_eq!(customers.len().unwrap(), 2);

    // In a transaction, `insert_or_get` sees the transaction's own writes, and the transaction can continue.
    collections
        .transact(|tx| {
            assert!(tx.insert_or_get(&customers, &Customer::BY_EMAIL, &customer(3, "c"))?.is_none());
            let other = tx.insert_or_get(&customers, &Customer::BY_EMAIL, &customer(4, "c"))?;
            assert_eq!(other.map(|other| other.id), Some(3));
            tx.put(&customers, &customer(4, "d"))
        })
        .unwrap();
    assert_eq!(customers.len().unwrap(), 4);
}

/// Several threads enqueue the same requests under different document keys. Each request is stored once, and all other
/// calls return the stored document.
#[test]
fn requests_that_come_several_times_are_stored_once() {
    const THREADS: u64 = 4;
    const REQUESTS: u64 = 60;
    let db = database();
    let customers = Collections::new(&db).open::<Customer>().unwrap();
    let stored = AtomicU64::new(0);
    let answers: Vec<Vec<u64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (customers, stored) = (customers.clone(), &stored);
                scope.spawn(move || {
                    let mut answers = Vec::new();
                    for request in 0..REQUESTS {
                        let own = Customer { id: request * THREADS + thread, email: format!("request {request}") };
                        let other = match request % 2 {
                            0 => customers.insert_or_get(&Customer::BY_EMAIL, &own).unwrap(),
                            _ => smol::block_on(customers.insert_or_get_async(&Customer::BY_EMAIL, &own)).unwrap(),
                        };
                        stored.fetch_add(u64::from(other.is_none()), Ordering::Relaxed);
                        answers.push(other.map_or(own.id, |other| other.id));
                    }
                    answers
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(stored.into_inner(), REQUESTS);
    assert!(answers.windows(2).all(|two| two[0] == two[1]));
    assert_eq!(customers.len().unwrap(), REQUESTS);
}
