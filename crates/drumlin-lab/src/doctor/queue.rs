//! Finds harmful settings of a drive's queue (read-ahead, scheduler), and asks NVMe drives about their write cache.

use std::path::Path;

use super::{Finding, Severity};
use crate::figures;
use crate::machine::Drive;
use crate::nvme;

/// Read-ahead from which random reads suffer. The kernel's default is 128 KiB. At 1 MiB and above, a random read of one
/// page through the page cache or a mapping may read 256 pages or more.
const READ_AHEAD_BYTES_LARGE: u64 = 1 << 20;

/// Read-ahead that is too small: a sequential read through the page cache then needs a request for every few pages.
const READ_AHEAD_BYTES_SMALL: u64 = 64 << 10;

/// Examines the settings of a drive's queue. It reads no files, so that a test can produce each finding.
pub(super) fn findings(drive: &Drive, is_virtual: bool, is_direct: bool) -> Vec<Finding> {
    let name = drive.name.as_deref().unwrap_or("DRIVE");
    [read_ahead(drive, name, is_direct), scheduler(drive, name, is_virtual)].into_iter().flatten().collect()
}

fn read_ahead(drive: &Drive, name: &str, is_direct: bool) -> Option<Finding> {
    let bytes = drive.read_ahead_bytes?;
    let size = figures::size(bytes);
    let mend = Some(format!("echo 128 > /sys/block/{name}/queue/read_ahead_kb"));
    let whom = if is_direct {
        "Drumlin uses direct I/O and is not affected; backups, mapped files and other programs are"
    } else {
        "Drumlin reads through the page cache here, so its reads are affected too"
    };
    Some(if bytes >= READ_AHEAD_BYTES_LARGE {
        let found = format!("{size}: a random read through the page cache or a mapping may read this much. {whom}");
        Finding { severity: Severity::Advice, what: "read-ahead", found, mend }
    } else if bytes < READ_AHEAD_BYTES_SMALL {
        let found = format!("{size}: reading a file from start to end through the page cache is slow. {whom}");
        Finding { severity: Severity::Advice, what: "read-ahead", found, mend }
    } else {
        Finding { severity: Severity::Fine, what: "read-ahead", found: size, mend: None }
    })
}

fn scheduler(drive: &Drive, name: &str, is_virtual: bool) -> Option<Finding> {
    let scheduler = drive.scheduler.as_deref()?;
    // A virtual drive may report itself as a spinning disk, but its host does the scheduling.
    let spins = drive.rotational == Some(true) && !is_virtual;
    let set = |wanted: &str| Some(format!("echo {wanted} > /sys/block/{name}/queue/scheduler"));
    let (found, mend) = match scheduler {
        "none" if spins => ("none: a spinning disk is slow without one that sorts requests", set("mq-deadline")),
        "bfq" if !spins => ("bfq: takes processor time for each request and delays reads, for fairness", set("none")),
        "mq-deadline" | "kyber" if name.starts_with("nvme") => {
            ("many processors contend for its one lock, and the drive needs no sorting", set("none"))
        }
        other => (other, None),
    };
    let severity = if mend.is_some() { Severity::Advice } else { Severity::Fine };
    let found = if found.starts_with(scheduler) { found.to_owned() } else { format!("{scheduler}: {found}") };
    Some(Finding { severity, what: "scheduler", found, mend })
}

/// Reads an NVMe drive's write cache setting, with the command get-features 6. Returns `None` for other drives.
pub(super) fn nvme_cache(drive: &Drive) -> Option<Finding> {
    let name = drive.name.as_deref().filter(|name| name.starts_with("nvme"))?;
    Some(match nvme::write_cache(&Path::new("/dev").join(name)) {
        Ok(cache) => {
            let found = match cache {
                nvme::WriteCache::On => "get-features 6: the volatile write cache is on, so flushes matter",
                nvme::WriteCache::Off => "get-features 6: the volatile write cache is off",
                nvme::WriteCache::Absent => "the drive says that it has no volatile write cache",
            };
            Finding { severity: Severity::Fine, what: "NVMe cache", found: found.to_owned(), mend: None }
        }
        Err(error) => Finding {
            severity: Severity::Advice,
            what: "NVMe cache",
            found: format!("could not ask the drive for its write cache: {}", crate::session::plain(&error)),
            mend: Some("run the doctor as root".to_owned()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(name: &str, read_ahead_bytes: u64, scheduler: &str, rotational: bool) -> Drive {
        Drive {
            name: Some(name.to_owned()),
            read_ahead_bytes: Some(read_ahead_bytes),
            scheduler: Some(scheduler.to_owned()),
            rotational: Some(rotational),
            ..Drive::default()
        }
    }

    /// Harmful settings are reported with their remedy. The kernel's defaults are fine.
    #[test]
    fn settings_that_hurt_are_named() {
        let severities = |drive: &Drive, is_virtual| {
            findings(drive, is_virtual, true).iter().map(|finding| finding.severity).collect::<Vec<_>>()
        };
        use Severity::{Advice, Fine};
        assert_eq!(severities(&drive("nvme0n1", 128 << 10, "none", false), false), [Fine, Fine]);
        assert_eq!(severities(&drive("nvme0n1", 8 << 20, "mq-deadline", false), false), [Advice, Advice]);
        assert_eq!(severities(&drive("sda", 32 << 10, "none", true), false), [Advice, Advice]);
        assert_eq!(severities(&drive("sda", 128 << 10, "mq-deadline", true), false), [Fine, Fine]);
        assert_eq!(severities(&drive("vda", 128 << 10, "none", true), true), [Fine, Fine]);
        assert_eq!(severities(&drive("sda", 128 << 10, "bfq", false), false), [Fine, Advice]);
        let found = findings(&drive("vda", 8 << 20, "bfq", false), true, false);
        assert_eq!(found[0].mend.as_deref(), Some("echo 128 > /sys/block/vda/queue/read_ahead_kb"));
        assert!(found[0].found.contains("its reads are affected too"), "{found:?}");
        assert!(findings(&Drive::default(), false, true).is_empty());
    }

    /// Only NVMe drives are asked for their write cache. One that does not answer is reported.
    #[test]
    fn only_nvme_drives_are_asked() {
        assert!(nvme_cache(&drive("sda", 0, "none", false)).is_none());
        let absent = nvme_cache(&drive("nvme99n1", 0, "none", false)).unwrap();
        assert_eq!((absent.severity, absent.what), (Severity::Advice, "NVMe cache"));
    }
}
