//! White-box tests of values with their own extents (when they are freed, how they are read and moved), of memory
//! limits, and of waiting.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::counts::CountedTree;
use crate::db::{Database, Keyspace, Savepoint, Transaction, Value};
use crate::format::KeyspaceId;
use crate::format::extent::{Header, PageKey};
use crate::format::node::LargeRef;
use crate::format::{ChunkNumber, DatabaseId, ExtentAddress, PageId, SegmentUse, ValueId, extent};
use crate::io::Backend;
use crate::io::fault::{FaultyBackend, Operation};
use crate::memory::{Account, Budget, WRITE_BUFFER_COUNT};
use crate::space::{PageEntry, PageSpace};
use crate::store::reclaim::Goal;
use crate::task::{WaitMode, ready};
use crate::tree::node::{Leaf, LeafMut, RowValue};
use crate::tree::{RowObserver, Target, Tree};
use crate::txn::commit::at_once::IS_OFF;
use crate::txn::engine::{Found, ReadAt};
use crate::txn::values;
use crate::txn::write_set::{Change, WriteSet};
use crate::{Config, Durability, Stats};

/// The number of bytes of a value in each chunk except the last, given the segment size of these tests.
const CHUNK_BYTES: usize = (64 << 10) - 48;

/// Returns incompressible bytes that depend only on the seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    drumlin_testing::Random(seed).bytes(length)
}

fn open(backend: &Arc<dyn Backend>) -> (Database, Keyspace) {
    let config = Config::new().backend(Arc::clone(backend)).memory(16 << 20).segment_bytes(256 << 10);
    let db = config.log_segment_bytes(1 << 20).open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    (db, keyspace)
}

fn stage() -> (Database, Keyspace) {
    open(&crate::io::in_memory())
}

fn reference(db: &Database, keyspace: &Keyspace, key: &[u8]) -> LargeRef {
    match db.store().unwrap().engine.find(keyspace.tree(), key, ReadAt::Visible, <[u8]>::len).unwrap() {
        Some(Found::Large(reference)) => reference,
        other => panic!("no reference but {other:?}"),
    }
}

/// Each clone is made of the one before. A clone lists those origins of whose pages it has some, and no others.
#[test]
fn a_clone_lists_origins_of_whose_pages_it_has_some() {
    let origins = |db: &Database, keyspace: &Keyspace| -> Vec<KeyspaceId> {
        let is_its = |header: &Header, origin: &KeyspaceId| header.page_key.keyspace == *origin;
        let (engine, pages) = (&db.store().unwrap().engine, &keyspace.tree().pages);
        let mut found = Vec::new();
        for (_, entry) in pages.table.iter() {
            let address = match entry {
                PageEntry::OnDisk(address) => address,
                PageEntry::Leaf(frame) | PageEntry::Immutable(frame) => engine.pool.frames.header(frame).address(),
                _ => continue,
            };
            if !address.is_none() {
                found.push(crate::space::extents::read_extent(&engine.space, address).unwrap().0);
            }
        }
        let listed = pages.origins().iter().map(|origin| origin.keyspace);
        let stray = found.iter().find(|header| !pages.is_stored_as(header.page_key.keyspace));
        assert!(stray.is_none(), "{stray:?} is listed nowhere");
        let (held, idle): (Vec<_>, Vec<_>) =
            listed.partition(|origin| found.iter().any(|header| is_its(header, origin)));
        // The uses of segments tell it except for those that were taken during the cloned checkpoint.
        assert!(idle.len() <= 2, "{idle:?} are listed besides {held:?}");
        held
    };
    let (backend, rows) = (crate::io::in_memory(), 0..4000u32);
    let (mut db, mut keyspace) = open(&backend);
    for row in rows.clone() {
        keyspace.insert_with(row.to_be_bytes(), noise(row.into(), 100), Durability::Relaxed).unwrap();
    }
    let mut names = vec!["k".to_owned()];
    for round in 0..24u32 {
        let name = format!("clone {round}");
        db.clone_keyspace(names.last().unwrap(), &name).unwrap();
        names.push(name.clone());
        if round % 5 == 4 {
            drop(keyspace);
            db.close().unwrap();
            (db, _) = open(&backend);
        }
        keyspace = db.existing_keyspace(&name).unwrap();
        assert!(!origins(&db, &keyspace).is_empty());
        // Before round 12, some rows stay as they are. Then all get longer, so that inner nodes are replaced too.
        let bytes = if round < 12 { 100 } else { 300 };
        for row in rows.clone().filter(|row| round >= 12 || row % 1000 > 100) {
            keyspace.insert_with(row.to_be_bytes(), noise(round.into(), bytes), Durability::Relaxed).unwrap();
        }
        db.checkpoint().unwrap();
        let has_first = db.existing_keyspace(&name).unwrap().tree().pages.has_origin(KeyspaceId(1));
        assert_eq!(has_first, round <= 12, "round {round}");
        if round % 3 == 0 {
            db.drop_keyspace(&names[names.len() / 2]).unwrap();
            names.remove(names.len() / 2);
        }
    }
    let report = db.check().unwrap();
    assert!(report.corruption.is_empty(), "{report:?}");
}

/// Makes gaps in every segment and compacts the file, which moves all remaining extents.
fn move_everything(db: &Database, keyspace: &Keyspace) {
    for key in 0..12u8 {
        keyspace.remove([b'f', key]).unwrap();
    }
    db.checkpoint().unwrap();
    db.compact().unwrap();
}

/// Inserts rows that [`move_everything`] removes.
fn fill(keyspace: &Keyspace, some: std::ops::Range<u8>) {
    for key in some {
        keyspace.insert([b'f', key], noise(100 + u64::from(key), 2 * CHUNK_BYTES)).unwrap();
    }
}

/// A reader of a transaction's own value can read the value to its end, however the transaction ends. This holds even
/// if the value is then overwritten or removed and free space is reused.
#[test]
fn a_transactions_own_value_stays_while_it_is_read() {
    type End = fn(Transaction, &Keyspace, Savepoint);
    let ends: [(&str, End); 5] = [
        ("aborted", |tx, _, _| tx.abort()),
        ("rolled back", |mut tx, _, before| tx.rollback_to(before).unwrap()),
        ("overwritten", |mut tx, keyspace, _| {
            tx.insert(keyspace, b"a", b"short").unwrap();
            tx.commit().unwrap();
        }),
        ("committed", |tx, _, _| {
            tx.commit().unwrap();
        }),
        ("removed", |tx, keyspace, _| {
            tx.commit().unwrap();
            keyspace.remove(b"a").unwrap();
        }),
    ];
    for (how, end) in ends {
        let (db, keyspace) = stage();
        let value = noise(1, 3 * CHUNK_BYTES + 100);
        fill(&keyspace, 0..6);
        let mut tx = db.begin().unwrap();
        let before = tx.savepoint();
        tx.insert(&keyspace, b"a", &value).unwrap();
        let mut reader = tx.read(&keyspace, b"a").unwrap().unwrap();
        let mut rows = tx.prefix(&keyspace, b"a");
        fill(&keyspace, 6..12);
        end(tx, &keyspace, before);
        for key in 0..24u8 {
            // Free space is reused immediately, and once more after live extents have been moved.
            if key == 12 {
                move_everything(&db, &keyspace);
            }
            keyspace.insert([b'o', key], noise(2, 3 * CHUNK_BYTES)).unwrap();
        }
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap_or_else(|error| panic!("{how}: {error}"));
        assert!(read == value, "{how}: another value's bytes");
        let (_, read) = rows.next().expect(how).unwrap_or_else(|error| panic!("{how}: {error}"));
        assert!(read == value, "{how}: another value's bytes in a scan");
    }
}

/// A source ends where it first reports its end, even if it could yield more bytes later. Readers of the value would
/// not find those later bytes.
#[test]
fn a_source_ends_once() {
    struct ShortReads(Vec<Vec<u8>>);
    impl std::io::Read for ShortReads {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let Some(part) = self.0.first_mut() else { return Ok(0) };
            let count = part.len().min(buffer.len());
            buffer[..count].copy_from_slice(&part[..count]);
            part.drain(..count);
            if count == 0 {
                self.0.remove(0);
            }
            Ok(count)
        }
    }
    let (_db, keyspace) = stage();
    let first = noise(1, 700_000);
    let length = keyspace.insert_from(b"film", ShortReads(vec![first.clone(), noise(2, 700_000)])).unwrap();
    assert_eq!(length, first.len() as u64);
    assert!(keyspace.get(b"film").unwrap().unwrap() == first);
}

