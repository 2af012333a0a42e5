//! The asynchronous API returns the same results on every executor, and occupies no thread while a task waits. Dropping
//! a future at any await does no harm.

use crate::support;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

use drumlin::{
    Config, Database, Durability, Error, IoBackend, Isolation, Keyspace, LockHolder, Snapshot, Stats, TxOptions,
};
use drumlin_io::testing::fault::{FaultyBackend, Operation};
use futures_util::future::{join, join_all};
use smol::io::{AsyncReadExt, AsyncSeekExt};
use support::{BACKENDS, Folder, Random, alone, small};

struct Unpark(Thread, AtomicUsize);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// A minimal executor: polls a future until it is ready, and parks the thread between polls.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    poll_at_most(future, usize::MAX).expect("polled until it is ready")
}

/// Polls a future at most `limit` times, parking the thread between polls, then drops it.
fn poll_at_most<T>(future: impl Future<Output = T>, limit: usize) -> Option<T> {
    let mut future = pin!(future);
    let unpark = Arc::new(Unpark(std::thread::current(), AtomicUsize::new(0)));
    let waker = Arc::clone(&unpark).into();
    for _ in 0..limit {
        let wakes = unpark.1.load(Ordering::SeqCst);
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        while unpark.1.load(Ordering::SeqCst) == wakes {
            std::thread::park();
        }
    }
    None
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Returns a database with many more rows than its budget has room for, most of them not in memory.
fn filled(config: &Config, folder: &Folder, rows: u64) -> (Database, Keyspace) {
    let db = config.open(folder.path()).unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    for first in (0..rows).step_by(100) {
        let mut tx = db.begin_with(TxOptions { durability: Durability::Relaxed, ..TxOptions::default() }).unwrap();
        for number in first..(first + 100).min(rows) {
            tx.insert(&keyspace, key(number), Random(number).bytes(200)).unwrap();
        }
        tx.commit().unwrap();
    }
    db.checkpoint().unwrap();
    drop((keyspace, db));
    let db = config.open(folder.path()).unwrap();
    let keyspace = db.existing_keyspace("rows").unwrap();
    (db, keyspace)
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Makes every call once and checks its result.
async fn everything(config: Config, folder: &Folder) {
    let db = config.open_async(folder.path()).await.unwrap();
    let keyspace = db.keyspace_async("rows").await.unwrap();
    let model = rows_are_written(&db, &keyspace).await;
    rows_are_read(&keyspace, &model).await;
    a_scan_reads_from_both_ends(&keyspace, &model).await;
    let film = a_value_is_a_stream(&keyspace).await;
    let before = a_transaction_sees_its_own_writes_alone(&db, &keyspace, &model, &film).await;
    a_changed_row_is_a_conflict(&db, &keyspace).await;
    a_conflict_runs_the_body_again(&db, &keyspace).await;

    db.drop_keyspace_async("rows").await.unwrap();
    assert!(matches!(keyspace.get_async(b"row").await, Err(Error::KeyspaceDropped { .. })));
    db.compact_async().await.unwrap();
    assert!(db.check_async().await.unwrap().corruption.is_empty());
    drop((before, keyspace));
    db.close_async().await.unwrap();
}

/// Makes inserts, removals and a checkpoint. Returns the resulting rows.
async fn rows_are_written(db: &Database, keyspace: &Keyspace) -> Model {
    let mut model = Model::new();
    for number in 0..300u64 {
        let value = Random(number).bytes(match number % 50 {
            0 => 300_000,
            1..10 => 5000,
            _ => 40,
        });
        keyspace.insert_with_async(key(number), &value, Durability::Relaxed).await.unwrap();
        model.insert(key(number).to_vec(), value);
    }
    keyspace.insert_async(b"last", b"").await.unwrap();
    model.insert(b"last".to_vec(), Vec::new());
    keyspace.remove_async(key(7)).await.unwrap();
    model.remove(&key(7)[..]);
    db.checkpoint_async().await.unwrap();
    model
}

async fn rows_are_read(keyspace: &Keyspace, model: &Model) {
    for number in 0..300u64 {
        let found = keyspace.get_async(key(number)).await.unwrap();
        assert_eq!(found.as_deref(), model.get(&key(number)[..]).map(|value| &value[..]));
    }
    assert!(!keyspace.contains_key_async(key(7)).await.unwrap());
    let keys: Vec<[u8; 8]> = (0..300).map(key).collect();
    let found = keyspace.get_many_async(&keys).await.unwrap();
    assert!(
        keys.iter().zip(&found).all(|(key, value)| value.as_deref() == model.get(&key[..]).map(|value| &value[..]))
    );
    assert_eq!(keyspace.count_async(..).await.unwrap(), model.len() as u64);
}

async fn a_scan_reads_from_both_ends(keyspace: &Keyspace, model: &Model) {
    let mut range = keyspace.iter();
    let (mut front, mut back) = (Vec::new(), Vec::new());
    loop {
        match range.next_async().await {
            Some(row) => front.push(row.unwrap()),
            None => break,
        }
        match range.next_back_async().await {
            Some(row) => back.push(row.unwrap()),
            None => break,
        }
    }
    front.extend(back.into_iter().rev());
    assert!(front.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).eq(model.clone()));
}

/// Writes values from readers, and reads them from the beginning and from a position. Returns the larger value, that of
/// row `film`.
async fn a_value_is_a_stream(keyspace: &Keyspace) -> Vec<u8> {
    let film = Random(9).bytes(1_000_000);
    assert_eq!(keyspace.insert_from_async(b"film", &film[..]).await.unwrap(), 1_000_000);
    assert_eq!(keyspace.insert_from_async(b"short", &b"ness"[..]).await.unwrap(), 4);
    let mut reader = keyspace.read_async(b"film").await.unwrap().unwrap();
    assert_eq!(reader.len(), 1_000_000);
    let mut read = Vec::new();
    reader.read_to_end(&mut read).await.unwrap();
    assert!(read == film);
    reader.seek(std::io::SeekFrom::Start(700_000)).await.unwrap();
    let mut part = [0; 1000];
    reader.read_exact(&mut part).await.unwrap();
    assert_eq!(part, film[700_000..701_000]);
    film
}

/// A transaction sees its own writes, other transactions see them once it has committed, and an older snapshot never
/// sees them. Rolling back to a savepoint undoes later writes. Returns the snapshot. The keyspace must have the rows of
/// `model`, `film` and `short`.
async fn a_transaction_sees_its_own_writes_alone(
    db: &Database,
    keyspace: &Keyspace,
    model: &Model,
    film: &[u8],
) -> Snapshot {
    let before = db.snapshot();
    let mut tx = db.begin().unwrap();
    assert_eq!(tx.get_for_update_async(keyspace, key(1)).await.unwrap().unwrap(), model[&key(1)[..]][..]);
    tx.insert_async(keyspace, key(1), b"one").await.unwrap();
    let mark = tx.savepoint();
    tx.remove_async(keyspace, key(2)).await.unwrap();
    tx.insert_from_async(keyspace, b"film", &film[..500_000]).await.unwrap();
    assert_eq!(tx.read_async(keyspace, b"film").await.unwrap().unwrap().len(), 500_000);
    assert_eq!(tx.count_async(keyspace, ..).await.unwrap(), model.len() as u64 + 1);
    tx.rollback_to(mark).unwrap();
    assert_eq!(tx.get_async(keyspace, key(1)).await.unwrap().unwrap(), b"one");
    assert_eq!(keyspace.get_async(key(1)).await.unwrap().unwrap(), model[&key(1)[..]][..]);
    tx.commit_async().await.unwrap();
    assert_eq!(keyspace.get_async(key(1)).await.unwrap().unwrap(), b"one");
    assert_eq!(before.get_async(keyspace, key(1)).await.unwrap().unwrap(), model[&key(1)[..]][..]);
    assert_eq!(before.count_async(keyspace, ..).await.unwrap(), model.len() as u64 + 2);
    assert!(before.contains_key_async(keyspace, b"film").await.unwrap());
    assert_eq!(before.read_async(keyspace, b"film").await.unwrap().unwrap().len(), 1_000_000);
    before
}

/// A write waits for a row that a different transaction has locked, up to the time limit, and conflicts once that
/// transaction has changed the row.
async fn a_changed_row_is_a_conflict(db: &Database, keyspace: &Keyspace) {
    let mut first = db.begin().unwrap();
    first.insert_async(keyspace, b"row", b"first").await.unwrap();
    let options = TxOptions { lock_timeout: Duration::from_millis(30), ..TxOptions::default() };
    let mut second = db.begin_with(options).unwrap();
    let error = second.insert_async(keyspace, b"row", b"second").await.unwrap_err();
    assert!(matches!(error, Error::LockTimeout { holder: LockHolder::Other, .. }), "{error:?}");
    drop(second);
    let mut second = db.begin().unwrap();
    let (waited, committed) = join(second.insert_async(keyspace, b"row", b"second"), first.commit_async()).await;
    committed.unwrap();
    assert!(waited.unwrap_err().is_conflict());
}

/// `transact_async` retries its body, and the second run sees the changed row.
async fn a_conflict_runs_the_body_again(db: &Database, keyspace: &Keyspace) {
    let mut attempts = 0;
    let answer = db.transact_async(|tx| {
        attempts += 1;
        let (attempt, keyspace) = (attempts, keyspace.clone());
        Box::pin(async move {
            let old = tx.get_async(&keyspace, b"row").await?.unwrap();
            if attempt == 1 {
                keyspace.insert_async(b"row", b"third").await?;
            }
            tx.insert_async(&keyspace, b"row", b"fourth").await?;
            Ok(old)
        })
    });
    let answer: drumlin::Result<_> = answer.await;
    let answer = answer.unwrap();
    assert_eq!((&answer[..], attempts), (&b"third"[..], 2));
}

/// The whole API works on a handwritten executor, tokio with one and with many threads, and smol, on both I/O backends.
#[test]
fn every_call_works_on_every_executor() {
    for backend in BACKENDS {
        let config = small().io_backend(backend);
        block_on(everything(config.clone(), &Folder::new()));
        smol::block_on(everything(config.clone(), &Folder::new()));
        let single = tokio::runtime::Builder::new_current_thread().build().unwrap();
        single.block_on(everything(config.clone(), &Folder::new()));
        let many = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        // Spawning requires that the futures are `Send`.
        many.block_on(many.spawn(async move { everything(config, &Folder::new()).await })).unwrap();
    }
}

/// Hundreds of tasks that wait for pages, rows and the log do not need a thread each. This holds only with io_uring,
/// because the portable backend reads on threads.
#[cfg(not(drumlin_portable))]
#[test]
fn waiting_tasks_cost_no_threads() {
    alone("asynchronous::waiting_tasks_cost_no_threads", &[], || {
        const TASKS: u64 = 500;
        let folder = Folder::new();
        let (db, keyspace) = filled(&small().io_backend(IoBackend::Uring), &folder, 20_000);
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let mut holder = db.begin().unwrap();
        holder.insert(&keyspace, b"held", b"").unwrap();
        let before = threads();
        let tasks = (0..TASKS).map(|task| {
            let keyspace = &keyspace;
            async move {
                let mut random = Random(task);
                for _ in 0..20 {
                    let number = random.below(20_000);
                    let found = keyspace.get_async(key(number)).await.unwrap().unwrap();
                    assert_eq!(found, Random(number).bytes(200));
                }
                keyspace.insert_async(key(1_000_000 + task), b"new").await.unwrap();
                keyspace.insert_async(b"held", key(task)).await.unwrap();
            }
        });
        let mut most = 0;
        let watch = async {
            for round in 0..50 {
                let mut yielded = false;
                std::future::poll_fn(|context| {
                    context.waker().wake_by_ref();
                    if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                most = most.max(threads());
                if round == 30 {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
            drop(holder);
        };
        block_on(join(join_all(tasks), watch));
        // Allow for threads for pages, for rare operations, and for the timer.
        assert!(most < before + 200, "{before} threads became {most}");
        assert_eq!(keyspace.count(key(1_000_000).to_vec()..).unwrap(), TASKS + 1);
    });
}

/// Commits whose futures are dropped also trigger garbage collection of old versions and checkpoints.
#[test]
fn commits_that_nobody_waits_for_are_looked_after() {
    let folder = Folder::new();
    let db = small().memory(16 << 20).open(folder.path()).unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    let mut random = Random(11);
    for number in 0..60_000u64 {
        let value = random.bytes(100);
        let mut insert = pin!(keyspace.insert_async(key(number % 500), value));
        let _ = insert.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()));
    }
    let is_looked_after =
        |stats: &Stats| stats.version_bytes < 2 << 20 && stats.checkpoints > 0 && stats.log_bytes < 8 << 20;
    let ends = Instant::now() + Duration::from_secs(60);
    while !is_looked_after(&db.stats()) {
        assert!(Instant::now() < ends, "{:?}", db.stats());
        std::thread::yield_now();
    }
}

/// A commit whose future is dropped after any number of polls is complete or has no effect. It holds no lock, and the
/// database remains usable.
#[test]
fn a_commit_dropped_at_any_await_is_whole_or_nothing() {
    const ROWS: u64 = 40_000;
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), &folder, ROWS);
    let large = Random(3).bytes(400_000);
    let mut aborted = 0;
    let mut completed = 0;
    let mut finished = 0;
    for round in 0..400u64 {
        let polls = if round % 4 == 0 { usize::MAX } else { 1 + (round % 13) as usize };
        // Choose rows in many leaves, most of which are on disk.
        let numbers: Vec<u64> = (0..12).map(|part| (round * 7919 + part * 3301) % ROWS).collect();
        let value = format!("round {round}").into_bytes();
        let committed = poll_at_most(
            async {
                let mut tx = db.begin().unwrap();
                for &number in &numbers {
                    tx.insert_async(&keyspace, key(number), &value).await.unwrap();
                }
                if round % 5 == 0 {
                    tx.insert_from_async(&keyspace, b"large", &large[..]).await.unwrap();
                }
                tx.commit_async().await.unwrap();
            },
            polls,
        );
        // Every row can be locked and read without waiting, so no lock is left behind.
        let changed: Vec<bool> = numbers
            .iter()
            .map(|number| {
                let options = TxOptions { lock_timeout: Duration::from_millis(1), ..TxOptions::default() };
                let mut tx = db.begin_with(options).unwrap();
                let row = tx.get_for_update(&keyspace, key(*number)).unwrap().unwrap();
                row == value
            })
            .collect();
        let all = changed.iter().all(|changed| *changed);
        assert!(all || changed.iter().all(|changed| !changed), "round {round}: half a commit: {changed:?}");
        match (committed, all) {
            (Some(()), all) => {
                assert!(all, "round {round}: an acknowledged commit is not there");
                finished += 1;
            }
            (None, true) => completed += 1,
            (None, false) => aborted += 1,
        }
    }
    assert!(
        aborted > 20 && finished > 20,
        "{aborted} aborted, {completed} completed by themselves, {finished} finished"
    );
    assert!(db.check().unwrap().corruption.is_empty());
    // Aborted writes leave nothing allocated in the data file.
    db.checkpoint().unwrap();
    drop(keyspace);
    db.close().unwrap();
    let db = small().open(folder.path()).unwrap();
    assert!(db.check().unwrap().corruption.is_empty());
}

/// Dropping the futures of single writes, reads, scans and waits for rows at any await does no harm.
#[test]
fn any_call_dropped_at_any_await_does_no_harm() {
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), &folder, 6000);
    let large = Random(4).bytes(300_000);
    keyspace.insert(b"large", &large).unwrap();
    for round in 0..240u64 {
        let polls = 1 + (round / 4 % 20) as usize;
        let number = round * 53 % 6000;
        match round % 4 {
            0 => {
                let value = Random(round).bytes(if round % 8 == 0 { 100_000 } else { 3000 });
                let done = poll_at_most(keyspace.insert_async(key(number), &value), polls).is_some();
                let found = keyspace.get(key(number)).unwrap().unwrap();
                assert!(found == value || !done && found == Random(number).bytes(200), "round {round}");
                keyspace.insert(key(number), Random(number).bytes(200)).unwrap();
            }
            1 => {
                let found = poll_at_most(keyspace.get_async(key(number)), polls);
                assert!(found.is_none_or(|found| found.unwrap().unwrap() == Random(number).bytes(200)));
                let mut range = keyspace.range(key(number).to_vec()..);
                // A scan whose futures are dropped between any two rows skips no row.
                for expected in number..(number + 40).min(6000) {
                    let row = loop {
                        if let Some(row) = poll_at_most(range.next_async(), 1) {
                            break row;
                        }
                    };
                    assert_eq!(row.unwrap().unwrap().0, key(expected));
                }
            }
            2 => {
                let found = poll_at_most(keyspace.get_async(b"large"), polls);
                assert!(found.is_none_or(|found| found.unwrap().unwrap() == large));
                drop(poll_at_most(keyspace.get_many_async(&[key(number), key(5999 - number)]), polls));
            }
            _ => {
                let mut holder = db.begin().unwrap();
                holder.insert(&keyspace, key(number), b"held").unwrap();
                {
                    let mut waiting = pin!(keyspace.insert_async(key(number), b"waits"));
                    let waker = std::task::Waker::noop();
                    assert!(waiting.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
                    if polls > 10 {
                        // The lock is granted to a future that is dropped before it is polled.
                        drop(std::mem::replace(&mut holder, db.begin().unwrap()));
                    }
                }
                drop(holder);
                keyspace.insert(key(number), Random(number).bytes(200)).unwrap();
            }
        }
    }
    for number in 0..6000 {
        assert_eq!(keyspace.get(key(number)).unwrap().unwrap(), Random(number).bytes(200));
    }
    assert!(db.check().unwrap().corruption.is_empty());
}

