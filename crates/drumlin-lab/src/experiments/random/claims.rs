//! The sources' claims about random reads, each with a pure function that judges it.

use super::{
    BEYOND_BUFFERED, BEYOND_DIRECT, BLOCK_BYTES, Case, DIRECT, MAPPED, Method, NORMAL, POOL, ROW_BUFFERED, ROW_DIRECT,
    ROW_FILES, ROW_NORMAL, SEQUENTIAL, UPDATED_MAPPED, WITHIN_BUFFERED, WITHIN_DIRECT,
};
use crate::compare::{self, Claim, Ratio, Size, Spread, at_least, measured};
use crate::condition::{self, Phases};
use crate::figures::{self, Form};
use crate::machine::Machine;
use crate::measure::{Load, Sample, median};
use crate::regime::Regime;
use crate::report::{Chapter, Holds, Judgement};
use crate::session::{Rounds, Trials};

/// The figures by which the claims are judged. Figures that were not measured are `None`.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// The regimes that were not available, each with the missing condition.
    pub(super) missing: Vec<(Regime, String)>,
    is_virtual: bool,
    processors: usize,
    /// The duration of one random read if no others are in flight.
    read_micros: Option<f64>,
    /// For each direct run on the raw device, the mean rate in its slowest fifth divided by the run's median rate.
    steadiness: Option<Spread>,
    /// For each regime, the phases of the mapped reads in each round, or `None` for a round in which memory never
    /// became full.
    pub(super) phases: Vec<(Regime, Vec<Option<Phases>>)>,
    /// For each regime, the rate of direct reads divided by that of mapped reads after memory was full, in device reads
    /// per second.
    direct_over_mapped: Vec<(Regime, Ratio)>,
    /// For each regime, the processor time of a mapped read divided by that of a direct read.
    mapped_cpu: Vec<(Regime, Ratio)>,
    /// For each regime, the device reads per second of direct reads.
    direct_rates: Vec<(Regime, f64)>,
    /// The lowest rate of mapped reads in any sample divided by their rate while memory was filling, in the pressure
    /// regime.
    collapse: Option<Spread>,
    /// The share of reclaimed pages that the kernel's background thread (kswapd) reclaimed in the pressure regime.
    kswapd_share: Option<f64>,
    random_over_normal: Option<Ratio>,
    random_over_sequential: Option<Ratio>,
    /// The ratios of RANDOM to NORMAL and of RANDOM to SEQUENTIAL on the plain file, with the machine's own read-ahead.
    own_window: Option<(Ratio, Ratio)>,
    shootdowns_mapped: Option<Spread>,
    shootdowns_direct: Option<Spread>,
    /// The processor time of a mapped read on the raw device.
    mapped_micros: Option<f64>,
    /// The cost of one shootdown in microseconds.
    pub(super) shootdown: Option<f64>,
    cached_over_direct: Option<Ratio>,
    within_over_beyond: Option<Ratio>,
    beyond_over_buffered: Option<Ratio>,
    /// The hit rate of the page cache for buffered reads beyond memory.
    hits: Option<f64>,
    /// The memory that the control group used during buffered reads beyond memory, as a share of its limit.
    cache_filled: Option<f64>,
    /// Reads within memory: the memory that buffered reads used, the memory that direct reads used, and the size of the
    /// range.
    within_memory: Option<(f64, f64, f64)>,
    /// The share of a single direct read's duration that is not processor time.
    device_share: Option<Spread>,
    /// The share of the bytes from the device that no reader requested: by buffered reads, and by mapped reads with
    /// read-ahead.
    wasted: Option<(Spread, Spread)>,
    /// The rate of reading rows from many small files divided by that of reading them from one file.
    files_over_file: Option<Ratio>,
    /// The rate of updates in the pool divided by that in the mapping after memory is full, and the 99th percentiles of
    /// both in microseconds.
    pool_over_mapped: Option<Ratio>,
    update_p99s: Option<[f64; 2]>,
}

/// Returns the blocks per second that the device read.
pub(super) fn device_reads_per_second(load: &Load) -> f64 {
    load.counters.device_read_bytes as f64 / BLOCK_BYTES as f64 / load.seconds.max(1e-9)
}

