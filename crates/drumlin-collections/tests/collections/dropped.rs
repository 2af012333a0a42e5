//! Drops futures before they complete. A call may be dropped at any of its waits: no row is lost or repeated, and no
//! change is left half-finished.
#![allow(clippy::needless_pass_by_value, reason = "calls are closures that are written where they are passed")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use drumlin::{Config, Database, Keyspace};
use drumlin_collections::{
    Collection, Collections, Documents, Error, Event, Index, Parts, Postcard, Reading, Result, Retention, Transaction,
    View,
};
use drumlin_testing::Random;
use drumlin_testing::futures::{async_methods, block_on, within_polls};
use serde::{Deserialize, Serialize};

const ENTRIES: u32 = 1200;
const GROUPS: u32 = 6;
/// An upper bound on the number of polls that a call needs.
const POLLS_MAX: usize = 200;

/// An entry. Its rows in the view and the history are as large as its row in the collection.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Entry {
    id: u32,
    cents: u64,
    bytes: Vec<u8>,
}

type Sum = (u64, Vec<u8>);

impl Entry {
    const BY_GROUP: Index<Entry, u32> = Index::new("by group", |entry| entry.id % GROUPS);
    const BY_CENTS: Index<Entry, u64> = Index::new("by cents", |entry: &Entry| entry.cents).unique();
    const SUMS: View<Entry, u32, Sum> =
        View::new("sums", |entry: &Entry, emit| emit(entry.id % GROUPS, (entry.cents, entry.bytes.clone())))
            .reducing(|a, b| (a.0 + b.0, Vec::new()));

    fn draw(id: u32, seed: u64) -> Entry {
        let cents = u64::from(id) * 1000 + seed;
        Entry { id, cents, bytes: Random(cents).bytes(1500) }
    }
}

impl Collection for Entry {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "entries";

    fn key(&self) -> u32 {
        self.id
    }

    fn parts() -> Parts<Entry> {
        Parts::new().index(Entry::BY_GROUP).index(Entry::BY_CENTS).view(Entry::SUMS).history(Retention::FOREVER)
    }
}

/// An entry of the collection that is bulk loaded.
#[derive(Serialize, Deserialize)]
struct Loaded(Entry);

const LOADED: u32 = 600;

impl Loaded {
    const BY_GROUP: Index<Loaded, u32> = Index::new("by group", |loaded| loaded.0.id % GROUPS);
}

impl Collection for Loaded {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "loaded";

    fn key(&self) -> u32 {
        self.0.id
    }

    fn parts() -> Parts<Loaded> {
        Parts::new().index(Loaded::BY_GROUP)
    }
}

/// A database that is larger than its memory budget, and the names of the calls that were tried on it.
struct Trial {
    db: Database,
    collections: Collections,
    entries: Documents<Entry>,
    filler: Keyspace,
    /// A point in time between the two versions of each entry.
    time: SystemTime,
    tried: RefCell<BTreeSet<&'static str>>,
}

impl Trial {
    fn new(folder: &Path) -> Trial {
        let db = Config::new().memory(8 << 20).open(folder).unwrap();
        let filler = db.keyspace("filler").unwrap();
        let mut load = db.bulk_load("filler").unwrap();
        for number in 0..8000u64 {
            load.insert(number.to_be_bytes(), Random(number).bytes(1000)).unwrap();
        }
        load.finish().unwrap();
        let ticks = Arc::new(AtomicU64::new(0));
        let clock_ticks = Arc::clone(&ticks);
        let at = |ticks| SystemTime::UNIX_EPOCH + Duration::from_secs(ticks);
        let collections = Collections::with_clock(&db, move || at(clock_ticks.fetch_add(1, Ordering::Relaxed)));
        let entries = collections.open::<Entry>().unwrap();
        let write_all = |seed| {
            for first in (0..ENTRIES).step_by(25) {
                let ids = first..first + 25;
                let write =
                    |tx: &mut Transaction<'_>| ids.clone().try_for_each(|id| tx.put(&entries, &Entry::draw(id, seed)));
                collections.transact(write).unwrap();
            }
        };
        write_all(0);
        let time = at(ticks.fetch_add(1, Ordering::Relaxed));
        write_all(1);
        db.checkpoint().unwrap();
        Trial { db, collections, entries, filler, time, tried: RefCell::default() }
    }

