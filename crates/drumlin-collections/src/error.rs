//! Errors of collections. Each error names the collection and, where applicable, the document and the index or view.

use std::fmt::Debug;

use crate::encoding::{DecodeError, Key};

/// The result type of most calls in this crate.
///
/// ```
/// use drumlin_collections::Result;
///
/// fn first_letter(name: &str) -> Result<Option<char>> {
///     Ok(name.chars().next())
/// }
/// # first_letter("ann")?;
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error type of a [`Codec`](crate::Codec) or a [migration](crate::Collection::migrate): any error, or a string.
///
/// ```
/// let error: drumlin_collections::BoxError = "a colour that is none".into();
/// # drop(error);
/// ```
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The name of a part of a collection, as errors report it: an index, a view, or the expiry.
///
/// ```
/// use drumlin_collections::Error;
///
/// fn explain(error: &Error) {
///     if let Error::NotReady { part, .. } = error {
///         println!("{part} is still being built"); // view "revenue" is still being built
///     }
/// }
/// # explain(&Error::definition("orders", "nothing"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PartName {
    pub(crate) kind: PartKind,
    pub(crate) name: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum PartKind {
    Index,
    View,
    Expiry,
}

impl PartKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            PartKind::Index => "index",
            PartKind::View => "view",
            PartKind::Expiry => "expiry",
        }
    }
}

impl std::fmt::Display for PartName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.kind.word(), self.name)
    }
}

/// The key of a document, as an [`Error`] reports it.
///
/// ```
/// use drumlin_collections::{Error, Result};
///
/// /// Returns the number of the inserted order, or of the existing order that it collides with.
/// fn number_of(inserted: Result<u64>) -> Result<u64> {
///     match inserted {
///         Err(Error::NotUnique { other, .. }) => Ok(other.decode().expect("orders have numbers as keys")),
///         inserted => inserted,
///     }
/// }
/// # assert_eq!(number_of(Ok(7))?, 7);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DocumentKey(Box<ShownKey>);

/// An encoded key and its text for error messages.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ShownKey {
    shown: String,
    bytes: Vec<u8>,
}

impl DocumentKey {
    pub(crate) fn new<K: Key + Debug>(bytes: Vec<u8>) -> DocumentKey {
        DocumentKey(Box::new(ShownKey { shown: shown::<K>(&bytes), bytes }))
    }

    /// Returns the key's bytes, as [`Key::encode`](crate::encoding::Key::encode) produces them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// Decodes the key as type `K`, usually [`Collection::Key`](crate::Collection::Key).
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes do not encode a key of this type.
    pub fn decode<K: Key>(&self) -> Result<K, DecodeError> {
        K::decode(&self.0.bytes)
    }
}

impl Debug for DocumentKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.shown)
    }
}

impl std::fmt::Display for DocumentKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.shown)
    }
}

