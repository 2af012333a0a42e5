//! The tables and plots of random reads.

use super::claims::{Figures, device_reads_per_second, late_rates, shootdowns};
use super::updates::Method as UpdateMethod;
use super::{Case, Method, ROW_BYTES, THREADS, UPDATERS};
use crate::compare::Spread;
use crate::condition::Phases;
use crate::figures::{self, Form};
use crate::measure::{Load, Sample};
use crate::regime::Regime;
use crate::report::{Cell, Chapter, MEDIANS, MIDDLE_ROUND, Plot, Scale, Table};
use crate::ring::RingOptions;
use crate::session::{Rounds, Trials};

/// A column of a table: its title, its number format, and a function that computes its cell from a case's trials.
type Column = (&'static str, Form, fn(&Trials<Load>) -> Cell);

const RATE_COLUMNS: [Column; 6] = [
    ("reads/s", Form::Rate, |trials| trials.median(Load::operations_per_second).into()),
    ("least", Form::Rate, |trials| trials.spread(Load::operations_per_second).map(|spread| spread.least).into()),
    ("most", Form::Rate, |trials| trials.spread(Load::operations_per_second).map(|spread| spread.most).into()),
    ("device reads/s", Form::Rate, |trials| trials.median(device_reads_per_second).into()),
    ("p50", Form::Micros, |trials| trials.median(|load| load.latency.p50_us).into()),
    ("p99", Form::Micros, |trials| trials.median(|load| load.latency.p99_us).into()),
];

const COST_COLUMNS: [Column; 7] = [
    ("CPU", Form::Micros, |trials| trials.median(Load::cpu_us_per_operation).into()),
    ("major faults", Form::Ratio, |trials| each(trials, |load| load.counters.faults_major)),
    ("TLB shoot- downs", Form::Ratio, |trials| trials.median(shootdowns).into()),
    ("other IPIs", Form::Ratio, |trials| {
        each(trials, |load| load.counters.interrupt("RES") + load.counters.interrupt("CAL"))
    }),
    ("pages by kswapd", Form::Ratio, |trials| each(trials, |load| load.counters.kswapd_pages)),
    ("memory", Form::Bytes, |trials| trials.memory_bytes_max().into()),
    ("device bytes per byte", Form::Ratio, |trials| trials.median(Load::read_amplification).into()),
];

/// Returns the median of a count per read.
fn each(trials: &Trials<Load>, count: fn(&Load) -> u64) -> Cell {
    trials.median(|load| count(load) as f64 / load.operations.max(1) as f64).into()
}

/// Creates a table with these columns, preceded by a column of names.
fn table_of(title: &str, columns: &[Column]) -> Table {
    let columns = columns.iter().map(|&(title, form, _)| (title, form));
    Table::new(title, &[("", Form::Text)].into_iter().chain(columns).collect::<Vec<_>>())
}

fn add_row(table: &mut Table, columns: &[Column], name: &str, source: Option<&str>, trials: &Trials<Load>) {
    let cells = columns.iter().map(|(_, _, cell)| cell(trials));
    let cells = [Cell::from(trials.label(name))].into_iter().chain(cells).collect();
    let refused = trials.failure.as_ref().map(|failure| format!("not possible here: {failure}"));
    table.row(cells).source = refused.or(source.map(str::to_owned));
}

fn over_time(samples: &[Sample], figure: fn(&Sample) -> f64) -> Vec<(f64, f64)> {
    samples.iter().map(|sample| (sample.at_seconds, figure(sample))).collect()
}

/// Adds tables and plots of a regime's series.
pub(super) fn courses(chapter: &mut Chapter, regime: Regime, cases: &[Case], rounds: &Rounds<Load>) {
    let mut rates = table_of(&format!("Over time, {THREADS} threads: {}", regime.name()), &RATE_COLUMNS);
    let mut costs = table_of(&format!("Cost per read, {THREADS} threads: {}", regime.name()), &COST_COLUMNS);
    let plot = |title: String, figure: &'static str| {
        let time = ("time", Form::Seconds, Scale::Linear);
        Plot::new(title, time, (figure, Form::Rate, Scale::Linear)).drawing(MIDDLE_ROUND)
    };
    let mut reads = plot(format!("Random 4 KiB reads, {THREADS} threads: {}", regime.name()), "reads/s");
    let mut shootdowns = plot(format!("TLB shootdowns: {}", regime.name()), "shootdowns/s");
    for (case, trials) in cases.iter().zip(rounds) {
        let name = case.method.name();
        add_row(&mut rates, &RATE_COLUMNS, &name, case.source, trials);
        add_row(&mut costs, &COST_COLUMNS, &name, None, trials);
        if let Some(samples) = trials.middle_samples(Load::operations_per_second) {
            reads.line(case.method.name(), over_time(samples, |sample| sample.operations_per_second));
            shootdowns.line(case.method.name(), over_time(samples, |sample| sample.tlb_shootdowns_per_second));
        }
    }
    add_row(&mut rates, &RATE_COLUMNS, "the first, again", None, &rounds.again);
    chapter.tables.extend([rates, costs]);
    chapter.plots.push(reads);
    if regime == Regime::Device {
        chapter.plots.push(shootdowns);
    }
}

