//! Each rule of the log on its own.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Wake};

use super::*;
use crate::format::log::{RECORD_HEADER_BYTES, SegmentHeader};
use crate::io::{IoBackend, OpenOptions, Persist};
use crate::seglog::hooks::{BeforeWrite, OnDurable};
use crate::seglog::segment::BLOCK;

/// Committed records are recovered in order, with any number of streams, both after a clean end and after a power cut.
#[test]
fn what_is_committed_comes_back() {
    for streams in 1..=3 {
        let mut rig = Rig::new(Disk::new(false), options(streams));
        let log = rig.create();
        commit_to(&log, 40, 700);
        assert_eq!(contents(log.read_from(Timestamp(0)).unwrap()), expect(1, 40, 700));
        drop(log);
        assert_eq!(rig.recovered(), expect(1, 40, 700));
        rig.move_to(rig.disk.cut(&mut Random(1)));
        let scan = rig.scan().unwrap();
        assert_eq!((scan.last(), scan.record_count(), scan.record_bytes()), (Timestamp(40), 40, 40 * 700));
        assert_eq!(contents(scan.records().unwrap()), expect(1, 40, 700));
        assert_eq!(contents(scan.records().unwrap()), expect(1, 40, 700), "records may be asked for twice");
    }
}

/// Bodies of every length around a block, and empty ones, are recovered.
#[test]
fn every_body_length_comes_back() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    let lengths: Vec<usize> = (0..20).chain(4096 - RECORD_HEADER_BYTES - 9..4096 - RECORD_HEADER_BYTES + 9).collect();
    for &length in &lengths {
        commit(&log, 0, vec![7; length]);
    }
    commit(&log, 0, vec![8; log.body_bytes_max()]);
    let found: Vec<usize> = rig.recovered().into_iter().map(|(_, body)| body.len()).collect();
    assert_eq!(found, [lengths, vec![log.body_bytes_max()]].concat());
    assert!(matches!(log.reserve(0, log.body_bytes_max() + 1), Err(Error::TransactionTooLarge { .. })));
}

/// Incarnations: a timestamp missing in one stream ends the replay. The records after it in another stream verify, but
/// this opening and all later ones ignore them.
#[test]
fn a_gap_between_streams_ends_the_replay_for_ever() {
    let mut rig = Rig::new(Disk::new(false), options(2));
    let log = rig.create();
    append(&log, 0, body_of(1, 100));
    append(&log, 1, body_of(2, 100));
    append(&log, 0, body_of(3, 100));
    log.shared.wait_stream(0, Timestamp(3)).unwrap();
    assert_eq!(log.durable(), Timestamp(1));
    rig.move_to(rig.disk.copy());
    let scan = rig.scan().unwrap();
    assert_eq!((scan.last(), scan.record_count()), (Timestamp(1), 1));

    let log = rig.start(scan);
    assert_eq!(commit(&log, 1, body_of(12, 100)), Timestamp(2));
    rig.move_to(rig.disk.copy());
    assert_eq!(rig.recovered(), [(1, body_of(1, 100)), (2, body_of(12, 100))], "the old record 3 stays ignored");
    let log = rig.reopen();
    assert_eq!(commit(&log, 0, body_of(13, 100)), Timestamp(3));
    let expected = [(1, body_of(1, 100)), (2, body_of(12, 100)), (3, body_of(13, 100))];
    assert_eq!(rig.recovered(), expected);
    assert_eq!(contents(log.read_from(Timestamp(0)).unwrap()), expected);
}

/// Incarnations: records that the starts of openings void can be erased, and the starts then dropped from the list.
/// This opening and all later ones recover the same records, even if the header of a void record extends into the next
/// window.
#[test]
fn erased_records_need_no_starts() {
    let mut random = Random(11);
    let mut erased_count = 0;
    for seed in 0..60 {
        let mut rig = Rig::new(Disk::new(false), options(2));
        let mut log = rig.create();
        for opening in 0..8 {
            let mut last = None;
            for _ in 0..random.below(6) {
                let bytes = 100 + 8 * random.below(500) as usize;
                last = Some(append(&log, random.below(2) as usize, body_of(opening, bytes)));
            }
            // Write only the stream of the last record, so that the records missing from the second stream are a gap.
            if let Some(last) = last {
                log.shared.wait_stream(last.stream.index(), last.timestamp).unwrap();
            }
            rig.move_to(rig.disk.copy());
            let scan = rig.scan().unwrap();
            let expected = contents(scan.records().unwrap());
            if random.below(2) == 0 {
                log = rig.start(scan);
                continue;
            }
            let files = |rig: &Rig| rig.disk.files().iter().map(|path| rig.disk.bytes(path)).collect::<Vec<_>>();
            let before = files(&rig);
            scan.erase_void().unwrap();
            erased_count += u64::from(files(&rig) != before);
            let incarnation = Incarnation(rig.openings.last().unwrap().0.0 + 1);
            rig.openings = vec![(incarnation, scan.last().next())];
            assert_eq!(rig.recovered(), expected, "seed {seed}, opening {opening}");
            log = scan.start(incarnation, rig.checkpoint, rig.hooks()).unwrap();
        }
    }
    assert!(erased_count > 20, "{erased_count}");
}

/// Horizon: a commit is durable only if every older record is, in all streams. The thread that waits for the commit
/// ensures this.
#[test]
fn a_waiter_writes_older_records_of_other_streams() {
    let mut rig = Rig::new(Disk::new(false), options(3));
    let log = rig.create();
    append(&log, 1, body_of(1, 100));
    append(&log, 2, body_of(2, 100));
    let third = append(&log, 0, body_of(3, 100));
    append(&log, 1, body_of(4, 100));
    log.wait_durable(&third).unwrap();
    assert!(log.durable() >= Timestamp(3));
    rig.move_to(rig.disk.cut(&mut Random(7)));
    assert_eq!(rig.recovered()[..3], expect(1, 3, 100));
}

/// Corruption: one flipped bit in any record that a later horizon covers is reported with the file and the timestamp.
#[test]
fn a_flipped_bit_in_the_middle_is_damage() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    commit_to(&log, 10, 200);
    drop(log);
    let path = rig.path(0, 1);
    let record = RECORD_HEADER_BYTES + 200;
    for (offset_in_record, victim) in [(0, 1), (12, 5), (RECORD_HEADER_BYTES + 10, 5), (44, 8)] {
        rig.move_to(rig.disk.copy());
        let offset = 4096 + (victim - 1) * record + offset_in_record;
        rig.disk.tamper(&path, |bytes| bytes[offset] ^= 4);
        let (file, message) = damage(rig.scan());
        assert_eq!(file, path);
        assert!(message.contains(&format!("timestamp {victim} ")), "{message}");
        rig.disk.tamper(&path, |bytes| bytes[offset] ^= 4);
    }
}

