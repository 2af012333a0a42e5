//! The errors of this crate.

use std::io;
use std::path::PathBuf;

use crate::identity::Identity;

/// The result type of most calls in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the storage of a node.
///
/// ```
/// use drumlin_raft::Error;
///
/// fn explain(error: &Error) {
///     if let Error::Stopped { group, index, reason } = error {
///         eprintln!("group {group} can't apply entry {index}: {reason}");
///     }
/// }
/// # explain(&Error::NoSuchSnapshot);
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The log, or a database of a state machine, has failed or refused a call.
    #[error(transparent)]
    Drumlin(#[from] drumlin::Error),

    /// The folder belongs to another node, or to a node of another cluster. Nothing was changed.
    #[error("{} is the folder of {found}, not of {expected}", path.display())]
    OtherNode {
        /// The folder.
        path: PathBuf,
        /// The node that the caller named.
        expected: Identity,
        /// The node that the folder belongs to.
        found: Identity,
    },

    /// The folder was not created to the end, so there was never a node in it.
    #[error("{} holds no node. Node::create finishes creating it", path.display())]
    NotCreated {
        /// The folder.
        path: PathBuf,
    },

    /// The folder has this node already. Nothing was changed.
    #[error("{} has this node already. Node::open opens it", path.display())]
    AlreadyCreated {
        /// The folder.
        path: PathBuf,
    },

    /// The state machine can't go on: a request that can't be applied. Every later call says the same, and no entry is
    /// skipped. Other groups are not concerned.
    #[error("the state machine of group {group} has stopped at entry {index}: {reason}")]
    Stopped {
        /// The group.
        group: u64,
        /// The index of the entry that can't be applied.
        index: u64,
        /// The reason.
        reason: String,
    },

    /// Stored bytes can't be decoded: an entry of the log, a vote, or a row of the state.
    #[error("{what} can't be decoded: {reason}")]
    Undecodable {
        /// The thing that can't be decoded, with its index if it is an entry.
        what: String,
        /// The reason.
        reason: String,
    },

    /// The request is too large to be proposed. Nothing was changed.
    #[error("a request takes {bytes} bytes, and may take {limit_bytes}")]
    RequestTooLarge {
        /// The length of the request.
        bytes: u64,
        /// The length that it may have: [`NodeOptions::request_bytes_max`](crate::NodeOptions::request_bytes_max).
        limit_bytes: u64,
    },

    /// A snapshot can't be installed. It was discarded, and the old state stays.
    #[error("the snapshot can't be used: {reason}")]
    UnusableSnapshot {
        /// The reason.
        reason: String,
    },

    /// There is no snapshot, or it was replaced by a newer one.
    #[error("there is no such snapshot")]
    NoSuchSnapshot,
}

#[allow(clippy::needless_pass_by_value, reason = "they are given to map_err")]
impl Error {
    pub(crate) fn undecodable(what: impl Into<String>, reason: impl ToString) -> Error {
        Error::Undecodable { what: what.into(), reason: reason.to_string() }
    }

    pub(crate) fn snapshot(reason: impl ToString) -> Error {
        Error::UnusableSnapshot { reason: reason.to_string() }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Drumlin(_) => {
                let Error::Drumlin(error) = error else { unreachable!("it was matched") };
                return io::Error::from(error);
            }
            Error::Undecodable { .. } | Error::UnusableSnapshot { .. } => io::ErrorKind::InvalidData,
            Error::RequestTooLarge { .. } => io::ErrorKind::InvalidInput,
            Error::NotCreated { .. } | Error::NoSuchSnapshot => io::ErrorKind::NotFound,
            Error::AlreadyCreated { .. } => io::ErrorKind::AlreadyExists,
            Error::OtherNode { .. } | Error::Stopped { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
