//! Human-readable reports: Markdown, one HTML page, and the tables in docs/benchmarks.md.

mod bars;
mod docs;
mod html;
mod tables;

use std::fmt::Write;

use crate::results::Results;

pub use docs::update_docs;
pub use html::html;
pub use tables::Table;

/// Returns all tables as Markdown.
///
/// # Panics
/// Never: writing to a string can't fail.
#[must_use]
pub fn markdown(results: &Results) -> String {
    let mut text = String::from("# Drumlin and its peers\n\n");
    for (name, fact) in &results.machine {
        writeln!(text, "- {name}: {fact}").expect("a string takes any text");
    }
    for table in tables::all(results) {
        write!(text, "\n## {}\n\n{}\n{}", table.title, table.about, table.markdown()).expect("a string takes any text");
    }
    text
}
