//! `drumlin extract`: restores the files of a tree that `drumlin index` stored.
//!
//! It makes directories first, then files and links. The modes and times of directories are set last, from the deepest
//! up, because creating an entry changes its directory's time, and the mode may forbid creating entries. If a run is
//! killed, the next run finishes the incomplete directories. A file under its final name is always complete, so the
//! next run only compares it with the tree.

mod target;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use drumlin::{Keyspace, Salvaged, Value};
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3Default;

use self::target::{Attributes, Directory, Target};
use super::index::{Entry, Kind, Store};
use super::selection::{KeyRange, prefix_range};
use crate::database::DatabaseArgs;
use crate::failure::{Exit, Failure, Result, plain};
use crate::interrupt;
use crate::own_files::OwnFiles;
use crate::streamed::reading;
use crate::terminal::{Output, Progress, figures, style};
use crate::text::{Escaped, harmless, parse_key};

/// The maximum number of failed entries that are named. Further failures are only counted.
const NAMED_MAX: u64 = 10;

/// Restore a directory tree that `index` stored
///
/// Restores files, symbolic links and directories with their contents, permissions and times. Setuid and setgid bits
/// are not restored, because owners are not stored. An existing file or link is kept. If its content differs, it is
/// named and the exit code is 1, unless --force is given. To complete an interrupted run, run the command again.
/// Nothing is written outside of the directory, and no symbolic link in it is followed. If the database is damaged,
/// everything that can be read is written, and the exit code is 4.
#[derive(Debug, Args)]
pub(crate) struct Extract {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The directory to write to, created if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Extract only this file, link or directory with everything below it; a stored path, with \xNN for non-text bytes
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
    /// Replace existing files and links
    #[arg(long)]
    force: bool,
}

#[derive(Default, Serialize)]
struct Summary {
    files: u64,
    symlinks: u64,
    directories: u64,
    bytes: u64,
    /// Existing files and links whose content was already the same as in the tree.
    identical: u64,
    /// Existing files and links that were kept although their content differs.
    existing: u64,
    /// All other entries that were not written.
    failed: u64,
    /// Gaps in the rows, and corrupted contents.
    damaged: u64,
    seconds: f64,
}

struct Job<'a> {
    store: &'a Store,
    target: Target,
    force: bool,
    progress: &'a Progress,
    /// Directories that existed before the run.
    existing: HashSet<Vec<u8>>,
    named: u64,
    summary: Summary,
}

impl Extract {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        interrupt::watch();
        let ranges = self.ranges()?;
        let database = self.database.open_to_read()?;
        let store = Store::existing(&database)?;
        let has_rows = |keyspace: &Keyspace| -> Result<bool> {
            let first = ranges.iter().map(|range| keyspace.range(range.clone()).next().transpose());
            Ok(first.collect::<Result<Vec<_>, _>>()?.iter().any(Option::is_some))
        };
        if let Some(path) = &self.path
            && !has_rows(&store.files)?
            && !has_rows(&store.directories)?
        {
            let path = path.to_string_lossy();
            return Err(Failure::not_found(format!("there is no file or directory '{path}' in the tree"))
                .hint("`drumlin scan DATABASE -k files --keys-only` lists its files"));
        }
        fs::create_dir_all(&self.directory).map_err(|error| Failure::file("creating", &self.directory, &error))?;
        OwnFiles::of([&self.database.path]).check_outside(&self.directory)?;
        let target = Target::open(&self.directory).map_err(|error| self.failed(&error))?;
        let progress = Progress::counter(output, "files written:");
        let start = Instant::now();
        let mut job = Job {
            store: &store,
            target,
            force: self.force,
            progress: &progress,
            existing: HashSet::new(),
            named: 0,
            summary: Summary::default(),
        };
        let extracted = job.run(&ranges, |error| self.failed(error));
        progress.finish();
        let mut summary = job.summary;
        summary.seconds = start.elapsed().as_secs_f64();
        drop(store);
        database.close()?;
        extracted?;
        output.print(&summary, || summary.text())?;
        match (summary.damaged, summary.existing + summary.failed) {
            (0, 0) => Ok(()),
            (0, _) => Err(Failure::silent(Exit::Other)),
            _ => Err(Failure::silent(Exit::Corrupted)),
        }
    }

    /// Returns the ranges of keys to extract: all keys, or those at and below the path.
    fn ranges(&self) -> Result<Vec<KeyRange>> {
        use std::ops::Bound::{Included, Unbounded};
        let Some(path) = &self.path else { return Ok(vec![(Unbounded, Unbounded)]) };
        let mut path = parse_key(path, false)?;
        while path.last() == Some(&b'/') {
            path.pop();
        }
        if path.is_empty() || path == b"." {
            return Ok(vec![(Unbounded, Unbounded)]);
        }
        let below = prefix_range([&path[..], b"/"].concat());
        Ok(vec![(Included(path.clone()), Included(path)), below])
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::file("writing to", &self.directory, error)
    }
}

