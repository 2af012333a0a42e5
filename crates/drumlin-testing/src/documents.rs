//! Tables in documents whose figures are written by programs.
//!
//! Such a table is between two marks: `<!-- table planted -->`, which contains the table's name, and `<!-- end -->`. A
//! program replaces some or all of the rows.

use std::io::{Error, Result};
use std::path::{Path, PathBuf};

/// The mark after a table.
const END: &str = "<!-- end -->";

/// A table of a document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// The name in the mark before the table.
    pub name: String,
    /// The titles of the columns.
    pub titles: Vec<String>,
    /// The rows. Each has one cell per title.
    pub rows: Vec<Vec<String>>,
}

fn cells(line: &str) -> Option<Vec<String>> {
    let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
    Some(line.split(" | ").map(str::to_owned).collect())
}

impl Table {
    /// Parses a table.
    ///
    /// # Errors
    /// If a line is not a row, or a row has more or fewer cells than there are titles.
    fn parse(name: &str, text: &str) -> Result<Table> {
        let wrong = |line: &str| Error::other(format!("table {name}: no row of it: {line}"));
        let mut lines = text.trim().lines();
        let titles = lines.next().and_then(cells).ok_or_else(|| wrong("its titles"))?;
        let rule = lines.next().unwrap_or_default();
        if cells(rule).is_none_or(|rule| rule.len() != titles.len() || rule.iter().any(|cell| cell != "---")) {
            return Err(wrong(rule));
        }
        let row = |line: &str| cells(line).filter(|row| row.len() == titles.len()).ok_or_else(|| wrong(line));
        let rows = lines.map(row).collect::<Result<_>>()?;
        Ok(Table { name: name.to_owned(), titles, rows })
    }

    fn render(&self) -> String {
        let rule = vec!["---".to_owned(); self.titles.len()];
        let lines = [&self.titles, &rule].into_iter().chain(&self.rows);
        lines.map(|row| format!("| {} |\n", row.join(" | "))).collect()
    }
}

/// Returns the marked tables of a text.
///
/// # Errors
/// If a mark has no end, or a line between two marks is not a row.
pub fn tables(text: &str) -> Result<Vec<Table>> {
    let tables = text.split("<!-- table ").skip(1).map(|rest| {
        let (name, rest) = rest.split_once(" -->\n").ok_or_else(|| Error::other("a mark without an end"))?;
        let (table, _) = rest.split_once(END).ok_or_else(|| Error::other(format!("table {name} has no end")))?;
        Table::parse(name, table)
    });
    tables.collect()
}

/// Returns the path of the page with the figures of long runs, in the repository from which this crate was built.
#[must_use]
pub fn testing_page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/testing.md")
}

/// Returns the path of the page about the guarantees of a commit, with the figures for real file systems.
#[must_use]
pub fn durability_page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/durability.md")
}

/// Changes one table of a document.
///
/// # Errors
/// If there is no such table, or the document can't be read or written.
fn change(document: &Path, name: &str, change: impl FnOnce(&mut Table)) -> Result<()> {
    let text = std::fs::read_to_string(document)?;
    let mut table = tables(&text)?
        .into_iter()
        .find(|table| table.name == name)
        .ok_or_else(|| Error::other(format!("{} has no table {name}", document.display())))?;
    change(&mut table);
    let mark = format!("<!-- table {name} -->\n");
    let (before, rest) = text.split_once(&mark).expect("found above");
    let (_, after) = rest.split_once(END).expect("found above");
    std::fs::write(document, format!("{before}{mark}{}{END}{after}", table.render()))
}

/// Replaces all rows of a table.
///
/// # Errors
/// If there is no such table, or the document can't be read or written.
pub fn write_rows(document: &Path, name: &str, rows: Vec<Vec<String>>) -> Result<()> {
    change(document, name, |table| table.rows = rows)
}

/// Replaces the titles and all rows of a table.
///
/// # Errors
/// If there is no such table, a row has more or fewer cells than there are titles, or the document can't be read or
/// written.
pub fn write_table(document: &Path, name: &str, titles: Vec<String>, rows: Vec<Vec<String>>) -> Result<()> {
    if rows.iter().any(|row| row.len() != titles.len()) {
        return Err(Error::other(format!("table {name}: a row is not as long as the titles")));
    }
    change(document, name, |table| (table.titles, table.rows) = (titles, rows))
}

/// Replaces the row that has the same first cell, or adds the row if there is none.
///
/// # Errors
/// If there is no such table, or the document can't be read or written.
pub fn write_row(document: &Path, name: &str, row: [&str; 3]) -> Result<()> {
    let row: Vec<String> = row.map(str::to_owned).into();
    change(document, name, |table| match table.rows.iter_mut().find(|other| other[0] == row[0]) {
        Some(other) => *other = row,
        None => table.rows.push(row),
    })
}

/// Formats a number with commas between its thousands.
#[must_use]
pub fn figure(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|part| str::from_utf8(part).expect("digits")).collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a\n\n<!-- table t -->\n| a | b | c |\n| --- | --- | --- |\n| x | 1 | 2 |\n<!-- end -->\n\nz\n";

    /// A row replaces the row of the same name, and the rest of the document is unchanged.
    #[test]
    fn a_row_is_replaced_in_its_table() {
        let path = std::env::temp_dir().join(format!("drumlin-documents-{}", std::process::id()));
        std::fs::write(&path, TEXT).unwrap();
        write_row(&path, "t", ["x", "1", "2"]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TEXT);
        write_row(&path, "t", ["x", "3", "4"]).unwrap();
        write_row(&path, "t", ["y", "5", "6"]).unwrap();
        let expected = TEXT.replace("| x | 1 | 2 |", "| x | 3 | 4 |\n| y | 5 | 6 |");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        assert!(write_row(&path, "none", ["x", "1", "2"]).is_err());
        std::fs::remove_file(path).unwrap();
    }

    /// A table is replaced as a whole, and the rest of the document is unchanged. Rows of a different length are
    /// rejected.
    #[test]
    fn a_table_is_replaced_whole() {
        let path = std::env::temp_dir().join(format!("drumlin-documents-whole-{}", std::process::id()));
        std::fs::write(&path, TEXT).unwrap();
        let texts = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        write_table(&path, "t", texts(&["d", "e"]), vec![texts(&["y", "3"]), texts(&["z", "4"])]).unwrap();
        let expected = "a\n\n<!-- table t -->\n| d | e |\n| --- | --- |\n| y | 3 |\n| z | 4 |\n<!-- end -->\n\nz\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        assert!(write_table(&path, "t", texts(&["d", "e"]), vec![texts(&["y"])]).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        std::fs::remove_file(path).unwrap();
    }

    /// A malformed table causes an error. No part of it is returned.
    #[test]
    fn a_broken_table_is_an_error() {
        for (from, to) in [("<!-- end -->", ""), ("| x | 1 | 2 |", "| x | 1 |"), ("| --- | --- | --- |\n", "")] {
            assert!(tables(&TEXT.replace(from, to)).is_err(), "{from}");
        }
        assert_eq!([figure(7), figure(12_345), figure(1_000_045)], ["7", "12,345", "1,000,045"]);
    }
}
