//! Reads rows from their leaves or from their old versions.

use super::Engine;
use crate::error::{Error, Result};
use crate::format::node::LargeRef;
use crate::format::{PageId, Timestamp};
use crate::pool::{FrameRead, Needs, Provider, Stop};
use crate::task::{Boxed, WaitMode, ready, turn};
use crate::tree::node::{Leaf, RowValue};
use crate::tree::{Above, Target, Tree};
use crate::txn::old_rows::OldVersion;
use crate::txn::values::{self, UpcomingValues};

/// The version of the database that a read sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadAt {
    /// The newest commit that is visible when the leaf is read.
    Visible,
    /// The newest commit that is published when the leaf is read, durable or not.
    Published,
    /// The database as of this commit.
    Timestamp(Timestamp),
}

/// The result of a read: the output of the caller's closure for a value stored in its leaf, or the reference to a
/// larger value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found<T> {
    Inline(T),
    Large(LargeRef),
}

impl<T> Found<T> {
    fn reference(&self) -> Option<LargeRef> {
        if let Found::Large(reference) = self { Some(*reference) } else { None }
    }
}

impl Found<()> {
    /// Returns this result with `taken` in place of an inline value.
    fn with<T>(self, taken: Option<T>) -> Found<T> {
        match self {
            Found::Inline(()) => Found::Inline(taken.expect("a value in its leaf is taken")),
            Found::Large(reference) => Found::Large(reference),
        }
    }
}

/// The result of searching a leaf and the versions in memory.
enum Lookup<T> {
    Row(Option<Found<T>>),
    /// The row's version may be in a run.
    Spilled,
}

/// Returns the row's old version if it has one, or else the row in its leaf.
#[inline]
fn row_seen<T>(
    leaf: &Leaf<'_>,
    key: &[u8],
    was: Option<(Timestamp, OldVersion)>,
    mut take: impl FnMut(&[u8]) -> T,
) -> Option<Found<T>> {
    match was {
        Some((_, OldVersion::Absent)) => None,
        Some((_, OldVersion::Inline(value))) => Some(Found::Inline(take(&value))),
        Some((_, OldVersion::Large(reference))) => Some(Found::Large(reference)),
        None => leaf.search(key).ok().map(|index| match leaf.value(index) {
            RowValue::Inline(value) => Found::Inline(take(value)),
            RowValue::Large(reference) => Found::Large(reference),
        }),
    }
}

/// Returns the row that a run above the key's leaf puts, or `None` if a run removes the key.
#[cold]
fn row_in_run<T>(above: &Above<'_>, key: &[u8], take: impl FnMut(&[u8]) -> T) -> Option<Found<T>> {
    match above {
        Above::Row(read) => row_seen(&Leaf::new(read), key, None, take),
        Above::Removed => None,
    }
}

/// The place where a read puts the value of a row: the caller's vector, or a value that the call returns.
pub(crate) trait Destination: Send {
    /// Copies a value that is in a leaf. Called under the leaf's latch, so it must not call the database.
    fn copy(&mut self, value: &[u8]);

    /// Returns a vector into which a larger value is read.
    fn take_buffer(&mut self) -> Vec<u8>;

    /// Takes over the vector into which a value was read.
    fn put(&mut self, value: Vec<u8>);
}

impl Destination for Vec<u8> {
    #[inline]
    fn copy(&mut self, value: &[u8]) {
        debug_assert!(self.is_empty(), "a value is appended to another");
        self.extend_from_slice(value);
    }

    fn take_buffer(&mut self) -> Vec<u8> {
        std::mem::take(self)
    }

    fn put(&mut self, value: Vec<u8>) {
        debug_assert!(self.is_empty(), "a value is put in place of another");
        *self = value;
    }
}

/// A type that owns the value of a row.
pub(crate) trait OwnedValue: for<'b> From<&'b [u8]> + From<Vec<u8>> + Send {}

impl<T: for<'b> From<&'b [u8]> + From<Vec<u8>> + Send> OwnedValue for T {}

