//! Tests of the allowance, of the sums of reserved bytes, and of segments taken for different purposes.

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::format::{DatabaseId, Epoch};
use crate::io::fault::FaultyBackend;
use crate::io::{Backend, OpenOptions};
use crate::memory::Budget;

const SEGMENT_BYTES: u64 = 1 << 20;

/// Creates a data file on the given disk.
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

/// The allowance granted with one commit pays for the next commits, on any thread. Bytes taken from the allowance count
/// as reserved while the commits live, and the policy counts no other bytes of the allowance.
#[test]
fn an_allowance_pays_for_what_follows() {
    let space = space(&disk());
    let left = |space: &Space| space.reservations.allowance.left_bytes.load(Ordering::Relaxed);
    assert!(!space.reservations.take_allowed(1), "nothing was granted");
    drop(space.reserve(Purpose::Put, 1000).unwrap());
    assert_eq!(left(&space), ALLOWANCE_BYTES);
    let alive = space.reserve(Purpose::Put, 30_000).unwrap();
    for count in 1..ALLOWANCE_BYTES / 30_000 {
        std::thread::scope(|scope| drop(scope.spawn(|| space.reserve(Purpose::Remove, 30_000).unwrap()).join()));
        assert_eq!(left(&space), ALLOWANCE_BYTES - (count + 1) * 30_000);
    }
    drop(space.reserve(Purpose::Put, 30_000).unwrap());
    assert_eq!(left(&space), ALLOWANCE_BYTES, "granted again");
    assert_eq!(space.reserved_bytes(), 30_000, "what is alive");
    assert_eq!(left(&space), 0, "revoked by the question");
    drop(space.reserve(Purpose::Move, 1000).unwrap());
    assert_eq!(left(&space), 0, "an allowance is for commits");
    drop(alive);
    assert_eq!(space.reserved_bytes(), 0);
}

/// Bytes that a commit took from an allowance count as reserved until the commit ends, even if the next allowance has
/// been granted by then.
#[test]
fn what_an_allowance_paid_for_is_covered() {
    let space = space(&disk());
    let mut alive = Vec::new();
    for _ in 0..400 {
        alive.push(space.reserve(Purpose::Put, 30_000).unwrap());
    }
    let state = space.state();
    assert_eq!(state.reserved_bytes, 400 * 30_000);
    assert_eq!(admit(&state, Purpose::Put, 0), Admission::Granted, "more is reserved than is covered: {state:?}");
}

/// On a full disk, an allowance never causes a commit to be refused. No more allowances are granted until plenty
/// of space is free.
#[test]
fn an_allowance_causes_no_refusal() {
    let backend = disk();
    let space = space(&backend);
    let left = |space: &Space| space.reservations.allowance.left_bytes.load(Ordering::Relaxed);
    let alive = space.reserve(Purpose::Put, 5000).unwrap();
    assert_eq!(left(&space), ALLOWANCE_BYTES);
    limit(&backend, 0);
    // This many bytes exceed the free space if an allowance is included, but fit without one.
    let free = space.state().free_segments;
    let bytes = (free - 6) * (SEGMENT_BYTES * 3 / 4) * 20 / 21 - (64 << 10);
    let large = space.reserve(Purpose::Put, bytes).unwrap();
    assert_eq!(space.reserved_bytes(), bytes + 5000, "what is reserved is what is alive");
    drop(space.reserve(Purpose::Put, 1000).expect("a commit fits without an allowance"));
    assert_eq!(left(&space), 0, "no allowance while the disk is full");
    let refused = space.reserve(Purpose::Put, SEGMENT_BYTES);
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    drop(space.reserve(Purpose::Remove, 1000).expect("a removal uses what puts leave"));
    drop((alive, large));
    drop(space.reserve(Purpose::Remove, 1000).unwrap());
    assert_eq!((space.reserved_bytes(), left(&space)), (0, 0));
    backend.set_space_limit(None);
    space.segments.ensure_free(64).unwrap();
    drop(space.reserve(Purpose::Put, 1000).unwrap());
    assert_eq!(left(&space), ALLOWANCE_BYTES);
}

/// Threads reserve and release concurrently on a disk that is sometimes full. They never reserve more bytes than the
/// free space covers, and no bytes remain reserved at the end.
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
                for round in 0..3000 {
                    let largest = 1 << [12, 16, 21][random.index(3)];
                    let bytes = random.below(largest);
                    let purpose = [Purpose::Put, Purpose::Remove][random.below(2) as usize];
                    match space.reserve(purpose, bytes) {
                        Ok(reservation) => alive.push(reservation),
                        Err(Error::DiskFull { .. }) => alive.clear(),
                        Err(error) => panic!("{error:?}"),
                    }
                    // Asking for the state revokes the allowance, so ask rarely enough for the allowance to be used.
                    if round % 16 == 0 {
                        let state = space.state();
                        let held = admit(&state, Purpose::Remove, 0);
                        assert!(!matches!(held, Admission::Short { .. }), "{held:?}: {state:?}");
                    }
                    if random.below(4) == 0 && !alive.is_empty() {
                        drop(alive.swap_remove(random.index(alive.len())));
                    }
                }
            });
        }
    });
    assert_eq!(space.reserved_bytes(), 0);
}

/// Values and moves do not take reserved segments; an epoch's appender does.
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
    assert_eq!(free(&space), 4, "what is reserved, with its margin, and a segment for another checkpoint");
    for _ in 0..4 {
        space.take_segment(Purpose::Pages).unwrap();
    }
    drop(reserved);
    let refused = space.take_segment(Purpose::Pages);
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
}

/// On a full disk, a removal that would leave too little space for packing is refused, so that packing is tried first.
/// If packing gains no space, removals may use the space until the next segment is taken.
#[test]
fn packing_is_tried_once_for_each_segment() {
    let backend = disk();
    let space = space(&backend);
    space.segments.ensure_free(9).unwrap();
    limit(&backend, 0);
    let remove = || space.try_reserve(Purpose::Remove, 1000, Margin::Full).map(drop);
    // Leave too little space to count as plenty, so that the disk continues to count as full.
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
        space.set_packed();
        remove().expect("packing gains no more");
        remove().expect("packing gains no more");
        space.take_segment(Purpose::Pages).unwrap();
    }
    // Once the disk has space again, the file grows.
    remove().expect_err("a segment was taken");
    space.set_packed();
    backend.set_space_limit(None);
    space.segments.ensure_free(64).unwrap();
    remove().unwrap();
    while space.state().free_segments > 1 {
        space.take_segment(Purpose::Pages).unwrap();
    }
    remove().expect_err("what was noted on the full disk is forgotten");
}
