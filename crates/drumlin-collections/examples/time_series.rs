//! Sensor measurements: the count, sum, minimum and maximum over any interval, in steps of any length.
//!
//! `cargo run -p drumlin-collections --example time_series`

use std::io::Write;

use drumlin::{Config, Database};
use drumlin_collections::{Collection, Collections, Parts, Postcard, View};
use serde::{Deserialize, Serialize};

const HOUR: u64 = 3600;

#[derive(Serialize, Deserialize)]
struct Measurement {
    sensor: String,
    /// Seconds since the beginning of the month.
    time: u64,
    value: i64,
}

/// A summary of some measurements. Two summaries combine into one.
#[derive(Serialize, Deserialize, Clone, Copy)]
struct Summary {
    count: u64,
    sum: i64,
    least: i64,
    greatest: i64,
}

impl Summary {
    fn of(value: i64) -> Summary {
        Summary { count: 1, sum: value, least: value, greatest: value }
    }

    fn and(self, other: Summary) -> Summary {
        Summary {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            least: self.least.min(other.least),
            greatest: self.greatest.max(other.greatest),
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Summary { count, sum, least, greatest } = self;
        write!(f, "count {count:>4}, sum {sum:>6}, least {least:>3}, greatest {greatest:>3}")
    }
}

impl Measurement {
    const SUMMARY: View<Measurement, (String, u64), Summary> =
        View::new("summary", |one: &Measurement, emit| emit((one.sensor.clone(), one.time), Summary::of(one.value)))
            .reducing(Summary::and);
}

impl Collection for Measurement {
    type Key = (String, u64);
    type Codec = Postcard;
    const NAME: &'static str = "measurements";

    fn key(&self) -> (String, u64) {
        (self.sensor.clone(), self.time)
    }

    fn parts() -> Parts<Measurement> {
        Parts::new().view(Measurement::SUMMARY)
    }
}

pub(crate) fn run(db: &Database, out: &mut impl Write) -> Result<(), Box<dyn std::error::Error>> {
    let collections = Collections::new(db);
    let measurements = collections.open::<Measurement>()?;
    // Two sensors, each measured every ten minutes for a day.
    for sensor in ["attic", "cellar"] {
        collections.transact(|tx| {
            (0..144).try_for_each(|number| {
                let value = if sensor == "attic" { (number as i64 - 72).abs() } else { 12 };
                let sensor = sensor.to_owned();
                tx.insert(&measurements, &Measurement { sensor, time: number * 600, value })
            })
        })?;
    }

    let summary = measurements.view(&Measurement::SUMMARY);
    let mut tell = |name: &str, summary: Option<Summary>| match summary {
        Some(summary) => writeln!(out, "{name:<20} {summary}"),
        None => writeln!(out, "{name:<20} nothing"),
    };
    tell("attic, all", summary.reduce(("attic", 0)..("attic", u64::MAX))?)?;
    tell("attic, 10:30 to 14", summary.reduce(("attic", 10 * HOUR + HOUR / 2)..("attic", 14 * HOUR))?)?;
    tell("attic, day two", summary.reduce(("attic", 24 * HOUR)..("attic", 48 * HOUR))?)?;
    tell("both", summary.reduce(..)?)?;
    for group in summary.groups_by(.., |(sensor, time)| (sensor.clone(), time / (8 * HOUR))) {
        let ((sensor, part), summary) = group?;
        tell(&format!("{sensor}, {:>2} to {}", part * 8, part * 8 + 8), Some(summary))?;
    }
    Ok(())
}

#[allow(dead_code, reason = "a test runs the program without it")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    run(&Config::in_memory().open("")?, &mut std::io::stdout())
}
