//! The workloads: the data, limits and jobs for each row of the table in docs/benchmarks.md.

use serde::{Deserialize, Serialize};

use crate::commerce::{Size, Traffic};
use crate::engine::{Capabilities, Durability, Order, Peer};
use crate::logs;
use crate::raft;
use crate::rows::Choice;

/// The memory of a group beyond the engine's budget. It is for the program itself, for stacks, and for some page cache,
/// which some engines read through.
const GROUP_BEYOND_BUDGET_BYTES: u64 = 48 << 20;
/// The smallest budget. Drumlin allows a transaction to use 1/32 of it, which is enough for 1,000 rows of 1 KiB.
const BUDGET_BYTES_MIN: u64 = 48 << 20;

/// The rows that exist when a workload begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Data {
    /// The number of rows. The rows are numbered from 0.
    pub rows: u64,
    /// The size of a value in bytes. Keys have 8 bytes.
    pub value_bytes: usize,
    /// The order in which the rows are loaded.
    pub order: Order,
    /// The number of random rows that are updated after the load.
    pub updates: u64,
    /// The engine's memory budget.
    pub budget_bytes: u64,
    /// `true` if the data does not fit into the group's memory.
    pub exceeds_memory: bool,
}

impl Data {
    /// Returns the memory limit of the group.
    #[must_use]
    pub fn group_bytes(&self) -> u64 {
        self.budget_bytes + GROUP_BEYOND_BUDGET_BYTES
    }

    /// Returns the size of all keys and values in bytes.
    #[must_use]
    pub fn user_bytes(&self) -> u64 {
        self.rows * (8 + self.value_bytes as u64)
    }

    /// Returns the data with its number of rows and its budget multiplied by `scale`.
    #[must_use]
    fn scaled(self, scale: f64) -> Data {
        let share = |number: u64| (number as f64 * scale) as u64;
        let budget_bytes = share(self.budget_bytes).max(BUDGET_BYTES_MIN);
        Data { rows: share(self.rows).max(1000), updates: share(self.updates), budget_bytes, ..self }
    }

    /// Returns a name for the folder that holds the data.
    #[must_use]
    pub fn name(&self) -> String {
        let order = if self.order == Order::Sorted { "sorted" } else { "random" };
        format!("{}x{}-{order}-{}", self.rows, self.value_bytes, self.updates)
    }
}

/// 54 MB, which fits in memory.
const SMALL: Data = Data {
    rows: 500_000,
    value_bytes: 100,
    order: Order::Random,
    updates: 0,
    budget_bytes: 512 << 20,
    exceeds_memory: false,
};
/// 528 MB, in a group of 128 MiB.
const LARGE_1K: Data = Data {
    rows: 512_000,
    value_bytes: 1024,
    order: Order::Random,
    updates: 0,
    budget_bytes: 80 << 20,
    exceeds_memory: true,
};
/// 454 MB, in a group of 128 MiB.
const LARGE_100: Data = Data { rows: 4_200_000, value_bytes: 100, ..LARGE_1K };
/// 201 MB: 1.7 times the group's memory.
const TIGHT: Data = Data { rows: 1_860_000, budget_bytes: 64 << 20, ..LARGE_100 };

/// A YCSB mix of reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mix {
    /// 50 % reads, 50 % writes of whole rows.
    A,
    /// 95 % reads, 5 % writes of whole rows.
    B,
    /// Reads only.
    C,
    /// 95 % reads of the newest rows, 5 % inserts.
    D,
    /// 95 % scans of up to 100 rows, 5 % inserts.
    E,
    /// 50 % reads, 50 % updates that read and write a row in one transaction.
    F,
}

/// The changes of a large transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Inserts rows after all existing ones.
    Insert,
    /// Replaces each row.
    Replace,
    /// Removes each row.
    Remove,
}

