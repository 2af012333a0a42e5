//! Encoding of documents as bytes.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoding::name_of;
use crate::error::BoxError;

/// Encodes documents of type `C` as bytes. [`Postcard`] works for every type that implements serde's traits.
///
/// ```
/// use drumlin_collections::{BoxError, Codec};
///
/// /// Stores text as it is.
/// struct Text;
///
/// impl Codec<String> for Text {
///     fn encode(document: &String) -> Result<Vec<u8>, BoxError> {
///         Ok(document.clone().into_bytes())
///     }
///
///     fn decode(bytes: &[u8]) -> Result<String, BoxError> {
///         Ok(String::from_utf8(bytes.to_vec())?)
///     }
/// }
/// # assert_eq!(Text::decode(b"a")?, "a");
/// # Ok::<(), BoxError>(())
/// ```
pub trait Codec<C> {
    /// Encodes a document.
    ///
    /// # Errors
    /// Any error; it becomes [`Error::Encode`](crate::Error::Encode).
    fn encode(document: &C) -> Result<Vec<u8>, BoxError>;

    /// Returns the name under which a collection records the codec of each [version](crate::Collection::VERSION) of its
    /// schema. Opening the collection with a codec of a different name under the same version is an
    /// [error](crate::Error::OtherTypes). The default is the name of the type without its module path. If you rename a
    /// codec and its encoding stays the same, return the old name here.
    fn fingerprint() -> String {
        name_of::<Self>()
    }

    /// Decodes a document.
    ///
    /// # Errors
    /// Any error, if the bytes are not a valid document; it becomes [`Error::Decode`](crate::Error::Decode).
    fn decode(bytes: &[u8]) -> Result<C, BoxError>;
}

/// [Postcard](postcard): a compact serde format without field names. Adding or removing a field requires a new
/// [version](crate::Collection::VERSION).
///
/// ```
/// use drumlin_collections::{Codec, Postcard};
///
/// assert_eq!(Postcard::encode(&(7u64, "ann".to_owned()))?, [7, 3, b'a', b'n', b'n']);
/// # Ok::<(), drumlin_collections::BoxError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Postcard;

impl<C: Serialize + DeserializeOwned> Codec<C> for Postcard {
    fn encode(document: &C) -> Result<Vec<u8>, BoxError> {
        Ok(postcard::to_stdvec(document)?)
    }

    fn decode(bytes: &[u8]) -> Result<C, BoxError> {
        match postcard::take_from_bytes(bytes)? {
            (document, []) => Ok(document),
            (_, rest) => Err(format!("{} bytes are left over", rest.len()).into()),
        }
    }
}
