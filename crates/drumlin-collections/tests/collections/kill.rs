//! Kills processes with SIGKILL at random moments, with real files. Afterwards, indexes, views and versions match the
//! documents, whichever operation was interrupted, even if it was the build of an index or view.
//!
//! The test runs itself as a child process, which writes documents and acknowledges each write through a pipe. The
//! parent kills the child after a random number of acknowledgements, opens the database, checks it, and starts the next
//! child. `DRUMLIN_TEST_KILLS` sets the number of kills.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use drumlin::{Config, Durability};
use drumlin_collections::{Collection, Collections, Documents};
use drumlin_testing::Random;

use crate::notes::{self, Note};

const IDS: u64 = 400;

fn config() -> Config {
    Config::new().memory(16 << 20).durability(Durability::Relaxed)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn write<const V: u32>(path: &Path, seed: u64) {
    let db = config().open(path).unwrap();
    let collections = Collections::new(&db);
    let notes = collections.open::<Note<V>>().unwrap();
    let mut random = Random(seed);
    loop {
        notes::change(&notes, &mut random, IDS);
        let drawn: Vec<Note<V>> = (0..random.below(20)).map(|_| notes::draw(&mut random, IDS)).collect();
        let written = collections.transact(|tx| drawn.iter().try_for_each(|note| tx.put(&notes, note)));
        notes::is_expected(written.err());
        println!("done");
        std::io::stdout().flush().unwrap();
    }
}

/// The body of the child process. Does nothing when run as a normal test.
#[test]
fn child() {
    let Ok(path) = std::env::var("DRUMLIN_TEST_CHILD") else { return };
    let (seed, version) = (number("DRUMLIN_TEST_SEED", 0), number("DRUMLIN_TEST_VERSION", 1));
    match version {
        1 => write::<1>(Path::new(&path), seed),
        _ => write::<2>(Path::new(&path), seed),
    }
}

/// Runs a child process and kills it after this number of acknowledgements.
fn run_child(path: &Path, seed: u64, version: u32, acknowledgements: u64) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--nocapture", "--test-threads=1"])
        .env("DRUMLIN_TEST_CHILD", path)
        .env("DRUMLIN_TEST_SEED", seed.to_string())
        .env("DRUMLIN_TEST_VERSION", version.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let done = lines.map(Result::unwrap).filter(|line| line.ends_with("done"));
    // With 0 acknowledgements, the child is killed while it opens the database or just after.
    let seen = done.take(acknowledgements as usize).count() as u64;
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(seen, acknowledgements, "the child ended by itself");
}

fn check<const V: u32>(path: &Path) -> usize
where
    Note<V>: Collection,
{
    let db = config().open(path).unwrap();
    let notes: Documents<Note<V>> = Collections::new(&db).open().unwrap();
    notes.wait_built().unwrap();
    notes::check(&notes.now());
    notes.iter().count()
}

/// Children are killed while they write, and while they rebuild parts for a different version.
#[test]
fn views_survive_kills() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.drumlin");
    let mut random = Random(number("DRUMLIN_TEST_SEED", 0));
    let mut count = 0;
    for kill in 0..number("DRUMLIN_TEST_KILLS", 6) {
        let version = 1 + (random.below(2) as u32);
        run_child(&path, kill, version, random.below(40));
        // In half of the rounds, the parent does not check the files. The next child opens them as the kill left them,
        // possibly with a different version.
        if path.exists() && random.chance(50) {
            count = if random.chance(50) { check::<1>(&path) } else { check::<2>(&path) };
        }
    }
    count += check::<1>(&path);
    assert!(count > 0);
}
