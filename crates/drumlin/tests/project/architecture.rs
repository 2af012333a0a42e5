//! Checks the sources against the arrows of ARCHITECTURE.md and some of its claims that something is absent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each part of the library, with all parts that its code may name. `sync` is a module of drumlin-io.
const ARROWS: [(&str, &[&str]); 21] = [
    ("hash", &[]),
    ("sync", &[]),
    ("format", &[]),
    ("coverage", &["sync", "format"]),
    ("error", &["format"]),
    ("memory", &["sync"]),
    ("io", &["sync"]),
    ("task", &["sync", "io"]),
    ("seglog", &["hash", "coverage", "format", "sync", "error", "io"]),
    ("logs", &["coverage", "format", "sync", "task", "error", "io", "seglog"]),
    ("space", &["hash", "coverage", "format", "sync", "error", "memory", "io"]),
    ("pool", &["hash", "coverage", "format", "sync", "task", "error", "memory", "io", "space"]),
    ("tree", &["hash", "coverage", "format", "sync", "task", "error", "memory", "space", "pool"]),
    ("counts", &["hash", "coverage", "format", "sync", "task", "error", "memory", "space", "pool", "tree"]),
    (
        "txn",
        &[
            "hash", "coverage", "format", "sync", "task", "error", "memory", "io", "seglog", "space", "pool", "tree",
            "counts",
        ],
    ),
    ("load", &["+txn"]),
    ("feed", &["coverage", "format", "sync", "error", "memory", "io", "seglog"]),
    ("archive", &["+tree", "seglog", "io", "feed"]),
    ("store", &["+load", "feed", "archive"]),
    ("db", &["+store"]),
    ("rescue", &["+db"]),
];

/// Returns the parts that this part is allowed to use. `+txn` in the list stands for `txn` and everything that `txn`
/// may use.
fn arrows_of(part: &str) -> Option<Vec<&'static str>> {
    let (_, names) = ARROWS.iter().find(|(name, _)| *name == part)?;
    let mut parts = Vec::new();
    for name in *names {
        match name.strip_prefix('+') {
            Some(lower) => {
                parts.push(lower);
                parts.extend(arrows_of(lower)?);
            }
            None => parts.push(*name),
        }
    }
    Some(parts)
}

/// The files that are allowed to contain `unsafe`, starting with those of drumlin-io.
const UNSAFE_FILES: [&str; 5] = [
    "drumlin-io/backend/buffer.rs",
    "drumlin-io/backend/process.rs",
    "drumlin-io/backend/uring.rs",
    "pool/frames.rs",
    "task/rooted.rs",
];

/// The files of drumlin-io that access the operating system.
const OUTSIDE: [&str; 8] = [
    "drumlin-io/backend/disk.rs",
    "drumlin-io/backend/memory.rs",
    "drumlin-io/backend/portable.rs",
    "drumlin-io/backend/select.rs",
    "drumlin-io/backend/uring.rs",
    "drumlin-io/medium.rs",
    "drumlin-io/sync/",
    "drumlin-io/testing/",
];

/// The parts that must assert their invariants, and the minimum number of assertions per thousand functions. Raise a
/// minimum only with assertions about facts that are not obvious. A filler is worse than no assertion.
const ASSERTIONS: [(&str, usize); 7] =
    [("pool", 500), ("space", 500), ("txn", 500), ("seglog", 500), ("tree", 500), ("counts", 420), ("load", 500)];

/// Names that bypass `io` and access the operating system directly.
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
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../drumlin/src")
}

/// Returns every source file of the library: its path below `src`, and its text without comments.
fn sources() -> Vec<(String, String)> {
    let found = sources_in(&source_dir());
    assert!(found.len() > 50, "the sources are somewhere else");
    found
}

fn io_dir() -> PathBuf {
    source_dir().join("../../drumlin-io/src")
}