/// The space of an uncommitted value is freed as soon as its last reader is dropped, but not before.
#[test]
fn a_value_without_a_commit_leaves_with_its_last_reader() {
    let (db, keyspace) = stage();
    keyspace.insert(b"b", b"1").unwrap();
    db.checkpoint().unwrap();
    let before = db.stats().live_bytes;
    let mut tx = db.begin().unwrap();
    tx.insert(&keyspace, b"a", noise(1, 3 * CHUNK_BYTES)).unwrap();
    let reader = tx.read(&keyspace, b"a").unwrap();
    drop(tx);
    assert!(db.stats().live_bytes > before + 3 * CHUNK_BYTES as u64);
    drop(reader);
    assert_eq!(db.stats().live_bytes, before);
}

/// A request with an outdated page number does not read a large value's chunk into memory. The number may have belonged
/// to a leaf or a different value before. No reader would look for the chunk under this number, and the reclaimer would
/// rewrite it as a page of the wrong kind.
#[test]
fn an_outdated_number_brings_no_chunk_into_memory() {
    let backend = crate::io::in_memory();
    let (db, keyspace) = open(&backend);
    let value = noise(3, 2 * CHUNK_BYTES + 100);
    fill(&keyspace, 0..6);
    keyspace.insert(b"film", &value).unwrap();
    fill(&keyspace, 6..12);
    let film = reference(&db, &keyspace, b"film");
    let last = PageId(film.first_page.0 + film.chunk_count - 1);
    let (pool, pages) = (&db.store().unwrap().engine.pool, &keyspace.tree().pages);
    // Each of these requests must return an error or nothing, and must leave the value in place.
    let wanted = crate::pool::Wanted::node(pages, last);
    let _ = pool.fault(pages, wanted);
    let _ = pool.fault_many(pages, &[wanted, wanted]);
    let other = LargeRef { length: 900, id: ValueId(film.id.0 + 1), first_page: last, chunk_count: 1 };
    let _ = ready(values::read_chunk(
        WaitMode::Blocking,
        keyspace.tree(),
        &other,
        ChunkNumber(0),
        values::ValuePart::ALL,
        Vec::new(),
    ));
    assert!(matches!(pages.table.load(last), PageEntry::OnDisk(_)), "{:?}", pages.table.load(last));
    assert!(keyspace.get(b"film").unwrap().unwrap() == value);
    move_everything(&db, &keyspace);
    db.close().unwrap();
    drop(keyspace);
    let (_db, keyspace) = open(&backend);
    assert!(keyspace.get(b"film").unwrap().unwrap() == value);
}

/// Emptying a segment moves its values byte for byte, whether they are in memory or not. Afterwards, they occupy as
/// many bytes as before, and no removed value has been rewritten.
#[test]
fn values_in_memory_are_moved_as_they_lie_on_disk() {
    const COUNT: u32 = 100;
    const LENGTH: usize = 17_000;
    let live_bytes = |in_memory: bool| {
        let backend = crate::io::in_memory();
        let (db, keyspace) = open(&backend);
        for key in 0..COUNT {
            keyspace.insert(key.to_be_bytes(), noise(key.into(), LENGTH)).unwrap();
        }
        let kept = || (0..COUNT).filter(|key| key % 3 == 1);
        for key in (0..COUNT).filter(|key| key % 3 != 1) {
            keyspace.remove(key.to_be_bytes()).unwrap();
        }
        db.checkpoint().unwrap();
        if in_memory {
            for key in kept() {
                keyspace.get(key.to_be_bytes()).unwrap().unwrap();
            }
        }
        let addresses = || -> Vec<_> {
            let pages = &keyspace.tree().pages;
            kept()
                .map(|key| match pages.table.load(reference(&db, &keyspace, &key.to_be_bytes()).first_page) {
                    PageEntry::OnDisk(address) => address,
                    PageEntry::Immutable(frame) => db.store().unwrap().engine.pool.frames.header(frame).address(),
                    entry => panic!("{entry:?}"),
                })
                .collect()
        };
        let before = addresses();
        db.compact().unwrap();
        let after = addresses();
        assert!(before.iter().zip(&after).any(|(before, after)| before != after), "nothing was moved");
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before.length(), after.length());
        }
        let live_bytes = db.stats().live_bytes;
        db.close().unwrap();
        drop(keyspace);
        let (_db, keyspace) = open(&backend);
        for key in kept() {
            assert!(keyspace.get(key.to_be_bytes()).unwrap().unwrap() == noise(key.into(), LENGTH), "row {key}");
        }
        live_bytes
    };
    let (without, with) = (live_bytes(false), live_bytes(true));
    assert!(with < without + (32 << 10), "{without} bytes live without, {with} with values in memory");
}

/// A well-formed reference to a value that does not exist, or to the wrong value, causes an error when it is read, and
/// has no effect when it is freed.
#[test]
fn a_reference_that_misleads_is_an_error() {
    let (db, keyspace) = stage();
    let value = noise(3, 2 * CHUNK_BYTES + 100);
    keyspace.insert(b"film", &value).unwrap();
    let film = reference(&db, &keyspace, b"film");
    let pages = &keyspace.tree().pages;
    let far = PageId(u32::MAX - 8);
    let many = u32::MAX - 1000;
    let misleading = [
        LargeRef { first_page: far, ..film },
        LargeRef { first_page: PageId::ROOT, ..film },
        LargeRef { length: film.length + 1, ..film },
        LargeRef { chunk_count: 2, ..film },
        LargeRef { length: u64::from(many) << 18, chunk_count: many, ..film },
    ];
    for wrong in misleading {
        assert!(wrong.is_plausible(), "{wrong:?}");
        let read = ready(values::read_whole(WaitMode::Blocking, keyspace.tree(), &wrong, Vec::new()));
        assert!(!matches!(read, Ok(Some(_))), "{wrong:?}");
        let (count, part) = (wrong.chunk_count, values::ValuePart::ALL);
        let read = ready(values::read_chunk(
            WaitMode::Blocking,
            keyspace.tree(),
            &wrong,
            ChunkNumber(count),
            part,
            Vec::new(),
        ));
        assert!(read.is_err(), "{wrong:?}");
    }
    for first_page in [far, PageId::ROOT] {
        db.store().unwrap().engine.free_value(pages.id, &LargeRef { first_page, ..film });
    }
    assert!(keyspace.get(b"film").unwrap().unwrap() == value);
}

/// The evicting thread gives up if there is nothing to evict.
#[test]
fn evicting_in_vain_ends() {
    const PAGE_BYTES: usize = 64 << 10;
    let db = Config::in_memory().memory(8 << 20).open("").unwrap();
    let pool = &db.store().unwrap().engine.pool;
    let taken: Vec<_> = std::iter::from_fn(|| pool.frames.try_take(PAGE_BYTES)).collect();
    assert!(taken.len() > 8);
    let turns = pool.keep_free(PAGE_BYTES);
    assert!(turns > 0 && turns < 8, "{turns} turns");
    drop(taken);
    assert_eq!(pool.keep_free(PAGE_BYTES), 0);
}

/// After a commit without changes, all readers see everything that its transaction saw, even if the log had reported
/// the commits that it saw as durable before they were published.
#[test]
fn what_a_transaction_saw_is_visible_when_it_has_ended() {
    let (db, keyspace) = stage();
    let engine = &db.store().unwrap().engine;
    keyspace.insert("a", "old").unwrap();
    // Append the record of an empty commit. The clock learns that the commit is durable before it learns that the
    // commit is applied.
    let body = crate::seglog::Body::new(Vec::new());
    let logged = ready(engine.reserve_log(WaitMode::Blocking, 0, 0)).unwrap().append(&body).unwrap();
    engine.log().wait_durable(&logged).unwrap();
    engine.clock.mark_applied(logged.timestamp);
    assert!(engine.clock.visible() < logged.timestamp, "nobody has shown it yet");
    let tx = db.begin().unwrap();
    assert_eq!(tx.commit().unwrap(), logged.timestamp);
    assert_eq!(engine.clock.visible(), logged.timestamp);
}

