//! `drumlin restore`: makes a database of backups.

use std::io;
use std::path::PathBuf;

use clap::Args;
use drumlin::Config;

use super::verify::BackupLine;
use crate::failure::Result;
use crate::terminal::figures::parse_size;
use crate::terminal::{Output, figures};

/// Make a database of a full backup and the incremental ones after it
///
/// The database has the state of the last backup. If a backup is damaged, cut short or does not follow the one before
/// it, nothing is restored.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The folders of the backups, in the order in which they were made, or - for one from stdin
    #[arg(value_name = "BACKUP", required = true)]
    backups: Vec<PathBuf>,
    /// The folder of the new database, which must be new or empty
    #[arg(value_name = "DATABASE")]
    target: PathBuf,
    /// Memory that the engine may use, such as 64MiB or 1GiB
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    memory: u64,
}

impl Restore {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let config = Config::new().memory(self.memory);
        let info = match &self.backups[..] {
            [only] if only.as_os_str() == "-" => config.restore_from([io::stdin().lock()], &self.target)?,
            backups => config.restore(backups, &self.target)?,
        };
        output.print(&BackupLine::of(&info), || {
            format!(
                "restored the state of timestamp {}, which was backed up {} ago",
                info.timestamp,
                figures::duration(info.age)
            )
        })
    }
}