/// Corruption: a timestamp that was assigned before an opening began must be found by every later opening.
#[test]
fn a_record_from_before_an_opening_must_be_there() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    commit_to(&log, 3, 200);
    drop(log);
    drop(rig.reopen());
    let path = rig.path(0, 1);
    let offset = 4096 + 2 * (RECORD_HEADER_BYTES + 200) + 60;
    rig.disk.tamper(&path, |bytes| bytes[offset] ^= 1);
    assert!(damage(rig.scan()).1.contains("timestamp 3 "));
}

/// Recovery makes durable the records that a previous process left in caches. Readers may have seen them, so a power
/// cut must not lose them.
#[test]
fn what_was_recovered_from_a_cache_stays() {
    for seed in 0..20 {
        let mut rig = Rig::new(Disk::new(false), options(2));
        let log = rig.create();
        commit_to(&log, 3, 300);
        rig.disk.cut_after(1);
        assert!(log.wait_durable(&append(&log, 0, body_of(4, 9000))).is_err());
        rig.move_to(rig.disk.copy());
        assert_eq!(rig.scan().unwrap().last(), Timestamp(4));
        rig.move_to(rig.disk.cut(&mut Random(seed)));
        assert_eq!(rig.recovered()[3], (4, body_of(4, 9000)));
    }
}

/// Recovered records survive even if their write failed. After a failed write, the system's cache shows bytes that the
/// system will never write, so a sync alone would not save them. Covers records of two streams.
#[test]
fn what_a_failed_write_left_in_a_cache_stays() {
    for (seed, bytes) in [(0, 300), (1, 9000), (2, 20_000)] {
        // The first window of each stream has room for all records.
        let options = LogOptions { segment_bytes: 33 * 4096, ..options(2) };
        let mut rig = Rig::new(Disk::new(false), options);
        let log = rig.create();
        commit_to(&log, 3, 300);
        rig.disk.cut_after(2);
        for number in 4..7 {
            append(&log, number as usize % 2, body_of(number, bytes));
        }
        let _ = log.wait_durable(&append(&log, 1, body_of(7, 300)));
        rig.move_to(rig.disk.copy());
        rig.disk.forget_pending();
        let last = rig.scan().unwrap().last();
        assert!(last > Timestamp(3), "nothing is in the cache");
        rig.move_to(rig.disk.cut(&mut Random(seed)));
        assert_eq!(rig.scan().unwrap().last(), last, "{bytes} bytes");
    }
}

/// Recovery makes durable the names of all segments that it finds. A process that was killed may have left the name of
/// a new segment in caches only, and the next process reuses the segment without creating the name.
#[test]
fn what_was_recovered_keeps_its_name() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    commit_to(&log, 1, 9000);
    // Kill the process between the write of the second segment's header and the sync of its name.
    rig.disk.cut_after(2);
    assert!(log.reserve(0, 20_000).is_err());
    drop(log);
    rig.move_to(rig.disk.copy());
    assert_eq!(rig.disk.files().len(), 2);
    let log = rig.reopen();
    while log.shared.streams[0].tail.lock().position() <= StreamPosition(8 * BLOCK) {
        commit_to(&log, log.last().0 + 1, 3000);
    }
    let acknowledged = log.last();
    assert_eq!(log.durable(), acknowledged);
    drop(log);
    let (openings, disk) = (rig.openings.clone(), Arc::clone(&rig.disk));
    for seed in 0..8 {
        let mut after = Rig::new(disk.copy().cut(&mut Random(seed)), options(1));
        after.openings.clone_from(&openings);
        assert_eq!(after.scan().unwrap().last(), acknowledged, "seed {seed}");
    }
}

/// End: a torn last record ends the replay, and no record before it is lost.
#[test]
fn a_torn_end_loses_nothing_before_it() {
    for seed in 0..40 {
        let mut rig = Rig::new(Disk::new(false), options(1));
        let log = rig.create();
        commit_to(&log, 5, 300);
        rig.disk.cut_after(1);
        let torn = append(&log, 0, body_of(6, 9000));
        assert!(matches!(log.wait_durable(&torn), Err(Error::OutcomeUnknown { .. })));
        rig.move_to(rig.disk.cut(&mut Random(seed)));
        let recovered = rig.recovered();
        assert_eq!(recovered[..5], expect(1, 5, 300));
        assert!(recovered.len() == 5 || recovered[5..] == [(6, body_of(6, 9000))], "whole or not at all");
        let log = rig.reopen();
        let next = log.last().0 + 1;
        commit(&log, 0, body_of(next, 300));
        assert_eq!(rig.recovered().last(), Some(&(next, body_of(next, 300))));
    }
}

/// Rewriting: if the rewrite of a tail block is torn, the durable records at its front are kept.
#[test]
fn a_torn_rewrite_of_the_tail_block_loses_nothing() {
    for seed in 0..60 {
        let mut rig = Rig::new(Disk::new(false), options(1));
        let log = rig.create();
        commit_to(&log, 3, 290);
        let before = log.shared.streams[0].tail.lock().position();
        rig.disk.cut_after(1);
        let torn = append(&log, 0, body_of(4, 700));
        assert_eq!(torn.end, before + 48 + 704, "the record goes on in the same block");
        assert!(log.wait_durable(&torn).is_err());
        rig.move_to(rig.disk.cut(&mut Random(seed)));
        assert_eq!(rig.recovered()[..3], expect(1, 3, 290));
    }
}

/// Busy block: records that arrive while the tail block is in flight go to the next block. The bytes in flight do not
/// change, and recovery does not mistake the padding for a gap.
#[test]
fn a_busy_tail_block_is_padded() {
    let mut rig = Rig::new(Disk::new(true), options(1));
    let log = rig.create();
    commit_to(&log, 1, 100);
    while log.shared.streams[0].tail.lock().preparation().is_some() {
        std::thread::yield_now();
    }
    rig.disk.hold();
    std::thread::scope(|scope| {
        let second = append(&log, 0, body_of(2, 100));
        let log = &log;
        scope.spawn(move || log.wait_durable(&second).unwrap());
        rig.disk.wait_held();
        let third = append(log, 0, body_of(3, 100));
        assert_eq!(third.end, StreamPosition(4096 + 48 + 104));
        rig.disk.release();
        log.wait_durable(&third).unwrap();
        let fourth = append(log, 0, body_of(4, 100));
        assert_eq!(fourth.end, third.end + 48 + 104, "a block that is not busy is shared");
        log.wait_durable(&fourth).unwrap();
    });
    assert_eq!(rig.recovered(), expect(1, 4, 100));
}

/// Segments: a record may span any number of segments, and is still recovered.
#[test]
fn records_span_segments() {
    let mut rig = Rig::new(Disk::new(false), LogOptions { segment_bytes: 8192, ..options(1) });
    let log = rig.create();
    commit_to(&log, 30, 10_000);
    assert!(rig.disk.files().len() > 60);
    assert_eq!(rig.recovered(), expect(1, 30, 10_000));
    assert_eq!(contents(log.read_from(Timestamp(17)).unwrap()), expect(18, 30, 10_000));
    drop(log);
    let log = rig.reopen();
    commit_to(&log, 40, 10_000);
    assert_eq!(rig.recovered(), expect(1, 40, 10_000));
}