/// The work of a row of logs by index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LogsJob {
    /// One durable append of `batch` entries. Each thread appends to the logs in turns.
    Append {
        /// The number of logs.
        logs: u64,
        /// The number of entries.
        batch: usize,
    },
    /// One read of the newest entries of a log.
    Newest,
    /// One read of a log from its beginning, with nothing in memory.
    Follow,
    /// Opening this number of logs after a kill, and one read.
    Open {
        /// The number of logs.
        logs: u64,
    },
    /// Durable appends to ten logs that are purged, and to one that never is.
    Laggard,
}

impl LogsJob {
    /// Returns the number of logs.
    #[must_use]
    pub fn logs(self) -> u64 {
        match self {
            LogsJob::Append { logs, .. } | LogsJob::Open { logs } => logs,
            LogsJob::Newest | LogsJob::Follow => 1,
            LogsJob::Laggard => 11,
        }
    }
}

/// The work of a row of Raft nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RaftJob {
    /// One write of a row by a client of three nodes.
    Write,
    /// One write after the leader was killed.
    Kill,
    /// One snapshot of all rows to a new node, while clients write.
    Snapshot,
}

/// The operation that a workload measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Job {
    /// One get of a row drawn from this distribution.
    Get(Choice),
    /// One `get_many` of this many uniformly drawn rows.
    GetMany(usize),
    /// One commit that replaces this many uniformly drawn rows.
    Commit(usize),
    /// One transaction that is prepared and then committed, of a row that no other thread writes.
    Prepare,
    /// One transaction that is prepared, made ready and committed. Measures the processor time of the commit alone.
    CommitStep,
    /// One commit that inserts a row.
    Insert,
    /// A load of all rows in transactions of 1,000 rows.
    Load,
    /// A load of all rows by the fastest method that the engine offers.
    BulkLoad,
    /// One operation of a YCSB mix.
    Ycsb(Mix),
    /// 50 % gets and 50 % commits of one row, both of uniformly drawn rows.
    Half,
    /// One scan of this many rows in key order.
    Scan(u64),
    /// One scan of all rows in key order.
    FullScan,
    /// One count of this many rows.
    Count(u64),
    /// One drop of the table of rows, while a thread commits to another table.
    Drop,
    /// One opening of a database with many tables of ten rows, then a get from each table.
    Tables,
    /// One removal of all rows except the first and the last, and scans over their place.
    RemoveRange,
    /// One transaction of as many changes as there are rows, while a thread commits to another table.
    Large(Change),
    /// One backup of all rows, an increment, and restoring them.
    Backup,
    /// One commit that replaces a uniformly drawn row, without and with backups at the same time.
    CommitBesideBackups,
    /// One get from a kept snapshot; also commits while snapshots are kept.
    KeptSnapshots,
    /// One row read from a change feed.
    Feed,
    /// One opening of the database after a kill or a close, and one get.
    Open {
        /// `true` if the last process that wrote was killed before closing the database.
        killed: bool,
    },
    /// The operations of shoppers, in a shop with its own data.
    Shop {
        /// The size of the shop.
        size: Size,
        /// The mix of reads and writes.
        traffic: Traffic,
    },
    /// Logs by index, for stores that have them.
    Logs(LogsJob),
    /// Three Raft nodes, for stores that have what those need.
    Raft(RaftJob),
}

/// The state of the caches before the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Caches {
    /// The caches are empty.
    Cold,
    /// The caches are emptied, then all rows are read once.
    Filled,
    /// The caches are emptied, then warmed by running the same job without measuring it. This takes as long as the
    /// measurement, but at least 3 seconds.
    Warmed,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Workload {
    /// The name that selects the workload on the command line.
    pub name: &'static str,
    /// The workload's row in the table of docs/benchmarks.md, or `S2`.
    pub row: &'static str,
    /// A description of the workload.
    pub title: &'static str,
    /// The rows that exist when the workload begins.
    pub data: Data,
    pub job: Job,
    /// The number of threads that perform the job concurrently.
    pub threads: usize,
    /// The durability of each commit.
    pub durability: Durability,
    pub caches: Caches,
    /// The duration of the measurement in seconds, if it differs from the run's setting.
    pub seconds: Option<f64>,
}

