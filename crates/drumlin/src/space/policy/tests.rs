//! Tests of the policy: its answers, its rules, and the table in README.md.

use std::path::Path;

use drumlin_testing::documents;

use super::*;

const SEGMENT_BYTES: u64 = 1 << 20;

/// The policy as a table. The columns are: the free segments, then the bytes left in the open segment and the dirty,
/// reserved and table bytes; the purpose; the requested bytes; and the answer.
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
        // An empty file: one segment for the checkpoint, and six spare segments.
        ((7, 0, 0, 0, 0), Purpose::Put, NONE, granted),
        ((6, 0, 0, 0, 0), Purpose::Put, NONE, alike(7)),
        ((4, 0, 0, 0, 0), Purpose::Remove, NONE, granted),
        ((0, 0, 0, 0, 0), Purpose::Remove, NONE, scarce(4)),
        // Three quarters of a segment can be used, and page-table entries take a twentieth of the pages' bytes.
        ((8, 0, 0, 0, 0), Purpose::Put, 700 << 10, granted),
        ((7, 0, 0, 0, 0), Purpose::Put, 700 << 10, granted),
        ((7, 0, 0, 0, 0), Purpose::Put, 740 << 10, alike(8)),
        // Dirty, reserved and requested bytes count the same.
        ((10, 0, 2 * MB, 0, 0), Purpose::Put, NONE, granted),
        ((10, 0, MB, MB, 0), Purpose::Put, NONE, granted),
        ((10, 0, MB, 0, 0), Purpose::Put, MB, granted),
        ((8, 0, 2 * MB, 0, 0), Purpose::Put, NONE, alike(9)),
        ((8, 0, MB, MB, 0), Purpose::Put, NONE, alike(9)),
        // Tables need space for their own bytes. Four times their bytes beyond one segment must be spare.
        ((8, 0, 0, 0, MB), Purpose::Put, NONE, granted),
        ((10, 0, 0, 0, MB + 1), Purpose::Put, NONE, granted),
        ((9, 0, 0, 0, MB + 1), Purpose::Put, NONE, alike(10)),
        ((13, 0, 0, 0, 2 * MB), Purpose::Put, NONE, granted),
        ((12, 0, 0, 0, 2 * MB), Purpose::Put, NONE, alike(13)),
        // A removal has to leave only half as many segments free. At the least margin it need not leave any, and fills
        // the open segment.
        ((6, 0, 2 * MB, 0, 0), Purpose::Remove, NONE, granted),
        ((5, MB, 2 * MB, 0, 0), Purpose::Remove, NONE, scarce(6)),
        ((1, MB, 2 * MB, 0, 0), Purpose::Remove, NONE, short(6, 2)),
        ((8, 0, 0, 0, 2 * MB), Purpose::Remove, NONE, granted),
        ((7, 0, 0, 0, 2 * MB), Purpose::Remove, NONE, scarce(8)),
        ((0, MB, 0, 0, MB / 2), Purpose::Remove, NONE, scarce(4)),
        // Recovery may use all free space.
        ((0, 0, 9 * MB, 0, 0), Purpose::Replay, MB, scarce(21)),
        // An epoch's appender takes the space that commits have reserved.
        ((0, 0, 9 * MB, 9 * MB, MB), Purpose::Pages, NONE, granted),
        // A segment for values or moves must leave as much space free as the policy requires for its purpose.
        ((8, 0, 0, 0, 0), Purpose::Value, NONE, granted),
        ((7, 0, 0, 0, 0), Purpose::Value, NONE, alike(8)),
        ((3, 0, 0, 0, 0), Purpose::Move, NONE, granted),
        ((2, 0, 0, 0, 0), Purpose::Move, NONE, alike(3)),
        ((3, 0, MB, 0, 0), Purpose::Move, NONE, alike(4)),
        // Packing fills three quarters of all free space, less what the next checkpoint writes.
        ((4, 0, 0, 0, 0), Purpose::Pack, 3 * MB, granted),
        ((4, 0, 0, 0, 0), Purpose::Pack, 3 * MB + 1, alike(5)),
        ((3, MB, 0, 0, 0), Purpose::Pack, 3 * MB, granted),
        ((4, 0, 0, 0, MB), Purpose::Pack, 2 * MB, granted),
        ((4, 0, 0, 0, MB), Purpose::Pack, 2 * MB + 1, alike(5)),
        ((0, 0, 9 * MB, 0, MB), Purpose::Pack, NONE, granted),
        // A checkpoint that frees nothing leaves the next one as many segments as the tables fill.
        ((3, 0, 2 * MB, 0, 0), Purpose::Checkpoint(Reclaims::Segments), NONE, granted),
        ((3, 0, 2 * MB, 0, 0), Purpose::Checkpoint(Reclaims::Nothing), NONE, short(4, 4)),
        ((3, MB, 2 * MB, 0, 0), Purpose::Checkpoint(Reclaims::Nothing), NONE, scarce(4)),
        ((6, 0, 0, 0, 2 * MB), Purpose::Checkpoint(Reclaims::Nothing), NONE, granted),
        ((2, 0, 0, 0, 2 * MB), Purpose::Checkpoint(Reclaims::Segments), NONE, short(3, 3)),
        // A page may be written back early, into the open segment or into a segment beyond those that the checkpoint
        // requires.
        ((0, 8192, 9 * MB, 0, 0), Purpose::WriteBack(Reclaims::Nothing), 4096, granted),
        ((1, 8191, 9 * MB, 0, 0), Purpose::WriteBack(Reclaims::Nothing), 4096, alike(2)),
        ((1, 8191, 9 * MB, 0, 0), Purpose::WriteBack(Reclaims::Segments), 4096, granted),
        ((1, 8191, 9 * MB, 0, MB), Purpose::WriteBack(Reclaims::Segments), 4096, alike(2)),
    ];
    for &((free_segments, open_segment_bytes, dirty_bytes, reserved_bytes, table_bytes), purpose, bytes, expected) in
        table
    {
        let segment_bytes = SEGMENT_BYTES;
        let state =
            SpaceState { segment_bytes, free_segments, open_segment_bytes, dirty_bytes, reserved_bytes, table_bytes };
        assert_eq!(admit(&state, purpose, bytes), expected, "{purpose:?} of {bytes} bytes in {state:?}");
    }
}

