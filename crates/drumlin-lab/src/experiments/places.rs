//! The file systems on which writes are measured: the one that holds the folder, and those that the lab creates.

use std::io;
use std::path::PathBuf;

use crate::machine::Machine;
use crate::mount::{DeviceCache, FileSystem, Mounted};
use crate::session::{Session, plain};

/// The size of a file system that the lab creates. xfs needs at least 300 MB. Only written blocks occupy disk space.
const IMAGE_BYTES: u64 = 1 << 30;

/// The approximate time, in seconds, to create and remove a file system.
pub(super) const PLACE_SECONDS: f64 = 0.5;

/// The kernel's view of the drive's write cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cache {
    /// The kernel flushes the cache, because it considers the cache volatile.
    Volatile,
    /// The kernel does not flush, because it considers writes durable once they complete.
    None,
    Unknown,
}

impl Cache {
    pub(crate) fn of(machine: &Machine) -> Cache {
        match machine.drive.is_flushed() {
            Some(true) => Cache::Volatile,
            Some(false) => Cache::None,
            None => Cache::Unknown,
        }
    }
}

/// A file system on which writes are measured.
#[derive(Debug)]
pub(crate) struct Place {
    /// The name of the place in a table.
    pub(crate) name: String,
    /// The kind of file system, such as `ext4`.
    pub(crate) file_system: String,
    pub(crate) folder: PathBuf,
    /// The kernel's name for the underlying disk.
    pub(crate) disk: Option<String>,
    pub(crate) cache: Cache,
    /// The kind of file system if the lab created it; `None` if it is the file system that holds the folder.
    pub(crate) made: Option<FileSystem>,
    mounted: Option<Mounted>,
}

impl Place {
    fn own(session: &Session<'_>, machine: &Machine) -> Place {
        Place {
            name: format!("{}, the folder's own", machine.file_system),
            file_system: machine.file_system.clone(),
            folder: session.temp_folder.path().to_owned(),
            disk: machine.drive.name.clone(),
            cache: Cache::of(machine),
            made: None,
            mounted: None,
        }
    }

    fn made(session: &Session<'_>, file_system: FileSystem, cache: DeviceCache) -> io::Result<Place> {
        let mounted = Mounted::create(&session.temp_folder, file_system, IMAGE_BYTES, cache)?;
        let kind = file_system.name();
        Ok(Place {
            name: match cache {
                DeviceCache::Volatile => kind.to_owned(),
                DeviceCache::None => format!("{kind}, cache off"),
            },
            file_system: kind.to_owned(),
            folder: mounted.folder().to_owned(),
            disk: Some(mounted.disk().to_owned()),
            cache: match cache {
                DeviceCache::Volatile => Cache::Volatile,
                DeviceCache::None => Cache::None,
            },
            made: Some(file_system),
            mounted: Some(mounted),
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns `true` if the file system keeps a journal or log of its metadata.
    pub(crate) fn has_journal(&self) -> bool {
        match self.file_system.as_str() {
            "xfs" | "jfs" | "ext3" => true,
            "ext4" => self.made.is_some() || is_journalled(self.disk.as_deref()),
            _ => false,
        }
    }

    /// Returns the file system mounted for this place, so that the caller can simulate a power-off. Returns `None` if
    /// the place is on the file system of the folder that the user gave.
    pub(crate) fn into_mounted(self) -> Option<Mounted> {
        self.mounted
    }
}

/// Returns `true` if ext4 on this disk uses a journal. The kernel has a folder in /proc/fs/jbd2 for each journal.
fn is_journalled(disk: Option<&str>) -> bool {
    let Some(disk) = disk else { return false };
    let Ok(entries) = std::fs::read_dir("/proc/fs/jbd2") else { return false };
    entries.filter_map(Result::ok).any(|entry| entry.file_name().to_string_lossy().starts_with(disk))
}

/// The places that were created, and for each other place its name and the reason why it could not be created.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) all: Vec<Place>,
    pub(super) absent: Vec<(String, String)>,
}

impl Places {
    /// Creates the file systems that the settings ask for. Creates ext4 a second time, on a device without a volatile
    /// cache.
    pub(super) fn open(session: &Session<'_>, machine: &Machine) -> Places {
        let mut places = Places { all: vec![Place::own(session, machine)], absent: Vec::new() };
        for (file_system, cache) in wanted(session) {
            if session.interrupted() {
                break;
            }
            session.step(&format!("sync: making {}", file_system.name()), PLACE_SECONDS);
            match Place::made(session, file_system, cache) {
                Ok(place) => places.all.push(place),
                Err(error) => {
                    let off = if cache == DeviceCache::None { " with the cache off" } else { "" };
                    places.absent.push((format!("{}{off}", file_system.name()), plain(&error)));
                }
            }
        }
        places
    }
}

/// Returns the file systems that the lab tries to create.
pub(super) fn wanted(session: &Session<'_>) -> Vec<(FileSystem, DeviceCache)> {
    let asked = &session.settings.file_systems;
    let mut wanted: Vec<_> = asked.iter().map(|each| (*each, DeviceCache::Volatile)).collect();
    if asked.contains(&FileSystem::Ext4) {
        wanted.push((FileSystem::Ext4, DeviceCache::None));
    }
    wanted
}
