//! The tour of a small tree.

use serde_json::Value;

use crate::support::Bench;

fn tree(bench: &Bench) {
    for number in 0..1500usize {
        let content = vec![number as u8; (number * 37) % 9000];
        bench.write(&format!("tree/{}/{}/{number}.bin", number % 3, number % 17), content);
    }
    bench.write("tree/large.bin", vec![42u8; 6_000_000]);
}

/// The child that loads the tree is killed, every acknowledged file is in the database, a second child completes the
/// load, and the queries return the right answers.
#[test]
fn nothing_is_lost() {
    let bench = Bench::new();
    tree(&bench);
    let report: Value = serde_json::from_str(&bench.ok(&["tour", "tree", "--into", ".", "--json"])).unwrap();
    assert_eq!(report["files"], 1501);
    assert_eq!(report["killed"]["was_killed"], true);
    let proof = &report["recovery"]["proof"];
    assert!(proof["found"].as_u64() >= report["killed"]["acknowledged_files"].as_u64());
    for broken in ["lost", "torn", "different"] {
        assert_eq!(proof[broken], Value::Array(vec![]), "{broken}");
    }
    let finish = &report["finish"];
    assert_eq!(finish["files_stored"].as_u64().unwrap() + finish["files_unchanged"].as_u64().unwrap(), 1501);
    assert_eq!(report["answers"]["largest"][0]["path"], "large.bin");
    assert_eq!(report["answers"]["largest"].as_array().unwrap().len(), 10);
    let answers = &report["answers"];
    assert_eq!(answers["prefix_agrees"], true);
    for seconds in ["count_seconds", "count_again_seconds", "sum_seconds", "sum_again_seconds"] {
        assert!(answers[seconds].as_f64().is_some_and(|seconds| seconds > 0.0), "{answers}");
    }
}

/// The tour's text is short, narrow and, in a pipe, without colours. A second tour replaces only the first tour's
/// database, and the commands that it recommends work.
#[test]
fn the_story() {
    let bench = Bench::new();
    tree(&bench);
    bench.ok(&["tour", "tree", "--into", "."]);
    bench.write("drumlin-tour/notes", "mine");
    let story = bench.ok(&["tour", "tree", "--into", "."]);
    assert!(story.contains("previous tour's database"), "{story}");
    assert!(bench.path().join("drumlin-tour/notes").exists());
    assert!(story.lines().count() <= 60, "{story}");
    let program = env!("CARGO_BIN_EXE_drumlin");
    for line in story.lines().filter(|line| !line.contains(program)) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let commands: Vec<&str> = story.lines().filter_map(|line| line.trim().strip_prefix(program)).collect();
    assert!(commands.len() >= 4, "{story}");
    for command in commands {
        let args: Vec<&str> = command.split_whitespace().map(|word| word.trim_matches('\'')).collect();
        bench.ok(&args);
    }
}

/// If the tour's database is inside the tree, the tour leaves out that database and the previous tour's, and does not
/// count their files.
#[test]
fn a_tour_within_its_tree() {
    let bench = Bench::new();
    tree(&bench);
    for _ in 0..2 {
        let report: Value = serde_json::from_str(&bench.ok(&["tour", ".", "--into", "tree", "--json"])).unwrap();
        // The tour's folder contains a marker file.
        assert_eq!(report["files"], 1502);
        assert_eq!(report["left_out"], serde_json::json!(["tree/drumlin-tour/db"]));
        let finish = &report["finish"];
        assert_eq!(finish["files_stored"].as_u64().unwrap() + finish["files_unchanged"].as_u64().unwrap(), 1502);
        assert_eq!(report["answers"]["prefix_agrees"], true);
        assert!(report["data_file_bytes"].as_u64().unwrap() < 100 << 20);
    }
    let story = bench.ok(&["tour", "tree", "--into", "tree"]);
    assert!(story.contains("the database itself: drumlin-tour/db"), "{story}");
}

/// If the child stores the whole tree before it can be killed midway, the tour says that the tree is too small.
#[test]
fn a_small_tree() {
    let bench = Bench::new();
    bench.write("tree/only", "one file");
    let story = bench.ok(&["tour", "tree", "--into", "."]);
    assert!(story.contains("too small to be killed in the middle"), "{story}");
    let report: Value = serde_json::from_str(&bench.ok(&["tour", "tree", "--into", ".", "--json"])).unwrap();
    assert_eq!(report["killed"]["was_midway"], false);
}

/// A tree without files is reported as such.
#[test]
fn an_empty_tree() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path().join("tree")).unwrap();
    assert!(bench.fails(3, &["tour", "tree", "--into", "."]).contains("no files"));
    bench.fails(7, &["tour", "nowhere"]);
}
