//! `drumlin verify`: reads a backup and verifies it.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use drumlin::{BackupInfo, Config};
use serde::Serialize;

use crate::failure::{Exit, Failure, Result};
use crate::terminal::figures::plural;
use crate::terminal::{Output, figures};
use crate::text::{harmless, shell_word};

/// Read every byte of a backup and verify it
///
/// Nothing is written. A backup that is damaged, cut short or lacks a part is refused, with the reason. The backups
/// before an incremental one are not read: `drumlin restore` shows whether it follows them.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The backup's folder, or - for stdin
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
}

/// The description of a backup that commands print.
#[derive(Serialize)]
pub(crate) struct BackupLine {
    timestamp: u64,
    since: Option<u64>,
    keyspaces: Vec<String>,
    pages: u64,
    bytes: u64,
    parts: u32,
    age_seconds: f64,
}

impl BackupLine {
    pub(crate) fn of(info: &BackupInfo) -> BackupLine {
        BackupLine {
            timestamp: info.timestamp.0,
            since: info.since.map(|since| since.0),
            keyspaces: info.keyspaces.clone(),
            pages: info.pages,
            bytes: info.bytes,
            parts: info.parts,
            age_seconds: info.age.as_secs_f64(),
        }
    }
}

/// Fails if the path of a backup's folder is that of a file.
pub(crate) fn refuse_file(path: &Path, command: &str) -> Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let message = format!("{} is a file; a backup is a folder", path.display());
    Err(Failure::new(Exit::NotOpened, message).hint(format!(
        "a backup that was written as a stream is read from stdin: `drumlin {command} < {}`",
        shell_word(path)
    )))
}

impl Verify {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        refuse_file(&self.backup, "verify -")?;
        let info = match self.backup.as_os_str() == "-" {
            true => Config::new().verify_backup_from(io::stdin().lock())?,
            false => Config::new().verify_backup(&self.backup)?,
        };
        output.print(&BackupLine::of(&info), || {
            let kind = match info.since {
                Some(since) => format!("changes since timestamp {since}"),
                None => "a full backup".to_owned(),
            };
            let names: Vec<String> = info.keyspaces.iter().map(|name| harmless(name).into_owned()).collect();
            format!(
                "sound: {kind}, as of timestamp {}, taken {} ago\n{} in {}, keyspaces: {}",
                info.timestamp,
                figures::duration(info.age),
                figures::bytes(info.bytes),
                plural(u64::from(info.parts), "part"),
                names.join(", ")
            )
        })
    }
}
