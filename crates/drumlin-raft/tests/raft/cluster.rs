//! Clusters of openraft 0.10 in one process, each node on a simulated disk of its own, whose power is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drumlin_raft::openraft_0_10::{StateStore, stores};
use drumlin_raft::{Group, KeyValue, KeyValueRequest, Snapshot};
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{BasicNode, Config, RaftNetworkFactory, RaftNetworkV2, SnapshotPolicy};
use openraft_0_10 as openraft;

use crate::suite_0_10::TypeConfig;
use crate::support::{Kind, Opened, Place};

type Raft = openraft::Raft<TypeConfig, StateStore<TypeConfig, KeyValue>>;

/// The time that anything may take on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node that runs, as the others reach it.
#[derive(Clone)]
struct Running {
    raft: Raft,
    group: Group<KeyValue>,
}

/// A network without delays. Nodes that don't run are unreachable.
#[derive(Clone, Default)]
struct Network {
    running: Arc<Mutex<BTreeMap<u64, Running>>>,
}

/// A connection to a node.
struct Connection {
    network: Network,
    target: u64,
}

#[derive(Debug)]
struct Down;

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the node does not run")
    }
}

impl std::error::Error for Down {}

fn unreachable(error: &(impl std::error::Error + 'static)) -> Unreachable<TypeConfig> {
    Unreachable::new(error)
}

impl Connection {
    fn target(&self) -> Result<Running, Unreachable<TypeConfig>> {
        self.network.running.lock().unwrap().get(&self.target).cloned().ok_or_else(|| unreachable(&Down))
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Connection {
        Connection { network: self.clone(), target }
    }
}

impl RaftNetworkV2<TypeConfig> for Connection {
    type SnapshotData = Snapshot;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Ok(self.target()?.raft.append_entries(request).await.map_err(|error| unreachable(&error))?)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Ok(self.target()?.raft.vote(request).await.map_err(|error| unreachable(&error))?)
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<TypeConfig>,
        snapshot: SnapshotOf<TypeConfig, Snapshot>,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let target = self.target()?;
        let sent = async {
            let mut received = target.group.state().receive_snapshot();
            let mut reader = snapshot.snapshot.reader(0)?;
            while let Some(piece) = reader.next().await? {
                received.write(piece).await?;
            }
            received.finish().await?;
            Ok::<Snapshot, drumlin_raft::Error>(received)
        };
        let received = sent.await.map_err(|error| unreachable(&error))?;
        let snapshot = SnapshotOf::<TypeConfig, Snapshot> { meta: snapshot.meta, snapshot: received };
        Ok(target.raft.install_full_snapshot(vote, snapshot).await.map_err(|error| unreachable(&error))?)
    }
}

/// A cluster, and what it has acknowledged.
struct Cluster {
    network: Network,
    /// The disks of the nodes that run.
    opened: BTreeMap<u64, Opened<KeyValue>>,
    acknowledged: BTreeSet<u64>,
}

impl Cluster {
    async fn new(nodes: u64) -> Cluster {
        let mut cluster =
            Cluster { network: Network::default(), opened: BTreeMap::new(), acknowledged: BTreeSet::new() };
        for number in 1..=nodes {
            cluster.start(number, Opened::create(Place::new(Kind::Simulated), KeyValue)).await;
        }
        let members: BTreeMap<u64, BasicNode> = (1..=nodes).map(|number| (number, BasicNode::default())).collect();
        cluster.running(1).raft.initialize(members).await.unwrap();
        cluster
    }

    async fn start(&mut self, number: u64, opened: Opened<KeyValue>) {
        let config = Config {
            heartbeat_interval: 200,
            election_timeout_min: 1000,
            election_timeout_max: 2000,
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: 0,
            ..Config::default()
        };
        let group = opened.group().clone();
        let (log, state) = stores::<TypeConfig, _>(&group);
        let config = Arc::new(config.validate().unwrap());
        let raft = Raft::new(number, config, self.network.clone(), log, state).await.unwrap();
        self.network.running.lock().unwrap().insert(number, Running { raft, group });
        self.opened.insert(number, opened);
    }

    fn running(&self, number: u64) -> Running {
        self.network.running.lock().unwrap()[&number].clone()
    }

    fn all(&self) -> Vec<(u64, Running)> {
        let running = self.network.running.lock().unwrap();
        running.iter().map(|(number, node)| (*number, node.clone())).collect()
    }

    /// Cuts the power of a node, and returns its disk as it may be then.
    async fn cut(&mut self, number: u64, seed: u64) -> Place {
        let mut opened = self.opened.remove(&number).unwrap();
        let running = self.network.running.lock().unwrap().remove(&number).unwrap();
        let place = opened.place.cut(seed);
        let _ = running.raft.shutdown().await;
        drop(running);
        tokio::task::spawn_blocking(move || {
            // The disk is off, so nothing can be closed.
            drop(opened.group.take());
            drop(opened.node.take());
            place
        })
        .await
        .unwrap()
    }

    /// Returns the node that leads, as soon as there is one.
    async fn leader(&self) -> (u64, Running) {
        let began = Instant::now();
        loop {
            for (number, node) in self.all() {
                if node.raft.ensure_linearizable(openraft::ReadPolicy::ReadIndex).await.is_ok() {
                    return (number, node);
                }
            }
            assert!(began.elapsed() < PATIENCE, "there is no leader");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Writes rows with these numbers, each until it is acknowledged.
    async fn write(&mut self, rows: std::ops::Range<u64>) {
        for row in rows {
            let began = Instant::now();
            loop {
                let (_, leader) = self.leader().await;
                let request = KeyValueRequest::put(format!("row {row:04}"), row.to_string());
                leader.group.check(&request).unwrap();
                if leader.raft.client_write(request).await.is_ok() {
                    self.acknowledged.insert(row);
                    break;
                }
                assert!(began.elapsed() < PATIENCE, "row {row} can't be written");
            }
        }
    }

    /// Waits until all nodes have applied the same entries. Then they have the same rows: those that were acknowledged.
    async fn check(&self) {
        let began = Instant::now();
        loop {
            let applied: BTreeSet<_> = self.all().iter().map(|(_, node)| node.group.state().applied_index()).collect();
            if applied.len() == 1 {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "the nodes have applied {applied:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for (number, node) in self.all() {
            let rows: BTreeSet<u64> = node.group.state().read(|_, rows| {
                rows.iter().map(|row| String::from_utf8(row.unwrap().1.to_vec()).unwrap().parse().unwrap()).collect()
            });
            assert_eq!(rows, self.acknowledged, "node {number}");
        }
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

/// The leader loses power three times. Nothing that was acknowledged is lost, and the node continues from its disk.
#[test]
fn leaders_lose_power() {
    run(async {
        let mut cluster = Cluster::new(3).await;
        for round in 0..3 {
            cluster.write(20 * round..20 * round + 15).await;
            let (leader, _) = cluster.leader().await;
            let place = cluster.cut(leader, round).await;
            cluster.write(20 * round + 15..20 * round + 20).await;
            cluster.start(leader, Opened::open(place, KeyValue)).await;
        }
        cluster.check().await;
    });
}

/// All nodes lose power at once.
#[test]
fn all_nodes_lose_power() {
    run(async {
        let mut cluster = Cluster::new(3).await;
        for round in 0..2 {
            cluster.write(20 * round..20 * round + 20).await;
            let mut places = Vec::new();
            for number in 1..=3 {
                places.push((number, cluster.cut(number, round).await));
            }
            for (number, place) in places {
                cluster.start(number, Opened::open(place, KeyValue)).await;
            }
        }
        cluster.write(40..45).await;
        cluster.check().await;
    });
}

/// A node that is added after the log was purged starts from a snapshot, and becomes a voter.
#[test]
fn a_new_node_starts_from_a_snapshot() {
    run(async {
        let mut cluster = Cluster::new(3).await;
        cluster.write(0..30).await;
        let (_, leader) = cluster.leader().await;
        let applied = leader.group.state().applied_index();
        leader.raft.trigger().snapshot().await.unwrap();
        let wait = leader.raft.wait(Some(PATIENCE));
        wait.metrics(|metrics| metrics.snapshot.as_ref().map(|id| id.index) >= applied, "a snapshot").await.unwrap();
        wait.metrics(|metrics| metrics.purged.as_ref().map(|id| id.index) >= applied, "a purge").await.unwrap();
        // All that is purged is durably applied.
        assert!(leader.group.state().durably_applied_index().unwrap() >= applied);
        cluster.write(30..35).await;
        cluster.start(4, Opened::create(Place::new(Kind::Simulated), KeyValue)).await;
        let (_, leader) = cluster.leader().await;
        leader.raft.add_learner(4, BasicNode::default(), true).await.unwrap();
        leader.raft.change_membership(BTreeSet::from([1, 2, 3, 4]), false).await.unwrap();
        cluster.write(35..40).await;
        cluster.check().await;
        // What it lacked was purged.
        assert!(cluster.running(4).group.state().newest_snapshot().is_some(), "it was sent no snapshot");
        // It has a state of its own, that survives.
        let place = cluster.cut(4, 1).await;
        cluster.start(4, Opened::open(place, KeyValue)).await;
        cluster.write(40..42).await;
        cluster.check().await;
    });
}
