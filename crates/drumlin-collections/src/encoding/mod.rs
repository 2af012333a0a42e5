//! Keys as bytes: the bytes of two keys compare as the keys do.
//!
//! Drumlin's rows are in the order of their keys' bytes. [`Key`] is implemented for types whose encoding keeps their
//! order, so that ranges of values are ranges of rows. It needs no database, and is usable without collections:
//!
//! ```
//! use drumlin_collections::encoding::Key;
//!
//! let keys = [("ann", -5i32), ("ann", 7), ("anna", -9)].map(|(name, n)| (name.to_owned(), n).encode());
//! assert!(keys.is_sorted());
//! assert_eq!(<(String, i32)>::decode(&keys[1])?, ("ann".to_owned(), 7));
//! # Ok::<(), drumlin_collections::encoding::DecodeError>(())
//! ```
//!
//! [`bounds`] makes ranges of typed keys ranges of rows, of any keyspace.
//!
//! # The bytes
//!
//! | type | bytes | order |
//! | --- | --- | --- |
//! | `()` | none | |
//! | `bool` | `00` for `false`, `01` for `true` | `false` first |
//! | `u8` to `u128` | the number, most significant byte first | of the numbers |
//! | `i8` to `i128` | the number with its sign bit inverted, most significant byte first | of the numbers |
//! | `f32`, `f64` | the IEEE 754 bits, most significant byte first: all inverted if the sign bit is set, else the sign bit alone | of `total_cmp`: −NaN, −∞ … −0.0, 0.0 … ∞, NaN |
//! | `char` | its scalar value as a `u32` | of the scalar values |
//! | `String`, `&str`, `Vec<u8>`, `&[u8]` | each byte, but `00 FF` for a byte `00`; then `00 00` | of the bytes; for text that of the scalar values |
//! | `Option<K>` | `00` for `None`; `01` and the value for `Some` | `None` first |
//! | `[K; N]` | its elements, one after the other | of the elements, the first first |
//! | tuples of 1 to 8 | their parts, one after the other | of the parts, the first first |
//! | `Duration` | the seconds as a `u64`, the nanoseconds as a `u32` | of the lengths |
//! | `SystemTime` | seconds since 1970, rounded down, as an `i64`; nanoseconds since then as a `u32` | of the times |
//! | `Reverse<K>` | the value's bytes, each inverted | the other way round |
//! | `Uuid` (feature `uuid`), `[u8; 16]` | its 16 bytes | of the bytes |
//!
//! No encoding is the beginning of another one of the same type. So tuples sort by their parts without lengths or
//! separators between them, and all keys that begin with the same parts are neighbours: they are the rows with one
//! [prefix](PrefixOf). A type of key that gets another part is another type: its rows have
//! to be written again.
//!
//! A key has one encoding, and [`Key::decode`] accepts no other bytes: those of `bool`, `char`, text and times that
//! encode no value, and bytes that are left over, are a [`DecodeError`].
//!
//! A string's zero bytes take two bytes each, and its end two. Drumlin's keys may take a quarter of a page (1,024 bytes
//! by default).

mod bounds;
mod compound;
mod numbers;
mod strings;
mod times;

pub use bounds::{KeyBounds, Prefix, PrefixOf, bounds, prefix};
pub(crate) use bounds::{RowBounds, successor};

/// A type that is encoded in the order of its values.
///
/// Implemented for the types in the [table](self#the-bytes). A type of your own encodes and decodes like one of them:
///
/// ```
/// use drumlin_collections::encoding::{DecodeError, EncodeAs, Key};
///
/// #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
/// struct OrderId(u64);
///
/// impl EncodeAs<OrderId> for OrderId {
///     fn encode_into(&self, bytes: &mut Vec<u8>) {
///         EncodeAs::<u64>::encode_into(&self.0, bytes);
///     }
/// }
///
/// impl Key for OrderId {
///     fn decode_from(bytes: &mut &[u8]) -> Result<OrderId, DecodeError> {
///         u64::decode_from(bytes).map(OrderId)
///     }
/// }
///
/// assert_eq!(OrderId::decode(&OrderId(7).encode())?, OrderId(7));
/// # Ok::<(), DecodeError>(())
/// ```
///
/// An implementation has to keep three rules: bytes compare as the values do; no encoding is the beginning of another;
/// decoding gives the encoded value, and an error for bytes that encode none.
pub trait Key: EncodeAs<Self> + Sized {
    /// Takes one key off the front of `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`] if no key is there. `bytes` may then have been shortened.
    fn decode_from(bytes: &mut &[u8]) -> Result<Self, DecodeError>;

