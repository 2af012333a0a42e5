//! A gate in front of a folder. Once the gate is shut, handles that were opened through it no longer write.
//!
//! A database may be closed while other threads are inside its calls, and reopened before those calls return. Their
//! reads are harmless, since everything read is verified as usual. Their writes must not reach the files, which by then
//! belong to the new opening.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::{BackendFile, FileRef, Folder, FolderRef, Lock, OpenOptions, Persist};
use crate::sync::RwLock;

/// Refuses all writes once it has been shut.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Each write holds this lock shared while it runs.
    is_shut: RwLock<bool>,
}

impl Gate {
    /// Refuses all later writes, and waits for those in flight.
    pub(crate) fn shut(&self) {
        *self.is_shut.write() = true;
    }

    /// Calls `write`, unless the gate is shut.
    fn pass<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let is_shut = self.is_shut.read();
        if *is_shut { Err(io::Error::other("the database was closed")) } else { write() }
    }

    /// Returns `folder` behind this gate.
    pub(crate) fn before(self: &Arc<Self>, folder: FolderRef) -> FolderRef {
        Arc::new(GatedFolder { gate: Arc::clone(self), folder })
    }
}

/// A folder behind a gate. Files opened in it are behind the gate too.
struct GatedFolder {
    gate: Arc<Gate>,
    folder: FolderRef,
}

impl fmt::Debug for GatedFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder.fmt(f)
    }
}

impl Folder for GatedFolder {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn open(&self, name: &str, options: OpenOptions) -> io::Result<FileRef> {
        let open = || self.folder.open(name, options);
        let file = if options.create || options.create_new { self.gate.pass(open) } else { open() }?;
        Ok(Arc::new(GatedFile { gate: Arc::clone(&self.gate), file }))
    }

    fn folder(&self, name: &str) -> io::Result<FolderRef> {
        Ok(self.gate.before(self.folder.folder(name)?))
    }

    fn create_folder(&self, name: &str) -> io::Result<()> {
        self.gate.pass(|| self.folder.create_folder(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.folder.list()
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.folder.exists(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.gate.pass(|| self.folder.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.gate.pass(|| self.folder.remove(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass(|| self.folder.sync())
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.folder.try_lock(lock)
    }

    fn unlock(&self) -> io::Result<()> {
        self.folder.unlock()
    }

    fn capacity_bytes(&self) -> io::Result<u64> {
        self.folder.capacity_bytes()
    }

    fn identity(&self) -> io::Result<Option<(i128, i128)>> {
        self.folder.identity()
    }

    fn is_same(&self, name: &str, file: &FileRef) -> io::Result<bool> {
        self.folder.is_same(name, file)
    }
}

/// A file behind a gate.
struct GatedFile {
    gate: Arc<Gate>,
    file: FileRef,
}

impl fmt::Debug for GatedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl BackendFile for GatedFile {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.gate.pass(|| self.file.set_len(bytes))
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.gate.pass(|| self.file.allocate(offset, bytes))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buffer, offset)
    }

    fn read_up_to(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_up_to(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64, persist: Persist) -> io::Result<()> {
        self.gate.pass(|| self.file.write_at(buffer, offset, persist))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass(|| self.file.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.gate.pass(|| self.file.sync_all())
    }

    fn supports(&self, method: super::SyncMethod) -> bool {
        self.file.supports(method)
    }

    fn alignment(&self) -> usize {
        self.file.alignment()
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.file.try_lock(lock)
    }

    fn unlock(&self) -> io::Result<()> {
        self.file.unlock()
    }

    /// Returns the inner file, whose type the queues know. This does not bypass the gate, since the engine never writes
    /// through a queue.
    fn as_any(&self) -> &dyn std::any::Any {
        self.file.as_any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fault::{FaultyBackend, Operation};
    use crate::io::{Backend, in_memory, open_folder};

    /// Nothing is written through a shut gate. `shut` returns only after all earlier writes have ended. Reads still
    /// work.
    #[test]
    fn nothing_is_written_through_a_shut_gate() {
        let disk = FaultyBackend::new(in_memory());
        let backend: Arc<dyn Backend> = Arc::new(disk.clone());
        backend.create_dir_all(Path::new("/f")).unwrap();
        let gate = Arc::new(Gate::default());
        let folder = gate.before(open_folder(&backend, Path::new("/f")).unwrap());
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = folder.open("a", options).unwrap();
        disk.hold_nth(Operation::Write, 1);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| file.write_at(b"one", 0, Persist::Later));
            assert!(disk.wait_for_held(std::time::Duration::from_secs(10)));
            let shutter = scope.spawn(|| {
                gate.shut();
                file.len().unwrap()
            });
            disk.release();
            assert_eq!(shutter.join().unwrap(), 3, "a write that was begun is under way");
            writer.join().unwrap().unwrap();
        });
        let refused = [
            file.write_at(b"two", 0, Persist::Later),
            file.set_len(9),
            file.allocate(0, 9),
            file.sync_data(),
            file.sync_all(),
            folder.open("b", options).map(drop),
            folder.create_folder("c"),
            folder.rename("a", "d"),
            folder.remove("a"),
            folder.sync(),
        ];
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
        let mut bytes = [0; 3];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"one");
        assert!(folder.exists("a").unwrap() && !folder.exists("b").unwrap());
    }
}
