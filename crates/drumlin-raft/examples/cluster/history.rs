//! The history of all operations, and its judge: is there an order of the operations on each key that explains every
//! answer, and in which each operation takes effect between its begin and its end?
//!
//! The judge follows Wing and Gong, key by key, with Lowe's just-in-time order: it walks through the begins and ends in
//! the order of time, and keeps all states in which the key may be. An operation is put into the order only when an end
//! demands it. An operation whose outcome is unknown never ends: it may take effect at any time after its begin, or
//! never.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// A value by its number, or `None` if the key has none.
pub(crate) type Value = Option<u64>;

/// Stands for any value that no client can have written, for example one with a wrong character.
pub(crate) const FOREIGN: u64 = u64::MAX;

/// The states of a key that are kept at once. More would take minutes.
const STATES_MAX: usize = 200_000;
/// The operations that a violation shows.
const SHOWN_COUNT: usize = 12;

/// An operation, as a client requests it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Read,
    Put(u64),
    Remove,
    CompareAndSet { expected: Value, value: u64 },
}

/// The answer that a client got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The value before the operation took effect, and `false` if a comparison found another value than expected.
    Known { before: Value, done: bool },
    /// There was no answer: the operation may have taken effect, may still do so, or never will.
    Unknown,
}

/// One operation of a client on a key. Times are nanoseconds since the begin of the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Operation {
    pub(crate) client: u32,
    pub(crate) key: u32,
    pub(crate) action: Action,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) outcome: Outcome,
}

impl Operation {
    fn is_known(&self) -> bool {
        self.outcome != Outcome::Unknown
    }

    /// Returns the value that the key must have had before, unless any is right.
    fn required(&self) -> Option<Value> {
        match (self.outcome, self.action) {
            (Outcome::Known { before, .. }, _) => Some(before),
            (Outcome::Unknown, Action::CompareAndSet { expected, .. }) => Some(expected),
            (Outcome::Unknown, _) => None,
        }
    }

    /// Returns the value that the operation gives the key, or `None` if it changes nothing.
    fn written(&self) -> Option<Value> {
        let took_effect = !matches!(self.outcome, Outcome::Known { done: false, .. });
        match self.action {
            Action::Put(value) | Action::CompareAndSet { value, .. } if took_effect => Some(Some(value)),
            Action::Remove if took_effect => Some(None),
            _ => None,
        }
    }

    /// Returns `true` if the answer contradicts itself.
    fn is_absurd(&self) -> bool {
        match (self.action, self.outcome) {
            (Action::CompareAndSet { expected, .. }, Outcome::Known { before, done }) => done != (expected == before),
            (_, Outcome::Known { done, .. }) => !done,
            _ => false,
        }
    }

    /// Returns `true` for a write that was acknowledged.
    pub(crate) fn is_acknowledged_write(&self) -> bool {
        self.is_known() && self.written().is_some()
    }
}

struct Shown(Value);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => write!(f, "nothing"),
            Some(FOREIGN) => write!(f, "a value that no client wrote"),
            Some(value) => write!(f, "{value:x}"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        write!(f, "{:10.6} s to ", seconds(self.begin))?;
        match self.outcome {
            Outcome::Known { .. } => write!(f, "{:10.6} s", seconds(self.end))?,
            Outcome::Unknown => write!(f, "  no answer ")?,
        }
        write!(f, "  client {}: ", self.client)?;
        match self.action {
            Action::Read => write!(f, "read")?,
            Action::Put(value) => write!(f, "put {value:x}")?,
            Action::Remove => write!(f, "remove")?,
            Action::CompareAndSet { expected, value } => write!(f, "set {value:x} if it is {}", Shown(expected))?,
        }
        match self.outcome {
            Outcome::Known { before, done } if self.action == Action::Read || !done => {
                write!(f, ", found {}", Shown(before))
            }
            Outcome::Known { before, .. } => write!(f, ", done, found {}", Shown(before)),
            Outcome::Unknown => Ok(()),
        }
    }
}

/// An answer that no order explains.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    key: u32,
    reason: &'static str,
    at: Operation,
    /// The last operations that began before it ended.
    shown: Vec<Operation>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "key {}: {}:\n  {}\n  The operations on this key before it ended:",
            self.key, self.reason, self.at
        )?;
        self.shown.iter().try_for_each(|operation| writeln!(f, "  {operation}"))
    }
}