/// Recycling: covered segments are reused, so the log stays as small as its live part. No record of an earlier use is
/// ever recovered, even if its bytes still follow the new records.
#[test]
fn covered_segments_are_recycled() {
    let mut rig = Rig::new(Disk::new(false), options(2));
    let log = rig.create();
    let mut most = 0;
    for round in 1..=40 {
        commit_to(&log, round * 50, 900);
        rig.truncate(&log, Timestamp(round * 50 - 5));
        assert!(log.live_bytes() <= 2 * 2 * 9 * 4096);
        most = most.max(rig.disk.used_bytes());
        assert_eq!(rig.recovered(), expect(round * 50 - 4, round * 50, 900));
        rig.move_to(rig.disk.clone());
    }
    assert!(most <= 2 * 6 * 9 * 4096, "{most} bytes for 80 segments' worth of records");
    assert!(matches!(log.read_from(Timestamp(0)), Err(Error::Invalid(_))));
    assert_eq!(timestamps(log.read_from(log.truncated()).unwrap()).last(), Some(&2000));
}

/// Use numbers: bytes of an earlier use do not verify, even if a test copies them back to their old offset.
#[test]
fn bytes_of_an_earlier_use_never_verify() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    commit_to(&log, 30, 900);
    let first = rig.path(0, 1);
    let stale = rig.disk.bytes(&first);
    commit_to(&log, 60, 900);
    rig.truncate(&log, Timestamp(60));
    commit_to(&log, 110, 900);
    assert_ne!(rig.disk.bytes(&first)[..4096], stale[..4096], "the first segment is in use again");
    drop(log);
    rig.disk.tamper(&first, |bytes| bytes[4096..].copy_from_slice(&stale[4096..]));
    // The stale bytes overwrote records that were durable. That is corruption, and records 1 to 30 do not reappear.
    damage(rig.scan());
}

/// A copy of a record within another record's body is never mistaken for a record, even if the outer record is torn.
#[test]
fn a_record_within_a_body_is_no_record() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    commit_to(&log, 2, 100);
    let path = rig.path(0, 1);
    let copy = rig.disk.bytes(&path)[4096..4096 + 2 * 152].to_vec();
    commit(&log, 0, [vec![0; 8], copy].concat());
    drop(log);
    let outer = 4096 + 2 * 152 + 50;
    rig.disk.tamper(&path, |bytes| bytes[outer] ^= 1);
    assert_eq!(rig.recovered(), expect(1, 2, 100));
}

/// A segment that names a newer checkpoint than the newest superblock is reported as corruption.
#[test]
fn a_superblock_older_than_a_segment_says_is_damage() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    commit_to(&log, 30, 900);
    rig.truncate(&log, Timestamp(20));
    commit_to(&log, 80, 900);
    drop(log);
    assert_eq!(rig.recovered(), expect(21, 80, 900));
    rig.checkpoint.0 -= 1;
    assert!(damage(rig.scan()).1.contains("names checkpoint 1"));
}

/// A record whose opening the superblock does not list is reported as corruption, even if the superblock lists no
/// opening at all because the database is new.
#[test]
fn a_superblock_older_than_an_opening_is_damage() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    commit_to(&rig.create(), 3, 100);
    commit_to(&rig.reopen(), 6, 100);
    assert_eq!(rig.recovered(), expect(1, 6, 100));
    for _ in 0..2 {
        rig.openings.pop();
        assert!(damage(rig.scan()).1.contains("which the superblock does not know"));
    }
    assert!(rig.openings.is_empty());
}

/// A damaged segment header is reported, and so is a zeroed one.
#[test]
fn a_damaged_segment_header_is_reported() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    commit_to(&log, 30, 900);
    drop(log);
    let path = rig.path(0, 1);
    rig.move_to(rig.disk.copy());
    rig.disk.tamper(&path, |bytes| bytes[40] ^= 1);
    assert_eq!(damage(rig.scan()).0, path);
    rig.disk.tamper(&path, |bytes| bytes[..4096].fill(0));
    assert_eq!(damage(rig.scan()).0, path);
}

/// The end of a log can't be distinguished from damage to its last records. But if a file was complete once and is
/// shorter now, it must have been truncated.
#[test]
fn a_segment_that_was_cut_short_is_damage() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    commit_to(&log, 3, 900);
    drop(log);
    rig.move_to(rig.disk.copy());
    let path = rig.path(0, 1);
    for length in [3 * 4096, 4096] {
        rig.disk.tamper(&path, |bytes| bytes.truncate(length));
        assert_eq!(damage(rig.scan()).0, path, "cut to {length}");
    }
}

/// A window was begun twice, because an opening prepared it in one file and a later opening chose a different file. If
/// a record extends into this window, both passes of recovery read the record's end from the later use, even if that
/// use holds nothing else.
#[test]
fn a_record_runs_on_into_a_window_that_was_begun_twice() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    let window_bytes = rig.options.window_bytes();
    // The second record begins in the first window and ends in the second.
    commit_to(&log, 2, 20_000);
    drop(log);
    rig.move_to(rig.disk.copy());
    let paths = [2, 3].map(|slot| rig.path(0, slot));
    let second = SegmentHeader::decode(&rig.disk.bytes(&paths[0])[..4096]).unwrap().unwrap();
    assert_eq!((second.start, second.use_number), (StreamPosition(window_bytes), UseNumber(2)));
    rig.disk.tamper(&paths[0], |bytes| SegmentHeader { use_number: UseNumber(3), ..second }.encode(&mut bytes[..4096]));
    let unused =
        rig.backend.open(&paths[1], OpenOptions { write: true, create: true, ..OpenOptions::default() }).unwrap();
    unused.allocate(0, BLOCK + window_bytes).unwrap();
    segment::write_header(&unused, &SegmentHeader { slot: SlotNumber(3), ..second }, Persist::Later).unwrap();
    let scan = rig.scan().unwrap();
    let records: Vec<_> = scan.records().unwrap().map(|record| record.unwrap().timestamp.0).collect();
    assert_eq!(records, [1, 2]);
}

