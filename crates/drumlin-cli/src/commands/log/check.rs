//! `drumlin log check`: reads and verifies every entry.

use std::time::{Duration, Instant};

use clap::Args;
use drumlin::Error;
use drumlin::logs::Logs;
use serde::Serialize;

use super::FolderArgs;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt;
use crate::terminal::{Output, Progress, figures, style};

/// The maximum number of damaged places listed in the text output. The JSON lists them all.
const DAMAGE_SHOWN_MAX: usize = 20;

/// Read and verify every entry
///
/// Also verifies the index, and every record that the next opening would replay. Lists each damaged entry with its log,
/// index, file and offset, and exits with code 4. Nothing is written.
#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    folder: FolderArgs,
}

#[derive(Serialize)]
struct Report {
    sound: bool,
    opens: bool,
    logs: u64,
    entries: u64,
    bytes: u64,
    seconds: f64,
    corruption: Vec<Corruption>,
}

#[derive(Serialize)]
struct Corruption {
    /// The log and the index of a damaged entry, unless something else is damaged.
    log: Option<u64>,
    index: Option<u64>,
    file: String,
    what: String,
    reason: String,
}

impl Check {
    pub(super) fn run(&self, output: Output) -> Result<()> {
        self.folder.check_there()?;
        interrupt::watch();
        let start = Instant::now();
        let mut report =
            Report { sound: true, opens: true, logs: 0, entries: 0, bytes: 0, seconds: 0.0, corruption: Vec::new() };
        match self.folder.open() {
            Ok(logs) => report.read(&logs, output).map_err(|failure| match failure {
                Stopped::Interrupted(failure) => failure,
                Stopped::Failed(error) => self.folder.failed(error),
            })?,
            Err(Error::Corrupted { path, what, reason }) => {
                report.opens = false;
                let file = path.display().to_string();
                report.corruption.push(Corruption { log: None, index: None, file, what, reason });
            }
            Err(error) => return Err(self.folder.failed(error)),
        }
        report.sound = report.corruption.is_empty();
        let elapsed = start.elapsed();
        report.seconds = elapsed.as_secs_f64();
        output.print(&report, || report.text(elapsed))?;
        if report.sound { Ok(()) } else { Err(Failure::silent(Exit::Corrupted)) }
    }
}

/// The reason why a check did not read everything.
enum Stopped {
    Interrupted(Failure),
    Failed(Error),
}

impl Report {
    /// Reads every entry of every log.
    fn read(&mut self, logs: &Logs, output: Output) -> std::result::Result<(), Stopped> {
        let bar = Progress::items(output, "entries checked", logs.stats().entry_count);
        for number in logs.numbers() {
            self.logs += 1;
            let log = logs.log(number);
            let (Some(mut next), Some(last)) = (log.first(), log.last()) else { continue };
            while next <= last {
                // The iterator ends after an error. The entries after the damaged one may be sound.
                for entry in log.range(next..=last).map_err(Stopped::Failed)? {
                    interrupt::check().map_err(Stopped::Interrupted)?;
                    match entry {
                        Ok(entry) => self.bytes += entry.len() as u64,
                        Err(Error::Corrupted { path, what, reason }) => {
                            let (log, index) = (Some(number), Some(next));
                            let file = path.display().to_string();
                            self.corruption.push(Corruption { log, index, file, what, reason });
                        }
                        Err(error) => return Err(Stopped::Failed(error)),
                    }
                    self.entries += 1;
                    next += 1;
                }
                bar.set(self.entries);
            }
        }
        bar.finish();
        Ok(())
    }

    fn text(&self, elapsed: Duration) -> String {
        let read = format!(
            "{} and {} of {} in {}",
            if self.entries == 1 { "1 entry".to_owned() } else { format!("{} entries", figures::count(self.entries)) },
            figures::bytes(self.bytes),
            figures::plural(self.logs, "log"),
            figures::duration(elapsed)
        );
        let (good, bad) = (style::GOOD, style::BAD);
        let mut text = match (self.sound, self.opens) {
            (true, _) => format!("{good}sound{good:#}: {read}"),
            (false, true) => format!("{bad}damaged{bad:#}: {read}"),
            (false, false) => format!("{bad}damaged, and can't be opened{bad:#}"),
        };
        for corruption in self.corruption.iter().take(DAMAGE_SHOWN_MAX) {
            text += &format!("\n  {} in {}: {}", corruption.what, corruption.file, corruption.reason);
        }
        let hidden_count = self.corruption.len().saturating_sub(DAMAGE_SHOWN_MAX);
        if hidden_count > 0 {
            text += &format!("\n  and {hidden_count} more; --json lists all");
        }
        if !self.sound {
            text += match self.opens {
                true => {
                    "\nNothing was written. The other entries can be read. A damaged entry is lost on this node, as\
                         \nthere is one copy: purge it or cut it off, and copy it from another node."
                }
                false => {
                    "\nNothing was written. Restore missing or truncated files, if there are copies of them from\
                          \nexactly this state; otherwise the logs have to come from elsewhere."
                }
            };
        }
        text
    }
}
