//! Planted bugs. They show that the simulation finds bugs of their kind.
//!
//! Each bug is a patch in `plants/`: a line that describes the bug, a line that names its finder, and a unified diff.
//! The patch is applied to a copy of the sources, which is then built with the profile `planted` (a quick build with
//! assertions). The finder must find the bug within a minute of processor time. On a copy without a patch, the same
//! finders must find nothing. The library itself contains no code for planted bugs.

use std::fs;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use diffy::{Line, Patch};
use drumlin_testing::documents;

/// A search for bugs: a command of this program, or the library's models.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finder {
    /// Cuts the power or kills the process after each disk change of one script.
    CrashPoints,
    /// Runs simulated worlds, one for each seed.
    Worlds,
    /// Runs simulated worlds whose disks flip bits.
    RottenWorlds,
    /// Runs histories of logs by index, one for each seed.
    Logs,
    /// Runs simulated worlds of a whole Raft cluster, one for each seed.
    Cluster,
    /// Runs the tests of drumlin-raft that cut the power after each answer.
    RaftTests,
    /// Explores every interleaving of the lock-free parts, like `scripts/models`.
    Models,
}

impl Finder {
    const ALL: [Self; 7] =
        [Self::CrashPoints, Self::Worlds, Self::RottenWorlds, Self::Logs, Self::Cluster, Self::RaftTests, Self::Models];

    /// Returns the name used in patches.
    fn name(self) -> &'static str {
        match self {
            Self::CrashPoints => "crash-points",
            Self::Worlds => "worlds",
            Self::RottenWorlds => "worlds --fault rot",
            Self::Logs => "logs",
            Self::Cluster => "cluster",
            Self::RaftTests => "raft tests",
            Self::Models => "models",
        }
    }

    /// Returns the name used in docs/testing.md.
    fn title(self) -> &'static str {
        match self {
            Self::CrashPoints => "crash points",
            Self::Worlds => "worlds",
            Self::RottenWorlds => "worlds with `--fault rot`",
            Self::Logs => "histories of logs",
            Self::Cluster => "clusters",
            Self::RaftTests => "tests of drumlin-raft",
            Self::Models => "models",
        }
    }

    /// Returns the arguments of this program, or of `cargo test` for the tests and the models. They limit the run to
    /// the same operations on every machine. The limit of ten minutes matters only if a run hangs.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::CrashPoints => {
                &["--minutes", "10", "--finds", "1", "crash-points", "--recovery", "0", "--random", "2"]
            }
            Self::Worlds => &["--minutes", "10", "--finds", "1", "--from", "0", "--seeds", "120"],
            Self::RottenWorlds => {
                &["--minutes", "10", "--finds", "1", "--from", "0", "--seeds", "120", "--fault", "rot"]
            }
            Self::Logs => &["--minutes", "10", "--finds", "1", "--from", "0", "--seeds", "60", "logs"],
            Self::Cluster => &["--minutes", "10", "--finds", "1", "--from", "0", "--seeds", "100", "cluster"],
            Self::RaftTests => &["durability", "--test-threads", "1"],
            // On one thread, the time of the run is its processor time.
            Self::Models => &["loom_", "--test-threads", "1"],
        }
    }
}

/// The limit on a finder's processor time.
const SECONDS_MAX: f64 = 60.0;

/// The sources that drumlin-sim is built from, relative to the root of the workspace.
const SOURCES: [&str; 9] = [
    "Cargo.lock",
    "crates/drumlin/Cargo.toml",
    "crates/drumlin/src",
    "crates/drumlin-io/Cargo.toml",
    "crates/drumlin-io/src",
    "crates/drumlin-sim/Cargo.toml",
    "crates/drumlin-sim/src",
    "crates/drumlin-raft",
    // The library's manifest lists `drumlin-testing` as a dev-dependency, so the build needs it.
    "crates/drumlin-testing",
];

/// A planted bug.
#[derive(Clone, Debug)]
pub struct Plant {
    /// The name of the patch file, without the extension.
    pub name: String,
    /// A sentence that describes the bug.
    pub bug: String,
    pub finder: Finder,
    diff: String,
}

