//! Entries and votes that were told to be durable survive a power cut, and nothing is removed too early.

use std::sync::mpsc;

use drumlin_io::testing::sim::Faults;
use drumlin_raft::{Group, KeyValue};

use crate::support::{GROUP, Kind, Opened, Place, check_count, count_to, id};

/// A store of a log, as the harness uses it.
trait Store {
    /// Appends an entry, and returns when the store reports it as durable.
    fn append(&self, index: u64, entry: &[u8]);
    /// Saves a vote, and returns when the store reports it as durable.
    fn save_vote(&self, vote: &[u8]);
}

/// The store of this crate.
struct Honest<'g>(&'g Group<KeyValue>);

impl Store for Honest<'_> {
    fn append(&self, index: u64, entry: &[u8]) {
        let (answer, answered) = mpsc::channel();
        let entries = [entry];
        let appending = self.0.log().append(index, &entries, move |durable| answer.send(durable).unwrap());
        smol::block_on(appending).unwrap();
        answered.recv().unwrap().unwrap();
    }

    fn save_vote(&self, vote: &[u8]) {
        smol::block_on(self.0.log().save_vote(vote)).unwrap();
    }
}

/// A store that answers when the entry can be read.
struct Early<'g>(&'g Group<KeyValue>);

impl Store for Early<'_> {
    fn append(&self, index: u64, entry: &[u8]) {
        smol::block_on(self.0.log().append(index, &[entry], drop)).unwrap();
    }

    fn save_vote(&self, vote: &[u8]) {
        // Polled once: the vote is set, and that is all.
        let saving = self.0.log().save_vote(vote);
        let mut saving = std::pin::pin!(saving);
        smol::block_on(futures_util::future::poll_immediate(&mut saving));
    }
}

/// Appends entries and saves votes, and cuts the power after the store has reported one of them as durable. Returns
/// what was lost.
fn find_lost(seed: u64, run: impl Fn(&Group<KeyValue>, u64)) -> Option<String> {
    let opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    let last = seed % 5;
    for index in 0..=last {
        run(opened.group(), index);
    }
    let opened = Opened::open(opened.place.cut(seed), KeyValue);
    let log = opened.node.as_ref().unwrap().logs().log(GROUP);
    for index in 0..=last {
        match log.get(index) {
            Ok(entry) => assert_eq!(entry, *format!("entry {index}").as_bytes()),
            Err(error) => return Some(format!("entry {index}: {error}")),
        }
    }
    let vote = format!("vote {last}");
    (opened.group().log().vote().as_deref() != Some(vote.as_bytes())).then_some(vote)
}

fn append_and_vote(store: &impl Store, index: u64, votes_last: bool) {
    let (entry, vote) = (format!("entry {index}"), format!("vote {index}"));
    if votes_last {
        store.append(index, entry.as_bytes());
        store.save_vote(vote.as_bytes());
    } else {
        store.save_vote(vote.as_bytes());
        store.append(index, entry.as_bytes());
    }
}

/// The power is cut right after each answer: whatever was told to be durable is there.
#[test]
fn told_durable_is_durable() {
    for seed in 0..30 {
        let lost = find_lost(seed, |group, index| append_and_vote(&Honest(group), index, seed % 2 == 0));
        assert_eq!(lost, None, "seed {seed}");
    }
}

/// The same harness notices a store that answers too early, be it an entry or a vote.
#[test]
fn a_store_that_answers_early_is_found() {
    for votes_last in [false, true] {
        let find = |seed| find_lost(seed, |group, index| append_and_vote(&Early(group), index, votes_last));
        assert!((0..30).any(|seed| find(seed).is_some()), "no seed finds it");
    }
}

/// Entries are applied without a sync. Whenever the power is cut, the state is that after some entry, and the log has
/// the rest.
#[test]
fn after_a_cut_the_state_is_that_after_some_entry() {
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
        let entries: Vec<Vec<u8>> = (0..42).map(|index| vec![index; 100]).collect();
        Honest(opened.group()).append(0, &entries[0]);
        smol::block_on(opened.group().log().append(1, &entries[1..41], drop)).unwrap();
        Honest(opened.group()).append(41, &entries[41]);
        count_to(opened.group(), 1, 10);
        let durable = opened.group().state().durably_applied_index().unwrap();
        count_to(opened.group(), 11, 20);
        // Forgets what is applied, and first makes that durable.
        if seed % 2 == 0 {
            smol::block_on(opened.group().log().purge(&id(30))).unwrap();
            assert!(opened.group().state().durably_applied_index().unwrap() >= Some(30));
        }
        let opened = Opened::open(opened.place.cut(seed), KeyValue);
        let applied = check_count(opened.group());
        assert!(applied >= durable, "what was durably applied is lost");
        let log = opened.node.as_ref().unwrap().logs().log(GROUP);
        let first = log.first().unwrap();
        assert!(first <= applied.map_or(0, |applied| applied + 1), "the log begins at {first}, after {applied:?}");
        assert_eq!(log.last(), Some(41));
        found.insert(applied);
    }
    assert!(found.len() > 1, "each cut had the same state: {found:?}");
}

