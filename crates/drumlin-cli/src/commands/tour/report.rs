//! The figures for a tour, as `--json` prints them.

use serde::Serialize;

use super::questions::Answers;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) path: String,
    pub(super) database: String,
    pub(super) files: u64,
    pub(super) data_bytes: u64,
    pub(super) budget_bytes: u64,
    /// The maximum over all processes of the tour.
    pub(super) resident_bytes_max: Option<u64>,
    pub(super) data_file_bytes: u64,
    /// The paths of the tour's own database if it is in the tree.
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

/// The progress of the first child when it was killed.
#[derive(Debug, Serialize)]
pub(super) struct Killed {
    pub(super) acknowledged_files: u64,
    pub(super) acknowledged_bytes: u64,
    pub(super) seconds: f64,
    /// `false` if the tree is so small that the child ended before the signal arrived.
    pub(super) was_killed: bool,
    /// `false` if every file had been acknowledged by the time of the kill.
    pub(super) was_midway: bool,
    pub(super) resident_bytes_max: Option<u64>,
}

/// The time that it took to open the database, and the results of recovery.
#[derive(Debug, Serialize)]
pub(super) struct Recovery {
    pub(super) seconds: f64,
    pub(super) records: u64,
    pub(super) log_bytes: u64,
    pub(super) proof: Proof,
}

/// The result of comparing the database with the disk. The tour succeeds if `lost`, `torn` and `different` are empty.
#[derive(Debug, Default, Serialize)]
pub(super) struct Proof {
    /// The number of files in the database. All of them were compared.
    pub(super) found: u64,
    pub(super) acknowledged: u64,
    /// Acknowledged files that are missing.
    pub(super) lost: Vec<String>,
    /// Files that are in only some of the keyspaces.
    pub(super) torn: Vec<String>,
    /// Files whose content differs.
    pub(super) different: Vec<String>,
    /// Files that changed on disk during the tour, so that they can't be compared.
    pub(super) changed_meanwhile: u64,
    pub(super) compared_bytes: u64,
    pub(super) seconds: f64,
}

impl Proof {
    pub(super) fn is_broken(&self) -> bool {
        !(self.lost.is_empty() && self.torn.is_empty() && self.different.is_empty())
    }
}

/// The figures for the second child.
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