impl Workload {
    const fn new(row: &'static str, name: &'static str, title: &'static str, data: Data, job: Job) -> Workload {
        let caches = if data.exceeds_memory { Caches::Warmed } else { Caches::Filled };
        let durability = Durability::Relaxed;
        Workload { name, row, title, data, job, threads: 1, durability, caches, seconds: None }
    }

    const fn threads(self, threads: usize) -> Workload {
        Workload { threads, ..self }
    }

    const fn durable(self) -> Workload {
        Workload { durability: Durability::Full, ..self }
    }

    const fn cold(self) -> Workload {
        Workload { caches: Caches::Cold, ..self }
    }

    /// Returns `true` if the workload changes rows.
    #[must_use]
    pub fn writes(&self) -> bool {
        match self.job {
            Job::Get(_) | Job::GetMany(_) | Job::Scan(_) | Job::FullScan | Job::Count(_) => false,
            Job::Ycsb(mix) => mix != Mix::C,
            Job::Open { killed } => killed,
            Job::Commit(_)
            | Job::Prepare
            | Job::CommitStep
            | Job::Insert
            | Job::Load
            | Job::BulkLoad
            | Job::Half
            | Job::RemoveRange
            | Job::Large(_)
            | Job::Drop
            | Job::Tables
            | Job::Backup
            | Job::CommitBesideBackups
            | Job::KeptSnapshots
            | Job::Feed
            | Job::Logs(_)
            | Job::Raft(_)
            | Job::Shop { .. } => true,
        }
    }

    /// Returns `true` if the workload starts without rows and creates them itself.
    #[must_use]
    pub fn begins_empty(&self) -> bool {
        matches!(
            self.job,
            Job::Load | Job::BulkLoad | Job::Insert | Job::Tables | Job::Logs(_) | Job::Raft(_) | Job::Shop { .. }
        )
    }

    /// Returns `true` if a turn leaves other rows than the next turn needs.
    #[must_use]
    pub fn uses_up_rows(&self) -> bool {
        matches!(self.job, Job::RemoveRange | Job::Large(_) | Job::Drop | Job::Backup | Job::Feed)
    }

    /// Returns `true` if the job repeats its operation until the time has run out. Such a job can also run at a fixed
    /// rate.
    #[must_use]
    pub fn repeats(&self) -> bool {
        !matches!(
            self.job,
            Job::Load | Job::BulkLoad | Job::FullScan | Job::RemoveRange | Job::Open { .. } | Job::Shop { .. }
        ) && !matches!(
            self.job,
            Job::Drop
                | Job::CommitStep
                | Job::Tables
                | Job::Large(_)
                | Job::Backup
                | Job::CommitBesideBackups
                | Job::KeptSnapshots
                | Job::Logs(_)
                | Job::Raft(_)
                | Job::Feed
        )
    }

    /// Returns `true` if this engine takes part in the workload.
    #[must_use]
    pub fn is_for(&self, peer: &Peer) -> bool {
        let has_no_rows = || logs::peers().iter().chain(&raft::peers()).any(|other| other.name == peer.name);
        match self.job {
            Job::Logs(job) => logs::named(peer.name).is_some_and(|peer| {
                let appends = matches!(job, LogsJob::Append { .. });
                // A folder for each log takes more files than a process may open.
                appends || peer.reads && !(peer.folder_each && job.logs() > 1000)
            }),
            Job::Raft(job) => raft::named(peer.name).is_some_and(|peer| peer.snapshots || job != RaftJob::Snapshot),
            _ if has_no_rows() => false,
            Job::Shop { .. } => crate::shops::named(peer.name).is_some(),
            Job::Insert => true,
            Job::Prepare | Job::CommitStep => peer.capabilities.two_phases,
            Job::Drop | Job::Tables => peer.capabilities.tables,
            Job::RemoveRange => peer.capabilities.range_deletes,
            Job::Backup | Job::CommitBesideBackups => peer.restore.is_some(),
            Job::KeptSnapshots | Job::Feed => peer.name == "drumlin",
            Job::Large(_) => peer.capabilities.large_transactions && peer.capabilities.tables,
            _ => !peer.capabilities.inserts_only,
        }
    }

