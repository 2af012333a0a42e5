//! `drumlin index`: stores a directory tree. If the database has no tree, one bulk load stores all files; otherwise
//! each file is stored in its own transaction.
//!
//! One thread walks the tree, and several threads store the files that it finds. A commit takes a few microseconds of
//! processor time and then waits for the device. Threads that wait at the same time share one sync, so there are more
//! threads than processors.

mod entry;
mod load;
mod store;
mod tree;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};

pub(crate) use self::entry::{Entry, Kind, size_key, split_size_key};
pub(crate) use self::store::{Held, Outcome, Store};
pub(crate) use self::tree::{Found, Met, Special, absolute, walk};
use crate::database::DatabaseArgs;
use crate::failure::{Exit, Failure, Result, plain};
use crate::own_files::OwnFiles;
use crate::terminal::{Output, Progress, figures, style};
use crate::text::{Escaped, harmless};
use crate::{interrupt, process};

/// The capacity of the queue between the walk and the storing threads, in files.
const FILES_QUEUED: usize = 256;

/// For each kind of failure, the maximum number of entries that are named. Further failures are only counted.
const NAMED_MAX: u64 = 10;

/// Store a directory tree
///
/// A database without a tree receives the whole tree in one step at the end; nothing is visible before that. If the
/// database has a tree, or with --acknowledge, each file is stored by a transaction of its own.
///
/// Four keyspaces: files (path: size, time, mode, kind and hash as JSON), contents (path: bytes), by_size (size as 8
/// big-endian bytes, then the path) and directories (path: time and mode). `drumlin extract` restores the tree. When it
/// is run again, the command stores only what is new or changed. Symbolic links are recorded, not followed. Sockets,
/// fifos and devices are skipped and named. A database inside the directory is not stored in itself. Files that can't
/// be read, or whose paths are longer than keys may be, are named, and the exit code is then 7.
#[derive(Debug, Args)]
pub(crate) struct Index {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The directory
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Also remove files that are no longer in the directory
    #[arg(long)]
    delete: bool,
    /// Number of files to read or store concurrently [default: four per processor]
    #[arg(long, value_name = "THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Append a line "path<tab>bytes" to a file or pipe (- for stdout) for every file, after its commit has returned
    #[arg(long, value_name = "FILE")]
    acknowledge: Option<PathBuf>,
}

/// The output of `index`, which the tour also reads from its child process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) files_stored: u64,
    pub(crate) files_unchanged: u64,
    pub(crate) files_removed: u64,
    pub(crate) files_unreadable: u64,
    /// Files and directories that are not stored because their paths are longer than a key may be.
    pub(crate) paths_too_long: u64,
    pub(crate) directories_stored: u64,
    pub(crate) skipped: Skipped,
    /// The paths of the database itself, if it is inside the directory.
    pub(crate) left_out: Vec<String>,
    pub(crate) bytes_stored: u64,
    pub(crate) seconds: f64,
    pub(crate) files_per_second: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) resident_bytes_max: Option<u64>,
    pub(crate) budget_bytes: u64,
}

/// The number of entries without content to store, by kind.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Skipped {
    pub(crate) sockets: u64,
    pub(crate) fifos: u64,
    pub(crate) devices: u64,
}

/// The state shared by the storing threads.
struct Job<'a> {
    store: &'a Store,
    root: &'a Path,
    own: &'a OwnFiles,
    progress: &'a Progress,
    acknowledgements: Option<Mutex<Box<dyn Write + Send>>>,
    stored: AtomicU64,
    unchanged: AtomicU64,
    unreadable: AtomicU64,
    too_long: AtomicU64,
    directories: AtomicU64,
    bytes: AtomicU64,
    skipped: Mutex<Skipped>,
    /// Paths of the database itself, relative to the root.
    left_out: Mutex<Vec<Vec<u8>>>,
    /// Set when a thread fails, so that the other threads start no further files.
    failed: AtomicBool,
}

