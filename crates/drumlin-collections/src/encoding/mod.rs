//! Encodes keys as bytes that sort in the same order as the keys.
//!
//! Drumlin stores rows in the byte order of their keys. [`Key`] is implemented for types whose encoding preserves their
//! order, so a range of values is a range of rows. This module needs no database, and works without collections:
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
//! [`bounds`] converts a range of typed keys to a range of rows, for any keyspace.
//!
//! # The bytes
//!
//! | type | bytes | order |
//! | --- | --- | --- |
//! | `()` | none | |
//! | `bool` | `00` for `false`, `01` for `true` | `false` first |
//! | `u8` to `u128` | the number, big-endian | numeric |
//! | `i8` to `i128` | the number with its sign bit inverted, big-endian | numeric |
//! | `f32`, `f64` | the IEEE 754 bits, big-endian: all inverted if the sign bit is set, otherwise only the sign bit inverted | as `total_cmp`: −NaN, −∞ … −0.0, 0.0 … ∞, NaN |
//! | `char` | its scalar value as a `u32` | by scalar value |
//! | `String`, `&str`, `Vec<u8>`, `&[u8]` | each byte, with `00 FF` for a byte `00`; then `00 00` | bytewise; for text the same as by scalar values |
//! | `Option<K>` | `00` for `None`; `01` and the value for `Some` | `None` first |
//! | `[K; N]` | its elements, one after the other | by the first element, then the second, and so on |
//! | tuples of 1 to 8 | their parts, one after the other | by the first part, then the second, and so on |
//! | `Duration` | the seconds as a `u64`, the nanoseconds as a `u32` | by length |
//! | `SystemTime` | the seconds since 1970, rounded down, as an `i64`; the remaining nanoseconds as a `u32` | chronological |
//! | `Reverse<K>` | the value's bytes, each inverted | reversed |
//! | `Uuid` (feature `uuid`), `[u8; 16]` | its 16 bytes | bytewise |
//!
//! No encoding is a prefix of another encoding of the same type, so tuples sort by their parts without lengths or
//! separators in between. All keys that start with the same parts are adjacent: they are the rows that share a
//! [prefix](PrefixOf). Adding a part to a key type makes it a different type, and its rows must be rewritten.
//!
//! Every key has exactly one encoding. [`Key::decode`] rejects all other bytes: it returns a [`DecodeError`] if the
//! bytes are not a valid `bool`, `char`, text or time, or if bytes are left over.
//!
//! In an encoded string, each zero byte takes two bytes, and so does the terminator. Drumlin limits keys to a quarter
//! of a page (1,024 bytes by default).

mod bounds;
mod compound;
mod numbers;
mod strings;
mod times;

pub use bounds::{KeyBounds, Prefix, PrefixOf, bounds, prefix};
pub(crate) use bounds::{RowBounds, successor};

/// A type whose encoding preserves the order of its values.
///
/// Implemented for the types in the [table](self#the-bytes). Your own types can reuse the encoding of one of them:
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
/// An implementation must follow three rules. The bytes sort in the same order as the values. No encoding is a prefix
/// of another encoding. Decoding returns the encoded value, or an error if the bytes do not encode a value.
pub trait Key: EncodeAs<Self> + Sized {
    /// Decodes a key from the front of `bytes`, and advances `bytes` past it.
    ///
    /// # Errors
    /// [`DecodeError`] if `bytes` does not start with a key. Even then, `bytes` may have advanced.
    fn decode_from(bytes: &mut &[u8]) -> Result<Self, DecodeError>;

    /// Returns the encoded key. O(bytes).
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

    /// Returns the name under which a collection records the type of its keys, or the key type of an index or view.
    /// Opening the collection with a key type of a different name is an [error](crate::Error::OtherTypes). The default
    /// is the name of the type without its module path. If you rename a type and its encoding stays the same, return
    /// the old name here.
    ///
    /// ```
    /// use drumlin_collections::encoding::Key;
    ///
    /// assert_eq!(<(String, Option<u32>)>::fingerprint(), "(String, Option<u32>)");
    /// ```
    fn fingerprint() -> String {
        name_of::<Self>()
    }

    /// Decodes a key. O(bytes).
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
    /// [`DecodeError`] if the bytes do not encode a key, or if bytes are left over.
    fn decode(mut bytes: &[u8]) -> Result<Self, DecodeError> {
        let key = Self::decode_from(&mut bytes)?;
        if bytes.is_empty() { Ok(key) } else { Err(DecodeError { expected: "the end", found: "more bytes" }) }
    }
}

/// A type whose values encode as keys of type `K`: for example, `&str` encodes as a `String`, and `(&str, u32)` as a
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
    /// Appends the encoded key to `bytes`.
    fn encode_into(&self, bytes: &mut Vec<u8>);
}

impl<K: ?Sized, X: EncodeAs<K> + ?Sized> EncodeAs<K> for &X {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        (**self).encode_into(bytes);
    }
}

/// Returns the name of a type without the module paths of the type and its parameters, so moving code to a different
/// module does not change the name.
pub(crate) fn name_of<T: ?Sized>() -> String {
    let mut short = String::new();
    // A path ends at the first character that can't be part of a path.
    for part in std::any::type_name::<T>().split_inclusive(|c: char| !c.is_alphanumeric() && c != '_' && c != ':') {
        short.push_str(part.rsplit("::").next().unwrap_or(part));
    }
    short
}

/// Returns the encoded key of a value.
pub(crate) fn encoded<K>(key: &impl EncodeAs<K>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    key.encode_into(&mut bytes);
    bytes
}

/// The error for bytes that do not encode a key of the type.
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
    /// Creates an error for your own key type from a description of the expected bytes and a description of the bytes
    /// found.
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

/// Takes `N` bytes off the front of `bytes`.
fn take<const N: usize>(bytes: &mut &[u8], expected: &'static str) -> Result<[u8; N], DecodeError> {
    let (first, rest) = bytes.split_first_chunk::<N>().ok_or(DecodeError { expected, found: "too few bytes" })?;
    *bytes = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests;
