//! A node that was run with openraft 0.9 continues with 0.10.

use std::collections::{BTreeMap, BTreeSet};

use drumlin_raft::{KeyValue, KeyValueRequest};
use openraft_0_9 as old;
use openraft_0_10 as new;

use crate::support::{Kind, Opened, Place};
use crate::{suite_0_9, suite_0_10};

/// 0.10 reads the same that 0.9 wrote: the vote, entries of each kind, what is committed, applied and purged.
#[test]
fn what_0_9_wrote_0_10_reads() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut opened = Opened::create(Place::new(Kind::Simulated), KeyValue);
        write(&opened).await;
        opened.reopen(KeyValue);
        read(&opened).await;
    });
}

async fn write(opened: &Opened<KeyValue>) {
    use old::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
    use old::{CommittedLeaderId, Entry, EntryPayload, LogId, Membership, Vote};

    let (mut log, mut state) = drumlin_raft::openraft_0_9::stores::<suite_0_9::TypeConfig, _>(opened.group());
    let nodes = BTreeMap::from([(1u64, old::BasicNode::new("one:1")), (2, old::BasicNode::new("two:2"))]);
    let members = Membership::new(vec![BTreeSet::from([1, 2])], nodes);
    let payloads = [
        EntryPayload::Membership(members),
        EntryPayload::Blank,
        EntryPayload::Normal(KeyValueRequest::put("apples", "3")),
        EntryPayload::Normal(KeyValueRequest::remove("pears")),
    ];
    let id = |index| LogId::new(CommittedLeaderId::new(300, 2), index);
    let entries = || (0..).zip(payloads.clone()).map(|(index, payload)| Entry { log_id: id(index), payload });
    log.save_vote(&Vote::new_committed(300, 2)).await.unwrap();
    log.save_committed(Some(id(2))).await.unwrap();
    log.blocking_append(entries().collect::<Vec<_>>()).await.unwrap();
    state.apply(entries().take(3)).await.unwrap();
    log.purge(id(1)).await.unwrap();
}

async fn read(opened: &Opened<KeyValue>) {
    use new::alias::{LogIdOf, StoredMembershipOf};
    use new::storage::{RaftLogReader, RaftLogStorage, RaftStateMachine};
    use new::{EntryPayload, Membership, Vote, vote::RaftLeaderId};

    type Config = suite_0_10::TypeConfig;
    let (mut log, mut state) = drumlin_raft::openraft_0_10::stores::<Config, _>(opened.group());
    let leader = new::impls::leader_id_adv::LeaderId::new(300, 2);
    let id = |index| LogIdOf::<Config> { leader_id: leader, index };
    // The stored vote is whole, and the store says that its node has to be elected again.
    let stored: Vote<_> = postcard::from_bytes(&opened.group().log().vote().unwrap()).unwrap();
    assert_eq!(stored, Vote { leader_id: leader, committed: true });
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote { leader_id: leader, committed: false }));
    assert_eq!(log.read_committed().await.unwrap(), Some(id(2)));
    let log_state = log.get_log_state().await.unwrap();
    assert_eq!((log_state.last_purged_log_id, log_state.last_log_id), (Some(id(1)), Some(id(3))));
    let entries = log.try_get_log_entries(..).await.unwrap();
    let ids: Vec<_> = entries.iter().map(|entry| entry.log_id).collect();
    assert_eq!(ids, [id(2), id(3)]);
    assert_eq!(entries[0].payload, EntryPayload::Normal(KeyValueRequest::put("apples", "3")));
    assert_eq!(entries[1].payload, EntryPayload::Normal(KeyValueRequest::remove("pears")));
    let nodes = BTreeMap::from([(1u64, new::BasicNode::new("one:1")), (2, new::BasicNode::new("two:2"))]);
    let members = Membership::new(vec![BTreeSet::from([1, 2])], nodes).unwrap();
    let expected = StoredMembershipOf::<Config>::new(Some(id(0)), members);
    assert_eq!(state.applied_state().await.unwrap(), (Some(id(2)), expected));
}
