//! Tests that compare nodes with models.

use std::collections::BTreeMap;
use std::ops::Bound;

use drumlin_testing::Random;

use super::*;
use crate::format::extent::HEADER_BYTES;
use crate::format::node::{LARGE_REF_BYTES, LargeRef, inline_bytes_max};
use crate::format::{PageId, ValueId};

/// The first bytes of every page in these tests. They must stay the same, which shows that nodes do not touch them.
const EXTENT_HEADER: [u8; HEADER_BYTES] = [0xA5; HEADER_BYTES];

/// Kinds of keys.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Big-endian numbers: long shared prefixes, zero bytes.
    Numbers,
    /// Words over two letters: many equal heads, keys that are prefixes of other keys, the empty key.
    Letters,
    /// Only the bytes 0x00 and 0xFF, which expose bugs in padding and signed comparison.
    Extremes,
    /// A long common prefix followed by a few letters.
    Prefixed,
    /// Random bytes of any length, up to the maximum.
    Wild,
    /// Keys of the maximum length that differ near the end.
    Longest,
}

const SHAPES: [Shape; 6] =
    [Shape::Numbers, Shape::Letters, Shape::Extremes, Shape::Prefixed, Shape::Wild, Shape::Longest];

fn random_key(random: &mut Random, shape: Shape, page_bytes: usize) -> Vec<u8> {
    let longest = key_bytes_max(page_bytes);
    let letters = |random: &mut Random, length: usize, set: [u8; 2]| -> Vec<u8> {
        (0..length).map(|_| set[random.index(2)]).collect()
    };
    match shape {
        Shape::Numbers => (random.index(3000) as u64).to_be_bytes().to_vec(),
        Shape::Letters => {
            let length = random.index(12);
            letters(random, length, *b"ab")
        }
        Shape::Extremes => {
            let length = random.index(10);
            letters(random, length, [0x00, 0xFF])
        }
        Shape::Prefixed => {
            let mut key = b"tenant/0000017/orders/".to_vec();
            let length = random.index(10);
            key.extend(letters(random, length, *b"xy"));
            key
        }
        Shape::Wild => {
            let length = random.index(longest + 1);
            random.bytes(length)
        }
        Shape::Longest => {
            let mut key = vec![b'k'; longest];
            let varied = longest - 1 - random.index(8);
            key[varied..].fill_with(|| random.next() as u8 | 1);
            key[random.index(longest)] ^= random.one_in(4) as u8;
            key
        }
    }
}

/// An owned [`RowValue`].
#[derive(Clone, PartialEq, Eq, Debug)]
enum Value {
    Inline(Vec<u8>),
    Large(LargeRef),
}

impl Value {
    fn random(random: &mut Random, length_max: usize) -> Value {
        if random.one_in(8) {
            let (length, id) = (7 + random.index(1 << 20) as u64, ValueId(random.next()));
            let first_page = PageId(1 + random.index(1 << 30) as u32);
            return Value::Large(LargeRef { length, id, first_page, chunk_count: 7 });
        }
        let length = random.index(length_max + 1);
        Value::Inline(random.bytes(length))
    }

    fn as_row(&self) -> RowValue<'_> {
        match self {
            Value::Inline(value) => RowValue::Inline(value),
            Value::Large(reference) => RowValue::Large(*reference),
        }
    }
}

type Model = BTreeMap<Vec<u8>, Value>;

fn new_page(page_bytes: usize) -> Vec<u8> {
    // Start with arbitrary bytes: the contents of an unused page must not matter.
    let mut page = vec![0x5A; page_bytes];
    page[..HEADER_BYTES].copy_from_slice(&EXTENT_HEADER);
    page
}

fn new_leaf(page_bytes: usize, lower: Option<&[u8]>, upper: Option<&[u8]>) -> Vec<u8> {
    let mut page = new_page(page_bytes);
    LeafMut::init(&mut page, lower, upper);
    page
}

fn key_at(node: &Node<'_>, index: usize) -> Vec<u8> {
    let mut key = b"what was there before".to_vec();
    node.key_into(index, &mut key);
    assert_eq!([node.prefix(), node.key_suffix(index)].concat(), key);
    key
}

/// Asserts that a node passes [`check`], and has this level and these fences.
#[track_caller]
fn assert_sound(page: &[u8], level: u8, lower: Option<&[u8]>, upper: Option<&[u8]>) {
    assert_eq!(check(page), Ok(()));
    let node = Node::new(page);
    assert_eq!((node.level(), node.lower_fence(), node.upper_fence()), (level, lower, upper));
}

/// Inserts a row after all existing rows.
fn append(leaf: &mut LeafMut<'_>, key: &[u8], value: RowValue<'_>) -> Result<(), PageFull> {
    leaf.insert(leaf.as_leaf().len(), key, value)
}