    /// Evicts the collection's pages from memory.
    fn forget_pages(&self) {
        let rows = self.filler.iter().inspect(|row| assert!(row.is_ok())).count();
        assert_eq!(rows, 8000);
    }

    /// Drops a read at its first wait, then at its second, and so on until it completes. Then checks its result.
    fn answers<T: PartialEq + Debug>(&self, name: &'static str, mut call: impl AsyncFnMut() -> T, expected: &T) {
        self.tried.borrow_mut().insert(name);
        for polls in 1..POLLS_MAX {
            self.forget_pages();
            if let Some(answer) = block_on(within_polls(polls, call())) {
                assert!(polls > 1, "{name} never waited");
                assert_eq!(answer, *expected, "{name}");
                return;
            }
        }
        panic!("{name} waits for ever");
    }

    /// Drops each step of an iterator at its first wait, then at its second, and so on until it completes. Checks that
    /// the iterator still returns all items.
    fn steps<T: PartialEq + Debug>(
        &self,
        name: &'static str,
        expected: &[T],
        mut step: impl AsyncFnMut() -> Option<Result<T>>,
    ) {
        self.tried.borrow_mut().insert(name);
        self.forget_pages();
        let (mut found, mut dropped_count) = (Vec::new(), 0);
        loop {
            let item = (1..POLLS_MAX).find_map(|polls| {
                let item = block_on(within_polls(polls, step()));
                dropped_count += usize::from(item.is_none());
                item
            });
            match item.unwrap_or_else(|| panic!("{name} waits for ever")) {
                Some(item) => found.push(item.unwrap()),
                None => break,
            }
        }
        assert!(dropped_count > 0, "{name} never waited");
        assert_eq!(found.len(), expected.len(), "{name}: so many of the rows are left");
        assert!(found == expected, "{name}: other rows");
    }

    /// Drops a call that changes an entry at its first wait, then at its second, and so on until it completes. After
    /// each drop, either the old or the new version of the entry must exist, with all of its rows.
    fn changes(&self, name: &'static str, call: impl AsyncFn(u32), after: impl Fn(u32) -> Option<Entry>) {
        self.tried.borrow_mut().insert(name);
        for polls in 1..POLLS_MAX {
            self.forget_pages();
            let id = polls as u32 * 5;
            self.entries.put(&Entry::draw(id, 1)).unwrap();
            let is_done = block_on(within_polls(polls, call(id))).is_some();
            let snapshot = self.db.snapshot();
            let entry = check_entry(&self.entries.at(&snapshot), id);
            assert!(entry == after(id) || !is_done && entry == Some(Entry::draw(id, 1)), "{name}: {entry:?}");
            if is_done {
                assert!(polls > 1, "{name} never waited");
                return;
            }
        }
        panic!("{name} waits for ever");
    }

