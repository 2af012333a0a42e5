//! Measures durable commits per second, and compares them with what the device can do.
//!
//! `cargo run --release --example log_rate -- <folder> [seconds] [committers,…] [streams,…]`

use std::path::PathBuf;
use std::time::Duration;

use drumlin::internals::io::{IoBackend, SyncMethod};
use drumlin::internals::log_measure::{Course, commit_rate, raw_rate};

/// The number of measurements of each rate.
const ROUNDS: usize = 11;

fn numbers(argument: Option<String>, default: &str) -> Vec<usize> {
    argument.unwrap_or(default.to_string()).split(',').map(|word| word.parse().expect("a number")).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().expect("a folder"));
    let seconds: f64 = arguments.next().map_or(0.3, |word| word.parse().expect("seconds"));
    let committers = numbers(arguments.next(), "1,2,8,32");
    let streams = numbers(arguments.next(), "1,2");
    let backend = drumlin::internals::io::backend(IoBackend::Auto).expect("a backend");
    println!("backend {}", backend.name());
    let mut course = Course {
        dir,
        sync: SyncMethod::DurableWrite,
        streams: 1,
        committers: 1,
        body_bytes: 100,
        duration: Duration::from_secs_f64(seconds),
    };
    for &streams in &streams {
        for &committers in committers.iter().filter(|&&committers| committers >= streams) {
            course.streams = streams as u16;
            course.committers = committers;
            // Single runs differ widely if others use the machine, so compare within a round and take medians.
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                let before = raw_rate(&backend, &course).expect("raw rate").commits;
                let rates = commit_rate(&backend, &course).expect("commit rate");
                let after = raw_rate(&backend, &course).expect("raw rate").commits;
                let raw = f64::midpoint(before, after);
                rounds.push((rates.commits / raw, rates.commits, rates.syncs, raw));
            }
            rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
            let (ratio, commits, syncs, raw) = rounds[ROUNDS / 2];
            println!(
                "{streams} streams {committers:3} committers: {ratio:5.2} ({:.2} to {:.2}) of raw; \
                 {commits:7.0} commits/s, {syncs:6.0} writes/s, raw {raw:6.0}/s",
                rounds[0].0,
                rounds[ROUNDS - 1].0
            );
        }
    }
}