/// The verdict on a history.
#[derive(Clone, Default, Debug)]
pub(crate) struct Verdict {
    pub(crate) keys: usize,
    pub(crate) operations: usize,
    pub(crate) violations: Vec<Violation>,
    /// Writes that were acknowledged, and are gone although no later write can have replaced them.
    pub(crate) lost: usize,
}

/// Judges a history of operations on keys that have no value at its begin. The last read of each key shows which of its
/// writes are lost.
///
/// Takes O(n) time for n operations, as long as few of them overlap on one key.
pub(crate) fn judge(operations: &[Operation]) -> Verdict {
    let mut keys: BTreeMap<u32, Vec<Operation>> = BTreeMap::new();
    for operation in operations {
        keys.entry(operation.key).or_default().push(*operation);
    }
    let mut verdict = Verdict { keys: keys.len(), operations: operations.len(), ..Verdict::default() };
    for history in keys.values_mut() {
        history.sort_by_key(|operation| operation.begin);
        verdict.violations.extend(judge_key(history).err());
        verdict.lost += lost_writes(history);
    }
    verdict
}

/// A state in which a key may be: its value, and the operations in flight that have taken effect, in ascending order.
type State = (Value, Vec<usize>);

fn with(done: &[usize], operation: usize) -> Vec<usize> {
    let at = done.partition_point(|other| *other < operation);
    [&done[..at], &[operation], &done[at..]].concat()
}

fn without(done: &[usize], operation: usize) -> Vec<usize> {
    done.iter().copied().filter(|other| *other != operation).collect()
}

/// Judges the operations on one key, in the order of their begins.
fn judge_key(history: &[Operation]) -> Result<(), Violation> {
    let violation = |reason, at: usize| {
        let at = history[at];
        let before: Vec<Operation> = history.iter().filter(|other| other.begin <= at.end).copied().collect();
        let shown = before[before.len().saturating_sub(SHOWN_COUNT)..].to_vec();
        Violation { key: at.key, reason, at, shown }
    };
    if let Some(absurd) = history.iter().position(Operation::is_absurd) {
        return Err(violation("an answer contradicts itself", absurd));
    }
    // At equal times, a begin comes before an end: the operations may have overlapped.
    let begins = history.iter().enumerate().map(|(at, operation)| (operation.begin, false, at));
    let known = history.iter().enumerate().filter(|(_, operation)| operation.is_known());
    let mut events: Vec<(u64, bool, usize)> =
        begins.chain(known.map(|(at, operation)| (operation.end, true, at))).collect();
    events.sort_unstable();
    let mut in_flight: Vec<usize> = Vec::new();
    let mut states: HashSet<State> = HashSet::from([(None, Vec::new())]);
    for (_, is_end, at) in events {
        if !is_end {
            // A read without an answer says nothing.
            if history[at].is_known() || history[at].action != Action::Read {
                in_flight.push(at);
            }
            continue;
        }
        states = states_after(history, &in_flight, states, at).ok_or_else(|| violation("it can't be decided", at))?;
        if states.is_empty() {
            return Err(violation("no order of the operations explains an answer", at));
        }
        in_flight.retain(|other| *other != at);
        // An operation that has taken effect in all states is over, although it never ends.
        let over = |other: &usize| !history[*other].is_known() && states.iter().all(|(_, done)| done.contains(other));
        let over: Vec<usize> = in_flight.iter().copied().filter(over).collect();
        if !over.is_empty() {
            in_flight.retain(|other| !over.contains(other));
            let shorten = |(value, done): State| {
                (value, done.into_iter().filter(|other| !over.contains(other)).collect::<Vec<_>>())
            };
            states = states.into_iter().map(shorten).collect();
        }
    }
    Ok(())
}

