//! Keys and values, as calls return them.

use std::ops::Deref;
use std::sync::Arc;

/// The bytes of a key or a value. Derefs to `[u8]`; cheap to clone.
///
/// A value from a scan shares one allocation with the rows copied at the same time, up to 64 KiB or one row, and keeps
/// all of it in memory, outside of the memory budget. To keep few of many rows, keep copies
/// ([`into_vec`](Value::into_vec)).
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Whole(Arc<[u8]>),
    /// A part of the rows that a scan copied out of one leaf.
    Part {
        rows: Arc<Vec<u8>>,
        start: u32,
        end: u32,
    },
}

impl Value {
    pub(crate) fn part(rows: &Arc<Vec<u8>>, range: std::ops::Range<u32>) -> Value {
        Value(Repr::Part { rows: Arc::clone(rows), start: range.start, end: range.end })
    }

    /// Returns the bytes as a vector.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.to_vec()
    }
}

impl From<Arc<[u8]>> for Value {
    fn from(bytes: Arc<[u8]>) -> Value {
        Value(Repr::Whole(bytes))
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Value {
        Value(Repr::Whole(bytes.into()))
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Whole(bytes) => bytes,
            Repr::Part { rows, start, end } => &rows[*start as usize..*end as usize],
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::borrow::Borrow<[u8]> for Value {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        **self == **other
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Value) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Value) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl std::hash::Hash for Value {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl PartialEq<[u8]> for Value {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl PartialEq<&[u8]> for Value {
    fn eq(&self, other: &&[u8]) -> bool {
        **self == **other
    }
}

impl<const N: usize> PartialEq<[u8; N]> for Value {
    fn eq(&self, other: &[u8; N]) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Value {
    fn eq(&self, other: &&[u8; N]) -> bool {
        **self == **other
    }
}

impl PartialEq<Vec<u8>> for Value {
    fn eq(&self, other: &Vec<u8>) -> bool {
        **self == **other
    }
}
