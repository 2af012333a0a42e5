//! Tests of the policy, of credit and of the sums of reserved bytes.

use std::path::Path;

use super::*;
use crate::format::{DatabaseId, Epoch};
use crate::io::fault::FaultyBackend;
use crate::io::{Backend, OpenOptions};
use crate::memory::Budget;

const SEGMENT_BYTES: u64 = 1 << 20;

/// Creates a space on a disk with a limited number of segments.
fn space(backend: &FaultyBackend) -> Space {
    let path = Path::new("data");
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    let file = backend.open(path, options).unwrap();
    Space::new(path, file, DatabaseId(77), SEGMENT_BYTES, 1, Epoch(1), Arc::new(Budget::new(64 << 20, 1)))
}

fn disk() -> FaultyBackend {
    FaultyBackend::new(crate::io::in_memory())
}

fn limit(backend: &FaultyBackend, segments: u64) {
    backend.set_space_limit(Some(backend.space_used() + segments * SEGMENT_BYTES));
}

/// The policy as a table. Each row has free segments, room, dirty, reserved and table bytes; then the purpose and
/// bytes; then the answer.
#[test]
fn the_policy_admits_by_a_table() {
    const MB: u64 = 1 << 20;
    const NONE: u64 = 0;
    let granted = Admission::Granted;
    let scarce = |segments| Admission::Scarce { segments };
    let short = |segments, least_segments| Admission::Short { segments, least_segments };
    let alike = |segments| short(segments, segments);
    type Numbers = (u64, u64, u64, u64, u64);
    #[rustfmt::skip]
    let table: &[(Numbers, Purpose, u64, Admission)] = &[
        // An empty file: one segment for the checkpoint, and six to spare.
        ((7, 0, 0, 0, 0), Purpose::Put, NONE, granted),
        ((6, 0, 0, 0, 0), Purpose::Put, NONE, alike(7)),
        ((4, 0, 0, 0, 0), Purpose::Remove, NONE, granted),
        ((0, 0, 0, 0, 0), Purpose::Remove, NONE, scarce(4)),
        // Three quarters of a segment can be used, and page-table entries take a twentieth of the pages' bytes.
        ((8, 0, 0, 0, 0), Purpose::Put, 700 << 10, granted),
        ((7, 0, 0, 0, 0), Purpose::Put, 700 << 10, granted),
        ((7, 0, 0, 0, 0), Purpose::Put, 740 << 10, alike(8)),
        // Dirty, reserved and requested bytes count alike.
        ((10, 0, 2 * MB, 0, 0), Purpose::Put, NONE, granted),
        ((10, 0, MB, MB, 0), Purpose::Put, NONE, granted),
        ((10, 0, MB, 0, 0), Purpose::Put, MB, granted),
        ((8, 0, 2 * MB, 0, 0), Purpose::Put, NONE, alike(9)),
        ((8, 0, MB, MB, 0), Purpose::Put, NONE, alike(9)),
        // Tables take their own bytes, and beyond one segment four times their bytes must be spare.
        ((8, 0, 0, 0, MB), Purpose::Put, NONE, granted),
        ((10, 0, 0, 0, MB + 1), Purpose::Put, NONE, granted),
        ((9, 0, 0, 0, MB + 1), Purpose::Put, NONE, alike(10)),
        ((13, 0, 0, 0, 2 * MB), Purpose::Put, NONE, granted),
        ((12, 0, 0, 0, 2 * MB), Purpose::Put, NONE, alike(13)),
        // A removal leaves half as much free. At the least margin it leaves nothing, and fills the open segment.
        ((6, 0, 2 * MB, 0, 0), Purpose::Remove, NONE, granted),
        ((5, MB, 2 * MB, 0, 0), Purpose::Remove, NONE, scarce(6)),
        ((1, MB, 2 * MB, 0, 0), Purpose::Remove, NONE, short(6, 2)),
        ((8, 0, 0, 0, 2 * MB), Purpose::Remove, NONE, granted),
        ((7, 0, 0, 0, 2 * MB), Purpose::Remove, NONE, scarce(8)),
        ((0, MB, 0, 0, MB / 2), Purpose::Remove, NONE, scarce(4)),
        // Recovery takes whatever there is.
        ((0, 0, 9 * MB, 0, 0), Purpose::Replay, MB, scarce(21)),
        // An epoch's appender takes what others have reserved.
        ((0, 0, 9 * MB, 9 * MB, MB), Purpose::Pages, NONE, granted),
        // A segment for values or for moves leaves as much space free as its purpose requires.
        ((8, 0, 0, 0, 0), Purpose::Value, NONE, granted),
        ((7, 0, 0, 0, 0), Purpose::Value, NONE, alike(8)),
        ((2, 0, 0, 0, 0), Purpose::Move, NONE, granted),
        ((1, 0, 0, 0, 0), Purpose::Move, NONE, alike(2)),
        ((2, 0, MB, 0, 0), Purpose::Move, NONE, alike(3)),
        // Packing fills three quarters of all free space, less the writes of the checkpoint that follows.
        ((4, 0, 0, 0, 0), Purpose::Pack, 3 * MB, granted),
        ((4, 0, 0, 0, 0), Purpose::Pack, 3 * MB + 3, alike(5)),
        ((3, MB, 0, 0, 0), Purpose::Pack, 3 * MB, granted),
        ((4, 0, 0, 0, MB), Purpose::Pack, 2 * MB, granted),
        ((4, 0, 0, 0, MB), Purpose::Pack, 2 * MB + 3, alike(5)),
        ((0, 0, 9 * MB, 0, MB), Purpose::Pack, NONE, granted),
        // A checkpoint that frees nothing leaves as many segments as the tables take, for another checkpoint.
        ((3, 0, 2 * MB, 0, 0), Purpose::Checkpoint(Frees::Segments), NONE, granted),
        ((3, 0, 2 * MB, 0, 0), Purpose::Checkpoint(Frees::Nothing), NONE, short(4, 4)),
        ((3, MB, 2 * MB, 0, 0), Purpose::Checkpoint(Frees::Nothing), NONE, scarce(4)),
        ((6, 0, 0, 0, 2 * MB), Purpose::Checkpoint(Frees::Nothing), NONE, granted),
        ((2, 0, 0, 0, 2 * MB), Purpose::Checkpoint(Frees::Segments), NONE, short(3, 3)),
        // A page is written ahead into the open segment, or into a segment beyond those that the checkpoint leaves.
        ((0, 8192, 9 * MB, 0, 0), Purpose::WriteBack(Frees::Nothing), 4096, granted),
        ((1, 8191, 9 * MB, 0, 0), Purpose::WriteBack(Frees::Nothing), 4096, alike(2)),
        ((1, 8191, 9 * MB, 0, 0), Purpose::WriteBack(Frees::Segments), 4096, granted),
        ((1, 8191, 9 * MB, 0, MB), Purpose::WriteBack(Frees::Segments), 4096, alike(2)),
    ];
    for &((free_segments, room_bytes, dirty_bytes, reserved_bytes, table_bytes), purpose, bytes, expected) in table {
        let segment_bytes = SEGMENT_BYTES;
        let state = SpaceState { segment_bytes, free_segments, room_bytes, dirty_bytes, reserved_bytes, table_bytes };
        assert_eq!(admit(&state, purpose, bytes), expected, "{purpose:?} of {bytes} bytes in {state:?}");
    }
}

