use std::time::Duration;

use drumlin::LockHolder;
use drumlin_io::testing::sim::Medium;

use super::*;
use crate::model::Operation;
use crate::plan::Fault;

/// Runs a client on a new database in a world without faults.
fn with_client(body: impl FnOnce(&mut Client, Keyspace, SpaceNumber) + Send + 'static) -> Result<(), String> {
    let plan = Plan { fault: Fault::None, relaxed_percent: 0, ..Plan::of(1) };
    let outcome = sim::run(plan.schedule, move || {
        let disk = Disk::new(Medium::default(), 1);
        let db = plan.config(&disk).open("/db").expect("a new database");
        let model = Model::default();
        let (_, made) = recorded(&model, |_| Operation::Create(HOT.to_owned()), || db.keyspace(HOT));
        let keyspace = made.expect("a new keyspace");
        model.answer(model.last(), true);
        let space = model.space(HOT).expect("just made");
        let session = Arc::new(Session {
            db,
            disk,
            model,
            plan,
            backups: Backups::default(),
            counts: Counts::default(),
            was_damaged: false,
            has_put: AtomicBool::default(),
            queue_is_busy: AtomicBool::default(),
        });
        let mut client = Client {
            session,
            random: Random(1),
            api: Api::Blocking,
            timer: Timer::default(),
            snapshot: None,
            kept: None,
        };
        body(&mut client, keyspace, space);
    });
    outcome.result
}

/// Returns the result of a blocking client's future, which is ready at its first poll.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waited as a task does"),
    }
}

/// The client detects a commit of new rows that is acknowledged without having taken a timestamp.
#[test]
fn a_commit_that_is_acknowledged_and_never_made_is_noticed() {
    let commit = |content: Option<Content>| {
        with_client(move |client, _, space| {
            let operation = Operation::Rows(vec![(space, b"key".to_vec(), content)]);
            let _ = now(client.commit(operation, true, Call::Change, Some(space), async { Ok(()) }));
        })
    };
    assert_eq!(commit(None), Ok(()), "nothing was there to remove");
    let found = commit(Some(Content { length: 3, seed: 1 })).expect_err("a lost commit");
    assert!(found.contains("acknowledged and never made"), "{found}");
}

fn in_use(what: &'static str) -> Error {
    Error::MemoryInUse { what, limit_bytes: 1 }
}

/// The client detects an error that the call can't return, and an error that no fault explains.
#[test]
fn an_error_that_can_not_be_is_noticed() {
    type Make = fn() -> Error;
    let conflict: Make = || Error::Conflict { reason: "" };
    let failed: Make = || Error::Failed { reason: "".into() };
    let too_old: Make = || Error::SnapshotTooOld { timestamp: drumlin::Timestamp(1), reason: "a reason".into() };
    let accepts = |error: Make, call| {
        with_client(move |client, _, _| {
            let _ = client.accept(&error(), call, None);
        })
        .is_ok()
    };
    assert!(accepts(conflict, Call::Change) && accepts(conflict, Call::Transaction));
    assert!(!accepts(conflict, Call::Plain) && !accepts(conflict, Call::Snapshot));
    let timeout: Make = || Error::LockTimeout {
        keyspace: String::new(),
        key: Vec::new(),
        waited: Duration::ZERO,
        holder: LockHolder::Other,
    };
    assert!(accepts(timeout, Call::Change) && accepts(timeout, Call::Transaction) && !accepts(timeout, Call::Plain));
    assert!(accepts(too_old, Call::Snapshot) && accepts(too_old, Call::Transaction));
    assert!(!accepts(too_old, Call::Change) && !accepts(too_old, Call::Plain));
    let copies: Make = || in_use("rows and values copied by open scans and readers");
    assert!(accepts(copies, Call::Copy) && accepts(copies, Call::Transaction));
    assert!(!accepts(copies, Call::Snapshot) && !accepts(copies, Call::Plain) && !accepts(copies, Call::Change));
    let transactions: Make = || in_use("writes, locks and reads of open transactions");
    assert!(accepts(transactions, Call::Transaction) && accepts(transactions, Call::Change));
    assert!(!accepts(transactions, Call::Plain) && !accepts(transactions, Call::Copy));
    let sources: Make = || in_use("values being written from readers or shown to reducers");
    assert!(accepts(sources, Call::Change) && !accepts(sources, Call::Removal) && !accepts(sources, Call::Plain));
    let versions: Make = || in_use("old versions of rows that open snapshots need");
    assert!(accepts(versions, Call::Removal) && !accepts(versions, Call::Snapshot) && !accepts(versions, Call::Plain));
    assert!(!accepts(|| in_use("pages held by running operations"), Call::Plain));
    assert!(!accepts(failed, Call::Change) && !accepts(failed, Call::Transaction));
}

/// The client detects a row that stays locked, and a keyspace that has disappeared.
#[test]
fn a_row_that_stays_locked_is_noticed() {
    let outcome = with_client(|client, keyspace, _| {
        let db = client.session.db.clone();
        lock_hot_rows(&db, &Model::default()).expect("nobody has them");
        let mut tx = db.begin().expect("a transaction");
        tx.get_for_update(&keyspace, hot(7)).expect("a lock");
        assert!(matches!(lock_hot_rows(&db, &Model::default()), Err(Error::LockTimeout { .. })));
        drop(tx);
        lock_hot_rows(&db, &Model::default()).expect("nobody has them any more");
        assert!(client.open(HOT).is_some());
        db.drop_keyspace(HOT).expect("a drop that the model is not told of");
        client.open(HOT);
    });
    let found = outcome.expect_err("the keyspace is gone");
    assert!(found.contains("is gone"), "{found}");
}

/// If a task's long commit is in progress when its future is dropped, another thread completes the commit, and the
/// client learns its timestamp.
#[test]
fn a_long_commit_that_is_dropped_is_reported() {
    const ROWS: u64 = 100;
    let outcome = with_client(|client, keyspace, _| {
        let timestamp = Arc::new(AtomicU64::new(0));
        let mut tx = client.session.db.begin().expect("a transaction");
        (0..ROWS).for_each(|number| tx.insert(&keyspace, numbered(number), "value").expect("there is memory"));
        let at = Arc::clone(&timestamp);
        drumlin::simulation::on_timestamp(Some(Box::new(move |timestamp| at.store(timestamp.0, Ordering::Relaxed))));
        let mut commit = Box::pin(tx.commit_async());
        assert!(commit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it was made at once");
        drumlin::simulation::on_timestamp(None);
        drop(commit);
        sim::sleep(Duration::from_secs(1));
        assert!(timestamp.load(Ordering::Relaxed) > 0, "it has no timestamp");
        assert_eq!(keyspace.count(..).expect("it can be read"), ROWS);
    });
    assert_eq!(outcome, Ok(()));
}
