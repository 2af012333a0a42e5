//! Row locks. A row lock is the right to read or write a row until the transaction ends.
//!
//! A lock is either shared, so that any number of transactions may hold it, or exclusive. It exists only while a
//! transaction holds it. The table has an entry for each row that a running transaction has locked or is waiting to
//! lock. Entries are found by keyspace and key. A transaction that finds a row locked waits in the row's queue, as a
//! blocked thread or as a future. The table stores a waker for each of them.
//!
//! ```text
//!              claim                    claim by another
//!   (no entry) ------> held, no queue ------------------> held, queue
//!       ^                    |  ^                            |   |
//!       +------ release -----+  +--- last waiter is handed --+   +-- release: the first waiters hold the lock
//!                                    the lock or gives up            (handed over), and learn of it when they poll
//! ```
//!
//! # Invariants
//! 1. An entry has one holder of an exclusive lock, or at least one holder of a shared lock. It has a queue only while
//!    there are waiters.
//! 2. When a lock is released, it immediately belongs to the first waiter in its queue, or to all shared requests at
//!    the front. So no transaction overtakes another, and each release wakes only the waiters that acquire the lock. A
//!    waiter that gives up at that moment finds that it holds the lock. Shared requests queue behind an exclusive
//!    request, so the exclusive request does not starve.
//! 3. A holder of a shared lock that requests the exclusive one overtakes the rest of the queue: it waits at the front
//!    for the other holders to release the lock.
//! 4. A transaction waits for one lock at a time. If a future was leaked, [`LockTable::abandon`] gives up its place in
//!    the queue before the transaction waits for a different lock.
//! 5. The [graph of waits](WaitGraph), from each transaction to the holders of the lock that it waits for, has no
//!    cycle: a transaction that would close a cycle receives [`LockError::Deadlock`] instead of a place in the queue.
//!    Only a transaction that begins to wait can close a cycle. After a lock has been handed over, the remaining
//!    waiters wait for its new holders, which are not waiting themselves. A lock that is [restored](LockTable::restore)
//!    may get a holder that waits, so its waiters leave the queue and request it again.
//! 6. No waker is called or dropped while a mutex is held, because its task may be waiting for that mutex.
//!
//! Lock order: a shard, then the graph. The graph is locked only if there are waiters.

use crate::sync::{CachePadded, Thread};
use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::sync::{Mutex, MutexGuard, ThreadTag, thread_tag};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

mod graph;

use graph::WaitGraph;

use super::TransactionId;
use crate::format::{KeyspaceId, checksum};
use crate::io::Process;
use crate::memory::heap_bytes;
use crate::space::runs::RemovedKeys;

/// The kind of a row lock: shared or exclusive.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// use drumlin::LockMode;
///
/// # let k = db.keyspace("k")?;
/// let (mut first, mut second) = (db.begin()?, db.begin()?);
/// assert!(first.try_lock_row(&k, "a", LockMode::Shared)?);
/// assert!(second.try_lock_row(&k, "a", LockMode::Shared)?);
/// assert!(!second.try_lock_row(&k, "a", LockMode::Exclusive)?);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockMode {
    /// Several transactions may hold the lock at the same time. While any of them holds it, no other transaction can
    /// change the row.
    Shared,
    /// Only one transaction holds the lock, and it may change the row.
    Exclusive,
}

/// The way in which a lock was acquired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Granted {
    /// This call acquired the lock. The caller has to release it.
    Acquired,
    /// The caller already held the lock.
    AlreadyHeld,
}

/// The transaction that holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeldBy(pub(crate) TransactionId);

/// The hash of a row, which determines its shard and its bucket in the lock table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockHash(u64);

/// The reason why a wait for a lock failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockError {
    Timeout,
    Deadlock,
    /// Another thread ended the wait.
    Interrupted,
}

/// A request for the lock of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockRequest<'k> {
    pub(crate) owner: TransactionId,
    pub(crate) keyspace: KeyspaceId,
    pub(crate) key: &'k [u8],
    pub(crate) mode: LockMode,
}

/// A locked row, with the transactions that hold its lock and the transactions that wait for it.
pub(crate) struct LockedRowState {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) key: Box<[u8]>,
    pub(crate) mode: LockMode,
    pub(crate) holders: Vec<TransactionId>,
    /// The waiters in the order in which they will acquire the lock, each with the time at which it began to wait.
    pub(crate) waiters: Vec<(TransactionId, LockMode, Duration)>,
}

