//! Calls whose pages are in memory yield to other tasks after a turn, and lose nothing by yielding.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::pin;
use std::task::Poll;

use drumlin::{Config, Database, Durability, Field, Keyspace, KeyspaceOptions, Sum, Value};
use drumlin_testing::futures::{block_on, count_polls, within_polls};
use futures_util::future::{BoxFuture, join, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt, TryStreamExt};

const ROWS: u64 = 12_000;
/// The maximum number of repeated calls in a turn, and of rows that a long call handles in a turn.
const CALLS_MAX: u64 = 64;
const ROWS_MAX: u64 = 512;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn sum() -> Sum<u64> {
    Sum::of(Field::big_endian(0))
}

/// Returns a database that fits in memory, with about 500 leaves.
fn filled() -> (Database, Keyspace) {
    let db = Config::in_memory().memory(64 << 20).open("").unwrap();
    let keyspace = db.keyspace_with("rows", KeyspaceOptions::new().page_bytes(1024)).unwrap();
    let keyspace = keyspace.with_durability(Durability::Relaxed);
    for first in (0..ROWS).step_by(1000) {
        let mut batch = db.batch().unwrap();
        (first..first + 1000).for_each(|number| batch.insert(&keyspace, key(number), key(number)).unwrap());
        batch.commit().unwrap();
    }
    (db, keyspace)
}

/// Runs a call that handles `work` rows, and checks that no poll handles more than `turn_max`.
fn gives_way<T>(name: &str, work: u64, turn_max: u64, call: impl Future<Output = T>) -> T {
    let (value, polls) = count_polls(call);
    assert!(polls as u64 >= work / turn_max, "{name} did work of {work} in {polls} polls");
    value
}

/// Repeats a call that completes without waiting, and checks that only a few calls run in each poll.
fn repeated_gives_way<T>(name: &str, call: impl AsyncFn(u64) -> drumlin::Result<T>) {
    let since_poll = Cell::new(0);
    let mut calls = pin!(async {
        for number in 0..1000 {
            call(number).await.unwrap();
            since_poll.set(since_poll.get() + 1);
            assert!(since_poll.get() <= CALLS_MAX, "{name} was called {} times in one poll", since_poll.get());
        }
    });
    block_on(poll_fn(|context| {
        since_poll.set(0);
        calls.as_mut().poll(context)
    }));
}

/// Reads of one row complete without waiting, but a loop of them yields.
#[test]
fn repeated_reads_give_way() {
    let (db, k) = filled();
    let snapshot = db.snapshot();
    repeated_gives_way("get", async |number| k.get_async(key(number)).await);
    repeated_gives_way("get_into", async |number| k.get_into_async(key(number), &mut Vec::new()).await);
    repeated_gives_way("get_with", async |number| k.get_with_async(key(number), <[u8]>::len).await);
    repeated_gives_way("contains_key", async |number| k.contains_key_async(key(number)).await);
    repeated_gives_way("get_many of none", async |_| k.get_many_async(&[[0; 8]; 0]).await);
    repeated_gives_way("first", async |_| k.first_async().await);
    repeated_gives_way("is_empty", async |_| k.is_empty_async().await);
    repeated_gives_way("count", async |number| k.count_async(key(number)..key(number + 5)).await);
    repeated_gives_way("read", async |number| k.read_async(key(number)).await);
    repeated_gives_way("of a snapshot", async |number| snapshot.get_async(&k, key(number)).await);
    repeated_gives_way("keyspace", async |_| db.keyspace_async("rows").await);
    repeated_gives_way("sync", async |_| db.sync_async().await);
}

/// A loop of writes also yields, and so does a loop of pops that find no row.
#[test]
fn repeated_writes_give_way() {
    let (db, k) = filled();
    let empty = db.keyspace("empty").unwrap();
    repeated_gives_way("insert", async |number| k.insert_async(key(number), "new").await);
    repeated_gives_way("remove", async |number| k.remove_async(key(number + 2000)).await);
    repeated_gives_way("take", async |number| k.take_async(key(number + 4000)).await);
    repeated_gives_way("replace", async |number| k.replace_async(key(number), "newer").await);
    repeated_gives_way("update", async |number| k.update_async(key(number), |_| Some("newest")).await);
    repeated_gives_way("pop_first", async |_| k.pop_first_async().await);
    repeated_gives_way("pop_last of nothing", async |_| empty.pop_last_async().await);
    repeated_gives_way("transact", async |number| {
        let k = &k;
        db.transact_local(async |tx| -> drumlin::Result<_> { tx.insert_async(k, key(number), "again").await }).await
    });
    let tx = std::cell::RefCell::new(db.begin().unwrap());
    #[expect(clippy::await_holding_refcell_ref, reason = "one future is polled")]
    repeated_gives_way("a transaction's insert", async |number| {
        tx.borrow_mut().insert_async(&k, key(number), "own").await
    });
    let batch = std::cell::RefCell::new(db.batch().unwrap());
    #[expect(clippy::await_holding_refcell_ref, reason = "one future is polled")]
    repeated_gives_way("a batch's insert", async |number| {
        batch.borrow_mut().insert_async(&k, key(number), "own").await
    });
}

