//! A checker of histories: from a record of all reads and writes, it decides whether each transaction got the
//! guarantees of its isolation level.
//!
//! Every value written is unique, so a read identifies its writer. Together with the order of the versions of each row,
//! this determines the dependencies between transactions (Adya 1999): *ww* from the writer of a version to that of the
//! next version, *wr* from the writer to each reader, and *rw* from a reader to the writer of the next version. A level
//! forbids certain cycles of these dependencies, and reads that no committed transaction explains. Finding them in
//! recorded histories is Elle's idea (Kingsbury, Alvaro 2020).
//!
//! Transactions of several levels run together. An rw edge then counts only if its reader's level guarantees that the
//! rows it read are not overwritten in the meantime (Adya's mixed graph):
//!
//! | cycle | forbidden to | rw edges that count |
//! | --- | --- | --- |
//! | G0: only ww | all | none |
//! | G1c: ww and wr | all | none |
//! | G-nonadjacent: no two rw in a row; G-single has one rw | snapshot | those of snapshot and serializable readers |
//! | G2: any | serializable | those of serializable readers |
//!
//! Besides cycles, the checker finds G1a (a read of a value that was never committed), G1b (a read of a value that its
//! own writer replaced later), lost updates (two versions that replaced the same version), stale reads (reads of a
//! version that had been replaced before the transaction began), and transactions that do not see their own writes.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;

use drumlin::Isolation;

/// The number of a row.
pub type Key = u32;

/// A row version, identified by the write of a transaction that created it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    pub writer: u64,
    /// The number of the write within its transaction.
    pub number: u64,
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.writer, self.number)
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A read. `found` is `None` if the row was absent.
    Read { key: Key, found: Option<Version> },
    /// A write. `replaced` is the version that it replaced, if the transaction had read that version first.
    Write { key: Key, version: Version, removes: bool, replaced: Option<Version> },
}

#[derive(Clone, Debug)]
pub struct Transaction {
    /// Starts at 1. The initial rows have writer 0.
    pub number: u64,
    pub level: Isolation,
    /// The times before the first step and after the last step. Times are totally ordered across all transactions.
    pub began: u64,
    pub ended: u64,
    /// The position in the order of commits, or `None` if the transaction did not commit.
    pub committed: Option<u64>,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    /// The initial rows. Their writer has the number 0.
    pub initial: BTreeMap<Key, Version>,
    pub transactions: Vec<Transaction>,
    /// The order of versions, for rows whose order can't be derived from replaced versions and commits.
    pub orders: BTreeMap<Key, Vec<Version>>,
}

/// Counts of what a check has covered.
#[derive(Clone, Copy, Default, Debug)]
pub struct Summary {
    pub committed: u64,
    pub ended: u64,
    pub reads: u64,
    /// Reads of absent rows that more than one version explains. They add no edges to the graph.
    pub ambiguous: u64,
    pub edges: u64,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.committed += other.committed;
        self.ended += other.ended;
        self.reads += other.reads;
        self.ambiguous += other.ambiguous;
        self.edges += other.edges;
    }
}

/// A violation of a history's isolation levels.
#[derive(Debug)]
pub struct Violation {
    pub name: &'static str,
    pub story: String,
}

fn violation<T>(name: &'static str, story: String) -> Result<T, Violation> {
    Err(Violation { name, story })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Ww,
    Wr,
    /// An rw edge, with the level of the reader.
    Rw(Isolation),
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    to: usize,
    kind: Kind,
    key: Key,
}

struct Written {
    transaction: Option<usize>,
    key: Key,
    removes: bool,
    is_last: bool,
}

const ABSENT_AT_START: Version = Version { writer: 0, number: u64::MAX };

/// The versions of all rows, in order.
struct Versions<'h> {
    history: &'h History,
    written: HashMap<Version, Written>,
    orders: HashMap<Key, Vec<Version>>,
    places: HashMap<Version, usize>,
}

