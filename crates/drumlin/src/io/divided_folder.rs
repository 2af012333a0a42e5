//! A folder some of whose files are in subfolders. The subfolders may be symbolic links to other devices.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::{FileRef, Folder, FolderRef, Lock, OpenOptions};

/// Returns a view of `folder` in which a file named `PART-…` is in the subfolder `PART`, if that exists and `is_part`
/// accepts its name.
///
/// # Errors
/// The operating system's error if the folder cannot be listed or a part cannot be opened.
pub(crate) fn with_parts(folder: FolderRef, is_part: impl Fn(&str) -> bool) -> io::Result<FolderRef> {
    let mut parts = BTreeMap::new();
    for name in folder.list()? {
        if is_part(&name) {
            let part = folder.folder(&name)?;
            parts.insert(name, part);
        }
    }
    Ok(if parts.is_empty() { folder } else { Arc::new(DividedFolder { folder, parts }) })
}

/// A folder and its parts, which together appear as a single folder.
#[derive(Debug)]
struct DividedFolder {
    folder: FolderRef,
    parts: BTreeMap<String, FolderRef>,
}

/// Returns the part that a file belongs to, which is the prefix of the file's name.
fn part_of(name: &str) -> Option<&str> {
    name.split_once('-').map(|(part, _)| part)
}

impl DividedFolder {
    /// Returns the folder that holds a file. This is the file's part, unless the file was created before the part.
    fn holder(&self, name: &str) -> io::Result<&FolderRef> {
        Ok(match part_of(name).and_then(|part| self.parts.get(part)) {
            Some(part) if part.exists(name)? || !self.folder.exists(name)? => part,
            _ => &self.folder,
        })
    }
}

impl Folder for DividedFolder {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn open(&self, name: &str, options: OpenOptions) -> io::Result<FileRef> {
        self.holder(name)?.open(name, options)
    }

    fn folder(&self, name: &str) -> io::Result<FolderRef> {
        self.folder.folder(name)
    }

    fn create_folder(&self, name: &str) -> io::Result<()> {
        self.folder.create_folder(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names: BTreeSet<String> = self.folder.list()?.into_iter().collect();
        for (part, folder) in &self.parts {
            names.extend(folder.list()?.into_iter().filter(|name| part_of(name) == Some(part)));
        }
        Ok(names.into_iter().collect())
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.holder(name)?.exists(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.holder(from)?.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.holder(name)?.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        [&self.folder].into_iter().chain(self.parts.values()).try_for_each(|folder| folder.sync())
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.folder.try_lock(lock)
    }

    fn unlock(&self) -> io::Result<()> {
        self.folder.unlock()
    }

    fn capacity_bytes(&self) -> io::Result<u64> {
        self.folder.capacity_bytes()
    }

    fn identity(&self) -> io::Result<Option<(i128, i128)>> {
        self.folder.identity()
    }

    fn is_same(&self, name: &str, file: &FileRef) -> io::Result<bool> {
        self.holder(name)?.is_same(name, file)
    }
}
