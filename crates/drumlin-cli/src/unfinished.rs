//! Entries of a directory that get their name once they are whole.
//!
//! A file or link is made beside its final name, under a first name that is free, and renamed in the end. If it is
//! dropped before, it is removed; a process that is killed leaves it under its first name.

use std::io;
use std::os::fd::AsFd;
use std::time::UNIX_EPOCH;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, openat, renameat, renameat_with, statat, unlinkat};
use rustix::io::Errno;

/// An entry under its first name.
#[derive(Debug)]
pub(crate) struct Unfinished<D: AsFd> {
    directory: D,
    first_name: String,
    name: Vec<u8>,
    is_finished: bool,
}

impl<D: AsFd> Unfinished<D> {
    /// Chooses a first name for an entry; nothing is made yet.
    pub(crate) fn new(directory: D, name: &[u8]) -> Unfinished<D> {
        // The time tells it from those that a killed process of the same number left.
        let time = UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos());
        let first_name = format!(".drumlin-{}-{time:x}", std::process::id());
        Unfinished { directory, first_name, name: name.to_vec(), is_finished: false }
    }

    pub(crate) fn directory(&self) -> &D {
        &self.directory
    }

    pub(crate) fn first_name(&self) -> &str {
        &self.first_name
    }

    /// Makes it as a file.
    pub(crate) fn create(&self, mode: Mode) -> io::Result<std::fs::File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.directory, &self.first_name, flags, mode)?.into())
    }

    /// Gives the entry its name; `AlreadyExists` if the name is taken and is not to be replaced.
    pub(crate) fn finish(mut self, replace: bool) -> io::Result<()> {
        let (at, from, to) = (self.directory.as_fd(), self.first_name.as_bytes(), &self.name[..]);
        let renamed = match replace {
            true => renameat(at, from, at, to),
            false => match renameat_with(at, from, at, to, RenameFlags::NOREPLACE) {
                // A file system that can't: a look first, which another process could run ahead of.
                Err(Errno::INVAL | Errno::NOSYS) => match statat(at, to, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => renameat(at, from, at, to),
                    Ok(_) => Err(Errno::EXIST),
                    Err(error) => Err(error),
                },
                renamed => renamed,
            },
        };
        self.is_finished = renamed.is_ok();
        Ok(renamed?)
    }
}

impl<D: AsFd> Drop for Unfinished<D> {
    fn drop(&mut self) {
        if !self.is_finished {
            // Fails if it was not made.
            let _ = unlinkat(&self.directory, &self.first_name, AtFlags::empty());
        }
    }
}
