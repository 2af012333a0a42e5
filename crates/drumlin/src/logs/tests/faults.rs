//! Failed writes, full disks, flipped bits and lost files.

use super::index::INDEX_NAMES;
use super::*;
use crate::io::fault::{EIO, Operation};
use std::sync::Mutex;

/// After a failed write, every receipt that was not answered gets the error once, nothing later is acknowledged, and
/// reads go on.
#[test]
fn a_failed_write_is_told_to_everybody_once() {
    let disk = Disk::new(false);
    let logs = disk.open().unwrap();
    let log = logs.log(1);
    log.append(1, &["durable"]).unwrap().wait().unwrap();
    disk.faulty.fail_from(Operation::Write, 1, EIO);
    let receipts: Vec<Receipt> = (2..10).map(|index| log.append(index, &["lost"]).unwrap()).collect();
    let answers = Arc::new(Mutex::new(Vec::new()));
    for (number, receipt) in receipts.into_iter().enumerate() {
        if number % 2 == 0 {
            assert!(matches!(receipt.wait(), Err(Error::OutcomeUnknown { .. })), "receipt {number}");
        } else {
            let answers = Arc::clone(&answers);
            receipt.then(move |durable| answers.lock().unwrap().push((number, durable.is_err())));
        }
    }
    assert_eq!(*answers.lock().unwrap(), [(1, true), (3, true), (5, true), (7, true)]);
    assert!(matches!(log.append(10, &["later"]), Err(Error::Failed { .. })));
    assert_eq!((log.durable(), log.get(1).unwrap()), (Some(1), Entry::new(1, b"durable"[..].into())));
    assert_eq!(log.get(9).unwrap(), "lost", "it is in memory");
    assert!(logs.close().is_err());
}

/// If a write fails, each callback that waits for it is called once, with the error.
#[test]
fn callbacks_in_flight_get_the_failure() {
    let disk = Disk::new(true);
    let logs = disk.open().unwrap();
    let log = logs.log(1);
    log.append(1, &["durable"]).unwrap().wait().unwrap();
    disk.faulty.fail_from(Operation::Write, 1, EIO);
    let (told, answers) = std::sync::mpsc::channel();
    for index in 2..50 {
        let Ok(receipt) = log.append(index, &["lost"]) else { break };
        let told = told.clone();
        receipt.then(move |durable| told.send((index, durable.is_err())).unwrap());
    }
    drop(told);
    let mut answers: Vec<(u64, bool)> = answers.iter().collect();
    answers.sort_unstable();
    assert!(!answers.is_empty() && answers.iter().all(|(_, failed)| *failed), "{answers:?}");
    answers.dedup();
    assert!(answers.iter().map(|(index, _)| *index).eq(2..2 + answers.len() as u64), "{answers:?}");
}

/// On a full disk, appends fail and change nothing, while purging, cutting, voting and reading go on. After space is
/// freed, so does appending.
#[test]
fn a_full_disk_leaves_a_way_out() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let disk = Disk::new(false);
        let logs = disk.open().unwrap();
        let log = logs.log(1);
        log.append(0, &[random.bytes(1000)]).unwrap().wait().unwrap();
        // The folder may take four segments more than its entries need, and has two by now.
        disk.set_capacity(Some(disk.used_bytes() + 140_000 + random.below(500_000)));
        let mut next = 1;
        let full = loop {
            let bytes = 1 + random.below(4000) as usize;
            match log.append(next, &[random.bytes(bytes)]) {
                Ok(receipt) => receipt.wait().unwrap(),
                Err(error) => break error,
            }
            next += 1;
        };
        assert!(matches!(full, Error::DiskFull { .. }), "seed {seed}: {full:?}");
        assert_eq!((log.last(), log.durable()), (Some(next - 1), Some(next - 1)));
        for vote in 0..20u64 {
            log.set("vote", vote.to_le_bytes()).unwrap().wait().unwrap();
        }
        log.truncate_after(next - 2).unwrap().wait().unwrap();
        assert!(log.get(next / 2).is_ok(), "seed {seed}");
        // Opening needs no space either.
        let disk = if random.below(2) == 0 {
            let after = disk.kill();
            after.set_capacity(Some(after.used_bytes()));
            drop((log, logs));
            after
        } else {
            drop((log, logs));
            disk
        };
        let logs = disk.open().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let log = logs.log(1);
        assert_eq!((log.value("vote"), log.last()), (Some(19u64.to_le_bytes().to_vec()), Some(next - 2)));
        log.purge_to(next - 3).unwrap().wait().unwrap();
        for index in next - 1..next + 30 {
            let appended = log.append(index, &[random.bytes(2000)]).and_then(Receipt::wait);
            appended.unwrap_or_else(|error| panic!("seed {seed}, entry {index} after purging: {error}"));
            if index % 10 == 0 {
                log.purge_to(index - 5).unwrap().wait().unwrap();
            }
        }
    }
}

