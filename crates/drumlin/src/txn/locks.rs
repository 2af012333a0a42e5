//! Row locks: the right to write a row until the transaction ends.
//!
//! A lock is exclusive and exists only while it is held. The table has an entry for each row that a running transaction
//! has written or waits to write, found by keyspace and key. A transaction that finds a row locked waits in the row's
//! queue, as a blocked thread or as a future; the table knows only wakers.
//!
//! ```text
//!              claim                    claim by another
//!   (no entry) ------> held, no queue ------------------> held, queue
//!       ^                    |  ^                            |   |
//!       +------ release -----+  +--- last waiter is handed --+   +-- release: the first waiter is the owner (handed
//!                                    the lock or gives up            over), and learns of it when it polls
//! ```
//!
//! # Invariants
//! 1. An entry has one owner, and a queue only while it has waiters.
//! 2. A released lock belongs to the first waiter in its queue at once. So no transaction overtakes another, each
//!    release wakes one waiter, and a waiter that gives up at that moment finds that it owns the lock.
//! 3. A transaction waits for one lock at a time. If a future was leaked, [`LockTable::abandon`] gives up its turn in
//!    the queue before the transaction waits again.
//! 4. The graph of waits, from each transaction to the owner of the lock that it waits for, has no cycle: a transaction
//!    that would close a cycle gets [`LockError::Deadlock`] instead of a place in the queue. Only a transaction that
//!    begins to wait can close a cycle. When a lock is handed over, the remaining waiters wait for an owner that waits
//!    for nothing.
//! 5. No waker is called or dropped under a mutex, because its task may be waiting for that mutex.
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

use super::TransactionId;
use crate::format::{KeyspaceId, checksum};
use crate::hash::HashMap;
use crate::io::Process;
use crate::memory::heap_bytes;

/// The way in which a lock was acquired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Granted {
    /// This call acquired it, so the caller has to release it.
    Acquired,
    /// The caller already had it.
    AlreadyHeld,
}

/// The transaction that has the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeldBy(pub(crate) TransactionId);

/// The hash of a row, which finds its shard and its bucket in the lock table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockHash(u64);

/// The reason why waiting ended without the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockError {
    Timeout,
    Deadlock,
}

/// A row's key. Keys are usually short, and then stored in the entry.
enum LockKey {
    Short { bytes: [u8; LockKey::SHORT_BYTES_MAX], length: u8 },
    Long(Box<[u8]>),
}

impl LockKey {
    /// The maximum size of a short key. With tag and length, it takes the 24 bytes of a boxed key with its tag.
    /// Fixed by the size of the other form.
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

    /// Bytes allocated outside the entry.
    fn heap_bytes(&self) -> usize {
        LockKey::heap_bytes_of(self.as_bytes())
    }

    fn heap_bytes_of(key: &[u8]) -> usize {
        if key.len() <= LockKey::SHORT_BYTES_MAX { 0 } else { heap_bytes(key.len()) }
    }
}

struct Lock {
    owner: TransactionId,
    queue: Option<Box<Queue>>,
    key: LockKey,
    keyspace: KeyspaceId,
    /// The thread that acquired it.
    thread: ThreadTag,
    /// The previous owner has handed the lock over, and the new owner has not noticed yet.
    handed_over: bool,
}

const _: () = assert!(mem::size_of::<Lock>() <= 48);

/// The waiters for a lock, in the order of arrival.
struct Queue {
    /// The lock's number in the graph.
    number: u64,
    waiters: VecDeque<Waiter>,
}

struct Waiter {
    owner: TransactionId,
    waker: Waker,
}

/// Memory of a waiter: its place in the queue and its entries in the graph's two maps, each at least half full. The
/// executor owns the waker.
const WAITER_BYTES: usize = 2 * (mem::size_of::<Waiter>() + 2 * mem::size_of::<(u64, u64)>());

/// Memory that a transaction needs in order to wait. It waits for one lock at a time.
pub(crate) const WAITING_BYTES: usize = WAITER_BYTES + mem::size_of::<Queue>();

#[derive(Default)]
struct Shard {
    locks: HashTable<Lock>,
    /// Long keys, queues and waiters.
    heap_bytes: usize,
}

/// If fewer than an eighth of the buckets of a shard's table are in use, the table shrinks, but not below this number
/// of buckets: 3 KiB.
const SHARD_BUCKETS_KEPT: usize = 64;

/// The graph of waits; see invariant 4.
#[derive(Default)]
struct Graph {
    locks_count: u64,
    /// The number of the lock that a transaction waits for.
    awaited: HashMap<TransactionId, u64>,
    /// The owner of a lock with a queue, by the lock's number.
    owners: HashMap<u64, TransactionId>,
}