/// Returns every source file of the library and of drumlin-io; the paths of drumlin-io's files begin with
/// `drumlin-io/`.
fn sources_with_io() -> Vec<(String, String)> {
    let found = sources_in(&io_dir());
    assert!(found.len() > 15, "the sources of drumlin-io are somewhere else");
    let found = found.into_iter().map(|(file, code)| (format!("drumlin-io/{file}"), code));
    found.chain(sources()).collect()
}

/// Returns every source file of a folder: its path below the folder, and its text without comments.
fn sources_in(root: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                let text = fs::read_to_string(&path).unwrap();
                // Loom models are not part of the library.
                let text = text.split("#[cfg(all(test, drumlin_loom))]").next().unwrap();
                let code = text.lines().map(|line| line.split("//").next().unwrap());
                found.push((name, code.collect::<Vec<_>>().join("\n")));
            }
        }
    }
    found.sort();
    found
}

fn part_of(file: &str) -> &str {
    file.split('/').next().unwrap().trim_end_matches(".rs")
}

/// Returns `true` for modules that exist only in tests.
fn is_test(file: &str) -> bool {
    file.contains("/tests") || file == "format/document.rs"
}

/// Returns a file's code without the unit tests at its end.
fn without_tests(code: &str) -> &str {
    code.split("#[cfg(test)]\nmod tests {").next().unwrap()
}

/// Returns the names that follow each `path` in the code, including those in braces.
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
                let depth_after = |depth: i32, c: char| depth + i32::from(c == '{') - i32::from(c == '}');
                let mut depth = 0;
                let is_end = |c: char| {
                    depth = depth_after(depth, c);
                    depth < 0
                };
                let group = &group[..group.find(is_end).expect("a group in braces ends")];
                let mut depth = 0;
                let top_level = group.split(|c| {
                    depth = depth_after(depth, c);
                    c == ',' && depth == 0
                });
                names.extend(top_level.map(|name| name.trim().split(|c| !is_name(c)).next().unwrap()));
            }
            None => names.push(rest.split(|c| !is_name(c)).next().unwrap()),
        }
    }
    names
}

/// Each part uses only parts below it.
#[test]
fn arrows_point_down() {
    let mut wrong = Vec::new();
    for (file, code) in sources() {
        let part = part_of(&file);
        if part == "lib" {
            continue;
        }
        let allowed = arrows_of(part).unwrap_or_else(|| panic!("{file} is in no listed part"));
        for path in ["crate::", "super::super::"] {
            for name in names_after(&code, path) {
                let known = ARROWS.iter().any(|(other, _)| *other == name);
                if known && name != part && !allowed.contains(&name) {
                    wrong.push(format!("{file} uses {path}{name}"));
                }
            }
        }
        // The exports of `lib.rs` are the public API, which is above all parts.
        let types = names_after(without_tests(&code), "crate::").into_iter().filter(|_| !is_test(&file));
        let types = types.filter(|name| name.starts_with(char::is_uppercase));
        wrong.extend(types.map(|name| format!("{file} uses crate::{name}")));
    }
    assert!(wrong.is_empty(), "against the arrows of ARCHITECTURE.md:\n{}", wrong.join("\n"));
}

/// Files, time and threads are accessed only through a backend of drumlin-io.
#[test]
fn nothing_is_ambient() {
    let mut wrong = Vec::new();
    for (file, code) in sources_with_io() {
        if OUTSIDE.iter().any(|outside| file.starts_with(outside)) || is_test(&file) {
            continue;
        }
        let code = without_tests(&code);
        wrong.extend(AMBIENT.iter().filter(|what| code.contains(*what)).map(|what| format!("{file} uses {what}")));
    }
    assert!(wrong.is_empty(), "around io:\n{}", wrong.join("\n"));
}

/// Threads wait only through `sync`.
#[test]
fn waiting_has_one_place() {
    let wrong: Vec<String> = sources_with_io()
        .into_iter()
        .filter(|(file, code)| {
            !file.starts_with("drumlin-io/sync/") && !is_test(file) && code.contains("parking_lot::")
        })
        .map(|(file, _)| file)
        .collect();
    assert!(wrong.is_empty(), "around sync: {wrong:?}");
}

