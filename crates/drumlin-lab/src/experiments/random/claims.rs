//! The sources' claims about random reads, each judged by a pure function.

use super::{
    BEYOND_BUFFERED, BEYOND_DIRECT, BLOCK_BYTES, DIRECT, MAPPED, NORMAL, SEQUENTIAL, WITHIN_BUFFERED, WITHIN_DIRECT,
};
use crate::compare::{self, Claim, Ratio, Size, Spread, at_least, measured};
use crate::figures::{self, Form};
use crate::measure::{Load, Sample, median};
use crate::regime::Regime;
use crate::report::{Chapter, Holds, Judgement};
use crate::session::{Rounds, Turns};

/// The figures of a run that claims are judged by; `None` is not measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// Regimes that could not be had, each with the condition that is missing.
    pub(super) missing: Vec<(Regime, String)>,
    is_virtual: bool,
    /// The least fifth of each direct run on the raw device, over the run's median.
    steadiness: Option<Spread>,
    /// Device reads a second of direct reads over those of mapped ones, in the second half, by regime.
    direct_over_mapped: Vec<(Regime, Ratio)>,
    /// Device reads a second of direct reads, by regime.
    direct_rates: Vec<(Regime, f64)>,
    /// The least sample of mapped reads over their second half, with the machine short of memory.
    collapse: Option<Spread>,
    /// The share of pages that the kernel's own thread took back there.
    kswapd_share: Option<f64>,
    random_over_normal: Option<Ratio>,
    random_over_sequential: Option<Ratio>,
    /// The same on the plain file, with the machine's own read-ahead.
    own_window: Option<(Ratio, Ratio)>,
    shootdowns_mapped: Option<Spread>,
    shootdowns_direct: Option<Spread>,
    cached_over_direct: Option<Ratio>,
    within_over_beyond: Option<Ratio>,
    beyond_over_buffered: Option<Ratio>,
    /// The share of buffered reads beyond memory that the page cache answered.
    hits: Option<f64>,
}

/// Blocks a second that came from the device.
pub(super) fn device_reads_per_second(load: &Load) -> f64 {
    load.counters.device_read_bytes as f64 / BLOCK_BYTES as f64 / load.seconds.max(1e-9)
}

/// Device reads a second in the second half of each turn.
fn late_device_rates(turns: &Turns<Load>) -> Vec<f64> {
    turns
        .results
        .iter()
        .zip(&turns.samples)
        .map(|(load, samples)| late_rate(samples) * load.read_amplification())
        .collect()
}

