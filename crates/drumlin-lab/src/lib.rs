//! Measurements of what this machine's storage really does.
//!
//! Drumlin rests on claims that others measured on their machines: that reads of mapped files collapse once memory is
//! full, that direct reads with many requests in flight do not, that a fast sync is often none. [`run`] measures each
//! claim on this machine and shows the source's figures beside it; [`doctor`] turns measurements into advice and
//! settings.
//!
//! - `experiments/` has one file per experiment: the measurement, its tables and plots, the verdicts on the claims;
//! - `worker` runs each measurement in a process of its own, `cgroup` holds it to a memory limit, `temp_folder` owns
//!   the files;
//! - `measure` and `counters` time and count; `map` and `ring` do what `drumlin::internals::io` does not offer;
//! - `report` shows the results as tables, as JSON and as one HTML page.
//!
//! Linux only: it measures Linux.
#![deny(missing_docs)]
#![cfg(target_os = "linux")]

mod cgroup;
mod counters;
pub mod doctor;
mod experiments;
mod figures;
mod flush;
mod machine;
mod map;
mod measure;
mod report;
mod ring;
mod run;
mod session;
mod sys;
mod temp_folder;
mod worker;

pub use experiments::Experiment;
pub use machine::{Drive, Machine};
pub use report::{Axis, Cell, Chapter, Column, Holds, Line, Plot, Report, Row, Scale, Table, Verdict};
pub use run::{run, worker_main};
pub use session::{Observer, Settings};
pub use temp_folder::remove_everything;
