//! Walks through a directory tree.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use super::Kind;
use crate::failure::{Failure, Result, plain};
use crate::own_files::OwnFiles;

/// A file or symbolic link of the tree.
#[derive(Debug)]
pub(crate) struct Found {
    /// Relative to the root, with `/`: the key in the database.
    pub(crate) key: Vec<u8>,
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) metadata: Metadata,
}

/// An entry that a walk meets.
#[derive(Debug)]
pub(crate) enum Met {
    File(Box<Found>),
    /// The database's own folder or one of its files, by its path relative to the root; nothing below it is met.
    Own(Vec<u8>),
    /// Why something can't be read.
    Unreadable(String),
}

/// The directory's path without links and dots.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    let root = fs::canonicalize(path).map_err(|error| Failure::file("reading", path, &error))?;
    if !root.is_dir() {
        return Err(Failure::usage(format!("{} is not a directory", path.display())));
    }
    Ok(root)
}

/// All files and symbolic links below the root, in the order of their names. Sockets, pipes and devices have no content
/// and are passed over.
pub(crate) fn walk<'a>(root: &'a Path, own: &'a OwnFiles) -> impl Iterator<Item = Met> + 'a {
    let mut items = WalkDir::new(root).sort_by_file_name().into_iter();
    std::iter::from_fn(move || {
        loop {
            let item = match items.next()? {
                Ok(item) => item,
                Err(error) => return Some(Met::Unreadable(unreadable(&error))),
            };
            let kind = match item.file_type() {
                kind if kind.is_dir() => None,
                kind if kind.is_file() => Some(Kind::File),
                kind if kind.is_symlink() => Some(Kind::Symlink),
                _ => continue,
            };
            // Of a directory too: the inode that is listed for a mounted one is that of what it hides.
            let metadata = match item.metadata() {
                Ok(metadata) => metadata,
                Err(error) => return Some(Met::Unreadable(unreadable(&error))),
            };
            let path = item.into_path();
            let below = path.strip_prefix(root).expect("what is found lies below the root");
            let key = below.as_os_str().as_bytes().to_vec();
            if own.contain(&metadata) {
                if kind.is_none() {
                    items.skip_current_dir();
                }
                return Some(Met::Own(key));
            }
            if let Some(kind) = kind {
                return Some(Met::File(Box::new(Found { key, path, kind, metadata })));
            }
        }
    })
}

fn unreadable(error: &walkdir::Error) -> String {
    match (error.path(), error.io_error()) {
        (Some(path), Some(source)) => format!("{}: {}", path.display(), plain(source)),
        _ => error.to_string(),
    }
}
