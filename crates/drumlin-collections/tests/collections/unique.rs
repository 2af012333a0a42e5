//! Unique indexes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

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

/// The error names both documents, the index and the key.
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

/// Threads that all want the same few keys: each key has one owner whenever one looks, and the index tells which.
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
