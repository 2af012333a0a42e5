//! The report for a terminal, with tables that fit its width.

use anstyle::{AnsiColor, Color, Style};

use super::{Chapter, Holds, Report, SOURCES, Table, WHAT_FOLLOWS};
use crate::figures::{self, Form};
use crate::machine::Drive;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
const ACCENT: Style = Style::new().bold().fg_color(Some(Color::Ansi(AnsiColor::Cyan)));
pub(crate) const GOOD: Style = Style::new().bold().fg_color(Some(Color::Ansi(AnsiColor::Green)));
pub(crate) const BAD: Style = Style::new().bold().fg_color(Some(Color::Ansi(AnsiColor::Red)));
pub(crate) const MIXED: Style = Style::new().bold().fg_color(Some(Color::Ansi(AnsiColor::Yellow)));

/// The number of columns between two columns of a table.
const GAP: usize = 2;
/// The minimum space for a source's figures to the right of their row. If there is less, they are placed below the row.
const SOURCE_COLUMNS_MIN: usize = 22;
/// The minimum width to which a column of words may be narrowed.
const TEXT_COLUMNS_MIN: usize = 12;
/// The width of the column to the left of the claims, which shows the verdicts.
const VERDICT_COLUMNS: usize = 13;

pub(super) fn report(report: &Report, columns: usize) -> String {
    let columns = columns.max(40);
    let mut lines = Vec::new();
    let machine = &report.machine;
    let mut about = vec![
        (
            "machine",
            format!(
                "{}, {}, {} of memory{}",
                machine.processor,
                figures::plural(machine.processors as u64, "processor"),
                figures::bytes(machine.memory_bytes as f64),
                machine.virtualised.as_ref().map_or(String::new(), |name| format!(", virtual ({name})"))
            ),
        ),
        ("kernel", machine.kernel.clone()),
        ("files", format!("{} ({}) in {}", machine.file_system, machine.mount_options, machine.folder)),
        ("drive", drive_line(&machine.drive)),
        ("memory", report.memory_limit.clone()),
        ("run", format!("{}, {}, {}", report.started, figures::micros(report.seconds * 1e6), report.command)),
    ];
    if let Some(state) = &report.drive_state {
        about.insert(4, ("reads", state.clone()));
    }
    if report.interrupted {
        about.push(("", "interrupted: these are the results so far".to_owned()));
    }
    for (label, text) in about {
        entry(label, DIM, &text, 8, columns, &mut lines);
    }
    lines.push(String::new());
    for (name, words) in SOURCES {
        entry(name, DIM, words, 8, columns, &mut lines);
    }
    summary(report, columns, &mut lines);
    for chapter in &report.chapters {
        lines.push(String::new());
        self::chapter(chapter, columns, &mut lines);
    }
    lines.join("\n")
}

/// Adds all verdicts without their figures, which follow in the chapters.
fn summary(report: &Report, columns: usize, lines: &mut Vec<String>) {
    if report.verdicts().next().is_none() {
        return;
    }
    lines.push(String::new());
    for chapter in &report.chapters {
        for verdict in &chapter.verdicts {
            let text = format!("{} ({}): {}", verdict.source, chapter.name, verdict.claim);
            entry(verdict.holds.words(), style(verdict.holds), &text, VERDICT_COLUMNS, columns, lines);
        }
    }
    lines.push(String::new());
    let outcomes = format!("{}.", report.outcomes());
    for text in [Some(outcomes), report.noise_hint(), Some(WHAT_FOLLOWS.to_owned())].into_iter().flatten() {
        lines.extend(wrap(&text, columns));
    }
}

fn style(holds: Holds) -> Style {
    match holds {
        Holds::Yes => GOOD,
        Holds::No | Holds::NotInSize => BAD,
        Holds::Partly => MIXED,
        Holds::Inconclusive => DIM,
    }
}

/// Adds a text, preceded by a column that holds a label. Both the text and the label may be several lines long.
fn entry(label: &str, style: Style, text: &str, label_columns: usize, columns: usize, lines: &mut Vec<String>) {
    let label = wrap(label, label_columns);
    let text = wrap(text, columns - label_columns - GAP);
    for index in 0..label.len().max(text.len()) {
        let [label, line] = [&label, &text].map(|part| part.get(index).map_or("", String::as_str));
        lines.push(format!("{style}{label:<label_columns$}{style:#}  {line}").trim_end().to_owned());
    }
}