impl Graph {
    /// Returns `true` if `owner` waits for `requester`, directly or through others.
    fn leads(&self, mut owner: TransactionId, requester: TransactionId) -> bool {
        let mut step_count = 0;
        while owner != requester {
            let Some(lock) = self.awaited.get(&owner) else { return false };
            step_count += 1;
            assert!(step_count <= self.awaited.len(), "the graph of waits has a cycle");
            owner = self.owners[lock];
        }
        true
    }
}

/// Memory of a lock: its entry in a table that has just doubled, and a long key.
pub(crate) fn lock_bytes(key: &[u8]) -> usize {
    2 * (mem::size_of::<Lock>() + 1) + LockKey::heap_bytes_of(key)
}

/// The locks of a database.
pub(crate) struct LockTable {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    graph: Mutex<Graph>,
    /// Random, so that keys can't be chosen to collide.
    seed: u64,
    /// The process that created the table. A fork of it releases no locks, because a shard may be locked by a thread
    /// that does not exist in the fork.
    process: Process,
}

impl LockTable {
    /// Creates a table of `shards_count` parts, a power of two. If that is several times the number of threads, they
    /// rarely contend.
    pub(crate) fn new(shards_count: usize, seed: u64) -> LockTable {
        assert!(shards_count.is_power_of_two());
        let shards = (0..shards_count).map(|_| CachePadded::default()).collect();
        LockTable { shards, graph: Mutex::default(), seed, process: Process::here() }
    }

    #[inline]
    fn hash(&self, keyspace: KeyspaceId, key: &[u8]) -> u64 {
        hash(self.seed, keyspace, key)
    }

