//! Storing a directory tree and extracting it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use walkdir::WalkDir;

use crate::support::Bench;

/// Each path of a tree with its kind and mode, its time if the time is stored, and its content.
type Tree = BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)>;

fn tree(root: &Path) -> Tree {
    let mut found = Tree::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let (path, metadata) = (item.path(), item.metadata().unwrap());
            let content = if metadata.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else if metadata.is_symlink() {
                fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
            } else {
                fs::read(&path).unwrap()
            };
            let below = path.strip_prefix(root).unwrap().to_path_buf();
            found.insert(below, (metadata.mode(), metadata.mtime(), metadata.mtime_nsec(), content));
        }
    }
    found
}

/// Creates a tree with attributes and names that a copy easily loses.
fn awkward(bench: &Bench) -> PathBuf {
    let root = bench.path().join("tree");
    let old = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    bench.write("tree/a.txt", "hello");
    bench.write("tree/sub/large", vec![7u8; 3_000_000]);
    bench.write("tree/sub/none", "");
    bench.write("tree/sub!", "sorts between the folder and what it holds");
    bench.write("tree/dark/secret", "0400");
    let strange = root.join(OsStr::from_bytes(b"line\nand \xff"));
    fs::write(&strange, "strange").unwrap();
    for path in [root.join("a.txt"), strange] {
        File::options().append(true).open(path).unwrap().set_times(FileTimes::new().set_modified(old)).unwrap();
    }
    symlink("a.txt", root.join("link")).unwrap();
    symlink("/nowhere/../at all", root.join("sub/broken")).unwrap();
    fs::create_dir_all(root.join("deep/empty/empty")).unwrap();
    let set_mode = |path: &str, mode| fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
    set_mode("dark/secret", 0o400);
    set_mode("sub/none", 0o755);
    set_mode("deep", 0o1777);
    set_mode("dark", 0o500);
    for folder in ["deep", "sub", "dark", "deep/empty"] {
        File::open(root.join(folder)).unwrap().set_times(FileTimes::new().set_modified(old)).unwrap();
    }
    root
}

/// Contents, kinds, modes, times to the nanosecond and empty directories are restored unchanged.
#[test]
fn a_tree_comes_back_whole() {
    let bench = Bench::new();
    let root = awkward(&bench);
    let summary: serde_json::Value = serde_json::from_str(&bench.ok(&["index", "db", "tree", "--json"])).unwrap();
    assert_eq!((&summary["files_stored"], &summary["directories_stored"]), (&8.into(), &5.into()), "{summary}");
    let summary: serde_json::Value = serde_json::from_str(&bench.ok(&["extract", "db", "new/out", "--json"])).unwrap();
    let (before, after) = (tree(&root), tree(&bench.path().join("new/out")));
    assert!(
        before == after,
        "{:?}",
        before.iter().filter(|item| after.get(item.0) != Some(item.1)).collect::<Vec<_>>()
    );
    assert_eq!((&summary["files"], &summary["symlinks"]), (&6.into(), &2.into()));
    assert_eq!((&summary["directories"], &summary["bytes"]), (&5.into(), &3_000_058.into()));
    let again = bench.ok(&["index", "db", "new/out"]);
    assert!(again.contains("indexed 0 files") && again.contains("8 unchanged"), "{again}");
}

