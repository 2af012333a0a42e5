//! Keys and values that calls return.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::Arc;

/// The bytes of a key or a value. Derefs to `[u8]`; cheap to clone.
///
/// A value from a scan is a part of one allocation, of up to 64 KiB or one row, with the rows that were copied together
/// with it. It keeps all of this allocation in memory, outside of the memory budget. A key or value of up to 22 bytes
/// is stored in the `Value` itself. To hold only a few of many longer values, copy them with
/// [`into_vec`](Value::into_vec). With the feature `bytes`, a value becomes a `bytes::Bytes` without a copy.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let k = db.keyspace("k")?;
/// k.insert("a", "one")?;
/// let value = k.get("a")?.unwrap();
/// assert!(value == "one" && value == *b"one" && value < "two" && "one" == value);
/// assert_eq!(std::str::from_utf8(&value)?, "one");
/// let bytes: Vec<u8> = value.into();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Whole(Arc<[u8]>),
    /// A value that was read into a vector. The vector itself is stored, because a copy of a large value would double
    /// its memory.
    Vector(Arc<Vec<u8>>),
    /// A part of the rows that a scan copied out of one leaf.
    Part {
        rows: Arc<Vec<u8>>,
        start: u32,
        end: u32,
    },
    /// A short value, stored inline. This is cheaper than an allocation, or than a shared reference, with which a short
    /// key would keep all copied rows in memory.
    Short {
        length: u8,
        bytes: [u8; SHORT_BYTES_MAX],
    },
}

/// The maximum number of bytes that fit next to the tag without making [`Value`] larger. Fixed by the size of the other
/// variants.
const SHORT_BYTES_MAX: usize = 22;
const _: () = assert!(size_of::<Value>() == 24);

impl Value {
    /// Returns a part of copied rows. A short part is copied into the value.
    #[inline]
    pub(crate) fn part(rows: &Arc<Vec<u8>>, range: std::ops::Range<u32>) -> Value {
        let part = &rows[range.start as usize..range.end as usize];
        if part.len() > SHORT_BYTES_MAX {
            return Value::part_of(Arc::clone(rows), range);
        }
        Value::short(part)
    }

    #[inline]
    fn short(short: &[u8]) -> Value {
        assert!(short.len() <= SHORT_BYTES_MAX, "a short value of {} bytes", short.len());
        let mut bytes = [0; SHORT_BYTES_MAX];
        bytes[..short.len()].copy_from_slice(short);
        Value(Repr::Short { length: short.len() as u8, bytes })
    }

    /// Like [`part`](Self::part), but even a short part refers to the copied rows.
    #[inline]
    pub(crate) fn part_of(rows: Arc<Vec<u8>>, range: std::ops::Range<u32>) -> Value {
        Value(Repr::Part { rows, start: range.start, end: range.end })
    }

    /// Returns the bytes as a vector. Copies them, unless the value is longer than 22 bytes, was created from a vector
    /// and has no clones. [`get`](crate::Keyspace::get) returns such values if they are longer than a quarter of a
    /// page.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Repr::Vector(bytes) => Arc::unwrap_or_clone(bytes),
            Repr::Whole(_) | Repr::Part { .. } | Repr::Short { .. } => self.to_vec(),
        }
    }
}

/// The maximum size of a vector that a thread reuses for shown values. Any value in a leaf fits.
const SHOWN_BYTES_KEPT_MAX: usize = 64 << 10;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A value that is shown to a caller's closure, in a vector that the thread reuses for the next such call.
///
/// The value is a copy, so no latch is held while the closure runs: it can block, panic or call the database. If such a
/// call shows another value, it finds no vector to reuse and allocates a new one.
pub(crate) struct ShownValue(pub(crate) Vec<u8>);

impl ShownValue {
    #[inline]
    pub(crate) fn new() -> ShownValue {
        // If the thread is ending, its vector may already have been dropped.
        ShownValue(SPARE.try_with(Cell::take).unwrap_or_default())
    }
}

impl Drop for ShownValue {
    #[inline]
    fn drop(&mut self) {
        if self.0.capacity() <= SHOWN_BYTES_KEPT_MAX {
            let _ = SPARE.try_with(|spare| spare.set(std::mem::take(&mut self.0)));
        }
    }
}

impl From<Arc<[u8]>> for Value {
    fn from(bytes: Arc<[u8]>) -> Value {
        Value(Repr::Whole(bytes))
    }
}

