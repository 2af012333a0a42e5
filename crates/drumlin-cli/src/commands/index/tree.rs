//! Walks a directory tree.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use walkdir::{DirEntry, WalkDir};

use super::Kind;
use crate::failure::{Failure, Result, plain};
use crate::own_files::OwnFiles;

/// A file, symbolic link or directory of the tree.
#[derive(Debug)]
pub(crate) struct Found {
    /// The path relative to the root, separated by `/`: the key in the database.
    pub(crate) key: Vec<u8>,
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) metadata: Metadata,
}

/// An entry that a walk finds.
#[derive(Debug)]
pub(crate) enum Met {
    /// A file or symbolic link.
    File(Box<Found>),
    /// A directory below the root, followed by its entries.
    Directory(Box<Found>),
    /// An entry without content to store, by its path relative to the root.
    Special(Special, Vec<u8>),
    /// The database's own folder or one of its files, by its path relative to the root. The walk does not enter the
    /// folder.
    Own(Vec<u8>),
    /// The reason why an entry can't be read.
    Unreadable(String),
}

/// The kinds of entries without content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Special {
    Socket,
    Fifo,
    Device,
}

/// Returns the absolute path of the directory, with symbolic links and dots resolved.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    let root = fs::canonicalize(path).map_err(|error| Failure::input(path, &error))?;
    if !root.is_dir() {
        return Err(Failure::usage(format!("{} is not a directory", path.display())));
    }
    Ok(root)
}

/// Walks everything below the root, with files in the order of their keys.
pub(crate) fn walk<'a>(root: &'a Path, own: &'a OwnFiles) -> impl Iterator<Item = Met> + 'a {
    let mut items = WalkDir::new(root).sort_by(|left, right| key_part(left).cmp(key_part(right))).into_iter();
    std::iter::from_fn(move || {
        loop {
            let item = match items.next()? {
                Ok(item) => item,
                Err(error) => return Some(Met::Unreadable(unreadable(&error))),
            };
            let kind = match item.file_type() {
                kind if kind.is_dir() => Ok(Kind::Directory),
                kind if kind.is_file() => Ok(Kind::File),
                kind if kind.is_symlink() => Ok(Kind::Symlink),
                kind if kind.is_socket() => Err(Special::Socket),
                kind if kind.is_fifo() => Err(Special::Fifo),
                _ => Err(Special::Device),
            };
            // Directories need this too: for a mount point, the listed inode is that of the directory hidden by the
            // mount.
            let metadata = match item.metadata() {
                Ok(metadata) => metadata,
                Err(error) => return Some(Met::Unreadable(unreadable(&error))),
            };
            let path = item.into_path();
            let below = path.strip_prefix(root).expect("what is found lies below the root");
            let key = below.as_os_str().as_bytes().to_vec();
            if own.contain(&metadata) {
                if kind == Ok(Kind::Directory) {
                    items.skip_current_dir();
                }
                return Some(Met::Own(key));
            }
            match kind {
                // Skip the root itself, which has no path in the tree.
                Ok(Kind::Directory) if key.is_empty() => {}
                Ok(kind @ Kind::Directory) => {
                    return Some(Met::Directory(Box::new(Found { key, path, kind, metadata })));
                }
                Ok(kind) => return Some(Met::File(Box::new(Found { key, path, kind, metadata }))),
                Err(special) => return Some(Met::Special(special, key)),
            }
        }
    })
}

/// Returns the bytes of an entry's name as they appear in keys. A directory's name ends with `/`, so that `a-b` sorts
/// before `a/c`, as in keys.
fn key_part(entry: &DirEntry) -> impl Iterator<Item = u8> {
    let slash = entry.file_type().is_dir().then_some(b'/');
    entry.file_name().as_bytes().iter().copied().chain(slash)
}

fn unreadable(error: &walkdir::Error) -> String {
    match (error.path(), error.io_error()) {
        (Some(path), Some(source)) => format!("{}: {}", path.display(), plain(source)),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files are found in key order, although `-` and `.` sort before `/`.
    #[test]
    fn files_come_in_the_order_of_their_keys() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["a/c", "a-b/d", "a.e", "a", "b/a/b", "b/a.b", "b/ab", "0"] {
            let path = folder.path().join("tree").join(path);
            // `a` already exists as a directory.
            if path.is_dir() {
                continue;
            }
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let root = folder.path().join("tree");
        let own = OwnFiles::default();
        let keys: Vec<Vec<u8>> = walk(&root, &own)
            .filter_map(|met| if let Met::File(found) = met { Some(found.key) } else { None })
            .collect();
        assert_eq!(keys.len(), 7);
        assert!(keys.is_sorted(), "{keys:?}");
    }
}
