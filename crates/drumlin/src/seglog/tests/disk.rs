//! A simulated disk with a volatile write cache.
//!
//! Fault model: a device writes sectors of 512 bytes whole, in any order. What was written and not synced is, after a
//! power cut, there in any of the versions written since the last sync, or not at all, each sector on its own. A name
//! created or removed is certain only once its folder was synced. A durable write makes its own sectors certain only.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::io::{Backend, File, FileRef, OpenOptions, Persist, Queue, SyncMethod};

const SECTOR: usize = 512;
const BLOCK: usize = 4096;

/// A small generator of reproducible numbers.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[derive(Clone, Debug, Default)]
struct Content {
    durable: Vec<u8>,
    current: Vec<u8>,
    /// By sector: what was written since it was last certain.
    pending: BTreeMap<usize, Vec<[u8; SECTOR]>>,
}

impl Content {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if self.current.len() < offset + bytes.len() {
            self.current.resize(offset + bytes.len(), 0);
        }
        self.current[offset..offset + bytes.len()].copy_from_slice(bytes);
        for (number, sector) in bytes.as_chunks().0.iter().enumerate() {
            self.pending.entry(offset / SECTOR + number).or_default().push(*sector);
        }
    }

    fn settle(&mut self, first: usize, end: usize) {
        self.durable.resize(self.current.len(), 0);
        for sector in first..end {
            if let Some(versions) = self.pending.remove(&sector) {
                let newest = versions.last().expect("a pending sector has a version");
                self.durable[sector * SECTOR..(sector + 1) * SECTOR].copy_from_slice(newest);
            }
        }
    }

    fn settle_all(&mut self) {
        self.settle(0, self.current.len().div_ceil(SECTOR));
    }

    fn after_cut(mut self, random: &mut Random) -> Content {
        for (sector, versions) in std::mem::take(&mut self.pending) {
            let choice = random.below(versions.len() as u64 + 1) as usize;
            if let Some(version) = versions.get(choice) {
                let end = (sector + 1) * SECTOR;
                if self.durable.len() < end {
                    self.durable.resize(end, 0);
                }
                self.durable[end - SECTOR..end].copy_from_slice(version);
            }
        }
        Content { current: self.durable.clone(), durable: self.durable, pending: BTreeMap::new() }
    }
}

#[derive(Debug, Default)]
struct State {
    contents: Vec<Content>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    write_count: u64,
    /// The write with this number is the last that reaches the disk, and is not certain.
    cut_at: Option<u64>,
    off: bool,
    fail_writes: bool,
    capacity_bytes: Option<usize>,
    held: bool,
    held_count: usize,
}

