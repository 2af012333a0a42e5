//! The rules of indexes, values and batches, and their errors.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use drumlin_testing::futures::{async_methods, within_polls};

use super::*;

/// Entries follow on without holes; what does not is refused with both indexes, and changes nothing.
#[test]
fn indexes_follow_on() {
    let disk = Disk::new(false);
    let logs = disk.open().unwrap();
    let log = logs.log(7);
    assert!(matches!(log.get(1), Err(Error::NoSuchLog { log: 7 })));
    assert!(matches!(log.purge_to(1), Err(Error::NoSuchLog { log: 7 })));
    log.append(101, &["a", "b", "c"]).unwrap().wait().unwrap();
    for given in [0, 103, 105] {
        let error = log.append(given, &["x"]).unwrap_err();
        assert!(matches!(error, Error::LogIndex { log: 7, given: g, expected: 104 } if g == given), "{error:?}");
    }
    assert!(matches!(log.get(104), Err(Error::LogEntryMissing { log: 7, index: 104, last: Some(103) })));
    assert!(matches!(log.get(100), Err(Error::LogPurged { log: 7, index: 100, first: 101 })));
    log.purge_to(101).unwrap().wait().unwrap();
    assert!(matches!(log.get(101), Err(Error::LogPurged { log: 7, index: 101, first: 102 })));
    assert!(matches!(log.truncate_after(100), Err(Error::LogPurged { .. })));
    log.truncate_after(102).unwrap().wait().unwrap();
    assert_eq!((log.first(), log.last(), log.purged(), log.durable()), (Some(102), Some(102), Some(101), Some(102)));
    // After a snapshot, a log continues at the index where the snapshot ends.
    log.purge_to(500).unwrap().wait().unwrap();
    assert_eq!((log.first(), log.last(), log.durable()), (None, None, None));
    assert!(matches!(log.append(500, &["x"]), Err(Error::LogIndex { given: 500, expected: 501, .. })));
    log.append(600, &["x"]).unwrap().wait().unwrap();
    assert_eq!(log.range(..).unwrap().map(|entry| entry.unwrap().index()).collect::<Vec<_>>(), [600]);
    assert!(matches!(log.range(3..), Err(Error::LogPurged { first: 600, .. })));
    logs.remove(7).unwrap().wait().unwrap();
    assert!(matches!(log.get(600), Err(Error::NoSuchLog { .. })));
    log.append(0, &["anew"]).unwrap().wait().unwrap();
    assert_eq!(log.get(0).unwrap(), "anew");
}

/// A batch is refused as a whole if one of its changes is not allowed, and its changes see those before them.
#[test]
fn a_batch_is_made_or_not() {
    let disk = Disk::new(false);
    let logs = disk.open().unwrap();
    let mut batch = logs.batch();
    batch.append(1, 5, &["a", "b"]);
    batch.set(2, "vote", "x");
    batch.append(1, 9, &["hole"]);
    assert!(matches!(batch.commit(), Err(Error::LogIndex { log: 1, given: 9, expected: 7 })));
    assert_eq!(logs.numbers(), [0u64; 0]);
    let mut batch = logs.batch();
    batch.append(1, 5, &["a", "b"]);
    batch.truncate_after(1, 5);
    batch.append(1, 6, &["c"]);
    batch.set(2, "vote", "x");
    batch.commit().unwrap().wait().unwrap();
    assert_eq!(
        (logs.log(1).get(6).unwrap(), logs.log(2).value("vote")),
        (Entry::new(6, b"c"[..].into()), Some(b"x".to_vec()))
    );
    assert!(logs.batch().commit().unwrap().wait().is_ok(), "an empty batch is one");
}

