//! Space, memory, and what opening reads.

use super::*;

/// Whatever one slow log does, the segment files stay under twice the live bytes and four segments.
#[test]
fn one_slow_log_holds_little_space() {
    for has_threads in [false, true] {
        let disk = Disk::new(has_threads);
        let logs = disk.open().unwrap();
        let mut random = Random(4);
        let slow = logs.log(0);
        let mut kept = Vec::new();
        let segment_bytes = 64 << 10;
        let mut over = 0;
        for round in 0..1500u64 {
            if round % 10 == 0 {
                let entry = random.bytes(1000);
                slow.append(kept.len() as u64, &[&entry]).unwrap().wait().unwrap();
                kept.push(entry);
            }
            let log = logs.log(1 + round % 20);
            let next = log.last().map_or(0, |last| last + 1);
            log.append(next, &[random.bytes(3000), random.bytes(100)]).unwrap().wait().unwrap();
            if next > 4 {
                log.purge_to(next - 3).unwrap().wait().unwrap();
            }
            let stats = logs.stats();
            // A thread that gives space back may be a moment late, but appends don't outrun it.
            let slack_count = if has_threads { 6 } else { 4 };
            over += u64::from(stats.file_bytes > 2 * stats.live_bytes + slack_count * segment_bytes);
        }
        assert_eq!(over, 0, "{:?}", logs.stats());
        let stats = logs.stats();
        assert_eq!(stats.largest[0].number, 0, "{stats:?}");
        for (index, entry) in (0..).zip(&kept) {
            assert_eq!(slow.get(index).unwrap()[..], entry[..]);
        }
        let disk = disk.kill();
        drop((slow, logs));
        let logs = disk.open().unwrap();
        assert!(logs.log(0).range(..).unwrap().map(|entry| entry.unwrap().to_vec()).eq(kept));
    }
}

/// A closed folder is opened without reading its log, and after a kill only what is above the index is read: damage to
/// the rest is not noticed before the entries are read.
#[test]
fn opening_reads_the_index_and_the_tail() {
    let disk = Disk::new(false);
    let logs = disk.open().unwrap();
    let mut random = Random(1);
    for index in 0..3000 {
        drop(logs.log(index % 7).append(index / 7, &[random.bytes(1000)]).unwrap());
    }
    logs.close().unwrap();
    let damage = |disk: &Disk, files: &[std::path::PathBuf]| {
        for path in files {
            // The header and the first block are looked at.
            disk.disk.with_medium(|medium| medium.tamper(path, |bytes| bytes[8192..].fill(0x5a)));
        }
    };
    let closed = disk.kill();
    damage(&closed, &closed.segment_files());
    let logs = closed.open().unwrap();
    assert_eq!(logs.log(3).last(), Some(428));
    assert!(matches!(logs.log(3).get(200), Err(Error::Corrupted { .. })));

    let logs = disk.kill();
    let disk = logs;
    let mut old_files = disk.segment_files();
    // Sort the files by slot. No slot was used twice, so this is also the order of their positions.
    old_files.sort_by_key(|path| path.as_os_str().len());
    let logs = disk.open().unwrap();
    for index in 0..100 {
        drop(logs.log(1).append(429 + index, &[random.bytes(1000)]).unwrap());
    }
    let disk = disk.kill();
    drop(logs);
    damage(&disk, &old_files[..old_files.len() - 5]);
    let logs = disk.open().unwrap();
    assert_eq!(logs.log(1).last(), Some(528));
    assert!(logs.log(1).get(528).is_ok() && logs.log(1).get(3).is_err());
}

/// Ten thousand logs stay within the memory: the index refuses what does not fit, and purging makes room.
#[test]
fn memory_is_bounded() {
    let disk = Disk::new(false);
    let options = disk.options().memory(16 << 20).segment_bytes(1 << 20);
    let logs = Logs::open(DIR, &options).unwrap();
    for number in 0..10_000 {
        drop(logs.log(number).append(0, &["a", "b"]).unwrap());
    }
    let stats = logs.stats();
    assert!(stats.index_memory_bytes < 6 << 20 && stats.cache_bytes <= 4 << 20, "{stats:?}");
    let log = logs.log(0);
    let error = loop {
        match log.append(log.last().unwrap() + 1, &vec![[0; 8]; 1000]) {
            Ok(receipt) => drop(receipt),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::MemoryInUse { .. }), "{error:?}");
    let stats = logs.stats();
    assert!(stats.index_memory_bytes <= 6 << 20 && stats.cache_bytes <= 4 << 20, "{stats:?}");
    // The places of all but the newest are in the stream.
    for index in (2..log.last().unwrap()).step_by(997) {
        assert_eq!(log.get(index).unwrap()[..], [0; 8], "entry {index}");
    }
    log.set("vote", "x").unwrap().wait().unwrap();
    log.purge_to(log.last().unwrap() - 10).unwrap().wait().unwrap();
    assert!(logs.stats().index_memory_bytes < stats.index_memory_bytes / 2 + (4 << 20));
    log.append(log.last().unwrap() + 1, &["again"]).unwrap().wait().unwrap();
}
