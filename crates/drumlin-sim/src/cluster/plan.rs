//! The plan of a cluster's world, which follows from its seed.

use drumlin_io::testing::sim::{Random, Schedule};
use openraft::{Config, SnapshotPolicy};

/// The plan of one world.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub schedule: Schedule,
    /// The number of nodes that the cluster begins with.
    pub nodes: u64,
    pub clients: u64,
    pub keys: u64,
    /// The number of events, after which everything heals.
    pub events: u64,
    /// The maximum length of most values.
    pub value_bytes: u64,
    pub raft: Config,
    pub snapshot_lag_max: u64,
    pub checkpoint_log_bytes: u64,
    pub slow_one_in: u64,
    /// One message in this number is lost while the network is disturbed.
    pub lost_one_in: u64,
    /// One node's disk may flip a bit, once.
    pub rots: bool,
}

impl Plan {
    /// Returns the plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Plan {
        let mut random = Random(seed ^ 0xC105_7E25);
        let mut one_of = |values: &[u64]| values[random.below(values.len() as u64) as usize];
        let schedule = Schedule {
            seed,
            switch_one_in: one_of(&[2, 5, 10, 30, 100]),
            step_nanos_max: one_of(&[50, 200, 500]),
            points_max: 50_000_000,
        };
        let logs_between = one_of(&[10, 20, 40, 1000]);
        let raft = Config {
            cluster_name: "simulated".to_owned(),
            heartbeat_interval: 30,
            election_timeout_min: 100,
            election_timeout_max: 200,
            install_snapshot_timeout: 200,
            backoff: "20ms".to_owned(),
            snapshot_policy: SnapshotPolicy::LogsSinceLast(logs_between),
            max_in_snapshot_log_to_keep: one_of(&[0, 0, 5, 20]),
            max_payload_entries: one_of(&[1, 4, 300]),
            replication_lag_threshold: one_of(&[5, 50]),
            ..Config::default()
        };
        Plan {
            seed,
            schedule,
            nodes: one_of(&[3, 3, 3, 4, 5]),
            clients: one_of(&[1, 2, 4]),
            keys: one_of(&[1, 3, 10]),
            events: one_of(&[4, 8, 12]),
            value_bytes: one_of(&[20, 200, 3000]),
            raft: raft.validate().expect("these settings are valid"),
            snapshot_lag_max: one_of(&[0, 20, 1_000_000]),
            checkpoint_log_bytes: one_of(&[32 << 10, 256 << 10]),
            slow_one_in: one_of(&[0, 0, 500]),
            lost_one_in: one_of(&[3, 10, 30]),
            rots: one_of(&[0, 0, 1]) == 1,
        }
    }
}
