//! `drumlin archive`: reads an archive and lists what it has.

use std::path::PathBuf;

use clap::Args;
use drumlin::{Config, RestorePoint};
use serde::Serialize;

use crate::failure::Result;
use crate::terminal::figures::plural;
use crate::terminal::{Output, figures};

/// Read every byte of an archive, verify it, and list the commits that it has
///
/// Prints one line for each sequence of commits without a gap: a backup of the state at its beginning, or of a later
/// one, can be restored to each of its commits. Nothing is written. An archive that lacks a file, or has a damaged one,
/// is refused, with the name of the file.
#[derive(Debug, Args)]
pub(crate) struct Archive {
    /// The archive's folder
    #[arg(value_name = "ARCHIVE")]
    folder: PathBuf,
}

#[derive(Serialize)]
struct Line {
    from: u64,
    to: u64,
    from_time: String,
    to_time: String,
    commits: u64,
    files: u64,
    bytes: u64,
}

impl Archive {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        for chain in Config::new().verify_archive(&self.folder)? {
            let line = Line {
                from: chain.from.0,
                to: chain.to.0,
                from_time: RestorePoint::Time(chain.from_time).to_string(),
                to_time: RestorePoint::Time(chain.to_time).to_string(),
                commits: chain.commits,
                files: chain.files,
                bytes: chain.bytes,
            };
            output.print(&line, || {
                format!(
                    "sound: {} after timestamp {} up to {}\nfrom {} to {}, {} in {}",
                    plural(line.commits, "commit"),
                    line.from,
                    line.to,
                    line.from_time,
                    line.to_time,
                    figures::bytes(line.bytes),
                    plural(line.files, "file")
                )
            })?;
        }
        Ok(())
    }
}
