//! The stores with which Drumlin is compared. Each is configured so that a commit should be durable when it returns.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Commit, Opened, Store};

/// Formats any store's error.
fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

const ROWS: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("rows");

struct Redb(redb::Database);

pub(super) fn redb(folder: &Path) -> Opened {
    let database = redb::Database::create(folder.join("redb")).map_err(text)?;
    Ok(Box::new(Redb(database)))
}

impl Store for Redb {
    fn writer(&self) -> Result<Commit<'_>, String> {
        let insert = |key: [u8; 8], value: &[u8]| {
            let transaction = self.0.begin_write()?;
            transaction.open_table(ROWS)?.insert(&key[..], value)?;
            Ok::<_, redb::Error>(transaction.commit()?)
        };
        Ok(Box::new(move |key, value| insert(key, value).map_err(text)))
    }
}

/// A SQLite database, to which each writer has its own connection.
struct Sqlite {
    path: PathBuf,
    settings: &'static str,
}

impl Sqlite {
    fn connect(&self) -> rusqlite::Result<rusqlite::Connection> {
        let connection = rusqlite::Connection::open(&self.path)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.execute_batch(self.settings)?;
        Ok(connection)
    }

    fn open(folder: &Path, settings: &'static str) -> Opened {
        let store = Sqlite { path: folder.join("sqlite"), settings };
        let table = "CREATE TABLE rows (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID;";
        store.connect().and_then(|connection| connection.execute_batch(table)).map_err(text)?;
        Ok(Box::new(store))
    }
}

/// Opens SQLite with a rollback journal, its default, as the source did.
pub(super) fn sqlite_rollback(folder: &Path) -> Opened {
    Sqlite::open(folder, "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL;")
}

pub(super) fn sqlite_wal(folder: &Path) -> Opened {
    Sqlite::open(folder, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
}

impl Store for Sqlite {
    fn writer(&self) -> Result<Commit<'_>, String> {
        let connection = self.connect().map_err(text)?;
        let insert = move |key: [u8; 8], value: &[u8]| {
            connection.prepare_cached("INSERT INTO rows VALUES (?1, ?2)")?.execute((&key[..], value))
        };
        Ok(Box::new(move |key, value| insert(key, value).map(|_| ()).map_err(text)))
    }
}

struct Lmdb(heed::Env);

type Rows<'e> = heed::Database<'e, heed::types::Bytes, heed::types::Bytes>;

pub(super) fn lmdb(folder: &Path) -> Opened {
    // SAFETY: the folder was created for this measurement; no other program opens or changes its files.
    let environment = unsafe { heed::EnvOpenOptions::new().map_size(1 << 30).open(folder) };
    Ok(Box::new(Lmdb(environment.map_err(text)?)))
}

impl Store for Lmdb {
    fn writer(&self) -> Result<Commit<'_>, String> {
        let put = |key: [u8; 8], value: &[u8]| {
            let transaction = self.0.write_txn()?;
            self.0.create_databases_and_commit(transaction, |opener, transaction| {
                let rows: Rows<'_> = opener.create_database(transaction, None)?;
                rows.put(transaction, &key, value)?;
                Ok(heed::CommitOrAbort::<_, ()>::Commit(()))
            })
        };
        Ok(Box::new(move |key, value| put(key, value).map(|_| ()).map_err(|error: heed::Error| text(error))))
    }
}

struct Nebari(nebari::Tree<nebari::tree::Unversioned, nebari::io::fs::StdFile>);

pub(super) fn nebari(folder: &Path) -> Opened {
    use nebari::tree::Root;
    let roots = nebari::Config::default_for(folder.join("nebari")).open().map_err(text)?;
    Ok(Box::new(Nebari(roots.tree(nebari::tree::Unversioned::tree("rows")).map_err(text)?)))
}

impl Store for Nebari {
    fn writer(&self) -> Result<Commit<'_>, String> {
        Ok(Box::new(|key, value| self.0.set(key.to_vec(), value.to_vec()).map_err(text)))
    }
}

struct Sled(sled::Db);

pub(super) fn sled(folder: &Path) -> Opened {
    Ok(Box::new(Sled(sled::open(folder.join("sled")).map_err(text)?)))
}

impl Store for Sled {
    fn writer(&self) -> Result<Commit<'_>, String> {
        let commit = |key: [u8; 8], value: &[u8]| {
            self.0.insert(key, value)?;
            self.0.flush()
        };
        Ok(Box::new(move |key, value| commit(key, value).map(|_| ()).map_err(text)))
    }
}