impl<'h> Versions<'h> {
    fn of(history: &'h History) -> Result<Versions<'h>, Violation> {
        let mut written = HashMap::new();
        for (&key, &version) in &history.initial {
            written.insert(version, Written { transaction: None, key, removes: false, is_last: true });
        }
        // The last write of each transaction to each row, with the version that its first write replaced.
        let mut last: BTreeMap<Key, Vec<(Version, usize, Option<Version>)>> = BTreeMap::new();
        for (index, transaction) in history.transactions.iter().enumerate() {
            let mut of_row: HashMap<Key, (Version, Option<Version>)> = HashMap::new();
            for step in &transaction.steps {
                if let Step::Write { key, version, removes, replaced } = *step {
                    let before = of_row.get(&key).map(|&(_, first)| first);
                    of_row.insert(key, (version, before.unwrap_or(replaced)));
                    let unique = written
                        .insert(version, Written { transaction: Some(index), key, removes, is_last: false })
                        .is_none();
                    assert!(unique, "{version:?} was written twice");
                }
            }
            for (key, (version, replaced)) in of_row {
                written.get_mut(&version).expect("just inserted").is_last = true;
                if transaction.committed.is_some() {
                    last.entry(key).or_default().push((version, index, replaced));
                }
            }
        }
        let mut versions = Versions { history, written, orders: HashMap::new(), places: HashMap::new() };
        let keys: HashSet<Key> = versions.written.values().map(|written| written.key).collect();
        for key in keys {
            let order = versions.order(key, last.remove(&key).unwrap_or_default())?;
            for (place, &version) in order.iter().enumerate().skip(1) {
                versions.places.insert(version, place);
            }
            if order[0] != ABSENT_AT_START {
                versions.places.insert(order[0], 0);
            }
            versions.orders.insert(key, order);
        }
        Ok(versions)
    }

    /// Returns the order of a row's versions. It follows from the versions that they replaced, if all of these are
    /// known, and otherwise from the order of commits.
    fn order(&self, key: Key, mut last: Vec<(Version, usize, Option<Version>)>) -> Result<Vec<Version>, Violation> {
        let mut order = vec![self.history.initial.get(&key).copied().unwrap_or(ABSENT_AT_START)];
        if let Some(known) = self.history.orders.get(&key) {
            order.extend(known);
            return Ok(order);
        }
        last.sort_unstable_by_key(|&(_, index, _)| self.history.transactions[index].committed);
        let mut next: HashMap<Version, Version> = HashMap::new();
        for &(version, _, replaced) in &last {
            if let Some(replaced) = replaced
                && let Some(other) = next.insert(replaced, version)
            {
                let story = format!("row {key}: {other:?} and {version:?} both replaced {replaced:?}");
                return violation("lost update", story);
            }
        }
        if next.len() < last.len() {
            for &(version, ..) in &last {
                // Removing an absent row creates no version.
                let changes = !(self.is_absence(version) && self.is_absence(order[order.len() - 1]));
                order.extend(changes.then_some(version));
            }
            return Ok(order);
        }
        while let Some(&version) = next.get(order.last().expect("it has a beginning")) {
            order.push(version);
        }
        if order.len() < last.len() + 1 {
            let lost = last.iter().find(|(version, ..)| !order.contains(version)).expect("one is missing");
            return violation("lost update", format!("row {key}: {lost:?} replaced what was never there"));
        }
        Ok(order)
    }

    fn writer(&self, version: Version) -> Option<usize> {
        self.written.get(&version).and_then(|written| written.transaction)
    }

    fn is_absence(&self, version: Version) -> bool {
        version == ABSENT_AT_START || self.written[&version].removes
    }

    /// Returns `true` if the version at this position was replaced before the transaction began.
    fn is_stale(&self, order: &[Version], place: usize, reader: &Transaction) -> bool {
        order.get(place + 1).and_then(|&next| self.writer(next)).is_some_and(|writer| {
            let writer = &self.history.transactions[writer];
            writer.ended < reader.began
        })
    }

    /// Returns the position of the version that a read found, or `None` if several absent versions can explain it.
    fn resolve(&self, reader: &Transaction, key: Key, found: Option<Version>) -> Result<Option<usize>, Violation> {
        let story = |what: &str| {
            let Transaction { number, level, .. } = reader;
            format!("transaction {number} ({level:?}) read {found:?} in row {key}: {what}")
        };
        let untouched = [ABSENT_AT_START];
        let order = self.orders.get(&key).map_or(&untouched[..], |order| &order[..]);
        let Some(version) = found else {
            let began_before_the_end = |version: Version| {
                self.writer(version).is_none_or(|writer| self.history.transactions[writer].began < reader.ended)
            };
            let mut places = (0..order.len()).filter(|&place| {
                self.is_absence(order[place])
                    && !self.is_stale(order, place, reader)
                    && began_before_the_end(order[place])
            });
            return match (places.next(), places.next()) {
                (None, _) => violation("stale read", story("it was there all the time")),
                (place, None) => Ok(place),
                _ => Ok(None),
            };
        };
        let Some(written) = self.written.get(&version).filter(|written| written.key == key && !written.removes) else {
            return violation("garbage", story("nobody wrote it there"));
        };
        if let Some(writer) = written.transaction
            && self.history.transactions[writer].committed.is_none()
        {
            return violation("G1a", story("its writer did not commit"));
        }
        if !written.is_last {
            return violation("G1b", story("its writer replaced it before the commit"));
        }
        let place = self.places[&version];
        if self.is_stale(order, place, reader) {
            return violation("stale read", story("it had been replaced when the transaction began"));
        }
        Ok(Some(place))
    }
}

struct Graph<'h> {
    history: &'h History,
    edges: Vec<Vec<Edge>>,
}

