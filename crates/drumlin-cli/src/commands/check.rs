//! `drumlin check`: reads and verifies everything.

use std::cell::OnceCell;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::failure::{Exit, Failure, Result};
use crate::terminal::{Output, Progress, figures, style};

/// Read and verify every page, table and log record
///
/// Damage is listed with its place and what it costs, and makes the exit code 4. What opening could do without and has
/// written anew is listed too.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    database: DatabaseArgs,
}

#[derive(Serialize)]
struct Report {
    sound: bool,
    pages: u64,
    rows: u64,
    extent_bytes: u64,
    log_records: u64,
    seconds: f64,
    damage: Vec<Damage>,
    mended: Vec<Damage>,
}

#[derive(Serialize)]
struct Damage {
    file: String,
    what: String,
    flaw: String,
    cost: String,
}

impl From<drumlin::Damage> for Damage {
    fn from(damage: drumlin::Damage) -> Damage {
        let drumlin::Damage { file, what, flaw, cost, .. } = damage;
        Damage { file: file.display().to_string(), what, flaw, cost }
    }
}

impl Check {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let database = self.database.open()?;
        let start = Instant::now();
        let bar = OnceCell::new();
        let report = database.check_with(|progress| {
            let bar = bar.get_or_init(|| Progress::items(output, "checking", progress.pages_total));
            bar.set_total(progress.pages_total);
            bar.set(progress.pages_done);
        });
        if let Some(bar) = bar.get() {
            bar.finish();
        }
        let report = report?;
        let damage: Vec<Damage> = report.damage.into_iter().map(Damage::from).collect();
        let elapsed = start.elapsed();
        let report = Report {
            sound: damage.is_empty(),
            pages: report.pages,
            rows: report.rows,
            extent_bytes: report.extent_bytes,
            log_records: report.log_records,
            seconds: elapsed.as_secs_f64(),
            damage,
            mended: report.mended.into_iter().map(Damage::from).collect(),
        };
        output.print(&report, || {
            let read = format!(
                "{}, {}, {} and {} in {}",
                figures::plural(report.rows, "row"),
                figures::plural(report.pages, "page"),
                figures::bytes(report.extent_bytes),
                figures::plural(report.log_records, "log record"),
                figures::duration(elapsed)
            );
            let (good, bad) = (style::GOOD, style::BAD);
            let mut text = match report.sound {
                true => format!("{good}sound{good:#}: {read}"),
                false => format!("{bad}damaged{bad:#}: {read}"),
            };
            for damage in &report.damage {
                text += &format!("\n  {} in {}: {}\n    lost: {}", damage.what, damage.file, damage.flaw, damage.cost);
            }
            for mended in &report.mended {
                text += &format!("\n  mended when it was opened: {} in {}: {}", mended.what, mended.file, mended.flaw);
            }
            text
        })?;
        if report.sound { Ok(()) } else { Err(Failure::silent(Exit::Damaged)) }
    }
}
