//! The settings of a node.

use drumlin::Config;
use drumlin::logs::LogsOptions;

/// The longest request, unless the user sets it.
const REQUEST_BYTES_MAX_DEFAULT: u64 = 1 << 20;
/// The longest request that can be set: an entry of a log takes 64 MiB, and has a header.
const REQUEST_BYTES_MAX: u64 = (64 << 20) - (64 << 10);
/// The number of entries by which a snapshot that travels may lag, unless the user sets it.
const SNAPSHOT_LAG_MAX_DEFAULT: u64 = 1_000_000;

/// Settings of a node.
///
/// ```
/// use drumlin::{Config, logs::LogsOptions};
/// use drumlin_raft::NodeOptions;
///
/// let options = NodeOptions::new()
///     .logs(LogsOptions::new().memory(32 << 20))
///     .state(Config::new().memory(512 << 20))
///     .request_bytes_max(4 << 20);
/// # drop(options);
/// ```
#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub(crate) logs: LogsOptions,
    pub(crate) state: Config,
    pub(crate) request_bytes_max: u64,
    pub(crate) snapshot_lag_max: u64,
}

impl Default for NodeOptions {
    fn default() -> NodeOptions {
        NodeOptions {
            logs: LogsOptions::new(),
            state: Config::new(),
            request_bytes_max: REQUEST_BYTES_MAX_DEFAULT,
            snapshot_lag_max: SNAPSHOT_LAG_MAX_DEFAULT,
        }
    }
}

impl NodeOptions {
    /// Returns the defaults, which are those of [`LogsOptions`] and [`Config`], and requests of at most 1 MiB.
    #[must_use]
    pub fn new() -> NodeOptions {
        NodeOptions::default()
    }

    /// Sets the options of the log, which all groups of the node share.
    #[must_use]
    pub fn logs(mut self, options: LogsOptions) -> NodeOptions {
        self.logs = options;
        self
    }

    /// Sets the configuration of the databases with the states. Each group has one, with a memory budget of its own.
    /// The durability and the delay of relaxed commits are ignored: entries are applied with
    /// [`Relaxed`](drumlin::Durability::Relaxed), and become durable after 100 ms, or earlier if they are purged.
    #[must_use]
    pub fn state(mut self, config: Config) -> NodeOptions {
        self.state = config;
        self
    }

    /// Sets how many bytes a request may take: 1 MiB by default, at most 64 MiB less 64 KiB. A larger request is
    /// refused by [`Group::check`](crate::Group::check) before it is proposed. All nodes should have the same limit.
    #[must_use]
    pub fn request_bytes_max(mut self, bytes: u64) -> NodeOptions {
        self.request_bytes_max = bytes.min(REQUEST_BYTES_MAX);
        self
    }

    /// Sets how many entries may be applied after a snapshot that is being sent, before a new snapshot is built all the
    /// same: 1,000,000 by default. A Raft node purges the entries before its newest snapshot. So a node that is sent an
    /// older one would need another snapshot as soon as it has received this one.
    #[must_use]
    pub fn snapshot_lag_max(mut self, entries: u64) -> NodeOptions {
        self.snapshot_lag_max = entries;
        self
    }
}