pub(crate) fn drive_line(drive: &Drive) -> String {
    let mut parts = vec![match (&drive.name, &drive.model) {
        (Some(name), Some(model)) => format!("{name} ({model}) as {}", drive.source),
        (Some(name), None) => format!("{name} as {}", drive.source),
        _ => drive.source.clone(),
    }];
    match (&drive.cache_claimed, &drive.cache_believed) {
        (Some(claimed), Some(believed)) => {
            parts.push(format!("cache: the drive says {claimed}, the kernel assumes {believed}"));
        }
        (None, Some(believed)) => parts.push(format!("cache: the kernel assumes {believed}")),
        _ => {}
    }
    if let Some(fua) = drive.forced_unit_access {
        parts.push(format!("forced unit access: {}", if fua { "yes" } else { "no" }));
    }
    if let Some(bytes) = drive.logical_block_bytes {
        parts.push(format!("blocks of {bytes} bytes"));
    }
    parts.push(if drive.polled { "polled queues" } else { "no polled queues" }.to_owned());
    if let Some(scheduler) = &drive.scheduler {
        parts.push(format!("scheduler {scheduler}"));
    }
    parts.join("; ")
}

fn chapter(chapter: &Chapter, columns: usize, lines: &mut Vec<String>) {
    let time = figures::micros(chapter.seconds * 1e6);
    lines.push(format!("{ACCENT}{}{ACCENT:#} {BOLD}{}{BOLD:#} {DIM}({time}){DIM:#}", chapter.name, chapter.title));
    lines.extend(wrap(&chapter.about, columns).into_iter().map(|line| format!("{DIM}{line}{DIM:#}")));
    for table in chapter.tables.iter().filter(|table| !table.rows.is_empty()) {
        lines.push(String::new());
        lines.extend(wrap(&table.title, columns).into_iter().map(|line| format!("{BOLD}{line}{BOLD:#}")));
        self::table(table, columns, lines);
    }
    if !chapter.verdicts.is_empty() {
        lines.push(String::new());
    }
    for verdict in &chapter.verdicts {
        let text = format!("{}: {}", verdict.source, verdict.sentences());
        entry(verdict.holds.words(), style(verdict.holds), &text, VERDICT_COLUMNS, columns, lines);
    }
    for note in &chapter.notes {
        for (index, line) in wrap(note, columns - 2).into_iter().enumerate() {
            lines.push(format!("{DIM}{} {line}{DIM:#}", if index == 0 { "·" } else { " " }));
        }
    }
    if let Some(failure) = &chapter.failure {
        lines.extend(wrap(failure, columns).into_iter().map(|line| format!("{BAD}{line}{BAD:#}")));
    }
}

/// Adds a table. A table that is too wide is split into parts, each of which repeats the names of the rows.
pub(crate) fn table(table: &Table, columns: usize, lines: &mut Vec<String>) {
    let shown: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| row.cells.iter().enumerate().map(|(index, cell)| table.show(index, cell)).collect())
        .collect();
    let mut start = 1;
    while start < table.columns.len() || start == 1 {
        let mut part: Vec<usize> = vec![0];
        let mut end = start;
        while end < table.columns.len() {
            part.push(end);
            let widths = widths(table, &shown, &part, columns);
            if width(&widths) > columns && part.len() > 2 {
                part.pop();
                break;
            }
            end += 1;
        }
        self::part(table, &shown, &part, columns, start == 1, lines);
        start = end.max(start + 1);
    }
}

/// Returns the width of these columns and the gaps between them.
fn width(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * (widths.len() - 1)
}

fn part(
    table: &Table,
    shown: &[Vec<String>],
    part: &[usize],
    columns: usize,
    with_sources: bool,
    lines: &mut Vec<String>,
) {
    let widths = widths(table, shown, part, columns);
    let used = width(&widths);
    let left = columns.saturating_sub(used + GAP);
    let is_beside = left >= SOURCE_COLUMNS_MIN;
    let has_source = with_sources && table.rows.iter().any(|row| row.source.is_some());

    let is_text: Vec<bool> = part.iter().map(|&index| table.columns[index].form == Form::Text).collect();
    let headers: Vec<Vec<String>> =
        part.iter().zip(&widths).map(|(&index, width)| wrap(table.columns[index].label, *width)).collect();
    let mut header = block(&headers, &widths, &is_text, true);
    if has_source
        && is_beside
        && let Some(last) = header.last_mut()
    {
        *last = format!("{last:<used$}  the source measured");
    }
    lines.extend(header.into_iter().map(|line| format!("{DIM}{}{DIM:#}", line.trim_end())));
    for (row, cells) in table.rows.iter().zip(shown) {
        let cells: Vec<Vec<String>> =
            part.iter().zip(&widths).map(|(&index, width)| wrap(&cells[index], *width)).collect();
        let mut block = block(&cells, &widths, &is_text, false);
        match row.source.as_ref().filter(|_| with_sources) {
            Some(source) if is_beside => {
                for (index, line) in wrap(source, left).into_iter().enumerate() {
                    if index == block.len() {
                        block.push(String::new());
                    }
                    let pad = used.saturating_sub(block[index].chars().count());
                    block[index] = format!("{}{:pad$}  {DIM}{line}{DIM:#}", block[index], "");
                }
            }
            Some(source) => {
                block.extend(wrap(source, columns - 4).into_iter().map(|line| format!("    {DIM}{line}{DIM:#}")));
            }
            None => {}
        }
        lines.extend(block.into_iter().map(|line| line.trim_end().to_owned()));
    }
}

