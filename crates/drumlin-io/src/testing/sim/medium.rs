//! The contents of a simulated disk: the durable bytes, the changes that may be lost, and the states in which a power
//! cut may leave the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::Random;

use xxhash_rust::xxh3::xxh3_64_with_seed as checksum;

/// The unit that the drive writes atomically.
pub(super) const SECTOR_BYTES: usize = 512;
pub(super) const BLOCK_BYTES: usize = 4096;

/// A block of a file. `None` stands for zeros.
type Block = Option<Arc<Bytes>>;

/// The bytes of a block, and their checksum once it has been computed.
#[derive(Clone)]
struct Bytes {
    bytes: [u8; BLOCK_BYTES],
    digest: OnceLock<u64>,
}

impl Bytes {
    fn new(bytes: [u8; BLOCK_BYTES]) -> Arc<Bytes> {
        Arc::new(Bytes { bytes, digest: OnceLock::new() })
    }

    /// Returns the bytes for modification. If the block is shared, copies it first.
    fn change(block: &mut Arc<Bytes>) -> &mut [u8; BLOCK_BYTES] {
        let own = Arc::make_mut(block);
        own.digest = OnceLock::new();
        &mut own.bytes
    }

    fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| checksum(&self.bytes, 0))
    }
}

/// The bytes of a file. Clones share their unchanged blocks.
#[derive(Clone, Default)]
struct Image {
    blocks: Vec<Block>,
    length: usize,
}

impl Image {
    fn read(&self, buffer: &mut [u8], offset: usize) -> usize {
        let count = self.length.saturating_sub(offset).min(buffer.len());
        let mut done = 0;
        while done < count {
            let (block, inside) = ((offset + done) / BLOCK_BYTES, (offset + done) % BLOCK_BYTES);
            let part = (BLOCK_BYTES - inside).min(count - done);
            let target = &mut buffer[done..done + part];
            match self.blocks.get(block) {
                Some(Some(block)) => target.copy_from_slice(&block.bytes[inside..inside + part]),
                _ => target.fill(0),
            }
            done += part;
        }
        count
    }

    fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if self.length < end {
            self.set_len(end);
        }
        let mut done = 0;
        while done < bytes.len() {
            let (block, inside) = ((offset + done) / BLOCK_BYTES, (offset + done) % BLOCK_BYTES);
            let part = (BLOCK_BYTES - inside).min(bytes.len() - done);
            let source = &bytes[done..done + part];
            let place = &mut self.blocks[block];
            if source == [0; BLOCK_BYTES] {
                *place = None;
            } else if part == BLOCK_BYTES {
                *place = Some(Bytes::new(source.try_into().expect("a whole block")));
            } else {
                let block = place.get_or_insert_with(|| Bytes::new([0; BLOCK_BYTES]));
                Bytes::change(block)[inside..inside + part].copy_from_slice(source);
            }
            done += part;
        }
    }

    /// Sets the length. Bytes that are cut off will read as zeros if the file grows later.
    fn set_len(&mut self, length: usize) {
        let inside = length % BLOCK_BYTES;
        if length < self.length
            && inside > 0
            && let Some(Some(block)) = self.blocks.get_mut(length / BLOCK_BYTES)
        {
            Bytes::change(block)[inside..].fill(0);
        }
        self.blocks.resize(length.div_ceil(BLOCK_BYTES), None);
        self.length = length;
    }

    fn flip(&mut self, bit: usize) {
        if let Some(Some(block)) = self.blocks.get_mut(bit / 8 / BLOCK_BYTES) {
            Bytes::change(block)[bit / 8 % BLOCK_BYTES] ^= 1 << (bit % 8);
        }
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} bytes)", self.length)
    }
}

/// A change of a file that is not durable yet.
#[derive(Clone, Debug)]
struct Pending {
    number: u64,
    what: PendingChange,
}

#[derive(Clone, Debug)]
enum PendingChange {
    Write { offset: usize, bytes: Arc<[u8]> },
    SetLen(usize),
}

impl Pending {
    fn apply(&self, image: &mut Image) {
        match &self.what {
            PendingChange::Write { offset, bytes } => image.write(bytes, *offset),
            PendingChange::SetLen(length) => image.set_len(*length),
        }
    }

