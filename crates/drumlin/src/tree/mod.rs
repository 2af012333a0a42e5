//! B+trees of slotted pages.

pub(crate) mod node;
