//! A simulated disk with a volatile write cache, and every state that a power cut may leave of it.
//!
//! It works like any backend and notes what is done to it, in order. From the notes the disk is rebuilt as it may be
//! after a power cut at any moment.
//!
//! Fault model: sectors of 512 bytes are written whole, in any order. What was written and not synced is there after a
//! cut in any of the versions written since, or not at all, each sector on its own. A durable write makes its own
//! sectors certain, and the length that reaches over them. Names made, changed or removed are certain once their folder
//! was synced, lengths once the file was. The request after the last counted one may have been in flight.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drumlin::io::{AlignedBuffer, Backend, Completion, File, FileRef, OpenOptions, Persist, Queue, SyncMethod};

use super::Random;

const SECTOR: usize = 512;
const BLOCK: usize = 4096;

/// Something that was done to the disk, or told to the world.
#[derive(Clone, Debug)]
pub enum Event {
    Write {
        file: usize,
        offset: usize,
        bytes: Arc<[u8]>,
        persist: Persist,
    },
    Sync {
        file: usize,
    },
    Length {
        file: usize,
        bytes: usize,
    },
    Name {
        path: PathBuf,
        entry: Option<Entry>,
    },
    SyncFolder {
        path: PathBuf,
    },
    /// What a test noted: see [`Disk::note`].
    Note(u64),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Write { file, offset, bytes, persist } => {
                let word =
                    |at: usize| bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()));
                write!(f, "write {file} {offset}+{} {persist:?}", bytes.len())?;
                if bytes.starts_with(b"DRUMLIN") {
                    write!(f, " superblock {} checkpoint {} of {}", word(24), word(48), word(56))?;
                }
                Ok(())
            }
            Event::Note(note) => write!(f, "note {note:x}"),
            other => write!(f, "{other:?}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    Folder,
    File(usize),
}

/// A write since the last sync of its file; `certain` where it was a durable one.
#[derive(Clone, Debug)]
struct Pending {
    offset: usize,
    bytes: Arc<[u8]>,
    certain: bool,
}

#[derive(Clone, Debug, Default)]
struct Content {
    current: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Pending>,
    /// The shortest that the file was since its last sync.
    shortest: usize,
}

impl Content {
    fn write(&mut self, offset: usize, bytes: &Arc<[u8]>, persist: Persist) {
        let end = offset + bytes.len();
        if self.current.len() < end {
            self.current.resize(end, 0);
        }
        self.current[offset..end].copy_from_slice(bytes);
        match persist {
            Persist::Later => self.pending.push(Pending { offset, bytes: Arc::clone(bytes), certain: false }),
            Persist::Now(SyncMethod::DurableWrite) => {
                if self.durable.len() < end {
                    self.durable.resize(end, 0);
                }
                self.durable[offset..end].copy_from_slice(bytes);
                let overlaps = |other: &Pending| other.offset < end && offset < other.offset + other.bytes.len();
                if self.pending.iter().any(overlaps) {
                    self.pending.push(Pending { offset, bytes: Arc::clone(bytes), certain: true });
                }
            }
            Persist::Now(_) => {
                self.pending.push(Pending { offset, bytes: Arc::clone(bytes), certain: false });
                self.sync();
            }
        }
    }

    fn set_len(&mut self, bytes: usize) {
        self.current.resize(bytes, 0);
        self.shortest = self.shortest.min(bytes);
    }

    fn sync(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        if self.shortest < self.durable.len() {
            self.durable = self.current.clone();
        } else {
            self.durable.resize(self.current.len(), 0);
            for write in pending {
                self.durable[write.offset..write.offset + write.bytes.len()].copy_from_slice(&write.bytes);
            }
        }
        self.shortest = self.current.len();
    }

