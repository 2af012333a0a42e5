//! Hash tables whose iteration order is the same in every run.
//!
//! Those of the standard library are keyed at random in each process, against keys chosen to collide. The keys here are
//! numbers that the engine assigns, so a hash of few instructions will do, and repeatable runs matter more.

pub(crate) use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
