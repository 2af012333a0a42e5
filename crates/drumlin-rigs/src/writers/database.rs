//! Drumlin under the scripted workload: several threads, large values, keyspaces that are created and dropped, and
//! concurrent checkpoints and compactions. The configuration is drawn from the seed.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, anyhow};
use drumlin::{Config, IoBackend};
use drumlin_testing::Random;

use super::workload::{Ack, Workload, disturb};
use super::{AckReporter, PREPARED, Verdict};

const FOLDER: &str = "db";

fn workload(seed: u64) -> Workload {
    let mut random = Random(seed);
    let threads = [1, 2, 4, 8][random.below(4) as usize];
    Workload { seed, threads, large_percent: [1, 4, 20][random.below(3) as usize], relaxed_percent: 10 }
}

/// Returns a configuration with small segments, so that segments are switched, recycled and cleaned within a second.
fn config(seed: u64) -> Config {
    let mut random = Random(!seed);
    let backend = if random.chance(70) { IoBackend::Uring } else { IoBackend::Portable };
    Config::new()
        .memory(8 << 20)
        .page_bytes([1024, 4096][random.below(2) as usize])
        .segment_bytes(256 << 10)
        .log_segment_bytes(1 << 20)
        .checkpoint_log_bytes([256 << 10, 2 << 20][random.below(2) as usize])
        .log_streams(1 + u16::from(random.chance(30)))
        .io_backend(backend)
}

pub fn write(folder: &Path, reporter: &AckReporter, seed: u64, from: &[u64]) -> Result<()> {
    let workload = workload(seed);
    let from: Vec<u64> = (0..workload.threads as usize).map(|thread| from.get(thread).copied().unwrap_or(0)).collect();
    let db = config(seed).open(folder.join(FOLDER))?;
    workload.prepare(&db)?;
    reporter.report(PREPARED)?;
    let stop = Arc::new(AtomicBool::new(false));
    let report = |ack: Ack| reporter.report(ack.to_bits()).expect("the rig listens");
    std::thread::scope(|scope| {
        scope.spawn(|| disturb(&db, seed ^ from[0], &stop));
        let results = workload.run_all(&db, &from, u64::MAX >> 16, &report);
        results.into_iter().collect::<drumlin::Result<()>>().map_err(|error| anyhow!(error))
    })
}

pub fn verify(folder: &Path, seed: u64, from: &[u64], acked: &[u64], report: &dyn Fn(u64)) -> Verdict {
    let workload = workload(seed);
    let prepared = !from.is_empty() || acked.contains(&PREPARED);
    let before = from.iter().enumerate().filter(|(_, next)| **next > 0);
    let before = before.map(|(thread, next)| Ack { thread: thread as u64, step: next - 1, full: true });
    let acked: Vec<Ack> = before
        .chain(acked.iter().filter(|acked| **acked < super::WAITING).map(|acked| Ack::from_bits(*acked)))
        .collect();
    let checked = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let db = config(seed).open(folder.join(FOLDER)).map_err(|error| format!("opening: {error}"))?;
        let found = workload.verify(&db, prepared, &acked);
        for (thread, next) in found.iter().flatten().enumerate().filter(|(_, next)| **next > 0) {
            report(Ack { thread: thread as u64, step: next - 1, full: true }.to_bits());
        }
        // Close the database, which syncs the changes that opening made; only then is the verified state certain.
        let closed = db.close().map_err(|error| format!("closing: {error}"));
        found.and_then(|next| closed.map(|()| next))
    }));
    match checked {
        Ok(Ok(next)) => Verdict::Whole(next),
        Ok(Err(reason)) if reason.contains("acknowledged as lasting") || reason.contains("is gone") => {
            Verdict::Lost(reason)
        }
        Ok(Err(reason)) => Verdict::Wrong(reason),
        Err(_) => Verdict::Wrong("a panic".into()),
    }
}
