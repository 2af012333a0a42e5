//! The parts of an open database, and what its handles share.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, RwLock};

use super::Opening;
use super::open::Locks;
use crate::error::{Error, Result};
use crate::format::catalogue::{Catalogue, KeyspaceEntry};
use crate::format::node::LargeRef;
use crate::format::record::{self, Operation};
use crate::format::{KeyspaceId, Timestamp};
use crate::io::SyncMethod;
use crate::seglog::Body;
use crate::space::PageSpace;
use crate::space::checkpoint::Base;
use crate::task::{Face, ready};
use crate::tree::Tree;
use crate::txn::engine::{Engine, View};
use crate::txn::locks::{Granted, LockError};
use crate::txn::read_set::Reads;
use crate::txn::snapshots::Registration;
use crate::txn::values::{self, Chunk, LargeValue};
use crate::txn::{TransactionId, engine};

/// A keyspace by name.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) tree: Tree,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) path: PathBuf,
    pub(crate) engine: Arc<Engine>,
    pub(crate) keyspaces: RwLock<BTreeMap<String, Arc<Named>>>,
    pub(crate) next_keyspace: AtomicU32,
    /// Held while keyspaces are created and dropped.
    pub(crate) defining: Mutex<()>,
    /// Held by whoever empties segments; taken before `base`.
    pub(crate) cleaning: Mutex<()>,
    /// The durable side; whoever holds it makes the checkpoint.
    pub(crate) base: Mutex<Base>,
    pub(crate) upkeep: Arc<Upkeep>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) opening: OnceLock<Opening>,
    #[expect(dead_code, reason = "held, not looked at")]
    pub(crate) locks: Locks,
    pub(crate) sync: SyncMethod,
    pub(crate) frame_bytes_max: usize,
    pub(crate) page_bytes: usize,
    pub(crate) checkpoint_log_bytes: u64,
    pub(crate) entry_count_max: usize,
    /// What opening found damaged and could do without.
    pub(crate) passed_over: Option<Error>,
    pub(crate) checkpoints: AtomicU64,
    /// How closing it ended. Held while it is being closed, so that whoever else closes it waits.
    pub(crate) closed: Mutex<Option<Result<()>>>,
}

/// What somebody asked for, and how it ended.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    pub(crate) state: Mutex<UpkeepState>,
    pub(crate) changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct UpkeepState {
    /// A checkpoint is wanted.
    pub(crate) wanted: bool,
    /// Space is wanted.
    pub(crate) space_wanted: bool,
    /// How often making space began and ended.
    pub(crate) space_begun: u64,
    pub(crate) space_ended: u64,
    pub(crate) stop: bool,
    pub(crate) failed: bool,
}

impl Upkeep {
    /// Asks for a checkpoint.
    pub(crate) fn ask(&self) {
        self.state.lock().wanted = true;
        self.changed.notify_all();
    }

    /// Has space made, beginning from now on, and waits until that has ended.
    pub(crate) fn make_space(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.space_wanted = true;
        self.changed.notify_all();
        let target = state.space_begun + 1;
        while state.space_ended < target && !state.stop && !state.failed {
            self.changed.wait(&mut state);
        }
        Ok(())
    }
}

/// How long a write waits for a row that another transaction holds, where nothing else is said.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

impl Core {
    // ── keyspaces ──────────────────────────────────────────────────────────────────────────────────────────────────

    pub(crate) fn keyspace(&self, name: &str) -> Option<Arc<Named>> {
        self.keyspaces.read().get(name).cloned()
    }

