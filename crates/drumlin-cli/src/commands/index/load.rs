//! Storing a tree in a database that has none: one bulk load for each keyspace.
//!
//! The walk meets files in the order of their keys, threads read them, and one thread hands them to the loads in that
//! order again, so that contents are packed as they come and need not be sorted. Nothing is there before the loads are
//! attached, all four in a row ([`Store::fill`]).

use std::io;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use drumlin::{BulkLoad, Error};

use super::store::Content;
use super::{Entry, Found, Job, Kind, Outcome, Store, size_key};
use crate::failure::Result;
use crate::interrupt;

/// A file or directory that was read, or has been opened to be read as it is stored.
struct Opened {
    found: Found,
    body: io::Result<Body>,
}

enum Body {
    /// A directory has none.
    Nothing,
    /// The content and its hash.
    Whole(Vec<u8>, u128),
    /// Content that is large.
    Stream(Box<Content>),
}

impl Opened {
    fn open(found: Found) -> Opened {
        let body = Body::open(&found);
        Opened { found, body }
    }
}

impl Body {
    fn open(found: &Found) -> io::Result<Body> {
        if found.kind == Kind::Directory {
            return Ok(Body::Nothing);
        }
        let mut content = Content::open(found)?;
        Ok(match content.read_small()? {
            Some(bytes) => Body::Whole(bytes, content.hash()),
            None => Body::Stream(Box::new(content)),
        })
    }
}

/// The loads of an index.
struct Loads {
    files: BulkLoad,
    contents: BulkLoad,
    by_size: BulkLoad,
    directories: BulkLoad,
}

impl Loads {
    fn begin(store: &Store) -> drumlin::Result<Loads> {
        let load = |keyspace: &drumlin::Keyspace| store.database.bulk_load(keyspace.name());
        Ok(Loads {
            files: load(&store.files)?,
            contents: load(&store.contents)?,
            by_size: load(&store.by_size)?,
            directories: load(&store.directories)?,
        })
    }

    fn put(&mut self, Opened { found, body }: Opened) -> drumlin::Result<Outcome> {
        let (bytes, hash) = match body {
            Ok(Body::Nothing) => {
                self.directories.insert(&found.key, Entry::of_directory(&found.metadata).encode())?;
                return Ok(Outcome::Stored { bytes: 0 });
            }
            Ok(Body::Whole(content, hash)) => {
                self.contents.insert(&found.key, &content)?;
                (content.len() as u64, hash)
            }
            Ok(Body::Stream(mut content)) => match self.contents.insert_from(&found.key, &mut *content) {
                Ok(bytes) => (bytes, content.hash()),
                Err(Error::Source { source }) => return Ok(Outcome::unreadable(&source)),
                Err(error) => return Err(error),
            },
            Err(error) => return Ok(Outcome::Unreadable(error)),
        };
        self.by_size.insert(size_key(bytes, &found.key), b"")?;
        self.files.insert(&found.key, Entry::new(found.kind, &found.metadata, bytes, hash).encode())?;
        Ok(Outcome::Stored { bytes })
    }

    /// Attaches them, those last that say which files there are.
    fn finish(self, store: &Store) -> drumlin::Result<()> {
        store.fill(|| {
            for load in [self.contents, self.by_size, self.directories, self.files] {
                load.finish()?;
            }
            Ok(())
        })
    }
}

impl Job<'_> {
    /// Stores the whole tree in an index that is empty. An error or an interrupt leaves it empty.
    pub(super) fn load(&self, threads: usize) -> Result<()> {
        let mut loads = Loads::begin(self.store)?;
        // So many files are read ahead of the loads, and kept in memory where they are small.
        let (to_open, wanted) = sync_channel::<(Found, SyncSender<Opened>)>(threads);
        let (to_put, opened) = sync_channel::<Receiver<Opened>>(threads);
        let wanted = Mutex::new(wanted);
        let loads: Result<Loads> = std::thread::scope(|scope| {
            (0..threads).for_each(|_| drop(scope.spawn(|| open_files(&wanted))));
            let putting = scope.spawn(move || {
                self.put_files(&mut loads, opened).inspect_err(|_| self.failed.store(true, Ordering::Relaxed))?;
                Ok(loads)
            });
            self.walk_tree(|found| {
                let (sender, receiver) = sync_channel(1);
                // Refused only once the storing thread has stopped over an error.
                if to_put.send(receiver).is_ok() {
                    to_open.send((found, sender)).expect("a thread that opens files panicked");
                }
            });
            drop((to_open, to_put));
            putting.join().expect("the storing thread panicked")
        });
        let loads = loads?;
        interrupt::check()?;
        Ok(loads.finish(self.store)?)
    }

    fn put_files(&self, loads: &mut Loads, opened: Receiver<Receiver<Opened>>) -> Result<()> {
        for next in opened {
            let Ok(opened) = next.recv() else { return Ok(()) };
            if self.is_over() {
                return Ok(());
            }
            let (kind, key) = (opened.found.kind, opened.found.key.clone());
            self.count(kind, &key, loads.put(opened)?)?;
        }
        Ok(())
    }
}

fn open_files(wanted: &Mutex<Receiver<(Found, SyncSender<Opened>)>>) {
    loop {
        let next = wanted.lock().expect("no thread panics while it holds this").recv();
        let Ok((found, sender)) = next else { return };
        // Refused only once the storing thread has stopped.
        drop(sender.send(Opened::open(found)));
    }
}