/// Missing file: recovery detects any segment that was removed, emptied, zeroed or replaced by an earlier use. This
/// includes the newest segment and the prepared one, with one stream and with several, even in a log that an earlier
/// opening began.
#[test]
fn a_lost_segment_is_damage() {
    for (streams, commits, reopens) in [(1, 80, false), (1, 3, false), (1, 80, true), (3, 3, false), (3, 90, true)] {
        let mut rig = Rig::new(Disk::new(false), options(streams));
        let mut log = rig.create();
        let earlier = rig.disk.copy();
        commit_to(&log, commits, 900);
        if reopens {
            drop(log);
            log = rig.reopen();
            commit_to(&log, commits + 20, 900);
            rig.truncate(&log, Timestamp(commits));
            commit_to(&log, commits + 40, 900);
        }
        let last = log.last().0;
        drop(log);
        let listed = rig.listed.lock().clone();
        let is_listed = |header: &SegmentHeader| {
            listed.iter().any(|range| range.stream == header.stream && (range.from..range.to).contains(&header.start))
        };
        let whole = Arc::clone(&rig.disk);
        let mut lost_count = 0;
        for path in whole.files() {
            let header = SegmentHeader::decode(&whole.bytes(&path)[..4096]).unwrap();
            let Some(header) = header.filter(is_listed) else { continue };
            for loss in ["removed", "emptied", "zeroed", "of an earlier use"] {
                rig.move_to(whole.copy());
                match loss {
                    "removed" => rig.backend.remove(&path).unwrap(),
                    "emptied" => rig.disk.tamper(&path, Vec::clear),
                    "zeroed" => rig.disk.tamper(&path, |bytes| bytes.fill(0)),
                    _ => {
                        let Some(before) = earlier.files().contains(&path).then(|| earlier.bytes(&path)) else {
                            continue;
                        };
                        let before_use = SegmentHeader::decode(&before[..4096]).unwrap().unwrap().use_number;
                        if before_use == header.use_number {
                            continue;
                        }
                        rig.disk.tamper(&path, |bytes| *bytes = before);
                    }
                }
                let error = rig.scan().map(|scan| scan.last().0);
                assert!(
                    matches!(error, Err(Error::Corrupted { .. })),
                    "{} {loss}, {streams} streams, {commits} commits: {error:?} of {last}",
                    path.display()
                );
                lost_count += 1;
            }
        }
        assert!(lost_count >= 3 * streams, "{lost_count}");
    }
}

/// I/O: a failed write is final. The outcome of the commit in flight is unknown, later commits are refused, and the
/// horizon no longer advances. Reopening decides the outcome.
#[test]
fn a_failed_write_is_final() {
    let mut rig = Rig::new(Disk::new(false), options(2));
    let log = rig.create();
    commit_to(&log, 4, 100);
    let early = append(&log, 0, body_of(5, 100));
    let reserved = log.reserve(1, 100).unwrap();
    rig.disk.fail_writes();
    assert!(matches!(log.wait_durable(&early), Err(Error::OutcomeUnknown { .. })));
    assert!(matches!(log.wait_durable(&early), Err(Error::OutcomeUnknown { .. })));
    let writes = rig.disk.write_count();
    assert!(matches!(reserved.append(&Body::new(body_of(6, 100))), Err(Error::Failed { .. })));
    assert!(matches!(log.reserve(0, 1), Err(Error::Failed { .. })));
    assert!(matches!(log.reserve(1, 1), Err(Error::Failed { .. })));
    assert_eq!(rig.disk.write_count(), writes, "nothing is tried again");
    assert_eq!(log.durable(), Timestamp(4));
    assert!(log.failure().unwrap().contains("Input/output error"));
    assert!(log.close(Timestamp(0)).is_err());
    drop(log);
    rig.move_to(rig.disk.copy());
    assert_eq!(rig.recovered(), expect(1, 4, 100));
}

/// A sealed log assigns no timestamp, even if space was reserved before. Closing the log writes the records that were
/// appended before it was sealed.
#[test]
fn a_sealed_log_takes_no_record() {
    let mut rig = Rig::new(Disk::new(false), options(2));
    let log = rig.create();
    commit_to(&log, 4, 100);
    let large = log.body_bytes_max();
    let (early, late) = (log.reserve(0, 100).unwrap(), log.reserve(0, 100).unwrap());
    let other = log.reserve(1, large).unwrap();
    let mut queued = Box::pin(log.reserve_as_task(1, large));
    assert!(poll(&mut queued.as_mut(), Waker::noop()).is_pending());
    early.append(&Body::new(body_of(5, 100))).unwrap();
    log.seal();
    for reserved in [late, other] {
        assert!(matches!(reserved.append(&Body::new(body_of(6, 100))), Err(Error::Closed)));
    }
    assert!(matches!(poll(&mut queued.as_mut(), Waker::noop()), Poll::Ready(Err(Error::Closed))));
    assert!(matches!(log.reserve(0, 1), Err(Error::Closed)));
    assert_eq!(log.last(), Timestamp(5));
    log.close(Timestamp(0)).unwrap();
    assert_eq!(log.durable(), Timestamp(5));
    drop(queued);
    drop(log);
    rig.move_to(rig.disk.copy());
    assert_eq!(rig.recovered(), expect(1, 5, 100));
}

/// A record without a reservation is appended if there is room, and is recovered. It uses no reserved room, and does
/// not overtake records that wait for room. A sealed log refuses it.
#[test]
fn a_record_without_a_reservation_overtakes_none() {
    let mut rig = Rig::new(Disk::new(false), options(2));
    let log = rig.create();
    commit_to(&log, 4, 100);
    let appended = log.try_append(0, &Body::new(body_of(5, 100))).unwrap().expect("there is room");
    assert_eq!(appended.timestamp, Timestamp(5));
    log.wait_durable(&appended).unwrap();

    let large = log.body_bytes_max();
    let reserved = log.reserve(0, large).unwrap();
    assert!(log.try_append(0, &Body::new(body_of(6, 20_000))).unwrap().is_none(), "the buffer is reserved");
    let mut queued = Box::pin(log.reserve_as_task(0, large));
    assert!(poll(&mut queued.as_mut(), Waker::noop()).is_pending());
    drop(reserved);
    assert!(log.try_append(0, &Body::new(body_of(6, 100))).unwrap().is_none(), "another is first");
    assert_eq!(log.last(), Timestamp(5));
    drop(queued);
    assert!(log.try_append(0, &Body::new(body_of(6, 100))).unwrap().is_some());

    log.seal();
    assert!(matches!(log.try_append(0, &Body::new(body_of(7, 100))), Err(Error::Closed)));
    assert_eq!(log.last(), Timestamp(6));
    log.close(Timestamp(0)).unwrap();
    drop(log);
    rig.move_to(rig.disk.copy());
    assert_eq!(rig.recovered(), expect(1, 6, 100));
}