impl Graph<'_> {
    fn add(&mut self, from: Option<usize>, to: Option<usize>, kind: Kind, key: Key) {
        if let (Some(from), Some(to)) = (from, to)
            && from != to
        {
            self.edges[from].push(Edge { to, kind, key });
        }
    }

    /// Returns a short cycle of the edges for which `counts` returns `true`, or `None` if there is no cycle. If `apart`
    /// is set, the cycle must not have two rw edges in a row.
    fn cycle(&self, counts: impl Fn(Kind) -> bool, apart: bool) -> Option<Vec<(usize, Edge)>> {
        // If `apart` is set, each transaction is two nodes. The second node is reached by rw edges, and left only by ww
        // and wr edges.
        let count = self.edges.len();
        let states = if apart { 2 * count } else { count };
        let next = |state: usize| {
            let (from, by_rw) = (state % count, state >= count);
            self.edges[from].iter().filter(|edge| counts(edge.kind)).filter_map(move |edge| {
                let is_rw = matches!(edge.kind, Kind::Rw(_));
                (!(apart && by_rw && is_rw))
                    .then_some((if apart && is_rw { edge.to + count } else { edge.to }, (from, *edge)))
            })
        };
        // Remove nodes without incoming edges, until only cycles and the nodes reachable from them remain.
        let mut arriving = vec![0u32; states];
        for state in 0..states {
            next(state).for_each(|(to, _)| arriving[to] += 1);
        }
        let mut free: Vec<usize> = (0..states).filter(|&state| arriving[state] == 0).collect();
        while let Some(state) = free.pop() {
            for (to, _) in next(state) {
                arriving[to] -= 1;
                if arriving[to] == 0 {
                    free.push(to);
                }
            }
        }
        let mut shortest: Option<Vec<(usize, Edge)>> = None;
        let left = (0..states).filter(|&state| arriving[state] > 0);
        for start in left {
            // This cycle is short enough to understand.
            if shortest.as_ref().is_some_and(|cycle| cycle.len() <= 3) {
                break;
            }
            let mut came: HashMap<usize, (usize, (usize, Edge))> = HashMap::new();
            let mut waiting = VecDeque::from([start]);
            while let Some(state) = waiting.pop_front()
                && !came.contains_key(&start)
            {
                for (to, edge) in next(state).filter(|(to, _)| arriving[*to] > 0) {
                    came.entry(to).or_insert_with(|| {
                        waiting.push_back(to);
                        (state, edge)
                    });
                }
            }
            let mut cycle = Vec::new();
            let mut at = start;
            while let Some(&(before, edge)) = came.get(&at).filter(|_| came.contains_key(&start)) {
                cycle.push(edge);
                at = before;
                if at == start {
                    break;
                }
            }
            if !cycle.is_empty() && shortest.as_ref().is_none_or(|best| cycle.len() < best.len()) {
                cycle.reverse();
                shortest = Some(cycle);
            }
        }
        let is_acyclic = arriving.iter().all(|&count| count == 0);
        assert!(is_acyclic || shortest.is_some(), "what remains has a cycle");
        shortest
    }

    fn story(&self, cycle: &[(usize, Edge)]) -> String {
        let lines = cycle.iter().map(|&(from, Edge { to, kind, key })| {
            let (from, to) = (&self.history.transactions[from], &self.history.transactions[to]);
            let does = match kind {
                Kind::Ww => "wrote what was replaced by",
                Kind::Wr => "wrote what was read by",
                Kind::Rw(_) => "read what was replaced by",
            };
            let level = |of: &Transaction| format!("{} ({:?})", of.number, of.level);
            format!("  {} {does} {} in row {key}", level(from), level(to))
        });
        let mut numbers: Vec<usize> = cycle.iter().map(|(from, _)| *from).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let members = numbers.into_iter().map(|index| format!("{:?}", self.history.transactions[index]));
        lines.chain(members).collect::<Vec<_>>().join("\n")
    }
}