/// Returns the operations per second in the second half of a run.
pub(super) fn late_rate(samples: &[Sample]) -> f64 {
    let end = samples.last().map_or(0.0, |sample| sample.at_seconds);
    let late = samples.iter().filter(|sample| sample.at_seconds > end / 2.0);
    let rates: Vec<f64> = late.map(|sample| sample.operations_per_second).collect();
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

/// Returns the [`late_rate`] of each trial.
pub(super) fn late_rates(trials: &Trials<Load>) -> Vec<f64> {
    trials.samples.iter().map(|samples| late_rate(samples)).collect()
}

/// Returns the mean rate in the slowest fifth of the run divided by the median of its samples.
fn steadiness(samples: &[Sample]) -> f64 {
    let rates: Vec<f64> = samples.iter().map(|sample| sample.operations_per_second).collect();
    let fifths = rates.chunks(rates.len().div_ceil(5).max(1)).map(|part| part.iter().sum::<f64>() / part.len() as f64);
    fifths.fold(f64::INFINITY, f64::min) / median(rates).max(1e-9)
}

fn spread_of(trials: &Trials<Load>, figure: fn(&[Sample]) -> f64) -> Option<Spread> {
    let figures: Vec<f64> = trials.samples.iter().map(|samples| figure(samples)).collect();
    Spread::of(&figures).filter(|spread| spread.most.is_finite())
}

/// Returns the number of TLB shootdowns per read.
pub(super) fn shootdowns(load: &Load) -> f64 {
    load.counters.interrupt("TLB") as f64 / load.operations.max(1) as f64
}

/// Returns the share of the bytes from the device that no reader requested.
fn wasted(load: &Load) -> f64 {
    1.0 - 1.0 / load.read_amplification().max(1.0)
}

/// Returns the share of a read's duration that is not processor time, for reads made one at a time.
fn device_share(load: &Load) -> f64 {
    1.0 - load.cpu_us_per_operation() / load.latency.mean_us.max(1e-9)
}

impl Figures {
    pub(super) fn new(machine: &Machine) -> Figures {
        let is_virtual = machine.virtualised.is_some();
        Figures { is_virtual, processors: machine.processors, ..Figures::default() }
    }

    /// Adds the figures for a regime's series of samples.
    pub(super) fn add_courses(&mut self, regime: Regime, rounds: &Rounds<Load>) {
        let phases: Vec<Option<Phases>> =
            rounds[MAPPED].samples.iter().map(|samples| condition::phases(samples, BLOCK_BYTES as f64)).collect();
        // Ratios are taken round by round, so ignore all rounds if memory never became full in one of them.
        let full: Option<Vec<f64>> = phases.iter().map(|phases| Some(phases.as_ref()?.full)).collect();
        let direct = rounds[DIRECT].each(device_reads_per_second);
        let noise = rounds.noise(device_reads_per_second);
        let fall = full.and_then(|full| Ratio::of(&direct, &full, noise));
        self.direct_over_mapped.extend(fall.map(|ratio| (regime, ratio)));
        let cpu = rounds.ratio(MAPPED, DIRECT, Load::cpu_us_per_operation);
        self.mapped_cpu.extend(cpu.map(|ratio| (regime, ratio)));
        self.direct_rates.extend(rounds[DIRECT].median(device_reads_per_second).map(|rate| (regime, rate)));
        let reads = |left, right| rounds.ratio(left, right, Load::operations_per_second);
        match regime {
            Regime::Device => {
                self.steadiness = spread_of(&rounds[DIRECT], steadiness);
                self.random_over_normal = reads(MAPPED, NORMAL);
                self.random_over_sequential = reads(MAPPED, SEQUENTIAL);
                self.shootdowns_mapped = rounds[MAPPED].spread(shootdowns);
                self.shootdowns_direct = rounds[DIRECT].spread(shootdowns);
                self.mapped_micros = rounds[MAPPED].median(Load::cpu_us_per_operation);
            }
            Regime::File => self.own_window = reads(MAPPED, NORMAL).zip(reads(MAPPED, SEQUENTIAL)),
            Regime::Memory => {}
            Regime::Pressure => {
                let lowest = |phases: &Option<Phases>| phases.and_then(|each| Some(each.lowest / each.filling?));
                let lowest: Option<Vec<f64>> = phases.iter().map(lowest).collect();
                self.collapse = lowest.and_then(|lowest| Spread::of(&lowest));
                let pages = |of: fn(&Load) -> u64| rounds[MAPPED].results.iter().map(of).sum::<u64>() as f64;
                let kswapd = pages(|load| load.counters.kswapd_pages);
                let all = kswapd + pages(|load| load.counters.direct_reclaim_pages);
                self.kswapd_share = (all > 0.0).then(|| kswapd / all);
            }
        }
        self.phases.push((regime, phases));
    }

    /// Adds the figures for single reads.
    pub(super) fn add_ladder(&mut self, cases: &[Case], steps: &Rounds<Load>, read_micros: Option<f64>) {
        let single = cases.iter().position(|case| case.method == Method::Direct && case.threads == 1);
        self.device_share = single.and_then(|index| steps[index].spread(device_share));
        self.read_micros = read_micros;
    }

    /// Adds the figures for S4's ranges.
    pub(super) fn add_ranges(&mut self, cases: &[Case], rounds: &Rounds<Load>, limit_bytes: u64) {
        let rate = |left, right| rounds.ratio(left, right, Load::operations_per_second);
        self.cached_over_direct = rate(WITHIN_BUFFERED, WITHIN_DIRECT);
        self.within_over_beyond = rate(WITHIN_DIRECT, BEYOND_DIRECT);
        self.beyond_over_buffered = rate(BEYOND_DIRECT, BEYOND_BUFFERED);
        self.hits = rounds[BEYOND_BUFFERED].median(|load| (1.0 - load.read_amplification()).max(0.0));
        self.cache_filled = rounds[BEYOND_BUFFERED].memory_bytes_max().map(|bytes| bytes / limit_bytes as f64);
        let memory = |index: usize| rounds[index].memory_bytes_max();
        let range_bytes = cases[WITHIN_BUFFERED].range_bytes as f64;
        self.within_memory = memory(WITHIN_BUFFERED).zip(memory(WITHIN_DIRECT)).map(|(b, d)| (b, d, range_bytes));
    }

    /// Adds the figures for small rows.
    pub(super) fn add_rows(&mut self, rounds: &Rounds<Load>) {
        self.wasted = rounds[ROW_BUFFERED].spread(wasted).zip(rounds[ROW_NORMAL].spread(wasted));
        self.files_over_file = rounds.ratio(ROW_FILES, ROW_DIRECT, Load::operations_per_second);
    }

    /// Adds the figures for updates.
    pub(super) fn add_updates(&mut self, rounds: &Rounds<Load>) {
        let noise = compare::noise(&late_rates(&rounds[POOL]), &late_rates(&rounds.again));
        let [pool, mapped] = [POOL, UPDATED_MAPPED].map(|index: usize| late_rates(&rounds[index]));
        self.pool_over_mapped = Ratio::of(&pool, &mapped, noise);
        let p99 = |index: usize| rounds[index].median(|load| load.latency.p99_us);
        self.update_p99s = p99(POOL).zip(p99(UPDATED_MAPPED)).map(|(pool, mapped)| [pool, mapped]);
    }

    fn missing(&self, regime: Regime) -> Option<&str> {
        self.missing.iter().find(|(each, _)| *each == regime).map(|(_, missing)| missing.as_str())
    }

    fn fall(&self, regime: Regime) -> Option<Ratio> {
        of(&self.direct_over_mapped, regime)
    }

    fn direct_rate(&self, regime: Regime) -> Option<f64> {
        of(&self.direct_rates, regime)
    }

    /// Judges the claim that mapped reads fall to half the rate of direct reads in a regime.
    ///
    /// With few processors, a mapping is slower because faults and eviction need processor time, whichever thread
    /// evicts. So a fall is inconclusive if there are too few processors or if the condition `needed` is missing. If
    /// the condition `others` is missing, a fall can be confirmed, but not refuted.
    fn judge_fall(&self, regime: Regime, needed: Option<String>, others: Option<String>) -> Judgement {
        let missing = self.missing(regime).or(Some(NEVER_FULL));
        measured(self.fall(regime), missing, |ratio| {
            let rate = self.direct_rate(regime).map_or(String::new(), |rate| format!(" ({}/s)", Form::Rate.show(rate)));
            let mut figures_text =
                format!("With memory full direct reads{rate} brought {} as much from the device.", ratio.show());
            if let Some(cpu) = of(&self.mapped_cpu, regime) {
                figures_text += &format!(" A mapped read took {} their processor time.", cpu.show());
            }
            match condition::all([condition::processors(self.processors), needed]) {
                Some(needed) => {
                    let missing = condition::all([Some(needed), others]).expect("one is missing");
                    Judgement::inconclusive(missing, figures_text)
                }
                None => ratio.judge_at_least(HALF, figures_text).unless_lacking(others),
            }
        })
    }

    /// Returns the condition for S4's rates, a fast drive, if this machine does not meet it.
    fn fast_drive(&self) -> Option<String> {
        self.read_micros.and_then(condition::read_micros)
    }
}

/// Returns the figure for a regime.
fn of<T: Copy>(figures: &[(Regime, T)], regime: Regime) -> Option<T> {
    figures.iter().find(|(each, _)| *each == regime).map(|(_, figure)| *figure)
}

/// A fall to half counts as confirmed if the ratio is at least 1.6.
const HALF: Size = Size::of(2.0).from(1.6);

const NEVER_FULL: &str = "memory that was full (pages taken back never matched pages read in)";

/// Returns the condition "eviction by the kernel's own thread", which a control group can't meet.
fn own_thread() -> Option<String> {
    Some("eviction by the kernel's own thread (in a control group the faulting threads evict)".to_owned())
}

/// Judges the claim that a figure stays below a bound. The claim holds if all rounds are below the bound, and fails if
/// all rounds are at or above it.
fn below(spread: Spread, bound: f64, figures_text: String) -> Judgement {
    match () {
        () if spread.most < bound => Judgement::new(Holds::Yes, figures_text),
        () if spread.least >= bound => Judgement::new(Holds::No, figures_text),
        () => Judgement::inconclusive("a quieter machine (the rounds do not agree)", figures_text),
    }
}

/// Judges the claim that one case is not slower than the other: the claim requires at least `share` of the other's
/// rate.
fn not_below(ratio: Ratio, share: f64, figures_text: String) -> Judgement {
    let (low, high) = ratio.interval();
    let holds = match () {
        () if low >= share => Holds::Yes,
        () if high < share => Holds::No,
        () => Holds::Inconclusive,
    };
    ratio.judge(holds, figures_text)
}

const CLAIMS: [Claim<Figures>; 17] = [
    Claim {
        source: "S1",
        text: "Direct reads keep a steady rate.",
        judge: |figures| {
            measured(figures.steadiness, figures.missing(Regime::Device), |least| {
                let figures_text =
                    format!("The least fifth of a run had {} of its median.", least.show(Form::Share, ""));
                // The claim is that no rate falls below the bound, so reverse the verdict.
                let falls = below(least, 0.6, figures_text);
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
        judge: |figures| figures.judge_fall(Regime::Device, None, own_thread()),
    },
    Claim {
        source: "S1",
        text: "The same, on a medium faster than the drive.",
        judge: |figures| {
            let rates = figures.direct_rate(Regime::Device).zip(figures.direct_rate(Regime::Memory));
            let is_slow = rates.is_some_and(|(drive, memory)| memory < 1.5 * drive);
            let faster = is_slow.then(|| "a medium faster than the drive (the device in memory is not)".to_owned());
            figures.judge_fall(Regime::Memory, faster, own_thread())
        },
    },
    Claim {
        source: "S1",
        text: "The same, with the whole machine short of memory, where the kernel's own thread evicts.",
        judge: |figures| {
            let share = figures.kswapd_share.unwrap_or(0.0);
            let drives = figures.direct_rate(Regime::Pressure).and_then(condition::read_rate);
            let thread = (share < 0.5).then(|| "eviction by the kernel's own thread".to_owned());
            let mut judged = figures.judge_fall(Regime::Pressure, thread, drives);
            if figures.fall(Regime::Pressure).is_some() {
                judged.why += &format!(" The kernel's thread took {} of the pages back.", Form::Share.show(share));
            }
            judged
        },
    },
    Claim {
        source: "S1",
        text: "When eviction begins, mapped reads come to a near stop (figure 2a).",
        judge: |figures| {
            let missing = figures.missing(Regime::Pressure).or(Some(NEVER_FULL));
            measured(figures.collapse, missing, |lowest| {
                let figures_text =
                    format!("The lowest sample had {} of the rate while memory filled.", lowest.show(Form::Share, ""));
                let drives = figures.direct_rate(Regime::Pressure).and_then(condition::read_rate);
                below(lowest, 0.25, figures_text)
                    .unless_lacking(condition::all([condition::processors(figures.processors), drives]))
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
                let figures_text = format!(
                    "With 128 KiB, RANDOM has {} the rate of NORMAL, {} that of SEQUENTIAL.{own}",
                    normal.show(),
                    sequential.show()
                );
                let parts = [normal, sequential].map(|ratio| (ratio, ratio.at_least(Size::bound(1.5))));
                match compare::all(parts.map(|(_, holds)| holds)) {
                    Holds::Inconclusive => {
                        let (unsure, holds) =
                            parts.into_iter().find(|(_, holds)| *holds == Holds::Inconclusive).expect("one is");
                        unsure.judge(holds, figures_text)
                    }
                    holds => Judgement::new(holds, figures_text),
                }
            })
        },
    },
    Claim {
        source: "S1",
        text: "Evicting mapped pages causes TLB shootdowns; direct reads cause none.",
        judge: |figures| {
            let both = figures.shootdowns_mapped.zip(figures.shootdowns_direct);
            measured(both, figures.missing(Regime::Device), |(mapped, direct)| {
                let figures_text = format!(
                    "{} per read mapped, {} direct.",
                    mapped.show(Form::Ratio, ""),
                    direct.show(Form::Ratio, "")
                );
                match () {
                    () if mapped.least > 0.01 && mapped.least > 10.0 * direct.most => {
                        Judgement::new(Holds::Yes, figures_text)
                    }
                    () if mapped.least > direct.most && mapped.least > 0.001 => {
                        Judgement::new(Holds::Partly, figures_text)
                    }
                    () if figures.is_virtual => {
                        Judgement::inconclusive("a machine whose shootdowns no hypervisor does", figures_text)
                    }
                    () => Judgement::new(Holds::No, figures_text),
                }
            })
        },
    },
    Claim {
        source: "S1",
        text: "The shootdowns affect the performance of mapped reads significantly.",
        judge: |figures| {
            let all = figures.shootdowns_mapped.zip(figures.mapped_micros);
            let all = all.and_then(|(count, micros)| Some((count.median, micros, figures.shootdown?)));
            let missing =
                figures.missing(Regime::Device).or(Some("a time of single shootdowns (too few were counted)"));
            measured(all, missing, |(count, micros, cost)| {
                let share = count * cost / micros.max(1e-9);
                let figures_text = format!(
                    "One takes the thread that causes it {}, so all of them take {} of a mapped read's {} of processor \
                     time.",
                    Form::Micros.show(cost),
                    Form::Share.show(share),
                    Form::Micros.show(micros)
                );
                let holds = match share {
                    SIGNIFICANT.. => Holds::Yes,
                    share if share >= SIGNIFICANT / 3.0 => Holds::Partly,
                    _ => Holds::NotInSize,
                };
                // A shootdown interrupts every other processor on which the process runs.
                Judgement::new(holds, figures_text).unless_lacking(condition::processors(figures.processors))
            })
        },
    },
    Claim {
        source: "S4",
        text: "Within memory the page cache is only a quarter faster than direct reads.",
        judge: |figures| {
            measured(figures.cached_over_direct, None, |ratio| {
                let figures_text = format!("It has {} their rate, both 20 at once.", ratio.show());
                ratio.judge(ratio.alike(1.5), figures_text).unless_lacking(figures.fast_drive())
            })
        },
    },
    Claim {
        source: "S4",
        text: "Within memory buffered reads hold all that they read (1.65 GB), direct ones their 20 buffers (80 KB).",
        judge: |figures| {
            let missing = Some("a control group, which counts memory");
            measured(figures.within_memory, missing, |(buffered, direct, range)| {
                let show = |bytes| Form::Bytes.show(bytes);
                let figures_text = format!(
                    "Of a range of {} they hold {}, direct ones {}, their program included.",
                    show(range),
                    show(buffered),
                    show(direct)
                );
                let parts = [buffered >= 0.9 * range, direct < 0.1 * range];
                Judgement::new(compare::all(parts.map(Holds::of)), figures_text)
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
            figures.beyond(|ratio, figures_text| {
                ratio.judge_at_least(Size::of(2.3).from(1.8), figures_text).unless_lacking(figures.fast_drive())
            })
        },
    },
    Claim {
        source: "S4",
        text: "It is a misconception that direct reads are slow for a program without a cache of its own.",
        judge: |figures| figures.beyond(|ratio, figures_text| not_below(ratio, 0.9, figures_text)),
    },
    Claim {
        source: "S4",
        text: "It is a misconception that many files are slow because they are read at random.",
        judge: |figures| {
            measured(figures.files_over_file, None, |ratio| {
                let figures_text = format!(
                    "Small files, each opened for its row, come at {} the rate of rows of one file by direct reads.",
                    ratio.show()
                );
                not_below(ratio, 2.0 / 3.0, figures_text)
            })
        },
    },
    Claim {
        source: "S4",
        text: "Less than half of a read's time is the device's.",
        judge: |figures| {
            measured(figures.device_share, None, |share| {
                let figures_text = format!(
                    "One at a time, for {} of a direct read's time no processor works for it.",
                    share.show(Form::Share, "")
                );
                below(share, 0.5, figures_text).unless_lacking(figures.fast_drive())
            })
        },
    },
    Claim {
        source: "S4",
        text: "Of what the page cache reads for small rows, 87 % are thrown away, with read-ahead 99 %.",
        judge: |figures| {
            measured(figures.wasted, None, |(buffered, ahead)| {
                let figures_text = format!(
                    "For rows of 512 bytes at random {} of what came from the device, with the read-ahead of a fault {}.",
                    buffered.show(Form::Share, ""),
                    ahead.show(Form::Share, "")
                );
                let parts = [(0.82..0.93).contains(&buffered.median), ahead.least >= 0.985];
                Judgement::new(compare::all(parts.map(Holds::of)), figures_text)
            })
        },
    },
    Claim {
        source: "Drumlin",
        text: "Pages of a file larger than memory are updated faster in a pool with direct I/O than through a mapping (S1 \
               only read).",
        judge: |figures| {
            at_least(figures.pool_over_mapped, Size::bound(1.5), Some("a control group"), |ratio| {
                let show = |[pool, mapped]: [f64; 2]| {
                    let [pool, mapped] = [pool, mapped].map(|micros| Form::Micros.show(micros));
                    format!(" The 99th percentile is {pool} in the pool, {mapped} mapped.")
                };
                let slow = figures.update_p99s.map_or(String::new(), show);
                format!("With the same memory the pool has {} the rate.{slow}", ratio.show())
            })
        },
    },
];

/// A cost is significant if it is at least this share of the processor time.
const SIGNIFICANT: f64 = 0.1;

/// A control group's page cache counts as full once it reaches this share of the group's limit.
const CACHE_FULL: f64 = 0.95;

impl Figures {
    /// Judges the ratio of direct to buffered reads beyond memory. Inconclusive if the page cache was not full.
    fn beyond(&self, judge: impl FnOnce(Ratio, String) -> Judgement) -> Judgement {
        measured(self.beyond_over_buffered, None, |ratio| {
            let hits = self.hits.map_or(String::new(), |hits| {
                format!(" {} of the buffered ones were answered by the page cache.", Form::Share.show(hits))
            });
            let figures_text = format!("They have {} the rate, both 20 at once.{hits}", ratio.show());
            match self.cache_filled {
                Some(filled) if filled < CACHE_FULL => {
                    let here = Form::Share.show(filled);
                    Judgement::inconclusive(
                        format!("a page cache that was full ({here} of its limit were used)"),
                        figures_text,
                    )
                }
                _ => judge(ratio, figures_text),
            }
        })
    }
}

pub(super) fn judge(chapter: &mut Chapter, figures: &Figures) {
    for claim in &CLAIMS {
        claim.put(chapter, figures);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Holds::{Inconclusive, No, NotInSize, Partly, Yes};

    fn ratio(median: f64) -> Ratio {
        Ratio { median, least: median * 0.97, most: median * 1.03, noise: 1.01 }
    }

    fn spread(figure: f64) -> Option<Spread> {
        Spread::of(&[figure * 0.98, figure, figure * 1.02])
    }

    /// Returns the figures of a machine like the sources', with this ratio for every claim.
    fn all_at(ratio: Ratio) -> Figures {
        let regimes = [Regime::Device, Regime::Memory, Regime::Pressure];
        Figures {
            processors: 64,
            read_micros: Some(8.0),
            steadiness: Spread::of(&[0.9, 0.95, 0.97]),
            direct_over_mapped: regimes.map(|regime| (regime, ratio)).into(),
            mapped_cpu: regimes.map(|regime| (regime, ratio)).into(),
            direct_rates: vec![(Regime::Device, 5e5), (Regime::Memory, 2e6), (Regime::Pressure, 8e5)],
            collapse: Spread::of(&[0.01, 0.1, 0.05]),
            kswapd_share: Some(0.9),
            random_over_normal: Some(ratio),
            random_over_sequential: Some(ratio),
            own_window: Some((ratio, ratio)),
            shootdowns_mapped: Spread::of(&[0.05, 0.06, 0.05]),
            shootdowns_direct: Spread::of(&[0.0, 0.0, 0.001]),
            mapped_micros: Some(10.0),
            shootdown: Some(40.0),
            cached_over_direct: Some(ratio),
            within_over_beyond: Some(ratio),
            beyond_over_buffered: Some(ratio),
            hits: Some(0.1),
            cache_filled: Some(1.0),
            within_memory: Some((140e6, 0.8e6, 134e6)),
            device_share: spread(0.4),
            wasted: spread(0.875).zip(Spread::of(&[0.99, 0.996, 0.999])),
            files_over_file: Some(ratio),
            pool_over_mapped: Some(ratio),
            update_p99s: Some([1e3, 1e4]),
            ..Figures::default()
        }
    }

    fn judged(claim: &str, figures: &Figures) -> Judgement {
        let claim = CLAIMS.iter().find(|each| each.text.contains(claim)).expect("a claim with these words");
        (claim.judge)(figures)
    }

    /// The claims that are judged by a ratio.
    const BY_RATIO: [&str; 10] = [
        "on this drive",
        "medium faster",
        "whole machine",
        "NORMAL and SEQUENTIAL",
        "a quarter faster",
        "as fast beyond",
        "2.3 times",
        "without a cache",
        "many files",
        "updated faster",
    ];

    fn by_ratio(figures: &Figures) -> [Holds; 10] {
        BY_RATIO.map(|claim| judged(claim, figures).holds)
    }

    /// Every claim with a ratio can hold, fail or be inconclusive. A claim that states a size can also hold partly.
    #[test]
    fn claims_with_a_ratio_come_out_each_way() {
        assert_eq!(by_ratio(&all_at(ratio(2.3))), [Yes, Yes, Yes, Yes, No, No, Yes, Yes, Yes, Yes]);
        let same = by_ratio(&all_at(ratio(1.0)));
        // In a control group, the faulting threads evict. So if the rate does not fall, that says nothing about
        // eviction by the kernel's thread.
        assert_eq!(same, [Inconclusive, Inconclusive, No, No, Yes, Yes, No, Yes, Yes, No]);
        let between = by_ratio(&all_at(ratio(1.4)));
        assert_eq!(between, [Partly, Partly, Partly, Partly, Yes, No, Partly, Yes, Yes, Partly]);
        let little = by_ratio(&all_at(ratio(1.1)));
        let far = NotInSize;
        assert_eq!(little, [Inconclusive, Inconclusive, far, far, Yes, Yes, far, Yes, Yes, far]);
        let slower = by_ratio(&all_at(ratio(0.5)));
        assert_eq!(slower, [Inconclusive, Inconclusive, No, No, No, No, No, No, No, No]);
        let noisy = by_ratio(&all_at(Ratio { noise: 9.0, ..ratio(2.0) }));
        assert_eq!(noisy, [Inconclusive; 10]);
        assert!(CLAIMS.iter().all(|claim| (claim.judge)(&Figures::default()).holds == Inconclusive));
    }

    /// The claims without a ratio can get every verdict too.
    #[test]
    fn claims_without_a_ratio_come_out_each_way() {
        let with = |change: &dyn Fn(&mut Figures)| {
            let mut figures = all_at(ratio(1.0));
            change(&mut figures);
            figures
        };
        let steady =
            |least: [f64; 3]| judged("steady rate", &with(&|figures| figures.steadiness = Spread::of(&least))).holds;
        assert_eq!(steady([0.9, 0.95, 0.97]), Yes);
        assert_eq!((steady([0.1, 0.2, 0.1]), steady([0.1, 0.9, 0.9])), (No, Inconclusive));
        let stop =
            |lowest: [f64; 3]| judged("near stop", &with(&|figures| figures.collapse = Spread::of(&lowest))).holds;
        assert_eq!(stop([0.01, 0.1, 0.05]), Yes);
        assert_eq!((stop([0.8, 0.9, 0.9]), stop([0.1, 0.9, 0.9])), (No, Inconclusive));
        let shot = |count: f64, is_virtual: bool| {
            let change = |figures: &mut Figures| {
                (figures.shootdowns_mapped, figures.is_virtual) = (Spread::of(&[count; 3]), is_virtual);
                figures.shootdowns_direct = Spread::of(&[0.0; 3]);
            };
            judged("causes TLB", &with(&change)).holds
        };
        assert_eq!(
            [shot(0.05, true), shot(0.005, true), shot(0.0, false), shot(0.0, true)],
            [Yes, Partly, No, Inconclusive]
        );
        let memory = |buffered, direct| {
            judged("80 KB", &with(&|figures| figures.within_memory = Some((buffered, direct, 134e6)))).holds
        };
        assert_eq!([memory(140e6, 0.8e6), memory(140e6, 100e6), memory(50e6, 100e6)], [Yes, Partly, No]);
        let device = |share| judged("Less than half", &with(&|figures| figures.device_share = spread(share))).holds;
        assert_eq!([device(0.4), device(0.5), device(0.8)], [Yes, Inconclusive, No]);
        let wasted = |small, ahead| {
            judged("87 %", &with(&|figures| figures.wasted = spread(small).zip(Spread::of(&[ahead; 3])))).holds
        };
        assert_eq!([wasted(0.875, 0.996), wasted(0.875, 0.9), wasted(0.2, 0.9)], [Yes, Partly, No]);
    }

    /// Shootdowns are judged by their share of a mapped read's processor time. They are cheap on few processors, so the
    /// verdict then names the missing processors.
    #[test]
    fn the_cost_of_shootdowns_comes_out_each_way() {
        let of = |cost: f64, processors: usize| {
            let mut figures = all_at(ratio(1.0));
            (figures.shootdown, figures.processors) = (Some(cost), processors);
            judged("significantly", &figures)
        };
        assert_eq!([of(40.0, 64).holds, of(10.0, 64).holds, of(2.0, 64).holds], [Yes, Partly, NotInSize]);
        // If the condition were ignored, 0.024 shootdowns per read of 12.3 us would count as significant.
        let mut report = all_at(ratio(1.0));
        (report.shootdowns_mapped, report.mapped_micros) = (Spread::of(&[0.023, 0.024, 0.024]), Some(12.3));
        (report.shootdown, report.processors) = (Some(4.0), 2);
        let judged = judged("significantly", &report);
        assert_eq!(judged.holds, Inconclusive);
        assert!(judged.why.contains("0.8 %") && judged.missing.unwrap().contains("64 processors"), "{}", judged.why);
    }

    /// Figures measured with two processors and a drive of 104 k reads/s can't refute the claims. With an older rule,
    /// the verdicts were partly true or false, or did not name the missing condition.
    #[test]
    fn a_small_machine_cannot_refute() {
        let report = |ratio: Ratio| Figures {
            processors: 2,
            read_micros: Some(92.0),
            direct_rates: vec![(Regime::Device, 104e3), (Regime::Memory, 184e3), (Regime::Pressure, 101e3)],
            kswapd_share: Some(1.0),
            collapse: Spread::of(&[0.48, 0.52, 0.7]),
            ..all_at(ratio)
        };
        let range = |median, least, most| Ratio { median, least, most, noise: 1.01 };
        let has_conditions = |claim: &str, figures: &Figures, parts: &[&str]| {
            let judged = judged(claim, figures);
            let missing = judged.missing.unwrap_or_default();
            assert_eq!(judged.holds, Inconclusive, "{claim}");
            assert!(parts.iter().all(|part| missing.contains(part)), "{claim}: {missing}");
        };
        let drive = report(range(1.26, 1.19, 1.34));
        has_conditions("on this drive", &drive, &["64 processors (here 2)", "the faulting threads evict"]);
        let memory = report(range(1.69, 1.55, 1.78));
        has_conditions("medium faster", &memory, &["64 processors (here 2)", "the faulting threads evict"]);
        assert!(judged("medium faster", &memory).why.contains("1.69 times (1.55 to 1.78) their processor time"));
        has_conditions(
            "whole machine",
            &report(range(1.30, 1.12, 1.52)),
            &["64 processors", "900 k reads/s (here 101 k)"],
        );
        has_conditions("near stop", &drive, &["64 processors (here 2)", "900 k reads/s (here 101 k)"]);
        has_conditions("a quarter faster", &report(range(17.2, 16.4, 18.4)), &["in 8.85 us (here 92.0 us)"]);
        let mut unfilled = report(range(1.26, 1.07, 1.33));
        unfilled.cache_filled = Some(225.0 / 537.0);
        has_conditions("2.3 times", &unfilled, &["a page cache that was full (42 % of its limit were used)"]);
    }

    /// The verdict names the conditions of the source that this machine does not meet.
    #[test]
    fn missing_conditions_are_named() {
        let mut figures = all_at(ratio(2.0));
        figures.kswapd_share = Some(0.1);
        figures.direct_rates = vec![(Regime::Device, 5e5), (Regime::Memory, 6e5), (Regime::Pressure, 5e5)];
        figures.missing.push((Regime::Device, "a loop device (Operation not permitted)".to_owned()));
        figures.direct_over_mapped.remove(0);
        let missing = |claim: &str, figures: &Figures| judged(claim, figures).missing.unwrap();
        assert!(missing("on this drive", &figures).contains("loop device"));
        assert!(missing("medium faster", &figures).contains("a medium faster"));
        assert!(missing("whole machine", &figures).contains("the kernel's own thread"));
        figures.direct_over_mapped.clear();
        figures.collapse = None;
        assert!(missing("whole machine", &figures).contains("never matched"));
        assert!(missing("near stop", &figures).contains("never matched"));
    }

    /// The figures for a series are computed from its samples.
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
        assert_eq!(steadiness(&samples), 0.6);
    }
}
