//! Opening databases for the commands: the options they share, and what they do when there is none.

use std::path::PathBuf;

use clap::Args;
use drumlin::{Config, Database, Keyspace};

use crate::failure::{Exit, Failure, Result};
use crate::terminal::figures::parse_size;

/// Which database.
#[derive(Clone, Debug, Args)]
pub(crate) struct DatabaseArgs {
    /// The database: a folder
    #[arg(id = "database", value_name = "DATABASE")]
    pub(crate) path: PathBuf,
    /// Memory the engine may use, as 64MiB or 1GiB
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub(crate) memory: u64,
}

/// Which keyspace of it.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeyspaceArgs {
    /// The keyspace
    #[arg(id = "keyspace", long = "keyspace", short = 'k', value_name = "NAME", default_value = "default")]
    pub(crate) name: String,
}

impl DatabaseArgs {
    pub(crate) fn config(&self) -> Config {
        Config::new().memory(self.memory)
    }

    /// Opens what is there.
    pub(crate) fn open(&self) -> Result<Database> {
        self.check_there()?;
        Ok(self.open_there()?)
    }

    /// Like [`open`](Self::open), after [`check_there`](Self::check_there).
    pub(crate) fn open_there(&self) -> drumlin::Result<Database> {
        self.config().create(false).open(&self.path)
    }

    /// There is a folder.
    pub(crate) fn check_there(&self) -> Result<()> {
        if !self.path.exists() {
            return Err(Failure::no_database(&self.path));
        }
        self.check_folder()
    }

    /// Opens what is there, or creates it.
    pub(crate) fn open_or_create(&self) -> Result<Database> {
        self.check_folder()?;
        Ok(self.config().open(&self.path)?)
    }

    fn check_folder(&self) -> Result<()> {
        if !self.path.is_file() {
            return Ok(());
        }
        let message = format!("{} is a file; a database is a folder", self.path.display());
        Err(Failure::new(Exit::NotOpened, message).hint("DATABASE comes first, then keys or files"))
    }
}

impl KeyspaceArgs {
    /// The keyspace, which must be there.
    pub(crate) fn existing(&self, database: &Database) -> Result<Keyspace> {
        Ok(database.existing_keyspace(&self.name)?)
    }

    /// The keyspace, created where it is missing.
    pub(crate) fn open_or_create(&self, database: &Database) -> Result<Keyspace> {
        Ok(database.keyspace(&self.name)?)
    }
}
