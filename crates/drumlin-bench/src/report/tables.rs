//! The tables of the report.

use std::collections::BTreeSet;

use drumlin_lab::Form;

use crate::commerce::Kind;
use crate::measure::Latencies;
use crate::results::{Entry, Measured, Results};
use crate::workloads::Figures;

/// A table whose cells are text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    pub title: String,
    /// Sentences about the table. Each line ends in a newline.
    pub about: String,
    /// The titles of the columns.
    pub titles: Vec<String>,
    /// The rows. Each has as many cells as there are titles.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns the table in Markdown. Replaces each `|` in a cell with `/`, because `|` would end the cell.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "/")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = vec!["---".to_owned(); self.titles.len()];
        let lines = [&self.titles[..], &rule].into_iter().chain(self.rows.iter().map(Vec::as_slice));
        lines.map(line).collect()
    }
}

pub(super) const NOTHING: &str = "–";
/// The workload that the table of inserts shows.
const INSERT: &str = "insert-1k";

fn texts(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn show(form: Form, number: f64) -> String {
    if number.is_finite() { form.show(number) } else { NOTHING.to_owned() }
}

/// Returns all tables of the report.
pub(super) fn all(results: &Results) -> Vec<Table> {
    let mut tables = vec![rates(results), engines(results)];
    if !results.audits.is_empty() {
        tables.push(audits(results));
    }
    tables.extend([inserts(results), operations(results, |_| true), tails(results), writes(results)]);
    tables.extend([memory(results), sizes(results)]);
    tables.retain(|table| !table.rows.is_empty());
    for workload in &results.workloads {
        tables.push(detail(workload));
        tables.extend(Some(others(workload)).filter(|table| !table.rows.is_empty()));
    }
    tables
}

/// Returns the engines that have figures for any workload except the 1 KiB insert, which has its own table.
fn columns(results: &Results) -> Vec<String> {
    let others = || results.workloads.iter().filter(|workload| workload.name != INSERT);
    let has_figures = |name: &str| others().any(|workload| workload.entry(name).is_some());
    results.engines.iter().map(|engine| engine.name.clone()).filter(|name| has_figures(name)).collect()
}

/// Returns `true` if the report shows a time for the workload instead of a rate.
pub(super) fn is_opening(workload: &Measured) -> bool {
    workload.unit == "openings"
}

/// Returns the rate in units per second or, for a workload that measures openings, the time of an opening.
pub(super) fn rate(workload: &Measured, entry: &Entry) -> String {
    if is_opening(workload) {
        return show(Form::Micros, entry.median(|figures| figures.latencies.mean_us));
    }
    show(Form::Rate, entry.median(|figures| figures.rate))
}

/// Builds the table of medians, with a row for each workload, a column for each engine, and a column for Drumlin's rate
/// relative to that of the best other engine.
pub(super) fn rates(results: &Results) -> Table {
    let engines = columns(results);
    let mut titles = texts(&["row", "workload"]);
    titles.extend(engines.iter().cloned());
    titles.push("Drumlin / best peer".to_owned());
    let rows = results.workloads.iter().map(|workload| {
        let mut row = vec![workload.row.clone(), workload.title.clone()];
        row.extend(engines.iter().map(|name| cell(results, workload, name)));
        row.push(relative(results, workload).map_or(NOTHING.to_owned(), |ratio| format!("{ratio:.2}")));
        row
    });
    Table {
        title: "Rates".to_owned(),
        about:
            "Medians of units a second by workload; openings in time, where less is better. A star marks commits that \
                were acknowledged without a sync; such engines do not count as the best peer.\n"
                .to_owned(),
        rows: rows.collect(),
        titles,
    }
}

fn cell(results: &Results, workload: &Measured, engine: &str) -> String {
    if let Some(entry) = workload.entry(engine) {
        // If the engine finished fewer turns than requested, the workload's own table says why.
        let fewer = if entry.failure.is_some() { " (!)" } else { "" };
        let early = if results.breaks_promise(workload, engine) { " *" } else { "" };
        return rate(workload, entry) + early + fewer;
    }
    let entry = workload.entries.iter().find(|entry| entry.engine == engine);
    match entry.and_then(|entry| entry.failure.as_deref()) {
        Some(why) if why.starts_with("killed") => "killed".to_owned(),
        Some(why) if why.contains("cannot") => NOTHING.to_owned(),
        Some(_) => "failed".to_owned(),
        None => NOTHING.to_owned(),
    }
}

/// Returns Drumlin's rate divided by that of the best other engine. Engines that acknowledge durable commits without a
/// sync are ignored.
fn relative(results: &Results, workload: &Measured) -> Option<f64> {
    let ours = workload.entry("drumlin")?.median(|figures| figures.rate);
    let others = workload.entries.iter().filter(|entry| {
        !entry.engine.starts_with("drumlin")
            && !entry.turns.is_empty()
            && !results.breaks_promise(workload, &entry.engine)
    });
    let best = others.map(|entry| entry.median(|figures| figures.rate)).max_by(f64::total_cmp)?;
    Some(ours / best)
}

fn engines(results: &Results) -> Table {
    let row = |engine: &crate::results::EngineFacts| {
        let lacks = if engine.lacks.is_empty() { NOTHING.to_owned() } else { engine.lacks.join("; ") };
        vec![engine.name.clone(), engine.version.clone(), engine.settings.clone(), lacks]
    };
    Table {
        title: "Engines".to_owned(),
        about: "Every engine has the same budget for caches and write buffers, in the same group.\n".to_owned(),
        titles: texts(&["engine", "version", "settings", "lacks"]),
        rows: results.engines.iter().map(row).collect(),
    }
}

/// Builds the table of flushes per durable commit.
pub(super) fn audits(results: &Results) -> Table {
    let row = |audit: &crate::audit::Audit| {
        let verdict = if audit.acknowledges_early() { "acknowledges **without a sync**" } else { "syncs each commit" };
        vec![
            audit.engine.clone(),
            format!("{:.2}", audit.flushes_per_commit),
            show(Form::Bytes, audit.bytes_per_commit),
            if audit.alone { verdict.to_owned() } else { format!("{verdict} (others' flushes are counted too)") },
        ]
    };
    Table {
        title: "Syncs".to_owned(),
        about: "Durable commits of 1 KiB by one thread, one after another, counted at a block device.\n".to_owned(),
        titles: texts(&["engine", "flushes a commit", "written a commit", "so it"]),
        rows: results.audits.iter().map(row).collect(),
    }
}

/// Builds the table of the durable 1 KiB insert. It includes the distribution of latencies, which a mean would hide.
pub(super) fn inserts(results: &Results) -> Table {
    let measured = results.workloads.iter().filter(|workload| workload.name == INSERT);
    let entries = measured.flat_map(|workload| &workload.entries).filter(|entry| !entry.turns.is_empty());
    let rows = entries.map(|entry| {
        let micros = |figure: fn(&crate::measure::Latencies) -> f64| {
            show(Form::Micros, entry.median(|figures| figure(&figures.latencies)))
        };
        let audit = results.audits.iter().find(|audit| audit.engine == entry.engine);
        let early = audit.is_some_and(crate::audit::Audit::acknowledges_early);
        vec![
            entry.engine.clone(),
            show(Form::Rate, entry.median(|figures| figures.rate)),
            micros(|latencies| latencies.mean_us),
            micros(|latencies| latencies.min_us),
            micros(|latencies| latencies.p50_us),
            micros(|latencies| latencies.p99_us),
            micros(|latencies| latencies.max_us),
            micros(|latencies| latencies.deviation_us),
            show(Form::Share, entry.median(|figures| figures.latencies.outliers)),
            if early { "**not synced**" } else { "" }.to_owned(),
        ]
    });
    Table {
        title: "Durable insert of 1 KiB".to_owned(),
        about: "Single inserts by one thread, medians of the turns; outliers took over 10 times the median.\n"
            .to_owned(),
        titles: texts(&[
            "engine",
            "inserts",
            "mean",
            "least",
            "p50",
            "p99",
            "most",
            "deviation",
            "outliers",
            "durable",
        ]),
        rows: rows.collect(),
    }
}

/// Builds the table of latencies by kind of operation, for the workloads that `shows` selects.
pub(super) fn operations(results: &Results, shows: impl Fn(&Measured) -> bool) -> Table {
    let is_of_shoppers = |name: &str| Kind::ALL.iter().any(|kind| kind.name() == name);
    let has_kinds =
        |entry: &Entry| entry.turns.iter().flat_map(|turn| &turn.figures.kinds).any(|(name, _)| is_of_shoppers(name));
    let workloads: Vec<&Measured> =
        results.workloads.iter().filter(|workload| shows(workload) && workload.entries.iter().any(has_kinds)).collect();
    let is_shown = |name: &str| workloads.iter().any(|workload| workload.entry(name).is_some_and(has_kinds));
    let engines: Vec<&str> =
        results.engines.iter().map(|engine| engine.name.as_str()).filter(|name| is_shown(name)).collect();
    let mut titles = texts(&["workload", "operation"]);
    titles
        .extend(engines.iter().flat_map(|name| [format!("{name} mean"), format!("{name} p50"), format!("{name} p99")]));
    let rows = workloads.iter().flat_map(|workload| {
        Kind::ALL.map(|kind| {
            let mut row = vec![workload.title.clone(), kind.name().to_owned()];
            row.extend(engines.iter().flat_map(|name| kind_cells(workload.entry(name), kind)));
            row
        })
    });
    Table {
        title: "Operations of shoppers".to_owned(),
        about:
            "Medians of the turns. Products are found with their ratings; all other operations are durable commits.\n"
                .to_owned(),
        rows: rows.collect(),
        titles,
    }
}

/// Returns the mean, median and p99 latency of one kind of operation.
fn kind_cells(entry: Option<&Entry>, kind: Kind) -> [String; 3] {
    let cell = |figure: fn(&crate::measure::Latencies) -> f64| {
        let of_turn = |figures: &crate::workloads::Figures| {
            let found = figures.kinds.iter().find(|(name, _)| name == kind.name());
            found.map_or(f64::NAN, |(_, latencies)| figure(latencies))
        };
        entry.map_or(NOTHING.to_owned(), |entry| show(Form::Micros, entry.median(of_turn)))
    };
    [cell(|latencies| latencies.mean_us), cell(|latencies| latencies.p50_us), cell(|latencies| latencies.p99_us)]
}

/// Builds the table of the median, p99 and p99.9 latencies of single operations at 70 % of each engine's own highest
/// rate.
pub(super) fn tails(results: &Results) -> Table {
    let cell = |entry: Option<&Entry>| {
        let quantile = |figure: fn(&crate::measure::Latencies) -> f64| {
            let of_turn = |figures: &crate::workloads::Figures| figures.steady.as_ref().map_or(f64::NAN, figure);
            entry.map_or(f64::NAN, |entry| entry.median(of_turn))
        };
        let quantiles = [quantile(|all| all.p50_us), quantile(|all| all.p99_us), quantile(|all| all.p999_us)];
        if quantiles[0].is_nan() { NOTHING.to_owned() } else { quantiles.map(|us| show(Form::Micros, us)).join(", ") }
    };
    let is_held = |workload: &&Measured| {
        workload.entries.iter().flat_map(|entry| &entry.turns).any(|turn| turn.figures.steady.is_some())
    };
    side_by_side(
        results,
        "Tails",
        "Median, p99 and p99.9 of single operations at a steady 70 % of the engine's own highest rate, from the moment at \
         which each was due.\n",
        results.workloads.iter().filter(is_held),
        |_, entry| cell(entry),
    )
}

/// Builds the table of sustained writes: the bytes written per byte of keys and values, and the longest pause.
pub(super) fn writes(results: &Results) -> Table {
    let cell = |entry: Option<&Entry>| {
        let Some(entry) = entry else { return NOTHING.to_owned() };
        let share = entry.median(|figures| figures.costs.write_bytes as f64 / figures.written_user_bytes as f64);
        let pause = entry.median(|figures| figures.longest_pause_seconds);
        format!("{}, {}", show(Form::Ratio, share), show(Form::Seconds, pause))
    };
    let goes_on = |workload: &&Measured| workload.row == "13";
    side_by_side(
        results,
        "Writes and pauses",
        "Bytes that the process wrote for each byte of keys and values, and the longest time in which no operation ended.\n",
        results.workloads.iter().filter(goes_on),
        |_, entry| cell(entry),
    )
}

/// Builds a table with a row for each workload and a column for each engine.
fn side_by_side<'r>(
    results: &'r Results,
    title: &str,
    about: &str,
    workloads: impl Iterator<Item = &'r Measured>,
    cell: impl Fn(&Measured, Option<&Entry>) -> String,
) -> Table {
    let engines = columns(results);
    let mut titles = texts(&["workload"]);
    titles.extend(engines.iter().cloned());
    let rows = workloads.map(|workload| {
        let cells = engines.iter().map(|engine| cell(workload, workload.entry(engine)));
        std::iter::once(workload.title.clone()).chain(cells).collect()
    });
    Table { title: title.to_owned(), about: about.to_owned(), rows: rows.collect(), titles }
}

