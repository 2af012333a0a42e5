//! Identifies the files of a database by device and inode, so that a command does not treat its own database as data.
//!
//! A path alone does not identify a file: the folder may be reached through a symbolic link or a bind mount, and its
//! files may have other hard links. Device and inode are the same for every path to a file.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::failure::{Failure, Result};

/// The files in a database's folder (docs/format.md). The log's segments are one or two levels deeper. Any of these may
/// be a symbolic link.
const NAMES: [&str; 9] = ["", "counts-0", "counts-1", "data", "data.new", "log", "lock", "probe", "resident"];

/// The folders and files of databases, by device and inode.
#[derive(Debug, Default)]
pub(crate) struct OwnFiles(HashSet<(u64, u64)>);

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl OwnFiles {
    /// Collects the existing files of these databases. A folder that does not exist contributes no files.
    pub(crate) fn of<P: AsRef<Path>>(databases: impl IntoIterator<Item = P>) -> OwnFiles {
        let mut own = OwnFiles::default();
        for database in databases {
            let database = database.as_ref();
            NAMES.iter().for_each(|name| own.add(&database.join(name)));
            let segments = fs::read_dir(database.join("log")).into_iter().flatten().flatten();
            for segment in segments {
                own.add(&segment.path());
                let of_stream = fs::read_dir(segment.path()).into_iter().flatten().flatten();
                of_stream.for_each(|segment| own.add(&segment.path()));
            }
        }
        own
    }

    /// Adds a file. If the file is a symbolic link, adds its target, because that is what the engine opens.
    fn add(&mut self, path: &Path) {
        // If the metadata of a file can't be read, its content can't be stored as data either.
        self.0.extend(fs::metadata(path).ok().as_ref().map(identity));
    }

    /// Returns `true` if the metadata belong to a folder or file of a database.
    pub(crate) fn contain(&self, metadata: &Metadata) -> bool {
        self.0.contains(&identity(metadata))
    }

    /// Rejects a directory that is inside a database.
    pub(crate) fn check_outside(&self, directory: &Path) -> Result<()> {
        let is_own = |path: &Path| fs::metadata(path).is_ok_and(|metadata| self.contain(&metadata));
        match directory.ancestors().any(is_own) {
            false => Ok(()),
            true => Err(Failure::usage(format!("{} lies within the database itself", directory.display()))
                .hint("the database comes first, then the directory that is stored in it")),
        }
    }

    /// Rejects an input that is a file of the database: the file would grow as it is stored, and the command would
    /// never end.
    pub(crate) fn check_input(&self, file: impl AsFd) -> Result<()> {
        let is_own = rustix::fs::fstat(file).is_ok_and(|found| self.0.contains(&(found.st_dev, found.st_ino)));
        match is_own {
            false => Ok(()),
            true => Err(Failure::usage("the input is a file of the database itself")),
        }
    }

    /// Rejects an output that is a file of the database.
    pub(crate) fn check_output(&self, file: &Path) -> Result<()> {
        match fs::metadata(file).is_ok_and(|metadata| self.contain(&metadata)) {
            false => Ok(()),
            true => Err(Failure::usage(format!("{} is a file of the database itself", file.display()))),
        }
    }
}
