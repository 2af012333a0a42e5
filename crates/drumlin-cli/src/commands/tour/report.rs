//! The figures of a tour, as `--json` prints them.

use serde::Serialize;

use super::questions::Answers;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) path: String,
    pub(super) database: String,
    pub(super) files: u64,
    pub(super) data_bytes: u64,
    pub(super) budget_bytes: u64,
    /// Of all processes of the tour.
    pub(super) resident_bytes_max: Option<u64>,
    pub(super) data_file_bytes: u64,
    /// The paths where the tour's own database lies in the tree.
    pub(super) left_out: Vec<String>,
    pub(super) seconds: f64,
    pub(super) device: Device,
    pub(super) killed: Killed,
    pub(super) recovery: Recovery,
    pub(super) finish: Finish,
    pub(super) answers: Answers,
}

#[derive(Debug, Serialize)]
pub(super) struct Device {
    pub(super) io_backend: String,
    pub(super) sync_method: String,
    pub(super) direct_io: bool,
}

/// The work that the first child had done when it was killed.
#[derive(Debug, Serialize)]
pub(super) struct Killed {
    pub(super) acknowledged_files: u64,
    pub(super) acknowledged_bytes: u64,
    pub(super) seconds: f64,
    /// False where the tree is so small that the child was done before the signal came.
    pub(super) was_killed: bool,
    /// False where every file had been acknowledged by then.
    pub(super) was_midway: bool,
    pub(super) resident_bytes_max: Option<u64>,
}

/// The time of opening the database, and its findings.
#[derive(Debug, Serialize)]
pub(super) struct Recovery {
    pub(super) seconds: f64,
    pub(super) records: u64,
    pub(super) log_bytes: u64,
    pub(super) proof: Proof,
}

/// The result of comparing the database with the disk. The tour is a success where `lost`, `torn` and `different` are
/// empty.
#[derive(Debug, Default, Serialize)]
pub(super) struct Proof {
    /// Files in the database, all of them compared.
    pub(super) found: u64,
    pub(super) acknowledged: u64,
    /// Acknowledged, and not there.
    pub(super) lost: Vec<String>,
    /// There in some of the keyspaces only.
    pub(super) torn: Vec<String>,
    /// There with another content.
    pub(super) different: Vec<String>,
    /// Changed on disk during the tour, and so not comparable.
    pub(super) changed_meanwhile: u64,
    pub(super) compared_bytes: u64,
    pub(super) seconds: f64,
}

impl Proof {
    pub(super) fn is_broken(&self) -> bool {
        !(self.lost.is_empty() && self.torn.is_empty() && self.different.is_empty())
    }
}

/// The work of the second child.
#[derive(Debug, Serialize)]
pub(super) struct Finish {
    pub(super) files_stored: u64,
    pub(super) files_unchanged: u64,
    pub(super) files_unreadable: u64,
    pub(super) paths_too_long: u64,
    #[serde(skip)]
    pub(super) left_out: Vec<String>,
    pub(super) bytes_stored: u64,
    pub(super) seconds: f64,
    pub(super) resident_bytes_max: Option<u64>,
}