/// Builds the table of peak memory by engine.
pub(super) fn memory(results: &Results) -> Table {
    let most = |engine: &str, exceeds: bool, bytes: &dyn Fn(&crate::results::Turn) -> Option<u64>| {
        let workloads =
            results.workloads.iter().filter(|workload| (workload.user_bytes > workload.budget_bytes) == exceeds);
        let turns = workloads.filter_map(|workload| workload.entry(engine)).flat_map(|entry| &entry.turns);
        show(Form::Bytes, turns.filter_map(bytes).max().map_or(f64::NAN, |bytes| bytes as f64))
    };
    let rows = columns(results).into_iter().map(|engine| {
        let resident = |turn: &crate::results::Turn| Some(turn.figures.resident_bytes_max);
        let group = |turn: &crate::results::Turn| turn.group_bytes_max;
        vec![
            engine.clone(),
            most(&engine, true, &resident),
            most(&engine, true, &group),
            most(&engine, false, &resident),
            most(&engine, false, &group),
        ]
    });
    Table {
        title: "Memory".to_owned(),
        about: "The most of all turns: resident memory of the process, and of its group, page cache included.\n"
            .to_owned(),
        titles: texts(&[
            "engine",
            "resident, larger than memory",
            "group, larger than memory",
            "resident, in memory",
            "group, in memory",
        ]),
        rows: rows.collect(),
    }
}

