//! The state of a Raft group: a database to which committed entries are applied. Installing a snapshot replaces it.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use drumlin::{Database, Durability, Keyspace, Transaction, TxOptions};
use drumlin_io::sync::{Mutex, MutexGuard, RwLock};

use crate::codec::{self, Content, EntryId};
use crate::error::{Error, Result};
use crate::machine::StateMachine;
use crate::progress::Progress;
use crate::site::{APPLIED, AppliedState, MEMBERSHIP, META, NodeShared, OWNER, Site, read_applied};
use crate::snapshot::Snapshots;

/// The maximum number of entries applied in one transaction. Their answers stay in memory until it commits.
const BATCH_ENTRIES_MAX: usize = 256;
/// The number of times that a transaction is tried again while others use the memory, and the pause in between.
const SHORTAGE_RETRIES: u32 = 1_000;
const SHORTAGE_PAUSE: Duration = Duration::from_millis(10);

/// An entry to apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step<R> {
    /// The id of the entry.
    pub id: EntryId,
    /// Its content.
    pub content: Content<R>,
}

/// One database, from its creation or restoring until a snapshot replaces it.
pub(crate) struct Generation<M: StateMachine> {
    number: u64,
    pub(crate) database: Database,
    meta: Keyspace,
    keyspaces: M::Keyspaces,
}

impl<M: StateMachine> Generation<M> {
    fn new(number: u64, database: Database, meta: Keyspace, machine: &M) -> Result<Generation<M>> {
        let keyspaces = machine.open(&database)?;
        Ok(Generation { number, database, meta, keyspaces })
    }
}

/// The state of a group. Cloning the handle is cheap.
///
/// # Invariants
/// 1. The state is that after some entry: `applied` and the changes of the entries are in one transaction.
/// 2. Every entry is applied exactly once, in order. After one that can't be applied, no entry is applied.
/// 3. If the node is killed while it installs a snapshot, it opens with the old state or the new one, never a mixture.
pub struct State<M: StateMachine> {
    pub(crate) shared: Arc<Shared<M>>,
}

pub(crate) struct Shared<M: StateMachine> {
    pub(crate) site: Arc<Site>,
    machine: M,
    current: RwLock<Arc<Generation<M>>>,
    progress: Arc<Progress>,
    /// The entry that could not be applied, if there is one. Locked while entries are applied or a snapshot is
    /// installed.
    applying: Mutex<Option<(u64, String)>>,
    pub(crate) snapshots: Snapshots,
}

impl<M: StateMachine> Clone for State<M> {
    fn clone(&self) -> State<M> {
        State { shared: Arc::clone(&self.shared) }
    }
}

impl<M: StateMachine> fmt::Debug for State<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (generation, applied) = (self.generation().number, self.applied_index());
        write!(f, "State(group {}, generation {generation}, applied to {applied:?})", self.shared.site.group)
    }
}

impl<M: StateMachine> State<M> {
    pub(crate) fn open(node: &Arc<NodeShared>, group: u64, machine: M) -> Result<State<M>> {
        let site = Arc::new(Site::new(node, group));
        let number = match site.current_generation()? {
            0 => State::<M>::create(&site)?,
            current => current,
        };
        let database = site.config().create(false).open(site.generation_folder(number))?;
        let meta = site.verify_owner(&database)?;
        // The lock of the database says that this group is not open elsewhere.
        site.remove_leftovers(number);
        database.sync()?;
        let AppliedState { applied, .. } = read_applied(|key| meta.get(key))?;
        let progress = Arc::new(Progress::new(database.clone(), number, applied.map(|id| id.index)));
        let snapshots = Snapshots::open(&site, &database)?;
        let generation = Arc::new(Generation::new(number, database, meta, &machine)?);
        let (current, applying) = (RwLock::new(generation), Mutex::new(None));
        Ok(State { shared: Arc::new(Shared { site, machine, current, progress, applying, snapshots }) })
    }

