//! Documents that expire.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use drumlin_collections::{Collection, Collections, Index, Parts, Postcard, View};
use serde::{Deserialize, Serialize};

use crate::documents::database;

#[derive(Serialize, Deserialize, Debug)]
struct Session {
    id: u32,
    user: String,
    ends: Option<u64>,
}

fn second(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(second)
}

impl Session {
    const BY_USER: Index<Session, String> = Index::new("by user", |session: &Session| session.user.clone()).unique();
    const COUNT: View<Session, (), u64> = View::new("count", |_, emit| emit((), 1)).reducing(|a, b| a + b);
}

impl Collection for Session {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "sessions";

    fn key(&self) -> u32 {
        self.id
    }

    fn parts() -> Parts<Session> {
        Parts::new().index(Session::BY_USER).view(Session::COUNT).expires(|session| session.ends.map(second))
    }
}

fn session(id: u32, ends: Option<u64>) -> Session {
    Session { id, user: format!("user {}", id % 10), ends }
}

/// After its expiry time, no call sees a document. `remove_expired` removes expired documents, and so does a background
/// thread once the collection is opened.
#[test]
fn expired_documents_are_not_seen_and_are_removed() {
    let db = database();
    let now = Arc::new(AtomicU64::new(100));
    let clock = || {
        let now = Arc::clone(&now);
        move || second(now.load(Ordering::Relaxed))
    };
    let collections = Collections::with_clock(&db, clock());
    let sessions = collections.open::<Session>().unwrap();
    for (id, ends) in [(1, Some(200)), (2, Some(300)), (3, None)] {
        sessions.insert(&session(id, ends)).unwrap();
    }
    assert_eq!(sessions.view(&Session::COUNT).reduce(..).unwrap(), Some(3));
    now.store(200, Ordering::Relaxed);
    assert!(sessions.get(1).unwrap().is_none());
    assert!(sessions.update(1, |_| ()).unwrap().is_none());
    assert_eq!(sessions.iter().count(), 2);
    assert!(sessions.index(&Session::BY_USER).first("user 1").unwrap().is_none());
    assert_eq!(sessions.view(&Session::COUNT).reduce(..).unwrap(), Some(2));
    // The key of the expired document can be reused, and so can its key in the unique index.
    sessions.insert(&session(1, Some(250))).unwrap();
    now.store(250, Ordering::Relaxed);
    sessions.insert(&session(11, Some(400))).unwrap();
    assert_eq!(sessions.index(&Session::BY_USER).first("user 1").unwrap().unwrap().id, 11);
    // A document whose expiry time was extended is kept.
    sessions.update(2, |session| session.ends = Some(500)).unwrap();
    now.store(350, Ordering::Relaxed);
    // The background thread may have removed some of the expired documents already.
    let stored = || db.keyspace("sessions").unwrap().count(..).unwrap();
    sessions.remove_expired().unwrap();
    assert_eq!(stored(), 3);
    now.store(450, Ordering::Relaxed);
    assert!(sessions.remove_expired().unwrap() <= 1);
    assert_eq!(stored(), 2);
    assert_eq!(sessions.view(&Session::COUNT).range(..).count(), 2);
    drop((sessions, collections));

    now.store(1000, Ordering::Relaxed);
    let _opened = Collections::with_clock(&db, clock()).open::<Session>().unwrap();
    while stored() > 1 {
        std::thread::yield_now();
    }
}

/// Expired documents are removed in more than one transaction.
#[test]
fn many_documents_expire() {
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    let db = database();
    let collections = Collections::with_clock(&db, move || second(clock.load(Ordering::Relaxed)));
    let sessions = collections.open::<Session>().unwrap();
    for id in 1..=500 {
        let session = Session { user: format!("user {id}"), ..session(id, Some(u64::from(id))) };
        collections.transact(|tx| tx.put(&sessions, &session)).unwrap();
    }
    now.store(300, Ordering::Relaxed);
    assert!(sessions.remove_expired().unwrap() <= 300);
    assert_eq!(db.keyspace("sessions").unwrap().count(..).unwrap(), 200);
    assert_eq!(sessions.index(&Session::BY_USER).count(..).unwrap(), 200);
}
