//! What threads wait on: locks, condition variables, parking, pausing.
//!
//! The library waits through this module and the I/O backends alone, so that a scheduler of its own can stand in for the
//! system's in a simulation.

pub(crate) use std::thread::{Thread, current, park_timeout, sleep, yield_now};

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

// Under `--cfg drumlin_loom` the parts that have models use its atomics.
#[cfg(drumlin_loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(drumlin_loom))]
pub(crate) use std::sync::atomic;