/// `unsafe` appears only in the listed files, and every listed file needs it.
#[test]
fn unsafe_code_is_where_it_is_expected() {
    let allows = |code: &str| code.contains("allow(unsafe_code") || code.contains("expect(unsafe_code");
    let found: Vec<String> = sources_with_io()
        .into_iter()
        .filter(|(file, code)| !is_test(file) && allows(code))
        .map(|(file, _)| file)
        .collect();
    assert_eq!(found, UNSAFE_FILES);
}

/// Returns the names in the first column of a Markdown table: all words in backticks.
fn names_in_table(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let column = line[2..].split(" | ").next().unwrap();
        names.extend(column.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    names
}

/// Returns the names in the table of files in a folder's README, or `None` if there is no such table.
fn files_table(folder: &Path) -> Option<Vec<String>> {
    let text = fs::read_to_string(folder.join("README.md")).ok()?;
    let table = text.split("\n## Files\n").nth(1)?.split("\n## ").next().unwrap().to_owned();
    Some(names_in_table(&table))
}

/// The code map names every top-level file and folder, and every name in it exists. A folder whose README has a table
/// of its files is one row of the map. For every other folder, the map names each file.
#[test]
fn the_code_map_is_true() {
    let text = fs::read_to_string(source_dir().join("../../../ARCHITECTURE.md")).unwrap();
    let map = text.split("## Code map").nth(1).expect("a code map").split("\nThe other crates").next().unwrap();
    let named = names_in_table(map);
    for name in &named {
        let path = if name == "drumlin-io/" { io_dir() } else { source_dir().join(name) };
        assert!(path.exists(), "the code map names {name}, which is not there");
        assert!(!path.is_dir() || files_table(&path).is_some(), "{name} has no table of its files");
        assert_eq!(name.find('/').map(|at| at + 1), path.is_dir().then_some(name.len()), "{name} is not a row");
    }
    for (file, _) in sources_with_io() {
        let is_named = |name: &String| *name == file || name.ends_with('/') && file.starts_with(name);
        assert!(named.iter().any(is_named) || is_test(&file), "the code map does not name {file}");
    }
}

/// The README of a folder ends with a table of the folder's files and subfolders. The table names all of them, and each
/// file of a subfolder, except for tests, and nothing else.
#[test]
fn the_tables_of_files_are_true() {
    let mut count = 0;
    let entries = [source_dir(), io_dir()].into_iter().flat_map(|root| fs::read_dir(root).unwrap());
    let folders = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    for folder in folders.chain([io_dir()]) {
        let Some(named) = files_table(&folder) else { continue };
        count += 1;
        let shown = folder.display();
        for name in &named {
            let path = folder.join(name);
            assert!(path.exists() && path.is_dir() == name.ends_with('/'), "{shown}/README.md: {name} is not there");
        }
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap()) {
            let mut name = entry.file_name().into_string().unwrap();
            if entry.path().is_dir() {
                name.push('/');
            }
            let is_exempt = ["README.md", "tests.rs", "tests/"].contains(&&*name);
            assert!(is_exempt || named.contains(&name), "{shown}/README.md does not name {name}");
        }
        // The folders of drumlin-io have separate tables.
        let nested = sources_in(&folder).into_iter().map(|(file, _)| file).filter(|_| folder != io_dir());
        let nested = nested.filter(|file| file.contains('/'));
        for file in nested.filter(|file| !is_test(&format!("/{file}"))) {
            assert!(named.contains(&file), "{shown}/README.md does not name {file}");
        }
    }
    assert!(count >= 19, "{count} folders have a table of their files");
}