/// Returns the states in which a key may be when an operation ends, which must have taken effect by then. `None` if
/// there are too many.
fn states_after(
    history: &[Operation],
    in_flight: &[usize],
    states: HashSet<State>,
    end: usize,
) -> Option<HashSet<State>> {
    let mut after: HashSet<State> = HashSet::new();
    let mut seen: HashSet<State> = HashSet::new();
    let mut open: Vec<State> = Vec::new();
    for state in states {
        if state.1.contains(&end) {
            after.insert((state.0, without(&state.1, end)));
        } else {
            open.push(state);
        }
    }
    while let Some((value, done)) = open.pop() {
        let mut tried_removal = false;
        for &next in in_flight.iter().filter(|next| !done.contains(next)) {
            let operation = &history[next];
            if operation.required().is_some_and(|required| required != value) {
                continue;
            }
            let written = operation.written().unwrap_or(value);
            if !operation.is_known() {
                // It need not take effect before an operation in flight finds its value.
                let finds = |other: &&usize| !done.contains(other) && history[**other].required() == Some(written);
                // One removal without an answer is like another.
                let is_removal = operation.action == Action::Remove;
                if !in_flight.iter().filter(|other| **other != next).any(|other| finds(&other))
                    || is_removal && std::mem::replace(&mut tried_removal, true)
                {
                    continue;
                }
            }
            if next == end {
                after.insert((written, done.clone()));
            } else {
                let state = (written, with(&done, next));
                if seen.insert(state.clone()) {
                    open.push(state);
                }
            }
        }
        if after.len() + seen.len() > STATES_MAX {
            return None;
        }
    }
    Some(after)
}

/// Counts the acknowledged writes that are gone at the last read of a key: the value that it found was written before
/// they began, and nothing else can have brought it back.
fn lost_writes(history: &[Operation]) -> usize {
    let reads = history.iter().filter(|operation| operation.action == Action::Read);
    let last = reads.filter(|read| read.is_known()).max_by_key(|read| read.begin);
    let Some(Operation { begin: read_begin, outcome: Outcome::Known { before: found, .. }, .. }) = last else {
        return 0;
    };
    // A write that overlaps with the read may have come after it.
    let writes = || history.iter().filter(|write| write.is_acknowledged_write() && write.end < *read_begin);
    let later = |end: u64| writes().filter(|write| write.begin > end).count();
    let from_begin = found.is_none().then(|| writes().count());
    let sources = history.iter().filter(|operation| operation.written() == Some(*found));
    let from_writes = sources.map(|write| if write.is_known() { later(write.end) } else { 0 });
    from_writes.chain(from_begin).min().unwrap_or_else(|| writes().count())
}

/// Counts reads that found a value that no client had begun to write to the key by then. Reads that may be stale find
/// at least values that once were there.
pub(crate) fn foreign_reads(operations: &[Operation], reads: &[Operation]) -> usize {
    let mut first_writes: HashMap<(u32, u64), u64> = HashMap::new();
    for operation in operations {
        if let Some(Some(value)) = operation.written() {
            let first = first_writes.entry((operation.key, value)).or_insert(operation.begin);
            *first = operation.begin.min(*first);
        }
    }
    let is_foreign = |read: &&Operation| match read.outcome {
        Outcome::Known { before: Some(value), .. } => {
            first_writes.get(&(read.key, value)).is_none_or(|begin| *begin > read.end)
        }
        _ => false,
    };
    reads.iter().filter(is_foreign).count()
}

#[cfg(test)]
mod tests {
    use drumlin_testing::Random;

    use super::*;

    fn known(client: u32, action: Action, times: (u64, u64), before: Value) -> Operation {
        let done = !matches!(action, Action::CompareAndSet { expected, .. } if expected != before);
        let outcome = Outcome::Known { before, done };
        Operation { client, key: 1, action, begin: times.0, end: times.1, outcome }
    }

    fn read(times: (u64, u64), found: Value) -> Operation {
        known(9, Action::Read, times, found)
    }

    fn unknown(action: Action, begin: u64) -> Operation {
        Operation { client: 8, key: 1, action, begin, end: begin + 1, outcome: Outcome::Unknown }
    }

    fn put(value: u64, times: (u64, u64), before: Value) -> Operation {
        known(1, Action::Put(value), times, before)
    }

    fn set(expected: Value, value: u64, times: (u64, u64), before: Value) -> Operation {
        known(2, Action::CompareAndSet { expected, value }, times, before)
    }

    #[track_caller]
    fn assert_right(history: &[Operation]) {
        let verdict = judge(history);
        assert!(verdict.violations.is_empty(), "{}", verdict.violations[0]);
        assert_eq!(verdict.lost, 0);
    }

    /// Asserts that a history is wrong, and how many of its writes are lost.
    #[track_caller]
    fn assert_wrong(history: &[Operation], lost: usize) {
        let verdict = judge(history);
        assert_eq!(verdict.violations.len(), 1);
        assert_eq!(verdict.lost, lost);
    }

