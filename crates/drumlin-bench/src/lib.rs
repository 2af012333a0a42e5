//! Compares Drumlin with other stores. Every engine runs the same workloads, and the engines take turns.
//!
//! - `engine`: the traits that all engines implement; `engines/` has one file per engine.
//! - `commerce/`: the shop of S2's benchmark and its shoppers; `shops/` implements the shop for each engine that
//!   supports it.
//! - `logs/`: stores of logs by index, which have workloads of their own.
//! - `raft/`: clusters of Raft nodes, which have workloads of their own too.
//! - `plan`: the workloads. `rows`: their keys, values and random choices of rows, all derived from a seed.
//! - `run`: runs the turns. `worker`: the process of each turn, in its own memory group.
//! - `workloads/`: the operations of each workload. `driver`: their threads. `measure`: their costs. `raw`: the limits
//!   of the device. `audit`: the syncs that reach the device.
//! - `results`: the figures as JSON. `report/`: the figures as Markdown, as an HTML page, and in docs/benchmarks.md.
//!
//! Runs on Linux only. Every engine except Drumlin needs a feature; by default, only Drumlin is built.
#![cfg(target_os = "linux")]

pub mod audit;
pub mod commerce;
pub mod driver;
pub mod engine;
pub mod engines;
pub mod logs;
pub mod machine;
pub mod measure;
pub mod plan;
pub mod raft;
pub mod raw;
pub mod report;
pub mod results;
pub mod rows;
pub mod run;
pub mod shops;
pub mod worker;
pub mod workloads;

/// All engines use this allocator, even those written in C and C++.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
