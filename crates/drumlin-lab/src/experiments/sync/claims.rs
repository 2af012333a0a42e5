//! S2's claims about durable writes, each with a pure function that judges it by the figures.

use super::Measured;
use super::method::Method;
use super::power_off::{Left, Run};
use crate::compare::{self, Claim, Ratio, Size};
use crate::experiments::places::{Cache, Place};
use crate::figures;
use crate::mount::FileSystem;
use crate::report::{Chapter, Holds, Judgement};

/// The figures measured on one file system.
#[derive(Clone, Debug, Default)]
pub(super) struct PlaceFigures {
    name: String,
    has_journal: bool,
    /// `true` if the lab created the file system on a device without a volatile cache.
    is_cacheless: bool,
    is_flushed: bool,
    /// The mean duration of an append divided by that of a write into a file that was grown in advance, for 1 KiB and
    /// for 4 KiB.
    append_to_truncated: Option<Ratio>,
    append_to_truncated_blocks: Option<Ratio>,
    /// The mean duration of fdatasync divided by that of sync_file_range, in files that were grown in advance.
    sync_to_range: Option<Ratio>,
    /// Flushes per write by fdatasync and by sync_file_range, in files that were grown in advance.
    sync_flushes: Option<f64>,
    range_flushes: Option<f64>,
    /// The rounds of sync_file_range in files that were grown in advance.
    rounds: Vec<Round>,
    range_writes: u64,
}

/// Latencies of one round in microseconds.
#[derive(Clone, Copy, Debug)]
struct Round {
    mean: f64,
    slowest: f64,
    slowest_batch: f64,
}

/// The figures on which the verdicts rest.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    places: Vec<PlaceFigures>,
    left: Vec<Left>,
}

const CLAIMS: [Claim<Figures>; 10] = [
    Claim {
        source: "S2",
        text: "Growing the file ahead of need halves the mean of a durable append of 1 KiB (2.63 ms to 1.24 ms).",
        judge: growing_ahead,
    },
    Claim {
        source: "S2",
        text: "sync_file_range is several times as fast as fdatasync (6.6 times), because it flushes nothing.",
        judge: range_is_fast,
    },
    Claim {
        source: "S2",
        text: "With the drive's cache off, the advantage of sync_file_range diminishes (from 6.6 times to 1.4).",
        judge: cache_off,
    },
    Claim {
        source: "S2",
        text: "When a virtual machine with ext4 is switched off, sync_file_range keeps records on blocks of real zeros, \
               and loses them on blocks that ftruncate made, at the first run.",
        judge: |figures| zeros(figures, FileSystem::Ext4),
    },
    Claim {
        source: "S2",
        text: "When a virtual machine with xfs is switched off, sync_file_range keeps records on blocks of real zeros, \
               and loses them on blocks that ftruncate made, at the first run.",
        judge: |figures| zeros(figures, FileSystem::Xfs),
    },
    Claim {
        source: "S2",
        text: "On ext4 later runs over the blocks that ftruncate made keep their records.",
        judge: |figures| later_runs(figures, FileSystem::Ext4),
    },
    Claim {
        source: "S2",
        text: "On xfs later runs over the blocks that ftruncate made keep their records.",
        judge: |figures| later_runs(figures, FileSystem::Xfs),
    },
    Claim { source: "S2", text: "On btrfs sync_file_range loses records, zeros or not.", judge: btrfs_loses },
    Claim {
        source: "S2",
        text: "On zfs sync_file_range loses records, zeros or not.",
        judge: |_| Judgement::inconclusive(ZFS, ""),
    },
    Claim {
        source: "S2",
        text: "A mean hides the slow sync, and so does a harness that times batches.",
        judge: means_hide,
    },
];

pub(super) fn put(chapter: &mut Chapter, figures: Figures, left: Vec<Left>) {
    let figures = Figures { left, ..figures };
    for claim in &CLAIMS {
        claim.put(chapter, &figures);
    }
}

impl Figures {
    pub(super) fn of(places: &[Place], measured: &[Measured]) -> Figures {
        let places = places.iter().zip(measured).map(|(place, measured)| PlaceFigures::of(place, measured)).collect();
        Figures { places, left: Vec::new() }
    }

    /// Returns the place most like the source's: the ext4 that the lab created or, failing that, any place with a
    /// journal.
    fn journalled(&self) -> Option<&PlaceFigures> {
        let mut usual = self.places.iter().filter(|place| place.has_journal && !place.is_cacheless);
        usual.clone().find(|place| place.name == "ext4").or_else(|| usual.next())
    }