    pub(crate) fn create_keyspace(&self, name: &str, page_bytes: usize) -> Result<Arc<Named>> {
        let _defining = self.defining.lock();
        if let Some(named) = self.keyspace(name) {
            crate::witness::mark!("two created the same keyspace at once");
            return Ok(named);
        }
        if name.is_empty() || name.len() > 255 {
            return Err(Error::Invalid(format!("{name:?} can't name a keyspace: names have 1 to 255 bytes")));
        }
        self.engine.space.measure_tables();
        self.engine.space.check_tables()?;
        let id = KeyspaceId(self.next_keyspace.load(Ordering::Relaxed));
        if id.0 == u32::MAX {
            return Err(Error::Invalid("there is no number left for another keyspace".into()));
        }
        let mut body = Vec::new();
        record::encode(id, &Operation::Create { page_bytes: page_bytes as u32, name }, &mut body);
        // Its first page, which is dirty, and what the catalogue says of it.
        let _promised = ready(self.engine.promise(Face::Blocking, 2 * page_bytes as u64, false))?;
        self.define(body, |take_timestamp| {
            let frame = self.engine.pool.take_frame(page_bytes)?;
            let guard = self.engine.space.enter();
            let timestamp = take_timestamp();
            let named = self.plant(id, name, page_bytes, frame, &guard);
            self.engine.clock.mark_applied(timestamp);
            Ok(named)
        })
    }

    /// Puts an empty keyspace in place. Inside the guard.
    pub(crate) fn plant(
        &self,
        id: KeyspaceId,
        name: &str,
        page_bytes: usize,
        frame: crate::pool::NewFrame<'_>,
        guard: &crate::space::Guard<'_>,
    ) -> Arc<Named> {
        let pages = Arc::new(PageSpace::new(id, page_bytes, name.len()));
        let named = Arc::new(self.name(name, Arc::clone(&pages)));
        named.tree.plant(guard, frame);
        self.engine.space.add_page_space(pages);
        self.keyspaces.write().insert(name.to_owned(), Arc::clone(&named));
        self.next_keyspace.fetch_max(id.0 + 1, Ordering::Relaxed);
        named
    }

    pub(crate) fn name(&self, name: &str, pages: Arc<PageSpace>) -> Named {
        let observer: Arc<dyn crate::tree::Observer> = Arc::clone(&self.engine.versions) as _;
        Named { name: name.to_owned(), tree: Tree::new(pages, Arc::clone(&self.engine.pool), observer) }
    }

    pub(crate) fn drop_keyspace(&self, name: &str) -> Result<()> {
        let _defining = self.defining.lock();
        let named = self.keyspace(name).ok_or_else(|| Error::NoSuchKeyspace { name: name.to_owned() })?;
        let mut body = Vec::new();
        record::encode(named.tree.pages.id, &Operation::Drop, &mut body);
        self.define(body, |take_timestamp| {
            // No checkpoint is being made meanwhile, and none has failed: then no page's image is owed to one, and nothing
            // can fail once there is a record of the drop.
            let _base = self.base.lock();
            self.engine.check_failure()?;
            let guard = self.engine.space.enter_alone();
            let timestamp = take_timestamp();
            let result = self.uproot(&named, &guard);
            self.engine.clock.mark_applied(timestamp);
            result
        })
    }

    /// Takes a keyspace away with everything in it. Alone in the guard.
    pub(crate) fn uproot(&self, named: &Named, guard: &crate::space::Guard<'_>) -> Result<()> {
        let pages = &named.tree.pages;
        pages.dropped.store(true, Ordering::Release);
        self.keyspaces.write().remove(&named.name);
        self.engine.pool.discard(guard, pages)?;
        self.engine.space.drop_page_space(guard, pages);
        self.engine.versions.drop_keyspace(pages.id);
        Ok(())
    }

    /// Commits a record that is not about rows.
    fn define<T>(&self, body: Vec<u8>, apply: impl FnOnce(&mut dyn FnMut() -> Timestamp) -> Result<T>) -> Result<T> {
        self.engine.check_failure()?;
        let log = self.engine.log();
        let body = Body::new(body);
        let mut reservation = Some(ready(self.engine.reserve_log(Face::Blocking, 0, body.bytes().len()))?);
        let mut appended = None;
        let value = apply(&mut || {
            let reservation = reservation.take().expect("a commit takes its timestamp once");
            let place = reservation.append(&body, false);
            appended = Some(place);
            crate::witness::timestamp_taken(place.timestamp);
            place.timestamp
        })?;
        let appended = appended.expect("applied");
        log.wait_durable(&appended)?;
        self.engine.clock.wait_published(appended.timestamp);
        self.engine.clock.show_durable(log.durable());
        Ok(value)
    }

