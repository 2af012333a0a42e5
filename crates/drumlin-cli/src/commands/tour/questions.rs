//! Questions that the index answers.

use std::time::Instant;

use serde::Serialize;

use super::survey::{Held, Survey};
use crate::commands::index::{Entry, Store, split_size_key};
use crate::failure::{Failure, Result};
use crate::text::Escaped;

/// Files listed of those below the prefix.
const FILES_SHOWN: usize = 3;

#[derive(Debug, Serialize)]
pub(super) struct Answers {
    pub(super) largest: Vec<Large>,
    pub(super) largest_seconds: f64,
    pub(super) prefix: String,
    pub(super) prefix_files: u64,
    pub(super) prefix_bytes: u64,
    pub(super) prefix_seconds: f64,
    #[serde(skip)]
    pub(super) prefix_first: Vec<String>,
    /// `true` if the disk holds the same below the prefix.
    pub(super) prefix_agrees: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Large {
    pub(super) bytes: u64,
    pub(super) path: String,
}

/// The ten largest files; all files below a prefix and how much they hold.
pub(super) fn ask(store: &Store, survey: &Survey) -> Result<Answers> {
    let unreadable = |what: &str| Failure::other(format!("a row of {what} is not what index writes"));
    let start = Instant::now();
    let mut largest = Vec::new();
    for row in store.by_size.iter().rev().take(10) {
        let (key, _) = row?;
        let (bytes, path) = split_size_key(&key).ok_or_else(|| unreadable("by_size"))?;
        largest.push(Large { bytes, path: Escaped::new(path).to_string() });
    }
    let largest_seconds = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let mut held = Held::default();
    let mut prefix_first = Vec::new();
    for row in store.files.prefix(&survey.prefix) {
        let (key, entry) = row?;
        held.files += 1;
        held.bytes += Entry::decode(&entry).ok_or_else(|| unreadable("files"))?.size;
        if prefix_first.len() < FILES_SHOWN {
            prefix_first.push(Escaped::new(&key).to_string());
        }
    }
    Ok(Answers {
        largest,
        largest_seconds,
        prefix: Escaped::new(&survey.prefix).to_string(),
        prefix_files: held.files,
        prefix_bytes: held.bytes,
        prefix_seconds: start.elapsed().as_secs_f64(),
        prefix_first,
        prefix_agrees: held == survey.below_prefix,
    })
}