    /// Returns the parts of a write outside of `from..to`. Returns a change of the length unchanged.
    fn outside(self, from: usize, to: usize) -> Vec<Pending> {
        let PendingChange::Write { offset, bytes } = &self.what else { return vec![self] };
        let (offset, end) = (*offset, *offset + bytes.len());
        if end <= from || to <= offset {
            return vec![self];
        }
        let parts = [(offset, from.min(end)), (to.max(offset), end)].into_iter().filter(|(from, to)| from < to);
        let part = |(from, to): (usize, usize)| {
            let what = PendingChange::Write { offset: from, bytes: Arc::from(&bytes[from - offset..to - offset]) };
            Pending { number: self.number, what }
        };
        parts.map(part).collect()
    }
}

#[derive(Clone, Debug, Default)]
struct Content {
    /// The bytes that reads see.
    current: Image,
    /// The bytes that survive every power cut.
    durable: Image,
    /// The changes that are not durable yet, in order.
    pending: Vec<Pending>,
    /// The numbers of changes that will never become durable, although reads may see them.
    forgotten: BTreeSet<u64>,
}

impl Content {
    fn write(&mut self, number: u64, offset: usize, bytes: &Arc<[u8]>) {
        self.current.write(bytes, offset);
        let what = PendingChange::Write { offset, bytes: Arc::clone(bytes) };
        self.pending.push(Pending { number, what });
    }

    fn set_len(&mut self, number: u64, length: usize) {
        self.current.set_len(length);
        self.pending.push(Pending { number, what: PendingChange::SetLen(length) });
    }

    /// Makes a write durable, and a file length that covers it. Earlier cached writes can no longer overwrite its
    /// sectors.
    fn harden(&mut self, number: u64) {
        let Some(index) = self.pending.iter().position(|pending| pending.number == number) else { return };
        let PendingChange::Write { offset, bytes } = self.pending.remove(index).what else { return };
        let end = offset + bytes.len();
        let mut before: Vec<Pending> = self.pending.drain(..index).collect();
        // If an earlier truncation became durable later, it would cut the write off. So make the truncation durable
        // first, and drop the bytes that it cut off from earlier writes.
        let cuts = |pending: &Pending| matches!(pending.what, PendingChange::SetLen(length) if length < end);
        if let Some(cut) = before.iter().rposition(cuts) {
            let after = before.split_off(cut + 1);
            let lengths = before.extract_if(.., |pending| matches!(pending.what, PendingChange::SetLen(_)));
            if let Some(Pending { what: PendingChange::SetLen(length), .. }) = lengths.last() {
                self.durable.set_len(length);
                before = before.into_iter().flat_map(|pending| pending.outside(length, usize::MAX)).collect();
            }
            before.extend(after);
        }
        self.durable.write(&bytes, offset);
        let mut kept: Vec<Pending> = before.into_iter().flat_map(|pending| pending.outside(offset, end)).collect();
        kept.append(&mut self.pending);
        self.pending = kept;
    }

    /// Makes every change with a number up to `up_to` durable.
    fn sync(&mut self, up_to: u64) {
        let is_all = self.pending.last().is_none_or(|last| last.number <= up_to);
        if is_all && self.forgotten.is_empty() {
            // The current and the durable image now share their blocks.
            self.pending.clear();
            self.durable = self.current.clone();
            return;
        }
        for pending in self.pending.extract_if(.., |pending| pending.number <= up_to) {
            pending.apply(&mut self.durable);
        }
    }

    /// Records that the changes with these numbers will never become durable, because their sync failed. They remain
    /// readable until the power is cut.
    fn forget(&mut self, numbers: RangeInclusive<u64>) {
        let forgotten = self.pending.extract_if(.., |pending| numbers.contains(&pending.number));
        self.forgotten.extend(forgotten.map(|pending| pending.number));
    }

    /// Makes forgotten changes unreadable.
    fn drop_forgotten(&mut self) {
        self.current = self.durable.clone();
        self.pending.iter().for_each(|pending| pending.apply(&mut self.current));
    }

