//! Writes docs/tuning.md from the constants of the sources, and checks it.
//!
//! A *tuning constant* is a number that was chosen and could be different. These rules apply to each `const` of an
//! integer, a float or a duration in the library and in drumlin-io:
//!
//! - If its value names another constant, a type or a function, it follows from them, and is not a tuning constant,
//!   unless it has a different value under simulation.
//! - If its name says that it describes a representation ([`LAYOUT_WORDS`]), it is not a tuning constant.
//! - If its comment has the words "Fixed by", followed by the reason for the value, it is not a tuning constant.
//! - `format/`, test equipment and tests have no tuning constants.
//!
//! Only constants have different values under simulation: no other expression depends on the feature `sim`.
//!
//! Every tuning constant has a comment, whose first sentence is in the table, and a unit: its type if it is a duration,
//! otherwise the last word of its name that is in [`UNITS`]. If a line of its comment begins with "Measured:", the rest
//! of the line names the place of the measurement.

use std::fs;
use std::path::Path;

use drumlin_testing::documents;

use super::documents::files_below;

/// Path prefixes of folders and files without tuning constants.
const LEFT_OUT: [&str; 6] = [
    "drumlin/src/coverage.rs",
    "drumlin/src/format/",
    "drumlin-io/src/testing/",
    "drumlin-io/src/sync/scheduler.rs",
    "drumlin-io/src/sync/simulated.rs",
    "drumlin-io/src/tests.rs",
];

/// Words in the names of constants that describe a representation.
const LAYOUT_WORDS: [&str; 8] = ["BIT", "BITS", "MAGIC", "MASK", "OFFSET", "SHIFT", "TAG", "VERSION"];

/// The words that name a unit, with the unit as the table shows it.
const UNITS: [(&str, &str); 48] = [
    ("ALIGNMENT", "bytes"),
    ("ATTEMPTS", "attempts"),
    ("BLOCKS", "blocks"),
    ("BUCKETS", "buckets"),
    ("BUFFERS", "buffers"),
    ("BYTES", "bytes"),
    ("CHANCES", "turns"),
    ("CHANGES", "changes"),
    ("CHARACTERS", "characters"),
    ("CHUNKS", "chunks"),
    ("COMMITS", "commits"),
    ("COUNT", ""),
    ("DEPTH", "requests"),
    ("ENTRIES", "entries"),
    ("FACTOR", "times"),
    ("FRAMES", "frames"),
    ("INCARNATIONS", "openings"),
    ("INSERTIONS", "insertions"),
    ("INTERVALS", "intervals"),
    ("JOBS", "jobs"),
    ("KEYS", "keys"),
    ("LEAVES", "leaves"),
    ("LINES", "lines"),
    ("LOG2", "(log2)"),
    ("PAGES", "pages"),
    ("PASSES", "passes"),
    ("QUARTERS", "quarters"),
    ("RECLAIMS", "requests"),
    ("REDUCERS", "reducers"),
    ("RENEWALS", "snapshots"),
    ("REQUESTS", "requests"),
    ("RESTARTS", "restarts"),
    ("ROUNDS", "rounds"),
    ("ROWS", "rows"),
    ("RUNS", "runs"),
    ("SAMPLES", "samples"),
    ("SEGMENTS", "segments"),
    ("SHARDS", "shards"),
    ("SHARE", "share"),
    ("SLOTS", "slots"),
    ("STATES", "states"),
    ("TAKES", "buffers"),
    ("THREADS", "threads"),
    ("TIERS", "tiers"),
    ("TRIES", "tries"),
    ("UNITS", "units"),
    ("VALUES", "values"),
    ("WRITES", "writes"),
];

/// A `const` in a source file.
struct Constant {
    /// The path of its file, relative to `crates/`.
    file: String,
    name: String,
    type_name: String,
    /// Its value as written in the source, on one line.
    value: String,
    /// The lines of its comment.
    comment: Vec<String>,
}

/// Returns the constants of a file's text.
fn constants_of(file: &str, text: &str) -> Vec<Constant> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let visible = ["pub(crate) ", "pub(super) ", "pub(in crate) ", "pub "];
        let line = visible.iter().find_map(|prefix| line.strip_prefix(prefix)).unwrap_or(line);
        let Some((name, _)) = line.strip_prefix("const ").and_then(|rest| rest.split_once(": ")) else { continue };
        // A value of several lines ends at the first line that ends with a semicolon.
        let end = lines[index..].iter().position(|line| line.ends_with(';')).expect("a constant ends") + index;
        let whole = [&[line], &lines[index + 1..=end]].concat().join(" ");
        let Some((head, value)) = whole.trim_end_matches(';').split_once('=') else { continue };
        let type_name = head.rsplit([':', ' ']).find(|word| !word.is_empty()).unwrap_or_default();
        let above = lines[..index].iter().rev().take_while(|line| line.starts_with("///") || line.starts_with("#["));
        let comment = above.filter_map(|line| line.strip_prefix("///")).map(|line| line.trim().to_owned());
        let mut comment: Vec<String> = comment.collect();
        comment.reverse();
        found.push(Constant {
            file: file.to_owned(),
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            value: value.trim().to_owned(),
            comment,
        });
    }
    found
}

