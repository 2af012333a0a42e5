//! Describes the machine that is measured: processor, kernel, file system and drive.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::nvme;

/// The machine's description in a report.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The name of the processor.
    pub processor: String,
    /// The number of processors that this process may use.
    pub processors: usize,
    /// The size of memory.
    pub memory_bytes: u64,
    /// The size of swap space.
    pub swap_bytes: u64,
    /// The kernel's name and version.
    pub kernel: String,
    /// The hypervisor's vendor, or `a hypervisor`, if the machine is virtual.
    pub virtualised: Option<String>,
    /// The folder that was measured.
    pub folder: String,
    /// The kind of the folder's file system.
    pub file_system: String,
    /// `true` if the file system is in memory, where no write is ever durable.
    pub in_memory: bool,
    /// The mount options of the file system.
    pub mount_options: String,
    /// The drive that holds the file system.
    pub drive: Drive,
}

/// The properties of a drive.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Drive {
    /// The mounted device.
    pub source: String,
    /// The kernel's name for the disk, such as `nvme0n1`, `vda` or `loop0`.
    pub name: Option<String>,
    /// The model that the drive reports.
    pub model: Option<String>,
    /// The kind of write cache that the drive reports, or `None` if it reports no kind. `write back` means volatile.
    pub cache_claimed: Option<String>,
    /// The kind of write cache that the kernel assumes. With `write through`, the kernel never flushes it.
    pub cache_believed: Option<String>,
    /// `true` if a single write can bypass the drive's cache.
    pub forced_unit_access: Option<bool>,
    /// `true` if completions can be polled.
    pub polled: bool,
    /// `true` for a spinning disk.
    pub rotational: Option<bool>,
    /// The size of the smallest write.
    pub logical_block_bytes: Option<u64>,
    /// The kernel's I/O scheduler.
    pub scheduler: Option<String>,
    /// The number of bytes that the kernel reads ahead.
    pub read_ahead_bytes: Option<u64>,
}

impl Machine {
    /// Returns `true` if QEMU emulates the processor. Costs measured on such a processor are meaningless.
    pub(crate) fn is_emulated(&self) -> bool {
        self.processor.contains("TCG") || self.processor.contains("QEMU Virtual CPU")
    }

    /// Describes this machine and the drive that holds `folder`.
    ///
    /// # Errors
    /// Any error that the system reports for the folder.
    pub fn of(folder: &Path) -> io::Result<Machine> {
        let folder = folder.canonicalize()?;
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let named = |text: &str, names: &[&str]| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(name, _)| names.contains(&name.trim()))
                .map(|(_, value)| value.trim().to_owned())
        };
        let meminfo = read("/proc/meminfo");
        let hypervisor = cpuinfo.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor"));
        let vendor = read("/sys/class/dmi/id/sys_vendor").trim().to_owned();
        let mounts = read("/proc/self/mountinfo");
        let mount = mount_of(&mounts, &folder).unwrap_or_default();
        let magic = rustix::fs::statfs(&folder)?.f_type as u32;
        let uname = rustix::system::uname();
        Ok(Machine {
            processor: named(&cpuinfo, &["model name", "Processor", "cpu model"])
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: crate::counters::field(&meminfo, "MemTotal:") * 1024,
            swap_bytes: crate::counters::field(&meminfo, "SwapTotal:") * 1024,
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            virtualised: hypervisor.then(|| if vendor.is_empty() { "a hypervisor".to_owned() } else { vendor }),
            in_memory: is_in_memory(magic),
            drive: Drive::of(&folder, &mount),
            file_system: mount.file_system,
            mount_options: mount.options,
            folder: folder.display().to_string(),
        })
    }
}

