//! The list of kept snapshots that each checkpoint records. `kept.rs` explains the states that a snapshot passes
//! through.

use std::sync::Arc;

use super::Space;
use super::kept::{CatalogueRef, KeptSnapshot};
use super::parts::{append_parts, read_parts};
use crate::error::{Error, OnCorruption, Result, sound};
use crate::format::backup::SnapshotId;
use crate::format::catalogue::{self, KeptCatalogue, KeptEntry};
use crate::format::extent::Kind;
use crate::format::{Epoch, ExtentAddress, ExtentRef, SegmentId, Timestamp};
use crate::memory::Account;
use crate::sync::Mutex;

/// A kept snapshot as the next checkpoint lists it.
#[derive(Debug)]
struct Listed {
    snapshot: Arc<KeptSnapshot>,
    catalogue: CatalogueRef,
    /// The addresses of the catalogue's parts.
    parts: Vec<ExtentAddress>,
    is_temporary: bool,
}

/// A snapshot that the next checkpoint will keep.
#[derive(Debug)]
struct Wanted {
    name: Arc<str>,
    id: SnapshotId,
    taken_at_ms: u64,
    is_temporary: bool,
}

/// The kept snapshots as the thread that makes the next checkpoint sees them.
#[derive(Debug, Default)]
pub(crate) struct KeptList {
    listed: Vec<Listed>,
    wanted: Vec<Wanted>,
    /// Snapshots that the next checkpoint leaves out.
    dropping: Vec<Listed>,
    /// Snapshots that no durable checkpoint lists, and whose segments are still pinned.
    dropped: Vec<Arc<KeptSnapshot>>,
}

impl KeptList {
    /// Makes the next checkpoint keep a snapshot with this name. A temporary snapshot is in no catalogue of the
    /// database, so it lasts until it is dropped or the database is closed, and does not survive a kill.
    ///
    /// # Errors
    /// [`Error::SnapshotExists`].
    pub(crate) fn want(
        &mut self,
        space: &Space,
        name: &str,
        id: SnapshotId,
        taken_at_ms: u64,
        is_temporary: bool,
    ) -> Result<()> {
        assert!(id != SnapshotId(0), "a backup since snapshot 0 would be a full one");
        // The drop of a snapshot may be taken back, so its name is free only afterwards.
        let is_listed = self.listed.iter().chain(&self.dropping).any(|listed| &*listed.snapshot.name == name);
        if is_listed || self.wanted.iter().any(|wanted| &*wanted.name == name) {
            return Err(Error::SnapshotExists { name: name.to_owned() });
        }
        space.add_catalogue_bytes(catalogue::kept_bytes(name.len()));
        self.wanted.push(Wanted { name: name.into(), id, taken_at_ms, is_temporary });
        Ok(())
    }

    /// Takes back [`want`](Self::want). Returns `false` if a checkpoint has kept the snapshot in the meantime.
    pub(crate) fn withdraw(&mut self, space: &Space, name: &str) -> bool {
        let Some(index) = self.wanted.iter().position(|wanted| &*wanted.name == name) else { return false };
        let withdrawn = self.wanted.remove(index);
        space.subtract_catalogue_bytes(catalogue::kept_bytes(withdrawn.name.len()));
        true
    }

    /// Makes the next checkpoint leave this snapshot out. From now on the snapshot can't be opened.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`].
    pub(crate) fn begin_drop(&mut self, space: &Space, name: &str) -> Result<()> {
        let index = self.listed.iter().position(|listed| &*listed.snapshot.name == name);
        let index = index.ok_or_else(|| Error::NoSuchSnapshot { name: name.to_owned() })?;
        space.kept.withdraw(&self.listed[index].snapshot);
        self.dropping.push(self.listed.remove(index));
        Ok(())
    }

    /// Takes back [`begin_drop`](Self::begin_drop). Returns `false` if a checkpoint has dropped the snapshot in the
    /// meantime.
    pub(crate) fn undo_drop(&mut self, space: &Space, name: &str) -> bool {
        let Some(index) = self.dropping.iter().position(|listed| &*listed.snapshot.name == name) else { return false };
        let listed = self.dropping.remove(index);
        space.kept.publish(&listed.snapshot);
        self.listed.push(listed);
        true
    }

