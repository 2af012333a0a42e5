//! Drumlin compared with other stores: the same work for each engine, measured in turns.
//!
//! - `engine`: the traits that all engines implement; `engines/` has one file for each engine.
//! - `commerce/`: the shop of S2's benchmark and its shoppers; `shops/` implements it for each engine that takes part.
//! - `plan`: the workloads. `rows`: their keys, values and choices, from a seed.
//! - `run`: the turns. `worker`: the process for each turn, in a memory group of its own.
//! - `workloads/`, `driver`, `measure`, `raw`, `audit`: the work, its threads, its costs, the device's limits, its
//!   syncs.
//! - `results`: the figures as JSON. `report/`: the figures as Markdown, as one HTML page, and in docs/benchmarks.md.
//!
//! Linux only. Each engine is a feature; only Drumlin is built by default.
#![cfg(target_os = "linux")]

pub mod audit;
pub mod commerce;
pub mod driver;
pub mod engine;
pub mod engines;
pub mod machine;
pub mod measure;
pub mod plan;
pub mod raw;
pub mod report;
pub mod results;
pub mod rows;
pub mod run;
pub mod shops;
pub mod worker;
pub mod workloads;

/// One allocator for all engines, including those in C and C++.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
