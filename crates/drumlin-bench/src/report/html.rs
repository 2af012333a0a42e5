//! The HTML page. It needs no scripts, fonts or other files.

use drumlin_lab::{Form, Plot, Scale};

use super::bars::{self, escape};
use super::tables::{self, Table};
use crate::driver::BUCKET;
use crate::measure::Latencies;
use crate::results::{Measured, Results};

/// The CSS rules that the page needs in addition to those of drumlin-lab's pages.
const STYLE: &str = "svg .bar{fill:var(--soft);opacity:.45}svg .own{fill:var(--accent);opacity:.9}\
tbody th{min-width:3.5rem}td.words{min-width:15rem}svg .range{stroke:var(--ink);stroke-width:1.5;fill:none}td:nth-child(2){white-space:normal}\
nav{display:flex;flex-wrap:wrap;gap:.2rem .9rem;font-size:.9rem}nav a{color:var(--accent);text-decoration:none}";

/// The period that each point of a timeline covers, in seconds.
const POINT_SECONDS: f64 = 0.5;

/// Returns all tables and plots as one HTML page.
#[must_use]
pub fn html(results: &Results) -> String {
    let mut page = String::from("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">";
    page += "<meta name=\"color-scheme\" content=\"light dark\"><title>Drumlin and its peers</title>";
    page += &format!("<style>{}{STYLE}</style></head><body>", Plot::STYLE);
    page += "<header><h1>Drumlin and its peers</h1><p class=\"lead\">The same work for each engine, on the same keys and \
             values, measured in turns, each in a process and a memory group of its own.</p></header><main>";
    page += &machine(results);
    page += &contents(results);
    for table in tables::all(results).iter().take_while(|table| !is_detail(table, results)) {
        page += &format!(
            "<section><h2>{}</h2><p>{}</p>{}</section>",
            escape(&table.title),
            escape(&table.about),
            self::table(table)
        );
    }
    page.extend(results.workloads.iter().map(workload));
    page += "</main><footer><p>Written by <code>drumlin-bench</code>.</p></footer></body></html>\n";
    page
}

fn is_detail(table: &Table, results: &Results) -> bool {
    results.workloads.iter().any(|workload| table.title.starts_with(&format!("{}: ", workload.name)))
}

fn machine(results: &Results) -> String {
    let fact = |(name, text): &(String, String)| format!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(text));
    format!("<section><h2>Where</h2><dl>{}</dl></section>", results.machine.iter().map(fact).collect::<String>())
}

fn contents(results: &Results) -> String {
    let link = |workload: &Measured| format!("<a href=\"#{0}\">{0}</a>", escape(&workload.name));
    format!(
        "<section><h2>Workloads</h2><nav>{}</nav></section>",
        results.workloads.iter().map(link).collect::<String>()
    )
}

fn table(table: &Table) -> String {
    let mut html = String::from("<div class=\"frame\" tabindex=\"0\"><table><thead><tr>");
    // Align words to the left and figures to the right.
    let is_words = |column: usize| table.rows.iter().any(|row| row[column].len() > 40);
    let class = |column: usize| if is_words(column) { " class=\"words\"" } else { "" };
    for (column, title) in table.titles.iter().enumerate() {
        html += &format!("<th scope=\"col\"{}>{}</th>", class(column), escape(title));
    }
    html += "</tr></thead><tbody>";
    for row in &table.rows {
        html += &format!("<tr><th scope=\"row\">{}</th>", escape(&row[0]));
        for (column, cell) in row.iter().enumerate().skip(1) {
            html += &format!("<td{}>{}</td>", class(column), escape(&cell.replace("**", "")));
        }
        html += "</tr>";
    }
    html + "</tbody></table></div>"
}

/// Returns the section of one workload: bars, latencies, rate over time, and a table.
fn workload(workload: &Measured) -> String {
    let detail = tables::detail(workload);
    let plots: String =
        [bars::render(workload), tails(workload, false), tails(workload, true), course(workload)].concat();
    format!(
        "<section id=\"{0}\"><h2><code>{0}</code> {1}</h2><p>{2}</p><div class=\"plots\">{plots}</div>{3}</section>",
        escape(&workload.name),
        escape(&workload.title),
        escape(&detail.about),
        table(&detail)
    )
}

/// Plots the latencies of all engines, at the highest rate or at 70 % of it.
fn tails(workload: &Measured, steady: bool) -> String {
    let title = if steady { "Latency at a steady 70 % of the highest rate" } else { "Latency at the highest rate" };
    let mut plot = Plot::new(
        title,
        ("share of operations", Form::Share, Scale::Tail),
        ("latency", Form::Micros, Scale::Logarithmic),
    );
    for entry in &workload.entries {
        let Some(turn) = entry.typical() else { continue };
        let latencies: Option<&Latencies> =
            if steady { turn.figures.steady.as_ref() } else { Some(&turn.figures.latencies) };
        if let Some(latencies) = latencies.filter(|latencies| latencies.count > 50) {
            plot.line(&*entry.engine, latencies.tail.clone());
        }
    }
    if plot.lines.is_empty() { String::new() } else { plot.html() }
}

/// Plots the rates of a long measurement over time.
fn course(workload: &Measured) -> String {
    let per_point = (POINT_SECONDS / BUCKET.as_secs_f64()) as usize;
    let mut plot = Plot::new(
        "Rate over time",
        ("seconds", Form::Seconds, Scale::Linear),
        ("units a second", Form::Rate, Scale::Linear),
    );
    for entry in &workload.entries {
        let Some(turn) = entry.typical() else { continue };
        // A plot with fewer than 20 points shows nothing useful.
        if turn.figures.timeline.len() < 20 * per_point {
            continue;
        }
        let points = turn.figures.timeline.chunks_exact(per_point).enumerate();
        let points = points
            .map(|(index, part)| ((index + 1) as f64 * POINT_SECONDS, part.iter().sum::<u64>() as f64 / POINT_SECONDS));
        plot.line(&*entry.engine, points.collect());
    }
    if plot.lines.is_empty() { String::new() } else { plot.html() }
}
