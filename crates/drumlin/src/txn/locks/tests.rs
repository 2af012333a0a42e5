use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll::{Pending, Ready};

use std::thread;

use super::*;

const ROWS: KeyspaceId = KeyspaceId(7);

const A: TransactionId = TransactionId(1);
const B: TransactionId = TransactionId(2);
const C: TransactionId = TransactionId(3);
const D: TransactionId = TransactionId(4);

const ACQUIRED: Poll<Result<Granted, LockError>> = Ready(Ok(Granted::Acquired));
const DEADLOCK: Poll<Result<Granted, LockError>> = Ready(Err(LockError::Deadlock));

fn table() -> LockTable {
    LockTable::new(4, 42)
}

/// Polls without a waker.
fn poll(table: &LockTable, owner: TransactionId, key: &[u8]) -> Poll<Result<Granted, LockError>> {
    table.poll_lock(owner, ROWS, key, Waker::noop())
}

/// A waker that counts its calls.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn count_wakes() -> (Arc<Wakes>, Waker) {
    let wakes = Arc::new(Wakes::default());
    (wakes.clone(), Waker::from(wakes))
}

/// A lock excludes other transactions from its row until it is released. The same key in another keyspace is another
/// row.
#[test]
fn a_lock_is_exclusive() {
    let table = table();
    let long = [b'k'; 1000];
    for key in [&b""[..], b"key", &long[..22], &long[..23], &long] {
        assert_eq!(table.try_lock(A, ROWS, key), Ok(Granted::Acquired));
        assert_eq!(table.try_lock(A, ROWS, key), Ok(Granted::AlreadyHeld));
        assert_eq!(table.try_lock(B, ROWS, key), Err(HeldBy(A)));
        assert_eq!(table.try_lock(B, KeyspaceId(8), key), Ok(Granted::Acquired));
    }
    for key in [&b""[..], b"key", &long[..22], &long[..23], &long] {
        table.unlock_all(A, [(ROWS, key)]);
        assert_eq!(table.try_lock(B, ROWS, key), Ok(Granted::Acquired));
        table.unlock_all(B, [(ROWS, key), (KeyspaceId(8), key)]);
        assert_eq!(table.try_lock(A, ROWS, key), Ok(Granted::Acquired));
        table.unlock(A, ROWS, key);
    }
}

/// Releasing the lock of another transaction is a bug of the caller, and panics.
#[test]
#[should_panic(expected = "a lock is released by its owner")]
fn releasing_the_lock_of_another_panics() {
    let table = table();
    table.try_lock(A, ROWS, b"key").unwrap();
    table.unlock(B, ROWS, b"key");
}