impl<T: OwnedValue> Destination for Option<T> {
    #[inline]
    fn copy(&mut self, value: &[u8]) {
        debug_assert!(self.is_none(), "a value is put in place of another");
        *self = Some(T::from(value));
    }

    fn take_buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn put(&mut self, value: Vec<u8>) {
        debug_assert!(self.is_none(), "a value is put in place of another");
        *self = Some(T::from(value));
    }
}

/// The number of keys whose leaves are prefetched together. It is small enough that the first leaf is still in memory
/// when the last one arrives.
const FIND_MANY_KEYS: usize = 256;

/// The number of keys that descend together. While one key's leaf is prefetched into the processor's cache, the other
/// keys descend. While its row is prefetched, the search for the other rows continues (group prefetching: Chen,
/// Ailamaki, Gibbons and Mowry, "Improving Hash Join Performance through Prefetching", ICDE 2004).
/// Measured: decision 032, together with the other changes described there.
const GROUP_KEYS: usize = 16;

/// The number of bytes of a row that are prefetched: two cache lines. The hardware prefetches the rest of a longer row.
const ROW_BYTES: usize = 128;

/// The descent for one of several keys that are searched for together.
#[derive(Clone, Copy, Debug)]
struct Descent {
    index: usize,
    /// The page that the descent has reached.
    page: PageId,
}

impl Engine {
    /// Finds the row that a read at this timestamp or horizon sees. O(log n).
    ///
    /// If the value is stored in its leaf, calls `take` once with the value. `take` runs under the leaf's latch, so it
    /// must not wait or call the database.
    #[inline]
    pub(crate) fn find<T: Send>(
        &self,
        tree: &Tree,
        key: &[u8],
        read_at: ReadAt,
        mut take: impl FnMut(&[u8]) -> T + Send,
    ) -> Result<Option<Found<T>>> {
        match self.try_find(tree, PageId::ROOT, key, read_at, &mut take) {
            Ok(Lookup::Row(found)) => Ok(found),
            stopped => ready(self.find_stopped(WaitMode::Blocking, tree, key, read_at, stopped.err(), take)),
        }
    }

    /// Like [`find`](Self::find), but waits in the given mode.
    pub(crate) async fn find_in<T: Send>(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        key: &[u8],
        read_at: ReadAt,
        mut take: impl FnMut(&[u8]) -> T + Send,
    ) -> Result<Option<Found<T>>> {
        mode.work(turn::LEAF_UNITS).await;
        match self.try_find(tree, PageId::ROOT, key, read_at, &mut take) {
            Ok(Lookup::Row(found)) => Ok(found),
            stopped => self.find_stopped(mode, tree, key, read_at, stopped.err(), take).await,
        }
    }

    /// Like [`find_waiting`](Self::find_waiting), for any `take`.
    async fn find_stopped<T: Send>(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        key: &[u8],
        read_at: ReadAt,
        stop: Option<Stop>,
        mut take: impl FnMut(&[u8]) -> T + Send,
    ) -> Result<Option<Found<T>>> {
        let mut taken = None;
        let mut take_one = |value: &[u8]| taken = Some(take(value));
        let found = self.find_waiting(mode, tree, key, read_at, stop, &mut take_one).await?;
        Ok(found.map(|found| found.with(taken)))
    }

    /// Searches for a row once, descending from the page `from`; see [`find`](Self::find).
    #[inline]
    fn try_find<T>(
        &self,
        tree: &Tree,
        from: PageId,
        key: &[u8],
        read_at: ReadAt,
        take: impl FnMut(&[u8]) -> T,
    ) -> Result<Lookup<T>, Stop> {
        let page = tree.read_leaf_from(from, Target::At(key))?;
        self.found_in(tree, &page, key, read_at, take)
    }

