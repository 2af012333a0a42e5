//! The report at the end: how much was done, and if all of it was right.

use std::time::Duration;

use crate::history::{self, Action, Operation, Outcome, Verdict};
use crate::timeline::{bytes_text, time_text};
use crate::types::Metrics;
use crate::workload::Record;

/// The violations that are shown.
const SHOWN_COUNT: usize = 3;

/// Everything that a run has found, before it is judged.
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) record: Record,
    /// The time for which the clients worked.
    pub(crate) worked: Duration,
    pub(crate) elections: usize,
    /// The longest time in which no write succeeded.
    pub(crate) longest_gap: Duration,
    /// All nodes have the same rows at the end.
    pub(crate) are_equal: bool,
    pub(crate) metrics: Vec<Metrics>,
}

fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

/// Returns the median and the 99th percentile of the latencies of operations with an answer.
fn latencies(operations: &[Operation], chosen: impl Fn(&Operation) -> bool) -> String {
    let known = operations.iter().filter(|operation| matches!(operation.outcome, Outcome::Known { .. }));
    let mut nanos: Vec<u64> = known.filter(|it| chosen(it)).map(|it| it.end - it.begin).collect();
    nanos.sort_unstable();
    let at = |share: usize| {
        nanos.get(nanos.len() * share / 100).map_or(Duration::ZERO, |nanos| Duration::from_nanos(*nanos))
    };
    format!("{} in the median, {} at the 99th percentile", time_text(at(50)), time_text(at(99)))
}

impl Report {
    /// Judges the history and prints the report. Returns `true` if everything was right.
    pub(crate) fn print(&self) -> bool {
        let Record { operations, stale_reads, range_count, range_reads, refused_count } = &self.record;
        let Verdict { keys, operations: judged, violations, lost } = history::judge(operations);
        let foreign = history::foreign_reads(operations, stale_reads);
        let count = |chosen: fn(&Operation) -> bool| operations.iter().filter(|operation| chosen(operation)).count();
        let is_read = |operation: &Operation| operation.action == Action::Read;
        let writes = count(Operation::is_acknowledged_write);
        let unknown = count(|operation| operation.outcome == Outcome::Unknown);
        let refuted = count(|operation| matches!(operation.outcome, Outcome::Known { done: false, .. }));
        println!();
        println!("writes acknowledged    {}; {}", grouped(writes), latencies(operations, |it| !is_read(it)));
        println!("writes lost            {lost}");
        println!("writes without answer  {unknown}, each of which may have taken effect or not");
        println!("failed comparisons     {}, as another client was first", grouped(refuted));
        println!("linearizable reads     {}; {}", grouped(count(is_read)), latencies(operations, is_read));
        println!("                       {} of them by {} ranges", grouped(*range_reads), grouped(*range_count));
        println!("stale reads            {}; {foreign} found a value that was never there", grouped(stale_reads.len()));
        println!("given up               {refused_count} operations, without effect: no leader for seconds");
        println!("elections              {} in {}", self.elections, time_text(self.worked));
        println!("longest without write  {}", time_text(self.longest_gap));
        for node in &self.metrics {
            println!(
                "node {:<3}               {} entries; {} of log, {} syncs since it was opened; {} of state",
                node.node,
                grouped(node.last_log as usize),
                bytes_text(node.log_bytes),
                grouped(node.log_syncs as usize),
                bytes_text(node.state_bytes)
            );
        }
        println!("rows of the nodes      {}", if self.are_equal { "equal" } else { "NOT EQUAL" });
        let verdict = match violations.len() {
            0 => "all linearizable".to_owned(),
            wrong => format!("{wrong} keys NOT LINEARIZABLE"),
        };
        println!("operations checked     {} on {} keys: {verdict}", grouped(judged), grouped(keys));
        for violation in violations.iter().take(SHOWN_COUNT) {
            println!("\n{violation}");
        }
        let is_right = violations.is_empty() && lost == 0 && foreign == 0 && self.are_equal;
        let seed = self.seed;
        println!(
            "\n{}",
            if is_right { format!("All is well (seed {seed}).") } else { format!("FAILED (seed {seed}).") }
        );
        is_right
    }
}
