//! Verifies everything on disk, for an open database and for one that is closed or cannot be opened.
//!
//! Both kinds of check read the pages with the same [`pages::Verifier`] and report to the same [`CheckReport`]. They
//! differ in the source of the page tables and the log: an open database has them in memory, whereas an examination of
//! a closed one reads them from disk.

mod closed;
mod kept;
mod opened;
mod pages;
mod report;

pub(crate) use closed::examine;
pub use report::{CheckProgress, CheckReport, Corruption, LostKeys};
