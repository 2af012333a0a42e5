//! The sources' claims about scans, each with a pure function that judges it.

use super::{
    BUFFERED, COPIED, FIO, LARGE, LARGE_SMALL_PAGES, MAPPED, MAPPED_ONE, MAPPED_RANDOM, SMALL, STREAM,
    cpu_seconds_per_gb,
};
use crate::compare::{Claim, Ratio, Size, Spread, at_least, measured};
use crate::condition;
use crate::figures::{self, Form};
use crate::machine::Machine;
use crate::measure::Load;
use crate::report::{Chapter, Holds, Judgement};
use crate::session::{Rounds, Trials};

/// The figures by which the claims are judged. Figures that were not measured are `None`.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// The missing condition if the raw device was not measured.
    missing: Option<String>,
    processors: usize,
    /// The duration of one random read if no others are in flight.
    read_micros: Option<f64>,
    /// On the raw device, the rate of buffered reads with the kernel's read-ahead divided by that of 4 KiB direct
    /// reads, one at a time.
    kernel_over_small: Option<Ratio>,
    stream_over_kernel: Option<Ratio>,
    large_over_kernel: Option<Ratio>,
    /// The ratio `large_over_kernel` on the plain file, with the machine's own read-ahead.
    large_over_own_window: Option<Ratio>,
    own_window_bytes: Option<u64>,
    /// The processor time per byte with a copy divided by that without.
    copy_cpu: Option<Ratio>,
    copy_rate: Option<Ratio>,
    /// The rate of 5 x 512 KiB into huge pages divided by that into small pages, on the plain file. (A loop device
    /// submits requests to its drive from a kernel thread, which hides their cost.)
    huge_over_small_pages: Option<Ratio>,
    /// The memory required by reads: 5 x 512 KiB into small pages, 5 x 512 KiB into huge pages, and 4 KiB, one at a
    /// time.
    memory: Option<[f64; 3]>,
    /// The rate at which 20 threads read a mapping while memory fills, divided by their rate after it is full.
    mapped_fall: Option<Ratio>,
    /// The rate with 256 requests in flight, divided by that of a mapping read by 20 threads, and by that of a mapping
    /// read by one thread.
    fio_over_mapped: Option<Ratio>,
    fio_over_mapped_one: Option<Ratio>,
    fio_rate: Option<Spread>,
    /// The rate of a mapping with SEQUENTIAL divided by that with RANDOM, each read by 20 threads.
    sequential_over_random: Option<Ratio>,
}

impl Figures {
    pub(super) fn of(
        device: &Result<Rounds<Load>, String>,
        file: Option<&Rounds<Load>>,
        machine: &Machine,
        read_micros: Option<f64>,
    ) -> Figures {
        let own = file.and_then(|rounds| rounds.ratio(LARGE, BUFFERED, Load::bytes_per_second));
        let pages = file.and_then(|rounds| rounds.ratio(LARGE, LARGE_SMALL_PAGES, Load::bytes_per_second));
        let all = Figures {
            processors: machine.processors,
            read_micros,
            large_over_own_window: own,
            own_window_bytes: machine.drive.read_ahead_bytes,
            ..Figures::default()
        };
        let rounds = match device {
            Ok(rounds) => rounds,
            Err(missing) => return Figures { missing: Some(missing.clone()), ..all },
        };
        let rate = |left, right| rounds.ratio(left, right, Load::bytes_per_second);
        let [small_pages, huge_pages, least] =
            [LARGE_SMALL_PAGES, LARGE, SMALL].map(|index: usize| rounds[index].memory_bytes_max());
        Figures {
            kernel_over_small: rate(BUFFERED, SMALL),
            stream_over_kernel: rate(COPIED, BUFFERED),
            large_over_kernel: rate(LARGE, BUFFERED),
            copy_cpu: rounds.ratio(COPIED, STREAM, cpu_seconds_per_gb),
            copy_rate: rate(STREAM, COPIED),
            huge_over_small_pages: pages,
            memory: small_pages.zip(huge_pages).zip(least).map(|((small, huge), least)| [small, huge, least]),
            mapped_fall: fall(&rounds[MAPPED], rounds.noise(Load::bytes_per_second)),
            fio_over_mapped: rate(FIO, MAPPED),
            fio_over_mapped_one: rate(FIO, MAPPED_ONE),
            fio_rate: rounds[FIO].spread(Load::bytes_per_second),
            sequential_over_random: rate(MAPPED, MAPPED_RANDOM),
            ..all
        }
    }

