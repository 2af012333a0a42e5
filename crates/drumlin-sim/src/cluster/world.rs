//! The course of one world: the members of a cluster, what happens to them, and the recovery at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use drumlin_io::testing::sim::{self, Random};
use openraft::async_runtime::WatchReceiver;
use openraft::{AsyncRuntime, BasicNode, ChangeMembers};

use super::Counts;
use super::client::{Client, Clients, some_leader};
use super::network::{CLIENT, Network};
use super::node::{Health, Member, Start};
use super::oracle::Oracle;
use super::plan::Plan;
use super::running::Running;
use super::runtime::{JoinHandle, Runtime, WORLD};

/// The pause between two looks at the members.
const LOOK: Duration = Duration::from_millis(5);
/// The simulated time within which a cluster recovers once everything has healed.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time after which a change of members is tried again.
const CHANGE_PATIENCE: Duration = Duration::from_secs(2);
/// The most voters that a cluster has.
const VOTERS_MAX: usize = 5;
const VOTERS_MIN: usize = 3;

pub(super) struct World {
    plan: Plan,
    random: Random,
    oracle: Oracle,
    network: Network,
    members: BTreeMap<u64, Member>,
    /// When to start a node that is down, and after how many changes of its disk to cut its power.
    due: BTreeMap<u64, (Duration, Option<u64>)>,
    /// The members that the cluster should have.
    wanted: BTreeSet<u64>,
    /// A change of members that was asked for, and has not ended.
    changing: Option<JoinHandle<()>>,
    last_number: u64,
    counts: Counts,
}

impl World {
    pub(super) fn new(plan: Plan) -> World {
        let mut random = Random(plan.seed);
        let oracle = Oracle::default();
        let network = Network::new(random.next(), &oracle);
        World {
            random,
            oracle,
            network,
            members: BTreeMap::new(),
            due: BTreeMap::new(),
            wanted: (1..=plan.nodes).collect(),
            changing: None,
            last_number: plan.nodes,
            counts: Counts::default(),
            plan,
        }
    }

    pub(super) async fn live(mut self) -> Counts {
        let clients = Arc::new(Clients {
            plan: self.plan.clone(),
            network: self.network.clone(),
            oracle: self.oracle.clone(),
            is_over: AtomicBool::default(),
            writes: AtomicU64::default(),
            writes_unknown: AtomicU64::default(),
            reads: AtomicU64::default(),
        });
        self.found(&clients).await;
        let tasks: Vec<JoinHandle<()>> = (0..self.plan.clients)
            .map(|number| Runtime::spawn_as(WORLD, Client::new(&clients, number, Random(self.random.next())).run()))
            .collect();
        for _ in 0..self.plan.events {
            self.happen().await;
            let pause = self.pause(4, 6);
            self.wait(pause).await;
        }
        clients.is_over.store(true, Ordering::Relaxed);
        for task in tasks {
            let _ = task.await;
        }
        self.recover(&clients).await;
        self.finish(&clients).await
    }

    /// Starts the first nodes and initializes the cluster. Returns once the cluster has acknowledged a write.
    async fn found(&mut self, clients: &Arc<Clients>) {
        for number in self.wanted.clone() {
            self.members.insert(number, Member::new(number));
            self.start(number, None).await;
        }
        let first = self.network.running(1).expect("nothing was cut yet");
        let members: BTreeMap<u64, BasicNode> =
            self.wanted.iter().map(|number| (*number, BasicNode::default())).collect();
        let begun = Runtime::spawn_as(1, async move { first.raft.initialize(members).await });
        begun.await.expect("it is not killed").expect("a new cluster");
        let mut client = Client::new(clients, self.plan.clients + 1, Random(self.random.next()));
        loop {
            if let Some(leader) = some_leader(&self.network, &mut self.random)
                && client.write(leader).await
            {
                return;
            }
            self.wait(LOOK).await;
            assert!(sim::now() < PATIENCE, "the new cluster takes no write");
        }
    }

    fn tell(&self, text: impl FnOnce() -> String) {
        if sim::is_told() {
            eprintln!("{:?}: {}", sim::now(), text());
        }
    }

