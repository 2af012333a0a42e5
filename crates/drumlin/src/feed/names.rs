//! The names of keyspaces as of a commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::format::KeyspaceId;
use crate::format::record::{self, Operation};

/// The names and page sizes of keyspaces as of a commit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Names {
    keyspaces: BTreeMap<KeyspaceId, (u32, Arc<str>)>,
}

impl Names {
    /// Adds a keyspace.
    pub(crate) fn add(&mut self, keyspace: KeyspaceId, page_bytes: u32, name: &str) {
        self.keyspaces.insert(keyspace, (page_bytes, name.into()));
    }

    /// Returns the name of a keyspace.
    pub(crate) fn get(&self, keyspace: KeyspaceId) -> Option<&str> {
        self.keyspaces.get(&keyspace).map(|(_, name)| &**name)
    }

    /// Appends an operation for each keyspace that creates it.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for (keyspace, (page_bytes, name)) in &self.keyspaces {
            record::encode(*keyspace, &Operation::Create { page_bytes: *page_bytes, name }, out);
        }
    }

    /// Returns `true` if a commit with these operations changes names. Such a commit does nothing else.
    pub(super) fn are_changed_by(body: &[u8]) -> bool {
        let first = record::decode(body).next().flatten();
        let is_of_names = |operation: &Operation<'_>| {
            use Operation::{Clone, Create, Drop, Rename};
            matches!(operation, Create { .. } | Drop | Rename { .. } | Clone { .. })
        };
        first.is_some_and(|(_, operation)| is_of_names(&operation))
    }

    /// Returns `true` if the operations of a commit are well-formed, and every keyspace that they change exists.
    pub(super) fn admit(&self, body: &[u8]) -> bool {
        let mut known = None;
        record::decode(body).all(|operation| match operation {
            None => false,
            Some((_, Operation::Create { .. })) => true,
            Some((_, Operation::Clone { from, .. })) => self.get(from).is_some(),
            Some((keyspace, _)) if known == Some(keyspace) => true,
            Some((keyspace, _)) => {
                known = Some(keyspace);
                self.get(keyspace).is_some()
            }
        })
    }

    /// Makes the changes of a commit. Returns `None` if an operation is malformed.
    pub(super) fn apply(&mut self, body: &[u8]) -> Option<()> {
        for operation in record::decode(body) {
            match operation? {
                (keyspace, Operation::Create { page_bytes, name }) => self.add(keyspace, page_bytes, name),
                (keyspace, Operation::Clone { from, name, .. }) => {
                    let (page_bytes, _) = self.keyspaces.get(&from)?;
                    self.add(keyspace, *page_bytes, name);
                }
                (keyspace, Operation::Rename { name }) => {
                    let (page_bytes, _) = self.keyspaces.get(&keyspace)?;
                    self.add(keyspace, *page_bytes, name);
                }
                (keyspace, Operation::Drop) => drop(self.keyspaces.remove(&keyspace)?),
                _ => {}
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names survive encoding, and follow creations, renames and drops.
    #[test]
    fn names_follow_alterations() {
        let mut names = Names::default();
        names.add(KeyspaceId(1), 4096, "orders");
        names.add(KeyspaceId(2), 512, "stock");
        let mut body = Vec::new();
        names.encode(&mut body);
        assert!(Names::are_changed_by(&body));
        let mut read = Names::default();
        read.apply(&body).unwrap();
        assert_eq!(read, names);
        let mut body = Vec::new();
        record::encode(KeyspaceId(1), &Operation::Rename { name: "stock" }, &mut body);
        record::encode(KeyspaceId(2), &Operation::Drop, &mut body);
        names.apply(&body).unwrap();
        assert_eq!((names.get(KeyspaceId(1)), names.get(KeyspaceId(2))), (Some("stock"), None));
        assert_eq!(names.apply(&body), None, "a keyspace is dropped twice");
        let mut body = Vec::new();
        record::encode(KeyspaceId(1), &Operation::Remove { key: b"a" }, &mut body);
        assert!(!Names::are_changed_by(&body));
        assert!(names.admit(&body) && !names.admit(&body[..body.len() - 1]), "a malformed operation is admitted");
        record::encode(KeyspaceId(2), &Operation::Remove { key: b"a" }, &mut body);
        assert!(!names.admit(&body), "a row of a dropped keyspace is admitted");
    }
}
