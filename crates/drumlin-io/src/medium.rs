//! The file system and device under a folder.

use std::io;
use std::path::Path;

use super::Backend;

/// The properties of a folder's file system and device that matter for durability.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Medium {
    /// The kind of the file system, such as `ext4`, `xfs` or `tmpfs`, or the backend's name if its files are not the
    /// operating system's.
    pub(super) file_system: String,
    /// The mounted device, with its number and write cache: `/dev/nvme0n1p2 259:2, cache: write back`.
    pub(super) device: String,
    pub(super) mount_options: String,
    /// Set if no file in the folder survives a power cut, even after a sync.
    pub(super) volatile: bool,
}

impl Medium {
    /// Describes the medium of `folder`, whose files `backend` serves.
    pub(super) fn of(backend: &dyn Backend, folder: &Path) -> io::Result<Medium> {
        if matches!(backend.name(), "uring" | "portable") {
            return of_system(folder);
        }
        Ok(Medium {
            file_system: backend.name().to_owned(),
            device: "none".to_owned(),
            mount_options: String::new(),
            volatile: backend.name() == "memory",
        })
    }

    /// Returns a text that changes whenever earlier measurements may no longer hold.
    pub(super) fn fingerprint(&self) -> String {
        format!("{} on {} ({})", self.file_system, self.device, self.mount_options)
    }
}

/// The properties of a block device, read from `/sys/dev/block/…/queue`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an answer of its own")]
pub struct BlockDevice {
    /// The smallest addressable unit, in bytes.
    pub logical_block_bytes: u64,
    /// The smallest unit that the device can write without a read-modify-write cycle, in bytes.
    pub physical_block_bytes: u64,
    /// The size of the largest request, in bytes. The kernel splits larger requests.
    pub request_bytes_max: u64,
    /// The maximum number of separate pieces of memory in a request.
    pub request_segments_max: u64,
    /// The maximum number of requests that the kernel queues for the device.
    pub requests_max: u64,
    /// Set if the device has moving parts or claims to have them, as many virtual devices do.
    pub is_rotational: bool,
    /// Set if the device has a volatile write cache: until it is flushed, a power cut may lose finished writes.
    pub has_volatile_cache: bool,
    /// Set if a single write can bypass that cache (forced unit access).
    pub has_forced_unit_access: bool,
    /// Set if the device accepts discards of unused blocks.
    pub has_discard: bool,
    /// Set if the device can be polled ([`DriverOptions::polled`](crate::DriverOptions::polled)).
    pub can_be_polled: bool,
    /// The size of the largest aligned write that a power cut never tears, in bytes; 0 if the device makes no such
    /// promise.
    pub atomic_write_bytes_max: u64,
}

impl BlockDevice {
    /// Describes the device of `folder`, or returns `None` if the files are not the operating system's or the system
    /// does not describe the device.
    pub(super) fn of(backend: &dyn Backend, folder: &Path) -> io::Result<Option<BlockDevice>> {
        use std::os::unix::fs::MetadataExt;

        if !matches!(backend.name(), "uring" | "portable") {
            return Ok(None);
        }
        let number = std::fs::metadata(folder)?.dev();
        #[allow(clippy::unnecessary_cast, reason = "its width differs between systems")]
        Ok(BlockDevice::of_number(rustix::fs::major(number as _) as u32, rustix::fs::minor(number as _) as u32))
    }

    fn of_number(major: u32, minor: u32) -> Option<BlockDevice> {
        let device = format!("/sys/dev/block/{major}:{minor}");
        // A partition uses the queue of its disk.
        let queue = [format!("{device}/queue"), format!("{device}/../queue")];
        let queue = queue.iter().find(|queue| Path::new(queue).is_dir())?;
        let text = |name: &str| {
            std::fs::read_to_string(format!("{queue}/{name}")).map(|text| text.trim().to_owned()).unwrap_or_default()
        };
        let number = |name: &str| text(name).parse::<u64>().unwrap_or(0);
        Some(BlockDevice {
            logical_block_bytes: number("logical_block_size"),
            physical_block_bytes: number("physical_block_size"),
            request_bytes_max: number("max_sectors_kb") << 10,
            request_segments_max: number("max_segments"),
            requests_max: number("nr_requests"),
            is_rotational: number("rotational") == 1,
            has_volatile_cache: text("write_cache") == "write back",
            has_forced_unit_access: number("fua") == 1,
            has_discard: number("discard_max_bytes") > 0,
            can_be_polled: number("io_poll") == 1,
            atomic_write_bytes_max: number("atomic_write_unit_max_bytes"),
        })
    }
}