    /// Makes an empty state, and returns its number.
    fn create(site: &Arc<Site>) -> Result<u64> {
        let number = site.begin_generation()?;
        let database = site.config().create(true).open(site.generation_folder(number))?;
        let meta = database.keyspace(META)?.with_durability(Durability::Full);
        meta.insert(OWNER, codec::encode(&site.owner())?)?;
        drop(meta);
        database.close()?;
        site.switch_to(number)?;
        Ok(number)
    }

    pub(crate) fn generation(&self) -> Arc<Generation<M>> {
        Arc::clone(&self.shared.current.read())
    }

    pub(crate) fn close(&self) -> Result<()> {
        Ok(self.generation().database.clone().close()?)
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.shared.progress
    }

    /// Returns the index of the last entry that was applied.
    #[must_use]
    pub fn applied_index(&self) -> Option<u64> {
        self.shared.progress.applied()
    }

    /// Returns the index of the last entry whose changes a power cut can't undo.
    ///
    /// # Errors
    /// [`drumlin::Error::Closed`].
    pub fn durably_applied_index(&self) -> Result<Option<u64>> {
        self.shared.progress.durable()
    }

    /// Returns the id of the last entry that was applied, and the members of the cluster as of then.
    ///
    /// # Errors
    /// Those of [`Keyspace::get`], and [`Error::Undecodable`].
    pub fn applied(&self) -> Result<AppliedState> {
        let generation = self.generation();
        // Both as of one commit.
        let snapshot = generation.database.snapshot();
        read_applied(|key| snapshot.get(&generation.meta, key))
    }

    /// Reads the state as it is on this node. It may be older than that of the leader: for a linearizable read, ask the
    /// leader first, with openraft's `ensure_linearizable`.
    ///
    /// The database must not be written to. If a snapshot takes the place of the state during a read, it fails with
    /// [`drumlin::Error::Closed`], and the next call has the new one.
    pub fn read<R>(&self, look: impl FnOnce(&Database, &M::Keyspaces) -> R) -> R {
        let generation = self.generation();
        look(&generation.database, &generation.keyspaces)
    }

    /// Applies entries in the order of their indexes, in as few transactions as they fit in, and returns an answer for
    /// each request. Blocks. The changes are visible when this returns, and durable a little later.
    ///
    /// # Errors
    /// [`Error::Stopped`] if an entry can't be applied: the ones before it are. The state machine then applies nothing
    /// until it is opened again.
    pub fn apply(&self, steps: &[Step<M::Request>]) -> Result<Vec<Option<M::Response>>> {
        let mut applying = self.shared.applying.lock();
        let mut answers = Vec::with_capacity(steps.len());
        let mut rest = steps;
        while !rest.is_empty() {
            let count = self.apply_some(&mut applying, rest, &mut answers)?;
            rest = &rest[count..];
        }
        Ok(answers)
    }