    /// Returns the row's old version, or else the row in a run above this leaf or in the leaf, which must cover the
    /// key.
    #[inline]
    fn found_in<T>(
        &self,
        tree: &Tree,
        page: &FrameRead<'_>,
        key: &[u8],
        read_at: ReadAt,
        take: impl FnMut(&[u8]) -> T,
    ) -> Result<Lookup<T>, Stop> {
        let leaf = Leaf::new(page);
        let at = match read_at {
            ReadAt::Visible => self.clock.visible(),
            ReadAt::Published => self.clock.published(),
            ReadAt::Timestamp(at) => at,
        };
        debug_assert!(at <= self.clock.published(), "a read at {at}, which is not published");
        if tree.pages.load_gate.is_loaded_since(at) {
            return Ok(Lookup::Row(None));
        }
        if tree.has_runs_above(&leaf)
            && let Some(above) = tree.row_above(&leaf, key, at)?
        {
            return Ok(Lookup::Row(row_in_run(&above, key, take)));
        }
        let mut was = None;
        if leaf.newest() > at {
            was = self.versions.find(tree.pages.id, page.page(), key, at);
            if self.spilled.may_have(at) {
                return Ok(Lookup::Spilled);
            }
        }
        Ok(Lookup::Row(row_seen(&leaf, key, was, take)))
    }