/// Reads detect a stale extent that a lost write left in place, even if it contains the same page from an earlier use
/// of the segment. They also detect an extent of a different database.
#[test]
fn an_extent_of_another_origin_is_damage() {
    let backend = crate::io::in_memory();
    let path = std::path::Path::new("/db/data");
    let read_at = |address: ExtentAddress| {
        let file = backend.open(path, crate::io::OpenOptions::default()).unwrap();
        let mut bytes = vec![0; address.length() as usize];
        file.read_at(&mut bytes, address.start()).unwrap();
        bytes
    };
    // Writes the row's value and returns the address, origin and bytes of the only leaf's extent.
    let write = |value: &[u8]| {
        let (db, keyspace) = open(&backend);
        keyspace.insert(b"row", value).unwrap();
        db.checkpoint().unwrap();
        let (PageEntry::Leaf(frame) | PageEntry::Immutable(frame)) = keyspace.tree().pages.table.load(PageId::ROOT)
        else {
            panic!("the leaf is in memory")
        };
        let store = db.store().unwrap();
        let address = store.engine.pool.frames.header(frame).address();
        let segment_use = store.engine.space.segments.name(address).segment_use;
        let origin = store.engine.space.segments.origin(segment_use);
        db.close().unwrap();
        (address, origin, read_at(address))
    };
    let (_, _, old) = write(b"old");
    let (address, origin, new) = write(b"new");
    let read = |bytes: &[u8], origin: extent::Origin| {
        let mut bytes = bytes.to_vec();
        let stored_bytes = extent::verify(&bytes).unwrap().stored_bytes;
        extent::seal(&mut bytes[..stored_bytes], origin);
        let file = backend.open(path, crate::io::OpenOptions { write: true, ..Default::default() }).unwrap();
        file.write_at(&bytes[..bytes.len().min(address.length() as usize)], address.start(), crate::io::Persist::Later)
            .unwrap();
        let (db, keyspace) = open(&backend);
        let found = keyspace.get(b"row").map(|row| row.unwrap().to_vec());
        db.store().unwrap().engine.space.fail_quietly("the test goes on with the file as it is");
        found
    };
    assert_eq!(read(&new, origin).unwrap(), b"new");
    assert_eq!(read(&old, origin).unwrap(), b"old", "what nobody could notice");
    for back in [1, 2, 127, 128, 256, 128 << 20] {
        let older = SegmentUse(origin.segment_use.0 - back);
        let found = read(&old, extent::Origin { segment_use: older, ..origin });
        assert!(matches!(found, Err(crate::Error::Corrupted { .. })), "{back} uses older: {found:?}");
    }
    let found = read(&new, extent::Origin { database: DatabaseId(origin.database.0 ^ 1), ..origin });
    assert!(
        matches!(&found, Err(crate::Error::Corrupted { reason, .. }) if reason.contains("another database")),
        "{found:?}"
    );
}

/// A lost write may leave behind an extent of the same page from many checkpoints ago. Reads detect it, because the
/// numbers that distinguish extents do not wrap around.
#[test]
fn an_extent_from_long_before_is_damage() {
    for checkpoint_count in [1, 126, 127, 128, 129] {
        let backend = crate::io::in_memory();
        let path = std::path::Path::new("/db/data");
        let (db, keyspace) = open(&backend);
        let write = |value: &[u8]| {
            keyspace.insert(b"row", value).unwrap();
            db.checkpoint().unwrap();
            let (PageEntry::Leaf(frame) | PageEntry::Immutable(frame)) = keyspace.tree().pages.table.load(PageId::ROOT)
            else {
                panic!("the leaf is in memory")
            };
            let address = db.store().unwrap().engine.pool.frames.header(frame).address();
            let file = backend.open(path, crate::io::OpenOptions::default()).unwrap();
            let mut bytes = vec![0; address.length() as usize];
            file.read_at(&mut bytes, address.start()).unwrap();
            (address, bytes)
        };
        let (_, old) = write(b"old");
        for _ in 1..checkpoint_count {
            db.checkpoint().unwrap();
        }
        let (address, new) = write(b"new");
        assert_eq!(old.len(), new.len());
        db.close().unwrap();
        drop(keyspace);
        let file = backend.open(path, crate::io::OpenOptions { write: true, ..Default::default() }).unwrap();
        file.write_at(&old, address.start(), crate::io::Persist::Later).unwrap();
        let (db, keyspace) = open(&backend);
        let found = keyspace.get(b"row").map(|row| row.unwrap().to_vec());
        db.store().unwrap().engine.space.fail_quietly("the test goes on with the file as it is");
        assert!(
            matches!(found, Err(crate::Error::Corrupted { .. })),
            "{checkpoint_count} checkpoints before: {found:?}"
        );
    }
}

/// If no more page numbers or keyspace ids are left, the call fails before it commits anything, and other calls
/// continue to work.
#[test]
fn numbers_run_out_before_a_commit() {
    let backend = crate::io::in_memory();
    let (db, keyspace) = open(&backend);
    let other = db.keyspace("other").unwrap();
    let pages = &keyspace.tree().pages;
    pages.table.limit_pages(8 * 1024);
    let mut count = 0u32;
    let refused = loop {
        match keyspace.insert_with(count.to_be_bytes(), noise(count.into(), 2000), crate::Durability::Relaxed) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 10_000);
    };
    assert!(matches!(refused, crate::Error::Invalid(_)), "{refused:?}");
    assert!(count > 2_000, "{count} rows");
    let large = keyspace.insert(b"large", noise(1, 5 * CHUNK_BYTES));
    assert!(matches!(large, Err(crate::Error::Invalid(_))), "{large:?}");
    keyspace.remove(0u32.to_be_bytes()).unwrap();
    other.insert(b"a", b"b").unwrap();
    db.checkpoint().unwrap();

    db.store().unwrap().keyspaces.exhaust();
    let refused = db.keyspace("one more");
    assert!(matches!(refused, Err(crate::Error::Invalid(_))), "{refused:?}");
    other.insert(b"a", b"c").unwrap();
    db.close().unwrap();
    drop((keyspace, other));
    let (_db, keyspace) = open(&backend);
    assert_eq!(keyspace.count(..).unwrap(), u64::from(count) - 1);
}

/// If rows or new keyspaces make page tables grow between two checkpoints, the next commit takes the memory for them
/// from page frames.
#[test]
fn frames_give_up_what_page_tables_take() {
    const ROWS: u64 = 40_000;
    let backend: Arc<dyn Backend> = Arc::new(FaultyBackend::new(crate::io::in_memory()));
    let config = Config::new().backend(backend).memory(8 << 20).checkpoint_log_bytes(u64::MAX);
    let config = config.log_segment_bytes(64 << 20);
    let pages = |db: &Database| {
        let parts = db.stats().memory;
        let part = parts.iter().find(|part| part.name == Account::Pages.name()).unwrap();
        (part.used_bytes, part.limit_bytes)
    };
    let check = |db: &Database, when: &str| {
        db.existing_keyspace("rows").unwrap().remove(b"none").unwrap();
        let (used, limit) = pages(db);
        assert!(used <= limit, "{when}: {used} bytes of {limit} are in use, {} by page tables", db.stats().table_bytes);
    };
    let db = config.open("/db").unwrap();
    let keyspace = db.keyspace_with("rows", crate::KeyspaceOptions::new().page_bytes(512)).unwrap();
    for first in (0..ROWS).step_by(100) {
        let mut tx = db.begin().unwrap();
        for row in first..first + 100 {
            tx.insert(&keyspace, row.to_be_bytes(), [7; 100]).unwrap();
        }
        tx.commit().unwrap();
        check(&db, &format!("after {first} rows"));
    }
    let (used, limit) = pages(&db);
    let table_bytes = db.stats().table_bytes;
    assert!(table_bytes > limit / 40 && used > limit / 10 * 9, "{table_bytes} and {used} of {limit} show nothing");
    for number in 0..100 {
        db.keyspace(&format!("keyspace {number}")).unwrap();
        check(&db, &format!("with {number} keyspaces more"));
    }
    drop((keyspace, db));
    let db = config.open("/db").unwrap();
    check(&db, "opened again");
}

