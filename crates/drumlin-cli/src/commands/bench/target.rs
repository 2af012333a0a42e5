//! The database to measure: finds or creates it, and describes it.

use std::fs;
use std::path::{Path, PathBuf};

use drumlin::{Config, Database, Keyspace, Stats};
use serde::{Deserialize, Serialize};

use super::data::{KEY_BYTES, WriteOrder};
use super::options::{KEYS_DEFAULT, Options};
use crate::failure::{Failure, Result};
use crate::filesystem::FileSystem;
use crate::terminal::{Output, figures};

/// The keyspace with the rows.
const ROWS: &str = "bench";
/// The keyspace with the description of the rows.
const ABOUT: &str = "bench_about";
const ABOUT_KEY: &[u8] = b"rows";

/// The number and size of the rows in a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Dataset {
    pub(super) keys: u64,
    pub(super) value_size: u64,
}

impl Dataset {
    pub(super) fn data_bytes(self) -> u64 {
        self.keys * (KEY_BYTES as u64 + self.value_size)
    }
}

pub(super) struct Target<'a> {
    pub(super) options: &'a Options,
    pub(super) output: Output,
    pub(super) path: PathBuf,
    /// The rows that the options select for measurement. The database may contain more.
    pub(super) about: Dataset,
    /// The rows in the database, if they were loaded completely.
    loaded: Option<Dataset>,
    database: Option<Database>,
    /// The temporary folder, removed at the end, if no path was given.
    temporary: Option<Temporary>,
}

impl<'a> Target<'a> {
    pub(super) fn open(options: &'a Options, output: Output) -> Result<Target<'a>> {
        let temporary = if options.path.is_none() { Some(Temporary::create()?) } else { None };
        let path = options.path.clone().or(temporary.as_ref().map(|temporary| temporary.0.clone()));
        let path = path.expect("either given or temporary");
        let database = config(options).open(&path)?;
        if FileSystem::of(&path).is_ok_and(|file_system| file_system.is_memory) {
            output.remark("warning: this file system is in memory, so no device is measured");
        }
        let loaded = loaded(&database)?;
        let about = Dataset {
            keys: options.keys.or(loaded.map(|about| about.keys)).unwrap_or(KEYS_DEFAULT),
            value_size: loaded.map_or(options.value_size, |about| about.value_size),
        };
        if let Some(loaded) = loaded.filter(|loaded| loaded.keys < about.keys) {
            return Err(Failure::usage(format!(
                "--keys {}: the database at {} has {}",
                about.keys,
                path.display(),
                figures::plural(loaded.keys, "row")
            ))
            .hint("give fewer keys, or another --path"));
        }
        Ok(Target { options, output, path, about, loaded, database: Some(database), temporary })
    }

    pub(super) fn database(&self) -> &Database {
        self.database.as_ref().expect("open until it is closed")
    }

    pub(super) fn rows(&self) -> Result<Keyspace> {
        Ok(self.database().keyspace(ROWS)?)
    }

    pub(super) fn stats(&self) -> Stats {
        self.database().stats()
    }

    /// Returns the page size of the keyspace with the rows.
    pub(super) fn page_bytes(&self) -> usize {
        let info = self.database().keyspaces().into_iter().find(|info| info.name == ROWS);
        info.map_or(4096, |info| info.page_bytes)
    }

    /// Returns `true` if all rows fit in three quarters of the budget. The last quarter is left for the engine's other
    /// memory.
    pub(super) fn fits_in_memory(&self) -> bool {
        self.about.data_bytes() / 3 * 4 <= self.options.memory
    }

    pub(super) fn threads(&self) -> u64 {
        u64::from(self.options.threads)
    }

    pub(super) fn order(&self) -> WriteOrder {
        WriteOrder::new(self.options.order, self.about.keys)
    }

    /// Returns `true` if all rows are present.
    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.is_some()
    }

    /// Records that all rows are present, and writes them to the data file.
    pub(super) fn set_loaded(&mut self) -> Result<()> {
        let about = serde_json::to_vec(&self.about).expect("numbers in a struct");
        self.database().keyspace(ABOUT)?.insert(ABOUT_KEY, about)?;
        self.database().checkpoint()?;
        self.loaded = Some(self.about);
        Ok(())
    }

    /// Closes and reopens the database, so that its pages are no longer in memory.
    pub(super) fn reopen(&mut self) -> Result<()> {
        self.database.take().expect("open until it is closed").close()?;
        self.database = Some(config(self.options).open(&self.path)?);
        Ok(())
    }

    /// Returns the path of the data file, which contains the pages.
    pub(super) fn data_file(&self) -> PathBuf {
        self.path.join("data")
    }

    pub(super) fn close(mut self) -> Result<()> {
        self.database.take().expect("open until it is closed").close()?;
        drop(self.temporary.take());
        Ok(())
    }
}

fn config(options: &Options) -> Config {
    Config::new().memory(options.memory).log_streams(options.log_streams)
}

fn loaded(database: &Database) -> Result<Option<Dataset>> {
    let about = database.keyspace(ABOUT)?.get(ABOUT_KEY)?;
    Ok(about.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// A temporary folder that is removed with its content.
pub(super) struct Temporary(PathBuf);

impl Temporary {
    /// Returns the path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn create() -> Result<Temporary> {
        let is_device = |path: &Path| FileSystem::of(path).is_ok_and(|file_system| !file_system.is_memory);
        let parent = [std::env::temp_dir(), PathBuf::from("target"), PathBuf::from(".")]
            .into_iter()
            .find(|path| is_device(path))
            .ok_or_else(|| Failure::other("no device to measure on").hint("give a folder on one: --path DIR"))?;
        let path = parent.join(format!("drumlin-bench-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| Failure::file("creating", &path, &error))?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // If this fails, the folder stays in the temporary directory, where it does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
