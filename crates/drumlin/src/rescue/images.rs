//! The images of leaves that have been found on disk, sorted by key in a scratch database.
//!
//! Each sound leaf is described by its fences, the newest commit in it, and its place. The bulk loader sorts the
//! descriptions in bounded memory. A [`Cursor`] then walks through the keys of one *layer*: the tree of a keyspace, or
//! a run above it. If page tables list the leaves, those of a layer do not overlap. If pages had to be searched, they
//! may: a page has several images, and pages that were freed still have some. Then the newest image that covers a key
//! counts, and an older one only where no newer one is sound.

use std::collections::VecDeque;
use std::iter::Peekable;

use crate::db::{BulkLoad, Keyspace, Range};
use crate::error::Result;
use crate::format::{ExtentAddress, ExtentRef, KeyspaceId, PageId, SegmentUse, Timestamp, get_u16, get_u32, get_u64};
use crate::tree::node::Leaf;

/// The longest key of an image in the scratch database, in bytes: that of its pages of 64 KiB.
const KEY_BYTES_MAX: usize = 16 << 10;
/// The bytes of a key before the fence: keyspace and layer.
const KEY_HEAD_BYTES: usize = 8;
/// The bytes of a key after the fence: the use of the segment, and the place.
const KEY_TAIL_BYTES: usize = 16;
/// The longest encoded fence. Longer ones are cut off there.
const FENCE_BYTES_MAX: usize = KEY_BYTES_MAX - KEY_HEAD_BYTES - KEY_TAIL_BYTES;

/// The bytes of a description before its fences.
const VALUE_HEAD_BYTES: usize = 32;
/// Stands for the length of the upper fence if there is none.
const NO_UPPER_BYTES: u16 = u16::MAX;

/// A set of leaves that belong together: those of a tree, or those of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Layer(pub(super) u32);

impl Layer {
    /// The tree of the keyspace.
    pub(super) const TREE: Layer = Layer(0);
    /// Leaves of bulk loads of which it is not known if they belong to the tree or to a run.
    pub(super) const LOADED: Layer = Layer(1);
    /// The first run. The numbers of the others follow.
    pub(super) const FIRST_RUN: Layer = Layer(2);
}

/// An image of a leaf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Image {
    pub(super) extent: ExtentRef,
    /// The newest commit in the leaf.
    pub(super) timestamp: Timestamp,
    pub(super) page: PageId,
    /// The lower fence; empty if there is none.
    pub(super) lower: Vec<u8>,
    pub(super) upper: Option<Vec<u8>>,
}

impl Image {
    pub(super) fn of(leaf: &Leaf<'_>, extent: ExtentRef, page: PageId) -> Image {
        Image {
            extent,
            timestamp: leaf.newest(),
            page,
            lower: leaf.lower_fence().unwrap_or_default().to_vec(),
            upper: leaf.upper_fence().map(<[u8]>::to_vec),
        }
    }

    /// Returns the order of images by age. A page may be written to two segments alternately, so commits come first.
    fn version(&self) -> (Timestamp, SegmentUse, u64) {
        (self.timestamp, self.extent.segment_use, self.extent.address.start())
    }

    fn ends_by(&self, key: &[u8]) -> bool {
        self.upper.as_deref().is_some_and(|upper| upper <= key)
    }

    /// Adds the description to the load that sorts them.
    pub(super) fn store(&self, load: &mut BulkLoad, keyspace: KeyspaceId, layer: Layer) -> Result<()> {
        let mut key = head(keyspace, layer);
        encode_fence(&self.lower, &mut key);
        key.extend(self.extent.segment_use.0.to_be_bytes());
        key.extend(self.extent.address.start().to_be_bytes());
        let mut value = Vec::with_capacity(VALUE_HEAD_BYTES + self.lower.len());
        value.extend(self.extent.to_bytes());
        value.extend(self.timestamp.0.to_le_bytes());
        value.extend(self.page.0.to_le_bytes());
        value.extend((self.lower.len() as u16).to_le_bytes());
        value.extend(self.upper.as_ref().map_or(NO_UPPER_BYTES, |upper| upper.len() as u16).to_le_bytes());
        value.extend(&self.lower);
        value.extend(self.upper.iter().flatten());
        load.insert(key, value)
    }

    fn decode(value: &[u8]) -> Image {
        let (lower_bytes, upper_bytes) = (get_u16(value, 28), get_u16(value, 30));
        let (lower, upper) = value[VALUE_HEAD_BYTES..].split_at(usize::from(lower_bytes));
        let address = ExtentAddress::from_bits(get_u64(value, 0)).expect("stored by this process");
        Image {
            extent: ExtentRef { address, segment_use: SegmentUse(get_u64(value, 8)) },
            timestamp: Timestamp(get_u64(value, 16)),
            page: PageId(get_u32(value, 24)),
            lower: lower.to_vec(),
            upper: (upper_bytes != NO_UPPER_BYTES).then(|| upper.to_vec()),
        }
    }
}

