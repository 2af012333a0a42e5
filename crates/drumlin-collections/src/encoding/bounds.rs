//! Converts ranges and prefixes of keys to ranges of rows.

use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use super::{EncodeAs, encoded};

/// The bounds of a range of rows.
pub(crate) type RowBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A range of keys of type `K`: `..`, `"a".."b"`, `5..=7`, or a pair of [`Bound`]s. A range whose end is before its
/// start is empty. [`bounds`] converts a range of keys to a range of rows.
///
/// ```
/// use drumlin_collections::encoding::{Key, KeyBounds, bounds};
///
/// /// Counts the rows of a keyspace whose keys of type `K` are in a range.
/// fn count<K: Key>(keyspace: &drumlin::Keyspace, range: impl KeyBounds<K>) -> drumlin::Result<u64> {
///     keyspace.count(bounds(range))
/// }
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// let visits = db.keyspace("visits")?;
/// for hour in [-1i32, 0, 1, 2] {
///     visits.insert(hour.encode(), "")?;
/// }
/// assert_eq!(count::<i32>(&visits, -1..=1)?, 3);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[diagnostic::on_unimplemented(message = "`{Self}` is not a range of keys of type `{K}`")]
pub trait KeyBounds<K> {
    /// Returns the bounds of the rows whose keys start with a key in the range. Drumlin accepts them as a
    /// [`KeyRange`](drumlin::KeyRange).
    fn row_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>);
}

/// Returns the bounds of the rows whose keys start with a key in the range. Use it to call Drumlin's own methods on a
/// plain keyspace with typed keys. Specify the key type `K`: the compiler can't infer it from a range.
///
/// ```
/// use drumlin_collections::encoding::{Key, bounds, prefix};
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// let points = db.keyspace("points")?;
/// type PointKey = (String, u64); // series and time
/// for (series, time) in [("cpu", 1u64), ("cpu", 2), ("cpu", 3), ("disk", 1)] {
///     points.insert((series.to_owned(), time).encode(), "")?;
/// }
/// assert_eq!(points.count(bounds::<PointKey>(prefix(("cpu",))))?, 3);
/// let two: Vec<_> = points.range(bounds::<PointKey>(("cpu", 2)..("disk", 0))).collect::<Result<_, _>>()?;
/// assert_eq!(PointKey::decode(&two[0].0).unwrap(), ("cpu".to_owned(), 2));
/// points.remove_range(bounds::<PointKey>(..=("cpu", 2)))?;
/// assert_eq!(points.len()?, 2);
/// # Ok::<(), drumlin::Error>(())
/// ```
pub fn bounds<K>(range: impl KeyBounds<K>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    range.row_bounds()
}

/// Returns the bounds of the rows whose keys start with a key in the range. An inclusive bound includes all rows whose
/// keys start with its key.
fn rows<K, X: EncodeAs<K>>(range: &impl RangeBounds<X>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let start = match range.start_bound() {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(key) => Bound::Included(encoded(key)),
        Bound::Excluded(key) => match successor(encoded(key)) {
            Some(next) => Bound::Included(next),
            // No key sorts after all keys with this prefix, so the range is empty.
            None => return (Bound::Included(vec![0]), Bound::Excluded(vec![0])),
        },
    };
    let end = match range.end_bound() {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(key) => successor(encoded(key)).map_or(Bound::Unbounded, Bound::Excluded),
        Bound::Excluded(key) => Bound::Excluded(encoded(key)),
    };
    (start, end)
}

/// Returns the smallest byte string that is greater than every byte string with this prefix, or `None` if there is no
/// greater one.
pub(crate) fn successor(mut prefix: Vec<u8>) -> Option<Vec<u8>> {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            return Some(prefix);
        }
    }
    None
}

impl<K> KeyBounds<K> for RangeFull {
    fn row_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

macro_rules! ranges {
    ($($range:ty),*) => {$(
        impl<K, X: EncodeAs<K>> KeyBounds<K> for $range {
            fn row_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
                rows(self)
            }
        }
    )*};
}