impl Plant {
    /// Parses the patch called `name`.
    fn parse(name: &str, text: &str) -> Result<Self> {
        let wrong = |what: &str| Error::other(format!("{name}.patch {what}"));
        let (heading, diff) = text.split_once("\n\n").ok_or_else(|| wrong("has no heading above its diff"))?;
        let (bug, found_by) = heading.split_once("\nFound by: ").ok_or_else(|| wrong("does not name its finder"))?;
        let finder = Finder::ALL.into_iter().find(|finder| finder.name() == found_by);
        let finder = finder.ok_or_else(|| wrong(&format!("names a finder that does not exist: {found_by}")))?;
        Ok(Self { name: name.to_owned(), bug: bug.to_owned(), finder, diff: diff.to_owned() })
    }

    /// Applies the patch to the file that it names, below `root`.
    ///
    /// # Errors
    /// If a hunk's old lines are not in that file exactly once, or the file can't be read or written.
    pub fn apply(&self, root: &Path) -> Result<()> {
        let (path, changed) = self.changed(root)?;
        fs::write(path, changed)
    }

    /// Returns the path of the file that the patch names, and the text of that file with the bug.
    ///
    /// # Errors
    /// Same as [`Plant::apply`].
    pub fn changed(&self, root: &Path) -> Result<(PathBuf, String)> {
        let wrong = |what: String| Error::other(format!("{}.patch {what}", self.name));
        let patch = Patch::from_str(&self.diff).map_err(|error| wrong(format!("is not a unified diff: {error}")))?;
        let named = patch.original().and_then(|path| path.strip_prefix("a/"));
        let named = named.ok_or_else(|| wrong("names no file to change".to_owned()))?;
        let path = root.join(named);
        let text = fs::read_to_string(&path).map_err(|error| wrong(format!("changes {named}: {error}")))?;
        for (index, hunk) in patch.hunks().iter().enumerate() {
            let old: String = hunk.lines().iter().filter_map(old_line).collect();
            let count = text.matches(&old).count();
            if count != 1 {
                return Err(wrong(format!(
                    "does not apply: the lines of hunk {} are {count} times in {named}",
                    index + 1
                )));
            }
        }
        let changed =
            diffy::apply(&text, &patch).map_err(|error| wrong(format!("does not apply to {named}: {error}")))?;
        Ok((path, changed))
    }
}

/// Returns the text that the unchanged file has in place of a diff line, or `None` for an inserted line.
fn old_line<'l>(line: &Line<'l, str>) -> Option<&'l str> {
    match line {
        Line::Context(text) | Line::Delete(text) => Some(text),
        Line::Insert(_) => None,
    }
}

/// Returns the root of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns every planted bug, one per file in `plants/`, sorted by name.
///
/// # Errors
/// If the folder can't be read or contains any other file.
pub fn plants() -> Result<Vec<Plant>> {
    let mut plants = Vec::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("plants"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".patch"));
        let name = name.ok_or_else(|| Error::other(format!("{} is not a patch", path.display())))?;
        plants.push(Plant::parse(name, &fs::read_to_string(&path)?)?);
    }
    plants.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(plants)
}

