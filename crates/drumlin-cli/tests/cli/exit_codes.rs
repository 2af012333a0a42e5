//! The exit codes, which are a stable interface.

use crate::support::Bench;

/// Success, usage errors and missing databases or keys each have a code, and the message says what to do.
#[test]
fn exit_codes_name_the_failure() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "a", "1"]);
    assert!(bench.fails(2, &["get", "db"]).contains("Usage"));
    assert!(bench.fails(2, &["get", "db", "\\q"]).contains("\\\\ \\n"));
    assert!(bench.fails(2, &["nonsense"]).contains("nonsense"));
    assert!(bench.fails(2, &["stats", "db", "--memory", "many"]).contains("64MiB"));
    assert!(bench.fails(3, &["get", "db", "missing"]).contains("no key 'missing'"));
    assert!(bench.fails(3, &["get", "nowhere", "a"]).contains("no database at nowhere"));
    bench.ok(&["put", "db", "a", "1", "-k", "more"]);
    let message = bench.fails(3, &["get", "db", "a", "-k", "other"]);
    assert!(message.contains("no keyspace \"other\"; there are: default, more"), "{message}");
    for missing in
        [&["load", "db", "missing.csv"][..], &["index", "db", "missing"], &["put", "db", "k", "--file", "missing"]]
    {
        assert!(bench.fails(7, missing).contains("reading missing"));
    }
    bench.write("rows.csv", "k\na\n");
    assert!(bench.fails(3, &["doctor", "nowhere"]).contains("no folder nowhere"));
    assert!(bench.fails(8, &["doctor", "rows.csv"]).contains("is a file"));
    assert!(bench.fails(1, &["dump", "db", "missing/rows.csv"]).contains("creating missing/rows.csv"));
    assert!(bench.fails(2, &["load", "db", "."]).contains("is a folder"));
    assert!(bench.fails(3, &["rm", "db", "missing"]).contains("nothing was removed"));
}

/// A folder or file that is not a database is reported as such and left unchanged.
#[test]
fn not_a_database() {
    let bench = Bench::new();
    bench.write("folder/notes.txt", "mine");
    let message = bench.fails(8, &["stats", "folder"]);
    assert!(message.contains("not a Drumlin database"), "{message}");
    bench.fails(8, &["put", "folder", "a", "1"]);
    assert!(bench.fails(8, &["put", "folder/notes.txt", "a", "1"]).contains("is a file"));
    assert_eq!(std::fs::read(bench.path().join("folder/notes.txt")).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(bench.path().join("folder")).unwrap().count(), 1);
}

/// If a budget is too small, the error states the required budget.
#[test]
fn budgets_have_a_minimum() {
    let bench = Bench::new();
    let message = bench.fails(2, &["put", "db", "a", "1", "--memory", "1KiB"]);
    assert!(message.contains("at least") && message.contains("--memory"), "{message}");
}

/// A key above the length limit is bad input, and the message states the limit.
#[test]
fn keys_have_a_limit() {
    let bench = Bench::new();
    let message = bench.fails(7, &["put", "db", &"k".repeat(70_000), "1"]);
    assert!(message.contains("70000") && message.contains("up to"), "{message}");
}

/// `check` detects a damaged data file and returns the code for damage.
#[test]
fn damage_has_a_code() {
    let bench = Bench::new();
    // Load in batches, so that pages and log records fill the file from its start.
    let load = ["load", "db", "-", "--format", "tsv", "--key", "k", "--batch", "1000"];
    bench.ok_with(&load, rows(3000).as_bytes());
    bench.ok(&["checkpoint", "db"]);
    assert!(bench.ok(&["check", "db"]).starts_with("sound"));
    let files = std::fs::read_dir(bench.path().join("db")).unwrap().flatten();
    let largest = files.filter(|item| item.path().is_file()).max_by_key(|item| item.metadata().unwrap().len());
    let largest = largest.expect("a data file").path();
    let mut bytes = std::fs::read(&largest).unwrap();
    // Damage every block in the second half of the used part.
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    (used / 2..used).step_by(997).for_each(|at| bytes[at] ^= 0x55);
    std::fs::write(&largest, bytes).unwrap();
    let answer = bench.run(&["check", "db"]);
    let text = String::from_utf8_lossy(&answer.stdout);
    assert_eq!(answer.code, Some(4), "{text}{}", answer.stderr);
    assert!(text.lines().count() < 50, "{text}");
}