/// Another module can make the log fail, which wakes all waiters. A write in flight still counts if it completes
/// afterwards.
#[test]
fn the_log_can_be_failed_from_outside() {
    let mut rig = Rig::new(Disk::new(true), options(1));
    let log = rig.create();
    commit_to(&log, 1, 10);
    while log.shared.streams[0].tail.lock().preparation().is_some() {
        std::thread::yield_now();
    }
    rig.disk.hold();
    std::thread::scope(|scope| {
        let log = &log;
        let second = append(log, 0, body_of(2, 100));
        let leader = scope.spawn(move || log.wait_durable(&second));
        rig.disk.wait_held();
        let third = append(log, 0, body_of(3, 100));
        let follower = scope.spawn(move || log.wait_durable(&third));
        log.fail("the data file failed");
        assert!(matches!(follower.join().unwrap(), Err(Error::OutcomeUnknown { .. })));
        rig.disk.release();
        leader.join().unwrap().unwrap();
        assert!(matches!(log.reserve(0, 1), Err(Error::Failed { .. })));
    });
    assert_eq!(log.durable(), Timestamp(2));
}

/// Large values: the hook runs before each write of records that name extents, and before no other write.
#[test]
fn values_are_synced_before_the_record_that_names_them() {
    let disk = Disk::new(false);
    let backend = disk.backend();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let before_write: BeforeWrite = {
        let (calls, disk) = (Arc::clone(&calls), Arc::clone(&disk));
        Box::new(move || {
            calls.lock().push(disk.write_count());
            if calls.lock().len() == 2 { Err(io::Error::other("no values")) } else { Ok(()) }
        })
    };
    let hooks = Hooks { before_write, ..Hooks::none() };
    let log = Log::create(&backend, &folder_of(&backend, DIR), &options(1), Incarnation(1), hooks).unwrap();
    commit(&log, 0, body_of(1, 100));
    assert!(calls.lock().is_empty());
    let writes = disk.write_count();
    append(&log, 0, body_of(2, 100));
    let named = log.reserve(0, 10).unwrap().append(&Body::naming_extents(vec![1])).unwrap();
    log.wait_durable(&named).unwrap();
    assert_eq!(*calls.lock(), [writes]);
    let named = log.reserve(0, 10).unwrap().append(&Body::naming_extents(vec![1])).unwrap();
    assert!(matches!(log.wait_durable(&named), Err(Error::OutcomeUnknown { .. })));
    assert!(log.failure().unwrap().contains("no values"));
}

/// The hook is called each time the horizon advances, including the last time.
#[test]
fn the_horizon_is_reported() {
    let heard = Arc::new(AtomicU64::new(0));
    let own = Arc::clone(&heard);
    let on_durable: OnDurable = Box::new(move |horizon| {
        own.fetch_max(horizon.0, Ordering::SeqCst);
    });
    let backend = Disk::new(false).backend();
    let hooks = Hooks { on_durable, ..Hooks::none() };
    let log = Log::create(&backend, &folder_of(&backend, DIR), &options(2), Incarnation(1), hooks).unwrap();
    commit_to(&log, 9, 10);
    assert_eq!(heard.load(Ordering::SeqCst), 9);
}

/// On a full disk, new reservations fail, but records whose space is reserved are appended. Reservations succeed again
/// once segments have been freed.
#[test]
fn a_full_disk_passes() {
    for threads in [false, true] {
        let mut rig = Rig::new(Disk::new(threads), options(1));
        let log = rig.create();
        rig.disk.set_capacity(Some(4 * 9 * 4096));
        let refused = loop {
            match log.reserve(0, 900) {
                Ok(reservation) => {
                    let body = body_of(log.last().0 + 1, 900);
                    log.wait_durable(&reservation.append(&Body::new(body)).unwrap()).unwrap();
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::DiskFull { .. }));
        assert!(log.failure().is_none());
        let last = log.last();
        assert!(last.0 > 100);
        rig.truncate(&log, last);
        commit_to(&log, last.0 + 60, 900);
        assert_eq!(rig.recovered(), expect(last.0 + 1, last.0 + 60, 900));
    }
}

/// A reservation holds its space until it is used or dropped.
#[test]
fn a_reservation_holds_its_space() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    let large = log.body_bytes_max();
    let held = log.reserve(0, large).unwrap();
    assert!(poll(&mut pin!(log.reserve_as_task(0, large)), Waker::noop()).is_pending());
    drop(held);
    let held = log.reserve(0, large).unwrap();
    let appended = held.append(&Body::new(vec![1; large])).unwrap();
    let waited = log.reserve(0, large).unwrap();
    assert!(log.durable() >= appended.timestamp, "whoever needs the buffer writes it");
    drop(waited);
}

/// Waiting reservations, large and small, are served in order, and all of them succeed.
#[test]
fn reservations_that_wait_all_get_through() {
    let mut rig = Rig::new(Disk::new(true), options(2));
    let log = rig.create();
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let log = &log;
            scope.spawn(move || {
                let mut random = Random(thread);
                for _ in 0..60 {
                    let bytes = if random.below(3) == 0 { log.body_bytes_max() } else { random.below(3000) as usize };
                    append(log, random.below(2) as usize, vec![thread as u8; bytes]);
                }
            });
        }
    });
    log.close(Timestamp(0)).unwrap();
    assert_eq!(log.durable(), Timestamp(360));
    drop(log);
    assert_eq!(rig.recovered().len(), 360);
}

/// Relaxed commits are written even though no caller waits for them.
#[test]
fn a_request_to_flush_is_enough() {
    let mut rig = Rig::new(Disk::new(true), options(2));
    let log = rig.create();
    for number in 1..=100u64 {
        let appended = append(&log, number as usize % 2, body_of(number, 100));
        // The first kind of request is for tasks, the second for commits that no caller waits for.
        if number % 2 == 0 { log.request_flush(&appended) } else { log.request_relaxed_flush(&appended) }
    }
    while log.durable() < Timestamp(100) {
        std::thread::yield_now();
    }
    rig.move_to(rig.disk.cut(&mut Random(3)));
    assert_eq!(rig.recovered(), expect(1, 100, 100));
}

struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<F: Future>(future: &mut Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(waker))
}

/// Tasks wait for space in the same queue as threads. They are served in order, woken when it is their turn, skipped
/// when dropped, and refused when the log fails. They don't have to perform the writes that they wait for.
#[test]
fn a_task_can_wait_for_space() {
    for threads in [false, true] {
        let mut rig = Rig::new(Disk::new(threads), options(1));
        let log = rig.create();
        let large = log.body_bytes_max();
        let counters = [(); 3].map(|()| Arc::new(CountingWaker(AtomicUsize::new(0))));
        let wakers = counters.each_ref().map(|counter| Waker::from(Arc::clone(counter)));
        let until_ready = |future: &mut Pin<&mut _>, index: usize| loop {
            let wakes = counters[index].0.load(Ordering::SeqCst);
            match poll(future, &wakers[index]) {
                Poll::Ready(reserved) => break reserved,
                Poll::Pending => {
                    while counters[index].0.load(Ordering::SeqCst) == wakes {
                        std::thread::yield_now();
                    }
                }
            }
        };
        let held = log.reserve(0, large).unwrap();
        let mut first = Box::pin(log.reserve_as_task(0, large));
        let mut second = Box::pin(log.reserve_as_task(0, large));
        let mut third = Box::pin(log.reserve_as_task(0, large / 2));
        assert!(poll(&mut first.as_mut(), &wakers[0]).is_pending());
        assert!(poll(&mut second.as_mut(), &wakers[1]).is_pending());
        assert!(poll(&mut third.as_mut(), &wakers[2]).is_pending());
        drop(first);
        held.append(&Body::new(vec![1; large])).unwrap();
        let held = until_ready(&mut second.as_mut(), 1).unwrap();
        assert_eq!(log.durable(), Timestamp(1), "nobody else wrote what took the space");
        assert!(poll(&mut third.as_mut(), &wakers[2]).is_pending());
        drop(held);
        let held = until_ready(&mut third.as_mut(), 2).unwrap();
        let mut refused = Box::pin(log.reserve_as_task(0, large));
        assert!(poll(&mut refused.as_mut(), &wakers[0]).is_pending());
        log.fail("a test says so");
        assert!(matches!(until_ready(&mut refused.as_mut(), 0), Err(Error::Failed { .. })));
        drop(held);
    }
}

