//! Equipment for tests: a backend that fails on request, and a simulated disk that loses what was not synced.

mod disorder;
pub mod fault;
pub mod sim;