    async fn start(&mut self, number: u64, cut_after: Option<u64>) {
        let Some(mut member) = self.members.remove(&number) else { return };
        self.counts.openings += 1;
        let shared = (&self.plan, &self.network, &self.oracle);
        let start = member.start(shared, self.counts.openings, cut_after, &mut self.random).await;
        match start {
            Start::Running => {
                self.tell(|| format!("node {number} runs"));
            }
            Start::Cut => {
                self.tell(|| format!("the power of node {number} is cut while it starts"));
                self.counts.cuts_while_opening += 1;
                self.restart_later(number);
            }
            Start::Damaged => {
                self.tell(|| format!("node {number} is damaged"));
                self.counts.damage_reported += 1;
                self.replace(number);
            }
        }
        self.members.insert(number, member);
    }

    /// Draws a pause. All orders of magnitude of milliseconds are as likely, from 2 to the `least` on.
    fn pause(&mut self, least: u64, count: u64) -> Duration {
        let order = least + self.random.below(count);
        Duration::from_millis(self.random.below(1 << order))
    }

    /// Schedules the next start of a node. Often also schedules a power cut soon after that start.
    fn restart_later(&mut self, number: u64) {
        let pause = self.pause(2, 8);
        let cut_after = match self.random.below(100) {
            0..15 => Some(self.random.below(40)),
            15..30 => Some(self.random.below(400)),
            _ => None,
        };
        self.due.insert(number, (sim::now() + pause, cut_after));
    }

    /// Replaces a member that is permanently damaged with a new one.
    fn replace(&mut self, number: u64) {
        self.due.remove(&number);
        if self.wanted.remove(&number) {
            self.add();
        }
    }

    /// Adds a new node to the members that the cluster should have.
    fn add(&mut self) {
        self.last_number += 1;
        let number = self.last_number;
        self.wanted.insert(number);
        self.members.insert(number, Member::new(number));
        self.due.insert(number, (sim::now(), None));
    }

    /// Waits for this time, and [tends](Self::tend) the members in between.
    async fn wait(&mut self, duration: Duration) {
        let end = sim::now() + duration;
        loop {
            self.tend().await;
            if sim::now() >= end {
                return;
            }
            Runtime::sleep(LOOK).await;
        }
    }

    /// Starts nodes that are due, ends nodes that have lost power, and continues the change of members.
    async fn tend(&mut self) {
        for number in self.members.keys().copied().collect::<Vec<_>>() {
            let Some(member) = self.members.get_mut(&number) else { continue };
            match member.health(&self.network) {
                Health::Well => {}
                Health::Off => {
                    member.cut(&self.network, &mut self.random);
                    self.counts.cuts += 1;
                    self.restart_later(number);
                    self.tell(|| format!("the power of node {number} is cut"));
                }
                Health::Damaged => {
                    member.kill(&self.network);
                    self.counts.damage_reported += 1;
                    self.replace(number);
                    self.tell(|| format!("node {number} has found its damage"));
                }
            }
        }
        let now = sim::now();
        let due: Vec<u64> = self.due.iter().filter(|(_, (at, _))| *at <= now).map(|(number, _)| *number).collect();
        for number in due {
            let (_, cut_after) = self.due.remove(&number).expect("it was there");
            self.start(number, cut_after).await;
        }
        self.change_members().await;
    }

    /// Returns the members as the leader has them, if their change is committed.
    fn committed_members(&self) -> Option<BTreeSet<u64>> {
        let metrics = |running: &Running| running.raft.metrics().borrow_watched().clone();
        let all = self.network.all();
        let leading = all.iter().map(|(_, running)| metrics(running)).filter(|metrics| {
            metrics.current_leader == Some(metrics.id) && metrics.last_applied >= *metrics.membership_config.log_id()
        });
        let newest = leading.max_by_key(|metrics| metrics.current_term)?;
        let is_joint = newest.membership_config.membership().get_joint_config().len() > 1;
        let learners = newest.membership_config.membership().learner_ids().count();
        let voters: BTreeSet<u64> = newest.membership_config.voter_ids().collect();
        (!is_joint && learners == 0).then_some(voters)
    }

