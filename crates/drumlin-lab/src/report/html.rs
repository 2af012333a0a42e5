//! The report as one self-contained HTML page, without scripts, fonts or any other files.
//!
//! A phone shows one column, a desktop two plots side by side; there are colours for light and dark mode. Wide tables
//! scroll within their own frame, and the page itself never scrolls sideways.

use std::fmt::Write;

use super::plot::escape;
use super::{Cell, Chapter, Holds, Report, SOURCES, Table, WHAT_FOLLOWS, plot, source_words, text};
use crate::figures::{self, Form};

pub(super) const STYLE: &str = include_str!("page.css");

pub(super) fn render(report: &Report) -> String {
    let mut page = String::new();
    let mut put = |text: &str| page.push_str(text);
    put("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    put("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    put("<meta name=\"color-scheme\" content=\"light dark\">");
    put(&format!("<title>Drumlin lab: {}</title><style>{STYLE}</style></head><body>", escape(&report.started)));
    put("<header><h1>What this machine’s storage really does</h1>");
    put(&format!(
        "<p class=\"lead\">Published measurements of storage, repeated here on {}, with the sources’ figures beside them.</p>",
        escape(&report.started)
    ));
    if report.interrupted {
        put("<p class=\"failure\">Interrupted: these are the results up to then.</p>");
    }
    if let Some(hint) = report.noise_hint() {
        put(&format!("<p class=\"failure\">{}</p>", escape(&hint)));
    }
    put("</header><main>");
    put(&sources());
    put(&summary(report));
    put(&machine(report));
    for chapter in &report.chapters {
        put(&self::chapter(chapter));
    }
    put("</main><footer><p>Written by <code>drumlin lab</code>.</p></footer>");
    put("</body></html>\n");
    page
}

/// Lists the sources under the names that verdicts and tables use.
fn sources() -> String {
    let mut html = String::from("<section><h2>The sources</h2><dl class=\"sources\">");
    for (name, words) in SOURCES {
        write!(html, "<dt>{name}</dt><dd>{}</dd>", escape(words)).expect("a string takes any text");
    }
    html + "</dl></section>"
}

/// Lists every verdict on one screen, with links to the chapters.
fn summary(report: &Report) -> String {
    if report.verdicts().next().is_none() {
        return String::new();
    }
    let mut html = format!(
        "<section><h2>Which findings hold here</h2><p>{}. {}</p><ul class=\"verdicts\">",
        escape(&report.outcomes()),
        WHAT_FOLLOWS.replace("drumlin doctor DIR", "<code>drumlin doctor DIR</code>")
    );
    for chapter in &report.chapters {
        for verdict in &chapter.verdicts {
            write!(
                html,
                "<li><a href=\"#{}\"><span class=\"mark {}\">{}</span> {} {}</a></li>",
                chapter.name,
                class(verdict.holds),
                verdict.holds.words(),
                source(verdict.source),
                escape(&verdict.claim)
            )
            .expect("a string takes any text");
        }
    }
    html + "</ul></section>"
}

/// Formats a source's name. A browser shows its title while the pointer is on the name.
fn source(name: &str) -> String {
    format!("<abbr title=\"{}\">{name}</abbr>", escape(source_words(name)))
}

fn class(holds: Holds) -> &'static str {
    match holds {
        Holds::Yes => "yes",
        Holds::No | Holds::NotInSize => "no",
        Holds::Partly => "partly",
        Holds::Inconclusive => "unknown",
    }
}

fn machine(report: &Report) -> String {
    let machine = &report.machine;
    let rows = [
        (
            "Machine",
            format!(
                "{}, {}, {} of memory{}",
                machine.processor,
                figures::plural(machine.processors as u64, "processor"),
                figures::bytes(machine.memory_bytes as f64),
                machine.virtualised.as_ref().map_or(String::new(), |name| format!(", virtual ({name})"))
            ),
        ),
        ("Kernel", machine.kernel.clone()),
        ("Files", format!("{}, mounted {}", machine.file_system, machine.mount_options)),
        ("Drive", text::drive_line(&machine.drive)),
        ("Drive's state", report.drive_state.clone().unwrap_or_else(|| "not measured".to_owned())),
        ("Memory limit", report.memory_limit.clone()),
        ("Command", report.command.clone()),
        ("Took", figures::micros(report.seconds * 1e6)),
    ];
    let mut html = String::from("<section><h2>Where</h2><dl>");
    for (name, value) in rows {
        write!(html, "<dt>{name}</dt><dd>{}</dd>", escape(&value)).expect("a string takes any text");
    }
    html + "</dl></section>"
}

fn chapter(chapter: &Chapter) -> String {
    let mut html = format!(
        "<section id=\"{0}\"><h2><code>{0}</code> {1} <small>{2}</small></h2><p>{3}</p>",
        chapter.name,
        escape(&chapter.title),
        escape(&figures::micros(chapter.seconds * 1e6)),
        escape(&chapter.about)
    );
    if let Some(failure) = &chapter.failure {
        html += &format!("<p class=\"failure\">{}</p>", escape(failure));
    }
    for verdict in &chapter.verdicts {
        write!(
            html,
            "<p class=\"verdict {0}\"><span class=\"mark {0}\">{1}</span> {2} {3} <span>{4}</span></p>",
            class(verdict.holds),
            verdict.holds.words(),
            source(verdict.source),
            escape(&verdict.claim),
            escape(&verdict.explanation())
        )
        .expect("a string takes any text");
    }
    let plots: String = chapter.plots.iter().filter(|plot| !plot.lines.is_empty()).map(plot::render).collect();
    if !plots.is_empty() {
        html += &format!("<div class=\"plots\">{plots}</div>");
    }
    html.extend(chapter.tables.iter().filter(|table| !table.rows.is_empty()).map(self::table));
    if !chapter.notes.is_empty() {
        html += "<ul class=\"notes\">";
        html.extend(chapter.notes.iter().map(|note| format!("<li>{}</li>", escape(note))));
        html += "</ul>";
    }
    html + "</section>"
}