/// Returns the result of a future, or `None` after a generous time limit.
fn within_reason<T>(future: impl Future<Output = T>) -> Option<T> {
    let limit = async {
        smol::Timer::after(Duration::from_secs(20)).await;
        None
    };
    smol::block_on(smol::future::or(async { Some(future.await) }, limit))
}

/// One commit holds space in the log while it waits for a page. Commits that wait for that space occupy no thread of
/// the database, so threads are available for other tasks.
#[test]
fn tasks_that_wait_for_the_log_occupy_no_thread() {
    let folder = Folder::new();
    let faulty = FaultyBackend::new(drumlin_io::in_memory());
    let config = small().memory(16 << 20).page_bytes(8192).backend(Arc::new(faulty.clone()));
    let (db, cold) = filled(&config, &folder, 2000);
    let warm = db.keyspace("warm").unwrap();
    let large = Random(5).bytes(300_000);
    warm.insert(b"large", &large).unwrap();
    warm.get(b"large").unwrap();
    // Together these commits exceed the log's buffer.
    let commit = |keyspace: &Keyspace, prefix: u64| {
        let options = TxOptions { isolation: Isolation::ReadCommitted, ..TxOptions::default() };
        let mut tx = db.begin_with(options).unwrap();
        for row in 0..360 {
            tx.insert(keyspace, [key(prefix), key(row)].concat(), Random(row).bytes(900)).unwrap();
        }
        tx.commit_async()
    };
    faulty.hold_nth(Operation::Read, 1);
    let mut holder = pin!(commit(&cold, 1000));
    let mut waiting: Vec<_> = (0..2).map(|number| Box::pin(commit(&warm, number))).collect();
    let mut context = Context::from_waker(std::task::Waker::noop());
    while !faulty.wait_for_held(Duration::from_millis(1)) {
        assert!(holder.as_mut().poll(&mut context).is_pending());
    }
    for _ in 0..100 {
        for commit in &mut waiting {
            assert!(commit.as_mut().poll(&mut context).is_pending());
        }
        let Some(read) = within_reason(warm.get_async(b"large")) else {
            faulty.release();
            panic!("no thread reads for tasks");
        };
        assert!(read.unwrap().unwrap() == large);
    }
    faulty.release();
    within_reason(join(holder, join_all(waiting))).expect("commits wait for ever").0.unwrap();
    assert_eq!(warm.count(..).unwrap(), 1 + 2 * 360);
}

