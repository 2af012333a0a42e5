//! A network that delays messages, loses them, and can be partitioned. A message is delivered at most once.
//!
//! A request runs as a task of the node that receives it, so it ends when that node is killed. A lost request, a lost
//! answer and a killed node look the same to the sender: nothing arrives in time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drumlin_io::testing::sim::{self, Random};
use drumlin_raft::Snapshot;
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AsyncRuntime, BasicNode, RaftNetworkFactory, RaftNetworkV2};

use super::TypeConfig;
use super::oracle::Oracle;
use super::running::Running;
use super::runtime::{Runtime, WORLD};

/// The longest delay of a message, usually.
const DELAY_MAX: Duration = Duration::from_micros(500);
/// The longest delay of one message in [`Wires::slow_one_in`].
const DELAY_SLOW_MAX: Duration = Duration::from_millis(80);

/// The network of a cluster. Clones share it.
#[derive(Clone)]
pub(crate) struct Network {
    wires: Arc<Mutex<Wires>>,
    oracle: Oracle,
}

struct Wires {
    random: Random,
    running: BTreeMap<u64, Running>,
    /// The pairs of sender and receiver between which nothing arrives.
    parted: BTreeSet<(u64, u64)>,
    lost_one_in: u64,
    slow_one_in: u64,
    lost: u64,
    snapshots_sent: u64,
    snapshots_resumed: u64,
}

impl Network {
    pub(crate) fn new(seed: u64, oracle: &Oracle) -> Network {
        let wires = Wires {
            random: Random(seed),
            running: BTreeMap::new(),
            parted: BTreeSet::new(),
            lost_one_in: 0,
            slow_one_in: 0,
            lost: 0,
            snapshots_sent: 0,
            snapshots_resumed: 0,
        };
        Network { wires: Arc::new(Mutex::new(wires)), oracle: oracle.clone() }
    }

    /// No task yields to the scheduler while it holds this lock.
    fn lock(&self) -> MutexGuard<'_, Wires> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn attach(&self, number: u64, running: Running) {
        self.lock().running.insert(number, running);
    }

    pub(crate) fn detach(&self, number: u64) -> Option<Running> {
        self.lock().running.remove(&number)
    }

    /// Returns the node with this number, if it is running.
    pub(crate) fn running(&self, number: u64) -> Option<Running> {
        self.lock().running.get(&number).cloned()
    }

    pub(crate) fn all(&self) -> Vec<(u64, Running)> {
        self.lock().running.iter().map(|(number, running)| (*number, running.clone())).collect()
    }

    /// Loses one in `lost_one_in` messages, and delays one in `slow_one_in` for long. 0 means never.
    pub(crate) fn disturb(&self, lost_one_in: u64, slow_one_in: u64) {
        let mut wires = self.lock();
        (wires.lost_one_in, wires.slow_one_in) = (lost_one_in, slow_one_in);
    }

    /// Partitions the network: drops every message between these pairs of sender and receiver.
    pub(crate) fn part(&self, parted: BTreeSet<(u64, u64)>) {
        self.lock().parted = parted;
    }

    /// Returns the numbers of lost messages, of sent snapshots, and of snapshots resumed after a broken connection.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let wires = self.lock();
        (wires.lost, wires.snapshots_sent, wires.snapshots_resumed)
    }

    /// Waits until a message has arrived. Returns `false` if it is lost.
    pub(crate) async fn travel(&self, from: u64, to: u64) -> bool {
        let delay = {
            let wires = &mut *self.lock();
            let delay_max = if wires.random.one_in(wires.slow_one_in) { DELAY_SLOW_MAX } else { DELAY_MAX };
            let delay = Duration::from_nanos(wires.random.below(delay_max.as_nanos() as u64));
            (!wires.random.one_in(wires.lost_one_in)).then_some(delay)
        };
        if let Some(delay) = delay {
            Runtime::sleep(delay).await;
        }
        let mut wires = self.lock();
        let arrives = delay.is_some() && !wires.parted.contains(&(from, to));
        wires.lost += u64::from(!arrives);
        arrives
    }

    /// Makes a request to a node. Returns `None` if there is no answer.
    pub(crate) async fn call<T: Send + 'static, F>(
        &self,
        (from, to): (u64, u64),
        request: impl FnOnce(Running) -> F,
    ) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        if !self.travel(from, to).await {
            return None;
        }
        let running = self.running(to)?;
        let answer = Runtime::spawn_as(to, request(running)).await.ok()?;
        self.travel(to, from).await.then_some(answer)
    }
}

