//! The text of the tour: at most 80 columns and about 50 lines, with measured figures only.

use std::path::Path;
use std::time::Duration;

use super::place::Place;
use super::questions::Answers;
use super::report::{Device, Finish, Killed, Proof, Recovery, Report};
use super::survey::Survey;
use crate::failure::Result;
use crate::terminal::figures::{bytes, clip_start, count, plural};
use crate::terminal::{Output, figures, style};

const COLUMNS: usize = 80;
/// The length of the longest bar in the last chart.
const BAR_COLUMNS: usize = 40;

/// Prints the tour to stdout, or prints nothing if the output is JSON.
#[derive(Clone, Copy, Debug)]
pub(super) struct Narration {
    output: Output,
}

fn duration(seconds: f64) -> String {
    figures::duration(Duration::from_secs_f64(seconds))
}

impl Narration {
    pub(super) fn new(output: Output) -> Narration {
        Narration { output }
    }

    fn tell(&self, text: &str) -> Result<()> {
        if self.output.json() { Ok(()) } else { self.output.print_text(text) }
    }

    fn stop(&self, number: u8, title: &str) -> Result<()> {
        let (accent, bold) = (style::ACCENT, style::BOLD);
        self.tell(&format!("\n{accent}{number}{accent:#}  {bold}{title}{bold:#}"))
    }

    fn proved_line(&self, is_good: bool, text: &str) -> Result<()> {
        let (style, sign) = if is_good { (style::GOOD, '✓') } else { (style::BAD, '✗') };
        self.tell(&format!("   {style}{sign}{style:#} {text}"))
    }

    pub(super) fn opening(
        &self,
        root: &Path,
        survey: &Survey,
        place: &Place,
        device: &Device,
        budget_bytes: u64,
    ) -> Result<()> {
        let (bold, dim) = (style::BOLD, style::DIM);
        self.tell(&format!("{bold}Drumlin{bold:#}: real data goes in, the process is killed, nothing is lost.\n"))?;
        for remark in &place.remarks {
            self.tell(&format!("   {dim}{remark}{dim:#}"))?;
        }
        let fact = |label: &str, text: String| self.tell(&format!("   {dim}{label:<9}{dim:#} {text}"));
        fact("tree", clip_start(&root.display().to_string(), COLUMNS - 13))?;
        fact(
            "",
            format!(
                "{}, {}; the largest has {}",
                plural(survey.files, "file"),
                bytes(survey.bytes),
                bytes(survey.largest_bytes)
            ),
        )?;
        fact("database", clip_start(&place.database.display().to_string(), COLUMNS - 13))?;
        fact("", format!("on {}, {} free", place.file_system, bytes(place.free_bytes)))?;
        let direct = if device.direct_io { "direct I/O" } else { "through the page cache" };
        fact("device", format!("{} backend, {direct}, durable by {}", device.io_backend, device.sync_method))?;
        let share = survey.bytes as f64 / budget_bytes as f64;
        let compared = if share > 1.5 {
            format!("the data is {share:.0} times as large")
        } else {
            "the least it works in; a larger tree would show more".to_owned()
        };
        fact("memory", format!("{}: {compared}", figures::budget(budget_bytes)))
    }

    pub(super) fn begin_load(&self) -> Result<()> {
        self.stop(1, "Load it, and kill it midway")?;
        self.tell("   A process stores every file in one durable transaction over three keyspaces:")?;
        self.tell("   metadata by path, contents by path, path by size.")
    }

    pub(super) fn killed(&self, killed: &Killed) -> Result<()> {
        self.tell(&format!(
            "   {}, {}, acknowledged in {}: {} commits/s, {}/s.",
            plural(killed.acknowledged_files, "file"),
            bytes(killed.acknowledged_bytes),
            duration(killed.seconds),
            figures::rate(killed.acknowledged_files as f64 / killed.seconds.max(1e-9)),
            bytes((killed.acknowledged_bytes as f64 / killed.seconds.max(1e-9)) as u64)
        ))?;
        let bad = style::BAD;
        if killed.was_killed {
            self.tell(&format!("   {bad}SIGKILL.{bad:#}"))?;
        }
        if killed.was_midway {
            return Ok(());
        }
        self.tell("   The tree is too small to be killed in the middle: it was stored by then.")?;
        self.tell("   A larger one shows more; about a gigabyte is right: drumlin tour PATH")
    }

