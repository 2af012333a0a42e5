//! The conditions on which the sources' findings rest, such as many processors, a fast drive or memory that is really
//! full, and checks that this machine meets them.
//!
//! A machine that does not meet a condition can't refute a finding: see [`Judgement::unless_lacking`]. A machine meets
//! a condition if it has at least half of what the source's machine had.
//!
//! [`Judgement::unless_lacking`]: crate::report::Judgement::unless_lacking

use std::collections::VecDeque;

use crate::figures::Form;
use crate::measure::Sample;

const S1_PROCESSORS: usize = 64;
/// The random reads of 4 KiB per second that S1's ten drives delivered together.
const S1_READS_PER_SECOND: f64 = 900e3;
/// The sequential read rate of each of S1's drives.
const S1_DRIVE_BYTES_PER_SECOND: f64 = 7e9;
/// The duration of a 4 KiB read in S4, whose drive and processor read 463 MB/s in such blocks, one at a time.
const S4_READ_MICROS: f64 = 4096.0 / 463.0;

/// Returns the missing condition if this machine has fewer than half as many processors as S1's.
pub(crate) fn processors(here: usize) -> Option<String> {
    (here * 2 < S1_PROCESSORS).then(|| format!("{S1_PROCESSORS} processors (here {here})"))
}

/// Returns the missing condition if the drive delivers less than half the random reads per second of S1's drives.
pub(crate) fn read_rate(here: f64) -> Option<String> {
    let show = |rate| Form::Rate.show(rate);
    let lacks = here < S1_READS_PER_SECOND / 2.0;
    lacks.then(|| format!("drives of {} reads/s (here {})", show(S1_READS_PER_SECOND), show(here)))
}

/// Returns the missing condition if the drive has less than half of the bandwidth of one of S1's drives.
pub(crate) fn bandwidth(here: f64) -> Option<String> {
    let show = |rate| Form::Bandwidth.show(rate);
    let lacks = here < S1_DRIVE_BYTES_PER_SECOND / 2.0;
    lacks.then(|| format!("a drive of {} (here {})", show(S1_DRIVE_BYTES_PER_SECOND), show(here)))
}

/// Returns the missing condition if a 4 KiB read takes more than twice as long as in S4.
pub(crate) fn read_micros(here: f64) -> Option<String> {
    let show = |micros| Form::Micros.show(micros);
    let lacks = here > S4_READ_MICROS * 2.0;
    lacks.then(|| format!("a drive that answers a read of 4 KiB in {} (here {})", show(S4_READ_MICROS), show(here)))
}

/// Joins the missing conditions into one text.
pub(crate) fn all(missing: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    missing.into_iter().flatten().reduce(|all, next| format!("{all}; {next}"))
}

/// Memory counts as full once the kernel evicts this share of the pages that it reads in.
const FULL_SHARE: f64 = 0.9;

/// The number of samples in the window over which evicted pages are compared with pages read in. One sample is not
/// enough, because the kernel evicts in batches.
const WINDOW: usize = 5;

/// Detects the moment when memory is full, from samples taken during reads through a mapping.
///
/// Each page that a fault reads in becomes resident. If resident memory grows by less than was read, the kernel evicted
/// the difference. That holds both in a control group and on a whole machine, whichever thread evicts.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// The bytes read in and the bytes evicted, for each sample.
    window: VecDeque<(f64, f64)>,
    last: Option<Sample>,
}

