//! The results of a run, in a form for a terminal, a program and a browser.

mod html;
mod plot;
pub(crate) mod text;

use serde::{Serialize, Serializer};

use crate::figures::Form;
use crate::machine::Machine;

/// The report of a run of the lab.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this report's JSON: 1.
    pub version: u32,
    /// The command as it was typed.
    pub command: String,
    /// The start of the run, in UTC.
    pub started: String,
    /// The time that it took.
    pub seconds: f64,
    /// `true` if the user ended it early: it holds the results up to then.
    pub interrupted: bool,
    /// `true` for short runs on small files.
    pub quick: bool,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The memory limit and the way in which it was enforced, in words.
    pub memory_limit: String,
    /// One for each experiment, in the order in which they ran.
    pub chapters: Vec<Chapter>,
}

/// The results of one experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Chapter {
    /// The experiment's name, as it is typed.
    pub name: &'static str,
    /// The question.
    pub title: String,
    /// The method, in a few sentences.
    pub about: String,
    /// Figures.
    pub tables: Vec<Table>,
    /// Plots of the figures.
    pub plots: Vec<Plot>,
    /// The sources' findings compared with what was seen here.
    pub verdicts: Vec<Verdict>,
    /// Notes without which the figures could be misread.
    pub notes: Vec<String>,
    /// The reason why it ended early, if it did.
    pub failure: Option<String>,
}

impl Chapter {
    pub(crate) fn new(name: &'static str, title: impl Into<String>, about: impl Into<String>) -> Chapter {
        Chapter {
            name,
            title: title.into(),
            about: about.into(),
            tables: Vec::new(),
            plots: Vec::new(),
            verdicts: Vec::new(),
            notes: Vec::new(),
            failure: None,
        }
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Compares a source's claim with what was seen.
    pub(crate) fn verdict(
        &mut self,
        source: &'static str,
        claim: impl Into<String>,
        holds: Holds,
        why: impl Into<String>,
    ) {
        self.verdicts.push(Verdict { source, claim: claim.into(), holds, why: why.into() });
    }
}

/// A table of figures.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Its title.
    pub title: String,
    /// Its columns; the first names the row.
    pub columns: Vec<Column>,
    /// Its rows.
    pub rows: Vec<Row>,
}

/// A column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    pub(crate) label: &'static str,
    pub(crate) form: Form,
}

impl Serialize for Column {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Told {
            label: &'static str,
            unit: &'static str,
        }
        Told { label: self.label, unit: self.form.unit() }.serialize(serializer)
    }
}

/// A row of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// One for each column.
    pub cells: Vec<Cell>,
    /// The source's figure, if it has one.
    pub source: Option<String>,
}

/// One figure or word of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A figure in the column's unit.
    Number(f64),
    /// Nothing was measured.
    Missing,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Cell {
        if number.is_finite() { Cell::Number(number) } else { Cell::Missing }
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Cell {
        Cell::Number(number as f64)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(cell: Option<T>) -> Cell {
        cell.map_or(Cell::Missing, Into::into)
    }
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, columns: &[(&'static str, Form)]) -> Table {
        let columns = columns.iter().map(|&(label, form)| Column { label, form }).collect();
        Table { title: title.into(), columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) -> &mut Row {
        assert_eq!(cells.len(), self.columns.len(), "a cell for each column of {:?}", self.title);
        self.rows.push(Row { cells, source: None });
        self.rows.last_mut().expect("just pushed")
    }

    fn show(&self, column: usize, cell: &Cell) -> String {
        match cell {
            Cell::Text(text) => text.clone(),
            Cell::Number(number) => self.columns[column].form.show(*number),
            Cell::Missing => "–".to_owned(),
        }
    }
}

impl Row {
    /// The figure of the source.
    pub(crate) fn source(&mut self, text: impl Into<String>) {
        self.source = Some(text.into());
    }
}

/// The division of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Equal distances for equal differences, from zero.
    Linear,
    /// Equal distances for equal ratios.
    Logarithmic,
    /// For quantiles: equal distances for equal ratios of the remainder (90 %, 99 %, 99.9 %).
    Tail,
}

/// An axis of a plot.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(crate) label: &'static str,
    pub(crate) form: Form,
    pub(crate) scale: Scale,
}

impl Serialize for Axis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Told {
            label: &'static str,
            unit: &'static str,
            scale: Scale,
        }
        Told { label: self.label, unit: self.form.unit(), scale: self.scale }.serialize(serializer)
    }
}

/// Lines over two axes.
#[derive(Clone, Debug, Serialize)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Line>,
}

/// One line of a plot.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Its label.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

impl Plot {
    pub(crate) fn new(
        title: impl Into<String>,
        x: (&'static str, Form, Scale),
        y: (&'static str, Form, Scale),
    ) -> Plot {
        let axis = |(label, form, scale)| Axis { label, form, scale };
        Plot { title: title.into(), x: axis(x), y: axis(y), lines: Vec::new() }
    }

    /// Adds a line, unless there is nothing to draw.
    pub(crate) fn line(&mut self, name: impl Into<String>, points: Vec<(f64, f64)>) {
        if !points.is_empty() {
            self.lines.push(Line { name: name.into(), points });
        }
    }
}

/// The verdict on a source's finding here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Holds {
    /// It was seen.
    Yes,
    /// The opposite, or nothing of it, was seen.
    No,
    /// It was seen in direction, not in size.
    Partly,
    /// This machine or this run could not tell.
    Unknown,
}

impl Holds {
    pub(crate) fn of(seen: bool) -> Holds {
        if seen { Holds::Yes } else { Holds::No }
    }

    fn words(self) -> &'static str {
        match self {
            Holds::Yes => "holds here",
            Holds::No => "not here",
            Holds::Partly => "partly",
            Holds::Unknown => "unclear",
        }
    }
}

/// A source's finding compared with what was seen here.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The source of the claim.
    pub source: &'static str,
    /// The claim.
    pub claim: String,
    /// The verdict.
    pub holds: Holds,
    /// The figures behind it.
    pub why: String,
}

impl Report {
    /// The report as tables for a terminal of this many columns, with ANSI styles.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        text::report(self, columns)
    }

    /// The report as one self-contained HTML page.
    #[must_use]
    pub fn html(&self) -> String {
        html::render(self)
    }
}