    /// Returns the condition for S4's rates, a fast drive, if this machine does not meet it.
    fn fast_drive(&self) -> Option<String> {
        self.read_micros.and_then(condition::read_micros)
    }

    /// Returns the conditions for S1's scans of one drive, processors and a fast drive, if this machine does not meet
    /// both of them.
    fn large_machine(&self) -> Option<String> {
        let drive = self.fio_rate.and_then(|rate| condition::bandwidth(rate.median));
        condition::all([condition::processors(self.processors), drive])
    }
}

/// Returns the rate while memory was filling divided by that after it was full, or `None` if a trial lacked one of
/// these phases.
fn fall(trials: &Trials<Load>, noise: f64) -> Option<Ratio> {
    let rates = trials.samples.iter().map(|samples| {
        let phases = condition::phases(samples, 1.0)?;
        Some((phases.filling?, phases.full))
    });
    let (filling, full): (Vec<f64>, Vec<f64>) = rates.collect::<Option<Vec<_>>>()?.into_iter().unzip();
    Ratio::of(&filling, &full, noise)
}

/// A rate that only several drives together can deliver. S1's ten deliver 70 GB/s. A mapping can't reach this rate,
/// whatever the number of drives.
const SEVERAL_DRIVES: f64 = 20e9;

/// S4's factor: 945 MB/s divided by 463 MB/s. The source claims one half, so the claim fails if the factor is too large
/// as well as if it is too small.
const HALF: Size = Size::of(2.04).from(1.6);