/// A task is woken when its commit becomes durable, even if no thread waits for the commit, and when the log fails.
#[test]
fn a_task_can_wait() {
    let mut rig = Rig::new(Disk::new(true), options(2));
    let log = rig.create();
    append(&log, 1, body_of(1, 10));
    let second = append(&log, 0, body_of(2, 10));
    let counter = Arc::new(CountingWaker(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&counter));
    while log.shared.poll_durable(second.timestamp, &waker).is_pending() {
        std::thread::yield_now();
    }
    assert!(log.durable() >= second.timestamp);
    while log.shared.streams[0].tail.lock().preparation().is_some() {
        std::thread::yield_now();
    }
    rig.disk.hold();
    let third = append(&log, 0, body_of(3, 10));
    assert!(log.poll_durable(third.timestamp, &waker).is_pending());
    rig.disk.fail_writes();
    rig.disk.release();
    let settled = loop {
        if let Poll::Ready(settled) = log.poll_durable(third.timestamp, &waker) {
            break settled;
        }
    };
    assert!(matches!(settled, Err(Error::OutcomeUnknown { .. })));
    while counter.0.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
}

/// Reading can begin at any timestamp. It looks up the position in the index, and yields exactly the durable records
/// above the timestamp.
#[test]
fn reading_begins_anywhere() {
    let mut rig = Rig::new(Disk::new(false), LogOptions { segment_bytes: 64 * 4096, ..options(2) });
    let log = rig.create();
    commit_to(&log, 300, 2500);
    append(&log, 0, body_of(301, 10));
    for after in (0..=300).step_by(37) {
        let found = timestamps(log.read_from(Timestamp(after)).unwrap());
        assert_eq!(found, (after + 1..=300).collect::<Vec<u64>>());
    }
    drop(log);
    let log = rig.reopen();
    assert_eq!(timestamps(log.read_from(Timestamp(123)).unwrap()), (124..=300).collect::<Vec<u64>>());
}

/// A segment that a reader holds is not reused.
#[test]
fn a_reader_keeps_its_segments() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    commit_to(&log, 100, 900);
    let mut records = log.read_from(Timestamp(0)).unwrap();
    assert_eq!(records.next().unwrap().unwrap().timestamp, Timestamp(1));
    rig.truncate(&log, Timestamp(100));
    commit_to(&log, 300, 900);
    assert_eq!(contents(records), expect(2, 100, 900));
    let before = rig.disk.used_bytes();
    rig.truncate(&log, Timestamp(300));
    commit_to(&log, 400, 900);
    assert!(rig.disk.used_bytes() <= before, "they are reused afterwards");
}

/// Reopening with more or fewer streams loses no record. The files of removed streams are deleted once their records
/// are covered.
#[test]
fn the_number_of_streams_can_change() {
    let mut rig = Rig::new(Disk::new(false), options(3));
    let log = rig.create();
    commit_to(&log, 60, 900);
    drop(log);
    for (streams, last) in [(1, 90), (2, 120), (3, 150), (1, 180)] {
        rig.options = options(streams);
        let log = rig.reopen();
        commit_to(&log, last, 900);
        assert_eq!(contents(log.read_from(Timestamp(0)).unwrap()), expect(1, last, 900));
        log.close(Timestamp(0)).unwrap();
        drop(log);
        rig.move_to(rig.disk.cut(&mut Random(last)));
        assert_eq!(rig.recovered(), expect(1, last, 900));
    }
    let log = rig.reopen();
    rig.truncate(&log, Timestamp(180));
    assert!(
        rig.disk
            .files()
            .iter()
            .all(|path| segment::parse_name(path.file_name().unwrap().to_str().unwrap()).unwrap().0 == StreamId(0))
    );
    commit_to(&log, 200, 900);
    assert_eq!(rig.recovered(), expect(181, 200, 900));
}

/// Segments of a different size can be read, and are replaced once their records are covered.
#[test]
fn the_size_of_segments_can_change() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    commit_to(&log, 60, 900);
    drop(log);
    rig.options.segment_bytes = 20 * 4096;
    let log = rig.reopen();
    commit_to(&log, 150, 900);
    assert_eq!(rig.recovered(), expect(1, 150, 900));
    rig.truncate(&log, Timestamp(150));
    commit_to(&log, 250, 900);
    assert!(rig.disk.files().iter().all(|path| rig.disk.bytes(path).len() == 20 * 4096));
    assert_eq!(rig.recovered(), expect(151, 250, 900));
}

/// A segment larger than the first fill is filled in the background, even after reopening.
#[test]
fn a_large_segment_is_filled_in_steps() {
    for threads in [false, true] {
        let large = LogOptions { segment_bytes: 12 << 20, buffer_bytes: 1 << 20, ..options(1) };
        let mut rig = Rig::new(Disk::new(threads), large);
        let log = rig.create();
        commit_to(&log, 20, 100_000);
        drop(log);
        let log = rig.reopen();
        commit_to(&log, 150, 100_000);
        drop(log);
        assert_eq!(rig.recovered(), expect(1, 150, 100_000));
    }
}

/// Starting a closed log writes nothing. The next record goes to an existing file, even if that file was not completely
/// filled.
#[test]
fn a_closed_log_is_started_without_a_write() {
    for segment_bytes in [9 * 4096, 12 << 20] {
        let mut rig = Rig::new(Disk::new(false), LogOptions { segment_bytes, ..options(1) });
        let log = rig.create();
        commit_to(&log, 5, 100);
        rig.covered = log.last();
        log.close(rig.covered).unwrap();
        let (writes, files) = (rig.disk.write_count(), rig.disk.files());
        let log = rig.reopen();
        assert_eq!((log.last(), log.durable()), (Timestamp(5), Timestamp(5)));
        log.close(rig.covered).unwrap();
        assert_eq!(rig.disk.write_count(), writes, "opened and closed");
        let log = rig.reopen();
        commit_to(&log, 7, 100);
        drop(log);
        assert_eq!(rig.disk.files(), files);
        assert_eq!(rig.recovered(), expect(6, 7, 100));
    }
}

