//! Mappings larger than memory and swap: does the kernel permit them, with and without `MAP_NORESERVE`?
//!
//! The mappings are never touched, so they are harmless; `hazards` shows the consequences of touching them. In S3's
//! other scenario, two processes each reserve a mapping smaller than memory and swap, but together exceed them. The
//! kernel permits both. To show the consequence, both processes touch such mappings under the memory limit of a control
//! group.

use std::io;

use serde::{Deserialize, Serialize};

use crate::compare::Claim;
use crate::figures::{self, Form};
use crate::machine::Machine;
use crate::map::{self, Reserve};
use crate::measure::Sample;
use crate::report::{Chapter, Holds, Judgement, Table};
use crate::session::{Session, plain};
use crate::worker::{self, Ending, Measurement};

/// The group's memory limit. It stands in for the machine's memory and swap.
const LIMIT_BYTES: u64 = 64 << 20;
/// The share of the limit that each of the two processes occupies.
const PART: f64 = 0.7;

/// The kinds of mapping. A kind that the kernel did not permit has the kernel's error.
type Findings = [(Reserve, Result<(), String>); 5];

pub(super) fn run(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
    session.step("calls: mappings larger than memory", 0.1);
    let bytes = 2 * (machine.memory_bytes + machine.swap_bytes);
    let (path, file) = session.temp_folder.file("reserve", 1 << 20)?;
    // The file is sparse, so it occupies no space.
    let length = file.set_len(bytes);
    let found: Findings = Reserve::ALL.map(|kind| {
        let result = match &length {
            Err(error) if kind.is_of_file() => Err(plain(error)),
            _ => map::attempt(&file, bytes as usize, kind).map_err(|error| plain(&error)),
        };
        (kind, result)
    });
    std::fs::remove_file(path)?;
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    let mut table = Table::new(
        format!(
            "Mapping twice the memory and swap, {}, untouched (vm.overcommit_memory {})",
            figures::bytes(bytes as f64),
            mode.trim()
        ),
        &[("", Form::Text), ("the kernel", Form::Text)],
    );
    for (kind, result) in &found {
        let text = result.as_ref().map_or_else(|error| format!("refused: {error}"), |()| "permits it".to_owned());
        table.row(vec![kind.name().into(), text.into()]);
    }
    let shared = Shared::measure(session, machine)?;
    for (name, text) in shared.end_texts() {
        table.row(vec![name.into(), text.into()]);
    }
    chapter.tables.push(table);
    CLAIM.put(chapter, &found);
    NO_GUARANTEE.put(chapter, &shared);
    Ok(())
}

/// Reserves memory, and touches all of it if `touch` is set.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    bytes: usize,
    touch: bool,
    /// Starts a second process in the same group, which reserves and touches as much while this process holds its
    /// memory.
    with_other: bool,
}

impl Measurement for Task {
    const NAME: &'static str = "calls: reserve";
    /// `false` if the second process was killed.
    type Result = bool;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<bool> {
        let mut memory = reserved(self.bytes)?;
        if self.touch {
            memory.resize(self.bytes, 1);
        }
        let lives = if self.with_other {
            let other = worker::run(Task { with_other: false, ..self }, None, &|| false)?;
            !matches!(other.ending, Ending::Killed(_))
        } else {
            true
        };
        std::hint::black_box(&memory);
        Ok(lives)
    }
}

/// Reserves anonymous memory without touching it and without `MAP_NORESERVE`, as allocators do.
fn reserved(bytes: usize) -> io::Result<Vec<u8>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    Ok(memory)
}

/// The results for two processes that each stay below a limit, but together exceed it.
#[derive(Debug, Default)]
struct Shared {
    /// For each of the two processes, `true` if the kernel let it map its share of the machine's memory and swap.
    permitted: [bool; 2],
    /// Rounds in a control group. In `alone` rounds there was one process, which survived `survived` of them. In `both`
    /// rounds there were two, one of which was killed in `killed` of them.
    alone: usize,
    survived: usize,
    both: usize,
    killed: usize,
    has_swap: bool,
}

impl Shared {
    fn measure(session: &Session<'_>, machine: &Machine) -> io::Result<Shared> {
        let bytes = ((machine.memory_bytes + machine.swap_bytes) as f64 * PART) as usize;
        let mut shared = Shared { has_swap: machine.swap_bytes > 0, ..Shared::default() };
        if let Ok(first) = reserved(bytes) {
            let (other, _) = session.job(Task { bytes, touch: false, with_other: false }, None)?;
            shared.permitted = [true, matches!(other.ending, Ending::Done(_))];
            std::hint::black_box(&first);
        }
        if !session.is_limited() {
            return Ok(shared);
        }
        for _ in 0..session.pacing.rounds {
            session.step("calls: two processes that reserve memory", 0.1);
            let task = Task { bytes: (LIMIT_BYTES as f64 * PART) as usize, touch: true, with_other: false };
            let (alone, _) = session.job(task, Some(LIMIT_BYTES))?;
            shared.alone += 1;
            shared.survived += usize::from(matches!(alone.ending, Ending::Done(true)));
            let (both, _) = session.job(Task { with_other: true, ..task }, Some(LIMIT_BYTES))?;
            shared.both += 1;
            shared.killed += usize::from(matches!(both.ending, Ending::Done(false) | Ending::Killed(libc::SIGKILL)));
        }
        Ok(shared)
    }

