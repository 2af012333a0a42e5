//! Files and links that get their final name only when they are complete.
//!
//! A file or link is created in its directory under an unused temporary name, and renamed at the end. If it is dropped
//! before that, it is removed. If the process is killed, it stays under its temporary name.

use std::io;
use std::os::fd::AsFd;
use std::time::UNIX_EPOCH;

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, openat, renameat, renameat_with,
    statat, unlinkat,
};
use rustix::io::Errno;

/// A file or link under its temporary name.
#[derive(Debug)]
pub(crate) struct Unfinished<D: AsFd> {
    directory: D,
    first_name: String,
    name: Vec<u8>,
    is_finished: bool,
}

impl<D: AsFd> Unfinished<D> {
    /// Chooses a temporary name for an entry, without creating the entry.
    pub(crate) fn new(directory: D, name: &[u8]) -> Unfinished<D> {
        // A killed process may have had the same process id, so add the time to distinguish this name from its
        // leftovers.
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

    /// Creates the entry as a file. The file is locked while it is open, so [`remove_leftovers`] does not remove it.
    pub(crate) fn create(&self, mode: Mode) -> io::Result<std::fs::File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, &self.first_name, flags, mode)?;
        // This fails on a file system without locks. There, leftovers are not removed.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(file.into())
    }

    /// Gives the entry its name. Fails with `AlreadyExists` if the name is taken, unless `replace` is set.
    pub(crate) fn finish(mut self, replace: bool) -> io::Result<()> {
        let (at, from, to) = (self.directory.as_fd(), self.first_name.as_bytes(), &self.name[..]);
        let renamed = match replace {
            true => renameat(at, from, at, to),
            false => match renameat_with(at, from, at, to, RenameFlags::NOREPLACE) {
                // If the file system lacks this operation, check first. Another process could still create the name
                // between the check and the rename.
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

/// Removes files that killed processes left under temporary names in a directory. Ignores errors.
pub(crate) fn remove_leftovers(directory: impl AsFd) {
    let Ok(items) = Dir::read_from(&directory) else { return };
    let names = items.flatten().map(|item| item.file_name().to_owned());
    for name in names.filter(|name| is_first_name(name.to_bytes())) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = openat(&directory, &name, flags, Mode::empty()) else { continue };
        let is_file = fstat(&file).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile);
        // A file that is still being written is locked.
        if is_file && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = unlinkat(&directory, &name, AtFlags::empty());
        }
    }
}

fn is_first_name(name: &[u8]) -> bool {
    let numbers = name.strip_prefix(b".drumlin-").and_then(|numbers| str::from_utf8(numbers).ok()?.split_once('-'));
    numbers.is_some_and(|(process, time)| process.parse::<u32>().is_ok() && u128::from_str_radix(time, 16).is_ok())
}

impl<D: AsFd> Drop for Unfinished<D> {
    fn drop(&mut self) {
        if !self.is_finished {
            // This fails if the entry was not created.
            let _ = unlinkat(&self.directory, &self.first_name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;

    use super::*;

    /// A file gets its name once it is finished, and is removed if it is dropped before that. Leftovers of killed
    /// processes are removed, but a file that is still being written stays, and so does a file with a different kind of
    /// name.
    #[test]
    fn names_come_last() {
        let folder = tempfile::tempdir().unwrap();
        let directory = File::open(folder.path()).unwrap();
        let names = || {
            let items =
                fs::read_dir(folder.path()).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = items.collect();
            names.sort();
            names
        };
        let others = [".drumlin-1", ".drumlin-x-1", ".drumlin-1-x", "drumlin-1-1", "a"];
        [&others[..], &[".drumlin-1-1af"]]
            .concat()
            .iter()
            .for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        fs::create_dir(folder.path().join(".drumlin-1-2")).unwrap();
        let entry = Unfinished::new(&directory, b"b");
        let first_name = entry.first_name().to_owned();
        let mut file = entry.create(Mode::RWXU).unwrap();
        remove_leftovers(&directory);
        let mut expected = [&others[..], &[".drumlin-1-2", &first_name]].concat();
        expected.sort_unstable();
        assert_eq!(names(), expected);
        file.write_all(b"whole").unwrap();
        entry.finish(false).unwrap();
        assert_eq!(fs::read(folder.path().join("b")).unwrap(), b"whole");
        let entry = Unfinished::new(&directory, b"b");
        entry.create(Mode::RWXU).unwrap();
        assert_eq!(entry.finish(false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names().len(), others.len() + 2);
    }
}