/// Returns the length of the item, field or statement at the beginning of a piece of code.
fn item_length(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return at,
            ')' | ']' => depth -= 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            ';' | ',' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// Returns a file's code without the items that are compiled only in tests.
fn without_test_items(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = without_tests(code);
    while let Some((before, after)) = rest.split_once("#[cfg(test)]") {
        kept.push_str(before);
        rest = after.trim_start();
        while rest.starts_with("#[") {
            rest = rest.split_once("]\n").expect("an item after its attributes").1.trim_start();
        }
        rest = &rest[item_length(rest)..];
    }
    kept + rest
}

/// Returns the code with empty string literals.
fn without_strings(code: &str) -> String {
    let mut kept = String::new();
    let mut is_string = false;
    for line in code.lines() {
        let mut before = [' ', ' '];
        for c in line.chars() {
            let is_quote = c == '"' && before[1] != '\'' && (before[1] != '\\' || before[0] == '\\');
            is_string ^= is_quote;
            if is_quote || !is_string {
                kept.push(c);
            }
            before = [before[1], c];
        }
        // A literal continues after a backslash. Without one, the rest of the literal was cut off as if it were a
        // comment.
        is_string &= line.ends_with('\\');
        kept.push('\n');
    }
    kept
}

/// A module of a crate: the file that contains it, and its code without its inline modules.
struct Module {
    file: String,
    code: String,
}

/// Returns a crate's modules by path, except those that exist only in tests.
fn modules(krate: &Path) -> BTreeMap<Vec<String>, Module> {
    let root = if krate.join("src/lib.rs").exists() { "lib" } else { "main" };
    let mut modules = BTreeMap::new();
    for (file, code) in sources_in(&krate.join("src")) {
        let mut path: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if path.last().is_some_and(|name| name == "mod" || path.len() == 1 && name == root) {
            path.pop();
        }
        if !is_test(&file) {
            add_module(&mut modules, path, &file, without_test_items(&without_strings(&code)));
        }
    }
    modules
}

/// Adds a module and its inline modules.
fn add_module(modules: &mut BTreeMap<Vec<String>, Module>, path: Vec<String>, file: &str, mut code: String) {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut from = 0;
    while let Some(at) = code[from..].find("mod ").map(|at| from + at) {
        from = at + "mod ".len();
        let name: String = code[from..].chars().take_while(|c| is_name(*c)).collect();
        let begin = from + name.len();
        if code[..at].ends_with(is_name) || name.is_empty() || !code[begin..].starts_with(" {") {
            continue;
        }
        let end = begin + item_length(&code[begin..]);
        let inner = code[begin + " {".len()..end].to_owned();
        code.replace_range(at..end, "");
        from = at;
        add_module(modules, [&*path, &[name]].concat(), file, inner);
    }
    modules.insert(path, Module { file: file.to_owned(), code });
}

/// Returns the paths that a piece of code names. A group in braces names each of its members: `a::{b, c::d}` names
/// `a::b` and `a::c::d`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut groups: Vec<Vec<String>> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let mut rest = code;
    while let Some(c) = rest.chars().next() {
        if is_name(c) {
            let (name, after) = rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len()));
            path.push(name.to_owned());
            rest = after;
            if let Some(after) = rest.strip_prefix("::") {
                rest = after;
                if let Some(after) = rest.strip_prefix('{') {
                    groups.push(groups.last().cloned().unwrap_or_default().into_iter().chain(path.drain(..)).collect());
                    rest = after;
                }
                continue;
            }
        } else {
            rest = &rest[c.len_utf8()..];
        }
        // A path ends at a name that is not followed by `::`, and at any other token.
        if !path.is_empty() {
            found.push(groups.last().cloned().unwrap_or_default().into_iter().chain(path.drain(..)).collect());
        }
        match c {
            '}' => drop(groups.pop()),
            '{' => groups.push(Vec::new()),
            _ => {}
        }
    }
    found
}

/// Returns the `use` statements of a file, from `use` to the semicolon, and whether each is public.
fn uses(code: &str) -> Vec<(bool, &str)> {
    let starts = code.match_indices("use ").filter(|(at, _)| {
        let line = code[..*at].rsplit('\n').next().unwrap().trim();
        line.is_empty() || line == "pub" || line.starts_with("pub(") && line.ends_with(')')
    });
    let uses = starts.map(|(at, _)| {
        let is_public = !code[..at].rsplit('\n').next().unwrap().trim().is_empty();
        (is_public, code[at..].split(';').next().unwrap())
    });
    uses.collect()
}

