//! Reading entries that are not in memory.

use super::*;
use std::sync::atomic::Ordering;

/// Entries of different lengths, so that reads have different numbers of them.
fn entry(index: u64) -> Vec<u8> {
    let bytes = if index % 500 < 250 { 40 } else { 900 };
    [&index.to_le_bytes()[..], &vec![index as u8; bytes]].concat()
}

/// A follower gets each entry of a log that is larger than memory, for a thread and for a task. Other threads read
/// ahead, and no more than they may.
#[test]
fn a_follower_reads_ahead() {
    for has_threads in [false, true] {
        let disk = Disk::new(has_threads);
        let logs = disk.open().unwrap();
        let log = logs.log(1);
        for first in (0..6000).step_by(50) {
            let entries: Vec<Vec<u8>> = (first..first + 50).map(entry).collect();
            log.append(first, &entries).unwrap().wait().unwrap();
        }
        let shared = Arc::clone(&logs.opening.shared);
        let ahead_count = || shared.ahead_count.load(Ordering::Relaxed);
        let mut ahead_count_max = 0;
        let mut next = 0;
        for found in log.range(..).unwrap() {
            let found = found.unwrap();
            assert_eq!((found.index(), found.to_vec()), (next, entry(next)));
            next += 1;
            ahead_count_max = ahead_count_max.max(ahead_count());
        }
        assert_eq!((next, ahead_count_max, ahead_count()), (6000, options::AHEAD_COUNT_MAX, 0));
        let read = smol::block_on(async {
            let mut range = log.range(100..5900).unwrap();
            let mut next = 100;
            while let Some(found) = range.next_async().await {
                let found = found.unwrap();
                assert_eq!((found.index(), found.to_vec()), (next, entry(next)));
                next += 1;
            }
            next
        });
        assert_eq!((read, ahead_count()), (5900, 0));
        // A future that is dropped while it waits loses no entry.
        let read = smol::block_on(async {
            let mut range = log.range(..).unwrap();
            let mut next = 0;
            loop {
                let found = match smol::future::poll_once(range.next_async()).await {
                    Some(found) => found,
                    None => range.next_async().await,
                };
                let Some(found) = found else { break next };
                let found = found.unwrap();
                assert_eq!((found.index(), found.to_vec()), (next, entry(next)));
                next += 1;
            }
        });
        assert_eq!((read, ahead_count()), (6000, 0));
        // Changes during the read of a range are seen or not.
        let mut range = log.range(..).unwrap();
        assert_eq!(range.next().unwrap().unwrap().index(), 0);
        log.purge_to(2999).unwrap().wait().unwrap();
        log.truncate_after(3999).unwrap().wait().unwrap();
        for found in range {
            match found {
                Ok(found) => assert_eq!(found.to_vec(), entry(found.index())),
                Err(error) => assert!(matches!(error, Error::LogPurged { first: 3000, .. }), "{error}"),
            }
        }
        // A range that is dropped in the middle is no obstacle to closing and opening the folder.
        let mut range = log.range(..).unwrap();
        range.nth(500).unwrap().unwrap();
        drop((range, log, shared));
        logs.close().unwrap();
        assert_eq!(disk.open().unwrap().log(1).range(..).unwrap().count(), 1000);
    }
}