/// A scan returns the same rows whether a leaf is copied whole or row by row. This holds for keys with and without a
/// common prefix, values of any length, leaves with gaps, and bounds anywhere in a leaf.
#[test]
fn leaves_are_copied_whole_and_in_part() {
    for beginning in ["", "what all keys begin with/"] {
        let (_db, keyspace) = stage();
        let key = |number: usize| format!("{beginning}{number:04}").into_bytes();
        let value = |number: usize| noise(number as u64, if number % 50 == 49 { 5000 } else { number * 37 % 190 });
        let mut model = BTreeMap::new();
        for number in (0..400).chain((0..400).step_by(3).map(|number| number + 1000)) {
            model.insert(key(number % 1000), value(number));
            keyspace.insert(key(number % 1000), value(number)).unwrap();
        }
        for first in (0..400).step_by(7) {
            let (first, end) = (key(first), key(first + 90));
            let wanted: Vec<_> = model.range(first.clone()..end.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
            let range = || keyspace.range(first.clone()..end.clone());
            let of =
                |row: crate::Result<(Value, Value)>| row.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap();
            assert_eq!(range().map(of).collect::<Vec<_>>(), wanted);
            assert!(range().rev().map(of).eq(wanted.iter().rev().cloned()));
            let mut shown = Vec::new();
            let all = range().for_each_row(|key, value| {
                shown.push((key.to_vec(), value.to_vec()));
                ControlFlow::<()>::Continue(())
            });
            assert!(all.unwrap().is_continue() && shown == wanted);
        }
    }
}

/// A scan that passes from leaves in memory to leaves on disk prefetches several leaves at a time. They arrive while
/// the scan pauses.
#[test]
fn a_scan_prefetches_after_leaves_in_memory() {
    const ROWS: u64 = 40_000;
    let backend = crate::io::in_memory();
    let (db, keyspace) = open(&backend);
    for first in (0..ROWS).step_by(1000) {
        let mut tx = db.begin_with(relaxed()).unwrap();
        (first..first + 1000).for_each(|row| tx.insert(&keyspace, row.to_be_bytes(), noise(row, 100)).unwrap());
        tx.commit().unwrap();
    }
    db.close().unwrap();
    drop(keyspace);
    let config =
        Config::new().backend(Arc::clone(&backend)).memory(16 << 20).segment_bytes(256 << 10).warm_start(false);
    let db = config.log_segment_bytes(1 << 20).open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for row in 0..ROWS / 4 {
        keyspace.get(row.to_be_bytes()).unwrap();
    }
    let before = db.stats();
    let mut rows = keyspace.iter();
    // The scan has passed about twenty leaves that were on disk, so it now prefetches many more at a time.
    assert!(rows.nth(ROWS as usize / 4 + 500).unwrap().is_ok());
    let passed = expect_many_pages_a_read(&db, &before, || assert!(rows.next().unwrap().is_ok()));
    assert_eq!(rows.count() as u64, ROWS - ROWS / 4 - 501 - passed);
}

/// Waits until 100 pages were read since, and asserts that these were fewer than 50 reads. Goes to the next row now and
/// then, because a scan does not prefetch while all frames are in use. Returns the number of these rows.
fn expect_many_pages_a_read(db: &Database, before: &Stats, mut go_to_next_row: impl FnMut()) -> u64 {
    let end = Instant::now() + Duration::from_secs(20);
    let (mut looks, mut passed) = (0, 0);
    let (pages, reads) = loop {
        let stats = db.stats();
        let (pages, reads) = (stats.page_misses - before.page_misses, stats.device_reads - before.device_reads);
        if pages >= 100 {
            break (pages, reads);
        }
        assert!(Instant::now() < end, "{pages} pages were read ahead");
        std::thread::yield_now();
        looks += 1;
        if looks % 1000 == 0 {
            go_to_next_row();
            passed += 1;
        }
    };
    assert!(reads < pages / 2, "{pages} pages, {reads} reads");
    passed
}

/// A scan prefetches the leaves of a run above the tree, in both directions.
#[test]
fn a_scan_prefetches_leaves_of_runs() {
    const ROWS: u64 = 40_000;
    for is_forward in [true, false] {
        let (db, keyspace) = open(&crate::io::in_memory());
        keyspace.insert([0], "makes the load a run").unwrap();
        // The rows stay in the run while the snapshot is open.
        let _snapshot = db.snapshot();
        let mut load = db.bulk_load("k").unwrap();
        (0..ROWS).for_each(|row| load.insert(row.to_be_bytes(), noise(row, 100)).unwrap());
        load.finish().unwrap();
        let before = db.stats();
        let mut rows = keyspace.iter();
        // The scan has passed about forty leaves, so it now prefetches a hundred at a time.
        let mut step = |count| if is_forward { rows.nth(count) } else { rows.nth_back(count) };
        assert!(step(1000).unwrap().is_ok());
        let passed = expect_many_pages_a_read(&db, &before, || assert!(step(0).unwrap().is_ok()));
        assert_eq!(rows.count() as u64, ROWS - 1000 - passed);
    }
}

fn relaxed() -> crate::TxOptions {
    crate::TxOptions { durability: crate::Durability::Relaxed, ..Default::default() }
}

fn epoch_change_count(db: &Database) -> u64 {
    db.store().unwrap().engine.space.epoch_change_count()
}

/// If page-table changes fill their memory, blocking and asynchronous commits wait for a checkpoint and then continue.
/// A waiting commit holds no resource that a checkpoint needs.
#[test]
fn commits_wait_where_changes_fill_their_memory() {
    const COMMITS: u64 = 600;
    let db = Config::in_memory().memory(8 << 20).checkpoint_log_bytes(u64::MAX).open("").unwrap();
    let keyspace = db.keyspace_with("rows", crate::KeyspaceOptions::new().page_bytes(512)).unwrap();
    let store = db.store().unwrap();
    let changes_max = store.engine.budget.epoch_changes_max();
    let commit = |number: u64| -> u64 {
        // The keys are far apart, so that each is in a separate leaf.
        let rows = (0..20u64).map(|row| (row * 1_000_003 + number * 7919).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut tx = db.begin_with(relaxed()).unwrap();
        rows.for_each(|row| tx.insert(&keyspace, row.to_be_bytes(), [7; 60]).unwrap());
        match number % 2 {
            0 => tx.commit().unwrap(),
            _ => smol::block_on(tx.commit_async()).unwrap(),
        };
        let part = db.stats().memory.into_iter().find(|part| part.name == Account::TableChanges.name()).unwrap();
        assert!(part.used_bytes <= part.limit_bytes, "{} of {} bytes", part.used_bytes, part.limit_bytes);
        epoch_change_count(&db)
    };
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // No checkpoint can begin while this lock is held.
        let page_tables = store.page_tables.lock();
        scope.spawn(move || {
            let most = (0..COMMITS).map(commit).max().unwrap();
            sender.send(most).unwrap();
        });
        while epoch_change_count(&db) <= changes_max / 8 * 7 {
            std::thread::yield_now();
        }
        assert!(ended.recv_timeout(Duration::from_millis(200)).is_err(), "no commit waited");
        let count = epoch_change_count(&db);
        assert!(count <= changes_max, "{count} changes, there is memory for {changes_max}");
        drop(page_tables);
        let most = ended.recv().unwrap();
        assert!(most <= changes_max, "{most} changes, there is memory for {changes_max}");
    });
    assert!(db.stats().checkpoints > 2);
}

