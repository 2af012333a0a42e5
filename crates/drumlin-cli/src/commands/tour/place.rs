//! Chooses the place for the tour's database: on a real device with enough space, and without replacing anything that a
//! tour did not create.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{Exit, Failure, Result, plain};
use crate::filesystem::FileSystem;
use crate::terminal::figures;

/// The name of a tour's folder. In the temporary directory, which users share, the user's id is appended.
const FOLDER: &str = "drumlin-tour";
/// The name of the database in that folder.
const DATABASE: &str = "db";
/// The file that marks a folder as created by a tour, so that a later tour may remove it.
const MARKER: &str = "made-by-drumlin-tour";
const MARKER_TEXT: &str = "`drumlin tour` made this folder, and replaces `db` in it when it is run again.\n";

/// The space needed in addition to the data: log segments, tables, summaries, and dead space before it is cleaned.
const SPACE_BYTES_BESIDE_DATA: u64 = 512 << 20;

/// The chosen place for the tour's database.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) database: PathBuf,
    pub(super) file_system: &'static str,
    pub(super) free_bytes: u64,
    /// Remarks about the choice of the place.
    pub(super) remarks: Vec<String>,
}

impl Place {
    /// Returns `true` if the database is inside the directory, at any depth.
    pub(super) fn lies_in(&self, root: &Path) -> bool {
        self.database.canonicalize().is_ok_and(|database| database.starts_with(root))
    }

    /// Returns the first usable place: in the given folder, or else in the temporary directory or the current one.
    pub(super) fn choose(given: Option<&Path>, data_bytes: u64) -> Result<Place> {
        let mut remarks = Vec::new();
        let needed_bytes = data_bytes + data_bytes / 4 + SPACE_BYTES_BESIDE_DATA;
        if let Some(folder) = given {
            fs::create_dir_all(folder).map_err(|error| Failure::file("creating", folder, &error))?;
        }
        let mut most_free_bytes = 0;
        for folder in candidates(given) {
            let parent = folder.parent().expect("a folder of a parent");
            let Ok(file_system) = FileSystem::of(parent) else { continue };
            if file_system.is_memory {
                remarks.push(format!(
                    "{} is {}, which is in memory: a commit there proves nothing",
                    parent.display(),
                    file_system.name
                ));
                continue;
            }
            let Some(remark) = clear(&folder)? else {
                remarks.push(format!("{} was not made by a tour, and stays as it is", folder.display()));
                continue;
            };
            // Query again, because removing the previous tour's database may have freed space.
            let file_system = FileSystem::of(parent).map_err(|error| Failure::file("looking at", parent, &error))?;
            if file_system.free_bytes < needed_bytes {
                most_free_bytes = most_free_bytes.max(file_system.free_bytes);
                remarks.push(format!("{} has only {} free", parent.display(), figures::bytes(file_system.free_bytes)));
                continue;
            }
            if let Err(error) = make(&folder) {
                remarks.push(format!("creating {}: {}", folder.display(), plain(&error)));
                continue;
            }
            remarks.extend(remark);
            return Ok(Place {
                database: folder.join(DATABASE),
                file_system: file_system.name,
                free_bytes: file_system.free_bytes,
                remarks,
            });
        }
        let exit = if most_free_bytes > 0 { Exit::DiskFull } else { Exit::Other };
        let needed = figures::bytes(needed_bytes);
        Err(Failure::new(exit, format!("no place for the tour's database: {}", remarks.join("; ")))
            .hint(format!("name a folder on a device with {needed} free: drumlin tour --into DIR")))
    }
}

/// Returns the databases of previous tours. [`Place::choose`] may remove any of them.
pub(super) fn previous(given: Option<&Path>) -> Vec<PathBuf> {
    candidates(given)
        .into_iter()
        .filter(|folder| folder.join(MARKER).is_file())
        .map(|folder| folder.join(DATABASE))
        .collect()
}

/// Returns the folders that a tour may create, best first.
fn candidates(given: Option<&Path>) -> Vec<PathBuf> {
    match given {
        Some(parent) => vec![parent.join(FOLDER)],
        None => {
            let user = rustix::process::getuid();
            vec![env::temp_dir().join(format!("{FOLDER}-{user}")), beside_the_build().join(FOLDER)]
        }
    }
}

/// Returns the folder `target` if there is one in the current folder, to keep a source tree clean. Otherwise returns
/// the current folder.
fn beside_the_build() -> PathBuf {
    let target = PathBuf::from("target");
    if target.is_dir() { target } else { PathBuf::from(".") }
}

/// Removes what a previous tour left in the folder. Returns `None` if the folder was not created by a tour. Otherwise
/// returns a remark if anything was removed.
fn clear(folder: &Path) -> Result<Option<Option<String>>> {
    match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(None)),
        Ok(metadata) if metadata.is_dir() && folder.join(MARKER).is_file() => {}
        _ => return Ok(None),
    }
    let database = folder.join(DATABASE);
    match fs::remove_dir_all(&database) {
        Ok(()) => Ok(Some(Some(format!("the previous tour's database, {}, was removed", database.display())))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(None)),
        // In a shared temporary directory, the folder belongs to a different user.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(Failure::file("removing", &database, &error)),
    }
}

fn make(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join(MARKER), MARKER_TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes only files that a tour created.
    #[test]
    fn what_no_tour_made_stays() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join(FOLDER);
        assert_eq!(clear(&folder).unwrap(), Some(None));
        fs::create_dir_all(folder.join(DATABASE)).unwrap();
        assert_eq!(clear(&folder).unwrap(), None);
        assert!(folder.join(DATABASE).exists());
        make(&folder).unwrap();
        fs::write(folder.join("notes"), "mine").unwrap();
        assert!(clear(&folder).unwrap().flatten().is_some());
        assert!(!folder.join(DATABASE).exists());
        assert!(folder.join("notes").exists());
    }

    /// Each user has a separate folder in the temporary directory. If a folder can't be created, the tour reports why
    /// and tries the next place.
    #[test]
    fn every_user_has_a_folder() {
        let user = rustix::process::getuid().to_string();
        assert!(candidates(None)[0].ends_with(format!("drumlin-tour-{user}")));
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("file"), "").unwrap();
        let failure = Place::choose(Some(&parent.path().join("file/below")), 1).unwrap_err();
        assert_ne!(failure.exit(), Exit::NotFound);
    }

    /// An in-memory file system is never chosen.
    #[test]
    fn memory_is_no_place() {
        let shm = Path::new("/dev/shm");
        if FileSystem::of(shm).is_ok_and(|file_system| file_system.is_memory) {
            let failure = Place::choose(Some(shm), 1).unwrap_err();
            assert_eq!(failure.exit(), Exit::Other);
            assert!(!shm.join(FOLDER).exists());
        }
    }
}