impl Index {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let root = absolute(&self.path)?;
        interrupt::watch();
        // Check this before the database is opened, which could create it in the wrong place.
        let own = OwnFiles::of([&self.database.path]);
        own.check_outside(&root)?;
        let acknowledgements = self.open_acknowledgements(&own)?;
        let database = self.database.open_or_create()?;
        let own = OwnFiles::of([&self.database.path]);
        let store = Store::open_or_create(&database)?;
        let progress = Progress::counter(output, "files seen:");
        let job = Job {
            store: &store,
            root: &root,
            own: &own,
            progress: &progress,
            acknowledgements: acknowledgements.map(Mutex::new),
            stored: AtomicU64::new(0),
            unchanged: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            too_long: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            skipped: Mutex::default(),
            left_out: Mutex::default(),
            failed: AtomicBool::new(false),
        };
        let start = Instant::now();
        let threads = self.threads.map_or_else(|| 4 * process::processors(), |threads| threads as usize);
        let is_load = self.acknowledge.is_none() && store.is_empty()?;
        let indexed = if is_load { job.load(threads) } else { job.run(threads) };
        let indexed = indexed.and_then(|()| interrupt::check());
        let removed = match (&indexed, self.delete) {
            (Ok(()), true) => store.remove_missing(&root, &job.left_out.lock().expect("all threads have ended")),
            _ => Ok(0),
        };
        let elapsed = start.elapsed();
        progress.finish();
        database.close()?;
        indexed?;
        let summary = job.summary(removed?, elapsed, self.database.memory);
        output.print(&summary, || summary.text())?;
        if summary.files_unreadable + summary.paths_too_long > 0 {
            Err(Failure::silent(Exit::BadInput))
        } else {
            Ok(())
        }
    }

    fn open_acknowledgements(&self, own: &OwnFiles) -> Result<Option<Box<dyn Write + Send>>> {
        let Some(path) = &self.acknowledge else { return Ok(None) };
        if path.as_os_str() == "-" {
            return Ok(Some(Box::new(io::stdout())));
        }
        own.check_output(path)?;
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Some(Box::new(file.map_err(|error| Failure::file("opening", path, &error))?)))
    }
}

