//! A node of a simulated cluster: its disk, its openings, and how they end.

use std::sync::Arc;

use drumlin::Config as StateConfig;
use drumlin::logs::LogsOptions;
use drumlin_io::testing::sim::{Disk, Faults, Loss, Medium, Random};
use drumlin_raft::openraft_0_10::stores;
use drumlin_raft::{Identity, Node, NodeOptions};
use openraft::async_runtime::WatchReceiver;
use openraft::{AsyncRuntime, Config};

use super::network::{Connections, Network};
use super::oracle::{Oracle, Watched, read_all};
use super::plan::Plan;
use super::running::{Raft, Running};
use super::runtime::Runtime;
use super::store::{Told, ToldLog};
use super::{GROUP, TypeConfig};

/// A member of the cluster, up or down.
pub(crate) struct Member {
    pub(crate) number: u64,
    /// Its disk while it is down.
    medium: Medium,
    up: Option<Up>,
    told: Told,
    /// `true` if its folder exists.
    is_created: bool,
    /// `true` once a bit of its disk was flipped.
    pub(crate) is_rotten: bool,
}

struct Up {
    disk: Disk,
    node: Node,
}

/// The outcome of starting a node.
pub(crate) enum Start {
    Running,
    /// The power was cut while it started.
    Cut,
    /// The node has reported damage of its disk, or has lost acknowledged data because of it. It must be replaced.
    Damaged,
}

/// The outcome of looking at a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    Well,
    /// It has no power.
    Off,
    /// It has stopped because of damage.
    Damaged,
}

impl Member {
    pub(crate) fn new(number: u64) -> Member {
        let (medium, told) = (Medium::default(), Told::default());
        Member { number, medium, up: None, told, is_created: false, is_rotten: false }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.is_some()
    }

    fn options(plan: &Plan, disk: &Disk) -> NodeOptions {
        let logs = LogsOptions::new().memory(2 << 20).segment_bytes(64 << 10).backend(disk.backend());
        let state = StateConfig::new()
            .memory(8 << 20)
            .segment_bytes(256 << 10)
            .log_segment_bytes(256 << 10)
            .checkpoint_log_bytes(plan.checkpoint_log_bytes)
            .warm_start(false)
            .backend(disk.backend());
        NodeOptions::new().logs(logs).state(state).snapshot_lag_max(plan.snapshot_lag_max)
    }

    /// Opens the node, checks that nothing is missing that it or the cluster has acknowledged, and starts Raft on it.
    ///
    /// With `cut_after`, its power is cut after that number of changes of the disk, maybe before this returns.
    pub(crate) async fn start(
        &mut self,
        (plan, network, oracle): (&Plan, &Network, &Oracle),
        opening: u64,
        cut_after: Option<u64>,
        random: &mut Random,
    ) -> Start {
        let disk = Disk::new(std::mem::take(&mut self.medium), random.next());
        disk.set_faults(Faults { slow_one_in: plan.slow_one_in, ..Faults::default() });
        // A node that was not created to the end would be created again.
        if let Some(changes) = cut_after.filter(|_| self.is_created) {
            disk.turn_off_at(changes.max(1));
        }
        let result = self.open(&disk, (plan, network, oracle), opening).await;
        if disk.is_off() {
            self.end(Some(&disk), network);
            self.lose(&disk, random);
            return Start::Cut;
        }
        match result {
            Ok(()) => Start::Running,
            Err(reason) => {
                assert!(self.is_rotten, "node {} does not start: {reason}", self.number);
                self.end(Some(&disk), network);
                Start::Damaged
            }
        }
    }

