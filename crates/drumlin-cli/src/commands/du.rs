//! `drumlin du`: sums the sizes of files below each directory of a tree that `index` stored.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::ops::Bound;

use clap::Args;
use serde::Serialize;

use super::index::{Held, Store};
use super::selection::{KeyRange, prefix_range};
use crate::database::DatabaseArgs;
use crate::failure::{Failure, Result};
use crate::terminal::{Output, figures, style};
use crate::text::{Escaped, parse_key};

/// Sum the sizes of the files below each directory that `index` stored
///
/// Prints a line for each directory at most --depth levels below PREFIX, the largest first: the size of all files in
/// and below the directory, their number, and the path. The last line is the total. A symbolic link counts as a file
/// that contains its target path.
#[derive(Debug, Args)]
pub(crate) struct Du {
    #[command(flatten)]
    database: DatabaseArgs,
    /// A directory, or a prefix of paths, with \xNN for non-text bytes [default: the whole tree]
    #[arg(value_name = "PREFIX")]
    prefix: Option<OsString>,
    /// Number of directory levels to list; 0 for the total alone
    #[arg(long, short, value_name = "LEVELS", default_value_t = 1)]
    depth: u32,
}

/// The files whose sizes are summed.
struct Scope {
    /// The path shown in the total's line. If it is only a prefix of paths, it ends with `*`.
    name: String,
    range: KeyRange,
    /// The prefix of the paths of all directories in the scope, or `None` for a file.
    prefix: Option<Vec<u8>>,
}

/// The line for a directory or for the total, as `--json` prints it.
#[derive(Serialize)]
struct Line {
    path: String,
    files: u64,
    bytes: u64,
}

impl Du {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let database = self.database.open_to_read()?;
        let store = Store::existing(&database)?;
        let scope = self.scope(&store)?;
        let total = Line::new(scope.name, store.held(&scope.range)?);
        let mut lines = Vec::new();
        if let Some(prefix) = scope.prefix {
            add_directories(&store, &prefix, self.depth, &mut lines)?;
        }
        lines.sort_by_key(|line| Reverse(line.bytes));
        lines.push(total);
        if output.json() {
            return lines.iter().try_for_each(|line| output.print_json(line));
        }
        let width = lines.iter().map(|line| figures::count(line.files).len()).max().unwrap_or(0);
        let (bold, dim) = (style::BOLD, style::DIM);
        lines.iter().try_for_each(|Line { path, files, bytes }| {
            let (size, count) = (figures::bytes(*bytes), figures::count(*files));
            let noun = if *files == 1 { "file " } else { "files" };
            output.print_text(&format!("{size:>9}  {dim}{count:>width$} {noun}{dim:#}  {bold}{path}{bold:#}"))
        })
    }

    fn scope(&self, store: &Store) -> Result<Scope> {
        let path = self.prefix.as_ref().map(|prefix| parse_key(prefix, false)).transpose()?.unwrap_or_default();
        let name = path.strip_suffix(b"/").unwrap_or(&path);
        if name.is_empty() || name == b"." {
            return Ok(Scope { name: ".".to_owned(), range: prefix_range(Vec::new()), prefix: Some(Vec::new()) });
        }
        let shown = Escaped::new(name).to_string();
        if store.directories.contains_key(name)? {
            let below = [name, b"/"].concat();
            return Ok(Scope { name: shown, range: prefix_range(below.clone()), prefix: Some(below) });
        }
        if store.files.contains_key(&path)? {
            let range = (Bound::Included(path.clone()), Bound::Included(path));
            return Ok(Scope { name: shown, range, prefix: None });
        }
        let range = prefix_range(path.clone());
        if store.file_count(&range)? == 0 && store.directories_at(&path)?.is_empty() {
            return Err(Failure::not_found(format!("no path in the tree begins with '{}'", Escaped::new(&path)))
                .hint("`drumlin scan DATABASE -k files --keys-only` lists its files"));
        }
        Ok(Scope { name: format!("{}*", Escaped::new(&path)), range, prefix: Some(path) })
    }
}

/// Adds a line for each directory at most `depth` levels below a prefix.
fn add_directories(store: &Store, prefix: &[u8], depth: u32, lines: &mut Vec<Line>) -> Result<()> {
    let Some(depth_below) = depth.checked_sub(1) else { return Ok(()) };
    for directory in store.directories_at(prefix)? {
        let below = [&directory[..], b"/"].concat();
        let held = store.held(&prefix_range(below.clone()))?;
        lines.push(Line::new(Escaped::new(&directory).to_string(), held));
        add_directories(store, &below, depth_below, lines)?;
    }
    Ok(())
}

impl Line {
    fn new(path: String, Held { files, bytes }: Held) -> Line {
        Line { path, files, bytes }
    }
}
