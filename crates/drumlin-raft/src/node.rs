//! A node: the folder of one member of a cluster, with the log of all its groups.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drumlin::logs::Logs;

use crate::codec;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::identity::Identity;
use crate::machine::StateMachine;
use crate::options::NodeOptions;
use crate::site::{self, NodeShared};

/// The log with the values of the node itself. Groups have lower numbers.
const NODE_LOG: u64 = u64::MAX;
/// The value with the node's [`Identity`].
const IDENTITY: &str = "identity";

/// An open node: a folder with one log for any number of groups, and a database for the state of each group. Cloning
/// the handle is cheap. The folder is closed when the last handle is dropped, including those of its groups.
///
/// ```
/// use drumlin_raft::{Identity, KeyValue, Node, NodeOptions};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-raft-node-{}", std::process::id()));
/// let node = Node::create(&folder, &Identity::new("shop", 3), &NodeOptions::new())?; // once, ever
/// drop(node);
/// let node = Node::open(&folder, &Identity::new("shop", 3), &NodeOptions::new())?;
/// let orders = node.group(1, KeyValue)?;
/// assert!(Node::open(&folder, &Identity::new("shop", 4), &NodeOptions::new()).is_err());
/// # drop((orders, node));
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin_raft::Error>(())
/// ```
#[derive(Clone)]
pub struct Node {
    pub(crate) shared: Arc<NodeShared>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} in {})", self.shared.identity, self.shared.path.display())
    }
}

impl Node {
    /// Creates the folder of a new node.
    ///
    /// Call this only for a node that its cluster has never seen under this number. If a node has lost its folder, it
    /// has lost its vote and entries that it acknowledged, and could help to elect a leader who lacks committed
    /// entries. Remove it from the cluster first, and add it again, preferably under another number.
    ///
    /// # Errors
    /// [`Error::AlreadyCreated`] if the folder has this node, [`Error::OtherNode`] if it has another one;
    /// [`drumlin::Error::NotADatabase`] if it holds other things; the errors of [`Logs::open`].
    pub fn create(path: impl AsRef<Path>, identity: &Identity, options: &NodeOptions) -> Result<Node> {
        let path = path.as_ref();
        let logs = Logs::open(log_folder(path), &options.logs.clone().create(true))?;
        match stored_identity(&logs)? {
            Some(found) if found == *identity => return Err(Error::AlreadyCreated { path: path.to_owned() }),
            Some(found) => {
                return Err(Error::OtherNode { path: path.to_owned(), expected: identity.clone(), found });
            }
            None => {}
        }
        logs.log(NODE_LOG).set(IDENTITY, codec::encode(identity)?)?.wait()?;
        Ok(Node::new(path, identity, options, logs))
    }

    /// Opens the folder of a node, and recovers its log. Groups are recovered when they are opened.
    ///
    /// # Errors
    /// [`Error::OtherNode`] for the folder of another node or cluster; [`drumlin::Error::NotFound`] if there is no
    /// folder; [`Error::NotCreated`] or [`drumlin::Error::NotADatabase`] if its creation was interrupted, which
    /// [`create`](Node::create) then finishes; the errors of [`Logs::open`].
    pub fn open(path: impl AsRef<Path>, identity: &Identity, options: &NodeOptions) -> Result<Node> {
        let path = path.as_ref();
        let logs = Logs::open(log_folder(path), &options.logs.clone().create(false))?;
        match stored_identity(&logs)? {
            Some(found) if found == *identity => Ok(Node::new(path, identity, options, logs)),
            Some(found) => Err(Error::OtherNode { path: path.to_owned(), expected: identity.clone(), found }),
            None => Err(Error::NotCreated { path: path.to_owned() }),
        }
    }

    fn new(path: &Path, identity: &Identity, options: &NodeOptions, logs: Logs) -> Node {
        let (path, identity, options) = (path.to_owned(), identity.clone(), options.clone());
        Node { shared: Arc::new(NodeShared { path, identity, options, logs }) }
    }

    /// Returns the name of the node.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Returns the log of the node, for its figures.
    #[must_use]
    pub fn logs(&self) -> &Logs {
        &self.shared.logs
    }

    /// Returns the numbers of the groups that the node has, in ascending order.
    #[must_use]
    pub fn groups(&self) -> Vec<u64> {
        self.shared.logs.numbers().into_iter().filter(|number| *number != NODE_LOG).collect()
    }

    /// Opens a group, or creates it: a Raft log, and the state machine that its entries are applied to. All numbers but
    /// the largest are allowed. A group can be open once at a time.
    ///
    /// # Errors
    /// [`drumlin::Error::Locked`] if the group is open; [`drumlin::Error::NotFound`] if the folder of its state is
    /// lost; [`Error::OtherNode`] if that is the state of another cluster; the errors of [`drumlin::Config::open`] and
    /// of [`StateMachine::open`].
    ///
    /// # Panics
    /// If the number is [`u64::MAX`].
    pub fn group<M: StateMachine>(&self, number: u64, machine: M) -> Result<Group<M>> {
        assert_ne!(number, NODE_LOG, "the largest number is not a group's");
        Group::open(&self.shared, number, machine)
    }

    /// Closes the node: what is pending in the log is written. [Close](Group::close) the groups before. Handles that
    /// are left fail with [`drumlin::Error::Closed`]. Blocks.
    ///
    /// # Errors
    /// Those of [`Logs::close`].
    pub fn close(self) -> Result<()> {
        Ok(self.shared.logs.clone().close()?)
    }

    /// Removes a group that is not open: its log, and its state.
    ///
    /// # Errors
    /// [`drumlin::Error::NoSuchLog`] if there is none; [`drumlin::Error::Locked`] if it is open.
    pub fn remove_group(&self, number: u64) -> Result<()> {
        site::remove(&self.shared, number)
    }
}

fn log_folder(path: &Path) -> PathBuf {
    path.join("log")
}

fn stored_identity(logs: &Logs) -> Result<Option<Identity>> {
    let stored = logs.log(NODE_LOG).value(IDENTITY);
    stored.map(|bytes| codec::decode("the identity of a node", &bytes)).transpose()
}
