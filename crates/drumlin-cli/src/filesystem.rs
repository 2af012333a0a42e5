//! The file system and the drive that contain a file.

use std::io;
use std::path::Path;

use rustix::fs::{statfs, statvfs};

/// The file system that contains a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem {
    pub(crate) name: &'static str,
    /// `true` if the file system is in memory, where no write is ever durable.
    pub(crate) is_memory: bool,
    pub(crate) free_bytes: u64,
}

impl FileSystem {
    pub(crate) fn of(path: &Path) -> io::Result<FileSystem> {
        let space = statvfs(path)?;
        // The magic numbers of statfs(2) have 32 bits, regardless of the type of the field.
        let (name, is_memory) = match statfs(path)?.f_type as u32 {
            0x0102_1994 => ("tmpfs", true),
            0x8584_58F6 => ("ramfs", true),
            0x0000_EF53 => ("ext4", false),
            0x5846_5342 => ("xfs", false),
            0x9123_683E => ("btrfs", false),
            0x2FC1_2FC1 => ("zfs", false),
            0x794C_7630 => ("overlayfs", false),
            0xF2F5_2010 => ("f2fs", false),
            0x0000_6969 => ("nfs", false),
            _ => ("a file system of its own kind", false),
        };
        Ok(FileSystem { name, is_memory, free_bytes: space.f_bavail.saturating_mul(space.f_frsize) })
    }
}
