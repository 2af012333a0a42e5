//! Small versions of S1's three methods to update a mapped file safely, compared with updating it in place.
//!
//! A store has [`PAGES`] pages. A transaction writes its number into [`TOUCHED`] of them. Each method is timed. Then a
//! process commits some transactions, begins the next one, changes half of its pages, and dies. Another process (the
//! lab's) syncs the file system, as any process may at any time, and compares the pages that recovery finds on the
//! device with the committed pages.
//!
//! - *In place*: stores into a shared mapping, and commits by msync. This is the control, without a protocol.
//! - *Copy-on-write by the system* (MongoDB's MMAPv1): changes a private mapping, logs the change, syncs the log, and
//!   copies the change into the shared mapping. Recovery applies the log. Changed pages stay in memory twice.
//! - *Copy-on-write by the program* (SQLite, MonetDB, RavenDB): changes copies of pages in its own memory, logs and
//!   syncs, and writes the copies to the file, which it maps read-only. Recovery applies the log.
//! - *Shadow paging* (LMDB): writes changed pages and a new page table to free places, syncs, switches the root by
//!   writing one of the two meta pages, and syncs again. It needs no log and no recovery, and allows one writer at a
//!   time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use drumlin_io::AlignedBuffer;
use serde::{Deserialize, Serialize};

use super::{Endings, of_counts};
use crate::compare::Claim;
use crate::counters::field;
use crate::figures::{self, Form};
use crate::map::{Map, Mode};
use crate::measure::{Latencies, Sample, Summary};
use crate::report::{Cell, Chapter, Judgement, Table};
use crate::session::Session;
use crate::temp_folder;
use crate::worker::{Ending, Measurement};

const PAGE_BYTES: usize = 4096;
const PAGES: usize = 256;
/// The number of pages that a transaction changes.
const TOUCHED: usize = 4;
const FILE_BYTES: usize = PAGES * PAGE_BYTES;

/// The size of a log record: the transaction's number, its pages, and a checksum that detects incomplete records.
const RECORD_BYTES: usize = 8 * (TOUCHED + 2);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Method {
    InPlace,
    SystemCopies,
    ProgramCopies,
    ShadowPages,
}

impl Method {
    const ALL: [Method; 4] = [Method::InPlace, Method::SystemCopies, Method::ProgramCopies, Method::ShadowPages];

    fn name(self) -> &'static str {
        match self {
            Method::InPlace => "in place, msync",
            Method::SystemCopies => "copy-on-write by the system",
            Method::ProgramCopies => "copy-on-write by the program",
            Method::ShadowPages => "shadow paging",
        }
    }

    fn users(self) -> &'static str {
        match self {
            Method::InPlace => "",
            Method::SystemCopies => "MongoDB (MMAPv1)",
            Method::ProgramCopies => "SQLite, MonetDB, RavenDB",
            Method::ShadowPages => "LMDB",
        }
    }

    /// Returns the number of syncs that a commit waits for.
    fn syncs(self) -> u64 {
        if self == Method::ShadowPages { 2 } else { 1 }
    }
}

/// Commits transactions. If `dies` is set, dies in the middle of the next transaction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    folder: PathBuf,
    method: Method,
    commits: u64,
    dies: bool,
}

/// The cost of the commits of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observation {
    latency: Summary,
    /// The number of pages that all commits together wrote or dirtied.
    written_pages: u64,
    /// The private memory that changed pages occupy at the end.
    own_bytes: u64,
}

/// Returns the pages that a transaction changes. All of them are different.
fn pages_of(transaction: u64) -> [usize; TOUCHED] {
    let first = transaction.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
    std::array::from_fn(|index| (first as usize + index * (PAGES / TOUCHED)) % PAGES)
}

/// Returns the transaction number that each page should contain after `commits` transactions.
fn expected(commits: u64) -> Vec<u64> {
    let mut values = vec![0; PAGES];
    for transaction in 1..=commits {
        for page in pages_of(transaction) {
            values[page] = transaction;
        }
    }
    values
}

fn value_of(page: &[u8]) -> u64 {
    u64::from_le_bytes(*page.first_chunk().expect("a page is longer"))
}

impl Measurement for Task {
    const NAME: &'static str = "hazards: updates";
    type Result = Observation;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Observation> {
        let mut store = Store::open(&self.folder, self.method)?;
        let mut latencies = Latencies::new();
        for transaction in 1..=self.commits {
            let start = Instant::now();
            for page in pages_of(transaction) {
                store.change(page, transaction)?;
            }
            store.commit(transaction)?;
            latencies.record(start.elapsed());
        }
        if self.dies {
            for page in &pages_of(self.commits + 1)[..TOUCHED / 2] {
                store.change(*page, self.commits + 1)?;
            }
            std::process::abort();
        }
        Ok(Observation {
            latency: latencies.summary(),
            written_pages: store.written_pages,
            own_bytes: store.own_bytes(),
        })
    }
}