/// An error: says which operation failed, and on which document. Unless a [`Store`](Error::Store) error says otherwise,
/// the collection and the transaction are unchanged by the failed call and remain usable.
///
/// ```
/// use drumlin_collections::{Collection, Collections, Error, Parts, Postcard};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct User {
///     name: String,
/// }
///
/// impl Collection for User {
///     type Key = String;
///     type Codec = Postcard;
///     const NAME: &'static str = "users";
///
///     fn key(&self) -> String {
///         self.name.clone()
///     }
/// }
///
/// let users = Collections::new(&drumlin::Config::in_memory().open("")?).open::<User>()?;
/// users.insert(&User { name: "ann".into() })?;
/// let error = users.insert(&User { name: "ann".into() }).unwrap_err();
/// assert_eq!(error.to_string(), r#"collection "users" already has a document "ann""#);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database returned an error. It names the keyspace, whose name starts with the collection's name.
    #[error(transparent)]
    Store(#[from] drumlin::Error),
    /// A document with this key already exists. [`insert`](crate::Documents::insert) never replaces a document.
    #[error("collection {collection:?} already has a document {key}")]
    Exists {
        /// The collection's name.
        collection: &'static str,
        /// The document's key.
        key: String,
    },
    /// Another document already has this key in a unique index.
    #[error("collection {collection:?}, document {key}: {index_key} of unique {index} belongs to document {other}")]
    NotUnique {
        /// The collection's name.
        collection: &'static str,
        /// The key of the document that was being written.
        key: String,
        /// The unique index.
        index: PartName,
        /// The key in the unique index.
        index_key: String,
        /// The document that already has this index key. To read it in the same transaction, use
        /// [`insert_or_get`](crate::Documents::insert_or_get).
        other: DocumentKey,
    },
    /// An [`update`](crate::Documents::update) changed the key of a document. Remove the document and insert it under
    /// its new key instead.
    #[error("collection {collection:?}, document {key}: an update changed its key to {new_key}")]
    KeyChanged {
        /// The collection's name.
        collection: &'static str,
        /// The key before the update.
        key: String,
        /// The key after the update.
        new_key: String,
    },
    /// The codec could not encode a document, or a view's value could not be encoded.
    #[error("collection {collection:?}, document {key}: encoding{}: {reason}", .of.map(|part| format!(" for {part}")).unwrap_or_default())]
    Encode {
        /// The collection's name.
        collection: &'static str,
        /// The document's key.
        key: String,
        /// The view whose value failed to encode; `None` for the document itself.
        of: Option<PartName>,
        /// The codec's error.
        reason: String,
    },
    /// A stored row could not be decoded as a document, key or value of the current types. Another program wrote it, or
    /// a definition changed without a new version.
    #[error("collection {collection:?}, {}row {row:?}: {reason}", .of.map(|part| format!("{part}, ")).unwrap_or_default())]
    Decode {
        /// The collection's name.
        collection: &'static str,
        /// The index or view; `None` for the documents themselves.
        of: Option<PartName>,
        /// The row's key: its value if it can be decoded, otherwise the escaped bytes.
        row: String,
        /// The cause.
        reason: String,
    },
    /// A document with an older schema version could not be [migrated](crate::Collection::migrate), or the document has
    /// a newer version than this program.
    #[error(
        "collection {collection:?}, document {key}: it has schema version {version}, but this program uses {current}: {reason}"
    )]
    Migration {
        /// The collection's name.
        collection: &'static str,
        /// The document's key.
        key: String,
        /// The schema version with which the document was written.
        version: u32,
        /// The schema version of this program.
        current: u32,
        /// The cause.
        reason: String,
    },
    /// A function of an index or view panicked. The call changed nothing.
    #[error("collection {collection:?}, {of}, document {key}: its function panicked: {message}")]
    Panicked {
        /// The collection's name.
        collection: &'static str,
        /// The index or view.
        of: PartName,
        /// The document's key; for a reduce, the view's key.
        key: String,
        /// The panic's message.
        message: String,
    },
    /// The index or view is still being built from the documents that existed before it was added.
    /// [`wait_built`](crate::Documents::wait_built) waits until it is ready.
    #[error("collection {collection:?}: {part} is still being built")]
    NotReady {
        /// The collection's name.
        collection: &'static str,
        /// The index or view.
        part: PartName,
    },
    /// The index or view could not be built from the documents that existed before it was added. Reopening the database
    /// retries the build.
    #[error("collection {collection:?}: {part} could not be built: {reason}")]
    NotBuilt {
        /// The collection's name.
        collection: &'static str,
        /// The index or view.
        part: PartName,
        /// The cause, which names the document.
        reason: String,
    },
    /// A collection was opened with a key, codec or value type that differs from the type with which its rows were
    /// written, but with the same version. Nothing was changed.
    ///
    /// Types are compared by their [names](crate::encoding::Key::fingerprint). A changed index or view function can't
    /// be detected if its types stay the same: give the index or view a new version whenever its function changes.
    #[error("collection {collection:?}{}: its rows were written with {stored}, but this program uses {current}. {}", .of.map(|part| format!(", {part}")).unwrap_or_default(), remedy(.of.as_ref(), stored))]
    OtherTypes {
        /// The collection's name.
        collection: &'static str,
        /// The index or view; `None` for the documents themselves.
        of: Option<PartName>,
        /// The types with which the rows were written.
        stored: String,
        /// The types that this program uses.
        current: String,
    },
    /// The definition of a collection is invalid, or the call asked for something that the definition does not provide.
    #[error("collection {collection:?}: {reason}")]
    Definition {
        /// The collection's name.
        collection: &'static str,
        /// The cause.
        reason: String,
    },
}

/// Returns the remedy to suggest if the program's types differ from those of the stored rows.
fn remedy(of: Option<&PartName>, stored: &str) -> &'static str {
    match of {
        Some(_) => "Give it a new version to rebuild it",
        None if stored.starts_with("codec") => "Give the collection a new VERSION, and migrate the older documents",
        None => "Keys can't be migrated: copy the documents to a collection with another name",
    }
}

impl Error {
    /// Creates a [`Definition`](Error::Definition) error.
    #[doc(hidden)]
    pub fn definition(collection: &'static str, reason: impl Into<String>) -> Error {
        Error::Definition { collection, reason: reason.into() }
    }
}

/// Formats a key for an error message: the decoded key, or the escaped bytes if they can't be decoded.
pub(crate) fn shown<K: Key + Debug>(bytes: &[u8]) -> String {
    match K::decode(bytes) {
        Ok(key) => format!("{key:?}"),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
