//! Reads: a row from its leaf, or its old version.

use std::sync::Arc;

use super::Engine;
use crate::error::{Error, Result};
use crate::format::node::LargeRef;
use crate::format::{PageId, Timestamp};
use crate::pool::{FrameRead, Needs, Stop};
use crate::task::{WaitMode, ready};
use crate::tree::node::{Leaf, RowValue};
use crate::tree::{Target, Tree};
use crate::txn::values::{self, UpcomingValues};
use crate::txn::versions::OldVersion;

/// The state of the database that a read sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadAt {
    /// The newest visible commit when the leaf is read.
    Visible,
    /// The newest published commit when the leaf is read, durable or not.
    Published,
    /// The state after this commit.
    Timestamp(Timestamp),
}

/// The result of a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    Inline(Arc<[u8]>),
    Large(LargeRef),
}

impl Found {
    fn reference(&self) -> Option<LargeRef> {
        if let Found::Large(reference) = self { Some(*reference) } else { None }
    }
}

/// Keys whose leaves are brought in together: few enough that the first is still in memory when the last arrives.
const FIND_MANY_PART: usize = 256;

/// Keys that descend together: while the leaf of one comes into the processor's cache, the others go down (group
/// prefetching: Chen, Ailamaki, Gibbons and Mowry, "Improving Hash Join Performance through Prefetching", ICDE 2004).
const GROUP: usize = 16;

/// The descent for a key among many.
#[derive(Clone, Copy, Debug)]
struct Descent {
    index: usize,
    /// The page where it stands.
    page: PageId,
}

impl Engine {
    /// The row that a read at this timestamp or horizon sees. O(log n).
    pub(crate) fn find(&self, tree: &Tree, key: &[u8], read_at: ReadAt) -> Result<Option<Found>> {
        tree.waiting(|| self.try_find(tree, key, read_at))
    }

    /// The core of [`find`](Self::find).
    pub(crate) fn try_find(&self, tree: &Tree, key: &[u8], read_at: ReadAt) -> Result<Option<Found>, Stop> {
        let page = tree.read_leaf(Target::At(key))?;
        Ok(self.found_in(tree, &page, key, read_at))
    }

    /// The row in the leaf that covers its key, or its old version.
    #[inline]
    fn found_in(&self, tree: &Tree, page: &FrameRead<'_>, key: &[u8], read_at: ReadAt) -> Option<Found> {
        let leaf = Leaf::new(page);
        let at = match read_at {
            ReadAt::Visible => self.clock.visible(),
            ReadAt::Published => self.clock.published(),
            ReadAt::Timestamp(at) => at,
        };
        debug_assert!(at <= self.clock.published(), "a read at {at}, which is not published");
        if tree.pages.is_loaded_since(at) {
            return None;
        }
        if leaf.newest() > at
            && let Some(was) = self.versions.find(tree.pages.id, page.page(), key, at)
        {
            return match was {
                OldVersion::Absent => None,
                OldVersion::Inline(value) => Some(Found::Inline(value.into())),
                OldVersion::Large(reference) => Some(Found::Large(reference)),
            };
        }
        leaf.search(key).ok().map(|index| match leaf.value(index) {
            RowValue::Inline(value) => Found::Inline(value.into()),
            RowValue::Large(reference) => Found::Large(reference),
        })
    }

    /// The value of the row. A value that is replaced while it is read is looked up again.
    #[inline]
    pub(crate) fn get(&self, tree: &Tree, key: &[u8], read_at: ReadAt) -> Result<Option<Arc<[u8]>>> {
        match self.find(tree, key, read_at)? {
            None => Ok(None),
            Some(Found::Inline(value)) => Ok(Some(value)),
            Some(Found::Large(_)) => ready(self.get_in(WaitMode::Blocking, tree, key, read_at)),
        }
    }

    /// Like [`find`](Self::find), waiting as `mode` says.
    pub(crate) async fn find_in(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        key: &[u8],
        read_at: ReadAt,
    ) -> Result<Option<Found>> {
        tree.awaiting(mode, || self.try_find(tree, key, read_at)).await
    }

    /// Like [`get`](Self::get), waiting as `mode` says.
    pub(crate) async fn get_in(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        key: &[u8],
        read_at: ReadAt,
    ) -> Result<Option<Arc<[u8]>>> {
        let found = self.find_in(mode, tree, key, read_at).await?;
        self.value_of(mode, tree, key, read_at, found).await
    }

    /// The value of a row that was [found](Self::find). A value that is replaced while it is read is looked up again.
    async fn value_of(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        key: &[u8],
        read_at: ReadAt,
        mut found: Option<Found>,
    ) -> Result<Option<Arc<[u8]>>> {
        let mut failed = None;
        loop {
            if failed.is_some() && found.as_ref().and_then(Found::reference) != failed {
                crate::coverage::mark!("a value was replaced while it was read");
            }
            let reference = match found {
                None => return Ok(None),
                Some(Found::Inline(value)) => return Ok(Some(value)),
                Some(Found::Large(reference)) => reference,
            };
            match values::read_whole(mode, tree, &reference).await {
                Ok(Some(value)) => return Ok(Some(value.into())),
                // The value was replaced and freed while it was being read, and its pages may hold another: the result
                // counts only if the row still names the value.
                _ if failed != Some(reference) => failed = Some(reference),
                Ok(None) => {
                    tree.check_dropped()?;
                    let what = format!("a value of keyspace {}", tree.pages.quoted_name());
                    return Err(Error::corrupted(self.space.path(), what, "its extents are another value's"));
                }
                Err(error) => return Err(error),
            }
            found = self.find_in(mode, tree, key, read_at).await?;
        }
    }