/// Between two checkpoints, cleaning moves only as many pages as the memory for page-table changes allows. In the end,
/// it has moved all pages.
#[test]
fn cleaning_stays_within_the_memory_for_changes() {
    const ROWS: u64 = 60_000;
    let db = Config::in_memory().memory(8 << 20).open("").unwrap();
    let keyspace = db.keyspace_with("rows", crate::KeyspaceOptions::new().page_bytes(512)).unwrap();
    let changes_max = db.store().unwrap().engine.budget.epoch_changes_max();
    for first in (0..ROWS).step_by(100) {
        let mut tx = db.begin_with(relaxed()).unwrap();
        (first..first + 100).for_each(|row| tx.insert(&keyspace, row.to_be_bytes(), noise(row, 150)).unwrap());
        tx.commit().unwrap();
    }
    let segments = &db.store().unwrap().engine.space.segments;
    let filled_bytes = segments.usage().segment_count * segments.segment_bytes();
    let most = std::thread::scope(|scope| {
        let emptying = scope.spawn(|| {
            for row in (0..ROWS).filter(|row| row / 16 % 3 != 0) {
                keyspace.remove(row.to_be_bytes()).unwrap();
            }
            db.compact().unwrap()
        });
        let mut most = 0;
        while !emptying.is_finished() {
            most = most.max(epoch_change_count(&db));
            std::thread::yield_now();
        }
        let report = emptying.join().unwrap();
        assert!(report.bytes_after < filled_bytes / 4 * 3, "of {filled_bytes} bytes a third is left: {report:?}");
        most
    });
    // A page counts twice while it is being written.
    assert!(most > changes_max / 2 && most <= changes_max / 4 * 5, "{most} changes, memory for {changes_max}");
    assert!(db.check().unwrap().corruption.is_empty());
}

/// When removed large values lose their last reader, each epoch frees only as many of them as the memory for page-table
/// changes allows. In the end, all of them are freed.
#[test]
fn values_are_freed_within_the_memory_for_changes() {
    const VALUES: u64 = 3_000;
    let db = Config::in_memory().memory(8 << 20).open("").unwrap();
    let keyspace = db.keyspace_with("rows", crate::KeyspaceOptions::new().page_bytes(512)).unwrap();
    let (engine, space) = (&db.store().unwrap().engine, &db.store().unwrap().engine.space);
    let changes_max = engine.budget.epoch_changes_max();
    for first in (0..VALUES).step_by(100) {
        let mut tx = db.begin_with(relaxed()).unwrap();
        (first..first + 100).for_each(|row| tx.insert(&keyspace, row.to_be_bytes(), noise(row, 150)).unwrap());
        tx.commit().unwrap();
    }
    let snapshot = db.snapshot();
    for first in (0..VALUES).step_by(100) {
        let mut tx = db.begin_with(relaxed()).unwrap();
        (first..first + 100).for_each(|row| tx.remove(&keyspace, row.to_be_bytes()).unwrap());
        tx.commit().unwrap();
    }
    assert_eq!(snapshot.iter(&keyspace).count() as u64, VALUES);
    drop(snapshot);
    db.sync().unwrap();
    // No checkpoint can begin while this lock is held.
    let page_tables = db.store().unwrap().page_tables.lock();
    // If one began a moment ago, its epoch has room for all pages, so fill it.
    for row in (0..).take_while(|_| epoch_change_count(&db) < changes_max / 4 * 3) {
        keyspace.insert((VALUES + row).to_be_bytes(), [0; 100]).unwrap();
    }
    engine.collect_all_garbage();
    let count = epoch_change_count(&db);
    assert!(count <= changes_max, "{count} changes, memory for {changes_max}");
    let unfreed_pages = space.unfreed_pages();
    assert!(unfreed_pages > VALUES / 8, "{unfreed_pages} pages wait to be freed");
    assert_eq!(engine.versions.orphans().len() as u64, unfreed_pages);
    // If more pages are waiting to be freed than an epoch has memory for, commits wait, too.
    engine.versions.set_unfreed_pages(changes_max + 1);
    let begun = db.stats().checkpoints;
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(keyspace.insert("more", "rows")).unwrap());
        let waits = ended.recv_timeout(Duration::from_millis(100)).is_err();
        assert!(waits, "a commit did not wait for the values to be freed");
        drop(page_tables);
        ended.recv().unwrap().unwrap();
    });
    // Each checkpoint requests the next one.
    let end = Instant::now() + Duration::from_secs(20);
    while space.unfreed_pages() > 0 {
        assert!(Instant::now() < end, "{} pages are not freed", space.unfreed_pages());
        std::thread::yield_now();
    }
    // The last one is counted when it ends, and it frees the pages before that.
    while db.stats().checkpoints == begun {
        assert!(Instant::now() < end, "no checkpoint ends");
        std::thread::yield_now();
    }
    let made = db.stats().checkpoints - begun;
    assert!((1..=4).contains(&made), "{made} checkpoints freed {unfreed_pages} pages");
    assert_eq!(engine.versions.orphans().len(), 0);
    assert!(db.check().unwrap().corruption.is_empty());
}

/// An idle database returns nearly all the space of removed rows to the file system, and keeps every other row. Packing
/// stops when there is little left to gain.
#[test]
fn an_idle_database_gives_its_space_back() {
    const ROWS: u64 = 60_000;
    let db = Config::in_memory().memory(16 << 20).segment_bytes(256 << 10).open("").unwrap();
    let keyspace = db.keyspace_with("rows", crate::KeyspaceOptions::new().page_bytes(512)).unwrap();
    for first in (0..ROWS).step_by(1000) {
        let mut tx = db.begin_with(relaxed()).unwrap();
        (first..first + 1000).for_each(|row| tx.insert(&keyspace, row.to_be_bytes(), noise(row, 150)).unwrap());
        tx.commit().unwrap();
    }
    let is_kept = |row: &u64| row / 500 % 4 == 3;
    for row in (0..ROWS).filter(|row| !is_kept(row)) {
        keyspace.remove(row.to_be_bytes()).unwrap();
    }
    db.checkpoint().unwrap();
    let store = db.store().unwrap();
    let usage = || store.engine.space.segments.usage();
    let before = usage();
    assert!(before.free_count > before.segment_count / 3, "{before:?}");
    // Packing yields to requests. First wait until the requests of the commits above have been served.
    while store.maintenance.state.lock().is_wanted() {
        std::thread::yield_now();
    }
    let rounds = (0..20).take_while(|_| store.reclaim(&[Goal::ShortenIdleFile]).unwrap().is_shorter).count();
    let after = usage();
    assert!(rounds > 0 && rounds < 20, "{rounds} rounds: {before:?}, then {after:?}");
    // Some segments stay free for the next checkpoints. Do not compare with the number of free segments before packing:
    // it depends on the checkpoints made so far, because cleaning may have returned segments after one of them.
    let kept_count = store.engine.space.state().kept_segments();
    assert!(after.free_count <= kept_count, "{kept_count} are kept: {before:?}, then {after:?}");
    assert!(after.segment_count < before.segment_count, "{before:?}, then {after:?}");
    assert_eq!(store.engine.space.file().len().unwrap(), after.segment_count * (256 << 10));
    assert!(
        keyspace.iter().map(|row| row.unwrap()).eq((0..ROWS)
            .filter(is_kept)
            .map(|row| { (crate::Value::from(row.to_be_bytes().to_vec()), crate::Value::from(noise(row, 150))) }))
    );
    assert!(db.check().unwrap().corruption.is_empty());
}

