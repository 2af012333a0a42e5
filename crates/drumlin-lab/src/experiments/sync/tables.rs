//! The tables and plots of `sync`.

use super::method::Method;
use super::power_off::{self, Left, Run};
use super::task::{BATCH_WRITES, Written};
use super::{Measured, Writers};
use crate::experiments::places::{Cache, Place};
use crate::figures::{self, Form};
use crate::measure::{Latencies, Load, Summary};
use crate::report::{ALL_ROUNDS, Cell, Chapter, Plot, Scale, Table};
use crate::session::Trials;

/// The minimum number of writes for which a 99.9th percentile is shown: five writes then lie beyond it.
const P999_WRITES_MIN: u64 = 5000;

/// Summarises the latencies of single writes over all rounds.
fn singles(trials: &Trials<Written>) -> Summary {
    Latencies::of_buckets(trials.results.iter().map(|written| &written.singles)).summary()
}

fn batches(trials: &Trials<Written>) -> Summary {
    Latencies::of_buckets(trials.results.iter().map(|written| &written.batches)).summary()
}

fn flushes(trials: &Trials<Written>) -> Cell {
    trials.median(|written| written.flushes_per_write().unwrap_or(f64::NAN)).into()
}

/// Adds the table of all methods on one file system, with one writer at a time, and the table of batches.
pub(super) fn show(chapter: &mut Chapter, place: &Place, measured: &Measured) {
    let mut table = Table::new(
        format!("One writer on {}, each write timed on its own", place.name),
        &[
            ("", Form::Text),
            ("writes/s", Form::Rate),
            ("mean", Form::Micros),
            ("min", Form::Micros),
            ("p50", Form::Micros),
            ("p99", Form::Micros),
            ("p99.9", Form::Micros),
            ("max", Form::Micros),
            ("± std. dev.", Form::Micros),
            ("outliers", Form::Share),
        ],
    );
    let mut plot = Plot::new(
        format!("Durable writes of 1 KiB by one writer on {}", place.name),
        ("share of writes that took at most", Form::Share, Scale::Tail),
        ("latency", Form::Micros, Scale::Logarithmic),
    )
    .drawing(ALL_ROUNDS);
    for (case, trials) in measured.cases.iter().zip(&measured.rounds) {
        let name = format!("{}, {}", case.method.name(), figures::size(case.bytes as u64));
        let single = singles(trials);
        if single.count == 0 {
            if let Some(failure) = &trials.failure {
                let mut cells = vec![Cell::from(name)];
                cells.resize(table.columns.len(), Cell::Missing);
                table.row(cells).source(format!("not possible here: {failure}"));
            }
            continue;
        }
        let p999 = (single.count >= P999_WRITES_MIN).then_some(single.p999_us);
        let row = table.row(vec![
            trials.label(&name).into(),
            trials.median(|written| written.load.operations_per_second()).into(),
            single.mean_us.into(),
            single.min_us.into(),
            single.p50_us.into(),
            single.p99_us.into(),
            p999.into(),
            single.max_us.into(),
            single.stddev_us.into(),
            single.outliers.into(),
        ]);
        if case.bytes == 1024 {
            row.source = case.method.source().map(str::to_owned);
            plot.line(case.method.name(), single.quantiles.clone());
        }
    }
    chapter.tables.push(table);
    chapter.plots.push(plot);
    chapter.tables.push(batch_table(place, measured));
}

/// Compares the figures that a harness would report if it timed batches with the times of single writes.
fn batch_table(place: &Place, measured: &Measured) -> Table {
    let mut table = Table::new(
        format!("The same on {}, timed by {BATCH_WRITES} writes, beside single ones", place.name),
        &[
            ("", Form::Text),
            ("mean", Form::Micros),
            ("max of batches", Form::Micros),
            ("max of writes", Form::Micros),
            ("± of batches", Form::Micros),
            ("± of writes", Form::Micros),
            ("outliers of batches", Form::Share),
            ("of writes", Form::Share),
        ],
    );
    for (case, trials) in measured.cases.iter().zip(&measured.rounds).filter(|(case, _)| case.bytes == 1024) {
        let (single, batch) = (singles(trials), batches(trials));
        if batch.count > 0 {
            table.row(vec![
                case.method.name().into(),
                batch.mean_us.into(),
                batch.max_us.into(),
                single.max_us.into(),
                batch.stddev_us.into(),
                single.stddev_us.into(),
                batch.outliers.into(),
                single.outliers.into(),
            ]);
        }
    }
    table
}

