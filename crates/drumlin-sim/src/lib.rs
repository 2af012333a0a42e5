//! Drumlin in a simulated world: the whole engine, many clients, the scheduler, time and the disk under one seed.
//!
//! [`world::run`] runs a seed, [`explore::explore`] many. What is checked is said in [`model`], what goes wrong on
//! disks in `drumlin::internals::io::sim`.

pub mod client;
pub mod crash_points;
pub mod crowd;
pub mod explore;
pub mod model;
pub mod plan;
pub mod planted;
pub mod progress;
pub mod report;
pub mod tasks;
pub mod world;