    /// Applies the first entries in one transaction. Returns how many.
    fn apply_some(
        &self,
        stopped: &mut MutexGuard<'_, Option<(u64, String)>>,
        steps: &[Step<M::Request>],
        answers: &mut Vec<Option<M::Response>>,
    ) -> Result<usize> {
        if let Some((index, reason)) = &**stopped {
            return Err(Error::Stopped { group: self.shared.site.group, index: *index, reason: reason.clone() });
        }
        let stop = |stopped: &mut Option<(u64, String)>, index: u64, reason: String| {
            *stopped = Some((index, reason.clone()));
            Error::Stopped { group: self.shared.site.group, index, reason }
        };
        let generation = self.generation();
        let options = TxOptions { durability: Durability::Relaxed, ..TxOptions::default() };
        let (answered, mut retries, mut entries_max) = (answers.len(), 0, BATCH_ENTRIES_MAX);
        loop {
            let mut tx = generation.database.begin_with(options)?;
            let mut last: Option<&EntryId> = None;
            let mut failure = None;
            for step in steps.iter().take(entries_max) {
                let index = step.id.index;
                let applied = last.map_or_else(|| self.applied_index(), |id| Some(id.index));
                if applied >= Some(index) {
                    let reason = format!("entry {} is applied already", applied.unwrap_or_default());
                    return Err(stop(stopped, index, reason));
                }
                let savepoint = tx.savepoint();
                match self.apply_one(&generation, &mut tx, step) {
                    Ok(answer) => answers.push(answer),
                    Err(error) => {
                        // The transaction commits the state after the entry before this one.
                        tx.rollback_to(savepoint)?;
                        failure = Some((index, error));
                        break;
                    }
                }
                last = Some(&step.id);
            }
            let count = answers.len() - answered;
            let failure = match last {
                // One row for all entries, because it costs about as much as a request.
                Some(last) => match tx.insert(&generation.meta, APPLIED, last.encode()) {
                    Ok(()) => {
                        self.shared.progress.commit(tx.commit()?, last.index)?;
                        return match failure {
                            // An entry without room begins the next transaction.
                            None | Some((_, Failure::Full(_))) => Ok(count),
                            Some((index, failure)) => Err(stop(stopped, index, failure.to_string())),
                        };
                    }
                    Err(error) => (last.index, Failure::from(error)),
                },
                None => failure.expect("the first entry was applied, or failed"),
            };
            drop(tx);
            answers.truncate(answered);
            match failure {
                (_, Failure::Full(_)) if count > 1 => entries_max = count / 2,
                // Readers may hold the memory. They give it back.
                (_, Failure::Full(drumlin::Error::MemoryInUse { .. })) if retries < SHORTAGE_RETRIES => {
                    retries += 1;
                    drumlin_io::sync::sleep(SHORTAGE_PAUSE);
                }
                (index, failure) => return Err(stop(stopped, index, failure.to_string())),
            }
        }
    }

    fn apply_one(
        &self,
        generation: &Generation<M>,
        tx: &mut Transaction,
        step: &Step<M::Request>,
    ) -> Result<Option<M::Response>, Failure> {
        match &step.content {
            Content::Blank => Ok(None),
            Content::Membership(membership) => {
                tx.insert(&generation.meta, MEMBERSHIP, membership)?;
                Ok(None)
            }
            Content::Request(request) => {
                let machine = &self.shared.machine;
                let apply = || machine.apply(&generation.keyspaces, tx, step.id.index, request);
                match catch_unwind(AssertUnwindSafe(apply)) {
                    Ok(applied) => Ok(Some(applied?)),
                    Err(panic) => Err(Failure::Panic(panic_text(&*panic))),
                }
            }
        }
    }

    /// Puts a database that was restored from a snapshot in the place of the state.
    pub(crate) fn install(&self, number: u64, database: Database) -> Result<()> {
        let stopped = self.shared.applying.lock();
        let meta = self.shared.site.verify_owner(&database)?;
        let AppliedState { applied, .. } = read_applied(|key| meta.get(key))?;
        let generation = Arc::new(Generation::new(number, database.clone(), meta, &self.shared.machine)?);
        // The machine may have created keyspaces.
        database.sync()?;
        self.shared.site.switch_to(number)?;
        self.shared.progress.install(database, number, applied.map(|id| id.index));
        let old = std::mem::replace(&mut *self.shared.current.write(), generation);
        drop(stopped);
        if let Err(error) = old.database.clone().close() {
            log::warn!("the state {} was replaced, and is not closed: {error}", old.database.path().display());
        }
        self.shared.site.remove_generation(old.number);
        Ok(())
    }
}

/// The reason for which an entry was not applied.
enum Failure {
    /// The transaction has no room for it.
    Full(drumlin::Error),
    Error(drumlin::Error),
    Panic(String),
}

impl From<drumlin::Error> for Failure {
    fn from(error: drumlin::Error) -> Failure {
        match error {
            drumlin::Error::TransactionTooLarge { .. } | drumlin::Error::MemoryInUse { .. } => Failure::Full(error),
            error => Failure::Error(error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Full(error) | Failure::Error(error) => write!(f, "{error}"),
            Failure::Panic(text) => write!(f, "the state machine panicked: {text}"),
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a text".to_owned())
}