    /// Chooses the shard by the middle bits of the hash: the table uses the low bits as the position and the highest
    /// seven as tags.
    #[inline]
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        self.shards[(hash >> 40) as usize & (self.shards.len() - 1)].lock()
    }

    /// Acquires the lock of a row unless another transaction has it.
    #[inline]
    pub(crate) fn try_lock(&self, owner: TransactionId, keyspace: KeyspaceId, key: &[u8]) -> Result<Granted, HeldBy> {
        self.try_lock_at(self.lock_hash(keyspace, key), owner, keyspace, key)
    }

    /// Returns the hash of a row in this table, for callers that need it more than once.
    #[inline]
    pub(crate) fn lock_hash(&self, keyspace: KeyspaceId, key: &[u8]) -> LockHash {
        LockHash(self.hash(keyspace, key))
    }

    /// Like [`try_lock`](Self::try_lock), for a row whose hash is known.
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
        self.shard(hash).claim(self.seed, hash, owner, keyspace, key).map_err(|lock| HeldBy(lock.owner))
    }

    /// Acquires the lock of a row, or a place in its queue.
    ///
    /// When the lock has become the caller's, the table calls the waker, and the caller learns about the lock by
    /// polling again. A caller that no longer wants the lock calls [`cancel`](Self::cancel). [`acquire`](Self::acquire)
    /// does both.
    pub(crate) fn poll_lock(
        &self,
        owner: TransactionId,
        keyspace: KeyspaceId,
        key: &[u8],
        waker: &Waker,
    ) -> Poll<Result<Granted, LockError>> {
        let hash = self.hash(keyspace, key);
        let mut shard = self.shard(hash);
        let lock = match shard.claim(self.seed, hash, owner, keyspace, key) {
            Ok(granted) => return Poll::Ready(Ok(granted)),
            Err(lock) => lock,
        };
        assert!(lock.owner != owner, "a transaction waits for itself");
        if let Some(waiter) = lock.queue.iter_mut().flat_map(|queue| &mut queue.waiters).find(|w| w.owner == owner) {
            let before = mem::replace(&mut waiter.waker, waker.clone());
            drop(shard);
            drop(before);
            return Poll::Pending;
        }

        let mut graph = self.graph.lock();
        if graph.leads(lock.owner, owner) {
            crate::coverage::mark!("a deadlock between rows was found");
            return Poll::Ready(Err(LockError::Deadlock));
        }
        assert!(!graph.awaited.contains_key(&owner), "a transaction waits for two locks");
        let mut heap_bytes = WAITER_BYTES;
        let queue = lock.queue.get_or_insert_with(|| {
            heap_bytes += mem::size_of::<Queue>();
            graph.locks_count += 1;
            Box::new(Queue { number: graph.locks_count, waiters: VecDeque::new() })
        });
        queue.waiters.push_back(Waiter { owner, waker: waker.clone() });
        let known = graph.owners.insert(queue.number, lock.owner);
        assert!(known.is_none_or(|known| known == lock.owner), "the graph of waits knows another owner of a lock");
        graph.awaited.insert(owner, queue.number);
        drop(graph);
        shard.heap_bytes += heap_bytes;
        Poll::Pending
    }

    /// Gives up waiting. Returns `true` if the lock has become the caller's in the meantime; then the caller has to
    /// release it.
    pub(crate) fn cancel(&self, owner: TransactionId, keyspace: KeyspaceId, key: &[u8]) -> bool {
        let hash = self.hash(keyspace, key);
        let mut shard = self.shard(hash);
        let Some(lock) = shard.find(hash, keyspace, key) else { return false };
        if lock.owner == owner {
            let waits = |waiter: &Waiter| waiter.owner == owner;
            debug_assert!(!lock.queue.iter().flat_map(|queue| &queue.waiters).any(waits), "an owner waits for itself");
            return mem::take(&mut lock.handed_over);
        }
        let Some(queue) = &mut lock.queue else { return false };
        let Some(position) = queue.waiters.iter().position(|waiter| waiter.owner == owner) else { return false };
        let waiter = queue.waiters.remove(position);
        let mut graph = self.graph.lock();
        let awaited = graph.awaited.remove(&owner);
        assert_eq!(awaited, Some(queue.number), "a transaction is in the queue of another lock than it waits for");
        let emptied = lock.close_empty_queue(&mut graph);
        drop(graph);
        shard.heap_bytes -= WAITER_BYTES + if emptied { mem::size_of::<Queue>() } else { 0 };
        drop(shard);
        drop(waiter);
        false
    }

    /// Cleans up after a call of `owner` that was leaked, so that it neither learned about its lock nor was dropped.
    /// Gives up its place in the queue, or releases the lock.
    pub(crate) fn abandon(&self, owner: TransactionId, keyspace: KeyspaceId, key: &[u8]) {
        if self.cancel(owner, keyspace, key) || self.is_held_by(owner, keyspace, key) {
            self.unlock(owner, keyspace, key);
        }
    }

    /// Returns `true` if the current thread has locked the row, for any transaction.
    pub(crate) fn is_of_this_thread(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        let hash = self.hash(keyspace, key);
        let is_of = |lock: &mut Lock| lock.thread == thread_tag() && !lock.handed_over;
        self.shard(hash).find(hash, keyspace, key).is_some_and(is_of)
    }

    fn is_held_by(&self, owner: TransactionId, keyspace: KeyspaceId, key: &[u8]) -> bool {
        let hash = self.hash(keyspace, key);
        self.shard(hash).find(hash, keyspace, key).is_some_and(|lock| lock.owner == owner)
    }

    /// Acquires the lock of a row. Blocks the thread until then, or until `clock` shows `deadline`. The thread sleeps
    /// in real time; with a simulated clock, use [`acquire`](Self::acquire).
    #[inline]
    pub(crate) fn lock(
        &self,
        owner: TransactionId,
        keyspace: KeyspaceId,
        key: &[u8],
        deadline: Duration,
        clock: &dyn Fn() -> Duration,
    ) -> Result<Granted, LockError> {
        match self.try_lock(owner, keyspace, key) {
            Ok(granted) => Ok(granted),
            Err(HeldBy(_)) => self.lock_blocking(owner, keyspace, key, deadline, clock),
        }
    }

    #[cold]
    fn lock_blocking(
        &self,
        owner: TransactionId,
        keyspace: KeyspaceId,
        key: &[u8],
        deadline: Duration,
        clock: &dyn Fn() -> Duration,
    ) -> Result<Granted, LockError> {
        let waker = Waker::from(Arc::new(Unpark(crate::sync::current())));
        loop {
            if let Poll::Ready(result) = self.poll_lock(owner, keyspace, key, &waker) {
                return result;
            }
            let now = clock();
            if now >= deadline {
                let is_acquired = self.cancel(owner, keyspace, key);
                if is_acquired {
                    crate::coverage::mark!("a lock was handed over to a transaction that had just given up");
                }
                return if is_acquired { Ok(Granted::Acquired) } else { Err(LockError::Timeout) };
            }
            crate::sync::park_timeout(deadline - now);
        }
    }

    /// Returns a future that acquires the lock of a row. Dropping it gives up waiting; if the lock was handed over but
    /// the future has not been polled since, it releases the lock.
    pub(crate) fn acquire<'a>(&'a self, owner: TransactionId, keyspace: KeyspaceId, key: &'a [u8]) -> Acquire<'a> {
        Acquire { table: self, owner, keyspace, key, waiting: false }
    }

    /// Returns `true` if a row of the keyspace is locked. O(locks).
    pub(crate) fn has_any(&self, keyspace: KeyspaceId) -> bool {
        self.shards.iter().any(|shard| shard.lock().locks.iter().any(|lock| lock.keyspace == keyspace))
    }

    /// Releases a lock of `owner`: hands it to the first waiter, or removes it.
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
        assert_eq!(entry.get().owner, owner, "a lock is released by its owner");
        if entry.get().queue.is_some() {
            return self.hand_over(shard, hash, keyspace, key);
        }
        let (lock, _) = entry.remove();
        shard.heap_bytes -= lock.key.heap_bytes();
        debug_assert!(!shard.locks.is_empty() || shard.heap_bytes == 0, "{} bytes of no locks", shard.heap_bytes);
        shard.shrink(self.seed);
        drop(shard);
        drop(lock);
    }

    #[cold]
    fn hand_over(&self, mut shard: MutexGuard<'_, Shard>, hash: u64, keyspace: KeyspaceId, key: &[u8]) {
        let lock = shard.find(hash, keyspace, key).expect("found a moment ago");
        let queue = lock.queue.as_mut().expect("has a queue");
        let Waiter { owner, waker } = queue.waiters.pop_front().expect("a queue has somebody in it");
        let mut graph = self.graph.lock();
        let awaited = graph.awaited.remove(&owner);
        assert_eq!(awaited, Some(queue.number), "a lock is handed to a transaction that waits for another");
        let before = graph.owners.insert(queue.number, owner);
        assert_eq!(before, Some(lock.owner), "the graph of waits knows another owner of a lock");
        assert!(lock.owner != owner, "a lock is handed to its owner");
        lock.owner = owner;
        lock.handed_over = true;
        let emptied = lock.close_empty_queue(&mut graph);
        drop(graph);
        shard.heap_bytes -= WAITER_BYTES + if emptied { mem::size_of::<Queue>() } else { 0 };
        drop(shard);
        waker.wake();
    }

    /// Releases all locks of a transaction that has ended.
    pub(crate) fn unlock_all<'k>(&self, owner: TransactionId, keys: impl IntoIterator<Item = (KeyspaceId, &'k [u8])>) {
        if !self.process.is_here() {
            return;
        }
        for (keyspace, key) in keys {
            self.unlock(owner, keyspace, key);
        }
    }

    /// The memory of the table. Visits every shard.
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

    /// Gives the lock to `owner`. If another transaction has it, returns the lock.
    #[inline]
    fn claim(
        &mut self,
        seed: u64,
        hash: u64,
        owner: TransactionId,
        keyspace: KeyspaceId,
        key: &[u8],
    ) -> Result<Granted, &mut Lock> {
        let is_it = |lock: &Lock| lock.is_of(keyspace, key);
        match self.locks.entry(hash, is_it, |lock| lock.hash(seed)) {
            Entry::Vacant(entry) => {
                let (key_bytes, thread) = (key, thread_tag());
                let key = LockKey::new(key_bytes);
                let lock = Lock { owner, queue: None, key, keyspace, thread, handed_over: false };
                debug_assert_eq!(lock.key.as_bytes(), key_bytes, "a key can't be read as it was put");
                self.heap_bytes += lock.key.heap_bytes();
                entry.insert(lock);
                Ok(Granted::Acquired)
            }
            Entry::Occupied(entry) => {
                let lock = entry.into_mut();
                let has_waiters = |queue: &Queue| !queue.waiters.is_empty();
                debug_assert!(lock.queue.as_deref().is_none_or(has_waiters), "a lock has a queue of nobody");
                if lock.owner != owner {
                    Err(lock)
                } else if mem::take(&mut lock.handed_over) {
                    lock.thread = thread_tag();
                    Ok(Granted::Acquired)
                } else {
                    Ok(Granted::AlreadyHeld)
                }
            }
        }
    }

    /// Gives memory back after many locks were released.
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

    /// Drops the queue if it has no more waiters.
    fn close_empty_queue(&mut self, graph: &mut Graph) -> bool {
        let Some(queue) = self.queue.take_if(|queue| queue.waiters.is_empty()) else { return false };
        let owner = graph.owners.remove(&queue.number);
        assert_eq!(owner, Some(self.owner), "the graph of waits knows another owner of a lock");
        debug_assert!(
            !graph.awaited.values().any(|lock| *lock == queue.number),
            "a transaction waits for a lock that has no queue"
        );
        true
    }
}

/// Wakes the blocked thread to which a lock was handed over.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The future of [`LockTable::acquire`].
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Acquire<'a> {
    table: &'a LockTable,
    owner: TransactionId,
    keyspace: KeyspaceId,
    key: &'a [u8],
    waiting: bool,
}

impl Future for Acquire<'_> {
    type Output = Result<Granted, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let poll = self.table.poll_lock(self.owner, self.keyspace, self.key, context.waker());
        self.waiting = poll.is_pending();
        poll
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if self.waiting && self.table.cancel(self.owner, self.keyspace, self.key) {
            self.table.unlock(self.owner, self.keyspace, self.key);
        }
    }
}

#[cfg(test)]
mod tests;
