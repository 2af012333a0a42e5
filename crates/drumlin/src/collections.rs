//! Hash tables whose iteration order is the same in every run.
//!
//! Those of the standard library are keyed at random in each process, against keys chosen to collide. The keys here are
//! numbers that the engine assigns, and repeatable runs matter more.

use std::hash::{BuildHasherDefault, DefaultHasher};

pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
pub(crate) type HashSet<T> = std::collections::HashSet<T, BuildHasherDefault<DefaultHasher>>;
