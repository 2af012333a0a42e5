//! Creating, renaming and dropping keyspaces, several in one atomic step.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::keyspaces::{Alteration, Keyspaces, NewKeyspace};
use super::state::Store;
use crate::error::{Error, Result, quoted};
use crate::format::KeyspaceId;
use crate::format::node::is_page_bytes;
use crate::memory::Account;
use crate::seglog::Body;
use crate::space::Purpose;
use crate::space::table::KEYSPACE_BYTES;
use crate::task::{WaitMode, ready};
use crate::txn::keyspace::OpenKeyspace;

/// The length of the longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// One of the changes that an alteration consists of. Each refers to the names that the changes before it have left.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Creates a keyspace with this page size, or with the default one.
    Create {
        name: String,
        page_bytes: Option<usize>,
    },
    Rename {
        from: String,
        to: String,
    },
    Swap {
        one: String,
        other: String,
    },
    Drop {
        name: String,
    },
}

/// A change of the keyspace with an id, as a log record has it.
#[derive(Clone, Debug)]
pub(crate) enum OwnedChange {
    Create { page_bytes: usize, name: String },
    Rename { name: String },
    Drop,
}

/// The keyspace that has a name after some of the changes.
#[derive(Clone)]
enum Owner {
    Existing(Arc<OpenKeyspace>),
    /// The index of a keyspace that is to be created.
    New(usize),
}

/// The names of keyspaces after some of the changes.
struct Names<'k> {
    keyspaces: &'k Keyspaces,
    /// The names that have changed hands.
    changed: BTreeMap<String, Option<Owner>>,
    /// The page sizes of the keyspaces to be created; `None` for the default one.
    created: Vec<Option<usize>>,
}

pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        let name = quoted(name);
        return Err(Error::Invalid(format!("{name} can't name a keyspace: names have 1 to {NAME_BYTES_MAX} bytes")));
    }
    Ok(())
}

impl Names<'_> {
    fn owner(&self, name: &str) -> Option<Owner> {
        match self.changed.get(name) {
            Some(owner) => owner.clone(),
            None => self.keyspaces.get(name).map(Owner::Existing),
        }
    }

    fn take(&mut self, name: &str) -> Result<Owner> {
        let owner = self.owner(name).ok_or_else(|| Error::NoSuchKeyspace { name: name.to_owned() })?;
        self.changed.insert(name.to_owned(), None);
        Ok(owner)
    }

    fn give(&mut self, name: &str, owner: Owner) -> Result<()> {
        check_name(name)?;
        if self.owner(name).is_some() {
            return Err(Error::KeyspaceExists { name: name.to_owned() });
        }
        self.changed.insert(name.to_owned(), Some(owner));
        Ok(())
    }

    /// Applies the next change. Returns the keyspace that it drops, if it drops one.
    fn apply(&mut self, change: &Change) -> Result<Option<Arc<OpenKeyspace>>> {
        match change {
            Change::Create { name, page_bytes } => {
                self.created.push(*page_bytes);
                self.give(name, Owner::New(self.created.len() - 1))?;
            }
            Change::Rename { from, to } => {
                let owner = self.take(from)?;
                self.give(to, owner)?;
            }
            Change::Swap { one, other } => {
                let owner = self.take(one)?;
                // A keyspace may be swapped with itself.
                if one == other {
                    self.give(one, owner)?;
                } else {
                    let other_owner = self.take(other)?;
                    self.give(one, other_owner)?;
                    self.give(other, owner)?;
                }
            }
            Change::Drop { name } => {
                if let Owner::Existing(open) = self.take(name)? {
                    return Ok(Some(open));
                }
            }
        }
        Ok(None)
    }
}

impl Store {
    pub(crate) fn create_keyspace(&self, name: &str, page_bytes: usize) -> Result<Arc<OpenKeyspace>> {
        let _defining = self.defining.lock();
        if let Some(open) = self.durable_keyspace(name)? {
            crate::coverage::mark!("two threads created the same keyspace");
            return Ok(open);
        }
        self.make_changes(&[Change::Create { name: name.to_owned(), page_bytes: Some(page_bytes) }])?;
        Ok(self.keyspace(name).expect("created above, and none is dropped meanwhile"))
    }

    /// Makes all of these changes in one atomic step, or none of them. Durable when it returns.
    pub(crate) fn alter(&self, changes: &[Change]) -> Result<()> {
        let _defining = self.defining.lock();
        self.make_changes(changes)
    }

    /// Like [`alter`](Self::alter), for a caller that has locked `defining`.
    fn make_changes(&self, changes: &[Change]) -> Result<()> {
        self.check_writable()?;
        let alteration = self.plan(changes)?;
        if alteration.is_empty() {
            return self.engine.check_failure();
        }
        self.commit_alteration(&alteration, changes.len())
    }

    /// Creates the keyspace of prepared transactions. The caller has locked `defining`.
    pub(super) fn create_prepared_keyspace(&self, page_bytes: usize) -> Result<()> {
        let hidden = NewKeyspace { id: KeyspaceId::PREPARED, page_bytes, name: "".into() };
        self.commit_alteration(&Alteration { created: vec![hidden], ..Alteration::default() }, 1)
    }

