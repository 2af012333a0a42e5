//! The setting of an archive: where its files go, and how many of them may wait.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The bytes of files that may wait for their delivery, unless the setting says otherwise: an hour of 300 KB/s.
const LIMIT_BYTES: u64 = 1 << 30;
/// The age at which a file is ended and delivered, unless the setting says otherwise.
const INTERVAL: Duration = Duration::from_secs(60);

/// The archive of a database: the place where all durable commits are copied, so that a backup can be restored to any
/// moment after it. See [`Config::archive`](crate::Config::archive).
///
/// ```
/// use std::time::Duration;
/// use drumlin::Archive;
///
/// let folder = Archive::to_folder("/mnt/archive/shop").limit_bytes(4 << 30);
/// let upload = Archive::command("/usr/local/bin/upload", ["--bucket", "shop"]).every(Duration::from_secs(10));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Archive {
    pub(crate) destination: Option<Destination>,
    pub(crate) limit_bytes: u64,
    pub(crate) interval: Duration,
}

/// The place to which files are delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    Folder(PathBuf),
    Command { program: PathBuf, arguments: Vec<OsString> },
}

impl Archive {
    fn new(destination: Option<Destination>) -> Archive {
        Archive { destination, limit_bytes: LIMIT_BYTES, interval: INTERVAL }
    }

    /// Copies each file into a folder, which is created if it does not exist, and syncs it. A file has its name only
    /// once it is complete. A folder has the archive of one database. It can't be the folder `archive` in the
    /// database's own folder, where files wait for their delivery.
    ///
    /// A relative path is one in the directory that is the current one when the database is opened.
    #[must_use]
    pub fn to_folder(path: impl Into<PathBuf>) -> Archive {
        Archive::new(Some(Destination::Folder(path.into())))
    }

    /// Runs a command for each file, with these arguments and, as the last one, the path of the file. The command must
    /// store a copy durably under the same name, must not replace a file of that name with other content, and must
    /// exit with 0 only then. Otherwise it is run again after a second. It is not run by a shell.
    ///
    /// A program that is named without a folder is searched for in `PATH`; the relative path of one is like that of a
    /// folder. If the database's folder is moved while it is open, its files wait until it is opened at the new place.
    ///
    /// To restore, bring the files into one folder.
    #[must_use]
    pub fn command<A: Into<OsString>>(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = A>) -> Archive {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Archive::new(Some(Destination::Command { program: program.into(), arguments }))
    }

    /// Ends the archive of a database, and removes the files that wait for their delivery.
    #[must_use]
    pub fn off() -> Archive {
        Archive::new(None)
    }

    /// Sets the number of bytes of ended files that may wait in the database's folder. If more would have to wait, the
    /// archive ends. Default 1 GiB.
    #[must_use]
    pub fn limit_bytes(mut self, bytes: u64) -> Archive {
        self.limit_bytes = bytes;
        self
    }

    /// Sets the age at which a file is ended and delivered: about as much is lost with the database's disk. Files are
    /// also ended when they have 16 MiB, and when the database is closed. Default one minute.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Archive {
        self.interval = interval;
        self
    }
}
