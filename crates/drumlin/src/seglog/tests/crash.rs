//! Power cuts at any write, repeatedly: recovery returns every acknowledged record, complete and in order, and invents
//! none.

use super::*;

/// The bodies of the appended records, by timestamp, and the timestamp up to which they must be recovered. Records that
/// a power cut lost are dropped.
#[derive(Default)]
struct Oracle {
    bodies: Vec<Vec<u8>>,
    acknowledged: u64,
}

impl Oracle {
    fn append(&mut self, timestamp: Timestamp, body: Vec<u8>) {
        let index = timestamp.0 as usize - 1;
        assert!(
            index >= self.bodies.len() || self.bodies[index].is_empty(),
            "timestamp {timestamp} was given out twice"
        );
        if self.bodies.len() <= index {
            self.bodies.resize(index + 1, Vec::new());
        }
        self.bodies[index] = body;
    }

    /// Compares the recovered records with the appended ones, and drops the lost ones.
    fn check(&mut self, rig: &Rig, context: &str) -> Scan {
        let scan = rig.scan().unwrap_or_else(|error| panic!("{context}: {error}"));
        let last = scan.last().0;
        assert!(last >= self.acknowledged, "{context}: recovered to {last}, acknowledged to {}", self.acknowledged);
        assert!(last <= self.bodies.len() as u64, "{context}: invented a record");
        let mut next = rig.covered.0;
        for record in scan.records().unwrap() {
            let record = record.unwrap_or_else(|error| panic!("{context}: {error}"));
            next += 1;
            assert_eq!(record.timestamp.0, next, "{context}");
            assert!(record.body == self.bodies[next as usize - 1], "{context}: record {next} is not what was appended");
        }
        assert_eq!(next, last, "{context}");
        self.bodies.truncate(last as usize);
        self.acknowledged = last;
        scan
    }
}

fn body_length(random: &mut Random, max: usize) -> usize {
    match random.below(20) {
        0 => random.below(max as u64 + 1) as usize,
        1..=5 => random.below(5000) as usize,
        _ => random.below(300) as usize,
    }
}

/// One thread appends, waits, requests flushes, truncates and reads until the power is cut.
fn scripted_run(rig: &mut Rig, log: &Log, oracle: &mut Oracle, random: &mut Random) {
    let mut pending: Vec<Appended> = Vec::new();
    let mut number = random.next();
    for _ in 0..400 {
        let stream = random.below(log.stream_count() as u64) as usize;
        match random.below(16) {
            0..=8 => {
                let length = body_length(random, log.body_bytes_max());
                let Ok(reservation) = log.reserve(stream, length) else { break };
                number += 1;
                let body = body_of(number, length.max(8));
                let body = if length < 8 { Vec::new() } else { body };
                let Ok(appended) = reservation.append(&Body::new(body.clone())) else { break };
                oracle.append(appended.timestamp, body);
                pending.push(appended);
            }
            9..=12 if !pending.is_empty() => {
                let appended = pending.swap_remove(random.below(pending.len() as u64) as usize);
                if log.wait_durable(&appended).is_ok() {
                    oracle.acknowledged = oracle.acknowledged.max(appended.timestamp.0);
                }
            }
            13 => {
                if let Some(appended) = pending.last() {
                    log.request_flush(appended);
                }
            }
            14 if random.below(4) == 0 => {
                let span = log.durable().0 - rig.covered.0;
                let covered = Timestamp(rig.covered.0 + random.below(span + 1));
                rig.truncate(log, covered);
            }
            15 if log.failure().is_none() && random.below(4) == 0 => {
                let from = log.truncated();
                for record in log.read_from(from).unwrap() {
                    let Ok(record) = record else { break };
                    assert!(record.body == oracle.bodies[record.timestamp.0 as usize - 1]);
                }
            }
            _ => {}
        }
        if rig.disk.is_off() {
            break;
        }
    }
    // A record below the horizon may have been read, so it must be recovered just like a commit that returned.
    oracle.acknowledged = oracle.acknowledged.max(log.durable().0);
}

