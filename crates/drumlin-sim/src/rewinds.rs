//! The archive of a world's database: backups that are made at openings are restored to commits and times after them,
//! once the last session has ended.

use std::time::Duration;

use drumlin::{BackupOptions, Database, Error, RestorePoint, Timestamp};
use drumlin_io::testing::sim::{Disk, Medium, Random};

use crate::client::kept::compare_restored;
use crate::model::Model;
use crate::plan::{ARCHIVE, Fault, Plan};

/// The memory of a restore. It must make the longest commits of all sessions.
const RESTORE_MEMORY_BYTES: u64 = 32 << 20;

/// A full backup.
struct Base {
    timestamp: u64,
    time: Duration,
    backup: Vec<u8>,
}

/// A moment, and the commits that the model had then.
#[derive(Clone, Copy)]
struct Mark {
    time: Duration,
    /// The newest commit that was known to be durable.
    acknowledged: u64,
    /// The newest commit.
    last: u64,
}

/// The backups of a world, and the moments to which they may be restored.
pub(crate) struct Rewinds {
    random: Random,
    bases: Vec<Base>,
    marks: Vec<Mark>,
    pub(crate) restored: u64,
}

impl Rewinds {
    pub(crate) fn new(seed: u64) -> Rewinds {
        Rewinds { random: Random(seed ^ 0x2E31_1DEA), bases: Vec::new(), marks: Vec::new(), restored: 0 }
    }

    /// Notes the commits of this moment. No client may be running.
    pub(crate) fn mark(&mut self, disk: &Disk, model: &Model) {
        let time = disk.backend().wall_clock();
        self.marks.push(Mark { time, acknowledged: model.acknowledged(), last: model.last() });
    }

    /// Makes a backup at the first opening, and at some later ones.
    pub(crate) fn back_up(&mut self, db: &Database, disk: &Disk, plan: &Plan) {
        if !self.bases.is_empty() && !self.random.chance(25) {
            return;
        }
        let mut backup = Vec::new();
        match db.backup_into(&mut backup, &BackupOptions::new()) {
            Ok(report) => {
                let time = disk.backend().wall_clock();
                self.bases.push(Base { timestamp: report.timestamp.0, time, backup });
            }
            Err(error) => {
                let may = disk.is_off() || plan.fault != Fault::None || matches!(error, Error::MemoryInUse { .. });
                assert!(may, "a backup at an opening: {error}");
            }
        }
    }

    /// Verifies the archive that the last session has left, and restores a commit or a moment from it. The disk must
    /// be sound.
    pub(crate) fn verify(&mut self, mut medium: Medium, model: &Model, plan: &Plan) {
        medium.renew();
        let disk = Disk::new(medium, self.random.next());
        let config = plan.config(&disk).memory(RESTORE_MEMORY_BYTES);
        let chains = match config.verify_archive(ARCHIVE) {
            Ok(chains) => chains,
            Err(error) => {
                // There may be no commits, or the archive may have ended before it delivered a file.
                let may_be_empty = plan.fault != Fault::None || model.last() == 0;
                let may = may_be_empty && error.to_string().contains("nothing is at this path");
                assert!(may, "verifying the archive: {error}");
                return;
            }
        };
        if plan.fault == Fault::None {
            let has_all = chains.len() == 1 && chains[0].from.0 == 0 && chains[0].to.0 == model.last();
            assert!(has_all, "the archive should have all commits up to {}: {chains:?}", model.last());
        }
        if self.bases.is_empty() {
            return;
        }
        let base = &self.bases[self.random.below(self.bases.len() as u64) as usize];
        let chain = chains.iter().rfind(|chain| chain.from.0 <= base.timestamp);
        let Some(chain) = chain.filter(|chain| base.timestamp <= chain.to.0) else { return };
        let restore = |point: RestorePoint| {
            let report = config.restore_from_to([&base.backup[..]], ARCHIVE, point, "/restored");
            let report = report.unwrap_or_else(|error| {
                panic!("restoring the backup of commit {} to {point}, with {chains:?}: {error}", base.timestamp)
            });
            compare_restored(&config, "/restored", report.timestamp.0, model);
            report.timestamp.0
        };
        let may_be_restored = |at: &usize| {
            let mark = self.marks[*at];
            (base.timestamp..=chain.to.0).contains(&mark.acknowledged)
                && base.time <= mark.time
                && mark.time.as_millis() < chain.to_time.as_millis()
        };
        let moments: Vec<usize> = (0..self.marks.len()).filter(may_be_restored).collect();
        self.restored += 1;
        if moments.is_empty() || self.random.chance(50) {
            let wanted = base.timestamp + self.random.below(chain.to.0 - base.timestamp + 1);
            let found = restore(RestorePoint::Commit(Timestamp(wanted)));
            assert_eq!(found, wanted, "another commit was restored");
            return;
        }
        let at = moments[self.random.below(moments.len() as u64) as usize];
        let (mark, next) = (self.marks[at], self.marks.get(at + 1));
        let found = restore(RestorePoint::Time(mark.time));
        assert!(
            mark.acknowledged <= found,
            "commit {found} was restored, and commit {} was durable by then",
            mark.acknowledged
        );
        // Commits after the next mark have a later time, unless it is of the same millisecond.
        if let Some(next) = next.filter(|next| mark.time.as_millis() < next.time.as_millis()) {
            assert!(found <= next.last, "commit {found} was restored, and it was made after commit {}", next.last);
        }
    }
}
