//! Measurements of what this machine's storage really does.
//!
//! Drumlin rests on claims that others measured on their machines: that mapping a file collapses once memory is full,
//! that direct reads with many requests in flight do not, that a fast sync is often none. [`run`] measures each claim
//! on the machine at hand, with the source's figures beside it; [`doctor`] turns measurements into advice and settings.
//!
//! - `experiments/` holds one file an experiment: what is measured, how it is shown, what it says of the claims;
//! - `worker` runs each measurement in a process of its own, `cage` puts it under a memory limit, `room` owns the
//!   files;
//! - `measure` and `counters` time and count; `map` and `ring` reach what `drumlin::io` does not offer;
//! - `report` shows all of it as a table, as JSON and as one HTML page.
//!
//! Linux only: what is measured is Linux's.
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
