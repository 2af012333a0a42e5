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

impl LockTable {
    /// Acquires the exclusive lock of a row unless another transaction holds a lock of the row.
    fn try_lock(&self, owner: TransactionId, keyspace: KeyspaceId, key: &[u8]) -> Result<Granted, HeldBy> {
        self.try_lock_at(self.lock_hash(keyspace, key), owner, keyspace, key)
    }
}

fn exclusive(owner: TransactionId, key: &[u8]) -> LockRequest<'_> {
    LockRequest { owner, keyspace: ROWS, key, mode: LockMode::Exclusive }
}

fn shared(owner: TransactionId, key: &[u8]) -> LockRequest<'_> {
    LockRequest { mode: LockMode::Shared, ..exclusive(owner, key) }
}

fn poll_request(table: &LockTable, request: &LockRequest<'_>, waker: &Waker) -> Poll<Result<Granted, LockError>> {
    table.poll_lock(request, Duration::ZERO, waker)
}

/// Requests an exclusive lock, without a waker.
fn poll(table: &LockTable, owner: TransactionId, key: &[u8]) -> Poll<Result<Granted, LockError>> {
    poll_request(table, &exclusive(owner, key), Waker::noop())
}

/// Requests a shared lock, without a waker.
fn poll_shared(table: &LockTable, owner: TransactionId, key: &[u8]) -> Poll<Result<Granted, LockError>> {
    poll_request(table, &shared(owner, key), Waker::noop())
}

