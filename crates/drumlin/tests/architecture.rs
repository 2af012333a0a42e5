//! The arrows of ARCHITECTURE.md, and some of what it says is absent, checked against the sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Each part of the library and the parts that it may name. What is not listed, it may not.
const ARROWS: [(&str, &[&str]); 15] = [
    ("collections", &[]),
    ("sync", &[]),
    ("format", &[]),
    ("witness", &["sync", "format"]),
    ("error", &["format"]),
    ("memory", &["sync"]),
    ("io", &["collections", "witness", "format", "sync"]),
    ("task", &["sync", "io"]),
    ("seglog", &["collections", "witness", "format", "sync", "error", "io"]),
    ("space", &["collections", "witness", "format", "sync", "error", "memory", "io"]),
    ("pool", &["collections", "witness", "format", "sync", "error", "memory", "io", "space"]),
    ("tree", &["collections", "witness", "format", "sync", "task", "error", "space", "pool"]),
    (
        "txn",
        &[
            "collections",
            "witness",
            "format",
            "sync",
            "task",
            "error",
            "memory",
            "io",
            "seglog",
            "space",
            "pool",
            "tree",
        ],
    ),
    (
        "db",
        &[
            "collections",
            "witness",
            "format",
            "sync",
            "task",
            "error",
            "memory",
            "io",
            "seglog",
            "space",
            "pool",
            "tree",
            "txn",
        ],
    ),
    // Built for fuzzing only.
    ("fuzzing", &["format", "io", "tree"]),
];

/// The files that may contain `unsafe`.
const UNSAFE_FILES: [&str; 4] = ["io/buffer.rs", "io/process.rs", "io/uring.rs", "pool/frames.rs"];

/// What reaches around `io` to the outside world.
const AMBIENT: [&str; 8] = [
    "std::fs",
    "Instant::now",
    "SystemTime",
    "thread::spawn",
    "thread::Builder",
    "thread::sleep",
    "thread::park",
    "std::net",
];

fn source_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every source file: its path below `src`, and its text without comments.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![source_dir()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(source_dir()).unwrap().to_str().unwrap().to_owned();
                let text = fs::read_to_string(&path).unwrap();
                // Models are no part of the library.
                let text = text.split("#[cfg(all(test, drumlin_loom))]").next().unwrap();
                let code = text.lines().map(|line| line.split("//").next().unwrap());
                found.push((name, code.collect::<Vec<_>>().join("\n")));
            }
        }
    }
    assert!(found.len() > 50, "the sources are somewhere else");
    found.sort();
    found
}

fn part_of(file: &str) -> &str {
    file.split('/').next().unwrap().trim_end_matches(".rs")
}

/// Modules that are there in tests only.
fn is_test(file: &str) -> bool {
    file.contains("/tests") || file == "format/document.rs"
}

/// The names that follow each `crate::` in the code, those in braces included.
fn names_after<'c>(code: &'c str, path: &str) -> Vec<&'c str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = Vec::new();
    for (at, _) in code.match_indices(path) {
        if code[..at].ends_with(is_name) {
            continue;
        }
        let rest = &code[at + path.len()..];
        match rest.strip_prefix('{') {
            Some(group) => {
                let mut depth = 0;
                let top_level = group.split(|c| {
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    c == ',' && depth == 0 || depth < 0
                });
                names.extend(top_level.map(|name| name.trim().split(|c| !is_name(c)).next().unwrap()));
            }
            None => names.push(rest.split(|c| !is_name(c)).next().unwrap()),
        }
    }
    names
}

/// Parts name only the parts below them.
#[test]
fn arrows_point_down() {
    let mut wrong = Vec::new();
    for (file, code) in sources() {
        let part = part_of(&file);
        if part == "lib" {
            continue;
        }
        let (_, allowed) =
            ARROWS.iter().find(|(name, _)| *name == part).unwrap_or_else(|| panic!("{file} is in no listed part"));
        for path in ["crate::", "super::super::"] {
            for name in names_after(&code, path) {
                let known = ARROWS.iter().any(|(other, _)| *other == name);
                // What `lib.rs` exports is the public face, which is above everything.
                let is_face = path == "crate::" && name.starts_with(char::is_uppercase) && part != "db";
                if is_face || known && name != part && !allowed.contains(&name) {
                    wrong.push(format!("{file} uses {path}{name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "against the arrows of ARCHITECTURE.md:\n{}", wrong.join("\n"));
}

/// Files, time and threads come through `io` alone.
#[test]
fn nothing_is_ambient() {
    let mut wrong = Vec::new();
    for (file, code) in sources() {
        if ["io", "sync"].contains(&part_of(&file)) || is_test(&file) {
            continue;
        }
        let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap();
        wrong.extend(AMBIENT.iter().filter(|what| code.contains(*what)).map(|what| format!("{file} uses {what}")));
    }
    assert!(wrong.is_empty(), "around io:\n{}", wrong.join("\n"));
}

/// Threads wait through `sync` alone.
#[test]
fn waiting_has_one_place() {
    let wrong: Vec<String> = sources()
        .into_iter()
        .filter(|(file, code)| part_of(file) != "sync" && !is_test(file) && code.contains("parking_lot::"))
        .map(|(file, _)| file)
        .collect();
    assert!(wrong.is_empty(), "around sync: {wrong:?}");
}

/// `unsafe` stays in the files that are listed, and the list is not longer than it has to be.
#[test]
fn unsafe_code_is_where_it_is_expected() {
    let allows = |code: &str| code.contains("allow(unsafe_code") || code.contains("expect(unsafe_code");
    let found: Vec<String> =
        sources().into_iter().filter(|(file, code)| !is_test(file) && allows(code)).map(|(file, _)| file).collect();
    assert_eq!(found, UNSAFE_FILES);
}

/// The code map names every folder, and every file it names exists.
#[test]
fn the_code_map_is_true() {
    let text = fs::read_to_string(source_dir().join("../../../ARCHITECTURE.md")).unwrap();
    let map = text.split("## Code map").nth(1).expect("a code map").split("\n## ").next().unwrap();
    let mut named = Vec::new();
    for line in map.lines().filter(|line| line.starts_with("| `")) {
        let name = line.split('`').nth(1).unwrap();
        assert!(source_dir().join(name).exists(), "the code map names {name}, which is not there");
        named.push(name.trim_end_matches('/').to_owned());
    }
    for (file, _) in sources() {
        let is_named = named.iter().any(|name| *name == file || file.starts_with(&format!("{name}/")));
        assert!(is_named || is_test(&file), "the code map does not name {file}");
    }
}