/// A way to fill a disk with logs.
#[derive(Clone, Copy, Debug)]
struct Filling {
    /// Each append has up to this many entries of up to this many bytes.
    entry_count_max: u64,
    entry_bytes_max: u64,
    log_count: u64,
    /// One log after the other is filled. Otherwise, each append is to a log that is drawn at random.
    is_in_turn: bool,
    waits: bool,
}

/// Fills a disk, and returns whether it took an entry at all.
fn fill(logs: &Logs, filling: Filling, random: &mut Random) -> u64 {
    let Filling { entry_count_max, entry_bytes_max, log_count, is_in_turn, waits } = filling;
    for appended in 0.. {
        let log = logs.log(if is_in_turn { appended / 40 % log_count } else { random.below(log_count) });
        let count = 1 + random.below(entry_count_max);
        let entries: Vec<Vec<u8>> = (0..count)
            .map(|_| 1 + random.below(entry_bytes_max))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|bytes| random.bytes(bytes as usize))
            .collect();
        match log.append(log.last().map_or(log.purged().map_or(0, |purged| purged + 1), |last| last + 1), &entries) {
            Ok(receipt) if waits => receipt.wait().unwrap(),
            Ok(receipt) => drop(receipt),
            Err(Error::DiskFull { .. }) => return appended,
            Err(other) => panic!("{other}"),
        }
    }
    unreachable!("no disk is full")
}

/// On a full disk of any size, votes, cuts and purges always succeed, and appends once something was purged, whichever
/// log was purged.
#[test]
fn a_full_disk_of_any_size_leaves_a_way_out() {
    let fillings = [
        Filling { entry_count_max: 1, entry_bytes_max: 3000, log_count: 1, is_in_turn: false, waits: true },
        Filling { entry_count_max: 1, entry_bytes_max: 300, log_count: 5, is_in_turn: true, waits: true },
        Filling { entry_count_max: 100, entry_bytes_max: 200, log_count: 3, is_in_turn: true, waits: false },
        Filling { entry_count_max: 200, entry_bytes_max: 4, log_count: 2, is_in_turn: true, waits: false },
        Filling { entry_count_max: 2, entry_bytes_max: 60, log_count: 200, is_in_turn: false, waits: false },
        Filling { entry_count_max: 2, entry_bytes_max: 60_000, log_count: 4, is_in_turn: false, waits: false },
    ];
    let steps = std::env::var("DRUMLIN_TEST_DISKS").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    for (number, filling) in fillings.into_iter().enumerate() {
        for step in 0..steps {
            let context = format!("filling {number}, size {step}");
            let mut random = Random(step << 8 | number as u64);
            let disk = Disk::new(false);
            let logs = disk.open().unwrap();
            disk.set_capacity(Some(disk.used_bytes() + step * 32_768 + random.below(8) * 4096));
            if fill(&logs, filling, &mut random) == 0 {
                continue;
            }
            let mut logs = Some(logs);
            for round in 0..4 {
                let context = format!("{context}, round {round}");
                let open = logs.as_ref().unwrap();
                let numbers = open.numbers();
                let some = |random: &mut Random| open.log(numbers[random.below(numbers.len() as u64) as usize]);
                for vote in 0..100u64 {
                    let set = some(&mut random).set("vote", vote.to_le_bytes()).and_then(Receipt::wait);
                    set.unwrap_or_else(|error| panic!("{context}, vote {vote}: {error}"));
                }
                let log = some(&mut random);
                let cut = log.truncate_after(log.last().or(log.purged())).and_then(Receipt::wait);
                cut.unwrap_or_else(|error| panic!("{context}, cut: {error}"));
                // One log, in part or whole, or all.
                let all = random.below(3) == 0;
                let keeps = random.below(2) == 0;
                let before = open.stats().live_bytes;
                for log in
                    if all { numbers.iter().map(|log| open.log(*log)).collect() } else { vec![some(&mut random)] }
                {
                    let Some((first, last)) = log.first().zip(log.last()) else { continue };
                    let purged = log.purge_to(if keeps { first + (last - first) / 2 } else { last });
                    purged.and_then(Receipt::wait).unwrap_or_else(|error| panic!("{context}, purge: {error}"));
                }
                let purged_bytes = before - open.stats().live_bytes;
                let model = Model::read(open).unwrap();
                if random.below(2) == 0 {
                    let killed = disk.kill();
                    killed.set_capacity(Some(killed.used_bytes()));
                    let again = killed.open().unwrap_or_else(|error| panic!("{context}, opening: {error}"));
                    assert_eq!(Model::read(&again).unwrap(), model, "{context}");
                    // The disk that was turned off is gone with its logs.
                    drop(logs.take());
                    return_to(&context, &again, filling, purged_bytes, &mut random);
                    break;
                }
                return_to(&context, open, filling, purged_bytes, &mut random);
            }
        }
    }
}

