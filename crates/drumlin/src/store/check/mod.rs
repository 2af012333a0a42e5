//! Verifying everything on disk: of an open database, and of one that is closed or cannot be opened.
//!
//! Both read the pages with the same [`pages::Verifier`] and report to the same [`CheckReport`]. They differ in where
//! the page tables and the log come from: an open database has them in memory, an examination reads them.

mod closed;
mod opened;
mod pages;
mod report;

pub(crate) use closed::examine;
pub use report::{CheckProgress, CheckReport, Corruption, LostKeys};
