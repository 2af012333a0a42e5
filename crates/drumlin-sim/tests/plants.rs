//! The patches of planted bugs match the sources and the documents.

use std::collections::BTreeSet;
use std::fs;

use drumlin_sim::planted;

/// Every patch applies to the current sources, exactly and in one place, and changes a library.
#[test]
fn every_patch_applies() {
    let root = planted::workspace();
    for plant in planted::plants().unwrap() {
        let (path, changed) = plant.changed(&root).unwrap();
        let is_library =
            ["crates/drumlin/src", "crates/drumlin-raft/src"].iter().any(|src| path.starts_with(root.join(src)));
        assert!(is_library, "{} changes {}", plant.name, path.display());
        assert_ne!(changed, fs::read_to_string(&path).unwrap(), "{} changes nothing", plant.name);
    }
}

/// docs/testing.md lists every planted bug, and no others.
#[test]
fn every_patch_is_documented() {
    let text = fs::read_to_string(planted::workspace().join("docs/testing.md")).unwrap();
    let table = text.split("| bug | found by |").nth(1).expect("the table of planted bugs");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with("| `"));
    let documented: BTreeSet<String> = rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect();
    let names: BTreeSet<String> = planted::plants().unwrap().into_iter().map(|plant| plant.name).collect();
    assert_eq!(documented, names);
}