/// A mapped store and the method by which it is updated.
struct Store {
    method: Method,
    data: File,
    log: File,
    log_bytes: u64,
    /// The file as all processes see it.
    shared: Map,
    /// The file with the changes of the current transaction. Used by `SystemCopies` only.
    private: Option<Map>,
    written_pages: u64,
    /// The pages that the current transaction has changed.
    copies: Vec<(usize, Vec<u8>)>,
    /// The place of each page in the file. `free` lists the places without a page. Used by `ShadowPages` only.
    places: Vec<u16>,
    free: Vec<u16>,
}

/// The number of places in a file with shadow paging: two meta pages, then room for pages and page tables.
const PLACES: usize = 2 + 2 * PAGES;

impl Store {
    fn open(folder: &Path, method: Method) -> io::Result<Store> {
        let open =
            |name: &str| File::options().read(true).write(true).create(true).truncate(false).open(folder.join(name));
        let (data, log) = (open("data")?, open("log")?);
        let bytes = if method == Method::ShadowPages { PLACES * PAGE_BYTES } else { FILE_BYTES };
        data.set_len(bytes as u64)?;
        // Write all blocks in advance, so that the times of commits include the protocol but no allocation of blocks.
        for place in 0..bytes / PAGE_BYTES {
            data.write_all_at(&[0; PAGE_BYTES], (place * PAGE_BYTES) as u64)?;
        }
        log.write_all_at(&vec![0; 1 << 20], 0)?;
        data.sync_all()?;
        log.sync_all()?;
        let mode = if method == Method::ProgramCopies || method == Method::ShadowPages {
            Mode::ReadOnly
        } else {
            Mode::Shared
        };
        let shared = Map::new(&data, bytes, mode)?;
        let private = if method == Method::SystemCopies { Some(Map::new(&data, bytes, Mode::Private)?) } else { None };
        Ok(Store {
            method,
            data,
            log,
            log_bytes: 0,
            shared,
            private,
            written_pages: 0,
            copies: Vec::new(),
            places: (0..PAGES).map(|page| 2 + page as u16).collect(),
            free: (2 + PAGES as u16..PLACES as u16).collect(),
        })
    }

    /// Changes a page in the current transaction.
    fn change(&mut self, page: usize, transaction: u64) -> io::Result<()> {
        let at = page * PAGE_BYTES;
        match self.method {
            Method::InPlace => self.shared[at..at + 8].copy_from_slice(&transaction.to_le_bytes()),
            Method::SystemCopies => {
                let private = self.private.as_mut().ok_or_else(|| io::Error::other("no private mapping"))?;
                private[at..at + 8].copy_from_slice(&transaction.to_le_bytes());
                self.copies.push((page, Vec::new()));
            }
            Method::ProgramCopies | Method::ShadowPages => {
                let at =
                    if self.method == Method::ShadowPages { usize::from(self.places[page]) * PAGE_BYTES } else { at };
                let mut copy = self.shared[at..at + PAGE_BYTES].to_vec();
                copy[..8].copy_from_slice(&transaction.to_le_bytes());
                self.copies.push((page, copy));
            }
        }
        Ok(())
    }

    fn commit(&mut self, transaction: u64) -> io::Result<()> {
        self.written_pages += TOUCHED as u64;
        match self.method {
            Method::InPlace => self.data.sync_data(),
            Method::SystemCopies => {
                self.append_record(transaction)?;
                for (page, _) in std::mem::take(&mut self.copies) {
                    let at = page * PAGE_BYTES;
                    self.shared[at..at + 8].copy_from_slice(&transaction.to_le_bytes());
                }
                Ok(())
            }
            Method::ProgramCopies => {
                self.append_record(transaction)?;
                for (page, copy) in std::mem::take(&mut self.copies) {
                    self.data.write_all_at(&copy, (page * PAGE_BYTES) as u64)?;
                }
                Ok(())
            }
            Method::ShadowPages => self.switch_root(transaction),
        }
    }

    /// Appends the current transaction to the log and makes it durable.
    fn append_record(&mut self, transaction: u64) -> io::Result<()> {
        let mut record = Vec::with_capacity(RECORD_BYTES);
        let mut sum = transaction;
        record.extend(transaction.to_le_bytes());
        for (page, _) in &self.copies {
            record.extend((*page as u64).to_le_bytes());
            sum = sum.rotate_left(7) ^ *page as u64;
        }
        record.extend(sum.to_le_bytes());
        self.log.write_all_at(&record, self.log_bytes)?;
        self.log_bytes += record.len() as u64;
        self.written_pages += 1;
        self.log.sync_data()
    }