/// Large commits of several tasks all complete with little memory. The commit that has reserved space in the log gets
/// its frames, even if other commits are waiting for log space or keyspaces are being created.
#[test]
fn large_commits_of_tasks_in_little_memory_all_end() {
    let (send, receive) = std::sync::mpsc::channel();
    let commits = move || {
        let db = small().page_bytes(8192).backend(drumlin_io::in_memory()).open("/db").unwrap();
        let rows = db.keyspace("rows").unwrap();
        std::thread::scope(|scope| {
            for task in 0..6u64 {
                let (db, rows) = (&db, &rows);
                scope.spawn(move || {
                    smol::block_on(async {
                        let mut random = Random(task);
                        for _ in 0..40 {
                            let new: Vec<_> = (0..140).map(|_| (key(random.next()), random.bytes(950))).collect();
                            let new = Arc::new(new);
                            // Retry if the tasks together need too much memory.
                            db.transact_async(|tx| {
                                let (rows, new) = (rows.clone(), Arc::clone(&new));
                                Box::pin(async move {
                                    for (key, value) in new.iter() {
                                        tx.insert_async(&rows, key, value).await?;
                                    }
                                    Ok::<_, Error>(())
                                })
                            })
                            .await
                            .unwrap();
                            if task < 2 {
                                let name = task.to_string();
                                db.keyspace_async(&name).await.unwrap();
                                db.drop_keyspace_async(&name).await.unwrap();
                            }
                        }
                    });
                });
            }
        });
        assert_eq!(rows.count(..).unwrap(), 6 * 40 * 140);
        send.send(()).unwrap();
    };
    // If the thread hangs, leave it running.
    std::thread::spawn(commits);
    receive.recv_timeout(Duration::from_secs(60)).expect("tasks wait for each other for ever");
}

