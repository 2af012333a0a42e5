//! The types that a collection records for its rows.

use drumlin::Database;
use drumlin_collections::encoding::{DecodeError, EncodeAs, Key};
use drumlin_collections::{BoxError, Codec, Collection, Collections, Error, Index, Parts, Postcard, View};
use serde::{Deserialize, Serialize};

use crate::documents::database;

/// Defines a module with a collection of orders that has its own types and versions.
macro_rules! orders {
    ($module:ident, $key:ty, $codec:ty, $version:literal, $parts:expr) => {
        mod $module {
            use super::*;

            #[derive(Serialize, Deserialize)]
            pub(super) struct Order {
                pub(super) id: u32,
                pub(super) customer: u32,
            }

            impl Collection for Order {
                type Key = $key;
                type Codec = $codec;
                const NAME: &'static str = "orders";
                const VERSION: u32 = $version;

                fn key(&self) -> $key {
                    <$key>::try_from(self.id).unwrap()
                }

                fn parts() -> Parts<Order> {
                    ($parts)(Parts::new())
                }

                fn migrate(_version: u32, bytes: &[u8]) -> Result<Order, BoxError> {
                    Postcard::decode(bytes)
                }
            }
        }
    };
}

/// A codec with a different name that writes the same bytes.
#[derive(Debug)]
struct Other;

impl<C: Serialize + serde::de::DeserializeOwned> Codec<C> for Other {
    fn encode(document: &C) -> Result<Vec<u8>, BoxError> {
        Postcard::encode(document)
    }

    fn decode(bytes: &[u8]) -> Result<C, BoxError> {
        Postcard::decode(bytes)
    }
}

/// A newtype that replaces a plain `u32`.
#[derive(Debug)]
struct Number(u32);

impl From<u32> for Number {
    fn from(number: u32) -> Number {
        Number(number)
    }
}

impl EncodeAs<Number> for Number {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        EncodeAs::<u32>::encode_into(&self.0, bytes);
    }
}

impl Key for Number {
    fn decode_from(bytes: &mut &[u8]) -> Result<Number, DecodeError> {
        u32::decode_from(bytes).map(Number)
    }

    fn fingerprint() -> String {
        u32::fingerprint()
    }
}

fn index_of<C, K>(name: &'static str, key: fn(&C) -> K) -> Index<C, K> {
    Index::new(name, key)
}

orders!(first, u32, Postcard, 1, |parts: Parts<Order>| parts
    .index(index_of("by customer", |order: &Order| order.customer))
    .view(View::new("count", |order: &Order, emit| emit(order.customer, 1u64)).reducing(|a, b| a + b)));
orders!(other_key, u64, Postcard, 1, |parts: Parts<Order>| parts);
orders!(other_key_and_version, u64, Postcard, 2, |parts: Parts<Order>| parts);
orders!(other_codec, u32, Other, 1, |parts: Parts<Order>| parts);
orders!(other_codec_and_version, u32, Other, 2, |parts: Parts<Order>| parts);
orders!(other_index, u32, Postcard, 1, |parts: Parts<Order>| parts
    .index(index_of("by customer", |order: &Order| u64::from(order.customer))));
orders!(other_index_version, u32, Postcard, 1, |parts: Parts<Order>| parts
    .index(index_of("by customer", |order: &Order| u64::from(order.customer)).version(2)));
orders!(unique, u32, Postcard, 1, |parts: Parts<Order>| parts
    .index(index_of("by customer", |order: &Order| order.customer).unique()));
orders!(other_view, u32, Postcard, 1, |parts: Parts<Order>| parts
    .view(View::new("count", |order: &Order, emit| emit(order.customer, vec![1u64]))));
orders!(expiring, u32, Postcard, 1, |parts: Parts<Order>| parts
    .view(View::new("count", |order: &Order, emit| emit(order.customer, 1u64)).reducing(|a, b| a + b))
    .expires(|_| None));
orders!(same, Number, Postcard, 1, |parts: Parts<Order>| parts
    .index(index_of("by customer", |order: &Order| Number(order.customer)))
    .view(View::new("count", |order: &Order, emit| emit(order.customer, 1u64)).reducing(|a, b| a + b)));