/// Evaluates an expression of numbers, sums, products, quotients and shifts.
fn number(expression: &str) -> Option<f64> {
    /// Splits at the last `operator` outside of parentheses.
    fn split<'a>(text: &'a str, operator: &str) -> Option<(&'a str, &'a str)> {
        let mut depth = 0;
        text.match_indices(|_| true).collect::<Vec<_>>().into_iter().rev().find_map(|(at, character)| {
            depth += i32::from(character == ")") - i32::from(character == "(");
            let found = depth == 0 && text[at..].starts_with(operator);
            found.then(|| (text[..at].trim(), text[at + operator.len()..].trim()))
        })
    }
    let expression = expression.trim();
    if let Some((left, right)) = split(expression, "<<") {
        return Some(number(left)? * number(right)?.exp2());
    }
    if let Some((left, right)) = split(expression, "+") {
        return Some(number(left)? + number(right)?);
    }
    if let Some((left, right)) = split(expression, "/") {
        return Some(number(left)? / number(right)?);
    }
    if let Some((left, right)) = split(expression, "*") {
        return Some(number(left)? * number(right)?);
    }
    if let Some(inner) = expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        return number(inner);
    }
    expression.replace('_', "").parse().ok()
}

/// Formats a number with commas between thousands, and at most two digits after the decimal point.
fn grouped(number: f64) -> String {
    if number.fract() != 0.0 {
        return format!("{number:.2}");
    }
    let digits = format!("{number:.0}");
    let parts: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|part| str::from_utf8(part).unwrap()).collect();
    parts.join(",")
}

impl Constant {
    fn has_word(&self, word: &str) -> bool {
        self.name.split('_').any(|part| part == word)
    }

    /// Returns the value, and the value under simulation if it is different.
    fn values(&self) -> (&str, Option<&str>) {
        let parts = |condition: &str| {
            let rest = self.value.strip_prefix(condition)?.strip_prefix(" { ")?;
            rest.strip_suffix(" }")?.split_once(" } else { ")
        };
        if let Some((simulated, value)) = parts("if cfg!(feature = \"sim\")") {
            (value, Some(simulated))
        } else if let Some((_, value)) = parts("if cfg!(drumlin_loom)") {
            (value, None)
        } else {
            (&self.value, None)
        }
    }

    fn is_tuning(&self) -> bool {
        let is_number = ["u8", "u16", "u32", "u64", "usize", "i32", "i64", "f32", "f64"].contains(&&*self.type_name);
        let (value, simulated) = self.values();
        let is_chosen = simulated.is_some() || self.type_name == "Duration" || number(value).is_some();
        let is_fixed =
            self.comment.join(" ").contains("Fixed by") || LAYOUT_WORDS.iter().any(|word| self.has_word(word));
        (is_number || self.type_name == "Duration") && is_chosen && !is_fixed
    }

    /// Returns the unit, or `None` if the name has no word for one.
    fn unit(&self) -> Option<&'static str> {
        self.name.split('_').rev().find_map(|word| UNITS.iter().find(|(name, _)| *name == word)).map(|(_, unit)| *unit)
    }

    /// Formats a value with its unit.
    fn shown(&self, value: &str) -> String {
        if let Some(duration) = value.rsplit("Duration::from_").next().filter(|_| self.type_name == "Duration") {
            let (unit, count) = duration.trim_end_matches(')').split_once('(').expect("a duration has a unit");
            let unit = match unit {
                "secs" => "s",
                "millis" => "ms",
                "micros" => "µs",
                _ => unit,
            };
            return format!("{count} {unit}");
        }
        let unit = self.unit().unwrap_or_else(|| panic!("{}: {} has no unit in its name", self.file, self.name));
        if value == "u64::MAX" {
            return "no limit".to_owned();
        }
        let Some(number) = number(value) else { return format!("`{value}` {unit}") };
        match unit {
            "bytes" => {
                let sizes = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("bytes", 0)];
                let is_whole = |shift: i32| {
                    shift == 0 || number >= f64::from(shift).exp2() && number % f64::from(shift).exp2() == 0.0
                };
                let (size, shift) = sizes.into_iter().find(|(_, shift)| is_whole(*shift)).expect("a byte divides it");
                format!("{} {size}", grouped(number / f64::from(shift).exp2()))
            }
            "share" if number >= 1.0 => format!("1/{}", grouped(number)),
            "share" if number == 1.0 / 32.0 => "1/32".to_owned(),
            "share" => format!("{:.0} %", number * 100.0),
            "" => grouped(number),
            _ => format!("{} {unit}", grouped(number)),
        }
    }

    /// Returns the first sentence of the comment, without links.
    fn purpose(&self) -> String {
        let prose: Vec<&str> =
            self.comment.iter().map(String::as_str).filter(|line| !line.starts_with("Measured:")).collect();
        let prose = without_links(&prose.join(" "));
        let sentence = prose.split_once(". ").map_or(prose.trim_end_matches('.'), |(sentence, _)| sentence);
        let is_library = self.file.starts_with("drumlin/");
        assert!(!sentence.is_empty() || !is_library, "{}: {} has no comment", self.file, self.name);
        sentence.to_owned()
    }

    /// Returns the place where the value was measured.
    fn measured(&self) -> String {
        let place = self.comment.iter().find_map(|line| line.strip_prefix("Measured: "));
        let prose = self.comment.join(" ");
        match place {
            Some(place) if place.starts_with("the figure") => "its comment".to_owned(),
            Some(place) => link_decision(&without_links(place.trim_end_matches('.'))),
            None if prose.contains(" took ") || prose.contains("k/s") => "its comment".to_owned(),
            None => "not measured".to_owned(),
        }
    }
}