/// A row's key. A short key is stored in the entry. Most keys are short.
enum LockKey {
    Short { bytes: [u8; LockKey::SHORT_BYTES_MAX], length: u8 },
    Long(Box<[u8]>),
}

impl LockKey {
    /// The maximum size of a short key. Fixed by the size of the other variant: with tag and length, a short key takes
    /// the same 24 bytes as a boxed key with its tag.
    const SHORT_BYTES_MAX: usize = 22;

    fn new(key: &[u8]) -> LockKey {
        if key.len() <= LockKey::SHORT_BYTES_MAX {
            let mut bytes = [0; LockKey::SHORT_BYTES_MAX];
            bytes[..key.len()].copy_from_slice(key);
            LockKey::Short { bytes, length: key.len() as u8 }
        } else {
            LockKey::Long(key.into())
        }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            LockKey::Short { bytes, length } => &bytes[..usize::from(*length)],
            LockKey::Long(bytes) => bytes,
        }
    }

    /// Returns the number of bytes that the key occupies outside of the entry.
    fn heap_bytes(&self) -> usize {
        LockKey::heap_bytes_of(self.as_bytes())
    }

    fn heap_bytes_of(key: &[u8]) -> usize {
        if key.len() <= LockKey::SHORT_BYTES_MAX { 0 } else { heap_bytes(key.len()) }
    }
}

struct Lock {
    /// The holder of the lock. If the lock is shared, one of its holders.
    owner: TransactionId,
    /// `None` if there are no other holders and no waiters.
    others: Option<Box<Others>>,
    key: LockKey,
    keyspace: KeyspaceId,
    /// The thread that acquired the lock for `owner`.
    thread: ThreadTag,
    mode: LockMode,
    /// `true` if the lock has been handed to `owner`, but `owner` has not found out yet.
    handed_over: bool,
}

const _: () = assert!(mem::size_of::<Lock>() <= 48);

/// The holders of a shared lock except the first, and the waiters.
#[derive(Default)]
struct Others {
    sharers: Vec<Sharer>,
    /// The lock's id in the graph while it has waiters; otherwise 0.
    number: u64,
    /// The waiters in the order in which they will acquire the lock.
    waiters: VecDeque<Waiter>,
}

/// A holder of a shared lock.
struct Sharer {
    owner: TransactionId,
    thread: ThreadTag,
    handed_over: bool,
}

struct Waiter {
    owner: TransactionId,
    waker: Waker,
    since: Duration,
    mode: LockMode,
}

/// The memory of a waiter: its slot in the queue and its entries in the graph. Each of these collections is at least
/// half full. The executor owns the waker.
const WAITER_BYTES: usize = 2 * (mem::size_of::<Waiter>() + 2 * mem::size_of::<(u64, u64)>());

/// The memory that a holder of a shared lock needs in addition to an entry: its slots in the list of sharers and in the
/// graph.
pub(crate) const SHARER_BYTES: usize =
    mem::size_of::<Others>() + 2 * (mem::size_of::<Sharer>() + mem::size_of::<(u64, u64)>());

/// The memory that a transaction needs in order to wait. It waits for one lock at a time.
pub(crate) const WAITING_BYTES: usize = WAITER_BYTES + mem::size_of::<Others>();

#[derive(Default)]
struct Shard {
    locks: HashTable<Lock>,
    /// The bytes of long keys, additional holders and waiters.
    heap_bytes: usize,
}

/// A shard's table shrinks if fewer than an eighth of its buckets are in use, but not below this number of buckets (3
/// KiB).
const SHARD_BUCKETS_KEPT: usize = 64;

/// Returns the memory of a lock: its entry in a table whose capacity has just doubled, and its key if the key is long.
pub(crate) fn lock_bytes(key: &[u8]) -> usize {
    2 * (mem::size_of::<Lock>() + 1) + LockKey::heap_bytes_of(key)
}

/// The locks of a database.
pub(crate) struct LockTable {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    graph: Mutex<WaitGraph>,
    /// The seed of the hashes. It is random, so keys can't be chosen to collide.
    seed: u64,
    /// The process that created the table. A fork of it releases no locks: a shard may have been locked by a thread
    /// that does not exist in the fork.
    process: Process,
}