    fn left_on(&self, file_system: FileSystem) -> Option<&Left> {
        self.left.iter().find(|left| left.file_system == file_system)
    }
}

impl PlaceFigures {
    fn of(place: &Place, measured: &Measured) -> PlaceFigures {
        let range = measured.of(Method::TruncatedRange, 1024);
        let round = |written: &super::Written| Round {
            mean: written.load.latency.mean_us,
            slowest: written.load.latency.max_us,
            slowest_batch: written.batches_max_us(),
        };
        PlaceFigures {
            name: place.name.clone(),
            has_journal: place.has_journal(),
            is_cacheless: place.made.is_some() && place.cache == Cache::None,
            is_flushed: place.cache == Cache::Volatile,
            append_to_truncated: measured.ratio(Method::Append, Method::Truncated, 1024),
            append_to_truncated_blocks: measured.ratio(Method::Append, Method::Truncated, 4096),
            sync_to_range: measured.ratio(Method::Truncated, Method::TruncatedRange, 1024),
            sync_flushes: measured.flushes(Method::Truncated),
            range_flushes: measured.flushes(Method::TruncatedRange),
            rounds: range.map_or_else(Vec::new, |trials| trials.results.iter().map(round).collect()),
            range_writes: range.map_or(0, crate::session::Trials::operations),
        }
    }
}

/// The missing condition if the lab does not run as root.
const JOURNAL: &str = "a file system with a journal (as root the lab makes ext4 and xfs on loop devices)";

/// Judges by S2's factor of 2.1. It compares means, as S2 did: most 1 KiB writes need no new block, so a median would
/// show only those writes.
fn growing_ahead(figures: &Figures) -> Judgement {
    let Some((place, ratio)) = figures.journalled().and_then(|place| Some((place, place.append_to_truncated?))) else {
        return Judgement::inconclusive(JOURNAL, "");
    };
    let mut sentence = format!("On {} an append takes {} as long", place.name, ratio.show());
    if let Some(blocks) = place.append_to_truncated_blocks {
        sentence += &format!("; by whole blocks of 4 KiB {}", blocks.show());
    }
    for other in figures.places.iter().filter(|other| other.name != place.name && !other.is_cacheless) {
        if let Some(ratio) = other.append_to_truncated {
            sentence += &format!("; on {} {}", other.name, ratio.show());
        }
    }
    ratio.judge_at_least(Size::of(2.1).from(1.8), sentence + ".")
}

/// Judges "several times" as at least twice. The cause is part of the claim, so the flushes must differ too.
fn range_is_fast(figures: &Figures) -> Judgement {
    let place = figures.journalled().or(figures.places.first());
    let Some((place, ratio)) = place.and_then(|place| Some((place, place.sync_to_range?))) else {
        return Judgement::inconclusive("writes by both methods", "");
    };
    let mut sentence = format!("On {} fdatasync takes {} as long", place.name, ratio.show());
    let (Some(sync), Some(range)) = (place.sync_flushes, place.range_flushes) else {
        return Judgement::inconclusive("a count of the device's flushes (Linux 5.5)", sentence + ".");
    };
    sentence += &format!(", with {} flushes a write against {}.", figures::digits(sync), figures::digits(range));
    if !place.is_flushed || sync < 0.5 {
        return Judgement::inconclusive("a device whose cache the kernel flushes, and counts", sentence);
    }
    let cause = if range < 0.1 * sync { Holds::Yes } else { Holds::No };
    ratio.judge(compare::all([ratio.at_least(Size::of(6.6).from(2.0)), cause]), sentence)
}

/// Judges the advantage when the cache is off. S2's factor fell from 6.6 to 1.4, so a sixth of the effect remained. An
/// advantage counts as diminished if it is certainly smaller, by at least a third of the effect.
fn cache_off(figures: &Figures) -> Judgement {
    let off = figures.places.iter().find(|place| place.is_cacheless).and_then(|place| place.sync_to_range);
    let Some(off) = off else {
        return Judgement::inconclusive("a device without a volatile cache (as root the lab makes one)", "");
    };
    let Some(on) = figures.journalled().and_then(|place| place.sync_to_range) else {
        return Judgement::inconclusive(JOURNAL, "");
    };
    let sentence = format!(
        "fdatasync takes {} as long as sync_file_range on ext4 without a volatile cache, {} with one.",
        off.show(),
        on.show()
    );
    match on.at_least(Size::bound(1.5)) {
        Holds::Yes => {}
        Holds::Inconclusive => return on.judge(Holds::Inconclusive, sentence),
        _ => return Judgement::inconclusive("an advantage with the cache on", sentence),
    }
    let ((off_low, off_high), (on_low, on_high)) = (off.interval(), on.interval());
    let is_smaller = off_high < on_low;
    let left = |off: f64, on: f64| off.ln() / on.ln();
    match () {
        () if is_smaller && left(off.median, on.median) <= 2.0 / 3.0 => Judgement::new(Holds::Yes, sentence),
        () if left(off_low, on_high) > 2.0 / 3.0 => {
            Judgement::new(if is_smaller { Holds::NotInSize } else { Holds::No }, sentence)
        }
        () if is_smaller => Judgement::new(Holds::Partly, sentence),
        () => off.judge(Holds::Inconclusive, sentence),
    }
}

