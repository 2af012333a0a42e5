//! SIGKILL at random times, repeatedly, on real files.
//!
//! The test starts its own program as a child, which runs the scripted workload and acknowledges commits through a
//! pipe. The parent kills the child and opens the database. It verifies that every acknowledged commit is present and
//! complete, and that the only other commits are those that were in flight. Then the next child continues. The test is
//! quick by default; `DRUMLIN_TEST_KILLS` is the number of kills per configuration (default 6).

use crate::support;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use drumlin::{Config, IoBackend};
use support::workload::{Ack, Workload, disturb};
use support::{Folder, Random, copy_folder, number, small};

/// Passes the child its parameters: path, backend, streams, seed and the steps to start at.
const CHILD_VARIABLE: &str = "DRUMLIN_TEST_KILL_CHILD";

fn config(backend: IoBackend, streams: u16) -> Config {
    small().io_backend(backend).log_streams(streams).checkpoint_log_bytes(512 << 10)
}

fn workload(seed: u64) -> Workload {
    Workload { seed, threads: 4, large_percent: 6, relaxed_percent: 20 }
}

/// This is not a test, but the code of the child process.
#[test]
fn child() {
    let Ok(order) = std::env::var(CHILD_VARIABLE) else { return };
    let mut words = order.split('\n');
    let path = words.next().unwrap();
    let mut numbers = words.map(|word| word.parse::<u64>().unwrap());
    let backend = if numbers.next() == Some(0) { IoBackend::Uring } else { IoBackend::Portable };
    let streams = numbers.next().unwrap() as u16;
    let seed = numbers.next().unwrap();
    let from: Vec<u64> = numbers.collect();
    let db = config(backend, streams).open(path).unwrap();
    let workload = workload(seed);
    workload.prepare(&db).unwrap();
    let tell = |bits: u64| {
        let mut line = b"ack ".to_vec();
        line.extend(format!("{bits:016x}\n").bytes());
        // A single write to a pipe is atomic.
        std::io::stderr().write_all(&line).unwrap();
    };
    tell(u64::MAX);
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| disturb(&db, seed, &stop));
        workload.run_all(&db, &from, u64::MAX >> 8, &|ack| tell(ack.to_bits())).into_iter().for_each(Result::unwrap);
    });
}

/// Runs a child until it is killed. Returns its acknowledgements.
fn run_child(path: &Path, backend: IoBackend, streams: u16, seed: u64, from: &[u64], life: Duration) -> Vec<u64> {
    let order = [u64::from(backend == IoBackend::Portable), u64::from(streams), seed];
    let order = order.iter().chain(from).fold(path.display().to_string(), |order, number| format!("{order}\n{number}"));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--nocapture", "--test-threads=1"])
        .env(CHILD_VARIABLE, order)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        text
    });
    std::thread::sleep(life);
    child.kill().unwrap();
    let status = child.wait().unwrap();
    let text = reader.join().unwrap();
    assert!(status.code().is_none(), "the child ended by itself: {text}");
    // The kill may have truncated the last line.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter_map(|line| Some(u64::from_str_radix(line.strip_prefix("ack ")?, 16).unwrap())).collect()
}

fn survive(backend: IoBackend, streams: u16) {
    let kills = number("DRUMLIN_TEST_KILLS", 6);
    let seed = 17 + number("DRUMLIN_TEST_SEED", 0);
    let mut random = Random(seed);
    let workload = workload(seed);
    let folder = Folder::new();
    let mut next = vec![0; workload.threads as usize];
    let mut prepared = false;
    let mut acked: Vec<Ack> = Vec::new();
    for kill in 0..kills {
        // Some kills happen while the child is opening and recovering the database.
        let life = Duration::from_millis(if random.chance(30) { random.below(60) } else { 100 + random.below(500) });
        let acks = run_child(&folder.path(), backend, streams, seed, &next, life);
        prepared |= acks.contains(&u64::MAX);
        acked.extend(acks.into_iter().filter(|bits| *bits != u64::MAX).map(Ack::from_bits));
        // In half of the cases, verify a copy, so that the next child recovers the files as the kill left them.
        let copy = Folder::new();
        let mut looked_at = folder.path();
        if random.chance(50) {
            copy_folder(&looked_at, &copy.path());
            looked_at = copy.path();
        }
        let db = config(backend, streams).open(looked_at).unwrap();
        match workload.verify(&db, prepared, &acked) {
            Ok(found) => next = found,
            Err(reason) => panic!("{backend:?}, {streams} streams, seed {seed}, kill {kill}: {reason}"),
        }
        for (thread, next) in next.iter().enumerate().filter(|(_, next)| **next > 0) {
            acked.push(Ack { thread: thread as u64, step: next - 1, full: true });
        }
    }
    println!("{kills} kills on {backend:?} with {streams} streams, {} steps", next.iter().sum::<u64>());
}

/// With io_uring, every acknowledged commit survives the kill.
#[cfg(not(drumlin_portable))]
#[test]
fn killed_on_uring() {
    survive(IoBackend::Uring, 1);
}

/// With the portable backend, every acknowledged commit survives the kill.
#[test]
fn killed_on_portable() {
    survive(IoBackend::Portable, 1);
}

/// With two log streams, every acknowledged commit survives the kill.
#[test]
fn killed_with_two_logs() {
    survive(IoBackend::Auto, 2);
}