impl Drive {
    fn of(folder: &Path, mount: &Mount) -> Drive {
        let mut drive = Drive { source: mount.source.clone(), ..Drive::default() };
        let number = fs::metadata(folder).map_or(0, |metadata| metadata.dev());
        let numbered = format!("/sys/dev/block/{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        // On btrfs, files have device numbers of their own, so find the mounted device by its name.
        let by_name = Path::new(&mount.source).canonicalize().ok().and_then(|path| {
            let name = path.file_name()?.to_owned();
            Some(Path::new("/sys/class/block").join(name))
        });
        let found =
            [Some(PathBuf::from(numbered)), by_name].into_iter().flatten().find_map(|path| path.canonicalize().ok());
        let Some(mut path) = found else { return drive };
        // The queue belongs to the whole disk, not to a partition.
        if !path.join("queue").is_dir() {
            path.pop();
        }
        let read = |name: &str| {
            let text = fs::read_to_string(path.join(name)).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        drive.name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        drive.model = read("device/model");
        drive.cache_believed = read("queue/write_cache");
        drive.cache_claimed = read("cache_type").or_else(|| {
            let disk = fs::read_dir(path.join("device/scsi_disk")).ok()?.next()?.ok()?;
            Some(fs::read_to_string(disk.path().join("cache_type")).ok()?.trim().to_owned())
        });
        if let Some(name) = drive.name.as_deref().filter(|name| name.starts_with("nvme")) {
            let answer = nvme::write_cache(&Path::new("/dev").join(name));
            drive.cache_claimed = drive.cache_claimed.or_else(|| Some(answer.ok()?.words().to_owned()));
        }
        drive.forced_unit_access = read("queue/fua").map(|text| text == "1");
        drive.polled = read("queue/io_poll").is_some_and(|text| text == "1");
        drive.rotational = read("queue/rotational").map(|text| text == "1");
        drive.logical_block_bytes = read("queue/logical_block_size").and_then(|text| text.parse().ok());
        drive.read_ahead_bytes =
            read("queue/read_ahead_kb").and_then(|text| text.parse::<u64>().ok()).map(|kib| kib << 10);
        drive.scheduler = read("queue/scheduler").map(|text| {
            let chosen = text.split('[').nth(1).and_then(|rest| rest.split(']').next()).map(str::to_owned);
            chosen.unwrap_or(text)
        });
        drive
    }

    /// Returns `true` if the kernel flushes the drive's cache, because it considers the cache volatile.
    pub(crate) fn is_flushed(&self) -> Option<bool> {
        self.cache_believed.as_deref().map(|text| text == "write back")
    }
}

#[derive(Default, PartialEq, Eq, Debug)]
struct Mount {
    file_system: String,
    source: String,
    options: String,
}

/// Finds the mount that contains `folder` in the text of /proc/self/mountinfo.
fn mount_of(mountinfo: &str, folder: &Path) -> Option<Mount> {
    let mut best: Option<(usize, Mount)> = None;
    for line in mountinfo.lines() {
        let Some((place, kind)) = line.split_once(" - ") else { continue };
        let place: Vec<&str> = place.split(' ').collect();
        let kind: Vec<&str> = kind.split(' ').collect();
        let (&[_, _, _, _, point, options, ..], &[file_system, source, super_options, ..]) = (&place[..], &kind[..])
        else {
            continue;
        };
        let point = point.replace("\\040", " ");
        // The last mount on a directory hides the earlier mounts on it.
        if folder.starts_with(&point) && best.as_ref().is_none_or(|(length, _)| point.len() >= *length) {
            let mut all: Vec<&str> = options.split(',').collect();
            all.extend(super_options.split(',').filter(|option| !options.split(',').any(|known| known == *option)));
            let mount = Mount {
                file_system: file_system.to_owned(),
                source: source.replace("\\040", " "),
                options: all.join(","),
            };
            best = Some((point.len(), mount));
        }
    }
    best.map(|(_, mount)| mount)
}

/// Returns the size of the processor's largest cache, or 0 if the kernel does not report it.
pub(crate) fn cache_bytes() -> u64 {
    let size = |index: usize| -> Option<u64> {
        let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        Some(text.trim().strip_suffix('K')?.parse::<u64>().ok()? << 10)
    };
    (0..5).filter_map(size).max().unwrap_or(0)
}

/// Returns `true` for tmpfs and ramfs.
fn is_in_memory(magic: u32) -> bool {
    matches!(magic, 0x0102_1994 | 0x8584_58F6)
}

/// Returns `true` if a folder's file system is in memory, so that its files never reach a device.
pub(crate) fn is_folder_in_memory(folder: &Path) -> io::Result<bool> {
    Ok(is_in_memory(rustix::fs::statfs(folder)?.f_type as u32))
}

/// Returns a folder on persistent memory whose files can be mapped without a page cache, if one is mounted.
pub(crate) fn dax_folder() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let &[_, point, _, options, ..] = &fields[..] else { return None };
        let is_dax = options.split(',').any(|option| option == "dax" || option == "dax=always");
        is_dax.then(|| PathBuf::from(point.replace("\\040", " ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The innermost mount is found, and a repeated option is listed once.
    #[test]
    fn the_mount_of_a_folder_is_found() {
        let table = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\nnonsense\n\
                     30 22 0:40 / /data\\040here rw shared:5 - btrfs /dev/vdb rw\n";
        assert_eq!(mount_of(table, Path::new("/data")).unwrap().options, "rw,relatime,discard");
        assert_eq!(mount_of(table, Path::new("/data here/x")).unwrap().file_system, "btrfs");
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    /// This machine can be described. A missing folder is an error.
    #[test]
    fn this_machine_is_described() {
        let machine = Machine::of(&std::env::temp_dir()).unwrap();
        assert!(machine.processors > 0 && machine.memory_bytes > 0 && !machine.file_system.is_empty(), "{machine:?}");
        assert!(Machine::of(Path::new("/no/such/folder")).is_err());
    }
}
