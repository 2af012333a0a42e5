//! A control group for the workers, whose memory limit includes the page cache.
//!
//! Under a limit, a file no longer fits into memory once it exceeds the limit, however large the machine's memory is. A
//! version 1 group is created below the process's own group. A version 2 group is created as its sibling, because a
//! version 2 group that contains processes can't enable controllers for its children.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::temp_folder;

/// The file that lists a group's members. Writing a process id to it moves that process into the group.
const MEMBERS: &str = "cgroup.procs";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    V1,
    V2,
}

impl Version {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Version::V1 => "a control group (v1)",
            Version::V2 => "a control group (v2)",
        }
    }
}

/// A control group with a memory limit. Dropping it removes the group.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    outside: PathBuf,
    version: Version,
}

impl Cgroup {
    /// Creates a group that limits the memory of its members to `limit_bytes`.
    ///
    /// # Errors
    /// If the group can't be created. The error says why.
    pub fn create(limit_bytes: u64) -> io::Result<Cgroup> {
        let membership = fs::read_to_string("/proc/self/cgroup")?;
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mut refusal = io::Error::new(io::ErrorKind::Unsupported, "no memory controller is mounted");
        for Place { version, parent, outside } in places(&membership, &mounts) {
            match Cgroup::create_in(&parent, &outside, version, limit_bytes) {
                Ok(cgroup) => return Ok(cgroup),
                Err(error) => {
                    refusal = io::Error::new(error.kind(), format!("{}: {error}", parent.display()));
                }
            }
        }
        Err(refusal)
    }

    fn create_in(parent: &Path, outside: &Path, version: Version, limit_bytes: u64) -> io::Result<Cgroup> {
        for attempt in 0..1000 {
            let path = parent.join(format!("drumlin-lab-{}-{attempt}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            temp_folder::register(&path);
            let cgroup = Cgroup { path, outside: outside.join(MEMBERS), version };
            match version {
                Version::V1 => cgroup.set("memory.limit_in_bytes", &limit_bytes.to_string())?,
                Version::V2 => {
                    cgroup.set("memory.max", &limit_bytes.to_string())?;
                    // Disable swap, because with swap, members could exceed the limit. Some kernels lack this file.
                    let _ = cgroup.set("memory.swap.max", "0");
                }
            }
            return Ok(cgroup);
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        // Open without creating the file: if it is missing, the folder is not a control group.
        let mut file = fs::File::options().write(true).open(self.path.join(name))?;
        io::Write::write_all(&mut file, value.as_bytes())
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Returns the file to which a process writes its id to join the group.
    #[must_use]
    pub fn procs_file(&self) -> PathBuf {
        self.path.join(MEMBERS)
    }

    /// Returns the `cgroup.procs` file of this process's own group. A worker joins that group to leave the new one.
    pub(crate) fn outside(&self) -> PathBuf {
        self.outside.clone()
    }

    /// Returns the peak memory use of the group, page cache included, or `None` if the kernel does not report it.
    #[must_use]
    pub fn used_bytes_max(&self) -> Option<u64> {
        let name = match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        fs::read_to_string(self.path.join(name)).ok()?.trim().parse().ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel may list the last member for a moment after reporting its exit.
        for _ in 0..100 {
            if fs::read_to_string(self.procs_file()).is_ok_and(|members| members.is_empty()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        temp_folder::remove(&self.path);
    }
}

/// The `cgroup.procs` file of the group to which a worker returns when it leaves the lab's group.
static WAY_OUT: OnceLock<PathBuf> = OnceLock::new();

/// Sets the `cgroup.procs` file of the group to which this worker process returns.
pub(crate) fn set_way_out(path: PathBuf) {
    WAY_OUT.get_or_init(|| path);
}

/// Leaves the control group if this process is a worker in one. Under a tight limit, threads that wait for memory could
/// otherwise take a minute to exit.
pub(crate) fn leave() {
    if let Some(way_out) = WAY_OUT.get() {
        // A failure here only makes the exit slower.
        let _ = fs::write(way_out, std::process::id().to_string());
    }
}

/// Returns the memory limit of this process's control group, if it has one.
pub(crate) fn own_limit_bytes() -> Option<u64> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let limits = places(&membership, &mounts).into_iter().filter_map(|place| {
        let name = match place.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        fs::read_to_string(place.outside.join(name)).ok()?.trim().parse::<u64>().ok()
    });
    limits.min()
}

/// A place where a group may be created.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    version: Version,
    parent: PathBuf,
    /// The path of this process's own group.
    outside: PathBuf,
}

/// Returns the places where a group may be created, in the order in which they are tried.
fn places(membership: &str, mounts: &str) -> Vec<Place> {
    let mount = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let &[_, point, found, options, ..] = &fields[..] else { return None };
            let fits = found == kind && option.is_none_or(|option| options.split(',').any(|each| each == option));
            fits.then(|| PathBuf::from(point))
        })
    };
    let mut found = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let group = group.trim_start_matches('/');
        if controllers.split(',').any(|controller| controller == "memory")
            && let Some(point) = mount("cgroup", Some("memory"))
        {
            // In a container, this path may be the host's, which the container can't see.
            for parent in [point.join(group), point] {
                found.push(Place { version: Version::V1, outside: parent.clone(), parent });
            }
        }
        if controllers.is_empty()
            && let Some(point) = mount("cgroup2", None)
        {
            let beside = Path::new(group).parent().unwrap_or(Path::new(""));
            found.push(Place { version: Version::V2, parent: point.join(beside), outside: point.join(group) });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version 1 group is placed below the process's own group, a version 2 group next to it. If no cgroup file
    /// system is mounted, there is no place for a group.
    #[test]
    fn the_place_for_a_group_is_found() {
        let mounts =
            "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let membership = "9:name=systemd:/\n4:memory:/jobs/a\n0::/user/me/shell\n";
        let found = places(membership, mounts);
        assert_eq!(
            (found[0].version, found[0].parent.as_path()),
            (Version::V1, "/sys/fs/cgroup/memory/jobs/a".as_ref())
        );
        let beside = found.last().unwrap();
        assert_eq!((beside.version, beside.parent.as_path()), (Version::V2, "/sys/fs/cgroup/unified/user/me".as_ref()));
        assert_eq!(beside.outside, Path::new("/sys/fs/cgroup/unified/user/me/shell"));
        assert!(places(membership, "").is_empty());
    }

    /// If this process may create groups, `create` creates one, and dropping it removes its folder.
    #[test]
    fn a_group_is_made_and_removed() {
        let Ok(cgroup) = Cgroup::create(64 << 20) else { return };
        let path = cgroup.path.clone();
        assert!(path.join("cgroup.procs").exists());
        drop(cgroup);
        assert!(!path.exists());
    }
}