impl LockTable {
    /// Creates a table with `shards_count` shards, a power of two. If there are several times as many shards as
    /// threads, threads rarely contend.
    pub(crate) fn new(shards_count: usize, seed: u64) -> LockTable {
        assert!(shards_count.is_power_of_two());
        let shards = (0..shards_count).map(|_| CachePadded::default()).collect();
        LockTable { shards, graph: Mutex::default(), seed, process: Process::here() }
    }

    /// Returns `true` in the process that created the table, and `false` in a fork of it.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_here()
    }

    #[inline]
    fn hash(&self, keyspace: KeyspaceId, key: &[u8]) -> u64 {
        hash(self.seed, keyspace, key)
    }

    /// Chooses the shard from the middle bits of the hash. The table uses the low bits for the position and the highest
    /// seven bits for the tag.
    #[inline]
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        self.shards[(hash >> 40) as usize & (self.shards.len() - 1)].lock()
    }

    /// Returns the hash of a row in this table, for callers that need it more than once.
    #[inline]
    pub(crate) fn lock_hash(&self, keyspace: KeyspaceId, key: &[u8]) -> LockHash {
        LockHash(self.hash(keyspace, key))
    }

    /// Acquires the exclusive lock of a row whose hash is known, unless another transaction holds a lock of the row.
    #[inline]
    pub(crate) fn try_lock_at(
        &self,
        lock_hash: LockHash,
        owner: TransactionId,
        keyspace: KeyspaceId,
        key: &[u8],
    ) -> Result<Granted, HeldBy> {
        let LockHash(hash) = lock_hash;
        debug_assert_eq!(hash, self.hash(keyspace, key), "a row is locked by the hash of another");
        let request = LockRequest { owner, keyspace, key, mode: LockMode::Exclusive };
        self.shard(hash).claim(self.seed, hash, &request).map_err(|lock| HeldBy(lock.owner))
    }

    /// Acquires the lock of a row unless another transaction holds or awaits a conflicting lock.
    #[inline]
    pub(crate) fn try_request(&self, request: &LockRequest<'_>) -> Result<Granted, HeldBy> {
        let hash = self.hash(request.keyspace, request.key);
        self.shard(hash).claim(self.seed, hash, request).map_err(|lock| HeldBy(lock.owner))
    }

    /// Acquires the exclusive lock of a row for a transaction that does not wait for it. Without a `giver`, fails if a
    /// transaction holds a lock of the row. With a `giver`, replaces the giver's lock, and fails if others share it.
    /// The waiters leave the queue: they have to request the lock again, because waiting for its new holder may be a
    /// deadlock. Returns their wakers if this call acquired the lock.
    pub(crate) fn restore(
        &self,
        owner: TransactionId,
        giver: Option<TransactionId>,
        keyspace: KeyspaceId,
        key: &[u8],
    ) -> Option<Vec<Waker>> {
        let hash = self.hash(keyspace, key);
        let mut shard = self.shard(hash);
        let mut wakers = Vec::new();
        match (shard.find(hash, keyspace, key), giver) {
            (None, None) => {
                let request = LockRequest { owner, keyspace, key, mode: LockMode::Exclusive };
                let granted = shard.claim(self.seed, hash, &request).map_err(|lock| HeldBy(lock.owner));
                assert_eq!(granted, Ok(Granted::Acquired), "a lock is held that was not in the table");
            }
            (None, Some(_)) => panic!("a lock that is given away is held"),
            (Some(_), None) => return None,
            (Some(lock), Some(giver)) => {
                assert!(lock.holders().any(|holder| holder == giver), "a lock is given away by its holder");
                if lock.holders().nth(1).is_some() {
                    return None;
                }
                let before = lock.heap_bytes();
                if let Some(others) = lock.others.take() {
                    let mut graph = self.graph.lock();
                    for Waiter { owner, waker, .. } in others.waiters {
                        graph.end_wait(owner, others.number);
                        wakers.push(waker);
                    }
                    graph.remove_lock(others.number);
                }
                (lock.owner, lock.mode, lock.handed_over) = (owner, LockMode::Exclusive, false);
                let freed_bytes = before - lock.heap_bytes();
                shard.heap_bytes -= freed_bytes;
            }
        }
        let lock = shard.find(hash, keyspace, key).expect("just put");
        assert!(lock.owner == owner && lock.others.is_none(), "a lock is restored that others have");
        lock.thread = ThreadTag::NONE;
        Some(wakers)
    }

    /// Acquires the lock of a row, or a place in its queue. `now` is recorded as the time at which the wait began.
    ///
    /// When the table hands the lock to the caller, it calls the waker, and the caller's next poll returns the lock. A
    /// caller that no longer wants the lock calls [`cancel`](Self::cancel). [`acquire`](Self::acquire) does both.
    pub(crate) fn poll_lock(
        &self,
        request: &LockRequest<'_>,
        now: Duration,
        waker: &Waker,
    ) -> Poll<Result<Granted, LockError>> {
        let LockRequest { owner, keyspace, key, mode } = *request;
        let hash = self.hash(keyspace, key);
        let mut shard = self.shard(hash);
        let lock = match shard.claim(self.seed, hash, request) {
            Ok(granted) => return Poll::Ready(Ok(granted)),
            Err(lock) => lock,
        };
        let waiter = lock.waiters_mut().find(|waiter| waiter.owner == owner);
        let replaced = waiter.map(|waiter| (mem::replace(&mut waiter.waker, waker.clone()), waiter.mode));
        if let Some((before, waits_for)) = replaced {
            assert!(waits_for == mode, "a transaction waits for another lock of the row than it asks for");
            drop(shard);
            drop(before);
            return Poll::Pending;
        }

        let mut graph = self.graph.lock();
        if graph.leads(lock.holders(), owner) {
            crate::coverage::mark!("a deadlock between rows was found");
            return Poll::Ready(Err(LockError::Deadlock));
        }
        let is_upgrade = lock.holders().any(|holder| holder == owner);
        assert!(!is_upgrade || mode == LockMode::Exclusive && lock.mode == LockMode::Shared, "it waits for itself");
        let before = lock.heap_bytes();
        let others = lock.others.get_or_insert_default();
        if others.number == 0 {
            let sharers = others.sharers.iter().map(|sharer| sharer.owner);
            others.number = graph.add_lock(std::iter::once(lock.owner).chain(sharers));
        }
        let waiter = Waiter { owner, waker: waker.clone(), since: now, mode };
        match is_upgrade {
            true => others.waiters.push_front(waiter),
            false => others.waiters.push_back(waiter),
        }
        debug_assert!(others.number != 0, "a transaction waits for a lock that the graph of waits does not know");
        graph.begin_wait(owner, others.number);
        drop(graph);
        debug_assert!(
            lock.waiters().skip(1).all(|waiter| lock.holders().all(|holder| holder != waiter.owner)),
            "a holder of a shared lock waits behind others for the exclusive one"
        );
        let taken_bytes = lock.heap_bytes() - before;
        shard.heap_bytes += taken_bytes;
        Poll::Pending
    }

    /// Gives up waiting. Returns `true` if the caller has received the lock in the meantime and must release it.
    /// Returns `false` if that lock upgraded the caller's own shared lock, because the caller keeps the lock that it
    /// held before.
    pub(crate) fn cancel(&self, owner: TransactionId, keyspace: KeyspaceId, key: &[u8]) -> bool {
        let hash = self.hash(keyspace, key);
        let mut shard = self.shard(hash);
        let Some(lock) = shard.find(hash, keyspace, key) else { return false };
        let position = lock.waiters_mut().position(|waiter| waiter.owner == owner);
        let Some(position) = position else {
            return lock.notice(owner) == Some(Granted::Acquired);
        };
        let before = lock.heap_bytes();
        let others = lock.others.as_mut().expect("it has a waiter");
        let waiter = others.waiters.remove(position).expect("found a moment ago");
        let mut graph = self.graph.lock();
        graph.end_wait(owner, others.number);
        // Requests behind an exclusive request may now share the lock with its holders.
        let wakers = lock.serve(&mut graph);
        drop(graph);
        debug_assert!(lock.waiters().all(|waiter| waiter.owner != owner), "a transaction waits twice for a lock");
        let freed_bytes = before - lock.heap_bytes();
        shard.heap_bytes -= freed_bytes;
        drop(shard);
        drop(waiter);
        wakers.into_iter().for_each(Waker::wake);
        false
    }

    /// Cleans up after a call of `owner` whose future was leaked: it was neither dropped, nor polled after it had
    /// received its lock. Gives up its place in the queue, or releases the lock. `keeps` means that the transaction
    /// already held a lock of the row before the call; in that case, it keeps that lock.
    pub(crate) fn abandon(&self, owner: TransactionId, keyspace: KeyspaceId, key: &[u8], keeps: bool) {
        if (self.cancel(owner, keyspace, key) || self.is_held_by(owner, keyspace, key)) && !keeps {
            self.unlock(owner, keyspace, key);
        }
        debug_assert!(keeps || !self.is_held_by(owner, keyspace, key), "a leaked call keeps its lock");
    }

    /// Returns `true` if the current thread has locked the row, on behalf of any transaction.
    pub(crate) fn is_of_this_thread(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        let (hash, tag) = (self.hash(keyspace, key), thread_tag());
        let is_of = |lock: &mut Lock| {
            let mut sharers = lock.others.iter().flat_map(|others| &others.sharers);
            lock.thread == tag && !lock.handed_over || sharers.any(|sharer| sharer.thread == tag && !sharer.handed_over)
        };
        self.shard(hash).find(hash, keyspace, key).is_some_and(is_of)
    }

    pub(crate) fn is_held_by(&self, owner: TransactionId, keyspace: KeyspaceId, key: &[u8]) -> bool {
        self.holders(keyspace, key).contains(&owner)
    }

    /// Returns the mode in which the row is locked, or `None` if it is not locked.
    pub(crate) fn mode(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<LockMode> {
        let hash = self.hash(keyspace, key);
        self.shard(hash).find(hash, keyspace, key).map(|lock| lock.mode)
    }

    /// Returns the transactions that hold a lock of the row.
    pub(crate) fn holders(&self, keyspace: KeyspaceId, key: &[u8]) -> Vec<TransactionId> {
        let hash = self.hash(keyspace, key);
        self.shard(hash).find(hash, keyspace, key).map(|lock| lock.holders().collect()).unwrap_or_default()
    }

    /// Returns all locked rows. Each row is as of some moment during the call, not necessarily the same for all rows.
    /// O(locks).
    pub(crate) fn all(&self) -> Vec<LockedRowState> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().locks.iter().map(|lock| LockedRowState {
                keyspace: lock.keyspace,
                key: lock.key.as_bytes().into(),
                mode: lock.mode,
                holders: lock.holders().collect(),
                waiters: lock.waiters().map(|waiter| (waiter.owner, waiter.mode, waiter.since)).collect(),
            }));
        }
        all
    }

    /// Acquires the lock of a row. Blocks the thread until it has the lock, or until `remaining` returns an error.
    /// `remaining` returns the time left to wait, and is called after each wake-up by `waker`. The thread sleeps in
    /// real time; with a simulated clock, use [`acquire`](Self::acquire).
    pub(crate) fn lock_blocking(
        &self,
        request: &LockRequest<'_>,
        now: Duration,
        waker: &Waker,
        remaining: &dyn Fn() -> Result<Duration, LockError>,
    ) -> Result<Granted, LockError> {
        loop {
            if let Poll::Ready(result) = self.poll_lock(request, now, waker) {
                return result;
            }
            match remaining() {
                Ok(left) => crate::sync::park_timeout(left),
                Err(error) => {
                    let is_acquired = self.cancel(request.owner, request.keyspace, request.key);
                    if is_acquired {
                        crate::coverage::mark!("a lock was handed over to a transaction that had just given up");
                    }
                    debug_assert!(
                        !is_acquired || self.is_held_by(request.owner, request.keyspace, request.key),
                        "a lock was handed over that the transaction does not hold"
                    );
                    return if is_acquired { Ok(Granted::Acquired) } else { Err(error) };
                }
            }
        }
    }

    /// Returns a future that acquires the lock of a row. Dropping the future gives up waiting. If the future has been
    /// handed the lock but has not been polled since, dropping it releases the lock.
    pub(crate) fn acquire<'a>(&'a self, request: LockRequest<'a>, now: Duration) -> Acquire<'a> {
        Acquire { table: self, request, now, waiting: false }
    }

    /// Returns `true` if a row of the keyspace is locked. O(locks).
    pub(crate) fn has_any(&self, keyspace: KeyspaceId) -> bool {
        self.shards.iter().any(|shard| shard.lock().locks.iter().any(|lock| lock.keyspace == keyspace))
    }

    /// Returns, in order, the keys in these ranges that transactions other than `owner` have locked. O(locks).
    pub(crate) fn held_by_others(
        &self,
        owner: TransactionId,
        keyspace: KeyspaceId,
        keys: &RemovedKeys,
    ) -> Vec<Box<[u8]>> {
        assert!(!keys.is_empty(), "locks of no keys are looked for");
        let mut held: Vec<Box<[u8]>> = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let is_met = |lock: &&Lock| {
                lock.keyspace == keyspace
                    && keys.covers(lock.key.as_bytes())
                    && lock.holders().any(|holder| holder != owner)
            };
            held.extend(shard.locks.iter().filter(is_met).map(|lock| lock.key.as_bytes().into()));
        }
        held.sort_unstable();
        held
    }

    /// Returns `true` if an owner for which `matters` returns `true` has locked one of these keys. O(locks).
    pub(crate) fn any_held_by(
        &self,
        keyspace: KeyspaceId,
        keys: &RemovedKeys,
        matters: impl Fn(TransactionId) -> bool,
    ) -> bool {
        assert!(!keys.is_empty(), "locks of no keys are looked for");
        let is_met =
            |lock: &Lock| lock.keyspace == keyspace && keys.covers(lock.key.as_bytes()) && lock.holders().any(&matters);
        self.shards.iter().any(|shard| shard.lock().locks.iter().any(is_met))
    }

    /// Releases a lock of `owner`: hands it to the first waiter, or removes it if there are no waiters.
    #[inline]
    pub(crate) fn unlock(&self, owner: TransactionId, keyspace: KeyspaceId, key: &[u8]) {
        self.unlock_at(self.lock_hash(keyspace, key), owner, keyspace, key);
    }

    /// Like [`unlock`](Self::unlock), for a row whose hash is known.
    #[inline]
    pub(crate) fn unlock_at(&self, lock_hash: LockHash, owner: TransactionId, keyspace: KeyspaceId, key: &[u8]) {
        let LockHash(hash) = lock_hash;
        let mut shard = self.shard(hash);
        let Ok(entry) = shard.locks.find_entry(hash, |lock| lock.is_of(keyspace, key)) else {
            panic!("a lock that is released is held");
        };
        if entry.get().others.is_some() {
            return self.release(shard, hash, owner, keyspace, key);
        }
        assert_eq!(entry.get().owner, owner, "a lock is released by its owner");
        let (lock, _) = entry.remove();
        shard.heap_bytes -= lock.heap_bytes();
        debug_assert!(!shard.locks.is_empty() || shard.heap_bytes == 0, "{} bytes of no locks", shard.heap_bytes);
        shard.shrink(self.seed);
        drop(shard);
        drop(lock);
    }

    /// Releases a lock that has other holders or waiters.
    #[cold]
    fn release(
        &self,
        mut shard: MutexGuard<'_, Shard>,
        hash: u64,
        owner: TransactionId,
        keyspace: KeyspaceId,
        key: &[u8],
    ) {
        let lock = shard.find(hash, keyspace, key).expect("found a moment ago");
        let before = lock.heap_bytes();
        let was_shared = lock.mode == LockMode::Shared;
        let is_held = lock.remove_holder(owner);
        assert!(was_shared || !is_held, "an exclusive lock had two holders");
        let others = lock.others.as_mut().expect("it has other holders or waiters");
        let mut wakers = Vec::new();
        if others.number != 0 {
            let mut graph = self.graph.lock();
            graph.remove_holder(others.number, owner);
            if !is_held {
                let Waiter { owner, waker, mode, .. } = others.waiters.pop_front().expect("a queue has a waiter");
                graph.end_wait(owner, others.number);
                graph.add_holder(others.number, owner);
                (lock.owner, lock.mode, lock.handed_over) = (owner, mode, true);
                wakers.push(waker);
            }
            wakers.extend(lock.serve(&mut graph));
        }
        lock.drop_empty();
        debug_assert!(lock.holders().all(|holder| holder != owner), "a lock is released and still held");
        let freed_bytes = before - lock.heap_bytes();
        shard.heap_bytes -= freed_bytes;
        drop(shard);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Releases all locks of a transaction that has ended.
    pub(crate) fn unlock_all<'k>(&self, owner: TransactionId, keys: impl IntoIterator<Item = (KeyspaceId, &'k [u8])>) {
        if !self.is_here() {
            return;
        }
        for (keyspace, key) in keys {
            self.unlock(owner, keyspace, key);
        }
    }

    /// Like [`unlock_all`](Self::unlock_all), for rows of which the transaction may not hold the lock.
    pub(crate) fn unlock_held<'k>(&self, owner: TransactionId, keys: impl IntoIterator<Item = (KeyspaceId, &'k [u8])>) {
        if !self.is_here() {
            return;
        }
        for (keyspace, key) in keys {
            // Until this call returns, no other thread acquires or releases locks for this transaction.
            if self.is_held_by(owner, keyspace, key) {
                self.unlock(owner, keyspace, key);
            }
        }
    }

    /// Returns the memory of the table. Visits every shard.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let shards = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            mem::size_of_val(&self.shards[0]) + shard.locks.allocation_size() + shard.heap_bytes
        });
        mem::size_of::<LockTable>() + shards.sum::<usize>()
    }
}

