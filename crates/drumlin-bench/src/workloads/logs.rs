//! Measures stores of logs by index. See [`LogsJob`].

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{Figures, Turn};
use crate::driver::{self, Actor, Outcome, Pace};
use crate::engine::Result;
use crate::logs::{LogPeer, LogStore, named};
use crate::measure::{Meter, disk_bytes, drop_caches, histogram, median, record};
use crate::plan::LogsJob;
use crate::raw;

/// The number of times that appends and raw writes are measured, in turns.
const ROUNDS: u32 = 3;
/// The number of entries in an append that fills a log before the measurement.
const FILL_COUNT: u64 = 100;
/// A log is purged when it has this many appends, so that the files stay small.
const APPENDS_KEPT: u64 = 1000;
/// The number of entries that are read again and again.
const NEWEST_COUNT: u64 = 1000;
/// The number of appends of the busy logs for each entry of the log that is never purged.
const BUSY_COUNT: u64 = 100;

/// Fills the bytes of an entry. They are ASCII, because one store takes only text.
fn fill(entry: &mut Vec<u8>, log: u64, index: u64, bytes: usize) {
    entry.clear();
    let mut word = log.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index;
    while entry.len() < bytes {
        word = (word ^ word >> 31).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        entry.extend((word & 0x7F7F_7F7F_7F7F_7F7F).to_le_bytes());
    }
    entry.truncate(bytes);
}

/// Says if the beginning and the length of an entry are what was appended. The stores verify the rest.
fn is_right(entry: &[u8], log: u64, index: u64, bytes: usize) -> bool {
    let mut expected = Vec::with_capacity(8);
    fill(&mut expected, log, index, 8);
    entry.len() == bytes && entry.starts_with(&expected)
}

struct Place<'t> {
    turn: &'t Turn<'t>,
    peer: LogPeer,
    logs: u64,
}

impl Place<'_> {
    fn open(&self) -> Result<Box<dyn LogStore>> {
        (self.peer.open)(self.turn.folder, self.logs, self.turn.workload.data.budget_bytes)
    }

    fn entry_bytes(&self) -> usize {
        self.turn.workload.data.value_bytes
    }

    /// Fills all logs in turns with the workload's number of entries.
    fn fill_logs(&self, store: &dyn LogStore) -> Result<()> {
        let total = self.turn.workload.data.rows;
        let mut entries = vec![Vec::new(); FILL_COUNT as usize];
        let mut next = vec![0; self.logs as usize];
        let mut done = 0;
        while done < total {
            let log = done / FILL_COUNT % self.logs;
            let first = next[log as usize];
            (first..).zip(&mut entries).for_each(|(index, entry)| fill(entry, log, index, self.entry_bytes()));
            store.append_relaxed(log, first, &entries)?;
            next[log as usize] += FILL_COUNT;
            done += FILL_COUNT;
        }
        store.sync()
    }
}

pub(super) fn measure(turn: &Turn<'_>, job: LogsJob) -> Result<Figures> {
    let peer = named(turn.peer.name).ok_or("this engine has no logs")?;
    let place = Place { turn, peer, logs: job.logs() };
    match job {
        LogsJob::Append { batch, .. } => appends(&place, batch as u64),
        LogsJob::Newest => newest(&place),
        LogsJob::Follow => follow(&place),
        LogsJob::Open { .. } => opening(&place),
        LogsJob::Laggard => laggard(&place),
    }
}

/// Fills the logs, and kills this process.
pub(super) fn crash(turn: &Turn<'_>, job: LogsJob) -> Result<()> {
    let peer = named(turn.peer.name).ok_or("this engine has no logs")?;
    let place = Place { turn, peer, logs: job.logs() };
    let store = place.open()?;
    place.fill_logs(&*store)?;
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    Err("it survived being killed".into())
}

/// Appends to the logs in turns, and waits for each append.
struct Appender<'p> {
    store: &'p dyn LogStore,
    next: &'p [Mutex<u64>],
    at: usize,
    entries: Vec<Vec<u8>>,
    entry_bytes: usize,
}

impl Actor for Appender<'_> {
    fn step(&mut self) -> Result<u64> {
        let log = self.at % self.next.len();
        self.at += 1;
        let pending = {
            let mut next = self.next[log].lock().expect("no appender panics");
            let (first, count) = (*next, self.entries.len() as u64);
            let entry_bytes = self.entry_bytes;
            // The bytes after the first differ from append to append less, so that making them costs nothing.
            (first..).zip(&mut self.entries).for_each(|(index, entry)| {
                entry.resize(entry_bytes, b'.');
                let word = (log as u64 ^ index) & 0x7F7F_7F7F_7F7F_7F7F;
                entry[..8].copy_from_slice(&word.to_le_bytes());
            });
            let pending = self.store.append(log as u64, first, &self.entries)?;
            *next = first + count;
            if first > 0 && (first / count).is_multiple_of(APPENDS_KEPT) {
                self.store.purge(log as u64, first - 1)?;
            }
            pending
        };
        pending()?;
        Ok(self.entries.len() as u64)
    }
}

