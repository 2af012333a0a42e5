//! The timeline that the supervisor prints, and the times in which no write succeeded.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::types::Event;

/// Returns bytes as a text.
pub(crate) fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// Returns a duration as a text.
pub(crate) fn time_text(time: Duration) -> String {
    match time.as_millis() {
        0..10 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        10..1000 => format!("{} ms", time.as_millis()),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}

struct Writes {
    /// The last acknowledged write.
    last: Duration,
    /// The longest time between two of them since the last mark.
    longest_gap: Duration,
}

/// The printer of the timeline, and the clock of the history. Clones are handles of the same.
#[derive(Clone)]
pub(crate) struct Timeline {
    begun: Instant,
    writes: Arc<Mutex<Writes>>,
    elections: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Timeline {
    pub(crate) fn new() -> Timeline {
        let writes = Writes { last: Duration::ZERO, longest_gap: Duration::ZERO };
        Timeline { begun: Instant::now(), writes: Arc::new(Mutex::new(writes)), elections: Arc::default() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the nanoseconds since the begin.
    pub(crate) fn nanos(&self) -> u64 {
        self.elapsed().as_nanos() as u64
    }

    /// Notes that a write was acknowledged.
    pub(crate) fn acknowledge(&self) {
        let now = self.elapsed();
        let mut writes = self.writes.lock().unwrap();
        writes.longest_gap = writes.longest_gap.max(now.saturating_sub(writes.last));
        writes.last = writes.last.max(now);
    }

    /// Begins to look for the longest time without a write.
    pub(crate) fn mark(&self) {
        self.writes.lock().unwrap().longest_gap = Duration::ZERO;
    }

    /// Returns the time of the last acknowledged write.
    pub(crate) fn last_write(&self) -> Duration {
        self.writes.lock().unwrap().last
    }

    /// Returns the longest time without an acknowledged write since the last mark.
    pub(crate) fn longest_gap(&self) -> Duration {
        let writes = self.writes.lock().unwrap();
        writes.longest_gap.max(self.elapsed().saturating_sub(writes.last))
    }

    /// Returns the number of elections.
    pub(crate) fn election_count(&self) -> usize {
        self.elections.lock().unwrap().len()
    }

    /// Prints what the supervisor does or has found.
    pub(crate) fn note(&self, text: &str) {
        self.print("", text);
    }

    /// Prints an event that a node has reported.
    pub(crate) fn event(&self, node: u64, event: &Event) {
        let text = match event {
            Event::Ready { millis, applied: 0 } => format!("serves after {millis} ms"),
            Event::Ready { millis, applied } => {
                format!("serves after {millis} ms; entries up to {applied} are applied")
            }
            Event::Leads { term } => {
                self.elections.lock().unwrap().push((*term, node));
                format!("leads term {term}")
            }
            Event::Built { index } => format!("has a snapshot of the entries up to {index}"),
            Event::Sent { to, from_offset: 0, bytes, millis } => {
                format!("has sent a snapshot of {} to node {to} in {millis} ms", bytes_text(*bytes))
            }
            Event::Sent { to, from_offset, bytes, millis } => format!(
                "has sent a snapshot of {} to node {to} in {millis} ms; it was resumed at {}",
                bytes_text(*bytes),
                bytes_text(*from_offset)
            ),
            Event::Broken { to, bytes } => {
                format!("loses the connection to node {to} after {} of a snapshot", bytes_text(*bytes))
            }
            Event::Installed { from, index, bytes, millis } => format!(
                "has installed a snapshot of {} from node {from}, of the entries up to {index}, in {millis} ms",
                bytes_text(*bytes)
            ),
            Event::Failed { reason } => format!("stops: {reason}"),
        };
        self.print(&format!("node {node}"), &text);
    }

    fn print(&self, who: &str, text: &str) {
        println!("{:7.2} s  {who:<7} {text}", self.elapsed().as_secs_f64());
    }
}
