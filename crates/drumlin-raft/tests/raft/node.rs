//! Folders of nodes, and their groups.

use drumlin_raft::{Error, Identity, KeyValue, KeyValueRequest, Node};

use crate::support::{GROUP, Kind, Opened, Place, identity, step};

/// The folder of another node or cluster is named and refused, and so are one that exists and one that does not.
#[test]
fn other_folders_are_refused() {
    let place = Place::new(Kind::Simulated);
    let open = |identity: &Identity| Node::open(place.path(), identity, &place.options());
    assert!(matches!(open(&identity()), Err(Error::Drumlin(drumlin::Error::NotFound { .. }))));
    place.create().unwrap().close().unwrap();
    for other in [Identity::new("shop", 4), Identity::new("bank", 3)] {
        let error = open(&other).unwrap_err();
        assert!(
            matches!(&error, Error::OtherNode { expected, found, .. } if *expected == other && *found == identity())
        );
        assert!(error.to_string().contains("node 3 of cluster shop"), "{error}");
    }
    assert!(matches!(place.create(), Err(Error::AlreadyCreated { .. })), "it was created twice");
    let other = Node::create(place.path(), &Identity::new("bank", 3), &place.options());
    assert!(matches!(other, Err(Error::OtherNode { .. })), "it was created over another one");
    open(&identity()).unwrap();
}

/// A folder whose creation was interrupted holds no node, and its creation can be finished.
#[test]
fn creating_can_be_interrupted() {
    let place = Place::new(Kind::Simulated);
    place.create().unwrap().close().unwrap();
    let Place::Simulated(disk) = &place else { unreachable!() };
    let changes = disk.change_count();
    let mut unfinished = 0;
    for count in 0..changes {
        let place = Place::new(Kind::Simulated);
        let Place::Simulated(disk) = &place else { unreachable!() };
        disk.turn_off_at(count);
        drop(place.create());
        let place = place.kill();
        match place.open() {
            Ok(node) => drop(node),
            Err(
                Error::NotCreated { .. }
                | Error::Drumlin(drumlin::Error::NotFound { .. } | drumlin::Error::NotADatabase { .. }),
            ) => {
                unfinished += 1;
                place.create().unwrap();
                place.open().unwrap();
            }
            Err(error) => panic!("after change {count}: {error}"),
        }
    }
    assert!(unfinished > 0);
}

/// A group is open once at a time, and is gone when it is removed. Groups have nothing to do with each other.
#[test]
fn groups_are_separate() {
    let place = Place::new(Kind::Files(drumlin::IoBackend::Auto));
    let node = place.create().unwrap();
    let (one, two) = (node.group(1, KeyValue).unwrap(), node.group(2, KeyValue).unwrap());
    assert!(matches!(node.group(1, KeyValue), Err(Error::Drumlin(drumlin::Error::Locked { .. }))));
    one.state().apply(&[step(1, KeyValueRequest::put("a", "1"))]).unwrap();
    smol::block_on(one.log().save_vote(b"one")).unwrap();
    assert!(two.state().read(|_, rows| rows.is_empty()).unwrap());
    assert_eq!((two.log().vote(), node.groups()), (None, vec![1, 2]));
    assert!(matches!(node.remove_group(1), Err(Error::Drumlin(drumlin::Error::Locked { .. }))));
    one.close().unwrap();
    node.remove_group(1).unwrap();
    assert_eq!(node.groups(), [2]);
    assert!(!place.path().join("state/1").exists());
    let one = node.group(1, KeyValue).unwrap();
    assert_eq!((one.log().vote(), one.state().applied_index()), (None, None));
}

/// A state whose folder is lost is not created again: the log may lack what it had.
#[test]
fn a_lost_state_is_noticed() {
    let mut opened = Opened::create(Place::new(Kind::Files(drumlin::IoBackend::Auto)), KeyValue);
    opened.close();
    std::fs::remove_dir_all(opened.place.path().join("state")).unwrap();
    let node = opened.place.open().unwrap();
    assert!(matches!(node.group(GROUP, KeyValue), Err(Error::Drumlin(drumlin::Error::NotFound { .. }))));
}

/// The state of another cluster in the place of this one is named and refused.
#[test]
fn the_state_of_another_cluster_is_refused() {
    let place = Place::new(Kind::Files(drumlin::IoBackend::Auto));
    let mut opened = Opened::create(place, KeyValue);
    opened.close();
    let other = tempfile::tempdir().unwrap();
    let bank = Node::create(other.path(), &Identity::new("bank", 3), &opened.place.options()).unwrap();
    bank.group(GROUP, KeyValue).unwrap().close().unwrap();
    let state = opened.place.path().join("state");
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::rename(other.path().join("state"), &state).unwrap();
    let error = opened.place.open().unwrap().group(GROUP, KeyValue).unwrap_err();
    assert!(matches!(&error, Error::OtherNode { found, .. } if found.cluster == "bank"), "{error}");
}