/// If a queue fails when some reads have finished and others are in flight, every task still gets a result, and later
/// reads use a new queue.
#[test]
fn a_queue_that_fails_leaves_no_task_waiting() {
    const ENOMEM: i32 = 12;
    let folder = Folder::new();
    let faulty = FaultyBackend::new(drumlin_io::in_memory());
    let (_db, keyspace) = filled(&small().backend(Arc::new(faulty.clone())), &folder, 2000);
    faulty.fail_nth(Operation::Wait, 1, ENOMEM);
    for number in (0..2000).step_by(100) {
        let found = within_reason(keyspace.get_async(key(number))).expect("a task waits for ever");
        assert_eq!(found.unwrap().unwrap(), Random(number).bytes(200), "its read had finished");
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

/// A waker that panics ends the thread that reads for tasks, but does not make any task hang.
#[test]
fn a_waker_that_panics_leaves_no_task_waiting() {
    let folder = Folder::new();
    let faulty = FaultyBackend::new(drumlin_io::in_memory());
    let (_db, keyspace) = filled(&small().backend(Arc::new(faulty.clone())), &folder, 2000);
    faulty.hold_nth(Operation::Read, 1);
    let mut first = Box::pin(keyspace.get_async(key(0)));
    assert!(first.as_mut().poll(&mut Context::from_waker(&Arc::new(Panics).into())).is_pending());
    assert!(faulty.wait_for_held(Duration::from_secs(20)));
    let mut second = Box::pin(keyspace.contains_key_async(key(1000)));
    assert!(second.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_pending());
    faulty.release();
    let _ = within_reason(second).expect("a task waits for ever");
    let _ = within_reason(keyspace.get_async(key(1999))).expect("a task waits for ever");
    assert_eq!(keyspace.get(key(1999)).unwrap().unwrap(), Random(1999).bytes(200));
}