/// Asserts that a leaf passes [`check`], contains exactly the model's rows, finds each of them, and uses exactly the
/// bytes that they need.
#[track_caller]
fn assert_leaf(page: &[u8], model: &Model, lower: Option<&[u8]>, upper: Option<&[u8]>) {
    assert_sound(page, 0, lower, upper);
    assert_eq!(page[..HEADER_BYTES], EXTENT_HEADER);
    let leaf = Leaf::new(page);
    assert_eq!(leaf.len(), model.len());
    let mut live_bytes = SLOTS_OFFSET + lower.map_or(0, <[u8]>::len) + upper.map_or(0, <[u8]>::len);
    for (index, (key, value)) in model.iter().enumerate() {
        assert_eq!(&key_at(&leaf, index), key);
        assert_eq!(leaf.value(index), value.as_row());
        let (bytes, suffix_bytes, stored) = leaf.row(index);
        assert_eq!((&bytes[..suffix_bytes], stored), (leaf.key_suffix(index), leaf.value(index)));
        assert!(if let RowValue::Inline(stored) = stored { bytes.ends_with(stored) } else { true });
        assert_eq!(leaf.search(key), Ok(index));
        let is_alike = |other: &usize| leaf.slot(*other).head() == leaf.slot(index).head();
        let alike = (0..=index).find(is_alike).unwrap();
        assert_eq!(leaf.compared_rows(key), Some([0, alike].map(|row| leaf.slot(row).row())));
        assert!(leaf.covers(key));
        assert!(leaf.compare_key(index, key).is_eq());
        live_bytes += 8 + key.len() - leaf.prefix().len() + 2 + value.as_row().stored_bytes();
    }
    assert_eq!(leaf.live_bytes(), live_bytes);
    assert_eq!(leaf.free_bytes(), page.len() - live_bytes);
}

/// Asserts that searching a leaf for any key, even one outside its fences, agrees with the model.
#[track_caller]
fn assert_search(page: &[u8], model: &Model, key: &[u8]) {
    let leaf = Leaf::new(page);
    let below = model.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key))).count();
    assert_eq!(leaf.lower_bound(key), below, "{key:?} in {leaf:?}");
    assert_eq!(leaf.search(key).is_ok(), model.contains_key(key));
    leaf.compared_rows(key);
    for (index, row) in model.keys().enumerate() {
        assert_eq!(leaf.compare_key(index, key), row.as_slice().cmp(key));
    }
}

/// Returns keys of a shape as fences, in order. Either or both may be absent.
fn random_fences(random: &mut Random, shape: Shape, page_bytes: usize) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let mut keys = [random_key(random, shape, page_bytes), random_key(random, shape, page_bytes)];
    keys.sort();
    let [lower, upper] = keys;
    match random.index(4) {
        0 => (None, None),
        1 => (Some(lower), None),
        2 if !upper.is_empty() => (None, Some(upper)),
        _ if lower < upper => (Some(lower), Some(upper)),
        _ => (None, None),
    }
}

/// After inserts, replacements and removals in any order, a leaf has the same rows as a map, for every page size, kind
/// of key and pair of fences. A change fails with `PageFull` if and only if the bytes do not fit, and then nothing has
/// changed.
#[test]
fn a_leaf_behaves_as_a_map() {
    let mut random = Random(1);
    for round in 0..240 {
        let page_bytes = [512, 512, 1024, 4096, 16_384, 65_536][random.index(6)];
        let shape = SHAPES[round % SHAPES.len()];
        let (lower, upper) = random_fences(&mut random, shape, page_bytes);
        let (lower, upper) = (lower.as_deref(), upper.as_deref());
        let mut page = new_leaf(page_bytes, lower, upper);
        let mut model = Model::new();
        let length_max = [4, 30, usize::MAX][random.index(3)];
        for step in 0..300 {
            let key = random_key(&mut random, shape, page_bytes);
            if !Leaf::new(&page).covers(&key) {
                assert_search(&page, &model, &key);
                continue;
            }
            let before = page.clone();
            let found = Leaf::new(&page).search(&key);
            let value = Value::random(&mut random, length_max.min(inline_bytes_max(page_bytes, key.len())));
            let bytes = value.as_row().stored_bytes();
            match found {
                Ok(index) if random.one_in(3) => {
                    LeafMut::new(&mut page).remove(index);
                    model.remove(&key);
                }
                Ok(index) => {
                    let leaf = Leaf::new(&page);
                    let fits = bytes <= leaf.free_bytes() + leaf.value(index).stored_bytes();
                    let result = LeafMut::new(&mut page).replace(index, value.as_row());
                    assert_eq!(result.is_ok(), fits);
                    if fits {
                        model.insert(key, value);
                    }
                }
                Err(index) => {
                    let fits = Leaf::new(&page).row_cost(key.len(), bytes) <= Leaf::new(&page).free_bytes();
                    let result = LeafMut::new(&mut page).insert(index, &key, value.as_row());
                    assert_eq!(result.is_ok(), fits);
                    if fits {
                        model.insert(key, value);
                    } else {
                        assert_eq!(page, before);
                    }
                }
            }
            if step % 8 == 0 {
                assert_leaf(&page, &model, lower, upper);
            }
        }
        assert_leaf(&page, &model, lower, upper);
        for _ in 0..50 {
            assert_search(&page, &model, &random_key(&mut random, shape, page_bytes));
        }
        assert_search(&page, &model, b"");
        assert_search(&page, &model, &[0xFF; 20]);
    }
}

/// A leaf with a fragmented heap can be filled to the last byte, and a growing value reuses the space of its old
/// version.
#[test]
fn fragmented_space_is_used_up() {
    let mut page = new_leaf(512, None, None);
    let mut leaf = LeafMut::new(&mut page);
    let value = |length: usize| RowValue::Inline(&[b'v'; 54][..length]);
    // 64 + 8 * (8 + 1 + 2 + 45) = 512.
    for key in b'a'..=b'h' {
        append(&mut leaf, &[key], value(45)).unwrap();
    }
    assert_eq!(leaf.as_leaf().free_bytes(), 0);
    assert_eq!(append(&mut leaf, b"i", value(0)), Err(PageFull));
    assert_eq!(leaf.replace(4, value(46)), Err(PageFull));
    // Removing two rows of 56 bytes frees space in three pieces: enough for a row of 65 bytes and for 9 more bytes of a
    // value, with 38 bytes left over.
    leaf.remove(1);
    leaf.remove(3);
    assert_eq!(append(&mut leaf, b"i", value(54)), Ok(()));
    assert_eq!(leaf.replace(0, value(54)), Ok(()));
    assert_eq!(leaf.as_leaf().free_bytes(), 38);
    leaf.replace(2, value(18)).unwrap();
    assert_eq!(leaf.insert(1, b"b", value(54)), Ok(()));
    assert_eq!(leaf.as_leaf().free_bytes(), 0);
    assert_eq!(check(&page), Ok(()));
}

