//! Power cuts at any time, on a simulated disk whose unsynced writes may vanish or be torn.
//!
//! A scripted workload runs once, and its changes to the disk are recorded. The disk is then rebuilt as a cut after any
//! write or sync may leave it. The rebuilt disk is opened, verified, written to, and cut again, possibly in the middle
//! of its recovery.
//!
//! The tests are quick by default. `DRUMLIN_TEST_CUTS` is the number of first cuts per configuration (default 40), and
//! `DRUMLIN_TEST_SEED` is the seed of the random choices. A failure reports the seed and the cut; with
//! `DRUMLIN_TEST_TRACE` it also prints the preceding operations.

use crate::support;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use drumlin::{Config, Database};
use drumlin_io::testing::sim::{self, Change, Disk, Loss, Medium};
use support::workload::{Ack, Workload, disturb};
use support::{Random, number, small};

/// The note that marks the creation of the workload's keyspaces as complete.
const PREPARED: u64 = u64::MAX;

fn config(disk: &Disk, streams: u16) -> Config {
    small().log_streams(streams).checkpoint_log_bytes(256 << 10).backend(disk.backend())
}

/// Acknowledgements, each with the number of disk changes that preceded it.
#[derive(Default)]
struct Notes(Mutex<Vec<(u64, u64)>>);

impl Notes {
    fn add(&self, disk: &Disk, note: u64) {
        self.0.lock().unwrap().push((disk.change_count(), note));
    }
}

/// One session on a disk, and the acknowledgements of earlier sessions.
struct Session {
    start: Medium,
    end: Medium,
    changes: Vec<Change>,
    notes: Vec<(u64, u64)>,
    prepared: bool,
    acked: Vec<Ack>,
}

impl Session {
    /// Returns whether the keyspaces existed after this many changes of the disk, and all acknowledgements up to then.
    fn acked_by(&self, moment: usize) -> (bool, Vec<Ack>) {
        let notes = self.notes.iter().filter(|(at, _)| *at <= moment as u64).map(|(_, note)| *note);
        let prepared = self.prepared || notes.clone().any(|note| note == PREPARED);
        let now = notes.filter(|note| *note != PREPARED).map(Ack::from_bits);
        (prepared, self.acked.iter().copied().chain(now).collect())
    }
}

struct Rig {
    workload: Workload,
    streams: u16,
    states: u64,
}

impl Rig {
    /// Runs one process or, sometimes, two in succession. The first one is killed, which loses no writes, but its
    /// unsynced changes remain uncertain while the second one runs.
    fn live(
        &mut self,
        medium: Medium,
        seed: u64,
        prepared: bool,
        acked: &[Ack],
        steps: u64,
    ) -> Result<Session, String> {
        let first = self.live_once(medium, seed, prepared, acked, steps)?;
        if steps == 0 || Random(seed ^ 1).chance(70) {
            return Ok(first);
        }
        let (_, acked) = first.acked_by(first.changes.len());
        self.live_once(first.end, seed ^ 2, true, &acked, steps)
    }

    /// Opens the disk, verifies it, runs `steps` more steps of each thread, and closes the database or leaves it open.
    fn live_once(
        &mut self,
        medium: Medium,
        seed: u64,
        prepared: bool,
        acked: &[Ack],
        steps: u64,
    ) -> Result<Session, String> {
        self.states += 1;
        let disk = Disk::new(medium.clone(), seed);
        let notes = Notes::default();
        disk.record();
        let db = config(&disk, self.streams).open("/folder/db").map_err(|error| format!("opening: {error}"))?;
        let next = self.workload.verify(&db, prepared, acked)?;
        self.workload.prepare(&db).map_err(|error| format!("preparing: {error}"))?;
        notes.add(&disk, PREPARED);
        // From now on, verified rows must survive, because readers have seen them.
        for (thread, &next) in next.iter().enumerate().filter(|(_, next)| **next > 0) {
            notes.add(&disk, Ack { thread: thread as u64, step: next - 1, full: true }.to_bits());
        }
        if steps > 0 {
            let mut random = Random(seed);
            let with_maintenance = random.chance(70);
            self.work(&db, &|ack| notes.add(&disk, ack.to_bits()), seed, &next, steps, with_maintenance)?;
        }
        let crash = Random(seed).chance(50);
        if !crash {
            db.close().map_err(|error| format!("closing: {error}"))?;
        }
        // Stop like a killed process: it makes no further changes, and no writes are lost.
        disk.turn_off();
        let (changes, end) = (disk.recorded(), disk.medium());
        let notes = notes.0.into_inner().unwrap();
        Ok(Session { start: medium, end, changes, notes, prepared, acked: acked.to_vec() })
    }

    fn work(
        &self,
        db: &Database,
        acked: &(dyn Fn(Ack) + Sync),
        seed: u64,
        from: &[u64],
        steps: u64,
        with_maintenance: bool,
    ) -> Result<(), String> {
        let stop = Arc::new(AtomicBool::new(!with_maintenance));
        std::thread::scope(|scope| {
            scope.spawn(|| disturb(db, seed, &stop));
            let results = self.workload.run_all(db, from, steps, acked);
            stop.store(true, Ordering::Release);
            results.into_iter().find_map(Result::err).map_or(Ok(()), |error| Err(format!("working: {error}")))
        })
    }