#[inline]
fn hash(seed: u64, keyspace: KeyspaceId, key: &[u8]) -> u64 {
    checksum(key, seed ^ u64::from(keyspace.0))
}

impl Shard {
    #[inline]
    fn find(&mut self, hash: u64, keyspace: KeyspaceId, key: &[u8]) -> Option<&mut Lock> {
        self.locks.find_mut(hash, |lock| lock.is_of(keyspace, key))
    }

    /// Grants the request. If the request has to wait for another transaction, returns the conflicting lock as the
    /// error.
    #[inline]
    fn claim(&mut self, seed: u64, hash: u64, request: &LockRequest<'_>) -> Result<Granted, &mut Lock> {
        let LockRequest { owner, keyspace, key, mode } = *request;
        let is_it = |lock: &Lock| lock.is_of(keyspace, key);
        match self.locks.entry(hash, is_it, |lock| lock.hash(seed)) {
            Entry::Vacant(entry) => {
                let (key_bytes, thread) = (key, thread_tag());
                let key = LockKey::new(key_bytes);
                let lock = Lock { owner, others: None, key, keyspace, thread, mode, handed_over: false };
                debug_assert_eq!(lock.key.as_bytes(), key_bytes, "a key can't be read as it was put");
                self.heap_bytes += lock.key.heap_bytes();
                entry.insert(lock);
                Ok(Granted::Acquired)
            }
            Entry::Occupied(entry) => {
                let lock = entry.into_mut();
                if mode == LockMode::Exclusive && lock.mode == LockMode::Exclusive {
                    return if lock.owner == owner { Ok(lock.notice_owner()) } else { Err(lock) };
                }
                let before = lock.heap_bytes();
                let granted = lock.share(owner, mode);
                self.heap_bytes = self.heap_bytes + lock.heap_bytes() - before;
                granted.ok_or(lock)
            }
        }
    }

