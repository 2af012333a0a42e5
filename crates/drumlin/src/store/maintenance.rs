//! The background threads of an open database: the maintenance thread, which makes checkpoints and reclaims space; the
//! thread that spills versions; the thread that reads the list of resident pages; and the threads of the pool.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::reclaim::{AFTER_CHECKPOINT, Goal};
use super::requests::Maintenance;
use super::state::Store;
use crate::archive::Archiver;
use crate::error::{Error, Result};
use crate::feed::Feed;
use crate::txn::fold::Folding;

/// After this time without requests, the database counts as idle.
const IDLE: Duration = Duration::from_secs(5);

/// The interval at which the spilling thread checks whether the snapshot that delays commits has ended.
const DELAY: Duration = Duration::from_millis(5);

/// The interval at which the folding thread checks whether a run that snapshots still need unfolded can be folded.
const FOLD_PAUSE: Duration = Duration::from_millis(20);

impl Store {
    /// Starts the background threads. If one fails to start, the threads started before it run until
    /// [`stop`](Store::stop).
    pub(super) fn start_threads(self: &Arc<Self>) -> Result<()> {
        // A read-only database needs only the pool's threads. The first scan that prefetches starts them, so a single
        // short read neither starts nor stops a thread.
        if self.is_read_only {
            return Ok(());
        }
        let starting = |error| Error::io("starting a thread for", &self.path, error);
        self.engine.pool.start_background().map_err(starting)?;
        let (store, maintenance) = (Arc::downgrade(self), Arc::clone(&self.maintenance));
        let body = Box::new(move || fail_if_panicking(&store, &maintenance, || run_maintenance(&store, &maintenance)));
        let thread = self.engine.backend.spawn("drumlin-maintenance", body).map_err(starting)?;
        self.threads.lock().push(thread);
        let (store, maintenance) = (Arc::downgrade(self), Arc::clone(&self.maintenance));
        let body = Box::new(move || fail_if_panicking(&store, &maintenance, || run_spills(&store, &maintenance)));
        let thread = self.engine.backend.spawn("drumlin-versions", body).map_err(starting)?;
        self.threads.lock().push(thread);
        if let Some(feed) = &self.feed {
            let (store, feed, maintenance) = (Arc::downgrade(self), Arc::clone(feed), Arc::clone(&self.maintenance));
            let body = Box::new(move || fail_if_panicking(&store, &maintenance, || run_feed(&store, &feed)));
            let thread = self.engine.backend.spawn("drumlin-changes", body).map_err(starting)?;
            self.threads.lock().push(thread);
        }
        if let Some(archiver) = &self.archiver {
            let (store, copier, maintenance) =
                (Arc::downgrade(self), Arc::clone(archiver), Arc::clone(&self.maintenance));
            let body = Box::new(move || fail_if_panicking(&store, &maintenance, || run_archiver(&store, &copier)));
            let thread = self.engine.backend.spawn("drumlin-archive", body).map_err(starting)?;
            self.threads.lock().push(thread);
            let (store, archiver, maintenance) =
                (Arc::downgrade(self), Arc::clone(archiver), Arc::clone(&self.maintenance));
            let body = Box::new(move || fail_if_panicking(&store, &maintenance, || archiver.deliver()));
            let thread = self.engine.backend.spawn("drumlin-delivery", body).map_err(starting)?;
            self.threads.lock().push(thread);
        }
        if self.warm_start.begin() {
            self.start_warm();
        }
        self.fold_runs();
        Ok(())
    }

    /// Makes the background thread fold the runs of all keyspaces, and starts it if it was not needed before. Does
    /// nothing if there are no runs.
    pub(crate) fn fold_runs(self: &Arc<Self>) {
        if self.keyspaces.all().iter().all(|open| open.tree.pages.runs.is_empty()) {
            return;
        }
        let mut request = self.maintenance.fold.lock();
        request.is_wanted = true;
        self.maintenance.fold_changed.notify_all();
        if request.is_running || request.stop {
            return;
        }
        let (store, maintenance) = (Arc::downgrade(self), Arc::clone(&self.maintenance));
        let body = Box::new(move || fail_if_panicking(&store, &maintenance, || run_folds(&store, &maintenance)));
        match self.engine.backend.spawn("drumlin-runs", body) {
            Ok(thread) => {
                request.is_running = true;
                self.threads.lock().push(thread);
            }
            // Reads consult the runs until commits have folded them.
            Err(error) => log::warn!("starting the thread that folds runs of {}: {error}", self.path.display()),
        }
    }