    /// Operations may take effect anywhere between begin and end.
    #[test]
    fn right_histories_are_accepted() {
        assert_right(&[]);
        assert_right(&[put(1, (0, 1), None), read((2, 3), Some(1)), known(1, Action::Remove, (4, 5), Some(1))]);
        // Three writes that overlap, in any order.
        assert_right(&[
            put(1, (0, 20), Some(2)),
            put(2, (0, 20), Some(3)),
            put(3, (0, 20), None),
            read((2, 3), Some(3)),
            read((4, 5), Some(2)),
            read((6, 7), Some(1)),
        ]);
        assert_right(&[put(1, (0, 1), None), set(Some(2), 3, (2, 3), Some(1)), set(Some(1), 3, (4, 5), Some(1))]);
    }

    /// A write without an answer may take effect at once, late, or never. It takes effect once.
    #[test]
    fn unknown_outcomes_may_be_anything() {
        let before = [put(1, (0, 1), None), unknown(Action::Put(2), 2)];
        let history = |more: &[Operation]| [&before, more].concat();
        assert_right(&history(&[read((4, 5), Some(2))]));
        assert_right(&history(&[read((4, 5), Some(1)), read((6, 7), Some(2))]));
        assert_right(&history(&[read((4, 5), Some(1)), put(3, (6, 7), Some(1)), read((8, 9), Some(2))]));
        assert_wrong(&history(&[read((4, 5), Some(2)), put(3, (6, 7), Some(2)), read((8, 9), Some(2))]), 0);
        assert_wrong(&history(&[read((4, 5), Some(2)), read((6, 7), Some(1))]), 0);
        // A removal and a comparison without answers.
        let (remove, compare) = (Action::Remove, Action::CompareAndSet { expected: None, value: 7 });
        assert_right(&history(&[unknown(remove, 3), unknown(compare, 3), read((8, 9), Some(7))]));
        assert_wrong(&history(&[unknown(compare, 3), read((8, 9), Some(7))]), 0);
    }

    /// Detects a lost acknowledged write.
    #[test]
    fn a_lost_write_is_found() {
        let lost = [put(1, (0, 1), None), put(2, (2, 3), Some(1))];
        assert_wrong(&[&lost[..], &[read((4, 5), Some(1))]].concat(), 1);
        assert_wrong(&[&lost[..], &[read((4, 5), None)]].concat(), 2);
        // The value that the next write reports as replaced shows the loss too.
        assert_wrong(&[&lost[..], &[put(3, (4, 5), Some(1))]].concat(), 0);
    }

    /// Detects a read of an old value after another client has read the new one.
    #[test]
    fn a_stale_read_is_found() {
        let write = [put(1, (0, 1), None), put(2, (2, 9), Some(1))];
        assert_right(&[&write[..], &[read((3, 4), Some(1)), read((5, 6), Some(2))]].concat());
        assert_wrong(
            &[&write[..], &[read((3, 4), Some(2)), read((5, 6), Some(1)), read((10, 11), Some(2))]].concat(),
            0,
        );
        assert_wrong(&[&write[..], &[read((10, 11), Some(1)), read((12, 13), Some(2))]].concat(), 0);
    }

    /// Detects a value that no client has written, or that was written only after the read.
    #[test]
    fn a_value_from_nowhere_is_found() {
        assert_wrong(&[put(1, (0, 1), None), read((2, 3), Some(FOREIGN)), read((4, 5), Some(1))], 0);
        assert_wrong(&[put(1, (0, 1), None), read((2, 3), Some(2)), put(2, (4, 5), Some(1))], 0);
        assert_wrong(&[put(1, (0, 1), Some(7)), read((2, 3), Some(1))], 0);
    }

    /// A stale read may find any value that was written before its end, and no other.
    #[test]
    fn a_stale_read_finds_what_was_written() {
        let writes = [put(1, (0, 1), None), put(2, (10, 11), Some(1)), unknown(Action::Put(3), 12)];
        let reads = [read((20, 21), Some(1)), read((13, 14), Some(3)), read((2, 3), None), read((9, 10), Some(2))];
        assert_eq!(foreign_reads(&writes, &reads), 0);
        assert_eq!(foreign_reads(&writes, &[read((2, 3), Some(2)), read((20, 21), Some(FOREIGN))]), 2);
    }