    /// Returns the rows of the table.
    fn end_texts(&self) -> [(String, String); 2] {
        let part = Form::Share.show(PART);
        let second = match self.permitted {
            [false, _] => "the first is refused",
            [true, false] => "the second is refused",
            [true, true] => "the kernel permits both",
        };
        let limit = figures::size(LIMIT_BYTES);
        let end = match self.both {
            0 => "not shown: no control group".to_owned(),
            both => format!(
                "one is killed ({} of {both}); alone it lives ({} of {})",
                self.killed, self.survived, self.alone
            ),
        };
        [
            (format!("two processes, anonymous memory, {part} of memory and swap each"), second.to_owned()),
            (format!("two that touch theirs, {part} of a limit of {limit} each"), end),
        ]
    }
}

const CLAIM: Claim<Findings> = Claim {
    source: "S3",
    text: "More than memory and swap can be mapped if it is a shared file; private and anonymous memory only with \
           MAP_NORESERVE.",
    judge: |found| {
        let is_permitted = |kind: Reserve| found.iter().any(|(each, result)| *each == kind && result.is_ok());
        let parts = [
            is_permitted(Reserve::SharedFile),
            !is_permitted(Reserve::PrivateFile) && !is_permitted(Reserve::Anonymous),
            is_permitted(Reserve::PrivateFileUnreserved) && is_permitted(Reserve::AnonymousUnreserved),
        ];
        let kinds = found.iter().filter(|(_, result)| result.is_ok()).map(|(kind, _)| kind.name());
        let why = format!("Permitted: {}.", kinds.collect::<Vec<_>>().join("; "));
        match parts.iter().filter(|part| **part).count() {
            // The address space is limited, so no mapping of this size is possible at all.
            _ if found.iter().all(|(_, result)| result.is_err()) => {
                Judgement::inconclusive("address space for a mapping of this size", why)
            }
            3 => Judgement::new(Holds::Yes, why),
            0 => Judgement::new(Holds::No, why),
            _ => Judgement::new(Holds::Partly, why),
        }
    },
};

const NO_GUARANTEE: Claim<Shared> = Claim {
    source: "S3",
    text: "Even memory that is reserved is not guaranteed: two processes may each map less than there is, and more \
           together.",
    judge: |shared| {
        let [(_, permitted), (_, end)] = shared.end_texts();
        let why = format!("{} of memory and swap each: {permitted}. Against a limit: {end}.", Form::Share.show(PART));
        match shared.permitted {
            [false, _] => return Judgement::inconclusive("address space for most of the memory", why),
            // With strict overcommit accounting, the kernel refuses memory that it can't guarantee.
            [true, false] => return Judgement::new(Holds::No, why),
            [true, true] => {}
        }
        match () {
            () if shared.both == 0 => Judgement::inconclusive("a control group that makes memory short", why),
            () if shared.survived < shared.alone => {
                Judgement::inconclusive("a control that lives: one alone did not", why)
            }
            () if shared.killed == shared.both => Judgement::new(Holds::Yes, why),
            () if shared.has_swap => Judgement::inconclusive("a limit that counts swap", why),
            () if shared.killed == 0 => Judgement::new(Holds::No, why),
            () => Judgement::new(Holds::Partly, why),
        }
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    /// A killed process, a surviving process and a refused mapping each lead to the right verdict. If even the process
    /// that runs alone dies, the verdict is inconclusive.
    #[test]
    fn guarantees_are_judged() {
        let found =
            |permitted, survived, killed| Shared { permitted, alone: 3, survived, both: 3, killed, has_swap: false };
        let judge = |shared: &Shared| (NO_GUARANTEE.judge)(shared).holds;
        assert_eq!(judge(&found([true, true], 3, 3)), Holds::Yes);
        assert_eq!(judge(&found([true, true], 3, 1)), Holds::Partly);
        assert_eq!(judge(&found([true, true], 3, 0)), Holds::No);
        assert_eq!(judge(&found([true, false], 3, 3)), Holds::No);
        assert_eq!(judge(&found([true, true], 2, 3)), Holds::Inconclusive);
        assert_eq!(judge(&Shared { has_swap: true, ..found([true, true], 3, 0) }), Holds::Inconclusive);
        assert_eq!(judge(&Shared { both: 0, alone: 0, ..found([true, true], 0, 0) }), Holds::Inconclusive);
        assert_eq!(judge(&Shared::default()), Holds::Inconclusive);
    }

    /// Reserved memory occupies no physical memory until it is touched.
    #[test]
    fn reserving_touches_nothing() {
        // Other tests of this process allocate memory too.
        let before = crate::counters::resident_bytes();
        let memory = reserved(2 << 30).unwrap();
        assert!(crate::counters::resident_bytes() < before + (1 << 30));
        assert!(memory.capacity() >= 2 << 30 && reserved(usize::MAX / 2).is_err());
        assert!(Task { bytes: 1 << 20, touch: true, with_other: false }.perform(|_| {}).unwrap());
    }

    /// The claim can get every verdict.
    #[test]
    fn reservations_are_judged() {
        let judged = |permitted: [bool; 5]| {
            let mut index = 0;
            let found = Reserve::ALL.map(|kind| {
                index += 1;
                (kind, if permitted[index - 1] { Ok(()) } else { Err("no memory".to_owned()) })
            });
            (CLAIM.judge)(&found).holds
        };
        assert_eq!(judged([true, false, true, false, true]), Holds::Yes);
        assert_eq!(judged([true, true, true, true, true]), Holds::Partly);
        assert_eq!(judged([false, true, false, true, false]), Holds::No);
        assert_eq!(judged([false; 5]), Holds::Inconclusive);
    }
}
