//! The directory to which a tree is written, accessed only through descriptors.
//!
//! A path is opened one name at a time, starting at the directory's own descriptor and never following a symbolic link.
//! So neither a path with `..` in the database, nor a link in the directory, leads out of it, even if a link is put
//! there during the run. Files and links get their names only when they are complete ([`Unfinished`]).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, fstat, futimens, mkdirat, openat,
    readlinkat, statat, symlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use crate::commands::index::{Entry, Kind};
use crate::unfinished::{Unfinished, remove_leftovers};

/// The mode bits that are restored. Setuid and setgid depend on owners, which are not stored.
const MODE_BITS: u32 = 0o1777;

/// Permissions and the time of the last modification.
#[derive(Clone, Debug)]
pub(super) struct Attributes {
    mode: Mode,
    times: Timestamps,
}

impl Attributes {
    /// Returns the attributes, or `None` if the time is outside of a file system's range.
    pub(super) fn new(mode: u32, mtime_ns: i128) -> Option<Attributes> {
        let seconds = i64::try_from(mtime_ns.div_euclid(1_000_000_000)).ok()?;
        let last_modification = Timespec { tv_sec: seconds, tv_nsec: mtime_ns.rem_euclid(1_000_000_000) as _ };
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let mode = Mode::from_raw_mode(mode & MODE_BITS);
        Some(Attributes { mode, times: Timestamps { last_access, last_modification } })
    }
}

/// The mode of a directory until it is finished. The next run uses it to recognise directories that a killed run left.
/// Users have no reason to set it: the sticky bit guards files from other users, but here only the owner may enter.
const UNFINISHED: Mode = Mode::from_raw_mode(0o1700);

/// The state in which a run finds a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Directory {
    /// The current run created it.
    New,
    /// An earlier run created it and did not finish it.
    Unfinished,
    /// It existed before any run.
    Existing,
}

/// The directory to which the tree is written; see the module documentation.
#[derive(Debug)]
pub(super) struct Target {
    root: OwnedFd,
    /// The most recently opened directories, from the root down.
    entered: Vec<(Vec<u8>, OwnedFd)>,
}

/// A file that is being written. Dropping it unfinished removes it.
#[derive(Debug)]
pub(super) struct NewFile<'t> {
    file: File,
    entry: Unfinished<BorrowedFd<'t>>,
}

fn open_directory(at: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty()).map_err(|error| match error {
        Errno::LOOP | Errno::NOTDIR => {
            let what = "a file or symbolic link is where a directory should be";
            io::Error::new(io::ErrorKind::NotADirectory, what)
        }
        error => error.into(),
    })
}

fn hash_of_file(at: impl AsFd, name: &[u8]) -> io::Result<u128> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(openat(at, name, flags, Mode::empty())?);
    let mut hash = Xxh3Default::new();
    let mut buffer = [0; 64 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.digest128()),
            length => hash.update(&buffer[..length]),
        }
    }
}

impl Target {
    pub(super) fn open(directory: &Path) -> io::Result<Target> {
        let root = openat(CWD, directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        remove_leftovers(&root);
        Ok(Target { root, entered: Vec::new() })
    }

    /// Creates a directory if it is missing; its attributes are set at the end. If the directory exists, removes the
    /// leftovers of killed runs from it.
    pub(super) fn make_directory(&mut self, path: &[u8]) -> io::Result<Directory> {
        let (parent, name) = self.enter_parent(path)?;
        match mkdirat(parent, name, UNFINISHED) {
            Ok(()) => Ok(Directory::New),
            Err(Errno::EXIST) => {
                let directory = open_directory(parent, name)?;
                remove_leftovers(&directory);
                let found = fstat(&directory)?;
                // The directory may have inherited a setgid bit from its parent.
                let mode = Mode::from_raw_mode(found.st_mode & MODE_BITS);
                let is_own = mode == UNFINISHED && found.st_uid == geteuid().as_raw();
                Ok(if is_own { Directory::Unfinished } else { Directory::Existing })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns `true` if the entry at a path has the same kind and content as the given file or symbolic link of the
    /// tree, or `None` if the path does not exist.
    pub(super) fn is_there(&mut self, path: &[u8], entry: &Entry) -> io::Result<Option<bool>> {
        let (directory, name) = self.enter_parent(path)?;
        let found = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            found => found?,
        };
        let has_size = u64::try_from(found.st_size) == Ok(entry.size);
        let hash = match (FileType::from_raw_mode(found.st_mode), entry.kind) {
            (FileType::RegularFile, Kind::File) if has_size => hash_of_file(directory, name),
            (FileType::Symlink, Kind::Symlink) => {
                readlinkat(directory, name, Vec::new()).map(|path| xxh3_128(path.to_bytes())).map_err(io::Error::from)
            }
            _ => return Ok(Some(false)),
        };
        // Treat a file that can't be read as different.
        Ok(Some(hash.is_ok_and(|hash| entry.has_hash(hash))))
    }

    pub(super) fn set_directory(&mut self, path: &[u8], attributes: &Attributes) -> io::Result<()> {
        // The mode may forbid opening anything below the directory. Its subdirectories are finished by now, so nothing
        // there has to be opened.
        let (directory, name) = self.enter_parent(path)?;
        let directory = open_directory(directory, name)?;
        fchmod(&directory, attributes.mode)?;
        Ok(futimens(&directory, &attributes.times)?)
    }

    pub(super) fn begin_file(&mut self, path: &[u8]) -> io::Result<NewFile<'_>> {
        let entry = self.begin(path)?;
        Ok(NewFile { file: entry.create(Mode::RUSR | Mode::WUSR)?, entry })
    }

    /// Creates a symbolic link to `destination`, which may lie outside of the directory or not exist.
    pub(super) fn make_link(
        &mut self,
        path: &[u8],
        destination: &[u8],
        attributes: &Attributes,
        replace: bool,
    ) -> io::Result<()> {
        let entry = self.begin(path)?;
        symlinkat(destination, entry.directory(), entry.first_name())?;
        utimensat(entry.directory(), entry.first_name(), &attributes.times, AtFlags::SYMLINK_NOFOLLOW)?;
        entry.finish(replace)
    }

    fn begin(&mut self, path: &[u8]) -> io::Result<Unfinished<BorrowedFd<'_>>> {
        let (directory, name) = self.enter_parent(path)?;
        Ok(Unfinished::new(directory, name))
    }

    /// Opens the parent directory of a path, creating missing directories, and returns it with the last component of
    /// the path.
    fn enter_parent<'p>(&mut self, path: &'p [u8]) -> io::Result<(BorrowedFd<'_>, &'p [u8])> {
        let mut names: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
        if names.iter().any(|name| name.is_empty() || *name == b"." || *name == b"..") {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "its path would lead out of the directory"));
        }
        let name = names.pop().expect("a path has a name at least");
        let known = self.entered.iter().zip(&names).take_while(|(entered, name)| entered.0 == **name).count();
        self.entered.truncate(known);
        for name in &names[known..] {
            let parent = self.entered.last().map_or(self.root.as_fd(), |(_, directory)| directory.as_fd());
            match mkdirat(parent, *name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let directory = open_directory(parent, name)?;
            self.entered.push((name.to_vec(), directory));
        }
        Ok((self.entered.last().map_or(self.root.as_fd(), |(_, directory)| directory.as_fd()), name))
    }
}