/// Appends to logs from which this many bytes were purged. If windows that are all live lie before what was purged,
/// there may be no space to move them out of the way, but what is purged afterwards gives space back.
fn return_to(context: &str, logs: &Logs, filling: Filling, purged_bytes: u64, random: &mut Random) {
    let before = logs.stats();
    let is_much = |bytes: u64| bytes > 2 * (64 << 10) + filling.entry_bytes_max * filling.entry_count_max;
    if fill(logs, filling, random) > 0 || !is_much(purged_bytes) {
        return;
    }
    for log in logs.numbers().into_iter().map(|number| logs.log(number)) {
        let Some(last) = log.last() else { continue };
        log.purge_to(last).and_then(Receipt::wait).unwrap_or_else(|error| panic!("{context}, second purge: {error}"));
    }
    let count = fill(logs, filling, random);
    assert!(
        count > 0 || !is_much(before.live_bytes),
        "{context}: nothing can be appended: {before:?}, {:?}",
        logs.stats()
    );
}

/// The disk is full at every write of a history: a change that fails changes nothing, and what was acknowledged stays.
#[test]
fn no_write_is_a_bad_moment_for_a_full_disk() {
    for limit in 0..120 {
        let mut random = Random(31);
        let disk = Disk::new(false);
        let mut history = History::new();
        let logs = disk.open().unwrap();
        disk.set_capacity(Some(disk.used_bytes() + limit * 12_288));
        let mut failures = 0;
        for _ in 0..150 {
            match history.make(&logs, &mut random) {
                Ok(receipt) => {
                    receipt.wait().unwrap_or_else(|error| panic!("limit {limit}: {error}"));
                    history.acknowledged = history.models.len() - 1;
                }
                Err(Error::DiskFull { .. }) => failures += 1,
                Err(other) => panic!("limit {limit}: {other}"),
            }
        }
        assert!(failures > 0 || limit > 10, "limit {limit}: the disk never was full");
        assert_eq!(&Model::read(&logs).unwrap(), history.newest(), "limit {limit}");
        let disk = disk.cut(&mut random);
        drop(logs);
        drop(history.reopen(&disk, &format!("limit {limit}")));
    }
}

/// A bit that flips in any file is found: opening fails and names the file, or the entry that has it can't be read and
/// all others can. No entry ever differs.
#[test]
fn flipped_bits_are_found() {
    let mut outcomes = [0; 3];
    let mut mended = 0;
    let is_index = |path: &Path| INDEX_NAMES.iter().any(|name| path.ends_with(name));
    for seed in 0..400 {
        let mut random = Random(seed);
        let disk = Disk::new(false);
        let mut history = History::new();
        let logs = disk.open().unwrap();
        history.run(&logs, &mut random, 60).unwrap();
        // Everything is durable, and more was written after it.
        logs.log(9).set("end", "x").unwrap().wait().unwrap();
        logs.log(9).set("end", "y").unwrap().wait().unwrap();
        if random.below(2) == 0 {
            logs.close().unwrap();
        } else {
            disk.disk.turn_off();
            drop(logs);
        }
        let disk = disk.kill();
        let before = Model::read(&Disk::with(disk.disk.medium(), false).open().unwrap()).unwrap();
        let files = disk.disk.with_medium(|medium| medium.files());
        let files: Vec<_> = files.into_iter().filter(|path| !path.ends_with("lock")).collect();
        let path = &files[random.below(files.len() as u64) as usize];
        disk.disk.with_medium(|medium| {
            medium.tamper(path, |bytes| {
                let used: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
                if !used.is_empty() {
                    bytes[used[random.below(used.len() as u64) as usize]] ^= 1 << random.below(8);
                }
            });
        });
        let logs = match disk.open() {
            Ok(logs) => {
                mended += u32::from(is_index(path));
                logs
            }
            Err(error) if is_index(path) => panic!("seed {seed}: {} has a copy: {error}", path.display()),
            Err(Error::Corrupted { path: named, .. }) => {
                // A record or its neighbour may be suspected.
                let is_segment = |path: &Path| path.extension().is_some_and(|extension| extension == "seg");
                let is_named = named == *path || named == Path::new(DIR) || is_segment(&named) && is_segment(path);
                assert!(is_named, "seed {seed}: {} was damaged, {} is named", path.display(), named.display());
                outcomes[0] += 1;
                continue;
            }
            // The damage is in a file's format number.
            Err(Error::NewerFormat { .. } | Error::OlderFormat { .. }) => continue,
            Err(other) => panic!("seed {seed}: {other:?}"),
        };
        assert_eq!(logs.numbers(), before.logs.keys().copied().collect::<Vec<_>>(), "seed {seed}: {}", path.display());
        let mut damaged = 0;
        for (&number, log) in &before.logs {
            for (&index, entry) in &log.entries {
                match logs.log(number).get(index) {
                    Ok(found) => assert_eq!(found[..], entry[..], "seed {seed}: entry {index} of log {number}"),
                    Err(Error::Corrupted { path: named, what, .. }) => {
                        // An entry is named by where it begins, and may reach into the next segment.
                        let is_segment = |path: &Path| path.extension().is_some_and(|extension| extension == "seg");
                        assert!(is_segment(&named) && is_segment(path), "seed {seed}: {}", named.display());
                        assert!(what.contains(&format!("entry {index} of log {number} at offset")), "{what}");
                        damaged += 1;
                    }
                    Err(other) => panic!("seed {seed}: {other:?}"),
                }
            }
        }
        assert!(damaged <= 1, "seed {seed}: one bit damaged {damaged} entries");
        outcomes[1 + damaged] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 5) && mended > 20, "{outcomes:?}, {mended} mended");
}

