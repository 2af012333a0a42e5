//! Only one process at a time can use a database.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::Bench;

/// A second process is refused with code 5, and the message names the first process.
#[test]
fn a_second_process_sees_the_id_of_the_first() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "a", "1"]);
    let mut first = bench
        .command(&["load", "db", "-", "--format", "csv", "--quiet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = first.stdin.take().unwrap();
    stdin.write_all(b"key,value\n").unwrap();
    let start = Instant::now();
    let refused = loop {
        assert!(start.elapsed() < Duration::from_secs(20), "the first process never opened the database");
        std::thread::sleep(Duration::from_millis(200));
        let answer = bench.run(&["get", "db", "a"]);
        if answer.code != Some(0) {
            break answer;
        }
    };
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    assert!(refused.stderr.contains(&format!("process {}", first.id())), "{}", refused.stderr);
    drop(stdin);
    assert!(first.wait().unwrap().success());
    assert_eq!(bench.ok(&["get", "db", "a"]), "1");
}