impl From<Vec<u8>> for Value {
    /// Copies the bytes only if they are short.
    fn from(mut bytes: Vec<u8>) -> Value {
        if bytes.len() <= SHORT_BYTES_MAX {
            return Value::short(&bytes);
        }
        bytes.shrink_to_fit();
        Value(Repr::Vector(Arc::new(bytes)))
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Vec<u8> {
        value.into_vec()
    }
}

impl From<Value> for Box<[u8]> {
    fn from(value: Value) -> Box<[u8]> {
        Box::from(&*value)
    }
}

#[cfg(feature = "bytes")]
impl From<Value> for bytes::Bytes {
    /// Copies the value only if it is short.
    fn from(value: Value) -> bytes::Bytes {
        bytes::Bytes::from_owner(value)
    }
}

impl From<Value> for Arc<[u8]> {
    fn from(value: Value) -> Arc<[u8]> {
        match value.0 {
            Repr::Whole(bytes) => bytes,
            Repr::Vector(_) | Repr::Part { .. } | Repr::Short { .. } => Arc::from(&*value),
        }
    }
}

impl From<&[u8]> for Value {
    #[inline]
    fn from(bytes: &[u8]) -> Value {
        if bytes.len() <= SHORT_BYTES_MAX { Value::short(bytes) } else { Value(Repr::Whole(bytes.into())) }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        text.as_bytes().into()
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Whole(bytes) => bytes,
            Repr::Vector(bytes) => bytes,
            Repr::Part { rows, start, end } => &rows[*start as usize..*end as usize],
            Repr::Short { length, bytes } => &bytes[..usize::from(*length)],
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

/// Compares bytes with anything that has bytes: other values, slices, arrays, vectors and strings.
impl<B: AsRef<[u8]> + ?Sized> PartialEq<B> for Value {
    fn eq(&self, other: &B) -> bool {
        **self == *other.as_ref()
    }
}

impl Eq for Value {}

impl<B: AsRef<[u8]> + ?Sized> PartialOrd<B> for Value {
    fn partial_cmp(&self, other: &B) -> Option<Ordering> {
        Some((**self).cmp(other.as_ref()))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Value) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl std::hash::Hash for Value {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

/// Implements the comparisons above with the value on the right-hand side.
macro_rules! compare_with_values {
    ($([$($parameters:tt)*] $bytes:ty),*) => {$(
        impl<$($parameters)*> PartialEq<Value> for $bytes {
            fn eq(&self, other: &Value) -> bool {
                *other == *self
            }
        }
    )*};
}

compare_with_values!(
    [] [u8], [] &[u8], [const N: usize] [u8; N], [const N: usize] &[u8; N], [] Vec<u8>, [] str, [] &str, [] String
);

/// Serializes as bytes.
#[cfg(feature = "serde")]
impl serde::Serialize for Value {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

/// Deserializes from bytes, from a sequence of numbers, and from text.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Value {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        struct Bytes;

        impl<'de> serde::de::Visitor<'de> for Bytes {
            type Value = Value;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Value, E> {
                Ok(bytes.into())
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
                Ok(text.into())
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = sequence.next_element::<u8>()? {
                    bytes.push(byte);
                }
                Ok(bytes.into())
            }
        }

        deserializer.deserialize_byte_buf(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two values that are shown at the same time are in separate vectors, and the thread does not retain a long
    /// vector.
    #[test]
    fn shown_values_are_apart() {
        let mut outer = ShownValue::new();
        outer.0.extend_from_slice(b"outer");
        let address = outer.0.as_ptr();
        {
            let mut inner = ShownValue::new();
            inner.0.extend_from_slice(&[7; SHOWN_BYTES_KEPT_MAX + 1]);
            assert_ne!(inner.0.as_ptr(), address);
        }
        assert_eq!(outer.0, b"outer");
        drop(outer);
        let next = ShownValue::new();
        assert_eq!(next.0.as_ptr(), address, "the vector was not kept");
        assert!(ShownValue::new().0.capacity() == 0, "a long vector was kept");
    }

    /// Parts of all lengths around the inline limit have the right bytes. A short part does not keep the rows in
    /// memory.
    #[test]
    fn parts_are_those_of_the_rows() {
        let rows = Arc::new((0..64).collect::<Vec<u8>>());
        for length in 0..40 {
            let part = Value::part(&rows, 5..5 + length);
            assert_eq!(part, rows[5..5 + length as usize]);
            assert_eq!(Arc::strong_count(&rows), if length as usize > SHORT_BYTES_MAX { 2 } else { 1 });
            assert_eq!(Arc::<[u8]>::from(part.clone()), Arc::from(&*part));
            assert_eq!(Value::part_of(Arc::clone(&rows), 5..5 + length), part);
        }
    }

    /// Converting a vector into a value and back keeps its allocation, unless the value is short or has a clone.
    #[test]
    fn vectors_stay_where_they_are() {
        let mut bytes = Vec::with_capacity(100);
        bytes.extend_from_slice(&[7; 40]);
        let address = bytes.as_ptr();
        let value = Value::from(bytes);
        let clone = value.clone();
        assert_eq!((value.as_ptr(), clone.as_ptr()), (address, address), "it was copied");
        let copy = clone.into_vec();
        assert_ne!(copy.as_ptr(), address, "two have one vector");
        let bytes = value.into_vec();
        assert_eq!((bytes.as_ptr(), bytes.len()), (address, 40));
        assert_eq!(Value::from(vec![7; SHORT_BYTES_MAX]), [7; SHORT_BYTES_MAX]);
        assert_eq!(Arc::<[u8]>::from(Value::from(vec![7; 40])), Arc::from([7; 40]));
    }

    /// A value becomes `Bytes` without a copy, whether it is a part of a leaf's copy or has its own memory.
    #[cfg(feature = "bytes")]
    #[test]
    fn values_become_bytes_in_place() {
        let rows = Arc::new(b"key and a value longer than a pointer".to_vec());
        for value in [Value::from("a value longer than a pointer"), Value::part(&rows, 8..37)] {
            let address = value.as_ptr();
            let bytes = bytes::Bytes::from(value);
            assert_eq!(bytes, "a value longer than a pointer");
            assert_eq!(bytes.as_ptr(), address, "it was copied");
        }
        assert_eq!(bytes::Bytes::from(Value::part(&rows, 0..3)), "key");
    }

    /// A value can be deserialized from bytes, sequences or text, depending on the format.
    #[cfg(feature = "serde")]
    #[test]
    fn values_are_deserialized() {
        use serde::Deserialize;
        use serde::de::value::{BytesDeserializer, Error, SeqDeserializer, StrDeserializer};

        let value = Value::from("ab");
        assert_eq!(Value::deserialize(BytesDeserializer::<Error>::new(b"ab")), Ok(value.clone()));
        assert_eq!(Value::deserialize(StrDeserializer::<Error>::new("ab")), Ok(value.clone()));
        assert_eq!(Value::deserialize(SeqDeserializer::<_, Error>::new(b"ab".iter().copied())), Ok(value));
    }
}