/// Blocks until the exclusive lock is granted or the clock has reached the deadline.
fn lock(
    table: &LockTable,
    owner: TransactionId,
    key: &[u8],
    deadline: Duration,
    clock: &dyn Fn() -> Duration,
) -> Result<Granted, LockError> {
    let waker = Waker::from(Arc::new(Unpark(crate::sync::current())));
    let remaining = || match deadline.checked_sub(clock()) {
        Some(left) if !left.is_zero() => Ok(left),
        _ => Err(LockError::Timeout),
    };
    table.lock_blocking(&exclusive(owner, key), Duration::ZERO, &waker, &remaining)
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

/// A lock excludes other transactions from its row until it is released. The same key in a different keyspace is a
/// different row.
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

/// Releasing the lock of another transaction is a bug in the caller and panics.
#[test]
#[should_panic(expected = "a lock is released by its owner")]
fn releasing_the_lock_of_another_panics() {
    let table = table();
    table.try_lock(A, ROWS, b"key").unwrap();
    table.unlock(B, ROWS, b"key");
}

/// Waiters acquire the lock in order of arrival, and each is woken once.
#[test]
fn waiters_are_served_in_order() {
    let table = table();
    let (wakes_b, waker_b) = count_wakes();
    let (wakes_c, waker_c) = count_wakes();
    assert_eq!(poll(&table, A, b"key"), ACQUIRED);
    assert_eq!(poll_request(&table, &exclusive(B, b"key"), &waker_b), Pending);
    assert_eq!(poll_request(&table, &exclusive(C, b"key"), &waker_c), Pending);
    assert_eq!(poll_request(&table, &exclusive(B, b"key"), &waker_b), Pending);
    table.unlock(A, ROWS, b"key");
    assert_eq!((wakes_b.0.load(Ordering::SeqCst), wakes_c.0.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(table.try_lock(A, ROWS, b"key"), Err(HeldBy(B)));
    assert_eq!(poll_request(&table, &exclusive(C, b"key"), &waker_c), Pending);
    assert_eq!(poll(&table, A, b"key"), Pending);
    assert_eq!(poll(&table, B, b"key"), ACQUIRED);
    assert_eq!(poll(&table, B, b"key"), Ready(Ok(Granted::AlreadyHeld)));
    table.unlock(B, ROWS, b"key");
    assert_eq!((wakes_b.0.load(Ordering::SeqCst), wakes_c.0.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(poll(&table, C, b"key"), ACQUIRED);
    table.unlock(C, ROWS, b"key");
    assert_eq!(poll(&table, A, b"key"), ACQUIRED);
}

/// If two transactions wait for each other, the second one to wait fails with the error. It keeps its locks, and can
/// lock the row once the first one has ended.
#[test]
fn a_deadlock_of_two_is_found() {
    let table = table();
    assert_eq!(poll(&table, A, b"x"), ACQUIRED);
    assert_eq!(poll(&table, B, b"y"), ACQUIRED);
    assert_eq!(poll(&table, A, b"y"), Pending);
    assert_eq!(poll(&table, B, b"x"), DEADLOCK);
    assert_eq!(lock(&table, B, b"x", Duration::MAX, &|| Duration::ZERO), Err(LockError::Deadlock));
    assert_eq!(table.try_lock(C, ROWS, b"y"), Err(HeldBy(B)));
    table.unlock(B, ROWS, b"y");
    assert_eq!(poll(&table, A, b"y"), ACQUIRED);
    assert_eq!(poll(&table, B, b"x"), Pending);
}

/// A cycle of three is detected, no matter which transaction closes it. A chain of three is not mistaken for a cycle.
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

/// The waiters at the end of a queue wait for the current owner, even after the lock was handed over.
#[test]
fn a_deadlock_through_a_handed_over_lock_is_found() {
    let table = table();
    assert_eq!(poll(&table, A, b"x"), ACQUIRED);
    assert_eq!(poll(&table, C, b"y"), ACQUIRED);
    assert_eq!(poll(&table, B, b"x"), Pending);
    assert_eq!(poll(&table, C, b"x"), Pending);
    // While A holds x, C waits for A, so A must not wait for C. Once B holds x, C waits for B, so B must not wait for
    // C.
    assert_eq!(poll(&table, A, b"y"), DEADLOCK);
    table.unlock(A, ROWS, b"x");
    assert_eq!(poll(&table, A, b"y"), Pending);
    assert!(!table.cancel(A, ROWS, b"y"));
    assert_eq!(poll(&table, B, b"y"), DEADLOCK);
    table.unlock(B, ROWS, b"x");
    assert_eq!(poll(&table, B, b"y"), Pending);
    assert_eq!(poll(&table, C, b"x"), ACQUIRED);
}

/// A blocked thread gives up at the deadline, leaves its place in the queue to the next waiter, and can then wait a
/// second time.
#[test]
fn waiting_ends_at_the_deadline() {
    let table = table();
    let calls = AtomicU64::new(0);
    let clock = || Duration::from_micros(calls.fetch_add(1, Ordering::SeqCst));
    let deadline = Duration::from_micros(20);
    assert_eq!(poll(&table, A, b"key"), ACQUIRED);
    assert_eq!(lock(&table, B, b"key", deadline, &clock), Err(LockError::Timeout));
    assert!(calls.load(Ordering::SeqCst) >= 20);
    assert_eq!(poll(&table, C, b"key"), Pending);
    assert_eq!(lock(&table, B, b"key", Duration::ZERO, &clock), Err(LockError::Timeout));
    table.unlock(A, ROWS, b"key");
    assert_eq!(poll(&table, C, b"key"), ACQUIRED);
}

/// A lock that is handed over just as the waiter gives up is not lost: that waiter owns it.
#[test]
fn a_lock_got_at_the_deadline_counts() {
    let table = table();
    assert_eq!(poll(&table, A, b"key"), ACQUIRED);
    // The waiter reads the clock between polling and giving up.
    let clock = || {
        table.unlock(A, ROWS, b"key");
        Duration::MAX
    };
    assert_eq!(lock(&table, B, b"key", Duration::ZERO, &clock), Ok(Granted::Acquired));
    assert_eq!(table.try_lock(A, ROWS, b"key"), Err(HeldBy(B)));
    assert!(!table.cancel(B, ROWS, b"key"));
}

/// A dropped future leaves the queue. If it has already been handed the lock, it passes the lock on.
#[test]
fn a_dropped_future_leaves_nothing_behind() {
    let table = table();
    let (wakes, waker) = count_wakes();
    let mut context = Context::from_waker(&waker);
    assert_eq!(poll(&table, A, b"key"), ACQUIRED);
    let mut first = Box::pin(table.acquire(exclusive(B, b"key"), Duration::ZERO));
    let mut second = Box::pin(table.acquire(exclusive(C, b"key"), Duration::ZERO));
    let mut third = Box::pin(table.acquire(exclusive(D, b"key"), Duration::ZERO));
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
    drop(table.acquire(exclusive(A, b"key"), Duration::ZERO));
    assert_eq!(table.try_lock(B, ROWS, b"key"), Ok(Granted::Acquired));
}

/// The table accounts for its memory while locks are held and awaited, including long keys, and releases it afterwards.
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

/// Returns `true` if a wait of `owner` for `key` would close a cycle in the model's graph of waits.
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

/// Any sequence of polls, cancellations and releases agrees with a model. In the model, a lock is a list, and its first
/// element is the owner.
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
            let waiting = model.values().map(|queue| queue.len() - 1).sum::<usize>();
            let awaited = model.values().filter(|queue| queue.len() > 1).count();
            assert_eq!(table.graph.lock().counts(), (waiting, awaited));
        }
    }
    assert!(deadlocks > 100 && hand_overs > 100, "{deadlocks} deadlocks, {hand_overs} hand-overs");
}

/// Many threads increment a few counters under row locks. No increment is lost, deadlocks are detected and resolved,
/// and no wake-up is lost: a lost wake-up would end in a timeout. Half of the threads wait like futures.
#[test]
fn threads_exclude_each_other() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 2000;
    let table = LockTable::new(2, 1);
    let start = std::time::Instant::now();
    let clock = || start.elapsed();
    // The counters are read and written in two steps, so increments would be lost without the locks.
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
                            lock(table, owner, &key, clock() + Duration::from_secs(60), &clock)
                        } else {
                            block_on(table.acquire(exclusive(owner, &key), Duration::ZERO))
                        };
                        match result {
                            Ok(Granted::Acquired) => held.push(key),
                            Ok(Granted::AlreadyHeld) => assert!(held.contains(&key)),
                            Err(LockError::Deadlock) => break,
                            Err(LockError::Timeout | LockError::Interrupted) => panic!("a wake-up was lost"),
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
    assert_eq!(table.graph.lock().counts(), (0, 0));
    assert!(table.shards.iter().all(|shard| shard.lock().locks.is_empty() && shard.lock().heap_bytes == 0));
}

/// Runs a future on this thread. Panics if the future is not woken within a minute.
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

// ── shared locks ───────────────────────────────────────────────────────────────────────────────────────────────────

/// Any number of transactions share a lock, and no holder excludes itself. The exclusive lock waits for all of them.
#[test]
fn shared_locks_are_shared() {
    let table = table();
    let empty = table.bytes();
    for owner in [A, B, C] {
        assert_eq!(poll_shared(&table, owner, b"key"), ACQUIRED);
        assert_eq!(poll_shared(&table, owner, b"key"), Ready(Ok(Granted::AlreadyHeld)));
    }
    let (wakes, waker) = count_wakes();
    assert_eq!(poll_request(&table, &exclusive(D, b"key"), &waker), Pending);
    for owner in [B, A] {
        table.unlock(owner, ROWS, b"key");
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    }
    table.unlock(C, ROWS, b"key");
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    assert_eq!(poll(&table, D, b"key"), ACQUIRED);
    table.unlock(D, ROWS, b"key");
    assert!(table.shards.iter().all(|shard| shard.lock().heap_bytes == 0));
    assert!(table.bytes() <= empty + 4 * 64 * 49);
}

/// A shared request waits behind an exclusive one. After the exclusive lock has been granted and released, all shared
/// requests at the front are granted together. If the exclusive request gives up instead, they are granted immediately.
#[test]
fn shared_requests_do_not_overtake() {
    for gives_up in [false, true] {
        let table = table();
        let [(wakes_c, waker_c), (wakes_d, waker_d)] = [count_wakes(), count_wakes()];
        assert_eq!(poll_shared(&table, A, b"key"), ACQUIRED);
        assert_eq!(poll(&table, B, b"key"), Pending);
        assert_eq!(poll_request(&table, &shared(C, b"key"), &waker_c), Pending);
        assert_eq!(poll_request(&table, &shared(D, b"key"), &waker_d), Pending);
        if gives_up {
            assert!(!table.cancel(B, ROWS, b"key"));
        } else {
            table.unlock(A, ROWS, b"key");
            assert_eq!(poll(&table, B, b"key"), ACQUIRED);
            assert_eq!(wakes_c.0.load(Ordering::SeqCst), 0);
            table.unlock(B, ROWS, b"key");
        }
        assert_eq!((wakes_c.0.load(Ordering::SeqCst), wakes_d.0.load(Ordering::SeqCst)), (1, 1));
        assert_eq!(poll_shared(&table, D, b"key"), ACQUIRED);
        // C gives up without knowing that it has been handed the lock.
        assert!(table.cancel(C, ROWS, b"key"));
        table.unlock(C, ROWS, b"key");
        table.unlock(D, ROWS, b"key");
        if gives_up {
            table.unlock(A, ROWS, b"key");
        }
        assert!(table.all().is_empty());
        assert_eq!(table.graph.lock().counts(), (0, 0));
    }
}

/// A holder of a shared lock acquires the exclusive lock immediately if it is the only holder. Otherwise it waits for
/// the other holders, ahead of all other waiters. If it gives up, it keeps its shared lock.
#[test]
fn a_shared_lock_becomes_exclusive() {
    let table = table();
    assert_eq!(poll_shared(&table, A, b"key"), ACQUIRED);
    assert_eq!(poll(&table, B, b"key"), Pending);
    assert_eq!(poll(&table, A, b"key"), Ready(Ok(Granted::AlreadyHeld)));
    assert_eq!(table.all()[0].mode, LockMode::Exclusive);
    table.unlock(A, ROWS, b"key");
    assert_eq!(poll(&table, B, b"key"), ACQUIRED);
    table.unlock(B, ROWS, b"key");

    assert_eq!(poll_shared(&table, A, b"key"), ACQUIRED);
    assert_eq!(poll_shared(&table, B, b"key"), ACQUIRED);
    assert_eq!(poll(&table, C, b"key"), Pending);
    for gives_up in [true, false] {
        let mut future = Box::pin(table.acquire(exclusive(B, b"key"), Duration::ZERO));
        assert_eq!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), Pending);
        assert_eq!(table.all()[0].waiters.iter().map(|waiter| waiter.0).collect::<Vec<_>>(), [B, C]);
        if gives_up {
            drop(future);
            assert_eq!(poll_shared(&table, B, b"key"), Ready(Ok(Granted::AlreadyHeld)));
        } else {
            table.unlock(A, ROWS, b"key");
            assert_eq!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), Ready(Ok(Granted::AlreadyHeld)));
        }
    }
    assert_eq!(poll_shared(&table, A, b"key"), Pending);
    table.unlock(B, ROWS, b"key");
    assert_eq!(poll(&table, C, b"key"), ACQUIRED);
}

