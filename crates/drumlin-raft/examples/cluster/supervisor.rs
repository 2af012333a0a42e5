//! The supervisor: it starts the nodes, makes them fail while clients work, and judges what the clients have seen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drumlin_testing::Random;
use hyper::Method;
use tokio::task::JoinSet;

use crate::client::{Call, Client, Directory};
use crate::history::{Action, Operation, Outcome};
use crate::processes::Processes;
use crate::report::Report;
use crate::timeline::{Timeline, time_text};
use crate::types::{Failure, Member, Metrics};
use crate::workload::{Record, Worker, key_text, values_of};

/// The longest wait for anything that has to happen eventually.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between looks at the nodes.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// The bytes of a snapshot after which the connection breaks.
const BREAK_AFTER_BYTES: u64 = 1;

/// The length and the size of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) clients: u32,
    pub(crate) keys: u32,
    /// The time between two faults.
    pub(crate) calm: Duration,
    /// The time for which a node is frozen or cut off after the others have a leader.
    pub(crate) hold: Duration,
    /// The minimum time for which faults are injected.
    pub(crate) at_least: Duration,
    pub(crate) faults: &'static [Fault],
}

/// A fault, or a planned change of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    KillLeader,
    FreezeLeader,
    CutLeaderOff,
    AddMember,
    HandOver,
    RemoveMember,
    LoseFolder,
}

/// The faults of a run.
pub(crate) const FAULTS: &[Fault] = &[
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::FreezeLeader,
    Fault::CutLeaderOff,
    Fault::AddMember,
    Fault::HandOver,
    Fault::RemoveMember,
    Fault::LoseFolder,
];
/// The faults of a short run.
pub(crate) const FAULTS_SHORT: &[Fault] = &[Fault::KillLeader, Fault::AddMember, Fault::CutLeaderOff, Fault::HandOver];

/// Returns the faults in an order that the seed draws. A member is added before one is removed.
fn shuffled(faults: &[Fault], random: &mut Random) -> Vec<Fault> {
    let mut faults = faults.to_vec();
    for at in (1..faults.len()).rev() {
        faults.swap(at, random.index(at + 1));
    }
    let find = |fault| faults.iter().position(|other| *other == fault);
    if let (Some(added), Some(removed)) = (find(Fault::AddMember), find(Fault::RemoveMember))
        && removed < added
    {
        faults.swap(added, removed);
    }
    faults
}

pub(crate) struct Supervisor {
    plan: Plan,
    timeline: Timeline,
    processes: Processes,
    directory: Directory,
    client: Client,
    members: BTreeMap<u64, Member>,
    next_number: u64,
    /// The longest time in which no write succeeded.
    longest_gap: Duration,
    random: Random,
}

impl Supervisor {
    /// Starts three nodes, and waits until they have a leader.
    pub(crate) async fn start(plan: Plan, folder: &Path) -> Result<Supervisor, Failure> {
        let timeline = Timeline::new();
        let directory = Directory::default();
        let mut supervisor = Supervisor {
            plan,
            processes: Processes::new(folder, &timeline),
            client: Client::new(&directory),
            directory,
            timeline,
            members: BTreeMap::new(),
            next_number: 1,
            longest_gap: Duration::ZERO,
            random: Random(plan.seed),
        };
        for _ in 0..3 {
            let (number, member) = supervisor.create().await?;
            supervisor.members.insert(number, member);
        }
        let members = supervisor.members.clone();
        let call = Call::new(Method::POST, "/initialize").json(&members).until_done();
        supervisor.client.ask_node::<()>(1, &call).await?;
        supervisor.leader().await?;
        Ok(supervisor)
    }

    /// Creates a node that is not a member yet.
    async fn create(&mut self) -> Result<(u64, Member), Failure> {
        let number = self.next_number;
        self.next_number += 1;
        let member = self.processes.create(number).await?;
        self.directory.lock().unwrap().insert(number, member.http.clone());
        Ok((number, member))
    }