/// Adds a table of mapped reads under `MADV_RANDOM`: the rates before and after memory became full, as medians of the
/// rounds in which it did.
pub(super) fn phases(chapter: &mut Chapter, figures: &Figures) {
    let mut table = Table::new(
        "Phases of mapped reads with RANDOM: until memory is full, and from then on",
        &[
            ("", Form::Text),
            ("filled after", Form::Seconds),
            ("filling, device reads/s", Form::Rate),
            ("full, device reads/s", Form::Rate),
            ("lowest sample", Form::Rate),
            ("rounds that filled", Form::Count),
        ],
    );
    for (regime, rounds) in &figures.phases {
        let found: Vec<Phases> = rounds.iter().flatten().copied().collect();
        let middle = |figure: &dyn Fn(&Phases) -> Option<f64>| -> Cell {
            Spread::of(&found.iter().filter_map(figure).collect::<Vec<_>>()).map(|spread| spread.median).into()
        };
        table.row(vec![
            regime.name().into(),
            middle(&|each| Some(each.filling_seconds)),
            middle(&|each| each.filling),
            middle(&|each| Some(each.full)),
            middle(&|each| Some(each.lowest)),
            (found.len() as f64).into(),
        ]);
    }
    chapter.tables.push(table);
}

const UPDATE_COLUMNS: [Column; 5] = [
    ("updates/s", Form::Rate, |trials| trials.median(Load::operations_per_second).into()),
    ("2nd half", Form::Rate, |trials| Spread::of(&late_rates(trials)).map(|spread| spread.median).into()),
    ("p50", Form::Micros, |trials| trials.median(|load| load.latency.p50_us).into()),
    ("p99", Form::Micros, |trials| trials.median(|load| load.latency.p99_us).into()),
    ("memory", Form::Bytes, |trials| trials.memory_bytes_max().into()),
];