    /// Returns `true` if the next checkpoint will keep a snapshot.
    pub(super) fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Returns the maximum number of bytes that the next checkpoint writes for the catalogues of kept snapshots.
    /// `is_evacuated` tells whether an extent has to be moved.
    pub(super) fn bytes_max(&self, space: &Space, is_evacuated: impl Fn(ExtentAddress) -> bool) -> u64 {
        let must_move = |listed: &&Listed| listed.parts.iter().any(|part| is_evacuated(*part));
        let moved_bytes: u64 = self.listed.iter().filter(must_move).map(|listed| listed.catalogue.bytes).sum();
        let segment_list_bytes = space.segments.usage().segment_count * size_of::<SegmentId>() as u64;
        let new_bytes = self.wanted.len() as u64 * (space.catalogue_bytes() + segment_list_bytes);
        let bytes = moved_bytes + new_bytes;
        // The parts have headers, and each is padded to a multiple of 64 bytes.
        if bytes == 0 { 0 } else { bytes + bytes / 256 + 128 }
    }

    /// Releases the catalogues of dropped snapshots, and moves those that have to be moved.
    pub(super) fn move_catalogues(
        &mut self,
        space: &Space,
        epoch: Epoch,
        is_evacuated: impl Fn(ExtentAddress) -> bool,
    ) -> Result<()> {
        for listed in &mut self.dropping {
            listed.parts.drain(..).for_each(|part| space.segments.release(part, epoch));
        }
        for listed in self.listed.iter_mut().filter(|listed| listed.parts.iter().any(|part| is_evacuated(*part))) {
            crate::coverage::mark!("the catalogue of a kept snapshot was moved");
            let bytes = listed.snapshot.read(space, listed.catalogue)?;
            let (moved, last) = append_parts(space, epoch, Kind::Kept, &bytes)?;
            listed.catalogue.last = last;
            for part in std::mem::replace(&mut listed.parts, moved) {
                space.segments.release(part, epoch);
            }
        }
        Ok(())
    }

    /// Writes the catalogues of the snapshots that this checkpoint keeps, and pins their segments. The base image of
    /// the page tables must have been written.
    pub(super) fn keep_wanted(
        &mut self,
        space: &Space,
        epoch: Epoch,
        timestamp: Timestamp,
        tables: KeptCatalogue,
    ) -> Result<()> {
        assert!(self.is_wanted(), "a checkpoint keeps a snapshot that nobody wants");
        crate::coverage::mark!("a checkpoint kept a snapshot");
        let kept = KeptCatalogue { segments: space.segments.of_checkpoint(epoch), ..tables };
        let bytes = kept.encode();
        debug_assert!(KeptCatalogue::decode(&bytes).as_ref() == Some(&kept), "a catalogue can't be read as written");
        for Wanted { name, id, taken_at_ms, is_temporary } in std::mem::take(&mut self.wanted) {
            let (parts, last) = append_parts(space, epoch, Kind::Kept, &bytes)?;
            let catalogue = CatalogueRef { last, bytes: bytes.len() as u64 };
            assert!(space.segments.pin(&kept.segments), "a snapshot pins segments outside of the file");
            let segments = kept.segments.clone();
            let place = Mutex::new(catalogue);
            let snapshot = KeptSnapshot { name, id, timestamp, taken_at_ms, segments, catalogue: place };
            self.listed.push(Listed { is_temporary, ..listed(space, snapshot, catalogue, parts) });
        }
        Ok(())
    }

    /// Returns the entries of the kept snapshots in the next catalogue, which has none for temporary ones.
    pub(super) fn entries(&self) -> Vec<KeptEntry> {
        assert!(!self.is_wanted(), "a checkpoint leaves out a snapshot that it was to keep");
        let entry = |Listed { snapshot, catalogue, .. }: &Listed| KeptEntry {
            name: snapshot.name.to_string(),
            id: snapshot.id,
            timestamp: snapshot.timestamp,
            taken_at_ms: snapshot.taken_at_ms,
            catalogue: catalogue.last,
            catalogue_bytes: catalogue.bytes,
        };
        self.listed.iter().filter(|listed| !listed.is_temporary).map(entry).collect()
    }

