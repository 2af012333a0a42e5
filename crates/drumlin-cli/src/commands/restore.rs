//! `drumlin restore`: makes a database of backups.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use drumlin::{Config, Error, RestorePoint};
use serde::Serialize;

use super::verify::{BackupLine, refuse_file};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::terminal::figures::parse_size;
use crate::terminal::{Output, figures};

/// Make a database of a full backup and the incremental ones after it
///
/// The database has the state of the last backup or, with --archive, that of a commit or time after it. If a backup is
/// damaged, cut short or does not follow the one before it, or the archive does not have all commits up to this point,
/// nothing is restored.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The folders of the backups, in the order in which they were made, or - for one from stdin
    #[arg(value_name = "BACKUP", required = true)]
    backups: Vec<PathBuf>,
    /// The folder of the new database, which must be new or empty
    #[arg(value_name = "DATABASE")]
    target: PathBuf,
    /// The folder of the archive that has the commits after the last backup
    #[arg(long, value_name = "FOLDER")]
    archive: Option<PathBuf>,
    /// Restore the state of this timestamp, or of this time in UTC, such as 2026-11-28T12:34:56Z, or 12:34 of today;
    /// without it, the newest one
    #[arg(long, value_name = "WHEN", requires = "archive", value_parser = parse_point)]
    until: Option<RestorePoint>,
    /// Memory that the engine may use, such as 64MiB or 1GiB
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    memory: u64,
}

impl Restore {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        self.backups.iter().try_for_each(|backup| refuse_file(backup, "restore - DATABASE"))?;
        interrupt::end_after(output.json(), || "give the same command again".to_owned());
        let config = Config::new().memory(self.memory);
        if let Some(archive) = &self.archive {
            return self.restore_to(&config, archive, output);
        }
        let info = match &self.backups[..] {
            [only] if only.as_os_str() == "-" => config.restore_from([io::stdin().lock()], &self.target),
            backups => config.restore(backups, &self.target),
        };
        let info = info.map_err(ended)?;
        output.print(&BackupLine::of(&info), || {
            format!(
                "restored the state of timestamp {}, which was backed up {} ago",
                info.timestamp,
                figures::duration(info.age)
            )
        })
    }

    fn restore_to(&self, config: &Config, archive: &Path, output: Output) -> Result<()> {
        let point = self.until.unwrap_or(RestorePoint::Newest);
        let report = match &self.backups[..] {
            [only] if only.as_os_str() == "-" => {
                config.restore_from_to([io::stdin().lock()], archive, point, &self.target)
            }
            backups => config.restore_to(backups, archive, point, &self.target),
        };
        let report = report.map_err(ended)?;
        let line = RestoredLine {
            timestamp: report.timestamp.0,
            time: report.time.map(|time| RestorePoint::Time(time).to_string()),
            commits: report.commits,
            backup: BackupLine::of(&report.backup),
        };
        output.print(&line, || {
            let time = line.time.as_ref().map_or(String::new(), |time| format!(" of {time}"));
            format!(
                "restored the state of timestamp {}{time}, {} after the backup",
                line.timestamp,
                figures::plural(line.commits, "commit")
            )
        })
    }
}

/// Converts the error of a restore.
fn ended(error: Error) -> Failure {
    Failure::from(error).hint_if_full("free space there; then give the same command again")
}

/// The description of a restored point that the command prints.
#[derive(Serialize)]
struct RestoredLine {
    timestamp: u64,
    time: Option<String>,
    commits: u64,
    backup: BackupLine,
}

/// Reads a point. A time without a date is one of today.
fn parse_point(text: &str) -> std::result::Result<RestorePoint, String> {
    let is_time_of_day = text.contains(':') && !text.contains('-');
    if !is_time_of_day {
        return text.parse();
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(|error| error.to_string())?;
    let today = RestorePoint::Time(now).to_string();
    let (date, _) = today.split_once('T').expect("a time has a date");
    format!("{date}T{text}").parse()
}
