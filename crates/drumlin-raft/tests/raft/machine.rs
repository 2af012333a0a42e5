//! Applying entries: batches, errors, and panics.

use drumlin::{Database, Keyspace, Transaction};
use drumlin_raft::{Content, Error, KeyValue, KeyValueRequest, KeyValueResponse, StateMachine};

use crate::support::{GROUP, Kind, Opened, Place, id, step};

/// Writes down what it is asked, and fails if it is asked to.
#[derive(Clone)]
struct Fragile;

impl StateMachine for Fragile {
    type Request = String;
    type Response = u64;
    type Keyspaces = Keyspace;

    fn open(&self, db: &Database) -> drumlin::Result<Keyspace> {
        db.keyspace("requests")
    }

    fn apply(&self, rows: &Keyspace, tx: &mut Transaction, index: u64, request: &String) -> drumlin::Result<u64> {
        tx.insert(rows, index.to_be_bytes(), request)?;
        match request.as_str() {
            "panic" => panic!("asked to"),
            "fail" => Err(drumlin::Error::Invalid("asked to".to_owned())),
            _ => Ok(index),
        }
    }
}

/// If a request can't be applied, the entries before it are applied, no later one ever is, and the index is named.
#[test]
fn a_request_that_fails_stops_the_group() {
    for request in ["panic", "fail"] {
        let mut opened = Opened::create(Place::new(Kind::Simulated), Fragile);
        let steps = [step(1, "a".to_owned()), step(2, request.to_owned()), step(3, "c".to_owned())];
        for _ in 0..2 {
            let error = opened.group().state().apply(&steps).unwrap_err();
            assert!(matches!(error, Error::Stopped { group: GROUP, index: 2, .. }), "{error}");
            assert!(error.to_string().contains("entry 2") && error.to_string().contains("asked to"), "{error}");
            assert_eq!(opened.group().state().applied_index(), Some(1));
            assert_eq!(opened.group().state().read(|_, rows| rows.len()).unwrap(), 1);
        }
        opened.reopen(Fragile);
        assert_eq!(opened.group().state().applied_index(), Some(1));
        let answers = opened.group().state().apply(&[step(2, "b".to_owned())]).unwrap();
        assert_eq!(answers, [Some(2)]);
    }
}

/// An entry is never applied twice.
#[test]
fn an_entry_is_applied_once() {
    let opened = Opened::create(Place::new(Kind::Simulated), Fragile);
    opened.group().state().apply(&[step(1, "a".to_owned()), step(4, "b".to_owned())]).unwrap();
    let error = opened.group().state().apply(&[step(4, "b".to_owned())]).unwrap_err();
    assert!(matches!(error, Error::Stopped { index: 4, .. }), "{error}");
}

/// More entries than a transaction takes, by number and by size, are applied all the same, in order.
#[test]
fn batches_are_cut_where_they_are_too_large() {
    let opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    let small = (1..=1000u64).map(|index| step(index, KeyValueRequest::put("small", index.to_string())));
    let value = vec![7; 60_000];
    let large = (1001..=1060u64).map(|index| step(index, KeyValueRequest::put(index.to_string(), &value)));
    let steps: Vec<_> = small.chain(large).collect();
    let answers = opened.group().state().apply(&steps).unwrap();
    for (index, answer) in (1..=1000).zip(&answers) {
        let before = (index > 1).then(|| (index - 1).to_string().into_bytes());
        assert_eq!(*answer, Some(KeyValueResponse { done: true, before }));
    }
    assert_eq!((answers.len(), opened.group().state().applied_index()), (1060, Some(1060)));
    opened.group().state().read(|_, rows| {
        assert_eq!(rows.len().unwrap(), 61);
        assert_eq!(rows.get("1060").unwrap().unwrap(), value);
    });
}

/// Blank entries and changes of members are applied, and survive.
#[test]
fn members_are_part_of_the_state() {
    let mut opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    let mut blank = step(1, KeyValueRequest::remove("none"));
    blank.content = Content::Blank;
    let mut members = blank.clone();
    (members.id, members.content) = (id(2), Content::Membership(b"one and two".to_vec()));
    assert_eq!(opened.group().state().apply(&[blank, members]).unwrap(), [None, None]);
    opened.reopen(KeyValue);
    let applied = opened.group().state().applied().unwrap();
    assert_eq!((applied.applied, applied.membership.as_deref()), (Some(id(2)), Some(&b"one and two"[..])));
}

/// A request over the limit is refused before it is proposed, and one at the limit is not.
#[test]
fn requests_have_a_limit() {
    let place = Place::new(Kind::Simulated);
    let options = place.options().request_bytes_max(1000);
    let node = drumlin_raft::Node::create(place.path(), &crate::support::identity(), &options).unwrap();
    let group = node.group(GROUP, Fragile).unwrap();
    // Two bytes of length.
    group.check(&"x".repeat(998)).unwrap();
    let error = group.check(&"x".repeat(999)).unwrap_err();
    assert!(matches!(error, Error::RequestTooLarge { bytes: 1001, limit_bytes: 1000 }), "{error}");
}

/// Put, remove, and compare-and-set, each answered with the value before.
#[test]
fn rows_by_key() {
    let opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    let mut index = 0;
    let mut ask = |request| {
        index += 1;
        let answer = opened.group().state().apply(&[step(index, request)]).unwrap().remove(0).unwrap();
        (answer.done, answer.before.map(|before| String::from_utf8(before).unwrap()))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(ask(KeyValueRequest::put("a", "1")), (true, None));
    assert_eq!(ask(KeyValueRequest::put("a", "2")), (true, some("1")));
    assert_eq!(ask(KeyValueRequest::compare_and_set("a", Some("1"), Some("3"))), (false, some("2")));
    assert_eq!(ask(KeyValueRequest::compare_and_set("a", Some("2"), Some("3"))), (true, some("2")));
    assert_eq!(ask(KeyValueRequest::compare_and_set("b", None, Some("1"))), (true, None));
    assert_eq!(ask(KeyValueRequest::compare_and_set("b", None, Some("2"))), (false, some("1")));
    assert_eq!(ask(KeyValueRequest::compare_and_set("b", Some("1"), None)), (true, some("1")));
    assert_eq!(ask(KeyValueRequest::remove("a")), (true, some("3")));
    assert_eq!(ask(KeyValueRequest::remove("a")), (true, None));
    assert_eq!(ask(KeyValueRequest::put("long".repeat(1000), "1")), (false, None));
    assert!(opened.group().state().read(|_, rows| rows.is_empty()).unwrap());
}