fn table(table: &Table) -> String {
    let has_source = table.rows.iter().any(|row| row.source.is_some());
    let mut html = format!("<h3>{}</h3><div class=\"frame\" tabindex=\"0\"><table><thead><tr>", escape(&table.title));
    for column in &table.columns {
        let class = if column.form == Form::Text { " class=\"words\"" } else { "" };
        // Join words that are hyphenated for narrow terminals; a page does not need the line break.
        html += &format!("<th scope=\"col\"{class}>{}</th>", escape(&column.label.replace("- ", "")));
    }
    if has_source {
        html += "<th scope=\"col\" class=\"words\">the source measured</th>";
    }
    html += "</tr></thead><tbody>";
    for row in &table.rows {
        html += "<tr>";
        for (index, cell) in row.cells.iter().enumerate() {
            let shown = escape(&table.show(index, cell));
            let is_words = table.columns[index].form == Form::Text || matches!(cell, Cell::Text(_));
            html += &match (index, is_words) {
                (0, _) => format!("<th scope=\"row\">{shown}</th>"),
                (_, true) => format!("<td class=\"words\">{shown}</td>"),
                (_, false) => format!("<td>{shown}</td>"),
            };
        }
        if has_source {
            html += &format!("<td class=\"words source\">{}</td>", escape(row.source.as_deref().unwrap_or("")));
        }
        html += "</tr>";
    }
    html + "</tbody></table></div>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::{Judgement, Plot, QUIETER, Scale};

    fn report(chapters: Vec<Chapter>) -> Report {
        Report {
            version: 2,
            command: "drumlin lab random".to_owned(),
            started: "2026-11-21 13:00:00 UTC".to_owned(),
            seconds: 1.0,
            interrupted: false,
            quick: true,
            machine: Machine::of(&std::env::temp_dir()).unwrap(),
            memory_limit: "none".to_owned(),
            drive_state: None,
            chapters,
        }
    }

    /// The page is self-contained and contains every figure, and no text can become markup.
    #[test]
    fn the_page_stands_alone() {
        let mut chapter = Chapter::new("random", "Reads <b>", "About & more");
        let mut table = Table::new("Figures", &[("", Form::Text), ("rate", Form::Rate)]);
        table.row(vec!["direct <script>".into(), 547_479.0.into()]).source("S4: 547 k");
        chapter.tables.push(table);
        let mut plot = Plot::new("Over time", ("s", Form::Seconds, Scale::Linear), ("r", Form::Rate, Scale::Linear));
        plot.line("direct", vec![(0.0, 1.0), (1.0, 2.0)]);
        chapter.plots.push(plot);
        chapter.judged("S1", "It holds.", Judgement::new(Holds::Yes, "Seen."));
        let report = report(vec![chapter]);
        let page = report.html();
        for part in
            ["547\u{a0}k", "direct &lt;script&gt;", "Reads &lt;b&gt;", ">holds<", "<svg", "prefers-color-scheme"]
        {
            assert!(page.contains(part), "{part} is missing");
        }
        for part in ["<script", "http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(part), "the page holds {part}");
        }
        let text = report.text(80);
        assert!(text.contains("547 k") && text.contains("S1"));
    }

    /// Both forms begin with the sources and the list of all verdicts. They give advice if noise made many verdicts
    /// inconclusive.
    #[test]
    fn reports_begin_with_sources_and_summary() {
        let quiet = Judgement::new(Holds::Partly, "It has 3 times the rate.");
        let noisy = || Judgement::inconclusive(format!("{QUIETER} (the rounds gave 1 to 5 times)"), "Seen.");
        let mut chapter = Chapter::new("scan", "Scans", "About scans.");
        chapter.judged("S4", "Streams are fast.", quiet);
        let mut report = report(vec![chapter]);
        for output in [report.text(80), report.html()] {
            for part in ["Modern storage is plenty fast.", "drumlin doctor DIR", "partly: 1"] {
                let words = output.split_whitespace().collect::<Vec<_>>().join(" ");
                let (head, chapter) = words.split_once("About scans.").unwrap();
                assert!(head.contains(part) && head.contains("Streams are fast."), "{part} is not above: {words}");
                assert!(chapter.contains("Streams are fast.") && !words.contains("The machine was busy"));
            }
        }
        assert!(report.html().contains("<abbr title=\"G. Costa: Modern storage"));
        for claim in ["Mappings fall.", "Syncs queue."] {
            report.chapters[0].judged("S1", claim, noisy());
        }
        for output in [report.text(80), report.html()] {
            assert!(output.contains("The machine was busy: 2 of 3 verdicts"), "{output}");
        }
    }
}