/// Opens a collection, which must be refused because of its types. Returns the text of the error.
fn refused<C: Collection>(db: &Database) -> String {
    let before: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
    let error = Collections::new(db).open::<C>().unwrap_err();
    assert!(matches!(error, Error::OtherTypes { .. }), "{error}");
    assert!(db.keyspaces().into_iter().map(|info| info.name).eq(before), "the refused opening dropped a keyspace");
    error.to_string()
}

/// A different key type, value type or codec is refused unless the version has changed too, and the database stays
/// unchanged. A collection without documents accepts any types.
#[test]
fn other_types_need_another_version() {
    let db = database();
    // An empty collection accepts these types.
    drop(Collections::new(&db).open::<other_key::Order>().unwrap());
    let orders = Collections::new(&db).open::<first::Order>().unwrap();
    for id in 0..10 {
        orders.put(&first::Order { id, customer: id % 3 }).unwrap();
    }
    drop(orders);
    let text = refused::<other_key::Order>(&db);
    assert!(text.contains("written with key u32, but this program uses key u64"), "{text}");
    refused::<other_key_and_version::Order>(&db);
    let text = refused::<other_codec::Order>(&db);
    assert!(text.contains("codec Postcard") && text.contains("a new VERSION"), "{text}");
    let text = refused::<other_index::Order>(&db);
    assert!(text.contains("index \"by customer\"") && text.contains("rebuild it"), "{text}");
    let text = refused::<unique::Order>(&db);
    assert!(text.contains("written with key u32, but this program uses unique key u32"), "{text}");
    let text = refused::<other_view::Order>(&db);
    assert!(text.contains("value u64, but this program uses key u32, value Vec<u64>"), "{text}");
    let text = refused::<expiring::Order>(&db);
    assert!(text.contains("view \"count\"") && text.contains("value u64, expiring"), "{text}");

    // The refused openings lost no documents. A different type with the same fingerprint is accepted.
    let orders = Collections::new(&db).open::<same::Order>().unwrap();
    let by_customer = index_of("by customer", |order: &same::Order| Number(order.customer));
    assert_eq!(orders.index(&by_customer).count(..=Number(0)).unwrap(), 4);
    drop(orders);
    let orders = Collections::new(&db).open::<other_index_version::Order>().unwrap();
    orders.wait_built().unwrap();
    let by_customer =
        index_of("by customer", |order: &other_index_version::Order| u64::from(order.customer)).version(2);
    assert_eq!(orders.index(&by_customer).count(..=0u64).unwrap(), 4);
    drop(orders);
    let orders = Collections::new(&db).open::<other_codec_and_version::Order>().unwrap();
    assert_eq!(orders.get(7u32).unwrap().unwrap().customer, 1);
    (0..10u32).for_each(|id| assert!(orders.remove(id).unwrap().is_some()));
    drop(orders);
    Collections::new(&db).open::<other_key::Order>().unwrap();
}

/// A collection written before types were recorded can still be opened, and opening it records its types.
#[test]
fn collections_without_types_get_them() {
    let db = database();
    let orders = Collections::new(&db).open::<first::Order>().unwrap();
    orders.put(&first::Order { id: 1, customer: 1 }).unwrap();
    drop(orders);
    let meta = db.keyspace("orders/meta").unwrap();
    let types = |row: &drumlin::Value| ["key", "codec", "types"].iter().any(|word| row.starts_with(word.as_bytes()));
    let keys: Vec<_> = meta.keys().map(Result::unwrap).filter(types).collect();
    assert_eq!(keys.len(), 4, "key, codec, two parts: {keys:?}");
    for key in &keys {
        meta.remove(key).unwrap();
    }
    // The recorded types of a part without a keyspace describe no rows, so they are ignored.
    let key = "types orders/index by customer 2.1";
    meta.insert(key, "key of some other type").unwrap();
    drop(Collections::new(&db).open::<other_index_version::Order>().unwrap());
    assert_eq!(meta.get(key).unwrap().unwrap(), "key u64");
    drop(Collections::new(&db).open::<first::Order>().unwrap());
    assert!(keys.iter().all(|key| meta.contains_key(key).unwrap()));
    refused::<other_key::Order>(&db);
}
