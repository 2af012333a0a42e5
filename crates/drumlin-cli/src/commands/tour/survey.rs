//! The tree that the tour stores: its path, its totals, and a directory for the queries.

use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::index::{Held, Met, walk};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::own_files::OwnFiles;
use crate::terminal::{Output, Progress};

/// The totals of a walk through the tree.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) largest_bytes: u64,
    /// A suitable directory for queries, ending with `/`; empty if there is none.
    pub(super) prefix: Vec<u8>,
    pub(super) below_prefix: Held,
}

impl Survey {
    /// Surveys the whole tree except for the database's own files.
    pub(super) fn of(root: &Path, own: &OwnFiles, output: Output) -> Result<Survey> {
        let progress = Progress::counter(output, "looking at the tree: files");
        let mut all = Held::default();
        let mut largest_bytes = 0;
        let mut directories: HashMap<Vec<u8>, Held> = HashMap::new();
        for met in walk(root, own) {
            let Met::File(found) = met else { continue };
            let bytes = found.metadata.len();
            all.files += 1;
            all.bytes += bytes;
            largest_bytes = bytes.max(largest_bytes);
            for end in memchr::memchr_iter(b'/', &found.key) {
                // The directory is usually in the map already, so don't allocate a key before looking.
                let directory = &found.key[..=end];
                if !directories.contains_key(directory) {
                    directories.insert(directory.to_vec(), Held::default());
                }
                let held = directories.get_mut(directory).expect("just inserted");
                held.files += 1;
                held.bytes += bytes;
            }
            progress.add(1);
            interrupt::check()?;
        }
        progress.finish();
        let (prefix, below_prefix) = worth_asking(directories, all.files).unwrap_or((Vec::new(), all));
        Ok(Survey { files: all.files, bytes: all.bytes, largest_bytes, prefix, below_prefix })
    }
}

/// Returns the topmost directory that contains at least a twentieth and at most half of the tree's files.
fn worth_asking(directories: HashMap<Vec<u8>, Held>, files: u64) -> Option<(Vec<u8>, Held)> {
    directories.into_iter().filter(|(_, held)| held.files * 20 >= files && held.files * 2 <= files).min_by_key(
        |(name, held)| {
            let depth = name.iter().filter(|&&byte| byte == b'/').count();
            (depth, u64::MAX - held.files, name.clone())
        },
    )
}

/// Returns the folder of the current Rust toolchain, as reported by `rustc` or else from rustup's folder.
pub(super) fn toolchain() -> Result<PathBuf> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output =
        Command::new(rustc).args(["--print", "sysroot"]).output().ok().filter(|output| output.status.success());
    let sysroot = output.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    // A distribution installs its compiler in /usr, along with many unrelated files.
    let sysroot = sysroot.map(|path| if path == Path::new("/usr") { path.join("lib/rustlib") } else { path });
    let rustup = env::var_os("RUSTUP_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".rustup")));
    let installed = rustup.and_then(|rustup| {
        let mut toolchains: Vec<PathBuf> =
            std::fs::read_dir(rustup.join("toolchains")).ok()?.flatten().map(|item| item.path()).collect();
        toolchains.sort();
        toolchains.into_iter().find(|path| path.is_dir())
    });
    [sysroot, installed].into_iter().flatten().find_map(|path| crate::commands::index::absolute(&path).ok()).ok_or_else(
        || {
            Failure::not_found("no Rust toolchain was found to store")
                .hint("give any directory tree, a gigabyte is about right: drumlin tour PATH")
        },
    )
}