/// Waiters get the lock in the order of their arrival, and each is woken once.
#[test]
fn waiters_are_served_in_order() {
    let table = table();
    let (wakes_b, waker_b) = count_wakes();
    let (wakes_c, waker_c) = count_wakes();
    assert_eq!(poll(&table, A, b"key"), ACQUIRED);
    assert_eq!(table.poll_lock(B, ROWS, b"key", &waker_b), Pending);
    assert_eq!(table.poll_lock(C, ROWS, b"key", &waker_c), Pending);
    assert_eq!(table.poll_lock(B, ROWS, b"key", &waker_b), Pending);
    table.unlock(A, ROWS, b"key");
    assert_eq!((wakes_b.0.load(Ordering::SeqCst), wakes_c.0.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(table.try_lock(A, ROWS, b"key"), Err(HeldBy(B)));
    assert_eq!(table.poll_lock(C, ROWS, b"key", &waker_c), Pending);
    assert_eq!(poll(&table, A, b"key"), Pending);
    assert_eq!(poll(&table, B, b"key"), ACQUIRED);
    assert_eq!(poll(&table, B, b"key"), Ready(Ok(Granted::AlreadyHeld)));
    table.unlock(B, ROWS, b"key");
    assert_eq!((wakes_b.0.load(Ordering::SeqCst), wakes_c.0.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(poll(&table, C, b"key"), ACQUIRED);
    table.unlock(C, ROWS, b"key");
    assert_eq!(poll(&table, A, b"key"), ACQUIRED);
}

/// If two transactions wait for each other, the later one gets the error. It keeps its locks, and can lock the row once
/// the other has ended.
#[test]
fn a_deadlock_of_two_is_found() {
    let table = table();
    assert_eq!(poll(&table, A, b"x"), ACQUIRED);
    assert_eq!(poll(&table, B, b"y"), ACQUIRED);
    assert_eq!(poll(&table, A, b"y"), Pending);
    assert_eq!(poll(&table, B, b"x"), DEADLOCK);
    assert_eq!(table.lock(B, ROWS, b"x", Duration::MAX, &|| Duration::ZERO), Err(LockError::Deadlock));
    assert_eq!(table.try_lock(C, ROWS, b"y"), Err(HeldBy(B)));
    table.unlock(B, ROWS, b"y");
    assert_eq!(poll(&table, A, b"y"), ACQUIRED);
    assert_eq!(poll(&table, B, b"x"), Pending);
}

/// A cycle of three is found, whichever transaction closes it; a chain of three is not mistaken for one.
#[test]
fn a_deadlock_of_three_is_found() {
    for closing in 0..3 {
        let table = table();
        let ring = [(A, b"a"), (B, b"b"), (C, b"c")];
        for (owner, key) in ring {
            assert_eq!(poll(&table, owner, key), ACQUIRED);
        }
        for step in 1..3 {
            let (owner, _) = ring[(closing + step) % 3];
            let (_, next) = ring[(closing + step + 1) % 3];
            assert_eq!(poll(&table, owner, next), Pending);
        }
        let (owner, _) = ring[closing];
        let (_, next) = ring[(closing + 1) % 3];
        assert_eq!(poll(&table, D, b"a"), Pending);
        assert_eq!(poll(&table, owner, next), DEADLOCK);
    }
}

/// The waiters at the end of a queue wait for the current owner, also after the lock was handed over.
#[test]
fn a_deadlock_through_a_handed_over_lock_is_found() {
    let table = table();
    assert_eq!(poll(&table, A, b"x"), ACQUIRED);
    assert_eq!(poll(&table, C, b"y"), ACQUIRED);
    assert_eq!(poll(&table, B, b"x"), Pending);
    assert_eq!(poll(&table, C, b"x"), Pending);
    // While A has x, B may wait for nothing else, and A may wait for anything that does not lead back to it.
    assert_eq!(poll(&table, A, b"y"), DEADLOCK);
    table.unlock(A, ROWS, b"x");
    assert_eq!(poll(&table, A, b"y"), Pending);
    assert!(!table.cancel(A, ROWS, b"y"));
    assert_eq!(poll(&table, B, b"y"), DEADLOCK);
    table.unlock(B, ROWS, b"x");
    assert_eq!(poll(&table, B, b"y"), Pending);
    assert_eq!(poll(&table, C, b"x"), ACQUIRED);
}

/// A blocked thread gives up at the deadline, leaves its place in the queue to the next waiter, and can wait again.
#[test]
fn waiting_ends_at_the_deadline() {
    let table = table();
    let calls = AtomicU64::new(0);
    let clock = || Duration::from_micros(calls.fetch_add(1, Ordering::SeqCst));
    let deadline = Duration::from_micros(20);
    assert_eq!(poll(&table, A, b"key"), ACQUIRED);
    assert_eq!(table.lock(B, ROWS, b"key", deadline, &clock), Err(LockError::Timeout));
    assert!(calls.load(Ordering::SeqCst) >= 20);
    assert_eq!(poll(&table, C, b"key"), Pending);
    assert_eq!(table.lock(B, ROWS, b"key", Duration::ZERO, &clock), Err(LockError::Timeout));
    table.unlock(A, ROWS, b"key");
    assert_eq!(poll(&table, C, b"key"), ACQUIRED);
}

/// A lock that is handed over at the moment of giving up is not lost: the waiter that gave up owns it.
#[test]
fn a_lock_got_at_the_deadline_counts() {
    let table = table();
    assert_eq!(poll(&table, A, b"key"), ACQUIRED);
    // The clock is read between polling and giving up.
    let clock = || {
        table.unlock(A, ROWS, b"key");
        Duration::MAX
    };
    assert_eq!(table.lock(B, ROWS, b"key", Duration::ZERO, &clock), Ok(Granted::Acquired));
    assert_eq!(table.try_lock(A, ROWS, b"key"), Err(HeldBy(B)));
    assert!(!table.cancel(B, ROWS, b"key"));
}

/// A dropped future leaves the queue. If the lock was handed to it before, it passes the lock on.
#[test]
fn a_dropped_future_leaves_nothing_behind() {
    let table = table();
    let (wakes, waker) = count_wakes();
    let mut context = Context::from_waker(&waker);
    assert_eq!(poll(&table, A, b"key"), ACQUIRED);
    let mut first = Box::pin(table.acquire(B, ROWS, b"key"));
    let mut second = Box::pin(table.acquire(C, ROWS, b"key"));
    let mut third = Box::pin(table.acquire(D, ROWS, b"key"));
    for future in [&mut first, &mut second, &mut third] {
        assert_eq!(future.as_mut().poll(&mut context), Pending);
    }
    drop(second);
    table.unlock(A, ROWS, b"key");
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    drop(first);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 2);
    assert_eq!(third.as_mut().poll(&mut context), ACQUIRED);
    drop(third);
    assert_eq!(table.try_lock(A, ROWS, b"key"), Err(HeldBy(D)));
    table.unlock(D, ROWS, b"key");
    drop(table.acquire(A, ROWS, b"key"));
    assert_eq!(table.try_lock(B, ROWS, b"key"), Ok(Granted::Acquired));
}

/// The table counts memory while locks are held and waited for, including long keys, and gives it back afterwards.
#[test]
fn memory_is_counted_and_given_back() {
    let table = table();
    let empty = table.bytes();
    let keys: Vec<Vec<u8>> = (0..10_000u32).map(|number| [&number.to_be_bytes()[..], &[9; 96]].concat()).collect();
    for key in &keys {
        table.try_lock(A, ROWS, key).unwrap();
    }
    let held = table.bytes() - empty;
    assert!((10_000 * (48 + 100)..10_000 * (3 * 48 + 100)).contains(&held), "{held}");
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(poll(&table, TransactionId(100 + number as u64), key), Pending);
    }
    assert!(table.bytes() - empty >= held + 10_000 * WAITER_BYTES);
    for (number, key) in keys.iter().enumerate() {
        assert!(!table.cancel(TransactionId(100 + number as u64), ROWS, key));
    }
    assert_eq!(table.bytes() - empty, held);
    table.unlock_all(A, keys.iter().map(|key| (ROWS, &key[..])));
    let kept = table.bytes() - empty;
    assert!(kept <= 4 * (SHARD_BUCKETS_KEPT * 49 + 64), "{kept}");
    assert!(table.shards.iter().all(|shard| shard.lock().heap_bytes == 0));
}

/// Returns `true` if waiting for `key` would lead `owner` back to itself in the model's graph of waits.
fn closes_cycle(model: &BTreeMap<usize, Vec<TransactionId>>, owner: TransactionId, key: usize) -> bool {
    let mut holder = model[&key][0];
    loop {
        if holder == owner {
            return true;
        }
        match model.values().find(|queue| queue[1..].contains(&holder)) {
            Some(queue) => holder = queue[0],
            None => return false,
        }
    }
}

/// Any sequence of polls, cancellations and releases agrees with a model in which a lock is a list whose first element
/// is the owner.
#[test]
fn the_table_behaves_as_lists() {
    let mut state = 1u64;
    let mut below = |end: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % end
    };
    let (mut deadlocks, mut hand_overs) = (0, 0);
    for _ in 0..200 {
        let table = table();
        let mut model: BTreeMap<usize, Vec<TransactionId>> = BTreeMap::new();
        let mut unaware: Vec<(usize, TransactionId)> = Vec::new();
        for _ in 0..300 {
            let (key, owner) = (below(6), TransactionId(below(6) as u64));
            let name = [b'r', key as u8];
            let waits_for = model.iter().find(|(_, queue)| queue[1..].contains(&owner)).map(|(key, _)| *key);
            let owned = model.get(&key).is_some_and(|queue| queue[0] == owner);
            match below(3) {
                _ if waits_for.is_some_and(|waits_for| waits_for != key) => {}
                0 if owned => {
                    unaware.retain(|one| *one != (key, owner));
                    table.unlock(owner, ROWS, &name);
                    let queue = model.get_mut(&key).unwrap();
                    queue.remove(0);
                    if queue.is_empty() {
                        model.remove(&key);
                    } else {
                        hand_overs += 1;
                        unaware.push((key, queue[0]));
                    }
                }
                1 => {
                    let granted = unaware.contains(&(key, owner));
                    assert_eq!(table.cancel(owner, ROWS, &name), granted);
                    unaware.retain(|one| *one != (key, owner));
                    if waits_for == Some(key) {
                        model.get_mut(&key).unwrap().retain(|waiter| *waiter != owner);
                    }
                }
                _ => {
                    let expected = match model.get(&key) {
                        None => ACQUIRED,
                        Some(_) if unaware.contains(&(key, owner)) => ACQUIRED,
                        Some(_) if owned => Ready(Ok(Granted::AlreadyHeld)),
                        Some(_) if waits_for == Some(key) => Pending,
                        Some(_) if closes_cycle(&model, owner, key) => DEADLOCK,
                        Some(_) => Pending,
                    };
                    assert_eq!(poll(&table, owner, &name), expected);
                    deadlocks += usize::from(expected == DEADLOCK);
                    unaware.retain(|one| *one != (key, owner));
                    let queue = model.entry(key).or_default();
                    if expected != DEADLOCK && !queue.contains(&owner) {
                        queue.push(owner);
                    }
                }
            }
            let graph = table.graph.lock();
            assert_eq!(graph.awaited.len(), model.values().map(|queue| queue.len() - 1).sum::<usize>());
            assert_eq!(graph.owners.len(), model.values().filter(|queue| queue.len() > 1).count());
        }
    }
    assert!(deadlocks > 100 && hand_overs > 100, "{deadlocks} deadlocks, {hand_overs} hand-overs");
}

/// Many threads increment a few counters under row locks. No increment is lost, deadlocks are found and resolved, and
/// no wake-up is lost: a lost one would end in a timeout. Half of the threads wait as futures do.
#[test]
fn threads_exclude_each_other() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 2000;
    let table = LockTable::new(2, 1);
    let start = std::time::Instant::now();
    let clock = || start.elapsed();
    // Counters are read and written in two steps, so only the lock prevents lost increments.
    let rows: Vec<AtomicU64> = (0..5).map(|_| AtomicU64::new(0)).collect();
    let counted = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, rows, counted) = (&table, &rows, &counted);
            scope.spawn(move || {
                let mut state = thread + 1;
                for round in 0..ROUNDS {
                    let owner = TransactionId(thread * ROUNDS + round);
                    let mut held: Vec<[u8; 1]> = Vec::new();
                    for _ in 0..3 {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let key = [(state >> 33) as u8 % 5];
                        let result = if thread % 2 == 0 {
                            table.lock(owner, ROWS, &key, clock() + Duration::from_secs(60), &clock)
                        } else {
                            block_on(table.acquire(owner, ROWS, &key))
                        };
                        match result {
                            Ok(Granted::Acquired) => held.push(key),
                            Ok(Granted::AlreadyHeld) => assert!(held.contains(&key)),
                            Err(LockError::Deadlock) => break,
                            Err(LockError::Timeout) => panic!("a wake-up was lost"),
                        }
                        let row = &rows[usize::from(key[0])];
                        let before = row.load(Ordering::Relaxed);
                        if state >> 62 == 0 {
                            thread::yield_now();
                        }
                        row.store(before + 1, Ordering::Relaxed);
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    table.unlock_all(owner, held.iter().map(|key| (ROWS, &key[..])));
                }
            });
        }
    });
    let sum: u64 = rows.iter().map(|row| row.load(Ordering::Relaxed)).sum();
    assert_eq!(sum, counted.load(Ordering::Relaxed));
    assert!(sum >= THREADS * ROUNDS);
    assert_eq!(table.graph.lock().awaited.len(), 0);
    assert!(table.shards.iter().all(|shard| shard.lock().locks.is_empty() && shard.lock().heap_bytes == 0));
}

/// Runs a future on this thread. Panics if it is not woken for a minute.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(crate::sync::current())));
    let start = std::time::Instant::now();
    loop {
        if let Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park_timeout(Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(60), "a wake-up was lost");
    }
}