impl Job<'_> {
    fn run(&mut self, ranges: &[KeyRange], failed: impl Fn(&io::Error) -> Failure) -> Result<()> {
        for range in ranges {
            for step in self.store.directories.range(range.clone()).salvage() {
                interrupt::check()?;
                let Some((key, _)) = self.row(step?) else { continue };
                let made = self.target.make_directory(&key);
                match made {
                    Ok(Directory::New | Directory::Unfinished) => self.summary.directories += 1,
                    Ok(Directory::Existing) => {
                        self.existing.insert(key.to_vec());
                    }
                    Err(error) => self.not_written(&key, &error, &failed)?,
                }
            }
        }
        for range in ranges {
            for step in self.store.files.range(range.clone()).salvage() {
                interrupt::check()?;
                let Some((key, entry)) = self.row(step?) else { continue };
                match self.write(&key, &entry) {
                    Ok(()) => self.progress.add(1),
                    Err(Stopped::Database(drumlin::Error::Corrupted { what, reason, .. })) => {
                        self.damaged(&format!("{}: {what}: {reason}", Escaped::new(&key)));
                    }
                    Err(Stopped::Database(error)) => return Err(error.into()),
                    Err(Stopped::File(error)) => self.not_written(&key, &error, &failed)?,
                }
            }
        }
        for range in ranges.iter().rev() {
            for row in self.store.directories.range(range.clone()).rev() {
                let (key, entry) = match row {
                    Ok(row) => row,
                    // The pass that made the directories has already reported the damage.
                    Err(drumlin::Error::Corrupted { .. }) => break,
                    Err(error) => return Err(error.into()),
                };
                if self.existing.contains(&key[..]) && !self.force {
                    continue;
                }
                let attributes = attributes(&entry);
                let set = attributes.and_then(|(_, attributes)| self.target.set_directory(&key, &attributes));
                if let Err(error) = set {
                    self.not_written(&key, &error, &failed)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the row that the scan found. If it found a gap, reports the gap and returns `None`.
    fn row(&mut self, step: Salvaged) -> Option<(Value, Value)> {
        match step {
            Salvaged::Row(key, value) => Some((key, value)),
            Salvaged::Gap(gap) => {
                self.damaged(&format!("rows of files or directories: {}", gap.error));
                None
            }
            _ => unreachable!("there are rows and gaps"),
        }
    }

    fn damaged(&mut self, what: &str) {
        self.summary.damaged += 1;
        if self.summary.damaged <= NAMED_MAX {
            let bad = style::BAD;
            self.progress.remark(&format!("{bad}damaged{bad:#} {}", harmless(what)));
        }
    }

    /// Writes a file or symbolic link.
    fn write(&mut self, key: &[u8], entry: &[u8]) -> Result<(), Stopped> {
        let (entry, attributes) = attributes(entry)?;
        match if self.force { None } else { self.target.is_there(key, &entry)? } {
            None => {}
            Some(true) => {
                self.summary.identical += 1;
                return Ok(());
            }
            Some(false) => return Err(io::Error::from(io::ErrorKind::AlreadyExists).into()),
        }
        let content = self.store.contents.read(key).map_err(Stopped::Database)?;
        let mut content = content.ok_or_else(|| invalid("its content is missing"))?;
        if entry.kind == Kind::Symlink {
            let mut path = Vec::new();
            content.read_to_end(&mut path).map_err(from_database)?;
            self.target.make_link(key, &path, &attributes, self.force)?;
            self.summary.symlinks += 1;
            return Ok(());
        }
        let mut hash = Xxh3Default::new();
        let mut bytes = 0;
        let mut file = self.target.begin_file(key)?;
        let mut buffer = [0; 64 << 10];
        loop {
            let length = content.read(&mut buffer).map_err(from_database)?;
            if length == 0 {
                break;
            }
            hash.update(&buffer[..length]);
            bytes += length as u64;
            file.write_all(&buffer[..length])?;
        }
        if !entry.has_hash(hash.digest128()) {
            return Err(invalid("its content differs from what was indexed").into());
        }
        file.finish(&attributes, self.force)?;
        self.summary.files += 1;
        self.summary.bytes += bytes;
        Ok(())
    }

    /// Counts an entry that was not written, and reports its name. A full disk ends the run.
    fn not_written(&mut self, key: &[u8], error: &io::Error, failed: impl Fn(&io::Error) -> Failure) -> Result<()> {
        if error.kind() == io::ErrorKind::StorageFull {
            return Err(failed(error).hint("what was extracted stays"));
        }
        let exists = error.kind() == io::ErrorKind::AlreadyExists;
        *(if exists { &mut self.summary.existing } else { &mut self.summary.failed }) += 1;
        self.named += 1;
        if self.named <= NAMED_MAX {
            let (bad, path) = (style::BAD, Escaped::new(key));
            self.progress.remark(&match exists {
                true => {
                    format!("{bad}kept{bad:#} {path}: it exists already, with another content (--force replaces it)")
                }
                false => format!("{bad}not written{bad:#} {path}: {}", plain(error)),
            });
        }
        Ok(())
    }
}

/// The reason why an entry was not written. A failure of the database ends the run; a failure of the entry does not.
enum Stopped {
    Database(drumlin::Error),
    File(io::Error),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Stopped {
        Stopped::File(error)
    }
}

/// Converts the `io::Error` of a value reader.
fn from_database(error: io::Error) -> Stopped {
    match reading(&error) {
        Some(error) => Stopped::Database(error),
        None => Stopped::File(error),
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

fn attributes(entry: &[u8]) -> io::Result<(Entry, Attributes)> {
    let unknown = || invalid("its row was not written by index");
    let entry = Entry::decode(entry).ok_or_else(unknown)?;
    let mode = u32::from_str_radix(&entry.mode, 8).map_err(|_| unknown())?;
    let attributes = Attributes::new(mode, entry.mtime_ns).ok_or_else(unknown)?;
    Ok((entry, attributes))
}

impl Summary {
    fn text(&self) -> String {
        let good = style::GOOD;
        let mut text = format!(
            "{good}extracted{good:#} {}, {}, {}, {} in {}",
            figures::plural(self.files, "file"),
            figures::bytes(self.bytes),
            figures::plural(self.symlinks, "symbolic link"),
            match self.directories {
                1 => "1 directory".to_owned(),
                count => format!("{} directories", figures::count(count)),
            },
            figures::duration(Duration::from_secs_f64(self.seconds))
        );
        for (number, what) in [
            (self.identical, "existing with the same content"),
            (self.existing, "existing with another content, kept"),
            (self.failed, "not written"),
            (self.damaged, "damaged in the database; all that can be read was written"),
        ] {
            if number > 0 {
                text += &format!("\n{} {what}", figures::count(number));
            }
        }
        text
    }
}
