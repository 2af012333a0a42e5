//! The generator of call sequences covers every public call.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use drumlin_fuzz::api;

/// Returns the public functions of the library as `Type::function`, read from its sources.
fn public_functions() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../drumlin/src");
    let mut files: Vec<_> = fs::read_dir(folder.join("db")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.push(folder.join("error.rs"));
    let mut functions = BTreeSet::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let text = fs::read_to_string(file).unwrap();
        let (mut of, mut is_hidden) = (None, false);
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("impl ") {
                of = rest.strip_suffix(" {").filter(|name| name.chars().all(char::is_alphanumeric));
            }
            let line = line.trim_start();
            is_hidden |= line.contains("#[doc(hidden)]");
            let rest = line.strip_prefix("pub fn ").or_else(|| line.strip_prefix("pub async fn "));
            if let (Some(rest), Some(of)) = (rest, of)
                && !is_hidden
            {
                let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                functions.insert(format!("{of}::{name}"));
            }
            is_hidden &= line.starts_with('#') || line.starts_with("//");
        }
    }
    assert!(functions.len() > 80, "the sources are somewhere else");
    functions
}

/// A few hundred seeds cover every public call, and each call returns the right answer.
#[test]
fn every_call_is_made() {
    let wanted = public_functions();
    let missing = |wanted: &BTreeSet<String>| -> Vec<String> {
        let called = api::called();
        wanted.iter().filter(|name| !called.contains(name.as_str())).cloned().collect()
    };
    let mut seed = 0;
    // The exact number of seeds changes with every draw that is added to the generator.
    while !missing(&wanted).is_empty() && seed < 1000 {
        api::run(&api::script(seed));
        seed += 1;
    }
    assert!(missing(&wanted).is_empty(), "not called in {seed} sequences: {:?}", missing(&wanted));
    let known = api::called().into_iter().filter(|name| !wanted.contains(*name));
    assert_eq!(known.collect::<Vec<_>>(), [""; 0], "called by a name that is none");
}