    /// What is left of it after a power cut.
    fn after_cut(&self, how: Loss, random: &mut Random) -> Content {
        let mut left = self.durable.clone();
        let long_enough = |left: &mut Vec<u8>, end: usize| {
            if left.len() < end {
                left.resize(end, 0);
            }
        };
        if self.shortest < left.len() && random.chance(50) {
            left.truncate(self.shortest);
            left.resize(self.durable.len(), 0);
        }
        let mut versions: BTreeMap<usize, u64> = BTreeMap::new();
        for write in &self.pending {
            let keep_write = match how {
                Loss::All => false,
                Loss::Nothing => true,
                Loss::Writes => random.chance(50),
                Loss::Sectors => true,
            };
            for (number, sector) in write.bytes.chunks(SECTOR).enumerate() {
                let at = write.offset + number * SECTOR;
                let keep = match how {
                    Loss::Sectors => {
                        let count = versions.entry(at).or_insert(1);
                        *count += 1;
                        random.below(*count) == 0
                    }
                    _ => keep_write,
                };
                if write.certain {
                    versions.insert(at, 1);
                }
                if write.certain || keep {
                    long_enough(&mut left, at + sector.len());
                    left[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        // The length is metadata of its own.
        match how {
            Loss::Nothing => left.resize(self.current.len(), 0),
            Loss::All => {}
            _ if random.chance(50) => left.resize(self.current.len().max(self.durable.len().min(left.len())), 0),
            _ => left.truncate(self.durable.len().max(self.current.len().min(left.len()))),
        }
        let shortest = left.len();
        Content { current: left.clone(), durable: left, pending: Vec::new(), shortest }
    }
}

/// What happens to what was not synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    All,
    Nothing,
    /// Each write is kept or lost whole.
    Writes,
    /// Each sector is kept, in any version, or lost.
    Sectors,
}

impl Loss {
    pub const ALL: [Loss; 4] = [Loss::All, Loss::Nothing, Loss::Writes, Loss::Sectors];
}

/// What a disk holds, and what of it is certain.
#[derive(Clone, Debug, Default)]
pub struct Medium {
    contents: Vec<Content>,
    names: BTreeMap<PathBuf, Entry>,
    durable_names: BTreeMap<PathBuf, Entry>,
}

impl Medium {
    /// Does again what was done.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Write { file, offset, bytes, persist } => {
                self.content(*file).write(*offset, bytes, *persist);
            }
            Event::Sync { file } => self.content(*file).sync(),
            Event::Length { file, bytes } => self.content(*file).set_len(*bytes),
            Event::Name { path, entry: Some(entry) } => {
                if let Entry::File(file) = entry {
                    self.content(*file);
                }
                self.names.insert(path.clone(), *entry);
            }
            Event::Name { path, entry: None } => drop(self.names.remove(path)),
            Event::SyncFolder { path } => {
                let inside = |name: &PathBuf| name.parent() == Some(path);
                self.durable_names.retain(|name, _| !inside(name));
                let now = self.names.iter().filter(|(name, _)| inside(name));
                self.durable_names.extend(now.map(|(name, entry)| (name.clone(), *entry)));
            }
            Event::Note(_) => {}
        }
    }

    fn content(&mut self, file: usize) -> &mut Content {
        if self.contents.len() <= file {
            self.contents.resize_with(file + 1, Content::default);
        }
        &mut self.contents[file]
    }

    /// The disk as it may be after the power is cut now, while `in_flight` was being done.
    pub fn cut(&self, in_flight: Option<&Event>, how: Loss, random: &mut Random) -> Medium {
        let mut before = self.clone();
        match in_flight {
            Some(Event::Write { file, offset, bytes, .. }) => {
                before.content(*file).write(*offset, bytes, Persist::Later);
            }
            Some(event @ (Event::Name { .. } | Event::Length { .. })) => before.apply(event),
            _ => {}
        }
        let mut names = before.durable_names.clone();
        let all: BTreeSet<&PathBuf> = before.names.keys().chain(before.durable_names.keys()).collect();
        for path in all {
            let (old, new) = (before.durable_names.get(path), before.names.get(path));
            let take_new = match how {
                Loss::All => false,
                Loss::Nothing => true,
                _ => random.chance(50),
            };
            if old != new && take_new {
                match new {
                    Some(entry) => drop(names.insert(path.clone(), *entry)),
                    None => drop(names.remove(path)),
                }
            }
        }
        let reachable: BTreeMap<PathBuf, Entry> = (names.iter())
            .filter(|(path, _)| {
                path.ancestors().skip(1).all(|above| above.parent().is_none() || names.contains_key(above))
            })
            .map(|(path, entry)| (path.clone(), *entry))
            .collect();
        let contents = before.contents.iter().map(|content| content.after_cut(how, random)).collect();
        Medium { contents, names: reachable.clone(), durable_names: reachable }
    }
}

#[derive(Debug, Default)]
struct State {
    medium: Medium,
    events: Vec<Event>,
    locked: HashSet<usize>,
    random: u64,
    off: bool,
}

/// The disk, and the backend that works on it. Clones share it.
#[derive(Clone)]
pub struct Disk {
    state: Arc<Mutex<State>>,
    start: Arc<Medium>,
    started: Instant,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Disk")
    }
}

impl Disk {
    pub fn new(seed: u64) -> Disk {
        Disk::with(Medium::default(), seed)
    }

    /// A disk that holds this; `seed` is for the numbers that the engine draws.
    pub fn with(medium: Medium, seed: u64) -> Disk {
        let start = Arc::new(medium.clone());
        let state = State { medium, random: seed, ..State::default() };
        Disk { state: Arc::new(Mutex::new(state)), start, started: Instant::now() }
    }

    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn working(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.off { Err(io::Error::other("the power is off")) } else { Ok(state) }
    }

    /// Notes something among what is done to the disk.
    pub fn note(&self, note: u64) {
        let mut state = self.lock();
        if !state.off {
            state.events.push(Event::Note(note));
        }
    }

    /// What the disk held at first, and what was done to it since.
    pub fn history(&self) -> (Medium, Vec<Event>) {
        ((*self.start).clone(), self.lock().events.clone())
    }

    pub fn event_count(&self) -> usize {
        self.lock().events.len()
    }

    /// What the disk holds now, as an ended process leaves it: nothing lost, nothing more certain than before. This
    /// disk stops working, so that the process that used it can do no more.
    pub fn take(&self) -> Medium {
        let mut state = self.lock();
        state.off = true;
        state.medium.clone()
    }
}

