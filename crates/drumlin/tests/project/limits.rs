//! Checks the table in docs/limits.md against the limits.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use drumlin::{Config, Limits};

/// Formats a size as the table does: in KiB or MiB if that is exact, otherwise with three significant digits.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        _ if bytes < 1 << 20 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ if bytes < 1 << 20 => format!("{bytes} bytes"),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ => format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

/// The rows of the table in docs/limits.md are the limits that databases with these budgets report.
#[test]
fn the_table_of_limits_is_true() {
    let databases = [64 << 20, 256 << 20, 1 << 30].map(|bytes| Config::in_memory().memory(bytes).open("").unwrap());
    let limits = databases.each_ref().map(drumlin::Database::limits);
    let mut table = String::new();
    let mut row = |name: &str, of: fn(&Limits) -> String| {
        let [small, medium, large] = limits.each_ref().map(of);
        writeln!(table, "| {name} | {small} | {medium} | {large} |").unwrap();
    };
    row("`limits.key_bytes`: a key", |limits| size(limits.key_bytes));
    row("`limits.inline_value_bytes`: a value that is not streamed", |limits| size(limits.inline_value_bytes));
    row("`limits.transaction_log_bytes`: what one transaction writes", |limits| size(limits.transaction_log_bytes));
    row("`limits.transaction_memory_bytes`: its memory", |limits| size(limits.transaction_memory_bytes));
    row("`limits.open_transaction_bytes`: memory of all open transactions", |limits| {
        size(limits.open_transaction_bytes)
    });
    row("`limits.replaced_bytes`: rows that one commit replaces or removes", |limits| size(limits.replaced_bytes));
    row("`limits.validated_read_bytes`: pages that a serializable commit has read", |limits| {
        size(limits.validated_read_bytes)
    });
    row("`limits.version_bytes`: old versions, before they are spilled", |limits| size(limits.version_bytes));
    row("`limits.version_disk_bytes`: old versions on disk", |limits| size(limits.version_disk_bytes));
    row("`limits.large_value_writers`: writers of large values at a time", |limits| {
        limits.large_value_writers.to_string()
    });
    row("`limits.copied_bytes`: copies of all scans and readers", |limits| size(limits.copied_bytes));
    row("`limits.page_table_bytes`: page tables", |limits| size(limits.page_table_bytes));
    row("data of uncompressed pages of 4 KiB that these carry", |limits| {
        format!("{:.1} GiB", limits.page_table_bytes as f64 / 8.0 * 4096.0 / f64::from(1 << 30))
    });
    row("`limits.load_bytes`: sorting of bulk loads", |limits| size(limits.load_bytes));
    row("`limits.count_bytes`: counts of rows", |limits| size(limits.count_bytes));
    row("`limits.state_bytes`: states of reducers", |limits| size(limits.state_bytes));
    row("leaves that one reducer with states of 8 bytes keeps them of", |limits| {
        format!("{} thousand", limits.state_bytes / 8 * 7 / 22 / 1000)
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, found) = text.split_once("| --- | --- | --- | --- |\n").expect("docs/limits.md has a table");
    let found: String =
        found.lines().take_while(|line| line.starts_with('|')).map(|line| format!("{line}\n")).collect();
    assert!(found == table, "docs/limits.md has another table than\n{table}");
}