#[cfg(all(target_os = "linux", not(drumlin_portable)))]
fn of_system(folder: &Path) -> io::Result<Medium> {
    use std::os::unix::fs::MetadataExt;

    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const RAMFS_MAGIC: i64 = 0x8584_58F6;

    let folder = folder.canonicalize()?;
    #[allow(clippy::unnecessary_cast, reason = "its width differs between architectures")]
    let magic = rustix::fs::statfs(&folder)?.f_type as i64 & 0xFFFF_FFFF;
    let number = std::fs::metadata(&folder)?.dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));

    // A container may hide the mount table. Even so, the device number and the kind of file system are known.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = mount_of(&mounts, &folder).unwrap_or_default();
    let cache = write_cache(major, minor).unwrap_or_else(|| "unknown".to_owned());
    let source = if mount.source.is_empty() { "device" } else { &mount.source };
    let file_system = if mount.file_system.is_empty() { format!("{magic:#x}") } else { mount.file_system };
    // An overlay with the mount option `volatile` skips every sync.
    let unsynced_overlay = file_system == "overlay" && mount.options.split(',').any(|option| option == "volatile");
    Ok(Medium {
        volatile: magic == TMPFS_MAGIC || magic == RAMFS_MAGIC || unsynced_overlay,
        device: format!("{source} {major}:{minor}, cache: {cache}"),
        file_system,
        mount_options: mount.options,
    })
}

#[cfg(not(all(target_os = "linux", not(drumlin_portable))))]
fn of_system(folder: &Path) -> io::Result<Medium> {
    use std::os::unix::fs::MetadataExt;

    let number = std::fs::metadata(folder)?.dev();
    Ok(Medium {
        file_system: std::env::consts::OS.to_owned(),
        device: format!("device {number}"),
        mount_options: String::new(),
        volatile: false,
    })
}

/// Returns the device's own description of its cache: `write back` (volatile) or `write through`.
#[cfg(all(target_os = "linux", not(drumlin_portable)))]
fn write_cache(major: u32, minor: u32) -> Option<String> {
    let device = format!("/sys/dev/block/{major}:{minor}");
    // A partition uses the queue of its disk.
    let read = |path: String| std::fs::read_to_string(path).ok();
    let text =
        read(format!("{device}/queue/write_cache")).or_else(|| read(format!("{device}/../queue/write_cache")))?;
    Some(text.trim().to_owned())
}

/// One line of the mount table.
#[cfg(all(target_os = "linux", not(drumlin_portable)))]
#[derive(Default, PartialEq, Eq, Debug)]
struct Mount {
    file_system: String,
    source: String,
    /// The options of the mount, then those of the file system.
    options: String,
}

/// Returns the mount that contains `folder`. Device numbers cannot identify the mount: on btrfs, those of files differ
/// from those in the mount table.
#[cfg(all(target_os = "linux", not(drumlin_portable)))]
fn mount_of(mountinfo: &str, folder: &Path) -> Option<Mount> {
    let mut best: Option<(usize, Mount)> = None;
    for line in mountinfo.lines() {
        // 36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        let Some((place, kind)) = line.split_once(" - ") else { continue };
        let place: Vec<&str> = place.split(' ').collect();
        let kind: Vec<&str> = kind.split(' ').collect();
        let (&[_, _, _, _, point, options, ..], &[file_system, source, super_options]) = (&place[..], &kind[..]) else {
            continue;
        };
        let point = unescaped(point);
        // If several mounts share a mount point, the last one hides the earlier ones.
        let hides = best.as_ref().is_none_or(|(length, _)| point.len() >= *length);
        if hides && folder.starts_with(&point) {
            let mount = Mount {
                file_system: file_system.to_owned(),
                source: unescaped(source),
                options: format!("{options};{super_options}").replace(';', ","),
            };
            best = Some((point.len(), mount));
        }
    }
    best.map(|(_, mount)| mount)
}

/// Decodes the escapes of the mount table, which writes spaces, tabs, newlines and backslashes as octal numbers
/// (`\040`).
#[cfg(all(target_os = "linux", not(drumlin_portable)))]
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(all(test, target_os = "linux", not(drumlin_portable)))]
mod tests {
    use super::*;

    /// The innermost mount is found, escapes are decoded, and a malformed line is skipped.
    #[test]
    fn the_mount_of_a_folder_is_found() {
        let table = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                     nonsense\n\
                     30 22 0:40 / /data rw,noatime shared:5 - btrfs /dev/vdb rw,compress=zstd\n\
                     31 30 0:41 / /data/with\\040space rw - xfs /dev/mapper/a\\134b rw,nobarrier\n";
        let find = |folder: &str| mount_of(table, Path::new(folder)).unwrap();
        assert_eq!(find("/database").file_system, "ext4");
        assert_eq!(find("/data").options, "rw,noatime,rw,compress=zstd");
        let inner = find("/data/with space/x");
        assert_eq!((inner.file_system.as_str(), inner.source.as_str()), ("xfs", "/dev/mapper/a\\b"));
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    #[test]
    fn memory_file_systems_are_recognised() {
        let shared_memory = Path::new("/dev/shm");
        if shared_memory.is_dir() {
            let medium = of_system(shared_memory).unwrap();
            assert_eq!(medium.volatile, medium.file_system == "tmpfs" || medium.file_system == "ramfs");
        }
        assert!(of_system(Path::new("/no/such/folder")).is_err());
    }
}
