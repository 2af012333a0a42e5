//! Tests of the engine through its public face, each file about what its head says.
//!
//! One program, which is linked once. Tests that change their process (forks, limits, hooks, the working folder) or
//! measure it are programs of their own beside it.

mod atomic;
mod bulk_load;
mod concurrency;
mod errors;
mod foreign_handles;
mod full_disk;
mod golden;
mod history;
mod in_flight;
mod isolation;
mod kill;
mod lifetime;
mod many_reads;
mod model;
mod power;
mod read_only;
#[path = "../support/mod.rs"]
mod support;
mod transact;
