//! Hash tables whose iteration order is the same in every run.
//!
//! The standard library's hash tables use a random key in each process, as a defence against keys chosen to collide.
//! Here the keys are numbers that the engine assigns, so a cheap hash is enough, and repeatable runs matter more.

pub(crate) use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
