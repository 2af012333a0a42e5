//! Mappings larger than memory and swap: which the kernel permits, with and without `MAP_NORESERVE`.
//!
//! Nothing is touched here, so that all are harmless; `hazards` shows what touching them does.

use std::io;

use crate::compare::Claim;
use crate::figures::{self, Form};
use crate::machine::Machine;
use crate::map::{self, Reserve};
use crate::report::{Chapter, Holds, Judgement, Table};
use crate::session::{Session, plain};

/// The kinds of mapping, and whether the kernel made each.
type Found = [(Reserve, Result<(), String>); 5];

pub(super) fn run(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
    session.step("calls: mappings larger than memory", 0.1);
    let bytes = 2 * (machine.memory_bytes + machine.swap_bytes);
    let (path, file) = session.room.file("reserve", 1 << 20)?;
    // A hole: it takes no space.
    let length = file.set_len(bytes);
    let found: Found = Reserve::ALL.map(|kind| {
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
    chapter.tables.push(table);
    CLAIM.put(chapter, &found);
    Ok(())
}

const CLAIM: Claim<Found> = Claim {
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
            // Address space is limited: nothing of this size can be mapped at all.
            _ if found.iter().all(|(_, result)| result.is_err()) => {
                Judgement::cannot_tell("address space for a mapping of this size", why)
            }
            3 => Judgement::new(Holds::Yes, why),
            0 => Judgement::new(Holds::No, why),
            _ => Judgement::new(Holds::Partly, why),
        }
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The claim comes out each way.
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
        assert_eq!(judged([false; 5]), Holds::CannotTell);
    }
}
