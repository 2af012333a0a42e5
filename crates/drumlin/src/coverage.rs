//! Reports to the simulator which rare paths the engine took, and which timestamps it assigned.
//!
//! Without the feature `sim`, this module does nothing.
//!
//! A *mark* labels a rare event that simulations must reach if they are to prove anything about it. Each mark has a
//! line in [`MARKS`]; a mark without a line there does not compile.

/// The texts of all marks.
pub(crate) const MARKS: &[&str] = &[
    "a batch of the log crossed into the next segment",
    "a bulk load was attached",
    "a bulk load was attached as a run",
    "a commit was overtaken by a bulk load",
    "a run was folded into a leaf",
    "a run was folded whole",
    "a range of rows was removed",
    "a removal was folded whole",
    "leaves of a removed range were unlinked",
    "a range delete waited for the folding of an older one",
    "a range delete waited for a locked row",
    "a scan skipped a range that its transaction had removed",
    "a scan skipped rows that a range delete had removed",
    "a thread went on while another one wrote or read for it",
    "a bulk load took page numbers that were in use before",
    "a bulk load was given up",
    "a checkpoint wrote a new base image",
    "a checkpoint kept a snapshot",
    "a keyspace was cloned",
    "a keyspace that was itself a clone was cloned",
    "a clone left out a value that only snapshots could see",
    "a recovery cloned a keyspace again",
    "a clone left out an origin of which it has no pages",
    "an extent of an origin was moved for its clone",
    "the catalogue of a kept snapshot was moved",
    "extents were moved out of segments that kept snapshots pin",
    "the segments of a dropped snapshot stayed pinned for its readers",
    "a commit left no version, since no snapshot needed it",
    "a commit of several rows left no version, since no snapshot needed it",
    "a commit could not be made at once",
    "a fold lacked an inner node",
    "a keyspace began to keep counts",
    "a keyspace began to keep the counts of a load",
    "a reduction found no memory",
    "a reduction passed pages by their states",
    "changes were folded into counts",
    "a fold was postponed while counts were written",
    "counts were written during a checkpoint",
    "counts could not be captured during commits",
    "a file of counts was skipped",
    "an opening restored counts",
    "counts were dropped because their list was too long",
    "counts were dropped for lack of memory",
    "a page was missing when a commit was applied",
    "a commit on a full disk had space reclaimed",
    "a commit on a full disk used another log stream",
    "a commit published earlier applied commits",
    "a commit waited for another stream",
    "a long commit of a task was made by another thread",
    "a commit waited for a checkpoint to write earlier changes",
    "moving pages continued after a checkpoint",
    "freeing values waited for a checkpoint to write earlier changes",
    "a commit waited for memory",
    "a writer waited for memory",
    "a commit waited for memory for versions",
    "a commit waited for space in the log",
    "a committer wrote records that arrived during its write",
    "a deadlock between rows was found",
    "no page could be evicted for a frame",
    "a full disk had no space for the log",
    "a lock was handed over to a transaction that had just given up",
    "a log segment was reused",
    "a part of the log was applied again with more space",
    "a page was read after its keyspace was dropped",
    "a page changed that a checkpoint had not copied yet",
    "an image due to a checkpoint waited for a write buffer",
    "a commit copied a leaf for a checkpoint",
    "a checkpoint wrote a copy of a leaf",
    "a checkpoint rested",
    "a page changed while its extent was moved",
    "a page chosen for eviction was in use again",
    "a page split that a checkpoint had not copied yet",
    "a page was copied by another thread first",
    "a page was wanted while another thread read it",
    "a segment was emptied while a page in it was read",
    "a snapshot was ended to free memory of versions",
    "versions were spilled",
    "a scan continued at a newer snapshot",
    "an aggregate restarted at a newer snapshot",
    "runs of spilled versions were merged",
    "a spilled transaction was committed",
    "the changes of a transaction were spilled",
    "tiers of spilled changes were merged",
    "the lock of a spilled row was restored",
    "a commit was delayed for a snapshot",
    "a full disk took the space of spilled versions",
    "a superblock did not verify",
    "a value was replaced while it was read",
    "compacting made space on a full disk",
    "dirty pages were written back in key order",
    "dirty pages were written to find space for a checkpoint",
    "a void record was erased",
    "an opening forgot earlier openings",
    "an opening was recorded at its first write",
    "an inner node split",
    "an inner root split",
    "frames gave up memory for page tables",
    "no frame was free for read-ahead",
    "a list of resident pages was written",
    "a page was read that was resident when the database was closed",
    "recovery skipped records after a gap between streams",
    "the end of the data file was given back",
    "the end of the file was emptied between two checkpoints",
    "the file of an idle database was shortened",
    "the log failed",
    "the root was replaced by its only child",
    "two threads created the same keyspace",
    "two inner nodes merged",
    "two leaves merged",
    "an opening found a prepared transaction",
    "a recovery committed a prepared transaction",
    "the large values of a prepared transaction were put",
    "rows of a bulk load were sorted",
    "sorted runs were merged more than once",
    "two threads wanted to write back at once",
    "versions of two merged leaves were combined",
    "an opening continued the changes of an earlier one",
    "the retention removed changes",
];

