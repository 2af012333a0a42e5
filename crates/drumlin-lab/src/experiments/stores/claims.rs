//! S2's claims about stores, each with a pure function that judges it by the figures.

use super::{Calls, Committed, Measured, STORES, cases};
use crate::compare::{Claim, Ratio, Size};
use crate::figures;
use crate::report::{Chapter, Holds, Judgement};

/// The figures of one file system on which the verdicts rest. The figures of a store that is not built in are `None`.
#[derive(Clone, Debug, Default)]
struct Figures {
    place: String,
    /// The rate of eight writers divided by that of one writer.
    nebari_gain: Option<Ratio>,
    drumlin_gain: Option<Ratio>,
    /// Sync calls per commit by one writer.
    nebari_calls: Option<Calls>,
    sled_calls: Option<Calls>,
    /// Sync calls per commit by eight writers.
    drumlin_calls: Option<Calls>,
    /// The mean duration of a SQLite commit with a rollback journal divided by that of a Nebari commit.
    sqlite_to_nebari: Option<Ratio>,
}

/// The names of the stores whose figures are used.
const NEBARI: &str = "Nebari";
const SQLITE: &str = "SQLite, rollback journal";
const SLED: &str = "sled, flush after each";

const PEERS: &str = "the stores of the source (`--features peers` builds them in)";
const COUNTS: &str = "a count of sync calls (the kernel permits no filter)";

impl Figures {
    fn of(measured: &Measured) -> Figures {
        let case = |name: &str, many: bool| {
            let is_it = |case: &super::Case| STORES[case.store].name == name && (case.writers > 1) == many;
            cases().iter().position(is_it)
        };
        let gain = |name: &str| {
            let rate = |result: &Committed| result.load.operations_per_second();
            measured.rounds.ratio(case(name, true)?, case(name, false)?, rate)
        };
        let calls = |name: &str, many: bool| measured.calls[case(name, many)?];
        let mean = |result: &Committed| result.load.latency.mean_us;
        let pair = case(SQLITE, false).zip(case(NEBARI, false));
        Figures {
            place: measured.place.clone(),
            nebari_gain: gain(NEBARI),
            drumlin_gain: gain("Drumlin"),
            nebari_calls: calls(NEBARI, false),
            sled_calls: calls(SLED, false),
            drumlin_calls: calls("Drumlin", true),
            sqlite_to_nebari: pair.and_then(|(sqlite, nebari)| measured.rounds.ratio(sqlite, nebari, mean)),
        }
    }
}

const CLAIMS: [Claim<Figures>; 5] = [
    Claim { source: "S2", text: "Commits to one tree of Nebari queue behind one another.", judge: queue },
    Claim {
        source: "S2",
        text: "A transaction of Nebari costs two syncs: of the tree and of the log.",
        judge: two_syncs,
    },
    Claim {
        source: "S2",
        text: "A commit of SQLite with a rollback journal takes 1.5 times as long as one of Nebari.",
        judge: sqlite_is_slower,
    },
    Claim {
        source: "S2",
        text: "sled's commit in 38.9 us is not durable: it calls sync_file_range, which flushes nothing.",
        judge: sled_flushes_nothing,
    },
    Claim {
        source: "Drumlin",
        text: "One sync for many transactions: writers that commit at once do not queue.",
        judge: shared_syncs,
    },
];

/// Adds the verdicts for one file system. The source used a file system with a journal, so this is ext4 with a journal
/// if that was measured.
pub(super) fn put(chapter: &mut Chapter, measured: &[Measured]) {
    let chosen = measured.iter().find(|each| each.place == "ext4").or(measured.first());
    let Some(chosen) = chosen else { return };
    let figures = Figures::of(chosen);
    for claim in &CLAIMS {
        claim.put(chapter, &figures);
    }
}

/// Judges by the rate of eight writers divided by that of one writer. Below 1.5, writers queue; from 3 on, they do not.
fn queue(figures: &Figures) -> Judgement {
    let Some(gain) = figures.nebari_gain else { return Judgement::inconclusive(PEERS, "") };
    let (low, high) = gain.interval();
    let holds = match () {
        () if high < 1.5 => Holds::Yes,
        () if low >= 3.0 => Holds::No,
        () if low >= 1.5 && high < 3.0 => Holds::Partly,
        () => Holds::Inconclusive,
    };
    gain.judge(holds, format!("Eight writers reach {} the rate of one, on {}.", gain.show(), figures.place))
}

fn two_syncs(figures: &Figures) -> Judgement {
    if figures.nebari_gain.is_none() {
        return Judgement::inconclusive(PEERS, "");
    }
    let Some(calls) = figures.nebari_calls else { return Judgement::inconclusive(COUNTS, "") };
    let count = calls.syncs + calls.durable_writes;
    let holds = match () {
        () if (1.9..2.5).contains(&count) => Holds::Yes,
        () if (1.1..1.9).contains(&count) => Holds::Partly,
        () => Holds::No,
    };
    Judgement::new(holds, format!("Counted for each commit: {}.", calls.show()))
}

fn sqlite_is_slower(figures: &Figures) -> Judgement {
    let Some(ratio) = figures.sqlite_to_nebari else { return Judgement::inconclusive(PEERS, "") };
    let sentence = format!("SQLite's mean is {} Nebari's, on {}.", ratio.show(), figures.place);
    ratio.judge_at_least(Size::of(1.5).from(1.4), sentence)
}