/// Adjacent leaves, as in a tree of two levels, with fences from their splits.
struct Row {
    page_bytes: usize,
    leaves: Vec<Vec<u8>>,
    splits: usize,
}

impl Row {
    fn new(page_bytes: usize) -> Row {
        Row { page_bytes, leaves: vec![new_leaf(page_bytes, None, None)], splits: 0 }
    }

    fn position(&self, key: &[u8]) -> usize {
        self.leaves.partition_point(|page| Leaf::new(page).upper_fence().is_some_and(|upper| upper <= key))
    }

    /// Splits leaf `position` as planned by [`Leaf::split_for`], checks the result, and returns the index of the leaf
    /// that `change` belongs to.
    fn split(&mut self, position: usize, change: &LeafChange<'_>) -> usize {
        let mut right = new_page(self.page_bytes);
        let left = &mut self.leaves[position];
        let split = Leaf::new(left).split_for(change);
        assert_shortest(&Leaf::new(left), change, &split);
        LeafMut::new(left).split_to(split.at, &split.separator, &mut right);
        assert_eq!(check(left), Ok(()));
        assert_eq!(check(&right), Ok(()));
        self.leaves.insert(position + 1, right);
        self.splits += 1;
        position + usize::from(split.goes_right)
    }

    fn put(&mut self, key: &[u8], value: &Value) {
        let mut position = self.position(key);
        for splits in 0.. {
            let page = &mut self.leaves[position];
            let leaf = Leaf::new(page);
            assert!(leaf.covers(key));
            let value_bytes = value.as_row().stored_bytes();
            let change = match leaf.search(key) {
                Ok(index) => match LeafMut::new(page).replace(index, value.as_row()) {
                    Ok(()) => break,
                    Err(PageFull) => LeafChange::Replace { index, value_bytes },
                },
                Err(index) => match LeafMut::new(page).insert(index, key, value.as_row()) {
                    Ok(()) => break,
                    Err(PageFull) => LeafChange::Insert { index, key, value_bytes },
                },
            };
            assert!(splits < 3, "a change takes more than three splits");
            position = self.split(position, &change);
        }
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let position = self.position(key);
        let page = &mut self.leaves[position];
        let found = Leaf::new(page).search(key);
        if let Ok(index) = found {
            LeafMut::new(page).remove(index);
        }
        found.is_ok()
    }

    /// Merges leaf `position` with the next one if they fit.
    fn merge(&mut self, position: usize) {
        let Some([left, right]) = self.leaves.get_disjoint_mut([position, position + 1]).ok() else {
            return;
        };
        let merged_bytes = Leaf::new(left).merged_bytes(&Leaf::new(right));
        let before = left.clone();
        let merged = LeafMut::new(left).merge_from(&Leaf::new(right));
        assert_eq!(merged.is_ok(), merged_bytes <= self.page_bytes);
        if merged.is_ok() {
            assert_eq!(Leaf::new(left).live_bytes(), merged_bytes);
            assert_eq!(check(left), Ok(()));
            self.leaves.remove(position + 1);
        } else {
            assert_eq!(*left, before);
        }
    }

    #[track_caller]
    fn assert_holds(&self, model: &Model) {
        let mut lower: Option<Vec<u8>> = None;
        for page in &self.leaves {
            let leaf = Leaf::new(page);
            let upper = leaf.upper_fence().map(<[u8]>::to_vec);
            let from = lower.as_deref().map_or(Bound::Unbounded, Bound::Included);
            let to = upper.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let part = model.range::<[u8], _>((from, to)).map(|(key, value)| (key.clone(), value.clone())).collect();
            assert_leaf(page, &part, lower.as_deref(), upper.as_deref());
            lower = upper;
        }
        assert_eq!(lower, None);
    }

    /// Returns the fraction of the pages' bytes that is in use.
    fn fill(&self) -> f64 {
        let live: usize = self.leaves.iter().map(|page| Leaf::new(page).live_bytes()).sum();
        live as f64 / (self.leaves.len() * self.page_bytes) as f64
    }
}

/// Asserts that a split's separator is greater than all keys that stay, that it is not greater than any key that moves,
/// and that every shorter separator would violate one of these conditions.
#[track_caller]
fn assert_shortest(leaf: &Leaf<'_>, change: &LeafChange<'_>, split: &Split) {
    let mut keys: Vec<Vec<u8>> = (0..leaf.len()).map(|index| key_at(leaf, index)).collect();
    let mut at = split.at;
    let index = match change {
        LeafChange::Insert { index, key, .. } => {
            keys.insert(*index, key.to_vec());
            at += usize::from(!split.goes_right);
            *index
        }
        LeafChange::Replace { index, .. } => *index,
    };
    assert_eq!(split.goes_right, index >= at);
    let (left, right) = (&keys[at - 1], &keys[at]);
    assert!(*left < split.separator && split.separator <= *right);
    // A shorter string that is not greater than `right` is at most the prefix of `right` with the same length, and that
    // prefix is not greater than `left`.
    assert!(right[..split.separator.len() - 1] <= left[..]);
}