    /// The key's bytes. O(bytes).
    ///
    /// ```
    /// use drumlin_collections::encoding::Key;
    ///
    /// assert_eq!((1u16, "a\0".to_owned()).encode(), [0, 1, b'a', 0, 0xFF, 0, 0]);
    /// ```
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16);
        self.encode_into(&mut bytes);
        bytes
    }

    /// The name by which a collection, or an index or view, remembers the type of its keys. Opening it with keys of
    /// another name is an [error](crate::Error::OtherTypes). By default that of the type, without its module; a type
    /// that gets another name, but keeps its bytes, returns its old one here.
    ///
    /// ```
    /// use drumlin_collections::encoding::Key;
    ///
    /// assert_eq!(<(String, Option<u32>)>::fingerprint(), "(String, Option<u32>)");
    /// ```
    fn fingerprint() -> String {
        name_of::<Self>()
    }

    /// The key that these bytes encode. O(bytes).
    ///
    /// ```
    /// use drumlin_collections::encoding::Key;
    ///
    /// assert_eq!(u16::decode(&[0, 7])?, 7);
    /// assert!(u16::decode(&[0, 7, 0]).is_err()); // a byte is left over
    /// # Ok::<(), drumlin_collections::encoding::DecodeError>(())
    /// ```
    ///
    /// # Errors
    /// [`DecodeError`] if they encode no key, or are more than one.
    fn decode(mut bytes: &[u8]) -> Result<Self, DecodeError> {
        let key = Self::decode_from(&mut bytes)?;
        if bytes.is_empty() { Ok(key) } else { Err(DecodeError { expected: "the end", found: "more bytes" }) }
    }
}

/// A type whose values encode as keys of type `K`, so that `&str` stands for a `String`, and a `(&str, u32)` for a
/// `(String, u32)`.
///
/// ```
/// use drumlin_collections::encoding::{EncodeAs, Key};
///
/// let mut bytes = Vec::new();
/// EncodeAs::<(String, u32)>::encode_into(&("ann", 7), &mut bytes);
/// assert_eq!(bytes, ("ann".to_owned(), 7u32).encode());
/// ```
#[diagnostic::on_unimplemented(message = "`{Self}` does not encode as a key of type `{K}`")]
pub trait EncodeAs<K: ?Sized> {
    /// Appends the key's bytes.
    fn encode_into(&self, bytes: &mut Vec<u8>);
}

impl<K: ?Sized, X: EncodeAs<K> + ?Sized> EncodeAs<K> for &X {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        (**self).encode_into(bytes);
    }
}

/// The name of a type, without the modules of it and its parts: code that moves keeps its names.
pub(crate) fn name_of<T: ?Sized>() -> String {
    let mut short = String::new();
    // A path ends where a character is that no path has.
    for part in std::any::type_name::<T>().split_inclusive(|c: char| !c.is_alphanumeric() && c != '_' && c != ':') {
        short.push_str(part.rsplit("::").next().unwrap_or(part));
    }
    short
}

/// The bytes of a key that a value encodes as.
pub(crate) fn encoded<K>(key: &impl EncodeAs<K>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    key.encode_into(&mut bytes);
    bytes
}

/// Bytes that encode no key of the type.
///
/// ```
/// use drumlin_collections::encoding::Key;
///
/// let error = bool::decode(&[7]).unwrap_err();
/// assert_eq!(error.to_string(), "expected 0 or 1 of a bool, found another byte");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected {expected}, found {found}")]
pub struct DecodeError {
    expected: &'static str,
    found: &'static str,
}

impl DecodeError {
    /// An error for keys of your own: what the bytes should have been, and what is there.
    ///
    /// ```
    /// use drumlin_collections::encoding::DecodeError;
    ///
    /// let error = DecodeError::new("an order's number", "zero");
    /// assert_eq!(error.to_string(), "expected an order's number, found zero");
    /// ```
    #[must_use]
    pub const fn new(expected: &'static str, found: &'static str) -> DecodeError {
        DecodeError { expected, found }
    }
}

/// Takes `N` bytes off the front.
fn take<const N: usize>(bytes: &mut &[u8], expected: &'static str) -> Result<[u8; N], DecodeError> {
    let (first, rest) = bytes.split_first_chunk::<N>().ok_or(DecodeError { expected, found: "too few bytes" })?;
    *bytes = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests;