    /// Returns the reason why an engine with these capabilities can't run the workload, or `None` if it can.
    #[must_use]
    pub fn refusal(&self, capabilities: &Capabilities) -> Option<&'static str> {
        if !capabilities.recovers && self.job == (Job::Open { killed: true }) {
            return Some("cannot open its files after a kill");
        }
        None
    }

    /// Returns the unit of the workload's rate.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        match self.job {
            Job::Get(_) | Job::Ycsb(_) | Job::Half | Job::Shop { .. } => "operations",
            Job::GetMany(_) | Job::Backup | Job::Feed | Job::Raft(RaftJob::Snapshot) => "rows",
            Job::Raft(RaftJob::Write) => "writes",
            Job::Raft(RaftJob::Kill) => "kills",
            Job::KeptSnapshots => "operations",
            Job::Commit(1) | Job::Prepare | Job::CommitStep | Job::Insert | Job::CommitBesideBackups => "commits",
            Job::Scan(_) => "scans",
            Job::Count(_) => "counts",
            Job::Drop => "drops",
            Job::Open { .. } | Job::Tables | Job::Logs(LogsJob::Open { .. }) => "openings",
            Job::Logs(_) => "entries",
            Job::Commit(_) | Job::Load | Job::BulkLoad | Job::FullScan | Job::RemoveRange | Job::Large(_) => "rows",
        }
    }

    /// Returns the workload with its rows and its memory multiplied by `scale`.
    #[must_use]
    pub fn scaled(self, scale: f64) -> Workload {
        let data = self.data.scaled(scale);
        let job = match self.job {
            Job::Count(rows) => Job::Count(rows.min(data.rows / 2)),
            Job::Logs(LogsJob::Open { logs }) => {
                Job::Logs(LogsJob::Open { logs: ((logs as f64 * scale) as u64).clamp(1, logs) })
            }
            job => job,
        };
        Workload { data, job, seconds: self.seconds.map(|seconds| seconds * scale.min(1.0)), ..self }
    }
}

const UNIFORM: Job = Job::Get(Choice::Uniform);
const ZIPF: Job = Job::Get(Choice::Zipf);
const SORTED_1K: Data = Data { order: Order::Sorted, ..LARGE_1K };
const SORTED_100: Data = Data { order: Order::Sorted, ..LARGE_100 };
const UPDATED_1K: Data = Data { updates: 512_000, ..LARGE_1K };
/// 1.1 GB, in a group of 128 MiB.
const REMOVED_100: Data = Data { rows: 10_000_000, ..SORTED_100 };
const UPDATED_100: Data = Data { updates: 2_000_000, ..LARGE_100 };
/// 500,000 rows of 100 bytes, in key order.
const SMALL_SORTED: Data = Data { order: Order::Sorted, ..SMALL };
/// The rows of the 1 KiB loads.
const LOAD_1K: Data = Data { rows: 500_000, value_bytes: 1024, ..SMALL };
const LOAD_100: Data = Data { rows: 2_000_000, ..SMALL };
const LOAD_100_SORTED: Data = Data { order: Order::Sorted, ..LOAD_100 };
/// Shops generate their own data.
const SHOP: Data = Data { rows: 0, value_bytes: 0, budget_bytes: 64 << 20, ..SMALL };
/// 50,000 tables of ten rows.
const TABLES: Data = Data { rows: 500_000, budget_bytes: 64 << 20, ..SMALL_SORTED };
const S2: Data = Data { rows: 1000, value_bytes: 1024, budget_bytes: 64 << 20, ..SMALL };