impl State {
    fn check_power(&self) -> io::Result<()> {
        if self.off { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    fn used_bytes(&self) -> usize {
        self.names.values().map(|&content| self.contents[content].current.len()).sum()
    }

    fn check_space(&self, content: usize, length: usize) -> io::Result<()> {
        let more = length.saturating_sub(self.contents[content].current.len());
        match self.capacity_bytes {
            Some(capacity) if more > 0 && self.used_bytes() + more > capacity => {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            _ => Ok(()),
        }
    }
}

/// The disk, and the backend that works on it.
pub(super) struct Disk {
    own: Weak<Disk>,
    state: Mutex<State>,
    changed: Condvar,
    has_threads: bool,
}

impl Disk {
    fn with(state: State, has_threads: bool) -> Arc<Disk> {
        Arc::new_cyclic(|own| Disk { own: own.clone(), state: Mutex::new(state), changed: Condvar::new(), has_threads })
    }

    pub(super) fn new(has_threads: bool) -> Arc<Disk> {
        Disk::with(State::default(), has_threads)
    }

    /// The disk as it may be after the power is cut now.
    pub(super) fn cut(&self, random: &mut Random) -> Arc<Disk> {
        let mut state = self.state.lock();
        state.off = true;
        let mut names = state.durable_names.clone();
        for (name, &content) in &state.names {
            if !names.contains_key(name) && random.below(2) == 0 {
                names.insert(name.clone(), content);
            }
        }
        names.retain(|name, _| state.names.contains_key(name) || random.below(2) == 0);
        let contents = state.contents.iter().map(|content| content.clone().after_cut(random)).collect();
        let after = State { contents, names: names.clone(), durable_names: names, ..State::default() };
        Disk::with(after, self.has_threads)
    }

    /// The disk as an ended process leaves it: nothing is lost.
    pub(super) fn copy(&self) -> Arc<Disk> {
        let state = self.state.lock();
        let after = State {
            contents: state.contents.clone(),
            names: state.names.clone(),
            durable_names: state.durable_names.clone(),
            ..State::default()
        };
        Disk::with(after, self.has_threads)
    }

    /// Cuts the power in the middle of the `writes`-th write from now.
    pub(super) fn cut_after(&self, writes: u64) {
        let mut state = self.state.lock();
        state.cut_at = Some(state.write_count + writes);
    }

    /// As after a sync that failed: what was pending is shown to readers, and no sync brings it to the medium any more.
    pub(super) fn forget_pending(&self) {
        for content in &mut self.state.lock().contents {
            content.pending.clear();
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.state.lock().off
    }

    pub(super) fn fail_writes(&self) {
        self.state.lock().fail_writes = true;
    }

    pub(super) fn set_capacity(&self, bytes: Option<usize>) {
        self.state.lock().capacity_bytes = bytes;
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.state.lock().used_bytes()
    }

    pub(super) fn write_count(&self) -> u64 {
        self.state.lock().write_count
    }

    /// Writes wait until [`release`](Disk::release).
    pub(super) fn hold(&self) {
        self.state.lock().held = true;
    }

    /// Waits until a write is held.
    pub(super) fn wait_held(&self) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.held_count == 0);
    }

    pub(super) fn release(&self) {
        self.state.lock().held = false;
        self.changed.notify_all();
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.state.lock().names.keys().cloned().collect()
    }

    pub(super) fn bytes(&self, path: &Path) -> Vec<u8> {
        let state = self.state.lock();
        state.contents[state.names[path]].current.clone()
    }

    /// Changes bytes behind everybody's back.
    pub(super) fn tamper(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state.lock();
        let content = state.names[path];
        let content = &mut state.contents[content];
        content.settle_all();
        change(&mut content.durable);
        content.current = content.durable.clone();
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Disk")
    }
}

#[derive(Debug)]
struct DiskFile {
    disk: Arc<Disk>,
    path: PathBuf,
    content: usize,
    write: bool,
}

fn check_aligned(buffer: &[u8], offset: u64) {
    assert!(buffer.len().is_multiple_of(BLOCK) && offset.is_multiple_of(BLOCK as u64), "a transfer is not aligned");
    assert!((buffer.as_ptr() as usize).is_multiple_of(BLOCK), "a buffer is not aligned");
}

impl File for DiskFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state.lock().contents[self.content].current.len() as u64)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.allocate(0, bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.check_power()?;
        let length = (offset + bytes) as usize;
        state.check_space(self.content, length)?;
        let current = &mut state.contents[self.content].current;
        if current.len() < length {
            current.resize(length, 0);
        }
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        check_aligned(buffer, offset);
        let state = self.disk.state.lock();
        state.check_power()?;
        let offset = offset as usize;
        let bytes = state.contents[self.content].current.get(offset..offset + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: u64, persist: Persist) -> io::Result<()> {
        check_aligned(buffer, offset);
        assert!(self.write, "writing a file that was opened for reading");
        let mut state = self.disk.state.lock();
        state.held_count += 1;
        self.disk.changed.notify_all();
        self.disk.changed.wait_while(&mut state, |state| state.held);
        state.held_count -= 1;
        state.check_power()?;
        if state.fail_writes {
            return Err(io::Error::other("simulated failure"));
        }
        let offset = offset as usize;
        state.check_space(self.content, offset + buffer.len())?;
        state.write_count += 1;
        let cut = state.cut_at == Some(state.write_count);
        let content = &mut state.contents[self.content];
        content.write(offset, buffer);
        if cut {
            state.off = true;
            return state.check_power();
        }
        match persist {
            Persist::Later => {}
            Persist::Now(SyncMethod::DurableWrite) => {
                content.settle(offset / SECTOR, (offset + buffer.len()) / SECTOR);
            }
            Persist::Now(_) => content.settle_all(),
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.check_power()?;
        state.contents[self.content].settle_all();
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn alignment(&self) -> usize {
        BLOCK
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Backend for Disk {
    fn name(&self) -> &'static str {
        "simulated disk"
    }

    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<FileRef> {
        let mut state = self.state.lock();
        state.check_power()?;
        let content = match state.names.get(path) {
            Some(_) if options.create_new => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(&content) => content,
            None if options.create || options.create_new => {
                let content = state.contents.len();
                state.contents.push(Content::default());
                state.names.insert(path.to_path_buf(), content);
                content
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        let disk = self.own.upgrade().expect("the disk is in use");
        Ok(Arc::new(DiskFile { disk, path: path.to_path_buf(), content, write: options.write }))
    }

    fn queue(&self, _depth: usize) -> io::Result<Box<dyn Queue>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn create_dir_all(&self, _path: &Path) -> io::Result<()> {
        self.state.lock().check_power()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let state = self.state.lock();
        state.check_power()?;
        Ok(state.names.keys().filter(|name| name.parent() == Some(path)).cloned().collect())
    }

    fn exists(&self, _path: &Path) -> io::Result<bool> {
        Ok(true)
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.check_power()?;
        state.names.remove(path).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.check_power()?;
        let is_inside = |name: &Path| name.parent() == Some(path);
        state.durable_names.retain(|name, _| !is_inside(name));
        let inside = state.names.iter().filter(|(name, _)| is_inside(name));
        let inside: Vec<(PathBuf, usize)> = inside.map(|(name, content)| (name.clone(), *content)).collect();
        state.durable_names.extend(inside);
        Ok(())
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn random(&self) -> u64 {
        4
    }

    fn spawn(&self, _name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<std::thread::JoinHandle<()>> {
        if self.has_threads { Ok(std::thread::spawn(body)) } else { Err(io::ErrorKind::Unsupported.into()) }
    }
}