    /// Folds runs until none is left, or until snapshots need all that are left. Returns `true` if runs are left.
    fn fold_some(&self, maintenance: &Maintenance) -> Result<bool> {
        let mut are_left = false;
        for open in self.keyspaces.all() {
            while !open.tree.pages.runs.is_empty() {
                if maintenance.fold.lock().stop {
                    return Ok(true);
                }
                self.engine.check_failure()?;
                match self.engine.fold_next(&open.tree, Folding::OnceSeen) {
                    Ok(true) => {}
                    Ok(false) => {
                        are_left |= !open.tree.pages.runs.is_empty();
                        break;
                    }
                    Err(Error::KeyspaceDropped { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(are_left)
    }

    /// Starts the thread that reads the list of resident pages. If that fails, there is no warm start.
    fn start_warm(self: &Arc<Self>) {
        let store = Arc::downgrade(self);
        let body = move || {
            if let Some(store) = store.upgrade() {
                store.read_residents();
            }
        };
        match self.engine.backend.spawn("drumlin-warm", Box::new(body)) {
            Ok(thread) => self.threads.lock().push(thread),
            Err(error) => {
                log::debug!("starting the warm-start thread of {}: {error}", self.path.display());
                self.warm_start.give_up();
            }
        }
    }

    /// Stops the background threads and waits for them.
    pub(super) fn stop(&self) {
        self.maintenance.state.lock().stop = true;
        self.maintenance.changed.notify_all();
        self.maintenance.spill.lock().stop = true;
        self.maintenance.spill_changed.notify_all();
        self.maintenance.fold.lock().stop = true;
        self.maintenance.fold_changed.notify_all();
        if let Some(feed) = &self.feed {
            feed.stop();
        }
        if let Some(archiver) = &self.archiver {
            archiver.stop(self.engine.log());
        }
        self.warm_start.stop();
        self.engine.tasks.stop();
        self.engine.pool.stop_background();
        let mut threads = self.engine.pool.take_threads();
        threads.append(&mut self.threads.lock());
        for thread in threads {
            // One of these threads may drop the last handle. It must not join itself.
            if thread.thread().id() != crate::sync::current().id() && crate::sync::join(thread).is_err() {
                log::error!("a background thread of {} panicked", self.path.display());
            }
        }
    }
}

/// Fails the database if a background thread panics. Otherwise, commits would wait forever for a checkpoint that no
/// other thread makes.
fn fail_if_panicking(store: &Weak<Store>, maintenance: &Maintenance, body: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(body)) else { return };
    if let Some(store) = store.upgrade() {
        store.engine.space.fail_quietly("the thread that makes checkpoints panicked");
    }
    maintenance.state.lock().failed = true;
    maintenance.changed.notify_all();
    resume_unwind(panic)
}

/// The body of the thread that spills versions on request.
fn run_spills(store: &Weak<Store>, maintenance: &Maintenance) {
    // While commits are delayed: the target of the request that could not be met.
    let mut delayed: Option<u64> = None;
    loop {
        let bytes_max = {
            let mut request = maintenance.spill.lock();
            loop {
                if request.stop {
                    return;
                }
                if let Some(bytes_max) = request.wanted.take() {
                    break bytes_max;
                }
                match delayed {
                    None => maintenance.spill_changed.wait(&mut request),
                    Some(bytes_max) => {
                        maintenance.spill_changed.wait_for(&mut request, DELAY);
                        request.wanted.get_or_insert(bytes_max);
                    }
                }
            }
        };
        let Some(store) = store.upgrade() else { return };
        delayed = (!store.engine.fit_versions(bytes_max)).then_some(bytes_max);
    }
}

/// The body of the thread that copies commits to change files.
fn run_feed(store: &Weak<Store>, feed: &Feed) {
    while feed.wait_for_commits() {
        let Some(store) = store.upgrade() else { return };
        if !feed.copy(store.engine.log()) {
            return;
        }
    }
}

/// The body of the thread that copies commits to archive files.
fn run_archiver(store: &Weak<Store>, archiver: &Archiver) {
    while archiver.wait_for_commits() {
        let Some(store) = store.upgrade() else { return };
        if !archiver.copy(store.engine.log()) {
            return;
        }
    }
}

/// The body of the thread that folds runs.
fn run_folds(store: &Weak<Store>, maintenance: &Maintenance) {
    let mut are_left = false;
    loop {
        {
            let mut request = maintenance.fold.lock();
            while !request.stop && !request.is_wanted && !are_left {
                maintenance.fold_changed.wait(&mut request);
            }
            if are_left && !request.stop && !request.is_wanted {
                // A snapshot still needs the database as it was before a run, or the disk is full.
                maintenance.fold_changed.wait_for(&mut request, FOLD_PAUSE);
            }
            if request.stop {
                return;
            }
            request.is_wanted = false;
        }
        let Some(store) = store.upgrade() else { return };
        are_left = store.fold_some(maintenance).unwrap_or_else(|error| {
            log::debug!("folding the runs of {}: {error}", store.path.display());
            store.engine.check_failure().is_ok()
        });
    }
}

/// The body of the maintenance thread: makes checkpoints and reclaims space on request, empties sparse segments
/// afterwards, and shortens the file once the database is idle.
fn run_maintenance(store: &Weak<Store>, maintenance: &Arc<Maintenance>) {
    loop {
        let (free_wanted, checkpoint_wanted, space_wanted) = {
            let mut state = maintenance.state.lock();
            state.is_working = false;
            maintenance.changed.notify_all();
            let mut is_idle = false;
            while !state.stop && (state.is_paused || !state.is_wanted() && !is_idle) {
                if state.is_unpacked && !state.is_paused {
                    is_idle = maintenance.changed.wait_for(&mut state, IDLE).timed_out();
                } else {
                    maintenance.changed.wait(&mut state);
                }
            }
            if state.stop {
                return;
            }
            state.is_working = true;
            state.checkpoints_begun += u64::from(state.checkpoint_wanted);
            state.space_begun += u64::from(state.space_wanted);
            state.is_unpacked = state.is_wanted();
            let state = &mut *state;
            let wanted = [&mut state.free_wanted, &mut state.checkpoint_wanted, &mut state.space_wanted];
            wanted.map(std::mem::take).into()
        };
        let Some(store) = store.upgrade() else { return };
        if free_wanted {
            if let Err(error) = store.free_dropped() {
                log::error!("freeing a dropped keyspace of {}: {error}", store.path.display());
            }
            if !checkpoint_wanted && !space_wanted {
                continue;
            }
        }
        if !checkpoint_wanted && !space_wanted {
            let shortened = store.reclaim(&[Goal::ShortenIdleFile]).map(|reclaimed| reclaimed.is_shorter);
            let may_be_worth_more = shortened.unwrap_or_else(|error| {
                log::debug!("did not shorten the file of {}: {error}", store.path.display());
                false
            });
            maintenance.state.lock().is_unpacked |= may_be_worth_more;
            continue;
        }
        let made = if space_wanted {
            store.reclaim(&[Goal::MakeSpace]).map(drop)
        } else {
            store.checkpoint_at_leisure().map(drop)
        };
        if checkpoint_wanted {
            let mut state = maintenance.state.lock();
            state.checkpoints_ended += 1;
            state.is_checkpoint_refused = made.is_err();
            drop(state);
            maintenance.changed.notify_all();
        }
        if made.is_ok() {
            store.list_residents();
        }
        let done = made.and_then(|()| if space_wanted { Ok(()) } else { store.reclaim(AFTER_CHECKPOINT).map(drop) });
        match &done {
            // Commits that need the space return the `DiskFull` error themselves.
            Err(error @ Error::DiskFull { .. }) => log::debug!("maintenance of {}: {error}", store.path.display()),
            Err(error) => log::error!("maintenance of {}: {error}", store.path.display()),
            Ok(()) => {}
        }
        // A reclaimer that failed for lack of disk space may succeed later. A failed database makes no more
        // checkpoints.
        let failed = done.is_err() && store.engine.check_failure().is_err();
        let mut state = maintenance.state.lock();
        state.space_ended += u64::from(space_wanted);
        state.failed |= failed;
        drop(state);
        maintenance.changed.notify_all();
        if failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::txn::Reclaim;

    /// Background work is unlimited while a commit waits for it, and is restricted to its share afterwards.
    #[test]
    fn background_work_that_commits_wait_for_is_urgent() {
        let db = Config::in_memory().open("").unwrap();
        let store = db.store().unwrap();
        let share = &store.engine.space.share;
        let read = share.foreground();
        let room = || std::iter::from_fn(|| share.try_background()).take(50).collect::<Vec<_>>().len();
        assert!(room() < 10);
        let is_enough = || room() == 50;
        store
            .maintenance
            .wait_for_checkpoint(&|| is_enough() || panic!("background work yields to a commit that waits"));
        assert!(room() < 10);
        drop(read);
    }

    /// A panic of the maintenance thread fails the database and ends the waits for a checkpoint.
    #[test]
    fn a_panic_fails_the_database() {
        let db = Config::in_memory().open("").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        keyspace.insert("a", "1").unwrap();
        let store = db.store().unwrap();
        let maintenance = Arc::clone(&store.maintenance);
        let ended = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| maintenance.wait_for_checkpoint(&|| false));
            let panics = || fail_if_panicking(&Arc::downgrade(store), &maintenance, || panic!("an assertion"));
            let panic = catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
            waiter.join().unwrap();
            panic
        });
        assert_eq!(ended.downcast_ref(), Some(&"an assertion"), "the panic is not told");
        let error = keyspace.insert("a", "2").unwrap_err();
        assert!(matches!(error, Error::Failed { .. }) && error.to_string().contains("panicked"), "{error}");
        assert_eq!(keyspace.get("a").unwrap().as_deref(), Some(&b"1"[..]), "reads go on");
        assert!(db.stats().failed.is_some());
    }
}
