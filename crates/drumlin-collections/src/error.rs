//! Errors: which document, of which collection, by which index or view.

use std::fmt::Debug;

use crate::encoding::{DecodeError, Key};

/// The result of most calls.
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

/// An error of a [`Codec`](crate::Codec) or a [migration](crate::Collection::migrate): any error, or a text.
///
/// ```
/// let error: drumlin_collections::BoxError = "a colour that is none".into();
/// # drop(error);
/// ```
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A part of a collection that is derived from its documents.
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

/// The key of a document that an [`Error`] names.
///
/// ```
/// use drumlin_collections::{Error, Result};
///
/// /// The number of an order, or of the one that has its number already.
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

/// A key, encoded, and as errors show it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ShownKey {
    shown: String,
    bytes: Vec<u8>,
}

impl DocumentKey {
    pub(crate) fn new<K: Key + Debug>(bytes: Vec<u8>) -> DocumentKey {
        DocumentKey(Box::new(ShownKey { shown: shown::<K>(&bytes), bytes }))
    }

    /// Its bytes, as [`Key::encode`](crate::encoding::Key::encode) makes them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// The key itself, of type [`Collection::Key`](crate::Collection::Key).
    ///
    /// # Errors
    /// [`DecodeError`] if its bytes are no key of this type.
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

/// An error: what failed, and of which document. After any of them but those of [`Store`](Error::Store) that say so,
/// collection and transaction are as they were before the call, and usable.
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
/// assert_eq!(error.to_string(), r#"collection "users" has a document "ann" already"#);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database refused an operation. Its error names the keyspace, which begins with the collection's name.
    #[error(transparent)]
    Store(#[from] drumlin::Error),
    /// A document with this key is there, and [`insert`](crate::Documents::insert) replaces none.
    #[error("collection {collection:?} has a document {key} already")]
    Exists {
        /// The collection's name.
        collection: &'static str,
        /// The document's key.
        key: String,
    },
    /// Another document has this key of a unique index.
    #[error("collection {collection:?}, document {key}: {index_key} of unique {index} belongs to document {other}")]
    NotUnique {
        /// The collection's name.
        collection: &'static str,
        /// The document that was to be written.
        key: String,
        /// The unique index.
        index: PartName,
        /// The key in that index.
        index_key: String,
        /// The document that has it. To read it in the same transaction, see
        /// [`insert_or_get`](crate::Documents::insert_or_get).
        other: DocumentKey,
    },
    /// The key of a document changed in an [`update`](crate::Documents::update). Remove the document and insert it with
    /// its new key.
    #[error("collection {collection:?}, document {key}: an update changed its key to {new_key}")]
    KeyChanged {
        /// The collection's name.
        collection: &'static str,
        /// The key before.
        key: String,
        /// The key after.
        new_key: String,
    },
    /// The codec could not encode a document, or a value of a view.
    #[error("collection {collection:?}, document {key}: encoding{}: {reason}", .of.map(|part| format!(" for {part}")).unwrap_or_default())]
    Encode {
        /// The collection's name.
        collection: &'static str,
        /// The document's key.
        key: String,
        /// The view whose value it was; the document itself if none.
        of: Option<PartName>,
        /// The codec's error.
        reason: String,
    },
    /// Stored bytes are no document, key or value of these types: they were written by another program, or by another
    /// definition without a change of its version.
    #[error("collection {collection:?}, {}row {row:?}: {reason}", .of.map(|part| format!("{part}, ")).unwrap_or_default())]
    Decode {
        /// The collection's name.
        collection: &'static str,
        /// The index or view; the documents themselves if none.
        of: Option<PartName>,
        /// The row's key: as a value if it is one, else its bytes.
        row: String,
        /// The cause.
        reason: String,
    },
    /// A document of an older schema could not be [migrated](crate::Collection::migrate), or is of a newer one.
    #[error(
        "collection {collection:?}, document {key}: of schema version {version}, and this program has {current}: {reason}"
    )]
    Migration {
        /// The collection's name.
        collection: &'static str,
        /// The document's key.
        key: String,
        /// The version that it was written with.
        version: u32,
        /// The version of the program.
        current: u32,
        /// The cause.
        reason: String,
    },
    /// A function of an index or view panicked. Nothing was changed.
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
    /// The index or view is still being built from the documents that were there before it.
    /// [`wait_built`](crate::Documents::wait_built) waits for it.
    #[error("collection {collection:?}: {part} is still being built")]
    NotReady {
        /// The collection's name.
        collection: &'static str,
        /// The index or view.
        part: PartName,
    },
    /// The index or view could not be built from the documents that were there before it. Opening the database again
    /// tries again.
    #[error("collection {collection:?}: {part} could not be built: {reason}")]
    NotBuilt {
        /// The collection's name.
        collection: &'static str,
        /// The index or view.
        part: PartName,
        /// The cause, which names the document.
        reason: String,
    },
    /// A collection was opened with keys, a codec or values of other types than its rows were written with, and without
    /// the new version that tells so. Nothing was changed.
    ///
    /// Types are known by their [names](crate::encoding::Key::fingerprint). What a function of an index or view does
    /// can't be known: give the index or view a new version when the function changes, though its types do not.
    #[error("collection {collection:?}{}: its rows are of {stored}, and this program has {current}. {}", .of.map(|part| format!(", {part}")).unwrap_or_default(), remedy(.of.as_ref(), stored))]
    OtherTypes {
        /// The collection's name.
        collection: &'static str,
        /// The index or view; the documents themselves if none.
        of: Option<PartName>,
        /// The types of the rows.
        stored: String,
        /// The types of the program.
        current: String,
    },
    /// The definition of a collection contradicts itself, or does not have what was asked for.
    #[error("collection {collection:?}: {reason}")]
    Definition {
        /// The collection's name.
        collection: &'static str,
        /// The contradiction.
        reason: String,
    },
}

/// The remedy for a program whose types are not those of the rows.
fn remedy(of: Option<&PartName>, stored: &str) -> &'static str {
    match of {
        Some(_) => "Give it another version: then it is built again",
        None if stored.starts_with("codec") => {
            "Give the collection another VERSION, and have it migrate the older ones"
        }
        None => "Keys do not migrate: write the documents to a collection of another name",
    }
}

impl Error {
    /// An error of the definition of a collection.
    #[doc(hidden)]
    pub fn definition(collection: &'static str, reason: impl Into<String>) -> Error {
        Error::Definition { collection, reason: reason.into() }
    }
}

/// A key as errors show it, if its bytes are one.
pub(crate) fn shown<K: Key + Debug>(bytes: &[u8]) -> String {
    match K::decode(bytes) {
        Ok(key) => format!("{key:?}"),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
