//! Measurements of this machine's storage as it really behaves.
//!
//! Drumlin's design rests on claims that other authors measured on their machines: that reads of mapped files collapse
//! once memory is full, that direct reads with many requests in flight do not, and that a fast sync often syncs
//! nothing. Comments cite these authors as S1 to S5; `report` lists their titles. [`run`] measures each claim on this
//! machine and shows the source's figures next to the measured ones. [`doctor`] derives advice and settings from
//! measurements.
//!
//! - `experiments/` has one module per experiment: the measurement, its tables and plots, and the verdicts on the
//!   claims;
//! - `worker` runs each measurement in its own process, `cgroup` limits the memory of that process, and `temp_folder`
//!   owns the files;
//! - `regime` creates the conditions under which reads are measured, and `loop_device` the devices for them;
//! - `compare` decides if two cases differ, and judges the sources' claims;
//! - `measure` and `counters` time and count; `map` and `ring` offer what `drumlin_io` lacks;
//! - `mount` creates file systems for the lab, `block_counts` counts flushes, and `sync_calls` the calls that ask for
//!   them;
//! - `report` shows the results as tables, as JSON and as one HTML page.
//!
//! The crate measures Linux, so it builds on Linux only.
#![deny(missing_docs)]
#![cfg(target_os = "linux")]

mod block_counts;
mod cgroup;
mod compare;
mod condition;
mod counters;
pub mod doctor;
mod experiments;
mod failing_file;
mod figures;
mod flush;
mod loop_device;
mod machine;
mod map;
mod measure;
mod mount;
mod nvme;
mod regime;
mod report;
mod ring;
mod run;
mod session;
mod sync_calls;
mod sys;
mod temp_folder;
mod worker;

pub use cgroup::Cgroup;
pub use counters::{Counters, resident_bytes_max};
pub use experiments::Experiment;
pub use figures::Form;
pub use machine::{Drive, Machine};
pub use mount::FileSystem;
pub use report::{Axis, Cell, Chapter, Column, Holds, Line, Plot, Report, Row, Scale, Table, Verdict};
pub use run::{run, worker_main};
pub use session::{Observer, Settings};
pub use temp_folder::remove_everything;
