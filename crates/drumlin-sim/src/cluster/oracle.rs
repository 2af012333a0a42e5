//! The promises of a cluster, and the checks of them.
//!
//! # Checks
//! 1. Every node that applies the request at an index applies the same request, and gets the answer that follows from
//!    the requests before it. A request is applied because it is committed, so none is lost or replaced afterwards.
//! 2. An acknowledged write was applied at the index that the client received, and its index follows those of all
//!    operations that had ended when the write began.
//! 3. A linearizable read sees the state at an index that is not before those of the operations that had ended when the
//!    read began. All keys are read from one state, so histories are linearizable for each key and for all of them.
//! 4. A state holds the rows that follow from the requests up to its last applied index, on any node, at any time. So
//!    two states at the same index are equal.
//! 5. A term has one leader.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drumlin::{Database, Keyspace, Transaction};
use drumlin_io::testing::sim;
use drumlin_raft::{KeyValue, KeyValueRequest, KeyValueResponse, StateMachine};

/// The rows of a state.
pub(crate) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The values of a key: the index that set each, and the value, or `None` if that index removed the key.
type Versions = Vec<(u64, Option<Vec<u8>>)>;

/// The oracle of a cluster. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Oracle(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    entries: BTreeMap<u64, (KeyValueRequest, KeyValueResponse)>,
    versions: BTreeMap<Vec<u8>, Versions>,
    /// The largest index that an operation which has ended has seen.
    seen: u64,
    leaders: BTreeMap<u64, u64>,
}

impl Inner {
    fn value_at(&self, key: &[u8], index: u64) -> Option<&Vec<u8>> {
        let versions = self.versions.get(key)?;
        versions.iter().rev().find(|(at, _)| *at <= index)?.1.as_ref()
    }
}

/// Describes a value in a few characters.
fn tell(value: Option<&[u8]>) -> String {
    value.map_or("absent".to_owned(), |value| {
        let text = value[..value.len().min(24)].escape_ascii();
        format!("{text} ({} bytes)", value.len())
    })
}

impl Oracle {
    /// No task yields to the scheduler while it holds this lock.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks what a node has applied.
    fn applied(&self, index: u64, request: &KeyValueRequest, response: &KeyValueResponse) {
        let inner = &mut *self.lock();
        if let Some((first_request, first_response)) = inner.entries.get(&index) {
            assert!(first_request == request, "entry {index} is \"{request}\", and was \"{first_request}\" elsewhere");
            assert!(first_response == response, "\"{request}\" at {index} has different answers");
            return;
        }
        let last = inner.entries.last_key_value().map_or(0, |(last, _)| *last);
        assert!(index > last, "\"{request}\" at {index} is applied for the first time after entry {last}");
        let (KeyValueRequest::Put { key, .. }
        | KeyValueRequest::Remove { key }
        | KeyValueRequest::CompareAndSet { key, .. }) = request;
        let before = inner.value_at(key, index).cloned();
        let (done, after) = match request {
            KeyValueRequest::Put { value, .. } => (true, Some(value.clone())),
            KeyValueRequest::Remove { .. } => (true, None),
            KeyValueRequest::CompareAndSet { expected, value, .. } if *expected == before => (true, value.clone()),
            KeyValueRequest::CompareAndSet { .. } => (false, before.clone()),
        };
        assert!(
            *response == KeyValueResponse { done, before: before.clone() },
            "\"{request}\" at {index} has found {}; expected was {}",
            tell(response.before.as_deref()),
            tell(before.as_deref())
        );
        if done {
            inner.versions.entry(key.clone()).or_default().push((index, after));
        }
        inner.entries.insert(index, (request.clone(), response.clone()));
    }

    /// Begins an operation. Returns the index that it has to follow.
    pub(crate) fn begin(&self) -> u64 {
        self.lock().seen
    }

    /// Checks a write that was acknowledged.
    pub(crate) fn wrote(&self, began: u64, index: u64, request: &KeyValueRequest, response: &KeyValueResponse) {
        let mut inner = self.lock();
        assert!(index > began, "\"{request}\" was written at {index}, and began after an operation had seen {began}");
        let applied = inner.entries.get(&index).map(|(request, response)| (request, response));
        assert!(
            applied == Some((request, response)),
            "\"{request}\" was acknowledged at {index}, which has {applied:?}"
        );
        inner.seen = inner.seen.max(index);
        if sim::is_told() {
            eprintln!("{:?}: \"{request}\" is acknowledged at {index}", sim::now());
        }
    }

