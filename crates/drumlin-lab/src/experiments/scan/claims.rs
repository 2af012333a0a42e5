//! The sources' claims about scans, each judged by a pure function.

use super::{BUFFERED, COPIED, FIO, LARGE, LARGE_SMALL_PAGES, MAPPED, MAPPED_ONE, SMALL, STREAM, cpu_seconds_per_gb};
use crate::compare::{self, Claim, Ratio, Size, Spread, at_least, measured};
use crate::figures::{self, Form};
use crate::measure::{Load, Sample};
use crate::report::{Chapter, Holds, Judgement};
use crate::session::{Rounds, Turns};

/// The figures of a run that claims are judged by; `None` is not measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// The condition for want of which there are no figures of the raw device.
    missing: Option<String>,
    /// Rates on the raw device: the kernel's read-ahead over 4 KiB direct, one at a time.
    kernel_over_small: Option<Ratio>,
    stream_over_kernel: Option<Ratio>,
    large_over_kernel: Option<Ratio>,
    /// The same on the plain file, with the machine's own read-ahead.
    large_over_own_window: Option<Ratio>,
    own_window_bytes: Option<u64>,
    /// Processor time per byte, copied over not copied.
    copy_cpu: Option<Ratio>,
    copy_rate: Option<Ratio>,
    /// 5 x 512 KiB into huge pages over small ones, on the plain file: a loop device asks its drive by a thread of its
    /// own, which hides what a request costs there.
    huge_over_small_pages: Option<Ratio>,
    /// The rate of 20 mapping threads until memory is full over that afterwards.
    mapped_fall: Option<Ratio>,
    /// 256 requests in flight over a mapping by 20 threads, and over one thread.
    fio_over_mapped: Option<Ratio>,
    fio_over_mapped_one: Option<Ratio>,
    fio_rate: Option<Spread>,
}

impl Figures {
    pub(super) fn of(
        device: &Result<Rounds<Load>, String>,
        file: Option<&Rounds<Load>>,
        limit_bytes: u64,
        own_window_bytes: Option<u64>,
    ) -> Figures {
        let own = file.and_then(|rounds| rounds.ratio(LARGE, BUFFERED, Load::bytes_per_second));
        let pages = file.and_then(|rounds| rounds.ratio(LARGE, LARGE_SMALL_PAGES, Load::bytes_per_second));
        let rounds = match device {
            Ok(rounds) => rounds,
            Err(missing) => {
                let missing = Some(missing.clone());
                return Figures { missing, large_over_own_window: own, own_window_bytes, ..Figures::default() };
            }
        };
        let rate = |left, right| rounds.ratio(left, right, Load::bytes_per_second);
        Figures {
            missing: None,
            kernel_over_small: rate(BUFFERED, SMALL),
            stream_over_kernel: rate(STREAM, BUFFERED),
            large_over_kernel: rate(LARGE, BUFFERED),
            large_over_own_window: own,
            own_window_bytes,
            copy_cpu: rounds.ratio(COPIED, STREAM, cpu_seconds_per_gb),
            copy_rate: rate(STREAM, COPIED),
            huge_over_small_pages: pages,
            mapped_fall: fall(&rounds[MAPPED], limit_bytes, rounds.noise(Load::bytes_per_second)),
            fio_over_mapped: rate(FIO, MAPPED),
            fio_over_mapped_one: rate(FIO, MAPPED_ONE),
            fio_rate: rounds[FIO].spread(Load::bytes_per_second),
        }
    }
}

/// The rate until as much was read as memory holds, over the rate afterwards; `None` if a turn is too short for both.
fn fall(turns: &Turns<Load>, limit_bytes: u64, noise: f64) -> Option<Ratio> {
    let rates: Option<Vec<(f64, f64)>> = turns.samples.iter().map(|samples| split(samples, limit_bytes)).collect();
    let (before, after): (Vec<f64>, Vec<f64>) = rates?.into_iter().unzip();
    Ratio::of(&before, &after, noise)
}

/// The mean rates before and after this many bytes; `None` without two samples of each.
fn split(samples: &[Sample], bytes: u64) -> Option<(f64, f64)> {
    let mut read = 0.0;
    let mut last = 0.0;
    let mut parts = [(0.0, 0.0, 0); 2];
    for sample in samples {
        let seconds = sample.at_seconds - last;
        let part = &mut parts[usize::from(read >= bytes as f64)];
        *part = (part.0 + sample.bytes_per_second * seconds, part.1 + seconds, part.2 + 1);
        read += sample.bytes_per_second * seconds;
        last = sample.at_seconds;
    }
    let [before, after] = parts;
    (before.2 >= 2 && after.2 >= 2).then(|| (before.0 / before.1, after.0 / after.1))
}

/// Ten drives bring 70 GB/s in S1; a mapping's own limit is far below a few drives' rate.
const SEVERAL_DRIVES: f64 = 20e9;

/// 945 MB/s over 463. A larger factor is as far from half as a smaller one.
const HALF: Size = Size::of(2.04).from(1.6);

