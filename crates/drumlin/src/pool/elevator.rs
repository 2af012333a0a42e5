//! The order in which dirty pages are written back.

use crate::space::FrameIndex;

/// Dirty pages of one size in key order. See [`write_back`](super::write_back).
#[derive(Debug, Default)]
pub(super) struct Elevator {
    /// The pages not written yet, the next one last.
    pub(super) rest: Vec<FrameIndex>,
    /// If no more than this many are left, the elevator wants more.
    pub(super) low: usize,
    pub(super) is_wanted: bool,
}