fn head(keyspace: KeyspaceId, layer: Layer) -> Vec<u8> {
    let mut head = Vec::with_capacity(64);
    head.extend(keyspace.0.to_be_bytes());
    head.extend(layer.0.to_be_bytes());
    head
}

/// Appends a fence in a form whose bytes sort like the fences, whatever follows. Longer forms than a key of the scratch
/// database may have are cut off.
fn encode_fence(fence: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    for &byte in fence {
        out.push(byte);
        if byte == 0 {
            out.push(0xFF);
        }
    }
    out.extend([0, 0]);
    out.truncate(start + FENCE_BYTES_MAX);
}

/// The images of a layer in the order of their lower fences.
pub(super) struct Images {
    rows: Range,
    /// Newer images are left out.
    as_of: Option<Timestamp>,
    /// Images whose fences are equal, as far as the scratch database compares them.
    equal: VecDeque<Image>,
    /// The first image that follows, with the compared part of its key.
    next: Option<(Vec<u8>, Image)>,
}

impl Images {
    pub(super) fn new(images: &Keyspace, keyspace: KeyspaceId, layer: Layer, as_of: Option<Timestamp>) -> Images {
        let rows = images.range(head(keyspace, layer)..head(keyspace, Layer(layer.0 + 1)));
        Images { rows, as_of, equal: VecDeque::new(), next: None }
    }

    fn take(&mut self) -> Result<Option<(Vec<u8>, Image)>> {
        if self.next.is_some() {
            return Ok(self.next.take());
        }
        for row in &mut self.rows {
            let (key, value) = row?;
            let image = Image::decode(&value);
            if self.as_of.is_none_or(|as_of| image.timestamp <= as_of) {
                return Ok(Some((key[..key.len() - KEY_TAIL_BYTES].to_vec(), image)));
            }
        }
        Ok(None)
    }

    fn fill(&mut self) -> Result<()> {
        let Some((key, image)) = self.take()? else { return Ok(()) };
        let mut equal = vec![image];
        while let Some((next_key, image)) = self.take()? {
            if next_key != key {
                self.next = Some((next_key, image));
                break;
            }
            equal.push(image);
        }
        equal.sort_by(|left, right| left.lower.cmp(&right.lower).then(left.version().cmp(&right.version())));
        self.equal = equal.into();
        Ok(())
    }
}

impl Iterator for Images {
    type Item = Result<Image>;

    fn next(&mut self) -> Option<Result<Image>> {
        if self.equal.is_empty()
            && let Err(error) = self.fill()
        {
            return Some(Err(error));
        }
        self.equal.pop_front().map(Ok)
    }
}

/// A range of keys and the image that has its rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ImagePiece {
    pub(super) lower: Vec<u8>,
    pub(super) upper: Option<Vec<u8>>,
    /// `None` if no sound image has these keys.
    pub(super) image: Option<Image>,
}

/// Divides the keys of a layer into pieces: for each, the newest image that covers it.
pub(super) struct Cursor<I: Iterator<Item = Result<Image>>> {
    images: Peekable<I>,
    /// The images that cover keys from the position on. None of them is hidden altogether by a newer one.
    open: Vec<Image>,
    /// The first key that is in no piece yet; `None` at the end.
    position: Option<Vec<u8>>,
}

impl<I: Iterator<Item = Result<Image>>> Cursor<I> {
    /// Creates a cursor from the first key on.
    pub(super) fn new(images: I) -> Cursor<I> {
        Cursor { images: images.peekable(), open: Vec::new(), position: Some(Vec::new()) }
    }

    /// Returns the next piece. Pieces follow each other without gaps, from the first key to the last.
    pub(super) fn next_piece(&mut self) -> Result<Option<ImagePiece>> {
        let Some(lower) = self.position.take() else { return Ok(None) };
        while let Some(image) = self.next_if(|image| image.lower <= lower)? {
            self.open(image);
        }
        self.open.retain(|image| !image.ends_by(&lower));
        let newest = self.open.iter().max_by_key(|image| image.version()).cloned();
        let upper = match &newest {
            None => self.peek()?.map(|image| image.lower.clone()),
            Some(newest) => {
                let mut upper = newest.upper.clone();
                while let Some(image) = self.next_if(|image| !newest.ends_by(&image.lower))? {
                    if image.version() > newest.version() {
                        upper = Some(image.lower.clone());
                        self.open(image);
                        break;
                    }
                    self.open(image);
                }
                upper
            }
        };
        self.position.clone_from(&upper);
        Ok(Some(ImagePiece { lower, upper, image: newest }))
    }

    /// Adds an image to those that are open, unless a newer one hides it.
    fn open(&mut self, image: Image) {
        let is_hidden_by = |newer: &Image| {
            newer.version() > image.version()
                && newer.lower <= image.lower
                && newer.upper.as_ref().is_none_or(|end| image.upper.as_ref().is_some_and(|upper| upper <= end))
        };
        if !self.open.iter().any(is_hidden_by) {
            self.open.push(image);
        }
    }

