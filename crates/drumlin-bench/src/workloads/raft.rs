//! Measures clusters of Raft nodes. See [`RaftJob`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use drumlin_testing::Random;
use hdrhistogram::Histogram;

use super::{Figures, Turn};
use crate::driver::Outcome;
use crate::engine::Result;
use crate::measure::{Meter, histogram, median, record};
use crate::plan::RaftJob;
#[cfg(feature = "rocksdb")]
use crate::raft::RocksStore;
use crate::raft::{
    Cluster, DrumlinStore, ELECTION_TIMEOUT_MAX, LOAD_VALUE_BYTES, MemoryStore, Request, Store, StoreKind, named,
};
use crate::raw;

/// The number of times that writes and raw writes are measured, in turns.
const ROUNDS: u32 = 3;
/// The rows that writes replace.
const ROWS: u64 = 100_000;
/// The number of kills of the leader, and that of a quick run.
const KILLS: u32 = 50;
const KILLS_QUICK: u32 = 3;
/// The rows that one entry loads.
const LOAD_ROWS: u64 = 1000;
/// The entries that load rows at the same time.
const LOADS_IN_FLIGHT: u64 = 4;

/// A turn of a job.
#[derive(Clone, Copy, Debug)]
struct RaftMeasure<'t> {
    turn: &'t Turn<'t>,
    job: RaftJob,
}

pub(super) fn measure(turn: &Turn<'_>, job: RaftJob) -> Result<Figures> {
    let peer = named(turn.peer.name).ok_or("this engine has no store for Raft")?;
    let measure = RaftMeasure { turn, job };
    match peer.kind {
        StoreKind::Drumlin => measure.run::<DrumlinStore>(),
        StoreKind::Memory => measure.run::<MemoryStore>(),
        #[cfg(feature = "rocksdb")]
        StoreKind::RocksDb => measure.run::<RocksStore>(),
    }
}

/// The result of clients that write.
struct Written {
    latencies: Histogram<u64>,
    elapsed: Duration,
}

impl Written {
    fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }
}