    /// Asks the leader for the next change of members, until the cluster has the members that it should have.
    async fn change_members(&mut self) {
        if let Some(changing) = &mut self.changing {
            let is_over = futures_util::future::poll_immediate(changing).await.is_some();
            if !is_over {
                return;
            }
            self.changing = None;
        }
        let leader = some_leader(&self.network, &mut self.random);
        let Some(found) = self.committed_members() else {
            if let Some(leader) =
                leader.filter(|_| self.members.len() > self.wanted.len() || self.last_number > self.plan.nodes)
            {
                self.ask_for_members(leader);
            }
            return;
        };
        if found != self.wanted {
            if let Some(leader) = leader {
                self.ask_for_members(leader);
            }
            return;
        }
        // A node that was removed ends for good.
        let gone: Vec<u64> = self.members.keys().copied().filter(|number| !self.wanted.contains(number)).collect();
        for number in gone {
            if let Some(mut member) = self.members.remove(&number) {
                member.kill(&self.network);
                self.due.remove(&number);
                self.counts.changes_of_members += 1;
                self.tell(|| format!("node {number} was removed"));
            }
        }
    }

    fn ask_for_members(&mut self, leader: u64) {
        let (network, wanted) = (self.network.clone(), self.wanted.clone());
        self.changing = Some(Runtime::spawn_as(WORLD, async move {
            let call = |running: Running| async move {
                let (known, learners): (BTreeSet<u64>, BTreeSet<u64>) = {
                    let metrics = running.raft.metrics().borrow_watched().clone();
                    let membership = metrics.membership_config.membership();
                    (membership.nodes().map(|(number, _)| *number).collect(), membership.learner_ids().collect())
                };
                for number in wanted.difference(&known) {
                    if running.raft.add_learner(*number, BasicNode::default(), false).await.is_err() {
                        return;
                    }
                }
                let unwanted: BTreeSet<u64> = learners.difference(&wanted).copied().collect();
                if !unwanted.is_empty() {
                    let _ = running.raft.change_membership(ChangeMembers::RemoveNodes(unwanted), false).await;
                }
                // The answer is an error if another change is in progress, or if the node is not the leader.
                let _ = running.raft.change_membership(wanted, false).await;
            };
            // If no answer arrives, ask again later.
            let _ = Runtime::timeout(CHANGE_PATIENCE, network.call((CLIENT, leader), call)).await;
        }));
    }

    fn any(&mut self, is_meant: impl Fn(&Member) -> bool) -> Option<u64> {
        let all: Vec<u64> =
            self.members.values().filter(|member| is_meant(member)).map(|member| member.number).collect();
        (!all.is_empty()).then(|| all[self.random.below(all.len() as u64) as usize])
    }

    /// Draws an event, such as a kill or a partition, and carries it out.
    async fn happen(&mut self) {
        match self.random.below(100) {
            0..22 => {
                let Some(number) = self.any(Member::is_up) else { return };
                self.power_cut(number);
            }
            22..30 => {
                for number in self.members.keys().copied().collect::<Vec<_>>() {
                    self.power_cut(number);
                }
            }
            30..42 => {
                let Some(number) = self.any(Member::is_up) else { return };
                self.tell(|| format!("node {number} is killed"));
                let member = self.members.get_mut(&number).expect("it is up");
                member.kill(&self.network);
                self.counts.kills += 1;
                self.rot(number);
                self.restart_later(number);
            }
            42..50 => {
                let Some(number) = self.any(Member::is_up) else { return };
                self.tell(|| format!("node {number} is closed"));
                let member = self.members.get_mut(&number).expect("it is up");
                member.close(&self.network, &mut self.random).await;
                self.counts.closes += 1;
                self.rot(number);
                self.restart_later(number);
            }
            50..65 => self.part(),
            65..72 => {
                self.network.disturb(self.plan.lost_one_in, self.plan.lost_one_in);
                self.wait(Duration::from_millis(100)).await;
                self.network.disturb(0, 0);
            }
            72..80 => self.trigger(|running| async move { drop(running.raft.trigger().snapshot().await) }),
            80..85 => {
                let Some(to) = self.any(Member::is_up) else { return };
                self.trigger(move |running| async move { drop(running.raft.trigger().transfer_leader(to).await) });
            }
            85..93 if self.wanted.len() < VOTERS_MAX => self.add(),
            93..100 if self.wanted.len() > VOTERS_MIN => {
                let Some(number) = self.any(|_| true) else { return };
                self.wanted.remove(&number);
            }
            _ => {
                let Some(number) = self.any(Member::is_up) else { return };
                let _ = self.members[&number].compare(&self.network, &self.oracle).await;
            }
        }
    }

