//! The tables in docs/benchmarks.md.

use std::io::Result;
use std::path::{Path, PathBuf};

use drumlin_testing::documents::write_table;

use super::tables::{self, Table};
use crate::results::Results;

/// Returns the path of docs/benchmarks.md in the repository from which this program was built.
fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks.md")
}

/// Writes the tables between the markers in docs/benchmarks.md.
///
/// # Errors
/// If the page can't be read or written, or lacks a marker.
pub fn update_docs(results: &Results) -> Result<()> {
    let page = page();
    let machine = Table {
        title: String::new(),
        about: String::new(),
        titles: vec!["where".to_owned(), "what".to_owned()],
        rows: results
            .machine
            .iter()
            .map(|(name, fact)| vec![name.clone(), fact.clone()])
            .chain([dates(results)])
            .collect(),
    };
    let all = [
        ("machine", machine),
        ("rates", tables::rates(results)),
        ("syncs", tables::audits(results)),
        ("inserts", tables::inserts(results)),
        ("commerce", tables::operations(results, |workload| workload.title.contains("balanced"))),
        ("tails", tables::tails(results)),
        ("writes", tables::writes(results)),
        ("memory", tables::memory(results)),
        ("sizes", tables::sizes(results)),
    ];
    for (name, table) in all {
        write_table(&page, name, table.titles, table.rows)?;
    }
    Ok(())
}

/// Returns the dates of the measurements and, if it was high, the CPU share of other processes during them.
fn dates(results: &Results) -> Vec<String> {
    let mut dates: Vec<&str> = results.workloads.iter().map(|workload| workload.date.as_str()).collect();
    dates.sort_unstable();
    dates.dedup();
    let shares: Vec<f64> = results.workloads.iter().map(crate::results::Measured::other_work).collect();
    let beside = match crate::measure::median(&shares) {
        share if share > 0.1 => {
            format!("; **other work** took {:.0} % of the processors at the same time", share * 100.0)
        }
        _ => String::new(),
    };
    vec!["taken".to_owned(), format!("{}{beside}", dates.join(", "))]
}

#[cfg(test)]
mod tests {
    use drumlin_testing::documents::tables;

    /// The page has exactly the tables that the program writes.
    #[test]
    fn the_page_has_its_tables() {
        let text = std::fs::read_to_string(super::page()).unwrap();
        let names: Vec<String> = tables(&text).unwrap().into_iter().map(|table| table.name).collect();
        assert_eq!(names, ["machine", "rates", "syncs", "inserts", "commerce", "tails", "writes", "memory", "sizes"]);
    }
}