/// A transaction that changes more keyspaces than fit into 16 bits writes each row to the right keyspace, even after a
/// roll-back.
#[test]
fn any_number_of_keyspaces() {
    const COUNT: u32 = (1 << 16) + 40;
    let db = Config::in_memory().memory(8 << 20).open("").unwrap();
    let pool = Arc::clone(&db.keyspace("k").unwrap().tree().pool);
    struct Nobody;
    impl RowObserver for Nobody {
        fn page_created(&self, _: PageId) {}
        fn begin_change(&self, _: &[PageId]) {}
        fn end_change(&self, _: &[PageId]) {}
        fn rows_moved(&self, _: &PageSpace, _: PageId, _: PageId, _: Option<&[u8]>) {}
    }
    let tree = |number: u32| {
        let pages = Arc::new(PageSpace::new(KeyspaceId(number), 512, "k", &Budget::of_pages(1 << 30)));
        CountedTree::new(Tree::new(pages, Arc::clone(&pool), Arc::new(Nobody)), Arc::default())
    };
    let mut writes = WriteSet::default();
    for number in 1..=COUNT {
        writes.put(&tree(number), b"key", &number.to_le_bytes());
    }
    let holds = |writes: &WriteSet, number: u32, second: bool| {
        let value = |key: &[u8]| match writes.get(KeyspaceId(number), key) {
            Some(Change::Put(value)) => Some(u32::from_le_bytes(value.try_into().unwrap())),
            _ => None,
        };
        value(b"key") == Some(number) && value(b"other") == second.then_some(!number)
    };
    let position = writes.position();
    for number in (1..=COUNT).rev() {
        writes.put(&tree(number), b"other", &(!number).to_le_bytes());
    }
    assert!((1..=COUNT).all(|number| holds(&writes, number, true)));
    writes.roll_back(position);
    assert!((1..=COUNT).all(|number| holds(&writes, number, false)));
    let rows = writes.rows().map(|(tree, key, _)| (tree.pages.id.0, key.to_vec()));
    assert!(rows.eq((1..=COUNT).map(|number| (number, b"key".to_vec()))));
}

/// A second close waits until the first has ended, even if the first is still making the last checkpoint.
#[test]
fn a_second_close_waits_for_the_first() {
    let (db, keyspace) = stage();
    keyspace.insert("a", "1").unwrap();
    let store = Arc::clone(db.store().unwrap());
    std::thread::scope(|scope| {
        // No checkpoint can be made while this lock is held.
        let page_tables = store.page_tables.lock();
        let closes = [(); 2].map(|()| scope.spawn(|| db.clone().close()));
        std::thread::sleep(std::time::Duration::from_millis(50));
        let ended_count = closes.iter().filter(|close| close.is_finished()).count();
        drop(page_tables);
        assert_eq!(ended_count, 0, "closes that have not waited");
        closes.into_iter().for_each(|close| close.join().unwrap().unwrap());
    });
}

/// While another thread creates or drops a keyspace, a lookup waits until the change is durable. Only then does it find
/// the keyspace, or report it missing.
#[test]
fn a_keyspace_is_found_when_its_creation_is_durable() {
    let disk = FaultyBackend::new(crate::io::in_memory());
    let (db, _) = open(&(Arc::new(disk.clone()) as Arc<dyn Backend>));
    let store = db.store().unwrap();
    let log = store.engine.log();
    let is_records = |path: &Path, offset| path.extension().is_some_and(|extension| extension == "seg") && offset > 0;
    for attempt in 0..40 {
        let name = format!("new {}", attempt / 2);
        let drops = attempt % 2 == 1;
        disk.hold_nth_at(Operation::Sync, 1, is_records);
        let last = log.last();
        std::thread::scope(|scope| {
            let definer = scope.spawn(|| if drops { db.drop_keyspace(&name) } else { db.keyspace(&name).map(drop) });
            while store.keyspace(&name).is_none() != drops {
                std::thread::yield_now();
            }
            assert!(disk.wait_for_held(std::time::Duration::from_secs(60)), "no record is written");
            assert_eq!(log.durable(), last);
            let is_listed = db.keyspaces().iter().any(|info| info.name == name);
            assert!(drops || !is_listed, "listed before its creation is durable");
            let finders = [false, true].map(|creates| {
                let (db, name) = (&db, &name);
                scope.spawn(move || {
                    let found = if creates && !drops { db.keyspace(name) } else { db.existing_keyspace(name) };
                    (found.is_ok(), log.durable())
                })
            });
            std::thread::sleep(std::time::Duration::from_millis(10));
            disk.release();
            for finder in finders {
                let (is_found, durable) = finder.join().unwrap();
                assert!(
                    is_found != drops && durable > last,
                    "found {is_found} at {durable}, before what followed {last}"
                );
            }
            definer.join().unwrap().unwrap();
        });
    }
}

/// Before a commit changes a page that a running checkpoint has not written yet, it appends an image of the page. If
/// the buffers for the images are full, commits wait, both on threads and in tasks.
#[test]
fn images_for_a_checkpoint_stay_within_their_buffers() {
    for waits_as_task in [false, true] {
        let (db, keyspace) = stage();
        let put = |row: u64, seed: u64| {
            let (key, value) = (row.to_be_bytes(), noise(seed, 500));
            if waits_as_task {
                smol::block_on(keyspace.insert_async(key, value)).unwrap();
            } else {
                keyspace.insert(key, value).unwrap();
            }
        };
        const ROWS: u64 = 6000;
        (0..ROWS).for_each(|row| put(row, row));
        let engine = &db.store().unwrap().engine;
        let (space, dirty_bytes) = (&engine.space, db.stats().dirty_bytes as usize);
        let most_bytes = WRITE_BUFFER_COUNT * engine.budget.write_buffer_bytes();
        assert!(dirty_bytes > most_bytes, "{dirty_bytes} bytes of pages");
        // Begin a checkpoint that no thread will continue.
        space.begin_checkpoint(|_| ());
        let mut most = 0;
        for row in 0..ROWS {
            put(row, ROWS + row);
            most = most.max(space.write_count());
        }
        space.fail_quietly("its checkpoint has no end");
        assert!(most > 0 && most < WRITE_BUFFER_COUNT, "{most} buffers on their way to the disk");
    }
}

/// If reads fail because a later extent could not be written, they release their buffers. A leaked buffer would count
/// as in use forever, and the next reader would wait for it.
#[test]
fn reads_in_front_of_a_failed_write_lose_no_buffer() {
    let disk = FaultyBackend::new(crate::io::in_memory());
    let backend: Arc<dyn Backend> = Arc::new(disk.clone());
    let (db, keyspace) = open(&backend);
    let engine = &db.store().unwrap().engine;
    let append = |seed: u64| {
        let epoch_guard = engine.space.epoch_latch.shared();
        let page_key = PageKey { keyspace: keyspace.tree().pages.id, page: PageId(1 << 20) };
        engine.space.append(epoch_guard.epoch(), page_key, extent::Kind::Value, &noise(seed, 3000), None).unwrap()
    };
    let there = append(1);
    engine.space.ensure_written(there, |_| ()).unwrap();
    db.checkpoint().unwrap();
    // Append to a segment of a different epoch, so the two extents are not read together.
    let missing = append(2);
    assert_eq!(engine.pool.read_buffer_bytes(), 0, "no page was read yet");
    disk.fail_from(Operation::Write, 1, 5);
    engine.pool.read_past(&[there, missing], |_, _| ()).unwrap_err();
    assert_eq!(engine.pool.read_buffer_bytes(), 0, "a buffer is counted that nobody has");
}

/// If all frames are in use, a thread waits for one, however long the other threads hold them. Here, the other threads
/// read pages.
#[test]
fn a_frame_is_waited_for() {
    let (db, keyspace) = stage();
    let pool = &keyspace.tree().pool;
    let page_bytes = 64 << 10;
    std::thread::scope(|scope| {
        let mut held = Vec::new();
        while let Ok(frame) = pool.frames.try_take(page_bytes).ok_or(()).or_else(|()| {
            pool.evict_for(page_bytes).unwrap();
            pool.frames.try_take(page_bytes).ok_or(())
        }) {
            held.push(frame);
        }
        let waiting = scope.spawn(|| pool.take_frame(page_bytes).map(drop));
        let ends = std::time::Instant::now() + std::time::Duration::from_millis(500);
        while std::time::Instant::now() < ends {
            assert!(!waiting.is_finished(), "{:?} with {} frames held", waiting.join(), held.len());
            std::thread::yield_now();
        }
        held.clear();
        waiting.join().unwrap().unwrap();
    });
    drop(db);
}