    /// Continues [`find`](Self::find) if its descent has stopped, or if a version of the row may have been spilled.
    #[cold]
    fn find_waiting<'a>(
        &'a self,
        mode: WaitMode<'a>,
        tree: &'a Tree,
        key: &'a [u8],
        read_at: ReadAt,
        stop: Option<Stop>,
        take: &'a mut (dyn FnMut(&[u8]) + Send),
    ) -> Boxed<'a, Result<Option<Found<()>>>> {
        Box::pin(async move {
            if let Some(stop) = stop {
                let operation = |from| self.try_find(tree, from, key, read_at, &mut *take);
                match tree.pool.going_on(Provider::new(mode, &tree.pool), stop, operation).await? {
                    Lookup::Row(found) => return Ok(found),
                    Lookup::Spilled => {}
                }
            }
            loop {
                let ReadAt::Timestamp(at) = read_at else {
                    // Spilled versions belong to commits that are visible by now, so a retry at the new horizon won't
                    // need them.
                    match tree.pool.awaiting(mode, |from| self.try_find(tree, from, key, read_at, &mut *take)).await? {
                        Lookup::Row(found) => return Ok(found),
                        Lookup::Spilled => continue,
                    }
                };
                let published = self.spilled.published();
                let spilled = self.spilled.find(mode, tree.pages.id, key, at).await?;
                let found = tree.pool.awaiting(mode, |from| {
                    let page = tree.read_leaf_from(from, Target::At(key))?;
                    if tree.pages.load_gate.is_loaded_since(at) {
                        return Ok(Some(None));
                    }
                    let leaf = Leaf::new(&page);
                    if tree.has_runs_above(&leaf)
                        && let Some(above) = tree.row_above(&leaf, key, at)?
                    {
                        return Ok(Some(row_in_run(&above, key, &mut *take)));
                    }
                    let kept =
                        if leaf.newest() > at { self.versions.find(tree.pages.id, page.page(), key, at) } else { None };
                    if self.spilled.published() != published {
                        return Ok(None);
                    }
                    let was = [kept, spilled.clone()].into_iter().flatten().min_by_key(|(until, _)| *until);
                    Ok(Some(row_seen(&leaf, key, was, &mut *take)))
                });
                if let Some(found) = found.await? {
                    return Ok(found);
                }
            }
        })
    }

    /// Returns the value of a row.
    #[inline]
    pub(crate) fn get<T: OwnedValue>(&self, tree: &Tree, key: &[u8], read_at: ReadAt) -> Result<Option<T>> {
        match self.find(tree, key, read_at, |value| T::from(value))? {
            None => Ok(None),
            Some(Found::Inline(value)) => Ok(Some(value)),
            Some(Found::Large(reference)) => {
                let mut value = None;
                ready(self.get_large(WaitMode::Blocking, tree, key, read_at, reference, &mut value))?;
                Ok(value)
            }
        }
    }

    /// Puts the value of a row into `to`, which must be empty. Returns `false` if there is no row.
    #[inline]
    pub(crate) fn get_into(&self, tree: &Tree, key: &[u8], read_at: ReadAt, to: &mut Vec<u8>) -> Result<bool> {
        match self.find(tree, key, read_at, |value| to.copy(value))? {
            None => Ok(false),
            Some(Found::Inline(())) => Ok(true),
            Some(Found::Large(reference)) => {
                ready(self.get_large(WaitMode::Blocking, tree, key, read_at, reference, to))
            }
        }
    }

    /// Like [`get`](Self::get), but waits in the given mode.
    pub(crate) async fn get_in(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        key: &[u8],
        read_at: ReadAt,
        to: &mut dyn Destination,
    ) -> Result<bool> {
        match self.find_in(mode, tree, key, read_at, |value| to.copy(value)).await? {
            None => Ok(false),
            Some(Found::Inline(())) => Ok(true),
            Some(Found::Large(reference)) => self.get_large(mode, tree, key, read_at, reference, to).await,
        }
    }

    /// Reads the large value of a row that [`find`](Self::find) has found, and puts it in `to`. If the value is
    /// replaced during the read, looks the row up once more. Returns `false` if the row has been removed.
    fn get_large<'a>(
        &'a self,
        mode: WaitMode<'a>,
        tree: &'a Tree,
        key: &'a [u8],
        read_at: ReadAt,
        mut reference: LargeRef,
        to: &'a mut dyn Destination,
    ) -> Boxed<'a, Result<bool>> {
        Box::pin(async move {
            let mut failed = None;
            loop {
                match values::read_whole(mode, tree, &reference, to.take_buffer()).await {
                    Ok(Some(value)) => {
                        assert!(value.len() as u64 == reference.length, "{reference:?} is {} bytes long", value.len());
                        to.put(value);
                        return Ok(true);
                    }
                    // The value may have been replaced and freed during the read, and its pages may hold a different
                    // value. Trust the result only if the row still refers to this value.
                    _ if failed != Some(reference) => failed = Some(reference),
                    Ok(None) => {
                        tree.check_dropped()?;
                        let what = format!("a value of keyspace {}", tree.pages.quoted_name());
                        return Err(Error::corrupted(self.space.path(), what, "its extents are another value's"));
                    }
                    Err(error) => return Err(error),
                }
                let found = self.find_in(mode, tree, key, read_at, |value| to.copy(value)).await?;
                if found.as_ref().and_then(Found::reference) != failed {
                    crate::coverage::mark!("a value was replaced while it was read");
                }
                reference = match found {
                    None => return Ok(false),
                    Some(Found::Inline(())) => return Ok(true),
                    Some(Found::Large(reference)) => reference,
                };
            }
        })
    }

    /// Finds rows, with many reads in flight. Calls `take` as [`find`](Self::find) does.
    pub(crate) async fn find_many<T: Send>(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        keys: &[&[u8]],
        read_at: ReadAt,
        mut take: impl FnMut(&[u8]) -> T + Send,
    ) -> Result<Vec<Option<Found<T>>>> {
        let mut all_rows = Vec::with_capacity(keys.len());
        for keys in keys.chunks(FIND_MANY_KEYS) {
            let first = all_rows.len();
            all_rows.extend(keys.iter().map(|_| None));
            let rows = &mut all_rows[first..];
            let mut descents: Vec<Descent> =
                (0..keys.len()).map(|index| Descent { index, page: PageId::ROOT }).collect();
            let mut singly = Vec::new();
            // In each round, the keys whose page was missing descend one level further.
            while !descents.is_empty() {
                debug_assert!(descents.iter().all(|descent| rows[descent.index].is_none()), "a row is found twice");
                let mut stopped = Vec::new();
                for group in descents.chunks(GROUP_KEYS) {
                    mode.work(turn::LEAF_UNITS * group.len() as u32).await;
                    self.find_group(tree, keys, read_at, &mut take, group, rows, &mut stopped, &mut singly);
                }
                descents = stopped;
                let mut missing: Vec<PageId> = descents.iter().map(|descent| descent.page).collect();
                missing.sort_unstable();
                missing.dedup();
                if !missing.is_empty() && tree.fault_nodes(mode, &missing).await? == 0 {
                    // Other threads are already reading these pages, or the pages can't be read.
                    singly.extend(descents.drain(..).map(|descent| descent.index));
                }
            }
            for index in singly {
                rows[index] = self.find_in(mode, tree, keys[index], read_at, &mut take).await?;
            }
        }
        Ok(all_rows)
    }

    /// Descends for a group of keys, searches their leaves, and then takes their rows. Adds descents that stop at a
    /// missing page to `stopped`, and keys whose leaf was not found to `singly`.
    #[expect(clippy::too_many_arguments, reason = "the state of one caller")]
    fn find_group<T>(
        &self,
        tree: &Tree,
        keys: &[&[u8]],
        read_at: ReadAt,
        take: &mut impl FnMut(&[u8]) -> T,
        group: &[Descent],
        rows: &mut [Option<Found<T>>],
        stopped: &mut Vec<Descent>,
        singly: &mut Vec<usize>,
    ) {
        assert!(group.len() <= GROUP_KEYS);
        // One guard for the whole group: the guards nested in it cost almost nothing.
        let _reclaim_guard = self.pool.reclaim_guard();
        let mut found_rows = [None; GROUP_KEYS];
        for (&Descent { index, page }, slot) in group.iter().zip(&mut found_rows) {
            match tree.locate(page, Target::At(keys[index])) {
                Ok(Some(located)) => *slot = Some((index, located)),
                Err(Stop::Needs(Needs::Page(_, page))) => stopped.push(Descent { index, page }),
                Ok(None) | Err(_) => singly.push(index),
            }
        }
        // Never wait for a latch while holding other latches: its owner may be waiting for one of ours.
        let mut leaves = [const { None }; GROUP_KEYS];
        for (slot, leaf) in found_rows.iter().zip(&mut leaves) {
            let Some((index, located)) = *slot else { continue };
            let key = keys[index];
            *leaf = tree.try_read_leaf_at(located, Target::At(key));
            if let Some(page) = leaf
                && let Some([first, row]) = Leaf::new(page).compared_rows(key)
            {
                page.prefetch(first..first + 1);
                page.prefetch(row..page.len().min(row + ROW_BYTES));
            }
        }
        for (slot, leaf) in found_rows.iter_mut().zip(leaves) {
            if let (Some((index, _)), Some(page)) = (*slot, leaf) {
                debug_assert!(rows[index].is_none(), "a row is found again in its group");
                // Searching a run latches another leaf, so it is left for later, when no latch is held.
                if tree.has_runs_above(&Leaf::new(&page)) {
                    continue;
                }
                match self.found_in(tree, &page, keys[index], read_at, &mut *take) {
                    Ok(Lookup::Row(found)) => rows[index] = found,
                    Ok(Lookup::Spilled) | Err(_) => singly.push(index),
                }
                *slot = None;
            }
        }
        for (index, located) in found_rows.into_iter().flatten() {
            let key = keys[index];
            match tree.read_leaf_at(located, Target::At(key)) {
                Some(page) => match self.found_in(tree, &page, key, read_at, &mut *take) {
                    Ok(Lookup::Row(found)) => rows[index] = found,
                    Ok(Lookup::Spilled) | Err(_) => singly.push(index),
                },
                // The leaf was split, evicted or merged in the meantime.
                None => singly.push(index),
            }
        }
    }

    /// Returns the values of rows. Inline and medium values are read with many reads in flight.
    pub(crate) async fn get_many<T: OwnedValue>(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        keys: &[&[u8]],
        read_at: ReadAt,
    ) -> Result<Vec<Option<T>>> {
        let found = self.find_many(mode, tree, keys, read_at, |value| T::from(value)).await?;
        let references: Vec<LargeRef> = found.iter().flatten().filter_map(Found::reference).collect();
        let mut upcoming = UpcomingValues::default();
        let mut references = &references[..];
        let mut values = Vec::with_capacity(found.len());
        let mut found = found.into_iter();
        for keys in keys.chunks(FIND_MANY_KEYS) {
            // The values are only moved, but the destination may be memory that has not been touched yet.
            mode.work(turn::ROW_UNITS * keys.len() as u32 / 8).await;
            for (key, found) in keys.iter().zip(&mut found) {
                values.push(match found {
                    None => None,
                    Some(Found::Inline(value)) => Some(value),
                    Some(Found::Large(reference)) => {
                        upcoming.step(mode, tree, references.iter().copied()).await;
                        references = &references[1..];
                        let mut value = None;
                        self.get_large(mode, tree, key, read_at, reference, &mut value).await?;
                        value
                    }
                });
            }
        }
        assert!(found.next().is_none(), "a row was found for no key");
        assert!(references.is_empty(), "{} values were brought in for no row", references.len());
        assert_eq!(values.len(), keys.len());
        Ok(values)
    }

    /// Returns `true` if the row existed as of this commit.
    pub(crate) async fn has_row_at(&self, mode: WaitMode<'_>, tree: &Tree, key: &[u8], at: Timestamp) -> Result<bool> {
        let found = self.find_in(mode, tree, key, ReadAt::Timestamp(at), |_| ()).await?;
        Ok(found.is_some())
    }

    /// Returns the newest commit whose changes may be folded into counts. This is the newest commit that every reader
    /// sees, or, if older readers may lose the use of the counts, the newest visible commit.
    pub(crate) fn fold_limit(&self, is_beyond_snapshots: bool) -> Timestamp {
        let up_to = if is_beyond_snapshots { self.clock.visible() } else { self.snapshots.horizon(&self.clock) };
        assert!(up_to <= self.clock.published(), "changes are folded that are not published");
        up_to
    }

    /// Returns `false` if no row of the keyspace that the caller has locked has changed since the snapshot. See
    /// [`PageSpace::may_have_changed`](crate::space::PageSpace::may_have_changed).
    #[inline]
    pub(crate) fn may_have_changed(&self, tree: &Tree, snapshot: Timestamp) -> bool {
        tree.pages.may_have_changed(snapshot, || self.clock.published())
    }
}

