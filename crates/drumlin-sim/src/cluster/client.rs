//! A client of a simulated cluster. It writes and reads keys, and reports each operation and its answer to the oracle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use drumlin_io::testing::sim::Random;
use drumlin_raft::KeyValueRequest;
use openraft::async_runtime::WatchReceiver;
use openraft::{AsyncRuntime, ReadPolicy};

use super::network::{CLIENT, Network};
use super::oracle::{Oracle, ReadState};
use super::plan::Plan;
use super::running::Running;
use super::runtime::Runtime;

/// The time after which a client gives an operation up.
const PATIENCE: Duration = Duration::from_millis(400);

/// The parts of a cluster's world that its clients share.
pub(crate) struct Clients {
    pub(crate) plan: Plan,
    pub(crate) network: Network,
    pub(crate) oracle: Oracle,
    pub(crate) is_over: AtomicBool,
    pub(crate) writes: AtomicU64,
    pub(crate) writes_unknown: AtomicU64,
    pub(crate) reads: AtomicU64,
}

/// A client.
pub(crate) struct Client {
    clients: Arc<Clients>,
    number: u64,
    random: Random,
    value_count: u64,
}

/// Returns a running node that considers itself the leader or, if there is none, any running node.
pub(crate) fn some_leader(network: &Network, random: &mut Random) -> Option<u64> {
    let all = network.all();
    if all.is_empty() {
        return None;
    }
    let (number, running) = &all[random.below(all.len() as u64) as usize];
    let leader = running.raft.metrics().borrow_watched().current_leader;
    Some(leader.filter(|_| random.chance(90)).unwrap_or(*number))
}

impl Client {
    pub(crate) fn new(clients: &Arc<Clients>, number: u64, random: Random) -> Client {
        Client { clients: Arc::clone(clients), number, random, value_count: 0 }
    }

    pub(crate) async fn run(mut self) {
        while !self.clients.is_over.load(Ordering::Relaxed) {
            let micros_max = if self.random.chance(80) { 2_000 } else { 30_000 };
            Runtime::sleep(Duration::from_micros(self.random.below(micros_max))).await;
            let Some(node) = some_leader(&self.clients.network, &mut self.random) else { continue };
            match self.random.below(100) {
                0..60 => drop(self.write(node).await),
                60..90 => self.read(node).await,
                _ => self.read_stale(node).await,
            }
        }
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key {}", self.random.below(self.clients.plan.keys)).into_bytes()
    }

    /// Returns a value that no other write has.
    fn value(&mut self) -> Vec<u8> {
        self.value_count += 1;
        let bytes_max = if self.random.one_in(100) { 60_000 } else { self.clients.plan.value_bytes };
        let mut value = format!("{}-{} ", self.number, self.value_count).into_bytes();
        value.resize(value.len() + self.random.below(bytes_max) as usize, b'.');
        value
    }

    fn request(&mut self) -> KeyValueRequest {
        let key = self.key();
        match self.random.below(100) {
            0..70 => KeyValueRequest::Put { key, value: self.value() },
            70..80 => KeyValueRequest::Remove { key },
            // The client does not know the value, so it guesses.
            _ => KeyValueRequest::CompareAndSet { key, expected: None, value: Some(self.value()) },
        }
    }

    /// Makes one random write through a node. Returns `true` if the write was acknowledged.
    pub(crate) async fn write(&mut self, node: u64) -> bool {
        let (request, own) = (self.request(), Arc::clone(&self.clients));
        let began = own.oracle.begin();
        let proposed = request.clone();
        let call = |running: Running| async move {
            running.group.check(&proposed).expect("a small request");
            running.raft.client_write(proposed).await
        };
        let answer = Runtime::timeout(PATIENCE, own.network.call((CLIENT, node), call)).await;
        match answer {
            Ok(Some(Ok(written))) => {
                let response = written.data.expect("an answer to a request");
                own.oracle.wrote(began, written.log_id.index, &request, &response);
                own.writes.fetch_add(1, Ordering::Relaxed);
                true
            }
            // Some of these errors mean that nothing was written. The oracle allows unacknowledged writes to be lost.
            Ok(Some(Err(_)) | None) | Err(_) => {
                own.writes_unknown.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Makes a linearizable read of a key.
    async fn read(&mut self, node: u64) {
        let (key, own) = (self.key(), Arc::clone(&self.clients));
        let began = own.oracle.begin();
        let call = |running: Running| async move {
            running.raft.ensure_linearizable(ReadPolicy::ReadIndex).await.ok()?;
            read_key(running, key).await
        };
        if let Ok(Some(Some(state))) = Runtime::timeout(PATIENCE, own.network.call((CLIENT, node), call)).await {
            own.oracle.read(began, &state, node);
            own.reads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads a key from the state of a node, which may be out of date.
    async fn read_stale(&mut self, node: u64) {
        let (key, own) = (self.key(), Arc::clone(&self.clients));
        let call = |running: Running| read_key(running, key);
        if let Ok(Some(Some(state))) = Runtime::timeout(PATIENCE, own.network.call((CLIENT, node), call)).await {
            own.oracle.read_stale(&state, node);
        }
    }
}

/// Reads a key of a node's state. Returns `None` if that fails, because a snapshot was installed or the power was cut.
async fn read_key(running: Running, key: Vec<u8>) -> Option<ReadState> {
    let read = move || running.group.state().read(|db, rows| ReadState::read(db, rows, key));
    Runtime::spawn_blocking(read).await.ok()?.ok()
}