    fn power_cut(&mut self, number: u64) {
        let member = self.members.get_mut(&number).expect("a member");
        if !member.is_up() {
            return;
        }
        member.cut(&self.network, &mut self.random);
        self.counts.cuts += 1;
        self.tell(|| format!("the power of node {number} is cut"));
        self.rot(number);
        self.restart_later(number);
    }

    /// In some worlds, flips a bit on the disk of a node that is down, once.
    fn rot(&mut self, number: u64) {
        if !self.plan.rots || self.counts.bits_flipped > 0 || !self.random.chance(50) {
            return;
        }
        if self.members.get_mut(&number).expect("a member").rot(&mut self.random) {
            self.counts.bits_flipped += 1;
            self.tell(|| format!("a bit of node {number} is flipped"));
        }
    }

    /// Partitions some nodes from the others, in one direction or both, or heals the network.
    fn part(&mut self) {
        let numbers: Vec<u64> = self.members.keys().copied().collect();
        let mut parted = BTreeSet::new();
        if self.random.chance(75) {
            let one_side: BTreeSet<u64> = numbers.iter().copied().filter(|_| self.random.chance(40)).collect();
            let is_one_way = self.random.chance(25);
            for (one, other) in numbers.iter().flat_map(|one| numbers.iter().map(move |other| (*one, *other))) {
                if one_side.contains(&one) && !one_side.contains(&other) {
                    parted.insert((one, other));
                    if !is_one_way {
                        parted.insert((other, one));
                    }
                }
            }
        }
        self.counts.partitions += u64::from(!parted.is_empty());
        self.tell(|| format!("parted: {parted:?}"));
        self.network.part(parted);
    }

    /// Sends a request to a node that considers itself the leader, without waiting for the answer.
    fn trigger<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        request: impl FnOnce(Running) -> F + Send + 'static,
    ) {
        let Some(node) = some_leader(&self.network, &mut self.random) else { return };
        let network = self.network.clone();
        drop(Runtime::spawn_as(WORLD, async move { network.call((CLIENT, node), request).await }));
    }

    /// Ends all faults. Then the cluster must accept writes and have the right members, and all nodes must agree.
    async fn recover(&mut self, clients: &Arc<Clients>) {
        self.network.part(BTreeSet::new());
        self.network.disturb(0, 0);
        let began = sim::now();
        let mut client = Client::new(clients, self.plan.clients, Random(self.random.next()));
        let mut has_written = false;
        loop {
            for (_, cut_after) in self.due.values_mut() {
                *cut_after = None;
            }
            self.wait(Duration::from_millis(20)).await;
            let is_complete = self.committed_members().as_ref() == Some(&self.wanted)
                && self.members.len() == self.wanted.len()
                && self.members.values().all(Member::is_up);
            if is_complete && let Some(leader) = some_leader(&self.network, &mut self.random) {
                has_written = client.write(leader).await || has_written;
                if has_written && self.agree() {
                    return;
                }
            }
            if sim::now() > began + PATIENCE {
                let states: Vec<String> = self
                    .network
                    .all()
                    .iter()
                    .map(|(number, running)| format!("\n  node {number}: {}", *running.raft.metrics().borrow_watched()))
                    .collect();
                panic!("the cluster does not recover; it shall have {:?}:{}", self.wanted, states.concat());
            }
        }
    }

    /// Returns `true` if all nodes have applied the same entries.
    fn agree(&self) -> bool {
        let all = self.network.all();
        let applied: BTreeSet<Option<u64>> =
            all.iter().map(|(_, running)| running.group.state().applied_index()).collect();
        applied.len() == 1 && all.len() == self.members.len()
    }

    /// Compares all states, and closes the nodes.
    async fn finish(mut self, clients: &Clients) -> Counts {
        for member in self.members.values() {
            let _ = member.compare(&self.network, &self.oracle).await;
        }
        for mut member in std::mem::take(&mut self.members).into_values() {
            member.close(&self.network, &mut self.random).await;
        }
        let (messages_lost, snapshots_sent, snapshots_resumed) = self.network.counts();
        Counts {
            leaders: self.oracle.term_count(),
            entries: self.oracle.entry_count(),
            writes: clients.writes.load(Ordering::Relaxed),
            writes_unknown: clients.writes_unknown.load(Ordering::Relaxed),
            reads: clients.reads.load(Ordering::Relaxed),
            snapshots_sent,
            snapshots_resumed,
            messages_lost,
            ..self.counts
        }
    }
}