/// Measures appends in turns with raw durable writes.
fn appends(place: &Place<'_>, batch: u64) -> Result<Figures> {
    let turn = place.turn;
    let store = place.open()?;
    let next: Vec<Mutex<u64>> = (0..place.logs).map(|_| Mutex::new(0)).collect();
    let threads = turn.workload.threads;
    let actor = |thread: usize| -> Result<Box<dyn Actor + '_>> {
        Ok(Box::new(Appender {
            store: &*store,
            next: &next,
            at: thread * next.len() / threads,
            entries: vec![Vec::new(); batch as usize],
            entry_bytes: place.entry_bytes(),
        }))
    };
    let part = turn.duration() / ROUNDS;
    driver::run(threads, part / 4, Pace::Closed, &actor)?;
    let mut writes = raw::DurableWrites::create(turn.folder)?;
    let mut sum = Figures::default();
    let mut latencies = histogram();
    let (mut rates, mut raws, mut syncs) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        raws.push(writes.rate(part)?);
        let syncs_before = store.syncs();
        let meter = Meter::start(turn.folder);
        let outcome = driver::run(threads, part, Pace::Closed, &actor)?;
        let figures = Figures::measured(&outcome, meter.costs());
        syncs += store.syncs().unwrap_or(0) - syncs_before.unwrap_or(0);
        rates.push(figures.rate);
        latencies.add(&outcome.latencies)?;
        sum.operations += figures.operations;
        sum.units += figures.units;
        sum.seconds += figures.seconds;
        sum.costs.cpu_seconds += figures.costs.cpu_seconds;
        sum.costs.write_bytes += figures.costs.write_bytes;
        sum.costs.read_bytes += figures.costs.read_bytes;
        sum.costs.device_flushes += figures.costs.device_flushes;
        sum.costs.machine_cpu_seconds += figures.costs.machine_cpu_seconds;
    }
    let (rate, raw) = (median(&rates), median(&raws));
    let operations = sum.operations.max(1) as f64;
    let appends_rate = rate / batch as f64;
    let mut more = std::collections::BTreeMap::from([
        ("raw durable writes a second".to_owned(), raw),
        ("appends a second, of raw durable writes".to_owned(), appends_rate / raw),
        ("flushes of the device an append".to_owned(), sum.costs.device_flushes as f64 / operations),
        ("processor us an entry".to_owned(), sum.costs.cpu_seconds * 1e6 / sum.units.max(1) as f64),
    ]);
    if store.syncs().is_some() {
        more.insert("syncs an append".to_owned(), syncs as f64 / operations);
    }
    let written_user_bytes = sum.units * place.entry_bytes() as u64;
    let latencies = crate::measure::Latencies::of(&latencies);
    store.close()?;
    Ok(Figures { rate, latencies, more, written_user_bytes, ..sum })
}

fn figures(units: u64, elapsed: Duration, latencies: hdrhistogram::Histogram<u64>, meter: &Meter) -> Figures {
    let operations = latencies.len();
    let outcome = Outcome { operations, units, elapsed, latencies, timeline: Vec::new(), longest_gap: Duration::ZERO };
    Figures::measured(&outcome, meter.costs())
}

/// Reads the newest entries of a log again and again.
fn newest(place: &Place<'_>) -> Result<Figures> {
    let store = place.open()?;
    place.fill_logs(&*store)?;
    let end = place.turn.workload.data.rows.next_multiple_of(FILL_COUNT);
    let mut latencies = histogram();
    let meter = Meter::start(place.turn.folder);
    let (begun, mut units) = (Instant::now(), 0);
    while begun.elapsed() < place.turn.duration() {
        let before = Instant::now();
        units += read(place, &*store, end - NEWEST_COUNT.min(end), end)?;
        record(&mut latencies, before.elapsed());
    }
    let figures = figures(units, begun.elapsed(), latencies, &meter);
    store.close()?;
    Ok(figures)
}

fn read(place: &Place<'_>, store: &dyn LogStore, first: u64, end: u64) -> Result<u64> {
    let mut wrong = None;
    let count = store.read(0, first, end, &mut |index, entry| {
        if !is_right(entry, 0, index, place.entry_bytes()) {
            wrong.get_or_insert(index);
        }
    })?;
    match wrong {
        Some(index) => Err(format!("entry {index} is not what was appended").into()),
        None if count != end - first => Err(format!("{count} entries were read of {}", end - first).into()),
        None => Ok(count),
    }
}

