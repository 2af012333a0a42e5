//! Queries that can be answered from the index.

use std::time::Instant;

use serde::Serialize;

use super::survey::Survey;
use crate::commands::index::{Held, Store, split_size_key};
use crate::commands::selection::prefix_range;
use crate::failure::{Failure, Result};
use crate::text::Escaped;

/// The number of files listed below the prefix.
const FILES_SHOWN: usize = 3;

#[derive(Debug, Serialize)]
pub(super) struct Answers {
    pub(super) largest: Vec<Large>,
    pub(super) largest_seconds: f64,
    pub(super) prefix: String,
    pub(super) prefix_files: u64,
    pub(super) prefix_bytes: u64,
    /// The duration of the first count in seconds. The first count stores its results, so the second count is faster.
    pub(super) count_seconds: f64,
    pub(super) count_again_seconds: f64,
    /// The duration of the first sum of sizes in seconds.
    pub(super) sum_seconds: f64,
    pub(super) sum_again_seconds: f64,
    #[serde(skip)]
    pub(super) prefix_first: Vec<String>,
    /// `true` if the disk contains the same files below the prefix.
    pub(super) prefix_agrees: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Large {
    pub(super) bytes: u64,
    pub(super) path: String,
}

/// Finds the ten largest files, and the number and total size of the files below a prefix.
pub(super) fn ask(store: &Store, survey: &Survey) -> Result<Answers> {
    let start = Instant::now();
    let mut largest = Vec::new();
    for row in store.by_size.iter().rev().take(10) {
        let (key, _) = row?;
        let unreadable = || Failure::other("a row of by_size was not written by index");
        let (bytes, path) = split_size_key(&key).ok_or_else(unreadable)?;
        largest.push(Large { bytes, path: Escaped::new(path).to_string() });
    }
    let largest_seconds = start.elapsed().as_secs_f64();

    let range = prefix_range(survey.prefix.clone());
    let (files, count_seconds) = timed(|| store.file_count(&range))?;
    let (files_again, count_again_seconds) = timed(|| store.file_count(&range))?;
    let (bytes, sum_seconds) = timed(|| store.file_bytes(&range))?;
    let (bytes_again, sum_again_seconds) = timed(|| store.file_bytes(&range))?;
    let mut prefix_first = Vec::new();
    for row in store.files.range(range).take(FILES_SHOWN) {
        prefix_first.push(Escaped::new(&row?.0).to_string());
    }
    Ok(Answers {
        largest,
        largest_seconds,
        prefix: Escaped::new(&survey.prefix).to_string(),
        prefix_files: files,
        prefix_bytes: bytes,
        count_seconds,
        count_again_seconds,
        sum_seconds,
        sum_again_seconds,
        prefix_first,
        prefix_agrees: Held { files, bytes } == survey.below_prefix && (files, bytes) == (files_again, bytes_again),
    })
}

/// Returns an answer and the seconds that the query took.
fn timed<T>(ask: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let answer = ask()?;
    Ok((answer, start.elapsed().as_secs_f64()))
}
