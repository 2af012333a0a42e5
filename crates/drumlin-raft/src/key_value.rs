//! A state machine that comes with this crate: rows by key.

use drumlin::{Database, Keyspace, Result, Transaction};
use serde::{Deserialize, Serialize};

use crate::machine::StateMachine;

/// The keyspace with the rows.
const ROWS: &str = "rows";

/// A state machine of rows by key: put, remove, and compare-and-set. To read, count or walk through the rows, use the
/// keyspace that [`State::read`](crate::State::read) hands out.
///
/// ```
/// # use drumlin_raft::{Content, EntryId, Identity, Node, NodeOptions, Step};
/// use drumlin_raft::{KeyValue, KeyValueRequest, KeyValueResponse};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-raft-kv-{}", std::process::id()));
/// # let node = Node::create(&folder, &Identity::new("shop", 3), &NodeOptions::new())?;
/// # let group = node.group(1, KeyValue)?;
/// // A cluster does this with a request once it is committed:
/// let step = |index, request| Step { id: EntryId { index, bytes: vec![] }, content: Content::Request(request) };
/// let answers = group.state().apply(&[
///     step(1, KeyValueRequest::put("apples", "3")),
///     step(2, KeyValueRequest::compare_and_set("apples", Some("3"), Some("4"))),
/// ])?;
/// assert_eq!(answers[1], Some(KeyValueResponse { done: true, before: Some(b"3".to_vec()) }));
/// group.state().read(|_, rows| {
///     assert_eq!(rows.get("apples")?.unwrap(), "4");
///     assert_eq!(rows.count("a".."b")?, 1);
///     Ok::<(), drumlin::Error>(())
/// })?;
/// # drop((group, node));
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin_raft::Error>(())
/// ```
#[derive(Clone, Copy, Default, Debug)]
pub struct KeyValue;

/// A request to [`KeyValue`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KeyValueRequest {
    /// Sets the value of a key.
    Put {
        /// The key, of at most 1,024 bytes.
        key: Vec<u8>,
        /// The new value.
        value: Vec<u8>,
    },
    /// Removes a key.
    Remove {
        /// The key.
        key: Vec<u8>,
    },
    /// Sets or removes the value of a key if it is what the caller expects.
    CompareAndSet {
        /// The key, of at most 1,024 bytes.
        key: Vec<u8>,
        /// The value that the key must have; `None` if it must have none.
        expected: Option<Vec<u8>>,
        /// The new value; `None` to remove the key.
        value: Option<Vec<u8>>,
    },
}

impl KeyValueRequest {
    /// Returns a request to set the value of a key.
    #[must_use]
    pub fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> KeyValueRequest {
        KeyValueRequest::Put { key: key.as_ref().to_vec(), value: value.as_ref().to_vec() }
    }

    /// Returns a request to remove a key.
    #[must_use]
    pub fn remove(key: impl AsRef<[u8]>) -> KeyValueRequest {
        KeyValueRequest::Remove { key: key.as_ref().to_vec() }
    }

    /// Returns a request to set the value of a key, or to remove it, if the value is what is expected.
    #[must_use]
    pub fn compare_and_set<V: AsRef<[u8]>>(
        key: impl AsRef<[u8]>,
        expected: Option<V>,
        value: Option<V>,
    ) -> KeyValueRequest {
        let owned = |value: Option<V>| value.map(|value| value.as_ref().to_vec());
        KeyValueRequest::CompareAndSet { key: key.as_ref().to_vec(), expected: owned(expected), value: owned(value) }
    }

    fn key(&self) -> &[u8] {
        match self {
            KeyValueRequest::Put { key, .. }
            | KeyValueRequest::Remove { key }
            | KeyValueRequest::CompareAndSet { key, .. } => key,
        }
    }
}

impl std::fmt::Display for KeyValueRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verb = match self {
            KeyValueRequest::Put { .. } => "put",
            KeyValueRequest::Remove { .. } => "remove",
            KeyValueRequest::CompareAndSet { .. } => "compare and set",
        };
        write!(f, "{verb} {}", self.key().escape_ascii())
    }
}

/// The answer of [`KeyValue`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyValueResponse {
    /// `true` if the request took effect: not if the value was not the expected one, or the key is too long.
    pub done: bool,
    /// The value of the key before.
    pub before: Option<Vec<u8>>,
}

impl StateMachine for KeyValue {
    type Request = KeyValueRequest;
    type Response = KeyValueResponse;
    type Keyspaces = Keyspace;

    fn open(&self, db: &Database) -> Result<Keyspace> {
        db.keyspace(ROWS)
    }

    fn apply(
        &self,
        rows: &Keyspace,
        tx: &mut Transaction,
        _index: u64,
        request: &KeyValueRequest,
    ) -> Result<KeyValueResponse> {
        let key = request.key();
        // Every node has the same page size, so every node refuses it.
        if key.len() > rows.key_bytes_max() {
            return Ok(KeyValueResponse { done: false, before: None });
        }
        let before = tx.get(rows, key)?.map(|value| value.to_vec());
        let done = match request {
            KeyValueRequest::CompareAndSet { expected, .. } => *expected == before,
            KeyValueRequest::Put { .. } | KeyValueRequest::Remove { .. } => true,
        };
        match request {
            KeyValueRequest::Put { value, .. } | KeyValueRequest::CompareAndSet { value: Some(value), .. } if done => {
                tx.insert(rows, key, value)?;
            }
            KeyValueRequest::Remove { .. } | KeyValueRequest::CompareAndSet { value: None, .. } if done => {
                tx.remove(rows, key)?;
            }
            _ => {}
        }
        Ok(KeyValueResponse { done, before })
    }
}
