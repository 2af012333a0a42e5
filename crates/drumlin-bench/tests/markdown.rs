//! Tests the tables of a report on predefined results.

use drumlin_bench::plan::WORKLOADS;
use drumlin_bench::report;
use drumlin_bench::results::{EngineFacts, Entry, Measured, Results, Turn};
use drumlin_bench::workloads::Figures;

fn entry(engine: &str, rates: &[f64], failure: Option<&str>) -> Entry {
    let turn = |rate: &f64| {
        let mut figures =
            Figures { rate: *rate, units: 1000, operations: 1000, seconds: 1000.0 / rate, ..Figures::default() };
        figures.costs.cpu_seconds = 0.002;
        figures.costs.read_bytes = 4_096_000;
        figures.latencies.count = 1000;
        figures.latencies.p50_us = 70.0;
        figures.latencies.p99_us = 250.0;
        figures.latencies.p999_us = 900.0;
        figures.latencies.max_us = 4000.0;
        figures.resident_bytes_max = 78_000_000;
        figures.disk_bytes = 600_000_000;
        Turn { figures, group_bytes_max: Some(128 << 20) }
    };
    Entry { engine: engine.to_owned(), turns: rates.iter().map(turn).collect(), failure: failure.map(str::to_owned) }
}

fn results() -> Results {
    let mut results = Results::new(vec![("kernel".to_owned(), "Linux".to_owned())]);
    let facts = |name: &str| EngineFacts {
        name: name.to_owned(),
        version: "1.0.0".to_owned(),
        settings: "the defaults".to_owned(),
        lacks: Vec::new(),
    };
    results.engines = ["drumlin", "lmdb", "sled"].map(facts).into();
    let workload = WORKLOADS.iter().find(|workload| workload.name == "get-1k").unwrap();
    let mut measured = Measured::new(workload, "2026-01-02".to_owned(), false);
    measured.entries = vec![
        entry("drumlin", &[6200.0, 6400.0, 6100.0], None),
        entry("lmdb", &[6700.0, 6600.0, 6900.0], None),
        entry("sled", &[], Some("killed, for lack of memory")),
    ];
    results.workloads.push(measured);
    results
}

/// The table of rates has the medians, and Drumlin's rate relative to the best peer's.
#[test]
fn the_table_of_rates_is_as_expected() {
    let text = report::markdown(&results());
    let expected = "\
## Rates

Medians of units a second by workload; openings in time, where less is better. A star marks commits that were \
acknowledged without a sync; such engines do not count as the best peer.

| row | workload | drumlin | lmdb | Drumlin / best peer |
| --- | --- | --- | --- | --- |
| 2 | get, larger than memory, 1 KiB, 1 thread | 6,200 | 6,700 | 0.93 |
";
    assert!(text.contains(expected), "{text}");
}

/// A workload's own table has a row for each engine, including the engine that was killed, and no empty columns.
#[test]
fn the_table_of_a_workload_is_as_expected() {
    let text = report::markdown(&results());
    let (_, detail) = text.split_once("## get-1k: get, larger than memory, 1 KiB, 1 thread\n").unwrap();
    let expected = "
512000 rows of 1024 B loaded at random; budget 80 MiB in a group of 128 MiB; caches warmed by the same work. 2026-01-02; \
CPU, bytes read and written are for each of the operations.

| engine | median | range | CPU | p50 | p99 | p99.9 | max | read | memory | disk |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";
    assert!(detail.starts_with(expected), "{detail}");
    let row =
        "| drumlin | 6,200 | 6,100 to 6,400 | 2.00 us | 70.0 us | 250 us | 900 us | 4.00 ms | 4.10 kB | 78.0 MB |";
    assert!(detail.contains(row), "{detail}");
    assert!(detail.contains("| sled | killed, for lack of memory | – |"), "{detail}");
}
