//! The sizes and numbers of files below directories.

use serde_json::{Value, json};

use crate::support::Bench;

fn tree() -> Bench {
    let bench = Bench::new();
    for (path, bytes) in [
        ("a/one", 1000),
        ("a/deep/er/two", 20_000),
        ("a/deep/three", 300_000),
        ("a-b/four", 40),
        ("a.c/five", 5),
        ("six", 600),
        ("a/empty", 0),
    ] {
        bench.write(&format!("tree/{path}"), vec![7u8; bytes]);
    }
    std::fs::create_dir(bench.path().join("tree/nothing")).unwrap();
    bench.ok(&["index", "db", "tree"]);
    bench
}

fn lines(bench: &Bench, args: &[&str]) -> Vec<Value> {
    let text = bench.ok(&[&["du", "db", "--json"][..], args].concat());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn line(path: &str, files: u64, bytes: u64) -> Value {
    json!({ "path": path, "files": files, "bytes": bytes })
}

/// Each directory within the given depth has a line, which includes all files below it. The largest comes first and the
/// total last. A name that sorts between a directory and its content is not counted as part of the directory.
#[test]
fn directories_are_summed() {
    let bench = tree();
    let (a, total) = (line("a", 4, 321_000), line(".", 7, 321_645));
    let children = [a.clone(), line("a-b", 1, 40), line("a.c", 1, 5), line("nothing", 0, 0), total.clone()];
    assert_eq!(lines(&bench, &[]), children);
    assert_eq!(lines(&bench, &["."]), children);
    assert_eq!(lines(&bench, &["-d", "0"]), [total]);
    let deep = [line("a/deep", 2, 320_000), line("a/deep/er", 1, 20_000), a.clone()];
    for path in ["a", "a/"] {
        assert_eq!(lines(&bench, &[path, "--depth", "7"]), deep);
    }
    assert_eq!(lines(&bench, &["nothing"]), [line("nothing", 0, 0)]);
}

/// A prefix that is not a directory selects all paths that begin with it. The path of a file selects that file.
#[test]
fn prefixes_are_summed() {
    let bench = tree();
    let expected = [line("a/deep", 2, 320_000), line("a/de*", 2, 320_000)];
    assert_eq!(lines(&bench, &["a/de"]), expected);
    assert_eq!(lines(&bench, &["si"]), [line("si*", 1, 600)]);
    assert_eq!(lines(&bench, &["six"]), [line("six", 1, 600)]);
}

/// The text form has sizes with units and aligned numbers.
#[test]
fn people_get_units() {
    let bench = tree();
    let expected =
        ["   321 kB  4 files  a", " 40 bytes  1 file   a-b", "  5 bytes  1 file   a.c", "  0 bytes  0 files  nothing"];
    let text = bench.ok(&["du", "db"]);
    assert_eq!(text.lines().take(4).collect::<Vec<_>>(), expected);
    assert_eq!(text.lines().last(), Some("   322 kB  7 files  ."));
}

/// Sums include the changes of a later run of `index`.
#[test]
fn sums_follow_the_tree() {
    let bench = tree();
    bench.write("tree/a/one", vec![1u8; 3000]);
    std::fs::remove_dir_all(bench.path().join("tree/a/deep")).unwrap();
    bench.ok(&["index", "db", "tree", "--delete"]);
    assert_eq!(lines(&bench, &["a"]), [line("a", 2, 3000)]);
}

/// A missing path and a database without a tree end with the code for "not found". A row that was not written by
/// `index` is reported.
#[test]
fn what_is_missing_has_a_code() {
    let bench = tree();
    assert!(bench.fails(3, &["du", "db", "b"]).contains("no path in the tree begins with 'b'"));
    bench.ok(&["put", "rows", "key", "value"]);
    assert!(bench.fails(3, &["du", "rows"]).contains("`drumlin index` stores one"));
    bench.fails(3, &["du", "nowhere"]);
    bench.ok(&["put", "db", "-k", "files", "other", "value"]);
    assert!(bench.fails(1, &["du", "db"]).contains("not written by index"));
}