/// Leaves that are split and merged have the same rows as a map, for every kind of key and rows of all sizes. No change
/// requires more than three splits.
#[test]
fn splits_and_merges_keep_every_row() {
    let mut random = Random(2);
    for round in 0..180 {
        let shape = SHAPES[round % SHAPES.len()];
        let page_bytes = [512, 1024, 4096][random.index(3)];
        let length_max = [4, 40, usize::MAX][random.index(3)];
        let mut row = Row::new(page_bytes);
        let mut model = Model::new();
        let mut shrinking = false;
        for step in 0..600 {
            let key = random_key(&mut random, shape, page_bytes);
            if random.index(10) < if shrinking { 8 } else { 2 } {
                let key = model.range(key..).next().map(|(key, _)| key.clone()).unwrap_or_default();
                assert_eq!(row.remove(&key), model.remove(&key).is_some());
            } else {
                let value = Value::random(&mut random, length_max.min(inline_bytes_max(page_bytes, key.len())));
                row.put(&key, &value);
                model.insert(key, value);
            }
            if random.one_in(if shrinking { 3 } else { 20 }) {
                row.merge(random.index(row.leaves.len()));
            }
            shrinking ^= random.one_in(200);
            if step % 60 == 0 {
                row.assert_holds(&model);
            }
        }
        row.assert_holds(&model);
        while let Some((key, _)) = model.pop_first() {
            assert!(row.remove(&key));
            row.merge(0);
        }
        while row.leaves.len() > 1 {
            row.merge(0);
        }
        row.assert_holds(&model);
    }
}

/// A leaf can be split before any row and after the last. A merge undoes the split.
#[test]
fn a_leaf_splits_at_every_point() {
    let mut random = Random(3);
    for round in 0..120 {
        let shape = SHAPES[round % SHAPES.len()];
        let page_bytes = [512, 4096][round % 2];
        let (lower, upper) = random_fences(&mut random, shape, page_bytes);
        let mut page = new_leaf(page_bytes, lower.as_deref(), upper.as_deref());
        let mut model = Model::new();
        for _ in 0..40 {
            let key = random_key(&mut random, shape, page_bytes);
            let value = Value::random(&mut random, 10);
            let leaf = Leaf::new(&page);
            // Fill the leaf at most halfway, so that any fence fits.
            let fits = leaf.live_bytes() + key.len() + 40 < page_bytes / 2;
            if let (true, true, Err(index)) = (leaf.covers(&key), fits, leaf.search(&key)) {
                LeafMut::new(&mut page).insert(index, &key, value.as_row()).unwrap();
                model.insert(key, value);
            }
        }
        LeafMut::new(&mut page).set_newest(Timestamp(77));
        let keys: Vec<_> = model.keys().cloned().collect();
        for at in 0..=keys.len() {
            let separator = match at {
                0 => keys.first().cloned().unwrap_or_else(|| random_key(&mut random, shape, page_bytes)),
                at if at == keys.len() => [&keys[at - 1][..], &[0]].concat(),
                at => separator_between(&keys[at - 1], &keys[at]).to_vec(),
            };
            let separator = &separator[..separator.len().min(key_bytes_max(page_bytes))];
            if !Leaf::new(&page).covers(separator)
                || lower.as_deref() == Some(separator)
                || at > 0 && keys[at - 1].as_slice() >= separator
            {
                continue;
            }
            let (mut left, mut right) = (page.clone(), new_page(page_bytes));
            LeafMut::new(&mut left).split_to(at, separator, &mut right);
            let mut right_model = model.clone();
            let left_model: Model = keys[..at].iter().map(|key| right_model.remove_entry(key).unwrap()).collect();
            assert_leaf(&left, &left_model, lower.as_deref(), Some(separator));
            assert_leaf(&right, &right_model, Some(separator), upper.as_deref());
            assert_eq!(Leaf::new(&left).newest(), Timestamp(77));
            assert_eq!(Leaf::new(&right).newest(), Timestamp(77));
            LeafMut::new(&mut right).set_newest(Timestamp(78));
            assert!(Leaf::new(&left).can_merge(&Leaf::new(&right)));
            LeafMut::new(&mut left).merge_from(&Leaf::new(&right)).unwrap();
            assert_leaf(&left, &model, lower.as_deref(), upper.as_deref());
            assert_eq!(Leaf::new(&left).newest(), Timestamp(78));
        }
    }
}

fn fill_after(keys: impl Iterator<Item = u64>) -> f64 {
    let mut row = Row::new(4096);
    let mut model = Model::new();
    for key in keys {
        let value = Value::Inline(vec![7; 60]);
        row.put(&key.to_be_bytes(), &value);
        model.insert(key.to_be_bytes().to_vec(), value);
    }
    row.assert_holds(&model);
    row.fill()
}

/// Sorted loads in either direction leave full pages, except for the bytes saved by the longer prefix that a page gets
/// once both fences are known (6 of 78 bytes per row here). Random loads leave pages two thirds full, as usual in
/// B-trees.
#[test]
fn sorted_loads_fill_their_pages() {
    assert!(fill_after(0..20_000) > 0.9);
    assert!(fill_after((0..20_000).rev()) > 0.9);
    let mut random = Random(4);
    let fill = fill_after((0..20_000).map(|_| random.next()));
    assert!((0.64..0.76).contains(&fill), "{fill}");
}