/// The policy is monotone: more free space never turns a grant into a refusal, and more claims never turn a refusal
/// into a grant. Reserved bytes count like requested ones.
#[test]
fn more_space_never_admits_less() {
    let mut random = drumlin_testing::Random(3);
    let mut below = |end: u64| random.below(end);
    for _ in 0..20_000 {
        let state = SpaceState {
            segment_bytes: SEGMENT_BYTES,
            free_segments: below(40),
            room_bytes: below(SEGMENT_BYTES),
            dirty_bytes: below(8 << 20),
            reserved_bytes: below(8 << 20),
            table_bytes: below(4 << 20),
        };
        let bytes = below(4 << 20);
        let frees = [Frees::Segments, Frees::Nothing][below(2) as usize];
        let purpose = [
            Purpose::Put,
            Purpose::Remove,
            Purpose::Replay,
            Purpose::Value,
            Purpose::Move,
            Purpose::Pack,
            Purpose::Checkpoint(frees),
            Purpose::WriteBack(frees),
        ][below(8) as usize];
        let answer = admit(&state, purpose, bytes);
        let more = SpaceState { free_segments: state.free_segments + 1 + below(4), ..state };
        if answer == Admission::Granted {
            assert_eq!(admit(&more, purpose, bytes), Admission::Granted, "{purpose:?} {bytes} {state:?}");
        }
        let claimed = SpaceState { dirty_bytes: state.dirty_bytes + below(1 << 20), ..state };
        if answer != Admission::Granted && !matches!(purpose, Purpose::WriteBack(_)) {
            assert_ne!(admit(&claimed, purpose, bytes), Admission::Granted, "{purpose:?} {bytes} {state:?}");
        }
        if let Admission::Short { segments, .. } | Admission::Scarce { segments } = answer {
            let grown = SpaceState { free_segments: segments, ..state };
            assert_eq!(admit(&grown, purpose, bytes), Admission::Granted, "{purpose:?} {bytes} {state:?}");
        }
        if matches!(purpose, Purpose::Put | Purpose::Remove) {
            let reserved = SpaceState { reserved_bytes: state.reserved_bytes + bytes, ..state };
            assert_eq!(admit(&reserved, purpose, 0), answer, "{purpose:?} {bytes} {state:?}");
        }
    }
}