    /// What a checkpoint records of keyspaces and values. Alone in the guard.
    pub(crate) fn catalogue(&self) -> Catalogue {
        let keyspaces = self.keyspaces.read();
        let keyspaces = keyspaces.values().map(|named| KeyspaceEntry {
            id: named.tree.pages.id,
            page_bytes: named.tree.pages.page_bytes as u32,
            name: named.name.clone(),
            chunks: Vec::new(),
        });
        Catalogue {
            next_keyspace: self.next_keyspace.load(Ordering::Relaxed),
            next_value: self.engine.next_value.load(Ordering::Relaxed),
            keyspaces: keyspaces.collect(),
            summaries: Vec::new(),
            segments: Vec::new(),
            orphans: self.engine.versions.orphans(),
        }
    }

    // ── rows ───────────────────────────────────────────────────────────────────────────────────────────────────────

    pub(crate) fn check_key(&self, named: &Named, key: &[u8]) -> Result<()> {
        let limit_bytes = named.tree.key_bytes_max();
        if key.len() > limit_bytes {
            return Err(Error::KeyTooLong { key_bytes: key.len(), limit_bytes, keyspace: named.name.clone() });
        }
        Ok(())
    }

    pub(crate) fn now(&self) -> Duration {
        self.engine.backend.now()
    }