/// A crate's modules, and the names that each module imports.
struct Crate {
    modules: BTreeMap<Vec<String>, Module>,
    imports: BTreeMap<(Vec<String>, String), Vec<String>>,
}

impl Crate {
    fn new(modules: BTreeMap<Vec<String>, Module>) -> Self {
        let mut imports = BTreeMap::new();
        for (module, Module { code, .. }) in &modules {
            for mut path in uses(code).into_iter().flat_map(|(_, statement)| paths(statement)) {
                path.pop_if(|name| name == "self");
                if path.len() > 1 {
                    imports.insert((module.clone(), path.last().unwrap().clone()), path);
                }
            }
        }
        Self { modules, imports }
    }

    /// Returns the module that defines the item named by a path in `module`, following imports and re-exports. Returns
    /// `None` if the path leads out of the crate or names a module.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<&[String]> {
        let (first, mut rest) = path.split_first()?;
        let mut at = module.to_vec();
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            _ if self.modules.contains_key(&[module, std::slice::from_ref(first)].concat()) => at.push(first.clone()),
            _ => {
                let import = self.imports.get(&(at, first.clone())).filter(|import| import[0] != *first)?;
                return self.resolve(module, &[import, rest].concat());
            }
        }
        while let Some((name, after)) = rest.split_first() {
            match name.as_str() {
                "self" => {}
                "super" => drop(at.pop()),
                _ => {
                    at.push(name.clone());
                    if !self.modules.contains_key(&at) {
                        at.pop();
                        return match self.imports.get(&(at.clone(), name.clone())) {
                            Some(import) if at != module => self.resolve(&at, &[import, after].concat()),
                            _ => self.modules.get_key_value(&at).map(|(at, _)| &**at),
                        };
                    }
                }
            }
            rest = after;
        }
        None
    }

    /// Returns, for each file, the other files that it uses: those that define the items that it names by path or
    /// imports. A re-export is not a use.
    fn arrows(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (module, Module { file, code }) in &self.modules {
            let named = paths(code);
            let statements = uses(code);
            let exports = statements.iter().filter(|(is_public, _)| *is_public);
            let exports: BTreeSet<Vec<String>> = exports.flat_map(|(_, statement)| paths(statement)).collect();
            let mut rest = code.clone();
            for (_, statement) in &statements {
                rest = rest.replacen(statement, "", 1);
            }
            let is_declaration = |line: &&str| line.contains("mod ") && line.ends_with(';');
            let rest: Vec<&str> = rest.lines().filter(|line| !is_declaration(line)).collect();
            let names: BTreeSet<String> = paths(&rest.join("\n")).into_iter().flatten().collect();
            let is_export = |path: &Vec<String>| exports.contains(path) && !names.contains(path.last().unwrap());
            let used = named.iter().filter(|path| path.len() > 1 && !is_export(path));
            let definers = used.filter_map(|path| self.resolve(module, path)).map(|other| &*self.modules[other].file);
            arrows.entry(file).or_default().extend(definers.filter(|other| *other != file));
        }
        arrows
    }
}

/// Uses are found through imports, re-exports and inline modules, and lead to the file that defines the name.
#[test]
fn uses_lead_to_the_definition() {
    let files = [
        ("part/mod.rs", "mod low;\nmod high;\npub(crate) use low::{Low, Other};\nfn of() -> Other { todo() }"),
        ("part/low.rs", "pub(crate) struct Low;\nmod inner {\n use super::super::high::Rest;\n}"),
        (
            "part/high.rs",
            "use super::Low;\nfn high(at: crate::part::Other) {\n \"crate::part::of\";\n}\n\
            #[cfg(test)]\nfn only() { super::of() }",
        ),
        ("other.rs", "use crate::part;\nfn other() { part::of(); }"),
    ];
    let mut modules = BTreeMap::new();
    for (file, code) in files {
        let path = file.trim_end_matches(".rs").trim_end_matches("/mod").split('/').map(str::to_owned);
        add_module(&mut modules, path.collect(), file, without_test_items(&without_strings(code)));
    }
    let krate = Crate::new(modules);
    let arrows = krate.arrows();
    let pairs = arrows.iter().flat_map(|(file, others)| others.iter().map(|other| (*file, *other)));
    let expected = [
        ("other.rs", "part/mod.rs"),
        ("part/high.rs", "part/low.rs"),
        ("part/low.rs", "part/high.rs"),
        ("part/mod.rs", "part/low.rs"),
    ];
    assert_eq!(pairs.collect::<Vec<_>>(), expected);
    assert_eq!(circles(&arrows), [("part/high.rs", "part/low.rs"), ("part/low.rs", "part/high.rs")]);
}

