//! Checks documents and comments against the repository: links have targets, named tests exist, lines fit, and the
//! prose does not get worse.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use drumlin_testing::documents::{durability_page, tables, testing_page};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Finds the files in a folder and its subfolders whose names have this extension, except for hidden and build folders.
pub(crate) fn files_below(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
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

/// Every test name in a document exists as a function in the sources. A test name is in backticks and has at least
/// three words.
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

/// The tables that programs write are complete, are where those programs look for them, and have the expected rows.
#[test]
fn tables_of_figures_are_whole() {
    let text = fs::read_to_string(testing_page()).unwrap();
    let tables = tables(&text).unwrap();
    let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
    assert_eq!(names, ["planted", "runs"]);
    let firsts = |table: usize| tables[table].rows.iter().map(|row| row[0].clone()).collect::<BTreeSet<_>>();
    let mut patches = Vec::new();
    files_below(&root().join("crates/drumlin-sim/plants"), "patch", &mut patches);
    let patches = patches.iter().map(|path| format!("`{}`", path.file_stem().unwrap().display()));
    assert_eq!(firsts(0), patches.collect(), "each planted bug has a row");
    let runs = [
        "simulated worlds",
        "crash points",
        "power cuts on real file systems",
        "guests killed whole",
        "damaged databases opened",
        "histories",
        "marks of rare paths",
    ];
    assert_eq!(firsts(1), runs.map(str::to_owned).into());
    // Seconds are numbers, and counts have commas.
    assert!(tables[0].rows.iter().all(|row| row[2].trim_start_matches("below ").parse::<f64>().is_ok()));
    let is_count = |word: &str| word.split(',').skip(1).all(|part| part.len() == 3);
    let words =
        tables[1].rows.iter().flat_map(|row| row[1].split(' ')).map(|word| word.trim_end_matches([',', ';', ':']));
    assert!(words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())).all(is_count));
}

/// The table of real file systems is between its marks. It shows that Drumlin lost no commits, but a log without a sync
/// did.
#[test]
fn the_table_of_file_systems_is_whole() {
    let text = fs::read_to_string(durability_page()).unwrap();
    let tables = tables(&text).unwrap();
    let [table] = &tables[..] else { panic!("{} tables with marks", tables.len()) };
    assert_eq!(table.name, "methods");
    let row = |name: &str| table.rows.iter().find(|row| row[0] == name).unwrap()[1..].to_vec();
    assert!(row("Drumlin").iter().all(|lost| lost == "0"));
    assert!(row("append, no sync").iter().all(|lost| lost != "0"));
}

/// Returns the comment in a line of source code, without the comment mark.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim_start())
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    files_below(&root().join("crates"), "rs", &mut paths);
    assert!(paths.len() > 100, "the sources are somewhere else");
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Comments have at most 120 columns, the same limit as rustfmt's. Tables and addresses may be wider.
#[test]
fn comments_keep_to_their_columns() {
    let mut wide = Vec::new();
    for (path, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            let is_free = |text: &str| text.contains("://") || text.contains("  ") || text.starts_with('|');
            if comment(line).is_some_and(|text| !is_free(text)) && line.chars().count() > 120 {
                wide.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "comments beyond 120 columns:\n{}", wide.join("\n"));
}

/// Beginnings of sentences that describe a thing with a clause instead of naming it, or that put the verb first instead
/// of using `if`. Each has a limit on the doc comment lines, and on the sentences of documents, that begin with it.
const BEGINNINGS: [(&str, usize, usize); 6] =
    [("What ", 0, 0), ("How ", 0, 0), ("Where ", 0, 0), ("Whether ", 0, 0), ("As [", 0, 0), ("Is ", 0, 0)];

/// Words that leave the actor unnamed or sound translated, with limits on their occurrences in comments and in
/// documents.
const WORDS: [(&str, usize, usize); 5] =
    [("whoever", 1, 0), ("somebody", 0, 1), ("nobody", 3, 2), ("any more", 4, 0), ("anew", 0, 0)];

/// Returns the pages written for readers. Decisions and reports are excluded, because they are kept as they were
/// written.
fn prose() -> Vec<String> {
    let folder = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = folder.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let pages: Vec<_> = pages.chain(["ARCHITECTURE.md", "README.md"].map(|name| root().join(name))).collect();
    assert!(pages.len() > 10, "the documents are somewhere else");
    pages.into_iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Returns the number of sentences in a line of a document that have this beginning. Headings do not count.
fn sentences(line: &str, beginning: &str) -> usize {
    if line.starts_with('#') {
        return 0;
    }
    let text = line.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    usize::from(text.starts_with(beginning)) + line.matches(&format!(". {beginning}")).count()
}

/// The number of sentences that CONTRIBUTING.md advises against only decreases. When such a sentence is removed, lower
/// the limit above.
#[test]
fn prose_gets_no_worse() {
    let (sources, prose) = (sources(), prose());
    let mut wrong = Vec::new();
    let mut hold = |what: &str, place: &str, found: usize, allowed: usize| {
        if found > allowed {
            wrong.push(format!(
                "{what:?} in {place}: {found}, at most {allowed}: begin with a noun or a verb, and name the actor"
            ));
        } else if found + 10 < allowed {
            wrong.push(format!("{what:?} in {place}: {found} are left; lower its number, {allowed}"));
        }
    };
    for (beginning, in_comments, in_documents) in BEGINNINGS {
        let is_doc = |line: &&str| line.trim_start().starts_with("///") || line.trim_start().starts_with("//!");
        let lines = sources.iter().flat_map(|(_, text)| text.lines().filter(is_doc));
        let found = lines.filter(|line| comment(line).unwrap().starts_with(beginning)).count();
        hold(beginning, "comments", found, in_comments);
        let found = prose.iter().flat_map(|text| text.lines()).map(|line| sentences(line, beginning)).sum();
        hold(beginning, "documents", found, in_documents);
    }
    for (word, in_comments, in_documents) in WORDS {
        let count = |text: &str| text.to_lowercase().matches(word).count();
        let comments = sources.iter().flat_map(|(_, text)| text.lines().filter_map(comment));
        hold(word, "comments", comments.map(count).sum(), in_comments);
        hold(word, "documents", prose.iter().map(|text| count(text)).sum(), in_documents);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