const CLAIMS: [Claim<Figures>; 7] = [
    Claim {
        source: "S4",
        text: "Direct reads of 4 KiB, one at a time, have half of the rate of the kernel's read-ahead.",
        judge: |figures| {
            measured(figures.kernel_over_small, figures.missing.as_deref(), |ratio| {
                let told = format!("The kernel's read-ahead has {} their rate.", ratio.show());
                ratio.judge_about(HALF, told)
            })
        },
    },
    Claim {
        source: "S4",
        text: "Direct reads with parallel read-ahead (4 x 128 KiB) have 2.5 times the kernel's rate.",
        judge: |figures| {
            at_least(figures.stream_over_kernel, Size::of(2.5).from(2.0), figures.missing.as_deref(), |ratio| {
                format!("{}, with 128 KiB of read-ahead.", ratio.show())
            })
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
        source: "S1",
        text: "A mapping read by 20 threads falls once memory is full (figure 3).",
        judge: |figures| {
            let missing = figures.missing.as_deref().unwrap_or("a longer run (memory was full before two samples)");
            at_least(figures.mapped_fall, Size::bound(1.5), Some(missing), |ratio| {
                format!("Until memory was full it had {} the rate of later.", ratio.show())
            })
        },
    },
    Claim {
        source: "S1",
        text: "256 requests in flight hold the drive's full rate, a mapping does not (figure 3).",
        judge: |figures| {
            let both = figures.fio_over_mapped.zip(figures.fio_over_mapped_one);
            measured(both, figures.missing.as_deref(), |(many, one)| {
                let [of_many, of_one] = [many, one].map(|ratio| ratio.at_least(Size::bound(1.5)));
                let told =
                    format!("They have {} the rate of 20 mapping threads, {} that of one.", many.show(), one.show());
                // The source mapped with 20 threads; one thread that is as fast makes it true in part.
                match compare::all([of_many, of_one]) {
                    Holds::CannotTell if of_many == Holds::CannotTell => many.judge(of_many, told),
                    Holds::CannotTell => one.judge(Holds::CannotTell, told),
                    holds => Judgement::new(holds, told),
                }
            })
        },
    },
    Claim {
        source: "S1",
        text: "Over ten drives, direct reads have 20 times the rate of a mapping (figure 4).",
        judge: |figures| {
            measured(figures.fio_over_mapped.zip(figures.fio_rate), figures.missing.as_deref(), |(ratio, rate)| {
                let told = format!("Direct {}, {} the mapping's rate.", rate.show(Form::Bandwidth, ""), ratio.show());
                if rate.median < SEVERAL_DRIVES {
                    let needed = Form::Bandwidth.show(SEVERAL_DRIVES);
                    return Judgement::cannot_tell(format!("several drives as one ({needed} or more)"), told);
                }
                ratio.judge_at_least(Size::of(20.0).from(10.0), told)
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

    fn ratio(median: f64) -> Option<Ratio> {
        Some(Ratio { median, least: median * 0.97, most: median * 1.03, noise: 1.01 })
    }

    fn unsure(median: f64) -> Option<Ratio> {
        Some(Ratio { noise: 10.0, ..ratio(median).unwrap() })
    }

    fn all_at(median: Option<Ratio>, rate: f64) -> Figures {
        Figures {
            missing: None,
            kernel_over_small: median,
            stream_over_kernel: median,
            large_over_kernel: median,
            large_over_own_window: median,
            own_window_bytes: Some(8 << 20),
            copy_cpu: median,
            copy_rate: median,
            huge_over_small_pages: median,
            mapped_fall: median,
            fio_over_mapped: median,
            fio_over_mapped_one: median,
            fio_rate: Spread::of(&[rate]),
        }
    }

    fn verdicts(figures: &Figures) -> Vec<Holds> {
        CLAIMS.iter().map(|claim| (claim.judge)(figures).holds).collect()
    }

    /// Each claim can hold, not hold, hold in part, and be impossible to tell.
    #[test]
    fn every_claim_comes_out_each_way() {
        // A thirtieth is not half.
        assert_eq!(verdicts(&all_at(ratio(30.0), 70e9)), [NotInSize, Yes, Yes, Yes, Yes, Yes, Yes]);
        assert_eq!((CLAIMS[0].judge)(&all_at(ratio(2.0), 70e9)).holds, Yes);
        assert_eq!(verdicts(&all_at(ratio(0.5), 70e9)), [No; 7]);
        let little = verdicts(&all_at(ratio(1.3), 70e9));
        assert_eq!(little, [NotInSize, NotInSize, NotInSize, Yes, Partly, Partly, NotInSize]);
        assert_eq!(verdicts(&all_at(unsure(3.0), 70e9)), [CannotTell; 7]);
        assert_eq!(verdicts(&Figures::default()), [CannotTell; 7]);
        let copy = Figures {
            copy_cpu: Some(Ratio { median: 1.03, least: 1.02, most: 1.05, noise: 1.0 }),
            ..all_at(ratio(1.3), 1e9)
        };
        assert_eq!((CLAIMS[3].judge)(&copy).holds, Partly, "{copy:?}");
    }

    /// One drive cannot show what ten do, and the missing condition is named.
    #[test]
    fn ten_drives_are_needed() {
        let judged = (CLAIMS[6].judge)(&all_at(ratio(30.0), 7e9));
        assert_eq!(judged.holds, CannotTell);
        assert!(judged.missing.unwrap().contains("several drives"));
    }

    /// Rates before and after memory is full, weighted by time.
    #[test]
    fn a_run_is_split_where_memory_is_full() {
        let sample = |at_seconds, bytes_per_second| Sample { at_seconds, bytes_per_second, ..Sample::default() };
        let samples = [sample(1.0, 100.0), sample(2.0, 100.0), sample(3.0, 40.0), sample(5.0, 10.0)];
        assert_eq!(split(&samples, 200), Some((100.0, 20.0)));
        assert_eq!(split(&samples, 1000), None);
    }
}