    /// Returns the contents after a power cut. `first` is the index of this file's first pending change among the
    /// pending changes of the whole medium.
    fn after_cut(&self, loss: Loss, first: usize, random: &mut Random) -> Content {
        let mut left = self.durable.clone();
        let mut versions: BTreeMap<usize, u64> = BTreeMap::new();
        for (index, pending) in self.pending.iter().enumerate() {
            let keep = match loss {
                Loss::All => false,
                Loss::Nothing | Loss::Sectors => true,
                Loss::Writes => random.chance(50),
                Loss::AllBut(kept) => index == kept,
                Loss::Only(lost) => index != lost,
                Loss::Subset(kept) => is_in(kept, first + index),
            };
            match &pending.what {
                PendingChange::SetLen(length) => {
                    if keep && (loss != Loss::Sectors || random.chance(50)) {
                        left.set_len(*length);
                    }
                }
                PendingChange::Write { offset, bytes } if loss == Loss::Sectors => {
                    for (number, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                        let at = offset + number * SECTOR_BYTES;
                        let count = versions.entry(at / SECTOR_BYTES).or_insert(1);
                        *count += 1;
                        if random.below(*count) == 0 {
                            left.write(sector, at);
                        }
                    }
                }
                PendingChange::Write { offset, bytes } => {
                    if keep {
                        left.write(bytes, *offset);
                    }
                }
            }
        }
        // The length is separate metadata, and may be lost even if the bytes survive.
        if left.length > self.durable.length && matches!(loss, Loss::Writes | Loss::Sectors) && random.chance(50) {
            left.set_len(self.durable.length);
        }
        Content { current: left.clone(), durable: left, ..Content::default() }
    }
}

/// The fate of changes that are not durable when the power is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// All changes are lost.
    All,
    /// No change is lost.
    Nothing,
    /// Each write and each name is kept or lost as a whole.
    Writes,
    /// Each sector has its durable version or any version written since. Each name is kept or lost.
    Sectors,
    /// Each file keeps only the pending change with this index. Names are kept.
    AllBut(usize),
    /// Each file loses only the pending change with this index. Names are kept.
    Only(usize),
    /// One bit for each of the [uncertain changes](Medium::uncertain_count), names first. A change is kept if its bit
    /// is set.
    Subset(u64),
}

fn is_in(set: u64, index: usize) -> bool {
    index < 64 && set >> index & 1 == 1
}

impl Loss {
    /// The kinds that have no parameter.
    pub const ALL: [Loss; 4] = [Loss::All, Loss::Nothing, Loss::Writes, Loss::Sectors];
}

/// The file or folder that a name refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Folder,
    File(usize),
}

/// A change of a medium. Applying the same changes in the same order leads to the same state.
#[derive(Clone)]
pub struct Change(pub(super) ChangeKind);

#[derive(Clone)]
pub(super) enum ChangeKind {
    Write { file: usize, offset: usize, bytes: Arc<[u8]>, number: u64 },
    Harden { file: usize, number: u64 },
    SetLen { file: usize, bytes: usize, number: u64 },
    Sync { file: usize, up_to: u64 },
    Forget { file: usize, from: u64, up_to: u64, is_readable: bool },
    Name { path: PathBuf, entry: Option<Entry> },
    SyncFolder { path: PathBuf },
}

impl Change {
    /// Returns a number that identifies the change in traces.
    pub(super) fn digest(&self) -> u64 {
        let path = |path: &Path| checksum(path.as_os_str().as_encoded_bytes(), 5);
        match &self.0 {
            ChangeKind::Write { file, offset, bytes, .. } => checksum(bytes, (*file as u64) << 48 ^ *offset as u64),
            ChangeKind::Harden { file, number } => (*file as u64) << 48 ^ number ^ 1 << 60,
            ChangeKind::SetLen { file, bytes, .. } => (*file as u64) << 48 ^ *bytes as u64 ^ 2 << 60,
            ChangeKind::Sync { file, up_to } => (*file as u64) << 48 ^ up_to ^ 3 << 60,
            ChangeKind::Forget { file, up_to, .. } => (*file as u64) << 48 ^ up_to ^ 4 << 60,
            ChangeKind::Name { path: name, .. } => path(name),
            ChangeKind::SyncFolder { path: name } => !path(name),
        }
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ChangeKind::Write { file, offset, bytes, number } => {
                write!(f, "write #{number} to file {file}: {offset}+{}", bytes.len())?;
                let word =
                    |at: usize| bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()));
                if bytes.starts_with(b"DRUMLIN") {
                    write!(f, ", superblock {} of checkpoint {} at {}", word(24), word(48), word(56))?;
                }
                Ok(())
            }
            ChangeKind::Harden { file, number } => write!(f, "write #{number} to file {file} is durable"),
            ChangeKind::SetLen { file, bytes, .. } => write!(f, "file {file} has {bytes} bytes"),
            ChangeKind::Sync { file, up_to } => write!(f, "file {file} is synced up to #{up_to}"),
            ChangeKind::Forget { file, from, up_to, .. } => {
                write!(f, "a sync of file {file} failed: #{from} to #{up_to} are forgotten")
            }
            ChangeKind::Name { path, entry } => write!(f, "{} is {entry:?}", path.display()),
            ChangeKind::SyncFolder { path } => write!(f, "folder {} is synced", path.display()),
        }
    }
}