impl State {
    fn act(&mut self, event: Event) {
        self.medium.apply(&event);
        self.events.push(event);
    }

    fn has_folder(&self, path: &Path) -> bool {
        path.parent().is_none() || self.medium.names.get(path) == Some(&Entry::Folder)
    }
}

struct DiskFile {
    disk: Disk,
    path: PathBuf,
    file: usize,
    direct: bool,
    write: bool,
    holds_lock: AtomicBool,
}

impl fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskFile({})", self.path.display())
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        if self.holds_lock.load(Ordering::Acquire) {
            self.disk.lock().locked.remove(&self.file);
        }
    }
}

impl DiskFile {
    fn check(&self, buffer: &[u8], offset: u64) {
        if self.direct {
            assert!(buffer.len().is_multiple_of(BLOCK) && offset.is_multiple_of(BLOCK as u64), "not aligned");
            assert!((buffer.as_ptr() as usize).is_multiple_of(BLOCK), "a buffer is not aligned");
        }
    }
}

impl File for DiskFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().medium.contents[self.file].current.len() as u64)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.disk.working()?.act(Event::Length { file: self.file, bytes: bytes as usize });
        Ok(())
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.working()?;
        let length = (offset + bytes) as usize;
        if state.medium.contents[self.file].current.len() < length {
            state.act(Event::Length { file: self.file, bytes: length });
        }
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(buffer, offset);
        let state = self.disk.working()?;
        let offset = offset as usize;
        let bytes = state.medium.contents[self.file].current.get(offset..offset + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: u64, persist: Persist) -> io::Result<()> {
        self.check(buffer, offset);
        assert!(self.write, "writing a file that was opened for reading");
        let bytes: Arc<[u8]> = buffer.into();
        self.disk.working()?.act(Event::Write { file: self.file, offset: offset as usize, bytes, persist });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.working()?.act(Event::Sync { file: self.file });
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn alignment(&self) -> usize {
        if self.direct { BLOCK } else { 1 }
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn try_lock(&self) -> io::Result<bool> {
        let taken = self.disk.working()?.locked.insert(self.file);
        if taken {
            self.holds_lock.store(true, Ordering::Release);
        }
        Ok(taken)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Does each request at once.
struct DiskQueue {
    depth: usize,
    finished: Vec<Completion>,
}

impl Queue for DiskQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.finished.len()
    }

    fn push_read(&mut self, file: &FileRef, offset: u64, mut buffer: AlignedBuffer, token: u64) {
        let result = file.read_at(&mut buffer, offset);
        self.finished.push(Completion { token, buffer, result });
    }

    fn push_write(&mut self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        let result = file.write_at(&buffer, offset, Persist::Later);
        self.finished.push(Completion { token, buffer, result });
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _minimum: usize, finished: &mut Vec<Completion>) -> io::Result<()> {
        finished.append(&mut self.finished);
        Ok(())
    }
}

impl Backend for Disk {
    fn name(&self) -> &'static str {
        "simulated disk"
    }

    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<FileRef> {
        let mut state = self.working()?;
        let file = match state.medium.names.get(path) {
            Some(_) if options.create_new => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(Entry::File(file)) => *file,
            Some(Entry::Folder) => return Err(io::ErrorKind::IsADirectory.into()),
            None if !(options.create || options.create_new) => return Err(io::ErrorKind::NotFound.into()),
            None if !path.parent().is_some_and(|folder| state.has_folder(folder)) => {
                return Err(io::ErrorKind::NotFound.into());
            }
            None => {
                let file = state.medium.contents.len();
                state.act(Event::Name { path: path.to_path_buf(), entry: Some(Entry::File(file)) });
                file
            }
        };
        Ok(Arc::new(DiskFile {
            disk: self.clone(),
            path: path.to_path_buf(),
            file,
            direct: options.direct,
            write: options.write,
            holds_lock: AtomicBool::new(false),
        }))
    }

    fn queue(&self, depth: usize) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(DiskQueue { depth, finished: Vec::new() }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.working()?;
        let missing: Vec<PathBuf> =
            path.ancestors().filter(|folder| !state.has_folder(folder)).map(Path::to_path_buf).collect();
        for folder in missing.into_iter().rev() {
            state.act(Event::Name { path: folder, entry: Some(Entry::Folder) });
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let state = self.working()?;
        Ok(state.medium.names.keys().filter(|name| name.parent() == Some(path)).cloned().collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.working()?;
        Ok(state.has_folder(path) || state.medium.names.contains_key(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.working()?;
        let entry = *state.medium.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        state.act(Event::Name { path: to.to_path_buf(), entry: Some(entry) });
        state.act(Event::Name { path: from.to_path_buf(), entry: None });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.working()?;
        state.medium.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        state.act(Event::Name { path: path.to_path_buf(), entry: None });
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.working()?.act(Event::SyncFolder { path: path.to_path_buf() });
        Ok(())
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn random(&self) -> u64 {
        let mut state = self.lock();
        let mut random = Random(state.random);
        let drawn = random.next();
        state.random = random.0;
        drawn
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name.to_owned()).spawn(body)
    }
}
