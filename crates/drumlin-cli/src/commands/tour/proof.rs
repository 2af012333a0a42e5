//! The proof: compares the content of the database after the kill with the disk, byte for byte.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use drumlin::ValueReader;

use super::child::Acknowledged;
use super::report::Proof;
use crate::commands::index::{Entry, Kind, Store, size_key};
use crate::failure::{Failure, Result};
use crate::terminal::{Output, Progress};
use crate::text::Escaped;
use crate::{interrupt, process};

/// The number of bytes compared at a time.
const COMPARE_BYTES: usize = 512 << 10;

enum Verdict {
    Same { bytes: u64 },
    Torn,
    Different,
    ChangedMeanwhile,
}

/// Compares every file in the database with its original on disk, and the acknowledgements with the database.
pub(super) fn compare(store: &Store, root: &Path, acknowledged: &Acknowledged, output: Output) -> Result<Proof> {
    let start = Instant::now();
    let mut rows = Vec::new();
    for row in &store.files {
        let (key, entry) = row?;
        rows.push((key.into_vec(), entry.into_vec()));
    }
    let bytes_total = rows.iter().filter_map(|(_, entry)| Some(Entry::decode(entry)?.size)).sum();
    let progress = Progress::bytes(output, "comparing", bytes_total);
    let next = AtomicUsize::new(0);
    let proof = Mutex::new(Proof {
        found: rows.len() as u64,
        acknowledged: acknowledged.len() as u64,
        lost: lost(&rows, acknowledged),
        ..Proof::default()
    });
    let work = || -> Result<()> {
        let mut buffers = (vec![0; COMPARE_BYTES], vec![0; COMPARE_BYTES]);
        while let Some((key, entry)) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            let verdict = compare_file(store, root, key, entry, &mut buffers)?;
            let mut proof = proof.lock().expect("no thread panics while it holds this");
            match verdict {
                Verdict::Same { bytes } => {
                    proof.compared_bytes += bytes;
                    progress.add(bytes);
                }
                Verdict::Torn => proof.torn.push(Escaped::new(key).to_string()),
                Verdict::Different => proof.different.push(Escaped::new(key).to_string()),
                Verdict::ChangedMeanwhile => proof.changed_meanwhile += 1,
            }
            drop(proof);
            interrupt::check()?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2 * process::processors()).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a comparing thread panicked")).fold(Ok(()), Result::and)
    })?;
    progress.finish();
    let mut proof = proof.into_inner().expect("no thread panicked");
    // Every path in `files` was found in the other two keyspaces. If their row counts are equal too, they contain no
    // other paths.
    for keyspace in [&store.contents, &store.by_size] {
        let rows_count = keyspace.count(..)?;
        if rows_count != proof.found {
            proof.torn.push(format!("{}: {rows_count} rows where files has {}", keyspace.name(), proof.found));
        }
    }
    proof.seconds = start.elapsed().as_secs_f64();
    Ok(proof)
}

fn lost(rows: &[(Vec<u8>, Vec<u8>)], acknowledged: &Acknowledged) -> Vec<String> {
    let found: HashSet<&[u8]> = rows.iter().map(|(key, _)| key.as_slice()).collect();
    let missing = acknowledged.keys().filter(|key| !found.contains(key.as_slice()));
    missing.map(|key| Escaped::new(key).to_string()).collect()
}

fn compare_file(
    store: &Store,
    root: &Path,
    key: &[u8],
    entry: &[u8],
    buffers: &mut (Vec<u8>, Vec<u8>),
) -> Result<Verdict> {
    let Some(entry) = Entry::decode(entry) else { return Ok(Verdict::Different) };
    let Some(mut stored) = store.contents.read(key)? else { return Ok(Verdict::Torn) };
    if !store.by_size.contains_key(size_key(entry.size, key))? {
        return Ok(Verdict::Torn);
    }
    let path = root.join(std::ffi::OsStr::from_bytes(key));
    let unchanged = fs::symlink_metadata(&path).is_ok_and(|metadata| entry.is_unchanged(entry.kind, &metadata));
    if !unchanged {
        return Ok(Verdict::ChangedMeanwhile);
    }
    let failed = |error: io::Error| Failure::file("reading", &path, &error);
    let is_same = stored.len() == entry.size
        && match entry.kind {
            Kind::File => is_same(&mut File::open(&path).map_err(failed)?, &mut stored, buffers).map_err(failed)?,
            Kind::Symlink => {
                let target = fs::read_link(&path).map_err(failed)?.into_os_string().into_vec();
                is_same(&mut &target[..], &mut stored, buffers).map_err(failed)?
            }
            Kind::Directory => false,
        };
    Ok(if is_same { Verdict::Same { bytes: entry.size } } else { Verdict::Different })
}

fn is_same(disk: &mut impl Read, stored: &mut ValueReader, buffers: &mut (Vec<u8>, Vec<u8>)) -> io::Result<bool> {
    loop {
        let left = fill(disk, &mut buffers.0)?;
        let right = fill(stored, &mut buffers.1)?;
        if buffers.0[..left] != buffers.1[..right] {
            return Ok(false);
        }
        if left == 0 {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the source ends.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match source.read(&mut buffer[length..])? {
            0 => break,
            bytes => length += bytes,
        }
    }
    Ok(length)
}