impl Filling {
    /// Adds a sample. Returns `true` if, over the window that ends with this sample, the kernel evicted nearly as many
    /// pages as it read in.
    pub(crate) fn is_full(&mut self, sample: &Sample) -> bool {
        let Some(last) = self.last.replace(*sample) else { return false };
        let read = sample.device_bytes_per_second * (sample.at_seconds - last.at_seconds);
        let grown = sample.resident_bytes as f64 - last.resident_bytes as f64;
        self.window.push_back((read, read - grown));
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        let (read, taken) = self.window.iter().fold((0.0, 0.0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        self.window.len() == WINDOW && read > 0.0 && taken >= FULL_SHARE * read
    }
}

/// The rates of reads through a mapping before and after memory became full, in blocks read from the device per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Phases {
    /// The rate while memory was filling, or `None` if it was full from the beginning.
    pub(crate) filling: Option<f64>,
    pub(crate) full: f64,
    /// The lowest rate of any sample, in either phase.
    pub(crate) lowest: f64,
    /// The time until memory became full.
    pub(crate) filling_seconds: f64,
}

/// Splits a run at the moment when memory became full. Returns `None` if that never happened.
pub(crate) fn phases(samples: &[Sample], block_bytes: f64) -> Option<Phases> {
    let mut filling = Filling::default();
    let end = samples.iter().position(|sample| filling.is_full(sample))?;
    // The window in which memory was found to be full belongs to the full phase.
    let (before, after) = samples.split_at((end + 1).saturating_sub(WINDOW));
    let rate = |samples: &[Sample]| {
        let rates: Vec<f64> = samples.iter().map(|sample| sample.device_bytes_per_second / block_bytes).collect();
        (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
    };
    let lowest = samples.iter().map(|sample| sample.device_bytes_per_second / block_bytes).fold(f64::MAX, f64::min);
    let filling_seconds = before.last().map_or(0.0, |sample| sample.at_seconds);
    Some(Phases { filling: rate(before), full: rate(after)?, lowest, filling_seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the source's figure is enough to meet a condition. If this machine has less, the missing condition also
    /// names this machine's figure.
    #[test]
    fn missing_conditions_are_named() {
        assert_eq!(processors(32), None);
        assert_eq!(processors(2).unwrap(), "64 processors (here 2)");
        assert_eq!(read_rate(500e3), None);
        assert!(read_rate(104e3).unwrap().contains("(here 104 k)"));
        assert!(bandwidth(1.35e9).unwrap().contains("(here 1.35 GB/s)") && bandwidth(6.8e9).is_none());
        assert!(read_micros(92.0).unwrap().contains("8.85 us (here 92.0 us)") && read_micros(12.0).is_none());
        assert_eq!(
            all([processors(2), None, processors(4)]).unwrap(),
            "64 processors (here 2); 64 processors (here 4)"
        );
        assert_eq!(all([None, None]), None);
    }

    /// Creates samples of 0.1 s each, with these read rates. Resident memory grows by the bytes read, up to the limit.
    fn run(rates: &[f64], limit_bytes: f64) -> Vec<Sample> {
        let mut resident = 1e6;
        let sample = |(index, rate): (usize, &f64)| {
            resident = (resident + rate * 4096.0 * 0.1_f64).min(limit_bytes);
            Sample {
                at_seconds: 0.1 * (index + 1) as f64,
                device_bytes_per_second: rate * 4096.0,
                resident_bytes: resident as u64,
                ..Sample::default()
            }
        };
        rates.iter().enumerate().map(sample).collect()
    }

    /// If the rate halves once memory is full, after a short stall, the drop is detected even if the run ends soon
    /// afterwards. The rates come from a measured round whose second half, taken alone, showed no drop.
    #[test]
    fn phases_are_split_where_memory_is_full() {
        let rates = [vec![96e3; 12], vec![2e3; 2], vec![58.7e3; 16]].concat();
        let samples = run(&rates, 1e6 + 12.0 * 96e3 * 409.6);
        let found = phases(&samples, 4096.0).unwrap();
        assert!((found.filling.unwrap() - 96e3).abs() < 1.0, "{found:?}");
        assert!(found.full > 50e3 && found.full < 58.7e3, "{found:?}");
        assert!((found.lowest - 2e3).abs() < 1.0 && (found.filling_seconds - 1.2).abs() < 0.11, "{found:?}");
        // The same run, but with more memory than the run reads.
        assert_eq!(phases(&run(&rates, 1e12), 4096.0), None);
        // The memory is full from the beginning.
        let full = phases(&run(&[50e3; 20], 1e6), 4096.0).unwrap();
        assert!(full.filling.is_none_or(|rate| (rate - 50e3).abs() < 1.0) && (full.full - 50e3).abs() < 1.0);
        assert_eq!(phases(&[], 4096.0), None);
    }
}
