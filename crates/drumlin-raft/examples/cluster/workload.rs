//! The work of one of the clients that use the cluster while it fails, and the record of each operation.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drumlin_testing::Random;
use hyper::Method;

use crate::client::{Call, Client, Directory, Reply};
use crate::history::{Action, FOREIGN, Operation, Outcome, Value};
use crate::timeline::Timeline;
use crate::types::{CompareAndSet, Failure, Written};

/// The length of a value.
const VALUE_BYTES: usize = 256;
/// The keys that get a quarter of the operations.
const HOT_KEYS: u64 = 10;
/// The keys of a range.
const RANGE_KEYS: u32 = 20;
/// The pause of a client after each operation, so that the clients leave the nodes some of two processors.
const THINKING: Duration = Duration::from_millis(2);

/// Returns the text of a key.
pub(crate) fn key_text(key: u32) -> String {
    format!("key-{key:06}")
}

/// Returns the text of a value: its number, and digits that follow from it.
fn value_text(number: u64) -> String {
    let mut random = Random(number);
    let mut text = format!("{number:016x}");
    while text.len() < VALUE_BYTES {
        text += &format!("{:016x}", random.next());
    }
    text
}

/// Returns the number of a value, or [`FOREIGN`] if it has a character that was not written.
fn value_number(text: &str) -> u64 {
    let number = text.get(..16).and_then(|number| u64::from_str_radix(number, 16).ok());
    number.filter(|number| value_text(*number) == text).unwrap_or(FOREIGN)
}

/// Returns what a range read has found for each of its keys.
pub(crate) fn values_of(found: &BTreeMap<String, String>, keys: Range<u32>) -> Vec<(u32, Value)> {
    keys.map(|key| (key, found.get(&key_text(key)).map(|text| value_number(text)))).collect()
}

/// The records of a client.
#[derive(Default)]
pub(crate) struct Record {
    /// The operations that must be linearizable. A range is a read of each of its keys.
    pub(crate) operations: Vec<Operation>,
    /// The reads that may find old values.
    pub(crate) stale_reads: Vec<Operation>,
    pub(crate) range_count: usize,
    /// The reads of keys that were made by ranges.
    pub(crate) range_reads: usize,
    /// The operations that had no effect, because there was no leader for seconds.
    pub(crate) refused_count: usize,
}

impl Record {
    /// Adds the records of another client.
    pub(crate) fn add(&mut self, other: Record) {
        self.operations.extend(other.operations);
        self.stale_reads.extend(other.stale_reads);
        self.range_count += other.range_count;
        self.range_reads += other.range_reads;
        self.refused_count += other.refused_count;
    }
}

/// A client of the cluster that records what it does.
pub(crate) struct Worker {
    client: Client,
    number: u32,
    key_count: u32,
    timeline: Timeline,
    directory: Directory,
    random: Random,
    written_count: u64,
    /// The values that it has seen last, for comparisons.
    seen: HashMap<u32, Value>,
    record: Record,
}

impl Worker {
    pub(crate) fn new(number: u32, key_count: u32, seed: u64, directory: &Directory, timeline: &Timeline) -> Worker {
        Worker {
            client: Client::new(directory),
            number,
            key_count,
            timeline: timeline.clone(),
            directory: Arc::clone(directory),
            random: Random(seed.wrapping_mul(31) + u64::from(number)),
            written_count: 0,
            seen: HashMap::new(),
            record: Record::default(),
        }
    }

    /// Writes the keys, and then makes random operations until `stop` is set. Returns the record of all operations.
    pub(crate) async fn run(mut self, keys: Range<u32>, stop: Arc<AtomicBool>) -> Result<Record, Failure> {
        for key in keys {
            self.put(key).await?;
        }
        while !stop.load(Ordering::Relaxed) {
            self.step().await?;
            tokio::time::sleep(THINKING).await;
        }
        Ok(self.record)
    }

    async fn step(&mut self) -> Result<(), Failure> {
        let count = u64::from(self.key_count);
        let keys = if self.random.chance(25) { HOT_KEYS.min(count) } else { count };
        let key = self.random.below(keys) as u32;
        match self.random.below(100) {
            0..35 => self.read(key).await,
            35..40 => self.read_stale(key).await,
            40..42 => self.read_range(key).await,
            42..75 => self.put(key).await,
            75..94 => self.compare_and_set(key).await,
            _ => self.remove(key).await,
        }
    }

    fn new_value(&mut self) -> u64 {
        self.written_count += 1;
        u64::from(self.number) << 40 | self.written_count
    }

    fn note(&mut self, key: u32, action: Action, begin: u64, outcome: Outcome) {
        let (client, end) = (self.number, self.timeline.nanos());
        let operation = Operation { client, key, action, begin, end, outcome };
        if operation.is_acknowledged_write() {
            self.timeline.acknowledge();
        }
        self.record.operations.push(operation);
    }