impl RaftMeasure<'_> {
    /// Performs the turn on a cluster of these stores.
    fn run<S: Store>(&self) -> Result<Figures> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async {
            let mut cluster = Cluster::<S>::create(self.turn.folder, self.turn.workload.data.budget_bytes).await?;
            let figures = match self.job {
                RaftJob::Write => self.writes(&cluster).await?,
                RaftJob::Kill => self.kills(&cluster).await?,
                RaftJob::Snapshot => self.snapshot(&mut cluster).await?,
            };
            cluster.close().await?;
            Ok(figures)
        })
    }

    /// Runs clients that write to the leader, each with one request in flight. `done` counts their writes.
    async fn write<S: Store>(&self, cluster: &Cluster<S>, duration: Duration, done: &AtomicU64) -> Result<Written> {
        let (_, leader) = cluster.leader().await?;
        let value_bytes = self.turn.workload.data.value_bytes;
        let begun = Instant::now();
        let clients = (0..self.turn.workload.threads).map(|client| {
            let (leader, mut random) = (leader.clone(), Random(self.turn.turn * 1000 + client as u64));
            async move {
                let mut latencies = histogram();
                while begun.elapsed() < duration {
                    let key = random.below(ROWS);
                    let mut value = Vec::with_capacity(value_bytes);
                    crate::rows::fill(&mut value, key, random.below(1 << 32), value_bytes);
                    let before = Instant::now();
                    leader.client_write(Request::Put { key, value }).await?;
                    record(&mut latencies, before.elapsed());
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, crate::engine::Failure>(latencies)
            }
        });
        let mut latencies = histogram();
        // All in one task: they cost nothing but their requests.
        for of_client in futures_util::future::join_all(clients).await {
            latencies.add(&of_client?)?;
        }
        Ok(Written { latencies, elapsed: begun.elapsed() })
    }

    /// Measures writes in turns with raw durable writes.
    async fn writes<S: Store>(&self, cluster: &Cluster<S>) -> Result<Figures> {
        let (turn, done) = (self.turn, AtomicU64::new(0));
        let part = turn.duration() / ROUNDS;
        self.write(cluster, part / 4, &done).await?;
        let mut writes = raw::DurableWrites::create(turn.folder)?;
        let (mut rates, mut raws, mut latencies) = (Vec::new(), Vec::new(), histogram());
        let (mut sum, mut syncs) = (Figures::default(), 0);
        for _ in 0..ROUNDS {
            raws.push(tokio::task::block_in_place(|| writes.rate(part))?);
            let syncs_before = cluster.syncs();
            let meter = Meter::start(turn.folder);
            let written = self.write(cluster, part, &done).await?;
            let costs = meter.costs();
            syncs += cluster.syncs() - syncs_before;
            rates.push(written.rate());
            latencies.add(&written.latencies)?;
            sum.operations += written.latencies.len();
            sum.seconds += written.elapsed.as_secs_f64();
            sum.costs.cpu_seconds += costs.cpu_seconds;
            sum.costs.write_bytes += costs.write_bytes;
            sum.costs.read_bytes += costs.read_bytes;
            sum.costs.device_flushes += costs.device_flushes;
            sum.costs.machine_cpu_seconds += costs.machine_cpu_seconds;
        }
        let entries = sum.operations.max(1) as f64;
        let raw_us = 1e6 / median(&raws);
        let more = BTreeMap::from([
            ("raw durable write, us".to_owned(), raw_us),
            ("1.5 raw durable writes, us".to_owned(), 1.5 * raw_us),
            ("syncs an entry and node".to_owned(), syncs as f64 / entries / 3.0),
            ("flushes of the device an entry".to_owned(), sum.costs.device_flushes as f64 / entries),
            ("processor us an entry".to_owned(), sum.costs.cpu_seconds * 1e6 / entries),
        ]);
        let written_user_bytes = sum.operations * (8 + turn.workload.data.value_bytes as u64);
        let (units, latencies) = (sum.operations, crate::measure::Latencies::of(&latencies));
        Ok(Figures { units, rate: median(&rates), latencies, more, written_user_bytes, ..sum })
    }

    /// Kills the leader again and again, and measures the time until a client can write.
    async fn kills<S: Store>(&self, cluster: &Cluster<S>) -> Result<Figures> {
        let mut latencies = histogram();
        let (meter, begun) = (Meter::start(self.turn.folder), Instant::now());
        let kills = if self.turn.quick { KILLS_QUICK } else { KILLS };
        for kill in 0..kills {
            let (node, _) = cluster.leader().await?;
            let stopped = cluster.stop(node)?;
            let before = Instant::now();
            let stopped = tokio::spawn(stopped);
            cluster
                .write(&Request::Put { key: kill.into(), value: vec![0; self.turn.workload.data.value_bytes] })
                .await?;
            record(&mut latencies, before.elapsed());
            stopped.await??;
            cluster.start(node).await?;
            cluster.wait_until_equal().await?;
        }
        let limit_us = 2.0 * ELECTION_TIMEOUT_MAX.as_secs_f64() * 1e6;
        let share = crate::measure::Latencies::of(&latencies).p99_us / limit_us;
        let mut figures = figures(kills.into(), begun.elapsed(), latencies, &meter);
        figures.more.insert("election timeout at most, ms".to_owned(), ELECTION_TIMEOUT_MAX.as_secs_f64() * 1e3);
        figures.more.insert("p99, of twice the election timeout".to_owned(), share);
        Ok(figures)
    }

    /// Sends a snapshot to a new node while clients write.
    async fn snapshot<S: Store>(&self, cluster: &mut Cluster<S>) -> Result<Figures> {
        let rows = self.turn.workload.data.rows;
        for first in (0..rows).step_by((LOAD_ROWS * LOADS_IN_FLIGHT) as usize) {
            let loads = (0..LOADS_IN_FLIGHT).map(|load| (first + load * LOAD_ROWS).min(rows));
            let load = |first: u64| Request::Load { first, count: LOAD_ROWS.min(rows - first) };
            let requests: Vec<Request> = loads.map(load).collect();
            let written = requests.iter().map(|request| cluster.write(request));
            futures_util::future::try_join_all(written).await?;
        }
        cluster.wait_until_equal().await?;
        let done = AtomicU64::new(0);
        let alone = self.write(cluster, self.turn.duration(), &done).await?.rate();
        let (leader, raft) = cluster.leader().await?;
        let meter = Meter::start(self.turn.folder);
        // The clients write for longer than the snapshot takes: they end when it has arrived.
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let clients = (0..self.turn.workload.threads).map(|client| {
            let (raft, mut random) = (raft.clone(), Random(client as u64));
            let (is_over, value_bytes) = (&is_over, self.turn.workload.data.value_bytes);
            async move {
                let mut ends = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let (key, value) = (random.below(ROWS), vec![7; value_bytes]);
                    raft.client_write(Request::Put { key, value }).await?;
                    ends.push(Instant::now());
                }
                Ok::<_, crate::engine::Failure>(ends)
            }
        });
        let adding = async {
            let sent = cluster.add_by_snapshot(4).await;
            is_over.store(true, Ordering::Relaxed);
            sent
        };
        let (sent, ends) = futures_util::future::join(adding, futures_util::future::try_join_all(clients)).await;
        let (sent, ends) = (sent?, ends?);
        let elapsed = sent.ended - sent.begun;
        let during = ends.iter().flatten().filter(|end| (sent.begun..sent.ended).contains(end)).count();
        let mut latencies = histogram();
        record(&mut latencies, elapsed);
        let mut figures = figures(rows, elapsed, latencies, &meter);
        let rate = sent.bytes as f64 / elapsed.as_secs_f64();
        let during = during as f64 / elapsed.as_secs_f64();
        let mut more = vec![
            ("MB of the snapshot", sent.bytes as f64 / 1e6),
            ("MB of rows", (rows * (8 + LOAD_VALUE_BYTES as u64)) as f64 / 1e6),
            ("MB of the snapshot a second", rate / 1e6),
            ("writes a second before", alone),
            ("writes a second while it is sent", during),
            ("writes that are left, of those before", during / alone),
        ];
        // The limit: reading and writing as many bytes, of the files from which the snapshot was sent.
        if let Some(raw) = tokio::task::block_in_place(|| raw::copy(&cluster.node_folder(leader), self.turn.folder))? {
            more.extend([("raw copy, MB a second", raw / 1e6), ("snapshot, of the raw copy", rate / raw)]);
        }
        figures.more.extend(more.into_iter().map(|(name, figure)| (name.to_owned(), figure)));
        Ok(figures)
    }
}

fn figures(units: u64, elapsed: Duration, latencies: Histogram<u64>, meter: &Meter) -> Figures {
    let operations = latencies.len();
    let outcome = Outcome { operations, units, elapsed, latencies, timeline: Vec::new(), longest_gap: Duration::ZERO };
    Figures::measured(&outcome, meter.costs())
}