/// A read of many rows holds no other latches while it waits for a leaf that a writer has latched. Here the writer
/// needs those other leaves too, so a read that held their latches would deadlock with it.
#[test]
fn reads_of_many_rows_wait_without_latches() {
    let db = Config::in_memory().memory(16 << 20).open("").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let keys: Vec<_> = (0..1000u64).map(u64::to_be_bytes).collect();
    keys.iter().for_each(|key| keyspace.insert(key, key).unwrap());
    let tree = keyspace.tree();
    let write = |key: &[u8]| {
        let _reclaim_guard = tree.pool.reclaim_guard();
        tree.write_leaf(key, &|_| false).expect("a leaf in memory")
    };
    std::thread::scope(|scope| {
        let held = write(&keys[500]);
        let others: Vec<_> = keys.iter().filter(|key| !Leaf::new(&held).covers(*key)).collect();
        assert!(!others.is_empty(), "the rows lie in one leaf");
        let reading = scope.spawn(|| keyspace.get_many(&keys).unwrap());
        let ends = Instant::now() + Duration::from_millis(100);
        for key in others.iter().cycle() {
            drop(write(*key));
            if Instant::now() > ends {
                break;
            }
        }
        assert!(!reading.is_finished(), "a leaf was read that a writer has");
        drop(held);
        let values = reading.join().unwrap();
        assert!(values.iter().zip(&keys).all(|(value, key)| value.as_deref() == Some(&key[..])));
    });
}

/// The fast commit path and the path that can wait have the same effects: the same rows at every snapshot, the same
/// bytes in every leaf, the same counts and log, and the same rows after reopening.
#[test]
fn both_ways_of_committing_leave_the_same() {
    for seed in 0..8 {
        let backends = [crate::io::in_memory(), crate::io::in_memory()];
        let opened = backends.each_ref().map(open);
        let mut random = drumlin_testing::Random(seed);
        let mut snapshots = Vec::new();
        for step in 0..1500 {
            if random.below(40) == 0 {
                snapshots.push(opened.each_ref().map(|(db, _)| db.snapshot()));
            }
            if random.below(60) == 0 && !snapshots.is_empty() {
                snapshots.swap_remove(random.below(snapshots.len() as u64) as usize);
            }
            if step % 700 == 0 {
                // Once the rows have been counted, commits update row counts.
                assert_eq!(opened[0].1.len().unwrap(), opened[1].1.len().unwrap());
            }
            let row_count = if random.below(3) == 0 { 2 + random.below(6) } else { 1 };
            let durability = if random.below(2) == 0 { Durability::Full } else { Durability::Relaxed };
            let mut rows = BTreeMap::new();
            for _ in 0..row_count {
                let length = [0, 8, 100, 900, 1600][random.below(5) as usize];
                let value = (random.below(4) > 0).then(|| random.bytes(length));
                rows.insert(random.below(400).to_be_bytes(), value);
            }
            for (is_off, (db, keyspace)) in [false, true].into_iter().zip(&opened) {
                IS_OFF.set(is_off);
                let keyspace = &keyspace.with_durability(durability);
                match rows.first_key_value().expect("at least one row") {
                    (key, Some(value)) if rows.len() == 1 => keyspace.insert(key, value).unwrap(),
                    (key, None) if rows.len() == 1 => keyspace.remove(key).unwrap(),
                    _ => {
                        let mut batch = db.batch().unwrap();
                        for (key, value) in &rows {
                            match value {
                                Some(value) => batch.insert(keyspace, key, value).unwrap(),
                                None => batch.remove(keyspace, key).unwrap(),
                            }
                        }
                        batch.commit_with(durability).unwrap();
                    }
                }
                IS_OFF.set(false);
            }
        }
        for [one, other] in &snapshots {
            let [one, other] = [(one, 0), (other, 1)]
                .map(|(snapshot, at)| snapshot.iter(&opened[at].1).collect::<Result<Vec<_>, _>>().unwrap());
            assert!(one == other, "seed {seed}: a snapshot differs");
        }
        // The log is only verified as far as it is durable, which the last relaxed commits need not be yet.
        let records = opened.each_ref().map(|(db, _)| {
            db.sync().unwrap();
            db.store().unwrap().engine.log().verify().unwrap().record_count
        });
        assert_eq!(records[0], records[1], "seed {seed}: the logs differ");
        let leaves = |(db, keyspace): &(Database, Keyspace)| leaves_of(db, keyspace);
        assert!(leaves(&opened[0]) == leaves(&opened[1]), "seed {seed}: leaves differ");
        drop(snapshots);
        drop(opened);
        let reopened = backends.each_ref().map(open);
        let [one, other] = reopened.each_ref().map(|(db, keyspace)| {
            assert!(db.check().unwrap().corruption.is_empty());
            keyspace.iter().collect::<Result<Vec<_>, _>>().unwrap()
        });
        assert!(one == other, "seed {seed}: the rows differ after opening");
    }
}

/// Returns the bytes of all leaves in key order.
fn leaves_of(db: &Database, keyspace: &Keyspace) -> Vec<Vec<u8>> {
    let _reclaim_guard = db.store().unwrap().engine.pool.reclaim_guard();
    let (mut leaves, mut lower) = (Vec::new(), Some(Vec::new()));
    while let Some(key) = lower {
        let read = keyspace.tree().pool.waiting(|_| {
            let page = keyspace.tree().read_leaf(Target::At(&key))?;
            Ok((page.to_vec(), Leaf::new(&page).upper_fence().map(<[u8]>::to_vec)))
        });
        let (page, upper) = read.unwrap();
        leaves.push(page);
        lower = upper;
    }
    leaves
}

/// An estimate brings no leaf into memory, and waits for no leaf that a commit has latched.
#[test]
fn an_estimate_waits_for_no_leaf() {
    let backend = crate::io::in_memory();
    let config = || Config::new().backend(Arc::clone(&backend)).memory(16 << 20).page_bytes(1024).warm_start(false);
    let db = config().open("/db").unwrap();
    let mut load = db.bulk_load("k").unwrap();
    (0..20_000u32).for_each(|row| load.insert(row.to_be_bytes(), [7; 20]).unwrap());
    load.finish().unwrap();
    db.close().unwrap();
    let db = config().open("/db").unwrap();
    let k = db.existing_keyspace("k").unwrap();
    let table = &k.tree().pages.table;
    let leaves = || table.iter().filter(|(_, entry)| matches!(entry, PageEntry::Leaf(_))).count();
    let estimate = || k.estimate(3_000u32.to_be_bytes()..13_000u32.to_be_bytes()).unwrap();
    assert!((5_000..20_000).contains(&estimate()));
    assert_eq!(leaves(), 0, "leaves were read");
    (3_000..13_000u32).for_each(|row| drop(k.get(row.to_be_bytes()).unwrap()));
    assert!(leaves() > 100);
    // If the estimate waited for one of these latches, it would wait forever.
    let keys: Vec<_> = (0..=40u32).map(|leaf| (3_000 + 250 * leaf).to_be_bytes()).collect();
    let latch = |key: &[u8; 4]| k.tree().pool.waiting(|_| k.tree().write_leaf(key, &|_| false)).unwrap();
    let _latched: Vec<_> = keys.iter().map(latch).collect();
    assert!((5_000..20_000).contains(&estimate()));
}

/// Returns the page table's entries that are in use.
fn used_pages(pages: &PageSpace) -> usize {
    pages.table.iter().count()
}

