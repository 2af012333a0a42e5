//! Replays the fuzzing corpus, so that fixed bugs stay fixed.

use std::fs;
use std::path::{Path, PathBuf};

use drumlin_fuzz::TARGETS;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Every input of every target runs without a panic, and every target has inputs.
#[test]
fn the_corpus_holds() {
    for (target, run) in TARGETS {
        let mut count = 0;
        for entry in fs::read_dir(corpus(target)).unwrap_or_else(|error| panic!("the corpus of {target}: {error}")) {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let outcome = std::panic::catch_unwind(|| run(&bytes));
            assert!(outcome.is_ok(), "{} fails", path.display());
            count += 1;
        }
        assert!(count > 0, "no inputs for {target}");
        println!("{target}: {count} inputs");
    }
}

/// Each target has a file for libFuzzer, and each file has a target.
#[test]
fn every_target_is_fuzzed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
    let mut found: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    found.sort_unstable();
    assert_eq!(found, TARGETS.map(|(target, _)| target));
}

/// The corpus has samples of everything that the encoders write, so that fuzzing the decoders starts from valid bytes.
/// If `DRUMLIN_FUZZ_SAMPLES` is set, the test writes the samples.
#[test]
fn the_corpus_has_the_samples() {
    for (number, (target, bytes)) in drumlin::fuzzing::samples().into_iter().enumerate() {
        let path = corpus(target).join(format!("sample-{number}"));
        if std::env::var_os("DRUMLIN_FUZZ_SAMPLES").is_some() {
            fs::create_dir_all(corpus(target)).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        assert!(fs::read(&path).is_ok_and(|kept| kept == bytes), "{} is out of date", path.display());
    }
}

/// However a script damages change files, the reader keeps its promises.
#[test]
fn damaged_change_files_are_read_up_to_the_damage() {
    let mut random = drumlin_testing::Random(1);
    for _ in 0..20_000 {
        let mut script: Vec<u8> = (0..1 + random.next() % 12).map(|_| random.next() as u8).collect();
        script[0] = 0;
        drumlin::fuzzing::changes(&script);
    }
}

/// Returns the number of random inputs for a test: `DRUMLIN_FUZZ_RUNS`, or this number.
fn run_count(usual: u64) -> u64 {
    std::env::var("DRUMLIN_FUZZ_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// However a script damages a folder of logs, opening it fails or finds the logs as they were at some time.
#[test]
fn damaged_folders_of_logs_are_refused_or_sound() {
    for seed in 0..run_count(1000) {
        let mut random = drumlin_testing::Random(seed);
        let script: Vec<u8> = (0..10 + random.next() % 30).map(|_| random.next() as u8).collect();
        let outcome = std::panic::catch_unwind(|| drumlin_fuzz::logs::run(&script));
        assert!(outcome.is_ok(), "seed {seed}: {script:?}");
    }
}

/// Random changes of the samples never make a decoder of logs panic.
#[test]
fn changed_samples_of_logs_are_decoded() {
    let samples: Vec<Vec<u8>> = drumlin::fuzzing::samples()
        .into_iter()
        .filter(|(target, _)| *target == "logs")
        .map(|(_, bytes)| bytes)
        .collect();
    assert!(!samples.is_empty(), "there are no samples");
    for seed in 0..run_count(20_000) {
        let mut random = drumlin_testing::Random(seed);
        let mut bytes = samples[random.index(samples.len())].clone();
        bytes[0] = if random.one_in(8) { random.next() as u8 } else { bytes[0] };
        for _ in 0..random.below(6) {
            let at = random.index(bytes.len());
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = [0, 1, 127, 255][random.index(4)],
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, random.next() as u8),
            }
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
        let outcome = std::panic::catch_unwind(|| drumlin::fuzzing::logs(&bytes));
        assert!(outcome.is_ok(), "seed {seed}: {bytes:?}");
    }
}
