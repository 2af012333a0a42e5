//! Reading a log without a superblock: the openings and the timestamps of which it has records.

use std::collections::BTreeMap;

use super::options::LogOptions;
use super::reader::{History, Reader, chunk_bytes};
use super::scan::segment_names;
use super::segment::{self, FoundFile, Segment};
use crate::error::{Error, Result};
use crate::format::log::SegmentHeader;
use crate::format::{BLOCK_BYTES, DatabaseId, Incarnation, StreamId, Timestamp};
use crate::io::{AlignedBuffer, FolderRef, OpenOptions};
use std::sync::Arc;

/// The records that a log has, if no superblock says where it begins and which openings there were.
#[derive(Debug, Default)]
pub(crate) struct ObservedLog {
    /// The openings in ascending order, each with the lowest timestamp of its records.
    pub(crate) incarnations: Vec<(Incarnation, Timestamp)>,
    /// Ranges of timestamps without gaps, by their first timestamp, each with its last.
    ranges: BTreeMap<Timestamp, Timestamp>,
}

impl ObservedLog {
    /// Returns the timestamp after which the log is to be applied to pages whose newest commit is `newest`: the records
    /// that follow have no gap up to the commit after it. If the log has no such records, they begin later, and what is
    /// missing in between was covered by the lost checkpoint, or is lost too. Returns `None` if no record is left to
    /// apply.
    pub(crate) fn start(&self, newest: Timestamp) -> Option<Timestamp> {
        let joining = self.ranges.range(..=newest.next()).next_back().filter(|(_, last)| **last >= newest);
        let later = || self.ranges.range(newest.next()..).next();
        let found = joining.or_else(later).map(|(first, _)| *first);
        assert!(found != Some(Timestamp(0)), "a record has timestamp 0");
        found.map(|first| Timestamp(first.0 - 1))
    }

    fn add(&mut self, timestamp: Timestamp) {
        let mut range = (timestamp, timestamp);
        if let Some((&first, &last)) = self.ranges.range(..=timestamp).next_back()
            && last.next() >= timestamp
        {
            range = (first, last.max(timestamp));
        }
        if let Some(last) = self.ranges.remove(&range.1.next()) {
            range.1 = last;
        }
        assert!((range.0..=range.1).contains(&timestamp), "{timestamp} is not in {range:?}");
        self.ranges.insert(range.0, range.1);
    }
}

/// Returns the database to which most segments of a log belong, or `None` if no header is sound.
pub(crate) fn database_of_log(folder: &FolderRef, access: OpenOptions) -> Result<Option<DatabaseId>> {
    let mut counts: Vec<(u32, u64)> = Vec::new();
    for (name, _) in segment_names(folder)? {
        let Ok(file) = folder.open(&name, access) else { continue };
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        if file.read_at(&mut block, 0).is_err() {
            continue;
        }
        if let Ok(Some(SegmentHeader { database, .. })) = SegmentHeader::decode(&block) {
            match counts.iter_mut().find(|(_, other)| *other == database.0) {
                Some((count, _)) => *count += 1,
                None => counts.push((1, database.0)),
            }
        }
    }
    Ok(counts.into_iter().max().map(|(_, database)| DatabaseId(database)))
}

/// Reads all segments of a log, of which nothing is known but the database. Skips segments that are corrupted or belong
/// to another database: a [`Scan`](super::Scan) reports them.
pub(crate) fn observe(folder: &FolderRef, options: &LogOptions, access: OpenOptions) -> Result<ObservedLog> {
    let mut streams: BTreeMap<StreamId, Vec<Arc<Segment>>> = BTreeMap::new();
    for (name, number) in segment_names(folder)? {
        if let Ok(FoundFile::Segment(segment)) =
            segment::inspect(folder.as_ref(), &name, access, options.database, number)
        {
            streams.entry(number.0).or_default().push(segment);
        }
    }
    let mut incarnations: BTreeMap<Incarnation, Timestamp> = BTreeMap::new();
    let chunk_bytes = chunk_bytes(options.buffer_bytes, streams.len());
    for segments in streams.values_mut() {
        segments.sort_by_key(|segment| segment.header.use_number);
        segments.dedup_by_key(|segment| segment.header.use_number);
        each_record(segments, chunk_bytes, |incarnation, timestamp| {
            let first = incarnations.entry(incarnation).or_insert(timestamp);
            *first = timestamp.min(*first);
        })?;
    }
    let mut observed = ObservedLog { incarnations: incarnations.into_iter().collect(), ..ObservedLog::default() };
    let history = History::new(&observed.incarnations);
    for segments in streams.values() {
        each_record(segments, chunk_bytes, |incarnation, timestamp| {
            if timestamp > Timestamp(0) && history.admits(incarnation, timestamp) {
                observed.add(timestamp);
            }
        })?;
    }
    Ok(observed)
}

fn each_record(
    segments: &[Arc<Segment>],
    chunk_bytes: usize,
    mut each: impl FnMut(Incarnation, Timestamp),
) -> Result<()> {
    let is_before = |one: &Arc<Segment>, next: &Arc<Segment>| one.header.use_number < next.header.use_number;
    assert!(segments.is_sorted_by(is_before), "segments are not in the order of their uses");
    let mut reader = Reader::whole(segments.to_vec(), chunk_bytes)?;
    loop {
        match reader.next(None) {
            Ok(Some(found)) => each(found.incarnation, found.timestamp),
            // What cannot be read of a stream is reported by the scan.
            Ok(None) | Err(Error::Io { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The records to apply begin where none is missing up to the pages' newest commit, or after it.
    #[test]
    fn records_are_applied_from_where_none_is_missing() {
        let mut observed = ObservedLog::default();
        for timestamp in [7, 3, 4, 9, 8, 20, 21, 3] {
            observed.add(Timestamp(timestamp));
        }
        assert!(observed.ranges.iter().map(|(first, last)| (first.0, last.0)).eq([(3, 4), (7, 9), (20, 21)]));
        let table = [(0, Some(2)), (1, Some(2)), (2, Some(2)), (3, Some(2)), (4, Some(2)), (5, Some(6)), (6, Some(6))];
        for (newest, start) in table.into_iter().chain([(9, Some(6)), (10, Some(19)), (21, Some(19)), (22, None)]) {
            assert_eq!(observed.start(Timestamp(newest)), start.map(Timestamp), "after {newest}");
        }
    }
}