/// A dump that skips damage writes all rows that can be read, names each gap by its neighbouring keys, and returns the
/// code for damage. `check` reports the keys, as text and as JSON.
#[test]
fn rows_around_damage_are_saved() {
    let bench = Bench::new();
    let load = ["load", "db", "-", "--format", "tsv", "--key", "k", "--value", "v", "--batch", "1000"];
    bench.ok_with(&load, rows(40_000).as_bytes());
    let large: String =
        (0..120_000u32).map(|number| number.wrapping_mul(number).wrapping_mul(7919).to_string()).collect();
    bench.ok_with(&["put", "db", "00020000x"], large.as_bytes());
    bench.ok(&["compact", "db"]);
    bench.ok(&["dump", "db", "all.csv"]);
    let all = std::fs::read_to_string(bench.path().join("all.csv")).unwrap();
    let data = bench.path().join("db/data");
    let mut bytes = std::fs::read(&data).unwrap();
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    // Damage leaves, and chunks of the large value. The structures needed for opening come after them in the file.
    let starts = [used / 8, used / 4, used / 2];
    starts.iter().for_each(|&at| bytes[at..at + 64].iter_mut().for_each(|byte| *byte ^= 0x55));
    std::fs::write(&data, bytes).unwrap();
    assert!(bench.fails(4, &["dump", "db", "left.csv"]).contains("--skip-damage"));
    let answer = bench.run(&["dump", "db", "left.csv", "--force", "--skip-damage", "--json"]);
    assert_eq!(answer.code, Some(4), "{}", answer.stderr);
    let summary: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    let left = std::fs::read_to_string(bench.path().join("left.csv")).unwrap();
    let left: std::collections::HashSet<&str> = left.lines().collect();
    let lost: Vec<&str> = all.lines().filter(|line| !left.contains(line)).collect();
    assert_eq!(left.len() + lost.len(), all.lines().count(), "rows were made up");
    assert!(!lost.is_empty() && lost.len() < 5000, "{} rows lost", lost.len());
    let gaps = answer.stderr.lines().filter(|line| line.starts_with("gap between '")).count();
    assert_eq!(summary["gaps"], gaps, "{}", answer.stderr);

    let answer = bench.run(&["check", "db", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    let found: Vec<&serde_json::Value> =
        report["corruption"].as_array().unwrap().iter().map(|one| &one["keys"]).collect();
    for line in &lost {
        let key = line.split(',').next().unwrap();
        let covers = |keys: &&serde_json::Value| {
            keys["from"].as_str().is_none_or(|from| from <= key)
                && keys["below"].as_str().is_none_or(|below| key < below)
        };
        assert!(found.iter().any(covers), "{key} is in none of {report}");
    }
    let text = String::from_utf8(bench.run(&["check", "db"]).stdout).unwrap();
    assert!(
        text.contains("the rows of keyspace \"default\" from key b\"") && text.contains("drumlin repair db SAVED"),
        "{text}"
    );
}

/// `check` examines a database that is too damaged to open: it reports the damage and what remains, and returns the
/// code for damage. No file changes.
#[test]
fn a_database_that_does_not_open_is_examined() {
    let bench = Bench::new();
    bench.ok_with(&["load", "db", "-", "--format", "tsv", "--key", "k"], rows(300_000).as_bytes());
    let folder = bench.path().join("db");
    let data = folder.join("data");
    let bytes = std::fs::read(&data).unwrap();
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    std::fs::write(&data, &bytes[..used / 2]).unwrap();
    let opening = bench.run(&["stats", "db"]);
    assert_eq!(opening.code, Some(4), "{}", opening.stderr);
    let contents = || {
        let log = std::fs::read_dir(folder.join("log")).unwrap();
        let files = std::fs::read_dir(&folder).unwrap().chain(log).flatten();
        // Ignore the file `lock`, which names the process that opens the database.
        let files = files.filter(|item| item.file_name() != "lock");
        let mut files: Vec<_> = files.map(|item| (item.path(), std::fs::read(item.path()).ok())).collect();
        files.sort();
        files
    };
    let before = contents();
    let answer = bench.run(&["check", "db"]);
    let text = String::from_utf8_lossy(&answer.stdout);
    assert_eq!(answer.code, Some(4), "{text}{}", answer.stderr);
    assert!(text.starts_with("damaged, and can't be opened") && text.contains("Nothing was written"), "{text}");
    assert!(contents() == before, "a check changed a file");
}

/// If a database can't be opened because a page table is damaged, `dump --skip-damage` searches the pages that the
/// table had, and writes all rows. Without the option, the error suggests it.
#[test]
fn what_is_left_of_a_database_that_does_not_open_is_dumped() {
    let bench = Bench::new();
    let columns = ["--format", "tsv", "--key", "k", "--value", "v"];
    let wide: String = (0..200_000).map(|row| format!("{row:08}\t{row:0>90}\n")).collect();
    bench.ok_with(&[&["load", "db", "-"][..], &columns].concat(), format!("k\tv\n{wide}").as_bytes());
    bench.ok_with(&[&["load", "db", "-", "-k", "other"][..], &columns].concat(), rows(50).as_bytes());
    let data = bench.path().join("db/data");
    let mut bytes = std::fs::read(&data).unwrap();
    // An extent's header has its keyspace, its number and two lengths. Only chunks of page tables have 8 KiB of content
    // and a 40-byte header.
    let is_chunk = |at: &usize| {
        bytes[*at..].starts_with(&8232u32.to_le_bytes()) && bytes[at - 12..at - 4] == [1, 0, 0, 0, 2, 0, 0, 0]
    };
    let chunks: Vec<usize> = (16..bytes.len()).filter(is_chunk).collect();
    assert!(!chunks.is_empty(), "the page table has no third chunk");
    chunks.into_iter().for_each(|at| bytes[at + 60] ^= 0x55);
    std::fs::write(&data, bytes).unwrap();
    let error = bench.fails(4, &["dump", "db", "-", "-k", "other"]);
    assert!(error.contains("chunk 2 of the page table of keyspace \"default\""), "{error}");
    assert!(error.contains("--skip-damage"), "{error}");
    let answer = bench.run(&["dump", "db", "-", "-k", "other", "--skip-damage", "--format", "csv"]);
    assert_eq!(answer.code, Some(4), "{}", answer.stderr);
    assert_eq!(String::from_utf8(answer.stdout).unwrap().lines().count(), 51);
    assert!(answer.stderr.contains("no gap was found"), "{}", answer.stderr);
    let answer = bench.run(&["dump", "db", "-", "--skip-damage", "--format", "csv"]);
    assert_eq!(answer.code, Some(4), "{}", answer.stderr);
    assert_eq!(String::from_utf8(answer.stdout).unwrap().lines().count(), 200_001);
    assert!(answer.stderr.contains("no gap was found"), "{}", answer.stderr);
    let error = bench.fails(3, &["dump", "db", "-", "-k", "third", "--skip-damage"]);
    assert!(error.contains("there are: default, other"), "{error}");
}

/// If both superblocks are lost, the other files show that the folder is a damaged database and not an unrelated
/// folder.
#[test]
fn a_database_without_superblocks_is_damaged() {
    let bench = Bench::new();
    bench.ok(&["put", "a b", "a", "1"]);
    let data = std::fs::File::options().write(true).open(bench.path().join("a b/data")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&data, &[0; 64 << 10], 0).unwrap();
    let message = bench.fails(4, &["stats", "a b"]);
    assert!(message.contains("both superblocks") && message.contains("`drumlin check 'a b'`"), "{message}");
    let answer = bench.run(&["check", "a b"]);
    let text = String::from_utf8(answer.stdout).unwrap();
    assert_eq!(answer.code, Some(4), "{text}");
    assert!(text.contains("both superblocks") && !text.contains("--skip-damage"), "{text}");
}

/// An empty prefix or start, as from an unset shell variable, removes nothing.
#[test]
fn rm_of_everything_has_a_word_of_its_own() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "a", "1"]);
    for range in [&["--prefix", ""][..], &["--from", ""], &["--prefix", "", "--hex"]] {
        assert!(bench.fails(2, &[&["rm", "db"][..], range].concat()).contains("--all"), "{range:?}");
    }
    assert_eq!(bench.ok(&["rm", "db", "--from", "", "--to", "a"]), "removed 0 rows\n");
    assert_eq!(bench.ok(&["rm", "db", "--all"]), "removed 1 row\n");
}

/// One transaction removes more keys than fit in memory.
#[test]
fn keys_beyond_memory_are_removed_at_once() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "a", "1", "--memory", "8MiB"]);
    let keys: Vec<String> = (0..1800).map(|key| format!("{key:0>900}")).collect();
    let rows = keys.join("\n");
    bench.ok_with(&["load", "db", "-", "--format", "csv", "--no-header", "--key", "1"], rows.as_bytes());
    let args: Vec<&str> = keys.iter().map(String::as_str).collect();
    bench.ok(&[&["rm", "db", "--memory", "8MiB"][..], &args].concat());
    assert_eq!(bench.ok(&["count", "db"]).trim(), "1");
}

fn rows(count: usize) -> String {
    let mut text = String::from("k\tv\n");
    (0..count).for_each(|row| text += &format!("{row:08}\tvalue {row} {}\n", row * 7919));
    text
}