/// Too large entries, values and batches are refused, and name their limits; entries up to 64 MiB are stored, though a
/// record is much smaller.
#[test]
fn sizes_have_limits() {
    let disk = Disk::new(false);
    let options = disk.options().segment_bytes(4 << 20);
    let logs = Logs::open(DIR, &options).unwrap();
    let log = logs.log(1);
    let large = Random(5).bytes(64 << 20);
    log.append(1, &[&large[..], b"small"]).unwrap().wait().unwrap();
    assert!(log.get(1).unwrap()[..] == large[..]);
    assert_eq!(log.get(2).unwrap(), "small");
    let error = log.append(3, &[[&large[..], b"x"].concat()]).unwrap_err();
    let limit = 64 << 20;
    assert!(matches!(error, Error::LogEntryTooLarge { limit_bytes, .. } if limit_bytes == limit), "{error:?}");
    let error = log.set("vote", vec![0; 65537]).unwrap_err();
    assert!(matches!(error, Error::LogEntryTooLarge { limit_bytes: 65536, .. }), "{error:?}");
    assert!(matches!(log.set(&"v".repeat(256), "x"), Err(Error::LogEntryTooLarge { limit_bytes: 255, .. })));
    let mut batch = logs.batch();
    batch.append(2, 1, &vec![[0; 1000]; 200]);
    assert!(matches!(batch.commit(), Err(Error::LogEntryTooLarge { log: 2, what: "a batch", .. })));
    // An append of as many is several records.
    logs.log(2).append(1, &vec![[0; 1000]; 200]).unwrap().wait().unwrap();
    let disk = disk.kill();
    drop((log, logs));
    let logs = Logs::open(DIR, &disk.options().segment_bytes(4 << 20)).unwrap();
    assert!(logs.log(1).get(1).unwrap()[..] == large[..]);
    assert_eq!(logs.log(2).last(), Some(200));
}

/// Values, entries and their durability are seen by tasks like by threads, and futures can be sent to other threads.
#[test]
fn tasks_do_the_same() {
    fn sent<T: Send>(future: T) -> T {
        future
    }
    for has_threads in [false, true] {
        let disk = Disk::new(has_threads);
        let options = disk.options();
        smol::block_on(async {
            let logs = sent(Logs::open_async(DIR, &options)).await.unwrap();
            let log = logs.log(3);
            let large = Random(1).bytes(300_000);
            sent(log.append_async(10, &[b"a".to_vec(), large.clone()])).await.unwrap().await.unwrap();
            sent(log.set_async("vote", "x")).await.unwrap().await.unwrap();
            assert_eq!((log.durable(), log.value("vote")), (Some(11), Some(b"x".to_vec())));
            assert!(sent(log.get_async(11)).await.unwrap()[..] == large[..]);
            let mut range = log.range(..).unwrap();
            assert_eq!(sent(range.next_async()).await.unwrap().unwrap(), "a");
            assert_eq!(range.next_async().await.unwrap().unwrap().len(), 300_000);
            assert!(range.next_async().await.is_none());
            sent(log.truncate_after_async(10)).await.unwrap().await.unwrap();
            sent(log.purge_to_async(9)).await.unwrap().await.unwrap();
            sent(log.unset_async("vote")).await.unwrap().await.unwrap();
            let mut batch = logs.batch();
            batch.append(4, 0, &["b"]);
            sent(batch.commit_async()).await.unwrap().await.unwrap();
            sent(logs.remove_async(3)).await.unwrap().await.unwrap();
            assert_eq!(logs.numbers(), [4]);
            sent(logs.close_async()).await.unwrap();
        });
        assert_eq!(Model::read(&disk.open().unwrap()).unwrap().logs.len(), 1);
    }
}

/// A folder is open once at a time, and closed by the drop of its last handle.
#[test]
fn a_folder_is_open_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("logs");
    assert!(matches!(Logs::open(&path, &LogsOptions::new().create(false)), Err(Error::NotFound { .. })));
    let logs = Logs::open(&path, &LogsOptions::new()).unwrap();
    let again = Logs::open(&path, &LogsOptions::new());
    assert!(matches!(again, Err(Error::Locked { by_this_process: true, .. })), "{again:?}");
    let log = logs.log(1);
    drop(log.append(0, &["a"]).unwrap());
    drop(logs);
    assert!(matches!(Logs::open(&path, &LogsOptions::new()), Err(Error::Locked { .. })), "a log is a handle too");
    drop(log);
    let logs = Logs::open(&path, &LogsOptions::new()).unwrap();
    let log = logs.log(1);
    assert_eq!(log.get(0).unwrap(), "a");
    logs.close().unwrap();
    assert!(matches!(log.get(0), Err(Error::Closed)));
    assert!(matches!(log.append(1, &["b"]), Err(Error::Closed)));
    std::fs::write(folder.path().join("letter.txt"), b"dear").unwrap();
    let foreign = Logs::open(folder.path(), &LogsOptions::new());
    assert!(matches!(&foreign, Err(Error::NotADatabase { why, .. }) if why.contains("l")), "{foreign:?}");
}

