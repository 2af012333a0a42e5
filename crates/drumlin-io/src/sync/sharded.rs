//! A shared lock whose readers use different cache lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::CachePadded;

/// The number of shards of a [`ShardedLock`].
const SHARDS: usize = 8;

thread_local! {
    /// The shard that the thread locks in order to read. Threads are assigned to shards in turn.
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns the shard of the calling thread.
#[inline]
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if SHARD.get() == usize::MAX {
        SHARD.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
    }
    SHARD.get()
}

/// A shared lock for frequent readers and rare writers: every commit takes it shared. A reader touches a cache line
/// that it shares with few other threads. Taking the lock exclusively costs about as much as taking ten locks.
#[derive(Debug, Default)]
pub struct ShardedLock([CachePadded<RwLock<()>>; SHARDS]);

/// The guard of a [`ShardedLock`] that is held shared.
pub type ShardedReadGuard<'a> = RwLockReadGuard<'a, ()>;
/// The guard of a [`ShardedLock`] that is held exclusively. It is boxed, so that a type that holds a guard of either
/// kind remains small.
pub type ShardedWriteGuard<'a> = Box<[RwLockWriteGuard<'a, ()>]>;

impl ShardedLock {
    /// Takes the lock shared, by locking one shard.
    #[inline]
    pub fn read(&self) -> ShardedReadGuard<'_> {
        self.0[shard()].read()
    }

    /// Takes the lock exclusively, by locking all shards. Their order is fixed, so that two writers cannot deadlock.
    pub fn write(&self) -> ShardedWriteGuard<'_> {
        self.0.iter().map(|shard| shard.write()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::ShardedLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    /// A writer excludes other writers and all readers.
    #[test]
    fn a_sharded_lock_excludes() {
        let (lock, odd) = (ShardedLock::default(), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let _alone = lock.write();
                        let before = odd.fetch_add(1, Ordering::Relaxed);
                        assert!(before.is_multiple_of(2), "two owners");
                        odd.fetch_add(1, Ordering::Relaxed);
                    }
                });
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let _shared = lock.read();
                        assert!(odd.load(Ordering::Relaxed).is_multiple_of(2), "an owner beside a sharer");
                    }
                });
            }
        });
    }
}
