//! Kills and power cuts: what was acknowledged is there, what was cut off is not, and a batch is whole or absent.

use super::*;

/// Random histories of many openings. Each ends by a close, a kill or a power cut at a random write, also while the
/// logs are being opened.
#[test]
fn random_histories_survive_kills_and_power_cuts() {
    let (mut cuts, mut changes) = (0, 0);
    for seed in 0..60 {
        let survived = history::survive(seed);
        cuts += survived.crashes;
        changes += survived.changes;
    }
    assert!(cuts > 250 && changes > 15_000, "{cuts} cuts, {changes} changes");
}

/// One history, with the power cut at each of its writes.
#[test]
fn no_write_is_a_bad_moment_for_a_power_cut() {
    let run = |write: u64| {
        let mut random = Random(99);
        let disk = Disk::new(false);
        let mut history = History::new();
        if write > 0 {
            disk.disk.turn_off_in_write(write);
        }
        let ran = disk.open().and_then(|logs| {
            let ran = history.run(&logs, &mut random, 150);
            ran.and_then(|()| logs.close()).inspect(|()| history.acknowledged = history.models.len() - 1)
        });
        assert!(write > 0 || ran.is_ok(), "{ran:?}");
        (disk, history)
    };
    let (disk, _) = run(0);
    let write_count = disk.disk.write_count();
    assert!(write_count > 100, "{write_count} writes");
    for write in 1..=write_count {
        let (disk, mut history) = run(write);
        let mut random = Random(write);
        let disk = disk.cut(&mut random);
        let context = format!("cut in write {write}");
        let logs = history.reopen(&disk, &context);
        history.run(&logs, &mut random, 20).unwrap();
        let disk = disk.kill();
        drop(logs);
        drop(history.reopen(&disk, &format!("{context}, and killed again")));
    }
}

/// A receipt that was answered says the truth: with the power cut right after it, the change is there. The same test
/// finds a log that answers too early.
#[test]
fn what_is_told_durable_is_durable() {
    let run = |answers_early: bool| {
        let mut lost = 0;
        for seed in 0..200 {
            let mut random = Random(seed);
            let disk = Disk::new(false);
            let mut history = History::new();
            let logs = disk.open().unwrap();
            let count = random.below(60) as usize;
            history.run(&logs, &mut random, count).unwrap();
            let receipt = history.make(&logs, &mut random).unwrap();
            if answers_early {
                // This log says that the record is durable, though it only was appended.
                std::mem::forget(receipt);
            } else if random.below(2) == 0 {
                receipt.wait().unwrap();
            } else {
                let (told, answer) = std::sync::mpsc::channel();
                receipt.then(move |durable| told.send(durable).unwrap());
                answer.recv().unwrap().unwrap();
            }
            history.acknowledged = history.models.len() - 1;
            let acknowledged = history.newest().clone();
            let disk = disk.cut(&mut random);
            drop(logs);
            let logs = disk.open().unwrap();
            lost += usize::from(Model::read(&logs).unwrap() != acknowledged);
        }
        lost
    };
    assert_eq!(run(false), 0, "changes were told durable, and were not");
    assert!(run(true) > 150, "a log that answers early is not found");
}

/// Threads append to several logs while the power is cut: every acknowledged entry is there, and each log has a prefix
/// of what was appended.
#[test]
fn threads_lose_nothing() {
    for seed in 0..15 {
        let mut random = Random(seed);
        let disk = Disk::new(true);
        let logs = disk.open().unwrap();
        disk.disk.turn_off_in_write(20 + random.below(100));
        let acknowledged: Vec<u64> = std::thread::scope(|scope| {
            let thread = |number: u64| {
                let logs = &logs;
                scope.spawn(move || {
                    let log = logs.log(number);
                    let mut acknowledged = 0;
                    for index in 1..400 {
                        let entry = Random(number << 32 | index).bytes(500);
                        let Ok(receipt) = log.append(index, &[entry]) else { break };
                        if index % 3 == 0 && receipt.wait().is_err() {
                            break;
                        }
                        acknowledged = acknowledged.max(log.durable().unwrap_or(0));
                    }
                    acknowledged
                })
            };
            let threads: Vec<_> = (0..4).map(thread).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let disk = disk.cut(&mut random);
        drop(logs);
        let logs = disk.open().unwrap();
        for (number, acknowledged) in (0..).zip(acknowledged) {
            let log = logs.log(number);
            assert!(log.last().unwrap_or(0) >= acknowledged, "seed {seed}: log {number} lost entries");
            for index in 1..=log.last().unwrap_or(0) {
                assert_eq!(log.get(index).unwrap()[..], Random(number << 32 | index).bytes(500)[..]);
            }
        }
    }
}