/// A callback may drop the last handle, on whichever thread it is called. It can't close the logs.
#[test]
fn a_callback_drops_the_last_handle() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..20u64 {
        let logs = Logs::open(folder.path(), &LogsOptions::new()).unwrap();
        let log = logs.log(1);
        let receipt = log.append(round, &["a"]).unwrap();
        let (answer, answered) = std::sync::mpsc::channel();
        receipt.then(move |durable| {
            let closed = if round % 2 == 0 { Some(logs.close()) } else { None };
            drop(log);
            answer.send((durable, closed)).unwrap();
        });
        let (durable, closed) = answered.recv().unwrap();
        durable.unwrap();
        assert!(closed.is_none_or(|closed| matches!(closed, Err(Error::Invalid(_)))));
        let ends = Instant::now() + Duration::from_secs(30);
        let logs = loop {
            match Logs::open(folder.path(), &LogsOptions::new()) {
                Ok(logs) => break logs,
                Err(error) => assert!(Instant::now() < ends, "{error}"),
            }
            std::thread::yield_now();
        };
        assert_eq!(logs.log(1).last().unwrap(), round);
    }
}

/// A future that is dropped at any of its waits leaves its change made or not, and the next call finds nothing amiss.
/// All calls of the module that return futures are tried.
#[test]
fn dropped_futures_leave_whole_changes() {
    let tried = RefCell::new(BTreeSet::new());
    let mut waited = 0;
    for polls in 1..12 {
        let disk = Disk::new(true);
        let logs = disk.open().unwrap();
        let large = Random(2).bytes(120_000);
        smol::block_on(async {
            let log = logs.log(1);
            log.append(1, &[&b"a"[..], &large, b"c"]).unwrap().wait().unwrap();
            let mut drop_at = async |name: &'static str, call: std::pin::Pin<Box<dyn Future<Output = bool> + '_>>| {
                tried.borrow_mut().insert(name.to_owned());
                let done = within_polls(polls, call).await;
                waited += usize::from(done.is_none());
                assert!(done != Some(false), "{name} failed");
            };
            drop_at("Log::append_async", Box::pin(async { log.append_async(4, &[&large]).await.is_ok() })).await;
            let last = log.last().unwrap();
            assert!(last == 3 || last == 4 && log.get(4).unwrap()[..] == large[..]);
            drop_at(
                "Log::get_async",
                Box::pin(async { log.get_async(2).await.is_ok_and(|entry| entry[..] == large[..]) }),
            )
            .await;
            drop_at(
                "Range::next_async",
                Box::pin(async {
                    let mut range = log.range(2..).unwrap();
                    range.next_async().await.unwrap().is_ok_and(|entry| entry[..] == large[..])
                }),
            )
            .await;
            drop_at("Log::truncate_after_async", Box::pin(async { log.truncate_after_async(2).await.is_ok() })).await;
            let cut = log.last().unwrap();
            assert!(cut == last || cut == 2);
            drop_at("Log::purge_to_async", Box::pin(async { log.purge_to_async(1).await.is_ok() })).await;
            drop_at("Log::set_async", Box::pin(async { log.set_async("vote", "x").await.is_ok() })).await;
            log.set("vote", "y").unwrap().wait().unwrap();
            drop_at("Log::unset_async", Box::pin(async { log.unset_async("vote").await.is_ok() })).await;
            let mut batch = logs.batch();
            batch.append(2, 0, &[&large]);
            batch.set(3, "vote", "x");
            drop_at("Batch::commit_async", Box::pin(async { batch.commit_async().await.is_ok() })).await;
            assert_eq!(logs.log(2).last().is_some(), logs.log(3).exists(), "a part of a batch was made");
            let before = logs.log(1).last();
            drop_at("Logs::remove_async", Box::pin(async { logs.remove_async(1).await.is_ok() })).await;
            assert!(!log.exists() || log.last() == before);
            drop(log.append(log.last().map_or(9, |last| last + 1), &["next"]).unwrap());
            let closing = logs.clone();
            drop_at("Logs::close_async", Box::pin(async { closing.close_async().await.is_ok() })).await;
        });
        drop(logs);
        let options = disk.options();
        smol::block_on(async {
            tried.borrow_mut().insert("Logs::open_async".to_owned());
            within_polls(polls, Logs::open_async(DIR, &options)).await
        });
        let opened = (0..10_000_000).find_map(|_| {
            // The opening that was dropped may not have been closed yet.
            let opened = disk.open();
            if matches!(opened, Err(Error::Locked { .. })) {
                std::thread::yield_now();
                return None;
            }
            Some(opened.unwrap())
        });
        let log = opened.unwrap().log(1);
        assert_eq!(log.get(log.last().unwrap()).unwrap(), "next");
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/logs");
    let mut public = async_methods(&sources);
    // These are not public.
    public.retain(|name| name.ends_with("_async"));
    assert_eq!(*tried.borrow(), public, "a call is missing here, or gone there");
    assert!(waited >= 3, "only {waited} calls were dropped");
}
