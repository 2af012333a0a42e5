//! Nodes on real files and on a simulated disk.

use std::path::PathBuf;
use std::sync::Arc;

use drumlin::logs::LogsOptions;
use drumlin::{Config, IoBackend};
use drumlin_io::Backend;
use drumlin_io::testing::sim::{self, Loss, Medium};
use drumlin_raft::{
    Content, EntryId, Group, Identity, KeyValue, KeyValueRequest, Node, NodeOptions, Result, StateMachine, Step,
};
use tempfile::TempDir;

/// The group that the tests use.
pub(crate) const GROUP: u64 = 1;

/// The kinds of disks that a suite runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Files(IoBackend),
    /// Files in the system's memory, if it has a folder for them: opening a node a thousand times takes thousands of
    /// syncs.
    FilesInMemory(IoBackend),
    Simulated,
}

/// The place of a node.
pub(crate) enum Place {
    Files(IoBackend, TempDir),
    Simulated(sim::Disk),
}

impl Place {
    pub(crate) fn new(kind: Kind) -> Place {
        match kind {
            Kind::Files(backend) => Place::Files(backend, tempfile::tempdir().unwrap()),
            Kind::FilesInMemory(backend) => {
                let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
                Place::Files(backend, folder.unwrap())
            }
            Kind::Simulated => Place::Simulated(sim::Disk::new(Medium::default(), 7)),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Place::Files(_, folder) => folder.path().join("node"),
            Place::Simulated(_) => PathBuf::from("/simulated/node"),
        }
    }

    pub(crate) fn options(&self) -> NodeOptions {
        let logs = LogsOptions::new().memory(2 << 20).segment_bytes(64 << 10);
        let state = Config::new().memory(8 << 20).warm_start(false);
        match self {
            Place::Files(backend, _) => {
                NodeOptions::new().logs(logs.io_backend(*backend)).state(state.io_backend(*backend))
            }
            Place::Simulated(disk) => {
                let backend: Arc<dyn Backend> = disk.backend();
                NodeOptions::new().logs(logs.backend(Arc::clone(&backend))).state(state.backend(backend))
            }
        }
    }

    /// Turns a simulated disk off, and returns it as a power cut at this moment may leave it.
    pub(crate) fn cut(&self, seed: u64) -> Place {
        let Place::Simulated(disk) = self else { panic!("the power of real files can't be cut") };
        disk.turn_off();
        Place::Simulated(sim::Disk::new(disk.medium().cut(Loss::Sectors, &mut sim::Random(seed)), seed))
    }

    /// Turns a simulated disk off, and returns it as the end of the process leaves it: nothing is lost.
    pub(crate) fn kill(&self) -> Place {
        let Place::Simulated(disk) = self else { panic!("the process of the tests is not killed") };
        disk.turn_off();
        Place::Simulated(sim::Disk::new(disk.medium(), 7))
    }

    pub(crate) fn create(&self) -> Result<Node> {
        Node::create(self.path(), &identity(), &self.options())
    }

    pub(crate) fn open(&self) -> Result<Node> {
        Node::open(self.path(), &identity(), &self.options())
    }
}

pub(crate) fn identity() -> Identity {
    Identity::new("shop", 3)
}

/// An open node with a group, which can be closed and opened again.
pub(crate) struct Opened<M: StateMachine> {
    pub(crate) place: Place,
    pub(crate) node: Option<Node>,
    pub(crate) group: Option<Group<M>>,
}

impl<M: StateMachine + Clone> Opened<M> {
    pub(crate) fn create(place: Place, machine: M) -> Opened<M> {
        let node = place.create().unwrap();
        let group = node.group(GROUP, machine).unwrap();
        Opened { place, node: Some(node), group: Some(group) }
    }

    pub(crate) fn open(place: Place, machine: M) -> Opened<M> {
        let node = place.open().unwrap();
        let group = node.group(GROUP, machine).unwrap();
        Opened { place, node: Some(node), group: Some(group) }
    }

    pub(crate) fn group(&self) -> &Group<M> {
        self.group.as_ref().unwrap()
    }

    pub(crate) fn close(&mut self) {
        self.group.take().unwrap().close().unwrap();
        self.node.take().unwrap().close().unwrap();
    }

    pub(crate) fn reopen(&mut self, machine: M) {
        self.close();
        let node = self.place.open().unwrap();
        self.group = Some(node.group(GROUP, machine).unwrap());
        self.node = Some(node);
    }
}

/// A node that is closed and opened before each call.
#[derive(Clone)]
pub(crate) struct Reopening(Arc<tokio::sync::Mutex<Opened<KeyValue>>>);

impl Reopening {
    pub(crate) fn new(kind: Kind) -> Reopening {
        Reopening(Arc::new(tokio::sync::Mutex::new(Opened::create(Place::new(kind), KeyValue))))
    }

    /// Closes the node, opens it again, and returns the group.
    pub(crate) async fn group(&self) -> Group<KeyValue> {
        let opened = Arc::clone(&self.0);
        let reopened = tokio::task::spawn_blocking(move || {
            let mut opened = opened.blocking_lock();
            opened.reopen(KeyValue);
            opened.group().clone()
        });
        reopened.await.unwrap()
    }
}

/// An entry whose id is nothing but its index.
pub(crate) fn step<R>(index: u64, request: R) -> Step<R> {
    Step { id: id(index), content: Content::Request(request) }
}

pub(crate) fn id(index: u64) -> EntryId {
    EntryId { index, bytes: vec![] }
}

/// The name of the row that each entry of [`count_to`] sets to its index.
pub(crate) const LAST: &str = "last";

/// Applies the entries from one index to another. Each sets a row of its own, and [`LAST`].
pub(crate) fn count_to(group: &Group<KeyValue>, first: u64, last: u64) {
    for index in first..=last {
        let put = |key: &str| KeyValueRequest::put(key, index.to_string());
        // An entry for each of the two rows, so that their values tell which entries were applied.
        group.state().apply(&[step(2 * index, put(&format!("row {index}"))), step(2 * index + 1, put(LAST))]).unwrap();
    }
}

/// Checks that the state is that after the entries of [`count_to`], from 1 to some entry. Returns its index.
pub(crate) fn check_count(group: &Group<KeyValue>) -> Option<u64> {
    let applied = group.state().applied().unwrap().applied.map(|id| id.index);
    assert_eq!(applied, group.state().applied_index());
    let (rows, last) = group.state().read(|_, rows| {
        let last = rows.get(LAST).unwrap().map_or(0, |value| std::str::from_utf8(&value).unwrap().parse().unwrap());
        (rows.prefix("row ").count() as u64, last)
    });
    let applied_or_before = applied.unwrap_or(1);
    assert_eq!(rows, applied_or_before / 2, "applied {applied:?}");
    assert_eq!(last, (applied_or_before - 1) / 2, "applied {applied:?}");
    applied
}