/// Returns the uses that are part of a cycle, as pairs of files.
fn circles<'f>(arrows: &BTreeMap<&'f str, BTreeSet<&'f str>>) -> Vec<(&'f str, &'f str)> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in arrows.keys() {
        let mut stack = vec![*file];
        let others = reached.entry(file).or_default();
        while let Some(next) = stack.pop() {
            stack.extend(arrows[next].iter().filter(|other| others.insert(other)));
        }
    }
    let pairs = arrows.iter().flat_map(|(file, others)| others.iter().map(|other| (*file, *other)));
    pairs.filter(|(file, other)| reached[other].contains(file)).collect()
}

/// No two files of a crate use each other, directly or indirectly. In the engine and drumlin-io, a `mod.rs` is treated
/// as a separate file. In the other crates, it counts as one with the files of its folder.
#[test]
fn files_form_no_circles() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(source_dir().join("../..")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let krate = Crate::new(modules(&folder));
        let mut arrows = krate.arrows();
        if !["drumlin", "drumlin-io"].contains(&&*name) {
            let contains = |other: &str, file: &str| {
                let module = other.trim_end_matches(".rs").trim_end_matches("mod");
                ["lib", "main"].contains(&module) || file.starts_with(module)
            };
            arrows.iter_mut().for_each(|(file, others)| others.retain(|other| !contains(other, file)));
        }
        wrong.extend(circles(&arrows).into_iter().map(|(file, other)| format!("{name}: {file} uses {other}")));
    }
    assert!(wrong.is_empty(), "circles of files:\n{}", wrong.join("\n"));
}

/// Returns `true` if the table has the row of `above` before that of `below`, or `None` if a row is missing. If a file
/// is in a subfolder that does not contain the other file, the row of the subfolder counts.
fn is_above(table: &[String], above: &str, below: &str) -> Option<bool> {
    let common = above.char_indices().zip(below.chars()).take_while(|((_, a), b)| a == b).last();
    let common = above[..common.map_or(0, |((at, _), _)| at + 1)].rfind('/').map_or(0, |at| at + 1);
    let row = |file: &str| {
        let end = file[common..].find('/').map_or(file.len(), |at| common + at + 1);
        table.iter().position(|name| *name == file[..end])
    };
    Some(row(above)? < row(below)?)
}