/// Deterministic: 150 histories of up to 8 power cuts each, with 1 to 3 streams. The number of streams changes at every
/// opening.
#[test]
fn scripted_power_cuts_lose_nothing() {
    let (mut cuts, mut recovered) = (0, 0);
    for seed in 0..150 {
        let mut random = Random(seed);
        let mut rig = Rig::new(Disk::new(false), options(1 + random.below(3) as u16));
        let mut oracle = Oracle::default();
        let mut log = rig.create();
        for generation in 0..8 {
            rig.disk.cut_after(1 + random.below(60));
            scripted_run(&mut rig, &log, &mut oracle, &mut random);
            drop(log);
            cuts += 1;
            rig.options = options(1 + random.below(3) as u16);
            log = loop {
                let next = rig.disk.cut(&mut random);
                rig.move_to(next);
                let scan = oracle.check(&rig, &format!("seed {seed}, generation {generation}"));
                recovered += scan.record_count();
                if random.below(4) == 0 {
                    // Cut the power again before the log has started, with or without the opening listed.
                    rig.disk.cut_after(1 + random.below(3));
                }
                if random.below(8) == 0 {
                    continue;
                }
                let incarnation = rig.list_opening(scan.last());
                match scan.start(incarnation, rig.checkpoint, rig.hooks()) {
                    Ok(log) => break log,
                    Err(_) => cuts += 1,
                }
            };
        }
    }
    assert!(cuts > 1000 && recovered > 10_000, "{cuts} cuts, {recovered} records recovered");
}

/// With committers on several threads and with the background threads running, power cuts lose no acknowledged record.
#[test]
fn threaded_power_cuts_lose_nothing() {
    for seed in 0..25 {
        let mut random = Random(1000 + seed);
        let mut rig = Rig::new(Disk::new(true), options(1 + random.below(3) as u16));
        let oracle = Mutex::new(Oracle::default());
        let mut log = rig.create();
        for generation in 0..4 {
            rig.disk.cut_after(5 + random.below(120));
            let checkpoints = Mutex::new(&mut rig);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    let (log, oracle, checkpoints) = (&log, &oracle, &checkpoints);
                    let mut random = Random(random.next());
                    scope.spawn(move || {
                        for _ in 0..200 {
                            let stream = random.below(log.stream_count() as u64) as usize;
                            let length = body_length(&mut random, log.body_bytes_max() / 4);
                            let body = body_of(random.next(), length);
                            let Ok(reservation) = log.reserve(stream, body.len()) else { break };
                            // Hold the lock during the append, so that the oracle knows a record before any thread can
                            // recover it.
                            let appended = {
                                let mut oracle = oracle.lock();
                                let Ok(appended) = reservation.append(&Body::new(body.clone())) else { break };
                                oracle.append(appended.timestamp, body);
                                appended
                            };
                            if random.below(5) == 0 {
                                log.request_relaxed_flush(&appended);
                            } else if random.below(5) == 0 {
                                log.request_flush(&appended);
                            } else if log.wait_durable(&appended).is_ok() {
                                let mut oracle = oracle.lock();
                                oracle.acknowledged = oracle.acknowledged.max(appended.timestamp.0);
                            }
                            if random.below(30) == 0 {
                                let covered = log.durable();
                                let mut rig = checkpoints.lock();
                                if covered > rig.covered {
                                    rig.truncate(log, covered);
                                }
                            }
                        }
                    });
                }
            });
            let mut oracle = oracle.lock();
            oracle.acknowledged = oracle.acknowledged.max(log.durable().0);
            drop(log);
            rig.options = options(1 + random.below(3) as u16);
            let next = rig.disk.cut(&mut random);
            rig.move_to(next);
            let scan = oracle.check(&rig, &format!("seed {seed}, generation {generation}"));
            log = rig.start(scan);
        }
    }
}