/// Reads a second in the second half of a run.
pub(super) fn late_rate(samples: &[Sample]) -> f64 {
    let end = samples.last().map_or(0.0, |sample| sample.at_seconds);
    let late = samples.iter().filter(|sample| sample.at_seconds > end / 2.0);
    let rates: Vec<f64> = late.map(|sample| sample.operations_per_second).collect();
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

/// The least mean rate of a fifth of the run, over the median of its samples.
fn steadiness(samples: &[Sample]) -> f64 {
    let rates: Vec<f64> = samples.iter().map(|sample| sample.operations_per_second).collect();
    let fifths = rates.chunks(rates.len().div_ceil(5).max(1)).map(|part| part.iter().sum::<f64>() / part.len() as f64);
    fifths.fold(f64::INFINITY, f64::min) / median(rates).max(1e-9)
}

/// The least sample over the rate of the second half.
fn lowest_share(samples: &[Sample]) -> f64 {
    let lowest = samples.iter().map(|sample| sample.operations_per_second).fold(f64::INFINITY, f64::min);
    lowest / late_rate(samples).max(1e-9)
}

fn spread_of(turns: &Turns<Load>, figure: fn(&[Sample]) -> f64) -> Option<Spread> {
    let figures: Vec<f64> = turns.samples.iter().map(|samples| figure(samples)).collect();
    Spread::of(&figures).filter(|spread| spread.most.is_finite())
}

/// TLB shootdowns a read.
pub(super) fn shootdowns(load: &Load) -> f64 {
    load.counters.interrupt("TLB") as f64 / load.operations.max(1) as f64
}

impl Figures {
    pub(super) fn new(is_virtual: bool) -> Figures {
        Figures { is_virtual, ..Figures::default() }
    }

    /// Adds what a regime's courses showed.
    pub(super) fn add_courses(&mut self, regime: Regime, rounds: &Rounds<Load>) {
        let noise = rounds.noise(device_reads_per_second);
        let [direct, mapped] = [DIRECT, MAPPED].map(|index: usize| late_device_rates(&rounds[index]));
        self.direct_over_mapped.extend(Ratio::of(&direct, &mapped, noise).map(|ratio| (regime, ratio)));
        self.direct_rates.extend(rounds[DIRECT].median(device_reads_per_second).map(|rate| (regime, rate)));
        let reads = |left, right| rounds.ratio(left, right, Load::operations_per_second);
        match regime {
            Regime::Device => {
                self.steadiness = spread_of(&rounds[DIRECT], steadiness);
                self.random_over_normal = reads(MAPPED, NORMAL);
                self.random_over_sequential = reads(MAPPED, SEQUENTIAL);
                self.shootdowns_mapped = rounds[MAPPED].spread(shootdowns);
                self.shootdowns_direct = rounds[DIRECT].spread(shootdowns);
            }
            Regime::File => self.own_window = reads(MAPPED, NORMAL).zip(reads(MAPPED, SEQUENTIAL)),
            Regime::Memory => {}
            Regime::Pressure => {
                self.collapse = spread_of(&rounds[MAPPED], lowest_share);
                let pages = |of: fn(&Load) -> u64| rounds[MAPPED].results.iter().map(of).sum::<u64>() as f64;
                let kswapd = pages(|load| load.counters.kswapd_pages);
                let all = kswapd + pages(|load| load.counters.direct_reclaim_pages);
                self.kswapd_share = (all > 0.0).then(|| kswapd / all);
            }
        }
    }

    /// Adds what S4's ranges showed.
    pub(super) fn add_ranges(&mut self, rounds: &Rounds<Load>) {
        let rate = |left, right| rounds.ratio(left, right, Load::operations_per_second);
        self.cached_over_direct = rate(WITHIN_BUFFERED, WITHIN_DIRECT);
        self.within_over_beyond = rate(WITHIN_DIRECT, BEYOND_DIRECT);
        self.beyond_over_buffered = rate(BEYOND_DIRECT, BEYOND_BUFFERED);
        self.hits = rounds[BEYOND_BUFFERED].median(|load| (1.0 - load.read_amplification()).max(0.0));
    }

    fn missing(&self, regime: Regime) -> Option<&str> {
        self.missing.iter().find(|(each, _)| *each == regime).map(|(_, missing)| missing.as_str())
    }

    fn fall(&self, regime: Regime) -> Option<Ratio> {
        self.direct_over_mapped.iter().find(|(each, _)| *each == regime).map(|(_, ratio)| *ratio)
    }

    fn direct_rate(&self, regime: Regime) -> Option<f64> {
        self.direct_rates.iter().find(|(each, _)| *each == regime).map(|(_, rate)| *rate)
    }

    /// The sentence on mapped and direct reads in a regime.
    fn told(&self, regime: Regime, ratio: Ratio) -> String {
        let rate = self.direct_rate(regime).map_or(String::new(), |rate| format!(" ({}/s)", Form::Rate.show(rate)));
        format!("In the second half direct reads{rate} brought {} as much from the device.", ratio.show())
    }
}

/// A fall to half is taken as seen from 1.6 times on.
const HALF: Size = Size::of(2.0).from(1.6);

/// Judges figures of rounds against a bound: all below it hold the claim, all above refute it.
fn below(spread: Spread, bound: f64, told: String) -> Judgement {
    match () {
        () if spread.most < bound => Judgement::new(Holds::Yes, told),
        () if spread.least >= bound => Judgement::new(Holds::No, told),
        () => Judgement::cannot_tell("a quieter machine (the rounds do not agree)", told),
    }
}

const CLAIMS: [Claim<Figures>; 10] = [
    Claim {
        source: "S1",
        text: "Direct reads keep a steady rate.",
        judge: |figures| {
            measured(figures.steadiness, figures.missing(Regime::Device), |least| {
                let told = format!("The least fifth of a run had {} of its median.", least.show(Form::Share, ""));
                // The claim is that nothing falls low.
                let falls = below(least, 0.6, told);
                match falls.holds {
                    Holds::Yes => Judgement { holds: Holds::No, ..falls },
                    Holds::No => Judgement { holds: Holds::Yes, ..falls },
                    _ => falls,
                }
            })
        },
    },
    Claim {
        source: "S1",
        text: "Once memory is full, mmap with MADV_RANDOM falls to half of direct reads: on this drive.",
        judge: |figures| {
            at_least(figures.fall(Regime::Device), HALF, figures.missing(Regime::Device), |ratio| {
                figures.told(Regime::Device, ratio)
            })
        },
    },
    Claim {
        source: "S1",
        text: "The same, on a medium faster than eviction.",
        judge: |figures| {
            measured(figures.fall(Regime::Memory), figures.missing(Regime::Memory), |ratio| {
                let told = figures.told(Regime::Memory, ratio);
                let [drive, memory] = [Regime::Device, Regime::Memory].map(|regime| figures.direct_rate(regime));
                if let Some((drive, memory)) = drive.zip(memory)
                    && memory < 1.5 * drive
                {
                    let missing = "a medium faster than the drive (the device in memory is not)";
                    return Judgement::cannot_tell(missing, told);
                }
                ratio.judge_at_least(HALF, told)
            })
        },
    },
    Claim {
        source: "S1",
        text: "The same, with the whole machine short of memory, where the kernel's own thread evicts.",
        judge: |figures| {
            measured(figures.fall(Regime::Pressure), figures.missing(Regime::Pressure), |ratio| {
                let share = figures.kswapd_share.unwrap_or(0.0);
                let told = format!(
                    "{} It took {} of the pages back.",
                    figures.told(Regime::Pressure, ratio),
                    Form::Share.show(share)
                );
                if share < 0.5 {
                    return Judgement::cannot_tell("eviction by the kernel's own thread", told);
                }
                ratio.judge_at_least(HALF, told)
            })
        },
    },
    Claim {
        source: "S1",
        text: "When eviction begins, mapped reads come to a near stop (figure 2a).",
        judge: |figures| {
            measured(figures.collapse, figures.missing(Regime::Pressure), |lowest| {
                let told = format!("The lowest sample had {} of the second half's rate.", lowest.show(Form::Share, ""));
                below(lowest, 0.25, told)
            })
        },
    },
    Claim {
        source: "S1",
        text: "NORMAL and SEQUENTIAL are worse than RANDOM: they also read the pages around each fault.",
        judge: |figures| {
            let both = figures.random_over_normal.zip(figures.random_over_sequential);
            measured(both, figures.missing(Regime::Device), |(normal, sequential)| {
                let own = figures.own_window.map_or(String::new(), |(normal, sequential)| {
                    format!(
                        " With the machine's own read-ahead {} and {} times.",
                        figures::digits(normal.median),
                        figures::digits(sequential.median)
                    )
                });
                let told = format!(
                    "With 128 KiB, RANDOM has {} the rate of NORMAL, {} that of SEQUENTIAL.{own}",
                    normal.show(),
                    sequential.show()
                );
                let parts = [normal, sequential].map(|ratio| (ratio, ratio.at_least(Size::bound(1.5))));
                match compare::all(parts.map(|(_, holds)| holds)) {
                    Holds::CannotTell => {
                        let (unsure, holds) =
                            parts.into_iter().find(|(_, holds)| *holds == Holds::CannotTell).expect("one is");
                        unsure.judge(holds, told)
                    }
                    holds => Judgement::new(holds, told),
                }
            })
        },
    },
    Claim {
        source: "S1",
        text: "Evicting mapped pages costs TLB shootdowns; direct reads cost none.",
        judge: |figures| {
            let both = figures.shootdowns_mapped.zip(figures.shootdowns_direct);
            measured(both, figures.missing(Regime::Device), |(mapped, direct)| {
                let told = format!(
                    "{} per read mapped, {} direct.",
                    mapped.show(Form::Ratio, ""),
                    direct.show(Form::Ratio, "")
                );
                match () {
                    () if mapped.least > 0.01 && mapped.least > 10.0 * direct.most => Judgement::new(Holds::Yes, told),
                    () if mapped.least > direct.most && mapped.least > 0.001 => Judgement::new(Holds::Partly, told),
                    () if figures.is_virtual => {
                        Judgement::cannot_tell("a machine whose shootdowns no hypervisor does", told)
                    }
                    () => Judgement::new(Holds::No, told),
                }
            })
        },
    },
    Claim {
        source: "S4",
        text: "Within memory the page cache is only a quarter faster than direct reads.",
        judge: |figures| {
            measured(figures.cached_over_direct, None, |ratio| {
                ratio.judge(ratio.alike(1.5), format!("It has {} their rate, both 20 at once.", ratio.show()))
            })
        },
    },
    Claim {
        source: "S4",
        text: "Direct reads are as fast beyond memory as within it.",
        judge: |figures| {
            measured(figures.within_over_beyond, None, |ratio| {
                ratio.judge(ratio.alike(1.25), format!("Within memory they have {} the rate of beyond.", ratio.show()))
            })
        },
    },
    Claim {
        source: "S4",
        text: "Beyond memory direct reads have 2.3 times the rate of buffered ones.",
        judge: |figures| {
            at_least(figures.beyond_over_buffered, Size::of(2.3).from(1.8), None, |ratio| {
                let hits = figures.hits.map_or(String::new(), |hits| {
                    format!(" {} of the buffered ones were answered by the page cache.", Form::Share.show(hits))
                });
                format!("{}, both 20 at once.{hits}", ratio.show())
            })
        },
    },
];

pub(super) fn judge(chapter: &mut Chapter, figures: &Figures) {
    for claim in &CLAIMS {
        claim.put(chapter, figures);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Holds::{CannotTell, No, NotInSize, Partly, Yes};

    fn ratio(median: f64) -> Ratio {
        Ratio { median, least: median * 0.97, most: median * 1.03, noise: 1.01 }
    }

    /// Figures in which every claim's ratio is this one.
    fn all_at(ratio: Ratio) -> Figures {
        let regimes = [Regime::Device, Regime::Memory, Regime::Pressure];
        Figures {
            missing: Vec::new(),
            is_virtual: false,
            steadiness: Spread::of(&[0.9, 0.95, 0.97]),
            direct_over_mapped: regimes.map(|regime| (regime, ratio)).into(),
            direct_rates: vec![(Regime::Device, 5e4), (Regime::Memory, 2e5)],
            collapse: Spread::of(&[0.01, 0.1, 0.05]),
            kswapd_share: Some(0.9),
            random_over_normal: Some(ratio),
            random_over_sequential: Some(ratio),
            own_window: Some((ratio, ratio)),
            shootdowns_mapped: Spread::of(&[0.05, 0.06, 0.05]),
            shootdowns_direct: Spread::of(&[0.0, 0.0, 0.001]),
            cached_over_direct: Some(ratio),
            within_over_beyond: Some(ratio),
            beyond_over_buffered: Some(ratio),
            hits: Some(0.1),
        }
    }

    fn verdicts(figures: &Figures) -> Vec<Holds> {
        CLAIMS.iter().map(|claim| (claim.judge)(figures).holds).collect()
    }

    /// Each claim can hold, not hold, hold in part where it has a size, and be impossible to tell.
    #[test]
    fn every_claim_comes_out_each_way() {
        assert_eq!(verdicts(&all_at(ratio(2.3))), [Yes, Yes, Yes, Yes, Yes, Yes, Yes, No, No, Yes]);
        assert_eq!(verdicts(&all_at(ratio(1.0))), [Yes, No, No, No, Yes, No, Yes, Yes, Yes, No]);
        let between = verdicts(&all_at(ratio(1.4)));
        assert_eq!(between, [Yes, Partly, Partly, Partly, Yes, Partly, Yes, Yes, No, Partly]);
        let little = verdicts(&all_at(ratio(1.1)));
        assert_eq!(little, [Yes, NotInSize, NotInSize, NotInSize, Yes, NotInSize, Yes, Yes, Yes, NotInSize]);
        assert_eq!(verdicts(&all_at(ratio(1.5)))[7], Partly);
        assert_eq!(verdicts(&Figures::default()), [CannotTell; 10]);
        let noisy = verdicts(&all_at(Ratio { noise: 9.0, ..ratio(2.0) }));
        assert_eq!(
            noisy,
            [Yes, CannotTell, CannotTell, CannotTell, Yes, CannotTell, Yes, CannotTell, CannotTell, CannotTell]
        );
    }

    /// The claims about courses and shootdowns, which have no ratio, come out each way too.
    #[test]
    fn claims_without_a_ratio_come_out_each_way() {
        let judged = |claim: usize, figures: &Figures| (CLAIMS[claim].judge)(figures).holds;
        let with = |change: fn(&mut Figures)| {
            let mut figures = all_at(ratio(1.0));
            change(&mut figures);
            figures
        };
        assert_eq!(judged(0, &with(|figures| figures.steadiness = Spread::of(&[0.1, 0.2, 0.1]))), No);
        assert_eq!(judged(0, &with(|figures| figures.steadiness = Spread::of(&[0.1, 0.9, 0.9]))), CannotTell);
        assert_eq!(judged(4, &with(|figures| figures.collapse = Spread::of(&[0.8, 0.9, 0.9]))), No);
        assert_eq!(judged(4, &with(|figures| figures.collapse = Spread::of(&[0.1, 0.9, 0.9]))), CannotTell);
        let without = |figures: &mut Figures| figures.shootdowns_mapped = Spread::of(&[0.0, 0.0, 0.0]);
        assert_eq!(judged(6, &with(without)), No);
        let mut hidden = with(without);
        hidden.is_virtual = true;
        assert_eq!(judged(6, &hidden), CannotTell);
        assert_eq!(judged(6, &with(|figures| figures.shootdowns_mapped = Spread::of(&[0.004, 0.005, 0.006]))), Partly);
    }

    /// Conditions of the source that are not met are named.
    #[test]
    fn missing_conditions_are_named() {
        let mut figures = all_at(ratio(1.0));
        figures.kswapd_share = Some(0.1);
        figures.direct_rates = vec![(Regime::Device, 5e4), (Regime::Memory, 6e4)];
        figures.missing.push((Regime::Device, "a loop device (Operation not permitted)".to_owned()));
        figures.direct_over_mapped.remove(0);
        let missing = |claim: usize| (CLAIMS[claim].judge)(&figures).missing.unwrap();
        assert!(missing(1).contains("loop device"));
        assert!(missing(2).contains("a medium faster"));
        assert!(missing(3).contains("the kernel's own thread"));
    }

    /// The figures of a run over time.
    #[test]
    fn courses_have_their_figures() {
        let rates = [100.0, 100.0, 100.0, 10.0, 10.0, 50.0, 50.0, 50.0, 50.0, 50.0];
        let sample = |(index, rate): (usize, &f64)| Sample {
            at_seconds: (index + 1) as f64,
            operations_per_second: *rate,
            ..Sample::default()
        };
        let samples: Vec<Sample> = rates.iter().enumerate().map(sample).collect();
        assert_eq!(late_rate(&samples), 50.0);
        assert_eq!(lowest_share(&samples), 0.2);
        assert_eq!(steadiness(&samples), 0.6);
    }
}