/// Each file of a folder uses only files that are below it in the table of files in the folder's README.
///
/// A file uses another file if it names by path, or imports, something that the other file defines: a type, a function,
/// a constant or a trait. A `mod.rs` is treated as a separate file; its module declarations and re-exports are not
/// uses. Unit tests do not count. An `impl` block for a type uses the file that defines the type. The test sees only
/// names: a method call such as `self.sync()` does not reveal which file defines the method.
#[test]
fn files_use_files_below_them() {
    let mut wrong = Vec::new();
    for source in [source_dir(), io_dir()] {
        let krate = Crate::new(modules(source.parent().unwrap()));
        let arrows = krate.arrows();
        let entries = fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path());
        for folder in entries.chain([source.clone()]) {
            let Some(table) = files_table(&folder) else { continue };
            let is_root = folder == source;
            let name =
                if is_root { String::new() } else { format!("{}/", folder.file_name().unwrap().to_str().unwrap()) };
            for (file, others) in &arrows {
                let Some(file) = file.strip_prefix(&*name).filter(|file| *file != "tests.rs") else { continue };
                let others = others.iter().filter_map(|other| other.strip_prefix(&*name));
                // Files of the same subfolder are ordered by that folder's own table.
                let others = others.filter(|other| !is_root || other.split('/').next() != file.split('/').next());
                for other in others {
                    match is_above(&table, file, other) {
                        Some(true) => {}
                        Some(false) => wrong.push(format!("{name}{file} uses {other}, which is above it")),
                        None => wrong.push(format!("{name}README.md lacks a row for {file} or {other}")),
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "against the order of files:\n{}", wrong.join("\n"));
}

/// Returns the first function named in each step of a numbered list.
fn steps(list: &str) -> Vec<String> {
    let step = |line: &str| {
        let (number, rest) = line.trim_start_matches("//! ").split_once(". `")?;
        number.parse::<usize>().ok()?;
        rest.split_once('`').map(|(name, _)| name.to_owned())
    };
    list.lines().filter_map(step).collect()
}

/// Returns a section of ARCHITECTURE.md.
fn section(title: &str) -> String {
    let text = fs::read_to_string(source_dir().join("../../../ARCHITECTURE.md")).unwrap();
    text.split(title).nth(1).expect("the section is there").split("\n## ").next().unwrap().to_owned()
}

/// Returns the body of a method in a source file.
fn body(source: &str, name: &str) -> String {
    let rest = source.split(&format!(" fn {name}(")).nth(1).unwrap_or_else(|| panic!("no method {name}"));
    rest.split("\n    }").next().unwrap().to_owned()
}

/// ARCHITECTURE.md lists the steps of a checkpoint in the order in which they are called.
#[test]
fn the_steps_of_a_checkpoint_are_documented_in_order() {
    let told = steps(&section("## The life of a checkpoint"));
    let read = |file: &str| fs::read_to_string(source_dir().join(file)).unwrap();
    let store = read("store/checkpoint.rs");
    // Inline the call of one function into the other.
    let called = body(&store, "checkpoint_of").replace("self.make_checkpoint(", &body(&store, "make_checkpoint"));
    let places: Vec<usize> = told
        .iter()
        .map(|name| {
            let is_call = |at: &usize| !called[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let call = format!("{name}(");
            let mut calls = called.match_indices(&call).map(|(at, _)| at).filter(is_call);
            calls.next().unwrap_or_else(|| panic!("a checkpoint does not call {name}"))
        })
        .collect();
    assert!(told.len() == 13 && places.is_sorted(), "{told:?} at {places:?}");
}

/// The comment at the top of recovery's file and ARCHITECTURE.md list the steps in the order in which they are called.
#[test]
fn the_steps_of_recovery_are_documented_in_order() {
    let source = fs::read_to_string(source_dir().join("store/recovery.rs")).unwrap();
    let told = steps(source.split("\nuse ").next().unwrap());
    assert_eq!(steps(&section("## Recovery")), told);
    let body = body(&source, "recover");
    let places = told.iter().map(|name| body.find(&format!(".{name}(")).unwrap_or_else(|| panic!("{name}?")));
    assert!(told.len() == 8 && places.is_sorted(), "{told:?}");
}

/// The tests that sleep: the file, the number of sleeps, and the reason why there is no condition to wait for.
const SLEEPS: [(&str, usize, &str); 14] = [
    ("drumlin-cli/tests/cli/in_use.rs", 1, "polls whether another process has the database yet"),
    ("drumlin-cli/tests/cli/lab.rs", 1, "polls whether another process has made its folder yet"),
    ("drumlin-cli/tests/cli/large_values.rs", 1, "measures another process's memory at intervals"),
    ("drumlin-fuzz/src/api/memory.rs", 1, "measures memory at intervals"),
    ("drumlin-fuzz/src/api/opening.rs", 1, "polls a lock that a dropped future's checkpoint still holds"),
    ("drumlin-fuzz/src/api/threads.rs", 1, "the script says when, amid the others' work, the database is closed"),
    ("drumlin/src/db/tests.rs", 2, "gives threads that have to wait the time to go on wrongly"),
    ("drumlin/tests/engine/asynchronous.rs", 1, "stalls the executor, so that what the threads finish heaps up"),
    ("drumlin/tests/engine/concurrency.rs", 3, "the pace of checkpoints and looks, and the end of the run"),
    ("drumlin/tests/engine/fork.rs", 1, "polls a child process, which may hang"),
    ("drumlin/tests/engine/kill.rs", 1, "a child process is killed at a random moment"),
    ("drumlin/tests/engine/lifetime.rs", 4, "gives a thread the time to begin to wait; any order passes"),
    ("drumlin/tests/engine/memory.rs", 1, "measures memory at intervals"),
    ("drumlin/tests/support/workload.rs", 1, "the pace of checkpoints, drawn"),
];

/// Tests wait for conditions. The tests that sleep instead are listed, and the list must only get shorter.
#[test]
fn tests_wait_for_conditions() {
    let mut found = Vec::new();
    for (file, code) in sources_in(&source_dir().join("../..")) {
        let is_test = is_test(&file) || file.starts_with("drumlin-fuzz/src");
        let code = if is_test { &code } else { &code[without_tests(&code).len()..] };
        // The scheduler's own tests sleep in virtual time.
        let count = code.matches("thread::sleep(").count();
        if count > 0 {
            found.push((file, count));
        }
    }
    let listed: Vec<(String, usize)> = SLEEPS.iter().map(|(file, count, _)| ((*file).to_owned(), *count)).collect();
    assert_eq!(found, listed, "wait for a condition, or shorten the list");
}

/// The parts that hold the data have their minimum density of assertions.
#[test]
fn invariants_are_asserted() {
    const MACROS: [&str; 6] =
        ["assert!(", "assert_eq!(", "assert_ne!(", "debug_assert!(", "debug_assert_eq!(", "debug_assert_ne!("];
    let begins_word = |code: &str, at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let count = |code: &str, word: &str| code.match_indices(word).filter(|(at, _)| begins_word(code, *at)).count();
    for (part, floor) in ASSERTIONS {
        let (mut functions, mut assertions) = (0, 0);
        for (_, code) in sources().iter().filter(|(file, _)| part_of(file) == part && !is_test(file)) {
            let code = without_tests(code);
            functions += count(code, "fn ");
            assertions += MACROS.iter().map(|name| count(code, name)).sum::<usize>();
        }
        assert!(functions > 100, "the sources of {part} are somewhere else");
        let found = assertions * 1000 / functions;
        assert!(found >= floor, "{part} has {found} assertions in 1,000 functions; {floor} were there");
    }
}

// The code of a `Rooted` future is compiled in the library only if the function that makes the future is compiled
// there. If that function had type parameters, or could be inlined, every program would recompile the engine.
#[test]
fn rooted_futures_are_made_in_the_library() {
    let mut count = 0;
    for (file, text) in sources() {
        if file == "task/rooted.rs" {
            continue;
        }
        let lines: Vec<&str> = without_tests(&text).lines().collect();
        for (index, line) in lines.iter().enumerate() {
            if !line.contains("Rooted::new(") {
                continue;
            }
            let is_head = |line: &&str| {
                line.trim_start().trim_start_matches("pub(super) ").trim_start_matches("pub(crate) ").starts_with("fn ")
            };
            let head = lines[..index].iter().rposition(is_head).expect("a function");
            let name = format!("{file}: {}", lines[head].trim());
            let parameters = lines[head].split_once("fn ").expect("a function").1;
            let generics =
                parameters.split_once('(').expect("parameters").0.split_once('<').map_or("", |(_, rest)| rest);
            assert!(!generics.contains(|c: char| c.is_ascii_uppercase()), "{name} has type parameters");
            let signature = lines[head..index].join(" ");
            let arguments = signature.split("->").next().expect("a signature");
            assert!(!arguments.contains("impl "), "{name} has type parameters");
            assert_eq!(lines[head - 1].trim(), "#[inline(never)]", "{name} may be copied into its callers");
            count += 1;
        }
    }
    assert!(count > 30, "{count} functions that make rooted futures");
}
