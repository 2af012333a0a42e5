//! What is in a directory tree.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use super::Kind;
use crate::failure::{Failure, Result, plain};

/// A file or symbolic link of the tree.
#[derive(Debug)]
pub(crate) struct Found {
    /// Relative to the root, with `/`: the key in the database.
    pub(crate) key: Vec<u8>,
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) metadata: Metadata,
}

/// The directory's path without links and dots.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    let root = fs::canonicalize(path).map_err(|error| Failure::file("reading", path, &error))?;
    if !root.is_dir() {
        return Err(Failure::usage(format!("{} is not a directory", path.display())));
    }
    Ok(root)
}

/// All files and symbolic links below the root, in the order of their names; what can't be read, as a text. Sockets,
/// pipes and devices have no content and are passed over.
pub(crate) fn walk(root: &Path) -> impl Iterator<Item = Result<Found, String>> {
    WalkDir::new(root).sort_by_file_name().into_iter().filter_map(move |item| {
        let item = match item {
            Ok(item) => item,
            Err(error) => return Some(Err(unreadable(&error))),
        };
        let kind = match item.file_type() {
            kind if kind.is_file() => Kind::File,
            kind if kind.is_symlink() => Kind::Symlink,
            _ => return None,
        };
        let metadata = match item.metadata() {
            Ok(metadata) => metadata,
            Err(error) => return Some(Err(unreadable(&error))),
        };
        let path = item.into_path();
        let key = path.strip_prefix(root).expect("what is found lies below the root").as_os_str().as_bytes().to_vec();
        Some(Ok(Found { key, path, kind, metadata }))
    })
}

fn unreadable(error: &walkdir::Error) -> String {
    match (error.path(), error.io_error()) {
        (Some(path), Some(source)) => format!("{}: {}", path.display(), plain(source)),
        _ => error.to_string(),
    }
}
