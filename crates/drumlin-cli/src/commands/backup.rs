//! `drumlin backup`: writes a backup to a folder or to stdout.

use std::io;
use std::path::PathBuf;

use clap::Args;
use drumlin::{BackupOptions, BackupReport, Error};
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::terminal::{Output, figures};

/// Write a backup of a database to a folder or to stdout
///
/// A backup has the state of all keyspaces at one moment. Without --since it has everything, with --since only what has
/// changed since the kept snapshot of that name. `drumlin verify` reads a backup back, and `drumlin restore` makes a
/// database of a full backup and the incremental ones after it.
///
/// A program that has the database open can write the same backup while it runs: Database::backup_to.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The folder to write to, which must be new or empty, or hold an unfinished backup of the same snapshot; or - for
    /// stdout
    #[arg(value_name = "BACKUP")]
    target: PathBuf,
    /// Keep the snapshot that is backed up under this name, as the base of the next incremental backup. If a snapshot
    /// has this name already, back that one up
    #[arg(long, value_name = "NAME")]
    keep: Option<String>,
    /// Back up only what has changed since the kept snapshot with this name
    #[arg(long, value_name = "NAME")]
    since: Option<String>,
    /// Read the backup back afterwards and verify it
    #[arg(long)]
    check: bool,
}

#[derive(Serialize)]
struct Line {
    timestamp: u64,
    since: Option<u64>,
    snapshot_age_seconds: Option<f64>,
    pages: u64,
    bytes: u64,
    parts: u32,
    parts_found: u32,
    seconds: f64,
    verified: bool,
}

impl Backup {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let is_stream = self.target.as_os_str() == "-";
        if is_stream && self.check {
            return Err(Failure::usage("--check can't read back what was written to stdout".to_owned())
                .hint("verify the stream where it ends: `… | drumlin verify -`"));
        }
        let mut options = BackupOptions::new();
        if let Some(name) = &self.keep {
            options = options.keep(name);
        }
        if let Some(name) = &self.since {
            options = options.since(name);
        }
        let next_step = self.next_step();
        interrupt::end_after(output.json(), move || next_step.to_owned());
        let database = self.database.open()?;
        let report = match is_stream {
            true => database.backup_into(io::stdout().lock(), &options),
            false => database.backup_to(&self.target, &options),
        };
        let own_disk = database.path();
        let report = report.map_err(|error| {
            let is_own_disk = match &error {
                Error::DiskFull { path, .. } | Error::Io { path, .. } => path.starts_with(own_disk),
                _ => false,
            };
            match is_own_disk {
                true => Failure::from(error),
                false => Failure::from(error).hint_if_full(format!("free space there; then {}", self.next_step())),
            }
        })?;
        database.close()?;
        if self.check {
            self.database.config().verify_backup(&self.target)?;
        }
        if is_stream {
            // Stdout has the backup.
            output.remark(&self.described(&report));
            return Ok(());
        }
        let BackupReport { timestamp, since, snapshot_age, pages, bytes, parts, parts_found, duration, .. } = report;
        let line = Line {
            timestamp: timestamp.0,
            since: since.map(|since| since.0),
            snapshot_age_seconds: snapshot_age.map(|age| age.as_secs_f64()),
            pages,
            bytes,
            parts,
            parts_found,
            seconds: duration.as_secs_f64(),
            verified: self.check,
        };
        output.print(&line, || self.described(&report))
    }

    /// Returns what to do if the backup does not come to its end.
    fn next_step(&self) -> &'static str {
        match &self.keep {
            _ if self.target.as_os_str() == "-" => "give the command again; a stream starts from its beginning",
            Some(_) => "give the same command again, and it continues",
            None => "back up into another folder; a backup with --keep NAME can be continued",
        }
    }

    fn described(&self, report: &BackupReport) -> String {
        let (bytes, duration) = (figures::bytes(report.bytes), figures::duration(report.duration));
        let since = match (&self.since, report.since) {
            (Some(name), Some(since)) => format!(", changes since {name:?} (timestamp {since})"),
            _ => String::new(),
        };
        let found = match report.parts_found {
            0 => String::new(),
            found => format!("; {found} of {} parts were there already", report.parts),
        };
        let kept = match (&self.keep, report.snapshot_age) {
            (Some(name), Some(age)) => format!(", when the snapshot {name:?} was kept {} ago", figures::duration(age)),
            _ => String::new(),
        };
        let verified = if self.check { "; read back and verified" } else { "" };
        format!("backed up {bytes} in {duration}, as of timestamp {}{kept}{since}{found}{verified}", report.timestamp)
    }
}