/// Returns the width of each column: that of its longest entry. If the table is too wide, columns of words are
/// narrowed.
fn widths(table: &Table, shown: &[Vec<String>], part: &[usize], columns: usize) -> Vec<usize> {
    let length = |text: &str| text.chars().count();
    let longest_word = |text: &str| text.split(' ').map(length).max().unwrap_or(0);
    let mut widths: Vec<usize> = part
        .iter()
        .map(|&index| {
            let label = table.columns[index].label;
            let cells = shown.iter().map(|row| length(&row[index])).max().unwrap_or(0);
            let width = cells.max(longest_word(label));
            // Short words of a label may share a line even if this makes the column wider than its cells.
            wrap(label, width).iter().map(|line| length(line)).max().unwrap_or(0).max(width)
        })
        .collect();
    loop {
        if width(&widths) <= columns {
            return widths;
        }
        let texts = (0..widths.len()).filter(|&index| table.columns[part[index]].form == Form::Text);
        match texts.filter(|&index| widths[index] > TEXT_COLUMNS_MIN).max_by_key(|&index| widths[index]) {
            Some(index) => widths[index] -= 1,
            None => return widths,
        }
    }
}

/// Lays out multi-line cells side by side. Words are aligned left, numbers right.
fn block(cells: &[Vec<String>], widths: &[usize], is_text: &[bool], from_below: bool) -> Vec<String> {
    let height = cells.iter().map(Vec::len).max().unwrap_or(0);
    (0..height)
        .map(|line| {
            let mut text = String::new();
            for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
                // Align headers to the line directly above the first row.
                let above = if from_below { height - cell.len() } else { 0 };
                let part = line.checked_sub(above).and_then(|at| cell.get(at)).map_or("", String::as_str);
                if index > 0 {
                    text.push_str("  ");
                }
                let pad = " ".repeat(width.saturating_sub(part.chars().count()));
                if index == 0 || is_text[index] {
                    text += part;
                    text += &pad;
                } else {
                    text += &pad;
                    text += part;
                }
            }
            text
        })
        .collect()
}

/// Breaks text between words into lines of at most `columns` columns. A word longer than a line is split. A number and
/// its unit count as one word.
pub(crate) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(8);
    let mut lines = vec![String::new()];
    for word in figures::unbroken(text).split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().expect("there is a line");
            let used = line.chars().count();
            let gap = usize::from(used > 0);
            if used + gap + word.len() <= columns {
                if gap > 0 {
                    line.push(' ');
                }
                line.extend(&word);
                break;
            }
            if used == 0 {
                line.extend(word.drain(..columns));
            }
            lines.push(String::new());
        }
    }
    lines.into_iter().map(|line| line.replace('\u{a0}', " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Cell;

    /// Returns the text as it appears, stripped of styles.
    fn plain(text: &str) -> String {
        let mut shown = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('\x1b') {
            shown += before;
            rest = after.split_once('m').map_or("", |(_, rest)| rest);
        }
        shown + rest
    }

    /// Text is wrapped between words if possible, and within a word otherwise.
    #[test]
    fn text_is_wrapped() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("incomprehensible", 8), ["incompre", "hensible"]);
        assert_eq!(wrap("", 8), [""]);
        assert_eq!(wrap("at most 72 %, 5 us", 10), ["at most", "72 %, 5 us"]);
    }

    /// Whatever a table contains, no line is wider than the terminal, and no figure is lost.
    #[test]
    fn tables_keep_to_the_width() {
        let mut table = Table::new(
            "Reads",
            &[("how", Form::Text), ("reads/s", Form::Rate), ("p99", Form::Micros), ("is it durable", Form::Text)],
        );
        table
            .row(vec!["mapped, MADV_SEQUENTIAL, 100 threads".into(), 547_479.0.into(), Cell::Missing, "yes".into()])
            .source("S1: about half of fio's rate after the cache is full, near zero for five seconds before");
        table.row(vec!["direct".into(), 12.5.into(), 80.0.into(), "because the drive says so and is believed".into()]);
        for columns in [60, 80, 120] {
            let mut lines = Vec::new();
            self::table(&table, columns, &mut lines);
            let text = plain(&lines.join("\n"));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            for part in ["547 k", "12.5", "80.0 us", "–", "half"] {
                assert!(words.contains(part), "{columns}: {part} is missing in\n{text}");
            }
        }
    }
}
