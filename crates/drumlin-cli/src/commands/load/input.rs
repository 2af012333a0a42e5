//! Files and stdin as sources of bytes that are counted.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::failure::{Failure, Result};
use crate::terminal::Progress;

/// One system call brings this much.
const READ_BYTES: usize = 256 << 10;

/// The name of a file in keys and messages.
pub(super) fn name(path: &Path) -> String {
    if is_stdin(path) { "stdin".to_owned() } else { path.display().to_string() }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The size of all files together, `None` with stdin among them. A file that is not there is noticed here, before
/// anything is stored.
pub(super) fn bytes_total(paths: &[PathBuf]) -> Result<Option<u64>> {
    if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
        return Err(Failure::usage("stdin can be read only once"));
    }
    let mut total = Some(0);
    for path in paths {
        if is_stdin(path) {
            total = None;
            continue;
        }
        let metadata = fs::metadata(path).map_err(|error| Failure::file("reading", path, &error))?;
        if metadata.is_dir() {
            return Err(Failure::usage(format!("{} is a folder", path.display()))
                .hint("`drumlin index` stores a folder's files; load takes files of rows"));
        }
        total = total.map(|total| total + metadata.len());
    }
    Ok(total)
}

/// A buffered input that reports what is read of it.
pub(super) type Input<'a> = BufReader<Counted<'a>>;

/// Counts what passes.
pub(super) struct Counted<'a> {
    inner: Box<dyn Read>,
    progress: &'a Progress,
    bytes: &'a AtomicU64,
}

impl Counted<'_> {
    pub(super) fn open<'a>(path: &Path, progress: &'a Progress, bytes: &'a AtomicU64) -> Result<Input<'a>> {
        let inner: Box<dyn Read> = if is_stdin(path) {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).map_err(|error| Failure::file("reading", path, &error))?)
        };
        Ok(BufReader::with_capacity(READ_BYTES, Counted { inner, progress, bytes }))
    }
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.progress.add(bytes as u64);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}