    /// Like `changes`, but the change runs within a transaction that commits after the drop. A dropped change must have
    /// no effect.
    fn changes_in_transaction(
        &self,
        name: &'static str,
        call: &impl AsyncFn(&mut Transaction<'_>, u32),
        after: impl Fn(u32) -> Option<Entry>,
    ) {
        self.tried.borrow_mut().insert(name);
        for polls in 1..POLLS_MAX {
            self.forget_pages();
            let id = polls as u32 * 5 + 1;
            self.entries.put(&Entry::draw(id, 1)).unwrap();
            let run = |tx: &mut Transaction<'_>| Ok::<_, Error>(block_on(within_polls(polls, call(tx, id))).is_some());
            let is_done = self.collections.transact(run).unwrap();
            let entry = check_entry(&self.entries.now(), id);
            assert_eq!(entry, if is_done { after(id) } else { Some(Entry::draw(id, 1)) }, "{name}");
            if is_done {
                assert!(polls > 1, "{name} never waited");
                return;
            }
        }
        panic!("{name} waits for ever");
    }
}

/// Checks that the rows derived from the entry with this key match the entry, and returns the entry.
fn check_entry(reading: &Reading<'_, Entry>, id: u32) -> Option<Entry> {
    let entry = reading.get(id).unwrap();
    let group = id % GROUPS;
    let is_indexed = reading.index(&Entry::BY_GROUP).keys(group..=group).any(|row| row.unwrap().1 == id);
    assert_eq!(is_indexed, entry.is_some(), "the index has a document, or lacks one");
    let cents: Vec<(u64, u32)> = reading
        .index(&Entry::BY_CENTS)
        .keys(u64::from(id) * 1000..u64::from(id + 1) * 1000)
        .collect::<Result<_>>()
        .unwrap();
    assert!(cents.into_iter().eq(entry.iter().map(|entry| (entry.cents, id))), "the unique index is another's");
    let mut rows = reading.view(&Entry::SUMS).range(group..=group).map(|row| row.unwrap());
    let emitted = rows.find(|row| row.document == id).map(|row| row.value.0);
    assert_eq!(emitted, entry.as_ref().map(|entry| entry.cents), "the view has another document");
    let newest = reading.versions(id).unwrap().next_back().unwrap().unwrap();
    assert_eq!(newest.document, entry, "the newest version is another");
    entry
}

/// Every asynchronous call of the crate is dropped at each of its waits and then repeated. It returns the same result
/// as the blocking call, iterators neither skip nor repeat an item, and changes happen completely or not at all.
#[test]
fn any_call_dropped_at_any_wait_changes_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let trial = Trial::new(folder.path());
    let snapshot = trial.db.snapshot();
    let reading = trial.entries.at(&snapshot);
    answers_stay(&trial, &reading);
    steps_lose_nothing(&trial, &reading);
    changes_are_whole(&trial);
    the_rest_of_the_calls(&trial);
    let tried: BTreeSet<String> = trial.tried.borrow().iter().map(|name| (*name).to_owned()).collect();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_eq!(tried, async_methods(&sources), "a call is missing here, or gone there");
}

fn answers_stay(trial: &Trial, reading: &Reading<'_, Entry>) {
    let Trial { entries, time, .. } = trial;
    let newest = Entry::draw(700, 1);
    trial.answers("Documents::get_async", async || entries.get_async(700).await.unwrap(), &Some(newest.clone()));
    trial.answers("Reading::get_async", async || reading.get_async(700).await.unwrap(), &Some(newest));
    let keys: Vec<u32> = (0..ENTRIES).step_by(40).collect();
    let many: Vec<_> = keys.iter().map(|id| Some(Entry::draw(*id, 1))).collect();
    trial.answers("Reading::get_many_async", async || reading.get_many_async(&keys).await.unwrap(), &many);
    let get_many = async || entries.get_many_async(&keys).await.unwrap();
    trial.answers("Documents::get_many_async", get_many, &many);
    trial.answers("Documents::contains_async", async || entries.contains_async(700).await.unwrap(), &true);
    trial.answers("Reading::contains_async", async || reading.contains_async(700).await.unwrap(), &true);
    let part = 100..1111;
    trial.answers("Documents::count_async", async || entries.count_async(part.clone()).await.unwrap(), &1011);
    trial.answers("Reading::count_async", async || reading.count_async(part.clone()).await.unwrap(), &1011);
    let all = u64::from(ENTRIES);
    trial.answers("Documents::len_async", async || entries.len_async().await.unwrap(), &all);
    trial.answers("Reading::len_async", async || reading.len_async().await.unwrap(), &all);
    trial.answers("Documents::is_empty_async", async || entries.is_empty_async().await.unwrap(), &false);
    trial.answers("Reading::is_empty_async", async || reading.is_empty_async().await.unwrap(), &false);
    let (least, greatest) = (Some(Entry::draw(0, 1)), Some(Entry::draw(ENTRIES - 1, 1)));
    trial.answers("Documents::first_async", async || entries.first_async().await.unwrap(), &least);
    trial.answers("Reading::first_async", async || reading.first_async().await.unwrap(), &least);
    trial.answers("Documents::last_async", async || entries.last_async().await.unwrap(), &greatest);
    trial.answers("Reading::last_async", async || reading.last_async().await.unwrap(), &greatest);
    let version = reading.version(900, 1).unwrap();
    assert_eq!(version.as_ref().unwrap().document, Some(Entry::draw(900, 0)));
    trial.answers("Reading::version_async", async || reading.version_async(900, 1).await.unwrap(), &version);
    let older = Some(Entry::draw(500, 0));
    trial.answers("Reading::as_of_async", async || reading.as_of_async(*time, 500).await.unwrap(), &older);
    let groups = reading.index(&Entry::BY_GROUP);
    let first = Some(Entry::draw(3, 1));
    trial.answers("Indexed::first_async", async || groups.first_async(3).await.unwrap(), &first);
    let count = u64::from(ENTRIES);
    trial.answers("Indexed::count_async", async || groups.count_async(..).await.unwrap(), &count);
    let sums = reading.view(&Entry::SUMS);
    let sum = Some((0..ENTRIES).map(|id| u64::from(id) * 1000 + 1).sum::<u64>());
    trial.answers("Viewed::reduce_async", async || sums.reduce_async(..).await.unwrap().map(|sum| sum.0), &sum);
}