    /// The rows, many reads at a time.
    pub(crate) async fn find_many<K: AsRef<[u8]>>(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        keys: &[K],
        read_at: ReadAt,
    ) -> Result<Vec<Option<Found>>> {
        let mut rows = vec![None; keys.len()];
        for (keys, rows) in keys.chunks(FIND_MANY_PART).zip(rows.chunks_mut(FIND_MANY_PART)) {
            let mut descents: Vec<Descent> =
                (0..keys.len()).map(|index| Descent { index, page: PageId::ROOT }).collect();
            let mut alone = Vec::new();
            // Each round goes one level deeper for the keys whose page was missing.
            while !descents.is_empty() {
                debug_assert!(descents.iter().all(|descent| rows[descent.index].is_none()), "a row is found twice");
                let mut stopped = Vec::new();
                {
                    // One reclaim guard for all: nested guards cost nothing.
                    let _reclaim_guard = self.pool.reclaim_guard();
                    for group in descents.chunks(GROUP) {
                        self.find_group(tree, keys, read_at, group, rows, &mut stopped, &mut alone);
                    }
                }
                descents = stopped;
                let mut missing: Vec<PageId> = descents.iter().map(|descent| descent.page).collect();
                missing.sort_unstable();
                missing.dedup();
                if !missing.is_empty() && tree.fault_nodes(mode, &missing).await? == 0 {
                    // Other threads are reading them, or they can't be read.
                    alone.extend(descents.drain(..).map(|descent| descent.index));
                }
            }
            for index in alone {
                rows[index] = self.find_in(mode, tree, keys[index].as_ref(), read_at).await?;
            }
        }
        Ok(rows)
    }

    /// Descends for a group of keys, and then reads their leaves. Notes the descents that lack a page, and the keys
    /// whose leaf was not found.
    #[expect(clippy::too_many_arguments, reason = "the state of one caller")]
    fn find_group<K: AsRef<[u8]>>(
        &self,
        tree: &Tree,
        keys: &[K],
        read_at: ReadAt,
        group: &[Descent],
        rows: &mut [Option<Found>],
        stopped: &mut Vec<Descent>,
        alone: &mut Vec<usize>,
    ) {
        assert!(group.len() <= GROUP);
        let mut places = [None; GROUP];
        for (&Descent { index, page }, place) in group.iter().zip(&mut places) {
            match tree.locate(page, Target::At(keys[index].as_ref())) {
                Ok(Some(located)) => *place = Some((index, located)),
                Err(Stop::Needs(Needs::Page(_, page))) => stopped.push(Descent { index, page }),
                Ok(None) | Err(_) => alone.push(index),
            }
        }
        for (index, located) in places.into_iter().flatten() {
            let key = keys[index].as_ref();
            match tree.read_leaf_at(located, key) {
                Some(page) => rows[index] = self.found_in(tree, &page, key, read_at),
                // It was split, evicted or merged meanwhile.
                None => alone.push(index),
            }
        }
    }

    /// The values of the rows, many reads at a time for all but large ones.
    pub(crate) async fn get_many<K: AsRef<[u8]>>(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        keys: &[K],
        read_at: ReadAt,
    ) -> Result<Vec<Option<Arc<[u8]>>>> {
        let found = self.find_many(mode, tree, keys, read_at).await?;
        let references: Vec<LargeRef> = found.iter().flatten().filter_map(Found::reference).collect();
        let mut upcoming = UpcomingValues::default();
        let mut references = &references[..];
        let mut values = Vec::with_capacity(found.len());
        for (key, found) in keys.iter().zip(found) {
            if let Some(Found::Large(_)) = found {
                upcoming.step(mode, tree, references.iter().copied()).await;
                references = &references[1..];
            }
            values.push(self.value_of(mode, tree, key.as_ref(), read_at, found).await?);
        }
        assert!(references.is_empty(), "{} values were brought in for no row", references.len());
        assert_eq!(values.len(), keys.len());
        Ok(values)
    }

    /// Returns `false` if no row of the keyspace that the caller has locked can have changed since the snapshot: a
    /// transaction that changes a row has it locked until the change is published, and nothing was. A bulk load locks
    /// no rows.
    #[inline]
    pub(crate) fn may_have_changed(&self, tree: &Tree, snapshot: Timestamp) -> bool {
        // In this order: an attachment ends after it is published.
        tree.pages.is_attaching() || self.clock.published() > snapshot
    }

    /// Returns `true` if the row has changed since the snapshot, for the rule that the first updater wins.
    pub(crate) async fn changed_since(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        key: &[u8],
        snapshot: Timestamp,
    ) -> Result<bool> {
        tree.awaiting(mode, || {
            let page = tree.read_leaf(Target::At(key))?;
            if tree.pages.is_loaded_since(snapshot) {
                return Ok(true);
            }
            if Leaf::new(&page).newest() <= snapshot {
                return Ok(false);
            }
            let newest = self.versions.newest_change(tree.pages.id, page.page(), key);
            assert!(newest <= Some(Leaf::new(&page).newest()), "a leaf forgets its newest commit, {newest:?}");
            Ok(newest.is_some_and(|newest| newest > snapshot))
        })
        .await
    }
}
