//! Opens files and stdin as byte sources that count their bytes.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::compressed::{self, Other};
use crate::failure::{Failure, Result};
use crate::own_files::OwnFiles;
use crate::terminal::Progress;

/// The number of bytes that one system call reads.
const READ_BYTES: usize = 256 << 10;

/// Returns the name of a file for messages.
pub(super) fn name(path: &Path) -> String {
    if is_stdin(path) { "stdin".to_owned() } else { path.display().to_string() }
}

/// Returns the name of a file for keys: its path as given, byte for byte. The name of stdin is `-`, which can't clash
/// with a file, because the argument `-` always means stdin.
pub(super) fn key_name(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns the total size of all files, or `None` if stdin is one of them. Fails before any row is stored if a file
/// does not exist.
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
        let metadata = fs::metadata(path).map_err(|error| Failure::input(path, &error))?;
        if metadata.is_dir() {
            return Err(Failure::usage(format!("{} is a folder", path.display()))
                .hint("`drumlin index` stores a folder's files; load takes files of rows"));
        }
        total = total.map(|total| total + metadata.len());
    }
    Ok(total)
}

/// A reader that counts the bytes it returns.
struct Counted<'a> {
    inner: Box<dyn Read>,
    progress: &'a Progress,
    bytes: &'a AtomicU64,
}

/// Opens a file or stdin, decompresses it if necessary, and counts the bytes before decompression.
pub(super) fn open<'a>(
    path: &Path,
    own: &OwnFiles,
    progress: &'a Progress,
    bytes: &'a AtomicU64,
    compressed_files: &AtomicU64,
) -> Result<Box<dyn BufRead + 'a>> {
    let failed = |error: io::Error| Failure::input(path, &error);
    let inner: Box<dyn Read> = if is_stdin(path) {
        own.check_input(io::stdin())?;
        Box::new(io::stdin())
    } else {
        let file = File::open(path).map_err(failed)?;
        own.check_input(&file)?;
        Box::new(file)
    };
    let input = BufReader::with_capacity(READ_BYTES, Counted { inner, progress, bytes });
    compressed::decompressed(input, compressed_files).map_err(failed)?.map_err(|other| {
        let name = name(path);
        let Other { what, program } = other;
        Failure::bad_input(format!("{name} is compressed with {what}"))
            .hint(format!("{program} '{name}' | drumlin load DATABASE - --format csv"))
    })
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.progress.add(bytes as u64);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}
