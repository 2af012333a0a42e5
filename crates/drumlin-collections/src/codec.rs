//! Documents as bytes.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoding::name_of;
use crate::error::BoxError;

/// A form of documents as bytes. [`Postcard`] is one for all types with serde's traits.
///
/// ```
/// use drumlin_collections::{BoxError, Codec};
///
/// /// Notes as they are.
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
    /// The document's bytes.
    ///
    /// # Errors
    /// Any: they become [`Error::Encode`](crate::Error::Encode).
    fn encode(document: &C) -> Result<Vec<u8>, BoxError>;

    /// The name by which a collection remembers the codec of each [version](crate::Collection::VERSION) of its schema.
    /// Opening it with a codec of another name, and no new version, is an [error](crate::Error::OtherTypes). By default
    /// that of the type, without its module; a codec that gets another name, but keeps its bytes, returns its old one
    /// here.
    fn fingerprint() -> String {
        name_of::<Self>()
    }

    /// The document that was encoded.
    ///
    /// # Errors
    /// Any, for bytes that are no document: they become [`Error::Decode`](crate::Error::Decode).
    fn decode(bytes: &[u8]) -> Result<C, BoxError>;
}

/// [Postcard](postcard): serde's compact form, without names of fields. Fields can't be added or taken away without a
/// new [version](crate::Collection::VERSION).
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