    /// Makes a call that changes a key, and records it.
    async fn write(&mut self, key: u32, action: Action, call: Call) -> Result<(), Failure> {
        let begin = self.timeline.nanos();
        let outcome = match self.client.call(&call).await {
            reply @ Reply::Done(_) => {
                let written: Written = reply.decode()?;
                let before = written.before.as_deref().map(value_number);
                self.seen.insert(key, before);
                Outcome::Known { before, done: written.done }
            }
            Reply::Unknown(_) => Outcome::Unknown,
            Reply::Refused(_) => {
                self.record.refused_count += 1;
                return Ok(());
            }
        };
        self.note(key, action, begin, outcome);
        Ok(())
    }

    async fn put(&mut self, key: u32) -> Result<(), Failure> {
        let value = self.new_value();
        let call = Call::new(Method::PUT, format!("/rows/{}", key_text(key))).text(value_text(value));
        self.write(key, Action::Put(value), call).await
    }

    async fn remove(&mut self, key: u32) -> Result<(), Failure> {
        self.write(key, Action::Remove, Call::new(Method::DELETE, format!("/rows/{}", key_text(key)))).await
    }

    /// Replaces the value that this client has seen last, which is often still there; or that which it has just read.
    async fn compare_and_set(&mut self, key: u32) -> Result<(), Failure> {
        if self.random.chance(50) {
            self.read(key).await?;
        }
        let expected = self.seen.get(&key).copied().flatten().filter(|value| *value != FOREIGN);
        let value = self.new_value();
        let values = CompareAndSet { expected: expected.map(value_text), value: Some(value_text(value)) };
        let call = Call::new(Method::POST, format!("/rows/{}/compare-and-set", key_text(key))).json(&values);
        self.write(key, Action::CompareAndSet { expected, value }, call).await
    }

    async fn read(&mut self, key: u32) -> Result<(), Failure> {
        let begin = self.timeline.nanos();
        match self.client.call(&Call::new(Method::GET, format!("/rows/{}", key_text(key)))).await {
            reply @ Reply::Done(_) => {
                let found: Option<String> = reply.decode()?;
                let before = found.as_deref().map(value_number);
                self.seen.insert(key, before);
                self.note(key, Action::Read, begin, Outcome::Known { before, done: true });
            }
            Reply::Refused(_) | Reply::Unknown(_) => self.record.refused_count += 1,
        }
        Ok(())
    }

    async fn read_range(&mut self, first: u32) -> Result<(), Failure> {
        let keys = first..(first + RANGE_KEYS).min(self.key_count);
        let count = keys.len();
        let path = format!("/rows?from={}&to={}", key_text(keys.start), key_text(keys.end));
        let begin = self.timeline.nanos();
        match self.client.call(&Call::new(Method::GET, path)).await {
            reply @ Reply::Done(_) => {
                let found: BTreeMap<String, String> = reply.decode()?;
                for (key, before) in values_of(&found, keys) {
                    self.note(key, Action::Read, begin, Outcome::Known { before, done: true });
                }
                self.record.range_count += 1;
                self.record.range_reads += count;
            }
            Reply::Refused(_) | Reply::Unknown(_) => self.record.refused_count += 1,
        }
        Ok(())
    }

    /// Reads from any node.
    async fn read_stale(&mut self, key: u32) -> Result<(), Failure> {
        let nodes: Vec<u64> = self.directory.lock().unwrap().keys().copied().collect();
        let node = nodes[self.random.index(nodes.len())];
        let begin = self.timeline.nanos();
        let call = Call::new(Method::GET, format!("/rows/{}?stale=true", key_text(key)));
        // Nothing can be checked if the node does not answer.
        if let Ok(found) = self.client.ask_node::<Option<String>>(node, &call).await {
            let outcome = Outcome::Known { before: found.as_deref().map(value_number), done: true };
            let (client, end) = (self.number, self.timeline.nanos());
            self.record.stale_reads.push(Operation { client, key, action: Action::Read, begin, end, outcome });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value is recognised by each of its characters.
    #[test]
    fn values_are_recognised() {
        let text = value_text(77 << 40 | 5);
        assert_eq!(value_number(&text), 77 << 40 | 5);
        for at in [0, 15, 16, 100, text.len() - 1] {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'1' { b'2' } else { b'1' };
            assert_eq!(value_number(&String::from_utf8(changed).unwrap()), FOREIGN, "{at}");
        }
        assert_eq!(value_number(&text[1..]), FOREIGN);
        assert_eq!(value_number(""), FOREIGN);
    }
}
