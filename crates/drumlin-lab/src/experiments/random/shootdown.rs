//! The cost of a TLB shootdown. A process maps, touches and unmaps a page: first with a single thread, then with
//! additional threads that keep the other processors busy in the same address space.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::BLOCK_BYTES;
use crate::counters::Counters;
use crate::map::{Map, Mode};
use crate::measure::Sample;
use crate::worker::Measurement;

/// The duration of each of the two loops, in seconds.
const SECONDS: f64 = 0.2;

/// Measures the cost on a file of at least one page.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(super) path: PathBuf,
    /// The number of other processors to keep busy.
    pub(super) others: usize,
}

/// The time to map, touch and unmap a page, alone and with busy threads, and the number of shootdowns per page.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cost {
    alone_us: f64,
    beside_us: f64,
    shootdowns: f64,
}

impl Cost {
    /// Returns the cost of a shootdown to the thread that causes it. Returns `None` if too few shootdowns were counted,
    /// or if the time did not grow.
    pub(super) fn micros(&self) -> Option<f64> {
        let cost = (self.beside_us - self.alone_us) / self.shootdowns;
        (self.shootdowns >= 0.05 && cost > 0.0).then_some(cost)
    }
}

impl Measurement for Task {
    const NAME: &'static str = "shootdown";
    type Result = Cost;

    fn perform(self, _: impl FnMut(&Sample)) -> io::Result<Cost> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        let each = || -> io::Result<(f64, f64)> {
            let (start, before, mut count) = (Instant::now(), Counters::now(), 0u32);
            while start.elapsed() < Duration::from_secs_f64(SECONDS) {
                let map = Map::new(&file, BLOCK_BYTES, Mode::Shared)?;
                std::hint::black_box(map[0]);
                count += 1;
            }
            let micros = start.elapsed().as_secs_f64() * 1e6;
            let shootdowns = Counters::now().since(&before).interrupt("TLB");
            Ok((micros / f64::from(count), shootdowns as f64 / f64::from(count)))
        };
        let (alone_us, _) = each()?;
        let stop = AtomicBool::new(false);
        let beside = std::thread::scope(|scope| {
            for _ in 0..self.others {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let result = each();
            stop.store(true, Ordering::Relaxed);
            result
        });
        let (beside_us, shootdowns) = beside?;
        Ok(Cost { alone_us, beside_us, shootdowns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost is that of a single shootdown. It is unknown if no shootdowns were counted.
    #[test]
    fn a_shootdown_has_a_cost() {
        let cost = |beside_us, shootdowns| Cost { alone_us: 2.0, beside_us, shootdowns }.micros();
        assert_eq!(cost(5.0, 1.0), Some(3.0));
        assert_eq!(cost(8.0, 3.0), Some(2.0));
        assert_eq!((cost(5.0, 0.0), cost(1.9, 1.0)), (None, None));
    }

    /// The cost can be measured on any file.
    #[test]
    fn a_cost_is_measured() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; BLOCK_BYTES]).unwrap();
        let cost = Task { path: file.path().to_owned(), others: 1 }.perform(|_| {}).unwrap();
        assert!(cost.alone_us > 0.0 && cost.beside_us > 0.0, "{cost:?}");
    }
}