fn sled_flushes_nothing(figures: &Figures) -> Judgement {
    if figures.nebari_gain.is_none() {
        return Judgement::inconclusive(PEERS, "");
    }
    let Some(calls) = figures.sled_calls else { return Judgement::inconclusive(COUNTS, "") };
    let durable = calls.syncs + calls.durable_writes;
    let holds = match () {
        () if calls.ranges >= 0.9 && durable < 0.1 => Holds::Yes,
        () if durable >= 0.9 => Holds::No,
        () => Holds::Partly,
    };
    Judgement::new(holds, format!("Counted for each commit: {}.", calls.show()))
}

/// Judges the rate and the calls. The rate has to grow, and there have to be fewer calls than commits; otherwise the
/// rate has grown for some other reason.
fn shared_syncs(figures: &Figures) -> Judgement {
    let Some(gain) = figures.drumlin_gain else {
        return Judgement::inconclusive("commits by eight writers", "");
    };
    let Some(calls) = figures.drumlin_calls else { return Judgement::inconclusive(COUNTS, "") };
    let each = calls.syncs + calls.durable_writes;
    let shared = if each < 0.75 { Holds::Yes } else { Holds::No };
    let holds = crate::compare::all([gain.at_least(Size::bound(1.5)), shared]);
    let sentence = format!(
        "Eight writers of Drumlin reach {} the rate of one on {}, with {} sync calls a commit.",
        gain.show(),
        figures.place,
        figures::digits(each)
    );
    gain.judge(holds, sentence)
}

#[cfg(test)]
mod tests {
    use Holds::{Inconclusive, No, Partly, Yes};

    use super::*;

    fn ratio(least: f64, median: f64, most: f64) -> Option<Ratio> {
        Some(Ratio { median, least, most, noise: 1.05 })
    }

    /// Writers queue, queue partly, or do not queue. Without Nebari, or with too much noise, the claim is inconclusive.
    #[test]
    fn queueing_comes_out_each_way() {
        let judge = |nebari_gain| queue(&Figures { nebari_gain, ..Figures::default() }).holds;
        assert_eq!(judge(ratio(0.9, 1.0, 1.1)), Yes);
        assert_eq!(judge(ratio(1.7, 2.0, 2.2)), Partly);
        assert_eq!(judge(ratio(3.5, 4.0, 4.2)), No);
        assert_eq!(judge(ratio(1.0, 2.0, 4.2)), Inconclusive);
        assert_eq!(judge(None), Inconclusive);
    }

    /// A commit makes two syncs, one and a half, or one. Without a count, the claim is inconclusive.
    #[test]
    fn two_syncs_come_out_each_way() {
        let calls = |syncs| Some(Calls { syncs, ..Calls::default() });
        let judge = |nebari_calls| {
            two_syncs(&Figures { nebari_gain: ratio(1.0, 1.0, 1.0), nebari_calls, ..Figures::default() }).holds
        };
        assert_eq!((judge(calls(2.0)), judge(calls(1.5))), (Yes, Partly));
        assert_eq!((judge(calls(1.0)), judge(calls(3.0)), judge(None)), (No, No, Inconclusive));
    }

    #[test]
    fn sqlite_comes_out_each_way() {
        let judge = |sqlite_to_nebari| sqlite_is_slower(&Figures { sqlite_to_nebari, ..Figures::default() }).holds;
        assert_eq!((judge(ratio(1.5, 1.6, 1.7)), judge(ratio(1.2, 1.3, 1.35))), (Yes, Partly));
        assert_eq!(
            (judge(ratio(0.5, 0.6, 0.7)), judge(ratio(0.5, 1.3, 1.7)), judge(None)),
            (No, Inconclusive, Inconclusive)
        );
    }

    /// A commit makes a range call without a sync, a range call with a sync, or too few range calls.
    #[test]
    fn sled_comes_out_each_way() {
        let judge = |sled_calls| {
            let nebari_gain = ratio(1.0, 1.0, 1.0);
            sled_flushes_nothing(&Figures { nebari_gain, sled_calls, ..Figures::default() }).holds
        };
        assert_eq!(judge(Some(Calls { ranges: 1.0, ..Calls::default() })), Yes);
        assert_eq!(judge(Some(Calls { ranges: 1.0, syncs: 1.0, ..Calls::default() })), No);
        assert_eq!(judge(Some(Calls { ranges: 0.2, ..Calls::default() })), Partly);
        assert_eq!(judge(None), Inconclusive);
    }

    /// With shared syncs and a higher rate the claim holds, with only one of them it holds partly, and with neither it
    /// fails.
    #[test]
    fn sharing_comes_out_each_way() {
        let judge = |drumlin_gain, syncs| {
            let drumlin_calls = Some(Calls { syncs, ..Calls::default() });
            shared_syncs(&Figures { drumlin_gain, drumlin_calls, ..Figures::default() }).holds
        };
        assert_eq!(judge(ratio(2.0, 2.2, 2.4), 0.3), Yes);
        assert_eq!(judge(ratio(2.0, 2.2, 2.4), 1.0), Partly);
        assert_eq!(judge(ratio(0.9, 1.0, 1.1), 1.0), No);
        assert_eq!(judge(ratio(0.9, 1.4, 2.4), 0.3), Inconclusive);
        assert_eq!(judge(None, 0.3), Inconclusive);
    }
}