    /// Checks a linearizable read of a state.
    pub(crate) fn read(&self, began: u64, state: &ReadState, node: u64) {
        self.read_stale(state, node);
        let (index, mut inner) = (state.index, self.lock());
        if sim::is_told() {
            eprintln!("{:?}: node {node} was read at {index}", sim::now());
        }
        assert!(index >= began, "node {node} was read at {index}, after an operation had seen {began}");
        inner.seen = inner.seen.max(index);
    }

    /// Checks a read of a state that need not be the newest.
    pub(crate) fn read_stale(&self, state: &ReadState, node: u64) {
        let (inner, index, key) = (self.lock(), state.index, &state.key);
        let expected = inner.value_at(key, index).map(Vec::as_slice);
        assert!(
            state.value.as_deref() == expected,
            "on node {node} at {index}, {} is {}; expected was {}",
            key.escape_ascii(),
            tell(state.value.as_deref()),
            tell(expected)
        );
    }

    /// Checks all rows of a node's state.
    pub(crate) fn compare(&self, node: u64, index: u64, rows: &Rows) {
        let inner = self.lock();
        for key in inner.versions.keys().chain(rows.keys()) {
            let (found, expected) = (rows.get(key).map(Vec::as_slice), inner.value_at(key, index).map(Vec::as_slice));
            assert!(
                found == expected,
                "in the state of node {node} at {index}, {} is {}; expected was {}",
                key.escape_ascii(),
                tell(found),
                tell(expected)
            );
        }
    }

    /// Checks an entry of a node's log, if it is known to be committed.
    pub(crate) fn compare_entry(&self, node: u64, index: u64, request: &KeyValueRequest) {
        let inner = self.lock();
        if let Some((expected, _)) = inner.entries.get(&index) {
            assert!(request == expected, "the log of node {node} has \"{request}\" at {index}, not \"{expected}\"");
        }
    }

    /// Checks that a term has one leader.
    pub(crate) fn leads(&self, term: u64, node: u64) {
        let leader = *self.lock().leaders.entry(term).or_insert(node);
        assert_eq!(leader, node, "term {term} has two leaders");
    }

    /// Returns how many terms had a leader.
    pub(crate) fn term_count(&self) -> u64 {
        self.lock().leaders.len() as u64
    }

    /// Returns the number of requests that were applied.
    pub(crate) fn entry_count(&self) -> u64 {
        self.lock().entries.len() as u64
    }
}

/// The value of a key in a state.
#[derive(Debug)]
pub(crate) struct ReadState {
    /// The last index that was applied to the state.
    pub(crate) index: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
}

/// Returns the index of the last entry that was applied to a state, as of a snapshot.
fn index_of(snapshot: &drumlin::Snapshot, db: &Database) -> drumlin::Result<u64> {
    let applied = snapshot.get(&db.existing_keyspace("raft")?, "applied")?;
    Ok(applied.map_or(0, |id| u64::from_le_bytes(id[..8].try_into().expect("eight bytes"))))
}

impl ReadState {
    /// Reads a key, and the last applied index of the same moment.
    pub(crate) fn read(db: &Database, rows: &Keyspace, key: Vec<u8>) -> drumlin::Result<ReadState> {
        let snapshot = db.snapshot();
        let index = index_of(&snapshot, db)?;
        let value = snapshot.get(rows, &key)?.map(|value| value.to_vec());
        Ok(ReadState { index, key, value })
    }
}

/// Reads all rows of a state, and its last applied index.
pub(crate) fn read_all(db: &Database, rows: &Keyspace) -> drumlin::Result<(u64, Rows)> {
    let snapshot = db.snapshot();
    let index = index_of(&snapshot, db)?;
    let rows = snapshot.iter(rows).map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec())));
    Ok((index, rows.collect::<drumlin::Result<_>>()?))
}

/// The key-value machine, with the oracle looking on.
pub(crate) struct Watched(pub(crate) Oracle);

impl StateMachine for Watched {
    type Request = KeyValueRequest;
    type Response = KeyValueResponse;
    type Keyspaces = Keyspace;

    fn open(&self, db: &Database) -> drumlin::Result<Keyspace> {
        KeyValue.open(db)
    }

    fn apply(
        &self,
        rows: &Keyspace,
        tx: &mut Transaction,
        index: u64,
        request: &KeyValueRequest,
    ) -> drumlin::Result<KeyValueResponse> {
        let response = KeyValue.apply(rows, tx, index, request)?;
        self.0.applied(index, request, &response);
        Ok(response)
    }
}