    async fn open(
        &mut self,
        disk: &Disk,
        (plan, network, oracle): (&Plan, &Network, &Oracle),
        opening: u64,
    ) -> Result<(), String> {
        let number = self.number;
        let (options, watched, is_created) = (Member::options(plan, disk), Watched(oracle.clone()), self.is_created);
        let opened = Runtime::spawn_blocking(move || {
            let identity = Identity::new("simulated", number);
            let node = match is_created {
                true => Node::open("/node", &identity, &options)?,
                false => Node::create("/node", &identity, &options)?,
            };
            let group = node.group(GROUP, watched)?;
            let (index, rows) = group.state().read(read_all)?;
            Ok::<_, drumlin_raft::Error>((node, group, index, rows))
        });
        let opened = opened.await.expect("a thread");
        let (node, group, index, rows) = opened.map_err(|error| error.to_string())?;
        self.is_created = true;
        oracle.compare(number, index, &rows);
        let first = node.logs().log(GROUP).first();
        self.up = Some(Up { disk: disk.clone(), node });
        if first.is_some_and(|first| first > index + 1) {
            return Err(format!("its log begins at {first:?}, and its state is that at {index}"));
        }
        let (mut log, state) = stores::<TypeConfig, _>(&group);
        let lost = self.told.find_lost(&mut log, (number, index), oracle).await;
        if let Some(lost) = lost.map_err(|error| error.to_string())? {
            return Err(format!("it has lost {lost}"));
        }
        let log = ToldLog { log, told: self.told.clone() };
        let connections = Connections { network: network.clone(), from: number };
        let config: Arc<Config> = Arc::new(plan.raft.clone());
        let started =
            Runtime::spawn_as(number, async move { Raft::new(number, config, connections, log, state).await });
        match started.await.expect("nobody kills it yet") {
            Ok(raft) => {
                network.attach(number, Running { raft, group, opening });
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns whether the node still runs and, if not, the reason.
    pub(crate) fn health(&self, network: &Network) -> Health {
        let Some(up) = &self.up else { return Health::Well };
        if up.disk.is_off() {
            return Health::Off;
        }
        let Some(running) = network.running(self.number) else { return Health::Well };
        let stopped = running.raft.metrics().borrow_watched().running_state.clone().err();
        match stopped {
            // The disk may have lost power since the check above.
            Some(_) if up.disk.is_off() => Health::Off,
            Some(error) => {
                assert!(self.is_rotten, "node {} has stopped: {error}", self.number);
                Health::Damaged
            }
            None => Health::Well,
        }
    }

    /// Ends the node's process now. Its disk gets no further change.
    fn end(&mut self, disk: Option<&Disk>, network: &Network) {
        disk.into_iter().for_each(Disk::turn_off);
        let running = network.detach(self.number);
        Runtime::kill(self.number);
        let up = self.up.take();
        // This waits for the threads of the database, which notice only now that the power is off.
        drop(Runtime::spawn_blocking(move || drop((running, up))));
    }

    /// Keeps what a power cut leaves of a disk.
    fn lose(&mut self, disk: &Disk, random: &mut Random) {
        let loss = Loss::ALL[random.below(Loss::ALL.len() as u64) as usize];
        self.medium = disk.medium().cut(loss, random);
    }

    /// Ends the process, and keeps all changes of the disk.
    pub(crate) fn kill(&mut self, network: &Network) {
        let Some(disk) = self.up.as_ref().map(|up| up.disk.clone()) else { return };
        self.end(Some(&disk), network);
        self.medium = disk.medium();
    }

    /// Cuts the power.
    pub(crate) fn cut(&mut self, network: &Network, random: &mut Random) {
        let Some(disk) = self.up.as_ref().map(|up| up.disk.clone()) else { return };
        self.end(Some(&disk), network);
        self.lose(&disk, random);
    }

    /// Shuts the node down in order, unless its power is cut before.
    pub(crate) async fn close(&mut self, network: &Network, random: &mut Random) {
        let Some(up) = self.up.take() else { return };
        let Some(Running { raft, group, .. }) = network.detach(self.number) else { return };
        let shut_down = Runtime::spawn_as(self.number, async move { raft.shutdown().await });
        let _ = shut_down.await;
        Runtime::kill(self.number);
        let node = up.node;
        let closed = Runtime::spawn_blocking(move || group.close().and_then(|()| node.close())).await;
        if up.disk.is_off() {
            self.lose(&up.disk, random);
            return;
        }
        let closed = closed.expect("a thread");
        assert!(closed.is_ok() || self.is_rotten, "node {} does not close: {closed:?}", self.number);
        self.medium = up.disk.medium();
    }

    /// Flips a bit on the disk of a node that is down.
    pub(crate) fn rot(&mut self, random: &mut Random) -> bool {
        let place = ["/node/log", "/node/state", "/node"][random.below(3) as usize];
        let is_flipped = !self.is_up() && self.medium.rot(place, random);
        self.is_rotten |= is_flipped;
        is_flipped
    }

    /// Compares the state with the requests up to its last applied index, while it is being changed.
    pub(crate) async fn compare(&self, network: &Network, oracle: &Oracle) -> Option<u64> {
        let running = network.running(self.number)?;
        let read = Runtime::spawn_blocking(move || running.group.state().read(read_all)).await.expect("a thread");
        match read {
            Ok((index, rows)) => {
                oracle.compare(self.number, index, &rows);
                Some(index)
            }
            Err(error) => {
                let may =
                    self.health(network) != Health::Well || self.is_rotten || matches!(error, drumlin::Error::Closed);
                assert!(may, "the state of node {} can't be read: {error}", self.number);
                None
            }
        }
    }
}