    /// Cuts the power of a session after each of these numbers of changes, with a different loss each time. Continues
    /// from the resulting disks, and cuts again, `depth` times.
    fn cut(&mut self, session: &Session, moments: &[usize], depth: u32, random: &mut Random) -> Result<(), String> {
        let mut medium = session.start.clone();
        let mut done = 0;
        for &moment in moments {
            for change in &session.changes[done..moment] {
                medium.apply(change);
            }
            done = moment;
            let how = Loss::ALL[random.below(4) as usize];
            let seed = random.next();
            let after = medium.cut(how, &mut sim::Random(random.next()));
            let (prepared, acked) = session.acked_by(moment);
            let steps = if depth > 0 { 4 + random.below(20) } else { 0 };
            let lived = std::panic::catch_unwind(AssertUnwindSafe(|| self.live(after, seed, prepared, &acked, steps)));
            let lived = lived.unwrap_or_else(|_| Err("a panic".into()));
            let place =
                || format!("cut after {moment} of {} changes, loss {how:?}, seed {seed}", session.changes.len());
            if lived.is_err() && std::env::var_os("DRUMLIN_TEST_TRACE").is_some() {
                session.changes[..moment].iter().for_each(|change| eprintln!("{change:?}"));
            }
            let next = lived.map_err(|reason| format!("{}: {reason}", place()))?;
            if depth > 0 {
                // Place half of the cuts in the recovery, which makes the first changes.
                let mut moments: Vec<usize> = (0..3)
                    .map(|_| {
                        let limit = if random.chance(50) { next.changes.len().min(60) } else { next.changes.len() };
                        random.below(limit as u64 + 1) as usize
                    })
                    .collect();
                moments.sort_unstable();
                let then = self.cut(&next, &moments, depth - 1, random);
                if then.is_err() && std::env::var_os("DRUMLIN_TEST_TRACE").is_some() {
                    eprintln!("before it:");
                    session.changes[..moment].iter().for_each(|change| eprintln!("{change:?}"));
                }
                then.map_err(|reason| format!("{}: then {reason}", place()))?;
            }
        }
        Ok(())
    }
}

fn survive(seed: u64, threads: u64, streams: u16, large_percent: u64, steps: u64) {
    let cuts = number("DRUMLIN_TEST_CUTS", 40);
    let seed = seed + number("DRUMLIN_TEST_SEED", 0);
    let workload = Workload { seed, threads, large_percent, relaxed_percent: 15 };
    let mut rig = Rig { workload, streams, states: 0 };
    let first = rig.live(Medium::default(), seed, false, &[], steps).unwrap();
    let mut random = Random(seed);
    let mut moments: Vec<usize> = (0..cuts).map(|_| random.below(first.changes.len() as u64 + 1) as usize).collect();
    // A new database has few early moments, but they matter.
    moments.extend((0..cuts / 4).map(|_| random.below(40) as usize));
    moments.sort_unstable();
    if let Err(reason) = rig.cut(&first, &moments, 1, &mut random) {
        panic!("seed {seed}, {threads} threads, {streams} streams: {reason}");
    }
    println!("{} states of {} changes verified", rig.states, first.changes.len());
}

/// With one thread and one log stream, the database after any cut has all acknowledged commits, possibly the one in
/// flight, and no others.
#[test]
fn a_power_cut_takes_nothing_acknowledged() {
    survive(1, 1, 1, 5, 300);
}

/// With several threads, whose commits share writes and are published together, a cut loses no acknowledged commit.
#[test]
fn a_power_cut_takes_nothing_from_several_threads() {
    survive(2, 4, 1, 3, 120);
}

/// With two log streams, between which a cut may leave a gap, no acknowledged commit is lost.
#[test]
fn a_power_cut_takes_nothing_from_two_logs() {
    survive(3, 4, 2, 3, 120);
}

/// The extents of a large value become durable before the record that refers to them. If most commits have large
/// values, a cut loses no acknowledged commit.
#[test]
fn a_power_cut_takes_no_large_value() {
    survive(4, 2, 1, 60, 80);
}

/// A database that is opened and killed many times, with commits but no checkpoint in between, can still be opened,
/// even if its disk is full at every opening. The superblock has room for 64 openings.
#[test]
fn openings_without_checkpoints_are_not_limited() {
    let mut medium = Medium::default();
    for opening in 0..150u64 {
        let disk = Disk::new(medium, opening);
        let db = config(&disk, 1).open("/db").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        assert_eq!(keyspace.count(..).unwrap(), opening);
        keyspace.insert(opening.to_be_bytes(), b"v").unwrap();
        assert_eq!(db.stats().last_checkpoint.0, 0);
        disk.turn_off();
        medium = disk.medium();
    }
}