/// If the superblock that lists an opening's first window is lost, the previous superblock still leads to the records.
/// If that one is lost too, the newest superblock says that the log was closed. But the segment's header names an
/// opening that this superblock does not list, which is reported as corruption.
#[test]
fn superblocks_lost_after_closing_are_noticed() {
    let mut rig = Rig::new(Disk::new(false), options(2));
    let log = rig.create();
    commit_to(&log, 5, 100);
    rig.covered = log.last();
    log.close(rig.covered).unwrap();
    let (openings, listed) = (rig.openings.clone(), rig.listed.lock().clone());
    assert!(rig.scan().unwrap().is_closed() && listed.is_empty());
    let log = rig.reopen();
    commit_to(&log, 9, 100);
    drop(log);
    *rig.listed.lock() = listed;
    assert_eq!(rig.recovered(), expect(6, 9, 100));
    rig.openings = openings;
    rig.closed.store(true, Ordering::SeqCst);
    let (_, message) = damage(rig.scan());
    assert!(message.contains("opening 2, which the superblock does not know"), "{message}");
}

/// After a truncation, a busy log keeps as many segments as it may need soon. An idle log keeps one spare per stream,
/// and a closed log keeps a single file per stream.
#[test]
fn idle_and_closed_logs_are_short() {
    let mut rig = Rig::new(Disk::new(false), options(2));
    let log = rig.create();
    commit_to(&log, 400, 1000);
    rig.truncate(&log, Timestamp(400));
    assert!(rig.disk.files().len() > 6, "{:?}", rig.disk.files());
    log.remove_idle();
    let in_use: usize = log.shared.streams.iter().map(|stream| stream.tail.lock().windows.count()).sum();
    assert_eq!(rig.disk.files().len(), in_use + 2);
    commit_to(&log, 800, 1000);
    rig.truncate(&log, Timestamp(800));
    log.close(Timestamp(800)).unwrap();
    drop(log);
    assert_eq!(rig.disk.files().len(), 2);
    let log = rig.reopen();
    commit_to(&log, 810, 1000);
    drop(log);
    assert_eq!(rig.recovered(), expect(801, 810, 1000));
}

/// A new log prepares one segment per stream, and a few records do not add any. By the time a stream's segment is half
/// full, the next one has been prepared.
#[test]
fn segments_are_prepared_as_the_log_grows() {
    let mut rig = Rig::new(Disk::new(false), options(2));
    let log = rig.create();
    commit(&log, 0, body_of(1, 100));
    assert_eq!(rig.disk.files().len(), 2);
    let is_half_full = || log.shared.streams[0].tail.lock().position() > StreamPosition(4 * BLOCK);
    while !is_half_full() {
        commit(&log, 0, body_of(1, 3000));
    }
    commit(&log, 0, body_of(1, 100));
    assert_eq!(rig.disk.files().len(), 3);
}

/// Opening repeatedly without a commit takes no space.
#[test]
fn opening_again_takes_no_space() {
    let mut rig = Rig::new(Disk::new(false), options(2));
    let log = rig.create();
    commit_to(&log, 5, 100);
    drop(log);
    drop(rig.reopen());
    let before = rig.disk.used_bytes();
    for _ in 0..20 {
        drop(rig.reopen());
    }
    assert!(rig.disk.used_bytes() <= before);
    assert_eq!(rig.recovered(), expect(1, 5, 100));
}

/// Verifying an open log counts its records and names each damaged place.
#[test]
fn verify_reports_all_damage() {
    let mut rig = Rig::new(Disk::new(false), options(2));
    let log = rig.create();
    commit_to(&log, 100, 900);
    let sound = log.verify().unwrap();
    assert_eq!((sound.record_count, sound.record_bytes, sound.corruption.len()), (100, 90_000, 0));
    let path = rig.path(0, 1);
    let record = RECORD_HEADER_BYTES + 904;
    rig.disk.tamper(&path, |bytes| {
        bytes[100] ^= 1;
        bytes[4096 + 2 * record + 70] ^= 1;
        bytes[4096 + 7 * record + 3] ^= 1;
    });
    let found = log.verify().unwrap();
    assert_eq!((found.record_count, found.corruption.len()), (98, 2), "{:?}", found.corruption);
    assert!(found.corruption.iter().all(|error| error.to_string().contains("0-1.seg")));
    rig.disk.tamper(&path, |bytes| bytes[40] ^= 1);
    assert_eq!(log.verify().unwrap().corruption.len(), 3);
}

/// After closing, everything is on the medium and no more records are accepted.
#[test]
fn closing_writes_everything() {
    let mut rig = Rig::new(Disk::new(true), options(2));
    let log = rig.create();
    for number in 1..=50u64 {
        append(&log, number as usize % 2, body_of(number, 100));
    }
    log.close(Timestamp(0)).unwrap();
    assert_eq!(log.durable(), Timestamp(50));
    assert!(matches!(log.reserve(0, 1), Err(Error::Closed)));
    rig.move_to(rig.disk.cut(&mut Random(3)));
    assert_eq!(rig.recovered(), expect(1, 50, 100));
}

/// A lone committer's records cost one durable write each. Concurrent committers share a write.
#[test]
fn committers_that_meet_share_a_write() {
    let mut rig = Rig::new(Disk::new(true), options(1));
    let log = rig.create();
    commit_to(&log, 10, 100);
    assert_eq!(log.sync_count(), 10);
    while log.shared.streams[0].tail.lock().preparation().is_some() {
        std::thread::yield_now();
    }
    rig.disk.hold();
    std::thread::scope(|scope| {
        let log = &log;
        let first = append(log, 0, body_of(11, 100));
        scope.spawn(move || log.wait_durable(&first).unwrap());
        rig.disk.wait_held();
        for number in 12..30 {
            let appended = append(log, 0, body_of(number, 100));
            scope.spawn(move || log.wait_durable(&appended).unwrap());
        }
        rig.disk.release();
    });
    assert_eq!(log.sync_count(), 12);
}

/// On a disk without space for a second segment, the first one is reused each time a checkpoint covers it.
#[test]
fn a_full_disk_needs_one_segment() {
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    rig.disk.set_capacity(Some(rig.disk.used_bytes()));
    let mut number = 0;
    for _ in 0..5 {
        let mut written = 0;
        while let Ok(reservation) = log.reserve(0, 1000) {
            number += 1;
            written += 1;
            let appended = reservation.append(&Body::new(body_of(number, 1000))).unwrap();
            log.wait_durable(&appended).unwrap();
        }
        assert!(written > 3, "{written} records until the disk was full");
        let last = log.last();
        rig.truncate(&log, last);
    }
    assert!(rig.recovered().is_empty());
    let log = rig.reopen();
    commit(&log, 0, body_of(number + 1, 1000));
    drop(log);
    assert_eq!(rig.recovered(), expect(number + 1, number + 1, 1000));
}