const fn shop(name: &'static str, title: &'static str, size: Size, traffic: Traffic, agents: usize) -> Workload {
    Workload::new("S2", name, title, SHOP, Job::Shop { size, traffic }).durable().threads(agents)
}

/// Entries of logs by index. The rows are the entries that a log or all logs together get.
const fn entries(rows: u64) -> Data {
    Data { rows, value_bytes: 256, order: Order::Sorted, updates: 0, budget_bytes: 64 << 20, exceeds_memory: false }
}

/// Requests of 256 bytes to Raft nodes. Nodes in memory keep all entries of a turn: 60,000 a second are 60 MB a second.
const RAFT: Data = Data { budget_bytes: 2 << 30, ..entries(0) };
/// Rows of 1 KiB that a new node is sent: four times the memory of all nodes.
const RAFT_SNAPSHOT: Data = Data { rows: 1_000_000, budget_bytes: 256 << 20, ..RAFT };

const fn raft(name: &'static str, title: &'static str, data: Data, job: RaftJob, clients: usize) -> Workload {
    Workload::new("21", name, title, data, Job::Raft(job)).durable().cold().threads(clients)
}

const fn log(name: &'static str, title: &'static str, rows: u64, job: LogsJob, threads: usize) -> Workload {
    Workload::new("20", name, title, entries(rows), Job::Logs(job)).durable().cold().threads(threads)
}

const fn append(logs: u64, batch: usize) -> LogsJob {
    LogsJob::Append { logs, batch }
}

