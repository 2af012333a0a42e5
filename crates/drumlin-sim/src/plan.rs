//! The plan of a world: everything that is drawn from its seed before it begins.

use std::time::Duration;

use drumlin::{Archive, Config, Retention, VersionOverflow};
use drumlin_io::testing::sim::{Disk, Random, Schedule};

/// The folder of the archive, on the same disk as the database.
pub const ARCHIVE: &str = "/archive";
/// The age at which a file of the archive is ended: sessions with short pauses last some of these.
const ARCHIVE_INTERVAL: Duration = Duration::from_millis(20);

/// The kind of fault that a world has in addition to power cuts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, clap::ValueEnum)]
pub enum Fault {
    None,
    /// Reads fail, once or permanently.
    FailingReads,
    FailingWrites,
    FailingSyncs,
    FullDisk,
    /// A full disk with a great number of pages and keyspaces. No seed draws this fault; only the command line can
    /// choose it.
    CrowdedDisk,
    /// Writes that were reported as done but never happened or went to the wrong place.
    LostWrites,
    /// Bits flip at rest.
    Rot,
    /// The disk reports writes as durable before they are.
    Lies,
}

impl Fault {
    /// Returns the name of the fault on the command line.
    #[must_use]
    pub fn name(self) -> String {
        use clap::ValueEnum as _;
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// Returns the fault with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Fault> {
        <Fault as clap::ValueEnum>::from_str(name, false).ok()
    }
}

/// Everything that is drawn from a seed before the world begins.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// A fault to use instead of the one drawn from the seed.
    pub imposed: Option<Fault>,
    pub schedule: Schedule,
    /// `true` if some transactions are serializable.
    pub serializable: bool,
    /// The number of threads that run clients as tasks. `tasks` is the number of tasks on each.
    pub task_threads: u64,
    pub tasks: u64,
    /// `true` if clients put and remove runs of neighbouring rows.
    pub runs: bool,
    /// `true` if a client keeps its snapshot until it is too old.
    pub keeps_snapshots: bool,
    /// `true` if the log grows without triggering checkpoints.
    pub log_grows: bool,
    pub log_segment_bytes: u64,
    /// `true` if each session has a different number of log streams and a different length of log segments.
    pub log_varies: bool,
    /// `true` if faults also occur while the database is being opened and closed.
    pub faults_at_openings: bool,
    pub fault: Fault,
    pub sessions: u64,
    pub clients: u64,
    pub steps: u64,
    pub think_nanos: u64,
    pub key_count: u64,
    pub value_bytes: u64,
    pub large_values: bool,
    pub relaxed_percent: u64,
    pub maintenance_weight: u64,
    pub slow_one_in: u64,
    pub memory_bytes: u64,
    pub page_bytes: usize,
    pub streams: u16,
    pub checkpoint_log_bytes: u64,
    /// `true` if clients use every kind of read, and closures that the engine retries.
    pub reads_all: bool,
    /// On a crowded disk, the number of keyspaces in addition to the usual ones.
    pub keyspaces_beside: u64,
    /// `true` if each opening does a warm start, which rereads the pages that were in memory.
    pub warm_start: bool,
    /// The disk space for old versions of rows. A few KiB of them stay in memory.
    pub version_disk_bytes: u64,
    /// `true` if clients prepare transactions, which later sessions may end.
    pub prepares: bool,
    /// `true` if clients make transactions whose changes outgrow memory.
    pub spills: bool,
    /// `true` if clients drop keyspaces that fill segments of their own, while these are read.
    pub drops_large: bool,
    /// The bytes of changes that are kept for a follower; 0: none are kept.
    pub changes_bytes: u64,
    /// `true` if old values are kept with them.
    pub old_values: bool,
    /// `true` if clients keep snapshots on disk, read and drop them, and make backups.
    pub keeps_on_disk: bool,
    /// `true` if clients clone keyspaces.
    pub clones: bool,
    /// `true` if the database has an archive, and backups are made at openings and restored to points in time at the
    /// end.
    pub archives: bool,
    /// `true` if commits wait while that space is full. Ignored if a client keeps its snapshot, because commits would
    /// wait for that snapshot forever.
    pub delays_commits: bool,
}