/// The missing condition if a file system could not be powered off.
fn power_off(file_system: FileSystem) -> String {
    format!(
        "{name} that can be switched off (as root the lab makes one on a loop device, with mkfs.{name} of {})",
        file_system.package(),
        name = file_system.name()
    )
}

const ZFS: &str = "zfs: Linux has none of its own, and the lab makes no pools";
const SOUND: &str = "a power-off that loses what was never synced and keeps what was";

/// Formats a share of records.
fn percent(share: f64) -> String {
    figures::Form::Share.show(share)
}

fn zeros(figures: &Figures, file_system: FileSystem) -> Judgement {
    let Some(left) = figures.left_on(file_system) else { return Judgement::inconclusive(power_off(file_system), "") };
    let [filled, new] = [Method::FilledRange, Method::TruncatedRange].map(|method| left.share(Run::First, method));
    let sentence = format!("{} left on zeros, {} on new blocks.", percent(filled), percent(new));
    if !left.is_sound(Run::First) {
        return Judgement::inconclusive(SOUND, sentence);
    }
    Judgement::new(compare::all([Holds::of(filled == 1.0), Holds::of(new < 1.0)]), sentence)
}

/// Judges several runs over the same blocks. S2 lost records in the first run, sometimes in the second, and never
/// later. If the second run still loses records but a run after a write-back of the metadata does not, the cause is the
/// metadata, not the number of runs.
fn later_runs(figures: &Figures, file_system: FileSystem) -> Judgement {
    let Some(left) = figures.left_on(file_system) else { return Judgement::inconclusive(power_off(file_system), "") };
    let [first, second, settled] = Run::ALL.map(|run| left.share(run, Method::TruncatedRange));
    let sentence = format!(
        "{} left of the first run, {} of a second right after it, {} of one after the metadata of these blocks were \
         written back.",
        percent(first),
        percent(second),
        percent(settled)
    );
    match () {
        () if !Run::ALL.iter().all(|run| left.is_sound(*run)) => Judgement::inconclusive(SOUND, sentence),
        () if first == 1.0 => Judgement::inconclusive("a first run that loses records", sentence),
        () => Judgement::new(compare::all([Holds::of(second == 1.0), Holds::of(settled == 1.0)]), sentence),
    }
}

fn btrfs_loses(figures: &Figures) -> Judgement {
    let Some(left) = figures.left_on(FileSystem::Btrfs) else {
        return Judgement::inconclusive(power_off(FileSystem::Btrfs), "");
    };
    let of = |method| Run::ALL.map(|run| left.share(run, method));
    let [filled, new] = [Method::FilledRange, Method::TruncatedRange].map(of);
    let each = |shares: [f64; 3]| shares.map(percent).join(", ");
    let sentence = format!("Of three runs {} left on zeros, {} on new blocks.", each(filled), each(new));
    if !Run::ALL.iter().all(|run| left.is_sound(*run)) {
        return Judgement::inconclusive(SOUND, sentence);
    }
    let parts = filled.into_iter().chain(new).map(|share| Holds::of(share < 1.0));
    Judgement::new(compare::all(parts), sentence)
}

/// The minimum number of writes for a 99.9th percentile, so that one slow sync in a thousand shows up.
const WRITES_MIN: u64 = 5000;

