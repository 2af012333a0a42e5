//! Key ranges as arguments.

use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys: `..`, `"a".."b"`, `[0, 1]..=[0, 9]`, `id.to_be_bytes()..`, or a pair of [`Bound`]s. A key is
/// anything that has bytes (`AsRef<[u8]>`). Both ends of a range have the same type, so write `&b"a"[..]..b"abc"` for
/// byte strings of different lengths. A range whose end is before its start is empty.
///
/// The engine has its own trait because with [`RangeBounds`], the compiler could not infer the key type of the `..` in
/// `range(..)`.
///
/// ```
/// use std::ops::Bound;
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// let k = db.keyspace("k")?;
/// for key in ["a", "ab", "b"] {
///     k.insert(key, "")?;
/// }
/// assert_eq!(k.count(..)?, 3);
/// assert_eq!(k.count("a".."b")?, 2);
/// assert_eq!(k.count(..=b"ab")?, 2);
/// assert_eq!(k.count((Bound::Excluded("a"), Bound::Unbounded))?, 2);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a range of keys",
    note = "keys are anything that implements `AsRef<[u8]>`, such as `&str`, `[u8; 8]` and `Vec<u8>`",
    note = "for numbers, give their bytes: `1u64.to_be_bytes()..`"
)]
pub trait KeyRange {
    /// Returns the start bound and the end bound.
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>);
}

/// Returns the bounds of one of the standard library's ranges.
fn bytes<'r, K: AsRef<[u8]> + 'r>(range: &'r impl RangeBounds<K>) -> (Bound<&'r [u8]>, Bound<&'r [u8]>) {
    (range.start_bound().map(AsRef::as_ref), range.end_bound().map(AsRef::as_ref))
}

impl KeyRange for RangeFull {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

impl<K: AsRef<[u8]>> KeyRange for Range<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        bytes(self)
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeInclusive<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        bytes(self)
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeFrom<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        bytes(self)
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeTo<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        bytes(self)
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeToInclusive<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        bytes(self)
    }
}

impl<K: AsRef<[u8]>> KeyRange for (Bound<K>, Bound<K>) {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        bytes(self)
    }
}

impl<R: KeyRange + ?Sized> KeyRange for &R {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (**self).key_bounds()
    }
}

/// A scan's bounds, as copies of the caller's keys.
pub(super) type OwnedBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The bounds of all keys.
pub(super) const ALL: OwnedBounds = (Bound::Unbounded, Bound::Unbounded);

/// Copies a range's bounds.
pub(super) fn owned(range: &impl KeyRange) -> OwnedBounds {
    let (start, end) = range.key_bounds();
    (start.map(<[u8]>::to_vec), end.map(<[u8]>::to_vec))
}

/// Returns the keys as slices.
pub(super) fn slices<K: AsRef<[u8]>>(keys: &[K]) -> Vec<&[u8]> {
    keys.iter().map(AsRef::as_ref).collect()
}

/// Returns the bounds of all keys with a prefix.
pub(super) fn of_prefix(prefix: &[u8]) -> OwnedBounds {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return (Bound::Included(prefix.to_vec()), Bound::Excluded(end));
        }
    }
    (Bound::Included(prefix.to_vec()), Bound::Unbounded)
}
