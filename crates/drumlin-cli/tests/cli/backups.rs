//! Snapshots, backups and restoring from the command line, as docs/backup.md shows them.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::Bench;

fn shop() -> Bench {
    let bench = Bench::new();
    bench.ok(&["put", "shop", "order/7", "three apples"]);
    bench
}

/// Every command in docs/backup.md works, in the order of the page. The restored database has the same keyspaces.
#[test]
fn the_commands_of_the_page_work() {
    let page = include_str!("../../../../docs/backup.md");
    let bench = shop();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_drumlin")).parent().unwrap().to_owned();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let keyspaces = |database: &str| bench.ok(&["scan", database, "--json"]);
    let mut count = 0;
    for block in page.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            let mut shell = Command::new("sh");
            shell.args(["-c", line]).current_dir(bench.path()).env("PATH", &path).stdin(Stdio::null());
            let output = shell.output().unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            let printed = String::from_utf8(output.stdout).unwrap();
            match line {
                "drumlin get shop order/7 --snapshot before-import" => assert_eq!(printed, "three apples"),
                "drumlin count busy-restored -k bench" => assert_eq!(printed.trim(), "20000"),
                "drumlin get restored order/9" => assert_eq!(printed, "ten plums"),
                "drumlin check restored" => assert_eq!(keyspaces("restored"), keyspaces("shop")),
                "drumlin get rewound order/11" => assert_eq!(printed, "two figs"),
                "drumlin get newest order/11" => assert_eq!(printed, "two hundred figs"),
                _ => {}
            }
            count += 1;
        }
    }
    assert!(count > 25, "the page has {count} commands");
    assert_eq!(keyspaces("newest"), keyspaces("shop"));
}

/// A snapshot is listed with the space that it holds, and read by `get`, `scan`, `count` and `dump`.
#[test]
fn snapshots_are_listed_and_read() {
    let bench = shop();
    assert_eq!(bench.ok(&["snapshots", "shop", "--keep", "a"]), "kept \"a\"\n");
    bench.ok(&["put", "shop", "order/8", "a pear"]);
    bench.ok(&["rm", "shop", "order/7"]);
    assert!(bench.fails(1, &["snapshots", "shop", "--keep", "a"]).contains("--drop"));
    assert!(bench.fails(3, &["snapshots", "shop", "--drop", "b"]).contains("drumlin snapshots"));
    assert!(bench.fails(3, &["scan", "shop", "--snapshot", "b"]).contains("\"b\""));
    assert!(bench.fails(3, &["scan", "shop", "--snapshot", "a", "-k", "x"]).contains("it has: default"));
    let listed = bench.ok(&["snapshots", "shop"]);
    assert!(
        listed.contains("space freed") && listed.lines().nth(1).is_some_and(|line| line.ends_with("a")),
        "{listed}"
    );
    let line: serde_json::Value = serde_json::from_str(&bench.ok(&["snapshots", "shop", "--json"])).unwrap();
    assert!(line["name"] == "a" && line["exclusive_bytes"].as_u64().unwrap() > 0, "{line}");
    assert_eq!(bench.ok(&["scan", "shop", "--snapshot", "a"]), "order/7\tthree apples\n");
    assert_eq!(bench.ok(&["count", "shop", "--snapshot", "a"]).trim(), "1");
    assert!(bench.ok(&["dump", "shop", "--snapshot", "a"]).contains("three apples"));
    assert_eq!(bench.ok(&["scan", "shop"]), "order/8\ta pear\n");
    assert_eq!(bench.ok(&["snapshots", "shop", "--drop", "a"]), "dropped \"a\"\n");
    assert_eq!(bench.ok(&["snapshots", "shop", "--json"]), "");
}

/// A backup that is not whole, and a target that is not empty, are refused with the reason.
#[test]
fn unusable_backups_are_refused() {
    let bench = shop();
    bench.ok(&["backup", "shop", "full", "--keep", "a"]);
    bench.ok(&["put", "shop", "order/8", "a pear"]);
    let changes = bench.ok(&["backup", "shop", "changes", "--since", "a", "--json"]);
    let changes: serde_json::Value = serde_json::from_str(&changes).unwrap();
    assert!(changes["since"].is_u64() && changes["verified"] == false, "{changes}");
    assert!(bench.fails(2, &["backup", "shop", "-", "--check"]).contains("drumlin verify -"));
    assert!(bench.fails(3, &["backup", "shop", "x", "--since", "none"]).contains("none"));
    assert!(bench.fails(1, &["backup", "shop", "full"]).contains("another backup"));
    assert!(bench.fails(1, &["restore", "full", "shop"]).contains("not empty"));
    let code = |args: &[&str]| bench.run(args).code;
    let damaged = code(&["verify", "shop"]);
    assert!(bench.fails(damaged.unwrap(), &["restore", "changes", "restored"]).contains("only the changes since"));
    let part = bench.path().join("full/part-000001");
    let mut bytes = fs::read(&part).unwrap();
    bytes[100] ^= 1;
    fs::write(&part, bytes).unwrap();
    assert!(bench.fails(damaged.unwrap(), &["verify", "full"]).contains("part 1"));
    assert!(bench.fails(damaged.unwrap(), &["restore", "full", "changes", "restored"]).contains("part 1"));
    bench.ok(&["backup", "shop", "full", "--keep", "a"]);
    bench.ok(&["restore", "full", "changes", "restored"]);
    assert_eq!(bench.ok(&["count", "restored"]).trim(), "2");
}