    /// Detects a write that was applied twice, with another client's write in between.
    #[test]
    fn a_write_applied_twice_is_found() {
        assert_wrong(&[put(1, (0, 1), None), put(2, (2, 3), Some(1)), put(3, (4, 5), Some(1))], 0);
        assert_wrong(&[set(None, 1, (0, 1), None), set(None, 2, (2, 3), None), read((4, 5), Some(2))], 0);
        let remove = |times, before| known(3, Action::Remove, times, before);
        assert_wrong(&[put(1, (0, 1), None), remove((2, 3), Some(1)), remove((4, 5), Some(1))], 0);
    }

    /// Detects a compare-and-set that took effect although it found another value.
    #[test]
    fn an_absurd_answer_is_found() {
        let mut absurd = set(Some(1), 3, (2, 3), Some(1));
        absurd.outcome = Outcome::Known { before: Some(2), done: true };
        assert_wrong(&[put(1, (0, 1), None), absurd], 0);
    }

    /// Tries all orders of all operations: those with an answer, and any of the others.
    fn is_explained(history: &[Operation], value: Value, done: &mut Vec<bool>) -> bool {
        let left = || (0..history.len()).filter(|at| !done[*at]);
        if !left().any(|at| history[at].is_known()) {
            return true;
        }
        // An operation may not come after one that began only when it had already ended.
        let first_end = left().filter(|at| history[*at].is_known()).map(|at| history[at].end).min().unwrap_or(u64::MAX);
        let candidates: Vec<usize> = left().filter(|at| history[*at].begin <= first_end).collect();
        candidates.into_iter().any(|at| {
            let operation = &history[at];
            if operation.required().is_some_and(|required| required != value) {
                return false;
            }
            done[at] = true;
            let explained = is_explained(history, operation.written().unwrap_or(value), done);
            done[at] = false;
            explained
        })
    }

    /// The judge agrees with a trial of all orders about short histories, of which many are right and many are wrong.
    #[test]
    fn all_orders_agree_with_the_judge() {
        let mut random = Random(1);
        let (mut right, mut wrong) = (0, 0);
        for _ in 0..20_000 {
            let mut history = Vec::new();
            let count = 2 + random.below(6);
            let value = |random: &mut Random| random.below(3);
            for client in 0..count {
                let maybe = |random: &mut Random| random.chance(60).then(|| random.below(3));
                let action = match random.below(5) {
                    0 => Action::Put(value(&mut random)),
                    1 => Action::Remove,
                    2 => Action::CompareAndSet { expected: maybe(&mut random), value: value(&mut random) },
                    _ => Action::Read,
                };
                let begin = random.below(12);
                let end = begin + random.below(6);
                let mut operation = known(client as u32, action, (begin, end), maybe(&mut random));
                if random.chance(30) {
                    operation.outcome = Outcome::Unknown;
                }
                history.push(operation);
            }
            history.sort_by_key(|operation| operation.begin);
            let expected = is_explained(&history, None, &mut vec![false; history.len()]);
            assert_eq!(judge(&history).violations.is_empty(), expected, "{history:#?}");
            *if expected { &mut right } else { &mut wrong } += 1;
        }
        assert!(right > 1000 && wrong > 1000, "{right} right, {wrong} wrong");
    }

    /// Ten thousand operations of eight clients on one key, a hundred of them without an answer, are judged; and one
    /// wrong answer among them is found.
    #[test]
    fn long_histories_are_judged() {
        let mut random = Random(2);
        let (mut history, mut value, mut time) = (Vec::new(), None, 0);
        // The operations in the order in which they take effect, with begins before and ends after that.
        for number in 0..10_000u64 {
            time += 10;
            let action = match random.below(4) {
                0 => Action::Put(number),
                1 if random.chance(20) => Action::Remove,
                2 => Action::CompareAndSet { expected: value.filter(|_| random.chance(70)), value: number },
                _ => Action::Read,
            };
            let mut operation = known(0, action, (time - random.below(40).min(time), time + random.below(40)), value);
            let has_no_effect = random.one_in(200);
            if !has_no_effect {
                value = operation.written().unwrap_or(value);
            }
            if has_no_effect || random.one_in(200) {
                operation.outcome = Outcome::Unknown;
            }
            history.push(operation);
        }
        assert_right(&history);
        let at = 5000 + history[5000..].iter().position(|read| read.action == Action::Read && read.is_known()).unwrap();
        history[at].outcome = Outcome::Known { before: Some(4), done: true };
        assert_eq!(judge(&history).violations.len(), 1);
    }
}
