//! Opens databases for the commands: the options that select a database and a keyspace, and the errors if either is
//! missing.

use std::io::ErrorKind;
use std::path::PathBuf;

use clap::Args;
use drumlin::{Archive, Config, Database, Error, Keyspace};

use crate::failure::{Exit, Failure, Result, plain};
use crate::terminal::Output;
use crate::terminal::figures::{parse_size, plural};

/// The arguments that name and open a database.
#[derive(Clone, Debug, Args)]
pub(crate) struct DatabaseArgs {
    /// The database's folder
    #[arg(id = "database", value_name = "DATABASE")]
    pub(crate) path: PathBuf,
    /// Memory that the engine may use, such as 64MiB or 1GiB
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub(crate) memory: u64,
    /// Copy all changes to an archive in this folder, from the first command with this option on
    #[arg(long, value_name = "FOLDER")]
    pub(crate) archive: Option<PathBuf>,
}

/// The option that names a keyspace of the database.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeyspaceArgs {
    /// The keyspace to use
    #[arg(id = "keyspace", long = "keyspace", short = 'k', value_name = "NAME", default_value = "default")]
    pub(crate) name: String,
}

/// The options that name what a command reads: a keyspace, now or in a kept snapshot.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(crate) keyspace: KeyspaceArgs,
    /// Read the keyspace as it was in this kept snapshot
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
}

impl ReadArgs {
    /// Returns the name of the snapshot.
    pub(crate) fn snapshot(&self) -> Option<&str> {
        self.snapshot.as_deref()
    }

    /// Opens the keyspace, which must exist.
    pub(crate) fn existing(&self, database: &Database) -> Result<Keyspace> {
        match &self.snapshot {
            None => self.keyspace.existing(database),
            Some(name) => {
                let snapshot = database.open_snapshot(name)?;
                snapshot.keyspace(&self.keyspace.name).map_err(|_| {
                    let names: Vec<String> = snapshot.keyspaces().into_iter().map(|info| info.name).collect();
                    let names = names.join(", ");
                    let keyspace = &self.keyspace.name;
                    Failure::not_found(format!(
                        "there is no keyspace {keyspace:?} in the snapshot {name:?}; it has: {names}"
                    ))
                })
            }
        }
    }
}

impl DatabaseArgs {
    pub(crate) fn config(&self) -> Config {
        // A command needs few pages. Without a warm start, it also leaves alone the list of pages that the database's
        // usual program keeps for its own warm start.
        let config = Config::new().memory(self.memory).warm_start(false);
        match &self.archive {
            Some(folder) => config.archive(Archive::to_folder(folder)),
            None => config,
        }
    }

    /// Opens an existing database for a command that writes.
    pub(crate) fn open(&self) -> Result<Database> {
        self.check_there()?;
        self.config().create(false).open(&self.path).map_err(|error| self.not_opened(error))
    }

    /// Opens an existing database for a command that reads. It is opened read-only, so nothing is written and any
    /// number of commands can read concurrently. If the database was not closed properly, it is opened for writing,
    /// because its log has to be replayed.
    pub(crate) fn open_to_read(&self) -> Result<Database> {
        self.check_there()?;
        let not_closed = match self.config().read_only(true).open(&self.path) {
            Err(error @ Error::NotClosed { .. }) => error,
            opened => return Ok(opened?),
        };
        match self.config().create(false).open(&self.path) {
            Err(error) if may_not_write(&error) => Err(not_closed.into()),
            opened => Ok(opened?),
        }
    }

    /// Opens an existing database for a command that counts rows. Opens it for writing if possible, so that the counts
    /// are stored when the database is closed. Otherwise also returns the reason why they can't be stored.
    pub(crate) fn open_to_count(&self) -> Result<(Database, Option<String>)> {
        self.check_there()?;
        let not_kept = match self.config().create(false).open(&self.path) {
            Err(Error::Locked { .. }) => "another command reads the database".to_owned(),
            Err(error) if may_not_write(&error) => reason_of(&error),
            opened => return Ok((opened?, None)),
        };
        Ok((self.open_to_read()?, Some(not_kept)))
    }