/// Runs each finder on the unchanged library, where it must find nothing. Then builds the library with each bug and
/// runs the bug's finder, which must find it within a minute of processor time. Returns `true` if every finder behaved
/// as required.
///
/// `only` selects bugs whose name contains it. With `updates_docs`, writes the table in docs/testing.md, provided that
/// all bugs were selected and found.
///
/// # Errors
/// If a source can't be read, copied or built, a finder can't be run, or a patch does not apply.
pub fn run(only: &str, updates_docs: bool) -> Result<bool> {
    let mut plants = plants()?;
    plants.retain(|plant| plant.name.contains(only));
    if plants.is_empty() {
        return Err(Error::other(format!("no planted bug's name contains {only}")));
    }
    let mut is_as_meant = true;
    for finder in Finder::ALL.into_iter().filter(|finder| plants.iter().any(|plant| plant.finder == *finder)) {
        println!("without a bug: {}, {}", finder.name(), finder.arguments().join(" "));
        let outcome = find(&copy_sources(None)?, finder)?;
        println!("  {}: {}", if outcome.found { "FOUND SOMETHING" } else { "nothing found" }, outcome.text);
        is_as_meant &= !outcome.found;
    }
    let mut rows = Vec::new();
    for plant in plants {
        println!("{}: {}", plant.name, plant.bug);
        let outcome = find(&copy_sources(Some(&plant))?, plant.finder)?;
        let is_caught = outcome.found && outcome.processor_seconds <= SECONDS_MAX;
        println!("  {} by {}: {}", if is_caught { "found" } else { "NOT FOUND" }, plant.finder.name(), outcome.text);
        is_as_meant &= is_caught;
        let seconds = match outcome.processor_seconds {
            seconds if seconds < 0.1 => "below 0.1".into(),
            seconds => format!("{seconds:.1}"),
        };
        rows.push(vec![format!("`{}`", plant.name), format!("{}, {}", plant.finder.title(), outcome.place), seconds]);
    }
    if updates_docs && only.is_empty() && is_as_meant {
        documents::write_rows(&documents::testing_page(), "planted", rows)?;
    }
    Ok(is_as_meant)
}

/// Copies the sources that drumlin-sim is built from to `target/planted`, as a separate workspace, with the bug if one
/// is given. Returns the path of the copy.
fn copy_sources(plant: Option<&Plant>) -> Result<PathBuf> {
    let copy = workspace().join("target/planted").join(plant.map_or("no-bug", |plant| &plant.name));
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    fs::create_dir_all(&copy)?;
    let manifest = fs::read_to_string(workspace().join("Cargo.toml"))?;
    // Leave out the default members, because some of those crates are not copied.
    let lines = manifest.lines().filter(|line| !line.starts_with("default-members"));
    fs::write(copy.join("Cargo.toml"), lines.flat_map(|line| [line, "\n"]).collect::<String>())?;
    SOURCES.iter().try_for_each(|source| copy_all(&workspace().join(source), &copy.join(source)))?;
    plant.map_or(Ok(()), |plant| plant.apply(&copy))?;
    Ok(copy)
}

/// Returns a cargo command for a copy of the sources, with the profile `planted`. The copies share a target folder, so
/// dependencies are built only once.
fn cargo(copy: &Path, arguments: &[&str], target: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(copy).args(arguments).args(["--quiet", "--profile", "planted", "--target-dir", target]);
    command
}

fn build(mut command: Command, copy: &Path) -> Result<()> {
    if command.status()?.success() { Ok(()) } else { Err(Error::other(format!("{} does not build", copy.display()))) }
}

/// Copies a file, or a folder with its whole content.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        return fs::read_dir(from)?.try_for_each(|entry| {
            let entry = entry?;
            copy_all(&entry.path(), &to.join(entry.file_name()))
        });
    }
    fs::create_dir_all(to.parent().expect("a file below the copy's root"))?;
    fs::copy(from, to)?;
    Ok(())
}

struct Outcome {
    found: bool,
    processor_seconds: f64,
    /// The seed, the disk change or the model that found the bug.
    place: String,
    /// The time that the finder took, and its report.
    text: String,
}

