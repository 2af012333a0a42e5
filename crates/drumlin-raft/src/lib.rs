//! The storage of a replicated database: a Raft log and a state machine on Drumlin, for openraft.
//!
//! Three processes with Drumlin in them are a database that survives the loss of one. [openraft] decides what is
//! committed; this crate stores it, on each node:
//!
//! - [`Node`]: the folder of a node. It has one log for all of its groups, so all of them share each write and sync.
//! - [`Group`]: one replicated database on this node: a [`RaftLog`], and a [`State`].
//! - [`StateMachine`]: what the entries do. You write one, or take [`KeyValue`].
//! - [`Snapshot`]: a state on its way to another node.
//!
//! Each entry takes one durable write. The log makes it durable, and the state machine applies it in a transaction that
//! need not be: after a crash the state is that after *some* entry, and the log has the rest.
//!
//! ```
//! use drumlin_raft::{Identity, KeyValue, Node, NodeOptions};
//!
//! # let folder = std::env::temp_dir().join(format!("drumlin-doc-raft-{}", std::process::id()));
//! let node = Node::create(&folder, &Identity::new("shop", 3), &NodeOptions::new())?;
//! let group = node.group(1, KeyValue)?;
//! // let (log_store, state_machine) = drumlin_raft::openraft_0_10::stores::<TypeConfig, _>(&group);
//! // let raft = Raft::new(3, config, network, log_store, state_machine).await?;
//! # drop((group, node));
//! # std::fs::remove_dir_all(folder).unwrap();
//! # Ok::<(), drumlin_raft::Error>(())
//! ```
//!
//! # Features
//!
//! | feature | effect |
//! | --- | --- |
//! | `openraft-0-10` (default) | the module `openraft_0_10`: the storage traits of openraft 0.10 |
//! | `openraft-0-9` | the module `openraft_0_9`: those of openraft 0.9, which waits for each append before the next |
//!
//! [openraft]: https://docs.rs/openraft
#![deny(missing_docs)]

mod codec;
mod error;
mod exchange;
mod group;
mod identity;
mod key_value;
mod log;
mod machine;
mod node;
#[cfg(feature = "openraft-0-10")]
pub mod openraft_0_10;
#[cfg(feature = "openraft-0-9")]
pub mod openraft_0_9;
mod options;
mod progress;
mod site;
mod snapshot;
mod state;
mod threads;

pub use codec::{Content, EntryId};
pub use error::{Error, Result};
pub use group::Group;
pub use identity::Identity;
pub use key_value::{KeyValue, KeyValueRequest, KeyValueResponse};
pub use log::RaftLog;
pub use machine::StateMachine;
pub use node::Node;
pub use options::NodeOptions;
pub use site::AppliedState;
pub use snapshot::{Snapshot, SnapshotReader};
pub use state::{State, Step};