/// All workloads, in the order of the table.
pub const WORKLOADS: &[Workload] = &{
    let of = Workload::new;
    [
        of("1", "get-memory-1", "get, in memory, uniform, 1 thread", SMALL, UNIFORM),
        of("1", "get-memory-2", "get, in memory, uniform, 2 threads", SMALL, UNIFORM).threads(2),
        of("1", "get-zipf-1", "get, in memory, zipfian, 1 thread", SMALL, ZIPF),
        of("1", "get-zipf-2", "get, in memory, zipfian, 2 threads", SMALL, ZIPF).threads(2),
        of("2", "get-1k", "get, larger than memory, 1 KiB, 1 thread", LARGE_1K, UNIFORM),
        of("2", "get-100", "get, larger than memory, 100 B, 1 thread", LARGE_100, UNIFORM),
        of("3", "many-memory-32", "get_many of 32, in memory", SMALL, Job::GetMany(32)),
        of("3", "many-1k-32", "get_many of 32, larger than memory, 1 KiB", LARGE_1K, Job::GetMany(32)),
        of("3", "many-100-32", "get_many of 32, larger than memory, 100 B", LARGE_100, Job::GetMany(32)),
        of("3", "many-1k-256", "get_many of 256, larger than memory, 1 KiB", LARGE_1K, Job::GetMany(256)),
        of("3", "many-100-256", "get_many of 256, larger than memory, 100 B", LARGE_100, Job::GetMany(256)),
        of("4", "get-1k-32", "get, larger than memory, 1 KiB, 32 threads", LARGE_1K, UNIFORM).threads(32),
        of("4", "get-100-32", "get, larger than memory, 100 B, 32 threads", LARGE_100, UNIFORM).threads(32),
        of("5", "commit-1", "durable commit of a row, in memory, 1 thread", SMALL, Job::Commit(1)).durable(),
        of("5", "commit-1-cold", "durable commit of a row, cold pages, 1 thread", LARGE_100, Job::Commit(1))
            .durable()
            .cold(),
        of("6", "commit-8", "durable commit of a row, in memory, 8 threads", SMALL, Job::Commit(1))
            .durable()
            .threads(8),
        of("6", "commit-32", "durable commit of a row, in memory, 32 threads", SMALL, Job::Commit(1))
            .durable()
            .threads(32),
        of("6", "prepared", "durable prepare of a row and its commit, in memory, 32 threads", SMALL, Job::Prepare)
            .durable()
            .threads(32),
        of("6", "prepared-step", "processor time of a prepared row's commit alone, 1 thread", SMALL, Job::CommitStep)
            .durable()
            .cold(),
        of("7", "commit-rows", "durable transactions of 100 rows, in memory", SMALL, Job::Commit(100)).durable(),
        of("8", "load-sorted-100", "load, sorted, 100 B, transactions of 1,000", LOAD_100_SORTED, Job::Load),
        of("8", "load-random-100", "load, random, 100 B, transactions of 1,000", LOAD_100, Job::Load),
        of("8", "load-random-1k", "load, random, 1 KiB, transactions of 1,000", LOAD_1K, Job::Load),
        of("8", "load-tight-100", "load, random, 100 B, 1.5 times memory, transactions of 1,000", TIGHT, Job::Load),
        of("8", "bulk-sorted-100", "load, sorted, 100 B, the fastest way", LOAD_100_SORTED, Job::BulkLoad),
        of("8", "bulk-random-100", "load, random, 100 B, the fastest way", LOAD_100, Job::BulkLoad),
        of("8", "bulk-random-1k", "load, random, 1 KiB, the fastest way", LOAD_1K, Job::BulkLoad),
        of("8", "bulk-tight-100", "load, random, 100 B, 1.5 times memory, the fastest way", TIGHT, Job::BulkLoad),
        of("9", "ycsb-a", "YCSB A, relaxed, 2 threads", SMALL, Job::Ycsb(Mix::A)).threads(2),
        of("9", "ycsb-f", "YCSB F, relaxed, 2 threads", SMALL, Job::Ycsb(Mix::F)).threads(2),
        of("9", "ycsb-a-1", "YCSB A, relaxed, 1 thread", SMALL, Job::Ycsb(Mix::A)),
        of("10", "ycsb-b", "YCSB B, relaxed, 2 threads", SMALL, Job::Ycsb(Mix::B)).threads(2),
        of("10", "ycsb-c", "YCSB C, 2 threads", SMALL, Job::Ycsb(Mix::C)).threads(2),
        of("10", "ycsb-d", "YCSB D, relaxed, 2 threads", SMALL, Job::Ycsb(Mix::D)).threads(2),
        of("10", "ycsb-e", "YCSB E, relaxed, 2 threads", SMALL, Job::Ycsb(Mix::E)).threads(2),
        of("11", "ycsb-a-durable", "YCSB A, durable, 8 threads", SMALL, Job::Ycsb(Mix::A)).durable().threads(8),
        of("11", "ycsb-f-durable", "YCSB F, durable, 8 threads", SMALL, Job::Ycsb(Mix::F)).durable().threads(8),
        of("12", "scan-100-rows", "scan of 100 rows, in memory, 2 threads", SMALL, Job::Scan(100)).threads(2),
        of("12", "scan-1k-sorted", "full scan, cold, 1 KiB, loaded in order", SORTED_1K, Job::FullScan).cold(),
        of("12", "scan-1k-random", "full scan, cold, 1 KiB, loaded at random", LARGE_1K, Job::FullScan).cold(),
        of("12", "scan-1k-updated", "full scan, cold, 1 KiB, each row updated", UPDATED_1K, Job::FullScan).cold(),
        of("12", "scan-100-sorted", "full scan, cold, 100 B, loaded in order", SORTED_100, Job::FullScan).cold(),
        of("12", "scan-100-random", "full scan, cold, 100 B, loaded at random", LARGE_100, Job::FullScan).cold(),
        of("12", "scan-100-updated", "full scan, cold, 100 B, half updated", UPDATED_100, Job::FullScan).cold(),
        of("13", "half-1k", "50/50 larger than memory, 1 KiB, 8 threads", LARGE_1K, Job::Half).threads(8),
        of("13", "half-100", "50/50 larger than memory, 100 B, 8 threads", LARGE_100, Job::Half).threads(8),
        Workload {
            seconds: Some(60.0),
            ..of(
                "13",
                "heavy-100",
                "a minute of commits, relaxed, larger than memory, 2 threads",
                LARGE_100,
                Job::Commit(1),
            )
            .threads(2)
        },
        of(
            "13",
            "remove-range",
            "range delete of 10 M rows, and scans over their place",
            REMOVED_100,
            Job::RemoveRange,
        )
        .durable()
        .cold(),
        of(
            "13",
            "large-insert",
            "one transaction of 10 M inserts, beside commits to another table",
            REMOVED_100,
            Job::Large(Change::Insert),
        )
        .cold(),
        of(
            "13",
            "large-replace",
            "one transaction that replaces 10 M rows, beside commits to another table",
            REMOVED_100,
            Job::Large(Change::Replace),
        )
        .cold(),
        of(
            "13",
            "large-remove",
            "one transaction that removes 10 M rows, beside commits to another table",
            REMOVED_100,
            Job::Large(Change::Remove),
        )
        .cold(),
        of("14", "count-50k", "count of 50,000 rows, in memory", SMALL_SORTED, Job::Count(50_000)),
        of("15", "open-closed", "opening and a get, after a close", SMALL, Job::Open { killed: false }).cold(),
        of("15", "open-killed", "opening and a get, after a kill", SMALL, Job::Open { killed: true }).cold(),
        of("18", "keyspaces", "opening with 50,000 tables of ten rows, then a get from each", TABLES, Job::Tables)
            .cold(),
        of("18", "drop", "drop of a table larger than memory, beside commits to another", LARGE_100, Job::Drop).cold(),
        of("19", "backup", "backup of all rows, an increment, restoring both", LARGE_1K, Job::Backup).cold(),
        of("19", "backup-beside", "commits of a row, beside backups", LARGE_1K, Job::CommitBesideBackups).cold(),
        of("19", "kept-snapshots", "gets from a kept snapshot, in memory", SMALL, Job::KeptSnapshots).cold(),
        of("19", "feed", "rows read from the change feed", SMALL, Job::Feed).cold(),
        log("logs-1", "logs: durable appends to one log, 1 thread", 0, append(1, 1), 1),
        log("logs-32", "logs: durable appends to one log, 32 threads", 0, append(1, 1), 32),
        log("logs-32-1000", "logs: durable appends to 1,000 logs, 32 threads", 0, append(1000, 1), 32),
        log("logs-hundreds", "logs: durable appends of 100 entries, 1 thread", 0, append(1, 100), 1),
        log("logs-newest", "logs: reads of the newest 1,000 entries", 100_000, LogsJob::Newest, 1),
        log("logs-follow", "logs: a follower far from the end, cold", 4_000_000, LogsJob::Follow, 1),
        log("logs-open", "logs: opening 10,000 logs after a kill", 10_000_000, LogsJob::Open { logs: 10_000 }, 1),
        log("logs-laggard", "logs: one log is never purged, ten are", 8_000_000, LogsJob::Laggard, 1),
        raft("raft-1", "raft: writes to 3 nodes, 1 client", RAFT, RaftJob::Write, 1),
        raft("raft-256", "raft: writes to 3 nodes, 256 clients", RAFT, RaftJob::Write, 256),
        raft("raft-kill", "raft: the leader is killed, until a write succeeds", RAFT, RaftJob::Kill, 1),
        raft("raft-snapshot", "raft: a snapshot to a new node, 8 clients", RAFT_SNAPSHOT, RaftJob::Snapshot, 8),
        of("S2", "insert-1k", "durable insert of a row of 1 KiB, 1 thread", S2, Job::Insert).durable().cold(),
        shop("commerce-small-balanced-1", "commerce, small, balanced, 1 agent", Size::Small, Traffic::Balanced, 1),
        shop("commerce-small-balanced-4", "commerce, small, balanced, 4 agents", Size::Small, Traffic::Balanced, 4),
        shop("commerce-small-reads-1", "commerce, small, read-heavy, 1 agent", Size::Small, Traffic::ReadHeavy, 1),
        shop("commerce-small-reads-4", "commerce, small, read-heavy, 4 agents", Size::Small, Traffic::ReadHeavy, 4),
        shop("commerce-small-writes-1", "commerce, small, write-heavy, 1 agent", Size::Small, Traffic::WriteHeavy, 1),
        shop("commerce-small-writes-4", "commerce, small, write-heavy, 4 agents", Size::Small, Traffic::WriteHeavy, 4),
        shop("commerce-medium-balanced-1", "commerce, medium, balanced, 1 agent", Size::Medium, Traffic::Balanced, 1),
        shop("commerce-medium-balanced-4", "commerce, medium, balanced, 4 agents", Size::Medium, Traffic::Balanced, 4),
        shop("commerce-medium-reads-1", "commerce, medium, read-heavy, 1 agent", Size::Medium, Traffic::ReadHeavy, 1),
        shop("commerce-medium-reads-4", "commerce, medium, read-heavy, 4 agents", Size::Medium, Traffic::ReadHeavy, 4),
        shop(
            "commerce-medium-writes-1",
            "commerce, medium, write-heavy, 1 agent",
            Size::Medium,
            Traffic::WriteHeavy,
            1,
        ),
        shop(
            "commerce-medium-writes-4",
            "commerce, medium, write-heavy, 4 agents",
            Size::Medium,
            Traffic::WriteHeavy,
            4,
        ),
        shop("commerce-large-balanced-1", "commerce, large, balanced, 1 agent", Size::Large, Traffic::Balanced, 1),
        shop("commerce-large-balanced-4", "commerce, large, balanced, 4 agents", Size::Large, Traffic::Balanced, 4),
        shop("commerce-large-reads-1", "commerce, large, read-heavy, 1 agent", Size::Large, Traffic::ReadHeavy, 1),
        shop("commerce-large-reads-4", "commerce, large, read-heavy, 4 agents", Size::Large, Traffic::ReadHeavy, 4),
        shop("commerce-large-writes-1", "commerce, large, write-heavy, 1 agent", Size::Large, Traffic::WriteHeavy, 1),
        shop("commerce-large-writes-4", "commerce, large, write-heavy, 4 agents", Size::Large, Traffic::WriteHeavy, 4),
    ]
};