/// Credit granted with one commit pays for the next ones and counts as reserved. What they spend is given back with the
/// next grant.
#[test]
fn credit_pays_for_what_follows() {
    let space = space(&disk());
    assert!(space.spend_credit(Purpose::Put, 1).is_none(), "nothing was granted");
    drop(space.reserve(Purpose::Put, 1000).unwrap());
    assert_eq!(space.reserved_bytes(), CREDIT_BYTES + 1000);
    let mut count = 0;
    while let Some(reservation) = space.spend_credit(Purpose::Put, 30_000) {
        drop(reservation);
        count += 1;
    }
    assert_eq!(count, CREDIT_BYTES / 30_000);
    assert_eq!(space.reserved_bytes(), CREDIT_BYTES + 1000, "until the thread asks again");
    let alive = space.reserve(Purpose::Put, 2000).unwrap();
    assert_eq!(space.reserved_bytes(), CREDIT_BYTES + 2000);
    assert!(space.spend_credit(Purpose::Move, 1).is_none(), "credit is for commits");
    drop(alive);
}

/// On a full disk, the credit of idle threads is collected before a commit is refused. Commits in progress keep theirs.
/// Credit is granted again once there is plenty of space.
#[test]
fn credit_of_idle_threads_is_collected() {
    let backend = disk();
    let space = space(&backend);
    let alive = space.reserve(Purpose::Put, 5000).unwrap();
    for _ in 0..8 {
        std::thread::scope(|scope| scope.spawn(|| drop(space.reserve(Purpose::Put, 1000).unwrap())).join()).unwrap();
    }
    limit(&backend, 0);
    // More than is free while the credit counts, but less than is free without it.
    let free = space.state().free_segments;
    let bytes = (free - 6) * (SEGMENT_BYTES * 3 / 4) * 20 / 21 - (64 << 10);
    assert!(space.try_reserve(Purpose::Put, bytes, Margin::Full).is_err());
    let large = space.reserve(Purpose::Put, bytes).unwrap();
    assert_eq!(space.reserved_bytes(), bytes + 5000, "what is reserved is what is alive");
    assert!(space.spend_credit(Purpose::Put, 1).is_none(), "no credit while the budget is exact");
    let refused = space.reserve(Purpose::Put, SEGMENT_BYTES);
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    drop(space.reserve(Purpose::Remove, 1000).expect("a removal uses what puts leave"));
    assert_eq!(space.reserved_bytes(), bytes + 5000);
    drop((alive, large));
    drop(space.reserve(Purpose::Remove, 1000).unwrap());
    assert_eq!(space.reserved_bytes(), 0, "collected with the next admission");
    backend.set_space_limit(None);
    space.segments.ensure_free(64).unwrap();
    drop(space.reserve(Purpose::Put, 1000).unwrap());
    drop(space.reserve(Purpose::Put, 1000).unwrap());
    assert_eq!(space.reserved_bytes(), CREDIT_BYTES + 1000);
}