/// Every kind of call that scans yields every few leaves.
#[test]
fn scans_give_way() {
    let (_db, k) = filled();
    gives_way("into_stream", ROWS, ROWS_MAX, async {
        assert_eq!(k.iter().into_stream().try_fold(0, async |count, _| Ok(count + 1)).await.unwrap(), ROWS);
    });
    gives_way("Keys::into_stream", ROWS, ROWS_MAX, k.keys().into_stream().count());
    gives_way("Values::into_stream", ROWS, ROWS_MAX, k.values().into_stream().count());
    gives_way("next_back_async", ROWS, ROWS_MAX, async {
        let mut rows = k.iter();
        while let Some(row) = rows.next_back_async().await {
            row.unwrap();
        }
    });
    gives_way("Readers::next_async", ROWS, ROWS_MAX, async {
        let mut readers = k.iter().readers();
        while let Some(row) = readers.next_async().await {
            row.unwrap();
        }
    });
    gives_way("for_each_row_async", ROWS, ROWS_MAX, async {
        let mut count = 0;
        let look = |_: &[u8], _: &[u8]| {
            count += 1;
            ControlFlow::<()>::Continue(())
        };
        assert!(k.iter().for_each_row_async(look).await.unwrap().is_continue());
        assert_eq!(count, ROWS);
    });
}

/// Calls that return a single result for many rows also yield.
#[test]
fn calls_of_many_rows_give_way() {
    let (db, k) = filled();
    let keys: Vec<[u8; 8]> = (0..ROWS).map(|number| key(number * 7919 % ROWS)).collect();
    let snapshot = db.snapshot();
    // At the snapshot, most leaves have changed rows, which each call must reread.
    (0..ROWS).step_by(20).for_each(|number| k.insert(key(number), key(number)).unwrap());
    let expected = i128::from((ROWS - 1) * ROWS / 2);
    assert_eq!(gives_way("aggregate_async", ROWS, ROWS_MAX, k.aggregate_async(&sum(), ..)).unwrap(), expected);
    let of_snapshot = gives_way("its snapshot's", ROWS, ROWS_MAX, snapshot.aggregate_async(&k, &sum(), ..));
    assert_eq!(of_snapshot.unwrap(), expected);
    let found = gives_way("get_many_async", ROWS, CALLS_MAX, k.get_many_async(&keys)).unwrap();
    assert!(found.iter().zip(&keys).all(|(value, key)| value.as_deref() == Some(&key[..])));
    assert!(
        gives_way("contains_many_async", ROWS, CALLS_MAX, k.contains_many_async(&keys)).unwrap().iter().all(|is| *is)
    );
}

/// The first count of a keyspace visits its leaves and yields, and so does a search by rank.
#[test]
fn counts_give_way() {
    let (_db, k) = filled();
    assert_eq!(gives_way("len_async", ROWS, 8 * ROWS_MAX, k.len_async()).unwrap(), ROWS);
    let (_db, k) = filled();
    let last = gives_way("nth_async", ROWS, 8 * ROWS_MAX, k.nth_async(.., ROWS - 1));
    assert_eq!(last.unwrap().unwrap().0, key(ROWS - 1));
}

/// A commit of many rows yields while it takes their locks, and a different thread applies it.
#[test]
fn commits_of_many_rows_give_way() {
    let (db, k) = filled();
    let mut batch = db.batch().unwrap();
    (0..ROWS).for_each(|number| batch.insert(&k, key(number), "new").unwrap());
    gives_way("Batch::commit_async", ROWS, ROWS_MAX, batch.commit_async()).unwrap();
    assert_eq!(k.get(key(ROWS - 1)).unwrap().unwrap(), "new");
    let mut tx = db.begin().unwrap();
    (0..1000).for_each(|number| tx.insert(&k, key(number), "newer").unwrap());
    let (_, polls) = count_polls(async {
        tx.commit_async().await.unwrap();
    });
    assert!(polls > 1, "a commit of 1000 rows was ready at once");
    assert_eq!(k.get(key(999)).unwrap().unwrap(), "newer");
}

