//! A keyspace of an open database: its tree and the timestamp of its creation.

use crate::counts::CountedTree;
use crate::error::{Error, Result};
use crate::format::Timestamp;

/// An existing keyspace of an open database.
#[derive(Debug)]
pub(crate) struct OpenKeyspace {
    pub(crate) tree: CountedTree,
    /// The timestamp of its creation, or 0 if it already existed in the checkpoint from which the database was opened.
    pub(crate) created: Timestamp,
}

impl OpenKeyspace {
    pub(crate) fn name(&self) -> &str {
        &self.tree.pages.name
    }

    /// Returns an error if the key is too long for the keyspace.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        let limit_bytes = self.tree.key_bytes_max();
        if key.len() > limit_bytes {
            return Err(Error::KeyTooLong { key_bytes: key.len(), limit_bytes, keyspace: self.name().to_owned() });
        }
        Ok(())
    }
}
