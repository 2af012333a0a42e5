//! Snapshots: sent, received, installed, and discarded.

use std::io::Read;
use std::time::{Duration, Instant};

use drumlin_raft::{Error, Group, Identity, KeyValue, KeyValueRequest, Node, Result, Snapshot};

use crate::support::{GROUP, Kind, Opened, Place, check_count, count_to, id, step};

fn bytes_of(snapshot: &Snapshot, offset: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot.reader(offset).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// Receives a snapshot in pieces of this many bytes, and finishes it.
fn receive(group: &Group<KeyValue>, bytes: &[u8], piece_bytes: usize) -> Result<Snapshot> {
    smol::block_on(async {
        let mut received = group.state().receive_snapshot();
        for piece in bytes.chunks(piece_bytes) {
            received.write(piece).await?;
        }
        received.finish().await?;
        Ok(received)
    })
}

fn install(group: &Group<KeyValue>, bytes: &[u8], last: u64) -> Result<()> {
    let received = receive(group, bytes, 100_000)?;
    smol::block_on(group.state().install_snapshot(received, Some(&id(last))))
}

fn sender() -> Opened<KeyValue> {
    let opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
    // Something that takes space in a backup.
    let mut random = drumlin_io::testing::sim::Random(1);
    let noise: Vec<u8> = (0..60_000).map(|_| random.next() as u8).collect();
    opened.group().state().apply(&[step(1, KeyValueRequest::put("noise", noise))]).unwrap();
    count_to(opened.group(), 1, 20);
    opened
}

/// The bytes are the same each time, from any offset, whatever is applied at the same time; and they make the same
/// state.
#[test]
fn a_snapshot_travels_in_any_pieces() {
    let sender = sender();
    let snapshot = sender.group().state().build_snapshot().unwrap();
    let bytes = bytes_of(&snapshot, 0);
    count_to(sender.group(), 21, 40);
    for offset in [0, 1, 4096, bytes.len() / 2, bytes.len() - 1, bytes.len()] {
        assert_eq!(bytes_of(&snapshot, offset as u64), bytes[offset..], "from {offset}");
    }
    for piece_bytes in [1 << 20, 1000] {
        let receiver = Opened::create(Place::new(Kind::Simulated), KeyValue);
        let received = receive(receiver.group(), &bytes, piece_bytes).unwrap();
        smol::block_on(receiver.group().state().install_snapshot(received, Some(&id(41)))).unwrap();
        assert_eq!(check_count(receiver.group()), Some(41));
        assert_eq!(receiver.group().state().durably_applied_index().unwrap(), Some(41));
        // It is also the receiver's newest, and more is applied to the state.
        let newest = receiver.group().state().newest_snapshot().unwrap();
        assert_eq!(newest.applied().unwrap().applied, Some(id(41)));
        count_to(receiver.group(), 21, 25);
        let mut receiver = receiver;
        receiver.reopen(KeyValue);
        assert_eq!(check_count(receiver.group()), Some(51));
    }
}

/// A snapshot that is cut short, damaged, of another cluster, or not the one that was announced is discarded, and the
/// old state stays.
#[test]
fn unusable_snapshots_are_discarded() {
    let bytes = bytes_of(&sender().group().state().build_snapshot().unwrap(), 0);
    let mut receiver = Opened::create(Place::new(Kind::Files(drumlin::IoBackend::Auto)), KeyValue);
    count_to(receiver.group(), 1, 3);
    let group = receiver.group();
    let refused = |bytes: &[u8], last: u64| {
        let error = install(group, bytes, last).unwrap_err();
        assert!(matches!(error, Error::UnusableSnapshot { .. }), "{error}");
        assert_eq!(check_count(group), Some(7));
    };
    for length in [0, 1, 4096, bytes.len() / 2, bytes.len() - 1] {
        refused(&bytes[..length], 41);
    }
    for offset in [0, 100, 5000, bytes.len() / 2, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[offset] ^= 1;
        refused(&damaged, 41);
    }
    refused(&bytes, 40);
    let place = Place::new(Kind::Simulated);
    let bank = Node::create(place.path(), &Identity::new("bank", 1), &place.options()).unwrap();
    let bank = bank.group(GROUP, KeyValue).unwrap();
    count_to(&bank, 1, 20);
    refused(&bytes_of(&bank.state().build_snapshot().unwrap(), 0), 41);
    let place = Place::new(Kind::Simulated);
    let other_group = place.create().unwrap().group(GROUP + 1, KeyValue).unwrap();
    count_to(&other_group, 1, 20);
    refused(&bytes_of(&other_group.state().build_snapshot().unwrap(), 0), 41);
    // Older than the state.
    count_to(group, 4, 30);
    let error = install(group, &bytes, 41).unwrap_err();
    assert!(matches!(error, Error::UnusableSnapshot { .. }), "{error}");
    assert_eq!(check_count(group), Some(61));
    // Nothing of them is left, except for the folder of the state.
    let folders = std::fs::read_dir(receiver.place.path().join(format!("state/{GROUP}"))).unwrap().count();
    assert_eq!(folders, 1);
    receiver.reopen(KeyValue);
    assert_eq!(check_count(receiver.group()), Some(61));
}

/// Whenever a node is killed or loses power while a snapshot is installed, it has the old state or the new, whole.
#[test]
fn installing_is_all_or_nothing() {
    let bytes = bytes_of(&sender().group().state().build_snapshot().unwrap(), 0);
    let receiver = || {
        let receiver = Opened::create(Place::new(Kind::Simulated), KeyValue);
        count_to(receiver.group(), 1, 3);
        smol::block_on(receiver.group().log().save_vote(b"vote")).unwrap();
        receiver.group().state().read(|db, _| db.sync()).unwrap();
        receiver
    };
    let changes_of = |receiver: &Opened<KeyValue>| {
        let Place::Simulated(disk) = &receiver.place else { unreachable!() };
        disk.change_count()
    };
    let whole = receiver();
    let before = changes_of(&whole);
    install(whole.group(), &bytes, 41).unwrap();
    let count = changes_of(&whole) - before;
    let (mut old, mut new) = (0, 0);
    let step_count = 40;
    for at in 0..=step_count {
        let interrupted = receiver();
        let Place::Simulated(disk) = &interrupted.place else { unreachable!() };
        disk.turn_off_at(disk.change_count() + count * at / step_count);
        let installed = install(interrupted.group(), &bytes, 41);
        let place = if at % 2 == 0 { interrupted.place.cut(at) } else { interrupted.place.kill() };
        let reopened = Opened::open(place, KeyValue);
        match check_count(reopened.group()) {
            Some(7) => {
                assert!(installed.is_err(), "what was installed is lost");
                old += 1;
            }
            Some(41) => {
                // The snapshot is durable, as it must be before it takes the place of the state.
                assert!(reopened.group().state().newest_snapshot().is_some());
                new += 1;
            }
            other => panic!("neither the old state nor the new: {other:?}"),
        }
        assert_eq!(reopened.group().log().vote().unwrap(), b"vote");
        // It can be sent again.
        if reopened.group().state().applied_index() == Some(7) {
            install(reopened.group(), &bytes, 41).unwrap();
        }
        assert_eq!(check_count(reopened.group()), Some(41));
    }
    assert!(old > 0 && new > 0, "{old} old, {new} new");
}

/// A snapshot is durable before it has a name: it is there after a power cut.
#[test]
fn a_snapshot_is_durable_before_it_is_named() {
    for seed in 0..5 {
        let opened = sender();
        let built = opened.group().state().build_snapshot().unwrap();
        let named = built.applied().unwrap().clone();
        let opened = Opened::open(opened.place.cut(seed), KeyValue);
        assert_eq!(opened.group().state().newest_snapshot().unwrap().applied(), Some(&named));
        assert_eq!(check_count(opened.group()), Some(41));
    }
}

/// While a snapshot is sent, no newer one is built, up to the limit. Then the old one is dropped once it was sent.
#[test]
fn a_snapshot_that_travels_holds_back_the_next() {
    let place = Place::new(Kind::Simulated);
    let options = place.options().snapshot_lag_max(10);
    let node = Node::create(place.path(), &crate::support::identity(), &options).unwrap();
    let group = node.group(GROUP, KeyValue).unwrap();
    count_to(&group, 1, 20);
    let state = group.state();
    let snapshot = state.build_snapshot().unwrap();
    assert!(state.may_build_snapshot());
    let mut reader = snapshot.reader(0).unwrap();
    assert!(!state.may_build_snapshot());
    count_to(&group, 21, 25);
    assert!(!state.may_build_snapshot(), "it lags by 10 entries");
    count_to(&group, 26, 26);
    assert!(state.may_build_snapshot(), "it lags too far");
    let newer = state.build_snapshot().unwrap();
    assert_eq!(newer.applied().unwrap().applied, Some(id(53)));
    let mut sent = Vec::new();
    reader.read_to_end(&mut sent).unwrap();
    let receiver = Opened::create(Place::new(Kind::Simulated), KeyValue);
    install(receiver.group(), &sent, 41).unwrap();
    drop((reader, snapshot, newer));
    let kept = || state.read(|db, _| db.kept_snapshots().len());
    let began = Instant::now();
    while kept() > 1 {
        assert!(began.elapsed() < Duration::from_secs(60), "the older snapshot is still kept");
        smol::block_on(smol::Timer::after(Duration::from_millis(10)));
    }
}

/// A snapshot of the same entry is not built twice.
#[test]
fn a_snapshot_is_built_once() {
    let opened = sender();
    let names = || opened.group().state().read(|db, _| db.kept_snapshots().into_iter().map(|kept| kept.name).collect());
    opened.group().state().build_snapshot().unwrap();
    let before: Vec<String> = names();
    opened.group().state().build_snapshot().unwrap();
    assert_eq!(before, names());
    opened.group().state().apply(&[step(42, KeyValueRequest::remove("none"))]).unwrap();
    opened.group().state().build_snapshot().unwrap();
    assert_ne!(before, names());
}