fn steps_lose_nothing(trial: &Trial, reading: &Reading<'_, Entry>) {
    let all: Vec<Entry> = (0..ENTRIES).map(|id| Entry::draw(id, 1)).collect();
    let reversed: Vec<Entry> = all.iter().rev().cloned().collect();
    let mut rows = reading.iter();
    trial.steps("Rows::next_async", &all, async || rows.next_async().await);
    let mut rows = reading.iter();
    trial.steps("Rows::next_back_async", &reversed, async || rows.next_back_async().await);

    let groups = reading.index(&Entry::BY_GROUP);
    let mut by_group = all.clone();
    by_group.sort_by_key(|entry| (entry.id % GROUPS, entry.id));
    let mut found = groups.range(..);
    trial.steps("Found::next_async", &by_group, async || found.next_async().await);
    let mut found = groups.range(..);
    let back: Vec<Entry> = by_group.iter().rev().cloned().collect();
    trial.steps("Found::next_back_async", &back, async || found.next_back_async().await);
    // Let the two ends of the iterator meet among documents that one end has prefetched.
    let mut found = groups.range(..);
    let mut step = 0;
    let mut both_ends = async || {
        step += 1;
        if step % 5 == 0 { found.next_back_async().await } else { found.next_async().await }
    };
    trial.forget_pages();
    let mut met: Vec<Entry> = Vec::new();
    while let Some(item) = block_on(within_polls(1, both_ends())).unwrap_or_else(|| block_on(both_ends())) {
        met.push(item.unwrap());
    }
    met.sort_by_key(|entry| (entry.id % GROUPS, entry.id));
    assert!(met == by_group, "rows that both ends read are {} of {}", met.len(), by_group.len());

    let keys: Vec<(u32, u32)> = by_group.iter().map(|entry| (entry.id % GROUPS, entry.id)).collect();
    let mut index_keys = groups.keys(..);
    trial.steps("IndexKeys::next_async", &keys, async || index_keys.next_async().await);
    let mut index_keys = groups.keys(..);
    let back: Vec<_> = keys.iter().rev().copied().collect();
    trial.steps("IndexKeys::next_back_async", &back, async || index_keys.next_back_async().await);

    let view = reading.view(&Entry::SUMS);
    let emitted: Vec<(u32, u64)> = by_group.iter().map(|entry| (entry.id, entry.cents)).collect();
    let mut rows = view.range(..);
    let mut step = async || Some(rows.next_async().await?.map(|row| (row.document, row.value.0)));
    trial.steps("ViewRows::next_async", &emitted, &mut step);
    let sum = |group| by_group.iter().filter(|entry| entry.id % GROUPS == group).map(|entry| entry.cents).sum();
    let sums: Vec<(u32, u64)> = (0..GROUPS).map(|group| (group, sum(group))).collect();
    let mut groups = view.groups(..);
    let mut step = async || Some(groups.next_async().await?.map(|(group, sum)| (group, sum.0)));
    trial.steps("Groups::next_async", &sums, &mut step);

    let older: Vec<Entry> = (0..ENTRIES).map(|id| Entry::draw(id, 0)).collect();
    let mut as_of = reading.range_as_of(trial.time, ..).unwrap();
    trial.steps("AsOf::next_async", &older, async || as_of.next_async().await);
    let versions = [Entry::draw(40, 0), Entry::draw(40, 1)];
    let mut rows = reading.versions(40).unwrap();
    let mut step = async || Some(rows.next_async().await?.map(|version| version.document.unwrap()));
    trial.steps("Versions::next_async", &versions, &mut step);
    let mut rows = reading.versions(40).unwrap();
    let mut step = async || Some(rows.next_back_async().await?.map(|version| version.document.unwrap()));
    trial.steps("Versions::next_back_async", &[versions[1].clone(), versions[0].clone()], &mut step);
}

