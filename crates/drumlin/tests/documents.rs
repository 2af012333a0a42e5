//! The documents against the repository: links lead somewhere, and tests that are named exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files_below(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_dir() && !is_hidden && !path.ends_with("target") {
            files_below(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

fn documents() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    files_below(&root(), "md", &mut paths);
    assert!(paths.len() > 10, "the documents are somewhere else");
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Relative links lead to files and folders that exist.
#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let target = link.split('#').next().unwrap();
            if !link.contains("://") && !path.parent().unwrap().join(target).exists() {
                wrong.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whatever a document names like a test, in backticks and with at least three words, is a function in the sources.
#[test]
fn tests_that_are_named_exist() {
    let mut sources = Vec::new();
    files_below(&root().join("crates"), "rs", &mut sources);
    let mut functions = BTreeSet::new();
    for path in sources {
        let text = fs::read_to_string(path).unwrap();
        functions.extend(text.split("fn ").skip(1).filter_map(|rest| Some(rest.split(['(', '<']).next()?.to_owned())));
    }
    let is_test_name =
        |word: &str| word.matches('_').count() >= 2 && word.chars().all(|c| c == '_' || c.is_ascii_lowercase());
    let mut wrong = Vec::new();
    for (path, text) in documents().iter().filter(|(path, _)| !path.ends_with("docs/cli.md")) {
        for word in text.split('`').skip(1).step_by(2).filter(|word| is_test_name(word)) {
            if !functions.contains(word) {
                wrong.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "no such function:\n{}", wrong.join("\n"));
}