/// A purge never removes entries that the state machine has not applied.
#[test]
fn nothing_is_purged_above_what_is_applied() {
    let mut opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    let entries: Vec<Vec<u8>> = (0..10).map(|index| vec![index; 100]).collect();
    smol::block_on(opened.group().log().append(0, &entries, drop)).unwrap();
    let stored = |opened: &Opened<KeyValue>| opened.node.as_ref().unwrap().logs().log(GROUP).first();
    smol::block_on(opened.group().log().purge(&id(5))).unwrap();
    assert_eq!(stored(&opened), Some(0));
    let visible = |opened: &Opened<KeyValue>| opened.group().log().range(..).unwrap().unwrap().count();
    assert_eq!(visible(&opened), 4, "they can still be read");
    count_to(opened.group(), 1, 1);
    // A later purge, even of fewer entries, removes those of the earlier purge that are applied by now.
    smol::block_on(opened.group().log().purge(&id(3))).unwrap();
    assert_eq!(stored(&opened), Some(4));
    opened.reopen(KeyValue);
    assert_eq!(opened.group().log().purged().unwrap(), Some(id(5)));
    assert_eq!((stored(&opened), visible(&opened)), (Some(4), 4));
}

/// The committed id takes no sync of its own. It goes with the next append, and with closing.
#[test]
fn saving_what_is_committed_takes_no_sync() {
    let mut opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    Honest(opened.group()).append(0, b"entry");
    opened.group().log().save_committed(Some(b"0"));
    // Nothing was given to the log.
    assert_eq!(opened.node.as_ref().unwrap().logs().log(GROUP).value("committed"), None);
    assert_eq!(opened.group().log().committed().unwrap(), b"0");
    Honest(opened.group()).append(1, b"entry");
    opened = Opened::open(opened.place.cut(1), KeyValue);
    assert_eq!(opened.group().log().committed().unwrap(), b"0");
    opened.group().log().save_committed(Some(b"1"));
    opened.reopen(KeyValue);
    assert_eq!(opened.group().log().committed().unwrap(), b"1");
    opened.group().log().save_committed(None);
    opened.reopen(KeyValue);
    assert_eq!(opened.group().log().committed(), None);
}

/// Entries that were cut off never come back: neither the entries, nor after a power cut once something follows.
#[test]
fn a_cut_is_durable_before_what_follows() {
    for seed in 0..10 {
        let opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
        for index in 0..5 {
            Honest(opened.group()).append(index, b"old");
        }
        smol::block_on(opened.group().log().truncate_after(Some(1))).unwrap();
        Honest(opened.group()).append(2, b"new");
        let opened = Opened::open(opened.place.cut(seed), KeyValue);
        let range = opened.group().log().range(..).unwrap().unwrap();
        let entries: Vec<Vec<u8>> = range.map(|entry| entry.unwrap().to_vec()).collect();
        assert_eq!(entries, [&b"old"[..], b"old", b"new"]);
    }
}

/// If the disk fails, each pending append gets the error once, no later one is acknowledged, and entries can still be
/// read.
#[test]
fn a_failed_disk_is_told_once() {
    let opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    Honest(opened.group()).append(0, b"entry");
    let Place::Simulated(disk) = &opened.place else { unreachable!() };
    disk.set_faults(Faults { write_fails_one_in: 1, sync_fails_one_in: 1, ..Faults::default() });
    let (answer, answered) = mpsc::channel();
    let entries = [b"entry"];
    let appending = opened.group().log().append(1, &entries, move |durable| answer.send(durable).unwrap());
    smol::block_on(appending).unwrap();
    assert!(answered.recv().unwrap().is_err());
    assert!(answered.recv().is_err(), "it was answered twice");
    disk.set_faults(Faults::default());
    assert!(smol::block_on(opened.group().log().save_vote(b"vote")).is_err());
    assert!(smol::block_on(opened.group().log().append(2, &entries, drop)).is_err());
    let range = opened.group().log().range(0..1).unwrap().unwrap();
    assert_eq!(range.map(|entry| entry.unwrap().to_vec()).collect::<Vec<_>>(), [b"entry"]);
}
