//! The lab and the doctor: what they answer, what they leave behind, what they refuse.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::Bench;

/// The lab's own folders in a bench's folder.
fn left_behind(bench: &Bench) -> Vec<String> {
    let names = fs::read_dir(bench.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("drumlin-lab")).collect()
}

/// An experiment answers with its chapter as JSON and as a page, and removes its files.
#[test]
fn an_experiment_reports_and_leaves_nothing() {
    let bench = Bench::new();
    let small = ["--quick", "--seconds", "0.1", "--file", "64MiB", "--memory", "64MiB", "--path", "."];
    let text = bench.ok(&[&["lab", "random", "--json", "--html", "report.html"][..], &small].concat());
    let report: Value = serde_json::from_str(&text).unwrap();
    let chapter = &report["chapters"][0];
    assert_eq!(chapter["name"], "random");
    assert!(chapter["failure"].is_null(), "{chapter}");
    let rows = chapter["tables"][0]["rows"].as_array().unwrap();
    assert!(rows.len() >= 3 && rows[0]["cells"][1].as_f64().unwrap() > 0.0, "{rows:?}");
    assert!(rows[0]["source"].as_str().unwrap().starts_with("S1"));
    assert!(report["command"].as_str().unwrap().starts_with("drumlin lab random"));
    for field in ["processor", "kernel", "file_system", "mount_options", "drive"] {
        assert!(!report["machine"][field].is_null(), "{field}");
    }
    assert!(!report["memory_limit"].as_str().unwrap().is_empty());
    let page = fs::read_to_string(bench.path().join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.ends_with("</html>\n"));
    assert!(left_behind(&bench).is_empty());
}

/// A mapping of a file that was cut short dies of SIGBUS, and only its worker does.
#[test]
fn hazards_are_survived() {
    let bench = Bench::new();
    let text = bench.ok(&["lab", "hazards", "--quick", "--json", "--path", "."]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let rows = report["chapters"][0]["tables"][0]["rows"].as_array().unwrap();
    let told = |part: &str| rows.iter().any(|row| row["cells"][1].as_str().unwrap().contains(part));
    assert!(told("killed by SIGBUS") && told("an error"), "{rows:?}");
    assert!(left_behind(&bench).is_empty());
}

/// Ctrl-C ends a run at once, with what had been measured, and takes the files away.
#[test]
fn an_interrupted_run_reports_and_cleans_up() {
    let bench = Bench::new();
    let child = bench
        .command(&["lab", "calls", "--seconds", "60", "--json", "--path", "."])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while left_behind(&bench).is_empty() {
        assert!(Instant::now() < end, "the lab makes a folder");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["interrupted"], true);
    assert!(left_behind(&bench).is_empty());
}

/// Where a sync does nothing, nothing is measured, and the refusal says why.
#[test]
fn a_file_system_in_memory_is_refused() {
    let bench = Bench::new();
    let memory = "/dev/shm";
    let kind = std::process::Command::new("stat").args(["-f", "-c", "%T", memory]).output();
    if kind.is_ok_and(|answer| answer.stdout.starts_with(b"tmpfs")) {
        let error = bench.fails(1, &["lab", "sync", "--quick", "--path", memory]);
        assert!(error.contains("tmpfs") && error.contains("refused"), "{error}");
    }
    bench.fails(1, &["lab", "sync", "--path", "no/such/folder"]);
}

/// The doctor's exit code says whether something is wrong: nothing with a sound database, something with a damaged one.
#[test]
fn the_doctor_says_what_is_wrong() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "k", "v"]);
    let answer = bench.run(&["doctor", "db", "--quick", "--json"]);
    let found: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let is_wrong =
        |found: &Value| found["findings"].as_array().unwrap().iter().any(|finding| finding["severity"] == "wrong");
    // A full disk or a folder in memory are wrong whatever the database is.
    assert_eq!(answer.code, Some(i32::from(is_wrong(&found))), "{}", answer.stderr);
    let settings: Vec<&str> =
        found["settings"].as_array().unwrap().iter().map(|setting| setting["setting"].as_str().unwrap()).collect();
    assert!(settings.iter().any(|setting| setting.starts_with("sync method")), "{settings:?}");
    fs::write(bench.path().join("db/data"), [0xFF; 8192]).unwrap();
    let damaged = bench.run(&["doctor", "db", "--quick", "--json"]);
    assert_eq!(damaged.code, Some(1), "{}", damaged.stderr);
    assert!(is_wrong(&serde_json::from_slice(&damaged.stdout).unwrap()));
    assert!(left_behind(&bench).is_empty());
}