impl Job<'_> {
    fn run(&self, threads: usize) -> Result<()> {
        let (sender, receiver) = sync_channel::<Found>(FILES_QUEUED);
        let receiver = Arc::new(Mutex::new(receiver));
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    let receiver = Arc::clone(&receiver);
                    scope.spawn(move || {
                        self.store_files(&receiver).inspect_err(|_| self.failed.store(true, Ordering::Relaxed))
                    })
                })
                .collect();
            drop(receiver);
            // Sending fails only after every thread has stopped because of an error.
            self.walk_tree(|found| drop(sender.send(found)));
            drop(sender);
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a storing thread panicked"))
                .fold(Ok(()), Result::and)
        })
    }

    /// Calls `take` with each file and directory until the walk ends or the job is cancelled.
    fn walk_tree(&self, mut take: impl FnMut(Found)) {
        for met in walk(self.root, self.own) {
            match met {
                Met::File(found) | Met::Directory(found) => {
                    let limit_bytes = self.store.path_bytes_max(found.kind);
                    match found.key.len() > limit_bytes {
                        true => self.too_long(&found.key, limit_bytes),
                        false => take(*found),
                    }
                }
                Met::Special(kind, path) => self.skip(kind, &path),
                Met::Own(path) => {
                    self.left_out.lock().expect("no thread panics while it holds this").push(path);
                }
                Met::Unreadable(why) => self.unreadable(&harmless(&why)),
            }
            if self.is_over() {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || interrupt::requested()
    }

    fn store_files(&self, receiver: &Mutex<Receiver<Found>>) -> Result<()> {
        loop {
            let next = receiver.lock().expect("no thread panics while it holds this").recv();
            let Ok(found) = next else { return Ok(()) };
            if self.is_over() {
                return Ok(());
            }
            self.count(found.kind, &found.key, self.store.put(&found)?)?;
        }
    }

    /// Counts a file or directory by its outcome, and acknowledges a stored file.
    fn count(&self, kind: Kind, key: &[u8], outcome: Outcome) -> Result<()> {
        match outcome {
            Outcome::Stored { .. } if kind == Kind::Directory => {
                self.directories.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            Outcome::Unchanged if kind == Kind::Directory => return Ok(()),
            Outcome::Stored { bytes } => {
                self.stored.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                self.acknowledge(key, bytes)?;
            }
            Outcome::Unchanged => {
                self.unchanged.fetch_add(1, Ordering::Relaxed);
            }
            Outcome::Unreadable(error) => self.unreadable(&format!("{}: {}", Escaped::new(key), plain(&error))),
        }
        self.progress.add(1);
        Ok(())
    }

    /// Writes each line with a single call, so that no line shorter than a pipe's atomic size is ever torn, even by a
    /// kill.
    fn acknowledge(&self, key: &[u8], bytes: u64) -> Result<()> {
        let Some(acknowledgements) = &self.acknowledgements else { return Ok(()) };
        let line = format!("{}\t{bytes}\n", Escaped::new(key));
        let mut acknowledgements = acknowledgements.lock().expect("no thread panics while it holds this");
        let written = acknowledgements.write_all(line.as_bytes()).and_then(|()| acknowledgements.flush());
        written.map_err(|error| Failure::stdout(&error))
    }

    fn unreadable(&self, what: &str) {
        let named = self.unreadable.fetch_add(1, Ordering::Relaxed);
        if named < NAMED_MAX {
            let bad = style::BAD;
            self.progress.remark(&format!("{bad}unreadable{bad:#} {what}"));
        }
    }

    fn too_long(&self, path: &[u8], limit_bytes: usize) {
        let named = self.too_long.fetch_add(1, Ordering::Relaxed);
        if named < NAMED_MAX {
            let (bad, length, path) = (style::BAD, figures::count(path.len() as u64), Escaped::new(path));
            let limit = figures::count(limit_bytes as u64);
            self.progress.remark(&format!("{bad}not stored{bad:#}, a path of {length} bytes, over {limit}: {path}"));
        }
    }

    fn skip(&self, kind: Special, path: &[u8]) {
        let mut skipped = self.skipped.lock().expect("no thread panics while it holds this");
        let (count, name) = match kind {
            Special::Socket => (&mut skipped.sockets, "socket"),
            Special::Fifo => (&mut skipped.fifos, "fifo"),
            Special::Device => (&mut skipped.devices, "device"),
        };
        *count += 1;
        if skipped.count() <= NAMED_MAX {
            self.progress.remark(&format!("skipped {name} {}", Escaped::new(path)));
        }
    }

    fn summary(&self, files_removed: u64, elapsed: Duration, budget_bytes: u64) -> Summary {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let left_out = self.left_out.lock().expect("all threads have ended");
        let (files_stored, bytes_stored) = (load(&self.stored), load(&self.bytes));
        Summary {
            files_stored,
            files_unchanged: load(&self.unchanged),
            files_removed,
            files_unreadable: load(&self.unreadable),
            paths_too_long: load(&self.too_long),
            directories_stored: load(&self.directories),
            skipped: *self.skipped.lock().expect("all threads have ended"),
            left_out: left_out.iter().map(|path| Escaped::new(path).to_string()).collect(),
            bytes_stored,
            seconds,
            files_per_second: files_stored as f64 / seconds,
            bytes_per_second: bytes_stored as f64 / seconds,
            resident_bytes_max: process::resident_bytes_max(),
            budget_bytes,
        }
    }
}

impl Skipped {
    pub(crate) fn count(&self) -> u64 {
        self.sockets + self.fifos + self.devices
    }

    /// Formats the counts, for example "3 skipped: 1 socket, 2 fifos". Returns `None` if nothing was skipped.
    pub(crate) fn text(&self) -> Option<String> {
        let kinds = [(self.sockets, "socket"), (self.fifos, "fifo"), (self.devices, "device")];
        let kinds: Vec<String> =
            kinds.iter().filter(|kind| kind.0 > 0).map(|&(count, name)| figures::plural(count, name)).collect();
        let count = figures::count(self.count());
        (!kinds.is_empty()).then(|| format!("{count} skipped: {}", kinds.join(", ")))
    }
}

impl Summary {
    fn text(&self) -> String {
        let good = style::GOOD;
        let mut text = format!(
            "{good}indexed{good:#} {}, {}, in {}",
            figures::plural(self.files_stored, "file"),
            figures::bytes(self.bytes_stored),
            figures::duration(Duration::from_secs_f64(self.seconds))
        );
        // If it took less than a second, a rate would be noise.
        if self.files_stored > 0 && self.seconds >= 1.0 {
            text += &format!(
                ": {} files/s, {}/s",
                figures::rate(self.files_per_second),
                figures::bytes(self.bytes_per_second as u64)
            );
        }
        for (number, what) in [
            (self.files_unchanged, "unchanged"),
            (self.files_removed, "removed"),
            (self.files_unreadable, "unreadable"),
            (self.paths_too_long, "not stored: the path is longer than keys may be"),
        ] {
            if number > 0 {
                text += &format!("\n{} {what}", figures::count(number));
            }
        }
        if let Some(skipped) = self.skipped.text() {
            text += &format!("\n{skipped}");
        }
        for path in &self.left_out {
            text += &format!("\nleft out, because it is the database itself: {path}");
        }
        text
    }
}