    /// Frees memory after many locks have been released.
    #[inline]
    fn shrink(&mut self, seed: u64) {
        let (buckets, locks) = (self.locks.num_buckets(), self.locks.len());
        if buckets > SHARD_BUCKETS_KEPT && locks < buckets / 8 {
            self.locks.shrink_to(2 * locks, |lock| lock.hash(seed));
        }
    }
}

impl Lock {
    #[inline]
    fn is_of(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        self.keyspace == keyspace && self.key.as_bytes() == key
    }

    fn hash(&self, seed: u64) -> u64 {
        hash(seed, self.keyspace, self.key.as_bytes())
    }

    /// Returns the number of bytes allocated outside of the entry: a long key, additional holders and waiters.
    fn heap_bytes(&self) -> usize {
        let others = self.others.as_ref().map_or(0, |others| {
            mem::size_of::<Others>()
                + others.sharers.len() * mem::size_of::<Sharer>()
                + others.waiters.len() * WAITER_BYTES
        });
        self.key.heap_bytes() + others
    }

    fn holders(&self) -> impl Iterator<Item = TransactionId> {
        let sharers = self.others.iter().flat_map(|others| &others.sharers);
        std::iter::once(self.owner).chain(sharers.map(|sharer| sharer.owner))
    }

    fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.others.iter().flat_map(|others| &others.waiters)
    }

    fn waiters_mut(&mut self) -> impl Iterator<Item = &mut Waiter> {
        self.others.iter_mut().flat_map(|others| &mut others.waiters)
    }

    /// Returns [`Granted::Acquired`] if the lock was handed over to `owner` and this is the first call since then,
    /// [`Granted::AlreadyHeld`] if `owner` already knew about the lock, and `None` if `owner` does not hold it.
    fn notice(&mut self, owner: TransactionId) -> Option<Granted> {
        if self.owner == owner {
            return Some(self.notice_owner());
        }
        let mut sharers = self.others.iter_mut().flat_map(|others| &mut others.sharers);
        let sharer = sharers.find(|sharer| sharer.owner == owner)?;
        if !mem::take(&mut sharer.handed_over) {
            return Some(Granted::AlreadyHeld);
        }
        sharer.thread = thread_tag();
        Some(Granted::Acquired)
    }

    #[inline]
    fn notice_owner(&mut self) -> Granted {
        if !mem::take(&mut self.handed_over) {
            return Granted::AlreadyHeld;
        }
        self.thread = thread_tag();
        Granted::Acquired
    }

    /// Grants a request if the lock or the request is shared and there is nothing to wait for.
    #[cold]
    fn share(&mut self, owner: TransactionId, mode: LockMode) -> Option<Granted> {
        let is_held = self.holders().any(|holder| holder == owner);
        let is_alone = self.holders().nth(1).is_none();
        match (is_held, mode) {
            (true, LockMode::Shared) => self.notice(owner),
            (true, LockMode::Exclusive) if is_alone => {
                debug_assert!(self.mode == LockMode::Shared, "a lock that is exclusive becomes so again");
                self.mode = LockMode::Exclusive;
                self.notice(owner)
            }
            (false, LockMode::Shared) if self.mode == LockMode::Shared && self.waiters().next().is_none() => {
                let sharer = Sharer { owner, thread: thread_tag(), handed_over: false };
                self.others.get_or_insert_default().sharers.push(sharer);
                Some(Granted::Acquired)
            }
            _ => None,
        }
    }

    /// Removes a holder. Returns `false` if no holder is left. In that case, the caller must hand the lock to a waiter
    /// or remove it.
    fn remove_holder(&mut self, owner: TransactionId) -> bool {
        let sharers = self.others.as_mut().map(|others| &mut others.sharers).expect("it has others");
        if self.owner != owner {
            let position = sharers.iter().position(|sharer| sharer.owner == owner);
            sharers.swap_remove(position.expect("a lock is released by its owner"));
            return true;
        }
        let Some(Sharer { owner, thread, handed_over }) = sharers.pop() else { return false };
        (self.owner, self.thread, self.handed_over) = (owner, thread, handed_over);
        true
    }

    /// Hands the lock to the waiters at the front that no longer have to wait. Returns their wakers.
    fn serve(&mut self, graph: &mut WaitGraph) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let Some(others) = &mut self.others else { return wakers };
        while let Some(first) = others.waiters.front() {
            let is_upgrade =
                self.owner == first.owner || others.sharers.iter().any(|sharer| sharer.owner == first.owner);
            let is_free = match is_upgrade {
                true => others.sharers.is_empty(),
                false => first.mode == LockMode::Shared && self.mode == LockMode::Shared,
            };
            if !is_free {
                break;
            }
            let Waiter { owner, waker, .. } = others.waiters.pop_front().expect("it is the first");
            graph.end_wait(owner, others.number);
            if is_upgrade {
                debug_assert!(self.mode == LockMode::Shared, "the holder of an exclusive lock waits for it");
                self.mode = LockMode::Exclusive;
            } else {
                debug_assert!(others.sharers.iter().all(|sharer| sharer.owner != owner), "a lock is held twice");
                graph.add_holder(others.number, owner);
                others.sharers.push(Sharer { owner, thread: self.thread, handed_over: true });
            }
            wakers.push(waker);
        }
        if others.waiters.is_empty() && others.number != 0 {
            graph.remove_lock(mem::take(&mut others.number));
        }
        self.drop_empty();
        wakers
    }

    /// Frees the memory for other holders and waiters if the lock has neither.
    fn drop_empty(&mut self) {
        drop(self.others.take_if(|others| others.sharers.is_empty() && others.waiters.is_empty()));
        debug_assert!(self.mode == LockMode::Shared || self.holders().count() == 1, "an exclusive lock is shared");
        debug_assert!(
            self.others.as_ref().is_none_or(|others| (others.number == 0) == others.waiters.is_empty()),
            "the graph of waits knows a lock without waiters, or does not know one with them"
        );
    }
}

/// Wakes the blocked thread that has been handed a lock.
pub(crate) struct Unpark(pub(crate) Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The future of [`LockTable::acquire`].
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Acquire<'a> {
    table: &'a LockTable,
    request: LockRequest<'a>,
    now: Duration,
    waiting: bool,
}

impl Future for Acquire<'_> {
    type Output = Result<Granted, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let poll = self.table.poll_lock(&self.request, self.now, context.waker());
        self.waiting = poll.is_pending();
        poll
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let LockRequest { owner, keyspace, key, .. } = self.request;
        if self.waiting && self.table.cancel(owner, keyspace, key) {
            self.table.unlock(owner, keyspace, key);
        }
    }
}

#[cfg(test)]
mod tests;