/// `common_bytes` is correct across word boundaries, and so are the separators computed with it.
#[test]
fn common_bytes_are_counted() {
    let mut random = Random(5);
    for _ in 0..2000 {
        let length = random.index(40);
        let mut a = random.bytes(length);
        let mut b = a.clone();
        let common = random.index(length + 1);
        if common < length {
            b[common] ^= 1 << random.index(8);
        } else if random.one_in(2) {
            let more = random.index(9);
            b.extend(random.bytes(more));
        }
        assert_eq!(common_bytes(&a, &b), common);
        assert_eq!(common_bytes(&b, &a), common);
        if a > b {
            std::mem::swap(&mut a, &mut b);
        }
        if a < b {
            let separator = separator_between(&a, &b);
            assert!(*a < *separator && *separator <= *b && separator[..separator.len() - 1] <= a[..]);
        }
    }
}

/// The expected contents of an inner node: for each child its separator (empty for the first child) and page.
type Children = Vec<(Vec<u8>, PageId)>;

#[track_caller]
fn assert_inner(page: &[u8], level: u8, children: &Children, lower: Option<&[u8]>, upper: Option<&[u8]>) {
    assert_sound(page, level, lower, upper);
    assert_eq!(page[..HEADER_BYTES], EXTENT_HEADER);
    let inner = Inner::new(page);
    assert_eq!(inner.len(), children.len());
    let mut fence = Vec::new();
    for (index, (separator, child)) in children.iter().enumerate() {
        assert_eq!(inner.child(index), *child);
        let child_lower = if index == 0 { lower } else { Some(&separator[..]) };
        assert_eq!(inner.child_lower_into(index, &mut fence).then_some(&fence[..]), child_lower);
        let child_upper = children.get(index + 1).map(|next| &next.0[..]).or(upper);
        assert_eq!(inner.child_upper_into(index, &mut fence).then_some(&fence[..]), child_upper);
        if index > 0 {
            inner.separator_into(index, &mut fence);
            assert_eq!(fence, *separator);
            assert_eq!(inner.child_for(separator), index);
            assert_eq!(inner.child_below(separator), index - 1);
        }
    }
}

#[track_caller]
fn assert_descent(page: &[u8], children: &Children, key: &[u8]) {
    let inner = Inner::new(page);
    let not_above = children[1..].iter().filter(|child| &child.0[..] <= key).count();
    let below = children[1..].iter().filter(|child| &child.0[..] < key).count();
    assert_eq!(inner.child_for(key), not_above);
    assert_eq!(inner.child_below(key), below);
}

/// An inner node has the same children as a list after inserts and removals, and descents choose the correct child.
/// Splits at every point, and merges, keep all children.
#[test]
fn an_inner_node_behaves_as_a_list() {
    let mut random = Random(6);
    for round in 0..180 {
        let shape = SHAPES[round % SHAPES.len()];
        let page_bytes = [512, 1024, 4096, 65_536][random.index(4)];
        let (lower, upper) = random_fences(&mut random, shape, page_bytes);
        let (lower, upper) = (lower.as_deref(), upper.as_deref());
        let level = 1 + random.index(5) as u8;
        let mut page = new_page(page_bytes);
        InnerMut::init(&mut page, level, lower, upper, PageId(1));
        let mut children: Children = vec![(Vec::new(), PageId(1))];
        for number in 2..250 {
            let key = random_key(&mut random, shape, page_bytes);
            assert_descent(&page, &children, &key);
            let mut inner = InnerMut::new(&mut page);
            let index = inner.as_inner().child_for(&key) + 1;
            let taken = index > 1 && children[index - 1].0 == key;
            if taken && random.one_in(2) {
                inner.remove_child(index - 1);
                children.remove(index - 1);
            } else if !taken && inner.as_inner().covers(&key) && lower != Some(&key[..]) {
                let fits = inner.as_inner().fits_separator(key.len());
                assert_eq!(inner.insert_child(index, &key, PageId(number)).is_ok(), fits);
                if fits {
                    children.insert(index, (key, PageId(number)));
                }
            }
        }
        assert_inner(&page, level, &children, lower, upper);

        for at in 1..children.len() {
            let (mut left, mut right, mut separator) = (page.clone(), new_page(page_bytes), Vec::new());
            // In a full node, only the proposed split point is sure to leave room for the new fences.
            let proposed = Inner::new(&page).split_index();
            if at != proposed && Inner::new(&page).live_bytes() > page_bytes / 2 {
                continue;
            }
            InnerMut::new(&mut left).split_to(at, &mut right, &mut separator);
            assert_eq!(separator, children[at].0);
            let left_children = children[..at].to_vec();
            let mut right_children = children[at..].to_vec();
            right_children[0].0.clear();
            assert_inner(&left, level, &left_children, lower, Some(&separator));
            assert_inner(&right, level, &right_children, Some(&separator), upper);
            assert_eq!(Inner::new(&left).merged_bytes(&Inner::new(&right)), Inner::new(&page).live_bytes());
            InnerMut::new(&mut left).merge_from(&Inner::new(&right)).unwrap();
            assert_inner(&left, level, &children, lower, upper);
        }
    }
}