/// Threads reserve, spend and release concurrently on a disk that is full now and then. They never reserve more than is
/// covered, and nothing remains reserved at the end.
#[test]
fn sums_hold_under_threads() {
    let backend = disk();
    let space = space(&backend);
    limit(&backend, 24);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let space = &space;
            scope.spawn(move || {
                let mut random = drumlin_testing::Random(seed);
                let mut alive = Vec::new();
                for _ in 0..3000 {
                    let largest = 1 << [12, 16, 21][random.index(3)];
                    let bytes = random.below(largest);
                    let purpose = [Purpose::Put, Purpose::Remove][random.below(2) as usize];
                    let reserved = match space.spend_credit(purpose, bytes) {
                        Some(reservation) => Ok(reservation),
                        None => space.reserve(purpose, bytes),
                    };
                    match reserved {
                        Ok(reservation) => alive.push(reservation),
                        Err(Error::DiskFull { .. }) => alive.clear(),
                        Err(error) => panic!("{error:?}"),
                    }
                    let state = space.state();
                    let held = admit(&state, Purpose::Remove, 0);
                    assert!(!matches!(held, Admission::Short { .. }), "{held:?}: {state:?}");
                    if random.below(4) == 0 && !alive.is_empty() {
                        drop(alive.swap_remove(random.index(alive.len())));
                    }
                }
            });
        }
    });
    space.collect_credit();
    assert_eq!(space.reserved_bytes(), 0);
}

/// Values and moves leave reserved segments alone; an epoch's appender takes them.
#[test]
fn segments_are_taken_for_a_purpose() {
    let backend = disk();
    let space = space(&backend);
    space.segments.ensure_free(9).unwrap();
    limit(&backend, 0);
    let free = |space: &Space| space.state().free_segments;
    assert_eq!(free(&space), 9);
    space.take_segment(Purpose::Value).unwrap();
    space.take_segment(Purpose::Value).unwrap();
    let refused = space.take_segment(Purpose::Value);
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    let reserved = space.reserve(Purpose::Remove, 2 * SEGMENT_BYTES).unwrap();
    while space.take_segment(Purpose::Move).is_ok() {}
    assert_eq!(free(&space), 3, "what is reserved, with its margin");
    for _ in 0..3 {
        space.take_segment(Purpose::Pages).unwrap();
    }
    drop(reserved);
    let refused = space.take_segment(Purpose::Pages);
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
}

/// On a full disk, a removal that would leave too little space for packing is refused, so that packing is tried first.
/// The space that packing could not gain may be used until another segment is taken.
#[test]
fn packing_is_tried_once_for_each_segment() {
    let backend = disk();
    let space = space(&backend);
    space.segments.ensure_free(9).unwrap();
    limit(&backend, 0);
    let remove = || space.try_reserve(Purpose::Remove, 1000, Margin::Full).map(drop);
    // Leave too few free segments for credit to be granted, so that the sums stay exact.
    while space.state().free_segments > 7 {
        space.take_segment(Purpose::Pages).unwrap();
    }
    let refused = space.reserve(Purpose::Put, 9 * SEGMENT_BYTES);
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    while space.state().free_segments > 4 {
        remove().expect("there is space to pack");
        space.take_segment(Purpose::Pages).unwrap();
    }
    remove().expect("there is just enough space to pack");
    space.take_segment(Purpose::Pages).unwrap();
    for _ in 0..2 {
        remove().expect_err("packing may gain space");
        space.note_packed();
        remove().expect("packing gains no more");
        remove().expect("packing gains no more");
        space.take_segment(Purpose::Pages).unwrap();
    }
    // If the disk has space again, the file grows.
    remove().expect_err("a segment was taken");
    space.note_packed();
    backend.set_space_limit(None);
    space.segments.ensure_free(64).unwrap();
    remove().unwrap();
    space.collect_credit();
    while space.state().free_segments > 1 {
        space.take_segment(Purpose::Pages).unwrap();
    }
    remove().expect_err("what was noted on the full disk is forgotten");
}