pub(super) fn updates(chapter: &mut Chapter, methods: &[(&'static str, UpdateMethod)], rounds: &Rounds<Load>) {
    let title = format!("Updates of random pages of a file larger than memory, {UPDATERS} threads");
    let mut table = table_of(&title, &UPDATE_COLUMNS);
    for ((name, _), trials) in methods.iter().zip(rounds) {
        add_row(&mut table, &UPDATE_COLUMNS, name, None, trials);
    }
    add_row(&mut table, &UPDATE_COLUMNS, "the first, again", None, &rounds.again);
    chapter.tables.push(table);
}

const LADDER_COLUMNS: [Column; 6] = [
    ("reads/s", Form::Rate, |trials| trials.median(Load::operations_per_second).into()),
    ("device reads/s", Form::Rate, |trials| trials.median(device_reads_per_second).into()),
    ("p50", Form::Micros, |trials| trials.median(|load| load.latency.p50_us).into()),
    ("p99", Form::Micros, |trials| trials.median(|load| load.latency.p99_us).into()),
    ("p99.9", Form::Micros, |trials| trials.median(|load| load.latency.p999_us).into()),
    ("CPU", Form::Micros, |trials| trials.median(Load::cpu_us_per_operation).into()),
];

pub(super) fn ladder(chapter: &mut Chapter, cases: &[Case], steps: &Rounds<Load>) {
    let mut table = table_of("Depth and threads, medians of trials", &LADDER_COLUMNS);
    for (case, trials) in cases.iter().zip(steps) {
        add_row(&mut table, &LADDER_COLUMNS, &case.name, case.source, trials);
    }
    add_row(&mut table, &LADDER_COLUMNS, "the first, again", None, &steps.again);
    chapter.tables.push(table);
    plot_ladder(chapter, cases, steps);
}

/// Plots rate and latency by depth, and the latency distribution of some cases.
fn plot_ladder(chapter: &mut Chapter, cases: &[Case], steps: &[Trials<Load>]) {
    let depth = ("in flight", Form::Count, Scale::Logarithmic);
    let latency = ("latency", Form::Micros, Scale::Logarithmic);
    let share = ("share of reads that took at most", Form::Share, Scale::Tail);
    let mut rate_by_depth =
        Plot::new("Depth against rate", depth, ("reads/s", Form::Rate, Scale::Linear)).drawing(MEDIANS);
    let mut latency_by_depth = Plot::new("Depth against latency", depth, latency).drawing(MIDDLE_ROUND);
    let mut distribution = Plot::new("Latencies of single reads", share, latency).drawing(MIDDLE_ROUND);
    let [mut rates, mut medians, mut tails, mut direct, mut mapped] = [const { Vec::new() }; 5];
    for (case, trials) in cases.iter().zip(steps) {
        let Some(load) = trials.middle(Load::operations_per_second) else { continue };
        let rate = trials.median(Load::operations_per_second).unwrap_or(0.0);
        match case.method {
            Method::Ring { depth, options } if options == RingOptions::default() => {
                rates.push((depth as f64, rate));
                medians.push((depth as f64, load.latency.p50_us));
                tails.push((depth as f64, load.latency.p99_us));
                if [1, 32, 256].contains(&depth) {
                    distribution.line(format!("io_uring, {depth} in flight"), load.latency.quantiles.clone());
                }
            }
            Method::Direct => direct.push((case.threads as f64, rate)),
            Method::Mapped(_) => {
                mapped.push((case.threads as f64, rate));
                if case.threads == 32 {
                    distribution.line("mmap, MADV_RANDOM, 32 threads", load.latency.quantiles.clone());
                }
            }
            _ => {}
        }
    }
    rate_by_depth.line("io_uring, one thread", rates);
    rate_by_depth.line("direct pread, as many threads", direct);
    rate_by_depth.line("mmap, RANDOM, as many threads", mapped);
    latency_by_depth.line("p50", medians);
    latency_by_depth.line("p99", tails);
    chapter.plots.extend([rate_by_depth, latency_by_depth, distribution]);
}

const RANGE_COLUMNS: [Column; 6] = [
    ("reads/s", Form::Rate, |trials| trials.median(Load::operations_per_second).into()),
    ("least", Form::Rate, |trials| trials.spread(Load::operations_per_second).map(|spread| spread.least).into()),
    ("most", Form::Rate, |trials| trials.spread(Load::operations_per_second).map(|spread| spread.most).into()),
    ("device reads/s", Form::Rate, |trials| trials.median(device_reads_per_second).into()),
    ("CPU", Form::Micros, |trials| trials.median(Load::cpu_us_per_operation).into()),
    ("memory", Form::Bytes, |trials| trials.memory_bytes_max().into()),
];

pub(super) fn ranges(chapter: &mut Chapter, cases: &[Case], parts: &Rounds<Load>) {
    let mut table = table_of("Within memory and beyond it, 20 at once", &RANGE_COLUMNS);
    for (case, trials) in cases.iter().zip(parts) {
        add_row(&mut table, &RANGE_COLUMNS, &case.name, case.source, trials);
    }
    add_row(&mut table, &RANGE_COLUMNS, "the first, again", None, &parts.again);
    chapter.tables.push(table);
}

const ROW_COLUMNS: [Column; 3] = [
    ("device bytes per byte", Form::Ratio, |trials| trials.median(Load::read_amplification).into()),
    ("rows/s", Form::Rate, |trials| trials.median(Load::operations_per_second).into()),
    ("p99", Form::Micros, |trials| trials.median(|load| load.latency.p99_us).into()),
];

pub(super) fn amplification(chapter: &mut Chapter, cases: &[Case], rows: &Rounds<Load>) {
    let title = format!("Bytes read from the device per byte requested, rows of {}", figures::size(ROW_BYTES as u64));
    let mut table = table_of(&title, &ROW_COLUMNS);
    for (case, trials) in cases.iter().zip(rows) {
        add_row(&mut table, &ROW_COLUMNS, &case.name, case.source, trials);
    }
    chapter.tables.push(table);
}
