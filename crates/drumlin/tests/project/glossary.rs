//! Checks the glossary against the sources: every type has a row, and no name contains a retired word.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::documents::files_below;

fn glossary() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/glossary.md");
    fs::read_to_string(path).unwrap().replace("\r\n", "\n")
}

/// Returns the words in backticks in a column of a table's rows.
fn quoted(rows: &str, column: usize) -> BTreeSet<String> {
    let cells = rows.lines().filter(|line| line.starts_with('|')).filter_map(|line| line.split('|').nth(column));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Returns every source file of the library and of drumlin-io with the names in its code.
fn names() -> Vec<(String, Vec<String>)> {
    names_in(&["drumlin/src", "drumlin-io/src"])
}

/// Returns every source file in these folders of `crates/` with the names in its code, without comments and string
/// literals.
fn names_in(folders: &[&str]) -> Vec<(String, Vec<String>)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths = Vec::new();
    folders.iter().for_each(|folder| files_below(&crates.join(folder), "rs", &mut paths));
    assert!(paths.len() > 50, "the sources are somewhere else");
    let names_in = |text: &str| {
        let code = text.lines().map(|line| line.split("//").next().unwrap_or(line));
        let outside_texts = code.flat_map(|line| line.split('"').step_by(2));
        let is_part = |c: char| c == '_' || c.is_ascii_alphanumeric();
        outside_texts.flat_map(|part| part.split(move |c| !is_part(c))).map(str::to_owned).collect::<Vec<_>>()
    };
    let file = |path: &PathBuf| path.strip_prefix(&crates).unwrap().display().to_string();
    paths.iter().map(|path| (file(path), names_in(&fs::read_to_string(path).unwrap()))).collect()
}

/// Every type that is visible outside of its module has a row in the glossary.
#[test]
fn every_type_has_a_line() {
    let text = glossary();
    let (terms, _) = text.split_once("## Retired words").unwrap();
    let known = quoted(terms, 2);
    let mut missing = Vec::new();
    for (file, names) in names().iter().filter(|(file, _)| !file.contains("tests")) {
        let words: Vec<&str> = names.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
        for window in words.windows(4) {
            let rest = match window {
                ["pub", "crate", rest @ ..] => rest,
                ["pub", rest @ ..] => rest,
                _ => continue,
            };
            if let ["struct" | "enum" | "trait" | "type", name, ..] = rest
                && !known.contains(*name)
                && name.starts_with(char::is_uppercase)
            {
                missing.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "docs/glossary.md has no line for\n{}", missing.join("\n"));
}

/// Every type that the glossary names exists.
#[test]
fn every_line_has_its_types() {
    let text = glossary();
    let (terms, _) = text.split_once("## Retired words").unwrap();
    let used: BTreeSet<String> = names().into_iter().flat_map(|(_, names)| names).collect();
    let gone: Vec<String> = quoted(terms, 2).into_iter().filter(|name| !used.contains(name)).collect();
    assert!(gone.is_empty(), "docs/glossary.md names what is not in the sources: {}", gone.join(", "));
}

/// Returns the words of a name in lower case: the parts between underscores, and those that begin with a capital.
fn words_of(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut last = '_';
    for character in name.chars() {
        let begins = character.is_uppercase() && !last.is_uppercase() || last == '_';
        if begins && character != '_' {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| character != '_') {
            word.extend(character.to_lowercase());
        }
        last = character;
    }
    words
}

/// Returns `true` if `word` is `retired` or a form of it: its plural, participle or agent noun.
fn is_form_of(word: &str, retired: &str) -> bool {
    let stem = retired.strip_suffix('e').unwrap_or(retired);
    let endings = ["s", "es", "d", "ed", "ing", "er", "ers"];
    word == retired || word.strip_prefix(stem).is_some_and(|ending| endings.contains(&ending))
}

/// Words are found in names of both spellings, and retired words are found in all their forms.
#[test]
fn names_have_words() {
    assert_eq!(words_of("flush_if_nudged"), ["flush", "if", "nudged"]);
    assert_eq!(words_of("SweepState"), ["sweep", "state"]);
    assert_eq!(words_of("IO_BYTES_MAX"), ["io", "bytes", "max"]);
    assert!(is_form_of("nudged", "nudge") && is_form_of("nudging", "nudge") && is_form_of("sweepers", "sweep"));
    assert!(!is_form_of("faction", "face") && !is_form_of("desktop", "desk"));
}

/// No name in any crate contains a retired word, in any form.
#[test]
fn no_retired_word_is_in_a_name() {
    let text = glossary();
    let (_, retired) = text.split_once("## Retired words").unwrap();
    let (parts, _) = retired.split_once("These are common words").unwrap();
    let parts: Vec<Vec<String>> = quoted(parts, 1).iter().map(|name| words_of(name)).collect();
    assert!(parts.len() > 10, "the list of retired words is somewhere else");
    let mut back = BTreeSet::new();
    for (file, names) in names_in(&["."]) {
        for name in &names {
            let words = words_of(name);
            let has = |retired: &Vec<String>| {
                let mut runs = words.windows(retired.len());
                runs.any(|run| run.iter().zip(retired).all(|(word, retired)| is_form_of(word, retired)))
            };
            if parts.iter().any(has) {
                back.insert(format!("{file}: {name}"));
            }
        }
    }
    let back: Vec<String> = back.into_iter().collect();
    assert!(back.is_empty(), "retired words (docs/glossary.md has what to say instead):\n{}", back.join("\n"));
}

/// No name of the library is one of the common words that the usual terms replaced.
#[test]
fn no_retired_word_is_a_name() {
    let text = glossary();
    let (_, retired) = text.split_once("These are common words").unwrap();
    let retired = quoted(retired, 1);
    assert!(retired.len() > 20, "the list of retired words is somewhere else");
    let mut back = Vec::new();
    for (file, names) in names() {
        let found: BTreeSet<&String> = names.iter().filter(|name| retired.contains(*name)).collect();
        back.extend(found.iter().map(|name| format!("{file}: {name}")));
    }
    assert!(back.is_empty(), "retired words (docs/glossary.md has what to say instead):\n{}", back.join("\n"));
}