    pub(crate) fn next_transaction(&self) -> TransactionId {
        TransactionId(self.engine.next_transaction.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes a row's lock, waiting up to `timeout`.
    pub(crate) async fn lock_row(
        &self,
        face: Face<'_>,
        owner: TransactionId,
        keyspace: KeyspaceId,
        key: &[u8],
        timeout: Duration,
    ) -> Result<Granted> {
        let locks = &self.engine.locks;
        if let Ok(granted) = locks.try_lock(owner, keyspace, key) {
            return Ok(granted);
        }
        let deadline = self.now().saturating_add(timeout);
        let locked = match face {
            Face::Blocking => locks.lock(owner, keyspace, key, deadline, &|| self.now()),
            Face::Tasks(tasks) => {
                let mut acquire = pin!(locks.acquire(owner, keyspace, key));
                let mut alarm = None;
                let acquired = poll_fn(|context| match acquire.as_mut().poll(context) {
                    Poll::Ready(locked) => Poll::Ready(locked),
                    // Dropped, it gives up its place, and a lock that nobody has told it of.
                    Poll::Pending if self.now() >= deadline => Poll::Ready(Err(LockError::Timeout)),
                    Poll::Pending => {
                        alarm = Some(tasks.timer.wake_at(deadline, context.waker().clone()));
                        Poll::Pending
                    }
                });
                acquired.await
            }
        };
        locked.map_err(|error| Error::Conflict {
            reason: match error {
                LockError::Timeout => "another transaction kept a row locked for too long",
                LockError::Deadlock => "two transactions wait for rows that the other has locked",
            },
        })
    }

    /// One write outside of a transaction: locks its row and works on the newest. `applied` is called once nothing can take
    /// it back any more.
    pub(crate) async fn autocommit(
        &self,
        face: Face<'_>,
        row: engine::Row<'_>,
        durability: engine::Durability,
    ) -> Result<()> {
        let owner = self.next_transaction();
        let keyspace = row.tree.pages.id;
        self.lock_row(face, owner, keyspace, row.key, LOCK_TIMEOUT).await?;
        let lock = RowLock { engine: &self.engine, owner, keyspace, key: row.key };
        self.commit(face, &[row], None, durability, lock).await.map(drop)
    }

    /// Commits rows whose `locks` the caller has, and asks for a checkpoint where one is due. See [`Engine::commit`].
    pub(crate) async fn commit<L>(
        &self,
        face: Face<'_>,
        rows: &[engine::Row<'_>],
        reads: Option<Reads<'_>>,
        durability: engine::Durability,
        locks: L,
    ) -> Result<Timestamp> {
        let applied = || {
            drop(locks);
            if self.is_checkpoint_due() {
                self.upkeep.ask();
            }
        };
        self.engine.commit(face, rows, reads, durability, applied).await
    }

    fn is_checkpoint_due(&self) -> bool {
        // Once in a while is often enough: the limits are megabytes away from each other.
        let commits = self.engine.commits.load(Ordering::Relaxed);
        let written = self.engine.log_bytes_written.load(Ordering::Relaxed);
        let begun = self.engine.log_bytes_checkpointed.load(Ordering::Relaxed);
        written - begun.min(written) > self.checkpoint_log_bytes
            || (commits.is_multiple_of(64) && self.engine.space.entry_count() > self.entry_count_max)
    }

    // ── large values ───────────────────────────────────────────────────────────────────────────────────────────────

    pub(crate) fn register(&self, choose: impl FnOnce() -> Timestamp) -> Arc<Registration> {
        Arc::new(self.engine.snapshots.register(self.now(), choose))
    }

    fn gone(&self, tree: &Tree, moment: &Registration) -> Error {
        match moment.check().and_then(|()| tree.check_dropped()) {
            Err(error) => error,
            Ok(()) => Error::damaged(
                self.engine.space.path(),
                format!("a value of keyspace {}", tree.pages.id),
                "its extents are another value's",
            ),
        }
    }

    pub(crate) async fn read_large(
        &self,
        face: Face<'_>,
        tree: &Tree,
        reference: &LargeRef,
        moment: &Registration,
    ) -> Result<Vec<u8>> {
        match values::read_whole(face, tree, reference).await {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(self.gone(tree, moment)),
            // The value of a snapshot that was ended may be gone, and its pages another's.
            Err(error) => moment.check().and(Err(error)),
        }
    }

    pub(crate) async fn read_chunk(
        &self,
        face: Face<'_>,
        tree: &Tree,
        reference: &LargeRef,
        index: u32,
        moment: &Registration,
    ) -> Result<Vec<u8>> {
        match values::read_chunk(face, tree, reference, index).await {
            Ok(Chunk::Bytes(bytes)) => Ok(bytes),
            Ok(Chunk::Gone) => Err(self.gone(tree, moment)),
            Err(error) => moment.check().and(Err(error)),
        }
    }

    /// A chunk of a value that the transaction which reads it has put: where it was written, or where the table has it once
    /// the transaction is committed. `moment` is before that, so the value stays.
    pub(crate) async fn read_own_chunk(
        &self,
        face: Face<'_>,
        tree: &Tree,
        value: &LargeValue,
        index: usize,
        moment: &Registration,
    ) -> Result<Vec<u8>> {
        if value.reference().is_none() {
            let read = values::read_unplaced(face, tree, value, index).await;
            if value.reference().is_none() {
                return read;
            }
        }
        let reference = value.reference().expect("looked at");
        self.read_chunk(face, tree, reference, index as u32, moment).await
    }

    pub(crate) async fn read_own(
        &self,
        face: Face<'_>,
        tree: &Tree,
        value: &LargeValue,
        moment: &Registration,
    ) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for index in 0..value.places.len() {
            bytes.extend(self.read_own_chunk(face, tree, value, index, moment).await?);
        }
        Ok(bytes)
    }

    /// The view that a row is read with outside of transactions and snapshots.
    pub(crate) const PLAIN: View = View::Visible;
}

impl Core {
    /// The identity of a new value.
    pub(crate) fn new_value(&self) -> u64 {
        self.engine.next_value.fetch_add(1, Ordering::Relaxed)
    }
}

/// The lock of one row, until it is dropped.
pub(crate) struct RowLock<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) owner: TransactionId,
    pub(crate) keyspace: KeyspaceId,
    pub(crate) key: &'a [u8],
}

impl Drop for RowLock<'_> {
    fn drop(&mut self) {
        self.engine.locks.unlock(self.owner, self.keyspace, self.key);
    }
}