/// The contents of a disk.
#[derive(Clone, Debug, Default)]
pub struct Medium {
    contents: Vec<Content>,
    names: BTreeMap<PathBuf, Entry>,
    durable_names: BTreeMap<PathBuf, Entry>,
    /// The unreadable blocks: pairs of a file and a block.
    dead: BTreeSet<(usize, usize)>,
}

impl Medium {
    /// Applies a recorded change.
    pub fn apply(&mut self, change: &Change) {
        match &change.0 {
            ChangeKind::Write { file, offset, bytes, number } => self.content(*file).write(*number, *offset, bytes),
            ChangeKind::Harden { file, number } => self.content(*file).harden(*number),
            ChangeKind::SetLen { file, bytes, number } => self.content(*file).set_len(*number, *bytes),
            ChangeKind::Sync { file, up_to } => self.content(*file).sync(*up_to),
            ChangeKind::Forget { file, from, up_to, is_readable } => {
                let content = self.content(*file);
                content.forget(*from..=*up_to);
                if !*is_readable {
                    content.drop_forgotten();
                }
            }
            ChangeKind::Name { path, entry: Some(entry) } => {
                if let Entry::File(file) = entry {
                    self.content(*file);
                }
                self.names.insert(path.clone(), *entry);
            }
            ChangeKind::Name { path, entry: None } => drop(self.names.remove(path)),
            ChangeKind::SyncFolder { path } => {
                let inside = |name: &PathBuf| name.parent() == Some(path);
                self.durable_names.retain(|name, _| !inside(name));
                let now = self.names.iter().filter(|(name, _)| inside(name));
                self.durable_names.extend(now.map(|(name, entry)| (name.clone(), *entry)));
            }
        }
    }

    fn content(&mut self, file: usize) -> &mut Content {
        if self.contents.len() <= file {
            self.contents.resize_with(file + 1, Content::default);
        }
        &mut self.contents[file]
    }

    /// Returns a copy of the disk in a state that a power cut at this moment may leave.
    #[must_use]
    pub fn cut(&self, loss: Loss, random: &mut Random) -> Medium {
        let mut names = self.durable_names.clone();
        let all: BTreeSet<&PathBuf> = self.names.keys().chain(self.durable_names.keys()).collect();
        let mut count = 0;
        for path in all {
            let (old, new) = (self.durable_names.get(path), self.names.get(path));
            let takes_new = match loss {
                Loss::All => false,
                Loss::Nothing | Loss::AllBut(_) | Loss::Only(_) => true,
                Loss::Writes | Loss::Sectors => random.chance(50),
                Loss::Subset(kept) => is_in(kept, count),
            };
            count += usize::from(old != new);
            if old != new && takes_new {
                match new {
                    Some(entry) => drop(names.insert(path.clone(), *entry)),
                    None => drop(names.remove(path)),
                }
            }
        }
        let has_way =
            |path: &Path| path.ancestors().skip(1).all(|above| above.parent().is_none() || names.contains_key(above));
        let reachable: BTreeMap<PathBuf, Entry> =
            (names.iter()).filter(|(path, _)| has_way(path)).map(|(path, entry)| (path.clone(), *entry)).collect();
        let named: BTreeSet<usize> = reachable
            .values()
            .filter_map(|entry| if let Entry::File(file) = entry { Some(*file) } else { None })
            .collect();
        let contents = (self.contents.iter().enumerate())
            .map(|(file, content)| {
                let first = count;
                count += content.pending.len();
                if named.contains(&file) { content.after_cut(loss, first, random) } else { Content::default() }
            })
            .collect();
        Medium { contents, names: reachable.clone(), durable_names: reachable, dead: self.dead.clone() }
    }