/// Two full inner nodes do not merge, and the attempt changes nothing.
#[test]
fn full_inner_nodes_do_not_merge() {
    let mut pages = [new_page(512), new_page(512)];
    InnerMut::init(&mut pages[0], 1, None, Some(b"m"), PageId(1));
    InnerMut::init(&mut pages[1], 1, Some(b"m"), None, PageId(2));
    for (page, start) in pages.iter_mut().zip([b'a', b'n']) {
        for number in 0..20 {
            InnerMut::new(page).insert_child(usize::from(number) + 1, &[start, number], PageId(9)).unwrap();
        }
    }
    let [left, right] = &mut pages;
    let before = left.clone();
    assert!(!Inner::new(left).can_merge(&Inner::new(right)));
    assert_eq!(InnerMut::new(left).merge_from(&Inner::new(right)), Err(PageFull));
    assert_eq!(*left, before);
}

/// With fences and separators of any length, a node with one child has room for a separator, and a node with more
/// children can be split. A sorted load leaves full nodes.
#[test]
fn inner_nodes_always_split_in_time() {
    let mut random = Random(7);
    for (shape, page_bytes) in SHAPES.iter().flat_map(|shape| [(*shape, 512), (*shape, 4096)]) {
        let (mut nodes, mut separators) = (vec![new_page(page_bytes)], BTreeMap::new());
        InnerMut::init(&mut nodes[0], 1, None, None, PageId(1));
        for number in 2..800 {
            let key = random_key(&mut random, shape, page_bytes);
            let mut position =
                nodes.partition_point(|page| Inner::new(page).upper_fence().is_some_and(|upper| upper <= &key[..]));
            if key.is_empty() || separators.contains_key(&key) {
                continue;
            }
            separators.insert(key.clone(), number);
            while !Inner::new(&nodes[position]).fits_separator(key.len()) {
                let (mut right, mut separator) = (new_page(page_bytes), Vec::new());
                let at = Inner::new(&nodes[position]).split_index();
                InnerMut::new(&mut nodes[position]).split_to(at, &mut right, &mut separator);
                nodes.insert(position + 1, right);
                position += usize::from(separator <= key);
            }
            let index = Inner::new(&nodes[position]).child_for(&key) + 1;
            InnerMut::new(&mut nodes[position]).insert_child(index, &key, PageId(number)).unwrap();
        }
        let mut children = vec![PageId(1)];
        children.extend(separators.values().map(|number| PageId(*number)));
        let found: Vec<PageId> = nodes
            .iter()
            .flat_map(|page| {
                assert_eq!(check(page), Ok(()));
                (0..Inner::new(page).len()).map(|index| Inner::new(page).child(index)).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(found, children);
    }
    for descending in [false, true] {
        let mut nodes = vec![new_page(4096)];
        InnerMut::init(&mut nodes[0], 1, None, None, PageId(1));
        for number in 0..4000u64 {
            let key = if descending { 9999 - number } else { number + 1 }.to_be_bytes();
            let mut position = if descending { 0 } else { nodes.len() - 1 };
            if !Inner::new(&nodes[position]).fits_separator(8) {
                let (mut right, mut separator) = (new_page(4096), Vec::new());
                let at = Inner::new(&nodes[position]).split_index();
                InnerMut::new(&mut nodes[position]).split_to(at, &mut right, &mut separator);
                nodes.insert(position + 1, right);
                position += usize::from(!descending);
            }
            let index = Inner::new(&nodes[position]).child_for(&key) + 1;
            InnerMut::new(&mut nodes[position]).insert_child(index, &key, PageId(7)).unwrap();
        }
        // All nodes were full when they were split. They were at the edge of the tree then, so each key was stored with
        // its current prefix.
        let taken = |node: Inner<'_>| node.live_bytes() + (node.len() - 1) * node.prefix_bytes();
        let taken: usize = nodes.iter().map(|page| taken(Inner::new(page))).sum();
        assert!(taken as f64 / (nodes.len() * 4096) as f64 > 0.9);
        assert!(4000 / nodes.len() >= 190, "4000 children take {} nodes", nodes.len());
    }
}

/// Returns the numbers of children of full 4 KiB inner nodes. The leaves beneath them have 28 rows each and arrive in
/// random order. Omits nodes without both fences: the first and the last of each level.
fn children_of_full_nodes(leaves: usize, key: impl Fn(usize) -> Vec<u8>) -> Vec<usize> {
    let mut random = Random(9);
    let mut keys: Vec<Vec<u8>> = (0..leaves * 28).map(key).collect();
    keys.sort();
    let mut separators: Vec<&[u8]> =
        (1..leaves).map(|leaf| separator_between(&keys[leaf * 28 - 1], &keys[leaf * 28])).collect();
    let mut counts = Vec::new();
    let mut nodes = vec![new_page(4096)];
    InnerMut::init(&mut nodes[0], 1, None, None, PageId(1));
    while !separators.is_empty() {
        let separator = separators.swap_remove(random.index(separators.len()));
        let mut position =
            nodes.partition_point(|page| Inner::new(page).upper_fence().is_some_and(|at| at <= separator));
        let node = Inner::new(&nodes[position]);
        if !node.fits_separator(separator.len()) {
            if node.lower_fence().is_some() && node.upper_fence().is_some() {
                counts.push(node.len());
            }
            let (mut right, mut middle) = (new_page(4096), Vec::new());
            let at = node.split_index();
            InnerMut::new(&mut nodes[position]).split_to(at, &mut right, &mut middle);
            nodes.insert(position + 1, right);
            position += usize::from(&middle[..] <= separator);
        }
        let index = Inner::new(&nodes[position]).child_for(separator) + 1;
        InnerMut::new(&mut nodes[position]).insert_child(index, separator, PageId(7)).unwrap();
    }
    counts
}

/// With 16-byte keys of various kinds, 4 KiB inner nodes have at least 230 children on average. This matters because
/// every read passes through one node of each level, and only a few nodes stay in the processor's cache. Nodes have
/// fewer children if their keys have little in common, as with numbers around 100,000.
#[test]
fn inner_nodes_have_many_children() {
    fn scattered(row: usize) -> u64 {
        (row as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
    type Key = fn(usize) -> Vec<u8>;
    let shapes: [(&str, Key); 3] = [
        ("numbers as text", |row| format!("user{row:012}").into_bytes()),
        ("hashes as text", |row| format!("{:016x}", scattered(row)).into_bytes()),
        ("hashes", |row| (u128::from(scattered(row)) << 64 | row as u128).to_be_bytes().to_vec()),
    ];
    for (shape, key) in shapes {
        let counts = children_of_full_nodes(6000, key);
        assert!(counts.len() >= 10, "{shape}: {} nodes became full", counts.len());
        let mean = counts.iter().sum::<usize>() / counts.len();
        assert!(
            mean >= 230 && counts.iter().all(|&count| count >= 220),
            "{shape}: nodes of {counts:?} children are full"
        );
    }
}

/// Calls the functions of a leaf or an inner node, including those that change it, on a page that passes [`check`].
fn exercise(page: &[u8], random: &mut Random) {
    let node = Node::new(page);
    let mut key = Vec::new();
    for index in 0..node.len() {
        node.key_into(index, &mut key);
        assert!(node.compare_key(index, &key).is_eq());
    }
    let page_bytes = page.len();
    let probes = [Vec::new(), vec![0xFF; 9], key, random_key(random, Shape::Letters, page_bytes)];
    let mut copy = page.to_vec();
    let mut other = new_page(page_bytes);
    if node.level() == 0 {
        let leaf = Leaf::new(page);
        let _ = format!("{leaf:?}");
        for probe in &probes {
            let _ = leaf.search(probe);
            if !leaf.covers(probe) || probe.len() > key_bytes_max(page_bytes) {
                continue;
            }
            let value = [1; 20];
            if let Err(index) = leaf.search(probe) {
                if LeafMut::new(&mut copy).insert(index, probe, RowValue::Inline(&value)).is_ok() {
                    assert_eq!(check(&copy), Ok(()));
                    LeafMut::new(&mut copy).remove(index);
                } else if !leaf.is_empty() {
                    let split = leaf.split_for(&LeafChange::Insert { index, key: probe, value_bytes: value.len() });
                    LeafMut::new(&mut copy).split_to(split.at, &split.separator, &mut other);
                    assert_eq!((check(&copy), check(&other)), (Ok(()), Ok(())));
                    LeafMut::new(&mut copy).merge_from(&Leaf::new(&other)).unwrap();
                }
            }
            assert_eq!(check(&copy), Ok(()));
        }
        for index in 0..leaf.len() {
            let value = [2; 30];
            let _ = LeafMut::new(&mut copy).replace(index, RowValue::Inline(&value));
            assert_eq!(check(&copy), Ok(()));
        }
        while !Leaf::new(&copy).is_empty() {
            LeafMut::new(&mut copy).remove(0);
            assert_eq!(check(&copy), Ok(()));
        }
    } else {
        let inner = Inner::new(page);
        let _ = format!("{inner:?}");
        for probe in &probes {
            let _ = (inner.child_for(probe), inner.child_below(probe));
            let index = inner.child_for(probe) + 1;
            let free = !probe.is_empty() && inner.covers(probe) && inner.lower_fence() != Some(probe);
            if free && inner.find(1, probe).is_err() && probe.len() <= key_bytes_max(page_bytes) {
                let _ = InnerMut::new(&mut copy).insert_child(index, probe, PageId(3)).map(|()| {
                    assert_eq!(check(&copy), Ok(()));
                    InnerMut::new(&mut copy).remove_child(index);
                });
            }
            assert_eq!(check(&copy), Ok(()));
        }
        if inner.len() > 1 {
            let (at, mut separator) = (inner.split_index(), Vec::new());
            InnerMut::new(&mut copy).split_to(at, &mut other, &mut separator);
            assert_eq!((check(&copy), check(&other)), (Ok(()), Ok(())));
        }
    }
}

/// [`check`] never panics, for any bytes. If a page passes it, no other function panics either.
#[test]
fn damaged_pages_are_recognised() {
    let mut random = Random(8);
    let (mut passed, mut failed) = (0, 0);
    for round in 0..400 {
        let shape = SHAPES[round % SHAPES.len()];
        let page_bytes = [512, 1024, 4096][random.index(3)];
        let (lower, upper) = random_fences(&mut random, shape, page_bytes);
        let mut page = new_leaf(page_bytes, lower.as_deref(), upper.as_deref());
        let is_leaf = random.one_in(2);
        if !is_leaf {
            InnerMut::init(&mut page, 1, lower.as_deref(), upper.as_deref(), PageId(1));
        }
        for _ in 0..20 {
            let key = random_key(&mut random, shape, page_bytes);
            let node = Node::new(&page);
            if !node.covers(&key) || node.lower_fence() == Some(&key) {
                continue;
            }
            if is_leaf {
                if let Err(index) = Leaf::new(&page).search(&key) {
                    let value = Value::random(&mut random, 20);
                    let _ = LeafMut::new(&mut page).insert(index, &key, value.as_row());
                }
                if random.one_in(4) && !Node::new(&page).is_empty() {
                    LeafMut::new(&mut page).remove(0);
                }
            } else if let Err(index) = Inner::new(&page).find(1, &key) {
                let _ = InnerMut::new(&mut page).insert_child(index, &key, PageId(2));
            }
        }
        assert_eq!(check(&page), Ok(()));
        exercise(&page, &mut random);
        for _ in 0..150 {
            let mut damaged = page.clone();
            for _ in 0..=random.index(3) {
                // Half of the damage is in the header and the first slots, where it does the most harm.
                let end = if random.one_in(2) { SLOTS_OFFSET + 24 } else { page_bytes };
                let at = HEADER_BYTES + random.index(end - HEADER_BYTES);
                damaged[at] = match random.index(3) {
                    0 => random.next() as u8,
                    1 => damaged[at] ^ 1 << random.index(8),
                    _ => damaged[at].wrapping_add(1),
                };
            }
            if check(&damaged).is_ok() {
                passed += 1;
                exercise(&damaged, &mut random);
            } else {
                failed += 1;
            }
        }
        let mut noise = random.bytes(page_bytes);
        noise[LEVEL_OFFSET] &= 1;
        assert!(check(&noise).is_err());
    }
    assert!(passed > 1000 && failed > 1000, "{passed} passed, {failed} failed");
    for length in [0, 1, 63, 64, 256, 511, 513, 131_072] {
        assert_eq!(check(&vec![0; length]), Err(NodeError::PageBytes(length)));
    }
}

/// Each kind of damage has an error of its own.
#[test]
fn node_errors_are_named() {
    let mut page = new_leaf(512, Some(b"kb"), Some(b"kx"));
    for key in [b"kd", b"kf", b"kh"] {
        append(&mut LeafMut::new(&mut page), key, RowValue::Inline(b"value")).unwrap();
    }
    assert_sound(&page, 0, Some(b"kb"), Some(b"kx"));
    let row = Node::new(&page).slot(1).row();
    let with = |offset: usize, value: u16| {
        let mut damaged = page.clone();
        put_u16(&mut damaged, offset, value);
        check(&damaged)
    };
    assert_eq!(with(SLOT_COUNT_OFFSET, 60), Err(NodeError::Heap));
    assert_eq!(with(SLOT_COUNT_OFFSET, 4), Err(NodeError::RowBounds(3)));
    assert_eq!(with(SLOT_COUNT_OFFSET, 2), Err(NodeError::Garbage));
    assert_eq!(with(LOWER_BYTES_OFFSET, 129), Err(NodeError::FenceBytes));
    assert_eq!(with(PREFIX_BYTES_OFFSET, 0), Err(NodeError::Prefix));
    assert_eq!(with(SHARED_BYTES_OFFSET, 1), Err(NodeError::RowShared(0)));
    assert_eq!(with(slot_offset(1) + SLOT_ROW_OFFSET, 511), Err(NodeError::RowBounds(1)));
    assert_eq!(
        with(slot_offset(1) + SLOT_ROW_OFFSET, Node::new(&page).slot(0).row() as u16),
        Err(NodeError::RowOverlap(1))
    );
    assert_eq!(with(slot_offset(1) + SLOT_HEAD_OFFSET + 2, 0), Err(NodeError::RowHead(1)));
    assert_eq!(with(row + 1, 300), Err(NodeError::RowValue(1)));
    assert_eq!(with(200, 1), Err(NodeError::Unclean));
    assert_eq!(with(510, u16::from_le_bytes(*b"ky")), Err(NodeError::FenceOrder));

    let mut swapped = page.clone();
    let (first, second) = (Node::new(&page).slot(0), Node::new(&page).slot(1));
    NodeMut { page: &mut swapped }.set_slot(0, second);
    NodeMut { page: &mut swapped }.set_slot(1, first);
    assert_eq!(check(&swapped), Err(NodeError::RowOrder(1)));
    let mut outside = page.clone();
    outside[Node::new(&page).slot(2).row()] = b'z';
    outside[slot_offset(2) + 3] = b'z';
    assert_eq!(check(&outside), Err(NodeError::RowOutside(2)));
    let mut childless = page.clone();
    childless[LEVEL_OFFSET] = 1;
    put_u16(&mut childless, SLOT_COUNT_OFFSET, 0);
    assert_eq!(check(&childless), Err(NodeError::Childless));
    InnerMut::init(&mut childless, 1, None, None, PageId(7));
    let child = Node::new(&childless).slot(0).row();
    childless[child..child + CHILD_BYTES].fill(0);
    assert_eq!(check(&childless), Err(NodeError::RowChild(0)));
    let names = |length: u64, first_page: u32, chunk_count: u32| {
        let mut leaf = new_leaf(512, None, None);
        let reference = LargeRef { length, id: ValueId(9), first_page: PageId(first_page), chunk_count };
        append(&mut LeafMut::new(&mut leaf), b"k", RowValue::Large(reference)).unwrap();
        check(&leaf)
    };
    assert_eq!(names(100_000, 1, 2), Ok(()));
    let no_values = [
        (100_000, 0, 2),
        (100_000, 1, 0),
        (0, 1, 0),
        (1, 1, 2),
        (3 << 20, 1, 2),
        (u64::MAX, 1, 2),
        (u64::MAX, 1, u32::MAX - 1),
        (100_000, u32::MAX, 2),
        (100_000, u32::MAX - 1, 2),
    ];
    for (length, first_page, chunk_count) in no_values {
        assert_eq!(
            names(length, first_page, chunk_count),
            Err(NodeError::RowReference(0)),
            "{length} {first_page} {chunk_count}"
        );
    }
    assert_eq!(
        LARGE_REF_BYTES,
        LargeRef { length: 1, id: ValueId(2), first_page: PageId(3), chunk_count: 4 }.to_bytes().len()
    );
}
