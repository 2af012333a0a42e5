//! The steps of a scan that goes on behind what can't be read.

use std::ops::Bound;

use super::value::Value;
use crate::error::Error;

/// A step of a [`Salvage`](crate::Salvage).
#[derive(Debug)]
#[non_exhaustive]
pub enum Salvaged {
    /// A row: key and value.
    Row(Value, Value),
    /// Keys whose rows can't be read.
    Gap(Gap),
}

/// Keys whose rows can't be read. How many rows there were is not known.
#[derive(Debug)]
#[non_exhaustive]
pub struct Gap {
    /// The first of the keys.
    pub start: Bound<Vec<u8>>,
    /// The last of them.
    pub end: Bound<Vec<u8>>,
    /// The reason: [`Corrupted`](Error::Corrupted), or [`Io`](Error::Io) where the medium can't be read.
    pub error: Error,
}