/// The policy is monotone: more free space never turns a grant into a refusal, and more claims never turn a refusal
/// into a grant. Reserved bytes count the same as requested ones.
#[test]
fn more_space_never_admits_less() {
    let mut random = drumlin_testing::Random(3);
    let mut below = |end: u64| random.below(end);
    for _ in 0..20_000 {
        let state = SpaceState {
            segment_bytes: SEGMENT_BYTES,
            free_segments: below(40),
            open_segment_bytes: below(SEGMENT_BYTES),
            dirty_bytes: below(8 << 20),
            reserved_bytes: below(8 << 20),
            table_bytes: below(4 << 20),
        };
        let bytes = below(4 << 20);
        let frees = [Reclaims::Segments, Reclaims::Nothing][below(2) as usize];
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
        if purpose.is_of_commits() {
            let reserved = SpaceState { reserved_bytes: state.reserved_bytes + bytes, ..state };
            assert_eq!(admit(&reserved, purpose, 0), answer, "{purpose:?} {bytes} {state:?}");
        }
    }
}

/// A segment is granted for moves only if enough space is left for a checkpoint that frees nothing. If moves could take
/// all free segments but the last, no checkpoint could be made.
#[test]
fn moves_leave_space_for_a_checkpoint() {
    let mut random = drumlin_testing::Random(5);
    let mut below = |end: u64| random.below(end);
    for _ in 0..20_000 {
        let state = SpaceState {
            segment_bytes: SEGMENT_BYTES,
            free_segments: below(20),
            open_segment_bytes: below(SEGMENT_BYTES),
            dirty_bytes: below(8 << 20),
            reserved_bytes: 0,
            table_bytes: below(4 << 20),
        };
        if admit(&state, Purpose::Move, 0) == Admission::Granted {
            let left = SpaceState { free_segments: state.free_segments - 1, ..state };
            assert_eq!(admit(&left, Purpose::Checkpoint(Reclaims::Nothing), 0), Admission::Granted, "{state:?}");
        }
    }
}