/// Compares the mean and the flushes of each method over all places.
pub(super) fn compare(chapter: &mut Chapter, places: &[Place], measured: &[Measured]) {
    let labels: Vec<&'static str> = places.iter().map(label).collect();
    let table = |title: &str, form: Form, figure: &dyn Fn(&Trials<Written>) -> Cell| {
        let mut columns = vec![("", Form::Text)];
        columns.extend(labels.iter().map(|label| (*label, form)));
        let mut table = Table::new(title, &columns);
        for method in Method::ALL {
            let mut cells = vec![Cell::from(method.name())];
            cells.extend(measured.iter().map(|each| each.of(method, 1024).map_or(Cell::Missing, figure)));
            table.row(cells);
        }
        table
    };
    let mean = table("The mean of a write of 1 KiB, by file system", Form::Micros, &|trials| {
        let single = singles(trials);
        if single.count > 0 { single.mean_us.into() } else { Cell::Missing }
    });
    let flushed = table("Flushes of the device for each write of 1 KiB, by file system", Form::Ratio, &flushes);
    chapter.tables.extend([mean, flushed]);
    if places[0].made.is_none() {
        chapter.note(
            "Flushes are counted at the block device while writes are timed. On the folder's own disk those of other \
             programs are among them; a loop device of the lab's own has no others. A write without a flush is in the \
             drive's cache at most.",
        );
    }
}

fn label(place: &Place) -> &'static str {
    match (place.made, place.cache) {
        (None, _) => "here",
        (Some(file_system), Cache::None) if file_system.name() == "ext4" => "ext4, cache off",
        (Some(file_system), _) => file_system.name(),
    }
}

/// Adds a table of the rates at which several writers write to one file.
pub(super) fn show_writers(chapter: &mut Chapter, place: &Place, writers: &Writers) {
    let mut table = Table::new(
        format!("Writers of one file on {}, 4 KiB at a time", place.name),
        &[
            ("", Form::Text),
            ("1 writer", Form::Rate),
            ("8 writers", Form::Rate),
            ("32 writers", Form::Rate),
            ("p99 of 32", Form::Micros),
            ("flushes, 1", Form::Ratio),
            ("flushes, 32", Form::Ratio),
        ],
    );
    for method in Writers::METHODS {
        let [one, eight, many] = Writers::COUNTS.map(|count| writers.of(method, count));
        let rate = |trials: &Trials<Written>| trials.median(|written| Load::operations_per_second(&written.load));
        let last = singles(many);
        table.row(vec![
            method.name().into(),
            rate(one).into(),
            rate(eight).into(),
            rate(many).into(),
            if last.count > 0 { last.p99_us.into() } else { Cell::Missing },
            flushes(one),
            flushes(many),
        ]);
    }
    chapter.tables.push(table);
}

/// Adds the table of the records that remained after the power-offs.
pub(super) fn show_left(chapter: &mut Chapter, left: &[Left]) {
    if left.is_empty() {
        return;
    }
    let mut columns = vec![("", Form::Text)];
    columns.extend(left.iter().map(|each| (each.file_system.name(), Form::Share)));
    let mut table = Table::new("Records left after a power-off that keeps the drive's cache", &columns);
    for method in power_off::METHODS {
        let mut cells = vec![Cell::from(method.name())];
        cells.extend(left.iter().map(|each| Cell::from(each.share(Run::First, method))));
        table.row(cells);
    }
    let mut columns = vec![("", Form::Text)];
    columns.extend(left.iter().map(|each| (each.file_system.name(), Form::Share)));
    let mut again = Table::new("The same by sync_file_range, run again over the same files", &columns);
    for (blocks, method) in [("real zeros", Method::FilledRange), ("ftruncate", Method::TruncatedRange)] {
        for run in Run::ALL {
            let mut cells = vec![Cell::from(format!("{blocks}, {}", run.name()))];
            cells.extend(left.iter().map(|each| Cell::from(each.share(run, method))));
            again.row(cells);
        }
    }
    chapter.tables.extend([table, again]);
    chapter.note(
        "The power-off is that of a virtual machine: the device's content at that moment is mounted anew, so the page \
         cache is lost and the drive's cache is not. A drive that loses its own cache keeps only what was flushed.",
    );
}

/// Adds two tables of the methods that are durable by contract: on the folder's own file system, and on others.
pub(super) fn show_durability(chapter: &mut Chapter, own: &Place) {
    let mut here = Table::new(
        format!("Is it durable here, on {}?", own.file_system),
        &[("", Form::Text), ("durable", Form::Text), ("because", Form::Text)],
    );
    let mut everywhere = Table::new(
        "Is it durable elsewhere? (write cache: volatile / none)",
        &[("", Form::Text), ("ext4, xfs", Form::Text), ("btrfs, zfs", Form::Text), ("tmpfs", Form::Text)],
    );
    for method in Method::ALL {
        let (durable, why) = method.durable(&own.file_system, own.cache);
        here.row(vec![method.name().into(), durable.word().into(), why.into()]);
        let both = |file_system| {
            let word = |cache| method.durable(file_system, cache).0.word();
            format!("{} / {}", word(Cache::Volatile), word(Cache::None))
        };
        everywhere.row(vec![method.name().into(), both("ext4").into(), both("btrfs").into(), "no".into()]);
    }
    chapter.tables.extend([here, everywhere]);
    chapter.note(
        "Durable means guaranteed by contract. Only cutting the power can show whether a drive, or a hypervisor that \
         emulates one, keeps the writes that it reports as flushed.",
    );
    chapter.note(
        "Writers share one file, and each write takes the next offset. Outliers lie above the third quartile by more \
         than three interquartile ranges. A p99.9 is shown from 5,000 writes on.",
    );
}