    /// Makes the changes of an alteration that another database has made. Creates keyspaces with the same ids. Returns
    /// an error if the changes are not possible.
    pub(crate) fn repeat_alteration(&self, operations: &[(KeyspaceId, OwnedChange)]) -> Result<()> {
        let _defining = self.defining.lock();
        let mut alteration = Alteration::default();
        let impossible = || Error::Invalid("an archived alteration does not fit the restored keyspaces".into());
        let open = |id| self.keyspace_with_id(id).ok_or_else(impossible);
        for &(id, ref change) in operations {
            match change {
                OwnedChange::Create { page_bytes, name } => {
                    if !is_page_bytes(*page_bytes) || self.engine.space.page_space(id).is_some() || id.is_of_kept() {
                        return Err(impossible());
                    }
                    let new = NewKeyspace { id, page_bytes: *page_bytes, name: name.as_str().into() };
                    alteration.created.push(new);
                }
                OwnedChange::Rename { name } => alteration.renamed.push((open(id)?, name.as_str().into())),
                OwnedChange::Drop => alteration.dropped.push(open(id)?),
            }
        }
        if !self.keyspaces.allows(&alteration) || !alteration.created.is_sorted_by(|one, next| one.id < next.id) {
            return Err(impossible());
        }
        self.commit_alteration(&alteration, operations.len())
    }

    /// Makes an alteration that was planned from `change_count` changes. Durable when it returns.
    fn commit_alteration(&self, alteration: &Alteration, change_count: usize) -> Result<()> {
        let Alteration { dropped, renamed, created } = alteration;
        let engine = &self.engine;
        let begin_drop = |open: &Arc<OpenKeyspace>| self.prepared.begin_drop(open.tree.pages.id, &open.name());
        let _dropping: Vec<_> = dropped.iter().map(begin_drop).collect::<Result<_>>()?;
        let body = alteration.encode();
        let body_bytes_max = engine.budget.transaction_bytes_max();
        if body.len() as u64 > body_bytes_max {
            let what = "the names of the keyspaces that it changes";
            return Err(Error::alteration_too_large(what, change_count, body.len() as u64, body_bytes_max));
        }
        let root_bytes: u64 = created.iter().map(|new| new.page_bytes as u64).sum();
        let root_bytes_max = engine.budget.limit_bytes(Account::Pinned) / 2;
        let changes_max = engine.budget.epoch_changes_max() / 8;
        if root_bytes > root_bytes_max || created.len() as u64 > changes_max {
            let what = "the first pages of the keyspaces that it creates";
            let limit_bytes = root_bytes_max.min(changes_max * (root_bytes / created.len() as u64));
            return Err(Error::alteration_too_large(what, change_count, root_bytes, limit_bytes));
        }
        let table_bytes = KEYSPACE_BYTES * created.len() as u64;
        engine.space.check_table_growth(table_bytes)?;
        engine.pool.fit_frames(table_bytes)?;
        ready(engine.secure_changes(WaitMode::Blocking, created.len() as u64));
        // Space for the first pages, which will be dirty, and for the entries in the catalogue. Keyspaces can be
        // dropped on a full disk.
        let reserved_bytes = 2 * root_bytes + (renamed.len() * NAME_BYTES_MAX) as u64;
        let _reserved = match reserved_bytes {
            0 => None,
            _ => Some(ready(engine.reserve_space(WaitMode::Blocking, Purpose::Put, reserved_bytes))?),
        };
        engine.log_ddl(&Body::new(body), |take_timestamp| {
            let frames = created.iter().map(|new| engine.pool.take_frame(new.page_bytes)).collect::<Result<_>>()?;
            let epoch_guard = engine.space.epoch_latch.exclusive();
            dropped.iter().try_for_each(|open| engine.pool.prepare_root(&epoch_guard, &open.tree.pages))?;
            let timestamp = take_timestamp()?;
            // Nothing below this point can fail.
            self.keyspaces.alter(engine, alteration, frames, &epoch_guard, timestamp);
            engine.clock.mark_applied(timestamp);
            Ok(())
        })?;
        if !dropped.is_empty() {
            self.maintenance.ask_to_free();
        }
        Ok(())
    }

    /// Checks the changes one after the other, and returns what they amount to.
    fn plan(&self, changes: &[Change]) -> Result<Alteration> {
        let mut names = Names { keyspaces: &self.keyspaces, changed: BTreeMap::new(), created: Vec::new() };
        let mut alteration = Alteration::default();
        for change in changes {
            alteration.dropped.extend(names.apply(change)?);
        }
        let mut created = Vec::new();
        for (name, owner) in names.changed {
            match owner {
                Some(Owner::Existing(open)) if *open.name() != *name => {
                    alteration.renamed.push((open, name.into()));
                }
                Some(Owner::New(index)) => created.push((name, names.created[index].unwrap_or(self.page_bytes))),
                _ => {}
            }
        }
        let Some(ids) = self.keyspaces.next(created.len() as u32) else {
            return Err(Error::Invalid("no more keyspaces can be created: their numbers are used up".into()));
        };
        let create = |(id, (name, page_bytes)): (_, (String, usize))| NewKeyspace { id, page_bytes, name: name.into() };
        alteration.created = ids.zip(created).map(create).collect();
        debug_assert!(self.keyspaces.allows(&alteration), "two keyspaces would have one name: {alteration:?}");
        Ok(alteration)
    }
}