/// Builds the table of sizes on disk after loads, relative to the size of all keys and values.
pub(super) fn sizes(results: &Results) -> Table {
    side_by_side(
        results,
        "Size on disk",
        "Bytes of all files once closed, logs included, divided by those of keys and values.\n",
        results.workloads.iter().filter(|workload| workload.row == "8"),
        |workload, entry| match entry {
            Some(entry) => {
                format!("{:.2}", entry.median(|figures| figures.disk_bytes as f64) / workload.user_bytes as f64)
            }
            None => NOTHING.to_owned(),
        },
    )
}

/// Builds the detailed table of one workload.
pub(super) fn detail(workload: &Measured) -> Table {
    let titles = [
        "engine",
        "median",
        "range",
        "CPU",
        "p50",
        "p99",
        "p99.9",
        "max",
        "p99 at 70 %",
        "p99.9 at 70 %",
        "read",
        "written",
        "write ampl.",
        "pause",
        "memory",
        "disk",
        "raw reads/s at 1, 32, 64",
    ];
    let rows: Vec<Vec<String>> = workload.entries.iter().map(|entry| detail_row(workload, entry)).collect();
    let other_work = workload.other_work();
    let beside = if other_work > 0.1 {
        format!(" Other work took {} of the processors at the same time.", Form::Share.show(other_work))
    } else {
        String::new()
    };
    let quick = if workload.quick { " A quick run: these figures are not comparable." } else { "" };
    let about = format!(
        "{}. {}; CPU, bytes read and written are for each of the {}.{beside}{quick}\n",
        workload.setting, workload.date, workload.unit
    );
    let mut table =
        Table { title: format!("{}: {}", workload.name, workload.title), about, titles: texts(&titles), rows };
    drop_empty_columns(&mut table);
    table
}

