//! The results of a run, formatted for a terminal, a program or a browser.

mod html;
mod plot;
pub(crate) mod text;

use serde::{Serialize, Serializer};

use crate::figures::{self, Form};
use crate::machine::Machine;

/// The report of a run of the lab.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this report's JSON: 2.
    pub version: u32,
    /// The command as the user typed it.
    pub command: String,
    /// The time at which the run started, in UTC.
    pub started: String,
    /// The seconds that the run took.
    pub seconds: f64,
    /// `true` if the user interrupted the run. The report then contains the results up to the interruption.
    pub interrupted: bool,
    /// `true` for short runs on small files.
    pub quick: bool,
    /// The machine that was measured.
    pub machine: Machine,
    /// The memory limit and how it was enforced, in words.
    pub memory_limit: String,
    /// The rates of cold and warm reads of the drive, in words, if an experiment read the large file.
    pub drive_state: Option<String>,
    /// A chapter for each experiment, in the order in which they ran.
    pub chapters: Vec<Chapter>,
}

/// The results of one experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Chapter {
    /// The experiment's name, as users type it.
    pub name: &'static str,
    /// The question that the experiment answers.
    pub title: String,
    /// The method, in a few sentences.
    pub about: String,
    /// The seconds that the experiment took.
    pub seconds: f64,
    /// The expected duration of the experiment in seconds, as announced before the run.
    pub planned_seconds: f64,
    /// Tables of the figures.
    pub tables: Vec<Table>,
    /// Plots of the figures.
    pub plots: Vec<Plot>,
    /// The sources' findings, compared with the lab's measurements on this machine.
    pub verdicts: Vec<Verdict>,
    /// Notes that prevent misreading of the figures.
    pub notes: Vec<String>,
    /// The reason why the experiment ended early, if it did so.
    pub failure: Option<String>,
}

impl Chapter {
    pub(crate) fn new(name: &'static str, title: impl Into<String>, about: impl Into<String>) -> Chapter {
        Chapter {
            name,
            title: title.into(),
            about: about.into(),
            seconds: 0.0,
            planned_seconds: 0.0,
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

    /// Adds a claim with its judgement.
    pub(crate) fn judged(&mut self, source: &'static str, claim: impl Into<String>, judgement: Judgement) {
        let Judgement { holds, why, missing } = judgement;
        self.verdicts.push(Verdict { source, claim: claim.into(), holds, why, missing });
    }
}

/// A table of figures.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The title of the table.
    pub title: String,
    /// The columns. The first column names the row.
    pub columns: Vec<Column>,
    /// The rows.
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
        struct Fields {
            label: &'static str,
            unit: &'static str,
        }
        Fields { label: self.label, unit: self.form.unit() }.serialize(serializer)
    }
}

/// A row of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The cells, one for each column.
    pub cells: Vec<Cell>,
    /// The source's figure, if the source has one.
    pub source: Option<String>,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// A text.
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
    /// Sets the figure of the source.
    pub(crate) fn source(&mut self, text: impl Into<String>) {
        self.source = Some(text.into());
    }
}

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Equal distances for equal differences, starting at zero.
    Linear,
    /// Equal distances for equal ratios.
    Logarithmic,
    /// For quantiles: equal distances for equal ratios of the share above the quantile (90 %, 99 %, 99.9 %).
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
        struct Fields {
            label: &'static str,
            unit: &'static str,
            scale: Scale,
        }
        Fields { label: self.label, unit: self.form.unit(), scale: self.scale }.serialize(serializer)
    }
}

/// A plot of lines over two axes.
#[derive(Clone, Debug, Serialize)]
pub struct Plot {
    /// The title of the plot.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The rounds that the plot shows, in words; empty if the title names them.
    pub drawn: &'static str,
    /// The lines.
    pub lines: Vec<Line>,
}

/// One line of a plot.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The label of the line.
    pub name: String,
    /// The points, from left to right.
    pub points: Vec<(f64, f64)>,
}

impl Plot {
    /// Creates a plot without lines from a title and the label, form and scale of each axis.
    pub fn new(title: impl Into<String>, x: (&'static str, Form, Scale), y: (&'static str, Form, Scale)) -> Plot {
        let axis = |(label, form, scale)| Axis { label, form, scale };
        Plot { title: title.into(), x: axis(x), y: axis(y), drawn: "", lines: Vec::new() }
    }

    /// Sets the description of the rounds that the plot shows.
    pub(crate) fn drawing(self, drawn: &'static str) -> Plot {
        Plot { drawn, ..self }
    }

    /// Returns the plot as SVG within HTML, for a page that includes the style sheet [`Plot::STYLE`].
    #[must_use]
    pub fn html(&self) -> String {
        plot::render(self)
    }

    /// The style sheet of pages with plots and tables.
    pub const STYLE: &str = html::STYLE;

    /// Adds a line, unless it has no points.
    pub fn line(&mut self, name: impl Into<String>, points: Vec<(f64, f64)>) {
        if !points.is_empty() {
            self.lines.push(Line { name: name.into(), points });
        }
    }
}

/// Describes the rounds in a plot in which each line shows one trial of its case.
pub(crate) const MIDDLE_ROUND: &str = "of each case the round with the median rate";
/// Describes the rounds in a plot in which each line contains the operations of every trial.
pub(crate) const ALL_ROUNDS: &str = "the operations of all rounds";
/// Describes the rounds in a plot whose points are medians.
pub(crate) const MEDIANS: &str = "medians of the rounds";

