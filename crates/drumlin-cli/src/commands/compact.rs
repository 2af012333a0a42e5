//! `drumlin compact`: returns unused space to the file system.

use std::path::Path;

use clap::Args;
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::failure::Result;
use crate::terminal::{Output, Progress, figures};
use crate::text::{harmless, shell_word};

/// Return unused space to the file system
#[derive(Debug, Args)]
pub(crate) struct Compact {
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Commands recommend compaction only if the unused space exceeds both this size and a third of the data file.
const UNUSED_BYTES_UNREPORTED_MAX: u64 = 64 << 20;

/// Returns the advice to compact a database if much of its data file is unused.
pub(crate) fn advice(file_bytes: u64, unused_bytes: u64, path: &Path) -> Option<String> {
    let is_much = unused_bytes > UNUSED_BYTES_UNREPORTED_MAX && unused_bytes > file_bytes / 3;
    let path = harmless(&shell_word(path)).into_owned();
    is_much.then(|| format!("{} unused: drumlin compact {path}", figures::bytes(unused_bytes)))
}

#[derive(Serialize)]
struct Report {
    bytes_before: u64,
    bytes_after: u64,
    seconds: f64,
}

impl Compact {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let database = self.database.open()?;
        let spinner = Progress::spinner(output, "compacting");
        let done = database.compact();
        spinner.finish();
        let done = done?;
        database.close()?;
        let report = Report {
            bytes_before: done.bytes_before,
            bytes_after: done.bytes_after,
            seconds: done.duration.as_secs_f64(),
        };
        output.print(&report, || {
            format!(
                "{} before, {} after, in {}",
                figures::bytes(report.bytes_before),
                figures::bytes(report.bytes_after),
                figures::duration(done.duration)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compaction is recommended only if the unused space exceeds both 64 MiB and a third of the file.
    #[test]
    fn only_much_unused_space_is_reported() {
        let path = Path::new("db");
        assert_eq!(advice(300 << 20, 187_000_000, path).unwrap(), "187 MB unused: drumlin compact db");
        assert_eq!(advice(1 << 30, 187_000_000, path), None);
        assert_eq!(advice(60 << 20, 59 << 20, path), None);
    }
}