/// Builds the table of the figures that only this workload has, with a column for each engine.
fn others(workload: &Measured) -> Table {
    let entries = || workload.entries.iter().filter(|entry| !entry.turns.is_empty());
    let turns = || entries().flat_map(|entry| &entry.turns);
    let names: BTreeSet<&String> = turns().flat_map(|turn| turn.figures.more.keys()).collect();
    let kinds: BTreeSet<&String> = turns().flat_map(|turn| turn.figures.kinds.iter().map(|(name, _)| name)).collect();
    let shoppers = |name: &&&String| !Kind::ALL.iter().any(|kind| kind.name() == name.as_str());
    let row = |name: String, figure: &dyn Fn(&Figures) -> f64, form: Form| {
        let cells = entries().map(|entry| show(form, entry.median(figure)));
        [name].into_iter().chain(cells).collect::<Vec<String>>()
    };
    let more = names.iter().map(|name| {
        let figure = |figures: &Figures| figures.more.get(*name).copied().unwrap_or(f64::NAN);
        row((*name).clone(), &figure, Form::Ratio)
    });
    let latencies = kinds.iter().filter(shoppers).flat_map(|name| {
        let of = |figures: &Figures, quantile: fn(&Latencies) -> f64| {
            figures.kinds.iter().find(|(kind, _)| kind == *name).map_or(f64::NAN, |(_, latencies)| quantile(latencies))
        };
        [
            row(format!("{name}, p50"), &|figures| of(figures, |all| all.p50_us), Form::Micros),
            row(format!("{name}, p99"), &|figures| of(figures, |all| all.p99_us), Form::Micros),
        ]
    });
    Table {
        title: format!("{}: other figures", workload.name),
        about: "Medians of the turns.\n".to_owned(),
        rows: more.chain(latencies).collect(),
        titles: ["figure".to_owned()].into_iter().chain(entries().map(|entry| entry.engine.clone())).collect(),
    }
}

