//! Commits that are ready: prepared to be applied, and held until their caller gives a signal.
//!
//! A coordinator that commits several transactions in one order makes each of them ready first, which may wait and
//! fail, and then gives the signals one after another, under a lock of its own. A ready commit holds pinned leaves,
//! reserved disk space and log space for as long as the coordinator likes. So that no other commit has to wait for it:
//!
//! - It gives back its memory of *Admit* and for versions. Its pinned leaves are in addition to those that other
//!   commits may pin, and its versions in addition to theirs. Both are limited, for all ready commits together.
//! - It reserves log space in the first stream, whose buffer has room for [`READY_COMMITS_MAX`] short records besides
//!   the longest record.
//! - It asks for its permit before it reserves anything, and holds only its row locks while it waits for one.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::io::Backend;
use crate::memory::{Account, Budget, WaitQueue};
use crate::seglog::READY_COMMITS_MAX;
use crate::sync::Mutex;
use crate::task::WaitMode;

/// The time for which a call waits until other commits are no longer ready.
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(10);

/// The time for which a call waits until no commit is ready. It is shorter than [`PERMIT_WAIT_MAX`]: a coordinator
/// whose first commit is ready may be waiting for the permit of its second one.
const EXCLUSIVE_WAIT_MAX: Duration = Duration::from_secs(5);

/// The share of the memory for pinned leaves (one in this many) that ready commits may pin in addition.
const PINNED_SHARE: u64 = 4;
/// The share of the memory for versions (one in this many) that ready commits may leave in addition.
const VERSIONS_SHARE: u64 = 8;
/// The share of the memory of transactions (one in this many) that the changes of ready commits may take.
const CHANGES_SHARE: u64 = 4;

/// The resources that the ready commits of a database hold.
#[derive(Debug, Default)]
struct Taken {
    count: usize,
    /// The number of calls that wait until no commit is ready, or make use of that.
    exclusive_count: usize,
    changes_bytes: u64,
    pinned_bytes: u64,
    version_bytes: u64,
}

/// The ready commits of a database.
#[derive(Debug, Default)]
pub(crate) struct ReadyCommits {
    taken: Mutex<Taken>,
    /// The calls that wait for a permit.
    waiting: WaitQueue,
    /// The calls that wait until no commit is ready.
    exclusive: WaitQueue,
}

/// While this exists, no commit is ready or becomes ready.
pub(crate) struct NoneReady<'r>(&'r ReadyCommits);

/// The permit of one commit to be ready.
pub(crate) struct ReadyPermit<'r> {
    all: &'r ReadyCommits,
    changes_bytes: u64,
    pinned_bytes: u64,
    version_bytes: u64,
}

impl ReadyCommits {
    /// Waits for the permit to be ready. The caller must hold nothing but row locks.
    pub(crate) async fn permit(&self, mode: WaitMode<'_>, backend: &dyn Backend) -> Result<ReadyPermit<'_>> {
        let turn = self.waiting.join();
        let deadline = backend.now().saturating_add(PERMIT_WAIT_MAX);
        let attempt = || {
            let mut taken = self.taken.lock();
            (taken.exclusive_count == 0 && taken.count < READY_COMMITS_MAX).then(|| taken.count += 1)
        };
        match mode.until_deadline(backend, deadline, |waker| turn.poll(waker, attempt)).await {
            Some(()) => Ok(ReadyPermit { all: self, changes_bytes: 0, pinned_bytes: 0, version_bytes: 0 }),
            None => Err(Error::ready_in_memory("prepared transactions that are ready", READY_COMMITS_MAX as u64)),
        }
    }

    /// Waits until no commit is ready. A run may be attached then: above the rows of a ready commit it would have to be
    /// folded before the commit is applied, which may fail. Commits that want to become ready wait until it is
    /// attached. The caller must hold nothing but row locks.
    pub(crate) async fn none(&self, mode: WaitMode<'_>, backend: &dyn Backend) -> Result<NoneReady<'_>> {
        self.taken.lock().exclusive_count += 1;
        let none_ready = NoneReady(self);
        let turn = self.exclusive.join();
        let deadline = backend.now().saturating_add(EXCLUSIVE_WAIT_MAX);
        let attempt = || (self.taken.lock().count == 0).then_some(());
        match mode.until_deadline(backend, deadline, |waker| turn.poll(waker, attempt)).await {
            Some(()) => Ok(none_ready),
            None => Err(Error::Conflict { reason: "a prepared transaction stayed ready to be committed" }),
        }
    }
}

impl Drop for NoneReady<'_> {
    fn drop(&mut self) {
        let mut taken = self.0.taken.lock();
        assert!(taken.exclusive_count > 0, "more calls end than began to exclude ready commits");
        taken.exclusive_count -= 1;
        drop(taken);
        self.0.waiting.announce();
    }
}

impl ReadyPermit<'_> {
    /// Adds the changes of the commit. Fails if those of ready commits would take too much memory of transactions.
    pub(crate) fn hold_changes(&mut self, budget: &Budget, changes_bytes: u64) -> Result<()> {
        assert!(self.changes_bytes == 0, "a ready commit reads its changes twice");
        let changes_max = budget.limit_bytes(Account::Transactions) / CHANGES_SHARE;
        let mut taken = self.all.taken.lock();
        if taken.changes_bytes + changes_bytes > changes_max {
            return Err(Error::ready_in_memory("the changes of prepared transactions that are ready", changes_max));
        }
        taken.changes_bytes += changes_bytes;
        self.changes_bytes = changes_bytes;
        Ok(())
    }