    /// Writes the transaction's pages and a page table to free places, and then the meta page that refers to the table.
    fn switch_root(&mut self, transaction: u64) -> io::Result<()> {
        let mut freed = Vec::new();
        for (page, copy) in std::mem::take(&mut self.copies) {
            let place = self.free.remove(0);
            self.data.write_all_at(&copy, u64::from(place) * PAGE_BYTES as u64)?;
            freed.push(std::mem::replace(&mut self.places[page], place));
        }
        let table: Vec<u8> = self.places.iter().flat_map(|place| place.to_le_bytes()).collect();
        let place = self.free.remove(0);
        self.data.write_all_at(&table, u64::from(place) * PAGE_BYTES as u64)?;
        self.data.sync_data()?;
        let mut meta = [0; 24];
        meta[..8].copy_from_slice(&transaction.to_le_bytes());
        meta[8..10].copy_from_slice(&place.to_le_bytes());
        meta[16..].copy_from_slice(&(transaction ^ u64::from(place)).to_le_bytes());
        self.data.write_all_at(&meta, transaction % 2 * PAGE_BYTES as u64)?;
        // Count the page table and the meta page too.
        self.written_pages += 2;
        self.data.sync_data()?;
        // Reuse these places last: the page table and pages of the other meta page must stay intact until that meta
        // page is overwritten.
        self.free.extend(freed);
        self.free.push(place);
        Ok(())
    }

    /// Returns the private memory that changed pages occupy.
    fn own_bytes(&self) -> u64 {
        let Some(private) = &self.private else {
            return (TOUCHED * PAGE_BYTES) as u64 * u64::from(self.method != Method::InPlace);
        };
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let start = format!("{:x}-", private.address());
        let of_map: Vec<&str> = smaps.lines().skip_while(|line| !line.starts_with(&start)).take(20).collect();
        field(&of_map.join("\n"), "Anonymous:") * 1024
    }
}

/// Recovers, and returns the transaction number that each page has on the device.
fn recover(folder: &Path, method: Method) -> io::Result<Vec<u64>> {
    let read = |name: &str| -> io::Result<AlignedBuffer> {
        let path = folder.join(name);
        let bytes = std::fs::metadata(&path)?.len() as usize;
        let mut content = AlignedBuffer::zeroed(bytes.next_multiple_of(PAGE_BYTES));
        temp_folder::open_direct(&path, false)
            .or_else(|_| File::open(&path))?
            .read_exact_at(&mut content[..bytes], 0)?;
        Ok(content)
    };
    let data = read("data")?;
    let at = |place: usize| &data[place * PAGE_BYTES..(place + 1) * PAGE_BYTES];
    if method == Method::ShadowPages {
        let meta = |index: usize| {
            let (transaction, sum) = (value_of(at(index)), value_of(&at(index)[16..]));
            let place = u16::from_le_bytes([at(index)[8], at(index)[9]]);
            (transaction ^ u64::from(place) == sum && place > 0).then_some((transaction, place))
        };
        let Some((_, table)) = meta(0).max(meta(1)) else { return Ok(vec![0; PAGES]) };
        let places = at(usize::from(table)).chunks_exact(2).take(PAGES);
        return Ok(places.map(|place| value_of(at(usize::from(u16::from_le_bytes([place[0], place[1]]))))).collect());
    }
    let mut values: Vec<u64> = (0..PAGES).map(|page| value_of(at(page))).collect();
    for record in read("log")?.chunks_exact(RECORD_BYTES) {
        let words: Vec<u64> = record.chunks_exact(8).map(value_of).collect();
        let sum = words[1..=TOUCHED].iter().fold(words[0], |sum, page| sum.rotate_left(7) ^ page);
        if words[0] == 0 || sum != words[TOUCHED + 1] {
            break;
        }
        for page in &words[1..=TOUCHED] {
            values[*page as usize] = words[0];
        }
    }
    Ok(values)
}

