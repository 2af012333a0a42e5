//! Drumlin in a simulated world: the whole engine, many clients, the scheduler, time and the disk, all driven by one
//! seed.
//!
//! [`world::run`] runs one seed, and [`explore::explore`] runs many. [`model`] lists the checks, and
//! `drumlin_io::testing::sim` lists the faults of disks.

pub mod client;
pub mod cluster;
pub mod crash_points;
pub mod crowd;
pub mod explore;
pub mod follower;
pub mod logs;
pub mod model;
pub mod plan;
pub mod planted;
pub mod progress;
pub mod report;
mod rewinds;
pub mod tasks;
pub mod world;