/// Reads a log from its beginning, with nothing of it in memory, beside the raw sequential rate of the same files.
fn follow(place: &Place<'_>) -> Result<Figures> {
    let folder = place.turn.folder;
    let store = place.open()?;
    place.fill_logs(&*store)?;
    store.close()?;
    drop_caches(folder)?;
    let raw_before = raw::sequential(folder)?;
    drop_caches(folder)?;
    let store = place.open()?;
    let end = place.turn.workload.data.rows.next_multiple_of(FILL_COUNT);
    let mut latencies = histogram();
    let meter = Meter::start(folder);
    let begun = Instant::now();
    let count = read(place, &*store, 0, end)?;
    let elapsed = begun.elapsed();
    record(&mut latencies, elapsed);
    let mut figures = figures(count, elapsed, latencies, &meter);
    store.close()?;
    drop_caches(folder)?;
    if let (Some(before), Some(after)) = (raw_before, raw::sequential(folder)?) {
        // The bytes that were read, and not those of the entries: each has a header too.
        let rate = figures.costs.read_bytes as f64 / elapsed.as_secs_f64();
        let raw = f64::midpoint(before, after);
        figures.more.insert("raw sequential MB/s".to_owned(), raw / 1e6);
        figures.more.insert("read, of the raw sequential rate".to_owned(), rate / raw);
    }
    Ok(figures)
}

/// Opens the logs that another process filled before it was killed, and reads the first entry of one.
fn opening(place: &Place<'_>) -> Result<Figures> {
    let mut latencies = histogram();
    let meter = Meter::start(place.turn.folder);
    let begun = Instant::now();
    let store = place.open()?;
    read(place, &*store, 0, 1)?;
    let elapsed = begun.elapsed();
    record(&mut latencies, elapsed);
    let mut figures = figures(1, elapsed, latencies, &meter);
    let resident = drumlin_lab::resident_bytes_max() as f64;
    figures.more.insert("MiB of memory after the opening".to_owned(), resident / f64::from(1 << 20));
    store.close()?;
    Ok(figures)
}

/// Appends to ten logs that are purged and to one that is not, and watches the size of the folder.
fn laggard(place: &Place<'_>) -> Result<Figures> {
    let store = place.open()?;
    let entry_bytes = place.entry_bytes();
    let mut entries = vec![vec![b'.'; entry_bytes]; BUSY_COUNT as usize];
    let (mut latencies, mut most_bytes) = (histogram(), 0);
    let (mut slow, mut next) = (0, vec![0; place.logs as usize]);
    let meter = Meter::start(place.turn.folder);
    let (begun, mut units) = (Instant::now(), 0);
    let total = place.turn.workload.data.rows;
    while units < total {
        let log = 1 + units / BUSY_COUNT % (place.logs - 1);
        let first = next[log as usize];
        (first..).zip(&mut entries).for_each(|(index, entry)| fill(entry, log, index, entry_bytes));
        let before = Instant::now();
        store.append(log, first, &entries)?()?;
        store.append(0, slow, &entries[..1])?()?;
        record(&mut latencies, before.elapsed());
        next[log as usize] += BUSY_COUNT;
        slow += 1;
        if next[log as usize].is_multiple_of(10 * BUSY_COUNT) {
            store.purge(log, next[log as usize] - 1)?;
        }
        units += BUSY_COUNT + 1;
        if slow.is_multiple_of(1000) {
            most_bytes = most_bytes.max(disk_bytes(place.turn.folder));
        }
    }
    let longest_ms = latencies.max() as f64 / 1e6;
    let mut figures = figures(units, begun.elapsed(), latencies, &meter);
    figures.written_user_bytes = units * entry_bytes as u64;
    let live = (slow + place.logs * 10 * BUSY_COUNT) * entry_bytes as u64;
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    figures.more.insert("MB of files at most".to_owned(), megabytes(most_bytes.max(disk_bytes(place.turn.folder))));
    figures.more.insert("MB of entries that are needed at most".to_owned(), megabytes(live));
    figures.more.insert("longest two appends, ms".to_owned(), longest_ms);
    store.close()?;
    Ok(figures)
}

/// Counts the flushes of single appends that must be durable.
pub(crate) fn audit(name: &str, folder: &Path, count: u64, bytes: usize) -> Result<(f64, f64)> {
    let peer = named(name).ok_or("this engine has no logs")?;
    let store = (peer.open)(folder, 1, 64 << 20)?;
    let mut entries = [Vec::new()];
    let mut append = |index: u64| {
        fill(&mut entries[0], 0, index, bytes);
        store.append(0, index, &entries)?()
    };
    // Do not count the flushes of the first appends, which make files grow.
    (1..100).try_for_each(&mut append)?;
    let meter = Meter::start(folder);
    (100..100 + count).try_for_each(&mut append)?;
    let costs = meter.costs();
    let each = |number: u64| number as f64 / count as f64;
    store.close()?;
    Ok((each(costs.device_flushes), each(costs.device_write_bytes)))
}