/// Builds a copy of the sources, and runs a finder.
fn find(copy: &Path, finder: Finder) -> Result<Outcome> {
    match finder {
        Finder::Models => return run_tests(copy, finder, &["-p", "drumlin", "--lib"], "../models"),
        Finder::RaftTests => return run_tests(copy, finder, &["-p", "drumlin-raft", "--test", "raft"], "../target"),
        _ => {}
    }
    build(cargo(copy, &["build", "-p", "drumlin-sim"], "../target"), copy)?;
    let program = copy.with_file_name("target").join("planted/drumlin-sim");
    let began = Instant::now();
    let output = Command::new(program).args(finder.arguments()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = !output.status.success() && text.contains("FOUND");
    let seconds = text.lines().find_map(|line| line.strip_prefix(PROCESSOR_TIME)?.strip_suffix(" s")?.parse().ok());
    let processor_seconds = seconds.unwrap_or(f64::INFINITY);
    // Leave out the command that replays the failure, because it would run the library without the bug.
    let report = text.lines().skip_while(|line| !line.contains("FOUND")).take(2);
    let report: Vec<&str> = report.map(str::trim).filter(|line| !line.starts_with("again:")).collect();
    let place = report.first().and_then(|line| place_of(line)).unwrap_or_default();
    let report: String = report.into_iter().flat_map(|line| ["\n    ", line]).collect();
    let seconds = began.elapsed().as_secs_f64();
    let text = format!("{processor_seconds:.1} s of processor time, {seconds:.1} s in total{report}");
    Ok(Outcome { found, processor_seconds, place, text })
}

/// Runs tests: the library's models, or those of a package. One that fails has found the bug.
fn run_tests(copy: &Path, finder: Finder, package: &[&str], target: &str) -> Result<Outcome> {
    let command = || {
        let mut command = cargo(copy, &["test"], target);
        command.args(package);
        if finder == Finder::Models {
            command.env("RUSTFLAGS", "--cfg drumlin_loom").env("LOOM_MAX_PREEMPTIONS", "3");
        }
        command
    };
    let mut compile = command();
    compile.arg("--no-run");
    build(compile, copy)?;
    let began = Instant::now();
    let output = command().arg("--").args(finder.arguments()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = text.lines().find_map(|line| Some(line.strip_prefix("---- ")?.split_once(" stdout")?.0));
    let processor_seconds = began.elapsed().as_secs_f64();
    let failed = failed.and_then(|path| path.rsplit("::").next()).filter(|_| !output.status.success());
    let place = failed.map_or(String::new(), |name| format!("`{name}`"));
    let text = format!("{processor_seconds:.1} s\n    {place}");
    Ok(Outcome { found: failed.is_some(), processor_seconds, place, text })
}

/// Returns the seed or the disk change in the first line of a finder's report.
fn place_of(line: &str) -> Option<String> {
    let after = |what: &str, name: &str| {
        let number = line.split_once(what)?.1.split(|c: char| !c.is_ascii_digit()).next()?;
        Some(format!("{name} {number}"))
    };
    after("FOUND by seed ", "seed").or_else(|| after(" after change ", "change"))
}

/// The prefix of the line with a finder's processor time.
pub const PROCESSOR_TIME: &str = "processor time: ";

/// Returns the line with this process's processor time.
#[must_use]
pub fn processor_time() -> String {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    format!("{PROCESSOR_TIME}{:.1} s", time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{SOURCES, place_of, workspace};

    /// Each crate of the workspace that a copied crate depends on is copied, too: otherwise no planted bug is built.
    #[test]
    fn copies_have_all_their_crates() {
        for manifest in SOURCES.iter().filter_map(|source| source.strip_suffix("/Cargo.toml")) {
            let text = fs::read_to_string(workspace().join(manifest).join("Cargo.toml")).unwrap();
            for dependency in text.split("path = \"../").skip(1).filter_map(|rest| rest.split('"').next()) {
                let folder = format!("crates/{dependency}");
                assert!(SOURCES.iter().any(|source| source.starts_with(&folder)), "{manifest} needs {folder}");
            }
        }
    }

    /// The seed or disk change is parsed from both kinds of reports.
    #[test]
    fn finds_name_their_place() {
        let place = |line| place_of(line).unwrap_or_default();
        assert_eq!(place("FOUND by seed 55: at commit 3 row k is missing"), "seed 55");
        assert_eq!(place("FOUND: a cut after change 137, loss All, draw 1: opening"), "change 137");
        assert_eq!(place("FOUND: killed after change 8: opening"), "change 8");
        assert_eq!(place("nothing"), "");
    }
}