    pub(super) fn begin_recovery(&self) -> Result<()> {
        self.stop(2, "Start again, and compare with the disk")
    }

    pub(super) fn recovered(&self, recovery: &Recovery) -> Result<()> {
        let good = style::GOOD;
        self.tell(&format!(
            "   {good}Recovered in {}{good:#}: {} of the log replayed, {}.",
            duration(recovery.seconds),
            plural(recovery.records, "record"),
            bytes(recovery.log_bytes)
        ))
    }

    pub(super) fn proved(&self, proof: &Proof) -> Result<()> {
        let acknowledged = count(proof.acknowledged);
        if proof.lost.is_empty() {
            self.proved_line(true, &format!("all {acknowledged} acknowledged files are there"))?;
        } else {
            self.proved_line(
                false,
                &format!("{} of {acknowledged} acknowledged are lost", count(proof.lost.len() as u64)),
            )?;
        }
        let unanswered = (proof.found + proof.lost.len() as u64).saturating_sub(proof.acknowledged);
        if unanswered > 0 {
            let what = plural(unanswered, "more commit");
            self.proved_line(true, &format!("{what} had reached the device, not yet acknowledged"))?;
        }
        match proof.torn.len() as u64 {
            0 => self.proved_line(true, "no file is stored in part: the three keyspaces agree")?,
            torn => self.proved_line(false, &format!("{} stored in part", plural(torn, "file")))?,
        }
        let compared = format!("{} compared with the disk in {}", bytes(proof.compared_bytes), duration(proof.seconds));
        match proof.different.len() as u64 {
            0 => self.proved_line(true, &format!("{compared}: every byte is the same"))?,
            different => self.proved_line(false, &format!("{compared}: {} differ", plural(different, "file")))?,
        }
        for name in proof.lost.iter().chain(&proof.torn).chain(&proof.different).take(10) {
            self.tell(&format!("       {name}"))?;
        }
        match proof.changed_meanwhile {
            0 => Ok(()),
            changed => self.tell(&format!("   {} changed on disk during the tour.", plural(changed, "file"))),
        }
    }

    pub(super) fn begin_finish(&self) -> Result<()> {
        self.stop(3, "Finish")
    }

    pub(super) fn finished(&self, finish: &Finish) -> Result<()> {
        self.tell(&format!(
            "   {}, {}, in {}; {} were stored already.",
            plural(finish.files_stored, "file"),
            bytes(finish.bytes_stored),
            duration(finish.seconds),
            count(finish.files_unchanged)
        ))?;
        for path in &finish.left_out {
            self.tell(&format!("   Left out, because it is the database itself: {}", clip_start(path, COLUMNS - 48)))?;
        }
        for (number, noun, what) in [
            (finish.files_unreadable, "file", "could not be read"),
            (finish.paths_too_long, "path", "longer than keys may be: not stored"),
        ] {
            if number > 0 {
                self.tell(&format!("   {} {what}.", plural(number, noun)))?;
            }
        }
        Ok(())
    }

    pub(super) fn begin_questions(&self) -> Result<()> {
        self.stop(4, "Ask")
    }

