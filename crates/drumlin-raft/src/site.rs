//! The places of a node and of the states of its groups, and their owners.
//!
//! ```text
//! NODE/log/                     the logs of all groups
//! NODE/state/GROUP/GENERATION/  a database
//! ```
//!
//! The group's log has a value with the current generation. A snapshot is restored into a folder with a new number, and
//! setting the value is the switch: one record of the log, there or not. Folders with other numbers are leftovers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drumlin::logs::{Log, Logs};
use drumlin::{Config, Database, Keyspace};
use drumlin_io::sync::Mutex;
use serde::{Deserialize, Serialize};

use crate::codec::{self, EntryId};
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::log::read_purged;
use crate::options::NodeOptions;

/// The time after which applied entries are written, unless a purge or a snapshot needs them. The log can repeat them
/// after a power cut.
/// Measured: decision 061.
const STATE_DELAY: Duration = Duration::from_millis(100);

/// The value of a group's log with the [`Generations`].
const GENERATIONS: &str = "state";
/// The keyspace of this crate in the database.
pub(crate) const META: &str = "raft";
pub(crate) const OWNER: &str = "owner";
pub(crate) const APPLIED: &str = "applied";
pub(crate) const MEMBERSHIP: &str = "membership";

/// The handles and settings of an open node.
pub(crate) struct NodeShared {
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) options: NodeOptions,
    pub(crate) logs: Logs,
}

/// The numbers of the folders with states.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Generations {
    /// The current one, or 0 if there is none yet.
    current: u64,
    /// The last one that was begun.
    last: u64,
}

/// Whose state a database is. A snapshot of another cluster or group has another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Owner {
    cluster: String,
    group: u64,
}

/// The part of a group's state that does not depend on the state machine.
pub(crate) struct Site {
    node: Arc<NodeShared>,
    pub(crate) group: u64,
    log: Log,
    /// Held while the value of the generations is changed.
    numbering: Mutex<()>,
}

impl Site {
    pub(crate) fn new(node: &Arc<NodeShared>, group: u64) -> Site {
        Site { node: Arc::clone(node), group, log: node.logs.log(group), numbering: Mutex::new(()) }
    }

    /// Returns the number of the current generation, or 0 if there is none yet.
    pub(crate) fn current_generation(&self) -> Result<u64> {
        Ok(self.generations()?.current)
    }

    fn folder(&self) -> PathBuf {
        group_folder(&self.node.path, self.group)
    }

    pub(crate) fn generation_folder(&self, generation: u64) -> PathBuf {
        self.folder().join(generation.to_string())
    }

    pub(crate) fn config(&self) -> Config {
        self.node.options.state.clone().relaxed_delay(STATE_DELAY)
    }

    pub(crate) fn snapshot_lag_max(&self) -> u64 {
        self.node.options.snapshot_lag_max
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner { cluster: self.node.identity.cluster.clone(), group: self.group }
    }

    /// Returns the index up to which the log was purged.
    pub(crate) fn purged_index(&self) -> Result<Option<u64>> {
        Ok(read_purged(&self.log)?.map(|id| id.index))
    }

    fn generations(&self) -> Result<Generations> {
        let stored = self.log.value(GENERATIONS);
        stored.map_or(Ok(Generations::default()), |bytes| codec::decode("the number of the state", &bytes))
    }

    fn change_generations(&self, change: impl FnOnce(&mut Generations)) -> Result<Generations> {
        let _numbering = self.numbering.lock();
        let mut generations = self.generations()?;
        change(&mut generations);
        self.log.set(GENERATIONS, codec::encode(&generations)?)?.wait()?;
        Ok(generations)
    }

    /// Returns the number of a new generation, which no folder has, whatever was left by a crash.
    pub(crate) fn begin_generation(&self) -> Result<u64> {
        Ok(self.change_generations(|generations| generations.last += 1)?.last)
    }

    /// Makes a generation the current one. It is durable when this returns.
    pub(crate) fn switch_to(&self, generation: u64) -> Result<()> {
        self.change_generations(|generations| generations.current = generation).map(drop)
    }

    /// Checks that a database holds the state of this group, and opens this crate's keyspace in it.
    pub(crate) fn verify_owner(&self, database: &Database) -> Result<Keyspace> {
        let meta = database.existing_keyspace(META)?;
        let stored = meta.get(OWNER)?.ok_or_else(|| Error::undecodable("the owner of a state", "there is none"))?;
        let owner: Owner = codec::decode("the owner of a state", &stored)?;
        if owner.cluster != self.node.identity.cluster {
            let found = Identity { cluster: owner.cluster, node: self.node.identity.node };
            let path = database.path().to_owned();
            return Err(Error::OtherNode { path, expected: self.node.identity.clone(), found });
        }
        if owner != self.owner() {
            let reason = format!("it is the state of group {}, not of {}", owner.group, self.group);
            return Err(Error::undecodable(database.path().display().to_string(), reason));
        }
        Ok(meta)
    }

    pub(crate) fn remove_generation(&self, generation: u64) {
        remove_folder(&self.generation_folder(generation));
    }

    /// Removes the folders that no value names: of a snapshot that was not installed to the end, or was replaced.
    pub(crate) fn remove_leftovers(&self, current: u64) {
        let Ok(folders) = std::fs::read_dir(self.folder()) else { return };
        for folder in folders.flatten() {
            if folder.file_name() != *current.to_string() {
                remove_folder(&folder.path());
            }
        }
    }
}

fn group_folder(node: &Path, group: u64) -> PathBuf {
    node.join("state").join(group.to_string())
}

fn remove_folder(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        log::warn!("{} is still there: {error}", path.display());
    }
}

/// Removes a group that is not open.
pub(crate) fn remove(node: &Arc<NodeShared>, group: u64) -> Result<()> {
    let site = Site::new(node, group);
    let current = site.current_generation()?;
    if current != 0 {
        // This fails if it is open.
        drop(site.config().create(false).open(site.generation_folder(current))?);
    }
    node.logs.remove(group)?.wait()?;
    remove_folder(&site.folder());
    Ok(())
}

/// The last entry that was applied to a state, and the members of the cluster as of then.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct AppliedState {
    /// The id of the last entry that was applied, or `None` if there is none.
    pub applied: Option<EntryId>,
    /// The members of the cluster, in the encoding of the adapter; `None` if no entry has set them.
    pub membership: Option<Vec<u8>>,
}

/// Reads what was applied to a state, from its database or a snapshot of it.
pub(crate) fn read_applied(get: impl Fn(&str) -> drumlin::Result<Option<drumlin::Value>>) -> Result<AppliedState> {
    let applied = get(APPLIED)?.map(|bytes| EntryId::decode("the id of the last applied entry", &bytes)).transpose()?;
    Ok(AppliedState { applied, membership: get(MEMBERSHIP)?.map(|bytes| bytes.to_vec()) })
}

pub(crate) fn read_applied_of(reader: &drumlin::KeptSnapshot) -> Result<AppliedState> {
    let meta = reader.keyspace(META)?;
    read_applied(|key| meta.get(key))
}