/// A future that yields is woken, any executor completes it, and other tasks run while it yields.
#[test]
fn others_run_meanwhile() {
    let (_db, k) = filled();
    let scan = async || k.iter().into_stream().count().await as u64;
    let is_over = Cell::new(false);
    let looks = Cell::new(0);
    let look = poll_fn(|context| {
        looks.set(looks.get() + 1);
        context.waker().wake_by_ref();
        if is_over.get() { Poll::Ready(()) } else { Poll::Pending }
    });
    let scanned = async {
        assert_eq!(scan().await, ROWS);
        is_over.set(true);
    };
    block_on(join(scanned, look));
    assert!(looks.get() >= ROWS / ROWS_MAX, "another future was polled {} times beside a scan", looks.get());
    assert!(block_on(join_all((0..5).map(|_| scan()))).iter().all(|count| *count == ROWS));
    let many: FuturesUnordered<_> = (0..50).map(|_| scan()).collect();
    assert_eq!(block_on(many.collect::<Vec<_>>()), [ROWS; 50]);
    assert_eq!(smol::block_on(scan()), ROWS);
    let single = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(single.block_on(scan()), ROWS);
}

/// If a short call has yielded, the next call is always ready at its first poll. So a caller that polls once and drops
/// unfinished futures makes progress.
#[test]
fn a_short_call_is_ready_at_once_after_a_turn() {
    let (_db, k) = filled();
    let mut gave_way = 0;
    for number in 0..2000 {
        let read = || k.get_async(key(number)).now_or_never();
        let value = read().unwrap_or_else(|| {
            gave_way += 1;
            read().expect("the turn has just begun")
        });
        assert_eq!(value.unwrap().unwrap(), key(number));
    }
    assert!((10..200).contains(&gave_way), "{gave_way} of 2000 reads gave way");
}

/// If steps and closure calls are dropped when they yield, no row is lost or shown twice.
#[test]
fn scans_dropped_where_they_give_way_lose_nothing() {
    let (_db, k) = filled();
    let expected: Vec<Value> = k.keys().collect::<drumlin::Result<_>>().unwrap();
    let (mut found, mut dropped) = (Vec::new(), 0);
    let mut rows = k.iter();
    loop {
        match rows.next_async().now_or_never() {
            Some(Some(row)) => found.push(row.unwrap().0),
            Some(None) => break,
            None => dropped += 1,
        }
    }
    assert!(found == expected && dropped >= ROWS / ROWS_MAX, "{} rows, {dropped} drops", found.len());
    let (mut shown, mut dropped) = (Vec::new(), 0);
    let mut rows = k.iter();
    let mut look = |key: &[u8], _: &[u8]| {
        shown.push(Value::from(key));
        ControlFlow::<()>::Continue(())
    };
    while rows.for_each_row_async(&mut look).now_or_never().is_none() {
        dropped += 1;
    }
    assert!(shown == expected && dropped >= ROWS / ROWS_MAX, "{} rows, {dropped} drops", shown.len());
}

/// A commit that is dropped at any poll has applied all of its rows or none.
#[test]
fn writes_dropped_where_they_give_way_are_whole() {
    let (db, k) = filled();
    k.clear().unwrap();
    let is_whole = || {
        let count = k.len().unwrap();
        assert!(count == 0 || count == 3000, "{count} rows of a commit");
        count > 0
    };
    let mut aborted = 0;
    for polls in 1.. {
        let mut batch = db.batch().unwrap();
        (0..3000).for_each(|number| batch.insert(&k, key(number), "new").unwrap());
        if block_on(within_polls(polls, batch.commit_async())).is_some() {
            break;
        }
        aborted += u64::from(!is_whole());
        // This waits for the rows if a different thread is still running the commit.
        k.clear().unwrap();
    }
    assert!(is_whole() && aborted > 0, "no commit was aborted");
}

/// Every long call can be spawned on executors that require `Send`.
#[test]
fn long_calls_can_be_sent() {
    let (db, k) = filled();
    type Call = fn(Database, Keyspace) -> BoxFuture<'static, drumlin::Result<u64>>;
    let calls: [Call; 5] = [
        |_, k| Box::pin(async move { k.remove_range_async(..key(10)).await.map(|()| 10) }),
        |_, k| Box::pin(async move { k.remove_prefix_async(key(20)).await.map(|()| 1) }),
        |_, k| Box::pin(async move { k.aggregate_async(&sum(), ..).await.map(|_| 7) }),
        |db, k| {
            Box::pin(async move {
                let mut batch = db.batch()?;
                batch.insert_async(&k, key(ROWS), "new").await?;
                batch.commit_async().await.map(|_| 1)
            })
        },
        |_, k| Box::pin(async move { k.clear_async().await.map(|()| 2) }),
    ];
    let counts = calls.map(|call| block_on(call(db.clone(), k.clone())).unwrap());
    assert_eq!(counts, [10, 1, 7, 1, 2]);
}
