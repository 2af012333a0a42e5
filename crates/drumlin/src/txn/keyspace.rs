//! A keyspace of an open database: its tree and the timestamp of its creation.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::counts::CountedTree;
use crate::error::{Error, Result};
use crate::format::Timestamp;

/// An existing keyspace of an open database.
#[derive(Debug)]
pub(crate) struct OpenKeyspace {
    pub(crate) tree: CountedTree,
    /// The timestamp of its creation, or 0 if it already existed in the checkpoint from which the database was opened.
    pub(crate) created: Timestamp,
    /// The timestamp of the commit that gave the keyspace its name: its creation, or the newest that renamed it.
    pub(crate) named: AtomicU64,
}

impl OpenKeyspace {
    /// Returns the name that the keyspace has now.
    pub(crate) fn name(&self) -> Arc<str> {
        self.tree.pages.name()
    }

    /// Returns an error if the key is too long for the keyspace.
    #[inline]
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        let limit_bytes = self.tree.key_bytes_max();
        if key.len() > limit_bytes {
            return Err(Error::KeyTooLong { key_bytes: key.len(), limit_bytes, keyspace: self.name().to_string() });
        }
        Ok(())
    }
}
