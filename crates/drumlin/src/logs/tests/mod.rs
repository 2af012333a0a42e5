//! Tests the logs on a simulated disk, against a model made of maps.

mod crash;
mod faults;
// The simulator has the same file, so it names nothing by its path.
mod history;
mod read_only;
mod reading;
mod rules;
mod space;

use std::path::Path;
use std::sync::Arc;

use drumlin_testing::Random;

use self::history::{DIR, Disk, History, Model};
use super::*;
use crate::error::{Error, Result};
use crate::io::Backend;
use crate::io::fault::FaultyBackend;
use crate::io::sim::{self, Faults, Loss, Medium};

impl Disk {
    fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.disk.set_faults(Faults { capacity_bytes, ..Faults::default() });
    }

    fn used_bytes(&self) -> u64 {
        self.disk.with_medium(|medium| medium.bytes())
    }

    fn segment_files(&self) -> Vec<std::path::PathBuf> {
        let files = self.disk.with_medium(|medium| medium.files());
        files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "seg")).collect()
    }
}