    /// Returns the addresses for clients.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.members.iter().map(|(node, member)| format!("node {node}: http://{}", member.http)).collect()
    }

    async fn metrics(&mut self, node: u64) -> Result<Metrics, Failure> {
        self.client.ask_node(node, &Call::new(Method::GET, "/metrics").at_once()).await
    }

    /// Returns the node that leads, as soon as there is one.
    async fn leader(&mut self) -> Result<Metrics, Failure> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let mut found: Option<Metrics> = None;
            for node in self.members.keys().copied().collect::<Vec<_>>() {
                if let Ok(metrics) = self.metrics(node).await
                    && metrics.state == "Leader"
                    && found.as_ref().is_none_or(|found| found.term < metrics.term)
                {
                    found = Some(metrics);
                }
            }
            if let Some(found) = found {
                return Ok(found);
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        Err("the nodes elect no leader".into())
    }

    /// Waits until a client has written after this moment, and prints the longest time in which no write succeeded.
    async fn wait_for_writes(&mut self, from: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        while self.timeline.last_write() <= from {
            if begun.elapsed() > PATIENCE {
                return Err("no write succeeds".into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let gap = self.timeline.longest_gap();
        self.longest_gap = self.longest_gap.max(gap);
        self.timeline.note(&format!("  no write succeeded for {}", time_text(gap)));
        Ok(())
    }

    /// Waits until the members have applied what the leader has now.
    async fn wait_until_equal(&mut self) -> Result<(), Failure> {
        let goal = self.leader().await?.last_log;
        let begun = Instant::now();
        for node in self.members.keys().copied().collect::<Vec<_>>() {
            while self.metrics(node).await.map_or(0, |metrics| metrics.applied) < goal {
                if begun.elapsed() > PATIENCE {
                    return Err(format!("node {node} does not catch up").into());
                }
                tokio::time::sleep(LOOK_PAUSE).await;
            }
        }
        Ok(())
    }

    /// Returns a member that does not lead.
    async fn follower(&mut self) -> Result<u64, Failure> {
        let leader = self.leader().await?.node;
        let followers: Vec<u64> = self.members.keys().copied().filter(|node| *node != leader).collect();
        Ok(followers[self.random.index(followers.len())])
    }

    /// Waits until another node than this one leads, and clients have written to it.
    async fn wait_for_another(&mut self, old: u64) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let leader = self.leader().await?.node;
            if leader != old {
                return self.wait_for_writes(self.timeline.elapsed()).await;
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("node {old} still leads").into());
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    /// Injects a fault, and waits until the cluster has recovered from it.
    async fn suffer(&mut self, fault: Fault) -> Result<(), Failure> {
        self.timeline.mark();
        match fault {
            Fault::KillLeader => {
                let leader = self.leader().await?.node;
                self.timeline.note(&format!("Kill node {leader}, the leader (SIGKILL)"));
                self.processes.kill(leader).await?;
                self.wait_for_another(leader).await?;
                self.processes.start(leader).await?;
            }
            Fault::FreezeLeader => {
                let leader = self.leader().await?.node;
                self.timeline.note(&format!("Freeze node {leader}, the leader (SIGSTOP)"));
                self.processes.freeze(leader)?;
                let elected = self.wait_for_another(leader).await;
                tokio::time::sleep(self.plan.hold).await;
                self.timeline.note(&format!("  node {leader} continues (SIGCONT)"));
                self.processes.thaw(leader)?;
                elected?;
            }
            Fault::CutLeaderOff => {
                let leader = self.leader().await?.node;
                self.timeline.note(&format!("Cut node {leader}, the leader, off from the others, not from clients"));
                let others: BTreeSet<u64> = self.members.keys().copied().filter(|node| *node != leader).collect();
                let cut = |from: &BTreeSet<u64>| Call::new(Method::PUT, "/faults/cut-from").json(from);
                self.client.ask_node::<()>(leader, &cut(&others)).await?;
                self.wait_for_another(leader).await?;
                tokio::time::sleep(self.plan.hold).await;
                self.timeline.note(&format!("  node {leader} is connected again"));
                self.client.ask_node::<()>(leader, &cut(&BTreeSet::new())).await?;
            }
            Fault::AddMember => self.add_member().await?,
            Fault::HandOver => {
                let (leader, follower) = (self.leader().await?.node, self.follower().await?);
                self.timeline.note(&format!("Node {leader} hands leadership over to node {follower}"));
                let call = Call::new(Method::POST, format!("/leader/{follower}"));
                self.client.call(&call.until_done()).await.decode::<()>()?;
                self.wait_for_another(leader).await?;
            }
            Fault::RemoveMember => {
                let follower = self.follower().await?;
                self.timeline.note(&format!("Remove node {follower} from the members"));
                self.remove_member(follower).await?;
                self.processes.kill(follower).await?;
            }
            Fault::LoseFolder => {
                let follower = self.follower().await?;
                self.timeline.note(&format!("Kill node {follower}, and remove its folder"));
                self.processes.kill(follower).await?;
                self.processes.lose_folder(follower)?;
                // It must not come back as if it had never voted.
                if self.processes.start(follower).await.is_ok() {
                    return Err(format!("node {follower} serves without its folder").into());
                }
                self.timeline.note("  it is removed from the members, and another one takes its place");
                self.processes.kill(follower).await?;
                self.remove_member(follower).await?;
                self.add_member().await?;
            }
        }
        self.wait_until_equal().await
    }

    /// Adds a node. It starts from a snapshot, whose connection breaks once.
    async fn add_member(&mut self) -> Result<(), Failure> {
        let call = Call::new(Method::POST, "/snapshot");
        self.client.call(&call.until_done()).await.decode::<()>()?;
        let begun = Instant::now();
        // Once the leader has purged entries, the new node can't get them all, and needs the snapshot.
        while self.leader().await?.purged == 0 {
            if begun.elapsed() > PATIENCE {
                return Err("the leader purges nothing after a snapshot".into());
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        let (number, member) = self.create().await?;
        self.timeline.note(&format!("Add node {number}"));
        let leader = self.leader().await?.node;
        let break_after = Call::new(Method::PUT, "/faults/break-after").json(&BREAK_AFTER_BYTES);
        self.client.ask_node::<()>(leader, &break_after).await?;
        let call = Call::new(Method::PUT, format!("/members/{number}")).json(&member).until_done();
        self.client.call(&call).await.decode::<()>()?;
        self.members.insert(number, member);
        self.timeline.note(&format!("  node {number} votes; there are {} members", self.members.len()));
        Ok(())
    }

    async fn remove_member(&mut self, node: u64) -> Result<(), Failure> {
        self.directory.lock().unwrap().remove(&node);
        let call = Call::new(Method::DELETE, format!("/members/{node}")).until_done();
        self.client.call(&call).await.decode::<()>()?;
        self.members.remove(&node);
        self.timeline.note(&format!("  there are {} members", self.members.len()));
        Ok(())
    }

    /// Injects all faults, one after another.
    async fn suffer_all(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut faults = shuffled(self.plan.faults, &mut self.random);
        loop {
            for fault in std::mem::take(&mut faults) {
                tokio::time::sleep(self.plan.calm).await;
                self.suffer(fault).await?;
            }
            if begun.elapsed() >= self.plan.at_least {
                return Ok(());
            }
            faults = shuffled(self.plan.faults, &mut self.random);
        }
    }

    /// Runs the clients and the faults, and returns what was found.
    pub(crate) async fn run(&mut self) -> Result<Report, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = JoinSet::new();
        let Plan { clients, keys, seed, .. } = self.plan;
        self.timeline.note(&format!("{clients} clients begin to write {keys} keys"));
        for number in 0..clients {
            let worker = Worker::new(number, keys, seed, &self.directory, &self.timeline);
            let share = keys * number / clients..keys * (number + 1) / clients;
            workers.spawn(worker.run(share, Arc::clone(&stop)));
        }
        self.suffer_all().await?;
        tokio::time::sleep(self.plan.calm).await;
        stop.store(true, Ordering::Relaxed);
        let mut record = Record::default();
        while let Some(worker) = workers.join_next().await {
            record.add(worker??);
        }
        let worked = self.timeline.elapsed();
        self.timeline.note("The clients have stopped. All keys are read once more, from each node");
        self.wait_until_equal().await?;
        let are_equal = self.read_all(&mut record).await?;
        let mut metrics = Vec::new();
        for node in self.members.keys().copied().collect::<Vec<_>>() {
            metrics.push(self.metrics(node).await?);
        }
        let (elections, longest_gap) = (self.timeline.election_count(), self.longest_gap);
        Ok(Report { seed, record, worked, elections, longest_gap, are_equal, metrics })
    }

    /// Reads all keys from the leader, and says if all nodes have the same rows.
    async fn read_all(&mut self, record: &mut Record) -> Result<bool, Failure> {
        let begin = self.timeline.nanos();
        let call = Call::new(Method::GET, "/rows").until_done();
        let rows: BTreeMap<String, String> = self.client.call(&call).await.decode()?;
        let end = self.timeline.nanos();
        let reads = values_of(&rows, 0..self.plan.keys).into_iter().map(|(key, before)| {
            let outcome = Outcome::Known { before, done: true };
            Operation { client: self.plan.clients, key, action: Action::Read, begin, end, outcome }
        });
        record.operations.extend(reads);
        let mut are_equal = rows.keys().all(|key| (0..self.plan.keys).any(|number| key_text(number) == *key));
        for node in self.members.keys().copied().collect::<Vec<_>>() {
            let call = Call::new(Method::GET, "/rows?stale=true").until_done();
            let found: BTreeMap<String, String> = self.client.ask_node(node, &call).await?;
            are_equal &= found == rows;
        }
        Ok(are_equal)
    }
}