/// A segment that is lost is noticed when the folder is opened, closed or not, and is named by its position.
#[test]
fn a_lost_segment_is_noticed() {
    for closes in [false, true] {
        let disk = Disk::new(false);
        let logs = disk.open().unwrap();
        let mut random = Random(1);
        for index in 0..200 {
            logs.log(1).append(index, &[random.bytes(2000)]).unwrap().wait().unwrap();
        }
        if closes {
            logs.close().unwrap();
        } else {
            disk.disk.turn_off();
            drop(logs);
        }
        let medium = disk.disk.medium();
        let segments = disk.segment_files();
        assert!(segments.len() > 5, "{segments:?}");
        let mut noticed = 0;
        for path in &segments {
            let mut medium = medium.clone();
            medium.tamper(path, Vec::clear);
            match Disk::with(medium, false).open() {
                Err(Error::Corrupted { .. }) => noticed += 1,
                // It was a spare one.
                Ok(logs) => assert_eq!(logs.log(1).range(..).unwrap().map(Result::unwrap).count(), 200),
                Err(other) => panic!("{other:?}"),
            }
        }
        assert!(noticed + 2 >= segments.len(), "{noticed} of {}", segments.len());
    }
}

/// An index file that is damaged or lost is read from its copy, and mended, so that the other one may be damaged next.
/// If both are damaged, opening fails and says where.
#[test]
fn a_damaged_index_has_a_copy() {
    let disk = Disk::new(false);
    let mut history = History::new();
    let mut random = Random(3);
    let logs = disk.open().unwrap();
    history.run(&logs, &mut random, 300).unwrap();
    logs.log(9).set("end", "x").unwrap().wait().unwrap();
    let found = Model::read(&logs).unwrap();
    let disk = disk.kill();
    drop(logs);
    let damage = |disk: &Disk, name: &str, kind: u32| {
        let change = |bytes: &mut Vec<u8>| match kind {
            0 => bytes[5000] ^= 4,
            1 => bytes[4096..8192].fill(0x5a),
            _ => bytes.clear(),
        };
        disk.disk.with_medium(|medium| medium.tamper(&Path::new(DIR).join(name), change));
    };
    for kind in 0..3 {
        let mut mended = 0;
        for (name, other) in [(INDEX_NAMES[0], INDEX_NAMES[1]), (INDEX_NAMES[1], INDEX_NAMES[0])] {
            let disk = Disk::with(disk.disk.medium(), false);
            damage(&disk, name, kind);
            let logs = disk.open().unwrap_or_else(|error| panic!("{kind}, {name}: {error}"));
            assert_eq!(Model::read(&logs).unwrap(), found, "{kind}, {name}");
            let disk = disk.kill();
            drop(logs);
            damage(&disk, other, kind);
            // Damage to the copy is not noticed, because nothing reads it.
            let reopened = disk.open();
            mended += u32::from(reopened.is_ok_and(|logs| Model::read(&logs).unwrap() == found));
        }
        assert_eq!(mended, 1, "{kind}");
    }
    INDEX_NAMES.iter().for_each(|name| damage(&disk, name, 0));
    let error = disk.open().unwrap_err();
    let Error::Corrupted { path, what, .. } = &error else { panic!("{error:?}") };
    assert!(INDEX_NAMES.iter().any(|name| path.ends_with(name)) && what.contains("at offset 0"), "{error}");
    assert!(error.to_string().contains("replica or a backup"), "{error}");
}