    fn peek(&mut self) -> Result<Option<&Image>> {
        match self.images.peek() {
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(image)) => Ok(Some(image)),
            None => Ok(None),
        }
    }

    fn next_if(&mut self, is_wanted: impl Fn(&Image) -> bool) -> Result<Option<Image>> {
        if self.peek()?.is_some_and(is_wanted) { self.images.next().transpose() } else { Ok(None) }
    }
}

/// A range of keys that no image covers.
pub(super) struct Hole {
    pub(super) lower: Vec<u8>,
    pub(super) upper: Option<Vec<u8>>,
}

/// Returns the ranges of keys that no image of any of these layers covers.
pub(super) struct Holes {
    layers: Vec<Peekable<Images>>,
    /// All keys below are covered or have been returned; `None` at the end.
    position: Option<Vec<u8>>,
}

impl Holes {
    pub(super) fn new(layers: Vec<Images>, from: Vec<u8>) -> Holes {
        Holes { layers: layers.into_iter().map(Iterator::peekable).collect(), position: Some(from) }
    }

    /// Returns the next range.
    pub(super) fn next_hole(&mut self) -> Result<Option<Hole>> {
        while let Some(position) = &self.position {
            let mut first: Option<usize> = None;
            for index in 0..self.layers.len() {
                if let Some(Err(error)) = self.layers[index].peek() {
                    return Err(error.clone());
                }
                let Some(Ok(lower)) =
                    self.layers[index].peek().map(|image| image.as_ref().map(|image| image.lower.clone()))
                else {
                    continue;
                };
                let lowest = first.and_then(|first| self.layers[first].peek()).and_then(|image| image.as_ref().ok());
                if lowest.is_none_or(|lowest| lower < lowest.lower) {
                    first = Some(index);
                }
            }
            let Some(image) = first.and_then(|first| self.layers[first].next()).transpose()? else {
                return Ok(self.position.take().map(|lower| Hole { lower, upper: None }));
            };
            let hole =
                (image.lower > *position).then(|| Hole { lower: position.clone(), upper: Some(image.lower.clone()) });
            if !image.ends_by(position) {
                self.position = image.upper;
            }
            if hole.is_some() {
                return Ok(hole);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Random;

    fn image(lower: u8, upper: u8, timestamp: u64) -> Image {
        let segment_use = SegmentUse(timestamp + 1);
        Image {
            extent: ExtentRef { address: ExtentAddress::new(64 * (1 + timestamp), 64, segment_use), segment_use },
            timestamp: Timestamp(timestamp),
            page: PageId(1),
            lower: if lower == 0 { Vec::new() } else { vec![lower] },
            upper: (upper < 100).then(|| vec![upper]),
        }
    }

    /// Pieces cover all keys in order, and each has the newest image of its keys.
    #[test]
    fn the_newest_image_of_each_key_counts() {
        for seed in 0..2000 {
            let mut random = Random(seed);
            let mut images: Vec<Image> = (0..random.below(12))
                .map(|timestamp| {
                    let lower = random.below(99) as u8;
                    image(lower, lower + 1 + random.below(60) as u8, timestamp)
                })
                .collect();
            images.sort_by(|left, right| left.lower.cmp(&right.lower));
            let mut cursor = Cursor::new(images.iter().cloned().map(Ok));
            let mut position = Some(Vec::new());
            while let Some(piece) = cursor.next_piece().unwrap() {
                assert_eq!(Some(&piece.lower), position.as_ref());
                for key in 0..100u8 {
                    let key = if key == 0 { Vec::new() } else { vec![key] };
                    if key < piece.lower || piece.upper.as_ref().is_some_and(|upper| *upper <= key) {
                        continue;
                    }
                    let covers = |image: &&Image| image.lower <= key && !image.ends_by(&key);
                    let newest = images.iter().filter(covers).max_by_key(|image| image.timestamp);
                    assert_eq!(piece.image.as_ref(), newest, "seed {seed}, key {key:?}");
                }
                position = piece.upper;
            }
            assert_eq!(position, None);
        }
    }

    /// Fences sort like their encoded forms, whatever follows them.
    #[test]
    fn encoded_fences_sort_like_fences() {
        let mut random = Random(3);
        let mut fences: Vec<Vec<u8>> = (0..500)
            .map(|_| (0..random.below(5)).map(|_| [0, 1, 0xFE, 0xFF][random.below(4) as usize]).collect())
            .collect();
        fences.sort();
        let encoded = |fence: &Vec<u8>| {
            let mut out = Vec::new();
            encode_fence(fence, &mut out);
            out
        };
        for pair in fences.windows(2) {
            let [left, right] = [&pair[0], &pair[1]].map(encoded);
            assert_eq!(pair[0].cmp(&pair[1]), left.cmp(&right));
            if left != right {
                assert!([&left[..], &[0xFF; 16]].concat() < [&right[..], &[0; 16]].concat());
            }
        }
    }
}