/// The sources, by the names that verdicts and tables use.
const SOURCES: [(&str, &str); 6] = [
    ("S1", "Crotty, Leis and Pavlo: Are You Sure You Want to Use MMAP in Your Database Management System? (CIDR 2022)"),
    ("S2", "J. Johnson on durable writes in BonsaiDb and Nebari (2022)"),
    ("S3", "three articles on mmap and read(2) in Go, and on the log store Logstore"),
    ("S4", "G. Costa: Modern storage is plenty fast. It is the APIs that are bad (2020), on Glommio"),
    ("S5", "S. Matsuura on Leo, a storage engine on persistent memory (2021)"),
    ("Drumlin", "a claim of the project that this lab belongs to"),
];

/// Returns the title of the source with this name.
fn source_words(name: &str) -> &'static str {
    SOURCES.iter().find(|(known, _)| *known == name).map_or("", |(_, words)| words)
}

/// The beginning of the text of a missing condition, if the rounds were too noisy for a verdict.
pub(crate) const QUIETER: &str = "a quieter machine";

/// A hint that refers an operator to the doctor's advice.
const WHAT_FOLLOWS: &str = "What follows for a database of yours: drumlin doctor DIR.";

/// The verdict on a source's finding, on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// The claimed effect occurred.
    Yes,
    /// No such effect occurred, or the opposite did.
    No,
    /// Part of the effect occurred: at least a third of it, by logarithm.
    Partly,
    /// Less than a third of the effect occurred, or so much more that its cause must be a different one.
    NotInSize,
    /// This machine or this run is not sufficient for a verdict; [`Verdict::missing`] names the missing condition.
    Inconclusive,
}

impl Holds {
    pub(crate) fn of(seen: bool) -> Holds {
        if seen { Holds::Yes } else { Holds::No }
    }

    fn words(self) -> &'static str {
        match self {
            Holds::Yes => "holds",
            Holds::No => "does not hold",
            Holds::Partly => "partly",
            Holds::NotInSize => "not in this size",
            Holds::Inconclusive => "inconclusive",
        }
    }
}

/// A verdict with its figures.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) holds: Holds,
    pub(crate) why: String,
    /// The condition without which the claim cannot be judged.
    pub(crate) missing: Option<String>,
}

impl Judgement {
    /// Creates a judgement with any verdict except [`Holds::Inconclusive`].
    pub(crate) fn new(holds: Holds, why: impl Into<String>) -> Judgement {
        assert!(holds != Holds::Inconclusive, "an inconclusive verdict names the missing condition");
        Judgement { holds, why: why.into(), missing: None }
    }

    /// Turns a verdict against the claim into an inconclusive one if the condition `missing` is not met: a machine
    /// can't refute a finding whose conditions it does not meet. A verdict for the claim remains unchanged.
    pub(crate) fn unless_lacking(self, missing: Option<String>) -> Judgement {
        match missing {
            Some(missing) if matches!(self.holds, Holds::No | Holds::NotInSize) => {
                Judgement::inconclusive(missing, self.why)
            }
            _ => self,
        }
    }

    /// Creates an inconclusive judgement, which names the missing condition, such as `a drive with a volatile cache`.
    pub(crate) fn inconclusive(missing: impl Into<String>, why: impl Into<String>) -> Judgement {
        Judgement { holds: Holds::Inconclusive, why: why.into(), missing: Some(missing.into()) }
    }
}

/// A source's finding, compared with the lab's measurements on this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The source of the claim.
    pub source: &'static str,
    /// The claim.
    pub claim: String,
    /// The verdict.
    pub holds: Holds,
    /// The figures on which the verdict rests.
    pub why: String,
    /// The condition that is missing if the claim cannot be judged.
    pub missing: Option<String>,
}

impl Verdict {
    /// Returns the claim, the figures, and the missing condition if there is one.
    fn sentences(&self) -> String {
        [self.claim.clone(), self.explanation()].join(" ").trim_end().to_owned()
    }

    /// Returns the figures, and the missing condition if there is one.
    fn explanation(&self) -> String {
        let missing = self.missing.as_ref().map(|missing| format!("Missing: {missing}."));
        [Some(self.why.clone()), missing]
            .into_iter()
            .flatten()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    }
}

impl Report {
    fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.chapters.iter().flat_map(|chapter| &chapter.verdicts)
    }

    /// Returns advice if the run was disturbed by other programs: at least two verdicts, and at least a tenth of all
    /// verdicts, are inconclusive.
    fn noise_hint(&self) -> Option<String> {
        let all = self.verdicts().count();
        let noisy = |verdict: &&Verdict| verdict.missing.as_ref().is_some_and(|missing| missing.starts_with(QUIETER));
        let noisy = self.verdicts().filter(noisy).count();
        (noisy >= 2 && noisy * 10 >= all).then(|| {
            format!(
                "The machine was busy: {noisy} of {all} verdicts are inconclusive for that reason. Run again when it is quiet."
            )
        })
    }

    /// Returns the number of verdicts of each kind, like `39 verdicts; holds: 26, partly: 13`.
    fn outcomes(&self) -> String {
        let mut outcomes: Vec<(&str, u64)> = Vec::new();
        for verdict in self.verdicts() {
            match outcomes.iter_mut().find(|(words, _)| *words == verdict.holds.words()) {
                Some((_, count)) => *count += 1,
                None => outcomes.push((verdict.holds.words(), 1)),
            }
        }
        outcomes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let each = outcomes.iter().map(|(words, count)| format!("{words}: {count}")).collect::<Vec<_>>().join(", ");
        format!("{}; {each}", figures::plural(self.verdicts().count() as u64, "verdict"))
    }

    /// Formats the report as tables for a terminal of this many columns, with ANSI styles.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        text::report(self, columns)
    }

    /// Formats the report as one self-contained HTML page.
    #[must_use]
    pub fn html(&self) -> String {
        html::render(self)
    }
}