impl Plan {
    #[must_use]
    pub fn of(seed: u64) -> Plan {
        let mut random = Random(seed ^ 0x5EED_0F1A_11A5_0E55);
        let mut one_of = |values: &[u64]| values[random.below(values.len() as u64) as usize];
        let schedule = Schedule {
            seed,
            switch_one_in: one_of(&[1, 2, 3, 5, 10, 30, 100]),
            step_nanos_max: one_of(&[50, 200, 1000, 5000]),
            points_max: 100_000_000,
        };
        let fault = match one_of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]) {
            0..12 => Fault::None,
            12 => Fault::FailingReads,
            13 => Fault::FailingWrites,
            14 => Fault::FailingSyncs,
            15 | 16 => Fault::FullDisk,
            17 => Fault::LostWrites,
            18 => Fault::Rot,
            _ => Fault::Lies,
        };
        let large_values = one_of(&[0, 0, 1]) == 1;
        let streams = one_of(&[1, 1, 2, 3]);
        Plan {
            seed,
            imposed: None,
            schedule,
            fault,
            sessions: one_of(&[2, 3, 4, 6]),
            clients: one_of(&[1, 2, 3, 5, 8]),
            steps: one_of(&[20, 60, 150, 300]),
            think_nanos: one_of(&[0, 0, 0, 100_000, 10_000_000, 5_000_000_000]),
            key_count: one_of(&[30, 300, 3000]),
            value_bytes: one_of(&[20, 120, 400]),
            large_values,
            relaxed_percent: one_of(&[0, 0, 20, 60]),
            maintenance_weight: one_of(&[1, 10, 40]),
            slow_one_in: one_of(&[0, 0, 50, 1000]),
            // Each additional log stream needs a buffer. With a smaller budget than this, the running operations could
            // pin all pages.
            memory_bytes: one_of(&[4 << 20, 5 << 20, 8 << 20]) + (384 << 10) + ((streams - 1) << 19),
            page_bytes: one_of(&[512, 1024, 4096]) as usize,
            streams: streams as u16,
            checkpoint_log_bytes: one_of(&[32 << 10, 128 << 10, 1 << 20]),
            // These draws were added later. `plain` reverts them, so that the plain worlds of older seeds stay the
            // same.
            serializable: one_of(&[0, 1, 1, 1]) == 1,
            task_threads: one_of(&[0, 0, 1, 1, 2]),
            tasks: one_of(&[1, 2, 4]),
            runs: one_of(&[0, 0, 1]) == 1,
            keeps_snapshots: one_of(&[0, 0, 0, 1]) == 1,
            log_grows: one_of(&[0, 0, 0, 1]) == 1,
            log_segment_bytes: one_of(&[1 << 20, 256 << 10]),
            log_varies: one_of(&[0, 1]) == 1,
            faults_at_openings: one_of(&[0, 1]) == 1,
            reads_all: one_of(&[1, 0, 0]) == 1,
            keyspaces_beside: 0,
            warm_start: one_of(&[0, 1]) == 1,
            version_disk_bytes: one_of(&[1 << 30, 1 << 30, 256 << 10, 0]),
            delays_commits: one_of(&[0, 0, 0, 1]) == 1,
            // These are not drawn, so that the other worlds of older seeds stay the same.
            prepares: Random(seed ^ 0x2BAD_1DEA).below(4) == 0,
            spills: Random(seed ^ 0x0B16_1DEA).below(4) == 0,
            drops_large: Random(seed ^ 0x0DD0_1DEA).below(6) == 0,
            old_values: Random(seed ^ 0x01D_7A1E).below(2) == 0,
            changes_bytes: [256 << 10, 1 << 40, 0, 0, 0, 0, 0, 0][Random(seed ^ 0xFEED_1DEA).below(8) as usize],
            keeps_on_disk: Random(seed ^ 0x0CE9_71DE).below(3) == 0,
            clones: Random(seed ^ 0xC10E_1DEA).below(3) == 0,
            archives: Random(seed ^ 0xA2C1_1DEA).below(8) == 0,
        }
    }

    /// Returns the same world without the draws that were added later: with blocking clients only, and without
    /// serializable transactions.
    #[must_use]
    pub fn plain(self) -> Plan {
        Plan {
            serializable: false,
            task_threads: 0,
            runs: false,
            keeps_snapshots: false,
            log_grows: false,
            log_segment_bytes: 1 << 20,
            log_varies: false,
            faults_at_openings: false,
            reads_all: false,
            warm_start: false,
            version_disk_bytes: 0,
            delays_commits: false,
            prepares: false,
            spills: false,
            drops_large: false,
            changes_bytes: 0,
            old_values: false,
            keeps_on_disk: false,
            clones: false,
            archives: false,
            ..self
        }
    }

    /// Returns the same world with a different fault.
    #[must_use]
    pub fn with(self, imposed: Option<Fault>) -> Plan {
        let plan = Plan { imposed, fault: imposed.unwrap_or(self.fault), ..self };
        match plan.fault {
            Fault::CrowdedDisk => plan.crowded(),
            _ => plan,
        }
    }

    /// Returns the same world with many rows and keyspaces, and with enough memory for their dirty pages and page
    /// tables.
    fn crowded(self) -> Plan {
        // Half of the budget is for pages, and page tables may take three quarters of that half. So 12 of these 32 KiB
        // are for page tables.
        const KEYSPACE_BYTES: u64 = 32 << 10;
        let keyspaces_beside = [2, 20, 100][(self.seed / 3 % 3) as usize];
        let (key_count, more_bytes) = [(2000, 0), (6000, 8 << 20), (15_000, 32 << 20)][(self.seed % 3) as usize];
        // Scans of so many rows take long, so let clients make fewer steps.
        let (sessions, steps) = (self.sessions.max(3), self.steps.min(60));
        let memory_bytes = self.memory_bytes + more_bytes + keyspaces_beside * KEYSPACE_BYTES;
        Plan {
            key_count,
            memory_bytes,
            sessions,
            steps,
            keyspaces_beside,
            prepares: false,
            spills: false,
            drops_large: false,
            keeps_on_disk: false,
            clones: false,
            archives: false,
            changes_bytes: 0,
            old_values: false,
            ..self
        }
    }

    /// Returns the plan of one session.
    #[must_use]
    pub fn of_session(&self, session: u64) -> Plan {
        let mut plan = self.clone();
        if self.log_varies {
            let mut random = Random(self.seed ^ (session + 1) << 32);
            plan.streams = 1 + random.below(3) as u16;
            plan.memory_bytes = self.memory_bytes + (u64::from(plan.streams) << 19) - (u64::from(self.streams) << 19);
            plan.log_segment_bytes = [256 << 10, 512 << 10, 1 << 20][random.below(3) as usize];
        }
        plan
    }

    #[must_use]
    pub fn config(&self, disk: &Disk) -> Config {
        let config = match self.changes_bytes {
            0 => Config::new(),
            bytes if self.old_values => Config::new().keep_changes(Retention::bytes(bytes).with_old_values()),
            bytes => Config::new().keep_changes(Retention::bytes(bytes)),
        };
        let config = match self.archives {
            true => config.archive(Archive::to_folder(ARCHIVE).every(ARCHIVE_INTERVAL)),
            false => config,
        };
        config
            // The smallest of these budgets are half of the smallest one that users can set. They have no room for the
            // buffers of a spill, nor for those of a backup and the page tables of open snapshots.
            .memory(
                self.memory_bytes
                    + (u64::from(self.spills) << 20)
                    + (u64::from(self.keeps_on_disk || self.clones || self.archives) << 21),
            )
            .page_bytes(self.page_bytes)
            .segment_bytes(256 << 10)
            .log_segment_bytes(self.log_segment_bytes)
            .log_streams(self.streams)
            .warm_start(self.warm_start)
            .version_disk_bytes(self.version_disk_bytes)
            .version_overflow(if self.delays_commits && !self.keeps_snapshots {
                VersionOverflow::DelayCommits
            } else {
                VersionOverflow::EndSnapshots
            })
            .checkpoint_log_bytes(if self.log_grows { 64 << 20 } else { self.checkpoint_log_bytes })
            .backend(disk.backend())
    }
}
