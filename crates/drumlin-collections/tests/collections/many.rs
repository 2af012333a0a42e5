//! Calls on many documents (counts, the first and last document, bulk removal), and the durability of a handle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use drumlin::{Durability, Isolation, TxOptions};
use drumlin_collections::{Collection, Collections, Documents, Error, Parts, Postcard};
use drumlin_testing::Random;
use serde::{Deserialize, Serialize};
use smol::block_on;

use crate::documents::database;
use crate::notes::{self, Note};

/// Counts, the first and last document, and lookups match a model map. Removing a range of any size leaves all other
/// documents and their derived rows.
#[test]
fn counts_ends_and_removals_are_those_of_a_map() {
    let db = database();
    let notes = Collections::new(&db).open::<Note<1>>().unwrap();
    assert!(notes.is_empty().unwrap() && notes.first().unwrap().is_none() && notes.clear().unwrap() == 0);
    let mut random = Random(11);
    for round in 0..12 {
        (0..200).for_each(|_| notes::change(&notes, &mut random, 500));
        let mut model: BTreeMap<u32, Note<1>> =
            notes.iter().map(|note| note.unwrap()).map(|note| (note.id, note)).collect();
        let (low, high) = (random.below(500) as u32, random.below(500) as u32);
        let before = db.snapshot();
        let check = |notes: &Documents<Note<1>>, model: &BTreeMap<u32, Note<1>>| {
            assert_eq!(notes.len().unwrap(), model.len() as u64);
            assert_eq!(block_on(notes.len_async()).unwrap(), model.len() as u64);
            let within = model.keys().filter(|id| (low..high).contains(id)).count() as u64;
            assert_eq!(notes.count(low..high).unwrap(), within);
            assert_eq!(block_on(notes.now().count_async(low..high)).unwrap(), within);
            assert_eq!(notes.first().unwrap().as_ref(), model.values().next());
            assert_eq!(block_on(notes.last_async()).unwrap().as_ref(), model.values().next_back());
            assert_eq!(notes.is_empty().unwrap(), model.is_empty());
            for id in [low, high] {
                assert_eq!(notes.contains(id).unwrap(), model.contains_key(&id));
                assert_eq!(block_on(notes.contains_async(id)).unwrap(), model.contains_key(&id));
            }
            let found = notes.get_many(&[low, high, 1000]).unwrap();
            assert_eq!(found, [model.get(&low).cloned(), model.get(&high).cloned(), None]);
            notes::check_parts(&notes.now());
        };
        check(&notes, &model);
        let removed = match round % 3 {
            0 => notes.remove_range(low..high).unwrap(),
            1 => block_on(notes.remove_range_async(low..high)).unwrap(),
            _ if round > 8 => block_on(notes.clear_async()).unwrap(),
            _ => notes.clear().unwrap(),
        };
        let is_left = |id: u32| round % 3 < 2 && !(low..high).contains(&id);
        let count = model.len();
        model.retain(|id, _| is_left(*id));
        assert_eq!(removed, (count - model.len()) as u64);
        check(&notes, &model);
        assert_eq!(notes.at(&before).len().unwrap(), count as u64);
    }
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Session {
    id: u32,
    ends: Option<u64>,
}

fn second(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(second)
}

impl Collection for Session {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "sessions";

    fn key(&self) -> u32 {
        self.id
    }

    fn parts() -> Parts<Session> {
        Parts::new().expires(|session| session.ends.map(second))
    }
}

/// An expired document can't be found and is neither first nor last, but it is counted until it is removed.
#[test]
fn expired_documents_are_at_no_end() {
    let now = Arc::new(AtomicU64::new(100));
    let (clock, own) = (Arc::clone(&now), std::thread::current().id());
    // For the background thread, no document expires, so that it removes none.
    let clock = move || second(if std::thread::current().id() == own { clock.load(Ordering::Relaxed) } else { 100 });
    let collections = Collections::with_clock(&database(), clock);
    let sessions = collections.open::<Session>().unwrap();
    for (id, ends) in [(1, Some(200)), (2, None), (3, Some(200))] {
        sessions.put(&Session { id, ends }).unwrap();
    }
    assert_eq!((sessions.first().unwrap().unwrap().id, sessions.last().unwrap().unwrap().id), (1, 3));
    now.store(300, Ordering::Relaxed);
    assert_eq!((sessions.first().unwrap().unwrap().id, sessions.last().unwrap().unwrap().id), (2, 2));
    assert!(!sessions.contains(1).unwrap() && sessions.contains(2).unwrap());
    assert_eq!(sessions.len().unwrap(), 3);
    assert_eq!(sessions.remove_range(..=2).unwrap(), 2);
    assert_eq!((sessions.len().unwrap(), sessions.remove_expired().unwrap()), (1, 1));
    assert!(sessions.is_empty().unwrap());
}

#[derive(Serialize, Deserialize, Debug)]
struct Visit(u64);

impl Collection for Visit {
    type Key = u64;
    type Codec = Postcard;
    const NAME: &'static str = "visits";

    fn key(&self) -> u64 {
        self.0
    }
}

/// Calls through a relaxed handle do not wait for syncs, whatever they write. Calls through other handles do.
#[test]
fn a_handle_has_its_own_durability() {
    let db = database();
    let collections = Collections::new(&db);
    let (visits, notes) = (collections.open::<Visit>().unwrap(), collections.open::<Note<1>>().unwrap());
    let syncs_of = |durability: Durability| {
        let (visits, notes) = (visits.with_durability(durability), notes.with_durability(durability));
        let before = db.stats().log_syncs;
        for id in 0..40 {
            visits.put(&Visit(id)).unwrap();
            block_on(visits.put_async(&Visit(id + 100))).unwrap();
            visits.update(id, |visit| visit.0).unwrap();
            notes.put(&Note { id: id as u32, author: "ann".into(), words: Vec::new() }).unwrap();
            block_on(notes.remove_async(id as u32)).unwrap();
        }
        assert_eq!(visits.clone().clear().unwrap(), 80);
        db.stats().log_syncs - before
    };
    let (relaxed, full) = (syncs_of(Durability::Relaxed), syncs_of(Durability::Full));
    assert!(full >= 200 && relaxed < 100, "{relaxed} syncs relaxed, {full} full");
}

/// Options reach asynchronous transactions: a serializable transaction fails with a conflict in a case in which
/// snapshot isolation would allow write skew.
#[test]
fn asynchronous_transactions_have_options() {
    let db = database();
    let collections = Collections::new(&db);
    let visits = collections.open::<Visit>().unwrap();
    let (mut runs, options) = (0, TxOptions { isolation: Isolation::Serializable, ..db.tx_options() });
    let counted = collections.transact_with_async(options, |mut tx| {
        runs += 1;
        let (visits, is_first) = (visits.clone(), runs == 1);
        Box::pin(async move {
            let count = visits.at(&tx).len_async().await?;
            if is_first {
                visits.put_async(&Visit(1)).await?;
            }
            tx.put_async(&visits, &Visit(1000 + count)).await?;
            Ok::<u64, Error>(count)
        })
    });
    assert_eq!(block_on(counted).unwrap(), 1);
    assert_eq!(runs, 2);
}