    /// Adds the pinned leaves and the versions of the commit. Fails if ready commits would hold too much.
    fn hold(&mut self, budget: &Budget, pinned_bytes: u64, version_bytes: u64) -> Result<()> {
        assert!(self.pinned_bytes == 0 && self.version_bytes == 0, "a commit becomes ready twice");
        let pinned_max = budget.limit_bytes(Account::Pinned) / PINNED_SHARE;
        let versions_max = budget.limit_bytes(Account::Versions) / VERSIONS_SHARE;
        let mut taken = self.all.taken.lock();
        if taken.pinned_bytes + pinned_bytes > pinned_max {
            return Err(Error::ready_in_memory("the pages of prepared transactions that are ready", pinned_max));
        }
        if taken.version_bytes + version_bytes > versions_max {
            return Err(Error::ready_in_memory("the old rows of prepared transactions that are ready", versions_max));
        }
        taken.pinned_bytes += pinned_bytes;
        taken.version_bytes += version_bytes;
        (self.pinned_bytes, self.version_bytes) = (pinned_bytes, version_bytes);
        Ok(())
    }
}

impl Drop for ReadyPermit<'_> {
    fn drop(&mut self) {
        let mut taken = self.all.taken.lock();
        assert!(0 < taken.count && taken.count <= READY_COMMITS_MAX, "{} commits are ready", taken.count);
        taken.count -= 1;
        taken.changes_bytes -= self.changes_bytes;
        taken.pinned_bytes -= self.pinned_bytes;
        taken.version_bytes -= self.version_bytes;
        debug_assert!(
            taken.count > 0 || taken.changes_bytes + taken.pinned_bytes + taken.version_bytes == 0,
            "no commit is ready, and {taken:?} is held"
        );
        drop(taken);
        self.all.exclusive.announce();
        self.all.waiting.announce();
    }
}

/// The signal to a ready commit.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    is_awaited: AtomicBool,
    is_given: AtomicBool,
}

impl Signal {
    /// Returns `true` once the commit is ready.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Acquire)
    }

    /// Lets the commit be applied at the next poll of its future.
    pub(crate) fn give(&self) {
        assert!(self.is_awaited(), "a signal is given to a commit that is not ready");
        self.is_given.store(true, Ordering::Release);
    }
}

/// The place at which a commit becomes ready, and waits for its signal.
pub(crate) struct Gate<'g> {
    permit: Mutex<ReadyPermit<'g>>,
    signal: &'g Signal,
}

impl<'g> Gate<'g> {
    pub(crate) fn new(permit: ReadyPermit<'g>, signal: &'g Signal) -> Gate<'g> {
        Gate { permit: Mutex::new(permit), signal }
    }

    pub(super) fn hold(&self, budget: &Budget, pinned_bytes: u64, version_bytes: u64) -> Result<()> {
        self.permit.lock().hold(budget, pinned_bytes, version_bytes)
    }

    /// Waits for the signal. Nothing wakes the future: the caller that gives the signal polls it.
    pub(super) async fn wait(&self) {
        poll_fn(|_| match self.signal.is_given.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => {
                self.signal.is_awaited.store(true, Ordering::Release);
                Poll::Pending
            }
        })
        .await;
    }
}
