//! A cluster of nodes in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{BasicNode, Config, RaftNetworkFactory, RaftNetworkV2, SnapshotPolicy};

use super::types::{Request, Store, TypeConfig};
use crate::engine::Result;

/// The upper limit of the election timeout.
pub(crate) const ELECTION_TIMEOUT_MAX: Duration = Duration::from_millis(600);
/// The longest wait for anything that has to happen eventually.
const PATIENCE: Duration = Duration::from_secs(120);
/// The pause between looks at the nodes.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

pub(crate) type Raft<S> = openraft::Raft<TypeConfig, <S as Store>::State>;

/// A node that runs, as the others reach it.
struct Running<S: Store> {
    raft: Raft<S>,
    store: Arc<S>,
}

impl<S: Store> Clone for Running<S> {
    fn clone(&self) -> Running<S> {
        Running { raft: self.raft.clone(), store: Arc::clone(&self.store) }
    }
}

/// A snapshot that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) bytes: u64,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
}

/// The state that all connections share.
struct Shared<S: Store> {
    running: Mutex<BTreeMap<u64, Running<S>>>,
    sent: Mutex<Vec<Sent>>,
}

/// The network as one node sees it: calls without delay. Nodes that don't run are unreachable.
struct Network<S: Store> {
    shared: Arc<Shared<S>>,
    from: u64,
}

/// A connection to a node.
struct Connection<S: Store> {
    shared: Arc<Shared<S>>,
    from: u64,
    target: u64,
}

#[derive(Debug)]
struct Down;

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the node does not run")
    }
}

impl std::error::Error for Down {}

fn unreachable(error: &(impl std::error::Error + 'static)) -> Unreachable<TypeConfig> {
    Unreachable::new(error)
}

impl<S: Store> Connection<S> {
    fn node(&self, number: u64) -> Result<Running<S>, Unreachable<TypeConfig>> {
        let running = self.shared.running.lock().expect("no user panics");
        running.get(&number).cloned().ok_or_else(|| unreachable(&Down))
    }

    fn target(&self) -> Result<Raft<S>, Unreachable<TypeConfig>> {
        self.node(self.from)?;
        Ok(self.node(self.target)?.raft)
    }
}

impl<S: Store> RaftNetworkFactory<TypeConfig> for Network<S> {
    type Network = Connection<S>;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Connection<S> {
        Connection { shared: Arc::clone(&self.shared), from: self.from, target }
    }
}

impl<S: Store> RaftNetworkV2<TypeConfig> for Connection<S> {
    type SnapshotData = S::Snapshot;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Ok(self.target()?.append_entries(request).await.map_err(|error| unreachable(&error))?)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Ok(self.target()?.vote(request).await.map_err(|error| unreachable(&error))?)
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<TypeConfig>,
        snapshot: SnapshotOf<TypeConfig, S::Snapshot>,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let (source, target) = (self.node(self.from)?, self.node(self.target)?);
        let begun = Instant::now();
        let sent = source.store.send(&snapshot.snapshot, &target.store).await;
        let (received, bytes) = sent.map_err(|error| unreachable(&std::io::Error::other(error.to_string())))?;
        let snapshot = SnapshotOf::<TypeConfig, S::Snapshot> { meta: snapshot.meta, snapshot: received };
        let response = target.raft.install_full_snapshot(vote, snapshot).await.map_err(|error| unreachable(&error))?;
        self.shared.sent.lock().expect("no user panics").push(Sent { bytes, begun, ended: Instant::now() });
        Ok(response)
    }
}

/// A cluster, whose nodes can be stopped and started.
pub(crate) struct Cluster<S: Store> {
    shared: Arc<Shared<S>>,
    stores: BTreeMap<u64, Arc<S>>,
    folder: PathBuf,
    node_memory_bytes: u64,
}

impl<S: Store> Cluster<S> {
    /// Creates three nodes with folders in this folder, which together get this many bytes of memory. A fourth node may
    /// be added within the same memory.
    pub(crate) async fn create(folder: &Path, memory_bytes: u64) -> Result<Cluster<S>> {
        let shared = Shared { running: Mutex::default(), sent: Mutex::default() };
        let node_memory_bytes = memory_bytes / 4;
        let (shared, stores) = (Arc::new(shared), BTreeMap::new());
        let mut cluster = Cluster { shared, stores, folder: folder.to_owned(), node_memory_bytes };
        for node in 1..=3 {
            cluster.add(node).await?;
        }
        let members: BTreeMap<u64, BasicNode> = (1..=3).map(|node| (node, BasicNode::default())).collect();
        cluster.node(1)?.raft.initialize(members).await?;
        cluster.leader().await?;
        Ok(cluster)
    }