thread_local! {
    /// The number of warnings that this thread has logged.
    static WARNINGS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// A logger that counts warnings.
struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            WARNINGS.set(WARNINGS.get() + 1);
        }
    }

    fn flush(&self) {}
}

/// A full disk is logged only once, however often segments are reused on it. It is logged again only after a segment
/// could be created.
#[test]
fn a_full_disk_is_reported_once() {
    log::set_logger(&Warnings).expect("no other test of the library has a logger");
    log::set_max_level(log::LevelFilter::Warn);
    let mut rig = Rig::new(Disk::new(false), options(1));
    let log = rig.create();
    for (expected, space_bytes) in [(1, 0), (2, 10 * 4096)] {
        rig.disk.set_capacity(Some(rig.disk.used_bytes() + space_bytes));
        for _ in 0..20 {
            while let Ok(reservation) = log.reserve(0, 1000) {
                let appended = reservation.append(&Body::new(body_of(1, 1000))).unwrap();
                log.wait_durable(&appended).unwrap();
            }
            let last = log.last();
            rig.truncate(&log, last);
        }
        assert_eq!(WARNINGS.get(), expected);
    }
}

/// While the disk has no space for a segment of the current size, segments of an earlier size are reused. They are
/// removed once the disk has space.
#[test]
fn a_full_disk_keeps_segments_of_another_size() {
    for other_bytes in [5 * 4096, 33 * 4096] {
        let mut rig = Rig::new(Disk::new(false), options(1));
        let log = rig.create();
        commit_to(&log, 10, 1000);
        drop(log);
        rig.options.segment_bytes = other_bytes;
        rig.disk.set_capacity(Some(rig.disk.used_bytes()));
        let mut log = rig.reopen();
        for _ in 0..4 {
            while let Ok(reservation) = log.reserve(0, 1000) {
                let body = body_of(log.last().0 + 1, 1000);
                log.wait_durable(&reservation.append(&Body::new(body)).unwrap()).unwrap();
            }
            let last = log.last();
            rig.truncate(&log, last);
            commit_to(&log, last.0 + 1, 1000);
            drop(log);
            assert_eq!(rig.recovered(), expect(last.0 + 1, last.0 + 1, 1000));
            log = rig.reopen();
        }
        rig.disk.set_capacity(None);
        for _ in 0..4 {
            let last = log.last();
            commit_to(&log, last.0 + 60, 1000);
            rig.truncate(&log, log.last());
        }
        drop(log);
        for path in rig.disk.files() {
            assert_eq!(rig.disk.bytes(&path).len() as u64, other_bytes, "{}", path.display());
        }
    }
}

/// If the disk has no space for a segment of the current size, a stream takes no segments of an earlier size from other
/// streams.
#[test]
fn a_full_disk_leaves_each_stream_a_segment() {
    let mut rig = Rig::new(Disk::new(false), options(2));
    drop(rig.create());
    rig.disk.set_capacity(Some(rig.disk.used_bytes()));
    rig.options.segment_bytes = 100 * 4096;
    let log = rig.reopen();
    for _ in 0..6 {
        for stream in [0, 1] {
            while let Ok(reservation) = log.reserve(stream, 1000) {
                let body = body_of(log.last().0 + 1, 1000);
                log.wait_durable(&reservation.append(&Body::new(body)).unwrap()).unwrap();
            }
        }
        rig.truncate(&log, log.last());
        let last = commit(&log, 0, body_of(log.last().0 + 1, 1000));
        // The first stream needs the only segment that it has, and looks for space for a second one.
        rig.truncate(&log, Timestamp(last.0 - 1));
        commit(&log, 1, body_of(last.0 + 1, 1000));
    }
}

/// If two windows cover the same range, the later use counts. An earlier use that was prepared but never used hides no
/// record.
#[test]
fn a_window_that_was_never_used_hides_nothing() {
    // The window is longer than one read: otherwise reading the unused window would stop after the last record.
    let long = LogOptions { segment_bytes: 33 * 4096, ..options(1) };
    let mut rig = Rig::new(Disk::new(false), long);
    let log = rig.create();
    commit_to(&log, 130, 1000);
    rig.truncate(&log, Timestamp(126));
    let window = log.shared.streams[0].tail.lock().windows.iter().next().unwrap().segment.header;
    assert!(window.use_number > UseNumber(1), "the first window is covered");
    drop(log);
    rig.disk.tamper(&rig.path(0, 1), |bytes| bytes.fill(0));
    let unused = SegmentHeader { use_number: UseNumber(1), slot: SlotNumber(77), filled: true, ..window };
    let create = OpenOptions { write: true, create_new: true, ..OpenOptions::default() };
    let file = rig.backend.open(&rig.path(0, 77), create).unwrap();
    segment::write_zeros(&file, BLOCK, BLOCK + unused.window_bytes).unwrap();
    segment::write_header(&file, &unused, Persist::Now(SyncMethod::DataSync)).unwrap();
    file.sync_all().unwrap();
    rig.folder().sync().unwrap();
    assert_eq!(rig.recovered(), expect(127, 130, 1000));
}

/// The log works on every backend, with any sync method and any number of threads.
#[test]
fn every_backend_will_do() {
    let folder = tempfile::tempdir().unwrap();
    let backends = [crate::io::backend(IoBackend::Auto).unwrap(), crate::io::backend(IoBackend::Portable).unwrap()];
    for (number, backend) in backends.into_iter().chain([crate::io::in_memory()]).enumerate() {
        for sync in [SyncMethod::DurableWrite, SyncMethod::DataSync, SyncMethod::FullSync] {
            let dir = folder.path().join(format!("{number}-{sync}"));
            let log_folder = folder_of(&backend, dir.to_str().unwrap());
            let options = LogOptions { sync, ..options(2) };
            let log = Log::create(&backend, &log_folder, &options, Incarnation(1), Hooks::none()).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let log = &log;
                    scope.spawn(move || {
                        for _ in 0..50 {
                            commit(log, thread % 2, vec![thread as u8; 900]);
                        }
                    });
                }
            });
            log.close(Timestamp(0)).unwrap();
            drop(log);
            let openings = [(Incarnation(1), Timestamp(1))];
            let known = SuperblockLogState {
                incarnations: &openings,
                checkpoint: CheckpointNumber::NONE,
                covered: Timestamp(0),
                ranges: &[],
                is_closed: false,
                covered_position: None,
            };
            let scan = Scan::open(&backend, &log_folder, &options, &known).unwrap();
            assert_eq!(timestamps(scan.records().unwrap()), (1..=200).collect::<Vec<u64>>(), "{}", backend.name());
        }
    }
}