/// Returns the index of a mark in [`MARKS`].
pub(crate) const fn index_of(text: &str) -> usize {
    let mut index = 0;
    while index < MARKS.len() {
        if is_same(MARKS[index].as_bytes(), text.as_bytes()) {
            return index;
        }
        index += 1;
    }
    panic!("a mark that is not in the list")
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut index = 0;
    while index < one.len() {
        if one[index] != other[index] {
            return false;
        }
        index += 1;
    }
    true
}

/// Reports that this point in the code was reached.
macro_rules! mark {
    ($text:literal) => {{
        const INDEX: usize = $crate::coverage::index_of($text);
        $crate::coverage::reached(INDEX);
    }};
}
pub(crate) use mark;

#[cfg(not(feature = "sim"))]
mod nobody {
    #[inline(always)]
    pub(crate) fn reached(_: usize) {}

    /// Reports that a commit received its timestamp.
    #[inline(always)]
    pub(crate) fn timestamp_taken(_: crate::format::Timestamp) {}

    /// Reports that a clone as of this commit is about to receive its timestamp.
    #[inline(always)]
    pub(crate) fn cloning(_: crate::format::Timestamp) {}

    /// Returns `body`, which makes a commit on another thread, unchanged.
    #[inline(always)]
    pub(crate) fn on_behalf<T>(body: impl FnOnce() -> T + Send + 'static) -> impl FnOnce() -> T + Send + 'static {
        body
    }
}
#[cfg(not(feature = "sim"))]
pub(crate) use nobody::{cloning, on_behalf, reached, timestamp_taken};

#[cfg(feature = "sim")]
mod simulation {
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::MARKS;
    use crate::format::Timestamp;

    static HITS: [AtomicU64; MARKS.len()] = [const { AtomicU64::new(0) }; MARKS.len()];

    /// A client's callback for the timestamp of its commit.
    type OnTimestamp = Box<dyn FnOnce(Timestamp) + Send>;

    thread_local! {
        static ON_TIMESTAMP: RefCell<Option<OnTimestamp>> = const { RefCell::new(None) };
        static CLONED_AS_OF: Cell<Timestamp> = const { Cell::new(Timestamp(0)) };
    }

    pub(crate) fn reached(index: usize) {
        HITS[index].fetch_add(1, Ordering::Relaxed);
        drumlin_io::testing::sim::note(index as u64);
    }

    pub(crate) fn timestamp_taken(timestamp: Timestamp) {
        if let Some(callback) = ON_TIMESTAMP.with_borrow_mut(Option::take) {
            callback(timestamp);
        }
    }

    pub(crate) fn cloning(as_of: Timestamp) {
        CLONED_AS_OF.set(as_of);
    }

    /// Returns the commit of which the last clone that this thread made has the rows. Known when its own commit gets a
    /// timestamp.
    pub fn cloned_as_of() -> Timestamp {
        CLONED_AS_OF.get()
    }

    /// Calls `callback` when the next commit of this thread receives its timestamp. A later call replaces the callback.
    pub fn on_timestamp(callback: Option<OnTimestamp>) {
        ON_TIMESTAMP.with_borrow_mut(|own| *own = callback);
    }

    /// Wraps the body of a commit that another thread will make on behalf of this one, so that this thread's client
    /// still learns the timestamp.
    pub(crate) fn on_behalf<T>(body: impl FnOnce() -> T + Send + 'static) -> impl FnOnce() -> T + Send + 'static {
        let callback = ON_TIMESTAMP.with_borrow_mut(Option::take);
        move || {
            on_timestamp(callback);
            let value = body();
            on_timestamp(None);
            value
        }
    }

    /// Returns every mark with the number of times that this process has reached it.
    pub fn marks() -> Vec<(&'static str, u64)> {
        MARKS.iter().zip(&HITS).map(|(text, hits)| (*text, hits.load(Ordering::Relaxed))).collect()
    }
}
#[cfg(feature = "sim")]
pub use simulation::{cloned_as_of, marks, on_timestamp};
#[cfg(feature = "sim")]
pub(crate) use simulation::{cloning, on_behalf, reached, timestamp_taken};