    pub(super) fn answered(&self, answers: &Answers, survey: &Survey) -> Result<()> {
        let dim = style::DIM;
        self.tell(&format!("   The ten largest files {dim}in {}{dim:#}", duration(answers.largest_seconds)))?;
        for file in &answers.largest {
            self.tell(&format!("     {:>8}  {}", bytes(file.bytes), clip_start(&file.path, COLUMNS - 15)))?;
        }
        let all = answers.prefix.is_empty();
        let prefix = if all { "the whole tree" } else { &answers.prefix };
        self.tell(&format!("   The files below {}", clip_start(prefix, COLUMNS - 19)))?;
        self.tell(&format!(
            "     counted {dim}in {}, again in {};{dim:#} summed {dim}in {}, again in {}{dim:#}",
            duration(answers.count_seconds),
            duration(answers.count_again_seconds),
            duration(answers.sum_seconds),
            duration(answers.sum_again_seconds)
        ))?;
        for path in &answers.prefix_first {
            self.tell(&format!("               {}", clip_start(path, COLUMNS - 15)))?;
        }
        let more = answers.prefix_files.saturating_sub(answers.prefix_first.len() as u64);
        if more > 0 {
            self.tell(&format!("               {dim}and {} more{dim:#}", count(more)))?;
        }
        let held = format!("{}, {}", plural(answers.prefix_files, "file"), bytes(answers.prefix_bytes));
        if answers.prefix_agrees {
            self.proved_line(true, &format!("they hold {held}, the same as on disk"))
        } else {
            let below = survey.below_prefix;
            let disk = format!("{}, {}", plural(below.files, "file"), bytes(below.bytes));
            self.tell(&format!("   They hold {held}; the disk had {disk} at the start."))
        }
    }

    pub(super) fn closing(&self, report: &Report, place: &Place) -> Result<()> {
        self.stop(5, "What it took")?;
        let resident = report.resident_bytes_max.unwrap_or(0);
        let bars = [
            ("data", report.data_bytes, ""),
            ("budget", report.budget_bytes, ""),
            ("resident", resident, " at most"),
            ("on disk", report.data_file_bytes, ""),
        ];
        let longest = bars.iter().map(|bar| bar.1).max().unwrap_or(0);
        for (label, amount, remark) in bars.into_iter().filter(|bar| bar.1 > 0) {
            self.bar(label, amount, longest, remark)?;
        }
        let (bold, dim) = (style::BOLD, style::DIM);
        self.tell(&format!("   {} in all.\n", duration(report.seconds)))?;
        let program = program();
        let database = place.database.display();
        self.tell(&format!("{bold}Try next{bold:#} {dim}(rm -r {database} deletes the database){dim:#}"))?;
        let mut commands = vec![
            format!("{program} du {database}"),
            format!("{program} scan {database} -k files --limit 5"),
            format!("{program} keyspaces {database} --count"),
            format!("{program} check {database}"),
            format!("{program} --help"),
        ];
        if let Some(short) = report.answers.largest.iter().min_by_key(|file| file.path.len()) {
            commands.insert(0, format!("{program} get {database} -k files '{}'", short.path.replace('\'', "\\x27")));
        }
        commands.iter().try_for_each(|command| self.tell(&format!("   {command}")))
    }

    fn bar(&self, label: &str, amount: u64, whole: u64, remark: &str) -> Result<()> {
        let (dim, accent) = (style::DIM, style::ACCENT);
        let halves = (amount as f64 / whole.max(1) as f64 * 2.0 * BAR_COLUMNS as f64).round() as usize;
        let halves = halves.clamp(1, 2 * BAR_COLUMNS);
        let bar = format!("{}{}", "━".repeat(halves / 2), if halves % 2 == 1 { "╸" } else { "" });
        self.tell(&format!("   {dim}{label:<9}{dim:#} {accent}{bar}{accent:#} {}{dim}{remark}{dim:#}", bytes(amount)))
    }
}

/// Returns the command that runs this program: its bare name if it is in PATH, otherwise its shortest path.
fn program() -> String {
    let Ok(program) = std::env::current_exe() else { return "drumlin".to_owned() };
    let name = program.file_name().unwrap_or_default();
    let in_path = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(name).canonicalize().is_ok_and(|found| found == program))
    });
    if in_path {
        return name.to_string_lossy().into_owned();
    }
    let here = std::env::current_dir().ok().and_then(|here| Some(program.strip_prefix(here).ok()?.to_path_buf()));
    here.map_or_else(|| program.display().to_string(), |path| path.display().to_string())
}