impl<L> Engine<L> {
    /// Returns `true` if the row has changed since the snapshot. This detects conflicts under the first-updater-wins
    /// rule.
    pub(crate) async fn changed_since(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        key: &[u8],
        snapshot: Timestamp,
    ) -> Result<bool> {
        let changed = tree.pool.awaiting(mode, |from| {
            let page = tree.read_leaf_from(from, Target::At(key))?;
            if tree.pages.load_gate.is_loaded_since(snapshot) {
                return Ok(Some(true));
            }
            if tree.pages.runs.newest() > snapshot && tree.have_runs_key(snapshot, key, Some(&[key, &[0]].concat()))? {
                return Ok(Some(true));
            }
            if Leaf::new(&page).newest() <= snapshot {
                return Ok(Some(false));
            }
            let newest = self.versions.newest_change(tree.pages.id, page.page(), key);
            assert!(newest <= Some(Leaf::new(&page).newest()), "a leaf forgets its newest commit, {newest:?}");
            let changed = newest.is_some_and(|newest| newest > snapshot);
            Ok((changed || !self.spilled.may_have(snapshot)).then_some(changed))
        });
        match changed.await? {
            Some(changed) => Ok(changed),
            None => Ok(self.spilled.find(mode, tree.pages.id, key, snapshot).await?.is_some()),
        }
    }
}