/// If two holders of a shared lock both request the exclusive lock, the second request fails. A cycle through any
/// holder of a shared lock is detected.
#[test]
fn deadlocks_through_shared_locks_are_found() {
    let table = table();
    assert_eq!(poll_shared(&table, A, b"x"), ACQUIRED);
    assert_eq!(poll_shared(&table, B, b"x"), ACQUIRED);
    assert_eq!(poll(&table, A, b"x"), Pending);
    assert_eq!(poll(&table, B, b"x"), DEADLOCK);
    assert!(!table.cancel(A, ROWS, b"x"));
    assert_eq!(poll(&table, C, b"y"), ACQUIRED);
    assert_eq!(poll(&table, C, b"x"), Pending);
    for holder in [A, B] {
        assert_eq!(poll(&table, holder, b"y"), DEADLOCK);
        assert_eq!(poll_shared(&table, holder, b"y"), DEADLOCK);
    }
    assert_eq!(poll_shared(&table, D, b"x"), Pending);
    assert_eq!(poll(&table, A, b"z"), ACQUIRED);
}

/// Any sequence of requests, cancellations and releases of both kinds agrees with a model that has a list of holders
/// and a list of waiters for each row. The comparison would reveal two holders of an exclusive lock, an error without a
/// cycle, and an undetected cycle.
#[test]
fn shared_and_exclusive_locks_behave_as_lists() {
    #[derive(Default)]
    struct Row {
        holders: Vec<TransactionId>,
        is_exclusive: bool,
        waiters: Vec<(TransactionId, LockMode)>,
    }
    impl Row {
        /// Grants the requests at the front that do not have to wait, except upgrades, and returns their owners.
        fn serve(&mut self) -> Vec<TransactionId> {
            let mut granted = Vec::new();
            while let Some(&(owner, mode)) = self.waiters.first() {
                let is_upgrade = self.holders.contains(&owner);
                let is_free = match mode {
                    _ if self.holders.is_empty() => true,
                    LockMode::Exclusive => self.holders == [owner],
                    LockMode::Shared => !self.is_exclusive,
                };
                if !is_free {
                    break;
                }
                self.waiters.remove(0);
                self.is_exclusive = mode == LockMode::Exclusive;
                if !is_upgrade {
                    self.holders.push(owner);
                    granted.push(owner);
                }
            }
            granted
        }
    }
    fn leads(rows: &[Row], from: &[TransactionId], to: TransactionId) -> bool {
        let mut seen: Vec<TransactionId> = Vec::new();
        let mut next: Vec<TransactionId> = from.iter().copied().filter(|one| *one != to).collect();
        while let Some(one) = next.pop() {
            if one == to {
                return true;
            }
            if !seen.contains(&one) {
                seen.push(one);
                let waited = rows.iter().filter(|row| row.waiters.iter().any(|(waiter, _)| *waiter == one));
                // The transaction also waits for the transactions ahead of it in the queue.
                next.extend(waited.flat_map(|row| {
                    let position = row.waiters.iter().position(|(waiter, _)| *waiter == one).unwrap();
                    row.holders.iter().copied().chain(row.waiters[..position].iter().map(|(waiter, _)| *waiter))
                }));
            }
        }
        false
    }

    let mut state = 7u64;
    let mut below = |end: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % end
    };
    let (mut deadlocks, mut upgrades, mut together) = (0, 0, 0);
    for _ in 0..400 {
        let table = table();
        let mut rows: Vec<Row> = (0..4).map(|_| Row::default()).collect();
        let mut unaware: Vec<(usize, TransactionId)> = Vec::new();
        for _ in 0..300 {
            let (number, owner) = (below(4), TransactionId(below(6) as u64));
            let name = [b'r', number as u8];
            let mode = if below(2) == 0 { LockMode::Shared } else { LockMode::Exclusive };
            let awaited = rows.iter().position(|row| row.waiters.iter().any(|(waiter, _)| *waiter == owner));
            let is_holder = rows[number].holders.contains(&owner);
            if awaited.is_some_and(|awaited| awaited != number) {
                continue;
            }
            match below(3) {
                0 if is_holder && awaited.is_none() => {
                    table.unlock(owner, ROWS, &name);
                    unaware.retain(|one| *one != (number, owner));
                    rows[number].holders.retain(|holder| *holder != owner);
                    let granted = rows[number].serve();
                    together += usize::from(granted.len() > 1);
                    unaware.extend(granted.into_iter().map(|owner| (number, owner)));
                }
                1 => {
                    let is_unaware = unaware.contains(&(number, owner));
                    assert_eq!(table.cancel(owner, ROWS, &name), is_unaware);
                    unaware.retain(|one| *one != (number, owner));
                    if awaited.is_some() {
                        rows[number].waiters.retain(|(waiter, _)| *waiter != owner);
                        let granted = rows[number].serve();
                        unaware.extend(granted.into_iter().map(|owner| (number, owner)));
                    }
                }
                _ => {
                    let waits_as = rows[number].waiters.iter().find(|(waiter, _)| *waiter == owner).map(|one| one.1);
                    let mode = waits_as.unwrap_or(mode);
                    let request = LockRequest { mode, ..exclusive(owner, &name) };
                    let expected = if unaware.contains(&(number, owner)) {
                        // A call that has been handed a lock repeats its request.
                        let mode = if rows[number].is_exclusive { LockMode::Exclusive } else { LockMode::Shared };
                        let request = LockRequest { mode, ..request };
                        assert_eq!(poll_request(&table, &request, Waker::noop()), ACQUIRED);
                        unaware.retain(|one| *one != (number, owner));
                        continue;
                    } else if waits_as.is_some() {
                        Pending
                    } else if is_holder && (mode == LockMode::Shared || rows[number].is_exclusive) {
                        Ready(Ok(Granted::AlreadyHeld))
                    } else if is_holder && rows[number].holders.len() == 1 {
                        upgrades += 1;
                        rows[number].is_exclusive = true;
                        Ready(Ok(Granted::AlreadyHeld))
                    } else if !is_holder
                        && rows[number].waiters.is_empty()
                        && (rows[number].holders.is_empty() || mode == LockMode::Shared && !rows[number].is_exclusive)
                    {
                        rows[number].is_exclusive = mode == LockMode::Exclusive;
                        rows[number].holders.push(owner);
                        ACQUIRED
                    } else {
                        let mut awaits = rows[number].holders.clone();
                        if !is_holder {
                            awaits.extend(rows[number].waiters.iter().map(|(waiter, _)| *waiter));
                        }
                        if leads(&rows, &awaits, owner) {
                            deadlocks += 1;
                            DEADLOCK
                        } else {
                            let position = if is_holder { 0 } else { rows[number].waiters.len() };
                            rows[number].waiters.insert(position, (owner, mode));
                            Pending
                        }
                    };
                    assert_eq!(poll_request(&table, &request, Waker::noop()), expected, "{mode:?}");
                }
            }
            let mut all = table.all();
            all.sort_by_key(|row| row.key.clone());
            let held = rows.iter().filter(|row| !row.holders.is_empty());
            assert!(all.len() == held.clone().count());
            for (state, row) in all.iter_mut().zip(held) {
                state.holders.sort();
                let mut holders = row.holders.clone();
                holders.sort();
                assert_eq!((&state.holders, state.mode == LockMode::Exclusive), (&holders, row.is_exclusive));
                let waiters: Vec<_> = state.waiters.iter().map(|(owner, mode, _)| (*owner, *mode)).collect();
                assert_eq!(waiters, row.waiters);
            }
        }
    }
    let counts = (deadlocks, upgrades, together);
    assert!(deadlocks > 1000 && upgrades > 200 && together > 100, "{counts:?}");
}