/// Judges the claim that the mean hides slow writes. S2's slowest sync_file_range took 15 times the mean. A slow write
/// counts as hidden if it takes at least five times the mean of all writes and more than twice the mean of the slowest
/// batch. All rounds must agree.
fn means_hide(figures: &Figures) -> Judgement {
    let place = figures.journalled().or(figures.places.first());
    let Some(place) = place.filter(|place| !place.rounds.is_empty()) else {
        return Judgement::inconclusive("writes by sync_file_range", "");
    };
    let us = figures::micros;
    let middle = |of: fn(&Round) -> f64| crate::measure::median(place.rounds.iter().map(of).collect());
    let sentence = format!(
        "sync_file_range on {}: mean {}, slowest batch {}, slowest write {} (medians of the rounds).",
        place.name,
        us(middle(|round| round.mean)),
        us(middle(|round| round.slowest_batch)),
        us(middle(|round| round.slowest))
    );
    if place.range_writes < WRITES_MIN || place.rounds.iter().any(|round| round.slowest_batch == 0.0) {
        let missing = format!(
            "{} writes; there were {}",
            figures::count(WRITES_MIN as f64),
            figures::count(place.range_writes as f64)
        );
        return Judgement::inconclusive(missing, sentence);
    }
    let judge = |round: &Round| {
        let by_mean = Holds::of(round.slowest >= 5.0 * round.mean);
        compare::all([by_mean, Holds::of(round.slowest_batch < 0.5 * round.slowest)])
    };
    let rounds: Vec<Holds> = place.rounds.iter().map(judge).collect();
    if rounds.iter().any(|holds| *holds != rounds[0]) {
        return Judgement::inconclusive("rounds that agree", sentence);
    }
    Judgement::new(rounds[0], sentence)
}

#[cfg(test)]
mod tests {
    use Holds::{Inconclusive, No, NotInSize, Partly, Yes};

    use super::super::power_off::METHODS;
    use super::*;

    fn ratio(median: f64) -> Option<Ratio> {
        Some(Ratio { median, least: median * 0.97, most: median * 1.03, noise: 1.02 })
    }

    fn ext4() -> PlaceFigures {
        PlaceFigures { name: "ext4".to_owned(), has_journal: true, is_flushed: true, ..PlaceFigures::default() }
    }

    fn with(places: Vec<PlaceFigures>) -> Figures {
        Figures { places, left: Vec::new() }
    }

    /// Growing the file in advance halves the mean, reduces it by less, or does not reduce it. Without a journal, the
    /// claim is inconclusive.
    #[test]
    fn growing_ahead_comes_out_each_way() {
        let judge = |factor| growing_ahead(&with(vec![PlaceFigures { append_to_truncated: factor, ..ext4() }])).holds;
        assert_eq!((judge(ratio(2.1)), judge(ratio(1.4)), judge(ratio(1.0))), (Yes, Partly, No));
        assert_eq!(judge(Some(Ratio { median: 1.5, least: 0.9, most: 2.5, noise: 1.1 })), Inconclusive);
        let bare = PlaceFigures { append_to_truncated: ratio(2.1), has_journal: false, ..ext4() };
        assert_eq!(growing_ahead(&with(vec![bare])).missing.as_deref(), Some(JOURNAL));
    }

    /// The claim holds if the range call is faster and does not flush. It holds partly if the call flushes. On a device
    /// that counts no flushes, the claim is inconclusive.
    #[test]
    fn a_range_comes_out_each_way() {
        let judge = |factor, sync, range| {
            let place =
                PlaceFigures { sync_to_range: ratio(factor), sync_flushes: sync, range_flushes: range, ..ext4() };
            range_is_fast(&with(vec![place])).holds
        };
        assert_eq!(judge(6.6, Some(1.2), Some(0.0)), Yes);
        assert_eq!(judge(6.6, Some(1.2), Some(1.2)), Partly);
        assert_eq!(judge(1.3, Some(1.2), Some(0.0)), Partly);
        assert_eq!(judge(1.0, Some(1.2), Some(1.2)), No);
        assert_eq!(judge(6.6, Some(0.0), Some(0.0)), Inconclusive);
        assert_eq!(judge(6.6, None, None), Inconclusive);
    }

    /// The advantage diminishes, diminishes slightly, or remains. If there is no advantage, the claim is inconclusive.
    #[test]
    fn the_cache_comes_out_each_way() {
        let judge = |off, on| {
            let on = PlaceFigures { sync_to_range: on, ..ext4() };
            let off =
                PlaceFigures { name: "ext4, cache off".to_owned(), is_cacheless: true, sync_to_range: off, ..ext4() };
            cache_off(&with(vec![on, off])).holds
        };
        // S2's own figures, and those of an example report.
        assert_eq!(judge(ratio(1.36), ratio(6.58)), Yes);
        let example = |median, least, most| Some(Ratio { median, least, most, noise: 1.02 });
        assert_eq!(judge(example(1.41, 1.40, 2.33), example(2.87, 2.59, 3.13)), Yes);
        assert_eq!((judge(ratio(1.0), ratio(6.6)), judge(ratio(5.0), ratio(6.6))), (Yes, NotInSize));
        assert_eq!((judge(ratio(6.5), ratio(6.6)), judge(ratio(9.0), ratio(6.6))), (No, No));
        assert_eq!(judge(example(3.8, 2.0, 4.0), ratio(6.6)), Partly);
        assert_eq!(judge(example(3.0, 1.5, 7.0), ratio(6.6)), Inconclusive);
        assert_eq!(judge(ratio(1.0), ratio(1.1)), Inconclusive);
        assert_eq!(cache_off(&with(vec![ext4()])).holds, Inconclusive);
    }