/// Returns the workloads whose row equals one of the words in `chosen`, or whose name begins with one of them. Returns
/// all workloads if `chosen` is empty.
///
/// # Errors
/// An error that names the first word that selects no workload.
pub fn select(chosen: &[String]) -> Result<Vec<Workload>, String> {
    let fits = |workload: &Workload, word: &String| workload.row == word || workload.name.starts_with(word.as_str());
    if let Some(word) = chosen.iter().find(|word| !WORKLOADS.iter().any(|workload| fits(workload, word))) {
        return Err(format!("there is no workload {word:?}; `drumlin-bench list` names them"));
    }
    let all = WORKLOADS.iter().copied();
    Ok(all.filter(|workload| chosen.is_empty() || chosen.iter().any(|word| fits(workload, word))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workload names are unique, every measured row of the table has a workload, and workloads can be selected by
    /// prefixes of their names.
    #[test]
    fn the_rows_of_the_table_are_there() {
        let mut names: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        // Rows 16 and 17 (size and memory) have no workloads of their own.
        for row in (1..=15).map(|row| row.to_string()).chain(["S2".to_owned()]) {
            assert!(WORKLOADS.iter().any(|workload| workload.row == row), "row {row}");
        }
        let chosen = |words: &[&str]| select(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(chosen(&["ycsb"]).unwrap().len(), 9);
        assert_eq!(chosen(&["15", "insert-1k"]).unwrap().len(), 3);
        assert_eq!(chosen(&["commerce"]).unwrap().len(), 18);
        assert_eq!(chosen(&[]).unwrap().len(), WORKLOADS.len());
        assert!(chosen(&["no-such"]).is_err());
    }
}