#[derive(Debug)]
struct NoAnswer;

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "there is no answer")
    }
}

impl std::error::Error for NoAnswer {}

fn unreachable(error: &(impl std::error::Error + 'static)) -> Unreachable<TypeConfig> {
    Unreachable::new(error)
}

/// A connection between two nodes.
pub(crate) struct Connection {
    network: Network,
    from: u64,
    to: u64,
}

impl Connection {
    /// Makes a request. Without an answer, it fails when its time is over.
    async fn call<T: Send + 'static, F>(
        &self,
        option: &RPCOption,
        request: impl FnOnce(Running) -> F,
    ) -> Result<T, Unreachable<TypeConfig>>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let began = sim::now();
        match self.network.call((self.from, self.to), request).await {
            Some(answer) => Ok(answer),
            None => {
                Runtime::sleep(option.hard_ttl().saturating_sub(sim::now().saturating_sub(began))).await;
                Err(unreachable(&NoAnswer))
            }
        }
    }
}

/// The connections of one node.
pub(crate) struct Connections {
    pub(crate) network: Network,
    pub(crate) from: u64,
}

impl RaftNetworkFactory<TypeConfig> for Connections {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Connection {
        Connection { network: self.network.clone(), from: self.from, to: target }
    }
}

impl RaftNetworkV2<TypeConfig> for Connection {
    type SnapshotData = Snapshot;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let leader = request.vote.leader_id;
        self.network.oracle.leads(leader.term, leader.voted_for);
        let call = |running: Running| async move { running.raft.append_entries(request).await };
        Ok(self.call(&option, call).await?.map_err(|error| unreachable(&error))?)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let call = |running: Running| async move { running.raft.vote(request).await };
        Ok(self.call(&option, call).await?.map_err(|error| unreachable(&error))?)
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let call = |running: Running| async move { running.raft.handle_transfer_leader(request).await };
        Ok(self.call(&option, call).await?.map_err(|error| unreachable(&error))?)
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<TypeConfig>,
        snapshot: SnapshotOf<TypeConfig, Snapshot>,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let target = self.network.running(self.to).ok_or_else(|| unreachable(&NoAnswer))?;
        let sent = async {
            let mut received = target.group.state().receive_snapshot();
            loop {
                let mut reader = snapshot.snapshot.reader(received.received_bytes())?;
                let is_whole = loop {
                    let Some(piece) = reader.next().await? else { break true };
                    if !self.network.travel(self.from, self.to).await {
                        break false;
                    }
                    received.write(piece).await?;
                };
                if is_whole {
                    received.finish().await?;
                    return Ok::<Snapshot, drumlin_raft::Error>(received);
                }
                // The connection broke. A new one resumes the transfer if the receiver still has the first part.
                Runtime::sleep(option.soft_ttl()).await;
                if self.network.running(self.to).is_none_or(|running| running.opening != target.opening) {
                    return Err(drumlin_raft::Error::NoSuchSnapshot);
                }
                self.network.lock().snapshots_resumed += 1;
            }
        };
        let received = sent.await.map_err(|error| unreachable(&error))?;
        self.network.lock().snapshots_sent += 1;
        let snapshot = SnapshotOf::<TypeConfig, Snapshot> { meta: snapshot.meta, snapshot: received };
        let call = |running: Running| async move { running.raft.install_full_snapshot(vote, snapshot).await };
        Ok(self.call(&option, call).await?.map_err(|error| unreachable(&error))?)
    }
}

/// A client is outside of the cluster, and reaches every node that runs.
pub(crate) const CLIENT: u64 = WORLD;
