//! `drumlin compact`: gives unused space back to the file system.

use clap::Args;
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::failure::Result;
use crate::terminal::{Output, Progress, figures};

/// Give unused space back to the file system
#[derive(Debug, Args)]
pub(crate) struct Compact {
    #[command(flatten)]
    database: DatabaseArgs,
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
