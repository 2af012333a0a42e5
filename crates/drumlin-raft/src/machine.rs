//! The state machine of a group, as its user defines it.

use drumlin::{Database, Transaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The effect of a group's entries: a function of the state and a request, the same on every node.
///
/// The state is a Drumlin database, which nothing but the machine writes to. A request is applied in a transaction that
/// also records its index, so each is applied exactly once, whenever the node is killed. See [`KeyValue`] for a machine
/// that comes with this crate.
///
/// ```
/// use drumlin::{Database, Keyspace, Result, Transaction};
/// use drumlin_raft::StateMachine;
///
/// /// Counts how often each name is requested.
/// struct Counters;
///
/// impl StateMachine for Counters {
///     type Request = String;
///     type Response = u64;
///     type Keyspaces = Keyspace;
///
///     fn open(&self, db: &Database) -> Result<Keyspace> {
///         db.keyspace("counters")
///     }
///
///     fn apply(&self, counters: &Keyspace, tx: &mut Transaction, _index: u64, name: &String) -> Result<u64> {
///         let before = tx.get(counters, name)?.map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()));
///         tx.insert(counters, name, (before + 1).to_le_bytes())?;
///         Ok(before + 1)
///     }
/// }
/// ```
///
/// [`KeyValue`]: crate::KeyValue
pub trait StateMachine: Send + Sync + 'static {
    /// The request of a client. It is stored in the log, in the encoding of postcard: add variants and fields at the
    /// end only, and replace the machine on all nodes before the first such request.
    type Request: Serialize + DeserializeOwned + Send + Sync + 'static;

    /// The answer to a client. If a client may do something wrong, that is a response, not an error.
    type Response: Send + 'static;

    /// The keyspaces of the state. Names that begin with `raft` belong to this crate.
    type Keyspaces: Send + Sync + 'static;

    /// Opens the keyspaces of the state. Called for each opening, and after a snapshot was installed.
    ///
    /// # Errors
    /// Any error of the database; the group is then not opened.
    fn open(&self, db: &Database) -> drumlin::Result<Self::Keyspaces>;

    /// Applies the request at an index of the log, and returns the answer. What it does must depend on the state, the
    /// index and the request alone: not on time, random numbers, or the order of a hash table.
    ///
    /// It may be called twice for a request: if the transaction became too large, it is rolled back to before the
    /// request, and the request begins the next one.
    ///
    /// # Errors
    /// An error of the database. The group then stops, with the index named, and applies nothing until it is opened
    /// again. The same holds if the function panics.
    fn apply(
        &self,
        keyspaces: &Self::Keyspaces,
        tx: &mut Transaction,
        index: u64,
        request: &Self::Request,
    ) -> drumlin::Result<Self::Response>;
}