/// Dropping a keyspace waits neither for its pages to be freed nor for a running checkpoint, and commits continue
/// during both. The checkpoint writes the pages that it still needs, so a kill at any time loses nothing.
#[test]
fn a_drop_waits_for_nobody() {
    const ROWS: u32 = 2000;
    let backend = Arc::new(FaultyBackend::new(crate::io::in_memory()));
    let config = || Config::new().backend(backend.clone()).memory(16 << 20).page_bytes(1024).warm_start(false);
    let db = config().open("/db").unwrap();
    let (k, other) = (db.keyspace("k").unwrap(), db.keyspace("other").unwrap());
    (0..ROWS).for_each(|row| k.insert_with(row.to_be_bytes(), [7; 100], Durability::Relaxed).unwrap());
    db.checkpoint().unwrap();
    (0..ROWS).for_each(|row| k.insert_with(row.to_be_bytes(), [8; 100], Durability::Relaxed).unwrap());
    let pages = Arc::clone(&k.tree().pages);
    let store = db.store().unwrap();
    let is_data = |path: &Path, _| path.file_name().is_some_and(|name| name == "data");
    backend.hold_nth_at(Operation::Write, 1, is_data);
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| db.checkpoint().unwrap());
        assert!(backend.wait_for_held(Duration::from_secs(60)), "the checkpoint writes nothing");
        let freeing = store.keyspaces.hold_freeing();
        db.drop_keyspace("k").unwrap();
        assert!(used_pages(&pages) > 100, "the call has freed the pages itself");
        assert!(matches!(k.get(5u32.to_be_bytes()), Err(crate::Error::KeyspaceDropped { .. })));
        assert!(matches!(k.insert("a", "b"), Err(crate::Error::KeyspaceDropped { .. })));
        other.insert("beside", "1").unwrap();
        db.keyspace("k").unwrap().insert("new", "1").unwrap();
        drop(freeing);
        backend.release();
        checkpoint.join().unwrap();
    });
    // This checkpoint includes the drop, and waits for the pages to be freed.
    db.checkpoint().unwrap();
    assert_eq!(used_pages(&pages), 0);
    assert!(store.engine.space.page_space(pages.id).is_none());
    assert!(db.check().unwrap().corruption.is_empty());
    assert!(db.stats().live_bytes < 100 << 10, "{} bytes live on", db.stats().live_bytes);
    db.close().unwrap();
    let db = config().open("/db").unwrap();
    assert_eq!(db.keyspace("k").unwrap().len().unwrap(), 1);
    assert_eq!(db.keyspace("other").unwrap().get("beside").unwrap().unwrap(), "1");
}

/// A commit that had located and pinned its leaves before their keyspace was dropped fails, although the leaves are
/// still in their frames.
#[test]
fn a_commit_does_not_reach_a_dropped_leaf() {
    let (db, k) = stage();
    (0..2000u32).for_each(|row| k.insert_with(row.to_be_bytes(), [7; 100], Durability::Relaxed).unwrap());
    let store = db.store().unwrap();
    let freeing = store.keyspaces.hold_freeing();
    let mut tx = db.begin().unwrap();
    (0..2000u32).step_by(50).for_each(|row| tx.insert(&k, row.to_be_bytes(), [8; 100]).unwrap());
    let mut scan = k.iter();
    scan.next().unwrap().unwrap();
    db.drop_keyspace("k").unwrap();
    assert!(used_pages(&k.tree().pages) > 20);
    let committed = tx.commit();
    assert!(matches!(committed, Err(crate::Error::KeyspaceDropped { .. })), "{committed:?}");
    assert!(matches!(scan.find_map(Result::err), Some(crate::Error::KeyspaceDropped { .. })));
    drop(freeing);
    db.checkpoint().unwrap();
    assert_eq!(used_pages(&k.tree().pages), 0);
}

/// A database with feature bits that this version does not know is opened as far as their class allows. Bits that may
/// be ignored are cleared by the first superblock that is written.
#[test]
fn unknown_features_restrict_openings() {
    use crate::format::features::Features;
    use crate::format::superblock::{SLOT_OFFSETS, Superblock};
    use crate::io::{AlignedBuffer, OpenOptions, Persist};

    let backend = crate::io::in_memory();
    let config = || Config::new().backend(Arc::clone(&backend)).memory(16 << 20);
    let db = config().open("/db").unwrap();
    db.keyspace("k").unwrap().insert("a", "b").unwrap();
    db.close().unwrap();
    let file = backend.open(Path::new("/db/data"), OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
    let superblock = |offset| {
        let mut block = AlignedBuffer::zeroed(crate::format::BLOCK_BYTES);
        file.read_at(&mut block, offset).unwrap();
        Superblock::decode(&block).unwrap()
    };
    let set = |features: Features| {
        for offset in SLOT_OFFSETS {
            let changed = Superblock { features, ..superblock(offset) };
            let mut block = AlignedBuffer::zeroed(crate::format::BLOCK_BYTES);
            block.copy_from_slice(&changed.encode());
            file.write_at(&block, offset, Persist::Later).unwrap();
        }
    };
    let is_refused = |opened: crate::Result<Database>, readable: bool| {
        let is_expected = |error: &crate::Error| matches!(error, crate::Error::UnknownFeatures { bits: 32, is_readable, .. } if *is_readable == readable);
        assert!(opened.as_ref().is_err_and(is_expected), "{opened:?}");
    };
    set(Features { to_read: 32, ..Features::default() });
    is_refused(config().open("/db"), false);
    is_refused(config().read_only(true).open("/db"), false);
    assert!(matches!(config().examine("/db"), Err(crate::Error::UnknownFeatures { .. })));
    set(Features { to_write: 32, ..Features::default() });
    is_refused(config().open("/db"), true);
    let db = config().read_only(true).open("/db").unwrap();
    assert_eq!(db.keyspace("k").unwrap().get("a").unwrap().unwrap(), "b");
    db.close().unwrap();
    let ignorable = Features { ignorable: 32, ..Features::default() };
    set(ignorable);
    let db = config().open("/db").unwrap();
    assert_eq!(superblock(SLOT_OFFSETS[0]).features, ignorable, "a bit was cleared without a write");
    db.keyspace("k").unwrap().insert("a", "c").unwrap();
    db.close().unwrap();
    assert!(SLOT_OFFSETS.iter().all(|offset| superblock(*offset).features == Features::default()));
}

/// The old versions of a dropped keyspace outlive its pages. A reader that has passed the root before the drop, and
/// then waits for a leaf, sees the row of its snapshot or an error, and not a newer row.
#[test]
fn versions_of_a_dropped_keyspace_outlive_its_pages() {
    const ROWS: u32 = 2000;
    let (db, _) = stage();
    let store = db.store().unwrap();
    let (first, last) = (0u32.to_be_bytes(), (ROWS - 1).to_be_bytes());
    let mut seen_count = 0;
    for _ in 0..1000 {
        let k = db.keyspace("versions").unwrap();
        (0..ROWS).for_each(|row| k.insert_with(row.to_be_bytes(), [7; 100], Durability::Relaxed).unwrap());
        let snapshot = db.snapshot();
        k.insert(last, "newer").unwrap();
        let latch = |key: &[u8; 4]| k.tree().pool.waiting(|_| k.tree().write_leaf(key, &|_| false)).unwrap();
        // The pages are freed in the order of their numbers. The thread that frees them waits for the first leaf.
        let (first_leaf, last_leaf) = (latch(&first), latch(&last));
        assert!(first_leaf.page() < last_leaf.page());
        let has_begun = std::sync::Barrier::new(2);
        let read = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                has_begun.wait();
                snapshot.get(&k, last)
            });
            has_begun.wait();
            // The reader may come too late, and find the keyspace dropped. Then the next round tries again.
            (0..2000).for_each(|_| std::thread::yield_now());
            db.drop_keyspace("versions").unwrap();
            while !store.keyspaces.is_freeing() {
                std::thread::yield_now();
            }
            (0..2000).for_each(|_| std::thread::yield_now());
            drop(last_leaf);
            let read = reader.join().unwrap();
            drop(first_leaf);
            read
        });
        match &read {
            Ok(value) => assert_eq!(value.as_deref(), Some(&[7; 100][..])),
            Err(error) => assert!(matches!(error, crate::Error::KeyspaceDropped { .. }), "{error}"),
        }
        seen_count += u32::from(read.is_ok());
        if seen_count >= 3 {
            return;
        }
    }
    panic!("{seen_count} readers had passed the root");
}

/// A check reports a leaf of the tree that has a row as only runs have: one that removes the older row with its key.
#[test]
fn a_check_finds_removals_in_leaves_of_the_tree() {
    let (db, keyspace) = stage();
    keyspace.insert("a", "1").unwrap();
    assert!(db.check().unwrap().corruption.is_empty());
    let tree = keyspace.tree();
    {
        let Ok(mut write) = tree.write_leaf(b"b", &|_| false) else { panic!("the leaf is in memory") };
        let mut leaf = LeafMut::new(write.leaf_mut(&tree.pages.table));
        leaf.insert(1, b"b", RowValue::Large(LargeRef::REMOVED)).unwrap();
    }
    let report = db.check().unwrap();
    assert_eq!(report.corruption.len(), 1, "{report:#?}");
    assert_eq!(report.corruption[0].reason, "it has a row that only runs have");
}