pub(super) fn show(session: &Session<'_>, chapter: &mut Chapter, rounds: u64) -> io::Result<()> {
    let commits = if session.settings.quick { 200 } else { 2000 };
    let mut table = Table::new(
        format!(
            "A transaction of {TOUCHED} pages in a mapped file, {}, then a process that dies amid one",
            figures::plural(commits, "commit")
        ),
        &[
            ("", Form::Text),
            ("used by", Form::Text),
            ("p50 of a commit", Form::Micros),
            ("syncs", Form::Count),
            ("pages written a commit", Form::Count),
            ("own memory", Form::Bytes),
            ("after the death", Form::Text),
        ],
    );
    let mut wholes = Vec::new();
    for method in Method::ALL {
        session.step(&format!("hazards: {}", method.name()), 1.0);
        let (mut costs, mut wrong) = (Endings::default(), Vec::new());
        for round in 0..rounds {
            for dies in [false, true] {
                let folder = session.temp_folder.path().join(format!("updates-{method:?}-{round}-{dies}"));
                std::fs::create_dir(&folder)?;
                let commits = if dies { 20 } else { commits };
                let (outcome, _) = session.job(Task { folder: folder.clone(), method, commits, dies }, None)?;
                if dies && matches!(outcome.ending, Ending::Killed(_)) {
                    rustix::fs::syncfs(File::open(&folder)?)?;
                    let found = recover(&folder, method)?;
                    wrong
                        .push(found.iter().zip(expected(commits)).filter(|(found, wanted)| **found != *wanted).count());
                } else if !dies {
                    costs.push(outcome);
                }
                std::fs::remove_dir_all(&folder)?;
            }
        }
        table.row(row(method, &costs, &wrong, commits));
        wholes.push(wrong);
    }
    chapter.tables.push(table);
    if commits < 1000 {
        chapter.note(format!("{} a method: no steady state.", figures::plural(commits, "commit")));
    }
    CLAIM.put(chapter, wholes.as_slice());
    Ok(())
}

fn row(method: Method, costs: &Endings<Observation>, wrong: &[usize], commits: u64) -> Vec<Cell> {
    let seen =
        || costs.endings.iter().filter_map(|ending| if let Ending::Done(seen) = ending { Some(seen) } else { None });
    let median = |figure: &dyn Fn(&Observation) -> f64| crate::measure::median(seen().map(figure).collect());
    let worst = wrong.iter().max().copied().unwrap_or(0);
    vec![
        method.name().into(),
        method.users().into(),
        median(&|seen| seen.latency.p50_us).into(),
        method.syncs().into(),
        median(&|seen| seen.written_pages as f64 / commits as f64).into(),
        median(&|seen| seen.own_bytes as f64).into(),
        match (wrong.is_empty(), worst) {
            (true, _) => "not shown".into(),
            (false, 0) => "as committed".into(),
            (false, pages) => format!("{} of an uncommitted transaction", figures::plural(pages as u64, "page")).into(),
        },
    ]
}

const CLAIM: Claim<[Vec<usize>]> = Claim {
    source: "S1",
    text: "A mapped file is not safe to update in place; system copy-on-write, program copy-on-write and shadow \
           paging are.",
    judge,
};

/// Judges by the number of wrong pages in each round of each method. `wrong` lists the methods in the order of
/// `Method::ALL`.
fn judge(wrong: &[Vec<usize>]) -> Judgement {
    let count = |is_seen: &dyn Fn(usize) -> bool, rounds: &Vec<usize>| super::Count {
        seen: rounds.iter().filter(|wrong| is_seen(**wrong)).count(),
        of: rounds.len(),
    };
    let [in_place, protocols @ ..] = wrong else { return Judgement::inconclusive("rounds that ran", "") };
    let broken = count(&|wrong| wrong > 0, in_place);
    let whole: Vec<super::Count> = protocols.iter().map(|rounds| count(&|wrong| wrong == 0, rounds)).collect();
    let wholes = whole.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let why = format!(
        "Half of an uncommitted transaction was on the device after another process's sync {broken} in place; as \
         committed {wholes} with the protocols."
    );
    let counts: Vec<super::Count> = std::iter::once(broken).chain(whole).collect();
    of_counts(&counts, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Holds;

    /// Recovery finds the changes that each method committed. An unfinished transaction is visible after updates in
    /// place, but not with any of the three protocols.
    #[test]
    fn protocols_keep_what_was_committed_and_no_more() {
        for method in Method::ALL {
            let folder = tempfile::tempdir().unwrap();
            let mut store = Store::open(folder.path(), method).unwrap();
            for transaction in 1..=300 {
                for page in pages_of(transaction) {
                    store.change(page, transaction).unwrap();
                }
                store.commit(transaction).unwrap();
            }
            for page in &pages_of(301)[..2] {
                store.change(*page, 301).unwrap();
            }
            drop(store);
            rustix::fs::syncfs(File::open(folder.path()).unwrap()).unwrap();
            let found = recover(folder.path(), method).unwrap();
            assert_eq!(found == expected(300), method != Method::InPlace, "{method:?}");
        }
    }

    /// The claim can get every verdict.
    #[test]
    fn protocols_are_judged() {
        let judged = |in_place: usize, shadow: usize| judge(&[vec![in_place], vec![0], vec![0], vec![shadow]]).holds;
        assert_eq!(judged(2, 0), Holds::Yes);
        assert_eq!(judged(0, 0), Holds::Partly);
        assert_eq!(judged(2, 1), Holds::Partly);
        assert_eq!(judge(&[vec![0], vec![1], vec![1], vec![1]]).holds, Holds::No);
        assert_eq!(judge(&[vec![2], vec![], vec![0], vec![0]]).holds, Holds::Inconclusive);
    }
}