fn changes_are_whole(trial: &Trial) {
    let Trial { entries, collections, .. } = trial;
    fn other(id: u32) -> Entry {
        Entry::draw(id, 2)
    }
    let put = async |id| entries.put_async(&other(id)).await.unwrap();
    trial.changes("Documents::put_async", put, |id| Some(other(id)));
    let update =
        async |id| assert!(entries.update_async(id, |entry| *entry = other(entry.id)).await.unwrap().is_some());
    trial.changes("Documents::update_async", update, |id| Some(other(id)));
    let remove = async |id| assert!(entries.remove_async(id).await.unwrap().is_some());
    trial.changes("Documents::remove_async", remove, |_| None);
    let insert = async |id| assert!(entries.insert_async(&other(id)).await.is_err());
    trial.changes("Documents::insert_async", insert, |id| Some(Entry::draw(id, 1)));
    let remove_range = async |id| assert_eq!(entries.remove_range_async(id..=id).await.unwrap(), 1);
    trial.changes("Documents::remove_range_async", remove_range, |_| None);
    // Insert a new document whose unique key belongs to the existing entry.
    let twin = |id| Entry { id: id + ENTRIES, ..Entry::draw(id, 1) };
    let insert_or_get = async |id| {
        let other = entries.insert_or_get_async(&Entry::BY_CENTS, &twin(id)).await.unwrap();
        assert_eq!(other, Some(Entry::draw(id, 1)));
    };
    trial.changes("Documents::insert_or_get_async", insert_or_get, |id| Some(Entry::draw(id, 1)));
    let transact = async |id| {
        let run = collections.transact_with_async(trial.db.tx_options(), |mut tx| {
            let entries = entries.clone();
            Box::pin(async move { tx.put_async(&entries, &Entry::draw(id, 2)).await })
        });
        run.await.unwrap();
    };
    trial.changes("Collections::transact_with_async", transact, |id| Some(other(id)));
    let transact = async |id| {
        let run = collections.transact_async(|mut tx| {
            let entries = entries.clone();
            Box::pin(async move { tx.put_async(&entries, &Entry::draw(id, 2)).await })
        });
        run.await.unwrap();
    };
    trial.changes("Collections::transact_async", transact, |id| Some(other(id)));
    let transact = async |id| {
        let run = collections.try_transact_async(|mut tx| {
            let entries = entries.clone();
            Box::pin(async move { tx.put_async(&entries, &Entry::draw(id, 2)).await })
        });
        run.await.unwrap();
    };
    trial.changes("Collections::try_transact_async", transact, |id| Some(other(id)));

    let put = async |tx: &mut Transaction<'_>, id| tx.put_async(entries, &other(id)).await.unwrap();
    trial.changes_in_transaction("Transaction::put_async", &put, |id| Some(other(id)));
    let update = async |tx: &mut Transaction<'_>, id| {
        tx.update_async(entries, id, |entry| *entry = other(entry.id)).await.unwrap();
    };
    trial.changes_in_transaction("Transaction::update_async", &update, |id| Some(other(id)));
    let remove = async |tx: &mut Transaction<'_>, id| drop(tx.remove_async(entries, id).await.unwrap());
    trial.changes_in_transaction("Transaction::remove_async", &remove, |_| None);
    let insert = async |tx: &mut Transaction<'_>, id| assert!(tx.insert_async(entries, &other(id)).await.is_err());
    trial.changes_in_transaction("Transaction::insert_async", &insert, |id| Some(Entry::draw(id, 1)));
    let insert_or_get = async |tx: &mut Transaction<'_>, id| {
        let other = tx.insert_or_get_async(entries, &Entry::BY_CENTS, &twin(id)).await.unwrap();
        assert_eq!(other, Some(Entry::draw(id, 1)));
    };
    trial.changes_in_transaction("Transaction::insert_or_get_async", &insert_or_get, |id| Some(Entry::draw(id, 1)));
}

