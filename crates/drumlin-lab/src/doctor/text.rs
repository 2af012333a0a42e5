//! Formats a diagnosis as text for a terminal.

use super::{Diagnosis, Severity};
use crate::report::text::{self, BAD, BOLD, DIM, GOOD, MIXED, drive_line, wrap};

/// Formats a diagnosis as lines of at most `columns` columns, with ANSI styles.
pub(super) fn render(diagnosis: &Diagnosis, columns: usize) -> String {
    let columns = columns.max(40);
    let machine = &diagnosis.machine;
    let mut lines = Vec::new();
    for (label, line) in [
        ("folder", format!("{} on {} ({})", machine.folder, machine.file_system, machine.mount_options)),
        ("drive", drive_line(&machine.drive)),
        ("kernel", machine.kernel.clone()),
    ] {
        for (index, line) in wrap(&line, columns - 10).into_iter().enumerate() {
            lines.push(format!("{DIM}{:<8}{DIM:#}  {line}", if index == 0 { label } else { "" }));
        }
    }
    for table in diagnosis.tables.iter().filter(|table| !table.rows.is_empty()) {
        lines.push(String::new());
        lines.push(format!("{BOLD}{}{BOLD:#}", table.title));
        text::table(table, columns, &mut lines);
    }
    lines.push(String::new());
    for finding in &diagnosis.findings {
        let (style, word) = match finding.severity {
            Severity::Fine => (GOOD, "fine"),
            Severity::Advice => (MIXED, "advice"),
            Severity::Wrong => (BAD, "wrong"),
        };
        let text = format!("{}: {}", finding.what, finding.found);
        for (index, line) in wrap(&text, columns - 8).into_iter().enumerate() {
            lines.push(format!("{style}{:<6}{style:#}  {line}", if index == 0 { word } else { "" }));
        }
        if let Some(mend) = &finding.mend {
            lines.extend(wrap(mend, columns - 10).into_iter().map(|line| format!("        {DIM}> {line}{DIM:#}")));
        }
    }
    if !diagnosis.settings.is_empty() {
        lines.push(String::new());
        lines.push(format!("{BOLD}Recommended settings{BOLD:#}"));
    }
    for setting in &diagnosis.settings {
        lines.push(setting.setting.clone());
        lines.extend(wrap(&setting.why, columns - 4).into_iter().map(|line| format!("    {DIM}{line}{DIM:#}")));
    }
    if diagnosis.interrupted {
        lines.push(format!("{BAD}interrupted{BAD:#}: these are the findings so far"));
    }
    lines.join("\n")
}