/// Checks that every transaction got the guarantees of its level.
pub fn check(history: &History) -> Result<Summary, Violation> {
    let versions = Versions::of(history)?;
    let mut graph = Graph { history, edges: vec![Vec::new(); history.transactions.len()] };
    let mut summary = Summary::default();
    for (&key, order) in &versions.orders {
        for pair in order.windows(2) {
            graph.add(versions.writer(pair[0]), versions.writer(pair[1]), Kind::Ww, key);
        }
    }
    for (reader, transaction) in history.transactions.iter().enumerate() {
        let is_committed = transaction.committed.is_some();
        *(if is_committed { &mut summary.committed } else { &mut summary.ended }) += 1;
        let mut own: HashMap<Key, Option<Version>> = HashMap::new();
        for step in &transaction.steps {
            let (key, found) = match *step {
                Step::Write { key, version, removes, .. } => {
                    own.insert(key, (!removes).then_some(version));
                    continue;
                }
                Step::Read { key, found } => (key, found),
            };
            summary.reads += 1;
            if let Some(&expected) = own.get(&key) {
                if found != expected {
                    let number = transaction.number;
                    let story = format!("transaction {number} wrote {expected:?} to row {key} and read {found:?}");
                    return violation("own write lost", story);
                }
                continue;
            }
            // Reads of a transaction that did not commit must also be explained, but create no dependencies.
            let place = versions.resolve(transaction, key, found)?;
            summary.ambiguous += u64::from(place.is_none());
            if let (Some(place), true, Some(order)) = (place, is_committed, versions.orders.get(&key)) {
                graph.add(versions.writer(order[place]), Some(reader), Kind::Wr, key);
                let next = order.get(place + 1).and_then(|&next| versions.writer(next));
                graph.add(Some(reader), next, Kind::Rw(transaction.level), key);
            }
        }
    }
    summary.edges = graph.edges.iter().map(|edges| edges.len() as u64).sum();
    type Counts = fn(Kind) -> bool;
    let kinds: [(&str, Counts, bool); 4] = [
        ("G0", |kind| kind == Kind::Ww, false),
        ("G1c", |kind| !matches!(kind, Kind::Rw(_)), false),
        ("G-nonadjacent", |kind| kind != Kind::Rw(Isolation::ReadCommitted), true),
        ("G2", |kind| !matches!(kind, Kind::Rw(Isolation::ReadCommitted | Isolation::Snapshot)), false),
    ];
    for (name, counts, apart) in kinds {
        if let Some(cycle) = graph.cycle(counts, apart) {
            return violation(name, graph.story(&cycle));
        }
    }
    Ok(summary)
}

/// Parses a history from text, a sequence of steps. `r1(x=0)` means that transaction 1 reads the initial version of row
/// x, `r2(x=1)` that transaction 2 reads the last version written by 1, `r2(x=1*)` the first version written by 1, and
/// `r1(x=-)` that the row is absent. `w1(x)` writes, `d1(x)` removes, `c1` commits, and `a1` aborts. Rows x, y and z
/// exist initially; all other rows are absent. Versions are ordered by commits, unless `x:2,1` at the end states the
/// order for x.
pub fn parse(text: &str, levels: &[Isolation]) -> History {
    let key_of = |name: &str| u32::from(name.as_bytes()[0]);
    let mut history = History::default();
    for (number, name) in (0..).zip(["x", "y", "z"]) {
        history.initial.insert(key_of(name), Version { writer: 0, number });
    }
    let mut first: HashMap<(u64, Key), Version> = HashMap::new();
    let mut last: HashMap<(u64, Key), Version> = HashMap::new();
    for (moment, word) in (1..).zip(text.split_whitespace()) {
        if let Some((row, writers)) = word.split_once(':') {
            let order = writers.split(',').map(|writer| last[&(writer.parse().unwrap(), key_of(row))]);
            history.orders.insert(key_of(row), order.collect());
            continue;
        }
        let (act, rest) = word.split_at(1);
        let (number, argument) = rest.split_once('(').unwrap_or((rest, ""));
        let number: u64 = number.parse().unwrap();
        if history.transactions.iter().all(|known| known.number != number) {
            history.transactions.push(Transaction {
                number,
                level: levels[(number as usize - 1) % levels.len()],
                began: moment,
                ended: u64::MAX,
                committed: None,
                steps: Vec::new(),
            });
        }
        let known = history.transactions.iter_mut().find(|known| known.number == number).unwrap();
        let argument = argument.trim_end_matches(')');
        match act {
            "r" => {
                let (row, what) = argument.split_once('=').unwrap();
                let key = key_of(row);
                let found = match what {
                    "-" => None,
                    "0" => Some(history.initial[&key]),
                    _ => Some(match what.strip_suffix('*') {
                        Some(writer) => first[&(writer.parse().unwrap(), key)],
                        None => last[&(what.parse().unwrap(), key)],
                    }),
                };
                known.steps.push(Step::Read { key, found });
            }
            "w" | "d" => {
                let key = key_of(argument);
                let version = Version { writer: number, number: moment };
                first.entry((number, key)).or_insert(version);
                last.insert((number, key), version);
                known.steps.push(Step::Write { key, version, removes: act == "d", replaced: None });
            }
            "c" => (known.committed, known.ended) = (Some(moment), moment),
            "a" => known.ended = moment,
            _ => panic!("{word} is no step"),
        }
    }
    history
}
