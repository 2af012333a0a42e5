//! The lab and the doctor: their reports, the files that they leave behind, and the requests that they refuse.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::Bench;

/// Returns the names of temporary folders that the lab left in the test's folder.
fn left_behind(bench: &Bench) -> Vec<String> {
    let names = fs::read_dir(bench.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("drumlin-lab")).collect()
}

/// An experiment reports its chapter as JSON and as a page, and removes its files.
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
    // The file is larger than memory only if a control group limits the memory.
    if report["memory_limit"].as_str().unwrap().starts_with("a control group") {
        assert!(rows[0]["source"].as_str().unwrap().starts_with("S1"));
    } else {
        let verdicts = chapter["verdicts"].as_array().unwrap();
        let missing = |verdict: &Value| verdict["missing"].as_str().unwrap_or("").contains("a file larger than memory");
        assert!(verdicts.iter().any(missing), "{verdicts:?}");
    }
    // Without the option, the machine's memory is not filled.
    let verdicts = chapter["verdicts"].as_array().unwrap();
    let unasked = |verdict: &&Value| verdict["missing"].as_str().unwrap_or("").starts_with("--fill-memory");
    assert!(verdicts.iter().filter(unasked).count() >= 2, "{verdicts:?}");
    assert!(report["command"].as_str().unwrap().starts_with("drumlin lab random"));
    for field in ["processor", "kernel", "file_system", "mount_options", "drive"] {
        assert!(!report["machine"][field].is_null(), "{field}");
    }
    assert!(!report["memory_limit"].as_str().unwrap().is_empty());
    let page = fs::read_to_string(bench.path().join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.ends_with("</html>\n"));
    assert!(left_behind(&bench).is_empty());
}

/// Mapping a truncated file causes SIGBUS, which kills only the lab's worker process.
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

/// Ctrl-C ends a run immediately, prints the results so far, and removes the run's files.
#[test]
fn an_interrupted_run_reports_and_cleans_up() {
    let bench = Bench::new();
    let child = bench
        .command(&["lab", "calls", "--seconds", "60", "--json", "--path", "."])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(wait_until(|| !left_behind(&bench).is_empty()), "the lab makes a folder");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["interrupted"], true);
    assert!(left_behind(&bench).is_empty());
}

/// Returns the files in a test's folder, including deleted ones, that have loop devices attached.
fn loop_devices(bench: &Bench) -> Vec<String> {
    let folder = bench.path().canonicalize().unwrap().to_string_lossy().into_owned();
    let devices = fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok);
    let backing = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    backing.filter(|file| file.contains(&folder)).collect()
}

/// Returns the number of mounts below a test's folder that a process sees. `process` is an id or `self`.
fn mounts(bench: &Bench, process: &str) -> usize {
    let folder = bench.path().canonicalize().unwrap().to_string_lossy().into_owned();
    let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    mounts.lines().filter(|line| line.contains(&folder)).count()
}

fn wait_until(is_done: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_done() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Starts a run that creates a file system, and waits until it is mounted. Returns `None` if that is not permitted.
fn start_with_a_file_system(bench: &Bench) -> Option<Child> {
    let mut child = bench
        .command(&["lab", "sync", "--quick", "--file-systems", "ext4", "--json", "--path", "."])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let process = child.id().to_string();
    let is_mounted = || !loop_devices(bench).is_empty() && mounts(bench, &process) > 0;
    // Without root or mkfs, the lab continues with the folder's own file system, without a loop device.
    let is_measuring = || {
        let rooms = left_behind(bench).into_iter();
        rooms.map(|room| bench.path().join(room)).any(|room| room.join("sync-0").exists())
    };
    assert!(wait_until(|| is_mounted() || is_measuring()), "a file system is mounted, or the folder is measured");
    if is_mounted() {
        return Some(child);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Ctrl-C during `sync` leaves no mount, no loop device and no file.
#[test]
fn an_interrupted_run_leaves_no_file_system() {
    let bench = Bench::new();
    let Some(mut child) = start_with_a_file_system(&bench) else { return };
    assert_eq!(mounts(&bench, "self"), 0, "the lab's mounts are its own");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // Another program may keep a new device open for a moment.
    assert!(wait_until(|| loop_devices(&bench).is_empty()), "{:?}", loop_devices(&bench));
    assert_eq!(mounts(&bench, "self"), 0);
    assert!(left_behind(&bench).is_empty());
}

/// If a run is killed during `sync`, the kernel removes its mounts and loop devices, and the next run removes its
/// files.
#[test]
fn a_killed_run_leaves_no_file_system() {
    let bench = Bench::new();
    let Some(mut child) = start_with_a_file_system(&bench) else { return };
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(wait_until(|| loop_devices(&bench).is_empty()), "{:?}", loop_devices(&bench));
    assert_eq!(mounts(&bench, "self"), 0);
    let left = left_behind(&bench);
    assert_eq!(left.len(), 1, "{left:?}");
    let mut next = bench
        .command(&["lab", "calls", "--seconds", "60", "--path", "."])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(wait_until(|| !left_behind(&bench).contains(&left[0])), "the next run removes {left:?}");
    kill_process(Pid::from_child(&next), Signal::INT).unwrap();
    assert_eq!(next.wait().unwrap().code(), Some(130));
    assert!(left_behind(&bench).is_empty());
}

/// If the sync of a file system has no effect, the lab measures nothing and says why.
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

/// The doctor's exit code is 0 for a sound database and 1 for a damaged one.
#[test]
fn the_doctor_says_what_is_wrong() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "k", "v"]);
    let answer = bench.run(&["doctor", "db", "--quick", "--json"]);
    let found: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let is_wrong =
        |found: &Value| found["findings"].as_array().unwrap().iter().any(|finding| finding["severity"] == "wrong");
    // A full disk and an in-memory folder count as problems, with any database.
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
