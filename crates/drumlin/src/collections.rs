//! Hash tables that two runs walk through in the same order.
//!
//! The standard library's are keyed at random in each process, against keys that somebody chose so that they collide.
//! What is looked up here are numbers that the engine gives out. That a run can be repeated is worth more.

use std::hash::{BuildHasherDefault, DefaultHasher};

pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
pub(crate) type HashSet<T> = std::collections::HashSet<T, BuildHasherDefault<DefaultHasher>>;