    /// Returns the shares of records that remain: on zeros, the same share for all runs; on new blocks, a share for
    /// each run.
    fn left(file_system: FileSystem, filled: f64, new: [f64; 3]) -> Left {
        let of_run = |new| {
            METHODS.map(|method| match method {
                Method::FilledRange => filled,
                Method::TruncatedRange => new,
                Method::Buffered => 0.0,
                _ => 1.0,
            })
        };
        Left { file_system, shares: new.map(|new| of_run(new).to_vec()) }
    }

    fn after(left: Left) -> Figures {
        Figures { places: Vec::new(), left: vec![left] }
    }

    /// Zeros keep records and new blocks lose them, which confirms the claim; only one of the two is the case, which
    /// confirms it partly; or the opposite of both is. If a power-off loses synced records, the claim is inconclusive.
    /// A file system that was not available is reported, whatever the other file system showed.
    #[test]
    fn zeros_come_out_each_way() {
        for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
            let judge = |filled, new| zeros(&after(left(file_system, filled, [new; 3])), file_system).holds;
            assert_eq!((judge(1.0, 0.005), judge(1.0, 1.0), judge(0.5, 1.0)), (Yes, Partly, No));
            let mut unsound = left(file_system, 1.0, [0.0; 3]);
            unsound.shares[0][0] = 0.9;
            assert_eq!(zeros(&after(unsound), file_system).holds, Inconclusive);
        }
        let ext4_alone = after(left(FileSystem::Ext4, 1.0, [0.005; 3]));
        let of_xfs = CLAIMS.iter().filter(|claim| claim.text.contains("xfs"));
        let missing: Vec<_> = of_xfs.map(|claim| (claim.judge)(&ext4_alone).missing.unwrap_or_default()).collect();
        assert!(missing.len() == 2 && missing.iter().all(|missing| missing.contains("xfsprogs")), "{missing:?}");
    }

    /// All later runs keep records, only the run after a write-back of the metadata does, or no run does. If the first
    /// run loses no records, there is nothing to compare. Later power-offs must be sound too.
    #[test]
    fn later_runs_come_out_each_way() {
        let judge = |new| later_runs(&after(left(FileSystem::Ext4, 1.0, new)), FileSystem::Ext4).holds;
        assert_eq!((judge([0.005, 1.0, 1.0]), judge([0.005, 0.005, 1.0]), judge([0.0; 3])), (Yes, Partly, No));
        assert_eq!(judge([1.0; 3]), Inconclusive);
        let mut unsound = left(FileSystem::Ext4, 1.0, [0.0, 1.0, 1.0]);
        unsound.shares[2][0] = 0.9;
        assert_eq!(later_runs(&after(unsound), FileSystem::Ext4).holds, Inconclusive);
    }

    #[test]
    fn btrfs_comes_out_each_way() {
        let judge = |filled, new| btrfs_loses(&after(left(FileSystem::Btrfs, filled, [new; 3]))).holds;
        assert_eq!((judge(0.0, 0.0), judge(1.0, 0.0), judge(1.0, 1.0)), (Yes, Partly, No));
        assert!(btrfs_loses(&Figures::default()).missing.unwrap().contains("btrfs-progs"));
    }

    /// Slow writes are hidden by the mean and the batches, by the mean alone, or not at all. If there are too few
    /// writes, or if rounds differ, the claim is inconclusive.
    #[test]
    fn hiding_comes_out_each_way() {
        let round = |slowest, slowest_batch| Round { mean: 100.0, slowest, slowest_batch };
        let judge = |rounds: &[Round], range_writes| {
            means_hide(&with(vec![PlaceFigures { rounds: rounds.to_vec(), range_writes, ..ext4() }])).holds
        };
        assert_eq!(judge(&[round(2000.0, 150.0); 3], 5000), Yes);
        assert_eq!(judge(&[round(2000.0, 1900.0); 3], 5000), Partly);
        assert_eq!(judge(&[round(120.0, 110.0); 3], 5000), No);
        assert_eq!(judge(&[round(2000.0, 150.0); 3], 999), Inconclusive);
        assert_eq!(judge(&[round(2000.0, 150.0), round(120.0, 110.0)], 5000), Inconclusive);
    }
}
