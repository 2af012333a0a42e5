//! The rows of a keyspace in key order, merged from its tree, the runs above it and the log's changes.
//!
//! # Which row of a key counts
//! Each source knows by which commit its row became what it is. The newest one counts:
//!
//! 1. A leaf of the tree at timestamp t has the effects of all commits up to t on its keys, those of runs included. So
//!    a row of a run, a change of the log or a removed range at or below t counts nowhere in that leaf, even if the
//!    leaf lacks the key: then a later commit has removed the row.
//! 2. A removed range hides all rows of earlier commits.
//! 3. It is unknown whether a *loaded* leaf ([`Layer::LOADED`]) belongs to the tree or to a run, and which commit has
//!    attached it. Its rows count unless the tree has a row with the same key that was written later. So a row that was
//!    removed after the load may come back, but none is lost.
//!
//! Keys that no sound leaf covers are reported as gaps.

use std::collections::VecDeque;
use std::io::Read;

use super::changes::RowChange;
use super::images::{Cursor, Hole, Holes, Image, ImagePiece, Images, Layer};
use super::sources::{Source, Sources};
use super::values::{ChunkReader, ChunkedValue, FoundValue};
use crate::db::Range;
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::format::extent::Kind;
use crate::format::node::LargeRef;
use crate::tree::node::{Leaf, RowValue};

/// The maximum number of leaves that are read together.
const LEAF_COUNT_MAX: usize = 64;
/// The maximum number of bytes of leaves that are read together. They are in memory for each layer of a keyspace.
const LEAF_BYTES_MAX: usize = 1 << 20;

/// A row, or keys whose rows are lost.
pub(super) enum FoundRow {
    Row(Vec<u8>, FoundValue),
    Gap(FoundGap),
}

/// A range of keys whose rows are lost, or may be out of date.
pub(super) struct FoundGap {
    pub(super) lower: Vec<u8>,
    pub(super) upper: Option<Vec<u8>>,
    pub(super) error: Error,
}

/// A value before its extents have been read.
enum Content {
    Inline(Vec<u8>),
    Chunked(Result<ChunkedValue>),
    Removed,
}

/// The leaf that has the rows of a piece.
struct PieceLeaf {
    piece: ImagePiece,
    /// `None` if there is no leaf, or if it can no longer be read.
    page: Option<Vec<u8>>,
    next_row: usize,
}

impl PieceLeaf {
    /// Returns the key of the next row, if it is in the piece.
    fn key(&self) -> Option<Vec<u8>> {
        let leaf = Leaf::new(self.page.as_ref()?);
        if self.next_row == leaf.len() {
            return None;
        }
        let mut key = Vec::new();
        leaf.key_into(self.next_row, &mut key);
        self.piece.upper.as_ref().is_none_or(|upper| key < *upper).then_some(key)
    }
}

/// Reads the rows of one layer.
struct LayerRows {
    cursor: Cursor<LayerImages>,
    ready: VecDeque<PieceLeaf>,
    /// The key of the first row, once it is known.
    key: Option<Vec<u8>>,
}

/// The images of a layer, without loaded images that the tree has in a newer form.
struct LayerImages {
    images: Images,
    /// The first image after an image of the tree with the same lower fence.
    tree: Option<Images>,
    tree_next: Option<Image>,
    equal: Vec<Image>,
}

impl Iterator for LayerImages {
    type Item = Result<Image>;