/// Existing files are kept and named, unless replacing them is requested.
#[test]
fn files_that_are_there_are_kept() {
    let bench = Bench::new();
    awkward(&bench);
    bench.ok(&["index", "db", "tree"]);
    bench.write("out/a.txt", "mine");
    bench.write("out/other", "mine too");
    let answer = bench.run(&["extract", "db", "out"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    assert!(answer.stderr.contains("kept a.txt: it exists already"), "{}", answer.stderr);
    assert!(String::from_utf8_lossy(&answer.stdout).contains("1 existing with another content, kept"));
    assert_eq!(fs::read(bench.path().join("out/a.txt")).unwrap(), b"mine");
    bench.ok(&["extract", "db", "out", "--force"]);
    fs::remove_file(bench.path().join("out/other")).unwrap();
    assert!(tree(&bench.path().join("out")) == tree(&bench.path().join("tree")));
}

/// If a run is killed or interrupted at any point, the next run completes the tree: it has all modes and times and no
/// extra files, and the exit code is 0. Running the command again after that changes nothing. A directory that existed
/// before keeps its mode.
#[test]
fn an_interrupted_run_is_completed() {
    let bench = Bench::new();
    let root = awkward(&bench);
    for number in 0..300 {
        bench.write(&format!("tree/many/{}/{number}", number % 20), vec![number as u8; 100_000]);
    }
    let old = UNIX_EPOCH + Duration::new(999_999_999, 1);
    for folder in (0..20).map(|number| format!("many/{number}")).chain(["many".to_owned()]) {
        fs::set_permissions(root.join(&folder), fs::Permissions::from_mode(0o711)).unwrap();
        File::open(root.join(folder)).unwrap().set_times(FileTimes::new().set_modified(old)).unwrap();
    }
    bench.ok(&["index", "db", "tree"]);
    let (expected, out) = (tree(&root), bench.path().join("out"));
    let mut stopped = 0;
    for part in 0..10 {
        let mut extract =
            bench.command(&["extract", "db", "out"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let entries = || if out.exists() { WalkDir::new(&out).into_iter().count() } else { 0 };
        while entries() < expected.len() * part / 9 && extract.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let signal = if part % 2 == 0 { Signal::KILL } else { Signal::INT };
        // This fails if the process has already ended.
        let _ = kill_process(Pid::from_child(&extract), signal);
        stopped += u32::from(extract.wait().unwrap().code() != Some(0));
        bench.ok(&["extract", "db", "out"]);
        let found = tree(&out);
        assert!(
            found == expected,
            "{:?}",
            found.iter().filter(|item| expected.get(item.0) != Some(item.1)).collect::<Vec<_>>()
        );
        fs::remove_dir_all(&out).unwrap();
    }
    assert!(stopped > 3, "{stopped} of 10 runs were stopped");

    fs::create_dir_all(out.join("many/3")).unwrap();
    fs::set_permissions(out.join("many/3"), fs::Permissions::from_mode(0o750)).unwrap();
    bench.ok(&["extract", "db", "out"]);
    let again: serde_json::Value = serde_json::from_str(&bench.ok(&["extract", "db", "out", "--json"])).unwrap();
    assert_eq!((&again["identical"], &again["files"], &again["directories"]), (&308.into(), &0.into(), &0.into()));
    assert_eq!(fs::metadata(out.join("many/3")).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::metadata(out.join("many/4")).unwrap().mode() & 0o7777, 0o711);
}

/// A path selects one file, or a directory with its whole content, but not other names that begin with the same
/// characters.
#[test]
fn a_part_of_a_tree() {
    let bench = Bench::new();
    awkward(&bench);
    bench.ok(&["index", "db", "tree"]);
    bench.ok(&["extract", "db", "sub", "sub/"]);
    let names: Vec<_> = tree(&bench.path().join("sub")).into_keys().collect();
    assert_eq!(names, ["sub", "sub/broken", "sub/large", "sub/none"].map(PathBuf::from));
    bench.ok(&["extract", "db", "one", "line\\nand \\xff"]);
    assert_eq!(tree(&bench.path().join("one")).len(), 1);
    assert!(bench.fails(3, &["extract", "db", "none", "su"]).contains("no file or directory 'su'"));
    bench.ok(&["put", "rows", "a", "1"]);
    assert!(bench.fails(3, &["extract", "rows", "none"]).contains("`drumlin index` stores one"));
    assert!(!bench.path().join("none").exists());
}

/// If rows were not written by `index`, `extract` never writes them outside of the directory or through a link in it,
/// and never with content that differs from the record.
#[test]
fn rows_that_no_index_wrote() {
    let bench = Bench::new();
    bench.write("tree/a.txt", "hello");
    symlink("..", bench.path().join("tree/up")).unwrap();
    bench.ok(&["index", "db", "tree"]);
    let entry = bench.ok(&["get", "db", "-k", "files", "a.txt"]);
    for key in ["../escaped", "/tmp/drumlin-escaped", "up/escaped", "a/../../escaped"] {
        bench.ok(&["put", "db", "-k", "files", key, &entry]);
        bench.ok(&["put", "db", "-k", "contents", key, "hello"]);
    }
    bench.ok(&["put", "db", "-k", "contents", "a.txt", "other"]);
    let answer = bench.run(&["extract", "db", "out"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    assert!(answer.stderr.contains("differs from what was indexed"), "{}", answer.stderr);
    assert!(String::from_utf8_lossy(&answer.stdout).contains("\n5 not written"), "{answer:?}");
    assert_eq!(tree(&bench.path().join("out")).into_keys().collect::<Vec<_>>(), [Path::new("up")]);
    assert!(!bench.path().join("escaped").exists() && !Path::new("/tmp/drumlin-escaped").exists());
    assert!(bench.fails(2, &["extract", "db", "db/out"]).contains("within the database itself"));
}

/// Entries without content are counted by kind and named. If an entry's kind changes, the new entry replaces the old
/// one in the database.
#[test]
fn special_entries_and_changed_kinds() {
    let bench = Bench::new();
    bench.write("tree/a", "file");
    bench.write("tree/b/c", "in a folder");
    let _socket = UnixListener::bind(bench.path().join("tree/socket")).unwrap();
    for name in ["tree/fifo", "tree/fifo 2"] {
        mknodat(CWD, bench.path().join(name), FileType::Fifo, Mode::RWXU, 0).unwrap();
    }
    let answer = bench.run(&["index", "db", "tree"]);
    assert!(String::from_utf8_lossy(&answer.stdout).contains("\n3 skipped: 1 socket, 2 fifos\n"), "{answer:?}");
    assert!(answer.stderr.contains("skipped fifo fifo 2"), "{}", answer.stderr);
    let summary: serde_json::Value = serde_json::from_str(&bench.ok(&["index", "db", "tree", "--json"])).unwrap();
    assert_eq!(summary["skipped"], serde_json::json!({"sockets": 1, "fifos": 2, "devices": 0}));
    let root = bench.path().join("tree");
    fs::remove_file(root.join("a")).unwrap();
    fs::remove_dir_all(root.join("b")).unwrap();
    bench.write("tree/a/d", "now in a folder");
    bench.write("tree/b", "now a file");
    bench.ok(&["index", "db", "tree", "--delete"]);
    for name in ["fifo", "fifo 2", "socket"] {
        fs::remove_file(root.join(name)).unwrap();
    }
    bench.ok(&["extract", "db", "out"]);
    let times_aside = |tree: Tree| tree.into_iter().map(|(path, entry)| (path, entry.3)).collect::<Vec<_>>();
    assert_eq!(times_aside(tree(&bench.path().join("out"))), times_aside(tree(&root)));
}

/// All readable files of a damaged database are extracted. The rest are named, and the exit code indicates the damage.
#[test]
fn a_damaged_tree() {
    let bench = Bench::new();
    // Use bytes that do not compress, so that they can be found in the data file.
    let content = |number: u64| -> Vec<u8> {
        let mut state = number + 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..5000).map(|_| next()).collect()
    };
    (0..300).for_each(|number| drop(bench.write(&format!("tree/{number:03}"), content(number))));
    bench.ok(&["index", "db", "tree"]);
    bench.ok(&["checkpoint", "db"]);
    let data = bench.path().join("db/data");
    let mut bytes = fs::read(&data).unwrap();
    let wanted = &content(77)[2000..2016];
    let found: Vec<usize> = (0..bytes.len() - 16).filter(|&at| bytes[at..at + 16] == *wanted).collect();
    assert!(!found.is_empty(), "the content is in the data file as it is");
    found.into_iter().for_each(|at| bytes[at] ^= 0x55);
    fs::write(&data, bytes).unwrap();
    let answer = bench.run(&["extract", "db", "out", "--json"]);
    assert_eq!(answer.code, Some(4), "{}", answer.stderr);
    let summary: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    let (before, after) = (tree(&bench.path().join("tree")), tree(&bench.path().join("out")));
    assert!(after.iter().all(|(path, entry)| before[path] == *entry));
    assert_eq!((after.len(), after.contains_key(Path::new("077"))), (299, false));
    assert_eq!(summary["files"], after.len());
    assert_eq!(summary["damaged"], 1);
    assert!(answer.stderr.contains("damaged 077: "), "{}", answer.stderr);
}