    /// Opens an existing database to examine it. Opening repairs damage if it can, and reports it. A database that
    /// can't be written to is opened read-only.
    pub(crate) fn open_to_examine(&self, output: Output) -> drumlin::Result<Database> {
        let refused = match self.config().create(false).open(&self.path) {
            Err(error) if may_not_write(&error) => error,
            opened => return opened,
        };
        let database = self.config().read_only(true).open(&self.path)?;
        output.remark(&format!("open for reading only: {}", reason_of(&refused)));
        Ok(database)
    }

    /// Checks that the path is a folder.
    pub(crate) fn check_there(&self) -> Result<()> {
        if !self.path.exists() {
            return Err(Failure::no_database(&self.path));
        }
        self.check_folder()
    }

    /// Opens an existing database or creates one.
    pub(crate) fn open_or_create(&self) -> Result<Database> {
        self.check_folder()?;
        self.config().open(&self.path).map_err(|error| self.not_opened(error))
    }

    /// Converts the error of opening a database for writing.
    fn not_opened(&self, error: Error) -> Failure {
        if !may_not_write(&error) || !self.path.exists() {
            return error.into();
        }
        let message = format!("{} can't be written to: {}", self.path.display(), reason_of(&error));
        Failure::new(Exit::NoCommits, message)
            .hint("commands that only read still work: get, scan, dump, keyspaces, stats and check")
    }

    fn check_folder(&self) -> Result<()> {
        if self.path.join("head").is_file() && !self.path.join("data").exists() {
            let message = format!("{} is a folder of logs, not a database", self.path.display());
            return Err(Failure::new(Exit::NotOpened, message).hint("`drumlin log ls DATABASE` lists its logs"));
        }
        if !self.path.is_file() {
            return Ok(());
        }
        let message = format!("{} is a file; a database is a folder", self.path.display());
        Err(Failure::new(Exit::NotOpened, message).hint("the database comes first, then keys or files"))
    }
}

/// Returns `true` if the operating system denies the process write access to a file.
fn may_not_write(error: &Error) -> bool {
    let Error::Io { source, .. } = error else { return false };
    matches!(source.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
}

/// Returns the cause of an error, for use in a remark.
pub(crate) fn reason_of(error: &Error) -> String {
    match error {
        Error::Io { action, path, source } => format!("{action} {}: {}", path.display(), plain(source)),
        Error::Corrupted { path, what, reason } => format!("damaged: {what} in {}: {reason}", path.display()),
        Error::NotClosed { commits, .. } => {
            format!("{} in the log after the last checkpoint are left out", plural(*commits, "commit"))
        }
        other => other.to_string(),
    }
}

impl KeyspaceArgs {
    /// Opens the keyspace, which must already exist.
    pub(crate) fn existing(&self, database: &Database) -> Result<Keyspace> {
        match database.existing_keyspace(&self.name) {
            Err(Error::NoSuchKeyspace { .. }) => {
                Err(self.not_found(database.keyspaces().into_iter().map(|keyspace| keyspace.name).collect()))
            }
            opened => Ok(opened?),
        }
    }

    /// Returns the error if there is no keyspace of this name, but those of `names`.
    pub(crate) fn not_found(&self, mut names: Vec<String>) -> Failure {
        const NAMED_MAX: usize = 10;
        let others = names.len().saturating_sub(NAMED_MAX);
        names.truncate(NAMED_MAX);
        let named = names.join(", ");
        let failure = |there| Failure::not_found(format!("there is no keyspace {:?}; {there}", self.name));
        match others {
            0 if names.is_empty() => failure("the database has none".to_owned()),
            0 => failure(format!("there are: {named}")),
            others => failure(format!("there are: {named}, and {others} more"))
                .hint("`drumlin keyspaces DATABASE` lists them"),
        }
    }

    /// Opens the keyspace, or creates it if it is missing.
    pub(crate) fn open_or_create(&self, database: &Database) -> Result<Keyspace> {
        Ok(database.keyspace(&self.name)?)
    }
}