    /// Returns the maximum number of uncertain changes of any one file.
    #[must_use]
    pub fn pending_max(&self) -> usize {
        self.contents.iter().map(|content| content.pending.len()).max().unwrap_or(0)
    }

    /// Returns the total number of uncertain names and uncertain changes of files.
    #[must_use]
    pub fn uncertain_count(&self) -> usize {
        let names: BTreeSet<&PathBuf> = self.names.keys().chain(self.durable_names.keys()).collect();
        let names = names.into_iter().filter(|path| self.names.get(*path) != self.durable_names.get(*path)).count();
        names + self.contents.iter().map(|content| content.pending.len()).sum::<usize>()
    }

    /// Makes all changes of a file durable, and its name too, provided that the name of its folder is durable.
    pub fn settle(&mut self, path: &Path) {
        if let Some(Entry::File(file)) = self.entry(path) {
            self.content(file).sync(u64::MAX);
            self.durable_names.insert(path.to_owned(), Entry::File(file));
        }
    }

    /// Returns the highest number of all uncertain and forgotten changes.
    pub(super) fn number_max(&self) -> u64 {
        let pending = self.contents.iter().flat_map(|content| &content.pending).map(|pending| pending.number);
        let forgotten = self.contents.iter().filter_map(|content| content.forgotten.last().copied());
        pending.chain(forgotten).max().unwrap_or(0)
    }

    /// Returns `true` if a change was forgotten and so will never become durable.
    pub(super) fn is_forgotten(&self, file: usize, number: u64) -> bool {
        self.contents[file].forgotten.contains(&number)
    }