/// Removes columns that are empty in every row.
fn drop_empty_columns(table: &mut Table) {
    for index in (1..table.titles.len()).rev() {
        if table.rows.iter().all(|row| row[index] == NOTHING || row[index].is_empty()) {
            table.titles.remove(index);
            table.rows.iter_mut().for_each(|row| {
                row.remove(index);
            });
        }
    }
}

fn detail_row(workload: &Measured, entry: &Entry) -> Vec<String> {
    let Some(turn) = entry.typical() else {
        let why = entry.failure.clone().unwrap_or_else(|| NOTHING.to_owned());
        let mut row = vec![entry.engine.clone(), why];
        row.resize(17, NOTHING.to_owned());
        return row;
    };
    let form = if is_opening(workload) { Form::Micros } else { Form::Rate };
    let shown = |figures: &crate::workloads::Figures| {
        if is_opening(workload) { figures.latencies.mean_us } else { figures.rate }
    };
    let (low, high) = entry.range(shown);
    let figures = &turn.figures;
    let per_unit = |amount: f64| amount / figures.units.max(1) as f64;
    // A latency distribution needs more than a few operations.
    let is_timed = figures.latencies.count > 50;
    let micros = |micros: f64| if is_timed { show(Form::Micros, micros) } else { NOTHING.to_owned() };
    let bytes = |bytes: u64| match bytes {
        0 => NOTHING.to_owned(),
        _ => show(Form::Bytes, per_unit(bytes as f64)),
    };
    let steady = |quantile: fn(&crate::measure::Latencies) -> f64| {
        figures.steady.as_ref().map_or(NOTHING.to_owned(), |steady| show(Form::Micros, quantile(steady)))
    };
    let written = figures.written_user_bytes;
    let raw = figures.raw.as_ref().map_or(NOTHING.to_owned(), |(before, after)| {
        let best = |depth: fn(&crate::raw::RawReads) -> f64| show(Form::Rate, depth(before).max(depth(after)));
        [best(|raw| raw.depth_1), best(|raw| raw.depth_32), best(|raw| raw.depth_64)].join(", ")
    });
    let failure = entry.failure.as_ref().map_or(String::new(), |why| format!(" (then {why})"));
    vec![
        entry.engine.clone(),
        rate(workload, entry) + failure.as_str(),
        format!("{} to {}", show(form, low), show(form, high)),
        show(Form::Micros, per_unit(figures.costs.cpu_seconds * 1e6)),
        micros(figures.latencies.p50_us),
        micros(figures.latencies.p99_us),
        micros(figures.latencies.p999_us),
        micros(figures.latencies.max_us),
        steady(|steady| steady.p99_us),
        steady(|steady| steady.p999_us),
        bytes(figures.costs.read_bytes),
        bytes(figures.costs.write_bytes),
        if written == 0 {
            NOTHING.to_owned()
        } else {
            show(Form::Ratio, figures.costs.write_bytes as f64 / written as f64)
        },
        if figures.longest_pause_seconds > 0.0 {
            show(Form::Seconds, figures.longest_pause_seconds)
        } else {
            NOTHING.to_owned()
        },
        show(Form::Bytes, figures.resident_bytes_max as f64),
        show(Form::Bytes, figures.disk_bytes as f64),
        raw,
    ]
}
