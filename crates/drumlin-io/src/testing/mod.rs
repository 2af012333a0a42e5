//! Test support: a backend that injects faults, and a simulated disk that loses unsynced changes.

mod disorder;
pub mod fault;
pub mod sim;
