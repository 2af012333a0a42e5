//! Measures drumlin-io and its peers in turns, with the same reads and writes.
//!
//! Each measurement runs in its own process, so its processor time can be told apart from that of other measurements.

mod buffer;
mod contenders;
mod report;
mod work;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;

use contenders::{Contender, contenders};
use report::{Results, other_processors};
use work::{Measured, Row, Work};

/// Measures drumlin-io and its peers in turns, with the same reads and writes, and prints tables in Markdown.
///
/// The peers need a build with `--features peers`. The files are created in the folder once and removed at the end.
#[derive(Parser)]
struct Arguments {
    /// The folder for two files, of 4 GiB and 1 GiB. It must be on a drive, not in memory.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// The size of the file that is read, in GiB.
    #[arg(long, default_value_t = 4)]
    gib: u64,
    /// The duration of one measurement, in seconds.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The number of turns; the tables show medians.
    #[arg(long, default_value_t = 7)]
    turns: usize,
    /// The rows to measure: the beginnings of their names, separated by commas; all by default.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// The contenders to measure: their names, separated by commas; all by default.
    #[arg(long, value_delimiter = ',')]
    contenders: Vec<String>,
    /// Repeats a measurement, up to five times, if other processes kept more than this many processors busy.
    #[arg(long, default_value_t = 0.2)]
    others_max: f64,
    /// Writes all measurements to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Keeps the files for the next run.
    #[arg(long)]
    keep: bool,
    /// Lists the rows and contenders of this build.
    #[arg(long)]
    list: bool,
    /// Makes one measurement in this process: of a row and a contender.
    #[arg(long, num_args = 2, hide = true)]
    measure: Option<Vec<String>>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let rows: Vec<Row> = Row::all().into_iter().filter(|row| arguments.has_row(*row)).collect();
    let contenders: Vec<Contender> = contenders().into_iter().filter(|one| arguments.has_contender(*one)).collect();
    if let Some([row, contender]) = arguments.measure.as_deref() {
        let row = Row::all().into_iter().find(|one| one.name() == *row);
        let contender = contenders.into_iter().find(|one| one.name == contender);
        let (Some(row), Some(contender)) = (row, contender) else {
            return Err(io::Error::other("there is no such row or contender"));
        };
        let work = Work::new(row, &arguments.folder, Duration::from_secs_f64(arguments.seconds))?;
        let measured = (contender.run)(&work)?;
        work.check_written()?;
        println!("{}", serde_json::to_string(&measured)?);
        return Ok(());
    }
    if arguments.list {
        rows.iter().for_each(|row| println!("row        {}", row.name()));
        contenders.iter().for_each(|contender| println!("contender  {}", contender.name));
        return Ok(());
    }
    work::make_files(&arguments.folder, arguments.gib << 30)?;
    let measured = measure_all(arguments, &rows, &contenders);
    if !arguments.keep {
        work::remove_files(&arguments.folder)?;
    }
    let results = measured?;
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(&results)?)?;
    }
    print!("{results}");
    Ok(())
}

impl Arguments {
    fn has_row(&self, row: Row) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|word| row.name().starts_with(word))
    }

    fn has_contender(&self, contender: Contender) -> bool {
        self.contenders.is_empty() || self.contenders.iter().any(|name| name == contender.name)
    }
}

/// Measures every row in turns. In each turn, every contender is measured once.
fn measure_all(arguments: &Arguments, rows: &[Row], contenders: &[Contender]) -> io::Result<Results> {
    let mut results = Results::new(&arguments.folder)?;
    for row in rows {
        for turn in 0..arguments.turns {
            let count = contenders.len();
            // Each turn begins with a different contender, so no contender is always the first.
            for contender in (0..count).map(|index| contenders[(index + turn) % count]) {
                if !contender.has(*row) {
                    continue;
                }
                let mut measured = measure_in_child(arguments, *row, contender)?;
                for _ in 1..5 {
                    if measured.other_processors <= arguments.others_max {
                        break;
                    }
                    measured = measure_in_child(arguments, *row, contender)?;
                }
                eprintln!("{:<16} {:<22} {}", row.name(), contender.name, measured.describe(*row));
                results.add(*row, contender.name, measured);
            }
        }
    }
    Ok(results)
}

fn measure_in_child(arguments: &Arguments, row: Row, contender: Contender) -> io::Result<Measured> {
    let child = |folder: &Path| {
        Command::new(std::env::current_exe()?)
            .arg("--folder")
            .arg(folder)
            .arg("--seconds")
            .arg(arguments.seconds.to_string())
            .arg("--measure")
            .args([row.name(), contender.name.to_owned()])
            .output()
    };
    let started = (Instant::now(), report::busy_seconds()?, report::children_seconds()?);
    let output = child(&arguments.folder)?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{}, {}: {text}", row.name(), contender.name)));
    }
    let mut measured: Measured = serde_json::from_slice(&output.stdout)?;
    measured.other_processors = other_processors(started)?;
    Ok(measured)
}