impl NewFile<'_> {
    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Gives the file its attributes and its name. Fails with `AlreadyExists` if the name is taken, unless `replace` is
    /// set.
    pub(super) fn finish(self, attributes: &Attributes, replace: bool) -> io::Result<()> {
        fchmod(&self.file, attributes.mode)?;
        futimens(&self.file, &attributes.times)?;
        self.entry.finish(replace)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn attributes() -> Attributes {
        Attributes::new(0o6640, -1_500_000_000).unwrap()
    }

    fn write(target: &mut Target, path: &[u8], content: &[u8], replace: bool) -> io::Result<()> {
        let mut file = target.begin_file(path)?;
        file.write_all(content)?;
        file.finish(&attributes(), replace)
    }

    /// Neither a path nor a link leads out of the directory, and a failure leaves no files behind.
    #[test]
    fn nothing_is_written_outside() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        symlink(outside.join("new"), inside.join("dangling")).unwrap();
        let mut target = Target::open(&inside).unwrap();
        for path in [&b"../x"[..], b"/x", b"a/../../x", b"..", b"", b"a//x", b"./x", b"link/x", b"nul\0"] {
            assert!(write(&mut target, path, b"x", true).is_err(), "{}", path.escape_ascii());
            assert!(target.make_link(path, b"x", &attributes(), true).is_err(), "{}", path.escape_ascii());
            assert!(target.make_directory(path).is_err(), "{}", path.escape_ascii());
        }
        assert!(target.make_directory(b"link").is_err());
        assert!(target.set_directory(b"link", &attributes()).is_err());
        assert_eq!(write(&mut target, b"dangling", b"x", false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        write(&mut target, b"dangling", b"x", true).unwrap();
        assert!(fs::symlink_metadata(inside.join("dangling")).unwrap().is_file());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        let mut names: Vec<_> = fs::read_dir(&inside).unwrap().map(|item| item.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["dangling", "link"]);
    }

    /// A run distinguishes directories that an earlier run left unfinished from a user's directories, even below a
    /// directory with a setgid bit.
    #[test]
    fn unfinished_directories_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let set_mode = |path: &str, mode| {
            fs::set_permissions(folder.path().join(path), fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode("", 0o2755);
        fs::create_dir(folder.path().join("mine")).unwrap();
        set_mode("mine", 0o700);
        let mut target = Target::open(folder.path()).unwrap();
        assert_eq!(target.make_directory(b"new").unwrap(), Directory::New);
        assert_eq!(target.make_directory(b"new").unwrap(), Directory::Unfinished);
        assert_eq!(target.make_directory(b"mine").unwrap(), Directory::Existing);
        target.set_directory(b"new", &attributes()).unwrap();
        assert_eq!(target.make_directory(b"new").unwrap(), Directory::Existing);
    }

    /// Files keep their permissions and their time to the nanosecond, but no setuid bit. An existing file is kept.
    #[test]
    fn attributes_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut target = Target::open(folder.path()).unwrap();
        write(&mut target, b"a/b/c", b"1", false).unwrap();
        assert_eq!(write(&mut target, b"a/b/c", b"2", false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let path = folder.path().join("a/b/c");
        assert_eq!(fs::read(&path).unwrap(), b"1");
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.mtime(), metadata.mtime_nsec()), (0o640, -2, 500_000_000));
        write(&mut target, b"a/b/c", b"2", true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2");
    }
}