/// The file of a stream is not a backup's folder: the hint says how it is read. If what a backup is written to is full,
/// no hint says to remove rows from the database.
#[test]
fn hints_fit_streams_and_their_disks() {
    let bench = shop();
    let stream = bench.run(&["backup", "shop", "-"]).stdout;
    bench.write("a stream", &stream);
    assert!(bench.fails(8, &["verify", "a stream"]).contains("drumlin verify - < 'a stream'"));
    assert!(bench.fails(8, &["restore", "a stream", "restored"]).contains("drumlin restore - DATABASE < 'a stream'"));
    bench.ok_with(&["verify", "-"], &stream);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = bench.command(&["backup", "shop", "-"]).stdout(full).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{message}");
    assert!(message.contains("free space there; then give the command again") && !message.contains("drumlin rm"));
}

/// The scripts in docs/operations.md make a full backup and the next ones, also if they are run again, and keep only
/// the snapshot that the next one needs. What they made can be restored.
#[cfg(unix)]
#[test]
fn the_scripts_for_operators_work() {
    use std::os::unix::fs::PermissionsExt;
    let bench = shop();
    let page = include_str!("../../../../docs/operations.md");
    let scripts: Vec<String> = page
        .split("```sh\n")
        .skip(1)
        .map(|block| block.split_once("```").expect("a block has an end").0)
        .map(|script| script.replace("/var/lib/", "").replace("/var/tmp/", "tmp-").replace("/backup/", "backups/"))
        .collect();
    let [full, next] = &scripts[..] else { panic!("{} scripts", scripts.len()) };
    let date = bench.write("bin/date", "#!/bin/sh\necho $TODAY\n");
    fs::set_permissions(date, fs::Permissions::from_mode(0o755)).unwrap();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_drumlin")).parent().unwrap();
    let path = format!("{}:{}:/usr/bin:/bin", bench.path().join("bin").display(), program.display());
    let run = |script: &str, today: &str| {
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", script]).current_dir(bench.path()).env("PATH", &path).env("TODAY", today);
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{today}: {output:?}");
    };
    let kept = || {
        let lines = bench.ok(&["snapshots", "shop", "--json"]);
        let names = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].clone());
        names.map(|name| name.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (script, today) in [(full, "22"), (full, "22"), (next, "22"), (next, "23"), (next, "24"), (next, "24")] {
        // What an interrupted test of a backup leaves.
        bench.write("tmp-shop-test/data.restored", "");
        run(script, today);
        assert_eq!(kept(), [today]);
        bench.ok(&["put", "shop", &format!("after/{today}"), "1"]);
    }
    bench.ok(&["restore", "backups/22-full", "backups/23", "backups/24", "restored"]);
    assert_eq!(bench.ok(&["count", "restored", "--prefix", "after/"]).trim(), "2");
    run(full, "29");
    assert_eq!(kept(), ["29"]);
}

/// An archive is listed, and one that lacks what is wanted is refused with what it has.
#[test]
fn archives_are_listed_and_refused() {
    let bench = shop();
    bench.ok(&["backup", "shop", "full"]);
    for row in ["a", "b", "c"] {
        bench.ok(&["put", "shop", row, "1", "--archive", "archive"]);
    }
    let line: serde_json::Value = serde_json::from_str(&bench.ok(&["archive", "archive", "--json"])).unwrap();
    let to = line["to"].as_u64().unwrap();
    assert!(line["files"] == 3 && line["commits"] == 3 && line["from"] == to - 3, "{line}");
    assert!(bench.ok(&["archive", "archive"]).starts_with("sound: 3 commits after"));
    let until =
        |until: &str| ["restore", "full", "restored", "--archive", "archive", "--until", until].map(str::to_owned);
    let refused = |arguments: &[String]| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        bench.fails(4, &arguments)
    };
    assert!(refused(&until(&(to + 1).to_string())).contains(&format!("last commit has timestamp {to}")));
    assert!(refused(&until("1")).contains("before the backup"));
    assert!(refused(&until("1999-12-31 23:59")).contains("before the backup"));
    bench.fails(2, &["restore", "full", "restored", "--archive", "archive", "--until", "noon"]);
    bench.fails(2, &["restore", "full", "restored", "--until", "5"]);
    let middle = bench.ok(&["restore", "full", "restored", "--archive", "archive", "--until", &(to - 1).to_string()]);
    assert!(middle.contains("2 commits after the backup"), "{middle}");
    assert_eq!(bench.ok(&["count", "restored"]).trim(), "3");
    let second = fs::read_dir(bench.path().join("archive")).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    let bytes = fs::read(&second).unwrap();
    fs::write(&second, &bytes[..bytes.len() / 2]).unwrap();
    let name = second.file_name().unwrap().to_str().unwrap();
    assert!(bench.fails(4, &["archive", "archive"]).contains(name));
}