    /// Publishes the snapshots that the durable checkpoint keeps, and unpins the segments of dropped snapshots that are
    /// not open.
    pub(super) fn settle(&mut self, space: &Space) {
        for Listed { snapshot, parts, .. } in self.dropping.drain(..) {
            assert!(parts.is_empty(), "a dropped snapshot's catalogue is not released");
            space.subtract_catalogue_bytes(catalogue::kept_bytes(snapshot.name.len()));
            self.dropped.push(snapshot);
        }
        for Listed { snapshot, catalogue, .. } in &self.listed {
            *snapshot.catalogue.lock() = *catalogue;
            space.kept.publish(snapshot);
        }
        for snapshot in self.dropped.extract_if(.., |snapshot| Arc::strong_count(snapshot) == 1) {
            space.segments.unpin(&snapshot.segments);
            space.budget.give(Account::Tables, snapshot.memory_bytes());
        }
        if !self.dropped.is_empty() {
            crate::coverage::mark!("the segments of a dropped snapshot stayed pinned for its readers");
        }
    }

    /// Reads the list of kept snapshots and pins their segments. Called while the database is being opened. `restore`
    /// marks an extent as in use.
    pub(super) fn load(
        &mut self,
        space: &Space,
        entries: &[KeptEntry],
        restore: impl Fn(&str, ExtentRef) -> Result<()>,
        on_corruption: OnCorruption<'_>,
    ) -> Result<()> {
        assert!(self.listed.is_empty(), "the list of kept snapshots is read twice");
        for entry in entries {
            if let Some(listed) = sound(load_entry(space, entry, &restore), on_corruption)? {
                space.add_catalogue_bytes(catalogue::kept_bytes(entry.name.len()));
                space.kept.publish(&listed.snapshot);
                self.listed.push(listed);
            }
        }
        Ok(())
    }

    /// Returns the memory used by the list, in bytes. The snapshots themselves count as page tables.
    pub(super) fn memory_bytes(&self) -> u64 {
        let parts: usize = self.listed.iter().map(|listed| listed.parts.capacity()).sum();
        (self.listed.capacity() * size_of::<Listed>() + parts * size_of::<ExtentAddress>()) as u64
    }
}

fn load_entry(space: &Space, entry: &KeptEntry, restore: impl Fn(&str, ExtentRef) -> Result<()>) -> Result<Listed> {
    let KeptEntry { name, id, timestamp, taken_at_ms, catalogue, catalogue_bytes } = entry;
    let what = KeptSnapshot::what(name);
    let malformed = || Error::corrupted(space.path(), what.as_str(), "it is malformed");
    let before = |part: ExtentRef| restore(&what, part);
    let (parts, bytes) = read_parts(space, Kind::Kept, *catalogue, *catalogue_bytes, &what, before)?;
    let segments = KeptCatalogue::decode(&bytes).ok_or_else(malformed)?.segments;
    if !space.segments.pin(&segments) {
        return Err(malformed());
    }
    let catalogue = CatalogueRef { last: *catalogue, bytes: *catalogue_bytes };
    let snapshot = KeptSnapshot {
        name: name.as_str().into(),
        id: *id,
        timestamp: *timestamp,
        taken_at_ms: *taken_at_ms,
        segments,
        catalogue: Mutex::new(catalogue),
    };
    Ok(listed(space, snapshot, catalogue, parts))
}

/// Returns the entry of a snapshot whose segments are pinned. Takes the snapshot's memory from the budget.
fn listed(space: &Space, snapshot: KeptSnapshot, catalogue: CatalogueRef, parts: Vec<ExtentAddress>) -> Listed {
    assert!(!snapshot.name.is_empty() && !parts.is_empty(), "a kept snapshot has no name or no catalogue");
    space.budget.take(Account::Tables, snapshot.memory_bytes());
    Listed { snapshot: Arc::new(snapshot), catalogue, parts, is_temporary: false }
}
