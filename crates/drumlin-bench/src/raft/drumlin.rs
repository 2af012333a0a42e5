//! Drumlin's store: the crate drumlin-raft, with a state machine of rows.

use std::path::Path;

use drumlin::logs::LogsOptions;
use drumlin::{Config, Database, Keyspace, Transaction};
use drumlin_raft::openraft_0_10::{LogStore, StateStore, stores};
use drumlin_raft::{Group, Identity, Node, NodeOptions, Snapshot, StateMachine};

use super::types::{Request, Store, TypeConfig};
use crate::engine::Result;

/// The rows of the benchmark.
pub(crate) struct Rows;

impl StateMachine for Rows {
    type Request = Request;
    type Response = u64;
    type Keyspaces = Keyspace;

    fn open(&self, db: &Database) -> drumlin::Result<Keyspace> {
        db.keyspace("rows")
    }

    fn apply(&self, rows: &Keyspace, tx: &mut Transaction, _index: u64, request: &Request) -> drumlin::Result<u64> {
        request.rows(|key, value| tx.insert(rows, key.to_be_bytes(), value))
    }
}

pub(crate) struct DrumlinStore {
    node: Node,
    group: Group<Rows>,
}

impl Store for DrumlinStore {
    type Log = LogStore<TypeConfig, Rows>;
    type State = StateStore<TypeConfig, Rows>;
    type Snapshot = Snapshot;

    fn create(folder: &Path, node: u64, memory_bytes: u64) -> Result<DrumlinStore> {
        let options = NodeOptions::new()
            .logs(LogsOptions::new().memory(memory_bytes / 4))
            .state(Config::new().memory(memory_bytes / 4 * 3));
        let node = Node::create(folder, &Identity::new("bench", node), &options)?;
        let group = node.group(1, Rows)?;
        Ok(DrumlinStore { node, group })
    }

    fn handles(&self) -> (Self::Log, Self::State) {
        stores(&self.group)
    }

    fn syncs(&self) -> u64 {
        self.node.logs().stats().sync_count
    }

    async fn send(&self, snapshot: &Snapshot, target: &DrumlinStore) -> Result<(Snapshot, u64)> {
        let mut received = target.group.state().receive_snapshot();
        let mut reader = snapshot.reader(0)?;
        while let Some(piece) = reader.next().await? {
            received.write(piece).await?;
        }
        let bytes = received.received_bytes();
        received.finish().await?;
        Ok((received, bytes))
    }

    fn close(self) -> Result<()> {
        self.group.close()?;
        Ok(self.node.close()?)
    }
}
