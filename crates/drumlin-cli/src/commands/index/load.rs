//! Stores a tree in a database that has no tree yet, with one bulk load per keyspace.
//!
//! The walk finds files in key order. Several threads read them, and one thread restores key order and passes them to
//! the loads, which can therefore pack contents as they arrive and never have to sort them. No row is visible until all
//! four loads have been attached, in sequence ([`Store::fill`]).

use std::io;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use drumlin::{BulkLoad, Error};

use super::store::Content;
use super::{Entry, Found, Job, Kind, Outcome, Store, size_key};
use crate::failure::Result;
use crate::interrupt;

/// A file or directory that was read, or that has been opened to be streamed.
struct Opened {
    found: Found,
    body: io::Result<Body>,
}

enum Body {
    /// A directory, which has no content.
    Nothing,
    /// The whole content and its hash.
    Whole(Vec<u8>, u128),
    /// Large content that is streamed.
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

/// The bulk loads of an index.
struct Loads {
    files: BulkLoad,
    contents: BulkLoad,
    by_size: BulkLoad,
    directories: BulkLoad,
}

impl Loads {
    fn begin(store: &Store) -> drumlin::Result<Loads> {
        let load = |keyspace: &drumlin::Keyspace| store.database.bulk_load(&keyspace.name());
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

    /// Attaches the loads. The keyspace `files`, which decides which files exist, comes last.
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
    /// Stores the whole tree in an empty index. An error or interrupt leaves the index empty.
    pub(super) fn load(&self, threads: usize) -> Result<()> {
        let mut loads = Loads::begin(self.store)?;
        // Up to `threads` files are read ahead of the loads. Small files are held in memory.
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
                // Sending fails only after the storing thread has stopped because of an error.
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
        // Sending fails only after the storing thread has stopped.
        drop(sender.send(Opened::open(found)));
    }
}