/// If a bulk load is dropped during any of its calls before `finish` has begun, it leaves no rows. After that, the load
/// completes even if the call is dropped.
fn loads_are_whole(trial: &Trial) -> Documents<Loaded> {
    let Trial { db, collections, .. } = trial;
    let load = async || {
        let mut load = loop {
            // The thread of a dropped call may still hold a load of the collection.
            match collections.bulk_load_async::<Loaded>().await {
                Ok(load) => break load,
                Err(_) => std::thread::yield_now(),
            }
        };
        for id in 0..LOADED {
            load.insert_async(&Loaded(Entry::draw(id, 1))).await.unwrap();
        }
        load.finish_async().await.unwrap()
    };
    for polls in 1..POLLS_MAX {
        if let Some(loaded) = block_on(within_polls(polls, load())) {
            return loaded;
        }
        while collections.bulk_load::<Loaded>().is_err() {
            let has_documents = |rows: Keyspace| !rows.is_empty().unwrap();
            if db.existing_keyspace(Loaded::NAME).is_ok_and(has_documents)
                && let Ok(loaded) = collections.open::<Loaded>()
            {
                return loaded;
            }
            std::thread::yield_now();
        }
    }
    panic!("a load waits for ever");
}

/// Tries the asynchronous calls that wait for other threads.
fn the_rest_of_the_calls(trial: &Trial) {
    let Trial { entries, collections, tried, .. } = trial;
    let changes = entries.subscribe(10);
    assert!(block_on(within_polls(1, changes.next_async())).is_none());
    entries.put(&Entry::draw(1, 3)).unwrap();
    let Event::Change(change) = block_on(changes.next_async()).unwrap() else { panic!("a change was lost") };
    assert_eq!(change.key, 1);
    drop(block_on(within_polls(1, collections.open_async::<Entry>())));
    let again = block_on(collections.open_async::<Entry>()).unwrap();
    assert_eq!(again.get(1).unwrap(), Some(Entry::draw(1, 3)));
    drop(block_on(within_polls(1, entries.wait_built_async())));
    block_on(entries.wait_built_async()).unwrap();
    drop(block_on(within_polls(1, entries.remove_expired_async())));
    assert_eq!(block_on(entries.remove_expired_async()).unwrap(), 0);
    let config = drumlin::Config::in_memory().keep_changes(drumlin::Retention::bytes(1 << 20));
    let kept = config.open("").unwrap();
    let told = Collections::new(&kept).open::<Entry>().unwrap();
    let mut feed = told.changes_since(kept.snapshot().timestamp()).unwrap();
    assert!(block_on(within_polls(1, feed.next_async())).is_none());
    told.put(&Entry::draw(1, 3)).unwrap();
    let committed = block_on(feed.next_async()).expect("the feed goes on").unwrap();
    assert_eq!(feed.position(), committed.timestamp);
    let loaded = loads_are_whole(trial);
    loaded.wait_built().unwrap();
    assert!(loaded.iter().map(|entry| entry.unwrap().0).eq((0..LOADED).map(|id| Entry::draw(id, 1))));
    assert_eq!(loaded.index(&Loaded::BY_GROUP).count(..).unwrap(), u64::from(LOADED));
    // Each transaction of `clear` removes its documents completely, so even calls that are dropped make progress.
    let removed = (1..POLLS_MAX).find_map(|polls| block_on(within_polls(polls, loaded.clear_async()))).unwrap();
    assert!(removed.unwrap() <= u64::from(LOADED) && loaded.is_empty().unwrap());
    assert_eq!(loaded.index(&Loaded::BY_GROUP).count(..).unwrap(), 0);
    tried.borrow_mut().extend([
        "BulkLoad::finish_async",
        "BulkLoad::insert_async",
        "Changes::next_async",
        "Collections::bulk_load_async",
        "Documents::clear_async",
        "Collections::open_async",
        "Documents::wait_built_async",
        "Documents::remove_expired_async",
        "DurableChanges::next_async",
    ]);
}
