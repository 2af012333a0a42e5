//! The order in which dirty pages are written back.

use crate::space::FrameIndex;

/// Dirty pages of one size in key order. See [`write_back`](super::write_back).
#[derive(Debug, Default)]
pub(super) struct Elevator {
    /// The pages that have not been written yet; the next one to write is the last.
    pub(super) rest: Vec<FrameIndex>,
    /// Once at most this number of pages are left, the elevator is due for a refill.
    pub(super) low: usize,
    pub(super) is_wanted: bool,
}