ranges!(Range<X>, RangeInclusive<X>, RangeFrom<X>, RangeTo<X>, RangeToInclusive<X>, (Bound<X>, Bound<X>));

impl<K, R: KeyBounds<K> + ?Sized> KeyBounds<K> for &R {
    fn row_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (**self).row_bounds()
    }
}

/// The first parts of a key of tuple type `K`: for example, `(a,)` and `(a, b)` are prefixes of an `(A, B, C)`.
///
/// ```
/// use drumlin_collections::encoding::{Key, PrefixOf};
///
/// let prefix = PrefixOf::<(String, u32)>::prefix(&("ann",));
/// assert!(("ann".to_owned(), 7u32).encode().starts_with(&prefix));
/// assert!(!("anna".to_owned(), 7u32).encode().starts_with(&prefix));
/// ```
#[diagnostic::on_unimplemented(message = "`{Self}` is not the first parts of a key of type `{K}`")]
pub trait PrefixOf<K> {
    /// Returns the encoded parts. A key starts with these bytes if and only if it starts with these parts.
    fn prefix(&self) -> Vec<u8>;
}

macro_rules! prefixes {
    ($(($($key:ident $x:ident $part:ident),+) of ($($all:ident),+);)*) => {$(
        impl<$($all,)+ $($x: EncodeAs<$key>),+> PrefixOf<($($all,)+)> for ($($x,)+) {
            fn prefix(&self) -> Vec<u8> {
                let ($($part,)+) = self;
                let mut bytes = Vec::with_capacity(16);
                $($part.encode_into(&mut bytes);)+
                bytes
            }
        }
    )*};
}

prefixes! {
    (A X a) of (A, B);
    (A X a) of (A, B, C);
    (A X a) of (A, B, C, D);
    (A X a) of (A, B, C, D, E);
    (A X a) of (A, B, C, D, E, F);
    (A X a, B Y b) of (A, B, C);
    (A X a, B Y b) of (A, B, C, D);
    (A X a, B Y b) of (A, B, C, D, E);
    (A X a, B Y b) of (A, B, C, D, E, F);
    (A X a, B Y b, C Z c) of (A, B, C, D);
    (A X a, B Y b, C Z c) of (A, B, C, D, E);
    (A X a, B Y b, C Z c) of (A, B, C, D, E, F);
    (A X a, B Y b, C Z c, D U d) of (A, B, C, D, E);
    (A X a, B Y b, C Z c, D U d) of (A, B, C, D, E, F);
    (A X a, B Y b, C Z c, D U d, E V e) of (A, B, C, D, E, F);
}

/// Returns the range of all keys that start with these parts.
///
/// ```
/// use drumlin_collections::encoding::{Key, bounds, prefix};
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let visits = db.keyspace("visits")?;
/// for (name, day) in [("ann", 1u16), ("ann", 2), ("anna", 1)] {
///     visits.insert((name.to_owned(), day).encode(), "")?;
/// }
/// assert_eq!(visits.count(bounds::<(String, u16)>(prefix(("ann",))))?, 2);
/// # Ok::<(), drumlin::Error>(())
/// ```
pub fn prefix<P>(parts: P) -> Prefix<P> {
    Prefix(parts)
}

/// A range of keys with the same first parts. Created by [`prefix`].
///
/// ```
/// use drumlin_collections::encoding::{Prefix, bounds, prefix};
///
/// let all_of_ann: Prefix<(&str,)> = prefix(("ann",));
/// let rows = bounds::<(String, u16)>(all_of_ann);
/// # drop(rows);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Prefix<P>(P);

impl<K, P: PrefixOf<K>> KeyBounds<K> for Prefix<P> {
    fn row_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let start = self.0.prefix();
        let end = successor(start.clone()).map_or(Bound::Unbounded, Bound::Excluded);
        (Bound::Included(start), end)
    }
}