    /// Returns a checksum of the contents. Two media with the same checksum have the same contents.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut digest = 0;
        for (path, entry) in &self.names {
            digest = checksum(path.as_os_str().as_encoded_bytes(), digest);
            let Entry::File(file) = entry else { continue };
            let image = &self.contents[*file].current;
            digest ^= image.length as u64;
            for (index, block) in image.blocks.iter().enumerate() {
                if let Some(block) = block {
                    digest = checksum(&block.digest().to_le_bytes(), digest.rotate_left(7) ^ index as u64);
                }
            }
        }
        digest
    }

    /// Returns the total length of all files that have a name, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let files = self.names.values().filter_map(|entry| match entry {
            Entry::File(file) => Some(self.contents[*file].current.length as u64),
            Entry::Folder => None,
        });
        files.sum()
    }

    /// Flips a bit of a block at rest. The block is not all zeros, and the path of its file contains `name`. Returns
    /// `false` if there is no such block.
    pub fn rot(&mut self, name: &str, random: &mut Random) -> bool {
        let files = self.names.iter().filter_map(|(path, entry)| match entry {
            Entry::File(file) if path.to_string_lossy().contains(name) => Some(*file),
            _ => None,
        });
        let blocks: Vec<(usize, usize)> = files
            .flat_map(|file| {
                let blocks = self.contents[file].current.blocks.iter().enumerate();
                blocks.filter(|(_, block)| block.is_some()).map(move |(index, _)| (file, index))
            })
            .collect();
        if blocks.is_empty() {
            return false;
        }
        let (file, block) = blocks[random.below(blocks.len() as u64) as usize];
        let bit = (block * BLOCK_BYTES) * 8 + random.below(BLOCK_BYTES as u64 * 8) as usize;
        let content = &mut self.contents[file];
        content.current.flip(bit);
        content.durable.flip(bit);
        true
    }

    /// Returns the paths of all files.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let files = self.names.iter().filter(|(_, entry)| matches!(entry, Entry::File(_)));
        files.map(|(path, _)| path.clone()).collect()
    }

    fn file(&self, path: &Path) -> usize {
        match self.entry(path) {
            Some(Entry::File(file)) => file,
            other => panic!("{} is no file: {other:?}", path.display()),
        }
    }

    /// Returns the bytes of a file as reads see them.
    ///
    /// # Panics
    /// If there is no such file.
    #[must_use]
    pub fn file_bytes(&self, path: &Path) -> Vec<u8> {
        let image = &self.contents[self.file(path)].current;
        let mut bytes = vec![0; image.length];
        image.read(&mut bytes, 0);
        bytes
    }

    /// Changes a file without the engine's knowledge, and makes the whole file durable.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn tamper(&mut self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.file_bytes(path);
        change(&mut bytes);
        let mut image = Image::default();
        image.write(&bytes, 0);
        let file = self.file(path);
        *self.content(file) = Content { current: image.clone(), durable: image, ..Content::default() };
    }

    /// Forgets all uncertain changes, as a failed sync does: they remain readable until the power is cut, but never
    /// become durable.
    pub fn forget_pending(&mut self) {
        for content in &mut self.contents {
            content.forget(0..=u64::MAX);
        }
    }

    /// Makes every block readable, as if the contents were copied to a new drive.
    pub fn renew(&mut self) {
        self.dead.clear();
    }

    pub(super) fn kill(&mut self, file: usize, block: usize) {
        self.dead.insert((file, block));
    }

    pub(super) fn is_dead(&self, file: usize, blocks: &RangeInclusive<usize>) -> bool {
        self.dead.range((file, *blocks.start())..=(file, *blocks.end())).next().is_some()
    }

    /// Makes rewritten blocks readable, because a drive relocates them.
    pub(super) fn revive(&mut self, file: usize, blocks: &RangeInclusive<usize>) {
        self.dead.retain(|(dead, block)| *dead != file || !blocks.contains(block));
    }

    pub(super) fn entry(&self, path: &Path) -> Option<Entry> {
        self.names.get(path).copied()
    }

    pub(super) fn file_count(&self) -> usize {
        self.contents.len()
    }

    pub(super) fn names_in<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = &'a PathBuf> {
        self.names.keys().filter(move |name| name.parent() == Some(folder))
    }

    pub(super) fn length(&self, file: usize) -> usize {
        self.contents[file].current.length
    }

    pub(super) fn read(&self, file: usize, buffer: &mut [u8], offset: usize) -> usize {
        self.contents[file].current.read(buffer, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: usize, offset: usize, byte: u8, length: usize, number: u64) -> Change {
        Change(ChangeKind::Write { file, offset, bytes: vec![byte; length].into(), number })
    }

    fn medium() -> Medium {
        let mut medium = Medium::default();
        medium.apply(&Change(ChangeKind::Name { path: "/f".into(), entry: Some(Entry::File(0)) }));
        medium.apply(&Change(ChangeKind::SyncFolder { path: "/".into() }));
        medium
    }

    fn bytes(medium: &Medium) -> Vec<u8> {
        let mut bytes = vec![0; medium.length(0)];
        medium.read(0, &mut bytes, 0);
        bytes
    }

    /// Synced bytes survive a power cut, but unsynced bytes may not. A durable write permanently replaces earlier
    /// cached writes to its sectors.
    #[test]
    fn a_cut_takes_what_is_not_certain() {
        let mut medium = medium();
        medium.apply(&write(0, 0, 1, 8192, 1));
        assert_eq!(bytes(&medium.cut(Loss::All, &mut Random(1))).len(), 0);
        medium.apply(&Change(ChangeKind::Sync { file: 0, up_to: 1 }));
        medium.apply(&write(0, 0, 2, 1024, 2));
        medium.apply(&write(0, 512, 3, 512, 3));
        let after = bytes(&medium.cut(Loss::All, &mut Random(1)));
        assert!(after.len() == 8192 && after.iter().all(|byte| *byte == 1));
        medium.apply(&Change(ChangeKind::Harden { file: 0, number: 3 }));
        for seed in 0..20 {
            let after = bytes(&medium.cut(Loss::Sectors, &mut Random(seed)));
            assert!(after[512..1024].iter().all(|byte| *byte == 3));
            assert!(after[..512].iter().all(|byte| *byte == after[0]) && (after[0] == 1 || after[0] == 2));
        }
        // A sync covers only the writes that were made before it began.
        medium.apply(&write(0, 4096, 4, 512, 4));
        medium.apply(&write(0, 4096, 5, 512, 5));
        medium.apply(&Change(ChangeKind::Sync { file: 0, up_to: 4 }));
        assert_eq!(bytes(&medium.cut(Loss::All, &mut Random(1)))[4096], 4);
        assert_eq!(bytes(&medium.cut(Loss::Nothing, &mut Random(1)))[4096], 5);
        assert_eq!(bytes(&medium)[4096], 5);
    }

    /// Unsynced names may be lost, together with everything below them.
    #[test]
    fn names_are_certain_once_their_folder_was_synced() {
        let mut medium = medium();
        medium.apply(&Change(ChangeKind::Name { path: "/d".into(), entry: Some(Entry::Folder) }));
        medium.apply(&Change(ChangeKind::Name { path: "/d/g".into(), entry: Some(Entry::File(1)) }));
        medium.apply(&Change(ChangeKind::SyncFolder { path: "/d".into() }));
        assert_eq!(medium.cut(Loss::All, &mut Random(1)).entry(Path::new("/d/g")), None);
        medium.apply(&Change(ChangeKind::SyncFolder { path: "/".into() }));
        assert_eq!(medium.cut(Loss::All, &mut Random(1)).entry(Path::new("/d/g")), Some(Entry::File(1)));
    }

    fn forget(from: u64, up_to: u64, is_readable: bool) -> Change {
        Change(ChangeKind::Forget { file: 0, from, up_to, is_readable })
    }

    fn harden(number: u64) -> Change {
        Change(ChangeKind::Harden { file: 0, number })
    }

    /// If a failed sync forgets a write, no later sync makes the write durable, although reads may see it until the
    /// power is cut.
    #[test]
    fn what_was_forgotten_never_becomes_certain() {
        let sync = |up_to| Change(ChangeKind::Sync { file: 0, up_to });
        for is_readable in [false, true] {
            let mut medium = medium();
            medium.apply(&write(0, 0, 1, 1024, 1));
            medium.apply(&sync(1));
            medium.apply(&write(0, 0, 2, 512, 2));
            medium.apply(&write(0, 512, 3, 512, 3));
            // One of the two writes in flight fails.
            medium.apply(&forget(2, 2, is_readable));
            assert!(medium.is_forgotten(0, 2) && !medium.is_forgotten(0, 3));
            assert_eq!((bytes(&medium)[0], bytes(&medium)[512]), (if is_readable { 2 } else { 1 }, 3));
            for change in [harden(3), sync(3)] {
                medium.apply(&change);
                let after = bytes(&medium.cut(Loss::Nothing, &mut Random(1)));
                assert_eq!((after[0], after[512]), (1, 3));
            }
            // Rewritten bytes may become durable.
            medium.apply(&write(0, 0, 4, 512, medium.number_max() + 1));
            medium.apply(&sync(medium.number_max()));
            assert_eq!(bytes(&medium.cut(Loss::All, &mut Random(1)))[0], 4);
        }
    }

    /// A durable write is not cut off by a length that was set before it. Bytes that this length cut off don't
    /// reappear.
    #[test]
    fn a_length_set_before_a_durable_write_does_not_cut_it_off() {
        let set_len = |bytes, number| Change(ChangeKind::SetLen { file: 0, bytes, number });
        let mut medium = medium();
        for change in [write(0, 0, 1, 2048, 1), set_len(4096, 2), set_len(0, 3), write(0, 0, 2, 512, 4)] {
            medium.apply(&change);
        }
        medium.apply(&harden(4));
        for loss in Loss::ALL {
            assert_eq!(bytes(&medium.cut(loss, &mut Random(1))), [2; 512], "{loss:?}");
        }
        // A later increase of the length is still uncertain.
        medium.apply(&set_len(4096, 5));
        medium.apply(&write(0, 0, 3, 512, 6));
        medium.apply(&harden(6));
        assert_eq!(medium.cut(Loss::All, &mut Random(1)).length(0), 512);
        assert_eq!(medium.cut(Loss::Nothing, &mut Random(1)).length(0), 4096);
    }

    /// Any subset of the uncertain changes may survive, including those of names.
    #[test]
    fn any_of_what_is_not_certain_may_be_left() {
        let mut medium = medium();
        medium.apply(&write(0, 0, 1, 512, 1));
        medium.apply(&Change(ChangeKind::Name { path: "/g".into(), entry: Some(Entry::File(1)) }));
        medium.apply(&write(0, 512, 2, 512, 2));
        medium.apply(&write(1, 0, 3, 512, 3));
        assert_eq!(medium.uncertain_count(), 4);
        let left = |kept| medium.cut(Loss::Subset(kept), &mut Random(1));
        let states: BTreeSet<u64> = (0..16).map(|kept| left(kept).digest()).collect();
        // Without its name, no change of the second file survives.
        assert_eq!(states.len(), 4 + 8);
        assert_eq!(left(0b0010).length(0), 512);
        assert_eq!(left(0b1001).length(1), 512);
        medium.settle(Path::new("/f"));
        assert_eq!(medium.uncertain_count(), 2);
    }
}