/// Replaces the links in a comment with their texts.
fn without_links(text: &str) -> String {
    let mut parts = text.split('[');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(']').unwrap_or((part, ""));
        let target = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        plain.push_str(name);
        plain.push_str(target.map_or(rest, |(_, rest)| rest));
    }
    plain
}

/// Turns the word "decision" and the number at the beginning of a text into a link.
fn link_decision(text: &str) -> String {
    let Some(rest) = text.strip_prefix("decision ") else { return text.to_owned() };
    let (number, rest) = rest.split_at(3);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/decisions");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let name = names.into_iter().find(|name| name.starts_with(number)).expect("the decision exists");
    format!("[decision {number}](decisions/{name}){rest}")
}

/// Returns the name of the table for a constant, which is its folder.
fn table_of(file: &str) -> String {
    match file.strip_prefix("drumlin/src/").map(|rest| rest.split_once('/')) {
        Some(Some((folder, _))) => folder.to_owned(),
        Some(None) => "library".to_owned(),
        None => "drumlin-io".to_owned(),
    }
}

/// The tables in docs/tuning.md match the constants in the sources. `DRUMLIN_TEST_BLESS` updates the tables.
#[test]
fn the_tables_have_every_constant() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths = Vec::new();
    files_below(&crates.join("drumlin/src"), "rs", &mut paths);
    files_below(&crates.join("drumlin-io/src"), "rs", &mut paths);
    paths.sort();
    let mut tables: Vec<(String, Vec<Vec<String>>)> = Vec::new();
    for path in paths {
        let file = path.strip_prefix(&crates).unwrap().display().to_string().replace('\\', "/");
        let is_test = file.ends_with("/tests.rs") || file.contains("/tests/");
        if is_test || LEFT_OUT.iter().any(|start| file.starts_with(start)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let constants = constants_of(&file, &text);
        let simulated_count = constants.iter().filter(|constant| constant.values().1.is_some()).count();
        assert_eq!(
            text.matches("cfg!(feature = \"sim\")").count(),
            simulated_count,
            "{file}: a value under simulation is that of a constant, `if cfg!(feature = \"sim\") {{ .. }} else {{ .. }}`"
        );
        for constant in constants {
            if !constant.is_tuning() {
                continue;
            }
            let (value, simulated) = constant.values();
            let name = table_of(&file);
            if !tables.iter().any(|(table, _)| *table == name) {
                tables.push((name.clone(), Vec::new()));
            }
            let (_, rows) = tables.iter_mut().find(|(table, _)| *table == name).expect("it was added");
            let within = file.split_once("/src/").map_or(&*file, |(_, within)| within);
            rows.push(vec![
                format!("`{}`", constant.name),
                format!("`{within}`"),
                constant.shown(value),
                simulated.map_or_else(String::new, |value| constant.shown(value)),
                constant.purpose(),
                constant.measured(),
            ]);
        }
    }
    let count: usize = tables.iter().map(|(_, rows)| rows.len()).sum();
    assert!(count > 150, "only {count} constants were found");

    let path = crates.join("../docs/tuning.md");
    let is_blessed = std::env::var_os("DRUMLIN_TEST_BLESS").is_some();
    for (name, rows) in &tables {
        if is_blessed {
            documents::write_rows(&path, name, rows.clone()).unwrap_or_else(|error| panic!("table {name}: {error}"));
        }
        let written = documents::tables(&fs::read_to_string(&path).unwrap()).unwrap();
        let table = written.iter().find(|table| table.name == *name).unwrap_or_else(|| panic!("no table {name}"));
        assert_eq!(table.rows, *rows, "run this test with DRUMLIN_TEST_BLESS=1");
    }
    let names = documents::tables(&fs::read_to_string(&path).unwrap()).unwrap().into_iter().map(|table| table.name);
    let unused: Vec<String> = names.filter(|name| !tables.iter().any(|(table, _)| table == name)).collect();
    assert!(unused.is_empty(), "tables without constants: {unused:?}");
}

/// `number` can evaluate the kinds of expressions that appear in constants.
#[test]
fn expressions_have_values() {
    assert_eq!(number("10_000"), Some(10_000.0));
    assert_eq!(number("64 << 10"), Some(65_536.0));
    assert_eq!(number("(256 << 10) + (64 << 10)"), Some(327_680.0));
    assert_eq!(number("1.0 / 32.0"), Some(1.0 / 32.0));
    assert_eq!(number("8 * BATCH_PAGES"), None);
}
