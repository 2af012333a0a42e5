//! `drumlin checkpoint`: writes all changed pages to the data file.

use clap::Args;
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::failure::Result;
use crate::terminal::{Output, Progress, figures};

/// Write all changed pages, so that the next opening replays no log
#[derive(Debug, Args)]
pub(crate) struct Checkpoint {
    #[command(flatten)]
    database: DatabaseArgs,
}

#[derive(Serialize)]
struct Report {
    timestamp: u64,
    pages_written: u64,
    bytes_written: u64,
    seconds: f64,
}

impl Checkpoint {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let database = self.database.open()?;
        let spinner = Progress::spinner(output, "checkpoint");
        let done = database.checkpoint();
        spinner.finish();
        let done = done?;
        database.close()?;
        let report = Report {
            timestamp: done.timestamp.0,
            pages_written: done.pages_written,
            bytes_written: done.bytes_written,
            seconds: done.duration.as_secs_f64(),
        };
        output.print(&report, || {
            format!(
                "checkpoint of commit {}: {}, {} in {}",
                figures::count(report.timestamp),
                figures::plural(report.pages_written, "page"),
                figures::bytes(report.bytes_written),
                figures::duration(done.duration)
            )
        })
    }
}
