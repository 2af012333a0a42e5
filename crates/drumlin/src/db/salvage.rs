//! The items that a salvaging scan yields: readable rows, and the gaps between them.

use std::ops::Bound;

use super::value::Value;
use crate::error::Error;

/// An item of a [`Salvage`](crate::Salvage) iterator.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// use drumlin::Salvaged;
///
/// # let k = db.keyspace("k")?;
/// k.insert("a", "1")?;
/// let first = k.iter().salvage().next().expect("there is a row")?;
/// assert!(matches!(first, Salvaged::Row(key, _) if key == "a"));
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Salvaged {
    /// A row: key and value.
    Row(Value, Value),
    /// A range of keys whose rows cannot be read.
    Gap(Gap),
}

/// A range of keys whose rows cannot be read. It is unknown how many rows there are.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// use drumlin::{Gap, Salvaged};
///
/// # let k = db.keyspace("k")?;
/// let steps: Vec<Salvaged> = k.iter().salvage().collect::<drumlin::Result<_>>()?;
/// let is_gap = |step: Salvaged| if let Salvaged::Gap(gap) = step { Some(gap) } else { None };
/// let gaps: Vec<Gap> = steps.into_iter().filter_map(is_gap).collect();
/// assert!(gaps.is_empty());
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Gap {
    /// The lower bound of these keys.
    pub start: Bound<Vec<u8>>,
    /// The upper bound of these keys.
    pub end: Bound<Vec<u8>>,
    /// The reason: [`Corrupted`](Error::Corrupted), or [`Io`](Error::Io) if the device cannot be read.
    pub error: Error,
}