    /// Creates a node and starts it.
    pub(crate) async fn add(&mut self, node: u64) -> Result<()> {
        let (folder, memory_bytes) = (self.folder.join(format!("node{node}")), self.node_memory_bytes);
        let store = tokio::task::spawn_blocking(move || S::create(&folder, node, memory_bytes)).await??;
        self.stores.insert(node, Arc::new(store));
        self.start(node).await
    }

    /// Starts a node that was stopped.
    pub(crate) async fn start(&self, node: u64) -> Result<()> {
        let config = Config {
            heartbeat_interval: 100,
            election_timeout_min: 300,
            election_timeout_max: ELECTION_TIMEOUT_MAX.as_millis() as u64,
            install_snapshot_timeout: 600_000,
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: 0,
            ..Config::default()
        };
        let store = Arc::clone(self.stores.get(&node).ok_or("there is no such node")?);
        let (log, state) = store.handles();
        let network = Network { shared: Arc::clone(&self.shared), from: node };
        let raft = openraft::Raft::new(node, Arc::new(config.validate()?), network, log, state).await?;
        self.shared.running.lock().expect("no user panics").insert(node, Running { raft, store });
        Ok(())
    }

    fn node(&self, node: u64) -> Result<Running<S>> {
        let running = self.shared.running.lock().expect("no user panics");
        Ok(running.get(&node).cloned().ok_or("the node does not run")?)
    }

    fn all(&self) -> Vec<(u64, Raft<S>)> {
        let running = self.shared.running.lock().expect("no user panics");
        running.iter().map(|(node, running)| (*node, running.raft.clone())).collect()
    }

    /// Cuts a node off from the others, as if it were killed. Returns a function that waits until it has stopped, after
    /// which it can be started.
    pub(crate) fn stop(&self, node: u64) -> Result<impl Future<Output = Result<()>> + use<S>> {
        let stopped = self.shared.running.lock().expect("no user panics").remove(&node);
        let stopped = stopped.ok_or("the node does not run")?;
        Ok(async move { Ok(stopped.raft.shutdown().await?) })
    }

    /// Returns the node that leads, as soon as it has been confirmed by the others.
    pub(crate) async fn leader(&self) -> Result<(u64, Raft<S>)> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            for (node, raft) in self.all() {
                if raft.is_leader() && raft.ensure_linearizable(openraft::ReadPolicy::ReadIndex).await.is_ok() {
                    return Ok((node, raft));
                }
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        Err("the nodes elect no leader".into())
    }

    /// Writes through any node that leads, until a write succeeds.
    pub(crate) async fn write(&self, request: &Request) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            for (_, raft) in self.all() {
                // One that has not noticed that it is cut off does not answer.
                if raft.is_leader()
                    && let Ok(Ok(_)) =
                        tokio::time::timeout(ELECTION_TIMEOUT_MAX, raft.client_write(request.clone())).await
                {
                    return Ok(());
                }
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        Err("no write succeeds".into())
    }

    /// Waits until all nodes that run have applied what the leader has now.
    pub(crate) async fn wait_until_equal(&self) -> Result<()> {
        let (_, leader) = self.leader().await?;
        let last = leader.ensure_linearizable(openraft::ReadPolicy::ReadIndex).await?;
        for (_, raft) in self.all() {
            raft.wait(Some(PATIENCE)).applied_index_at_least(Some(last.index()), "all entries").await?;
        }
        Ok(())
    }

    /// Adds a node that starts from a snapshot, and returns the facts about it.
    pub(crate) async fn add_by_snapshot(&mut self, node: u64) -> Result<Sent> {
        let (_, leader) = self.leader().await?;
        leader.trigger().snapshot().await?;
        let wait = leader.wait(Some(PATIENCE));
        wait.metrics(|metrics| metrics.purged.is_some(), "a purge after a snapshot").await?;
        self.add(node).await?;
        leader.add_learner(node, BasicNode::default(), false).await?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(sent) = self.shared.sent.lock().expect("no user panics").last() {
                return Ok(*sent);
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        Err("no snapshot was sent".into())
    }

    /// Returns the syncs of the logs of all nodes so far.
    pub(crate) fn syncs(&self) -> u64 {
        self.stores.values().map(|store| store.syncs()).sum()
    }

    /// Returns the folder of a node.
    pub(crate) fn node_folder(&self, node: u64) -> PathBuf {
        self.folder.join(format!("node{node}"))
    }

    /// Stops all nodes and closes their stores.
    pub(crate) async fn close(self) -> Result<()> {
        let nodes: BTreeSet<u64> = self.all().into_iter().map(|(node, _)| node).collect();
        for node in nodes {
            self.stop(node)?.await?;
        }
        for store in self.stores.into_values() {
            // A task that just ended may still hold it. Then it is closed by being dropped.
            if let Some(store) = Arc::into_inner(store) {
                tokio::task::spawn_blocking(move || store.close()).await??;
            }
        }
        Ok(())
    }
}