/// If a disk has plenty of space for a commit, it also admits the same number of bytes in advance. Otherwise an
/// allowance would cause a commit to be refused over and over.
#[test]
fn plenty_of_space_admits_twice_the_bytes() {
    let mut random = drumlin_testing::Random(4);
    let mut below = |end: u64| random.below(end);
    let mut plenty_count = 0;
    for _ in 0..20_000 {
        let state = SpaceState {
            segment_bytes: SEGMENT_BYTES,
            free_segments: below(60),
            open_segment_bytes: below(SEGMENT_BYTES),
            dirty_bytes: below(8 << 20),
            reserved_bytes: below(8 << 20),
            table_bytes: below(4 << 20),
        };
        let bytes = 1 + below(2 << 20);
        if state.has_plenty(bytes) {
            plenty_count += 1;
            assert_eq!(admit(&state, Purpose::Put, 2 * bytes), Admission::Granted, "{bytes} {state:?}");
        }
    }
    assert!(plenty_count > 1000, "only {plenty_count} states had plenty");
}

/// The table in README.md matches the policy. `DRUMLIN_TEST_BLESS` rewrites the table.
#[test]
fn the_readme_shows_the_policy() {
    const MB: u64 = 1 << 20;
    let page_bytes = 4096;
    let small = SpaceState { segment_bytes: SEGMENT_BYTES, ..SpaceState::default() };
    let large = SpaceState { dirty_bytes: 20 * MB, reserved_bytes: 4 * MB, table_bytes: 3 * MB, ..small };
    let half_open = SpaceState { open_segment_bytes: MB / 2, ..large };
    let row = |name: &str, purpose: Purpose, bytes: u64, state: &SpaceState| {
        let (full, least) = purpose.demands(state, bytes);
        let least_text = if full == least { "the same".to_owned() } else { least.to_string() };
        let example = format!("{}, {}", full.segments(state, bytes), least.segments(state, bytes));
        vec![name.to_owned(), full.to_string(), least_text, example]
    };
    let rows = vec![
        row("`Put`: a commit with new rows", Purpose::Put, 0, &large),
        row("`Remove`: a commit that only removes rows", Purpose::Remove, 0, &large),
        row("`Value`: a segment for large values", Purpose::Value, 0, &large),
        row("`Move`: a segment for extents that are moved", Purpose::Move, 0, &large),
        row("`Pack`: extents moved into the checkpoint's segments", Purpose::Pack, MB, &large),
        row("`Pack` of no bytes", Purpose::Pack, 0, &large),
        row("`Checkpoint` that frees a segment", Purpose::Checkpoint(Reclaims::Segments), 0, &large),
        row("`Checkpoint` that frees nothing", Purpose::Checkpoint(Reclaims::Nothing), 0, &large),
        row("`WriteBack` into the open segment", Purpose::WriteBack(Reclaims::Nothing), page_bytes, &half_open),
        row("`WriteBack` before a checkpoint that frees", Purpose::WriteBack(Reclaims::Segments), page_bytes, &large),
        row("`WriteBack` before one that does not", Purpose::WriteBack(Reclaims::Nothing), page_bytes, &large),
        row("`Pages`: a segment of an epoch's appender", Purpose::Pages, 0, &large),
        row("`Replay`: a commit that recovery applies again", Purpose::Replay, 0, &large),
    ];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/space/README.md");
    if std::env::var_os("DRUMLIN_TEST_BLESS").is_some() {
        documents::write_rows(&path, "policy", rows.clone()).unwrap();
    }
    let tables = documents::tables(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let table = tables.iter().find(|table| table.name == "policy").expect("README.md has the table");
    assert_eq!(table.rows, rows, "run this test with DRUMLIN_TEST_BLESS=1");
}