    fn next(&mut self) -> Option<Result<Image>> {
        loop {
            let image = self.images.next()?;
            let Ok(found) = &image else { return Some(image) };
            match self.is_replaced(found) {
                Ok(true) => {}
                Ok(false) => return Some(image),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl LayerImages {
    fn new(images: Images, tree: Option<Images>) -> LayerImages {
        LayerImages { images, tree, tree_next: None, equal: Vec::new() }
    }

    /// Returns `true` if the tree has an image of the same page that a commit has changed since the load. The lower
    /// fence of a page stays what it is.
    fn is_replaced(&mut self, image: &Image) -> Result<bool> {
        let Some(tree) = &mut self.tree else { return Ok(false) };
        if self.equal.first().is_none_or(|first| first.lower != image.lower) {
            self.equal.clear();
            loop {
                if self.tree_next.is_none() {
                    self.tree_next = tree.next().transpose()?;
                }
                match self.tree_next.take() {
                    Some(next) if next.lower < image.lower => {}
                    Some(next) if next.lower == image.lower => self.equal.push(next),
                    next => {
                        self.tree_next = next;
                        break;
                    }
                }
            }
        }
        let is_newer = |other: &Image| other.page == image.page && other.extent.segment_use > image.extent.segment_use;
        Ok(self.equal.iter().any(is_newer))
    }
}

impl LayerRows {
    fn new(sources: &Sources, source: &Source, layer: Layer) -> LayerRows {
        // The tree's images are needed to tell which loaded ones they replace.
        let tree = (layer == Layer::LOADED).then(|| sources.images(source, Layer::TREE));
        let images = LayerImages::new(sources.images(source, layer), tree);
        LayerRows { cursor: Cursor::new(images), ready: VecDeque::new(), key: None }
    }

    /// Returns the current piece. Reads the leaves of the next ones together.
    fn piece(&mut self, sources: &Sources, source: &Source) -> Result<Option<&mut PieceLeaf>> {
        if self.ready.is_empty() {
            let count_max = (LEAF_BYTES_MAX / source.page_bytes).clamp(1, LEAF_COUNT_MAX);
            let mut extents = Vec::new();
            let mut positions = Vec::new();
            while extents.len() < count_max
                && let Some(piece) = self.cursor.next_piece()?
            {
                if let Some(image) = &piece.image {
                    extents.push(image.extent);
                    positions.push(self.ready.len());
                }
                self.ready.push_back(PieceLeaf { piece, page: None, next_row: 0 });
                if self.ready.len() > 4 * LEAF_COUNT_MAX {
                    break;
                }
            }
            sources.extents.read(&extents, |index, read| {
                let PieceLeaf { piece, page, next_row } = &mut self.ready[positions[index]];
                if let Ok((header, bytes)) = read
                    && header.kind == Kind::Leaf
                    && source.is_stored_as(header.page_key.keyspace)
                    && crate::tree::check_node(&bytes, Kind::Leaf).is_ok()
                {
                    *next_row = Leaf::new(&bytes).lower_bound(&piece.lower);
                    *page = Some(bytes);
                }
                Ok(())
            })?;
        }
        Ok(self.ready.front_mut())
    }

    /// Goes on to the next piece.
    fn pass_piece(&mut self) {
        self.ready.pop_front();
        self.key = None;
    }

    /// Returns the key of the next row in any piece.
    fn peek(&mut self, sources: &Sources, source: &Source) -> Result<Option<&[u8]>> {
        while self.key.is_none() {
            let Some(piece) = self.piece(sources, source)? else { return Ok(None) };
            match piece.key() {
                Some(key) => self.key = Some(key),
                None => self.pass_piece(),
            }
        }
        Ok(self.key.as_deref())
    }

    /// Returns the image and the value of the row that [`peek`](Self::peek) has found, and passes it.
    fn take(&mut self, sources: &Sources, source: &Source, is_of_log: bool) -> (Image, Content) {
        self.key = None;
        let PieceLeaf { piece, page, next_row } = self.ready.front_mut().expect("peeked before");
        let leaf = Leaf::new(page.as_ref().expect("it has a row"));
        let content = match leaf.value(*next_row) {
            RowValue::Inline(value) => Content::Inline(value.to_vec()),
            RowValue::Large(LargeRef::REMOVED) => Content::Removed,
            RowValue::Large(reference) => Content::Chunked(sources.large_value(source, is_of_log, reference)),
        };
        *next_row += 1;
        (piece.image.clone().expect("it has a row"), content)
    }
}

/// The ranges removed by the log and by runs, as a walk through the keys meets them.
struct RemovedAt<'s> {
    /// In the order of their lower keys, the last first.
    rest: Vec<&'s (Timestamp, crate::space::runs::RemovedRange)>,
    open: Vec<&'s (Timestamp, crate::space::runs::RemovedRange)>,
}

impl<'s> RemovedAt<'s> {
    fn new(source: &'s Source) -> RemovedAt<'s> {
        let mut rest: Vec<_> = source.removed.iter().collect();
        rest.sort_by(|(_, left), (_, right)| right.lower.cmp(&left.lower));
        RemovedAt { rest, open: Vec::new() }
    }

    /// Returns the newest commit that removed this key. Keys must ascend.
    fn newest(&mut self, key: &[u8]) -> Option<Timestamp> {
        while self.rest.last().is_some_and(|(_, range)| *range.lower <= *key) {
            self.open.extend(self.rest.pop());
        }
        self.open.retain(|(_, range)| range.upper.as_deref().is_none_or(|upper| upper > key));
        self.open.iter().map(|(timestamp, _)| *timestamp).max()
    }
}

/// The keys that no leaf of a layer covers.
struct LayerHoles {
    holes: Holes,
    next: Option<Hole>,
    reason: &'static str,
}

impl LayerHoles {
    fn new(layers: Vec<Images>, from: Vec<u8>, reason: &'static str) -> Result<LayerHoles> {
        let mut holes = Holes::new(layers, from);
        let next = holes.next_hole()?;
        Ok(LayerHoles { holes, next, reason })
    }
}

/// The rows of a keyspace in key order.
pub(super) struct Rows<'s> {
    sources: &'s Sources,
    source: &'s Source,
    tree: LayerRows,
    loaded: Option<LayerRows>,
    runs: Vec<LayerRows>,
    changes: Option<Changes>,
    removed: RemovedAt<'s>,
    /// The keys that no leaf covers: those of the tree first, then those of each run.
    holes: Vec<LayerHoles>,
    queued: VecDeque<FoundRow>,
}

/// The log's changes of a keyspace in key order.
struct Changes {
    rows: Range,
    next: Option<(Vec<u8>, Timestamp, RowChange)>,
}

impl Changes {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        if self.next.is_none()
            && let Some(row) = self.rows.next()
        {
            let (key, value) = row?;
            let (timestamp, change) = RowChange::decode(&value);
            self.next = Some((key.to_vec(), timestamp, change));
        }
        Ok(self.next.as_ref().map(|(key, ..)| &key[..]))
    }
}

impl<'s> Rows<'s> {
    pub(super) fn new(sources: &'s Sources, source: &'s Source) -> Result<Rows<'s>> {
        let rows = |layer| LayerRows::new(sources, source, layer);
        let mut holes = Vec::new();
        if source.pages.is_some() {
            let layers = [Layer::TREE, Layer::LOADED].map(|layer| sources.images(source, layer));
            holes.push(LayerHoles::new(layers.into(), Vec::new(), "no sound page has these keys")?);
        }
        for run in &source.runs {
            let layers = vec![sources.images(source, run.layer)];
            let reason = "a page of a bulk load is lost; older rows may be out of date";
            holes.push(LayerHoles::new(layers, run.freed_to.clone(), reason)?);
        }
        let changes = source.changes.as_ref().map(|changes| Changes { rows: changes.range(..), next: None });
        Ok(Rows {
            sources,
            source,
            tree: rows(Layer::TREE),
            loaded: source.has_loaded.then(|| rows(Layer::LOADED)),
            runs: source.runs.iter().map(|run| rows(run.layer)).collect(),
            changes,
            removed: RemovedAt::new(source),
            holes,
            queued: VecDeque::new(),
        })
    }

    /// Returns the next row or gap. Gaps come before the first row after their first key.
    pub(super) fn next_row(&mut self) -> Result<Option<FoundRow>> {
        loop {
            if let Some(found) = self.queued.pop_front() {
                return Ok(Some(found));
            }
            let (sources, source) = (self.sources, self.source);
            let Some(piece) = self.tree.piece(sources, source)? else {
                return Ok(self.take_hole(None)?.map(FoundRow::Gap));
            };
            let upper = piece.piece.upper.clone();
            // `None` where no leaf of the tree can be read: then nothing older than the other sources is known.
            let covered = piece.page.as_ref().map(|page| Leaf::new(page).newest());
            let in_tree = piece.key();
            let mut key = in_tree.clone();
            let mut lower_to = |other: Option<&[u8]>| {
                if let Some(other) = other
                    && key.as_deref().is_none_or(|key| other < key)
                {
                    key = Some(other.to_vec());
                }
            };
            for layer in self.loaded.iter_mut().chain(&mut self.runs) {
                lower_to(layer.peek(sources, source)?);
            }
            if let Some(changes) = &mut self.changes {
                lower_to(changes.peek()?);
            }
            let key = key.filter(|key| upper.as_ref().is_none_or(|upper| key < upper));
            let Some(key) = key else {
                let piece = self.tree.piece(sources, source)?.expect("peeked before");
                if piece.page.is_none()
                    && let Some(image) = &piece.piece.image
                {
                    // The leaf was sound when it was found.
                    let ImagePiece { lower, upper, .. } = piece.piece.clone();
                    let what = format!("a page at {:?}", image.extent.address);
                    let error = Error::corrupted(sources.extents.file.path(), what, "it can no longer be read");
                    self.queued.push_back(FoundRow::Gap(FoundGap { lower, upper, error }));
                }
                self.tree.pass_piece();
                continue;
            };
            if let Some(gap) = self.take_hole(Some(&key))? {
                return Ok(Some(FoundRow::Gap(gap)));
            }
            let row = self.merge(&key, in_tree.is_some_and(|other| other == key), covered)?;
            let Some(content) = row else { continue };
            let verified = match content {
                Content::Removed => continue,
                Content::Inline(value) => Ok(FoundValue::Whole(value)),
                Content::Chunked(value) => value.and_then(|value| value.verify(&sources.extents)),
            };
            return Ok(Some(match verified {
                Ok(value) => FoundRow::Row(key, value),
                Err(error @ (Error::Corrupted { .. } | Error::Io { .. })) => {
                    let upper = Some([&key[..], &[0]].concat());
                    FoundRow::Gap(FoundGap { lower: key, upper, error })
                }
                Err(error) => return Err(error),
            }));
        }
    }

    /// Takes the rows with this key from all sources. Returns the one that counts, if any does.
    fn merge(&mut self, key: &[u8], is_in_tree: bool, covered: Option<Timestamp>) -> Result<Option<Content>> {
        let (sources, source) = (self.sources, self.source);
        let mut newest: Option<(Timestamp, Content)> = None;
        let mut offer = |timestamp: Timestamp, content: Content| {
            if newest.as_ref().is_none_or(|(other, _)| *other <= timestamp) {
                newest = Some((timestamp, content));
            }
        };
        let is_after_leaf = |timestamp: Timestamp| covered.is_none_or(|covered| covered < timestamp);
        let mut of_loaded = None;
        if let Some(loaded) = &mut self.loaded
            && loaded.peek(sources, source)? == Some(key)
        {
            of_loaded = Some(loaded.take(sources, source, false));
        }
        let of_tree = is_in_tree.then(|| self.tree.take(sources, source, false));
        match (of_loaded, of_tree) {
            (Some((loaded, content)), Some((tree, _))) if tree.extent.segment_use < loaded.extent.segment_use => {
                offer(tree.timestamp, content);
            }
            (_, Some((image, content))) => offer(image.timestamp, content),
            (Some((_, content)), None) => offer(Timestamp(0), content),
            (None, None) => {}
        }
        for (run, rows) in source.runs.iter().zip(&mut self.runs) {
            if rows.peek(sources, source)? == Some(key) {
                let (_, content) = rows.take(sources, source, run.is_of_log);
                if is_after_leaf(run.timestamp) {
                    offer(run.timestamp, content);
                }
            }
        }
        if let Some(changes) = &mut self.changes
            && changes.peek()? == Some(key)
        {
            let (_, timestamp, change) = changes.next.take().expect("peeked before");
            if is_after_leaf(timestamp) {
                offer(timestamp, change.into());
            }
        }
        let removed = self.removed.newest(key).filter(|removed| is_after_leaf(*removed));
        Ok(newest
            .filter(|(timestamp, _)| removed.is_none_or(|removed| removed <= *timestamp))
            .map(|(_, content)| content))
    }

    /// Takes a hole that begins at or before a key.
    fn take_hole(&mut self, key: Option<&[u8]>) -> Result<Option<FoundGap>> {
        for holes in &mut self.holes {
            if let Some(hole) = &holes.next
                && key.is_none_or(|key| *hole.lower <= *key)
            {
                let next = holes.holes.next_hole()?;
                let Hole { lower, upper } = std::mem::replace(&mut holes.next, next).expect("seen above");
                let what = format!("keyspace {:?}", self.source.name);
                let error = Error::corrupted(self.sources.extents.file.path(), what, holes.reason);
                return Ok(Some(FoundGap { lower, upper, error }));
            }
        }
        Ok(None)
    }
}

impl From<RowChange> for Content {
    fn from(change: RowChange) -> Content {
        match change {
            RowChange::Put(value) => Content::Inline(value),
            RowChange::PutLarge(value) => Content::Chunked(Ok(value)),
            RowChange::Remove => Content::Removed,
        }
    }
}

impl FoundValue {
    /// Reads the whole value into memory.
    pub(super) fn into_bytes(self, sources: &Sources) -> Result<Vec<u8>> {
        match self {
            FoundValue::Whole(value) => Ok(value),
            FoundValue::Chunked(value) => {
                let mut bytes = Vec::new();
                let read = ChunkReader::new(&sources.extents, &value).read_to_end(&mut bytes);
                let lost = |error: std::io::Error| Error::corrupted(sources.extents.file.path(), "a value", error);
                read.map_err(lost).map(|_| bytes)
            }
        }
    }
}
