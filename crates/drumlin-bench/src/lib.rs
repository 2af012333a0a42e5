//! Drumlin beside its peers: the same work for each engine, measured in turns.
//!
//! - `engine`: the one trait that all engines have here; `engines/` has them, one file each;
//! - `commerce/`: the shop of S2's benchmark and its shoppers; `shops/` has it in each engine that takes part;
//! - `plan`: the workloads; `rows`: their keys, values and choices, from a seed;
//! - `run`: the turns; `worker`: a process for each, in a memory group of its own;
//! - `workloads/`, `driver`, `measure`, `raw`, `audit`: the work, its threads, its costs, the device's limits, its
//!   syncs;
//! - `results`: the figures as JSON; `report/`: the same as Markdown, as one HTML page, and in docs/benchmarks.md.
//!
//! Linux only. The engines are features: none but Drumlin is built by default.
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

/// One allocator for all engines, those in C and C++ included.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