const CLAIMS: [Claim<Figures>; 9] = [
    Claim {
        source: "S4",
        text: "Direct reads of 4 KiB, one at a time, have half of the rate of the kernel's read-ahead.",
        judge: |figures| {
            measured(figures.kernel_over_small, figures.missing.as_deref(), |ratio| {
                let figures_text = format!("The kernel's read-ahead has {} their rate.", ratio.show());
                ratio.judge_about(HALF, figures_text).unless_lacking(figures.fast_drive())
            })
        },
    },
    Claim {
        source: "S4",
        text: "Direct reads with parallel read-ahead (50 buffers of 4 KiB) have 2.5 times the kernel's rate.",
        judge: |figures| {
            at_least(figures.stream_over_kernel, Size::of(2.5).from(2.0), figures.missing.as_deref(), |ratio| {
                format!("They have {} its rate, with 128 KiB of read-ahead.", ratio.show())
            })
            .unless_lacking(figures.fast_drive())
        },
    },
    Claim {
        source: "S4",
        text: "5 x 512 KiB into registered buffers have 7.7 times the kernel's rate.",
        judge: |figures| {
            at_least(figures.large_over_kernel, Size::of(7.7).from(5.0), figures.missing.as_deref(), |ratio| {
                let own = figures.large_over_own_window.map(|own| {
                    let window = figures.own_window_bytes.map_or("the machine's own".to_owned(), figures::size);
                    format!(" With a window of {window}, on the plain file: {}.", own.show())
                });
                let pages = figures.huge_over_small_pages.map(|pages| {
                    format!(" There, into huge pages they come {} as fast as into small ones.", pages.show())
                });
                [Some(format!("{}.", ratio.show())), own, pages].into_iter().flatten().collect()
            })
            .unless_lacking(figures.fast_drive())
        },
    },
    Claim {
        source: "S4",
        text: "Leaving out the copy helps a little (4 %).",
        judge: |figures| {
            at_least(figures.copy_cpu, Size::bound(1.04), figures.missing.as_deref(), |ratio| {
                let rate =
                    figures.copy_rate.map_or(String::new(), |rate| format!("; the rate without is {}", rate.show()));
                format!("The copy takes {} the processor time per byte{rate}.", ratio.show())
            })
        },
    },
    Claim {
        source: "S4",
        text: "5 x 512 KiB in flight need 2.5 MB of memory, and no page cache.",
        judge: |figures| {
            let missing = figures.missing.as_deref().or(Some("a control group, which counts memory"));
            measured(figures.memory, missing, |[small, huge, least]| {
                let (more, show) = ((small - least).max(0.0), |bytes| Form::Bytes.show(bytes));
                let figures_text = format!(
                    "{} more than reads of 4 KiB, one at a time, hold; in huge pages {} more.",
                    show(more),
                    show((huge - least).max(0.0))
                );
                let holds = match more {
                    ..4e6 => Holds::Yes,
                    ..25e6 => Holds::Partly,
                    _ => Holds::No,
                };
                Judgement::new(holds, figures_text)
            })
        },
    },
    Claim {
        source: "S1",
        text: "A mapping read by 20 threads falls once memory is full (figure 3).",
        judge: |figures| {
            let missing = figures.missing.as_deref().or(Some("a run in which memory fills, and stays full"));
            measured(figures.mapped_fall, missing, |ratio| {
                let figures_text = format!("While memory filled it had {} the rate of later.", ratio.show());
                // With only a few processors, eviction slows the reading threads even if another thread evicts.
                match condition::processors(figures.processors).and(figures.large_machine()) {
                    Some(missing) => Judgement::inconclusive(missing, figures_text),
                    None => {
                        ratio.judge_at_least(Size::bound(1.5), figures_text).unless_lacking(figures.large_machine())
                    }
                }
            })
        },
    },
    Claim {
        source: "S1",
        text: "256 requests in flight hold the drive's full rate, a mapping by 20 threads does not (figure 3).",
        judge: |figures| {
            at_least(figures.fio_over_mapped, Size::bound(1.5), figures.missing.as_deref(), |ratio| {
                let one = figures.fio_over_mapped_one;
                let one =
                    one.map_or(String::new(), |one| format!(" Of one thread's, which S1 did not run, {}.", one.show()));
                format!("They have {} the rate of 20 mapping threads.{one}", ratio.show())
            })
            .unless_lacking(figures.large_machine())
        },
    },
    Claim {
        source: "S1",
        text: "MADV_RANDOM is worse for scans.",
        judge: |figures| {
            at_least(figures.sequential_over_random, Size::bound(1.5), figures.missing.as_deref(), |ratio| {
                format!("By 20 threads a mapping with SEQUENTIAL has {} the rate of one with RANDOM.", ratio.show())
            })
        },
    },
    Claim {
        source: "S1",
        text: "Over ten drives, direct reads have 20 times the rate of a mapping (figure 4).",
        judge: |figures| {
            measured(figures.fio_over_mapped.zip(figures.fio_rate), figures.missing.as_deref(), |(ratio, rate)| {
                let figures_text =
                    format!("Direct {}, {} the mapping's rate.", rate.show(Form::Bandwidth, ""), ratio.show());
                if rate.median < SEVERAL_DRIVES {
                    let needed = Form::Bandwidth.show(SEVERAL_DRIVES);
                    return Judgement::inconclusive(format!("several drives as one ({needed} or more)"), figures_text);
                }
                ratio.judge_at_least(Size::of(20.0).from(10.0), figures_text)
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
    use Holds::{Inconclusive, No, NotInSize, Partly, Yes};

    fn ratio(median: f64) -> Option<Ratio> {
        Some(Ratio { median, least: median * 0.97, most: median * 1.03, noise: 1.01 })
    }

    fn unsure(median: f64) -> Option<Ratio> {
        Some(Ratio { noise: 10.0, ..ratio(median).unwrap() })
    }

    /// Returns the figures of a machine like the sources', with this ratio for every claim.
    fn all_at(median: Option<Ratio>, rate: f64) -> Figures {
        Figures {
            missing: None,
            processors: 64,
            read_micros: Some(8.0),
            kernel_over_small: median,
            stream_over_kernel: median,
            large_over_kernel: median,
            large_over_own_window: median,
            own_window_bytes: Some(8 << 20),
            copy_cpu: median,
            copy_rate: median,
            huge_over_small_pages: median,
            memory: Some([3.46e6, 5.02e6, 0.81e6]),
            mapped_fall: median,
            fio_over_mapped: median,
            fio_over_mapped_one: median,
            fio_rate: Spread::of(&[rate]),
            sequential_over_random: median,
        }
    }

    /// Returns the verdicts on all claims except that about memory, which has no ratio.
    fn verdicts(figures: &Figures) -> [Holds; 8] {
        [0, 1, 2, 3, 5, 6, 7, 8].map(|index: usize| (CLAIMS[index].judge)(figures).holds)
    }

    /// Each claim can hold, hold partly, fail, and be inconclusive.
    #[test]
    fn every_claim_comes_out_each_way() {
        // The claim is half the rate; a thirtieth is too far from it.
        assert_eq!(verdicts(&all_at(ratio(30.0), 70e9)), [NotInSize, Yes, Yes, Yes, Yes, Yes, Yes, Yes]);
        assert_eq!((CLAIMS[0].judge)(&all_at(ratio(2.0), 70e9)).holds, Yes);
        assert_eq!(verdicts(&all_at(ratio(0.5), 70e9)), [No; 8]);
        let little = verdicts(&all_at(ratio(1.3), 70e9));
        assert_eq!(little, [NotInSize, NotInSize, NotInSize, Yes, Partly, Partly, Partly, NotInSize]);
        assert_eq!(verdicts(&all_at(unsure(3.0), 70e9)), [Inconclusive; 8]);
        assert!(CLAIMS.iter().all(|claim| (claim.judge)(&Figures::default()).holds == Inconclusive));
        let copy = Figures {
            copy_cpu: Some(Ratio { median: 1.03, least: 1.02, most: 1.05, noise: 1.0 }),
            ..all_at(ratio(1.3), 1e9)
        };
        assert_eq!((CLAIMS[3].judge)(&copy).holds, Partly, "{copy:?}");
        let memory = |bytes| Figures { memory: Some([bytes, bytes, 0.8e6]), ..Figures::default() };
        let memory = [3.4e6, 9e6, 500e6].map(|bytes| (CLAIMS[4].judge)(&memory(bytes)).holds);
        assert_eq!(memory, [Yes, Partly, No]);
    }

    /// One drive can't show the effect of ten, and the verdict names the missing condition.
    #[test]
    fn ten_drives_are_needed() {
        let judged = (CLAIMS[8].judge)(&all_at(ratio(30.0), 7e9));
        assert_eq!(judged.holds, Inconclusive);
        assert!(judged.missing.unwrap().contains("several drives"));
    }

    /// Figures measured with two processors and a drive of 1.31 GB/s can't refute the claims. An older rule accepted
    /// 19.8 times as a half. It judged a fall by 6 %, and 0.968 times the mapping's rate, to be partly true.
    #[test]
    fn a_small_machine_cannot_refute() {
        let range = |median, least, most| Some(Ratio { median, least, most, noise: 1.01 });
        let report = Figures {
            processors: 2,
            read_micros: Some(92.0),
            kernel_over_small: range(19.8, 18.6, 22.4),
            // The rate of a stream of 50 x 4 KiB, which was no higher than that of random reads with 64 in flight.
            stream_over_kernel: range(0.38, 0.37, 0.39),
            mapped_fall: range(1.06, 1.04, 1.21),
            fio_over_mapped: range(0.968, 0.965, 1.08),
            fio_over_mapped_one: range(1.32, 1.31, 1.40),
            ..all_at(ratio(2.15), 1.31e9)
        };
        for (index, part) in
            [(0, "8.85 us (here 92.0 us)"), (1, "8.85 us"), (5, "64 processors"), (6, "7.00 GB/s (here")]
        {
            let judged = (CLAIMS[index].judge)(&report);
            assert_eq!(judged.holds, Inconclusive, "{}", CLAIMS[index].text);
            assert!(judged.missing.as_ref().unwrap().contains(part), "{judged:?}");
        }
        assert!((CLAIMS[0].judge)(&report).why.ends_with("That is far more than claimed."));
        // The fall may be due to the lack of processors.
        let fallen = Figures { mapped_fall: ratio(1.98), ..report.clone() };
        assert_eq!((CLAIMS[5].judge)(&fallen).holds, Inconclusive);
        // On a machine like the sources', the same figures refute the claims.
        let large = Figures { processors: 64, read_micros: Some(9.0), fio_rate: Spread::of(&[6.8e9]), ..report };
        let judged = [0, 1, 5, 6].map(|index: usize| (CLAIMS[index].judge)(&large).holds);
        assert_eq!(judged, [NotInSize, No, NotInSize, No]);
    }
}
