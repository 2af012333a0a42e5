//! Dirty pages under a memory limit. The kernel can write shared pages back; without swap, it can't evict private and
//! anonymous pages.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use drumlin_io::AlignedBuffer;
use serde::{Deserialize, Serialize};

use super::{CHANGED, Endings, end_text, of_counts};
use crate::compare::Claim;
use crate::counters;
use crate::figures;
use crate::map::{Map, Mode};
use crate::measure::Sample;
use crate::report::{Chapter, Judgement, Table};
use crate::session::Session;
use crate::temp_folder;
use crate::worker::{Ending, Measurement};

/// The memory limit.
const LIMIT_BYTES: u64 = 64 << 20;
/// The number of bytes that a process dirties under the limit.
const DIRT_BYTES: usize = 160 << 20;

/// The kind of memory that is dirtied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Kind {
    /// `MAP_SHARED` of a file.
    Shared,
    /// `MAP_PRIVATE` of a file.
    Private,
    /// Anonymous memory of the process.
    Anonymous,
    /// A small buffer, repeatedly written to a file with direct writes; the control.
    Written,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Shared, Kind::Private, Kind::Anonymous, Kind::Written];

    fn name(self) -> &'static str {
        match self {
            Kind::Shared => "in MAP_SHARED pages",
            Kind::Private => "in MAP_PRIVATE pages",
            Kind::Anonymous => "in anonymous memory",
            Kind::Written => "by direct writes from 1 MiB",
        }
    }
}

/// Changes more pages than the memory limit allows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    kind: Kind,
}

impl Measurement for Task {
    const NAME: &'static str = "hazards: memory";
    type Result = ();

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<()> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        match self.kind {
            Kind::Shared | Kind::Private => {
                let mode = if self.kind == Kind::Private { Mode::Private } else { Mode::Shared };
                let mut map = Map::new(&file, DIRT_BYTES, mode)?;
                for page in map.chunks_mut(4096) {
                    page[0] = CHANGED;
                }
            }
            Kind::Anonymous => {
                let mut memory = vec![0u8; DIRT_BYTES];
                for page in memory.chunks_mut(4096) {
                    page[0] = CHANGED;
                }
                std::hint::black_box(&memory);
            }
            Kind::Written => {
                let file = temp_folder::open_direct(&self.path, true)?;
                let mut buffer = AlignedBuffer::zeroed(1 << 20);
                buffer.fill(CHANGED);
                for offset in (0..DIRT_BYTES as u64).step_by(buffer.len()) {
                    file.write_all_at(&buffer, offset)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the free swap space, to which private pages could be evicted.
fn swap_bytes() -> u64 {
    counters::field(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default(), "SwapFree:") * 1024
}

pub(super) fn show(session: &Session<'_>, chapter: &mut Chapter, table: &mut Table, rounds: u64) -> io::Result<()> {
    let mut all = [Endings::default(), Endings::default(), Endings::default(), Endings::default()];
    if session.is_limited() {
        session.step("hazards: dirty pages against a memory limit", 4.0);
        let path = super::filled_file(session, "dirt", DIRT_BYTES as u64)?;
        let mut used = [None; 4];
        for _ in 0..rounds {
            for (index, kind) in Kind::ALL.into_iter().enumerate() {
                let (outcome, bytes) = session.job(Task { path: path.clone(), kind }, Some(LIMIT_BYTES))?;
                all[index].push(outcome);
                used[index] = bytes.max(used[index]);
            }
        }
        std::fs::remove_file(path)?;
        for ((kind, found), used) in Kind::ALL.into_iter().zip(&all).zip(used) {
            let Some(first) = found.endings.first() else { continue };
            let end = if matches!(first, Ending::Done(())) { "survived".to_owned() } else { end_text(first) };
            let used = used.map_or(String::new(), |bytes| format!(", {} used at most", figures::bytes(bytes as f64)));
            let (dirt, limit) = (figures::size(DIRT_BYTES as u64), figures::size(LIMIT_BYTES));
            table.row(vec![
                format!("{dirt} changed {}, memory limit {limit}", kind.name()).into(),
                format!("{end}{used}").into(),
            ]);
        }
    }
    CLAIM.put(chapter, &(all, swap_bytes()));
    Ok(())
}

const CLAIM: Claim<([Endings<()>; 4], u64)> = Claim {
    source: "S3",
    text: "More dirty shared pages than memory are fine; private dirty pages and anonymous memory are deadly: they \
           have nowhere to go.",
    judge,
};

/// Judges the rounds of all kinds, given the free swap in bytes.
fn judge((all, swap_bytes): &([Endings<()>; 4], u64)) -> Judgement {
    let lived = |ending: &Ending<()>| matches!(ending, Ending::Done(()));
    let killed = |ending: &Ending<()>| matches!(ending, Ending::Killed(libc::SIGKILL));
    let [shared, private, anonymous, written] = all;
    if shared.endings.is_empty() {
        return Judgement::inconclusive("a control group that makes memory short", "");
    }
    if written.count(lived).seen < written.count(lived).of {
        return Judgement::inconclusive(
            "a control that survives: direct writes from a small buffer did not either",
            "",
        );
    }
    let counts = [shared.count(lived), private.count(killed), anonymous.count(killed)];
    let why = format!(
        "Shared survived {}; private was killed {}, anonymous {}; direct writes survived {}.",
        counts[0],
        counts[1],
        counts[2],
        written.count(lived)
    );
    if counts[1].seen == 0 && *swap_bytes > 0 {
        let swap = figures::bytes(*swap_bytes as f64);
        return Judgement::inconclusive(format!("a limit that counts swap, of which {swap} are free"), why);
    }
    of_counts(&counts, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Holds;

    /// The claim can get every verdict.
    #[test]
    fn dirt_is_judged() {
        let lived = || Endings { endings: vec![Ending::Done(())] };
        let killed = || Endings { endings: vec![Ending::Killed(libc::SIGKILL)] };
        let judged = |all, swap| judge(&(all, swap)).holds;
        assert_eq!(judged([lived(), killed(), killed(), lived()], 0), Holds::Yes);
        assert_eq!(judged([lived(), lived(), lived(), lived()], 0), Holds::Partly);
        assert_eq!(judged([killed(), lived(), lived(), lived()], 0), Holds::No);
        assert_eq!(judged([lived(), lived(), lived(), lived()], 1 << 30), Holds::Inconclusive);
        assert_eq!(judged([lived(), killed(), killed(), killed()], 0), Holds::Inconclusive);
        assert_eq!(judged(Default::default(), 0), Holds::Inconclusive);
    }
}
