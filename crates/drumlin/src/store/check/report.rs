//! The findings of a check.

use std::path::PathBuf;

use crate::error::Error;
use crate::format::extent::PageKey;
use crate::format::{PageId, Timestamp};

/// The findings of a check.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let report = db.check()?;
/// assert!(report.corruption.is_empty());
/// println!("{} pages and {} log records are sound", report.pages, report.log_records);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The number of keyspaces whose pages were read.
    pub keyspaces: u64,
    /// The number of pages read, including those of large values.
    pub pages: u64,
    /// The number of rows found by scanning every tree. For an [examination](crate::Config::examine), the rows in
    /// intact leaves.
    pub rows: u64,
    /// The bytes of extents read.
    pub extent_bytes: u64,
    /// The number of log records verified. For an [examination](crate::Config::examine), the records that opening would
    /// apply.
    pub log_records: u64,
    /// The newest commit that the checkpoint includes.
    pub checkpoint: Timestamp,
    /// The newest commit found. The checkpoint and the intact records of the log contain this commit and all earlier
    /// ones.
    pub last: Timestamp,
    /// All corruption found, up to [`CORRUPTION_COUNT_MAX`](CheckReport::CORRUPTION_COUNT_MAX).
    pub corruption: Vec<Corruption>,
    /// The number of findings that are not listed.
    pub unlisted: u64,
    /// Corruption that opening repaired because nothing depended on it: a corrupted superblock whose counterpart is
    /// valid. A power cut during the write of a superblock can cause this, and so can a device that loses bytes.
    pub repaired: Vec<Corruption>,
}

/// One finding of a check: a part of a file that differs from what was written.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// for corruption in db.check()?.corruption {
///     let file = corruption.file.display();
///     println!("{} of {file}: {}. Lost: {}", corruption.what, corruption.reason, corruption.cost);
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Corruption {
    /// The file that is corrupted.
    pub file: PathBuf,
    /// The page, record or structure that is corrupted.
    pub what: String,
    /// The check that failed.
    pub reason: String,
    /// A description of the data that is lost because of it.
    pub cost: String,
    /// The keys of the lost rows, if a single page is corrupted and the nodes above it show the keys that it held.
    pub keys: Option<LostKeys>,
    pub(super) page: Option<PageKey>,
}

/// The keys of lost rows.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// for keys in db.check()?.corruption.into_iter().filter_map(|corruption| corruption.keys) {
///     println!("keyspace {:?} has lost keys from {:?} to {:?}", keys.keyspace, keys.lower, keys.upper);
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LostKeys {
    /// The name of the keyspace.
    pub keyspace: String,
    /// The first key of the lost range, or `None` if the range begins with the first key of the keyspace.
    pub lower: Option<Vec<u8>>,
    /// The first key after the lost range, or `None` if the range has no end.
    pub upper: Option<Vec<u8>>,
}

/// The progress of a check.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// db.check_with(|progress| println!("{} of {} pages", progress.pages_done, progress.pages_total))?;
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CheckProgress {
    /// The number of pages verified so far.
    pub pages_done: u64,
    /// The approximate total number of pages.
    pub pages_total: u64,
}

impl Corruption {
    fn of(error: Error, cost: impl Into<String>) -> Corruption {
        let (file, what, reason) = match error {
            Error::Corrupted { path, what, reason } => (path, what, reason),
            Error::Io { action, path, source } => (path, format!("{action} it"), source.to_string()),
            other => (PathBuf::new(), "it".to_owned(), other.to_string()),
        };
        Corruption { file, what, reason, cost: cost.into(), keys: None, page: None }
    }
}

impl std::fmt::Display for LostKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the rows of keyspace {:?}", self.keyspace)?;
        match (&self.lower, &self.upper) {
            (None, None) => f.write_str(", all of them"),
            (Some(lower), None) => write!(f, " from key b\"{}\" on", lower.escape_ascii()),
            (None, Some(upper)) => write!(f, " below key b\"{}\"", upper.escape_ascii()),
            (Some(lower), Some(upper)) if upper.strip_suffix(&[0]) == Some(lower) => {
                write!(f, " of key b\"{}\"", lower.escape_ascii())
            }
            (Some(lower), Some(upper)) => {
                write!(f, " from key b\"{}\" on, below b\"{}\"", lower.escape_ascii(), upper.escape_ascii())
            }
        }
    }
}

impl CheckReport {
    /// The maximum number of findings that a report lists. A truncated file may lack millions of pages.
    pub const CORRUPTION_COUNT_MAX: usize = 1000;

    pub(super) fn report_corruption(&mut self, error: Error, cost: impl Into<String>) {
        self.push(Corruption::of(error, cost));
    }

    /// Records a corrupted page, unless it is recorded already.
    pub(super) fn report_page(&mut self, error: Error, keyspace: &str, page_key: PageKey) {
        if self.corruption.iter().any(|known| known.page == Some(page_key)) {
            return;
        }
        let cost = cost_of(keyspace, page_key.page);
        self.push(Corruption { page: Some(page_key), ..Corruption::of(error, cost) });
    }

    /// Records corruption that opening the database repaired.
    pub(super) fn report_repaired(&mut self, error: Error) {
        self.repaired.push(Corruption::of(error, "nothing"));
    }

    fn push(&mut self, damage: Corruption) {
        if self.corruption.len() == CheckReport::CORRUPTION_COUNT_MAX {
            self.unlisted += 1;
        } else if !self.corruption.iter().any(|known| known.what == damage.what && known.file == damage.file) {
            self.corruption.push(damage);
        }
    }
}

fn cost_of(keyspace: &str, page: PageId) -> String {
    format!(
        "the rows of page {page} of keyspace {keyspace:?}; if it is an inner node, those beneath it; the rest stays readable"
    )
}
